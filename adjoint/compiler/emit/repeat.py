"""The kernel of a loop with a large body: it runs the kernels of the body once per iteration.

Between two iterations the kernel advances the addresses of the rows and swaps the addresses of the carried
values.  It reads a list of 64-bit words that says how to run the body and which addresses change, so all
loops share one text.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.values import Value
from adjoint.compiler.emit.writer import Writer
from adjoint.compiler.lower.graph import Primitive
from adjoint.compiler.lower.steps import Steps
from adjoint.compiler.schedule.kernel import Address, Kernel

if TYPE_CHECKING:
    from adjoint.compiler.host.native import Schedule

__all__ = ["copy_bytes", "driver_kernel", "operand_slots", "same_bytes"]

_LINE = 64  # bytes


class _Words(np.ndarray[Any, np.dtype[np.int64]]):
    """An array of 64-bit words that a kernel reads; ``held`` keeps alive the objects that they point to."""

    held: Any


def operand_slots(node: Primitive, outs: list[Primitive]) -> tuple[list[Address], dict[int, int]]:
    """Return the slots of a loop's operands and results, and the index of the slot of each output."""
    slots = [Address(a.node, a.offset * a.dtype.itemsize) for a in node.args]
    where = {n.params: len(slots) + k for k, n in enumerate(outs)}
    return [*slots, *(Address(n, 0) for n in outs)], where


