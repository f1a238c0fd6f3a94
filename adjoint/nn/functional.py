"""Functions for networks: activations, norms, attention, convolution, pooling and losses.

They keep no state: parameters, running statistics and random generators are arguments.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Never

import numpy as np

from adjoint.core.convert import array_of, asarray
from adjoint.core.namespace import rec
from adjoint.core.other_names import absent, refuse
from adjoint.core.shapes import broadcast_shapes, canonical_axes, canonical_axis, number
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError
from adjoint.nn.arguments import classes, floats
from adjoint.nn.losses import *
from adjoint.nn.losses import __all__ as _losses
from adjoint.ops.conv import *
from adjoint.ops.conv import __all__ as _conv
from adjoint.ops.elementwise import sigmoid, tanh
from adjoint.ops.fused import log_softmax, softmax
from adjoint.ops.piecewise import relu
from adjoint.ops.pool import *
from adjoint.ops.pool import __all__ as _pool
from adjoint.ops.reduce import logsumexp, narrowed
from adjoint.ops.selection import take

__all__ = [
    "batch_norm",
    "batch_norm_with_statistics",
    "cosine_similarity",
    "dropout",
    "elu",
    "embedding",
    "gelu",
    "glu",
    "group_norm",
    "hardtanh",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsumexp",
    "lstm_cell",
    "mish",
    "normalize",
    "one_hot",
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


# Activations -----------------------------------------------------------------------------------


def leaky_relu(x: Any, negative_slope: float = 0.01) -> Tensor:
    """Return x where it is positive, else ``negative_slope · x``; at 0 the gradient is the slope."""
    return rec.leaky_relu(
        floats("leaky_relu", x), slope=number("leaky_relu", "negative_slope", negative_slope)
    )


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


def glu(x: Any, axis: int = -1, **other: Never) -> Tensor:
    """Return the first half of x along ``axis`` times the sigmoid of the second."""
    if other:
        refuse(glu, other)
    x = floats("glu", x)
    where = canonical_axis("glu", axis, x.ndim)
    n = x.shape[where]
    if n % 2:
        raise ShapeError(
            f"glu: axis {axis} of shape {x.shape} has the odd length {n}; it is cut into two halves."
        )
    tail = (slice(None),) * (-where - 1)
    return x[(..., slice(None, n // 2), *tail)] * rec.sigmoid(x[(..., slice(n // 2, None), *tail)])


# Layers ----------------------------------------------------------------------------------------


def linear(x: Any, weight: Any, bias: Any = None) -> Tensor:
    """Return ``x @ weight.T + bias``: x is (…, in), weight (out, in), bias (out,).

    >>> import adjoint as ad
    >>> ad.nn.functional.linear(ad.ones((1, 3)), ad.ones((2, 3)), ad.tensor([0.5, -0.5]))
    tensor([[3.5, 2.5]], dtype=float64)
    """
    x = x if type(x) is Tensor else asarray(x)
    w = weight if type(weight) is Tensor else asarray(weight)
    given, layer = x._data.shape, w._data.shape
    if not given or len(layer) != 2 or given[-1] != layer[1]:
        raise ShapeError(
            f"linear: x {given} and weight {layer} do not fit: the weight is (out, in), "
            "and the last axis of x is in."
        )
    if bias is None:
        return rec.linear(x, w, 0)
    b = bias if type(bias) is Tensor else asarray(bias)
    if b._data.shape != layer[:1]:
        raise ShapeError(
            f"linear: the bias has shape {b.shape}, but the weight {layer} has {layer[0]} outputs."
        )
    return rec.linear(x, w, b)


def lstm_cell(gates: Any, cell: Any) -> tuple[Tensor, Tensor]:
    """Step an LSTM: from the gates (…, 4·n) and the cell (…, n), return its output and its new cell.

    The gates are ``linear(x, w) + linear(h, u)``, in the order input, forget, cell, output.
    """
    gates, cell = floats("lstm_cell", gates), floats("lstm_cell", cell)
    if gates.ndim != cell.ndim or not cell.ndim or gates.shape != (*cell.shape[:-1], 4 * cell.shape[-1]):
        raise ShapeError(f"lstm_cell: gates {gates.shape} are four times as wide as the cell {cell.shape}.")
    return rec.lstm_cell(gates, cell)


def embedding(indices: Any, weight: Any, padding_idx: int | None = None, *, sparse: bool = False) -> Tensor:
    """Return the rows of ``weight`` at whole-number ``indices``; the row ``padding_idx`` gets no gradient.

    With ``sparse=True`` the gradient of a weight that is a leaf has only the rows that were used.
    """
    w = asarray(weight)
    if w.ndim < 1:
        raise ShapeError("embedding: the weight has one row per index, but it is 0-d.")
    indices, _ = classes("embedding", indices, w.shape[0], words=("index", "indices"))
    out = take(w, indices, axis=0, sparse_grad=sparse)
    if padding_idx is None:
        return out
    row = canonical_axis("embedding (padding_idx)", padding_idx, w.shape[0]) + w.shape[0]
    hidden = rec.reshape(rec.equal(indices, row), shape=indices.shape + (1,) * (w.ndim - 1))
    return rec.where(hidden, out.detach(), out)


def one_hot(indices: Any, num_classes: int | None = None, dtype: Any = None) -> Tensor:
    """Return rows with a 1 at each index, in a new last axis; int64 unless ``dtype`` says otherwise.

    >>> import adjoint as ad
    >>> ad.nn.functional.one_hot([0, 2], 3)
    tensor([[1, 0, 0],
            [0, 0, 1]], dtype=int64)
    """
    i = asarray(indices)
    if num_classes is None:
        if not i.size:
            raise ArgumentError(
                "one_hot: without indices the number of classes is unknown; give num_classes=."
            )
        num_classes = int(array_of(i).max()) + 1
    i, _ = classes("one_hot", i, num_classes)
    hot = rec.equal(rec.reshape(i, shape=(*i.shape, 1)), wrap(np.arange(num_classes)))
    return rec.astype(hot, dtype=np.dtype(np.int64 if dtype is None else dtype))


def dropout(x: Any, p: float = 0.5, *, training: bool = True, rng: Any = None) -> Tensor:
    """Set elements to 0 with probability ``p``, drawn from ``rng``, and scale the rest by 1 / (1 - p).

    The generator is explicit, ``np.random.default_rng(seed)`` or ``ad.random.default_rng(seed)``: the same
    state draws the same mask.
    """
    x = asarray(x)
    p = number("dropout", "p", p)
    if not 0 <= p <= 1:
        raise ArgumentError(f"dropout: p is a probability, 0 … 1, but is {p}.")
    if not training or p == 0:
        return x
    return x * wrap(_keep_mask("dropout", x.shape, x.dtype, p, rng))


def _keep_mask(op: str, shape: tuple[int, ...], dtype: Any, p: float, rng: Any) -> Any:
    """1 / (1 - p) where an element stays, 0 where it is dropped."""
    if not hasattr(rng, "random"):
        raise InputError(
            f"{op}: give the generator to draw from, rng=np.random.default_rng(seed), but got {rng!r}.\n"
            "  With training=False nothing is drawn."
        )
    if p == 1:
        return np.zeros(shape, dtype)
    return (array_of(rng.random(shape)) >= p) * np.asarray(1 / (1 - p), dtype)


# Norms -----------------------------------------------------------------------------------------


def _wide(x: Tensor) -> Tensor:
    """Half precision is normalised in float32: squares of numbers from 256 on overflow in float16."""
    return rec.astype(x, dtype=np.dtype(np.float32)) if x.dtype.itemsize == 2 else x


def _like(y: Tensor, x: Tensor) -> Tensor:
    return y if y.dtype == x.dtype or x.dtype.itemsize != 2 else rec.astype(y, dtype=x.dtype)


def _affine(op: str, z: Tensor, weight: Any, bias: Any, shape: tuple[int, ...], tail: int) -> Tensor:
    """z · weight + bias; both have ``shape``, and ``tail`` axes follow it in z."""
    for name, p in (("weight", weight), ("bias", bias)):
        p = _of_shape(op, name, p, shape)
        if p is None:
            continue
        p = rec.reshape(p, shape=shape + (1,) * tail) if tail else p
        z = z * p if name == "weight" else z + p
    return z


def _of_shape(op: str, name: str, p: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Return a parameter of a norm, which must have ``shape``."""
    if p is None:
        return None
    p = asarray(p)
    if p.shape != shape:
        raise ShapeError(f"{op}: the {name} has shape {p.shape}, but what is normalised wants {shape}.")
    return p


