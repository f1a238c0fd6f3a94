"""Reading a saved accumulator: every value is looked at before any is taken."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from adjoint.errors import AdjointError, ArgumentError, UnknownNameError
from adjoint.grads.buffers import GradientBuffer, checked_count
from adjoint.grads.windows import AccumulationConfig, Window, differing_names

__all__ = ["FORMAT", "read_state", "saved_names"]

FORMAT = 1
_FREE = ("max_grad_norm", "norm_type", "nonfinite")  # a resumed run may choose these anew

Read = tuple[Window, dict[str, int], list[GradientBuffer]]


def saved_names(state: Any) -> Collection[str]:
    """Return the names that have a part in a saved state; none where that is no state."""
    saved = state.get("buffers") if isinstance(state, Mapping) else None
    return saved.keys() if isinstance(saved, Mapping) else ()


def read_state(
    state: Any,
    config: AccumulationConfig,
    buffers: Mapping[str, GradientBuffer],
    totals: Iterable[str],
    later: Collection[str],
) -> Read:
    """Return window, totals and buffers of a saved state that fits here, or say why it does not.

    The state may lack those ``later`` than it: they are empty.
    """
    try:
        return _read(state, config, buffers, totals, later)
    except AdjointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ArgumentError(
            f"load_state_dict: this is not a state of a GradientAccumulator ({error!r}).\n"
            "  It takes what state_dict() returned, or its part of what ad.load read."
        ) from None


def _read(
    state: Any,
    config: AccumulationConfig,
    buffers: Mapping[str, GradientBuffer],
    totals: Iterable[str],
    later: Collection[str],
) -> Read:
    found = state["format"]
    if isinstance(found, bool) or found != FORMAT:
        raise ArgumentError(
            f"load_state_dict: this version of adjoint reads states of format {FORMAT}, but got {found!r}."
        )
    saved = state["buffers"]
    known = {name for name in buffers if name in saved or name not in later}
    if set(saved) != known:
        raise UnknownNameError(differing_names(set(saved), known))
    own = config.state_dict()
    differing = [k for k, v in own.items() if k not in _FREE and state["config"][k] != v]
    if differing:
        raise ArgumentError(
            "load_state_dict: the saved window was made with another config: "
            + ", ".join(f"{k}={state['config'][k]!r}, here {own[k]!r}" for k in differing)
            + ".\n  Make this accumulator with the saved values; max_grad_norm, norm_type and nonfinite may "
            "differ."
        )
    window = Window.from_state(state["window"], config.accumulation_steps, buffers)
    counts = {k: checked_count(f"totals[{k!r}]", state["totals"][k]) for k in totals}
    loaded = []
    for name, b in buffers.items():
        trial = GradientBuffer(b.shape, b._dtype, compensated=b.compensated, name=name)
        if name in saved:
            trial.load_state_dict(saved[name])
        if trial.count > window.micro_batches:
            raise ArgumentError(
                f"load_state_dict: {name!r} has {trial.count} gradients, but the window has only "
                f"{window.micro_batches} micro-batches."
            )
        loaded.append(trial)
    return window, counts, loaded
