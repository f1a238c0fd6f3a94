"""``GradientAccumulator``: sum the gradients of micro-batches into the gradient of the whole batch.

A window is the set of micro-batches that make one update.  Its gradient is Σ weight·gradient / Σ weight.  All
parameters are divided by the weight of all micro-batches, also parameters that only some micro-batches use.
A micro-batch is checked completely before any of its gradients is added.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from adjoint import words
from adjoint.accumulate.blocks import MicroBatch, checked_weight, named_params, split_batch
from adjoint.accumulate.ranks import RankBlock, RankSums
from adjoint.accumulate.sums import Slot, Staged, Sums, normalised
from adjoint.accumulate.update import gradient_of, optimizers_in, shown, update
from adjoint.accumulate.window import (
    COUNTS,
    AccumulationConfig,
    AccumulationEvent,
    AccumulationStats,
    Window,
    check_like,
)
from adjoint.config import special
from adjoint.core.lifted import refuse_tracing
from adjoint.core.node import Handle, HookList
from adjoint.errors import AccumulationError, ArgumentError, InputError, NoGradientError, NonFiniteError
from adjoint.grads.scaler import GradScaler, scale_clock

if TYPE_CHECKING:
    from adjoint.distributed.group import Group

__all__ = ["GradientAccumulator"]

_EVENTS = ("full", "clip", "skip", "update")

P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate["GradientAccumulator", P], T]


def _locked(method: Method[P, T]) -> Method[P, T]:
    """Decorator: hold the accumulator's lock while the method runs; raise inside ``ad.compile``.

    An interrupt (Ctrl-C) also releases the lock.
    """

    @wraps(method)
    def call(self: GradientAccumulator, /, *args: P.args, **options: P.kwargs) -> T:
        if special.count:
            refuse_tracing("a GradientAccumulator", "Call its methods outside the compiled function.")
        with self._lock:
            return method(self, *args, **options)

    return call


class GradientAccumulator:
    """Sum the gradients of micro-batches into the gradient of the whole batch.

    A *window* is the set of micro-batches that make one update.  With adjoint tensors, pass the parameters,
    run ``with acc.micro_batch(weight=n): loss.backward()`` for each micro-batch, and call
    ``acc.apply(optimizer)`` when ``acc.should_update()`` is True.  With gradients of any library, call
    ``register`` for each parameter and ``step({name: gradient}, weight=n)`` until it returns True, then
    ``gradients()`` and ``reset()``.

    Parameters
    ----------
    params : module, dict of tensors, iterable of tensors, or None
        The parameters.  Frozen ones are included as soon as they require grad.  None: gradients are passed by
        name to ``step``.
    config : AccumulationConfig, optional
        The options.
    clip : callable, optional
        Function that is called with the normalised gradients, such as one of the ``ad.clip_…`` functions.
    group : Group, optional
        Ranks that share each window: its gradient is that of the micro-batches of all ranks.
    **options : Any
        Fields of ``AccumulationConfig``, which replace those of ``config``.

    Attributes
    ----------
    config : AccumulationConfig
        The options.
    last_norm : float or None
        The gradient norm of the last finished window, before clipping; None if it was not computed.
        ``max_grad_norm=math.inf`` computes it without clipping.

    Examples
    --------
    >>> import numpy as np
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
        clip: Callable[[Any], Any] | None = None,
        group: Group | None = None,
        **options: Any,
    ) -> None:
        if isinstance(params, AccumulationConfig):
            params, config = None, params
        if not isinstance(config, AccumulationConfig | None):
            raise InputError(
                f"GradientAccumulator: config must be an AccumulationConfig, not {config!r}.\n"
                "  Pass the number of micro-batches as accumulation_steps=…."
            )
        self.config = replace(config or AccumulationConfig(), **options)
        self._clip = clip
        self._group = group
        self._sums = Sums(self.config.compensated) if group is None else RankSums(group, self.config)
        self._params = {} if params is None else named_params(params)
        self._names = {id(t): name for name, t in self._params.items()}
        self._short: tuple[int, int] | None = None  # lengths of a short last piece of ``split`` and of others
        self._window = Window(steps=self.config.accumulation_steps)
        self._counts = dict.fromkeys(COUNTS, 0)
        self._callbacks = {kind: HookList() for kind in _EVENTS}
        self._lock = threading.RLock()
        self.last_norm: float | None = None
        for name, t in self._params.items():
            self._sums.register(Slot(name, t.shape, self.config._sum_dtype(t.dtype), t))
        if isinstance(self._sums, RankSums):
            self._sums.agree()

    @_locked
    def register(self, name: str, shape: Any, dtype: Any = None) -> None:
        """Register a parameter by name.  A second call with the same arguments does nothing.

        Parameters
        ----------
        name : str
            Name of the parameter.
        shape : int or tuple of int
            Shape of the parameter.
        dtype : dtype, optional
            Dtype of the sum.  None: the dtype of the config, or else of the first gradient, at least float32.

        Raises
        ------
        ArgumentError
            The name is already registered with a different shape or dtype.
        """
        new, old = Slot(name, shape, dtype or self.config.dtype), self._sums.slots.get(name)
        if old is None:
            self._sums.register(new)
        elif old.shape != new.shape or (dtype is not None and str(old.dtype) != str(new.dtype)):
            raise ArgumentError(
                f"register: {name!r} is already registered with shape {old.shape} and dtype {old.dtype}, not "
                f"with {new.shape} and {new.dtype}.\n  Choose another name, or create a new accumulator."
            )

    @property
    def names(self) -> list[str]:
        """The names of the registered parameters in order of registration, without frozen parameters."""
        return [name for name, s in self._sums.slots.items() if s.param is None or s.param.requires_grad]

    # Adding ----------------------------------------------------------------------------------

    @_locked
    def step(self, gradients: Mapping[str, Any], weight: float = 1.0) -> bool:
        """Add the gradients of one micro-batch.

        Parameters
        ----------
        gradients : dict
            Gradients by name.  Leave out parameters that the micro-batch does not use.
        weight : float
            Weight of the micro-batch: its number of examples or tokens.

        Returns
        -------
        bool
            Whether the window is full.

        Raises
        ------
        UnknownNameError, ShapeError, DTypeError, NonFiniteError
            A gradient has an unknown name, or a wrong shape, dtype or value.  Nothing was added.
        """
        weight = checked_weight(weight)
        self._window.check(ready=False)
        return self._add(self._sums.checked(gradients), weight)

    @_locked
    def accumulate(self, name: str, grad: Any, weight: float = 1.0) -> None:
        """Add one gradient to the current micro-batch; a repeated name starts the next micro-batch.

        The window counts as full after the first gradient of its last micro-batch, so call ``should_update``
        only after adding all gradients.  A gradient that is not finite is an error, also with
        ``nonfinite="skip"``.

        Parameters
        ----------
        name : str
            Name of the parameter.
        grad : array_like
            Gradient of the parameter.
        weight : float
            Weight of the micro-batch, the same for all gradients of the micro-batch.
        """
        weight = checked_weight(weight)
        if self._group is not None:
            raise AccumulationError(
                "accumulate: with group=, all gradients of a micro-batch must be added in one call of step()."
            )
        arrays = self._sums.checked({name: grad})
        window = self._window
        joins = bool(window.open) and name not in window.open
        window.check(ready=None if joins and not window.closed else False)
        if joins and weight != window.open_weight:
            raise ArgumentError(
                "accumulate: all gradients of a micro-batch must have the same weight, but this micro-batch "
                f"has weight {window.open_weight:g} and {name!r} has weight {weight:g}."
            )
        self._add(arrays, weight, joins=joins, single=name)

    def micro_batch(self, weight: float | None = None) -> MicroBatch:
        """Return a context manager in which ``backward`` adds gradients to the accumulator, not to ``.grad``.

        The gradients are added when the block ends: all of them, or none after an error.  The gradients of
        several ``backward`` calls in one block are summed.

        Parameters
        ----------
        weight : float, optional
            Weight of the micro-batch: its number of examples or tokens.  It can also be set inside the block:
            ``with acc.micro_batch() as mb: …; mb.weight = n``.  None counts as 1.

        Returns
        -------
        MicroBatch
            The context manager.
        """
        if not self._params:
            raise AccumulationError(
                "micro_batch: this accumulator was created without parameters.\n"
                "  Create it as GradientAccumulator(params, …), or add gradients by name with step()."
            )
        return (MicroBatch if self._group is None else RankBlock)(self, weight)

    @_locked
    def _add_block(self, pending: dict[str, Any], block: MicroBatch) -> None:
        self._window.check(ready=False)
        arrays = list(map(pending.get, self._sums.slots))
        for slot, g in zip(self._sums.slots.values(), arrays, strict=True):
            if g is not None and g.dtype is not slot.dtype:
                slot.fitting(g)  # float16 fits into float32, but float64 does not
        self._add(arrays, block.weight, scaled=block.scaled)

    def _add(
        self, arrays: Any, weight: float, *, joins: bool = False, single: str = "", scaled: bool = False
    ) -> bool:
        """Add the gradients ``arrays``, which were checked before; return whether the window is full.

        ``weight`` is the weight of the micro-batch.  ``single`` is the name of the gradient if only one
        gradient of the micro-batch is added.  ``joins`` is True if other gradients of the same micro-batch
        were added before.  ``scaled`` is True if a ``GradScaler`` has scaled the loss.
        """
        window, policy = self._window, self.config.nonfinite
        mean = self.config.reduction == "mean"
        staged: Staged = [], None
        with window:  # an exception here has changed no sum
            if not window.spoiled and (weight or not mean):
                factor = weight if mean else None
                staged = self._sums.staged(arrays, factor, window.weight, check=policy != "allow")
        bad, add = staged
        if bad and (policy == "raise" or (policy == "skip" and single)):
            raise NonFiniteError(
                f"this micro-batch has gradients that are not finite: {words.quoted(bad)}.  Nothing was "
                "added.\n  ad.detect_anomaly() finds the op that produced them.  To leave out such "
                'micro-batches pass nonfinite="skip", or "skip_window" with a GradScaler.'
            )
        window.changing = True  # also after an exception
        if add is not None:
            add()
        if not joins:
            window.open, window.open_weight = [], weight
            window.micro_batches += 1
            window.scaled |= scaled
            self._counts["total_micro_batches"] += 1
            if not bad and not window.spoiled:
                window.last = scale_clock.now
                window.first = window.last if window.first is None else window.first
                window.weight += weight
        if single:
            window.open.append(single)
        if bad:
            window.spoiled = policy == "skip_window"
            window.skipped += 1
            self._counts["skipped_micro_batches"] += 1
        full = window.micro_batches >= window.steps
        self._sums.end_piece(0.0 if bad or window.spoiled else weight, full)
        window.changing = False
        if bad:
            self._send("skip", window, names=tuple(bad))
        if full and not joins:
            self._send("full", window)
        return full

    # The window ------------------------------------------------------------------------------

    @_locked
    def should_update(self) -> bool:
        """Return whether the window is full, or was closed by ``flush``."""
        return self._window.is_ready()

    @_locked
    def flush(self) -> bool:
        """Close a window that is not full, so that ``apply`` accepts it; return False if the window is empty.

        The divisor is then the weight of the micro-batches that were added.  With ``group=`` all ranks must
        call ``flush``; it returns False if the window is empty on all ranks.
        """
        self._window.check()
        some = self._window.micro_batches > 0
        self._window.closed = some if self._window.reduced else self._sums.flush(some)
        return self._window.closed

    @_locked
    def drop(self) -> None:
        """Discard the window without an update."""
        self._counts["dropped_windows"] += self._window.micro_batches > 0
        self._clear()

    @_locked
    def reset(self) -> None:
        """Start the next window after an update that was made from ``gradients()``.

        The window counts as an update, even if it is not full.  A window without a gradient counts as
        skipped.  Use ``drop`` to discard a window.
        """
        if not self._window.micro_batches or self._window.changing:
            self.drop()
        else:
            self._end(updated=not self._is_void())

    def _end(self, updated: bool) -> bool:
        """Count the window as an update or as skipped, clear it for the next one, and return ``updated``."""
        window = self._window
        self._counts["total_updates" if updated else "skipped_windows"] += 1
        self._clear()
        if updated:
            self._send("update", window, norm=window.norm, clipped_norm=window.clipped_norm)
        else:
            self._send("skip", window, window=True)
        return updated

    def _clear(self) -> None:
        self._window = window = Window(changing=True, steps=self.config.accumulation_steps)
        self._sums.reset()
        window.changing = False

    @_locked
    def _check_open(self) -> None:
        """Raise if no micro-batch can be added now.

        The lock is held during the check, because another thread may be adding a micro-batch.
        """
        self._window.check(ready=False)

    def _is_void(self) -> bool:
        """Return whether the window makes no update.

        This is so if it has no gradient, a gradient that is not finite, or, with ``normalize=True``, a total
        weight that is not positive and finite.
        """
        window, some = self._window, self._sums.dense or self._sums.rows
        return not some or window.spoiled or (self.config.normalize and not 0.0 < window.weight < math.inf)

    @_locked
    def divisor(self) -> float:
        """Return the divisor of the sums: the weight of the window, or 1 if ``normalize=False``."""
        return self._window.weight if self.config.normalize else 1.0

    # The gradient ----------------------------------------------------------------------------

    @_locked
    def gradients(self, *, zeros: bool = False) -> dict[str, Any]:
        """Return the gradient of the window, normalised and then clipped, in new arrays.

        The window need not be full, except with ``group=``, where all ranks must make this call.  The first
        call on a full or flushed window sends the event "clip" if the gradient was clipped.

        Parameters
        ----------
        zeros : bool
            Whether to return zeros for parameters that no micro-batch used.  Otherwise they are left out.

        Returns
        -------
        dict
            Arrays by name; sparse gradients are ``SparseGradient`` tensors.

        Raises
        ------
        NoGradientError, NonFiniteError
            The window has no gradient, or the gradient is not finite.
        """
        window = self._window
        window.check(ready=None if self._group is None else True)
        self._sums.gather(self)
        if self._is_void():
            raise NoGradientError(
                f"the window has no gradient: {window.micro_batches} micro-batches were added, "
                f"{window.skipped} of them were skipped, and the weight is {window.weight:g}."
            )
        kept = window.gradient
        found = gradient_of(self) if kept is None else {n: normalised(g, 1.0, 1.0) for n, g in kept.items()}
        if zeros:
            found = {n: found[n] if n in found else self._sums.total(n) for n in self.names}
        return shown(found)

    # The update ------------------------------------------------------------------------------

    @_locked
    def apply(
        self, optimizer: Any, *, scaler: GradScaler | None = None, before: Callable[[], object] | None = None
    ) -> bool:
        """Pass the gradient of a full or flushed window to an optimiser, and start the next window.

        If an optimiser raises an exception, the window is kept, and ``apply`` can be called again.
        Optimisers that have already made their update are then left out.

        Parameters
        ----------
        optimizer : optimiser, callable, or list of them
            An object with ``step()``, which reads the ``.grad`` of the parameters; an object with
            ``apply(gradients)``; or a function of a dictionary of gradients.
        scaler : GradScaler, optional
            The scaler that scaled the losses.
        before : callable, optional
            Function called without arguments before ``step()``, when each ``.grad`` is set.

        Returns
        -------
        bool
            Whether an update was made.  False if the window was skipped: its gradient was not finite, or its
            total weight was 0.

        Raises
        ------
        AccumulationError
            The window is not full, or the losses were scaled and ``scaler`` was not passed.
        """
        optimizers = optimizers_in(optimizer)
        window = self._window
        window.check(ready=True)
        if window.scaled and scaler is None:
            raise AccumulationError(
                "apply: a GradScaler scaled the losses of this window, so the gradients are scaled too.\n"
                "  Pass the scaler to divide the gradients by the scale: apply(optimizer, scaler=scaler)."
            )
        self._sums.gather(self)
        void = self._is_void()
        updated = not void and update(self, optimizers, scaler, before)
        if scaler is not None and (window.skipped or not void):
            scaler.record(finite=updated and not window.skipped)
        return self._end(updated)

    # Other -----------------------------------------------------------------------------------

    def split(self, batch: Any, size: int) -> Iterator[Any]:
        """Split a batch into micro-batches along the first axis; the last one may be shorter.

        Parameters
        ----------
        batch : array or tree of arrays
            An array, or a tuple, list or dictionary of arrays of equal length.
        size : int
            Number of examples per micro-batch.

        Returns
        -------
        iterator
            The micro-batches, each with the structure of ``batch``.

        Examples
        --------
        >>> import numpy as np
        >>> acc = GradientAccumulator(accumulation_steps=2)
        >>> [len(xb) for xb, yb in acc.split((np.zeros((5, 2)), np.zeros(5)), 3)]
        [3, 2]
        """
        return split_batch(self, batch, size)

    @_locked
    def stats(self) -> AccumulationStats:
        """Return the numbers of micro-batches and updates so far, and the state of the current window."""
        slots, window = [self._sums.slots[name] for name in self.names], self._window
        return AccumulationStats(
            **self._counts, accumulation_steps=self.config.accumulation_steps, registered_params=len(slots),
            total_param_elements=sum(slot.size for slot in slots),
            window_micro_batches=window.micro_batches, window_weight=window.weight,
        )  # fmt: skip

    def on(self, kind: str, callback: Callable[[AccumulationEvent], None]) -> Handle:
        """Register a function to call at each event of one kind.

        Parameters
        ----------
        kind : str
            ``"full"``, ``"clip"``, ``"skip"`` or ``"update"``.
        callback : callable
            Function that is called with an ``AccumulationEvent``.

        Returns
        -------
        Handle
            Its ``remove()`` removes the callback.
        """
        if kind not in _EVENTS or not callable(callback):
            raise ArgumentError(
                f"on: pass one of {words.quoted(_EVENTS)} and a function, not {kind!r} and {callback!r}."
            )
        return self._callbacks[kind].add(callback)

    def _send(self, kind: str, of: Window, **facts: Any) -> None:
        """Call the callbacks for events of ``kind`` with a new event, in the order of registration.

        ``of`` is the window of the event, and ``facts`` are further fields of the ``AccumulationEvent``.
        """
        if not self._callbacks[kind].hooks:
            return
        event = AccumulationEvent(kind, of.micro_batches, of.weight, **facts)
        for callback in self._callbacks[kind].snapshot():
            callback(event)

    @_locked
    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, also of a window that is not full.  Save it with ``ad.save``."""
        self._window.check()
        self._sums.check_undivided(self._window)
        if done := len(self._window.done):
            raise AccumulationError(
                f"state_dict: {done} of the optimisers made an update from this window before a later one "
                "raised, so a resumed run would repeat that update.\n"
                "  Call apply() again with all optimisers, or call drop()."
            )
        return {
            "config": self.config.state_dict(),
            "window": self._window.state_dict(),
            "counts": dict(self._counts),
            "unit": self._sums.unit,
            "buffers": {name: self._sums.state_of(name) for name in self._sums.slots},
        }

    @_locked
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Parameters
        ----------
        state : dict
            The result of ``state_dict``.

        Raises
        ------
        ArgumentError
            The state was saved with different parameters or options.  Nothing was changed.
        """
        config, sums = self.config.state_dict(), self._sums
        own = {"config": config, "window": Window().state_dict(), "counts": self._counts, "unit": 1.0}
        check_like(state, {**own, "buffers": {name: sums.empty_state(name) for name in sums.slots}})
        theirs = state["config"]
        if differ := [f"{k}={theirs[k]!r} instead of {v!r}" for k, v in config.items() if theirs[k] != v]:
            raise ArgumentError(
                f"load_state_dict: the state was saved with different options: {', '.join(differ)}.\n"
                "  Only max_grad_norm, norm_type and nonfinite may differ."
            )
        window = Window(**state["window"], steps=self.config.accumulation_steps)
        window.open = list(window.open)
        sums.check_undivided(window)
        self._window.changing = True  # until the window is replaced
        sums.load(state["buffers"], state["unit"])
        window.gradient = sums.totals() if window.finished else None
        self._window, self._counts = window, dict(state["counts"])

    def __repr__(self) -> str:
        window = self._window
        return (
            f"<GradientAccumulator, {words.count(len(self.names), 'parameter')}, {window.micro_batches} of "
            f"{self.config.accumulation_steps} micro-batches, weight {window.weight:g}>"
        )
