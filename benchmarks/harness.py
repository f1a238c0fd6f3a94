"""Time the same work in several engines, interleaved, and report ratios.

Timings on a shared machine are noise; ratios inside one run are not. Each round runs every
engine once, in an order that is drawn anew; the first rounds are dropped; what counts
is the median over rounds of adjoint's time divided by the peer's; a peer that takes more than a quarter
of a second for a step is in three of the rounds only. After work that uses BLAS there is a
short rest: OpenBLAS's threads spin for up to 0.1 s after a matrix product, those of compiled kernels
too, and would halve the next engine's speed. Short work is done once untimed after it.

A peer that is not installed, that lacks what a case needs, that fails or whose results are not the others'
is left out of that case, and the reason is printed and kept with the numbers. Where adjoint fails, or
agrees with fewer peers than it differs from, the run stops.
"""

from __future__ import annotations

import gc
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Step = Callable[[], Any]  # one unit of work; returns numbers to compare, or None


class Lacking(Exception):  # noqa: N818  no error: the engine is left out of the case
    """What an engine does not have, and so is left out."""


@dataclass(frozen=True)
class Buffered:
    """A step that leaves its result in buffers, where it is looked at untimed."""

    step: Step
    result: Callable[[], Any]

    def __call__(self) -> None:
        """Do the work."""
        self.step()


Numbers = dict[str, Any]  # what goes into JSON

THREADS = 2  # of every engine that can be told
NUMPY_ENGINES = ("adjoint", "autograd", "numpy", "scipy")
REST_AFTER_BLAS, REST_AFTER_OTHERS = 0.12, 0.005
FEWEST_ROUNDS = 7
SLOW_SECONDS, SLOW_ROUNDS = 0.25, 3  # a step of a peer that takes longer; the rounds it is in
SETUP_SECONDS = 150  # for a peer to compile and to run once


@dataclass
class Case:
    """One piece of work, written in the same way for each engine.

    ``engines`` maps a name to a function that sets up and returns the step; a peer that raises
    there, because it is not installed or lacks something, is left out.  ``targets`` are the ratios to reach,
    ``compiled`` are those of the compiled step.
    """

    name: str
    engines: dict[str, Callable[[], Step]]
    targets: dict[str, float] = field(default_factory=dict)
    compiled: dict[str, float] = field(default_factory=dict)
    blas: bool = False  # whether the work uses BLAS threads, so that engines need a rest
    tolerance: float = 1e-5
    repeat: int = 0  # steps per round; 0: as many as take 10 ms
    compared: int = 1  # steps whose results are compared: those of training show the updates before them
    seconds: float | None = None  # for the rounds, if not what the run gives to every case
    not_compiled: str = ""  # why adjoint's step cannot be one compiled function
    # whether adjoint's steps change nothing, so that the eager step and the compiled ones can share arrays:
    # times on different arrays differ by up to 5 %, because of their place in memory
    stateless: bool = False


@dataclass
class Result:
    """Seconds per step of each engine: all rounds."""

    case: Case
    seconds: dict[str, list[float]]
    left_out: dict[str, str] = field(default_factory=dict)  # peers, and why

    def ratios(self, peer: str, ours: str = "adjoint") -> list[float]:
        """Adjoint's time over the peer's, round by round; a slow peer is in the first rounds only."""
        return [a / p for a, p in zip(self.seconds[ours], self.seconds[peer], strict=False)]

    def summary(self) -> Numbers:
        """Medians and quartiles, for JSON."""
        return {
            "rounds": len(self.seconds["adjoint"]),
            "seconds": {name: quartiles(taken) for name, taken in self.seconds.items()},
            "ratios": {name: quartiles(self.ratios(name)) for name in self.seconds if name != "adjoint"},
            "targets": {k: v for k, v in self.case.targets.items() if k in self.seconds},
            "left out": self.left_out,
        }


class Taken(NamedTuple):
    """The seconds that something took, and the processor time of all threads that it used."""

    wall: float
    processor: float


