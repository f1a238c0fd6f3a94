"""Checks of the orders of special functions, which are numbers or arrays of numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError

__all__ = ["of_each_order", "real_order", "whole_order"]


def whole_order(op: str, n: Any, least: int | None = None) -> int:
    """Return the order ``n`` as an int; raise if it is not an integer or is less than ``least``."""
    try:
        order = operator.index(n)
    except TypeError:
        raise InputError(f"{op}: the order must be an integer, but got {n!r}.") from None
    if least is not None and order < least:
        raise ArgumentError(f"{op}: the order must be at least {least}, but got {order}.")
    return order


def real_order(op: str, v: Any) -> float:
    """Return the order ``v`` as a float, or as an int if it is an integer; raise if it is not a number."""
    if isinstance(v, Tensor) or not isinstance(v, (int, float, np.integer, np.floating)):
        raise InputError(
            f"{op}: the order must be a number, but is {v!r}.  adjoint has no derivative with respect to the "
            "order."
        )
    return int(v) if float(v).is_integer() else float(v)


def of_each_order(op: Callable[..., Tensor], orders: Any, x: Any, check: Callable[[Any], Any]) -> Tensor:
    """Return ``op(x, n=orders)``; if ``orders`` is an array, broadcast it with ``x``.

    The op accepts only one order, so it is called once for each distinct order.  ``check`` checks and
    converts an order.
    """
    t = asarray(x)
    if isinstance(orders, Tensor) or not isinstance(orders, (np.ndarray, list, tuple)):
        return op(t, n=check(orders))
    given = np.asarray(orders)
    found = rec.broadcast_to(t * 0, shape=np.broadcast_shapes(given.shape, t.shape))
    for n in np.unique(given):
        found = rec.where(given == n, op(t, n=check(n)), found)
    return found
