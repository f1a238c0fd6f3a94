"""The plan of a native program: its kernels in their order, and where each value is stored.

Each kernel reads the addresses of its arrays from a table; an entry of the table is a *slot*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.compiler.build.texts import Texts
from adjoint.compiler.emit.loop import loop_kernel
from adjoint.compiler.emit.machine import machine
from adjoint.compiler.emit.matrix import matrix_kernel
from adjoint.compiler.emit.move import place_kernels, scatter_kernels
from adjoint.compiler.emit.product import conv_weight_kernels, product_kernels
from adjoint.compiler.lower.graph import Dataflow, Primitive, View
from adjoint.compiler.schedule.columns import sum_columns_in_rows
from adjoint.compiler.schedule.fuse import GIVEN, PRODUCTS, Fusion, fuse
from adjoint.compiler.schedule.kernel import Address, Kernel
from adjoint.compiler.schedule.memory import Memory, stored_nodes
from adjoint.compiler.schedule.order import order_for_memory
from adjoint.compiler.schedule.reuse import Reuse
from adjoint.compiler.schedule.runs import together

__all__ = ["Plan"]

CHECKED = 100_000.0  # nanoseconds: checks of arguments that take longer run after the kernels
NANOSECONDS = 0.02  # per simple operation, with 16 lanes


class Plan:
    """The kernels of a graph in their order, and where each value is stored.

    If ``apart`` is true, no two outputs share memory, as the body of a loop requires.  ``replacing`` has
    pairs of indices (output, source): the output becomes the new value of that source (input) of the graph.
    ``reuses`` has the pairs whose output can be written into the memory of the source.
    """

    def __init__(
        self, graph: Dataflow, outputs: Sequence[View],
        apart: bool = False, flush: bool = False, replacing: Sequence[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        self.graph = graph
        self.machine = machine()._replace(flush=flush)
        self.threads = min(self.machine.cores, 8)
        self.results = self._results(outputs, apart)
        self.flags = [self._materialised(c) for c in graph.checks]
        impure = [n for n in graph.nodes if n.op == "call" and not n.value.op.pure]
        wanted = [r.node for r in (*self.results, *self.flags)]
        self.groups: list[Fusion] = fuse(graph, [*wanted, *impure])
        sum_columns_in_rows(graph, self.groups)
        first = self._put_checks_first(self.flags)
        computed = {n.id for g in self.groups for n in g.nodes}
        new = {v.node.id: v for v in self.results if v.node.id in computed and v.node.op != "part"}
        self.fresh = list(new.values())
        given = {n.params: n for n in graph.nodes if n.op == "source"}
        over: dict[int, int] = {}  # by the id of a new value or a piece of it: the id of the old value
        for k, s in replacing:
            node = self.results[k].node
            parts = [a.node for a in node.args] if node.op == "place" else []
            over |= {n.id: given[s].id if s in given else -1 for n in (node, *parts)}
        self.stored = stored_nodes(self.groups, wanted, set(over))
        fresh, kept = [v.node for v in self.fresh], {n.id for n in wanted}
        self.groups = order_for_memory(self.groups, self.stored, {n.id for n in fresh}, kept, first, over)
        self.memory = Memory(self.groups, self.stored, fresh, wanted)
        self.reuse = Reuse(self.groups, self.memory, self.stored, first)
        self.reuses = {
            k: s for k, s in replacing if s in given and self.reuse.accepts(self.results[k], given[s])
        }
        self.kernels: list[tuple[Fusion, Kernel]] = []
        self.steps: list[Primitive | tuple[int, int]] = []  # each is a NumPy call, or a range of records
        self._make_kernels(first, apart)
        self.first = first  # the number of groups that the checks depend on

    # Outputs -----------------------------------------------------------------------------------------

    def _results(self, outputs: Sequence[View], apart: bool) -> list[View]:
        """Return the outputs as views of whole nodes, in the shapes of the results."""
        shapes: dict[int, Any] = {}
        found = []
        for v in outputs:
            if not v.weak:
                v = self._materialised(v)
                if v.node.id in shapes and (apart or shapes[v.node.id] != v.shape):
                    v = _copied(v)
                shapes[v.node.id] = v.shape
            found.append(v)
        return found

    def _materialised(self, v: View) -> View:
        """Return ``v`` if it is all of a computed node, in row-major order; otherwise a view of a copy."""
        return _copied(v) if not v.is_whole() or (v.node.op in GIVEN and v.size) else v

    # The plan ----------------------------------------------------------------------------------------

    def _put_checks_first(self, flags: Sequence[View]) -> int:
        """Move the groups of nodes that the checks depend on to the front; return the number of these groups.

        A check is a flag for an argument that is out of range; inputs can be overwritten as soon as the
        checks have passed.  Programs that call NumPy are not reordered.
        """
        if not flags or any(g.kind == "call" for g in self.groups):
            return 0
        wanted = {v.node.id for v in flags}
        first, rest = [], []
        for g in reversed(self.groups):
            if wanted.isdisjoint(n.id for n in g.nodes):
                rest.append(g)
            else:
                first.append(g)
                wanted |= g.reads
        self.groups = [*reversed(first), *reversed(rest)]
        return len(first)

    def _make_kernels(self, first: int, apart: bool) -> None:
        """Make the kernels of all groups, and divide them into ranges between the NumPy calls.

        ``first`` is the number of groups that the checks depend on.  ``checked`` is set to the number of
        kernels of these groups, or to 0 if they take too long to run while other threads wait.
        """
        self.workspaces: list[tuple[int, int, list[Kernel]]] = []  # group, bytes, kernels that share them
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

    def _assign_memory(self, first: int, apart: bool) -> None:
        """Assign memory to all values, and to the workspace (temporary memory) of each kernel.

        Outputs lend their memory to other values, but not if it can be the memory of an input, in the body of
        a loop (``apart``), or to the ``first`` groups: it can be that of an old gradient, which is needed
        if a check fails.
        """
        replaced = {self.results[k].node.id for k in self.reuses}
        fixed = apart or any(g.kind == "call" for g in self.groups)
        lent = [] if fixed else [v.node for v in self.fresh if v.node.id not in replaced]
        used = [w for w in self.workspaces if w[1]]
        offsets = self.memory.allocate([(group, size) for group, size, _ in used], lent, first)
        for at, (_, size, kernels) in zip(offsets, used, strict=True):
            for k in kernels:
                k.slots = [Address(None, s.offset + at) if s.node is None else s for s in k.slots]
                k.workspace = at, at + size

    def _kernels(self, index: int, g: Fusion) -> list[Kernel]:
        """Return the kernels of the group ``g``, which has the index ``index`` among the groups."""
        node = g.nodes[0]
        stored = [n for n in g.nodes if n.id in self.stored]
        if g.kind in ("loop", "conv_weight", *PRODUCTS):
            kernels, space = self.texts.kernels(g, stored, lambda: self._write(g, stored))
            self.workspaces.append((index, -(-space // 64) * 64, kernels))
            return kernels
        if g.kind == "scatter":
            return scatter_kernels(self.machine, node)
        if g.kind == "matrix":
            return [matrix_kernel(self.machine, node)]
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


def _copied(v: View) -> View:
    """Return a view of a new node that copies ``v``; ``v`` itself if kernels do not support its dtype."""
    if v.dtype.kind not in "biuf":
        return v
    return v.graph.view(v.graph.add(Primitive("copy", (v,), None, v.shape, v.dtype)))
