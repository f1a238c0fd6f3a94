"""Initial value problems in eager code: the solution is one node of the graph.

SciPy chooses the steps, without gradients.  The backward pass of the node evaluates the Jacobians of all
stages of all steps as one batch, and propagates gradients through the steps by small matrices.  Forward mode
does the same with tangents.  For derivatives of higher order, and functions that do not work on batches, the
steps are repeated with tensors.

A *stage* is an evaluation of the right-hand side inside a step (see ``runge_kutta``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.config import grad_mode, special
from adjoint.context import within
from adjoint.core.batched import Batched
from adjoint.core.convert import array_of, asarray, tensor
from adjoint.core.lifted import Lifted
from adjoint.core.namespace import Namespace, raw, rec
from adjoint.core.node import Node, next_seq
from adjoint.core.record import record_results
from adjoint.core.sparse import as_gradient_tensor
from adjoint.core.tensor import Tensor, wrap
from adjoint.engine.push import push_forward
from adjoint.engine.run import key_of
from adjoint.engine.zeros import unmasked
from adjoint.errors import AdjointError, ArgumentError, InputError, RuleError
from adjoint.grads.backward import gradients
from adjoint.ops.join import stack
from adjoint.scipy.batches import Batch
from adjoint.scipy.ode_steps import (
    combined,
    explicit_stages,
    implicit_stages,
    jacobian_of,
    like_event,
    run_scipy,
    sparse_jacobian_of,
)
from adjoint.scipy.runge_kutta import Method, method_of, pulled_steps, pushed_steps
from adjoint.transforms.batch import vmap
from adjoint.transforms.calls import new_op, wants_gradient
from adjoint.transforms.implicit import root
from adjoint.transforms.recompute import captured_by, pull_record, standing
from adjoint.transforms.rerun import Rerun

__all__ = ["Path", "Problem", "events_of"]

SMALL = 32  # with more unknowns, the Jacobians are not computed, and the steps are repeated with tensors


class _Batch(Batch):
    """The batch of a ``vmap``: the problems of all elements are solved as one system with the same steps."""

    def values(self, t: Tensor) -> Any:
        """Return the values of a tensor for all elements, as an array with the batch axis first."""
        data, batched = t._data, False
        if isinstance(data, Batched) and data.level == self.level:
            data, batched = data.value, data.batched
        while isinstance(data, Tensor):
            data = data._data
        if not isinstance(data, np.ndarray):
            raise InputError("solve_ivp: nested ad.vmap is not supported.  Use only one ad.vmap.")
        return data if batched else np.broadcast_to(data, (self.size, *data.shape))


def _batch(*tensors: Tensor) -> _Batch | None:
    found = next((_Batch(t._data) for t in tensors if isinstance(t._data, Batched)), None)
    if found is not None and not found.size:
        raise InputError("solve_ivp: the batch of ad.vmap is empty.\n  Pass at least one element.")
    return found


class Problem:
    """An initial value problem: right-hand side, initial values, times, and the steps that SciPy chose."""

    def __init__(
        self, f: Callable[[Any, Any], Any], start: Tensor, end: Tensor, y0: Tensor, name: str
    ) -> None:
        self.f, self.name, self.method = f, name, method_of(name)
        self.start, self.end, self.y0 = start, end, y0
        first = within(grad_mode, False, f, self.start, self.y0)
        self.batch = _batch(self.start, self.end, self.y0, asarray(first))
        if self.batch is None:
            self.span = float(array_of(self.start.detach())), float(array_of(self.end.detach()))
        else:
            self.starts, self.ends = self.batch.values(self.start), self.batch.values(self.end)
            common = np.ptp(self.starts) == 0 and np.ptp(self.ends) == 0
            # if the time spans differ, all elements are solved from 0 to 1, with scaled right-hand sides
            self.span = (float(self.starts[0]), float(self.ends[0])) if common else (0.0, 1.0)
            self.rate = None if common else (self.ends - self.starts)[:, None]
        self.forwards = self.span[1] >= self.span[0]
        self.steps: list[Any] = []
        self.last: tuple[float, Any] = (self.span[0], None)

    def check_times(self, wanted: Tensor) -> None:
        """Raise if a time in ``wanted`` is outside of the time span."""
        values = array_of(wanted.detach())
        low, high = min(self.span), max(self.span)
        if values.size and not (low <= values.min() and values.max() <= high):
            raise ArgumentError(f"solve_ivp: t_eval must be within the time span from {low} to {high}.")

    def value(self, t: Any, y: Any) -> Any:
        """Return the right-hand side at time t and state y (an array) as an array, for SciPy.

        Inside ``vmap``, y and the result are vectors with the states of all elements.
        """
        if self.batch is None:
            return self.f(wrap(np.asarray(t, np.float64)), wrap(np.array(y)))._data
        own = np.full(self.batch.size, t) if self.rate is None else self.starts + t * self.rate[:, 0]
        states = self.batch.inside(y.reshape(self.batch.size, -1))
        found = self.batch.values(asarray(self.f(self.batch.inside(own), states)))
        return (found if self.rate is None else self.rate * found).reshape(-1)

    def initial(self) -> Any:
        """Return the initial values as an array; inside ``vmap``, one vector with those of all elements."""
        if self.batch is None:
            return array_of(self.y0.detach())
        return self.batch.values(self.y0).reshape(-1)

    def run(self, events: list[Any], options: dict[str, Any], dense: bool) -> Any:
        """Solve the problem with SciPy, without gradients; store the steps, and return SciPy's result.

        If ``dense``, the stages include those that are used only for values inside the steps.
        """

        def plain(event: Any) -> Any:
            return like_event(event, lambda t, y: float(event(asarray(t), asarray(y)).item()))

        options, size = dict(options), 1
        sparse = options.pop("jac_sparsity", None) is not None and self.batch is None
        if self.batch is not None:
            size = self.batch.size
            for name in ("rtol", "atol"):
                if np.ndim(value := options.get(name, 0.0)):  # one for each unknown
                    options[name] = np.tile(array_of(value), size)
        if self.method.implicit:
            jacobian = jacobian_of(self.f)
            options["jac"] = lambda t, y: array_of(jacobian(tensor(float(t)), tensor(np.array(y))))
            if sparse:
                options["jac"] = sparse_jacobian_of(self.f)
        given = self.name, self.value, self.span, self.initial(), [*map(plain, events)], options, dense
        run = within(grad_mode, False, run_scipy, *given, None, size)
        self.steps, self.last = run.steps, run.last
        return run.result

    def recorded(self, dense: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the times, states and stages of the steps as tensors with gradients."""
        first, last = self.span
        length = last - first
        ends = np.array([t for t, *_ in self.steps] + [self.last[0]])
        shares = (ends - first) / length if length else ends * 0
        self.grid = ends
        times = self.start + (self.end - self.start) * shares
        method = self.method.cut(dense)
        values = _Values(self, method, shares, dense)
        if self.batch is None and not grad_mode.get() and not special.count:
            return times, wrap(values.states), wrap(values.stages)
        return times, *_Solution(self, values).recorded()


