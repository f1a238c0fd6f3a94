"""Import functions given as ``file.py:function`` on the command line, and parse their arguments."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.core.user_code import LIBRARIES, library_of
from adjoint.errors import AdjointError, ArgumentError, FileError, InputError

__all__ = ["UserError", "arguments_of", "check_count", "check_writable", "function_of", "run_user_code"]


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class UserError(AdjointError, RuntimeError):
    """Raised if the user's program raises an exception.

    The message has the traceback without the lines of libraries.
    """


def function_of(target: str) -> Callable[..., Any]:
    """Return the function ``target``: ``file.py:name`` or ``module:name``.  The name may contain dots."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise InputError(
            f"{target!r} does not name a function.\n"
            "  Write file.py:function or module:function, such as model.py:loss."
        )
    module = run_user_code(lambda: _imported(place))
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
            known = ", ".join(sorted(names)) or "none"
            raise InputError(f"{place} has no function {name!r}.\n  The available functions are: {known}.")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"{target} is not a function; its type is {type(found).__name__}.")
    return found


def _imported(place: str) -> Any:
    """Import and return a module, given as a file or by name.

    The directory of the file, or the current directory, is put first in ``sys.path``.
    """
    if place.endswith(".py"):
        if not os.path.isfile(place):
            raise InputError(f"cannot find the file {place!r}.  Check the path.")
        sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
        name = os.path.splitext(os.path.basename(place))[0]
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(f"{error.name}.")):
            raise
        raise InputError(
            f"cannot find module {place!r}: it is neither in the current directory nor installed.\n"
            "  Check the spelling, or run the command from the directory that contains it."
        ) from None


def arguments_of(texts: Sequence[str], seed: int = 0) -> list[Any]:
    """Return the arguments of a function from the texts of a command line; floats are arrays without axes.

    A text is a shape such as ``3x4`` (normal random numbers), a number with or without a decimal point, or an
    array in JSON.

    >>> arguments_of(["2", "2.5", "[1.5, 2]"])
    [2, array(2.5), array([1.5, 2. ])]
    >>> arguments_of(["2x3"])[0].shape
    (2, 3)
    """
    rng = np.random.default_rng(seed)
    return [_argument(text, rng) for text in texts]


def _argument(text: str, rng: np.random.Generator) -> Any:
    sizes = text.split("x")
    if len(sizes) > 1 and all(s.isdecimal() or (s == "" and k) for k, s in enumerate(sizes)):
        return rng.normal(size=tuple(int(s) for s in sizes if s))
    try:
        value = json.loads(text)
        if type(value) is int:
            return value
        array = np.array(value)
        if isinstance(value, (list, float)) and array.dtype.kind in "iufb":
            return array.astype(np.float64) if array.dtype.kind in "iu" and "." in text else array
    except ValueError:
        pass
    raise ArgumentError(
        f"the argument {text!r} is not understood.\n"
        "  Write a shape (3x4, or 5x for a vector), a number (2.5), or an array ([[1.0, 2.0]])."
    )


def check_count(target: str, function: Callable[..., Any], given: Sequence[Any]) -> None:
    """Raise if ``function``, named ``target`` by the user, cannot be called with the ``given`` arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function in C
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        raise ArgumentError(f"{target} takes the arguments {signature}: {error}.") from None


def check_writable(path: str, problem: str, advice: str) -> None:
    """Raise if a file cannot be written.  Call this before a long computation.

    ``problem`` is the start of the message, such as "report: the page", and ``advice`` its second line.
    """
    new = not os.path.exists(path)
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise FileError(f"{problem} cannot be written to {path!r}: {error.strerror}.\n  {advice}") from None
    if new:
        os.remove(path)


def run_user_code(call: Callable[[], Any]) -> Any:
    """Return ``call()``, which runs the user's code; an exception raises ``UserError`` with its lines."""
    try:
        return call()
    except UserError:
        raise
    except Exception as error:
        frames = [f for f, _ in traceback.walk_tb(error.__traceback__)]
        own = [
            s for s, f in zip(traceback.extract_tb(error.__traceback__), frames, strict=True) if _is_own(f)
        ]
        if isinstance(error, AdjointError) and not own:
            raise
        lines = traceback.format_list(own) + traceback.format_exception_only(error)
        raise UserError("".join(["your program raised an exception:\n", *lines]).rstrip()) from None


def _is_own(frame: Any) -> bool:
    """Return whether a stack frame belongs to the user's code, not to a library."""
    file = frame.f_code.co_filename
    return library_of(frame) not in LIBRARIES and not file.startswith(("<", _PACKAGE))
