"""GradientAccumulator: micro-batches that give the gradient of the whole batch.

The window, not each buffer, owns the divisor: Σ weight·gradient / Σ weight over all micro-batches,
whoever took part in them.  Everything is checked before anything is added.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.core.node import Handle
from adjoint.core.sparse import SparseRows, as_gradient_tensor
from adjoint.core.tensor import Tensor
from adjoint.errors import (
    AccumulationError,
    ArgumentError,
    InputError,
    NoGradientError,
    NonFiniteError,
)
from adjoint.grads.buffers import GradientBuffer, checked_total_weight, checked_weight
from adjoint.grads.foreign import sum_dtype
from adjoint.grads.lending import clipped_by
from adjoint.grads.microbatch import (
    MicroBatch,
    computed_parameter,
    named_params,
    not_a_parameter,
    noted_pieces,
    split_batch,
)
from adjoint.grads.norm import Measure, measured
from adjoint.grads.optimizer import beyond_parameters, optimizers_of
from adjoint.grads.packed import Buffers, lend_to
from adjoint.grads.passes import copied, divided, multiplied
from adjoint.grads.saved import FORMAT, read_state, saved_names
from adjoint.grads.scaler import GradScaler, scale_clock
from adjoint.grads.windows import (
    AccumulationConfig,
    AccumulationEvent,
    AccumulationStats,
    Listeners,
    Window,
    closed_error,
    config_of,
    half_applied_error,
    listed,
    open_error,
    overflown,
    scaled_error,
    torn_error,
)

__all__ = ["GradientAccumulator"]

Array = ndarray[Any, Any]
Clip = Callable[[Any], Any]


class GradientAccumulator:
    """Sum the gradients of micro-batches; hand over the gradient of the batch they make.

    From anywhere, by name: ``register``, then ``step({name: gradient}, weight=n)`` until it returns
    True, then ``gradients()`` and ``reset()``.  With adjoint: give it the parameters (a list, a
    dictionary by name, or a module; frozen ones take part once they require grad), run
    ``with acc.micro_batch(weight=n): loss.backward()``, and ``acc.apply(optimizer)`` when
    ``should_update()``.  ``clip`` is called with the normalised
    gradients, as any of the ``ad.clip_…`` functions can be.  All other options are those of
    ``AccumulationConfig``.

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
        self.config = config_of(config, options)
        self._clip = clip
        self._buffers = Buffers()
        self._params: dict[str, Tensor] = {}
        self._slots: dict[int, GradientBuffer] = {}  # by id of the parameter
        self._frozen: dict[str, Tensor] = {}  # parameters that take part as soon as they require grad
        self._unfrozen: set[str] = set()  # those that were among them
        self._short: tuple[int, int] | None = None  # a short piece that ``split`` has out, and the others
        self._window = Window()
        self._totals = dict.fromkeys(
            ("micro_batches", "updates", "skipped_micro_batches", "skipped_windows", "dropped_windows",
             "clipped_windows"), 0)  # fmt: skip
        self._listeners = Listeners()
        self._lock = threading.RLock()
        for name, t in named_params(params):
            self._register_param(name, t)
        if self._frozen and not self._params:
            raise NoGradientError(
                "GradientAccumulator: none of the parameters requires grad, so there is nothing to add.\n"
                "  requires_grad_(True) unfreezes a module or a tensor."
            )

    # Registration ----------------------------------------------------------------------------

    def register(self, name: str, shape: Any, dtype: Any = None) -> None:
        """Make a buffer for gradients of this name and shape; again with the same is nothing.

        ``dtype`` is that of the sum; None: the config's, or that of the first gradient, at least float32.
        """
        if not isinstance(name, str):
            raise InputError(f"register: a name is a string, but got {type(name).__name__}.")
        with self._lock:
            wanted = self.config.dtype if dtype is None else dtype
            buffer = GradientBuffer(shape, wanted, compensated=self.config.compensated, name=name)
            if name in self._buffers.by_name:
                self._buffers.by_name[name].check_like(buffer, any_dtype=dtype is None)
            else:
                self._buffers.register(buffer)

    def _register_param(self, name: str, t: Any) -> None:
        if not isinstance(t, Tensor):
            raise not_a_parameter(name, t)
        if not t.is_leaf:
            raise computed_parameter(name, t)
        if not t.requires_grad:
            self._frozen[name] = t
            return
        self._take_part(name, t)

    def _take_part(self, name: str, t: Tensor) -> None:
        if id(t) in self._slots:
            return  # shared under two names: one gradient
        if name in self._buffers.by_name:
            raise ArgumentError(f"GradientAccumulator: two parameters are called {name!r}.")
        self._buffers.register(self._buffer_of(name, t))
        self._params[name] = t
        self._slots[id(t)] = self._buffers.by_name[name]

    def _buffer_of(self, name: str, t: Tensor) -> GradientBuffer:
        wanted = sum_dtype(t.dtype)
        if self.config.dtype is not None:
            wanted = np.result_type(self.config.dtype, np.complex64 if wanted.kind == "c" else np.float32)
        return GradientBuffer(t.shape, wanted, compensated=self.config.compensated, name=name)

    def _unfreeze(self, names: Iterable[str]) -> None:
        """Let parameters take part that were frozen until now."""
        with self._lock:
            for name in names:
                self._unfrozen.add(name)
                self._take_part(name, self._frozen.pop(name))

    @property
    def names(self) -> list[str]:
        """The registered names, in order."""
        return list(self._buffers.by_name)

    # Adding ----------------------------------------------------------------------------------

    def step(self, gradients: Mapping[str, Any], weight: float = 1.0) -> bool:
        """Add one micro-batch; return whether the window is full.

        Every name, shape and dtype is checked first: after an error nothing has changed.  A
        parameter that had no part in the micro-batch is left out.
        """
        weight = checked_weight(weight)
        with self._lock:
            self._refuse_if_closed()
            buffers, arrays, plain = self._buffers.matched(gradients)
            return self._commit(buffers, arrays, weight, plain)

    def accumulate(self, name: str, grad: Any, weight: float = 1.0) -> None:
        """Add one gradient to the current micro-batch; a name that comes again starts the next one.

        All gradients of a micro-batch have its weight.  The window is full from the first of its last
        micro-batch on: ask ``should_update`` when all of them are there.  One that is not finite raises
        under "skip" too: what came before it in the micro-batch is added already.
        """
        weight = checked_weight(weight)
        with self._lock:
            buffers, arrays, plain = self._buffers.matched({name: grad})
            window = self._window
            again = not window.open or name in window.open
            if again or window.torn:
                self._refuse_if_closed()
            elif window.closed or window.finished:
                raise closed_error(self._window, self.config.accumulation_steps)
            elif weight != window.open_weight:
                raise ArgumentError(
                    "accumulate: the gradients of a micro-batch share its weight, "
                    f"{window.open_weight:g}, but {name!r} came with {weight:g}."
                )
            self._commit(buffers, arrays, weight, plain, joins=not again, single=name)

    def micro_batch(self, weight: float | None = None) -> MicroBatch:
        """Take what ``backward`` inside the block gives to the parameters, all at the end or nothing.

        No ``.grad`` is touched.  Several backwards add up.  Set ``weight`` of what the block is given
        (``as mb``) when it is known only inside.  None counts as 1, and is refused for a piece of ``split``
        that is shorter than those before it.
        """
        if self._frozen:
            self._unfreeze([name for name, t in self._frozen.items() if t.requires_grad])
        if not self._params:
            raise AccumulationError(
                "micro_batch() needs parameters: GradientAccumulator(params, …).  By name, use step()."
            )
        return MicroBatch(self, None if weight is None else checked_weight(weight))

    def _commit(
        self,
        buffers: list[GradientBuffer],
        arrays: list[Any],
        weight: float,
        plain: bool,
        *,
        joins: bool = False,
        single: str | None = None,
        scaled: bool = False,
    ) -> bool:
        """Add gradients that were checked, all of them.

        ``single``: there is one, of this name, a part of a micro-batch, which then cannot be skipped as
        a whole; ``joins``: not its first part.
        """
        window, policy = self._window, self.config.nonfinite
        if not joins:
            checked_total_weight(window.weight, weight)
        factor = weight if self.config.reduction == "mean" else 1.0
        idle = window.spoiled or (weight == 0.0 and self.config.reduction == "mean")
        bad: list[str] = []
        window.torn = True  # until sums and weight agree again
        if not idle:
            bad = self._buffers.nonfinite_or_add(
                buffers, arrays, factor, weight, check=policy != "allow", plain=plain
            )
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
                if window.added == 1:
                    window.first = window.last
        if single is not None:
            window.open.add(single)
            window.open_weight = weight
        if bad:
            window.spoiled = policy == "skip_window"
            window.skipped += 1
            self._totals["skipped_micro_batches"] += 1
        window.torn = False
        if bad:
            self._tell("skip", names=tuple(bad))
        full = window.micro_batches >= self.config.accumulation_steps
        if full and not joins:
            self._tell("full")
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
            window = self._window
            if not window.micro_batches or window.torn:
                self.drop()
            elif self._is_void():
                self._skip_window(None)
            else:
                self._count_update()

    def _is_void(self) -> bool:
        """Tell whether the window has no gradient to give."""
        window = self._window
        weightless = self.config.normalize and not window.weight
        return window.spoiled or weightless or not any(b.count for b in self._buffers.all)

    def _count_update(self) -> None:
        window = self._window
        self._totals["updates"] += 1
        self._clear()
        self._tell("update", window=window, norm=window.norm, clipped_norm=window.clipped_norm)

    def _clear(self) -> None:
        torn = self._window.torn
        self._window = window = Window(torn=True)  # until all sums are forgotten
        self._buffers.reset(torn=torn)
        window.torn = False

    def _refuse_if_closed(self) -> None:
        if self._window.torn:
            raise torn_error()
        if self.should_update() or self._window.finished:
            raise closed_error(self._window, self.config.accumulation_steps)

    def divisor(self) -> float:
        """Return what the sums are divided by: the weight of the window, or 1 without ``normalize``."""
        return self._window.weight if self.config.normalize else 1.0

    # Getting the gradient --------------------------------------------------------------------

    def gradients(self, *, zeros: bool = False) -> dict[str, Any]:
        """Return the gradient of the window by name: normalised, then clipped, in new arrays.

        A parameter that had no part in any micro-batch is missing, or zero with ``zeros=True``.
        Sparse gradients are ``SparseGradient`` tensors.  The window may still be open: then this is a
        look.  Of a full or flushed window the first call tells those who listen to "clip".
        """
        with self._lock:
            self._refuse_without_gradient()
            window = self._window
            tells = self.should_update() and not window.told
            if window.finished:
                found = {b.name: copied(b.totals()) for b in self._buffers.all if b.count}
            else:
                found = self._normalised(tells)
            if self._clip is not None and not window.clipped:
                found = self._clipped_by_user(found, tells)
            window.told = window.told or tells
            if zeros:
                found = {b.name: found.get(b.name, b.totals()) for b in self._buffers.all}
            return {name: as_gradient_tensor(g) if type(g) is SparseRows else g for name, g in found.items()}

    def _normalised(self, tells: bool) -> dict[str, Any]:
        sums = {b.name: b.totals() for b in self._buffers.all if b.count}
        found = self._measured(list(sums.values()), self.divisor(), False)
        if not found.finite and self.config.nonfinite != "allow":
            raise overflown(found.norm, (g.dtype for g in sums.values()))
        with np.errstate(all="ignore"):
            new = {name: divided(g, found.divisor, g.dtype) for name, g in sums.items()}
            if found.factor != 1.0:
                new = {name: multiplied(g, found.factor) for name, g in new.items()}
        if tells:
            self._finished(found)
        return new

    def _measured(self, sums: list[Any], divisor: float, scaled: bool) -> Measure:
        """Return the norm, None where nobody needs it, and how to normalise and clip."""
        config = self.config
        if config.max_grad_norm is None and config.nonfinite == "allow" and not scaled:
            return Measure(None, divisor)
        return measured(sums, config.norm_type, divisor, config.max_grad_norm)

    def _finished(self, found: Measure) -> None:
        """Remember the norm of a whole window, and tell whether ``max_grad_norm`` clipped it."""
        self._last_norm = self._window.norm = found.norm
        if found.clipped:
            self._clipped(found.norm, self.config.max_grad_norm)

    def _clipped(self, norm: float | None, left: float | None) -> None:
        window = self._window
        self._totals["clipped_windows"] += window.clipped_norm is None
        window.clipped_norm = left
        self._tell("clip", norm=norm, clipped_norm=left)

    def _clipped_by_user(self, found: dict[str, Any], tells: bool) -> dict[str, Any]:
        assert self._clip is not None
        clipped, before, after = clipped_by(self._clip, found, self._params, self.config.norm_type)
        if tells:
            if self._window.norm is None:
                self._last_norm = self._window.norm = before
            if after != before and not math.isnan(before):
                self._clipped(before, after)
        return clipped

    def _clip_in_place(self) -> None:
        """Let the user's function clip the finished sums; if it raises they are as they were."""
        window, used = self._window, [b for b in self._buffers.all if b.count]
        # it may write into arrays; a write into a tensor goes to a copy by itself
        found = {b.name: b.totals() if self._params else copied(b.totals()) for b in used}
        clipped = self._clipped_by_user(found, not window.told)
        window.torn = True  # until all are replaced
        for b in used:
            b.replace(clipped[b.name])
        window.clipped = True
        window.torn = False

    def _refuse_without_gradient(self) -> None:
        window = self._window
        if window.torn:
            raise torn_error()
        if not any(b.count for b in self._buffers.all):
            why = "was skipped: drop() it" if window.micro_batches else "is empty"
            raise NoGradientError(f"no gradient was added: the window {why}.")
        if window.spoiled:
            raise NonFiniteError(
                "a micro-batch of this window was not finite, so there is no gradient: drop() it."
            )
        if self.config.normalize and not window.weight:
            raise NoGradientError(
                "the micro-batches of this window have no weight: there is nothing to divide by.  drop() it."
            )

    # The update ------------------------------------------------------------------------------

    def apply(self, optimizer: Any, *, scaler: GradScaler | None = None) -> bool:
        """Give the gradient of a full or flushed window to an optimiser, and start the next window.

        See ``adjoint.grads.optimizer`` for what an optimiser is; several are given in a list.  Returns
        False where the window was skipped: it was not finite and the policy, or the ``scaler``, says so,
        or it had no weight; the optimiser was not called.  With a ``scaler`` the gradients are those of
        ``scaler.scale(loss)``.  If an optimiser raises, the window is kept, and ``apply`` can be called
        again; those of several that had made their update then are not called again.
        """
        optimizers = optimizers_of(optimizer)
        if scaler is not None and not isinstance(scaler, GradScaler):
            raise InputError(f"apply: scaler is an ad.GradScaler, but got {type(scaler).__name__}.")
        with self._lock:
            window = self._window
            if window.torn:
                raise torn_error()
            if not self.should_update():
                raise open_error(window, self.config.accumulation_steps)
            if window.scaled and scaler is None:
                raise scaled_error()
            if self._is_void():
                return self._skip_window(scaler if window.skipped else None)
            if not window.finished and not self._finish(scaler):
                return self._skip_window(scaler)
            if self._clip is not None and not window.clipped:
                self._clip_in_place()
            if not self._fits_parameters(optimizers, scaler):
                return self._skip_window(scaler)
            lend_to(optimizers, self._params, self._buffers.all, window)
            if scaler is not None:
                scaler.record(finite=not window.skipped)
            self._count_update()
            return True

    def _finish(self, scaler: GradScaler | None) -> bool:
        """Normalise and clip the sums where they are; False if the window is to be skipped."""
        window, used = self._window, [b for b in self._buffers.all if b.count]
        divisor = self.divisor() * (1.0 if scaler is None else scaler.scale_during(window.first, window.last))
        found = self._measured([b.totals() for b in used], divisor, scaler is not None)
        if not found.finite and (scaler is not None or self.config.nonfinite != "allow"):
            if scaler is None and self.config.nonfinite == "raise":
                raise overflown(found.norm, (b.dtype for b in used))
            return False
        window.torn = True  # until all are divided
        with np.errstate(all="ignore"):
            for b in used:
                b.finish(found.divisor, found.factor)
        window.finished = True
        window.torn = False
        if not window.told:
            self._finished(found)
        return True

    def _fits_parameters(self, optimizers: list[Any], scaler: GradScaler | None) -> bool:
        """Tell whether the parameters' own dtypes hold the finished gradient."""
        policy = self.config.nonfinite
        if policy == "allow" and scaler is None:
            return True
        sums = {b.name: b.totals() for b in self._buffers.all if b.count}
        beyond = beyond_parameters(optimizers, self._params, sums)
        if beyond and policy == "raise" and scaler is None:
            raise NonFiniteError(
                f"apply: gradients that are finite as sums are not in the dtype of their parameter: "
                f"{listed(beyond)}.\n  Clip them (max_grad_norm), or keep the parameters in a wider dtype."
            )
        return not beyond

    _last_norm: float | None = None

    @property
    def last_norm(self) -> float | None:
        """The norm of the last finished window's gradients, before clipping; None if nothing asked for it.

        ``max_grad_norm=math.inf`` asks for it, and clips nothing.
        """
        return self._last_norm

    def _skip_window(self, scaler: GradScaler | None) -> bool:
        window = self._window
        if scaler is not None:
            scaler.record(finite=False)
        self._totals["skipped_windows"] += 1
        self._clear()
        self._tell("skip", window=window, whole=True)
        return False

    # Around it -------------------------------------------------------------------------------

    def split(self, batch: Any, size: int) -> Iterator[Any]:
        """Cut a batch into micro-batches of ``size`` examples along the first axis; the last may be short.

        ``batch`` is an array, or a tuple, list or dictionary of arrays of one length.

        >>> acc = GradientAccumulator(accumulation_steps=2)
        >>> [len(xb) for xb, yb in acc.split((np.zeros((5, 2)), np.zeros(5)), 3)]
        [3, 2]
        """
        return noted_pieces(self, split_batch(batch, size))

    def stats(self) -> AccumulationStats:
        """Return counts since the beginning, and the state of the window."""
        with self._lock:
            return AccumulationStats.of(self.config, self._totals, self._window, self._buffers.all)

    def on(self, kind: str, callback: Callable[[AccumulationEvent], None]) -> Handle:
        """Call ``callback(event)`` at each "full", "clip", "skip" or "update"; the handle takes it off."""
        return self._listeners.add(kind, callback)

    def _tell(self, kind: str, *, window: Window | None = None, whole: bool = False, **facts: Any) -> None:
        now = self._window if window is None else window
        self._listeners.tell(AccumulationEvent(kind, now.micro_batches, now.weight, window=whole, **facts))

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on from here, also in mid-window; ``ad.save`` stores it."""
        with self._lock:
            if self._window.torn:
                raise torn_error()
            if self._window.done:
                raise half_applied_error(len(self._window.done))
            return {
                "format": FORMAT,
                "config": self.config.state_dict(),
                "window": self._window.state_dict(),
                "totals": dict(self._totals),
                "buffers": {b.name: b.state_dict() for b in self._buffers.all},
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; if it does not fit, an error says why and nothing has changed."""
        with self._lock:
            thawed = {n: t for n, t in self._frozen.items()
                      if n in saved_names(state) and id(t) not in self._slots}  # fmt: skip
            ours = self._buffers.by_name | {n: self._buffer_of(n, t) for n, t in thawed.items()}
            window, totals, loaded = read_state(state, self.config, ours, self._totals, self._unfrozen)
            buffers, params = Buffers(loaded), self._params | thawed
            slots = {id(params[n]): b for n, b in buffers.by_name.items() if n in params}
            frozen = {n: t for n, t in self._frozen.items() if n not in thawed}
            unfrozen = self._unfrozen | thawed.keys()
            # stores without a call, between which no interrupt comes
            self._buffers, self._slots, self._window, self._totals = buffers, slots, window, totals
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
            f"<GradientAccumulator, {len(self._buffers.all)} parameters, {window.micro_batches} of "
            f"{self.config.accumulation_steps} micro-batches, weight {window.weight:g}>"
        )
