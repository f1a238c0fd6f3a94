"""The plan of the loops of a group: axes, stages, vector width, and places in memory.

One axis of the domain is processed in vectors, whose elements are called lanes.  The remaining axes that are
not reduced are flattened into the outermost loop, whose iterations are called items.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.values import element_of
from adjoint.compiler.lower.graph import Primitive, row_major
from adjoint.compiler.schedule.fuse import FULL, PRODUCTS, Fusion, in_loop_order, over, stages

__all__ = ["LIGHT", "Nest", "Place", "weight"]

LIGHT = frozenset(
    """add subtract multiply negative abs maximum minimum where copy astype equal not_equal less less_equal
    greater greater_equal logical_and logical_or logical_not reduce partial""".split()
)
_COSTLY = {"divide": 8, "sqrt": 10, "tanh_gap": 12, "tanh_from_gap": 4}  # simple operations; others: 16


def weight(n: Primitive) -> float:
    """Return the cost of a node per element, in simple operations."""
    return 1.0 if n.op in LIGHT else _COSTLY.get(n.op, 16)


@dataclass(slots=True, eq=False)
class Place:
    """The position of a node's elements in memory: a base node, strides along the loop axes, an offset."""

    base: Primitive
    strides: tuple[int, ...]
    offset: int

    @property
    def element(self) -> str:
        """The LLVM type of the elements."""
        return element_of(self.base.dtype)

    @property
    def key(self) -> Any:
        """A tuple that is equal for equal positions in memory."""
        return self.base.id, self.strides, self.offset


class Nest:
    """The plan of the nested loops of a group, the nodes that one kernel computes."""

    def __init__(
        self, machine: Machine, group: Fusion, stored: Sequence[Primitive], places: dict[int, Place]
    ) -> None:
        self.machine = machine
        self.group = group
        self.inside = {n.id: n for n in group.nodes}
        self.stored = {n.id for n in stored}
        self.access: dict[tuple[int, int], Place] = {}  # by the id of a node and the index of its operand
        self.target: dict[int, Place] = {}
        self._find_places(places)
        self.stage, self.saved = stages(group)
        self.stages = max(self.stage.values(), default=0) + 1
        self._find_axes()
        self.vector = self._lanes()

    def _is_full(self, n: Primitive) -> bool:
        """Return whether a node is computed for every element of the loops, not once per reduced row."""
        return n.op == "reduce" or self.group.level[n.id] == FULL

    def _find_places(self, places: dict[int, Place]) -> None:
        """Set ``access`` and ``target``: the positions in memory of operands and of stored nodes."""
        g = self.group
        for n in g.nodes:
            full = self._is_full(n)
            for k, a in enumerate(n.args if n.op not in PRODUCTS else ()):
                if a.node.id in self.inside or a.node.id in g.numbers or (n.op == "gather" and k == 1):
                    continue
                view = in_loop_order(n) if n.op == "reduce" else a
                strides = over(view, g.domain if full else g.kept)
                assert strides is not None
                self.access[n.id, k] = Place(a.node, strides if full else self._spread(strides), a.offset)
            if n.id in self.stored:
                if n.id in places:
                    self.target[n.id] = places[n.id]
                elif n.op == "partial":
                    self.target[n.id] = Place(n, (*[0] * (len(g.domain) - 1), 1), 0)
                elif n.op != "reduce" and g.level[n.id] == FULL:
                    self.target[n.id] = Place(n, row_major(g.domain), 0)
                else:
                    self.target[n.id] = Place(n, self._spread(row_major(g.kept)), 0)

    def _spread(self, strides: tuple[int, ...]) -> tuple[int, ...]:
        """Return ``strides`` with a stride of 0 inserted for the reduced axis."""
        axis = self.group.axis
        return strides if axis is None else (*strides[:axis], 0, *strides[axis:])

    def _find_axes(self) -> None:
        """Merge loop axes where all strides allow it, and choose the axis that is processed in vectors."""
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
        """Return the axis along which most of ``places`` are contiguous; of several such axes, the last."""
        if (self.saved and self.group.axis == len(self.group.domain) - 1) or self.group.chunks:
            return len(self.lengths) - 1  # the saved values of one row fit on the stack
        best, score = len(self.lengths) - 1, -1
        for i in reversed(range(len(self.lengths))):
            found = sum(p.strides[i] == 1 for p in places) if self.lengths[i] > 3 else 0
            if found > score:
                best, score = i, found
        return best

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
