"""Modules for convolutions and transposed convolutions over one, two and three axes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.nn import init
from adjoint.nn.arguments import lengths, sizes, unusual
from adjoint.nn.module import Module, Parameter
from adjoint.nn.shared_docs import layer_doc
from adjoint.nn.widths import warn_if_wider
from adjoint.ops import convolutions
from adjoint.typing import ArrayLike, DTypeLike, Lengths

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

_convolution_doc = layer_doc.extended("""
    Parameters
    ----------
    in_channels : int
        The number of input channels.
    out_channels : int
        The number of output channels.
    kernel_size : int or tuple of int
        The size of the kernel.
    stride : int or tuple of int
        The distance between positions of the kernel.
    padding : int, tuple of int, "same" or "valid"
        The number of zeros added at each end.
    dilation : int or tuple of int
        The distance between elements of the kernel.
    groups : int
        The number of groups of channels that are convolved separately.
    """)

_transposed_doc = _convolution_doc.extended("""
    Parameters
    ----------
    stride : int or tuple of int
        The distance between the positions at which the kernel is added.
    padding : int or tuple of int
        The number of rows at each end that are removed from the result.
    output_padding : int or tuple of int
        The number of rows that are added at one end of the result; less than the stride.
    """)


class _Convolution(Module):
    """Base class of convolutions over ``ndim`` axes, with the weight, the bias and the options."""

    ndim: ClassVar[int]
    transposed: ClassVar[bool]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Lengths,
        stride: Lengths,
        padding: Lengths | str,
        dilation: Lengths,
        groups: int,
        bias: bool,
        rng: init.Rng,
        dtype: DTypeLike,
    ) -> None:
        layer = type(self).__name__
        sizes(layer, in_channels=in_channels, out_channels=out_channels, groups=groups)
        rng = init.generator(rng)
        kernel = lengths(layer, "kernel_size", kernel_size, self.ndim)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"{layer}: in_channels and out_channels must be multiples of groups={groups}, but are "
                f"{in_channels} and {out_channels}."
            )
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        shape = (first, second // groups, *kernel)
        bound = 1.0 / math.sqrt(math.prod(shape[1:]))
        self.in_channels, self.out_channels = in_channels, out_channels
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.weight = Parameter(init.uniform(shape, bound, rng=rng, dtype=dtype))
        self.bias = Parameter(init.uniform((out_channels,), bound, rng=rng, dtype=dtype)) if bias else None

    def extra_repr(self) -> str:
        """Return channels, kernel, stride, padding and the options that are not the defaults, for repr."""
        kernel = tuple(self.weight.shape[2:])
        options = {
            "output_padding": (getattr(self, "output_padding", 0), 0),
            "dilation": (self.dilation, 1),
            "groups": (self.groups, 1),
            "bias": (self.bias is not None, True),
        }
        shape = f"{self.in_channels}, {self.out_channels}, kernel={kernel}"
        return f"{shape}, stride={self.stride}, padding={self.padding}" + unusual(options)


class _Conv(_Convolution):
    """Base class of convolutions; the weight is (out, in / groups, *kernel)."""

    transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Lengths,
        stride: Lengths = 1,
        padding: Lengths | str = 0,
        dilation: Lengths = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        rng: init.Rng = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, rng, dtype
        )

    def forward(self, x: ArrayLike) -> Tensor:
        """Apply the convolution.

        Parameters
        ----------
        x : array_like
            The input, with shape (N, C, …) or (C, …).

        Returns
        -------
        Tensor
            The result.
        """
        w = self.weight
        function = getattr(convolutions, f"conv{self.ndim}d")
        y: Tensor = function(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)
        if y._data.dtype is not w._data.dtype:
            warn_if_wider(w, y)
        return y


class _ConvTranspose(_Convolution):
    """Base class of transposed convolutions; the weight is (in, out / groups, *kernel)."""

    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Lengths,
        stride: Lengths = 1,
        padding: Lengths | str = 0,
        output_padding: Lengths = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Lengths = 1,
        *,
        rng: init.Rng = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, rng, dtype
        )
        self.output_padding = output_padding

    def forward(self, x: ArrayLike, output_size: Lengths | None = None) -> Tensor:
        """Apply the transposed convolution.

        Parameters
        ----------
        x : array_like
            The input, with shape (N, C, …) or (C, …).
        output_size : int or tuple of int, optional
            The lengths of the spatial axes of the result.  It replaces ``output_padding``.

        Returns
        -------
        Tensor
            The result.

        Raises
        ------
        ShapeError
            If no output padding gives ``output_size``.
        """
        x, w = asarray(x), self.weight
        extra = self.output_padding if output_size is None else self._extra(x, output_size)
        function = getattr(convolutions, f"conv_transpose{self.ndim}d")
        y: Tensor = function(x, w, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)
        if y._data.dtype is not w._data.dtype:
            warn_if_wider(w, y)
        return y

    def _extra(self, x: Tensor, output_size: Any) -> tuple[int, ...]:
        """Return the output padding with which the output has size ``output_size``; raise if none does."""
        layer, nd = type(self).__name__, self.ndim
        wanted = lengths(layer, "output_size", output_size, nd)
        stride = lengths(layer, "stride", self.stride, nd)
        dilation = lengths(layer, "dilation", self.dilation, nd)
        padding = lengths(layer, "padding", self.padding, nd, low=0)
        axes = zip(x.shape[-nd:], stride, padding, dilation, self.weight.shape[2:], strict=True)
        least = tuple((n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in axes)
        extra = tuple(w - n for w, n in zip(wanted, least, strict=True))
        if any(not 0 <= e < s for e, s in zip(extra, stride, strict=True)):
            most = tuple(n + s - 1 for n, s in zip(least, stride, strict=True))
            raise ShapeError(
                f"{layer}: output_size must be from {least} to {most} for an input of shape {x.shape}, "
                f"but is {wanted}."
            )
        return extra


@_convolution_doc
class Conv1d(_Conv):
    """Convolution over one axis.

    The input has shape (N, C, L) or (C, L).  The weight has shape
    (out_channels, in_channels / groups, …).

    >>> ad.nn.Conv1d(3, 8, 3)(ad.ones((2, 3, 5), dtype="float32")).shape
    (2, 8, 3)
    """

    ndim = 1


@_convolution_doc
class Conv2d(_Conv):
    """Convolution over two axes.

    The input has shape (N, C, H, W) or (C, H, W).  The weight has shape
    (out_channels, in_channels / groups, …).

    >>> ad.nn.Conv2d(3, 8, 3)(ad.ones((2, 3, 5, 5), dtype="float32")).shape
    (2, 8, 3, 3)
    """

    ndim = 2


@_convolution_doc
class Conv3d(_Conv):
    """Convolution over three axes.

    The input has shape (N, C, D, H, W) or (C, D, H, W).  The weight has shape
    (out_channels, in_channels / groups, …).

    >>> ad.nn.Conv3d(3, 8, 3)(ad.ones((2, 3, 5, 5, 5), dtype="float32")).shape
    (2, 8, 3, 3, 3)
    """

    ndim = 3


@_transposed_doc
class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution over one axis.

    The input has shape (N, C, L) or (C, L).  The weight has shape
    (in_channels, out_channels / groups, …).

    >>> ad.nn.ConvTranspose1d(3, 8, 3, stride=2)(ad.ones((2, 3, 5), dtype="float32")).shape
    (2, 8, 11)
    """

    ndim = 1


@_transposed_doc
class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution over two axes.

    The input has shape (N, C, H, W) or (C, H, W).  The weight has shape
    (in_channels, out_channels / groups, …).

    >>> ad.nn.ConvTranspose2d(3, 8, 3, stride=2)(ad.ones((2, 3, 5, 5), dtype="float32")).shape
    (2, 8, 11, 11)
    """

    ndim = 2


@_transposed_doc
class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution over three axes.

    The input has shape (N, C, D, H, W) or (C, D, H, W).  The weight has shape
    (in_channels, out_channels / groups, …).

    >>> ad.nn.ConvTranspose3d(3, 8, 3, stride=2)(ad.ones((2, 3, 5, 5, 5), dtype="float32")).shape
    (2, 8, 11, 11, 11)
    """

    ndim = 3
