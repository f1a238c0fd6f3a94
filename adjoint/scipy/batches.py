"""Solvers of SciPy inside ``ad.vmap``: one call for each element of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.config import grad_mode, within
from adjoint.core.batched import Batched
from adjoint.core.convert import asarray
from adjoint.core.lifted import enclosing, refuse_tracing, running
from adjoint.core.record import innermost
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import InputError

__all__ = ["Batch", "batch_of", "solve_each"]


class Batch:
    """The batch of a running ``vmap``: access to its elements from outside of the ``vmap``."""

    def __init__(self, like: Batched) -> None:
        self.level, self.size = like.level, like.size_
        self.top = running(like.level)

    def element(self, i: int, value: Any) -> Any:
        """Return element ``i`` of a batched value; other values are returned unchanged."""
        if not isinstance(value, Tensor) or not isinstance(value._data, Batched):
            return value
        data = value._data
        if data.level != self.level:
            return value
        whole = data.value if isinstance(data.value, Tensor) else wrap(data.value)
        return whole[i] if data.batched else whole

    def function(self, i: int, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function, for use outside of the ``vmap``, that computes ``f`` for element ``i``."""
        return lambda x: tree.map(lambda t: self.element(i, t), within(enclosing, self.top, f, x))

    def outside(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function outside of the ``vmap``."""
        return within(enclosing, self.top.outer, function, *args)

    def inside(self, values: Any) -> Tensor:
        """Return an array with a row for each element as a tensor inside the ``vmap``."""
        return wrap(Batched(self.level, self.size, np.ascontiguousarray(values), True))


def batch_of(op: str, cure: str, f: Callable[..., Any], *given: Any) -> Batch | None:
    """Return the ``vmap`` batch that tensors in ``given`` or in ``f(given[-1])`` belong to, or None.

    Raises inside ``ad.compile``; ``op`` and ``cure`` are the function and the remedy in the message.
    """
    if enclosing.get() is None:
        return None
    refuse_tracing(f"adjoint.scipy.{op}", cure)
    with np.errstate(all="ignore"):
        values = [*tree.leaves(given), *tree.leaves(within(grad_mode, False, f, given[-1]))]
    top = innermost([t._data for t in values if isinstance(t, Tensor)])
    return Batch(top) if isinstance(top, Batched) else None


def solve_each(op: str, solve: Callable[[Any, Any], Any], f: Callable[..., Any], x0: Any) -> Any:
    """Return ``solve(f, x0)``; inside ``vmap``, the ``x_flat`` of the result has a row for each element."""
    start = tree.map(asarray, x0) if enclosing.get() is not None else x0
    cure = "Use ad.root or ad.fixed_point there, or call it outside of the compiled function."
    batch = batch_of(f"optimize.{op}", cure, f, start)
    if batch is None:
        return solve(f, x0)
    found = []
    for i in range(batch.size):
        x = tree.map(lambda t, i=i: batch.element(i, t), start)
        found.append(batch.outside(solve_each, op, solve, batch.function(i, f), x))
    if any(hasattr(r, "batch") for r in found):
        raise InputError(f"{op}: nested ad.vmap is not supported.  Use only one ad.vmap.")
    result = next((r for r in found if not r.success), found[0])
    result.x_flat, result.batch = np.stack([r.x_flat for r in found]), batch
    return result
