"""Pooling in any number of dimensions: maxima and averages of windows.

The ops work on the last axes, after any number of others.  They loop over the positions in the kernel, and
process the elements at this position of all windows in one NumPy call.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

from adjoint.core.define import define
from adjoint.core.docstrings import SharedDoc
from adjoint.core.namespace import raw, rec
from adjoint.core.native import NotNative, Primitives, View
from adjoint.core.shapes import Shape
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, DTypeError, ShapeError
from adjoint.ops.half import in_float32, wide, widened
from adjoint.ops.reduce import narrowed
from adjoint.ops.shared_docs import images_doc, signals_doc, volumes_doc
from adjoint.ops.windows import (
    Pairs,
    blank,
    counts,
    images,
    inner_part,
    native_image,
    native_spread,
    numbers,
    padded,
    spots,
    whole,
)
from adjoint.typing import Array, ArrayLike, Lengths

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool1d", "avg_pool2d",
    "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d",
]  # fmt: skip


def _window_sum(x: Array, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Any:
    lead, size = x.shape[: -len(kernel)], x.shape[-len(kernel) :]
    count = counts(size, kernel, stride, padding, dilation)
    image = padded(wide(x), padding)
    out = blank(image, *lead, *count)
    if out.size:
        for spot in spots(kernel, stride, dilation, count):
            out += image[spot]
    return out.astype(x.dtype, copy=False)


def _window_spread(
    g: Array, size: Shape, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape
) -> Any:
    lead, count = g.shape[: -len(kernel)], g.shape[-len(kernel) :]
    image = blank(g, *lead, *whole(size, padding))
    if g.size:
        for spot in spots(kernel, stride, dilation, count):
            image[spot] += g
    return image[inner_part(size, padding)]


_MANY = 64  # elements: pooling windows with more have no native form


def _native_slices(
    xp: Primitives, x: View, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape, value: Any
) -> list[View]:
    """Return, for each offset in the kernel, the view of the elements at this offset of all windows.

    The image is padded with ``value``.
    """
    count = counts(x.shape[-len(kernel) :], kernel, stride, padding, dilation)
    if 0 in count or math.prod(kernel) > _MANY:
        raise NotNative("an empty or very large window has no native form")
    image = native_image(xp, x, padding, value)
    return [image[spot] for spot in spots(kernel, stride, dilation, count)]


def _native_window_spread(xp: Primitives, g: View, size: Shape, kernel: Shape, **at: Any) -> View:
    if not g.size:
        raise NotNative("windows of an empty array have no native form")
    full = xp.graph.broadcast(xp.graph.reshape(g, (*g.shape, *(1,) * len(kernel))), (*g.shape, *kernel))
    return native_spread(xp, full, size, kernel, **at)


_WINDOW = ("kernel", "stride", "padding", "dilation")
define("window_sum", _window_sum,
       lambda xp, g, y, x, kernel, **at: xp.window_spread(g, size=x.shape[-len(kernel):], kernel=kernel, **at),
       kind="linear", params=_WINDOW, batch="leading", reference="formula", lower=lambda xp, x, **at: functools.reduce(operator.add, _native_slices(xp, x, value=0, **at)), sparsity="sliding", kernel="forward", doc="The sum of each window.")  # fmt: skip
define("window_spread", in_float32(_window_spread),
       lambda xp, g, y, x, size, **at: xp.window_sum(g, **at),
       kind="linear", params=("size", *_WINDOW), batch="leading", reference="formula", lower=_native_window_spread, sparsity="sliding", kernel="forward", doc="Each element added to all positions of its window: the adjoint of the sum of each window.")  # fmt: skip


def lowest(dtype: Any) -> Any:
    if dtype.kind == "c":
        raise TypeError("complex numbers have no order")
    return -np.inf if dtype.kind == "f" or dtype.name == "bfloat16" else np.iinfo(dtype).min


def _max_pool(x: Array, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Any:
    count = counts(x.shape[-len(kernel) :], kernel, stride, padding, dilation)
    image = padded(x, padding, lowest(x.dtype))
    places = spots(kernel, stride, dilation, count)
    out = image[next(places)].copy(order="K")
    for spot in places:
        np.maximum(out, image[spot], out=out)
    return out


def _hits(
    x: Array, y: Array, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape
) -> tuple[list[Any], Any]:
    """Return a list of masks, one for each position in the kernel, and the number of maxima of each window.

    A mask is true for the windows that have their maximum at this position; equal maxima all count.  ``x`` is
    the input, and ``y`` has the maxima.
    """
    image = padded(x, padding, lowest(x.dtype))
    places = list(spots(kernel, stride, dilation, y.shape[-len(kernel) :]))
    hits = [image[spot] == y for spot in places]
    if y.dtype.kind == "f" and np.isnan(y).any():  # NaNs count as maxima, and share the gradient
        hits = [hit | np.isnan(image[spot]) for hit, spot in zip(hits, places, strict=True)]
    shared = hits[0].astype(np.int32 if len(hits) > 127 else np.int8)
    for hit in hits[1:]:
        shared += hit
    return hits, shared


def _max_spread(
    g: Array, x: Array, y: Array, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape
) -> Any:
    size, count = x.shape[-len(kernel) :], y.shape[-len(kernel) :]
    if g.strides != y.strides:
        # arrays with different memory orders are 3 times as slow, so copy once
        g, given = np.empty_like(y, dtype=g.dtype), g
        g[...] = given
    hits, shared = _hits(x, y, kernel, stride, padding, dilation)
    share = g / np.maximum(shared, 1).astype(g.dtype) if shared.size and shared.max() > 1 else g
    image = blank(y, *y.shape[: -len(kernel)], *whole(size, padding)).astype(g.dtype, copy=False)
    apart = all(s > d * (k - 1) for k, s, d in zip(kernel, stride, dilation, strict=True))
    for hit, spot in zip(hits, spots(kernel, stride, dilation, count), strict=True):
        if apart:  # no two windows share an element
            image[spot] = raw.where(hit, share, 0)
        else:
            image[spot] += raw.where(hit, share, 0)
    return image[inner_part(size, padding)]


def _max_gather(
    h: Array, x: Array, y: Array, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape
) -> Any:
    hits, shared = _hits(x, y, kernel, stride, padding, dilation)
    image = padded(h, padding)
    total = np.zeros(y.shape, h.dtype)
    for hit, spot in zip(hits, spots(kernel, stride, dilation, y.shape[-len(kernel) :]), strict=True):
        total += raw.where(hit, image[spot], 0)
    return total / np.maximum(shared, 1).astype(h.dtype)


def _native_hits(xp: Primitives, x: View, y: View, at: dict[str, Any]) -> tuple[list[View], View]:
    """Return masks of the maxima, and their number in each window, for the gradient of max pooling.

    There is one mask for each offset in the window: it is true where the element of ``x`` at this offset
    equals ``y``, the maximum of the window, or is NaN.  ``at`` has the parameters of the windows.
    """
    parts = _native_slices(xp, x, value=lowest(x.dtype), **at)
    hits = [xp.logical_or(part == y, part != part) for part in parts]
    shared = xp.astype(hits[0], dtype=y.dtype)
    for hit in hits[1:]:
        shared = shared + xp.astype(hit, dtype=y.dtype)
    return hits, xp.maximum(shared, 1)


def _native_max_spread(xp: Primitives, g: View, x: View, y: View, **at: Any) -> View:
    kernel = at["kernel"]
    hits, shared = _native_hits(xp, x, y, at)
    share = xp.cast(g / shared, g.dtype)
    parts = [xp.where(hit, share, np.zeros((), g.dtype)) for hit in hits]
    windows = xp.graph.reshape(xp.stack(*parts, axis=-1), (*y.shape, *kernel))
    return native_spread(xp, windows, x.shape[-len(kernel) :], **at)


def _native_max_gather(xp: Primitives, h: View, x: View, y: View, **at: Any) -> View:
    hits, shared = _native_hits(xp, x, y, at)
    parts = zip(hits, _native_slices(xp, h, value=0, **at), strict=True)
    found = (xp.where(hit, part, np.zeros((), h.dtype)) for hit, part in parts)
    return functools.reduce(operator.add, found) / xp.cast(shared, h.dtype)


# The positions of the maxima are piecewise constant.  So max_spread and max_gather are linear in their first
# argument and have no derivative in the others.  Each is the adjoint of the other.
define("max_pool", _max_pool,
       lambda xp, g, y, x, **at: xp.max_spread(g, x, y, **at),
       saves="xy", kind="general", params=_WINDOW, selects=True,
       jvp=lambda xp, t, y, x, **at: xp.max_gather(t, x, y, **at),
       batch="leading", reference="formula", lower=lambda xp, x, **at: functools.reduce(xp.maximum, _native_slices(xp, x, value=lowest(x.dtype), **at)), kernel="forward", doc="The maximum of each window; elements that tie for it share the gradient equally.")  # fmt: skip
define("max_spread", in_float32(_max_spread),
       lambda xp, h, z, g, x, y, **at: xp.max_gather(h, x, y, **at), None, None,
       saves="xy", kind="linear", params=_WINDOW,
       batch="leading", reference="formula", lower=_native_max_spread, kernel="forward", doc="Each element added to the positions of the maxima of its window, in equal shares.")  # fmt: skip
define("max_gather", in_float32(_max_gather),
       lambda xp, g, z, h, x, y, **at: xp.max_spread(g, x, y, **at), None, None,
       saves="xy", kind="linear", params=_WINDOW,
       batch="leading", reference="formula", lower=_native_max_gather, kernel="forward", doc="The mean of the elements at the maxima of each window.")  # fmt: skip


# Public functions ------------------------------------------------------------------------------


def pool_geometry(
    op: str, nd: int, x: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> dict[str, Any]:
    """Return a dictionary of the parameters of the pooling ops; raise if an argument is not valid.

    The keys are kernel, stride, padding and dilation, and the values are tuples with one item for each of the
    ``nd`` space axes.  ``op`` is the name of the caller, for errors.
    """
    kernel = numbers(op, "kernel_size", kernel_size, nd, 1)
    stride = kernel if stride is None else numbers(op, "stride", stride, nd, 1)
    widths, dilation = numbers(op, "padding", padding, nd, 0), numbers(op, "dilation", dilation, nd, 1)
    pairs = []
    for n, k, s, p, d in zip(x.shape[-nd:], kernel, stride, widths, dilation, strict=True):
        if 2 * p > k:
            raise ArgumentError(
                f"{op}: padding must be at most half of the kernel size {kernel}, but is {padding!r}."
            )
        reach = d * (k - 1) + 1
        if n + 2 * p < reach:
            raise ShapeError(
                f"{op}: the kernel of size {kernel} is larger than the padded image (shape {x.shape}, "
                f"padding {padding!r})."
            )
        more = 0
        if ceil_mode:  # add a window if it starts inside of the image or of the padding before the image
            count = -(-(n + 2 * p - reach) // s) + 1
            count -= (count - 1) * s >= n + p
            more = (count - 1) * s + reach - (n + 2 * p)
        pairs.append((p, p + max(more, 0)))
    return {"kernel": kernel, "stride": stride, "padding": tuple(pairs), "dilation": dilation}


def _maximum(
    op: str, nd: int, x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Tensor:
    x, alone = images(op, x, nd)
    if x.dtype.kind in "cb":
        raise DTypeError(
            f"{op}: x must be real numbers, but has dtype {x.dtype}, for which a maximum is not defined."
        )
    y: Tensor = rec.max_pool(x, **pool_geometry(op, nd, x, kernel_size, stride, padding, dilation, ceil_mode))
    return rec.reshape(y, shape=y.shape[1:]) if alone else y


def _average(
    op: str, nd: int, x: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, include_pad: bool
) -> Tensor:
    x, alone = images(op, x, nd)
    if x.dtype.kind in "iub":
        x = rec.astype(x, dtype=np.dtype(float))
    at = pool_geometry(op, nd, x, kernel_size, stride, padding, 1, ceil_mode)
    total = rec.window_sum(widened(rec, x), **at)
    y = narrowed(total / wrap(_divisors(x.shape[-nd:], total.dtype, include_pad, **at)), x.dtype)
    return rec.reshape(y, shape=y.shape[1:]) if alone else y


def _divisors(
    size: Shape, dtype: Any, include_pad: bool, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape
) -> Any:
    """Return an array with the number of elements of each window, by which its sum is divided.

    Padding counts only if ``include_pad``; elements added by ceil_mode never count.  ``size`` is the size of
    the image.
    """
    if all(pair == (0, 0) for pair in padding):
        return np.array(math.prod(kernel), dtype)
    counted = np.ones(size)
    if include_pad:
        counted = padded(counted, tuple((lo, lo) for lo, _ in padding), 1)
        padding = tuple((0, hi - lo) for lo, hi in padding)
    return _window_sum(counted, kernel, stride, padding, dilation).astype(dtype)


windows_doc = SharedDoc("""
    Parameters
    ----------
    kernel_size : int or tuple of int
        The size of the windows.
    stride : int or tuple of int, optional
        The step of the windows; by default their size.
    """)
maxima_doc = windows_doc.extended("""
    Parameters
    ----------
    padding : int or tuple of int, optional
        The number of elements to add on both sides, at most half of the window.
    dilation : int or tuple of int, optional
        The distance between the elements of a window.
    ceil_mode : bool, optional
        Whether to add a last window that reaches beyond the end.

    Returns
    -------
    Tensor
        The maxima.

    Raises
    ------
    ShapeError
        If a window is larger than the padded input.
    """)
_means_doc = maxima_doc.extended("""
    Parameters
    ----------
    padding : int or tuple of int, optional
        The number of zeros on both sides, at most half of the window.
    count_include_pad : bool, optional
        Whether zeros of the padding count in the mean.

    Returns
    -------
    Tensor
        The means.
    """)
to_size_doc = SharedDoc("""
    Parameters
    ----------
    output_size : int or tuple of int
        The size of the output; None for a length that does not change.
    """)
_means_to_size_doc = to_size_doc.extended("""
    Returns
    -------
    Tensor
        The means.
    """)


@signals_doc
@maxima_doc
def max_pool1d(
    x: ArrayLike,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths | str = 0,
    dilation: Lengths = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the maximum of each window of signals; see ``max_pool2d``.

    >>> ad.nn.functional.max_pool1d(ad.arange(4.0).reshape(1, 1, 4), 2)
    tensor([[[1., 3.]]], dtype=float64)
    """
    return _maximum("max_pool1d", 1, x, kernel_size, stride, padding, dilation, ceil_mode)


