"""Build ``adjoint.numpy`` and its submodules from NumPy's: the same names, with functions on tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from adjoint.core.conversion import check_conversion
from adjoint.core.convert import asarray
from adjoint.core.define import UFUNCS
from adjoint.core.tensor import Tensor
from adjoint.core.user_code import reported
from adjoint.interop.numpy import FUNCTIONS, PLAIN, Form
from adjoint.interop.writers import WRITERS, write

__all__ = ["Ufunc", "namespace", "numpy_only", "tensor_function"]


class Ufunc:
    """A ufunc of NumPy that returns tensors.

    It has the methods and attributes of NumPy's ufunc, such as ``reduce``, ``outer`` and ``nin``.
    """

    def __init__(self, ufunc: Any, eager: Callable[..., Any]) -> None:
        self._ufunc, self._eager = ufunc, eager
        self.__name__: str = ufunc.__name__
        self.__doc__, self.__module__ = ufunc.__doc__, "numpy"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the ufunc as a tensor (or tensors), even if all arguments are arrays."""
        if kwargs or len(args) != self._ufunc.nin:
            return self._ufunc(asarray(args[0]), *args[1:], **kwargs)
        return self._eager(*args)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ufunc, name)
        if name not in ("reduce", "accumulate", "outer", "reduceat"):
            return found
        return lambda x, *args, **kwargs: found(asarray(x), *args, **kwargs)

    def __repr__(self) -> str:
        return f"<ufunc {self.__name__!r} of adjoint.numpy>"


def namespace(theirs: ModuleType, names: Iterable[str], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of ``names`` of a NumPy module, with adjoint's functions where they exist.

    The values in ``own`` take precedence over adjoint's and NumPy's functions.
    """
    return {name: own[name] if name in own else _converted(getattr(theirs, name)) for name in names}


def _converted(value: Any) -> Any:
    if isinstance(value, np.ufunc):
        return Ufunc(value, UFUNCS[value]) if value in UFUNCS else value
    if isinstance(value, (type, ModuleType)) or not callable(value):
        return value
    ours = FUNCTIONS.get(value)
    if ours is not None:
        return tensor_function(value, ours)
    return value if value in PLAIN | WRITERS else numpy_only(value)


def tensor_function(theirs: Any, ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function ``ours`` with the parameters, name and documentation of NumPy's ``theirs``."""
    form = Form(theirs, ours)

    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = form(args, kwargs)
        if isinstance(found, Tensor) and not found.ndim and found.dtype.kind in "biu":
            return _number(found, args, kwargs)
        return found

    return call


def _number(found: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return ``found``, a 0-d tensor of an integer, as a NumPy scalar if no argument was a tensor.

    Sizes and counts are such numbers.  A tensor would be wrong, because augmented assignment writes into
    tensors: after ``start = end; end += np.prod(shape)``, both ``start`` and ``end`` would have changed.
    """
    if type(found._data) is not np.ndarray or any(isinstance(a, Tensor) for a in (*args, *kwargs.values())):
        return found
    return found.numpy()[()]


def numpy_only(
    theirs: Any, path: str = "np", instead: str = "It has no derivative in adjoint."
) -> Callable[..., Any]:
    """Return a function that calls NumPy's ``theirs`` with arrays in place of tensors.

    It raises for tensors that require grad.  In the error, ``path`` is the name of the module of ``theirs``,
    and ``instead`` says what to use.
    """
    name = f"{path}.{getattr(theirs, '__name__', '')}"

    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        targets = [v for k, v in kwargs.items() if k in ("out", "output") and isinstance(v, Tensor)]
        if targets:
            return write(name, theirs, targets, args, kwargs)
        values = [_value(a, name, instead) for a in args]
        return reported(theirs, *values, **{k: _value(v, name, instead) for k, v in kwargs.items()})

    return call


def _value(a: Any, name: str, instead: str) -> Any:
    if isinstance(a, Tensor):
        check_conversion(a, f"an array for {name}", instead)
        return a.numpy(copy=True)[()]
    if hasattr(type(a), "numpy_value"):  # a SparseArray of adjoint
        return a.numpy_value(name)
    return type(a)(_value(v, name, instead) for v in a) if type(a) in (list, tuple) else a
