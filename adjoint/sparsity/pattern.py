"""Patterns: boolean matrices in CSR form, with a row for each element of a value.

The columns are the elements of the inputs.  A row contains the inputs that an element may depend on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.errors import InputError
from adjoint.scipy.fallback import scipy_module
from adjoint.typing import Array

__all__ = [
    "MOST", "check_count", "dense_row", "grouped", "identity", "made", "numbered", "placed", "selected",
    "stacked", "union",
]  # fmt: skip

Pattern = Any  # a scipy.sparse.csr_array of booleans, with sorted columns and without duplicates

MOST = 200_000_000  # entries of one pattern: 1 GB


def check_count(count: int) -> None:
    """Raise if a pattern would have too many entries to be stored."""
    if count > MOST:
        raise InputError(
            f"sparse: a value depends on so many inputs that its pattern has {count:.1e} entries, more than "
            f"{MOST:.0e}.\n"
            "  This derivative is dense.  Use products with it (ad.jvp, ad.vjp, ad.hvp), or split the part "
            "that mixes all inputs (a sum, a norm, a softmax) from the function."
        )


def made(indices: Array, indptr: Array, columns: int) -> Pattern:
    """Return the pattern with these arrays, which scipy.sparse calls ``indices`` and ``indptr``."""
    kind = np.int32 if len(indices) < 2**31 and columns < 2**31 else np.int64
    entries = np.ones(len(indices), bool)
    shape = len(indptr) - 1, columns
    arrays = entries, indices.astype(kind, copy=False), indptr.astype(kind, copy=False)
    return scipy_module("sparse").csr_array(arrays, shape=shape)


def placed(rows: Array, cols: Array, shape: tuple[int, int]) -> Pattern:
    """Return the pattern with entries at these positions, which may repeat."""
    check_count(len(rows))
    entries = np.ones(len(rows), bool)
    found = scipy_module("sparse").coo_array((entries, (rows, cols)), shape=shape).tocsr()
    found.sum_duplicates()
    return found


def identity(count: int) -> Pattern:
    """Return the pattern of ``count`` inputs: each depends on itself."""
    return made(np.arange(count), np.arange(count + 1), count)


def union(a: Any, b: Any) -> Any:
    """Return the entries of two patterns of the same shape; None has none.

    An argument that contains the other is returned itself.
    """
    if a is None or b is None or a is b:
        return b if a is None else a
    both = a + b
    return a if both.nnz == a.nnz else b if both.nnz == b.nnz else both


def selected(p: Pattern, index: Array) -> Pattern:
    """Return the rows ``index - 1`` of a pattern; an empty row for the index 0."""
    check_count(index.size)
    index = index.reshape(-1)
    counts = np.concatenate([[0], np.diff(p.indptr)])[index]
    check_count(int(counts.sum()))
    ends = np.concatenate([[0], np.cumsum(counts)])
    starts = np.concatenate([[0], p.indptr[:-1]])[index]
    places = np.repeat(starts - ends[:-1], counts) + np.arange(ends[-1])
    return made(p.indices[places], ends, p.shape[1])


def grouped(p: Pattern, group: Array, count: int) -> Pattern:
    """Return ``count`` rows: row ``g`` is the union of the rows whose group is ``g + 1``, not 0."""
    group = group.reshape(-1)
    rows = np.repeat(group, np.diff(p.indptr))
    if p.nnz and not group.all():
        keep = rows > 0
        return placed(rows[keep] - 1, p.indices[keep], (count, p.shape[1]))
    return placed(rows - 1, p.indices, (count, p.shape[1]))


def dense_row(p: Pattern) -> Pattern:
    """Return the union of all rows, as one row."""
    cols = np.unique(p.indices)
    return made(cols, np.array([0, len(cols)]), p.shape[1])


def stacked(parts: Sequence[Pattern]) -> Pattern:
    """Return the rows of several patterns, one below the other."""
    if len(parts) == 1:
        return parts[0]
    indptr = [np.zeros(1, np.int64)]
    total = 0
    for p in parts:
        indptr.append(p.indptr[1:].astype(np.int64) + total)
        total += p.nnz
    check_count(total)
    return made(np.concatenate([p.indices for p in parts]), np.concatenate(indptr), parts[0].shape[1])


def numbered(shape: Sequence[int], first: int = 1) -> Array:
    """Return an array of this shape whose elements are numbered from ``first``."""
    count = math.prod(shape)
    check_count(count)
    return np.arange(first, first + count).reshape(shape)
