"""Compute the positions of the boxes in a picture of a graph.

A box is placed in the layer given by the longest path to it.  Within a layer, boxes are ordered by the mean
position of their neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from adjoint.inspect.graph import Graph
from adjoint.words import count

__all__ = ["Picture", "PlacedBox", "laid_out"]

SHOWN = 60  # the largest number of visible boxes
GAP_X, GAP_Y, MARGIN = 18.0, 34.0, 16.0


@dataclass
class PlacedBox:
    """A box with its position.  ``lines`` has, for each line, the text on the left and on the right."""

    lines: list[tuple[str, str]]
    folded: bool
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0


@dataclass
class Picture:
    """All boxes and edges of a picture."""

    boxes: list[PlacedBox]
    edges: list[list[tuple[float, float]]]
    width: float
    height: float


def laid_out(graph: Graph) -> Picture:
    """Choose which groups to unfold, place the visible boxes, and return the picture."""
    visible = _visible(graph)
    order = sorted(set(visible.values()), key=lambda v: min(_first(graph, v), len(graph.boxes)))
    boxes = {v: _box(graph, v) for v in order}
    edges = _edges(graph, visible)
    layer = _layers(order, edges)
    routes = _bent(edges, layer, boxes)  # adds an empty box where an edge passes through a layer
    rows: dict[int, list[int]] = defaultdict(list)
    for v in boxes:
        rows[layer[v]].append(v)
    _untangle(rows, [pair for route in routes for pair in pairwise(route)])
    width = max((sum(boxes[v].width + GAP_X for v in row) for row in rows.values()), default=0.0) + 2 * MARGIN
    y = MARGIN
    for k in sorted(rows):
        x = (width - sum(boxes[v].width + GAP_X for v in rows[k]) + GAP_X) / 2
        for v in rows[k]:
            boxes[v].x, boxes[v].y = x, y
            x += boxes[v].width + GAP_X
        tallest = max(boxes[v].height for v in rows[k])
        for v in rows[k]:
            boxes[v].height = boxes[v].height if boxes[v].lines else tallest
        y += tallest + GAP_Y
    lines = [_line([boxes[v] for v in route]) for route in routes]
    return Picture(
        [b for b in boxes.values() if b.lines], lines, width, y - GAP_Y + MARGIN if rows else 2 * MARGIN
    )


def _visible(graph: Graph) -> dict[int, int]:
    """Return a dictionary from the index of each op to the box that shows the op in the picture.

    The box is the index of the op, or -1 - the index of the folded group that contains the op.
    """
    opened = {0}
    queue, shown = [0], len(graph.groups[0].children)
    for g in queue:
        for child in graph.groups[g].children:
            inside = 0 if child >= 0 else len(graph.groups[-1 - child].children)
            if inside and shown - 1 + inside <= SHOWN and not graph.groups[-1 - child].times:
                opened.add(-1 - child)
                queue.append(-1 - child)
                shown += inside - 1
    found: dict[int, int] = {}
    for i, box in enumerate(graph.boxes):
        if box.leaf:
            continue
        at, shows = box.group, i
        while at >= 0:
            shows = shows if at in opened else -1 - at
            at = graph.groups[at].parent
        found[i] = shows
    return found


def _first(graph: Graph, v: int) -> int:
    while v < 0:
        children = graph.groups[-1 - v].children
        v = children[0]
    return v


def _box(graph: Graph, v: int) -> PlacedBox:
    if v < 0:
        group = graph.groups[-1 - v]
        name = " ".join(filter(None, (group.name, group.kind)))
        lines = [(name, f"×{group.times}" if group.times else count(_count(graph, -1 - v), "op"))]
    else:
        box = graph.boxes[v]
        leaves = [graph.boxes[p] for p in box.parents if graph.boxes[p].leaf]
        lines = [(box.name, box.shape), *(("", f"{leaf.name} {leaf.shape}") for leaf in leaves[:3])]
    width = max(7.2 * len(a) + 6.6 * len(b) + 12 for a, b in lines) + 18
    return PlacedBox(lines, v < 0, width, 10 + 15 * len(lines))


def _count(graph: Graph, g: int) -> int:
    total, stack = 0, list(graph.groups[g].children)
    while stack:
        child = stack.pop()
        if child >= 0:
            total += 1
        else:
            stack.extend(graph.groups[-1 - child].children)
    return total


def _edges(graph: Graph, visible: dict[int, int]) -> list[tuple[int, int]]:
    found: dict[tuple[int, int], None] = {}
    for i, shows in visible.items():
        for p in graph.boxes[i].parents:
            if p in visible and visible[p] != shows:
                found[visible[p], shows] = None
    return list(found)


def _layers(order: list[int], edges: list[tuple[int, int]]) -> dict[int, int]:
    """Return the layer of each box: the length of the longest path to it.

    Edges from a later to an earlier box in ``order`` are ignored, so that there are no cycles.
    """
    place = {v: k for k, v in enumerate(order)}
    into: dict[int, list[int]] = defaultdict(list)
    for a, b in edges:
        if place[a] < place[b]:
            into[b].append(a)
    layer: dict[int, int] = {}
    for v in order:
        layer[v] = max((layer[a] + 1 for a in into[v]), default=0)
    return layer


def _untangle(rows: dict[int, list[int]], edges: list[tuple[int, int]]) -> None:
    """Sort the boxes of each layer in ``rows`` by the mean position of their neighbours, so few edges cross.

    The layers are processed downwards and upwards, four times.
    """
    near: dict[int, list[int]] = defaultdict(list)
    for a, b in edges:
        near[a].append(b)
        near[b].append(a)
    for _ in range(4):
        for keys in (sorted(rows), sorted(rows, reverse=True)):
            place = {v: k / max(1, len(row) - 1) for row in rows.values() for k, v in enumerate(row)}
            for k in keys:
                rows[k].sort(key=lambda v: sum(place[n] for n in near[v]) / len(near[v]) if near[v] else 0.5)
                place.update({v: i / max(1, len(rows[k]) - 1) for i, v in enumerate(rows[k])})


def _bent(
    edges: list[tuple[int, int]], layer: dict[int, int], boxes: dict[int, PlacedBox]
) -> list[list[int]]:
    """Return, for each edge, the list of boxes that it passes through.

    An edge that crosses layers gets an empty box in each of them; these are added to ``boxes`` and ``layer``.
    """
    routes = []
    fresh = max(boxes, default=0) + 1
    for a, b in edges:
        route = [a]
        for k in range(layer[a] + 1, layer[b]):
            boxes[fresh] = PlacedBox([], False, 8.0, 24.0)
            layer[fresh] = k
            route.append(fresh)
            fresh += 1
        routes.append([*route, b])
    return routes


def _line(route: list[PlacedBox]) -> list[tuple[float, float]]:
    points = [(route[0].x + route[0].width / 2, route[0].y + route[0].height)]
    for box in route[1:-1]:
        points += [(box.x + box.width / 2, box.y), (box.x + box.width / 2, box.y + box.height)]
    return [*points, (route[-1].x + route[-1].width / 2, route[-1].y)]
