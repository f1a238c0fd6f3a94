"""Steps of initial value problems: record the steps of SciPy's solvers, and repeat steps with tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import ConvergenceError, InputError
from adjoint.ops.join import stack
from adjoint.scipy.fallback import scipy_module
from adjoint.scipy.runge_kutta import Method, method_of
from adjoint.transforms.matrix import jacfwd, jacobian
from adjoint.transforms.solution import joined_solution

__all__ = [
    "Run", "combined", "explicit_stages", "implicit_stages", "jacobian_of", "like_event", "run_scipy",
    "sparse_jacobian_of", "too_many_steps",
]  # fmt: skip


def too_many_steps(most: int) -> ConvergenceError:
    """Return the error for a problem that needs more than ``most`` attempted steps."""
    return ConvergenceError(
        f"solve_ivp: the end was not reached in {most} attempted steps, the limit inside ad.compile.\n"
        "  Pass a larger max_steps= or larger tolerances, or call solve_ivp outside of the compiled "
        "function."
    )


def like_event(event: Any, call: Callable[[Any, Any], Any]) -> Any:
    """Return ``call`` with the attributes ``terminal`` and ``direction`` of the event function ``event``."""
    for name in ("terminal", "direction"):
        if hasattr(event, name):
            setattr(call, name, getattr(event, name))
    return call


class Run(NamedTuple):
    """A solution by SciPy: its result, the time span, the accepted steps, and the time and state at the end.

    A step is a tuple (time, length, state, stages); time and state are those at the start of the step.
    """

    result: Any
    span: tuple[float, float]
    steps: list[tuple[float, float, Any, Any]]
    last: tuple[float, Any]  # the time and state after the last step


def run_scipy(
    name: str,
    f: Callable[[float, Any], Any],
    span: tuple[float, float],
    y0: Any,
    events: Sequence[Any],
    options: dict[str, Any],
    dense: bool,
    most: int | None = None,
    size: int = 1,
) -> Run:
    """Solve an initial value problem with SciPy's method ``name``.

    Raise if it needs more than ``most`` steps.  ``f`` and ``events`` are functions of a time (a number) and a
    state (an array).  ``span`` is the pair of start and end, and ``options`` are SciPy's options.  If
    ``dense``, the stages include those that are used only for values inside the steps.  If ``size`` is not 1,
    ``y0`` joins the states of ``size`` problems, which are solved with the same steps.
    """
    if np.isnan(span).any():  # with NaN, SciPy's loop would not end
        raise InputError(f"solve_ivp: the times of t_span must be numbers, not {span}.")
    steps: list[Any] = []
    solver = _capturing(name, steps, most, size)
    result = scipy_module("integrate").solve_ivp(
        f, span, y0, method=solver, events=list(events) or None, **options
    )
    m = method_of(name)
    if dense and name == "DOP853":
        steps = [_extended(m, f, *step) for step in steps]
    if not steps:
        return Run(result, span, steps, (span[0], y0))
    t, h, y, k = steps[-1]
    return Run(result, span, steps, (t + h, y + h * (m.b[: len(k)] @ k)))


def _capturing(name: str, steps: list[Any], most: int | None, size: int) -> Any:
    """Return a subclass of SciPy's solver ``name`` that appends its accepted steps to ``steps``.

    It raises an error after ``most`` steps, if that is not None.  If it solves ``size`` problems with the
    same steps, it accepts a step only if the error of each problem is within the tolerances.
    """
    base = getattr(scipy_module("integrate"), name)
    table = method_of(name)

    class Capturing(base):  # type: ignore[misc, valid-type]  # SciPy has no types
        def _step_impl(self) -> Any:
            t, y = self.t, self.y
            if np.isnan(self.h_abs):  # with NaN, SciPy's loop would not end
                return False, self.TOO_SMALL_STEP
            found = super()._step_impl()
            if found[0]:
                h = self.t - t
                k = (
                    np.linalg.solve(table.a, self.Z) / h
                    if table.implicit
                    else self.K[: table.needed + 1].copy()
                )
                if len(steps) == most:
                    raise too_many_steps(most)
                steps.append((t, h, y, k))
            return found

        def _estimate_error_norm(self, k: Any, h: float, scale: Any) -> Any:
            if size == 1 or not scale.size:
                return super()._estimate_error_norm(k, h, scale)
            return _largest_error(self, k, h, scale.reshape(size, -1))

    return Capturing


def _largest_error(solver: Any, k: Any, h: float, scale: Any) -> Any:
    """Return the largest error of several problems that are solved with the same steps.

    SciPy's own method would return the mean over all problems.
    """

    def squares(e: Any) -> Any:
        return (np.abs((k.T @ e).reshape(scale.shape) / scale) ** 2).sum(1)

    n = scale.shape[1]
    if not hasattr(solver, "E3"):
        return abs(h) * np.sqrt(squares(solver.E).max() / n)
    fifth = squares(solver.E5)
    both = fifth + 0.01 * squares(solver.E3)
    return abs(h) * (fifth / np.sqrt(np.where(both == 0, 1, both) * n)).max()


def _extended(m: Method, f: Callable[[float, Any], Any], t: float, h: float, y: Any, k: Any) -> Any:
    """Return a step of DOP853 with additional stages, which are needed for values inside the step.

    The step is a tuple (t, h, y, stages); ``k`` are the stages without the additional ones.
    """
    stages = np.concatenate([k, np.zeros((m.total - len(k), len(y)), k.dtype)])
    for i in range(len(k), m.total):
        stages[i] = f(t + m.c[i] * h, y + h * (m.a[i, :i] @ stages[:i]))
    return t, h, y, stages


# Steps with tensors ------------------------------------------------------------------------------------


def combined(factors: Any, k: Any) -> Any:
    """Return the sum of the stages ``k``, each multiplied by its factor in ``factors``."""
    row = np.asarray(factors, k.dtype if isinstance(k, Tensor) else k[0].dtype)
    return rec.matmul(row, k if isinstance(k, Tensor) else stack(k))


def explicit_stages(f: Callable[..., Any], t: Tensor, h: Tensor, y: Tensor, m: Method) -> Tensor:
    """Return the stages of a step of length h from time t and state y, by the explicit method ``m``."""
    slopes: list[Tensor] = []
    for i in range(m.total):
        used = [j for j in range(i) if m.a[i, j]]
        at = y + h * combined(m.a[i, used], [slopes[j] for j in used]) if used else y
        slopes.append(asarray(f(t + float(m.c[i]) * h, at)))
    return stack(slopes)


def jacobian_of(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function (t, y) that computes the Jacobian of ``f(t, y)`` with respect to y."""
    return lambda t, y: jacfwd(lambda y: f(t, y))(y)


def sparse_jacobian_of(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function (t, y) of arrays that computes the Jacobian of ``f(t, y)`` as a matrix of SciPy."""
    whole = jacobian(f, 1, sparse=True)
    return lambda t, y: whole(np.float64(t), np.array(y))


def implicit_stages(f: Callable[..., Any], t: Tensor, h: Tensor, y: Tensor, m: Method, guess: Any) -> Tensor:
    """Return the stages of a step of length h from time t and state y, by the implicit method ``m``.

    The values are ``guess``, SciPy's stages.  Their derivatives come from the implicit function theorem, with
    respect to t, h, y and the tensors that ``f`` uses.
    """
    a, stages = m.a.astype(y.dtype), asarray(guess)

    def off(v: Tensor) -> Tensor:
        k = rec.reshape(v, shape=stages.shape)
        at = y + h * rec.matmul(a, k)
        slopes = stack([asarray(f(t + float(m.c[i]) * h, at[i])) for i in range(m.total)])
        return rec.reshape(slopes - k, shape=(-1,))

    joined = joined_solution("solve_ivp", off, rec.reshape(stages, shape=(-1,)))
    return rec.reshape(joined, shape=stages.shape)
