"""Repeat a run of a function with the same modes, random numbers and values.

A ``Rerun`` belongs to one call of a function.  ``first`` runs it and records the tensors it writes to.
``again`` restores the modes, the random generators and these tensors, runs the function, and undoes its
changes.  A constant that was written to between the runs is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

import numpy as np

from adjoint import tree
from adjoint.config import (
    get_default_dtype,
    grad_mode,
    held_across_fork,
    logs,
    set_default_dtype,
    special,
    tapes,
    watched,
)
from adjoint.context import stand_ins, transform, within
from adjoint.core.lifted import enclosing, tracing
from adjoint.core.node import Node, next_seq
from adjoint.core.record import saved_hooks
from adjoint.core.roles import GeneratorRole
from adjoint.core.tensor import Tensor, clock, reading, writes
from adjoint.engine.pull import overwritten

__all__ = ["Generators", "Rerun", "restore", "with_stand_ins"]

T = TypeVar("T")
# Tensors that were written to, with their previous data, nodes and versions, by id.
Log = dict[int, tuple[Tensor, Any, Any, int]]

# The lock for restoring random generators and tensors, which other threads may be using too.
_replaying = held_across_fork(threading.RLock())


class Rerun:
    """The first run of a function, and the state needed to repeat it."""

    __slots__ = (
        "clock", "constants", "drawn", "dtype", "generators", "name", "stand_ins", "taped", "top",
        "transform", "written",
    )  # fmt: skip

    def __init__(self, name: str, generators: Generators | None) -> None:
        self.name = name
        self.generators = generators
        self.drawn: list[Any] = []  # the random draws of the first run, inside a trace
        self.dtype = get_default_dtype()
        self.top = enclosing.get()
        self.transform = transform.get()  # gradients inside of one are recorded
        self.stand_ins = stand_ins.get()
        self.taped = bool(tapes.get())
        self.written: list[tuple[weakref.ref[Tensor], Any, Any]] = []  # tensors, previous data and nodes
        self.constants: list[Tensor] = []  # tensors watched by a tape: recorded again, also after its block
        self.clock = 0  # counter of writes at the end of the first run

    def first(self, function: Callable[..., T], args: Sequence[Any], kwargs: dict[str, Any]) -> T:
        """Run the function and return its result.

        Store the random generators that it draws from and the tensors that it writes to, for ``again``.
        """
        around = writes.get()
        log: Log = {}
        since = next_seq()
        trace = tracing.get() if special.count else None
        mark = None if trace is None else trace.mark()
        logs.enter()
        try:
            # this record is dropped soon, so saved tensors are not packed
            run = functools.partial(function, **kwargs)
            result = within(writes, log, within, saved_hooks, None, run, *args)
        finally:
            logs.leave()
        if around is not None:
            for key, entry in log.items():
                around.setdefault(key, entry)
        self.written = [
            (weakref.ref(t), data, node)
            for t, data, node, _ in log.values()
            if type(node) is not Node or node.seq < since  # others were made by this run
        ]
        if trace is not None:
            self.drawn, changed = trace.since(mark)
            self.written += [(weakref.ref(t), data, t._node) for t, data in changed]
        self.clock = clock.now
        if self.generators is not None:
            self.generators.keep_used()
        return result

    def depends_on(self, keys: Iterable[Any]) -> None:
        """Store the constants (tensors without a node) in ``keys``, the nodes and leaves of the results."""
        self.constants += [k for k in keys if isinstance(k, Tensor) and k._node is None]

    def again(self, function: Callable[..., T], args: Sequence[Any], kwargs: dict[str, Any]) -> T:
        """Run the function again and record it; return its result.

        Its changes of modes, random generators and tensors are undone.
        """
        if self.stand_ins is not stand_ins.get():
            return _replaced(self.stand_ins, self.stand_ins, self.again, function, args, kwargs)
        if self.drawn and special.count and (trace := tracing.get()) is not None:
            return trace.drawing(self.drawn, self._undone, function, args, kwargs)
        return self._undone(function, args, kwargs)

    def _undone(self, function: Callable[..., T], args: Sequence[Any], kwargs: dict[str, Any]) -> T:
        if not self.written and (self.generators is None or not self.generators.owners):
            # in a separate context, so that an interrupt leaves no mode set
            return copy_context().run(self._again, function, args, kwargs)
        with _replaying:
            before = [(t, t._data, t._node, t._version) for t in self._alive()]
            states = [] if self.generators is None else self.generators.read()
            try:
                self._set_back()
                return copy_context().run(self._again, function, args, kwargs)
            finally:
                try:
                    restore(before)
                finally:
                    if self.generators is not None:
                        self.generators.write(states)

    def _again(self, function: Callable[..., T], args: Sequence[Any], kwargs: dict[str, Any]) -> T:
        enclosing.set(self.top)
        transform.set(self.transform)
        grad_mode.set(True)
        set_default_dtype(self.dtype)
        saved_hooks.set(None)
        writes.set(None)
        changed = clock.now > self.clock
        reading.set(
            functools.partial(self._check, clock.now, set(map(id, self._alive()))) if changed else None
        )
        if not changed and not self.taped:
            return function(*args, **kwargs)
        with watched(tapes, (*tapes.get(), _Watching(self.constants)) if self.taped else tapes.get()):
            return function(*args, **kwargs)

    def _check(self, start: int, set_back: set[int], t: Tensor) -> None:
        """Raise if the constant ``t`` was written to between the first run and this one.

        ``start`` is the counter of writes at the start of this run.  ``set_back`` has the ids of the
        tensors whose values were restored; these are not checked.
        """
        if t._node is None and self.clock < t._version <= start and id(t) not in set_back:
            raise overwritten(self.name, t)

    def _alive(self) -> list[Tensor]:
        return [t for t in (reference() for reference, *_ in self.written) if t is not None]

    def _set_back(self) -> None:
        for reference, data, node in self.written:
            t = reference()
            if t is not None:
                t._data = data
                t._node = node
        if self.generators is not None:
            self.generators.write(self.generators.states)


# Tensors that stand for others ----------------------------------------------------------------------


def with_stand_ins(
    tensors: Sequence[Tensor], given: Sequence[Tensor], function: Callable[..., T], *args: Any
) -> T:
    """Call a function while ``tensors`` have the values and nodes of ``given``; return its result.

    A ``Rerun`` that is created inside also replaces them when it repeats its function later.
    """
    added = tuple([(t, g._data, g._node, g.__class__) for t, g in zip(tensors, given, strict=True)])
    return _replaced(added, (*stand_ins.get(), *added), function, *args)


def _replaced(new: tuple[Any, ...], every: tuple[Any, ...], function: Callable[..., T], *args: Any) -> T:
    """Call a function while tensors are replaced by stand-ins, and restore the tensors afterwards.

    ``new`` are the replacements to make here, ``every`` are all that are active during the call.
    """
    before = [(t, t._data, t._node, t.__class__) for t, *_ in new]
    try:
        _place(new)
        return within(stand_ins, every, function, *args)
    finally:
        _place(reversed(before))


def _place(entries: Iterable[tuple[Tensor, Any, Any, Any]]) -> None:
    for t, data, node, kind in entries:
        t._data, t._node, t.__class__ = data, node, kind


class _Watching:
    """A tape that watches the constants of a function while the function runs again.

    The tape of the first run may have ended by then.
    """

    __slots__ = ("constants",)

    def __init__(self, constants: Iterable[Tensor]) -> None:
        self.constants = set(map(id, constants))

    def watches(self, t: Tensor) -> bool:
        """Return whether a tensor is one of the constants."""
        return id(t) in self.constants

    def add(self, node: Node) -> None:
        """Ignore a new node."""


def restore(entries: Iterable[tuple[Tensor, Any, Any, int]]) -> None:
    """Set tensors to earlier values; each entry is (tensor, data, node, version)."""
    for t, data, node, version in entries:
        t._data = data
        t._node = node
        t._version = version


# Random generators ---------------------------------------------------------------------------------


class Generators:
    """The random generators that a function may draw from, with their states at the first run."""

    def __init__(self, owners: list[Any], known: dict[int, Any]) -> None:
        self.owners = self.every = owners
        self.states = [known[id(g)] if id(g) in known else _bits(g).state for g in owners]
        self.after: list[Any] = []

    @classmethod
    def of(
        cls, functions: Iterable[Any], arguments: Iterable[Any], before: Generators | None = None
    ) -> Generators | None:
        """Return the generators that functions may draw from, or None if there are none.

        The states at the end of the run ``before`` are reused: reading NumPy's global state takes 0.1 ms.
        """
        # NumPy imports its generators on first use; before that there are none
        if "numpy.random" not in sys.modules or not grad_mode.get():
            return None
        known = {} if before is None else {id(g): s for g, s in zip(before.every, before.after, strict=False)}
        return cls([_global_bits(), *_generators_of(functions, arguments)], known)

    @classmethod
    def drawn_by(cls, functions: Iterable[Any]) -> Generators:
        """Return the random generators that the variables of functions refer to, with their states."""
        return cls(list(_generators_of(functions, ())), {})

    def read(self) -> list[Any]:
        """Return the current states of the generators."""
        return [_bits(g).state for g in self.owners]

    def write(self, states: list[Any]) -> None:
        """Set the states of the generators."""
        for g, state in zip(self.owners, states, strict=True):
            _bits(g).state = state

    def keep_used(self) -> None:
        """Drop the generators whose state the first run did not change: it did not draw from them."""
        self.after = self.read()
        moved = [not _same(a, b) for a, b in zip(self.states, self.after, strict=True)]
        self.owners = [g for g, m in zip(self.owners, moved, strict=True) if m]
        self.states = [s for s, m in zip(self.states, moved, strict=True) if m]


def _same(a: Any, b: Any) -> bool:
    """Return whether two states, dictionaries of numbers and arrays, are equal."""
    if isinstance(a, dict):
        return all(_same(a[key], b[key]) for key in a)
    return bool(np.array_equal(a, b))


def _global_bits() -> Any:
    return np.random.mtrand._rand._bit_generator


def _bits(owner: Any) -> Any:
    """Return the object that contains the state of ``owner``, a NumPy or adjoint generator."""
    if isinstance(owner, np.random.BitGenerator):
        return owner
    if isinstance(owner, np.random.RandomState):
        return owner._bit_generator
    return (owner if isinstance(owner, np.random.Generator) else owner._numpy).bit_generator


_CONTAINERS = (dict, list, tuple, set, frozenset)
_LONGEST = 1_000  # the length of the longest container that is searched; data sets are longer


def _generators_of(functions: Iterable[Any], arguments: Iterable[Any]) -> Iterator[Any]:
    """Yield the generators in arguments, and in the variables that functions name.

    Containers, dataclasses and modules are searched completely; other objects only in their attributes.
    """
    stack = [(value, False) for f in functions for value in _named_by(f)]
    stack += [(value, False) for value in arguments]
    seen: set[int] = set()
    while stack:
        value, inside = stack.pop()
        kind: Any = type(value)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if _is_generator(kind):
            yield value
        elif issubclass(kind, _CONTAINERS):
            items = value.values() if issubclass(kind, dict) else value
            stack += [(item, inside) for item in items] if len(value) <= _LONGEST else []
        elif not inside or tree.is_registered(kind) or dataclasses.is_dataclass(kind):
            stack += [(item, True) for item in getattr(value, "__dict__", {}).values()]


@functools.lru_cache(maxsize=1024)
def _is_generator(kind: Any) -> bool:
    numpys = (np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    return issubclass(kind, (GeneratorRole, *numpys))


def _named_by(f: Any) -> list[Any]:
    """Return the objects that a function refers to.

    These are its closure variables, globals and defaults; the object of a method; or ``f`` itself.
    """
    if isinstance(f, functools.partial):
        return [*_named_by(f.func), *f.args, *f.keywords.values()]
    if isinstance(f, types.MethodType):
        return [f.__self__, *_named_by(f.__func__)]
    if not isinstance(f, types.FunctionType):
        return [f]
    cells = [cell.cell_contents for cell in f.__closure__ or () if _filled(cell)]
    named = [f.__globals__[name] for name in f.__code__.co_names if name in f.__globals__]
    named = [value for value in named if not isinstance(value, (type, types.ModuleType))]
    inner = _named_by(f.__wrapped__) if hasattr(f, "__wrapped__") else []
    return [*inner, *cells, *named, *(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a name that is not bound yet
        return False
