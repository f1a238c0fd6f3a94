"""Compiled kernels of single ops in eager mode: the door between the table of ops and the compiler.

The forward and the rules of an op that is defined with ``kernel=True`` run a kernel if their arrays have at
least ``LEAST`` elements, the setting ``config.eager_kernels`` is on and llvmlite is installed.  A kernel is
built at its first use.  So the choice depends on the op, shapes, dtypes, parameters and the setting, and not
on earlier calls, up to ``LIMIT`` kernels.  See ADR 29.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.config import held_across_fork, locked
from adjoint.context import cpu_level, eager_kernels
from adjoint.core.namespace import raw
from adjoint.core.node import Spec

__all__ = ["LEAST", "LIMIT", "Builder", "Kernel", "provider", "with_kernel", "with_kernel_of_rule"]

LEAST = 1 << 15  # elements of all arrays: NumPy then takes so long that a kernel is worth its build
LIMIT = 256  # kernels: with more, as for inputs whose shape changes always, builds would take minutes

Kernel = Callable[[list[Any]], Any]  # gets the arrays of a call, and returns NotImplemented if it cannot run
# Builds a kernel for a function of a namespace, its arguments and its parameters; None if it cannot.
Builder = Callable[[Callable[..., Any], Sequence[Any], dict[str, Any]], "Kernel | None"]

# Has a function that imports the compiler and returns its builder.  The package sets it.
provider: list[Callable[[], Builder]] = []

# The types of arguments: arrays, several gradients, what was not saved, and numbers in place of arrays.
_FORMS = frozenset((np.ndarray, tuple, list, Spec, int, type(None)))

_known: dict[Any, Kernel | None] = {}
_lock = held_across_fork(threading.RLock())
_MISSING = object()


def with_kernel(
    forward: Callable[..., Any], written: Callable[..., Any], least: int = LEAST
) -> Callable[..., Any]:
    """Return ``forward``, which runs a kernel of ``written(xp, *args, **params)`` for large arrays."""

    def run(*args: Any, **params: Any) -> Any:
        if _size(args) < least or not eager_kernels.get():
            return forward(*args, **params)
        found = _computed(written, args, params)
        return forward(*args, **params) if found is NotImplemented else found

    return run


def with_kernel_of_rule(rule: Callable[..., Any], least: int = LEAST) -> Callable[..., Any]:
    """Return a derivative rule, which runs a kernel for large arrays."""

    def run(xp: Any, *args: Any, **params: Any) -> Any:
        if xp is not raw or _size(args) < least or not eager_kernels.get():
            return rule(xp, *args, **params)
        found = _computed(rule, args, params)
        return rule(xp, *args, **params) if found is NotImplemented else found

    return run


def _size(values: Any) -> int:
    """Return the number of elements of the arrays among the values."""
    total = 0
    for a in values:
        if type(a) is np.ndarray:
            total += a.size
        elif type(a) is tuple or type(a) is list:
            total += _size(a)
    return total


def _computed(function: Callable[..., Any], args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Return the result of the kernel of ``function`` for the arguments; NotImplemented if it has none."""
    arrays: list[Any] = []
    key = function, cpu_level.get(), _key(args, arrays), _key(params.values(), arrays)
    if not all(type(a) in _FORMS for a in args):  # a NumPy scalar would become a constant of the kernel
        return NotImplemented
    try:
        kernel = _known.get(key, _MISSING)
    except TypeError:  # a parameter that cannot be hashed
        return NotImplemented
    if kernel is _MISSING:
        kernel = locked(_lock, _build, key, function, args, params)
    return NotImplemented if kernel is None else kernel(arrays)  # type: ignore[operator]  # not _MISSING


def _build(
    key: Any, function: Callable[..., Any], args: Sequence[Any], params: dict[str, Any]
) -> Kernel | None:
    if key not in _known:
        if len(_known) >= LIMIT or not provider:
            return None
        _known[key] = provider[0]()(function, args, params)
    return _known[key]


def _key(values: Any, arrays: list[Any]) -> tuple[Any, ...]:
    """Return the part of the key for ``values``; append the arrays among them to ``arrays``."""
    found: list[Any] = []
    for a in values:
        if type(a) is np.ndarray:
            arrays.append(a)
            found.append((a.shape, a.dtype))
        elif type(a) is tuple or type(a) is list:
            found.append(_key(a, arrays))
        elif type(a) is Spec:
            found.append((Spec, a.shape, a.dtype))
        else:
            found.append((type(a), repr(a) if type(a) is float else a))  # -0.0 == 0.0
    return tuple(found)
