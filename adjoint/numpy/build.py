"""Build ``adjoint.numpy`` and its submodules from NumPy's, with functions that also take tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, ValuesView
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from adjoint.core.conversion import check_conversion
from adjoint.core.convert import asarray
from adjoint.core.define import UFUNCS
from adjoint.core.tensor import Tensor
from adjoint.core.user_code import BAD_REGISTRY, reported
from adjoint.interop.drop_in import SIMPLE, drop_in, given_tensor, holds_tensor, watched
from adjoint.interop.numpy import FUNCTIONS, PLAIN, Form
from adjoint.interop.writers import WRITERS, write
from adjoint.tracebacks import hide

__all__ = ["Ufunc", "Valued", "namespace", "numpy_only"]


class Ufunc:
    """A ufunc of NumPy that returns tensors for tensors, and is NumPy's for arrays.

    It has the methods and attributes of NumPy's ufunc, such as ``reduce``, ``outer`` and ``nin``.
    """

    def __init__(self, ufunc: Any, eager: Callable[..., Any] | None) -> None:
        self._ufunc, self._eager, self._nin = ufunc, eager, ufunc.nin
        self.__name__: str = ufunc.__name__
        self.__doc__, self.__module__ = ufunc.__doc__, "numpy"

    def _on_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs or len(args) != self._nin or self._eager is None:
            return self._ufunc(*map(_as_tensor, args), **kwargs)
        return self._eager(*args)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ufunc, name)
        if name not in ("reduce", "accumulate", "outer", "reduceat"):
            return found
        return drop_in(found, lambda *args, **kwargs: found(*map(_as_tensor, args), **kwargs))

    def __repr__(self) -> str:
        return f"<ufunc {self.__name__!r} of adjoint.numpy>"


def _call(self: Ufunc, *args: Any, **kwargs: Any) -> Any:
    """Return a tensor (or tensors) if an argument is or contains one, and else NumPy's result."""
    tensors = True
    try:
        for a in args:
            if type(a) not in SIMPLE and holds_tensor(a):
                return self._on_tensors(args, kwargs)
        if kwargs and given_tensor((), kwargs):
            return self._on_tensors(args, kwargs)
        tensors = False
        if kwargs or len(args) != self._nin:  # it may write into out=, so it cannot be called twice
            return reported(self._ufunc, *args, **kwargs)
        try:
            return self._ufunc(*args)
        except TypeError:  # also where NumPy would warn: see BAD_REGISTRY
            return reported(self._ufunc, *args)
    except Exception as error:
        hide(error, by_user=not tensors)
        raise


_in_silence = FunctionType(_call.__code__, {**globals(), **BAD_REGISTRY}, "__call__")
_in_silence.__doc__ = _call.__doc__
Ufunc.__call__ = _in_silence  # type: ignore[method-assign]


def _as_tensor(a: Any) -> Any:
    return asarray(a) if isinstance(a, (list, tuple)) and holds_tensor(a) else a


def namespace(theirs: ModuleType, names: Iterable[str], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of ``names`` of a NumPy module, with adjoint's functions for tensors.

    The functions in ``own`` take precedence over others of adjoint for tensors; other objects in it replace
    NumPy's.
    """
    return {name: _made(getattr(theirs, name), own.get(name)) for name in names}


def _made(value: Any, own: Any) -> Any:
    if isinstance(value, np.ufunc):
        return Ufunc(value, UFUNCS.get(value))
    if isinstance(value, (type, ModuleType)) or not callable(value):
        return value if own is None else own
    if value in CALLERS:
        return watched(value, Form(value, FUNCTIONS[value]).call if own is None else own)
    if own is None and value in FUNCTIONS:
        own = Form(value, FUNCTIONS[value]).call
    elif own is None:
        own = value if value in PLAIN | WRITERS else numpy_only(value)
    return joining(value, own) if value in _JOINS else drop_in(value, own)


# Functions that call functions of the user.
CALLERS = frozenset((np.apply_along_axis, np.apply_over_axes, np.piecewise, np.fromfunction))
# Functions whose first argument is a sequence of arrays.
_JOINS = frozenset(
    (np.concatenate, np.stack, np.vstack, np.hstack, np.dstack, np.column_stack, np.block)
)  # fmt: skip


def joining(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a version of ``drop_in`` whose first argument may also be an iterator or a dictionary's view."""
    call = drop_in(theirs, ours)

    @functools.wraps(theirs)
    def join(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is not list and isinstance(args[0], (Iterator, ValuesView, KeysView, map)):
            args = (list(args[0]), *args[1:])
        return call(*args, **kwargs)

    return join


class Valued:
    """A function that calls NumPy's ``theirs`` with arrays in place of tensors.

    Arrays in its result are returned as tensors.  It raises for tensors that require grad, unless it was
    given rules as a ``primitive``.  In the error, ``path`` is the name of the module of ``theirs``, and
    ``instead`` says what to use.
    """

    def __init__(self, theirs: Any, path: str, instead: str) -> None:
        functools.update_wrapper(self, theirs, updated=())
        self.theirs = theirs
        self.primitive: Any = None
        self._name, self._instead = f"{path}.{getattr(theirs, '__name__', '')}", instead

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result for the values, or that of the primitive."""
        if self.primitive is not None:
            return self.primitive(*args, **kwargs)
        name, theirs = self._name, self.theirs
        targets = [v for k, v in kwargs.items() if k in ("out", "output") and isinstance(v, Tensor)]
        if targets:
            return write(name, theirs, targets, args, kwargs)
        values = [_value(a, name, self._instead) for a in args]
        given = {k: _value(v, name, self._instead) for k, v in kwargs.items()}
        return _tensors(reported(theirs, *values, **given))


def numpy_only(
    theirs: Any, path: str = "np", instead: str = "It has no derivative in adjoint."
) -> Callable[..., Any]:
    """Return ``Valued`` of a function of NumPy or SciPy."""
    return Valued(theirs, path, instead)


def _tensors(found: Any) -> Any:
    """Return the numeric arrays of a result as tensors."""
    if type(found) in (tuple, list):
        return type(found)(map(_tensors, found))
    return asarray(found) if type(found) is np.ndarray and found.dtype.kind in "biufc" else found


def _value(a: Any, name: str, instead: str) -> Any:
    if isinstance(a, Tensor):
        check_conversion(a, f"an array for {name}", instead)
        return a.numpy(copy=True)[()]
    if hasattr(type(a), "numpy_value"):  # a SparseArray of adjoint
        return a.numpy_value(name)
    return type(a)(_value(v, name, instead) for v in a) if type(a) in (list, tuple) else a
