"""``autograd.tracer``: primitives and the test for tensors.

Names of autograd's graph raise when they are used: adjoint's graph has other nodes.
"""

from __future__ import annotations

from typing import Any

from adjoint.autograd.rules import Box, getval, isbox, notrace_primitive, primitive, register_notrace
from adjoint.autograd.util import subvals

__all__ = [
    "Box", "Node", "getval", "isbox", "new_box", "notrace_primitive", "primitive", "register_notrace",
    "subvals", "trace", "trace_stack",
]  # fmt: skip
__dir__ = sorted(__all__).copy


class Node:
    """A node of autograd's graph."""

    @classmethod
    def new_root(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise: adjoint records its own graph."""
        raise NotImplementedError(_MESSAGE)


class _Traces:
    def new_trace(self) -> Any:
        """Raise: adjoint records its own graph."""
        raise NotImplementedError(_MESSAGE)


def new_box(value: Any, trace: Any, node: Any) -> Any:
    """Raise: adjoint records its own graph."""
    raise NotImplementedError(_MESSAGE)


def trace(start_node: Any, fun: Any, x: Any) -> Any:
    """Raise: adjoint records its own graph."""
    raise NotImplementedError(_MESSAGE)


trace_stack = _Traces()
_MESSAGE = (
    "adjoint.autograd has no nodes or traces: adjoint records a graph of its own.\n"
    "  make_vjp(f)(x) and make_jvp(f)(x) differentiate; ad.inspect.explain(y, x) shows how y depends on x."
)
