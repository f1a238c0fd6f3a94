"""A whole loop as one kernel of one work-group, for loops whose iterations have little work.

The kernels of the body follow each other in its text, with barriers between them, so the host does not start
several kernels per iteration.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from adjoint.targets.body import Launch
from adjoint.targets.dialect import OpenCL

if TYPE_CHECKING:
    from adjoint.targets.repeat import Repeat

__all__ = ["joined_kernel"]

_ROUNDS = 16  # largest number of work-groups, or of elements of each thread, of a kernel
_SLOTS = 56  # largest number of slots; OpenCL guarantees 64
_LINES = 4000  # longer texts are slow to compile


def joined_kernel(d: OpenCL, loop: Repeat) -> Launch | None:
    """Return the kernel of a loop; None if one work-group is not enough for an iteration."""
    kernels: list[Any] = [k for _, k in loop.body.kernels]
    if not d.joins or any(getattr(k, "made", None) is None or not _is_small(d, k) for k in kernels):
        return None
    if sum(len(k.made.w.lines) for k in kernels) > _LINES:
        return None
    made = _Joined(d, loop, kernels)
    return made.launch() if len(made.slots) <= _SLOTS else None


def _is_small(d: OpenCL, k: Launch) -> bool:
    return k.length <= _ROUNDS if _waits(k) else k.length * k.sizes[0] <= _ROUNDS * d.group


def _waits(k: Launch) -> bool:
    """Return whether the threads of a work-group depend on each other."""
    return any("LID(" in line for line in k.made.w.lines)


class _Joined:
    """Writes the text: names of its own start with ``loop_``."""

    def __init__(self, d: OpenCL, loop: Repeat, kernels: list[Launch]) -> None:
        self.d, self.loop = d, loop
        self.slots: list[Any] = []
        self.known: dict[Any, int] = {}
        self.shared: dict[tuple[str, str], int] = {}  # the largest count by name and element
        self.tables: dict[str, str] = {}
        self.lines = [d.index("loop_t", "LID(0)"), d.each("loop_i", 0, loop.steps.count)]
        row = f"{loop.steps.count - 1} - loop_i" if loop.steps.backwards else "loop_i"
        self.lines.append(d.index("loop_row", row))
        for k in kernels:
            self._add(k)
        self.lines.append("}")

    def launch(self) -> Launch:
        """Return the kernel."""
        d = self.d
        shared = [
            d.local_memory(f"{name}_{element}", element, n) for (name, element), n in self.shared.items()
        ]
        text = d.text(self.tables, len(self.slots), [*shared, *self.lines], (1,), (d.group,))
        ops = " ".join(k.what for _, k in self.loop.body.kernels[:4])
        return Launch(text, self.slots, (1,), (d.group,), f"{self.loop.steps.count} × {ops}")

    def _add(self, k: Launch) -> None:
        """Add the text of a kernel of the body, for one iteration."""
        d, b = self.d, k.made
        self.tables |= b.w.tables
        self.lines.append("{")
        for n, (slot, element) in enumerate(zip(k.slots, b.elements, strict=True)):
            self.lines.append(d.pointer(f"b{n}", element, self._address(self.loop.body.address(slot))))
        groups, sizes = ((*each, 1, 1)[:3] for each in (k.groups, k.sizes))
        if _waits(k):
            self.lines.append(d.each("loop_g", 0, k.length))
            ids = {
                "LID(0)": f"(loop_t % {sizes[0]})", "LID(1)": f"(loop_t / {sizes[0]})",
                "WID(0)": f"(loop_g % {groups[0]})", "WID(1)": f"(loop_g / {groups[0]} % {groups[1]})",
                "WID(2)": f"(loop_g / {groups[0] * groups[1]})",
            }  # fmt: skip
        else:
            self.lines.append(d.each("loop_g", "loop_t", k.length * sizes[0], d.group))
            ids = {"GID(0)": "loop_g"}
        names = {name: f"{name}_{element}" for name, element, _ in b.shared}
        for name, element, count in b.shared:
            self.shared[name, element] = max(count, self.shared.get((name, element), 0))
        for line in b.w.lines:
            for old, new in ids.items():
                line = line.replace(old, new)
            self.lines.append(re.sub(r"\w+", lambda word: names.get(word[0], word[0]), line))
        self.lines += ["}", "}", d.barrier]

    def _address(self, slot: Any) -> str:
        """Return the expression of an address, given a place or what ``address`` of the body returns."""
        d, loop, steps = self.d, self.loop, self.loop.steps
        if len(slot) == 2:  # memory of the body
            return self._slot(slot)
        kind, k, offset = slot
        if kind == "given":
            if k >= steps.carries:
                return d.moved(self._slot(loop.slots[k]), offset, "loop_row", loop.strides[k])
            source, when = self._slot(loop.slots[k]), "loop_i == 0"
        else:
            k = loop.kept[k]
            out = loop.where.get(k)
            if k >= steps.carries:
                assert out is not None
                return d.moved(self._slot(loop.slots[out]), offset, "loop_row", steps.outputs[k].nbytes)
            source, when = "" if out is None else self._slot(loop.slots[out]), f"loop_i == {steps.count - 1}"
        even, odd = (self._slot((memory, 0)) for memory in loop.carried[k])
        if kind == "made":
            even, odd = odd, even
        turn = d.pick("loop_i % 2 == 0", even, odd)
        return d.moved(d.pick(when, source, turn) if source else turn, offset, "loop_row", 0)

    def _slot(self, slot: Any) -> str:
        """Return the address of a slot of the kernel: a place, or an ``Address``."""
        key = id(slot[0]), slot[1]
        if key not in self.known:
            self.known[key] = len(self.slots)
            self.slots.append(slot)
        return self.d.start(self.known[key])
