"""Rearrangements of elements: repeats, rotations, grids, products of pairs, windows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from adjoint import words
from adjoint.core.convert import array_of, asarray
from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis, canonical_shape, same_rank_axes, whole_number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.ops.half import in_float32
from adjoint.ops.shape import flip
from adjoint.typing import Array, ArrayLike, Axis, Lengths

__all__ = [
    "combinations",
    "fliplr",
    "flipud",
    "kron",
    "meshgrid",
    "repeat",
    "rot90",
    "sliding_window_view",
    "tile",
]

# The ops ---------------------------------------------------------------------------------------


def _windows(x: Array, size: int, axis: int) -> Any:
    """Return a view of all windows of ``size`` neighbours along ``axis``.

    The elements of a window are along a new last axis.
    """
    x = np.asarray(x)
    shape, step = list(x.shape), x.strides[axis]
    shape[axis] -= size - 1
    return np.lib.stride_tricks.as_strided(x, (*shape, size), (*x.strides, step), writeable=False)


def _overlap_add(x: Any, axis: int, length: int) -> Any:
    """Return the sum of overlapping windows, each added at its position: the adjoint of ``_windows``.

    The elements of a window are along the last axis of ``x``.  The windows are neighbours along ``axis`` of
    the result, which has length ``length`` there.
    """
    count, size = x.shape[axis - 1], x.shape[-1]
    shape = list(x.shape[:-1])
    shape[axis] = length
    out: Any = np.zeros(shape, x.dtype)
    along = (slice(None),) * (-axis - 1)
    if size <= count:  # loop over the shorter of the two axes
        for i in range(size):
            out[(..., slice(i, i + count), *along)] += x[..., i]
    else:
        for i in range(count):
            out[(..., slice(i, i + size), *along)] += np.moveaxis(x[(..., i, *along, slice(None))], -1, axis)
    return out


define("windows", _windows,
       lambda xp, g, y, x, size, axis: xp.overlap_add(g, axis=axis, length=x.shape[axis]),
       kind="linear", params=("size", "axis"), batch="leading", reference="numpy", doc="All windows of neighbours along an axis; the elements of a window are along a new last axis.")  # fmt: skip
define("overlap_add", in_float32(_overlap_add),
       lambda xp, g, y, x, axis, length: xp.windows(g, size=x.shape[-1], axis=axis),
       kind="linear", params=("axis", "length"), batch="leading", reference="formula", doc="The sum of overlapping windows, each added at its position.")  # fmt: skip


# Repeats ---------------------------------------------------------------------------------------


def repeat(x: ArrayLike, repeats: ArrayLike, axis: int | None = None) -> Tensor:
    """Repeat each element.

    Parameters
    ----------
    x : array_like
        The argument.
    repeats : int or array_like of int
        How many times: one number for all, or one for each element along ``axis``.
    axis : int, optional
        The axis; by default the flattened tensor is used.

    Returns
    -------
    Tensor
        The repeated elements.

    Raises
    ------
    ShapeError
        If the number of ``repeats`` does not match the axis.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.repeat(ad.tensor([1.0, 2.0]), [1, 3])
    tensor([1., 2., 2., 2.], dtype=float64)
    """
    x = asarray(x)
    if axis is None:
        x, axis = rec.reshape(x, shape=(x.size,)), 0
    where = canonical_axis("repeat", axis, x.ndim)
    n = x.shape[where]
    times = array_of(repeats)
    if times.dtype.kind not in "iu" and times.size:
        raise InputError(f"repeat: repeats must be integers, but got {times.dtype}.")
    if times.ndim > 1 or (times.ndim and times.size not in (1, n)):
        raise ShapeError(
            f"repeat: repeats must be one number or {n} numbers, one for each element along axis {axis}, "
            f"but has shape {times.shape}."
        )
    if times.size and times.min() < 0:
        raise ArgumentError(f"repeat: repeats must not be negative, but got {int(times.min())}.")
    if times.size == 1:  # broadcast and reshape: one copy, and backward is a sum over the new axis
        k, at = int(times.reshape(())), x.ndim + where
        wide = rec.reshape(x, shape=(*x.shape[: at + 1], 1, *x.shape[at + 1 :]))
        wide = rec.broadcast_to(wide, shape=(*x.shape[: at + 1], k, *x.shape[at + 1 :]))
        return rec.reshape(wide, shape=(*x.shape[:at], n * k, *x.shape[at + 1 :]))
    return rec.take(x, asarray(np.repeat(np.arange(n), times.astype(np.intp))), axis=where)


def tile(x: ArrayLike, reps: Lengths) -> Tensor:
    """Repeat a whole tensor along each axis.

    Parameters
    ----------
    x : array_like
        The argument.
    reps : int or tuple of int
        The number of repetitions for each axis; if there are fewer numbers than axes, for the last axes.

    Returns
    -------
    Tensor
        The tiled tensor.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.tile(ad.tensor([1.0, 2.0]), 2)
    tensor([1., 2., 1., 2.], dtype=float64)
    """
    x = asarray(x)
    times = canonical_shape("tile", reps)
    if any(k < 0 for k in times):
        raise ArgumentError(f"tile: reps must not be negative, but got {reps!r}.")
    ndim = max(x.ndim, len(times))
    lengths, times = same_rank_axes(x.shape, ndim), same_rank_axes(times, ndim)
    split = tuple(m for n in lengths for m in (1, n))
    wide = tuple(m for n, k in zip(lengths, times, strict=True) for m in (k, n))
    joined = tuple(n * k for n, k in zip(lengths, times, strict=True))
    return rec.reshape(rec.broadcast_to(rec.reshape(x, shape=split), shape=wide), shape=joined)


# Rotations, grids, products --------------------------------------------------------------------


def flipud(x: ArrayLike) -> Tensor:
    """Reverse the order along the first axis.

    Parameters
    ----------
    x : array_like
        The argument.

    Returns
    -------
    Tensor
        The reversed tensor.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.flipud(ad.tensor([[1], [2]]))
    tensor([[2],
            [1]], dtype=int64)
    """
    return flip(x, 0)


def fliplr(x: ArrayLike) -> Tensor:
    """Reverse the order along the second axis.

    Parameters
    ----------
    x : array_like
        The argument.

    Returns
    -------
    Tensor
        The reversed tensor.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.fliplr(ad.tensor([[1, 2]]))
    tensor([[2, 1]], dtype=int64)
    """
    return flip(x, 1)


def rot90(x: ArrayLike, k: int = 1, axes: Axis = (0, 1)) -> Tensor:
    """Rotate by multiples of 90 degrees in the plane of two axes.

    Parameters
    ----------
    x : array_like
        The argument.
    k : int, optional
        The number of quarter turns, from the first axis towards the second.
    axes : tuple of int, optional
        The two axes of the plane.

    Returns
    -------
    Tensor
        The rotated tensor.

    Raises
    ------
    ShapeError
        If ``axes`` is not two different axes.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.rot90(ad.tensor([[1, 2], [3, 4]]))
    tensor([[2, 4],
            [1, 3]], dtype=int64)
    """
    x = asarray(x)
    if not isinstance(axes, (tuple, list)) or len(axes) != 2:
        raise ShapeError(f"rot90: axes must be a pair of axes, such as (0, 1), but is {axes!r}.")
    a, b = (canonical_axis("rot90", i, x.ndim) for i in axes)
    if a == b:
        raise ShapeError(f"rot90: axes must be two different axes, but {tuple(axes)} names one axis twice.")
    turns = whole_number("rot90", "k", k) % 4
    if turns == 0:
        return x
    if turns == 2:
        return rec.flip(x, axis=(a, b))
    order = list(range(-x.ndim, 0))
    order[a], order[b] = b, a
    if turns == 1:
        return rec.permute_dims(rec.flip(x, axis=(b,)), axes=tuple(order))
    return rec.flip(rec.permute_dims(x, axes=tuple(order)), axis=(b,))


def meshgrid(*xs: ArrayLike, indexing: str = "xy") -> list[Tensor]:
    """Return coordinate tensors on a grid, one for each vector.

    Parameters
    ----------
    *xs : array_like
        The coordinates along each axis.
    indexing : {"xy", "ij"}, optional
        With "ij" the first vector runs along axis 0, with "xy" along axis 1.

    Returns
    -------
    list of Tensor
        The coordinates of each point; all have the shape of the grid.

    Raises
    ------
    ShapeError
        If an argument has more than one axis.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.meshgrid([1, 2], [3, 4, 5], indexing="ij")[0]
    tensor([[1, 1, 1],
            [2, 2, 2]], dtype=int64)
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid: indexing must be 'xy' or 'ij', not {indexing!r}.")
    vectors = [asarray(x) for x in xs]
    for x in vectors:
        if x.ndim > 1:
            raise ShapeError(
                f"meshgrid: each argument must be a vector or a number, but one has shape {x.shape}."
            )
    places = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        places[:2] = 1, 0
    shape = [1] * len(vectors)
    for x, place in zip(vectors, places, strict=True):
        shape[place] = x.size
    grid = []
    for x, place in zip(vectors, places, strict=True):
        alone = tuple(x.size if i == place else 1 for i in range(len(vectors)))
        grid.append(rec.broadcast_to(rec.reshape(x, shape=alone), shape=tuple(shape)))
    return grid


