"""Build the graph of a step or of a compiled program as plain data, with its ops folded into small groups."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adjoint.core.node import Node
from adjoint.core.record import PICK
from adjoint.core.tensor import Tensor
from adjoint.inspect.causes import shown_place
from adjoint.inspect.watch import Watch, norm_of, saved_arrays

__all__ = ["LIMIT", "Box", "BoxGroup", "Graph", "graph_of", "graph_of_program"]

LIMIT = 24  # the largest number of children of a group


@dataclass
class Box:
    """One op of a graph, or a leaf that an op reads.

    ``parents`` are the indices of the boxes that the op reads, ``saved`` the bytes that it saves for
    backward, ``norm`` the norm of its gradient, ``group`` the index of its group, and ``scopes`` the module
    calls around it, the outermost first.
    """

    name: str
    shape: str
    dtype: str
    parents: list[int]
    leaf: bool = False
    saved: int = 0
    line: str = ""
    norm: float | None = None
    group: int = 0
    scopes: tuple[int, ...] = ()


@dataclass
class BoxGroup:
    """Boxes that can be folded into one: a module call, an iteration of a loop, or adjacent boxes."""

    name: str
    kind: str
    parent: int
    times: int = 0  # the number of children, if they are groups of the same structure, such as layers
    children: list[int] = field(default_factory=list)  # index of a box, or -1 - index of a group; in order
    norm: float | None = None  # the mean over its ops of log10 of the gradient norm
    strip: list[float | None] = field(default_factory=list)  # the norms of the children, if times > 0


class Graph:
    """A graph as a list of boxes in the order of recording, and a tree of groups that contain the boxes.

    Group 0 is the whole graph.  ``scopes`` maps the number of a module call to the name and class of the
    module.
    """

    def __init__(self, boxes: list[Box], scopes: Mapping[int, tuple[str, str]] | None = None) -> None:
        self.boxes = boxes
        self.groups: list[BoxGroup] = [BoxGroup("", "", -1)]
        self._by_scope(scopes or {})
        for g in range(len(self.groups)):
            self._fold_iterations(g)
        for g in range(len(self.groups) - 1, -1, -1):  # inner groups first
            self._fold_runs(g)
        self._fold_rest()
        self._measure()

    def ops(self) -> int:
        """Return the number of ops."""
        return sum(not b.leaf for b in self.boxes)

    def _by_scope(self, scopes: Mapping[int, tuple[str, str]]) -> None:
        """Create a group for each module call, and add each op to the group of its call."""
        made: dict[int, int] = {}
        for i, box in enumerate(self.boxes):
            at = 0
            for scope in box.scopes:
                if scope not in made:
                    name, kind = scopes[scope]
                    made[scope] = self._new(name, kind, at)
                at = made[scope]
            box.group = at
            if not box.leaf:
                self.groups[at].children.append(i)

    def _new(self, name: str, kind: str, parent: int) -> int:
        self.groups.append(BoxGroup(name, kind, parent))
        self.groups[parent].children.append(-len(self.groups))
        return len(self.groups) - 1

    def _signature(self, child: int) -> Any:
        """Return a value that is equal for two children with the same structure.

        A child is the index of an op, or -1 - the index of a group.  Ops are compared by name and source
        line, groups by kind or name and by their number of children.
        """
        if child >= 0:
            return self.boxes[child].name, self.boxes[child].line
        group = self.groups[-1 - child]
        return group.kind or group.name, len(group.children)

    def _move(self, children: Sequence[int], to: int) -> None:
        self.groups[to].children = list(children)
        for child in children:
            if child >= 0:
                self.boxes[child].group = to
            else:
                self.groups[-1 - child].parent = to

    def _fold_iterations(self, g: int) -> None:
        """Put each iteration of a loop in group ``g`` into its own group, if ``g`` has many children.

        A loop is recognised by ops that occur equally often.  An iteration starts at each occurrence of the
        first of these ops.
        """
        children = self.groups[g].children
        if len(children) <= LIMIT:
            return
        signatures = [self._signature(c) for c in children]
        counts: dict[Any, int] = defaultdict(int)
        for s in signatures:
            counts[s] += 1
        sizes: dict[int, int] = defaultdict(int)
        for size in counts.values():
            sizes[size] += 1
        passes = max((s for s in sizes if s >= 4), key=lambda s: (s * sizes[s], s), default=0)
        if not passes:
            return
        anchor = next(s for s in signatures if counts[s] == passes)  # occurs once in each iteration
        starts = [i for i, s in enumerate(signatures) if s == anchor]
        if len(starts) > len(children) / 2:  # an iteration would be one op: ``_fold_rest`` is better
            return
        before, fresh = children[: starts[0]], []
        end = min(len(children), starts[-1] + starts[1] - starts[0])
        for n, (start, stop) in enumerate(zip(starts, [*starts[1:], end], strict=True)):
            self.groups.append(BoxGroup(f"pass {n + 1}", "", g))
            fresh.append(-len(self.groups))
            self._move(children[start:stop], len(self.groups) - 1)
        self.groups[g].children = [*before, *fresh, *children[end:]]

    def _fold_runs(self, g: int) -> None:
        """Fold adjacent groups of the same structure, such as the layers of a network, if more than three."""
        children = self.groups[g].children
        if sum(c < 0 for c in children) < 4:
            return
        found: list[int] = []
        run: list[int] = []
        for child in [*children, None]:
            alike = (
                child is not None and child < 0 and run and self._structure(child) == self._structure(run[0])
            )
            if run and not alike:
                found += [self._bundle(run, g, True)] if len(run) > 3 else run
                run = []
            if child is None:
                break
            if child < 0:
                run.append(child)
            else:
                found.append(child)
        self.groups[g].children = found

    def _structure(self, child: int) -> Any:
        group = self.groups[-1 - child]
        inside = tuple(self.boxes[c].name if c >= 0 else self.groups[-1 - c].kind for c in group.children)
        return group.kind, inside

    def _bundle(self, part: Sequence[int], parent: int, alike: bool) -> int:
        """Put the adjacent children ``part`` of ``parent`` into a new group; return -1 - its index.

        ``alike`` is True if the children are groups of the same structure.
        """
        first, last = part[0], part[-1]
        if alike:
            a, b = self.groups[-1 - first], self.groups[-1 - last]
            made = BoxGroup(self._span(a.name, b.name), a.kind, parent, times=len(part))
            made.strip = [float(c) for c in part]  # the children; ``_measure`` replaces them by their norms
        else:
            made = BoxGroup(self._span(self._label(first, 0), self._label(last, 1)), "", parent)
        self.groups.append(made)
        at = len(self.groups) - 1
        self._move(part, at)
        return -1 - at

    def _label(self, child: int, end: int) -> str:
        """Return the name of ``child``, the index of an op or -1 - the index of a group.

        For a group that folds a range, return the name of the first (``end`` = 0) or last (``end`` = 1) one.
        """
        if child >= 0:
            return self.boxes[child].name
        group = self.groups[-1 - child]
        return self._label(group.children[-end], end) if " … " in group.name else group.name or group.kind

    def _span(self, first: str, last: str) -> str:
        """Return the name of a range of children from their first and last name: "layers.0 … 17"."""
        head = first.rstrip("0123456789")
        return f"{first} … {last.removeprefix(head) if head else last}"

    def _fold_rest(self) -> None:
        """Fold adjacent children until no group has more than ``LIMIT`` children."""
        for g in range(len(self.groups)):
            self._shorten(g)

    def _shorten(self, g: int) -> None:
        children = self.groups[g].children
        while len(children) > LIMIT:
            size = LIMIT if len(children) > LIMIT * LIMIT else math.ceil(len(children) / LIMIT)
            parts = [children[i : i + size] for i in range(0, len(children), size)]
            children = [p[0] if len(p) == 1 else self._bundle(p, g, False) for p in parts]
        self._move(children, g)

    def _measure(self) -> None:
        """Set ``norm`` of each group: the mean of log10 of the gradient norms of its ops.

        If a group folds repeated groups, its ``strip`` becomes a list of their norms, at most 64 of them.
        """
        sums = [[0.0, 0] for _ in self.groups]
        for box in self.boxes:
            if box.leaf or not box.norm or not math.isfinite(box.norm):
                continue
            at = box.group
            while at >= 0:
                sums[at][0] += math.log10(box.norm)
                sums[at][1] += 1
                at = self.groups[at].parent
        for group, (total, count) in zip(self.groups, sums, strict=True):
            group.norm = round(total / count, 3) if count else None
        for group in self.groups:
            if group.strip:
                every = math.ceil(len(group.strip) / 64)
                group.strip = [self.groups[-1 - int(c or 0)].norm for c in group.strip[::every]]


def graph_of(
    roots: Iterable[Any], names: Mapping[int, str] | None = None, watch: Watch | None = None
) -> Graph:
    """Return the graph of all ops that the nodes ``roots`` were computed from.

    ``names`` maps ids of leaves to names.  ``watch`` is the ``Watch`` that recorded the step, if there was
    one:  it provides module calls, source lines and gradient norms.
    """
    order, seen = [], set()
    for root in roots:
        if type(root) is Node and root not in seen:
            seen.add(root)
            order.append(root)
    for node in order:
        for parent in node.parents:
            if type(parent) is Node and parent not in seen:
                seen.add(parent)
                order.append(parent)
    order.sort(key=lambda n: n.seq)
    builder = _Builder(names or {}, watch)
    for node in order:
        builder.add(node)
    return Graph(builder.boxes, builder.scopes)


class _Builder:
    """Convert nodes and leaves to the boxes of a graph."""

    def __init__(self, names: Mapping[int, str], watch: Watch | None) -> None:
        self.names = names
        self.watch = watch
        self.boxes: list[Box] = []
        self.ids: dict[Any, int] = {}
        self.scopes: dict[int, tuple[str, str]] = {}

    def add(self, node: Node) -> None:
        """Add the boxes of a node and of the leaves that it reads.  All outputs of an op share one box."""
        if node.op is PICK:
            self.ids[node] = self.ids[node.parents[0]]
            return
        event = None if self.watch is None else self.watch.by_node.get(node.seq)
        scopes = self._scopes(-1 if event is None else event.scope)
        parents = []
        for parent in node.parents:
            if isinstance(parent, Tensor) and id(parent) not in self.ids:
                self.ids[id(parent)] = len(self.boxes)
                self.boxes.append(self._leaf(parent, scopes))
            if parent is not None:
                parents.append(self.ids[id(parent) if isinstance(parent, Tensor) else parent])
        shape, dtype = (node.shape, node.dtype) if node.op.outputs == 1 else (node.shape[0], node.dtype[0])
        extra = node.extra
        line = shown_place(event.place) if event is not None else (extra and extra.where) or ""
        self.ids[node] = len(self.boxes)
        self.boxes.append(
            Box(
                node.op.name,
                "×".join(map(str, shape)) or "()",
                str(dtype),
                parents,
                saved=sum(a.nbytes for a in saved_arrays(node)) if event is None else event.kept,
                line=line,
                norm=None if self.watch is None else self.watch.node_norms.get(node.seq),
                scopes=scopes,
            )
        )

    def _leaf(self, t: Tensor, scopes: tuple[int, ...]) -> Box:
        norm = self.watch.leaves[id(t)][2] if self.watch is not None and id(t) in self.watch.leaves else None
        if norm is None and t._extra is not None and t._extra.grad is not None:
            norm = norm_of(t._extra.grad)
        name = self.names.get(id(t), "leaf")
        return Box(
            name, "×".join(map(str, t.shape)) or "()", str(t.dtype), [], leaf=True, norm=norm, scopes=scopes
        )

    def _scopes(self, scope: int) -> tuple[int, ...]:
        found: list[int] = []
        watch = self.watch
        while watch is not None and scope >= 0:
            found.append(scope)
            if scope not in self.scopes:
                path = watch.module_path(scope)
                kind = type(watch.scopes[scope].module).__name__
                own = path.removeprefix(f"{watch.module_path(watch.scopes[scope].parent)}.")
                self.scopes[scope] = ("" if own == kind else own, kind)
            scope = watch.scopes[scope].parent
        return tuple(reversed(found))


def graph_of_program(program: Any) -> Graph:
    """Return the graph of a compiled program: its instructions as ops, and the values it reads as leaves."""
    boxes: list[Box] = []
    made: dict[int, int] = {}

    def shape(value: Any) -> str:
        return "×".join(map(str, value.shape)) or "()"

    for source in program.sources:
        made[source.value.id] = len(boxes)
        name = f"{source.kind} {source.owner}" if source.kind == "argument" else source.kind
        boxes.append(Box(name, shape(source.value), str(source.value.dtype), [], leaf=True))
    for i in program.live():
        parents = [made[a.id] for a in i.args if hasattr(a, "id") and a.id in made]
        first = i.outs[0] if i.outs else None
        for out in i.outs:
            made[out.id] = len(boxes)
        boxes.append(
            Box(
                i.op.name,
                "" if first is None else shape(first),
                "" if first is None else str(first.dtype),
                parents,
                line=str(i.line),
            )
        )
    return Graph(boxes)
