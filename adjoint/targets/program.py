"""A traced program on a device: a call reads its inputs, starts the kernels, and replaces what it writes.

New values get memory of their own, and nothing that a call writes is assigned before all kernels have been
started and all checks have passed.  So a call that fails at any point changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from adjoint.compiler.capture.trace import Trace
from adjoint.compiler.host.call import make_call
from adjoint.compiler.lower.graph import View
from adjoint.compiler.lower.lower import Lowered
from adjoint.compiler.program.inputs import Source
from adjoint.compiler.program.program import Program
from adjoint.compiler.program.scalars import split
from adjoint.compiler.program.symbols import Number
from adjoint.compiler.program.writes import (
    Action,
    CellWrite,
    DataWrite,
    GradWrite,
    PlaceWrite,
    SparseGradWrite,
    set_rows,
)
from adjoint.compiler.replay import replay
from adjoint.compiler.schedule.groups import replacements
from adjoint.compiler.schedule.rows import update_rows
from adjoint.core.inplace import move_version
from adjoint.core.tensor import Tensor, committing, wrap
from adjoint.errors import DeviceError
from adjoint.targets.body import Launch
from adjoint.targets.device import Device, Memory, Place
from adjoint.targets.numbers import compute_on_host, reachable
from adjoint.targets.plan import DevicePlan
from adjoint.targets.values import DeviceValue, Remote, State, put, raw_of, remote
from adjoint.transforms.rerun import Generators

__all__ = ["DeviceProgram", "as_tensor", "plan_on", "sources_of"]

_LINE = 128  # bytes: numbers of a call start at multiples of it


class DeviceProgram:
    """A program compiled for a device; ``program(*arguments)`` runs a call and returns its outputs.

    Outputs are ``DeviceValue``, or arrays after a call that NumPy had to run because a check failed.
    """

    def __init__(self, device: Device, program: Program, trace: Trace, count: int, name: str) -> None:
        self.device, self.name, self.whole = device, name, program
        self.slow = make_call(program, trace, replay.build(program), count)
        self.split = split(program)  # the host computes numbers first
        self.program = program = program if self.split is None else self.split.program
        with device.lock:
            device.check_alive()
            self.lowered = Lowered(program, device.dialect.sizes)
            self._check_native()
            self.plan, self.given_numbers, self.hosted = plan_on(device, program, self.lowered, name)
        self.checked = self.plan.checked()
        self.read = sources_of(self.plan)
        # random numbers that no kernel reads are drawn, too: the generators must advance as in eager mode
        self.drawn = sorted({*self.read, *(k for k, s in enumerate(program.sources) if s.kind == "draw")})
        self.copies: dict[int, tuple[Any, int, Memory]] = {}  # of arrays that did not change: array, version
        draws = [s.owner for s in program.sources if s.kind == "draw"]
        self.generators = Generators.drawn_by(draws) if draws else None
        self._find_numbers()

    # What cannot run ---------------------------------------------------------------------------------

    def _check_native(self) -> None:
        """Raise DeviceError if an op of the program has no native form."""
        for n in self.lowered.graph.nodes:
            if n.id in self.lowered.reasons:
                i = n.value
                line = f"{i.line}: " if i.line else ""
                raise DeviceError(
                    f"{line}{i.op.name} cannot run on {self.device.info.name}, which {self.name} is compiled "
                    f"for: {self.lowered.reasons[n.id]}.\n"
                    '  Move it out of the compiled function, or compile with device="cpu".'
                )

    def explain(self) -> str:
        """Return one line for each kernel: its work-groups, their threads, and its primitives."""
        counts = self.plan.count()
        lines = [f"{self.device.info.name}: " + ", ".join(f"{n} {what}" for what, n in counts.items())]
        for p in self.plan.bodies():
            lines += [
                f"{math.prod(k.groups)} × {math.prod(k.sizes)}  {k.what}"
                for _, k in p.kernels
                if isinstance(k, Launch)
            ]
        return "\n".join(lines)

    # A call ------------------------------------------------------------------------------------------

    def __call__(self, *moving: Any) -> Any:
        """Run a call; ``moving`` are the traced arguments."""
        with self.device.lock:
            self.device.check_alive()
            states = [] if self.generators is None else self.generators.read()
            try:
                found = self._run(moving)
                if found is not None:
                    return found
            except BaseException:
                if self.generators is not None:
                    self.generators.write(states)
                raise
            if self.generators is not None:
                self.generators.write(states)  # the random numbers are drawn again
            return self.slow(*moving)

    def _run(self, moving: Sequence[Any]) -> list[Any] | None:
        """Run a call on the device; return None, and change nothing, if a check has failed."""
        plan, device = self.plan, self.device
        merged: Any = None
        if self.split is not None:
            try:
                rest, merged = self.split.compute(*map(partial(_number_of, moving), self.whole.sources))
            except Exception:  # such as a division by zero: Python raises it again
                return None
            moving = [*moving, *rest[len(self.split.kept) :]]
        given = self._numbers(moving)
        for k in self.drawn:
            if k not in given:
                given[k] = self._given(k, moving)
        made = {k: (device.alloc(v.node.nbytes), 0) for k, v in enumerate(plan.fresh)}
        for p in self.checked:
            device.fill((p.fail, 0), 4)
        with device.errors("a kernel"):
            plan.run(given, made)
            device.submit()
        for p in self.checked:
            if device.read((p.fail, 0), (), np.int32):
                return None
        outputs = [
            self._output(v, made, moving, o)
            for v, o in zip(plan.results, self.program.outputs(), strict=True)
        ]
        outputs = outputs if merged is None else merged(outputs)
        _Commit(self.whole, outputs, moving).run()
        return list(outputs[: len(self.whole.results)])

    def _output(self, v: View, made: dict[int, Place], moving: Sequence[Any], o: Any) -> Any:
        """Return a new value, or an array if no kernel computes it."""
        if v.node.op == "number":
            return np.asarray(self._value(v.node.params, moving), o.dtype)
        if v.node.op == "constant":
            return np.asarray(v.node.value.reshape(-1)[v.offset :][: v.size].reshape(v.shape), o.dtype)
        if not v.size:
            return np.empty(v.shape, v.dtype)
        if v.node.id in self.plan.made and not v.weak:
            memory, _ = made[self.plan.made[v.node.id]]
            return DeviceValue(self.device, memory, tuple(o.shape), v.dtype)
        place = self.plan.place_of(v, made)
        return np.asarray(self.device.read(place, v.shape, v.dtype), o.dtype)

    # Inputs --------------------------------------------------------------------------------------------

    def _find_numbers(self) -> None:
        """Find the inputs that are Python numbers or small arrays of them: all are copied together."""
        self.small: list[tuple[int, Any, Any]] = []  # index and dtype of the input, its part of ``staging``
        dtypes, at = [], 0
        for k in self.read:
            if k in self.hosted or k in self.given_numbers:
                value = self.hosted[k][0] if k in self.hosted else self.program.sources[k].value
                dtype = np.dtype(np.float64) if value.weak else value.dtype
                dtypes.append((k, at, dtype, value.size))
                at += -(-self.device.stored(dtype).itemsize * value.size // _LINE) * _LINE
        self.staging = np.zeros(at // 4, np.uint32)
        self.places = {k: at for k, at, _, _ in dtypes}
        for k, at, dtype, size in dtypes:
            stored = self.device.stored(dtype)
            part = self.staging.view(np.uint8)[at : at + stored.itemsize * size]
            self.small.append((k, dtype, part.view(stored)))

    def _numbers(self, moving: Sequence[Any]) -> dict[int, Place]:
        """Copy all numbers to the device; return their places by the index of the input."""
        if not self.small:
            return {}
        for k, dtype, part in self.small:
            part[:] = self.device.packed(np.ravel(np.asarray(self._value(k, moving), dtype)))
        memory = self.device.upload(self.staging)
        return {k: (memory, at) for k, at in self.places.items()}

    def _value(self, k: int, moving: Sequence[Any]) -> Any:
        """Return the present value of an input: a ``DeviceValue``, an array or a number."""
        if k in self.hosted:
            return self.hosted[k][1](lambda i: self._value(i, moving))
        s = self.program.sources[k]
        if s.kind == "scalar":  # they are the last sources, and the last values
            return moving[k - len(self.program.sources)]
        if s.kind in ("argument", "argument grad"):
            a = moving[s.owner]
            if s.kind == "argument grad":
                a = a._extra.grad
            return raw_of(a) if isinstance(a, Tensor) else a
        if s.kind == "tensor":
            return raw_of(s.owner)
        if s.kind == "grad":
            return raw_of(s.owner._extra.grad)
        if s.kind == "cell":
            container, key = s.owner
            owner, attribute = getattr(container, "held_by", (None, ""))
            items = container if owner is None else getattr(owner, attribute)
            return items.raw(key) if type(items) is State else items[key]
        return s.read()

    def _given(self, k: int, moving: Sequence[Any]) -> Place:
        """Return the place of an input; copy it to the device if it is not there."""
        s, value = self.program.sources[k], self._value(k, moving)
        if type(value) is DeviceValue:
            if value.device is self.device:
                return value.place
            value = value.fetch()
        owner = s.owner if s.kind == "tensor" else moving[s.owner] if s.kind == "argument" else None
        if isinstance(owner, Tensor):
            # a tensor that is written gets another array, because this dictionary has a reference
            version = owner._version
            known = self.copies.get(k)
            if known is None or known[0] is not value or known[1] != version:
                known = self.copies[k] = value, version, self.device.upload(_typed(value, s))
            return known[2], 0
        return self.device.upload(_typed(value, s)), 0


class _Commit:
    """The assignments at the end of a call; if one fails, all are undone."""

    def __init__(self, program: Program, outputs: Sequence[Any], moving: Sequence[Any]) -> None:
        self.writes, self.moving = program.writes, moving
        self.values = outputs[len(program.results) :]
        self.undo: list[Any] = []  # functions

    def run(self) -> None:
        """Make all assignments."""
        values, actions = iter(self.values), []
        try:
            for w in self.writes:
                given = [None if v is None else next(values) for v in w.values]
                if isinstance(w, Action):
                    actions.append((w, given))
                    continue
                owner = self.moving[w.owner] if isinstance(w.owner, int) else w.owner
                if isinstance(w, DataWrite):
                    self._data(owner, given[0])
                elif isinstance(w, GradWrite):
                    self._grad(owner, given[0])
                elif isinstance(w, PlaceWrite):
                    self.undo.append(partial(w.owner.put, w.owner.read()))
                    w.owner.put(given[0])
                elif isinstance(w, SparseGradWrite):
                    before: list[Any] = []
                    rows, changes = map(_fetched, given)
                    set_rows(before, owner, rows, changes, w.shape)
                    self.undo += [partial(*each) for each in before]
                else:
                    assert isinstance(w, CellWrite)
                    container, key = owner
                    self._cell(container, key, given[0])
            for w, given in actions:
                if w.counts():
                    self.undo.append(partial(w.owner.take_back, w.owner.count()))
                w.owner(*map(_fetched, given))
        except BaseException:
            for undo in reversed(self.undo):
                undo()
            raise

    def _data(self, t: Tensor, value: Any) -> None:
        self.undo.append(partial(_put_back, t, raw_of(t), type(t), t._version))
        put(t, value, Remote if type(value) is DeviceValue else Tensor)
        move_version(t)

    def _grad(self, t: Tensor, value: Any) -> None:
        extra = t._need_extra()
        self.undo.append(partial(setattr, extra, "grad", extra.grad))
        with committing:
            extra.grad = None if value is None else as_tensor(value)

    def _cell(self, container: Any, key: Any, value: Any) -> None:
        owner, attribute = getattr(container, "held_by", (None, ""))
        items = container if owner is None else getattr(owner, attribute)
        if owner is not None and type(items) is dict:  # an optimiser: its state stays on the device
            self.undo.append(partial(setattr, owner, attribute, items))
            items = State(items)
            setattr(owner, attribute, items)
        before = items.raw(key) if type(items) is State else items[key]
        self.undo.append(partial(items.__setitem__, key, before))
        items[key] = value if type(items) is State else _fetched(value)


def plan_on(
    device: Device, program: Program, lowered: Lowered, name: str
) -> tuple[DevicePlan, set[int], dict[int, Any]]:
    """Return the plan of a program, its inputs that are Python numbers, and those that the host computes.

    The latter are a view and a function, by their index.  Raise DeviceError for what the device lacks.
    """
    outputs = update_rows(lowered.graph, lowered.outputs, list(replacements(program)))
    numbers = {k for k, s in enumerate(program.sources) if s.value.weak or s.kind in ("numbers", "scalar")}
    hosted: dict[int, Any] = {}
    if not device.info.float64:
        outputs, hosted = compute_on_host(lowered.graph, outputs, numbers, len(program.sources))
    _check_dtypes(device, name, [*outputs, *lowered.graph.checks])
    return DevicePlan(device, lowered.graph, outputs), numbers, hosted


def _check_dtypes(device: Device, name: str, outputs: Sequence[View]) -> None:
    """Raise DeviceError if the device does not have a dtype of the program, or for too large arrays."""
    for n in sorted(reachable(outputs), key=lambda n: n.op != "source"):
        reason = device.refuses(n.dtype)
        if reason and n.op not in ("repeat", "number"):
            what = "reads an input" if n.op == "source" else f"computes {n.origin or n.op}"
            raise DeviceError(
                f"{name} {what} in {n.dtype}, but {device.info.name} {reason}.\n"
                "  Use float32 (such as model.astype(np.float32)), or another device."
            )
        if n.size >= 1 << 31:
            raise DeviceError(
                f"{name} computes {n.origin or n.op} with {n.size:,} elements, but kernels of "
                'devices count elements in 32 bits.\n  Split the array, or compile with device="cpu".'
            )


def _put_back(t: Tensor, value: Any, kind: type, version: int) -> None:
    put(t, value, kind)
    t._version = version


def _fetched(value: Any) -> Any:
    return value.fetch() if type(value) is DeviceValue else value


def as_tensor(value: Any) -> Tensor:
    """Return a tensor with a value of a device or an array."""
    return remote(value) if type(value) is DeviceValue else wrap(value)


def _number_of(moving: Sequence[Any], s: Source) -> Any:
    """Return the present value of an input that is a Python number; None for another input."""
    if s.kind == "argument" and isinstance(s.value, Number):
        return moving[s.owner]
    return s.read() if s.kind == "variable" else None


def _typed(value: Any, source: Any) -> Any:
    dtype = np.float64 if source.value.weak else source.value.dtype
    return np.asarray(value, dtype)


def sources_of(plan: DevicePlan) -> list[int]:
    """Return the indices of the inputs that kernels read."""
    return sorted({s[1] for _, slots in plan.rows for s in slots if s[0] == "given"})
