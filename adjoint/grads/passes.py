"""Passes over large gradients: which are not finite, and adding them, in pieces and by several threads.

Callers have turned NumPy's warnings off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.core.sparse import SparseRows
from adjoint.core.spread import ALONE, SHARED, pieces, spread, spread_in_turn, threads_for
from adjoint.grads.norm import all_finite_unwarned, chunks

__all__ = ["add_all", "add_if_finite", "copied", "divided", "multiplied", "not_finite"]

Array = ndarray[Any, Any]

LEAST = 1 << 20  # elements that a thread must have: an addition of fewer is over before a helper is awake
LINE = 1 << 10  # shares begin at whole multiples, so that no two threads write to one line of the cache

Addition = tuple[Array, Array, bool]  # a sum, a gradient, whether the sum is still empty
Share = list[tuple[int, slice | None]]  # positions of arrays, and what of them as flat ones: None is all


def not_finite(arrays: Sequence[Array]) -> list[int]:
    """Return the positions of the arrays that have a NaN or an infinity."""
    threads = _threads(arrays)
    found: set[int] = set()
    spread(_look(arrays, found), _shares(arrays, threads), threads)
    return sorted(found)


def add_all(sums: Sequence[Addition], factor: float) -> None:
    """Add factor·gradient to each sum, in place."""
    threads = _threads([g for _, g, _ in sums])
    spread(*_addition(sums, factor, threads), threads)


def add_if_finite(sums: Sequence[Addition], factor: float) -> list[int]:
    """Add factor·gradient to each sum; or add nothing and return which gradients are not finite."""
    arrays = [g for _, g, _ in sums]
    threads = _threads(arrays)
    found: set[int] = set()
    look = _look(arrays, found), _shares(arrays, threads, 1)  # a dot product of few rows keeps the lock
    spread_in_turn(look, _addition(sums, factor, threads), threads, unless=lambda: found)
    return sorted(found)


def _threads(arrays: Sequence[Array]) -> int:
    return threads_for(sum([a.size for a in arrays]), LEAST)


def _shares(arrays: Sequence[Array], threads: int, each: int = 2) -> list[Share]:
    """Cut arrays into ``each`` shares for each thread, about equal."""
    if threads == 1:
        return [[(i, None) for i in range(len(arrays))]]
    count = threads * each
    length = -(-sum([a.size for a in arrays]) // count)
    shares: list[Share] = [[]]
    room = length
    for i, a in enumerate(arrays):
        start = 0
        while start < a.size:
            if room < LINE and len(shares) < count:
                shares.append([])
                room = length
            whole = not a.flags.c_contiguous or a.size - start <= room or len(shares) == count
            stop = a.size if whole else start + room // LINE * LINE
            shares[-1].append((i, None if stop - start == a.size else slice(start, stop)))
            room -= stop - start
            start = stop
    return shares


def _part(a: Array, of: slice | None) -> Array:
    return a if of is None else a.reshape(-1)[of]


def _look(arrays: Sequence[Array], found: set[int]) -> Callable[[Share], None]:
    def look(share: Share) -> None:
        for i, of in share:
            if i not in found and not all_finite_unwarned(_part(arrays[i], of)):
                found.add(i)

    return look


def _addition(
    sums: Sequence[Addition], factor: float, threads: int
) -> tuple[Callable[[Share], None], list[Share]]:
    # a product is made in an array of its own, which must not leave the cache before it is added
    most = ALONE if threads == 1 else 2 * SHARED

    def add(share: Share) -> None:
        for i, of in share:
            total, g, empty = sums[i]
            _add_one(_part(total, of), wide(_part(g, of)), empty, factor, most)

    # of the two arrays the one that may not be cut
    arrays = [g if total.flags.c_contiguous else total for total, g, _ in sums]
    # backwards: what was looked at last is still in the cache (8,000,000 float32: 3% of a check and addition)
    return add, _shares(arrays, threads, 8)[::-1]


def _add_one(total: Array, g: Array, empty: bool, factor: float, most: int) -> None:
    if empty and factor == 1.0:
        np.copyto(total, g, casting="same_kind")
    elif empty:
        np.multiply(g, factor, out=total, dtype=total.dtype)
    elif factor == 1.0:
        np.add(total, g, out=total)
    elif total.flags.c_contiguous and g.flags.c_contiguous:
        flat, grad = total.reshape(-1), g.reshape(-1)
        room = np.empty(min(flat.size, most // flat.itemsize), flat.dtype)
        for s in pieces(flat.size, room.size) if flat.size else ():
            product = room[: s.stop - s.start]
            np.multiply(grad[s], factor, out=product, dtype=flat.dtype)
            np.add(flat[s], product, out=flat[s])
    else:
        for t, piece in chunks(total, g, written=1):
            np.add(t, np.multiply(piece, factor, dtype=total.dtype), out=t)


def wide(g: Array) -> Array:
    """Return bfloat16, with which NumPy's loops do not mix, as float32."""
    return g if g.dtype.kind in "fc" else g.astype(np.float32)


def divided(total: Any, divisor: float, dtype: Any) -> Any:
    """Return a sum, dense or sparse, over a number, in new arrays."""
    if type(total) is SparseRows:
        return total.mapped(np.divide(total.values, divisor, dtype=dtype))
    return np.asarray(np.divide(total, divisor, dtype=dtype))


def multiplied(g: Any, factor: float) -> Any:
    """Return a gradient times a number; a dense one is written to."""
    if type(g) is SparseRows:
        return g.mapped(np.multiply(g.values, factor, dtype=g.dtype))
    return np.multiply(g, factor, out=g) if g.shape else np.asarray(np.multiply(g, factor, dtype=g.dtype))


def copied(g: Any) -> Any:
    """Return a gradient in an array of its own; rows and values are never written to."""
    return g if type(g) is SparseRows else g.copy()
