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

from adjoint.compiler.emit.pack import pack_panels, square_text
from adjoint.compiler.emit.text import Writer
from adjoint.compiler.emit.values import Index, Value, element_of, size_of
from adjoint.compiler.machine import Machine

__all__ = ["Epilogue", "Kernel", "Kernels", "Product", "gemm", "tile_of"]

# epilogue(w, batch, row, column, sums, mask) returns the vector to store, or None if it has stored it itself.
Epilogue = Callable[[Writer, Index, Index, Index, Value, "Value | None"], "Value | None"]
# after(w, batch, row, count) is called when all columns of ``count`` rows from ``row`` are stored.
After = Callable[[Writer, Index, Index, Index], None]

# The slot numbers of the main kernel; an epilogue uses FREE and the following.
A, B, C, SCRATCH, FREE = range(5)

PLAIN_DEPTH = 64  # if k is at least this, the loops around a tile take little time
PACK_BYTES = 256 * 1024  # a larger B is packed
COLUMN_BYTES = 256 * 1024  # size of the columns of B that are processed before the next rows of A
BLOCK_BYTES = 192 * 1024  # size of a block of A, which stays in the second-level cache for all columns of B


class Product(NamedTuple):
    """The sizes and strides of C[batch, m, n] = A[batch, m, k] · B[batch, k, n], in elements."""

    dtype: Any
    m: int
    n: int
    k: int
    a: tuple[int, int]  # strides along m and k
    b: tuple[int, int]  # along k and n
    c: tuple[int, int]  # along m and n
    batch: tuple[int, ...] = ()
    a_batch: tuple[int, ...] = ()
    b_batch: tuple[int, ...] = ()
    c_batch: tuple[int, ...] = ()


class Kernel(NamedTuple):
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

    pack: Kernel | None
    main: Kernel
    packed: int
    scratch: int
    turned: bool = False


class Tile(NamedTuple):
    """The size of a tile: the number of rows, and the number of vectors per row."""

    rows: int
    vectors: int


def _most_rows(machine: Machine) -> int:
    """Return the largest number of rows of a tile that fits in the registers; each row has two vectors."""
    return 8 if machine.registers == 32 else 6 if machine.width else 4


