"""Distances between the rows of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.core.define import define
from adjoint.core.infer import Result, broadcast
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, DTypeError, ShapeError
from adjoint.ops.extremes import max
from adjoint.ops.half import wide
from adjoint.ops.matrices import flat_lead, float_dtype
from adjoint.ops.reduce import floating, sum
from adjoint.ops.shared_docs import argument_doc
from adjoint.typing import Array, ArrayLike

__all__ = ["cdist", "pdist"]

# Euclidean distances -------------------------------------------------------------------------------

_BLOCK = 1 << 20  # differences that are computed at a time


def _distances(x: Array, y: Array) -> Any:
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"all points must have the same number of coordinates, not {x.shape[-1]} and {y.shape[-1]}"
        )
    dtype = float_dtype(wide(x), wide(y))
    lead, (left, right) = flat_lead((x.astype(dtype, copy=False), 2), (y.astype(dtype, copy=False), 2))
    m, n, size = x.shape[-2], y.shape[-2], x.shape[-1]
    out = np.empty((len(left), m, n), dtype)
    step = _BLOCK // (n * size) + 1 if n * size else m or 1
    for k in range(len(left)):
        for i in range(0, m, step):
            away = left[k, i : i + step, None, :] - right[k]
            np.sqrt(np.einsum("ijk,ijk->ij", away, away), out=out[k, i : i + step])
    return out.reshape(*lead, m, n).astype(float_dtype(x, y), copy=False)


def _distances_rule(
    xp: Namespace, g: Value, z: Value, x: Value, y: Value, *, wanted: Sequence[bool]
) -> list[Any]:
    # d|x - y| = (x - y)/|x - y|, and 0 at equal points
    same = z == 0
    weight = xp.where(same, 0, g / xp.where(same, 1, z))
    left, right = (xp.sum(weight, axis=(axis,), keepdims=False)[..., None] for axis in (-1, -2))
    dx = x * left - xp.matmul(weight, y) if wanted[0] else None
    dy = y * right - xp.matmul(xp.matrix_transpose(weight), x) if wanted[1] else None
    return [dx, dy]


def _distances_shape(x: Any, y: Any) -> Result | None:
    if len(x.shape) < 2 or len(y.shape) < 2 or x.shape[-1] != y.shape[-1]:
        return None
    lead = broadcast(x.shape[:-2], y.shape[:-2])
    return None if lead is None else (((*lead, x.shape[-2], y.shape[-2]), float_dtype(x, y)),)


define("distances", _distances, joint=_distances_rule, arity=2, saves="zxy", kind="general", batch="elementwise",
       shape=_distances_shape, selects=True,
       reference=lambda x, y: np.linalg.norm(x[..., :, None, :] - y[..., None, :, :], axis=-1),
       doc="The Euclidean distance of each row of x and each row of y.")  # fmt: skip


# Public functions ------------------------------------------------------------------------------------


def rows(op: str, x: Any) -> Tensor:
    """Return ``x``, a matrix whose rows are points, as a tensor of real floats.

    Raise if it is complex or has fewer than two axes.
    """
    x = floating(op, x)
    if x.dtype.kind == "c":
        raise DTypeError(f"{op}: the points must be real numbers, but have dtype {x.dtype}.")
    if x.ndim < 2:
        raise ShapeError(
            f"{op}: an argument must be a matrix whose rows are points, but has shape {x.shape}."
        )
    return x


def power_sum(away: Tensor, p: float) -> Tensor:
    """Return the p-norm of ``away`` along the last axis; at zero, its derivative is 0."""
    size = rec.abs(away)
    if p == 1:
        return sum(size, axis=-1)
    if p == np.inf:
        return max(size, axis=-1)
    if p == 0:
        return sum(rec.astype(size != 0, dtype=size.dtype), axis=-1)
    if p == 2:
        total = sum(size * size, axis=-1)
    else:
        still = size == 0
        total = sum(rec.where(still, 0.0, rec.where(still, 1.0, size) ** p), axis=-1)
    none = total == 0
    return rec.where(none, 0.0, rec.where(none, 1.0, total) ** (1 / p))


@argument_doc
def cdist(x1: ArrayLike, x2: ArrayLike, p: float = 2.0) -> Tensor:
    """Return the distance between each row of one matrix and each row of another.

    Parameters
    ----------
    x1 : array_like
        Points, the rows of matrices in the last two axes.
    x2 : array_like
        Other points; leading axes broadcast.
    p : float, optional
        The order of the norm: 2 for Euclidean distances, 1 for city-block distances, inf for the maximum.

    Returns
    -------
    Tensor
        The distances.  The gradient at distance 0 is 0.

    Raises
    ------
    ShapeError
        If the points have different numbers of coordinates.

    >>> ad.cdist([[0.0, 0.0]], [[3.0, 4.0], [1.0, 0.0]])
    tensor([[5., 1.]], dtype=float64)
    """
    x, y = rows("cdist", x1), rows("cdist", x2)
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            f"cdist: all points must have the same number of coordinates, not {x.shape[-1]} and "
            f"{y.shape[-1]}."
        )
    if not p >= 0:
        raise ArgumentError(f"cdist: p must be at least 0, but is {p!r}.")
    if p == 2:
        return rec.distances(x, y)
    return power_sum(x[..., :, None, :] - y[..., None, :, :], p)


@argument_doc
def pdist(x: ArrayLike, p: float = 2.0) -> Tensor:
    """Return the distance between each pair of rows of a matrix.

    Parameters
    ----------
    x : array_like
        Points, the rows of matrices in the last two axes.
    p : float, optional
        The order of the norm, as in ``cdist``.

    Returns
    -------
    Tensor
        The distances of rows 0 and 1, 0 and 2, …, 1 and 2, …

    >>> ad.pdist([[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]])
    tensor([5., 3., 4.], dtype=float64)
    """
    x = rows("pdist", x)
    i, j = np.triu_indices(x.shape[-2], 1)
    return cdist(x, x, p)[..., i, j]
