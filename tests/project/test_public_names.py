"""``dir()`` and ``help()`` of public modules show public names, and only those."""

from __future__ import annotations

import pydoc
import re
from types import ModuleType
from typing import Any

import pytest

import adjoint as ad


def public_modules(path: str, module: Any, found: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """The module and all that are reached through ``__all__``, by path."""
    if module not in found.values():
        found[path] = module
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, ModuleType) and value.__name__.startswith("adjoint"):
                public_modules(f"{path}.{name}", value, found)
    return found


MODULES = public_modules("ad", ad, {})


def test_the_walk_finds_the_public_modules():
    assert {"ad.nn.functional", "ad.optim.schedules", "ad.linalg", "ad.config", "ad.tree"} <= set(MODULES)
    for module in MODULES.values():
        assert module.__name__.startswith("adjoint")


@pytest.mark.parametrize("path", MODULES)
def test_dir_lists_public_names(path):
    module = MODULES[path]
    assert dir(module) == sorted(module.__all__)
    assert len(set(dir(module))) == len(dir(module)), "listed twice"
    for name in dir(module):
        assert hasattr(module, name)
        # programs for autograd import the last two
        of_others = name in ("__version__", "_make_jvp", "_make_vjp")
        assert not name.startswith("_") or name.startswith("__array_") or of_others


@pytest.mark.parametrize("path", MODULES)
def test_help_shows_public_names(path):
    module = MODULES[path]
    text = pydoc.render_doc(module, renderer=pydoc.plaintext)
    sections = re.split(r"^(?=[A-Z ]+$)", text, flags=re.MULTILINE)
    members = [part for part in sections if part.startswith(("FUNCTIONS", "DATA"))]
    shown = re.findall(r"^    class (\w+)", text, re.MULTILINE)
    shown += re.findall(r"^    (\w+)(?:\(| = )", "".join(members), re.MULTILINE)
    empty = ("ad.interop", "ad.nn.utils", "ad.scipy", "ad.scipy.spatial")  # which have modules only
    assert shown or path in empty
    assert set(shown) <= set(module.__all__), set(shown) - set(module.__all__)
