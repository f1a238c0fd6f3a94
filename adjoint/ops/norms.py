"""Norms of vectors and matrices, and condition numbers.  At zero, where a norm has a corner, the gradient is 0."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.native import NotNative, Primitives, View, floats
from adjoint.core.shapes import Shape, canonical_axes, canonical_axis
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, LinAlgError, ShapeError
from adjoint.ops.matrices import matrices, square
from adjoint.ops.reduce import kept, reduced_count
from adjoint.ops.shared_docs import matrices_doc, reduction_doc
from adjoint.typing import ArrayLike, Axis

__all__ = ["cond", "matrix_norm", "norm", "vector_norm"]

_norms_doc = reduction_doc.extended("""
    Returns
    -------
    Tensor
        The norm.
    """)


def _vector_norm(x: Any, ord: float, axis: Shape, keepdims: bool) -> Any:
    dtype = x.dtype
    a = x if ord == 2 and dtype.kind == "f" else np.abs(x)
    if dtype.itemsize == 2:
        a = a.astype(np.float32)  # half precision is summed in float32
    # divide: a negative order divides by elements that are 0
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        found = _power_mean(a, ord, axis, keepdims)
        top = 10 ** min(30 / abs(ord), 300)  # powers of numbers below this do not overflow, even in float32
        if found.ndim == 0:
            extreme: Any = not 1 / top < float(found) < top
            any_extreme = extreme
        else:
            extreme = ~((found > 1 / top) & (found < top))
            any_extreme = extreme.any()
        if any_extreme:
            found = _rescaled(np.abs(a), ord, axis, keepdims, found, extreme)
    return found.astype(dtype) if dtype.itemsize == 2 else found


def _rescaled(a: Any, ord: float, axis: Shape, keepdims: bool, found: Any, extreme: Any) -> Any:
    """Return the norms ``found``; those in the mask ``extreme`` are computed again from scaled elements.

    ``extreme`` marks norms for which powers of the elements overflow or underflow.  ``a`` has the absolute
    values of all elements.
    """
    scale = (
        np.max(a, axis=axis, keepdims=True, initial=0)
        if ord > 0
        else np.min(a, axis=axis, keepdims=True, initial=math.inf)
    )
    scale = np.where((scale > 0) & (scale < math.inf), scale, 1)
    scaled = _power_mean(a / scale, ord, axis, True) * scale
    return np.where(extreme, scaled if keepdims else scaled.reshape(found.shape), found)


def _power_mean(a: Any, ord: float, axis: Shape, keepdims: Any) -> Any:
    if ord == 2:
        return np.sqrt(np.add.reduce(a * a, axis=axis, keepdims=keepdims))
    return np.add.reduce(a**ord, axis=axis, keepdims=keepdims) ** (1 / ord)


def _vector_norm_rule(
    xp: Namespace, g: Value, y: Value, x: Value, ord: float, axis: Shape, keepdims: bool
) -> Any:
    size = kept(xp, y, x, axis, keepdims)
    g = kept(xp, g, x, axis, keepdims)
    if ord == 2:
        # at zero, division by inf gives a gradient of 0, and so do derivatives of every order
        return g * (x / xp.where(size == 0, math.inf, size))
    # d|x|_p = sign(x) (|x| / |x|_p)^(p-1), and 0 for elements that are 0
    a = xp.abs(x)
    none = size == 0
    zero = xp.logical_or(a == 0, none)
    a, size = xp.where(zero, 1, a), xp.where(none, 1, size)
    ratio = (a / size) ** (ord - 1) if ord > 1 else (size / a) ** (1 - ord)
    return g * xp.where(zero, 0, x / a * ratio)


def _native_vector_norm(xp: Primitives, x: View, ord: float, axis: Shape, keepdims: bool) -> View:
    """Return the 2-norm; elements are scaled by the largest one where squares overflow or underflow."""
    if ord != 2 or floats(x).dtype.kind != "f" or not reduced_count(x.shape, axis):
        raise NotNative(f"a norm of order {ord} has no native form")
    found = xp.sqrt(xp.sum(x * x, axis=axis, keepdims=keepdims))
    top = 1e15
    extreme = xp.logical_not(xp.logical_and(found > 1 / top, found < top))
    scale = xp.reduced("max", xp.abs(x), axis, True, x.dtype)
    scale = xp.where(xp.logical_and(scale > 0, scale < math.inf), scale, 1)
    scaled = x / scale
    again = xp.sqrt(xp.sum(scaled * scaled, axis=axis, keepdims=True)) * scale
    return xp.where(extreme, xp.graph.reshape(again, found.shape), found)


define("vector_norm", _vector_norm, _vector_norm_rule, saves="yx", kind="general", holomorphic=False,
       params=("ord", "axis", "keepdims"), batch="leading", reference="numpy.linalg:vector_norm", lower=_native_vector_norm, doc="The p-norm over axes.")  # fmt: skip


@_norms_doc
def vector_norm(x: ArrayLike, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """Return the norm of the vector that consists of the elements over axes.

    The gradient at zero is 0.  With ``ord=inf``, equal maxima share the gradient.

    Parameters
    ----------
    ord : float, optional
        The order p of the norm; inf and -inf give the maximum and minimum, 0 counts elements.

    Raises
    ------
    ArgumentError
        If ``ord`` is not a number.

    >>> x = ad.tensor([3.0, 4.0], requires_grad=True)
    >>> ad.linalg.vector_norm(x).backward()
    >>> x.grad
    tensor([0.6, 0.8], dtype=float64)
    """
    x = _numbers(x)
    return _norm_over("vector_norm", x, ord, canonical_axes("vector_norm", axis, x.ndim), bool(keepdims))


def _norm_over(op: str, x: Tensor, ord: Any, axes: Shape, keepdims: bool) -> Tensor:
    if isinstance(ord, str) or not isinstance(ord, (int, float, np.number)):
        raise ArgumentError(f"{op}: the order of a vector norm must be a number, inf or -inf, not {ord!r}.")
    p = float(ord)
    if abs(p) == math.inf:
        return _extreme(op, rec.abs(x), p, axes, keepdims)
    if p == 0:
        counted = rec.astype(rec.not_equal(x, 0), dtype=np.abs(np.zeros(1, x.dtype)).dtype)
        return rec.sum(counted, axis=axes, keepdims=keepdims)
    if p == 1:
        return rec.sum(rec.abs(x), axis=axes, keepdims=keepdims)
    return rec.vector_norm(x, ord=p, axis=axes, keepdims=keepdims)


def _extreme(op: str, x: Tensor, ord: float, axes: Shape, keepdims: bool) -> Tensor:
    """Return the maximum of ``x`` over ``axes`` if ``ord`` is positive, else the minimum.

    If there are no elements, the maximum is 0, and the minimum raises.
    """
    if not any(x.shape[a] == 0 for a in axes):
        return (rec.max if ord > 0 else rec.min)(x, axis=axes, keepdims=keepdims)
    if ord < 0:
        raise ShapeError(
            f"{op}: with a negative ord the axes must not be empty, but axes {axes} of shape {x.shape} are."
        )
    return rec.sum(x, axis=axes, keepdims=keepdims)


def _numbers(x: Any) -> Tensor:
    """Return ``x`` as a tensor of floats; integers become float64, half precision is unchanged."""
    x = asarray(x)
    return rec.astype(x, dtype=np.dtype(np.float64)) if x.dtype.kind in "biu" else x


_MATRIX_ORDERS = ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)


@_norms_doc
def matrix_norm(x: ArrayLike, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """Return the norm of the matrices in the last two axes.

    Parameters
    ----------
    x : array_like
        The matrices.
    keepdims : bool, optional
        Whether to keep the last two axes with length 1.
    ord : optional
        The order: "fro" (Frobenius), "nuc" (nuclear), 1, -1, 2, -2, inf or -inf.

    Raises
    ------
    ShapeError
        If ``x`` has fewer than two axes.
    ArgumentError
        If ``ord`` is unknown.

    >>> ad.linalg.matrix_norm([[3.0, 0.0], [0.0, 4.0]])
    tensor(5., dtype=float64)
    """
    x = _numbers(x)
    if x.ndim < 2:
        raise ShapeError(
            "matrix_norm: x must be a matrix or a batch of matrices in the last two axes, but has shape "
            f"{x.shape}."
        )
    return _matrix_norm("matrix_norm", x, ord, bool(keepdims))


def _matrix_norm(op: str, x: Tensor, ord: Any, keepdims: bool) -> Tensor:
    if ord not in _MATRIX_ORDERS:
        raise ArgumentError(
            f'{op}: the order of a matrix norm must be "fro", "nuc", ±1, ±2 or ±inf, not {ord!r}.'
        )
    if ord == "fro":
        return rec.vector_norm(x, ord=2.0, axis=(-2, -1), keepdims=keepdims)
    if ord == "nuc" or abs(ord) == 2:
        out = _spectral_norm(op, x, ord)
    else:
        sums = rec.sum(rec.abs(x), axis=(-2 if abs(ord) == 1 else -1,), keepdims=False)
        out = _extreme(op, sums, ord, (-1,), False)
    return rec.reshape(out, shape=(*x.shape[:-2], 1, 1)) if keepdims else out


def _spectral_norm(op: str, x: Tensor, ord: Any) -> Tensor:
    s = rec.svdvals(matrices("norm", x))
    if s.shape[-1]:
        # at singular values of 0 the gradient is 0, like that of the norm at zero
        floor = max(x.shape[-2:]) * np.finfo(x.dtype).eps
        s = rec.where(rec.less_equal(s, floor * s[..., :1]), 0, s)
    if ord == "nuc":
        return rec.sum(s, axis=(-1,), keepdims=False)
    return _extreme(op, s, ord, (-1,), False)


@_norms_doc
def norm(x: ArrayLike, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return a vector or matrix norm, with the rules of ``np.linalg.norm``.

    The gradient at zero is 0.

    Parameters
    ----------
    ord : optional
        The order, as in ``vector_norm`` or ``matrix_norm``; by default the 2-norm or the Frobenius
        norm.
    axis : int or tuple of int, optional
        One axis for vector norms, two for matrix norms; by default all axes.

    Raises
    ------
    ShapeError
        If ``ord`` is given without ``axis`` and ``x`` has more than two axes.

    >>> x = ad.zeros(3, requires_grad=True)
    >>> ad.linalg.norm(x).backward()
    >>> x.grad
    tensor([0., 0., 0.], dtype=float64)
    """
    x = _numbers(x)
    keepdims = bool(keepdims)
    if axis is None:
        if ord is None:
            return rec.vector_norm(x, ord=2.0, axis=tuple(range(-x.ndim, 0)), keepdims=keepdims)
        if x.ndim == 1:
            return _norm_over("norm", x, ord, (-1,), keepdims)
        if x.ndim == 2:
            return _matrix_norm("norm", x, ord, keepdims)
        raise ShapeError(
            f"norm: with ord={ord!r} and without axis=, x must have one or two axes, but has shape "
            f"{x.shape}.\n"
            "  Pass axis= with one axis for the norms of vectors, with two for those of matrices."
        )
    if not isinstance(axis, (tuple, list)):
        return _norm_over(
            "norm", x, 2 if ord is None else ord, canonical_axes("norm", axis, x.ndim), keepdims
        )
    where = tuple(canonical_axis("norm", a, x.ndim) for a in axis)
    if len(where) == 1:
        return _norm_over("norm", x, 2 if ord is None else ord, where, keepdims)
    if len(where) != 2 or where[0] == where[1]:
        raise ShapeError(f"norm: axis must be one axis or two different axes, but is {axis!r}.")
    rest = tuple(a for a in range(-x.ndim, 0) if a not in where)
    moved = rec.permute_dims(x, axes=(*rest, *where)) if rest + where != tuple(range(-x.ndim, 0)) else x
    out = _matrix_norm("norm", moved, "fro" if ord is None else ord, False)
    if keepdims:
        out = rec.reshape(out, shape=tuple(1 if a in where else x.shape[a] for a in range(-x.ndim, 0)))
    return out


