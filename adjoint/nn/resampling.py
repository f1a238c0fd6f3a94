"""Interpolation, and rearrangement between channels and space: functions and modules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.docstrings import SharedDoc, shared_with
from adjoint.core.shapes import number
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, ShapeError
from adjoint.nn.arguments import floats, lengths, sizes, unusual
from adjoint.nn.module import Module
from adjoint.ops.columns import fold, unfold
from adjoint.ops.pool import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from adjoint.ops.selection import take
from adjoint.typing import ArrayLike, Lengths

__all__ = ["Fold", "PixelShuffle", "PixelUnshuffle", "Unfold", "Upsample"]

_shuffle_doc = SharedDoc("""
    Parameters
    ----------
    x : array_like
        The input, with shape (…, C·r², H, W).
    upscale_factor : int
        The factor r of the height and the width.
    """)

_resize_doc = SharedDoc("""
    Parameters
    ----------
    size : int or tuple of int, optional
        The new lengths of the spatial axes.
    scale_factor : float or tuple of float, optional
        The factors of the lengths.  Pass either ``size`` or ``scale_factor``.
    align_corners : bool, optional
        With True the centres of the corner elements stay in place, otherwise the outer edges do.

    Returns
    -------
    Tensor
        The resized input.
    """)

# The number of spatial axes that each mode requires; None means any number
_MODES = {
    "nearest": None,
    "nearest-exact": None,
    "area": None,
    "linear": 1,
    "bilinear": 2,
    "bicubic": 2,
    "trilinear": 3,
}
_ALIGNING = ("linear", "bilinear", "bicubic", "trilinear")


@_resize_doc
def interpolate(
    x: ArrayLike,
    size: Lengths | None = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """Resize the spatial axes of x.

    Parameters
    ----------
    x : array_like
        The input, with shape (N, C, …) and one to three spatial axes.
    mode : {"nearest", "nearest-exact", "area", "linear", "bilinear", "bicubic", "trilinear"}
        The method.  "linear" needs one spatial axis, "bilinear" and "bicubic" two, "trilinear" three.

    Raises
    ------
    ShapeError
        If the mode does not match the number of spatial axes.

    >>> ad.nn.functional.interpolate(ad.tensor([[[1.0, 3.0]]]), scale_factor=2, mode="linear")
    tensor([[[1. , 1.5, 2.5, 3. ]]], dtype=float64)
    """
    x = floats("interpolate", x)
    nd = x.ndim - 2
    if nd not in (1, 2, 3):
        raise ShapeError(
            f"interpolate: x must have shape (N, C, …) with 1 to 3 spatial axes, but has shape {x.shape}."
        )
    if mode not in _MODES:
        raise ArgumentError(f"interpolate: mode must be one of {', '.join(_MODES)}, not {mode!r}.")
    if _MODES[mode] not in (None, nd):
        raise ShapeError(
            f"interpolate: mode {mode!r} requires an x with {_MODES[mode]} spatial axes, but x has shape "
            f"{x.shape}."
        )
    if align_corners is not None and mode not in _ALIGNING:
        raise ArgumentError(
            f"interpolate: align_corners is only for the modes {', '.join(_ALIGNING)}, not for {mode!r}."
        )
    wanted, steps = _targets(x.shape[2:], size, scale_factor)
    if mode == "area":
        return (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[nd - 1](x, wanted)
    for axis, m, step in zip(range(2, x.ndim), wanted, steps, strict=True):
        x = _along(x, axis, m, step, mode, bool(align_corners))
    return x


def _targets(space: tuple[int, ...], size: Any, scale_factor: Any) -> tuple[tuple[int, ...], list[float]]:
    """Return the new lengths of the spatial axes, and the step along each axis.

    The step is the distance in the input between neighbouring elements of the result.  ``space`` are the old
    lengths.  Either ``size``, the new lengths, or ``scale_factor`` is given.
    """
    nd = len(space)
    if (size is None) == (scale_factor is None):
        raise ArgumentError("interpolate: pass exactly one of size= and scale_factor=.")
    if 0 in space:
        raise ShapeError(f"interpolate: images must not be empty, but have size {space}.")
    if size is not None:
        wanted = lengths("interpolate", "size", size, nd)
        return wanted, [n / m for n, m in zip(space, wanted, strict=True)]
    factors = list(scale_factor) if isinstance(scale_factor, (tuple, list)) else [scale_factor] * nd
    factors = [number("interpolate", "scale_factor", f) for f in factors]
    if len(factors) != nd or any(not f > 0 for f in factors):
        raise ArgumentError(
            f"interpolate: scale_factor must be one positive number or {nd} positive numbers, but is "
            f"{scale_factor!r}."
        )
    wanted = tuple(math.floor(n * f) for n, f in zip(space, factors, strict=True))
    if 0 in wanted:
        raise ShapeError(
            f"interpolate: scale_factor {scale_factor!r} would make an image of size {space} empty."
        )
    return wanted, [1 / f for f in factors]


def _along(x: Tensor, axis: int, m: int, step: float, mode: str, aligned: bool) -> Tensor:
    """Return ``x`` interpolated to length ``m`` along one axis.

    ``step`` is the distance in ``x`` between neighbouring elements of the result.  ``aligned`` is the option
    align_corners.
    """
    n, i = x.shape[axis], np.arange(m)
    if mode.startswith("nearest"):
        place = np.floor((i + (0.5 if mode == "nearest-exact" else 0.0)) * step).astype(int)
        return take(x, np.minimum(place, n - 1), axis=axis)
    cubic = mode == "bicubic"
    if aligned:
        at = i * ((n - 1) / (m - 1) if m > 1 else 0.0)
    else:
        at = (i + 0.5) * step - 0.5
        at = at if cubic else np.maximum(at, 0.0)
    low = np.floor(at).astype(int)
    t = at - low
    weights = cubic_weights(t) if cubic else {0: 1 - t, 1: t}
    y: Any = 0
    for offset, w in weights.items():
        part = take(x, np.clip(low + offset, 0, n - 1), axis=axis)
        y = y + part * wrap(w.astype(x.dtype).reshape((m,) + (1,) * (x.ndim - 1 - axis)))
    return y


def cubic_weights(t: Any, a: float = -0.75) -> dict[int, Any]:
    """Return the weights of the four neighbours of a point for cubic interpolation.

    The keys are the offsets -1, 0, 1 and 2 from the lower neighbour.  ``t`` is the distance from it to the
    point, ``a`` the constant of Keys' kernel; the default is PyTorch's.
    """

    def near(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Any) -> Any:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return {-1: far(t + 1), 0: near(t), 1: near(1 - t), 2: far(2 - t)}


@_shuffle_doc
def pixel_shuffle(x: ArrayLike, upscale_factor: int) -> Tensor:
    """Move channels into space: (…, C·r², H, W) to (…, C, H·r, W·r).

    Returns
    -------
    Tensor
        The result, with shape (…, C, H·r, W·r).

    Raises
    ------
    ShapeError
        If the number of channels is not a multiple of r².

    >>> ad.nn.functional.pixel_shuffle(ad.ones((1, 8, 3, 3)), 2).shape
    (1, 2, 6, 6)
    """
    x, r = asarray(x), upscale_factor
    sizes("pixel_shuffle", upscale_factor=r)
    if x.ndim < 3 or x.shape[-3] % r**2:
        raise ShapeError(
            f"pixel_shuffle: x must have shape (…, C·{r}², H, W) for upscale_factor={r}, but has shape "
            f"{x.shape}."
        )
    *lead, c, h, w = x.shape
    k = len(lead)
    split = x.reshape(*lead, c // r**2, r, r, h, w)
    mixed = split.permute_dims((*range(k), k, k + 3, k + 1, k + 4, k + 2))
    return mixed.reshape(*lead, c // r**2, h * r, w * r)


@_shuffle_doc
def pixel_unshuffle(x: ArrayLike, downscale_factor: int) -> Tensor:
    """Move space into channels: (…, C, H·r, W·r) to (…, C·r², H, W).

    Parameters
    ----------
    x : array_like
        The input, with shape (…, C, H·r, W·r).
    downscale_factor : int
        The divisor r of the height and the width.

    Returns
    -------
    Tensor
        The result, with shape (…, C·r², H, W).

    Raises
    ------
    ShapeError
        If the height or the width is not a multiple of r.

    >>> ad.nn.functional.pixel_unshuffle(ad.ones((1, 2, 6, 6)), 2).shape
    (1, 8, 3, 3)
    """
    x, r = asarray(x), downscale_factor
    sizes("pixel_unshuffle", downscale_factor=r)
    if x.ndim < 3 or x.shape[-2] % r or x.shape[-1] % r:
        raise ShapeError(
            f"pixel_unshuffle: x must have shape (…, C, H·{r}, W·{r}) for downscale_factor={r}, but has "
            f"shape {x.shape}."
        )
    *lead, c, h, w = x.shape
    k = len(lead)
    split = x.reshape(*lead, c, h // r, r, w // r, r)
    mixed = split.permute_dims((*range(k), k, k + 2, k + 4, k + 1, k + 3))
    return mixed.reshape(*lead, c * r**2, h // r, w // r)


@shared_with(interpolate)
class Upsample(Module):
    """Module form of ``nn.functional.interpolate``: resize the spatial axes.

    >>> ad.nn.Upsample(scale_factor=2)(ad.ones((1, 3, 4, 4))).shape
    (1, 3, 8, 8)
    """

    def __init__(
        self,
        size: Lengths | None = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
    ) -> None:
        if (size is None) == (scale_factor is None):
            raise ArgumentError("Upsample: pass exactly one of size= and scale_factor=.")
        if mode not in _MODES:
            raise ArgumentError(f"Upsample: mode must be one of {', '.join(_MODES)}, not {mode!r}.")
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners

    @shared_with(interpolate)
    def forward(self, x: ArrayLike) -> Tensor:
        """Resize the input."""
        return interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)

    def extra_repr(self) -> str:
        """Return the size or the factor, and the mode, for the module's repr."""
        options = {
            "size": (self.size, None),
            "scale_factor": (self.scale_factor, None),
            "mode": (self.mode, ""),
            "align_corners": (self.align_corners, None),
        }
        return unusual(options).removeprefix(", ")


