"""Functions of square matrices: exponential, logarithm, square root, eigenvalues, LU, Sylvester equation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from adjoint.core.define import define
from adjoint.core.infer import Result
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.tensor import Tensor
from adjoint.errors import LinAlgError, MissingExtraError, ShapeError
from adjoint.ops.gauge import apart, largest
from adjoint.ops.matrices import adjoint_of, matrices, matrix_shape
from adjoint.ops.reduce import floating
from adjoint.ops.shared_docs import square_doc, two_axes_doc
from adjoint.typing import Array, ArrayLike

__all__ = ["eig", "eigvals", "matrix_exp"]


def _scipy_linalg(name: str) -> Any:
    try:
        import scipy.linalg
    except ImportError:
        raise MissingExtraError(f"adjoint.scipy.linalg.{name}", "SciPy", "scipy") from None
    return scipy.linalg


def _each(function: Callable[..., Any], *arrays: Array) -> Any:
    """Call ``function`` with each matrix of the stacks ``arrays``; return the stack of the results.

    Return None if the stacks are empty.
    """
    lead = np.broadcast_shapes(*(a.shape[:-2] for a in arrays))
    flat = [np.broadcast_to(a, (*lead, *a.shape[-2:])).reshape(-1, *a.shape[-2:]) for a in arrays]
    results = [function(*each) for each in zip(*flat, strict=True)]
    return np.stack(results).reshape(*lead, *results[0].shape[-2:]) if results else None


def _supported(a: Array) -> Any:
    """Return ``a`` in a dtype that LAPACK supports, because SciPy does not convert other dtypes."""
    if a.dtype.char in "fdFD":
        return a
    return a.astype(np.float64 if a.dtype.kind in "biu" or a.dtype.itemsize > 2 else np.float32)


# Exponential, logarithm and square root: the derivative is a block of the function of a larger matrix
# ---------

# The coefficients of Padé's approximation of order 13, and the largest norm for which it is exact (Higham
# 2005)
_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0,
    10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
_EXACT = 5.371920351148152


def _expm(x: Array) -> Any:
    """Return the matrix exponential, by scaling and squaring.

    The formula is exp(x) = exp(x / 2ˢ)^(2ˢ); s is chosen for each matrix.
    """
    n = x.shape[-1]
    if not x.size:
        return x.copy()
    norm = np.abs(x).sum(-2).max(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.maximum(np.ceil(np.log2(norm / _EXACT)), 0)
    if not np.isfinite(norm).all():
        return np.full_like(x, np.nan)
    a = x * (0.5**steps)[..., None, None].astype(x.real.dtype)
    one = np.eye(n, dtype=x.dtype)
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a4 @ a2
    c = [float(v) for v in _PADE]
    odd = a @ (a6 @ (c[13] * a6 + c[11] * a4 + c[9] * a2) + c[7] * a6 + c[5] * a4 + c[3] * a2 + c[1] * one)
    even = a6 @ (c[12] * a6 + c[10] * a4 + c[8] * a2) + c[6] * a6 + c[4] * a4 + c[2] * a2 + c[0] * one
    y = np.linalg.solve(even - odd, even + odd)
    for k in range(int(steps.max(initial=0))):
        y = np.where((steps > k)[..., None, None], y @ y, y)
    return y


def _by_scipy(name: str) -> Callable[..., Any]:
    """Return a forward function that calls the function ``name`` of ``scipy.linalg`` for each matrix.

    It raises if the matrix is real, but its result is complex.
    """

    def one(x: Array) -> Any:
        wide = x.astype(np.result_type(x, np.float64))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SciPy warns of singular matrices and of errors above 2e-13
            y = np.asarray(getattr(_scipy_linalg(name), name)(wide))
        back = y @ y if name == "sqrtm" else _expm(y)
        if not np.abs(back - wide).max(initial=0) <= 1e-8 * np.abs(wide).max(initial=0):
            raise LinAlgError(
                f"{name}: no accurate result was found.  The matrix is singular or nearly singular."
            )
        if y.dtype.kind == "c" and x.dtype.kind != "c":
            if np.abs(y.imag).max(initial=0) > 1e-9 * np.abs(y).max(initial=0):
                raise LinAlgError(
                    f"{name}: the matrix is real but has negative eigenvalues, so the result is complex.\n"
                    "  Pass the matrix as complex numbers: x.astype(complex)."
                )
            y = y.real
        return y.astype(_function_dtype(x))

    def forward(x: Array) -> Any:
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise ValueError("the matrices must be square")
        return _each(one, x) if x.size else x.astype(_function_dtype(x))

    return forward


def _function_dtype(x: Any) -> Any:
    return x.dtype if x.dtype.kind not in "biu" else np.dtype(np.float64)


def _function_shape(x: Any) -> Result | None:
    """Return the shape and dtype of the result of a matrix function of ``x``; this is its shape rule.

    The default shape rule calls the op with ones, but a matrix of ones is singular, so logm would fail.
    """
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2]:
        return None
    return ((x.shape, _function_dtype(x)),)


def _frechet(name: str) -> Callable[..., Any]:
    """Return the derivative rule of the matrix function f with the op name ``name``.

    The rule returns the upper right block of f([[xᵀ, g], [0, xᵀ]]), which is the gradient of x.
    """

    def rule(xp: Namespace, g: Value, y: Value, x: Value) -> Any:
        n = x.shape[-1]
        if not n:
            return g
        xt = xp.matrix_transpose(x)
        # The result is linear in g.  So g is scaled to the size of x first, because the accuracy depends on
        # the norm of the whole matrix.
        size = largest(xp, g) / xp.where(largest(xp, x) == 0, 1, largest(xp, x))
        size = xp.where(size == 0, 1, size)
        top, bottom = xp.concat(xt, g / size, axis=-1), xp.concat(xt * 0, xt, axis=-1)
        both = getattr(xp, name)(xp.concat(top, bottom, axis=-2))
        return both[..., :n, n:] * size

    return rule


_square = matrix_shape(lambda x, *_: ((x.shape, x.dtype),))
define("expm", _expm, _frechet("expm"), saves="x", reads=("x",), kind="general", batch="leading", shape=_square,
       reference="formula", doc="The exponential of square matrices.")  # fmt: skip
define("logm", _by_scipy("logm"), _frechet("logm"), saves="x", reads=("x",), kind="general", batch="leading", shape=_function_shape,
       reference="formula", doc="The principal logarithm of square matrices.")  # fmt: skip
define("sqrtm", _by_scipy("sqrtm"), _frechet("sqrtm"), saves="x", reads=("x",), kind="general", batch="leading", shape=_function_shape,
       reference="formula", doc="The principal square root of square matrices.")  # fmt: skip


# Sylvester's equation ----------------------------------------------------------------------------


def _sylvester(x: Array, y: Array, q: Array) -> Any:
    dtype = np.result_type(x, y, q)
    if not q.size:
        return q.astype(dtype)
    solve = _scipy_linalg("solve_sylvester").solve_sylvester
    return _each(solve, *map(_supported, (x, y, q))).astype(dtype)


def _sylvester_rule(
    xp: Namespace, g: Value, z: Value, x: Value, y: Value, q: Value, *, wanted: Sequence[bool]
) -> list[Any]:
    # x z + z y = q
    dq = xp.solve_sylvester(xp.matrix_transpose(x), xp.matrix_transpose(y), g)
    zt = xp.matrix_transpose(z)
    return [-xp.matmul(dq, zt) if wanted[0] else None, -xp.matmul(zt, dq) if wanted[1] else None, dq]


define("solve_sylvester", _sylvester, joint=_sylvester_rule, saves="zxy", kind="general", arity=3, batch="leading",
       reference="formula", doc="The solution z of Sylvester's equation x z + z y = q.")  # fmt: skip


# LU factors --------------------------------------------------------------------------------------


def _lu(x: Array) -> tuple[Any, Any, Any]:
    if x.dtype.itemsize == 2:
        raise TypeError(f"array type {x.dtype} is unsupported in linalg")
    if not x.size:
        return np.zeros(x.shape, x.real.dtype), x.copy(), x.copy()
    p, lower, upper = _scipy_linalg("lu").lu(_supported(x))
    return p, lower, upper


def _lu_rule(xp: Namespace, g: Value, out: Value, x: Value) -> Any:
    # pᵀ x = l u: dl = l tril(l⁻¹ pᵀ dx u⁻¹, -1) and du = triu(l⁻¹ pᵀ dx u⁻¹) u
    _, gl, gu = g
    p, lower, upper = out
    inner: Any = 0
    if gl is not None:
        inner = inner + xp.tril(xp.matmul(xp.matrix_transpose(lower), gl), k=-1)
    if gu is not None:
        inner = inner + xp.triu(xp.matmul(gu, xp.matrix_transpose(upper)), k=0)
    if gl is None and gu is None:
        return xp.matmul(p, lower) * 0
    # p l⁻ᵀ inner u⁻ᵀ
    right = xp.matrix_transpose(
        xp.solve_triangular(upper, xp.matrix_transpose(inner), lower=False, unit=False)
    )
    return xp.matmul(p, xp.solve_triangular(xp.matrix_transpose(lower), right, lower=False, unit=True))


def _lu_rows(x: Array) -> Any:
    if not x.size:
        return np.broadcast_to(np.eye(x.shape[-2], dtype=x.real.dtype), (*x.shape[:-1], x.shape[-2])).copy()
    return _scipy_linalg("lu").lu(_supported(x))[0]


define("lu_rows", _lu_rows, None, kind="general", batch="leading", reason="it is piecewise constant",
       reference="formula", doc="The row permutation of an LU factorisation with pivoting, as a matrix.")  # fmt: skip
define("lu", _lu, _lu_rule, saves=("out",), kind="general", outputs=3, batch="leading",
       reference="formula", doc="The LU factors of square matrices: a permutation, a lower and an upper triangular matrix.")  # fmt: skip


# Eigenvalues -------------------------------------------------------------------------------------


def _eig(x: Array) -> tuple[Any, Any]:
    w, v = np.linalg.eig(x)
    dtype = np.result_type(x.dtype, np.complex64)
    return w.astype(dtype), v.astype(dtype)


def _eig_rule(xp: Namespace, g: Value, out: Value, x: Value) -> Any:
    # dv = v c with c_ij = (v⁻¹ dx v)_ij / (w_j - w_i).  c_jj is such that the vectors keep LAPACK's
    # normalisation: length 1, and a real largest component.
    gw, gv = g
    w, v = out
    n = w.shape[-1]
    vh = adjoint_of(xp, v)
    own = np.eye(n, dtype=bool)
    middle: Any = xp.matmul(vh, v) * 0
    if n and (gw is not None or gv is not None):
        span = xp.max(xp.abs(w), axis=(-1,), keepdims=True)[..., None]
        gaps = xp.conj(apart(xp, w[..., None, :] - w[..., :, None], span))
        least = xp.min(xp.svdvals(v), axis=(-1,), keepdims=True)[..., None]
        one = least * 0 + 1
        xp.gauge_quotient(one, least, one, one, op="eig", why="dependent", order=1)
        if gw is not None:
            middle = middle + xp.where(own, gw[..., None, :], 0)
            # equal eigenvalues have no separate derivatives
            unequal = gw[..., None, :] - gw[..., :, None]
            xp.gauge_quotient(
                unequal, gaps, largest(xp, gw[..., None, :]), span, op="eig", why="equal", order=1
            )
        if gv is not None:
            inner = xp.matmul(vh, gv)
            diagonal = xp.sum(xp.where(own, inner, 0), axis=(-2,), keepdims=True)
            place = xp.argmax(xp.abs(v), axis=-2, keepdims=False)
            rows = xp.take_along_axis(v, xp.broadcast_to(place[..., :, None], shape=v.shape), axis=-2)
            real = xp.real(xp.sum(xp.where(own, rows, 0), axis=(-2,), keepdims=True))
            turned = inner - xp.real(diagonal) * xp.matmul(vh, v)
            turned = turned - 1j * (xp.imag(diagonal) / real) * adjoint_of(xp, rows)
            turned = xp.where(own, 0, turned)
            middle = middle + xp.gauge_quotient(
                turned, gaps, largest(xp, gv), span, op="eig", why="equal", order=1
            )
    dx = xp.solve(vh, xp.matmul(middle, vh))
    return dx if x.dtype.kind == "c" else xp.real(dx)


def _eig_shape(x: Any, lead: Any, m: int, n: int) -> Result:
    dtype = np.result_type(x.dtype, np.complex64)
    return ((*lead, n), dtype), (x.shape, dtype)


define("eig", _eig, _eig_rule, saves=("out",), kind="general", outputs=2, holomorphic=False, batch="leading",
       shape=matrix_shape(_eig_shape), reference="numpy", doc="The eigenvalues and eigenvectors of square matrices.")  # fmt: skip


# Public functions ----------------------------------------------------------------------------------


class EigResult(NamedTuple):
    """Result of ``eig``: eigenvalues, and eigenvectors in columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def _square_matrices(op: str, x: Any) -> Tensor:
    t = floating(op, x)
    if t.ndim < 2 or t.shape[-1] != t.shape[-2]:
        raise ShapeError(f"{op}: matrices must be square, but have shape {t.shape}.")
    return t