@matrices_doc
def cond(x: ArrayLike, p: float | str | None = None) -> Tensor:
    """Return the condition number of matrices: the norm of each times the norm of its inverse.

    Parameters
    ----------
    p : optional
        The order of the norm, as in ``matrix_norm``; by default 2.

    Returns
    -------
    Tensor
        The condition numbers; inf for singular matrices.

    Raises
    ------
    LinAlgError
        If the matrices are empty.

    >>> ad.linalg.cond([[2.0, 0.0], [0.0, 1.0]])
    tensor(2., dtype=float64)
    """
    x = matrices("cond", x) if p is None or p in (2, -2) else square("cond", x)
    if 0 in x.shape[-2:]:
        raise LinAlgError(f"cond: empty matrices (shape {x.shape}) have no condition number.")
    if p is None or p in (2, -2):
        s = rec.svdvals(x)
        large, small = s[..., 0], s[..., -1]
        with np.errstate(divide="ignore", invalid="ignore"):
            out = rec.divide(small, large) if p == -2 else rec.divide(large, small)
    else:
        with np.errstate(invalid="ignore"):
            out = _matrix_norm("cond", x, p, False) * _matrix_norm("cond", rec.inv_or_nan(x), p, False)
    broken = rec.any(rec.isnan(x), axis=(-2, -1), keepdims=False)
    return rec.where(rec.logical_and(rec.isnan(out), rec.logical_not(broken)), math.inf, out)
