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
from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.infer import Result
from adjoint.core.namespace import rec
from adjoint.core.op import Op
from adjoint.core.record import compute
from adjoint.core.shapes import Shape
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError
from adjoint.ops.half import wide
from adjoint.ops.windows import Pairs, counts, images, inner_part, numbers, padded, spots, whole
from adjoint.typing import Array, ArrayLike, Lengths

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]

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


_CONV = ("stride", "padding", "dilation", "groups")
define("conv", _conv,
       lambda xp, g, z, x, w, **at: xp.conv_input(g, w, size=x.shape[2:], **at),
       lambda xp, g, z, x, w, **at: xp.conv_weight(x, g, kernel=w.shape[2:], **at),
       saves="xw", reads=("w", "x"), kind="bilinear", params=_CONV,
       shape=_conv_shape, batch=_conv_batch, reference="formula", doc="The convolution of images with kernels.")  # fmt: skip
define("conv_input", _conv_input,
       lambda xp, h, z, g, w, size, **at: xp.conv(h, w, **at),
       lambda xp, h, z, g, w, size, **at: xp.conv_weight(h, g, kernel=w.shape[2:], **at),
       saves="gw", reads=("w", "g"), kind="bilinear", params=("size", *_CONV),
       shape=_conv_input_shape, batch=_conv_batch, reference="formula", doc="The transposed convolution: the gradient of conv for its images, whose space axes have the lengths ``size``.")  # fmt: skip
define("conv_weight", _conv_weight,
       lambda xp, h, z, x, g, kernel, **at: xp.conv_input(g, h, size=x.shape[2:], **at),
       lambda xp, h, z, x, g, kernel, **at: xp.conv(x, h, **at),
       saves="xg", reads=("g", "x"), kind="bilinear", params=("kernel", *_CONV),
       shape=_conv_weight_shape, batch=_conv_weight_batch, reference="formula", doc="The correlation of images with outputs: the gradient of conv for its kernels.")  # fmt: skip

# Public functions ------------------------------------------------------------------------------


