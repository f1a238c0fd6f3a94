"""Find the Python values that a function reads, from its bytecode and from the user's code that it calls.

A *variable* is a global, a closure variable or an argument that is not traced, followed by a chain of
attributes (``cfg.model.rate``).  Attributes of other values, such as local variables, are *free names*: any
object that the code reaches may have an attribute of this name.

The code of the library is not searched, only the functions in its closures.  A class of the library whose
methods read state that may change names these attributes in ``_guarded``.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import operator
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from adjoint.compiler.bytecode import EVERY, ITEM, asked, loads
from adjoint.compiler.guards import (
    BOUND,
    CACHES,
    CONTAINERS,
    DEEPEST,
    MAPPINGS,
    Names,
    class_attribute,
    home,
    is_library,
    is_module,
    itself,
    read_attributes,
    snapshot,
)
from adjoint.compiler.uses import UNKNOWN, Uses, uses_in
from adjoint.core.tensor import Tensor
from adjoint.core.user_code import LIBRARIES, Position

__all__ = ["Reads", "named_reads"]

_MOST = 100  # at most this many elements of a container are visited
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_SKIPPED = (types.ModuleType, type, types.BuiltinFunctionType)
_UNSEEN = (*_FUNCTIONS, *_SKIPPED)
_INERT = frozenset((Tensor, np.ndarray, int, float, complex, bool, str, bytes, type(None)))  # run no code
_BINDERS = (staticmethod, classmethod, property, functools.cached_property)
_GETTERS = (operator.attrgetter, operator.methodcaller)
# methods of containers and files that change the object and read nothing from it
_READ_NOTHING = frozenset(
    ("add", "append", "appendleft", "clear", "discard", "extend", "insert", "remove", "update", "write")
)
_NOTHING = object()
# Modules of the standard library whose code is searched, because they contain or wrap the user's functions.
# The others are skipped: they read thousands of variables (logging does), and some change all the time.
_SEARCHED = frozenset(("collections", "_collections_abc", "contextlib", "functools", "types", "weakref"))
# Methods of objects of installed packages that do not use adjoint; only attributes they read are guarded.
_ACCESS = ("__call__", "__contains__", "__getattr__", "__getitem__", "__iter__", "__len__")
_INSTALLED, _MOST_INSTALLED = ("site-packages", "dist-packages"), 200  # functions that are searched there
_FOREIGN = (frozenset(sys.stdlib_module_names) - _SEARCHED) | LIBRARIES


class Reads(NamedTuple):
    """The variables that a function reads.

    ``variables`` maps a description of each to a function that returns its value.  ``values`` has the present
    values, and the modules in them with their submodules.  ``uses`` is as ``Uses.found``.
    """

    variables: dict[str, Callable[[], Any]]
    values: list[Any]
    uses: dict[int, set[Position | None]]


def named_reads(f: Any, objects: dict[str, Any]) -> Reads:
    """Find the variables that ``f``, and the user code that it calls, read.

    ``objects`` has the arguments of ``f`` that are not traced, by name.
    """
    walk = _Walk()
    if isinstance(f, functools.partial):
        walk.add_bound(f)
    walk.todo += _functions(f, objects)
    for name, value in {**objects, str(getattr(f, "__name__", type(f).__name__)): f}.items():
        walk.owners[name] = value, functools.partial(itself, value)
    for value in objects.values():
        walk._reach(value, 0)
    walk.run()
    return Reads(walk.found, walk.values, walk.uses.found)


class _Walk:
    """Searches all user code that a function can call for the variables that it reads."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.uses = Uses()
        self.asked: set[str] = set()  # attributes that the code reads only if they exist
        self.unstable: set[tuple[int, str]] = set()  # objects and attributes that are new at each access
        self.found: dict[str, Callable[[], Any]] = {}
        # functions to search, the objects they are bound to (or None), and their known local variables
        self.todo: list[tuple[Any, Any, dict[str, Any]]] = []
        self.seen: set[tuple[int, int]] = set()
        self.free: set[str] = set()  # free names (see the module docstring)
        self.owners: dict[str, tuple[Any, Callable[[], Any]]] = {}  # objects found, and how to read them
        self.classes: dict[int, type] = {}
        self.added: set[Any] = set()  # the keys of arguments of partial functions and of context variables
        self.installed = 0  # how many functions of installed packages were searched
        self.names: dict[str, Any] = {}  # the key of the variable that has each name
        self.modules: set[int] = set()  # the ids of the modules that were found
        self.trees: dict[int, list[Any]] = {}  # by the id of a module: modules of the user's classes in it

    def run(self) -> None:
        """Search until nothing new is found: code found later may name attributes of earlier objects."""
        size = None
        while True:
            while self.todo:
                self._walk_function(*self.todo.pop())
            now = len(self.found), len(self.seen), len(self.free), len(self.classes), len(self.asked)
            if now == size:
                self.uses.computed |= EVERY in self.free
                self.uses.note_attributes()
                return
            size = now
            depths: dict[int, int] = {}
            for what, (owner, read) in list(self.owners.items()):
                self._visit(what, owner, read, 0, depths)
            for cls in list(self.classes.values()):
                self.todo += _methods(cls, None, self._names())
                for name in _class_attributes(cls) & self.free:  # the code may create objects of this class
                    value = _attribute(cls, name)
                    if value is not _NOTHING:
                        self.uses.hold(name, value)
                        read = functools.partial(read_attributes, functools.partial(itself, cls), [name])
                        self.add(f"{cls.__qualname__}.{name}", value, read, (id(cls), name))

    def _walk_function(self, function: Any, bound: Any, local: dict[str, Any]) -> None:
        if (id(function), id(bound)) in self.seen:
            return
        if not isinstance(function, types.FunctionType):  # a method whose function is not Python code
            return
        other = _is_installed(function.__code__) and not _uses_adjoint(function)
        if _is_foreign(function) or (other and (bound is None or function.__name__ not in _ACCESS)):
            self._walk_library(function, bound)
            return
        if _is_installed(function.__code__):
            self.installed += 1
            if self.installed > _MOST_INSTALLED:
                return
        self.seen.add((id(function), id(bound)))
        code = function.__code__
        where = function.__qualname__
        if bound is not None and code.co_argcount:
            name = code.co_varnames[0]
            local = {**local, name: bound}
            if getattr(class_attribute(type(bound), function.__name__), "fget", None) is function:
                self.uses.properties.add(code)
            what = self._name(type(bound).__qualname__, ("local", id(bound), ()))
            self.owners[what] = bound, functools.partial(itself, bound)
        if not _is_installed(code) and not _is_standard(function):
            of_code = functools.partial(read_attributes, functools.partial(itself, function), ["__code__"])
            self.found.setdefault(self._name(f"{where}: code", ("code", id(function))), of_code)
        for name, value in _defaults(function):
            self.add(f"{where}: {name}", value, functools.partial(itself, value), (id(function), name))
            self.uses.note_local(value, code, name)
        self.uses.codes[code] = None
        self.asked |= asked(code)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        space = function.__globals__
        for kind, name, names in loads(code):
            read: Callable[[], Any]
            key: tuple[Any, Any]
            if other and kind != "local":
                continue
            if kind == "global" and name in space:
                key, read = (id(space), name), functools.partial(space.__getitem__, name)
            elif kind == "import" and (module := _module(name, space)) in sys.modules:
                key, read = ("module", module), functools.partial(sys.modules.__getitem__, module)
            elif kind == "cell" and name in cells:
                cell = cells[name]
                key, read = ("cell", id(cell)), functools.partial(getattr, cell, "cell_contents")
            elif kind in ("local", "cell") and name in local:
                key, read = ("local", id(local[name])), functools.partial(itself, local[name])
            elif other:
                continue
            else:
                self._add_free(names, code)
                continue
            with suppress(ValueError):  # an empty cell
                for use in uses_in(code).get((kind, name), ()):
                    self.uses.note(read(), use)
            own = kind == "local" and bound is not None and local[name] is bound
            self._follow(type(bound).__qualname__ if own else f"{where}: {name}", read, names, key)

    def _add_free(self, chain: Sequence[str], code: types.CodeType | None = None) -> None:
        """Add the names in a chain of attributes to the free names.

        Computed names in ``code`` of installed packages are left out: any attribute of any object would be
        guarded.
        """
        if EVERY in chain and code is not None and _is_installed(code):
            chain = [name for name in chain if name != EVERY]
        self.free.update(chain)
        self.free.discard(ITEM)

    def _names(self) -> set[str] | None:
        """Return the free names; None if a free name is computed, so that it can be any name."""
        return None if EVERY in self.free else self.free

    def _walk_library(self, function: types.FunctionType, bound: Any) -> None:
        """Search the user's functions in the closure of a library function, such as a schedule."""
        self.seen.add((id(function), id(bound)))
        is_op = "op" in function.__code__.co_freevars
        for cell in (function.__closure__ or ()) if not _is_standard(function) else ():
            with suppress(ValueError):  # an empty cell
                if not (is_op and isinstance(cell.cell_contents, BOUND)):  # it reads a cache of the op
                    self._reach(cell.cell_contents, 0)

    def _name(self, what: str, key: Any) -> str:
        """Return ``what``, with a number appended if it is the name of a variable with another key."""
        name, n = what, 1
        while self.names.setdefault(name, key) != key:
            n += 1
            name = f"{what} ({n})"
        return name

    def _follow(
        self, what: str, read: Callable[[], Any], chain: tuple[str, ...], key: tuple[Any, Any]
    ) -> None:
        """Follow a chain of attributes from a variable, and add the value that is reached.

        ``what`` is the name of the variable, ``read`` returns its value, and ``key`` identifies it.  If an
        attribute does not exist, the rest of the chain is added to the free names.
        """
        try:
            value = read()
        except ValueError:  # an empty cell
            self._add_free(chain)
            return
        used: list[str] = []
        for k, name in enumerate(chain):
            if name == ITEM or isinstance(value, (Tensor, np.ndarray, ContextVar)):
                break
            if isinstance(value, (type, types.ModuleType)):
                self.add(".".join([what, *used]), value, _chained(read, used), (*key, tuple(used)))
            if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in LIBRARIES:
                return
            if name == EVERY:
                self._add_every(what, read, used, value, key)
                break
            if isinstance(class_attribute(type(value), name), property):
                self.todo += _methods(type(value), value, {name})
            after = _attribute(value, name)
            if after is not _NOTHING and not self._is_new_kind(value, name, after):
                self._add_free(chain[k + 1 :])
                return
            if after is _NOTHING:
                self.asked.add(name)
                self._add_free(chain[k:])
                self.owners.setdefault(".".join([what, *used]), (value, _chained(read, used)))
                return
            if isinstance(after, types.MethodType) and after.__self__ is value:
                self.values.append(after)
                self.todo += _functions(after, {})
                self.asked.add(name)  # an attribute of the object would replace it
                break  # each access makes a new method object, so its owner is guarded instead
            if _owner(after) is value:  # such as ``cfg.get``, which reads ``cfg``
                break
            value = after
            self.uses.hold(name, value)
            used.append(name)
        if value is os.environ or value is os.getenv:  # they read this dictionary
            space = functools.partial(read_attributes, functools.partial(itself, os.environ), ["_data"])
            self._add_once("os.environ", space, ("environ",))
        where = ".".join([what, *used])
        self.add(where, value, _chained(read, used), (*key, tuple(used)))

    def _is_new_kind(self, owner: Any, name: str, value: Any) -> bool:
        """Return whether to search ``value``, the attribute ``name`` of ``owner``.

        An attribute that is a new object at each access is searched once for each class: a property may
        return a new object of its own class.
        """
        read = functools.partial(read_attributes, functools.partial(itself, owner), [name])
        if isinstance(value, (types.MethodType, *BOUND)) or _is_stable(value, read):
            return True
        key = id(type(owner)), name
        if key in self.unstable:
            return False
        self.unstable.add(key)
        return True

    def _add_every(
        self, what: str, read: Callable[[], Any], used: list[str], value: Any, key: tuple[Any, Any]
    ) -> None:
        """Add all attributes of ``value``, and search the code of all its methods.

        This is needed where the name of the attribute is computed, as in ``getattr(cfg, name)``.  ``value``
        is reached from the variable ``what`` by the attributes ``used``; ``read`` and ``key`` are as in
        ``_follow``.
        """
        self.uses.computed = True
        if isinstance(value, types.ModuleType):
            names = {name for name in vars(value) if not name.startswith("__")}
        elif isinstance(value, type):
            names = _class_attributes(value)
        elif is_library(type(value)):
            return
        else:
            names = _attributes(value)
            self.todo += _methods(type(value), value, None)
            if hasattr(value, "__dict__"):
                self.found[f"attributes of {what}"] = Names(vars(value), None)
        for name in names:
            self._follow(what, read, (*used, name), key)

    def add(self, what: str, value: Any, read: Callable[[], Any], key: Any) -> None:
        """Add a variable, and search the code that its value can run.

        ``what`` is its name in messages, ``read`` returns its value, and ``key`` identifies it.
        """
        self.values.append(value)
        self._reach(value, 0)
        fixed = isinstance(value, _SKIPPED) and isinstance(read, functools.partial) and read.func is itself
        if not _is_stable(value, read):
            return
        constant = fixed or _is_constant(what, value)
        what = self._name(what, key)
        if not constant:
            self.found.setdefault(what, read)
        self.owners.setdefault(what, (value, read))

    def add_bound(self, f: functools.partial[Any]) -> None:
        """Add the arguments that are stored in a partial function."""
        for k, value in (*enumerate(f.args), *f.keywords.items()):
            what = f"argument {k} of a partial function"
            self._add_once(what, functools.partial(itself, value), ("partial", id(f), k))

    def _add_once(self, what: str, read: Callable[[], Any], key: Any) -> None:
        """Add a variable unless it was added before, because a value may contain itself.

        The arguments are as in ``add``.
        """
        if key not in self.added:
            self.added.add(key)
            self.uses.note(read(), UNKNOWN)
            self.add(what, read(), read, key)

    def _reach(self, value: Any, depth: int) -> None:
        """Add to the search the functions that a value is or contains, and methods of objects and classes."""
        if type(value) in _INERT and not _has_objects(value):
            return
        if isinstance(value, type):
            if not _is_foreign(value):
                self.classes[id(value)] = value
                self.todo += _methods(type(value), value, self._names())  # of a metaclass
        elif isinstance(value, BOUND):
            if (owner := _owner(value)) is not None:
                self._add_once(
                    f"owner of {value.__name__}", functools.partial(itself, owner), ("owner", id(owner))
                )
        elif isinstance(value, CONTAINERS) or _has_objects(value):
            self.todo += _methods(type(value), value, self._names())
            for each in islice(_elements(value), _MOST):
                if depth < DEEPEST:
                    self._reach(each, depth + 1)
        elif isinstance(value, _FUNCTIONS):
            if isinstance(value, functools.partial):
                self.add_bound(value)
                self._reach(value.func, depth)
            self.todo += _functions(value, {})
        elif isinstance(value, _GETTERS):
            self.uses.computed = True
            texts = [s for s in value.__reduce__()[1] if isinstance(s, str)]
            self.free.update(name for s in texts for name in s.split("."))
        elif isinstance(value, weakref.ref):
            self._add_once("weakref", functools.partial(value), ("weakref", id(value)))
        elif isinstance(value, ContextVar):
            self._add_once(f"{value.name}.get()", functools.partial(value.get, None), ("context", id(value)))
        elif "__wrapped__" in getattr(value, "__dict__", ()):  # compiled, or with a cache or a derivative
            if depth < DEEPEST:
                self._reach(value.__wrapped__, depth + 1)
                for each in _cached(value):
                    what = f"result of {value.__name__}"
                    self._add_once(what, functools.partial(itself, each), ("result", id(each)))
            self.todo += _methods(type(value), value, self._names())
            self._add_functions_of(value)
        elif is_module(value):
            own = self.trees.get(id(value))
            if own is None:
                modules = list(value.modules())
                classes: list[type] = list(map(type, modules))
                own = [m for m, cls in zip(modules, classes, strict=True) if _own_classes(cls)]
                self.trees[id(value)] = own
                for module in modules:
                    self._reach_module(module, depth)
            for module in own:
                self.todo += _methods(type(module), module, self._names())
        else:
            self.todo += _methods(type(value), value, self._names())
            self._add_state(value)
            self._add_functions_of(value)

    def _reach_module(self, module: Any, depth: int) -> None:
        """Add a module to ``values``, and search the functions that it stores."""
        if id(module) in self.modules:
            return
        self.modules.add(id(module))
        self.values.append(module)
        self._add_state(module)
        library = is_library(type(module)) and not hasattr(type(module), "_guarded")
        if not is_library(type(module)):
            read = functools.partial(itself, module)
            self.owners[self._name(type(module).__name__, ("module", id(module)))] = module, read
        for name, each in vars(module).items():  # such as a distance function passed to a loss
            if type(each) in _INERT or name in CACHES or is_module(each):
                continue
            if library or isinstance(each, _FUNCTIONS):
                self._reach(each, depth)

    def _add_state(self, value: Any) -> None:
        """Add the attributes of a library's object that its methods read, such as the rate of a schedule."""
        for name in getattr(type(value), "_guarded", ()):
            read = functools.partial(read_attributes, functools.partial(itself, value), [name])
            self._add_once(f"{type(value).__name__}.{name}", read, (id(value), name))

    def _add_functions_of(self, value: Any) -> None:
        """Add the functions that an object of a library stores, such as a user's derivative rules."""
        library = is_library(type(value)) and not hasattr(type(value), "_guarded")
        for name, each in getattr(value, "__dict__", {}).items() if library else ():
            if isinstance(each, _FUNCTIONS):
                read = functools.partial(read_attributes, functools.partial(itself, value), [name])
                self._add_once(f"{type(value).__name__}.{name}", read, (id(value), name))

    def _visit(
        self, what: str, owner: Any, read: Callable[[], Any], depth: int, depths: dict[int, int]
    ) -> None:
        """Add the attributes of a user's object, and of the objects in it, that the code may read.

        These are the attributes whose names are free names.  ``what`` is the name of the object ``owner``,
        and ``read`` returns the object.  ``depths`` has the depth at which each object was visited, by its
        id.
        """
        if type(owner) is np.ndarray:
            self.found.setdefault(what, read)
            if _has_objects(owner):
                self.found.setdefault(f"elements of {what}", functools.partial(np.ndarray.tolist, owner))
        inert = type(owner) in _INERT and not _has_objects(owner)
        if inert or not _has_attributes(owner) or depth >= depths.get(id(owner), DEEPEST):
            return
        depths[id(owner)] = depth
        if isinstance(owner, CONTAINERS) or _has_objects(owner):  # guarded, so its elements do not change
            pairs = owner.items() if isinstance(owner, MAPPINGS) else enumerate(_elements(owner))
            for key, each in islice(pairs, _MOST):
                name = repr(key) if type(key) in _INERT else type(key).__name__
                self._visit(f"{what}[{name}]", each, functools.partial(itself, each), depth + 1, depths)
                self._visit(f"key {name} of {what}", key, functools.partial(itself, key), depth + 1, depths)
            if not hasattr(owner, "__dict__"):
                return
        self._reach(owner, depth)
        if is_library(type(owner)) and is_module(owner):  # all of its attributes are guarded
            return
        names = _attributes(owner)
        every = EVERY in self.free and not _is_other(type(owner))
        if not every:
            names &= self.free
        self._add_names(what, owner, every)
        for name in names:
            value = _attribute(owner, name)
            if value is _NOTHING:
                continue
            here = f"{what}.{name}"
            inner = functools.partial(read_attributes, read, [name])
            if not _is_stable(value, inner):  # search it once, because each access makes a new object
                if (id(type(owner)), name) not in self.unstable:
                    self.unstable.add((id(type(owner)), name))
                    self.values.append(value)
                    self._reach(value, depth)
                continue
            if not _is_constant(here, value):
                self.found.setdefault(here, inner)
            self.uses.hold(name, value)
            self._reach(value, depth)
            self._visit(here, value, inner, depth + 1, depths)

    def _add_names(self, what: str, owner: Any, every: bool) -> None:
        """Guard which attributes an object ``owner`` has itself, among those that may exist later.

        These are attributes that the code asks for, and methods, which an attribute of the object replaces.
        If ``every`` is true, these are all attributes.
        """
        space = getattr(owner, "__dict__", None)
        if type(space) is not dict or isinstance(owner, types.FunctionType) or is_library(type(owner)):
            return
        methods = {name for name in self.free if isinstance(class_attribute(type(owner), name), _FUNCTIONS)}
        wanted = (self.asked | methods) - set(space)
        if every:
            self.found[f"attributes of {what}"] = Names(space, None)
        elif wanted:
            self.found[f"attributes of {what}"] = Names(space, frozenset(wanted))


