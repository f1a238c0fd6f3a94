"""``scipy.linalg`` on tensors, with SciPy's names and parameters.

Parameters about memory and checks (``overwrite_a``, ``check_finite``, ``lapack_driver``, …) are accepted and
ignored.  Names that are not in ``__all__`` are SciPy's own functions, which raise ``LostHistoryError`` for a
tensor that requires grad.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError, NoGradientError, ShapeError
from adjoint.ops import diagonals
from adjoint.ops import linalg as ours
from adjoint.ops.grids import kron
from adjoint.ops.join import atleast_1d, concat, stack
from adjoint.ops.matrices import adjoint_of
from adjoint.ops.reduce import floating
from adjoint.scipy.fallback import drop_ins, scipy_only
from adjoint.scipy.values import plain_values

__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "circulant", "det", "eig", "eigh", "eigvals",
    "eigvalsh", "expm", "funm", "hankel", "inv", "kron", "logm", "lstsq", "lu", "lu_factor", "lu_solve",
    "norm", "null_space", "pinv", "polar", "qr", "schur", "solve", "solve_banded", "solve_circulant",
    "solve_continuous_lyapunov", "solve_discrete_lyapunov", "solve_sylvester", "solve_toeplitz",
    "solve_triangular", "sqrtm", "svd", "svdvals", "toeplitz",
]  # fmt: skip
__dir__ = sorted(__all__).copy

_IGNORED = frozenset("overwrite_a overwrite_b overwrite_ab check_finite lapack_driver driver".split())


# values of assume_a= whose solvers read only one triangle
_ONE_TRIANGLE = ("sym", "her", "pos", "symmetric", "hermitian", "positive definite")


_DOC = """{summary}

Parameters
----------
*args : object
    The parameters of ``scipy.linalg.{name}``.
**kwargs : object
    Its parameters, passed by name.

Returns
-------
{returns}
    {result}

Examples
--------
>>> import adjoint as ad, numpy as np
>>> {example}
{shown}
"""


def _like_scipy(
    example: str, shown: str, result: str = "As SciPy's.", returns: str = "ndarray or Tensor"
) -> Callable[..., Any]:
    """Return a decorator for functions of this module.

    The decorated function also accepts, and ignores, SciPy's parameters about memory and checks.  The
    decorator completes the docstring: ``example`` is a call with the result ``shown``, and ``returns`` and
    ``result`` are the type and the description of the return value.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__

        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **{k: v for k, v in kwargs.items() if k not in _IGNORED})

        functools.update_wrapper(call, function, assigned=("__module__", "__name__", "__qualname__"))
        del vars(call)["__wrapped__"]
        call.__doc__ = _DOC.format(
            summary=function.__doc__, name=name, example=example, shown=shown, result=result, returns=returns
        )
        return call

    return decorate


def _matrix(op: str, a: Any) -> Tensor:
    x = floating(op, a)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{op}: matrices must be square, but have shape {x.shape}.")
    return x


# Decompositions ------------------------------------------------------------------------------------


@_like_scipy(
    "ad.scipy.linalg.eig([[2.0, 0.0], [0.0, 3.0]])[0]",
    "array([2.+0.j, 3.+0.j])",
    "The values and the vectors.  Equal values have no derivatives of their own and raise an error.",
    "tuple of ndarray or Tensor",
)
def eig(a: Any, b: Any = None, left: bool = False, right: bool = True) -> Any:
    """Return the eigenvalues and right eigenvectors of a square matrix, as complex tensors."""
    if b is not None or left:
        raise InputError(
            "eig: b= and left=True are not supported for tensors.  Use eig(solve(b, a)) for the generalized "
            "problem."
        )
    w, v = rec.eig(_matrix("eig", a))
    return (w, v) if right else w


@_like_scipy("ad.scipy.linalg.eigvals([[2.0, 0.0], [0.0, 3.0]])", "array([2.+0.j, 3.+0.j])")
def eigvals(a: Any, b: Any = None) -> Any:
    """Return the eigenvalues of a square matrix, as a complex tensor."""
    return eig(a, b, right=False)


