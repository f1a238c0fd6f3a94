"""SciPy's functions for roots, fixed points and minima in one unknown, and ``fsolve``, with derivatives.

SciPy finds the solution, with plain numbers.  Its derivatives with respect to the tensors that the function
uses come from the implicit function theorem.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.config import no_grad, special
from adjoint.core.convert import asarray
from adjoint.core.docstrings import SharedDoc
from adjoint.core.lifted import refuse_tracing
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.core.user_code import warn
from adjoint.core.values import varies
from adjoint.ops.reduce import floating
from adjoint.scipy.fallback import partial_result
from adjoint.scipy.problems import REPORT, Problem, as_args, first_of, plain_start, scipy_function, solved
from adjoint.transforms.reverse import grad
from adjoint.typing import ArrayLike

__all__ = [
    "bisect", "brenth", "brentq", "fixed_point", "fsolve", "minimize_scalar", "newton", "ridder",
    "root_scalar", "toms748",
]  # fmt: skip
__dir__ = sorted(__all__).copy


def _bracketed(name: str, f: Any, a: Any, b: Any, args: Any, full_output: bool, **options: Any) -> Any:
    function = Problem(name, f, args)
    run = lambda fs, a, b: scipy_function(name)(fs[0], a, b, full_output=True, **options)
    found, report = solved(name, run, [function], [a, b], REPORT * full_output)
    root = function.solution(found, report)
    if not full_output:
        return root
    report.root = root
    return root, report


_solver_doc = SharedDoc("""
    Parameters
    ----------
    args : tuple, optional
        Further arguments of the function; gradients flow to tensors among them.
    xtol : float, optional
        The absolute tolerance of the root.
    rtol : float, optional
        The relative tolerance.
    maxiter : int, optional
        The largest number of steps.
    full_output : bool, optional
        Whether to return SciPy's report, too.
    disp : bool, optional
        Whether to raise an error if the method does not converge.
    x0 : array_like
        The starting point.
    options : dict, optional
        SciPy's options of the method.
    tol : float, optional
        The tolerance.
    bracket : pair of float, optional
        An interval with different signs at its ends.
    fprime2 : callable or bool, optional
        The second derivative.
    x1 : float, optional
        The second start.

    Returns
    -------
    Tensor
        The root.  Gradients flow to the tensors that the function uses, not to ``x0``.  With
        ``full_output=True`` a tuple as in SciPy.
    """)
_bracket_doc = _solver_doc.extended("""
    Parameters
    ----------
    f : callable
        A function ``f(x, *args)`` of one number, which returns one number.
    a : float
        One end of the interval.
    b : float
        The other end; the function must have the opposite sign there.

    Returns
    -------
    Tensor
        The root.  Gradients flow to the tensors that the function uses, not to ``a`` and ``b``.  With
        ``full_output=True``, a pair of the root and SciPy's report.
    """)

_BRACKETED = """Find a root in an interval, by {how}.

