"""Cache the LLVM IR texts of kernels: groups of nodes that differ only in their buffers share one text.

Equal layers of a network usually give such groups.  The text of a kernel depends on the ops of its group, on
the strides of their operands, and on which operands are the same; it does not depend on the buffers or on
offsets into them.

The texts of a program are also written to the disk cache, because most of the time of a build whose units are
on disk would go into generating them.
"""

from __future__ import annotations

import functools
import json
import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from adjoint.compiler import disk, units
from adjoint.compiler.emit.kernel import Kernel, Slot
from adjoint.compiler.emit.text import SHARED
from adjoint.compiler.fuse import Group
from adjoint.compiler.machine import Machine
from adjoint.compiler.simplify import Node, View

__all__ = ["Texts"]

Made = tuple[list[Kernel], int]  # kernels, and the number of bytes of workspace that they need
Rows = tuple[Sequence[Sequence[Any]], int]  # the attributes of each kernel, and bytes of workspace
_LIMIT = 256  # cached groups, the oldest of which are removed; a group takes about 16 KiB
_known: dict[Any, Rows] = {}  # key: the machine and the key of ``_Form``
_PLAIN = (str, bytes, int, float, bool, type(None))


class Texts:
    """Finds the kernels of a program's groups in memory or on disk, or generates and caches them.

    A group is a set of nodes that become one or a few kernels.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.directory = disk.cache_directory() if _stamp() else None
        self.read: dict[str, Rows] = {}  # from disk, by the name of the form
        self.new: dict[str, Rows] = {}  # not on disk yet

    def kernels(self, group: Group, stored: Sequence[Node], write: Callable[[], Made]) -> Made:
        """Return the kernels of a group of nodes, and the number of bytes of workspace that they need.

        If kernels of a group of the same form are cached, they are copied and receive the buffers of this
        group.  Otherwise ``write()`` makes the kernels.  ``stored`` are the nodes of the group whose values
        are written to memory.
        """
        form = _Form(group, {n.id for n in stored})
        key = self.machine, form.key
        found = _known.get(key)
        if found is None:
            name = self._name(form.key)
            found = self._from_disk(name)
            if found is None:
                kernels, space = write()
                made = _rows(form, kernels), space
                _remember(key, made)
                if name:
                    self.new[name] = made
                return kernels, space
            _remember(key, found)
        rows, space = found
        places = [(form.nodes[i], offset) for i, offset in form.places]
        return [
            Kernel(text, [_slot(places, s) for s in slots], length, unit, cost, chunks)
            for text, slots, length, unit, cost, chunks in rows
        ], space

    def _name(self, key: Any) -> str:
        """Return the name of the file entry for kernels with this key; "" if they are not cached on disk.

        ``key`` is ``_Form.key``.
        """
        if self.directory is None or not _is_plain(key):
            return ""
        return units.key_of(f"{_stamp()} {self.machine} {key}", self.machine)

    def _from_disk(self, name: str) -> Rows | None:
        """Return the kernels that ``save`` wrote under ``name``; None if there are none.

        All kernels in the same file are read and kept for later calls.
        """
        if self.directory is None or not name:
            return None
        if name not in self.read:
            with suppress(zlib.error, ValueError):  # not the contents that ``save`` writes
                for image in disk.read(self.directory, name):
                    groups, shared = json.loads(zlib.decompress(image.code))
                    self.read.update(groups)
                    SHARED.update(shared)
        return self.read.get(name)

    def save(self) -> None:
        """Write the kernels that were generated since the last call to one file of the disk cache.

        The texts of the shared units that these kernels call are written to the file too.
        """
        self.read = {}
        if self.directory is None or not self.new:
            return
        texts = [row[0] for rows, _ in self.new.values() for row in rows]
        shared = {name: SHARED[name] for text in texts for name in units.USED.findall(text)}
        code = zlib.compress(json.dumps((self.new, shared)).encode(), 1)
        disk.write(self.directory, [disk.Image({k: k for k in self.new}, {}, code)], self.new)
        self.new = {}


def _rows(form: _Form, kernels: Sequence[Kernel]) -> list[tuple[Any, ...]]:
    """Return the attributes of each kernel as a tuple; ``_number`` encodes its slots (buffer addresses)."""
    numbers = {place: k for k, place in enumerate(form.places)}
    return [
        (k.text, [_number(numbers, s) for s in k.slots], k.length, k.unit, k.cost, k.chunks) for k in kernels
    ]


def _remember(key: Any, rows: Rows) -> None:
    while len(_known) >= _LIMIT:
        with suppress(KeyError, RuntimeError):  # another thread has just changed the dictionary
            del _known[next(iter(_known))]
    _known[key] = rows


def _is_plain(key: Any) -> bool:
    """Return whether a key consists of tuples and of values with the same ``repr`` in every process."""
    return all(map(_is_plain, key)) if type(key) is tuple else type(key) in _PLAIN


@functools.cache
def _stamp() -> str:
    """Return the names, sizes and modification times of the compiler's source files, as one string.

    The string is part of the keys on disk: if the source has changed, the kernels on disk are not used.  It
    is "" if the files cannot be read.
    """
    found: list[Any] = []
    folder = Path(__file__).parent
    for each in (folder, folder / "emit"):
        try:
            with os.scandir(each) as entries:
                files = [(e.name, e.stat()) for e in entries if e.name.endswith(".py")]
        except OSError:
            return ""
        found += sorted((name, s.st_size, s.st_mtime_ns) for name, s in files)
    return repr(found)


def _number(numbers: dict[tuple[int, int], int], slot: Slot) -> tuple[bool, int]:
    """Encode a slot (the address of a buffer that a kernel receives) without naming its node.

    Return ``(True, index in _Form.places)``, or ``(False, offset in the workspace)`` if the slot has no node.
    """
    if slot.node is None:
        return False, slot.offset
    return True, numbers[slot.node.id, slot.offset]


def _slot(places: list[tuple[Node, int]], slot: tuple[bool, int]) -> Slot:
    """Decode a slot that ``_number`` encoded, for a new group; ``places`` has its (node, offset) pairs."""
    inside, number = slot
    return Slot(*places[number]) if inside else Slot(None, number)


class _Form:
    """The properties of a group of nodes that determine the text of its kernels.

    ``key`` is equal for groups that can share a text.  ``places`` maps each address that a kernel may
    receive, given as (id of a node, offset in bytes), to an index.
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