@_like_scipy(
    "ad.scipy.linalg.eigh([[2.0, 0.0], [0.0, 3.0]], eigvals_only=True)",
    "array([2., 3.])",
    "The values and the vectors.",
    "tuple of ndarray or Tensor",
)
def eigh(a: Any, b: Any = None, *, lower: bool = True, eigvals_only: bool = False) -> Any:
    """Return the eigenvalues and eigenvectors of a Hermitian matrix."""
    a = _matrix("eigh", a)
    uplo = "L" if lower else "U"
    if b is None:
        return ours.eigvalsh(a, uplo) if eigvals_only else tuple(ours.eigh(a, uplo))
    # a v = w b v with b = l lᴴ is the standard eigenvalue problem of l⁻¹ a l⁻ᴴ
    factor = ours.cholesky(_matrix("eigh", b))
    half = ours.solve_triangular(factor, a, lower=True)
    standard = adjoint_of(rec, ours.solve_triangular(factor, adjoint_of(rec, half), lower=True))
    if eigvals_only:
        return ours.eigvalsh(standard, uplo)
    w, v = ours.eigh(standard, uplo)
    return w, ours.solve_triangular(adjoint_of(rec, factor), v, lower=False)


@_like_scipy("ad.scipy.linalg.eigvalsh([[2.0, 0.0], [0.0, 3.0]])", "array([2., 3.])")
def eigvalsh(a: Any, b: Any = None, *, lower: bool = True) -> Any:
    """Return the eigenvalues of a Hermitian matrix."""
    return eigh(a, b, lower=lower, eigvals_only=True)


@_like_scipy(
    "ad.scipy.linalg.cholesky([[4.0, 2.0], [2.0, 5.0]])",
    "array([[2., 1.],\n       [0., 2.]])",
)
def cholesky(a: Any, lower: bool = False) -> Any:
    """Return the Cholesky factor of a positive definite matrix, by default the upper triangular one."""
    a = _matrix("cholesky", a)
    return ours.cholesky(a) if lower else ours.cholesky(a, upper=True)


@_like_scipy(
    "bool(ad.scipy.linalg.cho_factor(np.array([[4.0, 2.0], [2.0, 5.0]]), lower=True)[1])",
    "True",
    "The factor, with zeros in the other triangle, and whether it is the lower one.",
    "tuple",
)
def cho_factor(a: Any, lower: bool = False) -> Any:
    """Return the Cholesky factor of a positive definite matrix, for ``cho_solve``."""
    return cholesky(a, lower), lower


@_like_scipy(
    "ad.scipy.linalg.cho_solve(ad.scipy.linalg.cho_factor(np.array([[4.0]])), np.array([8.0]))", "array([2.])"
)
def cho_solve(c_and_lower: Any, b: Any) -> Any:
    """Solve a x = b, given the result of ``cho_factor`` of a."""
    c, lower = c_and_lower
    first = ours.solve_triangular(c if lower else adjoint_of(rec, c), floating("cho_solve", b), lower=True)
    return ours.solve_triangular(adjoint_of(rec, c) if lower else c, first, lower=False)


@_like_scipy(
    "[x.shape for x in ad.scipy.linalg.lu(np.eye(2))]",
    "[(2, 2), (2, 2), (2, 2)]",
    "The permutation, the lower and the upper triangle; the first two multiplied with ``permute_l``.",
    "tuple of ndarray or Tensor",
)
def lu(a: Any, permute_l: bool = False) -> Any:
    """Return the LU factors of a matrix, with pivoting: a = p @ l @ u."""
    p, lower, upper = ours.lu(a)
    return (rec.matmul(p, lower), upper) if permute_l else (p, lower, upper)


