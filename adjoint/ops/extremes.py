"""Largest and smallest elements over axes, and their positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.infer import reduction
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.native import NotNative, Primitives, View
from adjoint.core.shapes import Shape, canonical_axes, canonical_axis
from adjoint.core.tensor import Tensor
from adjoint.errors import ShapeError
from adjoint.ops.half import is_half
from adjoint.ops.reduce import kept, reduced_count
from adjoint.ops.shared_docs import extreme_doc
from adjoint.typing import ArrayLike, Axis

__all__ = ["argmax", "argmin", "max", "min", "ptp"]

_places_doc = extreme_doc.extended("""
    Parameters
    ----------
    axis : int, optional
        The axis to search; by default the index is into the flattened tensor.
    keepdims : bool, optional
        Whether to keep the searched axis with length 1.

    Returns
    -------
    Tensor
        The index, which has no gradient.
    """)

_EXTREME = reduction(lambda dtype: dtype, empty=False)
_WHERE = reduction(lambda _: np.dtype(np.intp), empty=False)
_WHY = "it is piecewise constant"


def _extreme_rule(xp: Namespace, g: Value, y: Value, x: Value, axis: Shape, keepdims: bool) -> Any:
    """Return the gradient of x for a maximum or minimum y: the derivative rule of both ops.

    Elements that equal the extreme share the gradient equally; if there are NaNs, the NaNs share it.
    """
    hit = xp.logical_or(x == kept(xp, y, x, axis, keepdims), x != x)
    ties = xp.sum(hit, axis=axis, keepdims=True)
    ties = xp.astype(ties, dtype=np.dtype(np.float32) if is_half(x) else x.dtype)
    share = kept(xp, g, x, axis, keepdims) / ties
    return xp.where(hit, share, 0)


def _native_extreme(op: str) -> Callable[..., View]:
    """Return the native form of the maximum (``op`` "max") or of the minimum ("min")."""
    return lambda xp, x, axis, keepdims: xp.reduced(op, _some(x, axis), axis, keepdims, x.dtype)


def _some(x: View, axis: Shape) -> View:
    """Return ``x`` if no reduced axis is empty; otherwise raise ``NotNative``."""
    if not reduced_count(x.shape, axis):
        raise NotNative("the maximum or minimum over an empty axis has no native form")
    return x


def _native_place(xp: Primitives, op: str, x: View, axis: int | None, keepdims: bool) -> View:
    """Return the index of the first maximum (``op`` "max") or minimum ("min") along ``axis``.

    If there is a NaN, return the index of the first NaN.
    """
    axes = list(range(x.ndim)) if axis is None else xp.axes(x, axis)
    if len(axes) != 1:
        x = xp.flat(x) if len(axes) == x.ndim else x
        if x.ndim != 1 or keepdims:
            raise NotNative(f"arg{op} over several axes has no native form")
        axes = [0]
    at = axes[0]
    n = _some(x, (at,)).shape[at]
    hit = x == xp.reduced(op, x, at, True, x.dtype)
    if x.dtype.kind == "f":
        hit = xp.logical_or(hit, x != x)
    places = np.arange(n).reshape([-1 if k == at else 1 for k in range(x.ndim)])
    return xp.reduced("min", xp.where(hit, places, n), at, keepdims, np.dtype(np.int64))


define("max", lambda x, axis, keepdims: np.maximum.reduce(x, axis=axis, keepdims=keepdims),
       _extreme_rule, saves="xy", kind="general", shape=_EXTREME, params=("axis", "keepdims"), selects=True, batch="leading", method=True, lower=_native_extreme("max"), sparsity="axis", doc="The maximum over axes.")  # fmt: skip
define("min", lambda x, axis, keepdims: np.minimum.reduce(x, axis=axis, keepdims=keepdims),
       _extreme_rule, saves="xy", kind="general", shape=_EXTREME, params=("axis", "keepdims"), selects=True, batch="leading", method=True, lower=_native_extreme("min"), sparsity="axis", doc="The minimum over axes.")  # fmt: skip
define("argmax", lambda x, axis, keepdims: np.argmax(x, axis=axis, keepdims=keepdims), None, kind="general",
       shape=_WHERE, params=("axis", "keepdims"), reason=_WHY, batch="leading", method=True, lower=lambda xp, x, axis, keepdims: _native_place(xp, "max", x, axis, keepdims), doc="The index of the first maximum.")  # fmt: skip
define("argmin", lambda x, axis, keepdims: np.argmin(x, axis=axis, keepdims=keepdims), None, kind="general",
       shape=_WHERE, params=("axis", "keepdims"), reason=_WHY, batch="leading", method=True, lower=lambda xp, x, axis, keepdims: _native_place(xp, "min", x, axis, keepdims), doc="The index of the first minimum.")  # fmt: skip


def extreme(name: str, x: Any, axis: Any, keepdims: bool) -> Tensor:
    """Return the maximum or minimum of ``x`` (``name`` is "max" or "min"); raise if there are no elements."""
    x = asarray(x)
    axes = canonical_axes(name, axis, x.ndim)
    if reduced_count(x.shape, axes) == 0:
        raise _nothing(name, x, axis)
    return getattr(rec, name)(x, axis=axes, keepdims=bool(keepdims))


def _nothing(op: str, x: Tensor, axis: Any) -> ShapeError:
    along = "" if axis is None else f" along axis {axis}"
    return ShapeError(
        f"{op}: there are no elements to choose from{along} of shape {x.shape}.\n"
        "  Check x.size first, or reduce over an axis that is not empty."
    )


@extreme_doc
def max(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Return the maximum over axes.

    Equal maxima share the gradient equally.  NaN counts as the maximum.

    >>> x = ad.tensor([5.0, 5.0, 1.0], requires_grad=True)
    >>> ad.max(x).backward(); x.grad
    tensor([0.5, 0.5, 0. ], dtype=float64)
    """
    return extreme("max", x, axis, keepdims)


