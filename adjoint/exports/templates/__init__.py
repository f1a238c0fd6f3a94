"""The texts of the files beside a library; @NAME@ and the like stand for what differs."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["filled"]


def filled(template: str, **fields: str) -> str:
    """Return the text of a template with the values of its fields."""
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    return re.sub(r"@([A-Z]+)@", lambda found: fields[found[1]], text)
