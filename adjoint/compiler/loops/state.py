"""Support random draws and writes in the body of a compiled loop.

Random numbers, and numbers of optimisers such as the learning rate, are computed in Python before the loop,
for all iterations, in the order of eager code.  Tensors, gradients and optimiser state that the body writes
to are carried: each iteration receives them from the one before.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.compiler.program.inputs import DrawSource, NumbersSource, Source
from adjoint.compiler.program.symbols import Symbolic
from adjoint.compiler.program.writes import Action, CellWrite, DataWrite, GradWrite, Write

if TYPE_CHECKING:
    from adjoint.compiler.capture.trace import Trace

__all__ = ["PREPARED", "State", "prepared"]

PREPARED = ("draw", "numbers")  # kinds of sources that are computed in Python before the loop


def prepared(outer: Trace, sources: Sequence[Source], count: int) -> list[Symbolic]:
    """Return the values of ``sources`` for all ``count`` steps, one row per step, made before the loop."""
    draws = [s for s in sources if isinstance(s, DrawSource)]
    made: dict[int, Any] = {}

    def draw(source: DrawSource) -> Any:
        """Return the numbers of a source; the first call draws those of all, in the order of eager code."""
        if source is draws[0]:
            made.update({s.value.id: np.empty((count, *s.value.shape), s.value.dtype) for s in draws})
            for n, s in itertools.product(range(count), draws):
                made[s.value.id][n] = s.owner()
        return made.pop(source.value.id)

    found = []
    for s in sources:
        shape, dtype = (count, *s.value.shape), s.value.dtype
        if isinstance(s, DrawSource):
            found.append(outer.draw(partial(draw, s), shape, dtype))
        else:
            found.append(outer.source(NumbersSource, shape, dtype, partial(s.owner.rows, count)))
    return found


class State:
    """The tensors, gradients and optimiser state that the body of a loop writes to, which are carried."""

    def __init__(self, outer: Trace, sub: Trace, count: int) -> None:
        self.outer = outer
        self.sub = sub
        self.count = count
        self.writes: list[DataWrite | GradWrite | CellWrite] = []
        self.others: list[Write] = []  # updates of optimisers, and gradients that are deleted
        for w in sub.program.writes:
            if isinstance(w, (DataWrite, GradWrite, CellWrite)) and w.values[0] is not None:
                self.writes.append(w)
            else:
                self.others.append(w)
        self.sources = [w.source_in(sub) for w in self.writes]
        self.after = [w.values[0] for w in self.writes]
        self.known = {s.value.id for s in self.sources}

    def possible(self) -> bool:
        """Return whether all writes can be carried, and each optimiser updates at most once per iteration."""
        sub = self.sub
        calls = all(not w.values for w in self.others if isinstance(w, Action))
        read = any(h.entry is not None for h in sub.held.values())  # a .grad from before the step
        counts = [n for _, done in sub.counted.values() for n in done.values()]
        earlier = any(self.outer.updates_of(unit) for unit, _ in sub.counted.values())
        return calls and not read and not earlier and all(n == 1 for n in counts)

    def before(self) -> list[Symbolic]:
        """Return the values that are carried into the first iteration."""
        return [w.before(self.outer) for w in self.writes]

    def write(self, values: Sequence[Symbolic]) -> None:
        """Add the writes to the outer trace; ``values`` are the carried values after the last iteration."""
        outer = self.outer
        for w, value in zip(self.writes, values, strict=True):
            w.after(outer, value)
        for other in self.others:
            if isinstance(other, Action):
                outer.actions.append(Action(partial(other.owner, self.count)))
            else:
                outer.drop_grads([other.owner])
        for unit, done in self.sub.counted.values():
            counted = outer.updates_of(unit)
            for i, n in done.items():
                counted[i] = counted.get(i, 0) + n * self.count
