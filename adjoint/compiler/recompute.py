"""Compute values again where a later kernel sums them, instead of storing them in between.

The gradients of a layer norm are an example.  One kernel computes (x − mean) / deviation in each row, and
another one sums products with it along the columns.  The second kernel computes them from x, and from the
mean and deviation of each row: writing and reading all products takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from adjoint.compiler.fuse import FULL, Group
from adjoint.compiler.simplify import Graph, Node, View, row_major

__all__ = ["recompute"]

_CHEAP = frozenset(("add", "subtract", "multiply", "negative", "maximum", "minimum", "copy"))
_MOST = 6  # nodes that are computed again for one value
_LARGE = 1 << 14  # elements: smaller values stay in the cache


def recompute(graph: Graph, groups: list[Group], roots: Sequence[Node]) -> list[Group]:
    """Return the groups, changed so that reductions compute cheap operands again instead of reading them."""
    changed = False
    where = {n.id: g for g in groups for n in g.nodes}
    users: dict[int, set[int]] = {r.id: {-1} for r in roots}  # groups, by order; -1: the value leaves
    for g in groups:
        for n in g.nodes:
            for a in n.args:
                users.setdefault(a.node.id, set()).add(g.order)
    for g in groups:
        if g.kind != "loop":
            continue
        for n in [n for n in g.nodes if n.op == "reduce"]:
            node = n.args[0].node
            maker = where.get(node.id)
            if maker is None or maker is g or maker.kind != "loop" or node.size < _LARGE:
                continue
            if users[node.id] <= {maker.order, g.order} and _is_whole(n, g):
                changed |= _Copy(graph, g, maker, users).put(n)
    return _needed(groups, roots) if changed else groups


def _needed(groups: list[Group], roots: Sequence[Node]) -> list[Group]:
    """Return the groups after removing, from those of kind "loop", the nodes that nothing reads any more."""
    read = {r.id for r in roots}
    for g in reversed(groups):
        for n in reversed(g.nodes):
            if g.kind != "loop" or n.id in read:
                read.update([a.node.id for a in n.args])
        if g.kind == "loop":
            g.nodes = [n for n in g.nodes if n.id in read]
    return [g for g in groups if g.nodes]


def _is_whole(n: Node, g: Group) -> bool:
    """Return whether a reduction reads the whole operand, in the order of the elements of the domain."""
    (a,), axis = n.args, n.params[1]
    last = a.ndim - 1
    plain = a.graph.permute(a, [*range(axis), last, *range(axis, last)])
    return plain.shape == g.domain and plain.is_whole()


class _Copy:
    """Copies nodes of the group ``maker`` into the later group ``group``, which reads them.

    ``users`` maps the id of a node to the order numbers of the groups that read it.
    """

    def __init__(self, graph: Graph, group: Group, maker: Group, users: dict[int, set[int]]) -> None:
        self.graph, self.group, self.maker, self.users = graph, group, maker, users

    def put(self, n: Node) -> bool:
        """Compute the operand of a reduction in ``group``, if that group then reads at most one more array.

        Return whether that was done.
        """
        (a,) = n.args
        chain = self._chain(a.node)
        if chain is None:
            return False
        inside = {m.id for m in chain}
        read = {x.node.id for m in chain for x in m.args if x.node.id not in inside and self._is_array(x)}
        other = {x.node.id for m in self.group.nodes if m is not n for x in m.args}
        if len(read - other) > 1:
            return False
        made: dict[int, Node] = {}
        for m in chain:
            args = tuple([self._moved(x, made) for x in m.args])
            made[m.id] = self.graph.add(Node(m.op, args, m.params, m.shape, m.dtype))
            made[m.id].origin = m.origin
        n.args = (self._moved(a, made),)
        self._enter(list(made.values()))
        return True

    def _chain(self, node: Node) -> list[Node] | None:
        """Return the nodes to compute again, operands first; None if they are many or not cheap."""
        found: dict[int, Node] = {}
        todo = [node]
        while todo:
            m = todo.pop()
            if m.id in found:
                continue
            found[m.id] = m
            if m.op not in _CHEAP or m.shape != self.group.domain or len(found) > _MOST:
                return None
            for x in m.args:
                if self._is_made_here(x):
                    if x.strides != row_major(m.shape) or x.offset:
                        return None
                    todo.append(x.node)
                elif x.shape != m.shape:
                    return None
        return [found[k] for k in sorted(found)]

    def _is_made_here(self, x: View) -> bool:
        """Return whether ``maker`` computes a value that no groups except ``maker`` and ``group`` read."""
        full = self.maker.level.get(x.node.id) == FULL
        return full and self.users[x.node.id] <= {self.maker.order, self.group.order}

    def _is_array(self, x: View) -> bool:
        return x.node.size >= math.prod(self.group.domain)

    def _moved(self, x: View, made: dict[int, Node]) -> View:
        node = made.get(x.node.id)
        return x if node is None else View(self.graph, node, x.shape, x.strides, x.offset)

    def _enter(self, nodes: list[Node]) -> None:
        """Insert nodes at the start of ``group``, before the nodes that read them."""
        g = self.group
        before, g.nodes = g.nodes, []
        for m in nodes:
            g.add(m, FULL)
        g.nodes += before
        g.flat = False
