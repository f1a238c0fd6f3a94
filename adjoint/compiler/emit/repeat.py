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

from adjoint.compiler import pool
from adjoint.compiler.emit.kernel import Kernel, Slot
from adjoint.compiler.emit.text import Writer
from adjoint.compiler.emit.values import Value
from adjoint.compiler.machine import Machine
from adjoint.compiler.simplify import Node
from adjoint.compiler.steps import Steps

if TYPE_CHECKING:
    from adjoint.compiler.native import Plan

__all__ = ["copy_bytes", "driver_kernel", "operand_slots", "same_bytes"]

_LONG = 250_000  # nanoseconds: shorter iterations use no helper threads
_LINE = 64  # bytes


class _Words(np.ndarray[Any, np.dtype[np.int64]]):
    """An array of 64-bit words that a kernel reads; ``held`` keeps alive the objects that they point to."""

    held: Any


def operand_slots(node: Node, outs: list[Node]) -> tuple[list[Slot], dict[int, int]]:
    """Return the slots (addresses) of the operands of a loop and of its results ``outs``.

    Also return a dictionary from the index of an output to the index of its slot.
    """
    slots = [Slot(a.node, a.offset * a.dtype.itemsize) for a in node.args]
    where = {n.params: len(slots) + k for k, n in enumerate(outs)}
    return [*slots, *(Slot(n, 0) for n in outs)], where


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


def driver_kernel(body: Plan, node: Node, outs: list[Node], kept: list[int]) -> Kernel:
    """Return the kernel of a loop that runs the kernels of ``body`` once per iteration.

    ``outs`` are the nodes of the loop's results.  ``kept`` has, for each result of ``body``, its index among
    the outputs of the loop.
    """
    steps: Steps = node.value
    slots, where = operand_slots(node, outs)
    tables = _Tables(body, node, steps, kept, {k: i + 2 for k, i in where.items()})
    words = Node("constant", (), None, (1,), np.dtype(np.int64))
    words.value = tables.words()
    text = _text(body.machine)
    cost = steps.count * sum(k.cost for _, k in body.kernels)
    found = Kernel(text, [Slot(words, 0), Slot(node, 0), *slots], steps.count, steps.count, cost)
    found.tables = tables
    return found


class _Tables:
    """The tables that the kernel of a loop reads, and which ``words`` encodes.

    They list the addresses that advance by a stride, the addresses that are swapped, and the copies that
    initialise the carried values before the loop and store them after it.
    """

    def __init__(self, body: Plan, node: Node, steps: Steps, kept: list[int], where: dict[int, int]) -> None:
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

    def _make_buffers(self, node: Node) -> None:
        """Allocate two buffers for each carried value: an iteration reads one and writes the other."""
        steps = self.steps
        sizes = [a.size * a.dtype.itemsize for a in node.args[: steps.carries]]
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

    def _operand(self, address: int, k: int, node: Node, offset: int) -> None:
        """Record how the address of the loop's operand ``k`` changes from one iteration to the next.

        ``address`` is the address of the table entry that the body's kernels read, and ``offset`` is added to
        the operand's address.
        """
        steps = self.steps
        if k < steps.carries:
            even, odd = self.buffers[k]
            self.swaps.append((address, even + offset, odd + offset))
            return
        stride = 0
        if k < steps.carries + steps.rows:
            a = node.args[k]
            stride = a.strides[0] * a.dtype.itemsize
        self._move(address, k + 2, offset, stride)

    def _result(self, address: int, k: int, offset: int) -> None:
        """Record how the address of the loop's result ``k`` changes from one iteration to the next.

        The arguments are as for ``_operand``.
        """
        if k < self.steps.carries:
            even, odd = self.buffers[k]
            self.swaps.append((address, odd + offset, even + offset))
            return
        v = self.steps.outputs[k]
        self._move(address, self.where[k], offset, v.size * v.dtype.itemsize)

    def _add_rows(self, node: Node) -> None:
        """Record the rows that an iteration reads and stores, to compare them with the rows before."""
        steps = self.steps
        for k in range(steps.carries, steps.carries + steps.rows):
            a = node.args[k]
            if a.strides[0] and a.size:
                size = a.size // steps.count * a.dtype.itemsize
                self.read.append((size, k + 2, *self._way(0, a.strides[0] * a.dtype.itemsize)))
        for k, argument in self.where.items():
            v = steps.outputs[k]
            if k >= steps.carries and v.size:
                size = v.size * v.dtype.itemsize
                self.stored.append((size, argument, *self._way(0, size)))

    def _way(self, offset: int, stride: int) -> tuple[int, int]:
        """Return the offset of the row of the first iteration, and the stride to the next iteration's row.

        Both are in bytes.  If the loop runs backwards, it starts at the last row.
        """
        if self.steps.backwards:
            return offset + (self.steps.count - 1) * stride, -stride
        return offset, stride

    def _move(self, address: int, argument: int, offset: int, stride: int) -> None:
        self.moves.append((address, argument, *self._way(offset, stride)))

    def rewind(self) -> None:
        """Set the addresses of the rows back by one iteration, so that the body can run it again."""
        for entry, _, _, stride in self.moves:
            ctypes.c_int64.from_address(entry).value -= stride

    def words(self) -> _Words:
        """Return the array of words that the kernel reads: the number of iterations, and all tables."""
        body, long = self.body, self.body.estimate > _LONG
        checks = [(c.ctypes.data,) for c in body.checks]
        lists: list[Any] = [
            self.copies, self.moves, self.swaps, checks, self.pairs, self.read, self.stored
        ]  # fmt: skip
        listed = [np.array([*(x for row in rows for x in row), 0], np.int64) for rows in lists]
        places = [(len(rows), array.ctypes.data) for rows, array in zip(lists, listed, strict=True)]
        words = np.array(
            [
                pool.addresses()["run"], body.records.ctypes.data, len(body.kernels),
                pool.start(body.threads) if long and body.threads > 1 else 0,
                *(x for place in places for x in place),
            ],
            np.int64,
        ).view(_Words)  # fmt: skip
        words.held = body, listed, self.memory
        return words


