"""NumPy's functions that make arrays, for tensors among their arguments: ``array``, ``asarray``, …."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint import ops
from adjoint.core.convert import array_of, asarray
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError
from adjoint.numpy.build import numpy_only

__all__ = ["MAKERS"]


def _array(
    object: Any,
    dtype: Any = None,
    *,
    copy: bool | None = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    like: Any = None,
) -> Any:
    if dtype is not None and np.dtype(dtype).kind not in "biufcV":  # objects, strings
        return np.array(object, dtype, copy=copy, ndmin=ndmin)
    if not isinstance(object, (Tensor, list, tuple)):
        object = list(object)
    # asarray copies arrays itself; a tensor is copied here, because the caller may write into either one
    x = asarray(object, dtype=dtype, copy=True if copy and isinstance(object, Tensor) else None)
    return rec.reshape(x, shape=(1,) * (ndmin - x.ndim) + x.shape) if x.ndim < ndmin else x


def _asarray(
    a: Any, dtype: Any = None, order: Any = None, *, device: Any = None, copy: Any = None, like: Any = None
) -> Any:
    return _array(a, dtype, copy=copy)


def _contiguous(a: Any, dtype: Any = None, *, like: Any = None) -> Any:
    return _array(a, dtype, copy=None, ndmin=1)


def _chkfinite(a: Any, dtype: Any = None, order: Any = None) -> Tensor:
    x: Tensor = _array(a, dtype, copy=None)
    if x.dtype.kind in "fc" and not np.isfinite(array_of(x.detach())).all():
        raise InputError("np.asarray_chkfinite: the array must be finite, but contains infinities or NaNs.")
    return x


def _fromfunction(
    function: Callable[..., Any], shape: Any, *, dtype: Any = float, like: Any = None, **kwargs: Any
) -> Any:
    grid = np.indices(shape, dtype=dtype)
    return function(*map(asarray, grid), **kwargs)


MAKERS: dict[str, Any] = {
    "array": _array,
    "asarray": _asarray,
    "asanyarray": _asarray,
    "ascontiguousarray": _contiguous,
    "asfortranarray": _contiguous,
    "asarray_chkfinite": _chkfinite,
    "fromfunction": _fromfunction,
    "row_stack": ops.function("vstack"),
    **{name: numpy_only(getattr(np, name)) for name in ("diag_indices", "tril_indices", "triu_indices")},
}
