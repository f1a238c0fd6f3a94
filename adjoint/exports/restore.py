"""Read and set the Python objects that the parts of a state are from: tensors, generators, optimisers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adjoint.config import no_grad

__all__ = ["GENERATOR", "Counter", "Hyper", "counter_of", "generator_words", "set_generator", "set_tensor"]

# The words of a generator: counter, key, buffer, position in the buffer, and the half of a word that is left.
GENERATOR = {"counter": 4, "key": 2, "buffer": 4, "buffer_pos": 1, "has_uint32": 1, "uinteger": 1}


def set_tensor(t: Any, value: Any) -> None:
    """Write an array into a tensor."""
    with no_grad():
        t.copy_(value)


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
    """The step counts of the parameters that have been updated as often as each other."""

    optimizer: Any
    units: list[tuple[Any, list[int]]]  # units, and the positions of their parameters

    def read(self) -> Any:
        """Return the count as an array without axes."""
        unit, places = self.units[0]
        return np.int64(unit.steps[places[0]])

    def write(self, value: Any) -> None:
        """Set the counts, and move the optimiser's own count by as much."""
        self.optimizer.step_count += int(value) - int(self.read())
        for unit, places in self.units:
            unit.steps[:] = [int(value) if k in places else n for k, n in enumerate(unit.steps)]


def counter_of(optimizer: Any, unit: Any, i: int) -> Counter:
    """Return the counter of a parameter: position ``i`` in ``unit``."""
    first = unit.steps[i]
    units = [u for g in optimizer.groups for u in g.units]
    found = [(u, [k for k, n in enumerate(u.steps) if n == first]) for u in units]
    return Counter(optimizer, [(u, places) for u, places in found if places])
