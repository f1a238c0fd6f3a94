"""The frequencies of Fourier terms, and shifts that put frequency zero in the middle."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from adjoint.core.convert import asarray, check_device
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis, number
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, DTypeError, InputError
from adjoint.ops.arrange import roll
from adjoint.ops.shared_docs import argument_doc
from adjoint.typing import ArrayLike, Axis, DTypeLike

__all__ = ["fftfreq", "fftshift", "ifftshift", "rfftfreq"]

_shifts_doc = argument_doc.extended("""
    Parameters
    ----------
    axes : int or tuple of int, optional
        The axes; all of them by default.

    Returns
    -------
    Tensor
        The shifted tensor.
    """)

_frequencies_doc = argument_doc.extended("""
    Parameters
    ----------
    n : int
        The length of the transform.
    d : float, optional
        The distance between neighbouring samples.
    dtype : dtype, optional
        A float dtype; by default float64.
    """)


@_frequencies_doc
def fftfreq(n: int, d: float = 1.0, *, dtype: DTypeLike | None = None, device: str | None = None) -> Tensor:
    """Return the frequencies of the terms of ``fft``, negative ones last.

    Raises
    ------
    ArgumentError
        If ``n`` is less than 1, or ``d`` is 0.

    >>> ad.fft.fftfreq(4)
    tensor([ 0.  ,  0.25, -0.5 , -0.25], dtype=float64)
    """
    return _frequencies("fftfreq", np.fft.fftfreq, n, d, dtype, device)


@_frequencies_doc
def rfftfreq(n: int, d: float = 1.0, *, dtype: DTypeLike | None = None, device: str | None = None) -> Tensor:
    """Return the frequencies of the terms of ``rfft``.

    Raises
    ------
    ArgumentError
        If ``n`` is less than 1, or ``d`` is 0.

    >>> ad.fft.rfftfreq(4)
    tensor([0.  , 0.25, 0.5 ], dtype=float64)
    """
    return _frequencies("rfftfreq", np.fft.rfftfreq, n, d, dtype, device)


def _frequencies(op: str, function: Any, n: int, d: float, dtype: Any, device: Any) -> Tensor:
    check_device(op, device)
    try:
        count = operator.index(n)
    except TypeError:
        raise InputError(f"{op}: n must be an integer, but got {n!r}.") from None
    d = number(op, "d", d)
    if count < 1 or d == 0:
        raise ArgumentError(f"{op}: n must be at least 1 and d must not be 0, but n is {n} and d is {d}.")
    found = wrap(np.asarray(function(count, d)))
    if dtype is None:
        return found
    if np.dtype(dtype).kind != "f":
        raise DTypeError(f"{op}: dtype must be a float dtype, but is {np.dtype(dtype)}.")
    return rec.astype(found, dtype=np.dtype(dtype))


@_shifts_doc
def fftshift(x: ArrayLike, axes: Axis = None) -> Tensor:
    """Move the term of frequency zero to the middle.

    >>> ad.fft.fftshift([0, 1, -2, -1])
    tensor([-2, -1,  0,  1], dtype=int64)
    """
    return _shifted("fftshift", x, axes, 1)


@_shifts_doc
def ifftshift(x: ArrayLike, axes: Axis = None) -> Tensor:
    """Return the inverse of ``fftshift``.

    >>> ad.fft.ifftshift([-2, -1, 0, 1])
    tensor([ 0,  1, -2, -1], dtype=int64)
    """
    return _shifted("ifftshift", x, axes, -1)


def _shifted(op: str, x: Any, axes: Any, direction: int) -> Tensor:
    x = asarray(x)
    several = range(x.ndim) if axes is None else axes if isinstance(axes, (tuple, list)) else (axes,)
    where = tuple(canonical_axis(op, a, x.ndim) for a in several)
    if not where:
        return x
    # shift by n // 2 to the right, or back to the left
    return roll(x, tuple(direction * (x.shape[a] // 2) for a in where), where)
