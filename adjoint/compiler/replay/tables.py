"""Gradients of large tables, for programs that NumPy runs; a call uses only a few rows of a table.

A dense gradient is as large as the table.  The ``.grad`` that the last call made differs from the new one
only in the rows of these two calls.  If nothing else refers to that ``.grad``, these rows are written into
it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.compiler.program.program import Instruction, Program
from adjoint.core.native import LARGE
from adjoint.core.references import OF_TENSOR
from adjoint.core.tensor import Tensor

__all__ = ["Table", "fill_tables", "tables_of"]

_FEW = 4  # the part of the rows that a call may use: one of four

Undo = list[tuple[Callable[..., None], Any, Any]]
Tables = Sequence[tuple["Table", tuple[int, ...]]]  # and the positions of its gradient among the outputs


class Table:
    """A tensor whose gradient a program computes by ``untake`` along the first axis."""

    __slots__ = ("array", "params", "rows", "tensor", "untake")

    def __init__(self, tensor: Tensor, i: Instruction) -> None:
        self.tensor = tensor
        self.untake: Callable[..., Any] = i.op.forward
        self.params = i.params
        self.rows: Any = None  # those that are not 0 in the gradient that the last call made
        self.array: Callable[[], Any] = lambda: None  # a weak reference to that gradient

    @np.errstate(all="ignore")  # as in a backward
    def gradient(self, undo: Undo, g: Any, rows: Any) -> Any:
        """Return the dense gradient; append an item that restores the last call's gradient to ``undo``.

        ``g`` has the gradients of the rows ``rows``.
        """
        out = self._present()
        if out is None:
            out = np.zeros(self.tensor.shape, g.dtype)
        else:
            undo.append((self._restore, (out, rows), (self.rows, out[self.rows])))
            out[self.rows] = 0
        self.untake(g, rows, **self.params, out=out)
        self.rows, self.array = rows.copy(), weakref.ref(out)
        return out

    def _present(self) -> Any:
        """Return the array of ``.grad`` if the last call made it and nothing has changed or refers to it.

        Otherwise return None.
        """
        extra = self.tensor._extra
        grad = None if extra is None else extra.grad
        if type(grad) is not Tensor or grad._version or grad._node is not None:
            return None
        data = grad._data
        if self.array() is not data or sys.getrefcount(grad) > OF_TENSOR or sys.getrefcount(data) > OF_TENSOR:
            return None
        return data

    def _restore(self, written: tuple[Any, Any], before: tuple[Any, Any]) -> None:
        out, rows = written
        out[rows] = 0
        self.rows, values = before
        out[self.rows] = values
        self.array = weakref.ref(out)


def tables_of(program: Program, body: Sequence[Instruction]) -> dict[int, Table]:
    """Return the tables of a program, whose gradients are mostly zero, by the id of their gradient.

    The gradient must be large, have few rows that are not 0, and be only assigned to ``.grad`` and passed to
    optimisers.  ``body`` are the instructions that the program runs.
    """
    makers = {i.outs[0].id: i for i in body if i.op.name == "untake"}
    if not makers:
        return {}
    used = {v.id for v in program.results}
    used.update(a.id for i in body for a in i.args if hasattr(a, "id"))
    used.update(v.id for w in program.writes if w.kind not in ("grad", "call") for v in w.values)
    found: dict[int, Table] = {}
    for w in program.writes:
        key = getattr(w.values[0], "id", -1) if w.kind == "grad" else -1
        i = None if key in used or key in found else makers.get(key)
        if i is not None and type(w.owner) is Tensor and _is_large(i):
            found[key] = Table(w.owner, i)
    return found


def _is_large(i: Instruction) -> bool:
    """Return whether the instruction ``i``, an ``untake``, writes a few rows of a large array."""
    (out,), (g, rows) = i.outs, i.args
    first = g.ndim - rows.ndim + i.params["axis"] + 1 == 0
    few = rows.size > 0 and rows.size * _FEW <= i.params["length"]
    return first and few and out.dtype.char in "fd" and out.size * out.dtype.itemsize >= LARGE


def fill_tables(undo: Undo, found: Sequence[Any], tables: Tables) -> list[Any]:
    """Return the outputs ``found`` of a program, with pairs (rows of a gradient, indices) made gradients.

    ``tables`` has the tables and the positions of their gradients among the outputs; ``undo`` is as in
    ``Table.gradient``.
    """
    outs = list(found)
    for table, places in tables:
        gradient = table.gradient(undo, *outs[places[0]])
        for k in places:
            outs[k] = gradient
    return outs
