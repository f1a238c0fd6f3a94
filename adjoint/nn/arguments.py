"""Checks of arguments, shared by layers and losses."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.lifted import Unknown
from adjoint.core.namespace import rec
from adjoint.core.shapes import whole_number
from adjoint.core.tensor import Tensor, Traced
from adjoint.core.values import decide
from adjoint.errors import ArgumentError, DTypeError, IndexingError, InputError
from adjoint.ops.scatter import as_index

__all__ = ["check_not_mapped", "classes", "floats", "lengths", "sizes"]


def sizes(layer: str, low: int = 1, **given: Any) -> None:
    """Raise unless each keyword argument is an integer of at least ``low``.

    ``layer`` is the name of the caller in the message.
    """
    for name, value in given.items():
        if whole_number(layer, name, value) < low:
            raise ArgumentError(f"{layer}: {name} must be at least {low}, but is {value}.")


def check_not_mapped(state: str, value: Tensor, cure: str) -> None:
    """Raise if ``value``, from which the buffers of a layer are updated, differs by element of ``ad.vmap``.

    ``state`` names the layer and its buffers, and ``cure`` says what to do instead, for the message.
    """
    if type(value) is Traced and not isinstance(value._data, Unknown) and value._data.numbers() is None:
        raise InputError(
            f"{state} cannot be updated inside ad.vmap, because each element of the batch would have its "
            f"own.\n  {cure}"
        )


def floats(op: str, x: Any) -> Tensor:
    """Return an argument as a tensor of real floats; integers become float64."""
    x = x if type(x) is Tensor else asarray(x)
    kind = x._data.dtype.kind
    if kind == "c":
        raise DTypeError(f"{op}: the input must be real, but has dtype {x.dtype}.")
    return rec.astype(x, dtype=np.dtype(float)) if kind in "iub" else x


def lengths(layer: str, name: str, value: Any, count: int | None = None, low: int = 1) -> tuple[int, ...]:
    """Return ``value`` as a tuple of integers, one per axis; raise if one is below ``low``.

    A single number is used for all ``count`` axes.  If ``count`` is None, any number of values is accepted.
    ``layer`` and ``name`` are the names of the caller and of the argument, for the message.
    """
    several = isinstance(value, (tuple, list)) or getattr(value, "ndim", 0) == 1
    given = tuple(value) if several else (value,) * (count or 1)
    if not given or (count is not None and len(given) != count):
        wanted = f"one number or {count}" if count else "one number or more"
        raise ArgumentError(f"{layer}: {name} must be {wanted}, but is {value!r}.")
    for size in given:
        sizes(layer, low, **{name: size})
    return tuple(map(operator.index, given))


def classes(
    op: str,
    indices: Any,
    count: int,
    ignored: int | None = None,
    words: tuple[str, str] = ("class", "classes"),
) -> tuple[Tensor, Tensor | None]:
    """Return class indices as intp, and a mask that is False where the index is ``ignored``.

    The mask is None if no index is ignored.  Ignored indices are replaced by 0.  Raise if another index is
    outside 0 … ``count`` - 1.  ``words`` are the singular and the plural noun for the message.
    """
    i = asarray(indices)
    if i.dtype.kind not in "iu":
        raise DTypeError(
            f"{op}: {words[1]} must be integers, but have dtype {i.dtype}.  Cast them: t.astype(int)."
        )
    i = as_index(rec, i)
    inside = ignored is not None and 0 <= ignored < count

    def may_ignore(a: np.ndarray[Any, Any]) -> bool:
        if not a.size or (not inside and a.min() >= 0 and a.max() < count):
            return False
        bad = (a < 0) | (a >= count)
        if ignored is not None:
            bad &= a != ignored
        if bad.any():
            raise IndexingError(f"{op}: {words[0]} {a[bad][0]} is out of range 0 … {count - 1}.")
        return True

    def wrong(xp: Any, a: Any) -> Any:
        bad = xp.logical_or(xp.less(a, 0), xp.greater_equal(a, count))
        return bad if ignored is None else xp.logical_and(bad, xp.not_equal(a, ignored))

    # decide returns None inside a transform, and in programs without Python
    if decide(may_ignore, i, lambda x: x.check(may_ignore, wrong)) is False or ignored is None:
        return i, None
    keep = rec.not_equal(i, ignored)
    return rec.where(keep, i, 0), keep


def unusual(options: dict[str, tuple[Any, Any]]) -> str:
    """Return the options that differ from their defaults as text for a repr: ", padding=1, groups=2".

    ``options`` maps names to (value, default).
    """
    return "".join(f", {name}={value}" for name, (value, usual) in options.items() if value != usual)
