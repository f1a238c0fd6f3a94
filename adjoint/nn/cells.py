"""Single steps of RNN, LSTM and GRU, with PyTorch's names and layouts of weights."""

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
from adjoint.nn.recurrent import check_nonlinearity
from adjoint.nn.widths import warn_if_wider
from adjoint.ops.create import zeros

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]


class _Cell(Module):
    """One step: the input is (batch, features) or (features,), a state (batch, hidden) or (hidden,)."""

    gates = 0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        rng = init.generator(rng)
        self.input_size, self.hidden_size = input_size, hidden_size
        bound, rows = 1.0 / math.sqrt(hidden_size), self.gates * hidden_size
        self.weight_ih = Parameter(init.uniform((rows, input_size), bound, rng=rng, dtype=dtype))
        self.weight_hh = Parameter(init.uniform((rows, hidden_size), bound, rng=rng, dtype=dtype))
        self.bias_ih = Parameter(init.uniform((rows,), bound, rng=rng, dtype=dtype)) if bias else None
        self.bias_hh = Parameter(init.uniform((rows,), bound, rng=rng, dtype=dtype)) if bias else None

    def _input(self, x: Any) -> Tensor:
        x = asarray(x)
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: the input is (batch, {self.input_size}) or ({self.input_size},), "
                f"but has shape {x.shape}."
            )
        return x

    def _state(self, x: Tensor, given: Any) -> Tensor:
        """Return a state that fits the input; zeros where none is given."""
        shape = (*x.shape[:-1], self.hidden_size)
        if given is None:
            return zeros(shape, dtype=self.weight_hh.dtype)
        given = asarray(given)
        if given.shape != shape:
            raise ShapeError(
                f"{type(self).__name__}: for an input of shape {x.shape} a state is {shape}, "
                f"but has shape {given.shape}."
            )
        return given

    def _products(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the input and what the hidden state add to the gates."""
        from_input = F.linear(x, self.weight_ih, self.bias_ih)
        if from_input.dtype is not self.weight_ih.dtype:
            warn_if_wider(self.weight_ih, from_input)
        return from_input, F.linear(hidden, self.weight_hh, self.bias_hh)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias_ih is not None else ", bias=False")


class RNNCell(_Cell):
    """One step of a plain recurrence: returns the hidden state."""

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        self.nonlinearity = check_nonlinearity("RNNCell", nonlinearity)
        super().__init__(input_size, hidden_size, bias, rng=rng, dtype=dtype)

    def forward(self, x: Any, hidden: Any = None) -> Tensor:
        """Make a step."""
        x = self._input(x)
        from_input, from_hidden = self._products(x, self._state(x, hidden))
        found: Tensor = getattr(rec, self.nonlinearity)(from_input + from_hidden)
        return found


class LSTMCell(_Cell):
    """One step of long short-term memory: returns (hidden, cell)."""

    gates = 4

    def forward(self, x: Any, state: Any = None) -> tuple[Tensor, Tensor]:
        """Make a step; ``state`` is (hidden, cell), as returned."""
        x = self._input(x)
        if state is not None and (not isinstance(state, (tuple, list)) or len(state) != 2):
            raise InputError(f"LSTMCell: a state is (hidden, cell), but got a {type(state).__name__}.")
        hidden, cell = (self._state(x, s) for s in ((None, None) if state is None else state))
        from_input, from_hidden = self._products(x, hidden)
        return F.lstm_cell(from_input + from_hidden, cell)


class GRUCell(_Cell):
    """One step of a gated recurrent unit: returns the hidden state."""

    gates = 3

    def forward(self, x: Any, hidden: Any = None) -> Tensor:
        """Make a step."""
        x = self._input(x)
        hidden, n = self._state(x, hidden), self.hidden_size
        from_input, from_hidden = self._products(x, hidden)
        gates = rec.sigmoid(from_input[..., : 2 * n] + from_hidden[..., : 2 * n])
        reset, keep = gates[..., :n], gates[..., n:]
        new = rec.tanh(from_input[..., 2 * n :] + reset * from_hidden[..., 2 * n :])
        return new + keep * (hidden - new)
