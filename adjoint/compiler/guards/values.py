"""Guards: checks before each call that the Python values which a compiled function reads have not changed.

Plain data and containers are compared by value, all other objects by identity.  The arrays of tensors need no
guard: the program reads them at each call.  ``guards.observe`` finds the values that user code reads.
"""

from __future__ import annotations

import functools
import types
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.roles import ModuleRole
from adjoint.core.tensor import Tensor, Traced
from adjoint.core.user_code import LIBRARIES

__all__ = [
    "BOUND", "CACHES", "CONTAINERS", "DEEPEST", "MAPPINGS", "Guard", "ObjectGuard", "class_attribute",
    "exact", "home", "is_library", "is_module", "is_plain", "itself", "snapshot",
]  # fmt: skip

_PLAIN = (int, float, complex, bool, str, bytes, type(None), np.generic, np.dtype, slice)
BOUND = (types.BuiltinMethodType, types.MethodWrapperType)  # each access creates a new object
_AS_IS = frozenset((int, bool, str, bytes, type(None)))  # ``==`` distinguishes all values of each
_BY_VALUE = frozenset(("datetime", "decimal", "fractions", "pathlib", "uuid"))  # modules of immutable objects
MAPPINGS = (dict, types.MappingProxyType)
BUFFERS = (array, bytearray)  # their elements are new objects at each access
CONTAINERS = (list, tuple, set, frozenset, deque, OrderedDict, defaultdict, *MAPPINGS, *BUFFERS)
CACHES = ("_parameters", "_buffers")  # attributes of modules with the names of their tensors
_HEAP = 1 << 9  # flag of a class that is made at run time
DEEPEST = 8  # nesting depth of containers; objects below it are compared by identity


def snapshot(value: Any, depth: int = 0) -> Any:
    """Return a summary of a value; two summaries are equal if the value has not changed in between.

    ``depth`` is the number of containers around ``value``.
    """
    kind = type(value)
    if kind in _AS_IS:
        return kind, value
    if (issubclass(kind, Tensor) and kind is not Traced) or is_module(value):
        return "object", id(value)
    if isinstance(value, np.generic):  # before float: np.float64 is a subclass, and promotes differently
        return value.dtype, value.tobytes()
    if isinstance(value, (float, complex)):
        return type(value), value.real.hex(), value.imag.hex()  # 0.0 equals -0.0, and nan does not equal nan
    if isinstance(value, range):
        return range, value.start, value.stop, value.step  # all empty ranges are equal
    if isinstance(value, _PLAIN):
        return type(value), value
    if type(value) is Traced:  # a value of an earlier trace: using it raises, so all are treated as equal
        return (Traced,)
    if isinstance(value, types.MethodType):
        return "method", id(value.__func__), id(value.__self__)
    if isinstance(value, BOUND):
        return "method", value.__name__, id(value.__self__)
    if isinstance(value, functools.partial):  # ``partialmethod`` makes a new one at each access
        given = (*value.args, *value.keywords, *value.keywords.values())
        return type(value), tuple([snapshot(v, depth + 1) for v in (value.func, *given)])
    if _has_value(value):
        return type(value), repr(value)  # equal times and decimals may have different zones and digits
    if isinstance(value, CONTAINERS) and depth < DEEPEST:
        if isinstance(value, BUFFERS):
            return type(value), getattr(value, "typecode", ""), bytes(value)
        if isinstance(value, MAPPINGS):
            # 1 equals True as a key, and 0.0 equals -0.0
            return type(value), tuple(
                [
                    (k if type(k) is str else snapshot(k, depth + 1), snapshot(v, depth + 1))
                    for k, v in value.items()
                ]
            )
        marks = [snapshot(v, depth + 1) for v in value]
        return type(value), tuple(sorted(marks, key=repr) if isinstance(value, (set, frozenset)) else marks)
    return "object", id(value)


def _has_value(value: Any) -> bool:
    """Return whether ``repr(value)`` has the whole value, as for a date or a decimal."""
    return str(type(value).__module__).partition(".")[0] in _BY_VALUE


def is_plain(value: Any) -> bool:
    """Return whether a value is plain data: it cannot be changed, and is compared by value."""
    return type(value) in _AS_IS or isinstance(value, (*_PLAIN, range)) or _has_value(value)


def exact(value: Any) -> Any:
    """Return a value in a form that distinguishes the signs of zero and is equal to itself for nan.

    This holds inside frozen sets and other containers, too.  Objects are returned as they are, so that they
    are compared by ``==``.
    """
    if type(value) in _AS_IS:
        return value
    known = isinstance(value, (float, complex, np.inexact, range, *CONTAINERS)) or _has_value(value)
    return snapshot(value) if known else value


class Guard:
    """Checks that the value of ``read()`` is unchanged; ``what`` is the name of the value in messages."""

    __slots__ = ("mark", "read", "seen", "watch", "what")

    def __init__(
        self, what: str, read: Callable[[], Any], watch: Callable[[], list[tuple[Any, ...]]] | None = None
    ) -> None:
        self.what = what
        self.read = read
        # returns the objects that the value depends on, for ``host.check``
        self.watch = watch or getattr(read, "watch", None)
        self.seen = read()  # kept alive, so that its id is not reused
        self.mark = snapshot(self.seen)

    def holds(self) -> bool:
        """Return whether the value is unchanged."""
        try:
            now = self.read()
        except Exception:  # deleted
            return False
        same = now is self.seen and not isinstance(now, CONTAINERS)
        return same or bool(snapshot(now) == self.mark)

    def reason(self) -> str:
        """Return the text "NAME changed", with the name of the value."""
        return f"{self.what} changed"


