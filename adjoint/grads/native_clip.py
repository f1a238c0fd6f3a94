"""Native forms of clipping, for compiled functions.

They compute in one pass what ``clip`` computes with NumPy.  Where one pass is not exact (squares that
overflow or underflow) and where clipping raises, a check makes the program call ``clip`` itself.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

from adjoint.core.native import NotNative

__all__ = ["native_clip_norm", "native_clip_values"]

_FLOAT64 = np.dtype(np.float64)
# Within these bounds no power of an element that matters has overflowed or lost digits.
_BOUNDS = {"float64": (1e-280, 1e280), "float32": (1e-26, 1e36)}


def native_clip_norm(xp: Any, *values: Any, count: int, p: float, bound: float, raises: bool) -> Any:
    """Return the joint p-norm of ``count`` gradients, the first ``values``, and the clipped gradients."""
    grads = values[:count]
    if any(g.dtype.kind != "f" for g in grads) or not (0.5 <= p <= 8.0 or math.isinf(p)):
        raise NotNative("clipping by this norm has no native form")
    parts = [_power_sum(xp, g, p) for g in grads if g.size]
    if not parts:
        return (xp.full((), 0.0, _FLOAT64), *grads)
    if math.isinf(p):
        total = functools.reduce(xp.maximum, parts)
        norm = total
    else:
        total = functools.reduce(operator.add, parts)
        norm = xp.sqrt(total) if p == 2.0 else total if p == 1.0 else total ** (1.0 / p)
    finite = norm < math.inf  # false for NaN, too
    wide = xp.graph.sizes.wide
    inexact = not math.isinf(p) and (p > 2.0 or any(g.dtype.itemsize >= wide.itemsize for g in grads))
    if inexact:  # powers may overflow or underflow, but not those of zeros
        least, most = _BOUNDS[wide.name]
        within = xp.logical_and(xp.logical_and(total > least, total < most), finite)
        largest = functools.reduce(xp.maximum, [_power_sum(xp, g, math.inf) for g in grads if g.size])
        xp.graph.checks.append(xp.logical_not(xp.logical_or(within, largest == 0)))
    elif raises:
        xp.graph.checks.append(xp.logical_not(finite))
    # 1 leaves a gradient as it is, bit for bit
    factor = xp.where(xp.logical_and(norm > bound, finite), bound / norm, 1.0)
    return (xp.cast(norm, _FLOAT64), *(g * xp.cast(factor, g.dtype) for g in grads))


def _power_sum(xp: Any, g: Any, p: float) -> Any:
    """Return the sum of the p-th powers of the magnitudes of a gradient; their maximum if p is infinite."""
    wide = xp.graph.sizes.wide
    flat = xp.flat(xp.graph.copied(xp.cast(g, wide)))
    if p == 2.0:
        powers = flat * flat
    else:
        size = xp.abs(flat)
        powers = size if p in (1.0, math.inf) else size**p
    return xp.reduced("max" if math.isinf(p) else "sum", powers, (0,), False, wide)


def native_clip_values(xp: Any, *values: Any, count: int, bound: float) -> Any:
    """Return 0, the result of a function that returns None, and ``count`` limited gradients."""
    grads = values[:count]
    if any(g.dtype.kind != "f" for g in grads):
        raise NotNative("limiting complex numbers has no native form")
    limited = []
    for g in grads:
        within = bound <= np.finfo(g.dtype).max  # above, infinities are not limited
        limited.append(xp.minimum(xp.maximum(g, -bound), bound) if within else g)
    return (xp.full((), 0.0, _FLOAT64), *limited)
