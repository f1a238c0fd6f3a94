"""Geometry of sliding windows, for convolution and pooling.

Sizes, kernels, strides and dilations are tuples with one entry per space axis; ``padding`` has pairs
``(before, after)``.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.native import Primitives, View
from adjoint.core.shapes import Shape
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, ShapeError

__all__ = [
    "Pairs", "blank", "counts", "images", "inner_part", "native_image", "native_spread", "native_windows",
    "numbers", "padded", "spots", "whole",
]  # fmt: skip

Pairs = tuple[tuple[int, int], ...]


def counts(size: Shape, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Shape:
    """Return the number of sliding windows along each axis of an image of size ``size``."""
    return tuple(
        max((n + lo + hi - d * (k - 1) - 1) // s + 1, 0)
        for n, k, s, (lo, hi), d in zip(size, kernel, stride, padding, dilation, strict=True)
    )


def spots(kernel: Shape, stride: Shape, dilation: Shape, count: Shape) -> Iterator[tuple[Any, ...]]:
    """Yield an index for each position in the kernel; it selects the element at this position of all windows.

    It is an index into the padded image; ``count`` is the number of windows along each axis.
    """
    axes = [
        [slice(d * i, d * i + s * (n - 1) + 1, s) for i in range(k)]
        for k, s, d, n in zip(kernel, stride, dilation, count, strict=True)
    ]
    for spot in itertools.product(*axes):
        yield (..., *spot)


def blank(like: Any, *shape: int) -> Any:
    """Return zeros of shape ``shape`` with the memory order of ``like``.

    Arithmetic with arrays of different memory orders is 3 times as slow.
    """
    return np.zeros_like(like, shape=shape, subok=False)


def padded(x: Any, padding: Pairs, value: Any = 0) -> Any:
    """Return ``x`` with its last axes padded with ``value``.

    A negative width after an axis is ignored, because no window reads the elements there.
    """
    if all(lo <= 0 and hi <= 0 for lo, hi in padding):
        return x
    lead, size = x.shape[: -len(padding)], x.shape[-len(padding) :]
    out = blank(x, *lead, *whole(size, padding))
    if value:
        out[...] = value
    out[inner_part(size, padding)] = x
    return out


def whole(size: Shape, padding: Pairs) -> Shape:
    return tuple(lo + n + max(hi, 0) for n, (lo, hi) in zip(size, padding, strict=True))


def inner_part(size: Shape, padding: Pairs) -> tuple[Any, ...]:
    return (..., *(slice(lo, lo + n) for n, (lo, _) in zip(size, padding, strict=True)))


def numbers(op: str, name: str, value: Any, nd: int, least: int) -> Shape:
    """Return ``value``, an integer or a tuple of integers, as a tuple with one integer for each axis.

    ``nd`` is the number of axes.  Raise if an integer is less than ``least``.  ``op`` and ``name`` are the
    names of the caller and of the argument, for errors.
    """
    try:
        items = (
            tuple(map(operator.index, value))
            if isinstance(value, (tuple, list))
            else (operator.index(value),) * nd
        )
    except TypeError:
        raise InputError(
            f"{op}: {name} must be an integer or a tuple of {nd} integers, one per axis, but is {value!r}."
        ) from None
    if len(items) == 1:
        items *= nd
    if len(items) != nd:
        raise ArgumentError(
            f"{op}: {name} must be an integer or a tuple of {nd} integers, one per axis, but is {value!r}."
        )
    if any(i < least for i in items):
        raise ArgumentError(f"{op}: {name} must be at least {least}, but got {value!r}.")
    return items


def images(op: str, x: Any, nd: int, lead: int = 2) -> tuple[Tensor, bool]:
    """Return images as a tensor with a batch axis, and whether this axis was added.

    ``nd`` is the number of space axes, and ``lead`` the number of axes before them, including the batch axis.
    Raise if ``x`` has another number of axes.
    """
    x = asarray(x)
    if x.ndim not in (nd + lead - 1, nd + lead):
        names = ", ".join(("length",) if nd == 1 else ("depth", "height", "width")[-nd:])
        raise ShapeError(
            f"{op}: images must have shape (batch, channels, {names}) or (channels, {names}), but have shape "
            f"{x.shape}."
        )
    alone = x.ndim == nd + lead - 1
    return (rec.reshape(x, shape=(1, *x.shape)) if alone else x), alone


# Native code: the windows of an image are a view with overlapping strides -----------------------


def native_image(xp: Primitives, x: View, padding: Pairs, value: Any = 0) -> View:
    """Return ``x`` with its last axes padded with ``value``; ``x`` itself if no padding is positive."""
    if all(lo <= 0 and hi <= 0 for lo, hi in padding):
        return x
    lead, size = x.shape[: -len(padding)], x.shape[-len(padding) :]
    return xp.placed((*lead, *whole(size, padding)), value, x.dtype, [(x, inner_part(size, padding))])


def native_windows(image: View, kernel: Shape, stride: Shape, dilation: Shape, count: Shape) -> View:
    """Return all windows of an image as one view of shape (…, *count, *kernel).

    ``count`` is the number of windows along each axis.
    """
    nd = len(kernel)
    steps = image.strides[-nd:]
    outer = [s * step if n > 1 else 0 for s, step, n in zip(stride, steps, count, strict=True)]
    within = [d * step if k > 1 else 0 for d, step, k in zip(dilation, steps, kernel, strict=True)]
    return image.strided((*image.shape[:-nd], *count, *kernel), (*image.strides[:-nd], *outer, *within))


def native_spread(
    xp: Primitives, parts: View, size: Shape, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape
) -> View:
    """Add the windows ``parts`` where they overlap; return the resulting image of size ``size``.

    The windows have the shape (…, *count, *kernel).  This is the adjoint of taking the windows of an image:
    it writes the windows into an array of zeros and sums a skewed view of this array.
    """
    nd = len(kernel)
    lead, count = parts.shape[: -2 * nd], parts.shape[-2 * nd : -nd]
    full, inner = whole(size, padding), inner_part(size, padding)
    g = xp.graph
    if all(s > d * (k - 1) for k, s, d in zip(kernel, stride, dilation, strict=True)):
        spot = native_windows(g.target((*lead, *full)), kernel, stride, dilation, count)
        return g.place((*lead, *full), parts.dtype, 0, [(parts, spot.where)])[inner]
    # zeros[k] has the elements at offset k of all windows, with a margin of zeros: element i of the image is
    # the sum over k of zeros[k, i - dilation · k]
    margin = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    long = [m + n for m, n in zip(margin, full, strict=True)]
    order = [*range(len(lead)), *range(len(lead) + nd, len(lead) + 2 * nd), *range(len(lead), len(lead) + nd)]
    key = [slice(m, m + (n - 1) * s + 1, s) for m, n, s in zip(margin, count, stride, strict=True)]
    zeros = xp.placed((*lead, *kernel, *long), 0, parts.dtype, [(g.permute(parts, order), (..., *key))])
    steps = zeros.strides[-nd:]
    skewed = [z - d * s for z, d, s in zip(zeros.strides[-2 * nd : -nd], dilation, steps, strict=True)]
    skewed = [s if k > 1 else 0 for s, k in zip(skewed, kernel, strict=True)]
    offset = sum(m * s for m, s in zip(margin, steps, strict=True))
    view = zeros.strided((*lead, *full, *kernel), (*zeros.strides[: len(lead)], *steps, *skewed), offset)
    return g.reduce(
        "sum", view[(*inner, *(slice(None),) * nd)], range(len(lead) + nd, len(lead) + 2 * nd), parts.dtype
    )