@functools.cache
def _text(machine: Machine) -> str:
    """Return the LLVM text of the kernel.

    Slot 0 has the address of the words (see ``_Tables.words``), slot 1 the address of the check flag.
    """
    w = Writer(machine)
    kernel = _Kernel(w)
    w.loop(0, kernel.copies[0], 1, kernel.begin)
    w.loop(0, kernel.moves[0], 1, kernel.start)
    wrong, _ = w.loop(w.low, w.high, 1, kernel.step, [w.const(0, "i1")] * 2)
    w.loop(0, kernel.copies[0], 1, kernel.end)
    w.store(wrong, w.slot(1))
    return w.kernel()


class _Kernel:
    """Emits the kernel of a loop; each method emits the code for one row of a table, or for one iteration.

    A table is a pair: the number of its rows, and the address of the first row.
    """

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
        """Emit, for row ``i`` of ``copies``, the copy of a final carried value to the program's memory.

        Nothing is copied if the program does not use the value.
        """
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
        """Emit, for row ``i`` of ``pairs``, whether a carried value equals its value before the iteration.

        ``same`` has the result for the earlier rows; both must be true.
        """
        one = self.row(self.pairs, i, 3)
        equal = same_bytes(self.w, self.word(one, 1, "ptr"), self.word(one, 2, "ptr"), self.word(one, 0))
        return [self.w.bits("and", same[0], equal)]

    def both(self, at: Value, j: Value) -> tuple[Value, Value, Value]:
        """Emit the size of a row in bytes, its address in iteration ``j``, and the previous row's address.

        ``at`` is the address of the table row that describes it.
        """
        base = self.w.at(self.word(self.args, self.word(at, 1), "ptr"), "i8", self.word(at, 2))
        stride = self.word(at, 3)
        here = self.w.at(base, "i8", self.w.mul(j, stride))
        return self.word(at, 0), here, self.w.at(here, "i8", self.w.sub(0, stride))

    def again(self, j: Value, settled: Value) -> Value:
        """Emit whether iteration ``j`` has the same results as iteration ``j`` - 1.

        It has if it reads the same rows and ``settled`` is true: the iteration before changed no carried
        value.
        """

        def compare(i: Value, same: list[Value]) -> list[Value]:
            size, here, before = self.both(self.row(self.read, i, 4), j)
            return [self.w.bits("and", same[0], same_bytes(self.w, here, before, size))]

        yes = self.w.const(1, "i1")
        return self.w.choose(
            settled, lambda: self.w.loop(0, self.read[0], 1, compare, [yes]), lambda: [settled]
        )[0]

    def step(self, j: Value, given: list[Value]) -> list[Value]:
        """Emit iteration ``j``: run the body, or copy the previous results if they would be the same.

        ``given`` are two flags: whether a check has failed, and "settled" as in ``again``.
        """
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
