"""Linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.shapes import broadcast_shapes
from adjoint.core.tensor import Tensor, asarray
from adjoint.errors import ShapeError

__all__ = [
    "matmul",
]


def _matmul_dx(xp: Any, g: Any, z: Any, x: Any, y: Any) -> Any:
    if y.ndim == 1:
        return g * y if x.ndim == 1 else g[..., None] * y
    if x.ndim == 1:
        return xp.matmul(y, g[..., None])[..., 0]
    return xp.matmul(g, xp.matrix_transpose(y))


def _matmul_dy(xp: Any, g: Any, z: Any, x: Any, y: Any) -> Any:
    if x.ndim == 1:
        return g * x if y.ndim == 1 else x[..., None] * g[..., None, :]
    if y.ndim == 1:
        return xp.matmul(xp.matrix_transpose(x), g[..., None])[..., 0]
    if y.ndim == 2 and x.ndim > 2:
        # many matrices times one: one large product instead of many and a sum
        x = xp.reshape(x, shape=(-1 if x.size else 0, x.shape[-1]))
        g = xp.reshape(g, shape=(x.shape[0], g.shape[-1]))
    return xp.matmul(xp.matrix_transpose(x), g)


define("matmul", np.matmul, _matmul_dx, _matmul_dy, saves="xy", reads=("y", "x"), kind="bilinear",
       doc="The matrix product.")  # fmt: skip

_matmul = rec.matmul


def matmul(x: Any, y: Any) -> Tensor:
    """Return the matrix product, for every pair of shapes that NumPy multiplies.

    >>> import adjoint as ad
    >>> ad.matmul(ad.ones((2, 3)), ad.ones(3))
    tensor([3., 3.], dtype=float64)
    """
    try:
        return _matmul(x, y)
    except ShapeError:
        _explain_matmul(asarray(x), asarray(y))
        raise


def _explain_matmul(x: Tensor, y: Tensor) -> None:
    if not x.ndim or not y.ndim:
        raise ShapeError(
            f"matmul: shapes {x.shape} and {y.shape}: a 0-d tensor has no matrix product.  Use x * y."
        ) from None
    inner, axis = x.shape[-1], 0 if y.ndim == 1 else -2
    if inner != y.shape[axis]:
        raise ShapeError(
            f"matmul: shapes {x.shape} and {y.shape} do not fit: the last axis of the first is {inner}, "
            f"but axis {axis} of the second is {y.shape[axis]}.\n"
            "  They must be equal: transpose one of them, or check the layer's sizes."
        ) from None
    broadcast_shapes("matmul (leading axes)", x.shape[:-2], y.shape[:-2])
