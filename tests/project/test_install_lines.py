"""Install lines work today, from a clone or a Git address, or say "once it is published"."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from adjoint.errors import MissingExtraError, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = set(PROJECT["project"]["optional-dependencies"])
GROUPS = set(PROJECT["dependency-groups"])
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS += [*sorted((ROOT / "adjoint").rglob("*.py")), *sorted((ROOT / "examples").rglob("*.py"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")

DEMO = "    python3 -m venv .venv && .venv/bin/pip install -q '.[demo]' && .venv/bin/adjoint demo\n"
TEST = (
    "    python3 -m venv .venv && .venv/bin/pip install -q -U pip && .venv/bin/pip install -q -e '.[all]' "
    "--group test && .venv/bin/python -m pytest -n 2\n"
)


def mistakes(text: str) -> list[str]:
    """Return the install lines of a text that do not work."""
    found = []
    for match in re.finditer(r"pip install[^`\n]*", text):
        line = match[0]
        after = text[match.start() : match.end() + 80]
        extras = {e for group in re.findall(r"\.\[([\w,]+)\]", line) for e in group.split(",")}
        unknown = extras - EXTRAS | (set(re.findall(r"--group (\w+)", line)) - GROUPS)
        unpublished = "adjoint-ad" in line and "once it is published" not in after and "git+" not in line
        if unknown or unpublished:
            found.append(line)
    return found


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_install_lines_work_or_are_marked(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if "pip install" in text:
        assert mistakes(text) == []


def test_wrong_install_lines_are_found() -> None:
    for line in (
        "pip install adjoint-ad",
        "pip install 'adjoint-ad[plot]'",
        "pip install '.[plots]'",
        "pip install --group tests",
    ):
        assert mistakes(f"Run `{line}` first.") == [line]
    assert mistakes("`pip install '.[plot]'`, `pip install 'adjoint-ad[plot]'` once it is published") == []


def test_the_advice_of_messages_is_made_in_one_place() -> None:
    assert (
        install_command("plot")
        == "pip install '.[plot]' in a clone of adjoint, or pip install 'adjoint-ad[plot]' once it is published"
    )
    assert (
        str(MissingExtraError("x", "y", "plot")) == f"x needs y.  Install it with: {install_command('plot')}."
    )
    naming = [p for p in (ROOT / "adjoint").rglob("*.py") if "adjoint-ad[" in p.read_text(encoding="utf-8")]
    assert [p.name for p in naming] == ["errors.py"]


def test_every_extra_is_on_the_page_about_installing() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    named = {e for row in re.findall(r"^\| (`[^|]+) \|", page, re.M) for e in re.findall(r"`(\w+)`", row)}
    assert named == EXTRAS


def test_the_commands_of_the_readme_are_on_its_first_screen() -> None:
    first = "".join(README.splitlines(keepends=True)[:30])
    assert DEMO in first and TEST in first


def test_the_landing_page_has_the_commands_of_the_readme() -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for command in (DEMO, re.findall(r"^    (py -m venv .*demo)$", README, re.M)[0]):
        lines = [f"    {each}\n" for each in re.split(r" && |; ", command.strip())]
        assert "".join(lines) in page


def test_the_table_of_the_readme_has_the_measured_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the direction of the chart above it: the time of a peer divided by adjoint's."""
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    from benchmarks.charts import factor

    found = json.loads((ROOT / "docs" / "performance.json").read_text(encoding="utf-8"))
    rows = re.findall(r"^\| (.*), (eager|compiled) \| (.*) \| (.*) \| (.*) \|$", README, re.M)
    assert len(rows) == 10
    for case, kind, *shown in rows:
        ratios = found["compiled" if kind == "compiled" else "cases"][case]["ratios"]
        peers = ("torch", "jax-jit", "autograd")
        measured = [factor(1 / ratios[peer][1]) if peer in ratios else "" for peer in peers]
        assert [text.strip() for text in shown] == measured


def test_pages_count_the_programs_of_the_gallery() -> None:
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    number = ["sixteen", "seventeen", "eighteen", "nineteen", "twenty"][
        len(re.findall(r"^## ", gallery, re.M)) - 16
    ]
    pages = [*TEXTS, ROOT / "CHANGELOG.md"]
    counts = [
        re.findall(r"(\w+) (?:complete )?programs with\s+pictures", p.read_text("utf-8")) for p in pages
    ]
    assert {word for found in counts for word in found} == {number}
