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
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from types import FrameType
from typing import Any, Generic, TypeVar, cast, overload

import numpy as np

from adjoint.errors import ArgumentError, DTypeError, InputError

__all__ = [
    "enable_grad",
    "get_default_dtype",
    "get_threads",
    "get_workers",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "set_default_dtype",
    "set_grad_enabled",
    "set_threads",
    "set_workers",
    "threads",
    "workers",
]


def __dir__() -> list[str]:
    return sorted(__all__)


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
R = TypeVar("R")

_FLOAT64 = np.dtype(np.float64)

grad_mode: ContextVar[bool] = ContextVar("adjoint_grad_mode", default=True)
tapes: ContextVar[tuple[Any, ...]] = ContextVar("adjoint_tapes", default=())
# The name of the transform that runs, such as "ad.grad"; None if there is none.
transform: ContextVar[str | None] = ContextVar("adjoint_transform", default=None)
_inference: ContextVar[bool] = ContextVar("adjoint_inference_mode", default=False)
_default_dtype: ContextVar[np.dtype[Any]] = ContextVar("adjoint_default_dtype", default=_FLOAT64)
_workers: ContextVar[int | str] = ContextVar("adjoint_workers", default=1)
_threads: ContextVar[int | str] = ContextVar("adjoint_threads", default="auto")


LIBRARIES = frozenset(("adjoint", "numpy", "scipy"))


def library_of(frame: FrameType) -> str:
    """Return the top-level package whose code runs in a frame."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _user_frame() -> tuple[FrameType, int]:
    """Return the innermost frame outside adjoint, NumPy and SciPy, and its ``stacklevel``."""
    frame, level = sys._getframe(2), 1
    while frame.f_back is not None and library_of(frame) in LIBRARIES:
        frame, level = frame.f_back, level + 1
    return frame, level


def user_line() -> str:
    """Return "file:line" of the innermost frame outside adjoint, NumPy and SciPy."""
    frame, _ = _user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def user_level() -> int:
    """Return the ``stacklevel`` that makes a warning of the calling function point at the user's line."""
    return _user_frame()[1]


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


def is_watched(t: Any) -> bool:
    """Tell whether a tape watches a tensor."""
    return special.count != 0 and any(tape.watches(t) for tape in tapes.get())


class watched(Generic[T]):  # noqa: N801  a context manager that reads as a function
    """Set a context variable for a block, and make ops take the careful path, which reads it.

    An interrupt cannot leave the variable set.  It may leave ``special`` too large, which only costs time.
    """

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._before = self._variable.get()
        try:
            special.enter()
            self._variable.set(self._value)
        except BaseException:
            self._variable.set(self._before)
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            self._variable.set(self._before)
        finally:
            special.leave()


def within(variable: ContextVar[T], value: T, function: Callable[..., R], *args: Any) -> R:
    """Call a function with a context variable set.

    An interrupt cannot leave it set: signals are handled after a call, so ``set`` is called inside ``try``.
    """
    before = variable.get()
    try:
        variable.set(value)
        return function(*args)
    finally:
        variable.set(before)


# The modes entered here: the innermost, what held before it, and the same of those around it.  It
# belongs to the context, not to the modes: an instance may be in use in many threads and tasks.
_entered: ContextVar[tuple[ContextMode[Any], Any, Any] | None] = ContextVar("adjoint_entered", default=None)


