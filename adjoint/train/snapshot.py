"""``Snapshot``: what a call of the model and the loss can change, to undo a call that must have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.config import logs
from adjoint.core.tensor import Tensor, writes
from adjoint.nn.module import Module
from adjoint.random import Generator
from adjoint.transforms.rerun import Generators, restore

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = ["generator_state", "modules_of", "set_generator", "undone_on_error", "untouched"]


def modules_of(trainer: Trainer) -> Iterator[tuple[str, Module]]:
    """Yield the path and the object of each module of the model and, as ``loss.<path>``, of the loss."""
    for root, prefix in ((trainer.model, ""), (trainer.loss, "loss.")):
        if isinstance(root, Module):
            for path, module in root.named_modules():
                yield f"{prefix}{path}", module


class Snapshot:
    """The attributes, buffers and random generators of all modules of the model and the loss.

    Arrays are not copied: a write into a tensor copies its memory first while the snapshot refers to it.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.modules: list[tuple[Module, dict[str, Any]]] = []
        self.parameters: dict[int, Tensor] = {}  # by id, for the step; they are not restored
        self._tensors: list[tuple[Tensor, Any, Any, int]] = []
        self._generators: list[tuple[Any, Any]] = []
        for _, module in modules_of(trainer):
            own, parameters = dict(vars(module)), module._names("_parameters")
            self.modules.append((module, own))
            for name, value in own.items():
                if isinstance(value, Tensor):
                    if name in parameters:
                        self.parameters[id(value)] = value
                    else:
                        self._tensors.append((value, value._data, value._node, value._version))
                elif isinstance(value, (Generator, np.random.Generator)):
                    self._generators.append((value, generator_state(value)))

    def restore(self) -> None:
        """Set everything to the values that it had when the snapshot was made."""
        for module, before in self.modules:
            own = vars(module)
            for name in own.keys() - before.keys():
                del own[name]
            for name, value in before.items():
                if own.get(name) is not value:
                    own[name] = value
        restore(self._tensors)
        for rng, state in self._generators:
            set_generator(rng, state)


@contextmanager
def undone_on_error(trainer: Trainer) -> Iterator[Snapshot]:
    """Return a context manager that restores the modules after an error; it yields their snapshot."""
    before = Snapshot(trainer)
    try:
        yield before
    except BaseException:
        before.restore()
        raise


@contextmanager
def untouched(trainer: Trainer) -> Iterator[None]:
    """Return a context manager in which calls of model, loss and metrics have no lasting effect.

    Restored at its end are the modules, all tensors that were written, NumPy's global generator, and the
    generators that the functions name.
    """
    before, around = Snapshot(trainer), writes.get()
    log: dict[int, tuple[Tensor, Any, Any, int]] = {}
    drawn = Generators.of((trainer.compute, trainer.loss, *trainer.metrics.values()), ())
    try:
        logs.enter()
        writes.set(log)
        yield
    finally:
        writes.set(around)
        logs.leave()
        restore(log.values())
        if drawn is not None:
            drawn.write(drawn.states)
        before.restore()


def generator_state(rng: Any) -> Any:
    """Return the state of a random generator of adjoint or NumPy."""
    return rng.state if isinstance(rng, Generator) else rng.bit_generator.state


def set_generator(rng: Any, state: Any) -> None:
    """Set the state of a random generator to a result of ``generator_state``."""
    if isinstance(rng, Generator):
        rng.state = state
    else:
        rng.bit_generator.state = state
