"""Eight threads, each a thousand steps on its own model, or into one leaf that all share, beside the ideal.

The ideal is one thread's time for all eight over the number of processors. A machine drifts within a
minute: so four of the eight are done in one thread immediately before, and four after. Bare kernels in
eight threads are in the same rounds; where the target is missed, the same work in eight processes shows
what the machine gives to programs that share no lock.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from adjoint.threads.spread import processors
from benchmarks.harness import Clock, Numbers, Rounds, Taken, quartiles

STEPS, SIZE, TIMES = 1_000, 100_000, 3  # of each thread; elements of a model; rounds
IDEAL, TOGETHER, BARE = "ideal", "eight threads", "bare kernels, eight threads"
TARGET = 1.1

Work = Callable[[int, int], None]  # so many steps on so many elements


def steps(count: int, size: int) -> None:
    rng = np.random.default_rng(0)
    w = ad.tensor(rng.normal(size=size), requires_grad=True)
    x = ad.tensor(rng.normal(size=size))
    for _ in range(count):
        ad.sin(ad.cos(w * x)).sum().backward()
        with ad.no_grad():
            w.copy_(w - 1e-3 * w.grad)
            w.grad = None


def bare_steps(count: int, size: int) -> None:
    """The NumPy calls of ``steps``, with nothing around them."""
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=size), rng.normal(size=size)
    for _ in range(count):
        np.copyto(w, w - 1e-3 * bare_gradient(w, x))


def bare_gradient(w: Any, x: Any) -> Any:
    """The forward and backward of ``sin(cos(w * x)).sum()``."""
    product = w * x
    inner = np.cos(product)
    np.sin(inner).sum()
    grad = np.broadcast_to(np.ones(()), w.shape) * np.cos(inner)
    return (-grad * np.sin(product)) * x


class Shared:
    """Steps whose gradients all go to one leaf.

    They are all the same, so their sum has the same bits whoever was first, and one that is lost shows.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.w = ad.tensor(rng.normal(size=SIZE), requires_grad=True)
        self.x = ad.tensor(rng.normal(size=SIZE))
        self.lock, self.total = threading.Lock(), np.zeros(SIZE)

    def steps(self, count: int, size: int) -> None:
        for _ in range(count):
            ad.sin(ad.cos(self.w * self.x)).sum().backward()

    def bare_steps(self, count: int, size: int) -> None:
        """The NumPy calls of ``steps``; only the sum is behind a lock."""
        w, x = self.w.numpy(), self.x.numpy()
        for _ in range(count):
            grad = bare_gradient(w, x)
            with self.lock:
                self.total = self.total + grad

    def check(self, count: int) -> None:
        """Raise unless ``.grad`` is the sum of so many contributions, to the bit; then forget it."""
        found, self.w.grad = self.w.grad, None
        (one,) = ad.gradients(ad.sin(ad.cos(self.w * self.x)).sum(), [self.w])
        expected = one.numpy().copy()
        for _ in range(count - 1):
            expected += one.numpy()
        if found is None or not np.array_equal(found.numpy(), expected):
            raise RuntimeError(f"of {count} contributions to a shared leaf, some are lost")


def alone(models: int, count: int, work: Work = steps) -> Taken:
    """Some of the models, one after the other in one thread."""
    with Clock() as clock:
        for _ in range(models):
            work(count, SIZE)
    return clock.taken


def eight(work: Work, count: int) -> Taken:
    """Eight models, each in a thread of its own."""
    done: list[None] = []
    threads = [threading.Thread(target=lambda: done.append(work(count, SIZE))) for _ in range(8)]
    with Clock() as clock:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    if len(done) < 8:
        raise RuntimeError(f"{8 - len(done)} of eight threads failed")
    return clock.taken


def around(run: Callable[[], Taken], count: int, work: Work = steps) -> tuple[Taken, Taken]:
    """What something took, and its ideal: half of the models in one thread before, half after it."""
    cores = min(8, processors())
    before, taken, after = alone(4, count, work), run(), alone(4, count, work)
    return taken, Taken((before.wall + after.wall) / cores, (before.processor + after.processor) / cores)


