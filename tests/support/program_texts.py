"""Run the text of a program so that its source is known, as that of a notebook's cell is."""

from __future__ import annotations

import itertools
import linecache
from typing import Any

_numbers = itertools.count()


def run_text(text: str, space: dict[str, Any], name: str = "") -> None:
    """Run a text as ``exec`` does, and keep its lines for ``linecache``; ``name`` is the name of its file."""
    name = name or f"<program {next(_numbers)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    exec(compile(text, name, "exec", dont_inherit=True), space)
