"""Compiled functions in many threads: guards that wait, arrays with weak references, steps, changing shapes.

    PYTHONMALLOC=debug PYTHONPATH=. python tests/support/compiled_threads.py --threads 16 --calls 40

Every result is compared with NumPy's.  The debug allocator overwrites memory that is freed, so that a read of
it crashes the process or gives another result.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import queue
import sys
import threading
import weakref
from typing import Any

import numpy as np

import adjoint as ad


class Slow:
    """Two hashes that wait.  What they wait for is kept in objects of C, so that no guard sees it change."""

    def __init__(self) -> None:
        self.entered: Any = queue.SimpleQueue()
        self.locks = threading.RLock(), threading.RLock()

    def wait(self, k: int) -> None:
        self.entered.put(k)
        with self.locks[k]:
            pass


slow = Slow()
tokens: Any = queue.SimpleQueue()


class Key:
    """A key of a dictionary.  Its hash, which a check of guards computes, calls ``wait``."""

    def __init__(self, wait: Any) -> None:
        self.wait = wait

    def __hash__(self) -> int:
        self.wait()
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


FACTOR, SHIFT = Key(lambda: slow.wait(0)), Key(lambda: slow.wait(1))
waits = {FACTOR: 2.0, SHIFT: 3.0}
FREE = Key(lambda: tokens.empty() or tokens.put(tokens.get()))  # waits until one of a few tokens is free
takes = {FREE: 2.0}


def forced_turns(rounds: int) -> None:
    """A check of guards ends, and the guards are recorded again, while another check waits for a guard."""
    f = ad.compile(lambda x: x * waits[FACTOR] + waits[SHIFT], backend="native")
    arrays = np.arange(3.0), np.arange(4.0)
    found: list[Any] = []

    def call_often() -> None:
        for x in reversed(arrays):
            for _ in range(4):
                assert np.array_equal(f(x), x * 2 + 3)

    def start(wanted: int) -> threading.Thread:
        """Start a call in a thread; return when it computes the given hash."""
        while not slow.entered.empty():
            slow.entered.get()
        thread = threading.Thread(target=lambda: found.append(f(arrays[0])))
        thread.start()
        while slow.entered.get() != wanted:
            pass
        return thread

    for _ in range(rounds):
        call_often()
        slow.locks[1].acquire()
        early = start(1)
        slow.locks[0].acquire()
        late = start(0)
        slow.locks[1].release()
        early.join()
        call_often()
        taken = [np.full(k, 7, np.int64) for k in range(1, 40) for _ in range(20)]
        slow.locks[0].release()
        late.join()
        del taken
    assert len(found) == 2 * rounds and all(np.array_equal(y, arrays[0] * 2 + 3) for y in found)


def watched_arrays(rounds: int) -> None:
    """A finalizer runs while the results of a step are made, and keeps every tuple that it finds."""
    w, v = ad.tensor(np.ones(8)), ad.tensor(np.ones(8))

    def step(x: Any) -> Any:
        total = (x * w).sum()
        w.copy_(w * 0.5 + x)
        v.copy_(v * 0.25 + x)
        return total

    f = ad.compile(step, backend="native")
    x, kept = ad.tensor(np.ones(8)), []
    expected = np.ones(8), np.ones(8)
    for k in range(5 + rounds):
        old = w.numpy().base.obj  # the array that the step replaces
        watching = weakref.ref(old, lambda _: kept.append([o for o in gc.get_objects() if type(o) is tuple]))
        del old
        for _ in range(3):
            assert f(x).item() == expected[0].sum()
            expected = expected[0] * 0.5 + 1, expected[1] * 0.25 + 1
            taken = [np.full(8, -7.0) for _ in range(200)]
        assert np.array_equal(w.numpy(), expected[0]) and np.array_equal(v.numpy(), expected[1]), k
        kept.clear()
        del watching, taken


def many_threads(threads: int, calls: int) -> None:
    """Threads call the same functions with several shapes; one of them steps an optimiser."""
    for _ in range(2):
        tokens.put(None)
    guarded = ad.compile(lambda x: x * takes[FREE], backend="native")
    plain = ad.compile(lambda x: ad.tanh(x).sum(axis=0) + 1, limit=3)
    large = ad.compile(lambda x: (x * 3).max(axis=1), backend="native")
    w = ad.tensor(np.zeros(5)).requires_grad_()
    optimiser = ad.optim.SGD([w], lr=0.25)

    def step(x: Any) -> Any:
        optimiser.zero_grad()
        ((w - x) ** 2).sum().backward()
        optimiser.step()
        return w * 1

    train = ad.compile(step)
    start, errors = threading.Barrier(threads), []
    lock, truth = threading.Lock(), [np.zeros(5)]

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(calls):
            x = rng.standard_normal((int(rng.integers(1, 6)), 4))
            assert np.array_equal(guarded(x), x * 2)
            watching = weakref.ref(x, lambda _: gc.get_objects())
            np.testing.assert_allclose(plain(x), np.tanh(x).sum(axis=0) + 1, rtol=1e-12)
            big = rng.standard_normal((200, 300))
            assert np.array_equal(large(big), (big * 3).max(axis=1))
            with lock:
                target = rng.standard_normal(5)
                truth[0] = truth[0] - 0.25 * (2 * (truth[0] - target))
                np.testing.assert_allclose(train(ad.tensor(target)).detach().numpy(), truth[0], rtol=1e-9)
            del watching

    def guarded_work(seed: int) -> None:
        try:
            work(seed)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=guarded_work, args=(seed,)) for seed in range(threads)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    if errors:
        raise errors[0]


PARTS = {
    "forced turns": lambda threads, calls: forced_turns(max(2, calls // 20)),
    "watched arrays": lambda threads, calls: watched_arrays(max(2, calls // 20)),
    "many threads": many_threads,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=3600.0, help="a part that takes longer is a failure")
    options = parser.parse_args()
    faulthandler.enable()
    sys.setswitchinterval(1e-5)
    for part in options.parts:
        faulthandler.dump_traceback_later(options.seconds, exit=True)
        PARTS[part](options.threads, options.calls)
        print(f"{part}: right", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
