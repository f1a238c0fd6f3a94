"""Elementwise divergences and losses of ``scipy.special``: ``rel_entr``, ``kl_div``, ``huber``, ``pseudo_huber``."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.ops.half import in_float32
from adjoint.ops.reduce import floating
from adjoint.ops.shared_docs import argument_doc
from adjoint.typing import ArrayLike

__all__ = ["huber", "kl_div", "pseudo_huber", "rel_entr"]


def _rel_entr(x: Any, y: Any) -> Any:
    dtype = np.result_type(x, y)
    dtype = np.result_type(dtype, 1.0)
    x, y = np.asarray(x, dtype), np.asarray(y, dtype)
    inside = (x > 0) & (y > 0)
    a, b = np.where(inside, x, 1), np.where(inside, y, 1)
    with np.errstate(over="ignore", under="ignore"):
        ratio = a / b
        # log(x / y), or log(x) - log(y) where x / y overflows or underflows
        normal = np.isfinite(ratio) & (ratio > 1e-30)
        log = np.where(normal, np.log(np.where(normal, ratio, 1)), np.log(a) - np.log(b))
    value = np.where(inside, a * log, np.where((x == 0) & (y >= 0), 0, np.inf).astype(dtype))
    return np.where(np.isnan(x) | np.isnan(y), np.nan, value).astype(dtype)


def _log_ratio(xp: Any, x: Any, y: Any) -> Any:
    return xp.log(x) - xp.log(y)


rel_entr = define("rel_entr", in_float32(_rel_entr),
                  lambda xp, g, z, x, y: g * (_log_ratio(xp, x, y) + 1),
                  lambda xp, g, z, x, y: -g * (x / y), saves="xy", domain=((0.5, 3), (0.5, 3)),
                  reference="scipy.special:rel_entr", doc="Return x log(x / y), 0 where x is 0, and infinity outside of the domain.")  # fmt: skip
kl_div = define("kl_div", in_float32(lambda x, y: _rel_entr(x, y) - x + y),
                lambda xp, g, z, x, y: g * _log_ratio(xp, x, y),
                lambda xp, g, z, x, y: g * ((y - x) / y), saves="xy", domain=((0.5, 3), (0.5, 3)),
                reference="scipy.special:kl_div", doc="Return x log(x / y) - x + y, and infinity outside of the domain.")  # fmt: skip


@argument_doc
def huber(delta: ArrayLike, r: ArrayLike) -> Tensor:
    """Return Huber's loss: r²/2 up to ``delta``, and linear beyond.

    Parameters
    ----------
    delta : array_like
        The value of |r| above which the loss is linear.  The result is infinite where ``delta`` is negative.
    r : array_like
        The residual.

    >>> ad.special.huber(1.0, [0.5, 3.0])
    tensor([0.125, 2.5  ], dtype=float64)
    """
    d, r = floating("huber", delta), floating("huber", r)
    size = rec.abs(r)
    loss = rec.where(size <= d, 0.5 * r * r, d * (size - 0.5 * d))
    return rec.where(d < 0, np.inf, loss)


@argument_doc
def pseudo_huber(delta: ArrayLike, r: ArrayLike) -> Tensor:
    """Return the smooth variant of Huber's loss, delta² (√(1 + (r/delta)²) - 1).

    Parameters
    ----------
    delta : array_like
        Where the loss becomes nearly linear; infinity is returned where it is negative.
    r : array_like
        The residual.

    >>> round(ad.special.pseudo_huber(1.0, 2.0).item(), 12)
    1.2360679775
    """
    d, r = floating("pseudo_huber", delta), floating("pseudo_huber", r)
    positive = d > 0
    u = r / rec.where(positive, d, 1.0)
    loss = rec.where(positive, r * r / (1 + rec.hypot(1.0, u)), 0.0)  # √(1 + u²) - 1 would cancel
    return rec.where(d < 0, np.inf, loss)
