"""The values that a program reads at each call: arguments, tensors, arrays, draws, elements of containers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy import ndarray

from adjoint.compiler.program.inputs import (
    ArraySource,
    CellSource,
    DrawSource,
    NumberPlace,
    NumberSource,
    Source,
    VariableSource,
)
from adjoint.compiler.program.program import Program
from adjoint.compiler.program.symbols import NUMBERS, SAME, Number, Symbolic
from adjoint.compiler.program.writes import PlaceWrite
from adjoint.core.tensor import Tensor
from adjoint.core.user_code import user_line

if TYPE_CHECKING:
    from adjoint.compiler.capture.trace import Trace

__all__ = ["Held", "Sources", "hooks_of"]


class Held:
    """A tensor that a trace has captured: its symbol, and its state before the trace."""

    __slots__ = (
        "argument", "data", "entry", "grad", "grad_known", "hooks", "kind", "node", "symbol", "tensor",
        "version",
    )  # fmt: skip

    def __init__(self, t: Tensor, symbol: Symbolic, argument: int | None = None) -> None:
        self.tensor = t
        self.kind = type(t)
        self.symbol = symbol
        self.argument = argument  # the position, if the tensor stands for an argument; otherwise None
        self.data = t._data
        self.version = t._version
        self.node = t._node
        self.grad = None if t._extra is None else t._extra.grad
        self.entry: Symbolic | None = None  # the symbol of the .grad before the trace, if that was read
        self.grad_known = False  # whether the trace has read or set the .grad
        self.hooks = hooks_of(t)

    def hook_lists(self) -> list[Any]:
        """Return the lists of hooks of the tensor."""
        extra = self.tensor._extra
        return [] if extra is None else [x for x in (extra.hooks, extra.post_hooks) if x is not None]

    def change(self) -> str:
        """Return which property of the tensor differs from its state before the trace; "" if none does."""
        t, then = self.tensor, self.symbol
        if t.shape != then.shape:
            return f"the shape, from {then.shape} to {t.shape},"
        if t.dtype != then.dtype:
            return f"the dtype, from {then.dtype} to {t.dtype},"
        if (t._node is None) != (self.node is None):
            return "requires_grad"
        if type(t._node) is not type(self.node):
            return "whether it is the result of a recorded op"
        return "the hooks" if self.node is not None and hooks_of(t) != self.hooks else ""


def hooks_of(t: Tensor) -> tuple[Any, ...]:
    """Return the hooks of a tensor as a tuple, so that two states of the hooks can be compared."""
    extra = t._extra
    if extra is None:
        return ()
    before, after = [() if x is None else tuple(x.snapshot()) for x in (extra.hooks, extra.post_hooks)]
    return (before, after) if before or after else ()


class Sources:
    """The inputs of the program of a trace: the values that the program reads at each call."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.arguments = arguments  # of the current call
        self.program = Program()
        self.held: dict[int, Held] = {}  # by the id of the tensor, which is kept alive
        self.arrays: dict[int, tuple[Any, Symbolic]] = {}  # by the id of the array, which is kept alive
        self.outside: list[Any] = []  # arrays of the user that ops read, in this trace and those inside it
        self.cells: dict[tuple[int, Any], tuple[Any, Symbolic]] = {}  # by the id of the container and the key
        self.containers: dict[int, tuple[Any, Any]] = {}  # by the id of their owner, which is kept alive
        self.ranges: list[str] = []  # lines with a ``range`` of a number that is an input
        self.drawn: list[Symbolic] = []
        self.again: Iterator[Symbolic] | None = None  # the draws to use again, if a function runs twice

    def source(self, kind: type[Source], shape: Sequence[int], dtype: Any, owner: Any) -> Symbolic:
        """Add an input of the program, which is read at each call; return its symbol.

        ``kind`` is the class of the source, and ``owner`` is what the value is read from.
        """
        value = Symbolic(cast("Trace", self), tuple(shape), np.dtype(dtype))
        self.program.sources.append(kind(value, owner))
        return value

    def number(self, owner: Any, kind: type[Source] = NumberSource, now: Any = None) -> Number:
        """Add an input of the program that is a Python number, read at each call; return its symbol.

        ``owner`` is a function that returns it, unless ``kind``, the class of the source, is another one.
        ``now`` is the number in the call that is traced; None if it cannot be read.
        """
        value = Number(cast("Trace", self), float if now is None else type(now), now)
        self.program.sources.append(kind(value, owner))
        return value

    def variable(self, read: Any) -> Number:
        """Return the symbol of a number outside, which the program reads at each call."""
        place = NumberPlace(read.parent, read.kind, read.key, read.what)
        return self.number(place, VariableSource, read.seen)

    def note_range(self) -> None:
        """Note that the user's code loops over a ``range`` whose length is an input of the program."""
        self.ranges.append(user_line())

    def note_number(self, read: Any, number: Any = None) -> None:
        """Make the program assign the present value of a variable if it is a number.

        ``number`` is the symbol that the variable had at first; None if it is only assigned.
        """
        now, trace = read.present(), cast("Trace", self)
        if type(now) in NUMBERS and number is not None:
            constant, now = now, Number(trace, type(now), now)
            trace._add_with(SAME, (constant,), {}, (now,))
        if type(now) is Number and now is not number and now.trace is trace:
            place = NumberPlace(read.parent, read.kind, read.key, read.what)
            self.program.writes.append(PlaceWrite(place, now))

    def draw(self, make: Callable[[], Any], shape: Sequence[int], dtype: Any, form: Any = None) -> Symbolic:
        """Return the symbol of a random array, which ``make`` returns before each call.

        ``form`` is as in ``core.lifted.made_by_host``.
        """
        if self.again is not None:  # a checkpoint runs its function again
            value = next(self.again)
        else:
            value = self.source(DrawSource, shape, dtype, make)
            cast("DrawSource", self.program.sources[-1]).form = form
        self.drawn.append(value)
        return value

    def mark(self) -> tuple[int, list[tuple[Tensor, Any]]]:
        """Return the present state for ``since``: the number of draws, and each captured tensor's value."""
        return len(self.drawn), [(h.tensor, h.tensor._data) for h in self.held.values()]

    def since(self, mark: Any) -> tuple[list[Symbolic], list[tuple[Tensor, Any]]]:
        """Return the draws since ``mark``, and (tensor, value at the mark) of each tensor assigned later."""
        count, before = mark
        known = {id(t): data for t, data in before}
        values = [(h.tensor, known.get(id(h.tensor), h.symbol)) for h in self.held.values()]
        return self.drawn[count:], [(t, data) for t, data in values if t._data is not data]

    def drawing(self, drawn: list[Symbolic], function: Callable[..., Any], *args: Any) -> Any:
        """Return ``function(*args)``; ``drawn``, the draws of an earlier call, replace its random draws."""
        before = self.again
        try:
            self.again = iter(drawn)
            return function(*args)
        finally:
            self.again = before

    def array(self, array: ndarray[Any, Any]) -> Symbolic:
        """Return the symbol of a NumPy array made outside of the trace; the array is read at each call."""
        found = self.arrays.get(id(array))
        if found is None:
            found = self.arrays[id(array)] = array, self.source(ArraySource, array.shape, array.dtype, array)
            self.outside.append(array)
        return found[1]

    def constant(self, array: ndarray[Any, Any]) -> Symbolic:
        """Return the symbol of an array that was made inside the trace and is the same in all calls."""
        symbol = self.source(ArraySource, array.shape, array.dtype, array)
        symbol.known = array
        return symbol

    def cell(self, container: Any, key: Any) -> Symbolic:
        """Return the symbol of an array that is an element of a list or a dictionary.

        A container may have the attribute ``held_by``, a pair (object, attribute name).  The list or
        dictionary is then read from that attribute at each call.
        """
        found = self.cells.get((id(container), key))
        if found is None:
            array = container[key]
            symbol = self.source(CellSource, array.shape, array.dtype, (container, key))
            found = self.cells[id(container), key] = container, symbol
        return found[1]

    def cells_of(self, owner: Any, make: Callable[[Any], Any]) -> Any:
        """Return the container ``make(owner)``; later calls with this owner return the same container."""
        return self.containers.setdefault(id(owner), (make(owner), owner))[0]

    def set_cell(self, container: Any, key: Any, value: Symbolic) -> None:
        """Make the program assign ``value`` to an element of a list or a dictionary at each call."""
        self.cell(container, key)
        self.cells[id(container), key] = container, value
