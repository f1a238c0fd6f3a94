"""Initial value problems with the method Radau, or with events, inside transforms: SciPy chooses the steps.

SciPy is called at each call of the compiled function inside ``ad.compile``, and once for each element inside
``ad.vmap``.  The steps are then repeated with tensors, so that gradients flow through them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.config import grad_mode
from adjoint.context import within
from adjoint.core.convert import array_of, asarray
from adjoint.core.lifted import Lifted, tracing
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, wrap
from adjoint.core.values import has_history
from adjoint.errors import ArgumentError, InputError
from adjoint.scipy.batches import Batch
from adjoint.scipy.ode_rows import End, Function, Rows
from adjoint.scipy.ode_steps import (
    Run,
    combined,
    explicit_stages,
    implicit_stages,
    jacobian_of,
    like_event,
    run_scipy,
)
from adjoint.scipy.runge_kutta import method_of
from adjoint.transforms.loop_body import Body, run_scan

__all__ = ["ChosenRows"]

MOST_EVENTS = 16  # how often an event that is not terminal may occur inside ad.compile, by default


class ChosenRows(Rows):
    """The solution of a problem with steps chosen by SciPy, with one row for each step (see ``Rows``)."""

    def __init__(
        self,
        f: Function,
        start: Tensor,
        end: Tensor,
        y0: Tensor,
        name: str,
        events: Sequence[Any],
        options: dict[str, Any],
    ) -> None:
        self.f, self.events, self.name, self.options = f, events, name, options
        self.method = method_of(name)
        self.start, self.length, self.y0 = start, end - start, y0
        self.given = [t.detach() for t in (start, end, y0)]
        self.functions: list[Function] = [f, *events]
        if self.method.implicit:
            self.functions.append(jacobian_of(f))

    def in_program(self, most: int, most_events: int | None) -> ChosenRows:
        """Compute the rows inside ``ad.compile``: SciPy is called at each call of the compiled function.

        ``most`` and ``most_events`` are the largest numbers of steps and of occurrences of an event.
        """
        trace: Any = tracing.get()
        n, dtype = self.y0.shape[0], self.y0.dtype
        double, whole = np.dtype(np.float64), np.dtype(np.int64)
        inner = [trace.function("solve_ivp", g, [((), double), ((n,), dtype)]) for g in self.functions]
        places = [_places(e, MOST_EVENTS if most_events is None else most_events) for e in self.events]

        def host(bound: Any, start: Any, end: Any, y0: Any) -> Any:
            own = [lambda t, y, g=g: g(np.asarray(t, np.float64), np.asarray(y, dtype))[0] for g in bound]
            return self._padded(self._run(own, start, end, y0, most), most, places)

        rows = [((most,), double), ((most,), double), ((), double), ((most + 1, n), dtype)]
        rows.append(((most, self.method.total, n), dtype))
        specs = [*rows, ((), whole), ((), whole), *(((k,), double) for k in places)]
        return self._set(trace.on_host("solve_ivp", host, inner, self.given, specs))

    def in_batch(self, batch: Batch, most_events: int | None) -> ChosenRows:
        """Compute the rows inside ``ad.vmap``: SciPy is called for each element of the batch."""
        runs = []
        for i in range(batch.size):
            own = [_of_arrays(batch.function(i, g)) for g in self.functions]
            ends = [_array(batch.element(i, t)) for t in self.given]
            runs.append(within(grad_mode, False, batch.outside, self._run, own, *ends, None))
        count = max(1, *(len(run.steps) for run in runs))
        places = []
        for k, e in enumerate(self.events):
            longest = max(len(run.result.t_events[k]) for run in runs)
            places.append(_places(e, longest if most_events is None else most_events))
        found = [self._padded(run, count, places) for run in runs]
        return self._set([batch.inside(np.stack(column)) for column in zip(*found, strict=True)])

    def _run(self, functions: Sequence[Any], start: Any, end: Any, y0: Any, most: int | None) -> Run:
        """Solve the problem with SciPy from ``start`` to ``end``, with the initial values ``y0``.

        ``functions`` are functions of arrays: f, the events and, for an implicit method, the Jacobian of f.
        Raise if more than ``most`` steps are needed.
        """
        f, *rest = functions
        options = {k: v for k, v in self.options.items() if k != "jac_sparsity"}
        if self.method.implicit:
            options["jac"] = rest.pop()
        events = [like_event(e, _as_number(g)) for e, g in zip(self.events, rest, strict=True)]
        span = float(start), float(end)
        return run_scipy(self.name, f, span, np.array(y0), events, options, True, most)

    def _padded(self, run: Run, count: int, places: Sequence[int]) -> list[Any]:
        """Return the result of a run of SciPy as arrays of fixed shapes, in the order that ``_set`` expects.

        They are for ``count`` steps and ``places[k]`` occurrences of event ``k``; unused rows repeat the end,
        and unused times of events are NaN.
        """
        used, (last, state) = len(run.steps), run.last
        grid = np.array([*(t for t, *_ in run.steps), last])
        length = run.span[1] - run.span[0]
        shares = (grid - grid[0]) / length if length else grid * 0
        before, taken = np.full(count, shares[-1]), np.zeros(count)
        before[:used], taken[:used] = shares[:-1], np.diff(shares)
        states = np.empty((count + 1, len(state)), state.dtype)
        states[:] = state
        stages = np.zeros((count, self.method.total, len(state)), state.dtype)
        for s, (_, _, y, k) in enumerate(run.steps):
            states[s], stages[s] = y, k
        moments = []
        for k, (size, times) in enumerate(zip(places, run.result.t_events or [], strict=True)):
            if len(times) > size:
                raise ArgumentError(
                    f"solve_ivp: event {k} occurred {len(times)} times, but at most {size} can be stored.\n"
                    f"  Pass max_events={len(times)} or more."
                )
            moments.append(np.append(times, np.full(size - len(times), np.nan)))
        which = -1
        if run.result.status == 1:
            every = np.concatenate(moments)
            which = int(np.nanargmin(np.abs(every - run.result.t[-1])))
        return [before, taken, shares[-1], states, stages, run.result.status, which, *moments]

    def _set(self, found: Sequence[Tensor]) -> ChosenRows:
        """Set the attributes from the arrays of ``_padded``; return this object.

        If gradients flow through the steps, repeat them with tensors.
        """
        self.before, self.taken, self.final, states, stages, status, which, *moments = found
        self.states, self.last, self.stages = states[:-1], states[-1], stages
        self.end = End(status, moments, which)
        slope = asarray(self.f(self.start, self.y0))
        if any(has_history(t) for t in (self.start, self.length, self.y0, slope)):
            self._repeat(stages)
        return self

    def _repeat(self, guess: Tensor) -> None:
        m = self.method

        def step(y: Tensor, row: Any) -> Any:
            share, part, stages = row
            # unused rows evaluate the function at the start, where it is defined
            used = part > 0
            t = self.start + self.length * rec.where(used, share, 0.0)
            h, at = (self.length * part).astype(y.dtype), rec.where(used, y, self.y0)
            k = (
                implicit_stages(self.f, t, h, at, m, stages)
                if m.implicit
                else explicit_stages(self.f, t, h, at, m)
            )
            return y + h * combined(m.b, k), (y, k)

        rows = [self.before, self.taken, guess]
        body = Body("solve_ivp", step, rows, tree.structure((0, 0, 0)))
        body.settles = True
        found = run_scan(body, body.start(self.y0), guess.shape[0], False, False)
        self.last, (self.states, self.stages) = found


def _places(event: Any, most: int) -> int:
    """Return how many occurrences of an event are stored.

    It is ``most``, or, for a terminal event, the number of occurrences after which the solution ends.
    """
    return int(getattr(event, "terminal", None) or 0) or most


def _as_number(g: Function) -> Function:
    return lambda t, y: float(g(t, y))


def _array(t: Tensor) -> Any:
    """Return the values of a tensor as an array; raise if the tensor belongs to another ``vmap``."""
    if isinstance(t._data, Lifted):
        raise InputError("solve_ivp: nested ad.vmap is not supported.  Use only one ad.vmap.")
    return array_of(t.detach())


def _of_arrays(f: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return a function of arrays that calls ``f``, a function of tensors."""
    return lambda t, y: _array(asarray(f(wrap(np.asarray(t, np.float64)), wrap(np.array(y)))))
