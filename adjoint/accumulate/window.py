"""The window of an accumulator: its options, its state, and the statistics and events of windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from adjoint import words
from adjoint.accumulate.foreign import checked_sum_dtype, sum_dtype
from adjoint.core.node import Handle, HookList
from adjoint.core.shapes import number, number_between, whole_from
from adjoint.errors import AccumulationError, AdjointError, ArgumentError, InputError, UnknownNameError
from adjoint.grads.norm import check_max_norm, check_norm_order

__all__ = ["COUNTS", "FORMAT", "AccumulationConfig", "AccumulationEvent", "AccumulationStats", "Listeners",
           "Window", "check_like", "checked_weight", "read_window"]  # fmt: skip

COUNTS = ("total_micro_batches", "total_updates", "skipped_micro_batches",
          "skipped_windows", "dropped_windows", "clipped_windows")  # fmt: skip
FORMAT = 4  # of saved states
_FREE = ("max_grad_norm", "norm_type", "nonfinite")  # options that a resumed run may change
_WORDS = {"nonfinite": ("raise", "skip", "skip_window", "allow"), "reduction": ("mean", "sum")}


@dataclass(frozen=True, slots=True)
class AccumulationConfig:
    """Options of a ``GradientAccumulator``.

    Parameters
    ----------
    accumulation_steps : int
        Number of micro-batches per window, that is per update.
    normalize : bool
        Whether to divide the sums by the weight of the window.
    max_grad_norm : float or None
        Bound on the global norm of the normalised gradient.  None does not clip.
    dtype : dtype or None
        Dtype of the sums.  None uses the dtype of the gradients, at least float32.
    nonfinite : str
        What to do with a micro-batch that has a NaN or an infinity.  ``"raise"`` raises and adds nothing;
        ``"skip"`` leaves out the micro-batch and its weight; ``"skip_window"`` makes no update from the
        window; ``"allow"`` adds the micro-batch.
    compensated : bool
        Whether to sum the rounding errors as well, for very long windows.
    reduction : str
        How the loss reduces its micro-batch.  With ``"mean"`` the gradient of the window is Σ nᵢ·gᵢ / Σ nᵢ,
        where nᵢ are the weights; with ``"sum"`` it is Σ gᵢ / Σ nᵢ.
    norm_type : float
        Order of the norm that ``max_grad_norm`` limits; ``math.inf`` is allowed.

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
        steps = whole_from(1, "accumulation_steps", self.accumulation_steps)
        object.__setattr__(self, "accumulation_steps", steps)
        for name in ("normalize", "compensated"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name} must be True or False, but is {getattr(self, name)!r}.")
        for name, allowed in _WORDS.items():
            if getattr(self, name) not in allowed:
                known = ", ".join(map(repr, allowed))
                raise ArgumentError(f"{name} must be one of {known}, but is {getattr(self, name)!r}.")
        if self.max_grad_norm is not None:
            object.__setattr__(self, "max_grad_norm", check_max_norm(self.max_grad_norm, "max_grad_norm"))
        if self.dtype is not None:
            object.__setattr__(self, "dtype", checked_sum_dtype("dtype", self.dtype))
        try:
            check_norm_order(self.norm_type)
        except AdjointError as error:
            raise ArgumentError(f"norm_type: {error}") from None

    @classmethod
    def _of(cls, config: Any, options: dict[str, Any]) -> AccumulationConfig:
        """Return the given config, or create one from the options."""
        if config is not None and options:
            raise ArgumentError(
                f"GradientAccumulator: pass config or {', '.join(sorted(options))}, not both."
            )
        if config is not None and not isinstance(config, AccumulationConfig):
            raise InputError(
                f"GradientAccumulator: config must be an AccumulationConfig, not "
                f"{words.a(type(config).__name__)}.\n"
                "  Pass the number of micro-batches as accumulation_steps=…."
            )
        known = [f.name for f in fields(cls)]
        if unknown := [name for name in options if name not in known]:
            raise InputError(
                f"GradientAccumulator: there is no {unknown[0]}=; it takes {', '.join(known)}, "
                "clip and group."
            )
        return cls(**options) if config is None else config

    def _sum_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of the sum of a parameter of ``dtype``."""
        own = sum_dtype(dtype)
        return own if self.dtype is None else np.result_type(self.dtype, "F" if own.kind == "c" else "f")

    def effective_batch_size(self, micro: int) -> int:
        """Return the number of examples in a full window.

        Parameters
        ----------
        micro : int
            Number of examples per micro-batch.

        Returns
        -------
        int
            ``micro * accumulation_steps``.
        """
        return whole_from(0, "the size of a micro-batch", micro) * self.accumulation_steps

    def state_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "dtype": None if self.dtype is None else self.dtype.name}


def checked_weight(weight: Any, what: str = "weight") -> float:
    """Return a weight as a float; raise unless it is finite and not negative."""
    return number_between(what, number("GradientAccumulator", what, weight), 0.0)


@dataclass(slots=True)
class Window:
    """The state of the current window: the micro-batches since the last update."""

    micro_batches: int = 0  # including skipped ones
    skipped: int = 0  # left out because they were not finite
    weight: float = 0.0
    closed: bool = False  # by ``flush``
    spoiled: bool = False  # a micro-batch was not finite, and the policy is to skip the window
    finished: bool = False  # the sums are the gradient
    scaled: bool = False  # a GradScaler scaled a loss
    open: list[str] = field(default_factory=list)  # names that ``accumulate`` gave to the last micro-batch
    open_weight: float = 0.0
    norm: float | None = None  # of the gradient before clipping, if it was computed
    clipped_norm: float | None = None  # and after, if it was clipped
    # from here on not saved
    changing: bool = False  # sums or parameters are being changed; stays True if that was interrupted
    # when the first and the last micro-batch came, on the clock of GradScaler
    first: int | None = None
    last: int | None = None
    gradient: dict[str, Any] | None = None  # normalised and clipped, by ``apply``
    done: list[Any] = field(default_factory=list)  # of several optimisers, those that made their update
    reduced: bool = False  # the sums are those of all ranks
    steps: int = 1  # micro-batches of a full window

    def is_ready(self) -> bool:
        """Return whether the window is full, or was closed by ``flush``."""
        return self.closed or self.micro_batches >= self.steps

    def check_whole(self) -> None:
        """Raise if an interrupt has left the window incomplete."""
        if self.changing:
            raise AccumulationError(
                "an interrupt stopped the accumulator while it added, divided or applied gradients.\n"
                "  The window is incomplete, and some parameters may already be updated.\n"
                "  Call drop() to discard the window, or load_state_dict() to restore a saved one."
            )

    def check_open(self, joins: bool = False) -> None:
        """Raise if no gradient can be added; one that ``joins`` the last micro-batch fits a full window."""
        self.check_whole()
        if self.closed or (self.micro_batches >= self.steps and not joins):
            raise AccumulationError(
                f"the window {'was flushed' if self.closed else 'is full'} ({self.micro_batches} of "
                f"{self.steps} micro-batches), so no more can be added.\n"
                "  Make the update with apply(optimizer), or with gradients() and then reset().\n"
                "  Call drop() to discard the window."
            )

    def check_ready(self) -> None:
        """Raise if the window is not full."""
        self.check_whole()
        if not self.is_ready():
            raise AccumulationError(
                f"the window has only {self.micro_batches} of {self.steps} micro-batches.\n"
                "  Add more, close the window with flush(), or discard it with drop()."
            )

    def __enter__(self) -> None:
        """Mark the window as incomplete while a block changes it; the mark stays after an interrupt."""
        self.changing = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # what raises an exception has changed nothing
        self.changing = kind is not None and not issubclass(kind, Exception)

    def saved(self) -> dict[str, Any]:
        """Return the state for ``loaded``, as plain values."""
        if self.done:
            raise AccumulationError(
                f"state_dict: {len(self.done)} of the optimisers made an update from this window before a "
                "later optimiser raised, so a resumed run would repeat that update.\n"
                "  Call apply() again with all optimisers, or call drop()."
            )
        names = [f.name for f in fields(self)]
        found = {name: getattr(self, name) for name in names[: names.index("changing")]}
        return {**found, "open": list(self.open)}

    def loaded(self, state: Mapping[str, Any]) -> Window:
        """Return the window of a saved state, with as many steps as this one; raise if it is invalid."""
        check_like(state, Window().saved(), "window")
        new = Window(**{**state, "open": list(state["open"])}, steps=self.steps)
        if not new.skipped <= new.micro_batches <= new.steps:
            raise ArgumentError(f"load_state_dict: the saved counts contradict each other: {new!r}.")
        return new


# the types of saved values, by the type of a new one
_KINDS: dict[type, Any] = {bool: bool, int: (int, np.integer), float: (int, float, np.number), str: str,
                           list: list, dict: Mapping, type(None): (int, float, type(None))}  # fmt: skip


def check_like(saved: Any, new: Mapping[str, Any], what: str) -> None:
    """Raise if a saved dictionary has different keys or kinds of values than ``new``."""
    if not isinstance(saved, Mapping) or saved.keys() != new.keys():
        keys = saved.keys() if isinstance(saved, Mapping) else set()
        parts = [f"is missing keys: {words.quoted(k for k in new if k not in keys)}"] * bool(
            new.keys() - keys
        )
        parts += [f"has unknown keys: {words.quoted(keys - new.keys())}"] * bool(keys - new.keys())
        raise ArgumentError(
            f"load_state_dict: {what} {' and '.join(parts)}.\n"
            "  Pass the value returned by state_dict().  If ad.load returned several objects, pass only the "
            "accumulator's entry."
        )
    for key, value in saved.items():
        own = new[key]
        fits = isinstance(value, _KINDS[type(own)]) and isinstance(value, bool) is isinstance(own, bool)
        if isinstance(own, (int, float)):
            fits = fits and bool(0 <= value < math.inf)
        if not fits:
            raise ArgumentError(f"load_state_dict: {what}[{key!r}] has the invalid value {value!r}.")


def read_window(
    state: Any, names: Collection[str], window: Window, config: AccumulationConfig
) -> tuple[Window, dict[str, int]]:
    """Return the window and the counts of the saved state of an accumulator.

    Raises if they do not match the parameters ``names``, the current window or the options.
    """
    parts: dict[str, Any] = {"config": {}, "window": {}, "counts": {}, "buffers": {}}
    check_like(state, {"format": FORMAT, **parts, "unit": 1.0}, "state")
    if state["format"] != FORMAT:
        raise ArgumentError(
            f"load_state_dict: the state has format {state['format']}, but this version of adjoint "
            f"reads format {FORMAT}."
        )
    here, saved = set(names), state["buffers"].keys()
    if here != saved:
        found = [f"the state is missing {words.quoted(sorted(here - saved))}"] * bool(here - saved)
        found += [f"{words.quoted(sorted(saved - here))} is not registered"] * bool(saved - here)
        raise UnknownNameError(
            f"load_state_dict: the names differ from those of the state: {' and '.join(found)}.\n"
            "  Create the accumulator with the same parameters, or register the same names."
        )
    own, theirs = config.state_dict(), state["config"]
    if differing := [k for k, v in own.items() if k not in _FREE and theirs.get(k) != v]:
        raise ArgumentError(
            "load_state_dict: the state was saved with different options: "
            + ", ".join(f"{k}={theirs.get(k)!r} instead of {own[k]!r}" for k in differing)
            + ".\n  Create the accumulator with the saved options.  Only max_grad_norm, norm_type and "
            "nonfinite may differ."
        )
    check_like(state["counts"], dict.fromkeys(COUNTS, 0), "counts")
    new = window.loaded(state["window"])
    if not all(name in here for name in new.open):
        raise UnknownNameError(
            "load_state_dict: the saved micro-batch has gradients of parameters that are not registered."
        )
    return new, dict(state["counts"])


@dataclass(frozen=True, slots=True)
class AccumulationStats:
    """Counts since the accumulator was created, and the state of the current window.

    Parameters
    ----------
    total_micro_batches : int
        Number of micro-batches, including skipped ones.
    total_updates : int
        Number of updates.
    accumulation_steps : int
        Number of micro-batches in a full window.
    registered_params : int
        Number of registered parameters.
    total_param_elements : int
        Number of elements of all registered parameters.
    skipped_micro_batches : int
        Number of micro-batches that were skipped because they were not finite.
    skipped_windows : int
        Number of windows that made no update.
    dropped_windows : int
        Number of windows that ``drop`` discarded.
    clipped_windows : int
        Number of windows whose gradient was clipped.
    window_micro_batches : int
        Number of micro-batches in the current window.
    window_weight : float
        Weight of the current window.
    """

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
        """Return the number of micro-batches in a full window."""
        return self.accumulation_steps


@dataclass(frozen=True, slots=True)
class AccumulationEvent:
    """An event of an accumulator, passed to the callbacks of ``GradientAccumulator.on``.

    Parameters
    ----------
    kind : str
        ``"full"``: the last micro-batch of the window was added.  ``"clip"``: the gradient was clipped.
        ``"skip"``: a micro-batch or a window was skipped.  ``"update"``: an update was made.
    micro_batches : int
        Number of micro-batches in the window.
    weight : float
        Weight of the window.
    norm : float or None
        Norm of the gradient before clipping, if it was computed.
    clipped_norm : float or None
        Norm after clipping, if the gradient was clipped.
    names : tuple of str
        With ``"skip"``, the parameters whose gradients were not finite.
    window : bool
        With ``"skip"``, whether the whole window was skipped.
    """

    kind: str
    micro_batches: int
    weight: float
    norm: float | None = None
    clipped_norm: float | None = None
    names: tuple[str, ...] = ()
    window: bool = False


# the state of the accumulator after a callback raised
_NOTES = {
    "full": "the micro-batch was added and the window is full.",
    "clip": "the window is unchanged, and apply() or gradients() may be called again.",
    "skip": "the {} was left out.",
    "update": "the update was made and the next window has begun.",
}


class Listeners:
    """Callbacks by the kind of event."""

    def __init__(self) -> None:
        self._lists = {kind: HookList() for kind in _NOTES}

    def add(self, kind: str, callback: Callable[[AccumulationEvent], None]) -> Handle:
        """Register a callback for a kind of event; return a handle that removes it."""
        if kind not in self._lists:
            raise ArgumentError(
                f"on: the event must be one of {', '.join(map(repr, self._lists))}, not {kind!r}."
            )
        if not callable(callback):
            raise ArgumentError(f"on: a callback must be a function, not {words.a(type(callback).__name__)}.")
        return self._lists[kind].add(callback)

    def send(self, kind: str, of: Any, **facts: Any) -> None:
        """Call the callbacks of a kind in the order of registration, with an event of the window ``of``."""
        if not self._lists[kind].hooks:
            return
        event = AccumulationEvent(kind, of.micro_batches, of.weight, **facts)
        for callback in self._lists[kind].snapshot():
            try:
                callback(event)
            except Exception as error:
                what = "window" if event.window else "micro-batch"
                error.add_note(f"Raised by a callback of the event {kind!r}: {_NOTES[kind].format(what)}")
                raise
