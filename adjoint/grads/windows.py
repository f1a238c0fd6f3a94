"""What an accumulator is told and tells: its configuration, the state of its window, statistics, events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

import numpy as np

from adjoint.core.node import Handle, HookList
from adjoint.errors import (
    AccumulationError,
    AdjointError,
    ArgumentError,
    InputError,
    NonFiniteError,
    UnknownNameError,
)
from adjoint.grads.buffers import GradientBuffer, checked_count, checked_sum_dtype, checked_weight
from adjoint.grads.norm import check_max_norm, check_norm_order

__all__ = ["AccumulationConfig", "AccumulationEvent", "AccumulationStats", "Listeners", "Window"]

_WORDS = {
    "nonfinite": ("raise", "skip", "skip_window", "allow"),
    "reduction": ("mean", "sum"),
}


@dataclass(frozen=True, slots=True)
class AccumulationConfig:
    """How gradients of micro-batches become the gradient of the whole batch.

    ``accumulation_steps`` micro-batches make a window.  ``reduction`` says what the losses are:
    "mean" over their micro-batch (Σ nᵢ·gᵢ / Σ nᵢ) or "sum" (Σ gᵢ / Σ nᵢ), with nᵢ the weights.
    ``normalize=False`` leaves the division out.  ``max_grad_norm`` clips the global norm (of order
    ``norm_type``) once, after normalising.  ``dtype`` is that of the sums; None: that of the
    gradients, at least float32.  ``compensated`` sums rounding errors too, for very long windows.
    ``nonfinite`` says what a NaN or an infinity does: "raise" an error and add nothing; "skip" the
    micro-batch, its weight too; "skip_window", no update from it; "allow" it into the sum.

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
        steps = self.accumulation_steps
        if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1:
            raise ArgumentError(f"accumulation_steps is a whole number from 1, but got {steps!r}.")
        object.__setattr__(self, "accumulation_steps", int(steps))
        for name in ("normalize", "compensated"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name} is True or False, but got {getattr(self, name)!r}.")
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                listed = ", ".join(map(repr, words))
                raise ArgumentError(f"{name} is one of {listed}, but got {getattr(self, name)!r}.")
        if self.max_grad_norm is not None:
            object.__setattr__(self, "max_grad_norm", check_max_norm(self.max_grad_norm, "max_grad_norm"))
        if self.dtype is not None:
            object.__setattr__(self, "dtype", checked_sum_dtype("dtype", self.dtype))
        try:
            check_norm_order(self.norm_type)
        except AdjointError as error:
            raise ArgumentError(f"norm_type: {error}") from None

    def effective_batch_size(self, micro: int) -> int:
        """Return the size of the batch that a window of micro-batches of this size stands for."""
        if isinstance(micro, bool) or not isinstance(micro, (int, np.integer)) or micro < 0:
            raise ArgumentError(f"the size of a micro-batch is a whole number from 0, but got {micro!r}.")
        return int(micro) * self.accumulation_steps

    def state_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["dtype"] = None if self.dtype is None else self.dtype.name
        return values


_HERE = ("first", "last", "done")  # what a window has in this process alone
_LATER = ("skipped", "norm", "clipped_norm", "told", "scaled")  # what older states of the format lack


