"""Functions that create tensors, as NumPy has them, with ``requires_grad``."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.config import get_default_dtype
from adjoint.core.convert import array_of, asarray, check_device, checked_dtype, made
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_shape, whole_number
from adjoint.core.tensor import Tensor, differentiable, wrap
from adjoint.core.values import tracked, varies
from adjoint.errors import ArgumentError, InputError, NoGradientError
from adjoint.ops.half import wide
from adjoint.ops.shared_docs import argument_doc
from adjoint.typing import ArrayLike, DTypeLike, Lengths

__all__ = [
    "arange", "empty", "empty_like", "eye", "full", "full_like", "geomspace", "linspace", "logspace", "ones",
    "ones_like", "zeros", "zeros_like",
]  # fmt: skip

_creation_doc = argument_doc.extended("""
    Parameters
    ----------
    shape : int or tuple of int
        The shape of the result.
    dtype : dtype, optional
        The dtype; by default ``get_default_dtype()``.
    fill_value : array_like
        The value; if it is a tensor, gradients flow to it.
    x : array_like
        The tensor with the shape and dtype.
    start : array_like
        The first number.
    stop : array_like
        The last number.
    num : int, optional
        How many numbers.
    endpoint : bool, optional
        Whether ``stop`` is the last number.

    Returns
    -------
    Tensor
        The tensor.
    """)
_like_doc = _creation_doc.extended("""
    Parameters
    ----------
    dtype : dtype, optional
        The dtype of the result; by default that of ``x``.
    """)
_numbers_doc = _creation_doc.extended("""
    Parameters
    ----------
    dtype : dtype, optional
        The dtype, as in ``linspace``.

    Returns
    -------
    Tensor
        The numbers.
    """)


def _made(op: str, array: Any, device: Any, requires_grad: bool) -> Tensor:
    check_device(op, device)
    t = made(wrap(np.asarray(array)))
    return t.requires_grad_() if requires_grad else t


def _shape(op: str, shape: Any) -> tuple[int, ...]:
    wanted = canonical_shape(op, shape)
    if any(n < 0 for n in wanted):
        raise ArgumentError(f"{op}: the shape must not have negative lengths, but is {wanted}.")
    return wanted


def _dtype(dtype: Any) -> np.dtype[Any]:
    return get_default_dtype() if dtype is None else checked_dtype(dtype)


@_creation_doc
def zeros(
    shape: Lengths, *, dtype: DTypeLike | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Create a tensor of zeros.

    >>> zeros((2, 2))
    tensor([[0., 0.],
            [0., 0.]], dtype=float64)
    """
    return _made("zeros", np.zeros(_shape("zeros", shape), _dtype(dtype)), device, requires_grad)


