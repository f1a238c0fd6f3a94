"""Activation functions and elementwise losses, one op each.

At a corner, the gradient is that of one side, the same side as in PyTorch; the description of each op says
which side.  The formulas are accurate for large positive and large negative arguments, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.core.define import define
from adjoint.core.namespace import Namespace, Value, raw
from adjoint.core.native import Primitives, View
from adjoint.ops.erf import normal_distribution
from adjoint.ops.half import in_float32
from adjoint.typing import Array

__all__ = ["real_only"]


def real_only(x: Any) -> Any:
    """Return ``x`` unchanged; raise if it is complex."""
    if x.dtype.kind == "c":
        raise TypeError("only real numbers are supported")
    return x


# max(x, a x) for slopes a up to 1, and min(x, a x) for larger ones: both are faster than np.where
define("leaky_relu", in_float32(lambda x, slope: (np.maximum if slope <= 1 else np.minimum)(x, slope * x)),
       lambda xp, g, y, x, slope: xp.where(x > 0, g, slope * g), saves="x", params=("slope",),
       reference="formula", lower=lambda xp, x, slope: (xp.maximum if slope <= 1 else xp.minimum)(x, slope * x), doc="x where it is positive, otherwise slope · x; at 0 the gradient is the slope.")  # fmt: skip
define("hardtanh", in_float32(lambda x, low, high: np.clip(x, low, high)),
       lambda xp, g, y, x, low, high: xp.where((x > low) & (x < high), g, 0), saves="x", params=("low", "high"), selects=True,
       reference="formula", lower=lambda xp, x, low, high: xp.clip(x, low, high), doc="x limited to the interval from low to high; on the bounds the gradient is 0.")  # fmt: skip


def _elu_slope(xp: Namespace, x: Value, alpha: float) -> Any:
    """Return α exp(x), the derivative of ELU for x < 0; α is ``alpha``.

    The usual formula y + α, where y is the value of ELU, is not accurate for very negative x.
    """
    e = xp.exp(xp.minimum(x, 0))
    return e if alpha == 1 else xp.where(x > 0, 1, alpha * e)


def _elu(xp: Namespace, x: Value, alpha: float, scale: float) -> Any:
    return scale * (xp.maximum(x, 0) + alpha * xp.expm1(xp.minimum(x, 0)))


define("elu", in_float32(_elu, raw),
       lambda xp, g, y, x, alpha, scale: g * (scale * _elu_slope(xp, x, alpha)),
       saves="x", params=("alpha", "scale"), fused=_elu,
       reference="formula", doc="scale · x where x is positive, otherwise scale · alpha · (exp(x) - 1).")  # fmt: skip


def _softplus_rest(xp: Namespace, x: Value) -> Any:
    """Return log(1 + exp(-|x|)).  The sum of this and max(x, 0) is softplus(x).

    For 2000 elements or more, the result is computed as log u + (e - (u - 1)) / u with e = exp(-|x|) and
    u = 1 + e.  The second term corrects the rounding error of u.  This formula is as accurate as NumPy's
    log1p, and faster, because NumPy's log is vectorised.
    """
    e = xp.exp(-xp.abs(real_only(x)))
    if x.size < 2000:
        return xp.log1p(e)
    u = 1 + e
    return xp.log(u) + (e - (u - 1)) / u


def _softplus(xp: Namespace, x: Value) -> Any:
    return xp.maximum(x, 0) + _softplus_rest(xp, x)


define("softplus", in_float32(_softplus, raw), lambda xp, g, y, x: g * xp.sigmoid(x), saves="x", fused=_softplus,
       reference="formula", doc="log(1 + exp(x)), stable in both tails.")  # fmt: skip

# gelu and mish are products x · gate(x), which save the gate: no derivative rule computes it again.
_DENSITY = 1 / math.sqrt(2 * math.pi)

define("normal_gate", in_float32(normal_distribution),
       lambda xp, g, y, x: g * (_DENSITY * xp.exp(-0.5 * (x * x))), saves="x",
       reference="scipy.special:ndtr", lower=lambda xp, x: xp.ndtr(x), doc="The normal distribution function, without SciPy.")  # fmt: skip


def _mish_gate(xp: Namespace, x: Value) -> Any:
    """Return tanh(softplus(x)) without overflow.

    The formula is n (n + 2) / (n (n + 2) + 2) with n = exp(x).  For x > 0, the numerator and the denominator
    are divided by n².
    """
    e = xp.exp(-xp.abs(real_only(x)))
    top = xp.where(x > 0, 1 + 2 * e, e * (e + 2))
    return top / (top + xp.where(x > 0, 2 * e * e, 2))


define("mish_gate", in_float32(_mish_gate, raw), lambda xp, g, y, x: xp.sech_squared(g * xp.sigmoid(x), xp.softplus(x)), saves="x", fused=_mish_gate,
       reference="formula", doc="tanh(softplus(x)).")  # fmt: skip

# GELU by tanh ----------------------------------------------------------------------------------
#
# As ½ (1 + tanh u) = σ(2u), GELU is x σ(w) with w = x (a + b x²).  This form is accurate for very negative x.
# GELU acts on the widest layer of a transformer.  So its code reads memory once, in blocks; the scratch
# arrays of a block stay in the cache.

_A = 2 * math.sqrt(2 / math.pi)
_B = 0.044715 * _A
_GELU_BLOCK = 1 << 15  # elements
_FLAT = 1e4  # for |x| above this, the gate is 0 or 1 in every dtype; up to this, x³ does not overflow


def _in_blocks(work: Callable[..., None], outputs: int, *arrays: Array) -> list[Any]:
    """Return a list of ``outputs`` new arrays that ``work(*inputs, *results)`` fills, block by block.

    ``work`` is called with slices of all arrays that fit into the processor's cache.  Half precision is
    computed in float32.
    """
    if len(arrays) > 1:
        arrays = np.broadcast_arrays(*arrays)
    dtype = np.result_type(*arrays)
    if dtype.itemsize == 2:
        wide = [a.astype(np.float32) for a in arrays]
        return [y.astype(dtype) for y in _in_blocks(work, outputs, *wide)]
    flat = [np.ascontiguousarray(a, dtype).reshape(-1) for a in arrays]
    flat += [np.empty_like(flat[0]) for _ in range(outputs)]
    with np.errstate(over="ignore"):  # 1 / (1 + inf) is 0, as it should be
        for i in range(0, flat[0].size, _GELU_BLOCK):
            work(*(a[i : i + _GELU_BLOCK] for a in flat))
    return [y.reshape(arrays[0].shape) for y in flat[-outputs:]]


def _gelu_block(x: Array, y: Array, gate: Array) -> None:
    np.multiply(x, x, out=y)
    y *= -_B
    y -= _A
    y *= x
    np.exp(y, out=y)
    y += 1
    np.reciprocal(y, out=gate)
    np.multiply(x, gate, out=y)


def _gelu_slope_block(x: Array, y: Array, gate: Array, out: Array) -> None:
    # σ' = σ (1 - σ) is the first factor: it is 0 where y is large, so that large numbers are never squared
    bend = 1 - gate
    bend *= gate
    bend *= y
    np.multiply(bend, y, out=out)
    out *= y
    out *= 3 * _B
    bend *= _A
    out += bend
    out += gate
    out *= x


def _gelu_power(xp: Namespace, y: Value, factor: float) -> Any:
    """Return a + factor · y² with the constant a of GELU's gate; the derivatives of the gate contain it.

    y is first limited to the range in which the gate is not constant, so that y² does not overflow.
    """
    return _A + factor * xp.square(xp.clip(y, -_FLAT, _FLAT))


def _gelu_rule(xp: Namespace, g: Value, out: Value, x: Value, wanted: Sequence[bool]) -> list[Any]:
    gy, g_gate = g
    gate = out[1]
    dx = None if gy is None else xp.tanh_gelu_slope(gy, x, gate)
    if g_gate is not None:
        part = g_gate * (gate * (1 - gate) * _gelu_power(xp, x, 3 * _B))
        dx = part if dx is None else dx + part
    return [dx]


def _native_gelu(xp: Primitives, x: View) -> Any:
    gate = 1 / (1 + xp.exp(x * (x * x * -_B - _A)))
    return x * gate, gate


def _native_gelu_slope(xp: Primitives, x: View, y: View, gate: View) -> View:
    bend = (1 - gate) * gate * y
    return (bend * y * y * (3 * _B) + bend * _A + gate) * x


define("tanh_gelu", lambda x: tuple(_in_blocks(_gelu_block, 2, real_only(x))), joint=_gelu_rule, arity=1, outputs=2,
       saves=("x", "out"), unread=(0,), batch="leading",
       reference="formula", lower=_native_gelu, doc="GELU: x times a gate, the approximation of the normal distribution function by tanh; and the gate.")  # fmt: skip
# x σ (1 + y (1 - σ) w'(y)) with w' = a + 3 b y²: a polynomial in x, y and σ
define("tanh_gelu_slope", lambda x, y, gate: _in_blocks(_gelu_slope_block, 1, x, y, gate)[0],
       lambda xp, g, z, x, y, gate: xp.tanh_gelu_slope(g, y, gate),
       lambda xp, g, z, x, y, gate: g * x * (gate * (1 - gate) * _gelu_power(xp, y, 9 * _B)),
       lambda xp, g, z, x, y, gate: g * x * (1 + (1 - 2 * gate) * (xp.clip(y, -_FLAT, _FLAT) * _gelu_power(xp, y, 3 * _B))),
       saves=("x", "y", "gate"),
       reference="formula", lower=_native_gelu_slope, doc="x times the derivative of tanh_gelu at y, given its gate at y.")  # fmt: skip

# Losses of one element -------------------------------------------------------------------------


def _huber(xp: Namespace, x: Value, delta: float) -> Any:
    size = xp.abs(real_only(x))
    inner = xp.minimum(size, delta)
    return inner * (size - 0.5 * inner)  # ½x² or delta (|x| - ½ delta): x² is not computed where it overflows


define("huber", in_float32(_huber, raw),
       lambda xp, g, y, x, delta: g * xp.clip(x, -delta, delta), saves="x", params=("delta",), fused=_huber,
       reference="formula", doc="Huber's loss: ½x² for |x| up to delta, and linear for larger |x|.")  # fmt: skip


def _bce_logits(xp: Namespace, x: Value, t: Value) -> Any:
    """Return the binary cross-entropy t softplus(-x) + (1-t) softplus(x) of logits x and targets t.

    The logarithm log(1 + exp(-|x|)), which both softplus terms contain, is computed once.
    """
    return _softplus_rest(xp, x) + t * xp.maximum(-x, 0) + (1 - t) * xp.maximum(x, 0)


define("bce_logits", in_float32(_bce_logits, raw),
       lambda xp, g, y, x, t: g * ((1 - t) * xp.sigmoid(x) - t * xp.sigmoid(-x)),
       lambda xp, g, y, x, t: -g * x, saves="xt", fused=_bce_logits,
       reference="formula", doc="The cross entropy of sigmoid(x) and the probability t.")  # fmt: skip

_LOG_LEAST, _LEAST = -100.0, 1e-12  # PyTorch's limits: the loss is at most 100, even for p = 0 and t = 1


def _bce(xp: Namespace, p: Value, t: Value) -> Any:
    return -(t * _log(xp, p) + (1 - t) * _log(xp, 1 - p))


def _log(xp: Namespace, p: Value) -> Any:
    positive = p > 0
    return xp.where(positive, xp.maximum(xp.log(xp.where(positive, p, 1)), _LOG_LEAST), _LOG_LEAST)


define("bce", in_float32(_bce, raw),
       lambda xp, g, y, p, t: g * ((1 - t) / xp.maximum(1 - p, _LEAST) - t / xp.maximum(p, _LEAST)),
       lambda xp, g, y, p, t: g * (_log(xp, 1 - p) - _log(xp, p)), saves="pt", fused=_bce,
       domain=((0.1, 0.9), (0, 1)), reference="formula", doc="The cross entropy of the probabilities p and t.")  # fmt: skip
