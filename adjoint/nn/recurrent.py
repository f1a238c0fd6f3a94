"""LSTM and GRU over (batch, length, features), with PyTorch's names and layouts of weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, asarray
from adjoint.errors import InputError, ShapeError
from adjoint.nn import functional as F  # noqa: N812  the name that people's hands know
from adjoint.nn import init
from adjoint.nn.arguments import sizes
from adjoint.nn.module import Module, Parameter
from adjoint.ops.create import zeros
from adjoint.ops.join import stack

__all__ = ["GRU", "LSTM"]


class _Recurrent(Module):
    """Layers of cells, each run over the length of its input."""

    gates = 0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        rng = init.generator(rng)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        bound = 1.0 / math.sqrt(hidden_size)
        rows = self.gates * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size
            for name, shape in (("weight_ih", (rows, width)), ("weight_hh", (rows, hidden_size))):
                setattr(self, f"{name}_l{layer}", Parameter(init.uniform(shape, bound, rng=rng, dtype=dtype)))
            for name in ("bias_ih", "bias_hh"):
                value = Parameter(init.uniform((rows,), bound, rng=rng, dtype=dtype)) if bias else None
                setattr(self, f"{name}_l{layer}", value)

    def _weights(self, layer: int) -> tuple[Any, ...]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return tuple(getattr(self, f"{name}_l{layer}") for name in names)

    def _checked(self, x: Any) -> Tensor:
        x = asarray(x)
        if x.ndim != 3 or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: the input is (batch, length, {self.input_size}), "
                f"but has shape {x.shape}."
            )
        return x

    def _start(self, x: Tensor, given: Any) -> list[Tensor]:
        if given is not None:
            given, needed = asarray(given), (self.num_layers, x.shape[0], self.hidden_size)
            if given.shape != needed:
                raise ShapeError(
                    f"{type(self).__name__}: a state is (layers, batch, hidden), here {needed}, "
                    f"but has shape {given.shape}."
                )
            return [given[i] for i in range(self.num_layers)]
        return [zeros((x.shape[0], self.hidden_size), dtype=x.dtype) for _ in range(self.num_layers)]

    def extra_repr(self) -> str:
        """Sizes and layers."""
        return f"{self.input_size}, {self.hidden_size}, layers={self.num_layers}"


def _exchanged(x: Tensor) -> Tensor:
    """(batch, length, features) to (length, batch, features), and back."""
    return rec.permute_dims(x, axes=(-2, -3, -1))


def _last(steps: Tensor, start: Tensor) -> Tensor:
    """The state after the last step; the one before the first where there is none."""
    return steps[-1] if steps.shape[0] else start


def _layers(states: list[Tensor]) -> Tensor:
    return stack(states) if len(states) > 1 else states[0][None]


class LSTM(_Recurrent):
    """Long short-term memory: returns the outputs and the last (hidden, cell) of each layer."""

    gates = 4

    def forward(self, x: Any, state: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run over (batch, length, features)."""
        x = self._checked(x)
        if state is not None and len(state) != 2:
            raise InputError(f"LSTM: a state is (hidden, cell), but has {len(state)} parts.")
        hidden, cell = (self._start(x, s) for s in ((None, None) if state is None else state))
        x = _exchanged(x)
        for layer in range(self.num_layers):
            w_in, w_hidden, b_in, b_hidden = self._weights(layer)
            bias = 0 if b_in is None else b_in + b_hidden
            inputs = F.linear(x, w_in)  # of all steps in one product
            x, cell[layer], _ = rec.lstm_sequence(inputs, w_hidden, bias, hidden[layer], cell[layer])
            hidden[layer] = _last(x, hidden[layer])
        return _exchanged(x), (_layers(hidden), _layers(cell))


class GRU(_Recurrent):
    """Gated recurrent unit: returns the outputs and the last hidden state of each layer."""

    gates = 3

    def forward(self, x: Any, state: Any = None) -> tuple[Tensor, Tensor]:
        """Run over (batch, length, features)."""
        x = self._checked(x)
        hidden = self._start(x, state)
        x = _exchanged(x)
        for layer in range(self.num_layers):
            w_in, w_hidden, b_in, b_hidden = self._weights(layer)
            bias = 0 if b_hidden is None else b_hidden
            x, _ = rec.gru_sequence(F.linear(x, w_in, b_in), w_hidden, bias, hidden[layer])
            hidden[layer] = _last(x, hidden[layer])
        return _exchanged(x), _layers(hidden)
