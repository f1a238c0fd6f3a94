"""NumPy's protocols: ``np.sin(tensor)``, ``np.concatenate([t1, t2])`` … return tensors and differentiate."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint import ops
from adjoint.core.define import UFUNCS
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError
from adjoint.interop import array_api

__all__ = ["FUNCTIONS", "array_function", "array_ufunc"]

# NumPy's names where they differ from ours.
_ALIASES = {
    "concatenate": "concat",
    "amax": "max",
    "amin": "min",
    "abs": "abs",
    "around": "round",
    "copy": "copy",
}
_REDUCE = {
    np.add: "sum", np.multiply: "prod", np.maximum: "max", np.minimum: "min",
    np.logical_and: "all", np.logical_or: "any",
}  # fmt: skip
_ACCUMULATE = {np.add: "cumsum", np.multiply: "cumprod"}


def _functions() -> dict[Any, Callable[..., Any]]:
    """Pair NumPy's functions with ours of the same name."""
    found: dict[Any, Callable[..., Any]] = {}
    for module in ops.MODULES:
        for name in module.__all__:
            theirs = getattr(np, name, None)
            if theirs is not None and not isinstance(theirs, np.ufunc):
                found[theirs] = getattr(module, name)
    for submodule, namespace in ops.NAMESPACES.items():
        for name in namespace.__all__:
            theirs = getattr(getattr(np, submodule), name, None)
            if theirs is not None and not isinstance(theirs, np.ufunc):
                found[theirs] = getattr(namespace, name)
    found[np.lib.stride_tricks.sliding_window_view] = ops.function("sliding_window_view")
    del found[np.put_along_axis]  # NumPy's writes into its argument, ours does not
    found |= {np.can_cast: array_api.can_cast, np.result_type: array_api.result_type}
    for theirs_name, ours in _ALIASES.items():
        theirs = getattr(np, theirs_name)
        if not isinstance(theirs, np.ufunc):
            found[theirs] = ops.function(ours)
    return found


FUNCTIONS = _functions()


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Answer NumPy's ufuncs with the op of the table."""
    kwargs = {k: v for k, v in kwargs.items() if v is not None}
    if "out" in kwargs:
        raise InputError(
            f"np.{ufunc.__name__}(…, out=…) cannot write into a tensor: the result would have no history."
        )
    if method == "__call__":
        eager = UFUNCS.get(ufunc)
        if eager is None and ufunc.__name__ in ops.special.__all__:
            eager = getattr(ops.special, ufunc.__name__)  # SciPy's, which has the same names
        if eager is not None and (not kwargs or (ufunc is np.vecdot and set(kwargs) == {"axis"})):
            return eager(*inputs, **kwargs)
    elif method == "reduce" and ufunc in _REDUCE:
        return ops.function(_REDUCE[ufunc])(*inputs, **{"axis": 0, **kwargs})
    elif method == "accumulate" and ufunc in _ACCUMULATE:
        return ops.function(_ACCUMULATE[ufunc])(*inputs, **{"axis": 0, **kwargs})
    call = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
    options = f" with {', '.join(kwargs)}" if kwargs else ""
    raise InputError(
        f"{call}{options} has no derivative in adjoint.\n"
        "  Use np.asarray(tensor) if no gradient is needed, or ad.define to add the op."
    )


def array_function(self: Tensor, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Answer NumPy's other functions with ours of the same name."""
    ours = FUNCTIONS.get(func)
    if ours is None:
        raise InputError(
            f"np.{func.__name__} has no derivative in adjoint.\n"
            "  Use np.asarray(tensor) if no gradient is needed, or write it with ad functions."
        )
    if kwargs:
        known = inspect.signature(ours).parameters
        for name in list(kwargs):
            if name not in known:
                if kwargs[name] is None or kwargs[name] is np._NoValue:
                    kwargs = {k: v for k, v in kwargs.items() if k != name}
                else:
                    raise InputError(f"np.{func.__name__}: adjoint does not take {name}=.")
    return ours(*args, **kwargs)


Tensor.__array_ufunc__ = array_ufunc  # type: ignore[attr-defined]
Tensor.__array_function__ = array_function  # type: ignore[attr-defined]
