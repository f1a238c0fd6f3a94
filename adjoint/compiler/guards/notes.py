"""Note what is read from objects, as a tree of reads."""

from __future__ import annotations

import functools
import os
import threading
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from adjoint.compiler.guards.places import is_foreign, is_own, is_own_class, own_function
from adjoint.compiler.guards.reads import MISSING, Read, Reads, assign, contents_of, elements_of, is_place
from adjoint.compiler.guards.rewrite import codes_in
from adjoint.compiler.guards.values import (
    CONTAINERS,
    DEEPEST,
    MAPPINGS,
    class_attribute,
    is_library,
    is_module,
    is_plain,
)
from adjoint.compiler.program.symbols import NUMBERS, UNKNOWN, Number, Symbolic, plain
from adjoint.core.roles import MatrixRole
from adjoint.core.tensor import Tensor, Traced

__all__ = ["DICT_VIEWS", "INERT", "Notes", "is_empty", "is_inert", "names_of"]

INERT = frozenset(
    (
        Tensor,
        Traced,
        Symbolic,
        Number,
        int,
        float,
        complex,
        bool,
        str,
        bytes,
        type(None),
        range,
        slice,
        type(...),
    )
)
DICT_VIEWS: tuple[type, ...] = tuple(type(getattr({}, name)()) for name in ("keys", "values", "items"))


_CALLED_BY_C = (
    "__eq__", "__lt__", "__gt__", "__le__", "__ge__", "__hash__", "__str__", "__repr__", "__format__",
    "__add__", "__radd__", "__iter__", "__getitem__", "__len__", "__bool__", "__float__", "__index__",
)  # fmt: skip


