"""Modules for pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from adjoint.core.tensor import Tensor
from adjoint.nn.arguments import unusual
from adjoint.nn.module import Module
from adjoint.ops import pool
from adjoint.typing import ArrayLike, Lengths

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
    """Base class of pooling with a window."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self, kernel_size: Lengths, stride: Lengths | None = None, padding: Lengths | str = 0
    ) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x: ArrayLike) -> Tensor:
        """Pool the last axes.

        Parameters
        ----------
        x : array_like
            The input, with shape (N, C, …) or (C, …).

        Returns
        -------
        Tensor
            One value per window.
        """
        return self.function(x, self.kernel_size, self.stride, self.padding)

    def extra_repr(self) -> str:
        """Return the window, and stride and padding unless they are the defaults."""
        return f"{self.kernel_size}" + unusual({"stride": (self.stride, None), "padding": (self.padding, 0)})


class _AdaptiveAvgPool(Module):
    """Base class of pooling to a given output size."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, output_size: Lengths) -> None:
        self.output_size = output_size

    def forward(self, x: ArrayLike) -> Tensor:
        """Pool the last axes.

        Parameters
        ----------
        x : array_like
            The input, with shape (N, C, …) or (C, …).

        Returns
        -------
        Tensor
            The result, whose last axes have the lengths ``output_size``.
        """
        return self.function(x, self.output_size)

    def extra_repr(self) -> str:
        """Return the output size."""
        return f"{self.output_size}"


class MaxPool1d(_Pool):
    """Maximum of each window over one axis.

    Parameters
    ----------
    kernel_size : int or tuple of int
        The size of the window.
    stride : int or tuple of int, optional
        The distance between windows.  The default is the size of the window.
    padding : int or tuple of int
        The number of elements added at each end (minus infinity).

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.MaxPool1d(2)(ad.ones((1, 4, 6))).shape
    (1, 4, 3)
    """

    function = staticmethod(pool.max_pool1d)


class AvgPool1d(_Pool):
    """Mean of each window over one axis.

    Parameters
    ----------
    kernel_size : int or tuple of int
        The size of the window.
    stride : int or tuple of int, optional
        The distance between windows.  The default is the size of the window.
    padding : int or tuple of int
        The number of elements added at each end (zeros, which count in the mean).

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.AvgPool1d(2)(ad.ones((1, 4, 6))).shape
    (1, 4, 3)
    """

    function = staticmethod(pool.avg_pool1d)


class MaxPool2d(_Pool):
    """Maximum of each window over two axes.

    Parameters
    ----------
    kernel_size : int or tuple of int
        The size of the window.
    stride : int or tuple of int, optional
        The distance between windows.  The default is the size of the window.
    padding : int or tuple of int
        The number of elements added at each end (minus infinity).

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.MaxPool2d(2)(ad.ones((1, 4, 6, 6))).shape
    (1, 4, 3, 3)
    """

    function = staticmethod(pool.max_pool2d)


class AvgPool2d(_Pool):
    """Mean of each window over two axes.

    Parameters
    ----------
    kernel_size : int or tuple of int
        The size of the window.
    stride : int or tuple of int, optional
        The distance between windows.  The default is the size of the window.
    padding : int or tuple of int
        The number of elements added at each end (zeros, which count in the mean).

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.AvgPool2d(2)(ad.ones((1, 4, 6, 6))).shape
    (1, 4, 3, 3)
    """

    function = staticmethod(pool.avg_pool2d)


class MaxPool3d(_Pool):
    """Maximum of each window over three axes.

    Parameters
    ----------
    kernel_size : int or tuple of int
        The size of the window.
    stride : int or tuple of int, optional
        The distance between windows.  The default is the size of the window.
    padding : int or tuple of int
        The number of elements added at each end (minus infinity).

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.MaxPool3d(2)(ad.ones((1, 4, 6, 6, 6))).shape
    (1, 4, 3, 3, 3)
    """

    function = staticmethod(pool.max_pool3d)


class AvgPool3d(_Pool):
    """Mean of each window over three axes.

    Parameters
    ----------
    kernel_size : int or tuple of int
        The size of the window.
    stride : int or tuple of int, optional
        The distance between windows.  The default is the size of the window.
    padding : int or tuple of int
        The number of elements added at each end (zeros, which count in the mean).

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.AvgPool3d(2)(ad.ones((1, 4, 6, 6, 6))).shape
    (1, 4, 3, 3, 3)
    """

    function = staticmethod(pool.avg_pool3d)


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Mean over windows over one axis, chosen so that the output has a given size.

    Parameters
    ----------
    output_size : int or tuple of int
        The lengths of the last axes of the result.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.AdaptiveAvgPool1d(2)(ad.ones((1, 4, 6))).shape
    (1, 4, 2)
    """

    function = staticmethod(pool.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Mean over windows over two axes, chosen so that the output has a given size.

    Parameters
    ----------
    output_size : int or tuple of int
        The lengths of the last axes of the result.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.AdaptiveAvgPool2d(2)(ad.ones((1, 4, 6, 6))).shape
    (1, 4, 2, 2)
    """

    function = staticmethod(pool.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Mean over windows over three axes, chosen so that the output has a given size.

    Parameters
    ----------
    output_size : int or tuple of int
        The lengths of the last axes of the result.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.AdaptiveAvgPool3d(2)(ad.ones((1, 4, 6, 6, 6))).shape
    (1, 4, 2, 2, 2)
    """

    function = staticmethod(pool.adaptive_avg_pool3d)