@_creation_doc
def ones(
    shape: Lengths, *, dtype: DTypeLike | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Create a tensor of ones.

    >>> ones(3)
    tensor([1., 1., 1.], dtype=float64)
    """
    return _made("ones", np.ones(_shape("ones", shape), _dtype(dtype)), device, requires_grad)


@_creation_doc
def empty(
    shape: Lengths, *, dtype: DTypeLike | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Create a tensor whose elements are not initialised.

    >>> empty((2, 3)).shape
    (2, 3)
    """
    return _made("empty", np.empty(_shape("empty", shape), _dtype(dtype)), device, requires_grad)


@_creation_doc
def full(
    shape: Lengths,
    fill_value: ArrayLike,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a tensor filled with one value.

    Parameters
    ----------
    dtype : dtype, optional
        The dtype; by default that of the value.

    >>> full(2, 7.0)
    tensor([7., 7.], dtype=float64)
    """
    wanted = _shape("full", shape)
    if varies(fill_value):
        check_device("full", device)
        made = rec.copy(rec.broadcast_to(asarray(fill_value, dtype=dtype), shape=wanted))
        return made.requires_grad_() if requires_grad and made._node is None else made
    value = array_of(fill_value, dtype)
    if value.ndim > len(wanted):
        raise ArgumentError(
            f"full: a value of shape {value.shape} cannot be broadcast to the shape {wanted}."
        )
    return _made("full", np.full(wanted, value), device, requires_grad)


@_like_doc
def zeros_like(
    x: ArrayLike, *, dtype: DTypeLike | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Create zeros with the shape and dtype of another tensor.

    >>> zeros_like([1.0, 2.0])
    tensor([0., 0.], dtype=float64)
    """
    x = asarray(x)
    return zeros(x.shape, dtype=dtype or x.dtype, device=device, requires_grad=requires_grad)


@_like_doc
def ones_like(
    x: ArrayLike, *, dtype: DTypeLike | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Create ones with the shape and dtype of another tensor.

    >>> ones_like([1.0, 2.0])
    tensor([1., 1.], dtype=float64)
    """
    x = asarray(x)
    return ones(x.shape, dtype=dtype or x.dtype, device=device, requires_grad=requires_grad)


@_like_doc
def empty_like(
    x: ArrayLike, *, dtype: DTypeLike | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Create an uninitialised tensor with the shape and dtype of another one.

    >>> empty_like([1.0, 2.0]).shape
    (2,)
    """
    x = asarray(x)
    return empty(x.shape, dtype=dtype or x.dtype, device=device, requires_grad=requires_grad)


@_like_doc
def full_like(
    x: ArrayLike,
    fill_value: ArrayLike,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a tensor filled with one value, with the shape and dtype of another one.

    >>> full_like([1.0, 2.0], 7)
    tensor([7., 7.], dtype=float64)
    """
    x = asarray(x)
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device, requires_grad=requires_grad)


@_numbers_doc
def arange(
    start: ArrayLike,
    stop: ArrayLike | None = None,
    step: Any = 1,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create evenly spaced numbers from ``start`` up to, but not including, ``stop``.

    Parameters
    ----------
    start : float
        The first number.  If ``stop`` is not passed, this is ``stop``, and the first number is 0.
    stop : float, optional
        The end, which is not included.
    step : float, optional
        The distance of neighbours.
    dtype : dtype, optional
        The dtype; by default int64 for integers, else ``get_default_dtype()``.

    Raises
    ------
    ArgumentError
        If ``step`` is 0.
    NoGradientError
        If an argument requires grad.

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
            "arange: an argument requires grad, but no gradient can flow to it: the length of the result "
            "depends on it.\n"
            "  Use start + step * ad.arange(n), which is differentiable."
        )
    return value.item()


@_numbers_doc
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    *,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create evenly spaced numbers between two ends; gradients flow to both ends.

    Parameters
    ----------
    dtype : dtype, optional
        The dtype; by default that of float tensors and arrays among the ends, else
        ``get_default_dtype()``.

    Raises
    ------
    ArgumentError
        If ``num`` is negative.

    >>> linspace(0.0, 1.0, 3)
    tensor([0. , 0.5, 1. ], dtype=float64)
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


@_numbers_doc
def logspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    base: ArrayLike = 10.0,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """Create powers of a base with evenly spaced exponents; gradients flow to the ends and the base.

    Parameters
    ----------
    start : array_like
        The first exponent.
    stop : array_like
        The last exponent.
    endpoint : bool, optional
        Whether ``stop`` is the last exponent.
    base : array_like, optional
        The base.

    >>> logspace(0.0, 2.0, 3)
    tensor([  1.,  10., 100.], dtype=float64)
    """
    y = rec.pow(base, linspace(start, stop, num, endpoint=endpoint))
    return y if dtype is None else rec.astype(y, dtype=checked_dtype(dtype))


@_numbers_doc
def geomspace(
    start: ArrayLike, stop: ArrayLike, num: int = 50, endpoint: bool = True, dtype: DTypeLike | None = None
) -> Tensor:
    """Create a geometric progression between two ends of the same sign; gradients flow to both ends.

    >>> geomspace(1.0, 4.0, 3)
    tensor([1., 2., 4.], dtype=float64)
    """
    first, last = asarray(start), asarray(stop)
    ratio = last / first
    y = first * rec.exp(linspace(0.0 * rec.log(ratio), rec.log(ratio), num, endpoint=endpoint))
    if num > 1 and endpoint:  # replace the ends, so that both are exact
        y = rec.concat(
            y[:-1], rec.broadcast_to(rec.astype(last, dtype=y.dtype), shape=y.shape[1:])[None], axis=-y.ndim
        )
    return y if dtype is None else rec.astype(y, dtype=checked_dtype(dtype))


def _ends_dtype(start: Any, stop: Any, dtype: Any) -> np.dtype[Any]:
    """Return the dtype of the result of ``linspace`` and similar functions.

    The result is ``dtype`` unless that is None.  Otherwise it is the dtype of ``start`` and ``stop`` if they
    are float arrays, or else the default dtype.
    """
    if dtype is not None:
        return checked_dtype(dtype)
    ends = [v.dtype for v in (start, stop) if isinstance(v, (Tensor, np.ndarray)) and differentiable(v.dtype)]
    found = np.result_type(*ends) if ends else get_default_dtype()
    return np.result_type(found, 1j) if any(isinstance(v, complex) for v in (start, stop)) else found


def _between(start: Any, stop: Any, num: int, endpoint: bool, dtype: np.dtype[Any]) -> Tensor:
    parts = max(num - 1 if endpoint else num, 1)
    first, last = asarray(start), asarray(stop)
    ramp = (np.arange(num) / parts).reshape((num,) + (1,) * max(first.ndim, last.ndim))
    # (1 - ramp)·start + ramp·stop, not start + ramp·(stop - start), so that both ends are exact
    return rec.astype(first * (1 - ramp) + last * ramp, dtype=dtype)


@_creation_doc
def eye(
    n_rows: int,
    n_cols: int | None = None,
    *,
    k: int = 0,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a matrix with ones on a diagonal and zeros elsewhere.

    Parameters
    ----------
    n_rows : int
        The number of rows.
    n_cols : int, optional
        The number of columns; by default as many as rows.
    k : int, optional
        The diagonal: 0 for the main one, positive numbers above, negative ones below.

    >>> eye(2)
    tensor([[1., 0.],
            [0., 1.]], dtype=float64)
    """
    rows = whole_number("eye", "n_rows", n_rows)
    columns = rows if n_cols is None else whole_number("eye", "n_cols", n_cols)
    if rows < 0 or columns < 0:
        raise ArgumentError(f"eye: the shape must not have negative lengths, but is {(rows, columns)}.")
    offset = whole_number("eye", "k", k)
    offset = max(-rows, min(offset, columns))  # np.eye overflows for offsets far outside of the matrix
    return _made("eye", np.eye(rows, columns, k=offset, dtype=_dtype(dtype)), device, requires_grad)
