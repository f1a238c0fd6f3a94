"""Run kernels on arrays, for the tests of native code."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from adjoint.compiler.build import units

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 4)


def loaded(text: str) -> Any:
    """Return a kernel as a function that keeps its code loaded."""
    unit = units.function(text)
    found = KERNEL(unit)
    found.unit = unit  # type: ignore[attr-defined]
    return found


def run(text: str, arrays: list[Any], low: int, high: int, chunk: int = 0, thread: int = 0) -> None:
    """Run a kernel once; the slots of its table are the addresses of the arrays."""
    table = np.array([a.ctypes.data for a in arrays], np.int64)
    loaded(text)(table.ctypes.data, low, high, chunk, thread)


def padded(n: int, dtype: Any, fill: Any = 77) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return an array of n elements and the memory behind it, which a kernel must leave alone."""
    whole = np.full(n + 64, fill, dtype)
    return whole[:n], whole[n:]
