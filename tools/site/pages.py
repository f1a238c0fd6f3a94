"""The generated pages of the site: one per public module, all of adjoint on one page, and the errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import adjoint

__all__ = ["generated_pages", "locate_ops", "public_modules", "with_code"]

ROOT = Path(__file__).resolve().parents[2]


def public_modules(module: ModuleType = adjoint, seen: set[str] | None = None) -> Iterator[ModuleType]:
    """Yield ``adjoint`` and the modules that it and they export."""
    seen = set() if seen is None else seen
    seen.add(module.__name__)
    yield module
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value) and value.__name__.startswith("adjoint.") and value.__name__ not in seen:
            yield from public_modules(value, seen)


def members(module: ModuleType) -> list[str]:
    """Return the public functions and classes of adjoint that a module exports."""
    return [
        name
        for name in module.__all__
        if callable(getattr(module, name))
        and getattr(getattr(module, name), "__module__", "").startswith("adjoint")
    ]


def generated_pages() -> dict[str, str]:
    """Return the text of each page by its path below docs/."""
    pages = {}
    listed = []
    for module in public_modules():
        names = members(module)
        if not names:
            continue
        path = f"api/{module.__name__}.md"
        summary = (module.__doc__ or "").strip().splitlines()[0]
        pages[path] = "\n\n".join(
            [f"# {module.__name__}", summary, *(_entry(module, name) for name in names)]
        )
        listed.append((module, names))
    pages["api/index.md"] = _everything(listed)
    pages["errors.md"] = _errors()
    return pages


def locate_ops() -> None:
    """Set ``__module__`` of the functions of ops to where they are found, for mkdocstrings."""
    for module in public_modules():
        for name in members(module):
            value = getattr(module, name)
            if value.__module__ == "adjoint" and getattr(adjoint, value.__name__, None) is not value:
                value.__module__ = module.__name__


def _entry(module: ModuleType, name: str) -> str:
    """Return the text of one function or class: a directive of mkdocstrings where its inspection finds it."""
    value, full = getattr(module, name), f"{module.__name__}.{name}"
    if value.__module__ == "adjoint.errors" and module is not adjoint.errors:
        return f"## {full} {{#{full}}}\n\nSee [{name}](../errors.md#{name.lower()})."
    if "hypothesis" in getattr(value, "__globals__", {}).get("__name__", ""):  # made by its decorator
        doc = inspect.cleandoc(value.__doc__ or "")
        return f"## {full} {{#{full}}}\n\n```text\n{doc}\n```"
    return f"::: {full}"


def _everything(listed: list[tuple[ModuleType, list[str]]]) -> str:
    """All of adjoint on one page: a line per public name."""
    lines = ["# All of adjoint on one page", "", "Each name leads to its parameters and examples.", ""]
    for module, names in listed:
        lines += [f"## [{module.__name__}]({module.__name__}.md)", ""]
        for name in sorted(names, key=str.lower):
            doc = (getattr(module, name).__doc__ or "").strip().splitlines()
            full = f"{module.__name__}.{name}"
            lines.append(f"- [`{name}`]({module.__name__}.md#{full}): {doc[0] if doc else ''}")
        lines.append("")
    return "\n".join(lines)


def _errors() -> str:
    """Every error with its cause and cure, which its docstring has."""
    lines = ["# Errors", "", "Every error of adjoint, with its cause and what to do.", ""]
    errors: Any = adjoint.errors
    for name in errors.__all__:
        cls = getattr(errors, name)
        parents = ", ".join(f"`{b.__name__}`" for b in cls.__bases__)
        lines += [f"## {name}", "", f"A subclass of {parents}.", "", inspect.cleandoc(cls.__doc__ or ""), ""]
    return "\n".join(lines)


def with_code(markdown: str) -> str:
    """Replace each line that is a link to an example by its code, folded."""

    def block(link: re.Match[str]) -> str:
        code = (ROOT / link[1]).read_text().rstrip()
        lines = [
            f'??? example "{link[1]}"',
            "",
            "    ```python",
            *(f"    {line}" for line in code.splitlines()),
        ]
        return "\n".join([*lines, "    ```"])

    return re.sub(r"^\[(examples/\w+\.py)\]\(\.\./\1\)$", block, markdown, flags=re.M)
