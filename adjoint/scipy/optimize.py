"""``scipy.optimize`` on tensors: minima, roots and fits with exact derivatives.

SciPy's solvers get gradients, Jacobians and Hessian products from adjoint.  The solution is a function of the
tensors that the problem uses besides the unknowns; gradients flow to them by the implicit function theorem.
Other names, such as ``linprog``, are SciPy's own functions, which raise ``LostHistoryError`` for a tensor
that requires grad.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.config import grad_mode, special
from adjoint.core.convert import asarray
from adjoint.core.docstrings import SharedDoc
from adjoint.core.lifted import refuse_tracing
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.core.values import unknown, varies
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.interop import scipy as solvers
from adjoint.ops.reduce import floating, sum
from adjoint.ops.solvers import inv, solve_triangular
from adjoint.scipy.batches import solve_each
from adjoint.scipy.fallback import drop_ins, partial_result, scipy_only
from adjoint.scipy.problems import as_args, as_vector, first_of
from adjoint.scipy.roots import (
    bisect,
    brenth,
    brentq,
    fixed_point,
    fsolve,
    minimize_scalar,
    newton,
    ridder,
    root_scalar,
    toms748,
)
from adjoint.transforms.convergence import Outcome
from adjoint.transforms.flat_tree import FlatTree
from adjoint.transforms.matrix import jacrev
from adjoint.transforms.reverse import grad
from adjoint.transforms.solution import joined_solution
from adjoint.typing import ArrayLike, Tree

__all__ = [
    "bisect", "brenth", "brentq", "curve_fit", "fixed_point", "fsolve", "least_squares", "leastsq",
    "minimize", "minimize_scalar", "newton", "ridder", "root", "root_scalar", "toms748",
]  # fmt: skip
__dir__ = sorted(__all__).copy


def _joined(
    op: str,
    equation: Callable[[Tensor], Tensor],
    x0: Any,
    result: Any,
    bounds: Any,
    refused: str = "",
    sparse: bool = False,
    **values: Callable[[Tensor], Any],
) -> Any:
    """Return ``result`` with a solution that is a differentiable function of the tensors in ``equation``.

    ``equation`` is zero at the solution, except for unknowns at a bound, which do not vary.  If the solver
    failed, an unknown at a bound does not vary only if its gradient points to the outside.  ``values`` are
    functions that compute other entries of the result at the solution.  Derivatives that the solver estimated
    are left out, because they would be constants.  If ``refused`` names an option without derivatives, raise
    if the solution depends on tensors that require grad.  ``sparse`` is that of ``joined_solution``.
    """
    batch, success = result.pop("batch", None), result.pop("found", result.success)
    if batch is None and not grad_mode.get() and not special.count:
        return result
    lift = asarray if batch is None else batch.inside
    traced = isinstance(result.x_flat, Tensor)  # inside ad.compile
    flat = result.x_flat if traced else np.array(result.x_flat, np.float64)
    there, success = lift(flat), success if batch is None else lift(success)
    (low, high), outcome = _at_bounds(flat, bounds), Outcome(success, result.get("message", ""))
    some = bounds is not None and (traced or (low | high).any())

    def free(x: Tensor) -> Tensor:
        found = equation(x)
        if not some:
            return found
        fixed = lift(low | high)
        if not outcome.certain:
            fixed = (fixed & success) | (lift(low) & (found > 0)) | (lift(high) & (found < 0))
        return rec.where(fixed, x - there, found)

    if refused:
        if varies(free(there)):
            raise InputError(
                f"{op}: the solution depends on tensors that require grad, but derivatives are not available "
                f"with {refused}.\n"
                "  Detach those tensors (t.detach()) if you need no derivatives of the solution; otherwise "
                f"do not use {refused}."
            )
        return result
    solution = joined_solution(op, free, there, outcome, sparse)
    result.x = FlatTree(op, x0, np.float64).unflatten(solution)
    if traced or varies(solution):
        result.update({name: compute(solution) for name, compute in values.items()})
        for name in ("jac", "hess", "hess_inv", "grad"):
            result.pop(name, None)
        return partial_result(result)
    return result


def _at_bounds(x: Any, bounds: Any) -> Any:
    """Return a mask of the unknowns ``x`` at their lower bound, and a mask of those at their upper bound."""
    if bounds is None:
        return (np.zeros(x.shape, bool),) * 2
    if hasattr(bounds, "lb"):
        low, high = bounds.lb, bounds.ub
    else:
        low = [-np.inf if b[0] is None else b[0] for b in bounds]
        high = [np.inf if b[1] is None else b[1] for b in bounds]
    low, high = (np.broadcast_to(np.asarray(b, float), x.shape) for b in (low, high))
    near = 1e-9 * (1 + abs(x))
    return x - low <= near, high - x <= near


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _pairs(bounds: Any, shape: Any) -> Any:
    """Return ``Bounds``, or lower and upper bounds as a list with a pair for each unknown."""
    if hasattr(bounds, "lb"):
        return bounds
    low, high = (np.broadcast_to(np.asarray(b, float), shape) for b in bounds)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _start(x0: Any) -> Any:
    """Return ``x0`` unchanged, or as a vector if it is a list of numbers, as SciPy does."""
    if isinstance(x0, (list, tuple)) and all(isinstance(v, (int, float, np.number)) for v in x0):
        return np.array(x0, np.float64)
    return x0


_solver_doc = SharedDoc("""
    Parameters
    ----------
    x0 : tree
        The starting point: a tensor, an array, a number or a tree of them.
    args : tuple, optional
        Further arguments of the function; gradients flow to tensors among them.
    method : str, optional
        SciPy's name of the method.
    tol : float, optional
        The tolerance.
    options : dict, optional
        SciPy's options of the method.
    jac : object, optional
        Not used: adjoint computes the Jacobian.
    hess : object, optional
        Not used: adjoint computes the Hessian.
    hessp : object, optional
        Not used: adjoint computes products with the Hessian.
    constraints : dict or sequence of dict, optional
        SciPy's constraints, with functions of tensors.  Such a solution has no derivatives.
    loss : str, optional
        SciPy's name of the loss.
    f_scale : float, optional
        The scale of the loss.
    kwargs : dict, optional
        Further arguments of the function, passed by name.
    bounds : pair of array_like or Bounds, optional
        The lower and upper bounds of the unknowns, as vectors.
    sparse : bool, optional
        Whether the solver and the derivatives of the solution use sparse matrices.
    """)


@_solver_doc
def minimize(
    fun: Callable[..., Any],
    x0: Tree,
    args: Any = (),
    method: str | None = None,
    jac: Any = None,
    hess: Any = None,
    hessp: Any = None,
    bounds: Any = None,
    constraints: Any = (),
    tol: float | None = None,
    callback: Any = None,
    options: dict[str, Any] | None = None,
    *,
    sparse: bool = False,
) -> Any:
    """Minimise a function, with exact derivatives.

    Parameters
    ----------
    fun : callable
        A function ``fun(x, *args)`` that returns one number, or a pair of it and the gradient if
        ``jac=True``.
    jac : object, optional
        True if ``fun`` returns a pair, of which only the value is used: adjoint computes the gradient.
        Anything else is ignored.
    bounds : sequence of pairs or Bounds, optional
        The bounds of the unknowns: one pair for each number in ``x0``.
    callback : callable, optional
        Called after each step with the unknowns.
    sparse : bool, optional
        Whether the derivatives of the solution use the sparse Hessian.  The solver gets it, too, if the
        method is "trust-constr", "newton-cg", "trust-ncg" or "trust-krylov".

    Returns
    -------
    OptimizeResult
        SciPy's result; ``x`` has the structure of ``x0``.  Gradients flow from ``x`` and ``fun`` to the
        tensors that the function uses; the derivatives of unknowns at a bound are 0.  If there are such
        tensors, the result has no ``jac`` and no ``hess_inv``, because gradients could not flow through them.

    Raises
    ------
    InputError
        If a solution with constraints depends on tensors that require grad.

    Examples
    --------
    >>> import adjoint as ad
    >>> best = lambda a: ad.scipy.optimize.minimize(lambda x: ((x - a) ** 2).sum(), [0.0, 0.0]).x.sum()
    >>> round(float(ad.grad(best)(3.0)), 6)
    2.0
    """
    f, x0 = first_of(fun) if jac is True else fun, _start(x0)
    more = _given(bounds=bounds, tol=tol, callback=callback, options=options)
    limited = not (isinstance(constraints, (tuple, list)) and not constraints)
    if limited:
        more["constraints"] = constraints
        if special.count:
            refuse_tracing("minimize with constraints=", "Call it outside of the compiled function.")
    solver_gets = sparse and solvers.takes_sparse(method)
    solve = lambda g, x: solvers.minimize(g, x, (), method, sparse=solver_gets, **more)
    result = solve_each("minimize", solve, lambda x: f(x, *as_args(args)), x0, method, solver_gets)
    flat = FlatTree("minimize", x0, np.float64)
    value = lambda x: f(flat.unflatten(x), *as_args(args))
    return _joined("minimize", grad(value), x0, result, bounds, "constraints" * limited, sparse, fun=value)


@_solver_doc
def root(
    fun: Callable[..., Any],
    x0: Tree,
    args: Any = (),
    method: str = "hybr",
    jac: Any = None,
    tol: float | None = None,
    callback: Any = None,
    options: dict[str, Any] | None = None,
    *,
    sparse: bool = False,
) -> Any:
    """Find a root of a function, with the exact Jacobian.

    Parameters
    ----------
    fun : callable
        A function ``fun(x, *args)`` that returns as many numbers as ``x`` has.
    callback : callable, optional
        Called after each step of some methods.
    sparse : bool, optional
        Whether the solver, which is the method "krylov" then, and the derivatives of the solution use the
        sparse Jacobian.

    Returns
    -------
    OptimizeResult
        SciPy's result; ``x`` has the structure of ``x0``.  Gradients flow from ``x`` to the tensors that the
        function uses.

    Examples
    --------
    >>> import adjoint as ad
    >>> cube_root = lambda a: ad.scipy.optimize.root(lambda x: x ** 3 - a, 1.0).x
    >>> round(float(ad.grad(cube_root)(8.0)), 9)
    0.083333333
    """
    f, x0 = first_of(fun) if jac is True else fun, _start(x0)
    more = _given(tol=tol, callback=callback, options=options)
    solve = lambda g, x: solvers.root(g, x, (), method, sparse=sparse, **more)
    result = solve_each("root", solve, lambda x: f(x, *as_args(args)), x0, method, sparse)
    flat = FlatTree("root", x0, np.float64)
    equation = lambda x: _vector(f(flat.unflatten(x), *as_args(args)))
    return _joined("root", equation, x0, result, None, "", sparse)


def _vector(values: Any) -> Tensor:
    leaves = values if isinstance(values, (tuple, list)) else [values]
    parts = [floating("optimize", v) for v in leaves]
    flat = [rec.reshape(p, shape=(p.size,)) for p in parts]
    return flat[0] if len(flat) == 1 else rec.concat(*flat, axis=-1)


# The functions ρ(z) of SciPy's losses, where z are the squared residuals
_LOSSES: dict[str, Callable[[Any], Any]] = {
    "linear": lambda z: z,
    "soft_l1": lambda z: 2 * (rec.sqrt(1 + z) - 1),
    "huber": lambda z: rec.where(z <= 1, z, 2 * rec.sqrt(rec.where(z <= 1, 1.0, z)) - 1),
    "cauchy": lambda z: rec.log1p(z),
    "arctan": lambda z: rec.atan(z),
}


@_solver_doc
def least_squares(
    fun: Callable[..., Any],
    x0: Tree,
    jac: Any = None,
    bounds: Any = (-np.inf, np.inf),
    method: str = "trf",
    *,
    loss: str = "linear",
    f_scale: float = 1.0,
    args: Any = (),
    kwargs: dict[str, Any] | None = None,
    sparse: bool = False,
    **options: Any,
) -> Any:
    """Minimise a sum of squares, with the exact Jacobian.

    Parameters
    ----------
    fun : callable
        A function ``fun(x, *args, **kwargs)`` that returns the residuals.
    method : {"trf", "dogbox", "lm"}, optional
        SciPy's name of the method.
    **options : optional
        Other parameters of SciPy's function: ``ftol``, ``xtol``, ``gtol``, ``x_scale``, ``max_nfev``, …
    sparse : bool, optional
        Whether the solver, which is "trf" or "dogbox" then, and the derivatives of the solution use sparse
        matrices.

    Returns
    -------
    OptimizeResult
        SciPy's result; ``x`` has the structure of ``x0``.  Gradients flow from ``x``, ``fun`` and ``cost`` to
        the tensors that the function uses; the derivatives of unknowns at a bound are 0.  If there are such
        tensors, the result has no ``jac`` and no ``grad``, which would be constants.

    Raises
    ------
    ArgumentError
        If the loss is unknown.

    Examples
    --------
    >>> import adjoint as ad, numpy as np
    >>> data = np.array([1.0, 2.0, 6.0])
    >>> mean = lambda y: ad.scipy.optimize.least_squares(lambda m: m - y, 0.0).x
    >>> ad.grad(mean)(data).round(6)
    array([0.333333, 0.333333, 0.333333])
    """
    if loss not in _LOSSES:
        raise ArgumentError(f"least_squares: loss must be one of {', '.join(_LOSSES)}, not {loss!r}.")
    named, x0 = kwargs or {}, _start(x0)
    f: Callable[[Any], Tensor] = lambda x: _vector(fun(x, *as_args(args, lists=True), **named))
    given = {"bounds": bounds, "method": method, "loss": loss, "f_scale": f_scale, **options}
    solve = lambda g, x: solvers.least_squares(g, x, sparse=sparse, **given)
    result = solve_each("least_squares", solve, f, x0, sparse=sparse)
    flat = FlatTree("least_squares", x0, np.float64)

    def cost(x: Tensor) -> Tensor:
        r = f(flat.unflatten(x)) / f_scale
        return 0.5 * f_scale**2 * sum(_LOSSES[loss](r * r))

    bounds = _pairs(bounds, result.x_flat.shape[-1:])
    values = {"cost": cost, "fun": lambda x: f(flat.unflatten(x))}
    return _joined("least_squares", grad(cost), x0, result, bounds, "", sparse, **values)


_FLAGS = (0, 5, 4, 1, 2, 3)  # MINPACK's flags for the status -1 to 4 of least_squares


def leastsq(
    func: Callable[..., Any],
    x0: ArrayLike,
    args: Any = (),
    Dfun: Any = None,
    full_output: bool = False,
    **options: Any,
) -> Any:
    """Minimise a sum of squares by the method of Levenberg and Marquardt, with the exact Jacobian.

    Parameters
    ----------
    func : callable
        A function ``func(x, *args)`` that returns the residuals.
    x0 : array_like
        The starting point.
    args : tuple, optional
        Further arguments of the function; gradients flow to tensors among them.
    Dfun : object, optional
        Not used: adjoint computes the Jacobian.
    full_output : bool, optional
        Whether to return the inverse of JᵀJ, a dictionary and a message, too.  The inverse is None if JᵀJ is
        singular.  The dictionary has ``nfev`` and ``fvec``, not MINPACK's ``fjac``, ``ipvt`` and ``qtf``.
    **options : optional
        Options of ``least_squares``: ``ftol``, ``xtol``, ``gtol``, …

    Returns
    -------
    tuple
        The solution, a tensor, and MINPACK's flag, which is 1 to 4 if it was found; with ``full_output=True``
        the solution, the inverse, the dictionary, the message and the flag.

    Examples
    --------
    >>> import adjoint as ad, numpy as np
    >>> mean = lambda y: ad.scipy.optimize.leastsq(lambda m: m - y, [0.0])[0].sum()
    >>> ad.grad(mean)(np.array([1.0, 5.0]))
    array([0.5, 0.5])
    """
    start = as_vector("leastsq", x0, full_output)
    if "maxfev" in options:
        options["max_nfev"] = options.pop("maxfev") or None
    found = least_squares(func, start, method="lm", args=as_args(args), **options)
    flag = (asarray(_FLAGS) if isinstance(found.status, Tensor) else _FLAGS)[found.status + 1]
    if not full_output:
        return found.x, flag

    def residuals(x: Tensor) -> Tensor:
        return _vector(func(x, *as_args(args)))

    slopes = jacrev(residuals)(found.x)
    try:
        spread = inv(rec.matmul(rec.matrix_transpose(slopes), slopes))
    except np.linalg.LinAlgError:
        spread = None
    return found.x, spread, {"nfev": found.nfev, "fvec": residuals(found.x)}, found.message, flag


_fit_doc = _solver_doc.extended("""
    Parameters
    ----------
    f : callable
        The model, ``f(xdata, *parameters)``.
    xdata : object
        The independent variable of the model.
    ydata : array_like
        The data.
    p0 : sequence of float, optional
        The initial parameters; ones by default.
    sigma : array_like, optional
        Standard deviations of the data, or their covariance matrix.
    absolute_sigma : bool, optional
        Whether ``sigma`` has absolute values; otherwise only their ratios matter.
    check_finite : bool, optional
        Ignored.
    bounds : pair of array_like or Bounds, optional
        The lower and upper bounds of the parameters.
    method : {"lm", "trf", "dogbox"}, optional
        SciPy's name of the method.
    full_output : bool, optional
        Whether to return a dictionary with ``nfev`` and the residuals ``fvec``, the solver's message and its
        status, too.
    nan_policy : str, optional
        Not supported: remove NaNs from the data instead.
    **kwargs : optional
        Options of ``least_squares``.
    """)


@_fit_doc
def curve_fit(
    f: Callable[..., Any],
    xdata: Any,
    ydata: ArrayLike,
    p0: Any = None,
    sigma: Any = None,
    absolute_sigma: bool = False,
    check_finite: bool | None = None,
    bounds: Any = (-np.inf, np.inf),
    method: str | None = None,
    jac: Any = None,
    *,
    full_output: bool = False,
    nan_policy: str | None = None,
    **kwargs: Any,
) -> Any:
    """Fit the parameters of a function to data, with the exact Jacobian.

    Returns
    -------
    tuple
        The parameters and their covariance matrix, as tensors; three more with ``full_output=True``.
        Gradients flow to the data, to ``sigma`` and to all tensors that the model uses.

    Raises
    ------
    InputError
        If the number of parameters cannot be found from the model, or ``nan_policy`` is given.
    RuntimeError
        If the fit does not converge.

    Examples
    --------
    >>> import adjoint as ad, numpy as np
    >>> x = np.linspace(0, 1, 5)
    >>> best, _ = ad.scipy.optimize.curve_fit(lambda x, a, b: a * ad.exp(b * x), x, 2 * np.exp(-x))
    >>> best.round(6)
    array([ 2., -1.])
    """
    if nan_policy is not None:
        raise InputError("curve_fit: nan_policy= is not available.  Remove the points that are NaN.")
    start = as_vector("curve_fit", np.ones(_count(f)) if p0 is None else p0, full_output)
    y, n = floating("curve_fit", ydata), len(start)
    whiten = _whitened(sigma, y)

    def residuals(p: Tensor) -> Tensor:
        model = floating("curve_fit", f(xdata, *(p[i] for i in range(n))))
        return whiten(rec.reshape(model - y, shape=(y.size,)))

    if "maxfev" in kwargs:
        kwargs["max_nfev"] = kwargs.pop("maxfev")
    chosen = method or ("trf" if _is_bounded(bounds) else "lm")
    result = least_squares(residuals, start, bounds=bounds, method=chosen, **kwargs)
    _check_fitted(result)
    r = residuals(result.x)
    found = result.x, _covariance(residuals, result.x, r, absolute_sigma)
    if full_output:
        return *found, {"nfev": result.nfev, "fvec": r}, result.message, result.status
    return found


def _is_bounded(bounds: Any) -> bool:
    edges = (bounds.lb, bounds.ub) if hasattr(bounds, "lb") else bounds
    return any(np.isfinite(np.asarray(b, float)).any() for b in edges)


def _check_fitted(result: Any) -> None:
    traced = unknown(result.success) if isinstance(result.success, Tensor) else None
    if traced is not None:
        traced.check(_check_fit)
    else:
        _check_fit(result.success, f": {result.message}")


def _covariance(f: Callable[[Tensor], Tensor], x: Tensor, r: Tensor, absolute: bool) -> Tensor:
    """Return the covariance matrix of the parameters ``x`` with the residuals ``r``, the values of ``f``."""
    slopes, n = jacrev(f)(x), x.shape[-1]
    covariance = inv(rec.matmul(rec.matrix_transpose(slopes), slopes))
    if absolute:
        return covariance
    return covariance * (sum(r * r) / (r.size - n)) if r.size > n else asarray(np.full((n, n), np.inf))


def _check_fit(success: Any, message: str = ".") -> None:
    if not np.all(success):
        raise RuntimeError(f"curve_fit: no optimal parameters were found{message}")


def _count(f: Callable[..., Any]) -> int:
    """Return the number of parameters of the model function ``f(x, *parameters)`` of ``curve_fit``."""
    try:
        given = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        given = []
    fixed = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(fixed) < 2 or len(fixed) < len([p for p in given if p.kind is not p.KEYWORD_ONLY]):
        raise InputError(
            "curve_fit: the number of parameters cannot be determined from the model's signature.  Pass p0=."
        )
    return len(fixed) - 1


def _whitened(sigma: Any, y: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that divides residuals by their standard deviations ``sigma``.

    If ``sigma`` is a covariance matrix, the function multiplies by the inverse of its Cholesky factor
    instead.
    """
    if sigma is None:
        return lambda r: r
    s = floating("curve_fit", sigma)
    if s.ndim <= 1 and s.shape in ((), (1,), (y.size,)):
        return lambda r: r / s
    if s.shape != (y.size, y.size):
        raise ShapeError(
            f"curve_fit: sigma must have shape ({y.size},) or ({y.size}, {y.size}) for {y.size} data points, "
            f"but has shape {s.shape}."
        )
    factor = rec.cholesky(s, upper=False)
    return lambda r: solve_triangular(factor, r, lower=True)


globals().update(drop_ins("optimize", {name: globals()[name] for name in __all__}, __all__))


def __getattr__(name: str) -> Any:
    """Return SciPy's own function, which raises an error for a tensor that requires grad."""
    return scipy_only("optimize", name)
