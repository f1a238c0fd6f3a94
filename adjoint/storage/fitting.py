"""Check whether a saved array has the shape and the kind of dtype of the array that it replaces."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from adjoint import words
from adjoint.core.convert import foreign_array
from adjoint.core.tensor import Tensor

__all__ = ["fitting"]


def fitting(value: Any, target: Any) -> ndarray[Any, Any] | str:
    """Return ``value`` in the dtype of ``target``, or a text that says why it cannot replace ``target``."""
    try:
        array = value.numpy() if isinstance(value, Tensor) else foreign_array("", value)
    except Exception:  # any error of a foreign object means that it is not an array
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
