"""The kernel of a loop with a large body: it runs the kernels of the body once per iteration.

Between two iterations the kernel advances the addresses of the rows and swaps the addresses of the carried
values.  It reads a list of 64-bit words that says how to run the body and which addresses change, so all
loops share one text.
"""

from __future__ import annotations

import ctypes
import functools
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.compiler.emit.code import Code, Tables, Words
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
_ARGS = Value("%args", "ptr")


class _Word(IntEnum):
    """The words that the kernel reads.  A table has two words: the number of its rows, and their address."""

    RUN = 0  # the address of the function that runs kernels
    RECORDS = 1  # the address of the kernels of the body
    COUNT = 2  # their number
    HELPERS = 3  # the number of helper threads
    COPIES = 4  # the tables of ``_Tables``
    MOVES = 6
    SWAPS = 8
    CHECKS = 10
    PAIRS = 12
    READ = 14
    STORED = 16


def operand_slots(node: Primitive, outs: list[Primitive]) -> tuple[list[Address], dict[int, int]]:
    """Return the slots of a loop's operands and results, and the index of the slot of each output."""
    slots = [Address(a.node, a.offset * a.node.width) for a in node.args]
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

    def words(self, run: int, helpers: int) -> Words:
        """Return the array of words that the kernel reads: the number of iterations, and all tables."""
        body, made = self.body, Tables()
        checks = [(c.ctypes.data,) for c in body.checks]
        lists: list[Any] = [self.copies, self.moves, self.swaps, checks, self.pairs, self.read, self.stored]
        found = [run, body.records.ctypes.data, len(body.kernels), helpers]
        words = np.array([*found, *(x for rows in lists for x in made.table(rows))], np.int64).view(Words)
        words.held = body, made, self.memory
        return words


@functools.cache
def _text(machine: Machine) -> str:
    """Return the text of the kernel: slot 0 has the words of ``_Tables.words``, slot 1 the check flag."""
    w = Code(machine)
    words = w.slot(0)
    wrong, settled = w.scratch("i1", 1), w.scratch("i1", 1)
    for flag in (wrong, settled):
        w.store(w.value(False), flag)
    with w.rows(words, _Word.COPIES, 5) as (_, row):  # the initial carried values, to their buffers
        copy_bytes(w, w.word(row, 2, "ptr"), _argument(w, row), w.word(row, 0))
    with w.rows(words, _Word.MOVES, 4) as (_, row):  # the addresses for the first iteration
        w.store(w.at(_argument(w, row), "i8", w.word(row, 2)), w.word(row, 0, "ptr"))
    w.loop(w.low, w.high, 1, lambda j, _: _iteration(w, words, j, wrong, settled))
    with w.rows(words, _Word.COPIES, 5) as (_, row):  # the final carried values that the program uses
        to = w.word(row, 4)
        with w.when(w.differ(to, 0)):
            copy_bytes(w, w.word(_ARGS, to, "ptr"), w.word(row, 3, "ptr"), w.word(row, 0))
    w.store(w.load(wrong, "i1"), w.slot(1))
    return w.kernel()


def _iteration(w: Code, words: Value, j: Value, wrong: Value, settled: Value) -> None:
    """Emit iteration ``j``, or a copy of the rows that the one before stored if it would do the same.

    The flags at ``wrong`` and ``settled``: a check has failed, the last iteration changed no carried value.
    """
    with w.when(w.load(settled, "i1")), w.rows(words, _Word.READ, 4) as (_, row):
        _keep_if(w, settled, same_bytes(w, *_two_rows(w, row, j)))
    again = w.load(settled, "i1")
    with w.when(again), w.rows(words, _Word.STORED, 4) as (_, row):
        copy_bytes(w, *_two_rows(w, row, j))
    with w.unless(again):
        odd = w.differ(w.bits("and", j, 1), 0)
        with w.rows(words, _Word.SWAPS, 3) as (_, row):
            w.store(w.select(odd, w.word(row, 2), w.word(row, 1)), w.word(row, 0, "ptr"))
        given = w.word(words, _Word.RECORDS), w.word(words, _Word.COUNT), w.word(words, _Word.HELPERS)
        run = w.word(words, _Word.RUN, "ptr")
        w.line(f"call void {run.text}({', '.join(value.typed for value in given)})")
        with w.rows(words, _Word.CHECKS, 1) as (_, row):
            failed = w.load(w.word(row, 0, "ptr"), "i1")
            w.store(w.either(w.load(wrong, "i1"), failed), wrong)
        w.store(w.differ(w.word(words, _Word.PAIRS), 0), settled)
        with w.rows(words, _Word.PAIRS, 3) as (_, row):
            _keep_if(w, settled, same_bytes(w, w.word(row, 1, "ptr"), w.word(row, 2, "ptr"), w.word(row, 0)))
    with w.rows(words, _Word.MOVES, 4) as (_, row):  # advance the addresses
        slot = w.word(row, 0, "ptr")
        w.store(w.at(w.load(slot, "ptr"), "i8", w.word(row, 3)), slot)


def _argument(w: Code, row: Value) -> Value:
    """Emit the address of the operand or result whose index is in a row."""
    return w.word(_ARGS, w.word(row, 1), "ptr")


def _two_rows(w: Code, row: Value, j: Value) -> tuple[Value, Value, Value]:
    """Emit the addresses of an array's rows of iteration ``j`` and of the one before, and their bytes."""
    stride = w.word(row, 3)
    here = w.at(w.at(_argument(w, row), "i8", w.word(row, 2)), "i8", w.mul(j, stride))
    return here, w.at(here, "i8", w.sub(0, stride)), w.word(row, 0)


def _keep_if(w: Code, flag: Value, condition: Value) -> None:
    """Emit: the flag at an address stays true only if ``condition`` is true."""
    w.store(w.all(w.load(flag, "i1"), condition), flag)
