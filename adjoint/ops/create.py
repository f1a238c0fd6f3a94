"""Making tensors: NumPy's creation functions, with ``requires_grad``."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.config import get_default_dtype
from adjoint.core.shapes import canonical_shape
from adjoint.core.tensor import Tensor, array_of, asarray, wrap
from adjoint.errors import ArgumentError, InputError

__all__ = [
    "arange",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


def _made(array: Any, requires_grad: bool) -> Tensor:
    t = wrap(np.asarray(array))
    return t.requires_grad_() if requires_grad else t


def _shape(op: str, shape: Any) -> tuple[int, ...]:
    wanted = canonical_shape(op, shape)
    if any(n < 0 for n in wanted):
        raise ArgumentError(f"{op}: lengths must not be negative, but the shape is {wanted}.")
    return wanted


def zeros(shape: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor of zeros."""
    return _made(np.zeros(_shape("zeros", shape), dtype or get_default_dtype()), requires_grad)


def ones(shape: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor of ones."""
    return _made(np.ones(_shape("ones", shape), dtype or get_default_dtype()), requires_grad)


def empty(shape: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor whose elements are whatever the memory holds."""
    return _made(np.empty(_shape("empty", shape), dtype or get_default_dtype()), requires_grad)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor filled with one value."""
    value = array_of(fill_value, dtype)
    return _made(np.full(_shape("full", shape), value), requires_grad)


def zeros_like(x: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Make zeros of the shape and dtype of ``x``."""
    x = asarray(x)
    return zeros(x.shape, dtype=dtype or x.dtype, requires_grad=requires_grad)


def ones_like(x: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Make ones of the shape and dtype of ``x``."""
    x = asarray(x)
    return ones(x.shape, dtype=dtype or x.dtype, requires_grad=requires_grad)


def empty_like(x: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Make an uninitialised tensor of the shape and dtype of ``x``."""
    x = asarray(x)
    return empty(x.shape, dtype=dtype or x.dtype, requires_grad=requires_grad)


def full_like(x: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor of the shape and dtype of ``x`` filled with one value."""
    x = asarray(x)
    return full(x.shape, fill_value, dtype=dtype or x.dtype, requires_grad=requires_grad)


def arange(
    start: Any, stop: Any = None, step: Any = 1, *, dtype: Any = None, requires_grad: bool = False
) -> Tensor:
    """Make numbers from ``start`` up to, not including, ``stop``.

    >>> arange(3)
    tensor([0, 1, 2], dtype=int64)
    """
    if step == 0:
        raise ArgumentError("arange: step must not be 0.")
    if stop is None:
        start, stop = 0, start
    numbers = [float(v) if isinstance(v, Tensor) else v for v in (start, stop, step)]
    if dtype is None and any(isinstance(v, float) for v in numbers):
        dtype = get_default_dtype()
    try:
        return _made(np.arange(*numbers, dtype=dtype), requires_grad)
    except (TypeError, ValueError) as error:
        raise InputError(f"arange: {error}") from None


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    *,
    endpoint: bool = True,
    dtype: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Make ``num`` evenly spaced numbers from ``start`` to ``stop``."""
    if num < 0:
        raise ArgumentError(f"linspace: num must not be negative, but is {num}.")
    if dtype is None and not any(isinstance(v, complex) for v in (start, stop)):
        dtype = get_default_dtype()
    return _made(np.linspace(start, stop, num, endpoint=endpoint, dtype=dtype), requires_grad)


def eye(
    n_rows: int, n_cols: int | None = None, *, k: int = 0, dtype: Any = None, requires_grad: bool = False
) -> Tensor:
    """Make ones on a diagonal: the identity matrix."""
    return _made(np.eye(n_rows, n_cols, k=k, dtype=dtype or get_default_dtype()), requires_grad)
