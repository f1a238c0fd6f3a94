"""Piecewise polynomials: cubic splines and monotone interpolation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.docstrings import SharedDoc
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.interop.drop_in import arrays_out
from adjoint.ops.create import zeros_like
from adjoint.ops.join import concat, stack
from adjoint.ops.reduce import floating
from adjoint.ops.scan import cumsum
from adjoint.ops.shape import moveaxis
from adjoint.ops.solvers import solve
from adjoint.scipy.values import plain_values
from adjoint.typing import ArrayLike

__all__ = ["CubicHermiteSpline", "CubicSpline", "PPoly", "PchipInterpolator", "make_interp_spline"]


def increasing(op: str, x: Any, least: int = 2) -> Tensor:
    """Return the data points as a vector of floats.

    Raise if they are not strictly increasing, or if there are fewer than ``least``.
    """
    x = floating(op, x)
    if x.ndim != 1 or x.shape[0] < least:
        raise ShapeError(f"{op}: x must be a vector of at least {least} numbers, but has shape {x.shape}.")
    values = plain_values(x)
    if values is not None and not (np.diff(values) > 0).all():
        raise ArgumentError(f"{op}: the values of x must be strictly increasing.")
    return x


def interval(x: Tensor, at: Tensor) -> Tensor:
    """Return, for each point in ``at``, the index of the interval between data points ``x`` that contains it.

    Points outside of all intervals belong to the first or the last interval.
    """
    found = rec.searchsorted(x.detach(), at.detach(), side="right") - 1
    return rec.minimum(rec.maximum(found, 0), x.shape[0] - 2)


def _column(x: Tensor, ndim: int) -> Tensor:
    """Return the vector ``x`` with axes of length 1 appended, so that it has ``ndim`` axes."""
    return rec.reshape(x, shape=(x.shape[0], *(1,) * (ndim - 1)))


class PPoly:
    """A piecewise polynomial: on interval i it is Σ c[m, i] (x - x[i])^(k - m).

    Parameters
    ----------
    c : array_like
        The coefficients, of shape ``(k + 1, intervals, …)``, the highest power first.
    x : array_like
        The ends of the intervals, in order.
    extrapolate : bool or "periodic", optional
        Whether to extrapolate, or "periodic"; if False, the result outside of the interval is NaN.
    axis : int, optional
        The axis of the result that corresponds to the points.

    Examples
    --------
    >>> import adjoint as ad
    >>> p = ad.scipy.interpolate.PPoly([[1.0], [0.0]], [0.0, 2.0])  # x from 0 to 2
    >>> p(0.5).item(), p.integrate(0, 2).item()
    (0.5, 2.0)
    """

    def __init__(self, c: ArrayLike, x: ArrayLike, extrapolate: Any = None, axis: int = 0) -> None:
        self.x, self.c = increasing(type(self).__name__, x), floating(type(self).__name__, c)
        if self.c.ndim < 2 or self.c.shape[1] != self.x.shape[0] - 1:
            raise ShapeError(
                f"PPoly: c must have shape (order, {self.x.shape[0] - 1}, …), one column per interval of x, "
                f"but has shape {self.c.shape}."
            )
        self.extrapolate = True if extrapolate is None else extrapolate
        self.axis = axis

    @arrays_out
    def __call__(self, x: ArrayLike, nu: int = 0, extrapolate: Any = None) -> Tensor:
        """Return the values, or the derivatives of order ``nu``, at the points ``x``."""
        how = self.extrapolate if extrapolate is None else extrapolate
        at = floating("PPoly", x)
        first, last = self.x[0], self.x[-1]
        if how == "periodic":
            at = first + rec.remainder(at - first, last - first)
        i = interval(self.x, at)
        c = self.c if nu == 0 else _differentiated(self.c, nu) if nu > 0 else self.antiderivative(-nu).c
        parts = rec.take(c, i, axis=1 - c.ndim)
        rest = c.ndim - 2
        away = at - rec.take(self.x, i, axis=-1)
        away = rec.reshape(away, shape=(*at.shape, *(1,) * rest))
        y = parts[0]
        for k in range(1, c.shape[0]):
            y = y * away + parts[k]
        if not how:
            outside = rec.logical_or(at < first, at > last)
            y = rec.where(rec.reshape(outside, shape=away.shape), math.nan, y)
        if self.axis:
            order = [
                *range(at.ndim, at.ndim + self.axis),
                *range(at.ndim),
                *range(at.ndim + self.axis, y.ndim),
            ]
            y = rec.permute_dims(y, axes=tuple(a - y.ndim for a in order))
        return y

    def _with(self, c: Tensor) -> PPoly:
        found = PPoly.__new__(PPoly)
        found.c, found.x, found.axis, found.extrapolate = c, self.x, self.axis, self.extrapolate
        return found

    def derivative(self, nu: int = 1) -> PPoly:
        """Return the piecewise polynomial of the derivative of order ``nu``."""
        return self.antiderivative(-nu) if nu < 0 else self._with(_differentiated(self.c, nu))

    def antiderivative(self, nu: int = 1) -> PPoly:
        """Return the antiderivative of order ``nu`` that is continuous and 0 at the first point."""
        if nu < 0:
            return self.derivative(-nu)
        c = self.c
        for _ in range(nu):
            degree = c.shape[0]
            powers = np.arange(degree, 0, -1.0).reshape(-1, *(1,) * (c.ndim - 1)).astype(c.real.dtype)
            c = c / powers
            width = _column(self.x[1:] - self.x[:-1], c.ndim - 1)
            total = c[0] * width
            for k in range(1, degree):
                total = (total + c[k]) * width
            start = cumsum(total, axis=0) - total
            c = concat([c, start[None]], axis=0)
        found = self._with(c)
        if found.extrapolate == "periodic":
            found.extrapolate = False
        return found

    @arrays_out
    def integrate(self, a: ArrayLike, b: ArrayLike, extrapolate: Any = None) -> Tensor:
        """Return the integral from ``a`` to ``b``."""
        how = self.extrapolate if extrapolate is None else extrapolate
        whole = self.antiderivative()
        low, high = floating("integrate", a), floating("integrate", b)
        if how != "periodic":
            return whole(high, extrapolate=how) - whole(low, extrapolate=how)
        first, last = self.x[0], self.x[-1]
        period = last - first

        def up_to(t: Tensor) -> Tensor:
            rounds = rec.floor((t - first) / period).detach()
            return whole(t - rounds * period, extrapolate=True) + rounds * whole(last, extrapolate=True)

        return up_to(high) - up_to(low)


def _differentiated(c: Tensor, nu: int) -> Tensor:
    """Return the coefficients of the derivative of order ``nu`` of polynomials with coefficients ``c``."""
    for _ in range(nu):
        degree = c.shape[0] - 1
        if degree == 0:
            return zeros_like(c)
        powers = np.arange(degree, 0, -1.0).reshape(-1, *(1,) * (c.ndim - 1)).astype(c.real.dtype)
        c = c[:-1] * powers
    return c


def _data(op: str, x: Any, y: Any, axis: int) -> tuple[Tensor, Tensor, int]:
    """Return the data points, the values with the interpolation axis moved first, and this axis's index."""
    x, y = increasing(op, x), floating(op, y)
    where = canonical_axis(op, axis, y.ndim) % y.ndim
    y = moveaxis(y, where, 0)
    if y.shape[0] != x.shape[0]:
        raise ShapeError(
            f"{op}: x and y must have the same length, but have lengths {x.shape[0]} and {y.shape[0]}."
        )
    return x, y, where