_ALIASES = {"numpy": "np", "adjoint": "ad", "adjoint.nn.functional": "F"}  # usual names of modules


def _is_installed(code: types.CodeType) -> bool:
    """Return whether code belongs to an installed package."""
    return _is_installed_file(code.co_filename)


@functools.lru_cache(1024)
def _is_installed_file(path: str) -> bool:
    return any(f"{os.sep}{name}{os.sep}" in path for name in _INSTALLED)


def _uses_adjoint(function: types.FunctionType) -> bool:
    """Return whether a function, or a module of its package, has imported something of adjoint."""
    space = function.__globals__
    imported = [load.name.partition(".")[0] for load in loads(function.__code__) if load.kind == "import"]
    package = str(space.get("__name__", "")).partition(".")[0]
    return (
        "adjoint" in imported
        or any(map(_is_ours, [*space.values()]))
        or _imports_adjoint(package, len(sys.modules))
    )


@functools.lru_cache(64)
def _imports_adjoint(package: str, _: int) -> bool:
    """Return whether a module of a package has imported something of adjoint.

    The second argument is the number of modules that are imported: if it has changed, look again.
    """
    modules = [m for name, m in [*sys.modules.items()] if name.partition(".")[0] == package]
    return any(_is_ours(v) for m in modules for v in [*getattr(m, "__dict__", {}).values()])


