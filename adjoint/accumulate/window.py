"""Configuration, window, saved state, statistics and events of an accumulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from adjoint.accumulate.arrays import checked_sum_dtype
from adjoint.accumulate.sums import GradientBuffer
from adjoint.core.node import Handle, HookList
from adjoint.errors import AccumulationError, AdjointError, ArgumentError, InputError, UnknownNameError
from adjoint.grads.norm import check_max_norm, check_norm_order
from adjoint.grads.scaler import checked_count

__all__ = ["AccumulationConfig", "AccumulationEvent", "AccumulationStats", "Listeners", "Window"]

_WORDS = {"nonfinite": ("raise", "skip", "skip_window", "allow"), "reduction": ("mean", "sum")}


@dataclass(frozen=True, slots=True)
class AccumulationConfig:
    """How gradients of micro-batches become the gradient of the whole batch.

    Parameters
    ----------
    accumulation_steps
        Micro-batches of a window.
    normalize
        Divide the sums by the weight of the window.
    max_grad_norm
        Clip the global norm to this once, after normalising; None: do not.
    dtype
        Dtype of the sums; None: that of the gradients, at least float32.
    nonfinite
        What a NaN or an infinity does: "raise" an error and add nothing; "skip" the micro-batch, its weight
        too; "skip_window", no update from it; "allow" it into the sum.
    compensated
        Sum the rounding errors as well, for very long windows.
    reduction
        What the losses are: "mean" over their micro-batch (Σ nᵢ·gᵢ / Σ nᵢ) or "sum" (Σ gᵢ / Σ nᵢ), with nᵢ
        the weights.
    norm_type
        Order of the norm, ``math.inf`` too.

    Examples
    --------
    >>> AccumulationConfig(accumulation_steps=8).effective_batch_size(32)
    256
    """

    accumulation_steps: int = 4
    normalize: bool = True
    max_grad_norm: float | None = None
    dtype: Any = None
    nonfinite: str = "raise"
    compensated: bool = False
    reduction: str = "mean"
    norm_type: float = 2.0

    def __post_init__(self) -> None:
        steps = _whole("accumulation_steps is a whole number from 1", self.accumulation_steps, 1)
        object.__setattr__(self, "accumulation_steps", steps)
        for name in ("normalize", "compensated"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name} is True or False, but got {getattr(self, name)!r}.")
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                known = ", ".join(map(repr, words))
                raise ArgumentError(f"{name} is one of {known}, but got {getattr(self, name)!r}.")
        if self.max_grad_norm is not None:
            object.__setattr__(self, "max_grad_norm", check_max_norm(self.max_grad_norm, "max_grad_norm"))
        if self.dtype is not None:
            object.__setattr__(self, "dtype", checked_sum_dtype("dtype", self.dtype))
        try:
            check_norm_order(self.norm_type)
        except AdjointError as error:
            raise ArgumentError(f"norm_type: {error}") from None

    @classmethod
    def of(cls, config: Any, options: dict[str, Any]) -> AccumulationConfig:
        """Return a config as it was given, or one of options by name."""
        if config is not None and options:
            raise ArgumentError(
                f"GradientAccumulator: give a config or options, not both: {', '.join(sorted(options))}."
            )
        if config is not None and not isinstance(config, AccumulationConfig):
            raise InputError(
                f"config is an AccumulationConfig, but got {type(config).__name__}.\n"
                "  The number of micro-batches is accumulation_steps=…."
            )
        known = [f.name for f in fields(cls)]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise ArgumentError(
                f"GradientAccumulator has no option {', '.join(map(repr, unknown))}.\n"
                f"  It has {', '.join(known)} and clip."
            )
        return cls(**options) if config is None else config

    def effective_batch_size(self, micro: int) -> int:
        """Return the size of the batch that a window of micro-batches of this size stands for."""
        return (
            _whole("the size of a micro-batch is a whole number from 0", micro, 0) * self.accumulation_steps
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "dtype": None if self.dtype is None else self.dtype.name}


def _whole(what: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ArgumentError(f"{what}, but got {value!r}.")
    return int(value)


FORMAT = 1  # of saved states
_FREE = ("max_grad_norm", "norm_type", "nonfinite")  # of a config: a resumed run may choose these anew
_HERE = ("first", "last", "done")  # fields that hold in this process only
_LATER = ("skipped", "norm", "clipped_norm", "told", "scaled")  # fields that older states lack
_DROPPED = ("clipped",)  # fields that older states have


@dataclass(slots=True)
class Window:
    """The micro-batches since the last update: their weight, and what has become of them."""

    micro_batches: int = 0  # begun in this window, the skipped ones too
    added: int = 0  # of which so many were added
    weight: float = 0.0
    closed: bool = False  # flushed: takes no more
    spoiled: bool = False  # a micro-batch was not finite, and the policy is to skip the window
    finished: bool = False  # the sums are normalised and clipped
    torn: bool = False  # sums or parameters are being changed; if that was interrupted, they are in part
    open: set[str] = field(default_factory=set)  # names that ``accumulate`` gave to the current micro-batch
    open_weight: float = 0.0
    skipped: int = 0  # micro-batches that were left out because they were not finite
    norm: float | None = None  # of the gradient before clipping, where it was computed
    clipped_norm: float | None = None  # and after, where it was clipped
    told: bool = False  # the event of the clip was sent
    scaled: bool = False  # a ``GradScaler`` scaled a loss inside ``micro_batch``
    # When the first and the last micro-batch came, on the clock of ``GradScaler``; None: not known.
    first: int | None = None
    last: int | None = None
    done: list[Any] = field(default_factory=list)  # of several optimisers, those that made their update

    def state_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _HERE}
        return {**values, "open": sorted(self.open)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], steps: int, names: Collection[str]) -> Window:
        """Make a window of saved values, or say which of them cannot be."""
        known = cls().state_dict()
        missing = [name for name in known if name not in state and name not in _LATER]
        strange = [name for name in state if name not in known and name not in _DROPPED]
        if missing or strange:
            raise ArgumentError(
                "load_state_dict: the window "
                + (f"is missing keys: {listed(missing)}." if missing else f"has no {listed(strange)}.")
            )
        values = {name: state.get(name, like) for name, like in known.items()}
        for name, like in known.items():
            if not _is_like(values[name], like):
                raise ArgumentError(f"load_state_dict: window[{name!r}] cannot be {values[name]!r}.")
        strangers = sorted(set(values["open"]) - set(names))
        if strangers:
            raise UnknownNameError(
                f"load_state_dict: the window is open for {listed(strangers)}, which is not registered."
            )
        window = cls(**{**values, "open": set(values["open"])})
        most = max(window.added, window.skipped)
        if most > window.micro_batches or window.micro_batches > steps or window.torn:
            raise ArgumentError(
                f"load_state_dict: a window of {steps} micro-batches cannot have {window.micro_batches}, of "
                f"which {window.added} were added and {window.skipped} skipped"
                f"{', and be torn' if window.torn else ''}."
            )
        return window


def _is_like(value: Any, like: Any) -> bool:
    """Tell whether a saved value is a count, a weight, a flag, names, or a norm or None, as ``like`` is."""
    if isinstance(like, list):
        return isinstance(value, (list, tuple, set)) and all(isinstance(n, str) for n in value)
    if isinstance(like, bool) or isinstance(value, bool):
        return type(value) is type(like)
    if like is None:
        return value is None or isinstance(value, (int, float))
    kinds = (int, np.integer) if isinstance(like, int) else (int, float, np.number)
    return isinstance(value, kinds) and bool(0 <= value < math.inf)


def read_state(
    state: Any,
    config: AccumulationConfig,
    buffers: list[GradientBuffer],
    totals: Iterable[str],
    later: Collection[str],
) -> tuple[Window, dict[str, int], list[GradientBuffer]]:
    """Return window, totals and buffers of a saved accumulator that fits here, or say why it does not.

    The state may lack buffers of names in ``later``: they are empty.
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
    buffers: list[GradientBuffer],
    totals: Iterable[str],
    later: Collection[str],
) -> tuple[Window, dict[str, int], list[GradientBuffer]]:
    found, own, saved = state["format"], config.state_dict(), state["buffers"]
    if isinstance(found, bool) or found != FORMAT:
        raise ArgumentError(
            f"load_state_dict: this version of adjoint reads states of format {FORMAT}, but got {found!r}."
        )
    known = {b.name for b in buffers if b.name in saved or b.name not in later}
    if set(saved) != known:
        lacks, has = sorted(known - set(saved)), sorted(set(saved) - known)
        parts = [f"it lacks {listed(lacks)}"] * bool(lacks) + [f"it has {listed(has)} too"] * bool(has)
        raise UnknownNameError(
            f"load_state_dict: the saved names are not those registered here: {' and '.join(parts)}.\n"
            "  Make the accumulator with the parameters, or register the names, that the saved one had."
        )
    differing = [k for k, v in own.items() if k not in _FREE and state["config"][k] != v]
    if differing:
        raise ArgumentError(
            "load_state_dict: the saved window was made with another config: "
            + ", ".join(f"{k}={state['config'][k]!r}, here {own[k]!r}" for k in differing)
            + ".\n  Make this accumulator with the saved values; max_grad_norm, norm_type and nonfinite may "
            "differ."
        )
    window = Window.from_state(state["window"], config.accumulation_steps, known)
    counts = {k: checked_count(f"totals[{k!r}]", state["totals"][k]) for k in totals}
    loaded = []
    for b in buffers:
        new = GradientBuffer(b.shape, b._dtype, compensated=b.compensated, name=b.name)
        if b.name in saved:
            new.load_state_dict(saved[b.name])
        if new.count > window.micro_batches:
            raise ArgumentError(
                f"load_state_dict: {b.name!r} has {new.count} gradients, but the window has only "
                f"{window.micro_batches} micro-batches."
            )
        loaded.append(new)
    return window, counts, loaded


