"""Updates of the rows of a table that have a sparse gradient, as parts of a compiled program."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.namespace import dyn
from adjoint.core.sparse import SparseRows
from adjoint.grads.native_rows import native_row_sums
from adjoint.typing import Array

__all__ = ["TracedRows"]


class TracedRows:
    """The rows of a table that an update changes; a row that occurs several times has one sum and one value.

    ``gradient`` has, for each occurrence of a row, the sum of its values, so all occurrences of a row get the
    same new values.
    """

    def __init__(self, trace: Any, g: SparseRows) -> None:
        self.trace, self.rows = trace, g.rows
        self.length, self.count = g.shape[0], g.rows.shape[0]
        self.width = int(np.prod(g.shape[1:]))
        values = dyn.reshape(g.values, shape=(self.count, self.width))
        specs = [(values.shape, values.dtype)]
        (found,) = trace.call("row_sums", _row_sums, [self.rows, values], specs, lower=native_row_sums)
        self.gradient = dyn.reshape(found, shape=(self.count * self.width,))

    def read(self, whole: Any) -> Any:
        """Return the rows of a flat array, flat."""
        table = dyn.reshape(whole, shape=(self.length, self.width))
        return dyn.reshape(dyn.take(table, self.rows, axis=-2), shape=(self.count * self.width,))

    def write(self, whole: Any, new: Any) -> Any:
        """Return a flat array with new rows."""
        specs = [(whole.shape, whole.dtype)]
        return self.trace.call("put_rows", _put_rows, [whole, self.rows, new], specs, lower=_native_put)[0]


def _row_sums(rows: Array, values: Array) -> Array:
    whole = SparseRows(rows, values, (0, values.shape[1])).coalesced()
    return np.asarray(whole.values[np.searchsorted(whole.rows, rows)])


def _put_rows(whole: Array, rows: Array, new: Array) -> Array:
    found = whole.copy()
    if rows.size:
        found.reshape(-1, new.size // rows.size)[rows] = new.reshape(rows.size, -1)
    return found


def _native_put(xp: Any, whole: Any, rows: Any, new: Any) -> Any:
    if not rows.size:
        return whole
    width = new.size // rows.size
    return xp.scatter("set", whole, rows * width, new, width)
