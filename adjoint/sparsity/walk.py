"""The pattern of a program: rules of ops applied to its instructions, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.compiler.loops.repeat import Repeat
from adjoint.compiler.program.inputs import ArraySource, Source, TensorSource
from adjoint.compiler.program.program import Host, Instruction, Program
from adjoint.compiler.program.symbols import Symbolic
from adjoint.sparsity.pattern import Pattern, identity, made, numbered, placed, selected, stacked, union
from adjoint.sparsity.rules import RULES, Applied, rule_for

__all__ = ["Constants", "started", "walk"]

_LARGEST = 10_000_000  # elements of a constant that is computed here


class Constants:
    """The values of a program that are the same in every call: arrays, and what is computed from them.

    Tensors of integers and booleans are, too, if ``captured`` has their arrays, by their ids.  ``read`` has
    the user's arrays and tensors whose elements were used; the pattern is wrong if they change.
    """

    def __init__(self, program: Program, captured: dict[int, Any]) -> None:
        self.captured = captured
        self.sources: dict[int, Source] = {
            s.value.id: s for s in program.sources if isinstance(s, (ArraySource, TensorSource))
        }
        self.makers = {out.id: i for i in program.body for out in i.outs}
        self.values: dict[int, Any] = {}
        self.read: dict[int, Any] = {}

    def __call__(self, value: Any) -> Any:
        """Return the elements of a value if they are known, otherwise None; note that they are used."""
        found = self.elements(value)
        if found is not None and isinstance(value, Symbolic):
            self._note(value)
        return found

    def elements(self, value: Any) -> Any:
        """Return the elements of a value if they are known, otherwise None."""
        if not isinstance(value, Symbolic):
            return np.asarray(value) if np.ndim(value) == 0 and value is not None else None
        return self._fold(value)

    def _fold(self, value: Any) -> Any:
        """Compute a value and all that it needs; return its elements, or None if they are not known."""
        stack = [value]
        while stack:
            v = stack[-1]
            if v.id in self.values:
                stack.pop()
                continue
            needed = self._needed(v)
            waiting = [] if needed is None else [n for n in needed if n.id not in self.values]
            if waiting:
                stack.extend(waiting)
            else:
                self._compute(v, needed)
                stack.pop()
        return self.values[value.id]

    def _needed(self, v: Any) -> list[Any] | None:
        """Return the operands of the instruction that computes ``v``; None if it cannot run."""
        i = self.makers.get(v.id)
        if i is None or v.weak or not i.op.pure or isinstance(getattr(i.op, "forward", None), Repeat):
            return None
        if any(np.prod(out.shape) > _LARGEST for out in i.outs):
            return None
        needed = [x for x in i.args if isinstance(x, Symbolic)]
        return needed if needed and not any(x.weak for x in needed) else None

    def _compute(self, v: Any, needed: list[Any] | None) -> None:
        source, i = self.sources.get(v.id), self.makers.get(v.id)
        if isinstance(source, TensorSource):
            self.values[v.id] = self.captured.get(id(source.owner)) if v.dtype.kind in "biu" else None
        elif source is not None:
            self.values[v.id] = source.owner if type(source.owner) is np.ndarray else None
        elif i is None or needed is None or any(self.values[n.id] is None for n in needed):
            self.values[v.id] = None
        else:
            given = [self.values[x.id] if isinstance(x, Symbolic) else x for x in i.args]
            with np.errstate(all="ignore"):
                found = i.op.forward(*given, **i.params)
            for out, each in zip(i.outs, found if len(i.outs) > 1 else (found,), strict=True):
                self.values[out.id] = np.asarray(each)

    def _note(self, value: Any) -> None:
        """Note the user's arrays from which a known value was computed."""
        stack = [value]
        while stack:
            v = stack.pop()
            source, i = self.sources.get(v.id), self.makers.get(v.id)
            if source is not None:
                if isinstance(source, TensorSource) or source.value.known is None:
                    self.read[id(source.owner)] = source.owner
            elif source is None and i is not None:
                stack.extend(x for x in i.args if isinstance(x, Symbolic))


def walk(
    body: Sequence[Instruction], start: dict[int, Pattern], wanted: Sequence[Any], constants: Constants
) -> list[Pattern | None]:
    """Return the patterns of the values ``wanted``; None for a value that depends on no input.

    ``start`` has the patterns of the inputs, by the ids of their symbols.
    """
    patterns = dict(start)
    steps = _needed(body, set(start), {v.id for v in wanted})
    last = {a.id: n for n, i in enumerate(steps) for a in i.args if isinstance(a, Symbolic)}
    keep = {v.id for v in wanted}
    for n, i in enumerate(steps):
        own = [patterns.get(a.id) if isinstance(a, Symbolic) else None for a in i.args]
        if any(p is not None for p in own):
            for out, p in zip(i.outs, _applied(i, own, constants), strict=True):
                if p is not None and np.dtype(out.dtype).kind in "fcV":
                    patterns[out.id] = p
        for a in i.args:
            if isinstance(a, Symbolic) and last[a.id] == n and a.id not in keep:
                patterns.pop(a.id, None)
    return [patterns.get(v.id) for v in wanted]


def _needed(body: Sequence[Instruction], start: set[int], wanted: set[int]) -> list[Instruction]:
    """Return the instructions through which values depend on inputs, in order."""
    moving = set(start)
    forward = []
    for i in body:
        if any(isinstance(a, Symbolic) and a.id in moving for a in i.args):
            forward.append(i)
            moving.update(out.id for out in i.outs)
    found = []
    wanted = set(wanted)
    for i in reversed(forward):
        if any(out.id in wanted for out in i.outs):
            found.append(i)
            read = i.args[1:2] if _is_choice(i.op) else i.args
            wanted.update(a.id for a in read if isinstance(a, Symbolic))
    return found[::-1]


