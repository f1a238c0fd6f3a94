"""Divide the nodes of a graph into groups, each of which becomes one kernel, in one pass over the nodes.

A node is added to the latest group that computes one of its operands, if their loops match.  So a group reads
only results of earlier groups.  An elementwise node is added only when a reduction, a product or another node
with its own kernel needs it.  So it is computed late, and less memory is used.  Nodes with one element are
computed by every kernel that reads them.

The *domain* of a group is the shape of its loops.  *Roots* are the nodes whose values the program returns or
writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from adjoint.compiler.lower.graph import Dataflow, Primitive, View, reshaped, row_major
from adjoint.core.shapes import Shape

__all__ = ["FULL", "KEPT", "PRODUCTS", "Fusion", "fuse", "in_loop_order", "needed", "over", "stages"]

# how many values a node has: one per element of the domain, or one per element of the reduced domain
FULL, KEPT = "full", "kept"
GIVEN = frozenset(("source", "number", "constant"))
PRODUCTS = frozenset(("matmul", "conv", "conv_input"))  # elementwise nodes can join their groups
# they start a group of their own
ALONE = PRODUCTS | {"conv_weight", "place", "scatter", "matrix", "order", "call", "repeat"}
CHEAP = frozenset(("add", "subtract", "multiply", "negative", "abs", "maximum", "minimum", "copy"))
MOST = 64  # largest number of nodes in one kernel
_AGAIN, _ARRAYS = 4, 2  # limits for computing a value again in a later loop: nodes, and arrays to read
EARLY = -1 << 40  # smallest order number: groups that depend only on inputs run before all others


@dataclass(eq=False, repr=False)
class Fusion:
    """A set of nodes that one kernel computes.

    ``domain`` is the shape of the loops.  ``axis`` is the axis that the reductions of the group remove, or
    None if there are none.  ``level`` maps the id of each node to FULL (one value per element of the domain)
    or KEPT (one per element of the domain without that axis).
    """

    order: int
    kind: str  # "loop", or the op of its first node if that is in ALONE
    domain: Shape
    axis: int | None = None
    nodes: list[Primitive] = field(default_factory=list)
    level: dict[int, str] = field(default_factory=dict)
    reads: set[int] = field(default_factory=set)  # ids of the nodes that are operands in the group
    numbers: set[int] = field(default_factory=set)  # one-element nodes that every kernel computes for itself
    chunks: int = 0  # number of chunks of the outermost loop, if there are partial sums; 0: any number
    flat: bool = True  # whether all operands are whole arrays or numbers: the domain can then be reshaped

    @property
    def kept(self) -> Shape:
        """The shape of the loops without the axis that is reduced."""
        return self.domain if self.axis is None else self.domain[: self.axis] + self.domain[self.axis + 1 :]

    def add(self, node: Primitive, level: str) -> None:
        """Add a node to the group; ``level`` is FULL or KEPT, as in the attribute ``level``."""
        self.nodes.append(node)
        self.level[node.id] = level
        self.reads.update([a.node.id for a in node.args])

    def __repr__(self) -> str:
        return f"<{self.kind} {list(self.domain)} {[n.op for n in self.nodes]}>"


def over(view: View, shape: Shape) -> tuple[int, ...] | None:
    """Return the strides of a view after a reshape to ``shape``; None if strides cannot express it."""
    return view.strides if view.shape == shape else reshaped(view.shape, view.strides, shape)


def in_loop_order(n: Primitive) -> View:
    """Return the operand of the reduction ``n`` with its axes in the order of the loops."""
    axis, last = n.params[1], n.args[0].ndim - 1
    return n.args[0].graph.permute(n.args[0], [*range(axis), last, *range(axis, last)])


def _simple(view: View) -> bool:
    """Return whether a view is row-major, or repeats one element (all strides are 0)."""
    return not any(view.strides) or view.strides == row_major(view.shape)


def fuse(graph: Dataflow, roots: Sequence[Primitive], flags: Sequence[Primitive] = ()) -> list[Fusion]:
    """Divide the nodes that the roots (the outputs) depend on into groups; return them in execution order.

    ``flags`` are the roots that are checks.
    """
    return _Fuser(graph, roots, flags).run()


def needed(graph: Dataflow, roots: Sequence[Primitive]) -> list[bool]:
    """Return one bool per node of the graph: whether one of ``roots``, the outputs, depends on the node."""
    wanted = [False] * len(graph.nodes)
    for r in roots:
        wanted[r.id] = True
    for n in reversed(graph.nodes):
        if wanted[n.id]:
            for a in n.args:
                wanted[a.node.id] = True
    return wanted


class _Fuser:
    """Divides the nodes of a graph into groups, each of which becomes one kernel."""

    def __init__(self, graph: Dataflow, roots: Sequence[Primitive], flags: Sequence[Primitive]) -> None:
        self.graph = graph
        self.roots = roots
        self.checked = needed(graph, flags) if flags else []  # whether a check depends on each node
        # sums of floats that checks read; what is computed from them comes in kernels after the checks
        self.sums = {
            n.id for n, is_read in zip(graph.nodes, self.checked, strict=False) if is_read and _is_sum(n)
        }
        self.groups: list[Fusion] = []
        self.early: list[Fusion] = []
        self.group: dict[int, Fusion] = {}  # by the id of the node
        self.latest: dict[int, Fusion] = {}  # the latest loop group, by the size of its domain
        self.waiting: set[int] = set()
        self.numbers: set[int] = set()

    def run(self) -> list[Fusion]:
        wanted = needed(self.graph, self.roots)
        self._find_numbers(wanted)
        for n in self.graph.nodes:
            if not wanted[n.id] or n.op in GIVEN or not n.size or n.id in self.numbers:
                continue
            if n.op == "part":
                self.group[n.id] = self.group[n.args[0].node.id]
            elif n.op == "out":
                group = self.group[n.id] = self.group[n.args[0].node.id]
                group.add(n, FULL)
            elif n.op in ALONE:
                self._alone(n)
            elif n.op == "reduce":
                self._place(n)
            else:
                self.waiting.add(n.id)
        waiting = [n for n in self.graph.nodes if n.id in self.waiting]
        read = {a.node.id for n in waiting for a in n.args}
        for n in waiting:
            if n.id not in read:  # the others are placed with the node that reads them
                self._place(n)
        return [*self.early, *self.groups]

    def _find_numbers(self, wanted: list[bool]) -> None:
        """Find the one-element nodes that are not stored: each kernel that reads one computes it again.

        Add their ids to ``numbers``.  Such nodes depend only on inputs and are read only inside kernels.
        ``wanted`` says for each node whether an output depends on it.
        """
        kept = {r.id for r in self.roots}
        for n in self.graph.nodes:
            if wanted[n.id] and (n.op in ALONE or n.op == "gather"):
                kept.update(a.node.id for a in n.args)
        size: dict[int, int] = {}
        for n in self.graph.nodes:
            if n.size != 1 or n.id in kept or n.op in ALONE or n.op in ("part", "reduce", "gather", *GIVEN):
                continue
            if all(a.node.op in GIVEN or a.node.id in self.numbers for a in n.args):
                size[n.id] = 1 + sum(size.get(a.node.id, 0) for a in n.args)
                if size[n.id] <= MOST // 2:
                    self.numbers.add(n.id)

    def _alone(self, n: Primitive) -> None:
        """Make a new group of the node ``n`` alone; first add the waiting nodes that it reads to groups."""
        for a in n.args:
            if a.node.id in self.waiting:
                self._place(a.node)
        group = self._new(n.op, n.shape)
        group.add(n, FULL)
        self.group[n.id] = group

    def _new(self, kind: str, domain: Shape, axis: int | None = None, early: bool = False) -> Fusion:
        groups = self.early if early else self.groups
        groups.append(Fusion(len(groups) + (EARLY if early else 0), kind, domain, axis))
        groups[-1].numbers = self.numbers
        return groups[-1]

    def _place(self, n: Primitive) -> None:
        """Add a node to a group; first add the waiting nodes that it depends on to groups."""
        found, todo = {n.id: n}, [n]
        while todo:
            for a in todo.pop().args:
                if a.node.id in self.waiting and a.node.id not in found:
                    found[a.node.id] = a.node
                    todo.append(a.node)
        groups = [g for m in found.values() if (g := self._last(m)) is not None]
        top = max(groups, key=lambda g: g.order) if groups else None
        operands = [a.node for m in found.values() for a in m.args]
        reads = {node.id for node in operands if node.op != "constant" or node.size > 64}
        for k in sorted(found):
            self._settle(found[k], top, reads, n)

    def _last(self, n: Primitive) -> Fusion | None:
        """Return the latest group that computes an operand of ``n``; None if no group does."""
        groups = [self.group[a.node.id] for a in n.args if a.node.id in self.group]
        return max(groups, key=lambda g: g.order) if groups else None

    def _settle(self, n: Primitive, top: Fusion | None, reads: set[int], last_of_them: Primitive) -> None:
        """Add a node to an existing group if possible, otherwise to a new group.

        The group must not be earlier than ``top``, or than the groups of the node's operands.  ``_place``
        calls this for several nodes in turn: ``reads`` has the ids of the nodes that any of them reads, and
        ``last_of_them`` is the one that depends on all others.
        """
        self.waiting.discard(n.id)
        last = self._last(n)
        near = self.latest.get(n.args[0].size if n.op == "reduce" else n.size)
        if near is not None and near.reads.isdisjoint(reads) and not self._beside(near, last_of_them):
            near = None  # joining it would save no memory reads
        least = max([g.order for g in (top, last) if g is not None], default=EARLY)
        tried = [g for g in (top, last, near) if g is not None and g.order >= least]
        group, level = next(((g, f) for g in tried if (f := self._fits(g, n)) is not None), (None, FULL))
        if group is None:
            domain, axis = n.shape, None
            if n.op == "reduce":
                domain, axis, level = in_loop_order(n).shape, n.params[1], KEPT
            # small values of inputs come first: then products, and not only later kernels, can read them
            small = last is None and n.size < last_of_them.size
            group = self._new("loop", domain, axis, least < 0 or small)
            group.flat = all(map(_simple, _operands(n)))
        group.add(n, level)
        self.group[n.id] = group
        self.latest[math.prod(group.domain)] = group

    @staticmethod
    def _beside(g: Fusion, n: Primitive) -> bool:
        """Return whether ``n`` reduces the same axis as a group: nodes often need the results of both."""
        return n.op == "reduce" and g.axis == n.params[1] and in_loop_order(n).shape == g.domain

    # Whether a node can join a group -----------------------------------------------------------------

    def _fits(self, g: Fusion, n: Primitive) -> str | None:
        """Return the level (FULL or KEPT) that a node would have in a group; None if it cannot join."""
        if g.kind in PRODUCTS:
            return self._fits_product(g, n)
        if g.kind != "loop" or len(g.nodes) >= MOST:
            return None
        if self.sums and n.size > 1 and not self.checked[n.id] and not self.sums.isdisjoint(g.level):
            return None
        if n.op == "reduce":
            return self._fits_reduce(g, n)
        count = math.prod(g.domain)
        if n.op == "gather" and self.group.get(n.args[1].node.id) is g:
            return None
        if n.size == count and self._fits_domain(g, n):
            return FULL
        if g.axis is not None and n.size == math.prod(g.kept) and self._fits_kept(g, n):
            return KEPT
        return None

    def _fits_product(self, g: Fusion, n: Primitive) -> str | None:
        """Return FULL if an elementwise node can be fused into the product of a group; otherwise None."""
        if n.op in ("reduce", "gather") or n.size != math.prod(g.domain) or len(g.nodes) >= MOST // 2:
            return None
        fits = all(over(a, g.domain) is not None for a in n.args) and self._in_place(g, n.args, g.domain)
        return FULL if fits else None

    def _in_place(self, g: Fusion, operands: Sequence[View], domain: Shape) -> bool:
        """Return whether all ``operands`` that the group itself computes can be read in place."""
        return all(reads_in_place(g, a, domain) for a in operands if self.group.get(a.node.id) is g)

    def _fits_domain(self, g: Fusion, n: Primitive) -> bool:
        """Return whether a node with one value per element of the group's loops can join the group."""
        simple = all(map(_simple, _operands(n)))
        domain = g.domain
        if n.shape != domain and not simple:
            if g.flat and g.axis is None:
                domain = n.shape
            elif any(over(a, domain) is None for a in _operands(n)):
                return False
        if not self._in_place(g, _operands(n), domain):
            return False
        g.domain = domain
        g.flat = g.flat and simple
        return True

    def _fits_kept(self, g: Fusion, n: Primitive) -> bool:
        """Return whether a node with one value per reduced row can join a group that has reductions."""
        kept = g.kept
        for a in _operands(n):
            strides = over(a, kept)
            if strides is None:
                return False
            inside = self.group.get(a.node.id) is g
            if inside and (g.level[a.node.id] != KEPT or a.offset or strides != row_major(kept)):
                return False
        return True

    def _fits_reduce(self, g: Fusion, n: Primitive) -> str | None:
        """Return KEPT (one value per reduced row) if a reduction can join a group; None if it cannot."""
        plain, axis = in_loop_order(n), n.params[1]
        domain = plain.shape
        maker = self.group.get(plain.node.id)  # None: an input, or a number that each kernel computes
        inside = maker is g
        if maker is not None and maker.order > g.order:
            return None
        if inside and (g.level[plain.node.id] != FULL or not plain.is_whole()):
            return None
        if g.axis is None:
            if g.domain != domain and not g.flat and not self._refit(g, domain):
                return None
            if not inside and math.prod(g.domain) != math.prod(domain):
                return None
            g.domain, g.axis = domain, axis
        elif g.domain != domain or g.axis != axis:
            return None
        if not inside:
            g.flat = g.flat and _simple(plain)
        return KEPT

    def _refit(self, g: Fusion, domain: Shape) -> bool:
        """Return whether the loops of a group can have the shape ``domain`` instead."""
        operands = [a for n in g.nodes for a in _operands(n)]
        return math.prod(g.domain) == math.prod(domain) and all(over(a, domain) is not None for a in operands)


