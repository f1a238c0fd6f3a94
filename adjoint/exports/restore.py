"""Read and set what the parts of a state are from: tensors, gradients, generators and optimisers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adjoint.config import no_grad
from adjoint.core.sparse import SparseGradient, SparseRows
from adjoint.core.tensor import wrap

__all__ = [
    "GENERATOR", "Counter", "Hyper", "SparseParts", "generator_words", "read_gradient", "set_generator",
    "set_gradient", "set_tensor",
]  # fmt: skip

# The words of a generator: counter, key, buffer, position in the buffer, and the half of a word that is left.
GENERATOR = {"counter": 4, "key": 2, "buffer": 4, "buffer_pos": 1, "has_uint32": 1, "uinteger": 1}


def set_tensor(t: Any, value: Any) -> None:
    """Write an array into a tensor."""
    with no_grad():
        t.copy_(value)


def read_gradient(t: Any, zeros: Any) -> Any:
    """Return the array of the gradient of a tensor; ``zeros`` if there is none."""
    return zeros if t.grad is None else t.grad._data


def set_gradient(t: Any, value: Any) -> None:
    """Set the gradient of a tensor to an array."""
    t.grad = wrap(value)


class SparseParts:
    """The two parts of the sparse gradient of a tensor, "rows" and "values", which are set together."""

    def __init__(self, t: Any, zeros: dict[str, Any]) -> None:
        self.t, self.zeros, self.given = t, zeros, dict[str, Any]()

    def read(self, name: str) -> Any:
        """Return the array of a part; zeros if the tensor has no sparse gradient with so many rows."""
        grad, zeros = self.t.grad, self.zeros[name]
        found = getattr(getattr(grad, "_rows", None), name, zeros)
        return found if found.shape == zeros.shape else zeros

    def write(self, name: str, value: Any) -> None:
        """Set the array of a part."""
        self.given[name] = value
        if len(self.given) == len(self.zeros):
            self.t.grad = SparseGradient.of(SparseRows(**self.given, shape=self.t.shape))
            self.given = {}


def generator_words(g: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the state of a generator of ``ad.random`` as words."""
    state = g.state
    return np.concatenate([np.array(state[name], np.uint64).reshape(-1) for name in GENERATOR])


def set_generator(g: Any, words: Any) -> None:
    """Set the state of a generator from words."""
    state, at = g.state, 0
    for name, count in GENERATOR.items():
        piece = [int(x) for x in words[at : at + count]]
        state[name], at = piece if count > 1 else piece[0], at + count
    g.state = state


class Hyper(NamedTuple):
    """A hyper-parameter of a group of an optimiser; the path is ("lr",) or ("betas", 0)."""

    group: Any
    path: tuple[Any, ...]

    def read(self) -> Any:
        """Return the value as an array without axes."""
        value = self.group.hyper
        for key in self.path:
            value = value[key]
        return np.float64(value)

    def write(self, value: Any) -> None:
        """Set the value."""
        name, *rest = self.path
        hyper, new = self.group.hyper, float(value)
        if rest:
            old = hyper[name]
            hyper[name] = (*old[: rest[0]], new, *old[rest[0] + 1 :])
        elif new != hyper[name]:
            hyper[name] = new


class Counter(NamedTuple):
    """The step counts of parameters that have had equally many updates, and get equally many from a call.

    If ``moves`` is true, the optimiser's own count moves with them; without parameters it is that count.
    """

    optimizer: Any
    units: list[tuple[Any, list[int]]]  # units, and the positions of their parameters
    moves: bool

    def read(self) -> Any:
        """Return the count as an array without axes."""
        return np.int64(next((unit.steps[i] for unit, (i, *_) in self.units), self.optimizer.step_count))

    def write(self, value: Any) -> None:
        """Set the counts, and move the optimiser's own count by as much if it moves with them."""
        if self.moves:
            self.optimizer.step_count += int(value) - int(self.read())
        for unit, places in self.units:
            unit.steps[:] = [int(value) if k in places else n for k, n in enumerate(unit.steps)]
