"""Copy matrices into panels, the layout that matrix products read.

A panel is a block of rows or columns with a fixed width; the numbers that a tile of the product needs at one
step along k are adjacent in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from adjoint.compiler.emit.text import Writer
from adjoint.compiler.emit.values import Index, Value
from adjoint.compiler.machine import Machine

__all__ = ["pack_panels", "square_text", "transposed"]


def pack_panels(
    w: Writer, element: str, lanes: int, source: Value, target: Value, low: Index, high: Index, *,
    count: int, width: int, stride: int, depth: int, along: int, deep: int,
) -> None:  # fmt: skip
    """Emit code that copies panels ``low`` to ``high`` of a matrix into ``target``.

    The matrix has ``count`` numbers along the axis that is divided into panels of ``width``, and ``depth``
    along the other axis (k).  ``along`` and ``deep`` are the strides of the source on these axes; ``stride``
    is the distance between two steps along k in the target.  Positions beyond ``count`` may get any number.
    """
    full, rest = divmod(count, width)

    def panel(j: Index, wide: int) -> None:
        start = w.at(source, element, w.times(j, width * along))
        out = w.at(target, element, w.times(j, stride * depth))
        if along == 1 or depth == 1 or wide == 1:
            _rows(w, element, lanes, start, out, wide, stride, depth, along, deep)
        elif deep == 1 and lanes > 1:
            _turned(w, element, lanes, start, out, wide, stride, depth, along)
        else:
            _one_by_one(w, element, start, out, wide, stride, depth, along, deep)

    w.loop(low, w.least(high, full), 1, lambda j, _: panel(j, width))
    if rest:
        with w.when(w.compare("sgt", w.index_value(high), full)):
            panel(full, rest)


def _rows(
    w: Writer, element: str, lanes: int, start: Value, out: Value,
    wide: int, stride: int, depth: int, along: int, deep: int,
) -> None:  # fmt: skip
    """Emit the copy of a panel whose numbers at each step are adjacent in the source, vector by vector.

    The arguments are those of ``pack_panels``; ``wide`` is the number of rows or columns of this panel.
    """
    if along != 1 and wide > 1:
        _one_by_one(w, element, start, out, wide, stride, depth, along, deep)
        return

    def row(k: Value, _: list[Value]) -> None:
        at, to = w.at(start, element, w.times(k, deep)), w.at(out, element, w.times(k, stride))
        for offset, n, mask in w.pieces(wide, lanes):
            x = w.load(w.at(at, element, offset), element, n, mask)
            w.store(x, w.at(to, element, offset), None if offset + n <= stride else mask)
        _zeros(w, element, lanes, to, wide, stride)

    w.loop(0, depth, 1, row)


def _zeros(w: Writer, element: str, lanes: int, to: Value, wide: int, stride: int) -> None:
    """Emit stores of zeros after the ``wide`` numbers of one step along k, up to ``stride`` numbers."""
    covered = max((p.offset + p.lanes for p in w.pieces(wide, lanes)), default=0)
    for offset, n, mask in w.pieces(max(0, stride - covered), lanes):
        w.store(w.const(0.0, element, n), w.at(to, element, covered + offset), mask)


def _one_by_one(
    w: Writer,
    element: str,
    start: Value,
    out: Value,
    wide: int,
    stride: int,
    depth: int,
    along: int,
    deep: int,
) -> None:
    """Emit the copy of a panel, element by element.

    The arguments are those of ``pack_panels``; ``wide`` is the number of rows or columns of this panel.
    """

    def row(k: Value, _: list[Value]) -> None:
        at, to = w.at(start, element, w.times(k, deep)), w.at(out, element, w.times(k, stride))

        def one(i: Value, _: list[Value]) -> None:
            w.store(w.load(w.at(at, element, w.times(i, along)), element), w.at(to, element, i))

        w.loop(0, wide, 1, one)
        zero = w.const(0.0, element)
        w.loop(wide, stride, 1, lambda i, _: w.store(zero, w.at(to, element, i)))

    w.loop(0, depth, 1, row)


def _turned(
    w: Writer,
    element: str,
    lanes: int,
    start: Value,
    out: Value,
    wide: int,
    stride: int,
    depth: int,
    along: int,
) -> None:
    """Emit the copy of a panel that is contiguous along k in the source, by transposing square blocks.

    The arguments are those of ``pack_panels``; ``wide`` is the number of rows or columns of this panel.
    """
    whole = depth // lanes * lanes
    rest = depth - whole
    text, zero = square_text(w.machine, element, lanes), w.const(0.0, element, lanes)
    for first in range(0, stride, lanes):
        count = min(lanes, wide - first)
        if count <= 0:  # beyond the last column
            to = w.at(out, element, first)
            w.loop(0, depth, 1, functools.partial(_store_at, w, zero, to, stride))
            continue
        at = w.at(start, element, first * along)

        def square(
            k: Index, _: Sequence[Value] = (), n: int = lanes, at: Value = at, first: int = first,
            count: int = count,
        ) -> None:  # fmt: skip
            to = w.at(out, element, w.plus(w.times(k, stride), first))
            w.use(text, w.at(at, element, k), to, *(w.index_value(x) for x in (along, stride, n, count)))

        w.loop(0, whole, lanes, square)
        if rest and w.machine.masks:
            square(whole, n=rest)
    if rest and not w.machine.masks:
        at, to = w.at(start, element, whole), w.at(out, element, whole * stride)
        _one_by_one(w, element, at, to, wide, stride, rest, along, 1)


def _store_at(w: Writer, x: Value, start: Value, stride: int, k: Value, _: list[Value]) -> None:
    w.store(x, w.at(start, x.element, w.times(k, stride)))


@functools.cache
def square_text(machine: Machine, element: str, lanes: int) -> str:
    """Return the text of a function that transposes a square block.

    Its parameters are (source, target, row stride of the source, row stride of the target, n, count).  The
    block has ``count`` rows of ``n`` numbers; columns of the target beyond ``count`` repeat the last row.
    """
    w = Writer(machine)
    source, target = Value("%from", "ptr"), Value("%to", "ptr")
    along, stride, n, count = (Value(f"%{name}", "i64") for name in ("along", "stride", "n", "count"))
    last = w.sub(count, 1)
    mask = w.compare("slt", w.constants(range(lanes), "i64"), w.splat(n, lanes)) if machine.masks else None
    rows = [
        w.load(w.at(source, element, w.times(w.least(last, i), along)), element, lanes, mask)
        for i in range(lanes)
    ]
    for i, x in enumerate(transposed(w, rows)):
        out = w.at(target, element, w.times(i, stride))
        if machine.masks:
            with w.when(w.compare("sgt", n, i)):
                w.store(x, out)
        else:
            w.store(x, out)
    return w.shared(["ptr %from", "ptr %to", "i64 %along", "i64 %stride", "i64 %n", "i64 %count"])


def transposed(w: Writer, rows: list[Value]) -> list[Value]:
    """Emit the transposition of a square matrix; ``rows`` are its rows as vectors.  Return its columns."""
    n = len(rows)
    distance = 1
    while distance < n:
        after = list(rows)
        for i in range(n):
            if not i & distance:
                a, b = rows[i], rows[i + distance]
                low = [j if not j & distance else n + j - distance for j in range(n)]
                high = [j + distance if not j & distance else n + j for j in range(n)]
                after[i], after[i + distance] = w.shuffle(a, b, low), w.shuffle(a, b, high)
        rows = after
        distance *= 2
    return rows
