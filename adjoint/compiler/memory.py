"""Memory of a native program: what is stored, and where.

Results that leave the program are new arrays at each call.  All others lie in one arena, where memory is
used again after the last group that reads it.  A piece of an array that is put together of pieces is computed
in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from adjoint.compiler.fuse import GIVEN, Group, stages
from adjoint.compiler.simplify import Node

__all__ = ["Memory", "stored_nodes"]

_STACK = 1 << 15  # bytes of one value
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
        found |= _large(g)
    for g in groups:  # the product is made in the memory of a result of its dtype
        first = g.nodes[0]
        if g.kind == "matmul" and not any(n.id in found and n.dtype == first.dtype for n in g.nodes):
            found.add(first.id)
    return found


def _large(g: Group) -> set[int]:
    """Return the values that are too large to be kept on the stack between the loops of a kernel."""
    if g.kind != "loop" or g.axis is None:
        return set()
    length = g.domain[g.axis]
    columns = 1 if g.axis == len(g.domain) - 1 else 64  # of a block, at most
    saved = stages(g)[1]
    return {n.id for n in g.nodes if n.id in saved and length * columns * n.dtype.itemsize > _STACK}


def _bytes(n: Node) -> int:
    return max(-(-n.size * n.dtype.itemsize // _LINE), 1) * _LINE


class Memory:
    """Offsets in the arena by the id of the node, and nodes that are pieces of others."""

    def __init__(
        self, groups: Sequence[Group], stored: set[int], outputs: Sequence[Node], lasting: Sequence[Node]
    ) -> None:
        """``outputs`` have arrays of their own; ``lasting`` ones are read after the last group."""
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
        self.last |= {n.id: len(groups) for n in lasting}
        self._find_pieces()
        self._allocate(stored)

    def place(self, node: Node) -> tuple[Node, int]:
        """Return the node whose memory a node is in, and the bytes before it."""
        if node.id not in self.piece_of:
            return node, 0
        whole, first = self.piece_of[node.id]
        base, offset = self.place(whole)
        return base, offset + first * node.dtype.itemsize

    def _find_pieces(self) -> None:
        """Find results of kernels that can be computed in the memory of the array they are a piece of."""
        for k, g in enumerate(self.groups):
            node = g.nodes[0]
            if g.kind != "place" or node.value is None:
                continue  # pieces may overlap, or it is filled first
            spans = node.value
            below = len(spans) < len(node.args)
            if below and sum(end - start for start, end, _ in spans) < node.size:
                continue  # the one below is copied first
            for start, _, i in spans:
                a = node.args[i]
                made = self.made.get(a.node.id)
                free = made is not None and self.groups[made].kind in ("loop", "matmul")
                taken = a.node.id in self.fresh or a.node.id in self.piece_of or a.node.dtype != node.dtype
                if free and not taken and a.is_whole():
                    self.piece_of[a.node.id] = node, start
                    self.last[node.id] = max(self.last.get(node.id, k), self.last.get(a.node.id, k))
                    self.made[node.id] = min(self.made[node.id], self.made[a.node.id])

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