def copy_bytes(w: Writer, to: Value, source: Value, size: Any) -> None:
    """Emit a copy of ``size`` bytes from the address ``source`` to the address ``to``."""
    w.declare("void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    count = w.index_value(size)
    w.line(f"call void @llvm.memcpy.p0.p0.i64({to.typed}, {source.typed}, {count.typed}, i1 false)")


def same_bytes(w: Writer, a: Value, b: Value, size: Any) -> Value:
    """Emit a comparison of ``size`` bytes; return whether they are equal."""
    w.declare("i32 @memcmp(ptr, ptr, i64)")
    found = w.emit(f"call i32 @memcmp({a.typed}, {b.typed}, {w.index_value(size).typed})", "i32")
    return w.compare("eq", found, 0)


def driver_kernel(
    body: Schedule, node: Primitive, outs: list[Primitive], kept: list[int], runner: tuple[int, int]
) -> Kernel:
    """Return the kernel of a loop.

    ``kept`` has the index of each result of ``body`` in the loop's, ``runner`` the address of the function
    that runs kernels and the number of helper threads.
    """
    steps: Steps = node.value
    slots, where = operand_slots(node, outs)
    tables = _Tables(body, node, steps, kept, {k: i + 2 for k, i in where.items()})
    words = Primitive("constant", (), None, (1,), np.dtype(np.int64))
    words.value = tables.words(*runner)
    text = _text(body.machine)
    cost = steps.count * sum(k.cost for _, k in body.kernels)
    found = Kernel(text, [Address(words, 0), Address(node, 0), *slots], steps.count, steps.count, cost)
    found.tables = tables
    return found


class _Tables:
    """The tables that the kernel of a loop reads: addresses that advance or are swapped, and copies."""

    def __init__(
        self, body: Schedule, node: Primitive, steps: Steps, kept: list[int], where: dict[int, int]
    ) -> None:
        self.body = body
        self.steps = steps
        self.where = where
        self.moves: list[tuple[int, int, int, int]] = []  # table entry, argument, first byte, stride
        self.swaps: list[tuple[int, int, int]] = []  # table entry, address in even and odd iterations
        self.copies: list[tuple[int, int, int, int, int]] = []  # bytes; from, to before and after the loop
        # if the loop settles: the two buffers of each carried value, and the rows that are read and stored
        self.pairs: list[tuple[int, int, int]] = []  # bytes, addresses
        self.read: list[tuple[int, int, int, int]] = []  # bytes, argument, first byte, stride
        self.stored: list[tuple[int, int, int, int]] = []
        self._make_buffers(node)
        made = {body.made[v.node.id]: k for k, v in zip(kept, body.results, strict=True) if v.size}
        for slot, (kind, k, offset) in body.moving:
            address = body.table.ctypes.data + 8 * slot
            if kind == "made":
                self._result(address, made[k], offset)
            else:
                self._operand(address, k, node, offset)
        if steps.settles:
            self._add_rows(node)

    def _make_buffers(self, node: Primitive) -> None:
        """Allocate two buffers for each carried value: an iteration reads one and writes the other."""
        steps = self.steps
        sizes = [a.nbytes for a in node.args[: steps.carries]]
        lines = [-(-s // _LINE) * _LINE for s in sizes]
        self.memory = np.zeros(2 * sum(lines) + _LINE, np.uint8)
        at = self.memory.ctypes.data + -self.memory.ctypes.data % _LINE
        self.buffers = []
        for k, (size, line) in enumerate(zip(sizes, lines, strict=True)):
            pair = at, at + line
            self.buffers.append(pair)
            at += 2 * line
            last = self.where.get(k, 0)  # 0: the result is not used
            self.copies.append((size, k + 2, pair[0], pair[steps.count % 2], last))
            if steps.settles:
                self.pairs.append((size, *pair))

    def _operand(self, address: int, k: int, node: Primitive, offset: int) -> None:
        """Record how the entry at ``address``, operand ``k`` plus ``offset``, changes between iterations."""
        steps, a = self.steps, node.args[k]
        if k < steps.carries:
            even, odd = self.buffers[k]
            self.swaps.append((address, even + offset, odd + offset))
        else:
            stride = a.strides[0] * a.dtype.itemsize if k < steps.carries + steps.rows else 0
            self.moves.append((address, k + 2, *self._way(offset, stride)))

    def _result(self, address: int, k: int, offset: int) -> None:
        """Record how the entry at ``address``, result ``k`` plus ``offset``, changes between iterations."""
        if k < self.steps.carries:
            even, odd = self.buffers[k]
            self.swaps.append((address, odd + offset, even + offset))
        else:
            way = self._way(offset, self.steps.outputs[k].nbytes)
            self.moves.append((address, self.where[k], *way))

    def _add_rows(self, node: Primitive) -> None:
        """Record the rows that an iteration reads and stores, to compare them with the rows before."""
        steps = self.steps
        for k in range(steps.carries, steps.carries + steps.rows):
            a = node.args[k]
            if a.strides[0] and a.size:
                size = a.size // steps.count * a.dtype.itemsize
                self.read.append((size, k + 2, *self._way(0, a.strides[0] * a.dtype.itemsize)))
        for k, argument in self.where.items():
            size = steps.outputs[k].nbytes
            if k >= steps.carries and size:
                self.stored.append((size, argument, *self._way(0, size)))

    def _way(self, offset: int, stride: int) -> tuple[int, int]:
        """Return the offset of the first iteration's row and the stride to the next, maybe backwards."""
        last = offset + (self.steps.count - 1) * stride
        return (last, -stride) if self.steps.backwards else (offset, stride)

    def rewind(self) -> None:
        """Set the addresses of the rows back by one iteration, so that the body can run it again."""
        for entry, _, _, stride in self.moves:
            ctypes.c_int64.from_address(entry).value -= stride

    def words(self, run: int, helpers: int) -> _Words:
        """Return the array of words that the kernel reads: the number of iterations, and all tables."""
        body = self.body
        checks = [(c.ctypes.data,) for c in body.checks]
        lists: list[Any] = [self.copies, self.moves, self.swaps, checks, self.pairs, self.read, self.stored]
        listed = [np.array([*(x for row in rows for x in row), 0], np.int64) for rows in lists]
        found = [run, body.records.ctypes.data, len(body.kernels), helpers]
        for rows, array in zip(lists, listed, strict=True):
            found += [len(rows), array.ctypes.data]
        words = np.array(found, np.int64).view(_Words)
        words.held = body, listed, self.memory
        return words


@functools.cache
def _text(machine: Machine) -> str:
    """Return the text of the kernel: slot 0 has the words of ``_Tables.words``, slot 1 the check flag."""
    w = Writer(machine)
    kernel = _Driver(w)
    w.loop(0, kernel.copies[0], 1, kernel.begin)
    w.loop(0, kernel.moves[0], 1, kernel.start)
    wrong, _ = w.loop(w.low, w.high, 1, kernel.step, [w.const(0, "i1")] * 2)
    w.loop(0, kernel.copies[0], 1, kernel.end)
    w.store(wrong, w.slot(1))
    return w.kernel()


class _Driver:
    """Emits the kernel of a loop; a table is a pair of the number of its rows and their address."""

    def __init__(self, w: Writer) -> None:
        self.w, first = w, w.slot(0)
        self.args = Value("%args", "ptr")
        self.run, self.records = self.word(first, 0, "ptr"), self.word(first, 1, "ptr")
        self.count, self.helpers = self.word(first, 2), self.word(first, 3)
        tables = [(self.word(first, 4 + 2 * k), self.word(first, 5 + 2 * k, "ptr")) for k in range(7)]
        self.copies, self.moves, self.swaps, self.checks, self.pairs, self.read, self.stored = tables

    def word(self, at: Value, k: Any, element: str = "i64") -> Value:
        """Emit the load of the 64-bit word with index ``k`` at the address ``at``."""
        return self.w.load(self.w.at(at, "i64", k), element)

    def row(self, table: tuple[Value, Value], i: Value, size: int) -> Value:
        """Emit the address of row ``i`` of a table whose rows have ``size`` words."""
        return self.w.at(table[1], "i64", self.w.times(i, size))

    def begin(self, i: Value, _: list[Value]) -> None:
        """Emit, for row ``i`` of the table ``copies``, the copy of an initial carried value to its buffer."""
        one = self.row(self.copies, i, 5)
        given = self.word(self.args, self.word(one, 1), "ptr")
        copy_bytes(self.w, self.word(one, 2, "ptr"), given, self.word(one, 0))

    def end(self, i: Value, _: list[Value]) -> None:
        """Emit, for row ``i`` of ``copies``, the copy of a final carried value that the program uses."""
        one = self.row(self.copies, i, 5)
        to = self.word(one, 4)
        with self.w.when(self.w.compare("ne", to, 0)):
            copy_bytes(self.w, self.word(self.args, to, "ptr"), self.word(one, 3, "ptr"), self.word(one, 0))

    def start(self, i: Value, _: list[Value]) -> None:
        """Emit, for row ``i`` of the table ``moves``, code that sets an address for the first iteration."""
        one = self.row(self.moves, i, 4)
        base = self.word(self.args, self.word(one, 1), "ptr")
        self.w.store(self.w.at(base, "i8", self.word(one, 2)), self.word(one, 0, "ptr"))

    def move(self, i: Value, _: list[Value]) -> None:
        """Emit, for row ``i`` of the table ``moves``, code that advances an address to the next iteration."""
        one = self.row(self.moves, i, 4)
        slot = self.word(one, 0, "ptr")
        self.w.store(self.w.at(self.w.load(slot, "ptr"), "i8", self.word(one, 3)), slot)

    def look(self, i: Value, flags: list[Value]) -> list[Value]:
        """Emit the flag "a check has failed" after check ``i``; ``flags`` has the flag before it."""
        return [self.w.bits("or", flags[0], self.w.load(self.word(self.checks[1], i, "ptr"), "i1"))]

    def unchanged(self, i: Value, same: list[Value]) -> list[Value]:
        """Emit whether a carried value, row ``i`` of ``pairs``, and those before are the same as before."""
        one = self.row(self.pairs, i, 3)
        equal = same_bytes(self.w, self.word(one, 1, "ptr"), self.word(one, 2, "ptr"), self.word(one, 0))
        return [self.w.bits("and", same[0], equal)]

    def both(self, at: Value, j: Value) -> tuple[Value, Value, Value]:
        """Emit the bytes of a row, its address in iteration ``j``, and the previous row's address."""
        base = self.w.at(self.word(self.args, self.word(at, 1), "ptr"), "i8", self.word(at, 2))
        stride = self.word(at, 3)
        here = self.w.at(base, "i8", self.w.mul(j, stride))
        return self.word(at, 0), here, self.w.at(here, "i8", self.w.sub(0, stride))

    def again(self, j: Value, settled: Value) -> Value:
        """Emit whether iteration ``j`` repeats the one before; ``settled``: that changed no carried value."""

        def compare(i: Value, same: list[Value]) -> list[Value]:
            size, here, before = self.both(self.row(self.read, i, 4), j)
            return [self.w.bits("and", same[0], same_bytes(self.w, here, before, size))]

        yes = self.w.const(1, "i1")
        return self.w.choose(
            settled, lambda: self.w.loop(0, self.read[0], 1, compare, [yes]), lambda: [settled]
        )[0]

    def step(self, j: Value, given: list[Value]) -> list[Value]:
        """Emit iteration ``j``; ``given`` are the flags "a check has failed" and "settled"."""
        found = self.w.choose(
            self.again(j, given[1]), lambda: self._copy(j, given), lambda: self._compute(j, given)
        )
        self.w.loop(0, self.moves[0], 1, self.move)
        return found

    def _copy(self, j: Value, given: list[Value]) -> list[Value]:
        def copy(i: Value, _: list[Value]) -> None:
            size, here, before = self.both(self.row(self.stored, i, 4), j)
            copy_bytes(self.w, here, before, size)

        self.w.loop(0, self.stored[0], 1, copy)
        return given

    def _compute(self, j: Value, given: list[Value]) -> list[Value]:
        odd = self.w.compare("ne", self.w.bits("and", j, 1), 0)

        def swap(i: Value, _: list[Value]) -> None:
            one = self.row(self.swaps, i, 3)
            self.w.store(self.w.select(odd, self.word(one, 2), self.word(one, 1)), self.word(one, 0, "ptr"))

        self.w.loop(0, self.swaps[0], 1, swap)
        arguments = ", ".join(value.typed for value in (self.records, self.count, self.helpers))
        self.w.line(f"call void {self.run.text}({arguments})")
        found = self.w.loop(0, self.checks[0], 1, self.look, given[:1])
        return [
            *found,
            *self.w.loop(0, self.pairs[0], 1, self.unchanged, [self.w.compare("ne", self.pairs[0], 0)]),
        ]
