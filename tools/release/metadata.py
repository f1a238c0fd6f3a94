"""Metadata of a release that depend on the address of its repository, for hatchling.

``ADJOINT_ADDRESS=https://host/owner/adjoint python -m build`` adds the project's URLs, and makes the links of
the README absolute: the page of a package index cannot follow the others.  Without the variable there are no
URLs, and the README stays as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {
    "Source": "",
    "Documentation": "/tree/main/docs",
    "Issues": "/issues",
    "Changelog": "/blob/main/CHANGELOG.md",
}


def absolute(text: str, address: str) -> str:
    """Return Markdown whose relative links and pictures lead to the main branch at an address."""
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?://)", rf"\g<1>{address}/raw/main/", text)
    return re.sub(r"\]\((?!https?://|#)", f"]({address}/blob/main/", text)


class Metadata(MetadataHookInterface):
    """The hook that hatchling calls."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the README and the URLs."""
        address = os.environ.get("ADJOINT_ADDRESS", "").rstrip("/")
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        if address:
            metadata["urls"] = {name: address + page for name, page in PAGES.items()}
            text = absolute(text, address)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
