"""Reductions over axes: sums, means, products, moments, logsumexp, any and all.

In the ops, ``axis`` is a tuple of negative numbers, which stay valid if a batch axis is added in front.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.infer import real_dtype, reduction
from adjoint.core.namespace import Namespace, Value, raw, rec
from adjoint.core.native import NotNative, Primitives, View
from adjoint.core.shapes import Shape, canonical_axes
from adjoint.core.tensor import Tensor
from adjoint.errors import DTypeError, InputError, ShapeError
from adjoint.ops.half import in_float32, is_half, wide, widened
from adjoint.ops.shared_docs import reduction_doc, truth_doc
from adjoint.typing import Array, ArrayLike, Axis, DTypeLike

__all__ = ["all", "any", "average", "count_nonzero", "logsumexp", "mean", "prod", "std", "sum", "var"]

_moments_doc = reduction_doc.extended("""
    Parameters
    ----------
    dtype : dtype, optional
        The dtype to compute in; integers become float64 by default.
    correction : float, optional
        The number subtracted from the count n in the divisor.
    ddof : float, optional
        NumPy's name for ``correction``; used instead of it if given.
    """)

_HALF = ("float16", "bfloat16")
_add_reduce: Any = np.add.reduce  # faster than np.sum, which is a Python function that calls it
_silent: Any = {"divide": "ignore", "invalid": "ignore"}


def _like(y: Array, x: Array) -> Any:
    return y if y.dtype == x.dtype or x.dtype.name not in _HALF else y.astype(x.dtype)


def reduced_count(shape: Shape, axis: Shape) -> int:
    """Return the number of elements that are reduced to one: the product of the lengths along ``axis``."""
    total = 1
    for a in axis:
        total *= shape[a]
    return total


def kept(xp: Namespace, g: Value, x: Value, axis: Shape, keepdims: bool) -> Any:
    """Return ``g``, the gradient of a reduction of ``x``, with an axis of length 1 for each reduced axis."""
    if keepdims or not axis:
        return g
    shape = list(x.shape)
    for a in axis:
        shape[a] = 1
    return xp.reshape(g, shape=tuple(shape))


# The ops ---------------------------------------------------------------------------------------


def _sum_forward(x: Array, axis: Shape, keepdims: bool) -> Any:
    if x.dtype.itemsize != 2:
        return _add_reduce(x, axis, None, None, keepdims)
    return _like(_add_reduce(wide(x), axis=axis, keepdims=keepdims), x)


def _spread(xp: Namespace, g: Value, y: Value, x: Value, axis: Shape, keepdims: bool) -> Any:
    if not g.shape:  # all axes were reduced
        return xp.broadcast_to(g, shape=x.shape)
    return xp.broadcast_to(kept(xp, g, x, axis, keepdims), shape=x.shape)


def _mean_forward(x: Array, axis: Shape, keepdims: bool) -> Any:
    """Return the mean over ``axis``, faster than ``np.mean``; the mean of no elements is NaN."""
    n = reduced_count(x.shape, axis)
    if n and x.dtype.itemsize != 2:
        return _add_reduce(x, axis, None, None, keepdims) / n
    total = _add_reduce(wide(x), axis=axis, keepdims=keepdims)
    if n:
        return _like(total / n, x)
    with np.errstate(**_silent):
        return _like(total / n, x)


def _mean_rule(xp: Namespace, g: Value, y: Value, x: Value, axis: Shape, keepdims: bool) -> Any:
    # divide in float32, because the count may be larger than 65504, the largest float16
    return _spread(xp, widened(xp, g) / reduced_count(x.shape, axis), y, x, axis, keepdims)


def _var_forward(x: Array, axis: Shape, correction: float, keepdims: bool) -> Any:
    n = reduced_count(x.shape, axis)
    if n and n > correction:
        return _like(_squares(wide(x), n, axis, keepdims) / (n - correction), x)
    with np.errstate(**_silent):
        return _like(_squares(wide(x), n, axis, keepdims) / 0.0, x)


def _squares(x: Array, n: int, axis: Shape, keepdims: bool) -> Any:
    """Return the real sum Σ |x - mean|² over ``axis``; n is the number of elements along ``axis``."""
    away = x - _add_reduce(x, axis=axis, keepdims=True) / n
    square = away.real**2 + away.imag**2 if x.dtype.kind == "c" else away * away
    return _add_reduce(square, axis=axis, keepdims=keepdims)


def _over(x: Array, axis: Shape, correction: float) -> float:
    n = reduced_count(x.shape, axis) - correction
    return 1.0 / n if n > 0 else float("nan")


def _var_rule(
    xp: Namespace, g: Value, y: Value, x: Value, axis: Shape, correction: float, keepdims: bool
) -> Any:
    x = widened(xp, x)
    away = x - xp.mean(x, axis=axis, keepdims=True)
    return kept(xp, widened(xp, g), x, axis, keepdims) * (2.0 * _over(x, axis, correction)) * away


def _std_rule(
    xp: Namespace, g: Value, y: Value, x: Value, axis: Shape, correction: float, keepdims: bool
) -> Any:
    """Return g (x - mean) / ((n - correction) σ), the gradient of x for its standard deviation σ.

    It is 0 where σ is 0.
    """
    x, g, y = widened(xp, x), widened(xp, g), widened(xp, y)
    sigma = kept(xp, y, x, axis, keepdims)
    corner = sigma == 0
    scale = xp.where(corner, 0, kept(xp, g, x, axis, keepdims)) / xp.where(corner, 1, sigma)
    away = x - xp.mean(x, axis=axis, keepdims=True)
    return scale * _over(x, axis, correction) * away


def _logsumexp(xp: Namespace, x: Value, axis: Shape, keepdims: bool) -> Any:
    """Return m + log Σ exp(x - m) with m = max x, or m = 0 where the maximum is infinite."""
    top = xp.max(x, axis=axis, keepdims=True)
    top = xp.where(xp.isfinite(top), top, 0)
    total = xp.sum(xp.exp(x - top), axis=axis, keepdims=True)
    # if all elements are -inf, the result is log 0 = -inf, without a warning
    y = xp.where(total == 0, -np.inf, xp.log(xp.where(total == 0, 1, total)) + top)
    if keepdims or not axis:
        return y
    shape = tuple(n for a, n in enumerate(x.shape, -x.ndim) if a not in axis)
    return xp.reshape(y, shape=shape)


def _shares(xp: Namespace, x: Value, axis: Shape) -> Any:
    """Return the softmax of x over ``axis``: exp(x - m) / Σ exp(x - m) with m = max x.

    If all elements are -inf, the result is 0.  If m is +inf, the infinite elements get equal shares.  The
    formula exp(x - logsumexp(x)) would be inaccurate for large x.
    """
    top = xp.max(x, axis=axis, keepdims=True)
    e = xp.exp(xp.where(x == top, 0, x - xp.where(xp.isinf(top), 0, top)))
    e = xp.where(top == -np.inf, 0, xp.where(xp.logical_and(top == np.inf, x != top), 0, e))
    total = xp.sum(e, axis=axis, keepdims=True)
    return e / xp.where(total == 0, 1, total)


def _shares_of_arrays(x: Array, axis: Shape) -> Any:
    top = np.maximum.reduce(x, axis=axis, keepdims=True, initial=-np.inf)
    if not np.isfinite(top).all():
        return _shares(raw, x, axis)
    e = np.exp(x - top)
    e /= _add_reduce(e, axis=axis, keepdims=True)
    return e


def _shares_rule(xp: Namespace, g: Value, y: Value, x: Value, axis: Shape) -> Any:
    """Return y (g - Σ g y), the gradient of softmax.

    The Jacobian is symmetric, so forward mode uses the same formula.
    """
    gy = g * y
    return gy - y * xp.sum(gy, axis=axis, keepdims=True)


def exclusive_product(xp: Namespace, x: Value, axis: int) -> Any:
    """Return, for each element, the product of all other elements along ``axis``, without division.

    The elements are the leaves of a binary tree.  On the way up, the product of the leaves below each node is
    computed; on the way down, the product of all leaves that are not below it.  This is exact if elements are
    zero, takes linear time, and uses only ops, so derivatives of every order are exact.
    """
    x = xp.moveaxis(widened(xp, x), source=axis, destination=-1)
    levels = []
    while x.shape[-1] > 1:
        n = x.shape[-1]
        if n % 2:
            x = xp.pad(x, widths=((0, 0),) * (len(x.shape) - 1) + ((0, 1),), value=1)
        left, right = x[..., 0::2], x[..., 1::2]
        levels.append((left, right, n))
        x = left * right
    outside = xp.ones_like(x)
    for left, right, n in reversed(levels):
        both = (outside * right, outside * left)
        pairs = xp.stack(*both, axis=-1)
        outside = xp.reshape(pairs, shape=(*pairs.shape[:-2], 2 * pairs.shape[-2]))[..., :n]
    return xp.moveaxis(outside, source=-1, destination=axis)


def _prod_rule(xp: Namespace, g: Value, y: Value, x: Value, axis: Shape, keepdims: bool) -> Any:
    others = exclusive_product(xp, x, axis[0]) if axis else xp.ones_like(x)
    return kept(xp, g, x, axis, keepdims) * others


def _total_dtype(dtype: Any) -> Any:
    """Return the dtype of a sum of elements of ``dtype``; integers are summed in 64 bits, as in NumPy."""
    return _add_reduce(np.zeros(1, dtype)).dtype if dtype.kind in "biu" else dtype


def _mean_dtype(dtype: Any) -> Any:
    return np.dtype(np.float64) if dtype.kind in "biu" else dtype


def _var_dtype(dtype: Any) -> Any:
    return real_dtype(_mean_dtype(dtype))


def _float_dtype(dtype: Any) -> Any:
    return None if dtype.kind in "biuc" else dtype


_WHETHER = reduction(lambda _: np.dtype(bool))


def _sum_phrase(i: Any, target: str, x: str) -> list[str] | None:
    if i.args[0].dtype.itemsize == 2:
        return None
    return [f"total({x}, {i.params['axis']!r}, None, None, {i.params['keepdims']!r})"]


def _native_sum(xp: Primitives, x: View, axis: Shape, keepdims: bool) -> View:
    x = xp.view(x)
    total = _total_dtype(x.dtype)
    return xp.reduced("sum", xp.cast(x, total), axis, keepdims, total)


def _native_mean(xp: Primitives, x: View, axis: Shape, keepdims: bool) -> View:
    n = reduced_count(x.shape, axis)
    if not n:
        raise NotNative("the mean over an empty axis has no native form")
    return _native_sum(xp, x, axis, keepdims) / n


def _native_prod(xp: Primitives, x: View, axis: Shape, keepdims: bool) -> View:
    total = _total_dtype(x.dtype)
    return xp.reduced("prod", xp.cast(x, total), axis, keepdims, total)


def _native_var(xp: Primitives, x: View, axis: Shape, correction: float, keepdims: bool) -> View:
    n = reduced_count(x.shape, axis)
    if not n or n <= correction:
        raise NotNative("the variance of too few numbers has no native form")
    away = x - _native_mean(xp, x, axis, True)
    return _native_sum(xp, away * away, axis, keepdims) / (n - correction)


def _native_std(xp: Primitives, x: View, axis: Shape, correction: float, keepdims: bool) -> View:
    return xp.sqrt(_native_var(xp, x, axis, correction, keepdims))


def _native_whether(op: str) -> Callable[..., View]:
    """Return the native form of ``any``, which is a maximum (``op`` "max"), or of ``all`` ("min")."""
    bools = np.dtype(bool)
    return lambda xp, x, axis, keepdims: xp.reduced(
        op, x if x.dtype == bools else x != 0, axis, keepdims, bools
    )


define("sum", _sum_forward, _spread, kind="linear", shape=reduction(_total_dtype), params=("axis", "keepdims"),
       domain={"axis": (-1,), "keepdims": False}, batch="leading", method=True, lower=_native_sum, phrase=_sum_phrase, memory="new", sparsity="axis", doc="The sum over axes.")  # fmt: skip
define("mean", _mean_forward, _mean_rule, kind="linear", shape=reduction(_mean_dtype), params=("axis", "keepdims"),
       batch="leading", method=True, lower=_native_mean, memory="new", sparsity="axis", doc="The mean over axes.")  # fmt: skip
define("prod", in_float32(lambda x, axis, keepdims: np.multiply.reduce(x, axis=axis, keepdims=keepdims)),
       _prod_rule, saves="x", kind="general", shape=reduction(_total_dtype), params=("axis", "keepdims"), batch="leading", method=True, lower=_native_prod, doc="The product over one axis.")  # fmt: skip
define("var", _var_forward, _var_rule, saves="x", kind="general", shape=reduction(_var_dtype), params=("axis", "correction", "keepdims"),
       batch="leading", method=True, lower=_native_var, doc="The variance over axes.")  # fmt: skip
define("std", in_float32(lambda x, axis, correction, keepdims: np.sqrt(_var_forward(x, axis, correction, keepdims))),
       _std_rule, saves="xy", kind="general", shape=reduction(_var_dtype), params=("axis", "correction", "keepdims"),
       batch="leading", method=True, lower=_native_std, doc="The standard deviation over axes.")  # fmt: skip
define("logsumexp", in_float32(_logsumexp, raw), lambda xp, g, y, x, axis, keepdims: kept(xp, g, x, axis, keepdims) * xp.shares(x, axis=axis),
       saves="x", kind="general", fused=_logsumexp, shape=reduction(_float_dtype, empty=False), params=("axis", "keepdims"),
       jvp=lambda xp, t, y, x, axis, keepdims: xp.sum(t * xp.shares(x, axis=axis), axis=axis, keepdims=keepdims),
       batch="leading", method=True, reference="formula", doc="The logarithm of the sum of exponentials over axes.")  # fmt: skip

define("shares", in_float32(_shares_of_arrays), _shares_rule, jvp=_shares_rule, saves="y", kind="general", fused=_shares,
       params=("axis",), reference="formula", doc="exp(x) / Σ exp(x) over axes: the gradient of logsumexp.")  # fmt: skip

_WHY = "it is piecewise constant"
define("any", lambda x, axis, keepdims: np.any(x, axis=axis, keepdims=keepdims), None, kind="general",
       shape=_WHETHER, params=("axis", "keepdims"), reason=_WHY, batch="leading", method=True, lower=_native_whether("max"), doc="Whether any element is true.")  # fmt: skip
define("all", lambda x, axis, keepdims: np.all(x, axis=axis, keepdims=keepdims), None, kind="general",
       shape=_WHETHER, params=("axis", "keepdims"), reason=_WHY, batch="leading", method=True, lower=_native_whether("min"), doc="Whether all elements are true.")  # fmt: skip
# Public functions ------------------------------------------------------------------------------


def typed(op: str, x: Any, dtype: Any = None) -> Tensor:
    """Return the argument ``x`` as a tensor, cast to ``dtype`` unless that is None."""
    if dtype is None:
        return asarray(x)
    if isinstance(dtype, bool):
        raise InputError(
            f"{op}: dtype must be a dtype, but is {dtype}.  If you mean keepdims, pass keepdims={dtype}."
        )
    return asarray(x, dtype=dtype)


def narrowed(y: Tensor, dtype: Any) -> Tensor:
    """Return ``y``, a sum or product, cast to ``dtype`` unless that is None.

    Integers were added in a wider dtype.  The cast gives the same value as a sum in ``dtype``, because
    integer overflow wraps around.
    """
    return y if dtype is None or y.dtype == dtype else rec.astype(y, dtype=np.dtype(dtype))


def floating(op: str, x: Any, dtype: Any = None) -> Tensor:
    """Return the argument ``x`` as a float or complex tensor, cast to ``dtype``; integers become float64."""
    x = typed(op, x, dtype)
    return rec.astype(x, dtype=np.dtype(np.float64)) if x.dtype.kind in "iub" else x


@reduction_doc
def sum(x: ArrayLike, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> Tensor:
    """Add the elements over axes.

    Sums of float16 and bfloat16 are computed in float32.  Small integers are added as int64.

    >>> ad.sum(ad.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    tensor([4., 6.], dtype=float64)
    """
    if dtype is not None or type(x) is not Tensor:
        x = typed("sum", x, dtype)
    out: Tensor = rec.sum(x, axis=canonical_axes("sum", axis, len(x._data.shape)), keepdims=bool(keepdims))
    return out if dtype is None else narrowed(out, dtype)


@_moments_doc
def mean(
    x: ArrayLike, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False
) -> Tensor:
    """Return the mean over axes; the mean of no elements is NaN.

    >>> ad.mean(ad.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=1)
    tensor([1.5, 3.5], dtype=float64)
    """
    if dtype is not None or type(x) is not Tensor or x._data.dtype.kind in "iub":
        x = floating("mean", x, dtype)
    return rec.mean(x, axis=canonical_axes("mean", axis, len(x._data.shape)), keepdims=bool(keepdims))


@_moments_doc
def average(
    x: ArrayLike,
    axis: Axis = None,
    weights: ArrayLike | None = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Any:
    """Return the weighted mean ``Σ w x / Σ w`` over axes.

    Gradients flow to the elements and to the weights.

    Parameters
    ----------
    weights : array_like, optional
        The weights, with the shape of ``x`` or the lengths of ``axis``; all equal by default.
    returned : bool, optional
        Whether to return the sum of the weights, too.

    Returns
    -------
    Tensor or tuple of Tensor
        The mean; with ``returned`` the mean and the sum of the weights.

    Raises
    ------
    ShapeError
        If the weights have neither the shape of ``x`` nor that of ``axis``.

    >>> ad.average(ad.tensor([1.0, 5.0]), weights=ad.tensor([3.0, 1.0]))
    tensor(2., dtype=float64)
    """
    x = floating("average", x)
    if is_half(x):  # compute in float32, because the sums may overflow float16
        w = x if weights is None else floating("average", weights)
        dtype = np.result_type(x.dtype, w.dtype)
        wider = average(widened(rec, x), axis, weights, returned, keepdims=keepdims)
        return tuple(narrowed(y, dtype) for y in wider) if returned else narrowed(wider, dtype)
    axes = canonical_axes("average", axis, x.ndim)
    if weights is None:
        out = rec.mean(x, axis=axes, keepdims=bool(keepdims))
        return (out, rec.ones_like(out) * reduced_count(x.shape, axes)) if returned else out
    w = widened(rec, floating("average", weights))
    if w.shape != x.shape:
        if w.shape != tuple(x.shape[a] for a in axes):
            raise ShapeError(
                f"average: the weights must have the shape of x, {x.shape}, or that of its axis {axis}, but "
                f"have shape {w.shape}.\n"
                "  Pass one weight per element, or one per element along axis=."
            )
        w = rec.reshape(w, shape=tuple(x.shape[a] if a in axes else 1 for a in range(-x.ndim, 0)))
        w = rec.broadcast_to(w, shape=x.shape)
    total = rec.sum(w, axis=axes, keepdims=bool(keepdims))
    out = rec.sum(rec.multiply(x, w), axis=axes, keepdims=bool(keepdims)) / total
    return (out, total) if returned else out


@reduction_doc
def prod(
    x: ArrayLike, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False
) -> Tensor:
    """Multiply the elements over axes.

    Derivatives of every order are exact where elements are zero.

    >>> x = ad.tensor([0.0, 2.0, 3.0], requires_grad=True)
    >>> ad.prod(x).backward(); x.grad
    tensor([6., 0., 0.], dtype=float64)
    """
    x = typed("prod", x, dtype)
    axes = canonical_axes("prod", axis, x.ndim)
    if len(axes) == 1:
        return narrowed(rec.prod(x, axis=axes, keepdims=bool(keepdims)), dtype)
    # several axes: merge them into one last axis
    rest = tuple(a for a in range(-x.ndim, 0) if a not in axes)
    flat = rec.permute_dims(x, axes=rest + axes) if axes else x
    lengths = tuple(x.shape[a] for a in rest)
    flat = rec.reshape(flat, shape=(*lengths, reduced_count(x.shape, axes)))
    out = narrowed(rec.prod(flat, axis=(-1,), keepdims=False), dtype)
    if keepdims:
        out = rec.reshape(out, shape=tuple(1 if a in axes else x.shape[a] for a in range(-x.ndim, 0)))
    return out


def _moment(name: str, x: Any, axis: Any, dtype: Any, correction: Any, ddof: Any, keepdims: bool) -> Tensor:
    x = floating(name, x, dtype)
    divisor = correction if ddof is None else ddof
    if not isinstance(divisor, (int, float, np.integer, np.floating)):
        raise InputError(f"{name}: correction must be a number, but got {divisor!r}.")
    axes = canonical_axes(name, axis, x.ndim)
    # a Python float, because a NumPy number would make float32 results float64
    return getattr(rec, name)(x, axis=axes, correction=float(divisor), keepdims=bool(keepdims))


@_moments_doc
def var(
    x: ArrayLike, axis: Axis = None, dtype: DTypeLike | None = None, *,
    correction: float = 0, ddof: float | None = None, keepdims: bool = False,
) -> Tensor:  # fmt: skip
    """Return the variance over axes, ``Σ |x - mean|² / (n - correction)``.

    It is real for complex numbers, and NaN where ``n - correction`` is not positive.

    >>> ad.var(ad.tensor([1.0, 2.0, 3.0]), correction=1)
    tensor(1., dtype=float64)
    """
    return _moment("var", x, axis, dtype, correction, ddof, keepdims)


@_moments_doc
def std(
    x: ArrayLike, axis: Axis = None, dtype: DTypeLike | None = None, *,
    correction: float = 0, ddof: float | None = None, keepdims: bool = False,
) -> Tensor:  # fmt: skip
    """Return the standard deviation over axes, the square root of ``var``.

    Where it is 0, its gradient is 0.

    >>> ad.std(ad.tensor([1.0, 3.0]))
    tensor(1., dtype=float64)
    """
    return _moment("std", x, axis, dtype, correction, ddof, keepdims)


@reduction_doc
def logsumexp(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Return ``log Σ exp(x)`` over axes, without overflow.

    If all elements are -inf, the result is -inf and the gradient 0.  If the result is +inf, the infinite
    elements share the gradient.

    Raises
    ------
    DTypeError
        If ``x`` is complex.

    >>> ad.logsumexp(ad.tensor([1000.0, 1000.0]))
    tensor(1000.69314718, dtype=float64)
    """
    x = floating("logsumexp", x)
    if x.dtype.kind == "c":
        raise DTypeError(f"logsumexp: x must be real, but has dtype {x.dtype}.")
    axes = canonical_axes("logsumexp", axis, x.ndim)
    if reduced_count(x.shape, axes) == 0:  # the logarithm of an empty sum is -inf
        return rec.sum(x, axis=axes, keepdims=bool(keepdims)) - np.inf
    return rec.logsumexp(x, axis=axes, keepdims=bool(keepdims))


@truth_doc
def any(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Return whether any element over axes is true.

    >>> ad.any(ad.tensor([[0, 0], [0, 2]]), axis=1)
    tensor([False,  True], dtype=bool)
    """
    x = asarray(x)
    return rec.any(x, axis=canonical_axes("any", axis, x.ndim), keepdims=bool(keepdims))


@truth_doc
def all(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Return whether all elements over axes are true.

    >>> ad.all(ad.tensor([[1, 1], [0, 2]]), axis=1)
    tensor([ True, False], dtype=bool)
    """
    x = asarray(x)
    return rec.all(x, axis=canonical_axes("all", axis, x.ndim), keepdims=bool(keepdims))


@reduction_doc
def count_nonzero(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Count the elements over axes that are not zero.

    Returns
    -------
    Tensor
        The counts, which have no gradient.

    >>> ad.count_nonzero(ad.tensor([0.0, 1.5, 2.5]))
    tensor(2, dtype=int64)
    """
    x = asarray(x)
    return rec.sum(
        rec.not_equal(x, 0), axis=canonical_axes("count_nonzero", axis, x.ndim), keepdims=bool(keepdims)
    )
