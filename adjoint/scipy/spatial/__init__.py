"""``scipy.spatial`` on tensors: the submodule ``distance``; other names are SciPy's own functions."""

from typing import Any

from adjoint.scipy.fallback import scipy_only
from adjoint.scipy.spatial import distance

__all__ = ["distance"]
__dir__ = sorted(__all__).copy


def __getattr__(name: str) -> Any:
    """Return SciPy's own function, which raises an error for a tensor that requires grad."""
    return scipy_only("spatial", name)
