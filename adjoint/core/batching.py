"""How ``vmap`` evaluates ops: batch rules that many ops share, and helpers to write rules.

A batch rule is ``rule(op, size, *args, **params)``.  The arguments are ``Batched`` values or Python numbers,
and at least one of them has a batch axis.  The result has the batch axis in front.  Parameters are canonical,
with axes counted from the end, so most ops work unchanged with one more axis in front.

``define(…, batch=…)`` takes a rule, or the name of one in ``BATCH_RULES``.  The rule of a single op is in
the op's file.  Rules use the ops in ``held``, which compute on the contents of batched values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.batched import Batched, held
from adjoint.core.namespace import dyn
from adjoint.core.op import Op
from adjoint.core.record import compute
from adjoint.core.tensor import differentiable

__all__ = [
    "BATCH_RULES", "Batched", "elementwise", "empty_batch", "folded", "full_batch", "fused", "held",
    "leading", "ranked", "to_axis", "unfolded",
]  # fmt: skip


def ranked(a: Any, ndim: int) -> Any:
    """Return the array of an argument, with axes of length 1 inserted so that elements have ``ndim`` axes."""
    if type(a) is not Batched:
        return a
    if not a.batched or len(a.shape) == ndim:
        return a.value
    shape = a.shape
    return held.reshape(a.value, shape=(a.size_, *(1,) * (ndim - len(shape)), *shape))


def full_batch(a: Any, size: int) -> Any:
    """Return the array of argument ``a`` with a batch axis of length ``size`` in front."""
    if not isinstance(a, Batched):
        return np.broadcast_to(a, (size,))
    return a.value if a.batched else held.broadcast_to(a.value, shape=(size, *a.shape))


def to_axis(value: Any, source: int, destination: int) -> Any:
    """Move an axis from ``source`` to ``destination``, both counted from the front."""
    if source == destination:
        return value
    n = len(value.shape)
    return held.moveaxis(value, source=source - n, destination=destination - n)


def folded(value: Any, axis: int) -> Any:
    """Merge the batch axis, which is in front, into axis ``axis`` of the elements."""
    value = to_axis(value, 0, axis)
    shape = value.shape
    return held.reshape(value, shape=(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def unfolded(value: Any, axis: int, size: int) -> Any:
    """Split the batch axis from ``axis`` and move it to the front: the inverse of ``folded``."""
    shape = value.shape
    split = held.reshape(value, shape=(*shape[:axis], size, shape[axis] // size, *shape[axis + 1 :]))
    return to_axis(split, axis, 0)


def empty_batch(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Evaluate an op on an empty batch; used by batch rules that do not support one.

    The op runs on one element of zeros, and its result is sliced to length 0.  The zeros are computed as sums
    over the empty batch, so that the result stays part of the graph of tensors outside ``vmap``.
    """
    values = []
    for a in args:
        if isinstance(a, Batched):
            a = held.sum(a.value, axis=(-a.ndim - 1,), keepdims=False) if a.batched else a.value
        values.append(a)
    out = compute(op, tuple(values), params)
    outs = out if op.outputs > 1 else (out,)
    cut = tuple(held.broadcast_to(o, shape=(1, *o.shape)) for o in outs)
    cut = tuple(held.index(o, key=(slice(0, 0),)) for o in cut)
    return cut if op.outputs > 1 else cut[0]


def elementwise(op: Op, size: int, /, *args: Any, **params: Any) -> Any:
    """Batch rule of elementwise ops: align the axes from the end; values without a batch axis broadcast."""
    ndim = 0
    for a in args:
        if type(a) is Batched and len(a.shape) > ndim:
            ndim = len(a.shape)
    return compute(op, tuple([ranked(a, ndim) for a in args]), params)


def leading(op: Op, size: int, /, *args: Any, **params: Any) -> Any:
    """Batch rule of ops that accept any number of leading axes: run the op once on the whole batch."""
    return compute(op, tuple(full_batch(a, size) if isinstance(a, Batched) else a for a in args), params)


def fused(op: Op, size: int, /, *args: Any, **params: Any) -> Any:
    """Batch rule of fused ops: evaluate the formula of the op, one op at a time.

    Half precision is computed in float32 and rounded once.
    """
    assert op.fused is not None
    dtypes = [a.dtype for a in args if isinstance(a, Batched) and differentiable(a.dtype)]
    if all(d.itemsize != 2 for d in dtypes):
        return op.fused(dyn, *args, **params)
    out = op.fused(dyn, *(_widened(a) for a in args), **params)
    dtype = np.result_type(*dtypes)
    return tuple(dyn.astype(o, dtype=dtype) for o in out) if op.outputs > 1 else dyn.astype(out, dtype=dtype)


def _widened(a: Any) -> Any:
    """Return a half-precision value as float32, any other value unchanged."""
    half = isinstance(a, Batched) and a.dtype.itemsize == 2 and a.dtype.kind not in "iu"
    return dyn.astype(a, dtype=np.dtype(np.float32)) if half else a


BATCH_RULES: dict[str, Callable[..., Any]] = {"elementwise": elementwise, "leading": leading, "fused": fused}
