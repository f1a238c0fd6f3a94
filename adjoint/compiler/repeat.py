"""A program that runs once for each iteration of a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.compiler import replay
from adjoint.compiler.program import Host, Instruction, Program, Source
from adjoint.compiler.symbolic import Symbolic

__all__ = ["Repeat", "UnrollError"]


class UnrollError(Exception):
    """Raised internally if a loop cannot be one instruction.  The function is then traced again, unrolled."""


class Repeat:
    """A loop over a program, called as a function of arrays.

    The sources of the program are first the ``carries`` carried values (each iteration receives them from the
    one before), then one row of each of ``rows`` arrays, then the values that all iterations read.  Its
    results are the new carried values, then one row of each stacked result.  If ``whole`` is true and the
    body is compiled to native code, the whole loop is compiled too.
    """

    __slots__ = ("_build", "_run", "backwards", "carries", "count", "program", "rows", "whole")

    def __init__(self, program: Program, count: int, carries: int, rows: int, backwards: bool) -> None:
        self.program = program
        self.count = count
        self.carries = carries
        self.rows = rows
        self.backwards = backwards  # from the last row to the first
        self.whole = False
        self.build_with(replay.build)

    def build_with(self, build: Callable[[Program], Any]) -> None:
        """Set the function that compiles the body, used when the loop is called from Python."""
        self._build = build
        self._run: Callable[..., tuple[Any, ...]] | None = None

    def _makes_one(self) -> bool:
        """Return whether the loop is compiled as a whole."""
        return self.whole and self._build is not replay.build

    def _in_one(self) -> Program:
        """Return a program whose only instruction is this loop."""
        steps = Repeat(self.program, self.count, self.carries, self.rows, self.backwards)
        found, end = Program(), self.carries + self.rows
        for k, s in enumerate(self.program.sources):
            row = self.carries <= k < end
            shape = (self.count, *s.value.shape) if row else s.value.shape
            found.sources.append(Source("argument", Symbolic(s.value.trace, shape, s.value.dtype), k))
        values = tuple([s.value for s in found.sources])
        outs = tuple([Symbolic(values[0].trace, *spec) for spec in self.specs()])
        found.body = [Instruction(Host("scan", steps, len(outs)), values, {}, outs, True, "")]
        found.results = list(outs)
        return found

    def specs(self) -> list[tuple[Any, Any]]:
        """Return the shape and dtype of each result of the loop."""
        found = [(v.shape, v.dtype) for v in self.program.results]
        return [s if k < self.carries else ((self.count, *s[0]), s[1]) for k, s in enumerate(found)]

    def __call__(self, *given: Any) -> Any:
        """Run all iterations on arrays; return the final carried values, then the stacked results."""
        run = self._run
        if run is None:
            run = self._run = self._build(self._in_one() if self._makes_one() else self.program)
        if self._makes_one():
            found = run(*given)
            return found[0] if len(found) == 1 else found
        end = self.carries + self.rows
        carry, rows, rest = list(given[: self.carries]), given[self.carries : end], given[end:]
        outs = [np.empty(*spec) for spec in self.specs()[self.carries :]]
        steps = range(self.count)
        for n in reversed(steps) if self.backwards else steps:
            found = run(*carry, *[r[n, ...] for r in rows], *rest)
            carry = list(found[: self.carries])
            for out, value in zip(outs, found[self.carries :], strict=True):
                out[n] = value
        every = [*map(np.asarray, carry), *outs]
        return every[0] if len(every) == 1 else tuple(every)
