"""A fast native check that nothing a program depends on has changed since its last full check of guards.

A guard is a condition under which a compiled program is valid.  After a full check, ``Watch.renew`` records
what the guards depend on: words of memory that change with every assignment (the contents of closure cells,
the sizes of dictionaries, the items of lists), the arrays of tensors, items of dictionaries, and context
variables.  ``Watch.ready(*arguments)`` compares the records with the current values.  It may return False
although all guards hold, but never True if one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import Any

import numpy as np

from adjoint.compiler.capture.arguments import Wanted
from adjoint.compiler.emit.code import Tables, Words
from adjoint.compiler.emit.machine import has_llvm
from adjoint.compiler.guards.reads import MISSING, Read, Reads
from adjoint.compiler.guards.values import (
    CACHES,
    CONTAINERS,
    DEEPEST,
    ObjectGuard,
    is_plain,
)
from adjoint.compiler.host import entry
from adjoint.compiler.host.check_text import ReadKind, Watched, ready
from adjoint.compiler.host.structs import layout, place_of, words_at
from adjoint.config import special
from adjoint.context import compile_mode, default_dtype, enclosing, grad_mode, sink, tracing, transform
from adjoint.core.node import Node
from adjoint.core.tensor import Tensor

__all__ = ["Watch", "possible"]

_CONTEXTS = (compile_mode, tracing, enclosing, transform, grad_mode, default_dtype, sink)
# After this many renewals without a success, guards with a ``watch`` method are called each time instead
# (guards of optimisers have one: a schedule changes the rate at each step).  After twice as many, the native
# check is given up.
_TRIES = 3
_MANAGED = 1 << 4  # the flag Py_TPFLAGS_MANAGED_DICT of a class
# attributes that are a word of a struct
_STRUCTS: dict[Any, tuple[type, ...]] = {
    "__code__": (FunctionType,), "__defaults__": (FunctionType,), "cell_contents": (CellType,)
}  # fmt: skip


_ready = entry.PythonFunction(ready)


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
        self._fixed = fixed = Tables()
        rows = [
            (id(s.kind), 0 if s.node is Node else id(s.node), *fixed.spec(s.dtype, s.shape)) for s in specs
        ]
        own = [(id(t), fixed.listed(fixed.spec(dtype, shape))) for t, shape, dtype in held]
        self.words = np.zeros(Watched.SIZE, np.int64).view(Words)
        self.words[0], self.words[1] = -1, fixed.table(rows)[1]
        self._set(Watched.HELD, fixed.table(own))
        self._set(Watched.STRANGERS, fixed.table([(id(t),) for t in self.tensors]))
        self.count = len(specs)
        self.words.held = (self._fixed, self.tensors, guards)
        self.ready: Callable[..., bool] = _ready.bound(self.words)

    def _set(self, head: Watched, table: tuple[int, int]) -> None:
        self.words[head : head + 2] = table

    def renew(self) -> None:
        """Record what the guards depend on; call this after a full check has found that all guards hold.

        The caller holds the lock of the compiled function.
        """
        if self._renewing:  # a finalizer runs the program
            return
        self._renewing = True
        try:
            self.words[0] = -1  # from here on ``ready`` reads no tables, until they are complete
            if not self.words[Watched.USERS]:  # a check that waits for a guard still reads the old tables
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
        seen.equal = list(dict.fromkeys(seen.equal))
        keep = Tables(seen, contexts)
        spaces = [(id(space), *keep.table(values.items())) for space, values in seen.spaces.values()]
        reads = [(ReadKind.CONTEXT, id(v), 0, id(value)) for v, value in contexts] + seen.reads
        for head, rows in (
            (Watched.EQUAL, seen.equal), (Watched.DIFFER, seen.differ), (Watched.SPACES, spaces),
            (Watched.ASKED, [(id(f),) for f in seen.asked]), (Watched.READS, reads),
        ):  # fmt: skip
            self._set(head, keep.table(rows))
        self.words.held = (self._fixed, self.tensors, self.guards, keep)
        self.words[0] = self.count


class _Seen:
    """Records the memory that the guards of a program depend on, and its present contents.

    ``equal`` and ``differ`` have pairs (address, word): the word in memory must, or must not, be this one.
    ``spaces`` has dictionaries and the addresses of their keys and values, or 0 for any value; ``asked`` has
    functions that must return True; ``reads`` has rows of kind, owner, key and value.
    ``objects`` keeps all objects alive, so that no address is reused.
    """

    def __init__(self) -> None:
        where = layout()
        assert where is not None
        self.at = where
        self.equal: list[tuple[int, int]] = []
        self.differ: list[tuple[int, int]] = []
        self.spaces: dict[int, tuple[dict[Any, Any], dict[int, int]]] = {}
        self.asked: list[Any] = []
        self.reads: list[tuple[int, int, int, int]] = []
        self.objects: list[Any] = []

    def word(self, owner: Any, offset: int) -> None:
        """Record the 64-bit word in memory at ``offset`` bytes from the start of an object."""
        address = id(owner) + offset
        self.objects.append(owner)
        self.equal.append((address, words_at(address, 1)[0]))

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
        found = len(self.equal)
        try:
            if isinstance(g, ObjectGuard):
                self._object(g)
            elif isinstance(g, Reads):
                for read in g:
                    self._read(read, asks)
            elif asks or getattr(g, "watch", None) is None:
                raise _Unknown
            else:
                for part in g.watch():
                    self._part(*part)
        except _Unknown:
            del self.equal[found:]
            self.asked.append(g.holds)

    def _read(self, read: Read, asks: bool) -> None:
        """Record a value that user code has read; if ``asks`` is true, containers are compared by Python."""
        assert read.parent is not None
        owner, key, value = read.parent.seen, read.key, read.seen
        if read.kind == "element" or read.varies:  # an element is recorded; a number is read by the program
            return
        if read.kind in ("all", "item") and type(owner) is tuple:  # it cannot change
            return
        if read.kind == "all" and type(owner) in (dict, list, tuple) and not asks:
            elements = owner.values() if type(owner) is dict else owner
            if not any(map(is_plain, elements)):  # plain values are compared by value
                return self._elements(owner)
        kind = read.identity()
        self.objects += owner, key, value
        if kind is None:
            if not self._known(read, owner):
                self.asked.append(read.is_equal)
        elif key in _STRUCTS and type(owner) in _STRUCTS[key]:
            self.equal.append((id(owner) + place_of(owner, type(owner).__basicsize__, id(value)), id(value)))
        else:
            known = key if kind == "ELEMENT" else id(key)
            self.reads.append((ReadKind[kind], id(owner), known, 0 if value is MISSING else id(value)))

    def _known(self, read: Read, owner: Any) -> bool:
        """Record the length or the truth of a list, or that an instance has no attribute with a name itself.

        Return False for other reads.
        """
        length = id(owner) + self.at.length
        if type(owner) is list and read.key is len:
            self.equal.append((length, read.seen))
        elif type(owner) is list and read.key is bool:
            (self.differ if read.seen else self.equal).append((length, 0))
        elif read.kind == "own" and read.seen is False and type(getattr(owner, "__dict__", None)) is dict:
            try:
                self._dictionary(owner, vars(owner))
            except _Unknown:
                return False
            self.objects.append(vars(owner))
            self.reads.append((ReadKind.ITEM, id(vars(owner)), id(read.key), 0))
        else:
            return False
        return True

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
            self._keys(value)

    def _keys(self, space: dict[Any, Any]) -> dict[int, int]:
        """Record the keys of a dictionary and their order; return the addresses of the values by key."""
        if id(space) not in self.spaces:
            self.objects += space
            self.spaces[id(space)] = space, dict.fromkeys(map(id, space), 0)
        return self.spaces[id(space)][1]

    def _object(self, g: ObjectGuard) -> None:
        self._dictionary(g.owner, g.attributes)
        self._keys(g.attributes)
        for name, value in g.attributes.items():
            if name in CACHES:
                self._part("keys", value)
            elif g.compares(name, value):
                self._item(g.attributes, name)
        for inner in g.containers:
            self._value(inner.seen, 0)

    def _dictionary(self, owner: Any, space: dict[str, Any]) -> None:
        """Record the word of ``owner`` that refers to ``space``, the dictionary of its attributes."""
        kind = type(owner)
        # for classes whose dictionaries CPython manages, the reference is before the object
        offsets = range(-32, 0, 8) if kind.__flags__ & _MANAGED else (max(0, kind.__dictoffset__),)
        found = [k for k in offsets if words_at(id(owner) + k, 1)[0] == id(space)]
        if len(found) != 1:
            raise _Unknown
        self.word(owner, found[0])

    def _item(self, space: dict[Any, Any], key: Any) -> None:
        """Record the identity of an item of a dictionary."""
        own = next(k for k in space if k is key or k == key)  # the key that the dictionary itself has
        self.objects.append(space[own])
        self._keys(space)[id(own)] = id(space[own])

    def _value(self, value: Any, depth: int) -> None:
        """Record a container and the containers inside it.

        Other values are compared by identity, which the caller has recorded.
        """
        if depth > DEEPEST:
            raise _Unknown
        if type(value) in (dict, list, tuple):
            self._elements(value)
            for v in value.values() if type(value) is dict else value:
                self._value(v, depth + 1)
        elif isinstance(value, CONTAINERS):
            raise _Unknown

    def _elements(self, value: Any) -> None:
        """Record the identities of the elements of a dictionary, a list or a tuple, which does not change."""
        if type(value) is dict:
            for key in self._keys(value) and value:
                self._item(value, key)
        elif type(value) is list:
            self.word(value, self.at.length)
            self.word(value, self.at.elements)
            start = words_at(id(value) + self.at.elements, 1)[0]
            self.equal += [(start + 8 * k, id(v)) for k, v in enumerate(value)]
            self.objects += value


class _Unknown(Exception):  # noqa: N818  not an error: the guard is called each time
    """Raised when it is not known which memory a guard depends on."""


def possible() -> bool:
    """Return whether the native check can be used: llvmlite is installed and CPython's structs are known."""
    return has_llvm() and layout() is not None