@dataclass(frozen=True, slots=True)
class AccumulationStats:
    """Counts since the accumulator was made, and the state of its window."""

    total_micro_batches: int
    total_updates: int
    accumulation_steps: int
    registered_params: int
    total_param_elements: int
    skipped_micro_batches: int
    skipped_windows: int
    dropped_windows: int
    clipped_windows: int
    window_micro_batches: int
    window_weight: float

    def effective_batch_multiplier(self) -> int:
        """Return how many micro-batches make a batch."""
        return self.accumulation_steps


@dataclass(frozen=True, slots=True)
class AccumulationEvent:
    """Something a trainer may log.

    ``kind`` is "full" (the last of ``accumulation_steps`` micro-batches has come; ``flush`` sends no event),
    "clip" (the norm was ``norm`` and is now ``clipped_norm``), "skip" (a micro-batch, or with
    ``window=True`` an update, was left out, because of ``names``) or "update" (an update was made, by
    ``apply`` or from ``gradients`` before ``reset``, with ``norm`` where it was computed and
    ``clipped_norm`` where that was clipped).
    """

    kind: str
    micro_batches: int
    weight: float
    norm: float | None = None
    clipped_norm: float | None = None
    names: tuple[str, ...] = ()
    window: bool = False


# what holds although a callback raised
_STANDS = {
    "full": "the micro-batch was added and the window is full.",
    "clip": "the window is whole, and apply() or gradients() may be called again.",
    "skip": "the {} was left out all the same.",
    "update": "the update was made and the next window has begun.",
}


