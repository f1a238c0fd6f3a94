"""Matrix inverses, linear equations and determinants."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from adjoint.core.define import define
from adjoint.core.infer import Result, real_dtype
from adjoint.core.namespace import Namespace, Value, raw, rec
from adjoint.core.native import Primitives, View
from adjoint.core.shapes import Shape, broadcast_shapes, canonical_axis
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, LinAlgError, ShapeError
from adjoint.ops.matrices import adjoint_of, blame, lapack_floats, matrix_shape, solution_shape, square
from adjoint.ops.reduce import exclusive_product
from adjoint.ops.shared_docs import argument_doc, matrices_doc, mismatch_doc, square_doc
from adjoint.typing import Array, ArrayLike

__all__ = [
    "det", "inv", "matrix_power", "slogdet", "solve", "solve_triangular", "tensorinv", "tensorsolve",
]  # fmt: skip

_solutions_doc = matrices_doc.extended("""
    Parameters
    ----------
    y : array_like
        The right-hand side: a vector if it has one axis, else a stack of matrices.

    Returns
    -------
    Tensor
        The solution z.
    """)

# Inverse and equations --------------------------------------------------------------------------


def _inv(x: Array) -> Any:
    try:
        return np.linalg.inv(x)
    except np.linalg.LinAlgError:
        raise blame("inv", x, np.linalg.inv, "is singular", _SINGULAR) from None


_SINGULAR = "Add a small multiple of the identity, or use ad.linalg.pinv or lstsq."


def _inv_or_nan(x: Array) -> Any:
    try:
        return np.linalg.inv(x)
    except np.linalg.LinAlgError:
        if x.ndim == 2:
            return np.full_like(x, np.nan)
    return np.array([_inv_or_nan(m) for m in x])


def _inv_rule(xp: Namespace, g: Value, y: Value, x: Value) -> Any:
    yt = xp.matrix_transpose(y)
    return -xp.matmul(xp.matmul(yt, g), yt)


def _solve(x: Array, y: Array) -> Any:
    try:
        return np.linalg.solve(x, y)
    except np.linalg.LinAlgError:
        raise blame("solve", x, np.linalg.inv, "is singular", _SINGULAR) from None


def _solve_rule(
    xp: Namespace, g: Value, z: Value, x: Value, y: Value, *, wanted: Sequence[bool]
) -> list[Any]:
    # x z = y: dy = x⁻ᵀ g, and dx = -dy zᵀ
    dy = xp.solve(xp.matrix_transpose(x), g)
    return [-xp.matmul(dy, xp.matrix_transpose(z)) if wanted[0] else None, dy]


def _solve_triangular(x: Array, y: Array, lower: bool, unit: bool) -> Any:
    n = x.shape[-1]
    x = np.tril(x) if lower else np.triu(x)
    diagonal = np.arange(n)
    if unit:
        x[..., diagonal, diagonal] = 1
    elif (x[..., diagonal, diagonal] == 0).any():
        *index, row = (int(i[0]) for i in np.nonzero(x[..., diagonal, diagonal] == 0))
        which = (
            f"matrix {index[0] if len(index) == 1 else tuple(index)} of the batch" if index else "the matrix"
        )
        raise LinAlgError(
            f"solve_triangular: {which} is singular: element {row} of its diagonal is 0 (shape {x.shape}).\n"
            f"  {_SINGULAR}"
        )
    if lower:  # reverse the order of equations and unknowns: then the matrix is upper triangular
        return _back_substituted(x[..., ::-1, ::-1], y[..., ::-1, :])[..., ::-1, :]
    return _back_substituted(x, y)


def _back_substituted(x: Array, y: Array) -> Any:
    """Return the solution z of x z = y for upper triangular matrices x.

    The matrices are halved recursively; small blocks are solved by LU.
    """
    n = x.shape[-1]
    if n <= 64:
        return np.linalg.solve(x, y)
    half = n // 2
    low = _back_substituted(x[..., half:, half:], y[..., half:, :])
    high = _back_substituted(x[..., :half, :half], y[..., :half, :] - x[..., :half, half:] @ low)
    return np.concatenate((np.broadcast_to(high, (*low.shape[:-2], *high.shape[-2:])), low), axis=-2)


def _solve_triangular_rule(
    xp: Namespace, g: Value, z: Value, x: Value, y: Value, *, wanted: Sequence[bool], lower: bool, unit: bool
) -> list[Any]:
    dy = xp.solve_triangular(xp.matrix_transpose(x), g, lower=not lower, unit=unit)
    if not wanted[0]:
        return [None, dy]
    n = x.shape[-1]
    read = np.tri(n, k=-1 if unit else 0, dtype=bool)  # which elements the forward reads
    return [xp.where(read if lower else read.T, -xp.matmul(dy, xp.matrix_transpose(z)), 0), dy]


def _solve_shape(x: Array, y: Array, **_: Array) -> Result | None:
    return solution_shape(x, y) if x.shape[-2:-1] == x.shape[-1:] else None


# Native forms --------------------------------------------------------------------------------------


def _in_batch(xp: Primitives, a: View, lead: Shape) -> View:
    """Return a stack of matrices, repeated along new batch axes."""
    return xp.graph.broadcast(a, (*lead, *a.shape[-2:]))


def _native_equations(routine: str) -> Callable[..., View]:
    def native(xp: Primitives, x: View, y: View, **options: bool) -> View:
        x, y = xp.alike(xp.view(x), xp.view(y))
        lead = broadcast_shapes(routine, x.shape[:-2], y.shape[:-2])
        given = [_in_batch(xp, a, lead) for a in (x, y)]
        return xp.matrix(routine, given, given[1].shape, *options.values())

    return native


def _native_inv(xp: Primitives, x: View) -> View:
    return xp.solve(x, _in_batch(xp, xp.view(np.eye(x.shape[-1], dtype=x.dtype)), x.shape[:-2]))


def _native_pivots(xp: Primitives, x: View) -> View:
    return xp.matrix("pivots", [x], x.shape[:-1])


def _native_slogdet(xp: Primitives, x: View) -> tuple[View, View]:
    pivots = _native_pivots(xp, x)
    sign = xp.prod(xp.sign(pivots), axis=(-1,), keepdims=False)
    return sign, xp.sum(xp.log(xp.abs(pivots)), axis=(-1,), keepdims=False)


def _native_cofactor(xp: Primitives, x: View) -> View:
    """Return det(x) x⁻ᵀ; a check finds matrices that are nearly singular, for which NumPy computes it."""
    inverse = xp.inv(x)
    sizes = [
        xp.max(xp.sum(xp.abs(a), axis=(-1,), keepdims=False), axis=(-1,), keepdims=False)
        for a in (x, inverse)
    ]
    safe = sizes[0] * sizes[1] < _DOUBTFUL / np.sqrt(np.finfo(x.dtype).eps)
    xp.graph.checks.append(xp.logical_not(xp.all(xp.flat(xp.graph.copied(safe)), axis=(0,), keepdims=False)))
    return xp.det(x)[..., None, None] * xp.matrix_transpose(inverse)


_square_shape = matrix_shape(lambda x, *_: ((x.shape, x.dtype),))
define("inv", _inv, _inv_rule, saves="y", kind="general", batch="leading", shape=_square_shape,
       reference="numpy.linalg:inv", lower=_native_inv, doc="The inverse of matrices.")  # fmt: skip
define("inv_or_nan", _inv_or_nan, _inv_rule, saves="y", kind="general", batch="leading",
       shape=_square_shape, reference="numpy", doc="The inverse of matrices, NaN for singular ones.")  # fmt: skip
define("solve", _solve, joint=_solve_rule, arity=2, saves="zx", kind="general", batch="elementwise",
       shape=_solve_shape, reference="numpy.linalg:solve", lower=_native_equations("solve"), sparsity=(-2, -1), doc="The solution of linear equations, for several right-hand sides.")  # fmt: skip
define("solve_triangular", _solve_triangular, joint=_solve_triangular_rule, arity=2, saves="zx", kind="general", batch="elementwise",
       params=("lower", "unit"), shape=_solve_shape, reference="formula", lower=_native_equations("triangular"), sparsity=(-2, -1), doc="The solution of triangular equations.")  # fmt: skip

# Determinants -----------------------------------------------------------------------------------

_DOUBTFUL = 0.01  # times 1/√ε: above this condition, cofactors are computed from singular values
_SMALL = 8  # up to this size, the derivative of cofactors uses minors, which is exact for singular matrices


def _cofactor(x: Array) -> Any:
    """Return det(x) x⁻ᵀ, the matrix of cofactors, which is the derivative of the determinant.

    If x is nearly singular, the result is computed from the singular values of x.
    """
    if not x.size:
        return np.ones_like(x)
    n = x.shape[-1]
    flat = x.reshape(-1, n, n)
    doubtful = np.isfinite(flat).all(axis=(-2, -1))
    found = np.empty_like(flat)
    try:
        inverse = np.linalg.inv(flat)
    except np.linalg.LinAlgError:
        found[~doubtful] = np.nan
    else:
        sizes = [np.abs(a).sum(axis=-1).max(axis=-1) for a in (flat, inverse)]
        doubtful &= ~(sizes[0] * sizes[1] < _DOUBTFUL / np.sqrt(np.finfo(x.dtype).eps))
        found[:] = np.linalg.det(flat)[:, None, None] * inverse.swapaxes(-1, -2)
    if doubtful.any():
        u, s, vh = np.linalg.svd(flat[doubtful])
        scale = np.linalg.det(u) * np.linalg.det(vh)
        others = exclusive_product(raw, s, -1) * scale[:, None]
        # adj(u s vh) = adj(vh) adj(s) adj(u), and adj(u) = det(u) uᴴ
        found[doubtful] = ((u * others[:, None, :].conj()) @ vh).conj()
    return found.reshape(x.shape)


def _minors(n: int) -> tuple[Any, Any]:
    """Return index arrays rows and columns such that x[rows, columns] are all minors of an n × n matrix x.

    The minor without row i and column j is at [i, j].
    """
    rest = np.array([[j for j in range(n) if j != i] for i in range(n)]).reshape(n, n - 1)
    return rest[:, None, :, None], rest[None, :, None, :]


def _cofactor_rule(xp: Namespace, g: Value, y: Value, x: Value) -> Any:
    n = x.shape[-1]
    if n <= 1:
        return xp.zeros_like(x)  # the cofactor is 1
    if n <= _SMALL:
        # y_ij = ± det(minor_ij), so dx = Σ_ij ± g_ij cofactor(minor_ij), without dividing
        key = (Ellipsis, *(i.astype(np.intp) for i in _minors(n)))
        signs = (-1.0) ** np.add.outer(np.arange(n), np.arange(n))
        parts = (g * signs)[..., None, None] * xp.cofactor(xp.index(x, key=key))
        return xp.unindex(parts, key=key, shape=x.shape)
    inverse = xp.matrix_transpose(xp.inv(x))
    total = xp.sum(g * y, axis=(-2, -1), keepdims=True)
    return total * inverse - xp.matmul(xp.matmul(y, xp.matrix_transpose(g)), inverse)


def _slogdet_rule(xp: Namespace, g: Value, out: Value, x: Value) -> Any:
    # d log det = tr(x⁻¹ dx).  The real part is the change of the logarithm, the imaginary part that of the
    # phase
    g_sign, g_log = g
    weight = g_log
    if x.dtype.kind == "c" and g_sign is not None:
        turn = xp.imag(g_sign * xp.conj(out[0])) * 1j
        weight = turn if g_log is None else g_log + turn
    if weight is None:
        return xp.zeros_like(x)
    return weight[..., None, None] * adjoint_of(xp, xp.inv(x))


define("det", np.linalg.det, lambda xp, g, y, x: g[..., None, None] * xp.cofactor(x), saves="x", kind="general",
       batch="leading", shape=matrix_shape(lambda x, lead, *_: ((lead, x.dtype),)), reference="numpy.linalg:det", lower=lambda xp, x: xp.prod(_native_pivots(xp, x), axis=(-1,), keepdims=False), doc="The determinant of matrices.")  # fmt: skip
define("cofactor", _cofactor, _cofactor_rule, saves="yx", kind="general", batch="leading",
       shape=_square_shape, reference="formula", lower=_native_cofactor, doc="The cofactors of matrices: the transposed adjugate.")  # fmt: skip
define("slogdet", lambda x: tuple(np.linalg.slogdet(x)), _slogdet_rule, saves=("out", "x"), kind="general", outputs=2,
       holomorphic=False, batch="leading", shape=matrix_shape(lambda x, lead, *_: ((lead, x.dtype), (lead, real_dtype(x.dtype)))), reference="numpy.linalg:slogdet", lower=_native_slogdet, doc="The sign and the logarithm of the absolute determinant.")  # fmt: skip

# Public functions -------------------------------------------------------------------------------


@matrices_doc
def inv(x: ArrayLike) -> Tensor:
    """Return the inverse of square matrices.

    Raises
    ------
    LinAlgError
        If a matrix is singular.

    >>> ad.linalg.inv([[2.0, 0.0], [0.0, 4.0]])
    tensor([[0.5 , 0.  ],
            [0.  , 0.25]], dtype=float64)
    """
    return rec.inv(square("inv", x))


def _equations(op: str, x: Any, y: Any) -> tuple[Tensor, Tensor, bool]:
    """Return the matrix and the right-hand side as tensors, and whether the right-hand side is a vector.

    As in NumPy 2, a right-hand side is a vector only if it has one axis.  Raise if the shapes do not match.
    """
    x, y = square(op, x), lapack_floats(op, y)
    if not y.ndim:
        raise ShapeError(f"{op}: the right-hand side must be a vector or matrices, but is 0-d.")
    vector = y.ndim == 1
    n = y.shape[0] if vector else y.shape[-2]
    if n != x.shape[-1]:
        raise ShapeError(
            f"{op}: for matrices of shape {x.shape} the right-hand side must have {x.shape[-1]} rows, but "
            f"its shape {y.shape} has {n}.\n"
            "  A right-hand side with two or more axes is a batch of matrices.  Pass a batch of vectors as "
            "y[..., None]."
        )
    if vector:
        y = rec.reshape(y, shape=(n, 1))
    broadcast_shapes(f"{op} (leading axes)", x.shape[:-2], y.shape[:-2])
    return x, y, vector


def _solved(function: Any, x: Tensor, y: Tensor, vector: bool, **params: Any) -> Tensor:
    """Return ``function(x, y)``, the solution z of x z = y; ``vector`` says that y is a vector.

    If x is a single matrix, all right-hand sides are joined, so that it is factorised once.
    """
    if x.ndim == 2 and y.ndim > 2:
        n, *rest = y.shape[-2], *y.shape[:-2], y.shape[-1]
        columns = rec.moveaxis(y, source=-2, destination=-y.ndim)
        z = function(x, rec.reshape(columns, shape=(n, math.prod(rest))), **params)
        return rec.moveaxis(rec.reshape(z, shape=(n, *rest)), source=-y.ndim, destination=-2)
    z = function(x, y, **params)
    return z[..., 0] if vector else z


@_solutions_doc
def solve(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Solve ``x @ z = y`` for z.

    Parameters
    ----------
    x : array_like
        The square matrices, in the last two axes.

    Raises
    ------
    LinAlgError
        If a matrix is singular.
    ShapeError
        If the shapes do not match.

    >>> ad.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0])
    tensor([0.5 , 0.25], dtype=float64)
    """
    x, y, vector = _equations("solve", x, y)
    return _solved(rec.solve, x, y, vector)


