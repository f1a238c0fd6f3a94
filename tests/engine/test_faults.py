"""Failures at any point: the first error comes out, nothing has changed, nobody is left over."""

from __future__ import annotations

import _thread
import contextlib
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import random_graphs
from random_graphs import Graph, bits
from test_parallel import at_meeting, leaf, meeting, two_branches
from watchdog import short_turns, watched

import adjoint as ad
from adjoint import errors
from adjoint.engine import parallel
from adjoint.grads import slots


@pytest.fixture(autouse=True)
def _short_turns() -> Iterator[None]:
    with short_turns():
        yield
    at_meeting.clear()
    random_graphs.faults.clear()
    assert helpers() == []


def helpers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("adjoint")]


class Injected(Exception):  # noqa: N818  it is put in, not made by mistake
    """A failure that a test puts in."""


def fail_at(count: int, error: type[BaseException] = Injected) -> Any:
    """Return a function that raises when it is called for the ``count``-th time."""
    calls = itertools.count(1)

    def fault() -> None:
        if next(calls) == count:
            raise error(f"call {count}")

    return fault


def calls_in(seed: int) -> int:
    """Count the places of a graph where a failure can be put in: hooks and faulty rules."""
    calls: list[int] = []
    graph = Graph(seed, fault=lambda: calls.append(1))
    random_graphs.faults[:] = [lambda: calls.append(1)]
    graph.root.backward()
    random_graphs.faults.clear()
    return len(calls)


def check_failure(seed: int, workers: int, rng: np.random.Generator, seconds: float | None = None) -> bool:
    """Put a failure into a random graph at a random point; False if it has no such point.

    With ``seconds`` the error must be there within that time (the soak target's claim).
    """
    count = calls_in(seed)
    if not count:
        return False
    fault = fail_at(int(rng.integers(1, count + 1)))
    graph, whole = Graph(seed, fault=fault), Graph(seed)
    for t in graph.leaves:
        t.grad = ad.ones(t.shape, dtype=t.dtype)
    totals = ad.backward(whole.root)
    before = {id(t): random_graphs.stored(t) for t in (*graph.leaves, *graph.inner)}
    random_graphs.faults[:] = [fault]
    start = monotonic()
    with pytest.raises(Injected) as info:
        graph.root.backward(workers=workers, retain_graph=True)
    assert seconds is None or monotonic() - start < seconds
    random_graphs.faults.clear()
    assert helpers() == []
    changed = [t for t in (*graph.leaves, *graph.inner) if random_graphs.stored(t) is not before[id(t)]]
    # but for leaves whose post-accumulate hook had to see it: those are whole, and the error says how many
    ends = [w for t, w in zip(graph.leaves, whole.leaves, strict=True) if any(t is c for c in changed)]
    assert len(ends) == len(changed)
    for t, end in zip(changed, ends, strict=True):
        assert t._extra is not None and t._extra.post_hooks is not None
        assert bits(t.grad) == bits(before[id(t)] + totals[end])
    noted = [int(n.split()[0]) for n in getattr(info.value, "__notes__", ()) if "post-accumulate hook" in n]
    assert noted == ([len(ends)] if ends else [])
    # and the next one is right, on the same graph and on a new one
    again, fresh = Graph(seed), Graph(seed)
    again.root.backward(workers=workers)
    fresh.root.backward()
    assert again.results() == fresh.results()
    graph.fault = None
    for t in (*graph.leaves, *graph.inner):
        t.grad = None
    graph.root.backward(workers=workers)
    assert graph.results() == fresh.results()
    return True


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_random_failures_in_random_graphs(workers):
    rng = np.random.default_rng(workers)
    done = sum(check_failure(seed, workers, rng) for seed in range(1000, 1070))
    assert done > 30


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_every_kind_of_error_comes_out_as_it_is(workers, error):
    x, y = leaf(1.0), leaf(2.0)
    loss, _, _ = two_branches(x, y)
    at_meeting.append(fail_at(2, error))
    with pytest.raises(error, match="call 2"):
        loss.backward(workers=workers)
    assert x.grad is None and y.grad is None


def test_the_first_error_is_raised_and_the_other_is_a_note():
    x, y = leaf(1.0), leaf(2.0)
    loss, _, _ = two_branches(x, y)
    barrier = meeting()

    def fail() -> None:
        raise Injected(threading.current_thread().name)

    at_meeting.append(fail)
    with pytest.raises(Injected) as info:
        loss.backward(workers=2)
    assert not barrier.broken
    names = {threading.current_thread().name, "adjoint-backward-1"}
    (other,) = names - {str(info.value)}
    assert info.value.__notes__ == [f"Another worker failed too: Injected: {other}"]
    assert x.grad is None and y.grad is None
    at_meeting.clear()
    two_branches(x, y)[0].backward(workers=2)
    assert x.grad.tolist() == [12.0]