@extreme_doc
def min(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Return the minimum over axes.

    Equal minima share the gradient equally.  NaN counts as the minimum.

    >>> ad.min(ad.tensor([[3.0, 1.0], [2.0, 4.0]]), axis=1)
    tensor([1., 2.], dtype=float64)
    """
    return extreme("min", x, axis, keepdims)


@extreme_doc
def ptp(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Return the range over axes, maximum minus minimum.

    >>> ad.ptp(ad.tensor([3.0, 1.0, 7.0]))
    tensor(6., dtype=float64)
    """
    x = asarray(x)
    return extreme("max", x, axis, keepdims) - extreme("min", x, axis, keepdims)


def _position(name: str, x: Any, axis: Any, keepdims: bool) -> Tensor:
    x = asarray(x)
    if axis is None:
        if not x.size:
            raise _nothing(name, x, axis)
        flat = rec.reshape(x, shape=(x.size,))
        shape = (1,) * x.ndim if keepdims else ()
        return rec.reshape(getattr(rec, name)(flat, axis=-1, keepdims=False), shape=shape)
    where = canonical_axis(name, axis, x.ndim)
    if not x.shape[where]:
        raise _nothing(name, x, axis)
    return getattr(rec, name)(x, axis=where, keepdims=bool(keepdims))


@_places_doc
def argmax(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Return the index of the first maximum.

    >>> ad.argmax(ad.tensor([[1.0, 5.0], [7.0, 2.0]]), axis=1)
    tensor([1, 0], dtype=int64)
    """
    return _position("argmax", x, axis, keepdims)


@_places_doc
def argmin(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Return the index of the first minimum.

    >>> ad.argmin(ad.tensor([[1.0, 5.0], [7.0, 2.0]]))
    tensor(0, dtype=int64)
    """
    return _position("argmin", x, axis, keepdims)
