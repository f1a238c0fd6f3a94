"""Raise an error at each call that the generated code of a compiled function makes, one after another."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class FaultError(BaseException):
    """Not an ``Exception``, so that code that handles errors of users' guards does not catch it."""


class Calls:
    """Counts the calls of replaced functions, and raises before or after the call with number ``stop_at``."""

    def __init__(self) -> None:
        self.names: list[str] = []  # of the functions that were called, in order
        self.stop_at = -1
        self.after = False

    def start(self, stop_at: int = -1, after: bool = False) -> None:
        self.names, self.stop_at, self.after = [], stop_at, after

    def run(self, name: str, f: Any, args: Any, kwargs: Any) -> Any:
        here = len(self.names) == self.stop_at
        self.names.append(name)
        if here and not self.after:
            raise FaultError(name)
        found = f(*args, **kwargs)
        if here:
            raise FaultError(name)
        return found


class Counted:
    """A function, or an object with methods, whose calls are counted."""

    def __init__(self, calls: Calls, name: str, f: Any) -> None:
        self.calls, self.name, self.f = calls, name, f

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.calls.run(self.name, self.f, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.f, name)
        return Counted(self.calls, f"{self.name}.{name}", found) if callable(found) else found


def generated(compiled: Any) -> list[Any]:
    """Return the functions that were generated for the programs of a compiled function."""
    found: dict[int, Any] = {}
    todo = [f for v in compiled._variants for f in (v.execute, v.holds, v.fits, *v.directs.values())]
    while todo:
        f = todo.pop()
        space = getattr(f, "__globals__", {})
        if space.get("__name__") == "adjoint.compiled" and id(f) not in found:
            found[id(f)] = f
            todo += list(space.values())
    return list(found.values())


def called_names(function: Any) -> set[str]:
    """Return the global names that a generated function calls, or whose methods it calls."""
    found = set()
    for node in ast.walk(ast.parse(function.__doc__)):
        if isinstance(node, ast.Call):
            f = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            if isinstance(f, ast.Name) and f.id in function.__globals__:
                found.add(f.id)
    return found


@contextmanager
def counted(compiled: Any, modules: Sequence[Any] = ()) -> Iterator[Calls]:
    """Count all calls that the generated code of ``compiled`` makes through global names.

    The functions that ``modules`` use are counted too.
    """
    calls = Calls()
    kept: list[tuple[dict[str, Any], str, Any]] = []
    for f in generated(compiled):
        kept += [(f.__globals__, name, f.__globals__[name]) for name in sorted(called_names(f))]
    for module in modules:
        kept += [(vars(module), name, f) for name, f in vars(module).items() if callable(f)]
    kept = [each for each in kept if callable(each[2]) and not _is_type(each[2])]
    for space, name, f in kept:
        space[name] = Counted(calls, name, f)
    try:
        yield calls
    finally:
        for space, name, f in kept:
            space[name] = f


def _is_type(f: Any) -> bool:
    return isinstance(f, type) and f.__module__ != "numpy"  # ``np.errstate`` is called
