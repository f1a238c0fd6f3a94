"""Joining and splitting: concat, stack, the split functions, and NumPy's variants of both."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import operator
from collections.abc import Iterable, Iterator, KeysView, Sequence, ValuesView
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.docstrings import SharedDoc
from adjoint.core.eager import eager_of
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.native import Primitives, View, full_key
from adjoint.core.op import OPS
from adjoint.core.shapes import canonical_axis, from_whole_float
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.ops.shared_docs import argument_doc
from adjoint.typing import Array, ArrayLike

__all__ = [
    "array_split", "atleast_1d", "atleast_2d", "atleast_3d", "column_stack", "concat", "concatenate",
    "dsplit", "dstack", "hsplit", "hstack", "split", "stack", "unstack", "vsplit", "vstack",
]  # fmt: skip

_atleast_doc = SharedDoc("""
    Parameters
    ----------
    *xs : array_like
        The tensors.

    Returns
    -------
    Tensor or tuple of Tensor
        One tensor, or a tuple of several.
    """)

_splitting_doc = argument_doc.extended("""
    Parameters
    ----------
    indices_or_sections : int or sequence of int
        The number of equal parts, or the indices at which to split.

    Returns
    -------
    list of Tensor
        The parts.
    """)

_joining_doc = argument_doc.extended("""
    Parameters
    ----------
    xs : sequence of array_like
        The tensors.

    Returns
    -------
    Tensor
        The joined tensor.
    """)


def _along(axis: int, at: Any) -> tuple[Any, ...]:
    """Return an index with ``at`` for the axis ``axis`` (negative) and full slices for the other axes."""
    return (Ellipsis, at, *(slice(None),) * (-axis - 1))


def _concat_rule(
    xp: Namespace, g: Value, out: Value, *xs: Value, wanted: Sequence[bool], axis: int
) -> list[Any]:
    grads: list[Any] = []
    start = i = 0
    front = axis == -len(g.shape)
    for x in xs:
        stop = start + x.shape[axis]
        if not wanted[i]:
            grads.append(None)
        else:
            grads.append(g[start:stop] if front else g[_along(axis, slice(start, stop))])
        start = stop
        i += 1  # noqa: SIM113  enumerate costs more
    return grads


def _stack(*xs: Array, axis: int) -> Any:
    """Return the arrays joined along a new axis, like ``np.stack``, but in a third of the time."""
    first = xs[0]
    if type(first) is np.ndarray and axis == -first.ndim - 1:  # the new axis is the first
        kind = first.dtype
        for x in xs:
            if type(x) is not np.ndarray or x.dtype is not kind:
                break
        else:
            out = np.empty((len(xs), *first.shape), kind)
            i = 0
            for x in xs:
                out[i] = x
                i += 1  # noqa: SIM113  enumerate costs more
            return out
    shape = list(np.shape(first))
    shape.insert(len(shape) + 1 + axis, 1)
    return np.concatenate([np.reshape(x, shape) for x in xs], axis=axis)


def _stack_rule(
    xp: Namespace, g: Value, out: Value, *xs: Value, wanted: Sequence[bool], axis: int
) -> list[Any]:
    if axis == -len(g.shape):
        return [g[i, ...] if want else None for i, want in enumerate(wanted)]
    return [g[_along(axis, i)] if want else None for i, want in enumerate(wanted)]


def _native_concat(xp: Primitives, *xs: View, axis: int) -> View:
    views = [xp.view(x) for x in xs]
    dtype = np.result_type(*[v.dtype for v in views])
    shape = list(views[0].shape)
    at = axis % len(shape)
    shape[at] = sum(v.shape[at] for v in views)
    pieces, start = [], 0
    for v in views:
        pieces.append((v, (*(slice(None),) * at, slice(start, start + v.shape[at]))))
        start += v.shape[at]
    return xp.placed(tuple(shape), None, dtype, pieces)


def _native_stack(xp: Primitives, *xs: View, axis: int) -> View:
    views = [xp.view(x) for x in xs]
    at = axis % (views[0].ndim + 1)
    wide = [xp.graph.reshape(v, (*v.shape[:at], 1, *v.shape[at:])) for v in views]
    return _native_concat(xp, *wide, axis=at)


define("concat", lambda *xs, axis: np.concatenate(xs, axis=axis), joint=_concat_rule, arity=None,
       kind="linear", params=("axis",), batch="leading", reference="numpy", lower=_native_concat, sparsity="move", doc="Tensors joined along an axis.")  # fmt: skip
define("stack", _stack, joint=_stack_rule, arity=None, kind="linear", params=("axis",),
       batch="leading", reference="numpy", lower=_native_stack, sparsity="move", doc="Tensors joined along a new axis.")  # fmt: skip


# All parts of a split are outputs of one node, so that backward joins their gradients once.  With one index
# op per part, backward would create a whole array of zeros for each part.


def _unstack_forward(x: Array, axis: int) -> tuple[Any, ...]:
    return tuple(x[_along(axis, i)] for i in range(x.shape[axis]))


def _unstack_rule(xp: Namespace, g: Value, parts: Value, x: Value, axis: int) -> Any:
    zero = xp.zeros_like(next(p for p in g if p is not None))
    return xp.stack(*(zero if p is None else p for p in g), axis=axis)


def _split_forward(x: Array, cuts: tuple[tuple[int, int], ...], axis: int) -> tuple[Any, ...]:
    return tuple(x[_along(axis, slice(*cut))] for cut in cuts)


def _split_rule(
    xp: Namespace, g: Value, parts: Value, x: Value, cuts: tuple[tuple[int, int], ...], axis: int
) -> Any:
    shape = list(x.shape)
    joined = []
    for p, (start, stop) in zip(g, cuts, strict=True):
        shape[axis] = stop - start
        joined.append(np.zeros(shape, x.dtype) if p is None else p)
    return xp.concat(*joined, axis=axis)


def _native_parts(xp: Primitives, x: View, parts: Iterable[Any], axis: int) -> tuple[View, ...]:
    """Return the elements or slices ``parts`` of ``x`` along an axis."""
    lead = (slice(None),) * (axis % x.ndim)
    return tuple([xp.graph.slice(x, full_key((*lead, part), x.ndim)) for part in parts])


define("unstack", _unstack_forward, _unstack_rule, kind="linear", params=("axis",), outputs=2, selects=True,
       jvp=lambda xp, t, parts, x, axis: tuple(t[_along(axis, i)] for i in range(x.shape[axis])),
       batch="leading", method=True, lower=lambda xp, x, axis: _native_parts(xp, x, range(x.shape[axis]), axis), doc="The slices along an axis, one output for each.")  # fmt: skip
define("split", _split_forward, _split_rule, kind="linear", params=("cuts", "axis"), outputs=2, selects=True,
       jvp=lambda xp, t, parts, x, cuts, axis: tuple(t[_along(axis, slice(*cut))] for cut in cuts),
       batch="leading", method=True, reference="numpy", lower=lambda xp, x, cuts, axis: _native_parts(xp, x, [slice(*cut) for cut in cuts], axis), doc="The parts of a tensor along an axis, one output for each part.")  # fmt: skip


@functools.cache
def _with_outputs(name: str, count: int) -> Any:
    """Return the eager function of the op ``name`` for ``count`` outputs.

    The number of outputs is part of an op, so there is one copy of the op for each number.
    """
    op = dataclasses.replace(OPS[name], outputs=count)
    op.eager = eager_of(op)
    return op.eager


# Joining ---------------------------------------------------------------------------------------


def _several(op: str, xs: Any) -> list[Tensor]:
    if not isinstance(xs, (list, tuple)):
        if isinstance(xs, (Tensor, np.ndarray)):
            return _several(op, list(xs))
        if not isinstance(xs, (ValuesView, KeysView, Iterator)):
            raise InputError(f"{op}: expected a list or tuple of tensors, but got {type(xs).__name__}.")
        xs = list(xs)
    if not xs:
        raise ShapeError(f"{op}: at least one tensor is required, but the list is empty.")
    return [x if type(x) is Tensor else asarray(x) for x in xs]


@_joining_doc
def concat(xs: ArrayLike, axis: int | None = 0) -> Tensor:
    """Join tensors along an existing axis.

    Parameters
    ----------
    xs : sequence of array_like
        The tensors; all axes but ``axis`` must have equal lengths.
    axis : int, optional
        The axis; with None the flattened tensors are joined.

    Raises
    ------
    ShapeError
        If the shapes do not match, or there are no tensors.

    >>> ad.concat([ad.zeros((1, 2)), ad.ones((2, 2))]).shape
    (3, 2)
    """
    return _concat("concat", _several("concat", xs), axis)


concatenate = concat  # NumPy's name


def _concat(op: str, tensors: list[Tensor], axis: int | None) -> Tensor:
    if axis is None:
        tensors, axis = [rec.reshape(x, shape=(x.size,)) for x in tensors], 0
    first = tensors[0]
    if axis == 0 or axis == -1:
        for x in tensors:
            if len(x._data.shape) != 1:
                break
        else:
            return rec.concat(*tensors, axis=-1)
    if first.ndim == 0:
        raise ShapeError(f"{op}: 0-d tensors have no axis to join along.  Use ad.stack, or axis=None.")
    where = canonical_axis(op, axis, first.ndim)
    for x in tensors:
        same = x.ndim == first.ndim and builtins.all(
            m == n for i, (m, n) in enumerate(zip(x.shape, first.shape, strict=True), -x.ndim) if i != where
        )
        if not same:
            raise ShapeError(
                f"{op}: the shapes must be equal except along axis {axis}, but are {first.shape} and "
                f"{x.shape}.\n"
                "  Pad, slice or reshape the tensors, or join them along another axis."
            )
    return rec.concat(*tensors, axis=where)


@_joining_doc
def stack(xs: ArrayLike, axis: int = 0) -> Tensor:
    """Join tensors of equal shape along a new axis.

    Parameters
    ----------
    axis : int, optional
        The position of the new axis in the result.

    Raises
    ------
    ShapeError
        If the shapes differ, or there are no tensors.

    >>> ad.stack([ad.zeros(3), ad.ones(3)], axis=1).shape
    (3, 2)
    """
    tensors = _several("stack", xs)
    shape = tensors[0]._data.shape
    for x in tensors:
        if x._data.shape != shape:
            raise ShapeError(
                f"stack: all tensors must have the same shape, but two have shapes {shape} and {x.shape}.\n"
                "  Use ad.concat to join along an existing axis."
            )
    front = type(axis) is int and axis == 0
    return rec.stack(*tensors, axis=~len(shape) if front else canonical_axis("stack", axis, len(shape) + 1))


def _raised(x: Tensor, ndim: int) -> Tensor:
    """Return ``x`` with axes of length 1 added up to ``ndim`` axes, where ``np.atleast_2d`` etc. add them."""
    if x.ndim >= ndim:
        return x
    shape: tuple[int, ...] = (1,) * (ndim - x.ndim) + x.shape
    if ndim == 3 and x.ndim:  # (n,) becomes (1, n, 1), and (m, n) becomes (m, n, 1)
        shape = (1,) * (2 - x.ndim) + x.shape + (1,)
    return rec.reshape(x, shape=shape)


def _atleast(xs: tuple[Any, ...], ndim: int) -> Any:
    raised = tuple(_raised(asarray(x), ndim) for x in xs)
    return raised[0] if len(raised) == 1 else raised


@_atleast_doc
def atleast_1d(*xs: ArrayLike) -> Any:
    """Return tensors with at least one axis.

    >>> ad.atleast_1d(3.0)
    tensor([3.], dtype=float64)
    """
    return _atleast(xs, 1)


@_atleast_doc
def atleast_2d(*xs: ArrayLike) -> Any:
    """Return tensors with at least two axes; a vector becomes a row.

    >>> ad.atleast_2d([1.0, 2.0]).shape
    (1, 2)
    """
    return _atleast(xs, 2)


@_atleast_doc
def atleast_3d(*xs: ArrayLike) -> Any:
    """Return tensors with at least three axes.

    Shape ``(n,)`` becomes ``(1, n, 1)``, and ``(m, n)`` becomes ``(m, n, 1)``.

    >>> ad.atleast_3d([1.0, 2.0]).shape
    (1, 2, 1)
    """
    return _atleast(xs, 3)


@_joining_doc
def hstack(xs: ArrayLike) -> Tensor:
    """Join along the second axis; vectors along their only axis.

    >>> ad.hstack([[1, 2], [3]])
    tensor([1, 2, 3], dtype=int64)
    """
    tensors = [_raised(x, 1) for x in _several("hstack", xs)]
    return _concat("hstack", tensors, 0 if tensors[0].ndim == 1 else 1)


@_joining_doc
def vstack(xs: ArrayLike) -> Tensor:
    """Join along the first axis; vectors become rows.

    >>> ad.vstack([[1, 2], [3, 4]])
    tensor([[1, 2],
            [3, 4]], dtype=int64)
    """
    return _concat("vstack", [_raised(x, 2) for x in _several("vstack", xs)], 0)


@_joining_doc
def dstack(xs: ArrayLike) -> Tensor:
    """Join along the third axis, which is added if it is missing.

    >>> ad.dstack([[1, 2], [3, 4]]).shape
    (1, 2, 2)
    """
    return _concat("dstack", [_raised(x, 3) for x in _several("dstack", xs)], 2)


@_joining_doc
def column_stack(xs: ArrayLike) -> Tensor:
    """Join vectors as the columns of a matrix; matrices are joined side by side.

    >>> ad.column_stack([[1, 2], [3, 4]])
    tensor([[1, 3],
            [2, 4]], dtype=int64)
    """
    columns = []
    for x in _several("column_stack", xs):
        columns.append(rec.reshape(x, shape=(x.size, 1)) if x.ndim < 2 else x)
    return _concat("column_stack", columns, 1)


# Cutting ---------------------------------------------------------------------------------------


@_splitting_doc
def split(x: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Split along an axis.

    Raises
    ------
    ShapeError
        If the axis does not divide into equal parts.

    >>> [part.shape for part in ad.split(ad.arange(6.0), 3)]
    [(2,), (2,), (2,)]
    """
    return _split("split", x, indices_or_sections, axis)


