"""Hooks for calls: of user functions, of libraries, and of code that cannot be observed."""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import operator
import os
import pickle
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from copy import copy, deepcopy
from typing import Any

import numpy as np

from adjoint.compiler.guards.notes import DICT_VIEWS, INERT, is_empty, is_inert
from adjoint.compiler.guards.operations import PLAIN_CONTAINERS, Operations
from adjoint.compiler.guards.places import is_foreign, is_own, library_of, own_function
from adjoint.compiler.guards.reads import MISSING, assign
from adjoint.compiler.guards.values import BOUND, CONTAINERS, class_attribute, is_module
from adjoint.compiler.program.symbols import Number, Symbolic, plain
from adjoint.core.tensor import Tensor

__all__ = ["Calls", "copied"]

FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_LRU = type(functools.lru_cache(len))
_VIEWS = frozenset("T mT real imag ravel reshape squeeze swapaxes transpose view".split())
# methods of containers that store their arguments, and those that take the elements of their arguments
_STORING = frozenset("add append appendleft clear discard insert".split())
_TAKING = frozenset("extend extendleft update".split())
_FRAMES = frozenset(("inspect", "logging", "sys", "traceback", "warnings"))  # they look at their callers
_ITERATING = frozenset(
    (list, tuple, set, frozenset, deque, enumerate, zip, map, filter, iter, any, all, functools.reduce)
)
_READ_ELEMENTS = frozenset((sum, min, max, sorted))
_QUIET = frozenset(
    (isinstance, issubclass, callable, id, type, print, setattr, delattr, object, property, staticmethod,
     classmethod, Exception, range, slice, super, open, input, locals, globals, dir, eval, exec)
)  # fmt: skip
# special methods that built-in functions call, after the type that Python requires of their results
_CONVERSIONS: dict[Any, tuple[Any, ...]] = {
    float: (float, "__float__", "__index__"), int: (int, "__int__", "__index__", "__trunc__"),
    complex: (complex, "__complex__", "__float__"), bool: (bool, "__bool__", "__len__"),
    str: (str, "__str__", "__repr__"), repr: (str, "__repr__"), format: (str, "__format__", "__str__"),
    len: (int, "__len__"), abs: (None, "__abs__"), round: (None, "__round__"), hash: (None, "__hash__"),
}  # fmt: skip


