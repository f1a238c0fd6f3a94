"""The namespaces in which a derivative rule can be evaluated: one attribute per op.

``raw``  plain arrays in, plain arrays out: first-order backward at NumPy's speed.
``rec``  tensors in, tensors out, recorded: for ``create_graph=True`` and higher orders.
``dyn``  values inside a transform (batched, dual, symbolic); the value with the
         innermost level decides how the op is evaluated.

A rule receives one of them as ``xp`` and works with each of them.  ``define`` adds the ops.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from adjoint.core.tensor import Tensor

__all__ = ["Namespace", "Value", "dyn", "raw", "rec"]

# The type of the values in a rule: arrays in ``raw``, tensors in ``rec``, values of a transform in ``dyn``.
# Type checkers cannot express that an operator returns the type that belongs to the namespace.
Value: TypeAlias = Any


if TYPE_CHECKING:

    class Namespace:
        """A mapping from op names to functions, as attributes so that rules are easy to read."""

        def __init__(self, name: str) -> None: ...
        def __getattr__(self, name: str) -> Callable[..., Any]: ...
        def __setattr__(self, name: str, value: Callable[..., Any]) -> None: ...

    class _Recorded(Namespace):
        """The type of ``rec``, whose ops return tensors."""

        def __getattr__(self, name: str) -> Callable[..., Tensor]: ...

else:  # a module, because attribute access is fastest on modules
    _Recorded = Namespace = ModuleType


raw = Namespace("raw")
rec = _Recorded("rec")
dyn = Namespace("dyn")