def _saved_value(name: str, value: Any, fresh: Window) -> Any:
    """Return a saved field of a window, or say that it is none."""
    what, like = f"window[{name!r}]", getattr(fresh, name, None)
    if name in _HERE or not hasattr(fresh, name):
        raise ArgumentError(f"load_state_dict: a window has no {name!r}.")
    if isinstance(like, bool):
        if not isinstance(value, bool):
            raise ArgumentError(f"load_state_dict: {what} is True or False, but got {value!r}.")
        return value
    if isinstance(like, int):
        return checked_count(what, value)
    if isinstance(like, float):
        return checked_weight(value, f"load_state_dict: {what}")
    if isinstance(like, set):
        if not isinstance(value, (list, tuple, set)) or not all(isinstance(n, str) for n in value):
            raise ArgumentError(f"load_state_dict: {what} is a list of names, but got {value!r}.")
        return set(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise ArgumentError(f"load_state_dict: {what} is a norm or None, but got {value!r}.")
    return value


@dataclass(slots=True)
class Window:
    """The micro-batches since the last update: the one owner of the divisor."""

    micro_batches: int = 0  # begun in this window, the skipped ones too
    added: int = 0  # of which so many were added
    weight: float = 0.0
    closed: bool = False  # flushed: takes no more
    spoiled: bool = False  # a micro-batch was not finite, and the policy is to skip the window
    finished: bool = False  # the sums are normalised and clipped where they are
    clipped: bool = False  # and so by the user's function
    torn: bool = False  # the sums are being changed; if that stopped in the middle, they are not whole
    open: set[str] = field(default_factory=set)  # names that ``accumulate`` gave to the current micro-batch
    open_weight: float = 0.0
    skipped: int = 0  # micro-batches that were left out because they were not finite
    norm: float | None = None  # of the gradient before clipping, where it was computed
    clipped_norm: float | None = None  # and after, where it was clipped
    told: bool = False  # ``gradients`` has told how it was clipped
    scaled: bool = False  # a ``GradScaler`` scaled a loss inside ``micro_batch``
    # When the first and the last micro-batch came, on the clock of ``GradScaler``; None: not known.
    first: int | None = None
    last: int | None = None
    done: list[Any] = field(default_factory=list)  # optimisers that have made their update, of several

    def state_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _HERE}
        values["open"] = sorted(self.open)
        return values

    @classmethod
    def from_state(cls, state: Mapping[str, Any], steps: int, names: Collection[str]) -> Window:
        """Make a window of saved values, or say which of them is none of a window of so many steps."""
        fresh = cls()
        missing = [name for name in fresh.state_dict() if name not in state and name not in _LATER]
        if missing:
            raise ArgumentError(
                f"load_state_dict: the state of a window has {', '.join(map(repr, missing))} too."
            )
        values = {name: _saved_value(name, value, fresh) for name, value in state.items()}
        window = cls(**values)
        strangers = sorted(window.open - set(names))
        if strangers:
            raise UnknownNameError(
                f"load_state_dict: the window is open for {listed(strangers)}, which is not registered."
            )
        counts = window.added, window.skipped, window.micro_batches
        if max(counts) > window.micro_batches or window.micro_batches > steps or window.torn:
            raise ArgumentError(
                f"load_state_dict: a window of {steps} micro-batches cannot have {window.micro_batches}, of "
                f"which {window.added} were added and {window.skipped} skipped"
                f"{', and be torn' if window.torn else ''}."
            )
        return window


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

    @classmethod
    def of(
        cls,
        config: AccumulationConfig,
        totals: Mapping[str, int],
        window: Window,
        buffers: Collection[GradientBuffer],
    ) -> AccumulationStats:
        """Return the statistics of an accumulator."""
        return cls(
            total_micro_batches=totals["micro_batches"],
            total_updates=totals["updates"],
            accumulation_steps=config.accumulation_steps,
            registered_params=len(buffers),
            total_param_elements=sum(b.size for b in buffers),
            skipped_micro_batches=totals["skipped_micro_batches"],
            skipped_windows=totals["skipped_windows"],
            dropped_windows=totals["dropped_windows"],
            clipped_windows=totals["clipped_windows"],
            window_micro_batches=window.micro_batches,
            window_weight=window.weight,
        )

    def effective_batch_multiplier(self) -> int:
        """Return how many micro-batches make a batch."""
        return self.accumulation_steps


