"""What the native form of an op is written with: ``define(..., lower=…)``.

``lower(xp, *args, **params)`` adds the primitives that compute the op to the graph of a native program, and
returns the results.  An argument is a view of an array in the graph, or a Python number.  Views have a shape,
strides and an offset, counted in elements, and the operators of arrays.  ``xp`` has all ops, as in a
derivative rule, and the methods of ``compiler.lower.primitives.Primitives``; ``xp.graph`` makes nodes
and views.  Half precision is converted to float32 before, and the results are rounded once after;
``xp.half`` is its dtype, None in other ops.

NumPy runs an op without a native form, and an op whose ``lower`` raises ``NotNative``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

__all__ = ["LARGE", "NotNative", "Primitives", "View", "floats", "full_key", "primitive"]

# The types of ``xp`` and of arrays in native forms; the classes are those of the compiler.
Primitives: TypeAlias = Any
View: TypeAlias = Any


# Bytes.  In a compiled program that NumPy runs, smaller results are always new arrays, because a search for a
# reusable array would take longer.
LARGE = 1 << 17


class NotNative(Exception):  # noqa: N818  not an error: NumPy runs the op
    """Raised when no kernel can compute an op, or an op with these arguments; NumPy then runs the op."""


def primitive(name: str, ufunc: Any) -> Callable[..., View]:
    """Return the native form of an op that is the elementwise primitive ``name`` itself.

    Its dtypes are those of NumPy's ``ufunc``.
    """
    return lambda xp, *args: xp.primitive(name, ufunc, *args)


def floats(x: View) -> View:
    """Return ``x`` unchanged if it has a floating-point dtype; otherwise raise ``NotNative``."""
    if x.dtype.kind != "f":
        raise NotNative(f"a function of {x.dtype} has no native form")
    return x


def full_key(key: Sequence[Any], ndim: int) -> list[Any]:
    """Return a basic index with one entry per axis: expand the ellipsis and add missing slices.

    >>> full_key((..., 0), 3)
    [slice(None, None, None), slice(None, None, None), 0]
    """
    used = sum(k is not None and k is not Ellipsis for k in key)
    found: list[Any] = []
    for k in key:
        found += [slice(None)] * (ndim - used) if k is Ellipsis else [k]
    missing = ndim - sum(k is not None for k in found)
    return found + [slice(None)] * missing
