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

__all__ = ["product_kernel"]


def product_kernel(d: OpenCL, group: Fusion, stored: Sequence[Primitive]) -> Launch:
    """Return the kernel of a group that starts with a product or a convolution."""
    return _Product(d, group, stored).kernel()


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
        self.load_numbers()
        made: Launch = getattr(self, f"_{self.node.op}")()
        return made

    def finish(self, total: Value, index: Sequence[Any]) -> None:
        """Write the elementwise nodes for one element of the product, then all stores."""
        known: dict[Any, Value] = {self.node.id: total}
        domain = self.group.domain if self.node.op != "conv_weight" else self.node.shape
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
        d, t = self.d, self.d.tile
        a, b = self.node.args
        *batch, m, n = self.group.domain if len(self.group.domain) > 1 else self.node.shape
        depth = a.shape[-1]
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
        self._fill("left", a, (t + 1, high), [*outer, "row", "(k + lx)"], ("top_row", m, f"k + lx < {depth}"))
        self._fill(
            "right", b, (t * wide, wide), [*outer, "(k + ly)", "row"], ("left_col", n, f"k + ly < {depth}")
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
        self, name: str, v: View, shape: tuple[int, int], index: Sequence[Any], inside: tuple[str, int, str]
    ) -> None:
        """Write a tile of an operand to the memory of the work-group; 0 outside of the operand.

        ``shape`` has the stride of the tile's rows and the number of elements of each thread; ``inside`` the
        first row (or column), their number, and the condition of the other axis.
        """
        (stride, count), (first, size, other), t = shape, inside, self.d.tile
        mine, place = (
            ("ly", f"(ly + p * {t}) * {stride} + lx")
            if name == "left"
            else ("lx", f"ly * {stride} + lx + p * {t}")
        )
        self.line(self.d.each("p", 0, count))
        self.line(self.d.index("row", f"{first} + {mine} + p * {t}"))
        one = self.w.variable("one", self.w.const(0, self.element))
        self.line(f"if (row < {size} && {other}) {{")
        self.line(f"one = {self.load(v.node, v.offset, at(v.strides, index)).text};")
        self.line("}")
        self.line(self.d.store(name, self.element, place, one.text))
        self.line("}")

    # Convolutions --------------------------------------------------------------------------------------

    def _each_element(self, write: Callable[[str, str, str], None]) -> Launch:
        """Write a kernel with one thread per image, channel and position; ``write`` sums up ``total``."""
        shape = self.group.domain
        count = math.prod(shape)
        self.line(self.d.index("item", "GID(0)"))
        self.line(f"if (item < {count}) {{")
        ix = self.decode("item", [0, 1, 2], shape)
        total = self.w.variable("total", self.w.const(0, self.element))
        write(ix[0], ix[1], ix[2])
        self.finish(total, [ix[0], ix[1], ix[2]])
        self.line("}")
        return self.launch((-(-count // self.d.flat),), (self.d.flat,))

    def _read(self, v: View, shape: Sequence[int], *index: Any) -> Value:
        return self.load(v.node, v.offset, at(row_major(tuple(shape)), index))

    def _window(self, y: str, u: str, axis: int) -> str:
        """Return the position in the image of element ``u`` of the convolution kernel in window ``y``."""
        c = self.conv
        return f"{y} * {c.stride[axis]} + {u} * {c.dilation[axis]} - {c.padding[axis][0]}"

    def _conv(self) -> Launch:
        c, (x, weights) = self.conv, self.node.args
        (high, wide), (kh, kw), columns = c.size, c.kernel, c.windows[1]

        def write(i: str, o: str, p: str) -> None:
            for text in (self.d.each("c", 0, c.c), self.d.each("u", 0, kh), self.d.each("v", 0, kw)):
                self.line(text)
            self.line(self.d.index("y", self._window(f"{p} / {columns}", "u", 0)))
            self.line(self.d.index("z", self._window(f"{p} % {columns}", "v", 1)))
            self.line(f"if (y >= 0 && y < {high} && z >= 0 && z < {wide}) {{")
            a = self._read(x, (c.n, c.c, high, wide), i, "c", "y", "z")
            self.add("total", a, self._read(weights, (c.o, c.c, kh, kw), o, "c", "u", "v"))
            self.line("}}}}")

        return self._each_element(write)

    def _conv_input(self) -> Launch:
        c, (g, weights) = self.conv, self.node.args
        (rows, cols), (kh, kw), (sy, sz) = c.windows, c.kernel, c.stride

        def write(i: str, channel: str, p: str) -> None:
            for text in (self.d.each("o", 0, c.o), self.d.each("u", 0, kh), self.d.each("v", 0, kw)):
                self.line(text)
            self.line(self.d.index("y", f"{p} / {c.size[1]} + {c.padding[0][0]} - u * {c.dilation[0]}"))
            self.line(self.d.index("z", f"{p} % {c.size[1]} + {c.padding[1][0]} - v * {c.dilation[1]}"))
            whole = f"y >= 0 && z >= 0 && y % {sy} == 0 && z % {sz} == 0"
            self.line(f"if ({whole} && y / {sy} < {rows} && z / {sz} < {cols}) {{")
            a = self._read(g, (c.n, c.o, rows, cols), i, "o", f"(y / {sy})", f"(z / {sz})")
            self.add("total", a, self._read(weights, (c.o, c.c, kh, kw), "o", channel, "u", "v"))
            self.line("}}}}")

        return self._each_element(write)

    def _conv_weight(self) -> Launch:
        """Write the gradient of the weights: one work-group per weight, whose threads' sums a tree adds."""
        c, (x, g), wide = self.conv, self.node.args, self.d.group
        rows, cols = c.windows
        self.line(self.d.index("lane", "LID(0)"))
        self.line(self.d.index("item", "WID(0)"))
        ix = self.decode("item", [0, 1, 2, 3], (c.o, c.c, *c.kernel))
        self.w.variable("total", self.w.const(0, self.element))
        self.line(self.d.each("r", "lane", c.n * rows * cols, wide))
        place = self.decode("r", [0, 1, 2], (c.n, rows, cols))
        self.line(self.d.index("y", self._window(place[1], ix[2], 0)))
        self.line(self.d.index("z", self._window(place[2], ix[3], 1)))
        self.line(f"if (y >= 0 && y < {c.size[0]} && z >= 0 && z < {c.size[1]}) {{")
        a = self._read(x, (c.n, c.c, *c.size), place[0], ix[1], "y", "z")
        self.add("total", a, self._read(g, (c.n, c.o, rows, cols), place[0], ix[0], place[1], place[2]))
        self.line("}}")
        sums = Primitive("reduce", (), ("sum", 0), (), self.node.dtype)
        total = self.tree(sums, Value("total", self.element), wide)
        self.line("if (lane == 0) {")
        self.store(self.node, 0, "item", total)
        self.line("}")
        return self.launch((self.node.size,), (wide,))
