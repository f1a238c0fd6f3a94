"""Tracebacks without frames of adjoint, for errors that the user's program caused.

The functions that users call are doors: they pass errors to ``hide``, which removes the frames of adjoint.  A
bare ``raise`` does not add the frame of the door again.  The environment variable ``ADJOINT_TRACEBACK=full``,
which is read when adjoint is imported, shows all frames.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable
from inspect import isgeneratorfunction
from types import FrameType, FunctionType, MethodType, TracebackType
from typing import Any, TypeVar, cast

from adjoint.errors import AdjointError

__all__ = ["door", "hide", "is_of_call"]

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN = os.environ.get("ADJOINT_TRACEBACK") == "full"
_NUMERIC = ("numpy", "scipy", "contextlib")
_USERS = (AdjointError, OSError, UserWarning, RuntimeWarning)


def hide(error: BaseException, *, by_user: bool = False) -> None:
    """Remove the frames of adjoint, and what they call in NumPy and SciPy, from the traceback of an error.

    An error that adjoint's own code raised, other than an ``AdjointError``, an OSError or a warning, may be a
    bug and keeps all frames, unless the caller knows that it was caused ``by_user``, SciPy's code raised it
    because of its arguments, or a function of the user does not take the arguments that adjoint passes to it.
    """
    if _SHOWN:
        return
    kept: list[TracebackType] = []
    last: list[FrameType] = []  # the frames after the last one that is kept
    inside = False  # whether the frame, or the library function that it belongs to, was called by adjoint
    library = ""
    trace = error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        library = name.partition(".")[0]
        if library not in _NUMERIC:
            inside = library == "adjoint" and not name.startswith("adjoint.cli.")
        if not inside:
            kept.append(trace)
            last.clear()
        else:
            last.append(trace.tb_frame)
        trace = trace.tb_next
    expected = by_user or isinstance(error, _USERS)
    if library == "scipy" and isinstance(error, (TypeError, ValueError)):
        vars(error)["_of_scipy"] = True  # for the doors around this one, which do not see SciPy's frames
    expected = expected or "_of_scipy" in vars(error)
    if inside and not expected and not _misfits(error, last):
        return
    for each in reversed(kept):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    error.__traceback__ = trace


def is_of_call(error: BaseException) -> bool:
    """Return whether an error was raised by the call itself: the arguments do not fit the parameters."""
    trace = error.__traceback__  # not in a variable of the caller, whose frame the traceback refers to
    return trace is not None and trace.tb_next is None


def _misfits(error: BaseException, frames: Iterable[FrameType]) -> bool:
    """Return whether the arguments of a call do not fit a function of the user, which a frame holds."""
    call = re.match(r"(\S+)\(\) (?:takes|missing|got) ", str(error)) if type(error) is TypeError else None
    if call is None:
        return False
    return any(_is_function(v, call[1], 2) for frame in frames for v in list(frame.f_locals.values()))


def _is_function(value: Any, name: str, depth: int) -> bool:
    """Return whether a value is, calls or contains a function of this name that is not adjoint's."""
    if isinstance(value, (list, tuple, dict)):
        parts = list(value.values() if isinstance(value, dict) else value)
        return depth > 0 and any(_is_function(v, name, depth - 1) for v in parts[:16])
    if isinstance(value, functools.partial):
        return _is_function(value.func, name, depth)
    if isinstance(value, MethodType):
        value = value.__func__
    if str(type(value).__module__).startswith("adjoint."):
        parts = list(getattr(value, "__dict__", {}).values())
        if depth > 0 and any(_is_function(v, name, depth - 1) for v in parts):
            return True
    method = name.rpartition(".")[2]
    return any(
        getattr(f, "__qualname__", "") == name and not f.__module__.startswith("adjoint.")
        for f in (value, *(vars(cls).get(method) for cls in type(value).__mro__))
        if isinstance(f, FunctionType)
    )


def door(function: F) -> F:
    """Return a function or generator with a call of ``hide`` for errors that leave it; not for short ones."""
    if isgeneratorfunction(function):

        @functools.wraps(function)
        def iterate(*args: Any, **kwargs: Any) -> Any:
            try:
                return (yield from function(*args, **kwargs))
            except Exception as error:
                hide(error)
                raise

        return cast(F, iterate)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide(error)
            raise

    return cast(F, call)
