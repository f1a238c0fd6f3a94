"""Sections of docs/conformance.md, which the tools beside this file write."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["PAGE", "ROOT", "listed", "replace_section"]

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "conformance.md"


def replace_section(title: str, text: str) -> None:
    """Write the section with a title, in the place of the old one, or in front of the Array API."""
    page = PAGE.read_text()
    section = f"# {title}\n\n{text.strip()}\n\n"
    old = re.search(rf"^# {re.escape(title)}\n.*?(?=^# |\Z)", page, re.S | re.M)
    start = old.start() if old else page.index("# The Array API standard")
    PAGE.write_text(page[:start] + section + page[old.end() if old else start :])


def listed(names: list[str], reasons: list[tuple[str, str]]) -> tuple[str, list[str]]:
    """Return the names under their reasons as text, and the names that no reason matches."""
    lines, left = [], list(names)
    for pattern, reason in reasons:
        found = [name for name in left if re.search(pattern, name)]
        if found:
            lines += [f"- {reason}", *(f"    - `{name}`" for name in found)]
            left = [name for name in left if name not in found]
    return "\n".join(lines), left
