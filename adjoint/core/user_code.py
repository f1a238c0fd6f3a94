"""The line of the user's program that called adjoint: for messages and warnings."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from contextvars import Context, copy_context
from types import CodeType, FrameType
from typing import Any

import numpy as np

__all__ = [
    "BAD_REGISTRY", "LIBRARIES", "REPORTED", "USUAL", "Position", "library_of", "line_at", "modes",
    "reported", "reported_modes", "same_in_adjoint", "set_modes", "user_call", "user_line", "user_place",
    "user_position", "warn",
]  # fmt: skip

LIBRARIES = frozenset(("adjoint", "numpy", "scipy"))
# The with statement of the user calls contextlib before a generator of adjoint; the others convert arguments.
_PASSED = LIBRARIES | {"contextlib", "matplotlib", "pandas", "sklearn", "torch"}


def library_of(frame: FrameType) -> str:
    """Return the top-level package of the code in ``frame``; "" for ``adjoint.cli``, which is user code."""
    name = str(frame.f_globals.get("__name__", ""))
    return "" if name.startswith("adjoint.cli.") else name.partition(".")[0]


def _user_frame(frame: FrameType) -> FrameType:
    """Return the first frame, from ``frame`` outwards, that is not in adjoint, NumPy or SciPy."""
    while frame.f_back is not None and library_of(frame) in _PASSED:
        frame = frame.f_back
    return frame


def user_line() -> str:
    """Return "file:line" of the innermost frame outside adjoint, NumPy and SciPy."""
    file, line, _ = user_place()
    return f"{file}:{line}"


_last: Any = None  # the last code of the user that was found
_library_codes: dict[int, Any] = {}  # code objects of libraries by id: their hash is computed anew each time


Position = tuple[CodeType, int]  # code, and the offset of an instruction in it


def user_position(skipped: int) -> Position:
    """Return the position in the user's code, of which ``line_at`` returns the line.

    ``skipped`` is the number of callers that are known to be library code.  ``user_line`` is slower.
    """
    global _last
    frame: Any = sys._getframe(skipped)
    back = frame.f_back
    while back is not None:
        code = frame.f_code
        if code is _last:
            break
        if id(code) not in _library_codes:
            if library_of(frame) not in _PASSED:
                _last = code
                break
            _library_codes[id(code)] = code
        frame, back = back, back.f_back
    return frame.f_code, frame.f_lasti


def line_at(position: Position) -> str:
    """Return "file:line" of a position that ``user_position`` returned."""
    code, offset = position
    line = next((n for start, end, n in code.co_lines() if start <= offset < end), None)
    return f"{code.co_filename}:{line or code.co_firstlineno}"


def user_place() -> tuple[str, int, str]:
    """Return file, line and function of the innermost frame outside adjoint, NumPy and SciPy."""
    frame = _user_frame(sys._getframe(1))
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def user_call() -> str:
    """Return "file:line" of the user's code, after the public function of a library that was called there."""
    frame: FrameType = sys._getframe(1)
    asked = ""
    while frame.f_back is not None and library_of(frame) in _PASSED:
        asked = _public_name(frame) or asked
        frame = frame.f_back
    return f"{asked and f'in {asked} '}at {frame.f_code.co_filename}:{frame.f_lineno}"


def _public_name(frame: FrameType) -> str:
    """Return the name by which a user knows the library's function in ``frame``; "" if it is private."""
    module, name = str(frame.f_globals["__name__"]), frame.f_code.co_qualname.removesuffix(".__init__")
    if module.startswith(("adjoint", "contextlib")) or "<" in name or "._" in f".{name}":
        return ""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):  # the shortest path
        path = ".".join(parts[:depth])
        found: Any = getattr(sys.modules.get(path), name.partition(".")[0], None)
        if isinstance(found, type) or getattr(inspect.unwrap(found), "__code__", None) is frame.f_code:
            return "" if "._" in path else f"{path}.{name}"
    return ""


