"""Time the same work in several engines, interleaved, and report ratios.

Timings on a shared machine are noise; ratios inside one run are not. Each round runs every
engine once, in turn, with a short rest in between (OpenBLAS threads spin for up to 0.1 s after a
matrix product and would slow the next engine); the first rounds are dropped; what counts is the
median over rounds of adjoint's time divided by the peer's.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Step = Callable[[], Any]  # one unit of work; returns numbers to compare, or None


@dataclass
class Case:
    """One piece of work, written in the same way for each engine.

    ``engines`` maps a name to a function that sets up and returns the step; a peer that is not
    installed raises ImportError there and is left out.  ``targets`` are the ratios to reach.
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

    def median(self, engine: str) -> float:
        return statistics.median(self.seconds[engine])

    def ratio(self, peer: str) -> float:
        """The median over rounds of adjoint's time over the peer's."""
        pairs = zip(self.seconds["adjoint"], self.seconds[peer], strict=True)
        return statistics.median(a / p for a, p in pairs)

    def spread(self, peer: str) -> tuple[float, float]:
        """The quartiles of the ratio over rounds."""
        ratios = sorted(a / p for a, p in zip(self.seconds["adjoint"], self.seconds[peer], strict=True))
        return ratios[len(ratios) // 4], ratios[(3 * len(ratios)) // 4]


def measure(case: Case, rounds: int = 30, warmup: int = 5, rest: float = 0.0) -> Result:
    """Set up every engine that is there, compare what they compute, then time them in turn."""
    steps: dict[str, Step] = {}
    values: dict[str, Any] = {}
    for name, build in case.engines.items():
        try:
            steps[name] = build()
        except ImportError:
            continue
        values[name] = steps[name]()
    _compare(case, values)
    repeats = {name: case.repeat or _repeats(step) for name, step in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds + warmup):
        for name, step in steps.items():
            if case.blas and rest:
                time.sleep(rest)
            gc.collect() if i == 0 else None
            start = time.perf_counter()
            for _ in range(repeats[name]):
                step()
            taken = (time.perf_counter() - start) / repeats[name]
            if i >= warmup:
                seconds[name].append(taken)
    return Result(case, seconds)


def _repeats(step: Step, span: float = 0.005) -> int:
    start = time.perf_counter()
    step()
    once = time.perf_counter() - start
    return max(1, round(span / max(once, 1e-9)))


def _compare(case: Case, values: dict[str, Any]) -> None:
    """Stop if engines disagree: what is not the same work is not worth timing."""
    ours = values.get("adjoint")
    for name, theirs in values.items():
        if ours is None or theirs is None or name == "adjoint":
            continue
        a, b = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
        if a.shape != b.shape or not np.allclose(a, b, rtol=case.tolerance, atol=case.tolerance):
            raise AssertionError(f"{case.name}: adjoint computed {a}, {name} computed {b}")


def table(results: list[Result]) -> str:
    """Return the ratios as a Markdown table, with targets where there are any."""
    peers = sorted({p for r in results for p in r.seconds if p != "adjoint"})
    lines = ["| case | adjoint | " + " | ".join(peers) + " |", "| --- " * (len(peers) + 2) + "|"]
    for r in results:
        cells = [_cell(r, p) for p in peers]
        lines.append(f"| {r.case.name} | {_time(r.median('adjoint'))} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(r: Result, peer: str) -> str:
    if peer not in r.seconds:
        return "–"
    low, high = r.spread(peer)
    target = r.case.targets.get(peer)
    goal = "" if target is None else f", ≤ {target:g} {'met' if r.ratio(peer) <= target else '**missed**'}"
    return f"{r.ratio(peer):.2f} ({low:.2f}–{high:.2f}{goal})"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
