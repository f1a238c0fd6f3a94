"""Whose code and whose data a value is: the user's, a library's or the standard library's."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import types
from typing import Any

from adjoint.compiler.guards.values import home
from adjoint.core.user_code import LIBRARIES
from adjoint.hints import OBSERVED

__all__ = ["is_foreign", "is_own", "is_own_class", "library_of", "own_function"]

# modules of the standard library whose code is observed, because it calls the user's functions
_OBSERVED = frozenset("collections _collections_abc configparser contextlib functools types weakref".split())
# functions of other modules, for the same reason
_OBSERVED_FUNCTIONS = tuple(
    getattr(dataclasses, name, None)
    for name in "replace _replace asdict _asdict_inner astuple _astuple_inner fields is_dataclass "
    "_is_dataclass_instance".split()
)
_STANDARD = frozenset(sys.stdlib_module_names) - _OBSERVED - {"__main__"}
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_own(f: Any) -> bool:
    """Return whether the code of a function is observed."""
    name = f.__globals__.get("__name__") or ""
    if name in OBSERVED or name.startswith("adjoint.cli") or f in _OBSERVED_FUNCTIONS:
        return True
    top = name.partition(".")[0]
    if top in LIBRARIES or top in _STANDARD:
        return False
    return not any(each in f.__code__.co_filename for each in _INSTALLED) or _uses_adjoint(top)


def library_of(value: Any) -> str:
    """Return the name of the library to which a callable belongs; "" if it belongs to none."""
    homes = (value,) if isinstance(value, types.FunctionType) else (type(value), value)
    return next((top for top in map(home, homes) if top in LIBRARIES), "")


def is_own_class(cls: type) -> bool:
    """Return whether a class is not part of a library or of the standard library."""
    if getattr(cls, "__module__", None) in OBSERVED:
        return True
    top = home(cls)
    return (top not in LIBRARIES and top not in sys.stdlib_module_names) or top == "__main__"


@functools.lru_cache(1024)
def is_foreign(cls: type) -> bool:
    """Return whether a class belongs to an installed package that does not use adjoint."""
    top = home(cls)
    if top in LIBRARIES or top in sys.stdlib_module_names:
        return False
    file = str(getattr(sys.modules.get(getattr(cls, "__module__", "")), "__file__", None) or "")
    return any(each in file for each in _INSTALLED) and not _uses_adjoint(top)


def _uses_adjoint(package: str) -> bool:
    """Return whether an installed package imports adjoint."""
    return _uses(package, len(sys.modules))


@functools.lru_cache(256)
def _uses(package: str, loaded: int) -> bool:
    modules = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == package]
    for value in [v for m in modules for v in list(getattr(m, "__dict__", {}).values())]:
        kind = type(value)  # ``isinstance`` would run code of objects that define ``__class__``
        if kind in (types.ModuleType, types.FunctionType) or issubclass(kind, type):
            where = value.__name__ if kind is types.ModuleType else value.__module__
            if str(where).partition(".")[0] == "adjoint":
                return True
    return False


def own_function(value: Any) -> Any:
    """Return the Python function of the user in ``value``, an attribute of a class; None for others."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    return value if isinstance(value, types.FunctionType) and is_own(value) else None
