"""Scatter-add: add values to zeros at given positions.  This is the gradient of every selection by indices.

``np.add.at`` is fast only for one-dimensional arrays (NumPy 2: 1.4 ns per element, and 11 ns for rows).  So
indices are first converted to *flat positions*, which are indices into the flattened result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.namespace import Namespace, Value, raw
from adjoint.core.shapes import Shape
from adjoint.errors import IndexingError

__all__ = ["add_few", "add_flat", "along_positions", "as_index", "check_range", "from_start", "row_positions"]

_F32 = np.dtype(np.float32)
_INTP = np.dtype(np.intp)
_LAST = int(np.iinfo(_INTP).max)


def as_index(xp: Namespace, i: Value) -> Any:
    """Return an index as intp, so that products of indices and lengths do not overflow.

    uint64 values above the range of intp become the largest intp, which is out of range for every axis.
    """
    if i.dtype == _INTP:
        return i
    return xp.astype(xp.minimum(i, _LAST) if i.dtype == np.uint64 else i, dtype=_INTP)


def add_few(values: Any, key: tuple[Any, ...], shape: Shape, out: Any = None) -> Any:
    """Return zeros of ``shape`` with ``values`` added at the index ``key``, or None if there are too many.

    Above 256 values ``add_flat`` is faster.  Below, this takes 2 µs instead of 14, because no flat positions
    are computed.  None is also returned for half precision.  ``out`` is an array of zeros for the result, if
    there is one.
    """
    if values.size > 256 or values.dtype.itemsize == 2:
        return None
    if out is None:
        out = np.zeros(shape, values.dtype)
    np.add.at(out, key, values)
    return out


def add_flat(values: Any, positions: Any, shape: Shape, out: Any = None) -> Any:
    """Return zeros of ``shape`` with ``values`` added at ``positions``, indices into the flattened result.

    The positions must not be negative.  ``out`` is a row-major array of zeros with the dtype of ``values`` for
    the result, if there is one.
    """
    size = math.prod(shape)
    dtype, values = values.dtype, values.reshape(-1)
    half = dtype.itemsize == 2 and dtype.kind not in "iu"
    if out is not None:
        np.add.at(out.reshape(-1), positions, values)
        return out
    if dtype is _F32 and values.size >= 16 * size > 0:
        # for many values per position, bincount is as fast, and more accurate, because it adds in float64
        return np.bincount(positions, values, size).astype(dtype).reshape(shape)
    out = np.zeros(size, np.float32 if half else dtype)
    np.add.at(out, positions, values.astype(np.float32) if half else values)
    return (out.astype(dtype) if half else out).reshape(shape)


def from_start(index: Any, length: int) -> Any:
    """Convert indices along an axis to intp, and negative ones to indices from the start of the axis.

    ``length`` is the length of the axis.
    """
    index = as_index(raw, index)
    return np.where(index < 0, index + length, index)


def row_positions(index: Any, before: int, length: int, after: int) -> Any:
    """Return the positions of a[:, index, :] in the flattened array a of shape (before, length, after)."""
    rows = index.reshape(-1)
    if before != 1:
        rows = (np.arange(before)[:, None] * length + rows).reshape(-1)
    if after != 1:
        rows = (rows[:, None] * after + np.arange(after)).reshape(-1)
    return rows


def along_positions(index: Any, length: int, axis: int) -> Any:
    """Return the positions, in the flattened array a, of ``np.take_along_axis(a, index, axis)``.

    ``a`` is an array with the shape of ``index``, except that its length along ``axis`` is ``length``.
    """
    at = index.ndim + axis
    before = after = 1
    for n in index.shape[:at]:
        before *= n
    for n in index.shape[at + 1 :]:
        after *= n
    places = from_start(index, length).reshape(before, index.shape[axis], after) * after
    places += np.arange(after)
    places += (np.arange(before) * (length * after))[:, None, None]
    return places.reshape(-1)


def check_range(op: str, shape: Shape, axis: int, values: Any) -> None:
    """Raise if an index in ``values`` is out of range for ``axis`` of ``shape``; the error names it."""
    n = shape[axis]
    wrong = values[(values < -n) | (values >= n)]
    if wrong.size:
        has = f"has indices from {-n} to {n - 1}" if n else "is empty"
        raise IndexingError(
            f"{op}: index {int(wrong.reshape(-1)[0])} is out of range: axis {axis} of shape {shape} {has}."
        ) from None
