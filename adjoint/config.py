"""Modes and settings, kept in context variables, so that threads and asyncio tasks have their own values.

``special.count`` is the number of active contexts, in all threads, that ops must check besides the grad mode
(tapes, anomaly detection, saved-tensor hooks).  Ops read the context variables only while the count is not 0,
so unused features cost nothing.  ``logs.count`` is the number of contexts that writes must check.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar, overload

import numpy as np

from adjoint.context import ContextMode
from adjoint.context import compile_mode as compile_mode
from adjoint.context import default_dtype as _default_dtype
from adjoint.context import eager_kernels as _eager_kernels
from adjoint.context import grad_mode as grad_mode
from adjoint.context import hints as _hints
from adjoint.context import inference as _inference
from adjoint.context import tapes as tapes
from adjoint.context import transform as transform
from adjoint.errors import ArgumentError, DTypeError, InputError
from adjoint.forks import fork_count as fork_count
from adjoint.forks import held_across_fork as held_across_fork
from adjoint.thread_counts import check_workers as check_workers
from adjoint.thread_counts import get_threads, get_workers, set_threads, set_workers, threads, workers

__all__ = [
    "compiling", "eager_kernels", "enable_grad", "get_default_dtype", "get_threads", "get_workers",
    "hints", "inference_mode", "is_grad_enabled", "is_inference_mode_enabled", "no_grad", "set_default_dtype",
    "set_grad_enabled", "set_threads", "set_workers", "threads", "workers",
]  # fmt: skip
__dir__ = sorted(__all__).copy


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
R = TypeVar("R")


def locked(lock: Any, function: Callable[..., T], *args: Any) -> T:
    """Call a function while a lock is held; an interrupt releases the lock."""
    with lock:
        return function(*args)


class _Special:
    """Counter of the contexts in which ops must read context variables; see the docstring of the module."""

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
logs = _Special()  # counts the blocks that set ``writes``


def is_watched(t: Any) -> bool:
    """Return whether a tape watches a tensor."""
    return special.count != 0 and any(tape.watches(t) for tape in tapes.get())


class watched(Generic[T]):  # noqa: N801  a context manager that reads as a function
    """Context manager that sets a context variable and increments ``special.count``, so that ops read it.

    An interrupt cannot leave the variable set.  It may leave the count too large, which only costs time.
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


# Looking up a method of a context variable costs as much as the call.
_recording, _set_recording, _reset_recording = grad_mode.get, grad_mode.set, grad_mode.reset


class _GradMode(ContextMode[bool]):
    """Context manager that sets ``grad_mode``, optimised for loops that enter and leave it at each step.

    It stores the tokens of ``ContextVar.set`` instead of a stack of modes.  A token belongs to the context
    that made it, so one instance can be used in many threads and tasks.
    """

    _variable = grad_mode

    _value: bool
    _tokens: list[Token[bool]]
    # The caller sets both attributes, because a call of __init__ would take a tenth of the time of the mode.
    __init__ = object.__init__

    def _apply(self) -> None:
        if not (self._value and _inference.get()):  # enable_grad has no effect inside inference_mode
            grad_mode.set(self._value)

    def __enter__(self) -> None:
        before = _recording()
        value = self._value
        try:
            if value and _inference.get():
                value = before
            self._tokens.append(_set_recording(value))
        except BaseException:  # an interrupt: no __exit__ follows
            _set_recording(before)
            raise

    def __exit__(  # type: ignore[override]  # named parameters are faster than a tuple of them
        self, kind: Any = None, error: Any = None, trace: Any = None, /
    ) -> None:
        tokens = self._tokens
        try:
            token = tokens[-1]
            _reset_recording(token)
            tokens.remove(token)
        except (IndexError, ValueError):
            self._leave_shared()

    def _leave_shared(self) -> None:
        """Restore the mode that this thread or task had before, if others have entered this instance, too.

        Do nothing if this thread or task has not entered it.
        """
        for token in reversed(self._tokens):
            with suppress(ValueError):  # the token of another context
                grad_mode.reset(token)
                self._tokens.remove(token)
                return


