"""``scipy.integrate`` on tensors: integrals of samples and of functions, ordinary differential equations.

In ``quad`` and ``solve_ivp``, SciPy chooses intervals and steps without gradients; the sums and steps are
then repeated with tensors.  So gradients of every order flow to the limits, the initial values, the times,
and every tensor that the function uses.  Names that are not in ``__all__`` are SciPy's own functions, which
raise ``LostHistoryError`` for a tensor that requires grad.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.config import no_grad, special
from adjoint.core.convert import array_of, asarray
from adjoint.core.docstrings import SharedDoc
from adjoint.core.lifted import Unknown, tracing
from adjoint.core.tensor import Tensor, held
from adjoint.core.user_code import warn
from adjoint.core.values import has_history, unknown, varies
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.ops.join import concat, stack
from adjoint.ops.reduce import floating, sum
from adjoint.ops.scan import cumsum
from adjoint.ops.shape import moveaxis, reshape
from adjoint.scipy.batches import Batch, batch_of
from adjoint.scipy.fallback import drop_ins, refuse_options, scipy_module, scipy_only
from adjoint.scipy.ode import odeint, solve_ivp
from adjoint.scipy.problems import as_args
from adjoint.transforms.batch import vmap
from adjoint.typing import ArrayLike

__all__ = ["cumulative_trapezoid", "odeint", "quad", "quad_vec", "simpson", "solve_ivp", "trapezoid"]
__dir__ = sorted(__all__).copy


# Samples ---------------------------------------------------------------------------------------------


def _steps(op: str, y: Tensor, x: Any, dx: Any, axis: int) -> Any:
    """Return the distances between neighbouring samples: ``dx`` if ``x`` is None, else differences of ``x``.

    ``axis`` is the axis of the samples in ``x``; the differences are along the last axis.
    """
    if x is None:
        return dx
    x = floating(op, x)
    if x.ndim > 1:
        x = moveaxis(x, axis, -1)
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            f"{op}: x and y must have equally many samples, but have {x.shape[-1]} and {y.shape[-1]}."
        )
    return x[..., 1:] - x[..., :-1]


_integral_doc = SharedDoc("""
    Parameters
    ----------
    y : array_like
        The samples.
    x : array_like, optional
        The positions of the samples; by default their distance is ``dx``.
    dx : array_like, optional
        The distance between neighbouring samples.
    axis : int, optional
        The axis of the samples.
    a : array_like
        The lower limit.
    b : array_like
        The upper limit.
    args : tuple, optional
        Further arguments of the function; gradients flow to tensors among them.
    epsabs : float, optional
        The absolute tolerance.
    epsrel : float, optional
        The relative tolerance.
    norm : {"2", "max"}, optional
        The norm of the error.

    Returns
    -------
    tuple
        The integral, and SciPy's estimate of its error, a tensor inside ``ad.vmap`` and
        ``ad.compile``.
    """)


@_integral_doc
def trapezoid(y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1) -> Tensor:
    """Integrate samples by the trapezoidal rule.

    Returns
    -------
    Tensor
        The integral.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.scipy.integrate.trapezoid([1.0, 2.0, 3.0])
    np.float64(4.0)
    """
    y = moveaxis(floating("trapezoid", y), axis, -1)
    return sum((y[..., 1:] + y[..., :-1]) * _steps("trapezoid", y, x, dx, axis), axis=-1) / 2


@_integral_doc
def cumulative_trapezoid(
    y: ArrayLike,
    x: ArrayLike | None = None,
    dx: ArrayLike = 1.0,
    axis: int = -1,
    initial: float | None = None,
) -> Tensor:
    """Integrate samples by the trapezoidal rule, from the first sample up to each sample.

    Parameters
    ----------
    initial : float, optional
        Pass 0 to prepend a 0 to the result; by default nothing is prepended.

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
    array([0. , 1.5, 4. ])
    """
    y = moveaxis(floating("cumulative_trapezoid", y), axis, -1)
    parts = (y[..., 1:] + y[..., :-1]) * _steps("cumulative_trapezoid", y, x, dx, axis) / 2
    total = cumsum(parts, axis=-1)
    if initial is not None:
        if initial != 0:
            raise ArgumentError(f"cumulative_trapezoid: initial must be None or 0, not {initial!r}.")
        total = concat([total[..., :1] * 0, total], axis=-1)
    return moveaxis(total, -1, axis)


@_integral_doc
def simpson(y: ArrayLike, x: ArrayLike | None = None, *, dx: ArrayLike = 1.0, axis: int = -1) -> Tensor:
    """Integrate samples by Simpson's rule; the distances between samples may differ.

    Returns
    -------
    Tensor
        The integral.  For an even number of samples the last interval is integrated by the parabola through
        the last three, as in SciPy.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.scipy.integrate.simpson([0.0, 1.0, 4.0])  # x² from 0 to 2
    np.float64(2.6666666666666665)
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


