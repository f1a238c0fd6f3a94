"""Python numbers that Python computes before a native program runs: arguments, variables and results of both.

Python's integers have any size and its operators raise errors, so native code gets their results only: as
floats beside float arrays, and as arrays without axes beside integer arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from adjoint.compiler.program.inputs import Source
from adjoint.compiler.program.lines import Lines
from adjoint.compiler.program.program import Instruction, Program
from adjoint.compiler.program.symbols import SAME, Number, Symbolic
from adjoint.core.record import float_dtype

__all__ = ["Numbers", "Split", "numbers_of", "split"]

_KINDS = ("argument", "variable")  # sources of numbers that can be read before a program runs
_TEXTS: dict[Any, str] = {
    operator.add: "{} + {}", operator.sub: "{} - {}", operator.mul: "{} * {}", operator.truediv: "{} / {}",
    operator.floordiv: "{} // {}", operator.mod: "{} % {}", operator.neg: "-{}", operator.lt: "{} < {}",
    operator.le: "{} <= {}", operator.gt: "{} > {}", operator.ge: "{} >= {}", operator.eq: "{} == {}",
    operator.ne: "{} != {}", SAME.forward: "{}",
}  # fmt: skip


class Numbers:
    """Adds lines that compute Python numbers to a generated function; each number is computed once.

    The lines raise TypeError if a variable has another type than in the trace.
    """

    def __init__(self, w: Lines) -> None:
        self.w = w
        w.names["other_type"] = TypeError

    def add(self, value: Any, program: Program) -> str:
        """Add the lines that compute ``value``, a number of ``program``; return an expression for it."""
        if not isinstance(value, Number):
            return self.w.name(value)
        known = self.w.numbers
        if value.id not in known:
            source = next((s for s in program.sources if s.value is value), None)
            if source is not None and source.kind == "argument":
                known[value.id] = f"x{source.owner}"
                return known[value.id]
            if source is not None:
                text = source.code(self.w)
            else:
                i = next(i for i in program.body if i.outs and i.outs[0] is value)
                args = [self.add(a, program) for a in i.args]
                if i.op.forward in _TEXTS:
                    text = _TEXTS[i.op.forward].format(*args)
                else:
                    text = f"{self.w.name(i.op.forward, 'f')}({', '.join(args)})"
            known[value.id] = f"num{value.id}"
            self.w.add(f"num{value.id} = {text}")
            if source is not None:
                self.w.add(f"if type(num{value.id}) is not {value.kind.__name__}: raise other_type")
        return known[value.id]

    def condition(self, function: Callable[[Any], Any], part: Program, found: Any, exact: Any) -> str:
        """Add the lines that compute the result of ``part``; return a condition for a changed outcome.

        ``found`` is the outcome in the trace: the value of ``function`` for the result.
        """
        (value,) = part.results
        text = self.add(value, part)
        if function is SAME.forward and value.kind is int:
            return f"{text} != {self.w.name(found)}"
        if function is bool:
            return text if not found else f"not {text}"
        return f"{self.w.name(exact)}({self.w.name(function)}({text})) != {self.w.name(exact(found))}"


def numbers_of(program: Program, live: Collection[Instruction]) -> dict[int, Number]:
    """Return the numbers of a program that do not depend on tensors, by id."""
    found = {s.value.id: s.value for s in program.sources if s.kind in _KINDS and isinstance(s.value, Number)}
    for i in live:
        known = all(a.id in found for a in i.args if isinstance(a, Symbolic))
        (out,) = i.outs if len(i.outs) == 1 else (None,)
        if known and i.op.kind == "host" and isinstance(out, Number) and out.kind is not complex:
            found[out.id] = out
    return found


class ScalarSource(Source):
    """A number that Python has computed; the owner is the variable with its value."""

    __slots__ = ()
    kind, private = "scalar", True

    def code(self, w: Lines) -> str:
        """Return the variable."""
        return str(self.owner)


class Split:
    """A program without the numbers that Python computes before it runs.

    ``program`` is the rest, which gets these numbers as inputs; ``writes`` are the assignments of numbers to
    variables, and ``outputs`` has each output of the whole program: its index in the rest, or a number.
    """

    def __init__(self, whole: Program, live: Sequence[Instruction], numbers: dict[int, Number]) -> None:
        self.whole = whole
        self.program = rest = Program()
        rest.count = whole.count
        self.made: dict[Any, tuple[ScalarSource, Number]] = {}
        body = [i for i in live if not (i.outs and i.outs[0].id in numbers)]
        rest.body = [self._instruction(i, numbers) for i in body]
        self.kept = [k for k, s in enumerate(whole.sources) if s.value.id not in numbers]
        self.writes = [w for w in whole.writes if w.kind == "place"]
        rest.results = [v for v in whole.results if v.id not in numbers]
        for w in whole.writes:
            if w.kind != "place":
                rest.writes.append(self._write(w, numbers))
        rest.sources = [whole.sources[k] for k in self.kept] + [s for s, _ in self.made.values()]
        places = iter(range(len(rest.outputs())))
        of_places = {id(v) for w in self.writes for v in w.values}
        self.outputs = [
            v if v.id in numbers and (k < len(whole.results) or id(v) in of_places) else next(places)
            for k, v in enumerate(whole.outputs())
        ]
        self.compute = self._function()

    def _instruction(self, i: Instruction, numbers: dict[int, Number]) -> Instruction:
        """Return an instruction of the rest, with inputs in place of the numbers that Python computes."""
        if not any(getattr(a, "id", None) in numbers for a in i.args):
            return i
        others = [a for a in i.args if isinstance(a, Symbolic) and not a.weak]
        args = [self._operand(i, a, others) if getattr(a, "id", None) in numbers else a for a in i.args]
        return Instruction(i.op, tuple(args), i.params, i.outs, i.quiet, i.position, i.in_place)

    def _operand(self, i: Instruction, number: Number, others: list[Symbolic]) -> Symbolic:
        dtype: Any = None
        if i.op.kind == "host" and i.op.batch == "elementwise":  # a conversion to an array
            made = i.outs[0].dtype
            dtype = made if made.kind in "biu" else float
        elif i.op.kind == "elementwise" and number.kind in (int, bool):
            if number.kind is bool:
                dtype = np.dtype(bool)
            elif float_dtype(others) is not None:
                dtype = float
            elif others:
                dtype = np.result_type(*(o.dtype for o in others))
                dtype = np.dtype(np.int64) if dtype.kind == "b" else dtype
        return self._source(number, dtype)

    def _source(self, number: Number, dtype: Any) -> Symbolic:
        """Return the value of the input that has a number, as an array of ``dtype`` unless that is None."""
        key = number.id, str(dtype)
        if key not in self.made:
            value: Symbolic
            if dtype is None or dtype is float:
                value = Number(number.trace, dtype or number.kind)
            else:
                value = Symbolic(number.trace, (), dtype)
            self.made[key] = ScalarSource(value, f"num{number.id}_{len(self.made)}"), number
        return self.made[key][0].value

    def _write(self, w: Any, numbers: dict[int, Number]) -> Any:
        values = [self._source(v, None) if v is not None and v.id in numbers else v for v in w.values]
        return w if all(map(lambda a, b: a is b, values, w.values)) else type(w)(w.owner, *values)

    def add(self, w: Lines) -> list[str]:
        """Add the lines that compute the numbers; return an expression for each output that is one."""
        numbers = Numbers(w)
        for source, number in self.made.values():
            text = numbers.add(number, self.whole)
            if not source.value.weak:
                text = f"{w.name(np.asarray)}({text}, {w.name(source.value.dtype)})"
            elif source.value.dtype.kind == "f" and number.kind is not float:
                text = f"float({text})"
            w.add(f"{source.owner} = {text}")
        return [numbers.add(v, self.whole) for v in self.outputs if type(v) is not int]

    def merged(self, outs: Sequence[str]) -> str:
        """Return the tuple of all outputs as an expression; ``outs`` are those of ``add``."""
        names = iter(outs)
        texts = [f"found[{v}]" if type(v) is int else next(names) for v in self.outputs]
        return f"({''.join(f'{t}, ' for t in texts)})"

    def _function(self) -> Callable[..., Any]:
        """Return a function from the inputs of the whole program to those of the rest, and a function.

        That function returns all outputs, given those of the rest.
        """
        w = Lines()
        given = [f"g{k}" for k in range(len(self.whole.sources))]
        for name, s in zip(given, self.whole.sources, strict=True):
            w.numbers[s.value.id] = name
        outs = self.add(w)
        inputs = [given[k] for k in self.kept] + [s.owner for s, _ in self.made.values()]
        w.add(f"return ({''.join(f'{t}, ' for t in inputs)}), lambda found: {self.merged(outs)}")
        return w.function("compute", given)


def split(program: Program) -> Split | None:
    """Return a program without the numbers that Python computes before; None if native code computes all."""
    live = program.live()
    numbers = numbers_of(program, live)
    makers = [i for i in live if i.outs and i.outs[0].id in numbers]
    places = any(w.kind == "place" for w in program.writes)
    integers = any(n.kind is not float for n in numbers.values())
    if not places and not integers and all(i.op.lower is not None for i in makers):
        return None
    return Split(program, live, numbers)
