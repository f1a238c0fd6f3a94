"""Sums in a fixed order, and the division of rows among ranks.

A sum of pieces has the same bits on any number of ranks, if each rank has 1, 2, 4, … pieces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

__all__ = ["PieceSum", "share", "tree_sum"]

Array = ndarray[Any, Any]


def tree_sum(parts: list[Array], out: Array | None = None) -> Array:
    """Return the sum of arrays, added in pairs, then in pairs of pairs, and so on; overwrite the arrays.

    ``parts`` have one shape and dtype, in the order of the ranks.  The sum is stored in ``out``, by default
    in the memory of the first array.
    """
    while len(parts) > 2:
        pairs = [np.add(a, b, out=a) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(parts) & ~1 :]
    out = parts[0] if out is None else out
    if len(parts) == 2:
        return np.add(parts[0], parts[1], out=out)
    np.copyto(out, parts[0])
    return out


def share(count: int, size: int, rank: int) -> tuple[int, int]:
    """Return the range of items of one rank.

    Parameters
    ----------
    count : int
        Number of items.
    size : int
        Number of ranks.
    rank : int
        The rank, from 0.

    Returns
    -------
    tuple of int
        First item, and the item after the last one.  Shares differ by at most one item.

    Examples
    --------
    >>> [share(7, 3, rank) for rank in range(3)]
    [(0, 2), (2, 4), (4, 7)]
    """
    return count * rank // size, count * (rank + 1) // size


class PieceSum:
    """A running sum of arrays, which are added in the order of ``tree_sum``.

    After n additions at most log₂(n) + 1 partial sums are stored, like the digits of a binary counter.
    """

    __slots__ = ("_partial",)

    def __init__(self) -> None:
        self._partial: list[tuple[int, Array]] = []  # (level, sum of 2**level pieces), levels descending

    def add(self, piece: Array) -> None:
        """Add the array ``piece`` to the sum.  Later calls may overwrite ``piece``."""
        level = 0
        while self._partial and self._partial[-1][0] == level:
            before = self._partial.pop()[1]
            piece, level = np.add(before, piece, out=before), level + 1
        self._partial.append((level, piece))

    def total(self) -> Array | None:
        """Return the sum of all arrays and reset it, or None if no array was added."""
        if not self._partial:
            return None
        _, found = self._partial.pop()
        while self._partial:
            before = self._partial.pop()[1]
            found = np.add(before, found, out=before)
        return found
