"""Helpers of the ops on matrices: argument checks, conjugate transposes, and errors that name the matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.infer import Result, broadcast
from adjoint.core.namespace import Namespace, Value, raw, rec
from adjoint.core.native import Primitives, View
from adjoint.core.tensor import Tensor
from adjoint.errors import DTypeError, LinAlgError, ShapeError
from adjoint.typing import Array

__all__ = [
    "adjoint_of", "blame", "flat_lead", "float_dtype", "lapack_floats", "matrices", "matrix_shape", "mirror",
    "of_triangle", "solution_shape", "square",
]  # fmt: skip


def flat_lead(*arrays: tuple[Array, int]) -> tuple[tuple[int, ...], list[Any]]:
    """Broadcast the leading axes of arrays to a common shape and merge them into one axis.

    Each argument is a pair: an array, and the number of its last axes that are not changed.  Return the
    common shape of the leading axes, and the list of the reshaped arrays.
    """
    lead = np.broadcast_shapes(*(a.shape[: a.ndim - own] for a, own in arrays))
    flat = []
    for a, own in arrays:
        rest = a.shape[a.ndim - own :]
        flat.append(np.broadcast_to(a, (*lead, *rest)).reshape(math.prod(lead), *rest))
    return lead, flat


def float_dtype(*arrays: Any) -> Any:
    """Return the common dtype of arrays, or float64 if all are integers."""
    dtype = np.result_type(*(a.dtype for a in arrays))
    return np.dtype(np.float64) if dtype.kind in "biu" else dtype


def lapack_floats(op: str, x: Any) -> Tensor:
    """Return ``x`` as a tensor of floats; integers become float64.

    Raise for half precision, which LAPACK does not support.  ``op`` is the name of the caller, for errors.
    """
    x = asarray(x)
    if x.dtype.kind in "biu":
        return rec.astype(x, dtype=np.dtype(np.float64))
    if x.dtype.itemsize == 2:
        raise DTypeError(f"{op}: LAPACK does not support {x.dtype}.  Cast the input: x.astype(np.float32).")
    return x


def matrices(op: str, x: Any) -> Tensor:
    """Return ``x``, a stack of matrices, as a tensor of floats; raise if it has fewer than two axes."""
    x = lapack_floats(op, x)
    if x.ndim < 2:
        raise ShapeError(
            f"{op}: x must be a matrix or a batch of matrices in the last two axes, but has shape {x.shape}."
        )
    return x


def square(op: str, x: Any) -> Tensor:
    """Return ``x``, a stack of matrices, as a tensor of floats; raise if the matrices are not square."""
    x = matrices(op, x)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(
            f"{op}: matrices must be square, but the last two axes of shape {x.shape} have lengths "
            f"{x.shape[-2]} and {x.shape[-1]}."
        )
    return x


_LAPACK = frozenset(map(np.dtype, ("float32", "float64", "complex64", "complex128")))


def matrix_shape(found: Callable[..., Result], *, square: bool = True) -> Callable[..., Result | None]:
    """Return the shape rule of an op on matrices: a function that returns the outputs' shapes and dtypes.

    The rule calls ``found(x, lead, rows, columns, **params)``, where ``lead`` is the shape of ``x`` without
    its last two axes.  It returns None if ``x`` is not valid: not a matrix of floats, or not square although
    ``square`` is true.
    """

    def rule(x: Any, **params: Any) -> Result | None:
        if len(x.shape) < 2 or x.dtype not in _LAPACK or (square and x.shape[-1] != x.shape[-2]):
            return None
        return found(x, x.shape[:-2], *x.shape[-2:], **params)

    return rule


def solution_shape(x: Any, y: Any, **_: Any) -> Result | None:
    """Return the shape and dtype of the solution of x z = y, or None if the shapes do not match."""
    if min(len(x.shape), len(y.shape)) < 2 or x.shape[-2] != y.shape[-2] or not {x.dtype, y.dtype} <= _LAPACK:
        return None
    lead = broadcast(x.shape[:-2], y.shape[:-2])
    return None if lead is None else (((*lead, x.shape[-1], y.shape[-1]), np.result_type(x.dtype, y.dtype)),)


def adjoint_of(xp: Namespace, x: Value) -> Any:
    """Return the conjugate transpose of the matrices in the last two axes."""
    t = xp.matrix_transpose(x)
    return xp.conj(t) if x.dtype.kind == "c" else t


# Hermitian matrices: functions that read only one triangle ----------------------------------------


def _is_hermitian(x: Array) -> Any:
    with np.errstate(invalid="ignore"):  # for inf - inf
        off, size = (
            np.max(np.abs(a), axis=(-2, -1), keepdims=True, initial=0) for a in (x - adjoint_of(raw, x), x)
        )
    return off <= 1e3 * np.finfo(x.dtype).eps * size


def _native_is_hermitian(xp: Primitives, x: View) -> View:
    off, size = (xp.max(xp.abs(a), axis=(-2, -1), keepdims=True) for a in (x - xp.matrix_transpose(x), x))
    return off <= 1e3 * float(np.finfo(xp.half or x.dtype).eps) * size


def of_triangle(xp: Namespace, g: Value, x: Value, lower: bool) -> Any:
    """Return the gradient of ``x`` for a function that reads only the lower (or upper) triangle of ``x``.

    ``g`` is the gradient as if the whole matrix were read; it is Hermitian.  If ``x`` is Hermitian, the
    result is ``g``.  Otherwise it is 0 in the triangle that is not read, and doubled in the one that is read.
    """
    n = x.shape[-1]
    read = np.tri(n, k=-1, dtype=np.finfo(x.dtype).dtype)
    weights = 2 * (read if lower else read.T) + np.eye(n, dtype=read.dtype)
    return xp.where(xp.is_hermitian(x), g, g * weights)


def mirror(xp: Namespace, x: Value, lower: bool) -> Any:
    """Return Hermitian matrices: copy the lower (or upper) triangle of ``x`` to the other triangle."""
    n = x.shape[-1]
    read = np.tri(n, k=-1, dtype=bool)
    part = xp.where(read if lower else read.T, x, 0)
    diagonal = xp.where(np.eye(n, dtype=bool), xp.real(x) if x.dtype.kind == "c" else x, 0)
    return part + adjoint_of(xp, part) + diagonal


def _mirror_rule(xp: Namespace, g: Value, y: Value, x: Value) -> Any:
    return of_triangle(xp, (g + adjoint_of(xp, g)) / 2, x, True)


define("is_hermitian", _is_hermitian, None, kind="general", batch="leading", reason="it is piecewise constant",
       reference="numpy", lower=_native_is_hermitian, doc="Whether each matrix is Hermitian, up to rounding errors.")  # fmt: skip
define("mirror", lambda x: mirror(raw, x, True), _mirror_rule, saves="x", kind="general", holomorphic=False,
       batch="leading", reference="numpy", lower=lambda xp, x: mirror(xp, x, True), doc="Hermitian matrices: the lower triangle of x copied to the upper triangle.")  # fmt: skip


def blame(op: str, x: Any, fails: Callable[[Any], Any], what: str, cure: str) -> LinAlgError:
    """Return an error that names the first matrix of the batch ``x`` for which ``fails(matrix)`` raises.

    ``what`` and ``cure`` are parts of the message: what is wrong with the matrix, and what to do.
    """
    for index in np.ndindex(x.shape[:-2]):
        try:
            fails(x[index])
        except np.linalg.LinAlgError:
            which = f"matrix {index[0] if len(index) == 1 else index} of the batch" if index else "the matrix"
            break
    else:
        which = "a matrix"
    broken = "" if np.isfinite(x).all() else "  The input contains NaN or inf."
    return LinAlgError(f"{op}: {which} {what} (shape {x.shape}).{broken}\n  {cure}")
