"""Update only the rows of a parameter that have a gradient.

The gradient of an embedding is zero, except for a few rows.  ``p - lr * g`` equals ``p`` bit for bit where
``g`` is 0, so only the other rows are computed and assigned.  This is wrong if ``lr * 0.0`` is NaN or has the
wrong sign, because -0.0 - -0.0 is 0.0.  A check in the program detects these cases at each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.compiler.lower.graph import Dataflow, Primitive, View
from adjoint.compiler.schedule.fuse import GIVEN

__all__ = ["update_rows"]

_LARGE = 1 << 14  # elements: smaller parameters are updated as a whole
_FEW = 8  # the parameter must have at least this many times as many elements as the rows


def update_rows(graph: Dataflow, outputs: Sequence[View], replacing: Sequence[tuple[int, int]]) -> list[View]:
    """Return the outputs, with updates of whole parameters limited to a few rows where possible."""
    found = list(outputs)
    for k, source in replacing:
        update = _Update(outputs[k], source)
        if update.is_possible():
            found[k] = graph.reshape(update.of_rows(), outputs[k].shape)
    return found


class _Update:
    """The update ``parameter ± step`` of a parameter, where the step is the gradient scaled by numbers."""

    def __init__(self, output: View, source: int) -> None:
        self.graph, self.node, self.source = output.graph, output.node, source
        # the nodes from the step to the gradient, and the index of the operand of each
        self.chain: list[tuple[Primitive, int]] = []
        self.whole = output.is_whole()

    def is_possible(self) -> bool:
        """Return whether the update can be limited to the rows that have a gradient."""
        n = self.node
        if n.op not in ("subtract", "add") or n.dtype.kind != "f" or n.size < _LARGE or not self.whole:
            return False
        base, step = n.args
        if base.node.op != "source" or base.node.params != self.source or not base.is_whole():
            return False
        while step.is_whole() and step.node.op in ("multiply", "divide", "negative"):
            arrays = [k for k, a in enumerate(step.node.args) if any(a.strides)]
            if len(arrays) != 1 or not all(_is_number(a) for a in step.node.args if not any(a.strides)):
                return False
            self.chain.append((step.node, arrays[0]))
            step = step.node.args[arrays[0]]
        self.gradient = step
        if step.node.op != "scatter" or not step.is_whole() or step.node.params[0] != "add":
            return False
        start, rows, _ = step.node.args
        few = rows.size * step.node.params[1] * _FEW <= n.size
        return few and start.scalar() == 0 and self._keeps(self._sign())

    def _sign(self) -> float:
        """Return the sign of the step for a gradient of 0.0, for positive numbers; NaN if it is not 0."""
        found = 1.0
        for n, k in reversed(self.chain):
            others = [a.scalar() for i, a in enumerate(n.args) if i != k]
            if n.op == "divide" and k == 1:
                return np.nan
            known = [float(x) for x in others if x is not None]
            found = -found if n.op == "negative" else float(np.copysign(found, found * np.prod(known)))
        return found

    def _keeps(self, sign: float) -> bool:
        return sign > 0 if self.node.op == "subtract" else sign < 0

    def of_rows(self) -> View:
        """Return the parameter with only the changed rows computed and assigned; add a check to the graph."""
        graph, xp = self.graph, self.graph.xp
        graph.current = self.node.origin
        _, rows, _ = self.gradient.node.args
        width = self.gradient.node.params[1]
        spots = graph.reshape(rows, (rows.size, 1)) + np.arange(width)
        step, zero = xp.gather(self.gradient, spots), xp.full((), 0, self.node.dtype)
        for n, k in reversed(self.chain):
            step, zero = (self._repeated(n, k, x) for x in (step, zero))
        old = self.node.args[0]
        new = graph.elementwise(self.node.op, self.node.dtype, xp.gather(old, spots), step)
        keeps = 1 / zero > 0 if self.node.op == "subtract" else 1 / zero < 0
        graph.checks.append(xp.logical_not(keeps))
        return xp.scatter("set", xp.flat(old), rows, xp.flat(new), width)

    def _repeated(self, n: Primitive, k: int, x: View) -> View:
        """Return a copy of the elementwise node ``n`` with ``x`` in place of operand ``k``."""
        args = [
            x if i == k else View(self.graph, a.node, x.shape, (0,) * x.ndim, a.offset)
            for i, a in enumerate(n.args)
        ]
        return self.graph.elementwise(n.op, n.dtype, *args)


def _is_number(a: View) -> bool:
    """Return whether an operand is one number that is computed from inputs by elementwise primitives."""
    todo: list[Any] = [a.node] if a.node.op not in GIVEN else []
    while todo:
        n = todo.pop()
        if n.size != 1 or n.op in (
            "reduce",
            "call",
            "part",
            "repeat",
            "out",
            "gather",
            "matmul",
            "matrix",
            "order",
        ):
            return False
        todo += [b.node for b in n.args if b.node.op not in GIVEN]
    return True
