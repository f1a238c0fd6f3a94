"""Reductions and scans.  Inside, axes are negative and in a tuple, so a batch axis in front changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.shapes import Shape, canonical_axes, canonical_axis
from adjoint.core.tensor import Tensor, asarray
from adjoint.errors import ShapeError

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "cumprod",
    "cumsum",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
]

_HALF = ("float16", "bfloat16")
_add_reduce: Any = np.add.reduce  # np.sum without its Python layer


def _wide(x: Any) -> Any:
    """Half precision is summed in float32."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.name in _HALF else x


def _like(y: Any, x: Any) -> Any:
    return y if y.dtype == x.dtype or x.dtype.name not in _HALF else y.astype(x.dtype)


def _count(shape: Shape, axis: Shape) -> int:
    total = 1
    for a in axis:
        total *= shape[a]
    return total


def kept(xp: Any, g: Any, x: Any, axis: Shape, keepdims: bool) -> Any:
    """Put the reduced axes back with length 1."""
    if keepdims or not axis:
        return g
    shape = list(x.shape)
    for a in axis:
        shape[a] = 1
    return xp.reshape(g, shape=tuple(shape))


def _sum_forward(x: Any, axis: Shape, keepdims: bool) -> Any:
    return _like(_add_reduce(_wide(x), axis=axis, keepdims=keepdims), x)


def _spread(xp: Any, g: Any, y: Any, x: Any, axis: Shape, keepdims: bool) -> Any:
    return xp.broadcast_to(kept(xp, g, x, axis, keepdims), shape=x.shape)


def _mean_rule(xp: Any, g: Any, y: Any, x: Any, axis: Shape, keepdims: bool) -> Any:
    return _spread(xp, g / _count(x.shape, axis), y, x, axis, keepdims)


def _extreme_rule(xp: Any, g: Any, y: Any, x: Any, axis: Shape, keepdims: bool) -> Any:
    """Elements that tie for the extreme share the gradient equally."""
    hit = x == kept(xp, y, x, axis, keepdims)
    share = kept(xp, g, x, axis, keepdims) / xp.sum(hit, axis=axis, keepdims=True)
    return xp.where(hit, share, 0)


def _var_rule(xp: Any, g: Any, y: Any, x: Any, axis: Shape, correction: float, keepdims: bool) -> Any:
    spread = x - xp.mean(x, axis=axis, keepdims=True)
    return kept(xp, g, x, axis, keepdims) * (2.0 / (_count(x.shape, axis) - correction)) * spread


def _std_rule(xp: Any, g: Any, y: Any, x: Any, axis: Shape, correction: float, keepdims: bool) -> Any:
    """(x - mean) / (n σ); at σ = 0, where σ has a corner, the subgradient 0."""
    sigma = kept(xp, y, x, axis, keepdims)
    scale = kept(xp, g, x, axis, keepdims) / xp.where(sigma == 0, 1, sigma)
    spread = x - xp.mean(x, axis=axis, keepdims=True)
    return scale * (1.0 / (_count(x.shape, axis) - correction)) * spread


def exclusive_product(xp: Any, x: Any, axis: int) -> Any:
    """For each element the product of all others along ``axis``, without dividing.

    A binary tree: up, the products of pairs; down, the product of everything outside each
    node.  Right with zeros, linear work, and made of ops, so right to every order.
    """
    x = xp.moveaxis(x, source=axis, destination=-1)
    levels = []
    while x.shape[-1] > 1:
        n = x.shape[-1]
        if n % 2:
            x = xp.pad(x, widths=((0, 0),) * (len(x.shape) - 1) + ((0, 1),), value=1)
        left, right = x[..., 0::2], x[..., 1::2]
        levels.append((left, right, n))
        x = left * right
    outside = xp.ones_like(x)
    for left, right, n in reversed(levels):
        both = (outside * right, outside * left)
        pairs = xp.stack(*both, axis=-1)
        outside = xp.reshape(pairs, shape=(*pairs.shape[:-2], 2 * pairs.shape[-2]))[..., :n]
    return xp.moveaxis(outside, source=-1, destination=axis)


def _prod_rule(xp: Any, g: Any, y: Any, x: Any, axis: Shape, keepdims: bool) -> Any:
    others = exclusive_product(xp, x, axis[0]) if axis else xp.ones_like(x)
    return kept(xp, g, x, axis, keepdims) * others


