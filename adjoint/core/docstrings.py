"""Docstrings of families of functions, whose common sections are written once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["SharedDoc", "shared_with"]

F = TypeVar("F", bound=Callable[..., Any])

_HEADING = re.compile(r"^(\w[\w ]*)\n-+\n", re.M)
_EXAMPLES = re.compile(r"(?<=\n)\n(?=>>> )")  # the start of a paragraph with examples
_USES_AD = re.compile(r"\bad\.")
_ENTRY = re.compile(r"^(?=\S)", re.M)  # the start of an entry: a line that is not indented


class SharedDoc:
    """A decorator that adds to a docstring the sections that a family of functions and classes shares.

    A parameter that the docstring does not describe gets the family's entry, in the order of the signature.
    A function without ``Returns`` or ``Raises`` gets the family's section, if there is one; a class does not.
    The word ``{summary}`` in the family's section stands for the value that the summary line describes.
    Examples at the end need no heading; those that use ``ad`` start with ``import adjoint as ad``.

    Parameters
    ----------
    text : str
        The sections, in NumPy's format.
    """

    def __init__(self, text: str) -> None:
        self.sections = _sections(text)
        del self.sections[""]
        self.parameters = _entries(self.sections.pop("Parameters", ""))

    def extended(self, text: str) -> SharedDoc:
        """Return a family with these sections and parameters, replaced and completed by those of ``text``."""
        new = SharedDoc(text)
        new.sections = self.sections | new.sections
        new.parameters = self.parameters | new.parameters
        return new

    def __call__(self, f: F) -> F:
        """Add to the docstring of ``f`` what it leaves out, and return ``f``."""
        if f.__doc__ is None:  # python -OO
            return f
        own = _sections(f.__doc__)
        entries = self.parameters | _entries(own.pop("Parameters", ""))
        # an entry "x, y : array_like" stands once
        listed = dict.fromkeys(entries[name] for name in _names(f) if name in entries)
        found = {"": own.pop(""), "Parameters": "\n".join(listed), "Returns": "", "Raises": ""}
        if not isinstance(f, type):
            result = _result(found[""])
            found |= {heading: text.replace("{summary}", result) for heading, text in self.sections.items()}
        found |= own
        examples = found.get("Examples", "")
        if _USES_AD.search(examples) and "adjoint as ad" not in examples:
            found["Examples"] = f">>> import adjoint as ad\n{examples}"
        f.__doc__ = "\n\n".join(
            f"{heading}\n{'-' * len(heading)}\n{body}" if heading else body
            for heading, body in found.items()
            if body
        )
        return f


def shared_with(function: Callable[..., Any]) -> SharedDoc:
    """Return the family of a function: the parameters and the result that its docstring describes."""
    found = SharedDoc(function.__doc__ or "")
    found.sections = {"Returns": found.sections.get("Returns", "")}
    return found


def _sections(doc: str) -> dict[str, str]:
    """Return the sections of a docstring by heading; the text in front of them has the heading ""."""
    text = inspect.cleandoc(doc)
    if "Examples\n---" not in text:
        text = _EXAMPLES.sub("\nExamples\n--------\n", text, count=1)
    first, *rest = _HEADING.split(text)
    return {"": first.strip()} | dict(zip(rest[::2], map(str.strip, rest[1::2]), strict=True))


def _result(doc: str) -> str:
    """Return what a function returns, from its summary line: "Return the sum." gives "The sum."."""
    verb, _, value = doc.partition("\n")[0].partition(" ")
    return value[0].upper() + value[1:] if verb == "Return" else "The result."


def _entries(section: str) -> dict[str, str]:
    """Return the entries of a section ``Parameters`` by the names of the parameters."""
    found = {}
    for entry in _ENTRY.split(section):
        for name in entry.partition(" : ")[0].split(", "):
            found[name.lstrip("*")] = entry.strip()
    return found


def _names(f: Any) -> tuple[str, ...]:
    """Return the names of the parameters of a function or class, in the order of the signature."""
    function: Any = f.__init__ if inspect.isclass(f) else f
    code = function.__code__
    first, last = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    rest = last + bool(code.co_flags & inspect.CO_VARARGS)
    end = rest + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return names[:first] + names[last:rest] + names[first:last] + names[rest:end]
