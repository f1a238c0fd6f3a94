"""A loop as one instruction: the body is traced once, and replay runs its program step by step.

The backward is a second loop, over the program of the body's backward.  What the backward of a step reads
is stacked over the steps.  A body that draws, writes or decides on values is unrolled instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint import tree
from adjoint.compiler import replay
from adjoint.compiler.joint import Backward
from adjoint.compiler.program import Host, Program, Source
from adjoint.compiler.symbolic import Root, Symbolic
from adjoint.config import grad_mode, transform
from adjoint.core.lifted import enclosing
from adjoint.core.node import LEAF
from adjoint.core.tensor import Tensor, Traced, differentiable, tracked, wrap
from adjoint.errors import AdjointError, TransformError
from adjoint.transforms.calls import Rule, apply

if TYPE_CHECKING:
    from adjoint.compiler.trace import Trace
    from adjoint.transforms.loops import Body

__all__ = ["UnrollError", "trace_scan"]

_FEWEST = 8  # steps; shorter loops are unrolled
_DIFFERENTIATED = (None, "ad.compile", "ad.grad", "ad.value_and_grad", "ad.vjp")


class UnrollError(Exception):
    """A loop cannot be one instruction: the function is traced again with unrolled loops."""


def trace_scan(
    outer: Trace, sub: Trace, body: Body, carry: Any, count: int, reverse: bool
) -> tuple[Any, Any] | None:
    """Return the result of a loop whose body is traced once in ``sub``; None if it must be unrolled."""
    top = enclosing.get()
    if count < _FEWEST or outer.unroll or not isinstance(top, Root) or top.trace is not outer:
        return None
    if transform.get() not in _DIFFERENTIATED:
        return None
    leaves = tree.leaves(carry)
    outer.touch((*leaves, *body.rows))
    if not all(isinstance(t._data, Symbolic) for t in (*leaves, *body.rows)):
        return None
    try:
        loop = _Loop(outer, sub, body, leaves, count, reverse)
    except (AdjointError, TypeError, ValueError):
        return None  # unrolled, it works or raises the same error with a better message
    if not loop.simple():
        return None
    outer.modules.update(sub.modules)
    outer.guards += sub.guards
    outer.fixed += sub.fixed
    outer.loops.append(loop)
    operands = [*loop.cast(leaves), *body.rows, *loop.numbers(), *loop.captured]
    found = apply(loop, operands)
    carried = tree.unflatten(body.structure, found[: loop.carries])
    return carried, tree.unflatten(loop.of_ys, found[loop.carries :])


class _Loop(Rule):
    """One loop: how it runs and how gradients are pulled back."""

    name = "scan"

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
        sub.run(lambda: self._call(leaves), self._finish)
        # tensors and arrays from outside of the body, in the order in which its program reads them
        self.captured: list[Tensor] = []
        self.order: list[int] = []  # of the operands, for the program
        for s in sub.program.sources:
            if s.kind == "argument":
                self.order.append(s.owner)
                continue
            self.order.append(len(self.inputs) + len(self.captured))
            self.captured.append(_from_outside(outer, s))
        self.run = replay.build(sub.program)
        self.specs = [(v.shape, v.dtype) for v in sub.program.results]

    def simple(self) -> bool:
        """Return whether the body only computes."""
        sub = self.sub
        used = sub.program.writes or sub.drawn or sub.decisions or sub.cells or sub.actions
        kinds = {s.kind for s in sub.program.sources}
        if self.backward_of is not None:
            kinds |= {"late" for s in self.backward_of.fresh if s.kind != "array"}
        impure = any(not i.op.pure for i in sub.program.body)
        return not (used or impure or kinds - {"argument", "tensor", "array", "outer"})

    def build_with(self, build: Callable[[Program], Any]) -> None:
        """Build the body and its backward by replay or as native code."""
        self.run = build(self.sub.program)
        if self.backward_of is not None:
            self.backward_of.build_with(build)

    # The trace of the body ----------------------------------------------------------------------------

    def _call(self, leaves: list[Tensor]) -> Any:
        """Run the body on stand-ins of the carry and of a row."""
        records = grad_mode.get()
        self.inputs: list[Tensor] = []
        for t in leaves:
            self._add(t.shape, t.dtype, records and differentiable(t.dtype))
        for r in self.body.rows:
            self._add(r.shape[1:], r.dtype, records and tracked(r))
        carry = tree.unflatten(self.body.structure, self.inputs[: self.carries])
        if self.body.lower is None:
            return self.body.step(carry, tree.unflatten(self.body.of_rows, self.inputs[self.carries :]))
        return self.body.step(carry, self._add((), np.dtype(np.int64), False))

    def _add(self, shape: Any, dtype: Any, leaf: bool) -> Tensor:
        t = wrap(self.sub.source("argument", shape, dtype, len(self.inputs)))
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
        # the dtypes of Python numbers in the carry are those of the first step
        if any(a.dtype != b.dtype for a, b in zip(self.inputs, outs[: self.carries], strict=False)):
            raise TransformError("scan: the carry changes its dtype in the first step.")
        self.sub.program.results = [self.sub.value(o) for o in outs]
        if any(o._node is not None for o in outs):
            self.backward_of = back = Backward(self.sub, self.inputs, outs, replay.build)
            carried = {t._data.id for t in self.inputs[: self.carries]}
            sources = {s.value.id: n for n, s in enumerate(self.sub.program.sources)}
            # rows, and what does not change over the steps, are not stacked again
            self.fixed = [None if v.id in carried else sources.get(v.id) for v in back.residuals]
            self.stacked = [v for v, n in zip(back.residuals, self.fixed, strict=True) if n is None]
            self.sub.program.results += self.stacked

    def numbers(self) -> list[Tensor]:
        """Return the numbers of a ``fori_loop`` as rows."""
        if self.body.lower is None:
            return []
        return [wrap(self.outer.value(np.arange(self.body.lower, self.body.lower + self.count)))]

    def cast(self, leaves: list[Tensor]) -> list[Tensor]:
        """Return the first carry in its dtypes."""
        return tree.leaves(self.body.cast(tree.unflatten(self.body.structure, leaves)))

    # Running ------------------------------------------------------------------------------------------

    def argument(self, i: int) -> str:
        """Return the name of an operand."""
        return f"leaf {i} of the carry" if i < self.carries else f"operand {i}"

    def steps(self, backwards: bool = False) -> range:
        """Return the numbers of the steps in their order."""
        forwards = range(self.count)
        return forwards[::-1] if self.reverse != backwards else forwards

    def _run_steps(self, specs: list[tuple[Any, Any]], *given: Any) -> Any:
        """Run all steps on arrays; return the carry, then what is stacked over the steps."""
        carry = list(given[: self.carries])
        rows, rest = given[self.carries : len(self.inputs)], given[len(self.inputs) :]
        outs = [np.empty(*spec) for spec in specs[self.carries :]]
        for n in self.steps():
            operands = [*carry, *(r[n, ...] for r in rows), *rest]
            found = self.run(*[operands[k] for k in self.order])
            carry = list(found[: self.carries])
            for out, value in zip(outs, found[self.carries :], strict=False):
                out[n] = value
        return _as_result([*map(np.asarray, carry), *outs])

    def _emit(self, tensors: Sequence[Tensor], specs: list[tuple[Any, Any]]) -> list[Tensor]:
        host = Host("scan", partial(self._run_steps, specs), len(specs))
        return [wrap(v) for v in self.outer.call_host(host, [t._data for t in tensors], specs)]

    def _result_specs(self, count: int) -> list[tuple[Any, Any]]:
        """Return the shapes and dtypes of the carry and of ``count`` values in all that are stacked."""
        stacked = [((self.count, *shape), dtype) for shape, dtype in self.specs[self.carries : count]]
        return [*self.specs[: self.carries], *stacked]

    def plain(self, tensors: list[Tensor]) -> list[Tensor]:
        """Run the loop where no gradient is wanted."""
        return self._emit(tensors, self._result_specs(self.carries + self.ys))

    def forward(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
        """Run the loop; keep what its backward reads."""
        found = self._emit(tensors, self._result_specs(len(self.specs)))
        count = self.carries + self.ys
        return found[:count], [*found[count:], *tensors], None

    def backward(
        self, residuals: list[Tensor], rest: Any, grads: list[Tensor | None], wanted: Sequence[bool]
    ) -> list[Any]:
        """Run the steps of the backward, from the last to the first."""
        back = self.backward_of
        if back is None:
            return [None] * len(wanted)
        seen = [*residuals, *(g for g in grads if g is not None)]
        if any(type(t) is not Traced or t._node is not None for t in seen):
            raise UnrollError
        seeds = [
            self.outer.value(np.zeros(*spec)) if g is None else g._data
            for g, spec in zip(grads, self._result_specs(self.carries + self.ys), strict=True)
        ]
        operands = residuals[len(self.stacked) :]
        places = [
            k
            for k, t in enumerate(operands)
            if self.target(k) is not None or (k < self.carries and differentiable(t.dtype))
        ]
        specs = [(operands[k].shape, operands[k].dtype) for k in places]
        host = Host("scan_backward", _Backwards(self, places), len(specs))
        values = self.outer.call_host(host, [*(t._data for t in residuals), *seeds], specs)
        found = {k: wrap(v) for k, v in zip(places, values, strict=True)}
        return [found.get(k) if w else None for k, w in enumerate(wanted)]

    def target(self, k: int) -> int | None:
        """Return which gradient of a step is that of operand ``k``; None if there is none."""
        back = self.backward_of
        assert back is not None
        place: int | None = k
        if k >= len(self.inputs):
            t = self.captured[k - len(self.inputs)]
            place = next((len(self.inputs) + n for n, c in enumerate(back.captured) if c is t), None)
        if place is None or not back.wanted[place]:
            return None
        return sum(back.wanted[:place])


class _Backwards:
    """The backward of a loop on arrays: what is stacked, the operands and the seeds, to gradients."""

    def __init__(self, loop: _Loop, places: list[int]) -> None:
        self.loop = loop
        self.places = places
        back = loop.backward_of
        assert back is not None
        self.back = back
        self.found = {k: loop.target(k) for k in places}  # which of the gradients of a step

    def __call__(self, *given: Any) -> Any:
        loop, back = self.loop, self.back
        kept, rest = given[: len(loop.stacked)], given[len(loop.stacked) :]
        operands = rest[: len(rest) - loop.carries - loop.ys]
        seeds = rest[len(operands) :]
        carry = list(seeds[: loop.carries])
        inputs = len(loop.inputs)
        totals: dict[int, Any] = {}
        for k in self.places:
            if loop.carries <= k < inputs:
                totals[k] = np.empty(operands[k].shape, operands[k].dtype)
        for n in loop.steps(backwards=True):
            values = iter(kept)
            residuals = [
                next(values)[n, ...] if at is None else self._operand(operands, at, n) for at in loop.fixed
            ]
            every = [*carry, *(s[n, ...] for s in seeds[loop.carries :])]
            found = back.run(*residuals, *(s for s, flows in zip(every, back.flows, strict=True) if flows))
            for k in self.places:
                at = self.found[k]
                g = None if at is None else found[at]
                if k < loop.carries:
                    carry[k] = np.zeros_like(carry[k]) if g is None else np.asarray(g)
                elif k < inputs:
                    totals[k][n] = g
                else:
                    totals[k] = g if k not in totals else totals[k] + g
        return _as_result(
            [np.asarray(carry[k]) if k < loop.carries else np.asarray(totals[k]) for k in self.places]
        )

    def _operand(self, operands: Sequence[Any], source: int, n: int) -> Any:
        k = self.loop.order[source]
        return operands[k][n, ...] if self.loop.carries <= k < len(self.loop.inputs) else operands[k]


def _as_result(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _from_outside(outer: Trace, source: Source) -> Tensor:
    """Return what the body of a loop reads from outside as a tensor of the trace around it."""
    if isinstance(source.owner, Tensor):
        return source.owner
    if source.kind == "array" and source.value.known is None:
        return wrap(outer.array(source.owner))
    return wrap(outer.value(source.owner))
