"""What adjoint asks of an optimiser.

Either of, the first that it has:

- ``step()``, which reads the ``.grad`` of its parameters.  Where it has ``param_groups`` (a list of
  dictionaries with "params"), ``params`` or ``parameters``, they tell which tensors it updates;
- ``apply(gradients)``, or being callable, with a dictionary of gradients by name.

An optimiser that raises has made no update, and has left its gradients as they were: where it wrote
into them, the next try gets what it wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from adjoint.core.sparse import as_gradient_tensor
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError
from adjoint.grads.norm import all_finite, stored_values

__all__ = [
    "AppliesGradients",
    "StepsOnGrad",
    "beyond_parameters",
    "hand_to_optimizers",
    "optimizers_of",
    "parameters_of",
]


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


def optimizers_of(given: Any) -> list[Any]:
    """Return one optimiser, or several in a list, as a list; what is none is refused."""
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    if not found:
        raise InputError("apply: the list of optimisers is empty.")
    for optimizer in found:
        if isinstance(optimizer, type) and hasattr(optimizer, "step"):
            raise InputError(
                f"apply: {optimizer.__name__} is a class.  "
                f"Make an optimiser of it first: {optimizer.__name__}(params, lr=…)."
            )
        if not (isinstance(optimizer, (StepsOnGrad, AppliesGradients)) or callable(optimizer)):
            raise InputError(
                f"apply: a {type(optimizer).__name__} is no optimiser: it has no step() and no "
                "apply(gradients)."
            )
    return found


def hand_to_optimizers(
    optimizers: list[Any], params: Mapping[str, Tensor], grads: dict[str, Any], done: list[Any]
) -> None:
    """Let optimisers make their updates; the ``.grad`` of parameters is afterwards as it was before.

    Those in ``done`` have made theirs, before another raised; who makes one is added there.
    """
    if any(isinstance(optimizer, StepsOnGrad) for optimizer in optimizers):
        if not params:
            raise InputError(
                "apply: this optimiser reads the .grad of its parameters, but the accumulator has none.\n"
                "  Make it with the parameters, GradientAccumulator(params); or take gradients() by name."
            )
        _refuse_to_lose([*optimizers, *done], params, grads)
    for optimizer in optimizers:
        if any(optimizer is other for other in done):
            continue
        if isinstance(optimizer, StepsOnGrad):
            _step(optimizer, params, grads, done)
            continue
        if isinstance(optimizer, AppliesGradients):
            optimizer.apply(dict(grads))
        else:
            optimizer(dict(grads))
        done.append(optimizer)


def _step(
    optimizer: StepsOnGrad, params: Mapping[str, Tensor], grads: dict[str, Any], done: list[Any]
) -> None:
    before = {name: t.grad for name, t in params.items()}
    try:
        try:
            _put(params, {n: g for n, t in params.items() if (g := _gradient(t, grads.get(n))) is not None})
            optimizer.step()
            done.append(optimizer)
        finally:
            _put(params, before)
    except BaseException:  # an interrupt may have come while they were put back
        _put(params, before)
        raise


def _put(params: Mapping[str, Tensor], grads: Mapping[str, Tensor | None]) -> None:
    for name, t in params.items():
        t.grad = grads.get(name)


def _gradient(t: Tensor, g: Any) -> Tensor | None:
    return None if g is None else _in_dtype_of(t, as_gradient_tensor(g))


def _in_dtype_of(t: Tensor, g: Tensor) -> Tensor:
    """Return a gradient in the dtype of its parameter, which may be narrower than that of the sum."""
    if g.dtype == t.dtype:
        return g
    with np.errstate(over="ignore"):
        return g.astype(t.dtype)


def beyond_parameters(
    optimizers: list[Any], params: Mapping[str, Tensor], sums: Mapping[str, Any]
) -> list[str]:
    """Return whose gradients, finite as sums, are not in the dtype of their parameter."""
    if not any(isinstance(optimizer, StepsOnGrad) for optimizer in optimizers):
        return []
    narrow = [(n, params[n], g) for n, g in sums.items() if n in params and g.dtype != params[n].dtype]
    return [n for n, t, g in narrow if not all_finite(stored_values(_in_dtype_of(t, as_gradient_tensor(g))))]


def _refuse_to_lose(optimizers: list[Any], params: Mapping[str, Tensor], grads: Mapping[str, Any]) -> None:
    """Raise if optimisers that tell their parameters leave out some of these that have a gradient."""
    updated: set[int] = set()
    for optimizer in optimizers:
        try:
            updated.update(map(id, parameters_of(optimizer)))
        except (InputError, TypeError, KeyError):  # it does not tell, or not in a form known here
            return
    lost = [name for name, t in params.items() if name in grads and id(t) not in updated]
    if updated and lost:
        if len(lost) == len(grads):
            raise InputError(
                "apply: the optimiser updates none of the accumulator's parameters, so their gradients would "
                "be lost.\n  Make both from the same tensors: params = list(model.parameters())."
            )
        raise InputError(
            f"apply: no optimiser updates {', '.join(map(repr, lost[:12]))}{' …' if len(lost) > 12 else ''}, "
            "so these gradients would be lost.\n"
            "  Give all optimisers at once, apply([one, other]); or leave these parameters out of the "
            "accumulator."
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
