"""Pooling as modules."""

from __future__ import annotations

from typing import Any

from adjoint.core.tensor import Tensor
from adjoint.nn.arguments import unusual
from adjoint.nn.module import Module
from adjoint.ops import pool

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
]


class _Pool(Module):
    """Pooling with a window, a stride (the window's size if None) and padding."""

    name = ""

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x: Any) -> Tensor:
        """Pool the last axes."""
        found: Tensor = getattr(pool, self.name)(x, self.kernel_size, self.stride, self.padding)
        return found

    def extra_repr(self) -> str:
        """The window, its stride and padding."""
        rest = {"stride": (self.stride, None), "padding": (self.padding, 0)}
        return f"{self.kernel_size}" + unusual(rest)


class MaxPool1d(_Pool):
    """The maximum of each window of one axis."""

    name = "max_pool1d"


class MaxPool2d(_Pool):
    """The maximum of each window of two axes."""

    name = "max_pool2d"


class AvgPool1d(_Pool):
    """The mean of each window of one axis."""

    name = "avg_pool1d"


class AvgPool2d(_Pool):
    """The mean of each window of two axes."""

    name = "avg_pool2d"


class MaxPool3d(_Pool):
    """The maximum of each window of three axes."""

    name = "max_pool3d"


class AvgPool3d(_Pool):
    """The mean of each window of three axes."""

    name = "avg_pool3d"


class _AdaptiveAvgPool(Module):
    """Means over windows so chosen that the output has a given size."""

    name = ""

    def __init__(self, output_size: Any) -> None:
        self.output_size = output_size

    def forward(self, x: Any) -> Tensor:
        """Pool the last axes."""
        found: Tensor = getattr(pool, self.name)(x, self.output_size)
        return found

    def extra_repr(self) -> str:
        """The size of the output."""
        return f"{self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means over windows of one axis so chosen that the output has a given size."""

    name = "adaptive_avg_pool1d"


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means over windows of two axes so chosen that the output has a given size."""

    name = "adaptive_avg_pool2d"


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means over windows of three axes so chosen that the output has a given size."""

    name = "adaptive_avg_pool3d"
