"""Find kernels that threads may run at the same time: none of them writes memory that another one uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from adjoint.compiler.emit.loop import Kernel
from adjoint.compiler.fuse import GIVEN, Group
from adjoint.compiler.memory import Memory

__all__ = ["together"]

_MOST = 16  # kernels of a run; each is compared with all others


class _Range(NamedTuple):
    """Bytes ``low`` to ``high`` of the arena, or of the array of the node with the id ``array``."""

    array: int | None
    low: int
    high: int

    def meets(self, other: _Range) -> bool:
        return self.array == other.array and self.low < other.high and other.low < self.high


class _Use(NamedTuple):
    """The memory that a kernel writes, and all memory that it uses."""

    group: Group
    writes: list[_Range]
    all: list[_Range]
    workspace: bool

    def clashes(self, other: _Use) -> bool:
        """Return whether one of two kernels must run before the other."""
        if self.group is other.group or "repeat" in (self.group.kind, other.group.kind):
            return True
        if self.workspace and other.workspace:
            return True
        return _meet(self.writes, other.all) or _meet(other.writes, self.all)


def _meet(some: Iterable[_Range], others: Sequence[_Range]) -> bool:
    return any(x.meets(y) for x in some for y in others)


def together(
    kernels: Sequence[tuple[Group, Kernel]], memory: Memory, stored: set[int], bounds: Iterable[int]
) -> list[int]:
    """Divide kernels into runs that threads may run at the same time; return the length of each run.

    ``stored`` are the ids of the nodes in memory.  A run does not continue past one of the ``bounds``, which
    are kernel numbers.
    """
    ends = set(bounds)
    found: list[int] = []
    run: list[_Use] = []
    for k, (group, kernel) in enumerate(kernels):
        use = _use(group, kernel, memory, stored)
        if k in ends or len(run) == _MOST or any(map(use.clashes, run)):
            found.append(len(run))
            run = []
        run.append(use)
    return [n for n in (*found, len(run)) if n]


def _use(group: Group, kernel: Kernel, memory: Memory, stored: set[int]) -> _Use:
    """Return the memory that a kernel uses."""
    made = {n.id for n in group.nodes if n.id in stored}
    writes, used = [], []
    for slot in kernel.slots:
        if slot.node is None or slot.node.op in GIVEN:
            continue
        base, offset = memory.place(slot.node)
        size = slot.node.size * slot.node.dtype.itemsize
        if base.id in memory.offset:
            start = memory.offset[base.id] + offset
            used.append(_Range(None, start, start + size))
        else:
            used.append(_Range(base.id, offset, offset + size))
        if slot.node.id in made:
            writes.append(used[-1])
    return _Use(group, writes, used, any(s.node is None for s in kernel.slots))
