"""The namespace ``ad.linalg``: the linear algebra functions of the Array API and more of NumPy's."""

from __future__ import annotations

from typing import Any

from adjoint.core.convert import asarray
from adjoint.core.tensor import Tensor
from adjoint.errors import ShapeError
from adjoint.ops import products
from adjoint.ops.decompositions import cholesky, eigh, eigvalsh, qr
from adjoint.ops.least_squares import lstsq, pinv
from adjoint.ops.matrix_functions import eig, eigvals, lu, matrix_exp
from adjoint.ops.norms import cond, matrix_norm, norm, vector_norm
from adjoint.ops.products import cross, matmul, multi_dot, tensordot, vecdot
from adjoint.ops.shape import matrix_transpose
from adjoint.ops.singular_values import matrix_rank, svd, svdvals
from adjoint.ops.solvers import (
    det,
    inv,
    matrix_power,
    slogdet,
    solve,
    solve_triangular,
    tensorinv,
    tensorsolve,
)
from adjoint.typing import ArrayLike, DTypeLike

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "lu",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vecdot",
    "vector_norm",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def _matrices(op: str, x: Any) -> Tensor:
    x = asarray(x)
    if x.ndim < 2:
        raise ShapeError(
            f"{op}: x must be a matrix or a batch of matrices in the last two axes, but has shape {x.shape}."
        )
    return x


def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Tensor:
    """Return the diagonals of the matrices in the last two axes.

    Parameters
    ----------
    x : array_like
        The matrices.
    offset : int, optional
        The diagonal: 0 for the main one, positive numbers above, negative ones below.

    Returns
    -------
    Tensor
        The diagonals, in the last axis.

    Raises
    ------
    ShapeError
        If ``x`` has fewer than two axes.

    Examples
    --------
    >>> diagonal([[1.0, 2.0], [3.0, 4.0]])
    tensor([1., 4.], dtype=float64)
    """
    return products.last_diagonal(_matrices("diagonal", x), offset, "d")


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """Sum the diagonals of the matrices in the last two axes.

    Parameters
    ----------
    x : array_like
        The matrices.
    offset : int, optional
        The diagonal: 0 for the main one, positive numbers above, negative ones below.
    dtype : dtype, optional
        The dtype of the result.

    Returns
    -------
    Tensor
        The sums.

    Raises
    ------
    ShapeError
        If ``x`` has fewer than two axes.

    Examples
    --------
    >>> trace([[1.0, 2.0], [3.0, 4.0]])
    tensor(5., dtype=float64)
    """
    return products.trace(_matrices("trace", x), offset, -2, -1, dtype)


def outer(x: ArrayLike, y: ArrayLike, /) -> Tensor:
    """Return the products of all pairs of elements of two vectors.

    Parameters
    ----------
    x : array_like
        The first vector; its elements are the rows.
    y : array_like
        The second vector; its elements are the columns.

    Returns
    -------
    Tensor
        The matrix of products.

    Raises
    ------
    ShapeError
        If an argument is not a vector.

    Examples
    --------
    >>> outer([1.0, 2.0], [3.0, 4.0])
    tensor([[3., 4.],
            [6., 8.]], dtype=float64)
    """
    x, y = asarray(x), asarray(y)
    if x.ndim != 1 or y.ndim != 1:
        raise ShapeError(f"outer: both arguments must be vectors, but have shapes {x.shape} and {y.shape}.")
    return products.outer(x, y)