class _Values:
    """The steps that SciPy chose, as arrays: times, lengths, states and stages."""

    def __init__(self, problem: Problem, method: Method, shares: Any, dense: bool) -> None:
        n, dtype = len(problem.initial()), problem.y0.dtype
        count = len(problem.steps)
        self.method, self.shares, self.dense = method, shares, dense
        self.t = np.array([t for t, *_ in problem.steps])
        self.h = np.array([h for _, h, *_ in problem.steps])
        self.stages = np.empty((count, method.total, n), dtype)
        for s, (*_, k) in enumerate(problem.steps):
            self.stages[s] = k[: method.total]
        self.states = np.stack([y for *_, y, _ in problem.steps] + [problem.last[1]]).astype(dtype)

    def places(self) -> tuple[Any, Any]:
        """Return the times and states at which the stages of all steps evaluate the right-hand side."""
        m, h = self.method, self.h[:, None]
        t = self.t[:, None] + h * m.c
        y = self.states[:-1, None] + h[..., None] * np.einsum("ij,sja->sia", m.a, self.stages)
        return t.reshape(-1), y.reshape(-1, y.shape[-1])


class _Solution:
    """The node of the graph for a solution: its derivative rules for backward and forward mode."""

    def __init__(self, problem: Problem, values: _Values) -> None:
        self.problem, self.values = problem, values
        self.rerun = Rerun("solve_ivp", None)
        self.inputs = [problem.y0, problem.start, problem.end]
        self.kept: list[tuple[int, Tensor, tuple[Tensor, Tensor]]] = []

    def recorded(self) -> tuple[Tensor, Tensor | None]:
        """Return the states and stages as outputs of the node, which depend on the inputs."""
        v = self.values
        if not len(v.h):
            return self.problem.y0[None], None
        since = next_seq()
        stages = self._batch() if self.problem.batch is None else None
        if stages is None:
            return self.repeated()
        self.moving = [t for t in self.inputs if wants_gradient(t)]
        out, places = stages
        captured = captured_by([out], since) if out._node is not None else []
        captured = [t for t in captured if all(t is not p for p in places)]
        self.kept.append((since, out, places))  # the first backward uses this record
        operands: dict[Any, Tensor] = {}
        for t in (*self.moving, *captured):
            operands.setdefault(key_of(t), t)
        if not operands:
            self.kept.clear()
            return wrap(v.states), wrap(v.stages)
        self.keys = list(operands)
        self.rerun.depends_on(self.keys)
        op = new_op("solve_ivp", [not isinstance(k, Node) for k in self.keys], False, 2)
        op.joint, op.jvp = self.pull, self.push
        op.differentiable = op.saves_any = True
        states, slopes = record_results(op, tuple(operands.values()), {}, (v.states, v.stages))
        return states, slopes

    def _batch(self) -> tuple[Tensor, tuple[Tensor, Tensor]] | None:
        """Evaluate the right-hand side at all stages with one ``vmap``, and record the evaluation.

        Return the values, and the pair of states and times at which it was evaluated.  Return None if the
        function does not work with ``vmap``, or if there are too many unknowns.
        """
        v = self.values
        if v.states.shape[1] > SMALL or v.states.dtype.kind != "f":
            return None
        places = self._places()
        try:
            found = self.rerun.first(self._evaluated, places, {})
        except (AdjointError, TypeError, ValueError, IndexError):
            return None
        if found.shape != places[0].shape or isinstance(found._data, Lifted):
            return None
        expected = v.stages.reshape(found.shape)
        exact = 1e-6 if not v.method.implicit else 1e-2  # SciPy solves for implicit stages approximately
        close = np.abs(found._data - expected).max(initial=0) <= exact * (1 + np.abs(expected).max(initial=0))
        return (found, places) if close else None

    def _places(self) -> tuple[Tensor, Tensor]:
        t, y = self.values.places()
        return tensor(y, requires_grad=True), tensor(t, requires_grad=True)

    def _evaluated(self, y: Tensor, t: Tensor) -> Tensor:
        return asarray(vmap(self.problem.f)(t, y))

    def pull(self, xp: Namespace, g: Any, out: Any, *_: Any, wanted: Sequence[bool]) -> list[Any]:
        """Return the gradients of the tensors that the solution depends on: the node's derivative rule."""
        if xp is rec or any(not isinstance(s, np.ndarray) for s in g if s is not None):
            since = next_seq()
            roots = within(grad_mode, True, self.rerun.again, self.repeated, (), {})
            found = pull_record(xp, roots, g, self.keys, wanted, since)
        else:
            found = self._pulled(g[0], g[1], wanted)
        if found is None:
            raise RuleError(
                "solve_ivp: the function used different tensors when it was called again in the backward "
                "pass.  It must use the same tensors in each call."
            )
        return found

    def _at_stages(self) -> tuple[int, Tensor, tuple[Tensor, Tensor], Any]:
        """Return the recorded evaluation of the right-hand side at all stages, and its Jacobians.

        The results are: the sequence number of the first recorded node, the values, the pair of states and
        times of the stages, and the Jacobians with respect to the states.
        """
        try:
            since, out, places = self.kept.pop()
        except IndexError:  # the record was used by an earlier derivative of the same solution
            since, places = next_seq(), self._places()
            out = within(grad_mode, True, self.rerun.again, self._evaluated, places, {})
        shape = self.values.stages.shape
        jac = np.zeros((*shape, shape[-1]), self.values.stages.dtype)
        for j in range(shape[-1] if out._node is not None else 0):
            seed = np.zeros(out.shape, out.dtype)
            seed[:, j] = 1
            (row,) = gradients(
                out, [places[0]], seed, retain_graph=True, create_graph=False, allow_unused=True
            )
            if row is not None:
                jac[:, :, j, :] = row._data.reshape(shape)
        return since, out, places, jac

    def _pulled(self, gy: Any, gk: Any, wanted: Sequence[bool]) -> list[Any] | None:
        """Return the gradients of the tensors that the solution depends on, from ``_at_stages``.

        ``gy`` and ``gk`` are the gradients of the states and of the stages.  Return None if the function used
        different tensors than in the forward pass.
        """
        v, (y0, start, end) = self.values, self.inputs
        shape = v.stages.shape
        since, out, places, jac = self._at_stages()
        gy = np.zeros_like(v.states) if gy is None else gy
        first, of_k, of_h = pulled_steps(v.method, v.h, v.stages, jac, gy, gk)
        keys = [*self.keys, places[1], places[0]]
        every = [*wanted, True, False]
        seed = of_k.reshape(out.shape).astype(out.dtype)
        moving = out._node is not None
        found = pull_record(raw, [out], [seed], keys, every, since) if moving else [None] * len(keys)
        if found is None:
            return None
        of_t = unmasked(found[-2])
        of_t = np.zeros(shape[:2]) if of_t is None else np.asarray(of_t).reshape(shape[:2])
        of_h = of_h + of_t @ v.method.c
        of_length = float((of_t.sum(1) * v.shares[:-1]).sum() + (of_h * np.diff(v.shares)).sum())
        own = {id(y0): first, id(start): of_t.sum() - of_length, id(end): of_length}
        total = list(found[:-2])
        for given in self.moving:
            i = self._index(given)
            if wanted[i]:
                part = np.asarray(own[id(given)], given.dtype)
                total[i] = part if total[i] is None else unmasked(total[i]) + part
        return total

    def _index(self, given: Tensor) -> int:
        """Return the index of an input among the tensors that the solution depends on."""
        return next(i for i, key in enumerate(self.keys) if key is key_of(given))

    def push(self, xp: Namespace, tangents: Any, out: Any, *_: Any) -> Any:
        """Return the tangents of the states and stages: the node's rule for forward mode."""
        given = tangents if isinstance(tangents, tuple) else (tangents,)
        if xp is not rec and all(t is None or isinstance(t, np.ndarray) for t in given):
            return self._pushed(given)
        since = next_seq()
        roots = within(grad_mode, True, self.rerun.again, self.repeated, (), {})
        directions = [t if t is None or isinstance(t, Tensor) else wrap(t) for t in given]
        ends = [standing(key) for key in self.keys]
        return tuple(push_forward(list(roots), ends, directions, create_graph=xp is rec, since=since))

    def _pushed(self, given: Sequence[Any]) -> tuple[Any, Any]:
        """Return the tangents of the states and stages, from ``_at_stages``.

        ``given`` are the tangents of the tensors that the solution depends on.
        """
        v = self.values
        own = {id(t): given[self._index(t)] for t in self.moving}
        of_y0, of_start, of_end = (own.get(id(t)) for t in self.inputs)
        of_start, of_end = (0.0 if t is None else float(t) for t in (of_start, of_end))
        since, out, places, jac = self._at_stages()
        parts = np.diff(v.shares)
        shares = v.shares[:-1, None] + parts[:, None] * v.method.c
        of_t = of_start + (of_end - of_start) * shares
        of_f = np.zeros_like(v.stages)
        if out._node is not None:
            ends = [*(standing(key) for key in self.keys), places[1]]
            directions = [None if t is None else wrap(t) for t in (*given, of_t.reshape(-1))]
            (moved,) = push_forward([out], ends, directions, create_graph=False, since=since)
            if moved is not None:
                of_f = as_gradient_tensor(moved).numpy().reshape(of_f.shape)
        first = np.zeros(v.states.shape[1]) if of_y0 is None else of_y0
        return pushed_steps(v.method, v.h, v.stages, jac, first, of_f, (of_end - of_start) * parts)

    def repeated(self) -> tuple[Tensor, Tensor]:
        """Repeat SciPy's steps with tensors; return the states and the stages."""
        v, f = self.values, self.problem.f
        y, start, end = self.inputs
        length = end - start
        states, slopes = [y], []
        for s in range(len(v.h)):
            t = start + length * float(v.shares[s])
            h = length * float(v.shares[s + 1] - v.shares[s])
            k = (
                implicit_stages(f, t, h, y, v.method, v.stages[s])
                if v.method.implicit
                else explicit_stages(f, t, h, y, v.method)
            )
            y = y + h * combined(v.method.b, k)
            states.append(y)
            slopes.append(k)
        return stack(states), stack(slopes)


