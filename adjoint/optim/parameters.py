"""The parameters that users pass to optimisers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from adjoint import words
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError

__all__ = ["check_parameter", "parameter_list"]


def parameter_list(kind: str, params: Any) -> list[Any]:
    """Return the parameters, or parameter groups, as a list; raise for a module or a single tensor.

    ``kind`` is the name of the optimiser's class, for error messages.
    """
    if callable(getattr(params, "parameters", None)):
        empty = (
            ""
            if list(params.parameters())
            else "\n  The module has no parameters: use nn.ModuleList for lists of layers."
        )
        raise InputError(
            f"{kind}: pass parameters, not {words.a(type(params).__name__)}: "
            f"{kind}(model.parameters()).{empty}"
        )
    if isinstance(params, (Tensor, str)) or not isinstance(params, Iterable):
        raise InputError(f"{kind}: pass a list of parameters or of groups, not one {type(params).__name__}.")
    return list(params.values()) if isinstance(params, Mapping) else list(params)


def check_parameter(kind: str, i: int, p: Any) -> None:
    """Raise if ``p``, parameter ``i`` of an optimiser of class ``kind``, is not a leaf tensor."""
    if not isinstance(p, Tensor):
        pair = isinstance(p, tuple) and len(p) == 2 and isinstance(p[1], Tensor)
        raise InputError(
            f"{kind}: parameters must be tensors, but params[{i}] is a {type(p).__name__}."
            + ("\n  Pass named parameters as a dictionary: dict(named_parameters())." if pair else "")
        )
    if not p.is_leaf:
        raise InputError(
            f"{kind}: parameters must be leaf tensors, but params[{i}] of shape {p.shape} is the result of "
            f"an operation.\n  Pass leaf tensors; params[{i}].detach() is one."
        )
