"""Convolutions and transposed convolutions over one, two and three axes.

The functions are written out, here and in ``pool.py``, so that editors, type checkers and ``help`` know the
signatures, and errors for wrong keywords name the function that was called.
"""

from __future__ import annotations

import operator
from typing import Any

from adjoint.core.convert import asarray
from adjoint.core.docstrings import SharedDoc
from adjoint.core.namespace import rec
from adjoint.core.shapes import Shape
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError
from adjoint.ops.shared_docs import images_doc, signals_doc, volumes_doc
from adjoint.ops.windows import Pairs, images, numbers
from adjoint.typing import Array, ArrayLike, Lengths

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]


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
    op: str, nd: int, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any
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


_convolution_doc = SharedDoc("""
    Parameters
    ----------
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
    """)


_transposed_doc = _convolution_doc.extended("""
    Parameters
    ----------
    padding : int or tuple of int, optional
        The number of elements to remove on both sides.
    output_padding : int or tuple of int, optional
        The number of elements to add at the end.
    """)


@signals_doc
@_convolution_doc
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
    weight : array_like
        The kernels, ``(O, C / groups, K)``.

    >>> ad.nn.functional.conv1d(ad.arange(4.0).reshape(1, 1, 4), ad.ones((1, 1, 2)))
    tensor([[[1., 3., 5.]]], dtype=float64)
    """
    return _convolve("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


@images_doc
@_convolution_doc
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
    weight : array_like
        The kernels, ``(O, C / groups, KH, KW)``.
    stride : int or tuple of int, optional
        The step of the windows, for both axes or for each.
    padding : int, tuple of int, "same" or "valid", optional
        The number of zeros on both sides. "valid" is 0. "same" keeps the size; it needs stride 1,
        and adds one more zero after the image for an even kernel.

    >>> x = ad.arange(9.0).reshape(1, 1, 3, 3)
    >>> ad.nn.functional.conv2d(x, ad.ones((1, 1, 2, 2)))
    tensor([[[[ 8., 12.],
              [20., 24.]]]], dtype=float64)
    """
    return _convolve("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


@volumes_doc
@_convolution_doc
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
    weight : array_like
        The kernels, ``(O, C / groups, KD, KH, KW)``.

    >>> ad.nn.functional.conv3d(ad.ones((1, 1, 3, 3, 3)), ad.ones((2, 1, 2, 2, 2))).shape
    (1, 2, 2, 2, 2)
    """
    return _convolve("conv3d", 3, x, weight, bias, stride, padding, dilation, groups)


@signals_doc
@_transposed_doc
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
    weight : array_like
        The kernels, ``(C, O / groups, K)``.

    >>> ad.nn.functional.conv_transpose1d(ad.ones((1, 1, 2)), ad.ones((1, 1, 2)))
    tensor([[[1., 2., 1.]]], dtype=float64)
    """
    return _transpose(
        "conv_transpose1d", 1, x, weight, bias, stride, padding, output_padding, groups, dilation
    )


@images_doc
@_transposed_doc
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
    weight : array_like
        The kernels, ``(C, O / groups, KH, KW)``.
    stride : int or tuple of int, optional
        The step of the windows, for both axes or for each.
    output_padding : int or tuple of int, optional
        The number of elements to add at the end, less than the stride or the dilation.

    >>> ad.nn.functional.conv_transpose2d(ad.ones((1, 1, 1, 2)), ad.ones((1, 1, 1, 2)))
    tensor([[[[1., 2., 1.]]]], dtype=float64)
    """
    return _transpose(
        "conv_transpose2d", 2, x, weight, bias, stride, padding, output_padding, groups, dilation
    )


@volumes_doc
@_transposed_doc
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
    weight : array_like
        The kernels, ``(C, O / groups, KD, KH, KW)``.

    >>> ad.nn.functional.conv_transpose3d(ad.ones((1, 1, 2, 2, 2)), ad.ones((1, 3, 2, 2, 2))).shape
    (1, 3, 3, 3, 3)
    """
    return _transpose(
        "conv_transpose3d", 3, x, weight, bias, stride, padding, output_padding, groups, dilation
    )
