"""Functions of ``autograd.numpy`` that NumPy does not have, or that autograd extends."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjoint.numpy as anp
from adjoint.core.tensor import Tensor

__all__ = ["make_diagonal", "where"]


def make_diagonal(D: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return matrices with the last axis of ``D`` on their diagonals, the only placement of autograd."""
    if not (offset == 0 and axis1 == -1 and axis2 == -2):
        raise NotImplementedError("make_diagonal: only offset=0, axis1=-1 and axis2=-2 are supported.")
    return D[..., None] * np.eye(D.shape[-1])


def where(condition: Any, *values: Any, **named: Any) -> Any:
    """Return ``np.where``; a Python bool chooses a number without making an array."""
    values = (*values, *(named[name] for name in ("x", "y")[len(values) :] if name in named))
    if isinstance(condition, bool) and len(values) == 2 and not isinstance(values[0], (np.ndarray, Tensor)):
        return values[0] if condition else values[1]
    return anp.where(condition, *values)
