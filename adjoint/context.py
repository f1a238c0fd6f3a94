"""All context variables of adjoint, and the tools that set one for a block.

A context variable has its own value in each thread and asyncio task.  Variables whose types are defined in
modules that import this one are typed ``Any``, because this module imports only the errors of adjoint.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, cast

import numpy as np

from adjoint.errors import InputError

__all__ = [
    "ContextMode", "Repeated", "anomaly", "arriving", "compile_mode", "cpu_level", "crew", "default_dtype",
    "eager_kernels", "enclosing", "entered", "grad_mode", "hints", "in_rule", "inference", "init_generator",
    "lent", "observer", "reading", "reductions", "saved_hooks", "sink", "spreading", "stand_ins", "tapes",
    "threads", "tracing", "transform", "within", "workers", "writes",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
R = TypeVar("R")
Hook = Callable[[Any], Any]

_FLOAT64 = np.dtype(np.float64)

# Modes and settings ------------------------------------------------------------------------------

# Whether ops are recorded.
grad_mode: ContextVar[bool] = ContextVar("adjoint_grad_mode", default=True)
# Whether ``inference_mode`` is on.
inference: ContextVar[bool] = ContextVar("adjoint_inference_mode", default=False)
# Whether results are checked for NaN and infinity.
anomaly: ContextVar[bool] = ContextVar("adjoint_anomaly", default=False)
# Whether a derivative rule of an op is running: in anomaly mode only its result is checked.
in_rule: ContextVar[bool] = ContextVar("adjoint_in_rule", default=False)
# The dtype of tensors made from Python numbers.
default_dtype: ContextVar[np.dtype[Any]] = ContextVar("adjoint_default_dtype", default=_FLOAT64)
# The number of threads of a backward, or "auto".
workers: ContextVar[int | str] = ContextVar("adjoint_workers", default=1)
# The number of threads of a pass over a large array, or "auto".
threads: ContextVar[int | str] = ContextVar("adjoint_threads", default="auto")
# How functions of ``ad.compile`` run: True, False or "check".
compile_mode: ContextVar[bool | str] = ContextVar("adjoint_compile_mode", default=True)
# Whether large ops run compiled kernels in eager mode (``core/kernels.py``).
eager_kernels: ContextVar[bool] = ContextVar("adjoint_eager_kernels", default=True)
# Whether slow programs cause warnings (``compiler/api/doctor.py``).
hints: ContextVar[bool] = ContextVar("adjoint_hints", default=True)
# The vector instructions that kernels use, of ``compiler.emit.machine.LEVELS``; None: all that there are.
cpu_level: ContextVar[str | None] = ContextVar("adjoint_cpu_level", default=None)
# The generator that draws initial values; None: one per process.
init_generator: ContextVar[Any] = ContextVar("adjoint_init_generator", default=None)
# The entered modes as a linked list: the innermost mode, the value before it, and the entry around it.
entered: ContextVar[tuple[Any, Any, Any] | None] = ContextVar("adjoint_entered", default=None)

# Observers of ops and tensors; read only while ``config.special`` is not 0 -----------------------

# The active tapes, the outermost first.
tapes: ContextVar[tuple[Any, ...]] = ContextVar("adjoint_tapes", default=())
# The pair (pack, unpack) of ``saved_tensors_hooks``.
saved_hooks: ContextVar[tuple[Hook, Hook] | None] = ContextVar("adjoint_saved_hooks", default=None)
# Called with every tensor that is read, to detect changes.
reading: ContextVar[Hook | None] = ContextVar("adjoint_reading", default=None)
# By id: a tensor, its value and its version before a function that may run again wrote to it.
writes: ContextVar[dict[int, tuple[Any, Any, Any, int]] | None] = ContextVar("adjoint_writes", default=None)
# Tensors, with the data, node and class that temporarily replace their own: loops replace those they capture.
stand_ins: ContextVar[tuple[tuple[Any, Any, Any, Any], ...]] = ContextVar("adjoint_stand_ins", default=())
# The ``core.observer.Observer`` of this block, or None.
observer: ContextVar[Any] = ContextVar("adjoint_observer", default=None)
# The reductions of losses in this block, with their weights.
reductions: ContextVar[list[tuple[Any, float | None]] | None] = ContextVar("adjoint_reductions", default=None)

# Transforms --------------------------------------------------------------------------------------

# The name of the transform that runs, such as "ad.grad"; None if there is none.
transform: ContextVar[str | None] = ContextVar("adjoint_transform", default=None)


class Repeated(str):
    """The name of a transform that calls a function again as it ran outside of all transforms.

    Gradients inside of the function are not recorded unless it asks for that.
    """

    __slots__ = ()


# A lifted value of the innermost transform that runs, or None.  A leaf made inside a transform is lifted to
# its level, so that a tensor of a lower level is always one from outside.
enclosing: ContextVar[Any] = ContextVar("adjoint_enclosing", default=None)
# The trace of ``ad.compile`` that runs, or None.  While one runs, ``config.special`` is not 0.
tracing: ContextVar[Any] = ContextVar("adjoint_tracing", default=None)
# The gradients that the rule of a call receives, each with its zeros.  A backward inside the rule starts from
# them.  None outside such rules.
arriving: ContextVar[Sequence[tuple[Any, Any]] | None] = ContextVar("adjoint_arriving", default=None)

# Gradients ---------------------------------------------------------------------------------------

# Where gradients of leaves go instead of ``.grad``; set by ``micro_batch`` of an accumulator.
sink: ContextVar[Any] = ContextVar("adjoint_sink", default=None)
# The gradients that an accumulator passed to its clip function, by name or by parameter.
lent: ContextVar[Any] = ContextVar("adjoint_lent", default=None)

# Threads -----------------------------------------------------------------------------------------

# A weak reference to the parallel run that calls hooks and rules here; a backward inside one of them stays in
# its thread.  It is weak, because the run refers to a copy of the context, and a hook may keep that copy.
crew: ContextVar[Any] = ContextVar("adjoint_inside_parallel_run", default=None)
# Whether this code is part of a pass that is spread over threads; such a pass is not spread again.
spreading: ContextVar[bool] = ContextVar("adjoint_inside_spread", default=False)

# Setting a variable for a block --------------------------------------------------------------------


def within(variable: ContextVar[T], value: T, function: Callable[..., R], *args: Any) -> R:
    """Call a function with a context variable set.

    An interrupt cannot leave it set: signals are handled after a call, and ``set`` is called inside
    ``try``.
    """
    before = variable.get()
    try:
        variable.set(value)
        return function(*args)
    finally:
        variable.set(before)


class ContextMode(Generic[T]):
    """Context manager and decorator that sets a context variable.

    As a decorator it also wraps generators and coroutines: the mode is active while their body runs, and
    not while they are suspended.
    """

    _variable: ContextVar[T]

    def __init__(self, value: T) -> None:
        self._value = value

    def __repr__(self) -> str:
        return f"<{type(self).__name__.strip('_')}: {self._value!r}>"

    def _present(self) -> Any:
        """Return the current value of the mode, which is passed to ``_restore`` at the end of the block."""
        return self._variable.get()

    def _apply(self) -> None:
        """Set the mode."""
        self._variable.set(self._value)

    def _restore(self, before: Any) -> None:
        self._variable.set(before)

    def __enter__(self) -> None:
        before, around = self._present(), entered.get()
        try:
            self._apply()
            entered.set((self, before, around))
        except BaseException:  # an interrupt: no __exit__ follows
            self._restore(before)
            entered.set(around)
            raise

    def __exit__(self, *exception: object) -> None:
        entry = entered.get()
        if entry is not None and entry[0] is self:
            self._restore(entry[1])
            entered.set(entry[2])
        else:
            self._leave_out_of_order(entry)

    def _leave_out_of_order(self, entry: Any) -> None:
        inner = []
        while entry is not None and entry[0] is not self:
            inner.append(entry)
            entry = entry[2]
        if entry is None:
            return  # entered in another context, where it stays active
        self._restore(entry[1])
        around = entry[2]
        for mode, before, _ in reversed(inner):
            around = (mode, before, around)
        entered.set(around)

    def __call__(self, function: F) -> F:
        """Return a function that calls ``function`` in this mode."""
        if not callable(function):
            raise InputError(
                f"only a function can be decorated with a mode such as ad.no_grad(), but got "
                f"{type(function).__name__}.\n  For a block of code, write: with ad.no_grad(): ..."
            )
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
    """Run a generator, or the iterator of an awaitable, with each step inside the mode."""
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
        except BaseException as error:  # passed to the body, which may handle it
            step = functools.partial(steps.throw, error)


def _wrap_generator(function: Callable[..., Any], mode: ContextMode[Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return (yield from _stepwise(function(*args, **kwargs), mode))

    return wrapper


class _Steps:
    """Awaitable that runs each step of another awaitable inside the mode."""

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
                except BaseException as error:  # passed to the body, which may handle it
                    step = body.athrow(error)
        finally:
            await _Steps(body.aclose(), mode)

    return wrapper


def user_code(owner: Any, name: str = "") -> Any:
    """Return the attribute ``name`` of ``owner``, a user's function that the library is about to call.

    Without a name, ``owner`` is the function.  Inside ``ad.compile``, what the function reads is guarded: a
    change causes a new trace.
    """
    trace = tracing.get()
    if trace is not None and trace.observer is not None:
        return trace.observer.user_code(owner, name)
    return getattr(owner, name) if name else owner