def _hermite(x: Tensor, y: Tensor, s: Tensor) -> Tensor:
    """Return the coefficients of the cubic polynomials with the values y and slopes s at the points x."""
    dx = _column(x[1:] - x[:-1], y.ndim)
    slope = (y[1:] - y[:-1]) / dx
    t = (s[:-1] + s[1:] - 2 * slope) / dx
    return stack([t / dx, (slope - s[:-1]) / dx - t, s[:-1], y[:-1]])


_spline_doc = SharedDoc("""
    Parameters
    ----------
    x : array_like
        The points, in increasing order.
    y : array_like
        The values.
    axis : int, optional
        The axis of the values that corresponds to the points.
    """)


@_spline_doc
class CubicHermiteSpline(PPoly):
    """Piecewise cubic polynomials with given values and slopes.

    Parameters
    ----------
    dydx : array_like
        The slopes.
    extrapolate : bool or "periodic", optional
        Whether the first and the last polynomial are used outside of the interval.

    >>> ad.scipy.interpolate.CubicHermiteSpline([0.0, 1.0], [0.0, 1.0], [0.0, 0.0])(0.5).item()
    0.5
    """

    def __init__(
        self, x: ArrayLike, y: ArrayLike, dydx: ArrayLike, axis: int = 0, extrapolate: Any = None
    ) -> None:
        places, values, where = _data("CubicHermiteSpline", x, y, axis)
        slopes = moveaxis(floating("CubicHermiteSpline", dydx), where, 0)
        super().__init__(_hermite(places, values, slopes), places, extrapolate, where)


