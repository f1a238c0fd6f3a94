"""Check and normalise arguments that are axes, shapes or numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.config import grad_mode, is_watched
from adjoint.errors import AdjointError, ArgumentError, AxisError, InputError, NoGradientError, ShapeError

__all__ = [
    "Shape", "Shaped", "broadcast_shapes", "canonical_axes", "canonical_axis", "canonical_shape",
    "checked_shape", "from_whole_float", "listed", "number", "number_between", "reduced_axes",
    "same_rank_axes", "whole_from", "whole_number", "without_gradient",
]  # fmt: skip

Shape = tuple[int, ...]


class Shaped:
    """Base class of objects that have a ``shape``: adds ``ndim`` and ``size``."""

    __slots__ = ()

    shape: Any

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        total = 1
        for n in self.shape:
            total *= n
        return total


def canonical_axis(op: str, axis: Any, ndim: int) -> int:
    """Return ``axis`` counted from the end: -ndim … -1.

    Axes are negative everywhere inside adjoint, so that they do not change when a batch axis is put in front.

    >>> canonical_axis("sum", 0, 3), canonical_axis("sum", -1, 3)
    (-3, -1)
    """
    try:
        index = operator.index(axis)
    except TypeError:
        raise InputError(f"{op}: an axis must be an integer, but got {axis!r}.") from None
    if not -ndim <= index < ndim:
        has = f"has axes {-ndim} to {ndim - 1}" if ndim else "has no axes"
        raise AxisError(f"{op}: axis {index} is out of range: a {ndim}-d tensor {has}.")
    return index if index < 0 else index - ndim


def listed(value: Any) -> Any:
    """Return an array or tensor of integers as a list of ints, and any other value unchanged."""
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    return value.tolist() if kind in ("i", "u") and value.ndim else value


_ALL_AXES = tuple(tuple(range(-n, 0)) for n in range(65))  # NumPy's arrays have up to 64 axes


def canonical_axes(op: str, axis: Any, ndim: int) -> Shape:
    """Return ``axis`` (None for all axes, an int or a tuple) as a tuple of negative axes, in ascending order.

    >>> canonical_axes("sum", None, 2), canonical_axes("sum", (1, 0), 2)
    ((-2, -1), (-2, -1))
    """
    if axis is None:
        return _ALL_AXES[ndim]
    if not isinstance(axis, (tuple, list)):
        axis = axis if type(axis) is int else listed(axis)
        if not isinstance(axis, list):
            return (canonical_axis(op, axis, ndim),)
    axes = tuple(sorted(canonical_axis(op, a, ndim) for a in axis))
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{op}: axis {tuple(axis)} names the same axis twice.")
    return axes


def canonical_shape(op: str, shape: Any) -> Shape:
    """Return a shape as a tuple of ints; a single number is a 1-d shape."""
    try:
        if not isinstance(shape, (tuple, list)):
            shape = shape if type(shape) is int else listed(shape)
            if not isinstance(shape, list):
                return (operator.index(shape),)
        return tuple(map(operator.index, shape))
    except TypeError:
        raise InputError(f"{op}: a shape must consist of integers, but is {shape!r}.") from None


def checked_shape(what: str, shape: Any) -> Shape:
    """Return a shape as a tuple of ints; raise if no array can have it.

    ``what`` is the start of the error message.
    """
    try:
        found = canonical_shape(what, tuple(shape) if hasattr(shape, "__iter__") else shape)
    except InputError:
        raise ShapeError(f"{what}: a shape must be a tuple of integers, not {shape!r}.") from None
    if any(n < 0 for n in found):
        raise ShapeError(f"{what}: the lengths of a shape must not be negative, but are {found}.")
    return found


def whole_number(op: str, name: str, value: Any) -> int:
    """Return the argument ``name`` of ``op`` as an int; raise if it is not an integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{op}: {name} must be an integer, but got {value!r}.") from None


