"""Encoder and decoder of a transformer.

Names and layouts of the weights are PyTorch's.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from adjoint import words
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError
from adjoint.nn import init
from adjoint.nn.activations import gelu
from adjoint.nn.arguments import sizes
from adjoint.nn.attention import MultiHeadAttention
from adjoint.nn.containers import ModuleList
from adjoint.nn.dropout import Dropout
from adjoint.nn.linear import Linear
from adjoint.nn.module import Module
from adjoint.nn.norms import LayerNorm
from adjoint.nn.shared_docs import layer_doc
from adjoint.ops.piecewise import relu
from adjoint.random import Generator
from adjoint.typing import ArrayLike, DTypeLike

__all__ = ["TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer"]

_transformer_doc = layer_doc.extended("""
    Parameters
    ----------
    d_model : int
        The number of features.
    nhead : int
        The number of attention heads.
    dim_feedforward : int
        The width of the two-layer network.
    dropout : float
        The probability that an element is dropped in training.
    activation : {"relu", "gelu"}
        The activation of the two-layer network.
    norm_first : bool
        Whether the norms come before attention and network, or after the residual connections.
    rng : Generator or int, optional
        Generator or seed of the initial values and of dropout.
    num_layers : int
        The number of copies.
    norm : Module, optional
        A norm of the result.
    x : array_like
        The input, with shape (batch, length, features).
    mask : array_like, optional
        The mask of ``MultiHeadAttention``: True where a query may attend to a key.
    causal : bool
        Whether position i may attend only to positions 0 … i.
    memory : array_like
        The output of an encoder, with shape (batch, keys, features).
    cross_mask : array_like, optional
        The mask of the attention to ``memory``.
    """)


_ACTIVATIONS = {"relu": relu, "gelu": gelu}


class _Layer(Module):
    """Base class of layers: attention and a two-layer network, each with a residual connection and a norm."""

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
        rng: init.Rng = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        if activation not in _ACTIVATIONS:
            raise ArgumentError(
                f"{type(self).__name__}: activation must be 'relu' or 'gelu', not {activation!r}."
            )
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
        """Return ``x + part(norm(x))`` if ``norm_first`` is set, otherwise ``norm(x + part(x))``."""
        if self.norm_first:
            found: Tensor = x + part(norm(x))
            return found
        found = norm(x + part(x))
        return found

    def _attend(self, x: Any, mask: Any, causal: bool) -> Tensor:
        found: Tensor = self.dropout(self.self_attn(x, mask=mask, causal=causal))
        return found

    def _feed(self, x: Any) -> Tensor:
        hidden = _ACTIVATIONS[self.activation](self.linear1(x))
        found: Tensor = self.dropout(self.linear2(self.dropout(hidden)))
        return found


@_transformer_doc
class TransformerEncoderLayer(_Layer):
    """Self-attention and a two-layer network, each with a residual connection and a norm.

    >>> layer = ad.nn.TransformerEncoderLayer(8, 2, 16)
    >>> layer(ad.ones((3, 5, 8), dtype="float32")).shape
    (3, 5, 8)
    """

    norms = 2

    @_transformer_doc
    def forward(self, x: ArrayLike, mask: ArrayLike | None = None, causal: bool = False) -> Tensor:
        """Apply the layer."""
        x = self._add(x, self.norm1, lambda x: self._attend(x, mask, causal))
        return self._add(x, self.norm2, self._feed)


@_transformer_doc
class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to an encoder's output, and a two-layer network.

    Each part has a residual connection and a norm.

    >>> layer = ad.nn.TransformerDecoderLayer(8, 2, 16)
    >>> x, memory = ad.ones((3, 5, 8), dtype="float32"), ad.ones((3, 7, 8), dtype="float32")
    >>> layer(x, memory).shape
    (3, 5, 8)
    """

    norms = 3

    @_transformer_doc
    def forward(
        self,
        x: ArrayLike,
        memory: ArrayLike,
        mask: ArrayLike | None = None,
        cross_mask: ArrayLike | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Apply the layer.

        Parameters
        ----------
        mask : array_like, optional
            The mask of the self-attention: True where a query may attend to a key.
        causal : bool
            Whether position i may attend only to positions 0 … i of x.
        """
        x = self._add(x, self.norm1, lambda x: self._attend(x, mask, causal))
        x = self._add(
            x, self.norm2, lambda x: self.dropout(self.multihead_attn(x, memory, memory, mask=cross_mask))
        )
        return self._add(x, self.norm3, self._feed)


def _copies(owner: str, layer: Any, num_layers: int, kind: type[Module]) -> ModuleList:
    """Return ``num_layers`` copies of a layer; raise if it is not of type ``kind``.

    The parameters of the copies start with equal values.  The copies share the random generators of the
    layer.  ``owner`` is the name of the caller, for the message.
    """
    if not isinstance(layer, kind):
        raise InputError(f"{owner}: the layer must be {words.a(kind.__name__)}, not {layer!r}.")
    sizes(owner, num_layers=num_layers)
    generators = {id(g): g for m in layer.modules() for g in m.__dict__.values() if isinstance(g, Generator)}
    return ModuleList([copy.deepcopy(layer, dict(generators)) for _ in range(num_layers)])


@_transformer_doc
class TransformerEncoder(Module):
    """Copies of an encoder layer, one after the other.

    Parameters
    ----------
    encoder_layer : TransformerEncoderLayer
        The layer to copy.

    >>> model = ad.nn.TransformerEncoder(ad.nn.TransformerEncoderLayer(8, 2, 16), 2)
    >>> model(ad.ones((3, 5, 8), dtype="float32")).shape
    (3, 5, 8)
    """

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Any = None) -> None:
        self.layers = _copies("TransformerEncoder", encoder_layer, num_layers, TransformerEncoderLayer)
        self.norm = norm

    @_transformer_doc
    def forward(self, x: ArrayLike, mask: ArrayLike | None = None, causal: bool = False) -> Tensor:
        """Apply all layers."""
        out: Any = x
        for layer in self.layers:
            out = layer(out, mask, causal)
        return out if self.norm is None else self.norm(out)


@_transformer_doc
class TransformerDecoder(Module):
    """Copies of a decoder layer, one after the other.

    Parameters
    ----------
    decoder_layer : TransformerDecoderLayer
        The layer to copy.

    >>> model = ad.nn.TransformerDecoder(ad.nn.TransformerDecoderLayer(8, 2, 16), 2)
    >>> x, memory = ad.ones((3, 5, 8), dtype="float32"), ad.ones((3, 7, 8), dtype="float32")
    >>> model(x, memory).shape
    (3, 5, 8)
    """

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Any = None) -> None:
        self.layers = _copies("TransformerDecoder", decoder_layer, num_layers, TransformerDecoderLayer)
        self.norm = norm

    @_transformer_doc
    def forward(
        self,
        x: ArrayLike,
        memory: ArrayLike,
        mask: ArrayLike | None = None,
        cross_mask: ArrayLike | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Apply all layers.

        Parameters
        ----------
        mask : array_like, optional
            The mask of the self-attention: True where a query may attend to a key.
        causal : bool
            Whether position i may attend only to positions 0 … i of x.
        """
        out: Any = x
        for layer in self.layers:
            out = layer(out, memory, mask, cross_mask, causal)
        return out if self.norm is None else self.norm(out)
