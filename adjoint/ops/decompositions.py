"""Matrix decompositions: Cholesky, QR, eigenvalues of Hermitian matrices.

``adjoint/ops/gauge.py`` explains when eigenvectors have derivatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adjoint.core.define import define
from adjoint.core.infer import Result, real_dtype
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.native import Primitives, View
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError
from adjoint.ops.gauge import (
    largest,
    real_diagonal,
    refuse_mixed,
    skew,
    turned_vectors,
    turns,
    with_null_space,
    without_null_space,
)
from adjoint.ops.matrices import adjoint_of, blame, matrices, matrix_shape, mirror, of_triangle, square
from adjoint.ops.shared_docs import matrices_doc
from adjoint.typing import Array, ArrayLike

__all__ = ["cholesky", "eigh", "eigvalsh", "qr"]

_symmetric_doc = matrices_doc.extended("""
    Parameters
    ----------
    UPLO : {"L", "U"}, optional
        Which triangle is read: the lower or the upper one.

    Raises
    ------
    LinAlgError
        If LAPACK does not converge.
    """)

# Hermitian eigenvalues --------------------------------------------------------------------------


def _eigh(x: Array, lower: bool) -> tuple[Any, Any]:
    try:
        values, vectors = np.linalg.eigh(x, "L" if lower else "U")
        return values, vectors
    except np.linalg.LinAlgError:
        raise blame(
            "eigh",
            x,
            np.linalg.eigh,
            "has eigenvalues that LAPACK could not compute",
            "Check the input for huge values.",
        ) from None


def _eigh_rule(xp: Namespace, g: Value, out: Value, x: Value, lower: bool) -> Any:
    # dv = v (F ∘ vᴴ dx v), F_ij = 1 / (w_j - w_i), and dw = diag(vᴴ dx v)
    gw, gv = g
    w, v = out
    vh = adjoint_of(xp, v)
    if gv is None or not w.shape[-1]:
        dx = xp.matmul(v, vh) * 0 if gw is None else xp.spectral_sum(gw, w, v, vh, op="eigh")
        return of_triangle(xp, dx, x, lower)
    inner = xp.matmul(vh, gv)
    gaps, span = _gaps(xp, w)
    middle = turns(xp, inner, gaps, largest(xp, gv), span, "eigh")
    dx = xp.matmul(xp.matmul(v, middle), vh)
    if gw is not None:
        refuse_mixed(xp, inner, gw, gaps, span, "eigh")
        dx = dx + xp.spectral_sum(gw, w, v, vh, op="eigh")
    return of_triangle(xp, dx, x, lower)


def _gaps(xp: Namespace, w: Value) -> tuple[Any, Any]:
    """Return the matrix of the differences w_j - w_i of eigenvalues, and the largest absolute eigenvalue."""
    return w[..., None, :] - w[..., :, None], xp.max(xp.abs(w), axis=(-1,), keepdims=True)[..., None]


def _eigh_jvp(xp: Namespace, t: Value, out: Value, x: Value, lower: bool) -> Any:
    w, v = out
    n = w.shape[-1]
    if not n:
        return w, v
    hermitian = (t + adjoint_of(xp, t)) / 2
    t = xp.where(xp.is_hermitian(x), hermitian, mirror(xp, t, lower))
    inner = xp.matmul(xp.matmul(adjoint_of(xp, v), t), v)
    gaps, span = _gaps(xp, w)
    return real_diagonal(xp, inner), xp.matmul(v, turned_vectors(xp, inner, gaps, span, "eigh"))


def _eigvalsh(x: Array, lower: bool) -> Any:
    try:
        return np.linalg.eigvalsh(x, "L" if lower else "U")
    except np.linalg.LinAlgError:
        raise blame(
            "eigvalsh",
            x,
            np.linalg.eigvalsh,
            "has eigenvalues that LAPACK could not compute",
            "Check the input for huge values.",
        ) from None


def _eigvalsh_rule(xp: Namespace, g: Value, y: Value, x: Value, lower: bool) -> Any:
    w, v = xp.eigh(x, lower=lower)
    return of_triangle(xp, xp.spectral_sum(g, w, v, adjoint_of(xp, v), op="eigvalsh"), x, lower)


def _eigvalsh_shape(x: Any, lead: Any, m: int, n: int, **_: Any) -> Result:
    return (((*lead, n), real_dtype(x.dtype)),)


def _eigh_shape(x: Any, *lengths: Any, **_: Any) -> Result:
    return (*_eigvalsh_shape(x, *lengths), (x.shape, x.dtype))


def _native_eigh(xp: Primitives, x: View, lower: bool) -> tuple[View, View]:
    n = x.shape[-1]
    found = xp.matrix("eigh", [x], (*x.shape[:-2], n + 1, n), lower)
    return found[..., 0, :], xp.matrix_transpose(found[..., 1:, :])


define("eigh", _eigh, _eigh_rule, saves=("out", "x"), kind="general", outputs=2, params=("lower",), jvp=_eigh_jvp,
       holomorphic=False, batch="leading", shape=matrix_shape(_eigh_shape), reference="numpy", lower=_native_eigh, doc="The eigenvalues and eigenvectors of Hermitian matrices.")  # fmt: skip
define("eigvalsh", _eigvalsh, _eigvalsh_rule, saves="x", kind="general", params=("lower",), holomorphic=False,
       batch="leading", shape=matrix_shape(_eigvalsh_shape), reference="numpy", lower=lambda xp, x, lower: xp.matrix("eigvalsh", [x], x.shape[:-1], lower), doc="The eigenvalues of Hermitian matrices.")  # fmt: skip


# Triangles: Cholesky and QR ---------------------------------------------------------------------


def _cholesky(x: Array, upper: bool) -> Any:
    try:
        return np.linalg.cholesky(x, upper=upper)
    except np.linalg.LinAlgError:
        raise blame(
            "cholesky", x, lambda a: np.linalg.cholesky(a, upper=upper), "is not positive definite",
            "Check that the matrix is symmetric, or add a small multiple of the identity.",
        ) from None  # fmt: skip


def _cholesky_rule(xp: Namespace, g: Value, y: Value, x: Value, upper: bool) -> Any:
    # With the upper factor u = lᴴ: dx = ½ u⁻¹ (Φ + Φᴴ) u⁻ᴴ, where Φ is the lower triangle of u dl with its
    # diagonal halved
    n = y.shape[-1]
    if upper:
        g = adjoint_of(xp, g)
    else:
        y = adjoint_of(xp, y)
    half = np.tri(n, dtype=x.dtype) - np.eye(n, dtype=x.dtype) / 2
    phi = xp.matmul(y, g) * half
    inner = xp.solve_triangular(y, phi + adjoint_of(xp, phi), lower=False, unit=False)
    dx = adjoint_of(xp, xp.solve_triangular(y, adjoint_of(xp, inner), lower=False, unit=False)) / 2
    return of_triangle(xp, dx, x, not upper)


def _qr(x: Any, mode: Any) -> tuple[Any, Any]:
    q, r = np.linalg.qr(x, mode=mode)
    return q, r


def _qr_rule(xp: Namespace, g: Value, out: Value, x: Value, mode: str) -> Any:
    gq, gr = g
    q, r = out
    m, n = x.shape[-2:]
    k = min(m, n)
    gq, q = without_null_space(xp, gq, q, k, "qr")
    r = r[..., :k, :]
    gr = None if gr is None else gr[..., :k, :]
    if n <= k:
        return _qr_tall(xp, gq, gr, q, r)
    # for a wide matrix: x = [a b] and r = [s t], where a = q s is square and t = qᴴ b
    if gr is None:
        first = _qr_tall(xp, gq, None, q, r[..., :, :k])
        return xp.concat(first, xp.matmul(q, r[..., :, k:]) * 0, axis=-1)
    gt = gr[..., :, k:]
    b = xp.matmul(q, r[..., :, k:])
    gq = xp.matmul(b, adjoint_of(xp, gt)) if gq is None else gq + xp.matmul(b, adjoint_of(xp, gt))
    first = _qr_tall(xp, gq, gr[..., :, :k], q, r[..., :, :k])
    return xp.concat(first, xp.matmul(q, gt), axis=-1)


def _qr_tall(xp: Namespace, gq: Value, gr: Value, q: Value, r: Value) -> Any:
    # dx = (gq + q (T + Tᴴ)) r⁻ᴴ, where T is the upper triangle of gr rᴴ - qᴴ gq with its diagonal halved
    n = r.shape[-1]
    qh = adjoint_of(xp, q)
    inner: Any = None if gr is None else xp.matmul(gr, adjoint_of(xp, r))
    if gq is not None:
        turned = xp.matmul(qh, gq)
        inner = -turned if inner is None else inner - turned
    half = np.tri(n, dtype=r.dtype).T - np.eye(n, dtype=r.dtype) / 2
    upper = inner * half
    total = xp.matmul(q, upper + adjoint_of(xp, upper))
    total = total if gq is None else gq + total
    # t r⁻ᴴ = (r⁻¹ tᴴ)ᴴ
    return adjoint_of(xp, xp.solve_triangular(r, adjoint_of(xp, total), lower=False, unit=False))


def _qr_jvp(xp: Namespace, t: Value, out: Value, x: Value, mode: str) -> Any:
    # With c = qᴴ dx r⁻¹: dq = q Ω + (1 - q qᴴ) dx r⁻¹ and dr = (c - Ω) r, where Ω is the skew-Hermitian
    # matrix that makes dr triangular
    q, r = out
    m, n = x.shape[-2:]
    k = min(m, n)
    first = q[..., :, :k]
    corner = r[..., :k, :k]
    qh = adjoint_of(xp, first)
    moved = adjoint_of(
        xp, xp.solve_triangular(adjoint_of(xp, corner), adjoint_of(xp, t[..., :, :k]), lower=True, unit=False)
    )
    c = xp.matmul(qh, moved)
    below = xp.where(np.tri(k, k=-1, dtype=bool), c, 0)
    turn = below - adjoint_of(xp, below)
    if c.dtype.kind == "c":  # the diagonal of r is real
        turn = turn + xp.where(np.eye(k, dtype=bool), skew(xp, c) / 2, 0)
    dq = xp.matmul(first, turn) + moved - xp.matmul(first, c)
    dr = xp.matmul(c - turn, corner)
    if n > k:
        dr = xp.concat(dr, xp.matmul(qh, t[..., :, k:] - xp.matmul(dq, r[..., :k, k:])), axis=-1)
    if r.shape[-2] > k:
        dr = xp.concat(dr, xp.zeros_like(r[..., k:, :]), axis=-2)
    return with_null_space(xp, dq, q, k), dr


def _qr_shape(x: Array, lead: Array, m: int, n: int, mode: str) -> Result:
    k = m if mode == "complete" else min(m, n)
    return ((*lead, m, k), x.dtype), ((*lead, k, n), x.dtype)


def _native_qr(xp: Primitives, x: View, mode: str) -> tuple[View, View]:
    m, n = x.shape[-2:]
    k = m if mode == "complete" else min(m, n)
    found = xp.matrix("qr", [x], (*x.shape[:-2], k + n, m), k)
    return xp.matrix_transpose(found[..., :k, :]), xp.matrix_transpose(found[..., k:, :k])


define("cholesky", _cholesky, _cholesky_rule, saves="yx", kind="general", params=("upper",), holomorphic=False,
       batch="leading", shape=matrix_shape(lambda x, *_, upper: ((x.shape, x.dtype),)), reference="numpy.linalg:cholesky", lower=lambda xp, x, upper: xp.matrix("cholesky", [x], x.shape, upper), doc="The Cholesky factor: the lower triangular matrix l with l lᴴ = x.")  # fmt: skip
define("qr", _qr, _qr_rule, saves=("out",), kind="general", outputs=2, params=("mode",), jvp=_qr_jvp,
       holomorphic=False, batch="leading", shape=matrix_shape(_qr_shape, square=False), reference="numpy.linalg:qr", lower=_native_qr, doc="An orthogonal and an upper triangular factor of matrices.")  # fmt: skip


# Public functions -------------------------------------------------------------------------------


class EighResult(NamedTuple):
    """Result of ``eigh``: eigenvalues in ascending order, and eigenvectors in columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """Result of ``qr``: an orthogonal or unitary factor and an upper triangular one."""

    Q: Tensor
    R: Tensor


