"""What a release needs: one version, files that exist, extras that messages name."""

from __future__ import annotations

import re
import subprocess
import sys
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


WITHOUT_EXTRAS = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    sys.modules[name] = None  # importing it raises
import adjoint
for module in pkgutil.walk_packages(adjoint.__path__, "adjoint.", onerror=lambda name: None):
    try:
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    except adjoint.errors.MissingExtraError:
        print(module.name)
"""
LIBRARIES = """
einops hypothesis joblib llvmlite matplotlib ml_dtypes mlflow mpi4py onnx pyopencl rich safetensors scipy sklearn tensorboard
threadpoolctl wandb wgpu ziglang
""".split()


def test_every_module_is_imported_without_extras_or_says_which_one_is_missing():
    command = [sys.executable, "-W", "error", "-c", WITHOUT_EXTRAS, *LIBRARIES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr and {"adjoint.interop.einops", "adjoint.interop.onnx", "adjoint.sklearn"} <= set(
        done.stdout.split()
    )


def test_the_distribution_has_our_name():
    assert PROJECT["project"]["name"] == "adjoint-ad"
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "adjoint").rglob("*.py")]:
        assert not re.search(r"pip install '?adjoint(?!-ad)\b", path.read_text()), path
