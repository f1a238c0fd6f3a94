"""Find kernels that threads may run at the same time: none of them writes memory that another one uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from adjoint.compiler.schedule.fuse import GIVEN, Fusion
from adjoint.compiler.schedule.kernel import Kernel
from adjoint.compiler.schedule.memory import Memory
from adjoint.compiler.schedule.reuse import Reuse

__all__ = ["together"]

_MOST = 16  # kernels per run


class _Access(NamedTuple):
    """A use of memory by a kernel: it reads or writes the bytes ``low`` to ``high`` of a buffer.

    ``buffer`` is ("arena", offset of the region) or ("array", id of the node).  ``run`` is the index of the
    run that the kernel is in.
    """

    buffer: tuple[str, int]
    low: int
    high: int
    writes: bool
    run: int = 0

    def clashes(self, other: _Access) -> bool:
        """Return whether two uses of one buffer conflict, so that one kernel must run after the other."""
        return (self.writes or other.writes) and self.low < other.high and other.low < self.high


def together(
    kernels: Sequence[tuple[Fusion, Kernel]], memory: Memory, stored: set[int], reuse: Reuse
) -> list[list[int]]:
    """Divide kernels into runs; threads may run the kernels of one run at the same time.

    Returns the indices of the kernels of each run.  A kernel is in a later run than all kernels that it
    depends on.  ``stored`` has the ids of the nodes in memory; ``reuse`` has the outputs that are written
    over inputs.
    """
    runs: list[list[int]] = []
    known: dict[tuple[str, int], list[_Access]] = {}  # by the buffer
    last: Fusion | None = None
    place = first = 0  # the run of the previous kernel; the first run after the last loop
    for k, (group, kernel) in enumerate(kernels):
        uses = list(_accesses(group, kernel, memory, stored, reuse))
        earlier = [t.run + 1 for u in uses for t in known.get(u.buffer, ()) if u.clashes(t)]
        place = max([first, *earlier, *([place + 1] if group is last else [])])
        if group.kind == "repeat":  # a loop uses memory that its slots do not list
            place = len(runs)
            first = place + 1
        while place < len(runs) and len(runs[place]) == _MOST:
            place += 1
        if place == len(runs):
            runs.append([])
        runs[place].append(k)
        last = group
        for u in uses:
            _note(known.setdefault(u.buffer, []), u._replace(run=place))
    return runs


def _note(uses: list[_Access], new: _Access) -> None:
    """Append ``new`` to the uses of a buffer; a write removes the earlier uses that it covers."""
    if new.writes:
        uses[:] = [u for u in uses if u.low < new.low or u.high > new.high]
    uses.append(new)


def _accesses(
    group: Fusion, kernel: Kernel, memory: Memory, stored: set[int], reuse: Reuse
) -> Iterator[_Access]:
    """Yield a ``_Access`` for each part of memory that a kernel reads or writes."""
    for source, first, last in reuse.spans(group):
        size = source.dtype.itemsize
        yield _Access(("array", source.id), first * size, (last + 1) * size, False)
    made = {n.id for n in group.nodes if n.id in stored}
    for node in {s.node.id: s.node for s in kernel.slots if s.node is not None}.values():
        if node.op in GIVEN:
            continue
        base, start = memory.place(node)
        spot = memory.offset.get(base.id)
        base = reuse.sources.get(base.id, base)
        buffer = ("array", base.id) if spot is None else ("arena", memory.region[spot])
        start += spot or 0
        yield _Access(buffer, start, start + node.nbytes, node.id in made)
    if any(slot.node is None for slot in kernel.slots):
        low, high = kernel.workspace
        yield _Access(("arena", memory.region[low]), low, high, True)
