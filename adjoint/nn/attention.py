"""Attention with several heads, with PyTorch's names and layouts of weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.nn import functional as F  # noqa: N812  the name that people's hands know
from adjoint.nn import init
from adjoint.nn.arguments import between, sizes
from adjoint.nn.linear import Linear
from adjoint.nn.module import Module, Parameter
from adjoint.nn.widths import warn_if_wider
from adjoint.ops.create import zeros

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(Module):
    """Attention with several heads over (batch, length, features).

    A boolean ``mask`` is True where a query may look, a float one is added to the scores.  Its shape is
    (queries, keys), the same for all, or has all axes, (batch, heads, queries, keys), of which those for
    which it is the same have length 1.  To hide padding: ``mask=present[:, None, None, :]``, where
    ``present``, (batch, keys), is True at what is no padding.  With ``causal=True`` a query sees, of what
    the mask shows, what is not after it.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        sizes("MultiHeadAttention", embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ArgumentError(f"{num_heads} heads do not divide {embed_dim} features.")
        rng = init.generator(rng)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.in_proj_weight = Parameter(init.xavier_uniform((3 * embed_dim, embed_dim), rng=rng, dtype=dtype))
        self.in_proj_bias = Parameter(zeros(3 * embed_dim, dtype=dtype)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, rng=rng, dtype=dtype)
        if self.out_proj.bias is not None:
            self.out_proj.bias = Parameter(zeros(embed_dim, dtype=dtype))
        self.dropout = between("MultiHeadAttention", "dropout", dropout, 0.0, 1.0)
        self.rng = rng

    def forward(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        mask: Any = None,
        causal: bool = False,
    ) -> Tensor:
        """Let each query look at the keys, where the mask says so."""
        key = query if key is None else key
        value = key if value is None else value
        alone = key is query and value is query
        query = asarray(query)
        key, value = (query, query) if alone else (asarray(key), asarray(value))
        for t in (query, key, value):
            if t.ndim < 2:
                raise ShapeError(
                    f"MultiHeadAttention: inputs are (…, length, {self.embed_dim}), not {t.shape}."
                )
        n = self.embed_dim
        if alone:
            packed = F.linear(query, self.in_proj_weight, self.in_proj_bias)
            q, k, v = packed[..., :n], packed[..., n : 2 * n], packed[..., 2 * n :]
        else:
            q, k, v = (
                F.linear(
                    t,
                    self.in_proj_weight[i * n : (i + 1) * n],
                    None if self.in_proj_bias is None else self.in_proj_bias[i * n : (i + 1) * n],
                )
                for i, t in enumerate((query, key, value))
            )
        if q.dtype is not self.in_proj_weight.dtype:
            warn_if_wider(self.in_proj_weight, q)
        q, k, v = self._heads(q), self._heads(k), self._heads(v)
        mask = None if mask is None else _unambiguous(asarray(mask), q, k)
        p = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=p, is_causal=causal, rng=self.rng)
        out = out.swapaxes(-3, -2)
        return self.out_proj(out.reshape(*out.shape[:-2], n))

    def _heads(self, x: Tensor) -> Tensor:
        """(…, length, features) to (…, heads, length, features / heads)."""
        split = x.reshape(*x.shape[:-1], self.num_heads, self.embed_dim // self.num_heads)
        return split.swapaxes(-3, -2)

    def extra_repr(self) -> str:
        """Features and heads."""
        return f"{self.embed_dim}, heads={self.num_heads}"


def _unambiguous(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Refuse a mask with some of the leading axes: (batch, …) would be taken for (heads, …) if as long."""
    batch, queries, keys = q.shape[0], q.shape[-2], k.shape[-2]
    if q.ndim == 4 and mask.shape == (batch, keys) and batch not in (1, queries):
        raise ShapeError(
            f"MultiHeadAttention: a mask of shape {mask.shape} is (queries, keys), but there are "
            f"{queries} queries.\n  One of (batch, keys), such as that of padding, is given all axes: "
            "mask[:, None, None, :]."
        )
    if mask.ndim < q.ndim and any(n != 1 for n in mask.shape[:-2]):
        ends = ", ".join(map(str, mask.shape[-2:]))
        raise ShapeError(
            f"MultiHeadAttention: a mask of shape {mask.shape} has some of the leading axes: which ones?\n"
            f"  Give it all, (batch, heads, {ends}), with length 1 where it is the same for all: "
            f"mask[:, None] for one per element of the batch, mask[None] for one per head; or ({ends}) alone."
        )
    return mask
