"""An exponential moving average of weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from adjoint.config import no_grad
from adjoint.core.tensor import Tensor, writable
from adjoint.errors import ArgumentError, InputError, ShapeError

__all__ = ["EMA"]


class EMA:
    """Keep a slowly moving average of parameters: a ← decay · a + (1 - decay) · p.

    ``update()`` after each optimiser step; ``with ema.swapped():`` evaluates with the averages.

    >>> import adjoint as ad
    >>> w = ad.tensor([1.0], requires_grad=True)
    >>> ema = ad.optim.EMA([w], decay=0.5)
    >>> with ad.no_grad(): _ = w.copy_([3.0])
    >>> ema.update()
    >>> with ema.swapped(): w.item()
    2.0
    """

    def __init__(self, params: Iterable[Tensor] | Mapping[str, Tensor], decay: float = 0.999) -> None:
        if not 0 <= decay <= 1:
            raise ArgumentError(f"decay must be from 0 to 1, but is {decay!r}.")
        if callable(getattr(params, "parameters", None)):
            raise InputError("EMA: give the parameters of the module: EMA(model.parameters()).")
        self.decay = decay
        self.params = list(params.values() if isinstance(params, Mapping) else params)
        for i, p in enumerate(self.params):
            if not isinstance(p, Tensor):
                raise InputError(f"EMA: parameters are tensors, but params[{i}] is a {type(p).__name__}.")
        self.averages = [np.array(p._data) for p in self.params]

    def update(self) -> None:
        """Move the averages towards the parameters."""
        for average, p in zip(self.averages, self.params, strict=True):
            average += (1 - self.decay) * (p._data - average)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Give the parameters their averages for a block, and their values back after it."""
        values = [np.array(p._data) for p in self.params]
        self._write(self.averages)
        try:
            yield
        finally:
            self._write(values)

    def _write(self, arrays: list[Any]) -> None:
        with no_grad():
            for p, a in zip(self.params, arrays, strict=True):
                writable(p)[...] = a

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, as copies."""
        return {"decay": self.decay, "averages": [a.copy() for a in self.averages]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        shapes = [np.shape(a) for a in state["averages"]]
        if shapes != [a.shape for a in self.averages]:
            raise ShapeError(f"the averages have shapes {shapes}, not {[a.shape for a in self.averages]}.")
        self.decay = float(state["decay"])
        self.averages = [np.array(a) for a in state["averages"]]
