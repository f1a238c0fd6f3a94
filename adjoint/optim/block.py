"""One buffer shared by several tensors, so that few NumPy calls update them all."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.core.tensor import Tensor, exclusive_count

__all__ = ["Block"]


class Block:
    """The data of several tensors of one dtype in one flat array.

    The tensors' data become views of the flat array.  ``open`` returns that array for writing.  As for every
    write, the tensors' versions are incremented, and memory that other objects use (a detached tensor, a
    NumPy view, a graph) is copied first.
    """

    __slots__ = ("flat", "sizes", "slices", "tensors", "views")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.sizes = [t.size for t in tensors]
        ends = np.cumsum([0, *self.sizes]).tolist()
        self.slices = [slice(a, b) for a, b in itertools.pairwise(ends)]
        self.flat: ndarray[Any, Any] = np.empty(ends[-1], tensors[0].dtype)
        self.views: list[ndarray[Any, Any]] = []
        self._gather()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to rebuild a copy from the tensors: pickling separates views from the flat array."""
        return Block, (self.tensors,)

    def _gather(self) -> None:
        """Copy the tensors' values into a new flat array, and replace their data by views of it."""
        flat = np.empty_like(self.flat)
        views = []
        for t, s in zip(self.tensors, self.slices, strict=True):
            flat[s] = t._data.reshape(-1)
            t._data = flat[s].reshape(t.shape)
            views.append(t._data)
        # in this order: after an interrupt the old views differ from the tensors' data, and open() gathers
        # again
        self.flat = flat
        self.views = views

    def open(self) -> ndarray[Any, Any]:
        """Return the flat array for writing; increment the versions of all tensors."""
        limit, count, views = exclusive_count(), sys.getrefcount, self.views
        # a view of a view has the flat array as its base: each one adds to the flat's count
        exclusive = limit >= 0 and count(self.flat) <= len(views) + limit - 1
        i = 0
        for t in self.tensors:
            t._version += 1
            if t._data is not views[i] or count(views[i]) > limit:
                exclusive = False  # something besides the tensors and this block holds the memory
            i += 1  # noqa: SIM113  enumerate costs more
        if not exclusive:
            self._gather()
        return self.flat