class set_grad_enabled(_GradMode):  # noqa: N801  a context manager that reads as a function
    """Switch the recording of operations on or off.

    A plain call takes effect immediately and stays in effect.  As a context manager the mode is active during
    the block, and as a decorator while the function runs.

    Parameters
    ----------
    mode : bool
        Whether to record.

    Raises
    ------
    InputError
        If it is used as a decorator without an argument.

    Examples
    --------
    >>> import adjoint as ad
    >>> x = ad.tensor(2.0, requires_grad=True)
    >>> with ad.set_grad_enabled(False):
    ...     (x * x).requires_grad
    False
    """

    def __init__(self, mode: bool) -> None:
        if callable(mode):
            raise InputError("set_grad_enabled takes True or False: write @ad.set_grad_enabled(False).")
        self._value, self._tokens = bool(mode), []
        self._before: bool | None = self._present()
        self._apply()

    def _not_at_once(self) -> None:
        """Undo the change of the mode that ``__init__`` made.

        It is meant only for a plain call, not for an object that is used as a context manager or a decorator.
        """
        if self._before is not None:
            grad_mode.set(self._before)
            self._before = None

    def __enter__(self) -> None:
        self._not_at_once()
        super().__enter__()

    def __call__(self, function: F) -> F:
        """Return a function that calls ``function`` in this mode; the current mode does not change."""
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
    """Switch off the recording of operations, as a context manager or a decorator.

    Parameters
    ----------
    function : callable, optional
        The function, if it is used as a decorator without parentheses.

    Returns
    -------
    ContextMode or callable
        The context manager, or the wrapped function.

    Examples
    --------
    >>> import adjoint as ad
    >>> @ad.no_grad
    ... def double(x):
    ...     return x * 2
    >>> double(ad.tensor(1.0, requires_grad=True)).requires_grad
    False
    """
    mode = _GradMode()
    mode._value, mode._tokens = False, []
    return mode if function is None else mode(function)


@overload
def enable_grad() -> ContextMode[bool]: ...
@overload
def enable_grad(function: F) -> F: ...
def enable_grad(function: Any = None) -> Any:
    """Switch on the recording of operations inside ``no_grad``, as a context manager or a decorator.

    It has no effect inside ``inference_mode``.

    Parameters
    ----------
    function : callable, optional
        The function, if it is used as a decorator without parentheses.

    Returns
    -------
    ContextMode or callable
        The context manager, or the wrapped function.

    Examples
    --------
    >>> import adjoint as ad
    >>> x = ad.tensor(1.0, requires_grad=True)
    >>> with ad.no_grad(), ad.enable_grad():
    ...     (x * 2).requires_grad
    True
    """
    mode = _GradMode()
    mode._value, mode._tokens = True, []
    return mode if function is None else mode(function)


@overload
def inference_mode(mode: bool = True) -> ContextMode[bool]: ...
@overload
def inference_mode(mode: F) -> F: ...
def inference_mode(mode: Any = True) -> Any:
    """Switch off the recording of operations, as a context manager or a decorator.

    Inside, ``enable_grad`` cannot switch the recording on again.

    Parameters
    ----------
    mode : bool or callable, optional
        Whether to switch recording off.  False has no effect, not even inside another
        ``inference_mode``.  A function, if it is used as a decorator without parentheses.

    Returns
    -------
    ContextMode or callable
        The context manager, or the wrapped function.

    Examples
    --------
    >>> import adjoint as ad
    >>> x = ad.tensor(1.0, requires_grad=True)
    >>> with ad.inference_mode(), ad.enable_grad():
    ...     (x * 2).requires_grad
    False
    """
    return _InferenceMode(True)(mode) if callable(mode) else _InferenceMode(bool(mode))


def is_grad_enabled() -> bool:
    """Return whether operations are recorded in this thread or task.

    Returns
    -------
    bool
        Whether they are recorded.

    Examples
    --------
    >>> import adjoint as ad
    >>> with ad.no_grad():
    ...     ad.is_grad_enabled()
    False
    """
    return grad_mode.get()


