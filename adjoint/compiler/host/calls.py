"""Calls of NumPy between the kernels of a native entry: functions without arguments, which the entry calls.

A function reads its operands where the kernels have stored them, and writes the addresses of its results into
the slots of later kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.compiler.host.words import Input
from adjoint.compiler.lower.graph import Primitive, View
from adjoint.compiler.program.program import typed
from adjoint.compiler.replay import replay

__all__ = ["HostCalls", "contiguous", "strided"]


class HostCalls:
    """Makes the functions of one entry.

    ``array(view)`` returns a view of the arena, ``rows`` is the table of the entry's inputs, ``numbers`` has
    the Python numbers among them, and ``places`` has the slots of each result, see ``entry.Record``.
    """

    def __init__(
        self, arena: Any, array: Callable[[View], Any], rows: Any, numbers: Any, places: Any
    ) -> None:
        self.arena, self.array = arena, array
        self.rows, self.numbers, self.places = rows, numbers, places
        self.values: dict[Any, Any] = {}  # results, by the id of the call and the index of the result

    def function(self, node: Primitive) -> Callable[[], None]:
        """Return a function that makes the call ``node``."""
        i, values, arena = node.value, self.values, self.arena
        readers = [self._reader(a) for a in node.params]
        forward, params, several = replay.forward_of(i), i.params, i.op.outputs > 1
        keeps = not i.op.pure and i.op.kind != "host"  # it may keep a reference to its arguments
        convert = i.op.kind == "elementwise" and any(getattr(a, "weak", False) for a in i.args)
        keys = [(node.id, k) for k in range(len(i.outs))]
        weak = [bool(o.weak) for o in i.outs]
        moved = [
            (keys[part.params], part.dtype, _cells(slots))
            for (kind, part), slots in self.places.items()
            if kind == "part" and part.args[0].node is node
        ]

        def call() -> None:
            args = [read() for read in readers]
            if convert:
                args = typed(i.op, i.args, args)
            if keeps:
                args = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
            found = forward(*args, **params)
            for key, is_weak, x in zip(keys, weak, found if several else (found,), strict=False):
                if not is_weak:
                    x = np.asarray(x)
                    if np.may_share_memory(x, arena):  # it is an argument, or a view of one
                        x = x.copy()
                values[key] = x
            for key, dtype, cells in moved:
                x = values[key, "kept"] = contiguous(np.asarray(values[key], dtype))
                address = x.__array_interface__["data"][0]
                for cell, by in cells:
                    cell.value = address + by

        return call

    def _reader(self, v: Any) -> Callable[[], Any]:
        """Return a function that returns the value of the view ``v``; ``v`` itself if it is no view."""
        if not isinstance(v, View):
            return lambda: v
        node, numbers, values = v.node, self.numbers, self.values
        if node.op == "number":
            k = node.params
            if v.weak:
                return lambda: numbers.item(k)
            return self._viewed(v, lambda: np.asarray(numbers.item(k), node.dtype))
        if node.op == "part":
            key = node.args[0].node.id, node.params
            return (lambda: values[key]) if v.weak else self._viewed(v, lambda: values[key])
        if node.op == "source":
            at = self.rows[node.params].ctypes.data + 8 * Input.HELD
            cell = ctypes.py_object.from_address(at)
            return self._viewed(v, lambda: cell.value)
        if node.op == "constant" or not node.size:
            base = node.value if node.op == "constant" else np.empty(node.shape, node.dtype)
            found = self._viewed(v, lambda: base)()
        else:
            found = self.array(v)
        return (lambda: found.item()) if v.weak else (lambda: found)

    @staticmethod
    def _viewed(v: View, read: Callable[[], Any]) -> Callable[[], Any]:
        """Return a function that returns the elements of ``v``; ``read()`` returns the array of its node."""
        if v.is_whole():
            return read if v.shape == v.node.shape else lambda: read().reshape(v.shape)
        return lambda: strided(contiguous(read()), v)


def _cells(flat: list[int]) -> list[tuple[Any, int]]:
    """Return each slot as a C integer, with the number of bytes that is added to the address in it."""
    return [(ctypes.c_int64.from_address(at), by) for at, by in zip(flat[::2], flat[1::2], strict=True)]


def contiguous(a: Any) -> Any:
    """Return the array ``a`` itself if it is contiguous and aligned, otherwise a contiguous copy."""
    a = np.asarray(a)  # ``a`` may be a Python number
    flags = a.flags
    return a if flags.c_contiguous and flags.aligned else a.copy()


def strided(base: Any, v: View) -> Any:
    """Return the elements of the contiguous array ``base`` that ``v`` describes, as a read-only array."""
    flat, size = base.reshape(-1), v.dtype.itemsize
    return np.lib.stride_tricks.as_strided(
        flat[v.offset :], v.shape, tuple([s * size for s in v.strides]), writeable=False
    )
