"""Decompositions of matrices: Cholesky, QR, singular values, eigenvalues of Hermitian matrices.

Singular vectors and eigenvectors are given only up to a gauge: their sign or phase, and, where values
repeat, a rotation among them.  A function that does not depend on the gauge has a derivative, and the
rules find it: a quotient whose denominator is the distance of two equal values then has the numerator 0,
and counts as 0.  Where the numerator is not 0 there is no derivative, and ``gauge_quotient`` says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, LinAlgError
from adjoint.ops.matrices import adjoint_of, blame, matrices, square
from adjoint.ops.solvers import rank_tolerance

__all__ = ["cholesky", "eigh", "eigvalsh", "matrix_rank", "qr", "svd", "svdvals"]

# Quotients at repeated values --------------------------------------------------------------------

_CURE = (
    "\n  Use a function of the values alone (eigvalsh, svdvals) or one that does not depend on the choice of the "
    "vectors (such as a projector), or move the matrix a little."
)
_WHY = {
    "equal": "values {i} and {j} are equal, and the function depends on which of their vectors were chosen",
    "mixed": "values {i} and {j} are equal, and the function uses both them and their vectors, which does not "
    "determine its derivative",
    "zero": "singular value {j} is 0, and the function depends on which of its vectors was chosen",
    "null": "the function depends on which vectors {i} and {j} of the null space were chosen",
    "second": "values {i} and {j} are equal, where a function of the values has first derivatives, but second ones "
    "cannot be found this way",
    "phase": "the function depends on the phase of vector {j}, which is arbitrary",
}


def _gauge_quotient(x: Any, y: Any, size: Any, span: Any, op: str, why: str) -> Any:
    """x / y; where y is 0 up to rounding (of ``span``), x must be 0 too (of ``size``), and so is the quotient."""
    rounding = np.finfo(x.dtype).eps * x.shape[-1]
    tiny = np.abs(y) <= 10 * rounding * span
    wrong = tiny & (np.abs(x) > 100 * rounding * size)
    if wrong.any():
        *_, i, j = (int(k[0]) for k in np.nonzero(wrong))
        raise LinAlgError(f"{op}: no derivative here: {_WHY[why].format(i=i, j=j)}.{_CURE}")
    return np.where(tiny, 0, x / np.where(tiny, 1, y))


def _quotient_dx(xp: Any, g: Any, z: Any, x: Any, y: Any, size: Any, span: Any, op: str, why: str) -> Any:
    return xp.gauge_quotient(g, y, _largest(xp, g), span, op=op, why=why)


def _quotient_dy(xp: Any, g: Any, z: Any, x: Any, y: Any, size: Any, span: Any, op: str, why: str) -> Any:
    g = g * z
    return -xp.gauge_quotient(g, y, _largest(xp, g), span, op=op, why=why)


def _largest(xp: Any, x: Any) -> Any:
    """The largest absolute value in each matrix."""
    return xp.max(xp.abs(x), axis=(-2, -1), keepdims=True)


define("gauge_quotient", _gauge_quotient, _quotient_dx, _quotient_dy, None, None, saves=("z", "y", "span"),
       kind="general", params=("op", "why"),
       doc="A quotient that is 0 where both parts are, and an error where one is.")  # fmt: skip


def _skew(xp: Any, x: Any) -> Any:
    return x - adjoint_of(xp, x)


def _turns(xp: Any, inner: Any, gaps: Any, size: Any, span: Any, op: str) -> Any:
    """How far the vectors turn into each other: the skew part of ``inner`` over the gaps of the values."""
    n = inner.shape[-1]
    own = np.eye(n, dtype=bool)
    turned = _skew(xp, inner) / 2
    if inner.dtype.kind == "c":  # a vector turning into i times itself is a change of its phase
        phases = xp.where(own, turned, 0)
        xp.gauge_quotient(phases, xp.abs(phases) * 0, size, size, op=op, why="phase")
    return xp.gauge_quotient(xp.where(own, 0, turned), xp.where(own, 1, gaps), size, span, op=op, why="equal")


def _refuse_mixed(xp: Any, inner: Any, g: Any, gaps: Any, span: Any, op: str) -> None:
    """Raise where equal values and their vectors are both used: h(w) vvᵀ needs h', which is not seen here."""
    n = inner.shape[-1]
    symmetric = xp.abs(inner + adjoint_of(xp, inner))
    used = xp.abs(g)[..., :, None] + xp.abs(g)[..., None, :]
    both = xp.where(np.eye(n, dtype=bool), 0, symmetric * used)
    xp.gauge_quotient(both, gaps, _largest(xp, symmetric) * _largest(xp, used), span, op=op, why="mixed")


