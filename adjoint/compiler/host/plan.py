"""The plan of a native program: its kernels in their order, and where each value is stored.

Each kernel reads the addresses of its arrays from a table; an entry of the table is a *slot*.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adjoint.compiler.build.texts import Texts
from adjoint.compiler.emit.lapack import lapack_kernel
from adjoint.compiler.emit.loop import loop_kernel
from adjoint.compiler.emit.machine import Machine, machine
from adjoint.compiler.emit.matrix import matrix_kernel
from adjoint.compiler.emit.move import place_kernels, scatter_kernels
from adjoint.compiler.emit.order import order_kernel
from adjoint.compiler.emit.product import conv_weight_kernels, product_kernels
from adjoint.compiler.lower.graph import Dataflow, Primitive, View
from adjoint.compiler.lower.primitives import by_lapack
from adjoint.compiler.schedule.fuse import PRODUCTS, Fusion
from adjoint.compiler.schedule.groups import Groups
from adjoint.compiler.schedule.kernel import Kernel
from adjoint.compiler.schedule.runs import together

__all__ = ["NativePlan"]

CHECKED = 100_000.0  # nanoseconds: checks of arguments that take longer run after the kernels
NANOSECONDS = 0.02  # per simple operation, with 16 lanes


class NativePlan(Groups):
    """The kernels of a graph in their order, and where each value is stored; see ``Groups``.

    With ``flush``, kernels treat subnormal numbers as 0.
    """

    def __init__(
        self, graph: Dataflow, outputs: Sequence[View],
        apart: bool = False, flush: bool = False, replacing: Sequence[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        self.machine = self._here(flush)
        self.threads = min(self.machine.cores, 8)
        self.steps: list[Primitive | tuple[int, int]] = []  # each is a NumPy call, or a range of records
        super().__init__(graph, outputs, apart, replacing)

    def _here(self, flush: bool) -> Machine:
        """Return the processor that kernels are generated for."""
        return machine()._replace(flush=flush)

    def _make_kernels(self, first: int, apart: bool) -> None:
        """Make the kernels of all groups, and divide them into ranges between the NumPy calls.

        ``first`` is the number of groups that the checks depend on.  ``checked`` is set to the number of
        kernels of these groups, or to 0 if they take too long to run while other threads wait.
        """
        self.texts = Texts(self.machine)
        for index, g in enumerate(self.groups):
            if g.kind == "call":
                self.steps.append(g.nodes[0])
                continue
            before = len(self.kernels)
            self.kernels += [(g, k) for k in self._kernels(index, g) if k.length]
            last = self.steps[-1] if self.steps else None
            if isinstance(last, tuple):
                self.steps[-1] = last[0], len(self.kernels)
            else:
                self.steps.append((before, len(self.kernels)))
        self.texts.save()
        self._assign_memory(first, apart)
        checks = set(map(id, self.groups[:first]))
        self.checked = sum(id(g) in checks for g, _ in self.kernels)
        self.runs: list[int] = []
        for step in self.steps:
            if isinstance(step, tuple):
                low, high = step
                middle = max(low, min(high, self.checked))
                self._make_runs(low, middle)
                self._make_runs(middle, high)
        if sum(k.cost for _, k in self.kernels[: self.checked]) * self._scale() > CHECKED:
            self.checked = 0

    def _make_runs(self, low: int, high: int) -> None:
        """Reorder kernels so that those that can run at the same time, a run, are adjacent."""
        part = self.kernels[low:high]
        runs = together(part, self.memory, self.stored, self.reuse)
        self.kernels[low:high] = [part[k] for run in runs for k in run]
        self.runs += map(len, runs)

    def _scale(self) -> float:
        """Return the estimated time of a simple operation, in nanoseconds."""
        return NANOSECONDS * 16 / max(1, self.machine.lanes(np.float32))

    def _kernels(self, index: int, g: Fusion) -> list[Kernel]:
        """Return the kernels of the group ``g``, which has the index ``index`` among the groups."""
        node = g.nodes[0]
        stored = [n for n in g.nodes if n.id in self.stored]
        if g.kind in ("loop", "conv_weight", *PRODUCTS):
            kernels, space = self.texts.kernels(g, stored, lambda: self._write(g, stored))
            self.workspaces.append((index, -(-space // 64) * 64, kernels))
            return kernels
        if g.kind == "scatter":
            return scatter_kernels(self.machine, node, node.id in self.reuse.sources)
        if g.kind == "matrix" and by_lapack(node.params[0], node.args):
            kernel, space = lapack_kernel(self.machine, node)
            self.workspaces.append((index, -(-space // 64) * 64, [kernel]))
            return [kernel]
        if g.kind == "matrix":
            return [matrix_kernel(self.machine, node)]
        if g.kind == "order":
            kernel, space = order_kernel(self.machine, node, self.threads)
            self.workspaces.append((index, space, [kernel]))
            return [kernel]
        if g.kind == "repeat":
            return [self._repeat(node, g.nodes[1:])]
        return place_kernels(self.machine, self.graph, node, self.memory.pieces_in_place(node))

    def _write(self, g: Fusion, stored: list[Primitive]) -> tuple[list[Kernel], int]:
        """Generate the kernels of a group; return them and the number of bytes of workspace they need."""
        if g.kind == "loop":
            return [loop_kernel(self.machine, g, stored)], 0
        if g.kind == "conv_weight":
            return conv_weight_kernels(self.machine, g.nodes[0], self.threads)
        return product_kernels(self.machine, g, stored, self.threads)

    def _repeat(self, node: Primitive, outs: list[Primitive]) -> Kernel:
        """Return the kernel of a loop with the results ``outs``."""
        raise NotImplementedError
