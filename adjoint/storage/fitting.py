"""Check whether an array that was loaded can replace an array of the program."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from adjoint import words
from adjoint.core.convert import foreign_array
from adjoint.core.tensor import Tensor

__all__ = ["fitting"]


def fitting(value: Any, target: Any) -> ndarray[Any, Any] | str:
    """Return ``value`` as an array in the dtype of ``target``, or a text that says why it cannot replace it.

    It must have the same shape and kind of dtype (float, integer, …), and values in the range of the dtype.
    """
    try:
        array = value.numpy() if isinstance(value, Tensor) else foreign_array("", value)
    except Exception:  # the conversion may raise any error: it is code of another library
        return f"is {words.a(type(value).__name__)}, not an array"
    wrong = []
    if array.shape != target.shape:
        wrong.append(f"has shape {array.shape}, needs {target.shape}")
    if _kind(array.dtype) != _kind(target.dtype):
        wrong.append(f"has dtype {array.dtype}, needs {target.dtype}")
    if wrong:
        return "; ".join(wrong)
    with np.errstate(over="ignore"):
        cast = array.astype(target.dtype, copy=False)
    if cast.dtype != array.dtype:
        same = cast == array if _kind(cast.dtype) == "whole" else np.isfinite(cast) == np.isfinite(array)
        if not same.all():
            return f"has values beyond the range of {target.dtype}"
    return cast


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.name == "bfloat16":
        return "float"
    return {"i": "whole", "u": "whole", "f": "float", "c": "complex", "b": "bool"}.get(dtype.kind, dtype.name)