class Calls(Operations):
    """Hooks that observe calls."""

    def _method(self, o: Any, name: str) -> Any:
        kind = type(o)
        if kind in INERT:
            f = getattr(o, name)
            return self._library(f, kind) if isinstance(o, Tensor) else self._reading(f)
        if isinstance(o, np.ndarray):
            return self._array_method(o, name)
        if kind in PLAIN_CONTAINERS or o is os.environ:
            return self._container_method(o, name)
        if kind is super:
            if name == "__call__" and isinstance(o.__self__, type):  # of a metaclass
                return self._constructor(o.__self__, plain=True)
            return self._call(self._of_super(o, name))
        # the variables of adjoint are part of the key
        if kind is ContextVar and name == "get" and not o.name.startswith("adjoint"):
            return lambda *default: self.note(
                o, "method", ("get", default, ()), o.get(*default), f"{o.name}.get()"
            )
        return self._call(self._attribute(o, name))

    def _array_method(self, a: Any, name: str) -> Any:
        f = getattr(a, name)
        if id(a) in self.local:
            return f

        def method(*args: Any, **kwargs: Any) -> Any:
            found = f(*args, **kwargs)
            if isinstance(found, (Tensor, Symbolic, type(None))):
                return found
            if name in _VIEWS and np.may_share_memory(found, a):
                return self.note(a, "method", (name, args, tuple(kwargs.items())), found)
            self.contents(a)
            return self.made(found)

        return method

    def _container_method(self, o: Any, name: str) -> Any:
        f = getattr(o, name)
        if name == "get":
            return functools.partial(self._get, o)
        if name == "setdefault":
            return lambda key, default=None: (
                self._item(o, key) if self._contains(o, key) else o.setdefault(key, default)
            )
        self._save(o)
        if id(o) not in self.local and name in _STORING | _TAKING:
            return functools.partial(self._taken, o, f, name in _TAKING)
        if name in _STORING:
            return f
        if name in _TAKING:
            return lambda *args, **kwargs: f(*map(self._whole, args), **kwargs)
        if id(o) in self.local and name != "sort":
            return self._reading(f)
        self._whole(o)
        return self._opaque(f, ())

    def _taken(self, o: Any, f: Any, elements: bool, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a container that stores its arguments, or their ``elements``."""
        if elements:
            args = tuple(map(self._whole, args))
        if type(o) is dict and (items := dict(*args, **kwargs) if elements else {}):
            return f({k: self.stored(v, o, "item", k) for k, v in items.items()})
        return f(*map(self.settled, args), **kwargs)

    def _get(self, o: Any, key: Any, default: Any = None) -> Any:
        self._use_key(key)
        value = self.note(o, "item", key, o.get(key, MISSING))
        return default if value is MISSING else value

    def _save(self, o: Any) -> None:
        """Keep a copy of a container, which a method may change."""
        fixed = isinstance(o, (tuple, frozenset, types.MappingProxyType, *DICT_VIEWS)) or o is os.environ
        if not fixed and id(o) not in self.local:
            self.saved.setdefault(id(o), (o, copy(o), len(self.log)))

    def _reading(self, f: Any) -> Any:
        """Return a method of a built-in object, which reads what its arguments reach."""
        use = self._use
        return lambda *args, **kwargs: f(*map(use, args), **{k: use(v) for k, v in kwargs.items()})

    def call(self, f: Any) -> Any:
        """Return a callable that observes a call of ``f``."""
        kind = type(f)
        if kind is types.FunctionType or kind is types.MethodType:
            inner = f if kind is types.FunctionType else f.__func__
            home = getattr(inner, "__globals__", {}).get("__name__")
            if home == "functools" and getattr(f, "registry", None) is not None:
                return functools.partial(self._dispatched, f)
            if isinstance(inner, types.FunctionType) and is_own(inner):
                made = self.observed(inner)
                return made if inner is f else types.MethodType(made, f.__self__)
            if home in _FRAMES and not isinstance(getattr(f, "__self__", None), inspect.Signature):
                return f
            if inner is copy or inner is deepcopy:
                return functools.partial(self._duplicated, f)
            made = self._rebuilt(f) if inner is f else f
            if library_of(inner):
                return self._library(made, inner)
            return self._opaque(made, plainly=made is f and _is_python(inner))
        if isinstance(f, functools.partial):
            self._all(f.keywords)
            return functools.partial(self.call(f.func), *f.args, **f.keywords)
        special = self._special(f)
        if special is not None:
            return special
        if isinstance(f, type):
            return self._constructor(f)
        own = self.special(f, "__call__")
        if own is not None:
            return own
        if isinstance(f, BOUND) and isinstance(f.__self__, CONTAINERS):
            return self._container_method(f.__self__, f.__name__)
        return self._library(f, f) if library_of(f) or is_module(f) else self._opaque(f)

    _call = call

    def _special(self, f: Any) -> Any:
        """Return the observed form of a function of the standard library that is treated in its own way."""
        kind = type(f)
        if kind is _LRU:
            return functools.partial(self._cached, f)
        if kind is operator.attrgetter or kind is operator.itemgetter or kind is operator.methodcaller:
            return functools.partial(self._got, f)
        if kind is weakref.ref:
            return lambda: self.note(f, "call", ((), ()), f(), "weakref")
        if f is os.getenv:
            return functools.partial(self._get, os.environ)
        try:
            found = _SPECIAL.get(f)
        except TypeError:  # an object without a hash
            return None
        if found is not None:
            return functools.partial(found, self, f)
        if kind is type or kind is types.BuiltinFunctionType:
            if f in _QUIET or getattr(f, "__module__", None) in ("time", "sys", "_warnings"):
                return f
            if f in _CONVERSIONS:
                return functools.partial(self._converted, f)
            if f is itertools.repeat:
                return None
            if f in _ITERATING or getattr(f, "__module__", None) == "itertools":
                return functools.partial(self._iterating, f)
            if f in _READ_ELEMENTS:
                return functools.partial(self._reducing, f)
        return None

    def _converted(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a built-in function, such as ``float``, that calls a special method of its argument."""
        if not args or type(args[0]) in INERT:
            return f(*args, **kwargs)
        x, *more = args
        wanted, *names = _CONVERSIONS[f]
        name = next((n for n in names if class_attribute(type(x), n) is not None), names[0])
        special = self.special(x, name)
        if special is not None:
            found = special(*more)
            if wanted is None or (type(found) is wanted and (f is not len or found >= 0)):
                return found
            return f(found) if wanted in (float, complex, bool) and type(found) in (int, float) else f(*args)
        if f is len:
            whole: Any = x.mapping if type(x) in DICT_VIEWS else x
            known = isinstance(whole, CONTAINERS) or is_module(x) or library_of(x)
            return self.note(whole, "fact", len, len(x)) if known else len(x)
        self._use(x, f in (str, repr, format, hash))
        return f(*args, **kwargs)

    def _iterating(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a built-in function, such as ``map``, that calls functions and iterates over its arguments."""
        if f is filter and args[0] is None:
            args = (self._truth, *args[1:])
        given = [
            self._iterate(a, f is itertools.starmap)
            if hasattr(type(a), "__iter__") and not isinstance(a, type)
            else self._called(a)
            for a in args
        ]
        if f in (any, all):
            given = [map(self._truth, *given)]
        return self.made(f(*given, **{k: self._called(v) for k, v in kwargs.items()}))

    def _called(self, f: Any) -> Any:
        """Return a function that C code calls, observed; other values as they are."""
        return self.call(f) if callable(f) and not is_module(f) else f

    def _copied(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a built-in function, such as ``dict``, that copies its argument."""
        return self.made(f(*map(self._whole, args), **kwargs))

    def _duplicated(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function that returns a copy of an object, or an object that is made from bytes."""
        found = self._opaque(f)(*args, **kwargs)
        todo, seen = [found], set()
        while todo:
            each = todo.pop()
            fixed = (
                is_inert(each) or is_module(each) or isinstance(each, (*FUNCTIONS, type, types.ModuleType))
            )
            if not fixed and id(each) not in seen and id(each) not in self.nodes:
                seen.add(id(each))
                todo += gc.get_referents(each)
        self.local |= seen
        return found

    def _reversed(self, f: Any, x: Any) -> Any:
        special = self.special(x, "__reversed__")
        if special is not None:
            return special()
        if id(x) not in self.local:
            (self._whole if isinstance(x, CONTAINERS) else self._use)(x)
        return self.made(f(x))

    def _reducing(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a built-in function, such as ``max``, that computes from the elements of its argument."""
        if f is sum:
            start = args[1] if len(args) > 1 else kwargs.get("start", 0)
            return functools.reduce(
                functools.partial(self._operate, "add"), iter(self._iterate(args[0])), start
            )
        if len(args) == 1:
            args = (self.made(list(self._iterate(args[0]))),)
        if "key" in kwargs:
            return self.made(f(*args, **{**kwargs, "key": self._called(kwargs["key"])}))
        return self._opaque(f)(*args, **kwargs)

    def _got(self, f: Any, o: Any) -> Any:
        """Call an ``attrgetter``, an ``itemgetter`` or a ``methodcaller``."""
        made, names = f.__reduce__()[:2]
        if type(f) is operator.methodcaller:
            if made is operator.methodcaller:
                return self._method(o, names[0])(*names[1:])
            return self._method(o, *made.args)(*names, **made.keywords)
        if type(f) is operator.itemgetter:
            found = [self._item(o, key) for key in names]
        else:
            found = [functools.reduce(self._attribute, name.split("."), o) for name in names]
        return found[0] if len(found) == 1 else tuple(found)

    def _cached(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function with ``functools.lru_cache``, and note its result."""
        if any(isinstance(a, (Tensor, Symbolic)) for a in (*args, *kwargs.values())):
            return f(*args, **kwargs)
        return self.note(
            f, "call", (args, tuple(kwargs.items())), f(*args, **kwargs), f"result of {f.__name__}"
        )

    def _dispatched(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function of ``functools.singledispatch``."""
        self._all(self.note(f, "attribute", "registry", f.registry))
        return self.call(f.dispatch(args[0].__class__))(*args, **kwargs)

    def _constructor(self, cls: type, plain: bool = False) -> Any:
        special = None if plain else self.special(cls, "__call__")
        if special is not None:
            return special
        make = class_attribute(cls, "__new__")
        new = own_function(make)
        self._static(cls, "__new__", make)
        if new is None and own_function(class_attribute(cls, "__init__")) is None:
            return self._library(cls, cls, new=True) if library_of(cls) else self._opaque(cls, new=True)

        def construct(*args: Any, **kwargs: Any) -> Any:
            if new is not None:
                made = self.observed(new)(cls, *args, **kwargs)
            else:
                make_one: Any = cls.__new__
                made = make_one(cls) if make_one is object.__new__ else make_one(cls, *args, **kwargs)
            if isinstance(made, cls):
                self.made(made)
                self.deep(class_attribute(cls, "__post_init__"))  # of a data class
                found = (self.special(made, "__init__") or getattr(made, "__init__"))(*args, **kwargs)  # noqa: B009
                if found is not None:
                    raise TypeError(f"__init__() should return None, not '{type(found).__name__}'")
            return made

        return construct

    def _library(self, f: Any, owner: Any, new: bool = False) -> Any:
        """Return a form of a library's callable that notes containers and observes functions it is given."""
        arrays = library_of(owner) in ("numpy", "scipy")
        if arrays and not isinstance(owner, (type, types.FunctionType)):
            for each in getattr(owner, "__dict__", {}).values():  # such as the function of ``np.vectorize``
                self.deep(each)

        makes = arrays and type(f) is types.BuiltinFunctionType  # such as ``np.zeros``

        def call(*args: Any, **kwargs: Any) -> Any:
            if arrays and not any(map(is_traced, (*args, *kwargs.values()))):
                for a in (*args, *kwargs.values()):
                    self.contents(a)
                    if isinstance(a, CONTAINERS):
                        self.deep(a)
            if makes:
                args, kwargs = plain(args), plain(kwargs)
            # a new object stores its arguments, which must stay the same functions
            given: Callable[[Any], Any] = self._given
            if new:
                given = lambda v: v if callable(v) else self._given(v)
            found = f(*map(given, args), **{k: given(v) for k, v in kwargs.items()})
            return self.made(found) if new or arrays or _is_new(found) else found

        return call

    def _given(self, value: Any) -> Any:
        """Return an argument of a library function: containers are noted, user functions are observed."""
        kind = type(value)
        if kind in INERT or isinstance(value, np.generic):
            return value
        if isinstance(value, np.ndarray):
            self.arrays[id(value)] = value
            return value
        if isinstance(value, FUNCTIONS):
            return self.call(value) if _is_user_function(value) else value
        if isinstance(value, CONTAINERS):
            self._all_inside(value)
            return value
        if not isinstance(value, type) and not is_module(value):
            special = self.special(value, "__call__")
            if special is not None:
                return special
            self.deep(value)
        if id(value) not in self.local:
            self._node(value)
        return value

    def _opaque(self, f: Any, used: Any = None, new: bool = False, plainly: bool = False) -> Any:
        """Return a form of C code, or of code of other packages, that notes all that its arguments reach.

        ``plainly`` means that it gets plain numbers in place of symbols: it may ask for the types of numbers.
        """

        def call(*args: Any, **kwargs: Any) -> Any:
            mark = len(self.log)
            if plainly:
                args, kwargs = self._settled(args, kwargs)
            owner = getattr(f, "__self__", None) if used is None else used
            places = self._used_by((*args, *kwargs.values(), owner), plainly)
            kwargs = {k: self._called(v) if k == "key" else v for k, v in kwargs.items()}
            try:
                found = self._tried(f, args, kwargs)
            finally:
                for read, number in places:
                    assign(read, read.parent.seen, number)
            owners = (*args, getattr(f, "__self__", None))
            changed = any(id(a) in self.local and isinstance(a, CONTAINERS) for a in owners)
            if found is None and not changed:  # nothing that it read is used
                self._forget(mark)
            for each in found if type(found) is tuple else ():  # such as a figure and its axes
                kind: Any = type(each)
                if is_foreign(kind):
                    self.made(each)
            # an object that nothing else holds
            alone = sys.getrefcount(found) <= 2  # ``found``, and the argument
            return self.made(found) if new or alone or _is_new(found) else found

        return call

    def _used_by(self, values: tuple[Any, ...], plainly: bool) -> list[tuple[Any, Any]]:
        """Note all that can be reached from values that code of another package reads.

        If ``plainly`` is true, places outside that hold symbols get their values, which are guarded; return
        these places and the symbols.
        """
        places: list[Any] = self.places() if plainly else []
        known = self.deeply
        if places:
            self.deeply = set()
        for each in values:
            self._use(each)
        reached = [r for r in places if id(r.parent.seen) in self.deeply]
        found: list[tuple[Any, Any]] = [(r, now) for r in reached if type(now := r.present()) is Number]
        for read, number in found:
            assign(read, read.parent.seen, number.fixed())
        self.deeply |= known
        return found

    def _settled(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments with plain numbers in place of symbols."""
        return tuple(map(self.settled, args)), {k: self.settled(v) for k, v in kwargs.items()}

    def _tried(self, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call C code, or code of other packages; if it does not accept symbols, pass it plain numbers."""
        try:
            return f(*args, **kwargs)
        except (TypeError, pickle.PicklingError):
            count = self.settles
            args, kwargs = self._settled(args, kwargs)
            if self.settles == count:
                raise
        return f(*args, **kwargs)

    def _rebuilt(self, f: Any, depth: int = 0) -> Any:
        """Return a function that is not the user's, with the user's functions in its closure observed."""
        cells = f.__closure__ or ()
        made = list(cells)
        for k, cell in enumerate(cells):
            if is_empty(cell):
                continue
            value = cell.cell_contents
            if isinstance(value, types.FunctionType) and not is_own(value) and depth < 8:
                better = self._rebuilt(value, depth + 1)
            else:
                called = None if isinstance(value, type) else class_attribute(type(value), "__call__")
                better = self._given(value) if isinstance(value, FUNCTIONS) or own_function(called) else value
            if better is not value:
                made[k] = types.CellType(better)
        if all(a is b for a, b in zip(made, cells, strict=True)):
            return f
        return copied(f, f.__code__, tuple(made))


def copied(f: types.FunctionType, code: types.CodeType, closure: tuple[Any, ...]) -> Any:
    """Return a copy of a function with other code and other closure variables."""
    made = types.FunctionType(code, f.__globals__, f.__name__, f.__defaults__, closure)
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        setattr(made, name, getattr(f, name))
    made.__dict__.update(f.__dict__)
    return made


def _is_python(f: Any) -> bool:
    """Return whether a callable is Python code that is not observed."""
    return isinstance(f, types.FunctionType) and not is_own(f)


def _is_user_function(value: Any) -> bool:
    """Return whether a function, or the function in a method or a partial function, is the user's."""
    while isinstance(value, (functools.partial, types.MethodType)):
        value = value.func if isinstance(value, functools.partial) else value.__func__
    if isinstance(value, types.FunctionType):
        return is_own(value) or bool(library_of(value))
    return isinstance(value, _LRU)


def _is_new(value: Any) -> bool:
    """Return whether a result of a library or of C code is taken to be a new object."""
    return type(value) in PLAIN_CONTAINERS or isinstance(value, np.ndarray) or hasattr(value, "__next__")


def is_traced(value: Any) -> bool:
    """Return whether a value, or an element of a container, is a tensor."""
    if isinstance(value, (list, tuple)):
        return any(map(is_traced, value))
    return isinstance(value, (Tensor, Symbolic))


def _get_attribute(observer: Calls, f: Any, o: Any, name: str, *default: Any) -> Any:
    try:
        return observer._attribute(o, name)
    except AttributeError:
        if default:
            return default[0]
        raise


def _type(observer: Calls, f: Any, *args: Any, **kwargs: Any) -> Any:
    number = len(args) == 1 and type(args[0]) is Number
    return args[0].kind if number else f(*args, **kwargs)


def _set_attribute(observer: Calls, f: Any, o: Any, name: str, value: Any) -> None:
    observer._store(value, o, name, False)


def _vars(observer: Calls, f: Any, *owner: Any) -> Any:
    if not owner:
        return dict(sys._getframe(1).f_locals)
    (o,) = owner
    found = vars(o)
    new = type(found) is not dict or isinstance(o, types.ModuleType)  # a view of a class
    return found if new else observer._attribute(o, "__dict__")


def _range(observer: Calls, f: Any, *args: Any, **kwargs: Any) -> Any:
    for a in args:
        if type(a) is Number:
            a.trace.note_range()
    return f(*args, **kwargs)


def _next(observer: Calls, f: Any, iterator: Any, *default: Any) -> Any:
    step = observer.special(iterator, "__next__")
    if step is None:
        if id(iterator) not in observer.local:
            observer._node(iterator)
        return next(iterator, *default)
    return next(observer._by(step, StopIteration), *default)


_SPECIAL: dict[Any, Any] = {
    getattr: _get_attribute, next: _next, type: _type, range: _range, vars: _vars,
    setattr: _set_attribute, reversed: Calls._reversed,
    dict: Calls._copied, OrderedDict: Calls._copied,
    pickle.loads: Calls._duplicated,
    hasattr: lambda *args: _get_attribute(*args, MISSING) is not MISSING,
}  # fmt: skip
