"""Products of tensors: matmul, tensordot, dot products, cross."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.core.batching import Batched, held, ranked
from adjoint.core.convert import asarray
from adjoint.core.define import UFUNCS, define
from adjoint.core.docstrings import SharedDoc
from adjoint.core.dots import PIECE
from adjoint.core.dots import dot as long_dot
from adjoint.core.infer import Result, broadcast
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.native import NotNative, Primitives, View
from adjoint.core.op import Op
from adjoint.core.shapes import broadcast_shapes, canonical_axis, listed
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.ops.half import in_float32, rounded, wide
from adjoint.ops.shared_docs import argument_doc, mismatch_doc
from adjoint.tracebacks import hide
from adjoint.typing import Array, ArrayLike

__all__ = ["cross", "dot", "inner", "matmul", "matvec", "outer", "tensordot", "vdot", "vecdot", "vecmat"]

_products_doc = SharedDoc("""
    Parameters
    ----------
    x : array_like
        The first factor.
    y : array_like
        The second factor.

    Returns
    -------
    Tensor
        The product.
    """)


BLAS = frozenset(map(np.dtype, ("float32", "float64", "complex64", "complex128")))


def _matmul_dx(xp: Namespace, g: Value, z: Value, x: Value, y: Value) -> Any:
    if y.ndim == 1:
        return g * y if x.ndim == 1 else g[..., None] * y
    if x.ndim == 1 and y.ndim > 2:
        return xp.matmul(y, g[..., None])[..., 0]
    return xp.matmul(g, xp.matrix_transpose(y))


def _matmul_dy(xp: Namespace, g: Value, z: Value, x: Value, y: Value) -> Any:
    if x.ndim == 1:
        return g * x if y.ndim == 1 else x[..., None] * g[..., None, :]
    if y.ndim == 1:
        return xp.matmul(xp.matrix_transpose(x), g[..., None])[..., 0]
    if y.ndim == 2 and x.ndim > 2:
        # for many matrices times one matrix: one large product, not many small ones and a sum
        rows = math.prod(x.shape[:-1])
        x = xp.reshape(x, shape=(rows, x.shape[-1]))
        g = xp.reshape(g, shape=(rows, g.shape[-1]))
    return xp.matmul(xp.matrix_transpose(x), g)


def product(x: Any, y: Any) -> Any:
    """Return ``np.matmul(x, y)``; two matrices are multiplied by ``x.dot``, which takes half the time.

    The product of half precision is float32; the caller rounds it.
    """
    if x.dtype in BLAS:
        return x.dot(y) if x.ndim == 2 and y.ndim == 2 else _other_product(x, y)
    return np.matmul(wide(x), wide(y))


def _other_product(x: Any, y: Any) -> Any:
    """Return the product of arrays that are not both matrices."""
    long = x.ndim == y.ndim == 1 and x.size == y.size > PIECE and x.dtype == y.dtype
    return long_dot(x, y) if long else np.matmul(x, y)


def _matmul_arrays(x: Array, y: Array) -> Any:
    if x.dtype in BLAS:  # the code of ``product``, inlined for speed
        return x.dot(y) if x.ndim == 2 and y.ndim == 2 else _other_product(x, y)
    return rounded(product(x, y), x, y)


def _matmul_shape(x: Array, y: Array) -> Result | None:
    a, b = x.shape, y.shape
    if not a or not b or a[-1] != b[-2 if len(b) > 1 else 0]:
        return None
    dtype = np.result_type(x.dtype, y.dtype)
    if len(a) == 1 or len(b) == 1:
        return ((a[:-1] + b[:-2] + b[-1:] if len(b) > 1 else a[:-1], dtype),)
    if len(a) == len(b) == 2:
        return (((a[0], b[1]), dtype),)
    lead = broadcast(a[:-2], b[:-2])
    return None if lead is None else (((*lead, a[-2], b[-1]), dtype),)


def _matmul_batch(op: Op, size: int, /, x: Batched, y: Batched) -> Any:
    if x.batched and not y.batched:
        if x.unit and y.ndim == 2:
            return y.value  # x is the identity: its row i times a matrix is row i of the matrix
        if y.ndim == 2 and x.ndim > 1:  # join the rows of all batch elements, for one large product
            rows = held.reshape(x.value, shape=(size * math.prod(x.shape[:-1]), x.shape[-1]))
            return held.reshape(held.matmul(rows, y.value), shape=(size, *x.shape[:-1], y.shape[-1]))
        if y.ndim <= 2:
            return held.matmul(x.value, y.value)
    elif y.batched and not x.batched and x.ndim == 2 and (y.ndim == 1 or (y.ndim == 2 and y.shape[-1] == 1)):
        columns = held.reshape(y.value, shape=(size, y.shape[0]))
        out = held.matmul(columns, held.matrix_transpose(x.value))
        return out if y.ndim == 1 else held.reshape(out, shape=(*out.shape, 1))
    elif y.batched and not x.batched and x.ndim == 1:
        return held.matmul(x.value, y.value) if y.ndim > 1 else held.matmul(y.value, x.value)
    left = _as_matrix(x, (1, *x.shape)) if x.ndim == 1 else x
    right = _as_matrix(y, (*y.shape, 1)) if y.ndim == 1 else y
    ndim = max(left.ndim, right.ndim)
    out = held.matmul(ranked(left, ndim), ranked(right, ndim))
    lost = ([-2] if x.ndim == 1 else []) + ([-1] if y.ndim == 1 else [])
    shape = tuple(n for a, n in enumerate(out.shape, -len(out.shape)) if a not in lost)
    return held.reshape(out, shape=shape) if lost else out


def _as_matrix(a: Batched, shape: tuple[int, ...]) -> Batched:
    value = held.reshape(a.value, shape=(a.size_, *shape) if a.batched else shape)
    return Batched(a.level, a.size_, value, a.batched)


def _matmul_phrase(i: Any, target: str, x: str, y: str) -> list[str] | None:
    x_, y_ = i.args
    return [f"{x}.dot({y})"] if x_.dtype in BLAS and x_.ndim == y_.ndim == 2 else None


def _native_matmul(xp: Primitives, a: View, b: View) -> View:
    """Return the matrix product of ``a`` and ``b``.

    A product with one row or one column becomes a sum of elementwise products, which can be fused.
    """
    a, b = xp.view(a), xp.view(b)
    dtype = np.result_type(a.dtype, b.dtype)
    if dtype.kind != "f" or not a.ndim or not b.ndim:
        raise NotNative(f"a matrix product of {dtype} has no native form")
    a, b = xp.cast(a, dtype), xp.cast(b, dtype)
    row, column = a.ndim == 1, b.ndim == 1
    a = xp.graph.reshape(a, (1, *a.shape)) if row else a
    b = xp.graph.reshape(b, (*b.shape, 1)) if column else b
    if a.shape[-1] == 0:
        raise NotNative("an empty product has no native form")
    if a.shape[-1] == 1:
        y = a * b
    elif b.shape[-1] == 1 and a.strides[-1] > a.strides[-2] > 0:  # columns of a in memory: sum whole rows
        y = xp.matrix_transpose(xp.sum(xp.matrix_transpose(a) * b, axis=(-2,), keepdims=True))
    elif b.shape[-1] == 1:
        y = xp.sum(a * xp.matrix_transpose(b), axis=(-1,), keepdims=True)
    elif a.shape[-2] == 1 and a.shape[-1] <= 64:
        y = xp.sum(xp.matrix_transpose(a) * b, axis=(-2,), keepdims=True)
    else:
        y = xp.graph.matmul(a, b)
    return xp.graph.reshape(y, (*y.shape[:-2], *y.shape[-2:][row : 2 - column]))


def _native_cross(xp: Primitives, x: View, y: View, axis: int) -> View:
    rest = (slice(None),) * (-axis - 1)
    (x0, x1, x2), (y0, y1, y2) = ([a[(..., slice(i, i + 1), *rest)] for i in range(3)] for a in (x, y))
    return xp.concat(x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0, axis=axis)


define("matmul", _matmul_arrays, _matmul_dx, _matmul_dy, saves="xy", reads=("y", "x"), kind="bilinear",
       shape=_matmul_shape, ufunc=np.matmul, batch=_matmul_batch, method=("matmul", "__matmul__", "__rmatmul__"), lower=_native_matmul, phrase=_matmul_phrase, memory="new", sparsity="contract", doc="The matrix product.")  # fmt: skip
# a · (b × c) = b · (c × a) = c · (a × b), so each rule is a cross product, too
define("cross", in_float32(lambda x, y, axis: np.cross(x, y, axis=axis)),
       lambda xp, g, z, x, y, axis: xp.cross(y, g, axis=axis),
       lambda xp, g, z, x, y, axis: xp.cross(g, x, axis=axis), saves="xy", kind="bilinear",
       params=("axis",), batch="elementwise", lower=_native_cross, sparsity="axis", doc="The cross product of vectors of length 3.")  # fmt: skip

_matmul = rec.matmul


@mismatch_doc
@_products_doc
def matmul(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Return the matrix product, with NumPy's rules for the shapes.

    Parameters
    ----------
    x : array_like
        The first factor; its last axis is summed over.
    y : array_like
        The second factor; the sum is over its second-last axis, or over its only axis.

    >>> ad.matmul(ad.ones((2, 3)), ad.ones(3))
    tensor([3., 3.], dtype=float64)
    """
    try:
        try:
            return _matmul(x, y)
        except (ShapeError, AttributeError):  # inside transforms, a Python number has no shape
            _explain_matmul(asarray(x), asarray(y))
            raise
    except Exception as error:
        hide(error)
        raise


