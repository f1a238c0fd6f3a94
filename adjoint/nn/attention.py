"""Attention: the function, and the module with several heads.

Names and layouts of the weights are PyTorch's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import broadcast_shapes, number, number_between
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, DTypeError, ShapeError
from adjoint.nn import init
from adjoint.nn.arguments import floats, sizes
from adjoint.nn.dropout import dropout
from adjoint.nn.linear import Linear, linear
from adjoint.nn.module import Module, Parameter
from adjoint.nn.shared_docs import layer_doc
from adjoint.nn.widths import warn_if_wider
from adjoint.ops.create import zeros
from adjoint.ops.shared_docs import mismatch_doc
from adjoint.typing import ArrayLike, DTypeLike

__all__ = ["MultiHeadAttention"]


# If there are at most this many keys per element of a query, the attention weights are saved for backward,
# which is faster.  They then take no more memory than query, key, value and output.
_MOST_WEIGHTS = 4


@mismatch_doc
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    attn_mask: ArrayLike | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    rng: init.AnyGenerator | None = None,
) -> Tensor:
    """Return ``softmax(query keyᵀ · scale + mask) value`` over the last two axes.

    Parameters
    ----------
    query : array_like
        The queries, with shape (…, queries, width).
    key : array_like
        The keys, with shape (…, keys, width).
    value : array_like
        The values, with shape (…, keys, features).
    attn_mask : array_like, optional
        Broadcast to (…, queries, keys).  A boolean mask is True where a query may attend to a key; a float
        mask is added to the scores.
    dropout_p : float
        The probability that a weight is dropped.
    is_causal : bool
        Whether query i may attend only to keys 0 … i, in addition to the mask.
    scale : float or Tensor, optional
        Factor of the scores.  A tensor gets its gradient.  The default is 1 / √width.
    rng : Generator, optional
        The generator of dropout.

    Returns
    -------
    Tensor
        The result, with shape (…, queries, features); 0 for a query that may attend to no key.

    >>> q = k = ad.zeros((2, 4))
    >>> ad.nn.functional.scaled_dot_product_attention(q, k, ad.tensor([[1.0], [3.0]]), is_causal=True)
    tensor([[1.],
            [2.]], dtype=float64)
    """
    op = "scaled_dot_product_attention"
    q, k, v = (floats(op, a) for a in (query, key, value))
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError(
            f"{op}: query and key must have equal lengths along the last axis, key and value along axis -2, "
            f"but the shapes are query {q.shape}, key {k.shape} and value {v.shape}."
        )
    lead = broadcast_shapes(f"{op} (leading axes)", q.shape[:-2], k.shape[:-2], v.shape[:-2])
    factor = _scale(op, scale, q)
    if isinstance(factor, Tensor):
        q, factor = q * factor, 1.0
    mask = 0 if attn_mask is None else _attention_mask(op, asarray(attn_mask), q, k)
    weighing = {"scale": factor, "causal": bool(is_causal)}
    return _attended(q, k, v, mask, len(lead) + 2, weighing, dropout_p, rng)


def _attended(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, ndim: int, weighing: Any, dropout_p: float, rng: Any
) -> Tensor:
    """Return the values ``v``, weighted by the softmax of the scores; ``ndim`` is the number of axes of all.

    ``weighing`` has the options of the scores.
    """
    if not k.shape[-2]:
        return rec.matmul(rec.matmul(q, rec.matrix_transpose(k)), v)  # no keys: zeros
    dtype = np.result_type(*(a.dtype for a in (q, k, v, mask) if type(a) is not int and a.dtype != bool))
    q, k, v, mask = (_aligned(a, dtype, ndim) for a in (q, k, v, mask))
    if not dropout_p and k.shape[-2] > _MOST_WEIGHTS * q.shape[-1]:
        return rec.attention(q, k, v, mask, **weighing)[0]
    weights = rec.attention_weights(q, k, mask, **weighing)
    y = rec.matmul(dropout(weights, dropout_p, rng=rng) if dropout_p else weights, v)
    return y if y.dtype == dtype else rec.astype(y, dtype=dtype)  # a product of bfloat16 is float32


def _aligned(a: Any, dtype: Any, ndim: int) -> Any:
    """Return ``a`` in ``dtype`` with ``ndim`` axes: axes of length 1 are added in front.

    A boolean mask keeps its dtype.  The number 0, for no mask, is returned unchanged.
    """
    if type(a) is int:
        return a
    if a.dtype != dtype and a.dtype != bool:
        a = rec.astype(a, dtype=dtype)
    return a if a.ndim == ndim else rec.reshape(a, shape=(1,) * (ndim - a.ndim) + a.shape)


def _scale(op: str, scale: Any, q: Tensor) -> Any:
    """Return the factor by which the scores q kᵀ are multiplied; if ``scale`` is None, the default 1 / √d.

    It is a number, or a tensor that broadcasts to the query ``q``.
    """
    if scale is None:
        return 1 / math.sqrt(max(q.shape[-1], 1))
    if not isinstance(scale, Tensor):
        return number(op, "scale", scale)
    if broadcast_shapes(f"{op} (query and scale)", scale.shape, q.shape) != q.shape:
        raise ShapeError(
            f"{op}: a scale of shape {scale.shape} cannot be broadcast to the query's shape {q.shape}."
        )
    return floats(op, scale)


def _attention_mask(op: str, mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    lead = broadcast_shapes(op, q.shape[:-2], k.shape[:-2])
    scores = (*lead, q.shape[-2], k.shape[-2])
    if broadcast_shapes(f"{op} (mask and scores)", mask.shape, scores) != scores:
        raise ShapeError(
            f"{op}: a mask of shape {mask.shape} cannot be broadcast to the scores' shape {scores}."
        )
    if mask.dtype.kind in "iu":
        raise DTypeError(
            f"{op}: a mask must be boolean or float, but has dtype {mask.dtype}.  Cast it: mask.astype(bool)."
        )
    return mask


@layer_doc
class MultiHeadAttention(Module):
    """Attention with several heads over (batch, length, features).

    Parameters
    ----------
    embed_dim : int
        The number of features.
    num_heads : int
        The number of heads, a divisor of ``embed_dim``.
    dropout : float
        The probability that an attention weight is dropped in training.
    bias : bool
        Whether the module has biases.
    rng : Generator or int, optional
        Generator or seed of the initial values and of dropout.

    >>> layer = ad.nn.MultiHeadAttention(8, 2)
    >>> layer(ad.ones((3, 5, 8), dtype="float32"), causal=True).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        rng: init.Rng = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        sizes("MultiHeadAttention", embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ArgumentError(
                f"MultiHeadAttention: embed_dim must be a multiple of num_heads, but {embed_dim} is not a "
                f"multiple of {num_heads}."
            )
        rng = init.generator(rng)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.in_proj_weight = Parameter(init.xavier_uniform((3 * embed_dim, embed_dim), rng=rng, dtype=dtype))
        self.in_proj_bias = Parameter(zeros(3 * embed_dim, dtype=dtype)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, rng=rng, dtype=dtype)
        if self.out_proj.bias is not None:
            self.out_proj.bias = Parameter(zeros(embed_dim, dtype=dtype))
        self.dropout = number_between("MultiHeadAttention: dropout", dropout, 0.0, 1.0)
        self.rng = rng

    def forward(
        self,
        query: ArrayLike,
        key: ArrayLike | None = None,
        value: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Attend from each query to the keys.

        Parameters
        ----------
        query : array_like
            The queries, with shape (batch, queries, features).
        key : array_like, optional
            The keys, with shape (batch, keys, features).  The default is the queries.
        value : array_like, optional
            The values, with shape (batch, keys, features).  The default is the keys.
        mask : array_like, optional
            A boolean mask is True where a query may attend to a key; a float mask is added to the scores.
            Its shape is (queries, keys), or (batch, heads, queries, keys) with length 1 where it is the
            same for all. To hide padding pass ``present[:, None, None, :]``, where ``present``, (batch,
            keys), is False at padding.
        causal : bool
            Whether query i may attend only to keys 0 … i, in addition to the mask.

        Returns
        -------
        Tensor
            The result, with the shape of the queries.

        Raises
        ------
        ShapeError
            If shapes do not match, or the leading axes of the mask are ambiguous.
        """
        key = query if key is None else key
        q, k, v = self._projected(query, key, key if value is None else value)
        if q.dtype is not self.in_proj_weight.dtype:
            warn_if_wider(self.in_proj_weight, q)
        q, k, v = self._heads(q), self._heads(k), self._heads(v)
        mask = None if mask is None else _unambiguous(asarray(mask), q, k)
        p = self.dropout if self.training else 0.0
        out = scaled_dot_product_attention(q, k, v, mask, dropout_p=p, is_causal=causal, rng=self.rng)
        out = out.swapaxes(-3, -2)
        return self.out_proj(out.reshape(*out.shape[:-2], self.embed_dim))

    def _projected(self, query: Any, key: Any, value: Any) -> tuple[Tensor, ...]:
        """Return query, key and value after the projection; one product if all three are the same."""
        w, b, n = self.in_proj_weight, self.in_proj_bias, self.embed_dim
        alone = key is query and value is query
        query = asarray(query)
        inputs = (query,) if alone else (query, asarray(key), asarray(value))
        for t in inputs:
            if t.ndim < 2:
                raise ShapeError(
                    f"MultiHeadAttention: inputs must have shape (…, length, {n}), not {t.shape}."
                )
        if alone:
            packed = linear(query, w, b)
            return packed[..., :n], packed[..., n : 2 * n], packed[..., 2 * n :]
        rows = (slice(i * n, (i + 1) * n) for i in range(3))
        return tuple(linear(t, w[i], None if b is None else b[i]) for i, t in zip(rows, inputs, strict=True))

    def _heads(self, x: Tensor) -> Tensor:
        """Reshape (…, length, features) to (…, heads, length, features / heads)."""
        split = x.reshape(*x.shape[:-1], self.num_heads, self.embed_dim // self.num_heads)
        return split.swapaxes(-3, -2)

    def extra_repr(self) -> str:
        """Return the numbers of features and heads, for the module's repr."""
        return f"{self.embed_dim}, heads={self.num_heads}"


def _unambiguous(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Return the mask; raise if its leading axes are ambiguous.

    If the mask has some, but not all, of the leading axes of the query ``q``, they could be the batch or the
    heads.
    """
    batch, queries, keys = q.shape[0], q.shape[-2], k.shape[-2]
    if q.ndim == 4 and mask.shape == (batch, keys) and batch not in (1, queries):
        raise ShapeError(
            "MultiHeadAttention: a mask with two axes must have shape (queries, keys), here "
            f"{(queries, keys)}, but has shape {mask.shape}.\n"
            "  If it has shape (batch, keys), as a padding mask has, pass mask[:, None, None, :]."
        )
    if mask.ndim < q.ndim and any(n != 1 for n in mask.shape[:-2]):
        ends = ", ".join(map(str, mask.shape[-2:]))
        raise ShapeError(
            f"MultiHeadAttention: the leading axes of a mask of shape {mask.shape} are ambiguous.\n"
            f"  Pass a mask of shape ({ends}) or (batch, heads, {ends}).  Use mask[:, None] for one mask per "
            "sample, mask[None] for one mask per head."
        )
    return mask
