"""A fast native check that nothing a program depends on has changed since its last full check of guards.

A guard is a condition under which a compiled program is valid.  After a full check, ``Watch.renew`` records
what the guards depend on: words of memory that change with every assignment (the contents of closure cells,
the versions of dictionaries, the items of lists), the arrays of tensors, items of dictionaries, and context
variables.  ``Watch.ready(*arguments)`` compares the records with the current values.  It may return False
although all guards hold, but never True if one does not.
"""

from __future__ import annotations

import ctypes
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from adjoint.compiler import entry, units
from adjoint.compiler.call import Wanted
from adjoint.compiler.guards import (
    CONTAINERS,
    DEEPEST,
    Guard,
    ObjectGuard,
    base_of,
    class_attribute,
    is_module,
    read_attributes,
)
from adjoint.compiler.machine import has_llvm
from adjoint.compiler.watch_text import TEXT
from adjoint.config import special
from adjoint.context import compile_mode, default_dtype, enclosing, grad_mode, sink, tracing, transform
from adjoint.core.node import Node
from adjoint.core.tensor import Tensor, _Extra

__all__ = ["Watch", "layout"]

_CONTEXTS = (compile_mode, tracing, enclosing, transform, grad_mode, default_dtype, sink)
# After this many renewals without a success, guards with a ``watch`` method are called each time instead
# (guards of optimisers have one: a schedule changes the rate at each step).  After twice as many, the native
# check is given up.
_TRIES = 3
_MANAGED = 1 << 4  # the flag Py_TPFLAGS_MANAGED_DICT of a class
_IN_USE = 16  # the index of the word that counts the checks that are reading the tables


class Layout(NamedTuple):
    """The offsets in bytes of the members of CPython's structs that the check reads."""

    base: entry.Layout
    node: int
    extra: int
    grad: int
    hooks: int
    post_hooks: int
    cell: int  # the contents of a closure cell
    active: int  # the counter of ``special``
    size: int  # of a list or a tuple
    items: int  # the address of the items of a list
    version: int  # of a dictionary
    code: int  # of a function


@functools.cache
def layout() -> Layout | None:
    """Return the offsets that the check reads; None if CPython's structs are not as expected."""
    base = entry.layout()
    if base is None:
        return None
    try:
        return _probed(base)
    except (ValueError, AssertionError, AttributeError):
        return None


def _probed(base: entry.Layout) -> Layout:
    mark = object()
    cell = types.CellType(mark)
    return Layout(
        base, base.node, entry._offset(Tensor, "_extra"), entry._offset(_Extra, "grad"),
        entry._offset(_Extra, "hooks"), entry._offset(_Extra, "post_hooks"),
        entry._place(cell, type(cell).__basicsize__, id(mark)),
        entry._offset(type(special), "count"), base.length, base.elements, _version_offset(),
        entry._place(_probed, type(_probed).__basicsize__, id(_probed.__code__)),
    )  # fmt: skip