def _explain_matmul(x: Tensor, y: Tensor) -> None:
    if not x.ndim or not y.ndim:
        raise ShapeError(
            f"matmul: both tensors must have at least one axis, but have shapes {x.shape} and {y.shape}.  "
            "Use x * y."
        ) from None
    inner, axis = x.shape[-1], 0 if y.ndim == 1 else -2
    if inner != y.shape[axis]:
        raise ShapeError(
            f"matmul: shapes {x.shape} and {y.shape} do not match: the last axis of the first tensor has "
            f"length {inner}, but axis {axis} of the second has length {y.shape[axis]}.\n"
            "  The lengths must be equal: transpose one of the tensors, or check the layer's sizes."
        ) from None
    broadcast_shapes("matmul (leading axes)", x.shape[:-2], y.shape[:-2])


# Sums of products over axes ---------------------------------------------------------------------


def contract(op: str, x: Tensor, y: Tensor, x_axes: Sequence[int], y_axes: Sequence[int]) -> Tensor:
    """Return the sum of the products of x and y over pairs of axes.

    Pair i is axis ``x_axes[i]`` of x and axis ``y_axes[i]`` of y.  The axes of the result are the other axes
    of x, then those of y.
    """
    for a, b in zip(x_axes, y_axes, strict=True):
        if x.shape[a] != y.shape[b]:
            raise ShapeError(
                f"{op}: shapes {x.shape} and {y.shape} do not match: axis {a} of the first tensor has length "
                f"{x.shape[a]}, but axis {b} of the second has length {y.shape[b]}."
            )
    left = [chr(0x100 + i) for i in range(x.ndim)]
    right = [chr(0x200 + i) for i in range(y.ndim)]
    for a, b in zip(x_axes, y_axes, strict=True):
        right[b] = left[a]
    output = [label for label in (*left, *right) if (label in left) != (label in right)]
    labels = ("".join(labels) for labels in (left, right, output))
    return rec.einsum(x, y, **dict(zip(("left", "right", "output"), labels, strict=True)), extra=())


