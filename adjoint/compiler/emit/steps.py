"""The kernel of a loop with a small body: the carried values stay in registers.

The arrays of the body have few elements, and each element is a value in a register, so views, slices and
concatenations cost nothing.  Values that are the same in all iterations are computed before the loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from adjoint.compiler.emit.elementwise import apply, combine, neutral
from adjoint.compiler.emit.halves import widened
from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.nest import weight
from adjoint.compiler.emit.repeat import copy_bytes, operand_slots, same_bytes
from adjoint.compiler.emit.values import Value, element_of
from adjoint.compiler.emit.writer import Writer
from adjoint.compiler.lower.graph import Primitive, View
from adjoint.compiler.lower.steps import Steps
from adjoint.compiler.schedule.fuse import GIVEN, needed
from adjoint.compiler.schedule.kernel import Address, Kernel

__all__ = ["small_kernel"]

_MOST = 2500  # simple operations per iteration: longer bodies are not small
_LARGEST = 64  # elements: bodies with a larger array are not small
# primitives that have kernels of their own
_LARGE = frozenset("call part repeat out scatter matrix order conv conv_input conv_weight".split())


def small_kernel(machine: Machine, node: Primitive, outs: list[Primitive]) -> Kernel | None:
    """Return the kernel of a loop whose results are ``outs``; None if its body is not small."""
    steps: Steps = node.value
    kept = [*range(steps.carries), *(n.params for n in outs if n.params >= steps.carries)]
    roots = [v.node for v in (*(steps.outputs[k] for k in kept), *steps.graph.checks)]
    wanted = [n for n, yes in zip(steps.graph.nodes, needed(steps.graph, roots), strict=True) if yes]
    cost = sum(_cost(n, steps) for n in wanted)
    return _Small(machine, node, outs, wanted).kernel(cost * steps.count) if cost <= _MOST else None


def _cost(n: Primitive, steps: Steps) -> float:
    """Return the number of simple operations of a node; infinite if small loops do not support the node."""
    if n.op in _LARGE:
        return math.inf
    if n.op == "gather":
        table, first = n.args[1].node, steps.carries + steps.rows
        fixed = table.op == "constant" or (table.op == "source" and table.params >= first)
        return float(n.size) if fixed else math.inf
    if n.op in GIVEN:
        return 0.0  # loads are counted where the elements are used
    if n.size > _LARGEST:
        return math.inf
    if n.op == "matmul":
        return float(n.size * n.args[0].shape[-1])
    if n.op == "reduce":
        return float(n.args[0].size)
    return n.size * weight(n) if n.op != "place" else 0.0


class _Small:
    """Generates the kernel of one loop with a small body."""

    def __init__(
        self, machine: Machine, node: Primitive, outs: list[Primitive], wanted: list[Primitive]
    ) -> None:
        self.w = Writer(machine)
        self.node = node
        self.steps: Steps = node.value
        self.wanted = wanted
        self.slots, self.where = operand_slots(node, outs)
        self.values: dict[int, list[Value] | _Lazy] = {}
        self.elements: dict[tuple[int, int], Value] = {}  # operands that all iterations read
        self.moving: set[int] = set()  # ids of the nodes whose values may differ between iterations
        for n in wanted:
            given = n.op == "source" and n.params < self.steps.carries + self.steps.rows
            if given or any(a.node.id in self.moving for a in n.args):
                self.moving.add(n.id)

    def kernel(self, cost: float) -> Kernel:
        """Generate the kernel; ``cost`` is the number of simple operations of all iterations."""
        w, steps = self.w, self.steps
        for n in self.wanted:
            if n.id not in self.moving:
                self._enter(n)
            for a in n.args[:1] if n.op == "gather" else n.args:
                if a.node.id not in self.moving:
                    self._all(a)  # load the operands that all iterations read
        start = [self._given(k, i) for k in range(steps.carries) for i in range(self.node.args[k].size)]
        flag = [w.const(0, "i1")] if steps.graph.checks else []
        if steps.settles:
            made = w.loop(w.low, w.high, 1, self._settling, [*start, *flag, w.const(0, "i1")])[:-1]
        else:
            made = w.loop(w.low, w.high, 1, self._step, [*start, *flag])
        for k, values in enumerate(self._divided(made)):
            if k in self.where:
                self._store(w.slot(self.where[k]), values)
        slots = self.slots
        if flag:
            w.store(made[-1], w.slot(len(slots)))
            slots = [*slots, operand_slots(self.node, [self.node])[0][-1]]
        return Kernel(w.kernel(), slots, steps.count, steps.count, cost)

    def _settling(self, j: Value, given: list[Value]) -> list[Value]:
        """Emit an iteration, or a copy of the previous results if it changed no carried value."""
        w, *carried = self.w, *given
        settled = carried.pop()
        count = sum(self.node.args[k].size for k in range(self.steps.carries))

        def computed() -> list[Value]:
            new = self._step(j, carried)
            same = w.const(1, "i1")
            for a, b in zip(carried[:count], new[:count], strict=True):
                same = w.bits("and", same, w.compare("eq", _as_bits(w, a), _as_bits(w, b)))
            return [*new, same]

        def copied() -> list[Value]:
            for k, slot in self.where.items():
                v = self.steps.outputs[k]
                if k >= self.steps.carries:
                    here, before = self._rows(slot, element_of(v.dtype), v.size, j)
                    copy_bytes(w, here, before, v.nbytes)
            return given

        (again,) = w.choose(settled, lambda: [self._reads_the_same(j)], lambda: [settled])
        return w.choose(again, copied, computed)

    def _reads_the_same(self, j: Value) -> Value:
        """Emit a flag: whether iteration ``j`` reads the same row values as the iteration before."""
        w, steps, found = self.w, self.steps, self.w.const(1, "i1")
        for k in range(steps.carries, steps.carries + steps.rows):
            a = self.node.args[k]
            if a.strides[0] and a.size:
                here, before = self._rows(k, element_of(a.dtype), a.strides[0], j)
                size = a.size // steps.count * a.dtype.itemsize
                found = w.bits("and", found, same_bytes(w, here, before, size))
        return found

    def _rows(self, slot: int, element: str, stride: int, j: Value) -> tuple[Value, Value]:
        """Emit the addresses of the rows of iteration ``j`` and of the one before, in the array of a slot."""
        w, way = self.w, -1 if self.steps.backwards else 1
        here = w.at(w.slot(slot), element, w.times(self._row(j), stride))
        return here, w.at(here, element, -way * stride)

    def _row(self, j: Value) -> Value:
        return self.w.sub(self.w.sub(self.w.high, 1), j) if self.steps.backwards else j

    def _step(self, j: Value, carried: list[Value]) -> list[Value]:
        """Emit the iteration with index ``j``; return the new carried values."""
        w, steps = self.w, self.steps
        row = self._row(j)
        carry = self._divided(carried)
        for n in self.wanted:
            if n.op == "source":
                if n.params < steps.carries:
                    self.values[n.id] = carry[n.params]
                elif n.id in self.moving:
                    a = self.node.args[n.params]
                    base = w.at(w.slot(n.params), element_of(n.dtype), w.times(row, a.strides[0]))
                    self.values[n.id] = _Lazy(w, base, n)
            elif n.id in self.moving:
                self._enter(n)
        for k, v in enumerate(steps.outputs):
            if k >= steps.carries and k in self.where:
                base = w.at(w.slot(self.where[k]), element_of(v.dtype), w.times(row, v.size))
                self._store(base, self._all(v))
        new = [x for v in steps.outputs[: steps.carries] for x in self._all(v)]
        flags = carried[len(new) :]
        for check in steps.graph.checks:
            flags = [w.bits("or", flags[0], self._all(check)[0])]
        return [*new, *flags]

    def _divided(self, values: Sequence[Value]) -> list[list[Value]]:
        """Return the elements of each carried value."""
        rest = iter(values)
        return [list(itertools.islice(rest, a.size)) for a in self.node.args[: self.steps.carries]]

    def _store(self, base: Value, values: Sequence[Value]) -> None:
        for i, x in enumerate(values):
            self.w.store(x, self.w.at(base, x.element, i))

    # Values ------------------------------------------------------------------------------------------

    def _given(self, k: int, i: int) -> Value:
        """Return element ``i`` of the loop's operand ``k``; the load is emitted at the first use only."""
        if (k, i) not in self.elements:
            element = element_of(self.node.args[k].dtype)
            self.elements[k, i] = self.w.load(self.w.at(self.w.slot(k), element, i), element)
        return self.elements[k, i]

    def _all(self, v: View) -> list[Value]:
        """Return all elements of a view as values, in row-major order."""
        n, places = v.node, _places(v)
        if n.op == "constant":
            flat = n.value.reshape(-1)
            return [self.w.const(flat[i], element_of(n.dtype)) for i in places]
        if n.op in ("source", "number") and n.id not in self.moving:
            return [self._given(n.params, i) for i in places]
        values = self.values[n.id]
        return [values[i] for i in places]

    def _enter(self, n: Primitive) -> None:
        """Emit code for all elements of the node ``n``; keep the values for the nodes that read them."""
        if n.op not in ("constant", "number", "source"):
            make = getattr(self, f"_{n.op}", None)
            self.values[n.id] = self._elementwise(n) if make is None else make(n)

    def _elementwise(self, n: Primitive) -> list[Value]:
        given = n.args[1 if n.op == "where" else 0].dtype if n.args else n.dtype
        columns = zip(*map(self._all, n.args), strict=True)
        return [apply(self.w, n.op, given, n.dtype, *column) for column in columns]

    def _reduce(self, n: Primitive) -> list[Value]:
        values = [widened(self.w, x) for x in self._all(n.args[0])]
        length = n.args[0].shape[-1]
        if not length:
            return [self.w.const(neutral(n) or 0, element_of(n.dtype))] * n.size
        return [self._tree(n, values[i * length : (i + 1) * length]) for i in range(n.size)]

    def _tree(self, n: Primitive, values: list[Value]) -> Value:
        """Emit the combination of ``values`` by the reduction ``n``: in pairs, then pairs of pairs."""
        while len(values) > 1:
            pairs = [combine(self.w, n, a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
            values = pairs + values[len(pairs) * 2 :]
        return values[0]

    def _matmul(self, n: Primitive) -> list[Value]:
        a, b = n.args
        rows, columns = self._all(a), self._all(b)
        m, count, width = n.shape[-2], a.shape[-1], n.shape[-1]
        found = []
        for item in range(math.prod(n.shape[:-2])):
            for i, j in itertools.product(range(m), range(width)):
                first = (item * m + i) * count
                total: Any = self.w.const(0, element_of(n.dtype))
                for k in range(count):
                    x, y = rows[first + k], columns[(item * count + k) * width + j]
                    total = self.w.fma(x, y, total) if k else self.w.mul(x, y)
                found.append(total)
        return found

    def _place(self, n: Primitive) -> list[Value]:
        fill, where = n.params
        found = [self.w.const(0 if fill is None else fill, element_of(n.dtype))] * n.size
        for a, (shape, strides, offset) in zip(n.args, where, strict=True):
            for i, x in zip(_offsets(shape, strides, offset), self._all(a), strict=True):
                found[i] = x
        return found

    def _gather(self, n: Primitive) -> list[Value]:
        element, table = element_of(n.dtype), n.args[1].node
        base = self._constant(table) if table.op == "constant" else self.w.slot(table.params)
        return [self.w.load(self.w.at(base, element, i), element) for i in self._all(n.args[0])]

    def _constant(self, table: Primitive) -> Value:
        """Make a constant array an operand of the kernel, unless it is one; return its address."""
        slot = Address(table, 0)
        if slot not in self.slots:
            self.slots.append(slot)
        return self.w.slot(self.slots.index(slot))


class _Lazy:
    """The elements of one row of an operand; each is loaded when it is first used."""

    def __init__(self, w: Writer, base: Value, n: Primitive) -> None:
        self.w, self.base, self.element = w, base, element_of(n.dtype)
        self.known: dict[int, Value] = {}

    def __getitem__(self, i: int) -> Value:
        if i not in self.known:
            self.known[i] = self.w.load(self.w.at(self.base, self.element, i), self.element)
        return self.known[i]


def _as_bits(w: Writer, x: Value) -> Value:
    """Emit the bits of a number as an integer, so that NaN equals itself and 0 differs from -0."""
    return w.bitcast(x, "i32" if x.element == "float" else "i64") if x.floating else x


def _offsets(shape: Sequence[int], strides: Sequence[int], offset: int) -> Iterable[int]:
    """Return the position in memory of each element of a strided view, in row-major order."""
    found = np.full(shape, offset)
    for axis, (n, s) in enumerate(zip(shape, strides, strict=True)):
        found += (np.arange(n) * s).reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return [int(i) for i in found.reshape(-1)]


def _places(v: View) -> Iterable[int]:
    """Return the position of each element of the view ``v`` in the memory of its node."""
    return _offsets(v.shape, v.strides, v.offset)