def _checked_uplo(op: str, uplo: Any) -> bool:
    if uplo not in ("L", "U"):
        raise ArgumentError(f'{op}: UPLO must be "L" or "U", not {uplo!r}.')
    return bool(uplo == "L")


@matrices_doc
def cholesky(x: ArrayLike, *, upper: bool = False) -> Tensor:
    """Return the Cholesky factor of Hermitian, positive definite matrices.

    It is L with ``L @ L.mT.conj() = x``, or U with ``U.mT.conj() @ U = x``.

    Parameters
    ----------
    upper : bool, optional
        Whether to return the upper factor U.

    Raises
    ------
    LinAlgError
        If a matrix is not positive definite.

    >>> ad.linalg.cholesky([[4.0, 2.0], [2.0, 5.0]])
    tensor([[2., 0.],
            [1., 2.]], dtype=float64)
    """
    return rec.cholesky(square("cholesky", x), upper=bool(upper))


@matrices_doc
def qr(x: ArrayLike, mode: str = "reduced") -> QRResult | Tensor:
    """Return the QR decomposition of matrices: an orthogonal and an upper triangular factor.

    With ``mode="complete"`` the additional columns of Q are an arbitrary basis of the space that they span.
    A function is differentiable if it depends only on this space.

    Parameters
    ----------
    mode : {"reduced", "complete", "r"}, optional
        Which factors: the first columns of Q, all of Q, or R only.

    Returns
    -------
    QRResult or Tensor
        A named tuple with ``Q`` and ``R``; with mode "r" only R.

    Raises
    ------
    ArgumentError
        If ``mode`` is unknown.

    >>> Q, R = ad.linalg.qr([[3.0, 1.0], [4.0, 2.0]])
    >>> ad.allclose(Q @ R, [[3.0, 1.0], [4.0, 2.0]])
    True
    """
    x = matrices("qr", x)
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f'qr: mode must be "reduced", "complete" or "r", not {mode!r}.')
    q, r = rec.qr(x, mode="reduced" if mode == "r" else mode)
    return r if mode == "r" else QRResult(q, r)


@_symmetric_doc
def eigh(x: ArrayLike, UPLO: str = "L") -> EighResult:
    """Return the eigenvalues and eigenvectors of Hermitian matrices.

    The gradients of eigenvectors have the same limits as those of the vectors of ``svd``.

    Returns
    -------
    EighResult
        A named tuple with ``eigenvalues`` in ascending order, and ``eigenvectors`` in columns.

    >>> ad.linalg.eigh([[2.0, 0.0], [0.0, 1.0]]).eigenvalues
    tensor([1., 2.], dtype=float64)
    """
    return EighResult(*rec.eigh(square("eigh", x), lower=_checked_uplo("eigh", UPLO)))


@_symmetric_doc
def eigvalsh(x: ArrayLike, UPLO: str = "L") -> Tensor:
    """Return the eigenvalues of Hermitian matrices, in ascending order.

    >>> ad.linalg.eigvalsh([[2.0, 0.0], [0.0, 1.0]])
    tensor([1., 2.], dtype=float64)
    """
    return rec.eigvalsh(square("eigvalsh", x), lower=_checked_uplo("eigvalsh", UPLO))
