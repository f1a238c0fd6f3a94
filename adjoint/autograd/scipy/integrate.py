"""``autograd.scipy.integrate``: ``adjoint.scipy.integrate``."""

from typing import Any

from adjoint.scipy import integrate as _namespace

__all__ = _namespace.__all__


def __getattr__(name: str) -> Any:
    """Return the name of ``adjoint.scipy.integrate``."""
    return getattr(_namespace, name)
