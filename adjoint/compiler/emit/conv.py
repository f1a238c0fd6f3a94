"""Kernels of convolutions: the forward pass, and the gradients of images and of convolution kernels.

Each image is first copied into *planes*, one per channel, with room for the padding.  For a stride s along a
row, the plane has s *phases* (columns 0, s, 2s …; then 1, s + 1 …), so that neighbouring windows read
neighbouring numbers.  For one row of windows, the result is a matrix product.  The first matrix has shape
(output channels, k) and contains the convolution kernels; k counts the pairs of a channel and an offset in
the convolution kernel.  The second matrix, of shape (k, windows), is not stored: a table has, for each k, the
offset in the planes at which row k starts.

In the forward pass the zeros of the padding are multiplied like other numbers: an infinite weight gives NaN.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

from adjoint.compiler.emit.gemm import (
    Epilogue,
    Kernels,
    LoopText,
    finish,
    integers,
    most_rows,
    pointers,
    tile_text,
)
from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.terms import Pointer
from adjoint.compiler.emit.values import Index, Value, element_of, size_of
from adjoint.compiler.emit.writer import Writer

__all__ = ["Conv", "Weights", "conv", "conv_input", "conv_weight"]

# Slot numbers: images, convolution kernels (packed, if there is a pack kernel), result, scratch memory.
IMAGES, KERNELS, RESULT, SCRATCH, FREE = range(5)
PARTS = 8  # conv_weight sums the images in this many parts, for any number of threads: the order is fixed
PART_BYTES = 1 << 21  # at most this many bytes for the sums of all parts


class Conv(NamedTuple):
    """A two-dimensional convolution of contiguous images (n, c, *size) with kernels (o, c, *kernel)."""

    dtype: Any
    n: int
    c: int
    o: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    dilation: tuple[int, int] = (1, 1)

    @property
    def windows(self) -> tuple[int, int]:
        """The number of positions of the convolution kernel along each axis of the image."""
        high, wide = (
            (n + lo + hi - d * (k - 1) - 1) // s + 1
            for n, k, s, (lo, hi), d in zip(
                self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return high, wide


class Weights(NamedTuple):
    """The two kernels that compute the gradient with respect to the weights."""

    main: LoopText  # sums over parts of the images, into slot RESULT
    last: LoopText  # adds the parts in slot 0, into slot 1
    partial: int  # bytes of the sums of all parts
    scratch: int  # bytes per thread


class _Planes(NamedTuple):
    """The layout of the padded copy of an image: one plane of shape (rows, phases, width) per channel."""

    element: str
    channels: int
    size: tuple[int, int]  # of the image
    first: tuple[int, int]  # position of the image's first number; if negative, so many numbers are left out
    spread: tuple[int, int]  # distance between the image's numbers; 1 if they are adjacent
    phases: int
    rows: int
    width: int  # of one phase

    @property
    def row(self) -> int:
        return self.phases * self.width

    @property
    def plane(self) -> int:
        return self.rows * self.row

    @property
    def bytes(self) -> int:
        """The size of all planes in bytes, with one more vector at the end, which loads may reach."""
        return -(-self.channels * self.plane * size_of(self.element) // 64) * 64 + 64

    def place(self, channel: int, y: int, x: int) -> int:
        return channel * self.plane + y * self.row + x % self.phases * self.width + x // self.phases

    @property
    def is_image(self) -> bool:
        """Whether the planes have the same layout as the image, so that no copy is needed."""
        return (
            self.phases == 1
            and self.first == (0, 0)
            and self.spread == (1, 1)
            and (self.rows, self.width) == self.size
        )

    def copy(self, lanes: int, source: Pointer, target: Pointer, around: Value) -> None:
        """Emit code that copies the image at ``source`` to planes at ``target``, with padding ``around``."""
        w, (high, wide) = source.w, self.size
        total = self.channels * self.plane
        fill = w.splat(around, lanes)
        w.loop(0, -(-total // lanes) * lanes, lanes, lambda i, _: target[i].store(fill))
        start, stop = self._kept(0, self.rows)

        def row(r: Value, _: list[Value]) -> None:
            channel, y = w.divide(r, stop - start)
            y = w.plus(y, start)
            at = source.at((channel, high * wide), (y, wide))
            line = w.plus(w.times(y, self.spread[0]), self.first[0])
            self._copy_row(lanes, at, target.at((channel, self.plane), (line, self.row)))

        w.loop(0, self.channels * (stop - start), 1, row)

    def _kept(self, axis: int, room: int) -> tuple[int, int]:
        """Return (start, stop), the range of the indices of the image whose position is inside a row."""
        first, spread = self.first[axis], self.spread[axis]
        kept = [i for i in range(self.size[axis]) if 0 <= first + i * spread < room]
        return (kept[0], kept[-1] + 1) if kept else (0, 0)

    def _copy_row(self, lanes: int, at: Pointer, to: Pointer) -> None:
        w, first, spread = at.w, self.first[1], self.spread[1]
        start, stop = self._kept(1, self.row)
        if self.phases == 1 and spread == 1:
            for offset, n, mask in w.pieces(stop - start, lanes):
                x = at[start + offset].load(n, mask)
                to[first + start + offset].store(x, mask)
            return

        def one(i: Value, _: list[Value]) -> None:
            place = w.plus(w.times(i, spread), first)
            x, phase = w.divide(place, self.phases)
            number = at[i].load()
            to.at((phase, self.width), (x, 1)).store(number)

        w.loop(start, stop, 1, one)


def _planes_of(spec: Conv, element: str) -> _Planes:
    """Return the layout of the padded planes that the windows of a convolution read."""
    needed = [
        s * (n - 1) + d * (k - 1) + 1
        for n, k, s, d in zip(spec.windows, spec.kernel, spec.stride, spec.dilation, strict=True)
    ]
    phases = spec.stride[1]
    first = (spec.padding[0][0], spec.padding[1][0])
    exact = _Planes(element, spec.c, spec.size, first, (1, 1), 1, *spec.size)
    if phases == 1 and exact.is_image and all(n <= m for n, m in zip(needed, spec.size, strict=True)):
        return exact
    return _Planes(element, spec.c, spec.size, first, (1, 1), phases, needed[0], -(-needed[1] // phases))


class _Work(NamedTuple):
    """The sizes of a convolution: each result is a sum over k, for one window and one output channel."""

    machine: Machine
    planes: _Planes
    outputs: int
    windows: tuple[int, int]
    offsets: list[int]  # for each k, the offset in the planes
    step: int  # distance in the planes between two rows of windows

    @property
    def element(self) -> str:
        return self.planes.element

    @property
    def lanes(self) -> int:
        return self.machine.width // size_of(self.element) or 1

    @property
    def scratch(self) -> int:
        """The number of bytes that each thread needs."""
        return 0 if self.planes.is_image else self.planes.bytes

    def slot(self, w: Writer, k: int) -> Pointer:
        """Emit the address in slot ``k``."""
        return Pointer(w, w.slot(k), self.element)

    def own_planes(self, w: Writer, image: Index, around: Value | None = None) -> Pointer:
        """Emit the copy of an image to this thread's planes, with ``around`` (0) as padding; return them."""
        planes = self.planes
        source = self.slot(w, IMAGES)[w.times(image, planes.channels * math.prod(planes.size))]
        if planes.is_image:
            return source
        target = Pointer(w, w.at(w.slot(SCRATCH), "i8", w.times(w.thread, planes.bytes)), self.element)
        planes.copy(self.lanes, source, target, around or w.const(0.0, self.element))
        return target


