"""Max pooling that returns the positions of the maxima, adaptive max pooling, and max unpooling.

As in PyTorch, a position is an index into the flattened space axes of one image and channel.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import Shape
from adjoint.core.tensor import Tensor, wrap
from adjoint.core.values import decide
from adjoint.errors import DTypeError, IndexingError, ShapeError
from adjoint.ops.pool import adaptive_sizes, lowest, maxima_doc, pool_geometry, to_size_doc, windows_doc
from adjoint.ops.scatter import as_index
from adjoint.ops.shared_docs import images_doc, signals_doc, volumes_doc
from adjoint.ops.windows import counts, images, numbers
from adjoint.typing import Array, ArrayLike, Lengths

__all__ = [
    "adaptive_max_pool1d", "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d",
    "adaptive_max_pool2d_with_indices", "adaptive_max_pool3d", "adaptive_max_pool3d_with_indices",
    "max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices", "max_unpool1d",
    "max_unpool2d", "max_unpool3d",
]  # fmt: skip


class MaxPool(NamedTuple):
    """Result of pooling with indices: the maxima and their positions."""

    values: Tensor
    indices: Tensor


def _table(windows: list[list[list[int]]], size: Shape) -> Any:
    """Return a matrix with one row for each window: the positions of its elements in the flattened image.

    Rows of shorter windows are filled with -1.  ``windows[axis][i]`` is the list of the indices along
    ``axis`` that window i covers; ``size`` is the size of the image.
    """
    position, inside = np.zeros((1, 1), np.intp), np.ones((1, 1), bool)
    for along, n in zip(windows, size, strict=True):
        longest = max(map(len, along))
        places = np.array([[*place, *[-1] * (longest - len(place))] for place in along])
        shape = (len(position) * len(places), position.shape[1] * longest)
        joined = position[:, None, :, None] * n + places[:, None, :]
        inside = (inside[:, None, :, None] & (places >= 0)[:, None, :]).reshape(shape)
        position = joined.reshape(shape)
    return np.where(inside, position, -1)


def _maxima(op: str, x: Tensor, nd: int, windows: list[list[list[int]]]) -> MaxPool:
    """Return the maximum of each window, as a differentiable tensor, and the position of the first maximum.

    The windows are over the last ``nd`` axes of ``x``; ``windows`` is the argument of ``_table``.
    """
    if x.dtype.kind in "cb":
        raise DTypeError(
            f"{op}: x must be real numbers, but has dtype {x.dtype}, for which a maximum is not defined."
        )
    lead, size = x.shape[:-nd], x.shape[-nd:]
    table = _table(windows, size)
    shape = (*lead, *map(len, windows))
    seen = rec.take(rec.reshape(x, shape=(*lead, math.prod(size))), np.maximum(table, 0), axis=-1)
    if (table < 0).any():
        seen = rec.where(wrap(table >= 0), seen, lowest(x.dtype))
    values = rec.max(seen, axis=(-1,), keepdims=False)
    first = rec.argmax(seen, axis=-1, keepdims=False)
    start = np.arange(len(table)) * table.shape[1]
    known = np.where(table < 0, table.max(axis=1, keepdims=True), table)  # argmax may select a -1
    indices = rec.take(wrap(known.reshape(-1)), first + wrap(start), axis=-1)
    return MaxPool(rec.reshape(values, shape=shape), rec.reshape(indices, shape=shape))


def _with_indices(
    op: str, nd: int, x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> MaxPool:
    x, alone = images(op, x, nd)
    at = pool_geometry(op, nd, x, kernel_size, stride, padding, dilation, ceil_mode)
    count = counts(x.shape[-nd:], **at)
    windows = []
    for n, k, s, (low, _), d, m in zip(
        x.shape[-nd:], at["kernel"], at["stride"], at["padding"], at["dilation"], count, strict=True
    ):
        starts = [i * s - low for i in range(m)]
        windows.append([[j for j in range(a, a + d * k, d) if 0 <= j < n] for a in starts])
    return _without_batch(_maxima(op, x, nd, windows), alone)


def _adaptive(op: str, nd: int, x: Any, output_size: Any) -> MaxPool:
    x, alone = images(op, x, nd)
    sizes = adaptive_sizes(op, nd, x, output_size)
    windows = [
        [list(range(i * n // m, -(-(i + 1) * n // m))) for i in range(m)]
        for n, m in zip(x.shape[-nd:], sizes, strict=True)
    ]
    return _without_batch(_maxima(op, x, nd, windows), alone)


def _without_batch(found: MaxPool, alone: bool) -> MaxPool:
    return MaxPool(*(rec.reshape(y, shape=y.shape[1:]) for y in found)) if alone else found


def _unpool(
    op: str, nd: int, x: Any, indices: Any, kernel_size: Any, stride: Any, padding: Any, output_size: Any
) -> Tensor:
    x, i = asarray(x), asarray(indices)
    if x.shape != i.shape:
        raise ShapeError(
            f"{op}: x and indices must have the same shape, but have shapes {x.shape} and {i.shape}."
        )
    if i.dtype.kind not in "iu":
        raise IndexingError(f"{op}: indices must be integers, but have dtype {i.dtype}.")
    x, alone = images(op, x, nd)
    kernel = numbers(op, "kernel_size", kernel_size, nd, 1)
    step = kernel if stride is None else numbers(op, "stride", stride, nd, 1)
    widths = numbers(op, "padding", padding, nd, 0)
    spans = zip(x.shape[-nd:], kernel, step, widths, strict=True)
    size = tuple((n - 1) * s - 2 * p + k for n, k, s, p in spans)
    if output_size is not None:
        size = numbers(op, "output_size", tuple(output_size)[-nd:], nd, 1)
    lead, cells, length = x.shape[:-nd], math.prod(x.shape[-nd:]), math.prod(size)
    rows = rec.reshape(as_index(rec, i), shape=(*lead, cells))
    decide(lambda a: _check_places(op, a, length), rows)
    blank = wrap(np.zeros((*lead, length), x.dtype))
    y = rec.put_along_axis(blank, rows, rec.reshape(x, shape=(*lead, cells)), axis=-1)
    return rec.reshape(y, shape=(*lead[alone:], *size))


def _check_places(op: str, index: Array, length: int) -> None:
    bad = index[(index < 0) | (index >= length)]
    if bad.size:
        raise IndexingError(
            f"{op}: index {bad[0]} is out of range for {length} elements.\n"
            "  Pass output_size=, the size of the input of the pooling."
        )


_maxima_to_size_doc = to_size_doc.extended("""
    Returns
    -------
    Tensor
        The maxima.
    """)
_POSITIONS = """
    Returns
    -------
    MaxPool
        A named tuple with ``values`` and ``indices``; for equal maxima, the index of the first one.
    """
_maxima_and_positions_doc = maxima_doc.extended(_POSITIONS)
_positions_to_size_doc = to_size_doc.extended(_POSITIONS)
_unpooling_doc = windows_doc.extended("""
    Parameters
    ----------
    padding : int or tuple of int, optional
        The padding of the pooling.
    output_size : tuple of int, optional
        The size of the result; by default the smallest size for which pooling gives the size of ``x``.

    Returns
    -------
    Tensor
        {summary}

    Raises
    ------
    IndexingError
        If a position is outside of the result.
    """)


@signals_doc
@_maxima_and_positions_doc
def max_pool1d_with_indices(
    x: ArrayLike,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths = 0,
    dilation: Lengths = 1,
    ceil_mode: bool = False,
) -> MaxPool:
    """Return the maximum of each window of signals and its position, for ``max_unpool1d``.

    >>> ad.nn.functional.max_pool1d_with_indices(ad.arange(4.0).reshape(1, 1, 4), 2).indices
    tensor([[[1, 3]]], dtype=int64)
    """
    return _with_indices("max_pool1d_with_indices", 1, x, kernel_size, stride, padding, dilation, ceil_mode)


@signals_doc
@_positions_to_size_doc
def adaptive_max_pool1d_with_indices(x: ArrayLike, output_size: Lengths) -> MaxPool:
    """Return the maxima of windows of signals, for an output of a given size, and their positions.

    >>> ad.nn.functional.adaptive_max_pool1d_with_indices(ad.arange(4.0).reshape(1, 1, 4), 1).indices.item()
    3
    """
    return _adaptive("adaptive_max_pool1d_with_indices", 1, x, output_size)


@signals_doc
@_maxima_to_size_doc
def adaptive_max_pool1d(x: ArrayLike, output_size: Lengths) -> Tensor:
    """Return the maxima of windows of signals of nearly equal size, for an output of a given size.

    Equal maxima share the gradient equally, as in ``ad.max``.

    >>> ad.nn.functional.adaptive_max_pool1d(ad.arange(4.0).reshape(1, 1, 4), 2).shape
    (1, 1, 2)
    """
    return _adaptive("adaptive_max_pool1d", 1, x, output_size).values


@_unpooling_doc
def max_unpool1d(
    x: ArrayLike,
    indices: ArrayLike,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths = 0,
    output_size: Lengths | None = None,
) -> Tensor:
    """Return signals with the maxima at their original positions and zeros elsewhere.

    Parameters
    ----------
    x : array_like
        The maxima, ``(N, C, L)`` or ``(C, L)``.
    indices : array_like of int
        The positions of the maxima, from ``max_pool1d_with_indices``.

    >>> pooled = ad.nn.functional.max_pool1d_with_indices(ad.arange(4.0).reshape(1, 1, 4), 2)
    >>> ad.nn.functional.max_unpool1d(*pooled, 2).sum().item() == pooled.values.sum().item()
    True
    """
    return _unpool("max_unpool1d", 1, x, indices, kernel_size, stride, padding, output_size)


@images_doc
@_maxima_and_positions_doc
def max_pool2d_with_indices(
    x: ArrayLike,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths = 0,
    dilation: Lengths = 1,
    ceil_mode: bool = False,
) -> MaxPool:
    """Return the maximum of each window of images and its position, for ``max_unpool2d``.

    >>> ad.nn.functional.max_pool2d_with_indices(ad.arange(16.0).reshape(1, 1, 4, 4), 2).indices
    tensor([[[[ 5,  7],
              [13, 15]]]], dtype=int64)
    """
    return _with_indices("max_pool2d_with_indices", 2, x, kernel_size, stride, padding, dilation, ceil_mode)


@images_doc
@_positions_to_size_doc
def adaptive_max_pool2d_with_indices(x: ArrayLike, output_size: Lengths) -> MaxPool:
    """Return the maxima of windows of images, for an output of a given size, and their positions.

    >>> ad.nn.functional.adaptive_max_pool2d_with_indices(ad.arange(16.0).reshape(1, 1, 4, 4), 1).indices.item()
    15
    """
    return _adaptive("adaptive_max_pool2d_with_indices", 2, x, output_size)


@images_doc
@_maxima_to_size_doc
def adaptive_max_pool2d(x: ArrayLike, output_size: Lengths) -> Tensor:
    """Return the maxima of windows of images of nearly equal size, for an output of a given size.

    Equal maxima share the gradient equally, as in ``ad.max``.

    >>> ad.nn.functional.adaptive_max_pool2d(ad.arange(16.0).reshape(1, 1, 4, 4), 2).shape
    (1, 1, 2, 2)
    """
    return _adaptive("adaptive_max_pool2d", 2, x, output_size).values


@_unpooling_doc
def max_unpool2d(
    x: ArrayLike,
    indices: ArrayLike,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths = 0,
    output_size: Lengths | None = None,
) -> Tensor:
    """Return images with the maxima at their original positions and zeros elsewhere.

    Parameters
    ----------
    x : array_like
        The maxima, ``(N, C, H, W)`` or ``(C, H, W)``.
    indices : array_like of int
        The positions of the maxima, from ``max_pool2d_with_indices``.

    >>> pooled = ad.nn.functional.max_pool2d_with_indices(ad.arange(16.0).reshape(1, 1, 4, 4), 2)
    >>> ad.nn.functional.max_unpool2d(*pooled, 2).sum().item() == pooled.values.sum().item()
    True
    """
    return _unpool("max_unpool2d", 2, x, indices, kernel_size, stride, padding, output_size)


@volumes_doc
@_maxima_and_positions_doc
def max_pool3d_with_indices(
    x: ArrayLike,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths = 0,
    dilation: Lengths = 1,
    ceil_mode: bool = False,
) -> MaxPool:
    """Return the maximum of each window of volumes and its position, for ``max_unpool3d``.

    >>> ad.nn.functional.max_pool3d_with_indices(ad.arange(64.0).reshape(1, 1, 4, 4, 4), 2).indices.reshape(8)
    tensor([21, 23, 29, 31, 53, 55, 61, 63], dtype=int64)
    """
    return _with_indices("max_pool3d_with_indices", 3, x, kernel_size, stride, padding, dilation, ceil_mode)


@volumes_doc
@_positions_to_size_doc
def adaptive_max_pool3d_with_indices(x: ArrayLike, output_size: Lengths) -> MaxPool:
    """Return the maxima of windows of volumes, for an output of a given size, and their positions.

    >>> x = ad.arange(64.0).reshape(1, 1, 4, 4, 4)
    >>> ad.nn.functional.adaptive_max_pool3d_with_indices(x, 1).indices.item()
    63
    """
    return _adaptive("adaptive_max_pool3d_with_indices", 3, x, output_size)


@volumes_doc
@_maxima_to_size_doc
def adaptive_max_pool3d(x: ArrayLike, output_size: Lengths) -> Tensor:
    """Return the maxima of windows of volumes of nearly equal size, for an output of a given size.

    Equal maxima share the gradient equally, as in ``ad.max``.

    >>> ad.nn.functional.adaptive_max_pool3d(ad.arange(64.0).reshape(1, 1, 4, 4, 4), 2).shape
    (1, 1, 2, 2, 2)
    """
    return _adaptive("adaptive_max_pool3d", 3, x, output_size).values


@_unpooling_doc
def max_unpool3d(
    x: ArrayLike,
    indices: ArrayLike,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths = 0,
    output_size: Lengths | None = None,
) -> Tensor:
    """Return volumes with the maxima at their original positions and zeros elsewhere.

    Parameters
    ----------
    x : array_like
        The maxima, ``(N, C, D, H, W)`` or ``(C, D, H, W)``.
    indices : array_like of int
        The positions of the maxima, from ``max_pool3d_with_indices``.

    >>> pooled = ad.nn.functional.max_pool3d_with_indices(ad.arange(64.0).reshape(1, 1, 4, 4, 4), 2)
    >>> ad.nn.functional.max_unpool3d(*pooled, 2).sum().item() == pooled.values.sum().item()
    True
    """
    return _unpool("max_unpool3d", 3, x, indices, kernel_size, stride, padding, output_size)
