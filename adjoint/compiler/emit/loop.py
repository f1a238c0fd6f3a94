"""Kernels of elementwise nodes and reductions: nested loops over the domain of a group.

A group is the set of nodes that one kernel computes; its domain is the shape that the loops run over.  One
axis of the domain is processed in vectors, whose elements are called lanes.  If the group reduces this axis,
the lanes are combined at the end; if it reduces another axis, each lane has its own sum.  The remaining axes
are flattened into the outermost loop, whose iterations are called items.  Nodes that need the result of a
reduction are computed in a later inner loop, the next *stage*.  A value that two stages need is kept in
scratch memory, or read back if it is stored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.compiler.emit.elementwise import apply, combine, neutral
from adjoint.compiler.emit.halves import widened
from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.nest import LIGHT, Nest, Place, weight
from adjoint.compiler.emit.values import Index, Value, element_of
from adjoint.compiler.emit.writer import Piece, Writer
from adjoint.compiler.lower.graph import Primitive
from adjoint.compiler.schedule.fuse import FULL, KEPT, Fusion
from adjoint.compiler.schedule.kernel import Address, Kernel

__all__ = ["Lane", "LoopNest", "loop_kernel"]

_UNROLLED = 4  # vectors: shorter rows are unrolled


def loop_kernel(
    machine: Machine, group: Fusion, stored: Sequence[Primitive], places: dict[int, Place] | None = None
) -> Kernel:
    """Return the kernel of a group that writes ``stored`` nodes, some of them to the positions ``places``."""
    return LoopNest(machine, group, stored, places or {}).kernel()


class Lane:
    """One vector in the body of the loops: its position, and the values computed for it so far."""

    __slots__ = ("at", "common", "known", "lanes", "mask", "row", "spot")

    def __init__(
        self, at: Index, lanes: int = 1, mask: Value | None = None, row: Index = 0, spot: int = 0
    ) -> None:
        self.at = at  # the position along the vector axis
        self.row = row  # the position along the reduced axis, if that is another axis
        self.spot = spot  # the number of the item, or of the block of columns, among those processed together
        self.lanes = lanes
        self.mask = mask
        self.known: dict[Any, Value] = {}
        self.common = self.known  # values that are the same for all items processed together

    @property
    def count(self) -> int:
        """The number of lanes inside the array."""
        return self.lanes if self.mask is None else self.mask.text.count("true")

    def moved(self, row: Index = 0, spot: int = 0) -> Lane:
        """Return a ``Lane`` at the same position along the vector axis, without computed values."""
        found = Lane(self.at, self.lanes, self.mask, row, spot)
        found.common = self.common
        return found


class LoopNest(Nest):
    """Generates the kernel of a group of elementwise nodes and reductions."""

    def __init__(
        self, machine: Machine, group: Fusion, stored: Sequence[Primitive], places: dict[int, Place]
    ) -> None:
        super().__init__(machine, group, stored, places)
        self.w = Writer(machine)
        self.slots_used: list[Address] = []
        self.slots: dict[tuple[int, int], int] = {}
        self.offsets: dict[Any, Index] = {}
        self.hoisted: dict[Any, Value] = {}
        self.kept: dict[Any, Value] = {}
        self.scratch: dict[int, Value] = {}
        self.numbers: dict[int, Value] = {}  # one-element nodes that are computed at the start
        self.once: dict[Any, Value] = {}  # numbers that are loaded at the start
        self.together = 1  # items that are processed together

    # The kernel --------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        """Generate and return the kernel."""
        w, length = self.w, self.lengths[self.across]
        heavy = any(n.op not in LIGHT and self._is_full(n) for n in self.group.nodes)
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
            unit = self.together = self._rows_together(items, heavy)
            self._clear_partial_sums()
            w.loop(w.low, w.high, unit, lambda i, _: self._rows(i))
        size = math.prod(self.group.domain)
        work = sum(weight(n) * (size if self._is_full(n) else n.size) for n in self.group.nodes)
        work += 2.0 * size * (len(self.access) + len(self.target))
        wide = self.machine.lanes(np.float32) / self.machine.lanes(self.widest)
        return Kernel(w.kernel(), self.slots_used, items, unit, work * wide, self.group.chunks)

    def _load_numbers(self) -> None:
        """Emit, at the start of the kernel, the operands that are one number for the whole kernel."""
        for n in self.group.nodes:
            for k, a in enumerate(n.args):
                if a.node.id in self.group.numbers:
                    self._number(a.node)
                elif (n.id, k) in self.access and a.scalar() is None:
                    place = self.access[n.id, k]
                    if not any(place.strides) and place.key not in self.once:
                        self.once[place.key] = self.w.load(self.slot(place.base, place.offset), place.element)

    def _number(self, node: Primitive) -> Value:
        """Emit the value of a one-element node, computed once, at the start of the kernel."""
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

    def _fixed(self, n: Primitive, k: int, lanes: int) -> Value | None:
        """Return operand ``k`` of ``n`` as a vector if it is one number for the whole kernel, else None."""
        a = n.args[k]
        number = a.scalar()
        if number is not None:
            return self.w.const(number, element_of(a.dtype), lanes)
        if a.node.id in self.numbers:
            return self.w.splat(self.numbers[a.node.id], lanes)
        place = self.access.get((n.id, k))
        found = None if place is None else self.once.get(place.key)
        return None if found is None else self.w.splat(found, lanes)

    def _start(self, *indices: Sequence[Index]) -> None:
        """Begin the items (outer iterations) with these indices; forget the values of the previous items."""
        self.offsets, self.hoisted, self.kept = {}, {}, {}
        self.indices = indices

    def _decode(self, item: Index) -> list[Index]:
        """Emit the index along each outer axis of ``item``, the number of an iteration over all of them."""
        return self.w.unravel(item, [self.lengths[i] for i in self.outer])

    def _offset(self, place: Place, spot: int) -> Index:
        """Emit the offset of a position along the outer axes, in the item with index ``spot``."""
        key = place.key, spot
        found = self.offsets.get(key)
        if found is None:
            found = 0
            for i, index in zip(self.outer, self.indices[spot], strict=False):
                found = self.w.plus(found, self.w.times(index, place.strides[i]))
            self.offsets[key] = found
        return found

    def slot(self, node: Primitive, offset: int = 0) -> Value:
        """Emit the address of an element of a node, ``offset`` bytes after its start."""
        return self.w.slot(self._slot_of(node, offset))

    def _slot_of(self, node: Primitive, offset: int) -> int:
        key = node.id, offset
        if key not in self.slots:
            self.slots[key] = len(self.slots_used)
            self.slots_used.append(Address(node, offset * node.dtype.itemsize))
        return self.slots[key]

    # The forms of loops ------------------------------------------------------------------------------

    def _run_flat(self) -> None:
        """Emit the loop over the elements of a single axis, from ``w.low`` to ``w.high``."""
        w, n, v = self.w, self.lengths[self.across], self.vector
        step = v * self.unroll
        self._hoist([Lane(0)])
        whole = n // step * step

        def body(j: Value, _: list[Value]) -> None:
            self._stage(0, [Lane(w.plus(j, k * v), v) for k in range(self.unroll)], {})

        if whole:
            w.loop(w.low, w.least(w.high, whole), step, body)
        if whole < n:
            with w.when(w.compare("sge", w.high, n)):
                self._stage(0, self._rest(whole, n), {})

    def _rest(self, low: int, high: int) -> list[Lane]:
        """Return vectors that cover positions ``low`` to ``high``; the last ones are masked or narrower."""
        return [Lane(low + p.offset, p.lanes, p.mask) for p in self.w.pieces(high - low, self.vector)]

    def _rows_together(self, items: int, heavy: bool) -> int:
        """Return how many rows are processed together, if the vector axis is the reduced axis."""
        waits = sum(map(self._busy, range(self.stages))) > 1
        return 2 if waits and items % 2 == 0 and (self.machine.registers >= 32 or not heavy) else 1

    def _rows(self, item: Index) -> None:
        """Emit the loops of some items, if the vector axis is the reduced axis or nothing is reduced."""
        w, n, v = self.w, self.lengths[self.across], self.vector
        self._start(*[self._decode(w.plus(item, k)) for k in range(self.together)])
        items = [Lane(0, spot=k) for k in range(self.together)]
        self._hoist(items)
        looped = n > _UNROLLED * v
        if looped:
            self._make_scratch(n * self.together)
        rest = [] if looped else self._beside(self._rest(0, n))
        for t in range(self.stages):
            for lane in items:
                self._kept_nodes(t, lane)
            if not self._busy(t):
                continue
            keys = itertools.product(self._accumulators(t), range(len(items)))
            totals: dict[Any, list[Value]] = {key: [] for key in keys}
            if looped:
                rest = self._row_loop(t, totals)
            for lanes in rest:
                for k, values in self._stage(t, lanes, {}).items():
                    for i, value in enumerate(values):
                        totals[k, i].append(value)
            for (k, i), parts in totals.items():
                self.kept[k, i] = self._fold(self.inside[k], parts)
        for lane in items:
            self._kept_nodes(self.stages, lane)

    def _beside(self, lanes: Sequence[Lane]) -> list[list[Lane]]:
        """Return, for each of the vectors ``lanes``, the vectors at this position of all current items."""
        return [[lane.moved(spot=k) for k in range(self.together)] for lane in lanes]

    def _row_loop(self, t: int, totals: dict[Any, list[Value]]) -> list[list[Lane]]:
        """Emit the loop of stage ``t`` over full vectors, into ``totals``; return the other vectors."""
        w, n, v = self.w, self.lengths[self.across], self.vector
        count = self._vectors_at_once(t)
        keys = self._accumulators(t)
        size = count * self.together
        start = [self._neutral(self.inside[k], v) for k in keys for _ in range(size)]

        def body(j: Value, carried: list[Value]) -> Sequence[Value]:
            lanes = self._beside([Lane(w.plus(j, u * v), v) for u in range(count)])
            return self._accumulate(t, [lane for each in lanes for lane in each], carried)

        whole = n // (v * count) * (v * count)
        found = w.loop(0, whole, v * count, body, start)
        for i, k in enumerate(keys):
            for j, value in enumerate(found[i * size : (i + 1) * size]):
                totals[k, j % self.together].append(value)
        return self._beside(self._rest(whole, n))

    def _vectors_at_once(self, t: int) -> int:
        """Return how many vectors of a row one iteration of the loop of stage ``t`` processes."""
        if self.together > 1 or self.reduced is None:
            return 1
        now = [n for n in self.group.nodes if self._is_full(n) and self.stage[n.id] - (n.op == "reduce") == t]
        light = all(n.op in LIGHT for n in now)
        return 4 if light else 2 if self.machine.registers >= 32 else 1

    def _columns(self, item: Value, blocks: int) -> None:
        """Emit the loop along the reduced axis for some blocks of columns; each column is a lane."""
        w, n, v = self.w, self.lengths[self.across], self.vector
        wide = v * self.unroll
        outer, block = w.divide(item, blocks)
        rest = n - (blocks - 1) * wide
        full, tail = w.pieces(wide, v), w.pieces(rest, v)
        if rest == wide or blocks == 1:
            self._block(outer, w.times(block, wide), full if rest == wide else tail)
            return
        last = w.compare("eq", w.index_value(block), blocks - 1)
        with w.when(w.invert(last)):
            self._block(outer, w.times(block, wide), full)
        with w.when(last):
            self._block(outer, (blocks - 1) * wide, tail)

    def _block(self, outer: Index, start: Index, pieces: Sequence[Piece]) -> None:
        w = self.w
        assert self.reduced is not None
        length = self.lengths[self.reduced]
        self._start(self._decode(outer))
        spots = [Lane(w.plus(start, p.offset), p.lanes, p.mask, 0, k) for k, p in enumerate(pieces)]
        self.starts = [p.offset for p in pieces]  # of the vectors in a row of the block
        self._hoist(spots)
        unrolled = length <= _UNROLLED
        if not unrolled:
            self._make_scratch(length * self.vector * self.unroll)
        grid = [[s.moved(r, s.spot) for s in spots] for r in range(length if unrolled else 0)]
        for t in range(self.stages):
            for s in spots:
                self._kept_nodes(t, s)
            if not self._busy(t):
                continue
            keys = self._accumulators(t)
            totals = [self._neutral(self.inside[k], s.lanes, length) for k in keys for s in spots]

            def body(r: Value, carried: list[Value], t: int = t) -> Sequence[Value]:
                return self._accumulate(t, [s.moved(r, s.spot) for s in spots], carried)

            for lanes in grid:
                totals = self._accumulate(t, lanes, totals)
            if not unrolled:
                totals = w.loop(0, length, 1, body, totals)
            self.kept.update(zip(itertools.product(keys, range(len(spots))), totals, strict=True))
        for s in spots:
            self._kept_nodes(self.stages, s)

    # Partial sums ------------------------------------------------------------------------------------

    def _clear_partial_sums(self) -> None:
        """Emit code that sets the chunk's partial sums to the neutral element, such as 0."""
        w, n, v = self.w, self.lengths[self.across], self.vector
        sums = [n for n in self.group.nodes if n.op == "partial"]

        def clear(at: Index, lanes: int, mask: Value | None) -> None:
            for p in sums:
                w.store(self._neutral(p, lanes), self._partial_sum_at(p, at), mask)

        if sums:
            w.vectors(n, v, 0, clear)

    def _add_to_partial_sum(self, n: Primitive, t: int, lanes: Sequence[Lane]) -> None:
        """Emit the addition of vectors, all at the same position, to the partial sum ``n`` of the chunk."""
        w, first = self.w, lanes[0]
        at = self._partial_sum_at(n, first.at)
        found = w.load(at, element_of(n.dtype), first.lanes, first.mask)
        for lane in lanes:
            found = combine(w, n, found, self._term(n, lane, t))
        w.store(found, at, first.mask)

    def _partial_sum_at(self, n: Primitive, at: Index) -> Value:
        w = self.w
        return w.at(self.slot(n), element_of(n.dtype), w.plus(w.times(w.chunk, n.shape[1]), at))

    # The body of a loop ------------------------------------------------------------------------------

    def _busy(self, t: int) -> bool:
        """Return whether stage ``t`` computes anything; otherwise no loop is emitted for it."""
        return any(
            (n.op == "reduce" and self.stage[n.id] == t + 1) or self._is_made(n, t) for n in self.group.nodes
        )

    def _is_made(self, n: Primitive, t: int) -> bool:
        """Return whether stage ``t`` computes ``n`` for each element and must write it to memory."""
        full = n.op != "reduce" and self.group.level[n.id] == FULL
        return full and self.stage[n.id] == t and (n.id in self.stored or n.id in self.saved)

    def _accumulators(self, t: int) -> list[int]:
        """Return the ids of the reductions that stage ``t`` computes."""
        return [n.id for n in self.group.nodes if n.op == "reduce" and self.stage[n.id] == t + 1]

    def _accumulate(self, t: int, lanes: Sequence[Lane], carried: list[Value]) -> list[Value]:
        """Emit the body of the loop of stage ``t``; return the new accumulators, by reduction."""
        keys, size = self._accumulators(t), len(lanes)
        made = self._stage(t, lanes, {k: carried[i * size : (i + 1) * size] for i, k in enumerate(keys)})
        return [x for k in keys for x in made[k]]

    def _stage(self, t: int, lanes: Sequence[Lane], sums: dict[int, Any]) -> dict[int, list[Value]]:
        """Emit the body of the loop of stage ``t`` for the vectors ``lanes``."""
        made: dict[int, list[Value]] = {}
        keys = self._accumulators(t)
        for n in self.group.nodes:
            if n.id in keys:
                parts = [self._term(n, lane, t) for lane in lanes]
                made[n.id] = [self._added(n, sums.get(n.id), i, x, lanes[i]) for i, x in enumerate(parts)]
            elif n.op == "partial" and self.stage[n.id] == t:
                for k in range(0, len(lanes), self.together):
                    self._add_to_partial_sum(n, t, lanes[k : k + self.together])
            elif self._is_made(n, t):
                for lane in lanes:
                    value = self._value(n, lane, t)
                    if n.id in self.stored:
                        self._store(self.target[n.id], value, lane)
                    elif n.id in self.scratch:
                        self.w.store(value, self._scratch_at(n, lane), lane.mask)
        return made

    def _added(self, n: Primitive, before: Any, i: int, x: Value, lane: Lane) -> Value:
        """Emit the update of accumulator ``i`` of the reduction ``n`` by the vector ``x``."""
        if lane.mask is not None and not self.columns:
            x = self.w.select(lane.mask, x, self._neutral(n, lane.lanes))
        return x if before is None else combine(self.w, n, before[i], x)

    def _neutral(self, n: Primitive, lanes: int, length: int = 1) -> Value:
        return self.w.const(neutral(n) if length else neutral(n) or 0, element_of(n.dtype), lanes)

    def _fold(self, n: Primitive, parts: list[Value]) -> Value:
        """Emit the combination of the vectors ``parts``, and of their lanes, to one number."""
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

    def _value(self, n: Primitive, lane: Lane, t: int) -> Value:
        """Return the value of ``n`` for one vector in stage ``t``; emit its code if it is not known yet."""
        found = lane.known.get(n.id)
        if found is None:
            if self.stage[n.id] < t and n.id in self.stored:
                found = self._load(self.target[n.id], lane)
            elif self.stage[n.id] < t and n.id in self.saved:
                at = self._scratch_at(n, lane)
                found = self.w.load(at, element_of(n.dtype), lane.lanes, lane.mask)
            else:
                found = self._compute(n, lane, [self._operand(n, k, lane, t) for k in range(_count(n))])
            lane.known[n.id] = found
        return found

    def _compute(self, n: Primitive, lane: Lane, values: Sequence[Value]) -> Value:
        """Emit the primitive of ``n``, given the values of its operands; return its value."""
        if n.op == "gather":
            return self._gather(n, values[0], lane)
        given = n.args[1 if n.op == "where" else 0].dtype if n.args else n.dtype
        return apply(self.w, n.op, given, n.dtype, *values)

    def _gather(self, n: Primitive, index: Value, lane: Lane) -> Value:
        """Emit a load for each lane, of the element at ``index`` of the array that ``n`` reads."""
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

    def _term(self, n: Primitive, lane: Lane, t: int) -> Value:
        """Return a vector of the operand of the reduction ``n`` in stage ``t``."""
        return widened(self.w, self._operand(n, 0, lane, t))

    def _operand(self, n: Primitive, k: int, lane: Lane, t: int) -> Value:
        """Return operand ``k`` of ``n`` for one vector in stage ``t``; load it if it is not known yet."""
        a = n.args[k]
        inner = self.inside.get(a.node.id)
        if inner is not None:
            if self.group.level[inner.id] == FULL:
                return self._value(inner, lane, t)
            kept = self.kept[inner.id, lane.spot]
            return kept if self.columns else self.w.splat(kept, lane.lanes)
        fixed = self._fixed(n, k, lane.lanes)
        if fixed is not None:
            return fixed
        place = self.access[n.id, k]
        found = self.hoisted.get((place.key, lane.spot))
        if found is not None:
            return self.w.splat(found, lane.lanes) if found.lanes == 1 else found
        memo = ("load", place.key)
        known = lane.known if self.columns or any(place.strides[i] for i in self.outer) else lane.common
        if memo not in known:
            known[memo] = self._load(place, lane)
        return known[memo]

    # Values per item ---------------------------------------------------------------------------------

    def _hoist(self, spots: Sequence[Lane]) -> None:
        """Emit loads, before the inner loops of an item, of operands that do not change in these loops."""
        fixed = self.reduced if self.columns else self.across
        assert fixed is not None  # a loop over columns reduces an axis
        for (n, k), place in self.access.items():
            node = self.inside[n]
            if not self._is_full(node) or node.args[k].scalar() is not None or place.key in self.once:
                continue
            if place.strides[fixed]:
                continue
            for s in spots:
                key = place.key, s.spot
                if key not in self.hoisted:
                    self.hoisted[key] = self._load(place, s)

    def _kept_nodes(self, t: int, lane: Lane) -> None:
        """Emit the nodes of stage ``t`` that have one value per reduced row, before the loop of the stage."""
        for n in self.group.nodes:
            if self.group.level[n.id] != KEPT or self.stage[n.id] != t:
                continue
            if n.op != "reduce":
                values = [self._kept_operand(n, k, lane) for k in range(_count(n))]
                self.kept[n.id, lane.spot] = self._compute(n, lane, values)
            if n.id in self.stored:
                self._store(self.target[n.id], self.kept[n.id, lane.spot], lane)

    def _kept_operand(self, n: Primitive, k: int, lane: Lane) -> Value:
        a = n.args[k]
        if a.node.id in self.inside:
            return self.kept[a.node.id, lane.spot]
        fixed = self._fixed(n, k, lane.lanes)
        return self._load(self.access[n.id, k], lane) if fixed is None else fixed

    # Memory ------------------------------------------------------------------------------------------

    def _address(self, place: Place, lane: Lane) -> Value:
        w = self.w
        start = self._offset(place, 0 if self.columns else lane.spot)
        at = w.plus(start, w.times(lane.at, place.strides[self.across]))
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

    def _scratch_at(self, n: Primitive, lane: Lane) -> Value:
        w, element = self.w, element_of(n.dtype)
        if not self.columns:
            first = lane.spot * self.lengths[self.across]
            return w.at(self.scratch[n.id], element, w.plus(lane.at, first))
        # the rows of the block are stored one after the other
        row = w.times(lane.row, self.vector * self.unroll)
        return w.at(self.scratch[n.id], element, w.plus(row, self.starts[lane.spot]))


def _count(n: Primitive) -> int:
    """Return the number of operands of ``n`` that are read element by element: not the table of a gather."""
    return 1 if n.op == "gather" else len(n.args)
