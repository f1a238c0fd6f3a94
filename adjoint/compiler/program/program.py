"""The result of a trace: a list of instructions on values that have a shape and a dtype but no elements.

Such a value is a ``Symbolic``.  A *weak* value is a Python number that is known only when the program runs.
A *cell* is an entry of a container, such as a value in the state of an optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adjoint.core.record import weak_numbers
from adjoint.core.user_code import Position, line_at

if TYPE_CHECKING:
    from adjoint.compiler.program.inputs import Source
    from adjoint.compiler.program.symbols import Symbolic
    from adjoint.compiler.program.writes import Write

__all__ = ["Host", "Instruction", "Program", "typed"]


@dataclass(slots=True, eq=False)
class Host:
    """A Python function that a program calls like the forward of an op: ``forward(*arrays, **params)``.

    ``pure`` means that the call can be removed if its results are not used; a check is not pure.  If ``when``
    is given and ``when(first argument)`` is false, the function is not called and the last argument is not
    computed; the result of the instruction is then the second-last argument.  ``lower`` is the native form,
    as in ``define``; ``batch`` names the batch rule (``loop_batch``).
    """

    name: str
    forward: Callable[..., Any]
    outputs: int = 1
    pure: bool = True
    when: Callable[[Any], bool] | None = None
    lower: Callable[..., Any] | None = None
    batch: str = ""
    kind: str = "host"
    literals: bool = False
    phrase: Callable[..., Any] | None = None
    memory: str = ""


@dataclass(slots=True, eq=False)
class Instruction:
    """One op, its operands (values and Python numbers) and its results ``outs``.

    ``quiet`` means that floating-point warnings are off, as in a backward pass.  ``position`` is the position
    in the user's code, or None.  ``in_place`` means that eager mode writes the result into the first operand,
    so the result must have the memory layout of that operand.
    """

    op: Any
    args: tuple[Any, ...]
    params: dict[str, Any]
    outs: tuple[Symbolic, ...]
    quiet: bool
    position: Position | None = None
    in_place: bool = False

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


class Program:
    """A list of instructions, and the values that each call reads (sources), returns and writes."""

    __slots__ = ("body", "count", "results", "sources", "writes")

    def __init__(
        self, sources: Iterable[Source] = (), body: Iterable[Instruction] = (), results: Iterable[Any] = ()
    ) -> None:
        self.sources = list(sources)
        self.body = list(body)
        self.results = list(results)  # Symbolic
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
