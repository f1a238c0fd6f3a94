"""The groups of a graph: which nodes one kernel computes, in which order, and where values are in memory.

Each target (the CPU, or another device) makes its own kernels of the groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from adjoint.compiler.lower.graph import Dataflow, Primitive, View, is_stored, row_major
from adjoint.compiler.program.program import Program
from adjoint.compiler.schedule.columns import sum_columns_in_rows
from adjoint.compiler.schedule.fuse import ALONE, GIVEN, Fusion, fuse
from adjoint.compiler.schedule.kernel import Address
from adjoint.compiler.schedule.memory import Memory, stored_nodes
from adjoint.compiler.schedule.order import order_for_memory
from adjoint.compiler.schedule.reuse import Reuse

if TYPE_CHECKING:
    from abc import abstractmethod

__all__ = ["Groups", "replacements"]

# Primitives that are not computed element by element.
_FIXED = GIVEN | ALONE | {"reduce", "gather", "part", "out", "copy"}
_PART = 1 << 16  # bytes: larger results of calls are not copied


class Groups:
    """The groups of a graph and their memory; a subclass for each target makes the kernels.

    If ``apart`` is true, no two outputs share memory, as the body of a loop requires.  ``replacing`` has
    pairs of indices (output, source): the output becomes the new value of that source (input) of the graph.
    ``reuses`` has the pairs whose output can be written into the memory of the source.
    """

    def __init__(
        self, graph: Dataflow, outputs: Sequence[View], apart: bool = False,
        replacing: Sequence[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        self.graph = graph
        self.results = self._results(outputs, apart)
        self.flags = flags = [self._materialised(c) for c in graph.checks]
        impure = [n for n in graph.nodes if n.op == "call" and not n.value.op.pure]
        wanted = [r.node for r in (*self.results, *flags)]
        self.groups: list[Fusion] = fuse(graph, [*wanted, *impure], [f.node for f in flags])
        sum_columns_in_rows(graph, self.groups)
        first = self._put_checks_first(flags)
        computed = {n.id for g in self.groups for n in g.nodes}
        new = {v.node.id: v for v in self.results if v.node.id in computed and v.node.op != "part"}
        self.fresh = list(new.values())
        given = {n.params: n for n in graph.nodes if n.op == "source"}
        over: dict[int, int] = {}  # by the id of a new value or a piece of it: the id of the old value
        for k, s in replacing:
            node = self.results[k].node
            parts = [a.node for a in node.args] if node.op == "place" else []
            over |= {n.id: given[s].id if s in given else -1 for n in (node, *parts)}
        self.stored = stored_nodes(self.groups, wanted, set(over), graph.sizes.stack)
        fresh, kept = [v.node for v in self.fresh], {n.id for n in wanted}
        self.groups = order_for_memory(self.groups, self.stored, {n.id for n in fresh}, kept, first, over)
        self.memory = Memory(self.groups, self.stored, fresh, wanted)
        self.reuse = Reuse(self.groups, self.memory, self.stored, first)
        self.reuses = {
            k: s for k, s in replacing if s in given and self.reuse.accepts(self.results[k], given[s])
        }
        self.kernels: list[tuple[Fusion, Any]] = []
        self.workspaces: list[tuple[int, int, list[Any]]] = []  # group, bytes, kernels that share them
        self.first = first  # the number of groups that the checks depend on
        self._make_kernels(first, apart)
        self.made = {v.node.id: k for k, v in enumerate(self.fresh)}

    # Outputs -----------------------------------------------------------------------------------------

    def _results(self, outputs: Sequence[View], apart: bool) -> list[View]:
        """Return the outputs as views of whole nodes, in the shapes of the results."""
        shapes: dict[int, Any] = {}
        found = []
        self.read = {a.node.id for n in self.graph.nodes for a in n.args}
        self.calls = [n for n in self.graph.nodes if n.op == "call"]
        # whether a native entry can make the calls; it then needs copies of results that calls make or read
        self.direct = all(n.nbytes <= _PART for n in self.graph.nodes if n.op == "part")
        read = {a.node.id for n in self.calls for a in n.args} if self.direct else set()
        for v in outputs:
            if self.direct and (v.node.op == "part" or v.node.id in read) and v.node.op not in GIVEN:
                v = _copied(v.strided(v.shape, v.strides))
            if not v.weak:
                v = self._materialised(v)
                if v.node.id in shapes and (apart or shapes[v.node.id] != v.shape):
                    v = _copied(v)
                shapes[v.node.id] = v.shape
            found.append(v)
        return found

    def _materialised(self, v: View) -> View:
        """Return ``v`` if it is all of a computed node, in row-major order; otherwise a view of a copy."""
        if v.is_whole() and not (v.node.op in GIVEN and v.size):
            return v
        turned = self._turned(v)
        return _copied(v) if turned is None else turned

    def _turned(self, v: View) -> View | None:
        """Return a transposed elementwise node, if only ``v`` reads it, as one with transposed operands."""
        n = v.node
        if n.op in _FIXED or n.size != v.size or v.offset or n.id in self.read:
            return None
        axes = {step: k for k, step in enumerate(row_major(n.shape)) if step}
        wanted = [axes.get(step, -2) if step else -1 for step in v.strides]
        lengths = tuple([n.shape[k] if k >= 0 else 1 for k in wanted])
        if -2 in wanted or {k for k in wanted if k >= 0} != set(axes.values()) or v.shape != lengths:
            return None
        args = tuple(
            [a.strided(v.shape, tuple([a.strides[k] if k >= 0 else 0 for k in wanted])) for a in n.args]
        )
        return v.graph.view(v.graph.add(Primitive(n.op, args, n.params, v.shape, n.dtype)))

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

    if TYPE_CHECKING:

        @abstractmethod
        def _make_kernels(self, first: int, apart: bool) -> None:
            """Make the kernels of all groups; ``first`` is the number of groups that the checks depend on."""

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


def replacements(program: Program) -> Iterator[tuple[int, int]]:
    """Yield index pairs (output, input): the output is the new value of the tensor or item that is read."""
    known = {s.key: k for k, s in enumerate(program.sources) if s.key is not None}
    at = len(program.results)
    for each in program.writes:
        source = known.get(each.key)
        if source is not None:
            yield at, source
        at += sum(v is not None for v in each.values)


def _copied(v: View) -> View:
    """Return a view of a new node that copies ``v``; ``v`` itself if kernels do not support its dtype."""
    if not is_stored(v.dtype):
        return v
    return v.graph.view(v.graph.add(Primitive("copy", (v,), None, v.shape, v.dtype)))
