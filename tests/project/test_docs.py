"""The pages: code blocks without prompts run in order, links lead to files, generated pages are complete."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from program_texts import run_text
from test_docstrings import CALLABLES

import adjoint.errors

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)


def plain_blocks(path: Path) -> list[str]:
    """The Python code of a page that has no prompts; doctest runs the rest."""
    return [code for code in BLOCK.findall(path.read_text()) if ">>>" not in code]


@pytest.mark.parametrize("path", [p for p in PAGES if plain_blocks(p)], ids=lambda p: p.name)
def test_code_blocks_run(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for number, code in enumerate(plain_blocks(path), 1):
        run_text(code, names, f"{path.name}, block {number}")


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target and target not in GENERATED:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_blocks_end(path: Path) -> None:
    """A fence too many turns the text after it into code."""
    fences = re.findall(r"^ *(```+)(.*)$", path.read_text(), re.M)
    assert len(fences) % 2 == 0
    assert [language for _, language in fences[1::2] if language] == []


GENERATED = {"errors.md", "api/index.md"}  # by tools/site


def test_every_public_callable_is_on_the_site() -> None:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "tools" / "site" / "pages.py")
    assert spec is not None and spec.loader is not None
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    generated = pages.generated_pages()
    modules = {name: text for name, text in generated.items() if name.startswith("api/adjoint")}
    shown = set(re.findall(r"^(?:::: |## )(\S+)", "\n".join(modules.values()), re.M))
    functions = {name for name, value in CALLABLES.items() if "." not in value.__qualname__}
    assert functions - shown == set()
    assert re.findall(r"^## (\w+)$", generated["errors.md"], re.M) == adjoint.errors.__all__
