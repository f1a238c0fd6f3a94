"""Kernels of elementwise nodes and reductions: nested loops over the domain of a group.

One axis of the domain is processed in vectors, whose elements are called lanes.  If the group reduces this
axis, the lanes are combined at the end; if it reduces another axis, each lane has its own sum.  The remaining
axes are flattened into the outermost loop, whose iterations are called items.  A value that is computed
before a reduction and needed after it is kept in scratch memory, or read back if it is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from adjoint.compiler.emit.elementwise import apply, extreme
from adjoint.compiler.emit.text import Index, Value, Writer, element_of
from adjoint.compiler.fuse import FULL, KEPT, PRODUCTS, Group, over, stages
from adjoint.compiler.machine import Machine
from adjoint.compiler.simplify import Node, View, row_major

__all__ = ["Kernel", "Lane", "Loop", "Place", "Slot", "combine", "loop_kernel", "neutral", "weight"]

_UNROLLED = 4  # vectors: shorter rows are unrolled
_COSTLY = {"divide": 8, "sqrt": 10}  # cost in simple operations; functions such as exp cost 16


class Slot(NamedTuple):
    """An address that a kernel reads from its table: an offset in bytes in a node's memory or the workspace.

    ``node`` is None for the workspace.
    """

    node: Node | None
    offset: int


class Kernel:
    """The text of a kernel, its slots, and the length of its outermost loop.

    The loop can be divided at multiples of ``unit``.  ``cost`` is the total work, in simple operations on one
    element.  ``tables`` are those of a loop that runs records.  ``workspace`` is the range of bytes of the
    workspace that the kernel uses.
    """

    __slots__ = ("cost", "length", "slots", "tables", "text", "unit", "workspace")

    def __init__(self, text: str, slots: list[Slot], length: int, unit: int, cost: float) -> None:
        self.text = text
        self.slots = slots
        self.length = length
        self.unit = unit
        self.cost = cost
        self.tables: Any = None
        self.workspace = 0, 0


class Place:
    """Where the elements of a node are in memory: a base node, strides along the domain, and an offset."""

    __slots__ = ("base", "element", "offset", "strides")

    def __init__(self, base: Node, strides: tuple[int, ...], offset: int) -> None:
        self.base = base
        self.strides = strides
        self.offset = offset
        self.element = element_of(base.dtype)

    @property
    def key(self) -> Any:
        """A tuple that is equal for equal places."""
        return self.base.id, self.strides, self.offset


def loop_kernel(
    machine: Machine, group: Group, stored: Sequence[Node], places: dict[int, Place] | None = None
) -> Kernel:
    """Return the kernel of a group.

    ``stored`` are the nodes whose values are written to memory; ``places`` says where, by node id, if not in
    the node's own memory.
    """
    return Loop(machine, group, stored, places or {}).kernel()


class Lane:
    """One vector of the loops: its position, and the values that have been computed for it."""

    __slots__ = ("at", "count", "known", "lanes", "mask", "row")

    def __init__(self, at: Index, lanes: int, mask: Value | None, count: int, row: Index = 0) -> None:
        self.at = at  # the position along the vector axis
        self.row = row  # the position along the reduced axis, if that is another axis
        self.lanes = lanes
        self.mask = mask
        self.count = count  # the number of lanes inside the array
        self.known: dict[Any, Value] = {}


class Loop:
    """Generates the kernel of one group."""

    def __init__(
        self, machine: Machine, group: Group, stored: Sequence[Node], places: dict[int, Place]
    ) -> None:
        self.machine = machine
        self.group = group
        self.w = Writer(machine)
        self.inside = {n.id: n for n in group.nodes}
        self.stored = {n.id for n in stored}
        self.slots_used: list[Slot] = []
        self.slots: dict[tuple[int, int], int] = {}
        self.access: dict[tuple[int, int], Place] = {}  # by the id of a node and the index of its operand
        self.target: dict[int, Place] = {}
        self._find_places(places)
        self._find_stages()
        self._find_axes()
        self.vector = self._lanes()
        self.offsets: dict[Any, Index] = {}
        self.hoisted: dict[Any, Value] = {}
        self.kept: dict[Any, Value] = {}
        self.scratch: dict[int, Value] = {}
        self.numbers: dict[int, Value] = {}  # one-element nodes that are computed at the start
        self.once: dict[Any, Value] = {}  # numbers that are loaded at the start

    # Analysis ----------------------------------------------------------------------------------------

    def _find_places(self, places: dict[int, Place]) -> None:
        """Find the strides along the whole domain of every operand from memory and every stored node."""
        g = self.group
        for n in g.nodes:
            full = n.op == "reduce" or g.level[n.id] == FULL
            for k, a in enumerate(n.args if n.op not in PRODUCTS else ()):
                if a.node.id in self.inside or a.node.id in g.numbers or (n.op == "gather" and k == 1):
                    continue
                view = self._plain(n, a)
                strides = over(view, g.domain if full else g.kept)
                assert strides is not None
                self.access[n.id, k] = Place(a.node, strides if full else self._spread(strides), a.offset)
            if n.id in self.stored:
                if n.id in places:
                    self.target[n.id] = places[n.id]
                elif n.op != "reduce" and g.level[n.id] == FULL:
                    self.target[n.id] = Place(n, row_major(g.domain), 0)
                else:
                    self.target[n.id] = Place(n, self._spread(row_major(g.kept)), 0)

    def _plain(self, n: Node, a: View) -> View:
        """Return the operand of a reduction with its axes in the order of the domain."""
        if n.op != "reduce":
            return a
        axis, last = n.params[1], len(a.shape) - 1
        return a.graph.permute(a, [*range(axis), last, *range(axis, last)])

    def _spread(self, strides: tuple[int, ...]) -> tuple[int, ...]:
        """Insert a stride of 0 for the reduced axis."""
        axis = self.group.axis
        return strides if axis is None else (*strides[:axis], 0, *strides[axis:])

    def _find_axes(self) -> None:
        """Merge axes of the domain where all strides allow it, and choose the vector axis."""
        g = self.group
        places = [*self.access.values(), *self.target.values()]
        axes: list[list[int]] = []  # axes of the domain that are merged into one
        for k, n in enumerate(g.domain):
            if n == 1 and k != g.axis:
                continue
            if axes and k != g.axis and axes[-1][-1] != g.axis:
                last = axes[-1][-1]
                if all(p.strides[last] == p.strides[k] * n for p in places):
                    axes[-1].append(k)
                    continue
            axes.append([k])
        self.reduced = next((i for i, run in enumerate(axes) if run[-1] == g.axis), None)
        if not axes:
            axes = [[]]
        self.lengths = [math.prod(g.domain[k] for k in run) for run in axes]
        for p in places:
            p.strides = tuple([p.strides[run[-1]] if run else 0 for run in axes])
        self.across = self._vector_axis(places)
        self.outer = [i for i in range(len(axes)) if i not in (self.across, self.reduced)]
        self.columns = self.reduced is not None and self.reduced != self.across

    def _vector_axis(self, places: Sequence[Place]) -> int:
        """Return the axis along which most arrays are contiguous; if several, the last of them."""
        if self.saved and self.group.axis == len(self.group.domain) - 1:
            return len(self.lengths) - 1  # a row of saved values fits on the stack
        best, score = len(self.lengths) - 1, -1
        for i in reversed(range(len(self.lengths))):
            found = sum(p.strides[i] == 1 for p in places) if self.lengths[i] > 3 else 0
            if found > score:
                best, score = i, found
        return best

    def _find_stages(self) -> None:
        self.stage, self.saved = stages(self.group)
        self.stages = max(self.stage.values(), default=0) + 1

    def _lanes(self) -> int:
        """Return the number of lanes of a vector, from the widest floating-point dtype of the group."""
        dtypes = [n.dtype for n in self.group.nodes] + [p.base.dtype for p in self.access.values()]
        floats = [d for d in dtypes if d.kind == "f"] or dtypes
        self.widest = np.float64 if any(d.itemsize == 8 for d in floats) else np.float32
        wide = self.machine.lanes(self.widest)
        length = self.lengths[self.across]
        while wide > 1 and wide // 2 >= length:
            wide //= 2
        return wide

    # The kernel --------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        """Generate the kernel."""
        w, length = self.w, self.lengths[self.across]
        heavy = any(n.op not in _LIGHT for n in self.group.nodes)
        self.unroll = 1 if heavy else 4 if self.reduced is not None else 2
        self.flat = self.reduced is None and not self.outer
        items = math.prod(self.lengths[i] for i in self.outer)
        unit = 1
        self._load_numbers()
        if self.flat:
            unit = self.vector * self.unroll
            items = length
            self._start([])
            self._run_flat()
        elif self.columns:
            blocks = -(-length // (self.vector * self.unroll))
            items *= blocks
            w.loop(w.low, w.high, 1, lambda i, _: self._columns(i, blocks))
        else:
            w.loop(w.low, w.high, 1, lambda i, _: self._row(i))
        work = sum(
            weight(n) * (math.prod(self.group.domain) if self._is_full(n) else n.size)
            for n in self.group.nodes
        )
        work += 2.0 * math.prod(self.group.domain) * (len(self.access) + len(self.target))
        wide = self.machine.lanes(np.float32) / self.machine.lanes(self.widest)
        return Kernel(w.kernel(), self.slots_used, items, unit, work * wide)

    def _load_numbers(self) -> None:
        """Load or compute, at the start, the operands that are one number for the whole kernel."""
        for n in self.group.nodes:
            for k, a in enumerate(n.args):
                if a.node.id in self.group.numbers:
                    self._number(a.node)
                elif (n.id, k) in self.access and a.scalar() is None:
                    place = self.access[n.id, k]
                    if not any(place.strides) and place.key not in self.once:
                        self.once[place.key] = self.w.load(self.slot(place.base, place.offset), place.element)

    def _number(self, node: Node) -> Value:
        """Return the value of a one-element node."""
        found = self.numbers.get(node.id)
        if found is None:
            values = []
            for a in node.args:
                number, element = a.scalar(), element_of(a.dtype)
                if number is not None:
                    values.append(self.w.const(number, element))
                elif a.node.id in self.group.numbers:
                    values.append(self._number(a.node))
                else:
                    values.append(self.w.load(self.slot(a.node, a.offset), element))
            given = node.args[1 if node.op == "where" else 0].dtype
            found = self.numbers[node.id] = apply(self.w, node.op, given, node.dtype, *values)
        return found

    def _fixed(self, n: Node, k: int, lanes: int) -> Value | None:
        """Return an operand that is one number for the whole kernel; None for other operands."""
        a = n.args[k]
        number = a.scalar()
        if number is not None:
            return self.w.const(number, element_of(a.dtype), lanes)
        if a.node.id in self.numbers:
            return self.w.splat(self.numbers[a.node.id], lanes)
        place = self.access.get((n.id, k))
        found = None if place is None else self.once.get(place.key)
        return None if found is None else self.w.splat(found, lanes)

    def _is_full(self, n: Node) -> bool:
        """Return whether a node is computed for every element of the domain."""
        return n.op == "reduce" or self.group.level[n.id] == FULL

    def _start(self, indices: Sequence[Index]) -> None:
        """Start an item of the outermost loop: discard the values computed for the previous item."""
        self.offsets, self.hoisted, self.kept = {}, {}, {}
        self.indices = indices

    def _decode(self, item: Index) -> list[Index]:
        """Return the indices of an item along the outer axes."""
        found: list[Index] = []
        rest = item
        for k, i in enumerate(reversed(self.outer)):
            if k == len(self.outer) - 1:
                found.append(rest)
            else:
                rest, index = self.w.divide(rest, self.lengths[i])
                found.append(index)
        return found[::-1]

    def _offset(self, place: Place) -> Index:
        """Return the offset, in elements, at which the elements of a place start in the current item."""
        found = self.offsets.get(place.key)
        if found is None:
            found = 0
            for i, index in zip(self.outer, self.indices, strict=False):
                found = self.w.plus(found, self.w.times(index, place.strides[i]))
            self.offsets[place.key] = found
        return found

    def slot(self, node: Node, offset: int = 0) -> Value:
        """Return the address of an element of a node.

        The kernel reads it from its table, so that kernels of several layers can share one text.
        """
        return self.w.slot(self._slot_of(node, offset))

    def _slot_of(self, node: Node, offset: int) -> int:
        key = node.id, offset
        if key not in self.slots:
            self.slots[key] = len(self.slots_used)
            self.slots_used.append(Slot(node, offset * node.dtype.itemsize))
        return self.slots[key]

    # The forms of loops ------------------------------------------------------------------------------

    def _run_flat(self) -> None:
        """Emit the loop over elements lo … hi of a single axis.

        The last chunk also processes the elements after the last full vector.
        """
        w, n, v = self.w, self.lengths[self.across], self.vector
        step = v * self.unroll
        self._hoist([Lane(0, v, None, v)])
        whole = n // step * step
        if whole:
            end = w.least(w.high, whole)
            w.loop(w.low, end, step, self._flat_body)
        if whole < n:
            with w.when(w.compare("sge", w.high, n)):
                self._stage(0, self._rest(whole, n), {})

    def _flat_body(self, j: Value, _: list[Value]) -> None:
        w, v = self.w, self.vector
        self._stage(0, [Lane(w.plus(j, k * v), v, None, v) for k in range(self.unroll)], {})

    def _rest(self, low: int, high: int, row: Index = 0) -> list[Lane]:
        """Return vectors that cover the positions ``low`` to ``high``."""
        pieces = self.w.pieces(high - low, self.vector)
        return [
            Lane(low + p.offset, p.lanes, p.mask, min(p.lanes, high - low - p.offset), row) for p in pieces
        ]

    def _row(self, item: Index) -> None:
        """Emit one item whose vector axis is the reduced axis, or that has no reductions."""
        n, v = self.lengths[self.across], self.vector
        self._start(self._decode(item))
        self._hoist([Lane(0, 1, None, 1)])
        step = v * self.unroll
        whole = n // step * step if n > _UNROLLED * v else 0
        rest = self._rest(whole, n)
        if whole:
            self._make_scratch(n)
        for t in range(self.stages):
            self._kept_nodes(t, None)
            if not self._busy(t):
                continue
            sums = self._accumulators(t)
            totals: dict[int, list[Value]] = {k: [] for k in sums}
            if whole:
                self._row_loop(t, whole, totals)
            for lane in rest:
                if whole:
                    lane.known = {}
                for k, value in self._stage(t, [lane], {}).items():
                    totals[k].append(value[0])
            for k, parts in totals.items():
                self.kept[k, None] = self._fold(self.inside[k], parts)
        self._kept_nodes(self.stages, None)

    def _row_loop(self, t: int, whole: int, totals: dict[int, list[Value]]) -> None:
        """Emit the loop over the full vectors of a row at stage ``t``; add its results to ``totals``."""
        w, v = self.w, self.vector
        keys = list(totals)
        start = [self._neutral(self.inside[k], v) for k in keys for _ in range(self.unroll)]

        def body(j: Value, carried: list[Value]) -> Sequence[Value]:
            lanes = [Lane(w.plus(j, u * v), v, None, v) for u in range(self.unroll)]
            given = {k: carried[i * self.unroll : (i + 1) * self.unroll] for i, k in enumerate(keys)}
            made = self._stage(t, lanes, given)
            return [x for k in keys for x in made[k]]

        found = w.loop(0, whole, v * self.unroll, body, start)
        for i, k in enumerate(keys):
            totals[k] += found[i * self.unroll : (i + 1) * self.unroll]

    def _columns(self, item: Value, blocks: int) -> None:
        """Emit one block of columns: each column is a lane, and the loop goes along the reduced axis."""
        w, n, v = self.w, self.lengths[self.across], self.vector
        wide = v * self.unroll
        outer, block = w.divide(item, blocks)
        full = [(k * v, v, None, v) for k in range(self.unroll)]
        rest = n - (blocks - 1) * wide
        tail = [(p.offset, p.lanes, p.mask, min(p.lanes, rest - p.offset)) for p in w.pieces(rest, v)]
        if rest == wide or blocks == 1:
            self._block(outer, w.times(block, wide), full if rest == wide else tail)
            return
        last = w.compare("eq", w.index_value(block), blocks - 1)
        with w.when(w.invert(last)):
            self._block(outer, w.times(block, wide), full)
        with w.when(last):
            self._block(outer, (blocks - 1) * wide, tail)

    def _block(self, outer: Index, start: Index, pieces: Sequence[Any]) -> None:
        w = self.w
        assert self.reduced is not None
        length = self.lengths[self.reduced]
        self._start(self._decode(outer))
        spots = [Lane(w.plus(start, p[0]), *p[1:]) for p in pieces]
        self._hoist(spots)
        unrolled = length <= _UNROLLED
        if not unrolled:
            self._make_scratch(length * self.vector * self.unroll)
        grid = [
            [Lane(s.at, s.lanes, s.mask, s.count, r) for s in spots] for r in range(length if unrolled else 0)
        ]
        for t in range(self.stages):
            for k in range(len(spots)):
                self._kept_nodes(t, k, spots)
            if not self._busy(t):
                continue
            keys = list(self._accumulators(t))
            totals = [self._neutral(self.inside[k], s.lanes, length) for k in keys for s in spots]

            def body(r: Index, carried: list[Value], t: int = t, keys: list[int] = keys) -> Sequence[Value]:
                # r is an int if unrolled
                lanes = grid[r] if unrolled else [Lane(s.at, s.lanes, s.mask, s.count, r) for s in spots]  # type: ignore[index]
                given = {k: carried[i * len(spots) : (i + 1) * len(spots)] for i, k in enumerate(keys)}
                made = self._stage(t, lanes, given)
                return [x for k in keys for x in made[k]]

            if unrolled:
                for r in range(length):
                    totals = list(body(r, totals))
            else:
                totals = w.loop(0, length, 1, body, totals)
            for i, k in enumerate(keys):
                for j in range(len(spots)):
                    self.kept[k, j] = totals[i * len(spots) + j]
        for k in range(len(spots)):
            self._kept_nodes(self.stages, k, spots)

    # The body of a loop ------------------------------------------------------------------------------

    def _busy(self, t: int) -> bool:
        """Return whether loop ``t`` has anything to compute; otherwise it is not emitted."""
        return any(
            (n.op == "reduce" and self.stage[n.id] == t + 1) or self._is_made(n, t) for n in self.group.nodes
        )

    def _is_made(self, n: Node, t: int) -> bool:
        """Return whether loop ``t`` computes a value per element that is stored or needed by a later loop."""
        full = n.op != "reduce" and self.group.level[n.id] == FULL
        return full and self.stage[n.id] == t and (n.id in self.stored or n.id in self.saved)

    def _accumulators(self, t: int) -> dict[int, Any]:
        """Return the ids of the reductions that loop ``t`` computes."""
        return {n.id: None for n in self.group.nodes if n.op == "reduce" and self.stage[n.id] == t + 1}

    def _stage(self, t: int, lanes: Sequence[Lane], sums: dict[int, Any]) -> dict[int, list[Value]]:
        """Emit the body of loop ``t`` for the vectors ``lanes``; return the new values of ``sums``."""
        made: dict[int, list[Value]] = {}
        keys = self._accumulators(t)
        for n in self.group.nodes:
            if n.id in keys:
                parts = [self._operand(n, 0, lane, t) for lane in lanes]
                made[n.id] = [self._added(n, sums.get(n.id), i, x, lanes[i]) for i, x in enumerate(parts)]
            elif self._is_made(n, t):
                for lane in lanes:
                    value = self._value(n, lane, t)
                    if n.id in self.stored:
                        self._store(self.target[n.id], value, lane)
                    elif n.id in self.scratch:
                        self.w.store(value, self._scratch_at(n, lane), lane.mask)
        return made

    def _added(self, n: Node, before: Any, i: int, x: Value, lane: Lane) -> Value:
        """Emit the update of accumulator ``i`` of the reduction ``n`` by the vector ``x``."""
        if lane.mask is not None and not self.columns:
            x = self.w.select(lane.mask, x, self._neutral(n, lane.lanes))
        return x if before is None else combine(self.w, n, before[i], x)

    def _neutral(self, n: Node, lanes: int, length: int = 1) -> Value:
        return self.w.const(neutral(n) if length else neutral(n) or 0, element_of(n.dtype), lanes)

    def _fold(self, n: Node, parts: list[Value]) -> Value:
        """Emit the reduction of vectors to one number."""
        if not parts:
            return self.w.const(neutral(n) or 0, element_of(n.dtype))
        by_lanes: dict[int, Value] = {}
        for p in parts:
            by_lanes[p.lanes] = combine(self.w, n, by_lanes[p.lanes], p) if p.lanes in by_lanes else p
        found = None
        for p in by_lanes.values():
            one = self.w.fold(p, lambda a, b: combine(self.w, n, a, b))
            found = one if found is None else combine(self.w, n, found, one)
        assert found is not None
        return found

    def _value(self, n: Node, lane: Lane, t: int) -> Value:
        """Return the value of a node of the group in one vector; emit it if needed."""
        found = lane.known.get(n.id)
        if found is None:
            if n.id in self.saved and self.stage[n.id] < t:
                found = self._load_saved(n, lane)
            else:
                found = self._compute(n, lane, [self._operand(n, k, lane, t) for k in range(_count(n))])
            lane.known[n.id] = found
        return found

    def _compute(self, n: Node, lane: Lane, values: Sequence[Value]) -> Value:
        """Emit a node on the values of its operands."""
        if n.op == "gather":
            return self._gather(n, values[0], lane)
        given = n.args[1 if n.op == "where" else 0].dtype if n.args else n.dtype
        return apply(self.w, n.op, given, n.dtype, *values)

    def _gather(self, n: Node, index: Value, lane: Lane) -> Value:
        """Emit loads of the elements of a table, one per lane."""
        w, element = self.w, element_of(n.dtype)
        base = self.slot(n.args[1].node)
        if lane.mask is not None:
            index = w.select(lane.mask, index, 0)
        parts = [w.load(w.at(base, element, w.extract(index, i)), element) for i in range(lane.count)]
        return self._joined(parts, element, lane.lanes)

    def _joined(self, parts: Sequence[Value], element: str, lanes: int) -> Value:
        if lanes == 1:
            return parts[0]
        found = self.w.const(0, element, lanes)
        for i, p in enumerate(parts):
            found = self.w.insert(found, p, i)
        return found

    def _operand(self, n: Node, k: int, lane: Lane, t: int) -> Value:
        """Return the value of an operand in one vector; load it if needed."""
        a = n.args[k]
        inner = self.inside.get(a.node.id)
        if inner is not None:
            if self.group.level[inner.id] == FULL:
                return self._value(inner, lane, t)
            return self._kept_value(inner, lane)
        fixed = self._fixed(n, k, lane.lanes)
        if fixed is not None:
            return fixed
        place = self.access[n.id, k]
        found = self.hoisted.get((place.key, self._spot(lane)))
        if found is not None:
            return self.w.splat(found, lane.lanes) if found.lanes == 1 else found
        memo = ("load", place.key)
        if memo not in lane.known:
            lane.known[memo] = self._load(place, lane)
        return lane.known[memo]

    def _spot(self, lane: Lane) -> Any:
        """Return a key for the block of columns that a vector is in; None if the kernel processes rows."""
        return str(lane.at) if self.columns else None

    def _kept_value(self, inner: Node, lane: Lane) -> Value:
        if self.columns:
            return self.kept[inner.id, self._columns_of[str(lane.at)]]
        return self.w.splat(self.kept[inner.id, None], lane.lanes)

    # Values per item ---------------------------------------------------------------------------------

    def _hoist(self, spots: Sequence[Lane]) -> None:
        """Load the operands that do not change inside the loops of an item."""
        fixed = self.reduced if self.columns else self.across
        assert fixed is not None  # a loop over columns reduces an axis
        self._columns_of = {str(s.at): k for k, s in enumerate(spots)} if self.columns else {}
        for (n, k), place in self.access.items():
            node = self.inside[n]
            if not self._is_full(node) or node.args[k].scalar() is not None or place.key in self.once:
                continue
            if place.strides[fixed]:
                continue
            for s in spots:
                key = place.key, self._spot(s)
                if key not in self.hoisted:
                    lane = s if self.columns else Lane(0, 1, None, 1)
                    self.hoisted[key] = self._load(place, lane)

    def _kept_nodes(self, t: int, spot: int | None, spots: Sequence[Lane] = ()) -> None:
        """Emit the nodes of stage ``t`` that have one value per reduced row, before loop ``t``.

        ``spot`` is the number of a block of columns in ``spots``; None if rows are processed.
        """
        lane = Lane(0, 1, None, 1) if spot is None else spots[spot]
        for n in self.group.nodes:
            if self.group.level[n.id] != KEPT or self.stage[n.id] != t:
                continue
            if n.op != "reduce":
                self.kept[n.id, spot] = self._compute(
                    n, lane, [self._kept_operand(n, k, lane, spot) for k in range(_count(n))]
                )
            if n.id in self.stored:
                self._store(self.target[n.id], self.kept[n.id, spot], lane)

    def _kept_operand(self, n: Node, k: int, lane: Lane, spot: int | None) -> Value:
        a = n.args[k]
        if a.node.id in self.inside:
            return self.kept[a.node.id, spot]
        fixed = self._fixed(n, k, lane.lanes)
        return self._load(self.access[n.id, k], lane) if fixed is None else fixed

    # Memory ------------------------------------------------------------------------------------------

    def _address(self, place: Place, lane: Lane) -> Value:
        w = self.w
        at = w.plus(self._offset(place), w.times(lane.at, place.strides[self.across]))
        if self.columns:
            assert self.reduced is not None  # a loop over columns reduces an axis
            at = w.plus(at, w.times(lane.row, place.strides[self.reduced]))
        return w.at(self.slot(place.base, place.offset), place.element, at)

    def _load(self, place: Place, lane: Lane) -> Value:
        w, step = self.w, place.strides[self.across]
        pointer = self._address(place, lane)
        if lane.lanes == 1:
            return w.load(pointer, place.element)
        if step == 1:
            return w.load(pointer, place.element, lane.lanes, lane.mask)
        if step == 0:
            return w.splat(w.load(pointer, place.element), lane.lanes)
        parts = [w.load(w.at(pointer, place.element, i * step), place.element) for i in range(lane.count)]
        return self._joined(parts, place.element, lane.lanes)

    def _store(self, place: Place, value: Value, lane: Lane) -> None:
        w, step = self.w, place.strides[self.across]
        pointer = self._address(place, lane)
        if lane.lanes == 1:
            w.store(value, pointer)
        elif step == 1:
            w.store(value, pointer, lane.mask)
        else:
            for i in range(lane.count):
                w.store(w.extract(value, i), w.at(pointer, place.element, i * step))

    def _make_scratch(self, count: int) -> None:
        for k in self.saved:
            if k not in self.stored and k not in self.scratch:
                self.scratch[k] = self.w.scratch(element_of(self.inside[k].dtype), count)

    def _scratch_at(self, n: Node, lane: Lane) -> Value:
        w, element = self.w, element_of(n.dtype)
        if not self.columns:
            return w.at(self.scratch[n.id], element, lane.at)
        # the rows of the block are stored one after the other
        first = self._columns_of[str(lane.at)] * self.vector
        return w.at(self.scratch[n.id], element, w.plus(w.times(lane.row, self.vector * self.unroll), first))

    def _load_saved(self, n: Node, lane: Lane) -> Value:
        if n.id in self.stored:
            return self._load(self.target[n.id], lane)
        return self.w.load(self._scratch_at(n, lane), element_of(n.dtype), lane.lanes, lane.mask)


_LIGHT = frozenset(
    """add subtract multiply negative abs maximum minimum where copy astype equal not_equal less less_equal
    greater greater_equal logical_and logical_or logical_not reduce""".split()
)
_COMBINED: dict[str, Callable[[Writer, Any, Value, Value], Value]] = {
    "sum": lambda w, _, a, b: w.add(a, b),
    "prod": lambda w, _, a, b: w.mul(a, b),
    "max": lambda w, d, a, b: w.bits("or", a, b) if d.kind == "b" else extreme(w, "maximum", d, a, b),
    "min": lambda w, d, a, b: w.bits("and", a, b) if d.kind == "b" else extreme(w, "minimum", d, a, b),
}


def combine(w: Writer, n: Node, a: Value, b: Value) -> Value:
    """Emit the combination of two values by the operation of the reduction ``n``."""
    return _COMBINED[n.params[0]](w, n.dtype, a, b)


def neutral(n: Node) -> Any:
    """Return the neutral element of a reduction."""
    op, dtype = n.params[0], n.dtype
    if op == "sum":
        return -0.0 if dtype.kind == "f" else 0
    if op == "prod":
        return 1
    if dtype.kind == "b":
        return op == "min"
    if dtype.kind == "f":
        return -math.inf if op == "max" else math.inf
    return int(np.iinfo(dtype).min if op == "max" else np.iinfo(dtype).max)


def _count(n: Node) -> int:
    """Return the number of operands that are read element by element."""
    return 1 if n.op == "gather" else len(n.args)


def weight(n: Node) -> float:
    """Return the cost of a node per element, in simple operations."""
    return 1.0 if n.op in _LIGHT else _COSTLY.get(n.op, 16)
