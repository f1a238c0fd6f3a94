"""Activations of networks: functions of each element, a record each.

Where a function has a corner, its gradient there is that of the side PyTorch takes, named in its
documentation.  The formulas keep their accuracy in both tails.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.define import define

__all__ = ["real_only"]


def real_only(x: Any) -> Any:
    """Return an argument that must not be complex."""
    if x.dtype.kind == "c":
        raise TypeError("it is for real numbers")
    return x


# max(x, a x) for slopes up to 1, min(x, a x) above: no choice per element
define("leaky_relu", lambda x, slope: (np.maximum if slope <= 1 else np.minimum)(x, slope * x),
       lambda xp, g, y, x, slope: xp.where(x > 0, g, slope * g), saves="x", params=("slope",),
       doc="x where it is positive, else slope · x; at 0 the gradient is the slope.")  # fmt: skip
define("hardtanh", lambda x, low, high: np.clip(x, low, high),
       lambda xp, g, y, x, low, high: xp.where((x > low) & (x < high), g, 0), saves="x", params=("low", "high"),
       doc="x limited to low … high; the gradient on the limits is 0.")  # fmt: skip


def _elu_slope(xp: Any, x: Any, alpha: float) -> Any:
    """α exp(x), and not y + α: it keeps its digits far to the left."""
    e = xp.exp(xp.minimum(x, 0))
    return e if alpha == 1 else xp.where(x > 0, 1, alpha * e)


define("elu", lambda xp, x, alpha, scale: scale * (xp.maximum(x, 0) + alpha * xp.expm1(xp.minimum(x, 0))),
       lambda xp, g, y, x, alpha, scale: g * (scale * _elu_slope(xp, x, alpha)),
       saves="x", params=("alpha", "scale"), fused=True,
       doc="scale · x where it is positive, else scale · alpha · (exp(x) - 1).")  # fmt: skip


def _softplus_rest(xp: Any, x: Any) -> Any:
    """log(1 + exp(-|x|)).

    For many elements as log u + (e - (u - 1)) / u with u = 1 + e, where the second term is what rounding
    took from u: as accurate as NumPy's log1p, and log is vectorised where log1p is not.
    """
    e = xp.exp(-xp.abs(real_only(x)))
    if x.size < 2000:
        return xp.log1p(e)
    u = 1 + e
    return xp.log(u) + (e - (u - 1)) / u


define("softplus", lambda xp, x: xp.maximum(x, 0) + _softplus_rest(xp, x),
       lambda xp, g, y, x: g * xp.sigmoid(x), saves="x", fused=True,
       doc="log(1 + exp(x)), stable in both tails.")  # fmt: skip

# The gates of gelu and mish, which are x · gate(x): the product keeps the gate, so that no rule computes
# it twice.  ½ (1 + tanh u) = σ(2u), which is exact far to the left.
_ROOT_HALF, _DENSITY = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)
_STEEP, _CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715
define("normal_gate", lambda xp, x: 0.5 + 0.5 * xp.erf(x * _ROOT_HALF),
       lambda xp, g, y, x: g * (_DENSITY * xp.exp(-0.5 * (x * x))), saves="x", fused=True,
       doc="The normal distribution function by erf, which needs NumPy alone.")  # fmt: skip
define("tanh_gate", lambda xp, x: xp.sigmoid(x * (_STEEP + (_STEEP * _CUBIC) * (x * x))),
       lambda xp, g, y, x: g * (y * (1 - y) * (_STEEP + (3 * _STEEP * _CUBIC) * (x * x))), saves="xy", fused=True,
       doc="The approximation of the normal distribution function by tanh.")  # fmt: skip


def _mish_gate(xp: Any, x: Any) -> Any:
    """tanh(softplus(x)) = n (n + 2) / (n (n + 2) + 2) with n = exp(x), or by 1/n where x > 0."""
    e = xp.exp(-xp.abs(real_only(x)))
    top = xp.where(x > 0, 1 + 2 * e, e * (e + 2))
    return top / (top + xp.where(x > 0, 2 * e * e, 2))


define("mish_gate", _mish_gate, lambda xp, g, y, x: g * ((1 - y * y) * xp.sigmoid(x)), saves="xy", fused=True,
       doc="tanh(softplus(x)).")  # fmt: skip

# Losses of one element -------------------------------------------------------------------------


def _huber(xp: Any, x: Any, delta: float) -> Any:
    size = xp.abs(real_only(x))
    return xp.where(size <= delta, 0.5 * (x * x), delta * (size - 0.5 * delta))


define("huber", _huber,
       lambda xp, g, y, x, delta: g * xp.clip(x, -delta, delta), saves="x", params=("delta",), fused=True,
       doc="½x² up to delta, from there on linear.")  # fmt: skip
# t softplus(-x) + (1-t) softplus(x), which share their logarithm: no difference of large numbers
define("bce_logits", lambda xp, x, t: _softplus_rest(xp, x) + t * xp.maximum(-x, 0) + (1 - t) * xp.maximum(x, 0),
       lambda xp, g, y, x, t: g * ((1 - t) * xp.sigmoid(x) - t * xp.sigmoid(-x)),
       lambda xp, g, y, x, t: -g * x, saves="xt", fused=True,
       doc="The cross entropy of sigmoid(x) and the probability t.")  # fmt: skip

_LOG_LEAST, _LEAST = -100.0, 1e-12  # PyTorch's limits: a certain and wrong prediction costs 100


def _bce(xp: Any, p: Any, t: Any) -> Any:
    return -(t * _log(xp, p) + (1 - t) * _log(xp, 1 - p))


def _log(xp: Any, p: Any) -> Any:
    positive = p > 0
    return xp.where(positive, xp.maximum(xp.log(xp.where(positive, p, 1)), _LOG_LEAST), _LOG_LEAST)


define("bce", _bce,
       lambda xp, g, y, p, t: g * ((1 - t) / xp.maximum(1 - p, _LEAST) - t / xp.maximum(p, _LEAST)),
       lambda xp, g, y, p, t: g * (_log(xp, 1 - p) - _log(xp, p)), saves="pt", fused=True,
       domain=((0.1, 0.9), (0, 1)), doc="The cross entropy of the probabilities p and t.")  # fmt: skip