def _is_other(cls: type) -> bool:
    """Return whether a class belongs to an installed package that does not use adjoint."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return _is_installed_file(file) and not _imports_adjoint(home(cls), len(sys.modules))


def _is_ours(value: Any) -> bool:
    """Return whether a value is adjoint, or a module, a function or a class of it."""
    if type(value) is types.ModuleType:
        return value.__name__.partition(".")[0] == "adjoint"
    return isinstance(value, (type, types.FunctionType)) and home(value) == "adjoint"


def _chained(read: Callable[[], Any], used: list[str]) -> Callable[[], Any]:
    """Return a function that reads the attributes ``used``, one of the other, of ``read()``."""
    return functools.partial(read_attributes, read, used) if used else read


def _elements(container: Any) -> Iterable[Any]:
    """Return the elements of a container or an array of objects; the keys of a dictionary too."""
    if isinstance(container, np.ndarray):
        return container.ravel().tolist()
    return chain(container, container.values()) if isinstance(container, MAPPINGS) else container


def _has_objects(value: Any) -> bool:
    """Return whether a value is an array of Python objects."""
    return type(value) is np.ndarray and value.dtype.hasobject


def _is_constant(what: str, value: Any) -> bool:
    """Return whether a variable need not be guarded: it has the name of the imported object that it holds.

    Examples are ``np``, ``math`` and ``partial``.  ``what`` ends with the name of the variable.
    """
    if not isinstance(value, _SKIPPED):
        return False
    name = str(getattr(value, "__name__", ""))
    variable = what.rpartition(": ")[2].rpartition(".")[2]
    if isinstance(value, types.ModuleType):
        return variable in (name.rpartition(".")[2], _ALIASES.get(name))
    return (_is_foreign(value) or _is_standard(value)) and variable == name


def _is_stable(value: Any, read: Callable[[], Any]) -> bool:
    """Return whether ``read`` returns the same value again.

    A property that makes a new object at each access does not.  Its code is searched instead.
    """
    if not isinstance(read, functools.partial) or read.func is not read_attributes:
        return True
    try:
        again = read()
    except Exception:
        return False
    return again is value or bool(snapshot(again) == snapshot(value))


def _has_attributes(owner: Any) -> bool:
    """Return whether the attributes of an object may be variables of the user's program."""
    if isinstance(owner, types.ModuleType):
        top = owner.__name__.partition(".")[0]
        own = top not in LIBRARIES and top not in sys.stdlib_module_names
        return own and not _is_installed_file(vars(owner).get("__file__") or "")
    if isinstance(owner, types.FunctionType):
        return bool(vars(owner)) and not _is_foreign(owner)
    return not isinstance(owner, _UNSEEN)


