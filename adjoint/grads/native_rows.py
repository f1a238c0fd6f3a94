"""Native forms of the sums of repeated rows of sparse gradients, for compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["native_first_sums", "native_row_sums", "with_first_sums"]


def native_row_sums(xp: Any, rows: Any, values: Any) -> Any:
    """Return, for each occurrence of a row, the sum of the values of all its occurrences."""
    return _sums(xp, rows, values)[0]


def native_first_sums(xp: Any, rows: Any, values: Any) -> Any:
    """Return the sum of a row's values at its first occurrence, and 0 at the others."""
    sums, first = _sums(xp, rows, values)
    here = np.arange(first.shape[0]).reshape(-1, *(1,) * (values.ndim - 1))
    return xp.where(xp.graph.reshape(first, here.shape) == here, sums, 0)


def _sums(xp: Any, rows: Any, values: Any) -> tuple[Any, Any]:
    """Return the sum of each occurrence's row, and the position of the row's first occurrence."""
    count, width = rows.shape[0], values.size // max(1, rows.shape[0])
    order = xp.order(rows)
    place = xp.searchsorted(xp.gather(rows, order), rows, side="left")  # the same for all occurrences
    start = xp.full((count * width,), 0, values.dtype)
    sums = xp.scatter("add", start, place * width, xp.flat(values), width)
    spots = xp.graph.reshape(xp.graph.copied(place * width), (count, 1)) + np.arange(width)
    return xp.graph.reshape(xp.gather(sums, spots), values.shape), xp.gather(order, place)


def with_first_sums(native: Callable[..., Any], places: list[int], count: int) -> Callable[..., Any]:
    """Return a native form that sums the rows of sparse gradients first, and then calls ``native``.

    Its operands are ``count`` gradients, those at ``places`` by their values, then the rows of each of these.
    """

    def whole(xp: Any, *given: Any) -> Any:
        grads = list(given[:count])
        for i, rows in zip(places, given[count:], strict=False):
            grads[i] = native_first_sums(xp, rows, grads[i])
        return native(xp, *grads, *given[count + len(places) :])

    return whole
