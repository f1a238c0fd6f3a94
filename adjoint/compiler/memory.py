"""Memory of a native program: what is stored, and where.

Results that leave the program are new arrays at each call.  All others lie in one arena, where memory is
used again after the last group that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from adjoint.compiler.fuse import GIVEN, Group
from adjoint.compiler.simplify import Node

__all__ = ["Memory", "stored_nodes"]

_LINE = 64  # bytes; addresses in the arena are multiples of it


def stored_nodes(groups: Sequence[Group], outputs: Sequence[Node]) -> set[int]:
    """Return the nodes whose values are needed outside their group."""
    where = {n.id: g for g in groups for n in g.nodes}
    found = {n.id for n in outputs}
    for g in groups:
        for n in g.nodes:
            if g.kind != "loop":
                found.add(n.id)
            for a in n.args:
                if where.get(a.node.id) is not g:
                    found.add(a.node.id)
    return found


class Memory:
    """Offsets in the arena, by the id of the node."""

    def __init__(self, groups: Sequence[Group], stored: set[int], outputs: Sequence[Node]) -> None:
        self.offset: dict[int, int] = {}
        self.size = 0
        fresh = {n.id for n in outputs}
        last: dict[int, int] = {}
        nodes: dict[int, Node] = {}
        for k, g in enumerate(groups):
            for n in g.nodes:
                for a in n.args:
                    last[a.node.id] = k
        free: dict[int, list[int]] = {}
        ends: dict[int, list[Node]] = {}
        for k, g in enumerate(groups):
            for n in g.nodes:
                nodes[n.id] = n
                if n.id not in stored or n.id in fresh or n.op in ("call", *GIVEN):
                    continue
                size = max(-(-n.size * n.dtype.itemsize // _LINE), 1) * _LINE
                spots = free.get(size)
                if spots:
                    self.offset[n.id] = spots.pop()
                else:
                    self.offset[n.id] = self.size
                    self.size += size
                ends.setdefault(last.get(n.id, k), []).append(n)
            for n in ends.pop(k, ()):
                size = max(-(-n.size * n.dtype.itemsize // _LINE), 1) * _LINE
                free.setdefault(size, []).append(self.offset[n.id])
