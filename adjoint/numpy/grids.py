"""Objects of NumPy that build arrays when they are indexed: ``r_``, ``c_``, ``mgrid`` and ``ogrid``.

They are NumPy's unless a key contains a tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.conversion import check_conversion
from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError
from adjoint.interop.drop_in import holds_tensor
from adjoint.ops.join import concat

__all__ = ["c_", "mgrid", "ogrid", "r_"]


class Joiner:
    """``np.r_`` and ``np.c_``, which return a tensor if a piece is or contains one.

    Parameters
    ----------
    theirs : object
        NumPy's object.
    axis : int
        The axis along which pieces are joined.
    ndmin : int
        The least number of axes of a piece.
    place : int
        The position of the axes of a piece that has fewer axes; -1 is the end.
    """

    def __init__(self, theirs: Any, axis: int, ndmin: int, place: int) -> None:
        self._theirs = theirs
        self._facts = axis, ndmin, place

    def __getitem__(self, key: Any) -> Any:
        if not _in_key(key):
            return self._theirs[key]
        pieces = key if isinstance(key, tuple) else (key,)
        axis, ndmin, place = self._facts
        if pieces and isinstance(pieces[0], str):
            axis, ndmin, place = _directive(pieces[0], self._facts)
            pieces = pieces[1:]
        return concat([_piece(p, ndmin, place) for p in pieces], axis=axis)

    def __len__(self) -> int:
        return 0


def _directive(text: str, facts: tuple[int, int, int]) -> tuple[int, int, int]:
    """Parse a directive of ``np.r_`` such as "0,2,1"; return its three integers, filled up from ``facts``.

    They are the axis to join along, the least number of axes, and where the axes of an array are placed.
    """
    try:
        given = [int(part) for part in text.split(",")]
    except ValueError:
        given = []
    if not 1 <= len(given) <= 3:
        raise InputError(
            f"np.r_: a string must be one to three integers, such as '0,2,1', but is {text!r}.\n"
            "  The strings 'r' and 'c', which make matrices, are not supported."
        )
    axis, ndmin, place = (*given, *facts[len(given) :])
    return axis, ndmin, place


def _piece(value: Any, ndmin: int, place: int) -> Tensor:
    if isinstance(value, str):
        raise InputError(f"np.r_: a string must be the first item, but {value!r} is not.")
    if isinstance(value, slice):
        step = value.step
        if isinstance(step, complex):
            made: Any = np.linspace(value.start or 0, value.stop, int(abs(step)))
        else:
            made = np.arange(value.start or 0, value.stop, 1 if step is None else step)
        value = made
        x = asarray(value)
        scalar = False
    else:
        x = asarray(value)
        scalar = x.ndim == 0
    if x.ndim >= ndmin:
        return x
    missing = ndmin - x.ndim
    if scalar or place == -1:
        return rec.reshape(x, shape=(1,) * missing + x.shape)
    start = place if place >= 0 else place + missing + 1
    return rec.reshape(x, shape=(1,) * start + x.shape + (1,) * (missing - start))


class Grid:
    """``np.mgrid`` and ``np.ogrid``, which return tensors if an end or a step is one.

    Parameters
    ----------
    theirs : object
        NumPy's object.
    """

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def __getitem__(self, key: Any) -> Any:
        made = self._theirs[_plain_key(key)]
        if not _in_key(key):
            return made
        return type(made)(map(asarray, made)) if isinstance(made, (list, tuple)) else asarray(made)


def _in_key(key: Any) -> bool:
    """Return whether a key is or contains a tensor, also as the end of a slice."""
    for k in key if isinstance(key, tuple) else (key,):
        if holds_tensor((k.start, k.stop, k.step) if isinstance(k, slice) else k):
            return True
    return False


def _plain_key(key: Any) -> Any:
    """Return a key of ``np.mgrid`` with numbers in place of tensors; raise if one requires grad."""
    if isinstance(key, tuple):
        return tuple(map(_plain_key, key))
    parts = [_number(p) for p in (key.start, key.stop, key.step)]
    return slice(*parts)


def _number(end: Any) -> Any:
    if isinstance(end, Tensor):
        check_conversion(end, "a number for np.mgrid", "Use np.linspace or np.arange, and np.meshgrid.")
        return end.item()
    return end


r_ = Joiner(np.r_, 0, 1, -1)
c_ = Joiner(np.c_, -1, 2, 0)
mgrid = Grid(np.mgrid)
ogrid = Grid(np.ogrid)
