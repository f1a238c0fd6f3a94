"""``GradScaler`` inside ``ad.compile``: the program assumes that all gradients are finite.

A program unscales the gradients and makes the update; the native entry counts it.  If a gradient is not
finite, nothing is written, and the call runs the function itself, which skips the update and reduces the
scale.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.core.lifted import UnexpectedError, refuse_tracing
from adjoint.core.native import NotNative
from adjoint.core.roles import CountRole, UpdateRole
from adjoint.core.sparse import stored_in, with_stored
from adjoint.grads.clip import scaled
from adjoint.grads.norm import all_finite
from adjoint.grads.slots import parameters_of

if TYPE_CHECKING:
    from adjoint.grads.scaler import GradScaler

__all__ = ["TracedScaler"]


class TracedScaler:
    """What a trace has done with a scaler since its start; ``updated`` after ``update()``."""

    def __init__(self, trace: Any, scaler: GradScaler) -> None:
        self.trace = trace
        self.scaler = scaler
        self.found: list[Any] = []  # optimisers whose gradients are unscaled
        self.stepped: list[Any] = []
        self.action: Any = None
        self.updated = False

    @staticmethod
    def of(trace: Any, scaler: GradScaler) -> TracedScaler:
        """Return the object of a trace for ``scaler``."""
        known: dict[str, TracedScaler] = trace.updates_of(scaler)
        if "scaler" not in known:
            known["scaler"] = TracedScaler(trace, scaler)
        return known["scaler"]

    def enter(self) -> None:
        """Check and guard the state of the scaler at the start of a call, once."""
        if self.action is not None:
            return
        scaler, space = self.scaler, vars(self.scaler)
        if self.trace.parent is not None:
            self._refuse("in a loop", "Call unscale(), step() and update() outside of the loop.")
        if scaler._open:
            self._refuse("after unscale() or step() outside", "Call unscale(), step() and update() inside.")
        self.trace.guard(
            "whether a GradScaler waits for update()",
            lambda: (scaler._open, scaler.enabled),
            lambda: [("item", space, "_open"), ("item", space, "enabled")],
        )
        self.action = self.trace.act(_Marks(self))

    def _refuse(self, where: str, cure: str) -> None:
        refuse_tracing(f"a GradScaler {where}", cure)

    def number(self, read: Callable[[float], float]) -> Any:
        """Return a symbol of a number that each call computes from the scale."""
        if self.updated:
            self._refuse(
                "after its update()", "Make one update of a scaler per call of the compiled function."
            )
        scaler = self.scaler
        return self.trace.number(lambda: read(scaler._current()))

    def unscale(self, optimizer: Any) -> bool:
        """Add the division of the gradients by the scale to the program; return that they are finite."""
        inverse = self.number(lambda scale: 1.0 / scale if self.scaler.enabled else 1.0)
        params = list({id(t): t for t in parameters_of(optimizer) if t.grad is not None}.values())
        self.found.append(optimizer)
        if params:
            grads: list[Any] = [stored_in(t.grad) for t in params]
            specs = [(g.shape, g.dtype) for g in grads]
            native = partial(native_unscale, count=len(grads))
            found = self.trace.call("unscale", _unscaled, [*grads, inverse], specs, False, native)
            for t, value in zip(params, found, strict=True):
                t.grad = with_stored(t.grad, value)
        return True

    def step(self, optimizer: Any) -> bool:
        """Add the update of an optimiser to the program."""
        if optimizer not in self.found:
            self.unscale(optimizer)
        optimizer.step()
        self.stepped.append(optimizer)
        return True

    def update(self) -> None:
        """Make each call count a finite update."""
        self.updated = True
        self.trace.actions.remove(self.action)
        if self.scaler.enabled:
            self.trace.act(_Count(self.scaler))


class _Marks(UpdateRole):
    """An action at the end of a call without ``update()``: notes the optimisers that it used."""

    def __init__(self, traced: TracedScaler) -> None:
        self.traced = traced

    what = "state of a GradScaler"

    def count(self) -> Any:
        """Return what ``take_back`` restores."""
        scaler = self.traced.scaler
        return dict(scaler._found), set(scaler._stepped), scaler._open

    def take_back(self, before: Any) -> None:
        """Restore the state before the call."""
        scaler = self.traced.scaler
        found, stepped, scaler._open = before
        scaler._found.clear()
        scaler._found.update(found)
        scaler._stepped.clear()
        scaler._stepped.update(stepped)

    def __call__(self) -> None:
        scaler = self.traced.scaler
        scaler._open = True
        scaler._found.update(dict.fromkeys(self.traced.found, True))
        scaler._stepped.update(self.traced.stepped)


class _Count(CountRole):
    """An action at the end of a call: counts an update with finite gradients."""

    what = "count of a GradScaler"

    def __init__(self, scaler: GradScaler) -> None:
        self.scaler = scaler

    def counters(self) -> list[tuple[dict[str, Any], str]]:
        """Return the attribute that counts, as a pair (dictionary, key)."""
        return [(vars(self.scaler), "_good")]

    def count(self) -> int:
        """Return what ``take_back`` restores."""
        return self.scaler._good

    def take_back(self, before: int) -> None:
        """Restore the count before the call."""
        self.scaler._good = before

    def __call__(self) -> None:
        self.scaler._good += 1


def _unscaled(*values: Any) -> Any:
    """Return gradients, all ``values`` but the last, times the last; raise if one is not finite."""
    *grads, inverse = values
    if not all(map(all_finite, grads)):
        raise UnexpectedError("a gradient is not finite")
    found = tuple([scaled(g, float(inverse)) for g in grads])
    return found if len(found) > 1 else found[0]


def native_unscale(xp: Any, *values: Any, count: int) -> Any:
    """Return ``count`` gradients, the first ``values``, times the last value.

    A check fails if one is not finite.
    """
    grads, inverse = values[:count], values[count]
    if any(g.dtype.kind != "f" for g in grads):
        raise NotNative("complex gradients have no native form")
    wide = xp.graph.sizes.wide
    sizes = [xp.abs(xp.flat(xp.graph.copied(g))) for g in grads if g.size]
    largest = [xp.cast(xp.reduced("max", a, (0,), False, a.dtype), wide) for a in sizes]
    finite = functools.reduce(xp.maximum, largest, xp.full((), 0.0, wide)) < np.inf  # false for NaN, too
    xp.graph.checks.append(xp.logical_not(finite))
    # the factor depends on the check, so that updates are made after it, and can be written in place
    factor = xp.where(finite, xp.cast(xp.strong(inverse), wide), np.nan)
    found = tuple([g * xp.cast(factor, g.dtype) for g in grads])
    return found if count > 1 else found[0]
