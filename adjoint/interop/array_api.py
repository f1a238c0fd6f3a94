"""The Array API standard (2024.12) beyond the ops: dtypes, constants, and what the namespace says of itself.

``adjoint`` is itself such a namespace: a library written for the standard gets it from
``x.__array_namespace__()``, and what it computes differentiates.
"""

from __future__ import annotations

import builtins
import math
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from adjoint.config import get_default_dtype
from adjoint.core.convert import check_device, checked_dtype
from adjoint.core.methods import attach
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, DTypeError, InputError

__all__ = [
    "__array_namespace_info__",
    "bool",
    "can_cast",
    "complex64",
    "complex128",
    "e",
    "finfo",
    "float16",
    "float32",
    "float64",
    "iinfo",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "nan",
    "newaxis",
    "pi",
    "result_type",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")

bool = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{n}") for n in (16, 32, 64))
complex64, complex128 = (np.dtype(f"complex{n}") for n in (64, 128))

pi, e, inf, nan = math.pi, math.e, math.inf, math.nan
newaxis = None

# The standard's dtypes by its kinds; float16, which it does not know, is left out.
_KINDS: dict[str, tuple[np.dtype[Any], ...]] = {
    "bool": (bool,),
    "signed integer": (int8, int16, int32, int64),
    "unsigned integer": (uint8, uint16, uint32, uint64),
    "real floating": (float32, float64),
    "complex floating": (complex64, complex128),
}
_UNIONS = {
    "integral": ("signed integer", "unsigned integer"),
    "numeric": ("signed integer", "unsigned integer", "real floating", "complex floating"),
}


# Dtypes ------------------------------------------------------------------------------------


def _dtype_of(value: Any) -> np.dtype[Any]:
    """Return the dtype of a tensor or an array, or a dtype itself."""
    return value.dtype if isinstance(value, (Tensor, np.ndarray)) else checked_dtype(value)


def can_cast(from_: Any, to: Any, /) -> builtins.bool:
    """Tell whether a dtype, or a tensor's, casts to another without losing values.

    >>> can_cast(float32, float64), can_cast(float64, float32)
    (True, False)
    """
    return builtins.bool(np.can_cast(_dtype_of(from_), checked_dtype(to)))


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """Return the dtype of a computation with these tensors, dtypes and Python numbers.

    Python numbers are weak: they take the dtype of the others.

    >>> result_type(float32, 2.0), result_type(int32, float32)
    (dtype('float32'), dtype('float64'))
    """
    if not arrays_and_dtypes:
        raise ArgumentError("result_type: give at least one tensor, dtype or number.")
    numbers = (builtins.bool, int, float, complex)
    values = [v if isinstance(v, numbers) else _dtype_of(v) for v in arrays_and_dtypes]
    if all(isinstance(v, numbers) for v in values) and any(isinstance(v, float) for v in values):
        values.append(get_default_dtype())
    try:
        return np.result_type(*values)
    except TypeError as error:
        raise DTypeError(f"result_type: {error}") from None


def isdtype(dtype: Any, kind: Any) -> builtins.bool:
    """Tell whether a dtype is of a kind: a word such as "real floating", a dtype, or a tuple of them.

    >>> isdtype(float32, "real floating"), isdtype(float32, ("integral", "bool"))
    (True, False)
    """
    own = checked_dtype(dtype)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return any(_is_kind(own, k) for k in kinds)


def _is_kind(dtype: np.dtype[Any], kind: Any) -> builtins.bool:
    if not isinstance(kind, str):
        return dtype == checked_dtype(kind)
    if kind in _UNIONS:
        return any(_is_kind(dtype, k) for k in _UNIONS[kind])
    if kind == "real floating" and (dtype == float16 or dtype.name == "bfloat16"):
        return True
    if kind not in _KINDS:
        words = ", ".join([*_KINDS, *_UNIONS])
        raise ArgumentError(f"isdtype: kind {kind!r} is not known.  The kinds are {words}.")
    return dtype in _KINDS[kind]


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a float dtype, as Python numbers."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class IntegerInfo:
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: np.dtype[Any]


def finfo(type: Any, /) -> FloatInfo:
    """Return the limits of a float or complex dtype, or of a tensor's.

    >>> finfo(float32).eps
    1.1920928955078125e-07
    """
    dtype = _dtype_of(type)
    if dtype.name == "bfloat16":  # NumPy does not know it: 8 bits of exponent, 7 of fraction
        top = (2 - 2.0**-7) * 2.0**127
        return FloatInfo(16, 2.0**-7, top, -top, 2.0**-126, dtype)
    if dtype.kind not in "fc":
        raise DTypeError(f"finfo: {dtype} is not a float dtype.  Use iinfo for integers.")
    info = np.finfo(dtype)
    eps, top, bottom, normal = (float(v) for v in (info.eps, info.max, info.min, info.smallest_normal))
    return FloatInfo(int(info.bits), eps, top, bottom, normal, np.dtype(info.dtype))


def iinfo(type: Any, /) -> IntegerInfo:
    """Return the limits of an integer dtype, or of a tensor's.

    >>> iinfo(int8).max
    127
    """
    dtype = _dtype_of(type)
    if dtype.kind not in "iu":
        raise DTypeError(f"iinfo: {dtype} is not an integer dtype.  Use finfo for floats.")
    info = np.iinfo(dtype)
    return IntegerInfo(int(info.bits), int(info.max), int(info.min), dtype)


# The namespace -----------------------------------------------------------------------------


class NamespaceInfo:
    """What ``adjoint`` says of itself: its devices, dtypes and capabilities."""

    __slots__ = ()

    def capabilities(self) -> dict[str, Any]:
        """Tell that shapes may depend on values, and how many axes there may be."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Return the one device, "cpu"."""
        return "cpu"

    def devices(self) -> list[str]:
        """Return all devices."""
        return ["cpu"]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype[Any]]:
        """Return the dtypes of tensors made without one; ``ad.set_default_dtype`` moves them."""
        check_device("default_dtypes", device)
        floats = get_default_dtype()
        return {
            "real floating": floats,
            "complex floating": np.result_type(floats, complex64),
            "integral": np.dtype(np.int64),
            "indexing": np.dtype(np.intp),
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
        """Return the standard's dtypes by name, all or those of a kind or a tuple of kinds."""
        check_device("dtypes", device)
        found = [dtype for group in _KINDS.values() for dtype in group]
        return {d.name: d for d in found if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807  the standard's name
    """Return what the namespace says of itself."""
    return NamespaceInfo()


def array_namespace(self: Tensor, /, *, api_version: str | None = None) -> ModuleType:
    """Return ``adjoint``, which has the functions of the standard."""
    if api_version is not None and api_version not in VERSIONS:
        raise ArgumentError(
            f"adjoint follows the Array API standard in the versions {', '.join(VERSIONS)}, "
            f"not {api_version!r}."
        )
    return sys.modules["adjoint"]


def to_device(self: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """Return the tensor itself: the only device is "cpu"."""
    check_device("to_device", device)
    if stream is not None:
        raise InputError("to_device: the cpu has no streams, so stream must be None.")
    return self


attach(Tensor, __array_namespace__=array_namespace, to_device=to_device)
