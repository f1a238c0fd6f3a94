"""Attention, softmax(q kᵀ · scale, masked) v, over the last two axes.

The op ``attention_weights`` returns the softmax: one weight for each pair of query and key.  The op
``attention`` returns the product of these weights with v.  It does not save the weights.  Its derivative rule
computes them again from its second output: for each row, the logarithm of the sum of exponentials.  All
arguments have the same number of axes and the same dtype.  If the mask is the number 0, there is no mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.core.define import define
from adjoint.core.infer import Result, broadcast
from adjoint.core.namespace import Namespace, Value, raw
from adjoint.core.native import Primitives, View
from adjoint.ops.activations import real_only
from adjoint.ops.half import wide
from adjoint.typing import Array

__all__: list[str] = []


def _scores(xp: Namespace, q: Value, k: Value, m: Value, scale: float, causal: bool) -> Any:
    """Return q kᵀ · scale as a new array, with -inf where ``m`` (the mask) or ``causal`` excludes a key."""
    s = xp.matmul(q * scale, xp.matrix_transpose(k))
    if type(m) is not int:
        s = xp.where(m, s, -math.inf) if m.dtype == bool else s + m
    if not causal:
        return s
    # this is where(past, s, -inf) in a quarter of the time: fmin ignores NaN
    past = np.tri(s.shape[-2], s.shape[-1], dtype=bool)
    return xp.fmin(s, np.where(past, np.nan, -np.inf).astype(s.dtype))


def _exponentials(q: Any, k: Any, m: Any, scale: float, causal: bool) -> tuple[Any, Any, Any, Any]:
    """Return exp(scores - top), the sums of its rows, ``top``, and which rows are masked completely.

    The scores are q kᵀ · scale with the mask ``m`` applied, and ``top`` is the maximum of each row.  The last
    result is None if there is no mask.
    """
    s = _scores(raw, real_only(q), k, m, scale, causal)
    top = np.maximum.reduce(s, axis=-1, keepdims=True)
    dead = None if type(m) is int else top == -math.inf
    if dead is not None:
        top = np.where(dead, 0, top)
    s -= top
    np.exp(s, out=s)
    total = np.matmul(s, _column_of_ones(s))
    if dead is not None:
        total = np.where(dead, 1, total)
    return s, total, top, dead


def _column_of_ones(x: Array) -> Any:
    """Return a column of ones as long as the last axis of ``x``.

    A matrix product with it sums short rows six times faster than ``np.sum``.
    """
    return np.ones((x.shape[-1], 1), x.dtype)


def _attention_weights(q: Array, k: Array, m: Array, scale: float, causal: bool) -> Any:
    if q.dtype.itemsize == 2:
        return _attention_weights(wide(q), wide(k), _wide(m), scale, causal).astype(q.dtype)
    s, total, _, _ = _exponentials(q, k, m, scale, causal)
    s /= total
    return s


def _attention(q: Array, k: Array, v: Array, m: Array, scale: float, causal: bool) -> tuple[Any, Any]:
    if q.dtype.itemsize == 2:
        # the logarithm stays in float32, because its error is the relative error of every weight in backward
        o, log_total = _attention(wide(q), wide(k), wide(v), _wide(m), scale, causal)
        return o.astype(q.dtype), log_total
    s, total, top, dead = _exponentials(q, k, m, scale, causal)
    o = _times(s, v, q)
    o /= total
    top += np.log(total)
    # inf for rows that are masked completely: the derivative rule then computes weights of 0
    return o, top if dead is None else np.where(dead, math.inf, top)


def _wide(a: Any) -> Any:
    return a if type(a) is int else wide(a)


def _as_float32(xp: Namespace, a: Value) -> Any:
    """Return an array of half precision as float32; None, the number 0 and other dtypes unchanged."""
    if a is None or type(a) is int or a.dtype.itemsize != 2:
        return a
    return xp.astype(a, dtype=np.dtype(np.float32))


def _times(p: Array, v: Array, like: Array) -> Any:
    """Return the matrix product p v, with the memory order of ``like``, the queries.

    With this order, the heads can be joined without a copy.
    """
    lead = np.broadcast_shapes(p.shape[:-2], v.shape[:-2])
    return np.matmul(p, v, out=np.empty_like(like, shape=(*lead, p.shape[-2], v.shape[-1]), subok=False))


def _to_scores(
    xp: Namespace, ds: Value, q: Value, k: Value, wanted: Sequence[bool], scale: float
) -> tuple[Any, Any]:
    """Return the gradients of q and k from ``ds``, the gradient of the scores q kᵀ · scale.

    ``wanted`` says which of the two are needed; the other one is None.
    """
    dq = dk = None
    if wanted[0]:
        dq = xp.matmul(ds, k)
        dq *= scale
    if wanted[1]:
        dk = xp.matmul(xp.matrix_transpose(ds), q)
        dk *= scale
    return dq, dk


def _attention_weights_rule(
    xp: Namespace,
    g: Value,
    p: Value,
    q: Value,
    k: Value,
    m: Value,
    wanted: Sequence[bool],
    scale: float,
    causal: bool,
) -> list[Any]:
    """Return the gradients of q, k and the mask m from ``g``, the gradient of the weights p.

    The formulas are ds = p (g - Σ g p), dq = ds k · scale, dk = dsᵀ q · scale and dm = ds.  ``wanted`` says
    which gradients are needed; the others are None.
    """
    ds = g - xp.matmul(g * p, _column_of_ones(p))
    ds *= p
    return [*_to_scores(xp, ds, q, k, wanted, scale), ds]


def _attention_rule(
    xp: Namespace,
    g: Value,
    out: Value,
    q: Value,
    k: Value,
    v: Value,
    m: Value,
    wanted: Sequence[bool],
    scale: float,
    causal: bool,
) -> list[Any]:
    """Return the gradients of q, k, v and the mask m from ``g``, the gradient of the output o.

    The gradient of v is pᵀ g.  The others are those of ``_attention_weights_rule``, where the gradient of the
    weights p is dp = g vᵀ; the sum Σ dp p is computed as Σ g o.  ``wanted`` says which gradients are needed.
    """
    g, g_total = g
    o, log_total = out
    if q.dtype.itemsize == 2:
        g, o, q, k, v, m = (_as_float32(xp, a) for a in (g, o, q, k, v, m))
    s = _scores(xp, q, k, m, scale, causal)
    s -= log_total
    p = xp.exp(s)
    dv = None
    if g is None:
        ds = p * g_total
    else:
        dv = xp.matmul(xp.matrix_transpose(p), g)
        ds = xp.matmul(g, xp.matrix_transpose(v))
        inner = xp.matmul(g * o, _column_of_ones(o))
        ds -= inner if g_total is None else inner - g_total
        ds *= p
    dq, dk = _to_scores(xp, ds, q, k, wanted, scale)
    return [dq, dk, dv, ds]


def _attention_weights_shape(q: Any, k: Any, m: Any, scale: float, causal: bool) -> Result | None:
    if q.dtype.kind in "biuc" or k.dtype != q.dtype or k.shape[-1] != q.shape[-1] or not k.shape[-2]:
        return None
    lead = broadcast(q.shape[:-2], k.shape[:-2])
    scores = None if lead is None else (*lead, q.shape[-2], k.shape[-2])
    if scores is not None and type(m) is not int:
        scores = broadcast(scores, m.shape) if m.dtype in (bool, q.dtype) else None
    return None if scores is None else ((scores, q.dtype),)


def _attention_shape(q: Array, k: Array, v: Array, m: Array, scale: float, causal: bool) -> Result | None:
    weights = _attention_weights_shape(q, k, m, scale, causal)
    if weights is None or v.dtype != q.dtype:
        return None
    ((*_, rows, columns), dtype), *_ = weights
    lead = broadcast(weights[0][0][:-2], v.shape[:-2])
    if lead is None or v.shape[-2] != columns:
        return None
    total = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    return ((*lead, rows, v.shape[-1]), dtype), ((*weights[0][0][:-1], 1), total)


def _native_exponentials(
    xp: Primitives, q: View, k: View, m: View, scale: float, causal: bool
) -> tuple[View, View, View, View | None]:
    """Return the parts of a softmax of attention scores s: exp(s - max s), its row sums, max s, and a mask.

    The scores are s = q kᵀ · scale, masked by ``m`` and ``causal``.  The mask is true for rows that are
    masked completely; it is None if there is no ``m``.
    """
    s = xp.matmul(q * scale, xp.matrix_transpose(k))
    if type(m) is not int:
        s = xp.where(m, s, -math.inf) if m.dtype == np.dtype(bool) else s + m
    if causal:
        s = xp.where(np.tri(s.shape[-2], s.shape[-1], dtype=bool), s, -math.inf)
    top = xp.max(s, axis=(-1,), keepdims=True)
    dead = None
    if type(m) is not int:
        dead = top == -math.inf
        top = xp.where(dead, 0, top)
    e = xp.exp(s - top)
    total = xp.sum(e, axis=(-1,), keepdims=True)
    return e, total if dead is None else xp.where(dead, 1, total), top, dead


def _native_attention_weights(xp: Primitives, *args: View, **params: Any) -> View:
    e, total, _, _ = _native_exponentials(xp, *args, **params)
    return e / total


def _native_attention(xp: Primitives, q: View, k: View, v: View, m: View, **params: Any) -> tuple[View, View]:
    e, total, top, dead = _native_exponentials(xp, q, k, m, **params)
    log_total = top + xp.log(total)
    if dead is not None:
        log_total = xp.where(dead, math.inf, log_total)
    return xp.matmul(e, v) / total, log_total


define("attention_weights", _attention_weights, joint=_attention_weights_rule, arity=3, saves="qkp",
       kind="general", params=("scale", "causal"), batch="leading",
       shape=_attention_weights_shape, reference="formula", lower=_native_attention_weights, kernel="all", doc="softmax(q kᵀ · scale, masked); 0 in rows that are masked completely.")  # fmt: skip
define("attention", _attention, joint=_attention_rule, arity=4, outputs=2, saves=("q", "k", "v", "m", "out"),
       kind="general", params=("scale", "causal"), batch="leading",
       shape=_attention_shape, reference="formula", lower=_native_attention, kernel="all", doc="softmax(q kᵀ · scale, masked) v, and the logarithm of the sum of exponentials of each row.")  # fmt: skip
