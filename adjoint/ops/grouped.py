"""Reductions over groups of elements: scatter_reduce, segment_reduce and soft_histogram."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from adjoint.core.convert import array_of, asarray
from adjoint.core.define import define
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.shapes import canonical_axis, number, whole_number
from adjoint.core.tensor import Tensor, differentiable, wrap
from adjoint.core.values import decide
from adjoint.errors import ArgumentError, DTypeError, IndexingError, InputError, ShapeError
from adjoint.ops.half import in_float32, widened
from adjoint.ops.reduce import floating, narrowed
from adjoint.ops.scatter import along_positions, as_index, check_range
from adjoint.ops.shared_docs import argument_doc
from adjoint.typing import Array, ArrayLike

__all__ = ["scatter_reduce", "segment_reduce", "soft_histogram"]

# The op ----------------------------------------------------------------------------------------


def _scatter_extreme(x: Array, i: Array, v: Array, axis: int, largest: bool) -> Any:
    flat = np.array(x, order="C", dtype=np.result_type(x, v)).reshape(-1)
    (np.maximum if largest else np.minimum).at(flat, along_positions(i, x.shape[axis], axis), v.reshape(-1))
    return flat.reshape(x.shape)


def _shares(
    xp: Namespace, g: Value, y: Value, x: Value, i: Value, v: Value, axis: int
) -> tuple[Any, Any, Any]:
    """Return a mask of the elements of x that equal the result y, one for v, and the gradient of each one.

    y is the maximum or minimum of the elements of x and the elements of v that are scattered to the same
    positions ``i`` along ``axis``.  The elements that equal y share its gradient g equally; so do NaNs.
    """
    at_x = xp.logical_or(x == y, x != x)
    at_v = xp.logical_or(v == xp.take_along_axis(y, i, axis=axis), v != v)
    dtype = np.dtype(np.float32) if g.dtype.itemsize == 2 else g.dtype
    hits = xp.untake_along_axis(xp.astype(at_v, dtype=dtype), i, axis=axis, length=x.shape[axis])
    return at_x, at_v, g / xp.maximum(xp.astype(at_x, dtype=dtype) + hits, 1)


def _extreme_dx(
    xp: Namespace, g: Value, y: Value, x: Value, i: Value, v: Value, axis: int, largest: bool
) -> Any:
    at_x, _, share = _shares(xp, g, y, x, i, v, axis)
    return xp.where(at_x, share, 0)


def _extreme_dv(
    xp: Namespace, g: Value, y: Value, x: Value, i: Value, v: Value, axis: int, largest: bool
) -> Any:
    _, at_v, share = _shares(xp, g, y, x, i, v, axis)
    return xp.where(at_v, xp.take_along_axis(share, i, axis=axis), 0)


define("scatter_extreme", in_float32(_scatter_extreme), _extreme_dx, None, _extreme_dv, saves=("y", "x", "i", "v"),
       kind="general", params=("axis", "largest"), batch="leading", selects=True, reference="formula",
       doc="The largest or smallest of each element of x and the elements that are scattered to its position.")  # fmt: skip


# Public functions ------------------------------------------------------------------------------

_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}
_ALIASES = {"max": "amax", "min": "amin"}


@argument_doc
def scatter_reduce(
    x: ArrayLike, axis: int, index: ArrayLike, src: ArrayLike, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Return a copy of ``x`` in which elements of ``src`` are combined with those at the positions ``index``.

    Elements that tie for a maximum or minimum share the gradient equally.

    Parameters
    ----------
    axis : int
        The axis to which ``index`` refers.
    index : array_like of int
        The positions, with as many axes as ``x``.  Along the other axes, it must not be longer than ``x``.
    src : array_like
        The elements to reduce.  It must be at least as long as ``index`` along each axis; elements beyond the
        length of ``index`` are not used.
    reduce : {"sum", "prod", "mean", "amax", "amin"}
        The reduction.
    include_self : bool, optional
        Whether the elements of ``x`` are part of the reductions.  If not, an element of ``x`` is replaced if
        there are elements for its position, and unchanged otherwise.

    Raises
    ------
    ShapeError
        If the shapes do not match.
    IndexingError
        If an index is out of range or not an integer.

    >>> ad.scatter_reduce(ad.tensor([1.0, 2.0]), 0, [0, 0, 1], ad.tensor([5.0, 3.0, 1.0]), "amax")
    tensor([5., 2.], dtype=float64)
    """
    op = "scatter_reduce"
    x, i, v = asarray(x), asarray(index), asarray(src)
    name = _reduction(op, reduce)
    where = canonical_axis(op, axis, x.ndim)
    v = _fitting(op, x, i, v, where)
    if not i.size:
        return x
    if i.dtype.kind not in "iu":
        raise IndexingError(f"{op}: indices must be integers, but got {i.dtype} values.")
    if v.dtype != x.dtype:
        raise DTypeError(
            f"{op}: x and src must have the same dtype, but have {x.dtype} and {v.dtype}.  Cast one of them."
        )
    decide(partial(check_range, op, x.shape, where), i)
    key = tuple(slice(None) if a == where else slice(n) for a, n in enumerate(i.shape, -i.ndim))
    inner = x if x.shape == _along(i.shape, where, x.shape[where]) else rec.index(x, key=key)
    y = _into(name, inner, as_index(rec, i), v, where, bool(include_self))
    return y if inner is x else rec.index_set(x, y, key=key)


