"""NumPy's functions that make arrays, for tensors: ``array``, ``asarray``, ``identity``, …."""

from __future__ import annotations

import functools
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
    if not _is_numeric(object, dtype):
        return np.array(object, dtype, copy=copy, ndmin=ndmin)
    if not isinstance(object, (Tensor, list, tuple, np.ndarray, np.generic, int, float, complex)):
        object = np.asarray(object)
    # asarray copies arrays itself; a tensor is copied here, because the caller may write into either one
    x = asarray(object, dtype=dtype, copy=True if copy and isinstance(object, Tensor) else None)
    return rec.reshape(x, shape=(1,) * (ndmin - x.ndim) + x.shape) if x.ndim < ndmin else x


def _is_numeric(value: Any, dtype: Any) -> bool:
    """Return whether ``value`` can become a tensor of ``dtype``: it must be numeric, not strings or dates."""
    if dtype is not None:
        return np.dtype(dtype).kind in "biufcV" and np.dtype(dtype).names is None
    first = value
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if isinstance(first, (str, bytes, np.datetime64, np.timedelta64)) or first is None:
        return False
    kind = getattr(getattr(first, "dtype", None), "kind", "f")
    return kind in "biufc" or isinstance(first, Tensor)


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


def _made(theirs: Any) -> Callable[..., Any]:
    """Return a function that calls NumPy's ``theirs`` and converts the arrays in its result to tensors."""
    plain = numpy_only(theirs)

    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        made = plain(*args, **kwargs)
        if isinstance(made, tuple):
            return tuple(asarray(a) for a in made)
        return asarray(made) if made.dtype.kind in "biufc" else made

    return call


def _named(theirs: Any, ours: Callable[..., Any]) -> Callable[..., Any]:
    ours.__name__ = theirs.__name__
    ours.__qualname__ = theirs.__name__
    ours.__module__ = "numpy"
    ours.__doc__ = theirs.__doc__
    return ours


_TENSORS = """
    identity tri indices bartlett blackman hamming hanning kaiser fromiter frombuffer diag_indices
    tril_indices triu_indices mask_indices
""".split()

MAKERS: dict[str, Any] = {
    "array": _named(np.array, _array),
    "asarray": _named(np.asarray, _asarray),
    "asanyarray": _named(np.asanyarray, lambda *args, **options: _asarray(*args, **options)),
    "ascontiguousarray": _named(np.ascontiguousarray, _contiguous),
    "asfortranarray": _named(np.asfortranarray, lambda *args, **options: _contiguous(*args, **options)),
    "asarray_chkfinite": _named(np.asarray_chkfinite, _chkfinite),
    "fromfunction": _named(np.fromfunction, _fromfunction),
    "row_stack": ops.function("vstack"),
    **{name: _made(getattr(np, name)) for name in _TENSORS},
}