@dataclass(frozen=True, slots=True)
class AccumulationEvent:
    """Something a trainer may log.

    ``kind`` is "full" (the last of ``accumulation_steps`` micro-batches has come; ``flush`` tells nobody),
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


KINDS = ("full", "clip", "skip", "update")


# what is so although a callback raised
_STANDS = {
    "full": "the micro-batch was added and the window is full.",
    "clip": "the window is whole, and apply() or gradients() may be called again.",
    "skip": "the {} was left out all the same.",
    "update": "the update was made and the next window has begun.",
}


class Listeners:
    """Callbacks by the kind of event."""

    def __init__(self) -> None:
        self._lists = {kind: HookList() for kind in KINDS}

    def add(self, kind: str, callback: Callable[[AccumulationEvent], None]) -> Handle:
        """Call ``callback(event)`` at each event of a kind; the handle takes it off."""
        if kind not in self._lists:
            raise ArgumentError(f"events are {', '.join(map(repr, KINDS))}, but got {kind!r}.")
        if not callable(callback):
            raise ArgumentError(f"a callback is a function, but got {type(callback).__name__}.")
        return self._lists[kind].add(callback)

    def tell(self, event: AccumulationEvent) -> None:
        """Call those who listen, in the order of registration."""
        for callback in self._lists[event.kind].snapshot():
            try:
                callback(event)
            except Exception as error:
                what = "window" if event.window else "micro-batch"
                error.add_note(
                    f"This came from a callback on {event.kind!r}; {_STANDS[event.kind]}".format(what)
                )
                raise


def config_of(config: Any, options: dict[str, Any]) -> AccumulationConfig:
    """Return a config as it was given, or of options by name, or say which there are."""
    if config is not None and options:
        raise ArgumentError(
            f"GradientAccumulator: give a config or options, not both: {', '.join(sorted(options))}."
        )
    if isinstance(config, AccumulationConfig):
        return config
    if config is not None:
        raise InputError(
            f"config is an AccumulationConfig, but got {type(config).__name__}.\n"
            "  The number of micro-batches is accumulation_steps=…."
        )
    known = AccumulationConfig.__dataclass_fields__
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ArgumentError(
            f"GradientAccumulator has no option {', '.join(map(repr, unknown))}.\n"
            f"  It has {', '.join(known)} and clip."
        )
    return AccumulationConfig(**options)


def torn_error() -> AccumulationError:
    """Say that the sums are not whole."""
    return AccumulationError(
        "an interrupt came while gradients were being added, divided or applied, so the window is not whole; "
        "parameters may be updated in part.\n"
        "  drop() discards the window; load_state_dict() goes back to a saved one."
    )


def half_applied_error(count: int) -> AccumulationError:
    """Say that a window cannot be saved because some optimisers have used it."""
    return AccumulationError(
        f"state_dict: {count} of the optimisers has made its update from this window and another raised, so "
        "a saved state would repeat that update.\n"
        "  Call apply() again with all of them, or drop() the window."
    )


def open_error(window: Window, steps: int) -> AccumulationError:
    """Say that a window is not full."""
    return AccumulationError(
        f"the window has {window.micro_batches} of {steps} micro-batches.\n"
        "  Add more, or close it as it is with flush(); drop() discards it."
    )


def scaled_error() -> AccumulationError:
    """Say that the gradients of a window are still scaled."""
    return AccumulationError(
        "apply: losses of this window were scaled by a GradScaler, and so are its gradients.\n"
        "  Give it the scaler, which divides them: apply(optimizer, scaler=scaler)."
    )


def closed_error(window: Window, steps: int) -> AccumulationError:
    """Say that a window takes no more."""
    what = "was flushed" if window.closed else "is full"
    return AccumulationError(
        f"the window {what} ({window.micro_batches} of {steps} micro-batches) and takes no more.\n"
        "  apply(optimizer), or gradients() and then reset(), makes the update; drop() discards it."
    )


def overflown(norm: float | None, dtypes: Iterable[np.dtype[Any]]) -> NonFiniteError:
    """Say that sums in these dtypes are not finite."""
    wider = any(dtype.char in "fF" for dtype in dtypes)
    return NonFiniteError(
        f"the norm of the summed gradients is {norm}, although each micro-batch was finite.\n"
        f"  {'Sum in float64 (dtype=np.float64), or use' if wider else 'Use'} smaller losses or weights; "
        "drop() discards the window."
    )


def unknown_names(unknown: list[str], known: list[str]) -> str:
    """Say that names are not registered, which are, and which of these was likely meant."""
    near = [match for name in unknown[:3] for match in get_close_matches(str(name), known, 1)]
    meant = f"\n  Is it {listed(near)}?" if near else ""
    return (
        f"no parameter is registered as {listed(unknown)}.  Nothing was added.{meant}\n"
        f"  Registered: {listed(known) if known else 'none; call register(name, shape) first'}."
    )


def differing_names(saved: set[str], known: set[str]) -> str:
    """Say how saved names differ from those registered."""
    missing, surplus = sorted(known - saved), sorted(saved - known)
    parts = ([f"it lacks {listed(missing)}"] if missing else []) + (
        [f"it has {listed(surplus)} too"] if surplus else []
    )
    return (
        f"load_state_dict: the saved names are not those registered here: {' and '.join(parts)}.\n"
        "  Make the accumulator with the parameters, or register the names, that the saved one had."
    )


def listed(names: Iterable[str]) -> str:
    """Return names for a message, not more than a dozen."""
    shown = [repr(n) for n in names]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
