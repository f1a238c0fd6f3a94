"""Sorting and ranks: sort, argsort, topk, searchsorted, medians and quantiles.

To sort is to select elements by the indices of argsort, so each element of the gradient returns to the
original position of its value.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adjoint.core.batching import Batched, full_batch, held
from adjoint.core.convert import array_of, asarray
from adjoint.core.define import define
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.native import NotNative, Primitives, View
from adjoint.core.op import Op
from adjoint.core.shapes import Shape, canonical_axes, canonical_axis, whole_number, without_gradient
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, DTypeError, ShapeError
from adjoint.ops.half import in_float32
from adjoint.ops.reduce import floating, reduced_count
from adjoint.ops.shared_docs import argument_doc, reduction_doc
from adjoint.typing import Array, ArrayLike, Axis

__all__ = ["argsort", "median", "percentile", "quantile", "searchsorted", "sort", "topk"]

_sorting_doc = reduction_doc.extended("""
    Parameters
    ----------
    axis : int, optional
        The axis; with None the flattened tensor is sorted.
    kind : str, optional
        NumPy's name of the algorithm; accepted for compatibility and not used.
    descending : bool, optional
        Whether to sort from the largest to the smallest.

    Returns
    -------
    Tensor
        The indices, which have no gradient.
    """)

_WHY = "it is piecewise constant"

# The ops ---------------------------------------------------------------------------------------


def _argsort(x: Array, axis: int, descending: bool, stable: bool) -> Any:
    kind: Any = "stable" if stable else None
    if not descending:
        return np.argsort(x, axis=axis, kind=kind)
    # reverse x, sort it, and reverse the result: so equal elements keep their order
    back = np.flip(np.argsort(np.flip(x, axis), axis=axis, kind=kind), axis)
    return x.shape[axis] - 1 - back


def _sort(x: Array, axis: int, descending: bool, stable: bool) -> Any:
    y = np.sort(x, axis=axis)  # np.sort need not be stable: equal numbers cannot be distinguished
    return np.flip(y, axis) if descending else y


def _sort_rule(xp: Namespace, g: Value, y: Value, x: Value, axis: int, descending: bool, stable: bool) -> Any:
    i = xp.argsort(x, axis=axis, descending=descending, stable=stable)
    return xp.untake_along_axis(g, i, axis=axis, length=x.shape[axis])


def _sort_jvp(xp: Namespace, t: Value, y: Value, x: Value, axis: int, descending: bool, stable: bool) -> Any:
    i = xp.argsort(x, axis=axis, descending=descending, stable=stable)
    return xp.take_along_axis(t, i, axis=axis)


def _count_equal(x: Array, y: Array) -> int:
    """Return the number of elements of ``x`` that equal ``y``; NaN equals NaN."""
    same = x == y
    nan = y != y
    return int(np.count_nonzero(same | (nan & (x != x)) if nan.any() else same))


def _argtopk(x: Array, k: int, axis: int, largest: bool) -> Any:
    """Return the indices of the k largest elements along ``axis``, the largest first.

    If ``largest`` is False, return those of the k smallest, the smallest first.  Equal elements keep their
    order.
    """
    n = x.shape[axis]
    if 0 < 4 * k < n:  # np.argpartition first, which takes linear time
        i = np.argpartition(x, n - k if largest else k - 1, axis=axis)
        i = np.sort(np.take(i, np.arange(n - k, n) if largest else np.arange(k), axis=axis), axis=axis)
        part = np.take_along_axis(x, i, axis)
        order = _argsort(part, axis, largest, True)
        last = np.take_along_axis(part, np.take(order, [k - 1], axis=axis), axis)
        # if more elements are equal to the last one, argpartition has selected any of them
        if _count_equal(x, last) == _count_equal(part, last):
            return np.take_along_axis(i, order, axis)
    return np.take(_argsort(x, axis, largest, True), np.arange(k), axis=axis)


def _searchsorted_batch(op: Op, size: int, /, x: Batched, v: Batched, side: str) -> Any:
    if not x.batched:
        return held.searchsorted(x.value, v.value, side=side)
    # count the elements that come before, with one comparison for each pair; NaN comes last
    rows = held.reshape(x.value, shape=(size, *(1,) * v.ndim, x.shape[0]))
    values = held.reshape(full_batch(v, size), shape=(size, *v.shape, 1))
    last = held.isnan(values)
    if side == "left":
        before = held.logical_or(
            held.less(rows, values), held.logical_and(last, held.logical_not(held.isnan(rows)))
        )
    else:
        before = held.logical_or(held.less_equal(rows, values), last)
    return held.sum(before, axis=(-1,), keepdims=False)


# Native forms ------------------------------------------------------------------------------------


def _flipped(xp: Primitives, x: View, axis: int) -> View:
    """Return ``x`` with the order of its elements along ``axis`` reversed."""
    key = [slice(None)] * x.ndim
    key[axis] = slice(None, None, -1)
    return xp.graph.slice(x, key)


def _native_argsort(xp: Primitives, x: View, axis: int, descending: bool, stable: bool) -> View:
    x, n = xp.view(x), xp.view(x).shape[axis]
    last = x.ndim + axis
    axes = [*(k for k in range(x.ndim) if k != last), last]
    ordered = xp.order(xp.graph.permute(_flipped(xp, x, axis) if descending else x, axes))
    found = xp.graph.permute(ordered, [axes.index(k) for k in range(x.ndim)])
    return n - 1 - _flipped(xp, found, axis) if descending else found


def _native_sort(xp: Primitives, x: View, **params: Any) -> View:
    return xp.take_along_axis(x, _native_argsort(xp, x, **params), axis=params["axis"])


def _native_argtopk(xp: Primitives, x: View, k: int, axis: int, largest: bool) -> View:
    found = _native_argsort(xp, x, axis, largest, True)
    key = [slice(None)] * found.ndim
    key[axis] = slice(k)
    return xp.graph.slice(found, key)


def _native_searchsorted(xp: Primitives, x: View, v: View, side: str) -> View:
    """Search all elements of ``v`` at once: the bits of a position, the highest first."""
    x, v = xp.alike(xp.view(x), v)
    n = x.shape[0]
    if not n:
        raise NotNative("a search in an empty array has no native form")
    found = xp.full(v.shape, 0, np.dtype(np.int64))
    for bit in reversed(range(n.bit_length())):
        place = found + (1 << bit)
        at = xp.gather(x, xp.minimum(place, n) - 1)
        before = at < v if side == "left" else at <= v
        if v.dtype.kind == "f":  # NaN comes last
            last = v != v
            before = xp.logical_or(before, xp.logical_and(last, at == at) if side == "left" else last)
        found = xp.select(xp.logical_and(place <= n, before), place, found)
    return found


# The table ---------------------------------------------------------------------------------------

# These compute bfloat16 in float32, because NumPy does not sort the NaNs of bfloat16 to the end.
_SORTING = ("axis", "descending", "stable")
define("argsort", in_float32(_argsort), None, kind="general", params=_SORTING, reason=_WHY,
       batch="leading", method=True, reference="formula", lower=_native_argsort, doc="The indices that sort the elements along an axis.")  # fmt: skip
define("sort", in_float32(_sort), _sort_rule, saves="x", kind="general", params=_SORTING, jvp=_sort_jvp, selects=True,
       batch="leading", method=True, reference="formula", lower=_native_sort, doc="The elements sorted along an axis.")  # fmt: skip
define("argtopk", in_float32(_argtopk), None, kind="general", params=("k", "axis", "largest"), reason=_WHY,
       batch="leading", reference="formula", lower=_native_argtopk, doc="The indices of the k largest or smallest elements.")  # fmt: skip
define("searchsorted", in_float32(lambda x, v, side: np.searchsorted(x, v, side=side)), None, None,
       kind="general", params=("side",), reason=_WHY, batch=_searchsorted_batch, lower=_native_searchsorted, doc="The indices at which elements would be inserted into a sorted vector.")  # fmt: skip


# Sorting ---------------------------------------------------------------------------------------


def _sorting(op: str, x: Any, axis: Any, descending: bool, stable: bool | None, kind: Any) -> Tensor:
    if kind not in (None, "quicksort", "stable", "mergesort", "heapsort"):
        raise ArgumentError(f"{op}: kind must be 'quicksort', 'heapsort' or 'stable', not {kind!r}.")
    x = asarray(x)
    if axis is None:
        x, axis = rec.reshape(x, shape=(x.size,)), 0
    where = canonical_axis(op, axis, x.ndim)
    stable = stable is not False
    return getattr(rec, op)(x, axis=where, descending=bool(descending), stable=stable)


@_sorting_doc
def sort(
    x: ArrayLike,
    axis: int | None = -1,
    kind: Any = None,
    *,
    descending: bool = False,
    stable: bool | None = True,
) -> Tensor:
    """Sort along an axis.

    NaNs come last, and first if ``descending``.  The gradient returns to the original positions.

    Parameters
    ----------
    stable : bool, optional
        Whether equal elements keep their order, which decides where gradients go.

    >>> ad.sort(ad.tensor([3.0, 1.0, 2.0]), descending=True)
    tensor([3., 2., 1.], dtype=float64)
    """
    return _sorting("sort", x, axis, descending, stable, kind)


@_sorting_doc
def argsort(
    x: ArrayLike,
    axis: int | None = -1,
    kind: Any = None,
    *,
    descending: bool = False,
    stable: bool | None = True,
) -> Tensor:
    """Return the indices that sort along an axis.

    Parameters
    ----------
    stable : bool, optional
        Whether equal elements keep their order.

    >>> ad.argsort(ad.tensor([3.0, 1.0, 2.0]))
    tensor([1, 2, 0], dtype=int64)
    """
    return _sorting("argsort", x, axis, descending, stable, kind)


class TopK(NamedTuple):
    """Result of ``topk``: the elements and their indices."""

    values: Tensor
    indices: Tensor


@argument_doc
def topk(x: ArrayLike, k: int, axis: int = -1, *, largest: bool = True) -> TopK:
    """Return the ``k`` largest or smallest elements along an axis, sorted, and their indices.

    Of elements that are equal, the first are returned.

    Parameters
    ----------
    k : int
        How many elements.
    axis : int, optional
        The axis.
    largest : bool, optional
        Whether to return the largest instead of the smallest.

    Returns
    -------
    TopK
        A named tuple with ``values`` and ``indices``.

    Raises
    ------
    ShapeError
        If the axis has fewer than ``k`` elements.

    >>> ad.topk(ad.tensor([3.0, 9.0, 5.0]), 2).values
    tensor([9., 5.], dtype=float64)
    """
    x = asarray(x)
    where, wanted = canonical_axis("topk", axis, x.ndim), whole_number("topk", "k", k)
    if not 0 <= wanted <= x.shape[where]:
        raise ShapeError(
            f"topk: k must be from 0 to {x.shape[where]}, the length of axis {axis} of shape {x.shape}, but "
            f"is {k}."
        )
    i = rec.argtopk(x, k=wanted, axis=where, largest=bool(largest))
    return TopK(rec.take_along_axis(x, i, axis=where), i)


@_sorting_doc
def searchsorted(x1: ArrayLike, x2: ArrayLike, side: str = "left", sorter: Any = None) -> Tensor:
    """Return the indices at which to insert elements into a sorted vector so that it stays sorted.

    Parameters
    ----------
    x1 : array_like
        The sorted vector.
    x2 : array_like
        The elements to insert.
    side : {"left", "right"}, optional
        Whether to insert before ("left") or after ("right") equal elements.
    sorter : array_like of int, optional
        Indices that sort ``x1``, if it is not sorted.

    Raises
    ------
    ShapeError
        If ``x1`` is not a vector.

    >>> ad.searchsorted([1.0, 2.0, 3.0], [2.5, 0.0])
    tensor([2, 0], dtype=int64)
    """
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side must be 'left' or 'right', not {side!r}.")
    x1 = asarray(x1)
    if x1.ndim != 1:
        raise ShapeError(f"searchsorted: x1 must be a vector, but has shape {x1.shape}.")
    if sorter is not None:
        x1 = rec.take(x1, asarray(sorter), axis=-1)
    return rec.searchsorted(x1, asarray(x2), side=side)


# Medians and quantiles -------------------------------------------------------------------------

# NumPy's methods that interpolate: α and β in the position n q + α + q (1 - α - β) - 1 of the quantile q
_CONTINUOUS = {
    "linear": (1.0, 1.0), "hazen": (0.5, 0.5), "weibull": (0.0, 0.0), "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8), "interpolated_inverted_cdf": (0.0, 1.0),
}  # fmt: skip
_DISCRETE = ("lower", "higher", "midpoint", "nearest")


def sorted_last(op: str, x: Tensor, axis: Any) -> tuple[Tensor, Shape]:
    """Merge the axes ``axis`` of ``x`` into one last axis and sort along it.

    Return the sorted tensor, and the merged axes as a tuple of negative numbers.
    """
    if x.dtype.kind == "c":
        raise DTypeError(f"{op}: x must be real, but is complex: complex numbers have no order.")
    axes = canonical_axes(op, axis, x.ndim)
    n = reduced_count(x.shape, axes)
    if n == 0:
        raise ShapeError(
            f"{op}: there must be at least one element to choose from, but x has shape {x.shape}."
        )
    rest = tuple(a for a in range(-x.ndim, 0) if a not in axes)
    if axes != (-1,):
        x = rec.permute_dims(x, axes=rest + axes)
        x = rec.reshape(x, shape=(*x.shape[: len(rest)], n))
    return rec.sort(x, axis=-1, descending=False, stable=True), axes


def quantile_places(q: Any, n: Any, method: str) -> tuple[Any, Any, Any]:
    """Return the indices of the elements below and above each quantile, and the weight of the upper one.

    ``q`` are the levels of the quantiles, n is the number of sorted elements, and ``method`` is NumPy's name
    of the interpolation.
    """
    if method in _CONTINUOUS:
        a, b = _CONTINUOUS[method]
        place = n * q + a + q * (1 - a - b) - 1 if method != "linear" else (n - 1) * q
    else:
        place = (n - 1) * q
        if method == "lower":
            place = np.floor(place)
        elif method == "higher":
            place = np.ceil(place)
        elif method == "nearest":
            place = np.rint(place)
        else:
            place = 0.5 * (np.floor(place) + np.ceil(place))
    place = np.clip(place, 0, n - 1)
    low = np.floor(place).astype(np.intp)
    weight = place - low
    # if a quantile is exactly an element, use it twice with the weight ½, because 0 · inf would be NaN
    return low, np.where(weight == 0, low, low + 1), np.where(weight == 0, 0.5, weight)


quantiles_doc = reduction_doc.extended("""
    Parameters
    ----------
    method : str, optional
        How to interpolate, as in ``quantile``.

    Raises
    ------
    ArgumentError
        If ``q`` is out of range, or ``method`` unknown.
    """)


@quantiles_doc
def quantile(
    x: ArrayLike, q: ArrayLike, axis: Axis = None, *, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Return quantiles over axes; the axes of ``q`` come first.

    The two elements around a quantile share its gradient with the weights of the interpolation.  The result is
    NaN where an element is NaN.

    Parameters
    ----------
    q : array_like of float
        The levels of the quantiles, from 0 to 1.
    method : str, optional
        How to interpolate: a method of ``np.quantile``, except the discontinuous methods that select by
        rank.

    >>> ad.quantile(ad.tensor([4.0, 1.0, 2.0, 3.0]), [0.0, 0.5])
    tensor([1. , 2.5], dtype=float64)
    """
    return _quantile("quantile", x, q, axis, method, keepdims)


