"""The calling function of a library: it checks its arguments, runs the kernels, and writes the results.

Nothing is written before all checks have passed: neither results of the caller nor parts of the state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from adjoint.compiler.emit.code import Code
from adjoint.compiler.emit.values import Value
from adjoint.compiler.host.native import cuts_of
from adjoint.compiler.lower.graph import View
from adjoint.compiler.schedule.kernel import Address
from adjoint.exports.collect import Collected, Part
from adjoint.exports.draws import emit_draw
from adjoint.exports.plan import HEADER, Layout, LibraryPlan, Loop, aligned, place_loops
from adjoint.exports.restore import GENERATOR
from adjoint.exports.runtime import copy
from adjoint.exports.texts import EXPORTED, constant

__all__ = [
    "BAD_POINTER",
    "BAD_STATE",
    "CHECKS",
    "Calling",
    "Kernels",
    "nonzero_end",
    "state_values",
]

CHECKS = 16  # the first return code of a failed check
BAD_POINTER, BAD_STATE = 1, 2
_WORDS = sum(GENERATOR.values())


class Kernels:
    """The names of the kernels that are called, by text."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.names: dict[str, str] = {}

    def name(self, text: str) -> str:
        """Return the name of the kernel with this text."""
        return self.names.setdefault(text, f"{self.prefix}_kernel{len(self.names)}")


class Frame:
    """The addresses of the values of a plan, in a function that runs its kernels.

    ``given`` and ``made`` have the addresses of its sources and of its outputs.
    """

    def __init__(
        self, w: Code, plan: LibraryPlan, state: Value, arena: int, given: dict[int, Value], made: list[Value]
    ) -> None:
        self.w, self.plan, self.state, self.arena = w, plan, state, arena
        self.given, self.made = given, made
        most = max((len(k.slots) for _, k in plan.kernels), default=0)
        self.table = w.scratch("ptr", most + 1)

    def address(self, slot: Address) -> Value:
        """Emit the address of a slot."""
        w, memory = self.w, self.plan.memory
        if slot.node is None:
            return w.at(self.state, "i8", self.arena + slot.offset)
        node, offset = memory.place(slot.node)
        offset += slot.offset
        if node.op in ("source", "number"):
            base = self.given[node.params]
        elif node.op == "constant":
            base = constant(w, node.value) if node.size else self.state
        elif node.id in self.plan.made:
            base = self.made[self.plan.made[node.id]]
        elif node.size:
            base, offset = self.state, self.arena + memory.offset[node.id] + offset
        else:
            return self.state  # an empty array is never read
        return w.at(base, "i8", offset)

    def of(self, v: View) -> Value:
        """Emit the address of the first element of a view."""
        return self.address(Address(v.node, v.offset * v.node.dtype.itemsize))

    def run(self, low: int, high: int, kernels: Kernels) -> None:
        """Emit the calls of the kernels ``low`` to ``high``."""
        w = self.w
        for _, kernel in self.plan.kernels[low:high]:
            for i, slot in enumerate(kernel.slots):
                w.store(self.address(slot), w.at(self.table, "ptr", i))
            if isinstance(kernel.tables, Loop):
                w.run(kernel.tables.name, self.state, self.table)
                continue
            name = kernels.name(kernel.text)
            w.declare(f"void @{name}(ptr, i64, i64, i64, i64)")
            for chunk, bounds in enumerate(pairwise(cuts_of(kernel, 1))):
                w.run(name, self.table, *[w.value(n) for n in (*bounds, chunk, 0)])


