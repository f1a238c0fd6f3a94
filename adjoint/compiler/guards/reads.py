"""The values that a function has read: a tree of reads, and the check that all of them are unchanged.

A read is an attribute, an item or another fact of an object.  The reads of an object are the children of the
read that returned it.  Plain values are compared by value, and other objects by identity.  A container that
is replaced by another one is unchanged if all that was read from it is.
"""

from __future__ import annotations

import functools
import operator
import types
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from keyword import iskeyword
from typing import Any

import numpy as np

from adjoint.compiler.guards.values import (
    BOUND,
    CONTAINERS,
    MAPPINGS,
    class_attribute,
    home,
    is_plain,
    snapshot,
)
from adjoint.compiler.program.symbols import NUMBERS

__all__ = ["MISSING", "Read", "Reads", "assign", "contents_of", "elements_of", "is_place"]


MISSING: Any = object()  # the value of an attribute or an item that does not exist
_OFTEN = 3  # a value that is a new object so often is compared by value
_AS_STORED = (types.FunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)  # the second kind: contents of cells
_NEW_AT_EACH_ACCESS = (types.MethodType, functools.partial, *BOUND)


def elements_of(value: Any) -> tuple[Any, ...]:
    """Return the elements of a container; of a mapping, the keys and then the values."""
    if isinstance(value, MAPPINGS):
        return (*value, *value.values())
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(value, key=lambda v: (type(v).__name__, repr(v) if is_plain(v) else id(v))))
    return *value, *()  # a new object, also for a tuple


def contents_of(value: Any) -> tuple[Any, ...]:
    """Return the shape, the dtype and the bytes of an array, or of an object that can be converted to one.

    For an array of objects, return the objects.
    """
    a = np.asarray(value)
    return (*a.shape, *a.ravel().tolist()) if a.dtype.hasobject else (*a.shape, a.dtype, a.tobytes())


def _item_of(owner: Any, key: Any) -> Any:
    """Return an item; a dictionary does not create it."""
    return dict.get(owner, key, MISSING) if isinstance(owner, dict) else owner[key]


READERS: dict[str, Callable[[Any, Any], Any]] = {
    "all": lambda owner, key: elements_of(owner),  # of a container
    "attribute": getattr,
    "call": lambda owner, key: owner(*key[0], **dict(key[1])),  # a weak reference; a result that is cached
    "element": _item_of,  # of the tuple of ``all``
    "fact": lambda owner, key: key(owner),  # such as the length of a container or the contents of an array
    "has": lambda owner, key: key in owner,
    "item": _item_of,
    "method": lambda owner, key: getattr(owner, key[0])(*key[1], **dict(key[2])),  # a view of an array
    "own": lambda owner, key: key in getattr(owner, "__dict__", ()),  # whether an instance has it itself
    "static": lambda owner, key: class_attribute(owner, key, MISSING),  # as it is stored in a class
}


