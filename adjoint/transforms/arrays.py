"""Arrays in, arrays out: a transform that is given arrays and numbers alone returns NumPy values."""

from __future__ import annotations

import sys
from typing import Any

from numpy import ndarray

from adjoint import tree
from adjoint.config import transform as transform_name
from adjoint.core.lifted import enclosing
from adjoint.core.record import tracked
from adjoint.core.tensor import Tensor, exclusive_count

__all__ = ["given_arrays", "outermost", "returned"]

_EXCLUSIVE = exclusive_count()


def outermost() -> bool:
    """Tell whether no transform is running: inside the function of one, results are tensors."""
    return transform_name.get() is None and enclosing.get() is None


def given_arrays(*arguments: Any) -> bool:
    """Tell whether there is no tensor among arguments or in trees of them."""
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

    It is returned unchanged if one of the tensors has a history.  The arrays share no memory with each
    other or with anything else: memory that something else holds is copied.  The caller should not
    keep a reference to the result, because then everything is copied.
    """
    leaves, structure = tree.flatten(result)
    if not all([type(t) is Tensor and not tracked(t) for t in leaves if isinstance(t, Tensor)]):
        return result
    ours = [i for i, t in enumerate(leaves) if type(t) is Tensor]
    found = [t._data if type(t) is Tensor else t for t in leaves]
    del result, leaves  # now only ``found`` holds memory that nothing else needs
    for i in ours:
        data = found[i]
        if not data.ndim:
            found[i] = data[()]
        elif data.base is not None or not data.flags.writeable or sys.getrefcount(data) > _EXCLUSIVE:
            found[i] = data.copy()
    return tree.unflatten(structure, found)
