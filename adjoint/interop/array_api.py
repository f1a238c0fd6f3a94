"""The parts of the Array API standard (2024.12) that are not ops: dtypes, constants, and namespace info.

``adjoint`` is an Array API namespace: ``x.__array_namespace__()`` returns it, so libraries written for the
standard can compute with tensors, and their results can be differentiated.
"""

from __future__ import annotations

import builtins
import math
import sys
from types import ModuleType
from typing import Any

import numpy as np

from adjoint.config import get_default_dtype
from adjoint.core.convert import check_device, checked_dtype
from adjoint.core.methods import attach
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, DTypeError, InputError
from adjoint.typing import DTypeLike

__all__ = [
    "__array_namespace_info__", "bool", "can_cast", "complex64", "complex128", "e", "float16", "float32",
    "float64", "inf", "int8", "int16", "int32", "int64", "isdtype", "nan", "newaxis", "pi", "result_type",
    "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")

bool = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{n}") for n in (16, 32, 64))
complex64, complex128 = (np.dtype(f"complex{n}") for n in (64, 128))

pi, e, inf, nan = math.pi, math.e, math.inf, math.nan
newaxis = None

# The dtypes of the standard by kind; the standard has no float16.
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


def dtype_of(value: Any) -> np.dtype[Any]:
    """Return the dtype of a tensor or an array; a dtype is checked and returned."""
    return value.dtype if isinstance(value, (Tensor, np.ndarray)) else checked_dtype(value)


def can_cast(from_: Any, to: Any, /) -> builtins.bool:
    """Return whether a dtype can be cast to another without losing values.

    Parameters
    ----------
    from_ : dtype or Tensor
        The dtype to cast from, or a tensor of it.
    to : dtype
        The dtype to cast to.

    Returns
    -------
    bool
        Whether the cast is safe.

    Examples
    --------
    >>> can_cast(float32, float64), can_cast(float64, float32)
    (True, False)
    """
    return builtins.bool(np.can_cast(dtype_of(from_), checked_dtype(to)))


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """Return the dtype of a computation with tensors, dtypes and Python numbers.

    Python numbers are weak: they are converted to the dtype of the tensors and dtypes.

    Parameters
    ----------
    *arrays_and_dtypes : Tensor, dtype or number
        The arguments of the computation.

    Returns
    -------
    dtype
        The dtype of the result.

    Raises
    ------
    DTypeError
        If there is no dtype that all dtypes can be promoted to.

    Examples
    --------
    >>> result_type(float32, 2.0), result_type(int32, float32)
    (dtype('float32'), dtype('float64'))
    """
    if not arrays_and_dtypes:
        raise ArgumentError("result_type: pass at least one tensor, dtype or number.")
    numbers = (builtins.bool, int, float, complex)
    values = [v.__class__(1) if isinstance(v, numbers) else dtype_of(v) for v in arrays_and_dtypes]
    if all(isinstance(v, numbers) for v in values) and any(isinstance(v, float) for v in values):
        values.append(get_default_dtype())
    try:
        return np.result_type(*values)
    except TypeError as error:
        raise DTypeError(f"result_type: {error}") from None


def isdtype(dtype: DTypeLike, kind: Any) -> builtins.bool:
    """Return whether a dtype is of a kind.

    Parameters
    ----------
    dtype : dtype
        The dtype.
    kind : str, dtype or tuple
        A kind such as "real floating", "integral" or "bool", a dtype, or a tuple of them.

    Returns
    -------
    bool
        Whether the dtype is of the kind.

    Raises
    ------
    ArgumentError
        If the kind is unknown.

    Examples
    --------
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


# The namespace -----------------------------------------------------------------------------


class NamespaceInfo:
    """Description of the Array API namespace: its devices, dtypes and capabilities."""

    __slots__ = ()

    def capabilities(self) -> dict[str, Any]:
        """Return what the namespace supports, as the standard defines it.

        Returns
        -------
        dict
            The keys "boolean indexing", "data-dependent shapes" and "max dimensions".
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Return the only device, "cpu".

        Returns
        -------
        str
            The device.
        """
        return "cpu"

    def devices(self) -> list[str]:
        """Return all devices.

        Returns
        -------
        list of str
            The devices.
        """
        return ["cpu"]

    def default_dtypes(self, *, device: str | None = None) -> dict[str, np.dtype[Any]]:
        """Return the dtypes of tensors that are created without one; ``ad.set_default_dtype`` changes them.

        Parameters
        ----------
        device : str, optional
            Accepted for the Array API; only ``"cpu"`` exists.

        Returns
        -------
        dict
            The dtypes by kind.
        """
        check_device("default_dtypes", device)
        floats = get_default_dtype()
        return {
            "real floating": floats,
            "complex floating": np.result_type(floats, complex64),
            "integral": np.dtype(np.int64),
            "indexing": np.dtype(np.intp),
        }

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
        """Return the dtypes of the standard.

        Parameters
        ----------
        device : str, optional
            Accepted for the Array API; only ``"cpu"`` exists.
        kind : str or tuple of str, optional
            Only dtypes of this kind, as in ``isdtype``.

        Returns
        -------
        dict
            The dtypes by name.
        """
        check_device("dtypes", device)
        found = [dtype for group in _KINDS.values() for dtype in group]
        return {d.name: d for d in found if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807  the standard's name
    """Return the description of the namespace.

    Returns
    -------
    NamespaceInfo
        Its methods return devices, dtypes and capabilities.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.__array_namespace_info__().devices()
    ['cpu']
    """
    return NamespaceInfo()


def array_namespace(self: Tensor, /, *, api_version: str | None = None) -> ModuleType:
    """Return the module ``adjoint``, which has the functions of the standard."""
    if api_version is not None and api_version not in VERSIONS:
        raise ArgumentError(
            f"adjoint follows the Array API standard in the versions {', '.join(VERSIONS)}, "
            f"not {api_version!r}."
        )
    return sys.modules["adjoint"]


def to_device(self: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """Return the tensor itself; raise if the device is not "cpu", the only device."""
    check_device("to_device", device)
    if stream is not None:
        raise InputError("to_device: the cpu has no streams, so stream must be None.")
    return self


attach(Tensor, __array_namespace__=array_namespace, to_device=to_device)
