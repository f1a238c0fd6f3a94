"""How ops are evaluated on a batch: a table from op names to rules.

A rule is ``rule(op, size, *args, **params)``: the arguments are ``Batched`` or Python numbers, one
of them at least has a batch axis, and what it returns has the batch axis in front.  Parameters
are canonical, axes counted from the end, so most ops mean the same with an axis in front.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from adjoint.core.namespace import dyn
from adjoint.core.op import Op
from adjoint.core.record import compute
from adjoint.core.tensor import differentiable
from adjoint.ops.half import widened
from adjoint.ops.scatter import as_index
from adjoint.transforms.batched import Batched, held, rules

__all__ = ["rules"]

LEADING = """
    sum mean prod max min var std cumsum cumprod any all argmax argmin moveaxis matrix_transpose flip roll
    concat stack unstack split window_sum window_spread max_pool max_spread max_gather sort argsort argtopk
    diagonal undiagonal tril triu windows overlap_add take_along_axis untake_along_axis put_along_axis
    fftn rfftn irfftn softmax log_softmax logsumexp
""".split()


def ranked(a: Any, ndim: int) -> Any:
    """Return what an argument holds, with axes of length 1 so that the function sees ``ndim``."""
    if type(a) is not Batched:
        return a
    if not a.batched or len(a.shape) == ndim:
        return a.value
    shape = a.shape
    return held.reshape(a.value, shape=(a.size_, *(1,) * (ndim - len(shape)), *shape))


def full(a: Any, size: int) -> Any:
    """Return what an argument holds with the batch axis in front, also where it is the same for all."""
    if not isinstance(a, Batched):
        return np.broadcast_to(a, (size,))
    return a.value if a.batched else held.broadcast_to(a.value, shape=(size, *a.shape))


def elementwise(op: Op, size: int, /, *args: Any, **params: Any) -> Any:
    """Align the axes from the end; those that are the same for all broadcast."""
    ndim = 0
    for a in args:
        if type(a) is Batched and len(a.shape) > ndim:
            ndim = len(a.shape)
    return compute(op, tuple([ranked(a, ndim) for a in args]), params)


def leading(op: Op, size: int, /, *args: Any, **params: Any) -> Any:
    """Evaluate ops that take any axes in front: the same op on the whole batch."""
    return compute(op, tuple(full(a, size) if isinstance(a, Batched) else a for a in args), params)


def fused(op: Op, size: int, /, *args: Any, **params: Any) -> Any:
    """Evaluate a fused op step by step; half precision in float32, rounded once."""
    assert op.fused is not None
    dtypes = [a.dtype for a in args if isinstance(a, Batched) and differentiable(a.dtype)]
    if all(d.itemsize != 2 for d in dtypes):
        return op.fused(dyn, *args, **params)
    out = op.fused(dyn, *(widened(dyn, a) if isinstance(a, Batched) else a for a in args), **params)
    dtype = np.result_type(*dtypes)
    return tuple(dyn.astype(o, dtype=dtype) for o in out) if op.outputs > 1 else dyn.astype(out, dtype=dtype)


rules.update(elementwise=elementwise, leading=leading, fused=fused)
rules.update((name, leading) for name in LEADING)
rules["cross"] = elementwise  # all axes but its own broadcast


F = TypeVar("F", bound=Callable[..., Any])


def rule(*names: str) -> Callable[[F], F]:
    """Put a rule into the table under the names of its ops."""

    def enter(function: F) -> F:
        rules.update((name, function) for name in names)
        return function

    return enter


@rule("gauge_quotient")  # elementwise, but its last two arguments do not shape the result
def _gauge_quotient(op: Op, size: int, /, x: Batched, *scales: Any, **params: Any) -> Any:
    return elementwise(op, size, Batched(x.level, size, full(x, size), True), *scales, **params)


# Shapes ----------------------------------------------------------------------------------------


@rule("reshape")
def _reshape(op: Op, size: int, /, x: Batched, shape: tuple[int, ...]) -> Any:
    if -1 in shape:
        known = -math.prod(shape)
        shape = tuple(x.size // known if n == -1 else n for n in shape)
    return held.reshape(x.value, shape=(size, *shape))


@rule("permute_dims")
def _permute_dims(op: Op, size: int, /, x: Batched, axes: tuple[int, ...]) -> Any:
    return held.permute_dims(x.value, axes=(-len(axes) - 1, *axes))


@rule("broadcast_to")
def _broadcast_to(op: Op, size: int, /, x: Batched, shape: tuple[int, ...]) -> Any:
    return held.broadcast_to(ranked(x, len(shape)), shape=(size, *shape))


@rule("pad")
def _pad(op: Op, size: int, /, x: Batched, widths: tuple[Any, ...], **params: Any) -> Any:
    return held.pad(x.value, widths=((0, 0), *widths), **params)


# Indexing --------------------------------------------------------------------------------------


def _front(key: tuple[Any, ...]) -> int:
    """Count the axes that NumPy puts before the batch axis when it indexes with ``(:, *key)``.

    Index arrays that are not next to each other have their axes in front of all others.
    """
    spread = [isinstance(k, (np.ndarray, bool, np.bool_)) for k in key]
    if not any(spread):
        return 0
    spread = [s or isinstance(k, (int, np.integer)) for s, k in zip(spread, key, strict=True)]
    first, last = spread.index(True), len(spread) - 1 - spread[::-1].index(True)
    if all(spread[first : last + 1]):
        return 0
    arrays = (np.asarray(k) for k, s in zip(key, spread, strict=True) if s)
    return len(np.broadcast_shapes(*(k.shape for k in arrays)))


def _to_axis(value: Any, source: int, destination: int) -> Any:
    """Move an axis, both counted from the front."""
    if source == destination:
        return value
    n = len(value.shape)
    return held.moveaxis(value, source=source - n, destination=destination - n)


_ALL = slice(None)


@rule("index")
def _index(op: Op, size: int, /, x: Batched, key: tuple[Any, ...]) -> Any:
    return _to_axis(held.index(x.value, key=(_ALL, *key)), _front(key), 0)


@rule("unindex")
def _unindex(op: Op, size: int, /, x: Batched, key: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    value = _to_axis(x.value, 0, _front(key))
    return held.unindex(value, key=(_ALL, *key), shape=(size, *shape))


@rule("index_set")
def _index_set(op: Op, size: int, /, x: Any, v: Any, key: tuple[Any, ...]) -> Any:
    base = full(x, size)
    if isinstance(v, Batched):
        spot = np.broadcast_to(np.int8(0), x.shape)[key].ndim
        lengths = (*(1,) * (spot - v.ndim), *v.shape)
        v = held.reshape(v.value, shape=(size if v.batched else 1, *lengths))
        v = _to_axis(v, 0, _front(key))
    return held.index_set(base, v, key=(_ALL, *key))


@rule("take")
def _take(op: Op, size: int, /, x: Any, i: Any, axis: int, sparse_grad: bool = False) -> Any:
    if not isinstance(i, Batched) or not i.batched:
        return held.take(x.value, i.value if isinstance(i, Batched) else i, axis=axis)
    if not x.batched:
        return _to_axis(held.take(x.value, i.value, axis=axis), x.ndim + axis, 0)
    # one long axis of all rows of all elements: row i of element b is row b·n + i
    n = x.shape[axis]
    rows = _to_axis(x.value, len(x.value.shape) + axis, 1)
    flat = held.reshape(rows, shape=(size * n, *rows.shape[2:]))
    taken = held.take(flat, _flat_rows(i, size, n), axis=-len(flat.shape))
    for k in range(i.ndim):  # the axes of the index go where the axis was
        taken = _to_axis(taken, 1 + i.ndim - 1 - k, x.ndim + axis + 1 + i.ndim - 1 - k)
    return taken


def _flat_rows(i: Batched, size: int, n: int) -> Any:
    """Return rows of all elements in one axis; what is out of range for one is so for all."""
    start = np.arange(size).reshape(size, *(1,) * i.ndim) * n
    row = as_index(held, i.value)
    row = held.where(held.less(row, 0), held.add(row, n), row)
    inside = held.logical_and(held.less(-1, row), held.less(row, n))
    return held.where(inside, held.add(row, start), size * n)


@rule("untake")
def _untake(op: Op, size: int, /, x: Any, i: Any, axis: int, length: int) -> Any:
    if isinstance(i, Batched) and i.batched:
        where = x.ndim + axis - i.ndim + 1 + 1  # where the axes of the index begin, behind the batch axis
        rows = full(x, size)
        for k in range(i.ndim):
            rows = _to_axis(rows, where + k, 1 + k)
        flat = held.untake(
            rows, _flat_rows(i, size, length), axis=-(x.ndim - i.ndim + 1), length=size * length
        )
        split = held.reshape(flat, shape=(size, length, *flat.shape[1:]))
        return _to_axis(split, 1, where)
    return held.untake(x.value, i.value if isinstance(i, Batched) else i, axis=axis, length=length)


# Products --------------------------------------------------------------------------------------


@rule("matmul")
def _matmul(op: Op, size: int, /, x: Batched, y: Batched) -> Any:
    if x.batched and not y.batched:
        if x.unit and y.ndim == 2:
            return y.value  # row i of the identity times a matrix is row i of the matrix
        if y.ndim == 2 and x.ndim > 1:  # all rows of the batch in one product
            rows = held.reshape(x.value, shape=(size * math.prod(x.shape[:-1]), x.shape[-1]))
            return held.reshape(held.matmul(rows, y.value), shape=(size, *x.shape[:-1], y.shape[-1]))
        if y.ndim <= 2:
            return held.matmul(x.value, y.value)
    elif y.batched and not x.batched and x.ndim == 2 and (y.ndim == 1 or (y.ndim == 2 and y.shape[-1] == 1)):
        columns = held.reshape(y.value, shape=(size, y.shape[0]))
        out = held.matmul(columns, held.matrix_transpose(x.value))
        return out if y.ndim == 1 else held.reshape(out, shape=(*out.shape, 1))
    elif y.batched and not x.batched and x.ndim == 1:
        return held.matmul(x.value, y.value) if y.ndim > 1 else held.matmul(y.value, x.value)
    left = _as_matrix(x, (1, *x.shape)) if x.ndim == 1 else x
    right = _as_matrix(y, (*y.shape, 1)) if y.ndim == 1 else y
    ndim = max(left.ndim, right.ndim)
    out = held.matmul(ranked(left, ndim), ranked(right, ndim))
    lost = ([-2] if x.ndim == 1 else []) + ([-1] if y.ndim == 1 else [])
    shape = tuple(n for a, n in enumerate(out.shape, -len(out.shape)) if a not in lost)
    return held.reshape(out, shape=shape) if lost else out


def _new_label(*used: str) -> str:
    """Return a letter that no Einstein sum here uses yet."""
    known = set("".join(used))
    return next(c for c in map(chr, range(0x3B1, 0x10000)) if c not in known)


@rule("einsum")
def _einsum(
    op: Op, size: int, /, x: Batched, y: Batched, left: str, right: str, output: str, extra: Any
) -> Any:
    b = _new_label(left, right, output)
    labels = {"left": b * x.batched + left, "right": b * y.batched + right, "output": b + output}
    return held.einsum(x.value, y.value, extra=extra, **labels)


@rule("relabel")
def _relabel(op: Op, size: int, /, x: Batched, labels: str, output: str, extra: Any) -> Any:
    b = _new_label(labels, output)
    return held.relabel(x.value, labels=b + labels, output=b + output, extra=extra)


@rule("searchsorted")
def _searchsorted(op: Op, size: int, /, x: Batched, v: Batched, side: str) -> Any:
    if not x.batched:
        return held.searchsorted(x.value, v.value, side=side)
    # how many elements come before: one comparison for each pair; NaN comes last
    rows = held.reshape(x.value, shape=(size, *(1,) * v.ndim, x.shape[0]))
    values = held.reshape(full(v, size), shape=(size, *v.shape, 1))
    last = held.isnan(values)
    if side == "left":
        before = held.logical_or(
            held.less(rows, values), held.logical_and(last, held.logical_not(held.isnan(rows)))
        )
    else:
        before = held.logical_or(held.less_equal(rows, values), last)
    return held.sum(before, axis=(-1,), keepdims=False)


def _as_matrix(a: Batched, shape: tuple[int, ...]) -> Batched:
    value = held.reshape(a.value, shape=(a.size_, *shape) if a.batched else shape)
    return Batched(a.level, a.size_, value, a.batched)


# Convolution: the batch is one more axis of images, or, where kernels differ, of channel groups --------


def _folded(value: Any, axis: int) -> Any:
    """Fold the batch axis, in front, into the axis that is ``axis`` behind it."""
    value = _to_axis(value, 0, axis)
    shape = value.shape
    return held.reshape(value, shape=(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def _unfolded(value: Any, axis: int, size: int) -> Any:
    shape = value.shape
    split = held.reshape(value, shape=(*shape[:axis], size, shape[axis] // size, *shape[axis + 1 :]))
    return _to_axis(split, axis, 0)


@rule("conv", "conv_input")
def _conv(op: Op, size: int, /, x: Batched, w: Batched, groups: int, **params: Any) -> Any:
    if not w.batched:
        out = compute(op, (_folded(x.value, 0), w.value), {**params, "groups": groups})
        return _unfolded(out, 0, size)
    images, kernels = _folded(full(x, size), 1), _folded(w.value, 0)
    out = compute(op, (images, kernels), {**params, "groups": groups * size})
    return _unfolded(out, 1, size)


@rule("conv_weight")
def _conv_weight(op: Op, size: int, /, x: Batched, g: Batched, groups: int, **params: Any) -> Any:
    images, outputs = _folded(full(x, size), 1), _folded(full(g, size), 1)
    out = compute(op, (images, outputs), {**params, "groups": groups * size})
    return _unfolded(out, 0, size)


# Recurrence: the batch joins the batch of the sequences, unless weights differ -------------------------


@rule("recurrent")
def _recurrent(op: Op, size: int, /, *args: Any, **params: Any) -> Any:
    named = list(zip(op.arg_names, args, strict=True))
    if any(name in "wb" and isinstance(a, Batched) and a.batched for name, a in named):
        return leading(op, size, *args, **params)
    joined = []
    for name, a in named:
        if name in "wb" or not isinstance(a, Batched):
            joined.append(a.value if isinstance(a, Batched) else a)
        else:
            joined.append(_folded(full(a, size), a.ndim - 2))
    outs = compute(op, tuple(joined), params)
    return tuple(_unfolded(out, len(out.shape) - 2, size) for out in outs)