def _is_choice(op: Any) -> bool:
    """Return whether ``op`` chooses between two ways to compute one value; the first shows what it reads."""
    return isinstance(op, Host) and op.batch == "choice"


def _applied(i: Instruction, own: list[Any], constants: Constants) -> list[Any]:
    """Return the patterns of the results of an instruction, given those of its operands."""
    op = i.op
    if isinstance(getattr(op, "forward", None), Repeat):
        return _loop(op.forward, own, constants)
    applied = Applied(op, i.args, i.params, i.outs, own, constants)
    if not isinstance(op, Host):
        return rule_for(op)(applied)
    if op.batch == "elementwise":
        return RULES["elementwise"](applied)
    if _is_choice(op):
        return [own[1]]
    if op.batch == "sum":
        return [_added(applied)]
    return RULES["dense"](applied)


def _added(a: Applied) -> Any:
    """``add_into(total, g, key)``: the total, and ``g`` at the positions of ``key``."""
    total, g = a.patterns
    if g is None:
        return total
    positions = numbered(a.outs[0].shape)[a.params["key"]]
    count = int(np.prod(a.outs[0].shape))
    numbers = np.broadcast_to(numbered(a.shape(1)), positions.shape)
    local = placed(positions.reshape(-1) - 1, numbers.reshape(-1) - 1, (count, int(np.prod(a.shape(1)))))
    return union(total, local @ g)


# Loops ---------------------------------------------------------------------------------------------


def _loop(steps: Repeat, own: list[Any], constants: Constants) -> list[Any]:
    """Return the patterns of the results of a loop: the pattern of its body, applied at each iteration."""
    values = [s.value for s in steps.program.sources]
    columns = next(p.shape[1] for p in own if p is not None)
    active = _active(steps, [p is not None for p in own])
    sizes = [int(np.prod(v.shape)) for v in values]
    total = sum(n for n, on in zip(sizes, active, strict=True) if on)
    start, first = {}, 0
    for v, n, on in zip(values, sizes, active, strict=True):
        if on:
            start[v.id] = made(np.arange(first, first + n), np.arange(n + 1), total)
            first += n
    inside = Constants(steps.program, constants.captured)
    local = walk(steps.program.body, start, steps.program.results, inside)
    constants.read |= inside.read
    carry = [_or_empty(p, n, columns) for p, n in zip(own, sizes[: steps.carries], strict=False)]
    end = steps.carries + steps.rows
    fixed = [_or_empty(p, n, columns) for p, n in zip(own[end:], sizes[end:], strict=True)]
    rows: list[list[Any]] = [[] for _ in local[steps.carries :]]
    order = range(steps.count - 1, -1, -1) if steps.backwards else range(steps.count)
    for n in order:
        row = [
            _row(p, n, k, columns)
            for p, k in zip(own[steps.carries : end], sizes[steps.carries : end], strict=True)
        ]
        given = [p for p, on in zip([*carry, *row, *fixed], active, strict=True) if on]
        state = stacked(given)
        outs = [None if d is None else d @ state for d in local]
        carry = [
            union(_or_empty(p, k, columns), before)
            if steps.flagged or steps.settles
            else _or_empty(p, k, columns)
            for p, k, before in zip(outs, sizes, carry, strict=False)
        ]
        for k, p in enumerate(outs[steps.carries :]):
            rows[k].append(p)
    sizes_of_rows = [int(np.prod(v.shape)) for v in steps.program.results[steps.carries :]]
    found = [*carry]
    for each, size in zip(rows, sizes_of_rows, strict=True):
        parts = [_or_empty(p, size, columns) for p in each]
        found.append(stacked(parts[::-1] if steps.backwards else parts))
    return [p if p.nnz else None for p in found]


def _active(steps: Repeat, given: list[bool]) -> list[bool]:
    """Return which inputs of the body of a loop may depend on inputs of the program, in some iteration."""
    active = list(given)
    values = [s.value for s in steps.program.sources]
    while True:
        moving = {v.id for v, on in zip(values, active, strict=True) if on}
        for i in steps.program.body:
            if any(isinstance(a, Symbolic) and a.id in moving for a in i.args):
                moving.update(out.id for out in i.outs)
        carried = [
            on or v.id in moving
            for on, v in zip(active, steps.program.results[: steps.carries], strict=False)
        ]
        if carried == active[: steps.carries]:
            return active
        active[: steps.carries] = carried


def _or_empty(p: Any, rows: int, columns: int) -> Any:
    return made(np.zeros(0, np.int64), np.zeros(rows + 1, np.int64), columns) if p is None else p


def _row(p: Any, n: int, size: int, columns: int) -> Any:
    """Return the pattern of row ``n``, of ``size`` elements, of a stacked operand."""
    if p is None:
        return _or_empty(None, size, columns)
    return selected(p, np.arange(n * size + 1, (n + 1) * size + 1))


def started(values: Sequence[Any]) -> dict[int, Pattern]:
    """Return the patterns of the inputs of a program, whose elements are numbered one after the other."""
    sizes = [int(np.prod(v.shape)) for v in values]
    whole = identity(sum(sizes))
    ends = np.cumsum([0, *sizes])
    return {
        v.id: selected(whole, np.arange(a + 1, b + 1))
        for v, a, b in zip(values, ends[:-1], ends[1:], strict=True)
    }
