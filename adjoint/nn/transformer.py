"""Encoder and decoder of a transformer, with PyTorch's names and layouts of weights."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError
from adjoint.nn import functional as F  # noqa: N812  the name that people's hands know
from adjoint.nn import init
from adjoint.nn.arguments import sizes
from adjoint.nn.attention import MultiHeadAttention
from adjoint.nn.containers import ModuleList
from adjoint.nn.dropout import Dropout
from adjoint.nn.linear import Linear
from adjoint.nn.module import Module
from adjoint.nn.norms import LayerNorm
from adjoint.random import Generator

__all__ = ["TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer"]


class _Layer(Module):
    """Attention and a two-layer network, each with a residual and a norm, before or after."""

    norms = 0

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        norm_first: bool = False,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        if activation not in ("relu", "gelu"):
            raise ArgumentError(f"activation is 'relu' or 'gelu', not {activation!r}.")
        rng = init.generator(rng)
        self.self_attn = MultiHeadAttention(d_model, nhead, dropout, rng=rng, dtype=dtype)
        if self.norms == 3:
            self.multihead_attn = MultiHeadAttention(d_model, nhead, dropout, rng=rng, dtype=dtype)
        self.linear1 = Linear(d_model, dim_feedforward, rng=rng, dtype=dtype)
        self.linear2 = Linear(dim_feedforward, d_model, rng=rng, dtype=dtype)
        for i in range(self.norms):
            setattr(self, f"norm{i + 1}", LayerNorm(d_model, dtype=dtype))
        self.dropout = Dropout(dropout, rng=rng)
        self.activation = activation
        self.norm_first = norm_first

    norm1: LayerNorm
    norm2: LayerNorm
    norm3: LayerNorm

    def _add(self, x: Any, norm: LayerNorm, part: Any) -> Tensor:
        """Add ``part`` of x to x, with the norm before or after."""
        if self.norm_first:
            found: Tensor = x + part(norm(x))
            return found
        found = norm(x + part(x))
        return found

    def _attend(self, x: Any, mask: Any, causal: bool) -> Tensor:
        found: Tensor = self.dropout(self.self_attn(x, mask=mask, causal=causal))
        return found

    def _feed(self, x: Any) -> Tensor:
        hidden = getattr(F, self.activation)(self.linear1(x))
        found: Tensor = self.dropout(self.linear2(self.dropout(hidden)))
        return found


class TransformerEncoderLayer(_Layer):
    """Self-attention and a two-layer network, each with a residual and a norm, before or after.

    ``mask`` is that of ``MultiHeadAttention``: True where a query may look.
    """

    norms = 2

    def forward(self, x: Any, mask: Any = None, causal: bool = False) -> Tensor:
        """Pass (batch, length, features) through."""
        x = self._add(x, self.norm1, lambda x: self._attend(x, mask, causal))
        return self._add(x, self.norm2, self._feed)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to ``memory`` and a two-layer network, each with a residual and a norm.

    ``mask`` is that of the self-attention, ``cross_mask`` that of the attention to ``memory``: both are True
    where a query may look, as in ``MultiHeadAttention``.
    """

    norms = 3

    def forward(
        self,
        x: Any,
        memory: Any,
        mask: Any = None,
        cross_mask: Any = None,
        causal: bool = False,
    ) -> Tensor:
        """Pass (batch, length, features) through, beside the output of an encoder."""
        x = self._add(x, self.norm1, lambda x: self._attend(x, mask, causal))
        x = self._add(
            x, self.norm2, lambda x: self.dropout(self.multihead_attn(x, memory, memory, mask=cross_mask))
        )
        return self._add(x, self.norm3, self._feed)


def _copies(owner: str, layer: Any, num_layers: int, kind: type[Module]) -> ModuleList:
    """Copies of a layer, with equal parameters; all draw from the generators of the layer."""
    if not isinstance(layer, kind):
        raise InputError(f"{owner}: the layer is a {kind.__name__}, not {layer!r}.")
    sizes(owner, num_layers=num_layers)
    generators = {id(g): g for m in layer.modules() for g in m.__dict__.values() if isinstance(g, Generator)}
    return ModuleList([copy.deepcopy(layer, dict(generators)) for _ in range(num_layers)])


class TransformerEncoder(Module):
    """Several encoder layers, copies of one, and a norm at the end if it is given."""

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Any = None) -> None:
        self.layers = _copies("TransformerEncoder", encoder_layer, num_layers, TransformerEncoderLayer)
        self.norm = norm

    def forward(self, x: Any, mask: Any = None, causal: bool = False) -> Tensor:
        """Pass (batch, length, features) through; ``mask`` is True where a query may look."""
        for layer in self.layers:
            x = layer(x, mask, causal)
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Module):
    """Several decoder layers, copies of one, and a norm at the end if it is given."""

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Any = None) -> None:
        self.layers = _copies("TransformerDecoder", decoder_layer, num_layers, TransformerDecoderLayer)
        self.norm = norm

    def forward(
        self,
        x: Any,
        memory: Any,
        mask: Any = None,
        cross_mask: Any = None,
        causal: bool = False,
    ) -> Tensor:
        """Pass (batch, length, features) through; masks are those of ``TransformerDecoderLayer``."""
        for layer in self.layers:
            x = layer(x, memory, mask, cross_mask, causal)
        return x if self.norm is None else self.norm(x)
