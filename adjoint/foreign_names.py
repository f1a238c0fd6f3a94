"""Replacements for names of JAX, ``jax.lax``, PyTorch, autograd and NumPy, read from ``foreign_names.txt``.

``hints`` uses these tables in its errors about unknown names.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

__all__ = ["ABSENT_KEYWORDS", "ATTRIBUTES", "FUNCTIONS", "KEYWORDS", "PARTS", "elsewhere"]


def _tables() -> dict[str, dict[str, str]]:
    """Return the tables of the file by their titles, each from names to replacements."""
    tables: dict[str, dict[str, str]] = {}
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            table = tables[line.strip("[]")] = {}
        elif line and not line.startswith("#"):
            names, instead = line.split(": ", 1)
            table.update((name, instead.replace("{}", name)) for name in names.split(", "))
    return tables


_tables_by_title = _tables()
KEYWORDS = _tables_by_title.pop("keywords")  # and the names of the same parameters here
ABSENT_KEYWORDS = _tables_by_title.pop("absent keywords")
FUNCTIONS = _tables_by_title.pop("adjoint")
# Names in submodules, by the name of the submodule
PARTS = {title: table for title, table in _tables_by_title.items() if title.startswith("adjoint.")}
# Attributes of instances of a class and its subclasses, by the name of the class
ATTRIBUTES = {title: table for title, table in _tables_by_title.items() if title not in PARTS}
for _name, _instead in ATTRIBUTES["Generator"].items():
    PARTS["adjoint.random"].setdefault(_name, f"rng = ad.random.default_rng(seed) and {_instead}")

_PLACES = " nn.functional linalg special fft scipy.special scipy.linalg nn tree extend".split(" ")


def elsewhere(name: str) -> str:
    """Return the public path of ``name`` in adjoint, such as "ad.linalg.inv", or "" if there is none."""
    if name.startswith("_"):
        return ""
    for place in _PLACES:
        module = sys.modules["adjoint"]
        for step in filter(None, place.split(".")):
            module = getattr(module, step)
        if name in module.__all__:
            return f"ad.{place}.{name}" if place else f"ad.{name}"
    return f"adjoint.numpy.{name}" if name in importlib.import_module("adjoint.numpy").__all__ else ""
