"""Overhead per op: one op, forward, and forward + backward from its sum, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.engines import Kit, engines
from benchmarks.harness import Case, Step

OPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda xp, x, y: x + y,
    "mul": lambda xp, x, y: x * y,
    "tanh": lambda xp, x, y: xp.tanh(x),
    "exp": lambda xp, x, y: xp.exp(x),
    "sum": lambda xp, x, y: x.sum(),
    "reshape": lambda xp, x, y: x.reshape((2, -1)),
    "slice": lambda xp, x, y: x[1:],
}
SIZES = (4, 1_000, 1_000_000)
SECONDS = 2.0  # there are many of them, and they vary little


def case(name: str, size: int, backward: bool) -> Case:
    op = OPS[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(size), rng.standard_normal(size)][: 2 if name in ("add", "mul") else 1]

    def make(kit: Kit) -> Step:
        xp = kit.xp
        if not backward:
            return kit.value(lambda x, y=None: op(xp, x, y), arrays)
        return kit.gradient(lambda x, y=None: op(xp, x, y).sum(), arrays)

    what = "forward + backward" if backward else "forward"
    return Case(f"{name}, {size:,} elements, {what}", engines(make), seconds=SECONDS, stateless=True)


CASES = [case(name, size, backward) for name in OPS for size in SIZES for backward in (False, True)]
