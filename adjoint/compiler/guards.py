"""Guards: checks, before each call, that Python values which a function reads have not changed.

Globals, closure variables, attributes of ``self`` and chains of attributes (``cfg.model.rate``) are found in
the bytecode of the function and of the user's functions that it names.  Plain data and containers are
compared by value, all other objects by identity.  The arrays of tensors need no guard: the program reads them
at each call.
"""

from __future__ import annotations

import dis
import functools
import types
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from adjoint.core.tensor import Tensor
from adjoint.core.user_code import LIBRARIES

__all__ = [
    "Guard",
    "ObjectGuard",
    "base_of",
    "element_ids",
    "is_flat",
    "is_library",
    "itself",
    "named_reads",
    "read_attributes",
    "snapshot",
]

_PLAIN = (int, float, complex, bool, str, bytes, type(None), np.generic, np.dtype, range, slice)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_MOST = 100  # elements of a container whose attributes are guarded
# methods that Python calls without naming them
_IMPLICIT = ("__call__", "__getitem__", "__iter__", "__len__", "__contains__", "__bool__")
_DEEPEST = 4  # containers in containers, below which identity counts
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_SKIPPED = (types.ModuleType, type, types.BuiltinFunctionType)


def snapshot(value: Any, depth: int = 0) -> Any:
    """Return a snapshot of a value; two snapshots of it are equal if the value has not changed."""
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, np.generic):
        return value.dtype, value.tobytes()
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, types.MethodType):
        return "method", id(value.__func__), id(value.__self__)
    if isinstance(value, _CONTAINERS) and depth < _DEEPEST:
        if isinstance(value, dict):
            return dict, tuple([(k, snapshot(v, depth + 1)) for k, v in value.items()])
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return type(value), tuple([snapshot(v, depth + 1) for v in items])
    return "object", id(value)


def element_ids(value: Any) -> list[int]:
    """Return the ids of the keys and elements of a container."""
    if isinstance(value, dict):
        return [*map(id, value), *map(id, value.values())]
    return [*map(id, value)]


class Guard:
    """A check that a value is unchanged.  ``read()`` returns the value; ``what`` is its name in messages."""

    __slots__ = ("elements", "ids", "mark", "mutable", "read", "seen", "watch", "what")

    def __init__(
        self, what: str, read: Callable[[], Any], watch: Callable[[], list[tuple[Any, ...]]] | None = None
    ) -> None:
        self.what = what
        self.read = read
        self.watch = watch  # returns the objects that the value depends on, for ``compiler.watch``
        self.seen = read()  # kept alive, so that its id is not reused
        self.mark = snapshot(self.seen)
        self.mutable = isinstance(self.seen, _CONTAINERS)
        # the ids of the elements, if they show every change; ``elements`` keeps them alive: no id is reused
        self.ids: list[int] | None = None
        if self.mutable and is_flat(self.seen):
            self.ids = element_ids(self.seen)
            self.elements = (*self.seen, *(self.seen.values() if isinstance(self.seen, dict) else ()))

    def holds(self) -> bool:
        """Return whether the value is unchanged."""
        try:
            now = self.read()
        except Exception:  # deleted
            return False
        if now is self.seen and (not self.mutable or (self.ids is not None and element_ids(now) == self.ids)):
            return True
        return bool(snapshot(now) == self.mark)

    def reason(self) -> str:
        """Return the text "... changed", with the name of the value."""
        return f"{self.what} changed"


def is_flat(value: Any) -> bool:
    """Return whether the ids of a container's elements show every change: it has no containers or methods."""
    elements = value.values() if isinstance(value, dict) else value
    return not any(isinstance(v, (*_CONTAINERS, types.MethodType)) for v in elements)


