"""RNN, LSTM and GRU over sequences.

Names and layouts of the weights are PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint import words
from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.nn import init
from adjoint.nn.arguments import sizes
from adjoint.nn.dropout import dropout
from adjoint.nn.linear import linear
from adjoint.nn.module import Module, Parameter
from adjoint.nn.shared_docs import layer_doc
from adjoint.nn.widths import warn_if_wider
from adjoint.ops.create import zeros
from adjoint.ops.join import stack
from adjoint.typing import ArrayLike, DTypeLike

__all__ = ["GRU", "LSTM", "RNN"]

_recurrent_doc = layer_doc.extended("""
    Parameters
    ----------
    input_size : int
        The number of input features.
    hidden_size : int
        The number of hidden features.
    num_layers : int
        The number of layers.
    bias : bool
        Whether the module has biases.
    batch_first : bool
        Whether inputs are (batch, length, features) or (length, batch, features).
    dropout : float
        The probability that an element is dropped between layers in training.
    bidirectional : bool
        Whether each layer also runs backwards.
    rng : Generator or int, optional
        Generator or seed of the initial values and of dropout.
    x : array_like
        The input, with shape (batch, length, features) or (length, features).
    state : array_like, optional
        The initial hidden state, with shape (layers, batch, hidden), or 2 · layers if the layer is
        bidirectional, and without batch for one sequence.  The default is zeros.
    """)


class _Recurrent(Module):
    """Base class of recurrent modules: layers that apply a cell to each step of a sequence.

    The input has shape (batch, length, features), or (length, batch, features) with ``batch_first=False``, or
    (length, features) for one sequence.  States have shape (layers, batch, hidden), or (layers, hidden) for
    one sequence.  A bidirectional layer also runs backwards: the outputs of both directions are concatenated,
    and each layer has two states, first that of the forward direction.
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
        rng: init.Rng = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        kind = type(self).__name__
        sizes(kind, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        for name, flag in (("batch_first", batch_first), ("bidirectional", bidirectional)):
            if not isinstance(flag, (bool, np.bool_)):
                raise InputError(f"{kind}: {name} must be True or False, not {flag!r}.")
        self.dropout = number(kind, "dropout", dropout)
        if not 0 <= self.dropout <= 1:
            raise ArgumentError(f"{kind}: dropout must be a probability from 0 to 1, but is {dropout!r}.")
        if self.dropout and num_layers == 1:
            raise ArgumentError(
                f"{kind}: dropout is applied between layers, but num_layers is 1.  Omit dropout=, or add "
                "layers."
            )
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
        """Return the suffixes of PyTorch's weight names, one per direction: ("",) or ("", "_reverse")."""
        return ("", "_reverse") if self.bidirectional else ("",)

    def _weights(self, run: int) -> tuple[Any, ...]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return tuple(getattr(self, f"{name}_{self.runs[run]}") for name in names)

    def _through(self, x: Tensor, cell: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Return the output of all layers for ``x``, which is (length, batch, features).

        ``cell(x, run)`` returns the output of one layer in one direction.  ``run`` is the index of the layer,
        or 2 · layer + direction if the module is bidirectional.
        """
        ways = len(self._ways())
        for run in range(0, len(self.runs), ways):
            if run and self.dropout:
                x = dropout(x, self.dropout, training=self.training, rng=self.rng)
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
        """Return the input as (length, batch, features), and whether it had no batch axis."""
        x = asarray(x)
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            layout = "batch, length" if self.batch_first else "length, batch"
            raise ShapeError(
                f"{type(self).__name__}: the input must have shape ({layout}, {self.input_size}) "
                f"or (length, {self.input_size}), but has shape {x.shape}."
            )
        if x.ndim == 2:
            return x[:, None], True
        return (_exchanged(x) if self.batch_first else x), False

    def _start(self, x: Tensor, single: bool, given: Any) -> list[Tensor]:
        """Return the initial state (batch, hidden) of each layer and direction, from ``given`` or zeros.

        ``single`` is True if the input is one sequence without a batch axis.
        """
        batch, count = x.shape[1], len(self.runs)
        if given is None:
            return [zeros((batch, self.hidden_size), dtype=x.dtype) for _ in range(count)]
        if isinstance(given, tuple):
            raise InputError(f"{type(self).__name__}: the state must be a tensor, not a tuple.")
        given = asarray(given)
        needed = (count, self.hidden_size) if single else (count, batch, self.hidden_size)
        if given.shape != needed:
            layers = "2 · layers" if self.bidirectional else "layers"
            names = f"({layers}, hidden)" if single else f"({layers}, batch, hidden)"
            raise ShapeError(
                f"{type(self).__name__}: the state must have shape {names}, here {needed}, but has shape "
                f"{given.shape}."
            )
        return [given[i, None] if single else given[i] for i in range(count)]

    def _outputs(self, x: Tensor, single: bool) -> Tensor:
        """Return the outputs ``x``, (length, batch, features), in the layout of the input.

        ``single`` is True if the input is one sequence without a batch axis.
        """
        if single:
            return x[:, 0]
        return _exchanged(x) if self.batch_first else x

    def extra_repr(self) -> str:
        """Return the sizes and the options that are not the defaults, for the module's repr."""
        options = "" if self.batch_first else ", batch_first=False"
        options += f", dropout={self.dropout}" if self.dropout else ""
        options += ", bidirectional=True" if self.bidirectional else ""
        return f"{self.input_size}, {self.hidden_size}, layers={self.num_layers}{options}"


def _exchanged(x: Tensor) -> Tensor:
    """Return ``x`` with the axes batch and length, the last two but one, exchanged."""
    return rec.permute_dims(x, axes=(-2, -3, -1))


def _last(steps: Tensor, start: Tensor) -> Tensor:
    """Return the last row of ``steps``, the states after each step, or ``start`` if there are no steps."""
    return steps[-1] if steps.shape[0] else start


def _layers(states: list[Tensor], single: bool) -> Tensor:
    if single:
        return states[0] if len(states) == 1 else stack([s[0] for s in states])
    return stack(states) if len(states) > 1 else states[0][None]


@_recurrent_doc
class LSTM(_Recurrent):
    """Long short-term memory over sequences.

    >>> outputs, (hidden, cell) = ad.nn.LSTM(3, 4)(ad.ones((2, 5, 3), dtype="float32"))
    >>> outputs.shape, hidden.shape, cell.shape
    ((2, 5, 4), (1, 2, 4), (1, 2, 4))
    """

    gates = 4

    def forward(self, x: ArrayLike, state: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run over a batch of sequences, or over one sequence.

        Parameters
        ----------
        x : array_like
            The input, with shape (batch, length, features) or (length, features).
        state : tuple of array_like, optional
            The initial hidden state and cell state, each with shape (layers, batch, hidden), or 2 · layers
            if the layer is bidirectional, and without batch for one sequence.  The default is zeros.

        Returns
        -------
        tuple
            The outputs of the last layer in all steps, and (hidden, cell) of all layers after the last step,
            with the shapes of ``state``.
        """
        x, single = self._steps(x)
        if state is not None and (not isinstance(state, (tuple, list)) or len(state) != 2):
            what = (
                f"a sequence of {words.count(len(state), 'item')}"
                if isinstance(state, (tuple, list))
                else f"{words.a(type(state).__name__)}"
            )
            raise InputError(f"LSTM: the state must be a pair (hidden, cell), but is {what}.")
        hidden, cell = (self._start(x, single, s) for s in ((None, None) if state is None else state))

        def run_over(x: Tensor, run: int) -> Tensor:
            w_in, w_hidden, b_in, b_hidden = self._weights(run)
            bias = 0 if b_in is None else b_in + b_hidden
            inputs = linear(x, w_in)  # one product for all steps
            y, cell[run], _ = rec.lstm_sequence(inputs, w_hidden, bias, hidden[run], cell[run])
            hidden[run] = _last(y, hidden[run])
            return y

        x = self._through(x, run_over)
        return self._outputs(x, single), (_layers(hidden, single), _layers(cell, single))


@_recurrent_doc
class GRU(_Recurrent):
    """Gated recurrent unit over sequences.

    >>> outputs, hidden = ad.nn.GRU(3, 4)(ad.ones((2, 5, 3), dtype="float32"))
    >>> outputs.shape, hidden.shape
    ((2, 5, 4), (1, 2, 4))
    """

    gates = 3

    @_recurrent_doc
    def forward(self, x: ArrayLike, state: Any = None) -> tuple[Tensor, Tensor]:
        """Run over a batch of sequences, or over one sequence.

        Returns
        -------
        tuple of Tensor
            The outputs of all steps, and the hidden state after the last step, of each layer.
        """
        x, single = self._steps(x)
        hidden = self._start(x, single, state)

        def run_over(x: Tensor, run: int) -> Tensor:
            w_in, w_hidden, b_in, b_hidden = self._weights(run)
            bias = 0 if b_hidden is None else b_hidden
            y, _ = rec.gru_sequence(linear(x, w_in, b_in), w_hidden, bias, hidden[run])
            hidden[run] = _last(y, hidden[run])
            return y

        x = self._through(x, run_over)
        return self._outputs(x, single), _layers(hidden, single)


def check_nonlinearity(kind: str, nonlinearity: Any) -> str:
    """Return ``nonlinearity``, the name of the activation of a plain recurrence; raise if it is unknown."""
    if nonlinearity not in ("tanh", "relu"):
        raise ArgumentError(f"{kind}: nonlinearity must be 'tanh' or 'relu', not {nonlinearity!r}.")
    return str(nonlinearity)


@_recurrent_doc
class RNN(_Recurrent):
    """Plain recurrence over sequences.

    Parameters
    ----------
    nonlinearity : {"tanh", "relu"}
        The activation.

    >>> outputs, hidden = ad.nn.RNN(3, 4)(ad.ones((2, 5, 3), dtype="float32"))
    >>> outputs.shape, hidden.shape
    ((2, 5, 4), (1, 2, 4))
    """

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
        rng: init.Rng = None,
        dtype: DTypeLike = np.float32,
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

    @_recurrent_doc
    def forward(self, x: ArrayLike, state: Any = None) -> tuple[Tensor, Tensor]:
        """Run over a batch of sequences, or over one sequence.

        Returns
        -------
        tuple of Tensor
            The outputs of all steps, and the hidden state after the last step, of each layer.
        """
        x, single = self._steps(x)
        hidden = self._start(x, single, state)
        function = getattr(rec, self.nonlinearity)

        def run_over(x: Tensor, run: int) -> Tensor:
            w_in, w_hidden, b_in, b_hidden = self._weights(run)
            inputs = linear(x, w_in, b_in)  # one product for all steps
            steps = []
            for i in range(x.shape[0]):
                hidden[run] = function(inputs[i] + linear(hidden[run], w_hidden, b_hidden))
                steps.append(hidden[run])
            return stack(steps) if steps else zeros((0, x.shape[1], self.hidden_size), dtype=inputs.dtype)

        x = self._through(x, run_over)
        return self._outputs(x, single), _layers(hidden, single)
