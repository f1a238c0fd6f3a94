"""Memory of a native program: which values are stored, and at which address.

Outputs of the program are new arrays at each call.  All other stored values are in one buffer, the *arena*;
the memory of a value is reused after the last group of nodes that reads the value.  If an array is assembled
from pieces, as in a concatenation, the pieces are computed directly in the memory of that array.
"""

from __future__ import annotations

from collections.abc import Sequence

from adjoint.compiler.fuse import GIVEN, PRODUCTS, Group, stages
from adjoint.compiler.simplify import Node

__all__ = ["Memory", "stored_nodes"]

_STACK = 1 << 15  # bytes: larger values are not kept on the stack
_SPLIT = 1 << 16  # bytes: smaller values use only free blocks of their size, so that more kernels can overlap
_LINE = 64  # bytes of a cache line; offsets in the arena are multiples of it


def stored_nodes(groups: Sequence[Group], outputs: Sequence[Node], replacing: set[int]) -> set[int]:
    """Return the ids of the nodes whose values must be in memory.

    These are the outputs, and the nodes that are read outside of their group (the nodes that are computed
    together).  ``replacing`` has the ids of nodes that may be written over an input of the program.
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
        found |= _large(g)
    for g in groups:  # a product is summed in the memory of a stored node with the same dtype
        if g.kind in PRODUCTS:
            first, homes = g.nodes[0], [n for n in g.nodes if n.id in found and n.id not in replacing]
            if not any(n.dtype == first.dtype for n in homes):
                found.add(first.id)
    return found


def _large(g: Group) -> set[int]:
    """Return the ids of the nodes whose values are too large for the stack.

    A kernel with several loops keeps the values that a later loop needs on the stack.
    """
    if g.kind != "loop" or g.axis is None:
        return set()
    length = g.domain[g.axis]
    columns = 1 if g.axis == len(g.domain) - 1 else 64  # at most, of one block
    saved = stages(g)[1]
    return {n.id for n in g.nodes if n.id in saved and length * columns * n.dtype.itemsize > _STACK}


def _bytes(n: Node) -> int:
    """Return the size of a node's value in bytes, rounded up to whole cache lines."""
    return max(-(-n.size * n.dtype.itemsize // _LINE), 1) * _LINE


class Memory:
    """The place of each stored node: an ``offset`` in the arena, or a position in another node.

    ``offset`` and ``piece_of`` are keyed by the id of the node.
    """

    def __init__(
        self, groups: Sequence[Group], stored: set[int], outputs: Sequence[Node], lasting: Sequence[Node]
    ) -> None:
        """Assign memory to the ``stored`` nodes.

        ``outputs`` are new arrays at each call, so they get no memory in the arena.  ``lasting`` nodes are
        read after the last group, so their memory is not reused.
        """
        self.groups = groups
        self.offset: dict[int, int] = {}
        self.piece_of: dict[int, tuple[Node, int]] = {}  # the assembled array, and the first element in it
        self.region: dict[int, int] = {}  # by offset: nodes of different regions share no memory
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
        self._allocate(stored)

    def place(self, node: Node) -> tuple[Node, int]:
        """Return the node whose memory contains the value of ``node``, and the offset in it in bytes."""
        if node.id not in self.piece_of:
            return node, 0
        whole, first = self.piece_of[node.id]
        base, offset = self.place(whole)
        return base, offset + first * node.dtype.itemsize

    def _find_pieces(self) -> None:
        """Find the nodes that can be computed directly in the memory of the array assembled from them."""
        for k, g in enumerate(self.groups):
            node = g.nodes[0]
            if g.kind != "place" or node.value is None:
                continue  # pieces may overlap, or the array is filled with a constant first
            spans = node.value
            below = len(spans) < len(node.args)
            if below and sum(end - start for start, end, _ in spans) < node.size:
                continue  # the first operand is copied, then the pieces are written over it
            for start, _, i in spans:
                a = node.args[i]
                made = self.made.get(a.node.id)
                free = made is not None and self.groups[made].kind in ("loop", *PRODUCTS)
                taken = a.node.id in self.fresh or a.node.id in self.piece_of or a.node.dtype != node.dtype
                if free and not taken and a.is_whole():
                    self.piece_of[a.node.id] = node, start
                    self.last[node.id] = max(self.last.get(node.id, k), self.last.get(a.node.id, k))
                    self.made[node.id] = min(self.made[node.id], self.made[a.node.id])

    def pieces_in_place(self, node: Node) -> frozenset[int]:
        """Return the indices of the operands of ``node`` that are computed directly in its memory."""
        where = node.params[1]
        return frozenset(
            k for k, a in enumerate(node.args)
            if a.node.id in self.piece_of and self.piece_of[a.node.id] == (node, where[k][2])
        )  # fmt: skip

    def _allocate(self, stored: set[int]) -> None:
        """Assign arena memory to stored nodes in the order of the groups; reuse it after the last read."""
        starts: dict[int, list[Node]] = {}
        ends: dict[int, list[Node]] = {}
        for g in self.groups:
            for n in g.nodes:
                if n.id not in stored or n.id in self.fresh or n.id in self.piece_of:
                    continue
                if n.op not in ("call", *GIVEN):
                    starts.setdefault(self.made[n.id], []).append(n)
                    ends.setdefault(max(self.last.get(n.id, 0), self.made[n.id]), []).append(n)
        free: dict[int, list[int]] = {}  # the offsets of free blocks by size, the oldest first
        for k in range(len(self.groups)):
            for n in starts.get(k, ()):
                self.offset[n.id] = self._take(free, _bytes(n))
            for n in ends.get(k, ()):
                free.setdefault(_bytes(n), []).append(self.offset[n.id])
        self._find_regions({(self.offset[n.id], _bytes(n)) for nodes in starts.values() for n in nodes})

    def _find_regions(self, blocks: set[tuple[int, int]]) -> None:
        """Map the offset of each block to the start of its region, a series of blocks that overlap.

        ``blocks`` are pairs (offset, bytes).  Blocks overlap if nodes use their memory one after another.
        """
        start = end = 0
        for at, size in sorted(blocks):
            start = start if at < end else at
            end = max(end, at + size)
            self.region[at] = start

    def _take(self, free: dict[int, list[int]], size: int) -> int:
        """Return the offset of ``size`` bytes: a free block, part of adjacent free blocks, or new memory."""
        if free.get(size):  # the oldest, so that consecutive kernels use different memory and can overlap
            return free[size].pop(0)
        if size < _SPLIT:
            self.size += size
            return self.size - size
        blocks = sorted((at, n) for n, offsets in free.items() for at in offsets)
        spans: list[tuple[int, int]] = []
        for at, n in blocks:
            if spans and sum(spans[-1]) == at:
                spans[-1] = spans[-1][0], spans[-1][1] + n
            else:
                spans.append((at, n))
        fitting = [(n, at) for at, n in spans if n >= size]
        if fitting:
            start = min(fitting)[1]
        else:
            start = spans[-1][0] if spans and sum(spans[-1]) == self.size else self.size
            self.size = start + size
        free.clear()
        for at, n in blocks:
            low, high = min(at + n, start), max(at, start + size)
            for first, last in ((at, low), (high, at + n)) if low < at + n and at < high else ((at, at + n),):
                if first < last:
                    free.setdefault(last - first, []).append(first)
        return start
