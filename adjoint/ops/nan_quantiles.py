"""Quantiles that ignore NaN: ``nanquantile``, ``nanpercentile`` and ``nanmedian``."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.convert import array_of
from adjoint.core.namespace import rec
from adjoint.core.shapes import without_gradient
from adjoint.core.tensor import Tensor
from adjoint.ops.order import check_levels, quantile_places, sorted_last
from adjoint.ops.reduce import floating
from adjoint.typing import ArrayLike, Axis

__all__ = ["nanmedian", "nanpercentile", "nanquantile"]


def nanquantile(
    x: ArrayLike, q: ArrayLike, axis: Axis = None, *, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Return quantiles over axes of the elements that are not NaN.

    Parameters
    ----------
    x : array_like
        The argument.
    q : array_like of float
        The quantiles, from 0 to 1.
    axis : int or tuple of int, optional
        Axes to reduce; all of them by default.
    method : str, optional
        How to interpolate, as in ``quantile``.
    keepdims : bool, optional
        Whether to keep the reduced axes with length 1.

    Returns
    -------
    Tensor
        The quantiles; the axes of ``q`` come first.  NaN where all elements are NaN.

    Raises
    ------
    ArgumentError
        If ``q`` is out of range, or ``method`` unknown.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nanquantile(ad.tensor([4.0, float("nan"), 2.0, 3.0]), [0.0, 0.5])
    tensor([2., 3.], dtype=float64)
    """
    return _nanquantile("nanquantile", x, q, axis, method, keepdims)


def nanpercentile(
    x: ArrayLike, q: ArrayLike, axis: Axis = None, *, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Return percentiles over axes of the elements that are not NaN.

    Parameters
    ----------
    x : array_like
        The argument.
    q : array_like of float
        The percentiles, from 0 to 100.
    axis : int or tuple of int, optional
        Axes to reduce; all of them by default.
    method : str, optional
        How to interpolate, as in ``quantile``.
    keepdims : bool, optional
        Whether to keep the reduced axes with length 1.

    Returns
    -------
    Tensor
        The percentiles; the axes of ``q`` come first.  NaN where all elements are NaN.

    Raises
    ------
    ArgumentError
        If ``q`` is out of range, or ``method`` unknown.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nanpercentile(ad.tensor([1.0, float("nan"), 3.0]), 50)
    tensor(2., dtype=float64)
    """
    levels = array_of(without_gradient("nanpercentile", "q", q)) / 100
    return _nanquantile("nanpercentile", x, levels, axis, method, keepdims)


def nanmedian(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Return the median over axes of the elements that are not NaN.

    Parameters
    ----------
    x : array_like
        The argument.
    axis : int or tuple of int, optional
        Axes to reduce; all of them by default.
    keepdims : bool, optional
        Whether to keep the reduced axes with length 1.

    Returns
    -------
    Tensor
        The median.  NaN where all elements are NaN.

    Examples
    --------
    >>> import adjoint as ad
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
    # without numbers the place is -1: the last element, which is NaN
    below, above = (
        rec.take_along_axis(ordered, rec.astype(i, dtype=np.dtype(np.intp)), axis=-1) for i in (low, high)
    )
    out = below * (1 - weight) + above * weight
    out = rec.moveaxis(out, source=-1, destination=-out.ndim) if out.ndim > 1 and levels.ndim else out
    rest = [
        1 if a in axes else length for a, length in enumerate(x.shape, -x.ndim) if keepdims or a not in axes
    ]
    return rec.reshape(out, shape=(*levels.shape, *rest))
