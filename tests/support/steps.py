"""Compare whole training steps: the same step eager and compiled, with all state after each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import nn, optim, tree
from adjoint.core.tensor import Tensor

State = dict[str, Any]


def bits(value: Any) -> Any:
    """A value in a form that is equal for equal bits."""
    if isinstance(value, Tensor):
        value = value.detach().numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        a = np.asarray(value)
        return a.shape, str(a.dtype), np.ascontiguousarray(a).tobytes()
    if isinstance(value, dict):
        return {str(k): bits(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(v) for v in value]
    return value


def state_of(*owners: Any) -> list[Any]:
    """Everything that modules, optimisers, averages, generators and tensors hold."""
    found: list[Any] = []
    for o in owners:
        if isinstance(o, nn.Module):
            found.append(bits(o.state_dict()))
            found.append([bits(p.grad) for p in o.parameters()])
            found.append([p.requires_grad for p in o.parameters()])
        elif isinstance(o, optim.Optimizer):
            found.append(bits(o.state_dict()))
            found.append(o.step_count)
        elif hasattr(o, "state_dict"):
            found.append(bits(o.state_dict()))
        elif isinstance(o, ad.random.Generator):
            found.append(o.state)
        else:
            found.append(bits(o))
            found.append(bits(o.grad))
    return found


def results(value: Any) -> Any:
    return [bits(leaf) for leaf in tree.leaves(value)]


def compare(
    make: Callable[[], tuple[Any, ...]],
    data: Callable[[int], tuple[Any, ...]],
    *,
    calls: int = 20,
    between: Callable[..., None] | None = None,
    traces: int | None = 1,
) -> Any:
    """Run a step eager and compiled on the same data; compare results and all state after each call.

    ``make`` returns the step and what it changes; ``between(k, *owners)`` runs after call k.
    """
    step, *owners = make()
    other, *others = make()
    compiled = ad.compile(other)
    for k in range(calls):
        args = data(k)
        assert results(compiled(*args)) == results(step(*args)), f"results of call {k} differ"
        assert state_of(*others) == state_of(*owners), f"state after call {k} differs"
        if between is not None:
            between(k, *owners)
            between(k, *others)
    if traces is not None:
        assert compiled.stats()["traces"] == traces, compiled.stats()["reasons"]
    return compiled