class Clock:
    """Measure a ``with`` block."""

    def __enter__(self) -> Clock:
        self.used, self.start = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: Any) -> None:
        wall = time.perf_counter() - self.start
        self.taken = Taken(wall, time.process_time() - self.used)


Rounds = dict[str, list[Taken]]  # by variant


def used_of(taken: Sequence[Taken]) -> float:
    """The median of the number of processors that were at work."""
    return float(f"{statistics.median(t.processor / t.wall for t in taken):.3g}")


def quartiles(values: Sequence[float]) -> list[float]:
    """The lower quartile, the median and the upper one, to four digits."""
    ordered = sorted(values)
    n = len(ordered)
    return [float(f"{v:.4g}") for v in (ordered[n // 4], statistics.median(ordered), ordered[(3 * n) // 4])]


def set_threads() -> None:
    """Hold every engine that can be told to the same number of threads."""
    try:
        import torch

        torch.set_num_threads(THREADS)
    except ImportError:
        pass
    try:
        from threadpoolctl import threadpool_limits

        threadpool_limits(THREADS, user_api="blas")
    except ImportError:
        pass


def jax_x64() -> Any:
    """Import JAX with 64-bit numbers allowed; arrays of 32 bits stay what they are."""
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax


def release() -> None:
    """Free the memory that engines keep after a case: compiled functions, their constants, free buffers."""
    gc.collect()
    found = sys.modules
    if "jax" in found:
        found["jax"].clear_caches()
    if "torch._dynamo" in found:
        found["torch"]._dynamo.reset()
    if "mlx.core" in found:
        found["mlx.core"].clear_cache()
    if "tinygrad" in found:
        found["tinygrad"].Device["CPU"].allocator.free_cache()
    gc.collect()


def measure(case: Case, rounds: int = 30, warmup: int = 2, seconds: float = 6.0) -> Result:
    """Set up every engine that is there, compare what they compute, then time them in turn.

    There are ``rounds`` rounds, or as many as ``seconds`` allow, but not fewer than seven.
    """
    set_threads()
    steps, values, left_out = set_up(case)
    for name, why in compare(case, values).items():
        leave_out(case, name, why, left_out)
        del steps[name]
    del values
    seconds = seconds if case.seconds is None else case.seconds
    runs: dict[str, tuple[int, bool]] = {}  # how often a step is made in a round, and whether it is slow
    taken: dict[str, list[float]] = {name: [] for name in steps}
    shuffle = random.Random(0)
    gc.collect()
    began = time.perf_counter()
    for i in range(rounds + warmup):
        if i >= FEWEST_ROUNDS + warmup and time.perf_counter() - began > seconds:
            break
        names = list(taken)
        shuffle.shuffle(names)  # so that no engine always comes after the same other
        for name in names:
            try:
                repeats, slow = runs.get(name) or runs.setdefault(name, pace(case, name, steps[name]))
                if slow and not 0 <= i - warmup < SLOW_ROUNDS:
                    continue
                if repeats > 1:
                    steps[name]()  # caches and threads are cold after the rest
                once = time_of(steps[name], repeats)
            except Exception as error:
                leave_out(case, name, error, left_out)
                del taken[name]
                continue
            rest(case, name)
            if i >= warmup:
                taken[name].append(once)
    return Result(case, taken, left_out)


def pace(case: Case, name: str, step: Step) -> tuple[int, bool]:
    """Return how many steps make a round, and whether a step is so slow that few rounds must do."""
    once = time_of(step, 1)
    if once > SLOW_SECONDS:
        return 1, not name.startswith("adjoint")
    return case.repeat or repeats_of(step), False


def leave_out(case: Case, name: str, why: Exception | str, left_out: dict[str, str]) -> None:
    """Note and print why a peer is left out; adjoint never is: its error is raised."""
    ours = name.startswith("adjoint") and not (name != "adjoint" and isinstance(why, Lacking))
    if ours and isinstance(why, Exception):
        raise why
    left_out[name] = why if isinstance(why, str) else reason(why)
    if not isinstance(why, ModuleNotFoundError):  # those are named once, when a run starts
        print(f"{case.name}: {name} is left out: {left_out[name]}", file=sys.stderr)


def set_up(case: Case) -> tuple[dict[str, Step], dict[str, Any], dict[str, str]]:
    """Build and run each engine's step once; return steps, what they gave, and who is left out and why."""
    steps: dict[str, Step] = {}
    values: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name, build in case.engines.items():
        try:
            with within(SETUP_SECONDS):
                step = build()
                values[name] = results(step, case.compared)
        except Exception as error:
            leave_out(case, name, error, left_out)
            continue
        steps[name] = step
    return steps, values, left_out


def reason(error: Exception) -> str:
    """The first line of what an engine says about its failure, with its kind unless it is a plain refusal."""
    said = " ".join(str(error).strip().split("\n")[0].split())[:160]
    if isinstance(error, ImportError | Lacking | TimeoutError) and said:
        return said
    return f"{type(error).__name__}: {said}"


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in what takes longer; only the main thread of a POSIX system can be told so."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not ready after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def rest(case: Case, name: str) -> None:
    """Let threads that spin come to rest: OpenBLAS's do for 0.1 s, compiled kernels' OpenMP threads too."""
    if case.blas:
        time.sleep(REST_AFTER_BLAS)
    elif not name.startswith(NUMPY_ENGINES):
        time.sleep(REST_AFTER_OTHERS)


def time_of(step: Step, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def repeats_of(step: Step, span: float = 0.01) -> int:
    once = min(time_of(step, 1), time_of(step, 1))
    return max(1, round(span / max(once, 1e-9)))


def results(step: Step, count: int) -> Any:
    """What the first ``count`` steps returned, or left in buffers, end to end; None if that is nothing."""
    found = [flat(value) for value in (step() for _ in range(count)) if value is not None]
    if isinstance(step, Buffered):
        found = [flat(step.result())]
    return np.concatenate(found) if found else None


def flat(value: Any) -> Any:
    """What a step returned, as one vector; a list, tuple or dictionary of arrays end to end."""
    if isinstance(value, dict):
        value = list(value.values())
    parts = [flat(v) for v in value] if isinstance(value, list | tuple) else [array(value).ravel()]
    return np.concatenate(parts) if parts else np.zeros(0)


def array(value: Any) -> Any:
    """A result of any engine as an array of NumPy's float64; a copy, since a later step may write there."""
    if hasattr(value, "detach"):  # PyTorch hands out no array of what has a history
        value = value.detach()
    if hasattr(value, "numpy"):
        value = value.numpy()
    return np.array(value, dtype=float)


def compare(case: Case, values: dict[str, Any]) -> dict[str, str]:
    """Return who computes something else, and how far off: what is not the same work is not worth timing.

    Where adjoint agrees with fewer peers than it differs from, or differs from itself, that is an error.
    """
    ours = values.get("adjoint")
    if ours is None:
        return {}
    a = flat(ours)
    scale = float(np.max(np.abs(a), initial=0.0))
    differing: dict[str, str] = {}
    peers = [name for name, value in values.items() if name != "adjoint" and value is not None]
    for name in peers:
        b = flat(values[name])
        off = np.abs(a - b).max(initial=0.0) if a.shape == b.shape else np.inf
        if not off <= case.tolerance * (scale or 1.0):
            differing[name] = f"its results differ by {off:.3g} where the largest number is {scale:.3g}"
    ourselves = any(name.startswith("adjoint") for name in differing)
    if differing and (ourselves or len(differing) > len(peers) - len(differing)):
        raise AssertionError(
            f"{case.name}: " + "; ".join(f"{name}: {why}" for name, why in differing.items()) + f"; {a[:4]}"
        )
    return differing
