"""``GradientAccumulator``: sum the gradients of micro-batches into the gradient of the whole batch.

A window is the set of micro-batches that make one update.  Its gradient is Σ weight·gradient / Σ weight.  All
parameters are divided by the weight of all micro-batches, also parameters that only some micro-batches use.
A micro-batch is checked completely before any of its gradients is added.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from adjoint import words
from adjoint.accumulate.doors import (
    MicroBatch,
    clipped_by,
    hand_over,
    named_params,
    optimizers_of,
    shown,
    split_batch,
)
from adjoint.accumulate.foreign import checked_weight, sum_dtype
from adjoint.accumulate.ranks import Ranks, RankSums
from adjoint.accumulate.sums import Sums, normalised
from adjoint.accumulate.window import (
    COUNTS,
    AccumulationConfig,
    AccumulationEvent,
    AccumulationStats,
    Listeners,
    Window,
    check_like,
)
from adjoint.config import special
from adjoint.core.lifted import refuse_tracing
from adjoint.core.node import Handle
from adjoint.core.tensor import Tensor
from adjoint.errors import (
    AccumulationError,
    AdjointError,
    ArgumentError,
    DTypeError,
    InputError,
    NoGradientError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
)
from adjoint.grads.norm import Measure, all_finite, global_norm, measured
from adjoint.grads.scaler import GradScaler, scale_clock

if TYPE_CHECKING:
    from adjoint.distributed.group import Group

__all__ = ["GradientAccumulator"]

FORMAT = 3  # of saved states
_CURES = ('nonfinite="skip" to leave out such micro-batches.',
          'nonfinite="skip_window", so that the GradScaler lowers its scale.')  # fmt: skip
_FREE = ("max_grad_norm", "norm_type", "nonfinite")  # options that a resumed run may change


P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate["GradientAccumulator", P], T]


def _locked(method: Method[P, T]) -> Method[P, T]:
    """Run a method with the accumulator's lock held, outside ``ad.compile``.

    An interrupt (Ctrl-C) also releases the lock.
    """

    @wraps(method)
    def call(self: GradientAccumulator, /, *args: P.args, **options: P.kwargs) -> T:
        if special.count:
            refuse_tracing("A GradientAccumulator", "Call its methods outside the compiled function.")
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
        Fields of ``AccumulationConfig``, instead of ``config``.

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
        clip: Callable[[Any], Any] | None = None,
        group: Group | None = None,
        **options: Any,
    ) -> None:
        if isinstance(params, AccumulationConfig) and config is None:
            params, config = None, params
        if clip is not None and not callable(clip):
            raise InputError(
                f"GradientAccumulator: clip must be a function, not {words.a(type(clip).__name__)}."
            )
        self.config = AccumulationConfig._of(config, options)
        self._clip = clip
        self._sums = Sums(self.config.compensated) if group is None else RankSums(group)
        self._params: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}  # by id of the parameter
        self._short: tuple[int, int] | None = None  # lengths of a short piece of ``split`` and of others
        self._window = Window()
        self._counts = dict.fromkeys(COUNTS, 0)
        self._listeners = Listeners()
        self._lock = threading.RLock()
        self._last_norm: float | None = None
        for name, t in () if params is None else named_params(params):
            if id(t) in self._names:
                continue  # shared under two names: one gradient
            if name in self._params:
                raise ArgumentError(f"GradientAccumulator: two parameters have the same name, {name!r}.")
            dtype = sum_dtype(t.dtype)
            if self.config.dtype is not None:
                dtype = np.result_type(self.config.dtype, "F" if dtype.kind == "c" else "f")
            self._sums.register(name, t.shape, dtype, t)
            self._params[name], self._names[id(t)] = t, name
        # the exchange with other ranks
        self._ranks = None if group is None else Ranks.of(group, self._params, self.config)

    # Registration ----------------------------------------------------------------------------

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
        ShapeError, DTypeError
            The name is already registered with a different shape or dtype.
        """
        if not isinstance(name, str):
            raise InputError(f"register: the name must be a string, not {words.a(type(name).__name__)}.")
        wanted = self.config.dtype if dtype is None else dtype
        old = self._sums.slots.get(name)
        if old is None:
            self._sums.register(name, shape, wanted)
            return
        new = Sums().register(name, shape, wanted)
        other = dtype is not None and str(old.dtype) != str(new.dtype)  # np.dtype(None) is float64
        if other or old.shape != new.shape:
            raise (DTypeError if other else ShapeError)(
                f"register: {name!r} is already registered with shape {old.shape} and "
                f"{old.dtype or 'the dtype of its first gradient'}, not {new.shape}"
                f"{'' if new.dtype is None else f' and {new.dtype}'}.\n"
                "  Choose another name, or create a new accumulator."
            )

    @property
    def names(self) -> list[str]:
        """The names of the registered parameters in order of registration, without frozen parameters."""
        return [name for name, s in self._sums.slots.items() if s.param is None or s.param.requires_grad]

    # Adding ----------------------------------------------------------------------------------

    @_locked
    def step(self, gradients: Mapping[str, Any], weight: float = 1.0) -> bool:
        """Add one micro-batch.

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
        self._check_open()
        return self._add(self._checked(gradients), weight)

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
        if self._ranks is not None:
            raise AccumulationError(
                "accumulate: with group=, all gradients of a micro-batch must be added in one call.\n"
                "  Call step(gradients), or compute the gradients inside micro_batch()."
            )
        arrays = self._checked({name: grad})
        window = self._window
        joins = bool(window.open) and name not in window.open
        self._check_open(joins)
        if joins and weight != window.open_weight:
            raise ArgumentError(
                "accumulate: all gradients of a micro-batch must have the same weight, but this micro-batch "
                f"has weight {window.open_weight:g} and {name!r} has weight {weight:g}."
            )
        self._add(arrays, weight, joins, name)

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
                "  Pass them, GradientAccumulator(params, …), or add gradients by name with step()."
            )
        return MicroBatch(self, weight)

    @_locked
    def _add_block(self, pending: dict[str, Any], block: MicroBatch) -> None:
        self._check_open()
        arrays = list(map(pending.get, self._sums.slots))
        for slot, g in zip(self._sums.slots.values(), arrays, strict=True):
            if g is not None and g.dtype is not slot.dtype:
                slot.fitting(g)  # float16 fits into float32, but float64 does not
        self._add(arrays, block.weight, scaled=block.scaled)

    def _checked(self, gradients: Mapping[str, Any]) -> Sequence[Any]:
        if not isinstance(gradients, Mapping):
            raise InputError(
                f"step: pass a dictionary of gradients by name, not {words.a(type(gradients).__name__)}."
            )
        return self._sums.checked(gradients)

    def _add(
        self,
        arrays: Sequence[Any],
        weight: float,
        joins: bool = False,
        single: str = "",
        scaled: bool = False,
    ) -> bool:
        """Add the gradients ``arrays``, which were checked before; return whether the window is full.

        ``single`` is the name of the gradient if only one gradient of the micro-batch is added; ``joins`` is
        True if other gradients of the same micro-batch were added before; ``scaled`` if a ``GradScaler`` has
        scaled the loss.
        """
        window, policy = self._window, self.config.nonfinite
        mean = self.config.reduction == "mean"
        bad: list[str] = []
        before = 0 if self._ranks is None else self._ranks.begin(self._sums, weight)
        with window:
            if not window.spoiled and (weight or not mean):
                bad = self._sums.add(arrays, weight if mean else None, window.weight, check=policy != "allow")
            if bad and (policy == "raise" or (policy == "skip" and single)):
                raise NonFiniteError(
                    f"this micro-batch has gradients that are not finite: {words.quoted(bad)}.  "
                    "Nothing was added.\n"
                    "  Run backward under ad.detect_anomaly() to find the op that produced them, or pass "
                    + _CURES[scaled]
                )
            if not joins:
                window.open = []
                window.micro_batches += 1
                window.scaled = window.scaled or scaled
                self._counts["total_micro_batches"] += 1
                if not bad and not window.spoiled:
                    window.last = scale_clock.now
                    window.first = window.last if window.micro_batches - window.skipped == 1 else window.first
                    window.weight += weight
            if single:
                window.open.append(single)
                window.open_weight = weight
            if bad:
                window.spoiled = policy == "skip_window"
                window.skipped += 1
                self._counts["skipped_micro_batches"] += 1
            full = window.micro_batches >= self.config.accumulation_steps
            if self._ranks is not None:
                self._ranks.end(self._sums, before, 0.0 if bad or window.spoiled else weight, full)
        if bad:
            self._listeners.send("skip", window, names=tuple(bad))
        if full and not joins:
            self._listeners.send("full", window)
        return full

    # The window ------------------------------------------------------------------------------

    def should_update(self) -> bool:
        """Return whether the window is full, or was closed by ``flush``."""
        return self._window.closed or self._window.micro_batches >= self.config.accumulation_steps

    @_locked
    def flush(self) -> bool:
        """Close a window that is not full, so that ``apply`` accepts it; return False if the window is empty.

        The divisor is then the weight of the micro-batches that were added.  With ``group=`` all ranks must
        call ``flush``; it returns False if the window is empty on all ranks.
        """
        self._check_whole()
        some = self._window.micro_batches > 0
        if self._ranks is not None and not self._window.reduced:
            some = self._ranks.flush(self._sums, some)
        self._window.closed = some
        return some

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
        elif self._void():
            self._end("skip", window=True)
        else:
            self._end("update", norm=self._window.norm, clipped_norm=self._window.clipped_norm)

    def _void(self) -> str:
        """Return the reason why the window has no gradient; "" if it has one."""
        window = self._window
        if not (self._sums.dense or self._sums.rows):
            if not window.micro_batches:
                return "the window has no gradient, because no micro-batch was added."
            return "the window has no gradient: all of its micro-batches were skipped.  Call drop()."
        if window.spoiled:
            return "the window has no gradient, because a micro-batch was not finite.  Call drop()."
        if self.config.normalize and not 0.0 < window.weight < math.inf:
            weight = f"the weight of the window is {window.weight:g}"
            return f"{weight}, so the gradient cannot be divided by it.  Call drop()."
        return ""

    def _end(self, kind: str, **facts: Any) -> bool:
        """Begin the next window after an update or a skip; return whether there was an update."""
        window = self._window
        self._counts["total_updates" if kind == "update" else "skipped_windows"] += 1
        self._clear()
        self._listeners.send(kind, window, **facts)
        return kind == "update"

    def _clear(self) -> None:
        self._window = window = Window(changing=True)
        self._sums.reset()
        if self._ranks is not None:
            self._ranks.clear()
        window.changing = False

    def _check_whole(self) -> None:
        if self._window.changing:
            raise AccumulationError(
                "an interrupt stopped the accumulator while it added, divided or applied gradients.\n"
                "  The window is incomplete, and some parameters may already be updated.\n"
                "  Call drop() to discard the window, or load_state_dict() to restore a saved one."
            )

    @_locked
    def _check_open(self, joins: bool = False) -> None:
        self._check_whole()
        window, steps = self._window, self.config.accumulation_steps
        if window.closed or (window.micro_batches >= steps and not joins):
            raise AccumulationError(
                f"the window {'was flushed' if window.closed else 'is full'} ({window.micro_batches} of "
                f"{steps} micro-batches), so no more can be added.\n"
                "  Make the update with apply(optimizer), or with gradients() and then reset().\n"
                "  Call drop() to discard the window."
            )

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
            The window has no gradient, or its gradient is not finite.
        """
        window = self._window
        self._check_whole()
        if self._ranks is not None:
            self._check_full()
            self._reduce()
        if why := self._void():
            raise (NonFiniteError if window.spoiled and self._sums.dense else NoGradientError)(why)
        found = window.gradient
        if found is None:
            found = self._made(None, "raise", in_place=False, tell=self.should_update())
        else:
            found = {name: normalised(g, 1.0, 1.0) for name, g in found.items()}
        if zeros:
            found = {n: found[n] if n in found else self._sums.total(n) for n in self.names}
        return shown(found)

    def _made(self, scaler: GradScaler | None, policy: str, in_place: bool, tell: bool) -> Any:
        """Return the normalised and clipped gradients; None if they are not finite.

        With the policy "raise", gradients that are not finite are an error.  With ``in_place`` the gradients
        may use the memory of the sums; with ``tell`` events are sent.
        """
        config, window, sums = self.config, self._window, self._sums
        measure = self._measured(scaler)
        if not measure.finite and (scaler is not None or config.nonfinite != "allow"):
            if scaler is not None or policy != "raise":
                return None
            wider = any(g.dtype.char in "fF" for g in sums.totals().values())
            raise NonFiniteError(
                f"the norm of the summed gradients is {measure.norm}"
                f"{', although each micro-batch was finite' if self._ranks is None else ''}.\n"
                f"  {'Sum in float64 (dtype=np.float64), or use' if wider else 'Use'} smaller losses or "
                "weights.  Call drop() to discard the window."
            )
        # a clip function that raises leaves the sums as they were
        in_place = in_place and self._clip is None and not sums.rows and not config.compensated
        norm, clips = measure.norm, [(measure.norm, config.max_grad_norm)] if measure.clipped else []
        with window if in_place else nullcontext():
            found = sums.finish(measure.divisor, measure.factor, in_place)
            if in_place:
                window.gradient, window.finished = found, True
        if self._clip is not None:
            before = global_norm(found.values(), config.norm_type)
            found = clipped_by(self._clip, found, self._params)
            after = global_norm(found.values(), config.norm_type)
            norm = norm or before
            if after != before and not math.isnan(before):
                clips.append((before, after))
        if tell and window.norm is None:
            self._last_norm = window.norm = norm
            self._counts["clipped_windows"] += bool(clips)
            for norm, clipped in clips:
                window.clipped_norm = clipped
                self._listeners.send("clip", window, norm=norm, clipped_norm=clipped)
        return found

    def _measured(self, scaler: GradScaler | None) -> Measure:
        """Return the norm and the factors of normalising and clipping, and whether the result is finite."""
        config, window, sums = self.config, self._window, self._sums
        divisor = self.divisor() / sums.unit
        if scaler is not None:
            divisor *= scaler.scale_during(window.first, window.last)
        if config.max_grad_norm is None:
            allowed = config.nonfinite == "allow" and scaler is None
            # a divisor from 1 makes no quotient larger than its sum
            if allowed or (divisor >= 1.0 and all(map(all_finite, sums.values()))):
                return Measure(None, divisor)
        return measured(list(sums.totals().values()), config.norm_type, divisor, config.max_grad_norm)

    @property
    def last_norm(self) -> float | None:
        """The gradient norm of the last finished window, before clipping; None if it was not computed.

        ``max_grad_norm=math.inf`` computes the norm without clipping.
        """
        return self._last_norm

    # The update ------------------------------------------------------------------------------

    @_locked
    def apply(
        self,
        optimizer: Any,
        *,
        scaler: GradScaler | None = None,
        before: Callable[[], object] | None = None,
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
        optimizers = optimizers_of(optimizer)
        if scaler is not None and not isinstance(scaler, GradScaler):
            raise InputError(f"apply: scaler must be an ad.GradScaler, not {words.a(type(scaler).__name__)}.")
        window = self._window
        self._check_whole()
        self._check_full()
        if window.scaled and scaler is None:
            raise AccumulationError(
                "apply: a GradScaler scaled the losses of this window, so the gradients are scaled too.\n"
                "  Pass the scaler to divide the gradients by the scale: apply(optimizer, scaler=scaler)."
            )
        if self._ranks is not None:
            self._reduce()
        void = bool(self._void())
        if void or not self._update(optimizers, scaler, before):
            if scaler is not None and (window.skipped or not void):
                scaler.record(finite=False)
            return self._end("skip", window=True)
        if scaler is not None:
            scaler.record(finite=not window.skipped)
        return self._end("update", norm=window.norm, clipped_norm=window.clipped_norm)

    def _check_full(self) -> None:
        if not self.should_update():
            raise AccumulationError(
                f"the window has only {self._window.micro_batches} of {self.config.accumulation_steps} "
                "micro-batches.\n"
                "  Add more, close the window with flush(), or discard it with drop()."
            )

    def _reduce(self) -> None:
        """Sum the window over the ranks of the group, unless this was done before."""
        window = self._window
        if self._ranks is None or window.reduced:
            return
        with window:
            try:
                self._ranks.reduce(self)
            except Exception:
                self.drop()  # on all ranks: the sums of some may be those of all already
                raise

    def _update(self, optimizers: list[Any], scaler: GradScaler | None, before: Any) -> bool:
        """Pass the gradient to the optimisers; return False if it is not finite and the update is skipped."""
        window, policy = self._window, self.config.nonfinite
        if window.gradient is None:
            window.gradient = self._made(scaler, policy, in_place=True, tell=True)
            if window.gradient is None:
                return False
        allow = policy == "allow" and not scaler
        with window:  # an optimiser that raises has made no update
            beyond = hand_over(optimizers, self._params, window.gradient, window.done, before, allow)
        if beyond and policy == "raise" and scaler is None:
            raise NonFiniteError(
                f"apply: these gradients overflow the dtype of their parameters: {words.quoted(beyond)}.\n"
                "  Clip the gradients (max_grad_norm=), or use a wider dtype for the parameters."
            )
        return not beyond

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
        >>> acc = GradientAccumulator(accumulation_steps=2)
        >>> [len(xb) for xb, yb in acc.split((np.zeros((5, 2)), np.zeros(5)), 3)]
        [3, 2]
        """
        return split_batch(self, batch, size)

    @_locked
    def stats(self) -> AccumulationStats:
        """Return the counts since the accumulator was created, and the state of the current window."""
        slots, window = [self._sums.slots[name] for name in self.names], self._window
        return AccumulationStats(
            **self._counts,
            accumulation_steps=self.config.accumulation_steps,
            registered_params=len(slots),
            total_param_elements=sum(slot.size for slot in slots),
            window_micro_batches=window.micro_batches,
            window_weight=window.weight,
        )

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
        return self._listeners.add(kind, callback)

    @_locked
    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, also of a window that is not full.  Save it with ``ad.save``."""
        self._check_whole()
        if self._ranks is not None and self._window.micro_batches:
            raise AccumulationError(
                "state_dict: this window is divided among the ranks, so no rank can save it.\n"
                "  Save after apply(), or call drop() first."
            )
        if self._window.done:
            raise AccumulationError(
                f"state_dict: {len(self._window.done)} of the optimisers made an update from this window "
                "before a later optimiser raised, so a resumed run would repeat that update.\n"
                "  Call apply() again with all optimisers, or call drop()."
            )
        return {
            "format": FORMAT,
            "config": self.config.state_dict(),
            "window": self._window.saved(),
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
        ArgumentError, UnknownNameError, ShapeError, DTypeError
            The state was saved with different parameters or options.  Nothing was changed.
        """
        try:
            sums, window, counts = self._read(state)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, AdjointError):
                raise
            raise ArgumentError(
                f"load_state_dict: the argument is not the state of a GradientAccumulator ({error!r}).\n"
                "  Pass the value returned by state_dict().  If it was saved with other objects, pass only "
                "the accumulator's entry of what ad.load returned."
            ) from None
        window.gradient = sums.totals() if window.finished else None
        self._sums, self._window, self._counts = sums, window, counts

    def _read(self, state: Mapping[str, Any]) -> tuple[Sums, Window, dict[str, int]]:
        """Return the sums, the window and the counts of a saved state.

        Raises if they do not match the parameters and options of this accumulator.
        """
        if state["format"] is not FORMAT:
            raise ArgumentError(
                f"load_state_dict: the state has format {state['format']!r}, but this version of adjoint "
                f"reads format {FORMAT}."
            )
        here, saved = self._sums.slots.keys(), state["buffers"].keys()
        if here != saved:
            parts = [f"the state is missing {words.quoted(sorted(here - saved))}"] * bool(here - saved)
            parts += [f"{words.quoted(sorted(saved - here))} is not registered"] * bool(saved - here)
            raise UnknownNameError(
                f"load_state_dict: the names differ from those of the state: {' and '.join(parts)}.\n"
                "  Create the accumulator with the same parameters, or register the same names."
            )
        own, config = self.config.state_dict(), state["config"]
        if differing := [k for k, v in own.items() if k not in _FREE and config[k] != v]:
            raise ArgumentError(
                "load_state_dict: the state was saved with different options: "
                + ", ".join(f"{k}={config[k]!r} instead of {own[k]!r}" for k in differing)
                + ".\n  Create the accumulator with the saved options.  Only max_grad_norm, norm_type and "
                "nonfinite may differ."
            )
        window = Window.loaded(state["window"])
        if not window.skipped <= window.micro_batches <= self.config.accumulation_steps:
            raise ArgumentError(f"load_state_dict: the saved counts contradict each other: {window!r}.")
        if not here >= set(window.open):
            raise UnknownNameError(
                "load_state_dict: the saved micro-batch has gradients of parameters that are not registered."
            )
        check_like(state["counts"], dict.fromkeys(COUNTS, 0), "counts")
        return self._sums.loaded(state["buffers"], state["unit"]), window, dict(state["counts"])

    def __repr__(self) -> str:
        window = self._window
        return (
            f"<GradientAccumulator, {words.count(len(self.names), 'parameter')}, {window.micro_batches} of "
            f"{self.config.accumulation_steps} micro-batches, weight {window.weight:g}>"
        )