class ContextMode(Generic[T]):
    """A context manager and decorator that sets one context variable for its extent.

    As a decorator it also wraps generators and coroutines: the mode holds while their body
    runs, and is taken off whenever they are suspended.
    """

    _variable: ContextVar[T]

    def __init__(self, value: T) -> None:
        self._value = value

    def _present(self) -> Any:
        """Return the present value, for ``_restore``."""
        return self._variable.get()

    def _apply(self) -> None:
        """Set the mode."""
        self._variable.set(self._value)

    def _restore(self, before: Any) -> None:
        self._variable.set(before)

    def __enter__(self) -> None:
        before, around = self._present(), _entered.get()
        try:
            self._apply()
            _entered.set((self, before, around))
        except BaseException:  # an interrupt: no __exit__ follows
            self._restore(before)
            _entered.set(around)
            raise

    def __exit__(self, *exception: object) -> None:
        entry = _entered.get()
        if entry is not None and entry[0] is self:
            self._restore(entry[1])
            _entered.set(entry[2])
        else:
            self._leave_out_of_order(entry)

    def _leave_out_of_order(self, entry: Any) -> None:
        inner = []
        while entry is not None and entry[0] is not self:
            inner.append(entry)
            entry = entry[2]
        if entry is None:
            return  # entered in another context, where it goes on to hold
        self._restore(entry[1])
        around = entry[2]
        for mode, before, _ in reversed(inner):
            around = (mode, before, around)
        _entered.set(around)

    def __call__(self, function: F) -> F:
        """Return ``function`` so wrapped that it runs in this mode."""
        if not callable(function):
            raise InputError(f"a mode wraps a function, but got {type(function).__name__}.")
        if inspect.isasyncgenfunction(function):
            return cast(F, _wrap_async_generator(function, self))
        if inspect.iscoroutinefunction(function):
            return cast(F, _wrap_coroutine(function, self))
        if inspect.isgeneratorfunction(function):
            return cast(F, _wrap_generator(function, self))

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast(F, wrapper)


def _stepwise(steps: Any, mode: ContextMode[Any]) -> Any:
    """Drive a generator, or the iterator of an awaitable, with each step inside the mode."""
    step: Callable[[], Any] = functools.partial(next, steps)
    while True:
        try:
            with mode:
                item = step()
        except StopIteration as stop:
            return stop.value
        try:
            received = yield item
            step = functools.partial(steps.send, received)
        except GeneratorExit:
            with mode:
                steps.close()
            raise
        except BaseException as error:  # handed to the body, which may handle it
            step = functools.partial(steps.throw, error)