def _work(machine: Machine, spec: Conv, planes: _Planes, outputs: int) -> _Work:
    (kh, kw), (dh, dw) = spec.kernel, spec.dilation
    offsets = [
        planes.place(c, y * dh, x * dw) for c in range(planes.channels) for y in range(kh) for x in range(kw)
    ]
    return _Work(machine, planes, outputs, spec.windows, offsets, spec.stride[0] * planes.row)


# Correlations -------------------------------------------------------------------------------------


def conv(machine: Machine, spec: Conv, epilogue: Epilogue | None = None) -> Kernels:
    """Return the kernels of a convolution; ``epilogue`` gets the image, the channel and the position."""
    work = _work(machine, spec, _planes_of(spec, element_of(spec.dtype)), spec.o)
    return Kernels(None, _Correlation(work, epilogue).kernel(spec.n), 0, work.scratch)


def conv_input(machine: Machine, spec: Conv, epilogue: Epilogue | None = None) -> Kernels:
    """Return the kernels that compute the gradient of the convolution ``spec`` with respect to the images.

    Slot IMAGES has the gradient of the result.  This is a convolution with rotated kernels, of planes whose
    numbers are ``stride`` apart.  ``epilogue`` emits nodes that are fused into it.
    """
    element = element_of(spec.dtype)
    reach = [d * (k - 1) for d, k in zip(spec.dilation, spec.kernel, strict=True)]
    first = (reach[0] - spec.padding[0][0], reach[1] - spec.padding[1][0])
    rows, width = (n + r for n, r in zip(spec.size, reach, strict=True))
    planes = _Planes(element, spec.o, spec.windows, first, spec.stride, 1, rows, width)
    back = spec._replace(stride=(1, 1), padding=((0, 0), (0, 0)))
    work = _work(machine, back, planes, spec.c)._replace(windows=spec.size)
    packed = spec.c * spec.o * math.prod(spec.kernel) * size_of(element)
    main = _Correlation(work, epilogue, not planes.is_image).kernel(spec.n)
    return Kernels(_turned_kernels(machine, spec, element), main, packed, work.scratch)