def _padding(op: str, padding: Any, nd: int, kernel: Shape, stride: Shape, dilation: Shape) -> Pairs:
    if not isinstance(padding, str):
        return tuple((p, p) for p in numbers(op, "padding", padding, nd, 0))
    if padding == "valid":
        return ((0, 0),) * nd
    if padding != "same":
        raise ArgumentError(f"{op}: padding must be a number, a tuple, 'same' or 'valid', not {padding!r}.")
    if any(s != 1 for s in stride):
        raise ArgumentError(f"{op}: padding='same' requires stride 1, but the stride is {stride}.\n"
                            "  Pass the padding as numbers.")  # fmt: skip
    # an even kernel needs one more element after the image than before it
    return tuple(
        (d * (k - 1) // 2, d * (k - 1) - d * (k - 1) // 2) for k, d in zip(kernel, dilation, strict=True)
    )


def _kernels(op: str, x: Tensor, weight: Any, groups: Any, transposed: bool) -> tuple[Tensor, int]:
    """Return the kernels ``weight`` as a tensor, and the number of groups; raise if they do not match ``x``.

    ``transposed`` says that the kernels are those of a transposed convolution.
    """
    w = asarray(weight)
    try:
        groups = operator.index(groups)
    except TypeError:
        raise InputError(f"{op}: groups must be an integer, but got {groups!r}.") from None
    if groups < 1:
        raise ArgumentError(f"{op}: groups must be at least 1, but is {groups}.")
    first, second = ("in_channels", "out_channels") if transposed else ("out_channels", "in_channels")
    if w.ndim != x.ndim:
        raise ShapeError(
            f"{op}: the kernels must have {x.ndim} axes, as the images of shape {x.shape} have: "
            f"({first}, {second} / groups, *kernel size).  They have shape {w.shape}."
        )
    if 0 in w.shape[2:]:
        raise ShapeError(f"{op}: the kernel must not be empty, but the kernels have shape {w.shape}.")
    channels = x.shape[1]
    if (w.shape[0] if transposed else w.shape[1] * groups) != channels or w.shape[0] % groups:
        wants = (
            f"({channels}, out_channels / {groups}, …)"
            if transposed
            else f"(out_channels, {channels} / {groups}, …)"
        )
        raise ShapeError(
            f"{op}: with groups={groups}, images of shape {x.shape} ({channels} channels) require kernels of "
            f"shape {wants}, with a first axis divisible by groups, but the kernels have shape {w.shape}."
        )
    return w, groups


def _with_bias(op: str, y: Tensor, bias: Array, alone: bool) -> Tensor:
    """Return ``y`` plus the bias; remove the batch axis if ``alone``, that is, if the input had none."""
    if bias is not None:
        b = asarray(bias)
        if b.shape != (y.shape[1],):
            raise ShapeError(
                f"{op}: the bias must have shape ({y.shape[1]},), one value per output channel, but has "
                f"shape {b.shape}."
            )
        y = y + rec.reshape(b, shape=(y.shape[1],) + (1,) * (y.ndim - 2))
    return rec.reshape(y, shape=y.shape[1:]) if alone else y


def _same_dtype(op: str, x: Tensor, w: Tensor) -> None:
    if x.dtype.kind == "b" or w.dtype.kind == "b":
        raise DTypeError(
            f"{op}: images and kernels must be numbers, but have dtypes {x.dtype} and {w.dtype}."
        )


def _convolve(
    op: str,
    nd: int,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
) -> Tensor:
    x, alone = images(op, x, nd)
    w, groups = _kernels(op, x, weight, groups, transposed=False)
    _same_dtype(op, x, w)
    kernel = w.shape[2:]
    stride, dilation = numbers(op, "stride", stride, nd, 1), numbers(op, "dilation", dilation, nd, 1)
    pairs = _padding(op, padding, nd, kernel, stride, dilation)
    for n, k, (lo, hi), d in zip(x.shape[2:], kernel, pairs, dilation, strict=True):
        if n + lo + hi < d * (k - 1) + 1:
            raise ShapeError(
                f"{op}: the kernel of size {kernel} with dilation {dilation} is larger than the padded image "
                f"(shape {x.shape}, padding {padding!r}).\n  Use a smaller kernel or more padding."
            )
    y = rec.conv(x, w, stride=stride, padding=pairs, dilation=dilation, groups=groups)
    return _with_bias(op, y, bias, alone)


def _transpose(
    op: str,
    nd: int,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: Any,
    dilation: Any,
) -> Tensor:
    x, alone = images(op, x, nd)
    w, groups = _kernels(op, x, weight, groups, transposed=True)
    _same_dtype(op, x, w)
    kernel = w.shape[2:]
    stride, dilation = numbers(op, "stride", stride, nd, 1), numbers(op, "dilation", dilation, nd, 1)
    widths, extra = (
        numbers(op, "padding", padding, nd, 0),
        numbers(op, "output_padding", output_padding, nd, 0),
    )
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise ArgumentError(
            f"{op}: output_padding {output_padding!r} must be smaller than the stride {stride} or the dilation {dilation}."
        )
    # output_padding adds elements after the last window, so it reduces the padding after
    pairs = tuple((p, p - e) for p, e in zip(widths, extra, strict=True))
    size = tuple(
        (n - 1) * s - lo - hi + d * (k - 1) + 1
        for n, s, (lo, hi), d, k in zip(x.shape[2:], stride, pairs, dilation, kernel, strict=True)
    )
    if min(size) < 1:
        raise ShapeError(
            f"{op}: images of shape {x.shape} and kernels of shape {w.shape} with padding {padding!r} would "
            f"give an output of size {size}, which is empty.\n"
            "  Use less padding."
        )
    y = rec.conv_input(x, w, size=size, stride=stride, padding=pairs, dilation=dilation, groups=groups)
    return _with_bias(op, y, bias, alone)


# The functions for one, two and three axes are written out, here and in pool.py.  So editors, type checkers
# and ``help`` know the signatures, and errors for wrong keywords name the function that was called.


def conv1d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Lengths = 1,
    padding: Lengths | str = 0,
    dilation: Lengths = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve signals with kernels; see ``conv2d``.

    Parameters
    ----------
    x : array_like
        The signals, ``(N, C, L)`` or ``(C, L)``.
    weight : array_like
        The kernels, ``(O, C / groups, K)``.
    bias : array_like, optional
        One number for each output channel.
    stride : int or tuple of int, optional
        The step of the windows.
    padding : int, tuple of int, "same" or "valid", optional
        The number of zeros on both sides.
    dilation : int or tuple of int, optional
        The distance between the elements of the kernel.
    groups : int, optional
        The number of groups into which the channels are split.

    Returns
    -------
    Tensor
        The output, with O channels.

    Raises
    ------
    ShapeError
        If the shapes do not match.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.functional.conv1d(ad.arange(4.0).reshape(1, 1, 4), ad.ones((1, 1, 2)))
    tensor([[[1., 3., 5.]]], dtype=float64)
    """
    return _convolve("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Lengths = 1,
    padding: Lengths | str = 0,
    dilation: Lengths = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve images with kernels.

    As usual in networks this is a correlation: the kernel is not flipped.

    Parameters
    ----------
    x : array_like
        The images, ``(N, C, H, W)`` or ``(C, H, W)``.
    weight : array_like
        The kernels, ``(O, C / groups, KH, KW)``.
    bias : array_like, optional
        One number for each output channel.
    stride : int or tuple of int, optional
        The step of the windows, for both axes or for each.
    padding : int, tuple of int, "same" or "valid", optional
        The number of zeros on both sides. "valid" is 0. "same" keeps the size; it needs stride 1,
        and adds one more zero after the image for an even kernel.
    dilation : int or tuple of int, optional
        The distance between the elements of the kernel.
    groups : int, optional
        The number of groups into which the channels are split.

    Returns
    -------
    Tensor
        The output, with O channels.

    Raises
    ------
    ShapeError
        If the shapes do not match.

    Examples
    --------
    >>> import adjoint as ad
    >>> x = ad.arange(9.0).reshape(1, 1, 3, 3)
    >>> ad.nn.functional.conv2d(x, ad.ones((1, 1, 2, 2)))
    tensor([[[[ 8., 12.],
              [20., 24.]]]], dtype=float64)
    """
    return _convolve("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Lengths = 1,
    padding: Lengths | str = 0,
    dilation: Lengths = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve volumes with kernels; see ``conv2d``.

    Parameters
    ----------
    x : array_like
        The volumes, ``(N, C, D, H, W)`` or ``(C, D, H, W)``.
    weight : array_like
        The kernels, ``(O, C / groups, KD, KH, KW)``.
    bias : array_like, optional
        One number for each output channel.
    stride : int or tuple of int, optional
        The step of the windows.
    padding : int, tuple of int, "same" or "valid", optional
        The number of zeros on both sides.
    dilation : int or tuple of int, optional
        The distance between the elements of the kernel.
    groups : int, optional
        The number of groups into which the channels are split.

    Returns
    -------
    Tensor
        The output, with O channels.

    Raises
    ------
    ShapeError
        If the shapes do not match.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.functional.conv3d(ad.ones((1, 1, 3, 3, 3)), ad.ones((2, 1, 2, 2, 2))).shape
    (1, 2, 2, 2, 2)
    """
    return _convolve("conv3d", 3, x, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Lengths = 1,
    padding: Lengths | str = 0,
    output_padding: Lengths = 0,
    groups: int = 1,
    dilation: Lengths = 1,
) -> Tensor:
    """Apply the transposed convolution to signals; see ``conv_transpose2d``.

    Parameters
    ----------
    x : array_like
        The signals, ``(N, C, L)`` or ``(C, L)``.
    weight : array_like
        The kernels, ``(C, O / groups, K)``.
    bias : array_like, optional
        One number for each output channel.
    stride : int or tuple of int, optional
        The step of the windows.
    padding : int or tuple of int, optional
        The number of elements to remove on both sides.
    output_padding : int or tuple of int, optional
        The number of elements to add at the end.
    groups : int, optional
        The number of groups into which the channels are split.
    dilation : int or tuple of int, optional
        The distance between the elements of the kernel.

    Returns
    -------
    Tensor
        The output, with O channels.

    Raises
    ------
    ShapeError
        If the shapes do not match.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.functional.conv_transpose1d(ad.ones((1, 1, 2)), ad.ones((1, 1, 2)))
    tensor([[[1., 2., 1.]]], dtype=float64)
    """
    return _transpose(
        "conv_transpose1d", 1, x, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose2d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Lengths = 1,
    padding: Lengths | str = 0,
    output_padding: Lengths = 0,
    groups: int = 1,
    dilation: Lengths = 1,
) -> Tensor:
    """Apply the transposed convolution, the adjoint of ``conv2d``, to images.

    The size of the output is ``(H - 1)·stride - 2·padding + dilation·(KH - 1) + output_padding + 1``.

    Parameters
    ----------
    x : array_like
        The images, ``(N, C, H, W)`` or ``(C, H, W)``.
    weight : array_like
        The kernels, ``(C, O / groups, KH, KW)``.
    bias : array_like, optional
        One number for each output channel.
    stride : int or tuple of int, optional
        The step of the windows, for both axes or for each.
    padding : int or tuple of int, optional
        The number of elements to remove on both sides.
    output_padding : int or tuple of int, optional
        The number of elements to add at the end, less than the stride or the dilation.
    groups : int, optional
        The number of groups into which the channels are split.
    dilation : int or tuple of int, optional
        The distance between the elements of the kernel.

    Returns
    -------
    Tensor
        The output, with O channels.

    Raises
    ------
    ShapeError
        If the shapes do not match.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.functional.conv_transpose2d(ad.ones((1, 1, 1, 2)), ad.ones((1, 1, 1, 2)))
    tensor([[[[1., 2., 1.]]]], dtype=float64)
    """
    return _transpose(
        "conv_transpose2d", 2, x, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose3d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Lengths = 1,
    padding: Lengths | str = 0,
    output_padding: Lengths = 0,
    groups: int = 1,
    dilation: Lengths = 1,
) -> Tensor:
    """Apply the transposed convolution to volumes; see ``conv_transpose2d``.

    Parameters
    ----------
    x : array_like
        The volumes, ``(N, C, D, H, W)`` or ``(C, D, H, W)``.
    weight : array_like
        The kernels, ``(C, O / groups, KD, KH, KW)``.
    bias : array_like, optional
        One number for each output channel.
    stride : int or tuple of int, optional
        The step of the windows.
    padding : int or tuple of int, optional
        The number of elements to remove on both sides.
    output_padding : int or tuple of int, optional
        The number of elements to add at the end.
    groups : int, optional
        The number of groups into which the channels are split.
    dilation : int or tuple of int, optional
        The distance between the elements of the kernel.

    Returns
    -------
    Tensor
        The output, with O channels.

    Raises
    ------
    ShapeError
        If the shapes do not match.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.functional.conv_transpose3d(ad.ones((1, 1, 2, 2, 2)), ad.ones((1, 3, 2, 2, 2))).shape
    (1, 3, 3, 3, 3)
    """
    return _transpose(
        "conv_transpose3d", 3, x, weight, bias, stride, padding, output_padding, groups, dilation
    )
