"""Types of the public signatures, for annotations.

>>> from adjoint import Tensor
>>> from adjoint.typing import ArrayLike
>>> def loss(prediction: ArrayLike, target: ArrayLike) -> Tensor: ...
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import ArrayLike as _NumPyArrayLike
from numpy.typing import DTypeLike

from adjoint.core.tensor import Tensor

__all__ = ["Array", "ArrayLike", "Axis", "DTypeLike", "Key", "Lengths", "Mixed", "Plain", "Tree"]
__dir__ = sorted(__all__).copy

# A NumPy array
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
# An argument of ad.asarray: a tensor, an array, a number, or nested sequences of them
ArrayLike: TypeAlias = Tensor | _NumPyArrayLike | Sequence[Any]
# What is not a tensor and contains none: an array, a number, or nested sequences of them
Plain: TypeAlias = "Array | np.generic | complex | Sequence[Plain]"
# A tensor, or what may contain one
Mixed: TypeAlias = "Tensor | Plain | Sequence[Mixed]"
# One axis, several axes, or None for all
Axis: TypeAlias = SupportsIndex | Sequence[SupportsIndex] | None
# One length for all axes, or one per axis: a shape, a kernel, a stride
Lengths: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
# The index of a tensor, as in x[key]
Key: TypeAlias = (
    SupportsIndex | slice | EllipsisType | Tensor | Array | Sequence[Any] | tuple[Any, ...] | None
)
# Nested lists, tuples, dictionaries, dataclasses and modules of tensors.  Type checkers cannot express it,
# because any class can be registered.
Tree: TypeAlias = Any