Examples
--------
>>> import adjoint as ad
>>> square_root = lambda a: ad.scipy.optimize.{name}(lambda x: x * x - a, 0.0, 4.0)
>>> round(float(ad.grad(square_root)(4.0)), 9)
0.25
"""


def _bracketing(name: str, how: str) -> Callable[..., Any]:
    def find(
        f: Callable[..., Any],
        a: float,
        b: float,
        args: Any = (),
        xtol: float = 2e-12,
        rtol: float = 4 * np.finfo(float).eps,
        maxiter: int = 100,
        full_output: bool = False,
        disp: bool = True,
    ) -> Any:
        return _bracketed(
            name, f, a, b, args, full_output, xtol=xtol, rtol=rtol, maxiter=maxiter, disp=disp
        )  # fmt: skip

    find.__name__ = find.__qualname__ = name
    find.__doc__ = _BRACKETED.format(name=name, how=how)
    return _bracket_doc(find)


brentq = _bracketing("brentq", "Brent's method with inverse quadratic extrapolation")
brenth = _bracketing("brenth", "Brent's method with hyperbolic extrapolation")
bisect = _bracketing("bisect", "bisection")
ridder = _bracketing("ridder", "Ridder's method")


@_bracket_doc
def toms748(
    f: Callable[..., Any],
    a: float,
    b: float,
    args: Any = (),
    k: int = 1,
    xtol: float = 2e-12,
    rtol: float = 4 * np.finfo(float).eps,
    maxiter: int = 100,
    full_output: bool = False,
    disp: bool = True,
) -> Any:
    """Find a root in an interval, by algorithm 748 of Alefeld, Potra and Shi.

    Parameters
    ----------
    k : int, optional
        The number of Newton steps per iteration.

    Examples
    --------
    >>> import adjoint as ad
    >>> square_root = lambda a: ad.scipy.optimize.toms748(lambda x: x * x - a, 0.0, 4.0)
    >>> round(float(ad.grad(square_root)(4.0)), 9)
    0.25
    """
    options = {"k": k, "xtol": xtol, "rtol": rtol, "maxiter": maxiter, "disp": disp}
    return _bracketed("toms748", f, a, b, args, full_output, **options)


@_solver_doc
def newton(
    func: Callable[..., Any],
    x0: ArrayLike,
    fprime: Callable[..., Any] | None = None,
    args: Any = (),
    tol: float = 1.48e-08,
    maxiter: int = 50,
    fprime2: Callable[..., Any] | None = None,
    x1: ArrayLike | None = None,
    rtol: float = 0.0,
    full_output: bool = False,
    disp: bool = True,
) -> Any:
    """Find a root near a start, by Newton's, Halley's or the secant method.

    Parameters
    ----------
    func : callable
        A function ``func(x, *args)`` whose result has the shape of ``x``; elements are independent.
    fprime : callable, optional
        The derivative; the secant method is used without it.
    tol : float, optional
        The absolute tolerance of the root.
    fprime2 : callable, optional
        The second derivative, for Halley's method.
    x1 : array_like, optional
        The second start of the secant method.

    Examples
    --------
    >>> import adjoint as ad
    >>> cube_root = lambda a: ad.scipy.optimize.newton(lambda x: x ** 3 - a, 1.5)
    >>> round(float(ad.grad(cube_root)(8.0)), 6)
    0.083333
    """
    args = as_args(args, lists=True)
    function = Problem("newton", func, args)
    slopes = [None if f is None else Problem("newton", f, args) for f in (fprime, fprime2)]

    def run(fs: Any, x0: Any, x1: Any) -> Any:
        return scipy_function("newton")(
            fs[0], x0, fs[1], tol=tol, maxiter=maxiter, fprime2=fs[2], x1=x1, rtol=rtol,
            full_output=True, disp=disp,
        )  # fmt: skip

    found = solved("newton", run, [function, *slopes], [x0, x1], REPORT * full_output)
    root, *rest = found
    joined = function.solution(root, rest[0])
    if not full_output:
        return joined
    if hasattr(rest[0], "root"):  # the report of a scalar problem contains the root
        rest[0].root = joined
    return type(found)(joined, *rest) if hasattr(found, "_fields") else (joined, *rest)


def _together(f: Callable[..., Any], args: Any) -> Callable[..., Any]:
    """Return a function of numbers for SciPy that returns all results of ``f``: value and derivatives."""

    def together(x: Any, *_: Any) -> Any:
        with no_grad():
            return tuple(asarray(v).numpy().item() for v in f(asarray(x), *args))

    return together


@_solver_doc
def root_scalar(
    f: Callable[..., Any],
    args: Any = (),
    method: str | None = None,
    bracket: Any = None,
    fprime: Any = None,
    fprime2: Any = None,
    x0: float | None = None,
    x1: float | None = None,
    xtol: float | None = None,
    rtol: float | None = None,
    maxiter: int | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """Find a root of a function of one number.

    Parameters
    ----------
    f : callable
        A function ``f(x, *args)`` of one number, which returns one number.  With ``fprime=True`` it returns
        the derivative, too, and with ``fprime2=True`` also the second one.
    method : str, optional
        SciPy's name of the method.
    fprime : callable or bool, optional
        The derivative.
    x0 : float, optional
        The starting point.

    Returns
    -------
    RootResults
        SciPy's result.  Its ``root`` is a tensor.

    Examples
    --------
    >>> import adjoint as ad
    >>> find = lambda a: ad.scipy.optimize.root_scalar(lambda x: ad.exp(x) - a, bracket=(-5, 5)).root
    >>> round(float(ad.grad(find)(4.0)), 9)
    0.25
    """
    several = any(s is not None and not callable(s) and bool(s) for s in (fprime, fprime2))
    function = Problem("root_scalar", first_of(f) if several else f, args)
    slopes = [Problem("root_scalar", s, args) if callable(s) else None for s in (fprime, fprime2)]

    def run(fs: Any, a: Any, b: Any, x0: Any, x1: Any) -> Any:
        result = scipy_function("root_scalar")(
            _together(f, function.args) if several else fs[0],
            method=method, bracket=None if bracket is None else [a, b],
            fprime=fs[1] or fprime, fprime2=fs[2] or fprime2, x0=x0, x1=x1,
            xtol=xtol, rtol=rtol, maxiter=maxiter, options=options,
        )  # fmt: skip
        return result.root, result

    starts = [*((None, None) if bracket is None else bracket), x0, x1]
    if several and special.count:
        refuse_tracing("root_scalar with fprime=True", "Pass the derivative as a function.")
    found, report = solved("root_scalar", run, [function, *slopes], starts, "fprime=True" * several)
    result = partial_result({"converged": report}) if isinstance(report, Tensor) else report
    result.root = function.solution(found, report)
    return result


@_solver_doc
def fsolve(
    func: Callable[..., Any],
    x0: ArrayLike,
    args: Any = (),
    fprime: Any = None,
    full_output: bool = False,
    **options: Any,
) -> Any:
    """Find a root of as many equations as there are unknowns.

    Parameters
    ----------
    func : callable
        A function ``func(x, *args)`` of a vector, which returns as many numbers.
    fprime : callable, optional
        The Jacobian of ``func``; by default SciPy estimates it.
    full_output : bool, optional
        Whether to return SciPy's report, its flag and its message, too.
    **options : optional
        Other parameters of SciPy's function: ``xtol``, ``maxfev``, ``band``, ``epsfcn``, ``factor``, …

    Examples
    --------
    >>> import adjoint as ad
    >>> find = lambda a: ad.scipy.optimize.fsolve(lambda x: [x[0] + x[1] - a, x[0] - x[1]], [1.0, 1.0])
    >>> ad.jacobian(find)(3.0).round(6)
    array([0.5, 0.5])
    """
    function = Problem("fsolve", func, args)

    slope = (lambda x: asarray(fprime(x, *function.args))) if fprime else None

    def run(fs: Any, x0: Any) -> Any:
        start = np.asarray(x0, float)
        found = scipy_function("fsolve")(fs[0], start, fprime=fs[1], full_output=True, **options)
        *_, flag, message = found
        if flag != 1 and not full_output:  # as SciPy does
            warn(message, RuntimeWarning)
        return found[0], scipy_function("OptimizeResult")(success=flag == 1, message=message), *found[1:]

    start = rec.reshape(asarray(x0), shape=(-1,)) if not np.ndim(x0) else x0
    found, report, *rest = solved("fsolve", run, [function, slope], [start], REPORT * full_output)
    root = function.solution(found, report)
    return (root, *rest) if full_output else root


@_solver_doc
def fixed_point(
    func: Callable[..., Any],
    x0: ArrayLike,
    args: Any = (),
    xtol: float = 1e-08,
    maxiter: int = 500,
    method: str = "del2",
) -> Any:
    """Find x with ``func(x, *args) == x``.

    Parameters
    ----------
    func : callable
        A function whose result has the shape of ``x``.
    xtol : float, optional
        The relative tolerance.
    method : {"del2", "iteration"}, optional
        Whether to accelerate the iteration.

    Returns
    -------
    Tensor
        The solution.  Gradients flow to the tensors that the function uses, not to ``x0``.

    Examples
    --------
    >>> import adjoint as ad
    >>> heron = lambda a: ad.scipy.optimize.fixed_point(lambda x: (x + a / x) / 2, 1.0)
    >>> round(float(ad.grad(heron)(4.0)), 9)
    0.25
    """
    function = Problem("fixed_point", func, as_args(args, lists=True))

    def run(fs: Any, x0: Any) -> Any:
        start = np.asarray(x0, float)
        return scipy_function("fixed_point")(fs[0], start, xtol=xtol, maxiter=maxiter, method=method), None

    found, _ = solved("fixed_point", run, [function], [x0])
    return function.solution(found, None, lambda x: function(x) - x)


@_solver_doc
def minimize_scalar(
    fun: Callable[..., Any],
    bracket: Any = None,
    bounds: Any = None,
    args: Any = (),
    method: str | None = None,
    tol: float | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """Minimise a function of one number.

    Parameters
    ----------
    fun : callable
        A function ``fun(x, *args)`` of one number, which returns one number.
    bracket : sequence of float, optional
        Two or three numbers around the minimum.
    bounds : pair of float, optional
        The bounds of the unknown.
    method : {"brent", "bounded", "golden"}, optional
        SciPy's name of the method.

    Returns
    -------
    OptimizeResult
        SciPy's result.  Its ``x`` and ``fun`` are tensors.  The derivatives of a minimum at a bound are 0.

    Examples
    --------
    >>> import adjoint as ad
    >>> best = lambda a: ad.scipy.optimize.minimize_scalar(lambda x: (x - a) ** 2 + x ** 4).x
    >>> round(float(ad.grad(best)(3.0)), 6)  # 2 / (2 + 12 x²) at x = 1
    0.142857
    """
    function = Problem("minimize_scalar", fun, args)
    count = 0 if bounds is None else 2

    def run(fs: Any, *given: Any) -> Any:
        ends, around = [*map(float, given[:count])] or None, [*map(float, given[count:])] or None
        result = scipy_function("minimize_scalar")(
            fs[0], bracket=around, bounds=ends, method=method, tol=tol, options=options
        )
        return result.x, result

    starts = [*(() if bounds is None else bounds), *(() if bracket is None else bracket)]
    found, result = solved("minimize_scalar", run, [function], starts)
    # the bounded method stops at this distance from a bound
    xatol = (options or {}).get("xatol", 1e-5 if tol is None else tol)
    near = 2 * xatol + 4 * math.sqrt(np.finfo(float).eps) * abs(found)
    if isinstance(result, Tensor):
        best = _traced_minimum(function, found, result, starts[:count], near)
        return partial_result({"x": best, "fun": function(best), "success": result})
    ends = None if bounds is None else [float(plain_start(b)) for b in bounds]
    x, result.x = float(result.x), asarray(result.x)
    moves = ends is None or not result.success or all(abs(x - end) > near for end in ends)
    if moves and varies(function(result.x)):
        slope = grad(lambda v: floating("minimize_scalar", function(v)))
        result.x = function.solution(x, result, slope)
    result.fun = function(result.x)
    return result


def _traced_minimum(function: Problem, x: Tensor, success: Tensor, ends: Any, near: Tensor) -> Tensor:
    """Return a minimum as a tensor with derivatives, inside ``ad.compile`` or ``ad.vmap``.

    ``x`` is SciPy's solution, and ``success`` says whether it was found.  If ``x`` is at one of the ``ends``
    of the interval, that is, at most ``near`` away, its derivatives are 0.
    """
    slope = grad(lambda v: floating("minimize_scalar", function(v)))

    def free(v: Tensor) -> Tensor:
        found = slope(v)
        for end in ends:
            found = rec.where((abs(x - asarray(end).detach()) > near) | ~success, found, v - x)
        return found

    return function.solution(x, success, free)
