"""Kernels that move elements: copy pieces into an array, and add or assign values at positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from adjoint.compiler.emit.kernel import Kernel, Slot
from adjoint.compiler.emit.loop import loop_kernel
from adjoint.compiler.emit.nest import Place
from adjoint.compiler.emit.text import Writer
from adjoint.compiler.emit.values import Value, element_of
from adjoint.compiler.fuse import FULL, Group
from adjoint.compiler.machine import Machine
from adjoint.compiler.simplify import Graph, Node, View, row_major
from adjoint.core.shapes import Shape

__all__ = ["place_kernels", "scatter_kernel"]


def place_kernels(
    machine: Machine, graph: Graph, node: Node, skip: frozenset[int] = frozenset()
) -> list[Kernel]:
    """Return the kernels of a "place" node: one that fills the array, then one per piece, in order.

    ``skip`` are the indices of pieces that are already in the array.
    """
    fill, where = node.params
    first = 1 if len(where) > 1 and _tiled(where[1:], node.size) else 0
    kernels = []
    if fill is not None and not _tiled(where, node.size):
        value = graph.broadcast(graph.constant(fill, node.dtype), (node.size,))
        kernels.append(_copy(machine, graph, node, value, (1,), 0))
    for k, (a, (shape, strides, offset)) in enumerate(zip(node.args, where, strict=True)):
        if k not in skip and k >= first:
            view = View(graph, a.node, shape, a.strides, a.offset)
            kernels.append(_copy(machine, graph, node, view, strides, offset))
    return kernels


def _tiled(where: Sequence[tuple[Shape, tuple[int, ...], int]], size: int) -> bool:
    """Return whether the contiguous ones of the pieces ``where`` cover an array of ``size`` elements."""
    spans = [(o, o + math.prod(s)) for s, t, o in where if t == row_major(s)]
    end = 0
    for low, high in sorted(spans):
        if low > end:
            return False
        end = max(end, high)
    return end == size


def _copy(
    machine: Machine, graph: Graph, node: Node, view: View, strides: tuple[int, ...], offset: int
) -> Kernel:
    """Return a kernel that copies a view into the memory of a node, at the given strides and offset."""
    copy = graph.add(Node("copy", (view,), None, view.shape, view.dtype))
    group = Group(0, "loop", view.shape)
    group.add(copy, FULL)
    return loop_kernel(machine, group, [copy], {copy.id: Place(node, strides, offset)})


def scatter_kernel(machine: Machine, node: Node) -> Kernel:
    """Return the kernel that copies an array and adds or assigns values at positions, in order."""
    base, positions, values = node.args
    w = Writer(machine)
    element = element_of(node.dtype)
    slots = [Slot(x, 0) for x in (base.node, positions.node, values.node, node)]
    source, index, given, out = (w.slot(k) for k in range(4))

    def at(pointer: Value, view: View, kind: str, i: Value) -> Value:
        return w.at(pointer, kind, w.plus(w.times(i, view.strides[0]), view.offset))

    def copy(i: Value, _: list[Value]) -> None:
        w.store(w.load(at(source, base, element, i), element), w.at(out, element, i))

    def put(i: Value, _: list[Value]) -> None:
        spot = w.at(out, element, w.load(at(index, positions, "i64", i), "i64"))
        x = w.load(at(given, values, element, i), element)
        if node.params == "add":
            before = w.load(spot, element)
            x = w.bits("or", before, x) if element == "i1" else w.add(before, x)
        w.store(x, spot)

    w.loop(0, node.size, 1, copy)
    w.loop(0, positions.size, 1, put)
    return Kernel(w.kernel(), slots, 1, 1, 10.0 * node.size + 50.0 * positions.size)
