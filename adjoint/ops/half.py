"""Half precision (float16, and bfloat16 of ml_dtypes): computed in float32, and rounded once.

NumPy does not know bfloat16: a Python number beside it gives float32 or float64, its products are float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["in_float32", "is_half", "rounded", "wide", "widened"]


def is_half(x: Any) -> bool:
    """Tell arrays of float16 and bfloat16."""
    return x.dtype.itemsize == 2 and x.dtype.kind not in "iu"


def wide(x: Any) -> Any:
    """Return half precision as float32, anything else as it is."""
    # ``is_half`` written out: this is in the way of every sum
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x


def widened(xp: Any, x: Any) -> Any:
    """Return half precision as float32 in any namespace, anything else as it is."""
    return xp.astype(x, dtype=np.dtype(np.float32)) if is_half(x) else x


def rounded(y: Any, *arrays: Any) -> Any:
    """Return a result in the half precision that all its arguments have; otherwise as it is."""
    dtype = np.result_type(*arrays)
    return y.astype(dtype, copy=False) if dtype.itemsize == 2 and y.dtype.kind not in "biu" else y


def in_float32(forward: Callable[..., Any], *first: Any) -> Callable[..., Any]:
    """Return a forward that computes half precision in float32; an output that is not a float stays.

    ``first`` are given before the arrays: the namespace ``raw``, of a forward that is written on one.
    """
    if first:
        forward = functools.partial(forward, *first)

    def half_forward(*args: Any, **params: Any) -> Any:
        arrays = [a for a in args if type(a) is np.ndarray]
        if not any(map(is_half, arrays)):
            return forward(*args, **params)
        y = forward(*(wide(a) if type(a) is np.ndarray else a for a in args), **params)
        floats = [a for a in arrays if a.dtype.kind not in "biu"]
        return tuple(rounded(each, *floats) for each in y) if isinstance(y, tuple) else rounded(y, *floats)

    def wide_forward(*args: Any, **params: Any) -> Any:
        for a in args:
            if type(a) is np.ndarray and a.dtype.itemsize == 2:
                return half_forward(*args, **params)
        return forward(*args, **params)

    return wide_forward
