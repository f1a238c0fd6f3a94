"""The text of a generated Python function, while it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["Lines"]


class Lines:
    """The lines of a generated Python function, and the objects that they refer to.

    ``kinds`` has the type of each argument ``x0``, ``x1``, …, array or tensor, if it is known.
    """

    def __init__(self, kinds: Sequence[type] | None = None, **names: Any) -> None:
        self.lines: list[str] = []
        self.names = {"__name__": "adjoint.compiled", **names}
        self.kinds = kinds
        self.numbers: dict[int, str] = {}  # expressions of Python numbers, see ``scalars.Numbers``
        self._known: dict[int, str] = {}
        self._indent = "    "

    def name(self, value: Any, prefix: str = "k") -> str:
        """Return the variable name of an object in the generated code.

        If the object is new, it gets a name that starts with ``prefix``.
        """
        found = self._known.get(id(value))
        if found is None:
            found = self._known[id(value)] = f"{prefix}{len(self._known)}"
            self.names[found] = value
        return found

    def add(self, *lines: str) -> None:
        """Append lines to the body of the function, indented like the block that is open."""
        self.lines += [f"{self._indent}{line}" for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append the line ``head``; lines that are added inside the context are indented below it.

        If ``head`` is empty, the lines are not indented.
        """
        before = self._indent
        if head:
            self.add(head)
            self._indent += "    "
        yield
        self._indent = before

    @contextmanager
    def attempt(self, miss: str) -> Iterator[None]:
        """Run the statement ``miss`` if the lines that are added inside the context raise an error."""
        with self.block("try:"):
            self.add("missed = False")
            yield
        self.add("except Exception: missed = True", f"if missed: {miss}")

    def function(self, name: str, args: Sequence[str]) -> Callable[..., Any]:
        """Compile the lines to a function with the parameters ``args``, and return it."""
        source = "\n".join([f"def {name}({', '.join(args)}):", *self.lines])
        exec(compile(source, "<ad.compile>", "exec"), self.names)
        made: Callable[..., Any] = self.names[name]
        made.__doc__ = source
        return made