def _spectral_sum(x: Any, s: Any, u: Any, vh: Any, op: str) -> Any:
    return np.matmul(u * x[..., None, :], vh)


def _spectral_dx(xp: Any, g: Any, z: Any, x: Any, s: Any, u: Any, vh: Any, op: str) -> Any:
    inner = xp.matmul(xp.matmul(adjoint_of(xp, u), g), adjoint_of(xp, vh))
    return xp.sum(xp.where(np.eye(u.shape[-1], dtype=bool), inner, 0), axis=(-1,), keepdims=False)


def _spectral_du(xp: Any, g: Any, z: Any, x: Any, s: Any, u: Any, vh: Any, op: str) -> Any:
    gv = xp.matmul(g, adjoint_of(xp, vh))
    if s.shape[-1]:
        # where values are equal, x as a function of them turns the vectors by an angle of any size, which
        # no derivative of s, u and vh follows
        own = np.eye(s.shape[-1], dtype=bool)
        inner = xp.matmul(adjoint_of(xp, u), gv)
        gaps = xp.where(own, 1, s[..., None, :] - s[..., :, None])
        symmetric = xp.where(own, 0, inner + adjoint_of(xp, inner))
        span = xp.max(xp.abs(s), axis=(-1,), keepdims=True)[..., None]
        xp.gauge_quotient(symmetric, gaps, _largest(xp, inner), span, op=op, why="second")
    return gv * xp.conj(x)[..., None, :]


def _spectral_dv(xp: Any, g: Any, z: Any, x: Any, s: Any, u: Any, vh: Any, op: str) -> Any:
    return xp.conj(x)[..., None] * xp.matmul(adjoint_of(xp, u), g)


define("spectral_sum", _spectral_sum, _spectral_dx, None, _spectral_du, _spectral_dv, saves=("x", "s", "u", "vh"),
       kind="general", params=("op",), holomorphic=False, batch="leading",
       doc="The sum of x_i u_i v_iᴴ: the gradient of a function of singular values or eigenvalues s.")  # fmt: skip


# Hermitian eigenvalues --------------------------------------------------------------------------


def _hermitian_part(x: Any) -> Any:
    return (x + x.swapaxes(-1, -2).conj()) / 2


def _eigh(x: Any) -> tuple[Any, Any]:
    try:
        values, vectors = np.linalg.eigh(_hermitian_part(x))
        return values, vectors
    except np.linalg.LinAlgError:
        raise blame(
            "eigh", x, np.linalg.eigh, "has no eigenvalues that LAPACK finds", "Check the input."
        ) from None


def _eigh_rule(xp: Any, g: Any, out: Any, x: Any) -> Any:
    # dv = v (F ∘ vᴴ dx v), F_ij = 1 / (w_j - w_i), and dw = diag(vᴴ dx v)
    gw, gv = g
    w, v = out
    vh = adjoint_of(xp, v)
    if gv is None or not w.shape[-1]:
        return xp.matmul(v, vh) * 0 if gw is None else xp.spectral_sum(gw, w, v, vh, op="eigh")
    inner = xp.matmul(vh, gv)
    gaps = w[..., None, :] - w[..., :, None]
    span = xp.max(xp.abs(w), axis=(-1,), keepdims=True)[..., None]
    middle = _turns(xp, inner, gaps, _largest(xp, gv), span, "eigh")
    dx = xp.matmul(xp.matmul(v, middle), vh)
    if gw is None:
        return dx
    _refuse_mixed(xp, inner, gw, gaps, span, "eigh")
    return dx + xp.spectral_sum(gw, w, v, vh, op="eigh")


