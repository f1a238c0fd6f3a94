"""Roots, fixed points and minima of SciPy's functions for one unknown, and ``fsolve``, with derivatives.

SciPy finds the solution, with plain numbers.  The implicit function theorem then connects it to the tensors
that the function uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.config import no_grad, special
from adjoint.core.convert import asarray
from adjoint.core.lifted import enclosing, refuse_tracing, tracing
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, Traced, varies
from adjoint.errors import DTypeError, InputError, ShapeError
from adjoint.ops.reduce import floating
from adjoint.scipy.batches import batch_of
from adjoint.scipy.fallback import scipy_module
from adjoint.transforms.implicit import joined_solution
from adjoint.transforms.inputs import as_function, name_of
from adjoint.transforms.reverse import grad
from adjoint.typing import ArrayLike

__all__ = [
    "bisect",
    "brenth",
    "brentq",
    "fixed_point",
    "fsolve",
    "minimize_scalar",
    "newton",
    "ridder",
    "root_scalar",
    "toms748",
]


_REPORT = "full_output=True"


def __dir__() -> list[str]:
    return sorted(__all__)


def first_of(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``fun`` and returns the first of its two results, the value."""
    return lambda *args: fun(*args)[0]


def as_args(args: Any, *, lists: bool = False) -> tuple[Any, ...]:
    """Return further arguments as a tuple, as SciPy does; a list is one argument unless ``lists`` is true."""
    return tuple(args) if isinstance(args, tuple) or (lists and isinstance(args, list)) else (args,)


class _Function:
    """A user's function of one array, for SciPy and for the implicit function theorem."""

    def __init__(self, op: str, f: Callable[..., Any], args: Any) -> None:
        self.op, self.f, self.args = op, as_function(op, f), as_args(args)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the value as a tensor of the shape of ``x``."""
        found = self.f(x, *self.args)
        y = asarray(list(found)) if isinstance(found, (list, tuple)) else asarray(found)
        if y.size != x.size:
            raise ShapeError(
                f"{self.op}: {name_of(self.f)} must return as many numbers as x has, {x.size}, "
                f"but returned shape {y.shape}."
            )
        return rec.reshape(y, shape=x.shape)

    def solution(self, x: Any, equation: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return SciPy's solution, connected to the tensors that the function uses."""
        values = x if isinstance(x, Tensor) else np.asarray(x)

        def residual(v: Tensor) -> Tensor:
            found = (equation or self)(rec.reshape(v, shape=values.shape))
            return rec.reshape(found, shape=(values.size,))

        if values.dtype.kind != "f":
            if varies(residual(asarray(values.reshape(-1)))):
                raise DTypeError(
                    f"{self.op}: the solution is {values.dtype}, but gradients need real floats."
                )
            return asarray(values)
        joined = joined_solution(self.op, residual, asarray(values.reshape(-1)))
        return rec.reshape(joined, shape=values.shape)


def _start(x: Any) -> Any:
    """Return a start value or the end of an interval as plain numbers: no gradient flows to it."""
    return asarray(x).detach().numpy()[()] if x is not None else None


def _scipy(name: str) -> Any:
    return getattr(scipy_module("optimize"), name)


