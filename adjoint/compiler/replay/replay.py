"""Run a program on NumPy: generate a Python function with one call per instruction, as eager mode does."""

from __future__ import annotations

import heapq
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from adjoint.compiler.program.lines import Lines
from adjoint.compiler.program.program import Instruction, Program
from adjoint.compiler.program.symbols import ADD_INTO, Symbolic, add_in_place
from adjoint.compiler.replay.phrases import NAMES, is_spread, phrase
from adjoint.compiler.replay.tables import tables_of
from adjoint.core.eager import UFUNCS
from adjoint.core.native import LARGE
from adjoint.core.record import float_dtype
from adjoint.core.references import OF_CALLER
from adjoint.core.user_code import modes, reported_modes, set_modes
from adjoint.threads.spread import function_in_pieces

__all__ = ["build", "forward_of"]

_FOLDED = 64  # elements: instructions with a larger result run at each call, even if it is constant
_INLINED = 32  # lines: shorter programs are copied into the function that calls them (see ``host.call``)


def build(program: Program, tables: bool = False) -> Callable[..., tuple[Any, ...]]:
    """Return a function ``run(*sources)`` that runs a program on NumPy and returns its outputs.

    ``run`` releases each value after its last use.  With ``tables``, the gradient of a large table is a pair,
    from which ``fill_tables`` computes it; ``run.tables`` has the tables.
    """
    return _Builder(program, tables).function()


