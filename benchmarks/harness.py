"""Time the same work in several engines, interleaved, and report ratios.

Timings on a shared machine are noise; ratios inside one run are not. Each round runs every
engine once, in an order that is drawn anew; the first rounds are dropped; what counts
is the median over rounds of adjoint's time divided by the peer's. After work that uses BLAS there is a
short rest: OpenBLAS's threads spin for up to 0.1 s after a matrix product, those of compiled kernels
too, and would halve the next engine's speed. Short work is done once untimed after it.

A peer that is not installed, that lacks what a case needs or that fails is left out of that case, and the
reason is printed and kept with the numbers. Where adjoint fails, or the results differ, the run stops.
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
from typing import Any

import numpy as np

Step = Callable[[], Any]  # one unit of work; returns numbers to compare, or None
Numbers = dict[str, Any]  # what goes into JSON

THREADS = 2  # of every engine that can be told
NUMPY_ENGINES = ("adjoint", "autograd", "numpy", "scipy")
REST_AFTER_BLAS, REST_AFTER_OTHERS = 0.12, 0.005
FEWEST_ROUNDS = 7
SETUP_SECONDS = 150  # for a peer to compile and to run once


@dataclass
class Case:
    """One piece of work, written in the same way for each engine.

    ``engines`` maps a name to a function that sets up and returns the step; a peer that raises
    there, because it is not installed or lacks something, is left out.  ``targets`` are the ratios to reach.
    """

    name: str
    engines: dict[str, Callable[[], Step]]
    targets: dict[str, float] = field(default_factory=dict)
    blas: bool = False  # whether the work uses BLAS threads, so that engines need a rest
    tolerance: float = 1e-5
    repeat: int = 0  # steps per round; 0: as many as take 5 ms


@dataclass
class Result:
    """Seconds per step of each engine: all rounds."""

    case: Case
    seconds: dict[str, list[float]]
    left_out: dict[str, str] = field(default_factory=dict)  # peers, and why

    def ratios(self, peer: str) -> list[float]:
        """Adjoint's time over the peer's, round by round."""
        return [a / p for a, p in zip(self.seconds["adjoint"], self.seconds[peer], strict=True)]

    def summary(self) -> Numbers:
        """Medians and quartiles, for JSON."""
        return {
            "rounds": len(self.seconds["adjoint"]),
            "seconds": {name: quartiles(taken) for name, taken in self.seconds.items()},
            "ratios": {name: quartiles(self.ratios(name)) for name in self.seconds if name != "adjoint"},
            "targets": {k: v for k, v in self.case.targets.items() if k in self.seconds},
            "left out": self.left_out,
        }


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


def measure(case: Case, rounds: int = 30, warmup: int = 2, seconds: float = 6.0) -> Result:
    """Set up every engine that is there, compare what they compute, then time them in turn.

    There are ``rounds`` rounds, or as many as ``seconds`` allow, but not fewer than seven.
    """
    set_threads()
    steps, values, left_out = set_up(case)
    compare(case, values)
    del values
    repeats = {name: case.repeat or repeats_of(step) for name, step in steps.items()}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    shuffle = random.Random(0)
    gc.collect()
    began = time.perf_counter()
    for i in range(rounds + warmup):
        if i >= FEWEST_ROUNDS + warmup and time.perf_counter() - began > seconds:
            break
        shuffle.shuffle(names)  # so that no engine always comes after the same other
        for name in names:
            if repeats[name] > 1:
                steps[name]()  # caches and threads are cold after the rest
            once = time_of(steps[name], repeats[name])
            rest(case, name)
            if i >= warmup:
                taken[name].append(once)
    return Result(case, taken, left_out)


def set_up(case: Case) -> tuple[dict[str, Step], dict[str, Any], dict[str, str]]:
    """Build and run each engine's step once; return steps, what they gave, and who is left out and why."""
    steps: dict[str, Step] = {}
    values: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name, build in case.engines.items():
        try:
            with within(SETUP_SECONDS):
                step = build()
                values[name] = step()
        except Exception as error:
            if name.startswith("adjoint"):
                raise
            left_out[name] = reason(error)
            print(f"{case.name}: {name} is left out: {left_out[name]}", file=sys.stderr)
            continue
        steps[name] = step
    return steps, values, left_out


def reason(error: Exception) -> str:
    """The first line of what an engine says about its failure, with its kind unless it is a plain refusal."""
    said = " ".join(str(error).strip().split("\n")[0].split())[:160]
    if isinstance(error, ImportError | NotImplementedError | TimeoutError) and said:
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


def flat(value: Any) -> Any:
    """What a step returned, as one vector; a list or tuple of arrays end to end."""
    parts = value if isinstance(value, list | tuple) else [value]
    return np.concatenate([np.asarray(p, dtype=float).ravel() for p in parts])


def compare(case: Case, values: dict[str, Any]) -> None:
    """Stop if engines disagree: what is not the same work is not worth timing."""
    ours = values.get("adjoint")
    if ours is None:
        return
    a = flat(ours)
    scale = float(np.max(np.abs(a), initial=0.0))
    for name, theirs in values.items():
        if theirs is None or name == "adjoint":
            continue
        b = flat(theirs)
        off = np.abs(a - b).max(initial=0.0) if a.shape == b.shape else np.inf
        if not off <= case.tolerance * (scale or 1.0):
            raise AssertionError(
                f"{case.name}: adjoint and {name} differ by {off:.3g} where the largest number is "
                f"{scale:.3g}: {a[:4]} and {b[:4]}"
            )