def _cached(function: Any) -> list[Any]:
    """Return the results that a function with ``functools.cache`` or ``lru_cache`` has kept."""
    if not hasattr(function, "cache_info"):
        return []
    found: list[Any] = []
    for each in gc.get_referents(function):
        found += each.values() if type(each) is dict and each is not vars(function) else [each]
    kept = (np.ndarray, *CONTAINERS)
    return [v for v in found[:_MOST] if isinstance(v, kept) or not _is_foreign(type(v))]


def _is_standard(function: Any) -> bool:
    """Return whether a function or a class belongs to the standard library."""
    return home(function) in sys.stdlib_module_names


def _is_foreign(function: Any) -> bool:
    """Return whether a function or a class belongs to a library, so that its code is not searched."""
    return home(function) in _FOREIGN


def _attribute(owner: Any, name: str) -> Any:
    """Return the attribute ``name`` of ``owner``; ``_NOTHING`` if it does not exist or reading it raises."""
    try:
        return getattr(owner, name)
    except Exception:
        return _NOTHING


def _owner(method: Any) -> Any:
    """Return the object that a built-in method, such as ``cfg.get``, reads; None for other values."""
    owner = method.__self__ if isinstance(method, BOUND) and method.__name__ not in _READ_NOTHING else None
    return None if isinstance(owner, (types.ModuleType, type)) else owner


