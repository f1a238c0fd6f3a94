"""Kernels of groups that are alike are written once: equal layers differ in their buffers alone.

The text of a kernel depends on the ops of its group, on the strides of what they read, and on which
operands are the same; not on what the buffers are, and not on offsets in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.compiler.emit.loop import Kernel, Slot
from adjoint.compiler.fuse import Group
from adjoint.compiler.machine import Machine
from adjoint.compiler.simplify import Node, View

__all__ = ["written"]

Made = tuple[list[Kernel], int]  # kernels, and the bytes of workspace they need
_LIMIT = 2000  # groups
# by the form of a group: text, places of the slots, length, unit and cost of each kernel; workspace
_known: dict[Any, tuple[list[tuple[Any, ...]], int]] = {}


def written(machine: Machine, group: Group, stored: Sequence[Node], write: Callable[[], Made]) -> Made:
    """Return the kernels of a group: from one that is alike, or by ``write``."""
    form = _Form(group, {n.id for n in stored})
    key = machine, form.key
    found = _known.get(key)
    if found is None:
        kernels, space = write()
        numbers = {place: k for k, place in enumerate(form.places)}
        rows = [(k.text, [_number(numbers, s) for s in k.slots], k.length, k.unit, k.cost) for k in kernels]
        if len(_known) >= _LIMIT:
            _known.clear()
        _known[key] = rows, space
        return kernels, space
    rows, space = found
    places = [(form.nodes[i], offset) for i, offset in form.places]
    return [
        Kernel(text, [_slot(places, s) for s in slots], length, unit, cost)
        for text, slots, length, unit, cost in rows
    ], space


def _number(numbers: dict[tuple[int, int], int], slot: Slot) -> tuple[bool, int]:
    """Return a slot as the number of a place, or as bytes of the workspace."""
    if slot.node is None:
        return False, slot.offset
    return True, numbers[slot.node.id, slot.offset]


def _slot(places: list[tuple[Node, int]], slot: tuple[bool, int]) -> Slot:
    inside, number = slot
    return Slot(*places[number]) if inside else Slot(None, number)


class _Form:
    """What the text of a group's kernels depends on: ``key``; and the places that slots may have."""

    def __init__(self, group: Group, stored: set[int]) -> None:
        self.group = group
        self.nodes: dict[int, Node] = {}
        self.seen: dict[int, int] = {}
        self.places: dict[tuple[int, int], int] = {}  # of a node and bytes in it
        self.parts: list[Any] = []
        for n in group.nodes:
            args = tuple([self._operand(a) for a in n.args])
            self._enter(n)
            self._place(n, 0)
            own = (n.op, n.params, n.shape, n.dtype.char, group.level[n.id], n.id in stored)
            self.parts.append((own, args))
        self.key = group.kind, group.domain, group.axis, tuple(self.parts)

    def _enter(self, node: Node) -> int:
        self.nodes[node.id] = node
        return self.seen.setdefault(node.id, len(self.seen))

    def _place(self, node: Node, offset: int) -> int:
        return self.places.setdefault((node.id, offset), len(self.places))

    def _operand(self, a: View) -> Any:
        number = a.scalar()
        if number is not None:
            self._enter(a.node)
            place = self._place(a.node, a.offset * a.dtype.itemsize)
            return "number", place, a.dtype.char, np.asarray(number).tobytes(), a.shape
        node = a.node
        if node.id in self.group.numbers and node.id not in self.seen:
            args = tuple([self._operand(x) for x in node.args])
            self.parts.append((node.op, node.params, node.dtype.char, args))
        place = self._place(node, a.offset * node.dtype.itemsize)
        whole = self._place(node, 0)  # tables are read from their start
        return self._enter(node), place, whole, node.dtype.char, a.shape, a.strides
