"""Norms over many arrays, without overflow and in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["global_norm"]


def global_norm(arrays: Iterable[Any], p: float = 2.0) -> float:
    """Return the p-norm of all elements of all arrays together.

    It is scaled by the largest element, so neither 1e200 nor 1e-200 is lost; NaN and inf
    come out as NaN and inf.

    >>> round(global_norm([np.array([3e200]), np.array([4e200])]) / 1e200, 12)
    5.0
    """
    parts = [np.asarray(a) for a in arrays]
    parts = [np.abs(a.astype(np.float64) if a.dtype.itemsize < 4 else a) for a in parts if a.size]
    largest = max((float(a.max()) for a in parts), default=0.0)
    if any(math.isnan(float(a.max())) for a in parts):
        return math.nan
    if largest == 0.0 or math.isinf(largest) or math.isinf(p):
        return largest
    total = math.fsum(float(np.sum((a / largest) ** p, dtype=np.float64)) for a in parts)
    return float(largest * total ** (1.0 / p))
