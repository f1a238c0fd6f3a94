"""Save and read optimiser states.  All saved values are checked before any of them is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adjoint import words
from adjoint.core.shapes import whole_number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.storage.fitting import fitting

if TYPE_CHECKING:
    from adjoint.optim.groups import ParameterGroup, Unit
    from adjoint.optim.optimizer import Optimizer

__all__ = ["read_state", "saved_state"]

# of one group: hyper-parameters, those to which the state belongs, ratio of its learning rate to the
# optimiser's, then for each unit (parameters that are updated together) the state arrays and the step count
# of each parameter
Read = tuple[dict[str, Any], dict[str, Any], float, list[tuple[dict[str, Any] | None, list[int]]]]


def saved_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return the dictionary of ``Optimizer.state_dict``."""
    groups = optimizer.groups
    return {
        "kind": type(optimizer).__name__,
        "step": optimizer.step_count,
        "groups": [dict(g.hyper) for g in groups],
        "applied": [_applied(g) for g in groups],
        "ratios": [g.ratio for g in groups],
        "paused": optimizer._paused,
        "state": [[g.state_of(p, copy=True) for p in g.params] for g in groups],
        "steps": [[g.steps_of(p) for p in g.params] for g in groups],
    }


def _applied(group: ParameterGroup) -> dict[str, Any]:
    """Return the hyper-parameters to which the state belongs: which arrays there are depends on them.

    That does not depend on numbers other than 0, and native code does not note those at each update.
    """
    found = {}
    for k, old in group.checked.items():
        v = group.hyper.get(k, old)
        same = bool(v) == bool(old) if isinstance(v, float) else v == old or k == "betas"
        found[k] = v if same else old
    return found


def read_state(optimizer: Optimizer, state: Any) -> tuple[list[Read], int]:
    """Check a saved ``state``; return the values to restore, as one ``Read`` per group, and the step count.

    A ``Read`` is a tuple: the hyper-parameters, those to which the state belongs, the ratio of the group's
    learning rate to the optimiser's, and a list with the state arrays and step counts of each unit (the
    parameters that are updated together).
    """
    kind = type(optimizer).__name__
    if not isinstance(state, Mapping):
        raise ArgumentError(f"{kind}: the state must be a dictionary, not {words.a(type(state).__name__)}.")
    missing = [k for k in ("kind", "step", "groups", "state", "steps") if k not in state]
    if missing:
        raise ArgumentError(f"{kind}: the state is missing the key {missing[0]!r}.")
    if state["kind"] != kind:
        raise ArgumentError(
            f"{kind}: this is the state of a different optimiser, {state['kind']}.\n"
            f"  Create {state['kind']} to continue, or load only the model's state and use a new {kind}."
        )
    ours = [len(g.params) for g in optimizer.groups]
    for part in ("state", "steps"):
        counts = [len(s) for s in state[part]]
        if counts != ours or len(state["groups"]) != len(ours):
            raise ArgumentError(
                f"{kind}: the state has {counts} parameters per group, but the optimiser has {ours}.\n"
                "  Create the optimiser with the same parameter groups as the one that was saved."
            )
    ratios = state.get("ratios") or [g.ratio for g in optimizer.groups]
    applied = state.get("applied") or state["groups"]
    parts = (optimizer.groups, state["groups"], applied, ratios, state["state"], state["steps"])
    return [_group(optimizer, *each) for each in zip(*parts, strict=True)], _steps("step", state["step"])


def _group(
    optimizer: Optimizer, group: ParameterGroup, new: Any, old: Any, ratio: Any, states: Any, steps: Any
) -> Read:
    hyper, applied = (_hyper(optimizer, group, saved) for saved in (new, old))
    counts = [_steps(f"steps of parameter {i}", n) for i, n in enumerate(steps)]
    by_id = {id(p): (i, s, n) for i, (p, s, n) in enumerate(zip(group.params, states, counts, strict=True))}
    units = [
        (
            _arrays(optimizer, unit, applied, [by_id[id(p)] for p in unit.params]),
            [by_id[id(p)][2] for p in unit.params],
        )
        for unit in group.units
    ]
    return hyper, applied, float(ratio), units


def _hyper(optimizer: Optimizer, group: ParameterGroup, saved: Any) -> dict[str, Any]:
    unknown = sorted(set(saved) - set(group.hyper))
    if unknown:
        raise ArgumentError(f"the state has unknown hyper-parameters {', '.join(unknown)}.")
    hyper = {**group.hyper, **{k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()}}
    optimizer.check(hyper)
    return hyper


def _arrays(
    optimizer: Optimizer, unit: Unit, hyper: dict[str, Any], saved: list[tuple[int, Any, int]]
) -> dict[str, Any] | None:
    """Return the saved state of a unit as flat arrays by name, or None if no parameter was updated yet.

    ``saved`` has for each parameter of the unit its index in the group, its saved state and its step count.
    """
    if not any(s or steps for _, s, steps in saved):
        return None
    found = unit.initial_state(optimizer, hyper)
    for p, (i, s, _) in zip(unit.params, saved, strict=True):
        if s and set(s) != set(found):
            raise ArgumentError(f"the state of parameter {i} has keys {sorted(s)}, not {sorted(found)}.")
        for name, value in s.items():
            found[name][unit.slice_of(p)] = _fitted(f"state {name!r} of parameter {i}", value, p)
    return found


def _fitted(what: str, value: Any, p: Tensor) -> Any:
    found = fitting(value, p)
    if isinstance(found, str):
        raise ShapeError(f"{what} {found}.")
    return found.reshape(-1)


def _steps(what: str, value: Any) -> int:
    if whole_number("load_state_dict", what, value) < 0:
        raise ArgumentError(f"load_state_dict: {what} must not be negative, but is {value!r}.")
    return int(value)
