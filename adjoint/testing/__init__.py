"""Tools for tests of ops: gradient checks, sample arguments for each op, hypothesis strategies.

``strategies`` needs hypothesis and is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from adjoint.hints import add_hints as _add_hints
from adjoint.testing.cases import Case, array, cases
from adjoint.testing.gradcheck import gradcheck, gradgradcheck

if TYPE_CHECKING:
    from adjoint.testing import strategies

__all__ = ["Case", "array", "cases", "gradcheck", "gradgradcheck", "strategies"]
__dir__ = sorted(__all__).copy


_add_hints(__name__)


if not TYPE_CHECKING:  # so that type checkers report unknown names

    def __getattr__(name: str) -> Any:
        if name == "strategies":
            return importlib.import_module("adjoint.testing.strategies")
        raise AttributeError(f"module 'adjoint.testing' has no attribute {name!r}")
