"""The pseudo-inverse and least squares, and the tolerances below which singular values count as zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from adjoint.core.convert import array_of
from adjoint.core.define import define
from adjoint.core.infer import Result
from adjoint.core.namespace import Namespace, Value, raw, rec
from adjoint.core.shapes import broadcast_shapes, without_gradient
from adjoint.core.tensor import Tensor
from adjoint.core.values import decide
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.ops.matrices import (
    adjoint_of,
    blame,
    lapack_floats,
    matrices,
    matrix_shape,
    solution_shape,
    square,
)
from adjoint.ops.products import matmul
from adjoint.ops.shared_docs import matrices_doc, mismatch_doc
from adjoint.typing import Array, ArrayLike

__all__ = ["lstsq", "pinv", "rank_tolerance", "tolerance"]

# Pseudo-inverse ---------------------------------------------------------------------------------


def _pinv(x: Array, rtol: Any) -> Any:
    try:
        return np.linalg.pinv(x, rcond=rtol)
    except np.linalg.LinAlgError:
        raise blame(
            "pinv",
            x,
            np.linalg.svd,
            "has singular values that LAPACK could not compute",
            "Check the input for huge values.",
        ) from None


def _pinv_rule(xp: Namespace, g: Value, y: Value, x: Value, rtol: Value) -> Any:
    # Golub and Pereyra, for constant rank: dy = -y dx y + y yᴴ dxᴴ (1 - x y) + (1 - y x) dxᴴ yᴴ y
    yh, gh = adjoint_of(xp, y), adjoint_of(xp, g)
    mm = xp.matmul
    of_rows = mm(mm(xp.off_range(x, gh, rtol=rtol), y), yh)
    of_columns = mm(yh, mm(y, adjoint_of(xp, xp.off_range(adjoint_of(xp, x), g, rtol=rtol))))
    return of_rows + of_columns - adjoint_of(xp, mm(mm(y, gh), y))


def _pinv_shape(x: Array, lead: Array, m: int, n: int, rtol: Any) -> Result:
    return (((*lead, n, m), x.dtype),)


define("pinv", _pinv, _pinv_rule, saves="yx", kind="general", params=("rtol",), holomorphic=False,
       batch="leading", shape=matrix_shape(_pinv_shape, square=False), reference="numpy.linalg:pinv", doc="The Moore-Penrose inverse of matrices.")  # fmt: skip

# Least squares ----------------------------------------------------------------------------------


def _above(s: Array, rtol: Any) -> Any:
    """Return a mask of the singular values ``s`` that are above ``rtol`` times the largest one."""
    return s > np.asarray(rtol)[..., None] * s[..., :1]


def _lstsq(x: Array, y: Array, rtol: Any) -> Any:
    u, s, vh = _singular("lstsq", x)
    counts = _above(s, rtol)
    inverse = np.where(counts, 1 / np.where(counts, s, 1), 0)
    # multiply by one factor after the other: the error of pinv(x) @ y would grow with the condition number
    return adjoint_of(raw, vh) @ (inverse[..., None] * (adjoint_of(raw, u) @ y))


def _singular(op: str, x: Array) -> tuple[Any, Any, Any]:
    try:
        u, s, vh = np.linalg.svd(x, full_matrices=False)
        return u, s, vh
    except np.linalg.LinAlgError:
        raise blame(
            op,
            x,
            np.linalg.svd,
            "has singular values that LAPACK could not compute",
            "Check the input for huge values.",
        ) from None


def _off_range(x: Array, y: Array, rtol: Any) -> Any:
    u, s, _ = _singular("lstsq", x)
    counts = _above(s, rtol)
    u = np.where(counts[..., None, :], u, 0)
    for _ in range(2):  # project twice: the second projection removes the rounding errors of the first
        y = y - u @ (adjoint_of(raw, u) @ y)
    full = (counts.sum(axis=-1) == x.shape[-2])[..., None, None]
    return np.where(full, 0, y)


def _off_range_rule(
    xp: Namespace, g: Value, z: Value, x: Value, y: Value, *, wanted: Sequence[bool], rtol: Value
) -> list[Any]:
    # z = n y with the projector n = 1 - x p, and dn = -n dx p - (n dx p)ᴴ
    dy = xp.off_range(x, g, rtol=rtol)
    if not wanted[0]:
        return [None, dy]
    of_y, of_g = (adjoint_of(xp, xp.lstsq(x, a, rtol=rtol)) for a in (y, g))
    return [-xp.matmul(dy, of_y) - xp.matmul(z, of_g), dy]


def _lstsq_rule(
    xp: Namespace, g: Value, z: Value, x: Value, y: Value, *, wanted: Sequence[bool], rtol: Value
) -> list[Any]:
    # dz = p (dy - dx z) + p pᴴ dxᴴ (1 - x p) y + (1 - p x) dxᴴ pᴴ z with p the pseudo-inverse of x
    xh = adjoint_of(xp, x)
    if not wanted[0]:
        return [None, xp.lstsq(xh, g, rtol=rtol)]
    k = z.shape[-1]
    solved = xp.lstsq(xh, xp.concat(g, z, axis=-1), rtol=rtol)
    dy, pz = solved[..., :, :k], solved[..., :, k:]
    of_rows = xp.matmul(xp.off_range(x, y, rtol=rtol), adjoint_of(xp, xp.lstsq(x, dy, rtol=rtol)))
    of_columns = xp.matmul(pz, adjoint_of(xp, xp.off_range(xh, g, rtol=rtol)))
    return [of_rows + of_columns - xp.matmul(dy, adjoint_of(xp, z)), dy]


define("lstsq", _lstsq, joint=_lstsq_rule, arity=2, saves="zxy", kind="general", params=("rtol",), holomorphic=False,
       batch="elementwise", shape=solution_shape, reference="numpy", doc="The least-squares solution of linear equations; if there are several, the shortest.")  # fmt: skip
define("off_range", _off_range, joint=_off_range_rule, arity=2, saves="zxy", kind="general", params=("rtol",),
       holomorphic=False, batch="elementwise", reference="numpy", doc="The part of vectors that is orthogonal to the columns of a matrix.")  # fmt: skip

# Small singular values set to zero --------------------------------------------------------------


def _truncated(x: Array, rtol: Any) -> Any:
    u, s, vh = _singular("pinv", x)
    counts = _above(s, rtol)
    cut = (~counts & (s > 0)).any(axis=-1)[..., None, None]
    return np.where(cut, (u * np.where(counts, s, 0)[..., None, :]) @ vh, x)


def _truncated_rule(xp: Namespace, g: Value, y: Value, x: Value, rtol: Value) -> Any:
    # y = u h(s) vᴴ with h(s) = s for kept singular values and h(s) = 0 for removed ones.  The gradient of x
    # is a matrix in the basis of u and v.  Its entry for two kept values is that of g, and for two removed
    # values it is 0.  For a kept value a and a removed value b it is (g a + gᴴ b) a / (a² - b²).
    if 0 in x.shape[-2:]:
        return g
    u, s, vh = xp.svd(x, full_matrices=False)
    uh, v = adjoint_of(xp, u), adjoint_of(xp, vh)
    counts = xp.greater(s, np.asarray(rtol)[..., None] * s[..., :1])
    row, column = counts[..., :, None], counts[..., None, :]
    mixed = xp.not_equal(row, column)
    a = xp.where(row, s[..., :, None], s[..., None, :])
    b = xp.where(row, s[..., None, :], s[..., :, None])
    inner = xp.matmul(xp.matmul(uh, g), v)
    change = b * (inner * b + adjoint_of(xp, inner) * a) / xp.where(mixed, a * a - b * b, 1)
    neither = xp.logical_not(xp.logical_or(row, column))
    middle = xp.where(mixed, change, xp.where(neither, -inner, 0))
    dx = g + xp.matmul(xp.matmul(u, middle), vh)
    if x.shape[-2] > s.shape[-1]:  # the part of g outside of the space that the columns of u, or v, span
        outside = xp.matmul(g - xp.matmul(u, xp.matmul(uh, g)), v)
        dx = dx - xp.matmul(xp.where(column, 0, outside), vh)
    if x.shape[-1] > s.shape[-1]:
        outside = xp.matmul(uh, g - xp.matmul(xp.matmul(g, v), vh))
        dx = dx - xp.matmul(u, xp.where(row, 0, outside))
    return dx


define("truncated", _truncated, _truncated_rule, saves="x", kind="general", params=("rtol",), holomorphic=False,
       batch="leading", reference="numpy", doc="Matrices with their small singular values set to zero.")  # fmt: skip


# Public functions -------------------------------------------------------------------------------


def tolerance(op: str, name: str, x: Tensor, value: ArrayLike) -> Any:
    """Return the tolerance ``value`` as a number or an array with one number for each matrix of ``x``.

    Raise if it is neither.  ``op`` and ``name`` are the names of the function and the argument, for errors.
    """
    limits = array_of(without_gradient(op, name, value))
    if limits.dtype.kind not in "iuf" or broadcast_shapes(op, x.shape[:-2], limits.shape) != x.shape[:-2]:
        raise InputError(f"{op}: {name} must be a number, or one number per matrix, but got {value!r}.")
    return limits.copy() if limits.ndim else float(limits)


def rank_tolerance(op: str, x: Tensor, rtol: Any) -> Any:
    """Return ``rtol``, the relative tolerance below which singular values count as zero, or its default."""
    if rtol is None:
        return float(max(x.shape[-2:], default=0) * np.finfo(x.dtype).eps)
    return tolerance(op, "rtol", x, rtol)


@matrices_doc
def pinv(
    x: ArrayLike, rcond: ArrayLike | None = None, hermitian: bool = False, *, rtol: ArrayLike | None = None
) -> Tensor:
    """Return the Moore-Penrose inverse of matrices.

    By default, singular values below max(m, n) · eps times the largest one are treated as zero, where eps is
    the precision of the dtype; the gradient assumes that the rank is constant.  With a given tolerance,
    smaller singular values are set to zero first, and the gradient is that of this function.

    Parameters
    ----------
    rcond : array_like, optional
        NumPy's older name for ``rtol``.
    hermitian : bool, optional
        Whether the matrices are Hermitian; only the lower triangle is read then.
    rtol : array_like, optional
        The tolerance relative to the largest singular value; one number or one for each matrix.

    Raises
    ------
    ArgumentError
        If both ``rcond`` and ``rtol`` are given.

    >>> ad.linalg.pinv([[2.0, 0.0], [0.0, 0.0]])
    tensor([[0.5, 0. ],
            [0. , 0. ]], dtype=float64)
    """
    if rcond is not None and rtol is not None:
        raise ArgumentError("pinv: pass either rcond= or rtol=, not both.")
    x = rec.mirror(square("pinv", x)) if hermitian else matrices("pinv", x)
    given = rtol if rcond is None else rcond
    limit = rank_tolerance("pinv", x, given)
    return rec.pinv(x if given is None else rec.truncated(x, rtol=limit), rtol=limit)


class LstsqResult(NamedTuple):
    """Result of ``lstsq``: solution, sums of squared residuals, rank and singular values."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


