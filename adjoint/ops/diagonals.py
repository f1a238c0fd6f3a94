"""Diagonals, traces and triangles of matrices."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.native import Primitives, View
from adjoint.core.shapes import Shape, canonical_axis, from_whole_float, whole_number
from adjoint.core.tensor import Tensor
from adjoint.errors import ShapeError
from adjoint.ops.arrange import pad
from adjoint.ops.shape import moveaxis
from adjoint.ops.shared_docs import argument_doc, two_axes_doc
from adjoint.typing import Array, ArrayLike, DTypeLike

__all__ = ["block_diag", "diag", "diagonal", "trace", "tril", "triu"]

_axes_doc = argument_doc.extended("""
    Parameters
    ----------
    axis1 : int, optional
        The axis of the rows.
    axis2 : int, optional
        The axis of the columns.

    Raises
    ------
    ShapeError
        If ``x`` has fewer than two axes, or the axes are the same.
    """)


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


def _native_diagonal(xp: Primitives, x: View, offset: int) -> View:
    rows, columns = x.shape[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    n = max(min(rows - down, columns - right), 0)
    at = x.offset + (down * x.strides[-2] + right * x.strides[-1] if n else 0)
    step = x.strides[-2] + x.strides[-1] if n > 1 else 0
    return x.strided((*x.shape[:-2], n), (*x.strides[:-2], step), at)


def _native_undiagonal(xp: Primitives, x: View, offset: int, shape: Shape) -> View:
    full = (*x.shape[:-1], *shape)
    spot = _native_diagonal(xp, xp.graph.target(full), offset)
    return xp.graph.place(full, x.dtype, 0, [(x, spot.where)])


def _native_triangle(xp: Primitives, x: View, k: int, lower: bool) -> View:
    """Return ``x`` with zeros above diagonal ``k`` of the last two axes (``lower``), or from it downwards."""
    below = np.tri(x.shape[-2], x.shape[-1], k, dtype=bool)
    zero = np.zeros((), x.dtype)
    return xp.where(below, x, zero) if lower else xp.where(below, zero, x)


define("diagonal", _diagonal,
       lambda xp, g, y, x, offset: xp.undiagonal(g, offset=offset, shape=x.shape[-2:]),
       kind="linear", params=("offset",), selects=True, batch="leading", method=True, reference="numpy.linalg:diagonal", lower=_native_diagonal, memory="view", sparsity="move", doc="A diagonal of the last two axes.")  # fmt: skip
define("undiagonal", _undiagonal, lambda xp, g, y, x, offset, shape: xp.diagonal(g, offset=offset),
       kind="linear", params=("offset", "shape"), batch="leading", reference="formula", lower=_native_undiagonal, sparsity="move", doc="Zeros with elements on a diagonal of two new last axes.")  # fmt: skip
define("tril", lambda x, k: np.tril(x, k), lambda xp, g, y, x, k: xp.tril(g, k=k), kind="linear", params=("k",),
       selects=True, batch="leading", method=True, lower=lambda xp, x, k: _native_triangle(xp, x, k, True), sparsity="move", doc="The lower triangle of the last two axes, zeros above.")  # fmt: skip
define("triu", lambda x, k: np.triu(x, k), lambda xp, g, y, x, k: xp.triu(g, k=k), kind="linear", params=("k",),
       selects=True, batch="leading", method=True, lower=lambda xp, x, k: _native_triangle(xp, x, k - 1, False), sparsity="move", doc="The upper triangle of the last two axes, zeros below.")  # fmt: skip


@argument_doc
def block_diag(*xs: ArrayLike) -> Tensor:
    """Return the matrix with the given ones on its diagonal and zeros elsewhere.

    Parameters
    ----------
    *xs : array_like
        The matrices; numbers and vectors become matrices of one row.

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


@_axes_doc
def diagonal(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return a diagonal of the matrices in two axes, as the last axis of the result.

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


@argument_doc
def diag(x: ArrayLike, k: int = 0) -> Tensor:
    """Return the diagonal of a matrix, or a matrix with a vector on its diagonal.

    Parameters
    ----------
    x : array_like
        A matrix or a vector.
    k : int, optional
        The diagonal: 0 for the main one, positive numbers above, negative ones below.

    Raises
    ------
    ShapeError
        If ``x`` is neither a vector nor a matrix.

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


@two_axes_doc
def tril(x: ArrayLike, k: int = 0) -> Tensor:
    """Return the lower triangle of the last two axes, with zeros above.

    Parameters
    ----------
    k : int, optional
        The last diagonal to keep: 0 for the main one, positive numbers above, negative ones below.

    >>> ad.tril(ad.ones((2, 2)))
    tensor([[1., 0.],
            [1., 1.]], dtype=float64)
    """
    return rec.tril(_matrix("tril", x), k=whole_number("tril", "k", from_whole_float(k)))


@two_axes_doc
def triu(x: ArrayLike, k: int = 0) -> Tensor:
    """Return the upper triangle of the last two axes, with zeros below.

    Parameters
    ----------
    k : int, optional
        The first diagonal to keep: 0 for the main one, positive numbers above, negative ones below.

    >>> ad.triu(ad.ones((2, 2)))
    tensor([[1., 1.],
            [0., 1.]], dtype=float64)
    """
    return rec.triu(_matrix("triu", x), k=whole_number("triu", "k", from_whole_float(k)))


def square_at(x: Tensor, offset: int) -> Tensor:
    """Return the largest square submatrix whose main diagonal is the diagonal ``offset`` of ``x``."""
    rows, columns = x.shape[-2:]
    top, left = max(-offset, 0), max(offset, 0)
    n = max(min(rows - top, columns - left), 0)
    if (top, left, rows, columns) == (0, 0, n, n):
        return x
    return x[..., top : top + n, left : left + n]


def last_diagonal(x: Tensor, offset: int, output: str) -> Tensor:
    """Return a diagonal of the last two axes (``output="d"``), or its sum (``output=""``).

    ``offset`` is the distance from the main diagonal, positive above it.
    """
    x = square_at(x, operator.index(offset))
    lead = "".join(chr(0x100 + i) for i in range(x.ndim - 2))
    return rec.relabel(x, labels=lead + "dd", output=lead + output, extra=())


@argument_doc
@_axes_doc
def trace(
    x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DTypeLike | None = None
) -> Tensor:
    """Sum a diagonal of the matrices in two axes.

    ``ad.linalg.trace`` uses the last two axes.

    >>> ad.trace([[1.0, 2.0], [3.0, 4.0]])
    tensor(5., dtype=float64)
    """
    x = asarray(x, dtype=dtype)
    if x.ndim < 2:
        raise ShapeError(f"trace: x must have at least two axes, but has shape {x.shape}.")
    a, b = (canonical_axis("trace", i, x.ndim) for i in (axis1, axis2))
    if a == b:
        raise ShapeError(f"trace: axis1 and axis2 must be different, but are both axis {axis1}.")
    if (a, b) != (-2, -1):
        rest = tuple(i for i in range(-x.ndim, 0) if i not in (a, b))
        x = rec.permute_dims(x, axes=(*rest, a, b))
    if dtype is None and x.dtype.kind in "biu":
        # small integers are added as int64
        x = rec.astype(x, dtype=np.add.reduce(np.zeros(1, x.dtype)).dtype)
    return last_diagonal(x, offset, "")
