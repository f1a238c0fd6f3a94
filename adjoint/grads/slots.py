"""The ``.grad`` slots of tensors.  The gradients of a backward are committed together, at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy import ndarray

from adjoint import words
from adjoint.config import special
from adjoint.context import sink
from adjoint.core.lifted import tracing
from adjoint.core.sparse import as_gradient_tensor
from adjoint.core.tensor import Tensor, check_running, committing, wrap
from adjoint.errors import InputError

__all__ = ["Sink", "commit", "drop", "parameters_of", "sink"]


class Sink(Protocol):
    """A destination of leaf gradients other than ``.grad``."""

    scaled: bool  # whether a ``GradScaler`` scaled a loss that is differentiated here

    def wants(self, leaf: Tensor) -> bool:
        """Return whether this destination accepts the gradient of a leaf."""

    def take(self, gradients: dict[Tensor, Any]) -> None:
        """Store the gradients of wanted leaves, add the others to ``.grad``; on an error nothing changes."""


def commit(gradients: dict[Tensor, Any]) -> None:
    """Add gradients to the ``.grad`` of their tensors; on an error nothing changes.

    A leaf that no longer requires grad is skipped.  Tensors in ``.grad`` are replaced, not written to.
    ``gradients`` is emptied on the way, to reduce the peak memory.
    """
    if special.count:
        check_running(gradients)
        if (trace := tracing.get()) is not None:
            trace.commit(gradients)
            return
    # Two backwards in two threads may reach the same leaf, so reading and replacing must be one step.
    with committing:  # no loop in it, see ``_Crew`` in adjoint.engine.parallel
        changes = _changes(gradients)
        try:
            _set(changes, 2)
        except BaseException:  # an interrupt; nothing else can happen between two stores
            _set(changes, 1)
            raise


def _changes(gradients: dict[Tensor, Any]) -> list[tuple[Any, Any, Any]]:
    """Return, for each gradient, the object that contains ``.grad``, the old gradient and the new one."""
    changes = []
    for t in list(gradients):
        g = gradients.pop(t)
        if t._node is None:
            continue
        slot = t._extra or t._need_extra()
        before = slot.grad
        new = wrap(g) if type(g) is ndarray else g if type(g) is Tensor else as_gradient_tensor(g)
        changes.append((slot, before, new if before is None else _sum(before, new)))
        del new, g
    return changes


def _set(changes: list[tuple[Any, Any, Any]], which: int) -> None:
    for change in changes:
        change[0].grad = change[which]


def drop(tensors: Iterable[Tensor], set_to_none: bool = True) -> None:
    """Set the ``.grad`` of these tensors to None; ``set_to_none=False``, PyTorch's option, is an error."""
    if not set_to_none:
        raise InputError(
            "zero_grad always sets gradients to None, so set_to_none=False is not supported.\n"
            "  Call zero_grad() without arguments."
        )
    if special.count:
        tensors = list(tensors)
        check_running(tensors)
        if (trace := tracing.get()) is not None:
            trace.drop_grads(tensors)
            return
    with committing:
        _drop(tensors)


def _drop(tensors: Iterable[Tensor]) -> None:
    for t in tensors:
        if t._extra is not None:
            t._extra.grad = None


def _sum(before: Tensor, new: Tensor) -> Tensor:
    if before._node is None and new._node is None and type(before) is type(new) is Tensor:
        return wrap(np.asarray(before._data + new._data))
    return before + new


def parameters_of(optimizer: Any) -> list[Tensor]:
    """Return the tensors that an optimiser updates."""
    for name in ("params", "parameters"):
        found = getattr(optimizer, name, None)
        if found is not None:
            found = found() if callable(found) else found
            return list(found.values() if isinstance(found, Mapping) else found)
    groups = getattr(optimizer, "param_groups", None)  # of PyTorch's optimisers
    if groups is not None:
        return [t for group in groups for t in group["params"]]
    raise InputError(
        f"the parameters of {words.a(type(optimizer).__name__)} are unknown: "
        "it must have an attribute param_groups, params or parameters."
    )
