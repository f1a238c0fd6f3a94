"""Selection by index arrays: take, take_along_axis, put_along_axis.

The index arrays are operands of these ops, not parameters, so that transforms can batch them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from adjoint.config import grad_mode, special
from adjoint.core.batching import Batched, full_batch, held, to_axis
from adjoint.core.convert import array_of, asarray
from adjoint.core.define import define
from adjoint.core.lifted import Unknown, refuse_tracing, tracing
from adjoint.core.namespace import Namespace, Value, dyn, raw, rec
from adjoint.core.native import NotNative, Primitives, View
from adjoint.core.node import Node
from adjoint.core.op import Op
from adjoint.core.shapes import Shape, broadcast_shapes, canonical_axis, from_whole_float
from adjoint.core.sparse import SparseRows
from adjoint.core.tensor import Tensor, Traced
from adjoint.core.values import tracked
from adjoint.errors import ArgumentError, IndexingError, ShapeError
from adjoint.ops.complex_parts import astype
from adjoint.ops.scatter import (
    add_few,
    add_flat,
    along_positions,
    as_index,
    check_range,
    from_start,
    row_positions,
)
from adjoint.ops.shared_docs import flattened_doc
from adjoint.typing import Array, ArrayLike

__all__ = ["put_along_axis", "take", "take_along_axis"]

# The ops ---------------------------------------------------------------------------------------


def _untake(g: Array, i: Array, axis: int, length: int, out: Array | None = None) -> Any:
    """Return zeros with the rows of ``g`` added at the indices ``i`` along ``axis``: the adjoint of ``take``.

    Rows at repeated indices are summed.  The result has length ``length`` along ``axis``.  ``out`` is an array
    of zeros for the result, if there is one.
    """
    at = g.ndim - i.ndim + axis + 1  # in g, the axes of the index begin here
    lead, rest = g.shape[:at], g.shape[at + i.ndim :]
    shape = (*lead, length, *rest)
    few = add_few(g, (*(slice(None),) * at, i), shape, out)
    if few is not None:
        return few
    rows = row_positions(from_start(i, length), math.prod(lead), length, math.prod(rest))
    return add_flat(g, rows, shape, out)


def _untake_rows(g: Array, i: Array, axis: int, length: int) -> SparseRows:
    """Return the result of ``_untake`` as ``SparseRows``; ``axis`` must be the first axis.

    The rows of ``g`` have the indices ``i`` in an array with ``length`` rows.
    """
    shape = (length, *g.shape[i.ndim :])
    rows = from_start(i, length).reshape(-1)
    return SparseRows(rows, g.reshape(rows.size, *shape[1:]), shape)


def _check_positions(i: Array, axis: int, length: int) -> None:
    if i.size and not -length <= i.min() <= i.max() < length:
        bad = i.max() if i.max() >= length else i.min()
        raise IndexError(f"index {bad} is out of range for axis {axis} of length {length}.")


def _take_along_axis(x: Array, i: Array, axis: int) -> Any:
    length = x.shape[axis]
    _check_positions(i, axis, length)
    return x.reshape(-1).take(along_positions(i, length, axis)).reshape(i.shape)


def _untake_along_axis(g: Array, i: Array, axis: int, length: int) -> Any:
    shape = list(g.shape)
    shape[axis] = length
    return add_flat(g, along_positions(i, length, axis), tuple(shape))


def _put_along_axis(x: Array, i: Array, v: Array, axis: int) -> Any:
    length = x.shape[axis]
    _check_positions(i, axis, length)
    out = np.array(x, dtype=np.result_type(x, v) if hasattr(v, "dtype") else None, order="C")
    out.reshape(-1)[along_positions(i, length, axis)] = np.broadcast_to(v, i.shape).reshape(-1)
    return out


def _put_dv(xp: Namespace, g: Value, out: Value, x: Value, i: Value, v: Value, axis: int) -> Any:
    """Return the gradient of the values ``v`` of ``put_along_axis``.

    It is 0 for a value that was overwritten by a later value for the same position.
    """
    order = np.broadcast_to(np.arange(i.shape[axis]).reshape(-1, *(1,) * (-axis - 1)), i.shape)
    blank = np.zeros(x.shape, np.intp)
    last = xp.take_along_axis(xp.put_along_axis(blank, i, order, axis=axis), i, axis=axis)
    return xp.where(last == order, xp.take_along_axis(g, i, axis=axis), 0)


def _take_dx(
    xp: Namespace, g: Value, out: Value, x: Value, i: Value, axis: int, sparse_grad: bool = False
) -> Any:
    untake = xp.untake_rows if sparse_grad else xp.untake
    return untake(g, i, axis=axis, length=x.shape[axis])


def _take_batch(op: Op, size: int, /, x: Any, i: Any, axis: int, sparse_grad: bool = False) -> Any:
    if not isinstance(i, Batched) or not i.batched:
        return held.take(x.value, i.value if isinstance(i, Batched) else i, axis=axis)
    if not x.batched:
        return to_axis(held.take(x.value, i.value, axis=axis), x.ndim + axis, 0)
    # join the rows of all batch elements along one axis: row i of element b is row b·n + i
    n = x.shape[axis]
    rows = to_axis(x.value, len(x.value.shape) + axis, 1)
    flat = held.reshape(rows, shape=(size * n, *rows.shape[2:]))
    taken = held.take(flat, _flat_rows(i, size, n), axis=-len(flat.shape))
    for k in range(i.ndim):  # the axes of the index replace the axis
        taken = to_axis(taken, 1 + i.ndim - 1 - k, x.ndim + axis + 1 + i.ndim - 1 - k)
    return taken


def _flat_rows(i: Batched, size: int, n: int) -> Any:
    """Return row numbers for an array in which the rows of all batch elements are joined along one axis.

    There are ``size`` batch elements with n rows each, and ``i`` has the row numbers for each element.  An
    index that is out of range for its batch element becomes out of range for the joined axis.
    """
    start = np.arange(size).reshape(size, *(1,) * i.ndim) * n
    row = as_index(held, i.value)
    row = held.where(held.less(row, 0), held.add(row, n), row)
    inside = held.logical_and(held.less(-1, row), held.less(row, n))
    return held.where(inside, held.add(row, start), size * n)


def _untake_batch(op: Op, size: int, /, x: Any, i: Any, axis: int, length: int) -> Any:
    if isinstance(i, Batched) and i.batched:
        where = x.ndim + axis - i.ndim + 1 + 1  # the axes of the index begin here, after the batch axis
        rows = full_batch(x, size)
        for k in range(i.ndim):
            rows = to_axis(rows, where + k, 1 + k)
        flat = held.untake(
            rows, _flat_rows(i, size, length), axis=-(x.ndim - i.ndim + 1), length=size * length
        )
        split = held.reshape(flat, shape=(size, length, *flat.shape[1:]))
        return to_axis(split, 1, where)
    return held.untake(x.value, i.value if isinstance(i, Batched) else i, axis=axis, length=length)


def _from_start(xp: Primitives, i: View, length: int) -> View:
    """Return the indices ``i`` as int64, with negative indices replaced by positions from the start.

    A check that all indices are in range is added to the graph.
    """
    if i.dtype.kind not in "iu":
        raise NotNative(f"an index of {i.dtype} has no native form")
    if i.dtype == np.dtype(np.uint64):
        i = xp.minimum(i, np.uint64(2**63 - 1))
    i = xp.cast(i, np.dtype(np.int64))
    wrong = xp.logical_or(i < -length, i >= length)
    xp.graph.checks.append(xp.any(xp.flat(xp.graph.copied(wrong)), axis=(0,), keepdims=False))
    i = xp.where(i < 0, i + length, i)
    return xp.where(wrong, 0, i)


def _flat_positions(xp: Primitives, i: View, shape: Shape, before: int, length: int, after: int) -> View:
    """Return the positions of ``x[:, i]`` in the flattened x, for an x of shape (before, length, after).

    The indices ``i`` are first reshaped to ``shape``.
    """
    places = xp.graph.reshape(xp.graph.copied(_from_start(xp, i, length)), shape) * after
    return places + (np.arange(before).reshape(-1, 1, 1) * (length * after) + np.arange(after))


def _native_take(xp: Primitives, x: View, i: View, axis: int, sparse_grad: bool = False) -> View:
    x, i = xp.view(x), xp.view(i)
    at = axis % x.ndim
    if not x.shape[at]:
        raise NotNative("an index into an empty axis has no native form")
    before, after = math.prod(x.shape[:at]), math.prod(x.shape[at + 1 :])
    places = _flat_positions(xp, i, (1, i.size, 1), before, x.shape[at], after)
    return xp.graph.reshape(xp.gather(x, places), (*x.shape[:at], *i.shape, *x.shape[at + 1 :]))


def _native_untake(xp: Primitives, g: View, i: View, axis: int, length: int) -> View:
    i = xp.view(i)
    at = g.ndim - i.ndim + axis + 1
    lead, tail = g.shape[:at], g.shape[at + i.ndim :]
    before, width = math.prod(lead), math.prod(tail)
    rows = _flat_positions(xp, i, (1, i.size, 1), before, length, 1) * width
    zeros = xp.full((before * length * width,), 0, g.dtype)
    flat = xp.scatter("add", zeros, xp.flat(xp.graph.copied(rows)), xp.flat(g), width)
    return xp.graph.reshape(flat, (*lead, length, *tail))


def _along(xp: Primitives, i: View, length: int, axis: int) -> View:
    """Return the flat positions of the elements that ``take_along_axis`` selects with the indices ``i``.

    ``length`` is the length of the array along ``axis``.
    """
    at = i.ndim + axis
    before, after = math.prod(i.shape[:at]), math.prod(i.shape[at + 1 :])
    places = _flat_positions(xp, i, (before, i.shape[at], after), before, length, after)
    return xp.graph.reshape(xp.graph.copied(places), (i.size,))


def _native_take_along_axis(xp: Primitives, x: View, i: View, axis: int) -> View:
    x, i = xp.view(x), xp.view(i)
    if not x.shape[axis] or any(
        n != m for k, (n, m) in enumerate(zip(x.shape, i.shape, strict=True), -x.ndim) if k != axis
    ):
        raise NotNative("an index array into an empty axis, or one that is broadcast, has no native form")
    return xp.graph.reshape(xp.gather(x, _along(xp, i, x.shape[axis], axis)), i.shape)


def _native_untake_along_axis(xp: Primitives, g: View, i: View, axis: int, length: int) -> View:
    i = xp.view(i)
    shape = list(g.shape)
    shape[axis] = length
    zeros = xp.full((math.prod(shape),), 0, g.dtype)
    return xp.graph.reshape(xp.scatter("add", zeros, _along(xp, i, length, axis), xp.flat(g)), tuple(shape))


def _native_put_along_axis(xp: Primitives, x: View, i: View, v: View, axis: int) -> View:
    i = xp.view(i)
    x, v = xp.alike(xp.view(x), v)
    flat = xp.scatter(
        "set", xp.flat(x), _along(xp, i, x.shape[axis], axis), xp.flat(xp.graph.broadcast(v, i.shape))
    )
    return xp.graph.reshape(flat, x.shape)


define("take", lambda x, i, axis, sparse_grad=False: x.take(i, axis), _take_dx, None,
       saves="i", kind="linear", params=("axis", "sparse_grad"), selects=True, batch=_take_batch, method=True, reference="numpy", lower=_native_take, sparsity="move", doc="Rows along an axis, selected by an index array.")  # fmt: skip
define("untake", _untake,
       lambda xp, g, out, x, i, axis, length: xp.take(g, i, axis=axis), None,
       saves="i", kind="linear", params=("axis", "length"), batch=_untake_batch, reference="formula", lower=_native_untake, sparsity="scatter", doc="Zeros with rows added at indices along an axis.")  # fmt: skip
# ``untake_rows`` is not an op, but a function of each namespace: ``untake`` along the first axis.  For plain
# arrays it returns sparse rows.  Where gradients are recorded or transformed, it returns a dense array.
# Inside ``ad.compile`` the rows are symbols.
raw.untake_rows = _untake_rows
rec.untake_rows = rec.untake


def _untake_rows_of_symbols(g: Value, i: Value, axis: int, length: int) -> Any:
    if not isinstance(g, Unknown):
        return dyn.untake(g, i, axis=axis, length=length)
    shape = (length, *g.shape[i.ndim :])
    rows = dyn.reshape(dyn.where(dyn.less(i, 0), dyn.add(i, length), i), shape=(i.size,))
    return SparseRows(rows, dyn.reshape(g, shape=(i.size, *shape[1:])), shape)


dyn.untake_rows = _untake_rows_of_symbols

define("take_along_axis", _take_along_axis,
       lambda xp, g, out, x, i, axis: xp.untake_along_axis(g, i, axis=axis, length=x.shape[axis]), None,
       saves="i", kind="linear", params=("axis",), selects=True, batch="leading", method=True, lower=_native_take_along_axis, sparsity="move", doc="Elements along an axis, selected by an index for each position.")  # fmt: skip
define("untake_along_axis", _untake_along_axis,
       lambda xp, g, out, x, i, axis, length: xp.take_along_axis(g, i, axis=axis), None,
       saves="i", kind="linear", params=("axis", "length"), batch="leading", reference="formula", lower=_native_untake_along_axis, sparsity="scatter", doc="Zeros with elements added along an axis, with an index for each element.")  # fmt: skip
define("put_along_axis", _put_along_axis,
       lambda xp, g, out, x, i, v, axis: xp.put_along_axis(g, i, 0, axis=axis), None, _put_dv,
       saves="i", kind="linear", params=("axis",), selects=True, batch="leading", reference="formula", lower=_native_put_along_axis, sparsity="move", doc="A copy of x with values written along an axis, with an index for each position.")  # fmt: skip


# Public functions ------------------------------------------------------------------------------


def _whole(op: str, indices: Any) -> Tensor:
    """Return indices as a tensor of dtype intp; raise if they are not integers."""
    i = asarray(indices)
    if i.dtype.kind == "f" and isinstance(indices, (float, list)):
        i = asarray(from_whole_float(indices))
    if i.dtype.kind in "iu":
        return as_index(rec, i)
    if not i.size:
        return i.astype(np.intp)
    raise IndexingError(
        f"{op}: indices must be integers, but have dtype {i.dtype}.\n"
        "  To use the values as integers, cast them: i.astype(int)."
    )


_MODES = ("raise", "wrap", "clip")


@flattened_doc
def take(
    x: ArrayLike,
    indices: ArrayLike,
    axis: int | None = None,
    *,
    mode: str = "raise",
    sparse_grad: bool = False,
) -> Tensor:
    """Return elements or rows along an axis by their indices.

    The gradients of an element that is taken repeatedly are summed.

    Parameters
    ----------
    indices : array_like of int
        The indices.
    mode : {"raise", "wrap", "clip"}, optional
        What to do with indices out of range: raise, wrap around, or clip to the ends.
    sparse_grad : bool, optional
        Whether the gradient of a leaf holds the used rows only, as an ``ad.SparseGradient``. Used
        along the first axis.

    Returns
    -------
    Tensor
        The elements; the axes of ``indices`` replace the axis.

    Raises
    ------
    IndexingError
        If an index is out of range, or not an integer.

    >>> ad.take(ad.tensor([[1.0, 2.0], [3.0, 4.0]]), [1, 1, 0], axis=0)
    tensor([[3., 4.],
            [3., 4.],
            [1., 2.]], dtype=float64)
    """
    x, i = asarray(x), _whole("take", indices)
    if axis is None:
        x, axis = rec.reshape(x, shape=(x.size,)), 0
    where = canonical_axis("take", axis, x.ndim)
    if mode != "raise":
        if mode not in _MODES:
            raise ArgumentError(f"take: mode must be one of {', '.join(_MODES)}, not {mode!r}.")
        last = max(x.shape[where], 1) - 1
        i = rec.remainder(i, last + 1) if mode == "wrap" else rec.minimum(rec.maximum(i, 0), last)
    return _taken("take", x, i, where, sparse_grad)


def _keeps_rows(x: Tensor) -> bool:
    """Return whether gradients of the leaf ``x`` can be sparse."""
    trace = tracing.get() if special.count else None
    if trace is None:
        return type(x) is Tensor
    if not (grad_mode.get() and tracked(x)):
        return False
    trace.touch([x])
    cure = "Pass sparse_grad=False, or sparse=False to an embedding."
    if trace.parent is not None:  # the loop is unrolled then
        refuse_tracing("a sparse gradient in a loop", cure)
    trace.touch([x])
    if id(x) not in trace.held or x.dtype.kind == "c":
        refuse_tracing("a sparse gradient of a complex tensor, or of one that was created inside,", cure)
    return True


def _taken(op: str, x: Tensor, i: Tensor, axis: int, sparse_grad: bool = False) -> Tensor:
    if isinstance(i._data, Unknown):
        i._data.explain(partial(check_range, op, x.shape, axis))
    try:
        # gradients are sparse only for leaves, and only along the first axis
        if sparse_grad and axis == -x.ndim and type(x._node) is not Node and _keeps_rows(x):
            return rec.take(x, i, axis=axis, sparse_grad=True)
        return rec.take(x, i, axis=axis)
    except IndexingError:
        if type(i) is not Traced:  # the values of a traced index are not known
            check_range(op, x.shape, axis, array_of(i))
        raise


def _aligned(op: str, x: Tensor, i: Tensor, axis: int) -> Shape:
    """Return the common shape of ``x`` and the index array ``i``, with length 1 along ``axis``.

    Their other axes are broadcast.  Raise if the numbers of axes differ.
    """
    if i.ndim != x.ndim:
        raise ShapeError(
            f"{op}: the index and the tensor must have the same number of axes, but have shapes {i.shape} "
            f"and {x.shape}.\n"
            "  Use ad.take to choose the same positions for all rows."
        )
    shapes = [tuple(1 if a == axis else n for a, n in enumerate(t.shape, -t.ndim)) for t in (x, i)]
    return broadcast_shapes(op, *shapes)


def _stretched(x: Tensor, shape: Shape, axis: int) -> Tensor:
    wanted = tuple(x.shape[a] if a == axis else n for a, n in enumerate(shape, -x.ndim))
    return x if wanted == x.shape else rec.broadcast_to(x, shape=wanted)


@flattened_doc
def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int | None = -1) -> Tensor:
    """Return elements along an axis, with an index for each position, such as those of ``argsort``.

    Parameters
    ----------
    indices : array_like of int
        The indices, with as many axes as ``x``; the other axes broadcast.
    axis : int, optional
        The axis; with None the flattened tensor is used.

    Returns
    -------
    Tensor
        The elements, with the shape of ``indices``.

    Raises
    ------
    ShapeError
        If the shapes do not match.
    IndexingError
        If an index is out of range, or not an integer.

    >>> scores = ad.tensor([[1.0, 5.0, 2.0], [7.0, 0.0, 3.0]])
    >>> ad.take_along_axis(scores, ad.tensor([[1], [2]]), axis=1)
    tensor([[5.],
            [3.]], dtype=float64)
    """
    x, i = asarray(x), _whole("take_along_axis", indices)
    if axis is None:
        if i.ndim != 1:
            raise ShapeError(
                f"take_along_axis: with axis=None the index must have one axis, but has shape {i.shape}."
            )
        x, axis = rec.reshape(x, shape=(x.size,)), 0
    where = canonical_axis("take_along_axis", axis, x.ndim)
    shape = _aligned("take_along_axis", x, i, where)
    return rec.take_along_axis(_stretched(x, shape, where), _stretched(i, shape, where), axis=where)


@flattened_doc
def put_along_axis(x: ArrayLike, indices: ArrayLike, values: ArrayLike, axis: int | None = -1) -> Tensor:
    """Return a copy with values written along an axis, with an index for each position.

    Unlike NumPy's function, it does not write into ``x``.  If an index repeats, the last value is kept.

    Parameters
    ----------
    indices : array_like of int
        The indices, with as many axes as ``x``.
    values : array_like
        The values, which broadcast to the shape of ``indices``.
    axis : int, optional
        The axis; with None the flattened tensor is used.

    Returns
    -------
    Tensor
        The new tensor.

    Raises
    ------
    ShapeError
        If the shapes do not match.
    IndexingError
        If an index is out of range, or not an integer.

    >>> ad.put_along_axis(ad.zeros((2, 2)), [[1], [0]], 5.0, axis=1)
    tensor([[0., 5.],
            [5., 0.]], dtype=float64)
    """
    x, i = asarray(x), _whole("put_along_axis", indices)
    if axis is None:
        if i.ndim != 1:
            raise ShapeError(
                f"put_along_axis: with axis=None the index must have one axis, but has shape {i.shape}."
            )
        flat = rec.reshape(x, shape=(x.size,))
        return rec.reshape(put_along_axis(flat, i, values, 0), shape=x.shape)
    where = canonical_axis("put_along_axis", axis, x.ndim)
    shape = _aligned("put_along_axis", x, i, where)
    target = _stretched(x, shape, where)
    if target is not x:
        raise ShapeError(
            f"put_along_axis: an index of shape {i.shape} cannot be broadcast to x of shape {x.shape}."
        )
    i = _stretched(i, shape, where)
    v = asarray(values)
    if broadcast_shapes("put_along_axis", i.shape, v.shape) != i.shape:
        raise ShapeError(
            f"put_along_axis: values of shape {v.shape} cannot be broadcast to the index of shape {i.shape}."
        )
    if v.dtype != x.dtype:
        v = astype(v, x.dtype)
    return rec.put_along_axis(x, i, rec.broadcast_to(v, shape=i.shape), axis=where)
