"""``EMA``: an exponential moving average of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from adjoint import words
from adjoint.config import no_grad, special
from adjoint.core.inplace import writable
from adjoint.core.lifted import refuse_tracing, tracing
from adjoint.core.namespace import dyn
from adjoint.core.shapes import number_between
from adjoint.core.tensor import Tensor, differentiable
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError
from adjoint.optim.parameters import parameter_list
from adjoint.storage.fitting import fitting

__all__ = ["EMA"]


class EMA:
    """Keep a moving average of parameters: ``a = decay * a + (1 - decay) * p``.

    Call ``update()`` after each optimiser step.  Inside ``with ema.swapped():`` the parameters have the
    averages as values, for evaluation.
    Averages of half-precision parameters are float32, so that small changes are not rounded away.

    Parameters
    ----------
    params : iterable of Tensor or mapping of str to Tensor
        The parameters.
    decay : float
        The weight of the old average, from 0 to 1.

    Examples
    --------
    >>> import adjoint as ad
    >>> w = ad.tensor([1.0], requires_grad=True)
    >>> ema = ad.optim.EMA([w], decay=0.5)
    >>> with ad.no_grad(): _ = w.copy_([3.0])
    >>> ema.update()
    >>> with ema.swapped(): w.item()
    2.0
    """

    def __init__(self, params: Iterable[Tensor] | Mapping[str, Tensor], decay: float = 0.999) -> None:
        if special.count:
            refuse_tracing("an EMA", "Create it outside the compiled function.", "created")
        number_between("EMA: decay", decay, 0.0, 1.0)
        self.decay = float(decay)
        self.params: list[Tensor] = parameter_list("EMA", params)
        for i, p in enumerate(self.params):
            if not isinstance(p, Tensor):
                raise InputError(
                    f"EMA: parameters must be tensors, but params[{i}] is {words.a(type(p).__name__)}."
                )
            if not differentiable(p.dtype):
                raise DTypeError(f"EMA: parameters must be floats, but params[{i}] is {p.dtype}.")
        self.averages = [
            np.array(p._data, np.float32 if p.dtype.itemsize == 2 else None) for p in self.params
        ]

    def update(self) -> None:
        """Update the averages from the parameters."""
        if special.count and (trace := tracing.get()) is not None:
            self._update_traced(trace)
            return
        for average, p in zip(self.averages, self.params, strict=True):
            average += (1 - self.decay) * (p._data - average)

    def _update_traced(self, trace: Any) -> None:
        share = 1 - trace.number(lambda: self.decay)
        trace.guard("the averages of an EMA", lambda: id(self.averages))
        for k, p in enumerate(self.params):
            average = trace.cell(self.averages, k)
            step = share * (trace.value(p) - average)
            trace.set_cell(self.averages, k, dyn.astype(average + step, dtype=average.dtype))

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Return a context manager that replaces the parameters by their averages inside its block."""
        if special.count:
            refuse_tracing("swapped() of an EMA", "Use it around the compiled function.")
        values = [np.array(p._data) for p in self.params]
        try:
            self._write(self.averages)
            yield
        finally:
            self._write(values)

    def _write(self, arrays: list[Any]) -> None:
        with no_grad():
            for p, a in zip(self.params, arrays, strict=True):
                writable(p)[...] = a

    def __repr__(self) -> str:
        numbers = words.count(sum(p.size for p in self.params), "number")
        return f"EMA({words.count(len(self.params), 'tensor')}, {numbers}; decay={self.decay})"

    def state_dict(self) -> dict[str, Any]:
        """Return a dictionary with the keys ``"decay"`` and ``"averages"``, a list of copied arrays."""
        return {"decay": self.decay, "averages": [a.copy() for a in self.averages]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state.  An error leaves the averages unchanged.

        Parameters
        ----------
        state : mapping
            The result of ``state_dict()``.  Averages of a different precision are converted.

        Raises
        ------
        ShapeError
            If the number, the shapes or the kinds of dtype differ.
        """
        if not isinstance(state, Mapping) or not {"decay", "averages"} <= set(state):
            raise ArgumentError(
                'EMA: the state must have the keys "decay" and "averages".\n'
                "  Pass the value that state_dict() returned."
            )
        number_between("EMA: decay", state["decay"], 0.0, 1.0)
        saved = state["averages"]
        if not isinstance(saved, (list, tuple)) or len(saved) != len(self.averages):
            count = len(saved) if isinstance(saved, (list, tuple)) else "no list of"
            raise ShapeError(f"EMA: the state has {count} averages, but the EMA has {len(self.averages)}.")
        found = [fitting(a, ours) for a, ours in zip(saved, self.averages, strict=True)]
        wrong = [f"  {i}: {a}" for i, a in enumerate(found) if isinstance(a, str)]
        if wrong:
            raise ShapeError("EMA: these averages do not match their parameters:\n" + "\n".join(wrong))
        self.decay = float(state["decay"])
        self.averages[:] = [np.array(a) for a in found]  # compiled functions read this list
