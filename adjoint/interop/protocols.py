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
from adjoint.core.record import tracked
from adjoint.core.tensor import Tensor, Traced
from adjoint.core.user_code import library_of
from adjoint.errors import InputError

__all__ = ["array_ufunc", "check_filter", "no_out"]

_REDUCE = {
    np.add: "sum", np.multiply: "prod", np.maximum: "max", np.minimum: "min",
    np.logical_and: "all", np.logical_or: "any",
}  # fmt: skip
_ACCUMULATE = {np.add: "cumsum", np.multiply: "cumprod"}


def no_out(name: str, *given: Any) -> str:
    """Return the message of the error for a call ``np.<name>(…, out=…)``, which tensors do not support.

    ``given`` are the values of ``out``.
    """
    if any(isinstance(out, Tensor) for out in given):
        return (
            f"np.{name}(…, out=…): out must be a NumPy array, not a tensor.\n"
            "  Omit out=: the result is a new tensor.  To write the result into x, use "
            "`with ad.no_grad(): x.copy_(result)`."
        )
    return (
        f"np.{name}(…, out=…): an array cannot be part of the graph, so the gradient would be lost.\n"
        "  The same happens in a += x if a is an array: write a = a + x, or create a with ad.zeros."
    )


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Call the op that corresponds to a NumPy ufunc.  This is the method ``__array_ufunc__`` of tensors."""
    if not kwargs and method == "__call__" and (known := UFUNCS.get(ufunc)) is not None:
        return known(*inputs)
    kwargs = {k: v for k, v in kwargs.items() if v is not None}
    if "out" in kwargs:
        plain = all(type(a) is not Traced and not (type(a) is Tensor and tracked(a)) for a in inputs)
        if plain and not any(isinstance(out, Tensor) for out in kwargs["out"]):  # array += tensor
            arrays = [a.numpy() if isinstance(a, Tensor) else a for a in inputs]
            return getattr(ufunc, method)(*arrays, **kwargs)
        raise InputError(no_out(ufunc.__name__, *kwargs["out"]))
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


def _array_function(self: Tensor, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Call ``interop.numpy.array_function``, which replaces this method of tensors at the first call."""
    check_filter(func, sys._getframe(1), args)
    return importlib.import_module("adjoint.interop.numpy").array_function(self, func, types, args, kwargs)


def check_filter(func: Any, frame: FrameType, args: Any) -> None:
    """Raise if ``scipy.signal.lfilter`` was called with a tensor that requires grad.

    ``frame`` is the stack frame that calls NumPy's function ``func`` with ``args``.  lfilter calls
    ``np.atleast_1d`` first; an error that is raised later would be hidden by the C code of lfilter.
    """
    if func is np.atleast_1d and frame.f_code.co_name == "lfilter" and library_of(frame) == "scipy":
        for x in args:
            if isinstance(x, Tensor):
                check_conversion(x, "a NumPy array", "Use adjoint.scipy.signal.lfilter, which takes tensors.")


def _html(self: Tensor) -> Any:
    return importlib.import_module("adjoint.interop.notebook").tensor_html(self)


attach(Tensor, __array_ufunc__=array_ufunc, __array_function__=_array_function, _repr_html_=_html)
