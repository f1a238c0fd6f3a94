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
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from adjoint.compiler.emit.gemm import Epilogue, Kernel, Kernels, tile_text
from adjoint.compiler.emit.text import Writer
from adjoint.compiler.emit.values import Index, Value, element_of, size_of
from adjoint.compiler.machine import Machine

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
    """The two kernels that compute the gradient with respect to the weights.

    ``main`` sums over parts of the images and writes ``partial`` bytes to slot RESULT.  ``last`` reads these
    sums from slot 0, adds the parts, and writes the result to slot 1.  ``scratch`` is the number of bytes
    that each thread needs.
    """

    main: Kernel
    last: Kernel
    partial: int
    scratch: int


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

    def copy(self, w: Writer, lanes: int, source: Value, target: Value, around: Value) -> None:
        """Emit code that copies the image at ``source`` to planes at ``target``, with padding ``around``."""
        element, (high, wide) = self.element, self.size
        total = self.channels * self.plane
        fill = w.splat(around, lanes)
        w.loop(0, -(-total // lanes) * lanes, lanes, lambda i, _: w.store(fill, w.at(target, element, i)))
        rows = self._kept(self.first[0], self.spread[0], high, self.rows)

        def row(r: Value, _: list[Value]) -> None:
            channel, y = w.divide(r, rows[1] - rows[0])
            y = w.plus(y, rows[0])
            at = w.at(source, element, w.plus(w.times(channel, high * wide), w.times(y, wide)))
            line = w.plus(w.times(y, self.spread[0]), self.first[0])
            to = w.at(target, element, w.plus(w.times(channel, self.plane), w.times(line, self.row)))
            self._copy_row(w, lanes, at, to)

        w.loop(0, self.channels * (rows[1] - rows[0]), 1, row)

    @staticmethod
    def _kept(first: int, spread: int, count: int, room: int) -> tuple[int, int]:
        """Return (start, stop), the range of the indices i < ``count`` whose position is inside a row.

        The position of index i is ``first`` + i · ``spread``; it is inside if it is from 0 to ``room`` - 1.
        """
        kept = [i for i in range(count) if 0 <= first + i * spread < room]
        return (kept[0], kept[-1] + 1) if kept else (0, 0)

    def _copy_row(self, w: Writer, lanes: int, at: Value, to: Value) -> None:
        element, first, spread = self.element, self.first[1], self.spread[1]
        start, stop = self._kept(first, spread, self.size[1], self.width * self.phases)
        if self.phases == 1 and spread == 1:
            for offset, n, mask in w.pieces(stop - start, lanes):
                x = w.load(w.at(at, element, start + offset), element, n, mask)
                w.store(x, w.at(to, element, first + start + offset), mask)
            return

        def one(i: Value, _: list[Value]) -> None:
            place = w.plus(w.times(i, spread), first)
            x, phase = w.divide(place, self.phases)
            w.store(
                w.load(w.at(at, element, i), element),
                w.at(to, element, w.plus(w.times(phase, self.width), x)),
            )

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
    """The sizes of a convolution: each result is a sum over k, for one window and one output channel.

    k counts the pairs of a channel and an offset in the convolution kernel.
    """

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
        return self.machine.lanes(np.float32 if self.element == "float" else np.float64)


def _work(machine: Machine, spec: Conv, planes: _Planes, outputs: int) -> _Work:
    (kh, kw), (dh, dw) = spec.kernel, spec.dilation
    offsets = [
        planes.place(c, y * dh, x * dw) for c in range(planes.channels) for y in range(kh) for x in range(kw)
    ]
    return _Work(machine, planes, outputs, spec.windows, offsets, spec.stride[0] * planes.row)


def _own_planes(w: Writer, work: _Work, image: Index, around: Value | None = None) -> Value:
    """Emit code that copies the image with index ``image`` into this thread's planes; return their address.

    The padding gets the value ``around``, by default 0.  If the planes equal the image, nothing is copied.
    """
    planes = work.planes
    source = w.at(w.slot(IMAGES), work.element, w.times(image, planes.channels * math.prod(planes.size)))
    if planes.is_image:
        return source
    target = w.at(w.slot(SCRATCH), "i8", w.times(w.thread, planes.bytes))
    planes.copy(w, work.lanes, source, target, around or w.const(0.0, work.element))
    return target


def _correlation(work: _Work, epilogue: Epilogue | None, images: int, exact: bool = False) -> Kernel:
    """Return the kernel that computes one matrix product per image; slot KERNELS has a matrix (outputs, k).

    ``epilogue`` emits the nodes that are fused into the product, and ``images`` is the number of images.  If
    ``exact`` is true, the padding is marked by a special NaN, and products with it are left out if the matrix
    contains an infinity or NaN.  If the matrix is finite, padding with zeros is faster and gives the same
    result.
    """
    w = Writer(work.machine)
    element, lanes, depth = work.element, work.lanes, len(work.offsets)
    high, wide = work.windows
    table = w.table(work.offsets)
    most = 8 if work.machine.registers == 32 else 6 if work.machine.width else 4
    panels = -(-work.outputs // most)
    cuts = [work.outputs * p // panels for p in range(panels + 1)]
    finite = around = None
    if exact:
        finite = _all_finite(w, work, w.slot(KERNELS), work.outputs * depth)
        around = w.select(finite, w.const(0.0, element), _missing(w, element))

    def one(image: Value, _: list[Value]) -> None:
        planes = _own_planes(w, work, image, around)
        out = w.at(w.slot(RESULT), element, w.times(image, work.outputs * high * wide))

        def line(y: Value, _: list[Value]) -> None:
            base = w.at(planes, element, w.times(y, work.step))
            for low, top in itertools.pairwise(cuts):
                rows = top - low
                kernels = w.at(w.slot(KERNELS), element, low * depth)

                def columns(
                    first: Index, n: int, rows: int = rows, low: int = low, kernels: Value = kernels
                ) -> None:
                    place = w.plus(w.times(y, wide), first)
                    to = w.at(out, element, w.plus(low * high * wide, place))
                    text = tile_text(work.machine, element, rows, n, not work.planes.is_image, True)
                    steps = [w.const(x, "i64") for x in (depth, 1)]
                    ends = [w.const(x, "i64") for x in (high * wide, depth)]
                    given = kernels, w.at(base, element, first), to, *steps, table, *ends
                    if finite is None:
                        w.use(text, *given)
                    else:
                        sizes = [w.const(x, "i64") for x in (rows, n)]
                        with w.when(finite):
                            w.use(text, *given)
                        with w.when(w.invert(finite)):
                            w.use(_exact_text(work.machine, element), *given, *sizes)
                    if epilogue is not None:
                        _finish(w, work, epilogue, image, low, rows, place, n, to)

                full, rest = divmod(wide, 2 * lanes)

                def pair(j: Value, _: list[Value], columns: Callable[..., None] = columns) -> None:
                    columns(w.times(j, 2 * lanes), 2 * lanes)

                w.loop(0, full, 1, pair)
                if rest:
                    columns(full * 2 * lanes, rest)

        w.loop(0, high, 1, line)

    w.loop(w.low, w.high, 1, one)
    return Kernel(w.kernel(), images)


def _all_finite(w: Writer, work: _Work, start: Value, count: int) -> Value:
    """Emit a test whether all of the ``count`` numbers at the address ``start`` are finite."""
    element, lanes = work.element, work.lanes

    def one(i: Value, sums: list[Value]) -> list[Value]:
        return [w.fma(w.load(w.at(start, element, i), element, sums[0].lanes), 0.0, sums[0])]

    whole = count // lanes * lanes
    (sums,) = w.loop(0, whole, lanes, one, [w.const(0.0, element, lanes)])
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
    a, b, c, table = (Value(f"%{n}", "ptr") for n in ("a", "b", "c", "bk"))
    a_row, c_row, depth, rows, columns = (Value(f"%{n}", "i64") for n in ("ar", "cr", "k", "rows", "columns"))
    kind = "i32" if element == "float" else "i64"
    missing = w.bitcast(_missing(w, element), kind)

    def sum_of(i: Value, j: Value) -> Value:
        def step(k: Value, sums: list[Value]) -> list[Value]:
            x = w.load(w.at(w.at(b, element, j), element, w.load(w.at(table, "i64", k), "i64")), element)
            y = w.load(w.at(a, element, w.plus(w.times(i, a_row), k)), element)
            there = w.compare("ne", w.bitcast(x, kind), missing)
            return [w.select(there, w.fma(x, y, sums[0]), sums[0])]

        return w.loop(0, depth, 1, step, [w.const(0.0, element)])[0]

    def row(i: Value, _: list[Value]) -> None:
        to = w.at(c, element, w.times(i, c_row))
        w.loop(0, columns, 1, lambda j, _: w.store(sum_of(i, j), w.at(to, element, j)))

    w.loop(0, rows, 1, row)
    names = [*(f"ptr %{n}" for n in "abc"), "i64 %ar", "i64 %ak", "ptr %bk", "i64 %cr", "i64 %k"]
    return w.shared([*names, "i64 %rows", "i64 %columns"])


def _finish(
    w: Writer,
    work: _Work,
    epilogue: Epilogue,
    image: Index,
    low: int,
    rows: int,
    place: Index,
    n: int,
    to: Value,
) -> None:
    """Emit the epilogue of a tile: the fused nodes, applied to each number of the tile.

    The tile belongs to the image with index ``image``.  It has ``rows`` output channels, from ``low``, and
    ``n`` windows, from ``place``.  Its address is ``to``.
    """
    step = math.prod(work.windows)

    def body(inner: Writer, given: list[Value]) -> None:
        _, at, item, first, count, position = given

        def one(i: Value, _: list[Value]) -> None:
            for offset, lanes, mask in inner.pieces(n, work.lanes):
                out = inner.at(at, work.element, inner.plus(inner.times(i, step), offset))
                x = inner.load(out, work.element, lanes, mask)
                value = epilogue(inner, item, inner.plus(first, i), inner.plus(position, offset), x, mask)
                if value is not None:
                    inner.store(value, out, mask)

        inner.loop(0, count, 1, one)

    names = [("ptr", "args"), ("ptr", "at"), *(("i64", n) for n in ("item", "first", "count", "position"))]
    w.define(f"finish_{n}", names, body)
    numbers = [w.index_value(x) for x in (image, low, rows, place)]
    w.run(f"finish_{n}", Value("%args", "ptr"), to, *numbers)


def conv(machine: Machine, spec: Conv, epilogue: Epilogue | None = None) -> Kernels:
    """Return the kernels of a convolution.

    ``epilogue`` emits the nodes that are fused into the convolution, given the image, the channel and the
    position.
    """
    planes = _planes_of(spec, element_of(spec.dtype))
    work = _work(machine, spec, planes, spec.o)
    return Kernels(None, _correlation(work, epilogue, spec.n), 0, 0 if planes.is_image else planes.bytes)


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
    main = _correlation(work, epilogue, spec.n, not planes.is_image)
    return Kernels(
        _turned_kernels(machine, spec, element), main, packed, 0 if planes.is_image else planes.bytes
    )


def _turned_kernels(machine: Machine, spec: Conv, element: str) -> Kernel:
    """Return the kernel that copies weights (o, c, *kernel) to (c, o, *kernel), rotated by 180 degrees."""
    w, area = Writer(machine), math.prod(spec.kernel)

    def one(c: Value, _: list[Value]) -> None:
        def output(o: Value, _: list[Value]) -> None:
            at = w.at(w.slot(0), element, w.times(w.plus(w.times(o, spec.c), c), area))
            to = w.at(w.slot(1), element, w.times(w.plus(w.times(c, spec.o), o), area))

            def number(k: Value, _: list[Value]) -> None:
                w.store(w.load(w.at(at, element, w.sub(area - 1, k)), element), w.at(to, element, k))

            w.loop(0, area, 1, number)

        w.loop(0, spec.o, 1, output)

    w.loop(w.low, w.high, 1, one)
    return Kernel(w.kernel(), spec.c)


# The gradient of kernels --------------------------------------------------------------------------


def conv_weight(machine: Machine, spec: Conv) -> Weights:
    """Return the kernels that compute the gradient of a convolution with respect to its weights.

    Slot IMAGES has the images, slot KERNELS the gradient of the result.  The sums of a tile (some outputs
    times some k) are vectors along a row of windows; the lanes of each vector are added last.
    """
    element = element_of(spec.dtype)
    planes = _planes_of(spec, element)
    work = _work(machine, spec, planes, spec.o)
    sums = spec.o * len(work.offsets) * work.lanes * size_of(element)
    parts = max(1, min(PARTS, spec.n, PART_BYTES // max(1, sums)))
    main, last = _weight_parts(work, spec.n, parts), _weight_sum(work, parts)
    return Weights(main, last, parts * sums, 0 if planes.is_image else planes.bytes)


def _weight_parts(work: _Work, images: int, parts: int) -> Kernel:
    """Return the kernel that computes, for each part of the images, the sums of the weight gradient.

    An iteration computes one part for one panel, which is a range of output channels.
    """
    w = Writer(work.machine)
    element, lanes, depth = work.element, work.lanes, len(work.offsets)
    most = 6 if work.machine.registers == 32 else 3
    panels = -(-work.outputs // most)
    rows, larger = divmod(work.outputs, panels)  # the first ``larger`` panels have one output more

    def one(q: Value, _: list[Value]) -> None:
        part, panel = w.divide(q, panels)
        first = w.plus(w.times(panel, rows), w.least(panel, larger))
        place = w.plus(w.times(part, work.outputs), first)
        sums = w.at(w.slot(RESULT), element, w.times(place, depth * lanes))
        low = w.divide(w.times(part, images), parts)[0]
        high = w.divide(w.times(w.plus(part, 1), images), parts)[0]
        fewer = w.compare("sge", w.index_value(panel), larger)
        if larger:
            with w.when(w.invert(fewer)):
                _weight_panel(w, work, rows + 1, first, sums, low, high)
        with w.when(fewer):
            _weight_panel(w, work, rows, first, sums, low, high)

    w.loop(w.low, w.high, 1, one)
    return Kernel(w.kernel(), parts * panels)


def _weight_panel(
    w: Writer, work: _Work, rows: int, first: Index, sums: Value, low: Index, high: Index
) -> None:
    """Emit code that sums the weight gradient of some output channels over the images ``low`` to ``high``.

    There are ``rows`` channels, from ``first``.  The sums are stored at the address ``sums``.
    """
    element, lanes, depth, size = work.element, work.lanes, len(work.offsets), math.prod(work.windows)
    columns = 4 if work.machine.registers == 32 else 3
    table, zero = w.table(work.offsets), w.const(0.0, element, lanes)
    w.loop(0, rows * depth * lanes, lanes, lambda i, _: w.store(zero, w.at(sums, element, i)))

    def image(n: Value, _: list[Value]) -> None:
        planes = _own_planes(w, work, n)
        g = w.at(w.slot(KERNELS), element, w.times(w.plus(w.times(n, work.outputs), first), size))

        def tile(k: Index, count: int) -> None:
            text = _weight_tile(work.machine, element, rows, count, work.windows[1])
            numbers = [w.const(x, "i64") for x in (size, work.step, depth * lanes, work.windows[0])]
            to = w.at(sums, element, w.times(k, lanes))
            w.use(text, g, planes, w.at(table, "i64", k), to, *numbers)

        full, rest = divmod(depth, columns)
        w.loop(0, full * columns, columns, lambda k, _: tile(k, columns))
        if rest:
            tile(full * columns, rest)

    w.loop(low, high, 1, image)


@functools.cache
def _weight_tile(machine: Machine, element: str, rows: int, columns: int, wide: int) -> str:
    """Return the text of a function that adds to one tile of ``rows`` × ``columns`` sums.

    Its parameters are (g, planes, offsets, sums, output stride of g, row stride of the planes, output stride
    of the sums, number of rows).  ``wide`` is the number of windows in a row.
    """
    w = Writer(machine)
    lanes = machine.lanes(np.float32 if element == "float" else np.float64)
    g, planes, table, out = (Value(f"%{n}", "ptr") for n in ("g", "planes", "table", "out"))
    g_step, line, out_step, high = (Value(f"%{n}", "i64") for n in ("gs", "line", "os", "high"))
    at_g = [w.at(g, element, w.times(i, g_step)) for i in range(rows)]
    at_x = [w.at(planes, element, w.load(w.at(table, "i64", j), "i64")) for j in range(columns)]
    places = [
        w.at(w.at(out, element, w.times(i, out_step)), element, j * lanes)
        for i in range(rows)
        for j in range(columns)
    ]
    full = wide // lanes
    rest = wide - full * lanes

    def step(g_at: Index, x_at: Index, n: int, mask: Value | None, sums: list[Value]) -> list[Value]:
        left = [w.load(w.at(p, element, g_at), element, n, mask) for p in at_g]
        right = [w.load(w.at(p, element, x_at), element, n, mask) for p in at_x]
        return [w.fma(left[i], right[j], sums[i * columns + j]) for i in range(rows) for j in range(columns)]

    def body(y: Value, carried: list[Value]) -> list[Value]:
        g_row, x_row = w.times(y, wide), w.mul(y, line)
        sums = list(carried)
        for k in range(full):
            sums = step(w.plus(g_row, k * lanes), w.plus(x_row, k * lanes), lanes, None, sums)
        if rest:
            sums = _with_rest(
                w, step, w.plus(g_row, full * lanes), w.plus(x_row, full * lanes), rest, lanes, sums
            )
        return sums

    sums = w.loop(0, high, 1, body, [w.load(p, element, lanes) for p in places])
    for x, p in zip(sums, places, strict=True):
        w.store(x, p)
    names = [f"ptr %{n}" for n in ("g", "planes", "table", "out")]
    return w.shared([*names, *(f"i64 %{n}" for n in ("gs", "line", "os", "high"))])


def _with_rest(
    w: Writer, step: Any, g_at: Index, x_at: Index, rest: int, lanes: int, sums: list[Value]
) -> list[Value]:
    """Emit the addition of the ``rest`` numbers after the last full vector of a row to ``sums``.

    The numbers are added with a mask, or one by one into the first lane if the processor has no masks.
    ``step`` emits one addition; ``g_at`` and ``x_at`` are the offsets of the two factors.  Return the new
    sums.
    """
    if w.machine.masks:
        mask = w.constants([int(k < rest) for k in range(lanes)], "i1")
        found: list[Value] = step(g_at, x_at, lanes, mask, sums)
        return found
    firsts = [w.extract(s, 0) for s in sums]
    for k in range(rest):
        firsts = step(w.plus(g_at, k), w.plus(x_at, k), 1, None, firsts)
    return [w.insert(s, x, 0) for s, x in zip(sums, firsts, strict=True)]


def _weight_sum(work: _Work, parts: int) -> Kernel:
    """Return the kernel that adds the sums of all parts of the images, then the lanes of each vector."""
    w = Writer(work.machine)
    element, lanes, count = work.element, work.lanes, work.outputs * len(work.offsets)

    def one(i: Value, _: list[Value]) -> None:
        at = w.at(w.slot(0), element, w.times(i, lanes))
        total = w.load(at, element, lanes)
        for p in range(1, parts):
            total = w.add(total, w.load(w.at(at, element, p * count * lanes), element, lanes))
        w.store(w.fold(total, w.add), w.at(w.slot(1), element, i))

    w.loop(w.low, w.high, 1, one)
    return Kernel(w.kernel(), count)