class Notes:
    """Notes what is read while user functions run.

    ``first(value)`` is called with each object from outside when it is seen for the first time, before the
    function can change it.
    """

    def __init__(self, first: Callable[[Any], None]) -> None:
        self.first = first
        self.roots: list[Read] = []
        self.nodes: dict[int, Read] = {}  # the read that returned an object, by the id of the object
        # ids of objects that were created inside.  They are not kept alive, so that their finalizers run: if
        # an id is used again, the new object was created inside, too.
        self.local: set[int] = set()
        self.names: dict[int, str] = {}  # names of objects that need no guard, by id
        self.log: list[tuple[Read, Any, Read]] = []  # parent, key and child of each read, in order
        self.codes: dict[int, Any] = {}  # codes with hooks, by id
        self.copies: list[Any] = []  # see ``stand_in``
        self.arrays: dict[int, Any] = {}  # arrays that were passed to adjoint, by id
        self.deeply: set[int] = set()  # ids of objects of which all is noted
        self.written: dict[tuple[int, Any], Any] = {}  # owners of places that the function has assigned to
        self.saved: dict[int, tuple[Any, Any, int]] = {}  # containers that may be changed, see ``Reads``
        self.thread = threading.get_ident()
        # numbers that are inputs of the program: the keys of their places, the reads with their symbols, and
        # the function that makes the symbol for a read
        self.varying: Collection[Any] = ()
        self.numbers: list[tuple[Read, Any]] = []
        self.stores: dict[tuple[int, Any], Read] = {}  # places that get a symbol, and what was there before
        self.number: Callable[[Read], Any] = lambda read: read.seen
        self.settles = 0  # how many symbols were replaced by their values

    def root(self, value: Any, what: str) -> None:
        """Give a name to a fixed object, such as an argument of the function."""
        if not is_inert(value):
            self._node(value, what)

    def stand_in(self, copy: Any, value: Any) -> None:
        """Take what is read from ``copy``, a copy of an argument, as read from ``value``."""
        self.nodes[id(copy)] = self._node(value)
        self.note(value, "attribute", "__dict__", vars(value))
        self.nodes[id(vars(copy))] = self.nodes[id(vars(value))]
        self.copies.append(copy)

    def _node(self, value: Any, what: str = "", seen: bool = True) -> Read:
        found = self.nodes.get(id(value))
        if found is None:
            name = what or self.names.get(id(value)) or _name(value)
            found = self.nodes[id(value)] = Read(None, "", None, value, name)
            self.roots.append(found)
            if seen and not (type(value) is types.GeneratorType and id(value.gi_code) in self.codes):
                self.first(value)
        return found

    def note(self, owner: Any, kind: str, key: Any, value: Any, what: str = "") -> Any:
        """Note that ``value`` was read from ``owner``; return it.  ``what`` is its name in messages."""
        if id(owner) in self.local or threading.get_ident() != self.thread:
            return value
        if self.written and (id(owner), _index("", key)) in self.written:
            return value
        if type(key) is not str:
            key = plain(key)
        # not all variables of a module are read
        parent = self._node(owner, seen=not (type(owner) is dict and "__builtins__" in owner))
        index = _index(kind, key)
        if index in parent.children:
            return value
        child = Read(parent, kind, key, value, what or _path(parent.what, kind, key))
        kind_of_owner: Any = type(owner)
        child.weak = parent.weak or is_foreign(kind_of_owner)
        parent.children[index] = child
        self.log.append((parent, index, child))
        if self.varying and child.place() in self.varying:
            return self._vary(child)
        if type(value) is Number and (found := self._place_of(value)):  # another way to a variable
            child.seen, child.varies = found.seen, True
            return value
        if not is_inert(value) and id(value) not in self.local:
            known = self.nodes.setdefault(id(value), child)
            if known is child:
                self.first(value)
            elif known.parent is not None:
                known.shared = child.shared = True
        return value

    def _vary(self, read: Read) -> Any:
        """Return the symbol of a number that the program reads at each call, which the variable gets."""
        assert read.parent is not None
        read.varies = True
        number = self.number(read)
        self.numbers.append((read, number))
        assign(read, read.parent.seen, number)
        return number

    def places(self) -> list[Read]:
        """Return the places outside that hold symbols, as reads of what they held before."""
        return [*(read for read, _ in self.numbers), *self.stores.values()]

    def _place_of(self, number: Any) -> Read | None:
        return next((r for r in self.places() if r.present() is number), None)

    def _before(self, value: Any) -> Any:
        """Return an element of a container; for a symbol, what was in its place before the trace."""
        found = self._place_of(value) if type(value) is Number else None
        return value if found is None else found.seen

    def _vary_in(self, owner: Any, space: Any, kind: str) -> None:
        """Give symbols to the numbers in a dictionary, or in the attributes of an object, that vary."""
        if self.varying and id(owner) not in self.local:
            what = self._what(owner)
            for key, value in [*space.items()]:
                if type(value) in NUMBERS and (_path(what, kind, key), kind) in self.varying:
                    self.note(owner, kind, key, value)

    def put_back(self, failed: bool = False) -> None:
        """Assign plain numbers to the variables that have symbols: those from before the trace.

        If the trace has ``failed``, assign those that the function has computed, as in eager mode.
        """
        for read, _ in self.numbers:
            assert read.parent is not None
            now = read.present()
            if type(now) is Number:
                assign(read, read.parent.seen, now.now if failed and now.now is not UNKNOWN else read.seen)
            elif type(now) in NUMBERS and not failed:
                assign(read, read.parent.seen, read.seen)
        for read in self.stores.values():
            assert read.parent is not None
            if type(now := read.present()) is Number:
                assign(read, read.parent.seen, now.now if failed and now.now is not UNKNOWN else read.seen)

    def stored(self, value: Any, owner: Any, kind: str, key: Any) -> Any:
        """Return the value that the function is about to assign to an attribute or an item.

        If it is a symbol, the program makes this assignment at each call, or the symbol is replaced by its
        value, which is guarded.
        """
        if id(owner) in self.local or is_inert(owner) or isinstance(owner, np.ndarray):
            return value
        if type(value) is not Number or not is_place(owner, kind, key):
            return self.settled(value)
        parent, known = self._node(owner), (id(owner), _index(kind, key))
        if known not in self.stores:
            read = Read(parent, kind, key, MISSING, _path(parent.what, kind, key))
            read.seen = read.present()
            if type(read.seen) is not Number:
                self.stores[known] = read
        return value

    def settled(self, value: Any, depth: int = 0) -> Any:
        """Return a value that is stored outside, with plain numbers in place of the symbols in it."""
        kind = type(value)
        if kind is Number:
            self.settles += 1
            return value.fixed()
        if depth == DEEPEST or kind in INERT:
            return value
        if kind is tuple and any(type(v) is Number for v in value):
            return tuple([self.settled(v, depth + 1) for v in value])
        inside = value if kind is dict else getattr(value, "__dict__", None)
        if id(value) in self.local and (kind is list or type(inside) is dict):
            target: Any = value if kind is list else inside
            for k, v in list(enumerate(value) if kind is list else target.items()):
                if (new := self.settled(v, depth + 1)) is not v:
                    target[k] = new
        return value

    def restart(self, number: Callable[[Read], Any], varying: Collection[Any]) -> None:
        """Start again, for another trace of the same function; ``number`` makes the symbol for a read.

        ``varying`` are the keys of the places of numbers that get symbols.
        """
        self.put_back()
        self.reads().set_back()
        self.written.clear()
        self.stores.clear()
        old, self.numbers, self.number, self.varying = self.numbers, [], number, varying
        for read, _ in old:
            read.varies = False
            if varying:
                self._vary(read)

    def reads(self) -> Reads:
        """Return what was read until now."""
        return Reads(self.roots, [child for _, _, child in self.log], list(self.saved.values()))

    def _forget(self, mark: int) -> None:
        """Remove the reads that were noted after ``mark``, a length of the log."""
        for parent, index, child in self.log[mark:]:
            del parent.children[index]
            if self.nodes.get(id(child.seen)) is child:
                del self.nodes[id(child.seen)]
            self.deeply.discard(id(child.seen))
        del self.log[mark:]

    def made(self, value: Any) -> Any:
        """Note that an object was created inside; return it."""
        if not is_inert(value) and id(value) not in self.nodes:
            self.local.add(id(value))
        return value

    def _what(self, o: Any) -> str:
        found = self.nodes.get(id(o))
        return self.names.get(id(o)) or _name(o) if found is None else found.what

    def contents(self, value: Any) -> None:
        """Note the elements of an array; nothing for other values."""
        if type(value) in INERT or not isinstance(value, np.ndarray) or id(value) in self.local:
            return
        self.note(value, "fact", contents_of, contents_of(value))
        if value.dtype.hasobject:
            for each in value.ravel().tolist():
                self.deep(each)

    def _all(self, x: Any) -> None:
        """Note all elements of a container."""
        constant = type(x) is tuple and id(x) not in self.nodes and all(map(is_inert, x))
        if constant or id(x) in self.local or isinstance(x, DICT_VIEWS):
            return
        if isinstance(x, MAPPINGS):
            self._vary_in(x, x, "item")
        elements = elements_of(x)
        self.note(x, "all", None, tuple(map(self._before, elements)) if self.places() else elements)
        parent = self.nodes[id(x)].children.get(_index("all", None))
        if parent is None:
            return
        count = len(elements) // 2 if isinstance(x, MAPPINGS) else 0
        for k, each in enumerate(elements):
            if not is_inert(each) or type(each) is Number:
                key = elements[k - count] if count and k >= count else k
                self.nodes.setdefault(id(parent.seen), parent)
                self.note(parent.seen, "element", k, each, _path(self._what(x), "item", key))

    def _all_inside(self, container: Any) -> None:
        """Note all elements of a container, and of the containers in it."""
        todo, seen = [container], set()
        while todo:
            each = todo.pop()
            if isinstance(each, np.ndarray):
                self.arrays[id(each)] = each
            if id(each) in seen or not isinstance(each, CONTAINERS):
                continue
            seen.add(id(each))
            self._all(each)
            todo += elements_of(each)

    def _use(self, x: Any, operand: bool = False) -> Any:
        """Note all that can be reached from a value that C code, or only an operator, reads; return it."""
        if type(x) not in INERT:
            (self._operand if operand else self.deep)(x)
        return x

    def _use_key(self, key: Any) -> None:
        if type(key) not in INERT and not isinstance(key, (np.generic, np.ndarray)):
            self._operand(key)

    def _operand(self, x: Any) -> None:
        """Note what an operator reads of ``x``: nothing, if its class has no special methods of its own."""
        if not is_own_class(type(x)) or isinstance(x, CONTAINERS) or _own_methods(type(x)):
            self._use(x)

    def deep(self, value: Any) -> Any:
        """Note all that can be reached from a value; return the value."""
        todo = [value]
        while todo:
            each = todo.pop()
            if is_inert(each) or id(each) in self.deeply or isinstance(each, (type, types.ModuleType)):
                continue
            kind = type(each)
            if isinstance(each, np.ndarray):
                self.contents(each)
            elif kind is memoryview or (hasattr(kind, "__array__") and not is_library(kind)):  # a Series
                self.note(each, "fact", contents_of, contents_of(each))
            elif not is_plain(each):
                todo += self._inside(each, kind)
        return value

    def _inside(self, each: Any, kind: type) -> Iterable[Any]:
        """Note what a value directly contains; return it."""
        todo: list[Any] = []
        if isinstance(each, types.MethodType):
            return each.__self__, each.__func__
        if isinstance(each, types.FunctionType):
            self.deeply.add(id(each))
            return self._names_in(each) if is_own(each) and id(each.__code__) not in self.codes else ()
        if isinstance(each, functools.partial):
            return *each.args, *each.keywords.values()
        if isinstance(each, CONTAINERS):
            self.deeply.add(id(each))
            self._all(each)
            todo += elements_of(each)
        elif is_module(each):
            self._node(each)
        elif isinstance(each, MatrixRole):
            self.made(each)  # the result of a derivative or an op, if it was not read from a variable
            return [self.note(each, "attribute", name, value) for name, value in vars(each).items()]
        if is_library(kind) or not (is_own_class(kind) or kind is types.SimpleNamespace):
            return todo
        if id(each) in self.local and is_foreign(kind):  # what it was given has been noted
            return todo
        self.deeply.add(id(each))
        space = getattr(each, "__dict__", None)
        if type(space) is dict:
            self._vary_in(each, space, "attribute")
            if id(each) in self.local and id(space) not in self.nodes:
                self.local.add(id(space))
            self.note(each, "attribute", "__dict__", space, f"attributes of {self._what(each)}")
            todo.append(space)
        slots = [self.note(each, "attribute", n, getattr(each, n, MISSING)) for n in _slots(kind)]
        return *todo, *slots, *_own_methods(kind), *self._class_data(kind)

    def _class_data(self, kind: type) -> list[Any]:
        """Note the data in a user's class and its bases, such as ``rate = 0.1``; return them."""
        return [
            self.note(cls, "static", name, value)
            for cls in kind.__mro__
            if is_own_class(cls) and not is_foreign(cls)  # not the constants of another package
            for name, value in vars(cls).items()
            if not (name[0] == name[-1] == "_")
            and not callable(value)
            and not hasattr(type(value), "__get__")
        ]

    def _names_in(self, f: types.FunctionType) -> list[Any]:
        """Note the variables that the code of a function names; return their values."""
        where, found = f.__qualname__, []
        for name in sorted(names_of(f.__code__) & f.__globals__.keys()):
            value = f.__globals__[name]
            found.append(self.note(f.__globals__, "item", name, value, f"{where}: {name}"))
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
            if not is_empty(cell):
                value = cell.cell_contents
                found.append(self.note(cell, "attribute", "cell_contents", value, f"{where}: {name}"))
        return [*found, f.__defaults__, f.__kwdefaults__]