@_integral_doc
def quad(
    func: Callable[..., Any], a: ArrayLike, b: ArrayLike, args: Any = (), **options: Any
) -> tuple[Tensor, float]:
    """Integrate a function of one variable.

    SciPy computes the value and chooses the intervals.  Gradients of the limits and of all tensors that the
    function uses come from Gauss's rule with 21 points on these intervals.

    Parameters
    ----------
    func : callable
        A function ``func(x, *args)`` that returns one number.
    **options : optional
        Options of SciPy's ``quad`` about accuracy: ``epsabs``, ``epsrel``, ``limit``, ``points``.

    Raises
    ------
    InputError
        If an option is not supported, or Gauss's rule does not confirm the value.

    Examples
    --------
    >>> import adjoint as ad
    >>> f = lambda c: ad.scipy.integrate.quad(lambda x: ad.exp(-c * x), 0.0, float("inf"))[0]
    >>> round(float(ad.grad(f)(2.0)), 10)  # of 1/c
    -0.25
    """
    unknown = set(options) - {"epsabs", "epsrel", "limit", "points"}
    refuse_options("quad", unknown, "Call scipy.integrate.quad if no gradient is needed.")
    args = as_args(args)

    def solved(f: Any, ends: Any) -> Any:
        def plain(x: float) -> float:
            with no_grad():
                return float(array_of(f(asarray(x)).detach()))

        scipy = scipy_module("integrate")
        value, error, facts, *message = scipy.quad(plain, *ends, full_output=1, **options)
        if message:  # with full_output, SciPy does not warn
            warn(str(message[0]), scipy.IntegrationWarning)
        count = facts["last"]
        pairs = zip(facts["alist"][:count].tolist(), facts["blist"][:count].tolist(), strict=True)
        return value, error, list(pairs)

    f = lambda x: asarray(func(x, *args))
    return _integrated("quad", f, a, b, solved, options.get("limit", _MOST))


def _integrated(op: str, f: Any, a: Any, b: Any, solved: Any, limit: Any) -> tuple[Tensor, float]:
    """Return the integral of ``f`` from ``a`` to ``b``, with derivatives, and SciPy's estimate of its error.

    ``solved(f, ends)`` returns SciPy's value, the estimate and at most ``limit`` intervals, for ``ends`` in
    ascending order.
    """
    low, high = floating(op, a), floating(op, b)
    if special.count and (trace := tracing.get()) is not None:
        return _compiled(op, trace, f, (a, b), solved, limit)
    if (batch := batch_of(op, f, low, high)) is not None:
        return _in_batch(op, batch, f, low, high, solved)
    ends = float(array_of(low.detach())), float(array_of(high.detach()))
    if ends[1] < ends[0]:
        backwards, error = _integrated(op, f, b, a, solved, limit)
        return -backwards, error
    value, error, intervals = solved(f, ends)
    again = _replayed(f, low, high, ends, intervals)
    return _confirmed(op, again, value, error), error


def _confirmed(op: str, again: Tensor, value: Any, error: float) -> Tensor:
    """Return SciPy's ``value`` of an integral with the derivatives of ``again``, the result of Gauss's rule.

    Raise if the two values differ by much more than ``error``, SciPy's estimate of its error.
    """
    if not varies(again):
        return asarray(value)
    confirmed = array_of(again.detach())
    _confirm(op, np.abs(confirmed - value).max(initial=0), value, error)
    return again + (value - confirmed)


def _confirm(op: str, away: float, value: Any, error: float) -> None:
    if not away <= 1e-6 * np.abs(value).max(initial=0) + 10 * error + 1e-12:
        raise InputError(
            f"{op}: SciPy's integral and the Gauss rule that computes the gradients differ by {away:.3g}, "
            "because the function is too singular.\n"
            "  Substitute the variable so that the function is smooth at the limits."
        )