def same_in_adjoint() -> str:
    """Return a hint such as "Use ad.fft.fft, …" if adjoint has the SciPy function that the user called.

    Otherwise return "".
    """
    ad, hint = sys.modules["adjoint"], ""
    homes: dict[str, dict[str, Any]] = {
        "special": {"ad.special": ad.special, "ad": ad},
        "linalg": {"ad.linalg": ad.linalg},
        "fft": {"ad.fft": ad.fft},
    }
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and library_of(frame) in LIBRARIES:
        library, _, rest = frame.f_globals["__name__"].partition(".")
        part = rest.partition(".")[0]
        name = frame.f_code.co_qualname.partition(".")[0]  # the class of a method
        if part == "stats":  # a method of a distribution
            name = getattr(frame.f_locals.get("self"), "name", name.removesuffix("_gen"))
        if library == "scipy" and not part.startswith("_"):
            own = {f"adjoint.scipy.{part}": getattr(ad.scipy, part, None)} | homes.get(part, {})
            for path, home in own.items():
                if name in getattr(home, "__all__", ()):
                    hint = f"Use {path}.{name}, which takes tensors."
        frame = frame.f_back
    return hint


def warn(message: str, category: type[Warning] = UserWarning, frame: FrameType | None = None) -> None:
    """Issue a warning at the innermost line outside adjoint, NumPy and SciPy, starting at ``frame``."""
    user = _user_frame(frame or sys._getframe(1))
    names = user.f_globals
    warnings.warn_explicit(
        message, category, user.f_code.co_filename, user.f_lineno,
        names.get("__name__"), names.setdefault("__warningregistry__", {}),
    )  # fmt: skip


class _Reporter:
    """Receives NumPy's floating-point errors as text, and issues them as warnings at the user's line."""

    def write(self, text: str) -> None:
        warn(text.removeprefix("Warning: ").rstrip(), RuntimeWarning)


# NumPy reports an overflow or a division by zero at the innermost line of Python, which is a line of adjoint.
# So while an op runs, NumPy writes to a ``_Reporter`` instead.  ``np.errstate`` takes longer than a small op:
# ``modes`` and ``set_modes`` read and set the context variable that it uses.  ``USUAL`` is its default value,
# and ``REPORTED`` is its value for the reporter.
_REPORTER = _Reporter()
with np.errstate(divide="log", over="log", invalid="log", call=_REPORTER):
    _modes, REPORTED = next((v, x) for v, x in copy_context().items() if v.name == "numpy.ufunc.extobj")
USUAL: Any = Context().run(_modes.get)
modes, set_modes = _modes.get, _modes.set
_changed = USUAL, REPORTED  # modes that the user has set, and those to use instead


def reported_modes(before: Any) -> Any:
    """Return the modes to use instead of ``before``, the present ones: warnings go to the reporter."""
    global _changed
    if before is USUAL:
        return REPORTED
    known, instead = _changed
    if known is not before:
        given, instead = np.geterr(), before
        logged: dict[str, Any] = {kind: "log" for kind, mode in given.items() if mode == "warn"}
        if logged and {"call", "log"}.isdisjoint(given.values()):  # else NumPy calls a function of the user
            with np.errstate(**logged, call=_REPORTER):
                instead = modes()
        _changed = before, instead
    return instead


def reported(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return ``f(*args, **kwargs)``; floating-point warnings in it name the user's line."""
    before = modes()
    try:  # an interrupt may come after each call, so no call is between the change and ``try``
        set_modes(REPORTED if before is USUAL else reported_modes(before))
        return f(*args, **kwargs)
    finally:
        set_modes(before)


# The global names of functions that call ufuncs and catch TypeError, outside modules.  Python stores in the
# dictionary ``__warningregistry__`` which warnings of a namespace were shown.  If it is a number, a warning
# is a TypeError, at no cost where there is no warning.  The ufunc is then called again, by ``reported``.
BAD_REGISTRY = {"__warningregistry__": 0}