def _normalized_axes(op: str, x: Tensor, shape: Any) -> tuple[int, ...]:
    wanted = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if not wanted or x.shape[-len(wanted) :] != wanted:
        raise ShapeError(f"{op}: normalized_shape {wanted} is not the end of the shape {x.shape}.")
    return tuple(range(-len(wanted), 0))


def layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """Bring the last axes, ``normalized_shape``, to mean 0 and variance 1, then ``· weight + bias``."""
    x = floats("layer_norm", x)
    axes = _normalized_axes("layer_norm", x, normalized_shape)
    shape, small = x.shape[-len(axes) :], number("layer_norm", "eps", eps)
    w, b = (_of_shape("layer_norm", name, p, shape) for name, p in (("weight", weight), ("bias", bias)))
    if x.dtype.itemsize == 2 or any(p is not None and p.dtype != x.dtype for p in (w, b)):
        z = _like(rec.standardize(_wide(x), axis=axes, eps=small)[0], x)
        return _affine("layer_norm", z, w, b, shape, 0)
    if len(axes) == 1:
        return rec.layer_norm(x, 1 if w is None else w, 0 if b is None else b, eps=small)
    w, b = (p if p is None else rec.reshape(p, shape=(p.size,)) for p in (w, b))
    flat = rec.reshape(x, shape=(*x.shape[: -len(axes)], math.prod(shape)))
    y = rec.layer_norm(flat, 1 if w is None else w, 0 if b is None else b, eps=small)
    return rec.reshape(y, shape=x.shape)


