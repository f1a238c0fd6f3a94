"""Lower a traced program to a graph of primitives; ops without a native form become calls of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adjoint.compiler.loops.repeat import Repeat
from adjoint.compiler.lower.graph import Dataflow, View, is_half, is_stored
from adjoint.compiler.lower.halves import narrow, widen
from adjoint.compiler.lower.primitives import Primitives
from adjoint.compiler.lower.steps import Steps, repeat
from adjoint.compiler.lower.target import CPU, Target
from adjoint.compiler.program.program import Instruction, Program
from adjoint.compiler.program.symbols import Number, Symbolic, copying
from adjoint.core.native import NotNative

__all__ = ["FAILURES", "Lowered"]

# What a function raises if it cannot be written with primitives.
FAILURES = (NotNative, TypeError, AttributeError, KeyError, ValueError, IndexError, ArithmeticError)


class Lowered:
    """A program as a graph of primitives.

    ``outputs`` are the views of its outputs.  ``reasons`` says, by the id of a node that calls NumPy, why the
    op is not native.  ``checked`` has the instruction of each check of the graph.
    """

    def __init__(self, program: Program, sizes: Target = CPU) -> None:
        self.graph = Dataflow(sizes)
        self.xp = Primitives(self.graph)
        self.known: dict[int, View] = {}  # by the id of the value of the program
        self.reasons: dict[int, str] = {}
        self.checked: list[Instruction] = []
        for k, s in enumerate(program.sources):
            self._source(k, s)
        for i in program.live():
            self._instruction(i)
        self.graph.current = ""
        self.outputs = [self._output(o) for o in program.outputs()]

    def _source(self, k: int, source: Any) -> None:
        """Add input ``k`` of the program to the graph; a known value becomes a constant."""
        value = source.value
        if value.weak:
            self.known[value.id] = self.graph.number(k)
        elif value.known is not None and is_stored(value.dtype):
            self.known[value.id] = self.graph.constant(value.known)
        else:
            self.known[value.id] = self.graph.source(k, tuple(value.shape), value.dtype)

    def _output(self, value: Symbolic) -> View:
        """Return the view that has the value of an output.

        An input that is returned unchanged is copied by NumPy if its dtype has no native form.
        """
        found = self.known[value.id]
        if is_stored(found.dtype) or found.node.op != "source":
            return found
        copy = Instruction(copying(value.dtype), (value,), {}, (value,), False)
        (found,) = self.graph.call(copy, (found,), [(tuple(value.shape), value.dtype, False)])
        self.reasons[found.node.args[0].node.id] = f"{value.dtype} has no native form"
        return found

    def _instruction(self, i: Instruction) -> None:
        """Add one instruction to the graph: as primitives if possible, else as a call of NumPy."""
        args = tuple([self.known[a.id] if isinstance(a, Symbolic) else a for a in i.args])
        checks = len(self.graph.checks)
        self.graph.current = i.op.name
        try:
            outs = self._native(i, args)
        except FAILURES as error:
            del self.graph.checks[checks:]
            specs = [(tuple(o.shape), o.dtype, bool(o.weak)) for o in i.outs]
            outs = self.graph.call(i, args, specs)
            call = outs[0].node.args[0].node if outs else self.graph.nodes[-1]
            self.reasons[call.id] = str(error) or type(error).__name__
        self.checked += [i] * (len(self.graph.checks) - checks)
        for o, view in zip(i.outs, outs, strict=True):
            self.known[o.id] = view

    def _native(self, i: Instruction, args: tuple[Any, ...]) -> list[View]:
        """Add an instruction to the graph as primitives; return its results.

        Raise NotNative if that is not possible.
        """
        if any(isinstance(a, Number) and a.kind is not float for a in (*i.args, *i.outs)):
            raise NotNative("an operand or the result is a Python number other than a float")
        values: list[Any] = [*(a for a in args if isinstance(a, View)), *i.outs]
        for v in values:
            if not is_stored(v.dtype):
                raise NotNative(f"{v.dtype} has no native form")
        if isinstance(i.op.forward, Repeat):
            return self._repeat(i, args)
        if i.op.lower is None and i.op.kind == "host":
            weak = bool(i.outs) and i.outs[0].weak
            why = "of Python floats may raise an error, so Python computes it" if weak else "runs in Python"
            raise NotNative(f"{i.op.name} {why}")
        if i.op.kind != "host" and (i.op.call or not i.op.pure):
            raise NotNative(f"{i.op.name} calls a Python function")
        if not any(is_half(v.dtype) for v in values):
            return self._applied(i, args)
        if i.op.kind != "elementwise":
            checks = len(self.graph.checks)
            self.graph.moves = True
            try:  # an op that only moves elements
                return self._applied(i, args)
            except FAILURES:
                del self.graph.checks[checks:]
            finally:
                self.graph.moves = False
        self.xp.half = next(v.dtype for v in values if is_half(v.dtype))
        try:
            return self._applied(i, widen(i, args))
        finally:
            self.xp.half = None

    def _applied(self, i: Instruction, args: Sequence[Any]) -> list[View]:
        """Add the native form of an op to the graph; return its results.

        Raise NotNative if it has none, or if it would have other results.
        """
        found = self.xp.apply(i.op, *args, **i.params)
        outs = [found] if i.op.outputs == 1 else list(found)
        outs = [o if isinstance(o, View) else self.xp.view(o) for o in outs]
        outs = [narrow(o, wanted.dtype) for o, wanted in zip(outs, i.outs, strict=True)]
        for o, wanted in zip(outs, i.outs, strict=True):
            if o.shape != tuple(wanted.shape) or o.dtype != wanted.dtype:
                raise NotNative(f"native code would return a different result, {o.dtype}{list(o.shape)}")
        # a rule may return its operand, a Python float, where NumPy returns an array
        return [o if wanted.weak else self.xp.strong(o) for o, wanted in zip(outs, i.outs, strict=True)]

    def _repeat(self, i: Instruction, args: tuple[Any, ...]) -> list[View]:
        """Add a loop to the graph; return its results.

        Raise NotNative if a part of its body has no native form.
        """
        loop = i.op.forward
        body = Lowered(loop.program, self.graph.sizes)
        if body.reasons:
            raise NotNative(f"a step of the loop calls NumPy: {next(iter(body.reasons.values()))}")
        of_rows = loop.carries, loop.rows, loop.backwards, loop.settles
        steps = Steps(body.graph, body.outputs, loop.count, *of_rows)
        return repeat(self.graph, steps, args)
