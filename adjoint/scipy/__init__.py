"""SciPy's functions on tensors, with SciPy's names and parameters: ``adjoint.scipy.special`` and others.

Each submodule is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from adjoint.errors import AbsentNameError

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
    "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal", "sparse", "spatial", "special",
    "stats",
]  # fmt: skip
__dir__ = sorted(__all__).copy

_SCIPYS = frozenset("cluster constants datasets differentiate fft fftpack io misc odr".split())


if not TYPE_CHECKING:  # so that type checkers report unknown names

    def __getattr__(name: str) -> Any:
        """Return a submodule, which is imported at its first use; raise for an unknown name."""
        if name in _SCIPYS:
            instead = (
                "ad.fft" if name in ("fft", "fftpack") else f"scipy.{name}, which has no derivatives here"
            )
            raise AbsentNameError(f"module 'adjoint.scipy' has no attribute {name!r}.  Use {instead}.")
        if name not in __all__:
            raise AttributeError(f"module 'adjoint.scipy' has no attribute {name!r}")
        return importlib.import_module(f"adjoint.scipy.{name}")
