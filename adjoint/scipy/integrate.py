"""``scipy.integrate`` on tensors: sums over samples, integrals of functions, ordinary differential equations.

``quad`` and ``solve_ivp`` let SciPy choose intervals and steps on values, and repeat the sums and steps with
tensors.  So gradients flow to the limits, the initial values, the times, and every tensor that the function
uses, to every order.  Names that are not in ``__all__`` are SciPy's own functions, which raise
``LostHistoryError`` for a tensor with a history.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.config import no_grad
from adjoint.core.convert import array_of, asarray
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, varies
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.ops.join import concat, stack
from adjoint.ops.reduce import floating, sum
from adjoint.ops.scan import cumsum
from adjoint.ops.shape import moveaxis
from adjoint.scipy.fallback import scipy_module, scipy_only
from adjoint.typing import ArrayLike

__all__ = ["cumulative_trapezoid", "odeint", "quad", "simpson", "solve_ivp", "trapezoid"]


def __dir__() -> list[str]:
    return sorted(__all__)


# Samples ---------------------------------------------------------------------------------------------


def _steps(op: str, y: Tensor, x: Any, dx: Any, axis: int) -> Any:
    """Return the distances of the samples, along the last axis."""
    if x is None:
        return dx
    x = floating(op, x)
    if x.ndim > 1:
        x = moveaxis(x, axis, -1)
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(f"{op}: x has {x.shape[-1]} samples, but y has {y.shape[-1]}.")
    return x[..., 1:] - x[..., :-1]


def trapezoid(y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1) -> Tensor:
    """Integrate samples by the trapezoidal rule.

    Parameters
    ----------
    y : array_like
        The samples.
    x : array_like, optional
        Where they are; by default ``dx`` apart.
    dx : array_like, optional
        The distance of the samples.
    axis : int, optional
        The axis of the samples.

    Returns
    -------
    Tensor
        The integral.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.scipy.integrate.trapezoid([1.0, 2.0, 3.0])
    tensor(4., dtype=float64)
    """
    y = moveaxis(floating("trapezoid", y), axis, -1)
    return sum((y[..., 1:] + y[..., :-1]) * _steps("trapezoid", y, x, dx, axis), axis=-1) / 2


def cumulative_trapezoid(
    y: ArrayLike,
    x: ArrayLike | None = None,
    dx: ArrayLike = 1.0,
    axis: int = -1,
    initial: float | None = None,
) -> Tensor:
    """Integrate samples by the trapezoidal rule, up to each of them.

    Parameters
    ----------
    y : array_like
        The samples.
    x : array_like, optional
        Where they are; by default ``dx`` apart.
    dx : array_like, optional
        The distance of the samples.
    axis : int, optional
        The axis of the samples.
    initial : float, optional
        0 for a zero in front of the result; by default there is none.

    Returns
    -------
    Tensor
        The integrals.

    Raises
    ------
    ArgumentError
        If ``initial`` is neither None nor 0.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.scipy.integrate.cumulative_trapezoid([1.0, 2.0, 3.0], initial=0)
    tensor([0. , 1.5, 4. ], dtype=float64)
    """
    y = moveaxis(floating("cumulative_trapezoid", y), axis, -1)
    parts = (y[..., 1:] + y[..., :-1]) * _steps("cumulative_trapezoid", y, x, dx, axis) / 2
    total = cumsum(parts, axis=-1)
    if initial is not None:
        if initial != 0:
            raise ArgumentError(f"cumulative_trapezoid: initial must be None or 0, not {initial!r}.")
        total = concat([total[..., :1] * 0, total], axis=-1)
    return moveaxis(total, -1, axis)


def simpson(y: ArrayLike, x: ArrayLike | None = None, *, dx: ArrayLike = 1.0, axis: int = -1) -> Tensor:
    """Integrate samples by Simpson's rule, also at unequal distances.

    Parameters
    ----------
    y : array_like
        The samples.
    x : array_like, optional
        Where they are; by default ``dx`` apart.
    dx : array_like, optional
        The distance of the samples.
    axis : int, optional
        The axis of the samples.

    Returns
    -------
    Tensor
        The integral.  For an even number of samples the last interval is integrated by the parabola through
        the last three, as in SciPy.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.scipy.integrate.simpson([0.0, 1.0, 4.0])  # x² from 0 to 2
    tensor(2.66666667, dtype=float64)
    """
    y = moveaxis(floating("simpson", y), axis, -1)
    n = y.shape[-1]
    if n < 3:
        return trapezoid(y, None if x is None else (x if np.ndim(x) == 1 else moveaxis(x, axis, -1)), dx)
    h = _steps("simpson", y, x, dx, axis) + 0 * y[..., 1:]
    last = n if n % 2 else n - 1
    h0, h1 = h[..., 0 : last - 1 : 2], h[..., 1 : last - 1 : 2]
    y0, y1, y2 = y[..., 0 : last - 2 : 2], y[..., 1 : last - 1 : 2], y[..., 2:last:2]
    both = h0 + h1
    parts = both / 6 * ((2 - h1 / h0) * y0 + both * both / (h0 * h1) * y1 + (2 - h0 / h1) * y2)
    total = sum(parts, axis=-1)
    if n % 2 == 0:
        a, b = h[..., -1], h[..., -2]
        total = total + y[..., -1] * (2 * a * a + 3 * a * b) / (6 * (a + b))
        total = total + y[..., -2] * (a * a + 3 * a * b) / (6 * b)
        total = total - y[..., -3] * (a * a * a) / (6 * b * (a + b))
    return total


# Functions ---------------------------------------------------------------------------------------------


def quad(
    func: Callable[..., Any], a: ArrayLike, b: ArrayLike, args: Any = (), **options: Any
) -> tuple[Tensor, float]:
    """Integrate a function of one variable.

    SciPy finds the value and the intervals.  Gradients of the limits and of all tensors that the function
    uses come from Gauss' rule with 21 points on these intervals.

    Parameters
    ----------
    func : callable
        A function ``func(x, *args)`` that returns one number.
    a : array_like
        The lower limit.
    b : array_like
        The upper limit.
    args : tuple, optional
        Further arguments of the function; gradients flow to tensors among them.
    **options : optional
        Options of SciPy's ``quad`` about accuracy: ``epsabs``, ``epsrel``, ``limit``, ``points``.

    Returns
    -------
    tuple
        The integral, and SciPy's estimate of its error.

    Raises
    ------
    InputError
        If an option is not supported, or Gauss' rule does not confirm the value.

    Examples
    --------
    >>> import adjoint as ad
    >>> f = lambda c: ad.scipy.integrate.quad(lambda x: ad.exp(-c * x), 0.0, float("inf"))[0]
    >>> round(float(ad.grad(f)(2.0)), 10)  # of 1/c
    -0.25
    """
    unknown = set(options) - {"epsabs", "epsrel", "limit", "points"}
    if unknown:
        raise InputError(f"quad: {', '.join(sorted(unknown))} is not supported with gradients.")
    args = args if isinstance(args, tuple) else (args,)
    low, high = floating("quad", a), floating("quad", b)

    def plain(x: float) -> float:
        with no_grad():
            return float(array_of(asarray(func(asarray(x), *args)).detach()))

    ends = float(array_of(low.detach())), float(array_of(high.detach()))
    if ends[1] < ends[0]:
        backwards, error = quad(func, b, a, args, **options)
        return -backwards, error
    value, error, facts, *_ = scipy_module("integrate").quad(plain, *ends, full_output=1, **options)
    count = facts["last"]
    intervals = list(zip(facts["alist"][:count].tolist(), facts["blist"][:count].tolist(), strict=True))
    again = _replayed(lambda x: asarray(func(x, *args)), low, high, ends, intervals)
    if not varies(again):
        return asarray(value), error
    confirmed = float(array_of(again.detach()))
    if not abs(confirmed - value) <= 1e-6 * abs(value) + 10 * error + 1e-12:
        raise InputError(
            f"quad: the integral is {value:.6g}, but Gauss' rule gives {confirmed:.6g}: the function is too "
            "singular for gradients.\n  Substitute the variable so that it is smooth at the limits."
        )
    return again + (value - confirmed), error


def _replayed(f: Callable[[Any], Tensor], low: Tensor, high: Tensor, ends: Any, intervals: Any) -> Tensor:
    """Integrate by Gauss' rule on SciPy's intervals."""
    nodes, weights = np.polynomial.legendre.leggauss(21)
    first, last = ends
    infinite = math.isinf(first) or math.isinf(last)
    if first == last:
        return (high - low) * f(low)
    total: Any = 0.0
    for start, end in intervals:
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
            t = (start + end) / 2 + (end - start) / 2 * node
            size = (end - start) / 2 * weight
            total = total + size * (_far(f, t, low, high, ends) if infinite else _near(f, t, low, high, ends))
    return total


def _near(f: Callable[[Any], Tensor], t: float, low: Tensor, high: Tensor, ends: Any) -> Any:
    """The integrand at a place that keeps its share of the way from one limit to the other."""
    first, last = ends
    share = (t - first) / (last - first)
    return f(low * (1 - share) + high * share) * ((high - low) / (last - first))


def _far(f: Callable[[Any], Tensor], t: float, low: Tensor, high: Tensor, ends: Any) -> Any:
    """The integrand at (1 - t)/t from a limit, as in QUADPACK; on both sides if both are infinite."""
    first, last = ends
    away = (1 - t) / t
    if math.isinf(first) and math.isinf(last):
        return (f(asarray(away)) + f(asarray(-away))) / t**2
    return f(low + away if math.isinf(last) else high - away) / t**2


# Differential equations ----------------------------------------------------------------------------------

_METHODS = ("RK23", "RK45", "DOP853")


def solve_ivp(
    fun: Callable[..., Any],
    t_span: Sequence[Any],
    y0: ArrayLike,
    method: str = "RK45",
    t_eval: ArrayLike | None = None,
    args: Sequence[Any] | None = None,
    **options: Any,
) -> Any:
    """Solve an initial value problem.

    SciPy chooses the steps; they are repeated with tensors.  Gradients flow to the initial values, to both
    ends of the time span, to ``t_eval`` and to all tensors that the function uses.

    Parameters
    ----------
    fun : callable
        The right-hand side, ``fun(t, y, *args)``.
    t_span : pair of array_like
        The times at which to start and to end.
    y0 : array_like
        The initial values, a vector.
    method : {"RK45", "DOP853", "RK23"}, optional
        SciPy's name of an explicit method.
    t_eval : array_like, optional
        The times of the results; by default the steps.
    args : sequence, optional
        Further arguments of the function; gradients flow to tensors among them.
    **options : optional
        SciPy's options ``rtol``, ``atol``, ``first_step`` and ``max_step``.

    Returns
    -------
    OdeResult
        SciPy's result; ``y`` is a tensor with a column for each time, and ``t`` a tensor.

    Raises
    ------
    InputError
        If the method or an option is not supported.

    Examples
    --------
    >>> import adjoint as ad
    >>> def end(rate):
    ...     return ad.scipy.integrate.solve_ivp(lambda t, y: -rate * y, (0.0, 1.0), [1.0], rtol=1e-9).y[0, -1]
    >>> round(float(ad.grad(end)(2.0)), 6)  # of exp(-rate)
    -0.135335
    """
    if method not in _METHODS:
        raise InputError(
            f"solve_ivp: method must be one of {', '.join(_METHODS)} for gradients, not {method!r}.\n"
            "  Implicit methods are not supported yet."
        )
    unknown = set(options) - {"rtol", "atol", "first_step", "max_step"}
    if unknown:
        raise InputError(f"solve_ivp: {', '.join(sorted(unknown))} is not supported with gradients.")
    further = () if args is None else tuple(args)

    def f(t: Any, y: Any) -> Any:
        return fun(t, y, *further)

    start, end = (floating("solve_ivp", t) for t in t_span)
    y = floating("solve_ivp", y0)
    if y.ndim != 1:
        raise ShapeError(f"solve_ivp: the initial values must be a vector, but have shape {y.shape}.")
    span = float(array_of(start.detach())), float(array_of(end.detach()))
    integrate = scipy_module("integrate")

    def plain(t: float, y: Any) -> Any:
        with no_grad():
            return array_of(asarray(f(asarray(t), asarray(y))).detach())

    result = integrate.solve_ivp(plain, span, array_of(y.detach()), method=method, **options)
    solver = getattr(integrate, method)
    stages = [np.asarray(solver.A)[i, :i].tolist() for i in range(len(solver.B))]
    tableau = stages, np.asarray(solver.B).tolist(), np.asarray(solver.C).tolist()
    wanted = None if t_eval is None else floating("solve_ivp", t_eval)
    return _repeated(result, f, start, end, span, y, tableau, wanted)


def _repeated(
    result: Any,
    f: Callable[..., Any],
    start: Tensor,
    end: Tensor,
    span: tuple[float, float],
    y: Tensor,
    tableau: Any,
    wanted: Tensor | None,
) -> Any:
    """Repeat SciPy's steps with tensors; a wanted time gets a step of its own from the last one before it."""
    length = span[1] - span[0]
    shares = [(t - span[0]) / length if length else 0.0 for t in result.t.tolist()]
    times = [start + (end - start) * s for s in shares]
    states = [y]
    for before, after in itertools.pairwise(times):
        states.append(_step(f, before, after - before, states[-1], tableau))
    if wanted is None:
        result.t, result.y = stack(times), stack(states, axis=-1)
        return result
    values = array_of(wanted.detach()).tolist()
    low, high = min(span), max(span)
    if any(not low <= t <= high for t in values):
        raise ArgumentError(f"solve_ivp: t_eval must be within the time span from {low} to {high}.")
    grid = [span[0] + length * s for s in shares]
    found = []
    for k, t in enumerate(values):
        last = max(i for i, g in enumerate(grid) if (g <= t if length >= 0 else g >= t) or i == 0)
        h = wanted[k] - times[last]
        still = not length or (t == grid[last] and not varies(h))
        found.append(states[last] if still else _step(f, times[last], h, states[last], tableau))
    result.t, result.y = wanted, stack(found, axis=-1) if found else rec.reshape(y, shape=(-1, 1))[:, :0]
    return result