def is_inference_mode_enabled() -> bool:
    """Return whether ``inference_mode`` is active in this thread or task.

    Returns
    -------
    bool
        Whether it is active.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.is_inference_mode_enabled()
    False
    """
    return _inference.get()


def get_default_dtype() -> np.dtype[Any]:
    """Return the dtype that Python floats get: float64 unless it was set.

    Returns
    -------
    dtype
        The dtype.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.get_default_dtype()
    dtype('float64')
    """
    return _default_dtype.get()


def set_default_dtype(dtype: Any) -> None:
    """Set the dtype that Python floats and lists of them get, in this thread or task.

    Parameters
    ----------
    dtype : dtype
        A float dtype.

    Raises
    ------
    DTypeError
        If it is not a float dtype.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.set_default_dtype("float32")
    >>> ad.tensor(1.0).dtype
    dtype('float32')
    >>> ad.set_default_dtype("float64")
    """
    chosen = np.dtype(dtype)
    if chosen.kind != "f":
        raise DTypeError(
            f"the default dtype must be a float dtype, but got {chosen}.\n  Choose np.float32 or np.float64."
        )
    _default_dtype.set(chosen)


class compiling(ContextMode[Any]):  # noqa: N801  a context manager that reads as a function
    """Set how compiled functions run, as a context manager or a decorator.

    Parameters
    ----------
    mode : bool or str
        True runs the compiled programs.  False runs the Python functions, for debugging.  ``"check"`` runs
        both and raises if any bit of the results differs; use it only for functions without side effects.

    Examples
    --------
    >>> import adjoint as ad
    >>> double = ad.compile(lambda x: x * 2)
    >>> with ad.config.compiling(False):
    ...     double(ad.tensor(3.0)).item()
    6.0
    """

    _variable = compile_mode

    def __init__(self, mode: bool | str) -> None:
        if mode not in (True, False, "check"):
            raise ArgumentError(f'compiling: mode must be True, False or "check", but got {mode!r}.')
        super().__init__(mode)


class eager_kernels(ContextMode[Any]):  # noqa: N801  a context manager that reads as a function
    """Set whether eager mode runs compiled kernels, as a context manager or a decorator.

    If llvmlite is installed, convolutions, pooling, recurrent layers, norms, softmax, cross entropy and
    attention of large arrays run compiled kernels, whose results differ from NumPy's by rounding.  With
    False, NumPy computes everything, as ``ad.compile(f, backend="replay")`` always does.

    Parameters
    ----------
    on : bool
        Whether kernels are used; the default is True.

    Raises
    ------
    ArgumentError
        If it is not a bool.

    Examples
    --------
    >>> import adjoint as ad
    >>> with ad.config.eager_kernels(False):
    ...     y = ad.softmax(ad.zeros((256, 256)))
    """

    _variable = _eager_kernels

    def __init__(self, on: bool) -> None:
        if on is not True and on is not False:
            raise ArgumentError(f"eager_kernels: expected True or False, but got {on!r}.")
        super().__init__(on)


class hints(ContextMode[Any]):  # noqa: N801  a context manager that reads as a function
    """Set whether ``ad.compile`` warns about what makes a function slow, as a context manager or a decorator.

    A warning comes once for a function that is traced often, that calls NumPy in a long loop, or that is
    called often and calls NumPy between its kernels.  It names the line and says what to write instead.
    ``explain()`` of the compiled function says the same at any time.

    Parameters
    ----------
    on : bool
        Whether warnings are issued; the default is True.

    Raises
    ------
    ArgumentError
        If it is not a bool.

    Examples
    --------
    >>> import adjoint as ad
    >>> f = ad.compile(lambda x, k: x * k, limit=1)
    >>> with ad.config.hints(False):
    ...     [f(1.0, bool(k)) for k in range(3)]
    [0.0, 1.0, 1.0]
    """

    _variable = _hints

    def __init__(self, on: bool) -> None:
        if on is not True and on is not False:
            raise ArgumentError(f"hints: expected True or False, but got {on!r}.")
        super().__init__(on)
