"""Forward functions that call SciPy; it is imported at the first call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.errors import MissingExtraError
from adjoint.ops.half import in_float32

__all__ = ["from_scipy", "of_order", "real_arrays", "scipy_function", "special_module"]


def from_scipy(name: str) -> Callable[..., Any]:
    """Return the forward function of an op, which calls ``scipy.special.<name>``.

    SciPy is imported at the first call.
    """
    found: list[Callable[..., Any]] = []

    def forward(*args: Any) -> Any:
        if not found:
            found.append(getattr(special_module(name), name))
        return found[0](*real_arrays(*args))

    return in_float32(forward)


def real_arrays(*args: Any) -> Any:
    """Return the arguments as arrays; raise if one is complex, because derivatives need real numbers."""
    if len(args) > 1 and any(type(a) in (int, float) for a in args):  # Python numbers do not change the dtype
        dtype = np.result_type(*args)
        args = tuple(
            np.asarray(a, dtype) if type(a) in (int, float) and dtype.kind == "f" else a for a in args
        )
    arrays = tuple(map(np.asarray, args))
    if any(a.dtype.kind == "c" for a in arrays):
        raise TypeError("only real numbers are supported")
    return arrays


def special_module(name: str) -> Any:
    """Return the module ``scipy.special``; if SciPy is missing, raise an error that contains ``name``."""
    try:
        import scipy.special
    except ImportError:
        raise MissingExtraError(f"ad.special.{name}", "SciPy", "scipy") from None
    return scipy.special


def scipy_function(part: str, name: str) -> Any:
    """Return the function ``name`` of ``scipy.<part>``; raise if SciPy is missing."""
    try:
        return getattr(importlib.import_module(f"scipy.{part}"), name)
    except ImportError:
        raise MissingExtraError(f"adjoint.scipy.{part}.{name}", "SciPy", "scipy") from None


def of_order(name: str) -> Callable[..., Any]:
    """Return the forward function of an op, which calls ``scipy.special.<name>(*parameters, x)``.

    The result has the dtype of the array x.
    """

    def forward(x: Any, **params: Any) -> Any:
        (x,) = real_arrays(x)
        y = getattr(special_module(name), name)(*params.values(), x)
        return y.astype(x.dtype) if x.dtype.kind == "f" else y

    return in_float32(forward)
