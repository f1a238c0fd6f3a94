"""Solutions of initial value problems with a fixed number of rows, one for each step.

Inside ``ad.compile`` shapes are fixed, and inside ``ad.vmap`` all elements have the same shape, but the
numbers of steps and of events depend on values.  So there are more rows than steps: unused rows repeat the
end of the solution.  There are also more times than occurrences of an event: unused times are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, held
from adjoint.core.values import unknown
from adjoint.errors import ArgumentError
from adjoint.ops.join import concat, stack
from adjoint.ops.reduce import floating
from adjoint.scipy.fallback import scipy_module
from adjoint.scipy.runge_kutta import Method
from adjoint.transforms.batch import vmap
from adjoint.transforms.solution import joined_solution

__all__ = ["End", "Rows", "check_at_call", "columns", "fixed_result"]

Function = Callable[[Any, Any], Any]


def check_at_call(t: Tensor, function: Callable[[Any], None]) -> None:
    """Call ``function``, which checks values, with the values of the tensor ``t``.

    Inside ``ad.compile``, it is called at each call of the compiled function.
    """
    top = unknown(t)
    if top is not None:
        top.check(function)
    else:
        function(held(t))


def columns(path: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return the state at the time ``at``; for a vector of times, a matrix with one column for each time.

    ``path`` is a function that returns the states at a vector of times, one row for each time.
    """
    return path(at[None])[0] if at.ndim == 0 else rec.matrix_transpose(path(at))


class Rows:
    """The steps of a solution, as tensors with one row for each step.

    A *share* is a fraction of the time span.  A step begins at the share ``before`` and has the length
    ``taken``, also a share, which is 0 in unused rows.  ``states`` are the states at the start of each step,
    and ``stages`` its stages.  ``last`` is the state after the last step, and ``final`` is the share there.
    ``end`` says how the solution ended.  An instance is also a function: it returns the solution at given
    times.
    """

    method: Method
    start: Tensor
    length: Tensor
    y0: Tensor
    before: Tensor
    taken: Tensor
    states: Tensor
    stages: Tensor
    last: Tensor
    final: Any
    end: End

    def safe_length(self) -> Tensor:
        """Return the length of the time span, or 1 if it is 0, for use as a divisor."""
        return rec.where(self.length == 0, 1.0, self.length)

    def __call__(self, t: Tensor) -> Tensor:
        """Return the states at the times ``t``, one row for each time."""
        at = ((t - self.start) / self.safe_length()).detach()
        accepted = self.taken > 0
        numbers = np.arange(accepted.shape[0])
        first = accepted.astype(np.int64).argmax()
        inside = accepted & (self.before < at[:, None])
        i = rec.maximum(rec.where(inside, numbers, -1).max(axis=-1), first)
        h = (self.length * self.taken[i]).astype(self.y0.dtype)
        passed = t - self.start - self.length * self.before[i]
        x = passed.astype(self.y0.dtype) / rec.where(h == 0, 1.0, h)
        w = self.method.w.astype(self.y0.dtype)
        powers = stack([x ** (m + 1) for m in range(w.shape[1])], axis=-1)
        factors = h[:, None] * rec.matmul(powers, w.T)
        return self.states[i] + rec.matmul(factors[:, None, :], self.stages[i])[:, 0]

    def ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the times and the states at the start and after each step, and a mask of the end.

        Unused rows repeat the last time and state; the mask is true for the last row and its repetitions.
        """
        accepted = self.taken > 0
        size = accepted.shape[0]
        order = (~accepted).astype(np.int64).argsort(stable=True)
        numbers, count = np.arange(size + 1), accepted.astype(np.int64).sum()
        over = count <= numbers
        i = rec.where(over, size, numbers)
        shares = concat([self.before[order], rec.reshape(self.final, shape=(1,))])
        states = concat([self.states[order], self.last[None]])
        return self.start + self.length * shares[i], states[i], over

    def middle(self) -> Tensor:
        """Return a time inside of the longest step, at which the solution is defined."""
        return (self.start + self.length * self.taken.max() / 2).detach()


class End(NamedTuple):
    """How a solution ended: SciPy's status, the times of each event, and the index of the time that ended it.

    The index is into the joined times of all events; it is -1 if no event ended the solution.
    """

    status: Tensor
    moments: Sequence[Tensor]
    which: Tensor | None


def fixed_result(rows: Rows, wanted: Tensor | None, dense: bool, events: Sequence[Function]) -> Any:
    """Return an object like SciPy's result of ``solve_ivp``, with tensors of fixed shapes.

    ``wanted`` are the times ``t_eval``, and ``dense`` says whether the result has the function ``sol``.
    """
    end = rows.end
    found = scipy_module("integrate._ivp.ivp").OdeResult(
        t=None, y=None, sol=None, t_events=None, y_events=None, status=end.status, success=end.status >= 0,
        message="status says how the solver ended.",
    )  # fmt: skip
    last = None  # the time and state of a terminal event
    if events:
        pairs = [_moments(rows, e, t) for e, t in zip(events, end.moments, strict=True)]
        found.t_events, found.y_events = ([pair[k] for pair in pairs] for k in range(2))
        if any(getattr(e, "terminal", False) for e in events):
            i = rec.maximum(end.which, 0)
            last = concat(found.t_events)[i], concat(found.y_events)[i]
    if wanted is not None:
        found.t, states = _at(rows, wanted, None if last is None else last[0])
    else:
        found.t, states, over = rows.ends()
        if last is not None:
            over = over & (end.status == 1)
            found.t, states = rec.where(over, last[0], found.t), rec.where(over[:, None], last[1], states)
    found.y = rec.matrix_transpose(states)
    found.sol = (lambda t: columns(rows, floating("sol", t))) if dense else None
    return found


def _at(rows: Rows, wanted: Tensor, event: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the times ``wanted`` and the states there; both are NaN after the end of the solution.

    ``event`` is the time of the terminal event, which ended the solution if the status is 1.
    """
    _check_times(rows, wanted)
    status = rows.end.status
    until = (rows.start + rows.length * rows.final).detach()
    if event is not None:
        until = rec.where(status == 1, event.detach(), until)
    over = (status != 0) & ((wanted.detach() - until) * rec.sign(rows.length.detach()) > 0)
    states = rows(rec.where(over, rows.start, wanted))  # do not extrapolate: the gradient could be NaN
    return rec.where(over, np.nan, wanted), rec.where(over[:, None], np.nan, states)


def _moments(rows: Rows, event: Function, times: Tensor) -> tuple[Tensor, Tensor]:
    """Return the times of an event and the states there, as differentiable tensors.

    Both are NaN where ``times`` is NaN.  The derivatives come from the implicit function theorem.
    """
    occurs = ~rec.isnan(times)
    safe = rec.where(occurs, times, rows.middle())

    def moment(t: Tensor, occurs: Tensor) -> Tensor:
        off = lambda v: rec.where(occurs, event(v[0], rows(v)[0]), v[0] - t)[None]
        return joined_solution("solve_ivp", off, t[None])[0]

    at = vmap(moment)(safe, occurs) if times.shape[0] else times
    states = rows(at)
    return rec.where(occurs, at, np.nan), rec.where(occurs[:, None], states, np.nan)


def _check_times(rows: Rows, wanted: Tensor) -> None:
    shares = ((wanted - rows.start) / rows.safe_length()).detach()
    check_at_call(shares, _refuse_outside)


def _refuse_outside(shares: Any) -> None:
    if np.any(shares < 0) or np.any(shares > 1):
        raise ArgumentError("solve_ivp: t_eval must be within the time span.")
