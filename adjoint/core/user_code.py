"""The line of the user's program that called adjoint: for messages and warnings."""

from __future__ import annotations

import sys
import warnings
from types import CodeType, FrameType
from typing import Any

__all__ = [
    "LIBRARIES",
    "Position",
    "library_of",
    "line_at",
    "relocate_numpy_warnings",
    "same_in_adjoint",
    "user_line",
    "user_place",
    "user_position",
    "warn",
]

LIBRARIES = frozenset(("adjoint", "numpy", "scipy"))
_PASSED = LIBRARIES | {"contextlib"}  # the with statement of the user calls it before a generator of adjoint


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


class _NumPyWarning:
    """The message pattern of a warning filter that moves floating-point warnings to the user's line.

    NumPy reports an overflow or a division by zero at the Python line that called the ufunc, which is a line
    of adjoint.  Python's warning machinery calls ``match`` in that frame.  A match means that the warning was
    issued again at the user's line, and that the one inside adjoint is ignored.
    """

    _texts = ("divide by zero encountered in ", "overflow encountered in ", "underflow encountered in ",
              "invalid value encountered in ")  # fmt: skip

    def match(self, text: str) -> bool:
        frame = sys._getframe(1)
        # ``warn`` issues the warning again in its own frame: do not match that one
        inside = library_of(frame) == "adjoint" and frame.f_code is not warn.__code__
        if not inside or not text.startswith(self._texts):
            return False
        warn(text, RuntimeWarning, frame)
        return True


def relocate_numpy_warnings() -> None:
    """Make NumPy's floating-point warnings inside adjoint show the user's line.

    The filter is added last, so that filters of the user and of test frameworks take precedence.
    """
    warnings.filters.append(("ignore", _NumPyWarning(), RuntimeWarning, None, 0))  # type: ignore[attr-defined]  # a list
