"""Kernels that move elements: arrays assembled from pieces, and rows added or assigned at positions."""

from __future__ import annotations

from collections.abc import Sequence

from adjoint.compiler.emit.nest import Place
from adjoint.compiler.emit.values import Value, element_of
from adjoint.compiler.lower.graph import Dataflow, Primitive, View
from adjoint.compiler.schedule.fuse import FULL, Fusion
from adjoint.targets.body import Body, Launch, at
from adjoint.targets.dialect import OpenCL
from adjoint.targets.loop import loop_kernel
from adjoint.targets.order import order_kernels

__all__ = ["collect", "copy", "place_kernels", "scatter_kernels"]

_MOST = 32  # pieces that one kernel copies
_Region = tuple[int, list[tuple[int, int, int, bool]]]


def place_kernels(d: OpenCL, graph: Dataflow, node: Primitive, skip: frozenset[int]) -> list[Launch]:
    """Return the kernels of a "place" node: one fills the array, and one per piece copies the piece.

    ``skip`` has the indices of the pieces that are already in the array.
    """
    fill, where = node.params
    first = len(where) - len(node.value) if node.tiled else 0
    pieces = [k for k in range(first, len(where)) if k not in skip]
    regions = [_region(*where[k]) for k in pieces]
    if 1 < len(pieces) + (fill is not None) <= _MOST and None not in regions:
        return [_assembled(d, node, fill, [(k, r) for k, r in zip(pieces, regions, strict=True) if r])]
    found = []
    if fill is not None:
        value = graph.broadcast(graph.constant(fill, node.dtype), (node.size,))
        found.append(copy(d, graph, node, value, (1,), 0))
    for k in pieces:
        a, (shape, strides, offset) = node.args[k], where[k]
        view = View(graph, a.node, shape, a.strides, a.offset)
        found.append(copy(d, graph, node, view, strides, offset))
    return found


def _region(shape: Sequence[int], strides: Sequence[int], offset: int) -> _Region | None:
    """Return how to find the index of an element of a piece from its position in the array.

    It is the first position, and for each axis in the order of strides (length, stride, axis, whether it is
    reversed).  None if a position does not determine the index by divisions.
    """
    axes = []
    for k, (n, s) in enumerate(zip(shape, strides, strict=True)):
        if n > 1:
            axes.append((n, abs(s), k, s < 0))
            offset += min(0, s * (n - 1))
    axes.sort(key=lambda axis: -axis[1])
    inside = [sum((n - 1) * s for n, s, *_ in axes[k + 1 :]) for k in range(len(axes))]
    nested = all(low < s for low, (_, s, *_) in zip(inside, axes, strict=True))
    return (offset, axes) if nested else None


