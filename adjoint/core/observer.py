"""``Observer``: callbacks for the events of a running program, used by ``adjoint.inspect``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adjoint.config import special
from adjoint.context import observer

__all__ = ["Observer", "observer", "unobserved"]


class Observer:
    """Base class of objects that are notified when ops run; ``with`` activates one in this thread or task.

    While an observer is active, ``config.special.count`` is positive, so each op runs through
    ``record.careful``, which calls the methods below.  Without an observer the context variable is not read.
    Methods must not raise and must not run ops.
    """

    values = False  # whether it needs the ops inside compiled functions, with their tensors

    def __enter__(self) -> Any:
        self._around = observer.get()
        special.enter()
        observer.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        observer.set(self._around)
        special.leave()

    def begin(self, op: Any) -> None:
        """Called when an op starts; ``end`` is not called if the op raises."""

    def computed(self, op: Any) -> None:
        """Called when the values of an op are computed; the op is recorded next, then ``end`` is called."""

    def end(
        self, op: Any, operands: tuple[Any, ...], params: dict[str, Any], results: tuple[Any, ...]
    ) -> None:
        """Called with the result of an op: tensors, with their nodes if they were recorded."""

    def left(self, t: Any, view: Any, how: str) -> None:
        """Called when the values of ``t`` leave the graph by the operation ``how``, for example "detach()".

        ``view`` is the resulting tensor, or None if the result consists of plain numbers.
        """

    def pulling(self, step: Callable[..., None]) -> Callable[..., None]:
        """Return the function that a backward calls for each node in place of ``step``, the engine's own."""
        return step

    def failed(self, root: Any) -> None:
        """Called when a backward from ``root`` cannot start, because ``root`` does not require grad."""

    def called(self, module: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call a module: return ``run(*args, **kwargs)``."""
        return run(*args, **kwargs)

    def compiled(self, function: Any, inline: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call a compiled function.  By default run its Python function, to observe its ops."""
        return inline(*args, **kwargs)


class unobserved:  # noqa: N801  a context manager that reads as a function
    """Context manager that deactivates the active observer."""

    def __enter__(self) -> None:
        self._around = observer.get()
        observer.set(None)

    def __exit__(self, *exception: object) -> None:
        observer.set(self._around)
