"""The limits of dtypes: ``finfo`` and ``iinfo`` of the Array API standard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adjoint.errors import DTypeError
from adjoint.interop.array_api import dtype_of

__all__ = ["finfo", "iinfo"]


@dataclass(frozen=True)
class FloatInfo:
    """Limits of a float dtype, as Python numbers."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class IntegerInfo:
    """Limits of an integer dtype, as Python numbers."""

    bits: int
    max: int
    min: int
    dtype: np.dtype[Any]


def finfo(type: Any, /) -> FloatInfo:
    """Return the limits of a float or complex dtype.

    Parameters
    ----------
    type : dtype or Tensor
        The dtype, or a tensor of it.

    Returns
    -------
    FloatInfo
        The limits: ``bits``, ``eps``, ``max``, ``min``, ``smallest_normal`` and ``dtype``.

    Raises
    ------
    DTypeError
        If it is an integer dtype.

    Examples
    --------
    >>> finfo(np.float32).eps
    1.1920928955078125e-07
    """
    dtype = dtype_of(type)
    if dtype.name == "bfloat16":  # 8 bits of exponent, 7 of fraction; np.finfo does not support it
        top = (2 - 2.0**-7) * 2.0**127
        return FloatInfo(16, 2.0**-7, top, -top, 2.0**-126, dtype)
    if dtype.kind not in "fc":
        raise DTypeError(f"finfo: {dtype} is not a float dtype.  Use iinfo for integers.")
    info = np.finfo(dtype)
    eps, top, bottom, normal = (float(v) for v in (info.eps, info.max, info.min, info.smallest_normal))
    return FloatInfo(int(info.bits), eps, top, bottom, normal, np.dtype(info.dtype))


def iinfo(type: Any, /) -> IntegerInfo:
    """Return the limits of an integer dtype.

    Parameters
    ----------
    type : dtype or Tensor
        The dtype, or a tensor of it.

    Returns
    -------
    IntegerInfo
        The limits: ``bits``, ``max``, ``min`` and ``dtype``.

    Raises
    ------
    DTypeError
        If it is not an integer dtype.

    Examples
    --------
    >>> iinfo(np.int8).max
    127
    """
    dtype = dtype_of(type)
    if dtype.kind not in "iu":
        raise DTypeError(f"iinfo: {dtype} is not an integer dtype.  Use finfo for floats.")
    info = np.iinfo(dtype)
    return IntegerInfo(int(info.bits), int(info.max), int(info.min), dtype)
