"""Singular values and vectors, and the rank of matrices.

``adjoint/ops/gauge.py`` explains when singular vectors have derivatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adjoint.core.define import define
from adjoint.core.infer import Result, real_dtype
from adjoint.core.namespace import Namespace, Value, rec
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
from adjoint.ops.least_squares import rank_tolerance, tolerance
from adjoint.ops.matrices import adjoint_of, blame, matrices, matrix_shape, square
from adjoint.ops.shared_docs import matrices_doc
from adjoint.typing import Array, ArrayLike

__all__ = ["matrix_rank", "svd", "svdvals"]


def _svd(x: Array, full_matrices: bool) -> tuple[Any, Any, Any]:
    try:
        u, s, vh = np.linalg.svd(x, full_matrices=full_matrices)
        return u, s, vh
    except np.linalg.LinAlgError:
        raise blame(
            "svd",
            x,
            np.linalg.svd,
            "has singular values that LAPACK could not compute",
            "Check the input for huge values.",
        ) from None


def _svd_rule(xp: Namespace, g: Value, out: Value, x: Value, full_matrices: bool) -> Any:
    gu, gs, gvh = g
    u, s, vh = out
    k = s.shape[-1]
    if not k:
        return xp.matmul(u[..., :, :0], vh[..., :0, :])
    gu, u = without_null_space(xp, gu, u, k, "svd")
    gv, v = without_null_space(xp, None if gvh is None else adjoint_of(xp, gvh), adjoint_of(xp, vh), k, "svd")
    vh = adjoint_of(xp, v)
    if gu is None and gv is None:
        return xp.spectral_sum(gs, s, u, vh, op="svd")
    # With A = skew(uᴴ gu) and B = skew(vᴴ gv), the middle factor is (A_ij s_j + s_i B_ij) / (s_j² - s_i²).
    # It equals (A + B) / (2 (s_j - s_i)) + (A - B) / (2 (s_j + s_i)).  Only A + B depends on the rotation of
    # vectors of equal singular values.
    inner_u: Any = None if gu is None else xp.matmul(adjoint_of(xp, u), gu)
    inner_v: Any = None if gv is None else xp.matmul(vh, gv)
    both = inner_v if inner_u is None else inner_u if inner_v is None else inner_u + inner_v
    apart = -inner_v if inner_u is None else inner_u if inner_v is None else inner_u - inner_v
    size = largest(xp, gv) if gu is None else largest(xp, gu)
    if gu is not None and gv is not None:
        size = size + largest(xp, gv)
    span = s[..., :1, None]
    gaps = s[..., None, :] - s[..., :, None]
    sums = s[..., None, :] + s[..., :, None]
    middle = turns(xp, both, gaps, size, span, "svd")
    middle = middle + xp.gauge_quotient(skew(xp, apart) / 2, sums, size, span, op="svd", why="zero", order=1)
    dx = xp.matmul(xp.matmul(u, middle), vh)
    if gs is not None:
        refuse_mixed(xp, both, gs, gaps, span, "svd")
        dx = dx + xp.spectral_sum(gs, s, u, vh, op="svd")
    # the part outside of the space that the columns of u, or v, span
    columns = s[..., None, :]
    if gu is not None and x.shape[-2] > k:
        out_of_u = xp.gauge_quotient(
            gu - xp.matmul(u, inner_u), columns, size, span, op="svd", why="zero", order=1
        )
        dx = dx + xp.matmul(out_of_u, vh)
    if gv is not None and x.shape[-1] > k:
        out_of_v = xp.gauge_quotient(
            gv - xp.matmul(v, inner_v), columns, size, span, op="svd", why="zero", order=1
        )
        dx = dx + xp.matmul(u, adjoint_of(xp, out_of_v))
    return dx


def _svd_jvp(xp: Namespace, t: Value, out: Value, x: Value, full_matrices: bool) -> Any:
    # dx = u (Ω s + ds - s Ψ) vᴴ plus the part outside of the spaces of u and v.  uᴴ dx v is the sum of
    # (Ω + Ψ) (s_j - s_i) / 2 and (Ω - Ψ) (s_j + s_i) / 2
    u, s, vh = out
    k = s.shape[-1]
    if not k:
        return xp.zeros_like(u), s, xp.zeros_like(vh)
    first, second = u[..., :, :k], adjoint_of(xp, vh)[..., :, :k]
    inner = xp.matmul(xp.matmul(adjoint_of(xp, first), t), second)
    span = s[..., :1, None]
    size = largest(xp, t)
    skewed = skew(xp, inner) / 2
    both = turned_vectors(xp, inner - skewed, s[..., None, :] - s[..., :, None], span, "svd")
    sums = s[..., None, :] + s[..., :, None]
    apart = xp.gauge_quotient(skewed, sums, size, span, op="svd", why="forward zero", order=1)
    sides = []
    for whole, own, turn, moved in (
        (u, first, both + apart, xp.matmul(t, second)),
        (adjoint_of(xp, vh), second, both - apart, xp.matmul(adjoint_of(xp, t), first)),
    ):
        d = xp.matmul(own, turn)
        if whole.shape[-2] > k:
            out_of = moved - xp.matmul(own, xp.matmul(adjoint_of(xp, own), moved))
            d = d + xp.gauge_quotient(
                out_of, s[..., None, :], size, span, op="svd", why="forward zero", order=1
            )
        sides.append(with_null_space(xp, d, whole, k))
    return sides[0], real_diagonal(xp, inner), adjoint_of(xp, sides[1])


def _svdvals(x: Array) -> Any:
    try:
        return np.linalg.svd(x, compute_uv=False)
    except np.linalg.LinAlgError:
        raise blame(
            "svdvals",
            x,
            np.linalg.svd,
            "has singular values that LAPACK could not compute",
            "Check the input for huge values.",
        ) from None


def _svdvals_rule(xp: Namespace, g: Value, y: Value, x: Value) -> Any:
    u, s, vh = xp.svd(x, full_matrices=False)
    return xp.spectral_sum(g, s, u, vh, op="svdvals")


def _matrix_rank(x: Array, tol: Array, rtol: Any, hermitian: bool) -> Any:
    if not (x.shape[-1] and x.shape[-2]):  # NumPy 2.4.0 raises for empty matrices
        return np.zeros(x.shape[:-2], np.intp)
    try:
        return np.linalg.matrix_rank(x, tol, hermitian, rtol=rtol)
    except np.linalg.LinAlgError:
        raise blame(
            "matrix_rank",
            x,
            np.linalg.svd,
            "has singular values that LAPACK could not compute",
            "Check the input for huge values.",
        ) from None


def _svd_shape(x: Array, lead: Array, m: int, n: int, full_matrices: bool) -> Result:
    k = min(m, n)
    rows, columns = (m, n) if full_matrices else (k, k)
    return ((*lead, m, rows), x.dtype), ((*lead, k), real_dtype(x.dtype)), ((*lead, columns, n), x.dtype)


def _svdvals_shape(x: Array, lead: Array, m: int, n: int) -> Result:
    return (((*lead, min(m, n)), real_dtype(x.dtype)),)


define("svd", _svd, _svd_rule, saves=("out",), kind="general", outputs=3, params=("full_matrices",),
       jvp=_svd_jvp, holomorphic=False, batch="leading", shape=matrix_shape(_svd_shape, square=False), reference="numpy.linalg:svd", doc="The singular values and vectors of matrices.")  # fmt: skip


define("svdvals", _svdvals, _svdvals_rule, saves="x", kind="general", holomorphic=False,
       batch="leading", shape=matrix_shape(_svdvals_shape, square=False), reference="numpy.linalg:svdvals", doc="The singular values of matrices.")  # fmt: skip


define("matrix_rank", _matrix_rank, None, kind="general", params=("tol", "rtol", "hermitian"),
       batch="leading", reason="it is piecewise constant", reference="numpy.linalg:matrix_rank", doc="The rank of matrices: the number of singular values above a tolerance.")  # fmt: skip


class SVDResult(NamedTuple):
    """Result of ``svd``: the factors of ``U @ diag(S) @ Vh``."""

    U: Tensor
    S: Tensor
    Vh: Tensor


@matrices_doc
def svd(
    x: ArrayLike, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> SVDResult | Tensor:
    """Return the singular value decomposition ``x = U @ diag(S) @ Vh``.

    The sign or phase of the vectors is arbitrary, and so is their rotation where singular values repeat.
    Backward raises ``LinAlgError`` for a function that depends on this choice.

    Parameters
    ----------
    full_matrices : bool, optional
        Whether to return all columns of U and rows of Vh, instead of the first ones.
    compute_uv : bool, optional
        Whether to return U and Vh, too.
    hermitian : bool, optional
        Whether the matrices are Hermitian; only the lower triangle is read then.

    Returns
    -------
    SVDResult or Tensor
        A named tuple with ``U``, ``S`` in descending order, and ``Vh``; only S without
        ``compute_uv``.

    Raises
    ------
    LinAlgError
        If LAPACK does not converge.

    >>> ad.linalg.svd([[3.0, 0.0], [0.0, 4.0]]).S
    tensor([4., 3.], dtype=float64)
    """
    if hermitian:
        return _svd_of_hermitian(square("svd", x), bool(compute_uv))
    x = matrices("svd", x)
    if not compute_uv:
        return svdvals(x)
    return SVDResult(*rec.svd(x, full_matrices=bool(full_matrices)))


def _svd_of_hermitian(x: Tensor, vectors: bool) -> SVDResult | Tensor:
    """Return the singular values of Hermitian matrices, which are the absolute values of the eigenvalues.

    If ``vectors`` is True, also return the singular vectors U and Vh.  As in NumPy, the signs of the
    eigenvalues are part of Vh.
    """
    if not vectors:
        s = rec.sort(rec.abs(rec.eigvalsh(x, lower=True)), axis=-1, descending=False, stable=False)
        return rec.flip(s, axis=(-1,))
    w, u = rec.eigh(x, lower=True)
    s = rec.abs(w)
    order = rec.flip(rec.argsort(s, axis=-1, descending=False, stable=False), axis=(-1,))
    sign = rec.take_along_axis(rec.sign(w), order, axis=-1)
    columns = rec.broadcast_to(order[..., None, :], shape=u.shape)
    u = rec.take_along_axis(u, columns, axis=-1)
    return SVDResult(u, rec.take_along_axis(s, order, axis=-1), adjoint_of(rec, u * sign[..., None, :]))


@matrices_doc
def svdvals(x: ArrayLike) -> Tensor:
    """Return the singular values of matrices, in descending order.

    Raises
    ------
    LinAlgError
        If LAPACK does not converge.

    >>> ad.linalg.svdvals([[3.0, 0.0], [0.0, 4.0]])
    tensor([4., 3.], dtype=float64)
    """
    return rec.svdvals(matrices("svdvals", x))


@matrices_doc
def matrix_rank(
    x: ArrayLike, tol: ArrayLike | None = None, hermitian: bool = False, *, rtol: ArrayLike | None = None
) -> Tensor:
    """Return the rank of matrices: the number of singular values above a tolerance.

    Parameters
    ----------
    tol : array_like, optional
        The absolute tolerance; one number or one for each matrix.
    hermitian : bool, optional
        Whether the matrices are Hermitian, which is faster.
    rtol : array_like, optional
        The tolerance relative to the largest singular value; used by default, with max(m, n) times
        the precision of the dtype.

    Returns
    -------
    Tensor
        The ranks, which have no gradient.

    Raises
    ------
    ArgumentError
        If both ``tol`` and ``rtol`` are given.

    >>> ad.linalg.matrix_rank([[1.0, 2.0], [2.0, 4.0]])
    tensor(1, dtype=int64)
    """
    if tol is not None and rtol is not None:
        raise ArgumentError("matrix_rank: pass either tol= or rtol=, not both.")
    x = square("matrix_rank", x) if hermitian else matrices("matrix_rank", x)
    if tol is not None:
        limits, relative = tolerance("matrix_rank", "tol", x, tol), None
    else:
        limits, relative = None, rank_tolerance("matrix_rank", x, rtol)
    return rec.matrix_rank(x, tol=limits, rtol=relative, hermitian=bool(hermitian))
