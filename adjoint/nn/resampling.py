"""Images of another size: interpolation and the shuffling of channels into space, functions and modules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.shapes import number
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, ShapeError
from adjoint.nn.arguments import floats, lengths, sizes, unusual
from adjoint.nn.module import Module
from adjoint.ops.pool import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from adjoint.ops.selection import take

__all__ = ["PixelShuffle", "PixelUnshuffle", "Upsample"]

# The number of space axes that a mode is for; None is any
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


def interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """Bring the space axes of x, ``(N, C, …)``, to ``size``, or to ``scale_factor`` times their lengths.

    The mode is "nearest", "nearest-exact", "area", or by the number of space axes "linear", "bilinear",
    "bicubic" or "trilinear".  With ``align_corners=True`` the centres of the corner elements stay in place,
    without it the corners of the image do.

    >>> import adjoint as ad
    >>> ad.nn.functional.interpolate(ad.tensor([[[1.0, 3.0]]]), scale_factor=2, mode="linear")
    tensor([[[1. , 1.5, 2.5, 3. ]]], dtype=float64)
    """
    x = floats("interpolate", x)
    nd = x.ndim - 2
    if nd not in (1, 2, 3):
        raise ShapeError(f"interpolate: x is (N, C, …) with 1 to 3 space axes, but has shape {x.shape}.")
    if mode not in _MODES:
        raise ArgumentError(f"interpolate: mode is one of {', '.join(_MODES)}, not {mode!r}.")
    if _MODES[mode] not in (None, nd):
        raise ShapeError(
            f"interpolate: {mode!r} is for {_MODES[mode]} space axes, but x has shape {x.shape}."
        )
    if align_corners is not None and mode not in _ALIGNING:
        raise ArgumentError(f"interpolate: align_corners is for {', '.join(_ALIGNING)}, not for {mode!r}.")
    wanted, steps = _targets(x.shape[2:], size, scale_factor)
    if mode == "area":
        return (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[nd - 1](x, wanted)
    for axis, m, step in zip(range(2, x.ndim), wanted, steps, strict=True):
        x = _along(x, axis, m, step, mode, bool(align_corners))
    return x


def _targets(space: tuple[int, ...], size: Any, scale_factor: Any) -> tuple[tuple[int, ...], list[float]]:
    """The lengths to reach, and how far apart in the image neighbouring results are."""
    nd = len(space)
    if (size is None) == (scale_factor is None):
        raise ArgumentError("interpolate: give size= or scale_factor=, one of them.")
    if 0 in space:
        raise ShapeError(f"interpolate: an image of size {space} has no elements.")
    if size is not None:
        wanted = lengths("interpolate", "size", size, nd)
        return wanted, [n / m for n, m in zip(space, wanted, strict=True)]
    factors = list(scale_factor) if isinstance(scale_factor, (tuple, list)) else [scale_factor] * nd
    factors = [number("interpolate", "scale_factor", f) for f in factors]
    if len(factors) != nd or any(not f > 0 for f in factors):
        raise ArgumentError(
            f"interpolate: scale_factor is a positive number, or {nd} of them, but is {scale_factor!r}."
        )
    wanted = tuple(math.floor(n * f) for n, f in zip(space, factors, strict=True))
    if 0 in wanted:
        raise ShapeError(
            f"interpolate: scale_factor {scale_factor!r} leaves nothing of an image of size {space}."
        )
    return wanted, [1 / f for f in factors]


def _along(x: Tensor, axis: int, m: int, step: float, mode: str, aligned: bool) -> Tensor:
    """Interpolate along one axis: a weighted sum of gathered elements."""
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
    weights = _cubic(t) if cubic else {0: 1 - t, 1: t}
    y: Any = 0
    for offset, w in weights.items():
        part = take(x, np.clip(low + offset, 0, n - 1), axis=axis)
        y = y + part * wrap(w.astype(x.dtype).reshape((m,) + (1,) * (x.ndim - 1 - axis)))
    return y


def _cubic(t: Any, a: float = -0.75) -> dict[int, Any]:
    """The weights of the four neighbours (Keys' kernel with PyTorch's constant)."""

    def near(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Any) -> Any:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return {-1: far(t + 1), 0: near(t), 1: near(1 - t), 2: far(2 - t)}


def pixel_shuffle(x: Any, upscale_factor: int) -> Tensor:
    """Move channels into space: ``(…, C·r², H, W)`` to ``(…, C, H·r, W·r)``."""
    x, r = asarray(x), upscale_factor
    sizes("pixel_shuffle", upscale_factor=r)
    if x.ndim < 3 or x.shape[-3] % r**2:
        raise ShapeError(
            f"pixel_shuffle: x is (…, C·{r}², H, W) for upscale_factor={r}, but has shape {x.shape}."
        )
    *lead, c, h, w = x.shape
    k = len(lead)
    split = x.reshape(*lead, c // r**2, r, r, h, w)
    mixed = split.permute_dims((*range(k), k, k + 3, k + 1, k + 4, k + 2))
    return mixed.reshape(*lead, c // r**2, h * r, w * r)


def pixel_unshuffle(x: Any, downscale_factor: int) -> Tensor:
    """Move space into channels: ``(…, C, H·r, W·r)`` to ``(…, C·r², H, W)``."""
    x, r = asarray(x), downscale_factor
    sizes("pixel_unshuffle", downscale_factor=r)
    if x.ndim < 3 or x.shape[-2] % r or x.shape[-1] % r:
        raise ShapeError(
            f"pixel_unshuffle: x is (…, C, H·{r}, W·{r}) for downscale_factor={r}, but has shape {x.shape}."
        )
    *lead, c, h, w = x.shape
    k = len(lead)
    split = x.reshape(*lead, c, h // r, r, w // r, r)
    mixed = split.permute_dims((*range(k), k, k + 2, k + 4, k + 1, k + 3))
    return mixed.reshape(*lead, c * r**2, h // r, w // r)


class Upsample(Module):
    """``nn.functional.interpolate`` as a module."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
    ) -> None:
        if (size is None) == (scale_factor is None):
            raise ArgumentError("Upsample: give size= or scale_factor=, one of them.")
        if mode not in _MODES:
            raise ArgumentError(f"Upsample: mode is one of {', '.join(_MODES)}, not {mode!r}.")
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners

    def forward(self, x: Any) -> Tensor:
        """Interpolate (N, C, …)."""
        return interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)

    def extra_repr(self) -> str:
        """The size or the factor, and the mode."""
        options = {
            "size": (self.size, None),
            "scale_factor": (self.scale_factor, None),
            "mode": (self.mode, ""),
            "align_corners": (self.align_corners, None),
        }
        return unusual(options).removeprefix(", ")


class PixelShuffle(Module):
    """``nn.functional.pixel_shuffle`` as a module."""

    def __init__(self, upscale_factor: int) -> None:
        sizes("PixelShuffle", upscale_factor=upscale_factor)
        self.upscale_factor = upscale_factor

    def forward(self, x: Any) -> Tensor:
        """Move channels into space."""
        return pixel_shuffle(x, self.upscale_factor)

    def extra_repr(self) -> str:
        """The factor."""
        return f"{self.upscale_factor}"


class PixelUnshuffle(Module):
    """``nn.functional.pixel_unshuffle`` as a module."""

    def __init__(self, downscale_factor: int) -> None:
        sizes("PixelUnshuffle", downscale_factor=downscale_factor)
        self.downscale_factor = downscale_factor

    def forward(self, x: Any) -> Tensor:
        """Move space into channels."""
        return pixel_unshuffle(x, self.downscale_factor)

    def extra_repr(self) -> str:
        """The factor."""
        return f"{self.downscale_factor}"
