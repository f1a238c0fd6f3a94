"""A trace pauses while the garbage collector runs: the traced function does not call finalisers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from adjoint.core.lifted import enclosing, tracing

if TYPE_CHECKING:
    from adjoint.compiler.capture.sources import Held
    from adjoint.compiler.capture.trace import Trace

__all__ = ["Pause", "restore"]


def restore(h: Held) -> None:
    """Restore the array, class, version, node and gradient that a captured tensor had before the trace."""
    _set_state(h.tensor, (h.data, h.kind, h.version, h.node, h.grad))


def _state(t: Any) -> tuple[Any, ...]:
    return t._data, t.__class__, t._version, t._node, None if t._extra is None else t._extra.grad


def _set_state(t: Any, state: tuple[Any, ...]) -> None:
    t._data, t.__class__, t._version, t._node, grad = state
    if t._extra is not None:
        t._extra.grad = grad


class Pause:
    """A callback of ``gc`` that pauses a trace, and the traces of loop bodies in it, during a collection.

    Finalisers and callbacks of weak references then see the arrays of captured tensors, and may write to
    them: the program reads the arrays after the trace.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.modes: Any = None  # the context variables that the trace has set; None if it is not paused
        # the captured tensors, and their states in the trace and after the collection
        self.held: list[Held] = []
        self.inside: list[Any] = []
        self.after: list[Any] | None = None

    def __call__(self, phase: str, _: Any) -> None:
        """Pause the trace at the start of a collection, and resume it at the end."""
        if threading.get_ident() == self.trace.thread:
            step = self._start if phase == "start" else self._stop
            try:
                step()
            except BaseException as error:  # an interrupt, which ``gc`` would drop: the trace raises it
                self.trace.interrupt = error
                step()

    def _start(self) -> None:
        if self.modes is None:
            captured = [h for trace in self.trace.running for h in trace.held.values() if h.argument is None]
            first = {id(h.tensor): h for h in reversed(captured)}  # of the outermost trace
            self.held, self.after = list(first.values()), None
            self.inside = [_state(h.tensor) for h in self.held]
            self.modes = tracing.get(), enclosing.get()
        tracing.set(None)
        enclosing.set(None)
        for trace in self.trace.running:
            trace.paused = True
        for h in self.held:
            restore(h)

    def _stop(self) -> None:
        if self.modes is None:
            return
        if self.after is None:
            self.after = [_state(h.tensor) for h in self.held]
        for h, inside, after in zip(self.held, self.inside, self.after, strict=True):
            h.data, h.kind, h.version, h.node, h.grad = after
            if not self.trace.ended:
                _set_state(h.tensor, inside)
        for trace in self.trace.running:
            trace.paused = False
        tracing.set(self.modes[0])
        enclosing.set(self.modes[1])
        self.modes = None
