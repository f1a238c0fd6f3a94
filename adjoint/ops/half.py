"""Helpers for half precision (float16, and bfloat16 of ml_dtypes): compute in float32, then round once.

NumPy does not support bfloat16 fully: arithmetic with a Python number returns float32 or float64, and matrix
products return float32.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.namespace import Namespace, Value
from adjoint.core.record import STRONG_NUMBERS

__all__ = ["computes_in_float32", "in_float32", "is_half", "keeping_half", "rounded", "wide", "widened"]


_ARRAYS = (np.ndarray, np.generic)
_wide_forwards: weakref.WeakSet[Any] = weakref.WeakSet()  # the functions that ``in_float32`` made


def is_half(x: Any) -> bool:
    """Return whether an array is float16 or bfloat16."""
    return x.dtype.itemsize == 2 and x.dtype.kind not in "iu"


def wide(x: Any) -> Any:
    """Convert half precision to float32; return other arrays unchanged."""
    # ``is_half`` is inlined, because every sum calls this function
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x


def widened(xp: Namespace, x: Value) -> Any:
    """Convert half precision to float32 with the functions of ``xp``; return other values unchanged."""
    return xp.astype(x, dtype=np.dtype(np.float32)) if is_half(x) else x


def rounded(y: Any, *arrays: Any) -> Any:
    """Return ``y`` in the common dtype of ``arrays`` if that is half precision, otherwise unchanged.

    ``arrays`` are the arguments from which ``y`` was computed.
    """
    dtype = np.result_type(*arrays)
    return y.astype(dtype, copy=False) if dtype.itemsize == 2 and y.dtype.kind not in "biu" else y


def in_float32(forward: Callable[..., Any], *first: Any) -> Callable[..., Any]:
    """Return a forward function that computes half precision in float32.

    ``first`` are arguments that precede the arrays, such as the namespace ``raw``.  Outputs that are not
    floats are returned unchanged.
    """
    if first:
        forward = functools.partial(forward, *first)

    def half_forward(*args: Any, **params: Any) -> Any:
        arrays = [a for a in args if isinstance(a, _ARRAYS)]
        if not any(map(is_half, arrays)):
            return forward(*args, **params)
        y = forward(*(wide(a) if isinstance(a, _ARRAYS) else a for a in args), **params)
        floats = [a for a in arrays if a.dtype.kind not in "biu"]
        if len({a.dtype for a in floats if is_half(a)}) > 1:  # float16 with bfloat16 is float32, as in x + y
            return y
        return tuple(rounded(each, *floats) for each in y) if isinstance(y, tuple) else rounded(y, *floats)

    def wide_forward(*args: Any, **params: Any) -> Any:
        for a in args:
            if getattr(a, "itemsize", 0) == 2:  # of arrays and of NumPy scalars
                return half_forward(*args, **params)
        return forward(*args, **params)

    _wide_forwards.add(wide_forward)
    return wide_forward


def computes_in_float32(forward: Callable[..., Any]) -> bool:
    """Return whether ``in_float32`` made a forward function."""
    return forward in _wide_forwards


def keeping_half(forward: Callable[..., Any], *first: Any) -> Callable[..., Any]:
    """Return a forward function that keeps half precision, also with NumPy 2.1.

    There, 1 + x is float32 if x is bfloat16.  ``first`` is as in ``in_float32``.
    """
    if int in STRONG_NUMBERS:
        return in_float32(forward, *first)
    return functools.partial(forward, *first) if first else forward
