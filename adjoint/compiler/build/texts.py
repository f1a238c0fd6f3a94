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
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from adjoint.compiler.build import cache, units
from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.writer import SHARED
from adjoint.compiler.lower.graph import Primitive, View
from adjoint.compiler.schedule.fuse import Fusion
from adjoint.compiler.schedule.kernel import Address, Kernel

__all__ = ["Texts"]

Made = tuple[list[Kernel], int]  # kernels, and the number of bytes of workspace that they need
Rows = tuple[Sequence[Sequence[Any]], int]  # the attributes of each kernel, and bytes of workspace
_LIMIT = 256  # cached groups, the oldest of which are removed; a group takes about 16 KiB
_known: dict[Any, Rows] = {}  # key: the machine and the key of ``_Form``
_PLAIN = (str, bytes, int, float, bool, type(None))


class Texts:
    """Finds the kernels of a program's groups in memory or on disk, or generates and caches them."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.directory = cache.cache_directory() if _stamp() else None
        self.read: dict[str, Rows] = {}  # from disk, by the name of the form
        self.new: dict[str, Rows] = {}  # not on disk yet

    def kernels(self, group: Fusion, stored: Sequence[Primitive], write: Callable[[], Made]) -> Made:
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
                found = [form.row(k) for k in kernels], space
                if name:
                    self.new[name] = found
            _remember(key, found)
        rows, space = found
        return [form.kernel(*row) for row in rows], space

    def _name(self, key: Any) -> str:
        """Return the name of the file entry for kernels with this key; "" if they are not cached on disk."""
        if self.directory is None or not _is_plain(key):
            return ""
        return units.key_of(f"{_stamp()} {self.machine} {key}", self.machine)

    def _from_disk(self, name: str) -> Rows | None:
        """Return the kernels that ``save`` wrote under ``name``; None if there are none."""
        if self.directory is None or not name:
            return None
        if name not in self.read:
            with suppress(zlib.error, ValueError):  # not the contents that ``save`` writes
                for image in cache.read(self.directory, name):
                    groups, shared = json.loads(zlib.decompress(image.code))
                    self.read.update(groups)
                    SHARED.update(shared)
        return self.read.get(name)

    def save(self) -> None:
        """Write the kernels that were generated since the last call to one file of the disk cache."""
        self.read = {}
        if self.directory is None or not self.new:
            return
        texts = [row[0] for rows, _ in self.new.values() for row in rows]
        shared = {name: SHARED[name] for text in texts for name in units.USED.findall(text)}
        code = zlib.compress(json.dumps((self.new, shared)).encode(), 1)
        cache.write(self.directory, [cache.Image({k: k for k in self.new}, {}, code)], self.new)
        self.new = {}


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
    """Return the names, sizes and times of the compiler's files, part of the keys on disk; "" if unknown."""
    folder = Path(str(sys.modules["adjoint"].__file__)).parent / "compiler"
    try:
        files = [(str(path), path.stat()) for path in sorted(folder.rglob("*.py"))]
    except OSError:
        return ""
    return repr([(name, s.st_size, s.st_mtime_ns) for name, s in files]) if files else ""


class _Form:
    """The properties of a group of nodes that determine the text of its kernels.

    ``key`` is equal for groups that can share a text.  ``places`` maps each address that a kernel may
    receive, given as (id of a node, offset in bytes), to an index.
    """

    def __init__(self, group: Fusion, stored: set[int]) -> None:
        self.group = group
        self.nodes: dict[int, Primitive] = {}
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

    def row(self, k: Kernel) -> tuple[Any, ...]:
        """Return a kernel without nodes: a slot is an index in ``places``, or an offset in the workspace."""
        slots = [
            (False, s.offset) if s.node is None else (True, self.places[s.node.id, s.offset]) for s in k.slots
        ]
        return k.text, slots, k.length, k.unit, k.cost, k.chunks

    def kernel(self, text: str, slots: Any, *sizes: Any) -> Kernel:
        """Return the kernel that ``row`` encoded, with the nodes of this group."""
        places = [Address(self.nodes[i], offset) for i, offset in self.places]
        return Kernel(text, [places[k] if inside else Address(None, k) for inside, k in slots], *sizes)

    def _enter(self, node: Primitive) -> int:
        self.nodes[node.id] = node
        return self.seen.setdefault(node.id, len(self.seen))

    def _place(self, node: Primitive, offset: int) -> int:
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
