"""``autograd.scipy.special``: ``adjoint.scipy.special``."""

from typing import Any

from adjoint.scipy import special as _namespace

__all__ = _namespace.__all__


def __getattr__(name: str) -> Any:
    """Return the name of ``adjoint.scipy.special``."""
    return getattr(_namespace, name)