class ObjectGuard:
    """Checks that the attributes of an object, such as a module, and their order are unchanged.

    If ``tree`` is true, only the parameters, buffers, submodules and ``training`` of a module are compared.
    """

    __slots__ = ("attributes", "containers", "ids", "names", "owner", "tensors", "tree", "values", "what")

    def __init__(self, what: str, owner: Any, tree: bool = False) -> None:
        self.what = what
        self.owner = owner
        self.tree = tree
        self._look()

    def _look(self) -> None:
        self.attributes: dict[str, Any] = vars(self.owner)
        self.names = [*self.attributes]
        self.values = [*self.attributes.values()]  # kept alive, so that no id is reused
        self.ids = [*map(id, self.values)]
        self.tensors = {k: tuple(v) for k in CACHES if (v := self.attributes.get(k))}  # names of tensors
        self.containers = [
            Guard(k, functools.partial(itself, v))
            for k, v in self.attributes.items()
            if type(v) not in _AS_IS and isinstance(v, CONTAINERS) and not self.tree and k not in CACHES
        ]

    def holds(self) -> bool:
        """Return whether all attributes are unchanged; ids are compared first, because that is faster."""
        attributes = vars(self.owner)  # not ``self.attributes``: ``__dict__`` may have been assigned
        if attributes is not self.attributes or [*map(id, attributes.values())] != self.ids:
            if [*self._now().items()] != [*self._before().items()]:
                return False
            self._look()
        return all([g.holds() for g in self.containers])  # noqa: C419  a generator costs more

    def compares(self, name: str, value: Any) -> bool:
        """Return whether the attribute ``name`` is compared."""
        return not self.tree or isinstance(value, Tensor) or is_module(value) or name == "training"

    def reason(self) -> str:
        """Return a text that names what changed, such as "Linear.bias changed"."""
        now, before = self._now(), self._before()
        names = [k for k in {**now, **before} if now.get(k) != before.get(k)]
        items = getattr(type(self.owner), "items_are", None)
        if items is not None and "length" in names:  # a ``ModuleList`` or another list of items
            return f"the number of {items} in {self.what} changed"
        for cache in CACHES:
            kind = cache[1:-1]  # "parameter" or "buffer"
            tensors = sorted(set(now.get(cache, ())) ^ set(before.get(cache, ())))
            if tensors:
                return f"{kind} {', '.join(tensors)} of {self.what} changed"
            if cache in names:
                return f"the order of the {kind}s of {self.what} changed"
        return f"{self.what}.{', '.join(names)} changed" if names else f"the order in {self.what} changed"

    def _now(self) -> dict[str, Any]:
        """Return a snapshot of each attribute, by name."""
        attributes = vars(self.owner)
        return self._marks(attributes, {k: tuple(v) for k in CACHES if (v := attributes.get(k))})

    def _before(self) -> dict[str, Any]:
        """Return what ``_now`` would have returned at the last ``_look``."""
        known = {**self.tensors, **{g.what: g.mark for g in self.containers}}
        return self._marks(dict(zip(self.names, self.values, strict=True)), known)

    def _marks(self, attributes: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
        """Return a snapshot of each of the ``attributes`` that is compared; those in ``known`` are known.

        Attributes that equal the class's default, and empty lists of tensors' names, are left out.
        """
        marks = {}
        cls = type(self.owner)
        for k, v in attributes.items():
            if k in known:
                marks[k] = known[k]
            elif k in CACHES or not self.compares(k, v):
                continue
            else:
                marks[k] = snapshot(v)
            default = class_attribute(cls, k, self)
            if default is not self and marks[k] == snapshot(default):
                del marks[k]
        return marks


def is_library(function: Any) -> bool:
    """Return whether a function or a class is defined in one of ``LIBRARIES``, not in the user's code."""
    return home(function) in LIBRARIES


def home(function: Any) -> str:
    """Return the top-level package in which a function or a class is defined; "" if it is not known.

    ``functools.wraps`` copies the ``__module__`` of another function, and a class that ``exec`` makes without
    a ``__name__`` has that of the built-in types.
    """
    module = getattr(function, "__module__", None)
    if type(function) is types.FunctionType:
        copied = "__wrapped__" in vars(function)
        module = function.__globals__.get("__name__", None if copied else module)
    elif module == "builtins" and isinstance(function, type) and function.__flags__ & _HEAP:
        module = None
    return str(module or "").partition(".")[0]


def class_attribute(cls: type, name: str, missing: Any = None) -> Any:
    """Return an attribute of a class as it is stored there: a property, not its value.

    Return ``missing`` if the class does not have it.
    """
    return next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), missing)


def is_module(value: Any) -> bool:
    """Return whether a value is a module; ``isinstance`` would ask the value for its ``__class__``."""
    return issubclass(type(value), ModuleRole)


def itself(value: Any) -> Any:
    """Return ``value``; ``partial(itself, value)`` is the ``read`` of a guard on a fixed object."""
    return value