class Listeners:
    """Callbacks by the kind of event."""

    def __init__(self) -> None:
        self._lists = {kind: HookList() for kind in _STANDS}

    def add(self, kind: str, callback: Callable[[AccumulationEvent], None]) -> Handle:
        """Call ``callback(event)`` at each event of a kind; the handle removes it."""
        if kind not in self._lists:
            raise ArgumentError(f"events are {', '.join(map(repr, self._lists))}, but got {kind!r}.")
        if not callable(callback):
            raise ArgumentError(f"a callback is a function, but got {type(callback).__name__}.")
        return self._lists[kind].add(callback)

    def tell(self, kind: str, of: Window, **facts: Any) -> None:
        """Call the callbacks of a kind, in the order of registration."""
        if not self._lists[kind].hooks:
            return
        event = AccumulationEvent(kind, of.micro_batches, of.weight, **facts)
        for callback in self._lists[kind].snapshot():
            try:
                callback(event)
            except Exception as error:
                what = "window" if event.window else "micro-batch"
                error.add_note(f"This came from a callback on {kind!r}; {_STANDS[kind]}".format(what))
                raise


def refuse_torn(window: Window) -> None:
    """Raise if an interrupt left the window changed in part."""
    if window.torn:
        raise AccumulationError(
            "an interrupt came while gradients were being added, divided or applied, so the window is not "
            "whole; parameters may be updated in part.\n"
            "  drop() discards the window; load_state_dict() goes back to a saved one."
        )


def listed(names: Iterable[str]) -> str:
    """Return names for a message, not more than a dozen."""
    shown = [repr(n) for n in names]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