@_spline_doc
class CubicSpline(PPoly):
    """A cubic spline through given values: its first and second derivatives are continuous.

    Parameters
    ----------
    bc_type : str or pair, optional
        The condition at both ends: "not-a-knot", "natural" (second derivative 0), "clamped" (first
        derivative 0) or "periodic".  A pair has the conditions of the start and of the end; each is one of
        the first three names, or ``(order, value)``, the value of the derivative of that order.
    extrapolate : bool or "periodic", optional
        Whether to extrapolate, or "periodic".  The default is "periodic" if ``bc_type`` is, else True.

    >>> import adjoint as ad, numpy as np
    >>> x = np.linspace(0, 3, 4)
    >>> spline = ad.scipy.interpolate.CubicSpline(x, x ** 3)
    >>> round(spline(1.5).item(), 6), round(spline(1.5, 1).item(), 6)
    (3.375, 6.75)
    """

    def __init__(
        self, x: ArrayLike, y: ArrayLike, axis: int = 0, bc_type: Any = "not-a-knot", extrapolate: Any = None
    ) -> None:
        places, values, where = _data("CubicSpline", x, y, axis)
        slopes = _slopes(places, values, bc_type)
        if extrapolate is None:
            extrapolate = "periodic" if isinstance(bc_type, str) and bc_type == "periodic" else True
        super().__init__(_hermite(places, values, slopes), places, extrapolate, where)


def _conditions(bc_type: Any) -> list[Any]:
    """Return the list of the two boundary conditions, each as "not-a-knot" or a pair (order, value)."""
    known = {"not-a-knot": "not-a-knot", "natural": (2, 0.0), "clamped": (1, 0.0)}
    both = (bc_type, bc_type) if isinstance(bc_type, str) else tuple(bc_type)
    found = []
    for one in both:
        if isinstance(one, str) and one not in known:
            names = ", ".join(map(repr, known))
            raise ArgumentError(
                f"CubicSpline: bc_type must be {names}, 'periodic' or pairs (order, value), not {one!r}."
            )
        found.append(known[one] if isinstance(one, str) else tuple(one))
    if len(found) != 2 or any(c != "not-a-knot" and (len(c) != 2 or c[0] not in (1, 2)) for c in found):
        raise ArgumentError(
            f"CubicSpline: bc_type must be two pairs (order, value) with the order 1 or 2, not {bc_type!r}."
        )
    return found


def _slopes(x: Tensor, y: Tensor, bc_type: Any) -> Tensor:
    """Return the slopes of a cubic spline at its points, for which the second derivative is continuous."""
    n = x.shape[0]
    dx = x[1:] - x[:-1]
    h = _column(dx, y.ndim)
    slope = (y[1:] - y[:-1]) / h
    if isinstance(bc_type, str) and bc_type == "periodic":
        return _periodic(dx, y, slope)
    first, last = _conditions(bc_type)
    if n == 2:  # a line, for all boundary conditions
        first, last = (((1, slope[0]) if c == "not-a-knot" else c) for c in (first, last))
    if n == 3 and first == last == "not-a-knot":  # the parabola through three points
        bend = (slope[1] - slope[0]) / (x[2] - x[0])
        return stack([slope[0] - bend * dx[0], slope[0] + bend * dx[0], slope[1] + bend * dx[1]])
    left, above, right0 = _end(first, dx, y, slope, x, False)
    right, below, right1 = _end(last, dx, y, slope, x, True)
    middle = 3 * (h[1:] * slope[:-1] + h[:-1] * slope[1:])
    diagonal = concat([left[None], 2 * (dx[:-1] + dx[1:]), right[None]])
    upper = concat([left[None] * 0, above[None], dx[:-1]])
    lower = concat([dx[1:], below[None], left[None] * 0])
    side = concat([right0[None], middle, right1[None]])
    flat = rec.reshape(side, shape=(n, math.prod(side.shape[1:])))
    band = stack([upper, diagonal, lower])
    return rec.reshape(rec.solve_banded(band, flat, lower=1, upper=1), shape=side.shape)


def _end(condition: Any, dx: Tensor, y: Tensor, slope: Tensor, x: Tensor, last: bool) -> tuple[Any, Any, Any]:
    """Return the equation for the slope at an end: diagonal element, its neighbour, and right-hand side.

    It is the equation of the last point if ``last``, otherwise of the first.  ``condition`` is the boundary
    condition, an item of ``_conditions``.  ``dx`` are the lengths of the intervals, and ``slope`` is the
    slope of the data in each interval.
    """
    k, step = (-1, -2) if last else (0, 1)
    if condition == "not-a-knot":
        d = x[-1] - x[-3] if last else x[2] - x[0]
        side = (dx[k] ** 2 * slope[step] + (2 * d + dx[k]) * dx[step] * slope[k]) / d
        return dx[step], d, side
    order, value = condition
    given = floating("CubicSpline", value) + 0 * y[0]
    if order == 1:
        return 1 + 0 * dx[0], 0 * dx[0], given
    bend = 0.5 * given * dx[k] ** 2
    rise = 3 * (y[-1] - y[-2]) if last else 3 * (y[1] - y[0])
    return 2 * dx[k], dx[k], rise + bend if last else rise - bend


