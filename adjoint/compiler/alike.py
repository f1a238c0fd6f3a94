"""A cache of kernel texts: groups of nodes that differ only in their buffers share one text.

The layers of a network are usually such groups.  The text of a kernel depends on the ops of its group, on the
strides of their operands, and on which operands are the same; it does not depend on the buffers or on offsets
into them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.compiler.emit.kernel import Kernel, Slot
from adjoint.compiler.fuse import Group
from adjoint.compiler.machine import Machine
from adjoint.compiler.simplify import Node, View

__all__ = ["written"]

Made = tuple[list[Kernel], int]  # kernels, and the number of bytes of workspace that they need
_LIMIT = 2000  # groups
# key: the form of a group; value: the attributes of each kernel, and bytes of workspace
_known: dict[Any, tuple[list[tuple[Any, ...]], int]] = {}


def written(machine: Machine, group: Group, stored: Sequence[Node], write: Callable[[], Made]) -> Made:
    """Return the kernels of a group, and the bytes of workspace that they need.

    They are made from the cached kernels of a group of the same form, or else by ``write()``.  ``stored`` are
    the nodes of the group whose values are written to memory.
    """
    form = _Form(group, {n.id for n in stored})
    key = machine, form.key
    found = _known.get(key)
    if found is None:
        kernels, space = write()
        numbers = {place: k for k, place in enumerate(form.places)}
        rows = [
            (k.text, [_number(numbers, s) for s in k.slots], k.length, k.unit, k.cost, k.chunks)
            for k in kernels
        ]
        if len(_known) >= _LIMIT:
            _known.clear()
        _known[key] = rows, space
        return kernels, space
    rows, space = found
    places = [(form.nodes[i], offset) for i, offset in form.places]
    return [
        Kernel(text, [_slot(places, s) for s in slots], length, unit, cost, chunks)
        for text, slots, length, unit, cost, chunks in rows
    ], space


def _number(numbers: dict[tuple[int, int], int], slot: Slot) -> tuple[bool, int]:
    """Return a slot in a form that does not name nodes.

    It is ``(True, index into _Form.places)``, or ``(False, offset in the workspace)`` if it has no node.
    """
    if slot.node is None:
        return False, slot.offset
    return True, numbers[slot.node.id, slot.offset]


def _slot(places: list[tuple[Node, int]], slot: tuple[bool, int]) -> Slot:
    """Return the slot that ``_number`` has encoded; ``places`` are the ``_Form.places`` of the new group."""
    inside, number = slot
    return Slot(*places[number]) if inside else Slot(None, number)


class _Form:
    """The properties of a group that determine the text of its kernels.

    ``key`` compares equal for groups that can share a text.  ``places`` numbers every (node, offset in bytes)
    that a kernel may get the address of.
    """

    def __init__(self, group: Group, stored: set[int]) -> None:
        self.group = group
        self.nodes: dict[int, Node] = {}
        self.seen: dict[int, int] = {}
        self.places: dict[tuple[int, int], int] = {}  # (id of the node, offset in bytes): number
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
