"""Native programs: compiled kernels, which run in order, with NumPy calls between them.

``build`` turns a traced program into a ``Native``, which is called with the arrays and numbers of its sources
and returns its outputs.  Each kernel reads the addresses of its arrays from a table; an entry of the table is
a *slot*.  A *record* describes one kernel call: the address of the function, the address of its slots and the
chunks of its outermost loop.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from adjoint.compiler.build import units
from adjoint.compiler.emit.machine import using
from adjoint.compiler.emit.repeat import driver_kernel
from adjoint.compiler.emit.steps import small_kernel
from adjoint.compiler.host import pool
from adjoint.compiler.host.calls import HostCalls, contiguous, strided
from adjoint.compiler.host.entry import RELEASING, Entry, Given, Made, Record, layout
from adjoint.compiler.host.plan import NativePlan
from adjoint.compiler.host.words import Head
from adjoint.compiler.lower.graph import Dataflow, Primitive, View
from adjoint.compiler.lower.lower import Lowered
from adjoint.compiler.program.program import Program, typed
from adjoint.compiler.program.scalars import split
from adjoint.compiler.replay import replay
from adjoint.compiler.schedule.groups import replacements
from adjoint.compiler.schedule.kernel import Address, Kernel
from adjoint.compiler.schedule.rows import update_rows
from adjoint.config import held_across_fork

__all__ = ["Native", "build", "cuts_of"]

CHUNK = 200_000.0  # simple operations per chunk of a loop
HELPED = 100_000.0  # nanoseconds: shorter programs use no helper threads
_LONG = 250_000  # nanoseconds: loops with shorter iterations use no helper threads
VIEWED = 1 << 16  # bytes: for larger results a NumPy view is faster than a native copy


def build(program: Program, flush: bool = False, level: str | None = None) -> Native:
    """Compile a program to native code; with ``flush`` kernels treat subnormal numbers as 0.

    ``level`` names the vector instructions to use; None: the widest that the processor has.
    """
    if level is None:
        return Native(program, flush)
    with using(level):
        return Native(program, flush)


class Schedule(NativePlan):
    """A plan with an arena and a table of addresses in this process; ``sources`` is the number of inputs."""

    def __init__(
        self, graph: Dataflow, outputs: Sequence[View], sources: int,
        apart: bool = False, flush: bool = False, replacing: Sequence[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        super().__init__(graph, outputs, apart, flush, replacing)
        self._make_tables(sources)
        self.checks = [self._array(c) for c in self.flags]

    def _repeat(self, node: Primitive, outs: list[Primitive]) -> Kernel:
        """Return the kernel of a loop with the results ``outs``."""
        found = small_kernel(self.machine, node, outs)
        if found is not None:
            return found
        steps = node.value
        kept = [*range(steps.carries), *(n.params for n in outs if n.params >= steps.carries)]
        body = Schedule(
            steps.graph, [steps.outputs[k] for k in kept], len(node.args), True, self.machine.flush
        )
        helpers = pool.start(body.threads) if body.estimate > _LONG and body.threads > 1 else 0
        return driver_kernel(body, node, outs, kept, (pool.addresses()["run"], helpers))

    def _make_tables(self, sources: int) -> None:
        """Allocate the arena, find the address of every slot, and compile the kernels."""
        self.arena = self._new_arena(self.memory.size + 128)
        self.start = self.arena.ctypes.data + -self.arena.ctypes.data % 64
        self.numbers = np.zeros(sources + 1, np.float64)
        self.entries: list[Entry] = []
        self.slots = [[self._address(s) for s in kernel.slots] for _, kernel in self.kernels]
        flat = [s for slots in self.slots for s in slots]
        self.table = np.array([s if isinstance(s, int) else 0 for s in flat] + [0], np.uintp)
        self.moving = [(k, s) for k, s in enumerate(flat) if not isinstance(s, int)]
        self.sources = sorted({s[1] for _, s in self.moving if s[0] == "given"})
        rows, at = [], self.table.ctypes.data
        self.cuts = []
        self.functions = units.functions([kernel.text for _, kernel in self.kernels])
        for (_, kernel), function, slots in zip(self.kernels, self.functions, self.slots, strict=True):
            self.cuts.append(cuts_of(kernel, self.threads))
            rows.append((function, at, self.cuts[-1]))
            at += 8 * len(slots)
        self.records = pool.records(rows, self.runs)
        self.estimate = sum(k.cost for _, k in self.kernels) * self._scale()
        self.helped = self.estimate > HELPED

    def _new_arena(self, size: int) -> Any:
        """Return memory for the values that kernels store, ``size`` bytes; the kernels write it first."""
        return np.zeros(size, np.uint8)

    def _address(self, slot: Address) -> Any:
        """Return the address of a slot, or a tuple (kind, index, offset in bytes) if it changes at each call.

        The kind is "given" (a source), "made" (an output) or "part" (a result of a NumPy call).
        """
        if slot.node is None:
            return self.start + slot.offset
        node, offset = self.memory.place(slot.node)
        offset += slot.offset
        if node.op == "source":
            return "given", node.params, offset
        if node.op == "number":
            return self.numbers.ctypes.data + 8 * node.params
        if node.op == "constant":
            return node.value.ctypes.data + offset
        if node.op == "part":
            return "part", node, offset
        if node.id in self.made:
            return "made", self.made[node.id], offset
        if not node.size:
            return self.start  # any address: an empty array is never read
        return self.start + self.memory.offset[node.id] + offset

    def record(self, k: int) -> int:
        """Return the address of the record (the description of a kernel call) with index ``k``."""
        return int(self.records.ctypes.data) + 8 * pool.RECORD * k

    def entry_of(
        self, given: Sequence[Any], arguments: int, writes: Sequence[tuple[Any, int]] = (),
        grads: Sequence[tuple[Any, int]] = (), reuses: dict[int, int] | None = None,
        counters: Sequence[tuple[Any, str]] = (),
    ) -> Entry | None:  # fmt: skip
        """Return a native entry for the inputs ``given``, tuples as ``Given``; see ``Native.entry_for``."""
        plain = all(v.node.id in self.made for v in self.results)
        if not self.kernels or not plain or (self.calls and not self.direct) or layout() is None:
            return None
        made = [Made(v.dtype, v.shape, (reuses or {}).get(k)) for k, v in enumerate(self.fresh)]
        rows = [
            Record(function, [self._entry_slot(s) for s in slots], cuts)
            for function, slots, cuts in zip(self.functions, self.slots, self.cuts, strict=True)
        ]
        flags = [c.ctypes.data for c in self.checks]
        entry = Entry(
            records=rows, given=[Given(*g) for g in given], made=made, arguments=arguments,
            nanoseconds=int(self.estimate), helpers=self.helpers(), checks=flags,
            held=(self.arena, self.graph, self.kernels), writes=writes, grads=grads, runs=self.runs,
            always_writes=reuses is not None, checked=self.checked, counters=counters,
            parts=list(self._parts()) if self.calls else (),
            calls=functools.partial(HostCalls, self.arena, self._array) if self.calls else None,
        )  # fmt: skip
        self.entries.append(entry)
        return entry

    def _parts(self) -> Iterator[tuple[int, int, Primitive | None]]:
        """Yield the parts of the program, see ``Entry``."""
        low = high = 0
        for step in self.steps:
            if isinstance(step, Primitive):
                yield low, high, step
                low = high
            else:
                low, high = step
        if low < high:
            yield low, high, None

    def _entry_slot(self, s: Any) -> Any:
        """Return a slot in the form for ``Entry``: the address of a float becomes ("given", its index)."""
        at = s - self.numbers.ctypes.data if isinstance(s, int) else -1
        return ("given", at // 8) if 0 <= at < self.numbers.nbytes else s

    def helpers(self) -> int:
        """Start the helper threads that the program can use; return their number, which may be 0."""
        return pool.start(self.threads) if self.threads > 1 and self.helped else 0

    def _array(self, v: View) -> Any:
        """Return the view ``v`` of a node in the arena as a NumPy array."""
        whole, offset = self.memory.place(v.node)
        at = self.start - self.arena.ctypes.data + self.memory.offset[whole.id] + offset
        size = v.node.dtype.itemsize
        strides = tuple([s * size for s in v.strides])
        return np.ndarray(v.shape, v.dtype, self.arena, at + v.offset * size, strides)


class Native(Schedule):
    """A program compiled to native code; ``native(*sources)`` runs it and returns the outputs."""

    def __init__(self, program: Program, flush: bool = False) -> None:
        self.whole = program
        self.split = split(program)
        self.program = program if self.split is None else self.split.program
        self.lock = held_across_fork(threading.RLock())
        self.scattered: list[int] = []  # inputs that were not contiguous in a call
        self.running = False  # whether ``_run`` is running the program step by step
        units.prepare()
        self.lowered = Lowered(self.program)
        graph, pairs = self.lowered.graph, list(replacements(self.program))
        outputs = update_rows(graph, self.lowered.outputs, pairs)
        count = len(self.program.sources)
        super().__init__(graph, outputs, count, flush=flush, replacing=pairs)
        self.entry = self.entry_for(range(count), (), count)
        self.order = [] if self.entry is None else [self.made[v.node.id] for v in self.results]
        self.in_order = self.order == list(range(len(self.fresh)))

    def is_worthwhile(self) -> bool:
        """Return whether native code is useful: not to copy large arrays, for which NumPy has views."""
        copies = all(n.op in ("copy", "call") for g in self.groups for n in g.nodes)
        size = sum(v.node.nbytes for v in self.fresh)
        return bool(self.kernels) and not (copies and (self.calls or size > VIEWED))

    def is_atomic(self) -> bool:
        """Return whether a call keeps the GIL, so that no other Python thread runs during it."""
        return self.entry is not None and self.estimate <= RELEASING and not self.calls

    def entry_for(
        self, owners: Sequence[Any], writes: Sequence[tuple[Any, int]], arguments: int,
        grads: Sequence[tuple[Any, int]] = (), reuses: dict[int, int] | None = None,
        counters: Sequence[tuple[Any, str]] = (),
    ) -> Entry | None:  # fmt: skip
        """Return a native entry, which reads inputs from ``owners`` and stores outputs in tensors.

        Returns None if the program calls NumPy, or if no kernel computes one of the outputs.  ``owners`` are
        as in ``Given`` and ``counters`` as in ``Entry``.  ``writes`` and ``grads`` are pairs of a tensor and
        the index of the output that becomes its array or its gradient.  ``arguments`` is the number of
        arguments.  ``reuses`` maps an output to the input whose memory the output gets; if it is given, the
        entry always writes the tensors.
        """
        given = [
            Given(owner, s.value.dtype, None if s.value.weak else tuple(s.value.shape))
            for owner, s in zip(owners, self.program.sources, strict=True)
        ]
        return self.entry_of(given, arguments, writes=writes, grads=grads, reuses=reuses, counters=counters)

    # A call ------------------------------------------------------------------------------------------

    @functools.cached_property
    def replayed(self) -> Callable[..., tuple[Any, ...]]:
        """The same program as a Python function that calls NumPy."""
        return replay.build(self.whole)

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        """Run the program on its sources; return the outputs."""
        if self.split is None:
            return self._call_rest(given)
        try:
            rest, merged = self.split.compute(*given)
        except Exception:  # such as a division by zero
            return self.replayed(*given)
        return tuple(merged(self._call_rest(rest)))

    def _call_rest(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """Run the program without the numbers that Python computes before."""
        with self.lock:  # all calls share the arena
            if self.calls and any(e.words[Head.BUSY] for e in self.entries):
                return self.replayed(*given)  # called by what the program calls
            if self.entry is not None:
                found = self._call_entry(self.entry, [*given])
                if found is not NotImplemented:
                    return found if self.in_order else tuple(map(found.__getitem__, self.order))
            return self._run(given)

    def _call_entry(self, entry: Entry, given: list[Any]) -> Any:
        """Call the native entry; inputs that are not contiguous, such as broadcast gradients, are copied."""
        for k in self.scattered:
            given[k] = contiguous(given[k])
        found = entry.call(*given)
        if found is NotImplemented:
            places = [k for k, g in enumerate(given) if type(g) is np.ndarray and contiguous(g) is not g]
            if places:
                self.scattered += places
                return self._call_entry(entry, given)
        return found

    def _run(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """Run the program step by step from Python; return the outputs.  Used without a native entry."""
        if self.running:  # called by a finalizer during another run, which is using the table and the arena
            return self._replayed_rest(*given)
        self.running = True
        try:
            values, run, helpers = self._prepare(given), _runner(), self.helpers()
            for step in self.steps:
                if isinstance(step, Primitive):
                    self._call(step, values, given)
                else:
                    run(self.record(step[0]), step[1] - step[0], helpers)
            if any(map(bool, self.checks)):
                return self._replayed_rest(*given)  # raises the error that NumPy raises
            return tuple([self._value(v, values, given) for v in self.results])
        except Exception:
            if not self.checks:
                raise
            return self._replayed_rest(
                *given
            )  # raises the error that comes first: a check may have failed before
        finally:
            self.running = False

    @functools.cached_property
    def _replayed_rest(self) -> Callable[..., tuple[Any, ...]]:
        return self.replayed if self.split is None else replay.build(self.program)

    def timed(self, given: Sequence[Any]) -> Iterator[tuple[Any, float]]:
        """Run the program step by step; yield pairs (step, seconds).

        A step is the index of a kernel, or the node of a NumPy call.  After the kernel of a loop, its last
        iteration runs again kernel by kernel; these steps are pairs (index of the kernel, index in the body).
        The first pairs have the step None: they time a call that runs no kernel.
        """
        values, run = self._prepare(given), _runner()
        helpers = self.helpers()
        clock = time.perf_counter

        def took(work: Callable[..., None], *args: Any) -> float:
            start = clock()
            work(*args)
            return clock() - start

        for _ in range(9):
            yield None, took(run, self.record(0), 0, helpers)
        for step in self.steps:
            if isinstance(step, Primitive):
                yield step, took(self._call, step, values, given)
                continue
            for k in range(*step):
                yield k, took(run, self.record(k), 1, helpers)
                tables = self.kernels[k][1].tables
                if tables is not None:
                    tables.rewind()
                    for j in range(len(tables.body.kernels)):
                        yield (k, j), took(run, tables.body.record(j), 1, 0)

    def _prepare(self, given: Sequence[Any]) -> dict[Any, Any]:
        """Write the addresses of the inputs ``given`` and of new output arrays into the table."""
        held = {k: contiguous(given[k]) for k in self.sources}
        for k, source in enumerate(self.program.sources):
            if getattr(source.value, "kind", None) is float:
                self.numbers[k] = given[k]
        arrays = [np.empty(v.shape, v.dtype) for v in self.fresh]
        for slot, (kind, k, offset) in self.moving:
            if kind != "part":
                self.table[slot] = (held if kind == "given" else arrays)[k].ctypes.data + offset
        self.held = held  # keeps the arrays alive while kernels read them
        return {v.node.id: a for v, a in zip(self.fresh, arrays, strict=True)}

    def _call(self, node: Primitive, values: dict[Any, Any], given: Sequence[Any]) -> None:
        """Run the NumPy call ``node``; store its results in ``values`` and their addresses in the table."""
        i = node.value
        args = [self._value(a, values, given) if isinstance(a, View) else a for a in node.params]
        args = typed(i.op, i.args, args)
        if not i.op.pure and i.op.kind != "host":  # such an op may keep a reference to its arguments
            args = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        found = replay.forward_of(i)(*args, **i.params)
        outs = found if i.op.outputs > 1 else (found,)
        for k, (o, x) in enumerate(zip(i.outs, outs, strict=False)):
            if not o.weak:
                x = np.asarray(x)
                if np.may_share_memory(x, self.arena):  # it is an argument, or a view of one
                    x = x.copy()
            values[node.id, k] = x
        for slot, (kind, part, offset) in self.moving:
            if kind == "part" and part.args[0].node is node:
                x = values.get(part.id)
                if x is None:
                    x = values[part.id] = contiguous(np.asarray(values[node.id, part.params], part.dtype))
                self.table[slot] = x.ctypes.data + offset

    def _value(self, v: View, values: dict[Any, Any], given: Sequence[Any]) -> Any:
        """Return the value of the view ``v`` as an array or a Python float."""
        node = v.node
        if node.op == "number":
            if v.weak:
                return given[node.params]
            base = np.asarray(given[node.params])
        elif node.op == "source":
            base = given[node.params]
        elif node.op == "constant":
            base = node.value
        elif node.op == "part":
            base = values[node.args[0].node.id, node.params]
            if v.weak:
                return base
        elif not node.size:
            return np.empty(v.shape, v.dtype)
        elif node.id in values:
            base = values[node.id]
        else:
            whole, offset = self.memory.place(node)
            if whole.id in values:
                first = offset // node.dtype.itemsize
                base = values[whole.id].reshape(-1)[first : first + node.size].reshape(node.shape)
            else:
                return self._array(v).item() if v.weak else self._array(v)
        if v.weak:
            return float(base.reshape(-1)[v.offset])
        if v.is_whole():
            return base if base.shape == v.shape else base.reshape(v.shape)
        return strided(contiguous(base), v)


@functools.cache
def _runner() -> Callable[..., None]:
    """Return the native function that runs records: ``run(address, count, helpers)``."""
    return ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(pool.addresses()["run"])


def cuts_of(kernel: Kernel, threads: int) -> list[int]:
    """Return the bounds of the chunks into which a kernel's outermost loop is divided for threads."""
    pieces = kernel.length // kernel.unit
    count = min(pieces, int(kernel.cost / CHUNK), 64) if threads > 1 else 1
    count = kernel.chunks or count
    if count < 2:
        return [0, kernel.length]
    return [pieces * k // count * kernel.unit for k in range(count)] + [kernel.length]
