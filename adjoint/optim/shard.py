"""Optimiser state that is divided into slices, one per rank (ZeRO-1).

A rank updates its own slice of the parameters and receives the other slices from the other ranks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from adjoint import words
from adjoint.core.inplace import writable
from adjoint.core.tensor import Tensor, read_only
from adjoint.distributed.group import Group
from adjoint.distributed.order import share
from adjoint.errors import InputError
from adjoint.optim.groups import Array, Block, Hyper, State, Unit, Update, fitted

if TYPE_CHECKING:
    from adjoint.optim.optimizer import Optimizer

__all__ = ["ShardedUnit", "check_ranks"]


def check_ranks(kind: str, shard: Any) -> None:
    """Raise if ``shard`` is not a ``distributed.Group``; ``kind`` is the name of the optimiser's class."""
    if not isinstance(shard, Group):
        raise InputError(f"{kind}: shard must be a distributed.Group, not {words.a(type(shard).__name__)}.")


class ShardedUnit(Unit):
    """Parameters that are updated together; this rank keeps only its slice of their state arrays."""

    def __init__(self, params: list[Tensor], block: Block | None, ranks: Group) -> None:
        super().__init__(params, block)
        self.ranks = ranks
        self.size = sum(p.size for p in params)
        self.bounds = [share(self.size, ranks.size, rank) for rank in range(ranks.size)]
        self.own = slice(*self.bounds[ranks.rank])

    def updates(
        self, optimizer: Optimizer, grads: list[Any], hyper: Hyper, scatters: list[Callable[[], None]]
    ) -> list[Update]:
        """Return the updates of this rank's slice; ``grads`` has a gradient or None for each parameter.

        A function that exchanges the updated slices between all ranks is appended to ``scatters``.  The
        caller must call it after the updates are written.
        """
        if all(g is None for g in grads):
            return []
        pairs = zip(grads, self.params, strict=True)
        given: list[Any] = [None if g is None else fitted(g, p) for g, p in pairs]
        flat = self.block.open() if self.block is not None else writable(self.params[0]).reshape(-1)
        self.steps = list(map(operator.add, self.steps, [g is not None for g in given]))
        state = self._need_state(optimizer, flat[self.own], hyper)
        found: list[Update] = []
        if set(map(type, given)) == {ndarray} and len(set(self.steps)) == 1:  # the usual case
            whole = given[0].reshape(-1) if len(given) == 1 else self._joined(given, flat)
            found.append((flat[self.own], whole[self.own], state, {**hyper, "step": self.steps[0]}))
        else:
            for p, g, step in zip(self.params, given, self.steps, strict=True):
                if g is not None:
                    found += self._update_of(flat, p, g, state, {**hyper, "step": step}, scatters)
        scatters.append(partial(self.ranks.collect, flat, self.bounds, "the slices of updated parameters"))
        return [update for update in found if update[0].size]

    def _joined(self, given: list[Any], flat: Array) -> Array:
        if self.grad is None:
            self.grad = np.empty_like(flat)
        return np.concatenate(given, None, self.grad)

    def _update_of(
        self, flat: Array, p: Tensor, g: Any, state: State, hyper: Hyper, scatters: list[Callable[[], None]]
    ) -> list[Update]:
        """Return a list with the update of the part of ``p`` in this rank's slice; empty if there is no part.

        ``flat`` has the values of all parameters of the unit, ``state`` only this rank's slice of the state
        arrays.  ``g`` is the gradient of ``p``.
        """
        s, own = self.slice_of(p), self.own
        low, high = max(s.start, own.start), min(s.stop, own.stop)
        if low >= high:
            return []
        if type(g) is ndarray:
            part = {k: v[low - own.start : high - own.start] for k, v in state.items()}
            return [(flat[low:high], g.reshape(-1)[low - s.start : high - s.start], part, hyper)]
        grad = g.coalesce()
        width = p.size // p.shape[0]
        at = (grad.rows[:, None] * width + np.arange(width)).reshape(-1) + s.start
        mine = (at >= low) & (at < high)
        at = at[mine]
        piece, part = flat[at], {k: v[at - own.start] for k, v in state.items()}

        def scatter() -> None:
            flat[at] = piece
            for name, value in part.items():
                state[name][at - own.start] = value

        scatters.append(scatter)
        return [
            (piece, np.asarray(grad.values).reshape(-1)[mine].astype(flat.dtype, copy=False), part, hyper)
        ]

    def kept(self, state: State) -> State:
        """Return a copy of this rank's slice of each state array."""
        return {name: value[self.own].copy() for name, value in state.items()}

    def state_of(self, p: Tensor, copy: bool) -> State:
        """Collect the state arrays of one parameter from all ranks and return them.

        All ranks must make this call.
        """
        s = self.slice_of(p)
        bounds = [
            (min(max(a, s.start), s.stop) - s.start, min(max(b, s.start), s.stop) - s.start)
            for a, b in self.bounds
        ]
        start, stop = bounds[self.ranks.rank]
        found: State = {}
        for name, value in (self.state or {}).items():
            whole = np.zeros(p.size, value.dtype)
            whole[start:stop] = value[start + s.start - self.own.start : stop + s.start - self.own.start]
            self.ranks.collect(whole, bounds, "the state of an optimiser")
            found[name] = whole.reshape(p.shape) if copy else read_only(whole.reshape(p.shape))
        return found
