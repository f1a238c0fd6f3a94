"""Making tensors: NumPy's creation functions, with ``requires_grad``."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.config import get_default_dtype
from adjoint.core.convert import array_of, asarray, check_device, checked_dtype
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_shape, whole_number
from adjoint.core.tensor import Tensor, differentiable, tracked, varies, wrap
from adjoint.errors import ArgumentError, InputError, NoGradientError
from adjoint.ops.half import wide

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


def _made(op: str, array: Any, device: Any, requires_grad: bool) -> Tensor:
    check_device(op, device)
    t = wrap(np.asarray(array))
    return t.requires_grad_() if requires_grad else t


def _shape(op: str, shape: Any) -> tuple[int, ...]:
    wanted = canonical_shape(op, shape)
    if any(n < 0 for n in wanted):
        raise ArgumentError(f"{op}: lengths must not be negative, but the shape is {wanted}.")
    return wanted


def _dtype(dtype: Any) -> np.dtype[Any]:
    return get_default_dtype() if dtype is None else checked_dtype(dtype)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor of zeros."""
    return _made("zeros", np.zeros(_shape("zeros", shape), _dtype(dtype)), device, requires_grad)


def ones(shape: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor of ones."""
    return _made("ones", np.ones(_shape("ones", shape), _dtype(dtype)), device, requires_grad)


def empty(shape: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor whose elements are whatever the memory holds."""
    return _made("empty", np.empty(_shape("empty", shape), _dtype(dtype)), device, requires_grad)


def full(
    shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Make a tensor filled with one value; if that is a tensor, gradients flow to it."""
    wanted = _shape("full", shape)
    if isinstance(fill_value, Tensor) and varies(fill_value):
        check_device("full", device)
        return rec.copy(rec.broadcast_to(asarray(fill_value, dtype=dtype), shape=wanted))
    value = array_of(fill_value, dtype)
    if value.ndim > len(wanted):
        raise ArgumentError(f"full: a value of shape {value.shape} does not fill the shape {wanted}.")
    return _made("full", np.full(wanted, value), device, requires_grad)


def zeros_like(x: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Make zeros of the shape and dtype of ``x``."""
    x = asarray(x)
    return zeros(x.shape, dtype=dtype or x.dtype, device=device, requires_grad=requires_grad)


def ones_like(x: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Make ones of the shape and dtype of ``x``."""
    x = asarray(x)
    return ones(x.shape, dtype=dtype or x.dtype, device=device, requires_grad=requires_grad)


def empty_like(x: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Make an uninitialised tensor of the shape and dtype of ``x``."""
    x = asarray(x)
    return empty(x.shape, dtype=dtype or x.dtype, device=device, requires_grad=requires_grad)


def full_like(
    x: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Make a tensor of the shape and dtype of ``x`` filled with one value."""
    x = asarray(x)
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device, requires_grad=requires_grad)


def arange(
    start: Any,
    stop: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Make numbers from ``start`` up to, not including, ``stop``.

    >>> arange(3)
    tensor([0, 1, 2], dtype=int64)
    """
    if step == 0:
        raise ArgumentError("arange: step must not be 0.")
    if stop is None:
        start, stop = 0, start
    numbers = [_number(v) for v in (start, stop, step)]
    if dtype is None and any(isinstance(v, float) for v in numbers):
        dtype = get_default_dtype()
    try:
        made = np.arange(*numbers, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise InputError(f"arange: {error}") from None
    return _made("arange", made, device, requires_grad)


def _number(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if tracked(value):
        raise NoGradientError(
            "arange: how many numbers there are depends on the arguments, so no gradient flows to them.\n"
            "  Use start + step * ad.arange(n), which differentiates."
        )
    return value.item()


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    *,
    endpoint: bool = True,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Make ``num`` evenly spaced numbers from ``start`` to ``stop``; gradients flow to both ends.

    They have the dtype of the ends where these are float tensors or arrays, else the default dtype.
    """
    if whole_number("linspace", "num", num) < 0:
        raise ArgumentError(f"linspace: num must not be negative, but is {num}.")
    if any(isinstance(v, Tensor) and varies(v) for v in (start, stop)):
        check_device("linspace", device)
        return _between(start, stop, num, endpoint, _ends_dtype(start, stop, dtype))
    target = _ends_dtype(start, stop, dtype)
    first, last = (wide(array_of(v)) for v in (start, stop))
    made = np.linspace(
        first, last, num, endpoint=endpoint, dtype=np.float32 if target.kind == "V" else target
    )
    made = made.astype(target, copy=False)
    return _made("linspace", made, device, requires_grad)


def _ends_dtype(start: Any, stop: Any, dtype: Any) -> np.dtype[Any]:
    """Return the dtype of what lies between two ends."""
    if dtype is not None:
        return checked_dtype(dtype)
    ends = [v.dtype for v in (start, stop) if isinstance(v, (Tensor, np.ndarray)) and differentiable(v.dtype)]
    found = np.result_type(*ends) if ends else get_default_dtype()
    return np.result_type(found, 1j) if any(isinstance(v, complex) for v in (start, stop)) else found


def _between(start: Any, stop: Any, num: int, endpoint: bool, dtype: np.dtype[Any]) -> Tensor:
    parts = max(num - 1 if endpoint else num, 1)
    first, last = asarray(start), asarray(stop)
    ramp = (np.arange(num) / parts).reshape((num,) + (1,) * max(first.ndim, last.ndim))
    # the two weights, not start + ramp·(stop - start), so that both ends are exact
    return rec.astype(first * (1 - ramp) + last * ramp, dtype=dtype)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    *,
    k: int = 0,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Make ones on a diagonal: the identity matrix."""
    rows = whole_number("eye", "n_rows", n_rows)
    columns = rows if n_cols is None else whole_number("eye", "n_cols", n_cols)
    if rows < 0 or columns < 0:
        raise ArgumentError(f"eye: lengths must not be negative, but the shape is {(rows, columns)}.")
    offset = whole_number("eye", "k", k)
    offset = max(-rows, min(offset, columns))  # beyond that there is no diagonal, and NumPy overflows
    return _made("eye", np.eye(rows, columns, k=offset, dtype=_dtype(dtype)), device, requires_grad)