@shared_with(pixel_shuffle)
class PixelShuffle(Module):
    """Module form of ``nn.functional.pixel_shuffle``: move channels into space.

    >>> ad.nn.PixelShuffle(2)(ad.ones((1, 8, 3, 3))).shape
    (1, 2, 6, 6)
    """

    def __init__(self, upscale_factor: int) -> None:
        sizes("PixelShuffle", upscale_factor=upscale_factor)
        self.upscale_factor = upscale_factor

    @shared_with(pixel_shuffle)
    def forward(self, x: ArrayLike) -> Tensor:
        """Move channels into space."""
        return pixel_shuffle(x, self.upscale_factor)

    def extra_repr(self) -> str:
        """Return the factor, for the module's repr."""
        return f"{self.upscale_factor}"


@shared_with(pixel_unshuffle)
class PixelUnshuffle(Module):
    """Module form of ``nn.functional.pixel_unshuffle``: move space into channels.

    >>> ad.nn.PixelUnshuffle(2)(ad.ones((1, 2, 6, 6))).shape
    (1, 8, 3, 3)
    """

    def __init__(self, downscale_factor: int) -> None:
        sizes("PixelUnshuffle", downscale_factor=downscale_factor)
        self.downscale_factor = downscale_factor

    @shared_with(pixel_unshuffle)
    def forward(self, x: ArrayLike) -> Tensor:
        """Move space into channels."""
        return pixel_unshuffle(x, self.downscale_factor)

    def extra_repr(self) -> str:
        """Return the divisor, for the module's repr."""
        return f"{self.downscale_factor}"