@square_doc
def eig(x: ArrayLike) -> EigResult:
    """Return the eigenvalues and eigenvectors of square matrices, as complex tensors.

    The vectors have length 1, and their largest component is real.  At equal eigenvalues, single eigenvalues
    and eigenvectors have no derivatives: a function that needs them raises an error.

    Returns
    -------
    EigResult
        The eigenvalues, and the eigenvectors in columns.

    >>> ad.linalg.eig([[0.0, 1.0], [-1.0, 0.0]]).eigenvalues
    tensor([0.+1.j, 0.-1.j], dtype=complex128)
    """
    w, v = rec.eig(_square_matrices("eig", x))
    return EigResult(w, v)


@square_doc
def eigvals(x: ArrayLike) -> Tensor:
    """Return the eigenvalues of square matrices, as a complex tensor.

    >>> ad.linalg.eigvals([[2.0, 1.0], [0.0, 3.0]])
    tensor([2.+0.j, 3.+0.j], dtype=complex128)
    """
    w, _ = rec.eig(_square_matrices("eigvals", x))
    return w


@square_doc
def matrix_exp(x: ArrayLike) -> Tensor:
    """Return the exponential of square matrices.

    >>> ad.linalg.matrix_exp([[0.0, 1.0], [0.0, 0.0]])
    tensor([[1., 1.],
            [0., 1.]], dtype=float64)
    """
    return rec.expm(_square_matrices("matrix_exp", x))


