"""Modules for pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from adjoint.core.docstrings import SharedDoc
from adjoint.core.tensor import Tensor
from adjoint.nn.arguments import unusual
from adjoint.nn.module import Module
from adjoint.ops import max_places, pool
from adjoint.typing import ArrayLike, Lengths

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d",
    "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d",
]  # fmt: skip

_adaptive_doc = SharedDoc("""
    Parameters
    ----------
    output_size : int or tuple of int
        The lengths of the last axes of the result.
    """)
_adaptive_max_doc = _adaptive_doc.extended("""
    Parameters
    ----------
    output_size : int or tuple of int
        The lengths of the last axes of the result.  None keeps the length of an axis.
    """)

_pool_doc = SharedDoc("""
    Parameters
    ----------
    kernel_size : int or tuple of int
        The size of the window.
    stride : int or tuple of int, optional
        The distance between windows.  The default is the size of the window.
    padding : int or tuple of int
        The number of elements added at each end (minus infinity).
    return_indices : bool
        Whether to return the positions of the maxima, too, for unpooling.
    x : array_like
        The input, with shape (N, C, …) or (C, …).
    """)
_unpool_doc = _pool_doc.extended("""
    Parameters
    ----------
    padding : int or tuple of int
        The padding of the pooling.
    """)
_average_doc = _pool_doc.extended("""
    Parameters
    ----------
    padding : int or tuple of int
        The number of elements added at each end (zeros, which count in the mean).
    """)


class _Pool(Module):
    """Base class of pooling over windows."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self, kernel_size: Lengths, stride: Lengths | None = None, padding: Lengths | str = 0
    ) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    @_pool_doc
    def forward(self, x: ArrayLike) -> Tensor:
        """Pool the last axes.

        Returns
        -------
        Tensor
            One value per window.
        """
        return self.function(x, self.kernel_size, self.stride, self.padding)

    def extra_repr(self) -> str:
        """Return the window, and stride and padding unless they are the defaults, for the module's repr."""
        return f"{self.kernel_size}" + unusual({"stride": (self.stride, None), "padding": (self.padding, 0)})


class _MaxPool(_Pool):
    """Base class of max pooling."""

    with_indices: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        kernel_size: Lengths,
        stride: Lengths | None = None,
        padding: Lengths | str = 0,
        return_indices: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.return_indices = return_indices

    @_pool_doc
    def forward(self, x: ArrayLike) -> Any:
        """Pool the last axes.

        Returns
        -------
        Tensor
            One value per window; with ``return_indices`` a pair of the values and their positions.
        """
        if self.return_indices:
            return self.with_indices(x, self.kernel_size, self.stride, self.padding)
        return super().forward(x)


class _MaxUnpool(_Pool):
    """Base class of max unpooling, the inverse of max pooling."""

    def forward(  # type: ignore[override]  # two arguments more
        self, x: ArrayLike, indices: ArrayLike, output_size: Lengths | None = None
    ) -> Tensor:
        """Put maxima back to their positions.

        Parameters
        ----------
        x : array_like
            The maxima.
        indices : array_like of int
            Their positions.
        output_size : tuple of int, optional
            The size of the result.

        Returns
        -------
        Tensor
            The maxima at their positions, zeros elsewhere.
        """
        return self.function(x, indices, self.kernel_size, self.stride, self.padding, output_size)


class _AdaptivePool(Module):
    """Base class of pooling to a given output size."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, output_size: Lengths) -> None:
        self.output_size = output_size

    @_pool_doc
    def forward(self, x: ArrayLike) -> Tensor:
        """Pool the last axes.

        Returns
        -------
        Tensor
            The result, whose last axes have the lengths ``output_size``.
        """
        return self.function(x, self.output_size)

    def extra_repr(self) -> str:
        """Return the output size, for the module's repr."""
        return f"{self.output_size}"


@_pool_doc
class MaxPool1d(_MaxPool):
    """Max pooling over one axis.

    >>> ad.nn.MaxPool1d(2)(ad.ones((1, 4, 6))).shape
    (1, 4, 3)
    """

    function = staticmethod(pool.max_pool1d)
    with_indices = staticmethod(max_places.max_pool1d_with_indices)


@_average_doc
class AvgPool1d(_Pool):
    """Average pooling over one axis.

    >>> ad.nn.AvgPool1d(2)(ad.ones((1, 4, 6))).shape
    (1, 4, 3)
    """

    function = staticmethod(pool.avg_pool1d)


@_pool_doc
class MaxPool2d(_MaxPool):
    """Max pooling over two axes.

    >>> ad.nn.MaxPool2d(2)(ad.ones((1, 4, 6, 6))).shape
    (1, 4, 3, 3)
    """

    function = staticmethod(pool.max_pool2d)
    with_indices = staticmethod(max_places.max_pool2d_with_indices)


