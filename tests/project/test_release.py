"""What a release needs: one version, files that exist, extras that messages name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import adjoint

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_there_is_one_version():
    assert "version" in PROJECT["project"]["dynamic"] and "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "adjoint/__init__.py"
    assert f"version: {adjoint.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {adjoint.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_messages_name_extras_that_exist():
    extras = set(PROJECT["project"]["optional-dependencies"])
    named = set()
    for path in (ROOT / "adjoint").rglob("*.py"):
        text = path.read_text()
        named |= set(re.findall(r"MissingExtraError\([^()]*?, \"([\w-]+)\"\)", text))
        for several in re.findall(r"adjoint-ad\[([\w,-]+)\]", text):
            named |= set(several.split(","))
    assert named - extras - {"extra"} == set()


def test_the_distribution_has_our_name():
    assert PROJECT["project"]["name"] == "adjoint-ad"
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "adjoint").rglob("*.py")]:
        assert not re.search(r"pip install '?adjoint(?!-ad)\b", path.read_text()), path
