"""The methods of tensors that NumPy and notebooks call, such as ``__array_ufunc__`` for ``np.sin(x)``.

Ufuncs are handled here.  Other functions of NumPy and the display in notebooks are handled by
``interop.numpy`` and ``interop.notebook``, which are imported at their first use (docs/adr/0009).
"""

from __future__ import annotations

import importlib
import sys
from types import FrameType
from typing import Any

import numpy as np

from adjoint import ops
from adjoint.core.conversion import check_conversion
from adjoint.core.convert import asarray
from adjoint.core.define import UFUNCS
from adjoint.core.methods import attach
from adjoint.core.record import OTHERS
from adjoint.core.tensor import Tensor
from adjoint.core.user_code import library_of
from adjoint.errors import InputError
from adjoint.interop.writers import write, write_out
from adjoint.tracebacks import hide

__all__ = ["array_ufunc", "check_filter"]

_REDUCE = {
    np.add: "sum", np.multiply: "prod", np.maximum: "max", np.minimum: "min",
    np.logical_and: "all", np.logical_or: "any",
}  # fmt: skip
_ACCUMULATE = {np.add: "cumsum", np.multiply: "cumprod"}


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Call the op that corresponds to a NumPy ufunc.  This is the method ``__array_ufunc__`` of tensors."""
    try:
        if not kwargs and method == "__call__" and (known := UFUNCS.get(ufunc)) is not None:
            return known(*inputs)
        kwargs = {k: v for k, v in kwargs.items() if v is not None}
        if "out" in kwargs:
            return write_out(ufunc.__name__, getattr(ufunc, method), kwargs["out"], inputs, kwargs)
        if method == "at":
            return write(f"np.{ufunc.__name__}.at", ufunc.at, inputs[:1], inputs, kwargs)
        if method == "__call__":
            eager = UFUNCS.get(ufunc)
            if eager is None and ufunc.__name__ in ops.special.__all__:
                eager = getattr(ops.special, ufunc.__name__)  # for a ufunc of SciPy, which has the same name
            if eager is not None and (not kwargs or (ufunc is np.vecdot and set(kwargs) == {"axis"})):
                return eager(*inputs, **kwargs)
        elif method == "reduce" and ufunc in _REDUCE:
            return ops.function(_REDUCE[ufunc])(*inputs, **{"axis": 0, **kwargs})
        elif method == "accumulate" and ufunc in _ACCUMULATE:
            return ops.function(_ACCUMULATE[ufunc])(*inputs, **{"axis": 0, **kwargs})
        elif method == "outer" and ufunc in UFUNCS and not kwargs:
            x, y = asarray(inputs[0]), asarray(inputs[1])
            return UFUNCS[ufunc](ops.function("reshape")(x, (*x.shape, *(1,) * y.ndim)), y)
        call = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
        options = f" with {', '.join(kwargs)}" if kwargs else ""
        raise InputError(
            f"{call}{options} has no derivative in adjoint.\n"
            "  Pass x.numpy() if no gradient is needed, or add the op with ad.define."
        )
    except Exception as error:
        hide(error)
        raise


def _array_function(self: Tensor, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Call ``interop.numpy.array_function``, which replaces this method of tensors at the first call."""
    try:
        check_filter(func, sys._getframe(1), args)
        full = importlib.import_module("adjoint.interop.numpy").array_function
        return full(self, func, types, args, kwargs)
    except Exception as error:
        hide(error)
        raise


def check_filter(func: Any, frame: FrameType, args: Any) -> None:
    """Raise if ``scipy.signal.lfilter`` was called with a tensor that requires grad.

    ``frame`` is the stack frame that calls NumPy's function ``func`` with ``args``.  lfilter calls
    ``np.atleast_1d`` first; an error that is raised later would be hidden by the C code of lfilter.
    """
    if func is np.atleast_1d and frame.f_code.co_name == "lfilter" and library_of(frame) == "scipy":
        for x in args:
            if isinstance(x, Tensor):
                check_conversion(x, "a NumPy array", "Use adjoint.scipy.signal.lfilter, which takes tensors.")


def _with_sparse(op: str, x: Any, y: Any) -> Any:
    """Return the result of an operator if one argument is a sparse matrix, or NotImplemented."""
    if not hasattr(x, "tocsr") and not hasattr(y, "tocsr"):
        return NotImplemented
    return importlib.import_module("adjoint.scipy.sparse.arrays").operation(op, x, y)


OTHERS.append(_with_sparse)


def _html(self: Tensor) -> Any:
    return importlib.import_module("adjoint.interop.notebook").tensor_html(self)


attach(Tensor, __array_ufunc__=array_ufunc, __array_function__=_array_function, _repr_html_=_html)
