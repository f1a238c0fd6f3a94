"""Which Python values a function reads: found in its bytecode and in that of the user's code that it reaches.

A variable is a global, a closure variable or an argument that is not traced, followed by a chain of
attributes (``cfg.model.rate``).  Attributes of other values, such as local variables, are free names: they
may belong to any object that the code reaches.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from adjoint.compiler.guards import CONTAINERS, DEEPEST, is_library, itself, read_attributes
from adjoint.core.tensor import Tensor
from adjoint.core.user_code import LIBRARIES

__all__ = ["named_reads"]

_MOST = 100  # elements of a container that are visited
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_SKIPPED = (types.ModuleType, type, types.BuiltinFunctionType)
_BINDERS = (staticmethod, classmethod, property, functools.cached_property)
_BY_NAME = ("getattr", "attrgetter", "vars", "__dict__")  # read attributes whose names are strings
_NOTHING = object()


def named_reads(f: Any, objects: dict[str, Any], values: list[Any]) -> dict[str, Callable[[], Any]]:
    """Return, for each variable that ``f`` and the user's code behind it read, a function that reads it.

    The keys describe the variables.  ``objects`` are the arguments of ``f`` that are not traced, by name.
    The values of the variables are appended to ``values``.
    """
    walk = _Walk(values)
    if isinstance(f, functools.partial):
        for k, value in (*enumerate(f.args), *f.keywords.items()):
            walk.add(f"partial: {k}", value, functools.partial(itself, value))
    walk.todo += _functions(f, objects)
    for name, value in {**objects, "": f}.items():
        walk.owners[name] = value, functools.partial(itself, value)
    walk.run()
    return walk.found


class _Walk:
    """A search of all code that a function can reach."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.found: dict[str, Callable[[], Any]] = {}
        self.todo: list[
            tuple[Any, Any, dict[str, Any]]
        ] = []  # functions, their owners, their known arguments
        self.seen: set[tuple[int, int]] = set()
        self.free: set[str] = set()  # names of attributes of local variables and other results
        self.owners: dict[str, tuple[Any, Callable[[], Any]]] = {}  # objects that were reached
        self.classes: dict[int, type] = {}

    def run(self) -> None:
        """Walk until nothing new is found.  A free name of a later round may concern an earlier object."""
        size = None
        while True:
            while self.todo:
                self._walk_function(*self.todo.pop())
            now = len(self.found), len(self.seen), len(self.free), len(self.classes)
            if now == size:
                return
            size = now
            depths: dict[int, int] = {}
            for what, (owner, read) in list(self.owners.items()):
                self._visit(what, owner, read, 0, depths)
            for cls in list(self.classes.values()):
                self.todo += _methods(cls, None, self.free)

    def _walk_function(self, function: Any, bound: Any, local: dict[str, Any]) -> None:
        if (id(function), id(bound)) in self.seen or is_library(function):
            return
        self.seen.add((id(function), id(bound)))
        code = function.__code__
        if bound is not None and code.co_argcount:
            name = code.co_varnames[0]
            local = {**local, name: bound}
            self.owners[f"{function.__qualname__}: {name}"] = bound, functools.partial(itself, bound)
        for name, value in _defaults(function):
            self.add(f"{function.__qualname__}: {name}", value, functools.partial(itself, value))
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for kind, name, chain in _loads(code):
            read: Callable[[], Any]
            if kind == "global" and name in function.__globals__:
                read = functools.partial(function.__globals__.__getitem__, name)
            elif kind == "cell" and name in cells:
                read = functools.partial(getattr, cells[name], "cell_contents")
            elif kind == "local" and name in local:
                read = functools.partial(itself, local[name])
            else:
                self.free.update(chain)
                continue
            self._follow(f"{function.__qualname__}: {name}", read, chain)

    def _follow(self, what: str, read: Callable[[], Any], chain: tuple[str, ...]) -> None:
        """Add the value of a variable after as many attributes of its chain as exist."""
        try:
            value = read()
        except ValueError:  # an empty cell
            self.free.update(chain)
            return
        used: list[str] = []
        for k, name in enumerate(chain):
            if isinstance(value, (Tensor, np.ndarray)):
                break
            if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in LIBRARIES:
                return
            if isinstance(value, type):
                self.add("", value, read)
            try:
                after = getattr(value, name)
            except Exception:  # not there yet, or a property that raises
                self.free.update(chain[k:])
                return
            if isinstance(getattr(type(value), name, None), property):
                self.todo += _methods(type(value), value, {name})
            if isinstance(after, types.MethodType) and after.__self__ is value:
                self.values.append(after)
                self.todo += _functions(after, {})
                break  # a new object at each access: its owner is guarded
            value = after
            used.append(name)
        where = ".".join([what, *used])
        self.add(where, value, functools.partial(read_attributes, read, used) if used else read)

    def add(self, what: str, value: Any, read: Callable[[], Any]) -> None:
        """Add a variable, and the code that its value can run."""
        self.values.append(value)
        self._reach(value, 0)
        if not isinstance(value, _SKIPPED):
            self.found.setdefault(what, read)
            self.owners.setdefault(what, (value, read))

    def _reach(self, value: Any, depth: int) -> None:
        """Add the functions that a value is or contains, and the methods of the objects and classes in it."""
        if isinstance(value, type):
            if not is_library(value) and value.__module__ != "builtins":
                self.classes[id(value)] = value
        elif isinstance(value, CONTAINERS):
            for each in islice(value.values() if isinstance(value, dict) else value, _MOST):
                if depth < DEEPEST:
                    self._reach(each, depth + 1)
        elif isinstance(value, _FUNCTIONS):
            self.todo += _functions(value, {})
        elif hasattr(value, "__wrapped__"):  # a compiled function, or one with a cache
            self.todo += _functions(value.__wrapped__, {})
        elif hasattr(value, "named_parameters"):  # a module
            for module in value.modules():
                self.todo += _methods(type(module), module, self.free)
                for each in vars(module).values():  # such as a function that a layer was given
                    if isinstance(each, _FUNCTIONS):
                        self.todo += _functions(each, {})
        else:
            self.todo += _methods(type(value), value, self.free)

    def _visit(
        self, what: str, owner: Any, read: Callable[[], Any], depth: int, depths: dict[int, int]
    ) -> None:
        """Add those attributes of a user's object, and of the objects in it, whose names are free names.

        ``what`` and ``read`` are the name of the object ``owner`` and how to read it; ``depths`` has the
        objects that were visited.
        """
        if depth >= depths.get(id(owner), DEEPEST) or isinstance(owner, (*_FUNCTIONS, *_SKIPPED)):
            return
        depths[id(owner)] = depth
        if isinstance(owner, CONTAINERS):  # which is guarded itself: its elements stay the same objects
            pairs = owner.items() if isinstance(owner, dict) else enumerate(owner)
            for key, each in islice(pairs, _MOST):
                self._visit(f"{what}[{key!r}]", each, functools.partial(itself, each), depth + 1, depths)
            return
        self._reach(owner, depth)
        if is_library(type(owner)):
            return
        for name in _attributes(owner) & self.free:
            value = getattr(owner, name, _NOTHING)
            if value is _NOTHING:
                continue
            here = f"{what}.{name}"
            if here not in self.found and not isinstance(value, (*_SKIPPED, *_FUNCTIONS)):
                self.found[here] = functools.partial(read_attributes, read, [name])
            self._reach(value, depth)
            self._visit(here, value, functools.partial(read_attributes, read, [name]), depth + 1, depths)