@quantiles_doc
def percentile(
    x: ArrayLike, q: ArrayLike, axis: Axis = None, *, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Return percentiles over axes; the axes of ``q`` come first.

    Parameters
    ----------
    q : array_like of float
        The levels of the percentiles, from 0 to 100.

    >>> ad.percentile(ad.tensor([1.0, 2.0, 3.0]), 50)
    tensor(2., dtype=float64)
    """
    return _quantile(
        "percentile", x, array_of(without_gradient("percentile", "q", q)) / 100, axis, method, keepdims
    )


def check_levels(op: str, q: Any, method: str) -> Any:
    """Return ``q``, the levels of quantiles, as an array; raise unless all are from 0 to 1.

    Also raise if ``method`` is not one of NumPy's methods.
    """
    if method not in _CONTINUOUS and method not in _DISCRETE:
        raise ArgumentError(
            f"{op}: method must be one of {', '.join((*_CONTINUOUS, *_DISCRETE))}, not {method!r}."
        )
    levels = array_of(without_gradient(op, "q", q)).astype(np.float64)
    wrong = levels[~((levels >= 0) & (levels <= 1))]
    if wrong.size:
        top = 100 if op.endswith("percentile") else 1
        raise ArgumentError(f"{op}: each value of q must be from 0 to {top}, but one is {wrong[0] * top:g}.")
    return levels


def _quantile(op: str, x: Any, q: Any, axis: Any, method: str, keepdims: bool) -> Tensor:
    x, levels = floating(op, x), check_levels(op, q, method)
    ordered, axes = sorted_last(op, x, axis)
    low, high, weight = quantile_places(levels, ordered.shape[-1], method)
    if x.dtype != np.float64:
        weight = weight.astype(x.dtype)
    below, above = (rec.take(ordered, asarray(i), axis=-1) for i in (low, high))
    out = below * asarray(1 - weight) + above * asarray(weight)
    last: Tensor = ordered[..., -1:]  # NaNs are sorted to the end
    last = rec.reshape(last, shape=(*last.shape[:-1], *(1,) * levels.ndim))
    out = rec.where(rec.isnan(last), last, out)
    if levels.ndim:
        lead = out.ndim - levels.ndim
        out = rec.permute_dims(
            out, axes=tuple(range(-levels.ndim, 0)) + tuple(range(-out.ndim, -out.ndim + lead))
        )
    if keepdims:
        kept = tuple(1 if a in axes else n for a, n in enumerate(x.shape, -x.ndim))
        out = rec.reshape(out, shape=(*levels.shape, *kept))
    return out


@reduction_doc
def median(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Return the median over axes; NaN where an element is NaN.

    The median of an even number of elements is the mean of the middle two, which share the gradient.

    >>> x = ad.tensor([4.0, 1.0, 3.0, 9.0], requires_grad=True)
    >>> ad.median(x).backward(); x.grad
    tensor([0.5, 0. , 0.5, 0. ], dtype=float64)
    """
    return _quantile("median", x, 0.5, axis, "linear", keepdims)
