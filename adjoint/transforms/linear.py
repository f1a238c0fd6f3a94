"""The derivative of a recorded run, as a linear function: ``pull_back`` and ``push_along``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.config import grad_mode
from adjoint.core.record import tracked
from adjoint.core.sparse import as_gradient_tensor
from adjoint.core.tensor import Tensor, wrap
from adjoint.engine.push import push_forward
from adjoint.engine.run import differentiate, key_of, seed_at_level
from adjoint.grads.backward import runner_for
from adjoint.transforms.calls import ForwardRule, apply
from adjoint.transforms.inputs import Recorded

__all__ = ["pull_back", "push_along"]


def pull_back(run: Recorded, cotangents: Sequence[Tensor | None], *, retain: bool) -> list[Tensor]:
    """Return the gradients of the inputs of a recorded run, given those of its outputs (None means zero).

    The gradient of an input that no output depends on is zero.  The graph is kept if ``retain``.
    """
    if _moves(run, run.outputs, cotangents):
        return _Product.of(run, True, cotangents)
    create = grad_mode.get() and run.outer
    both = zip(run.outputs, cotangents, strict=True)
    pairs = [(r, c) for r, c in both if r._node is not None and c is not None]
    found: dict[Any, Any] = {}
    if pairs:
        done, leaves = differentiate(
            [r for r, _ in pairs],
            [c for _, c in pairs],
            targets=run.inputs,
            retain=retain or create,
            create_graph=create,
            since=run.since,
            runner=runner_for(None),
        )
        found = {**done.captured, **dict(leaves)}
    return _filled(run.inputs, [found.get(key_of(x)) for x in run.inputs])


def push_along(run: Recorded, tangents: Sequence[Tensor | None], keep: bool = True) -> list[Tensor]:
    """Return the tangents of the outputs of a recorded run, given those of its inputs (None means zero).

    The tangent of an output that depends on no input is zero.  ``keep`` is that of ``push_forward``.
    """
    if _moves(run, run.inputs, tangents):
        return _Product.of(run, False, tangents)
    create = grad_mode.get() and run.outer
    pushed = push_forward(run.outputs, run.inputs, tangents, create_graph=create, since=run.since, keep=keep)
    return _filled(run.outputs, pushed)


def _filled(like: Sequence[Tensor], found: Sequence[Any]) -> list[Tensor]:
    """Return the gradients or tangents ``found`` as tensors; zeros for None."""
    return [
        wrap(np.zeros(x.shape, x.dtype)) if g is None else as_gradient_tensor(g)
        for x, g in zip(like, found, strict=True)
    ]


def _moves(run: Recorded, ends: Sequence[Tensor], given: Sequence[Tensor | None]) -> bool:
    """Return whether the product with ``given`` is recorded only because gradients flow to ``given``."""
    if run.outer or not grad_mode.get():
        return False
    return any(t is not None and tracked(seed_at_level(x, t)) for x, t in zip(ends, given, strict=True))


class _Product(ForwardRule):
    """``pull_back`` or ``push_along`` of a run as one node, in which the values of the run are constants.

    Both are linear, and each is the transpose of the other.  ``places`` are the positions of the tensors that
    are given; the others are zero.
    """

    reruns = False

    def __init__(self, run: Recorded, pulls: bool, places: list[int]) -> None:
        self.run = run
        self.pulls = pulls
        self.places = places
        self.name = "vjp" if pulls else "jvp"

    @classmethod
    def of(cls, run: Recorded, pulls: bool, given: Sequence[Tensor | None]) -> list[Tensor]:
        """Return the product with ``given``, recorded."""
        ends = run.outputs if pulls else run.inputs
        moving = {i: seed_at_level(ends[i], t) for i, t in enumerate(given) if t is not None}
        return apply(cls(run, pulls, list(moving)), list(moving.values()))

    def argument(self, i: int) -> str:
        """Return the name of argument ``i`` for messages."""
        return f"{'cotangent' if self.pulls else 'tangent'} {self.places[i]}"

    def plain(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the product."""
        run = self.run
        given: list[Tensor | None] = [None] * len(run.outputs if self.pulls else run.inputs)
        for i, t in zip(self.places, tensors, strict=True):
            given[i] = t
        found = pull_back(run, given, retain=True) if self.pulls else push_along(run, given)
        return [wrap(t._data) if t._node is None else t for t in found]  # not sparse

    def forward(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
        """Return the product; nothing is saved."""
        return self.plain(tensors), [], None

    def backward(
        self, residuals: list[Tensor], rest: Any, grads: list[Tensor | None], wanted: Sequence[bool]
    ) -> list[Any]:
        """Return the transposed product with ``grads``."""
        run = self.run
        found = push_along(run, grads) if self.pulls else pull_back(run, grads, retain=True)
        return [found[i] for i in self.places]

    def jvp(self, tensors: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
        """Return the product with ``tangents``."""
        return self.plain(tangents)
