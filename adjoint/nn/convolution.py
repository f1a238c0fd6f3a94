"""Convolutions and transposed convolutions over one, two and three axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.nn import init
from adjoint.nn.arguments import lengths, sizes, unusual
from adjoint.nn.module import Module, Parameter
from adjoint.nn.widths import warn_if_wider
from adjoint.ops import conv

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
]


class _Conv(Module):
    """A convolution over ``ndim`` axes; the weight is (out, in / groups, *kernel)."""

    ndim = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        layer = type(self).__name__
        sizes(layer, in_channels=in_channels, out_channels=out_channels, groups=groups)
        rng = init.generator(rng)
        kernel = lengths(layer, "kernel_size", kernel_size, self.ndim)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(f"groups={groups} must divide {in_channels} and {out_channels} channels.")
        shape = (out_channels, in_channels // groups, *kernel)
        bound = 1.0 / math.sqrt(math.prod(shape[1:]))
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.weight = Parameter(init.uniform(shape, bound, rng=rng, dtype=dtype))
        self.bias = Parameter(init.uniform((out_channels,), bound, rng=rng, dtype=dtype)) if bias else None

    def forward(self, x: Any) -> Tensor:
        """Convolve (N, C, …)."""
        w = self.weight
        function = getattr(conv, f"conv{self.ndim}d")
        y: Tensor = function(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)
        if y._data.dtype is not w._data.dtype:
            warn_if_wider(w, y)
        return y

    def extra_repr(self) -> str:
        """Channels, kernel, stride, padding, and what else is not as usual."""
        out, inner, *kernel = self.weight.shape
        shape = f"{inner * self.groups}, {out}, kernel={tuple(kernel)}"
        rest = {
            "dilation": (self.dilation, 1),
            "groups": (self.groups, 1),
            "bias": (self.bias is not None, True),
        }
        return f"{shape}, stride={self.stride}, padding={self.padding}" + unusual(rest)


class Conv1d(_Conv):
    """A convolution over one axis: (N, C, L)."""

    ndim = 1


class Conv2d(_Conv):
    """A convolution over two axes: (N, C, H, W)."""

    ndim = 2


class Conv3d(_Conv):
    """A convolution over three axes: (N, C, D, H, W)."""

    ndim = 3


class _ConvTranspose(Module):
    """The adjoint of a convolution over ``ndim`` axes; the weight is (in, out / groups, *kernel)."""

    ndim = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        layer = type(self).__name__
        sizes(layer, in_channels=in_channels, out_channels=out_channels, groups=groups)
        rng = init.generator(rng)
        kernel = lengths(layer, "kernel_size", kernel_size, self.ndim)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(f"groups={groups} must divide {in_channels} and {out_channels} channels.")
        shape = (in_channels, out_channels // groups, *kernel)
        bound = 1.0 / math.sqrt(math.prod(shape[1:]))
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.groups, self.dilation = groups, dilation
        self.weight = Parameter(init.uniform(shape, bound, rng=rng, dtype=dtype))
        self.bias = Parameter(init.uniform((out_channels,), bound, rng=rng, dtype=dtype)) if bias else None

    def forward(self, x: Any, output_size: Any = None) -> Tensor:
        """Spread (N, C, …); ``output_size``, one length per space axis, chooses the output padding."""
        x, w = asarray(x), self.weight
        extra = self.output_padding if output_size is None else self._extra(x, output_size)
        function = getattr(conv, f"conv_transpose{self.ndim}d")
        y: Tensor = function(x, w, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)
        if y._data.dtype is not w._data.dtype:
            warn_if_wider(w, y)
        return y

    def _extra(self, x: Tensor, output_size: Any) -> tuple[int, ...]:
        """The output padding that leads to ``output_size``."""
        layer, nd = type(self).__name__, self.ndim
        wanted = lengths(layer, "output_size", output_size, nd)
        stride, dilation = (
            lengths(layer, n, v, nd) for n, v in (("stride", self.stride), ("dilation", self.dilation))
        )
        padding = lengths(layer, "padding", self.padding, nd, low=0)
        least = [
            (n - 1) * s - 2 * p + d * (k - 1) + 1
            for n, s, p, d, k in zip(
                x.shape[-nd:], stride, padding, dilation, self.weight.shape[2:], strict=True
            )
        ]
        extra = tuple(w - n for w, n in zip(wanted, least, strict=True))
        if any(not 0 <= e < s for e, s in zip(extra, stride, strict=True)):
            most = tuple(n + s - 1 for n, s in zip(least, stride, strict=True))
            raise ShapeError(
                f"{layer}: output_size is from {tuple(least)} to {most} for an input of shape {x.shape}, "
                f"but is {wanted}."
            )
        return extra

    def extra_repr(self) -> str:
        """Channels, kernel, stride, padding, and what else is not as usual."""
        inner, out, *kernel = self.weight.shape
        shape = f"{inner}, {out * self.groups}, kernel={tuple(kernel)}"
        rest = {
            "output_padding": (self.output_padding, 0),
            "dilation": (self.dilation, 1),
            "groups": (self.groups, 1),
            "bias": (self.bias is not None, True),
        }
        return f"{shape}, stride={self.stride}, padding={self.padding}" + unusual(rest)


class ConvTranspose1d(_ConvTranspose):
    """The adjoint of a convolution over one axis: (N, C, L)."""

    ndim = 1


class ConvTranspose2d(_ConvTranspose):
    """The adjoint of a convolution over two axes: (N, C, H, W)."""

    ndim = 2


class ConvTranspose3d(_ConvTranspose):
    """The adjoint of a convolution over three axes: (N, C, D, H, W)."""

    ndim = 3