@_average_doc
class AvgPool2d(_Pool):
    """Average pooling over two axes.

    >>> ad.nn.AvgPool2d(2)(ad.ones((1, 4, 6, 6))).shape
    (1, 4, 3, 3)
    """

    function = staticmethod(pool.avg_pool2d)


@_pool_doc
class MaxPool3d(_MaxPool):
    """Max pooling over three axes.

    >>> ad.nn.MaxPool3d(2)(ad.ones((1, 4, 6, 6, 6))).shape
    (1, 4, 3, 3, 3)
    """

    function = staticmethod(pool.max_pool3d)
    with_indices = staticmethod(max_places.max_pool3d_with_indices)


@_average_doc
class AvgPool3d(_Pool):
    """Average pooling over three axes.

    >>> ad.nn.AvgPool3d(2)(ad.ones((1, 4, 6, 6, 6))).shape
    (1, 4, 3, 3, 3)
    """

    function = staticmethod(pool.avg_pool3d)


@_adaptive_doc
class AdaptiveAvgPool1d(_AdaptivePool):
    """Average pooling over one axis to a given output size.

    >>> ad.nn.AdaptiveAvgPool1d(2)(ad.ones((1, 4, 6))).shape
    (1, 4, 2)
    """

    function = staticmethod(pool.adaptive_avg_pool1d)


@_adaptive_doc
class AdaptiveAvgPool2d(_AdaptivePool):
    """Average pooling over two axes to a given output size.

    >>> ad.nn.AdaptiveAvgPool2d(2)(ad.ones((1, 4, 6, 6))).shape
    (1, 4, 2, 2)
    """

    function = staticmethod(pool.adaptive_avg_pool2d)


@_adaptive_doc
class AdaptiveAvgPool3d(_AdaptivePool):
    """Average pooling over three axes to a given output size.

    >>> ad.nn.AdaptiveAvgPool3d(2)(ad.ones((1, 4, 6, 6, 6))).shape
    (1, 4, 2, 2, 2)
    """

    function = staticmethod(pool.adaptive_avg_pool3d)


@_adaptive_max_doc
class AdaptiveMaxPool1d(_AdaptivePool):
    """Max pooling over one axis to a given output size.

    >>> ad.nn.AdaptiveMaxPool1d(3)(ad.ones((1, 4, 6))).shape
    (1, 4, 3)
    """

    function = staticmethod(max_places.adaptive_max_pool1d)


@_unpool_doc
class MaxUnpool1d(_MaxUnpool):
    """Inverse of ``MaxPool1d``: maxima at their positions, zeros elsewhere.

    >>> pooled = ad.nn.MaxPool1d(2, return_indices=True)(ad.ones((1, 4, 6)))
    >>> ad.nn.MaxUnpool1d(2)(*pooled).shape
    (1, 4, 6)
    """

    function = staticmethod(max_places.max_unpool1d)


@_adaptive_max_doc
class AdaptiveMaxPool2d(_AdaptivePool):
    """Max pooling over two axes to a given output size.

    >>> ad.nn.AdaptiveMaxPool2d(3)(ad.ones((1, 4, 6, 6))).shape
    (1, 4, 3, 3)
    """

    function = staticmethod(max_places.adaptive_max_pool2d)


@_unpool_doc
class MaxUnpool2d(_MaxUnpool):
    """Inverse of ``MaxPool2d``: maxima at their positions, zeros elsewhere.

    >>> pooled = ad.nn.MaxPool2d(2, return_indices=True)(ad.ones((1, 4, 6, 6)))
    >>> ad.nn.MaxUnpool2d(2)(*pooled).shape
    (1, 4, 6, 6)
    """

    function = staticmethod(max_places.max_unpool2d)


@_adaptive_max_doc
class AdaptiveMaxPool3d(_AdaptivePool):
    """Max pooling over three axes to a given output size.

    >>> ad.nn.AdaptiveMaxPool3d(3)(ad.ones((1, 4, 6, 6, 6))).shape
    (1, 4, 3, 3, 3)
    """

    function = staticmethod(max_places.adaptive_max_pool3d)


@_unpool_doc
class MaxUnpool3d(_MaxUnpool):
    """Inverse of ``MaxPool3d``: maxima at their positions, zeros elsewhere.

    >>> pooled = ad.nn.MaxPool3d(2, return_indices=True)(ad.ones((1, 4, 6, 6, 6)))
    >>> ad.nn.MaxUnpool3d(2)(*pooled).shape
    (1, 4, 6, 6, 6)
    """

    function = staticmethod(max_places.max_unpool3d)