def test_an_interrupt_goes_before_an_error():
    x, y = leaf(1.0), leaf(2.0)
    loss, _, _ = two_branches(x, y)
    meeting()
    me = threading.current_thread()

    def fail() -> None:
        raise KeyboardInterrupt if threading.current_thread() is me else Injected("too")

    at_meeting.append(fail)
    with pytest.raises(KeyboardInterrupt) as info:
        loss.backward(workers=2)
    assert info.value.__notes__ == ["Another worker failed too: Injected: too"]
    assert x.grad is None and y.grad is None


def test_an_interrupt_of_the_caller_while_it_waits():
    """Ctrl-C arrives while only the helper has something to do."""
    x, y = leaf(1.0), leaf(2.0)
    loss, _, _ = two_branches(x, y)
    meeting()
    me, arrived = threading.current_thread(), threading.Event()

    def act() -> None:
        if threading.current_thread() is not me:
            _thread.interrupt_main()
            arrived.wait(0.5)  # the caller has been told; it does not wait for ever for this

    at_meeting.append(act)
    with pytest.raises(KeyboardInterrupt):
        loss.backward(workers=2)
    arrived.set()
    assert x.grad is None and y.grad is None
    at_meeting.clear()
    two_branches(x, y)[0].backward(workers=2)
    assert x.grad.tolist() == [12.0]


def check_interrupt(seed: int, delay: float) -> bool:
    """Interrupt a backward after a moment, wherever it is; tell whether that was inside it."""
    whole, graph = Graph(seed, nodes=40, hooks=False), Graph(seed, nodes=40, hooks=False)
    whole.root.backward()
    inside = False

    def handler(*_: Any) -> None:
        nonlocal inside
        if armed:
            inside = True
            raise KeyboardInterrupt

    armed = True
    before = signal.signal(signal.SIGALRM, handler)
    with contextlib.suppress(KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, delay)
        graph.root.backward(workers=3)
        armed = False
    armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    end = monotonic() + 20
    while helpers() and monotonic() < end:
        threading.Event().wait(0.001)  # one that was just being started sees that it is too late
    assert helpers() == []
    assert graph.results() in (whole.results(), [None] * len(whole.results()))  # all or nothing
    again = Graph(seed, nodes=40, hooks=False)
    with ad.enable_grad():
        again.root.backward(workers=3)
    assert again.results() == whole.results()
    return inside


# An interrupt inside a callback of a weak reference, as Python's own, is only reported.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers by signal are of Unix")
def test_interrupts_at_any_moment():
    rng = np.random.default_rng(0)
    assert sum(check_interrupt(seed, float(rng.uniform(1e-4, 4e-3))) for seed in range(100)) > 10


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_while_the_caller_waits_for_helpers_to_end(monkeypatch, before):
    x, y = leaf(1.0), leaf(2.0)
    loss, _, _ = two_branches(x, y)
    meeting()
    dismiss, help_ = parallel._Crew.dismiss, parallel._Crew.help
    calls, leave = itertools.count(), threading.Event()

    def interrupted(crew: Any) -> None:
        if next(calls):
            leave.set()
        elif before:
            raise KeyboardInterrupt
        else:
            _thread.interrupt_main()
        dismiss(crew)

    def help_long(crew: Any, number: int, ended: Any) -> None:
        help_(crew, number, _Late(ended, leave))

    monkeypatch.setattr(parallel._Crew, "dismiss", interrupted)
    monkeypatch.setattr(parallel._Crew, "help", help_long)
    with pytest.raises(KeyboardInterrupt):
        loss.backward(workers=2)
    assert helpers() == []
    assert x.grad is None and y.grad is None


class _Late:
    """The lock of a helper that ends only when it is told to."""

    def __init__(self, lock: Any, leave: threading.Event) -> None:
        self.lock, self.leave = lock, leave

    def release(self) -> None:
        assert self.leave.wait(20)
        self.lock.release()


def test_an_interrupted_caller_leaves_a_stuck_hook_behind_which_can_change_nothing(monkeypatch):
    monkeypatch.setattr(parallel, "_PATIENCE_SECONDS", 0.05)
    x, y = leaf(1.0), leaf(2.0)
    loss, _, _ = two_branches(x, y)
    me, release = threading.current_thread(), threading.Event()
    y.register_post_accumulate_grad_hook(lambda t: None)
    x.register_post_accumulate_grad_hook(lambda t: None)
    meeting()

    def act() -> None:
        if threading.current_thread() is me:
            raise KeyboardInterrupt
        release.wait(20)

    at_meeting.append(act)
    with pytest.raises(KeyboardInterrupt):
        loss.backward(workers=2)
    left = [t for t in threading.enumerate() if t.name in helpers()]
    assert len(left) == 1
    release.set()
    left[0].join(20)
    assert x.grad is None and y.grad is None


