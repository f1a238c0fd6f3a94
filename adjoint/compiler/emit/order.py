"""The kernel of "order" nodes: the indices that sort the rows of an array.

Equal elements keep their order, and NaN comes last, as in ``np.argsort(kind="stable")``.  The numbers are
mapped to unsigned integers with the same order.  Short rows are sorted by counting, for each element, those
that come before it; long rows by a radix sort, one byte after the other.
"""

from __future__ import annotations

from typing import Any

from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.values import Index, Value, element_of
from adjoint.compiler.emit.writer import Writer
from adjoint.compiler.lower.graph import Primitive
from adjoint.compiler.schedule.kernel import Address, Kernel

__all__ = ["order_kernel"]

_COUNTED = 96  # elements: the longest rows that are sorted by counting
_BUCKETS = 256


def order_kernel(machine: Machine, node: Primitive, threads: int) -> tuple[Kernel, int]:
    """Return the kernel of an "order" node, and the number of bytes of workspace that it needs."""
    made = _Order(machine, node)
    length = node.shape[-1]
    slots = [Address(node.args[0].node, 0), Address(node, 0), Address(None, 0)]
    work = 60.0 * made.size if length > _COUNTED else 4.0 + length / 4
    rows = node.size // length if length else 0
    return Kernel(made.text(), slots, rows, 1, work * node.size), made.space * threads


class _Order:
    """Generates the kernel of one node."""

    def __init__(self, machine: Machine, node: Primitive) -> None:
        self.w = Writer(machine)
        self.given = node.args[0].dtype
        self.element = element_of(self.given)
        self.size = max(4, self.given.itemsize)  # bytes of a key
        self.key = f"i{8 * self.size}"
        self.length = node.shape[-1]
        self.lanes = machine.lanes(f"u{self.size}")
        # two buffers of keys and two of indices
        self.keys, self.indices = (-(-self.length * size // 64) * 64 for size in (self.size, 8))
        self.space = 2 * (self.keys + self.indices)

    def text(self) -> str:
        """Emit the loop over rows; return the text of the kernel."""
        w, n = self.w, self.length
        own = w.at(w.slot(2), "i8", w.times(w.thread, self.space))
        buffers = [w.at(own, "i8", at) for at in (0, self.keys, 2 * self.keys, 2 * self.keys + self.indices)]
        counts = w.scratch("i64", _BUCKETS)

        def row(i: Value, _: list[Value]) -> None:
            first = w.times(i, n)
            given, out = w.at(w.slot(0), self.element, first), w.at(w.slot(1), "i64", first)

            def read(at: Index, lanes: int, mask: Any) -> None:
                x = w.load(w.at(given, self.element, at), self.element, lanes, mask)
                w.store(self._ordered(x), w.at(buffers[0], self.key, at), mask)

            w.vectors(n, self.lanes, 4, read)
            if n <= _COUNTED:
                self._counted(buffers[0], out)
            else:
                self._by_radix(buffers, counts, out)

        w.loop(w.low, w.high, 1, row)
        return w.kernel()

    def _ordered(self, x: Value) -> Value:
        """Emit unsigned integers with the order of the numbers ``x``; NaN is the largest, and -0 equals 0."""
        w, sign = self.w, 1 << 8 * self.size - 1
        if not x.floating:
            signed = self.given.kind == "i"
            wide = w.convert(x, self.key, signed=signed)
            return w.bits("xor", wide, sign) if signed else wide
        bits = w.bitcast(w.add(x, 0.0), self.key)
        turned = w.bits("xor", bits, w.bits("or", w.bits("ashr", bits, 8 * self.size - 1), sign))
        return w.select(w.compare("uno", x, x), -1, turned)

    def _counted(self, keys: Value, out: Value) -> None:
        """Write the index of each key at the number of keys that come before it."""
        w = self.w

        def place(i: Value, _: list[Value]) -> None:
            key = w.load(w.at(keys, self.key, i), self.key)
            total = w.const(0, "i64")
            for p in w.pieces(self.length, self.lanes):
                others = w.load(w.at(keys, self.key, p.offset), self.key, p.lanes, p.mask)
                own = w.splat(key, p.lanes)
                places = w.constants(range(p.lanes), self.key) if p.lanes > 1 else w.const(0, self.key)
                at = w.add(places, p.offset)
                here = w.splat(w.convert(i, self.key), p.lanes)
                tied = w.bits("and", w.compare("eq", others, own), w.compare("ult", at, here))
                before = w.bits("or", w.compare("ult", others, own), tied)
                if p.mask is not None:
                    before = w.bits("and", before, p.mask)
                total = w.add(total, w.convert(self._count(before), "i64", signed=False))
            w.store(i, w.at(out, "i64", total))

        w.loop(0, self.length, 1, place)

    def _count(self, mask: Value) -> Value:
        """Emit the number of lanes in which a mask is true."""
        w = self.w
        return w.fold(w.convert(mask, self.key, signed=False), w.add)

    def _by_radix(self, buffers: list[Value], counts: Value, out: Value) -> None:
        """Sort by one byte of the keys after the other, the lowest first; write the indices to ``out``."""
        w, n = self.w, self.length
        self._each(n, lambda j: w.store(j, w.at(buffers[2], "i64", j)))

        def sort(p: Value, places: list[Value]) -> list[Value]:
            keys, keys2, indices, indices2 = places
            shift = w.convert(w.mul(p, 8), self.key)

            def digit(key: Value) -> Value:
                return w.convert(w.bits("and", w.bits("lshr", key, shift), _BUCKETS - 1), "i64", signed=False)

            def key_at(j: Value) -> Value:
                return w.load(w.at(keys, self.key, j), self.key)

            def add(j: Value) -> None:
                spot = w.at(counts, "i64", digit(key_at(j)))
                w.store(w.add(w.load(spot, "i64"), 1), spot)

            def start(b: Value, total: list[Value]) -> list[Value]:
                spot = w.at(counts, "i64", b)
                count = w.load(spot, "i64")
                w.store(total[0], spot)
                return [w.add(total[0], count)]

            def move(j: Value) -> None:
                key = key_at(j)
                spot = w.at(counts, "i64", digit(key))
                place = w.load(spot, "i64")
                w.store(w.add(place, 1), spot)
                w.store(key, w.at(keys2, self.key, place))
                w.store(w.load(w.at(indices, "i64", j), "i64"), w.at(indices2, "i64", place))

            self._each(_BUCKETS, lambda b: w.store(w.const(0, "i64"), w.at(counts, "i64", b)))
            self._each(n, add)
            first = w.load(w.at(counts, "i64", digit(key_at(w.const(0, "i64")))), "i64")
            several = w.compare("ne", first, n)  # otherwise all keys have the same byte
            with w.when(several):
                w.loop(0, _BUCKETS, 1, start, [w.const(0, "i64")])
                self._each(n, move)
            pairs = (keys2, keys), (keys, keys2), (indices2, indices), (indices, indices2)
            return [w.select(several, a, b) for a, b in pairs]

        found = w.loop(0, self.size, 1, sort, buffers)[2]
        self._each(n, lambda j: w.store(w.load(w.at(found, "i64", j), "i64"), w.at(out, "i64", j)))

    def _each(self, count: int, body: Any) -> None:
        """Emit ``body(j)`` for all j below ``count``."""
        self.w.loop(0, count, 1, lambda j, _: body(j))
