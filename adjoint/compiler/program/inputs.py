"""The inputs of a program: each reads its value, describes itself, and writes the code that reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from adjoint.compiler.program.symbols import UNKNOWN, refused
from adjoint.core.batched import Batched
from adjoint.core.tensor import Tensor, wrap

if TYPE_CHECKING:
    from adjoint.compiler.capture.sources import Sources
    from adjoint.compiler.capture.trace import Trace
    from adjoint.compiler.program.lines import Lines
    from adjoint.compiler.program.symbols import Symbolic

__all__ = [
    "ArgumentGradSource",
    "ArgumentSource",
    "ArraySource",
    "CellSource",
    "DrawSource",
    "GradSource",
    "NumberPlace",
    "NumberSource",
    "NumbersSource",
    "OuterSource",
    "Source",
    "TensorSource",
    "VariableSource",
    "container_text",
    "owner_name",
]  # fmt: skip


class Source:
    """A value that a program reads at the start of each call; ``owner`` is what it is read from."""

    __slots__ = ("owner", "value")
    kind = ""  # its name in texts
    where = ""  # what ``Program.text`` says about it, with the name of the owner; by default the kind
    reads = "{}"  # the Python expression that reads it, with the variable of the owner
    prefix = "k"  # of this variable
    entered = False  # whether the native entry reads it; otherwise it is passed to the entry
    private = False  # whether no user can write to the array that is read

    def __init__(self, value: Symbolic, owner: Any) -> None:
        self.value = value
        self.owner = owner

    def read(self) -> Any:
        """Return the current value; not possible for an argument."""
        return self.owner

    def present(self, trace: Sources) -> Any:
        """Return the value in the call that is traced."""
        return self.read()

    @property
    def key(self) -> Any:
        """A key that equals the key of the write which replaces the value; None if there is no such write."""
        return None

    def code(self, w: Lines) -> str:
        """Return a Python expression that reads the value, for the generated function ``w``."""
        return self.reads.format(w.name(self.owner, self.prefix))

    def outside(self, outer: Trace) -> Tensor:
        """Return the value, which the body of a loop reads, as a tensor of the trace around the loop."""
        return wrap(outer.value(self.owner))

    def text(self, name: Callable[[Any], str]) -> str:
        """Return the line of ``Program.text`` about this source; ``name`` returns the name of a tensor."""
        where = self.where.format(owner_name(self.owner, name)) or self.kind
        return f"{self.value!s}: {self.value.dtype}{list(self.value.shape)}  <- {where}"


class ArgumentSource(Source):
    """An argument; the owner is its position, or None in a program that is only called with arrays."""

    __slots__ = ()
    kind, where, entered = "argument", "{}", True

    def present(self, trace: Sources) -> Any:
        """Return the array or the number of the argument."""
        given = trace.arguments[self.owner]
        return given._data if isinstance(given, Tensor) else given

    def code(self, w: Lines) -> str:
        """Return a Python expression for the array or the number of the argument."""
        x = f"x{self.owner}"
        if w.kinds is not None:
            return f"{x}._data" if w.kinds[self.owner] is Tensor else x
        return f"{x}._data if isinstance({x}, Tensor) else {x}"


class ArgumentGradSource(Source):
    """The ``.grad`` of an argument; the owner is the argument's position."""

    __slots__ = ()
    kind, where = "argument grad", ".grad of {}"

    def present(self, trace: Sources) -> Any:
        """Return the array of the gradient."""
        return trace.arguments[self.owner].grad._data

    def code(self, w: Lines) -> str:
        """Return a Python expression for the array of the gradient."""
        return f"x{self.owner}._extra.grad._data"


class TensorSource(Source):
    """The array of a captured tensor, which is the owner."""

    __slots__ = ()
    kind, where, reads, prefix, entered, private = "tensor", "{}", "{}._data", "t", True, True

    def read(self) -> Any:
        """Return the array of the tensor."""
        return self.owner._data

    def present(self, trace: Sources) -> Any:
        """Return the array that the tensor had before the trace."""
        return trace.held[id(self.owner)].data

    @property
    def key(self) -> Any:
        """The id of the tensor."""
        return id(self.owner)

    def outside(self, outer: Trace) -> Tensor:
        """Return the tensor itself."""
        found: Tensor = self.owner
        return found


class GradSource(Source):
    """The ``.grad`` of a captured tensor, which is the owner."""

    __slots__ = ()
    kind, where, reads, prefix = "grad", ".grad of {}", "{}._extra.grad._data", "t"

    def read(self) -> Any:
        """Return the array of the gradient."""
        return self.owner.grad._data

    def present(self, trace: Sources) -> Any:
        """Return the array of the gradient that the tensor had before the trace."""
        grad: Any = trace.held[id(self.owner)].grad
        return grad._data