@mismatch_doc
@matrices_doc
def lstsq(x: ArrayLike, y: ArrayLike, rcond: ArrayLike | None = None) -> LstsqResult:
    """Return the least-squares solution of ``x @ z = y``; if there are several, the shortest.

    It follows NumPy's function, and accepts batches.  The residuals are empty if a matrix has a rank below
    its number of columns, or if there are no more equations than unknowns.  Inside a transform, full rank is
    assumed.

    Parameters
    ----------
    y : array_like
        The right-hand side: a vector if it has one axis, else a stack of matrices.
    rcond : float, optional
        The tolerance, as in ``pinv``; -1 for the precision of the dtype.

    Returns
    -------
    LstsqResult
        A named tuple with ``solution``, ``residuals``, ``rank`` and ``singular_values``.

    >>> ad.linalg.lstsq([[1.0], [1.0]], [1.0, 3.0]).solution
    tensor([2.], dtype=float64)
    """
    x, y = matrices("lstsq", x), lapack_floats("lstsq", y)
    vector = y.ndim == 1
    if not y.ndim or (y.shape[0] if vector else y.shape[-2]) != x.shape[-2]:
        raise ShapeError(
            f"lstsq: for a matrix of shape {x.shape} the right-hand side must have {x.shape[-2]} rows, but "
            f"has shape {y.shape}."
        )
    columns = y[:, None] if vector else y
    broadcast_shapes("lstsq (leading axes)", x.shape[:-2], columns.shape[:-2])
    if isinstance(rcond, (int, float)) and rcond < 0:  # as in LAPACK
        rtol, rcond = float(np.finfo(x.dtype).eps), None
    else:
        rtol = rank_tolerance("lstsq", x, rcond)
    counted = x if rcond is None else rec.truncated(x, rtol=rtol)
    z = rec.lstsq(counted, columns, rtol=rtol)
    rank = rec.matrix_rank(x, tol=None, rtol=rtol, hermitian=False)
    full = decide(lambda known: bool((known == x.shape[-1]).all()), rank)
    if x.shape[-2] > x.shape[-1] and full is not False:  # inside a transform, full is None: assume full rank
        off = rec.abs(columns - matmul(x, z))
        residuals = rec.sum(off * off, axis=(-2,), keepdims=False)
    else:
        residuals = rec.zeros_like(rec.abs(columns[..., :0, 0]))
    return LstsqResult(z[..., 0] if vector else z, residuals, rank, rec.svdvals(x))
