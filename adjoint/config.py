"""The modes of the engine: context variables, so threads and asyncio tasks have their own.

``special`` counts the contexts, anywhere, that ops must look at besides the grad mode (tapes,
anomaly detection, saved-tensor hooks).  It is a plain number so that the hot path pays nothing
for features that nobody uses: only while it is not zero do ops take the careful path, which
then reads the context variables.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import numpy as np

from adjoint.errors import ArgumentError, DTypeError

__all__ = [
    "ContextMode",
    "enable_grad",
    "get_default_dtype",
    "get_workers",
    "grad_mode",
    "held_across_fork",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "set_default_dtype",
    "set_grad_enabled",
    "set_workers",
    "watched",
    "workers",
]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_FLOAT64 = np.dtype(np.float64)

grad_mode: ContextVar[bool] = ContextVar("adjoint_grad_mode", default=True)
_inference: ContextVar[bool] = ContextVar("adjoint_inference_mode", default=False)
_default_dtype: ContextVar[np.dtype[Any]] = ContextVar("adjoint_default_dtype", default=_FLOAT64)
_workers: ContextVar[int | str] = ContextVar("adjoint_workers", default=1)


L = TypeVar("L", bound=Any)


def held_across_fork(lock: L) -> L:
    """Let no fork happen while another thread has ``lock``: the child would never get it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


class _Special:
    """How many contexts need the careful path of every op; see the module's docstring."""

    __slots__ = ("count", "lock")

    def __init__(self) -> None:
        self.count = 0
        self.lock = held_across_fork(threading.RLock())

    def enter(self) -> None:
        with self.lock:
            self.count += 1

    def leave(self) -> None:
        with self.lock:
            self.count -= 1


special = _Special()


