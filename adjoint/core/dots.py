"""Dot products of vectors of any length in one thread.

OpenBLAS starts threads for more than 10,000 elements.  On a machine with other work this takes 8 to 16 ms
instead of 5 µs, and the last bits depend on the number of threads.  So long vectors are multiplied in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["PIECE", "dot", "pieces"]

PIECE = 1 << 13  # elements of one product


def dot(x: Any, y: Any) -> Any:
    """Return the sum of the products of the elements of two 1-d arrays of equal length.

    >>> import numpy as np
    >>> float(dot(np.ones(20_000), np.arange(20_000.0)))
    199990000.0
    """
    if x.size <= PIECE:
        return x.dot(y)
    total, *others = (p.dot(q) for p, q in zip(pieces(x), pieces(y), strict=True))
    for each in others:
        total += each
    return total


def pieces(x: Any) -> Iterator[Any]:
    """Yield views of a 1-d array, of at most ``PIECE`` elements each."""
    for start in range(0, x.size, PIECE):
        yield x[start : start + PIECE]