class _Load(NamedTuple):
    """A variable that a code object loads, and the chain of attributes that is read from it."""

    kind: str  # "global", "cell", "local", or "free" for a value that has no name
    name: str
    chain: tuple[str, ...]


@functools.lru_cache(1024)
def _loads(outer: types.CodeType) -> list[_Load]:
    """Return the variables that a function loads, also in the functions and comprehensions inside it."""
    found = []
    for code in _codes(outer):
        instructions = [
            i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "NOP", "PUSH_NULL")
        ]
        if any(i.argval in _BY_NAME for i in instructions):
            found += [_Load("free", name, (name,)) for name in _strings(code.co_consts)]
        used = 0  # instructions before this one belong to a chain
        for n, i in enumerate(instructions):
            names = i.argval if isinstance(i.argval, tuple) else (i.argval,)  # two loads in one instruction
            kind = "free"
            if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                kind = "global"
            elif i.opname.startswith("LOAD") and "DEREF" in i.opname:
                kind = "cell"
            elif "LOAD_FAST" in i.opname and code is outer:
                kind = "local"
            elif i.opname not in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR") or n < used:
                continue
            chain = [i.argval] if kind == "free" else []
            for used in range(n + 1, len(instructions) + 1):
                if used == len(instructions) or instructions[used].opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                chain.append(instructions[used].argval)
            found += [_Load(kind, name, ()) for name in names[:-1]]
            found.append(_Load(kind, names[-1], tuple(chain)))
    return list(dict.fromkeys(found))


