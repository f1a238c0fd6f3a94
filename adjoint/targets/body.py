"""The text of one kernel of a device while it is written, and the description of the finished kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adjoint.compiler.emit.elementwise import apply, combine
from adjoint.compiler.emit.values import Value, element_of
from adjoint.compiler.lower.graph import Primitive, View
from adjoint.compiler.schedule.fuse import Fusion
from adjoint.compiler.schedule.kernel import Address
from adjoint.targets.dialect import OpenCL

__all__ = ["Body", "Launch", "at"]


@dataclass(slots=True, eq=False)
class Launch:
    """A kernel: its text, its slots, and the numbers of work-groups and of their threads along each axis."""

    text: str
    slots: list[Address]
    groups: tuple[int, ...]
    sizes: tuple[int, ...]
    what: str
    workspace: tuple[int, int] = (0, 0)
    made: Any = None  # the ``Body`` that has written it
    unless_same: bool = False  # whether it is not needed if its first two slots are the same memory

    @property
    def length(self) -> int:
        """The number of work-groups."""
        return math.prod(self.groups)


def at(strides: Sequence[int], index: Sequence[Any]) -> str:
    """Return the expression of a position in memory."""
    parts = [f"{i} * {s}" if s != 1 else str(i) for s, i in zip(strides, index, strict=True) if s]
    return " + ".join(parts) or "0"


class Body:
    """The text of a kernel while it is written: slots, numbers, loads and stores."""

    def __init__(self, dialect: OpenCL, group: Fusion) -> None:
        self.d, self.w, self.group = dialect, dialect.writer(), group
        self.inside = {n.id: n for n in group.nodes}
        self.slots: list[Address] = []
        self.elements: list[str] = []
        self.keys: dict[tuple[int, int], int] = {}
        self.shared: list[tuple[str, str, int]] = []  # memory of the work-group: name, type, count
        self.numbers: dict[int, Value] = {}

    def line(self, text: str) -> None:
        """Add a statement."""
        self.w.line(text)

    def slot(self, node: Primitive, offset: int = 0) -> str:
        """Return the name of the memory of a node, ``offset`` elements after its start."""
        key = node.id, offset
        if key not in self.keys:
            self.keys[key] = len(self.slots)
            self.slots.append(Address(node, offset * node.width))
            self.elements.append(element_of(node.dtype))
        return f"b{self.keys[key]}"

    def workspace(self, element: str, offset: int = 0) -> str:
        """Return the name of temporary memory."""
        self.slots.append(Address(None, offset))
        self.elements.append(element)
        return f"b{len(self.slots) - 1}"

    def load(self, node: Primitive, offset: int, place: str) -> Value:
        """Emit a load of an element of a node."""
        element = element_of(node.dtype)
        return self.w.let(self.d.load(self.slot(node, offset), element, place), element)

    def store(self, node: Primitive, offset: int, place: str, value: Value) -> None:
        """Emit a store of an element of a node."""
        self.line(self.d.store(self.slot(node, offset), value.element, place, value.text))

    # Operands ------------------------------------------------------------------------------------------

    def fixed(self, a: View) -> Value | None:
        """Return an operand that is one number for the whole kernel; None if it is not."""
        number = a.scalar()
        if number is not None:
            return self.w.const(number, element_of(a.dtype))
        return self.number(a.node) if a.node.id in self.group.numbers else None

    def number(self, node: Primitive) -> Value:
        """Emit the value of a one-element node that each thread computes at the start of the kernel."""
        if node.id not in self.numbers:
            values = []
            for a in node.args:
                found = self.fixed(a)
                values.append(self.load(a.node, a.offset, "0") if found is None else found)
            self.numbers[node.id] = self.compute(node, values)
        return self.numbers[node.id]

    def load_numbers(self) -> None:
        """Emit all numbers that the group reads, before any loop."""
        for n in self.group.nodes:
            for a in n.args:
                if a.node.id in self.group.numbers:
                    self.number(a.node)

    def compute(self, n: Primitive, values: Sequence[Value]) -> Value:
        """Emit an elementwise node, given the values of its operands."""
        if n.op == "gather":
            slot, element = self.slot(n.args[1].node, n.args[1].offset), element_of(n.dtype)
            return self.w.let(self.d.load(slot, element, self.d.to_index(values[0])), element)
        given = n.args[1 if n.op == "where" else 0].dtype if n.args else n.dtype
        return apply(self.w, n.op, given, n.dtype, *values)

    def decode(self, item: str, axes: Sequence[int], lengths: Sequence[int]) -> dict[int, str]:
        """Emit the index along each of ``axes``, given the number of an iteration over all of them."""
        rest, found = item, {}
        for a in reversed(axes):
            found[a] = f"({rest}) % {lengths[a]}" if a != axes[0] else rest
            rest = f"({rest}) / {lengths[a]}"
        for a in axes:
            name = self.w.fresh(f"x{a}_")
            self.line(self.d.index(name, found[a]))
            found[a] = name
        return found

    def tree(self, n: Primitive, mine: Value, wide: int, apart: int = 1) -> Value:
        """Emit the combination of a value of each thread of a work-group by halving: a fixed order.

        If ``apart`` is larger than 1, there is a result for each value of ``lane % apart``.
        """
        element = mine.element
        name = f"tree_{element}"
        if all(each[0] != name for each in self.shared):
            self.shared.append((name, element, self.d.group))
        self.line(self.d.barrier)
        self.line(self.d.store(name, element, "lane", mine.text))
        self.line(self.d.barrier)
        half = wide // 2
        while half >= apart:
            self.line(f"if (lane < {half}) {{")
            a, b = (self.w.let(self.d.load(name, element, p), element) for p in ("lane", f"lane + {half}"))
            self.line(self.d.store(name, element, "lane", combine(self.w, n, a, b).text))
            self.line("}")
            self.line(self.d.barrier)
            half //= 2
        return self.w.let(self.d.load(name, element, "0" if apart == 1 else f"lane % {apart}"), element)

    def launch(self, groups: Sequence[int], sizes: Sequence[int]) -> Launch:
        """Return the finished kernel."""
        text = self.d.function(self.w, self.elements, self.shared, groups, sizes)
        what = f"{self.group.kind} {' '.join(n.op for n in self.group.nodes[:4])}"
        return Launch(text, self.slots, tuple(groups), tuple(sizes), what, made=self)
