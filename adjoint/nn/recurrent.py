"""RNN, LSTM and GRU over sequences, with PyTorch's names and layouts of weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.nn import functional as F  # noqa: N812  the name that people's hands know
from adjoint.nn import init
from adjoint.nn.arguments import sizes
from adjoint.nn.module import Module, Parameter
from adjoint.nn.widths import warn_if_wider
from adjoint.ops.create import zeros
from adjoint.ops.join import stack

__all__ = ["GRU", "LSTM", "RNN"]


class _Recurrent(Module):
    """Layers of cells, each run over the length of its input.

    The input is (batch, length, features), with ``batch_first=False`` (length, batch, features), or of
    one sequence (length, features).  States are (layers, batch, hidden), of one sequence (layers, hidden).
    With ``bidirectional=True`` each layer runs backwards too: the outputs of both directions lie side by
    side, and there are twice as many states, both of a layer after those of the one before it.  In training
    ``dropout`` is the probability with which what goes from layer to layer is set to 0, drawn from ``rng``.
    """

    gates = 0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        kind = type(self).__name__
        sizes(kind, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        for name, flag in (("batch_first", batch_first), ("bidirectional", bidirectional)):
            if not isinstance(flag, (bool, np.bool_)):
                raise InputError(f"{kind}: {name} is True or False, but got {flag!r}.")
        self.dropout = number(kind, "dropout", dropout)
        if not 0 <= self.dropout <= 1:
            raise ArgumentError(f"{kind}: dropout is a probability, 0 … 1, but is {dropout!r}.")
        if self.dropout and num_layers == 1:
            raise ArgumentError(f"{kind}: dropout is between layers, but there is one.  Leave it out.")
        rng = init.generator(rng)
        if self.dropout:
            self.rng = rng
        self.batch_first, self.bidirectional = bool(batch_first), bool(bidirectional)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.runs = [f"l{layer}{way}" for layer in range(num_layers) for way in self._ways()]
        bound = 1.0 / math.sqrt(hidden_size)
        rows = self.gates * hidden_size
        for run in self.runs:
            width = input_size if run.startswith("l0") else hidden_size * len(self._ways())
            for name, shape in (("weight_ih", (rows, width)), ("weight_hh", (rows, hidden_size))):
                setattr(self, f"{name}_{run}", Parameter(init.uniform(shape, bound, rng=rng, dtype=dtype)))
            for name in ("bias_ih", "bias_hh"):
                value = Parameter(init.uniform((rows,), bound, rng=rng, dtype=dtype)) if bias else None
                setattr(self, f"{name}_{run}", value)

    def _ways(self) -> tuple[str, ...]:
        """What PyTorch's names of weights end with: forwards, and backwards."""
        return ("", "_reverse") if self.bidirectional else ("",)

    def _weights(self, run: int) -> tuple[Any, ...]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return tuple(getattr(self, f"{name}_{self.runs[run]}") for name in names)

    def _through(self, x: Tensor, cell: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Run all layers; ``cell(x, run)`` takes (length, batch, features) through one of them, one way."""
        ways = len(self._ways())
        for run in range(0, len(self.runs), ways):
            if run and self.dropout:
                x = F.dropout(x, self.dropout, training=self.training, rng=self.rng)
            forwards = cell(x, run)
            if ways == 2:
                backwards = rec.flip(cell(rec.flip(x, axis=(-3,)), run + 1), axis=(-3,))
                forwards = rec.concat(forwards, backwards, axis=-1)
            x = forwards
        w = self._weights(0)[0]
        if x.dtype is not w.dtype:
            warn_if_wider(w, x)
        return x

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
        """Return the state of each layer and direction before the first step, (batch, hidden)."""
        batch, count = x.shape[1], len(self.runs)
        if given is None:
            return [zeros((batch, self.hidden_size), dtype=x.dtype) for _ in range(count)]
        if isinstance(given, tuple):
            raise InputError(f"{type(self).__name__}: a state is a tensor, but got a tuple.")
        given = asarray(given)
        needed = (count, self.hidden_size) if single else (count, batch, self.hidden_size)
        if given.shape != needed:
            layers = "2 · layers" if self.bidirectional else "layers"
            names = f"({layers}, hidden)" if single else f"({layers}, batch, hidden)"
            raise ShapeError(
                f"{type(self).__name__}: a state is {names}, here {needed}, but has shape {given.shape}."
            )
        return [given[i, None] if single else given[i] for i in range(count)]

    def _outputs(self, x: Tensor, single: bool) -> Tensor:
        """Return the outputs of all steps in the layout of the input."""
        if single:
            return x[:, 0]
        return _exchanged(x) if self.batch_first else x

    def extra_repr(self) -> str:
        """Sizes and layers."""
        options = "" if self.batch_first else ", batch_first=False"
        options += f", dropout={self.dropout}" if self.dropout else ""
        options += ", bidirectional=True" if self.bidirectional else ""
        return f"{self.input_size}, {self.hidden_size}, layers={self.num_layers}{options}"


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

        def run_over(x: Tensor, run: int) -> Tensor:
            w_in, w_hidden, b_in, b_hidden = self._weights(run)
            bias = 0 if b_in is None else b_in + b_hidden
            inputs = F.linear(x, w_in)  # of all steps in one product
            y, cell[run], _ = rec.lstm_sequence(inputs, w_hidden, bias, hidden[run], cell[run])
            hidden[run] = _last(y, hidden[run])
            return y

        x = self._through(x, run_over)
        return self._outputs(x, single), (_layers(hidden, single), _layers(cell, single))


class GRU(_Recurrent):
    """Gated recurrent unit: returns the outputs and the last hidden state of each layer."""

    gates = 3

    def forward(self, x: Any, state: Any = None) -> tuple[Tensor, Tensor]:
        """Run over a batch of sequences, or one; ``state`` is the hidden one, as returned."""
        x, single = self._steps(x)
        hidden = self._start(x, single, state)

        def run_over(x: Tensor, run: int) -> Tensor:
            w_in, w_hidden, b_in, b_hidden = self._weights(run)
            bias = 0 if b_hidden is None else b_hidden
            y, _ = rec.gru_sequence(F.linear(x, w_in, b_in), w_hidden, bias, hidden[run])
            hidden[run] = _last(y, hidden[run])
            return y

        x = self._through(x, run_over)
        return self._outputs(x, single), _layers(hidden, single)


def check_nonlinearity(kind: str, nonlinearity: Any) -> str:
    """Return the name of the function of a plain cell: "tanh" or "relu"."""
    if nonlinearity not in ("tanh", "relu"):
        raise ArgumentError(f"{kind}: nonlinearity is 'tanh' or 'relu', not {nonlinearity!r}.")
    return str(nonlinearity)


class RNN(_Recurrent):
    """A plain recurrence, tanh or relu: returns the outputs and the last hidden state of each layer."""

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        self.nonlinearity = check_nonlinearity("RNN", nonlinearity)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            rng=rng,
            dtype=dtype,
        )

    def forward(self, x: Any, state: Any = None) -> tuple[Tensor, Tensor]:
        """Run over a batch of sequences, or one; ``state`` is the hidden one, as returned."""
        x, single = self._steps(x)
        hidden = self._start(x, single, state)
        function = getattr(rec, self.nonlinearity)

        def run_over(x: Tensor, run: int) -> Tensor:
            w_in, w_hidden, b_in, b_hidden = self._weights(run)
            inputs = F.linear(x, w_in, b_in)  # of all steps in one product
            steps = []
            for i in range(x.shape[0]):
                hidden[run] = function(inputs[i] + F.linear(hidden[run], w_hidden, b_hidden))
                steps.append(hidden[run])
            return stack(steps) if steps else zeros((0, x.shape[1], self.hidden_size), dtype=inputs.dtype)

        x = self._through(x, run_over)
        return self._outputs(x, single), _layers(hidden, single)