def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
    """Divide by the root mean square over the last axes, then ``· weight``.

    ``eps`` is that of the dtype if None, of float32 for half precision.
    """
    x = floats("rms_norm", x)
    axes = _normalized_axes("rms_norm", x, normalized_shape)
    wide = _wide(x)
    small = float(np.finfo(wide.dtype).eps) if eps is None else number("rms_norm", "eps", eps)
    z = _like(rec.rms_standardize(wide, axis=axes, eps=small)[0], x)
    return _affine("rms_norm", z, weight, None, x.shape[-len(axes) :], 0)


def group_norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """Bring each of ``num_groups`` groups of channels of x, ``(N, C, …)``, to mean 0 and variance 1."""
    x = floats("group_norm", x)
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise ShapeError(
            f"group_norm: x is (N, C, …) with C divisible by {num_groups} groups, but its shape is {x.shape}."
        )
    n, c, *space = x.shape
    grouped = rec.reshape(_wide(x), shape=(n, num_groups, c // num_groups, *space))
    axes = tuple(range(-len(space) - 1, 0))
    z = rec.standardize(grouped, axis=axes, eps=number("group_norm", "eps", eps))[0]
    z = _like(rec.reshape(z, shape=x.shape), x)
    return _affine("group_norm", z, weight, bias, (c,), len(space))


def batch_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """Bring each channel of x, ``(N, C, …)``, to mean 0 and variance 1.

    In training by the statistics of the batch; else by the running ones, which are never changed here:
    ``batch_norm_with_statistics`` returns what an update of them needs.
    """
    if training:
        return batch_norm_with_statistics(x, weight, bias, eps)[0]
    x = _channels("batch_norm", x)
    if running_mean is None or running_var is None:
        raise InputError("batch_norm: without training=True it needs running_mean and running_var.")
    shape = (x.shape[1],)
    mean, var = asarray(running_mean), asarray(running_var)
    for name, s in (("running_mean", mean), ("running_var", var)):
        if s.shape != shape:
            raise ShapeError(
                f"batch_norm: {name} has shape {s.shape}, but x {x.shape} has {shape[0]} channels."
            )
    ones = (1,) * (x.ndim - 2)
    # on the few numbers per channel first: one product and one sum over x
    scale = 1 / rec.sqrt(var + number("batch_norm", "eps", eps))
    if weight is not None:
        scale = _affine("batch_norm", scale, weight, None, shape, 0)
    shift = _affine("batch_norm", -mean * scale, None, bias, shape, 0)
    return x * rec.reshape(scale, shape=shape + ones) + rec.reshape(shift, shape=shape + ones)


def batch_norm_with_statistics(
    x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``batch_norm`` by the batch's own statistics, their mean, and their variance (divided by n)."""
    x = _channels("batch_norm", x)
    n = x.size // x.shape[1] if x.shape[1] else 0
    if n < 2:
        raise ShapeError(
            f"batch_norm: training needs more than one value per channel, but x has shape {x.shape}.\n"
            "  Use a larger batch, or training=False.  A trainer's accumulate=k cuts a batch into k pieces; "
            "DataLoader(drop_last=True)\n  leaves out a last batch that is short."
        )
    axes = tuple(a for a in range(-x.ndim, 0) if a != 1 - x.ndim)
    z, mean, var = rec.standardize(_wide(x), axis=axes, eps=number("batch_norm", "eps", eps))
    shape = (x.shape[1],)
    y = _affine("batch_norm", _like(z, x), weight, bias, shape, x.ndim - 2)
    return y, rec.reshape(mean, shape=shape), rec.reshape(var, shape=shape)


def _channels(op: str, x: Any) -> Tensor:
    x = floats(op, x)
    if x.ndim < 2:
        raise ShapeError(f"{op}: x has the shape (N, C, …), but got {x.shape}.")
    return x


def _length(x: Tensor, axes: tuple[int, ...], least: float, p: float = 2.0) -> Tensor:
    """The p-norm along axes, at least ``least``: below it constant, so that the gradient at 0 is finite."""
    return rec.maximum(rec.vector_norm(x, ord=p, axis=axes, keepdims=True), least)


def cosine_similarity(x: Any, y: Any, axis: int = 1, eps: float = 1e-8, **other: Never) -> Tensor:
    """Return the cosine of the angle between x and y along ``axis``; 0 where one of them is 0."""
    if other:
        refuse(cosine_similarity, other)
    x, y = floats("cosine_similarity", x), floats("cosine_similarity", y)
    shape = broadcast_shapes("cosine_similarity", x.shape, y.shape)
    axes = (canonical_axis("cosine_similarity", axis, len(shape)),)
    dtype = np.result_type(x.dtype, y.dtype)
    x, y = (rec.broadcast_to(_wide(a), shape=shape) for a in (x, y))
    product = x / _length(x, axes, eps) * (y / _length(y, axes, eps))
    return narrowed(rec.sum(product, axis=axes, keepdims=False), dtype)


def normalize(x: Any, p: float = 2.0, axis: int = 1, eps: float = 1e-12, **other: Never) -> Tensor:
    """Divide x by its p-norm along ``axis``, which is taken as ``eps`` at least."""
    if other:
        refuse(normalize, other)
    x = floats("normalize", x)
    axes = canonical_axes("normalize", axis, x.ndim)
    p = number("normalize", "p", p)
    if not p > 0:
        raise ArgumentError(f"normalize: p must be positive, but is {p}.")
    wide = _wide(x)
    if p == math.inf:
        return _like(wide / rec.maximum(rec.max(rec.abs(wide), axis=axes, keepdims=True), eps), x)
    return _like(wide / _length(wide, axes, eps, p), x)


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


if not TYPE_CHECKING:  # for type checkers what is not there is not there
    __getattr__ = absent(__name__)
