"""NumPy's functions of arrays and callables on tensors: ``insert``, ``piecewise``, ``apply_along_axis``, ….

``FORMS`` maps NumPy's functions to the functions here, as in ``numpy_forms``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint import ops, words
from adjoint.core.convert import array_of, asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError

__all__ = ["FORMS"]

our: Callable[[str], Any] = ops.function


def _insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Tensor:
    x = our("ravel")(arr) if axis is None else asarray(arr)
    where = canonical_axis("insert", 0 if axis is None else axis, x.ndim)
    key = obj if isinstance(obj, slice) else array_of(obj)
    v = asarray(values)
    v = rec.reshape(v, shape=(1,) * (x.ndim - v.ndim) + v.shape)
    if not isinstance(key, slice) and key.ndim == 0:  # a single index: the rows are the first axis of values
        v = our("moveaxis")(v, 0, where)
    length = x.shape[where]
    chosen = np.arange(length)[key] if isinstance(key, slice) or key.dtype == bool else np.asarray(key)
    shape = list(x.shape)
    shape[where] = v.shape[where] if chosen.size == 1 else chosen.size
    new = rec.astype(rec.broadcast_to(v, shape=tuple(shape)), dtype=x.dtype)
    places = np.insert(np.arange(length), key, length + np.arange(shape[where]))
    return our("take")(our("concat")([x, new], axis=where), places, axis=where)


def _piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Tensor:
    x = asarray(x)
    conditions = [asarray(c) for c in condlist] if isinstance(condlist, (list, tuple)) else None
    if conditions is None:
        table = asarray(condlist)
        conditions = [table[i] for i in range(table.shape[0])] if table.ndim > x.ndim else [table]
    elif conditions and conditions[0].ndim == 0 and x.ndim:
        conditions = [asarray(condlist)]
    functions = list(funclist)
    if len(functions) not in (len(conditions), len(conditions) + 1):
        raise ArgumentError(
            f"np.piecewise: for {words.count(len(conditions), 'condition')} there must be "
            f"{len(conditions)} or "
            f"{words.count(len(conditions) + 1, 'function')}, but got {len(functions)}."
        )
    y: Any = our("zeros_like")(x)
    if len(functions) > len(conditions):
        none = rec.logical_not(functools.reduce(rec.logical_or, conditions))
        conditions.append(none)
    for condition, f in zip(conditions, functions, strict=True):  # if several are true, the last one counts
        y = rec.where(condition, rec.astype(asarray(_piece(f, x, condition, args, kw)), dtype=x.dtype), y)
    return y


def _piece(f: Any, x: Tensor, condition: Tensor, args: Any, kw: Any) -> Any:
    """Return the values of ``f``, an item of the function list of ``np.piecewise``, for all of ``x``.

    ``f`` is a function or a constant.  Before a function is called, the elements of ``x`` for which
    ``condition`` is false are replaced by one for which it is true, so that all values are valid for ``f``.
    """
    if not callable(f):
        return f
    if x.size:
        holds = our("ravel")(rec.astype(condition, dtype=np.dtype(np.int64)))
        x = rec.where(condition, x, our("take")(our("ravel")(x.detach()), our("argmax")(holds)))
    return f(x, *args, **kw)


def _apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Tensor:
    x = asarray(arr)
    where = canonical_axis("apply_along_axis", axis, x.ndim)
    rows = our("moveaxis")(x, where, -1)
    lead: tuple[int, ...] = rows.shape[:-1]
    flat = our("reshape")(rows, (math.prod(lead), rows.shape[-1]))
    if not flat.shape[0]:
        raise ArgumentError("np.apply_along_axis: there are no slices to apply the function to.")
    parts = [asarray(func1d(flat[i], *args, **kwargs)) for i in range(flat.shape[0])]
    y = our("stack")(parts)
    inner = y.shape[1:]
    y = rec.reshape(y, shape=(*lead, *inner))
    place, count = where + x.ndim, len(lead)  # the axes of the results replace ``axis``
    return our("permute_dims")(y, (*range(place), *range(count, y.ndim), *range(place, count)))


def _apply_over_axes(func: Callable[..., Any], a: Any, axes: Any) -> Tensor:
    y = asarray(a)
    ndim = y.ndim
    for axis in np.atleast_1d(axes):
        result = asarray(func(y, int(axis) % ndim))
        y = result if result.ndim == y.ndim else our("expand_dims")(result, int(axis) % ndim)
    return y


def _real_if_close(a: Any, tol: float = 100) -> Tensor:
    x = asarray(a)
    if x.dtype.kind != "c":
        return x
    limit = tol * float(np.finfo(x.dtype).eps) if tol > 1 else tol
    close = np.all(np.abs(array_of(x.detach()).imag) < limit)
    return rec.real(x) if close else x


def _trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Tensor:
    x = asarray(filt)
    if x.ndim != 1 or axis not in (None, 0, -1):
        raise ArgumentError(
            f"np.trim_zeros: adjoint trims only vectors, but got shape {x.shape}.\n  Use a slice: x[i:j]."
        )
    where = np.flatnonzero(array_of(x.detach()))
    if not where.size:
        return x[:0]
    first = int(where[0]) if "f" in trim.lower() else 0
    last = int(where[-1]) + 1 if "b" in trim.lower() else x.shape[0]
    return x[first:last]


FORMS: dict[Any, Callable[..., Any]] = {
    getattr(np, f.__name__[1:]): f
    for f in (
        _insert, _piecewise, _apply_along_axis, _apply_over_axes, _real_if_close, _trim_zeros,
    )
}  # fmt: skip
