"""SciPy's functions on tensors, with SciPy's names and parameters: ``adjoint.scipy.special`` and others.

Each submodule is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjoint.scipy import (
        integrate,
        interpolate,
        linalg,
        ndimage,
        optimize,
        signal,
        sparse,
        spatial,
        special,
        stats,
    )

__all__ = [
    "integrate",
    "interpolate",
    "linalg",
    "ndimage",
    "optimize",
    "signal",
    "sparse",
    "spatial",
    "special",
    "stats",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # so that type checkers report unknown names

    def __getattr__(name: str) -> Any:
        """Import a submodule at its first use."""
        if name not in __all__:
            raise AttributeError(f"module 'adjoint.scipy' has no attribute {name!r}")
        return importlib.import_module(f"adjoint.scipy.{name}")
