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

__all__ = ["Batch", "solve_each"]


class Batch:
    """The elements of a running ``vmap``."""

    def __init__(self, like: Batched) -> None:
        self.level, self.size = like.level, like.size_
        self.top = running(like.level)

    def element(self, i: int, value: Any) -> Any:
        """Return one element of a value; a value that is the same for all is returned unchanged."""
        if not isinstance(value, Tensor) or not isinstance(value._data, Batched):
            return value
        data = value._data
        if data.level != self.level:
            return value
        whole = data.value if isinstance(data.value, Tensor) else wrap(data.value)
        return whole[i] if data.batched else whole

    def function(self, i: int, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function outside of the ``vmap`` that computes what ``f`` does for one element."""
        return lambda x: tree.map(lambda t: self.element(i, t), within(enclosing, self.top, f, x))

    def inside(self, values: Any) -> Tensor:
        """Return arrays of all elements as a tensor inside the ``vmap``."""
        return wrap(Batched(self.level, self.size, np.ascontiguousarray(values), True))


def solve_each(op: str, solve: Callable[[Any, Any], Any], f: Callable[..., Any], x0: Any) -> Any:
    """Return ``solve(f, x0)``; inside ``vmap`` its result has a row of ``x_flat`` for each element."""
    if enclosing.get() is None:
        return solve(f, x0)
    refuse_tracing(
        f"adjoint.scipy.optimize.{op}",
        "Use ad.root or ad.fixed_point there, or call it outside of the compiled function.",
    )
    start = tree.map(asarray, x0)
    values = [*tree.leaves(start), *tree.leaves(within(grad_mode, False, f, start))]
    top = innermost([t._data for t in values if isinstance(t, Tensor)])
    if not isinstance(top, Batched):
        return solve(f, x0)
    batch = Batch(top)
    found = []
    for i in range(batch.size):
        x = tree.map(lambda t, i=i: batch.element(i, t), start)
        found.append(within(enclosing, batch.top.outer, solve_each, op, solve, batch.function(i, f), x))
    if any(hasattr(r, "batch") for r in found):
        raise InputError(f"{op}: nested ad.vmap is not supported.  Use only one ad.vmap.")
    result = next((r for r in found if not r.success), found[0])
    result.x_flat, result.batch = np.stack([r.x_flat for r in found]), batch
    return result
