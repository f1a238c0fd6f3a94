"""Grids, products and combinations of all pairs of elements."""

from __future__ import annotations

import itertools

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import same_rank_axes, whole_number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.ops.shared_docs import argument_doc
from adjoint.typing import ArrayLike

__all__ = ["combinations", "kron", "meshgrid"]


@argument_doc
def meshgrid(*xs: ArrayLike, indexing: str = "xy") -> list[Tensor]:
    """Return coordinate tensors on a grid, one for each vector.

    Parameters
    ----------
    *xs : array_like
        The coordinates along each axis.
    indexing : {"xy", "ij"}, optional
        With "ij" the first vector runs along axis 0, with "xy" along axis 1.

    Returns
    -------
    list of Tensor
        The coordinates of each point; all have the shape of the grid.

    Raises
    ------
    ShapeError
        If an argument has more than one axis.

    >>> ad.meshgrid([1, 2], [3, 4, 5], indexing="ij")[0]
    tensor([[1, 1, 1],
            [2, 2, 2]], dtype=int64)
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid: indexing must be 'xy' or 'ij', not {indexing!r}.")
    vectors = [asarray(x) for x in xs]
    for x in vectors:
        if x.ndim > 1:
            raise ShapeError(
                f"meshgrid: each argument must be a vector or a number, but one has shape {x.shape}."
            )
    places = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        places[:2] = 1, 0
    shape = [1] * len(vectors)
    for x, place in zip(vectors, places, strict=True):
        shape[place] = x.size
    grid = []
    for x, place in zip(vectors, places, strict=True):
        alone = tuple(x.size if i == place else 1 for i in range(len(vectors)))
        grid.append(rec.broadcast_to(rec.reshape(x, shape=alone), shape=tuple(shape)))
    return grid


@argument_doc
def kron(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Return the Kronecker product: blocks of ``y``, each multiplied by an element of ``x``.

    Parameters
    ----------
    x : array_like
        The first factor.
    y : array_like
        The second factor.

    >>> ad.kron([1.0, 10.0], [1.0, 2.0])
    tensor([ 1.,  2., 10., 20.], dtype=float64)
    """
    x, y = asarray(x), asarray(y)
    ndim = max(x.ndim, y.ndim)
    a, b = same_rank_axes(x.shape, ndim), same_rank_axes(y.shape, ndim)
    blocks = rec.multiply(
        rec.reshape(x, shape=tuple(m for n in a for m in (n, 1))),
        rec.reshape(y, shape=tuple(m for n in b for m in (1, n))),
    )
    return rec.reshape(blocks, shape=tuple(m * n for m, n in zip(a, b, strict=True)))


@argument_doc
def combinations(x: ArrayLike, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Return all combinations of ``r`` elements of a vector, in the order of ``itertools``.

    Parameters
    ----------
    x : array_like
        The vector.
    r : int, optional
        How many elements a combination has.
    with_replacement : bool, optional
        Whether an element may be in a combination repeatedly.

    Returns
    -------
    Tensor
        One combination per row.

    Raises
    ------
    ShapeError
        If ``x`` is not a vector.

    >>> ad.combinations(ad.tensor([1.0, 2.0, 3.0]))
    tensor([[1., 2.],
            [1., 3.],
            [2., 3.]], dtype=float64)
    """
    x, size = asarray(x), whole_number("combinations", "r", r)
    if x.ndim != 1:
        raise ShapeError(f"combinations: x must be a vector, but has shape {x.shape}.")
    if size < 0:
        raise ArgumentError(f"combinations: r must not be negative, but is {r}.")
    chosen = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(chosen(range(x.size), size))
    return rec.take(x, np.array(rows, np.intp).reshape(len(rows), size), axis=-1)