def _marks(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return snapshots of the attributes of an object, without empty parameter caches of modules."""
    return {k: snapshot(v) for k, v in attributes.items() if k not in ("_parameters", "_buffers") or v}


class ObjectGuard:
    """A check that the attributes of an object, such as a module, are unchanged."""

    __slots__ = ("attributes", "containers", "ids", "marks", "owner", "values", "what")

    def __init__(self, what: str, owner: Any) -> None:
        self.what = what
        self.owner = owner
        self.attributes: dict[str, Any] = vars(owner)
        self.marks = _marks(self.attributes)
        self._look()

    def _look(self) -> None:
        self.values = list(self.attributes.values())  # kept alive, so that no id is reused
        self.ids = [*map(id, self.values)]
        self.containers = [
            Guard(k, functools.partial(itself, v))
            for k, v in self.attributes.items()
            if isinstance(v, _CONTAINERS) and k not in ("_parameters", "_buffers")
        ]

    def holds(self) -> bool:
        """Return whether all attributes are unchanged; ids are compared first, because that is faster."""
        if [*map(id, self.attributes.values())] != self.ids:
            if _marks(self.attributes) != self.marks:
                return False
            self._look()
        return all([g.holds() for g in self.containers])  # noqa: C419  a generator costs more

    def reason(self) -> str:
        """Return the text "... changed", with the names of the attributes."""
        now = _marks(self.attributes)
        names = [k for k in {**now, **self.marks} if now.get(k) != self.marks.get(k)]
        return f"{self.what}.{', '.join(names)} changed"


def named_reads(f: Any, objects: dict[str, Any], values: list[Any]) -> dict[str, Callable[[], Any]]:
    """Return, for each variable that ``f`` and the functions it calls name, a function that reads it.

    The keys describe the variables.  ``objects`` are the arguments of ``f`` that are not traced, by name.
    The values of the variables are appended to ``values``.
    """
    found: dict[str, Callable[[], Any]] = {}
    todo = [(function, bound, objects) for function, bound in _functions(f)]
    seen: set[tuple[int, int]] = set()
    attributes: set[str] = set()  # all attribute names in the code
    owners: dict[str, tuple[Any, Callable[[], Any]]] = {}  # objects whose attributes may be read elsewhere
    for name, value in _given(f):
        found[name] = functools.partial(itself, value)
        owners[name] = value, found[name]
    while todo:
        function, bound, local = todo.pop()
        if (id(function), id(bound)) in seen or is_library(function):
            continue
        seen.add((id(function), id(bound)))
        attributes.update(name for code in _codes(function.__code__) for name in code.co_names)
        if bound is not None and function.__code__.co_argcount:
            local = {**local, function.__code__.co_varnames[0]: bound}
        for name, read, chain in _reads(function, local):
            value, used = _follow(read, chain)
            values.append(value)
            if value is _NOTHING or isinstance(value, _SKIPPED):
                continue
            if isinstance(value, types.FunctionType) and is_library(value):
                todo += [(*each, {}) for each in _functions(getattr(value, "__wrapped__", None))]
            if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
                todo += [(*each, {}) for each in _functions(value)]
            elif not is_library(type(value)):
                methods = [getattr(type(value), m, None) for m in _IMPLICIT]
                todo += [(m, value, {}) for m in methods if isinstance(m, types.FunctionType)]
            if isinstance(value, types.MethodType) and used:  # a new object at each access: guard its owner
                used = used[:-1]
                value = value.__self__
            what = f"{function.__qualname__}: {'.'.join([name, *used])}"
            found[what] = functools.partial(read_attributes, read, used) if used else read
            owners[what] = value, found[what]
    for what, (owner, read) in owners.items():
        _add_attributes(found, what, owner, read, attributes, 0)
    return found


def _add_attributes(
    found: dict[str, Callable[[], Any]],
    what: str,
    owner: Any,
    read: Callable[[], Any],
    names: set[str],
    depth: int,
) -> None:
    """Add reads of those attributes of a user's object whose names are in the code."""
    if depth == _DEEPEST or is_library(type(owner)) or isinstance(owner, _FUNCTIONS):
        return
    if isinstance(owner, _CONTAINERS):  # which is guarded itself: its elements stay the same objects
        pairs = owner.items() if isinstance(owner, dict) else enumerate(owner)
        for key, each in islice(pairs, _MOST):
            _add_attributes(
                found, f"{what}[{key!r}]", each, functools.partial(itself, each), names, depth + 1
            )
        return
    for name, value in getattr(owner, "__dict__", {}).items():
        here = f"{what}.{name}"
        if name in names and here not in found and not isinstance(value, (*_SKIPPED, *_FUNCTIONS)):
            found[here] = functools.partial(read_attributes, read, [name])
            _add_attributes(found, here, value, found[here], names, depth + 1)


def _given(f: Any) -> Iterator[tuple[str, Any]]:
    """Yield the defaults of a function, and what ``functools.partial`` passes to it, with names."""
    if isinstance(f, functools.partial):
        for k, value in (*enumerate(f.args), *f.keywords.items()):
            yield f"partial: {k}", value
    for function, _ in _functions(f):
        code, defaults = function.__code__, function.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        for name, value in (*zip(names, defaults, strict=True), *(function.__kwdefaults__ or {}).items()):
            yield f"{function.__qualname__}: {name}", value


def base_of(read: Callable[[], Any]) -> tuple[Any, Any, Any, Any]:
    """Return what a function of ``named_reads`` reads: (cell, dictionary, key, value).

    Either the cell, or the dictionary and key, or the value is set; the others are None.  All four are None
    for any other function.
    """
    if isinstance(read, functools.partial):
        if read.func is getattr and isinstance(read.args[0], types.CellType):
            return read.args[0], None, None, None
        if read.func is itself:
            return None, None, None, read.args
        owner = getattr(read.func, "__self__", None)
        if type(owner) is dict and getattr(read.func, "__name__", "") == "__getitem__":
            return None, owner, read.args[0], None
    return None, None, None, None


_NOTHING = object()


def _functions(f: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the Python functions that a callable runs, each with the object it is bound to."""
    while f is not None:
        if isinstance(f, functools.partial):
            f = f.func
        elif isinstance(f, types.MethodType):
            yield f.__func__, f.__self__
            return
        elif isinstance(f, types.FunctionType):
            yield f, None
            f = getattr(f, "__wrapped__", None)
        else:
            f = None if isinstance(f, type) else getattr(f, "forward", None) or getattr(f, "__call__", None)  # noqa: B004
            if not isinstance(f, types.MethodType):
                return


def is_library(function: Any) -> bool:
    """Return whether a function or a class belongs to a library."""
    return (getattr(function, "__module__", None) or "").partition(".")[0] in LIBRARIES


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and those of the functions and comprehensions inside it."""
    yield code
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from _codes(c)


def _reads(function: Any, local: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any], list[str]]]:
    """Yield the name, a function that reads it, and the attribute chain of each variable of a function."""
    outer = function.__code__
    cells = dict(zip(outer.co_freevars, function.__closure__ or (), strict=True))
    space = function.__globals__
    for code in _codes(outer):
        instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "NOP")]
        for n, i in enumerate(instructions):
            name = i.argval
            read: Callable[[], Any]
            if i.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in space:
                read = functools.partial(space.__getitem__, name)
            elif "DEREF" in i.opname and i.opname.startswith("LOAD") and name in cells:
                read = functools.partial(getattr, cells[name], "cell_contents")
            elif i.opname.startswith("LOAD_FAST") and name in local and code is outer:
                read = functools.partial(itself, local[name])
            else:
                continue
            chain = []
            for j in instructions[n + 1 :]:
                if j.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                chain.append(j.argval)
            yield name, read, chain


def itself(value: Any) -> Any:
    """Return the value itself; used as the read of an argument."""
    return value


def _follow(read: Callable[[], Any], chain: list[str]) -> tuple[Any, list[str]]:
    """Follow a chain of attributes up to a tensor or array; return the value and the attributes used."""
    try:
        value = read()
        used = []
        for name in chain:
            if isinstance(value, (Tensor, np.ndarray)):
                break
            if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in LIBRARIES:
                return _NOTHING, []
            value = getattr(value, name)
            used.append(name)
    except Exception:  # not there yet, or a property that raises
        return _NOTHING, []
    return value, used


def read_attributes(read: Callable[[], Any], chain: list[str]) -> Any:
    """Return the value of ``read()`` after following a chain of attributes."""
    value = read()
    for name in chain:
        value = getattr(value, name)
    return value
