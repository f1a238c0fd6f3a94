"""Addresses of the functions of BLAS and LAPACK that SciPy exports to C code."""

from __future__ import annotations

import ctypes
import functools
import importlib

__all__ = ["address_of"]

_LIBRARIES = ("cython_blas", "cython_lapack")


@functools.cache
def address_of(name: str) -> int | None:
    """Return the address of a function such as "dpotrf"; None without SciPy."""
    for library in _LIBRARIES:
        try:
            exported = importlib.import_module(f"scipy.linalg.{library}").__pyx_capi__
        except ImportError:
            return None
        if name in exported:
            return _pointer(exported[name])
    return None


def _pointer(capsule: object) -> int | None:
    """Return the pointer in a capsule, whose name is the signature of the function."""
    name, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found: int | None = pointer(capsule, name(capsule))
    return found
