"""Rearrangements of elements: flips, shifts, borders, repeats, rotations, windows."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint import words
from adjoint.core.batching import Batched, held
from adjoint.core.convert import array_of, asarray
from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.native import NotNative, Primitives, View
from adjoint.core.op import Op
from adjoint.core.shapes import (
    Shape,
    canonical_axes,
    canonical_axis,
    canonical_shape,
    from_whole_float,
    listed,
    same_rank_axes,
    whole_number,
    without_gradient,
)
from adjoint.core.tensor import Tensor
from adjoint.core.values import varies
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.ops.half import in_float32
from adjoint.ops.shape import ravel, reshape
from adjoint.ops.shared_docs import argument_doc
from adjoint.ops.windows import native_spread
from adjoint.typing import Array, ArrayLike, Axis, Lengths

__all__ = ["flip", "fliplr", "flipud", "pad", "repeat", "roll", "rot90", "sliding_window_view", "tile"]

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


def _crop(widths: Sequence[tuple[int, int]], shape: Shape) -> tuple[slice, ...]:
    return tuple(slice(a, a + n) for (a, _), n in zip(widths, shape, strict=True))


def _pad_batch(op: Op, size: int, /, x: Batched, widths: tuple[Any, ...], **params: Any) -> Any:
    return held.pad(x.value, widths=((0, 0), *widths), **params)


def _native_flip(xp: Primitives, x: View, axis: Axis) -> View:
    wanted = xp.axes(x, axis)
    return xp.graph.slice(x, [slice(None, None, -1 if k in wanted else 1) for k in range(x.ndim)])


def _native_roll(xp: Primitives, x: View, shift: Any, axis: Any) -> View:
    shifts, axes = (shift, axis) if isinstance(axis, tuple) else ((shift,), (axis,))
    for s, a in zip(shifts, axes, strict=True):
        n = x.shape[a]
        if n and s % n:
            lead, k = (slice(None),) * (a % x.ndim), n - s % n
            x = xp.concat(x[(*lead, slice(k, None))], x[(*lead, slice(None, k))], axis=a)
    return x


def _native_pad(xp: Primitives, x: View, widths: Any, value: Any) -> View:
    if not isinstance(value, (int, float)):
        raise NotNative("the padding value is not a Python number")
    shape = tuple([lo + n + hi for n, (lo, hi) in zip(x.shape, widths, strict=True)])
    fill = np.asarray(value).astype(x.dtype).item()
    return xp.placed(shape, fill, x.dtype, [(x, _crop(widths, x.shape))])


define("flip", lambda x, axis: np.flip(x, axis), lambda xp, g, y, x, axis: xp.flip(g, axis=axis),
       kind="linear", params=("axis",), batch="leading", method=True, lower=_native_flip, memory="view", sparsity="move", doc="x with the order of elements along axes reversed.")  # fmt: skip
define("roll", lambda x, shift, axis: np.roll(x, shift, axis),
       lambda xp, g, y, x, shift, axis: xp.roll(g, shift=tuple(-s for s in shift), axis=axis),
       kind="linear", params=("shift", "axis"), batch="leading", method=True, lower=_native_roll, sparsity="move", doc="Elements shifted along axes; those shifted beyond the end return at the start.")  # fmt: skip
define("pad", lambda x, widths, value: np.pad(x, widths, constant_values=value),
       lambda xp, g, y, x, widths, value: g[_crop(widths, x.shape)],
       kind="general", params=("widths", "value"), selects=True, jvp=lambda xp, t, y, x, widths, value: xp.pad(t, widths=widths, value=0),
       batch=_pad_batch, reference="numpy", lower=_native_pad, sparsity="move", doc="x with a border of constant elements added.")  # fmt: skip


def _native_windows(xp: Primitives, x: View, size: int, axis: int) -> View:
    shape, step = list(x.shape), x.strides[axis]
    shape[axis] -= size - 1
    strides = tuple([0 if n == 1 else s for n, s in zip(shape, x.strides, strict=True)])
    return x.strided((*shape, size), (*strides, step if size > 1 else 0))


def _native_overlap_add(xp: Primitives, x: View, axis: int, length: int) -> View:
    last = xp.moveaxis(x, source=axis - 1, destination=-2)
    found = native_spread(xp, last, (length,), x.shape[-1:], (1,), ((0, 0),), (1,))
    return xp.moveaxis(found, source=-1, destination=axis)


define("windows", _windows,
       lambda xp, g, y, x, size, axis: xp.overlap_add(g, axis=axis, length=x.shape[axis]),
       kind="linear", params=("size", "axis"), batch="leading", reference="numpy", lower=_native_windows, memory="view", sparsity="move", doc="All windows of neighbours along an axis; the elements of a window are along a new last axis.")  # fmt: skip
define("overlap_add", in_float32(_overlap_add),
       lambda xp, g, y, x, axis, length: xp.windows(g, size=x.shape[-1], axis=axis),
       kind="linear", params=("axis", "length"), batch="leading", reference="formula", lower=_native_overlap_add, sparsity="scatter", doc="The sum of overlapping windows, each added at its position.")  # fmt: skip


# Shifts and borders ----------------------------------------------------------------------------


@argument_doc
def flip(x: ArrayLike, axis: Axis = None) -> Tensor:
    """Reverse the order along axes.

    Parameters
    ----------
    axis : int or tuple of int, optional
        The axes; all of them by default.

    >>> ad.flip(ad.tensor([1, 2, 3]))
    tensor([3, 2, 1], dtype=int64)
    """
    x = asarray(x)
    return rec.flip(x, axis=canonical_axes("flip", axis, x.ndim))


@argument_doc
def roll(x: ArrayLike, shift: Any, axis: Axis = None) -> Tensor:
    """Shift elements along axes; elements shifted beyond the end return at the start.

    Parameters
    ----------
    shift : int or tuple of int
        The number of positions to shift by, for each axis.
    axis : int or tuple of int, optional
        The axes; by default the flattened tensor is shifted.

    Raises
    ------
    ShapeError
        If the numbers of shifts and axes differ.

    >>> ad.roll(ad.tensor([1, 2, 3]), 1)
    tensor([3, 1, 2], dtype=int64)
    """
    x = asarray(x)
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), x.shape)
    axis, shift = listed(axis), listed(shift)
    axes = tuple(
        canonical_axis("roll", a, x.ndim) for a in (axis if isinstance(axis, (tuple, list)) else (axis,))
    )
    given = shift if isinstance(shift, (tuple, list)) else (shift,)
    shifts = tuple(whole_number("roll", "shift", from_whole_float(s)) for s in given)
    if len(shifts) == 1:
        shifts *= len(axes)
    elif len(axes) == 1:
        axes *= len(shifts)
    if len(shifts) != len(axes):
        raise ShapeError(
            f"roll: there must be one shift per axis, but there are {words.count(len(shifts), 'shift')} "
            f"and {len(axes)} "
            "axes."
        )
    return rec.roll(x, shift=shifts, axis=axes)


_PAD_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def _padded_with(x: Tensor, pairs: Any, value: Tensor) -> Tensor:
    inside = np.pad(np.ones(x.shape, bool), pairs)
    if value.ndim:
        raise ShapeError(
            f"pad: if constant_values is a tensor, it must be 0-d, but it has shape {value.shape}."
        )
    return rec.where(inside, rec.pad(x, widths=pairs, value=0), rec.astype(value, dtype=x.dtype))


@argument_doc
def pad(x: ArrayLike, pad_width: Any, mode: str = "constant", constant_values: float = 0) -> Tensor:
    """Add a border around a tensor.

    Parameters
    ----------
    pad_width : int or sequence
        The widths: one for all, ``(before, after)``, or one such pair for each axis.
    mode : str, optional
        "constant", or NumPy's "edge", "reflect", "symmetric" or "wrap", which repeat elements.
    constant_values : float or Tensor, optional
        The value of a constant border; gradients flow to a 0-d tensor.

    Raises
    ------
    ShapeError
        If ``pad_width`` does not match the axes.
    ArgumentError
        If ``mode`` is unknown, or a width negative.

    >>> ad.pad(ad.tensor([1, 2]), 1)
    tensor([0, 1, 2, 0], dtype=int64)
    """
    x = asarray(x)
    try:
        widths = np.broadcast_to(np.asarray(pad_width, dtype=int), (x.ndim, 2)).tolist()
    except (ValueError, TypeError):
        raise ShapeError(
            "pad: pad_width must be a number, a pair (before, after), or one pair for each axis of shape "
            f"{x.shape}, but is {pad_width!r}."
        ) from None
    pairs = tuple((a, b) for a, b in widths)
    if builtins.any(n < 0 for pair in pairs for n in pair):
        raise ArgumentError(f"pad: pad_width must not be negative, but is {pad_width!r}.")
    if mode == "constant":
        if isinstance(constant_values, Tensor) and varies(constant_values):
            return _padded_with(x, pairs, constant_values)
        # copy the value, because the caller may change it before the op is called again
        fill = array_of(without_gradient("pad", "constant_values", constant_values)).tolist()
        return rec.pad(x, widths=pairs, value=fill)
    if mode not in _PAD_MODES:
        raise ArgumentError(f"pad: mode must be one of {', '.join(_PAD_MODES)}, not {mode!r}.")
    how: Any = mode
    for axis, (pair, n) in enumerate(zip(pairs, x.shape, strict=True)):
        if pair != (0, 0):
            x = rec.index(x, key=(slice(None),) * axis + (np.pad(np.arange(n), pair, how),))
    return x


# Repeats ---------------------------------------------------------------------------------------


@argument_doc
def repeat(x: ArrayLike, repeats: ArrayLike, axis: int | None = None) -> Tensor:
    """Repeat each element.

    Parameters
    ----------
    repeats : int or array_like of int
        How many times: one number for all, or one for each element along ``axis``.
    axis : int, optional
        The axis; by default the flattened tensor is used.

    Raises
    ------
    ShapeError
        If the number of ``repeats`` does not match the axis.

    >>> ad.repeat(ad.tensor([1.0, 2.0]), [1, 3])
    tensor([1., 2., 2., 2.], dtype=float64)
    """
    x = asarray(x)
    if axis is None:
        x, axis = rec.reshape(x, shape=(x.size,)), 0
    where = canonical_axis("repeat", axis, x.ndim)
    n = x.shape[where]
    times = array_of(from_whole_float(repeats))
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


@argument_doc
def tile(x: ArrayLike, reps: Lengths) -> Tensor:
    """Repeat a whole tensor along each axis.

    Parameters
    ----------
    reps : int or tuple of int
        The number of repetitions for each axis; if there are fewer numbers than axes, for the last axes.

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


