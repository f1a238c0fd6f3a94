"""Results of a compiled function that cannot be differentiated: their backward raises as in eager mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adjoint.compiler.program.call_node import captured_by
from adjoint.core.node import LEAF, Node
from adjoint.core.record import make_node
from adjoint.core.tensor import Tensor
from adjoint.engine.plan import make_plan
from adjoint.engine.pull import modified, released
from adjoint.engine.run import key_of
from adjoint.errors import AdjointError
from adjoint.transforms.calls import new_op

if TYPE_CHECKING:
    from adjoint.compiler.capture.trace import Trace

__all__ = ["Spent"]


class Spent:
    """The results that the function has differentiated itself, or computed before a write to a tensor.

    ``nodes`` has, for each result, None or a node that raises; it is empty if no result is part of a graph.
    """

    def __init__(self) -> None:
        self.nodes: list[Node | None] = []
        self.joined: list[Tensor] = []  # captured tensors with a graph, which are parents of the nodes, too

    def take(self, name: str, trace: Trace, inputs: Sequence[Any], outs: Sequence[Tensor]) -> None:
        """Find these results among ``outs``, the results of function ``name``, and remove their nodes.

        ``inputs`` are the symbolic arguments.
        """
        captured = captured_by(trace)
        targets = [t for t in (*inputs, *captured) if isinstance(t, Tensor) and t._node is LEAF]
        self.nodes = [None] * len(outs)
        if _failure([o._node for o in outs if type(o._node) is Node], targets) is None:
            return
        leaves = tuple([t for t in captured if trace.node_before(t) is LEAF])
        self.joined = [t for t in captured if type(trace.node_before(t)) is Node]
        for k, o in enumerate(outs):
            error = _failure([o._node], targets) if type(o._node) is Node else None
            if error is not None:
                op = new_op(name, (), False, 1)
                op.joint = _raising(error)
                self.nodes[k] = make_node(op, 0, (), (), {}, leaves, o)
                o._node = None

    def of(self, given: Sequence[Any]) -> Sequence[Node | None]:
        """Return ``nodes`` for a call with the arguments ``given``, which are parents of the nodes, too."""
        if not any(self.nodes):
            return self.nodes
        tensors = [t for t in (*given, *self.joined) if isinstance(t, Tensor) and t._node is not None]
        if not tensors:
            return self.nodes
        keys = list(map(key_of, tensors))
        return [n and make_node(n.op, 0, (), (), {}, (*n.parents, *keys), n) for n in self.nodes]


def _failure(nodes: Sequence[Node], targets: Sequence[Tensor]) -> AdjointError | None:
    """Return the first error of a backward from ``nodes`` to ``targets``; None if there is none."""
    plan = make_plan(nodes, targets)
    for node in plan.order:
        if plan.needed is not None and node in plan.needed:
            if node.args is None:
                return released(node)
            for t, version in node.versions or ():
                if t._version != version:
                    return modified(node, t)
    return None


def _raising(error: AdjointError) -> Any:
    """Return a derivative rule that raises an error like ``error``, which refers to frames of the trace."""
    kind, text = type(error), str(error)

    def rule(*_: Any, **__: Any) -> Any:
        raise kind(text)

    return rule
