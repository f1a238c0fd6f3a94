"""Tensors in einops: after ``import adjoint.interop.einops``, its functions take them.

einops asks the subclasses of its own ``AbstractBackend`` which of them knows the type of a value.
``einops.array_api`` needs no import.
"""

from __future__ import annotations

from typing import Any

import adjoint.numpy
from adjoint.core.lifted import Lifted
from adjoint.core.tensor import Tensor
from adjoint.errors import MissingExtraError

try:
    from einops._backends import NumpyBackend
except ImportError as error:
    raise MissingExtraError("tensors in einops", "einops", "einops") from error

__all__ = ["Backend"]
__dir__ = sorted(__all__).copy


class Backend(NumpyBackend):
    """What einops does with tensors: NumPy's functions, which record."""

    framework_name = "adjoint"

    def __init__(self) -> None:
        self.np = adjoint.numpy

    def is_appropriate_type(self, tensor: Any) -> bool:
        """Return whether a value is a tensor."""
        return isinstance(tensor, (Tensor, Lifted))

    def from_numpy(self, x: Any) -> Any:
        """Return an array as a tensor."""
        return adjoint.tensor(x)

    def to_numpy(self, x: Any) -> Any:
        """Return the values of a tensor."""
        return x.numpy()