def test_a_worker_that_dies_is_noticed(monkeypatch):
    """Not an error in a rule but the end of the thread, so that nobody is told."""
    x, y = leaf(1.0), leaf(2.0)
    loss, _, _ = two_branches(x, y)
    meeting()
    me = threading.current_thread()

    def die() -> None:
        if threading.current_thread() is not me:
            raise SystemExit

    def help_without_a_word(crew: Any, number: int, ended: Any) -> None:
        with contextlib.suppress(SystemExit):
            crew.work(number)

    at_meeting.append(die)
    monkeypatch.setattr(parallel._Crew, "help", help_without_a_word)
    with pytest.raises(errors.WorkerError) as info:
        loss.backward(workers=2)
    assert str(info.value) == (
        "the thread 'adjoint-backward-1' ended while it differentiated 'meet'.\n"
        "  Something outside adjoint ended it.  No .grad has changed: run the forward and backward again."
    )
    assert x.grad is None and y.grad is None


def test_without_threads_the_caller_does_it_all(monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    one = Graph(3)
    one.root.backward()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    many = Graph(3)
    many.root.backward(workers=4)
    assert many.results() == one.results()


def test_a_leaf_event_that_fails():
    x, y = leaf(1.0), leaf(2.0)

    def fail(t: ad.Tensor, g: ad.Tensor) -> None:
        raise Injected("event")

    for workers in (1, 2):
        with pytest.raises(Injected, match="event"):
            (x * y).sum().backward(workers=workers, on_leaf_ready=fail)
        assert x.grad is None and y.grad is None


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_commit_that_fails_changes_nothing(monkeypatch, error):
    leaves = [leaf(float(i)) for i in range(4)]
    for t in leaves:
        t.grad = ad.ones(1)
    before = [t.grad for t in leaves]
    fault = fail_at(3, error)
    real = slots._sum

    def summed(a: ad.Tensor, b: ad.Tensor) -> ad.Tensor:
        fault()
        return real(a, b)

    monkeypatch.setattr(slots, "_sum", summed)
    with pytest.raises(error):
        sum(leaves, ad.tensor(0.0)).backward()
    assert [t.grad for t in leaves] == before or all(t.grad is b for t, b in zip(leaves, before, strict=True))
    sum(leaves, ad.tensor(0.0)).backward()
    assert [t.grad.tolist() for t in leaves] == [[2.0]] * 4


def test_an_interrupt_between_two_stores_puts_the_old_gradients_back():
    class Slot:
        """A slot whose third store is interrupted."""

        stores = 0

        def __init__(self, grad: Any) -> None:
            self.__dict__["grad"] = grad

        def __setattr__(self, name: str, value: Any) -> None:
            Slot.stores += 1
            if Slot.stores == 3:
                raise KeyboardInterrupt
            self.__dict__[name] = value

    leaves = [leaf(float(i)) for i in range(4)]
    gradients: dict[Any, Any] = {t: np.ones(1) for t in leaves}
    olds = [ad.ones(1) for _ in leaves]
    for t, old in zip(leaves, olds, strict=True):
        t._extra = Slot(old)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        slots.commit(gradients)
    assert all(t._extra.grad is old for t, old in zip(leaves, olds, strict=True))  # type: ignore[union-attr]


def test_errors_hold_no_graph(monkeypatch):
    """When the error is gone, so are the run and its arrays."""
    import gc
    import weakref

    x, y = leaf(1.0), leaf(2.0)
    loss, a, b = two_branches(x, y)
    at_meeting.append(fail_at(1))
    crews: list[Any] = []
    make = parallel._Crew.__init__

    def made(self: Any, *args: Any) -> None:
        make(self, *args)
        crews.append(weakref.ref(self.plan.order[0]))

    monkeypatch.setattr(parallel._Crew, "__init__", made)
    with pytest.raises(Injected):
        loss.backward(workers=2)
    del loss, a, b
    with watched(30.0):  # the thread that saw the helper end may be at its last lines
        while any(crew() is not None for crew in crews):
            gc.collect()
    assert len(crews) == 1


HANG = """
import sys, threading
sys.path.insert(0, {tests!r})
from watchdog import short_turns, watched
lock = threading.Lock()
def stuck_worker():
    lock.acquire()
lock.acquire()
threading.Thread(target=stuck_worker, daemon=True).start()
with watched(0.3):
    lock.acquire()
"""


def test_the_watchdog_turns_a_hang_into_a_failure_with_all_stacks():
    program = HANG.format(tests=str(Path(__file__).parents[1] / "support"))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr and "in stuck_worker" in done.stderr and "in <module>" in done.stderr


def test_bits_tell_a_difference():
    """What the comparisons of these files rest on."""
    a = ad.tensor([0.1 + 0.2, 0.3])
    assert bits(a) == bits(ad.tensor([0.1 + 0.2, 0.3]))
    assert bits(a) != bits(ad.tensor([0.3, 0.3]))
    assert bits(ad.tensor([0.0])) != bits(ad.tensor([-0.0]))
