"""Kernels of elementwise nodes and reductions.

Every sum has a fixed order: the threads of a work-group add every 256th element of a row, then a tree adds
their sums; short rows and columns are summed by one thread.  There are no atomics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from adjoint.compiler.emit.elementwise import combine, neutral
from adjoint.compiler.emit.nest import Nest, Place
from adjoint.compiler.emit.values import Value, element_of, size_of
from adjoint.compiler.lower.graph import Primitive
from adjoint.compiler.schedule.fuse import FULL, KEPT, Fusion
from adjoint.targets.body import Body, Launch, at
from adjoint.targets.dialect import OpenCL

__all__ = ["loop_kernel"]


def loop_kernel(
    d: OpenCL, group: Fusion, stored: Sequence[Primitive], places: dict[int, Place] | None = None,
    whole: bool = False,
) -> Launch:  # fmt: skip
    """Return the kernel of a group that writes ``stored`` nodes, some of them to the positions ``places``.

    If ``whole`` is true, all work-groups that sum rows have the same size.
    """
    return _Loop(d, group, stored, places or {}, whole).kernel()


class _Loop(Nest, Body):
    """Writes the kernel of a group of elementwise nodes and reductions."""

    def __init__(
        self, d: OpenCL, group: Fusion, stored: Sequence[Primitive], places: dict[int, Place], whole: bool
    ) -> None:
        self.whole = whole
        Body.__init__(self, d, group)
        Nest.__init__(self, self.w.machine, group, stored, places)
        self.kept: dict[int, Value] = {}
        self.scratch: dict[int, str] = {}  # by the id of a node: memory of the work-group with its saved row

    def kernel(self) -> Launch:
        """Write the kernel."""
        self.load_numbers()
        axes = [k for k in range(len(self.lengths)) if k != self.reduced]
        items = math.prod(self.lengths[k] for k in axes)
        if self.reduced is not None:
            length = self.lengths[self.reduced]
            if self.group.chunks or (length > self.d.short and self._are_rows(self.reduced)):
                return self._by_groups(axes, items, length)
            near = self._near_columns(items, length)
            if near:
                return self._by_columns(axes, items, length, near)
            if length > 8 * items:
                return self._by_groups(axes, items, length)
        self.line(self.d.index("item", "GID(0)"))
        self.line(f"if (item < {items}) {{")
        self.ix = self.decode("item", axes, self.lengths)
        if self.reduced is None:
            self._iteration(0, {})
        else:
            self._stages(self.d.each("r", 0, self.lengths[self.reduced]), 1)
        self.line("}")
        return self.launch((-(-items // self.d.flat),), (self.d.flat,))

    def _are_rows(self, reduced: int) -> bool:
        """Return whether most arrays are contiguous along the axis that is reduced."""
        read = [p.strides for p in (*self.access.values(), *self.target.values()) if p.strides[reduced]]
        along = [sum(s[k] == 1 for s in read) for k in range(len(self.lengths))]
        return along[reduced] == max(along)

    def _near_columns(self, items: int, length: int) -> int:
        """Return how many columns a work-group sums, with several threads for each; 0 for no such group."""
        near = self.d.group // 2
        while near > 4 and (items * self.d.group // near < self.d.busy or items % near):
            near //= 2
        short = length < 4 * self.d.group // near or items >= self.d.busy
        return 0 if short or items % near else near

    def _by_columns(self, axes: Sequence[int], items: int, length: int, near: int) -> Launch:
        """Write a kernel whose work-groups sum ``near`` columns each, with neighbours in each row."""
        wide = self.d.group
        self.line(self.d.index("lane", "LID(0)"))
        self.line(self.d.index("item", f"WID(0) * {near} + lane % {near}"))
        self.ix = self.decode("item", axes, self.lengths)
        self._stages(self.d.each("r", f"lane / {near}", length, wide // near), wide, near)
        return self.launch((items // near,), (wide,))

    def _by_groups(self, axes: Sequence[int], items: int, length: int) -> Launch:
        """Write a kernel whose work-groups reduce a row each; with partial sums, the rows of a chunk."""
        wide = min(self.d.group, 1 << (length - 1).bit_length()) if length else 1
        wide = self.d.group if self.whole else wide
        groups = self.group.chunks or items
        self.line(self.d.index("lane", "LID(0)"))
        self.line(self.d.index("chunk", "WID(0)"))
        self._save_rows(length)
        rows = self.d.each("r", "lane", length, wide)
        partial = [n for n in self.group.nodes if n.op == "partial"]
        if partial:
            self.line(rows)
            for n in partial:
                self._put_partial(n, self.w.const(neutral(n), element_of(n.dtype)))
            self.line("}")
        self.line(self.d.each("item", f"chunk * {items} / {groups}", f"(chunk + 1) * {items} / {groups}"))
        self.ix = self.decode("item", axes, self.lengths)
        self._stages(rows, wide)
        self.line("}")
        return self.launch((groups,), (wide,))

    def _save_rows(self, length: int) -> None:
        """Reserve memory of the work-group for values that later stages need, as far as there is room."""
        room = self.d.local
        for k in sorted(self.saved):
            element = element_of(self.inside[k].dtype)
            size = length * max(size_of(element), self.d.sizes.least)
            if k not in self.stored and size <= room:
                room -= size
                self.scratch[k] = f"row{len(self.scratch)}"
                self.shared.append((self.scratch[k], element, length))

    def _stages(self, rows: str, wide: int, near: int = 1) -> None:
        """Write one loop over the rows per stage, and after each the sums that it makes.

        The threads of a work-group, ``wide``, share the rows of ``near`` items.
        """
        for t in range(self.stages):
            self._kept_nodes(t)
            sums = [n for n in self.group.nodes if n.op == "reduce" and self.stage[n.id] == t + 1]
            if not sums and not any(self._is_made(n, t) for n in self.group.nodes):
                continue
            # numbered by their place in the group, so that equal layers share one text
            names = {n.id: f"sum{self.group.nodes.index(n)}" for n in sums}
            for n in sums:
                start = neutral(n) if self.lengths[self.reduced or 0] else neutral(n) or 0
                self.w.variable(names[n.id], self.w.const(start, element_of(n.dtype)))
            self.line(rows)
            self._iteration(t, names)
            self.line("}")
            for n in sums:
                found = Value(names[n.id], element_of(n.dtype))
                self.kept[n.id] = found if wide == 1 else self.tree(n, found, wide, near)
        self._kept_nodes(self.stages)
        if wide > 1:  # all threads have read what is overwritten now
            self.line(self.d.barrier)
            self.line(f"if (lane < {near}) {{")
        for n in self.group.nodes:
            if self.group.level[n.id] == KEPT and n.id in self.stored:
                self._put(n, self.ix)
        if wide > 1:
            self.line("}")

    def _is_made(self, n: Primitive, t: int) -> bool:
        full = n.op != "reduce" and self.group.level[n.id] == FULL
        made = n.op == "partial" or n.id in self.stored or n.id in self.scratch
        return full and self.stage[n.id] == t and made

    def _iteration(self, t: int, sums: dict[int, str]) -> None:
        """Write the body of the loop of stage ``t``; stores come last: an output may replace an operand."""
        ix = dict(self.ix)
        if self.reduced is not None:
            ix[self.reduced] = "r"
        known: dict[Any, Value] = {}
        stores = []
        for n in self.group.nodes:
            if n.id in sums:
                x = self._operand(n, 0, ix, known, t)
                total = combine(self.w, n, Value(sums[n.id], x.element), x)
                self.line(f"{sums[n.id]} = {total.text};")
            elif n.op == "partial" and self.stage[n.id] == t:
                x = self._operand(n, 0, ix, known, t)
                old = self.load(n, 0, f"chunk * {n.shape[1]} + r")
                self._put_partial(n, combine(self.w, n, old, x))
            elif self._is_made(n, t):
                self._value(n, ix, known, t)
                stores.append(n)
        for n in stores:
            if n.id in self.scratch:
                made = known[n.id]
                self.line(self.d.store(self.scratch[n.id], made.element, "r", made.text))
            if n.id in self.stored:
                self.kept[n.id] = known[n.id]
                self._put(n, ix)

    def _put_partial(self, n: Primitive, value: Value) -> None:
        self.store(n, 0, f"chunk * {n.shape[1]} + r", value)

    def _put(self, n: Primitive, ix: dict[int, str]) -> None:
        p = self.target[n.id]
        self.store(p.base, p.offset, self._at(p, ix), self.kept[n.id])

    def _at(self, p: Place, ix: dict[int, str]) -> str:
        return at(p.strides, [ix.get(k, "0") for k in range(len(p.strides))])

    def _read(self, p: Place, ix: dict[int, str]) -> Value:
        return self.load(p.base, p.offset, self._at(p, ix))

    def _value(self, n: Primitive, ix: dict[int, str], known: dict[Any, Value], t: int) -> Value:
        """Return the value of a node in stage ``t``: this thread has stored it, or computes it (again)."""
        if n.id not in known:
            earlier = self.stage[n.id] < t
            if earlier and n.id in self.stored:
                known[n.id] = self._read(self.target[n.id], ix)
            elif earlier and n.id in self.scratch:
                element = element_of(n.dtype)
                known[n.id] = self.w.let(self.d.load(self.scratch[n.id], element, "r"), element)
            else:
                values = [self._operand(n, k, ix, known, t) for k in range(_count(n))]
                known[n.id] = self.compute(n, values)
        return known[n.id]

    def _operand(self, n: Primitive, k: int, ix: dict[int, str], known: dict[Any, Value], t: int) -> Value:
        a = n.args[k]
        inner = self.inside.get(a.node.id)
        if inner is not None:
            full = self.group.level[inner.id] == FULL and inner.op != "reduce"
            return self._value(inner, ix, known, t) if full else self.kept[inner.id]
        found = self.fixed(a)
        if found is not None:
            return found
        place = self.access[n.id, k]
        if place.key not in known:
            known[place.key] = self._read(place, ix)
        return known[place.key]

    def _kept_nodes(self, t: int) -> None:
        """Write the nodes of stage ``t`` that have one value per row."""
        for n in self.group.nodes:
            if self.group.level[n.id] == KEPT and n.op != "reduce" and self.stage[n.id] == t:
                values = []
                for k in range(_count(n)):
                    a = n.args[k]
                    found = self.kept[a.node.id] if a.node.id in self.inside else self.fixed(a)
                    values.append(self._read(self.access[n.id, k], self.ix) if found is None else found)
                self.kept[n.id] = self.compute(n, values)


def _count(n: Primitive) -> int:
    """Return the number of operands that are read element by element: not the table of a gather."""
    return 1 if n.op == "gather" else len(n.args)
