"""Run hooks: once per backward, on the total gradient, in the order of registration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adjoint.core.lifted import enclosing, level_of, run_at
from adjoint.core.namespace import Namespace, rec
from adjoint.core.node import HookList, Node
from adjoint.core.sparse import SparseGradient, as_gradient_tensor
from adjoint.core.tensor import Tensor, Traced
from adjoint.errors import HookError

__all__ = ["run_hooks", "run_node_extra"]


def run_hooks(hooks: HookList, g: Any, xp: Namespace, what: str) -> Any:
    """Call each hook with the gradient ``g``; return ``g``, or the gradient that a hook returned instead.

    ``what`` names the tensor in errors.
    """
    for hook in hooks.to_call():
        t = as_gradient_tensor(g)
        result = hook(t) if enclosing.get() is None else run_at(t._data, hook, t)
        g = _checked(hook, result, g, xp, what)
    return g


def _checked(hook: Callable[..., Any], result: Any, g: Any, xp: Namespace, what: str) -> Any:
    if result is None:
        return g
    name = getattr(hook, "__qualname__", repr(hook))
    if not isinstance(result, Tensor):
        raise HookError(
            f"the hook {name} on {what} returned {type(result).__name__}.\n"
            "  A hook must return None, which keeps the gradient, or a tensor, which replaces it."
        )
    if result.shape != g.shape or result.dtype != g.dtype:
        raise HookError(
            f"the hook {name} on {what} returned a gradient of shape {result.shape} and {result.dtype}, "
            f"but the gradient that it replaces has shape {g.shape} and {g.dtype}."
        )
    if type(result) is Traced and level_of(result._data) > level_of(as_gradient_tensor(g)._data):
        raise HookError(
            f"the hook {name} on {what} returned a value from inside {result._data.transform}, but "
            "the gradient that it replaces is outside.\n"
            "  Compute the tensor and its gradient both inside, or both outside."
        )
    if type(result) is SparseGradient and xp is not rec:
        return result._rows
    return result if xp is rec else result._data


def run_node_extra(node: Node, g: Any, xp: Namespace, retained: list[tuple[Tensor, Any]]) -> Any:
    """Run the hooks of the tensor that ``node`` computed, on its gradient ``g``; return the new gradient.

    If ``retain_grad`` was called, append the tensor and its gradient to ``retained``.
    """
    extra = node.extra
    assert extra is not None
    if extra.hooks is not None:
        g = run_hooks(extra.hooks, g, xp, f"the result of {node.op.name!r}")
    if extra.retain is not None:
        t = extra.retain()
        if t is not None:
            retained.append((t, g))
    return g
