"""Compare whole training steps: the same step eager and compiled, with all state after each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import nn, optim, tree
from adjoint.core.tensor import Tensor

State = dict[str, Any]

BACKENDS = ["replay"]  # the last one is used; native code is compared within a tolerance
# relative and absolute, for each call so far
CLOSE = {"f4": (1e-5, 1e-6), "f8": (1e-12, 1e-13), "f2": (1e-3, 1e-4), "V2": (8e-3, 1e-3)}  # V2: bfloat16
SLACK = [1]  # the last one is a factor of these


def same(found: Any, wanted: Any, calls: int) -> bool:
    """Whether two results of ``bits`` are equal; for native code, whether their numbers are close."""
    if BACKENDS[-1] != "native" or type(found) is not type(wanted):
        return bool(found == wanted)
    if isinstance(found, dict):
        return found.keys() == wanted.keys() and all(same(found[k], wanted[k], calls) for k in found)
    if isinstance(found, list):
        return len(found) == len(wanted) and all(map(same, found, wanted, [calls] * len(found)))
    if isinstance(found, tuple) and len(found) == 3 and isinstance(found[2], bytes):
        if found[:2] != wanted[:2] or (close := CLOSE.get(np.dtype(found[1]).str[1:])) is None:
            return bool(found == wanted)
        a, b = (np.frombuffer(x[2], x[1]).astype(float) for x in (found, wanted))
        return np.allclose(a, b, *(c * calls * SLACK[-1] for c in close), equal_nan=True)
    if isinstance(found, float):
        return bool(np.isclose(found, wanted, 1e-5 * calls, equal_nan=True))
    return bool(found == wanted)


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
    """The structure of a result, and the type and the bits of each leaf."""
    leaves, structure = tree.flatten(value)
    return [structure, [type(leaf) for leaf in leaves], [bits(leaf) for leaf in leaves]]


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
    compiled = ad.compile(other, backend=BACKENDS[-1])
    for k in range(calls):
        args = data(k)
        assert same(results(compiled(*args)), results(step(*args)), k + 1), f"results of call {k} differ"
        assert same(state_of(*others), state_of(*owners), k + 1), f"state after call {k} differs"
        if between is not None:
            between(k, *owners)
            between(k, *others)
    if BACKENDS[-1] == "native" and traces is not None:  # numbers that become 0 are guarded, too
        assert compiled.stats()["traces"] <= traces + 1, compiled.stats()["reasons"]
    elif traces is not None:
        assert compiled.stats()["traces"] == traces, compiled.stats()["reasons"]
    return compiled
