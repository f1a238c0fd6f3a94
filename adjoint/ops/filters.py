"""The recursive part of digital filters, the op ``all_pole``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.core.define import define
from adjoint.core.infer import Result, broadcast
from adjoint.core.namespace import Namespace, Value
from adjoint.ops.half import wide
from adjoint.ops.matrices import flat_lead, float_dtype
from adjoint.ops.scipy_forward import scipy_function
from adjoint.typing import Array

__all__: list[str] = []

# The recursive part of a filter: z[n] = x[n] - Σ y[k] z[n-1-k] ---------------------------------------


def _all_pole(x: Array, y: Array) -> Any:
    dtype = float_dtype(x, y)
    lfilter = scipy_function("signal", "lfilter")
    one = np.ones(1)
    if y.ndim == 1 and x.ndim and x.size:
        return lfilter(one, np.concatenate([one, wide(y)]), wide(x), axis=-1).astype(dtype, copy=False)
    lead, (signals, factors) = flat_lead((wide(x), 1), (wide(y), 1))
    out = np.empty(signals.shape, dtype)
    for k in range(len(out) if out.size else 0):
        out[k] = lfilter(one, np.concatenate([one, factors[k]]), signals[k])
    return out.reshape(*lead, x.shape[-1])


def _all_pole_rule(
    xp: Namespace, g: Value, z: Value, x: Value, y: Value, *, wanted: Sequence[bool]
) -> list[Any]:
    # the transposed filter is the same filter applied backwards in time
    dx = xp.flip(xp.all_pole(xp.flip(g, axis=(-1,)), y), axis=(-1,))
    if not wanted[1]:
        return [dx, None]
    n, count = x.shape[-1], y.shape[-1]
    parts = []
    for k in range(count):
        if k + 1 < n:
            parts.append(-xp.sum(z[..., : n - 1 - k] * dx[..., k + 1 :], axis=(-1,), keepdims=False))
        else:
            parts.append(xp.sum(z[..., :0] * dx[..., :0], axis=(-1,), keepdims=False))
    return [dx, xp.stack(*parts, axis=-1) if parts else y]


def _all_pole_reference(x: Any, y: Any) -> Any:
    z = np.array(np.broadcast_to(x, (*np.broadcast_shapes(x.shape[:-1], y.shape[:-1]), x.shape[-1])))
    for n in range(x.shape[-1]):
        for k in range(min(n, y.shape[-1])):
            z[..., n] = z[..., n] - y[..., k] * z[..., n - 1 - k]
    return z


def _all_pole_shape(x: Any, y: Any) -> Result | None:
    lead = broadcast(x.shape[:-1], y.shape[:-1]) if x.shape and y.shape else None
    return None if lead is None else (((*lead, x.shape[-1]), float_dtype(x, y)),)


define("all_pole", _all_pole, joint=_all_pole_rule, arity=2, saves="zy", kind="general", batch="elementwise",
       shape=_all_pole_shape, reference=_all_pole_reference,
       doc="The recursive filter z[n] = x[n] - Σ y[k] z[n-1-k] along the last axis.")  # fmt: skip
