"""Memory of a native program: which values are stored, and at which address.

Outputs of the program are new arrays at each call.  All other stored values, and the workspace of kernels,
are in one buffer, the *arena*; the memory of a value is reused after the last group of nodes that reads the
value.  Large values can also be in the memory of an output that is computed later.  If an array is assembled
from pieces, as in a concatenation, the pieces are computed directly in the memory of that array.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

from adjoint.compiler.lower.graph import Primitive
from adjoint.compiler.lower.target import CPU
from adjoint.compiler.schedule.fuse import GIVEN, PRODUCTS, Fusion, stages

__all__ = ["Memory", "home_of", "stored_nodes"]

_LINE = 64  # bytes of a cache line; offsets in the arena are multiples of it
_MOST = 300  # blocks: the time for a plan of all blocks together is quadratic, so larger programs have none
_APART = (8, 3, 1)  # groups between two uses of the same bytes, the best first
_LENT = 1 << 12  # bytes: smaller values are not put into the memory of an output


def stored_nodes(
    groups: Sequence[Fusion], outputs: Sequence[Primitive], replacing: set[int], stack: int = CPU.stack
) -> set[int]:
    """Return the ids of the nodes whose values must be in memory.

    These are the outputs, and the nodes that are read outside of their group (the nodes that are computed
    together).  ``replacing`` has the ids of nodes that may be written over an input of the program.  Values
    that are larger than ``stack`` bytes are not kept in a kernel's own memory.
    """
    where = {n.id: g for g in groups for n in g.nodes}
    found = {n.id for n in outputs}
    for g in groups:
        for n in g.nodes:
            if g.kind != "loop" and g.kind not in PRODUCTS:
                found.add(n.id)
            for a in n.args:
                if where.get(a.node.id) is not g:
                    found.add(a.node.id)
        found |= _large(g, stack)
    for g in groups:  # a product is summed in the memory of a stored node with the same dtype
        if g.kind in PRODUCTS:
            first, homes = g.nodes[0], [n for n in g.nodes if n.id in found and n.id not in replacing]
            if not any(n.dtype == first.dtype for n in homes):
                found.add(first.id)
    return found


def home_of(product: Primitive, stored: Sequence[Primitive]) -> Primitive:
    """Return the node of a group in whose memory its product is summed; ``stored`` are its stored nodes."""
    return product if product in stored else next((n for n in stored if n.dtype == product.dtype), product)


def _large(g: Fusion, stack: int) -> set[int]:
    """Return the ids of the nodes of a kernel whose values must be kept but are too large for the stack."""
    if g.kind != "loop" or g.axis is None:
        return set()
    length = g.domain[g.axis]
    columns = 1 if g.axis == len(g.domain) - 1 else 64  # at most, of one block
    saved = stages(g)[1]
    return {n.id for n in g.nodes if n.id in saved and length * columns * n.dtype.itemsize > stack}


def _bytes(n: Primitive) -> int:
    """Return the size of a node's value in bytes, rounded up to whole cache lines."""
    return max(-(-n.nbytes // _LINE), 1) * _LINE


class _Block(NamedTuple):
    """Memory for a value, or workspace if ``node`` is None, from group ``first`` to group ``last``."""

    size: int
    first: int
    last: int
    node: Primitive | None


_Span = tuple[int, int, int, int]  # bytes ``low`` to ``high``, used from group ``first`` to ``last``
_Place = tuple[int, Primitive | None]  # an offset in the memory of an output, or in the arena if that is None

# In which order blocks get memory: each gets the smallest gap that the ones before it leave.
_Order = Callable[[_Block], tuple[int, ...]]
_ORDERS: tuple[_Order, ...] = (
    lambda b: (-b.size * (b.last - b.first + 1),),
    lambda b: (-b.size, b.first - b.last),
    lambda b: (b.first - b.last, -b.size),
)


class Memory:
    """Where each stored node is: at an ``offset`` in the arena, or inside the memory of another node."""

    def __init__(
        self,
        groups: Sequence[Fusion],
        stored: set[int],
        outputs: Sequence[Primitive],
        lasting: Sequence[Primitive],
    ) -> None:
        """Find how long nodes are needed; ``outputs`` are new arrays, ``lasting`` ones are read last."""
        self.groups, self.stored = groups, stored
        self.offset: dict[int, int] = {}
        self.piece_of: dict[int, tuple[Primitive, int]] = {}  # the array around it, the first element in it
        self.region: dict[int, int] = {}  # by offset: blocks of different regions share no memory
        self.size = 0
        self.fresh = {n.id for n in outputs}
        self.made = {n.id: k for k, g in enumerate(groups) for n in g.nodes}
        self.last: dict[int, int] = {}
        for k, g in enumerate(groups):
            for n in g.nodes:
                for a in n.args:
                    self.last[a.node.id] = k
        self.last |= {n.id: len(groups) for n in lasting}
        self._find_pieces()

    def place(self, node: Primitive) -> tuple[Primitive, int]:
        """Return the node whose memory contains the value of ``node``, and the offset in bytes in it."""
        if node.id not in self.piece_of:
            return node, 0
        whole, first = self.piece_of[node.id]
        base, offset = self.place(whole)
        return base, offset + first * node.width

    def _find_pieces(self) -> None:
        """Find the nodes that can be computed directly in the memory of the array assembled from them."""
        for k, g in enumerate(self.groups):
            node = g.nodes[0]
            if g.kind != "place" or not node.tiled:
                continue  # pieces overlap, or are written over other values
            for start, _, i in node.value:
                a = node.args[i]
                made = self.made.get(a.node.id)
                free = made is not None and self.groups[made].kind in ("loop", *PRODUCTS)
                taken = a.node.id in self.fresh or a.node.id in self.piece_of or a.node.dtype != node.dtype
                if free and not taken and a.is_whole():
                    self.piece_of[a.node.id] = node, start
                    self.last[node.id] = max(self.last.get(node.id, k), self.last.get(a.node.id, k))
                    self.made[node.id] = min(self.made[node.id], self.made[a.node.id])

    def pieces_in_place(self, node: Primitive) -> frozenset[int]:
        """Return the indices of the operands of ``node`` that are computed directly in its memory."""
        where = node.params[1]
        return frozenset(
            k for k, a in enumerate(node.args)
            if a.node.id in self.piece_of and self.piece_of[a.node.id] == (node, where[k][2])
        )  # fmt: skip

    def allocate(
        self, spaces: Sequence[tuple[int, int]], lent: Sequence[Primitive] = (), after: int = 0
    ) -> list[int]:
        """Assign memory to the stored nodes and to workspaces; return the offset of each workspace.

        ``spaces`` are pairs (index of the group that uses the workspace, bytes).  ``lent`` are outputs whose
        memory other values may use until the output is computed, if group ``after`` or a later group computes
        these values.
        """
        blocks = []
        for g in self.groups:
            for n in g.nodes:
                if n.id not in self.stored or n.id in self.fresh or n.id in self.piece_of:
                    continue
                if n.op not in ("call", *GIVEN):
                    made = self.made[n.id]
                    blocks.append(_Block(_bytes(n), made, max(self.last.get(n.id, 0), made), n))
        blocks += [_Block(size, k, k, None) for k, size in spaces]
        if len(blocks) > _MOST:
            self.size, places = self._in_order(blocks)
        else:
            plans = [self._plan(blocks, order, lent, after) for order in _ORDERS]
            self.size, places = min(plans, key=lambda plan: plan[0])
            _spread(blocks, places, self.size)
        for b, (at, output) in zip(blocks, places, strict=True):
            if output is not None:
                assert b.node is not None
                self.piece_of[b.node.id] = output, at // b.node.width
            elif b.node is not None:
                self.offset[b.node.id] = at
        inside = {(at, b.size) for b, (at, output) in zip(blocks, places, strict=True) if not output}
        self._find_regions(inside)
        return [at for at, _ in places[len(blocks) - len(spaces) :]]

    def _plan(
        self, blocks: Sequence[_Block], order: _Order, lent: Sequence[Primitive], after: int
    ) -> tuple[int, list[_Place]]:
        """Assign memory to all blocks; return the size of the arena and the place of each block.

        Blocks are placed in the order of the key ``order``; ``lent`` and ``after`` are as in ``allocate``.
        """
        places: list[_Place] = [(0, None)] * len(blocks)
        arena: list[_Span] = []
        inside: dict[int, list[_Span]] = {n.id: [] for n in lent}
        size = 0
        for k in sorted(range(len(blocks)), key=lambda k: order(blocks[k])):
            b = blocks[k]
            at, output = _gap(arena, b, size), None
            if at + b.size > size and b.node is not None and b.size >= _LENT and b.first >= after:
                for n in lent:
                    end = n.nbytes
                    if b.size > end or b.last >= self.made[n.id]:
                        continue
                    if (found := _gap(inside[n.id], b, end)) + b.size <= end:
                        at, output = found, n
                        break
            places[k] = at, output
            span = _span(b, at)
            if output is None:
                insort(arena, span)
                size = max(size, at + b.size)
            else:
                insort(inside[output.id], span)
        return size, places

    def _find_regions(self, blocks: set[tuple[int, int]]) -> None:
        """Map the offset of each block to the start of its region, a series of overlapping blocks."""
        start = end = 0
        for at, size in sorted(blocks):
            start = start if at < end else at
            end = max(end, at + size)
            self.region[at] = start

    def _in_order(self, blocks: Sequence[_Block]) -> tuple[int, list[_Place]]:
        """Assign memory to blocks in the order in which the groups run; return the same as ``_plan``."""
        places: list[_Place] = [(0, None)] * len(blocks)
        live: list[_Span] = []  # the blocks in use, or used a few groups ago
        size = 0
        for k in sorted(range(len(blocks)), key=lambda k: blocks[k].first):
            b = blocks[k]
            live = [span for span in live if span[3] >= b.first - _APART[0]]
            at = _gap(live, b, size, _APART[0])
            if at + b.size > size:
                at = _gap(live, b, size)
            places[k] = at, None
            insort(live, _span(b, at))
            size = max(size, at + b.size)
        return size, places


def _spread(blocks: Sequence[_Block], places: list[_Place], size: int) -> None:
    """Change ``places`` so that consecutive kernels use different memory, and can run at the same time."""
    inside = [k for k, (_, output) in enumerate(places) if output is None]
    spans = sorted([_span(blocks[k], places[k][0]) for k in inside])
    for k in sorted(inside, key=lambda k: blocks[k].size):
        b, low = blocks[k], places[k][0]
        high = low + b.size
        del spans[bisect_left(spans, _span(b, low))]
        near = min(
            [max(s[2] - b.last, b.first - s[3]) for s in spans if s[0] < high and s[1] > low], default=99
        )
        for apart in _APART:
            if apart < near:
                break
            at = _gap(spans, b, size, apart)
            if at + b.size <= size:
                low = at
                break
        places[k] = low, None
        insort(spans, _span(b, low))


def _span(b: _Block, at: int) -> _Span:
    return at, at + b.size, b.first, b.last


def _gap(spans: Sequence[_Span], b: _Block, end: int, apart: int = 0) -> int:
    """Return the offset of the smallest gap below ``end`` that ``b`` fits in, or of the memory after all.

    ``spans`` are the bytes of the blocks that have a place, in order.  Bytes are free if they are not used
    less than ``apart`` groups before and after ``b``.
    """
    size, start, stop = b.size, b.first - apart, b.last + apart
    best, found, at = end + 1, -1, 0
    for low, high, first, last in spans:
        if first <= stop and last >= start:
            if size <= low - at < best:
                best, found = low - at, at
            at = max(at, high)
    return at if found < 0 or size <= end - at < best else found