class _Builder:
    """Generates the Python function that runs a program on NumPy."""

    def __init__(self, program: Program, tables: bool) -> None:
        self.program = program
        self.body = program.live()
        self.outputs = program.outputs()
        self.w = Lines(
            asarray=np.asarray, empty_like=np.empty_like, ndarray=np.ndarray, quiet=np.errstate, modes=modes,
            set_modes=set_modes, reported_modes=reported_modes, reusable=reusable, **NAMES,
        )  # fmt: skip
        self.names = self.w.names
        self.kept = {o.id for o in self.outputs}
        self._fold()
        self.tables = tables_of(program, self.body) if tables else {}
        self.typed: set[str] = set()  # variables with a Python number that was converted to an array
        self.makers = {o.id: i for i in self.body for o in i.outs}
        self.fresh = frozenset(self.makers)
        self.branches = self._find_branches()
        inner = {k: n for n, inside in self.branches.items() for k in inside}
        self.inner = frozenset(inner)  # instructions that run only under a condition
        self.uses: Counter[int] = Counter()
        self.last: dict[int, int] = {}  # by the id of a value: the last instruction that uses it
        for n, i in enumerate(self.body):
            for a in i.args:
                if isinstance(a, Symbolic):
                    self.uses[a.id] += 1
                    self.last[a.id] = max(self.last.get(a.id, 0), inner.get(n, n))

    def _fold(self) -> None:
        """Compute the small constant results of the backward pass now, and remove their instructions."""
        known = {s.value.id: s.value.known for s in self.program.sources if s.value.known is not None}
        body = []
        for i in self.body:
            values = [known.get(a.id) if isinstance(a, Symbolic) else a for a in i.args]
            (out,) = i.outs if len(i.outs) == 1 else (None,)
            simple = i.quiet and i.op.kind == "elementwise" and not i.params
            if out is None or out.size > _FOLDED or not simple or any(v is None for v in values):
                body.append(i)
                continue
            with np.errstate(all="ignore"):
                known[out.id] = self.names[f"v{out.id}"] = np.asarray(i.op.forward(*values))
        self.body = body

    def _find_branches(self) -> dict[int, list[int]]:
        """Return, for each conditional instruction, the instructions that only its last argument depends on.

        Keys and values are indices of instructions.  These instructions run only if the condition is true.
        """
        maker = {o.id: n for n, i in enumerate(self.body) for o in i.outs}
        users: dict[int, list[int]] = {}  # by instruction number: the instructions that use its results
        for n, i in enumerate(self.body):
            for a in i.args:
                if isinstance(a, Symbolic) and a.id in maker:
                    users.setdefault(maker[a.id], []).append(n)
        branches: dict[int, list[int]] = {}
        for n, i in enumerate(self.body):
            if i.op.kind != "host" or i.op.when is None:
                continue
            before = {maker.get(a.id) for a in i.args[:-1]}
            inside: set[int] = set()
            todo = [-maker[a.id] for a in i.args[-1:] if a.id in maker]
            while todo:  # in reverse order, so that all users of an instruction come before it
                k = -heapq.heappop(todo)
                if k in inside or k in before or not self._only_for(k, users[k], inside | {n}):
                    continue
                inside.add(k)
                for a in self.body[k].args:
                    if isinstance(a, Symbolic) and a.id in maker:
                        heapq.heappush(todo, -maker[a.id])
            if inside:
                branches[n] = sorted(inside)
        return branches

    def _only_for(self, k: int, used: list[int], inside: set[int]) -> bool:
        """Return whether instruction ``k``, which ``used`` use, can move to the branch with ``inside``."""
        i = self.body[k]
        simple = i.op.pure and (i.op.kind != "host" or i.op.when is None)
        return simple and inside.issuperset(used) and not any(o.id in self.kept for o in i.outs)

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """Generate the source of the function, compile it, and return the function."""
        w = self.w
        outer = [(n, i) for n, i in enumerate(self.body) if n not in self.inner]
        for quiet, group in itertools.groupby(outer, lambda each: each[1].quiet):
            if quiet:  # as in a backward pass
                with w.block("with quiet(all='ignore'):"):
                    self._instructions(group)
                continue
            w.add("before = modes()")
            with w.block("try:"):
                w.add("set_modes(reported_modes(before))")  # see ``reported_modes``
                self._instructions(group)
            w.add("finally:", "    set_modes(before)")
        lines = [line.removeprefix("    ") for line in w.lines]
        names = dict(w.names)
        w.add(f"return ({''.join(f'v{o.id}, ' for o in self.outputs)})")
        run = w.function("run", [f"v{s.value.id}" for s in self.program.sources])
        places: dict[int, list[int]] = {}
        for k, o in enumerate(self.outputs):
            places.setdefault(o.id, []).append(k)
        run.tables = [  # type: ignore[attr-defined]  # for ``host.call``
            (table, tuple(places[n])) for n, table in self.tables.items()
        ]
        if len(lines) <= _INLINED:
            run.inline = lines, names  # type: ignore[attr-defined]  # for ``host.call``
        return run

    def _instructions(self, group: Iterable[tuple[int, Instruction]]) -> None:
        """Generate the lines of instructions, which are given with their indices."""
        for n, i in group:
            if i.op.kind == "host" and i.op.when is not None:
                self._branch(n, i)
            else:
                self._instruction(n, i)
            self._drop(n, i)

    def _branch(self, n: int, i: Instruction) -> None:
        """Generate an ``if`` for a conditional instruction; instructions that only it needs go inside."""
        self.names[f"when{n}"] = i.op.when
        before = set(self.typed)
        with self.w.block(f"if when{n}(v{i.args[0].id}):"):
            for k in self.branches.get(n, ()):
                self._instruction(k, self.body[k])
            self._instruction(n, i)
        self.typed = before
        self.w.add(f"else: v{i.outs[0].id} = v{i.args[-2].id}")

    def _instruction(self, n: int, i: Instruction) -> None:
        """Generate the lines of instruction ``i``, which has the index ``n``."""
        args = [self._argument(n, k, i, a) for k, a in enumerate(i.args)]
        targets = ", ".join(f"v{o.id}" for o in i.outs)
        comma = "," if i.op.outputs > 1 and targets else ""
        for call in self._as_first(n, i, args) or phrase(i, args, targets) or [self._call(n, i, args)]:
            text = self._reused(n, i, args, call)
            self.w.add(f"{targets}{comma}{' = ' if targets else ''}{text}")
        for o in i.outs:
            if not o.weak and not o.shape:
                self.w.add(f"if type(v{o.id}) is not ndarray: v{o.id} = asarray(v{o.id})")

    def _as_first(self, n: int, i: Instruction, args: list[str]) -> list[str] | None:
        """Return calls that give the result the memory layout of the first operand; None if not needed.

        The layout matters because later sums and products round depending on it.  NumPy chooses the layout of
        the first operand, unless the second operand has two or more axes and another layout.
        """
        forward = UFUNCS.get(i.op.forward, i.op.forward)
        if not i.in_place or type(forward) is not np.ufunc or i.params:
            return None
        a, b = i.args
        several = isinstance(b, Symbolic) and sum(n > 1 for n in b.shape) > 1
        if not several or not isinstance(a, Symbolic) or a.dtype != i.outs[0].dtype:
            return None
        self.names[f"f{n}_{_identifier(i.op.name)}"] = forward
        return [f"f{n}_{_identifier(i.op.name)}({', '.join(args)}, out=empty_like({args[0]}))"]

    def _call(self, n: int, i: Instruction, args: list[str]) -> str:
        """Return a call of the forward function of an instruction; ``args`` are its operands' expressions."""
        if i.outs and i.outs[0].id in self.tables:
            return f"({args[0]}, {args[1]})"
        if i.params:
            self.names[f"p{n}"] = i.params
            args = [*args, f"**p{n}"]
        f = f"f{n}_{_identifier(i.op.name)}"
        own = i.op is ADD_INTO and self._is_own(i.args[0])
        self.names[f] = add_in_place if own else forward_of(i)
        return f"{f}({', '.join(args)})"

    def _reused(self, n: int, i: Instruction, args: list[str], call: str) -> str:
        """Return ``call``, or if possible an expression that writes its result into an operand.

        ``call`` computes the instruction ``i``, which has the index ``n``.  The operand must be an array that
        the program made and that nothing uses after this instruction.
        """
        forward: Any = UFUNCS.get(i.op.forward, i.op.forward)
        if type(forward) is not np.ufunc or len(i.outs) != 1 or len(args) != forward.nin or i.params:
            return call
        (out,) = i.outs
        if out.size * out.dtype.itemsize < LARGE or n in self.inner:
            return call
        arrays = {f"v{a.id}": a for a in i.args if isinstance(a, Symbolic) and a.shape}
        for name, a in arrays.items():
            if (a.shape, a.dtype) == (out.shape, out.dtype) and self._ends(a, n):
                function = f"f{n}_{_identifier(i.op.name)}"
                self.names.setdefault(function, forward)
                given = ", ".join([name, *(other for other in arrays if other != name)])
                return f"{function}({', '.join(args)}, out={name}) if reusable({given}) else {call}"
        return call

    def _ends(self, a: Symbolic, n: int) -> bool:
        """Return whether the program made the array ``a``, and instruction ``n`` is the last to use it."""
        maker = self.makers.get(a.id)
        new = maker is not None and maker.op.memory != "view"
        return new and a.id not in self.kept and self.last[a.id] == n

    def _is_own(self, value: Symbolic) -> bool:
        """Return whether ``value`` is an array that the program made to sum gradients in, used only once."""
        maker = self.makers.get(value.id)
        sums = maker is not None and (maker.op is ADD_INTO or maker.op.name == "unindex")
        return sums and self.uses[value.id] == 1 and value.id not in self.kept

    def _drop(self, n: int, i: Instruction) -> None:
        """Generate a line that sets to None the variables that are not used after instruction ``n``."""
        some = [i, *(self.body[k] for k in self.branches.get(n, ()))]
        dead = {a.id for each in some for a in each.args if isinstance(a, Symbolic) and self.last[a.id] == n}
        dead |= {o.id for each in some for o in each.outs if self.last.get(o.id, n) == n}
        dead = (dead & self.fresh) - self.kept
        if dead:
            self.w.add(f"{' = '.join(f'v{d}' for d in sorted(dead))} = None")

    def _argument(self, n: int, k: int, i: Instruction, a: Any) -> str:
        """Return the Python expression for ``a``, which is operand ``k`` of instruction ``i``."""
        if not isinstance(a, Symbolic):
            self.names[f"c{n}_{k}"] = a
            return f"c{n}_{k}"
        # as in eager mode: a number becomes a 0-d array with the dtype of the other operands
        dtype = None
        if a.weak and a.kind in (float, int) and i.op.kind == "elementwise":
            dtype = float_dtype([b for b in i.args if not getattr(b, "weak", False)])
        if dtype is None or (i.op.literals and (dtype.kind != "V" or a.kind is int)):
            return f"v{a.id}"
        name = f"w{a.id}{dtype.char}"
        if name not in self.typed:
            self.typed.add(name)
            self.names[f"d_{dtype.char}"] = dtype
            self.w.add(f"{name} = asarray(v{a.id}, d_{dtype.char})")
        return name


def reusable(a: Any, *others: Any) -> bool:
    """Return whether a ufunc may write its result into ``a``, an operand that is a variable of the caller.

    Nothing else may refer to the array.  All operands must be row-major, or one number that is repeated,
    because then a new result would be row-major too: its layout decides how later sums and products round.
    """
    if sys.getrefcount(a) > OF_CALLER or a.base is not None or not a.flags.carray:
        return False
    return all(b.flags.c_contiguous or not any(b.strides) for b in others)


def forward_of(i: Instruction) -> Callable[..., Any]:
    """Return the function that computes an instruction, in several threads if ``is_spread(i)``."""
    if is_spread(i):
        return partial(function_in_pieces, UFUNCS.get(i.op.forward, i.op.forward))
    forward: Callable[..., Any] = getattr(i.op, "plain", None) or i.op.forward
    return forward


def _identifier(name: str) -> str:
    return sys.intern("".join(c if c.isalnum() else "_" for c in name))
