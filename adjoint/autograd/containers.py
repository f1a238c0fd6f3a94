"""Containers and types of ``autograd.builtins``: tensors count as arrays, and containers stay Python's."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from adjoint.core.tensor import Tensor

__all__ = ["DictBox", "ListBox", "SequenceBox", "TupleBox", "dict", "isinstance", "list", "tuple", "type"]

type = builtins.type


def _like(kind: Any) -> Any:
    """Return a type that makes instances of a container of Python, and has them as its instances."""

    class Maker(builtins.type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return kind(*args, **kwargs)

        def __instancecheck__(cls, value: Any) -> bool:
            return builtins.isinstance(value, kind)

    return Maker(kind.__name__, (), {})


list, dict, tuple = map(_like, (builtins.list, builtins.dict, builtins.tuple))


class _NoBox:
    """A container of boxes, of which there are none: the containers of tensors are Python's own."""


class DictBox(_NoBox):
    """A dictionary of boxes in autograd."""


class SequenceBox(_NoBox):
    """A sequence of boxes in autograd."""


class ListBox(SequenceBox):
    """A list of boxes in autograd."""


class TupleBox(SequenceBox):
    """A tuple of boxes in autograd."""


def isinstance(value: Any, kinds: Any) -> bool:
    """Return whether a value has one of the types; a tensor is an instance of ``np.ndarray`` here."""
    several = kinds if builtins.isinstance(kinds, builtins.tuple) else (kinds,)
    more = (Tensor,) if np.ndarray in several else ()
    return builtins.isinstance(value, (*several, *more))