class Read:
    """One value that was read: the fact ``kind`` and ``key`` of an object, which the parent has returned.

    ``seen`` is the value.  A read without a parent is a fixed object.  ``shared`` means that the value was
    reached in another way, too, so that it must stay the same object.
    """

    __slots__ = ("children", "key", "kind", "parent", "renewed", "seen", "shared", "varies", "weak", "what")

    def __init__(self, parent: Read | None, kind: str, key: Any, seen: Any, what: str) -> None:
        self.parent, self.kind, self.key, self.seen, self.what = parent, kind, key, seen, what
        self.children: dict[Any, Read] = {}
        self.shared = False
        self.varies = False  # whether it is a number that the program reads at each call
        self.weak = False  # whether it is part of an object of an installed package
        self.renewed = 0  # how often an equal value has taken the place of ``seen``

    def now(self, owner: Any) -> Any:
        """Return the present value, read from ``owner``."""
        try:
            return READERS[self.kind](owner, self.key)
        except Exception:  # deleted, or of another type
            return MISSING

    def present(self) -> Any:
        """Return the present value, read from the fixed owner."""
        assert self.parent is not None
        return self.now(self.parent.seen)

    def identity(self) -> str | None:
        """Return how native code can read the value, a name in ``host.check_text.ReadKind``.

        Return None if Python code must read it, or if it is not always the same object.
        """
        if self.renewed >= _OFTEN or self.parent is None or self.varies:
            return None
        owner = type(self.parent.seen)
        if self.kind == "item" and owner is list:
            return "ELEMENT" if type(self.key) is int and self.seen is not MISSING else None
        if self.kind in ("item", "has"):  # no Python code runs to compare such keys
            known = owner is dict and type(self.key) in (str, int)
            return {"item": "ITEM", "has": "HAS"}[self.kind] if known else None
        if self.seen is MISSING or type(self.key) is not str:
            return None
        kind = type(self.seen)
        stored = self.kind == "static" and (kind in _AS_STORED or not hasattr(kind, "__get__"))
        return "ATTRIBUTE" if self.kind == "attribute" or stored else None

    def place(self) -> Any:
        """Return a key for the place of a number that programs can read at each call; None for other reads.

        Variables with the same name in several objects have the same key.
        """
        if type(self.seen) not in NUMBERS or self.parent is None:
            return None
        return (self.what, self.kind) if is_place(self.parent.seen, self.kind, self.key) else None

    def is_equal(self, but_children: bool = False) -> bool:
        """Return whether the value that is read from the fixed owner is the same.

        ``but_children`` ignores the elements that are reads themselves.
        """
        assert self.parent is not None
        owner = self.parent.seen
        return self._equals(self.present(), owner, self.children if but_children else {})

    def changed(self, owner: Any, fresh: list[tuple[Read, Any]]) -> Read | None:
        """Return the first read, of this one and its children, whose value has changed; None if none has.

        ``owner`` is the present value of the parent.  Containers that are new objects are added to ``fresh``.
        """
        now = self.now(owner)
        if now is not self.seen:
            fresh.append((self, now))
        if not self._equals(now, owner, self.children) and (
            self.kind in ("all", "fact") or type(now) is not type(self.seen) or type(now) not in CONTAINERS
            or self.shared or not self.children
        ):  # fmt: skip
            return self
        for child in self.children.values():
            found = child.changed(now, fresh)
            if found is not None:
                return found
        return None

    def _equals(self, now: Any, owner: Any, children: dict[Any, Read]) -> bool:
        """Return whether a value equals ``seen``; elements in ``children`` are not compared."""
        seen = self.seen
        if now is seen:
            return True
        if self.varies:
            return type(now) is type(seen)
        if self.key is contents_of and isinstance(owner, np.ndarray) and not owner.dtype.hasobject:
            return bool(now == seen)
        if self.kind in ("all", "fact") and type(seen) is tuple:
            return type(now) is tuple and len(now) == len(seen) and all(
                a is b or ("element", int, k) in children or self._varies(k, b) or _same(a, b)
                for k, (a, b) in enumerate(zip(seen, now, strict=True))
            )  # fmt: skip
        if isinstance(seen, np.ndarray) and isinstance(owner, np.ndarray):  # a view, with its own children
            same = type(now) is type(seen) and now.shape == seen.shape and now.dtype == seen.dtype
            return bool(same and now.base is seen.base)
        return _same(seen, now)

    def _varies(self, k: int, now: Any) -> bool:
        """Return whether element ``k`` is a number that the program reads at each call."""
        found = self.children.get(("element", int, k))
        return found is not None and found.varies and type(now) is type(found.seen)


def is_place(owner: Any, of: str, key: Any) -> bool:
    """Return whether a program can assign an attribute or an item: this only stores it, and cannot fail.

    ``of`` is the kind of a read of it.
    """
    if of != "attribute":
        return of == "item" and type(owner) is dict
    if not key.isidentifier() or iskeyword(key):
        return False
    kind: Any = type(owner)
    static = class_attribute(kind, key, MISSING)
    if hasattr(type(static), "__set__") and not isinstance(static, _SLOTS):
        return False
    assigns = kind.__setattr__
    return isinstance(assigns, types.WrapperDescriptorType) or home(assigns) == "adjoint"


def _same(a: Any, b: Any) -> bool:
    """Return whether two objects are equal by value: plain data, or methods, which are new at each access."""
    return (
        type(a) is type(b)
        and (is_plain(a) or isinstance(a, _NEW_AT_EACH_ACCESS))
        and snapshot(a) == snapshot(b)
    )


def _comparison(read: Read, owner: str, n: int) -> str:
    """Return an expression that compares read ``n``; ``owner`` is the name of the object that is read from.

    The value is v0 for read 0, its key k0, and its comparison in Python f0.
    """
    kind, key = read.kind, repr(read.key) if type(read.key) in (str, int) else f"k{n}"
    if read.renewed >= _OFTEN or read.seen is MISSING or type(read.key) is slice or read.varies:
        return f"f{n}()"
    if isinstance(read.key, str) and read.key.isidentifier() and not iskeyword(read.key) and (
        kind == "attribute" or (kind == "static" and type(read.seen) is types.FunctionType)
    ):  # fmt: skip
        return f"{owner}.{read.key} is v{n}"
    if kind == "fact" and read.key not in (len, bool):
        return f"f{n}()"
    return _SIMPLE.get(kind, "f{2}()").format(owner, key, n)


_SIMPLE = {
    "item": "{0}[{1}] is v{2}", "own": "({1} in {0}.__dict__) is v{2}", "has": "({1} in {0}) is v{2}",
    "fact": "{1}({0}) == v{2}",
}  # fmt: skip