def names_of(code: types.CodeType) -> set[str]:
    """Return the names of variables and attributes in code and in the functions in it."""
    return {name for each in codes_in(code) for name in each.co_names}


def is_empty(cell: Any) -> bool:
    """Return whether a closure variable has no value yet."""
    try:
        return cell.cell_contents is MISSING
    except ValueError:
        return True


def _slots(kind: type) -> list[str]:
    """Return the names of the attributes that objects of a class store in slots."""
    member = types.MemberDescriptorType
    return [name for cls in kind.__mro__ for name, value in vars(cls).items() if isinstance(value, member)]


def _own_methods(kind: type) -> list[Any]:
    """Return the special methods of a user's class that C code may call."""
    found = [own_function(class_attribute(kind, name)) for name in _CALLED_BY_C]
    return [f for f in found if f is not None]


def is_inert(value: Any) -> bool:
    """Return whether nothing can be read from a value but the value itself."""
    kind = type(value)  # ``isinstance`` would ask the value for its ``__class__``
    return kind in INERT or issubclass(kind, (np.generic, types.CodeType, Tensor)) or value is MISSING


def _name(value: Any) -> str:
    if value is os.environ:
        return "os.environ"
    if isinstance(value, (type, types.FunctionType)):
        return value.__qualname__
    return value.__name__ if isinstance(value, types.ModuleType) else type(value).__qualname__


def _path(base: str, kind: str, key: Any) -> str:
    """Return the name of a value that was read from the value named ``base``."""
    if kind in ("attribute", "static", "own"):
        return f"{base}.{key}"
    if kind in ("item", "has"):
        shown = repr(key) if is_plain(key) or isinstance(key, tuple) else type(key).__name__
        return f"{base}[{shown}]"
    return base


def _index(kind: str, key: Any) -> Any:
    """Return a key for the dictionary of children; 1, 1.0 and True differ."""
    if isinstance(key, slice):
        return kind, "slice", key.start, key.stop, key.step
    if isinstance(key, tuple):
        return kind, *(_index("", k) for k in key)
    try:
        hash(key)
    except TypeError:
        return kind, "id", id(key)
    return kind, type(key), key
