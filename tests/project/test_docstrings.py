"""The docstrings of everything public: a summary line and NumPy's sections, true to the signature."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import adjoint

HEADINGS = (
    "Parameters", "Returns", "Yields", "Raises", "Warns", "See Also", "Notes", "References", "Examples", "Attributes",
)  # fmt: skip


def public_modules(module: ModuleType = adjoint, seen: set[str] | None = None) -> Iterator[ModuleType]:
    """Yield ``adjoint`` and the modules that it and they export."""
    seen = set() if seen is None else seen
    seen.add(module.__name__)
    yield module
    for name in module.__all__:
        value = getattr(module, name)
        if value is adjoint.autograd:
            continue  # autograd's names, which autograd documents
        if inspect.ismodule(value) and value.__name__.startswith("adjoint.") and value.__name__ not in seen:
            yield from public_modules(value, seen)


def public_callables() -> dict[str, Callable[..., Any]]:
    """Return the public functions, classes and methods by name; an alias is listed once."""
    found: dict[int, tuple[str, Any]] = {}
    for module in public_modules():
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and getattr(value, "__module__", "").startswith("adjoint"):
                found.setdefault(id(value), (f"{module.__name__}.{name}", value))
    classes = [(name, value) for name, value in found.values() if inspect.isclass(value)]
    for class_name, cls in classes:
        for name, value in vars(cls).items():
            method = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            own = getattr(method, "__qualname__", "") == f"{cls.__qualname__}.{name}"
            if inspect.isfunction(method) and own and not name.startswith("_"):
                found.setdefault(id(method), (f"{class_name}.{name}", method))
    return dict(found.values())


CALLABLES = public_callables()


def sections(doc: str) -> dict[str, list[str]]:
    """Split a cleaned docstring into its sections; the text in front of them is under ""."""
    found: dict[str, list[str]] = {"": []}
    heading, lines = "", doc.splitlines()
    for i, line in enumerate(lines):
        underline = lines[i + 1] if i + 1 < len(lines) else ""
        if underline and set(underline) == {"-"} and not line.startswith(" "):
            assert len(underline) == len(line), f"the line under {line!r} has another length"
            assert line in HEADINGS, f"{line!r} is not one of NumPy's headings"
            assert line not in found, f"two sections {line!r}"
            heading = line
            found[heading] = []
        elif set(line) != {"-"}:
            found[heading].append(line)
    return found


def parameters_named(lines: list[str]) -> list[str]:
    """Return the names of a ``Parameters`` section, in order."""
    found = []
    for line in lines:
        match = re.match(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*) : \S", line)
        if match:
            found += [name.lstrip("*") for name in match[1].split(", ")]
        else:
            assert not line.strip() or line.startswith("    "), f"not 'name : type': {line!r}"
    return found


def parameters_of(value: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters of a callable, without self and without keywords that always fail."""
    if inspect.isclass(value) and issubclass(value, BaseException) and "__init__" not in vars(value):
        return []
    parameters = inspect.signature(value).parameters
    return [
        name
        for i, (name, p) in enumerate(parameters.items())
        if not (i == 0 and is_method(value) and name in ("self", "cls")) and p.annotation != "Never"
    ]


def returns_nothing(value: Callable[..., Any]) -> bool:
    return inspect.isclass(value) or inspect.signature(value).return_annotation in (None, "None", "NoReturn")


def is_method(value: Callable[..., Any]) -> bool:
    """Tell whether a callable is a method; its summary may be all there is to say."""
    return "." in value.__qualname__


@pytest.mark.parametrize("name", sorted(CALLABLES))
def test_docstring_has_summary_and_sections(name: str) -> None:
    value = CALLABLES[name]
    doc = inspect.cleandoc(value.__doc__ or "")
    summary, *rest = doc.splitlines() or [""]
    assert summary.endswith("."), f"the summary {summary!r} does not end with a full stop"
    assert not rest or not rest[0], f"the summary {summary!r} is longer than a line"
    assert all(len(line) <= 110 for line in doc.splitlines())
    found = sections(doc)
    if "Parameters" in found or not is_method(value):
        assert parameters_named(found.get("Parameters", [])) == parameters_of(value)
        assert returns_nothing(value) or {"Returns", "Yields"} & set(found), "no section Returns"
    if not (is_method(value) or inspect.isclass(value)):
        assert "Examples" in found, "no section Examples"
    assert all(any(lines) for lines in found.values()), "an empty section"


@pytest.mark.parametrize("name", sorted(n for n, f in CALLABLES.items() if f.__module__ == "adjoint"))
def test_examples_of_ops_run(name: str) -> None:
    """Doctest does not collect them, because ``define`` makes the functions."""
    example = doctest.DocTestParser().get_doctest(CALLABLES[name].__doc__ or "", {}, name, None, None)
    assert example.examples
    failed, _ = doctest.DocTestRunner(verbose=False).run(example)
    assert not failed