def _eigvalsh(x: Any) -> Any:
    try:
        return np.linalg.eigvalsh(_hermitian_part(x))
    except np.linalg.LinAlgError:
        raise blame(
            "eigvalsh", x, np.linalg.eigvalsh, "has no eigenvalues that LAPACK finds", "Check the input."
        ) from None


def _eigvalsh_rule(xp: Any, g: Any, y: Any, x: Any) -> Any:
    w, v = xp.eigh(x)
    return xp.spectral_sum(g, w, v, adjoint_of(xp, v), op="eigvalsh")


define("eigh", _eigh, _eigh_rule, saves=("out",), kind="general", outputs=2, holomorphic=False,
       batch="leading", doc="The eigenvalues and eigenvectors of Hermitian matrices.")  # fmt: skip
define("eigvalsh", _eigvalsh, _eigvalsh_rule, saves="x", kind="general", holomorphic=False,
       batch="leading", doc="The eigenvalues of Hermitian matrices.")  # fmt: skip

# Singular values --------------------------------------------------------------------------------


def _svd(x: Any, full_matrices: bool) -> tuple[Any, Any, Any]:
    try:
        u, s, vh = np.linalg.svd(x, full_matrices=full_matrices)
        return u, s, vh
    except np.linalg.LinAlgError:
        raise blame(
            "svd", x, np.linalg.svd, "has no singular values that LAPACK finds", "Check the input."
        ) from None


def _without_null_space(xp: Any, g: Any, u: Any, k: int, op: str) -> tuple[Any, Any]:
    """Return the first k vectors, and their gradient with what the others, at right angles to them, add to it."""
    if u.shape[-1] == k:
        return g, u
    first, rest = u[..., :, :k], u[..., :, k:]
    if g is None:
        return None, first
    of_rest = g[..., :, k:]
    turned = _skew(xp, xp.matmul(adjoint_of(xp, rest), of_rest))
    xp.gauge_quotient(
        turned, xp.abs(turned) * 0, _largest(xp, of_rest), _largest(xp, of_rest), op=op, why="null"
    )
    return g[..., :, :k] - xp.matmul(rest, xp.matmul(adjoint_of(xp, of_rest), first)), first


def _svd_rule(xp: Any, g: Any, out: Any, x: Any, full_matrices: bool) -> Any:
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
    size = _largest(xp, gv) if gu is None else _largest(xp, gu)
    if gu is not None and gv is not None:
        size = size + _largest(xp, gv)
    span = s[..., :1, None]
    gaps = s[..., None, :] - s[..., :, None]
    sums = s[..., None, :] + s[..., :, None]
    middle = _turns(xp, both, gaps, size, span, "svd")
    middle = middle + xp.gauge_quotient(_skew(xp, apart) / 2, sums, size, span, op="svd", why="zero")
    dx = xp.matmul(xp.matmul(u, middle), vh)
    if gs is not None:
        _refuse_mixed(xp, both, gs, gaps, span, "svd")
        dx = dx + xp.spectral_sum(gs, s, u, vh, op="svd")
    # what leads out of the space that u, or v, spans
    columns = s[..., None, :]
    if gu is not None and x.shape[-2] > k:
        out_of_u = xp.gauge_quotient(gu - xp.matmul(u, inner_u), columns, size, span, op="svd", why="zero")
        dx = dx + xp.matmul(out_of_u, vh)
    if gv is not None and x.shape[-1] > k:
        out_of_v = xp.gauge_quotient(gv - xp.matmul(v, inner_v), columns, size, span, op="svd", why="zero")
        dx = dx + xp.matmul(u, adjoint_of(xp, out_of_v))
    return dx


