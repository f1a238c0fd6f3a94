"""Kernels of matrix products C = A · B.

The rows of A are divided into panels of a few rows, the columns of B into panels of a few vectors.  A panel
of A times a panel of B gives a *tile* of C, whose sums stay in registers during the loop over k.  B is first
packed, by a kernel of its own, if its columns are not adjacent or if it is large.  A is packed in blocks of
panels if its rows would evict each other from the cache.  Each element is summed in a fixed order, so the
result does not depend on how the panels are divided among threads.

If B would be packed and A is smaller, as in a layer of a net, the product is *turned*: Cᵀ = Bᵀ·Aᵀ, and A is
packed instead.  The tiles are transposed in registers before the *epilogue*, the elementwise nodes that are
fused into the product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.pack import Panels, square_text
from adjoint.compiler.emit.terms import Pointer
from adjoint.compiler.emit.values import Index, Value, element_of, size_of
from adjoint.compiler.emit.writer import Writer

__all__ = ["Epilogue", "Kernels", "LoopText", "Product", "finish", "gemm", "tile_of"]

# epilogue(w, batch, row, column, sums, mask) emits the fused nodes and returns the vector to store.
Epilogue = Callable[[Writer, Index, Index, Index, Value, "Value | None"], Value]

# The slot numbers of the main kernel; an epilogue uses FREE and the following.
A, B, C, SCRATCH, FREE = range(5)

PLAIN_DEPTH = 64  # if k is at least this, the loops around a tile take little time
PACK_BYTES = 256 * 1024  # a larger B is packed
COLUMN_BYTES = 256 * 1024  # size of the columns of B that are processed before the next rows of A
BLOCK_BYTES = 192 * 1024  # size of a block of A, which stays in the second-level cache for all columns of B
DOTS = 4  # number of columns per call of the function of dot products


class Product(NamedTuple):
    """The sizes and strides of C[batch, m, n] = A[batch, m, k] · B[batch, k, n]; C is row-major."""

    dtype: Any
    m: int
    n: int
    k: int
    a: tuple[int, ...]  # strides along m and k
    b: tuple[int, ...]  # along k and n
    batch: tuple[int, ...] = ()
    a_batch: tuple[int, ...] = ()
    b_batch: tuple[int, ...] = ()


class LoopText(NamedTuple):
    """The LLVM text of a kernel and the length of its outermost loop."""

    text: str
    length: int


class Kernels(NamedTuple):
    """The kernels of a product; ``pack``, if there is one, runs first.

    A slot is an entry of the table of addresses that a kernel reads.  ``pack`` reads B from slot 0 and writes
    ``packed`` bytes to slot 1, which is slot ``B`` of ``main``.  ``main`` needs ``scratch`` bytes per thread
    at the address in slot ``SCRATCH``.  If ``turned`` is true, A and B are exchanged: ``pack`` reads A, and
    slot ``A`` of ``main`` has the address of B.
    """

    pack: LoopText | None
    main: LoopText
    packed: int
    scratch: int
    turned: bool = False


class Tile(NamedTuple):
    """The size of a tile: the number of rows, and the number of vectors per row."""

    rows: int
    vectors: int


def most_rows(machine: Machine) -> int:
    """Return the largest number of rows of a tile that fits in the registers; each row has two vectors."""
    return 8 if machine.registers == 32 else 6 if machine.width else 4


def tile_of(machine: Machine, m: int, n: int, lanes: int) -> Tile:
    """Return a tile size for an (m, n) product that fits in the registers and is not larger than needed."""
    most = most_rows(machine)
    m, wide = max(1, m), max(1, -(-n // lanes))
    if m <= 3:  # few rows: use more columns
        return Tile(m, min(wide, 8 // m))
    # if the number of rows divides m, all panels have the same size
    rows = next((r for r in range(most, most // 2, -1) if m % r == 0), min(most, m))
    return Tile(rows, min(2, wide))


def gemm(machine: Machine, product: Product, epilogue: Epilogue | None = None) -> Kernels:
    """Return the kernels of a matrix product; ``epilogue`` emits the nodes that are fused into it."""
    return _Gemm(machine, product, epilogue).kernels()


class _Gemm:
    """Generates the kernels of a product: of the matrices ``a``, ``b``, ``c`` of the batch item ``item``."""

    item: Index
    a: Pointer
    b: Pointer
    c: Pointer

    def __init__(self, machine: Machine, product: Product, epilogue: Epilogue | None) -> None:
        self.machine, self.p, self.epilogue = machine, product, epilogue
        self.w = Writer(machine)
        self.element = element_of(product.dtype)
        self.size = size_of(self.element)
        self.lanes = machine.lanes(product.dtype)
        self.c_row = product.n
        self.turned = self._turning_pays()
        if self.turned:
            self.p = product._replace(m=product.n, n=product.m, a=product.b[::-1], b=product.a[::-1])
        p = self.p
        self.tile = tile_of(machine, p.m, p.n, self.lanes)
        if self.turned:  # a panel has as many rows as a vector has lanes, in several tiles
            rows = next(r for r in range(most_rows(machine), 0, -1) if self.lanes % r == 0)
            self.tile = self.tile._replace(rows=rows)
        self.columns = self.tile.vectors * self.lanes
        self.batches = int(np.prod(product.batch))
        self.panels = max(1, -(-p.m // (self.lanes if self.turned else self.tile.rows)))
        self.rows, self.larger = divmod(p.m, self.panels)  # the first ``larger`` panels have one row more
        self.by_dots = self._dots_pay()
        big = p.k * p.n * self.size > PACK_BYTES and p.m >= 2 * self.tile.rows
        self.packs_b = not self.by_dots and p.k > 0 and ((p.b[1] != 1 and p.n > 1) or big)
        self.packs_a = not self.by_dots and self._packing_a_pays()
        # the number of row panels that fit in the cache and are computed together for all columns
        self.block = max(1, min(self.panels, BLOCK_BYTES // max(1, (self.rows + 1) * p.k * self.size)))
        self.a_width = -(-(self.rows + 1) // self.lanes) * self.lanes
        self.b_panels = -(-p.n // self.columns)
        self.wide = self._wide()
        self.stack: Pointer | None = None  # for the tiles of a turned product

    # Decisions ----------------------------------------------------------------------------------

    def _dots_pay(self) -> bool:
        """Return whether to use dot products: for one column, or few rows if B is contiguous along k."""
        p = self.p
        along_a, along_b = p.a[1] == 1 or p.k == 1, p.b[0] == 1 or p.k == 1
        return self.lanes > 1 and along_a and along_b and (p.n == 1 or (p.m <= 3 and p.b[1] != 1)) and p.k > 1

    def _turning_pays(self) -> bool:
        """Return whether to compute Cᵀ: B is contiguous along k, A is smaller, no vector is partial."""
        p, lanes = self.p, self.lanes
        whole = p.m % lanes == 0 and p.n % lanes == 0 and p.m > 0
        layout = p.a[1] == 1 and p.b[0] == 1 and p.b[1] != 1 and 2 * p.m <= p.n
        return whole and layout and not p.batch and lanes > 1 and p.k > 1

    def _packing_a_pays(self) -> bool:
        """Return whether to pack A first: its rows are far apart in memory and are used often."""
        p = self.p
        if self.turned or p.n < 16 * self.columns or p.k * self.size < 512 or p.m < 2 * self.tile.rows:
            return False
        return p.a[1] != 1 or p.a[0] * self.size % 1024 == 0

    def _wide(self) -> int:
        """Return the number of columns before the next rows; an epilogue should write long rows."""
        if self.epilogue is None or self.turned:
            return self.columns
        fitting = COLUMN_BYTES // max(1, self.p.k * self.size * self.columns)
        return min(max(fitting, 4), self.b_panels) * self.columns

    # Kernels ------------------------------------------------------------------------------------

    def kernels(self) -> Kernels:
        """Generate and return the kernels."""
        p, w, pack, packed = self.p, self.w, None, 0
        b_bytes = self.b_panels * self.columns * p.k * self.size if self.packs_b else 0
        a_bytes = self.block * self.a_width * p.k * self.size if self.packs_a else 0
        if self.packs_b and self.batches == 1:
            pack, packed, b_bytes = self._pack_kernel(), b_bytes, 0
        self.scratch = -(-(a_bytes + b_bytes) // 64) * 64
        self.a_offset = self.scratch - a_bytes
        if p.m and p.n and self.batches == 1:
            self.item = 0
            self.a, self.b, self.c = (Pointer(w, w.slot(k), self.element) for k in (A, B, C))
            self._panels(w.low, w.high)
        elif p.m and p.n:
            w.loop(w.low, w.high, 1, self._batch_item)
        length = (self.panels if self.batches == 1 else self.batches) if p.m and p.n else 0
        # loops around long tiles are not optimised: that would double the time to compile them
        plain = self.batches == 1 and p.k >= PLAIN_DEPTH and not self.packs_a and not self.by_dots
        return Kernels(pack, LoopText(w.kernel(plain), length), packed, self.scratch, self.turned)

    def _pack_kernel(self) -> LoopText:
        w = Writer(self.machine)
        source, target = (Pointer(w, w.slot(k), self.element) for k in (0, 1))
        self._pack_b(source, target, w.low, w.high)
        return LoopText(w.kernel(plain=w.calls_only()), self.b_panels)

    def _pack_b(self, source: Pointer, target: Pointer, low: Index, high: Index) -> None:
        p = self.p
        panels = Panels(self.lanes, p.n, self.columns, self.columns, p.k, p.b[1], p.b[0])
        panels.copy(source, target, low, high)

    def _batch_item(self, item: Value, _: list[Value]) -> None:
        """Emit the computation of one item of a batch of products."""
        p, w = self.p, self.w
        places = w.unravel(item, p.batch)
        self.item = item
        self.a = Pointer(w, w.slot(A), self.element).at(*zip(places, p.a_batch, strict=True))
        self.b = Pointer(w, w.slot(B), self.element).at(*zip(places, p.b_batch, strict=True))
        self.c = Pointer(w, w.slot(C), self.element)[w.times(item, p.m * p.n)]
        if self.packs_b:
            target = self._own_scratch()
            self._pack_b(self.b, target, 0, self.b_panels)
            self.b = target
        self._panels(0, self.panels)

    def _own_scratch(self, offset: int = 0) -> Pointer:
        w = self.w
        at = w.at(w.slot(SCRATCH), "i8", w.plus(w.times(w.thread, self.scratch), offset))
        return Pointer(w, at, self.element)

    # Loops --------------------------------------------------------------------------------------

    def _panels(self, low: Index, high: Index) -> None:
        """Emit code that computes the row panels ``low`` to ``high``, in blocks."""
        w = self.w
        if self.by_dots:
            self._by_rows(low, high, self._dots)
            return
        packed_a = self._own_scratch(self.a_offset) if self.packs_a else None
        if self.turned:
            self.stack = Pointer(w, w.scratch(self.element, self.lanes * self.columns), self.element)

        def block(first: Value, _: list[Value]) -> None:
            end = w.least(w.plus(first, self.block), high)
            if packed_a is not None:
                self._pack_block(packed_a, first, end)
            w.parts(self.p.n, self.wide, lambda j, count: self._columns(packed_a, first, end, j, count))

        w.loop(low, high, self.block, block)

    def _row_of(self, panel: Index) -> Index:
        """Emit the index of the first row of a panel."""
        w = self.w
        return w.plus(w.times(panel, self.rows), w.least(panel, self.larger) if self.larger else 0)

    def _by_rows(self, low: Index, high: Index, body: Callable[[Value, int], None]) -> None:
        """Emit ``body(panel, number of rows)`` in a loop; the panels with one row more come first."""
        w, larger = self.w, self.larger
        if larger:
            w.loop(low, w.least(high, larger), 1, lambda i, _: body(i, self.rows + 1))
            low = w.index_value(low)
            low = w.select(w.compare("sgt", low, larger), low, larger)
        w.loop(low, high, 1, lambda i, _: body(i, self.rows))

    def _pack_block(self, target: Pointer, first: Value, end: Index) -> None:
        """Emit the packing of the row panels ``first`` to ``end`` of A into ``target``."""
        p, w = self.p, self.w

        def one(panel: Value, rows: int) -> None:
            source = self.a[w.times(self._row_of(panel), p.a[0])]
            place = w.times(w.sub(panel, first), self.a_width * p.k)
            panels = Panels(self.lanes, rows, rows, self.a_width, p.k, p.a[0], p.a[1])
            panels.copy(source, target[place], 0, 1)

        self._by_rows(first, end, one)

    def _columns(self, packed_a: Pointer | None, first: Value, end: Index, j: Index, count: int) -> None:
        """Emit code that computes ``count`` columns of the row panels ``first`` to ``end``, tile by tile."""
        p, w = self.p, self.w
        start = w.times(j, self.wide)
        a_strides = p.a if packed_a is None else (1, self.a_width)
        b_deep, b_along = (self.columns, p.k) if self.packs_b else p.b
        stack = self.stack
        step = self.c_row if stack is None else self.columns

        def one(panel: Value, rows: int) -> None:
            row = self._row_of(panel)
            if packed_a is None:
                a = self.a[w.times(row, p.a[0])]
            else:
                a = packed_a[w.times(w.sub(panel, first), self.a_width * p.k)]
            out = self.c.at((row, step), (start, 1)) if stack is None else stack
            high = self.tile.rows if self.turned else rows

            def tile(t: Index, columns: int) -> None:
                ahead = w.times(t, self.columns)
                b = self.b[w.times(w.plus(start, ahead), b_along)]
                text = tile_text(self.machine, self.element, high, columns, self.packs_b)
                numbers = [w.index_value(x) for x in (*a_strides, b_deep, step, p.k)]
                for r in range(0, rows, high):
                    from_a, to = a[r * a_strides[0]], out[w.plus(ahead, r * step)]
                    w.use(text, from_a.value, b.value, to.value, *numbers)

            w.parts(count, self.columns, tile)
            if stack is not None:
                self._turn(stack, row, start, count)
            else:
                self._finish(out, row, rows, start, count)

        self._by_rows(first, end, one)

    def _turn(self, stack: Pointer, row: Index, start: Index, count: int) -> None:
        """Emit the transposition of a panel of ``count`` columns from the stack into C, then the epilogue."""
        w, lanes = self.w, self.lanes
        to = self.c.at((start, self.c_row), (row, 1))
        text = square_text(self.machine, self.element, lanes)
        numbers = [w.index_value(x) for x in (self.columns, self.c_row, lanes, lanes)]
        for k in range(0, count, lanes):
            w.use(text, stack[k].value, to[k * self.c_row].value, *numbers)
        self._finish(to, start, count, row, lanes)

    def _finish(self, at: Pointer, row: Index, rows: int, column: Index, columns: int) -> None:
        """Emit the epilogue of a part of C, ``rows`` rows and ``columns`` columns at the address ``at``."""
        if self.epilogue is not None:
            finish(at, self.epilogue, self.c_row, columns, self.lanes, (self.item, row, rows, column))

    def _dots(self, panel: Value, rows: int) -> None:
        """Emit code that computes a row panel by dot products along k."""
        p, w = self.p, self.w
        row = self._row_of(panel)
        start, out = self.a[w.times(row, p.a[0])], self.c[w.times(row, p.n)]

        def columns(j: Index, count: int) -> None:
            b, to = self.b[w.times(j, DOTS * p.b[1])], out[w.times(j, DOTS)]
            text = dots_text(self.machine, self.element, rows, count)
            numbers = [w.index_value(x) for x in (p.a[0], p.b[1], p.n, p.k)]
            w.use(text, start.value, b.value, to.value, *numbers)

        w.parts(p.n, DOTS, columns)
        self._finish(out, row, rows, 0, p.n)


# Functions that products and convolutions share ----------------------------------------------------


def finish(
    at: Pointer,
    epilogue: Epilogue,
    step: int,
    columns: int,
    lanes: int,
    place: tuple[Index, Index, int, Index],
) -> None:
    """Emit the epilogue of ``columns`` columns of some rows at ``at``, ``step`` elements apart.

    ``place`` is the batch item, the first row, the number of rows and the first column.
    """
    element = at.element

    def body(w: Writer, given: list[Value]) -> None:
        _, start, item, row, count, column = given

        def one(i: Value, _: list[Value]) -> None:
            line, here = Pointer(w, start, element)[w.times(i, step)], w.plus(row, i)

            def piece(offset: Index, lanes: int, mask: Value | None) -> None:
                sums = line[offset].load(lanes, mask)
                value = epilogue(w, item, here, w.plus(column, offset), sums, mask)
                line[offset].store(value, mask)

            w.vectors(columns, lanes, 4, piece)

        w.loop(0, count, 1, one)

    names = [("ptr", "args"), ("ptr", "at"), *(("i64", n) for n in ("item", "row", "count", "column"))]
    at.w.define(f"finish_{columns}", names, body)
    at.w.run(f"finish_{columns}", Value("%args", "ptr"), at.value, *map(at.w.index_value, place))


def pointers(w: Writer, element: str, names: str) -> list[Pointer]:
    """Return the parameters with these names, which are addresses of elements."""
    return [Pointer(w, Value(f"%{n}", "ptr"), element) for n in names.split()]


def integers(names: str) -> list[Value]:
    """Return the parameters with these names, which are 64-bit integers."""
    return [Value(f"%{n}", "i64") for n in names.split()]


@functools.cache
def tile_text(
    machine: Machine, element: str, rows: int, columns: int, padded: bool, by_table: bool = False
) -> str:
    """Return the text of a function that computes one tile.

    Its parameters are (a, b, c, row stride of a, k stride of a, k stride of b, row stride of c, k).  If
    ``padded`` is true, whole vectors can be read at the end of a row of B.  If ``by_table`` is true, the "k
    stride of b" is the address of a table of offsets, one for each k, and the k stride of a is 1.
    """
    w = Writer(machine)
    lanes = machine.width // size_of(element) or 1
    a, b, c = pointers(w, element, "a b c")
    (table,) = pointers(w, "i64", "bk")
    a_row, a_deep, b_deep, c_row, depth = integers("ar ak bk cr k")
    pieces = w.pieces(columns, lanes)
    starts = [a[w.times(i, a_row)] for i in range(rows)]
    count = rows * len(pieces)
    # few sums: add several k separately, so that an addition need not wait for the previous one
    apart = 4 if count <= 2 else 2 if count <= 6 else 1

    def step(k_a: Value, at_b: Value, sums: list[Value]) -> list[Value]:
        row = b[table[k_a].load()] if by_table else Pointer(w, at_b, element)
        found = [row[q.offset].load(q.lanes, None if padded else q.mask) for q in pieces]
        after = []
        for i in range(rows):
            x = starts[i][k_a].load()
            wide = {n: w.splat(x, n) for n in {piece.lanes for piece in pieces}}
            after += [w.fma(wide[q.lanes], found[j], sums[i * len(pieces) + j]) for j, q in enumerate(pieces)]
        return after

    def body(_: Value, carried: list[Value]) -> list[Value]:
        k_a, at_b, *sums = carried
        for u in range(len(sums) // count):
            sums[u * count : (u + 1) * count] = step(k_a, at_b, sums[u * count : (u + 1) * count])
            k_a = w.add(k_a, 1 if by_table else a_deep)
            at_b = at_b if by_table else w.at(at_b, element, b_deep)
        return [k_a, at_b, *sums]

    zeros = [w.const(0.0, element, piece.lanes) for _ in range(rows) for piece in pieces]
    whole = depth if apart == 1 else w.bits("and", depth, -apart)
    k_a, at_b, *sums = w.loop(0, whole, apart, body, [w.const(0, "i64"), b.value, *zeros * apart])
    if apart > 1:
        _, _, *sums[:count] = w.loop(whole, depth, 1, body, [k_a, at_b, *sums[:count]])
    while apart > 1:
        apart //= 2
        half = apart * count
        sums = [w.add(x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
    for i in range(rows):
        for j, q in enumerate(pieces):
            c[w.times(i, c_row)][q.offset].store(sums[i * len(pieces) + j], q.mask)
    given = a, b, c, a_row, a_deep, table if by_table else b_deep, c_row, depth
    return w.shared([x.typed for x in given])


@functools.cache
def dots_text(machine: Machine, element: str, rows: int, columns: int) -> str:
    """Return the text of dot products of (a, b, c, strides of rows of a, columns of b, rows of c, k)."""
    w = Writer(machine)
    lanes = machine.width // size_of(element) or 1
    a, b, c = pointers(w, element, "a b c")
    a_row, b_column, c_row, depth = integers("ar bc cr k")
    pairs = [(i, j) for i in range(rows) for j in range(columns)]
    at_a = [a[w.times(i, a_row)] for i in range(rows)]
    at_b = [b[w.times(j, b_column)] for j in range(columns)]

    def step(k: Index, wide: int, mask: Value | None, sums: list[Value]) -> list[Value]:
        x, y = ([p[k].load(wide, mask) for p in each] for each in (at_a, at_b))
        return [w.fma(x[i], y[j], s) for (i, j), s in zip(pairs, sums, strict=True)]

    whole = w.bits("and", depth, -lanes)
    zeros = [w.const(0.0, element, lanes) for _ in pairs]
    sums = w.loop(0, whole, lanes, lambda k, carried: step(k, lanes, None, carried), zeros)
    if machine.masks:
        places = w.constants(range(lanes), "i64")
        mask = w.compare("slt", places, w.splat(w.sub(depth, whole), lanes))
        sums = step(whole, lanes, mask, sums)
    totals = [w.fold(s, w.add) for s in sums]
    if not machine.masks:
        totals = w.loop(whole, depth, 1, lambda k, carried: step(k, 1, None, carried), totals)
    for (i, j), total in zip(pairs, totals, strict=True):
        c[w.times(i, c_row)][j].store(total)
    return w.shared([x.typed for x in (a, b, c, a_row, b_column, c_row, depth)])
