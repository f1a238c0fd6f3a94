"""A single function of a namespace as native code: the kernels of ops in eager mode (``core/kernels.py``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.compiler.build import units
from adjoint.compiler.emit.machine import has_llvm
from adjoint.compiler.host.calls import contiguous
from adjoint.compiler.host.entry import layout
from adjoint.compiler.host.native import Schedule
from adjoint.compiler.lower.graph import DTYPES, Dataflow, View
from adjoint.compiler.lower.lower import FAILURES
from adjoint.compiler.lower.primitives import Primitives
from adjoint.core.native import NotNative

__all__ = ["single"]

SPARE = 1 << 22  # bytes that a kernel may use in addition to as many as its arguments and results have


class _Single(Schedule):
    """The kernels of a function of arrays with given shapes and dtypes, and its results as indices."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], params: dict[str, Any]) -> None:
        units.prepare()
        graph = Dataflow()
        views: list[View] = []
        given = _replaced(args, lambda a: _source(graph, views, a))
        made = function(Primitives(graph), *given, **params)
        self.through: list[int] = []  # by leaf of the result: an array that is returned unchanged, or -1
        outs: list[View] = []
        self.tree = _replaced(made, lambda v: self._leaf(v, views, outs))
        self.most = SPARE + sum(v.node.nbytes for v in (*views, *outs))
        super().__init__(graph, outs, len(views))
        entry = self.entry_of([(k, v.dtype, v.shape) for k, v in enumerate(views)], len(views))
        if entry is None or self.calls:
            raise NotNative("a part of the function calls NumPy")
        self.entry = entry
        self.places = [self.made[v.node.id] for v in self.results]

    def _new_arena(self, size: int) -> Any:
        if size > self.most:
            raise NotNative("NumPy, which computes in blocks, needs less memory")
        self.shared = _arena_of(size)
        return self.shared.memory

    def _leaf(self, value: Any, views: list[View], outs: list[View]) -> Any:
        """Note a leaf of the result; return its index."""
        if not isinstance(value, View):
            return value
        same = [k for k, v in enumerate(views) if v.node is value.node and value.is_whole()]
        self.through.append(same[0] if same and views[same[0]].shape == value.shape else -1)
        if self.through[-1] < 0:
            outs.append(value)
        return _Index(len(self.through) - 1)


class _Arena:
    """Memory for the intermediate values of kernels, of which only the one that has the lock runs."""

    def __init__(self, size: int) -> None:
        self.memory = np.zeros(size, np.uint8)
        self.lock = threading.Lock()


_arenas: list[_Arena] = []


def _arena_of(size: int) -> _Arena:
    """Return an arena of at least ``size`` bytes that no kernel is using."""
    for each in _arenas:
        if each.memory.size >= size and not each.lock.locked():
            return each
    _arenas.append(_Arena(1 << (size - 1).bit_length()))  # so all sizes together take little more
    return _arenas[-1]


class _Index(int):
    """The index of a leaf of a result."""


def _source(graph: Dataflow, views: list[View], a: Any) -> Any:
    """Return an argument for the function: a view for an array, other values unchanged."""
    if type(a) is not np.ndarray:
        return a
    if a.dtype not in DTYPES:
        raise TypeError(f"{a.dtype} has no native form")
    views.append(graph.source(len(views), a.shape, a.dtype))
    return views[-1]


def _replaced(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return a nested tuple or list with ``leaf`` applied to its leaves."""
    if type(value) is tuple or type(value) is list:
        return type(value)(_replaced(v, leaf) for v in value)
    return leaf(value)


class _Kernel:
    """Runs the kernels of a function.  Each call that runs at the same time has an instance of its own."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], params: dict[str, Any]) -> None:
        self.form = function, [_like(a) for a in args], dict(params)
        self.instances = [_Single(*self.form)]

    def __call__(self, arrays: list[Any]) -> Any:
        """Return what the function returns for the arrays; NotImplemented if NumPy must run it."""
        single = self._locked()
        try:
            found = single.entry.call(*arrays)
            if found is NotImplemented:
                found = single.entry.call(*map(contiguous, arrays))
        finally:
            single.shared.lock.release()
        if found is NotImplemented:
            return found
        outs = iter(single.places)
        leaves = [found[next(outs)] if k < 0 else arrays[k] for k in single.through]
        if type(single.tree) is _Index:
            return leaves[0]
        return _replaced(single.tree, lambda v: leaves[v] if type(v) is _Index else v)

    def _locked(self) -> _Single:
        """Return an instance with the lock of its memory; a new one if other threads use that of all."""
        while True:
            for single in self.instances:
                if single.shared.lock.acquire(blocking=False):
                    return single
            self.instances.append(_Single(*self.form))


def _like(a: Any) -> Any:
    """Return a stand-in for an argument that keeps no memory alive."""
    if type(a) is np.ndarray:
        return np.broadcast_to(np.zeros((), a.dtype), a.shape)
    return _replaced(a, _like) if type(a) in (tuple, list) else a


def single(function: Callable[..., Any], args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Return a kernel of ``function(xp, *args, **params)`` for arrays like these; None if it has none.

    The kernel is called with a list of all arrays among the arguments, in order.
    """
    if not has_llvm() or layout() is None:
        return None
    try:
        return _Kernel(function, args, params)
    except FAILURES:
        return None
