"""GradientAccumulator: micro-batches that give the gradient of the whole batch.

The window owns the divisor: Σ weight·gradient / Σ weight over all micro-batches, whoever took part in them.
A micro-batch is checked as a whole, then added as a whole.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from adjoint.accumulate.arrays import checked_weight, gradient_array, sum_dtype
from adjoint.accumulate.doors import (
    Clip,
    MicroBatch,
    beyond_parameters,
    clipped_by,
    hand_over,
    named_params,
    optimizers_of,
    split,
)
from adjoint.accumulate.sums import GradientBuffer, Sums, normalised, unit_for
from adjoint.accumulate.window import (
    FORMAT,
    AccumulationConfig,
    AccumulationEvent,
    AccumulationStats,
    Listeners,
    Window,
    listed,
    read_state,
    refuse_torn,
)
from adjoint.core.node import Handle
from adjoint.core.sparse import SparseRows, as_gradient_tensor
from adjoint.core.tensor import Tensor
from adjoint.errors import (
    AccumulationError,
    ArgumentError,
    DTypeError,
    InputError,
    NoGradientError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
)
from adjoint.grads.norm import Measure, all_finite, measured, stored_values
from adjoint.grads.scaler import GradScaler, scale_clock

__all__ = ["GradientAccumulator"]

_TOTALS = ("micro_batches", "updates",
           "skipped_micro_batches", "skipped_windows", "dropped_windows", "clipped_windows")  # fmt: skip


class GradientAccumulator:
    """Sum the gradients of micro-batches; hand over the gradient of the batch they make.

    By name, from any library: ``register``, then ``step({name: gradient}, weight=n)`` until it returns
    True, then ``gradients()`` and ``reset()``.  With adjoint: give it the parameters, run
    ``with acc.micro_batch(weight=n): loss.backward()``, and ``acc.apply(optimizer)`` when
    ``should_update()``.

    Parameters
    ----------
    params
        Parameters: a list, a dictionary by name, or a module.  Frozen ones take part once they require grad.
        None: gradients are given by name.
    config
        An ``AccumulationConfig``; or give its options by name.
    clip
        Function that is called with the normalised gradients, such as any of the ``ad.clip_…`` functions.

    Examples
    --------
    >>> acc = GradientAccumulator(accumulation_steps=2)
    >>> acc.register("w", (2,))
    >>> acc.step({"w": np.array([1.0, 2.0])}, weight=1)
    False
    >>> acc.step({"w": np.array([4.0, 8.0])}, weight=3)
    True
    >>> acc.gradients()["w"]  # (1·[1, 2] + 3·[4, 8]) / 4
    array([3.25, 6.5 ])
    """

    def __init__(
        self,
        params: Any = None,
        config: AccumulationConfig | None = None,
        *,
        clip: Clip | None = None,
        **options: Any,
    ) -> None:
        if isinstance(params, AccumulationConfig) and config is None:
            params, config = None, params
        if clip is not None and not callable(clip):
            raise InputError(f"clip is a function of gradients, but got {type(clip).__name__}.")
        self.config = AccumulationConfig.of(config, options)
        self._clip = clip
        self._sums = Sums()
        self._params: dict[str, Tensor] = {}
        self._slots: dict[int, GradientBuffer] = {}  # by id of the parameter
        self._frozen: dict[str, Tensor] = {}  # parameters that take part as soon as they require grad
        self._unfrozen: set[str] = set()  # those that were among them
        self._short: tuple[int, int] | None = None  # lengths of a short piece of ``split``, and of others
        self._window = Window()
        self._totals = dict.fromkeys(_TOTALS, 0)
        self._listeners = Listeners()
        self._lock = threading.RLock()
        self._last_norm: float | None = None
        for name, t in named_params(params):
            if t.requires_grad:
                self._take_part(name, t)
            else:
                self._frozen[name] = t
        if self._frozen and not self._params:
            raise NoGradientError(
                "GradientAccumulator: none of the parameters requires grad, so there is nothing to add.\n"
                "  requires_grad_(True) unfreezes a module or a tensor."
            )

    # Registration ----------------------------------------------------------------------------

    def register(self, name: str, shape: Any, dtype: Any = None) -> None:
        """Make a buffer for gradients of this name and shape; again with the same does nothing.

        ``dtype`` is that of the sum; None: the config's, or that of the first gradient, at least float32.
        """
        if not isinstance(name, str):
            raise InputError(f"register: a name is a string, but got {type(name).__name__}.")
        with self._lock:
            wanted = self.config.dtype if dtype is None else dtype
            new = GradientBuffer(shape, wanted, compensated=self.config.compensated, name=name)
            old = self._sums.by_name.get(name)
            if old is None:
                self._sums.register(new)
            elif old.shape != new.shape:
                raise ShapeError(f"register: {name!r} has shape {old.shape} already, and not {new.shape}.")
            elif dtype is not None and str(old._dtype) != str(new._dtype):
                has = "takes that of its first gradient" if old._dtype is None else f"is {old._dtype}"
                raise DTypeError(
                    f"register: {name!r} is registered already, and the dtype of its sum {has}, not "
                    f"{new._dtype}."
                )

    def _take_part(self, name: str, t: Tensor) -> None:
        if id(t) in self._slots:
            return  # shared under two names: one gradient
        if name in self._sums.by_name:
            raise ArgumentError(f"GradientAccumulator: two parameters are called {name!r}.")
        self._slots[id(t)] = buffer = self._buffer_of(name, t)
        self._sums.register(buffer)
        self._params[name] = t

    def _buffer_of(self, name: str, t: Tensor) -> GradientBuffer:
        wanted = sum_dtype(t.dtype)
        if self.config.dtype is not None:
            wanted = np.result_type(self.config.dtype, np.complex64 if wanted.kind == "c" else np.float32)
        return GradientBuffer(t.shape, wanted, compensated=self.config.compensated, name=name)

    @property
    def names(self) -> list[str]:
        """The registered names, in order."""
        return list(self._sums.by_name)

    # Adding ----------------------------------------------------------------------------------

    def step(self, gradients: Mapping[str, Any], weight: float = 1.0) -> bool:
        """Add one micro-batch; return whether the window is full.

        Every name, shape and dtype is checked first: after an error nothing has changed.  A
        parameter that had no part in the micro-batch is left out.
        """
        weight = checked_weight(weight)
        with self._lock:
            self._refuse_more()
            arrays = self._sums.matched(gradients) if type(gradients) is dict else None
            if arrays is not None:
                return self._add(self._sums.all, arrays, weight, plain=True)
            return self._add(*self._checked(gradients), weight)

    def accumulate(self, name: str, grad: Any, weight: float = 1.0) -> None:
        """Add one gradient to the current micro-batch; a name that comes again starts the next one.

        All gradients of a micro-batch have its weight.  The window is full from the first of its last
        micro-batch on: ask ``should_update`` when all of them are there.  One that is not finite raises
        under "skip" too: what came before it in the micro-batch is added already.
        """
        weight = checked_weight(weight)
        with self._lock:
            buffers, arrays = self._checked({name: grad})
            window = self._window
            joins = bool(window.open) and name not in window.open
            if not joins or window.torn or window.closed or window.finished:
                self._refuse_more(joins)
            if joins and weight != window.open_weight:
                raise ArgumentError(
                    "accumulate: the gradients of a micro-batch share its weight, "
                    f"{window.open_weight:g}, but {name!r} came with {weight:g}."
                )
            self._add(buffers, arrays, weight, joins=joins, single=name)

    def micro_batch(self, weight: float | None = None) -> MicroBatch:
        """Take what ``backward`` inside the block gives to the parameters, all at the end or nothing.

        No ``.grad`` is touched.  Several backwards add up.  Set ``weight`` of what the block is given
        (``as mb``) when it is known only inside.  None counts as 1, and is refused for a piece of ``split``
        that is shorter than those before it.
        """
        if self._frozen:
            with self._lock:
                for name in [name for name, t in self._frozen.items() if t.requires_grad]:
                    self._unfrozen.add(name)
                    self._take_part(name, self._frozen.pop(name))
        if not self._params:
            raise AccumulationError(
                "micro_batch() needs parameters: GradientAccumulator(params, …).  By name, use step()."
            )
        return MicroBatch(self, weight)

    def _add_micro_batch(self, pending: dict[str, Any], block: MicroBatch) -> None:
        """Add what the backwards of a block gave."""
        with self._lock:
            self._refuse_more()
            whole = len(pending) == len(self._sums.all)
            buffers = self._sums.all if whole else [b for b in self._sums.all if b.name in pending]
            arrays = [b.fitting(pending[b.name]) for b in buffers]
            self._add(buffers, arrays, block.weight, scaled=block.scaled)

    def _checked(self, gradients: Mapping[str, Any]) -> tuple[list[GradientBuffer], list[Any]]:
        """Check a micro-batch against what is registered; return buffers and arrays, in registered order."""
        if not isinstance(gradients, Mapping):
            raise InputError(
                f"step takes a dictionary of gradients by name, but got {type(gradients).__name__}."
            )
        known = self._sums.by_name
        unknown = [name for name in gradients if name not in known]
        if unknown:
            near = [match for name in unknown[:3] for match in get_close_matches(str(name), list(known), 1)]
            meant = f"\n  Is it {listed(near)}?" if near else ""
            raise UnknownNameError(
                f"no parameter is registered as {listed(unknown)}.  Nothing was added.{meant}\n"
                f"  Registered: {listed(known) if known else 'none; call register(name, shape) first'}."
            )
        if not gradients:
            raise NoGradientError("a micro-batch without any gradient: was backward run?")
        whole = len(gradients) == len(known)
        buffers = self._sums.all if whole else [b for n, b in known.items() if n in gradients]
        arrays = []
        for b in buffers:
            value = gradients[b.name]
            weak = isinstance(value, (int, float, list, tuple))
            arrays.append(b.fitting(gradient_array(repr(b.name), value), weak))
        self._sums.remember(list(gradients), arrays)
        return buffers, arrays

    def _add(
        self,
        buffers: list[GradientBuffer],
        arrays: list[Any],
        weight: float,
        *,
        joins: bool = False,
        single: str | None = None,
        scaled: bool = False,
        plain: bool = False,
    ) -> bool:
        """Add gradients that were checked, all of them.

        ``single``: there is one, of this name, a part of a micro-batch, which then cannot be skipped as
        a whole; ``joins``: not its first part.
        """
        window, policy = self._window, self.config.nonfinite
        mean = self.config.reduction == "mean"
        bad: list[str] = []
        if not joins:
            checked_weight(weight, before=window.weight)
        window.torn = True  # until sums and weight agree again
        if not window.spoiled and (weight or not mean):
            sums = self._sums
            unit = unit_for(weight, sums.unit, window.weight) if mean else 1.0
            if unit != sums.unit:
                sums.count_in(unit)
            factor = weight / unit if mean else 1.0
            bad = sums.add(buffers, arrays, factor, check=policy != "allow", plain=plain)
            if not bad:
                sums.count(buffers, weight)
        if bad and (policy == "raise" or (policy == "skip" and single is not None)):
            window.torn = False
            raise NonFiniteError(
                f"this micro-batch has gradients that are not finite: {listed(bad)}.  Nothing was added.\n"
                "  ad.detect_anomaly() finds the op that made them; "
                + f'nonfinite="skip{"_window" if scaled else ""}" '
                + ("lets the GradScaler lower its scale." if scaled else "leaves them out.")
            )
        if not joins:
            window.open = set()
            window.micro_batches += 1
            window.scaled = window.scaled or scaled
            self._totals["micro_batches"] += 1
            if not bad and not window.spoiled:
                window.added += 1
                window.weight += weight
                window.last = scale_clock.now
                window.first = window.last if window.added == 1 else window.first
        if single is not None:
            window.open.add(single)
            window.open_weight = weight
        if bad:
            window.spoiled = policy == "skip_window"
            window.skipped += 1
            self._totals["skipped_micro_batches"] += 1
        window.torn = False
        if bad:
            self._listeners.tell("skip", window, names=tuple(bad))
        full = window.micro_batches >= self.config.accumulation_steps
        if full and not joins:
            self._listeners.tell("full", window)
        return full

    # The window ------------------------------------------------------------------------------

    def should_update(self) -> bool:
        """Tell whether the window is full, or closed by ``flush``."""
        return self._window.closed or self._window.micro_batches >= self.config.accumulation_steps

    def flush(self) -> bool:
        """Close a short window, which then counts with its true weight; False if it is empty."""
        with self._lock:
            self._window.closed = self._window.micro_batches > 0
            return self._window.closed

    def drop(self) -> None:
        """Discard the window: no update, nothing kept."""
        with self._lock:
            self._totals["dropped_windows"] += self._window.micro_batches > 0
            self._clear()

    def reset(self) -> None:
        """Start the next window, after an update was made from ``gradients()``.

        It counts as one also where the window is still open: ``drop`` discards a window.  One that had no
        gradient to give counts as skipped.
        """
        with self._lock:
            if not self._window.micro_batches or self._window.torn:
                self.drop()
            elif self._void():
                self._end("skip", window=True)
            else:
                self._end("update", norm=self._window.norm, clipped_norm=self._window.clipped_norm)

    def _void(self) -> str:
        """Say why the window has no gradient to give; "" if it has one."""
        window = self._window
        if not self._sums.used:
            why = "was skipped: drop() it" if window.micro_batches else "is empty"
            return f"no gradient was added: the window {why}."
        if window.spoiled:
            return "a micro-batch of this window was not finite, so there is no gradient: drop() it."
        if self.config.normalize and not window.weight:
            return (
                "the micro-batches of this window have no weight: there is nothing to divide by.  drop() it."
            )
        return ""

    def _end(self, kind: str, **facts: Any) -> bool:
        """Begin the next window after an update or a skipped one; return whether there was an update."""
        window = self._window
        self._totals["updates" if kind == "update" else "skipped_windows"] += 1
        self._clear()
        self._listeners.tell(kind, window, **facts)
        return kind == "update"

    def _clear(self) -> None:
        torn = self._window.torn
        self._window = window = Window(torn=True)  # until all sums are forgotten
        self._sums.reset(torn=torn)
        window.torn = False

    def _refuse_more(self, joins: bool = False) -> None:
        window, steps = self._window, self.config.accumulation_steps
        refuse_torn(window)
        if window.closed or window.finished or (window.micro_batches >= steps and not joins):
            raise AccumulationError(
                f"the window {'was flushed' if window.closed else 'is full'} ({window.micro_batches} of "
                f"{steps} micro-batches) and takes no more.\n"
                "  apply(optimizer), or gradients() and then reset(), makes the update; drop() discards it."
            )

    def divisor(self) -> float:
        """Return what the sums are divided by: the weight of the window, or 1 without ``normalize``."""
        return self._window.weight if self.config.normalize else 1.0

    # The gradient ----------------------------------------------------------------------------

    def gradients(self, *, zeros: bool = False) -> dict[str, Any]:
        """Return the gradient of the window by name: normalised, then clipped, in new arrays.

        A parameter that had no part in any micro-batch is missing, or zero with ``zeros=True``.
        Sparse gradients are ``SparseGradient`` tensors.  The window may still be open: then this is a
        look.  Of a full or flushed window the first call sends the event "clip".
        """
        with self._lock:
            window = self._window
            refuse_torn(window)
            why = self._void()
            if why:
                raise (NonFiniteError if window.spoiled and self._sums.used else NoGradientError)(why)
            if window.finished:
                found = {b.name: normalised(b.totals(), 1.0, 1.0) for b in self._sums.used}
            else:
                tells = self.should_update() and not window.told
                measure = self._measured(None)
                if not measure.finite and self.config.nonfinite != "allow":
                    raise self._overflow(measure.norm)
                found = self._clipped(measure, tells)
                window.told = window.told or tells
            if zeros:
                found = {b.name: found.get(b.name, b.totals()) for b in self._sums.all}
            return {name: as_gradient_tensor(g) if type(g) is SparseRows else g for name, g in found.items()}

    def _measured(self, scaler: GradScaler | None) -> Measure:
        """Return how to normalise and clip, with the norm where it is needed, and whether all is finite."""
        config, window = self.config, self._window
        divisor = self.divisor() / self._sums.unit
        if scaler is not None:
            divisor *= scaler.scale_during(window.first, window.last)
        checks = config.nonfinite != "allow" or scaler is not None
        if config.max_grad_norm is None and (not checks or divisor >= 1.0):
            arrays, others = self._sums.parts() if checks else ([], [])
            values = arrays + [stored_values(b.totals()) for b in others]
            if all([all_finite(a) for a in values]):  # noqa: C419  a list is faster; no quotient is larger
                return Measure(None, divisor)
        return measured(
            [b.totals() for b in self._sums.used], config.norm_type, divisor, config.max_grad_norm
        )

    def _overflow(self, norm: float | None) -> NonFiniteError:
        wider = any(b.dtype.char in "fF" for b in self._sums.used)
        return NonFiniteError(
            f"the norm of the summed gradients is {norm}, although each micro-batch was finite.\n"
            f"  {'Sum in float64 (dtype=np.float64), or use' if wider else 'Use'} smaller losses or weights; "
            "drop() discards the window."
        )

    def _clipped(self, measure: Measure, tells: bool) -> dict[str, Any]:
        """Return the normalised and clipped gradients in new arrays; if it ``tells``, send the event."""
        window = self._window
        with np.errstate(all="ignore"):
            found = {b.name: normalised(b.totals(), measure.divisor, measure.factor) for b in self._sums.used}
        if tells:
            self._tell_clip(measure.norm, self.config.max_grad_norm if measure.clipped else None)
        if self._clip is not None:
            found, before, after = clipped_by(self._clip, found, self._params, self.config.norm_type)
            if tells:
                changed = after != before and not math.isnan(before)
                norm = before if window.norm is None else window.norm
                self._tell_clip(norm, after if changed else None, before)
        return found

    def _tell_clip(self, norm: float | None, left: float | None, before: float | None = None) -> None:
        """Remember the norm of a full window, and send the event if it was clipped to ``left``."""
        window = self._window
        self._last_norm = window.norm = norm
        if left is not None:
            self._totals["clipped_windows"] += window.clipped_norm is None
            window.clipped_norm = left
            self._listeners.tell("clip", window, norm=norm if before is None else before, clipped_norm=left)

    @property
    def last_norm(self) -> float | None:
        """The norm of the last finished window's gradients, before clipping; None if nothing asked for it.

        ``max_grad_norm=math.inf`` asks for it, and clips nothing.
        """
        return self._last_norm

    # The update ------------------------------------------------------------------------------

    def apply(
        self,
        optimizer: Any,
        *,
        scaler: GradScaler | None = None,
        before: Callable[[], object] | None = None,
    ) -> bool:
        """Give the gradient of a full or flushed window to an optimiser, and start the next window.

        Parameters
        ----------
        optimizer
            An optimiser, or several in a list: see ``adjoint.accumulate.doors`` for what one is.
        scaler
            The ``GradScaler`` that scaled the losses.
        before
            Function that is called before an optimiser with ``step()``, when ``.grad`` of each parameter is
            its gradient.

        Returns
        -------
        bool
            False where the window was skipped: it was not finite and the policy, or the ``scaler``, says so,
            or it had no weight; the optimiser was not called.

        Notes
        -----
        If an optimiser raises an exception, the window is kept, and ``apply`` can be called again; those of
        several that had made their update then are not called again.
        """
        optimizers = optimizers_of(optimizer)
        if scaler is not None and not isinstance(scaler, GradScaler):
            raise InputError(f"apply: scaler is an ad.GradScaler, but got {type(scaler).__name__}.")
        with self._lock:
            window = self._window
            refuse_torn(window)
            if not self.should_update():
                raise AccumulationError(
                    f"the window has {window.micro_batches} of {self.config.accumulation_steps} "
                    "micro-batches.\n  Add more, or close it as it is with flush(); drop() discards it."
                )
            if window.scaled and scaler is None:
                raise AccumulationError(
                    "apply: losses of this window were scaled by a GradScaler, and so are its gradients.\n"
                    "  Give it the scaler, which divides them: apply(optimizer, scaler=scaler)."
                )
            if self._void():
                return self._skip(scaler if window.skipped else None)
            if (not window.finished and not self._finish(scaler)) or not self._fits(optimizers, scaler):
                return self._skip(scaler)
            self._update(optimizers, before)
            if scaler is not None:
                scaler.record(finite=not window.skipped)
            return self._end("update", norm=window.norm, clipped_norm=window.clipped_norm)

    def _skip(self, scaler: GradScaler | None) -> bool:
        if scaler is not None:
            scaler.record(finite=False)
        return self._end("skip", window=True)

    def _finish(self, scaler: GradScaler | None) -> bool:
        """Normalise and clip the sums; False if the window is to be skipped."""
        window, policy = self._window, self.config.nonfinite
        measure = self._measured(scaler)
        if not measure.finite and (scaler is not None or policy != "allow"):
            if scaler is None and policy == "raise":
                raise self._overflow(measure.norm)
            return False
        found = None if self._clip is None else self._clipped(measure, not window.told)
        window.torn = True  # until all are divided
        if found is None:
            self._sums.finish(measure.divisor, measure.factor)
        else:
            self._sums.replace(found)
        self._sums.settle()
        window.finished = True
        window.torn = False
        if found is None and not window.told:
            self._tell_clip(measure.norm, self.config.max_grad_norm if measure.clipped else None)
        return True

    def _fits(self, optimizers: list[Any], scaler: GradScaler | None) -> bool:
        """Tell whether the parameters' own dtypes hold the finished gradient."""
        policy = self.config.nonfinite
        if (policy == "allow" and scaler is None) or not any(hasattr(o, "step") for o in optimizers):
            return True
        beyond = beyond_parameters(self._params, {b.name: b.totals() for b in self._sums.used})
        if beyond and policy == "raise" and scaler is None:
            raise NonFiniteError(
                f"apply: gradients that are finite as sums are not in the dtype of their parameter: "
                f"{listed(beyond)}.\n  Clip them (max_grad_norm), or keep the parameters in a wider dtype."
            )
        return not beyond

    def _update(self, optimizers: list[Any], before: Callable[[], object] | None) -> None:
        """Give the finished sums to optimisers; memory that one keeps is not used again."""
        window = self._window
        grads = self._sums.views()
        window.torn = True  # an interrupt may leave some of the parameters updated
        try:
            hand_over(optimizers, self._params, grads, window.done, before)
        except Exception:  # whoever raised has made no update: the sums stay for another try
            window.torn = False
            raise
        window.torn = False

    # Around it -------------------------------------------------------------------------------

    def split(self, batch: Any, size: int) -> Iterator[Any]:
        """Cut a batch into micro-batches of ``size`` examples along the first axis; the last may be short.

        ``batch`` is an array, or a tuple, list or dictionary of arrays of one length.

        >>> acc = GradientAccumulator(accumulation_steps=2)
        >>> [len(xb) for xb, yb in acc.split((np.zeros((5, 2)), np.zeros(5)), 3)]
        [3, 2]
        """
        return split(self, batch, size)

    def stats(self) -> AccumulationStats:
        """Return counts since the beginning, and the state of the window."""
        with self._lock:
            totals = self._totals
            return AccumulationStats(
                total_micro_batches=totals["micro_batches"],
                total_updates=totals["updates"],
                accumulation_steps=self.config.accumulation_steps,
                registered_params=len(self._sums.all),
                total_param_elements=sum(b.size for b in self._sums.all),
                **{name: totals[name] for name in _TOTALS[2:]},
                window_micro_batches=self._window.micro_batches,
                window_weight=self._window.weight,
            )

    def on(self, kind: str, callback: Callable[[AccumulationEvent], None]) -> Handle:
        """Call ``callback(event)`` at each "full", "clip", "skip" or "update"; the handle removes it."""
        return self._listeners.add(kind, callback)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on from here, also in mid-window; ``ad.save`` stores it."""
        with self._lock:
            refuse_torn(self._window)
            if self._window.done:
                raise AccumulationError(
                    f"state_dict: {len(self._window.done)} of the optimisers has made its update from this "
                    "window and another raised, so a saved state would repeat that update.\n"
                    "  Call apply() again with all of them, or drop() the window."
                )
            return {
                "format": FORMAT,
                "config": self.config.state_dict(),
                "window": self._window.state_dict(),
                "totals": dict(self._totals),
                "buffers": {b.name: b.state_dict() for b in self._sums.all},
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; if it does not fit, an error says why and nothing has changed."""
        with self._lock:
            saved = state.get("buffers") if isinstance(state, Mapping) else None
            names = saved if isinstance(saved, Mapping) else ()
            thawed = {n: t for n, t in self._frozen.items() if n in names and id(t) not in self._slots}
            buffers = [*self._sums.all, *(self._buffer_of(n, t) for n, t in thawed.items())]
            window, totals, loaded = read_state(state, self.config, buffers, self._totals, self._unfrozen)
            if self._clip is not None and window.finished and state["window"].get("clipped") is False:
                raise ArgumentError(
                    "load_state_dict: an older version saved this window divided, but not yet clipped.\n"
                    "  Load a state from before apply() was called."
                )
            sums, params = Sums(loaded), self._params | thawed
            slots = {id(params[n]): b for n, b in sums.by_name.items() if n in params}
            frozen = {n: t for n, t in self._frozen.items() if n not in thawed}
            unfrozen = self._unfrozen | thawed.keys()
            # stores without a call, between which no interrupt comes
            self._sums, self._slots, self._window, self._totals = sums, slots, window, totals
            self._params, self._frozen, self._unfrozen = params, frozen, unfrozen

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Say that ``pickle`` and ``copy`` are not the way."""
        raise InputError(
            "a GradientAccumulator is not pickled or copied: it goes with its parameters and callbacks.\n"
            "  Make another one, and load_state_dict() what state_dict() of this one returns."
        )

    def __repr__(self) -> str:
        window = self._window
        return (
            f"<GradientAccumulator, {len(self._sums.all)} parameters, {window.micro_batches} of "
            f"{self.config.accumulation_steps} micro-batches, weight {window.weight:g}>"
        )
