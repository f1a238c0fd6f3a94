"""Initial value problems without derivatives, by the methods of SciPy that are not Runge-Kutta methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.config import grad_mode
from adjoint.core.convert import array_of, asarray
from adjoint.core.lifted import tracing
from adjoint.core.tensor import Tensor, Traced, wrap
from adjoint.core.values import tracked
from adjoint.errors import InputError
from adjoint.scipy.fallback import scipy_module
from adjoint.scipy.ode_steps import like_event, sparse_jacobian_of
from adjoint.scipy.runge_kutta import METHODS

__all__ = ["PLAIN", "refused_method", "solve_plain"]

PLAIN = ("BDF", "LSODA")


def refused_method(name: Any) -> InputError:
    """Return the error for a method of ``solve_ivp`` that has no derivatives."""
    return InputError(
        f"solve_ivp: method must be one of {', '.join(METHODS)} for gradients and inside transforms, not "
        f"{name!r}.\n  Use Radau for stiff problems."
    )


def solve_plain(
    name: str,
    f: Callable[[Any, Any], Any],
    ends: Sequence[Tensor],
    wanted: Tensor | None,
    dense_output: bool,
    events: Sequence[Any],
    options: dict[str, Any],
) -> Any:
    """Solve an initial value problem with SciPy, without derivatives; return its result with tensors.

    Raise if a gradient is needed, or if a transform is active.

    ``ends`` are the start, the end and the initial values, and ``wanted`` are the times ``t_eval``.
    """

    def array(value: Any) -> Any:
        t = asarray(value)
        if isinstance(t, Traced) or (grad_mode.get() and tracked(t)):
            raise refused_method(name)
        return array_of(t.detach())

    def of_arrays(g: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda t, y: array(g(wrap(np.asarray(t, np.float64)), wrap(np.array(y))))

    if tracing.get() is not None:
        raise refused_method(name)
    start, end, y0 = map(array, ends)
    options = {k: of_arrays(v) if callable(v) else v for k, v in options.items()}
    if name == "BDF" and options.get("jac_sparsity") is not None and options.get("jac") is None:
        options |= {"jac": sparse_jacobian_of(f), "jac_sparsity": None}
    result = scipy_module("integrate").solve_ivp(
        of_arrays(f), (float(start), float(end)), y0, name, None if wanted is None else array(wanted),
        dense_output, [like_event(e, of_arrays(e)) for e in events] or None, **options,
    )  # fmt: skip
    result.t, result.y = wrap(np.asarray(result.t)), wrap(np.asarray(result.y))
    if events:
        result.t_events, result.y_events = (
            [wrap(np.asarray(v)) for v in found] for found in (result.t_events, result.y_events)
        )
    if dense_output:
        path = result.sol
        result.sol = lambda t: wrap(path(array(t)))
    return result
