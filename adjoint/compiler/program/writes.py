"""The assignments that a program makes at the end of a call, and the functions that make and undo them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.compiler.program.inputs import ArgumentSource, Source, container_text, owner_name
from adjoint.compiler.program.symbols import Symbolic
from adjoint.config import locked
from adjoint.core.inplace import move_version
from adjoint.core.roles import UpdateRole
from adjoint.core.sparse import SparseGradient, SparseRows
from adjoint.core.tensor import Tensor, committing, wrap

if TYPE_CHECKING:
    from adjoint.compiler.capture.trace import Trace
    from adjoint.compiler.program.lines import Lines

__all__ = [
    "NAMES", "Action", "CellWrite", "DataWrite", "GradWrite", "PlaceWrite", "SparseGradWrite",
    "Write", "exchange", "set_rows",
]  # fmt: skip

Undo = list[tuple[Callable[..., None], Any, Any]]  # each item undoes a write: a function and two arguments


class Write:
    """An assignment of ``values`` to ``owner`` at the end of each call."""

    __slots__ = ("owner", "values")
    kind = ""  # its name in texts
    where = ""  # what ``Program.text`` says about it, with the name of the owner
    function = ""  # of ``NAMES``, which makes the assignment

    def __init__(self, owner: Any, *values: Any) -> None:
        self.owner = owner
        self.values = values  # each is a Symbolic, or None to set a gradient to None

    def text(self, name: Callable[[Any], str]) -> str:
        """Return the line of ``Program.text`` about this assignment; ``name`` names tensors."""
        what = self.where.format(owner_name(self.owner, name))
        return f"{what} <- {', '.join(map(str, self.values))}" if self.values else what

    def target(self, w: Lines) -> str:
        """Return expressions for what is assigned, in generated code."""
        return f"x{self.owner}" if isinstance(self.owner, int) else w.name(self.owner, "t")

    def add(self, w: Lines, *values: str) -> None:
        """Add lines that make the assignment; ``values`` are expressions.

        The lines append what undoes the assignment to the list ``undo``.
        """
        w.add(f"{self.function}(undo, {self.target(w)}, {values[0]})")

    @property
    def key(self) -> Any:
        """A key that equals the key of the source which reads what is replaced; None if there is none."""
        return None


class DataWrite(Write):
    """The assignment of a tensor's array; the owner is the tensor, or the position of an argument."""

    __slots__ = ()
    kind, where, function = "data", "write {}", "write"

    @property
    def key(self) -> Any:
        """The id of the tensor."""
        return id(self.owner)

    def source_in(self, sub: Trace) -> Source:
        """Return the source from which an iteration of a loop, whose body is ``sub``, reads the old array."""
        symbol = sub.held[id(self.owner)].symbol
        return next(s for s in sub.program.sources if s.value is symbol)

    def before(self, outer: Trace) -> Symbolic:
        """Return the array before the loop, in the trace around the loop."""
        return outer.value(self.owner)

    def after(self, outer: Trace, value: Symbolic) -> None:
        """Assign the array after the loop, in the trace around the loop."""
        outer.replace(self.owner, value)


class GradWrite(Write):
    """The assignment of a tensor's ``.grad``; the value None deletes it."""

    __slots__ = ()
    kind, where, function = "grad", "write .grad of {}", "set_grad"

    def source_in(self, sub: Trace) -> Source:
        """Return a source for the old gradient, which is not read."""
        (value,) = self.values
        return ArgumentSource(Symbolic(sub, value.shape, value.dtype), None)

    def before(self, outer: Trace) -> Symbolic:
        """Return zeros, because the old gradient is not read."""
        (value,) = self.values
        return outer.value(np.zeros(value.shape, value.dtype))

    def after(self, outer: Trace, value: Symbolic) -> None:
        """Assign the gradient after the loop, in the trace around the loop."""
        outer.grad_set(self.owner)
        self.owner._need_extra().grad = wrap(value)


class SparseGradWrite(Write):
    """The assignment of a sparse ``.grad``: its rows and their values."""

    __slots__ = ("shape",)
    kind, where = "sparse grad", "write rows of .grad of {}"

    def __init__(self, owner: Any, rows: Any, values: Any, shape: tuple[int, ...]) -> None:
        super().__init__(owner, rows, values)
        self.shape = shape

    def add(self, w: Lines, *values: str) -> None:
        """Add lines that make the assignment."""
        w.add(f"set_rows(undo, {self.target(w)}, {', '.join(values)}, {self.shape})")


class CellWrite(Write):
    """The assignment of an item of a list or a dictionary; the owner is a pair (container, key)."""

    __slots__ = ()
    kind, where, function = "cell", "write cell", "set_item"

    def target(self, w: Lines) -> str:
        """Return expressions for the container and the key."""
        container, key = self.owner
        return f"{container_text(w, container)}, {w.name(key)}"

    @property
    def key(self) -> Any:
        """The id of the container, and the key."""
        return id(self.owner[0]), self.owner[1]

    def source_in(self, sub: Trace) -> Source:
        """Return the source from which an iteration of a loop, whose body is ``sub``, reads the old item."""
        return next(s for s in sub.program.sources if s.key == self.key)

    def before(self, outer: Trace) -> Symbolic:
        """Return the item before the loop, in the trace around the loop."""
        return outer.cell(*self.owner)

    def after(self, outer: Trace, value: Symbolic) -> None:
        """Assign the item after the loop, in the trace around the loop."""
        container, key = self.owner
        outer.set_cell(container, key, value)


