"""Sampling of images at given points: grid_sample and affine_grid."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, ShapeError
from adjoint.nn.arguments import floats, lengths
from adjoint.nn.norms import like_input, widened_half
from adjoint.nn.resampling import cubic_weights
from adjoint.ops.shared_docs import mismatch_doc
from adjoint.typing import ArrayLike, Lengths

__all__ = ["affine_grid", "grid_sample"]


@mismatch_doc
def grid_sample(
    x: ArrayLike,
    grid: ArrayLike,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Interpolate images at the points of a grid.

    Gradients flow to the images and to the grid.

    Parameters
    ----------
    x : array_like
        The images, ``(N, C, H, W)`` or ``(N, C, D, H, W)``.
    grid : array_like
        The points, ``(N, …, 2)`` or ``(N, …, 3)``, with x first.  -1 and 1 are the ends of an axis.
    mode : {"bilinear", "nearest", "bicubic"}
        The interpolation; "bicubic" for two axes only.
    padding_mode : {"zeros", "border", "reflection"}
        What is outside: zeros, the nearest element of the border, or the reflected image.
    align_corners : bool, optional
        Whether -1 and 1 are the centres of the outermost elements instead of their outer edges.

    Returns
    -------
    Tensor
        The values, ``(N, C, …)``.

    >>> image = ad.arange(4.0).reshape(1, 1, 2, 2)
    >>> ad.nn.functional.grid_sample(image, ad.zeros((1, 1, 1, 2))).item()
    1.5
    """
    x, grid = floats("grid_sample", x), floats("grid_sample", grid)
    _check_sampling(x, grid, mode, padding_mode)
    wide, places = widened_half(x), widened_half(grid)
    axes = []  # for each axis of the image: a list of pairs (positions, weights)
    for k, n in enumerate(x.shape[2:]):
        at = places[..., x.ndim - 3 - k]
        at = (at + 1) / 2 * (n - 1) if align_corners else ((at + 1) * n - 1) / 2
        axes.append(_terms(at, n, mode, padding_mode, align_corners))
    y: Any = 0
    flat = rec.reshape(wide, shape=(*x.shape[:2], math.prod(x.shape[2:])))
    cells = math.prod(grid.shape[1:-1])
    for corner in itertools.product(*axes):
        index, weight = corner[0]
        for (i, w), n in zip(corner[1:], x.shape[3:], strict=True):
            index, weight = index * n + i, weight * w
        rows = rec.broadcast_to(rec.reshape(index, shape=(x.shape[0], 1, cells)), shape=(*x.shape[:2], cells))
        y = y + rec.take_along_axis(flat, rows, axis=-1) * rec.reshape(weight, shape=(x.shape[0], 1, cells))
    return like_input(rec.reshape(y, shape=(*x.shape[:2], *grid.shape[1:-1])), x)


def _check_sampling(x: Tensor, grid: Tensor, mode: str, padding_mode: str) -> None:
    op, nd = "grid_sample", x.ndim - 2
    if nd not in (2, 3) or grid.ndim != x.ndim or grid.shape[-1] != nd or grid.shape[0] != x.shape[0]:
        raise ShapeError(
            f"{op}: the grid must have shape (N, …, …, 2) for images (N, C, H, W) and (N, …, …, …, 3) for "
            f"volumes (N, C, D, H, W), but x has shape {x.shape} and the grid {grid.shape}."
        )
    if mode not in ("bilinear", "nearest", "bicubic") or (mode == "bicubic" and nd == 3):
        raise ArgumentError(
            f"{op}: mode must be 'bilinear', 'nearest' or, for images, 'bicubic', not {mode!r}."
        )
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ArgumentError(
            f"{op}: padding_mode must be 'zeros', 'border' or 'reflection', not {padding_mode!r}."
        )
    if 0 in x.shape[2:]:
        raise ShapeError(f"{op}: images must not be empty, but have shape {x.shape}.")


def _terms(at: Tensor, n: int, mode: str, padding: str, aligned: bool) -> list[tuple[Tensor, Tensor]]:
    """Return the interpolation terms along one axis of length n for the points ``at``.

    The result is a list of pairs (indices, weights), one pair for each neighbour of a point that
    contributes to its value.  ``aligned`` is the option align_corners.
    """
    if mode != "bicubic":
        at = _inside(at, n, padding, aligned)
    low = rec.round(at, decimals=0) if mode == "nearest" else rec.floor(at)
    t = at - low
    weights = {0: t * 0 + 1} if mode == "nearest" else {0: 1 - t, 1: t}
    if mode == "bicubic":
        weights = cubic_weights(t)
    found = []
    for offset, w in weights.items():
        place = rec.where(rec.isfinite(low), low + offset, -1.0)
        if mode == "bicubic":
            place = _inside(place, n, padding, aligned)
        known = rec.clip(place, 0.0, n - 1.0)
        found.append((rec.astype(known, dtype=np.dtype(np.intp)), rec.where(place == known, w, 0.0)))
    return found


def _inside(at: Tensor, n: int, padding: str, aligned: bool) -> Tensor:
    """Return the points ``at``; points outside an axis of length ``n`` are clipped or reflected into it.

    If ``padding`` is "zeros", all points are returned unchanged.  ``aligned`` is the option align_corners.
    """
    if padding == "reflection":
        low, span = (0.0, n - 1.0) if aligned else (-0.5, float(n))
        if not span:
            return at * 0
        away = rec.abs(at - low)
        turns = rec.floor(away / span)
        rest = away - turns * span
        at = rec.where(rec.remainder(turns, 2.0) == 0, rest, span - rest) + low
    return at if padding == "zeros" else rec.clip(at, 0.0, n - 1.0)


@mismatch_doc
def affine_grid(theta: ArrayLike, size: Lengths, align_corners: bool = False) -> Tensor:
    """Return the grid of an affine map, for ``grid_sample``.

    Parameters
    ----------
    theta : array_like
        The maps, ``(N, 2, 3)`` for images or ``(N, 3, 4)`` for volumes.
    size : tuple of int
        The shape of the result of ``grid_sample``, ``(N, C, H, W)`` or ``(N, C, D, H, W)``.
    align_corners : bool, optional
        Whether -1 and 1 are the centres of the outermost elements instead of their outer edges.

    Returns
    -------
    Tensor
        The grid, ``(N, H, W, 2)`` or ``(N, D, H, W, 3)``.

    >>> ad.nn.functional.affine_grid([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]], (1, 1, 1, 2))
    tensor([[[[-0.5,  0. ],
              [ 0.5,  0. ]]]], dtype=float64)
    """
    theta, shape = floats("affine_grid", theta), lengths("affine_grid", "size", size)
    nd = len(shape) - 2
    if nd not in (2, 3) or theta.shape != (shape[0], nd, nd + 1):
        raise ShapeError(
            "affine_grid: theta must have shape (N, 2, 3) for a size (N, C, H, W) and (N, 3, 4) for (N, C, "
            f"D, H, W), but the size is {shape} and theta has shape {theta.shape}."
        )
    ends = [1.0 if align_corners else 1 - 1 / n for n in shape[2:]]
    along = [np.linspace(-e, e, n) if n > 1 else np.zeros(1) for e, n in zip(ends, shape[2:], strict=True)]
    mesh = np.meshgrid(*along, indexing="ij")[::-1]  # x first
    base = np.stack([*mesh, np.ones(shape[2:])], -1).reshape(-1, nd + 1).astype(theta.dtype)
    grid = rec.matmul(wrap(base), rec.matrix_transpose(theta))
    return rec.reshape(grid, shape=(shape[0], *shape[2:], nd))