class Reads:
    """All values that a function has read, as a guard of its program."""

    def __init__(self, roots: list[Read], order: list[Read], saved: list[tuple[Any, Any, int]]) -> None:
        # containers, copies of them from before methods that may have changed them, and how many reads
        # had been made then
        self.saved = saved
        self.order = order  # all reads, in the order in which they were made
        self.roots = [r for r in roots if r.children]
        self.names: dict[int, str] = {}  # of the values in ``check``, by the id of the read
        self.check: Any = None  # a fast comparison
        self.calls = 0

    def __iter__(self) -> Iterator[Read]:
        """Yield all reads except the fixed objects."""
        todo = [child for root in reversed(self.roots) for child in reversed(root.children.values())]
        while todo:
            read = todo.pop()
            yield read
            todo += reversed(read.children.values())

    def changed(self) -> Read | None:
        """Return the first read whose value has changed; None if all values are the same.

        Equal values and containers that are new objects take the place of the old ones.
        """
        fresh: list[tuple[Read, Any]] = []
        for root in self.roots:
            for child in root.children.values():
                found = child.changed(root.seen, fresh)
                if found is not None:
                    return found
        for read, now in fresh:
            read.seen = now
            read.renewed += 1
            if read.renewed == _OFTEN:
                self.check = None
            elif self.check is not None:
                self.check.__globals__[self.names[id(read)]] = now
        return None

    def changed_numbers(self) -> list[Any]:
        """Return the keys of the places of all numbers that have changed."""
        changed = [r for r in self if not r.is_equal(but_children=True)]
        return [r.place() for r in changed if r.place() is not None and type(r.present()) in NUMBERS]

    def all_changed(self) -> list[str]:
        """Return the names of all values that have changed."""
        return [r.what for r in self if not r.is_equal(but_children=True)]

    def holds(self) -> bool:
        """Return whether all values are the same."""
        return self.is_same() or self.changed() is None

    def is_same(self) -> bool:
        """Return whether all values are the same objects; this is faster than ``holds``."""
        if self.check is None:
            self.calls += 1
            if self.calls < _OFTEN:  # most programs of a test run few calls
                return False
            self._build()
        return bool(self.check())

    def _build(self) -> None:
        """Generate a function that compares all values with one expression."""
        space: dict[str, Any] = {}
        for n, root in enumerate(self.roots):
            space[f"r{n}"], self.names[id(root)] = root.seen, f"r{n}"
        terms = []
        for n, read in enumerate(self):  # parents come before their children
            space[f"v{n}"], self.names[id(read)] = read.seen, f"v{n}"
            space[f"k{n}"], space[f"f{n}"] = read.key, read.is_equal
            terms.append(_comparison(read, self.names[id(read.parent)], n))
        body = " and\n   ".join(terms) or "True"
        exec(f"def check():\n try:\n  return ({body})\n except Exception:\n  return False\n", space)
        self.check = space["check"]

    def reason(self) -> str:
        """Return the text "NAME changed", with the name of the first value that has changed."""
        found = self.changed()
        return "" if found is None else f"{found.what} changed"

    def set_back(self) -> None:
        """Assign to all variables, attributes and containers the values that they had when they were read."""
        numbers = [(read, read.present()) for read in self if read.varies]  # the caller restores these
        saved = list(self.saved)
        for k, read in reversed([*enumerate(self.order, 1)]):  # the first read of a value comes last
            while saved and saved[-1][2] >= k:
                _refill(*saved.pop()[:2])
            assert read.parent is not None
            owner = read.parent.seen
            now = read.now(owner)
            if now is not read.seen and (read.kind == "all" or not read._equals(now, owner, read.children)):
                with suppress(Exception):  # a property, or an object that cannot be changed
                    assign(read, owner, read.seen)
        for container, before, _ in reversed(saved):
            _refill(container, before)
        for read, value in numbers:
            assert read.parent is not None
            assign(read, read.parent.seen, value)

    def marks(self) -> list[tuple[str, Any]]:
        """Return a name and a summary of the present value of each read."""
        return [(r.what, snapshot(r.now(r.parent.seen))) for r in self if r.parent is not None]


def assign(read: Read, owner: Any, seen: Any) -> None:
    """Assign the value ``seen`` to the place of a read of ``owner``."""
    kind, key = read.kind, read.key
    if kind == "item":
        owner.pop(key) if seen is MISSING else operator.setitem(owner, key, seen)
    elif kind == "attribute":
        delattr(owner, key) if seen is MISSING else setattr(owner, key, seen)
    elif kind == "all":
        half = len(seen) // 2
        _refill(owner, zip(seen[:half], seen[half:], strict=True) if isinstance(owner, dict) else seen)
    elif key is contents_of and not owner.dtype.hasobject:
        owner[...] = np.frombuffer(seen[-1], owner.dtype).reshape(owner.shape)


def _refill(container: Any, elements: Any) -> None:
    if isinstance(container, array):
        container[:] = elements
    else:
        container.clear()
        (container.extend if hasattr(container, "extend") else container.update)(elements)