# Rotations -------------------------------------------------------------------------------------


@argument_doc
def flipud(x: ArrayLike) -> Tensor:
    """Reverse the order along the first axis.

    >>> ad.flipud(ad.tensor([[1], [2]]))
    tensor([[2],
            [1]], dtype=int64)
    """
    return flip(x, 0)


@argument_doc
def fliplr(x: ArrayLike) -> Tensor:
    """Reverse the order along the second axis.

    >>> ad.fliplr(ad.tensor([[1, 2]]))
    tensor([[2, 1]], dtype=int64)
    """
    return flip(x, 1)


@argument_doc
def rot90(x: ArrayLike, k: int = 1, axes: Axis = (0, 1)) -> Tensor:
    """Rotate by multiples of 90 degrees in the plane of two axes.

    Parameters
    ----------
    k : int, optional
        The number of quarter turns, from the first axis towards the second.
    axes : tuple of int, optional
        The two axes of the plane.

    Raises
    ------
    ShapeError
        If ``axes`` is not two different axes.

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
    turns = whole_number("rot90", "k", from_whole_float(k)) % 4
    if turns == 0:
        return x
    if turns == 2:
        return rec.flip(x, axis=(a, b))
    order = list(range(-x.ndim, 0))
    order[a], order[b] = b, a
    if turns == 1:
        return rec.permute_dims(rec.flip(x, axis=(b,)), axes=tuple(order))
    return rec.flip(rec.permute_dims(x, axes=tuple(order)), axis=(b,))


# Windows ---------------------------------------------------------------------------------------


@argument_doc
def sliding_window_view(x: ArrayLike, window_shape: Lengths, axis: Axis = None) -> Tensor:
    """Return all windows of neighbours along axes, without a copy.

    Parameters
    ----------
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