def _cumprod_rule(xp: Any, g: Any, y: Any, x: Any, axis: int) -> Any:
    """dx_i = (Π_{k<i} x_k) S_i with S_i = g_i + x_{i+1} S_{i+1}, solved by doubling."""
    n = x.shape[axis]
    if n < 2:
        return g
    x, g = xp.moveaxis(x, source=axis, destination=-1), xp.moveaxis(g, source=axis, destination=-1)
    front = ((0, 0),) * (len(x.shape) - 1)
    ahead = xp.pad(x[..., 1:], widths=(*front, (0, 1)), value=0)
    step = 1
    while step < n:
        later = xp.pad(g[..., step:], widths=(*front, (0, step)), value=0)
        g = g + ahead * later
        ahead = ahead * xp.pad(ahead[..., step:], widths=(*front, (0, step)), value=0)
        step *= 2
    before = xp.cumprod(xp.pad(x[..., :-1], widths=(*front, (1, 0)), value=1), axis=-1)
    return xp.moveaxis(before * g, source=-1, destination=axis)


define("sum", _sum_forward, _spread, kind="linear", params=("axis", "keepdims"),
       domain={"axis": (-1,), "keepdims": False}, doc="The sum over axes.")  # fmt: skip
define("mean", lambda x, axis, keepdims: _like(np.mean(_wide(x), axis=axis, keepdims=keepdims), x),
       _mean_rule, kind="linear", params=("axis", "keepdims"), doc="The mean over axes.")  # fmt: skip
define("prod", lambda x, axis, keepdims: np.multiply.reduce(x, axis=axis, keepdims=keepdims),
       _prod_rule, saves="x", kind="general", params=("axis", "keepdims"), doc="The product over one axis.")  # fmt: skip
define("max", lambda x, axis, keepdims: np.maximum.reduce(x, axis=axis, keepdims=keepdims),
       _extreme_rule, saves="xy", kind="general", params=("axis", "keepdims"), doc="The maximum over axes.")  # fmt: skip
define("min", lambda x, axis, keepdims: np.minimum.reduce(x, axis=axis, keepdims=keepdims),
       _extreme_rule, saves="xy", kind="general", params=("axis", "keepdims"), doc="The minimum over axes.")  # fmt: skip
define("var", lambda x, axis, correction, keepdims: np.var(x, axis=axis, ddof=correction, keepdims=keepdims),
       _var_rule, saves="x", kind="general", params=("axis", "correction", "keepdims"), doc="The variance over axes.")  # fmt: skip
define("std", lambda x, axis, correction, keepdims: np.std(x, axis=axis, ddof=correction, keepdims=keepdims),
       _std_rule, saves="xy", kind="general", params=("axis", "correction", "keepdims"),
       doc="The standard deviation over axes.")  # fmt: skip
define("cumsum", lambda x, axis: np.cumsum(x, axis=axis),
       lambda xp, g, y, x, axis: xp.flip(xp.cumsum(xp.flip(g, axis=(axis,)), axis=axis), axis=(axis,)),
       kind="linear", params=("axis",), doc="Running sums along an axis.")  # fmt: skip
define("cumprod", lambda x, axis: np.cumprod(x, axis=axis), _cumprod_rule, saves="x", kind="general",
       params=("axis",), doc="Running products along an axis.")  # fmt: skip

_WHY = "it is piecewise constant"
define("any", lambda x, axis, keepdims: np.any(x, axis=axis, keepdims=keepdims), None, kind="general",
       params=("axis", "keepdims"), reason=_WHY, doc="Whether any element is true.")  # fmt: skip
define("all", lambda x, axis, keepdims: np.all(x, axis=axis, keepdims=keepdims), None, kind="general",
       params=("axis", "keepdims"), reason=_WHY, doc="Whether all elements are true.")  # fmt: skip
define("argmax", lambda x, axis, keepdims: np.argmax(x, axis=axis, keepdims=keepdims), None, kind="general",
       params=("axis", "keepdims"), reason=_WHY, doc="Where the maximum is.")  # fmt: skip
define("argmin", lambda x, axis, keepdims: np.argmin(x, axis=axis, keepdims=keepdims), None, kind="general",
       params=("axis", "keepdims"), reason=_WHY, doc="Where the minimum is.")  # fmt: skip


