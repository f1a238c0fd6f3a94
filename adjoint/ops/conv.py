"""Convolution in any number of dimensions, on strided views and matrix products.

A convolution is one trilinear form, ``T(x, w, g) = Σ g[n,o,p] w[o,c,k] x[n,c, s·p + d·k - lo]``, of the
images ``x``, the kernels ``w`` and the outputs ``g``.  Its three derivatives are the three ops here:
``conv`` (dT/dg), ``conv_input`` (dT/dx, the transposed convolution) and ``conv_weight`` (dT/dw).  The rules
of each are the other two, so derivatives of every order exist.

Images have the shape ``(N, C, *space)``, kernels ``(O, C / groups, *kernel)``.  The parameters of the ops
are tuples with one entry per space axis; ``padding`` has pairs ``(before, after)``.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from adjoint.core.batching import Batched, empty_batch, folded, full_batch, unfolded
from adjoint.core.define import define
from adjoint.core.infer import Result
from adjoint.core.native import NotNative, Primitives, View
from adjoint.core.op import Op
from adjoint.core.record import compute
from adjoint.core.shapes import Shape
from adjoint.ops.half import wide
from adjoint.ops.windows import (
    Pairs,
    counts,
    inner_part,
    native_image,
    native_spread,
    native_windows,
    padded,
    spots,
    whole,
)
from adjoint.typing import Array

__all__: list[str] = []

# Convolution -----------------------------------------------------------------------------------
#
# Each window is copied to a column of a matrix (C·kernel, windows·N).  Each of the three ops is then one
# matrix product.  In memory, arrays have the axes (C, *space, N); they are returned as views of shape (N, C,
# *space).  So the copies are of long contiguous rows, and the next convolution needs no copy of its input.
# The matrix is larger than the images by the size of the kernel.  So if it is large, it is made in blocks of
# rows of windows.

_BLOCK = 1 << 22  # bytes of the matrix per block: it stays in the cache, and larger blocks are not faster


def _batch_last(x: Array) -> Any:
    return x.transpose((*range(1, x.ndim), 0))


def _batch_first(x: Array) -> Any:
    return x.transpose((x.ndim - 1, *range(x.ndim - 1)))


def _image(x: Array, padding: Pairs) -> Any:
    """Return images (N, C, *space) as a new array (C, *space, N), padded, with half precision as float32."""
    return padded(np.ascontiguousarray(_batch_last(wide(x))), (*padding, (0, 0)))


def _columns(image: Array, kernel: Shape, stride: Shape, dilation: Shape, count: Shape, groups: int) -> Any:
    """Copy each window of padded images to a column of a matrix; there is one matrix for each channel group.

    Return an array of shape (groups, C / groups · kernel elements, windows·N).  ``image`` is a result of
    ``_image``, and ``count`` is the number of windows along each space axis.
    """
    c, n = image.shape[0], image.shape[-1]
    rows, width = c // groups * math.prod(kernel), n * math.prod(count)
    if not width or not rows:
        return np.zeros((groups, rows, width), image.dtype)
    first, *steps, last = image.strides
    views = as_strided(
        image,
        (c, *kernel, *count, n),
        (first, *map(operator.mul, dilation, steps), *map(operator.mul, stride, steps), last),
        writeable=False,
    )
    return views.reshape(groups, rows, width)


def _blocks(count: Shape, column: int) -> list[tuple[int, int]]:
    """Divide the rows of windows into blocks that fit into the cache; return pairs (start, stop) of rows.

    ``count`` is the number of windows along each axis; a row is all windows with the same first index.
    ``column`` is the number of bytes of one window, for all images.
    """
    rows = count[0]
    step = max(1, _BLOCK // max(1, column * math.prod(count[1:])))
    return [(a, min(a + step, rows)) for a in range(0, rows, step)] or [(0, 0)]


def _rows(g: Array, groups: int) -> Any:
    """Reshape outputs (N, O, *windows) to one matrix for each group, (groups, O / groups, windows·N)."""
    n, o = g.shape[:2]
    return _batch_last(g).reshape(groups, o // groups, n * math.prod(g.shape[2:]))


def _narrow(y: Array, a: Array, b: Array) -> Any:
    dtype = np.result_type(a, b)
    return y if y.dtype == dtype else y.astype(dtype)


def _conv(x: Array, w: Array, stride: Shape, padding: Pairs, dilation: Shape, groups: int) -> Any:
    n, o, kernel = x.shape[0], w.shape[0], w.shape[2:]
    count = counts(x.shape[2:], kernel, stride, padding, dilation)
    image = _image(x, padding)
    matrices = wide(w).reshape(groups, o // groups, w.shape[1] * math.prod(kernel))
    parts = []
    for a, b in _blocks(count, n * x.shape[1] * math.prod(kernel) * image.itemsize):
        block = (b - a, *count[1:])
        columns = _columns(image[:, a * stride[0] :], kernel, stride, dilation, block, groups)
        parts.append(np.matmul(matrices, columns).reshape(o, *block, n))
    y = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    return _narrow(_batch_first(y), x, w)


def _conv_input(
    g: Array, w: Array, size: Shape, stride: Shape, padding: Pairs, dilation: Shape, groups: int
) -> Any:
    n, count, kernel = g.shape[0], g.shape[2:], w.shape[2:]
    c, offsets = w.shape[1] * groups, math.prod(kernel)
    matrices = wide(w).reshape(groups, w.shape[0] // groups, w.shape[1] * offsets).swapaxes(1, 2)
    g_wide = wide(g)
    if offsets == 1 and count == size and all(pair == (0, 0) for pair in padding):
        image = np.matmul(matrices, _rows(g_wide, groups)).reshape(c, *count, n)
        return _narrow(_batch_first(image), g, w)
    dtype = np.result_type(g_wide, matrices)
    image = np.zeros((c, *whole(size, padding), n), dtype)
    for a, b in _blocks(count, n * c * offsets * dtype.itemsize) if g.size and c else ():
        columns = np.matmul(matrices, _rows(g_wide[:, :, a:b], groups))
        pieces = columns.reshape(c, offsets, b - a, *count[1:], n)
        below = image[:, a * stride[0] :]
        for i, spot in enumerate(spots((*kernel, 1), (*stride, 1), (*dilation, 1), pieces.shape[2:])):
            below[spot] += pieces[:, i]
    return _narrow(_batch_first(image[inner_part((*size, n), (*padding, (0, 0)))]), g, w)


def _conv_weight(
    x: Array, g: Array, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape, groups: int
) -> Any:
    image, g_wide, count = _image(x, padding), wide(g), g.shape[2:]
    y: Any = None
    for a, b in _blocks(count, math.prod(x.shape[:2]) * math.prod(kernel) * image.itemsize):
        block = (b - a, *count[1:])
        columns = _columns(image[:, a * stride[0] :], kernel, stride, dilation, block, groups)
        part = np.matmul(_rows(g_wide[:, :, a:b], groups), columns.swapaxes(1, 2))
        y = part if y is None else y + part
    return _narrow(y.reshape(g.shape[1], x.shape[1] // groups, *kernel), x, g)


def _fits(x: Shape, w: Shape, g: Shape, groups: int, **at: Any) -> bool:
    """Return whether images of shape x, convolved with kernels of shape w, give outputs of shape g.

    ``at`` has the stride, the padding and the dilation.
    """
    return (
        len(x) == len(w) == len(g)
        and x[:2] == (g[0], w[1] * groups)
        and g[1:] == (w[0], *counts(x[2:], w[2:], **at))
        and not w[0] % groups
    )


def _conv_shape(x: Array, w: Array, groups: int, **at: Any) -> Result | None:
    if len(x.shape) != len(w.shape):
        return None
    out = (x.shape[0], w.shape[0], *counts(x.shape[2:], w.shape[2:], **at))
    return ((out, np.result_type(x.dtype, w.dtype)),) if _fits(x.shape, w.shape, out, groups, **at) else None


def _conv_input_shape(g: Array, w: Array, size: Shape, groups: int, **at: Any) -> Result | None:
    out = (g.shape[0], w.shape[1] * groups, *size)
    return ((out, np.result_type(g.dtype, w.dtype)),) if _fits(out, w.shape, g.shape, groups, **at) else None


def _conv_weight_shape(x: Array, g: Array, kernel: Shape, groups: int, **at: Any) -> Result | None:
    out = (g.shape[1], x.shape[1] // groups, *kernel)
    return ((out, np.result_type(x.dtype, g.dtype)),) if _fits(x.shape, out, g.shape, groups, **at) else None


def _conv_batch(op: Op, size: int, /, x: Batched, w: Batched, groups: int, **params: Any) -> Any:
    """Apply ``conv`` or ``conv_input`` inside ``vmap``: the batching rule of both ops.

    The batch axis of ``vmap`` is merged with the axis of the images.  If the kernels have a batch axis, too,
    it is merged with the channel groups instead.
    """
    if not size:
        return empty_batch(op, (x, w), {**params, "groups": groups})
    if not w.batched:
        out = compute(op, (folded(x.value, 0), w.value), {**params, "groups": groups})
        return unfolded(out, 0, size)
    images, kernels = folded(full_batch(x, size), 1), folded(w.value, 0)
    out = compute(op, (images, kernels), {**params, "groups": groups * size})
    return unfolded(out, 1, size)


def _conv_weight_batch(op: Op, size: int, /, x: Batched, g: Batched, groups: int, **params: Any) -> Any:
    if not size:
        return empty_batch(op, (x, g), {**params, "groups": groups})
    images, outputs = folded(full_batch(x, size), 1), folded(full_batch(g, size), 1)
    out = compute(op, (images, outputs), {**params, "groups": groups * size})
    return unfolded(out, 0, size)


_NARROW = 8  # windows per row: with fewer, most of each vector would be empty
_LARGE = 1 << 17  # weights: with more, the partial sums of their gradient need too much memory


def _is_direct(
    x: View, w: View, kernel: Shape, padding: Pairs, groups: int, wide: int, weights: int = 0
) -> bool:
    """Return whether native code computes a convolution by its own kernels, not as a product of windows.

    ``wide`` is the length of the rows that the kernels compute or read; ``weights`` is the size of the
    gradient of the weights, if that is computed.
    """
    return (
        len(kernel) == 2 and kernel != (1, 1) and groups == 1 and wide >= _NARROW and weights <= _LARGE
        and x.dtype == w.dtype and x.dtype.kind == "f" and min(x.size, w.size) > 0
        and all(lo >= 0 and hi >= 0 for lo, hi in padding)
    )  # fmt: skip


def _direct(xp: Primitives, op: str, a: View, b: View, spec: tuple[Any, ...], shape: Shape) -> View:
    """Add a convolution node; ``spec`` has the fields of ``emit.conv.Conv`` after the dtype.

    ``op`` is the kind of node, ``a`` and ``b`` are its operands, and ``shape`` is that of the result.
    """
    return xp.graph.node(op, (xp.graph.copied(a), xp.graph.copied(b)), spec, shape, a.dtype)


def _native_columns(
    xp: Primitives,
    x: View,
    kernel: Shape,
    stride: Shape,
    padding: Pairs,
    dilation: Shape,
    groups: int,
    count: Shape,
) -> View:
    """Return the windows of ``x`` as columns, in the shape (batch, groups, channels · kernel, windows).

    ``count`` is the number of windows along each axis.
    """
    if 0 in count or 0 in x.shape or x.dtype.kind != "f":
        raise NotNative("a convolution of integers, or an empty one, has no native form")
    nd = len(kernel)
    view = native_windows(native_image(xp, x, padding), kernel, stride, dilation, count)
    order = [0, 1, *range(2 + nd, 2 + 2 * nd), *range(2, 2 + nd)]
    k = x.shape[1] // groups * math.prod(kernel)
    cols = xp.graph.copied(xp.graph.permute(view, order))
    return xp.graph.reshape(cols, (x.shape[0], groups, k, math.prod(count)))


def _native_conv(
    xp: Primitives, x: View, w: View, stride: Shape, padding: Pairs, dilation: Shape, groups: int
) -> View:
    n, o, kernel = x.shape[0], w.shape[0], w.shape[2:]
    count = counts(x.shape[2:], kernel, stride, padding, dilation)
    if 0 not in count and _is_direct(x, w, kernel, padding, groups, count[-1]):
        spec = (n, x.shape[1], o, x.shape[2:], kernel, stride, padding, dilation)
        y = _direct(xp, "conv", x, w, spec, (n, o, math.prod(count)))
    else:
        cols = _native_columns(xp, x, kernel, stride, padding, dilation, groups, count)
        y = xp.matmul(xp.graph.reshape(w, (1, groups, o // groups, cols.shape[-2])), cols)
    return xp.graph.reshape(y, (n, o, *count))


def _native_conv_weight(
    xp: Primitives,
    x: View,
    g: View,
    kernel: Shape,
    stride: Shape,
    padding: Pairs,
    dilation: Shape,
    groups: int,
) -> View:
    n, o, count = g.shape[0], g.shape[1], g.shape[2:]
    weights = o * x.shape[1] * math.prod(kernel)
    if 0 not in count and _is_direct(x, g, kernel, padding, groups, count[-1], weights):
        spec = (n, x.shape[1], o, x.shape[2:], kernel, stride, padding, dilation)
        return _direct(xp, "conv_weight", x, g, spec, (o, x.shape[1], *kernel))
    cols = _native_columns(xp, x, kernel, stride, padding, dilation, groups, count)
    gm = xp.graph.reshape(g, (n, groups, o // groups, math.prod(count)))
    y = xp.sum(xp.matmul(gm, xp.matrix_transpose(cols)), axis=(0,), keepdims=False)
    return xp.graph.reshape(y, (o, x.shape[1] // groups, *kernel))


def _native_conv_input(
    xp: Primitives, g: View, w: View, size: Shape, stride: Shape, padding: Pairs, dilation: Shape, groups: int
) -> View:
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
    return native_spread(xp, xp.graph.permute(cols, order), size, kernel, stride, padding, dilation)


_CONV = ("stride", "padding", "dilation", "groups")
define("conv", _conv,
       lambda xp, g, z, x, w, **at: xp.conv_input(g, w, size=x.shape[2:], **at),
       lambda xp, g, z, x, w, **at: xp.conv_weight(x, g, kernel=w.shape[2:], **at),
       saves="xw", reads=("w", "x"), kind="bilinear", params=_CONV,
       shape=_conv_shape, batch=_conv_batch, reference="formula", lower=_native_conv, sparsity="sliding", kernel="forward", doc="The convolution of images with kernels.")  # fmt: skip
define("conv_input", _conv_input,
       lambda xp, h, z, g, w, size, **at: xp.conv(h, w, **at),
       lambda xp, h, z, g, w, size, **at: xp.conv_weight(h, g, kernel=w.shape[2:], **at),
       saves="gw", reads=("w", "g"), kind="bilinear", params=("size", *_CONV),
       shape=_conv_input_shape, batch=_conv_batch, reference="formula", lower=_native_conv_input, sparsity="sliding", kernel="forward", doc="The transposed convolution: the gradient of conv for its images, whose space axes have the lengths ``size``.")  # fmt: skip
define("conv_weight", _conv_weight,
       lambda xp, h, z, x, g, kernel, **at: xp.conv_input(g, h, size=x.shape[2:], **at),
       lambda xp, h, z, x, g, kernel, **at: xp.conv(x, h, **at),
       saves="xg", reads=("g", "x"), kind="bilinear", params=("kernel", *_CONV),
       shape=_conv_weight_shape, batch=_conv_weight_batch, reference="formula", lower=_native_conv_weight, kernel="forward", doc="The correlation of images with outputs: the gradient of conv for its kernels.")  # fmt: skip
