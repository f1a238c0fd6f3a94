"""Unit vectors, and distances and cosines between vectors."""

from __future__ import annotations

import math

import numpy as np

from adjoint.core.namespace import rec
from adjoint.core.shapes import broadcast_shapes, canonical_axes, canonical_axis, number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError
from adjoint.nn.arguments import floats
from adjoint.nn.norms import like_input, widened_half
from adjoint.nn.shared_docs import layer_doc
from adjoint.ops.reduce import narrowed
from adjoint.typing import ArrayLike

__all__ = ["cosine_similarity", "normalize", "pairwise_distance"]


def _length(x: Tensor, axes: tuple[int, ...], least: float, p: float = 2.0) -> Tensor:
    """Return the p-norm of ``x`` along axes, but at least ``least``, so that the gradient at 0 is finite."""
    return rec.maximum(rec.vector_norm(x, ord=p, axis=axes, keepdims=True), least)


@layer_doc
def cosine_similarity(x: ArrayLike, y: ArrayLike, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between x and y along an axis.

    Parameters
    ----------
    x, y : array_like
        The inputs, broadcast against each other.
    axis : int
        The axis of the vectors.
    eps : float
        Lower limit of the norms in the denominator.

    Returns
    -------
    Tensor
        The cosines, without ``axis``; 0 where x or y is 0.

    >>> ad.nn.functional.cosine_similarity(ad.tensor([[1.0, 0.0]]), ad.tensor([[3.0, 0.0], [0.0, 2.0]]))
    tensor([1., 0.], dtype=float64)
    """
    x, y = floats("cosine_similarity", x), floats("cosine_similarity", y)
    shape = broadcast_shapes("cosine_similarity", x.shape, y.shape)
    axes = (canonical_axis("cosine_similarity", axis, len(shape)),)
    dtype = np.result_type(x.dtype, y.dtype)
    x, y = (rec.broadcast_to(widened_half(a), shape=shape) for a in (x, y))
    product = x / _length(x, axes, eps) * (y / _length(y, axes, eps))
    return narrowed(rec.sum(product, axis=axes, keepdims=False), dtype)


@layer_doc
def normalize(x: ArrayLike, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """Divide x by its p-norm along an axis.

    Parameters
    ----------
    p : float
        The order of the norm, positive or infinite.
    axis : int
        The axis of the vectors.
    eps : float
        Lower limit of the norm.

    Returns
    -------
    Tensor
        Vectors of norm 1, with the shape of x.

    >>> ad.nn.functional.normalize(ad.tensor([[3.0, 4.0]]))
    tensor([[0.6, 0.8]], dtype=float64)
    """
    x = floats("normalize", x)
    axes = canonical_axes("normalize", axis, x.ndim)
    p = number("normalize", "p", p)
    if not p > 0:
        raise ArgumentError(f"normalize: p must be positive, but is {p}.")
    wide = widened_half(x)
    if p == math.inf:
        return like_input(wide / rec.maximum(rec.max(rec.abs(wide), axis=axes, keepdims=True), eps), x)
    return like_input(wide / _length(wide, axes, eps, p), x)


@layer_doc
def pairwise_distance(
    x: ArrayLike, y: ArrayLike, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False
) -> Tensor:
    """Return the p-norm of ``x - y + eps`` along the last axis.

    Parameters
    ----------
    x, y : array_like
        Vectors along the last axis, broadcast against each other.
    p : float
        The order of the norm.
    eps : float
        Added to the differences, so that the gradient exists where vectors are equal.
    keepdims : bool
        Whether the last axis is kept with the length 1.

    Returns
    -------
    Tensor
        The distances.

    >>> ad.nn.functional.pairwise_distance([[0.0, 0.0]], [[3.0, 4.0]], eps=0.0)
    tensor([5.], dtype=float64)
    """
    op = "pairwise_distance"
    x, y = floats(op, x), floats(op, y)
    broadcast_shapes(op, x.shape, y.shape)
    apart = widened_half(x) - widened_half(y) + number(op, "eps", eps)
    length = rec.vector_norm(apart, ord=number(op, "p", p), axis=(-1,), keepdims=keepdims)
    return narrowed(length, np.result_type(x.dtype, y.dtype))