def _strings(constants: tuple[Any, ...]) -> Iterator[str]:
    """Yield the names of attributes among the constants of a function: "a" and "b" for "a.b"."""
    for c in constants:
        if isinstance(c, tuple):
            yield from _strings(c)
        elif isinstance(c, str):
            yield from (name for name in c.split(".") if name.isidentifier())


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and those of the functions and comprehensions inside it."""
    yield code
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from _codes(c)


def _defaults(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the defaults of a function."""
    code, defaults = function.__code__, function.__defaults__ or ()
    yield from zip(
        code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True
    )
    yield from (function.__kwdefaults__ or {}).items()


def _functions(f: Any, *local: Any) -> Iterator[Any]:
    """Yield the Python functions that calling ``f`` runs, with the object each is bound to, and ``local``."""
    while f is not None:
        if isinstance(f, functools.partial):
            f = f.func
        elif isinstance(f, types.MethodType):
            yield f.__func__, f.__self__, *local
            return
        elif isinstance(f, types.FunctionType):
            yield f, None, *local
            f = getattr(f, "__wrapped__", None)
        else:
            f = None if isinstance(f, type) else getattr(f, "forward", None) or getattr(f, "__call__", None)  # noqa: B004
            if not isinstance(f, types.MethodType):
                return


def _methods(cls: type, bound: Any, names: set[str]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield the methods of a user's class that Python calls without a name, and those with given names."""
    for c in cls.__mro__:
        if is_library(c) or c.__module__ == "builtins":
            continue
        for name, value in list(vars(c).items()):
            implicit = name.startswith("__") and (bound is None or name not in ("__init__", "__new__"))
            if not (implicit or name in names or name == "forward"):
                continue
            if isinstance(value, _BINDERS):
                owner = (
                    None
                    if isinstance(value, staticmethod)
                    else cls
                    if isinstance(value, classmethod)
                    else bound
                )
                value = (
                    getattr(value, "fget", None)
                    or getattr(value, "func", None)
                    or getattr(value, "__func__", None)
                )
            else:
                owner = bound
            if isinstance(value, types.FunctionType):
                yield value, owner, {}


def _attributes(owner: Any) -> set[str]:
    """Return the names of the data attributes of an object and of those of its classes that users wrote."""
    found = set(getattr(owner, "__dict__", ()))
    for c in type(owner).__mro__:
        if not is_library(c) and c.__module__ != "builtins":
            found |= {
                k for k, v in vars(c).items()
                if not isinstance(v, (*_BINDERS, *_FUNCTIONS)) and not k.startswith("__")
            }  # fmt: skip
    return found