class PlaceWrite(Write):
    """The assignment of a Python number to a variable, an attribute or an item; the owner is the place."""

    __slots__ = ()
    kind, function = "place", "put"

    @property
    def where(self) -> str:  # type: ignore[override]
        """The name of the place."""
        return f"write {self.owner.what}"


class Action(Write):
    """A call of a function with the values, such as an update of an optimiser; the owner is the function.

    The effects of an ``UpdateRole`` can be undone.
    """

    __slots__ = ()
    kind = "call"

    @property
    def where(self) -> str:  # type: ignore[override]
        """The name of the function, such as "update of Adam"."""
        function = getattr(self.owner, "func", self.owner)  # a partial function
        return str(getattr(function, "what", "")) or f"call of {function.__name__.strip('_')}"

    def counts(self) -> bool:
        """Return whether the call can be undone."""
        return isinstance(self.owner, UpdateRole)

    def add(self, w: Lines, *values: str) -> None:
        """Add lines that call the function."""
        name = w.name(self.owner, "u")
        if self.counts():
            w.add(f"undo.append((restore, {name}, {name}.count()))")
        w.add(f"{name}({', '.join(values)})")


# What the generated lines call ------------------------------------------------------------------------


def write(undo: Undo, t: Tensor, value: Any) -> None:
    """Replace the array of ``t`` by ``value``, and increment the version of ``t``.

    Nothing else may use ``value``.  An item that restores the old array is appended to ``undo``.
    """
    undo.append((_set_data, t, (t._data, t._version)))
    t._data = value
    move_version(t)


def _set_data(t: Tensor, before: tuple[Any, int]) -> None:
    """Restore the array and the version of a tensor."""
    t._data, t._version = before


def set_grad(undo: Undo, t: Tensor, value: Any) -> None:
    """Set the gradient of a tensor; None deletes it.

    An item that restores the old gradient is appended to ``undo``.
    """
    undo.append((_put_grad, t, None if t._extra is None else t._extra.grad))
    _put_grad(t, None if value is None else wrap(value))


def set_rows(undo: Undo, t: Tensor, rows: Any, values: Any, shape: tuple[int, ...]) -> None:
    """Set the gradient of a tensor to a sparse one; append an item that restores the old one to ``undo``."""
    undo.append((_put_grad, t, None if t._extra is None else t._extra.grad))
    _put_grad(t, SparseGradient.of(SparseRows(rows, values, shape)))


def _put_grad(t: Tensor, grad: Any) -> None:
    t.grad = grad


def assign(
    undo: Undo, written: list[Tensor], graded: list[Tensor], dropped: list[Tensor], *values: Any
) -> None:
    """Set the arrays of ``written`` and the gradients of ``graded``; delete the gradients of ``dropped``.

    ``values`` are the new arrays, then the new gradients.  An item that restores the old ones is appended to
    ``undo``.  Nothing is allocated between two assignments, so that no finalizer runs after only some of
    them.
    """
    locked(committing, _assign, undo, written, graded, dropped, values)


def _assign(
    undo: Undo, written: list[Tensor], graded: list[Tensor], dropped: list[Tensor], values: Sequence[Any]
) -> None:
    extras = [t._extra or t._need_extra() for t in graded]
    grads: list[Any] = [wrap(v) for v in values[len(written) :]]
    for t in dropped:
        if t._extra is not None and t._extra.grad is not None:
            extras.append(t._extra)
            grads.append(None)
    old = [(t._data, t._version) for t in written]
    undo.append((put_back, (written, old), (extras, [e.grad for e in extras])))
    for t, data in zip(written, values, strict=False):
        t._data = data
        move_version(t)
    for e, grad in zip(extras, grads, strict=True):
        e.grad = grad


def put_back(arrays: tuple[list[Tensor], list[Any]], grads: tuple[list[Any], list[Any]]) -> None:
    """Restore the arrays and the gradients that ``assign`` has replaced."""
    for t, before in zip(*arrays, strict=True):
        _set_data(t, before)
    for e, grad in zip(*grads, strict=True):
        e.grad = grad


def set_item(undo: Undo, container: Any, key: Any, value: Any) -> None:
    """Assign an item of a list or a dictionary; append an item that restores the old one to ``undo``."""
    undo.append((partial(container.__setitem__, key), container[key], None))
    container[key] = value


def put(undo: Undo, place: Any, value: Any) -> None:
    """Assign a number to a place; append an item that restores the old one to ``undo``."""
    undo.append((type(place).put, place, place.read()))
    place.put(value)


def restore(counter: Any, before: Any) -> None:
    """Restore the step counts of an optimiser to ``before``, the value that ``counter.count()`` returned."""
    counter.take_back(before)


def take_back(undo: Undo) -> None:
    """Undo all writes in the list ``undo``, in reverse order."""
    for function, a, b in reversed(undo):
        if isinstance(function, partial):
            function(a)
        else:
            function(a, b)


def exchange(
    swapped: list[tuple[Tensor, int]], graded: list[tuple[Tensor, int]], found: tuple[Any, ...]
) -> None:
    """Restore the old arrays and gradients of tensors, which the native entry returned in ``found``.

    ``swapped`` and ``graded`` are pairs of a tensor and the index of its old array or gradient in ``found``.
    """
    for t, place in swapped:
        t._data = found[place]
    for t, place in graded:
        _put_grad(t, found[place])


# The functions above, by their names in generated code.
NAMES: dict[str, Any] = {
    "write": write, "set_grad": set_grad, "assign": assign, "put_back": put_back, "set_item": set_item,
    "put": put, "set_rows": set_rows,
    "restore": restore, "take_back": take_back, "exchange": exchange, "committing": committing,
}  # fmt: skip
