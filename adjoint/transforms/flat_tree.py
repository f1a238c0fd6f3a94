"""Pytrees as flat vectors and back, differentiably, for solvers of vector equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import DTypeError, TransformError
from adjoint.transforms.inputs import Place, as_input

__all__ = ["FlatTree", "joined_flat"]


class FlatTree:
    """The layout of a tree of real tensors as one vector, in the order of ``tree.ravel``.

    The vector has the given dtype, by default the common dtype of the tensors.
    """

    def __init__(self, name: str, x0: Any, dtype: Any = None) -> None:
        leaves, self.structure = tree.flatten(x0)
        if not leaves:
            raise TransformError(f"{name}: x0 contains no tensors: {self.structure.describe()}.")
        self.first = [as_input(name, leaf, self.structure, i, "x0") for i, leaf in enumerate(leaves)]
        for i, t in enumerate(self.first):
            if t.dtype.kind == "c":
                place = Place(self.structure, i, "x0")
                raise DTypeError(
                    f"{name}: {place} is {t.dtype}, but only equations in real numbers can be solved."
                )
        self.order = tree.ravel_order(self.structure)
        self.specs = [(t.shape, t.dtype) for t in self.first]
        self.dtype = np.dtype(dtype or np.result_type(*(t.dtype for t in self.first)))

    def flatten(self, leaves: Sequence[Tensor]) -> Tensor:
        """Return the leaves as one vector."""
        return joined_flat([leaves[i] for i in self.order], self.dtype)

    def unflatten(self, x: Tensor) -> Any:
        """Return the tree whose leaves are the parts of the vector ``x``."""
        leaves: list[Any] = [None] * len(self.specs)
        start = 0
        for i in self.order:
            shape, dtype = self.specs[i]
            size = int(np.prod(shape))
            part = x if len(self.specs) == 1 else x[start : start + size]
            part = rec.reshape(part, shape=shape) if shape != part.shape else part
            leaves[i] = rec.astype(part, dtype=dtype) if dtype != part.dtype else part
            start += size
        return tree.unflatten(self.structure, leaves)


def joined_flat(leaves: Sequence[Tensor], dtype: Any) -> Tensor:
    """Return the elements of several tensors as one vector of dtype ``dtype``."""
    flat = [rec.reshape(t, shape=(t.size,)) if t.ndim != 1 else t for t in leaves]
    flat = [rec.astype(t, dtype=dtype) if t.dtype != dtype else t for t in flat]
    return flat[0] if len(flat) == 1 else rec.concat(*flat, axis=-1)
