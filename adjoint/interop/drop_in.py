"""Functions of NumPy and SciPy that are adjoint's for tensors, and unchanged for arrays.

All functions of ``adjoint.numpy`` and ``adjoint.scipy`` are made here (docs/adr/0028).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from types import NoneType
from typing import Any

import numpy as np

from adjoint.core.lifted import Lifted
from adjoint.core.tensor import Tensor
from adjoint.tracebacks import hide
from adjoint.transforms.arrays import returned

__all__ = [
    "SIMPLE", "arrays_out", "drop_in", "given_tensor", "holds_tensor", "stopping", "until_tensor", "watched",
]  # fmt: skip

# Types whose values contain no tensors.  An array of objects may contain some, and is nevertheless here:
# NumPy's functions call the methods of its elements, which record.
SIMPLE = frozenset(
    (
        np.ndarray, float, int, bool, complex, str, bytes, NoneType, slice, range, type, type(...),
        *np.sctypeDict.values(), *(type(np.dtype(t)) for t in np.sctypeDict.values()),
    )
)  # fmt: skip

_CONTAINERS = (list, tuple, set, frozenset, deque, ValuesView, KeysView, ItemsView)
_DEEPEST = 64  # the largest number of axes of a NumPy array


def holds_tensor(value: Any, sparse: bool = True, depth: int = 0) -> bool:
    """Return whether a value is a tensor, or a container that has one at any level.

    A sparse matrix of adjoint counts as a tensor if ``sparse`` is true.  ``depth`` is the level of the value,
    counted from the outermost one.
    """
    if isinstance(value, (Tensor, Lifted)):
        return True
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, _CONTAINERS):
        return sparse and hasattr(type(value), "numpy_value")
    if depth > _DEEPEST or set(map(type, value)) <= SIMPLE:
        return False
    return any(type(v) not in SIMPLE and holds_tensor(v, sparse, depth + 1) for v in value)


def given_tensor(args: Any, kwargs: dict[str, Any], sparse: bool = True) -> bool:
    """Return whether one of the arguments of a call is a tensor or contains one, as ``holds_tensor`` does."""
    return any(type(a) not in SIMPLE and holds_tensor(a, sparse) for a in (*args, *kwargs.values()))


def drop_in(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``ours`` if an argument is or contains a tensor, and else ``theirs``.

    It has the name and the documentation of ``theirs``, a function of NumPy or SciPy.
    """

    @functools.wraps(theirs, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = True
        try:
            for a in args:
                if type(a) not in SIMPLE and holds_tensor(a):
                    return ours(*args, **kwargs)
            if not kwargs:
                tensors = False
                return theirs(*args)
            if given_tensor((), kwargs):
                return ours(*args, **kwargs)
            tensors = False
            return theirs(*args, **kwargs)
        except Exception as error:
            hide(error, by_user=not tensors)
            raise

    call.ours = ours  # type: ignore[attr-defined]
    return call


def arrays_out(ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``ours``, with arrays for its results if no argument is a tensor or contains one.

    This is for functions that call functions of the user, and for methods of objects: a tensor may come from
    the function or from the object, so the computation is always adjoint's.  As in transforms, results that
    are part of a graph or of a transform remain tensors.
    """

    @functools.wraps(ours)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            found = ours(*args, **kwargs)
        except Exception as error:
            hide(error)
            raise
        if given_tensor(args, kwargs, sparse=False):
            return found
        if not isinstance(found, dict):
            return returned(found)
        plain = returned(dict(found))  # a result object of SciPy
        for name in found:
            found[name] = plain[name]
        return found

    return call


class _TensorReturned(BaseException):
    """A function that NumPy calls has returned a tensor."""


def stopping(f: Any) -> Any:
    """Return a function ``f``, or a list of functions, that raises if a result is or contains a tensor.

    Other values are returned unchanged.
    """
    if isinstance(f, list):
        return [stopping(g) for g in f]
    if not callable(f) or isinstance(f, (type, np.ufunc)):
        return f

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = f(*args, **kwargs)
        if type(found) not in SIMPLE and holds_tensor(found):
            raise _TensorReturned
        return found

    return call


def until_tensor(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``theirs``, and ``ours`` if a function made by ``stopping`` raised."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return theirs(*args, **kwargs)
        except _TensorReturned:
            return ours(*args, **kwargs)

    return call


def watched(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a version of ``drop_in`` for functions of NumPy whose arguments are functions.

    If such a function returns a tensor, the call starts anew with ``ours``.
    """

    @functools.wraps(theirs, updated=())
    def plain(*args: Any, **kwargs: Any) -> Any:
        return theirs(*map(stopping, args), **{k: stopping(v) for k, v in kwargs.items()})

    return drop_in(functools.wraps(theirs, updated=())(until_tensor(plain, ours)), ours)
