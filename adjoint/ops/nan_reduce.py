"""Reductions that ignore NaN: sums, means, products, extremes and quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.convert import array_of
from adjoint.core.namespace import rec
from adjoint.core.shapes import without_gradient
from adjoint.core.tensor import Tensor
from adjoint.ops.extremes import extreme
from adjoint.ops.half import widened
from adjoint.ops.order import check_levels, quantile_places, quantiles_doc, sorted_last
from adjoint.ops.reduce import all, floating, mean, narrowed, prod, sum, typed
from adjoint.ops.shared_docs import extreme_doc, reduction_doc
from adjoint.typing import ArrayLike, Axis, DTypeLike

__all__ = ["nanmax", "nanmean", "nanmedian", "nanmin", "nanpercentile", "nanprod", "nanquantile", "nansum"]


def _without_nan(op: str, x: Any, fill: float, dtype: Any = None) -> tuple[Tensor, Tensor | None]:
    """Return ``x`` with NaNs replaced by ``fill``, and a mask of the NaNs (None for integers)."""
    x = typed(op, x, dtype)
    if x.dtype.kind in "iub":
        return x, None
    missing: Tensor = rec.isnan(x)
    return rec.where(missing, fill, x), missing


@reduction_doc
def nansum(
    x: ArrayLike, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False
) -> Tensor:
    """Add the elements over axes that are not NaN.

    The gradient of a NaN is 0.

    >>> ad.nansum(ad.tensor([1.0, float("nan"), 2.0]))
    tensor(3., dtype=float64)
    """
    return sum(_without_nan("nansum", x, 0, dtype)[0], axis, dtype, keepdims=keepdims)


@reduction_doc
def nanprod(
    x: ArrayLike, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False
) -> Tensor:
    """Multiply the elements over axes that are not NaN.

    The gradient of a NaN is 0.

    >>> ad.nanprod(ad.tensor([3.0, float("nan"), 2.0]))
    tensor(6., dtype=float64)
    """
    return prod(_without_nan("nanprod", x, 1, dtype)[0], axis, dtype, keepdims=keepdims)


@reduction_doc
def nanmean(
    x: ArrayLike, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False
) -> Tensor:
    """Return the mean over axes of the elements that are not NaN; NaN where there are none.

    The gradient of a NaN is 0.

    Parameters
    ----------
    dtype : dtype, optional
        The dtype to compute in; integers become float64 by default.

    >>> ad.nanmean(ad.tensor([3.0, float("nan"), 1.0]))
    tensor(2., dtype=float64)
    """
    filled, missing = _without_nan("nanmean", x, 0, dtype)
    if missing is None:
        return mean(filled, axis, keepdims=keepdims)
    present = sum(rec.logical_not(missing), axis, keepdims=keepdims)
    wider = widened(rec, filled)
    total = sum(wider, axis, keepdims=keepdims)
    y = rec.where(present == 0, np.nan, total / rec.maximum(present, 1).astype(wider.dtype))
    return narrowed(y, filled.dtype)


def _nan_extreme(name: str, x: Any, axis: Any, keepdims: bool, fill: float) -> Tensor:
    filled, missing = _without_nan(f"nan{name}", x, fill)
    out = extreme(name, filled, axis, keepdims)
    return out if missing is None else rec.where(all(missing, axis, keepdims=keepdims), np.nan, out)


@extreme_doc
def nanmax(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Return the maximum over axes of the elements that are not NaN; NaN where there are none.

    >>> ad.nanmax(ad.tensor([3.0, float("nan"), 1.0]))
    tensor(3., dtype=float64)
    """
    return _nan_extreme("max", x, axis, keepdims, -np.inf)


@extreme_doc
def nanmin(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Return the minimum over axes of the elements that are not NaN; NaN where there are none.

    >>> ad.nanmin(ad.tensor([3.0, float("nan"), 1.0]))
    tensor(1., dtype=float64)
    """
    return _nan_extreme("min", x, axis, keepdims, np.inf)


@quantiles_doc
def nanquantile(
    x: ArrayLike, q: ArrayLike, axis: Axis = None, *, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Return quantiles over axes of the elements that are not NaN.

    Parameters
    ----------
    q : array_like of float
        The levels of the quantiles, from 0 to 1.

    Returns
    -------
    Tensor
        The quantiles; the axes of ``q`` come first.  NaN where all elements are NaN.

    >>> ad.nanquantile(ad.tensor([4.0, float("nan"), 2.0, 3.0]), [0.0, 0.5])
    tensor([2., 3.], dtype=float64)
    """
    return _nanquantile("nanquantile", x, q, axis, method, keepdims)


@quantiles_doc
def nanpercentile(
    x: ArrayLike, q: ArrayLike, axis: Axis = None, *, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Return percentiles over axes of the elements that are not NaN.

    Parameters
    ----------
    q : array_like of float
        The levels of the percentiles, from 0 to 100.

    Returns
    -------
    Tensor
        The percentiles; the axes of ``q`` come first.  NaN where all elements are NaN.

    >>> ad.nanpercentile(ad.tensor([1.0, float("nan"), 3.0]), 50)
    tensor(2., dtype=float64)
    """
    levels = array_of(without_gradient("nanpercentile", "q", q)) / 100
    return _nanquantile("nanpercentile", x, levels, axis, method, keepdims)


@reduction_doc
def nanmedian(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Return the median over axes of the elements that are not NaN; NaN where there are none.

    >>> ad.nanmedian(ad.tensor([4.0, float("nan"), 2.0]))
    tensor(3., dtype=float64)
    """
    return _nanquantile("nanmedian", x, 0.5, axis, "linear", keepdims)


def _nanquantile(op: str, x: Any, q: Any, axis: Any, method: str, keepdims: bool) -> Tensor:
    x, levels = floating(op, x), check_levels(op, q, method)
    ordered, axes = sorted_last(op, x, axis)  # NaNs are sorted to the end
    present = rec.logical_not(rec.isnan(ordered))
    n = rec.sum(rec.astype(present, dtype=np.dtype(float)), axis=(-1,), keepdims=True)
    low, high, weight = quantile_places(levels.reshape(-1), n, method)
    weight = rec.astype(weight, dtype=x.dtype)
    # if all elements are NaN, the index is -1, which selects the last element, a NaN
    below, above = (
        rec.take_along_axis(ordered, rec.astype(i, dtype=np.dtype(np.intp)), axis=-1) for i in (low, high)
    )
    out = below * (1 - weight) + above * weight
    out = rec.moveaxis(out, source=-1, destination=-out.ndim) if out.ndim > 1 and levels.ndim else out
    rest = [
        1 if a in axes else length for a, length in enumerate(x.shape, -x.ndim) if keepdims or a not in axes
    ]
    return rec.reshape(out, shape=(*levels.shape, *rest))