class LUResult(NamedTuple):
    """Result of ``lu``: a permutation, a lower and an upper triangular factor."""

    P: Tensor
    L: Tensor
    U: Tensor


@two_axes_doc
def lu(x: ArrayLike) -> LUResult:
    """Return the LU factors of matrices, with pivoting: ``x = P @ L @ U``.

    Parameters
    ----------
    x : array_like
        The matrices, in the last two axes; of any shape.

    Returns
    -------
    LUResult
        A named tuple of the permutation matrix ``P``, the lower triangle ``L`` with ones on its diagonal, and
        the upper triangle ``U``.

    >>> ad.linalg.lu([[1.0, 2.0], [4.0, 4.0]]).U
    tensor([[4., 4.],
            [0., 1.]], dtype=float64)
    """
    x = matrices("lu", x)
    m, n = x.shape[-2:]
    if m == n:
        return LUResult(*rec.lu(x))
    if m < n:  # the first m columns determine the pivots
        p, lower, upper = rec.lu(x[..., :m])
        rest = rec.matmul(rec.matrix_transpose(p), x[..., m:])
        return LUResult(
            p, lower, rec.concat(upper, rec.solve_triangular(lower, rest, lower=True, unit=True), axis=-1)
        )
    rows = rec.lu_rows(x)
    ordered = rec.matmul(rec.matrix_transpose(rows), x)
    p, lower, upper = rec.lu(ordered[..., :n, :])
    # the rows of l below the square part: l u = x, so uᵀ lᵀ = xᵀ
    below = rec.matrix_transpose(ordered[..., n:, :])
    below = rec.solve_triangular(rec.matrix_transpose(upper), below, lower=True, unit=False)
    again = rec.concat(rec.matmul(rows[..., :n], p), rows[..., n:], axis=-1)  # lu may exchange equal pivots
    return LUResult(again, rec.concat(lower, rec.matrix_transpose(below), axis=-2), upper)
