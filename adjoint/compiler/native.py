"""Native programs: kernels in the order of their groups, with calls of NumPy between them.

``build`` turns a traced program into a ``Native``, which is called like the ``run`` of replay: with the
arrays and numbers of its sources, and returns its outputs.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.compiler import replay, units
from adjoint.compiler.emit.loop import Kernel, loop_kernel
from adjoint.compiler.emit.move import place_kernels, scatter_kernel
from adjoint.compiler.fuse import GIVEN, Group, fuse
from adjoint.compiler.lower import Lowered, lower
from adjoint.compiler.machine import machine
from adjoint.compiler.memory import Memory, stored_nodes
from adjoint.compiler.program import Program
from adjoint.compiler.simplify import Node, View
from adjoint.config import held_across_fork

__all__ = ["Native", "build"]

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 4)


def build(program: Program) -> Native:
    """Return a program as native code."""
    return Native(program)


class Native:
    """A native program; ``native(*sources)`` returns the outputs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.machine = machine()
        self.lock = held_across_fork(threading.RLock())
        self.lowered: Lowered = lower(program)
        graph = self.lowered.graph
        self.results = self._results()
        checks = [self._materialised(c) for c in graph.checks]
        impure = [n for n in graph.nodes if n.op == "call" and not n.value.op.pure]
        wanted = [r.node for r in (*self.results, *checks)]
        self.groups: list[Group] = fuse(graph, [*wanted, *impure])
        computed = {n.id for g in self.groups for n in g.nodes}
        self.fresh = list(
            {v.node.id: v for v in self.results if v.node.id in computed and v.node.op != "part"}.values()
        )
        fresh = [v.node for v in self.fresh]
        self.stored = stored_nodes(self.groups, wanted)
        self.memory = Memory(self.groups, self.stored, fresh)
        self.arena = np.zeros(self.memory.size + 64, np.uint8)
        self.start = -self.arena.ctypes.data % 64
        self.checks = [self._array(c) for c in checks]
        self._plan()

    # What leaves the program -------------------------------------------------------------------------

    def _results(self) -> list[View]:
        """Return the outputs as whole nodes, each in the shape that it has outside."""
        shapes: dict[int, Any] = {}
        found = []
        for v in self.lowered.outputs:
            if not v.weak:
                v = self._materialised(v)
                if shapes.setdefault(v.node.id, v.shape) != v.shape:
                    v = self._copied(v)
            found.append(v)
        return found

    def _materialised(self, v: View) -> View:
        """Return a view of a node that the program computes, all of it."""
        return self._copied(v) if not v.is_whole() or (v.node.op in GIVEN and v.size) else v

    def _copied(self, v: View) -> View:
        if v.dtype.kind not in "biuf":
            return v
        return v.graph.view(v.graph.add(Node("copy", (v,), None, v.shape, v.dtype)))

    # The plan ----------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Make the kernels, the table of addresses, and the steps of a run."""
        graph = self.lowered.graph
        self.constants: dict[int, Any] = {}
        self.kernels: list[tuple[Group, Kernel]] = []
        self.steps: list[Any] = []
        slots: list[Node] = []
        self.values: dict[int, Any] = {}
        for g in self.groups:
            if g.kind in ("call", "matmul"):
                self.steps.append(g.nodes[0])
                continue
            for kernel in self._kernels(g):
                self.kernels.append((g, kernel))
                self.steps.append((kernel, len(slots)))
                slots += kernel.nodes
        self.table = np.zeros(len(slots) + 1, np.uintp)
        self.numbers = np.zeros(len(self.program.sources) + 1, np.float64)
        self.given: list[tuple[int, int]] = []  # slots of sources, with the number of the source
        self.made: list[tuple[int, int]] = []  # slots of new arrays, with their number
        self.parts: list[tuple[int, Node]] = []  # slots of what calls return
        fresh = {v.node.id: k for k, v in enumerate(self.fresh)}
        for k, node in enumerate(slots):
            if node.op == "source":
                self.given.append((k, node.params))
            elif node.op == "number":
                self.table[k] = self.numbers.ctypes.data + 8 * node.params
            elif node.op == "constant":
                self.constants[node.id] = node.value
                self.table[k] = node.value.ctypes.data
            elif node.op == "part":
                self.parts.append((k, node))
            elif not node.size:
                self.table[k] = self.arena.ctypes.data  # nothing is read there
            elif node.id in fresh:
                self.made.append((k, fresh[node.id]))
            else:
                self.table[k] = self.arena.ctypes.data + self.start + self.memory.offset[node.id]
        self.sources = sorted({s for _, s in self.given})
        address = self.table.ctypes.data
        self.steps = [
            s if isinstance(s, Node) else self._launch(s[0], address + 8 * s[1]) for s in self.steps
        ]
        del graph

    def _kernels(self, g: Group) -> list[Kernel]:
        if g.kind == "loop":
            return [loop_kernel(self.machine, g, [n for n in g.nodes if n.id in self.stored])]
        node = g.nodes[0]
        if g.kind == "scatter":
            return [scatter_kernel(self.machine, node)]
        return place_kernels(self.machine, self.lowered.graph, node)

    def _launch(self, kernel: Kernel, address: int) -> Callable[[], None]:
        function = _FUNCTION(units.function(kernel.text))
        length = kernel.length
        return lambda: function(address, 0, length, 0, 0)

    # A call ------------------------------------------------------------------------------------------

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        """Run the program."""
        with self.lock:
            return self._run(given)

    def _run(self, given: Sequence[Any]) -> tuple[Any, ...]:
        held = {k: _plain(given[k]) for k in self.sources}
        for k, source in enumerate(self.program.sources):
            if source.value.weak:
                self.numbers[k] = given[k]
        for slot, k in self.given:
            self.table[slot] = held[k].ctypes.data
        arrays = [np.empty(v.shape, v.dtype) for v in self.fresh]
        for slot, k in self.made:
            self.table[slot] = arrays[k].ctypes.data
        values: dict[int, Any] = {v.node.id: a for v, a in zip(self.fresh, arrays, strict=True)}
        for step in self.steps:
            if isinstance(step, Node):
                self._call(step, values, given)
            else:
                step()
        for flag in self.checks:
            if flag:
                return replay.build(self.program)(*given)  # raises as NumPy does
        return tuple([self._value(v, values, given) for v in self.results])

    def _call(self, node: Node, values: dict[int, Any], given: Sequence[Any]) -> None:
        """Run one instruction by NumPy."""
        if node.op == "matmul":
            a, b = (self._value(v, values, given) for v in node.args)
            out = values[node.id] if node.id in values else self._array(node.args[0].graph.view(node))
            np.matmul(a, b, out=out.reshape(node.shape))
            return
        i = node.value
        args = [self._value(a, values, given) if isinstance(a, View) else a for a in node.params]
        if i.op.kind == "elementwise" and not i.op.literals:
            args = _typed(i, args)
        found = replay.forward_of(i)(*args, **i.params)
        outs = found if i.op.outputs > 1 else (found,)
        for k, (o, x) in enumerate(zip(i.outs, outs, strict=False)):
            values[node.id, k] = x if o.weak else np.asarray(x)  # type: ignore[index]
        for slot, part in self.parts:
            if part.args[0].node is node:
                x = values.get(part.id)
                if x is None:
                    found = values[node.id, part.params]  # type: ignore[index]
                    x = values[part.id] = _plain(np.asarray(found, part.dtype))
                self.table[slot] = x.ctypes.data

    def _value(self, v: View, values: dict[int, Any], given: Sequence[Any]) -> Any:
        """Return a value as NumPy takes it."""
        node = v.node
        if node.op == "number":
            return given[node.params]
        if node.op == "source":
            base = given[node.params]
        elif node.op == "constant":
            base = node.value
        elif node.op == "part":
            base = values[node.args[0].node.id, node.params]  # type: ignore[index]
            if v.weak:
                return base
        elif not node.size:
            return np.empty(v.shape, v.dtype)
        elif node.id in values:
            base = values[node.id]
        else:
            return self._array(v).item() if v.weak else self._array(v)
        if v.weak:
            return float(base.reshape(-1)[v.offset])
        if v.is_whole():
            return base if base.shape == v.shape else base.reshape(v.shape)
        return _strided(_plain(base), v)

    def _array(self, v: View) -> Any:
        """Return a view of a node in the arena."""
        at = self.start + self.memory.offset[v.node.id]
        size = v.node.dtype.itemsize
        return np.ndarray(
            v.shape, v.dtype, self.arena, at + v.offset * size, tuple([s * size for s in v.strides])
        )


def _plain(a: Any) -> Any:
    """Return an array whose elements lie one after the other; a copy if they do not."""
    return a if a.flags.c_contiguous and a.flags.aligned else np.array(a, order="C")


def _strided(base: Any, v: View) -> Any:
    flat, size = base.reshape(-1), v.dtype.itemsize
    return np.lib.stride_tricks.as_strided(
        flat[v.offset :], v.shape, tuple([s * size for s in v.strides]), writeable=False
    )


def _typed(i: Any, args: Sequence[Any]) -> list[Any]:
    """Return arguments of an elementwise op, with weak numbers as replay gives them."""
    dtypes = [a.dtype for a in args if hasattr(a, "dtype")]
    dtype = np.result_type(*dtypes) if dtypes else None
    if dtype is None or dtype.char not in "fd":
        return list(args)
    weak = [getattr(a, "weak", False) for a in i.args]
    return [np.asarray(a, dtype) if w else a for a, w in zip(args, weak, strict=True)]
