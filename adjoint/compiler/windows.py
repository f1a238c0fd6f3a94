"""Lowering rules (from ops to primitives) of convolutions and pooling.

The windows of an image are a view with overlapping strides.  The adjoint of taking windows adds them where
they overlap: it writes the windows into an array of zeros and sums a skewed view of this array.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.compiler.decompose import RULES, rule
from adjoint.compiler.rearrange import full_key, placed
from adjoint.compiler.simplify import NotNative, View
from adjoint.core.shapes import Shape
from adjoint.ops.windows import Pairs, counts, inner_part, spots, whole

__all__: list[str] = []


def _image(xp: Any, x: View, padding: Pairs, value: Any = 0) -> View:
    """Return ``x`` with its last axes padded with ``value``; ``x`` itself if no padding is positive."""
    if all(lo <= 0 and hi <= 0 for lo, hi in padding):
        return x
    lead, size = x.shape[: -len(padding)], x.shape[-len(padding) :]
    return placed(xp, (*lead, *whole(size, padding)), value, x.dtype, [(x, inner_part(size, padding))])


def _windowed(xp: Any, image: View, kernel: Shape, stride: Shape, dilation: Shape, count: Shape) -> View:
    """Return all windows of an image as one view of shape (…, *count, *kernel).

    ``count`` is the number of windows along each axis.
    """
    nd = len(kernel)
    steps = image.strides[-nd:]
    outer = [s * step if n > 1 else 0 for s, step, n in zip(stride, steps, count, strict=True)]
    within = [d * step if k > 1 else 0 for d, step, k in zip(dilation, steps, kernel, strict=True)]
    shape = (*image.shape[:-nd], *count, *kernel)
    return View(xp.graph, image.node, shape, (*image.strides[:-nd], *outer, *within), image.offset)


def _added(
    xp: Any, parts: View, size: Shape, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape
) -> View:
    """Add the windows ``parts`` where they overlap; return the resulting image of size ``size``.

    The windows have the shape (…, *count, *kernel).  This is the adjoint of taking the windows of an image.
    """
    nd = len(kernel)
    lead, count = parts.shape[: -2 * nd], parts.shape[-2 * nd : -nd]
    full = whole(size, padding)
    g = xp.graph
    if all(s > d * (k - 1) for k, s, d in zip(kernel, stride, dilation, strict=True)):
        spot = _windowed(xp, g.target((*lead, *full)), kernel, stride, dilation, count)
        return g.slice(
            g.place((*lead, *full), parts.dtype, 0, [(parts, spot.where)]),
            full_key(inner_part(size, padding), len(lead) + nd),
        )
    # zeros[k] has the elements at offset k of all windows, with a margin of zeros: element i of the image is
    # the sum over k of zeros[k, i - dilation · k]
    margin = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    long = [m + n for m, n in zip(margin, full, strict=True)]
    order = [*range(len(lead)), *range(len(lead) + nd, len(lead) + 2 * nd), *range(len(lead), len(lead) + nd)]
    shape = (*lead, *kernel, *long)
    key = [slice(m, m + (n - 1) * s + 1, s) for m, n, s in zip(margin, count, stride, strict=True)]
    zeros = placed(xp, shape, 0, parts.dtype, [(g.permute(parts, order), (..., *key))])
    steps = zeros.strides[-nd:]
    skewed = [z - d * s for z, d, s in zip(zeros.strides[-2 * nd : -nd], dilation, steps, strict=True)]
    skewed = [s if k > 1 else 0 for s, k in zip(skewed, kernel, strict=True)]
    offset = sum(m * s for m, s in zip(margin, steps, strict=True))
    view = View(
        g, zeros.node, (*lead, *full, *kernel), (*zeros.strides[: len(lead)], *steps, *skewed), offset
    )
    view = g.slice(view, full_key((*inner_part(size, padding), *(slice(None),) * nd), len(view.shape)))
    return g.reduce("sum", view, range(len(lead) + nd, len(lead) + 2 * nd), parts.dtype)


@rule("overlap_add")
def _overlap_add(xp: Any, x: Any, axis: int, length: int) -> Any:
    last = xp.moveaxis(x, source=axis - 1, destination=-2)
    size = x.shape[-1]
    found = _added(xp, last, (length,), (size,), (1,), ((0, 0),), (1,))
    return xp.moveaxis(found, source=-1, destination=axis)


_NARROW = 8  # windows per row: with fewer, most of each vector would be empty
_LARGE = 1 << 17  # weights: with more, the partial sums of their gradient need too much memory


def _is_direct(
    x: View, w: View, kernel: Shape, padding: Pairs, groups: int, wide: int, weights: int = 0
) -> bool:
    """Return whether a convolution is computed by its own kernels, not as a product of copied windows.

    ``wide`` is the length of the rows that the kernels compute or read; ``weights`` is the size of the
    gradient of the weights, if that is computed.
    """
    return (
        len(kernel) == 2 and kernel != (1, 1) and groups == 1 and wide >= _NARROW and weights <= _LARGE
        and x.dtype == w.dtype and x.dtype.kind == "f" and min(x.size, w.size) > 0
        and all(lo >= 0 and hi >= 0 for lo, hi in padding)
    )  # fmt: skip


def _direct(xp: Any, op: str, a: View, b: View, spec: tuple[Any, ...], shape: Shape) -> View:
    """Add a convolution node; ``spec`` has the fields of ``emit.conv.Conv`` after the dtype.

    ``op`` is the kind of node, ``a`` and ``b`` are its operands, and ``shape`` is that of the result.
    """
    return xp.graph.node(op, (xp.graph.copied(a), xp.graph.copied(b)), spec, shape, a.dtype)


@rule("conv")
def _conv(xp: Any, x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    n, o, kernel = x.shape[0], w.shape[0], w.shape[2:]
    count = counts(x.shape[2:], kernel, stride, padding, dilation)
    if 0 not in count and _is_direct(x, w, kernel, padding, groups, count[-1]):
        spec = (n, x.shape[1], o, x.shape[2:], kernel, stride, padding, dilation)
        y = _direct(xp, "conv", x, w, spec, (n, o, math.prod(count)))
        return xp.graph.reshape(y, (n, o, *count))
    cols = _columns(xp, x, kernel, stride, padding, dilation, groups, count)
    y = xp.matmul(xp.graph.reshape(w, (1, groups, o // groups, cols.shape[-2])), cols)
    return xp.graph.reshape(y, (n, o, *count))


def _columns(
    xp: Any, x: View, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape, groups: int, count: Shape
) -> View:
    """Return the windows of ``x`` as columns, in the shape (batch, groups, channels · kernel, windows).

    ``count`` is the number of windows along each axis.
    """
    if 0 in count or 0 in x.shape or x.dtype.kind != "f":
        raise NotNative("a convolution of integers, or an empty one, has no native form")
    nd = len(kernel)
    view = _windowed(xp, _image(xp, x, padding), kernel, stride, dilation, count)
    order = [0, 1, *range(2 + nd, 2 + 2 * nd), *range(2, 2 + nd)]
    k = x.shape[1] // groups * math.prod(kernel)
    cols = xp.graph.copied(xp.graph.permute(view, order))
    return xp.graph.reshape(cols, (x.shape[0], groups, k, math.prod(count)))


@rule("conv_weight")
def _conv_weight(
    xp: Any, x: Any, g: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    n, o, count = g.shape[0], g.shape[1], g.shape[2:]
    weights = o * x.shape[1] * math.prod(kernel)
    if 0 not in count and _is_direct(x, g, kernel, padding, groups, count[-1], weights):
        spec = (n, x.shape[1], o, x.shape[2:], kernel, stride, padding, dilation)
        return _direct(xp, "conv_weight", x, g, spec, (o, x.shape[1], *kernel))
    cols = _columns(xp, x, kernel, stride, padding, dilation, groups, count)
    gm = xp.graph.reshape(g, (n, groups, o // groups, math.prod(count)))
    y = xp.sum(xp.matmul(gm, xp.matrix_transpose(cols)), axis=(0,), keepdims=False)
    return xp.graph.reshape(y, (o, x.shape[1] // groups, *kernel))


@rule("conv_input")
def _conv_input(
    xp: Any, g: Any, w: Any, size: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    n, count, kernel = g.shape[0], g.shape[2:], w.shape[2:]
    if 0 in count or not n or g.dtype.kind != "f" or any(hi < 0 or lo < 0 for lo, hi in padding):
        raise NotNative("convolutions of integers, empty ones and negative padding have no native form")
    if 0 not in size and _is_direct(g, w, kernel, padding, groups, size[-1]):
        spec = (n, w.shape[1], w.shape[0], tuple(size), kernel, stride, padding, dilation)
        y = _direct(xp, "conv_input", g, w, spec, (n, w.shape[1], math.prod(size)))
        return xp.graph.reshape(y, (n, w.shape[1], *size))
    nd, o, c, k = len(kernel), w.shape[0], w.shape[1] * groups, w.shape[1] * math.prod(kernel)
    wt = xp.matrix_transpose(xp.graph.reshape(w, (1, groups, o // groups, k)))
    cols = xp.matmul(wt, xp.graph.reshape(g, (n, groups, o // groups, math.prod(count))))
    cols = xp.graph.reshape(cols, (n, c, *kernel, *count))
    order = [0, 1, *range(2 + nd, 2 + 2 * nd), *range(2, 2 + nd)]
    return _added(xp, xp.graph.permute(cols, order), size, kernel, stride, padding, dilation)


_MANY = 64  # elements: pooling windows with more have no native form


def _slices(
    xp: Any, x: View, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape, value: Any
) -> list[View]:
    """Return, for each offset in the kernel, the view of the elements at this offset of all windows.

    The image is padded with ``value``.
    """
    count = counts(x.shape[-len(kernel) :], kernel, stride, padding, dilation)
    if 0 in count or math.prod(kernel) > _MANY:
        raise NotNative("an empty or very large window has no native form")
    image = _image(xp, x, padding, value)
    return [
        xp.graph.slice(image, full_key(spot, image.ndim)) for spot in spots(kernel, stride, dilation, count)
    ]


def _lowest(dtype: Any) -> Any:
    """Return the lowest value of a dtype: -inf for floats."""
    return -math.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


@rule("window_sum")
def _window_sum(xp: Any, x: Any, **at: Any) -> Any:
    parts = _slices(xp, x, value=0, **at)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@rule("window_spread")
def _window_spread(xp: Any, g: Any, size: Any, kernel: Any, **at: Any) -> Any:
    if not g.size:
        raise NotNative("windows of an empty array have no native form")
    full = xp.graph.broadcast(xp.graph.reshape(g, (*g.shape, *(1,) * len(kernel))), (*g.shape, *kernel))
    return _added(xp, full, size, kernel, **at)


@rule("max_pool")
def _max_pool(xp: Any, x: Any, **at: Any) -> Any:
    parts = _slices(xp, x, value=_lowest(x.dtype), **at)
    top = parts[0]
    for part in parts[1:]:
        top = xp.maximum(top, part)
    return top


def _hits(xp: Any, x: View, y: View, at: dict[str, Any]) -> tuple[list[View], View]:
    """Return masks of the maxima, and their number in each window, for the gradient of max pooling.

    There is one mask for each offset in the window: it is true where the element of ``x`` at this offset
    equals ``y``, the maximum of the window, or is NaN.  ``at`` has the parameters of the windows.
    """
    parts = _slices(xp, x, value=_lowest(x.dtype), **at)
    hits = [xp.logical_or(part == y, part != part) for part in parts]
    shared = xp.astype(hits[0], dtype=y.dtype)
    for hit in hits[1:]:
        shared = shared + xp.astype(hit, dtype=y.dtype)
    return hits, xp.maximum(shared, 1)


@rule("max_spread")
def _max_spread(xp: Any, g: Any, x: Any, y: Any, **at: Any) -> Any:
    kernel = at["kernel"]
    hits, shared = _hits(xp, x, y, at)
    share = xp.cast(g / shared, g.dtype)
    parts = [xp.where(hit, share, np.zeros((), g.dtype)) for hit in hits]
    stacked = RULES["stack"](xp, *parts, axis=-1)
    windows = xp.graph.reshape(stacked, (*y.shape, *kernel))
    return _added(xp, windows, x.shape[-len(kernel) :], **at)


@rule("max_gather")
def _max_gather(xp: Any, h: Any, x: Any, y: Any, **at: Any) -> Any:
    hits, shared = _hits(xp, x, y, at)
    total = None
    for hit, part in zip(hits, _slices(xp, h, value=0, **at), strict=True):
        found = xp.where(hit, part, np.zeros((), h.dtype))
        total = found if total is None else total + found
    return total / xp.cast(shared, h.dtype)
