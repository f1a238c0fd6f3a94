"""Fused ops for networks: several operations in one op, for accuracy or speed.

Forward functions and derivative rules call functions of a namespace ``xp``, so that they run on arrays,
tensors and traced values.  Axes are negative.  ``y *= w`` is used only on values that the same function
created, because it writes into plain arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.define import define
from adjoint.core.infer import Result
from adjoint.core.namespace import Namespace, Value, raw, rec
from adjoint.core.shapes import Shape, canonical_axis
from adjoint.core.tensor import Tensor
from adjoint.errors import DTypeError, ShapeError
from adjoint.ops.activations import real_only
from adjoint.ops.half import in_float32, rounded, widened
from adjoint.ops.products import BLAS, product
from adjoint.ops.shared_docs import argument_doc
from adjoint.typing import Array, ArrayLike

__all__ = ["log_softmax", "softmax"]

# Softmax ---------------------------------------------------------------------------------------


def _softmax(xp: Namespace, x: Value, axis: int) -> Any:
    e = xp.exp(x - xp.max(x, axis=(axis,), keepdims=True))
    return e / xp.sum(e, axis=(axis,), keepdims=True)


def _softmax_rule(xp: Namespace, g: Value, y: Value, x: Value, axis: int) -> Any:
    """Return y (g - Σ g y), the gradient of softmax.

    The Jacobian is symmetric, so forward mode uses the same formula.
    """
    gy = g * y
    return gy - y * xp.sum(gy, axis=(axis,), keepdims=True)


def _log_softmax(xp: Namespace, x: Value, axis: int) -> Any:
    # (x - max) - log Σ, not x - (max + log Σ), which loses digits where x is large
    shifted = x - xp.max(x, axis=(axis,), keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=(axis,), keepdims=True))


define("softmax", in_float32(_softmax, raw), _softmax_rule, jvp=_softmax_rule, saves="y", kind="general", params=("axis",),
       fused=_softmax, batch="leading",
       method=True, reference="formula", kernel="all", doc="exp(x) / Σ exp(x) along an axis.")  # fmt: skip
define("log_softmax", in_float32(_log_softmax, raw),
       lambda xp, g, y, x, axis: g - xp.exp(y) * xp.sum(g, axis=(axis,), keepdims=True),
       jvp=lambda xp, t, y, x, axis: t - xp.sum(xp.exp(y) * t, axis=(axis,), keepdims=True),
       saves="y", kind="general", params=("axis",), fused=_log_softmax, batch="leading", method=True, reference="formula", kernel="all", doc="log softmax(x) along an axis.")  # fmt: skip


# The cross entropy with class indices: -log softmax(x)[t] along the last axis ------------------


def _chosen(t: Array, x: Array) -> Any:
    """Return a mask with the shape of ``x`` that is True in column ``t[i]`` of each row i."""
    return t[..., None] == np.arange(x.shape[-1])


def _softmax_nll(xp: Namespace, x: Value, t: Value) -> Any:
    shifted = x - xp.max(x, axis=(-1,), keepdims=True)
    total = xp.sum(xp.exp(shifted), axis=(-1,), keepdims=False)
    return xp.log(total) - xp.sum(xp.where(_chosen(t, x), shifted, 0), axis=(-1,), keepdims=False)


def _softmax_nll_rule(xp: Namespace, g: Value, y: Value, x: Value, t: Value) -> Any:
    g = g[..., None]
    return g * xp.softmax(x, axis=-1) - xp.where(_chosen(t, x), g, 0)


define("softmax_nll", in_float32(_softmax_nll, raw), _softmax_nll_rule, None, saves="xt", kind="general",
       fused=_softmax_nll, batch="leading",
       reference="formula", kernel="all", doc="The cross entropy of softmax(x) along the last axis and the class indices t.")  # fmt: skip


# Linear layer ----------------------------------------------------------------------------------


def _flat(xp: Namespace, x: Value) -> Any:
    """Return ``x`` as a matrix: all axes but the last are merged.

    One matrix product can then replace a product for each matrix of a stack.
    """
    return xp.reshape(x, shape=(math.prod(x.shape[:-1]), x.shape[-1])) if x.ndim > 2 else x


def _times(xp: Namespace, x: Value, w: Value) -> Any:
    """Return the product x w of an array with any number of axes and a matrix, as one matrix product."""
    if x.ndim <= 2:
        return xp.matmul(x, w)
    return xp.reshape(xp.matmul(_flat(xp, x), w), shape=(*x.shape[:-1], w.shape[-1]))


def _linear(xp: Namespace, x: Value, w: Value, b: Value) -> Any:
    y = _times(xp, x, xp.matrix_transpose(w))
    if type(b) is int:  # the number 0 means no bias
        return y
    if b.dtype != y.dtype:
        return y + b
    y += b
    return y


def _linear_arrays(x: Any, w: Any, b: Any) -> Any:
    y = product(x, w.mT) if x.ndim <= 2 else product(_flat(raw, x), w.mT).reshape(*x.shape[:-1], w.shape[0])
    if type(b) is int:
        return y if y.dtype is x.dtype else rounded(y, x, w)
    if y.size == b.size:  # a single row: broadcasting would take three times as long
        b = b.reshape(y.shape)
    return np.add(y, b, y) if b.dtype is y.dtype else rounded(y + b, x, w, b)


def _linear_dw(xp: Namespace, g: Value, y: Value, x: Value, w: Value, b: Value) -> Any:
    if x.ndim == 1:
        return g[:, None] * x
    if x.ndim > 2:
        g, x = _flat(xp, g), _flat(xp, x)
    return xp.matmul(xp.matrix_transpose(g), x)


def _linear_db(xp: Namespace, g: Value, y: Value, x: Value, w: Value, b: Value) -> Any:
    if g.size == g.shape[-1]:  # one row
        return xp.reshape(g, shape=g.shape[-1:])
    return xp.sum(_flat(xp, g), axis=(-2,), keepdims=False)


def _linear_shape(x: Any, w: Any, b: Any) -> Result | None:
    arrays = [x, w] if type(b) is int else [x, w, b]
    if not x.shape or len(w.shape) != 2 or x.shape[-1] != w.shape[1]:
        return None
    if len(arrays) > 2 and b.shape != w.shape[:1]:
        return None
    return (((*x.shape[:-1], w.shape[0]), np.result_type(*(a.dtype for a in arrays))),)


def _linear_phrase(i: Any, target: str, x: str, w: str, b: str) -> list[str] | None:
    dtypes = {a.dtype for a in i.args}
    if len(dtypes) != 1 or dtypes.pop() not in BLAS or i.args[0].ndim != 2 or i.args[1].ndim != 2:
        return None
    (out,) = i.outs
    bias = f"{b}.reshape({out.shape!r})" if out.size == i.args[2].size else b
    return [f"{x}.dot({w}.T)", f"add_into({target}, {bias}, {target})"]


define("linear", _linear_arrays,
       lambda xp, g, y, x, w, b: _times(xp, g, w),
       _linear_dw,
       _linear_db,
       saves="xw", reads=("w", "x", ""), kind="general", fused=_linear, shape=_linear_shape,
       jvp=lambda xp, t, y, x, w, b: _linear_jvp(xp, t, x, w),
       reference="formula", phrase=_linear_phrase, memory="new", doc="x wᵀ + b, a linear layer of a network.")  # fmt: skip


def _linear_jvp(xp: Namespace, t: Value, x: Value, w: Value) -> Any:
    parts = [_times(xp, t[0], xp.matrix_transpose(w))] if t[0] is not None else []
    parts += [_times(xp, x, xp.matrix_transpose(t[1]))] if t[1] is not None else []
    parts += [t[2]] if t[2] is not None else []
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


# The squared error -----------------------------------------------------------------------------


def _mse(xp: Namespace, x: Value, t: Value) -> Any:
    return xp.mean(xp.square(x - t), axis=tuple(range(-x.ndim, 0)), keepdims=False)


def _mse_arrays(x: Array, t: Array) -> Any:
    away = x - t
    if away.dtype.itemsize == 2:
        return in_float32(_mse, raw)(x, t)
    if not away.size:
        return _mse(raw, x, t)
    return np.add.reduce(away * away, None) / away.size


def _mse_dx(xp: Namespace, g: Value, y: Value, x: Value, t: Value) -> Any:
    return widened(xp, g) * (2 / x.size if x.size else math.nan) * (x - t)


def _mse_phrase(i: Any, target: str, x: str, y: str) -> list[str] | None:
    a, b = i.args
    if a.dtype not in BLAS or a.dtype != b.dtype or a.shape != b.shape or not a.size:
        return None
    return [f"{x} - {y}", f"total({target} * {target}, None) / {a.size}"]


define("mse", _mse_arrays, _mse_dx, lambda xp, g, y, x, t: -_mse_dx(xp, g, y, x, t),
       saves="xt", kind="general", fused=_mse, reference="formula", phrase=_mse_phrase, memory="new", doc="The mean of the squared differences.")  # fmt: skip


# Norms without weight and bias, which are applied by * and + ----------------------------------


def _over(g: Array, axis: Shape) -> int:
    n = 1
    for a in axis:
        n *= g.shape[a]
    return n


def _mean_product(xp: Namespace, a: Value, b: Value, axis: Shape) -> Any:
    """Return the mean of a · b over ``axis``.

    Over the last axis it is computed as a matrix product, which reads the arrays once.
    """
    if axis != (-1,) or a.dtype.itemsize == 2:
        return xp.mean(a * b, axis=axis, keepdims=True)
    return xp.matmul(a[..., None, :], b[..., None])[..., 0] / a.shape[-1]


def _standardize(xp: Namespace, x: Value, axis: Shape, eps: float) -> Any:
    mean = xp.mean(real_only(x), axis=axis, keepdims=True)
    away = x - mean
    var = _mean_product(xp, away, away, axis)
    return away / xp.sqrt(var + eps), mean, var


def _standardize_rule(
    xp: Namespace, g: Value, out: Value, x: Value, wanted: Sequence[bool], axis: Shape, eps: float
) -> list[Any]:
    """Return the gradient of x for the op ``standardize``, in a list.

    The outputs of the op are z = (x - mean) / σ with σ = √(var + eps), the mean and the variance.  The
    gradient g of z contributes (g - mean(g) - z mean(g z)) / σ.
    """
    gz, gmean, gvar = g
    z, _, var = out
    sigma = xp.sqrt(var + eps)
    total = None
    if gz is not None:
        inner = _mean_product(xp, gz, z, axis)
        total = (gz - xp.mean(gz, axis=axis, keepdims=True) - z * inner) / sigma
    if gmean is not None:
        part = xp.broadcast_to(gmean / _over(x, axis), shape=x.shape)
        total = part if total is None else total + part
    if gvar is not None:
        part = (2.0 / _over(x, axis)) * gvar * sigma * z
        total = part if total is None else total + part
    return [total]


def _rms_standardize(xp: Namespace, x: Value, axis: Shape, eps: float) -> Any:
    square = _mean_product(xp, real_only(x), x, axis)
    return x / xp.sqrt(square + eps), square


def _rms_standardize_rule(
    xp: Namespace, g: Value, out: Value, x: Value, wanted: Sequence[bool], axis: Shape, eps: float
) -> list[Any]:
    gz, gsquare = g
    z, square = out
    sigma = xp.sqrt(square + eps)
    total = None
    if gz is not None:
        total = (gz - z * _mean_product(xp, gz, z, axis)) / sigma
    if gsquare is not None:
        part = (2.0 / _over(x, axis)) * gsquare * sigma * z
        total = part if total is None else total + part
    return [total]


define("standardize", in_float32(_standardize, raw), joint=_standardize_rule, arity=1, outputs=3, saves=("out",), kind="general",
       params=("axis", "eps"), fused=_standardize, batch="leading",
       reference="formula", kernel="all", doc="(x - mean) / √(var + eps) over axes; the mean; the variance.")  # fmt: skip
define("rms_standardize", in_float32(_rms_standardize, raw), joint=_rms_standardize_rule, arity=1, outputs=2, saves=("out",),
       kind="general", params=("axis", "eps"), fused=_rms_standardize, batch="leading",
       reference="formula", kernel="all", doc="x / √(mean x² + eps) over axes; the mean square.")  # fmt: skip


# Layer norm over the last axis; the number 1 means no weight, 0 means no bias ---------------------
#
# With z = (x - mean) / σ it is z w + b.  Only x is saved: computing z again is cheap.


def _normal(xp: Namespace, x: Value, eps: float) -> tuple[Any, Any]:
    """Return the standardized values z = (x - mean) / σ and 1 / σ, with σ = √(var + eps), over the last axis."""
    z = x - xp.mean(real_only(x), axis=(-1,), keepdims=True)
    scale = 1 / xp.sqrt(_mean_product(xp, z, z, (-1,)) + eps)
    z *= scale
    return z, scale


def _layer_norm(xp: Namespace, x: Value, w: Value, b: Value, eps: float) -> Any:
    z, _ = _normal(xp, x, eps)
    if type(w) is not int:
        z *= w
    if type(b) is not int:
        z += b
    return z


def _layer_norm_rule(
    xp: Namespace, g: Value, y: Value, x: Value, w: Value, b: Value, wanted: Sequence[bool], eps: float
) -> list[Any]:
    """Return the gradients of x, the weight w and the bias b of a layer norm; those not ``wanted`` are None.

    The gradient of x is (h - mean(h) - z mean(h z)) / σ, where h = g w and z are the standardized values.
    Both means are computed as matrix products with w.
    """
    z, scale = _normal(xp, x, eps)
    gz = g * z
    dx = None
    if wanted[0] and type(w) is int:
        dx = g - xp.mean(g, axis=(-1,), keepdims=True)
        dx -= z * xp.mean(gz, axis=(-1,), keepdims=True)
        dx *= scale
    elif wanted[0]:
        n = w.shape[0]
        dx = g * w
        dx -= xp.matmul(g, w)[..., None] / n
        dx -= z * (xp.matmul(gz, w)[..., None] / n)
        dx *= scale
    return [dx, gz, g]


define("layer_norm", in_float32(_layer_norm, raw), joint=_layer_norm_rule, arity=3, saves="xw", kind="general", params=("eps",),
       fused=_layer_norm,
       reference="formula", kernel="all", doc="(x - mean) / √(var + eps) · w + b over the last axis.")  # fmt: skip


# LSTM ------------------------------------------------------------------------------------------


def _lstm_parts(xp: Namespace, gates: Value) -> tuple[Any, Any, Any, Any]:
    n = gates.shape[-1] // 4
    s = xp.sigmoid(gates)  # of all four gates, though one is not needed: one call is faster than three
    return s[..., :n], s[..., n : 2 * n], xp.tanh(gates[..., 2 * n : 3 * n]), s[..., 3 * n :]


def _lstm_cell(xp: Namespace, gates: Value, c: Value) -> Any:
    i, f, u, o = _lstm_parts(xp, real_only(gates))
    new = f * c + i * u
    return o * xp.tanh(new), new


def _lstm_cell_rule(
    xp: Namespace, g: Value, out: Value, gates: Value, c: Value, wanted: Sequence[bool]
) -> list[Any]:
    gh, gc = g
    i, f, u, o = _lstm_parts(xp, gates)
    t = xp.tanh(out[1])
    if gh is not None:
        through = gh * o * (1 - t * t)
        gc = through if gc is None else gc + through
    dc = gc * f if wanted[1] else None
    if not wanted[0]:
        return [None, dc]
    do = gh * t * o * (1 - o) if gh is not None else xp.zeros_like(gc)
    parts = (gc * u * i * (1 - i), gc * c * f * (1 - f), gc * i * (1 - u * u), do)
    return [xp.concat(*parts, axis=-1), dc]


define("lstm_cell", in_float32(_lstm_cell, raw), joint=_lstm_cell_rule, arity=2, outputs=2, saves=("gates", "c", "out"),
       kind="general", fused=_lstm_cell, batch="leading",
       reference="formula", kernel="all", doc="One step of an LSTM, given its gates (input, forget, cell, output) and its cell: the output and the new cell.")  # fmt: skip


# Public functions ------------------------------------------------------------------------------


def _along(op: str, x: Any, axis: Any) -> tuple[Tensor, int]:
    x = asarray(x)
    if x.dtype.kind == "c":
        raise DTypeError(f"{op}: x must be real, but has dtype {x.dtype}.")
    if x.dtype.kind in "iub":
        x = rec.astype(x, dtype=np.dtype(float))
    where = canonical_axis(op, axis, x.ndim)
    if not x.shape[where]:
        raise ShapeError(f"{op}: axis {axis} must not be empty, but x has shape {x.shape}.")
    return x, where


@argument_doc
def softmax(x: ArrayLike, axis: int = -1) -> Tensor:
    """Return ``exp(x) / Σ exp(x)`` along an axis, without overflow.

    Raises
    ------
    DTypeError
        If ``x`` is complex.
    ShapeError
        If the axis has no elements.

    >>> ad.softmax(ad.tensor([1000.0, 1000.0]))
    tensor([0.5, 0.5], dtype=float64)
    """
    x, where = _along("softmax", x, axis)
    return rec.softmax(x, axis=where)


@argument_doc
def log_softmax(x: ArrayLike, axis: int = -1) -> Tensor:
    """Return the logarithm of ``softmax``; it is finite also where the softmax underflows.

    Raises
    ------
    DTypeError
        If ``x`` is complex.
    ShapeError
        If the axis has no elements.

    >>> ad.log_softmax(ad.tensor([0.0, -1000.0]))
    tensor([    0., -1000.], dtype=float64)
    """
    x, where = _along("log_softmax", x, axis)
    return rec.log_softmax(x, axis=where)