@_like_scipy(
    "ad.scipy.linalg.lu_factor([[4.0]])",
    "(array([[4.]]), array([0], dtype=int32))",
    "The factors, and for each row the row it was exchanged with.",
    "tuple of ndarray or Tensor",
)
def lu_factor(a: Any) -> Any:
    """Return both LU factors of a square matrix in one matrix, and the pivots, for ``lu_solve``."""
    p, lower, upper = lu(_matrix("lu_factor", a))
    if p.ndim > 2:
        raise ShapeError(
            "lu_factor: only one matrix is supported, not a batch.  Use ad.vmap or solve for several "
            "matrices."
        )
    n = p.shape[-1]
    if not n:
        return upper, asarray(np.zeros(0, np.int64))
    rows = rec.argmax(p, axis=-2, keepdims=False)  # for each row of l @ u, the number of the row of a
    order, pivots = asarray(np.arange(n)), []
    for i in range(n):
        k = rec.argmax(rec.astype(order == rows[i], dtype=np.int64), axis=-1, keepdims=False)
        pivots.append(k)
        order = _exchanged(order, i, k)
    return rec.tril(lower, k=-1) + upper, stack(pivots)


def _exchanged(order: Any, i: int, k: Any) -> Any:
    """Return the permutation ``order`` with elements ``i`` and ``k`` exchanged; ``k`` may be a tensor."""
    places = np.arange(order.shape[-1])
    return rec.where(places == i, order[k], rec.where(places == k, order[i], order))


@_like_scipy("ad.scipy.linalg.lu_solve(ad.scipy.linalg.lu_factor([[4.0]]), [8.0])", "array([2.])")
def lu_solve(lu_and_piv: Any, b: Any, trans: int = 0) -> Any:
    """Solve a x = b, given the result of ``lu_factor`` of a."""
    factors, pivots = lu_and_piv
    n = factors.shape[-1]
    order = asarray(np.arange(n))
    for i in range(n):
        order = _exchanged(order, i, asarray(pivots)[i])
    b = floating("lu_solve", b)
    if trans == 0:
        first = ours.solve_triangular(factors, b[order], lower=True, unit_diagonal=True)
        return ours.solve_triangular(factors, first, lower=False)
    turned = rec.matrix_transpose(factors) if trans == 1 else adjoint_of(rec, factors)
    first = ours.solve_triangular(turned, b, lower=True)
    return ours.solve_triangular(turned, first, lower=False, unit_diagonal=True)[order.argsort()]


@_like_scipy("ad.scipy.linalg.qr(np.eye(2), mode='r')[0].shape", "(2, 2)", "The factors.", "tuple of Tensor")
def qr(a: Any, mode: str = "full", pivoting: bool = False) -> Any:
    """Return the QR factors of a matrix: an orthogonal matrix and an upper triangular one."""
    if pivoting:
        raise InputError("qr: pivoting=True is not supported for tensors, because it has no derivative.")
    names = {"full": "complete", "economic": "reduced", "r": "r"}
    if mode not in names:
        raise InputError(f"qr: mode must be 'full', 'economic' or 'r', not {mode!r}.")
    a = floating("qr", a)
    if a.ndim < 2:
        raise ShapeError(f"qr: a must be a matrix, but has shape {a.shape}.")
    square = a.shape[-1] >= a.shape[-2]
    if mode == "full" and not square:
        return tuple(ours.qr(a, "complete"))
    q, r = ours.qr(a, "reduced")
    return (r,) if mode == "r" else (q, r)


