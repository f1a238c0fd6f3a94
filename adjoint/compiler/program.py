"""The result of a trace: a list of instructions on values that have a shape and a dtype but no elements.

Such a value is a ``Symbolic``.  A *weak* value is a Python number that is known only when the program runs.
A *cell* is an entry of a container, such as a value in the state of an optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from adjoint.core.record import weak_numbers
from adjoint.core.user_code import Position, line_at

if TYPE_CHECKING:
    from adjoint.compiler.symbolic import Symbolic

__all__ = ["Host", "Instruction", "Program", "Source", "Write", "typed"]


class Host:
    """A Python function that a program calls like the forward of an op: ``forward(*arrays, **params)``.

    ``pure`` means that the call can be removed if its results are not used; a check is not pure.  If ``when``
    is given and ``when(first argument)`` is false, the function is not called and the last argument is not
    computed; the result of the instruction is then the second-last argument.
    """

    __slots__ = ("forward", "kind", "literals", "name", "outputs", "pure", "when")

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        outputs: int = 1,
        pure: bool = True,
        when: Callable[[Any], bool] | None = None,
    ) -> None:
        self.name = name
        self.forward = forward
        self.outputs = outputs
        self.pure = pure
        self.when = when
        self.kind = "host"
        self.literals = False


class Instruction:
    """One op, its operands (values and Python numbers) and its results ``outs``.

    ``quiet`` means that floating-point warnings are off, as in a backward pass.  ``position`` is the position
    in the user's code, or None.  ``in_place`` means that eager mode writes the result into the first operand,
    so the result must have the memory layout of that operand.
    """

    __slots__ = ("args", "in_place", "op", "outs", "params", "position", "quiet")

    def __init__(
        self,
        op: Any,
        args: tuple[Any, ...],
        params: dict[str, Any],
        outs: tuple[Symbolic, ...],
        quiet: bool,
        position: Position | None = None,
    ) -> None:
        self.op = op
        self.args = args
        self.params = params
        self.outs = outs
        self.quiet = quiet
        self.position = position
        self.in_place = False

    @property
    def line(self) -> str:
        """The "file:line" of the user's code."""
        return "" if self.position is None else line_at(self.position)

    def __str__(self) -> str:
        given = [str(a) for a in self.args]
        given += [f"{k}={_short(v)}" for k, v in self.params.items()]
        made = ", ".join(map(str, self.outs)) or "_"
        types = ", ".join(f"{o.dtype}{list(o.shape)}" for o in self.outs)
        return f"{made} = {self.op.name}({', '.join(given)})  {types}  # {self.line}"


class Source:
    """A value that is read at the start of each call.

    ``kind`` says where the value is read from, and what ``owner`` is: "argument" (owner: its position),
    "tensor" or "grad" (the tensor), "array" (a NumPy array that the function uses), "cell" (a pair
    ``(container, key)``), "numbers" or "draw" (a function that returns the value).
    """

    __slots__ = ("kind", "owner", "value")

    def __init__(self, kind: str, value: Symbolic, owner: Any) -> None:
        self.kind = kind
        self.value = value
        self.owner = owner

    def text(self, name: Callable[[Any], str]) -> str:
        """Return the line of ``Program.text`` about this source."""
        where = _place(self.kind, self.owner, name)
        return f"{self.value!s}: {self.value.dtype}{list(self.value.shape)}  <- {where}"


class Write:
    """An assignment of ``values`` to ``owner`` at the end of each call.

    ``kind`` says what ``owner`` is: "data" or "grad" (a tensor, or the position of an argument), "cell" (a
    pair ``(container, key)``) or "call" (a function that is called with the arrays).
    """

    __slots__ = ("kind", "owner", "values")

    def __init__(self, kind: str, owner: Any, values: tuple[Any, ...]) -> None:
        self.kind = kind
        self.owner = owner
        self.values = values  # each is a Symbolic, or None to set a gradient to None

    def text(self, name: Callable[[Any], str]) -> str:
        """Return the line of ``Program.text`` about this assignment."""
        if self.kind == "call":
            what = _action(self.owner)
        else:
            what = f"write {_place(self.kind, self.owner, name)}"
        return f"{what} <- {', '.join(map(str, self.values))}" if self.values else what


class Program:
    """A list of instructions, and the values that each call reads (sources), returns and writes."""

    __slots__ = ("body", "count", "results", "sources", "writes")

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.body: list[Instruction] = []
        self.results: list[Any] = []  # Symbolic
        self.writes: list[Write] = []
        self.count = 0  # number of values that have an id

    def outputs(self) -> list[Any]:
        """Return all values that a call outputs: the results, then the values to be written."""
        return [*self.results, *(v for w in self.writes for v in w.values if v is not None)]

    def written_arguments(self) -> list[int]:
        """Return the positions of the arguments whose elements the program changes."""
        return [w.owner for w in self.writes if w.kind == "data" and isinstance(w.owner, int)]

    def live(self) -> list[Instruction]:
        """Return the instructions to run: those that outputs depend on, and those that are not pure."""
        wanted = {v.id for v in self.outputs()}
        kept = []
        for i in reversed(self.body):
            if not i.op.pure or any(o.id in wanted for o in i.outs):
                kept.append(i)
                wanted.update(a.id for a in i.args if hasattr(a, "id"))
        return kept[::-1]

    def text(self, name: Callable[[Any], str]) -> str:
        """Return the program as text; ``name`` is a function that returns the name of a tensor."""
        lines = [s.text(name) for s in self.sources]
        lines += [str(i) for i in self.live()]
        lines.append(f"return {', '.join(map(str, self.results))}")
        lines += [w.text(name) for w in self.writes]
        return "\n".join(lines)


def _place(kind: str, owner: Any, name: Callable[[Any], str]) -> str:
    """Return the name of what a ``Source`` reads or a ``Write`` assigns: of an argument, a tensor or a .grad.

    For other kinds, return the kind.
    """
    if kind not in ("argument", "argument grad", "tensor", "data", "grad"):
        return kind
    where = f"argument {owner}" if isinstance(owner, int) else name(owner)
    return f".grad of {where}" if kind in ("argument grad", "grad") else where


def _action(function: Any) -> str:
    """Return the name of a function that is called at the end of each call, such as "update of Adam"."""
    function = getattr(function, "func", function)  # a partial function
    return str(getattr(function, "what", "")) or f"call of {function.__name__.strip('_')}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def typed(op: Any, args: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return ``values`` of the operands ``args``, with weak numbers converted to arrays as in eager mode.

    Numbers that are not weak are constants of derivative rules, or were already converted: in eager mode,
    NumPy gets them unchanged.
    """
    if op.kind != "elementwise" or not any(getattr(a, "weak", False) for a in args):
        return list(values)
    numbers = zip(args, values, weak_numbers(op, values), strict=True)
    return [number if getattr(a, "weak", False) else value for a, value, number in numbers]
