"""The plan of a library: kernels for a level, whichever processor this is, and the memory of a state.

A state is one block of memory: a header, the parts, then scratch memory that only a call uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from adjoint.compiler.emit.machine import Machine, described
from adjoint.compiler.emit.repeat import operand_slots
from adjoint.compiler.emit.steps import small_kernel
from adjoint.compiler.host.plan import NativePlan
from adjoint.compiler.lower.graph import Dataflow, Primitive, View
from adjoint.compiler.schedule.kernel import Address, Kernel

__all__ = ["HEADER", "Layout", "LibraryPlan", "Loop", "aligned", "place_loops"]

HEADER = 64  # bytes: fingerprint, its complement, size
_LINE = 64


def aligned(size: int) -> int:
    """Return a size rounded up to whole cache lines."""
    return -(-size // _LINE) * _LINE


@dataclass
class Layout:
    """Assigns memory in a state."""

    size: int = HEADER

    def take(self, size: int) -> int:
        """Return the offset of ``size`` bytes."""
        at = self.size
        self.size += aligned(max(size, 1))
        return at


@dataclass
class Loop:
    """A loop whose body has a plan of its own; ``where`` maps a result to its operand of the kernel."""

    body: LibraryPlan
    node: Primitive
    kept: list[int]
    where: dict[int, int]
    name: str = ""
    arena: int = 0  # its offset in the state, and those of the two buffers of each carried value
    carries: list[tuple[int, int]] = field(default_factory=list)


class LibraryPlan(NativePlan):
    """A plan for a level of vector instructions, which this processor need not have."""

    def __init__(
        self, level: str, graph: Dataflow, outputs: Sequence[View], apart: bool = False,
        replacing: Sequence[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        self.level = level
        super().__init__(graph, outputs, apart, False, replacing)
        first = {id(g) for g in self.groups[: self.first]}
        # how many kernels the checks depend on, and which outputs these compute
        self.before = sum(id(g) in first for g, _ in self.kernels)
        self.early = {n.id for g in self.groups[: self.first] for n in g.nodes}

    def _here(self, flush: bool) -> Machine:
        return described(self.level)

    def _repeat(self, node: Primitive, outs: list[Primitive]) -> Kernel:
        """Return the kernel of a loop; if its body is large, one without text, with a ``Loop`` as tables."""
        found = small_kernel(self.machine, node, outs)
        if found is not None:
            return found
        steps = node.value
        kept = [*range(steps.carries), *(n.params for n in outs if n.params >= steps.carries)]
        body = LibraryPlan(self.level, steps.graph, [steps.outputs[k] for k in kept], True)
        slots, where = operand_slots(node, outs)
        made = Kernel("", [Address(node, 0), *slots], steps.count, steps.count, 0.0)
        made.tables = Loop(body, node, kept, {k: i + 1 for k, i in where.items()})
        return made

    def loops(self) -> list[Loop]:
        """Return the loops of this plan, not those inside of them."""
        return [k.tables for _, k in self.kernels if isinstance(k.tables, Loop)]


def place_loops(plan: LibraryPlan, layout: Layout, prefix: str) -> None:
    """Assign memory and names to the loops of a plan, and to those inside of them."""
    for i, loop in enumerate(plan.loops()):
        loop.name = f"{prefix}_loop{i}"
        steps = loop.node.value
        loop.arena = layout.take(loop.body.memory.size)
        for a in loop.node.args[: steps.carries]:
            loop.carries.append((layout.take(a.nbytes), layout.take(a.nbytes)))
        place_loops(loop.body, layout, loop.name)