@_like_scipy(
    "ad.scipy.linalg.svd(np.eye(2), compute_uv=False)",
    "array([1., 1.])",
    "Left vectors, values, right vectors; or the values.",
    "tuple of ndarray or Tensor",
)
def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Return the singular values and vectors of a matrix."""
    a = floating("svd", a)
    return tuple(ours.svd(a, full_matrices)) if compute_uv else ours.svdvals(a)


@_like_scipy("ad.scipy.linalg.svdvals(np.eye(2))", "array([1., 1.])")
def svdvals(a: Any) -> Any:
    """Return the singular values of a matrix."""
    return ours.svdvals(floating("svdvals", a))


@_like_scipy(
    "ad.scipy.linalg.polar(2 * np.eye(2))[1]",
    "array([[2., 0.],\n       [0., 2.]])",
    "The unitary factor u and the positive one p: a = u @ p, or a = p @ u with side='left'.",
    "tuple of ndarray or Tensor",
)
def polar(a: Any, side: str = "right") -> Any:
    """Return the polar decomposition of a matrix: a unitary and a positive semidefinite factor."""
    if side not in ("left", "right"):
        raise InputError(f"polar: side must be 'left' or 'right', not {side!r}.")
    w, s, vh = ours.svd(floating("polar", a), False)
    u = rec.matmul(w, vh)
    if side == "right":
        p = rec.matmul(adjoint_of(rec, vh) * s[..., None, :], vh)
    else:
        p = rec.matmul(w * s[..., None, :], adjoint_of(rec, w))
    return u, p


def _without_derivative(name: str, why: str, instead: str) -> Callable[..., Any]:
    @_like_scipy(
        f"ad.scipy.linalg.{name}(np.eye(2))" + (".shape" if name == "null_space" else "[1].shape"),
        "(2, 0)" if name == "null_space" else "(2, 2)",
        "SciPy's arrays.",
        "object",
    )
    def function(a: Any, *args: Any, **kwargs: Any) -> Any:
        """Return SciPy's result; raise an error for a tensor that requires grad."""
        if isinstance(a, Tensor) and a.requires_grad:
            refuse(name, why, instead)
        return scipy_only("linalg", name)(a, *args, **kwargs)

    function.__name__ = function.__qualname__ = name
    return function


def refuse(name: str, why: str, instead: str) -> NoReturn:
    """Raise the error for a function ``name`` that has no derivative.

    ``why`` is the reason, and ``instead`` the remedy, in the message.
    """
    raise NoGradientError(f"{name}: {why}, so it has no derivative.\n  {instead}")


null_space = _without_derivative(
    "null_space", "its basis is an arbitrary one", "Use the projector 1 - pinv(a) @ a, which is unique."
)
schur = _without_derivative(
    "schur",
    "its vectors are arbitrary where eigenvalues are complex or repeat",
    "Use eigvals, which are its diagonal.",
)


# Solvers -------------------------------------------------------------------------------------------


@_like_scipy("ad.scipy.linalg.solve(2 * np.eye(2), [2.0, 4.0])", "array([1., 2.])")
def solve(
    a: Any, b: Any, lower: bool = False, *, assume_a: str | None = None, transposed: bool = False
) -> Any:
    """Solve the linear equations a x = b."""
    a = _matrix("solve", a)
    if assume_a in _ONE_TRIANGLE:
        kept = rec.tril(a, k=0) if lower else rec.triu(a, k=0)
        rest = rec.tril(a, k=-1) if lower else rec.triu(a, k=1)
        flip = (
            rec.matrix_transpose if assume_a in ("sym", "symmetric") else functools.partial(adjoint_of, rec)
        )
        a = kept + flip(rest)
    elif assume_a in ("upper triangular", "lower triangular"):
        a = rec.tril(a, k=0) if assume_a.startswith("lower") else rec.triu(a, k=0)
    return ours.solve(rec.matrix_transpose(a) if transposed else a, floating("solve", b))


@_like_scipy("ad.scipy.linalg.solve_triangular(2 * np.eye(2), [2.0, 4.0])", "array([1., 2.])")
def solve_triangular(a: Any, b: Any, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False) -> Any:
    """Solve a x = b for a triangular matrix a, by default an upper triangular one."""
    return ours.solve_triangular(
        _matrix("solve_triangular", a), floating("solve_triangular", b), trans, lower, unit_diagonal
    )


@_like_scipy(
    "ad.scipy.linalg.lstsq(np.array([[1.0], [1.0]]), np.array([1.0, 3.0]))[0]",
    "array([2.])",
    "The solution, the sums of squares, the rank and the singular values.",
    "tuple",
)
def lstsq(a: Any, b: Any, cond: float | None = None) -> Any:
    """Return the least-squares solution of a x = b, the residues, the rank and the singular values of a."""
    b = floating("lstsq", b)
    x, residues, rank, s = ours.lstsq(floating("lstsq", a), b, cond)
    if b.ndim == 1 and residues.size:
        residues = rec.reshape(residues, shape=())
    return x, residues, rank, s


@_like_scipy("ad.scipy.linalg.solve_sylvester([[1.0]], [[3.0]], [[8.0]])", "array([[2.]])")
def solve_sylvester(a: Any, b: Any, q: Any) -> Any:
    """Solve a x + x b = q."""
    return rec.solve_sylvester(
        _matrix("solve_sylvester", a), _matrix("solve_sylvester", b), floating("solve_sylvester", q)
    )


