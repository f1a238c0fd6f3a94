"""Cumulative sums, products and extremes along an axis, and differences of neighbours."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from adjoint.core.convert import asarray, weak_tensor
from adjoint.core.define import define
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.native import NotNative, Primitives, View
from adjoint.core.shapes import canonical_axis, whole_number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, DTypeError, ShapeError
from adjoint.ops.half import in_float32, widened
from adjoint.ops.reduce import floating, narrowed, typed
from adjoint.ops.shared_docs import argument_doc, flattened_doc
from adjoint.typing import Array, ArrayLike, Axis, DTypeLike

__all__ = [
    "cummax", "cummin", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "diff", "logcumsumexp",
]  # fmt: skip

_extremes_doc = argument_doc.extended("""
    Parameters
    ----------
    x : array_like
        The argument, real.

    Returns
    -------
    CumulativeExtreme
        A named tuple with ``values`` and ``indices``.
    """)


def _sums_ahead(xp: Namespace, g: Value, ahead: Value) -> Any:
    """Solve the recurrence S_i = g_i + a_i S_{i+1} along the last axis; ``ahead`` are the factors a_i.

    There are log₂(n) rounds of array operations, in which the distance of the combined elements doubles.
    """
    front, step = ((0, 0),) * (len(g.shape) - 1), 1
    while step < g.shape[-1]:
        g = g + ahead * xp.pad(g[..., step:], widths=(*front, (0, step)), value=0)
        ahead = ahead * xp.pad(ahead[..., step:], widths=(*front, (0, step)), value=0)
        step *= 2
    return g


def _cumprod_rule(xp: Namespace, g: Value, y: Value, x: Value, axis: int) -> Any:
    """Return the gradient of cumprod, dx_i = (Π_{k<i} x_k) S_i with S_i = g_i + x_{i+1} S_{i+1}."""
    if x.shape[axis] < 2:
        return g
    x, g = (xp.moveaxis(widened(xp, a), source=axis, destination=-1) for a in (x, g))
    front = ((0, 0),) * (len(x.shape) - 1)
    g = _sums_ahead(xp, g, xp.pad(x[..., 1:], widths=(*front, (0, 1)), value=0))
    before = xp.cumprod(xp.pad(x[..., :-1], widths=(*front, (1, 0)), value=1), axis=-1)
    return xp.moveaxis(before * g, source=-1, destination=axis)


def _argcummax(x: Array, axis: int, largest: bool) -> Any:
    """Return, for each position along ``axis``, the index of the maximum of the elements up to this position.

    If ``largest`` is False, return the indices of the minima.  Of equal elements, and of NaNs, the last one
    counts.
    """
    running = (np.maximum if largest else np.minimum).accumulate(x, axis=axis)
    place = np.arange(x.shape[axis]).reshape(-1, *(1,) * (-axis - 1))
    return np.maximum.accumulate(np.where((x == running) | (x != x), place, 0), axis=axis)


def _logcumsumexp_rule(xp: Namespace, g: Value, y: Value, x: Value, axis: int) -> Any:
    """Return the gradient of logcumsumexp, dx_i = exp(x_i - y_i) S_i.

    Here S_i = g_i + exp(y_i - y_{i+1}) S_{i+1}.  All factors are at most 1, so that nothing overflows.
    """
    own = xp.exp(xp.where(x == y, 0, x - y))  # x - y would be NaN for equal infinities
    if x.shape[axis] < 2:
        return g * own
    g, y = (xp.moveaxis(widened(xp, a), source=axis, destination=-1) for a in (g, y))
    now, later = y[..., :-1], y[..., 1:]
    front = ((0, 0),) * (len(y.shape) - 1)
    ahead = xp.pad(xp.exp(xp.where(now == later, 0, now - later)), widths=(*front, (0, 1)), value=0)
    return own * xp.moveaxis(_sums_ahead(xp, g, ahead), source=-1, destination=axis)


_FEW = 64  # elements: in native code, steps with more elements must be contiguous in memory


def _native_running(xp: Primitives, x: View, axis: int, op: str, start: float) -> View:
    """Return the cumulative sum or product of ``x`` along ``axis``; ``op`` combines two elements.

    ``start`` is the neutral element of ``op``: -0.0 for a sum changes no number, not even the sign of a zero.
    """
    x = xp.view(x)
    dtype = (np.cumsum if op == "add" else np.cumprod)(np.zeros(1, x.dtype)).dtype
    rows = xp.moveaxis(xp.cast(x, dtype), source=axis, destination=0)
    if not rows.size or (math.prod(rows.shape[1:]) > _FEW and axis % x.ndim):
        raise NotNative("a cumulative op of an empty array, or not along the first axis, has no native form")
    first = xp.full(rows.shape[1:], start if dtype.kind == "f" else abs(start), dtype)

    def body(xp: Primitives, carry: list[View], row: list[View], _: list[View]) -> Any:
        new = getattr(xp, op)(carry[0], row[0])
        return [new], [new]

    return xp.moveaxis(xp.loop(body, [first], [rows])[1], source=0, destination=axis)


define("cumsum", in_float32(lambda x, axis: np.cumsum(x, axis=axis)),
       lambda xp, g, y, x, axis: xp.flip(xp.cumsum(xp.flip(g, axis=(axis,)), axis=axis), axis=(axis,)),
       kind="linear", params=("axis",), batch="leading", method=True, lower=lambda xp, x, axis: _native_running(xp, x, axis, "add", -0.0), sparsity="running", doc="Cumulative sums along an axis.")  # fmt: skip
define("cumprod", in_float32(lambda x, axis: np.cumprod(x, axis=axis)), _cumprod_rule, saves="x", kind="general",
       params=("axis",), batch="leading", method=True, lower=lambda xp, x, axis: _native_running(xp, x, axis, "multiply", 1.0), doc="Cumulative products along an axis.")  # fmt: skip
define("logcumsumexp", in_float32(lambda x, axis: np.logaddexp.accumulate(x, axis=axis)), _logcumsumexp_rule, saves="yx",
       kind="general", params=("axis",), batch="leading", reference="formula", doc="The logarithms of the cumulative sums of exponentials along an axis.")  # fmt: skip
define("argcummax", _argcummax, None, kind="general", params=("axis", "largest"), batch="leading",
       reason="it is piecewise constant", reference="formula", doc="The indices of the cumulative maximum or minimum.")  # fmt: skip


def _scan(op: str, x: Tensor, axis: Any) -> Tensor:
    if axis is None:
        x, axis = rec.reshape(x, shape=(x.size,)), 0
    return getattr(rec, op)(x, axis=canonical_axis(op, axis, x.ndim))


@flattened_doc
def cumsum(x: ArrayLike, axis: Axis = None, dtype: DTypeLike | None = None) -> Tensor:
    """Return the cumulative sums along an axis.

    >>> ad.cumsum(ad.tensor([1.0, 2.0, 3.0]))
    tensor([1., 3., 6.], dtype=float64)
    """
    return narrowed(_scan("cumsum", typed("cumsum", x, dtype), axis), dtype)


@flattened_doc
def cumprod(x: ArrayLike, axis: Axis = None, dtype: DTypeLike | None = None) -> Tensor:
    """Return the cumulative products along an axis.

    Derivatives of every order are exact where elements are zero.

    >>> ad.cumprod(ad.tensor([1.0, 2.0, 3.0]))
    tensor([1., 2., 6.], dtype=float64)
    """
    return narrowed(_scan("cumprod", typed("cumprod", x, dtype), axis), dtype)


def _cumulative(op: str, x: Any, axis: Any, dtype: Any, initial: int | None) -> Tensor:
    name = {"cumsum": "cumulative_sum", "cumprod": "cumulative_prod"}[op]
    x = typed(name, x, dtype)
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(
                f"{name}: axis= is required for a tensor with {x.ndim} axes (shape {x.shape}).  Pass one of "
                "the axes."
            )
        axis = 0
    where = canonical_axis(name, axis, x.ndim)
    out = narrowed(getattr(rec, op)(x, axis=where), dtype)
    if initial is None:
        return out
    first = np.full(
        (*out.shape[:where], 1, *(out.shape[where + 1 :] if where < -1 else ())), initial, out.dtype
    )
    return rec.concat(asarray(first), out, axis=where)


@flattened_doc
def cumulative_sum(
    x: ArrayLike, *, axis: Axis = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Tensor:
    """Return the cumulative sums along an axis, as the Array API defines it.

    Parameters
    ----------
    axis : int, optional
        The axis; it may be omitted for vectors only.
    include_initial : bool, optional
        Whether the result begins with an additional 0.

    Raises
    ------
    ShapeError
        If ``axis`` is missing and ``x`` is not a vector.

    >>> ad.cumulative_sum(ad.tensor([1.0, 2.0, 3.0]), include_initial=True)
    tensor([0., 1., 3., 6.], dtype=float64)
    """
    return _cumulative("cumsum", x, axis, dtype, 0 if include_initial else None)


@flattened_doc
def cumulative_prod(
    x: ArrayLike, *, axis: Axis = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Tensor:
    """Return the cumulative products along an axis, as the Array API defines it.

    Derivatives of every order are exact where elements are zero.

    Parameters
    ----------
    axis : int, optional
        The axis; it may be omitted for vectors only.
    include_initial : bool, optional
        Whether the result begins with an additional 1.

    Raises
    ------
    ShapeError
        If ``axis`` is missing and ``x`` is not a vector.

    >>> ad.cumulative_prod(ad.tensor([2.0, 3.0]), include_initial=True)
    tensor([1., 2., 6.], dtype=float64)
    """
    return _cumulative("cumprod", x, axis, dtype, 1 if include_initial else None)


@flattened_doc
def logcumsumexp(x: ArrayLike, axis: Axis = None) -> Tensor:
    """Return the logarithms of the cumulative sums of exponentials along an axis, without overflow.

    Parameters
    ----------
    x : array_like
        The argument, real.

    Raises
    ------
    DTypeError
        If ``x`` is complex.

    >>> ad.logcumsumexp(ad.tensor([1000.0, 1000.0])).tolist() == [1000.0, 1000.0 + ad.log(2.0).item()]
    True
    """
    x = floating("logcumsumexp", x)
    if x.dtype.kind == "c":
        raise DTypeError(f"logcumsumexp: x must be real, but has dtype {x.dtype}.")
    return _scan("logcumsumexp", x, axis)


class CumulativeExtreme(NamedTuple):
    """Result of ``cummax`` and ``cummin``: the elements and their indices."""

    values: Tensor
    indices: Tensor


@_extremes_doc
def cummax(x: ArrayLike, axis: int = -1) -> CumulativeExtreme:
    """Return the cumulative maxima along an axis, and where they are.

    The gradient of a maximum flows to its index.  Of equal elements this is the last one, as in PyTorch.

    >>> values, indices = ad.cummax(ad.tensor([1.0, 3.0, 2.0]))
    >>> values, indices
    (tensor([1., 3., 3.], dtype=float64), tensor([0, 1, 1], dtype=int64))
    """
    return _extremes("cummax", x, axis, True)


@_extremes_doc
def cummin(x: ArrayLike, axis: int = -1) -> CumulativeExtreme:
    """Return the cumulative minima along an axis, and where they are.

    The gradient of a minimum flows to its index.  Of equal elements this is the last one, as in PyTorch.

    >>> ad.cummin(ad.tensor([2.0, 3.0, 1.0])).values
    tensor([2., 2., 1.], dtype=float64)
    """
    return _extremes("cummin", x, axis, False)


def _extremes(op: str, x: Any, axis: Any, largest: bool) -> CumulativeExtreme:
    x = asarray(x)
    if x.dtype.kind == "c":
        raise DTypeError(f"{op}: x must be real, but is complex: complex numbers have no order.")
    where = canonical_axis(op, axis, x.ndim)
    i = rec.argcummax(x, axis=where, largest=largest)
    return CumulativeExtreme(rec.take_along_axis(x, i, axis=where), i)


@flattened_doc
def diff(
    x: ArrayLike,
    n: int = 1,
    axis: int = -1,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
) -> Tensor:
    """Return the differences of neighbours along an axis.

    Parameters
    ----------
    n : int, optional
        How many times to take differences; 0 returns ``x``.
    axis : int, optional
        The axis.
    prepend : array_like, optional
        Elements to join to the start of ``x`` first.
    append : array_like, optional
        Elements to join to the end of ``x`` first.

    Returns
    -------
    Tensor
        The differences; the axis gets shorter by one each time.

    Raises
    ------
    ShapeError
        If ``prepend`` or ``append`` does not match the shape of ``x``.

    >>> ad.diff(ad.tensor([1.0, 4.0, 9.0, 16.0]), n=2)
    tensor([2., 2.], dtype=float64)
    """
    x = asarray(x)
    times = whole_number("diff", "n", n)
    if times < 0:
        raise ArgumentError(f"diff: n must not be negative, but is {n}.")
    where = canonical_axis("diff", axis, x.ndim)
    if not times:
        return x  # prepend and append are ignored, as in NumPy
    parts = [_end(x, prepend, where), x, _end(x, append, where)]
    if prepend is not None or append is not None:
        x = rec.concat(*(part for part in parts if part is not None), axis=where)
    tail = (slice(None),) * (-where - 1)
    subtract = rec.not_equal if x.dtype == bool else rec.subtract
    for _ in range(times):
        x = subtract(x[(Ellipsis, slice(1, None), *tail)], x[(Ellipsis, slice(None, -1), *tail)])
    return x


def _end(x: Tensor, end: Any, axis: int) -> Tensor | None:
    """Return ``end``, the argument ``prepend`` or ``append`` of ``diff``, as a tensor to join to ``x``.

    A number becomes a slice of length 1 along ``axis``; None is returned unchanged.
    """
    if end is None:
        return None
    end = weak_tensor(end, x.dtype)
    if end.ndim == 0:
        shape = list(x.shape)
        shape[axis] = 1
        return rec.broadcast_to(end, shape=tuple(shape))
    lengths = [(m, n) for i, (m, n) in enumerate(zip(end.shape, x.shape, strict=False), -x.ndim) if i != axis]
    if end.ndim != x.ndim or any(m != n for m, n in lengths):
        raise ShapeError(
            f"diff: prepend and append must have the shape of x, {x.shape}, except along axis {axis}, but "
            f"one has shape {end.shape}."
        )
    return end
