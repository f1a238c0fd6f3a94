"""Tools for tests of ops: gradient checks, sample arguments for each op, hypothesis strategies.

``strategies`` needs hypothesis and is imported at the first use.
"""

from __future__ import annotations

import importlib
from typing import Any

from adjoint.testing.cases import Case, array, cases
from adjoint.testing.gradcheck import gradcheck, gradgradcheck

__all__ = ["Case", "array", "cases", "gradcheck", "gradgradcheck", "strategies"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "strategies":
        return importlib.import_module("adjoint.testing.strategies")
    raise AttributeError(f"module 'adjoint.testing' has no attribute {name!r}")
