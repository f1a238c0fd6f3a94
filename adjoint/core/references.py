"""Reference counts of arrays that nothing else refers to, in the ways in which adjoint holds them.

They are measured, because interpreters differ in whether a local variable or an argument counts.  Without a
GIL the count is the sum of two counters, of the owning thread and of the others.  It is exact unless another
thread changes its references at that moment; that thread then reads memory that is being written to, which is
undefined (docs/threads.md).  Without ``sys.getrefcount`` all counts are -1: every array may be in use.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from adjoint.core.tensor import wrap

__all__ = ["IN_LIST", "OF_CALLER", "OF_TENSOR"]


def _measure_of_tensor() -> int:
    holder = wrap(np.empty(0))
    data = holder._data
    return sys.getrefcount(data)


def _measure_of_caller() -> int:
    array = np.empty(0)
    return _count(array)


def _count(array: Any) -> int:
    return sys.getrefcount(array)


def _measure_in_list() -> int:
    (found,) = map(sys.getrefcount, [np.empty(0)])
    return found


_counts = hasattr(sys, "getrefcount")
OF_TENSOR = _measure_of_tensor() if _counts else -1  # a tensor refers to it, and one local variable
OF_CALLER = _measure_of_caller() if _counts else -1  # a local variable, which is the argument of the function
IN_LIST = _measure_in_list() if _counts else -1  # one list, over which ``map`` counts