def _split(op: str, x: Any, sections: Any, axis: int, equal: bool = True) -> list[Tensor]:
    x = asarray(x)
    where = canonical_axis(op, axis, x.ndim)
    n = x.shape[where]
    if isinstance(sections, (list, tuple)) or getattr(sections, "ndim", 0) > 0:
        return _cut(x, where, [_bounded(op, c, n) for c in sections])
    try:
        parts = operator.index(from_whole_float(sections))
    except TypeError:
        raise InputError(
            f"{op}: pass the number of parts, or a list of the indices at which to split, not {sections!r}."
        ) from None
    if parts < 1:
        raise ArgumentError(f"{op}: the number of parts must be at least 1, but is {parts}.")
    if equal and n % parts:
        raise ShapeError(
            f"{op}: {n} elements along axis {axis} cannot be divided into {parts} equal parts.\n"
            "  Pass the indices at which to split, or use ad.array_split."
        )
    small, larger = divmod(n, parts)  # the first ``larger`` parts have one element more
    return _cut(x, where, [i * small + builtins.min(i, larger) for i in range(1, parts)])


def _bounded(op: str, cut: Any, n: int) -> int:
    try:
        at = operator.index(cut)
    except TypeError:
        raise InputError(f"{op}: the indices at which to split must be integers, but got {cut!r}.") from None
    return builtins.min(builtins.max(at + n if at < 0 else at, 0), n)