_TRANSPOSES = {0: "N", 1: "T", 2: "C"}


@_solutions_doc
def solve_triangular(
    x: ArrayLike, y: ArrayLike, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False
) -> Tensor:
    """Solve ``x @ z = y`` for z, with triangular matrices; the other triangle is not read.

    Parameters
    ----------
    x : array_like
        The triangular matrices, in the last two axes.
    trans : optional
        The matrix to solve with: ``x`` (0 or "N"), its transpose (1 or "T") or conjugate transpose
        (2 or "C").
    lower : bool, optional
        Whether the lower triangle is read instead of the upper one.
    unit_diagonal : bool, optional
        Whether the diagonal is taken to be 1, and not read.

    Raises
    ------
    LinAlgError
        If a diagonal element is 0.
    ShapeError
        If the shapes do not match.

    >>> ad.linalg.solve_triangular([[2.0, 1.0], [0.0, 4.0]], [4.0, 8.0])
    tensor([1., 2.], dtype=float64)
    """
    x, y, vector = _equations("solve_triangular", x, y)
    trans = _TRANSPOSES.get(trans, trans)
    if trans not in ("N", "T", "C"):
        raise ArgumentError(f'solve_triangular: trans must be 0, 1, 2 or "N", "T", "C", not {trans!r}.')
    lower = bool(lower)
    if trans != "N":
        x = adjoint_of(rec, x) if trans == "C" else rec.matrix_transpose(x)
        lower = not lower
    return _solved(rec.solve_triangular, x, y, vector, lower=lower, unit=bool(unit_diagonal))


