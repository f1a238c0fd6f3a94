"""``autograd.scipy.linalg``: ``adjoint.scipy.linalg``."""

from typing import Any

from adjoint.scipy import linalg as _namespace

__all__ = _namespace.__all__


def __getattr__(name: str) -> Any:
    """Return the name of ``adjoint.scipy.linalg``."""
    return getattr(_namespace, name)
