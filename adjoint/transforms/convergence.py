"""The outcome of a solver.  Differentiating a solution raises an error if the solver did not converge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.tensor import Tensor
from adjoint.core.values import unknown
from adjoint.errors import ConvergenceError
from adjoint.ops.piecewise import maximum

__all__ = ["Outcome"]

CLOSE = 1e-5  # a Newton step of at most this size, relative to max(1, |x|), is accepted as convergence


class Outcome:
    """Whether a solver converged, and its message.

    ``success`` is a bool, or a tensor inside ``ad.vmap`` and ``ad.compile``.
    """

    __slots__ = ("message", "success")

    def __init__(self, success: Any, message: str = "") -> None:
        self.success = success
        self.message = message

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Outcome:
        """Return this outcome with ``success`` replaced by ``function(success)``."""
        return Outcome(function(asarray(self.success)), self.message)

    @property
    def certain(self) -> bool:
        """True if the solver is known to have converged, inside ``ad.vmap`` for every element."""
        if not isinstance(self.success, Tensor):
            return bool(np.all(self.success))
        return unknown(self.success) is None and not _any(~self.success)

    def check(self, name: str, x: Tensor, newton_step: Callable[[], Tensor]) -> None:
        """Raise if ``x`` is not a solution: the solver failed, and a Newton step would change ``x``.

        ``name`` is the name of the solver, for the error.  ``newton_step`` returns the Newton step at ``x``.
        Inside ``ad.compile``, the check is made at each call of the compiled function.
        """
        if not x.size:
            return
        try:
            step = abs(newton_step())
        except ConvergenceError:  # the Jacobian is singular
            raise self._error(name) from None
        near = step.max(axis=-1) <= CLOSE * maximum(1.0, abs(x).max(axis=-1))
        failed = ~(near | self.success)

        def check(failed: Any) -> None:
            if np.any(failed):
                raise self._error(name)

        traced = unknown(failed)
        if traced is not None:
            traced.check(check)
        elif _any(failed):
            raise self._error(name)

    def _error(self, name: str) -> ConvergenceError:
        reason = ": " + " ".join(self.message.split()).rstrip(".") if self.message else ""
        return ConvergenceError(
            f"{name}: the result has no derivative, because SciPy did not converge{reason}.\n"
            "  Allow more steps (maxiter=, maxfev= or max_nfev=) or start closer to the solution.  "
            "Detach the result (x.detach()) to use its value only."
        )


def _any(condition: Tensor) -> bool:
    """Return whether any element of a condition is true; inside ``ad.vmap``, for any batch element."""
    data: Any = condition
    while not isinstance(data, np.ndarray):
        data = data._data if isinstance(data, Tensor) else data.value
    return bool(data.any())
