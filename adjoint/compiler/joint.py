"""A compiled function as one node of a graph: its forward and its backward are two programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.compiler.program import Program, Source
from adjoint.compiler.symbolic import Symbolic
from adjoint.core.node import LEAF
from adjoint.core.record import joined_copy
from adjoint.core.tensor import Tensor, Traced, wrap
from adjoint.engine.run import differentiate, key_of
from adjoint.engine.serial import run_serial
from adjoint.errors import TransformError
from adjoint.grads.backward import gradients
from adjoint.transforms.calls import Rule

if TYPE_CHECKING:
    from adjoint.compiler.trace import Trace

__all__ = ["Backward", "Joint"]


class Backward:
    """The backward of a traced function: a program from residuals and seeds to gradients."""

    __slots__ = ("captured", "flows", "fresh", "program", "residuals", "run", "wanted")

    def __init__(
        self, trace: Trace, inputs: Sequence[Any], outs: Sequence[Tensor], build: Callable[[Program], Any]
    ) -> None:
        """Differentiate ``outs`` inside the trace; ``inputs`` are the stand-ins of the arguments."""
        self.captured = [h.tensor for h in trace.held.values() if h.argument is None and h.node is not None]
        operands = [*inputs, *self.captured]
        targets = [t for t in operands if isinstance(t, Tensor) and t._node is LEAF]
        roots = [o for o in outs if o._node is not None]
        body = trace.program.body
        mark, count = len(body), len(trace.program.sources)
        seeds = [wrap(Symbolic(trace, r.shape, r.dtype)) for r in roots]
        run, leaves = differentiate(
            roots, seeds, targets=targets, retain=True, create_graph=False, runner=run_serial
        )
        found = {**run.captured, **dict(leaves)}
        grads = [None if not isinstance(t, Tensor) else found.get(key_of(t)) for t in operands]
        values = [None if g is None else trace.value(g) for g in grads]
        self.program = Program()
        self.program.body = body[mark:]
        del body[mark:]
        self.fresh = fresh = trace.program.sources[count:]  # arrays that the backward alone reads
        del trace.program.sources[count:]
        made = {o.id for i in self.program.body for o in i.outs} | {s._data.id for s in seeds}
        made |= {s.value.id for s in fresh}
        used = {a.id: a for i in self.program.body for a in i.args if isinstance(a, Symbolic)}
        used |= {v.id: v for v in values if v is not None}
        self.residuals = [v for k, v in used.items() if k not in made]
        self.program.sources = [
            *(Source("argument", v, None) for v in (*self.residuals, *(s._data for s in seeds))),
            *fresh,
        ]
        self.program.results = [v for v in values if v is not None]
        self.wanted = [v is not None for v in values]
        self.flows = [o._node is not None for o in outs]
        self.fresh = fresh
        self.build_with(build)

    def build_with(self, build: Callable[[Program], Any]) -> None:
        """Build the program by replay or as native code."""
        built, fresh = build(self.program), self.fresh
        self.run: Callable[..., tuple[Any, ...]] = lambda *given: built(*given, *map(_read, fresh))


def _read(source: Source) -> Any:
    """Return the value that a source has now."""
    kind, owner = source.kind, source.owner
    if kind == "tensor":
        return owner._data
    if kind == "grad":
        return owner.grad._data
    if kind == "cell":
        container, key = owner
        return container[key]
    return owner if kind == "array" else owner()


class Joint(Rule):
    """One call of a compiled function, to be recorded as one node.

    A backward that is itself recorded runs the function again, recorded.
    """

    def __init__(self, owner: Any, leaves: list[Any]) -> None:
        self.owner = owner  # the variant
        self.leaves = leaves
        self.name = owner.name

    def argument(self, i: int) -> str:
        """Return what messages call argument ``i``."""
        return f"argument {i}" if i < len(self.owner.moves) else "a tensor from outside"

    def _given(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Return the arguments of the program: tensors, and numbers as they were."""
        given = [self.leaves[k] for k in self.owner.moves]
        return [t if isinstance(g, Tensor) else g for g, t in zip(given, tensors, strict=False)]

    def plain(self, tensors: list[Tensor]) -> list[Tensor]:
        """Run the function where no gradient is wanted."""
        return self.forward(tensors)[0]

    def forward(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
        """Run the function; keep what its backward reads."""
        if any(type(t) is Traced for t in tensors):
            return self._again(tensors), list(tensors), None
        found = self.owner.execute(*self._given(tensors))
        count = len(self.owner.backward.flows)
        outs = [wrap(np.asarray(r)) for r in found[:count]]
        return outs, list(tensors), found[count : count + len(self.owner.backward.residuals)]

    def backward(
        self, residuals: list[Tensor], rest: Any, grads: list[Tensor | None], wanted: Sequence[bool]
    ) -> list[Any]:
        """Run the program of the backward."""
        back = self.owner.backward
        seen = [*residuals, *(g for g in grads if g is not None)]
        if rest is None or any(type(t) is Traced or t._node is not None for t in seen):
            return self._recorded(residuals, grads, wanted)
        specs = self.owner.program.results
        seeds = [
            np.zeros(r.shape, r.dtype) if g is None else g._data
            for g, r, flows in zip(grads, specs, back.flows, strict=False)
            if flows
        ]
        found = iter(back.run(*rest, *seeds))
        return [wrap(np.asarray(next(found))) if w else None for w in back.wanted]

    def _again(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Run the function itself."""
        if self.owner.impure:
            raise TransformError(
                f"{self.name} draws or writes, and its recorded backward would run it again.\n"
                "  Call the function without ad.compile here: with ad.config.compiling(False): ..."
            )
        leaves = list(self.leaves)
        for k, t in zip(self.owner.moves, tensors, strict=False):
            if isinstance(leaves[k], Tensor):
                leaves[k] = t
        return [o for o in self.owner.eager(leaves) if isinstance(o, Tensor)]

    def _recorded(
        self, residuals: list[Tensor], grads: list[Tensor | None], wanted: Sequence[bool]
    ) -> list[Any]:
        """Differentiate the function itself, recorded."""
        # forward mode differentiates by the gradients alone: the arguments have no history then
        given = [
            joined_copy(t, None) if w and t._node is None and i < len(self.owner.moves) else t
            for i, (t, w) in enumerate(zip(residuals, wanted, strict=True))
        ]
        outs = self._again(given)
        pairs = [(o, g) for o, g in zip(outs, grads, strict=True) if g is not None]
        inputs = [t for t, w in zip(given, wanted, strict=True) if w]
        found = iter(
            gradients(
                [o for o, _ in pairs], inputs, [g for _, g in pairs], create_graph=True, allow_unused=True
            )
        )
        return [next(found) if w else None for w in wanted]