def _svdvals(x: Any) -> Any:
    try:
        return np.linalg.svd(x, compute_uv=False)
    except np.linalg.LinAlgError:
        raise blame(
            "svdvals", x, np.linalg.svd, "has no singular values that LAPACK finds", "Check the input."
        ) from None


def _svdvals_rule(xp: Any, g: Any, y: Any, x: Any) -> Any:
    u, s, vh = xp.svd(x, full_matrices=False)
    return xp.spectral_sum(g, s, u, vh, op="svdvals")


define("svd", _svd, _svd_rule, saves=("out",), kind="general", outputs=3, params=("full_matrices",),
       holomorphic=False, batch="leading", doc="The singular values and vectors of matrices.")  # fmt: skip
define("svdvals", _svdvals, _svdvals_rule, saves="x", kind="general", holomorphic=False,
       batch="leading", doc="The singular values of matrices.")  # fmt: skip
define("matrix_rank", lambda x, rtol: np.linalg.matrix_rank(x, rtol=rtol), None, kind="general", params=("rtol",),
       batch="leading", reason="it is piecewise constant", doc="How many singular values are not zero.")  # fmt: skip

# Triangles: Cholesky and QR ---------------------------------------------------------------------


def _cholesky(x: Any) -> Any:
    part = _hermitian_part(x)
    try:
        return np.linalg.cholesky(part)
    except np.linalg.LinAlgError:
        raise blame(
            "cholesky", part, np.linalg.cholesky, "is not positive definite",
            "Add a small multiple of the identity, and check that it is symmetric.",
        ) from None  # fmt: skip


def _cholesky_rule(xp: Any, g: Any, y: Any, x: Any) -> Any:
    # dx = ½ y⁻ᴴ (Φ + Φᴴ) y⁻¹ with Φ the lower triangle of yᴴ g, its diagonal halved
    n = y.shape[-1]
    yh = adjoint_of(xp, y)
    half = np.tri(n, dtype=x.dtype) - np.eye(n, dtype=x.dtype) / 2
    phi = xp.matmul(yh, g) * half
    inner = xp.solve_triangular(yh, phi + adjoint_of(xp, phi), lower=False, unit=False)
    return adjoint_of(xp, xp.solve_triangular(yh, adjoint_of(xp, inner), lower=False, unit=False)) / 2


def _qr(x: Any, mode: Any) -> tuple[Any, Any]:
    q, r = np.linalg.qr(x, mode=mode)
    return q, r


def _qr_rule(xp: Any, g: Any, out: Any, x: Any, mode: str) -> Any:
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


def _qr_tall(xp: Any, gq: Any, gr: Any, q: Any, r: Any) -> Any:
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


define("cholesky", _cholesky, _cholesky_rule, saves="y", kind="general", holomorphic=False,
       batch="leading", doc="The lower triangle whose product with its adjoint is a matrix.")  # fmt: skip
define("qr", _qr, _qr_rule, saves=("out",), kind="general", outputs=2, params=("mode",), holomorphic=False,
       batch="leading", doc="Matrices as products of an orthogonal and an upper triangular one.")  # fmt: skip


# What users write -------------------------------------------------------------------------------


class EighResult(NamedTuple):
    """Eigenvalues, from small to large, and eigenvectors, in columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SVDResult(NamedTuple):
    """The factors of ``U @ diag(S) @ Vh``."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class QRResult(NamedTuple):
    """An orthogonal (unitary) and an upper triangular factor."""

    Q: Tensor
    R: Tensor


