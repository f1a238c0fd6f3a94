"""Compile a loop to one instruction: the body is traced once, and its program runs once per step.

Each step receives the *carry* (values computed by the step before) and a *row* of each stacked input.  The
backward pass is a second loop, over the program of the body's backward.  The residuals (values of the forward
that the backward of a step reads) are stacked over the steps.  The gradients of values that all steps read
are carried from step to step.  Random numbers and hyper-parameters of optimisers are computed for all steps
before the loop.  A loop is unrolled instead if its body branches on values, or if it writes into tensors and
is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint import tree
from adjoint.compiler.loops.batch import loop_op
from adjoint.compiler.loops.derivatives import has_outer_history, pulled, pushed
from adjoint.compiler.loops.repeat import Repeat
from adjoint.compiler.loops.state import PREPARED, State, prepared
from adjoint.compiler.program.call_node import Backward
from adjoint.compiler.program.inputs import ArgumentSource, ArraySource, Source
from adjoint.compiler.program.program import Host, Instruction, Program
from adjoint.compiler.program.symbols import Root, Symbolic, refused
from adjoint.compiler.replay import replay
from adjoint.config import grad_mode
from adjoint.core.batched import Batched
from adjoint.core.lifted import Lifted, enclosing
from adjoint.core.node import LEAF
from adjoint.core.op import OPS
from adjoint.core.record import evaluate
from adjoint.core.tensor import Tensor, differentiable, wrap
from adjoint.core.values import tracked
from adjoint.errors import AdjointError, GraphReleasedError, TransformError
from adjoint.transforms.calls import ForwardRule, apply

if TYPE_CHECKING:
    from adjoint.compiler.capture.trace import Trace
    from adjoint.transforms.loop_body import Body

__all__ = ["Loop", "trace_scan"]

_FEWEST = 8  # steps; shorter loops are unrolled


def trace_scan(
    outer: Trace, sub: Trace, body: Body, carry: Any, count: int, reverse: bool
) -> tuple[Any, Any] | None:
    """Add a loop to a trace as one instruction; return the final carry and the stacked results.

    Return None if the loop must be unrolled.  ``outer`` is the trace around the loop, ``sub`` a trace for the
    body, and ``count`` the number of steps.
    """
    top = enclosing.get()
    mapped = isinstance(top, Batched)
    while isinstance(top, Batched):
        top = top.outer
    if count < _FEWEST or outer.unroll or not isinstance(top, Root) or top.trace is not outer:
        return None
    leaves = tree.leaves(carry)
    outer.touch((*leaves, *body.rows))
    if not all(isinstance(t._data, Lifted) for t in (*leaves, *body.rows)):
        return None
    try:
        loop = Loop(outer, sub, body, leaves, count, reverse)
    except (AdjointError, TypeError, ValueError):
        return None  # the unrolled loop works, or raises the same error with a better message
    state = State(outer, sub, count) if sub.program.writes else None
    if mapped and (state is not None or sub.drawn):
        return None
    if not loop.simple() or (state is not None and (loop.has_gradient(leaves) or not state.possible())):
        return None
    outer.modules.update(sub.modules)
    outer.guards += sub.guards
    outer.undo += sub.undo
    operands = loop.operands(leaves)
    found = apply(loop, operands) if state is None else loop.run_with(state, operands)
    carried = tree.unflatten(body.structure, found[: loop.carries])
    return carried, tree.unflatten(loop.of_ys, found[loop.carries :])


class Loop(ForwardRule):
    """A loop, also of ``vmap`` values, that is one instruction of a trace, and its derivative rules."""

    name = "scan"
    reruns = False

    def __init__(
        self, outer: Trace, sub: Trace, body: Body, leaves: list[Tensor], count: int, reverse: bool
    ) -> None:
        self.outer = outer
        self.sub = sub
        self.body = body
        self.count = count
        self.reverse = reverse
        self.backward_of: Backward | None = None
        self.carries = len(leaves)
        self.captured: list[Tensor] = []
        sub.loop = self
        sub.run(lambda: self._call(leaves), self._finish)

    def simple(self) -> bool:
        """Return whether the loop can be one instruction, and need not be unrolled."""
        sub = self.sub
        kinds = {s.kind for s in sub.program.sources}
        if self.backward_of is not None:
            kinds |= {"late" for s in self.backward_of.fresh if s.kind != "array"}
        impure = any(not i.op.pure for i in sub.program.body)
        known = {"argument", "draw", "numbers", "cell", "tensor", "array", "outer"}
        return not (sub.decisions or impure or kinds - known)

    def has_gradient(self, leaves: list[Tensor]) -> bool:
        """Return whether the results depend on a tensor outside of the body that requires grad."""
        if self.backward_of is None:
            return False
        wanted = self.backward_of.wanted
        given = [_moves(t) for t in (*leaves, *self.body.rows)]
        given += [False] * (len(self.inputs) - len(given)) + [True] * (len(wanted) - len(self.inputs))
        return any(a and b for a, b in zip(given, wanted, strict=True))

    def operands(self, leaves: list[Tensor]) -> list[Tensor]:
        """Return the operands of the loop, as tensors.

        They are the initial carry, the stacked inputs, the values that are computed for all steps before the
        loop, and the values that all steps read.  ``leaves`` is the initial carry.
        """
        made = prepared(self.outer, self.sub.program.sources[len(self.inputs) : self.end], self.count)
        others = self.sub.program.sources[self.end :]
        self.captured = [s.outside(self.outer) for s in others]
        rows = [self._row(k) for k in range(len(self.inputs) - self.carries)]
        return [*self._cast(leaves), *rows, *map(wrap, made), *self.captured]

    def decide(self, function: Callable[[Any], Any], part: Program) -> Any:
        """Decide a branch of the body: return ``function(values)``, where ``values`` has one value per step.

        ``part`` is the program that computes the value of one step.  The values are those of the present
        call.  The outer program gets a guard on the result, so that a different result causes a new trace.

        Raise TransformError if the value depends on an earlier step, or on a value of ``vmap``.
        """
        rows = [s for s in part.sources if s.kind == "argument"]
        rest = [s for s in part.sources if s.kind != "argument"]
        late = any(s.kind not in ("tensor", "array", "outer") for s in rest)
        if late or not rows or any(s.owner < self.carries for s in rows):
            raise refused("scan: a step branches on a value that the step before it computes.")
        if any(isinstance(r._data, Batched) for r in self.body.rows):
            raise refused("scan: a step branches on a value of ad.vmap.")
        part.sources = [*rows, *rest]
        given = [self._row(s.owner - self.carries)._data for s in rows]
        for s in rest:
            own = isinstance(s.owner, Tensor)
            given.append(self.outer.lend(self.sub, s.owner) if own else s.outside(self.outer)._data)
        steps = Repeat(part, self.count, 0, len(rows), whole=True)
        self.outer.loops.append(steps)
        (stacked,) = self.outer.call_host(Host("scan", steps), given, steps.specs())
        return self.outer.decide(function, stacked)

    def _row(self, k: int) -> Tensor:
        """Return the array with index ``k`` among those that the loop scans over; it has one row per step."""
        if k < len(self.body.rows):
            return self.body.rows[k]
        first = self.body.lower
        assert first is not None
        return wrap(self.outer.value(np.arange(first, first + self.count)))

    # The trace of the body ----------------------------------------------------------------------------

    def _call(self, leaves: list[Tensor]) -> Any:
        """Trace the body: call it with symbolic tensors for the carry and for one row; return its result."""
        records = grad_mode.get()
        self.inputs: list[Tensor] = []
        for t in leaves:
            self._add(t.shape, t.dtype, records and differentiable(t.dtype))
        for r in self.body.rows:
            self._add(r.shape[1:], r.dtype, records and _moves(r))
        carry = tree.unflatten(self.body.structure, self.inputs[: self.carries])
        if self.body.lower is None:
            return self.body.step(carry, tree.unflatten(self.body.of_rows, self.inputs[self.carries :]))
        return self.body.step(carry, self._add((), np.dtype(np.int64), False))

    def _add(self, shape: Any, dtype: Any, leaf: bool) -> Tensor:
        t = wrap(self.sub.source(ArgumentSource, shape, dtype, len(self.inputs)))
        if leaf:
            t._node = LEAF
        self.inputs.append(t)
        return t

    def _finish(self, result: Any) -> None:
        new, y = result
        ys, self.of_ys = tree.flatten(y)
        outs = [t if isinstance(t, Tensor) else wrap(np.asarray(t)) for t in (*tree.leaves(new), *ys)]
        outs = [t if isinstance(t._data, Symbolic) else wrap(self.sub.value(t._data)) for t in outs]
        self.ys = len(ys)
        # a Python number in the initial carry has the dtype that the first step returns for it
        if any(a.dtype != b.dtype for a, b in zip(self.inputs, outs[: self.carries], strict=False)):
            raise TransformError(
                "scan: the first step changes the dtype of the carry.  Give init that dtype."
            )
        self.results = [self.sub.value(o) for o in outs]
        self.stacked: list[Symbolic] = []
        self.sub.program.results = self.results
        back = None
        if any(o._node is not None for o in outs):
            with suppress(GraphReleasedError):  # backward() was called inside
                back = self.backward_of = Backward(self.sub, self.inputs, outs, replay.build)
        self._sort_sources()
        if back is not None:
            carried = {t._data.id for t in self.inputs[: self.carries]}
            sources = {s.value.id: n for n, s in enumerate(self.sub.program.sources)}
            # inputs that are rows, or the same in all steps, are not stacked again
            self.fixed = [None if v.id in carried else sources.get(v.id) for v in back.residuals]
            self.stacked = [v for v, n in zip(back.residuals, self.fixed, strict=True) if n is None]

    def _sort_sources(self) -> None:
        """Sort the body's inputs: arguments, then values computed before the loop, then the others."""
        sources = self.sub.program.sources
        sources.sort(key=lambda s: 0 if s.kind == "argument" else 1 if s.kind in PREPARED else 2)
        self.end = sum(s.kind == "argument" or s.kind in PREPARED for s in sources)

    def _cast(self, leaves: list[Tensor]) -> list[Tensor]:
        """Return the initial carry, cast to the dtypes that the carry has in the loop."""
        return tree.leaves(self.body.cast(tree.unflatten(self.body.structure, leaves)))

    # Running ------------------------------------------------------------------------------------------

    def argument(self, i: int) -> str:
        """Return the name of operand ``i``, for messages."""
        return f"leaf {i} of the carry" if i < self.carries else f"operand {i}"

    def _emit(self, name: str, steps: Repeat, operands: Sequence[Any]) -> list[Tensor]:
        """Add one instruction, a loop over all ``steps``, to the trace; return its results."""
        if not steps.program.results:
            return []
        found = evaluate(loop_op(name, steps), tuple(operands), {})
        return [wrap(v) for v in (found if isinstance(found, tuple) else (found,))]

    def _forward(self, tensors: Sequence[Tensor], results: list[Symbolic]) -> list[Tensor]:
        program = Program(self.sub.program.sources, self.sub.program.body, results)
        sizes = self.count, self.carries, self.end - self.carries
        steps = Repeat(program, *sizes, self.reverse, self.body.settles, self.body.flagged)
        return self._emit("scan", steps, [t._data for t in tensors])

    def run_with(self, state: State, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Add a loop whose body writes to tensors or cells; these (``state``) are part of the carry."""
        sources, values = self.sub.program.sources, [t._data for t in tensors]
        rest = [k for k in range(self.end, len(sources)) if sources[k].value.id not in state.known]
        order = [*range(self.carries, self.end), *rest]
        given = [*sources[: self.carries], *state.sources, *(sources[k] for k in order)]
        results = [*self.results[: self.carries], *state.after, *self.results[self.carries :]]
        carries, rows = self.carries + len(state.sources), self.end - self.carries
        program = Program(given, self.sub.program.body, results)
        steps = Repeat(program, self.count, carries, rows, self.reverse)
        operands = [*values[: self.carries], *state.before(), *(values[k] for k in order)]
        found = self._emit("scan", steps, operands)
        state.write([t._data for t in found[self.carries : carries]])
        return [*found[: self.carries], *found[carries:]]

    def plain(self, tensors: list[Tensor]) -> list[Tensor]:
        """Add the loop to the trace, without residuals for a backward pass; return its results."""
        return self._forward(tensors, self.results)

    def forward(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
        """Add the loop to the trace; return its results, the tensors that the backward needs, and None."""
        if any(map(has_outer_history, tensors)):  # the backward runs the steps again
            return apply(self, tensors), list(tensors), None
        found = self._forward(tensors, [*self.results, *self.stacked])
        count = self.carries + self.ys
        return found[:count], [*found[count:], *tensors], None

    def backward(
        self, residuals: list[Tensor], rest: Any, grads: list[Tensor | None], wanted: Sequence[bool]
    ) -> list[Any]:
        """Add the backward loop, from the last step to the first; return the gradients of the operands."""
        if self.backward_of is None:
            return [None] * len(wanted)
        seen = [*residuals, *(g for g in grads if g is not None)]
        kept, operands = residuals[: -len(wanted)], residuals[-len(wanted) :]
        again = len(kept) < len(self.stacked)
        if again or any(t._node is not None or has_outer_history(t) for t in seen):
            return pulled(self, operands, grads, wanted)
        back = _Backwards(self, kept, operands, grads)
        sizes = self.count, len(back.carry), len(back.rows)
        steps = Repeat(back.program, *sizes, not self.reverse, self.body.settles)
        given = [*(v for _, v in back.carry), *(v for _, v in back.rows), *(v for _, v in back.rest)]
        values = self._emit("scan_backward", steps, given)
        found = dict(zip(back.places, values, strict=True))
        return [found.get(k) if w else None for k, w in enumerate(wanted)]

    def jvp(self, tensors: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
        """Add a loop that computes the results and their tangents in each step; return the tangents."""
        return pushed(self, tensors, tangents)

    def target(self, k: int) -> Symbolic | None:
        """Return the gradient of operand ``k`` that one backward step computes; None if it computes none."""
        back = self.backward_of
        assert back is not None
        place: int | None = k
        if k >= self.end:
            t = self.captured[k - self.end]
            place = next((len(self.inputs) + n for n, c in enumerate(back.captured) if c is t), None)
        if place is None or not back.wanted[place]:
            return None
        found: Symbolic = back.program.results[sum(back.wanted[:place])]
        return found


class _Backwards:
    """The program of one backward step of a loop, and the values of the outer trace that it reads.

    Gradients of carried values and of values that all steps read are carried; gradients of rows are stacked.
    The program reads ``carry``, ``rows`` and ``rest`` (the same in all steps).  These are lists of pairs: a
    value of the program, and the value of the outer trace that it is read from.
    """

    def __init__(
        self, loop: Loop, kept: list[Tensor], operands: list[Tensor], grads: Sequence[Tensor | None]
    ) -> None:
        assert loop.backward_of is not None
        self.loop = loop
        self.back = back = loop.backward_of
        self.carry: list[tuple[Symbolic, Any]] = []
        self.rows: list[tuple[Symbolic, Any]] = []
        self.rest: list[tuple[Symbolic, Any]] = []
        self.places: list[int] = []  # result k is the gradient of operand places[k]
        self.program = program = Program((), back.program.body)
        values = [s.value for s in back.program.sources]
        count = len(back.residuals)
        self._add_residuals(values[:count], kept, operands)
        self._add_seeds(values[count:], operands, grads)
        for k in range(loop.end, len(operands)):
            self._add_total(k, operands[k])
        for k in range(loop.carries, len(loop.inputs)):
            g = loop.target(k)
            if g is not None:
                self._add_result(k, g)
        given = [ArgumentSource(v, None) for v, _ in (*self.carry, *self.rows, *self.rest)]
        program.sources = [*given, *back.fresh, *self.zeros]
        self.rest += [(s.value, s.outside(loop.outer)._data) for s in back.fresh]
        self.rest += [(s.value, loop.outer.value(s.owner)) for s in self.zeros]

    def _add_result(self, place: int, value: Symbolic) -> None:
        self.places.append(place)
        self.program.results.append(value)

    def _add_residuals(self, values: list[Symbolic], kept: list[Tensor], operands: list[Tensor]) -> None:
        """Add the residuals (saved values of the forward) to the inputs of the backward program.

        Each is a row, or a value that is the same in all steps.  ``values`` are the residuals in the program,
        and ``kept`` are the residuals that the forward has stacked.
        """
        loop = self.loop
        stacked = iter(kept)
        for value, at in zip(values, loop.fixed, strict=True):
            if at is None:
                self.rows.append((value, next(stacked)._data))
            else:
                row = loop.carries <= at < loop.end
                (self.rows if row else self.rest).append((value, operands[at]._data))

    def _add_seeds(
        self, seeds: list[Symbolic], operands: list[Tensor], grads: Sequence[Tensor | None]
    ) -> None:
        """Add the gradients of the loop's results to the inputs of the backward program.

        Gradients of the carry are carried, and gradients of stacked results are rows.  ``seeds`` are the
        gradients in the program of one step, ``grads`` the gradients in the outer trace.
        """
        loop, given = self.loop, iter(seeds)
        self.zeros: list[Source] = []
        specs = [(t.shape, t.dtype) for t in operands[: loop.carries]]
        specs += [((loop.count, *v.shape), v.dtype) for v in loop.results[loop.carries :]]
        for k, (g, spec, flows) in enumerate(zip(grads, specs, self.back.flows, strict=True)):
            carried = k < loop.carries and differentiable(spec[1])
            if not flows and not carried:
                continue
            value = next(given) if flows else Symbolic(loop.sub, *spec)
            outside = loop.outer.value(np.zeros(*spec)) if g is None else g._data
            (self.carry if carried else self.rows).append((value, outside))
            if carried:
                found = loop.target(k)
                self._add_result(k, self._zero(*spec) if found is None else found)

    def _zero(self, shape: Any, dtype: Any) -> Symbolic:
        """Return a constant array of zeros, the gradient of a carried value that no result depends on."""
        value = Symbolic(self.loop.sub, shape, dtype)
        value.known = np.zeros(shape, dtype)
        self.zeros.append(ArraySource(value, value.known))
        return value

    def _add_total(self, k: int, operand: Tensor) -> None:
        """Carry the sum over all steps of the gradient of operand ``k``, which all steps read."""
        g = self.loop.target(k)
        if g is None:
            return
        before, after = (Symbolic(self.loop.sub, operand.shape, operand.dtype) for _ in range(2))
        self.program.body.append(Instruction(OPS["add"], (before, g), {}, (after,), True))
        self.carry.append((before, self.loop.outer.value(np.zeros(operand.shape, operand.dtype))))
        self._add_result(k, after)


def _moves(t: Tensor) -> bool:
    """Return whether gradients flow to a tensor, in the trace or outside of a ``vmap`` around the loop."""
    return tracked(t) or has_outer_history(t)
