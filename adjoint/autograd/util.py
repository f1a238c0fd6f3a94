"""``autograd.util``: the old check of gradients, and tuples with other elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from adjoint.autograd.spaces import quick_grad_check

__all__ = ["func", "quick_grad_check", "subval", "subvals"]
__dir__ = sorted(__all__).copy


def subvals(x: Sequence[Any], ivs: Iterable[tuple[int, Any]]) -> tuple[Any, ...]:
    """Return a tuple of ``x`` with the elements that pairs of a position and a value replace."""
    new = list(x)
    for i, v in ivs:
        new[i] = v
    return tuple(new)


def subval(x: Sequence[Any], i: int, v: Any) -> tuple[Any, ...]:
    """Return a tuple of ``x`` with ``v`` at position ``i``."""
    return subvals(x, [(i, v)])


def func(f: Any) -> Any:
    """Return ``f``; in Python 2 it was the function of a method."""
    return f
