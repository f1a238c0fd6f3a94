"""Matrix decompositions: Cholesky, QR, singular values, eigenvalues of Hermitian matrices.

``adjoint/ops/gauge.py`` explains when eigenvectors and singular vectors have derivatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adjoint.core.define import define
from adjoint.core.infer import Result, real_dtype
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError
from adjoint.ops.gauge import apart, largest, refuse_mixed, skew, turns
from adjoint.ops.least_squares import rank_tolerance, tolerance
from adjoint.ops.matrices import adjoint_of, blame, matrices, matrix_shape, mirror, of_triangle, square
from adjoint.typing import Array, ArrayLike

__all__ = ["cholesky", "eigh", "eigvalsh", "matrix_rank", "qr", "svd", "svdvals"]

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
    """Return the differences w_j - w_i of the eigenvalues, and the largest absolute eigenvalue."""
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
    return _real_diagonal(xp, inner), xp.matmul(v, _turned(xp, inner, gaps, span, "eigh"))


def _turned(xp: Namespace, inner: Value, gaps: Value, span: Value, op: str) -> Any:
    """Return the tangent of the eigenvectors as coefficients of the eigenvectors.

    It is ``inner``, the tangent of the matrix in this basis, divided by ``gaps``.  Its diagonal is 0, so that
    the phases of the vectors do not change.
    """
    coupled = xp.where(np.eye(inner.shape[-1], dtype=bool), 0, inner)
    size = largest(xp, inner)
    return xp.gauge_quotient(coupled, apart(xp, gaps, span), size, span, op=op, why="forward", order=1)


def _real_diagonal(xp: Namespace, x: Value) -> Any:
    d = xp.sum(xp.where(np.eye(x.shape[-1], dtype=bool), x, 0), axis=(-1,), keepdims=False)
    return xp.real(d) if x.dtype.kind == "c" else d


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


define("eigh", _eigh, _eigh_rule, saves=("out", "x"), kind="general", outputs=2, params=("lower",), jvp=_eigh_jvp,
       holomorphic=False, batch="leading", shape=matrix_shape(_eigh_shape), reference="numpy", doc="The eigenvalues and eigenvectors of Hermitian matrices.")  # fmt: skip
define("eigvalsh", _eigvalsh, _eigvalsh_rule, saves="x", kind="general", params=("lower",), holomorphic=False,
       batch="leading", shape=matrix_shape(_eigvalsh_shape), reference="numpy", doc="The eigenvalues of Hermitian matrices.")  # fmt: skip

# Singular values --------------------------------------------------------------------------------


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


def _without_null_space(xp: Namespace, g: Value, u: Value, k: int, op: str) -> tuple[Any, Any]:
    """Return the gradient of the first k columns of ``u``, and these columns.

    The other columns span the rest of the space; their gradient is expressed by that of the first k.
    """
    if u.shape[-1] == k:
        return g, u
    first, rest = u[..., :, :k], u[..., :, k:]
    if g is None:
        return None, first
    of_rest = g[..., :, k:]
    turned = skew(xp, xp.matmul(adjoint_of(xp, rest), of_rest))
    xp.gauge_quotient(
        turned, xp.abs(turned) * 0, largest(xp, of_rest), largest(xp, of_rest), op=op, why="null", order=1
    )
    return g[..., :, :k] - xp.matmul(rest, xp.matmul(adjoint_of(xp, of_rest), first)), first


def _svd_rule(xp: Namespace, g: Value, out: Value, x: Value, full_matrices: bool) -> Any:
    gu, gs, gvh = g
    u, s, vh = out
    k = s.shape[-1]
    if not k:
        return xp.matmul(u[..., :, :0], vh[..., :0, :])
    gu, u = _without_null_space(xp, gu, u, k, "svd")
    gv, v = _without_null_space(
        xp, None if gvh is None else adjoint_of(xp, gvh), adjoint_of(xp, vh), k, "svd"
    )
    vh = adjoint_of(xp, v)
    if gu is None and gv is None:
        return xp.spectral_sum(gs, s, u, vh, op="svd")
    # With A = skew(uᴴ gu), B = skew(vᴴ gv) the middle is (A_ij s_j + s_i B_ij) / (s_j² - s_i²), which is
    # (A + B) / (2 (s_j - s_i)) + (A - B) / (2 (s_j + s_i)): the gauge turns only A + B
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
    # the part outside the space that u, or v, spans
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
    # dx = u (Ω s + ds - s Ψ) vᴴ + the part outside u and v; the parts of uᴴ dx v are (Ω + Ψ) (s_j - s_i) / 2 and
    # (Ω - Ψ) (s_j + s_i) / 2
    u, s, vh = out
    k = s.shape[-1]
    if not k:
        return xp.zeros_like(u), s, xp.zeros_like(vh)
    first, second = u[..., :, :k], adjoint_of(xp, vh)[..., :, :k]
    inner = xp.matmul(xp.matmul(adjoint_of(xp, first), t), second)
    span = s[..., :1, None]
    size = largest(xp, t)
    skewed = skew(xp, inner) / 2
    both = _turned(xp, inner - skewed, s[..., None, :] - s[..., :, None], span, "svd")
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
        sides.append(_with_null_space(xp, d, whole, k))
    return sides[0], _real_diagonal(xp, inner), adjoint_of(xp, sides[1])


def _with_null_space(xp: Namespace, d: Value, u: Value, k: int) -> Any:
    """Return the tangents of all columns of ``u``; ``d`` has those of the first k.

    The other columns stay orthogonal to the first k.
    """
    if u.shape[-1] == k:
        return d
    rest = xp.matmul(u[..., :, :k], xp.matmul(adjoint_of(xp, d), u[..., :, k:]))
    return xp.concat(d, -rest, axis=-1)


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
    if not (x.shape[-1] and x.shape[-2]):  # NumPy 2.4.0 raises
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
       batch="leading", reason="it is piecewise constant", reference="numpy.linalg:matrix_rank", doc="How many singular values are not zero.")  # fmt: skip

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
    # with the upper factor u = lᴴ: dx = ½ u⁻¹ (Φ + Φᴴ) u⁻ᴴ with Φ the lower triangle of u dl, its diagonal halved
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
    gq, q = _without_null_space(xp, gq, q, k, "qr")
    r = r[..., :k, :]
    gr = None if gr is None else gr[..., :k, :]
    if n <= k:
        return _qr_tall(xp, gq, gr, q, r)
    # x = [a b], r = [s t]: a = q s is square, and t = qᴴ b
    if gr is None:
        first = _qr_tall(xp, gq, None, q, r[..., :, :k])
        return xp.concat(first, xp.matmul(q, r[..., :, k:]) * 0, axis=-1)
    gt = gr[..., :, k:]
    b = xp.matmul(q, r[..., :, k:])
    gq = xp.matmul(b, adjoint_of(xp, gt)) if gq is None else gq + xp.matmul(b, adjoint_of(xp, gt))
    first = _qr_tall(xp, gq, gr[..., :, :k], q, r[..., :, :k])
    return xp.concat(first, xp.matmul(q, gt), axis=-1)


def _qr_tall(xp: Namespace, gq: Value, gr: Value, q: Value, r: Value) -> Any:
    # dx = (gq + q (T + Tᴴ)) r⁻ᴴ with T the upper triangle of gr rᴴ - qᴴ gq, its diagonal halved
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
    # with c = qᴴ dx r⁻¹: dq = q Ω + (1 - q qᴴ) dx r⁻¹ and dr = (c - Ω) r, Ω the skew matrix that makes dr triangular
    q, r = out
    m, n = x.shape[-2:]
    k = min(m, n)
    first = q[..., :, :k]
    corner = r[..., :k, :k]
    qh = adjoint_of(xp, first)
    moved = adjoint_of(
        xp,
        xp.solve_triangular(adjoint_of(xp, corner), adjoint_of(xp, t[..., :, :k]), lower=True, unit=False),
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
    return _with_null_space(xp, dq, q, k), dr


def _qr_shape(x: Array, lead: Array, m: int, n: int, mode: str) -> Result:
    k = m if mode == "complete" else min(m, n)
    return ((*lead, m, k), x.dtype), ((*lead, k, n), x.dtype)


define("cholesky", _cholesky, _cholesky_rule, saves="yx", kind="general", params=("upper",), holomorphic=False,
       batch="leading", shape=matrix_shape(lambda x, *_, upper: ((x.shape, x.dtype),)), reference="numpy.linalg:cholesky", doc="The lower triangle whose product with its adjoint is a matrix.")  # fmt: skip
define("qr", _qr, _qr_rule, saves=("out",), kind="general", outputs=2, params=("mode",), jvp=_qr_jvp,
       holomorphic=False, batch="leading", shape=matrix_shape(_qr_shape, square=False), reference="numpy.linalg:qr", doc="Matrices as products of an orthogonal and an upper triangular one.")  # fmt: skip


# Public functions -------------------------------------------------------------------------------


class EighResult(NamedTuple):
    """Result of ``eigh``: eigenvalues in ascending order, and eigenvectors in columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SVDResult(NamedTuple):
    """Result of ``svd``: the factors of ``U @ diag(S) @ Vh``."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class QRResult(NamedTuple):
    """Result of ``qr``: an orthogonal or unitary factor and an upper triangular one."""

    Q: Tensor
    R: Tensor


def _checked_uplo(op: str, uplo: Any) -> bool:
    if uplo not in ("L", "U"):
        raise ArgumentError(f'{op}: UPLO must be "L" or "U", not {uplo!r}.')
    return bool(uplo == "L")


def cholesky(x: ArrayLike, *, upper: bool = False) -> Tensor:
    """Return the Cholesky factor of Hermitian, positive definite matrices.

    It is L with ``L @ L.mT.conj() = x``, or U with ``U.mT.conj() @ U = x``.

    Parameters
    ----------
    x : array_like
        The matrices, in the last two axes.
    upper : bool, optional
        Whether to return the upper factor U.

    Returns
    -------
    Tensor
        The triangular factor.

    Raises
    ------
    LinAlgError
        If a matrix is not positive definite.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.linalg.cholesky([[4.0, 2.0], [2.0, 5.0]])
    tensor([[2., 0.],
            [1., 2.]], dtype=float64)
    """
    return rec.cholesky(square("cholesky", x), upper=bool(upper))


def qr(x: ArrayLike, mode: str = "reduced") -> QRResult | Tensor:
    """Return an orthogonal and an upper triangular factor.

    With ``mode="complete"`` the vectors after the columns of ``x`` are arbitrary.  A function is
    differentiable if it depends only on the space that they span.

    Parameters
    ----------
    x : array_like
        The matrices, in the last two axes.
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

    Examples
    --------
    >>> import adjoint as ad
    >>> Q, R = ad.linalg.qr([[3.0, 1.0], [4.0, 2.0]])
    >>> ad.allclose(Q @ R, [[3.0, 1.0], [4.0, 2.0]])
    True
    """
    x = matrices("qr", x)
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f'qr: mode must be "reduced", "complete" or "r", not {mode!r}.')
    q, r = rec.qr(x, mode="reduced" if mode == "r" else mode)
    return r if mode == "r" else QRResult(q, r)


def svd(
    x: ArrayLike, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> SVDResult | Tensor:
    """Return the singular value decomposition ``x = U @ diag(S) @ Vh``.

    The sign or phase of the vectors is arbitrary, and so is their rotation where singular values repeat.
    Backward raises ``LinAlgError`` for a function that depends on this choice.

    Parameters
    ----------
    x : array_like
        The matrices, in the last two axes.
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

    Examples
    --------
    >>> import adjoint as ad
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
    """Return the singular values of a Hermitian matrix from its eigenvalues; with ``vectors`` also U and Vh.

    As in NumPy, the signs of the eigenvalues are moved into Vh.
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


def svdvals(x: ArrayLike) -> Tensor:
    """Return the singular values of matrices.

    Parameters
    ----------
    x : array_like
        The matrices, in the last two axes.

    Returns
    -------
    Tensor
        The singular values, in descending order.

    Raises
    ------
    LinAlgError
        If LAPACK does not converge.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.linalg.svdvals([[3.0, 0.0], [0.0, 4.0]])
    tensor([4., 3.], dtype=float64)
    """
    return rec.svdvals(matrices("svdvals", x))


def eigh(x: ArrayLike, UPLO: str = "L") -> EighResult:
    """Return the eigenvalues and eigenvectors of Hermitian matrices.

    The gradients of eigenvectors have the same limits as those of the vectors of ``svd``.

    Parameters
    ----------
    x : array_like
        The matrices, in the last two axes.
    UPLO : {"L", "U"}, optional
        Which triangle is read: the lower or the upper one.

    Returns
    -------
    EighResult
        A named tuple with ``eigenvalues`` in ascending order, and ``eigenvectors`` in columns.

    Raises
    ------
    LinAlgError
        If LAPACK does not converge.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.linalg.eigh([[2.0, 0.0], [0.0, 1.0]]).eigenvalues
    tensor([1., 2.], dtype=float64)
    """
    return EighResult(*rec.eigh(square("eigh", x), lower=_checked_uplo("eigh", UPLO)))


def eigvalsh(x: ArrayLike, UPLO: str = "L") -> Tensor:
    """Return the eigenvalues of Hermitian matrices.

    Parameters
    ----------
    x : array_like
        The matrices, in the last two axes.
    UPLO : {"L", "U"}, optional
        Which triangle is read: the lower or the upper one.

    Returns
    -------
    Tensor
        The eigenvalues, in ascending order.

    Raises
    ------
    LinAlgError
        If LAPACK does not converge.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.linalg.eigvalsh([[2.0, 0.0], [0.0, 1.0]])
    tensor([1., 2.], dtype=float64)
    """
    return rec.eigvalsh(square("eigvalsh", x), lower=_checked_uplo("eigvalsh", UPLO))


def matrix_rank(
    x: ArrayLike, tol: ArrayLike | None = None, hermitian: bool = False, *, rtol: ArrayLike | None = None
) -> Tensor:
    """Return the rank of matrices: the number of singular values above a tolerance.

    Parameters
    ----------
    x : array_like
        The matrices, in the last two axes.
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

    Examples
    --------
    >>> import adjoint as ad
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
