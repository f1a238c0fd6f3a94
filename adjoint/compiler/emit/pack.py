"""Copy matrices into panels, the layout that matrix products read.

A panel is a block of rows or columns with a fixed width; the numbers that a tile of the product needs at one
step along k are adjacent in memory.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.terms import Pointer
from adjoint.compiler.emit.values import Index, Value
from adjoint.compiler.emit.writer import Writer

__all__ = ["Panels", "square_text", "transposed"]


class Panels(NamedTuple):
    """The sizes of a matrix whose first axis is divided into panels, and of its packed copy.

    The second axis is k.  Positions of the last panel beyond ``total`` may get any number.
    """

    lanes: int
    total: int  # numbers along the first axis
    width: int  # of a panel
    stride: int  # distance between two steps along k in the copy
    depth: int  # numbers along k
    along: int  # stride of the matrix along the first axis
    deep: int  # stride of the matrix along k

    def copy(self, source: Pointer, target: Pointer, low: Index, high: Index) -> None:
        """Emit code that copies the panels ``low`` to ``high``."""
        w = source.w
        full, rest = divmod(self.total, self.width)

        def panel(j: Index, wide: int) -> None:
            start = source[w.times(j, self.width * self.along)]
            out = target[w.times(j, self.stride * self.depth)]
            if self.along == 1 or wide == 1:
                self._rows(start, out, wide)
            elif self.deep == 1 and self.lanes > 1 and self.depth > 1:
                self._turned(start, out, wide)
            else:
                self._one_by_one(start, out, wide)

        w.loop(low, w.least(high, full), 1, lambda j, _: panel(j, self.width))
        if rest:
            with w.when(w.compare("sgt", w.index_value(high), full)):
                panel(full, rest)

    def _rows(self, start: Pointer, out: Pointer, wide: int) -> None:
        """Emit the copy of a panel whose numbers at each step are adjacent in the matrix, by vectors."""
        w = start.w

        def row(k: Value, _: list[Value]) -> None:
            at, to = start[w.times(k, self.deep)], out[w.times(k, self.stride)]
            covered = 0
            for offset, n, mask in w.pieces(wide, self.lanes):
                covered = offset + n
                to[offset].store(at[offset].load(n, mask), None if covered <= self.stride else mask)
            for offset, n, mask in w.pieces(max(0, self.stride - covered), self.lanes):
                to[covered + offset].store(w.const(0.0, to.element, n), mask)

        w.loop(0, self.depth, 1, row)

    def _one_by_one(self, start: Pointer, out: Pointer, wide: int) -> None:
        """Emit the copy of a panel, element by element."""
        w, zero = start.w, start.w.const(0.0, start.element)

        def row(k: Value, _: list[Value]) -> None:
            at, to = start[w.times(k, self.deep)], out[w.times(k, self.stride)]

            def one(i: Value, _: list[Value]) -> None:
                x = at[w.times(i, self.along)].load()
                to[i].store(x)

            w.loop(0, wide, 1, one)
            w.loop(wide, self.stride, 1, lambda i, _: to[i].store(zero))

        w.loop(0, self.depth, 1, row)

    def _turned(self, start: Pointer, out: Pointer, wide: int) -> None:
        """Emit the copy of a panel that is contiguous along k in the matrix, by transposing squares."""
        w, element, lanes = start.w, start.element, self.lanes
        whole = self.depth // lanes * lanes
        rest = self.depth - whole
        text, zero = square_text(w.machine, element, lanes), w.const(0.0, element, lanes)

        def column(first: int) -> None:
            count = min(lanes, wide - first)
            if count <= 0:  # beyond the last column
                to = out[first]
                w.loop(0, self.depth, 1, lambda k, _: to[w.times(k, self.stride)].store(zero))
                return
            at = start[first * self.along]

            def square(k: Index, n: int = lanes) -> None:
                target = out.at((k, self.stride), (first, 1))
                w.use(
                    text, at[k].value, target.value, *map(w.index_value, (self.along, self.stride, n, count))
                )

            w.loop(0, whole, lanes, lambda k, _: square(k))
            if rest and w.machine.masks:
                square(whole, rest)

        for first in range(0, self.stride, lanes):
            column(first)
        if rest and not w.machine.masks:
            last = self._replace(depth=rest, deep=1)
            last._one_by_one(start[whole], out[whole * self.stride], wide)


@functools.cache
def square_text(machine: Machine, element: str, lanes: int) -> str:
    """Return the text of a function that transposes a square block.

    Its parameters are (source, target, row stride of the source, row stride of the target, n, count).  The
    block has ``count`` rows of ``n`` numbers; columns of the target beyond ``count`` repeat the last row.
    """
    w = Writer(machine)
    source, target = (Pointer(w, Value(name, "ptr"), element) for name in ("%from", "%to"))
    along, stride, n, count = (Value(f"%{name}", "i64") for name in ("along", "stride", "n", "count"))
    last = w.sub(count, 1)
    mask = w.compare("slt", w.constants(range(lanes), "i64"), w.splat(n, lanes)) if machine.masks else None
    rows = [source[w.times(w.least(last, i), along)].load(lanes, mask) for i in range(lanes)]
    for i, x in enumerate(transposed(w, rows)):
        out = target[w.times(i, stride)]
        if machine.masks:
            with w.when(w.compare("sgt", n, i)):
                out.store(x)
        else:
            out.store(x)
    return w.shared(["ptr %from", "ptr %to", "i64 %along", "i64 %stride", "i64 %n", "i64 %count"])


def transposed(w: Writer, rows: list[Value]) -> list[Value]:
    """Emit the transposition of a square matrix; ``rows`` are its rows as vectors.  Return its columns."""
    n = len(rows)
    distance = 1
    while distance < n:
        after = list(rows)
        low = [j if not j & distance else n + j - distance for j in range(n)]
        high = [j + distance if not j & distance else n + j for j in range(n)]
        for i in range(n):
            if not i & distance:
                a, b = rows[i], rows[i + distance]
                after[i], after[i + distance] = w.shuffle(a, b, low), w.shuffle(a, b, high)
        rows = after
        distance *= 2
    return rows
