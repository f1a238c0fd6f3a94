"""Functions for networks: activations, norms, attention, convolution, pooling and losses.

They keep no state: parameters, running statistics and random generators are arguments.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import broadcast_shapes, canonical_axis, number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, DTypeError, ShapeError
from adjoint.nn.arguments import floats
from adjoint.nn.dropout import dropout, dropout1d, dropout2d, dropout3d
from adjoint.nn.embeddings import embedding, embedding_bag, one_hot
from adjoint.nn.linear import bilinear, linear
from adjoint.nn.losses import *
from adjoint.nn.losses import __all__ as _losses
from adjoint.nn.norms import (
    batch_norm,
    batch_norm_with_statistics,
    cosine_similarity,
    group_norm,
    instance_norm,
    layer_norm,
    normalize,
    rms_norm,
)
from adjoint.nn.resampling import interpolate, pixel_shuffle, pixel_unshuffle
from adjoint.ops.conv import *
from adjoint.ops.conv import __all__ as _conv
from adjoint.ops.elementwise import sigmoid, tanh
from adjoint.ops.fused import log_softmax, softmax
from adjoint.ops.piecewise import relu
from adjoint.ops.pool import *
from adjoint.ops.pool import __all__ as _pool
from adjoint.ops.reduce import logsumexp

__all__ = [
    "batch_norm",
    "batch_norm_with_statistics",
    "bilinear",
    "cosine_similarity",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "elu",
    "embedding",
    "embedding_bag",
    "gelu",
    "glu",
    "group_norm",
    "hardtanh",
    "instance_norm",
    "interpolate",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsumexp",
    "lstm_cell",
    "mish",
    "normalize",
    "one_hot",
    "pixel_shuffle",
    "pixel_unshuffle",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
    *_conv,
    *_pool,
    *_losses,
]


def __dir__() -> list[str]:
    return sorted(__all__)


# Activations -----------------------------------------------------------------------------------


def leaky_relu(x: Any, negative_slope: float = 0.01) -> Tensor:
    """Return x where it is positive, else ``negative_slope · x``; at 0 the gradient is the slope."""
    return rec.leaky_relu(
        floats("leaky_relu", x), slope=number("leaky_relu", "negative_slope", negative_slope)
    )


def prelu(x: Any, weight: Any) -> Tensor:
    """Return x, ``(N, C, …)``, where it is positive, else ``weight · x``: one slope, or one per channel."""
    x, w = floats("prelu", x), asarray(weight)
    channels = x.shape[1] if x.ndim > 1 else 1
    if w.ndim > 1 or w.size not in (1, channels):
        raise ShapeError(
            f"prelu: the weight has one slope, or one per channel of x {x.shape}, but has shape {w.shape}."
        )
    w = rec.reshape(w, shape=(w.size,) + (1,) * max(x.ndim - 2, 0)) if x.ndim else rec.reshape(w, shape=())
    return rec.where(rec.greater(x, 0), x, w * x)


def elu(x: Any, alpha: float = 1.0) -> Tensor:
    """Return x where it is positive, else ``alpha · (exp(x) - 1)``."""
    return rec.elu(floats("elu", x), alpha=number("elu", "alpha", alpha), scale=1.0)


def selu(x: Any) -> Tensor:
    """Return the scaled ELU, with the constants that keep mean 0 and variance 1."""
    return rec.elu(
        floats("selu", x), alpha=1.6732632423543772848170429916717, scale=1.0507009873554804934193349852946
    )


def gelu(x: Any, approximate: str = "none") -> Tensor:
    """Return ``x · Φ(x)``, Φ being the normal distribution; ``approximate="tanh"`` for the form by tanh."""
    x = floats("gelu", x)
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}.")
    return x * rec.normal_gate(x) if approximate == "none" else rec.tanh_gelu(x)[0]


def silu(x: Any) -> Tensor:
    """Return ``x · sigmoid(x)``, also called swish."""
    x = floats("silu", x)
    return x * rec.sigmoid(x)


def mish(x: Any) -> Tensor:
    """Return ``x · tanh(softplus(x))``."""
    x = floats("mish", x)
    return x * rec.mish_gate(x)


def softplus(x: Any, beta: float = 1.0) -> Tensor:
    """Return ``log(1 + exp(beta · x)) / beta``, exact in both tails."""
    if not beta > 0:
        raise ArgumentError(f"softplus: beta must be positive, but is {beta}.")
    x = floats("softplus", x)
    if type(beta) in (int, float) and beta == 1:
        return rec.softplus(x)
    return rec.softplus(beta * x) / beta  # a tensor beta gets its gradient


def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Limit x to ``min_val`` … ``max_val``; unlike ``ad.clip``, the gradient on the limits is 0."""
    low, high = number("hardtanh", "min_val", min_val), number("hardtanh", "max_val", max_val)
    if low > high:
        raise ArgumentError(f"hardtanh: min_val {low} is above max_val {high}.")
    return rec.hardtanh(floats("hardtanh", x), low=low, high=high)


def relu6(x: Any) -> Tensor:
    """Limit x to 0 … 6; the gradient on the limits is 0."""
    return rec.hardtanh(floats("relu6", x), low=0.0, high=6.0)


