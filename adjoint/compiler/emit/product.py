"""Kernels of matrix products whose results elementwise nodes take from the tile, before they reach memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

from adjoint.compiler.emit import gemm
from adjoint.compiler.emit.loop import Kernel, Lane, Loop, Slot
from adjoint.compiler.emit.math import FUNCTIONS
from adjoint.compiler.emit.text import Index, Value, Writer
from adjoint.compiler.fuse import Group
from adjoint.compiler.machine import Machine
from adjoint.compiler.simplify import Node, View

__all__ = ["product_kernels"]


def product_kernels(
    machine: Machine, group: Group, stored: Sequence[Node], threads: int
) -> tuple[list[Kernel], int]:
    """Return the kernels of a group that begins with a product, and the bytes of workspace they share."""
    node = group.nodes[0]
    a, b = node.args
    m, n, k = node.shape[-2], node.shape[-1], a.shape[-1]
    batch = node.shape[:-2]
    steps = [math.prod(node.shape[i + 1 :]) for i in range(len(batch))]
    product = gemm.Product(
        node.dtype, m, n, k, (a.strides[-2], a.strides[-1]), (b.strides[-2], b.strides[-1]), (n, 1), batch,
        a.strides[:-2], b.strides[:-2], tuple(steps),
    )  # fmt: skip
    # the product itself is written to the memory of a result, if it is not a result
    home = next((x for x in stored if x is node), None) or next(
        (x for x in stored if x.dtype == node.dtype), node
    )
    epilogue = _Epilogue(machine, group, [x for x in stored if x is not home], home)
    made = gemm.gemm(machine, product, epilogue if len(group.nodes) > 1 else None)
    wide = node.dtype.itemsize / 4
    work = 0.9 * math.prod(node.shape) * k + 4.0 * node.size * len(group.nodes)
    kernels = []
    at_b = _slot(b)
    if made.pack is not None:
        packed = Slot(None, 0)
        kernels.append(Kernel(made.pack.text, [at_b, packed], made.pack.length, 1, 5.0 * b.size * wide))
        at_b = packed
    space = -(-made.packed // 64) * 64
    slots = [_slot(a), at_b, Slot(home, 0), Slot(None, space), *epilogue.slots_used]
    kernels.append(Kernel(made.main.text, slots, made.main.length, 1, work * wide))
    return kernels, space + made.scratch * threads


def _slot(view: View) -> Slot:
    return Slot(view.node, view.offset * view.dtype.itemsize)


class _Epilogue(Loop):
    """What is done with a vector of a tile."""

    def __init__(self, machine: Machine, group: Group, stored: Sequence[Node], home: Node) -> None:
        self.home = home
        self.others = stored
        super().__init__(machine, group, stored, {})
        self.plain = self._is_plain()

    def _find_axes(self) -> None:
        """Take all axes as they are: rows and columns are given."""
        self.lengths = list(self.group.domain)
        self.across = len(self.lengths) - 1
        self.reduced, self.columns = None, False
        self.outer = list(range(self.across))

    def slot(self, node: Node, offset: int = 0) -> Value:
        """Return the address of an element of a node."""
        return self.w.slot(self._slot_of(node, offset) + gemm.FREE)

    def __call__(
        self, w: Writer, item: Index, row: Index, column: Index, sums: Value, mask: Value | None
    ) -> Value:
        """Emit the nodes of the group on a vector of sums; store all results but the one that is returned."""
        self._use(w)
        self._start([*self._batch(item), row])
        count = sums.lanes if mask is None else mask.text.count("true")
        lane = Lane(column, sums.lanes, mask, count)
        lane.known[self.group.nodes[0].id] = sums
        for n in self.others:
            self._store(self.target[n.id], self._value(n, lane, 0), lane)
        return self._value(self.home, lane, 0)

    def _use(self, w: Writer) -> None:
        """Load numbers at the start of a new function, or here if that needs branches."""
        if w is self.w and self.plain:
            return
        self.w, self.numbers, self.once = w, {}, {}
        with w.early() if self.plain else contextlib.nullcontext():
            self._load_numbers()

    def _is_plain(self) -> bool:
        """Tell whether the numbers that the nodes use are arithmetic alone."""
        todo = [a.node for n in self.group.nodes for a in n.args if a.node.id in self.group.numbers]
        while todo:
            n = todo.pop()
            if n.op in FUNCTIONS or n.op == "power":
                return False
            todo += [a.node for a in n.args if a.node.id in self.group.numbers]
        return True

    def _batch(self, item: Index) -> list[Any]:
        found: list[Index] = []
        rest = item
        for n in reversed(self.lengths[:-2]):
            rest, index = self.w.divide(rest, n)
            found.append(index)
        return found[::-1]