@_products_doc
def tensordot(x: ArrayLike, y: ArrayLike, axes: Any = 2) -> Tensor:
    """Return the sums of the products of two tensors over pairs of axes.

    Parameters
    ----------
    axes : int or pair of sequences of int, optional
        How many of the last axes of ``x`` and the first axes of ``y`` to sum over, or the axes of
        each.

    Returns
    -------
    Tensor
        The sums; the other axes of ``x`` come first, then those of ``y``.

    Raises
    ------
    ShapeError
        If the lengths of the axes differ.

    >>> ad.tensordot(ad.ones((2, 3, 4)), ad.ones((4, 3, 5)), axes=((1, 2), (1, 0))).shape
    (2, 5)
    """
    x, y = asarray(x), asarray(y)
    axes = listed(axes)
    if isinstance(axes, (tuple, list)):
        if len(axes) != 2:
            raise ArgumentError(f"tensordot: axes must be a number or two lists of axes, but got {axes!r}.")
        x_axes, y_axes = (
            [
                canonical_axis("tensordot", a, t.ndim)
                for a in (own if isinstance(own, (tuple, list)) else (own,))
            ]
            for own, t in zip(axes, (x, y), strict=True)
        )
        if len(x_axes) != len(y_axes):
            raise ArgumentError(
                f"tensordot: axes must list equally many axes of both tensors, but {axes!r} lists "
                f"{len(x_axes)} of the first and {len(y_axes)} of the second."
            )
        if len(set(x_axes)) != len(x_axes) or len(set(y_axes)) != len(y_axes):
            raise ShapeError(f"tensordot: axes {axes!r} names the same axis twice.")
    else:
        n = operator.index(axes)
        if not 0 <= n <= min(x.ndim, y.ndim):
            raise ArgumentError(
                f"tensordot: axes must be from 0 to {min(x.ndim, y.ndim)} for shapes {x.shape} and "
                f"{y.shape}, but is {n}."
            )
        x_axes, y_axes = list(range(x.ndim - n, x.ndim)), list(range(n))
    return contract("tensordot", x, y, x_axes, y_axes)


