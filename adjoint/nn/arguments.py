"""Checks of arguments that activations, norms and losses share."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, asarray
from adjoint.errors import DTypeError, IndexingError

__all__ = ["classes", "floats"]


def floats(op: str, x: Any) -> Tensor:
    """Return an argument as a tensor of real floats; whole numbers become float64."""
    x = asarray(x)
    if x.dtype.kind == "c":
        raise DTypeError(f"{op}: needs real numbers, but got {x.dtype}.")
    return rec.astype(x, dtype=np.dtype(float)) if x.dtype.kind in "iub" else x


def classes(op: str, indices: Any, count: int, ignored: int | None = None) -> Tensor:
    """Return whole numbers from 0 to ``count`` - 1, and ``ignored``, as a tensor; others raise."""
    i = asarray(indices)
    if i.dtype.kind not in "iu":
        raise DTypeError(f"{op}: classes are whole numbers, but got {i.dtype}.  Cast them: t.astype(int).")
    if type(i._data) is np.ndarray and i.size:  # inside a transform there are no numbers to look at
        bad = (i._data < 0) | (i._data >= count)
        if ignored is not None:
            bad &= i._data != ignored
        if bad.any():
            raise IndexingError(f"{op}: class {i._data[bad][0]} is outside 0 … {count - 1}.")
    return i
