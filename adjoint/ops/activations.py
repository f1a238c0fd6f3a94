"""Activations of networks: functions of each element, a record each.

Where a function has a corner, its gradient there is that of the side PyTorch takes, named in its
documentation.  The formulas keep their accuracy in both tails.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.define import define

__all__: list[str] = []

# max(x, a x) for slopes up to 1, min(x, a x) above: no choice per element
define("leaky_relu", lambda x, slope: (np.maximum if slope <= 1 else np.minimum)(x, slope * x),
       lambda xp, g, y, x, slope: xp.where(x > 0, g, slope * g), saves="x", params=("slope",),
       doc="x where it is positive, else slope · x; at 0 the gradient is the slope.")  # fmt: skip
define("hardtanh", lambda x, low, high: np.clip(x, low, high),
       lambda xp, g, y, x, low, high: xp.where((x > low) & (x < high), g, 0), saves="x", params=("low", "high"),
       doc="x limited to low … high; the gradient on the limits is 0.")  # fmt: skip


def _negative_part(xp: Any, x: Any) -> Any:
    return xp.where(x > 0, 0, x)


# α exp(x) and not y + α: the gradient keeps its digits far to the left
define("elu", lambda xp, x, alpha, scale: scale * xp.where(x > 0, x, alpha * xp.expm1(_negative_part(xp, x))),
       lambda xp, g, y, x, alpha, scale: g * scale * xp.where(x > 0, 1, alpha * xp.exp(_negative_part(xp, x))),
       saves="x", params=("alpha", "scale"), fused=True,
       doc="scale · x where it is positive, else scale · alpha · (exp(x) - 1).")  # fmt: skip
define("softplus", lambda x: np.logaddexp(x, 0), lambda xp, g, y, x: g * xp.sigmoid(x), saves="x",
       doc="log(1 + exp(x)), stable in both tails.")  # fmt: skip


def _swish_slope(xp: Any, x: Any, z: Any, dz: Any) -> Any:
    """The derivative of x σ(z): σ(z) (1 + x z' σ(-z)), where σ(-z) = 1 - σ(z) has all its digits."""
    return xp.sigmoid(z) * (1 + x * dz * xp.sigmoid(-z))


define("silu", lambda xp, x: x * xp.sigmoid(x),
       lambda xp, g, y, x: g * _swish_slope(xp, x, x, 1), saves="x", fused=True,
       doc="x · sigmoid(x), also called swish.")  # fmt: skip

# ½ x (1 + tanh u) = x σ(2u) with u = √(2/π) (x + 0.044715 x³), which is exact far to the left
_GELU, _CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715
define("gelu_tanh", lambda xp, x: x * xp.sigmoid(_GELU * x * (1 + _CUBIC * x * x)),
       lambda xp, g, y, x: g * _swish_slope(xp, x, _GELU * x * (1 + _CUBIC * x * x), _GELU * (1 + 3 * _CUBIC * x * x)),
       saves="x", fused=True, doc="The approximation of GELU by tanh.")  # fmt: skip


def _mish_slope(xp: Any, x: Any) -> Any:
    t = xp.tanh(xp.softplus(x))
    return t + x * (1 - t * t) * xp.sigmoid(x)


define("mish", lambda xp, x: x * xp.tanh(xp.softplus(x)), lambda xp, g, y, x: g * _mish_slope(xp, x),
       saves="x", fused=True, doc="x · tanh(softplus(x)).")  # fmt: skip

# Losses of one element -------------------------------------------------------------------------

define("huber", lambda xp, x, delta: xp.where(xp.abs(x) <= delta, 0.5 * x * x, delta * (xp.abs(x) - 0.5 * delta)),
       lambda xp, g, y, x, delta: g * xp.clip(x, -delta, delta), saves="x", params=("delta",), fused=True,
       doc="½x² up to delta, from there on linear.")  # fmt: skip
# t softplus(-x) + (1-t) softplus(x): no difference of large numbers, whichever tail
define("bce_logits", lambda xp, x, t: t * xp.softplus(-x) + (1 - t) * xp.softplus(x),
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