def _step(f: Callable[..., Any], t: Any, h: Any, y: Tensor, tableau: Any) -> Tensor:
    """Take one step of an explicit Runge-Kutta method."""
    stages, weights, nodes = tableau
    slopes: list[Tensor] = []
    for row, c in zip(stages, nodes, strict=False):
        at = y
        if any(row):
            at = y + h * _combined(row, slopes)
        slopes.append(asarray(f(t + c * h, at)))
    return y + h * _combined(weights, slopes)


def _combined(factors: Sequence[float], slopes: Sequence[Tensor]) -> Any:
    used = [k for c, k in zip(factors, slopes, strict=True) if c]
    row = np.array([c for c in factors if c], dtype=used[0].dtype)
    return used[0] * row.item() if len(used) == 1 else rec.matmul(row, rec.stack(*used, axis=-2))


def odeint(
    func: Callable[..., Any],
    y0: ArrayLike,
    t: ArrayLike,
    args: Sequence[Any] = (),
    *,
    tfirst: bool = False,
    rtol: float = 1.49012e-8,
    atol: float = 1.49012e-8,
) -> Tensor:
    """Solve a system of differential equations at given times, by the method DOP853.

    Parameters
    ----------
    func : callable
        The right-hand side, ``func(y, t, *args)``.
    y0 : array_like
        The initial values, a vector.
    t : array_like
        The times, in order; the first one is that of the initial values.
    args : sequence, optional
        Further arguments of the function; gradients flow to tensors among them.
    tfirst : bool, optional
        Whether the function is ``func(t, y, *args)``.
    rtol : float, optional
        The relative tolerance.
    atol : float, optional
        The absolute tolerance.

    Returns
    -------
    Tensor
        The values, with a row for each time.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.scipy.integrate.odeint(lambda y, t: -y, [1.0], [0.0, 1.0])[:, 0].numpy().round(6)
    array([1.      , 0.367879])
    """
    times = floating("odeint", t)
    f = (lambda s, y: func(s, y, *args)) if tfirst else (lambda s, y: func(y, s, *args))
    found = solve_ivp(f, (times[0], times[-1]), y0, "DOP853", times, rtol=rtol, atol=atol)
    return rec.matrix_transpose(found.y)


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

else:

    def __getattr__(name: str) -> Any:
        """Return SciPy's own function, which raises for a tensor with a history."""
        return scipy_only("integrate", name)
