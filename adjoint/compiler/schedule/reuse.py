"""Find outputs that kernels can compute in the memory of an input.

An optimiser replaces a parameter by a function of its old value, element by element.  If every other kernel
that reads the old value runs earlier, the new value can be written over the old one.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from adjoint.compiler.lower.graph import Primitive, View, row_major
from adjoint.compiler.schedule.fuse import FULL, Fusion, over, stages
from adjoint.compiler.schedule.memory import Memory, home_of

__all__ = ["Reuse"]


_WRITERS = ("loop", "matmul", "scatter")  # kinds of groups that can write over an input


class _Read(NamedTuple):
    """Elements ``low`` to ``high`` of an input that ``node`` reads; None: read at the start of the group."""

    low: int
    high: int
    group: int
    node: Primitive | None
    view: View


class Reuse:
    """Finds outputs that can be written over inputs, but not by the first ``checked`` groups, the checks."""

    def __init__(self, groups: Sequence[Fusion], memory: Memory, stored: set[int], checked: int = 0) -> None:
        self.groups, self.memory, self.stored, self.checked = groups, memory, stored, checked
        self.sources: dict[int, Primitive] = {}  # by the id of an output: the input it is written over
        self.replaced: set[int] = set()  # the ids of these inputs
        self.made: dict[int, list[int]] = {}  # the indices of the groups that compute a node, by its id
        self.reads: dict[int, list[_Read]] = {}  # by the id of the input
        self.read_by: dict[int, list[View]] = {}  # by the id of the group
        for k, g in enumerate(groups):
            for n in g.nodes:
                self.made.setdefault(n.id, []).append(k)
                for a in _operands(n):
                    self._read(k, n, a)

    def _read(self, k: int, n: Primitive | None, a: View) -> None:
        """Record that group ``k`` reads ``a`` to compute ``n``; ``n`` is None if it reads ``a`` once."""
        if a.node.op == "source":
            self.reads.setdefault(a.node.id, []).append(_Read(*a.extent(), k, n, a))
            self.read_by.setdefault(id(self.groups[k]), []).append(a)
        elif a.node.id in self.groups[k].numbers:
            for inner in a.node.args:
                self._read(k, None, inner)

    def accepts(self, output: View, source: Primitive) -> bool:
        """Return whether an output can use the memory of the input ``source``; if so, record the pair."""
        node = output.node
        if node.dtype != source.dtype or output.shape != source.shape or not node.size:
            return False
        self.reads.get(source.id, []).sort(key=lambda read: read.low)
        self.longest = max([read.high - read.low for read in self.reads.get(source.id, ())], default=0)
        writes = list(self._writes(node))
        if not writes or not all(self._is_safe(k, n, start, source) for k, n, start in writes):
            return False
        self.sources[node.id] = source
        self.replaced.add(source.id)
        return True

    def spans(self, group: Fusion) -> Iterator[tuple[Primitive, int, int]]:
        """Yield (input, first, last): the elements that a group reads of each input that is overwritten."""
        found = {(a.node.id, a.extent()): a.node for a in self.read_by.get(id(group), ())}
        for (key, span), node in found.items():
            if key in self.replaced:
                yield node, *span

    def _writes(self, node: Primitive) -> Iterator[tuple[int, Primitive, int]]:
        """Yield (group index, node, start) for each node whose value is written into the output ``node``.

        ``start`` is the position of its first element in the output.  The index is -1 if the group cannot
        write over an input.  Nothing is yielded if the output is copied from other memory.
        """
        if node.op != "place":
            parts = [(node, 0)]
        elif node.tiled and self.memory.pieces_in_place(node).issuperset(i for _, _, i in node.value):
            parts = [(node.args[i].node, start) for start, _, i in node.value]
        else:
            return
        for n, start in parts:
            where = self.made.get(n.id, [])
            possible = len(where) == 1 and self.groups[where[0]].kind in _WRITERS
            yield where[0] if possible else -1, n, start

    def _is_safe(self, k: int, n: Primitive, start: int, source: Primitive) -> bool:
        """Return whether group ``k`` can write ``n`` over the input ``source``, from element ``start`` on."""
        g = self.groups[k]
        if k < self.checked:
            return False
        if g.kind == "matmul" and n is home_of(g.nodes[0], [x for x in g.nodes if x.id in self.stored]):
            return False
        reads = self.reads.get(source.id, [])
        first = bisect_left(reads, start - self.longest, key=lambda read: read.low)
        for read in itertools.takewhile(lambda read: read.low < start + n.size, reads[first:]):
            if read.high < start or read.group < k:
                continue
            if read.group > k or not self._is_alike(g, read, n, start):
                return False
        return self._comes_first(g, n, source, start)

    def _is_alike(self, g: Fusion, read: _Read, n: Primitive, start: int) -> bool:
        """Return whether a group loads the elements of ``read`` before it writes ``n`` over them."""
        reader, a = read.node, read.view
        if reader is None:  # at the start of each thread, when another thread may already have written
            return math.prod(g.kept) == 1
        if reader.op == "scatter":
            return a is reader.args[0] and a.is_whole()
        if reader.op in ("matmul", "reduce", "gather") or g.level[reader.id] != g.level[n.id]:
            return False
        full = g.level[n.id] == FULL
        if full and g.axis is not None and not self._is_read_before(g, reader, n):
            return False  # a loop may read an element again after it, or an earlier loop, has written it
        shape = g.domain if full else g.kept
        return a.offset == start and over(a, shape) == row_major(shape)

    def _is_read_before(self, g: Fusion, reader: Primitive, n: Primitive) -> bool:
        """Return whether a group loads no operand of ``reader`` after it has written ``n``.

        The group has reductions, so its kernel has several loops.  A loop computes the values of earlier
        loops again where it needs them, and loads each element once.
        """
        stage = stages(g)[0]
        full = [x for x in g.nodes if x.op == "reduce" or g.level[x.id] == FULL]
        if stage[n.id] < max(stage[x.id] - (x.op == "reduce") for x in full):
            return False
        if stage[reader.id] == stage[n.id]:
            return reader in _ancestors(g, n)
        return all(x is n for x in g.nodes if any(a.node is reader for a in x.args))

    def _comes_first(self, g: Fusion, n: Primitive, source: Primitive, start: int) -> bool:
        """Return whether a kernel loads each element of ``source`` before it writes ``n`` over it."""
        readers = [x for x in g.nodes if any(_overlaps(a, source, start, n.size) for a in x.args)]
        if not readers:
            return True
        if g.level[n.id] != FULL:
            stage = stages(g)[0]
            order = {x.id: (stage[x.id], k) for k, x in enumerate(g.nodes)}
            return all(order[x.id] <= order[n.id] for x in readers)
        return not _ancestors(g, n).isdisjoint(readers)


def _ancestors(g: Fusion, n: Primitive) -> set[Primitive]:
    """Return ``n`` and all nodes of the group ``g`` that ``n`` is computed from."""
    inside = {x.id for x in g.nodes}
    found, todo = {n}, [n]
    while todo:
        for a in todo.pop().args:
            if a.node.id in inside and a.node not in found:
                found.add(a.node)
                todo.append(a.node)
    return found


def _operands(n: Primitive) -> list[View]:
    """Return the operands that a node reads; an operand that others overwrite completely is left out."""
    return [n.args[i] for _, _, i in n.value] if n.tiled else list(n.args)


def _overlaps(a: View, source: Primitive, start: int, size: int) -> bool:
    low, high = a.extent()
    return a.node is source and low < start + size and high >= start
