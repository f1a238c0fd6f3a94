"""The namespace ``ad.linalg``: the linear algebra functions of the Array API and more of NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adjoint.core.convert import asarray
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError, ShapeError
from adjoint.ops import diagonals, products
from adjoint.ops.decompositions import cholesky, eigh, eigvalsh, qr
from adjoint.ops.least_squares import lstsq, pinv
from adjoint.ops.matrix_functions import eig, eigvals, lu, matrix_exp
from adjoint.ops.norms import cond, matrix_norm, norm, vector_norm
from adjoint.ops.products import cross, matmul, tensordot, vecdot
from adjoint.ops.shape import matrix_transpose
from adjoint.ops.shared_docs import argument_doc, two_axes_doc
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
    "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq",
    "lu", "matmul", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose",
    "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals",
    "tensordot", "tensorinv", "tensorsolve", "trace", "vecdot", "vector_norm",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


def _matrices(op: str, x: Any) -> Tensor:
    x = asarray(x)
    if x.ndim < 2:
        raise ShapeError(
            f"{op}: x must be a matrix or a batch of matrices in the last two axes, but has shape {x.shape}."
        )
    return x


@two_axes_doc
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

    >>> diagonal([[1.0, 2.0], [3.0, 4.0]])
    tensor([1., 4.], dtype=float64)
    """
    return diagonals.last_diagonal(_matrices("diagonal", x), offset, "d")


@two_axes_doc
def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """Sum the diagonals of the matrices in the last two axes.

    Parameters
    ----------
    x : array_like
        The matrices.

    >>> trace([[1.0, 2.0], [3.0, 4.0]])
    tensor(5., dtype=float64)
    """
    return diagonals.trace(_matrices("trace", x), offset, -2, -1, dtype)


@argument_doc
def outer(x: ArrayLike, y: ArrayLike, /) -> Tensor:
    """Return the products of all pairs of elements of two vectors.

    Parameters
    ----------
    x : array_like
        The first vector; its elements are the rows.
    y : array_like
        The second vector; its elements are the columns.

    Raises
    ------
    ShapeError
        If an argument is not a vector.

    >>> outer([1.0, 2.0], [3.0, 4.0])
    tensor([[3., 4.],
            [6., 8.]], dtype=float64)
    """
    x, y = asarray(x), asarray(y)
    if x.ndim != 1 or y.ndim != 1:
        raise ShapeError(f"outer: both arguments must be vectors, but have shapes {x.shape} and {y.shape}.")
    return products.outer(x, y)


@argument_doc
def multi_dot(arrays: Sequence[Any]) -> Tensor:
    """Multiply a chain of matrices in the cheapest order.

    Parameters
    ----------
    arrays : sequence of array_like
        The matrices; the first and the last may be vectors.

    Raises
    ------
    ShapeError
        If an operand is not a matrix.

    >>> ad.linalg.multi_dot([ad.ones((2, 9)), ad.ones((9, 3)), ad.ones(3)]).shape
    (2,)
    """
    tensors = [asarray(a) for a in arrays]
    if len(tensors) < 2:
        raise InputError(f"multi_dot: expected two or more matrices, but got {len(tensors)}.")
    for i, t in enumerate(tensors):
        if t.ndim != 2 and not (t.ndim == 1 and i in (0, len(tensors) - 1)):
            raise ShapeError(
                f"multi_dot: operand {i} has shape {t.shape}: operands must be matrices, except that the first and last may be vectors."
            )
    sizes = [tensors[0].shape[0] if tensors[0].ndim == 2 else 1]
    sizes += [t.shape[0] for t in tensors[1:]]
    sizes.append(tensors[-1].shape[1] if tensors[-1].ndim == 2 else 1)
    return _multiplied(tensors, _best_splits(sizes), 0, len(tensors) - 1)


def _best_splits(sizes: list[int]) -> dict[tuple[int, int], int]:
    """Return the best order of the products of a chain of matrices, found by dynamic programming.

    Entry (i, j) of the dictionary is the k for which (matrices i to k) times (matrices k + 1 to j) costs
    least.  ``sizes`` has the number of rows of the first matrix, then the number of columns of each matrix.
    """
    n = len(sizes) - 1
    cost = {(i, i): 0 for i in range(n)}
    split = {}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            cost[i, j], split[i, j] = min(
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )
    return split


def _multiplied(tensors: list[Tensor], split: dict[tuple[int, int], int], i: int, j: int) -> Tensor:
    if i == j:
        return tensors[i]
    k = split[i, j]
    return matmul(_multiplied(tensors, split, i, k), _multiplied(tensors, split, k + 1, j))