class _Correlation:
    """Generates a kernel with one matrix product per image; slot KERNELS has a matrix (outputs, k).

    If ``exact`` is true, the padding is marked by a special NaN, and products with it are left out if the
    matrix contains an infinity or NaN.  If the matrix is finite, padding with zeros is faster and gives the
    same result.
    """

    def __init__(self, work: _Work, epilogue: Epilogue | None, exact: bool = False) -> None:
        self.work, self.epilogue = work, epilogue
        self.w = w = Writer(work.machine)
        self.depth = len(work.offsets)
        self.table = w.table(work.offsets)
        panels = -(-work.outputs // most_rows(work.machine))
        self.cuts = [work.outputs * p // panels for p in range(panels + 1)]
        self.finite = self.around = None
        if exact:
            matrix = work.slot(w, KERNELS)
            self.finite = _all_finite(matrix, work.lanes, work.outputs * self.depth)
            self.around = w.select(self.finite, w.const(0.0, work.element), _missing(w, work.element))

    def kernel(self, images: int) -> LoopText:
        """Generate and return the kernel for a number of images."""
        w, work, (high, wide) = self.w, self.work, self.work.windows

        def one(image: Value, _: list[Value]) -> None:
            planes = work.own_planes(w, image, self.around)
            out = work.slot(w, RESULT)[w.times(image, work.outputs * high * wide)]

            def line(y: Value, _: list[Value]) -> None:
                base, first = planes[w.times(y, work.step)], w.times(y, wide)
                for low, top in itertools.pairwise(self.cuts):
                    self._panel(image, base, out, first, low, top - low)

            w.loop(0, high, 1, line)

        w.loop(w.low, w.high, 1, one)
        return LoopText(w.kernel(), images)

    def _panel(self, image: Value, base: Pointer, out: Pointer, line: Index, low: int, rows: int) -> None:
        """Emit a row of windows, from ``line`` on, of some output channels, into the result ``out``."""
        w, work = self.w, self.work
        size, wide = math.prod(work.windows), 2 * work.lanes
        kernels = work.slot(w, KERNELS)[low * self.depth]

        def columns(j: Index, n: int) -> None:
            first = w.times(j, wide)
            place = w.plus(line, first)
            to = out[w.plus(low * size, place)]
            text = tile_text(work.machine, work.element, rows, n, not work.planes.is_image, True)
            numbers = [w.const(x, "i64") for x in (self.depth, 1, size, self.depth, rows, n)]
            given = kernels.value, base[first].value, to.value, *numbers[:2], self.table, *numbers[2:4]
            if self.finite is None:
                w.use(text, *given)
            else:
                with w.when(self.finite):
                    w.use(text, *given)
                with w.when(w.invert(self.finite)):
                    w.use(_exact_text(work.machine, work.element), *given, *numbers[4:])
            if self.epilogue is not None:
                finish(to, self.epilogue, size, n, work.lanes, (image, low, rows, place))

        w.parts(work.windows[1], wide, columns)


def _all_finite(start: Pointer, lanes: int, count: int) -> Value:
    """Emit a test whether all of the ``count`` numbers at the address ``start`` are finite."""
    w = start.w

    def one(i: Value, sums: list[Value]) -> list[Value]:
        return [w.fma(start[i].load(sums[0].lanes), 0.0, sums[0])]

    whole = count // lanes * lanes
    (sums,) = w.loop(0, whole, lanes, one, [w.const(0.0, start.element, lanes)])
    (total,) = w.loop(whole, count, 1, one, [w.fold(sums, w.add)])
    return w.compare("oeq", total, 0.0)


def _missing(w: Writer, element: str) -> Value:
    """Return the special NaN that marks padding in planes; no computation gives a NaN with these bits."""
    kind, bits = ("i32", 0x7FC0DEAD) if element == "float" else ("i64", 0x7FF8DEAD0000DEAD)
    return w.bitcast(w.const(bits, kind), element)


@functools.cache
def _exact_text(machine: Machine, element: str) -> str:
    """Return the text of a slow function that computes a tile and leaves out products with padding.

    Its parameters are those of ``tile_text`` with ``by_table``, then the rows and columns of the tile.
    """
    w = Writer(machine)
    a, b, c = pointers(w, element, "a b c")
    (table,) = pointers(w, "i64", "bk")
    a_row, a_deep, c_row, depth, rows, columns = integers("ar ak cr k rows columns")
    kind = "i32" if element == "float" else "i64"
    missing = w.bitcast(_missing(w, element), kind)

    def sum_of(i: Value, j: Value) -> Value:
        def step(k: Value, sums: list[Value]) -> list[Value]:
            x = b[j][table[k].load()].load()
            y = a.at((i, a_row), (k, 1)).load()
            there = w.compare("ne", w.bitcast(x, kind), missing)
            return [w.select(there, w.fma(x, y, sums[0]), sums[0])]

        return w.loop(0, depth, 1, step, [w.const(0.0, element)])[0]

    def row(i: Value, _: list[Value]) -> None:
        to = c[w.times(i, c_row)]

        def one(j: Value, _: list[Value]) -> None:
            total = sum_of(i, j)
            to[j].store(total)

        w.loop(0, columns, 1, one)

    w.loop(0, rows, 1, row)
    return w.shared([x.typed for x in (a, b, c, a_row, a_deep, table, c_row, depth, rows, columns)])


def _turned_kernels(machine: Machine, spec: Conv, element: str) -> LoopText:
    """Return the kernel that copies weights (o, c, *kernel) to (c, o, *kernel), rotated by 180 degrees."""
    w, area = Writer(machine), math.prod(spec.kernel)

    def one(c: Value, _: list[Value]) -> None:
        at, to = (Pointer(w, w.slot(k), element) for k in (0, 1))

        def number(i: Value, _: list[Value]) -> None:
            o, k = w.divide(i, area)
            x = at.at((o, spec.c * area), (c, area))[w.plus(area - 1, w.times(k, -1))].load()
            to.at((c, spec.o * area), (o, area), (k, 1)).store(x)

        w.loop(0, spec.o * area, 1, number)

    w.loop(w.low, w.high, 1, one)
    return LoopText(w.kernel(), spec.c)


# The gradient of kernels --------------------------------------------------------------------------


def conv_weight(machine: Machine, spec: Conv) -> Weights:
    """Return the kernels that compute the gradient of a convolution with respect to its weights.

    Slot IMAGES has the images, slot KERNELS the gradient of the result.  The sums of a tile (some outputs
    times some k) are vectors along a row of windows; the lanes of each vector are added last.
    """
    element = element_of(spec.dtype)
    work = _work(machine, spec, _planes_of(spec, element), spec.o)
    sums = spec.o * len(work.offsets) * work.lanes * size_of(element)
    parts = max(1, min(PARTS, spec.n, PART_BYTES // max(1, sums)))
    return Weights(_weight_parts(work, spec.n, parts), _weight_sum(work, parts), parts * sums, work.scratch)


def _weight_parts(work: _Work, images: int, parts: int) -> LoopText:
    """Return the kernel that computes, for each part of the images, the sums of the weight gradient."""
    w = Writer(work.machine)
    most = 6 if work.machine.registers == 32 else 3
    panels = -(-work.outputs // most)
    rows, larger = divmod(work.outputs, panels)  # the first ``larger`` panels have one output more

    def one(q: Value, _: list[Value]) -> None:
        part, panel = w.divide(q, panels)
        first = w.plus(w.times(panel, rows), w.least(panel, larger))
        place = w.plus(w.times(part, work.outputs), first)
        sums = work.slot(w, RESULT)[w.times(place, len(work.offsets) * work.lanes)]
        low = w.divide(w.times(part, images), parts)[0]
        high = w.divide(w.times(w.plus(part, 1), images), parts)[0]
        fewer = w.compare("sge", w.index_value(panel), larger)
        if larger:
            with w.when(w.invert(fewer)):
                _weight_panel(work, rows + 1, first, sums, low, high)
        with w.when(fewer):
            _weight_panel(work, rows, first, sums, low, high)

    w.loop(w.low, w.high, 1, one)
    return LoopText(w.kernel(), parts * panels)


def _weight_panel(work: _Work, rows: int, first: Index, sums: Pointer, low: Index, high: Index) -> None:
    """Emit code that adds the images ``low`` to ``high`` to ``sums``, of ``rows`` channels from ``first``."""
    w, lanes, depth, size = sums.w, work.lanes, len(work.offsets), math.prod(work.windows)
    columns = 4 if work.machine.registers == 32 else 3
    table, zero = Pointer(w, w.table(work.offsets), "i64"), w.const(0.0, work.element, lanes)
    w.loop(0, rows * depth * lanes, lanes, lambda i, _: sums[i].store(zero))

    def image(n: Value, _: list[Value]) -> None:
        planes = work.own_planes(w, n)
        g = work.slot(w, KERNELS)[w.times(w.plus(w.times(n, work.outputs), first), size)]

        def tile(j: Index, count: int) -> None:
            text = _weight_tile(work.machine, work.element, rows, count, work.windows[1])
            numbers = [w.const(x, "i64") for x in (size, work.step, depth * lanes, work.windows[0])]
            k = w.times(j, columns)
            to, offsets = sums[w.times(k, lanes)], table[k]
            w.use(text, g.value, planes.value, offsets.value, to.value, *numbers)

        w.parts(depth, columns, tile)

    w.loop(low, high, 1, image)


@functools.cache
def _weight_tile(machine: Machine, element: str, rows: int, columns: int, wide: int) -> str:
    """Return the text of a function that adds to one tile of ``rows`` × ``columns`` sums.

    Its parameters are (g, planes, offsets, sums, output stride of g, row stride of the planes, output stride
    of the sums, number of rows).  ``wide`` is the number of windows in a row.
    """
    w = Writer(machine)
    lanes = machine.width // size_of(element) or 1
    g, planes, out = pointers(w, element, "g planes out")
    (table,) = pointers(w, "i64", "table")
    g_step, line, out_step, high = integers("gs line os high")
    at_g = [g[w.times(i, g_step)] for i in range(rows)]
    at_x = [planes[table[j].load()] for j in range(columns)]
    places = [out[w.times(i, out_step)][j * lanes] for i in range(rows) for j in range(columns)]
    full = wide // lanes
    rest = wide - full * lanes

    def step(g_at: Index, x_at: Index, n: int, mask: Value | None, sums: list[Value]) -> list[Value]:
        left, right = [p[g_at].load(n, mask) for p in at_g], [p[x_at].load(n, mask) for p in at_x]
        return [w.fma(left[i], right[j], sums[i * columns + j]) for i in range(rows) for j in range(columns)]

    def body(y: Value, sums: list[Value]) -> list[Value]:
        g_row, x_row = w.times(y, wide), w.times(y, line)
        for k in range(full):
            sums = step(w.plus(g_row, k * lanes), w.plus(x_row, k * lanes), lanes, None, sums)
        g_row, x_row = w.plus(g_row, full * lanes), w.plus(x_row, full * lanes)
        if rest and machine.masks:
            return step(g_row, x_row, lanes, w.constants([int(k < rest) for k in range(lanes)], "i1"), sums)
        # without masks: add one by one to the first lane
        firsts = [w.extract(s, 0) for s in sums] if rest else []
        for k in range(rest):
            firsts = step(w.plus(g_row, k), w.plus(x_row, k), 1, None, firsts)
        return [w.insert(s, x, 0) for s, x in zip(sums, firsts, strict=True)] if rest else sums

    sums = w.loop(0, high, 1, body, [p.load(lanes) for p in places])
    for x, p in zip(sums, places, strict=True):
        p.store(x)
    return w.shared([x.typed for x in (g, planes, table, out, g_step, line, out_step, high)])


def _weight_sum(work: _Work, parts: int) -> LoopText:
    """Return the kernel that adds the sums of all parts of the images, then the lanes of each vector."""
    w = Writer(work.machine)
    lanes, count = work.lanes, work.outputs * len(work.offsets)

    def one(i: Value, _: list[Value]) -> None:
        at = work.slot(w, 0)[w.times(i, lanes)]
        total = at.load(lanes)
        for p in range(1, parts):
            total = w.add(total, at[p * count * lanes].load(lanes))
        work.slot(w, 1)[i].store(w.fold(total, w.add))

    w.loop(w.low, w.high, 1, one)
    return LoopText(w.kernel(), count)
