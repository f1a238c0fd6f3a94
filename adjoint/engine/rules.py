"""Call a single rule of an op, and prepare the values that rules read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.core.lifted import Lifted
from adjoint.core.namespace import Namespace, dyn
from adjoint.core.node import Packed
from adjoint.core.op import Op
from adjoint.core.record import innermost
from adjoint.core.tensor import Tensor
from adjoint.errors import HookError

__all__ = ["call_rule", "on_one_level", "unpacked"]


def call_rule(
    op: Op, i: int, xp: Namespace, g: Any, out: Any, values: Sequence[Any], params: dict[str, Any]
) -> Any:
    """Call the rule for argument ``i`` with ``g``, a gradient or a tangent, and return its result.

    ``values`` and ``out`` are the arguments and the output of the op.
    """
    if op.joint is None:
        return op.rules[i](xp, g, out, *values, **params)
    wanted = tuple(j == i for j in range(len(values)))
    if xp is dyn and not op.call:
        g, out, values = on_one_level(g, out, values)
    return op.joint(xp, g, out, *values, wanted=wanted, **params)[i]


def on_one_level(g: Any, out: Any, values: Sequence[Any]) -> tuple[Any, Any, Sequence[Any]]:
    """Return ``g``, ``out`` and ``values``, all as values of the innermost transform among them.

    A joint rule may write into its results, and an array cannot contain the values of a transform.
    """
    parts = [g, out, *values]
    top = innermost([each for p in parts for each in (p if type(p) in (tuple, list) else (p,))])
    return (g, out, values) if top is None else (_lifted(g, top), _lifted(out, top), _lifted(values, top))


def _lifted(value: Any, top: Lifted) -> Any:
    if type(value) in (tuple, list):
        return tuple([_lifted(v, top) for v in value])
    if isinstance(value, Lifted):
        return value if value.level == top.level else top.lift(value)
    return top.lift(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


def unpacked(value: Any) -> Any:
    """Return a saved value, unpacked if ``saved_tensors_hooks`` packed it; in a tuple, each element."""
    if type(value) is tuple:
        return tuple(map(unpacked, value))
    if type(value) is not Packed:
        return value
    t = value.unpack(value.value)
    if not isinstance(t, Tensor):
        raise HookError(f"saved_tensors_hooks: unpack must return a tensor, not {type(t).__name__}.")
    if t.shape != value.shape or t.dtype != value.dtype:
        raise HookError(
            f"saved_tensors_hooks: unpack returned shape {t.shape} and {t.dtype}, but the packed tensor had "
            f"shape {value.shape} and {value.dtype}."
        )
    found: Any = t._data
    for contain in reversed(value.around):
        found = contain(found)
    return found