@_like_scipy("ad.scipy.linalg.solve_continuous_lyapunov([[1.0]], [[4.0]])", "array([[2.]])")
def solve_continuous_lyapunov(a: Any, q: Any) -> Any:
    """Solve a x + x aᴴ = q."""
    a = _matrix("solve_continuous_lyapunov", a)
    return rec.solve_sylvester(a, adjoint_of(rec, a), floating("solve_continuous_lyapunov", q))


@_like_scipy("ad.scipy.linalg.solve_discrete_lyapunov([[0.5]], [[3.0]])", "array([[4.]])")
def solve_discrete_lyapunov(a: Any, q: Any, method: str | None = None) -> Any:
    """Solve a x aᴴ - x + q = 0."""
    a, q = _matrix("solve_discrete_lyapunov", a), _matrix("solve_discrete_lyapunov", q)
    n = a.shape[-1]
    products = np.eye(n * n) - kron(a, rec.conj(a))
    return rec.reshape(ours.solve(products, rec.reshape(q, shape=(n * n,))), shape=(n, n))


@_like_scipy("ad.scipy.linalg.solve_banded((0, 0), [[2.0, 4.0]], [2.0, 2.0])", "array([1. , 0.5])")
def solve_banded(l_and_u: Any, ab: Any, b: Any) -> Any:
    """Solve a x = b for a banded matrix a in diagonal ordered form."""
    below, above = l_and_u
    ab = floating("solve_banded", ab)
    if ab.ndim != 2 or ab.shape[0] != below + above + 1:
        raise ShapeError(
            f"solve_banded: ab must have shape ({below + above + 1}, n), one row per diagonal, but has shape "
            f"{ab.shape}."
        )
    side = floating("solve_banded", b)
    if not 1 <= side.ndim <= 2 or side.shape[0] != ab.shape[1]:
        raise ShapeError(
            f"solve_banded: the right-hand side must have {ab.shape[1]} rows, but has shape {side.shape}."
        )
    columns = side[:, None] if side.ndim == 1 else side
    x = rec.solve_banded(ab, columns, lower=below, upper=above)
    return x[:, 0] if side.ndim == 1 else x


@_like_scipy("ad.scipy.linalg.solve_toeplitz([2.0, 0.0], [2.0, 4.0])", "array([1., 2.])")
def solve_toeplitz(c_or_cr: Any, b: Any) -> Any:
    """Solve T x = b for the Toeplitz matrix T with a given first column and first row."""
    c, r = c_or_cr if isinstance(c_or_cr, tuple) else (c_or_cr, None)
    return ours.solve(toeplitz(c, r), floating("solve_toeplitz", b))


@_like_scipy("ad.scipy.linalg.solve_circulant([2.0, 0.0], [2.0, 4.0])", "array([1., 2.])")
def solve_circulant(c: Any, b: Any) -> Any:
    """Solve C x = b for the circulant matrix C with a given first column."""
    return ours.solve(circulant(c), floating("solve_circulant", b))


# Functions of matrices -----------------------------------------------------------------------------


@_like_scipy("ad.scipy.linalg.expm(np.zeros((2, 2)))", "array([[1., 0.],\n       [0., 1.]])")
def expm(A: Any) -> Any:
    """Return the exponential of square matrices."""
    return rec.expm(_matrix("expm", A))


@_like_scipy("ad.scipy.linalg.logm(np.eye(1))", "array([[0.]])")
def logm(A: Any) -> Any:
    """Return the principal logarithm of square matrices."""
    return rec.logm(_matrix("logm", A))


@_like_scipy("ad.scipy.linalg.sqrtm(4 * np.eye(1))", "array([[2.]])")
def sqrtm(A: Any) -> Any:
    """Return the principal square root of square matrices."""
    return rec.sqrtm(_matrix("sqrtm", A))


