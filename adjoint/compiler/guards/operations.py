"""Hooks for the operations of Python: attributes, items, iteration, membership, truth and operators."""

from __future__ import annotations

import functools
import itertools
import operator
import os
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from adjoint.compiler.guards.notes import DICT_VIEWS, INERT, Notes, _index, is_inert
from adjoint.compiler.guards.places import is_foreign, is_own_class, own_function
from adjoint.compiler.guards.reads import MISSING, elements_of
from adjoint.compiler.guards.values import BOUND, CONTAINERS, class_attribute, is_library, is_module
from adjoint.compiler.program.symbols import Number, Symbolic
from adjoint.core.roles import MatrixRole
from adjoint.core.tensor import Tensor, Traced
from adjoint.core.user_code import LIBRARIES

__all__ = ["PLAINLY", "PLAIN_CONTAINERS", "Operations"]

PLAIN_CONTAINERS = frozenset((*CONTAINERS, *DICT_VIEWS))
_PLAIN_OPERANDS = PLAIN_CONTAINERS | (INERT - {Tensor, Traced, Symbolic, Number})
_WORDS = "add and floordiv lshift matmul mod mul or pow rshift sub truediv xor".split()
_UNARY = {name: getattr(operator, name) for name in ("neg", "pos", "invert")}
OPERATIONS: dict[str, Any] = {
    **_UNARY,
    **{name: getattr(operator, f"__{name}__") for name in (*_WORDS, *"eq ne lt le gt ge".split())},
    **{f"i{name}": getattr(operator, f"i{name}") for name in _WORDS},
    "contains": lambda item, container: item in container,
}


def _assign(value: Any, owner: Any, key: Any, item: bool) -> None:
    (operator.setitem if item else setattr)(owner, key, value)


def _augment(op: str, place: tuple[Any, Any, Any, bool], value: Any) -> None:
    _assign(OPERATIONS[op](place[0], value), *place[1:])


# what the hooks do when nothing is observed
PLAINLY: dict[str, Any] = {
    "attribute": getattr, "augment": _augment, "imported": lambda *_: None, "item": operator.getitem,
    "method": getattr, "operate": lambda op, *operands: OPERATIONS[op](*operands),
    "place": lambda owner, key, item: ((operator.getitem if item else getattr)(owner, key), owner, key, item),
    "slice": slice, "store": _assign,
    **dict.fromkeys(("stored", "variable"), lambda name, value: value),
    **dict.fromkeys("call context iterate local text truth use visible".split(), lambda x, *_: x),
}  # fmt: skip
_GROUP = type(next(itertools.groupby("a"))[1])  # the iterators that ``groupby`` makes
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