def sum(x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """Add the elements over ``axis``: None for all, a number, or a tuple.

    >>> import adjoint as ad
    >>> ad.sum(ad.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    tensor([4., 6.], dtype=float64)
    """
    x = asarray(x, dtype=dtype)
    return rec.sum(x, axis=canonical_axes("sum", axis, x.ndim), keepdims=bool(keepdims))


def mean(x: Any, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Tensor:
    """Average the elements over ``axis``; the mean of none is NaN."""
    x = asarray(x, dtype=dtype)
    if x.dtype.kind in "iub":
        x = x.astype(np.float64)
    return rec.mean(x, axis=canonical_axes("mean", axis, x.ndim), keepdims=bool(keepdims))


def prod(x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """Multiply the elements over ``axis``; derivatives are right with zeros, to every order."""
    x = asarray(x, dtype=dtype)
    axes = canonical_axes("prod", axis, x.ndim)
    if len(axes) == 1:
        return rec.prod(x, axis=axes, keepdims=bool(keepdims))
    # several axes: bring them together at the end, as one
    rest = tuple(a for a in range(-x.ndim, 0) if a not in axes)
    flat = rec.permute_dims(x, axes=rest + axes) if axes else x
    lengths = tuple(x.shape[a] for a in rest)
    flat = rec.reshape(flat, shape=(*lengths, _count(x.shape, axes)))
    out: Tensor = rec.prod(flat, axis=(-1,), keepdims=False)
    if keepdims:
        out = rec.reshape(out, shape=tuple(1 if a in axes else x.shape[a] for a in range(-x.ndim, 0)))
    return out


def _extreme(name: str, x: Any, axis: Any, keepdims: bool) -> Tensor:
    x = asarray(x)
    axes = canonical_axes(name, axis, x.ndim)
    if _count(x.shape, axes) == 0:
        raise ShapeError(f"{name}: no elements to choose from along axis {axis} of shape {x.shape}.")
    return getattr(rec, name)(x, axis=axes, keepdims=bool(keepdims))


def max(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the largest element over ``axis``; elements that tie share the gradient equally."""
    return _extreme("max", x, axis, keepdims)


def min(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the smallest element over ``axis``; elements that tie share the gradient equally."""
    return _extreme("min", x, axis, keepdims)


def _moment(name: str, x: Any, axis: Any, correction: float, keepdims: bool) -> Tensor:
    x = asarray(x)
    if x.dtype.kind in "iub":
        x = x.astype(np.float64)
    axes = canonical_axes(name, axis, x.ndim)
    return getattr(rec, name)(x, axis=axes, correction=correction, keepdims=bool(keepdims))


def var(
    x: Any, axis: Any = None, correction: float = 0, keepdims: bool = False, *, ddof: float | None = None
) -> Tensor:
    """Return the variance over ``axis``; the divisor is n - correction (NumPy's ``ddof``)."""
    return _moment("var", x, axis, correction if ddof is None else ddof, keepdims)


def std(
    x: Any, axis: Any = None, correction: float = 0, keepdims: bool = False, *, ddof: float | None = None
) -> Tensor:
    """Return the standard deviation over ``axis``; where it is 0 its gradient is 0."""
    return _moment("std", x, axis, correction if ddof is None else ddof, keepdims)


def _scan(name: str, x: Any, axis: Any) -> Tensor:
    x = asarray(x)
    if axis is None:
        x = rec.reshape(x, shape=(x.size,))
        axis = 0
    return getattr(rec, name)(x, axis=canonical_axis(name, axis, x.ndim))


def cumsum(x: Any, axis: Any = None) -> Tensor:
    """Return the running sums along ``axis``; of the flattened tensor if it is None."""
    return _scan("cumsum", x, axis)


def cumprod(x: Any, axis: Any = None) -> Tensor:
    """Return the running products along ``axis``; derivatives are right with zeros."""
    return _scan("cumprod", x, axis)


def any(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Tell whether any element over ``axis`` is true."""
    x = asarray(x)
    return rec.any(x, axis=canonical_axes("any", axis, x.ndim), keepdims=bool(keepdims))


def all(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Tell whether all elements over ``axis`` are true."""
    x = asarray(x)
    return rec.all(x, axis=canonical_axes("all", axis, x.ndim), keepdims=bool(keepdims))


def _position(name: str, x: Any, axis: Any, keepdims: bool) -> Tensor:
    x = asarray(x)
    if axis is None:
        shape = (1,) * x.ndim if keepdims else ()
        flat = rec.reshape(x, shape=(x.size,))
        if not x.size:
            raise ShapeError(f"{name}: no elements to choose from in shape {x.shape}.")
        return rec.reshape(getattr(rec, name)(flat, axis=-1, keepdims=False), shape=shape)
    where = canonical_axis(name, axis, x.ndim)
    if not x.shape[where]:
        raise ShapeError(f"{name}: no elements to choose from along axis {axis} of shape {x.shape}.")
    return getattr(rec, name)(x, axis=where, keepdims=bool(keepdims))


def argmax(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the index of the first largest element; no gradient flows."""
    return _position("argmax", x, axis, keepdims)


def argmin(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the index of the first smallest element; no gradient flows."""
    return _position("argmin", x, axis, keepdims)