def _cut(x: Tensor, axis: int, cuts: list[int]) -> list[Tensor]:
    pairs = tuple(zip([0, *cuts], [*cuts, x.shape[axis]], strict=True))
    if len(pairs) == 1 or builtins.any(a > b for a, b in pairs):  # indices that decrease: parts overlap
        return [x[_along(axis, slice(a, b))] for a, b in pairs]
    return list(_with_outputs("split", len(pairs))(x, cuts=pairs, axis=axis))


@_splitting_doc
def array_split(x: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Split along an axis into parts that need not be equal; the first ones may be longer by one.

    Parameters
    ----------
    indices_or_sections : int or sequence of int
        The number of parts, or the indices at which to split.

    >>> [part.shape for part in ad.array_split(ad.arange(5), 2)]
    [(3,), (2,)]
    """
    return _split("array_split", x, indices_or_sections, axis, equal=False)


def _needs(op: str, x: Any, ndim: int) -> Tensor:
    x = asarray(x)
    if x.ndim < ndim:
        raise ShapeError(f"{op}: x must have at least {ndim} axes, but has shape {x.shape}.")
    return x


@_splitting_doc
def hsplit(x: ArrayLike, indices_or_sections: Any) -> list[Tensor]:
    """Split along the second axis; a vector along its only axis.

    >>> [part.shape for part in ad.hsplit(ad.ones((2, 4)), 2)]
    [(2, 2), (2, 2)]
    """
    x = _needs("hsplit", x, 1)
    return _split("hsplit", x, indices_or_sections, 0 if x.ndim == 1 else 1)


@_splitting_doc
def vsplit(x: ArrayLike, indices_or_sections: Any) -> list[Tensor]:
    """Split along the first axis.

    Parameters
    ----------
    x : array_like
        The argument, with at least two axes.

    >>> [part.shape for part in ad.vsplit(ad.ones((4, 2)), 2)]
    [(2, 2), (2, 2)]
    """
    return _split("vsplit", _needs("vsplit", x, 2), indices_or_sections, 0)


@_splitting_doc
def dsplit(x: ArrayLike, indices_or_sections: Any) -> list[Tensor]:
    """Split along the third axis.

    Parameters
    ----------
    x : array_like
        The argument, with at least three axes.

    >>> [part.shape for part in ad.dsplit(ad.ones((1, 2, 4)), 2)]
    [(1, 2, 2), (1, 2, 2)]
    """
    return _split("dsplit", _needs("dsplit", x, 3), indices_or_sections, 2)


@argument_doc
def unstack(x: ArrayLike, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the slices along an axis, without that axis; ``stack`` joins them again.

    Returns
    -------
    tuple of Tensor
        The slices.

    >>> ad.unstack(ad.tensor([[1, 2], [3, 4]]))
    (tensor([1, 2], dtype=int64), tensor([3, 4], dtype=int64))
    """
    x = asarray(x)
    where = canonical_axis("unstack", axis, x.ndim)
    n = x.shape[where]
    if n < 2:
        return tuple(x[_along(where, i)] for i in range(n))
    return tuple(_with_outputs("unstack", n)(x, axis=where))
