"""Support random draws and writes in the body of a compiled loop.

Random numbers, and numbers of optimisers such as the learning rate, are computed in Python before the loop,
for all iterations, in the order of eager code.  Tensors, gradients and optimiser state that the body writes
to are carried: each iteration receives them from the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.compiler.program import Source, Write
from adjoint.compiler.symbolic import Symbolic
from adjoint.core.tensor import wrap

if TYPE_CHECKING:
    from adjoint.compiler.trace import Trace

__all__ = ["PREPARED", "State", "prepared"]

PREPARED = ("draw", "numbers")  # kinds of sources that are computed in Python before the loop


def prepared(outer: Trace, sources: Sequence[Source], count: int) -> list[Symbolic]:
    """Return the values of ``sources`` for all ``count`` steps, one row per step, made before the loop."""
    draws = _Draws([s for s in sources if s.kind == "draw"], count)
    found = []
    for s in sources:
        shape = (count, *s.value.shape)
        if s.kind == "draw":
            found.append(outer.draw(draws.maker(s), shape, s.value.dtype))
        else:
            found.append(outer.source("numbers", shape, s.value.dtype, partial(s.owner.rows, count)))
    return found


class _Draws:
    """Draws the random numbers of all iterations before the loop, in the same order as eager code."""

    def __init__(self, sources: Sequence[Source], count: int) -> None:
        self.sources = sources
        self.count = count
        self.made: dict[int, Any] = {}

    def maker(self, source: Source) -> Callable[[], Any]:
        """Return a function that returns the random numbers of ``source`` for all iterations.

        The function for the first source draws the numbers of all sources, so it must be called first.
        """
        first = source is self.sources[0]

        def make() -> Any:
            if first:
                arrays = [np.empty((self.count, *s.value.shape), s.value.dtype) for s in self.sources]
                for n in range(self.count):
                    for s, array in zip(self.sources, arrays, strict=True):
                        array[n] = s.owner()
                self.made = {s.value.id: array for s, array in zip(self.sources, arrays, strict=True)}
            return self.made.pop(source.value.id)

        return make


class State:
    """The tensors, gradients and optimiser state that the body of a loop writes to, which are carried.

    ``outer`` is the trace around the loop, ``sub`` the trace of its body, ``count`` the number of iterations.
    """

    def __init__(self, outer: Trace, sub: Trace, count: int) -> None:
        self.outer = outer
        self.sub = sub
        self.count = count
        self.writes = [w for w in sub.program.writes if w.kind != "call" and w.values[0] is not None]
        self.others = [w for w in sub.program.writes if w.kind == "call" or w.values[0] is None]
        self.sources = [self._source(w) for w in self.writes]
        self.after = [w.values[0] for w in self.writes]
        self.known = {s.value.id for s in self.sources}

    def possible(self) -> bool:
        """Return whether all writes can be carried, and each optimiser updates at most once per iteration."""
        sub = self.sub
        calls = all(not w.values for w in self.others if w.kind == "call")
        read = any(h.entry is not None for h in sub.held.values())  # a .grad from before the step
        counts = [n for _, done in sub.counted.values() for n in done.values()]
        earlier = any(self.outer.updates_of(unit) for unit, _ in sub.counted.values())
        return calls and not read and not earlier and all(n == 1 for n in counts)

    def _source(self, write: Write) -> Source:
        """Return the program input from which an iteration reads the old value that ``write`` replaces."""
        owner = write.owner
        if write.kind == "grad":  # the old gradient is not read
            value = write.values[0]
            return Source("argument", Symbolic(self.sub, value.shape, value.dtype), None)
        if write.kind == "data":
            symbol = self.sub.held[id(owner)].symbol
            return next(s for s in self.sub.program.sources if s.value is symbol)
        container, key = owner
        return next(
            s
            for s in self.sub.program.sources
            if s.kind == "cell" and s.owner[0] is container and s.owner[1] == key
        )

    def before(self) -> list[Symbolic]:
        """Return the values that are carried into the first iteration."""
        found = []
        for w in self.writes:
            if w.kind == "grad":
                value = w.values[0]
                found.append(self.outer.value(np.zeros(value.shape, value.dtype)))
            else:
                found.append(self.outer.value(w.owner) if w.kind == "data" else self.outer.cell(*w.owner))
        return found

    def write(self, values: Sequence[Symbolic]) -> None:
        """Add the writes to the outer trace; ``values`` are the carried values after the last iteration."""
        outer = self.outer
        for w, value in zip(self.writes, values, strict=True):
            if w.kind == "data":
                outer.replace(w.owner, value)
            elif w.kind == "cell":
                container, key = w.owner
                outer.set_cell(container, key, value)
            else:
                outer.grad_set(w.owner)
                w.owner._need_extra().grad = wrap(value)
        for w in self.others:
            if w.kind == "grad":
                outer.drop_grads([w.owner])
            else:
                outer.actions.append(Write("call", partial(w.owner, self.count), ()))
        for unit, done in self.sub.counted.values():
            counted = outer.updates_of(unit)
            for i, n in done.items():
                counted[i] = counted.get(i, 0) + n * self.count