@contextmanager
def watched(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable that ops look at on their careful path, for a block."""
    token = variable.set(value)
    special.enter()
    try:
        yield
    finally:
        special.leave()
        variable.reset(token)


class ContextMode(Generic[T]):
    """A context manager and decorator that sets one context variable for its extent.

    As a decorator it also wraps generators and coroutines: the mode holds while their body
    runs, and is taken off whenever they are suspended.
    """

    _variable: ContextVar[T]

    def __init__(self, value: T) -> None:
        self._value = value
        self._tokens: list[Token[T]] = []

    def _next_value(self) -> T:
        return self._value

    def __enter__(self) -> None:
        self._tokens.append(self._variable.set(self._next_value()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._variable.reset(self._tokens.pop())

    def _again(self) -> ContextMode[T]:
        """Make the same mode anew: a decorated function may call itself."""
        fresh = object.__new__(type(self))
        fresh._value = self._value
        fresh._tokens = []
        return fresh

    def __call__(self, function: F) -> F:
        """Return ``function`` so wrapped that it runs in this mode."""
        if inspect.isasyncgenfunction(function):
            return cast(F, _wrap_async_generator(function, self._again))
        if inspect.iscoroutinefunction(function):
            return cast(F, _wrap_coroutine(function, self._again))
        if inspect.isgeneratorfunction(function):
            return cast(F, _wrap_generator(function, self._again))

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return cast(F, wrapper)


def _wrap_generator(function: Callable[..., Any], mode: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        body = function(*args, **kwargs)
        send: Callable[[], Any] = functools.partial(next, body)
        while True:
            try:
                with mode():
                    item = send()
            except StopIteration as stop:
                return stop.value
            try:
                received = yield item
                send = functools.partial(body.send, received)
            except GeneratorExit:
                with mode():
                    body.close()
                raise
            except BaseException as error:  # handed to the body, which may handle it
                send = functools.partial(body.throw, error)

    return wrapper


class _Steps:
    """Drive an awaitable one step at a time, each step inside the mode."""

    def __init__(self, awaitable: Any, mode: Callable[[], Any]) -> None:
        self._iterator = awaitable.__await__()
        self._mode = mode

    def __await__(self) -> Any:
        send: Callable[[], Any] = functools.partial(next, self._iterator)
        while True:
            try:
                with self._mode():
                    item = send()
            except StopIteration as stop:
                return stop.value
            try:
                received = yield item
                send = functools.partial(self._iterator.send, received)
            except GeneratorExit:
                with self._mode():
                    self._iterator.close()
                raise
            except BaseException as error:  # handed to the body, which may handle it
                send = functools.partial(self._iterator.throw, error)


def _wrap_coroutine(function: Callable[..., Any], mode: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await _Steps(function(*args, **kwargs), mode)

    return wrapper


def _wrap_async_generator(function: Callable[..., Any], mode: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        body = function(*args, **kwargs)
        try:
            while True:
                try:
                    item = await _Steps(body.__anext__(), mode)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            await body.aclose()

    return wrapper


class _GradMode(ContextMode[bool]):
    _variable = grad_mode

    def __init__(self, value: bool) -> None:
        super().__init__(value)

    def _next_value(self) -> bool:
        return self._value and not _inference.get()


class set_grad_enabled(_GradMode):  # noqa: N801  a context manager that reads as a function
    """Record operations for differentiation, or not.

    A plain call takes effect at once and stays; as a context manager it is undone at the end of
    the block; as a decorator it holds while the function runs.

    >>> import adjoint as ad
    >>> x = ad.tensor(2.0, requires_grad=True)
    >>> with ad.set_grad_enabled(False):
    ...     (x * x).requires_grad
    False
    """

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self._before = grad_mode.get()
        grad_mode.set(self._next_value())

    def _again(self) -> ContextMode[bool]:
        return _GradMode(self._value)

    def __enter__(self) -> None:
        grad_mode.set(self._before)
        super().__enter__()

    def __call__(self, function: F) -> F:
        """Return ``function`` so wrapped that it runs in this mode; here nothing changes."""
        grad_mode.set(self._before)
        return super().__call__(function)


class no_grad(_GradMode):  # noqa: N801  a context manager that reads as a function
    """Do not record operations; a context manager and a decorator."""

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(_GradMode):  # noqa: N801  a context manager that reads as a function
    """Record operations again inside ``no_grad``; has no effect inside ``inference_mode``."""

    def __init__(self) -> None:
        super().__init__(True)


class inference_mode(ContextMode[bool]):  # noqa: N801  a context manager that reads as a function
    """Do not record operations, and let nothing inside switch recording on again."""

    _variable = _inference

    def __init__(self, mode: bool = True) -> None:
        super().__init__(bool(mode))
        self._grad_tokens: list[Token[bool]] = []

    def _again(self) -> ContextMode[bool]:
        return inference_mode(self._value)

    def __enter__(self) -> None:
        super().__enter__()
        self._grad_tokens.append(grad_mode.set(grad_mode.get() and not self._value))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        grad_mode.reset(self._grad_tokens.pop())
        super().__exit__(kind, error, trace)


def is_grad_enabled() -> bool:
    """Tell whether operations are recorded here and now."""
    return grad_mode.get()


def is_inference_mode_enabled() -> bool:
    """Tell whether ``inference_mode`` is on here and now."""
    return _inference.get()


def get_default_dtype() -> np.dtype[Any]:
    """Return the dtype that Python floats become: float64 unless set otherwise."""
    return _default_dtype.get()


def set_default_dtype(dtype: Any) -> None:
    """Set, in this context, the dtype that Python floats and lists of them become."""
    chosen = np.dtype(dtype)
    if chosen.kind != "f":
        raise DTypeError(
            f"the default dtype is that of Python floats, but {chosen} is not a float dtype.\n"
            "  Choose np.float32 or np.float64."
        )
    _default_dtype.set(chosen)


class workers(ContextMode[Any]):  # noqa: N801  a context manager that reads as a function
    """Let backward use so many threads in a block; a context manager and a decorator.

    ``"auto"`` decides for each backward: small graphs run in one thread.  The results are the
    same bits for any number; docs/threads.md says what else to know.

    >>> import adjoint as ad
    >>> x = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> with ad.config.workers(2):
    ...     (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4.], dtype=float64)
    """

    _variable = _workers

    def __init__(self, workers: int | str) -> None:
        super().__init__(check_workers(workers))


def get_workers() -> int | str:
    """Return the number of threads that backward uses here, or "auto"."""
    return _workers.get()


def set_workers(workers: int | str) -> None:
    """Set, in this context, how many threads backward uses: a number from 1, or "auto".

    A new thread starts with the default, 1; ``workers`` sets it for a block.
    """
    _workers.set(check_workers(workers))


def check_workers(workers: int | str) -> int | str:
    """Return ``workers`` if backward can use it; raise otherwise."""
    if workers == "auto" or (isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1):
        return workers
    raise ArgumentError(f"workers is a whole number from 1 or 'auto', but got {workers!r}.")
