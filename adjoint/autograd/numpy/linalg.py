"""``autograd.numpy.linalg``."""

from typing import Any

from adjoint.numpy.linalg import *
from adjoint.numpy.linalg import __all__ as __all__

__dir__ = sorted(__all__).copy


def T(x: Any) -> Any:  # noqa: N802  autograd's name
    """Return the transposed matrices."""
    return x.swapaxes(-1, -2)


def _dot(x: Any, y: Any) -> Any:
    """Return the matrix product."""
    return x @ y