class Calling:
    """The memory of a library's state, and its calling function."""

    def __init__(self, name: str, made: Collected, plan: LibraryPlan) -> None:
        self.name, self.collected, self.plan = name, made, plan
        self.kernels = Kernels(name)
        self.layout = Layout()
        # parts whose first value is 0 come last, so that the library need not contain them
        order = sorted(made.parts, key=lambda p: _is_zero(p.value))
        for part in order:
            part.offset = self.layout.take(part.value.nbytes)
        self.order: list[Part] = order
        self.parts_end = self.layout.size
        self.arena = self.layout.take(plan.memory.size)
        self.drawn = [self.layout.take(int(np.prod(d.shape)) * d.dtype.itemsize) for d, _ in made.draws]
        self.advanced = {k: self.layout.take(8 * _WORDS) for _, k in made.draws}
        self.numbers = {
            k: self.layout.take(8 * len(source[1]))
            for k, source in enumerate(made.inputs) if source[0] == "numbers"
        }  # fmt: skip
        place_loops(plan, self.layout, name)
        self._place_outputs()

    def _place_outputs(self) -> None:
        """Choose where each output is computed: at the caller's address, in its part, or in scratch."""
        plan, made = self.plan, self.collected
        early = {plan.memory.place(n)[0].id for g in plan.groups[: plan.first] for n in g.nodes} | plan.early
        read = {source[1] for source in made.inputs if source[0] == "part"}
        targets: dict[int, list[tuple[str, int]]] = {}
        self.copies: list[tuple[int, str, int]] = []  # an output, and where it is copied to
        for kind, k, output in [
            *(("result", k, item.output) for k, item in enumerate(made.results)),
            *(("part", part, output) for output, part in made.writes),
        ]:
            targets.setdefault(output, []).append((kind, k))
        self.homes: list[tuple[str, int]] = [("", -1)] * len(plan.fresh)
        for output, where in targets.items():
            v = plan.results[output]
            home = plan.made.get(v.node.id, -1)
            for kind, k in where:
                free = home >= 0 and self.homes[home][1] < 0 and not v.weak and v.is_whole()
                free = free and not (plan.flags and v.node.id in early)
                if kind == "part":
                    free = free and (k not in read or output in plan.reuses)
                if free:
                    self.homes[home] = kind, k
                elif v.size:
                    self.copies.append((output, kind, k))
        for k, (_, at) in enumerate(self.homes):
            if at < 0:
                self.homes[k] = "scratch", self.layout.take(plan.fresh[k].node.nbytes)

    # The text ----------------------------------------------------------------------------------------

    def define(self, root: Code) -> None:
        """Add the calling function and those of the loops to a unit."""
        for loop in self.plan.loops():
            self._define_loop(root, loop)
        given = [("ptr", "state"), ("ptr", "inputs"), ("ptr", "outputs")]
        root.define(f"{EXPORTED}{self.name}", given, self._body, "i32", attributes="", linkage="")

    def _body(self, w: Code, args: list[Value]) -> Value:
        state, inputs, outputs = args
        made, plan = self.collected, self.plan
        self.check_state(w, state)
        sides = [(inputs, made.arguments), (outputs, made.results)]
        pointers = [self._pointers(w, table, items) for table, items in sides]
        for k, part in enumerate(made.parts):
            if k in self.advanced:
                copy(w, self._at(w, state, self.advanced[k]), self._at(w, state, part.offset), 8 * _WORDS)
        for (draw, part_of), to in zip(made.draws, self.drawn, strict=True):
            emit_draw(w, draw, self._at(w, state, self.advanced[part_of]), self._at(w, state, to))
        given = self._given(w, state, pointers[0])

        def address(kind: str, k: int) -> Value:
            if kind == "result":
                return pointers[1][k]
            return self._at(w, state, k if kind == "scratch" else made.parts[k].offset)

        frame = Frame(w, plan, state, self.arena, given, [address(*home) for home in self.homes])
        frame.run(0, plan.before, self.kernels)
        for k, flag in enumerate(plan.flags):
            w.give_if(w.load(frame.of(flag), "i1"), w.const(CHECKS + k, "i32"))
        frame.run(plan.before, len(plan.kernels), self.kernels)
        for output, kind, k in self.copies:
            v = plan.results[output]
            copy(w, address(kind, k), frame.of(v), v.size * v.node.dtype.itemsize)
        for k in made.rates:
            w.store(self._rate(w, state, k), self._at(w, state, made.parts[k].offset))
        for k, times in made.counts:
            at = self._at(w, state, made.parts[k].offset)
            w.store(w.add(w.load(at, "i64"), times), at)
        for k, advanced in self.advanced.items():
            copy(w, self._at(w, state, made.parts[k].offset), self._at(w, state, advanced), 8 * _WORDS)
        return w.const(0, "i32")

    def _at(self, w: Code, state: Value, offset: int) -> Value:
        return w.at(state, "i8", offset)

    def fingerprint(self) -> int:
        """Return a number that differs for libraries with other parts or sizes."""
        parts = [(p.name, str(p.value.dtype), p.value.shape, p.offset) for p in self.collected.parts]
        text = repr((self.name, parts, self.layout.size))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)

    def check_state(self, w: Code, state: Value) -> None:
        """Emit a return with an error code unless a state is one of this library."""
        for fault, code in self.faults(w, state):
            w.give_if(fault, w.const(code, "i32"))

    def faults(self, w: Code, state: Value) -> Iterator[tuple[Value, int]]:
        """Emit flags for what is wrong with a state, with codes; each needs that those before are false."""
        yield w.is_null(state), BAD_POINTER
        yield self.unaligned(w, state, 64), BAD_POINTER
        for k, word in enumerate(self.header()):
            yield w.differ(w.word(state, k), word), BAD_STATE

    def header(self) -> tuple[int, int, int]:
        """Return the words at the start of a state."""
        mark = self.fingerprint()
        return mark, ~mark, self.layout.size

    def unaligned(self, w: Code, pointer: Value, size: int) -> Value:
        """Emit a flag: whether an address is no multiple of a power of two."""
        number = w.emit(f"ptrtoint {pointer.typed} to i64", "i64")
        return w.differ(w.bits("and", number, size - 1), 0)

    def _pointers(self, w: Code, table: Value, items: Sequence[Any]) -> list[Value]:
        """Emit the pointers in a table; return with an error code if one is null or misaligned."""
        bad = w.const(BAD_POINTER, "i32")
        if items:
            w.give_if(w.is_null(table), bad)
        found = []
        for k, item in enumerate(items):
            found.append(w.load(w.at(table, "ptr", k), "ptr"))
            w.give_if(w.is_null(found[k]), bad)
            if item.dtype.itemsize > 1:
                w.give_if(self.unaligned(w, found[k], item.dtype.itemsize), bad)
        return found

    def _given(self, w: Code, state: Value, arguments: list[Value]) -> dict[int, Value]:
        """Emit the addresses of the inputs of the program; fill the arrays of numbers."""
        found = {}
        for k, (kind, *rest) in enumerate(self.collected.inputs):
            if kind == "argument":
                found[k] = arguments[rest[0]]
            elif kind == "part":
                found[k] = self._at(w, state, self.collected.parts[rest[0]].offset)
            elif kind == "draw":
                found[k] = self._at(w, state, self.drawn[rest[0]])
            elif kind == "numbers":
                found[k] = self._at(w, state, self.numbers[k])
                for i, part in enumerate(rest[0]):
                    at = self._at(w, state, self.collected.parts[part].offset)
                    if part in self.collected.rates:
                        number = self._rate(w, state, part)
                    elif self.collected.parts[part].value.dtype.kind == "i":
                        number = w.convert(w.add(w.load(at, "i64"), rest[1]), "double")
                    else:
                        number = w.load(at, "double")
                    w.store(number, w.at(found[k], "double", i))
        return found

    def _rate(self, w: Code, state: Value, part: int) -> Value:
        """Emit the learning rate of this call."""
        counter, ahead, table = self.collected.rates[part]
        step = w.add(w.load(self._at(w, state, self.collected.parts[counter].offset), "i64"), ahead)
        step = w.select(w.compare("slt", step, 0), w.value(0), step)
        last = w.value(len(table) - 1)
        step = w.select(w.compare("sgt", step, last), last, step)
        return w.load(w.at(constant(w, np.array(table)), "double", step), "double")

    def _define_loop(self, root: Code, loop: Loop) -> None:
        """Add the function of a loop: ``name(state, addresses of flag, operands and results)``."""
        for inner in loop.body.loops():
            self._define_loop(root, inner)
        root.define(
            loop.name, [("ptr", "state"), ("ptr", "args")], self._loop_body(loop), attributes="noinline"
        )

    def _loop_body(self, loop: Loop) -> Callable[[Code, list[Value]], None]:
        def body(w: Code, args: list[Value]) -> None:
            state, table = args
            node, steps = loop.node, loop.node.value

            def operand(i: int) -> Value:
                return w.load(w.at(table, "ptr", i), "ptr")

            pairs = [[self._at(w, state, at) for at in pair] for pair in loop.carries]
            for k, (even, _) in enumerate(pairs):
                copy(w, even, operand(1 + k), node.args[k].nbytes)
            wrong = w.scratch("i1", 1)
            w.store(w.value(False), wrong)
            with w.count(steps.count) as j:
                odd = w.differ(w.bits("and", j, 1), 0)
                row = w.sub(steps.count - 1, j) if steps.backwards else j
                given = {}
                for k, a in enumerate(node.args):
                    if k < steps.carries:
                        given[k] = w.select(odd, pairs[k][1], pairs[k][0])
                    else:
                        stride = a.strides[0] * a.dtype.itemsize if k < steps.carries + steps.rows else 0
                        given[k] = w.at(operand(1 + k), "i8", w.times(row, stride))
                made = [state] * len(loop.body.fresh)
                for k, v in zip(loop.kept, loop.body.results, strict=True):
                    if v.node.id not in loop.body.made:
                        continue
                    if k < steps.carries:
                        to = w.select(odd, pairs[k][0], pairs[k][1])
                    else:
                        to = w.at(operand(loop.where[k]), "i8", w.times(row, steps.outputs[k].nbytes))
                    made[loop.body.made[v.node.id]] = to
                frame = Frame(w, loop.body, state, loop.arena, given, made)
                frame.run(0, len(loop.body.kernels), self.kernels)
                for flag in loop.body.flags:
                    w.store(w.either(w.load(wrong, "i1"), w.load(frame.of(flag), "i1")), wrong)
            for k, pair in enumerate(pairs):
                if k in loop.where:
                    copy(w, operand(loop.where[k]), pair[steps.count % 2], node.args[k].nbytes)
            w.store(w.load(wrong, "i1"), operand(0))

        return body


def state_values(parts: Sequence[Part], end: int) -> bytes:
    """Return the first values of parts, as they are in a state from the end of the header to ``end``."""
    data = bytearray(end - HEADER)
    for p in parts:
        data[p.offset - HEADER : p.offset - HEADER + p.value.nbytes] = p.value.tobytes()
    return bytes(data)


def _is_zero(array: Any) -> bool:
    return not array.tobytes().strip(b"\0")


def nonzero_end(parts: Sequence[Part]) -> int:
    """Return the offset after the last part that has a value other than 0."""
    used = [p for p in parts if not _is_zero(p.value)]
    return max((p.offset + aligned(p.value.nbytes) for p in used), default=HEADER)
