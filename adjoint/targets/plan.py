"""The kernels of a graph on a device, and how a call starts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.compiler.lower.graph import Dataflow, Primitive, View
from adjoint.compiler.lower.steps import Steps
from adjoint.compiler.schedule.fuse import PRODUCTS, Fusion
from adjoint.compiler.schedule.groups import Groups
from adjoint.compiler.schedule.kernel import Address
from adjoint.targets.body import Launch
from adjoint.targets.device import Device, Place
from adjoint.targets.joined import joined_kernel
from adjoint.targets.loop import loop_kernel
from adjoint.targets.matrix import matrix_kernel
from adjoint.targets.move import collect, place_kernels, scatter_kernels
from adjoint.targets.order import order_kernels
from adjoint.targets.product import product_kernels
from adjoint.targets.repeat import Repeat

__all__ = ["DevicePlan"]

Places = Sequence[Place] | dict[int, Place]


class DevicePlan(Groups):
    """The kernels of a graph on a device; the parameters are those of ``Groups``.

    ``run(given, made)`` enqueues them; ``given`` has the place of each input that is read, and ``made`` of
    each output.
    """

    def __init__(self, device: Device, graph: Dataflow, outputs: Sequence[View], apart: bool = False) -> None:
        self.device, self.apart = device, apart
        self.failed = Primitive("failed", (), None, (), np.dtype(np.int32))
        self.failed.id = -2
        self.loops: list[DevicePlan] = []  # the bodies of loops
        self.constants: dict[int, Place] = {}
        self.rows: list[tuple[Callable[..., None], list[Any]]] = []
        super().__init__(graph, outputs, apart)
        self.arena = device.alloc(self.memory.size)
        self.fail = device.alloc(4)
        if not apart:
            device.build([k for p in self.bodies() for _, k in p.kernels if isinstance(k, Launch)])
            for p in self.bodies():
                p.prepare()

    def prepare(self) -> None:
        """Prepare the start of all kernels, which are built."""
        for _, kernel in self.kernels:
            if isinstance(kernel, Launch):
                with self.device.errors(f"the preparation of a kernel ({kernel.what})"):
                    start: Any = self.device.prepare(kernel)
            else:
                start = kernel.run
            self.rows.append((start, [self.address(s) for s in kernel.slots]))

    # Kernels -------------------------------------------------------------------------------------------

    def _make_kernels(self, first: int, apart: bool) -> None:
        """Write the kernels of all groups, and at the end one that combines the flags of all checks."""
        for index, g in enumerate(self.groups):
            self.kernels += [(g, k) for k in self._kernels(index, g) if k.length]
        flags = [v for v in self.flags if v.node.op != "repeat"]  # a loop has its own flag
        if flags:
            self.kernels.append((self.groups[-1], collect(self.device.dialect, flags, self.failed)))
        self._assign_memory(first, apart)

    def _kernels(self, index: int, g: Fusion) -> list[Any]:
        d, node = self.device.dialect, g.nodes[0]
        stored = [n for n in g.nodes if n.id in self.stored]
        if g.kind == "loop":
            return [loop_kernel(d, g, stored, whole=self.apart)]
        if g.kind in PRODUCTS or g.kind == "conv_weight":
            return self._sharing(index, *product_kernels(d, g, stored))
        if g.kind == "matrix":
            return [matrix_kernel(d, g)]
        if g.kind == "repeat":
            return [self._loop(node, g.nodes[1:])]
        if g.kind == "scatter":
            return self._sharing(index, *scatter_kernels(d, self.graph, g))
        if g.kind == "order":
            return self._sharing(index, *order_kernels(d, g, node.args[0], node.shape[-1], node)[:2])
        return list(place_kernels(d, self.graph, node, self.memory.pieces_in_place(node)))

    def _sharing(self, index: int, kernels: list[Launch], space: int) -> list[Launch]:
        """Reserve temporary memory of ``space`` bytes for the kernels of a group; return them."""
        self.workspaces.append((index, -(-space // 64) * 64, kernels))
        return kernels

    def _loop(self, node: Primitive, outs: Sequence[Primitive]) -> Any:
        """Return a loop: one kernel if its iterations are small."""
        steps: Steps = node.value
        kept = [*range(steps.carries), *(n.params for n in outs if n.params >= steps.carries)]
        body = DevicePlan(self.device, steps.graph, [steps.outputs[k] for k in kept], apart=True)
        self.loops.append(body)
        loop = Repeat(self.device, node, outs, kept, body)
        return joined_kernel(self.device.dialect, loop) or loop

    def address(self, slot: Any) -> Any:
        """Return a place, or a tuple (kind, index, offset) if it differs between calls."""
        if type(slot) is tuple:  # of a loop
            return slot
        if slot.node is None:
            return self.arena, slot.offset
        if slot.node is self.failed:
            return self.fail, 0
        node, offset = self.memory.place(slot.node)
        offset += slot.offset
        if node.op in ("source", "number"):
            return "given", node.params, offset
        if node.op == "constant":
            if node.id not in self.constants:
                self.constants[node.id] = self.device.upload(node.value), 0
            return self.constants[node.id][0], offset
        if node.id in self.made:
            return "made", self.made[node.id], offset
        return self.arena, self.memory.offset.get(node.id, 0) + offset

    # A call --------------------------------------------------------------------------------------------

    def run(self, given: Places, made: Places) -> None:
        """Enqueue all kernels."""
        for start, slots in self.rows:
            places = []
            for s in slots:
                if len(s) == 3:
                    base, offset = (given if s[0] == "given" else made)[s[1]]
                    places.append((base, offset + s[2]))
                else:
                    places.append(s)
            start(places)

    def place_of(self, v: View, made: Places) -> Place:
        """Return the place of the first element of a view, whose node a kernel computes."""
        found = self.address(Address(v.node, v.offset * v.node.width))
        if len(found) == 3:
            base, offset = made[found[1]]
            return base, offset + found[2]
        return found

    def bodies(self) -> list[DevicePlan]:
        """Return this plan, and those of the bodies of loops whose kernels are started one by one."""
        inner = [k.body for _, k in self.kernels if isinstance(k, Repeat)]
        return [self, *(p for body in inner for p in body.bodies())]

    def checked(self) -> list[DevicePlan]:
        """Return the plans that have checks of their own."""
        own = [self] if any(v.node.op != "repeat" for v in self.flags) else []
        return [*own, *(p for body in self.loops for p in body.checked())]

    def count(self) -> dict[str, int]:
        """Return the numbers of kernels, of their different texts, and of launches per call."""
        plans = self.bodies()
        launches = [k for p in plans for _, k in p.kernels if isinstance(k, Launch)]
        return {
            "kernels": len(launches),
            "texts": len({k.text for k in launches}),
            "launches": self._launches(),
        }

    def _launches(self) -> int:
        return sum(
            1 if isinstance(k, Launch) else k.steps.count * k.body._launches() for _, k in self.kernels
        )