class Path:
    """A function that returns the solution at any time, by the interpolation polynomials of the method."""

    def __init__(self, problem: Problem, times: Tensor, states: Tensor, stages: Tensor | None) -> None:
        self.problem, self.times, self.states, self.stages = problem, times, states, stages
        self.grid = problem.grid

    def index(self, t: Any) -> Any:
        """Return, for each time in ``t``, the index of the step that contains it."""
        grid, at = (self.grid, t) if self.problem.forwards else (-self.grid, -t)
        return np.clip(np.searchsorted(grid, at, side="left") - 1, 0, max(len(grid) - 2, 0))

    def one(self, t: Tensor, index: Any) -> Tensor:
        """Return the state at the time ``t``, which is in step ``index``."""
        return self(rec.reshape(t, shape=(1,)), index)[0]

    def __call__(self, t: Tensor, index: Any = None) -> Tensor:
        """Return the states at the times ``t``, one row for each time.

        ``index`` has the indices of the steps that contain the times; by default it is computed.
        """
        if self.stages is None:
            return rec.broadcast_to(self.states[:1], shape=(t.shape[0], self.states.shape[1]))
        i = self.index(array_of(t.detach())) if index is None else index
        h = self.times[i + 1] - self.times[i]
        x = (t - self.times[i]) / h
        w = self.problem.method.w[: self.stages.shape[1]].astype(self.states.dtype)
        powers = stack([x ** (m + 1) for m in range(w.shape[1])], axis=-1)
        factors = h[:, None] * rec.matmul(powers, w.T)
        return self.states[i] + rec.matmul(factors[:, None, :], self.stages[i])[:, 0]


def events_of(result: Any, path: Path, events: list[Any]) -> list[tuple[Tensor, Tensor]]:
    """Return, for each event function, the times at which it occurred and the states there, as tensors.

    Their derivatives come from the implicit function theorem.
    """
    found = []
    n, dtype = path.states.shape[1], path.states.dtype
    for event, times in zip(events, result.t_events, strict=True):
        moments, places = [], []
        for value in times.tolist():
            i = path.index(np.array([value]))
            moment = root(lambda t, i=i, event=event: event(t, path.one(t, i)), np.float64(value))
            moments.append(moment)
            places.append(path.one(moment, i))
        if moments:
            found.append((stack(moments), stack(places)))
        else:
            found.append((wrap(np.zeros(0)), wrap(np.zeros((0, n), dtype))))
    return found