def kron(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Return the Kronecker product: blocks of ``y``, each multiplied by an element of ``x``.

    Parameters
    ----------
    x : array_like
        The first factor.
    y : array_like
        The second factor.

    Returns
    -------
    Tensor
        The product.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.kron([1.0, 10.0], [1.0, 2.0])
    tensor([ 1.,  2., 10., 20.], dtype=float64)
    """
    x, y = asarray(x), asarray(y)
    ndim = max(x.ndim, y.ndim)
    a, b = same_rank_axes(x.shape, ndim), same_rank_axes(y.shape, ndim)
    blocks = rec.multiply(
        rec.reshape(x, shape=tuple(m for n in a for m in (n, 1))),
        rec.reshape(y, shape=tuple(m for n in b for m in (1, n))),
    )
    return rec.reshape(blocks, shape=tuple(m * n for m, n in zip(a, b, strict=True)))


def combinations(x: ArrayLike, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Return all combinations of ``r`` elements of a vector, in the order of ``itertools``.

    Parameters
    ----------
    x : array_like
        The vector.
    r : int, optional
        How many elements a combination has.
    with_replacement : bool, optional
        Whether an element may be in a combination repeatedly.

    Returns
    -------
    Tensor
        One combination per row.

    Raises
    ------
    ShapeError
        If ``x`` is not a vector.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.combinations(ad.tensor([1.0, 2.0, 3.0]))
    tensor([[1., 2.],
            [1., 3.],
            [2., 3.]], dtype=float64)
    """
    x, size = asarray(x), whole_number("combinations", "r", r)
    if x.ndim != 1:
        raise ShapeError(f"combinations: x must be a vector, but has shape {x.shape}.")
    if size < 0:
        raise ArgumentError(f"combinations: r must not be negative, but is {r}.")
    chosen = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(chosen(range(x.size), size))
    return rec.take(x, np.array(rows, np.intp).reshape(len(rows), size), axis=-1)


# Windows ---------------------------------------------------------------------------------------


def sliding_window_view(x: ArrayLike, window_shape: Lengths, axis: Axis = None) -> Tensor:
    """Return all windows of neighbours along axes, without a copy.

    Parameters
    ----------
    x : array_like
        The argument.
    window_shape : int or tuple of int
        The length of the window along each axis.
    axis : int or tuple of int, optional
        The axes along which the window slides; all of them by default.

    Returns
    -------
    Tensor
        A view in which each window is in new axes at the end.

    Raises
    ------
    ShapeError
        If the lengths do not match the axes, or a window is longer than its axis.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.sliding_window_view(ad.arange(4.0), 2)
    tensor([[0., 1.],
            [1., 2.],
            [2., 3.]], dtype=float64)
    """
    x = asarray(x)
    sizes = canonical_shape("sliding_window_view", window_shape)
    given = range(x.ndim) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = [canonical_axis("sliding_window_view", a, x.ndim) for a in given]
    if len(sizes) != len(axes):
        raise ShapeError(
            f"sliding_window_view: window_shape {sizes} has {len(sizes)} lengths, but the windows slide "
            f"along {words.count(len(axes), 'axis', 'axes')} of shape {x.shape}.\n"
            "  Pass one length per axis, or choose the axes with axis=."
        )
    for i, (size, a) in enumerate(zip(sizes, axes, strict=True)):
        n = x.shape[a - i]  # a is negative, and each of the i windows before added an axis at the end
        if not 0 <= size <= n:
            raise ShapeError(
                f"sliding_window_view: the window length along axis {a} must be from 0 to {n}, the axis's "
                f"length, but is {size}."
            )
        x = rec.windows(x, size=size, axis=a - i)
    return x