def _is_sum(n: Primitive) -> bool:
    """Return whether a node reduces a whole array of floats."""
    return n.op == "reduce" and n.size == 1 and n.dtype.kind == "f"


def reads_in_place(g: Fusion, a: View, domain: Shape) -> bool:
    """Return whether a kernel can use the operand ``a``, which its own group computes, without storing it."""
    strides = over(a, domain)
    if strides is None or a.offset:
        return False
    if g.level[a.node.id] == FULL:
        return strides == row_major(domain) and a.size == a.node.size
    assert g.axis is not None
    kept = list(row_major(g.kept))
    kept.insert(g.axis, 0)
    return strides == tuple(kept)


def stages(g: Fusion) -> tuple[dict[int, int], set[int]]:
    """Return the index of the loop that computes each node of a group, and the nodes to save.

    A kernel has several loops if it has reductions: a value that depends on a reduction is computed in a
    later loop than the operand of that reduction.  A value that a later loop reads must be saved in memory.
    Cheap values are computed again instead, which is faster than writing and reading them.  Nodes are given
    by their ids.
    """
    stage: dict[int, int] = {}
    for n in g.nodes:
        found = max([stage[a.node.id] for a in n.args if a.node.id in stage], default=0)
        stage[n.id] = found + (n.op == "reduce")
    saved: set[int] = set()
    for n in g.nodes:
        if g.level[n.id] == KEPT and n.op != "reduce":
            continue
        now = stage[n.id] - (n.op == "reduce")
        for a in n.args:
            inside = a.node.id in stage and g.level[a.node.id] == FULL
            if inside and stage[a.node.id] < now:
                saved |= _needed_again(g, a.node)
    return stage, saved


def _needed_again(g: Fusion, node: Primitive) -> set[int]:
    """Return the ids of the nodes to save for ``node`` in a later loop: itself, unless it is cheap."""
    again: set[int] = set()
    arrays: set[int] = set()  # ids of the nodes outside of the group whose arrays the loop would read
    saved: set[int] = set()
    todo = [node]
    while todo:
        n = todo.pop()
        if n.id in again:
            continue
        if n.op not in CHEAP:
            saved.add(n.id)
            continue
        again.add(n.id)
        for a in n.args:
            level = g.level.get(a.node.id)
            if level == FULL:
                todo.append(a.node)
            elif level is None and any(a.strides):
                arrays.add(a.node.id)
    cheap = len(again) <= _AGAIN and len(saved) <= 1 and len(arrays | saved) <= _ARRAYS
    return saved if cheap else {node.id}


def _operands(n: Primitive) -> tuple[View, ...]:
    """Return the operands that are read element by element (not the table of a gather)."""
    return n.args[:1] if n.op == "gather" else n.args
