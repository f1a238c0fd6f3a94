"""Memory of a native program: what is stored, and where.

Results that leave the program are new arrays at each call.  All others lie in one arena, where memory is
used again after the last group that reads it.  A piece of an array that is put together of pieces is computed
in its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from adjoint.compiler.fuse import GIVEN, Group
from adjoint.compiler.simplify import Node, row_major

__all__ = ["Memory", "stored_nodes"]

_LINE = 64  # bytes; addresses in the arena are multiples of it


def stored_nodes(groups: Sequence[Group], outputs: Sequence[Node]) -> set[int]:
    """Return the nodes whose values are needed outside their group."""
    where = {n.id: g for g in groups for n in g.nodes}
    found = {n.id for n in outputs}
    for g in groups:
        for n in g.nodes:
            if g.kind not in ("loop", "matmul"):
                found.add(n.id)
            for a in n.args:
                if where.get(a.node.id) is not g:
                    found.add(a.node.id)
    for g in groups:  # the product is made in the memory of a result of its dtype
        first = g.nodes[0]
        if g.kind == "matmul" and not any(n.id in found and n.dtype == first.dtype for n in g.nodes):
            found.add(first.id)
    return found


def _bytes(n: Node) -> int:
    return max(-(-n.size * n.dtype.itemsize // _LINE), 1) * _LINE


class Memory:
    """Offsets in the arena by the id of the node, and nodes that are pieces of others."""

    def __init__(self, groups: Sequence[Group], stored: set[int], outputs: Sequence[Node]) -> None:
        self.groups = groups
        self.offset: dict[int, int] = {}
        self.piece_of: dict[int, tuple[Node, int]] = {}  # the whole, and the first element
        self.size = 0
        self.fresh = {n.id for n in outputs}
        self.made = {n.id: k for k, g in enumerate(groups) for n in g.nodes}
        self.last: dict[int, int] = {}
        for k, g in enumerate(groups):
            for n in g.nodes:
                for a in n.args:
                    self.last[a.node.id] = k
        self._find_pieces(stored)
        self._allocate(stored)

    def place(self, node: Node) -> tuple[Node, int]:
        """Return the node whose memory a node is in, and the bytes before it."""
        if node.id not in self.piece_of:
            return node, 0
        whole, first = self.piece_of[node.id]
        base, offset = self.place(whole)
        return base, offset + first * node.dtype.itemsize

    def _find_pieces(self, stored: set[int]) -> None:
        """Find results of kernels that can be computed in the memory of the array they are a piece of."""
        for k, g in enumerate(self.groups):
            if g.kind != "place":
                continue
            node = g.nodes[0]
            where = node.params[1]
            if node.params[0] is not None:
                continue  # it is filled first
            spans = [(o, o + math.prod(s)) if t == row_major(s) else None for s, t, o in where]
            taken: set[int] = set()
            for i, (a, span) in enumerate(zip(node.args, spans, strict=True)):
                free = span is not None and a.is_whole() and a.node.id not in self.fresh
                if not free or a.node.id in self.piece_of or a.node.id in taken or a.node.dtype != node.dtype:
                    continue
                producer = self.groups[self.made[a.node.id]] if a.node.id in self.made else None
                if producer is None or producer.kind not in ("loop", "matmul"):
                    continue
                assert span is not None
                others = [s for j, s in enumerate(spans) if j != i and not self._hidden(spans, j, node.size)]
                if any(s is None or (s[0] < span[1] and span[0] < s[1]) for s in others):
                    continue
                taken.add(a.node.id)
                self.piece_of[a.node.id] = node, span[0]
                self.last[node.id] = max(self.last.get(node.id, k), self.last.get(a.node.id, k))
                self.made[node.id] = min(self.made[node.id], self.made[a.node.id])

    @staticmethod
    def _hidden(spans: Sequence[tuple[int, int] | None], j: int, size: int) -> bool:
        """Tell whether the first piece is the whole array, all of which later pieces replace."""
        if j != 0 or spans[0] != (0, size):
            return False
        end = 0
        for s in sorted(s for s in spans[1:] if s is not None):
            if s[0] > end:
                return False
            end = max(end, s[1])
        return end == size

    def pieces_in_place(self, node: Node) -> frozenset[int]:
        """Return which pieces of an array are computed in their place."""
        where = node.params[1]
        return frozenset(
            k for k, a in enumerate(node.args)
            if a.node.id in self.piece_of and self.piece_of[a.node.id] == (node, where[k][2])
        )  # fmt: skip

    def _allocate(self, stored: set[int]) -> None:
        """Give nodes memory in the order of the groups; memory is free after the last use."""
        starts: dict[int, list[Node]] = {}
        ends: dict[int, list[Node]] = {}
        for g in self.groups:
            for n in g.nodes:
                if n.id not in stored or n.id in self.fresh or n.id in self.piece_of:
                    continue
                if n.op not in ("call", *GIVEN):
                    starts.setdefault(self.made[n.id], []).append(n)
                    ends.setdefault(max(self.last.get(n.id, 0), self.made[n.id]), []).append(n)
        free: dict[int, list[int]] = {}
        for k in range(len(self.groups)):
            for n in starts.get(k, ()):
                spots = free.get(_bytes(n))
                if spots:
                    self.offset[n.id] = spots.pop()
                else:
                    self.offset[n.id] = self.size
                    self.size += _bytes(n)
            for n in ends.get(k, ()):
                free.setdefault(_bytes(n), []).append(self.offset[n.id])
