"""Initial value problems inside ``ad.compile``: one loop of the compiled program that chooses steps as SciPy.

Whether a step is accepted is not known during the trace, so the loop makes a bounded number of attempts.
As in eager code, gradients flow through the accepted steps, but not through the length of a step relative to
the time span (its *share*), which is a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.core.values import has_history
from adjoint.ops.join import stack
from adjoint.scipy.fallback import scipy_module
from adjoint.scipy.ode_rows import End, Rows, check_at_call
from adjoint.scipy.ode_steps import too_many_steps
from adjoint.scipy.runge_kutta import Method
from adjoint.transforms.loops import scan_until

__all__ = ["MOST", "Steps"]

MOST = 1000  # the largest number of attempted steps, by default
_EPS = float(np.finfo(np.float64).eps)


def _norm(x: Tensor) -> Tensor:
    """Return the square root of the mean of |x|², the norm of SciPy's solvers."""
    return rec.sqrt(rec.square(abs(x)).sum() / max(x.shape[0], 1))


class Steps(Rows):
    """The attempted steps of a solution, as tensors with one row for each attempt; see ``Rows``."""

    def __init__(
        self,
        f: Callable[[Any, Any], Any],
        start: Tensor,
        end: Tensor,
        y0: Tensor,
        method: Method,
        name: str,
        *,
        rtol: Any = 1e-3,
        atol: Any = 1e-6,
        first_step: Any = None,
        max_step: Any = np.inf,
        most: int = MOST,
    ) -> None:
        self.f, self.method, self.solver = f, method, getattr(scipy_module("integrate"), name)
        self.start, self.length, self.y0 = start, end - start, y0
        self.rtol, self.atol = np.maximum(rtol, 100 * _EPS), np.asarray(atol)
        limits = scipy_module("integrate._ivp.common")
        limits.validate_max_step(max_step)
        if first_step is not None:
            limits.validate_first_step(first_step, 0.0, np.inf)
        away = abs(self.length.detach())
        self.empty = away == 0
        self.away = rec.where(self.empty, 1.0, away)
        self.longest = float(max_step) / self.away
        slope = self._f(start, y0)
        self.recorded = any(has_history(t) for t in (start, self.length, y0, slope))
        h = self._first(slope) if first_step is None else float(first_step) / self.away
        carry = (~self.empty, self.away * 0, y0, slope, rec.minimum(h, 1.0), self.empty & False)
        (going, self.final, self.last, *_), rows = scan_until("solve_ivp", self._attempt, carry, most)
        self.before, self.taken, self.states, self.stages = rows
        check_at_call(going, _refuse_more(most))
        whole = self.empty | (self.final == 1)
        self.end = End(whole.astype(np.int64) - 1, [], None)

    def _f(self, t: Tensor, y: Tensor) -> Tensor:
        return asarray(self.f(t, y)).astype(y.dtype)

    def _first(self, slope: Tensor) -> Tensor:
        """Return the length of the first step, as a share of the time span.

        As in SciPy, the rule of Hairer, Nørsett and Wanner is used.
        """
        y, slope, length = self.y0.detach(), slope.detach(), self.length.detach()
        scale = self.atol + abs(y) * self.rtol
        d0, d1 = _norm(y / scale), _norm(slope / scale)
        tiny = (d0 < 1e-5) | (d1 < 1e-5)
        h0 = rec.minimum(rec.where(tiny, 1e-6, 0.01 * d0 / rec.where(tiny, 1.0, d1)), self.away)
        there = y + (h0 * rec.sign(length)).astype(y.dtype) * slope
        other = self._f(self.start.detach() + h0 * rec.sign(length), there).detach()
        d2 = _norm((other - slope) / scale) / h0
        flat = (d1 <= 1e-15) & (d2 <= 1e-15)
        most = rec.maximum(d1, d2)
        power = 1 / (self.solver.error_estimator_order + 1)
        h1 = rec.where(flat, rec.maximum(1e-6, h0 * 1e-3), (0.01 / rec.where(flat, 1.0, most)) ** power)
        return rec.minimum(rec.minimum(100 * h0, h1) / self.away, self.longest)

    def _attempt(self, carry: Any, _: Any) -> Any:
        """Attempt a step: the body of the loop.  Return the new loop state, and the row of this attempt.

        The state of the solution does not change if the error is too large, or if the solution has ended:
        after the last step, or when a step becomes too small.  A rejected attempt can leave the domain of the
        right-hand side.  Its derivatives are then NaN, and so is their product with 0.  So gradients flow
        through a second computation, in which the length of a rejected step is 0.
        """
        going, share, y, slope, size, rejected = carry
        t = self.start + self.length * share
        size = rec.minimum(size, self.longest)
        least = abs(t.detach()) * (10 * _EPS) / self.away  # as in SciPy: ten times the distance of floats
        size = rec.where(rejected, size, rec.maximum(size, least))
        last = share + size >= 1
        going = going & (size >= least) & (share + size > share)  # false if the size is NaN
        taken = rec.where(last, 1 - share, size)
        h = (self.length * taken).astype(y.dtype)
        stages, new = self._stages(t, h, y, slope)
        error = self._error(stages.detach(), h.detach(), y.detach(), new.detach())
        good = error < 1
        power = -1 / (self.solver.error_estimator_order + 1)
        factor = 0.9 * rec.where(error == 0, 1.0, error) ** power
        grown = rec.where(error == 0, 10.0, rec.minimum(10.0, factor))
        grown = rec.where(rejected, rec.minimum(1.0, grown), grown)
        # an error of NaN rejects the step, as in SciPy
        shrunk = rec.where(rec.isnan(error), 0.2, rec.maximum(0.2, factor))
        moves = going & good
        after = rec.where(last, 1.0, share + taken)
        if self.recorded:
            stages, new = self._stages(t, rec.where(moves, h, 0), y, slope)
        state = (
            going & ~(moves & last),
            rec.where(moves, after, share),
            rec.where(moves, new, y),
            rec.where(moves, stages[self.method.needed], slope),
            taken * rec.where(good, grown, shrunk),
            going & ~good,
        )
        return state, (share, rec.where(moves, taken, 0.0), y, stages)

    def _stages(self, t: Tensor, h: Tensor, y: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stages of a step of length h from time t and state y, and the state at its end.

        ``slope`` is the first stage.
        """
        m, slopes, new = self.method, [slope], y
        for i in range(1, m.total):
            used = [j for j in range(i) if m.a[i, j]]
            factors = m.a[i, used].astype(y.dtype)
            at = y + h * rec.matmul(factors, stack([slopes[j] for j in used]))
            new = at if i == m.needed else new
            slopes.append(self._f(t + float(m.c[i]) * h, at))
        return stack(slopes), new

    def _error(self, stages: Tensor, h: Tensor, y: Tensor, new: Tensor) -> Tensor:
        """Return the estimated error of a step, relative to the tolerances: less than 1 if it is accepted.

        The step has the length ``h`` and goes from state ``y`` to state ``new``.
        """
        scale = self.atol + rec.maximum(abs(y), abs(new)) * self.rtol
        k = stages[: self.method.needed + 1]
        if not hasattr(self.solver, "E3"):
            return _norm(rec.matmul(self.solver.E.astype(y.dtype), k) * h / scale)
        fifth, third = (
            rec.square(abs(rec.matmul(e.astype(y.dtype), k) / scale)).sum()
            for e in (self.solver.E5, self.solver.E3)
        )
        both = fifth + 0.01 * third
        safe = rec.where(both == 0, 1.0, both)
        return abs(h) * fifth / rec.sqrt(safe * max(y.shape[0], 1))


def _refuse_more(most: int) -> Callable[[Any], None]:
    def check(still: Any) -> None:
        if np.any(still):
            raise too_many_steps(most)

    return check