def _hermitian(op: str, x: Any, lower: bool) -> Tensor:
    """Return Hermitian matrices; of those that are not, only the triangle that NumPy reads counts.

    The gradient of a Hermitian matrix is Hermitian, as in PyTorch.
    """
    x = square(op, x)
    data = x._data
    if type(data) is np.ndarray and data.size:
        with np.errstate(invalid="ignore"):  # infinities, which LAPACK reports
            off = np.abs(data - data.swapaxes(-1, -2).conj()).max()
        if off > 1e3 * np.finfo(data.dtype).eps * np.abs(data).max():
            n = x.shape[-1]
            read = np.tri(n, k=-1, dtype=bool)
            part = rec.where(read if lower else read.T, x, 0)
            diagonal = rec.where(np.eye(n, dtype=bool), rec.real(x) if x.dtype.kind == "c" else x, 0)
            return part + adjoint_of(rec, part) + diagonal
    return x


def _checked_uplo(op: str, uplo: Any) -> bool:
    if uplo not in ("L", "U"):
        raise ArgumentError(f'{op}: UPLO is "L" or "U", not {uplo!r}.')
    return bool(uplo == "L")


def cholesky(x: Any, *, upper: bool = False) -> Tensor:
    """Return the triangle ``L`` with ``L @ L.mT.conj() = x``, or ``U`` with ``U.mT.conj() @ U = x``.

    >>> import adjoint as ad
    >>> ad.linalg.cholesky([[4.0, 2.0], [2.0, 5.0]])
    tensor([[2., 0.],
            [1., 2.]], dtype=float64)
    """
    lower = rec.cholesky(_hermitian("cholesky", x, not upper))
    return adjoint_of(rec, lower) if upper else lower


def qr(x: Any, mode: str = "reduced") -> QRResult | Tensor:
    """Return an orthogonal and an upper triangular factor; ``mode`` is "reduced", "complete" or "r".

    In the complete mode the vectors beyond the columns of ``x`` are arbitrary: a function may
    depend on the space they span, not on which they are.
    """
    x = matrices("qr", x)
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f'qr: mode is "reduced", "complete" or "r", not {mode!r}.')
    q, r = rec.qr(x, mode="reduced" if mode == "r" else mode)
    return r if mode == "r" else QRResult(q, r)


def svd(
    x: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> SVDResult | Tensor:
    """Return ``U``, the singular values from large to small, and ``Vh``.

    The vectors have an arbitrary sign or phase, and where values repeat an arbitrary rotation:
    the gradient of a function that depends on that choice raises LinAlgError.

    >>> import adjoint as ad
    >>> ad.linalg.svd([[3.0, 0.0], [0.0, 4.0]]).S
    tensor([4., 3.], dtype=float64)
    """
    x = matrices("svd", x)
    if not compute_uv:
        return svdvals(x)
    return SVDResult(*rec.svd(x, full_matrices=bool(full_matrices)))


def svdvals(x: Any) -> Tensor:
    """Return the singular values from large to small."""
    return rec.svdvals(matrices("svdvals", x))


def eigh(x: Any, UPLO: str = "L") -> EighResult:
    """Return eigenvalues, from small to large, and eigenvectors of Hermitian matrices.

    What holds for the vectors of ``svd`` holds for the eigenvectors.  Of a matrix that is not
    Hermitian only the lower triangle counts (``UPLO="U"``: the upper), as in NumPy.
    """
    return EighResult(*rec.eigh(_hermitian("eigh", x, _checked_uplo("eigh", UPLO))))


def eigvalsh(x: Any, UPLO: str = "L") -> Tensor:
    """Return the eigenvalues of Hermitian matrices, from small to large."""
    return rec.eigvalsh(_hermitian("eigvalsh", x, _checked_uplo("eigvalsh", UPLO)))


def matrix_rank(x: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Tensor:
    """Count the singular values above ``rtol`` times the largest, or above ``tol``; no gradient flows."""
    if tol is not None and rtol is not None:
        raise ArgumentError("matrix_rank: tol and rtol say the same.  Give one of them.")
    x = matrices("matrix_rank", x)
    if tol is not None:
        return rec.sum(rec.greater(rec.svdvals(x), tol), axis=(-1,), keepdims=False)
    return rec.matrix_rank(x, rtol=rank_tolerance("matrix_rank", x, rtol))
