"""Tracebacks without frames of adjoint, for errors that the user's program caused.

The functions that users call are doors: they pass errors to ``hide``, which removes the frames of adjoint.  A
bare ``raise`` does not add the frame of the door again.  The environment variable ``ADJOINT_TRACEBACK=full``,
which is read when adjoint is imported, shows all frames.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast

from adjoint.errors import AdjointError

__all__ = ["door", "hide"]

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN = os.environ.get("ADJOINT_TRACEBACK") == "full"
_NUMERIC = ("numpy", "scipy", "contextlib")


def hide(error: BaseException, *, by_user: bool = False) -> None:
    """Remove the frames of adjoint, and what they call in NumPy and SciPy, from the traceback of an error.

    An error that adjoint's own code raised, other than an ``AdjointError`` or an OSError, may be a bug and
    keeps all frames, unless the caller knows that it was caused ``by_user``.
    """
    if _SHOWN:
        return
    kept: list[TracebackType] = []
    inside = False  # whether the frame, or the library function that it belongs to, was called by adjoint
    trace = error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        library = name.partition(".")[0]
        if library not in _NUMERIC:
            inside = library == "adjoint" and not name.startswith("adjoint.cli.")
        if not inside:
            kept.append(trace)
        trace = trace.tb_next
    if inside and not by_user and not isinstance(error, (AdjointError, OSError)):
        return
    for each in reversed(kept):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    error.__traceback__ = trace


def door(function: F) -> F:
    """Return ``function`` with a call of ``hide`` for each error that leaves it; not for short functions."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide(error)
            raise

    return cast(F, call)
