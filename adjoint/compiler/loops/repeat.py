"""``Repeat``: a loop that runs a program once per iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adjoint.compiler.program.inputs import ArgumentSource
from adjoint.compiler.program.program import Host, Instruction, Program
from adjoint.compiler.program.symbols import Symbolic
from adjoint.compiler.replay import replay

__all__ = ["Repeat", "UnrollError"]


class UnrollError(BaseException):  # a function that catches Exception does not catch it
    """Raised internally if a loop cannot be one instruction; the function is traced with loops unrolled."""


@dataclass(eq=False)
class Repeat:
    """A loop whose body is a program; a ``Repeat`` is called as a function of arrays.

    The sources of the program are the ``carries`` carried values, which each iteration receives from the
    iteration before, then one row of each of ``rows`` arrays, then the values that all iterations read.  The
    results of the program are the new carried values, then one row of each stacked result.  If ``whole`` is
    true and the body is compiled to native code, the loop around the body is compiled too.
    """

    program: Program
    count: int
    carries: int
    rows: int
    backwards: bool = False  # whether the loop goes from the last row to the first
    settles: bool = False  # whether the loop may end early, when an iteration changes no carried value
    flagged: bool = False  # whether iterations change nothing once the first carried value is false
    whole: bool = False

    def __post_init__(self) -> None:
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
        steps = replace(self, flagged=False, whole=False)
        trace, values = self.program.sources[0].value.trace, []
        for k, v in enumerate(s.value for s in self.program.sources):
            row = self.carries <= k < self.carries + self.rows
            values.append(Symbolic(trace, (self.count, *v.shape) if row else v.shape, v.dtype))
        outs = tuple([Symbolic(trace, *spec) for spec in self.specs()])
        loop = Instruction(Host("scan", steps, len(outs)), tuple(values), {}, outs, True)
        return Program([ArgumentSource(v, k) for k, v in enumerate(values)], [loop], outs)

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
        n = self.count - 1 if self.backwards else 0
        while 0 <= n < self.count:
            if self.flagged and not outs and not np.any(carry[0]):
                break
            found = run(*carry, *[r[n, ...] for r in rows], *rest)
            before, carry = carry, list(found[: self.carries])
            same = slice(n, n + 1)  # the iterations with these results
            if n >= tail and all(map(_same, before, carry)):
                same = slice(tail, n + 1) if self.backwards else slice(n, self.count)
            for out, value in zip(outs, found[self.carries :], strict=True):
                out[same] = value
            n = same.start - 1 if self.backwards else same.stop
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
