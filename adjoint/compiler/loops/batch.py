"""Loops inside ``vmap``: convert the program of one iteration to a program for the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from adjoint.compiler.loops.repeat import Repeat, UnrollError
from adjoint.compiler.program.inputs import ArgumentSource
from adjoint.compiler.program.program import Host, Instruction, Program
from adjoint.compiler.program.symbols import Number, Symbolic
from adjoint.core.batched import Batched, held
from adjoint.core.lifted import next_level, refusal, run_at, tracing
from adjoint.core.op import Op
from adjoint.core.record import evaluate
from adjoint.transforms.calls import new_op

__all__ = ["loop_op"]


def loop_op(name: str, steps: Repeat) -> Op:
    """Return an op of the loop ``steps``: one instruction of a trace, or one loop for a whole batch."""
    specs = steps.specs()
    op = new_op(name, (), False, len(specs))

    def forward(*values: Any) -> Any:
        trace: Any = tracing.get()
        trace.loops.append(steps)
        found = trace.call_host(Host(name, steps, len(specs)), values, specs)
        return tuple(found) if len(found) > 1 else found[0]

    def batch(_: Op, size: int, *own: Batched) -> Any:
        carries, end = steps.carries, steps.carries + steps.rows
        flags = [k < carries or a.batched for k, a in enumerate(own)]
        values = [_whole(a, size) if k < carries else a.value for k, a in enumerate(own)]
        for k in range(carries, end):
            if flags[k]:  # the axis of the steps must be the first
                values[k] = _swapped(values[k])
        mapped, constants = _mapped(steps, size, flags)
        found = evaluate(loop_op(name, mapped), (*values, *constants), {})
        outs = found if isinstance(found, tuple) else (found,)
        outs = tuple([v if k < carries else _swapped(v) for k, v in enumerate(outs)])
        return outs if len(outs) > 1 else outs[0]

    op.forward, op.batch = forward, batch
    return op


def _swapped(value: Any) -> Any:
    """Return an array with its first two axes, steps and batch, exchanged."""
    n = len(value.shape)
    return held.moveaxis(value, source=-n, destination=1 - n)


def _whole(value: Batched, size: int) -> Any:
    """Return the array of a ``vmap`` value with the batch axis first; broadcast it if it has none."""
    return value.value if value.batched else held.broadcast_to(value.value, shape=(size, *value.shape))


def _mapped(steps: Repeat, size: int, flags: Sequence[bool]) -> tuple[Repeat, list[Any]]:
    """Return the loop ``steps`` converted to a batch of ``size`` elements, and constants for its operands."""
    trace: Any = tracing.get()
    sub = trace.inner()
    try:
        found: tuple[Repeat, list[Any]] = sub.run(
            lambda: None, lambda _: _Mapping(sub, steps, size).loop(flags)
        )
    except UnrollError as error:
        refusal(error)  # in the trace around ``sub``, too
        raise
    return found


class _Mapping:
    """Converts a program to one that processes a batch, by running its instructions in a new trace."""

    def __init__(self, sub: Any, steps: Repeat, size: int) -> None:
        self.sub = sub
        self.steps = steps
        self.size = size
        self.level = next_level()
        self.known: dict[int, Any] = {}

    def loop(self, flags: Sequence[bool]) -> tuple[Repeat, list[Any]]:
        """Return the loop converted to the batch, and constants that must be appended to its operands."""
        steps, sub = self.steps, self.sub
        for k, (s, flag) in enumerate(zip(steps.program.sources, flags, strict=True)):
            shape = (self.size, *s.value.shape) if flag else s.value.shape
            self.known[s.value.id] = self._batched(sub.source(ArgumentSource, shape, s.value.dtype, k), flag)
        run_at(self._batched(np.zeros(()), False), self._run)
        results = [sub.value(_whole(self.known[v.id], self.size)) for v in steps.program.results]
        program = Program(sub.program.sources, sub.program.body, results)
        return replace(steps, program=program, whole=False), [s.owner for s in program.sources[len(flags) :]]

    def _batched(self, value: Any, flag: bool) -> Batched:
        return Batched(self.level, self.size, value, flag)

    def _run(self) -> None:
        for i in self.steps.program.live():
            if any(isinstance(a, Number) for a in (*i.args, *i.outs)):
                raise UnrollError
            args = tuple([self.known[a.id] if isinstance(a, Symbolic) else a for a in i.args])
            with np.errstate(all="ignore" if i.quiet else None):
                found = self._host(i, args) if isinstance(i.op, Host) else evaluate(i.op, args, i.params)
            outs = found if isinstance(found, tuple) else (found,)
            for o, v in zip(i.outs, outs, strict=True):
                self.known[o.id] = v if isinstance(v, Batched) else self._batched(np.asarray(v), False)

    def _host(self, i: Instruction, args: tuple[Batched, ...]) -> Any:
        """Add an instruction that calls a Python function on the batch; return its result."""
        if isinstance(i.op.forward, Repeat):
            return evaluate(loop_op(i.op.name, i.op.forward), args, {})
        rule = _HOSTS.get(i.op.batch)
        if rule is None:
            raise UnrollError
        flag, values, params = rule(self.size, args, dict(i.params))
        (out,) = i.outs
        shape = (self.size, *out.shape) if flag else out.shape
        return self._batched(self.sub.call_host(i.op, values, [(shape, out.dtype)], params)[0], flag)


# Batch rules of Python functions: ``rule(size, args, params)`` returns whether the result has a batch axis,
# and the arguments and parameters with which to call the function on the batch.


def _same_places(size: int, args: Sequence[Batched], params: Any) -> Any:
    """Batch rule of an elementwise function: return True, the arrays with a batch axis, and ``params``."""
    ndim = max(len(a.shape) for a in args)
    values = []
    for a in args:
        value = _whole(a, size)
        gap = (1,) * (ndim - len(a.shape))
        values.append(held.reshape(value, shape=(size, *gap, *a.shape)) if gap else value)
    return True, values, params


def _chosen(size: int, args: Sequence[Batched], params: Any) -> Any:
    """Batch rule of a choice between two values; the condition must be the same for the whole batch."""
    flag, *rest = args
    if flag.batched:
        raise UnrollError
    return True, [flag.value, *(_whole(a, size) for a in rest)], params


def _sum_at(size: int, args: Sequence[Batched], params: Any) -> Any:
    """Batch rule of the function that computes ``total[key] += g``."""
    total, g = args
    key = params["key"] if isinstance(params["key"], tuple) else (params["key"],)
    if not all(k is None or k is Ellipsis or isinstance(k, (int, slice)) for k in key):
        raise UnrollError
    return True, [_whole(total, size), _whole(g, size)], {"key": (slice(None), *key)}


_HOSTS: dict[str, Callable[..., Any]] = {
    "elementwise": _same_places, "choice": _chosen, "sum": _sum_at,
    "condition": lambda _, args, params: (False, [a.value for a in args], params),  # one bool for the batch
}  # fmt: skip
