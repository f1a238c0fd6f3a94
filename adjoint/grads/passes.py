"""Passes over large gradients: which are not finite, and adding them, in pieces and by several threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.core.sparse import SparseRows
from adjoint.core.spread import ALONE, SHARED, pieces, scratch, spread, threads_for
from adjoint.grads.norm import all_finite, chunks

__all__ = ["add_all", "copied", "divided", "multiplied", "not_finite"]

Array = ndarray[Any, Any]

LEAST = 1 << 20  # elements that a thread must have: an addition of fewer is over before a helper is awake
LONG = 1 << 20  # elements of a piece that one pass goes over: no second one looks for it in the cache


def not_finite(arrays: Sequence[Array]) -> list[int]:
    """Return the positions of the arrays that have a NaN or an infinity."""
    threads = threads_for(sum([a.size for a in arrays]), LEAST)
    if threads == 1:
        return [i for i, a in enumerate(arrays) if not all_finite(a)]
    found: set[int] = set()

    def look(part: tuple[int, Array]) -> None:
        i, a = part
        if i not in found and not all_finite(a):
            found.add(i)

    spread(look, [(i, piece) for i, a in enumerate(arrays) for piece in _cut(a)], threads)
    return sorted(found)


def add_all(sums: Sequence[tuple[Array, Array, bool]], factor: float) -> None:
    """Add factor·gradient to each sum, in place: (sum, gradient, whether the sum is still empty)."""
    threads = threads_for(sum([g.size for _, g, _ in sums]), LEAST)
    # a product is made in a scratch array, which must not leave the cache before it is added
    most = ALONE if threads == 1 else 2 * SHARED
    parts: list[tuple[Array, Array, bool]] = []
    for total, given, empty in sums:
        g = wide(given)
        if (threads == 1 and factor == 1.0) or not (total.flags.c_contiguous and g.flags.c_contiguous):
            parts.append((total, g, empty))
        else:
            flat, grad = total.reshape(-1), g.reshape(-1)
            cuts = pieces(flat.size, LONG if factor == 1.0 else most // flat.itemsize)
            parts += [(flat[s], grad[s], empty) for s in cuts]

    def add(part: tuple[Array, Array, bool]) -> None:
        total, g, empty = part
        if empty and factor == 1.0:
            np.copyto(total, g, casting="same_kind")
        elif empty:
            np.multiply(g, factor, out=total, dtype=total.dtype)
        elif factor == 1.0:
            np.add(total, g, out=total)
        elif total.ndim == 1 and total.nbytes <= most:
            product = scratch(total.size, total.dtype)
            np.multiply(g, factor, out=product, dtype=total.dtype)
            np.add(total, product, out=total)
        else:  # not contiguous
            for t, piece in chunks(total, g, written=1):
                np.add(t, np.multiply(piece, factor, dtype=total.dtype), out=t)

    spread(add, parts, threads)


def wide(g: Array) -> Array:
    """Return bfloat16, with which NumPy's loops do not mix, as float32."""
    return g if g.dtype.kind in "fc" else g.astype(np.float32)


def _cut(a: Array) -> list[Array]:
    if not a.flags.c_contiguous:
        return [a]
    flat = a.reshape(-1)
    return [flat[s] for s in pieces(flat.size, LONG)]


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