@_products_doc
def dot(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Return NumPy's dot product.

    It sums over the last axis of ``x`` and the second-last axis of ``y`` (the only axis, if ``y`` is a
    vector).

    Raises
    ------
    ShapeError
        If the lengths of the axes differ.

    >>> ad.dot([1.0, 2.0], [3.0, 4.0])
    tensor(11., dtype=float64)
    """
    x, y = asarray(x), asarray(y)
    if not x.ndim or not y.ndim:
        return rec.multiply(x, y)
    if (y.ndim == 1 or (x.ndim <= 2 and y.ndim == 2)) and x.shape[-1] == y.shape[0]:
        return _matmul(x, y)
    return contract("dot", x, y, (-1,), (-1 if y.ndim == 1 else -2,))


@_products_doc
def inner(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Sum products over the last axes.

    Returns
    -------
    Tensor
        The sums; if a factor is 0-d, the elementwise product.

    Raises
    ------
    ShapeError
        If the lengths of the last axes differ.

    >>> ad.inner([[1.0, 2.0]], [[3.0, 4.0]])
    tensor([[11.]], dtype=float64)
    """
    x, y = asarray(x), asarray(y)
    if not x.ndim or not y.ndim:
        return rec.multiply(x, y)
    return contract("inner", x, y, (-1,), (-1,))


@argument_doc
def outer(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Return the products of all pairs of elements of two flattened tensors.

    Parameters
    ----------
    x : array_like
        The first factor; its elements are the rows.
    y : array_like
        The second factor; its elements are the columns.

    >>> ad.outer([1.0, 2.0], [3.0, 4.0])
    tensor([[3., 4.],
            [6., 8.]], dtype=float64)
    """
    x, y = asarray(x), asarray(y)
    return rec.multiply(rec.reshape(x, shape=(x.size, 1)), rec.reshape(y, shape=(1, y.size)))


def _conjugated(x: Tensor) -> Tensor:
    return rec.conj(x) if x.dtype.kind == "c" else x


@argument_doc
def vdot(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Return the sum of ``conj(x) * y`` over all elements.

    Parameters
    ----------
    x : array_like
        The first factor, which is conjugated.
    y : array_like
        The second factor, with as many elements.

    Raises
    ------
    ShapeError
        If the numbers of elements differ.

    >>> ad.vdot([1.0, 2.0], [3.0, 4.0])
    tensor(11., dtype=float64)
    """
    x, y = asarray(x), asarray(y)
    if x.size != y.size:
        raise ShapeError(
            f"vdot: both tensors must have the same number of elements, but shapes {x.shape} and {y.shape} "
            f"have {x.size} and {y.size}."
        )
    flat = (rec.reshape(t, shape=(t.size,)) for t in (_conjugated(x), y))
    return _matmul(*flat)


@argument_doc
@mismatch_doc
def vecdot(x: ArrayLike, y: ArrayLike, /, *, axis: int = -1) -> Tensor:
    """Return the sums of ``conj(x) * y`` along an axis.

    Parameters
    ----------
    x : array_like
        The first factor, which is conjugated.
    y : array_like
        The second factor; the other axes broadcast.
    axis : int, optional
        The axis.

    >>> ad.vecdot([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    tensor([3., 7.], dtype=float64)
    """
    x, y = asarray(x), asarray(y)
    if not x.ndim or not y.ndim:
        raise ShapeError(
            f"vecdot: both tensors must have at least one axis, but have shapes {x.shape} and {y.shape}.  "
            "Use x * y."
        )
    a, b = canonical_axis("vecdot", axis, x.ndim), canonical_axis("vecdot", axis, y.ndim)
    if axis != -1:
        x, y = rec.moveaxis(x, source=a, destination=-1), rec.moveaxis(y, source=b, destination=-1)
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            f"vecdot: the vectors must have equally many elements, but have {x.shape[-1]} and {y.shape[-1]} "
            f"(axis {axis} of shapes {x.shape} and {y.shape})."
        )
    shape = broadcast_shapes("vecdot (all axes but one)", x.shape[:-1], y.shape[:-1])
    x = _conjugated(x)
    if x.ndim == y.ndim == 1:
        return _matmul(x, y)
    x, y = (rec.broadcast_to(t, shape=(*shape, t.shape[-1])) if t.shape[:-1] != shape else t for t in (x, y))
    labels = "".join(chr(0x100 + i) for i in range(x.ndim))
    return rec.einsum(x, y, left=labels, right=labels, output=labels[:-1], extra=())


@argument_doc
@mismatch_doc
def matvec(x: ArrayLike, y: ArrayLike, /) -> Tensor:
    """Return the products ``x @ y`` of matrices with vectors.

    Parameters
    ----------
    x : array_like
        The matrices, in the last two axes.
    y : array_like
        The vectors, in the last axis; the other axes broadcast.

    >>> ad.matvec(ad.ones((2, 3)), ad.ones((5, 3))).shape
    (5, 2)
    """
    x, y = asarray(x), asarray(y)
    _check_vector("matvec", x, y, y.shape[-1:], x.shape[-1:])
    return matmul(x, y[..., None])[..., 0]


@argument_doc
@mismatch_doc
def vecmat(x: ArrayLike, y: ArrayLike, /) -> Tensor:
    """Return the products ``conj(x) @ y`` of vectors with matrices.

    Parameters
    ----------
    x : array_like
        The vectors, in the last axis.
    y : array_like
        The matrices, in the last two axes; the other axes broadcast.

    >>> ad.vecmat(ad.ones((5, 2)), ad.ones((2, 3))).shape
    (5, 3)
    """
    x, y = asarray(x), asarray(y)
    _check_vector("vecmat", y, x, x.shape[-1:], y.shape[-2:-1])
    return matmul(_conjugated(x)[..., None, :], y)[..., 0, :]


def _check_vector(op: str, matrix: Tensor, vector: Tensor, length: Any, fits: Any) -> None:
    if matrix.ndim < 2 or vector.ndim < 1 or length != fits:
        raise ShapeError(
            f"{op}: a matrix of shape {matrix.shape} cannot be multiplied with a vector of shape "
            f"{vector.shape}: the lengths differ, or there are too few axes."
        )


UFUNCS[np.vecdot] = vecdot
if hasattr(np, "matvec"):  # from NumPy 2.2 on
    UFUNCS.update({np.matvec: matvec, np.vecmat: vecmat})


@argument_doc
def cross(x: ArrayLike, y: ArrayLike, axis: int = -1) -> Tensor:
    """Return the cross product of vectors of length 3.

    Parameters
    ----------
    x : array_like
        The first factor.
    y : array_like
        The second factor; the other axes broadcast.
    axis : int, optional
        The axis of the vectors.

    Raises
    ------
    ShapeError
        If the vectors do not have 3 elements.

    >>> ad.cross([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    tensor([0., 0., 1.], dtype=float64)
    """
    x, y = asarray(x), asarray(y)
    for t in (x, y):
        n = t.shape[canonical_axis("cross", axis, t.ndim)]
        if n != 3:
            raise ShapeError(
                f"cross: vectors must have 3 elements, but axis {axis} of shape {t.shape} has {n}.\n"
                "  For vectors in the plane use x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]."
            )
    broadcast_shapes("cross", x.shape, y.shape)
    places = {canonical_axis("cross", axis, t.ndim) for t in (x, y)}
    if len(places) > 1:
        raise ShapeError(
            f"cross: axis {axis} of shape {x.shape} and axis {axis} of shape {y.shape} are different axes "
            "after broadcasting.  Pass a negative axis, counted from the end."
        )
    return rec.cross(x, y, axis=places.pop())