def _reduction(op: str, reduce: Any) -> str:
    name = _ALIASES.get(reduce, reduce)
    if name not in _NEUTRAL:
        raise ArgumentError(f"{op}: reduce must be 'sum', 'prod', 'mean', 'amax' or 'amin', not {reduce!r}.")
    return str(name)


def _along(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    return tuple(length if a == axis else n for a, n in enumerate(shape, -len(shape)))


def _fitting(op: str, x: Tensor, i: Tensor, v: Tensor, axis: int) -> Tensor:
    """Return ``v`` truncated to the shape of the index ``i``; raise if the shapes do not match.

    ``v`` is the argument ``src`` of ``scatter_reduce``.
    """
    fits = i.ndim == x.ndim == v.ndim and all(
        n <= m and (n <= k or a == axis)
        for a, n, k, m in zip(range(-i.ndim, 0), i.shape, x.shape, v.shape, strict=True)
    )
    if not fits:
        raise ShapeError(
            f"{op}: x, index and src must have the same number of axes, and index must not be longer than "
            f"src on any axis, nor longer than x on the other axes, but their shapes are {x.shape}, "
            f"{i.shape} and {v.shape}."
        )
    return v if v.shape == i.shape else rec.index(v, key=tuple(slice(n) for n in i.shape))


def _into(name: str, x: Tensor, i: Tensor, v: Tensor, axis: int, include_self: bool) -> Tensor:
    """Return a copy of ``x`` in which elements of ``v`` are combined with those at the positions ``i``.

    ``name`` is the reduction, 'sum', 'mean', 'prod', 'amax' or 'amin', along ``axis``.  All shapes must be
    equal except along ``axis``.  Unless ``include_self``, an element of ``x`` at such a position is replaced.
    """
    length, dtype = x.shape[axis], x.dtype
    if name == "prod":
        return _product(x, i, v, axis, include_self)
    if not include_self:
        touched = rec.untake_along_axis(rec.ones_like(i), i, axis=axis, length=length)
        x = rec.where(touched > 0, _neutral(name, dtype), x)
    if name in ("amax", "amin"):
        return rec.scatter_extreme(x, i, v, axis=axis, largest=name == "amax")
    total = rec.untake_along_axis(v, i, axis=axis, length=length) + x
    if name == "sum":
        return total
    count = rec.untake_along_axis(rec.ones_like(i), i, axis=axis, length=length) + int(include_self)
    if dtype.kind in "iu":
        return rec.floor_divide(total, rec.maximum(count, 1))
    mean = widened(rec, total) / rec.astype(rec.maximum(count, 1), dtype=np.result_type(dtype, np.float32))
    return narrowed(mean, dtype)


def _neutral(name: str, dtype: Any) -> Any:
    """Return the neutral value of the reduction ``name``, such as 0 for 'sum' and -inf for 'amax'."""
    value = _NEUTRAL[name]
    if differentiable(dtype) or not math.isinf(value):
        return value
    return np.iinfo(dtype).min if value < 0 else np.iinfo(dtype).max


def _product(x: Tensor, i: Tensor, v: Tensor, axis: int, include_self: bool) -> Tensor:
    """Return the result of ``_into`` for 'prod': multiply elements of ``x`` by those of ``v`` at ``i``.

    The elements are sorted by index.  Then a parallel prefix product is computed: in each round the distance
    between the factors doubles.  There is no division, so derivatives of every order are exact at zeros.
    """
    length = x.shape[axis]
    i = rec.where(i < 0, i + length, i)
    order = rec.argsort(i, axis=axis, descending=False, stable=True)
    group, y = (rec.take_along_axis(a, order, axis=axis) for a in (i, v))
    tail, step = ((0, 0),) * (-axis - 1), 1
    front = ((0, 0),) * (x.ndim + axis)
    while step < v.shape[axis]:
        earlier = (Ellipsis, slice(None, -step), *(slice(None),) * (-axis - 1))
        before = rec.pad(y[earlier], widths=(*front, (step, 0), *tail), value=1)
        same = rec.pad(group[earlier], widths=(*front, (step, 0), *tail), value=-1) == group
        y, step = y * rec.where(same, before, 1), 2 * step
    later = (Ellipsis, slice(1, None), *(slice(None),) * (-axis - 1))
    last = rec.pad(group[later], widths=(*front, (0, 1), *tail), value=-1) != group
    y = rec.untake_along_axis(rec.where(last, y, 0), group, axis=axis, length=length)
    touched = rec.untake_along_axis(rec.ones_like(i), i, axis=axis, length=length) > 0
    return rec.where(touched, x * y if include_self else y, x)


@argument_doc
def segment_reduce(
    x: ArrayLike,
    reduce: str,
    *,
    lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Tensor:
    """Reduce each segment of neighbouring elements along an axis.

    Elements that tie for a maximum or minimum share the gradient equally.

    Parameters
    ----------
    x : array_like
        The argument, of floats.
    reduce : {"sum", "prod", "mean", "max", "min"}
        The reduction.
    lengths : array_like of int, optional
        The lengths of the segments, which add up to the length of the axis.
    offsets : array_like of int, optional
        Where the segments begin, and the end of the last one.  Pass either ``lengths`` or ``offsets``.
    initial : float, optional
        The initial value of each reduction; it does not count as an element of a mean.

    Returns
    -------
    Tensor
        One element per segment.  Without ``initial``, it is 0, 1, NaN, -inf or inf for an empty segment.

    Raises
    ------
    ShapeError
        If the segments do not match the length of the axis.

    >>> ad.segment_reduce(ad.tensor([1.0, 2.0, 3.0, 4.0]), "mean", lengths=[3, 1])
    tensor([2., 4.], dtype=float64)
    """
    op = "segment_reduce"
    x, name = floating(op, x), _reduction(op, reduce)
    where = canonical_axis(op, axis, x.ndim)
    sizes = _segment_lengths(op, lengths, offsets, x.shape[where])
    rows = np.repeat(np.arange(len(sizes)), sizes).reshape(-1, *(1,) * (-where - 1))
    start = _NEUTRAL[name] if initial is None else number(op, "initial", initial)
    shape = _along(x.shape, where, len(sizes))
    i = wrap(np.broadcast_to(rows, x.shape))
    base = wrap(np.full(shape, start, x.dtype))
    y = _into("sum" if name == "mean" else name, base, i, x, where, True) if x.size else base
    if name != "mean":
        return y
    count = sizes.reshape(-1, *(1,) * (-where - 1))
    mean = narrowed(widened(rec, y) / wrap(np.maximum(count, 1).astype(widened(rec, y).dtype)), x.dtype)
    return rec.where(wrap(count > 0), mean, math.nan if initial is None else start)


def _segment_lengths(op: str, lengths: Any, offsets: Any, n: int) -> Any:
    if (lengths is None) == (offsets is None):
        raise ArgumentError(f"{op}: pass exactly one of lengths= and offsets=.")
    given = array_of(asarray(offsets if lengths is None else lengths))
    if given.dtype.kind not in "iu" and given.size:
        raise InputError(f"{op}: lengths or offsets must be integers, but have dtype {given.dtype}.")
    if given.ndim != 1 or (lengths is None and not given.size):
        raise ShapeError(
            f"{op}: lengths or offsets must be a vector, and offsets not empty, but the shape is "
            f"{given.shape}."
        )
    sizes = given.astype(np.intp) if lengths is not None else np.diff(given.astype(np.intp))
    if (sizes < 0).any() or sizes.sum() != n or (lengths is None and given[0] != 0):
        raise ShapeError(
            f"{op}: the segments must cover the axis exactly, but have lengths {sizes.tolist()} for an axis "
            f"of length {n}."
        )
    return sizes


def _in_bins(finite: Tensor, place: Tensor, share: Tensor, count: int) -> Tensor:
    """Return the sums of ``share`` in ``count`` bins; each is split between the bins next to ``place``.

    ``finite`` is ``place`` for the elements that count, and 0 for the others.
    """
    left = rec.minimum(rec.floor(finite), max(count - 2.0, 0.0))
    part = (place - left) * share
    i = rec.astype(left, dtype=np.dtype(np.intp))
    found: Tensor = rec.untake_along_axis(share - part, i, axis=-1, length=count)
    return found + rec.untake_along_axis(part, i + 1, axis=-1, length=count) if count > 1 else found


def _element_weights(op: str, x: Tensor, weights: Any) -> Tensor:
    w = floating(op, weights)
    if w.size != x.size:
        raise ShapeError(
            f"{op}: there must be one weight per element, but there are {x.size} elements and weights of "
            f"shape {w.shape}."
        )
    return rec.reshape(w, shape=x.shape)


@argument_doc
def soft_histogram(
    x: ArrayLike,
    bins: int = 10,
    range: tuple[float, float] | None = None,
    *,
    weights: ArrayLike | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return a histogram that has a gradient: each element is shared by the two nearest bins.

    An element at the centre of a bin counts for this bin only.  Between two centres the shares change
    linearly.  Elements outside the outermost centres, but inside the range, count for the outermost bin.

    Parameters
    ----------
    x : array_like
        The elements.
    bins : int, optional
        The number of bins.
    range : tuple of float, optional
        The lower and the upper end; by default the smallest and the largest element.  Elements outside do
        not count.
    weights : array_like, optional
        The weights of the elements, with the shape of ``x``.
    density : bool, optional
        Whether to divide by the total and the width of the bins, so that the integral is 1.

    Returns
    -------
    tuple of Tensor
        The bins, and their edges.

    Raises
    ------
    ArgumentError
        If there is no bin, or the range is empty.

    >>> ad.soft_histogram(ad.tensor([0.5, 1.0, 2.5]), 3, (0.0, 3.0))[0]
    tensor([1.5, 0.5, 1. ], dtype=float64)
    """
    op = "soft_histogram"
    x = floating(op, x).reshape(-1)
    count, (low, high) = whole_number(op, "bins", bins), _ends(op, x, range)
    if count < 1 or not low < high:
        raise ArgumentError(
            f"{op}: bins must be at least 1 and the range must not be empty, but bins is {bins} and the "
            f"range is from {low} to {high}."
        )
    width = (high - low) / count
    inside = rec.logical_and(x >= low, x <= high)
    place = rec.clip((x - low) / width - 0.5, 0.0, count - 1.0)
    share = rec.where(inside, 1.0 if weights is None else _element_weights(op, x, weights), 0.0)
    found = _in_bins(rec.where(inside, place, 0.0), place, share, count)
    if density:
        found = found / (rec.sum(found, axis=(-1,), keepdims=False) * width)
    return narrowed(found, x.dtype), wrap(np.linspace(low, high, count + 1).astype(x.dtype))


def _ends(op: str, x: Tensor, range: Any) -> tuple[float, float]:
    if range is not None:
        low, high = (number(op, "range", end) for end in range)
        return low, high
    values = array_of(x.detach())
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    return (low, high) if low < high else (low - 0.5, high + 0.5)