class Operations(Notes):
    """Hooks that note what operators and statements read."""

    observed: Callable[[Any], Any]  # returns a copy of a user function with hooks
    call: Callable[[Any], Any]  # returns a callable that observes a call of its argument

    def _local(self, value: Any) -> Any:
        self.local.add(id(value))
        return value

    def _stored(self, space: dict[str, Any], cells: dict[str, Any], name: str, value: Any) -> Any:
        """Note that the function assigns to a variable: it reads its own value later.  Return the value."""
        place = (cells[name], "attribute", "cell_contents") if name in cells else (space, "item", name)
        value = self.stored(value, *place)
        self.written.setdefault((id(space), _index("", name)), space)
        return value

    def _store(self, value: Any, owner: Any, key: Any, item: bool) -> None:
        """Assign to an attribute or an item, which is the function's own from then on."""
        value = self.stored(value, owner, "item" if item else "attribute", key)
        PLAINLY["store"](value, owner, key, item)
        kind: Any = type(owner)
        if is_foreign(kind):  # its code may read the value later
            self._use(value)
        if kind not in INERT and not isinstance(owner, np.ndarray) and id(owner) not in self.local:
            self.written.setdefault((id(owner), _index("", key)), owner)

    def _place(self, owner: Any, key: Any, item: bool) -> tuple[Any, Any, Any, bool]:
        """Return the value of an attribute or an item, and the place to which ``_augment`` assigns."""
        return (self._item if item else self._attribute)(owner, key), owner, key, item

    def _augment(self, op: str, place: tuple[Any, Any, Any, bool], value: Any) -> None:
        """Assign the result of an operator such as ``+=`` to a place."""
        old, owner, key, item = place
        if item and isinstance(old, Tensor):  # the item of a tensor cannot be changed in place
            op = op[1:]
        self._store(self._operate(op, old, value), owner, key, item)

    def _visible(self, names: Any) -> Any:
        """Return the result of ``locals()`` without the variables of hooks."""
        if isinstance(names, dict):
            return self._local({k: v for k, v in names.items() if not k.startswith("@")})
        return [name for name in names if not name.startswith("@")]

    _slice = staticmethod(slice)

    def _static(self, cls: type, name: str, static: Any) -> None:
        """Note the attribute of a class as it is stored there."""
        if is_own_class(cls):
            self.note(cls, "static", name, static, f"{cls.__qualname__}.{name}")

    def special(self, o: Any, name: str) -> Any:
        """Return a special method of an object, observed, if it is user code; else None."""
        kind = type(o)
        static = class_attribute(kind, name, MISSING)
        self._static(kind, name, static)
        function = own_function(static)
        if function is None:
            return None
        made = self.observed(function)
        if isinstance(static, staticmethod):
            return made
        return types.MethodType(made, kind if isinstance(static, classmethod) else o)

    def _attribute(self, o: Any, name: str) -> Any:
        kind = type(o)
        if kind in INERT:
            return getattr(o, name)
        if isinstance(o, np.ndarray):
            value = getattr(o, name)
            if isinstance(value, np.flatiter):
                self.contents(o)
            return self._viewed(o, "attribute", name, value) if isinstance(value, np.ndarray) else value
        if isinstance(o, types.ModuleType):
            return self._of_python_module(o, name)
        if isinstance(o, type):
            return self._of_class(o, name)
        if kind is super:
            return self._of_super(o, name)
        if kind in PLAIN_CONTAINERS:
            return getattr(o, name)
        if issubclass(kind, MatrixRole):
            return getattr(self.deep(o), name)
        try:
            return self._of_object(o, kind, name)
        except AttributeError:
            special = self.special(o, "__getattr__")
            if special is None:
                raise
            return special(name)

    def _getter(self, static: Any, o: Any, cls: type, name: str) -> Any:
        """Return a function that gets an attribute by the code of a user's descriptor; None for others.

        ``o`` is the object, or None for the class itself.
        """
        if isinstance(static, property):
            get = None if o is None else own_function(static.fget)
            made = None if get is None else functools.partial(self.observed(get), o)
        else:
            get = self.special(static, "__get__")
            made = None if get is None else functools.partial(get, o, cls)
        if made is not None:
            self._static(cls, name, static)
        return made

    def _computed(self, o: Any, kind: type, value: Any) -> Any:
        """Return an attribute that a library makes at each access from what the object ``o`` stores."""
        for each in vars(o):
            self.deep(self._of_object(o, kind, each))
        return value

    def _of_super(self, o: Any, name: str) -> Any:
        classes = o.__self_class__.__mro__
        for cls in classes[classes.index(o.__thisclass__) + 1 :]:
            found = vars(cls).get(name, MISSING)
            if found is not MISSING:
                self._static(cls, name, found)
                get = self._getter(found, o.__self__, cls, name)
                return getattr(o, name) if get is None else get()
            if is_own_class(cls):
                self.note(cls, "own", name, False)
        return getattr(o, name)

    def _of_python_module(self, o: Any, name: str) -> Any:
        value = getattr(o, name)
        return value if o.__name__.partition(".")[0] in LIBRARIES else self.note(o, "attribute", name, value)

    def _of_class(self, cls: type, name: str) -> Any:
        static = class_attribute(cls, name, MISSING)
        if static is not MISSING and not is_own_class(cls):
            return getattr(cls, name)
        if static is MISSING and is_own_class(type(cls)):
            return self._of_object(cls, type(cls), name)
        if static is MISSING or not hasattr(type(static), "__get__"):
            return self._value_of(cls, name)
        self._static(cls, name, static)
        get = self._getter(static, None, cls, name)
        return getattr(cls, name) if get is None else get()

    def _value_of(self, o: Any, name: str) -> Any:
        """Return and note an attribute that is stored in an object."""
        try:
            value = getattr(o, name)
        except AttributeError:
            self.note(o, "attribute", name, MISSING)
            raise
        space = getattr(o, "__dict__", {})
        if value is space:
            self._vary_in(o, value, "attribute")
        method = issubclass(type(value), (*BOUND, types.MethodType)) and value.__self__ is o
        if method and name not in space:  # new at each access
            return value
        missing = type(value) is types.FunctionType and name not in space and hasattr(o, "__dict__")
        if missing and is_library(type(o)) and class_attribute(type(o), name, self) is self:
            return self._computed(o, type(o), value)  # by ``__getattr__``: a method of a frozen distribution
        if id(o) in self.local:
            if name in space:
                return self.note(space, "item", name, value) if id(space) in self.nodes else value
            self._static(type(o), name, class_attribute(type(o), name))
            return value
        return self.note(o, "attribute", name, value)

    def _of_object(self, o: Any, kind: type, name: str) -> Any:
        if id(o) not in self.local:
            self._node(o)
        special = self.special(o, "__getattribute__")
        if special is not None:
            return special(name)
        static = class_attribute(kind, name, MISSING)
        own = getattr(o, "__dict__", None) or {}
        if isinstance(static, functools.cached_property) and name not in own:
            value = self.call(static.func)(o)
            o.__dict__[name] = value
            return self.note(o, "attribute", name, value)
        if name not in own or hasattr(type(static), "__set__"):
            get = self._getter(static, o, kind, name)
            if get is not None:
                return get()
        if name not in own and _makes_methods(static):
            self._static(kind, name, static)
            if is_own_class(kind) and hasattr(o, "__dict__"):
                self.note(o, "own", name, False)
            return getattr(o, name)
        if static is MISSING and name not in own and self.special(o, "__getattr__") is not None:
            self.note(o, "own", name, False)
            self.note(kind, "static", name, MISSING)
            raise AttributeError(name)
        if is_module(o) and (name in own or static is not MISSING):
            value = getattr(o, name)
            if isinstance(value, Tensor) or is_module(value) or not is_own_class(kind):
                self.names.setdefault(id(value), f"{self._what(o)}.{name}")
                return value
        return self._value_of(o, name)

    def _viewed(self, array: Any, kind: str, key: Any, view: Any) -> Any:
        """Note a view of an array, whose elements are noted where they are read."""
        return self.note(array, kind, key, view) if id(array) not in self.local else self.made(view)

    def _item(self, o: Any, key: Any) -> Any:
        kind = type(o)
        if kind in INERT:
            self._use_key(key)
            return o[key]
        if isinstance(o, np.ndarray):
            return self._array_item(o, key)
        special = self.special(o, "__getitem__")
        if special is None and isinstance(o, type):
            function = own_function(class_attribute(o, "__class_getitem__"))
            cls: Any = o
            return cls[key] if function is None else self.observed(function)(o, key)
        if special is not None:
            return special(key)
        if isinstance(o, CONTAINERS) or o is os.environ:
            return self._container_item(o, key)
        if not is_library(kind):
            self.deep(o)
        return o[key]

    def _container_item(self, o: Any, key: Any) -> Any:
        self._use_key(key)
        try:
            missing = self.special(o, "__missing__")
            if missing is not None and key not in o:
                self.note(o, "has", key, False)
                return missing(key)
            value = o[key]
        except (KeyError, IndexError):
            self.note(o, "item", key, MISSING)
            raise
        if isinstance(key, slice):
            self.note(o, "all", None, elements_of(o))
            return self.made(value)
        return self.note(o, "item", key, value)

    def _array_item(self, a: Any, key: Any) -> Any:
        value = a[key]
        if isinstance(value, (Tensor, Symbolic)):
            self._use_key(key)
            return value
        if id(a) in self.local:
            return value
        parts = key if isinstance(key, tuple) else (key,)
        if not all(p is None or p is ... or isinstance(p, (int, np.integer, slice)) for p in parts):
            for p in parts:
                self.contents(p)
            self.contents(a)
            return self.made(value)
        if isinstance(value, np.ndarray):
            return self._viewed(a, "item", key, value)
        return self.note(a, "item", key, value)

    def _iterate(self, x: Any, unpacked: bool = False) -> Any:
        """Note what iteration over ``x`` reads; ``unpacked`` means that its elements are unpacked, too."""
        found = self._iterated(x)
        if not unpacked or type(x) in INERT or isinstance(x, np.ndarray):
            return found
        whole: Any = x
        if isinstance(x, DICT_VIEWS):
            self._all_inside(elements_of(whole.mapping))
        elif isinstance(x, CONTAINERS):
            for each in whole:
                self._opened(each)
        else:
            return self._unpacked(found)
        return found

    def _opened(self, x: Any) -> None:
        """Note what unpacking ``x`` reads."""
        (self._all_inside if isinstance(x, CONTAINERS) else self._use)(x)

    def _unpacked(self, iterator: Any) -> Iterator[Any]:
        """Yield the elements of an iterator, and note what unpacking them reads; new tuples are not noted."""
        for each in iterator:
            if id(each) in self.nodes:
                self._opened(each)
            elif type(each) is tuple:
                for part in each:
                    if id(part) in self.nodes:
                        self._all_inside(part)
            yield each

    def _iterated(self, x: Any) -> Any:
        kind = type(x)
        if kind in INERT:
            return x
        start = self.special(x, "__iter__")
        if start is not None:
            return self._steps(start())
        if id(x) in self.local or kind is _GROUP:
            return self.made(x)
        if kind in DICT_VIEWS:
            self._all(x.mapping)
            return x
        if isinstance(x, np.ndarray):
            self.contents(x)
        elif isinstance(x, (dict, types.MappingProxyType, weakref.WeakSet)):
            self.note(x, "fact", tuple, tuple(x))
        elif isinstance(x, CONTAINERS):
            self._all(x)
        elif hasattr(kind, "__iter__") or self.special(x, "__getitem__") is None:
            if not is_library(kind) and self.special(x, "__next__") is None:
                self._node(x)
            return self._steps(x)
        else:
            items = itertools.count()
            return self._by(lambda: self._item(x, next(items)), IndexError)
        return x

    def _steps(self, iterator: Any) -> Any:
        """Return an iterator, with its ``__next__`` observed if that is user code."""
        step = self.special(iterator, "__next__")
        return iterator if step is None else self._by(step, StopIteration)

    def _by(self, step: Any, end: type[Exception]) -> Iterator[Any]:
        """Yield the results of ``step()`` until it raises ``end``."""
        while True:
            try:
                value = step()
            except end:
                return
            yield value

    def _whole(self, x: Any) -> Any:
        """Note all elements of a value that C code copies; return the value."""
        if x is os.environ:
            self._all(self.note(x, "attribute", "_data", vars(x)["_data"], "os.environ"))
        elif isinstance(x, CONTAINERS):
            self._all(x)
        elif hasattr(x, "keys"):
            self.deep(x)
        else:
            return self._iterate(x, True)
        return x

    def _contains(self, container: Any, item: Any) -> Any:
        kind = type(container)
        if kind not in INERT and id(container) not in self.local:
            special = self.special(container, "__contains__")
            if special is not None:
                return bool(special(item))
            if container is os.environ or isinstance(
                container, (dict, set, frozenset, types.MappingProxyType, DICT_VIEWS[0])
            ):
                self._use_key(item)
                keys: Any = container
                found = item in keys
                keys = keys.mapping if isinstance(container, DICT_VIEWS) else keys
                return self.note(keys, "has", item, found)
            if self.special(container, "__iter__") is not None:
                return any(each is item or each == item for each in self._iterate(container))
            if isinstance(container, CONTAINERS):
                self._all(container)
                for each in elements_of(container):
                    self._operand(each)
            else:
                self._use(container)
        self._operand(item)
        return item in container

    def _truth(self, x: Any) -> Any:
        """Note what a test of ``x`` reads; return its truth, or ``x`` itself if Python is to test it."""
        if type(x) in INERT:
            return x
        for name, kind in (("__bool__", bool), ("__len__", int)):
            special = self.special(x, name)
            if special is not None:
                found = special()
                return found > 0 if type(found) is kind and found >= 0 else x  # else Python raises
            if class_attribute(type(x), name) is not None:
                break
        if isinstance(x, np.ndarray):
            self.contents(x)
        elif isinstance(x, CONTAINERS):
            self.note(x, "fact", bool, bool(x))
        return x

    def _operate(self, op: str, a: Any, *rest: Any) -> Any:
        """Return the result of the operator ``op`` for one or two operands."""
        if op == "contains":
            return self._contains(rest[0], a)
        f = OPERATIONS[op]
        if type(a) in INERT and all(type(b) in INERT for b in rest):
            return f(a, *rest)
        for x in (a, *rest):
            if isinstance(x, MatrixRole):
                self.deep(x)
        for method, operands in self._methods_of(op, a, *rest):
            found = method(*operands)
            if found is not NotImplemented:
                return found
        if not any(isinstance(x, (Tensor, Symbolic)) for x in (a, *rest)):
            for x in (a, *rest):
                (self._all if isinstance(x, CONTAINERS) and op not in _MIRRORED else self._operand)(x)
            found = f(a, *rest)
            return self.made(found) if not is_inert(found) and found is not a else found
        return f(a, *rest)

    def _methods_of(self, op: str, a: Any, *rest: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """Yield the user's special methods for an operator, in the order in which Python calls them."""
        base = op[1:] if op[1:] in _WORDS else op
        if op in _UNARY:
            tries: list[tuple[Any, str, tuple[Any, ...]]] = [(a, f"__{op}__", ())]
        else:
            (b,) = rest
            same = type(a) is type(b) and op not in _MIRRORED
            mirrored = f"__{_MIRRORED.get(op, 'r' + base)}__"
            tries = [(a, f"__{base}__", (b,)), *([] if same else [(b, mirrored, (a,))])]
            kinds = type(a), type(b)
            if kinds[0] is not kinds[1] and issubclass(kinds[1], kinds[0]):
                first, second = (class_attribute(k, mirrored) for k in kinds)
                if first is not second:
                    tries.reverse()
            if base != op:
                tries.insert(0, (a, f"__{op}__", (b,)))
        for x, name, operands in tries:
            method = self.special(x, name)
            if method is not None:
                yield method, operands
            elif x is a and class_attribute(type(a), name) is not None and _goes_first(a, op):
                return

    def _context(self, manager: Any) -> Any:
        kind = type(manager)
        own = any(own_function(class_attribute(kind, name)) for name in ("__enter__", "__exit__"))
        return _Context(self, manager) if own else manager


def _goes_first(x: Any, op: str) -> bool:
    """Return whether Python calls the method of ``x``, such as an array, before that of a user's object."""
    return type(x) not in _PLAIN_OPERANDS or (op == "mod" and isinstance(x, (str, bytes)))


class _Context:
    """A user's context manager whose methods are observed."""

    def __init__(self, observer: Operations, manager: Any) -> None:
        self.observer, self.manager = observer, manager

    def _run(self, name: str, *args: Any) -> Any:
        found = self.observer.special(self.manager, name)
        return getattr(self.manager, name)(*args) if found is None else found(*args)

    def __enter__(self) -> Any:
        return self._run("__enter__")

    def __exit__(self, *error: Any) -> Any:
        return self._run("__exit__", *error)


def _makes_methods(static: Any) -> bool:
    """Return whether an attribute of a class makes a new object at each access, as functions do."""
    return hasattr(type(static), "__get__") and not hasattr(type(static), "__set__")