@images_doc
@maxima_doc
def max_pool2d(
    x: ArrayLike,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths | str = 0,
    dilation: Lengths = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the maximum of each window of images.

    Equal maxima share the gradient equally, as in ``ad.max``.  Padding is never the maximum.

    Parameters
    ----------
    kernel_size : int or tuple of int
        The size of the windows, for both axes or for each.

    >>> ad.nn.functional.max_pool2d(ad.arange(16.0).reshape(1, 1, 4, 4), 2)
    tensor([[[[ 5.,  7.],
              [13., 15.]]]], dtype=float64)
    """
    return _maximum("max_pool2d", 2, x, kernel_size, stride, padding, dilation, ceil_mode)


@volumes_doc
@maxima_doc
def max_pool3d(
    x: ArrayLike,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths | str = 0,
    dilation: Lengths = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the maximum of each window of volumes; see ``max_pool2d``.

    >>> ad.nn.functional.max_pool3d(ad.ones((1, 3, 4, 4, 4)), 2).shape
    (1, 3, 2, 2, 2)
    """
    return _maximum("max_pool3d", 3, x, kernel_size, stride, padding, dilation, ceil_mode)


@signals_doc
@_means_doc
def avg_pool1d(
    x: ArrayLike,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths | str = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window of signals; see ``avg_pool2d``.

    >>> ad.nn.functional.avg_pool1d(ad.arange(4.0).reshape(1, 1, 4), 2)
    tensor([[[0.5, 2.5]]], dtype=float64)
    """
    return _average("avg_pool1d", 1, x, kernel_size, stride, padding, ceil_mode, count_include_pad)


@images_doc
@_means_doc
def avg_pool2d(
    x: ArrayLike,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths | str = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window of images.

    Parameters
    ----------
    kernel_size : int or tuple of int
        The size of the windows, for both axes or for each.

    >>> ad.nn.functional.avg_pool2d(ad.arange(4.0).reshape(1, 1, 2, 2), 2)
    tensor([[[[1.5]]]], dtype=float64)
    """
    return _average("avg_pool2d", 2, x, kernel_size, stride, padding, ceil_mode, count_include_pad)


@volumes_doc
@_means_doc
def avg_pool3d(
    x: ArrayLike,
    kernel_size: Lengths,
    stride: Lengths | None = None,
    padding: Lengths | str = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window of volumes; see ``avg_pool2d``.

    >>> ad.nn.functional.avg_pool3d(ad.ones((1, 3, 4, 4, 4)), 2).shape
    (1, 3, 2, 2, 2)
    """
    return _average("avg_pool3d", 3, x, kernel_size, stride, padding, ceil_mode, count_include_pad)


def _averages(n: int, m: int, dtype: Any) -> Any:
    """Return the matrix (m, n) that averages n elements to m windows.

    Window i contains the elements from floor(i·n/m) up to, but not including, ceil((i+1)·n/m).
    """
    out = np.zeros((m, n), dtype)
    for i in range(m):
        start, stop = i * n // m, -(-(i + 1) * n // m)
        out[i, start:stop] = 1.0 / (stop - start)
    return out


def adaptive_sizes(op: str, nd: int, x: Tensor, output_size: Any) -> Shape:
    """Return the size of the output of adaptive pooling over the last ``nd`` axes of ``x``.

    An item None in ``output_size`` keeps the length of the axis.  Raise if the images are empty.
    """
    given = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * nd
    filled = tuple(n if m is None else m for m, n in zip(given, x.shape[-nd:], strict=False))
    sizes = numbers(op, "output_size", filled if len(given) == nd else tuple(given), nd, 1)
    if 0 in x.shape[-nd:]:
        raise ShapeError(f"{op}: images must not be empty, but have shape {x.shape}.")
    return sizes


def _adaptive(op: str, nd: int, x: Any, output_size: Any) -> Tensor:
    x, alone = images(op, x, nd)
    if x.dtype.kind in "iub":
        x = rec.astype(x, dtype=np.dtype(float))
    sizes = adaptive_sizes(op, nd, x, output_size)
    dtype, x = x.dtype, widened(rec, x)
    for axis, m in zip(range(-nd, 0), sizes, strict=True):
        n = x.shape[axis]
        if m == n:
            continue
        if m == 1:
            x = rec.mean(x, axis=(axis,), keepdims=True)
            continue
        matrix = wrap(_averages(n, m, x.dtype))
        if axis == -1:
            x = rec.matmul(x, matrix.T)
        elif axis == -2:
            x = rec.matmul(matrix, x)
        else:
            moved = rec.matmul(rec.moveaxis(x, source=axis, destination=-1), matrix.T)
            x = rec.moveaxis(moved, source=-1, destination=axis)
    x = narrowed(x, dtype)
    return rec.reshape(x, shape=x.shape[1:]) if alone else x


@signals_doc
@_means_to_size_doc
def adaptive_avg_pool1d(x: ArrayLike, output_size: Lengths) -> Tensor:
    """Average signals to a given length; see ``adaptive_avg_pool2d``.

    Parameters
    ----------
    output_size : int, optional
        The length of the output; None for the length of the input.

    >>> ad.nn.functional.adaptive_avg_pool1d(ad.arange(4.0).reshape(1, 1, 4), 2)
    tensor([[[0.5, 2.5]]], dtype=float64)
    """
    return _adaptive("adaptive_avg_pool1d", 1, x, output_size)


@images_doc
@_means_to_size_doc
def adaptive_avg_pool2d(x: ArrayLike, output_size: Lengths) -> Tensor:
    """Average images to a given size, with windows of nearly equal size.

    Parameters
    ----------
    output_size : int or tuple of int
        The size of the output, for both axes or for each; None for a length that does not change.

    >>> ad.nn.functional.adaptive_avg_pool2d(ad.ones((1, 3, 5, 7)), (2, None)).shape
    (1, 3, 2, 7)
    """
    return _adaptive("adaptive_avg_pool2d", 2, x, output_size)


@volumes_doc
@_means_to_size_doc
def adaptive_avg_pool3d(x: ArrayLike, output_size: Lengths) -> Tensor:
    """Average volumes to a given size; see ``adaptive_avg_pool2d``.

    >>> ad.nn.functional.adaptive_avg_pool3d(ad.ones((1, 3, 5, 6, 7)), 2).shape
    (1, 3, 2, 2, 2)
    """
    return _adaptive("adaptive_avg_pool3d", 3, x, output_size)
