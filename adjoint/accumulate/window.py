"""The window of an accumulator: its options, its state, and the statistics and events of windows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from adjoint import words
from adjoint.accumulate.blocks import checked_sum_dtype, sum_dtype
from adjoint.core.shapes import whole_from
from adjoint.errors import AccumulationError, ArgumentError
from adjoint.grads.norm import check_max_norm, check_norm_order

__all__ = ["COUNTS", "AccumulationConfig", "AccumulationEvent", "AccumulationStats", "Window", "check_like"]

COUNTS = ("total_micro_batches", "total_updates", "skipped_micro_batches",
          "skipped_windows", "dropped_windows", "clipped_windows")  # fmt: skip
_FREE = ("max_grad_norm", "norm_type", "nonfinite")  # options that a resumed run may change
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "normalize": (True, False),
    "nonfinite": ("raise", "skip", "skip_window", "allow"),
    "compensated": (True, False),
    "reduction": ("mean", "sum"),
}


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
        checked: dict[str, Any] = {
            "accumulation_steps": whole_from(1, "accumulation_steps", self.accumulation_steps),
            "norm_type": check_norm_order(self.norm_type, "norm_type"),
        }
        if self.max_grad_norm is not None:
            checked["max_grad_norm"] = check_max_norm(self.max_grad_norm, "max_grad_norm")
        if self.dtype is not None:
            checked["dtype"] = checked_sum_dtype("dtype", self.dtype)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        for name, allowed in _ALLOWED.items():
            value = getattr(self, name)
            if value not in allowed or type(value) is not type(allowed[0]):
                raise ArgumentError(f"{name} must be one of {words.quoted(allowed)}, but is {value!r}.")

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
        """Return the fields that a resumed run must not change, as plain values."""
        found = {**asdict(self), "dtype": "None" if self.dtype is None else self.dtype.name}
        return {name: value for name, value in found.items() if name not in _FREE}


@dataclass(slots=True)
class Window:
    """The state of the current window: the micro-batches since the last update."""

    micro_batches: int = 0  # including skipped ones
    skipped: int = 0  # left out because they were not finite
    weight: float = 0.0
    closed: bool = False  # whether ``flush`` closed the window
    spoiled: bool = False  # a micro-batch was not finite, and the policy is to skip the window
    finished: bool = False  # the sums were replaced by the gradient
    scaled: bool = False  # a GradScaler scaled a loss
    open: list[str] = field(default_factory=list)  # names that ``accumulate`` gave to the last micro-batch
    open_weight: float = 0.0
    # the fields below are not saved
    steps: int = 1  # micro-batches of a full window
    changing: bool = False  # sums or parameters are being changed; stays True if the change was interrupted
    # GradScaler's counter of scale changes at the first and at the last micro-batch
    first: int | None = None
    last: int | None = None
    gradient: dict[str, Any] | None = None  # the gradient that ``apply`` has normalised and clipped
    norm: float | None = None  # of the gradient before clipping, if it was computed
    clipped_norm: float | None = None  # of the gradient after clipping, if it was clipped
    done: list[Any] = field(default_factory=list)  # the optimisers that have made their update
    reduced: bool = False  # the sums are those of all ranks

    def is_ready(self) -> bool:
        """Return whether the window is full, or was closed by ``flush``."""
        return self.closed or self.micro_batches >= self.steps

    def check(self, *, ready: bool | None = None) -> None:
        """Raise if a change of the window was interrupted, or if ``is_ready()`` is not ``ready``.

        With ``ready=None`` only the first is checked.
        """
        if self.changing:
            raise AccumulationError(
                "an error or an interrupt stopped the accumulator while it changed sums or parameters.\n"
                "  The window is incomplete, and some parameters may already be updated.\n"
                "  Call drop() to discard the window, or load_state_dict() to restore a saved one."
            )
        if ready in (None, self.is_ready()):
            return
        has = f"{self.micro_batches} of {self.steps} micro-batches"
        if ready:
            raise AccumulationError(
                f"the window has only {has}.\n"
                "  Add more, call flush() to make an update from these, or call drop() to discard them."
            )
        raise AccumulationError(
            f"the window {'was flushed' if self.closed else 'is full'} ({has}), so no more can be added.\n"
            "  To make the update, call apply(optimizer), or gradients() followed by reset().  To discard "
            "the gradients, call drop()."
        )

    def __enter__(self) -> None:
        """Mark the window as incomplete while a block changes it; the mark stays after an interrupt."""
        self.changing = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # code that raises an exception in such a block has changed nothing
        self.changing = kind is not None and not issubclass(kind, Exception)

    def state_dict(self) -> dict[str, Any]:
        """Return the fields that ``GradientAccumulator.state_dict`` saves."""
        names = [f.name for f in fields(self)]
        found = {name: getattr(self, name) for name in names[: names.index("steps")]}
        return {**found, "open": list(self.open)}


def check_like(saved: Any, own: Any, what: str = "state") -> None:
    """Raise if the saved state has different keys or types of values than ``own``, a state of this program.

    Both are nested dictionaries.  Numbers must be finite and not negative.  Arrays may have a different
    length; an array of objects in ``own`` matches any float or complex dtype.  ``what`` is the path for the
    message.
    """
    if isinstance(own, Mapping):
        keys = saved.keys() if isinstance(saved, Mapping) else ()
        wrong = [(f"is missing keys: {words.quoted(k for k in own if k not in keys)}", own.keys() - keys),
                 (f"has unknown keys: {words.quoted(keys - own.keys())}", keys - own.keys())]  # fmt: skip
        if found := " and ".join(text for text, differ in wrong if differ):
            raise ArgumentError(
                f"load_state_dict: {what} {found}.\n  Create the accumulator with the same parameters, and "
                "pass the value returned by state_dict()."
            )
        for key, value in own.items():
            check_like(saved[key], value, f"{what}[{key!r}]")
        return
    kinds = {int: (int, np.integer), float: (int, float, np.number)}.get(type(own), type(own))
    fits = isinstance(saved, kinds) and isinstance(saved, bool) is isinstance(own, bool)
    if fits and isinstance(own, (int, float)):
        fits = bool(0 <= saved < math.inf)
    if fits and isinstance(own, np.ndarray):
        known = saved.dtype == own.dtype or (own.dtype == object and saved.dtype.kind in "fc")
        fits = saved.shape[1:] == own.shape[1:] and (known or not len(saved))
    if not fits:
        raise ArgumentError(f"load_state_dict: {what} is {saved!r}, but must be a value like {own!r}.")


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