def _wrap_generator(function: Callable[..., Any], mode: ContextMode[Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return (yield from _stepwise(function(*args, **kwargs), mode))

    return wrapper


class _Steps:
    """Await an awaitable, each of its steps inside the mode."""

    def __init__(self, awaitable: Any, mode: ContextMode[Any]) -> None:
        self._awaitable = awaitable
        self._mode = mode

    def __await__(self) -> Any:
        return _stepwise(self._awaitable.__await__(), self._mode)


def _wrap_coroutine(function: Callable[..., Any], mode: ContextMode[Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await _Steps(function(*args, **kwargs), mode)

    return wrapper


def _wrap_async_generator(function: Callable[..., Any], mode: ContextMode[Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        body = function(*args, **kwargs)
        step = body.__anext__()
        try:
            while True:
                try:
                    item = await _Steps(step, mode)
                except StopAsyncIteration:
                    return
                try:
                    received = yield item
                    step = body.asend(received)
                except GeneratorExit:
                    raise
                except BaseException as error:  # handed to the body, which may handle it
                    step = body.athrow(error)
        finally:
            await _Steps(body.aclose(), mode)

    return wrapper


class _GradMode(ContextMode[bool]):
    """Sets ``grad_mode``.  Loops enter it at each step, so it keeps tokens instead of the stack of modes.

    A token belongs to the context that made it, so one instance can be used in many threads and tasks.
    """

    _variable = grad_mode

    def __init__(self, value: bool) -> None:
        self._value = value
        self._tokens: list[Token[bool]] = []

    def _apply(self) -> None:
        if not (self._value and _inference.get()):  # enable_grad has no effect inside inference_mode
            grad_mode.set(self._value)

    def __enter__(self) -> None:
        before = grad_mode.get()
        try:
            value = before if self._value and _inference.get() else self._value
            self._tokens.append(grad_mode.set(value))
        except BaseException:  # an interrupt: no __exit__ follows
            grad_mode.set(before)
            raise

    def __exit__(self, *exception: object) -> None:
        tokens = self._tokens
        try:
            token = tokens[-1]
            grad_mode.reset(token)
            tokens.remove(token)
        except (IndexError, ValueError):
            self._leave_shared()

    def _leave_shared(self) -> None:
        """Leave an instance that other threads or tasks have entered later, or that is not entered here."""
        for token in reversed(self._tokens):
            with suppress(ValueError):  # the token of another context
                grad_mode.reset(token)
                self._tokens.remove(token)
                return


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
        if callable(mode):
            raise InputError("set_grad_enabled takes True or False: write @ad.set_grad_enabled(False).")
        super().__init__(bool(mode))
        self._before: bool | None = self._present()
        self._apply()

    def _not_at_once(self) -> None:
        """Undo what the call did, once: it turned out to be for a block or a function."""
        if self._before is not None:
            grad_mode.set(self._before)
            self._before = None

    def __enter__(self) -> None:
        self._not_at_once()
        super().__enter__()

    def __call__(self, function: F) -> F:
        """Return ``function`` so wrapped that it runs in this mode; here nothing changes."""
        self._not_at_once()
        return super().__call__(function)


class _InferenceMode(ContextMode[bool]):
    _variable = _inference

    def _present(self) -> tuple[bool, bool]:
        return _inference.get(), grad_mode.get()

    def _apply(self) -> None:
        if self._value:
            _inference.set(True)
            grad_mode.set(False)

    def _restore(self, before: tuple[bool, bool]) -> None:
        _inference.set(before[0])
        grad_mode.set(before[1])


@overload
def no_grad() -> ContextMode[bool]: ...
@overload
def no_grad(function: F) -> F: ...
def no_grad(function: Any = None) -> Any:
    """Do not record operations; a context manager and a decorator, with or without parentheses.

    >>> import adjoint as ad
    >>> @ad.no_grad
    ... def double(x):
    ...     return x * 2
    >>> double(ad.tensor(1.0, requires_grad=True)).requires_grad
    False
    """
    mode = _GradMode(False)
    return mode if function is None else mode(function)


@overload
def enable_grad() -> ContextMode[bool]: ...
@overload
def enable_grad(function: F) -> F: ...
def enable_grad(function: Any = None) -> Any:
    """Record operations again inside ``no_grad``; has no effect inside ``inference_mode``."""
    mode = _GradMode(True)
    return mode if function is None else mode(function)


@overload
def inference_mode(mode: bool = True) -> ContextMode[bool]: ...
@overload
def inference_mode(mode: F) -> F: ...
def inference_mode(mode: Any = True) -> Any:
    """Do not record operations, and let nothing inside switch recording on again.

    ``inference_mode(False)`` changes nothing, inside another one too.
    """
    return _InferenceMode(True)(mode) if callable(mode) else _InferenceMode(bool(mode))


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


class threads(ContextMode[Any]):  # noqa: N801  a context manager that reads as a function
    """Let passes over large arrays use so many threads in a block; a context manager and a decorator.

    These are the updates of optimisers and the sums of accumulators.  ``"auto"``, the default, is as many
    as this process may use processors.  The results are the same bits for any number.

    >>> import adjoint as ad
    >>> with ad.config.threads(1):
    ...     ad.config.get_threads()
    1
    """

    _variable = _threads

    def __init__(self, threads: int | str) -> None:
        super().__init__(_check_threads("threads", threads))


def get_threads() -> int | str:
    """Return how many threads passes over large arrays may use here, or "auto"."""
    return _threads.get()


def set_threads(threads: int | str) -> None:
    """Set, in this context, how many threads passes over large arrays may use: from 1, or "auto".

    A new thread starts with the default, "auto"; ``threads`` sets it for a block.
    """
    _threads.set(_check_threads("threads", threads))


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
    return _check_threads("workers", workers)


def _check_threads(what: str, number: int | str) -> int | str:
    if isinstance(number, str) and number == "auto":
        return number
    if isinstance(number, (int, np.integer)) and not isinstance(number, bool) and number >= 1:
        return int(number)
    raise ArgumentError(f"{what} is a whole number from 1 or 'auto', but got {number!r}.")