class ArraySource(Source):
    """A NumPy array, which is the owner: of the user, or a constant that was made in the trace."""

    __slots__ = ()
    kind, entered = "array", True

    def is_outside(self) -> bool:
        """Return whether it is an array of the user, which can change after the call."""
        return self.value.known is None

    def outside(self, outer: Trace) -> Tensor:
        """Return the array as a tensor of the trace around a loop."""
        return wrap(outer.array(self.owner)) if self.is_outside() else super().outside(outer)


class CellSource(Source):
    """An array in a list or a dictionary; the owner is a pair (container, key)."""

    __slots__ = ()
    kind = "cell"

    def read(self) -> Any:
        """Return the array."""
        container, key = self.owner
        return container[key]

    @property
    def key(self) -> Any:
        """The id of the container, and the key."""
        return id(self.owner[0]), self.owner[1]

    def code(self, w: Lines) -> str:
        """Return a Python expression for the array."""
        container, key = self.owner
        return f"{container_text(w, container)}[{w.name(key)}]"

    def outside(self, outer: Trace) -> Tensor:
        """Return the array as a tensor of the trace around a loop."""
        return wrap(outer.cell(*self.owner))


class NumbersSource(Source):
    """An array of numbers that are computed at each call; the owner is a function that returns it.

    The owner may have the methods of ``optim.traced._Numbers``, such as ``constant``.
    """

    __slots__ = ()
    kind, reads, prefix = "numbers", "{}()", "r"

    def read(self) -> Any:
        """Return the numbers of the next call."""
        return self.owner()


class NumberSource(NumbersSource):
    """A Python float that is read at each call; the owner is a function that returns it."""

    __slots__ = ()
    kind, private = "number", True


class NumberPlace:
    """An attribute or an item of an object outside, which holds a Python number.

    ``parent.seen`` is the object; ``kind`` is "attribute" or "item".
    """

    __slots__ = ("key", "kind", "parent", "what")

    def __init__(self, parent: Any, kind: str, key: Any, what: str) -> None:
        self.parent, self.kind, self.key, self.what = parent, kind, key, what

    def read(self) -> Any:
        """Return the present value; ``UNKNOWN`` if there is none."""
        owner = self.parent.seen
        return getattr(owner, self.key, UNKNOWN) if self.kind == "attribute" else owner.get(self.key, UNKNOWN)

    def put(self, value: Any) -> None:
        """Assign a value; delete the attribute or the item if ``value`` is ``UNKNOWN``."""
        owner = self.parent.seen
        if self.kind == "attribute":
            delattr(owner, self.key) if value is UNKNOWN else setattr(owner, self.key, value)
        elif value is UNKNOWN:
            owner.pop(self.key, None)
        else:
            owner[self.key] = value

    def code(self, w: Lines) -> str:
        """Return a Python expression for the place."""
        owner = f"{w.name(self.parent, 'p')}.seen"
        return f"{owner}.{self.key}" if self.kind == "attribute" else f"{owner}[{w.name(self.key)}]"


class VariableSource(Source):
    """A Python number that is read from outside at each call; the owner is its place."""

    __slots__ = ()
    kind, private = "variable", True

    def read(self) -> Any:
        """Return the number."""
        return self.owner.read()

    def code(self, w: Lines) -> str:
        """Return a Python expression for the number."""
        return str(self.owner.code(w))

    def text(self, name: Callable[[Any], str]) -> str:
        """Return the line of ``Program.text``."""
        return f"{self.value!s}: {self.value.kind.__name__}  <- {self.owner.what}"


class DrawSource(NumbersSource):
    """A random array; the owner is a function that draws it; ``form`` is as in ``made_by_host``."""

    __slots__ = ("form",)
    kind, private = "draw", True
    form: Any

    def present(self, trace: Sources) -> Any:
        """Raise TransformError, because a value that was drawn in the trace is not the value of the call."""
        raise refused(
            "ad.compile: the function branches on random numbers, which differ at each call.\n"
            "  Use ad.where(condition, a, b)."
        )


class OuterSource(Source):
    """A value of the trace, or of the ``vmap``, around the loop whose body the program is."""

    __slots__ = ()
    kind = "outer"

    def outside(self, outer: Trace) -> Tensor:
        """Return the value as a tensor of the trace around the loop."""
        return wrap(self.owner) if isinstance(self.owner, Batched) else super().outside(outer)


def owner_name(owner: Any, name: Callable[[Any], str]) -> str:
    """Return the name of a tensor, or "argument" and the position of an argument; "" for other owners."""
    if isinstance(owner, int):
        return f"argument {owner}"
    return name(owner) if isinstance(owner, Tensor) else ""


def container_text(w: Lines, container: Any) -> str:
    """Return a Python expression for a list or dictionary whose items the program reads or writes.

    A container with the attribute ``held_by`` is read from its owner at each call; see ``Sources.cell``.
    """
    owner, attribute = getattr(container, "held_by", (None, ""))
    return w.name(container) if owner is None else f"{w.name(owner)}.{attribute}"
