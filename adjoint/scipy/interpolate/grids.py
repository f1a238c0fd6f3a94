"""Interpolation in one variable (``interp1d``) and on rectangular grids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.interop.drop_in import arrays_out
from adjoint.ops.join import stack
from adjoint.ops.reduce import floating
from adjoint.ops.shape import moveaxis
from adjoint.scipy.interpolate.polynomials import PPoly, increasing, interval, make_interp_spline
from adjoint.scipy.values import plain_values
from adjoint.typing import ArrayLike

__all__ = ["RegularGridInterpolator", "interp1d", "interpn"]

_KINDS = ("linear", "cubic", "nearest", "nearest-up", "zero", "previous", "next")


class interp1d:  # noqa: N801 (SciPy's name)
    """Interpolate values that are given at points of one variable.

    Parameters
    ----------
    x : array_like
        The points.
    y : array_like
        The values.
    kind : str or int, optional
        "linear", "cubic", "nearest", "nearest-up", "zero", "previous" or "next"; 0, 1 or 3 for a degree.
    axis : int, optional
        The axis of the values along which the points are.
    copy : bool, optional
        Ignored: tensors are not written to.
    bounds_error : bool, optional
        Whether points outside of the range raise an error; by default, unless there is a ``fill_value``.
    fill_value : array_like, pair or "extrapolate", optional
        The value for points outside, or a pair of values for below and above.
    assume_sorted : bool, optional
        Whether the points are in increasing order already.

    Examples
    --------
    >>> import adjoint as ad
    >>> f = ad.scipy.interpolate.interp1d([0.0, 1.0, 2.0], [0.0, 10.0, 0.0])
    >>> f([0.5, 1.5])
    array([5., 5.])
    """

    def __init__(
        self,
        x: ArrayLike,
        y: ArrayLike,
        kind: str | int = "linear",
        axis: int = -1,
        copy: bool = True,
        bounds_error: bool | None = None,
        fill_value: Any = math.nan,
        assume_sorted: bool = False,
    ) -> None:
        places, values = floating("interp1d", x), floating("interp1d", y)
        self.kind = {0: "zero", 1: "linear", 3: "cubic", "slinear": "linear"}.get(kind, kind)
        if self.kind not in _KINDS:
            raise InputError(f"interp1d: kind must be one of {', '.join(_KINDS)}, not {kind!r}.")
        self.axis = canonical_axis("interp1d", axis, values.ndim) % max(values.ndim, 1)
        values = moveaxis(values, self.axis, 0)
        if not assume_sorted and places.ndim == 1 and places.shape[0] == values.shape[0]:
            order = rec.argsort(places.detach(), axis=-1, descending=False, stable=True)
            places, values = rec.take(places, order, axis=-1), rec.take(values, order, axis=-values.ndim)
        self.x, self.y = increasing("interp1d", places), values
        if self.x.shape[0] != self.y.shape[0]:
            raise ShapeError(
                f"interp1d: x and y must have the same length, but have lengths {self.x.shape[0]} and "
                f"{self.y.shape[0]}."
            )
        self.extrapolated = isinstance(fill_value, str) and fill_value == "extrapolate"
        self.fill = fill_value if isinstance(fill_value, tuple) else (fill_value, fill_value)
        missing = isinstance(fill_value, float) and math.isnan(fill_value)
        self.bounds_error = missing if bounds_error is None else bounds_error and not self.extrapolated
        if self.kind in ("linear", "cubic"):
            self._spline: PPoly | None = make_interp_spline(self.x, self.y, 1 if self.kind == "linear" else 3)
        else:
            self._spline = None

    @arrays_out
    def __call__(self, x: ArrayLike) -> Tensor:
        """Return the interpolated values at the points ``x``."""
        at = floating("interp1d", x)
        y = self._step(at) if self._spline is None else self._spline(at)
        below, above = at < self.x[0], at > self.x[-1]
        if self.bounds_error:
            outside = plain_values(rec.logical_or(below, above))
            if outside is not None and outside.any():
                raise ArgumentError(
                    "interp1d: a point is outside of the range of x.  Pass bounds_error=False or "
                    "fill_value='extrapolate'."
                )
        column = (*at.shape, *(1,) * (y.ndim - at.ndim))
        for side, outside in zip(self._outside(), (below, above), strict=True):
            if side is not None:
                y = rec.where(rec.reshape(outside, shape=column), floating("interp1d", side), y)
        order = [*range(at.ndim, at.ndim + self.axis), *range(at.ndim), *range(at.ndim + self.axis, y.ndim)]
        return rec.permute_dims(y, axes=tuple(a - y.ndim for a in order)) if self.axis else y

    def _outside(self) -> tuple[Any, Any]:
        """Return the values for points below and above the range of x; None means extrapolation."""
        if not self.extrapolated:
            return self.fill[0], self.fill[1]
        return math.nan if self.kind == "previous" else None, math.nan if self.kind == "next" else None

    def _step(self, at: Tensor) -> Tensor:
        x = self.x.detach()
        if self.kind in ("nearest", "nearest-up"):
            middle = (x[1:] + x[:-1]) / 2
            i = rec.searchsorted(middle, at.detach(), side="left" if self.kind == "nearest" else "right")
        elif self.kind == "next":
            i = rec.searchsorted(x, at.detach(), side="left")
        else:
            i = rec.searchsorted(x, at.detach(), side="right") - 1
        i = rec.minimum(rec.maximum(i, 0), x.shape[0] - 1)
        return rec.take(self.y, i, axis=-self.y.ndim)


class RegularGridInterpolator:
    """Interpolate values on a rectangular grid in any number of dimensions.

    Parameters
    ----------
    points : sequence of array_like
        The coordinates of the grid along each dimension, in order.
    values : array_like
        The values on the grid; further axes come last.
    method : {"linear", "nearest"}, optional
        How to interpolate.
    bounds_error : bool, optional
        Whether points outside of the grid raise an error.
    fill_value : float or None, optional
        The value for points outside, if they do not raise; None to extrapolate.

    Examples
    --------
    >>> import adjoint as ad
    >>> f = ad.scipy.interpolate.RegularGridInterpolator(([0.0, 1.0], [0.0, 1.0]), [[0.0, 1.0], [2.0, 3.0]])
    >>> f([[0.5, 0.5], [1.0, 0.25]])
    array([1.5 , 2.25])
    """

    def __init__(
        self,
        points: Sequence[ArrayLike],
        values: ArrayLike,
        method: str = "linear",
        bounds_error: bool = True,
        fill_value: float | None = math.nan,
    ) -> None:
        self.grid = [increasing("RegularGridInterpolator", p) for p in points]
        self.values = floating("RegularGridInterpolator", values)
        shape = tuple(g.shape[0] for g in self.grid)
        if self.values.shape[: len(shape)] != shape:
            raise ShapeError(
                "RegularGridInterpolator: the shape of the values must begin with that of the grid, "
                f"{shape}, but is {self.values.shape}."
            )
        self.method, self.bounds_error, self.fill_value = _method(method), bounds_error, fill_value

    @arrays_out
    def __call__(self, xi: Any, method: str | None = None) -> Tensor:
        """Return the interpolated values at the points ``xi``; their coordinates are along the last axis."""
        name = self.method if method is None else _method(method)
        at = _places(xi, len(self.grid))
        lead = at.shape[:-1]
        outside: Any = None
        cells, shares = [], []
        for k, g in enumerate(self.grid):
            x = at[..., k]
            beyond = rec.logical_or(x < g[0], x > g[-1])
            outside = beyond if outside is None else rec.logical_or(outside, beyond)
            i = interval(g, x)
            low, high = rec.take(g, i, axis=-1), rec.take(g, i + 1, axis=-1)
            cells.append(i)
            shares.append((x - low) / (high - low))
        if self.bounds_error:
            found = plain_values(outside)
            if found is not None and found.any():
                raise ArgumentError(
                    "RegularGridInterpolator: a point is outside of the grid.  Pass bounds_error=False."
                )
        y = self._linear(cells, shares, lead) if name == "linear" else self._nearest(cells, shares)
        if not self.bounds_error and self.fill_value is not None:
            column = rec.reshape(outside, shape=(*lead, *(1,) * (y.ndim - len(lead))))
            y = rec.where(column, self.fill_value, y)
        return y

    def _at(self, cells: Sequence[Tensor]) -> Tensor:
        """Return the data at grid points; ``cells`` has a tensor of indices for each axis of the grid."""
        nd, shape = len(self.grid), self.values.shape
        flat: Any = 0
        for k in range(nd):
            flat = flat * shape[k] + cells[k]
        values = rec.reshape(self.values, shape=(math.prod(shape[:nd]), *shape[nd:]))
        return rec.take(values, flat, axis=-values.ndim)

    def _linear(self, cells: list[Tensor], shares: list[Tensor], lead: tuple[int, ...]) -> Tensor:
        total: Any = 0
        behind = (1,) * (self.values.ndim - len(self.grid))
        for corner in itertools.product((0, 1), repeat=len(self.grid)):
            weight: Any = 1.0
            for one, share in zip(corner, shares, strict=True):
                weight = weight * (share if one else 1 - share)
            part = self._at([i + c if c else i for i, c in zip(cells, corner, strict=True)])
            total = total + rec.reshape(weight, shape=(*lead, *behind)) * part
        return total

    def _nearest(self, cells: list[Tensor], shares: list[Tensor]) -> Tensor:
        up = [rec.astype(s.detach() > 0.5, dtype=i.dtype) for i, s in zip(cells, shares, strict=True)]
        return self._at([i + u for i, u in zip(cells, up, strict=True)])


def _method(method: str) -> str:
    if method not in ("linear", "nearest"):
        raise InputError(
            "RegularGridInterpolator and interpn: for tensors, method must be 'linear' or 'nearest', not "
            f"{method!r}."
        )
    return method


def _places(xi: Any, nd: int) -> Tensor:
    """Return points as a tensor with the ``nd`` coordinates in the last axis.

    ``xi`` is such an array, or a tuple with one array for each coordinate.
    """
    if isinstance(xi, tuple):
        parts = [floating("interpn", p) for p in xi]
        shape = np.broadcast_shapes(*(p.shape for p in parts))
        at = stack([rec.broadcast_to(p, shape=shape) for p in parts], axis=-1)
    else:
        at = floating("interpn", asarray(xi))
        if at.ndim == 1:
            at = at[:, None] if nd == 1 else at[None]
    if not at.ndim or at.shape[-1] != nd:
        raise ShapeError(
            f"RegularGridInterpolator and interpn: the last axis of the points must have length {nd}, one "
            f"coordinate per grid axis, but their shape is {at.shape}."
        )
    return at


def interpn(
    points: Sequence[ArrayLike],
    values: ArrayLike,
    xi: Any,
    method: str = "linear",
    bounds_error: bool = True,
    fill_value: float | None = math.nan,
) -> Tensor:
    """Interpolate values on a rectangular grid.

    Parameters
    ----------
    points : sequence of array_like
        The coordinates of the grid along each dimension, in order.
    values : array_like
        The values on the grid; further axes come last.
    xi : array_like or tuple of array_like
        The points, with their coordinates in the last axis, or a tuple of coordinates.
    method : {"linear", "nearest"}, optional
        How to interpolate.
    bounds_error : bool, optional
        Whether points outside of the grid raise an error.
    fill_value : float or None, optional
        The value for points outside, if they do not raise; None to extrapolate.

    Returns
    -------
    Tensor
        The values.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.scipy.interpolate.interpn(([0.0, 1.0],), [0.0, 4.0], [0.25])
    array([1.])
    """
    return RegularGridInterpolator(points, values, method, bounds_error, fill_value)(xi)