def _assembled(d: OpenCL, node: Primitive, fill: object, pieces: Sequence[tuple[int, _Region]]) -> Launch:
    """Return the kernel of an array whose threads find the last piece that has their element."""
    group = Fusion(0, "place", node.shape)
    group.add(node, FULL)
    b, kind = Body(d, group), element_of(node.dtype)
    b.line(d.index("item", "GID(0)"))
    b.line(f"if (item < {node.size}) {{")
    b.w.variable("value", b.w.const(0 if fill is None else fill, kind))
    b.w.variable("there", b.w.const(fill is not None, "i1"))
    for k, (offset, axes) in pieces:
        a, shape = node.args[k], node.params[1][k][0]
        rest = b.w.fresh("rest")
        b.line(d.variable(rest, "i32", f"item - {offset}"))
        b.line(f"if ({rest} >= 0) {{")
        index, tests = ["0"] * len(shape), []
        for n, stride, axis, backwards in axes:
            name = b.w.fresh("q")
            b.line(d.index(name, f"{rest} / {stride}"))
            b.line(f"{rest} -= {name} * {stride};")
            tests.append(f"{name} < {n}")
            index[axis] = f"({n - 1} - {name})" if backwards else name
        b.line(f"if ({' && '.join([*tests, f'{rest} == 0'])}) {{")
        b.line(f"value = {b.load(a.node, a.offset, at(a.strides, index)).text};")
        b.line("there = true;")
        b.line("}}")
    b.line("if (there) {")
    b.store(node, 0, "item", Value("value", kind))
    b.line("}}")
    return b.launch((-(-node.size // d.flat),), (d.flat,))


def copy(
    d: OpenCL, graph: Dataflow, node: Primitive, view: View, strides: tuple[int, ...], offset: int
) -> Launch:
    """Return the kernel that copies a view into the memory of a node."""
    made = graph.add(Primitive("copy", (view,), None, view.shape, view.dtype))
    group = Fusion(0, "loop", view.shape)
    group.add(made, FULL)
    return loop_kernel(d, group, [made], {made.id: Place(node, strides, offset)})


def scatter_kernels(d: OpenCL, graph: Dataflow, group: Fusion) -> tuple[list[Launch], int]:
    """Return the kernels of a "scatter" node, and the bytes of temporary memory that they need.

    The first copies the array.  Then the positions are sorted; equal positions keep their order.  In the
    last, one thread per element of the first row with a position adds all rows with this position, in order.
    """
    node = group.nodes[0]
    base, positions, _ = node.args
    mode, width = node.params
    count = positions.size
    first = copy(d, graph, node, graph.reshape(base, (node.size,)), (1,), 0)
    ranks, space, at = order_kernels(d, group, positions, count, None)
    return [first, *ranks, _put_rows(d, group, mode, width, at)], space


def _put_rows(d: OpenCL, group: Fusion, mode: str, width: int, at: int) -> Launch:
    """Return the kernel that adds or assigns the rows, given their order, ``at`` bytes into the workspace."""
    node = group.nodes[0]
    _, positions, values = node.args
    b, count = Body(d, group), positions.size
    element, kind = element_of(positions.dtype), element_of(node.dtype)
    spots, order = b.slot(positions.node, positions.offset), b.workspace("i32", at)
    given, out = b.slot(values.node, values.offset), b.slot(node)

    def spot(place: str) -> str:
        return d.to_index(Value(d.load(spots, element, d.load(order, "i32", place)), element))

    b.line(d.index("item", "GID(0)"))
    b.line(f"if (item < {count * width}) {{")
    b.line(d.index("s", f"item / {width}"))
    b.line(d.index("c", f"item % {width}"))
    b.line(d.index("mine", spot("s")))
    b.line(f"if (s == 0 || {spot('(s - 1)')} != mine) {{")
    total = b.w.variable("total", b.w.let(d.load(out, kind, "mine + c"), kind))
    b.line(d.each("j", "s", count))
    b.line(f"if ({spot('j')} != mine) {{ break; }}")
    x = b.w.let(d.load(given, kind, f"{d.load(order, 'i32', 'j')} * {width} + c"), kind)
    if mode == "add":
        x = b.w.bits("or", total, x) if kind == "i1" else b.w.add(total, x)
    b.line(f"total = {x.text};")
    b.line("}")
    b.line(d.store(out, kind, "mine + c", "total"))
    b.line("}}")
    return b.launch((-(-count * width // d.flat),), (d.flat,))


def collect(d: OpenCL, flags: list[View], out: Primitive) -> Launch:
    """Return the kernel that sets ``out``, a node of one int32, if one of the flags is set."""
    group = Fusion(0, "checks", ())
    b = Body(d, group)
    b.line(d.index("item", "GID(0)"))
    b.line("if (item == 0) {")
    found = b.w.variable("found", b.load(out, 0, "0"))
    for v in flags:
        flag = b.w.convert(b.load(v.node, v.offset, "0"), "i1")
        b.line(f"if ({flag.text}) {{ found = 1; }}")
    b.store(out, 0, "0", found)
    b.line("}")
    return b.launch((1,), (1,))
