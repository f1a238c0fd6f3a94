"""What adjoint asks of an optimiser.

Either of, the first that it has:

- ``step()``, which reads the ``.grad`` of its parameters.  Where it has ``param_groups`` (a list of
  dictionaries with "params"), ``params`` or ``parameters``, they tell which tensors it updates;
- ``apply(gradients)``, or being callable, with a dictionary of gradients by name.

An optimiser that raises has made no update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from adjoint.core.sparse import as_gradient_tensor
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError

__all__ = ["AppliesGradients", "StepsOnGrad", "hand_to_optimizer", "parameters_of"]


@runtime_checkable
class StepsOnGrad(Protocol):
    """An optimiser that reads ``.grad``."""

    def step(self) -> Any:
        """Update the parameters from their gradients; one without a gradient stays."""


@runtime_checkable
class AppliesGradients(Protocol):
    """An optimiser that is given its gradients."""

    def apply(self, gradients: Mapping[str, Any], /) -> Any:
        """Update the parameters from gradients by name."""


def hand_to_optimizer(optimizer: Any, params: Mapping[str, Tensor], grads: dict[str, Any]) -> None:
    """Let an optimiser make its update; the ``.grad`` of parameters is afterwards as it was before."""
    if isinstance(optimizer, StepsOnGrad):
        if not params:
            raise InputError(
                "apply: this optimiser reads the .grad of its parameters, but the accumulator has none.\n"
                "  Make it with the parameters, GradientAccumulator(params); or take gradients() by name."
            )
        _refuse_strangers(optimizer, params)
        before = {name: t.grad for name, t in params.items()}
        try:
            for name, t in params.items():
                g = grads.get(name)
                t.grad = None if g is None else as_gradient_tensor(g).astype(t.dtype, copy=False)
                del g
            optimizer.step()
        finally:
            for name, t in params.items():
                t.grad = before[name]
    elif isinstance(optimizer, AppliesGradients):
        optimizer.apply(grads)
    elif callable(optimizer):
        optimizer(grads)
    else:
        raise InputError(
            f"apply: a {type(optimizer).__name__} is no optimiser: it has no step() and no apply(gradients)."
        )


def _refuse_strangers(optimizer: Any, params: Mapping[str, Tensor]) -> None:
    """Raise if an optimiser that tells its parameters has none of these: their gradients would be lost."""
    try:
        updated = parameters_of(optimizer)
    except (InputError, TypeError, KeyError):  # it does not tell, or not in a form known here
        return
    if not updated or updated[0] is next(iter(params.values())):  # as nearly always
        return
    known = set(map(id, params.values()))
    if known.isdisjoint(map(id, updated)):
        raise InputError(
            "apply: the optimiser updates none of the accumulator's parameters, so their gradients would be "
            "lost.\n  Make both from the same tensors: params = list(model.parameters())."
        )


def parameters_of(optimizer: Any) -> list[Tensor]:
    """Return the tensors that an optimiser updates."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is not None:
        return [t for group in groups for t in group["params"]]
    for name in ("params", "parameters"):
        found = getattr(optimizer, name, None)
        if found is not None:
            found = found() if callable(found) else found
            return list(found.values() if isinstance(found, Mapping) else found)
    raise InputError(
        f"a {type(optimizer).__name__} does not tell its parameters: "
        "it has no param_groups, params or parameters."
    )