def tile_of(machine: Machine, m: int, n: int, lanes: int) -> Tile:
    """Return a tile size for an (m, n) product that fits in the registers and is not larger than needed."""
    most = _most_rows(machine)
    m, wide = max(1, m), max(1, -(-n // lanes))
    if m <= 3:  # few rows: use more columns
        return Tile(m, min(wide, 8 // m))
    # if the number of rows divides m, all panels have the same size
    rows = next((r for r in range(most, most // 2, -1) if m % r == 0), min(most, m))
    return Tile(rows, min(2, wide))


def gemm(
    machine: Machine, product: Product, epilogue: Epilogue | None = None, after: After | None = None
) -> Kernels:
    """Return the kernels of a matrix product.

    ``epilogue`` emits the nodes that are fused into the product; ``after`` emits code that runs when some
    rows of C are complete.
    """
    return _Gemm(machine, product, epilogue, after).kernels()


class _Gemm:
    """Generates the kernels of one product."""

    def __init__(
        self, machine: Machine, product: Product, epilogue: Epilogue | None, after: After | None
    ) -> None:
        self.machine, self.p = machine, product
        self.epilogue, self.after = epilogue, after
        self.element = element_of(product.dtype)
        self.size = size_of(self.element)
        self.lanes = machine.lanes(product.dtype)
        self.turned = self._turning_pays()
        if self.turned:
            self.p = product._replace(m=product.n, n=product.m, a=product.b[::-1], b=product.a[::-1])
        p = self.p
        self.tile = tile_of(machine, p.m, p.n, self.lanes)
        if self.turned:  # a panel has as many rows as a vector has lanes, in several tiles
            rows = next(r for r in range(_most_rows(machine), 0, -1) if self.lanes % r == 0)
            self.tile = self.tile._replace(rows=rows)
        self.columns = self.tile.vectors * self.lanes
        self.batches = int(np.prod(product.batch))
        self.panels = max(1, -(-p.m // (self.lanes if self.turned else self.tile.rows)))
        self.rows, self.larger = divmod(p.m, self.panels)  # the first ``larger`` panels have one row more
        self.by_dots = self._dots_pay()
        big = p.k * p.n * self.size > PACK_BYTES and p.m >= 2 * self.tile.rows
        self.packs_b = not self.by_dots and p.k > 0 and ((p.b[1] != 1 and p.n > 1) or big)
        self.packs_a = not self.by_dots and self._packing_a_pays()
        self.block = self._block()
        self.a_width = -(-(self.rows + 1) // self.lanes) * self.lanes
        self.b_panels = -(-p.n // self.columns)
        self.wide = self._wide()
        self.stack: Value | None = None

    def _dots_pay(self) -> bool:
        """Return whether dot products along k are faster than tiles.

        They are for one column, or for few rows if B is contiguous along k.
        """
        p = self.p
        along_a, along_b = p.a[1] == 1 or p.k == 1, p.b[0] == 1 or p.k == 1
        return self.lanes > 1 and along_a and along_b and (p.n == 1 or (p.m <= 3 and p.b[1] != 1)) and p.k > 1

    def _turning_pays(self) -> bool:
        """Return whether computing Cᵀ instead of C is faster.

        It is if B is contiguous along k, A is smaller, and no vector is partial.
        """
        p, lanes = self.p, self.lanes
        if p.batch or self.after is not None or lanes == 1 or p.k < 2 or p.c[1] != 1:
            return False
        whole = p.m % lanes == 0 and p.n % lanes == 0 and p.m > 0
        return whole and p.a[1] == 1 and p.b[0] == 1 and p.b[1] != 1 and 2 * p.m <= p.n

    def _packing_a_pays(self) -> bool:
        """Return whether packing A first is faster.

        It is if the rows of A are far apart in memory and are used often.
        """
        p = self.p
        if self.turned or p.n < 16 * self.columns or p.k * self.size < 512 or p.m < 2 * self.tile.rows:
            return False
        return p.a[1] != 1 or p.a[0] * self.size % 1024 == 0

    def _block(self) -> int:
        """Return the number of row panels that fit in the cache and are computed together for all columns."""
        bytes_of_panel = max(1, (self.rows + 1) * self.p.k * self.size)
        return max(1, min(self.panels, BLOCK_BYTES // bytes_of_panel))

    def _wide(self) -> int:
        """Return the number of columns to process before the next rows.

        With an epilogue it is large, so that the epilogue reads and writes long rows, which the processor can
        prefetch.
        """
        p = self.p
        if self.epilogue is None or self.turned or not (p.c[1] == 1 or p.n == 1):
            return self.columns
        fitting = COLUMN_BYTES // max(1, p.k * self.size * self.columns)
        return min(max(fitting, 4), self.b_panels) * self.columns

    def kernels(self) -> Kernels:
        p = self.p
        scratch, pack, packed = 0, None, 0
        b_bytes = self.b_panels * self.columns * p.k * self.size if self.packs_b else 0
        a_bytes = self.block * self.a_width * p.k * self.size if self.packs_a else 0
        if self.packs_b and self.batches == 1:
            pack, packed = self._pack_kernel(), b_bytes
            scratch = a_bytes
        else:
            scratch = a_bytes + b_bytes
        scratch = -(-scratch // 64) * 64
        self.scratch, self.a_offset = scratch, scratch - a_bytes
        w = Writer(self.machine)
        if p.m and p.n and self.batches:
            (self._by_panel if self.batches == 1 else self._by_batch)(w)
        length = (self.panels if self.batches == 1 else self.batches) if p.m and p.n else 0
        # loops around long tiles are not optimised: that would double the time to compile them
        plain = self.batches == 1 and p.k >= PLAIN_DEPTH and not self.packs_a and not self.by_dots
        return Kernels(pack, Kernel(w.kernel(plain), length), packed, scratch, self.turned)

    def _pack_kernel(self) -> Kernel:
        w = Writer(self.machine)
        self._pack_b(w, w.slot(0), w.slot(1), w.low, w.high)
        return Kernel(w.kernel(plain=w.calls_only()), self.b_panels)

    def _pack_b(self, w: Writer, source: Value, target: Value, low: Index, high: Index) -> None:
        p = self.p
        pack_panels(
            w, self.element, self.lanes, source, target, low, high,
            count=p.n, width=self.columns, stride=self.columns, depth=p.k, along=p.b[1], deep=p.b[0],
        )  # fmt: skip

    # Loops --------------------------------------------------------------------------------------

    def _by_panel(self, w: Writer) -> None:
        self._panels(w, 0, w.slot(A), w.slot(B), w.slot(C), w.low, w.high)

    def _by_batch(self, w: Writer) -> None:
        p = self.p

        def one(item: Value, _: list[Value]) -> None:
            a = w.at(w.slot(A), self.element, self._offset(w, item, p.a_batch))
            b = w.at(w.slot(B), self.element, self._offset(w, item, p.b_batch))
            c = w.at(w.slot(C), self.element, self._offset(w, item, p.c_batch))
            if self.packs_b:
                target = self._own_scratch(w)
                self._pack_b(w, b, target, 0, self.b_panels)
                b = target
            self._panels(w, item, a, b, c, 0, self.panels)

        w.loop(w.low, w.high, 1, one)

    def _offset(self, w: Writer, item: Value, strides: tuple[int, ...]) -> Index:
        """Emit the offset at which the matrix of a batch item starts; ``strides`` are the batch strides."""
        offset: Index = 0
        rest: Index = item
        for count, stride in zip(reversed(self.p.batch), reversed(strides), strict=True):
            rest, place = w.divide(rest, count)
            offset = w.plus(offset, w.times(place, stride))
        return offset

    def _own_scratch(self, w: Writer, offset: int = 0) -> Value:
        return w.at(w.slot(SCRATCH), "i8", w.plus(w.times(w.thread, self.scratch), offset))

    def _panels(self, w: Writer, item: Index, a: Value, b: Value, c: Value, low: Index, high: Index) -> None:
        """Emit code that computes the row panels ``low`` to ``high`` of batch item ``item``, in blocks.

        ``a``, ``b`` and ``c`` are the addresses of the matrices of this item.
        """
        if self.by_dots:
            self._dots(w, item, a, b, c, low, high)
            return
        packed_a = self._own_scratch(w, self.a_offset) if self.packs_a else None

        def block(first: Value, _: list[Value]) -> None:
            end = w.least(w.plus(first, self.block), high)
            if packed_a is not None:
                self._pack_block(w, a, packed_a, first, end)
            full, rest = divmod(self.p.n, self.wide)

            def columns(j: Index, count: int) -> None:
                self._columns(w, item, a, packed_a, b, c, first, end, j, count)

            if full:
                w.loop(0, full, 1, lambda j, _: columns(j, self.wide))
            if rest:
                columns(full, rest)
            if self.after is not None:
                start = self._row_of(w, first)
                self.after(w, item, start, self._index(w, "sub", self._row_of(w, end), start))

        w.loop(low, high, self.block, block)

    @staticmethod
    def _index(w: Writer, name: str, a: Index, b: Index) -> Index:
        return w.op(name, w.index_value(a), w.index_value(b))

    def _row_of(self, w: Writer, panel: Index) -> Index:
        """Emit the index of the first row of a panel."""
        return w.plus(w.times(panel, self.rows), w.least(panel, self.larger) if self.larger else 0)

    def _by_rows(self, w: Writer, low: Index, high: Index, body: Callable[[Value, int], None]) -> None:
        """Emit a loop that runs ``body(panel, rows)`` for the panels ``low`` to ``high``.

        ``rows`` is the number of rows of a panel.  The panels with one row more come first.
        """
        if self.larger:
            w.loop(low, w.least(high, self.larger), 1, lambda i, _: body(i, self.rows + 1))
            beyond = w.index_value(low)
            beyond = w.select(w.compare("sgt", beyond, self.larger), beyond, w.like(beyond, self.larger))
            w.loop(beyond, high, 1, lambda i, _: body(i, self.rows))
        else:
            w.loop(low, high, 1, lambda i, _: body(i, self.rows))

    def _pack_block(self, w: Writer, a: Value, target: Value, first: Value, end: Index) -> None:
        """Emit the packing of the row panels ``first`` to ``end`` of A into ``target``.

        In ``target``, the numbers of all rows of a panel at one k are adjacent.
        """
        p = self.p

        def one(panel: Value, rows: int) -> None:
            source = w.at(a, self.element, w.times(self._row_of(w, panel), p.a[0]))
            place = w.times(w.sub(panel, first), self.a_width * p.k)
            pack_panels(
                w, self.element, self.lanes, source, w.at(target, self.element, place), 0, 1,
                count=rows, width=rows, stride=self.a_width, depth=p.k, along=p.a[0], deep=p.a[1],
            )  # fmt: skip

        self._by_rows(w, first, end, one)

    def _columns(
        self, w: Writer, item: Index, a: Value, packed_a: Value | None, b: Value, c: Value,
        first: Value, end: Index, j: Index, count: int,
    ) -> None:  # fmt: skip
        """Emit code that computes ``count`` columns of the row panels ``first`` to ``end``, tile by tile.

        ``a``, ``b`` and ``c`` are the addresses of the matrices, and ``packed_a`` is the address of the
        packed panels.  ``j`` is the index of the range of columns, and ``item`` is the batch item.
        """
        p = self.p
        start = w.times(j, self.wide)
        a_strides = p.a if packed_a is None else (1, self.a_width)
        b_deep = self.columns if self.packs_b else p.b[0]

        def one(panel: Value, rows: int) -> None:
            row = self._row_of(w, panel)
            if packed_a is None:
                at_a = w.at(a, self.element, w.times(row, p.a[0]))
            else:
                at_a = w.at(packed_a, self.element, w.times(w.sub(panel, first), self.a_width * p.k))
            out, step = self._target(w, c, row, start)

            def tile(t: Index, columns: int) -> None:
                ahead = w.times(t, self.columns)
                column = w.plus(start, ahead)
                at_b = w.at(b, self.element, w.times(column, p.k if self.packs_b else p.b[1]))
                high = self.tile.rows if self.turned else rows
                text = tile_text(self.machine, self.element, high, columns, self.packs_b)
                numbers = [w.index_value(x) for x in (*a_strides, b_deep, step, p.k)]
                for r in range(0, rows, high):
                    from_a = w.at(at_a, self.element, r * a_strides[0])
                    w.use(text, from_a, at_b, w.at(out, self.element, w.plus(ahead, r * step)), *numbers)

            full, rest = divmod(count, self.columns)
            if full == 1:
                tile(0, self.columns)
            else:
                w.loop(0, full, 1, lambda t, _: tile(t, self.columns))
            if rest:
                tile(full, rest)
            if self.turned:
                self._turn(w, item, row, start, count, out, step, c)
            else:
                self._finish(w, item, row, rows, start, count, out, step, c)

        self._by_rows(w, first, end, one)

    def _turn(
        self, w: Writer, item: Index, row: Index, start: Index, count: int, source: Value, step: int, c: Value
    ) -> None:
        """Emit the transposition of ``count`` columns of a panel into C, then the epilogue there.

        The columns are at the address ``source``, with ``step`` elements between rows; their positions in C
        begin at row ``start`` and column ``row`` of batch item ``item``.
        """
        lanes, stride = self.lanes, self.p.c[0]
        to = w.at(c, self.element, w.plus(w.times(start, stride), row))
        text = square_text(self.machine, self.element, lanes)
        for k in range(0, count, lanes):
            numbers = [w.index_value(x) for x in (step, stride, lanes, lanes)]
            w.use(text, w.at(source, self.element, k), w.at(to, self.element, k * stride), *numbers)
        self._finish(w, item, start, count, row, lanes, to, stride, c)

    def _target(self, w: Writer, c: Value, row: Index, column: Index) -> tuple[Value, int]:
        """Emit the address at which a tile is stored, in C or on the stack; return it and the row stride."""
        p = self.p
        if not self.turned and (p.c[1] == 1 or p.n == 1):
            return w.at(c, self.element, w.plus(w.times(row, p.c[0]), column)), p.c[0]
        if self.stack is None:
            self.stack = w.scratch(self.element, (self.rows + 1) * self.columns)
        return self.stack, self.columns

    def _finish(
        self,
        w: Writer,
        item: Index,
        row: Index,
        rows: int,
        column: Index,
        columns: int,
        source: Value,
        step: int,
        c: Value,
    ) -> None:
        """Emit the epilogue (the fused nodes) of a tile, and the copy to C if the tile is on the stack.

        The tile is at the address ``source``, with ``step`` elements between rows.  It has ``rows`` rows from
        ``row`` and ``columns`` columns from ``column`` of batch item ``item``.
        """
        p = self.p
        adjacent = p.c[1] == 1 or p.n == 1
        if self.epilogue is None and adjacent:
            return
        parameters = [
            ("ptr", "args"),
            ("ptr", "from"),
            ("ptr", "c"),
            *(("i64", n) for n in ("item", "row", "count", "column")),
        ]
        name = f"finish_{columns}"
        w.define(name, parameters, lambda inner, given: self._finish_body(inner, columns, step, *given[1:]))
        numbers = [w.index_value(x) for x in (item, row, rows, column)]
        w.run(name, Value("%args", "ptr"), source, c, *numbers)

    def _finish_body(
        self, w: Writer, columns: int, step: int,
        source: Value, c: Value, item: Value, row: Value, count: Value, column: Value,
    ) -> None:  # fmt: skip
        p = self.p
        adjacent = p.c[1] == 1 or p.n == 1
        whole = columns // self.lanes * self.lanes if columns > 4 * self.lanes else 0

        def one_row(i: Value, _: list[Value]) -> None:
            at = w.at(source, self.element, w.times(i, step))
            here = w.plus(row, i)
            out = w.at(c, self.element, w.plus(w.times(here, p.c[0]), w.times(column, p.c[1])))

            def piece(offset: Index, lanes: int, mask: Value | None) -> None:
                found = w.load(w.at(at, self.element, offset), self.element, lanes, mask)
                value: Value | None = found
                if self.epilogue is not None:
                    value = self.epilogue(w, item, here, w.plus(column, offset), found, mask)
                if value is not None and (value is not found or not adjacent):
                    self._store(w, value, w.at(out, self.element, w.times(offset, p.c[1])), mask)

            w.loop(0, whole, self.lanes, lambda k, _: piece(k, self.lanes, None))
            for offset, lanes, mask in w.pieces(columns - whole, self.lanes):
                piece(whole + offset, lanes, mask)

        w.loop(0, count, 1, one_row)

    def _store(self, w: Writer, value: Value, place: Value, mask: Value | None) -> None:
        """Emit a store of the vector ``value`` at ``place``, one element at a time if C is not contiguous."""
        stride = self.p.c[1]
        if stride == 1 or value.lanes == 1:
            w.store(value, place, mask)
            return
        count = value.lanes if mask is None else mask.text.count("true")
        for lane in range(count):
            w.store(w.extract(value, lane), w.at(place, self.element, lane * stride))

    def _dots(self, w: Writer, item: Index, a: Value, b: Value, c: Value, low: Index, high: Index) -> None:
        """Emit code that computes the row panels ``low`` to ``high`` of a batch item by dot products along k.

        ``a``, ``b`` and ``c`` are the addresses of the matrices of this item.
        """
        p = self.p

        def one(panel: Value, rows: int) -> None:
            row = self._row_of(w, panel)
            start = w.at(a, self.element, w.times(row, p.a[0]))
            adjacent = p.c[1] == 1 or p.n == 1
            out = w.at(c, self.element, w.times(row, p.c[0]))
            full, rest = divmod(p.n, DOTS)

            def columns(j: Index, count: int) -> None:
                at_b = w.at(b, self.element, w.times(j, DOTS * p.b[1]))
                to = w.at(out, self.element, w.times(j, DOTS * p.c[1]))
                text = dots_text(self.machine, self.element, rows, count)
                numbers = [w.index_value(x) for x in (p.a[0], p.b[1], *p.c, p.k)]
                w.use(text, start, at_b, to, *numbers)

            w.loop(0, full, 1, lambda j, _: columns(j, DOTS))
            if rest:
                columns(full, rest)
            if adjacent or self.epilogue is not None:
                self._finish_dots(w, item, row, rows, out, c, adjacent)
            if self.after is not None:
                self.after(w, item, row, rows)

        self._by_rows(w, low, high, one)

    def _finish_dots(
        self, w: Writer, item: Index, row: Index, rows: int, out: Value, c: Value, adjacent: bool
    ) -> None:
        """Emit the epilogue of ``rows`` whole rows of a batch item, which are at the address ``out``.

        If the columns of C are not ``adjacent`` in memory, the code works element by element.
        """
        p = self.p
        if adjacent:
            self._finish(w, item, row, rows, 0, p.n, out, p.c[0], c)
            return
        epilogue = self.epilogue
        assert epilogue is not None

        def one(i: Value, _: list[Value]) -> None:
            def element(j: Value, _: list[Value]) -> None:
                place = w.at(out, self.element, w.plus(w.times(i, p.c[0]), w.times(j, p.c[1])))
                value = epilogue(w, item, w.plus(row, i), j, w.load(place, self.element), None)
                if value is not None:
                    w.store(value, place)

            w.loop(0, p.n, 1, element)

        w.loop(0, rows, 1, one)


# Functions that all products share -----------------------------------------------------------------

DOTS = 4  # number of columns per call of the function of dot products


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
    lanes = machine.lanes(np.float32 if element == "float" else np.float64)
    a, b, c, table = (Value(f"%{n}", "ptr") for n in ("a", "b", "c", "bk"))
    a_row, a_deep, b_deep, c_row, depth = (Value(f"%{n}", "i64") for n in ("ar", "ak", "bk", "cr", "k"))
    pieces = w.pieces(columns, lanes)
    starts = [w.at(a, element, w.times(i, a_row)) for i in range(rows)]
    count = rows * len(pieces)
    # few sums: add several k separately, so that an addition need not wait for the previous one
    apart = 4 if count <= 2 else 2 if count <= 6 else 1

    def step(k_a: Value, at_b: Value, sums: list[Value]) -> list[Value]:
        if by_table:
            at_b = w.at(b, element, w.load(w.at(table, "i64", k_a), "i64"))
        found = [
            w.load(w.at(at_b, element, q.offset), element, q.lanes, None if padded else q.mask)
            for q in pieces
        ]
        after = []
        for i in range(rows):
            x = w.load(w.at(starts[i], element, k_a), element)
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
    k_a, at_b, *sums = w.loop(0, whole, apart, body, [w.const(0, "i64"), b, *zeros * apart])
    if apart > 1:
        _, _, *sums[:count] = w.loop(whole, depth, 1, body, [k_a, at_b, *sums[:count]])
    while apart > 1:
        apart //= 2
        half = apart * count
        sums = [w.add(x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
    for i in range(rows):
        for j, q in enumerate(pieces):
            out = w.at(w.at(c, element, w.times(i, c_row)), element, q.offset)
            w.store(sums[i * len(pieces) + j], out, q.mask)
    names = [f"ptr %{n}" for n in "abc"] + [f"i64 %{n}" for n in ("ar", "ak", "bk", "cr", "k")]
    if by_table:
        names[5] = "ptr %bk"
    return w.shared(names)


@functools.cache
def dots_text(machine: Machine, element: str, rows: int, columns: int) -> str:
    """Return the text of a function that computes the dot products of some rows of A and columns of B.

    Its parameters are (a, b, c, row stride of a, column stride of b, row stride of c, column stride of c, k).
    """
    w = Writer(machine)
    lanes = machine.lanes(np.float32 if element == "float" else np.float64)
    a, b, c = (Value(f"%{n}", "ptr") for n in "abc")
    a_row, b_column, c_row, c_column, depth = (Value(f"%{n}", "i64") for n in ("ar", "bc", "cr", "cc", "k"))
    pairs = [(i, j) for i in range(rows) for j in range(columns)]
    at_a = [w.at(a, element, w.times(i, a_row)) for i in range(rows)]
    at_b = [w.at(b, element, w.times(j, b_column)) for j in range(columns)]

    def step(k: Index, wide: int, mask: Value | None, sums: list[Value]) -> list[Value]:
        x = [w.load(w.at(p, element, k), element, wide, mask) for p in at_a]
        y = [w.load(w.at(p, element, k), element, wide, mask) for p in at_b]
        return [w.fma(x[i], y[j], s) for (i, j), s in zip(pairs, sums, strict=True)]

    whole = w.bits("and", depth, -lanes)
    zeros = [w.const(0.0, element, lanes) for _ in pairs]
    sums = w.loop(0, whole, lanes, lambda k, carried: step(k, lanes, None, carried), zeros)
    if machine.masks:
        places = w.constants(range(lanes), "i64")
        mask = w.compare("slt", places, w.splat(w.sub(depth, whole), lanes))
        sums = step(whole, lanes, mask, sums)
        totals = [w.fold(s, w.add) for s in sums]
    else:
        totals = [w.fold(s, w.add) for s in sums]
        totals = w.loop(whole, depth, 1, lambda k, carried: step(k, 1, None, carried), totals)
    for (i, j), total in zip(pairs, totals, strict=True):
        w.store(total, w.at(w.at(c, element, w.times(i, c_row)), element, w.times(j, c_column)))
    names = [f"ptr %{n}" for n in "abc"] + [f"i64 %{n}" for n in ("ar", "bc", "cr", "cc", "k")]
    return w.shared(names)
