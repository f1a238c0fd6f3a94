"""``Repeat``: a loop that runs a program once per iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.compiler import replay
from adjoint.compiler.program import Host, Instruction, Program, Source
from adjoint.compiler.symbolic import Symbolic

__all__ = ["Repeat", "UnrollError"]


class UnrollError(BaseException):  # a function that catches Exception does not catch it
    """Raised internally when a loop cannot be traced as one instruction.

    The function is then traced again with its loops unrolled.
    """


class Repeat:
    """A loop whose body is a program; a ``Repeat`` is called as a function of arrays.

    The sources of the program are the ``carries`` carried values, which each iteration receives from the
    iteration before, then one row of each of ``rows`` arrays, then the values that all iterations read.  The
    results of the program are the new carried values, then one row of each stacked result.  If ``whole`` is
    true and the body is compiled to native code, the loop around the body is compiled too.
    """

    __slots__ = (
        "_build",
        "_run",
        "backwards",
        "carries",
        "count",
        "flagged",
        "program",
        "rows",
        "settles",
        "whole",
    )

    def __init__(self, program: Program, count: int, carries: int, rows: int, backwards: bool) -> None:
        self.program = program
        self.count = count
        self.carries = carries
        self.rows = rows
        self.backwards = backwards  # whether the loop goes from the last row to the first
        self.whole = False
        self.settles = False  # whether the loop may end early, when an iteration changes no carried value
        self.flagged = False  # whether iterations change nothing once the first carried value is false
        self.build_with(replay.build)

    def build_with(self, build: Callable[[Program], Any]) -> None:
        """Set ``build``, the function that compiles the body when the loop is called from Python."""
        self._build = build
        self._run: Callable[..., tuple[Any, ...]] | None = None

    def _makes_one(self) -> bool:
        """Return whether the loop around the body is compiled to native code too."""
        return self.whole and self._build is not replay.build

    def _in_one(self) -> Program:
        """Return a program whose only instruction is this loop, so that the loop itself can be compiled."""
        steps = Repeat(self.program, self.count, self.carries, self.rows, self.backwards)
        steps.settles = self.settles
        found, end = Program(), self.carries + self.rows
        for k, s in enumerate(self.program.sources):
            row = self.carries <= k < end
            shape = (self.count, *s.value.shape) if row else s.value.shape
            found.sources.append(Source("argument", Symbolic(s.value.trace, shape, s.value.dtype), k))
        values = tuple([s.value for s in found.sources])
        outs = tuple([Symbolic(values[0].trace, *spec) for spec in self.specs()])
        found.body = [Instruction(Host("scan", steps, len(outs)), values, {}, outs, True)]
        found.results = list(outs)
        return found

    def specs(self) -> list[tuple[Any, Any]]:
        """Return the (shape, dtype) of each result: the final carried values, then the stacked results."""
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
        tail = _tail(rows) if self.settles else self.count  # the rows from here to the end are equal
        n, step = (self.count - 1, -1) if self.backwards else (0, 1)
        while 0 <= n < self.count:
            if self.flagged and not outs and not np.any(carry[0]):
                break
            found = run(*carry, *[r[n, ...] for r in rows], *rest)
            before, carry = carry, list(found[: self.carries])
            settled = n >= tail and all(map(_same, before, carry))
            same = (
                slice(n, n + 1) if not settled else slice(tail, n + 1) if self.backwards else slice(n, None)
            )
            for out, value in zip(outs, found[self.carries :], strict=True):
                out[same] = value
            n = n + step if not settled else tail - 1 if self.backwards else self.count
        every = [*map(np.asarray, carry), *outs]
        return every[0] if len(every) == 1 else tuple(every)


def _tail(rows: Sequence[Any]) -> int:
    """Return the smallest index ``k`` such that in each array all rows from ``k`` on are equal."""
    first = 0
    for r in rows:
        flat = np.ascontiguousarray(r).reshape(len(r), -1).view(np.uint8)
        other = np.flatnonzero((flat != flat[-1:]).any(axis=1))
        first = max(first, int(other[-1]) + 1 if other.size else 0)
    return first


def _same(a: Any, b: Any) -> bool:
    return a is b or np.asarray(a).tobytes() == np.asarray(b).tobytes()
