"""Check the orders of special functions."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError

__all__ = ["real_order", "whole_order"]


def whole_order(op: str, n: Any, least: int | None = None) -> int:
    """Return an integer order; raise if it is not an integer or is less than ``least``."""
    try:
        order = operator.index(n)
    except TypeError:
        raise InputError(f"{op}: the order must be an integer, but got {n!r}.") from None
    if least is not None and order < least:
        raise ArgumentError(f"{op}: the order must be at least {least}, but got {order}.")
    return order


def real_order(op: str, v: Any) -> float:
    """Return a real order, as an int if it is an integer; raise for tensors and arrays."""
    if isinstance(v, Tensor) or np.ndim(v) or not isinstance(v, (int, float, np.integer, np.floating)):
        raise InputError(
            f"{op}: the order must be a number, but is {v!r}.  adjoint has no derivative with respect to the "
            "order."
        )
    return int(v) if float(v).is_integer() else float(v)
