"""Diagonals and triangles of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.shapes import Shape, canonical_axis, whole_number
from adjoint.core.tensor import Tensor
from adjoint.errors import ShapeError
from adjoint.ops.shape import moveaxis, pad
from adjoint.typing import Array, ArrayLike

__all__ = ["block_diag", "diag", "diagonal", "tril", "triu"]


def _diagonal(x: Array, offset: int) -> Any:
    return np.diagonal(x, offset, -2, -1)


def _undiagonal(x: Array, offset: int, shape: Shape) -> Any:
    """Return matrices of zeros with the last axis of ``x`` on the diagonal ``offset``.

    ``shape`` is the number of rows and of columns.
    """
    out = np.zeros((*x.shape[:-1], *shape), x.dtype)
    n = np.arange(x.shape[-1])
    out[..., n + max(-offset, 0), n + max(offset, 0)] = x
    return out


define("diagonal", _diagonal,
       lambda xp, g, y, x, offset: xp.undiagonal(g, offset=offset, shape=x.shape[-2:]),
       kind="linear", params=("offset",), selects=True, batch="leading", method=True, reference="numpy.linalg:diagonal", doc="A diagonal of the last two axes.")  # fmt: skip
define("undiagonal", _undiagonal, lambda xp, g, y, x, offset, shape: xp.diagonal(g, offset=offset),
       kind="linear", params=("offset", "shape"), batch="leading", reference="formula", doc="Zeros with elements on a diagonal of two new last axes.")  # fmt: skip
define("tril", lambda x, k: np.tril(x, k), lambda xp, g, y, x, k: xp.tril(g, k=k), kind="linear", params=("k",),
       selects=True, batch="leading", method=True, doc="The lower triangle of the last two axes, zeros above.")  # fmt: skip
define("triu", lambda x, k: np.triu(x, k), lambda xp, g, y, x, k: xp.triu(g, k=k), kind="linear", params=("k",),
       selects=True, batch="leading", method=True, doc="The upper triangle of the last two axes, zeros below.")  # fmt: skip


def block_diag(*xs: ArrayLike) -> Tensor:
    """Return the matrix with the given ones on its diagonal and zeros elsewhere.

    Parameters
    ----------
    *xs : array_like
        The matrices; numbers and vectors become matrices of one row.

    Returns
    -------
    Tensor
        The matrix.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.block_diag(1, [[2, 3]])
    tensor([[1, 0, 0],
            [0, 2, 3]], dtype=int64)
    """
    parts = [asarray(x) for x in xs] or [asarray(np.zeros((1, 0)))]
    parts = [rec.reshape(p, shape=(1,) * (2 - p.ndim) + p.shape) if p.ndim < 2 else p for p in parts]
    width, rows, start = sum(p.shape[-1] for p in parts), [], 0
    for p in parts:
        beside = (start, width - start - p.shape[-1])
        rows.append(pad(p, (*((0, 0),) * (p.ndim - 1), beside)))
        start += p.shape[-1]
    return rec.concat(*rows, axis=-2)


def diagonal(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return a diagonal of the matrices in two axes, as the last axis of the result.

    Parameters
    ----------
    x : array_like
        The argument.
    offset : int, optional
        The diagonal: 0 for the main one, positive numbers above, negative ones below.
    axis1 : int, optional
        The axis of the rows.
    axis2 : int, optional
        The axis of the columns.

    Returns
    -------
    Tensor
        The diagonal.

    Raises
    ------
    ShapeError
        If ``x`` has fewer than two axes, or the axes are the same.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.diagonal(ad.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([1., 4.], dtype=float64)
    """
    x = _matrix("diagonal", x)
    a, b = (canonical_axis("diagonal", i, x.ndim) for i in (axis1, axis2))
    if a == b:
        raise ShapeError(
            f"diagonal: axis1 and axis2 must be different, but are both axis {axis1} of shape {x.shape}."
        )
    if (a, b) != (-2, -1):
        x = moveaxis(x, (a, b), (-2, -1))
    return rec.diagonal(x, offset=whole_number("diagonal", "offset", offset))


def diag(x: ArrayLike, k: int = 0) -> Tensor:
    """Return the diagonal of a matrix, or a matrix with a vector on its diagonal.

    Parameters
    ----------
    x : array_like
        A matrix or a vector.
    k : int, optional
        The diagonal: 0 for the main one, positive numbers above, negative ones below.

    Returns
    -------
    Tensor
        The diagonal of a matrix, or the matrix made of a vector.

    Raises
    ------
    ShapeError
        If ``x`` is neither a vector nor a matrix.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.diag(ad.tensor([1.0, 2.0]))
    tensor([[1., 0.],
            [0., 2.]], dtype=float64)
    """
    x, offset = asarray(x), whole_number("diag", "k", k)
    if x.ndim == 2:
        return rec.diagonal(x, offset=offset)
    if x.ndim != 1:
        raise ShapeError(f"diag: x must be a vector or a matrix, but has shape {x.shape}.  Use ad.diagonal.")
    n = x.size + abs(offset)
    return rec.undiagonal(x, offset=offset, shape=(n, n))


def _matrix(op: str, x: Any) -> Tensor:
    x = asarray(x)
    if x.ndim < 2:
        raise ShapeError(f"{op}: x must have at least two axes, but has shape {x.shape}.")
    return x


def tril(x: ArrayLike, k: int = 0) -> Tensor:
    """Return the lower triangle of the last two axes, with zeros above.

    Parameters
    ----------
    x : array_like
        The argument.
    k : int, optional
        The last diagonal to keep: 0 for the main one, positive numbers above, negative ones below.

    Returns
    -------
    Tensor
        The lower triangle.

    Raises
    ------
    ShapeError
        If ``x`` has fewer than two axes.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.tril(ad.ones((2, 2)))
    tensor([[1., 0.],
            [1., 1.]], dtype=float64)
    """
    return rec.tril(_matrix("tril", x), k=whole_number("tril", "k", k))


def triu(x: ArrayLike, k: int = 0) -> Tensor:
    """Return the upper triangle of the last two axes, with zeros below.

    Parameters
    ----------
    x : array_like
        The argument.
    k : int, optional
        The first diagonal to keep: 0 for the main one, positive numbers above, negative ones below.

    Returns
    -------
    Tensor
        The upper triangle.

    Raises
    ------
    ShapeError
        If ``x`` has fewer than two axes.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.triu(ad.ones((2, 2)))
    tensor([[1., 1.],
            [0., 1.]], dtype=float64)
    """
    return rec.triu(_matrix("triu", x), k=whole_number("triu", "k", k))
