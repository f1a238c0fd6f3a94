"""Random draws without Python, with the bits of NumPy's generator Philox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adjoint.compiler.emit.code import Code
from adjoint.compiler.emit.values import Value, element_of
from adjoint.exports.philox import uniform
from adjoint.exports.ziggurat import KINDS, ZIGGURATS
from adjoint.random import Generator

__all__ = ["Draw", "check_draw", "emit_draw"]


@dataclass
class Draw:
    """A draw of uniform numbers of the dtype ``drawn``, or of a mask that is 0 with the probability ``p``."""

    generator: Any
    shape: tuple[int, ...]
    dtype: Any
    drawn: Any
    p: float | None
    kind: str


def check_draw(form: Any, shape: tuple[int, ...], dtype: Any) -> tuple[Draw | None, str]:
    """Return the draw that ``made_by_host`` described by ``form``; or None, and what is wrong."""
    kind, generator, *rest = form or ("a random draw", None)
    if kind not in ("random", "mask", *KINDS):
        return (
            None,
            f"{kind} has no native form; uniform, normal and exponential noise and dropout have one",
        )
    if generator is None:
        return (
            None,
            "it draws from a generator that the library cannot contain; pass rng=ad.random.default_rng(seed)",
        )
    if not isinstance(generator, Generator):
        what = f"{type(generator).__module__.partition('.')[0]}.{type(generator).__name__}"
        return None, f"the generator is {what}; use ad.random.default_rng(seed), whose bits need no Python"
    drawn = np.dtype(rest[0])
    if drawn.itemsize < 4 or dtype.itemsize < 4:
        return None, f"random numbers of {dtype} have no native form"
    return Draw(generator, shape, dtype, drawn, rest[1] if kind == "mask" else None, kind), ""


def emit_draw(w: Code, draw: Draw, state: Value, to: Value) -> None:
    """Emit the draw: fill the array at ``to`` and advance the generator at ``state``."""
    drawn, made = element_of(draw.drawn), element_of(draw.dtype)
    if draw.p == 1:
        with w.count(int(np.prod(draw.shape))) as i:
            w.store(w.const(0.0, made), w.at(to, made, i))
        return
    with w.count(int(np.prod(draw.shape))) as i:
        u = ZIGGURATS[draw.kind, drawn](w, state) if draw.kind in KINDS else uniform(w, state, drawn)
        if draw.p is not None:
            kept = np.asarray(1 / (1 - draw.p), draw.dtype)
            u = w.select(w.compare("oge", u, draw.p), w.const(kept, made), w.const(0.0, made))
        w.store(u, w.at(to, made, i))