def from_whole_float(value: Any) -> Any:
    """Return whole floats, also in lists, arrays and tensors without axes, as ints; others unchanged.

    NumPy takes them as sections, shifts, diagonals, repeats and indices.
    """
    if isinstance(value, list):
        return [from_whole_float(v) for v in value]
    if isinstance(value, float) or (getattr(value, "ndim", 1) == 0 and value.dtype.kind == "f"):
        number = float(value)
        return int(number) if number.is_integer() else value
    return value


def whole_from(least: int, what: str, value: Any) -> int:
    """Return ``value`` if it is an integer of at least ``least``, or raise; ``what`` names it in messages."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ArgumentError(f"{what} must be an integer of at least {least}, but got {value!r}.")
    return int(value)


def without_gradient(op: str, name: str, value: Any) -> Any:
    """Return the argument ``name`` of ``op``; raise if it is a tensor that requires grad."""
    recorded = getattr(value, "requires_grad", False)
    if (recorded or is_watched(value)) and grad_mode.get():
        raise NoGradientError(
            f"{op}: no gradient flows to {name}, but it is a tensor that "
            f"{'requires grad' if recorded else 'a tape watches'}.\n"
            f"  Use {name}.detach() if that is meant."
        )
    return value


def number(op: str, name: str, value: Any) -> float:
    """Return the argument ``name`` of ``op`` as a float; raise if it is not a number or requires grad."""
    if type(value) is float:
        return value
    axes: Any = getattr(without_gradient(op, name, value), "ndim", 0)
    try:
        if axes or isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except AdjointError:  # raised by a tensor whose values are not available inside a transform
        raise
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{op}: {name} must be a number, but got {value!r}.") from None


def number_between(what: str, value: Any, low: float, high: float = math.inf) -> float:
    """Return a number as a float; raise unless it is finite and from ``low`` to ``high``.

    ``what`` names it in messages.
    """
    if not isinstance(value, (int, float, np.integer, np.floating)):
        raise InputError(f"{what} must be a number, but got {value!r}.")
    if not low <= value <= high or value == math.inf:  # NaN fails too
        limit = f"from {low:g} to {high:g}" if high < math.inf else f"finite and at least {low:g}"
        raise ArgumentError(f"{what} must be {limit}, but is {value!r}.")
    return float(value)


def broadcast_shapes(op: str, *shapes: Sequence[int]) -> Shape:
    """Return the shape to which all shapes broadcast; raise if there is none.

    >>> broadcast_shapes("add", (3, 1), (2,))
    (3, 2)
    """
    if shapes and shapes.count(shapes[0]) == len(shapes):  # the usual case
        return tuple(shapes[0])
    ndim = max((len(s) for s in shapes), default=0)
    out = [1] * ndim
    for shape in shapes:
        for i, n in enumerate(shape, ndim - len(shape)):
            if n != 1:
                if out[i] not in (1, n):
                    raise ShapeError(
                        f"{op}: shapes {' and '.join(str(tuple(s)) for s in shapes)} do not "
                        f"broadcast: axis {i - ndim} has length {out[i]} in one and {n} in another.\n"
                        "  The lengths of each axis, counted from the end, must be equal or 1.  Reshape or "
                        "transpose one of the arguments."
                    )
                out[i] = n
    return tuple(out)


def reduced_axes(shape: Shape, target: Shape) -> Shape | None:
    """Return the axes along which ``target`` was broadcast to ``shape``; None if that is not possible.

    >>> reduced_axes((5, 3, 2), (3, 1))
    (-3, -1)
    >>> reduced_axes((), (1,)) is None
    True
    """
    extra = len(shape) - len(target)
    if extra < 0:
        return None
    axes = list(range(-len(shape), -len(target)))
    for i, n in enumerate(target, -len(target)):
        if shape[i] != n:
            if n != 1:
                return None
            axes.append(i)
    return tuple(axes)


def same_rank_axes(shape: Shape, ndim: int) -> Shape:
    """Return ``shape`` with ones in front, so that it has ``ndim`` axes."""
    return (1,) * (ndim - len(shape)) + shape
