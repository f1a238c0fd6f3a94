"""The Python package of a library, which needs only NumPy."""

from __future__ import annotations

import pprint
from typing import Any

from adjoint.exports.library import Library
from adjoint.exports.templates import filled

__all__ = ["package_text"]


def package_text(library: Library, shared: str) -> str:
    """Return the text of ``__init__.py``; ``shared`` is the name of the shared library beside it."""
    made = library.collected
    arguments, results = ({i.name: _form(i) for i in items} for items in (made.arguments, made.results))
    parts = {p.name: _form(p.value) for p in library.calling.order}
    tables = {"INPUTS": arguments, "OUTPUTS": results, "PARTS": parts}
    return filled(
        "package.txt", NAME=library.name, SHARED=shared, ARGUMENTS=", ".join(arguments),
        **{field: pprint.pformat(table, sort_dicts=False) for field, table in tables.items()},
    )  # fmt: skip


def _form(item: Any) -> tuple[str, Any]:
    """Return dtype and shape; NumPy has no bfloat16, so that its bits are passed."""
    return "uint16" if item.dtype.name == "bfloat16" else item.dtype.name, item.shape
