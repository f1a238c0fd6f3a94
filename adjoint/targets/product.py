"""Kernels of matrix products and convolutions, with the elementwise nodes behind them.

A work-group computes a tile of the product.  Each thread adds up its elements in one fixed order, so the bits
do not depend on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from adjoint.compiler.emit.conv import Conv
from adjoint.compiler.emit.values import Value, element_of
from adjoint.compiler.lower.graph import Primitive, View, row_major
from adjoint.compiler.schedule.fuse import Fusion, over
from adjoint.targets.body import Body, Launch, at
from adjoint.targets.dialect import OpenCL

__all__ = ["product_kernels"]


_TILES = 64  # work-groups: with fewer, the gradient of the weights of a convolution is made in parts


def product_kernels(d: OpenCL, group: Fusion, stored: Sequence[Primitive]) -> tuple[list[Launch], int]:
    """Return the kernels of a group that starts with a product or a convolution.

    The bytes of temporary memory that they need are returned, too.
    """
    made = _Product(d, group, stored)
    made.load_numbers()
    if made.node.op == "conv_weight":
        return made.weights()
    return [made.kernel()], 0


class _Product(Body):
    """Writes the kernel of a product, and of the elementwise nodes that are fused into it."""

    def __init__(self, d: OpenCL, group: Fusion, stored: Sequence[Primitive]) -> None:
        super().__init__(d, group)
        self.stored = {n.id for n in stored}
        self.node = group.nodes[0]
        self.element = element_of(self.node.dtype)
        if self.node.op != "matmul":
            self.conv = Conv(self.node.dtype, *self.node.params)

    def kernel(self) -> Launch:
        """Write the kernel."""
        made: Launch = getattr(self, f"_{self.node.op}")()
        return made

    def finish(self, total: Value, index: Sequence[Any]) -> None:
        """Write the elementwise nodes for one element of the product, then all stores."""
        known: dict[Any, Value] = {self.node.id: total}
        domain = self.group.domain
        for n in self.group.nodes[1:]:
            values = []
            for a in n.args:
                found = known.get(a.node.id) if a.node.id in self.inside else self.fixed(a)
                if found is None:
                    strides = over(a, domain)
                    assert strides is not None
                    key = a.node.id, strides, a.offset
                    if key not in known:
                        known[key] = self.load(a.node, a.offset, at(strides, index))
                    found = known[key]
                values.append(found)
            known[n.id] = self.compute(n, values)
        for n in self.group.nodes:
            if n.id in self.stored:
                self.store(n, 0, at(row_major(domain), index), known[n.id])

    def add(self, total: str, a: Value, b: Value) -> None:
        """Write ``total += a * b``, rounded once."""
        w, before = self.w, Value(total, self.element)
        if before.floating:
            self.line(f"{total} = fma({a.text}, {b.text}, {total});")
        elif self.element == "i1":
            self.line(f"{total} = {total} || ({a.text} && {b.text});")
        else:
            self.line(f"{total} = {w.add(before, w.mul(a, b)).text};")

    # Matrix products -----------------------------------------------------------------------------------

    def _matmul(self) -> Launch:
        a, b = self.node.args
        *batch, m, n = self.group.domain if len(self.group.domain) > 1 else self.node.shape
        depth = a.shape[-1]

        def reader(v: View, *index: str) -> Callable[[Sequence[str]], None]:
            def read(outer: Sequence[str]) -> None:
                self.line(f"one = {self.load(v.node, v.offset, at(v.strides, [*outer, *index])).text};")

            return read

        return self._tiled(batch, (m, n, depth), reader(a, "row", "inner"), reader(b, "inner", "row"))

    def _tiled(
        self, batch: Sequence[int], sizes: tuple[int, int, int],
        left: Callable[[Sequence[str]], None], right: Callable[[Sequence[str]], None],
    ) -> Launch:  # fmt: skip
        """Write the kernel of products, whose work-groups compute a tile each.

        ``sizes`` are the rows, the columns and the depth.  ``left`` and ``right`` assign an element to "one",
        given the indices of the batch; its row (or column) is "row", the position in the sum "inner".
        """
        d, t, (m, n, depth) = self.d, self.d.tile, sizes
        high, wide = (4 if size > 2 * t else 1 for size in (m, n))  # elements of each thread
        zero = self.w.const(0, self.element).text
        for k, name in enumerate(("lx", "ly")):
            self.line(d.index(name, f"LID({k})"))
        self.line(d.index("left_col", f"WID(0) * {t * wide}"))
        self.line(d.index("top_row", f"WID(1) * {t * high}"))
        self.line(d.index("batch", "WID(2)"))
        axes = list(range(len(batch)))
        ix = self.decode("batch", axes, batch) if axes else {}
        outer = [ix[k] for k in axes]
        self.shared += [("left", self.element, t * high * (t + 1)), ("right", self.element, t * t * wide)]
        self.line(d.private_memory("total", self.element, high * wide))
        self.line(f"{d.each('i', 0, high * wide)} total[i] = {zero}; }}")
        self.line(d.each("k", 0, depth, t))
        self._fill("left", (t + 1, high), "lx", (f"top_row + ly + p * {t}", m, depth), lambda: left(outer))
        self._fill(
            "right", (t * wide, wide), "ly", (f"left_col + lx + p * {t}", n, depth), lambda: right(outer)
        )
        self.line(d.barrier)
        self.line(d.each("j", 0, t))
        self.line(d.each("p", 0, high))
        x = self.w.let(d.load("left", self.element, f"(ly + p * {t}) * {t + 1} + j"), self.element)
        self.line(d.each("q", 0, wide))
        y = self.w.let(d.load("right", self.element, f"j * {t * wide} + lx + q * {t}"), self.element)
        self.add(f"total[p * {wide} + q]", x, y)
        self.line("}}}")
        self.line(d.barrier)
        self.line("}")
        self.line(d.each("p", 0, high))
        self.line(d.each("q", 0, wide))
        self.line(d.index("row", f"top_row + ly + p * {t}"))
        self.line(d.index("col", f"left_col + lx + q * {t}"))
        self.line(f"if (row < {m} && col < {n}) {{")
        total = self.w.let(d.load("total", self.element, f"p * {wide} + q"), self.element)
        self.finish(total, [*outer, "row", "col"])
        self.line("}}}")
        groups = -(-n // (t * wide)), -(-m // (t * high)), math.prod(batch)
        return self.launch(groups, (t, t, 1))

    def _fill(
        self, name: str, shape: tuple[int, int], inner: str, row: tuple[str, int, int],
        write: Callable[[], None],
    ) -> None:  # fmt: skip
        """Write a tile of an operand to the memory of the work-group; 0 outside of the operand.

        ``shape`` has the stride of the tile's rows and the number of elements of each thread; ``inner`` is
        the number of the thread along the sum; ``row`` has the row (or column), their number, and the depth.
        """
        (stride, count), (text, size, depth), t = shape, row, self.d.tile
        place = f"(ly + p * {t}) * {stride} + lx" if name == "left" else f"ly * {stride} + lx + p * {t}"
        self.line(self.d.each("p", 0, count))
        self.line(self.d.index("row", text))
        self.line(self.d.index("inner", f"k + {inner}"))
        one = self.w.variable("one", self.w.const(0, self.element))
        self.line(f"if (row < {size} && inner < {depth}) {{")
        write()
        self.line("}")
        self.line(self.d.store(name, self.element, place, one.text))
        self.line("}")

    # Convolutions --------------------------------------------------------------------------------------

    def _read(self, v: View, shape: Sequence[int], *index: Any) -> None:
        """Assign an element of a contiguous operand to "one"."""
        self.line(f"one = {self.load(v.node, v.offset, at(row_major(tuple(shape)), index)).text};")

    def _indices(self, item: str, lengths: Sequence[int]) -> list[str]:
        """Emit the indices along axes with these lengths, given the number of an element."""
        axes = list(range(len(lengths)))
        found = self.decode(item, axes, lengths)
        return [found[k] for k in axes]

    def _read_image(self, v: View, index: Sequence[str], window: tuple[str, str], at: Sequence[str]) -> None:
        """Assign to "one" the element of an image that a window has at the position ``at`` of the kernel.

        ``index`` are the indices of the image and the channel.
        """
        c = self.conv
        for k, name in enumerate("yz"):
            step, dilation, before = c.stride[k], c.dilation[k], c.padding[k][0]
            self.line(self.d.index(name, f"{window[k]} * {step} + {at[k]} * {dilation} - {before}"))
        self.line(f"if (y >= 0 && y < {c.size[0]} && z >= 0 && z < {c.size[1]}) {{")
        self._read(v, (c.n, c.c, *c.size), *index, "y", "z")
        self.line("}")

    def _summed(
        self, sizes: tuple[int, int, int], left: Callable[[Sequence[str]], None],
        right: Callable[[Sequence[str]], None],
    ) -> Launch:  # fmt: skip
        """Write a product for each image, by tiles if it fills them; otherwise each thread sums one element.

        The parameters are those of ``_tiled``.
        """
        if min(sizes) >= self.d.tile:
            return self._tiled((self.conv.n,), sizes, left, right)
        shape, zero = self.group.domain, self.w.const(0, self.element)
        count = math.prod(shape)
        self.line(self.d.index("item", "GID(0)"))
        self.line(f"if (item < {count}) {{")
        ix = self.decode("item", [0, 1, 2], shape)
        total = self.w.variable("total", zero)
        self.line(self.d.each("inner", 0, sizes[2]))
        first = self.w.variable("first", zero)
        for row, write in ((ix[1], left), (ix[2], right)):
            self.line("{")
            self.line(self.d.index("row", row))
            one = self.w.variable("one", zero)
            write([ix[0]])
            if write is left:
                self.line(f"{first.text} = {one.text};")
            else:
                self.add(total.text, first, one)
            self.line("}")
        self.line("}")
        self.finish(total, [ix[0], ix[1], ix[2]])
        self.line("}")
        return self.launch((-(-count // self.d.flat),), (self.d.flat,))

    def _conv(self) -> Launch:
        c, (x, weights) = self.conv, self.node.args
        sizes = c.o, math.prod(c.windows), c.c * math.prod(c.kernel)

        def right(outer: Sequence[str]) -> None:
            channel, *at = self._indices("inner", (c.c, *c.kernel))
            window = f"row / {c.windows[1]}", f"row % {c.windows[1]}"
            self._read_image(x, [outer[0], channel], window, at)

        return self._summed(sizes, lambda _: self._read(weights, sizes[::2], "row", "inner"), right)

    def _conv_input(self) -> Launch:
        c, (g, weights) = self.conv, self.node.args
        (rows, cols), (sy, sz), taps = c.windows, c.stride, math.prod(c.kernel)

        def left(outer: Sequence[str]) -> None:
            self._read(weights, (c.o, c.c, taps), f"(inner / {taps})", "row", f"(inner % {taps})")

        def right(outer: Sequence[str]) -> None:
            channel, *at = self._indices("inner", (c.o, *c.kernel))
            for k, (name, text) in enumerate((("y", f"row / {c.size[1]}"), ("z", f"row % {c.size[1]}"))):
                text = f"{text} + {c.padding[k][0]} - {at[k]} * {c.dilation[k]}"
                self.line(self.d.index(name, text))
            whole = f"y >= 0 && z >= 0 && y % {sy} == 0 && z % {sz} == 0"
            self.line(f"if ({whole} && y / {sy} < {rows} && z / {sz} < {cols}) {{")
            self._read(g, (c.n, c.o, rows, cols), outer[0], channel, f"(y / {sy})", f"(z / {sz})")
            self.line("}")

        return self._summed((c.c, math.prod(c.size), c.o * taps), left, right)

    def weights(self) -> tuple[list[Launch], int]:
        """Write the gradient of the weights of a convolution; return the bytes of temporary memory, too.

        Where tiles are filled, it is a product in parts, which a second kernel adds.
        """
        c, taps, windows = self.conv, math.prod(self.conv.kernel), math.prod(self.conv.windows)
        m, n, depth = c.o, c.c * taps, c.n * windows
        if min(m, n, depth) < self.d.tile:
            return [self._each_weight()], 0
        tile = 4 * self.d.tile
        parts = max(1, min(depth // (4 * tile), _TILES // (-(-m // tile) * -(-n // tile))))
        size = -(-depth // parts)
        x, g = self.node.args
        own = self.workspace(self.element) if parts > 1 else ""

        def left(outer: Sequence[str]) -> None:
            self.line(self.d.index("at", f"{outer[0]} * {size} + inner"))
            self.line(f"if (at < {depth}) {{")
            self._read(g, (c.n, c.o, windows), f"(at / {windows})", "row", f"(at % {windows})")
            self.line("}")

        def right(outer: Sequence[str]) -> None:
            self.line(self.d.index("at", f"{outer[0]} * {size} + inner"))
            self.line(f"if (at < {depth}) {{")
            channel, *place = self._indices("row", (c.c, *c.kernel))
            image, *window = self._indices("at", (c.n, *c.windows))
            self._read_image(x, [image, channel], (window[0], window[1]), place)
            self.line("}")

        def put(total: Value, index: Sequence[Any]) -> None:
            place = f"row * {n} + col"
            if parts > 1:
                self.line(self.d.store(own, self.element, f"{index[0]} * {m * n} + {place}", total.text))
            else:
                self.store(self.node, 0, place, total)

        self.finish = put  # type: ignore[method-assign]
        first = self._tiled((parts,), (m, n, size), left, right)
        if parts == 1:
            return [first], 0
        return [first, self._added(parts)], parts * self.node.nbytes

    def _added(self, parts: int) -> Launch:
        """Return the kernel that adds the parts of the gradient, in order."""
        b, size = Body(self.d, self.group), self.node.size
        given = b.workspace(self.element)
        b.line(b.d.index("item", "GID(0)"))
        b.line(f"if (item < {size}) {{")
        total = b.w.variable("total", b.w.const(0, self.element))
        b.line(b.d.each("k", 0, parts))
        part = b.w.let(b.d.load(given, self.element, f"k * {size} + item"), self.element)
        b.line(f"total = {b.w.add(total, part).text};")
        b.line("}")
        b.store(self.node, 0, "item", total)
        b.line("}")
        return b.launch((-(-size // b.d.flat),), (b.d.flat,))

    def _each_weight(self) -> Launch:
        """Write the gradient of the weights: one work-group per weight, whose threads' sums a tree adds."""
        c, (x, g), wide = self.conv, self.node.args, self.d.group
        zero = self.w.const(0, self.element)
        self.line(self.d.index("lane", "LID(0)"))
        self.line(self.d.index("item", "WID(0)"))
        ix = self.decode("item", [0, 1, 2, 3], (c.o, c.c, *c.kernel))
        self.w.variable("total", zero)
        self.line(self.d.each("r", "lane", c.n * math.prod(c.windows), wide))
        place = self.decode("r", [0, 1, 2], (c.n, *c.windows))
        one = self.w.variable("one", zero)
        self._read(g, (c.n, c.o, *c.windows), place[0], ix[0], place[1], place[2])
        first = self.w.let(one.text, self.element)
        self.line(f"one = {zero.text};")
        self._read_image(x, [place[0], ix[1]], (place[1], place[2]), [ix[2], ix[3]])
        self.add("total", first, one)
        self.line("}")
        sums = Primitive("reduce", (), ("sum", 0), (), self.node.dtype)
        total = self.tree(sums, Value("total", self.element), wide)
        self.line("if (lane == 0) {")
        self.store(self.node, 0, "item", total)
        self.line("}")
        return self.launch((self.node.size,), (wide,))
