"""Sliding windows of images as columns, and back: unfold and fold (im2col and col2im)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.docstrings import shared_with
from adjoint.core.namespace import rec
from adjoint.core.shapes import Shape
from adjoint.core.tensor import Tensor
from adjoint.errors import ShapeError
from adjoint.ops.shared_docs import argument_doc
from adjoint.ops.windows import counts, numbers
from adjoint.typing import ArrayLike, Lengths

__all__ = ["fold", "unfold"]


def _geometry(
    op: str, size: Shape, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> tuple[Shape, Shape, Any]:
    """Return the kernel size, the padding, and an array with the position of each element of each window.

    The array has the shape (kernel elements, windows); its values are indices into the flattened padded
    image.  ``size`` is the size of the image without padding; ``op`` is the name of the caller, for errors.
    """
    nd = len(size)
    kernel, step = numbers(op, "kernel_size", kernel_size, nd, 1), numbers(op, "stride", stride, nd, 1)
    apart, widths = numbers(op, "dilation", dilation, nd, 1), numbers(op, "padding", padding, nd, 0)
    count = counts(size, kernel, step, tuple((p, p) for p in widths), apart)
    if not math.prod(count):
        raise ShapeError(f"{op}: the kernel of size {kernel} is larger than the padded image of size {size}.")
    position = np.zeros((1, 1), np.intp)
    for n, k, s, d, p, m in zip(size, kernel, step, apart, widths, count, strict=True):
        along = np.arange(k)[:, None] * d + np.arange(m) * s
        joined = position[:, None, :, None] * (n + 2 * p) + along[:, None, :]
        position = joined.reshape(len(position) * k, position.shape[1] * m)
    return kernel, widths, position


@argument_doc
def unfold(
    x: ArrayLike, kernel_size: Lengths, dilation: Lengths = 1, padding: Lengths = 0, stride: Lengths = 1
) -> Tensor:
    """Return the elements of each sliding window as a column.

    Parameters
    ----------
    x : array_like
        The images, ``(N, C, H, W)`` or ``(C, H, W)``.
    kernel_size : int or tuple of int
        The size of the windows.
    dilation : int or tuple of int, optional
        The distance between the elements of a window.
    padding : int or tuple of int, optional
        The number of zeros to add on both sides.
    stride : int or tuple of int, optional
        The step of the windows.

    Returns
    -------
    Tensor
        The columns, ``(N, C · kernel elements, windows)``, without N for one image.

    Raises
    ------
    ShapeError
        If a window is larger than the padded image.

    >>> ad.nn.functional.unfold(ad.arange(9.0).reshape(1, 1, 3, 3), 2)
    tensor([[[0., 1., 3., 4.],
             [1., 2., 4., 5.],
             [3., 4., 6., 7.],
             [4., 5., 7., 8.]]], dtype=float64)
    """
    x = asarray(x)
    if x.ndim not in (3, 4):
        raise ShapeError(f"unfold: x must have shape (N, C, H, W) or (C, H, W), but has shape {x.shape}.")
    *lead, c, h, w = x.shape
    _, (top, left), position = _geometry("unfold", (h, w), kernel_size, dilation, padding, stride)
    if top or left:
        widths = (*((0, 0),) * (x.ndim - 2), (top, top), (left, left))
        x = rec.pad(x, widths=widths, value=0)
    flat = rec.reshape(x, shape=(*lead, c, x.shape[-2] * x.shape[-1]))
    return rec.reshape(rec.take(flat, position, axis=-1), shape=(*lead, c * len(position), position.shape[1]))


@shared_with(unfold)
def fold(
    x: ArrayLike,
    output_size: Lengths,
    kernel_size: Lengths,
    dilation: Lengths = 1,
    padding: Lengths = 0,
    stride: Lengths = 1,
) -> Tensor:
    """Add columns into images: the adjoint of ``unfold``.

    Parameters
    ----------
    x : array_like
        The columns, ``(N, C · kernel elements, windows)`` or without N.
    output_size : int or tuple of int
        The height and the width of the images.
    padding : int or tuple of int, optional
        The number of zeros that were added on both sides.

    Returns
    -------
    Tensor
        The images, ``(N, C, H, W)`` or ``(C, H, W)``; where windows overlap, their elements are summed.

    Raises
    ------
    ShapeError
        If the number of columns or of their elements does not match the images.

    >>> ad.nn.functional.fold(ad.ones((1, 4, 4)), 3, 2)
    tensor([[[[1., 2., 1.],
              [2., 4., 2.],
              [1., 2., 1.]]]], dtype=float64)
    """
    x = asarray(x)
    size = numbers("fold", "output_size", output_size, 2, 1)
    _, (top, left), position = _geometry("fold", size, kernel_size, dilation, padding, stride)
    if x.ndim not in (2, 3) or x.shape[-2] % len(position) or x.shape[-1] != position.shape[1]:
        raise ShapeError(
            f"fold: x must have shape (N, C·{len(position)}, {position.shape[1]}), with or without N, for "
            f"{len(position)} elements in the kernel and {position.shape[1]} positions of the kernel in the "
            f"output, but has shape {x.shape}."
        )
    *lead, rows, _ = x.shape
    h, w = size[0] + 2 * top, size[1] + 2 * left
    split = rec.reshape(x, shape=(*lead, rows // len(position), *position.shape))
    flat = rec.untake(split, position, axis=-1, length=h * w)
    image = rec.reshape(flat, shape=(*flat.shape[:-1], h, w))
    return image[..., top : h - top, left : w - left] if top or left else image