def _version_offset() -> int:
    """Return the offset of a dictionary's version number, which every change increments.

    Raise AssertionError if there is none.
    """

    def words(d: dict[Any, Any]) -> list[int]:
        return entry._words(id(d), dict.__basicsize__ // 8)

    class Plain:
        pass

    plain = Plain()
    plain.a = 1  # type: ignore[attr-defined]  # set on the instance only
    candidates = None
    for d, change in (
        ({"a": 1, "b": 2}, lambda d: d.__setitem__("a", 3)),
        ({"a": 1, "b": 2}, lambda d: d.update(b=5)),
        ({"a": 1, "b": 2}, lambda d: d.pop("a")),
        (vars(plain), lambda d: setattr(plain, "a", 2)),
        (vars(plain), lambda d: setattr(plain, "a", 2.5)),
    ):
        before, again = words(d), words(d)
        change(d)
        moved = {k for k, (x, y) in enumerate(zip(before, words(d), strict=True)) if x != y and k > 2}
        assert before == again
        candidates = moved if candidates is None else candidates & moved
    assert candidates is not None
    (found,) = candidates
    return 8 * found


@units.expect
def _text() -> str | None:
    return entry.with_offsets(TEXT, entry.layout() if possible() else None)


@functools.cache
def _method() -> Any:
    """Return the compiled native check as a PyMethodDef, CPython's description of a function."""
    text = _text()
    assert text is not None
    names = (
        "Py_DecRef", "Py_IncRef", "PyDict_GetItemWithError", "PyContextVar_Get", "PyObject_CallNoArgs",
        "PyErr_Occurred",
    )  # fmt: skip
    imports = {n: entry._address(getattr(ctypes.pythonapi, n)) for n in names}
    imports |= {"ndarray": id(np.ndarray), "tensor": id(Tensor), "node": id(Node)}
    imports |= {"true": id(True), "false": id(False)}
    return entry.method(text, "ready", imports)


class Watch:
    """The native check of one program.

    ``ready(*arguments)`` returns whether the program can run without a full check of its guards.

    Parameters
    ----------
    specs : list
        The required type, shape and dtype of each argument.
    held : list
        ``(tensor, shape, dtype)`` of each tensor that the program uses and that is not an argument.
    grads : list
        ``(tensor, is_none)`` of each tensor whose ``.grad`` must be None, or must not be None.
    guards : list
        Guards of Python objects.
    """

    def __init__(
        self,
        specs: Sequence[Wanted],
        held: Sequence[tuple[Tensor, Any, Any]],
        grads: Sequence[tuple[Tensor, bool]],
        guards: Sequence[Any],
    ) -> None:
        self.grads, self.guards, self.tensors = grads, guards, [t for t, _, _ in held]
        self.failures = 0
        self.calls = self.known = 0  # calls that passed this check: until now, and until the last renewal
        self.asks = False
        self._renewing = False
        self._fixed: list[Any] = []
        rows = [
            [id(s.kind), 0 if s.node is Node else id(s.node), *self._row(s.shape, s.dtype)] for s in specs
        ]
        self.words = np.zeros(17, np.int64).view(entry._Words)
        self.words[0], self.words[1] = -1, self._listed(self._fixed, [x for row in rows for x in row])
        own = [
            x for t, shape, dtype in held for x in (id(t), self._listed(self._fixed, self._row(shape, dtype)))
        ]
        self.words[6:8] = len(held), self._listed(self._fixed, own)
        self.words[12:14] = len(held), self._listed(self._fixed, [id(t) for t in self.tensors])
        self.count = len(specs)
        self.words.held = (self._fixed, self.tensors, guards)
        self.ready: Callable[..., bool] = entry.built_in(_method(), self.words)

    @staticmethod
    def _listed(keep: list[Any], values: Sequence[int]) -> int:
        """Store values in a new int64 array that ``keep`` keeps alive; return its address."""
        keep.append(np.array([*values, 0], np.int64))
        return int(keep[-1].ctypes.data)

    def _row(self, shape: Any, dtype: Any) -> list[int]:
        self._fixed.append(dtype)
        return [id(dtype), len(shape), self._listed(self._fixed, shape)]

    def renew(self) -> None:
        """Record what the guards depend on; call this after a full check has found that all guards hold.

        The caller holds the lock of the compiled function.
        """
        if self._renewing:  # a finalizer runs the program
            return
        self._renewing = True
        try:
            self.words[0] = -1  # from here on ``ready`` reads no tables, until they are complete
            if not self.words[_IN_USE]:  # a check that waits for a guard still reads the old tables
                self._record()
        finally:
            self._renewing = False

    def is_on(self) -> bool:
        """Return whether the check is in use; if not, ``ready`` returns False."""
        return bool(self.words[0] >= 0)

    def _record(self) -> None:
        self.failures = self.failures + 1 if self.calls == self.known else 1
        self.known = self.calls
        self.asks |= self.failures > _TRIES
        if self.failures > 2 * _TRIES:
            return
        seen = _Seen()
        contexts = [(v, v.get()) for v in _CONTEXTS]
        if special.count or not seen.tensors(self.tensors, self.grads):
            return
        where = layout()
        assert where is not None
        seen.equal.append((id(special) + where.active, id(0)))
        for g in self.guards:
            seen.guard(g, self.asks)
        seen.equal, seen.items = list(dict.fromkeys(seen.equal)), list(dict.fromkeys(seen.items))
        keep: list[Any] = [seen, contexts]
        self.words[2:6] = (
            len(seen.equal), self._listed(keep, [x for row in seen.equal for x in row]),
            len(seen.differ), self._listed(keep, [x for row in seen.differ for x in row]),
        )  # fmt: skip
        self.words[8:12] = (
            len(seen.items), self._listed(keep, [x for row in seen.items for x in row]),
            len(contexts), self._listed(keep, [x for v, value in contexts for x in (id(v), id(value))]),
        )  # fmt: skip
        self.words[14:16] = len(seen.asked), self._listed(keep, [id(f) for f in seen.asked])
        self.words.held = (self._fixed, self.tensors, self.guards, keep)
        self.words[0] = self.count


class _Seen:
    """Records the memory that the guards of a program depend on, and its present contents.

    ``equal`` and ``differ`` have pairs (address, word): the word in memory must, or must not, be this one.
    ``items`` has (dictionary, key, value) as addresses; ``asked`` has functions that must return True.
    ``objects`` keeps all objects alive, so that no address is reused.
    """

    def __init__(self) -> None:
        where = layout()
        assert where is not None
        self.at = where
        self.equal: list[tuple[int, int]] = []
        self.differ: list[tuple[int, int]] = []
        self.items: list[tuple[int, int, int]] = []
        self.asked: list[Any] = []
        self.objects: list[Any] = []

    def word(self, owner: Any, offset: int) -> None:
        """Record the 64-bit word in memory at ``offset`` bytes from the start of an object."""
        address = id(owner) + offset
        self.objects.append(owner)
        self.equal.append((address, entry._words(address, 1)[0]))

    def tensors(self, tensors: Sequence[Tensor], grads: Sequence[tuple[Tensor, bool]]) -> bool:
        """Record the nodes, hooks and gradients of tensors; return False if they cannot be checked natively.

        ``grads`` has pairs of a tensor and whether its gradient must be None.
        """
        at = self.at
        for t in tensors:
            if type(t) is not Tensor:
                return False
            self.word(t, at.node)
            self.objects.append(t._node)
            self.word(t, at.extra)
            extra = t._extra
            if extra is not None:
                self.objects.append(extra)
                self.word(extra, at.hooks)
                self.word(extra, at.post_hooks)
                if extra.hooks is not None or extra.post_hooks is not None:
                    return False
        for t, none in grads:
            if t._extra is not None:
                if (t._extra.grad is None) != none:
                    return False
                place = (id(t._extra) + at.grad, id(None))
                (self.equal if none else self.differ).append(place)
            elif not none:
                return False
        return True

    def guard(self, g: Any, asks: bool) -> None:
        """Record the memory that a guard depends on.

        If this memory is not known, or if ``asks`` is true and the guard has a ``watch`` method, the guard
        itself is called at each check.
        """
        found = len(self.equal), len(self.items)
        try:
            if isinstance(g, ObjectGuard):
                self._object(g)
            elif asks and getattr(g, "watch", None) is not None:
                raise _Unknown
            elif getattr(g, "watch", None) is not None:
                for part in g.watch():
                    self._part(*part)
            else:
                self._read(g)
        except _Unknown:
            del self.equal[found[0] :], self.items[found[1] :]
            self.asked.append(g.holds)

    def _part(self, kind: str, value: Any, key: Any = None) -> None:
        """Record a part of the container ``value``.

        ``kind`` is "whole" (the container and its contents), "item" (the item ``key`` of a dictionary) or
        "keys" (which keys a dictionary has).
        """
        if kind == "whole":
            self._value(value, 0)
            return
        if kind == "item":
            self._item(value, key)
        else:
            self.objects.append(value)
            self.word(value, self.at.size)  # a dictionary has its number of items at the same offset
            self.objects += value
            self.items += [(id(value), id(k), 0) for k in value]

    def _object(self, g: ObjectGuard) -> None:
        self._dictionary(g.owner, g.attributes)
        self.word(g.attributes, self.at.version)
        for inner in g.containers:
            self._value(inner.seen, 0)

    def _read(self, g: Guard) -> None:
        if g.contents is not None:  # the elements of an array
            raise _Unknown
        self._variable(g.read)
        if g.mutable:
            self._value(g.read(), 0)

    def _variable(self, read: Any) -> None:
        """Record the memory that changes if a variable, or an attribute in its chain, is assigned.

        ``read`` is the function of ``named_reads`` that reads the variable.
        """
        if isinstance(read, functools.partial) and read.func is read_attributes:
            inner, chain = read.args
            self._variable(inner)
            owner = inner()
            for name in chain:
                self._attribute(owner, name)
                owner = getattr(owner, name)
            return
        cell, space, key, value = base_of(read)
        if cell is not None:
            self.word(cell, self.at.cell)
        elif space is not None:
            self._item(space, key)
        elif value is None:
            raise _Unknown

    def _attribute(self, owner: Any, name: str) -> None:
        if name == "__code__" and type(owner) is types.FunctionType:
            self.word(owner, self.at.code)
            return
        space = getattr(owner, "__dict__", None)
        if (
            type(space) is not dict
            or name not in space
            or hasattr(type(class_attribute(type(owner), name)), "__set__")
        ):
            raise _Unknown
        self._dictionary(owner, space)
        if is_module(owner):  # a module: one word for all of its attributes
            self.word(space, self.at.version)
        else:
            self._item(space, name)

    def _dictionary(self, owner: Any, space: dict[str, Any]) -> None:
        """Record the word of ``owner`` that refers to ``space``, the dictionary of its attributes."""
        kind = type(owner)
        # for classes whose dictionaries CPython manages, the reference is before the object
        offsets = range(-32, 0, 8) if kind.__flags__ & _MANAGED else (max(0, kind.__dictoffset__),)
        found = [k for k in offsets if entry._words(id(owner) + k, 1)[0] == id(space)]
        if len(found) != 1:
            raise _Unknown
        self.word(owner, found[0])

    def _item(self, space: dict[Any, Any], key: Any) -> None:
        """Record the identity of an item of a dictionary."""
        self.objects += [space, key, space[key]]
        self.items.append((id(space), id(key), id(space[key])))

    def _value(self, value: Any, depth: int) -> None:
        """Record a container and the containers inside it.

        Other values are compared by identity, which the caller has recorded.
        """
        if depth > DEEPEST:
            raise _Unknown
        if type(value) is dict:
            self.word(value, self.at.version)
            inner: Any = value.values()
        elif type(value) is list:
            self.word(value, self.at.size)
            self.word(value, self.at.items)
            start = entry._words(id(value) + self.at.items, 1)[0]
            self.equal += [(start + 8 * k, id(v)) for k, v in enumerate(value)]
            self.objects += value
            inner = value
        elif type(value) is tuple:
            inner = value
        elif isinstance(value, CONTAINERS):
            raise _Unknown
        else:
            return
        for v in inner:
            self._value(v, depth + 1)


class _Unknown(Exception):  # noqa: N818  not an error: the guard is called each time
    """Raised when it is not known which memory a guard depends on."""


def possible() -> bool:
    """Return whether the native check can be used: llvmlite is installed and CPython's structs are known."""
    return has_llvm() and layout() is not None
