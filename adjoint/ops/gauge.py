"""Derivatives at repeated eigenvalues and singular values.

Eigenvectors and singular vectors are not unique.  Their sign or phase is arbitrary, and if values repeat, so
is the rotation of their vectors.  This choice is called the gauge.  A function that does not depend on the
gauge has a derivative.  Its formula divides by the difference of two values.  If the difference is 0, the
numerator is 0, too, and the quotient is defined as 0.  If only the difference is 0, the function depends on
the gauge, so it has no derivative, and ``gauge_quotient`` raises.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.batching import Batched, elementwise, full_batch
from adjoint.core.define import define
from adjoint.core.namespace import Namespace, Value
from adjoint.core.native import NotNative, Primitives, View
from adjoint.core.op import Op
from adjoint.errors import LinAlgError
from adjoint.ops.half import in_float32
from adjoint.ops.matrices import adjoint_of
from adjoint.typing import Array

__all__ = [
    "apart", "largest", "real_diagonal", "refuse_mixed", "skew", "turned_vectors", "turns", "with_null_space",
    "without_null_space",
]  # fmt: skip

# Quotients at repeated values --------------------------------------------------------------------

_CURE = (
    "\n"
    "  Use only the values (eigvalsh, svdvals), or a function of the vectors that does not depend on their "
    "choice (such as a projector), or perturb the matrix slightly."
)
_WHY = {
    "equal": "values {i} and {j} are equal, so their vectors are arbitrary, and the function depends on the vectors",
    "mixed": "values {i} and {j} are equal, and the function uses both the values and their vectors, so its derivative "
    "is not determined",
    "zero": "singular value {j} is 0, so its vectors are arbitrary, and the function depends on the vectors",
    "null": "the function depends on vectors {i} and {j} of the null space, which are arbitrary",
    "second": "values {i} and {j} are equal, so only first derivatives of the values can be computed, not second ones",
    "forward": "in this direction the vectors of the equal values {i} and {j} rotate into each other, and forward mode "
    "cannot determine whether the function depends on that (reverse mode, ad.grad, can)",
    "forward zero": "in this direction the vectors of singular value {j}, which is 0, rotate by an undetermined angle",
    "dependent": "its eigenvectors are linearly dependent (it cannot be diagonalised), so its eigenvalues have no "
    "derivatives",
    "phase": "the function depends on the phase of vector {j}, which is arbitrary",
}
_FORWARD = {"equal": "forward", "zero": "forward zero"}
_CLOSE = (
    "values {i} and {j} differ by {gap:.1e} of the largest one",
    "singular value {j} is {gap:.1e} of the largest one",
)
_FLOOR = 1e-2  # a lower limit of the relative size of quotients, because smaller ones may be rounding errors


def _gauge_quotient(x: Array, y: Array, size: Any, span: Array, op: str, why: str, order: int) -> Any:
    """Return x / y; where y is 0 up to rounding errors, return 0, and raise unless x is 0, too.

    y is 0 if it is negligible compared with ``span``, the largest eigenvalue or singular value, and x if it
    is negligible compared with ``size``.  ``order`` is the order of the derivative: with each order, an error
    in x grows by the factor span / y.  ``op``, the name of the op, and ``why``, a key of ``_WHY``, are for
    the error.
    """
    eps = np.finfo(x.dtype).eps
    rounding = eps * x.shape[-1]
    tiny = np.abs(y) <= 10 * rounding * span
    y = np.where(tiny, 1, y)
    growth = np.where(tiny, 1, np.abs(span / y))
    # x is a sum of terms that are up to span / y times as large as x, and so are the rounding errors of x
    worst = np.max(growth, axis=(-2, -1), keepdims=True, initial=1)
    wrong = tiny & (np.abs(x) > (100 if order == 1 else 100 / _FLOOR) * rounding * size * worst)
    if wrong.any():
        *_, i, j = (int(k[0]) for k in np.nonzero(wrong))
        raise LinAlgError(
            f"{op}: the derivative cannot be computed at this matrix: {_WHY[why].format(i=i, j=j)}.{_CURE}"
        )
    if order > 1:
        limit = 1e-3 if eps < 1e-9 else 1e-2  # largest relative error of the result
        # in forward mode x is a sum that may be small, while its rounding errors are not
        terms = (
            np.max(np.abs(x), axis=(-2, -1), keepdims=True, initial=0)
            if why in _FORWARD.values()
            else np.abs(x)
        )
        close = 4 * eps * growth**order * terms > np.where(tiny, np.inf, limit * size)
        if close.any():
            place = tuple(int(k[0]) for k in np.nonzero(close))
            gap = 1 / float(np.broadcast_to(growth, close.shape)[place])
            what = _CLOSE["zero" in why].format(i=place[-2], j=place[-1], gap=gap)
            raise LinAlgError(
                f"{op}: the derivative of order {order} would be inaccurate at this matrix: {what}, and "
                f"rounding errors are divided by this ratio to the power {order}.{_CURE}"
            )
    return np.where(tiny, 0, x / y)


def _quotient_dx(
    xp: Namespace, g: Value, z: Value, x: Value, y: Value, size: Value, span: Value, **how: Any
) -> Any:
    return _next_quotient(xp, g, z, y, size, span, **how)


def _quotient_dy(
    xp: Namespace, g: Value, z: Value, x: Value, y: Value, size: Value, span: Value, **how: Any
) -> Any:
    return -_next_quotient(xp, g * z, z, y, size, span, **how)


def _next_quotient(
    xp: Namespace, g: Value, z: Value, y: Value, size: Value, span: Value, op: str, why: str, order: int
) -> Any:
    # the relative size of the quotients, and so of their derivatives; rounding errors are compared with it
    scale = xp.maximum(_FLOOR, largest(xp, z) * span / xp.where(size == 0, 1, size))  # z is 0 where size is
    return xp.gauge_quotient(g, y, largest(xp, g) * scale, span, op=op, why=why, order=order + 1)


def largest(xp: Namespace, x: Value) -> Any:
    """Return the largest absolute value of each matrix; the last two axes of the result have length 1."""
    return xp.max(xp.abs(x), axis=(-2, -1), keepdims=True)


def _quotient_jvp(
    xp: Namespace, t: Value, z: Value, x: Value, y: Value, size: Value, span: Value, **how: Any
) -> Any:
    tx, ty, _, _ = t
    moved = tx if ty is None else -ty * z if tx is None else tx - ty * z
    how["why"] = _FORWARD.get(how["why"], how["why"])
    return _next_quotient(xp, moved, z, y, size, span, **how)


def _gauge_quotient_batch(op: Op, size: int, /, x: Batched, *scales: Array, **params: Any) -> Any:
    """Apply ``gauge_quotient`` inside ``vmap``: the batching rule of this op.

    The op is elementwise, but its arguments y, size and span (``scales``) do not determine the shape of the
    result.
    """
    return elementwise(op, size, Batched(x.level, size, full_batch(x, size), True), *scales, **params)


def _native_quotient(
    xp: Primitives, x: View, y: View, size: View, span: View, op: str, why: str, order: int
) -> View:
    """Return the quotients of first derivatives; where the op raises, a check makes NumPy run the program."""
    if order > 1 or x.dtype.kind != "f" or not x.size:
        raise NotNative("gauge_quotient of a higher order has no native form")
    rounding = float(np.finfo(x.dtype).eps) * x.shape[-1]
    tiny = xp.abs(y) <= 10 * rounding * span
    y = xp.where(tiny, 1, y)
    worst = xp.max(xp.where(tiny, 1, xp.abs(span / y)), axis=(-2, -1), keepdims=True)
    wrong = xp.logical_and(tiny, xp.abs(x) > 100 * rounding * size * xp.maximum(worst, 1))
    xp.graph.checks.append(xp.any(xp.flat(xp.graph.copied(wrong)), axis=(0,), keepdims=False))
    return xp.where(tiny, 0, x / y)


define("gauge_quotient", _gauge_quotient, _quotient_dx, _quotient_dy, None, None, saves=("z", "y", "size", "span"),
       kind="general", params=("op", "why", "order"), jvp=_quotient_jvp,
       batch=_gauge_quotient_batch, reference="formula", lower=_native_quotient, doc="x / y, defined as 0 where both are 0; an error where only y is 0.")  # fmt: skip


def skew(xp: Namespace, x: Value) -> Any:
    """Return twice the skew-Hermitian part of square matrices."""
    return x - adjoint_of(xp, x)


def turns(xp: Namespace, inner: Value, gaps: Value, size: Value, span: Value, op: str) -> Any:
    """Return the skew-Hermitian part of ``inner`` divided by ``gaps``, the differences of the eigenvalues.

    ``inner`` is the gradient of the eigenvectors, written in the basis of the eigenvectors.  The result is
    the part of the matrix's gradient that comes from the rotation of the eigenvectors.  ``size`` and ``span``
    are as in ``_gauge_quotient``.
    """
    n = inner.shape[-1]
    own = np.eye(n, dtype=bool)
    turned = skew(xp, inner) / 2
    if inner.dtype.kind == "c":  # the diagonal is the gradient of the phases, which are arbitrary
        xp.gauge_quotient(xp.where(own, turned, 0), gaps, size, span, op=op, why="phase", order=1)
    return xp.gauge_quotient(
        xp.where(own, 0, turned), apart(xp, gaps, span), size, span, op=op, why="equal", order=1
    )


def apart(xp: Namespace, gaps: Value, span: Value) -> Any:
    """Return ``gaps``, the differences of all pairs of values, without the zeros on the diagonal.

    The diagonal of the result is ``span``, the largest value, or 1 if that is 0.
    """
    return xp.where(np.eye(gaps.shape[-1], dtype=bool), xp.where(span == 0, 1, span), gaps)


def refuse_mixed(xp: Namespace, inner: Value, g: Value, gaps: Value, span: Value, op: str) -> None:
    """Raise if the function depends on equal eigenvalues and also on their eigenvectors.

    An example is h(w) vvᵀ: its derivative at equal eigenvalues contains h', which is not known here.  ``g``
    is the gradient of the eigenvalues, and ``inner`` that of the eigenvectors, in the basis of the
    eigenvectors.  ``gaps`` are the differences of all pairs of eigenvalues, and ``span`` is the largest
    eigenvalue.
    """
    n = inner.shape[-1]
    symmetric = xp.abs(inner + adjoint_of(xp, inner))
    used = xp.abs(g)[..., :, None] + xp.abs(g)[..., None, :]
    both = xp.where(np.eye(n, dtype=bool), 0, symmetric * used)
    xp.gauge_quotient(
        both, gaps, largest(xp, symmetric) * largest(xp, used), span, op=op, why="mixed", order=1
    )


def _spectral_sum(x: Array, s: Array, u: Array, vh: Array, op: str) -> Any:
    return np.matmul(u * x[..., None, :], vh)


def _spectral_dx(xp: Namespace, g: Value, z: Value, x: Value, s: Value, u: Value, vh: Value, op: str) -> Any:
    inner = xp.matmul(xp.matmul(adjoint_of(xp, u), g), adjoint_of(xp, vh))
    return xp.sum(xp.where(np.eye(u.shape[-1], dtype=bool), inner, 0), axis=(-1,), keepdims=False)


def _spectral_du(xp: Namespace, g: Value, z: Value, x: Value, s: Value, u: Value, vh: Value, op: str) -> Any:
    gv = xp.matmul(g, adjoint_of(xp, vh))
    if s.shape[-1]:
        # where values are equal, a change of the matrix can rotate their vectors by any angle; the
        # derivatives of s, u and vh do not contain this rotation
        own = np.eye(s.shape[-1], dtype=bool)
        inner = xp.matmul(adjoint_of(xp, u), gv)
        symmetric = xp.where(own, 0, inner + adjoint_of(xp, inner))
        span = xp.max(xp.abs(s), axis=(-1,), keepdims=True)[..., None]
        gaps = apart(xp, s[..., None, :] - s[..., :, None], span)
        xp.gauge_quotient(symmetric, gaps, largest(xp, inner), span, op=op, why="second", order=1)
    return gv * xp.conj(x)[..., None, :]


def _spectral_dv(xp: Namespace, g: Value, z: Value, x: Value, s: Value, u: Value, vh: Value, op: str) -> Any:
    return xp.conj(x)[..., None] * xp.matmul(adjoint_of(xp, u), g)


def _spectral_jvp(xp: Namespace, t: Value, z: Value, x: Value, s: Value, u: Value, vh: Value, op: str) -> Any:
    tx, _, tu, tv = t
    parts = [
        xp.matmul(a * b[..., None, :], c)
        for a, b, c in ((u, tx, vh), (tu, x, vh), (u, x, tv))
        if not (a is None or b is None or c is None)
    ]
    return sum(parts[1:], parts[0]) if parts else None


define("spectral_sum", in_float32(_spectral_sum), _spectral_dx, None, _spectral_du, _spectral_dv, saves=("x", "s", "u", "vh"),
       kind="general", params=("op",), holomorphic=False, batch="leading", jvp=_spectral_jvp,
       reference="formula", lower=lambda xp, x, s, u, vh, op: xp.matmul(u * x[..., None, :], vh), doc="The sum of x_i u_i v_iᴴ: the gradient of a function of singular values or eigenvalues s.")  # fmt: skip


def turned_vectors(xp: Namespace, inner: Value, gaps: Value, span: Value, op: str) -> Any:
    """Return the tangent of the eigenvectors, in the basis of the eigenvectors.

    It is ``inner``, the tangent of the matrix in this basis, divided by ``gaps``, the differences of the
    eigenvalues.  The diagonal is 0, so that the phases of the vectors do not change.
    """
    coupled = xp.where(np.eye(inner.shape[-1], dtype=bool), 0, inner)
    size = largest(xp, inner)
    return xp.gauge_quotient(coupled, apart(xp, gaps, span), size, span, op=op, why="forward", order=1)


def real_diagonal(xp: Namespace, x: Value) -> Any:
    d = xp.sum(xp.where(np.eye(x.shape[-1], dtype=bool), x, 0), axis=(-1,), keepdims=False)
    return xp.real(d) if x.dtype.kind == "c" else d


def without_null_space(xp: Namespace, g: Value, u: Value, k: int, op: str) -> tuple[Any, Any]:
    """Return the gradient of the first k columns of ``u``, and these columns; ``g`` is the gradient of ``u``.

    The other columns are a basis of the null space, which the first k columns determine.  So their gradient
    is added to that of the first k columns.  Raise if the function depends on the choice of this basis.
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


def with_null_space(xp: Namespace, d: Value, u: Value, k: int) -> Any:
    """Return the tangent of ``u``, given the tangent ``d`` of its first k columns.

    The other columns change so that they stay orthogonal to the first k.
    """
    if u.shape[-1] == k:
        return d
    rest = xp.matmul(u[..., :, :k], xp.matmul(adjoint_of(xp, d), u[..., :, k:]))
    return xp.concat(d, -rest, axis=-1)