@shared_with(unfold)
class Unfold(Module):
    """Module form of ``nn.functional.unfold``: sliding windows as columns.

    >>> ad.nn.Unfold(2)(ad.ones((1, 3, 4, 4))).shape
    (1, 12, 9)
    """

    def __init__(
        self, kernel_size: Lengths, dilation: Lengths = 1, padding: Lengths = 0, stride: Lengths = 1
    ) -> None:
        self.options = {
            "kernel_size": kernel_size, "dilation": dilation, "padding": padding, "stride": stride,
        }  # fmt: skip

    @shared_with(unfold)
    def forward(self, x: ArrayLike) -> Tensor:
        """Return the windows as columns."""
        return unfold(x, **self.options)

    def extra_repr(self) -> str:
        """Return the options, for the module's repr."""
        return ", ".join(f"{name}={value}" for name, value in self.options.items())


@shared_with(fold)
class Fold(Unfold):
    """Module form of ``nn.functional.fold``: columns added into images.

    >>> ad.nn.Fold(4, 2)(ad.ones((1, 12, 9))).shape
    (1, 3, 4, 4)
    """

    def __init__(
        self,
        output_size: Lengths,
        kernel_size: Lengths,
        dilation: Lengths = 1,
        padding: Lengths = 0,
        stride: Lengths = 1,
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.options = {"output_size": output_size, **self.options}

    @shared_with(fold)
    def forward(self, x: ArrayLike) -> Tensor:
        """Add columns into images."""
        return fold(x, **self.options)