@square_doc
def det(x: ArrayLike) -> Tensor:
    """Return the determinant of square matrices.

    Its gradient, the matrix of cofactors, is also exact at singular matrices.

    >>> x = ad.zeros((2, 2), requires_grad=True)
    >>> ad.linalg.det(x + ad.tensor([[1.0, 2.0], [2.0, 4.0]])).backward()
    >>> x.grad
    tensor([[ 4., -2.],
            [-2.,  1.]], dtype=float64)
    """
    return rec.det(square("det", x))


class SlogdetResult(NamedTuple):
    """Result of ``slogdet``: the sign of a determinant and the logarithm of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


@square_doc
def slogdet(x: ArrayLike) -> SlogdetResult:
    """Return the sign and the logarithm of the absolute value of the determinant, without overflow.

    Returns
    -------
    SlogdetResult
        A named tuple with ``sign`` and ``logabsdet``.

    >>> ad.linalg.slogdet([[2.0, 0.0], [0.0, -0.5]])
    SlogdetResult(sign=tensor(-1., dtype=float64), logabsdet=tensor(0., dtype=float64))
    """
    return SlogdetResult(*rec.slogdet(square("slogdet", x)))


@square_doc
def matrix_power(x: ArrayLike, n: int) -> Tensor:
    """Raise square matrices to an integer power, by repeated squaring.

    Parameters
    ----------
    n : int
        The exponent; a negative one uses the inverse.

    Raises
    ------
    LinAlgError
        If ``n`` is negative and a matrix singular.

    >>> ad.linalg.matrix_power([[1.0, 1.0], [0.0, 1.0]], 5)
    tensor([[1., 5.],
            [0., 1.]], dtype=float64)
    """
    try:
        n = operator.index(n)
    except TypeError:
        raise InputError(f"matrix_power: the exponent must be an integer, but got {n!r}.") from None
    base = square("matrix_power", x)
    if n == 0:
        return rec.broadcast_to(
            rec.zeros_like(base) + np.eye(base.shape[-1], dtype=base.dtype), shape=base.shape
        )
    if n < 0:
        base, n = rec.inv(base), -n
    out = None
    while n:
        if n & 1:
            out = base if out is None else rec.matmul(out, base)
        n >>= 1
        if n:
            base = rec.matmul(base, base)
    assert out is not None
    return out


@mismatch_doc
@_solutions_doc
def tensorsolve(x: ArrayLike, y: ArrayLike, axes: Sequence[int] | None = None) -> Tensor:
    """Solve ``tensordot(x, z, z.ndim) = y`` for z.

    Parameters
    ----------
    x : array_like
        The coefficients: first the axes of ``y``, then those of z, with as many elements.
    y : array_like
        The right-hand side.
    axes : tuple of int, optional
        Axes of ``x`` to move to the end first.

    >>> ad.linalg.tensorsolve(2 * ad.eye(4).reshape(2, 2, 4), ad.ones((2, 2)))
    tensor([0.5, 0.5, 0.5, 0.5], dtype=float64)
    """
    x, y = lapack_floats("tensorsolve", x), lapack_floats("tensorsolve", y)
    if axes is not None:
        moved = [canonical_axis("tensorsolve", a, x.ndim) + x.ndim for a in axes]
        x = rec.permute_dims(
            x, axes=tuple(a - x.ndim for a in (*(i for i in range(x.ndim) if i not in moved), *moved))
        )
    rest = x.shape[y.ndim :]
    n = int(np.prod(rest))
    if x.shape[: y.ndim] != y.shape or n != y.size:
        raise ShapeError(
            f"tensorsolve: the shape of the tensor must be the shape of the right-hand side, {y.shape}, "
            f"followed by axes whose lengths have the same product, but is {x.shape}."
        )
    flat = rec.reshape(x, shape=(n, n)), rec.reshape(y, shape=(n,))
    return rec.reshape(solve(*flat), shape=rest)


@argument_doc
def tensorinv(x: ArrayLike, ind: int = 2) -> Tensor:
    """Return the inverse with respect to ``tensordot(·, ·, ind)``.

    Parameters
    ----------
    x : array_like
        The tensor; its first ``ind`` axes have as many elements as the others.
    ind : int, optional
        The number of leading axes.

    Returns
    -------
    Tensor
        The inverse; its leading axes are the trailing ones of ``x``.

    Raises
    ------
    ShapeError
        If the numbers of elements differ.

    >>> ad.linalg.tensorinv(ad.eye(4).reshape(2, 2, 4)).shape
    (4, 2, 2)
    """
    x = lapack_floats("tensorinv", x)
    n = int(np.prod(x.shape[:ind]))
    if ind < 1 or n * n != x.size:
        raise ShapeError(
            "tensorinv: ind must be at least 1 and the first ind axes must have as many elements as the "
            f"others, but with ind={ind} shape {x.shape} has {n} and {x.size // n if n else 0}."
        )
    flat = rec.inv(rec.reshape(x, shape=(n, n)))
    return rec.reshape(flat, shape=(*x.shape[ind:], *x.shape[:ind]))
