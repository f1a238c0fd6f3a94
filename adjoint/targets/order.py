"""Kernels that sort: each finds the places of elements, so no thread waits for another.

The first kernel sorts blocks by counting: each thread counts the elements of its block that come before its
own.  Each further kernel merges pairs of sorted blocks: each thread finds by bisection how many elements of
the other block come before its own.  Equal elements keep their order, and NaN comes last.
"""

from __future__ import annotations

from collections.abc import Callable

from adjoint.compiler.emit.values import Value, element_of
from adjoint.compiler.lower.graph import Primitive, View
from adjoint.compiler.schedule.fuse import Fusion
from adjoint.targets.body import Body, Launch
from adjoint.targets.dialect import OpenCL

__all__ = ["order_kernels"]


def order_kernels(
    d: OpenCL, group: Fusion, keys: View, length: int, out: Primitive | None
) -> tuple[list[Launch], int, int]:
    """Return the kernels that write the indices which sort the rows of ``keys``, contiguous in memory.

    The indices are written to the node ``out``, or as int32 to temporary memory if it is None.  The bytes
    of temporary memory are returned, too, and the offset of the indices there.
    """
    widths, size = [], d.group
    while size < length:
        widths.append(size)
        size *= 2
    space = 4 * keys.size
    offsets = [0, space]
    found = []
    for n, width in enumerate([0, *widths]):
        last = n == len(widths)
        b = _Order(d, group, keys, length)
        found.append(b.sorted(width, (offsets[1 - n % 2], offsets[n % 2]), out if last else None))
    used = len(widths) if out is not None else len(widths) + 1
    return found, space * min(used, 2), offsets[len(widths) % 2]


class _Order(Body):
    """Writes a kernel with one thread per element."""

    def __init__(self, d: OpenCL, group: Fusion, keys: View, length: int) -> None:
        super().__init__(d, group)
        self.given, self.length = keys, length
        self.element = element_of(keys.dtype)

    def sorted(self, width: int, spaces: tuple[int, int], out: Primitive | None) -> Launch:
        """Write the kernel that merges blocks of ``width``, or that sorts small blocks if it is 0."""
        d, count = self.d, self.given.size
        given = self.workspace("i32", spaces[0]) if width else ""
        to = self.workspace("i32", spaces[1]) if out is None else self.slot(out)
        kind = "i32" if out is None else element_of(out.dtype)
        self.line(d.index("item", "GID(0)"))
        self.line(f"if (item < {count}) {{")
        self.line(d.index("i", f"item % {self.length}"))
        self.line(d.index("base", "item - i"))

        def put(place: str, index: str) -> None:
            value = self.w.convert(Value(index, "i32"), kind)
            self.line(d.store(to, kind, f"base + {place}", value.text))

        if width:
            self._merge(width, given, put)
        else:
            self._count(put)
        self.line("}")
        return self.launch((-(-count // d.flat),), (d.flat,))

    def _key(self, index: str) -> Value:
        return self.load(self.given.node, self.given.offset, f"base + {index}")

    def _less(self, a: Value, b: Value) -> Value:
        w, kind = self.w, self.given.dtype.kind
        if kind != "f":
            return w.compare("slt" if kind == "i" else "ult", a, b)
        last = w.bits("and", w.compare("uno", b, b), w.compare("ord", a, a))
        return w.bits("or", w.compare("olt", a, b), last)

    def _count(self, put: Callable[[str, str], None]) -> None:
        """Write the place of an element in its block."""
        d, size = self.d, self.d.group
        self.line(d.index("start", f"i - i % {size}"))
        self.line(d.variable("stop", "i32", f"start + {size}"))
        self.line(f"if (stop > {self.length}) {{ stop = {self.length}; }}")
        mine = self._key("i")
        self.line(d.variable("place", "i32", "start"))
        self.line(d.each("j", "start", "stop"))
        other = self._key("j")
        before, after = self._less(other, mine), self._less(mine, other)
        self.line(f"if ({before.text} || (!{after.text} && j < i)) {{ place += 1; }}")
        self.line("}")
        put("place", "i")

    def _merge(self, width: int, given: str, put: Callable[[str, str], None]) -> None:
        """Write the place of an element in the block that two sorted blocks become."""
        d = self.d
        index = self.w.let(d.load(given, "i32", "item"), "i32")
        mine = self._key(index.text)
        for name, text in (("first", f"i - i % {2 * width}"), ("middle", f"first + {width}")):
            self.line(d.index(name, text))
        self.line(d.variable("low", "i32", "middle"))  # the other block, in which the place is searched
        self.line(d.variable("high", "i32", f"middle + {width}"))
        self.line(f"if (high > {self.length}) {{ high = {self.length}; }}")
        self.line(d.variable("place", "i32", "i - middle"))
        self.line("if (i >= middle) { low = first; high = middle; place = i - middle; }")
        self.line(d.each("step", 0, width.bit_length()))
        self.line("if (low < high) {")
        self.line(d.index("mid", "(low + high) / 2"))
        other = self._key(self.w.let(d.load(given, "i32", "base + mid"), "i32").text)
        before, after = self._less(other, mine), self._less(mine, other)
        goes = f"(i < middle && {before.text}) || (i >= middle && !{after.text})"
        self.line(f"if ({goes}) {{ low = mid + 1; }} else {{ high = mid; }}")
        self.line("}}")
        put("low + place", index.text)
