"""NumPy's functions that write into a tensor: ``np.copyto(x, y)``, ``np.add.at(x, i, y)``, ``out=x``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.config import grad_mode
from adjoint.core.conversion import check_conversion
from adjoint.core.convert import asarray
from adjoint.core.inplace import refuse_write
from adjoint.core.tensor import Tensor, Traced, concrete, read_only
from adjoint.core.values import varies
from adjoint.errors import InputError

__all__ = ["WRITERS", "write", "write_out"]

# Functions that write into their first argument.
WRITERS = frozenset(
    getattr(np, name) for name in "copyto put put_along_axis place putmask fill_diagonal".split()
)

_CURE = "It writes in place: use y = x.at[i].set(v), which is differentiable."


def write_out(
    name: str, function: Callable[..., Any], outs: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Call a function of NumPy that writes its result into ``outs``, as ``write`` does.

    Raise InputError if a gradient would be lost.
    """
    if any(type(t) is Traced or (grad_mode.get() and varies(t)) for t in tree.leaves((args, kwargs, outs))):
        raise InputError(_no_out(name, *outs))
    return write(f"np.{name}", function, outs, args, kwargs)


def _no_out(name: str, *given: Any) -> str:
    """Return the message of the error for a call ``np.<name>(…, out=…)`` of tensors that require grad.

    ``given`` are the values of ``out``.
    """
    if any(isinstance(out, Tensor) for out in given):
        return (
            f"np.{name}(…, out=…): no gradient flows through a write into a tensor.\n"
            "  Omit out=: the result is a new tensor.  To write the result into a part of x, use "
            "y = x.at[i].set(result)."
        )
    return (
        f"np.{name}(…, out=…): an array cannot be part of the graph, so the gradient would be lost.\n"
        "  The same happens in a += x if a is an array: write a = a + x, or create a with ad.zeros."
    )


def write(
    name: str,
    function: Callable[..., Any],
    targets: Sequence[Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Call a function of NumPy that writes into ``targets``, which are among its arguments.

    The function gets arrays in place of tensors.  Then the new values are assigned to the targets that are
    tensors, and these replace their arrays in the result.  Raise if an argument is part of a graph.
    """
    arrays: dict[int, Any] = {}
    for t in targets:
        if isinstance(t, Tensor):
            refuse_write(t)
            arrays[id(t)] = concrete(t, name, _CURE).copy()

    def array(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return type(value)(map(array, value)) if type(value) in (list, tuple) else value
        if id(value) in arrays:
            return arrays[id(value)]
        check_conversion(value, f"an array for {name}", _CURE)
        return read_only(concrete(value, name, _CURE))

    found = function(*map(array, args), **{k: array(v) for k, v in kwargs.items()})
    known = {id(t): t for t in targets}  # the results by the arrays that the function returns
    for t in targets:
        if isinstance(t, Tensor):
            t[...] = arrays[id(t)]
            known[id(arrays[id(t)])] = t
    if isinstance(found, tuple):
        return tuple(known[id(a)] if id(a) in known else asarray(a) for a in found)
    return known.get(id(found), found)
