"""Kernels of matrix products and convolutions, with elementwise nodes fused into them.

The fused nodes (the *epilogue*) are applied to the tiles of the product while these are still in registers or
cache.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from adjoint.compiler.emit import conv, gemm
from adjoint.compiler.emit.loop import Lane, LoopNest
from adjoint.compiler.emit.machine import Machine
from adjoint.compiler.emit.math import FUNCTIONS
from adjoint.compiler.emit.values import Index, Value
from adjoint.compiler.emit.writer import Writer
from adjoint.compiler.lower.graph import Primitive, View
from adjoint.compiler.schedule.fuse import Fusion
from adjoint.compiler.schedule.kernel import Address, Kernel
from adjoint.compiler.schedule.memory import home_of

__all__ = ["conv_weight_kernels", "product_kernels"]


def product_kernels(
    machine: Machine, group: Fusion, stored: Sequence[Primitive], threads: int
) -> tuple[list[Kernel], int]:
    """Return the kernels of a group that starts with a product, and the bytes of workspace they need."""
    node = group.nodes[0]
    a, b = node.args
    home = home_of(node, stored)
    epilogue = _Epilogue(machine, group, [x for x in stored if x is not home], home)
    made, depth = _product(machine, node, epilogue if len(group.nodes) > 1 else None)
    if made.turned:
        a, b = b, a
    wide = node.dtype.itemsize / 4
    work = 0.9 * math.prod(node.shape) * depth + 4.0 * node.size * len(group.nodes)
    kernels = []
    at_b = _slot(b)
    if made.pack is not None:
        packed = Address(None, 0)
        kernels.append(Kernel(made.pack.text, [at_b, packed], made.pack.length, 1, 5.0 * b.size * wide))
        at_b = packed
    space = -(-made.packed // 64) * 64
    # any address if it is not used
    scratch = Address(None, space) if made.packed or made.scratch else Address(home, 0)
    slots = [_slot(a), at_b, Address(home, 0), scratch, *epilogue.slots_used]
    kernels.append(Kernel(made.main.text, slots, made.main.length, 1, work * wide))
    return kernels, space + made.scratch * threads


def _product(machine: Machine, node: Primitive, epilogue: gemm.Epilogue | None) -> tuple[gemm.Kernels, int]:
    """Return the kernels of a product or convolution, and the number of terms of each element's sum."""
    a, b = node.args
    if node.op != "matmul":
        spec = conv.Conv(node.dtype, *node.params)
        make, channels = (conv.conv, spec.c) if node.op == "conv" else (conv.conv_input, spec.o)
        return make(machine, spec, epilogue), channels * math.prod(spec.kernel)
    m, n, k = node.shape[-2], node.shape[-1], a.shape[-1]
    product = gemm.Product(
        node.dtype, m, n, k, a.strides[-2:], b.strides[-2:], node.shape[:-2], a.strides[:-2], b.strides[:-2]
    )
    return gemm.gemm(machine, product, epilogue), k


def conv_weight_kernels(machine: Machine, node: Primitive, threads: int) -> tuple[list[Kernel], int]:
    """Return the kernels of the gradient of a convolution kernel, and the bytes of workspace they need."""
    images, g = node.args
    made = conv.conv_weight(machine, conv.Conv(node.dtype, *node.params))
    space = -(-made.partial // 64) * 64
    partial = Address(None, 0)
    wide = node.dtype.itemsize / 4
    work = 0.9 * node.size * math.prod(g.shape) / node.shape[0]
    slots = [_slot(images), _slot(g), partial, Address(None, space)]
    return [
        Kernel(made.main.text, slots, made.main.length, 1, work * wide),
        Kernel(made.last.text, [partial, Address(node, 0)], made.last.length, 1, made.partial / 4),
    ], space + made.scratch * threads


def _slot(view: View) -> Address:
    """Return the entry of the kernel's table of addresses that points to the first element of a view."""
    return Address(view.node, view.offset * view.dtype.itemsize)


class _Epilogue(LoopNest):
    """Emits the fused elementwise nodes of a product for one vector of a tile."""

    def __init__(self, machine: Machine, group: Fusion, stored: Sequence[Primitive], home: Primitive) -> None:
        self.home = home
        self.others = stored
        super().__init__(machine, group, stored, {})
        self.plain = self._is_plain()

    def _find_axes(self) -> None:
        """Keep all loop axes separate: the caller gives the batch item, the row and the column."""
        self.lengths = list(self.group.domain)
        self.across = len(self.lengths) - 1
        self.reduced, self.columns = None, False
        self.outer = list(range(self.across))

    def slot(self, node: Primitive, offset: int = 0) -> Value:
        """Emit the address of an element of a node; the slots before ``FREE`` belong to the product."""
        return self.w.slot(self._slot_of(node, offset) + gemm.FREE)

    def __call__(
        self, w: Writer, item: Index, row: Index, column: Index, sums: Value, mask: Value | None
    ) -> Value:
        """Emit the fused nodes for a vector at (item, row, column); store all but one, which is returned."""
        self._use(w)
        self._start([*w.unravel(item, self.lengths[:-2]), row])
        lane = Lane(column, sums.lanes, mask)
        lane.known[self.group.nodes[0].id] = sums
        for n in self.others:
            self._store(self.target[n.id], self._value(n, lane, 0), lane)
        return self._value(self.home, lane, 0)

    def _use(self, w: Writer) -> None:
        """Emit loads of the numbers that the nodes use: at the function's start, or here if that branches."""
        if w is self.w and self.plain:
            return
        self.w, self.numbers, self.once = w, {}, {}
        with w.early() if self.plain else contextlib.nullcontext():
            self._load_numbers()

    def _is_plain(self) -> bool:
        """Return whether the one-element operands need only arithmetic, which emits no branches."""
        todo = [a.node for n in self.group.nodes for a in n.args if a.node.id in self.group.numbers]
        while todo:
            n = todo.pop()
            if n.op in FUNCTIONS or n.op == "power":
                return False
            todo += [a.node for a in n.args if a.node.id in self.group.numbers]
        return True