@_like_scipy(
    "ad.scipy.linalg.funm([[4.0, 0.0], [0.0, 9.0]], np.sqrt)",
    "array([[2., 0.],\n       [0., 3.]])",
)
def funm(A: Any, func: Callable[[Any], Any], disp: bool = True) -> Any:
    """Apply a function to symmetric or Hermitian matrices: to their eigenvalues."""
    a = _matrix("funm", A)
    values = plain_values(a)
    if values is not None and not np.allclose(values, values.conj().swapaxes(-1, -2)):
        raise InputError(
            "funm: for tensors, the matrix must be symmetric or Hermitian.\n"
            "  Use expm, logm, sqrtm or eig for other matrices."
        )
    w, v = ours.eigh((a + adjoint_of(rec, a)) / 2)
    return rec.matmul(v * asarray(func(w))[..., None, :], adjoint_of(rec, v))


@_like_scipy("ad.scipy.linalg.inv(2 * np.eye(1))", "array([[0.5]])")
def inv(a: Any) -> Any:
    """Return the inverse of a square matrix."""
    return ours.inv(_matrix("inv", a))


@_like_scipy("ad.scipy.linalg.det(2 * np.eye(2))", "np.float64(4.0)")
def det(a: Any) -> Any:
    """Return the determinant of a square matrix."""
    return ours.det(_matrix("det", a))


@_like_scipy("ad.scipy.linalg.pinv(2 * np.eye(1))", "array([[0.5]])")
def pinv(a: Any, *, rtol: float | None = None) -> Any:
    """Return the Moore-Penrose inverse of a matrix."""
    return ours.pinv(floating("pinv", a)) if rtol is None else ours.pinv(floating("pinv", a), rtol=rtol)


@_like_scipy("ad.scipy.linalg.norm([3.0, 4.0])", "5.0")
def norm(a: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the norm of a vector or matrix."""
    return ours.norm(floating("norm", a), ord, axis, keepdims=keepdims)


# Special matrices ----------------------------------------------------------------------------------


@_like_scipy("ad.scipy.linalg.toeplitz([1, 2], [1, 3])", "array([[1, 3],\n       [2, 1]])")
def toeplitz(c: Any, r: Any = None) -> Any:
    """Return the matrix with constant diagonals that has a given first column and first row."""
    column = atleast_1d(c)
    row = rec.conj(column) if r is None else atleast_1d(r)
    i, j = np.indices((column.shape[-1], row.shape[-1]))
    lead = np.broadcast_shapes(column.shape[:-1], row.shape[:-1])
    parts = rec.flip(row[..., 1:], axis=(-1,)), column
    values = concat([rec.broadcast_to(p, shape=(*lead, p.shape[-1])) for p in parts], axis=-1)
    return values[..., row.shape[-1] - 1 + i - j]


@_like_scipy("ad.scipy.linalg.circulant([1, 2])", "array([[1, 2],\n       [2, 1]])")
def circulant(c: Any) -> Any:
    """Return the matrix whose columns are the cyclic shifts of a vector."""
    c = atleast_1d(c)
    n = c.shape[-1]
    i, j = np.indices((n, n))
    return c[..., (i - j) % n]


@_like_scipy("ad.scipy.linalg.hankel([1, 2])", "array([[1, 2],\n       [2, 0]])")
def hankel(c: Any, r: Any = None) -> Any:
    """Return the matrix with constant anti-diagonals that has a given first column and last row."""
    column = rec.reshape(asarray(c), shape=(-1,))
    row = column * 0 if r is None else rec.reshape(asarray(r), shape=(-1,))
    i, j = np.indices((column.shape[0], row.shape[0]))
    return concat([column, row[1:]])[i + j]


@_like_scipy("ad.scipy.linalg.block_diag(1, [[2, 3]])", "array([[1, 0, 0],\n       [0, 2, 3]])")
def block_diag(*arrs: Any) -> Any:
    """Return a matrix with the given matrices on its diagonal."""
    return diagonals.block_diag(*arrs)


globals().update(drop_ins("linalg", {name: globals()[name] for name in __all__}))


def __getattr__(name: str) -> Any:
    """Return SciPy's own function, which raises an error for a tensor that requires grad."""
    return scipy_only("linalg", name)