def _numbers(f: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function of arrays as one for SciPy: its result is a number or an array of its own."""

    def numbers(x: Any, *_: Any) -> Any:
        (y,) = f(np.asarray(x, float))
        return y.copy() if y.ndim else y.item()

    return numbers


def _plain(f: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """Return a function of tensors as one for SciPy."""

    def numbers(x: Any, *_: Any) -> Any:
        with no_grad():
            y = f(asarray(x)).numpy()
        return y.copy() if y.ndim else y.item()

    return numbers


def _solved(op: str, run: Callable[..., Any], functions: Any, starts: Any, refused: str = "") -> Any:
    """Return ``run(functions, *starts)``, a pair of SciPy's solution and its report.

    Inside ``ad.compile`` SciPy runs at each call, and inside ``ad.vmap`` once for each element.  The solution
    is then a tensor of the shape of the first start, and the report is a tensor that is true if the method
    converged.  ``refused`` is an argument that is not supported there.
    """
    if not special.count or (trace := tracing.get()) is None:
        return _solved_each(op, run, functions, starts, refused)
    _refuse_report(op, refused)
    given = [asarray(x).detach().astype(np.float64) for x in starts if x is not None]
    spec = (given[0].shape if given else ()), np.dtype(np.float64)
    inner = [trace.function(op, f, [spec]) for f in functions if f is not None]

    def host(bound: Any, *arrays: Any) -> Any:
        own, left = map(_numbers, bound), iter(arrays)
        again = [None if x is None else next(left)[()] for x in starts]
        x, report, *_ = run([None if f is None else next(own) for f in functions], *again)
        return x, _converged(report)

    return trace.on_host(op, host, inner, given, [spec, ((), np.dtype(bool))])


def _converged(report: Any) -> Any:
    return getattr(report, "converged", getattr(report, "success", True))


def _solved_each(op: str, run: Callable[..., Any], functions: Any, starts: Any, refused: str) -> Any:
    """Return ``_solved`` outside of ``ad.compile``; inside ``ad.vmap``, call SciPy for each element."""
    batch = None
    if enclosing.get() is not None:
        given = [floating(op, x) for x in reversed(starts) if x is not None] or [asarray(1.0)]
        batch = batch_of(op, functions[0], *given)
    if batch is None:
        return run([f and _plain(f) for f in functions], *map(_start, starts))
    if refused:
        raise InputError(f"{op}: {refused} is not supported inside ad.vmap.\n  Leave it out there.")
    found = []
    for i in range(batch.size):
        own = [f and batch.function(i, f) for f in functions]
        ends = [None if x is None else batch.element(i, asarray(x)) for x in starts]
        x, report, *_ = batch.outside(_solved, op, run, own, ends)
        if isinstance(x, Tensor):
            raise InputError(f"{op}: nested ad.vmap is not supported.  Use only one ad.vmap.")
        found.append((x, _converged(report)))
    return [batch.inside(np.stack(rows)) for rows in zip(*found, strict=True)]


def _refuse_report(op: str, refused: str) -> None:
    if refused and special.count:
        refuse_tracing(f"{op} with {refused}", "Leave it out, or call it outside of the compiled function.")


def as_vector(op: str, x0: Any, full_output: bool) -> Any:
    """Return a start as a vector: plain numbers, or a tensor inside ``ad.compile`` and ``ad.vmap``."""
    _refuse_report(op, _REPORT * full_output)
    start = asarray(x0).detach()
    if not isinstance(start, Traced):
        return np.array(start.numpy(), float).reshape(-1)
    return rec.reshape(start.astype(np.float64), shape=(-1,))


def _bracketed(name: str, f: Any, a: Any, b: Any, args: Any, full_output: bool, **options: Any) -> Any:
    function = _Function(name, f, args)
    run = lambda fs, a, b: _scipy(name)(fs[0], a, b, full_output=True, **options)
    found, report = _solved(name, run, [function], [a, b], _REPORT * full_output)
    root = function.solution(found)
    if not full_output:
        return root
    report.root = root
    return root, report


_BRACKETED = """Find a root in an interval, by {how}.

    Parameters
    ----------
    f : callable
        A function ``f(x, *args)`` of one number, which returns one number.
    a : float
        One end of the interval.
    b : float
        The other end; the function has the opposite sign there.
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

    Returns
    -------
    Tensor
        The root.  Gradients flow to the tensors that the function uses, not to ``a`` and ``b``.  A pair with
        ``full_output=True``.

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
    return find


brentq = _bracketing("brentq", "Brent's method with inverse quadratic extrapolation")
brenth = _bracketing("brenth", "Brent's method with hyperbolic extrapolation")
bisect = _bracketing("bisect", "bisection")
ridder = _bracketing("ridder", "Ridder's method")


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
    f : callable
        A function ``f(x, *args)`` of one number, which returns one number.
    a : float
        One end of the interval.
    b : float
        The other end; the function has the opposite sign there.
    args : tuple, optional
        Further arguments of the function; gradients flow to tensors among them.
    k : int, optional
        The number of Newton steps per iteration.
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

    Returns
    -------
    Tensor
        The root.  Gradients flow to the tensors that the function uses, not to ``a`` and ``b``.  A pair with
        ``full_output=True``.

    Examples
    --------
    >>> import adjoint as ad
    >>> square_root = lambda a: ad.scipy.optimize.toms748(lambda x: x * x - a, 0.0, 4.0)
    >>> round(float(ad.grad(square_root)(4.0)), 9)
    0.25
    """
    options = {"k": k, "xtol": xtol, "rtol": rtol, "maxiter": maxiter, "disp": disp}
    return _bracketed("toms748", f, a, b, args, full_output, **options)


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
    x0 : array_like
        The starting point.
    fprime : callable, optional
        The derivative; the secant method is used without it.
    args : tuple, optional
        Further arguments of the function; gradients flow to tensors among them.
    tol : float, optional
        The absolute tolerance of the root.
    maxiter : int, optional
        The largest number of steps.
    fprime2 : callable, optional
        The second derivative, for Halley's method.
    x1 : array_like, optional
        The second start of the secant method.
    rtol : float, optional
        The relative tolerance.
    full_output : bool, optional
        Whether to return SciPy's report, too.
    disp : bool, optional
        Whether to raise an error if the method does not converge.

    Returns
    -------
    Tensor
        The root.  Gradients flow to the tensors that the function uses, not to ``x0``.  With
        ``full_output=True`` a tuple as in SciPy.

    Examples
    --------
    >>> import adjoint as ad
    >>> cube_root = lambda a: ad.scipy.optimize.newton(lambda x: x ** 3 - a, 1.5)
    >>> round(float(ad.grad(cube_root)(8.0)), 6)
    0.083333
    """
    args = as_args(args, lists=True)
    function = _Function("newton", func, args)
    slopes = [None if f is None else _Function("newton", f, args) for f in (fprime, fprime2)]

    def run(fs: Any, x0: Any, x1: Any) -> Any:
        found = _scipy("newton")(
            fs[0], x0, fs[1], tol=tol, maxiter=maxiter, fprime2=fs[2], x1=x1, rtol=rtol,
            full_output=full_output, disp=disp,
        )  # fmt: skip
        return found if full_output else (found, None)

    found = _solved("newton", run, [function, *slopes], [x0, x1], _REPORT * full_output)
    if not full_output:
        return function.solution(found[0])
    root, *rest = found
    joined = function.solution(root)
    if hasattr(rest[0], "root"):  # the report of a single number
        rest[0].root = joined
    return type(found)(joined, *rest) if hasattr(found, "_fields") else (joined, *rest)


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
    args : tuple, optional
        Further arguments of the function; gradients flow to tensors among them.
    method : str, optional
        SciPy's name of the method.
    bracket : pair of float, optional
        An interval with different signs at its ends.
    fprime : callable or bool, optional
        The derivative.
    fprime2 : callable or bool, optional
        The second derivative.
    x0 : float, optional
        The starting point.
    x1 : float, optional
        The second start.
    xtol : float, optional
        The absolute tolerance of the root.
    rtol : float, optional
        The relative tolerance.
    maxiter : int, optional
        The largest number of steps.
    options : dict, optional
        SciPy's options of the method.

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
    several = (fprime is not None and not callable(fprime) and bool(fprime)) or (
        fprime2 is not None and not callable(fprime2) and bool(fprime2)
    )
    function = _Function("root_scalar", first_of(f) if several else f, args)
    slopes = [_Function("root_scalar", s, args) if callable(s) else None for s in (fprime, fprime2)]

    def together(x: Any, *_: Any) -> Any:
        with no_grad():
            return tuple(asarray(v).numpy().item() for v in f(asarray(x), *function.args))

    def run(fs: Any, a: Any, b: Any, x0: Any, x1: Any) -> Any:
        result = _scipy("root_scalar")(
            together if several else fs[0], method=method, bracket=None if bracket is None else [a, b],
            fprime=fs[1] or fprime, fprime2=fs[2] or fprime2, x0=x0, x1=x1,
            xtol=xtol, rtol=rtol, maxiter=maxiter, options=options,
        )  # fmt: skip
        return result.root, result

    starts = [*((None, None) if bracket is None else bracket), x0, x1]
    if several and special.count:
        refuse_tracing("root_scalar with fprime=True", "Pass the derivative as a function.")
    found, result = _solved("root_scalar", run, [function, *slopes], starts, "fprime=True" * several)
    if isinstance(result, Tensor):
        result = _scipy("OptimizeResult")(converged=result)
    result.root = function.solution(found)
    return result


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
    x0 : array_like
        The starting point.
    args : tuple, optional
        Further arguments of the function; gradients flow to tensors among them.
    fprime : callable, optional
        The Jacobian; SciPy estimates it without.
    full_output : bool, optional
        Whether to return SciPy's report, its flag and its message, too.
    **options : optional
        Other parameters of SciPy's function: ``xtol``, ``maxfev``, ``band``, ``epsfcn``, ``factor``, …

    Returns
    -------
    Tensor
        The root.  Gradients flow to the tensors that the function uses, not to ``x0``.  With
        ``full_output=True`` a tuple as in SciPy.

    Examples
    --------
    >>> import adjoint as ad
    >>> find = lambda a: ad.scipy.optimize.fsolve(lambda x: [x[0] + x[1] - a, x[0] - x[1]], [1.0, 1.0])
    >>> ad.jacobian(find)(3.0).round(6)
    array([0.5, 0.5])
    """
    function = _Function("fsolve", func, args)

    slope = (lambda x: asarray(fprime(x, *function.args))) if fprime else None

    def run(fs: Any, x0: Any) -> Any:
        start = np.asarray(x0, float)
        found = _scipy("fsolve")(fs[0], start, fprime=fs[1], full_output=full_output, **options)
        return found if full_output else (found, None)

    start = rec.reshape(asarray(x0), shape=(-1,)) if not np.ndim(x0) else x0
    found = _solved("fsolve", run, [function, slope], [start], _REPORT * full_output)
    if not full_output:
        return function.solution(found[0])
    return (function.solution(found[0]), *found[1:])


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
    x0 : array_like
        The starting point.
    args : tuple, optional
        Further arguments of the function; gradients flow to tensors among them.
    xtol : float, optional
        The relative tolerance.
    maxiter : int, optional
        The largest number of steps.
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
    function = _Function("fixed_point", func, as_args(args, lists=True))

    def run(fs: Any, x0: Any) -> Any:
        start = np.asarray(x0, float)
        return _scipy("fixed_point")(fs[0], start, xtol=xtol, maxiter=maxiter, method=method), None

    found, _ = _solved("fixed_point", run, [function], [x0])
    return function.solution(found, lambda x: function(x) - x)


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
    args : tuple, optional
        Further arguments of the function; gradients flow to tensors among them.
    method : {"brent", "bounded", "golden"}, optional
        SciPy's name of the method.
    tol : float, optional
        The tolerance.
    options : dict, optional
        SciPy's options of the method.

    Returns
    -------
    OptimizeResult
        SciPy's result.  Its ``x`` and ``fun`` are tensors.  A minimum at a bound does not move.

    Examples
    --------
    >>> import adjoint as ad
    >>> best = lambda a: ad.scipy.optimize.minimize_scalar(lambda x: (x - a) ** 2 + x ** 4).x
    >>> round(float(ad.grad(best)(3.0)), 6)  # 2 / (2 + 12 x²) at x = 1
    0.142857
    """
    function = _Function("minimize_scalar", fun, args)
    count = 0 if bounds is None else 2

    def run(fs: Any, *given: Any) -> Any:
        ends, around = [*map(float, given[:count])] or None, [*map(float, given[count:])] or None
        result = _scipy("minimize_scalar")(
            fs[0], bracket=around, bounds=ends, method=method, tol=tol, options=options
        )
        return result.x, result

    starts = [*(() if bounds is None else bounds), *(() if bracket is None else bracket)]
    found, result = _solved("minimize_scalar", run, [function], starts)
    # the bounded method ends this far from a bound
    xatol = (options or {}).get("xatol", 1e-5 if tol is None else tol)
    near = 2 * xatol + 4 * math.sqrt(np.finfo(float).eps) * abs(found)
    if isinstance(result, Tensor):
        best = _traced_minimum(function, found, starts[:count], near)
        return _scipy("OptimizeResult")(x=best, fun=function(best), success=result)
    ends = None if bounds is None else [float(_start(b)) for b in bounds]
    x, result.x = float(result.x), asarray(result.x)
    moves = ends is None or all(abs(x - end) > near for end in ends)
    if moves and varies(function(result.x)):
        slope = grad(lambda v: floating("minimize_scalar", function(v)))
        result.x = function.solution(x, slope)
    result.fun = function(result.x)
    return result


def _traced_minimum(function: _Function, x: Tensor, ends: Any, near: Tensor) -> Tensor:
    """Return a minimum inside ``ad.compile`` or ``ad.vmap``; one at an end does not move."""
    slope = grad(lambda v: floating("minimize_scalar", function(v)))

    def free(v: Tensor) -> Tensor:
        found = slope(v)
        for end in ends:
            found = rec.where(abs(x - asarray(end).detach()) > near, found, v - x)
        return found

    return function.solution(x, free)