def _periodic(dx: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    values = plain_values(y)
    if values is not None and not np.allclose(values[0], values[-1], rtol=1e-15, atol=1e-15):
        raise ArgumentError(
            "CubicSpline: with bc_type='periodic' the first and the last value of y must be equal."
        )
    m = dx.shape[0]
    if m == 1:
        return zeros_like(y)
    before = rec.roll(dx, shift=(1,), axis=(-1,))
    one = np.eye(m, dtype=dx.dtype)
    matrix = (
        (2 * (dx + before))[:, None] * one
        + dx[:, None] * np.roll(one, -1, 1)
        + before[:, None] * np.roll(one, 1, 1)
    )
    earlier = slope[np.r_[m - 1, : m - 1]]
    side = 3 * (_column(dx, y.ndim) * earlier + _column(before, y.ndim) * slope)
    flat = rec.reshape(side, shape=(m, math.prod(side.shape[1:])))
    found = rec.reshape(solve(matrix, flat), shape=side.shape)
    return concat([found, found[:1]])


@_spline_doc
class PchipInterpolator(PPoly):
    """Piecewise cubic polynomials that are monotone where the values are.

    Parameters
    ----------
    extrapolate : bool, optional
        Whether the first and the last polynomial are used outside of the interval.

    >>> p = ad.scipy.interpolate.PchipInterpolator([0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 1.0, 1.0])
    >>> p(1.5).item(), p(0.5).item()
    (0.5, 0.0)
    """

    def __init__(self, x: ArrayLike, y: ArrayLike, axis: int = 0, extrapolate: Any = None) -> None:
        places, values, where = _data("PchipInterpolator", x, y, axis)
        slopes = _monotone(places, values)
        super().__init__(_hermite(places, values, slopes), places, extrapolate, where)


def _monotone(x: Tensor, y: Tensor) -> Tensor:
    """Return the slopes of a monotone interpolation at the points, by the formula of Fritsch and Butland.

    They are weighted harmonic means of the slopes on both sides, and 0 where these have different signs.
    """
    h = _column(x[1:] - x[:-1], y.ndim)
    m = (y[1:] - y[:-1]) / h
    if x.shape[0] == 2:
        return concat([m, m])
    turns = rec.logical_or(rec.sign(m[1:]) != rec.sign(m[:-1]), rec.logical_or(m[1:] == 0, m[:-1] == 0))
    a, b = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
    before, after = rec.where(turns, 1.0, m[:-1]), rec.where(turns, 1.0, m[1:])
    inner = rec.where(turns, 0.0, (a + b) / (a / before + b / after))
    first = _edge(h[0], h[1], m[0], m[1])
    last = _edge(h[-1], h[-2], m[-1], m[-2])
    return concat([first[None], inner, last[None]])


def _edge(h0: Tensor, h1: Tensor, m0: Tensor, m1: Tensor) -> Tensor:
    """Return the slope at an end, by the three-point formula, limited so that no extremum is added.

    ``h0`` and ``h1`` are the lengths of the two intervals nearest to the end, and ``m0`` and ``m1`` are the
    slopes of the data there.
    """
    d = ((2 * h0 + h1) * m0 - h0 * m1) / (h0 + h1)
    other = rec.sign(d) != rec.sign(m0)
    steep = rec.logical_and(rec.sign(m0) != rec.sign(m1), rec.abs(d) > 3 * rec.abs(m0))
    return rec.where(other, 0.0, rec.where(steep, 3 * m0, d))


@_spline_doc
def make_interp_spline(
    x: ArrayLike, y: ArrayLike, k: int = 3, t: Any = None, bc_type: Any = None, axis: int = 0
) -> PPoly:
    """Return a spline of degree 1 or 3 through given values.

    Parameters
    ----------
    k : {1, 3}, optional
        The degree.
    t : None
        Must be None: knots that the user chooses have no derivatives in adjoint.
    bc_type : str or pair, optional
        The boundary conditions of a cubic spline, as in ``CubicSpline``.

    Returns
    -------
    PPoly
        The spline as a piecewise polynomial.

    Raises
    ------
    InputError
        If knots or another degree are given.

    >>> ad.scipy.interpolate.make_interp_spline([0.0, 1.0], [0.0, 2.0], k=1)(0.25).item()
    0.5
    """
    if k not in (1, 3) or t is not None:
        raise InputError(
            "make_interp_spline: for tensors, k must be 1 or 3 and the knots t must not be passed; k is "
            f"{k!r}."
        )
    if k == 3:
        return CubicSpline(x, y, axis, "not-a-knot" if bc_type is None else bc_type, True)
    places, values, where = _data("make_interp_spline", x, y, axis)
    slope = (values[1:] - values[:-1]) / _column(places[1:] - places[:-1], values.ndim)
    return PPoly(stack([slope, values[:-1]]), places, True, where)