@_integral_doc
def quad_vec(
    f: Callable[..., Any],
    a: ArrayLike,
    b: ArrayLike,
    epsabs: float = 1e-200,
    epsrel: float = 1e-8,
    norm: str = "2",
    *,
    limit: float = 10000,
    points: Any = None,
    args: Any = (),
    **options: Any,
) -> tuple[Tensor, float]:
    """Integrate a function of one variable that returns an array.

    SciPy computes the value and chooses the intervals; gradients come from Gauss's rule, as in ``quad``.

    Parameters
    ----------
    f : callable
        A function ``f(x, *args)`` that returns a tensor.
    limit : float, optional
        The largest number of intervals.
    points : sequence of float, optional
        Points between the limits at which the function is not smooth.
    **options : optional
        SciPy's options ``cache_size`` and ``quadrature``.

    Raises
    ------
    InputError
        If an option is not supported, or Gauss's rule does not confirm the value.

    Examples
    --------
    >>> import adjoint as ad
    >>> f = lambda c: ad.scipy.integrate.quad_vec(lambda x: ad.stack([c * x, x ** 2]), 0.0, c)[0]
    >>> ad.jacobian(f)(3.0).round(9)  # of c³/2 and c³/3
    array([13.5,  9. ])
    """
    unknown = set(options) - {"cache_size", "quadrature"}
    refuse_options("quad_vec", unknown, "Call scipy.integrate.quad_vec if no gradient is needed.")
    args = as_args(args)

    def solved(g: Any, ends: Any) -> Any:
        far = math.isinf(ends[0]) or math.isinf(ends[1])

        def plain(t: float) -> Any:
            with no_grad():
                found = _far(g, t, asarray(ends[0]), asarray(ends[1]), ends) if far else g(asarray(t))
                return array_of(found.detach())

        value, error, facts = scipy_module("integrate").quad_vec(
            plain, *((0.0, 1.0) if far else ends), epsabs, epsrel, norm,
            limit=limit, points=points, full_output=True, **options,
        )  # fmt: skip
        return value, error, facts.intervals.tolist()

    return _integrated("quad_vec", lambda x: asarray(f(x, *args)), a, b, solved, limit)


_MOST = 50  # the largest number of intervals inside ``ad.compile``, as SciPy's default for quad


def _compiled(
    op: str, trace: Any, f: Callable[[Any], Tensor], limits: Any, solved: Any, limit: float
) -> tuple[Tensor, Any]:
    """Return the integral and its error inside ``ad.compile``.

    At each call of the compiled function, SciPy computes the value and chooses the intervals for Gauss's
    rule.
    """
    far = tuple(map(_infinite, limits))
    if (far[0] and limits[0] > 0) or (far[1] and limits[1] < 0):
        backwards, error = _compiled(op, trace, f, limits[::-1], solved, limit)
        return -backwards, error
    low, high = (floating(op, x).astype(np.float64) for x in limits)
    count = 21 * (2 if all(far) else 1) * int(min(limit, _MOST))
    real = np.dtype(np.float64)
    whole = trace.function(op, f, [((), real)])
    ((shape, dtype),) = whole.specs

    def run(functions: Any, first: Any, last: Any) -> Any:
        if (math.isinf(first), math.isinf(last)) != far:
            raise InputError(
                f"{op}: inside ad.compile, an infinite limit must be the number inf itself.\n"
                "  Pass float('inf'), not a tensor or an argument of the compiled function."
            )
        ends, sign = sorted((float(first), float(last))), -1 if last < first else 1
        value, error, intervals = solved(lambda x: asarray(functions[0](array_of(x))[0]), ends)
        rule = _gauss((float(first), float(last)), any(far), intervals)
        # with more than ``count`` points there is a value, but no derivatives: ``check`` raises if they are
        # needed
        points, weights = _padded(*rule, count) if len(rule[0]) <= count else np.full((2, count), np.nan)
        return sign * value, error, points, weights

    specs = [(shape, np.result_type(dtype, real)), ((), real), ((count,), real), ((count,), real)]
    value, error, points, weights = trace.on_host(op, run, [whole], [low, high], specs)
    x, sizes = _placed(points, weights, low, high, far)
    again = sum(reshape(sizes, (count, *[1] * len(shape))) * vmap(f)(x), axis=0)
    if not has_history(again):
        return value, error

    def check(found: Any) -> None:
        away, size, error, total = np.moveaxis(found, -1, 0)
        if np.isnan(total).any():
            raise InputError(
                f"{op}: SciPy used more than {_MOST} intervals, the limit for gradients inside ad.compile.\n"
                f"  Pass larger tolerances, or call {op} outside of the compiled function."
            )
        _confirm(op, away.max(initial=0), size, error.max(initial=0))

    away, size = (abs(v).max() if v.size else 0.0 * error for v in (again - value, value))
    found = unknown(stack([away, size, error, sum(weights)]).detach())
    if found is not None:
        found.check(check)
    return again + (value - again.detach()), error


def _infinite(x: Any) -> bool:
    return isinstance(x, (int, float, np.number)) and not isinstance(x, Unknown) and math.isinf(x)


def _gauss(ends: Any, far: bool, intervals: Any) -> tuple[Any, Any]:
    """Return the points and weights of Gauss's rule on all ``intervals``, relative to the limits ``ends``.

    ``_placed`` converts them to arguments and factors.  ``far`` says whether a limit is infinite.
    """
    nodes, weights = np.polynomial.legendre.leggauss(21)
    first, last = ends
    if first == last:  # for an empty interval, the derivatives are those of (high - low) f(low)
        return np.zeros(21), weights / 2
    start, end = np.array(intervals, float).T[..., None]
    t, size = ((start + end) / 2 + (end - start) / 2 * nodes).ravel(), ((end - start) / 2 * weights).ravel()
    if not far:
        return (t - first) / (last - first), size / abs(last - first)
    away, size = (1 - t) / t, size / t**2  # QUADPACK's substitution for infinite limits
    both = math.isinf(first) and math.isinf(last)
    return (np.concatenate([away, -away]), np.concatenate([size, size])) if both else (away, size)


