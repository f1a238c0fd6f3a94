"""LSTM and GRU over sequences, with PyTorch's names and layouts of weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError, ShapeError
from adjoint.nn import functional as F  # noqa: N812  the name that people's hands know
from adjoint.nn import init
from adjoint.nn.arguments import sizes
from adjoint.nn.module import Module, Parameter
from adjoint.ops.create import zeros
from adjoint.ops.join import stack

__all__ = ["GRU", "LSTM"]


class _Recurrent(Module):
    """Layers of cells, each run over the length of its input.

    The input is (batch, length, features), with ``batch_first=False`` (length, batch, features), or of
    one sequence (length, features).  States are (layers, batch, hidden), of one sequence (layers, hidden).
    """

    gates = 0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        if not isinstance(batch_first, (bool, np.bool_)):
            raise InputError(f"{type(self).__name__}: batch_first is True or False, but got {batch_first!r}.")
        rng = init.generator(rng)
        self.batch_first = bool(batch_first)
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

    def _steps(self, x: Any) -> tuple[Tensor, bool]:
        """Return the input as (length, batch, features), and whether it is one sequence."""
        x = asarray(x)
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            layout = "batch, length" if self.batch_first else "length, batch"
            raise ShapeError(
                f"{type(self).__name__}: the input is ({layout}, {self.input_size}), "
                f"or of one sequence (length, {self.input_size}), but has shape {x.shape}."
            )
        if x.ndim == 2:
            return x[:, None], True
        return (_exchanged(x) if self.batch_first else x), False

    def _start(self, x: Tensor, single: bool, given: Any) -> list[Tensor]:
        """Return the state of each layer before the first step, (batch, hidden)."""
        batch = x.shape[1]
        if given is None:
            return [zeros((batch, self.hidden_size), dtype=x.dtype) for _ in range(self.num_layers)]
        if isinstance(given, tuple):
            raise InputError(f"{type(self).__name__}: a state is a tensor, but got a tuple.")
        given = asarray(given)
        needed = (self.num_layers, self.hidden_size) if single else (self.num_layers, batch, self.hidden_size)
        if given.shape != needed:
            names = "(layers, hidden)" if single else "(layers, batch, hidden)"
            raise ShapeError(
                f"{type(self).__name__}: a state is {names}, here {needed}, but has shape {given.shape}."
            )
        return [given[i, None] if single else given[i] for i in range(self.num_layers)]

    def _outputs(self, x: Tensor, single: bool) -> Tensor:
        """Return the outputs of all steps in the layout of the input."""
        if single:
            return x[:, 0]
        return _exchanged(x) if self.batch_first else x

    def extra_repr(self) -> str:
        """Sizes and layers."""
        layout = "" if self.batch_first else ", batch_first=False"
        return f"{self.input_size}, {self.hidden_size}, layers={self.num_layers}{layout}"


def _exchanged(x: Tensor) -> Tensor:
    """(batch, length, features) to (length, batch, features), and back."""
    return rec.permute_dims(x, axes=(-2, -3, -1))


def _last(steps: Tensor, start: Tensor) -> Tensor:
    """The state after the last step; the one before the first where there is none."""
    return steps[-1] if steps.shape[0] else start


def _layers(states: list[Tensor], single: bool) -> Tensor:
    if single:
        return states[0] if len(states) == 1 else stack([s[0] for s in states])
    return stack(states) if len(states) > 1 else states[0][None]


class LSTM(_Recurrent):
    """Long short-term memory: returns the outputs and the last (hidden, cell) of each layer."""

    gates = 4

    def forward(self, x: Any, state: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run over a batch of sequences, or one; ``state`` is (hidden, cell), as returned."""
        x, single = self._steps(x)
        if state is not None and (not isinstance(state, (tuple, list)) or len(state) != 2):
            what = f"{len(state)} parts" if isinstance(state, (tuple, list)) else f"a {type(state).__name__}"
            raise InputError(f"LSTM: a state is (hidden, cell), but got {what}.")
        hidden, cell = (self._start(x, single, s) for s in ((None, None) if state is None else state))
        for layer in range(self.num_layers):
            w_in, w_hidden, b_in, b_hidden = self._weights(layer)
            bias = 0 if b_in is None else b_in + b_hidden
            inputs = F.linear(x, w_in)  # of all steps in one product
            x, cell[layer], _ = rec.lstm_sequence(inputs, w_hidden, bias, hidden[layer], cell[layer])
            hidden[layer] = _last(x, hidden[layer])
        return self._outputs(x, single), (_layers(hidden, single), _layers(cell, single))


class GRU(_Recurrent):
    """Gated recurrent unit: returns the outputs and the last hidden state of each layer."""

    gates = 3

    def forward(self, x: Any, state: Any = None) -> tuple[Tensor, Tensor]:
        """Run over a batch of sequences, or one; ``state`` is the hidden one, as returned."""
        x, single = self._steps(x)
        hidden = self._start(x, single, state)
        for layer in range(self.num_layers):
            w_in, w_hidden, b_in, b_hidden = self._weights(layer)
            bias = 0 if b_hidden is None else b_hidden
            x, _ = rec.gru_sequence(F.linear(x, w_in, b_in), w_hidden, bias, hidden[layer])
            hidden[layer] = _last(x, hidden[layer])
        return self._outputs(x, single), _layers(hidden, single)
