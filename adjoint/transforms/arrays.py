"""Conversion of results: a transform called with arrays and numbers only returns NumPy values."""

from __future__ import annotations

import sys
from typing import Any

from numpy import ndarray

from adjoint import tree
from adjoint.config import transform as transform_name
from adjoint.core.lifted import enclosing
from adjoint.core.record import tracked
from adjoint.core.references import OF_TENSOR
from adjoint.core.tensor import Tensor

__all__ = ["given_arrays", "outermost", "owned", "returned", "to_arrays"]


def outermost() -> bool:
    """Return whether no transform is running, so that results may be converted to arrays."""
    return transform_name.get() is None and enclosing.get() is None


def given_arrays(*arguments: Any) -> bool:
    """Return whether neither the arguments nor trees inside them contain a tensor."""
    for a in arguments:
        kind = type(a)
        if kind is ndarray or kind is float:
            continue
        for leaf in tree.flatten(a)[0]:
            if isinstance(leaf, Tensor):
                return False
    return True


def returned(result: Any) -> Any:
    """Return a tree of tensors as a tree of arrays and NumPy scalars.

    The tree is returned unchanged if one of the tensors is part of a graph.  The arrays share no memory with
    each other or with anything else: memory that something else refers to is copied.  The caller should not
    keep a reference to the tensors, because then everything is copied.
    """
    if type(result) is Tensor:
        if tracked(result):
            return result
        leaves = [result]
        del result
        return to_arrays(leaves)[0]
    leaves, structure = tree.flatten(result)
    ours = [t for t in leaves if isinstance(t, Tensor)]
    if not all(type(t) is Tensor and not tracked(t) for t in ours):
        return result
    others = [None if isinstance(t, Tensor) else (t,) for t in leaves]
    del result, leaves
    found = iter(to_arrays(ours))
    return tree.unflatten(structure, [next(found) if other is None else other[0] for other in others])


def to_arrays(tensors: list[Any]) -> list[Any]:
    """Return tensors as arrays and NumPy scalars, and empty the list; the tensors must not be in a graph.

    The list is emptied because an array that a tensor still refers to must be copied.
    """
    held = [t._data for t in tensors]
    tensors.clear()  # now only ``held`` refers to memory that no other object needs
    return owned(held)


def owned(held: list[Any]) -> list[Any]:
    """Replace the arrays in a list by scalars and by arrays that nothing else refers to; return the list.

    An array that anything else refers to, such as a variable of the caller, is copied.
    """
    for i in range(len(held)):
        data = held[i]
        if not data.ndim:
            held[i] = data[()]
        elif data.base is not None or sys.getrefcount(data) > OF_TENSOR or not data.flags.writeable:
            held[i] = data.copy()
    return held
