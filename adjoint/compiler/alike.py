"""Cache the LLVM IR texts of kernels: groups of nodes that differ only in their buffers share one text.

Equal layers of a network usually give such groups.  The text of a kernel depends on the ops of its group, on
the strides of their operands, and on which operands are the same; it does not depend on the buffers or on
offsets into them.
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
_LIMIT = 2000  # cached groups
# key: the machine and the key of ``_Form``; value: the attributes of each kernel, and bytes of workspace
_known: dict[Any, tuple[list[tuple[Any, ...]], int]] = {}


def written(machine: Machine, group: Group, stored: Sequence[Node], write: Callable[[], Made]) -> Made:
    """Return the kernels of a group, and the number of bytes of workspace that they need.

    If the kernels of a group of the same form are cached, they are copied with the buffers of this group.
    Otherwise ``write()`` makes them.  ``stored`` are the nodes of the group whose values are written to
    memory.
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
    """Encode a slot (the address of a buffer that a kernel receives) without naming its node.

    Return ``(True, number in _Form.places)``, or ``(False, offset in the workspace)`` if the slot has no
    node.
    """
    if slot.node is None:
        return False, slot.offset
    return True, numbers[slot.node.id, slot.offset]


def _slot(places: list[tuple[Node, int]], slot: tuple[bool, int]) -> Slot:
    """Decode a slot that ``_number`` encoded; ``places`` has the (node, offset) pairs of the new group."""
    inside, number = slot
    return Slot(*places[number]) if inside else Slot(None, number)


class _Form:
    """The properties of a group that determine the text of its kernels.

    ``key`` is equal for groups that can share a text.  ``places`` assigns a number to every address that a
    kernel may receive, given by the id of a node and an offset in bytes.
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
        whole = self._place(node, 0)  # the table of a gather is read from its start
        return self._enter(node), place, whole, node.dtype.char, a.shape, a.strides
