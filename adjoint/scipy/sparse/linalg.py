"""``scipy.sparse.linalg`` on tensors: solves whose derivatives come from the implicit function theorem.

The matrix is a ``SparseArray``, whose elements get gradients; or a SciPy matrix or ``LinearOperator``, which
is a constant; or a dense tensor.  Other names are SciPy's own functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.docstrings import SharedDoc
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError, ShapeError
from adjoint.ops.reduce import floating
from adjoint.ops.sparse_matrices import Operator, Pattern
from adjoint.scipy.fallback import drop_ins, scipy_only
from adjoint.scipy.sparse.arrays import SparseArray
from adjoint.scipy.values import plain_values
from adjoint.typing import ArrayLike

__all__ = ["cg", "gmres", "spsolve"]
__dir__ = sorted(__all__).copy


def _split(op: str, a: Any) -> tuple[Any, Any]:
    """Return the elements of the matrix ``a`` as a vector, and a ``Pattern`` with their positions.

    For a constant matrix or linear operator of SciPy, return an empty vector and an ``Operator``.
    """
    if isinstance(a, SparseArray):
        return a.data, a.pattern
    if hasattr(a, "tocoo") or hasattr(a, "matvec"):
        return asarray(np.zeros(0)), Operator(a)
    dense = floating(op, a)
    if dense.ndim != 2:
        raise ShapeError(f"{op}: A must be a matrix, but has shape {dense.shape}.")
    i, j = np.indices(dense.shape).reshape(2, -1)
    return rec.reshape(dense, shape=(dense.size,)), Pattern(i, j, (dense.shape[0], dense.shape[1]))


def _solve(op: str, method: str, a: Any, b: Any, options: dict[str, Any]) -> Tensor:
    data, pattern = _split(op, a)
    if pattern.shape[0] != pattern.shape[1]:
        raise ShapeError(f"{op}: the matrix must be square, but has shape {pattern.shape}.")
    side = floating(op, b)
    if side.ndim not in (1, 2) or side.shape[0] != pattern.shape[0]:
        raise ShapeError(
            f"{op}: for a matrix of shape {pattern.shape} the right-hand side must have {pattern.shape[0]} "
            f"rows, but has shape {side.shape}."
        )
    columns = side[:, None] if side.ndim == 1 else side
    given = tuple((k, v) for k, v in options.items() if v is not None)
    x = rec.sparse_solve(data, columns, pattern=pattern, method=method, options=given)
    return x[:, 0] if side.ndim == 1 else x


def spsolve(A: Any, b: ArrayLike, permc_spec: Any = None, use_umfpack: bool = True) -> Tensor:
    """Solve equations with a sparse matrix.

    Parameters
    ----------
    A : SparseArray, sparse matrix of SciPy or array_like
        The matrix.
    b : array_like
        The right-hand side, a vector or columns.
    permc_spec : str, optional
        Ignored.
    use_umfpack : bool, optional
        Ignored.

    Returns
    -------
    Tensor
        The solution.  Gradients flow to the right-hand side and to the elements of the matrix.

    Raises
    ------
    LinAlgError
        If the matrix is singular.
    ShapeError
        If the shapes do not match.

    Examples
    --------
    >>> import adjoint as ad
    >>> a = ad.scipy.sparse.diags_array([[2.0, 4.0]], offsets=[0])
    >>> ad.scipy.sparse.linalg.spsolve(a, [2.0, 2.0])
    array([1. , 0.5])
    """
    if hasattr(A, "matvec") and not hasattr(A, "tocoo"):
        raise InputError("spsolve: A must be a matrix, not a LinearOperator.  Use gmres or cg.")
    if hasattr(A, "tocoo") and not isinstance(A, SparseArray):
        A = A.tocsc()
    return _solve("spsolve", "direct", A, b, {})


_solver_doc = SharedDoc("""
    Parameters
    ----------
    b : array_like
        The right-hand side.
    x0 : array_like, optional
        The start of the iteration.
    rtol : float, optional
        The relative tolerance of the residual, also for the gradients.
    atol : float, optional
        The absolute tolerance.
    M : sparse matrix or LinearOperator of SciPy, optional
        A preconditioner, an approximation of the inverse.

    Returns
    -------
    tuple
        The solution, and 0.

    Raises
    ------
    ConvergenceError
        If the iteration does not converge.
    """)


@_solver_doc
def cg(
    A: Any,
    b: ArrayLike,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Any = None,
) -> tuple[Tensor, int]:
    """Solve equations with a symmetric positive definite matrix by conjugate gradients.

    Parameters
    ----------
    A : SparseArray, sparse matrix or LinearOperator of SciPy, or array_like
        The matrix.
    maxiter : int, optional
        The largest number of iterations.
    callback : callable, optional
        Called after each iteration with the current solution, an array.

    >>> import numpy as np
    >>> ad.scipy.sparse.linalg.cg(np.diag([2.0, 4.0]), np.array([2.0, 2.0]))[0].round(6)
    array([1. , 0.5])
    """
    options = {"rtol": rtol, "atol": atol, "maxiter": maxiter, "M": M, "x0": _plain(x0), "callback": callback}
    return _solve("cg", "cg", A, b, options), 0


@_solver_doc
def gmres(
    A: Any,
    b: ArrayLike,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int | None = None,
    maxiter: int | None = None,
    M: Any = None,
    callback: Any = None,
    callback_type: str | None = None,
) -> tuple[Tensor, int]:
    """Solve equations by the generalized minimal residual method.

    Parameters
    ----------
    A : SparseArray, sparse matrix or LinearOperator of SciPy, or array_like
        The matrix; an operator needs ``rmatvec`` for gradients.
    restart : int, optional
        The number of iterations after which the method is restarted.
    maxiter : int, optional
        The largest number of restarts.
    callback : callable, optional
        Called after each iteration, as in SciPy.
    callback_type : str, optional
        What is passed to the callback, as in SciPy.

    >>> import numpy as np
    >>> ad.scipy.sparse.linalg.gmres(np.diag([2.0, 4.0]), np.array([2.0, 2.0]))[0].round(6)
    array([1. , 0.5])
    """
    options = {
        "rtol": rtol, "atol": atol, "restart": restart, "maxiter": maxiter, "M": M, "x0": _plain(x0),
        "callback": callback, "callback_type": callback_type,
    }  # fmt: skip
    return _solve("gmres", "gmres", A, b, options), 0


def _plain(x0: Any) -> Any:
    """Return the starting point of an iteration as an array: no gradient flows to it."""
    return plain_values(asarray(x0)) if x0 is not None else None


globals().update(drop_ins("sparse.linalg", {name: globals()[name] for name in __all__}))


def __getattr__(name: str) -> Any:
    """Return SciPy's own function, which raises an error for a tensor that requires grad."""
    return scipy_only("sparse.linalg", name)
