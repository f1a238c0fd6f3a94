"""``autograd.scipy.signal``: ``adjoint.scipy.signal``."""

from typing import Any

from adjoint.scipy import signal as _namespace

__all__ = _namespace.__all__


def __getattr__(name: str) -> Any:
    """Return the name of ``adjoint.scipy.signal``."""
    return getattr(_namespace, name)
