"""Sum columns in the kernel that processes the rows, instead of reading all arrays once more.

The backward of a layer norm is an example.  One kernel reads x and the gradient row by row; the gradients of
weight and bias are column sums of x times the gradient and of the gradient.  The kernel that processes the
rows adds each row to such sums.  It has one *partial* sum per chunk of its outermost loop, so that the result
does not depend on which thread runs a chunk.  The kernel of the column sums then adds the partial sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from adjoint.compiler.lower.graph import Dataflow, Primitive, View
from adjoint.compiler.schedule.fuse import (
    FULL,
    KEPT,
    MOST,
    Fusion,
    in_loop_order,
    over,
    reads_in_place,
    stages,
)

__all__ = ["sum_columns_in_rows"]


def sum_columns_in_rows(graph: Dataflow, groups: Sequence[Fusion]) -> None:
    """Move column sums to earlier kernels that read the same arrays row by row; change ``groups``."""
    where = {n.id: k for k, g in enumerate(groups) for n in g.nodes}
    for k, group in enumerate(groups):
        ndim = len(group.domain)
        if group.kind != "loop" or ndim not in (2, 3) or group.axis != ndim - 2:
            continue
        if math.prod(group.domain) < graph.sizes.large or any(stages(group)[0][n.id] for n in _full(group)):
            continue
        for i in reversed(range(k)):
            move = _Move(graph, group, groups[i], i, where)
            if _processes_rows(groups[i], group) and move.fits():
                move.put()
                break


def _full(group: Fusion) -> list[Primitive]:
    """Return the nodes of a group that have one value per element of the group's loops."""
    return [n for n in group.nodes if n.op != "reduce" and group.level[n.id] == FULL]


def _sums(group: Fusion) -> list[Primitive]:
    return [n for n in group.nodes if n.op == "reduce"]


def _processes_rows(rows: Fusion, columns: Fusion) -> bool:
    """Return whether ``rows`` reduces along the rows of a matrix whose columns ``columns`` sums.

    Long columns are summed in blocks: the loops of ``columns`` are then blocks, rows of a block, and columns.
    """
    if rows.kind != "loop" or rows.axis is None or rows.axis != len(rows.domain) - 1:
        return False
    *blocks, block, length = columns.domain
    if blocks and rows.chunks not in (0, *blocks):
        return False
    return (math.prod(rows.domain[:-1]), rows.domain[-1]) == (math.prod(blocks) * block, length)


class _Move:
    """Moves the column sums of ``columns`` to the earlier group ``rows``, whose index is ``at``."""

    def __init__(
        self, graph: Dataflow, columns: Fusion, rows: Fusion, at: int, where: dict[int, int]
    ) -> None:
        self.graph, self.columns, self.rows, self.at, self.where = graph, columns, rows, at, where
        self.moved = {n.id for n in _full(columns)}

    def fits(self) -> bool:
        """Return whether ``rows`` can compute the nodes of ``columns`` without reading other large arrays."""
        full, sums = _full(self.columns), _sums(self.columns)
        size = sum(self.columns.domain[-1] * n.dtype.itemsize for n in sums)
        if size > self.graph.sizes.sums or len(self.rows.nodes) + len(full) + len(sums) > MOST:
            return False
        if any(n.op == "gather" for n in full):
            return False
        operands = [a for n in full for a in n.args] + [in_loop_order(n) for n in sums]
        read = {a.node.id for n in self.rows.nodes for a in n.args} | {n.id for n in self.rows.nodes}
        return all(self._is_there(a, read) for a in operands)

    def _is_there(self, a: View, read: set[int]) -> bool:
        """Return whether the group ``rows`` can read the operand ``a`` at no or little cost."""
        if a.node.id in self.moved or a.scalar() is not None or a.node.id in self.rows.numbers:
            return True
        if over(a, self.rows.domain) is None:
            return False
        made = self.where.get((a.node.args[0].node if a.node.op == "part" else a.node).id)
        if made == self.at:
            return reads_in_place(self.rows, a, self.rows.domain)
        if made is not None and made > self.at:
            return False
        return a.node.id in read or a.node.size < math.prod(self.rows.domain)

    def put(self) -> None:
        """Move the nodes to ``rows``; what is left in ``columns`` adds the partial sums of ``rows``."""
        *blocks, rows, length = self.columns.domain
        if blocks:
            chunks = blocks[0]
        else:
            target = self.graph.sizes
            most = min(rows // target.rows, rows * length // target.chunk, target.chunks)
            chunks = self.rows.chunks or max(1, most)
        for n in _full(self.columns):
            self.rows.add(n, FULL)
            self.where[n.id] = self.at
        for n in _sums(self.columns):
            node = Primitive("partial", (in_loop_order(n),), (n.params[0], chunks), (chunks, length), n.dtype)
            self.rows.add(self.graph.add(node), FULL)
            node.origin = n.origin or n.params[0]
            self.where[node.id] = self.at
            if blocks:  # the sum of each block is the partial sum of one chunk
                n.args = (View(self.graph, node, (chunks, length, 1), (length, 1, 0), 0),)
            else:
                n.args = (View(self.graph, node, (length, chunks), (1, length), 0),)
        self.rows.chunks = chunks
        self.columns.nodes = [n for n in self.columns.nodes if self.columns.level[n.id] == KEPT]
        self.columns.domain = (chunks, 1, length) if blocks else (chunks, length)
