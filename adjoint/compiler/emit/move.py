"""Kernels that move elements: copy pieces into an array, and add or assign values at positions."""

from __future__ import annotations

from adjoint.compiler.emit.loop import loop_kernel
from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.nest import Place
from adjoint.compiler.emit.values import Index, Value, element_of
from adjoint.compiler.emit.writer import Writer
from adjoint.compiler.lower.graph import Dataflow, Primitive, View
from adjoint.compiler.schedule.fuse import FULL, Fusion
from adjoint.compiler.schedule.kernel import Address, Kernel

__all__ = ["place_kernels", "scatter_kernels"]

_UNROLLED = 8  # vectors: shorter rows are unrolled


def place_kernels(
    machine: Machine, graph: Dataflow, node: Primitive, skip: frozenset[int] = frozenset()
) -> list[Kernel]:
    """Return the kernels of a "place" node, an array that is filled and then overwritten by pieces.

    One kernel fills the array, and one kernel per piece copies the piece, in order.  ``skip`` has the indices
    of the pieces that are already in the array.
    """
    fill, where = node.params
    first = len(where) - len(node.value) if node.tiled else 0  # the others may overwrite the first completely
    kernels = []
    if fill is not None:
        value = graph.broadcast(graph.constant(fill, node.dtype), (node.size,))
        kernels.append(_copy(machine, graph, node, value, (1,), 0))
    for k, (a, (shape, strides, offset)) in enumerate(zip(node.args, where, strict=True)):
        if k not in skip and k >= first:
            view = View(graph, a.node, shape, a.strides, a.offset)
            kernels.append(_copy(machine, graph, node, view, strides, offset))
    return kernels


def _copy(
    machine: Machine, graph: Dataflow, node: Primitive, view: View, strides: tuple[int, ...], offset: int
) -> Kernel:
    """Return a kernel that copies a view into the memory of a node, at the given strides and offset."""
    copy = graph.add(Primitive("copy", (view,), None, view.shape, view.dtype))
    group = Fusion(0, "loop", view.shape)
    group.add(copy, FULL)
    return loop_kernel(machine, group, [copy], {copy.id: Place(node, strides, offset)})


def scatter_kernels(machine: Machine, node: Primitive, in_place: bool = False) -> list[Kernel]:
    """Return the kernels of a "scatter" node: copy the array unless it is there, then put the rows.

    ``in_place`` says that it usually is there.
    """
    copy = _copy_unless_same(machine, node)
    copy.cost *= not in_place
    return [copy, _put_rows(machine, node)]


def _copy_unless_same(machine: Machine, node: Primitive) -> Kernel:
    """Return the kernel that copies the first operand of a "scatter" node to the result."""
    base = node.args[0]
    w = Writer(machine)
    element, lanes = element_of(node.dtype), machine.lanes(node.dtype)
    number = base.scalar()
    source, out = w.slot(0), w.slot(1)

    def move(at: Index, lanes: int, mask: Value | None = None) -> None:
        if number is not None:
            value = w.const(number, element, lanes)
        else:
            value = w.load(w.at(source, element, at), element, lanes, mask)
        w.store(value, w.at(out, element, at), mask)

    def block(i: Value, _: list[Value]) -> None:
        for k in range(4):
            move(w.plus(i, k * lanes), lanes)

    unit = 4 * lanes
    whole = node.size // unit * unit
    with w.when(w.compare("ne", source, out)):
        w.loop(w.low, w.least(w.high, whole), unit, block)
        with w.when(w.compare("sge", w.high, node.size)):
            for p in w.pieces(node.size - whole, lanes):
                move(whole + p.offset, p.lanes, p.mask)
    return Kernel(w.kernel(), [Address(base.node, 0), Address(node, 0)], node.size, unit, 4.0 * node.size)


def _put_rows(machine: Machine, node: Primitive) -> Kernel:
    """Return the kernel of a "scatter" node that adds or assigns the rows one after the other."""
    _, positions, values = node.args
    mode, width = node.params
    w = Writer(machine)
    element = element_of(node.dtype)
    slots = [Address(x, 0) for x in (positions.node, values.node, node)]
    index, given, out = (w.slot(k) for k in range(3))
    lanes = min(machine.lanes(node.dtype), 1 << (width - 1).bit_length())

    def put(i: Value, _: list[Value]) -> None:
        row = w.at(out, element, w.load(w.at(index, "i64", i), "i64"))
        first = w.times(i, width)

        def move(at: Index, lanes: int, mask: Value | None) -> None:
            spot = w.at(row, element, at)
            x = w.load(w.at(given, element, w.plus(first, at)), element, lanes, mask)
            if mode == "add":
                before = w.load(spot, element, lanes, mask)
                x = w.bits("or", before, x) if element == "i1" else w.add(before, x)
            w.store(x, spot, mask)

        w.vectors(width, lanes, _UNROLLED, move)

    w.loop(0, positions.size, 1, put)
    cost = positions.size * (50.0 + 4.0 * width)
    return Kernel(w.kernel(), slots, 1, 1, cost)