def glu(x: Any, axis: int = -1) -> Tensor:
    """Return the first half of x along ``axis`` times the sigmoid of the second."""
    x = floats("glu", x)
    where = canonical_axis("glu", axis, x.ndim)
    n = x.shape[where]
    if n % 2:
        raise ShapeError(
            f"glu: axis {axis} of shape {x.shape} has the odd length {n}; it is cut into two halves."
        )
    tail = (slice(None),) * (-where - 1)
    return x[(..., slice(None, n // 2), *tail)] * rec.sigmoid(x[(..., slice(n // 2, None), *tail)])


# Recurrence ------------------------------------------------------------------------------------


def lstm_cell(gates: Any, cell: Any) -> tuple[Tensor, Tensor]:
    """Step an LSTM: from the gates (…, 4·n) and the cell (…, n), return its output and its new cell.

    The gates are ``linear(x, w) + linear(h, u)``, in the order input, forget, cell, output.
    """
    gates, cell = floats("lstm_cell", gates), floats("lstm_cell", cell)
    if gates.ndim != cell.ndim or not cell.ndim or gates.shape != (*cell.shape[:-1], 4 * cell.shape[-1]):
        raise ShapeError(f"lstm_cell: gates {gates.shape} are four times as wide as the cell {cell.shape}.")
    return rec.lstm_cell(gates, cell)


# Attention -------------------------------------------------------------------------------------

# Up to so many keys per element of a query the weights are kept for backward, which is faster: then they take
# no more than query, key, value and output do.
_MOST_WEIGHTS = 4


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    rng: Any = None,
) -> Tensor:
    """Return ``softmax(query keyᵀ · scale + mask) value`` over the last two axes.

    A boolean mask says where to look, a float mask is added to the scores; ``is_causal`` lets position i
    see positions 0 … i, of those that the mask shows.  A row that may look nowhere gives 0.  The scale, a
    number or a tensor that gets its gradient, is 1 / √width if None; dropout of the weights draws from
    ``rng``.
    """
    op = "scaled_dot_product_attention"
    q, k, v = (floats(op, a) for a in (query, key, value))
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError(
            f"{op}: query {q.shape}, key {k.shape} and value {v.shape} do not fit: query and key have the "
            "same width (last axis), key and value the same length (axis -2)."
        )
    lead = broadcast_shapes(f"{op} (leading axes)", q.shape[:-2], k.shape[:-2], v.shape[:-2])
    factor = _scale(op, scale, q)
    if isinstance(factor, Tensor):
        q, factor = q * factor, 1.0
    mask: Any = 0
    if attn_mask is not None:
        mask = _attention_mask(op, asarray(attn_mask), q, k)
    if not k.shape[-2]:
        return rec.matmul(rec.matmul(q, rec.matrix_transpose(k)), v)  # nothing to look at: zeros
    dtype = np.result_type(*(a.dtype for a in (q, k, v, mask) if type(a) is not int and a.dtype != bool))
    q, k, v, mask = (_aligned(a, dtype, len(lead) + 2) for a in (q, k, v, mask))
    how = {"scale": factor, "causal": bool(is_causal)}
    if not dropout_p and k.shape[-2] > _MOST_WEIGHTS * q.shape[-1]:
        return rec.attention(q, k, v, mask, **how)[0]
    weights = rec.attention_weights(q, k, mask, **how)
    y = rec.matmul(dropout(weights, dropout_p, rng=rng) if dropout_p else weights, v)
    return y if y.dtype == dtype else rec.astype(y, dtype=dtype)  # a product of bfloat16 is float32


def _aligned(a: Any, dtype: Any, ndim: int) -> Any:
    """Give a tensor a dtype, unless it is a boolean mask, and axes of length 1 in front."""
    if type(a) is int:
        return a
    if a.dtype != dtype and a.dtype != bool:
        a = rec.astype(a, dtype=dtype)
    return a if a.ndim == ndim else rec.reshape(a, shape=(1,) * (ndim - a.ndim) + a.shape)


def _scale(op: str, scale: Any, q: Tensor) -> Any:
    """The factor of the scores, as one of the query; a tensor gets its gradient."""
    if scale is None:
        return 1 / math.sqrt(max(q.shape[-1], 1))
    if not isinstance(scale, Tensor):
        return number(op, "scale", scale)
    if broadcast_shapes(f"{op} (query and scale)", scale.shape, q.shape) != q.shape:
        raise ShapeError(f"{op}: a scale of shape {scale.shape} does not broadcast to the query, {q.shape}.")
    return floats(op, scale)


def _attention_mask(op: str, mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    lead = broadcast_shapes(op, q.shape[:-2], k.shape[:-2])
    scores = (*lead, q.shape[-2], k.shape[-2])
    if broadcast_shapes(f"{op} (mask and scores)", mask.shape, scores) != scores:
        raise ShapeError(f"{op}: a mask of shape {mask.shape} does not broadcast to the scores, {scores}.")
    if mask.dtype.kind in "iu":
        raise DTypeError(
            f"{op}: a mask is boolean or float, but got {mask.dtype}.  Cast it: mask.astype(bool)."
        )
    return mask
