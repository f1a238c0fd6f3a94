"""Loops on a device: the host starts the kernels of the body once per iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adjoint.compiler.emit.repeat import operand_slots
from adjoint.compiler.lower.graph import Primitive
from adjoint.compiler.lower.steps import Steps
from adjoint.compiler.schedule.kernel import Address
from adjoint.targets.device import Device, Place

if TYPE_CHECKING:
    from adjoint.targets.plan import DevicePlan

__all__ = ["Repeat"]


class Repeat:
    """A loop; each iteration has other places.

    ``body`` is its plan, whose results are those of the loop with the indices ``kept``.  ``slots`` are the
    operands and the results of the loop; ``where`` has the index of the slot of each result.
    """

    length, workspace = 1, (0, 0)

    def __init__(
        self,
        device: Device,
        node: Primitive,
        outs: Sequence[Primitive],
        kept: Sequence[int],
        body: DevicePlan,
    ) -> None:
        self.device, self.node, self.body = device, node, body
        steps: Steps = node.value
        self.steps = steps
        self.slots: list[Any]
        self.slots, self.where = operand_slots(node, list(outs))
        self.slots.append(Address(node, 0))
        results = zip(kept, body.results, strict=True)
        self.kept = {body.made[v.node.id]: k for k, v in results if v.size}
        # the bytes from a row that an iteration reads to the next; 0 for other operands
        end = steps.carries + steps.rows
        self.strides = [
            a.strides[0] * a.node.width if steps.carries <= k < end else 0 for k, a in enumerate(node.args)
        ]
        # an iteration reads one of two buffers and writes the other
        self.carried = [(device.alloc(a.nbytes), device.alloc(a.nbytes)) for a in node.args[: steps.carries]]

    def run(self, places: Sequence[Place]) -> None:
        """Enqueue all iterations."""
        steps = self.steps
        self.device.fill(places[-1], 1)
        for i in range(steps.count):
            self._iteration(places, i, steps.count - 1 - i if steps.backwards else i)

    def _iteration(self, places: Sequence[Place], i: int, row: int) -> None:
        steps = self.steps
        given: list[Place] = []
        for k in range(len(self.node.args)):
            if i > 0 and k < steps.carries:
                given.append((self.carried[k][i % 2], 0))
            else:
                memory, offset = places[k]
                given.append((memory, offset + self.strides[k] * row))
        made: dict[int, Place] = {}
        for index, k in self.kept.items():
            if k < steps.carries and (i + 1 < steps.count or k not in self.where):
                made[index] = self.carried[k][1 - i % 2], 0
            else:
                memory, offset = places[self.where[k]]
                step = steps.outputs[k].nbytes if k >= steps.carries else 0
                made[index] = memory, offset + row * step
        self.body.run(given, made)