def _module(name: str, space: dict[str, Any]) -> str:
    """Return the full name of the module that code imports as ``name``; ``space`` has the code's globals."""
    try:
        return importlib.util.resolve_name(name, space.get("__package__") or space.get("__name__"))
    except ImportError:
        return name


def _defaults(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the default value of each parameter that has a default."""
    code, defaults = function.__code__, function.__defaults__ or ()
    yield from zip(
        code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True
    )
    yield from (function.__kwdefaults__ or {}).items()


def _functions(f: Any, *local: Any) -> Iterator[Any]:
    """Yield (function, object it is bound to, *local) for each Python function that ``f(...)`` runs."""
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
            names = () if isinstance(f, type) else ("forward", "__call__")
            f = next((each for n in names if isinstance(each := _attribute(f, n), types.MethodType)), None)
            if not isinstance(f, types.MethodType):
                return


@functools.lru_cache(1024)
def _own_classes(cls: type) -> list[type]:
    """Return a class and its bases, without those of libraries."""
    return [c for c in cls.__mro__ if not _is_foreign(c)]


def _methods(cls: type, bound: Any, names: set[str] | None) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield (function, object it is bound to, {}) for the methods of a user's class that may be called.

    These are the methods in ``names``, special methods, which Python calls, and methods that override those
    of a library, which the library calls.  If ``names`` is None, all methods are yielded.
    """
    own = _own_classes(cls)
    if not own:
        return
    overridden = {name for c in cls.__mro__ if c not in own for name in vars(c)}
    for c in own:
        for name, value in list(vars(c).items()):
            implicit = name.startswith("__") or name in overridden
            if bound is not None and name in ("__init__", "__new__"):
                implicit = False
            if not (implicit or names is None or name in names):
                continue
            owner = bound
            if isinstance(value, staticmethod):
                value, owner = value.__func__, None
            elif isinstance(value, classmethod):
                value, owner = value.__func__, cls
            elif isinstance(value, property):
                value = value.fget
            elif isinstance(value, functools.cached_property):
                value = value.func
            if isinstance(value, types.FunctionType):
                yield value, owner, {}


def _attributes(owner: Any) -> set[str]:
    """Return the names of the attributes of an object and of the data attributes of its classes.

    Classes of libraries are left out.
    """
    return set(getattr(owner, "__dict__", ())) | _class_attributes(type(owner))


def _class_attributes(cls: type) -> set[str]:
    """Return the names of the data attributes of a class and its bases, without those of libraries."""
    found = set()
    for c in cls.__mro__:
        if home(c) not in LIBRARIES and home(c) != "builtins":
            found |= {
                k for k, v in vars(c).items()
                if not isinstance(v, (*_BINDERS, types.FunctionType)) and not k.startswith("__")
            }  # fmt: skip
    return found
