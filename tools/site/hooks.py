"""Hooks of MkDocs: the pages of the public modules, their list, and links that leave the documentation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

from pages import generated_pages, locate_ops  # the directory of this file is on the path now


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    locate_ops()
    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files
