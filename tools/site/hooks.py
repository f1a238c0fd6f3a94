"""Hooks of MkDocs: the pages of the public modules, their list, and the code of the gallery."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

from pages import generated_pages, locate_ops, with_code  # the directory of this file is on the path now


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    locate_ops()
    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put the programs into the gallery."""
    return with_code(markdown) if page.file.src_uri == "gallery.md" else markdown
