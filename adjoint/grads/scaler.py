"""``GradScaler``: scale losses so that small float16 gradients do not underflow."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from adjoint.config import special
from adjoint.core.lifted import refuse_tracing, tracing
from adjoint.core.shapes import whole_from
from adjoint.core.tensor import Tensor
from adjoint.errors import AccumulationError, ArgumentError, InputError
from adjoint.grads.clip import scaled
from adjoint.grads.norm import all_finite, stored_values
from adjoint.grads.slots import parameters_of, sink
from adjoint.grads.traced_scaler import TracedScaler
from adjoint.hints import Hinted

__all__ = ["GradScaler", "scale_clock"]


class _Clock:
    """A counter that is incremented when the scale of any scaler in this process changes."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0


scale_clock = _Clock()


def _mark_scaled(times: int = 1) -> None:
    """Mark the open micro-batch of an accumulator as scaled: an update without the scaler is then an error.

    ``times`` is not used here; it is the number of times that the body of a compiled loop does this.
    """
    block = sink.get()
    if block is not None:
        block.scaled = True


class GradScaler(metaclass=Hinted):
    """Dynamic loss scaling for half precision.

    ``scale(loss).backward()`` computes gradients multiplied by the scale, so that they do not underflow in
    float16.  ``step(optimizer)`` divides them again, and skips the update if one is not finite.  ``update()``
    reduces the scale after a skipped update, and increases it after ``growth_interval`` updates without one.
    With an accumulator, ``acc.apply(optimizer, scaler=scaler)`` replaces ``step`` and ``update``.

    Parameters
    ----------
    init_scale : float
        The initial scale.
    growth_factor : float
        The factor by which the scale grows after ``growth_interval`` finite updates.
    backoff_factor : float
        The factor by which the scale is multiplied after a skipped update.
    growth_interval : int
        The number of finite updates before the scale grows.
    enabled : bool
        With False the scaler does nothing.

    Examples
    --------
    >>> import adjoint as ad
    >>> scaler = GradScaler(init_scale=8.0)
    >>> scaler.scale(ad.tensor(0.5))
    tensor(4., dtype=float64)
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        *,
        enabled: bool = True,
    ) -> None:
        _check("init_scale", init_scale, 0.0, math.inf)
        _check("growth_factor", growth_factor, 1.0, math.inf)
        _check("backoff_factor", backoff_factor, 0.0, 1.0)
        self._scale = float(init_scale)
        self.growth_factor = float(growth_factor)
        self.backoff_factor = float(backoff_factor)
        self.growth_interval = whole_from(1, "growth_interval", growth_interval)
        if not isinstance(enabled, bool):
            raise ArgumentError(f"enabled must be True or False, not {enabled!r}.")
        self.enabled = enabled
        self._open = False  # whether an optimiser was unscaled or stepped since the last update()
        self._past: deque[tuple[int, float]] = deque(maxlen=64)  # old scales, with the time they ended
        self._good = 0  # consecutive finite updates
        # whether the gradients of unscaled optimisers were finite, since the last update()
        self._found: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()

    def get_scale(self) -> float:
        """Return the scale, or 1 if the scaler is not enabled."""
        if special.count and (trace := tracing.get()) is not None:
            trace.guard("the scale of a GradScaler", lambda: (self.enabled, self._current()))
        return self._current() if self.enabled else 1.0

    def _current(self) -> float:
        """Return the scale, after it has grown if enough updates were finite."""
        if self._good >= self.growth_interval:
            grown = self._scale * self.growth_factor
            self._change(grown if math.isfinite(grown) else self._scale)
            self._good = 0
        return self._scale

    def scale_at(self, moment: int | None) -> float | None:
        """Return the scale when the counter of changes was ``moment``, or None if it is no longer stored."""
        if not self.enabled:
            return 1.0
        self._current()
        if moment is None or not self._past or moment >= self._past[-1][0]:
            return self._scale
        if len(self._past) == self._past.maxlen and moment < self._past[0][0]:
            return None
        return next(scale for until, scale in self._past if moment < until)

    def scale_during(self, first: int | None, last: int | None) -> float:
        """Return the scale of the losses of an update; raise if it changed in between.

        ``first`` and ``last`` are the values of the counter of changes at the first and the last loss.
        """
        scale, later = self.scale_at(first), self.scale_at(last)
        if scale is None or scale != later:
            raise AccumulationError(
                "apply: the scale of the GradScaler changed between the micro-batches of this update, from "
                f"{'a scale no longer stored' if scale is None else f'{scale:g} to {later:g}'}, so the sums "
                "are wrong.\n"
                "  Call drop() on the accumulator.  Accumulators that share a scaler must start and apply "
                "their updates together."
            )
        return scale

    def _change(self, scale: float) -> None:
        if scale != self._scale:
            scale_clock.now += 1
            self._past.append((scale_clock.now, self._scale))
            self._scale = scale

    def scale(self, loss: Any) -> Any:
        """Multiply a loss by the scale.

        Parameters
        ----------
        loss : Tensor, list, tuple or dict
            A loss, or a collection of losses.

        Returns
        -------
        Tensor, list, tuple or dict
            The scaled losses.
        """
        if isinstance(loss, Tensor):
            trace = tracing.get() if special.count else None
            if trace is not None:
                watch = lambda: [("item", vars(self), "enabled")]
                trace.guard("whether a GradScaler is enabled", lambda: self.enabled, watch)
            if not self.enabled:
                return loss
            if trace is not None:
                if sink.get() is not None:
                    trace.act(_mark_scaled)
                return loss * TracedScaler.of(trace, self).number(float)
            _mark_scaled()
            with np.errstate(over="ignore"):  # the scaler detects overflow itself
                return loss * self._current()
        if isinstance(loss, Mapping):
            return {name: self.scale(part) for name, part in loss.items()}
        if isinstance(loss, (list, tuple)):
            return type(loss)(self.scale(part) for part in loss)
        raise InputError(f"scale: a loss must be a tensor, not {type(loss).__name__}.")

    def unscale(self, optimizer: Any) -> bool:
        """Divide the gradients of an optimiser's parameters by the scale.

        Call it at most once per update, to inspect or clip the gradients before ``step``.  If it was not
        called, ``step`` calls it.

        Parameters
        ----------
        optimizer : Optimizer
            The optimiser.

        Returns
        -------
        bool
            Whether all gradients are finite.

        Raises
        ------
        AccumulationError
            If the gradients were already unscaled since the last ``update()``.
        """
        traced = self._traced()
        if optimizer in (self._found if traced is None else traced.found):
            raise AccumulationError(
                "unscale: the gradients of this optimiser were already unscaled since the last update().\n"
                "  Call unscale() at most once before step() and update()."
            )
        if traced is not None:
            return traced.unscale(optimizer)
        # by id, so that a parameter in two groups is divided once
        params = {id(t): t for t in parameters_of(optimizer) if t.grad is not None}.values()
        finite = all(all_finite(stored_values(t.grad)) for t in params)
        if finite and self.enabled:
            for t in params:
                t.grad = scaled(t.grad, 1.0 / self._current())
        self._found[optimizer] = finite
        self._open = True
        return finite

    def step(self, optimizer: Any) -> bool:
        """Call ``optimizer.step()`` if all gradients are finite.

        Parameters
        ----------
        optimizer : Optimizer
            The optimiser.

        Returns
        -------
        bool
            Whether all gradients are finite.

        Raises
        ------
        AccumulationError
            If the optimiser was already stepped since the last ``update()``.
        """
        traced = self._traced()
        if optimizer in (self._stepped if traced is None else traced.stepped):
            raise AccumulationError(
                "step: this optimiser was already stepped since the last update().\n"
                "  Call update() after each step()."
            )
        if traced is not None:
            return traced.step(optimizer)
        finite = self._found[optimizer] if optimizer in self._found else self.unscale(optimizer)
        if finite or not self.enabled:
            optimizer.step()
        self._stepped.add(optimizer)
        return finite

    def update(self, new_scale: float | None = None) -> None:
        """Adapt the scale to the gradients since the last update, or set it.

        Parameters
        ----------
        new_scale : float, optional
            The new scale.
        """
        traced = self._traced()
        if traced is not None and new_scale is not None:
            refuse_tracing("update(new_scale) of a GradScaler", "Call it outside of the compiled function.")
        if new_scale is not None:
            _check("new_scale", new_scale, 0.0, math.inf)
            self._change(float(new_scale))
            self._good = 0
        elif not (self._found if traced is None else traced.found):
            raise AccumulationError(
                "update: no optimiser was stepped or unscaled since the last update().\n"
                "  Call step(optimizer) first."
            )
        elif traced is not None:
            traced.update()
            return
        else:
            self.record(finite=all(self._found.values()))
        self._found.clear()
        self._stepped.clear()
        self._open = False

    def _traced(self) -> TracedScaler | None:
        """Return the state of this scaler in the trace of ``ad.compile``; None if there is no trace."""
        trace = tracing.get() if special.count else None
        if trace is None:
            return None
        found = TracedScaler.of(trace, self)
        found.enter()
        return found

    def record(self, *, finite: bool) -> None:
        """Adapt the scale after one update.

        Parameters
        ----------
        finite : bool
            Whether all gradients were finite.
        """
        if not self.enabled:
            return
        if not finite:
            self._change(max(self._current() * self.backoff_factor, 2.0**-126))
            self._good = 0
            return
        self._current()
        self._good += 1
        self._current()

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and the settings, to be saved."""
        return {
            "scale": self._current(),
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "good_updates": self._good,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state.

        Parameters
        ----------
        state : mapping
            The result of ``state_dict()``.

        Raises
        ------
        ArgumentError
            If keys are missing or values are invalid.
        """
        names = ("scale", "growth_factor", "backoff_factor", "growth_interval", "good_updates")
        missing = [name for name in names if name not in state]
        if missing:
            raise ArgumentError(f"load_state_dict: GradScaler state is missing keys: {', '.join(missing)}.")
        fresh = GradScaler(*(state[name] for name in names[:4]))
        good = whole_from(0, "load_state_dict: good_updates", state["good_updates"])
        self._change(fresh._scale)
        self._good = good
        self.growth_factor, self.backoff_factor = fresh.growth_factor, fresh.backoff_factor
        self.growth_interval = fresh.growth_interval

    def __reduce__(self) -> Any:
        """Pickle the result of ``state_dict``; the recorded states of optimisers are not copied."""
        return _restored, (self.state_dict(), self.enabled)

    def __repr__(self) -> str:
        return f"GradScaler(scale={self.get_scale():g})"


def _restored(state: Mapping[str, Any], enabled: bool) -> GradScaler:
    scaler = GradScaler(enabled=enabled)
    scaler.load_state_dict(state)
    return scaler


def _check(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value < high:
        raise ArgumentError(f"{name} must be a number between {low:g} and {high:g}, but got {value!r}.")
