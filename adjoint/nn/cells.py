"""Single steps of RNN, LSTM and GRU.

Names and layouts of the weights are PyTorch's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint import words
from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError, ShapeError
from adjoint.nn import init
from adjoint.nn.arguments import floats, sizes
from adjoint.nn.linear import linear
from adjoint.nn.module import Module, Parameter
from adjoint.nn.recurrent import check_nonlinearity
from adjoint.nn.shared_docs import layer_doc
from adjoint.nn.widths import warn_if_wider
from adjoint.ops.create import zeros
from adjoint.typing import ArrayLike, DTypeLike

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]

_cell_doc = layer_doc.extended("""
    Parameters
    ----------
    input_size : int
        The number of input features.
    hidden_size : int
        The number of hidden features.
    bias : bool
        Whether the module has biases.
    x : array_like
        The input, with shape (batch, features) or (features,).
    hidden : array_like, optional
        The hidden state, with shape (batch, hidden) or (hidden,).  The default is zeros.
    """)


@layer_doc
def lstm_cell(gates: ArrayLike, cell: ArrayLike) -> tuple[Tensor, Tensor]:
    """Compute one step of an LSTM from its gates.

    Parameters
    ----------
    gates : array_like
        ``linear(x, w) + linear(h, u)``, with shape (…, 4·n), in the order input, forget, cell, output.
    cell : array_like
        The cell state, with shape (…, n).

    Returns
    -------
    tuple of Tensor
        The new hidden state and the new cell state, each with shape (…, n).

    Raises
    ------
    ShapeError
        If the gates are not four times as wide as the cell state.

    >>> hidden, cell = ad.nn.functional.lstm_cell(ad.zeros((1, 8)), ad.ones((1, 2)))
    >>> cell
    tensor([[0.5, 0.5]], dtype=float64)
    """
    gates, cell = floats("lstm_cell", gates), floats("lstm_cell", cell)
    if gates.ndim != cell.ndim or not cell.ndim or gates.shape != (*cell.shape[:-1], 4 * cell.shape[-1]):
        raise ShapeError(
            "lstm_cell: gates must have the shape of the cell with a last axis four times as long, but the "
            f"gates have shape {gates.shape} and the cell {cell.shape}."
        )
    hidden, cell = rec.lstm_cell(gates, cell)
    return hidden, cell


class _Cell(Module):
    """Base class of cells, with the weights and the checks of shapes.

    Inputs have shape (batch, features) or (features,), states (batch, hidden) or (hidden,).
    """

    gates = 0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        rng: init.Rng = None,
        dtype: DTypeLike = np.float32,
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
                f"{type(self).__name__}: the input must have shape (batch, {self.input_size}) or "
                f"({self.input_size},), "
                f"but has shape {x.shape}."
            )
        return x

    def _state(self, x: Tensor, given: Any) -> Tensor:
        """Return the state ``given`` as a tensor that matches the input ``x``, or zeros if it is None."""
        shape = (*x.shape[:-1], self.hidden_size)
        if given is None:
            return zeros(shape, dtype=self.weight_hh.dtype)
        given = asarray(given)
        if given.shape != shape:
            raise ShapeError(
                f"{type(self).__name__}: for an input of shape {x.shape} the state must have shape {shape}, "
                f"but has shape {given.shape}."
            )
        return given

    def _products(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``linear(x, w)`` and ``linear(hidden, u)``, the two terms of the gates."""
        from_input = linear(x, self.weight_ih, self.bias_ih)
        if from_input.dtype is not self.weight_ih.dtype:
            warn_if_wider(self.weight_ih, from_input)
        return from_input, linear(hidden, self.weight_hh, self.bias_hh)

    def extra_repr(self) -> str:
        """Return the sizes, for the module's repr."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias_ih is not None else ", bias=False")


@_cell_doc
class RNNCell(_Cell):
    """One step of a plain recurrence.

    Parameters
    ----------
    nonlinearity : {"tanh", "relu"}
        The activation.

    >>> ad.nn.RNNCell(3, 4)(ad.ones((2, 3), dtype="float32")).shape
    (2, 4)
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        rng: init.Rng = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.nonlinearity = check_nonlinearity("RNNCell", nonlinearity)
        super().__init__(input_size, hidden_size, bias, rng=rng, dtype=dtype)

    @_cell_doc
    def forward(self, x: ArrayLike, hidden: ArrayLike | None = None) -> Tensor:
        """Compute one step.

        Returns
        -------
        Tensor
            The new hidden state.
        """
        x = self._input(x)
        from_input, from_hidden = self._products(x, self._state(x, hidden))
        found: Tensor = getattr(rec, self.nonlinearity)(from_input + from_hidden)
        return found


@_cell_doc
class LSTMCell(_Cell):
    """One step of long short-term memory.

    >>> hidden, cell = ad.nn.LSTMCell(3, 4)(ad.ones((2, 3), dtype="float32"))
    >>> hidden.shape, cell.shape
    ((2, 4), (2, 4))
    """

    gates = 4

    def forward(self, x: ArrayLike, state: Any = None) -> tuple[Tensor, Tensor]:
        """Compute one step.

        Parameters
        ----------
        x : array_like
            The input, with shape (batch, features) or (features,).
        state : tuple of array_like, optional
            The hidden state and the cell state.  The default is zeros.

        Returns
        -------
        tuple of Tensor
            The new hidden state and the new cell state.
        """
        x = self._input(x)
        if state is not None and (not isinstance(state, (tuple, list)) or len(state) != 2):
            raise InputError(
                f"LSTMCell: the state must be a pair (hidden, cell), but is {words.a(type(state).__name__)}."
            )
        hidden, cell = (self._state(x, s) for s in ((None, None) if state is None else state))
        from_input, from_hidden = self._products(x, hidden)
        return lstm_cell(from_input + from_hidden, cell)


@_cell_doc
class GRUCell(_Cell):
    """One step of a gated recurrent unit.

    >>> ad.nn.GRUCell(3, 4)(ad.ones((2, 3), dtype="float32")).shape
    (2, 4)
    """

    gates = 3

    @_cell_doc
    def forward(self, x: ArrayLike, hidden: ArrayLike | None = None) -> Tensor:
        """Compute one step.

        Returns
        -------
        Tensor
            The new hidden state.
        """
        x = self._input(x)
        hidden, n = self._state(x, hidden), self.hidden_size
        from_input, from_hidden = self._products(x, hidden)
        gates = rec.sigmoid(from_input[..., : 2 * n] + from_hidden[..., : 2 * n])
        reset, keep = gates[..., :n], gates[..., n:]
        new = rec.tanh(from_input[..., 2 * n :] + reset * from_hidden[..., 2 * n :])
        return new + keep * (hidden - new)
