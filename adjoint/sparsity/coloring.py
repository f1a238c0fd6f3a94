"""Colours of rows and columns: those of one colour are computed by one product.

Two columns may have the same colour if no row has entries in both.  For a symmetric matrix a star colouring
needs fewer: entries of one colour in a row are allowed if each can be read at its transposed position.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from adjoint.typing import Array

__all__ = ["Colours", "column_colours", "split_colours", "star_colours"]

Colours = Array  # the colour of each column or row, -1 for those that need none

_TRIES = 512  # lattice colourings that are tried
_SAMPLES = (8, 500)  # numbers of rows on which they are tried first


def column_colours(p: Any, shapes: Sequence[Sequence[int]] = ()) -> Colours:
    """Return colours of the columns of a pattern: no row has two entries of one colour.

    Columns without entries have the colour -1.  ``shapes`` are the shapes of the inputs, whose elements are
    the columns: the columns of a stencil on a grid need as few colours as a row has entries.
    """
    least = int(np.diff(p.indptr).max(initial=0))
    by_columns = p.tocsc()
    found = _lattice_colours(p, by_columns, shapes, least, least)
    if found is not None:
        return found
    found = _greedy(p, by_columns, range(p.shape[1]))
    if _count(found) > least:
        largest = _greedy(p, by_columns, _largest_first(p, by_columns))
        found = min(found, largest, key=_count)
    better = _lattice_colours(p, by_columns, shapes, least + 1, _count(found) - 1)
    return found if better is None else better


def _count(colours: Colours) -> int:
    return int(colours.max(initial=-1)) + 1


def _largest_first(p: Any, by_columns: Any) -> Iterable[int]:
    """Return the columns, those that share rows with the most other columns first."""
    counts = np.diff(p.indptr)
    degrees = np.bincount(
        np.repeat(np.arange(p.shape[1]), np.diff(by_columns.indptr)),
        weights=counts[by_columns.indices],
        minlength=p.shape[1],
    )
    order: list[int] = np.argsort(-degrees, kind="stable").tolist()
    return order


def _greedy(p: Any, by_columns: Any, order: Iterable[int]) -> Colours:
    """Give each column, in this order, the first colour that no row of the column has.

    The colours that a row has are the bits of an int: this takes time in the number of entries.
    """
    used = [0] * p.shape[0]
    ends: list[int] = by_columns.indptr.tolist()
    entries: list[int] = by_columns.indices.tolist()
    found = [-1] * p.shape[1]
    for j in order:
        rows = entries[ends[j] : ends[j + 1]]
        if rows:
            taken = 0
            for r in rows:
                taken |= used[r]
            bit = ~taken & (taken + 1)
            found[j] = bit.bit_length() - 1
            for r in rows:
                used[r] |= bit
    return np.array(found, np.int64)


def _lattice_colours(
    p: Any, by_columns: Any, shapes: Sequence[Sequence[int]], least: int, most: int
) -> Colours | None:
    """Return a colouring of grids with ``least`` to ``most`` colours; None if there is none.

    The colour of an element of an array is a sum of multiples of its indices, modulo the number of colours.
    """
    if not p.nnz:
        return None
    if len(shapes) == 1 and len(shapes[0]) == 1:
        grids = [_lattice_colours(p, by_columns, [g], least, most) for g in _grids(p)]
        return next((g for g in grids if g is not None), None)
    dims = min(max((len(s) for s in shapes), default=0), 3)
    places = _places(shapes, dims)
    rows = np.linspace(0, p.shape[0] - 1, _SAMPLES[0]).astype(np.int64)
    some = p[rows]
    choices = (
        (count, steps)
        for count in range(max(least, 1), most + 1)
        for steps in itertools.product(range(count), repeat=dims)
    )
    for count, steps in itertools.islice(choices, _TRIES if dims else 0):
        if not _is_free(some, np.dot(steps, places[:, some.indices]) % count, count):
            continue
        colours = np.dot(steps, places) % count
        if all(_is_free(each, colours[each.indices], count) for each in (p[: _SAMPLES[1]], p)):
            colours[np.diff(by_columns.indptr) == 0] = -1
            return colours
    return None


def _grids(p: Any) -> list[tuple[int, int]]:
    """Return shapes of matrices whose flattened elements may be the columns of a pattern, by their distances.

    A line is a matrix with one row.
    """
    n = p.shape[1]
    found = [(1, n)]
    middle = p.shape[0] // 2
    columns = p.indices[p.indptr[middle] : p.indptr[middle + 1]]
    if len(columns) <= 32:
        steps = sorted({abs(int(a) - int(b)) for a in columns for b in columns})
        found += [(n // s, s) for s in steps if 2 < s < n and n % s == 0][:4]
    return found


def _places(shapes: Sequence[Sequence[int]], dims: int) -> Array:
    """Return the indices of all elements of arrays with these shapes, along the first ``dims`` axes."""
    found = np.zeros((dims, sum(map(math.prod, shapes))), np.int64)
    first = 0
    for shape in shapes:
        size = math.prod(shape)
        for axis, index in enumerate(np.indices(shape).reshape(len(shape), size)[:dims]):
            found[axis, first : first + size] = index
        first += size
    return found


def _is_free(p: Any, colours: Colours, count: int) -> bool:
    """Return whether no row has two entries of one colour; each entry has one of ``count`` colours."""
    key = np.repeat(np.arange(p.shape[0]) * count, np.diff(p.indptr)) + colours
    key.sort()
    return not (key[1:] == key[:-1]).any()


def split_colours(p: Any, shapes: Sequence[Sequence[int]] = (), price: float = 1) -> tuple[Array, Colours]:
    """Return the dense rows of a pattern, to be computed one by one, and the colours of the rest.

    So many rows are set apart that the products, one per row and one per colour, take the least time.  A
    product with a row takes ``price`` times as long as one with columns.
    """
    counts = np.diff(p.indptr)
    order = np.argsort(-counts, kind="stable")
    rest = np.append(counts[order], 0)
    apart = int(np.argmin(price * np.arange(len(rest)) + rest))
    dense = np.sort(order[:apart])
    return dense, column_colours(without_rows(p, dense), shapes)


def without_rows(p: Any, rows: Array) -> Any:
    """Return a pattern with these rows empty."""
    if not len(rows):
        return p
    keep = np.ones(p.shape[0], bool)
    keep[rows] = False
    entries = np.repeat(keep, np.diff(p.indptr))
    indptr = np.concatenate([[0], np.cumsum(np.where(keep, np.diff(p.indptr), 0))])
    return type(p)((p.data[entries], p.indices[entries], indptr), shape=p.shape)


def star_colours(p: Any) -> Colours:
    """Return a star colouring of a symmetric pattern.

    Elements that share an entry have different colours, and no path of four elements has only two.  Elements
    without entries have the colour -1.
    """
    n = p.shape[0]
    ends: list[int] = p.indptr.tolist()
    entries: list[int] = p.indices.tolist()
    bits = [0] * n  # the colour of each element, as a bit; 0 for none yet
    seen = [0] * n  # the colours of its neighbours
    twice = [0] * n  # those that several neighbours have
    barred = [0] * n  # the colours of neighbours that have a second neighbour of the element's colour
    for v in range(n):
        if ends[v] == ends[v + 1]:
            continue
        near = [w for w in entries[ends[v] : ends[v + 1]] if w != v]
        taken, double = seen[v], twice[v]
        for w in near:
            if bits[w]:
                taken |= barred[w]
                if bits[w] & double:
                    taken |= seen[w]
        bit = bits[v] = ~taken & (taken + 1)
        for w in near:
            if bits[w] & double:
                barred[w] |= bit
            if not seen[w] & bit:
                seen[w] |= bit
            elif not twice[w] & bit:
                twice[w] |= bit
                if bits[w]:
                    for u in entries[ends[w] : ends[w + 1]]:
                        if bits[u] == bit:
                            barred[u] |= bits[w]
            else:
                barred[v] |= bits[w]
    return np.array([b.bit_length() - 1 for b in bits], np.int64)