def _placed(point: Any, weight: Any, low: Tensor, high: Tensor, far: Any) -> tuple[Any, Any]:
    """Return the argument for the integrand and the factor of its value, for a point of Gauss's rule.

    Between finite limits, ``point`` is a number from 0 to 1.  If a limit is infinite (``far``), ``point`` is
    the distance from the finite limit, or from 0 if both are infinite.
    """
    if not any(far):
        return low + (high - low) * point, (high - low) * weight
    return asarray(point) if all(far) else low + point if far[1] else high - point, weight


def _padded(points: Any, weights: Any, count: int) -> tuple[Any, Any]:
    """Extend points and weights to length ``count`` and return both.

    The added points repeat the first point, with weight 0.
    """
    more = count - len(points)
    return np.concatenate([points, np.full(more, points[0])]), np.concatenate([weights, np.zeros(more)])


def _in_batch(op: str, batch: Batch, f: Any, low: Tensor, high: Tensor, solved: Any) -> tuple[Tensor, Any]:
    """Return the integral and its error inside ``vmap``.

    SciPy is called for each element; then Gauss's rule is applied to SciPy's intervals, for the derivatives.
    """
    limits = [[float(array_of(batch.element(i, t).detach())) for t in (low, high)] for i in range(batch.size)]
    a, b = np.array(limits).T
    if len({(math.isinf(x), math.isinf(y), y < x) for x, y in limits}) > 1:
        raise InputError(
            f"{op}: inside ad.vmap, the limits of all elements must be in the same order, and infinite for "
            f"all or for none.\n  Call {op} separately for the elements that differ."
        )
    if b[0] < a[0]:
        backwards, away = _in_batch(op, batch, f, high, low, solved)
        return -backwards, away
    found = [batch.outside(solved, batch.function(i, f), limits[i]) for i in range(batch.size)]
    value, error = np.stack([v for v, *_ in found]), np.array([e for _, e, _ in found])
    far = tuple(map(math.isinf, limits[0]))
    rules = [_gauss(ends, any(far), pairs) for (*_, pairs), ends in zip(found, limits, strict=True)]
    most = max(len(points) for points, _ in rules)
    points, weights = np.array([_padded(*rule, most) for rule in rules]).transpose(1, 2, 0)
    again: Any = 0.0
    for point, weight in zip(points, weights, strict=True):
        x, size = _placed(batch.inside(point), batch.inside(weight), low, high, far)
        again = again + size * f(x)
    confirmed = held(again.detach())
    if not has_history(again):
        return batch.inside(value), batch.inside(error)
    _confirm(op, np.abs(confirmed - value).max(initial=0), value, float(error.max()))
    return again + batch.inside(value - confirmed), batch.inside(error)


def _replayed(f: Callable[[Any], Tensor], low: Tensor, high: Tensor, ends: Any, intervals: Any) -> Tensor:
    """Return the integral of ``f``, as a differentiable tensor, by Gauss's rule on SciPy's intervals.

    ``ends`` are the values of the limits ``low`` and ``high``.
    """
    far = tuple(map(math.isinf, ends))
    points, weights = _gauss(ends, any(far), intervals)
    total: Any = 0.0
    for point, weight in zip(points.tolist(), weights.tolist(), strict=True):
        x, size = _placed(point, weight, low, high, far)
        total = total + size * f(x)
    return total


def _far(f: Callable[[Any], Tensor], t: Any, low: Tensor, high: Tensor, ends: Any) -> Any:
    """Return the integrand after QUADPACK's substitution, which maps an infinite interval to 0 < t ≤ 1.

    It is f at the distance (1 - t)/t from the finite limit, divided by t².  If both limits are infinite, it
    is the sum for both sides of 0.  ``ends`` are the values of the limits ``low`` and ``high``.
    """
    first, last = ends
    away = (1 - t) / t
    if math.isinf(first) and math.isinf(last):
        return (f(asarray(away)) + f(asarray(-away))) / t**2
    return f(low + away if math.isinf(last) else high - away) / t**2


globals().update(
    drop_ins(
        "integrate", {name: globals()[name] for name in __all__}, ("odeint", "quad", "quad_vec", "solve_ivp")
    )
)


def __getattr__(name: str) -> Any:
    """Return SciPy's own function, which raises an error for a tensor that requires grad."""
    return scipy_only("integrate", name)
