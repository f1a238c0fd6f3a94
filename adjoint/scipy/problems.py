"""Call SciPy's solvers for one unknown or a vector: eagerly, inside ``ad.vmap``, or inside ``ad.compile``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.config import no_grad, special
from adjoint.core.convert import asarray
from adjoint.core.lifted import enclosing, refuse_tracing, tracing
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, Traced
from adjoint.core.values import varies
from adjoint.errors import DTypeError, InputError, ShapeError
from adjoint.ops.reduce import floating
from adjoint.scipy.batches import batch_of
from adjoint.scipy.fallback import scipy_module
from adjoint.transforms.convergence import Outcome
from adjoint.transforms.inputs import as_function, name_of
from adjoint.transforms.solution import joined_solution

__all__ = ["REPORT", "Problem", "as_args", "as_vector", "first_of", "plain_start", "scipy_function", "solved"]

REPORT = "full_output=True"


def first_of(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``fun`` and returns only the first of its results."""
    return lambda *args: fun(*args)[0]


def as_args(args: Any, *, lists: bool = False) -> tuple[Any, ...]:
    """Return ``args``, the further arguments of a user's function, as a tuple, as SciPy does.

    Anything but a tuple is one argument; but a list is several arguments if ``lists`` is true.
    """
    return tuple(args) if isinstance(args, tuple) or (lists and isinstance(args, list)) else (args,)


class Problem:
    """A user's function of the unknowns x, with its further arguments; the result has the shape of x."""

    def __init__(self, op: str, f: Callable[..., Any], args: Any) -> None:
        self.op, self.f, self.args = op, as_function(op, f), as_args(args)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the function's value at ``x``, as a tensor of the shape of ``x``."""
        found = self.f(x, *self.args)
        y = asarray(list(found)) if isinstance(found, (list, tuple)) else asarray(found)
        if y.size != x.size:
            raise ShapeError(
                f"{self.op}: {name_of(self.f)} must return as many numbers as x has, {x.size}, "
                f"but returned shape {y.shape}."
            )
        return rec.reshape(y, shape=x.shape)

    def solution(self, x: Any, report: Any, equation: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return SciPy's solution ``x`` as a tensor with derivatives, by the implicit function theorem.

        The derivatives are with respect to the tensors that the function uses.  ``report`` is SciPy's report,
        or a tensor that is true if the method converged.  ``equation`` is zero at the solution; by default it
        is the function itself.
        """
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
        joined = joined_solution(self.op, residual, asarray(values.reshape(-1)), _outcome(report))
        return rec.reshape(joined, shape=values.shape)


def plain_start(x: Any) -> Any:
    """Return ``x``, a start value or an end of an interval, as a NumPy number or array; keep None.

    No gradient flows to it.
    """
    return asarray(x).detach().numpy()[()] if x is not None else None


def scipy_function(name: str) -> Any:
    """Return the function ``name`` of ``scipy.optimize``; raise if SciPy is missing."""
    return getattr(scipy_module("optimize"), name)


def _numbers(f: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function for SciPy that calls the compiled function ``f``.

    Its result is a Python number, or a new array, which SciPy may write into.
    """

    def numbers(x: Any, *_: Any) -> Any:
        (y,) = f(np.asarray(x, float))
        return y.copy() if y.ndim else y.item()

    return numbers


def _plain(f: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """Return a function of arrays for SciPy that calls ``f``, a function of tensors, without gradients."""

    def numbers(x: Any, *_: Any) -> Any:
        with no_grad():
            y = f(asarray(x)).numpy()
        return y.copy() if y.ndim else y.item()

    return numbers


def solved(op: str, run: Callable[..., Any], functions: Any, starts: Any, refused: str = "") -> Any:
    """Return ``run(functions, *starts)``: SciPy's solution, its report, and perhaps more.

    Inside ``ad.compile``, ``run`` is called at each call of the compiled function, and inside ``ad.vmap``
    once for each element.  Then only two tensors are returned: the solution, with the shape of the first
    start, and whether the method converged.  ``refused`` names an argument that is not supported there; it is
    "" if the user did not pass it.
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
    """Return whether a method converged, from SciPy's report.

    The report is an object with a flag, an array of flags, or None, which means that it converged.
    """
    flag = True if report is None else report
    return np.all(getattr(report, "converged", getattr(report, "success", flag)))


def _outcome(report: Any) -> Outcome:
    if isinstance(report, Tensor):
        return Outcome(report)
    return Outcome(_converged(report), getattr(report, "flag", getattr(report, "message", "")))


def _solved_each(op: str, run: Callable[..., Any], functions: Any, starts: Any, refused: str) -> Any:
    """Return the result of ``solved`` outside ``ad.compile``; inside ``ad.vmap``, solve for each element."""
    batch = None
    if enclosing.get() is not None:
        given = [floating(op, x) for x in reversed(starts) if x is not None] or [asarray(1.0)]
        batch = batch_of(op, functions[0], *given)
    if batch is None:
        return run([f and _plain(f) for f in functions], *map(plain_start, starts))
    if refused:
        raise InputError(f"{op}: {refused} is not supported inside ad.vmap.\n  Call {op} without it.")
    found = []
    for i in range(batch.size):
        own = [f and batch.function(i, f) for f in functions]
        ends = [None if x is None else batch.element(i, asarray(x)) for x in starts]
        x, report, *_ = batch.outside(solved, op, run, own, ends)
        if isinstance(x, Tensor):
            raise InputError(f"{op}: nested ad.vmap is not supported.  Use only one ad.vmap.")
        found.append((x, _converged(report)))
    return [batch.inside(np.stack(rows)) for rows in zip(*found, strict=True)]


def _refuse_report(op: str, refused: str) -> None:
    if refused and special.count:
        refuse_tracing(f"{op} with {refused}", "Leave it out, or call it outside of the compiled function.")


def as_vector(op: str, x0: Any, full_output: bool) -> Any:
    """Return the start ``x0`` as a vector: an array, or a tensor inside ``ad.compile`` and ``ad.vmap``.

    Raise if ``full_output`` is true inside ``ad.compile``.
    """
    _refuse_report(op, REPORT * full_output)
    start = asarray(x0).detach()
    if not isinstance(start, Traced):
        return np.array(start.numpy(), float).reshape(-1)
    return rec.reshape(start.astype(np.float64), shape=(-1,))