def rounds(count: int = STEPS, times: int = TIMES) -> Rounds:
    """Eight threads that train, beside their ideal and the bare kernels, after a short warm-up."""
    return _rounds(steps, bare_steps, lambda: eight(steps, count), count, times)


def shared_rounds(count: int = STEPS, times: int = TIMES) -> Rounds:
    """Eight threads that add to one leaf, beside their ideal and the bare kernels; the sums are exact."""
    shared = Shared()

    def together() -> Taken:
        shared.w.grad = None
        taken = eight(shared.steps, count)
        shared.check(8 * count)
        return taken

    return _rounds(shared.steps, shared.bare_steps, together, count, times)


def _rounds(work: Work, bare: Work, together: Callable[[], Taken], count: int, times: int) -> Rounds:
    found: Rounds = {IDEAL: [], TOGETHER: [], BARE: []}
    around(lambda: eight(work, min(count, 10)), min(count, 10), work)
    for _ in range(times):
        taken, ideal = around(together, count, work)
        for name, one in ((IDEAL, ideal), (TOGETHER, taken), (BARE, eight(bare, count))):
            found[name].append(one)
    return found


def eight_processes(count: int) -> Taken:
    """The same work in eight processes, which share no lock of the interpreter; they are started before."""
    command = [sys.executable, "-m", "benchmarks.eight", "--child", str(count)]
    pipe = subprocess.PIPE
    children = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(8)]
    try:
        for child in children:
            _said(child, "ready")
        with Clock() as clock:
            for child in children:
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
            used = [float(_said(child, "used")) for child in children]
        return Taken(clock.taken.wall, sum(used))
    finally:
        for child in children:
            child.kill()
            child.communicate()


def _said(child: subprocess.Popen[str], word: str) -> str:
    """Wait for a line that starts with a word; return the rest."""
    assert child.stdout is not None
    first, _, rest = child.stdout.readline().strip().partition(" ")
    if first != word:
        raise RuntimeError(f"a process of the eight ended before it said {word!r}")
    return rest


def child(count: int) -> None:
    """Be one of the eight processes."""
    steps(2, SIZE)
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.process_time()
    steps(count, SIZE)
    print("used", time.process_time() - start, flush=True)


def beside_processes(count: int, times: int) -> Numbers:
    """Return how eight threads and eight processes stand beside the ideal, in time and processor time."""
    found: dict[str, list[Taken]] = {"threads": [], "processes": []}
    runs = {"threads": lambda: eight(steps, count), "processes": lambda: eight_processes(count)}
    for _ in range(times):
        for name, run in runs.items():
            taken, ideal = around(run, count)
            found[name].append(
                Taken(taken.wall / ideal.wall, taken.processor / (min(8, processors()) * ideal.processor))
            )
    return {
        "steps": count,
        "wall": {name: quartiles([t.wall for t in taken]) for name, taken in found.items()},
        "processor": {name: quartiles([t.processor for t in taken]) for name, taken in found.items()},
    }


def why(found: Numbers, bare: float, target: float) -> str:
    wall, used = ({name: q[1] for name, q in found[key].items()} for key in ("wall", "processor"))
    if wall["processes"] > target:
        free = (
            f"more than the target of {target:g}: the machine does not give it to programs that share nothing"
        )
    elif wall["threads"] > wall["processes"]:
        free = "what threads take beyond that is the lock of the interpreter, which they share"
    else:
        free = "in these rounds threads lose nothing to the lock that they share"
    return (
        f"Bare NumPy calls in eight threads took {bare:.3g} of the ideal in the same rounds. In rounds of "
        f"{found['steps']} steps the same training took {wall['threads']:.3g} of the ideal in eight threads "
        f"and {wall['processes']:.3g} in eight processes, which share no lock; {free}. Processor time for "
        f"the same work, beside one thread alone: {used['threads']:.3g} in threads, {used['processes']:.3g} "
        "in processes; what is beyond 1 there is processors that slow each other down."
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.eight", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--child", type=int, required=True, help="be one of eight processes, for so many steps"
    )
    child(parser.parse_args().child)
    return 0


if __name__ == "__main__":
    sys.exit(main())
