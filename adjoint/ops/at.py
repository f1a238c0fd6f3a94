"""Updates of elements that return a new tensor: ``x.at[key].set(value)``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import weak_tensor
from adjoint.core.docstrings import SharedDoc
from adjoint.core.namespace import raw, rec
from adjoint.core.shapes import Shape, broadcast_shapes
from adjoint.core.tensor import Tensor, castable
from adjoint.errors import DTypeError, InputError, ShapeError
from adjoint.hints import Hinted
from adjoint.ops.index import CanonicalKey, canonical_key, flat_positions, has_traced, is_basic, traced_rows
from adjoint.typing import Array, ArrayLike

__all__ = ["At"]

_updates_doc = SharedDoc("""
    Parameters
    ----------
    value : array_like
        The values to compare with, which broadcast.

    Returns
    -------
    Tensor
        The new tensor.
    """)


class At(metaclass=Hinted):
    """Updates of elements that return a new tensor, as ``x.at[key].set(value)``.

    Gradients flow to the tensor and to the value.

    Parameters
    ----------
    x : Tensor
        The tensor.

    Examples
    --------
    >>> import adjoint as ad
    >>> x = ad.tensor([1.0, 2.0, 3.0])
    >>> x.at[1].set(9.0)
    tensor([1., 9., 3.], dtype=float64)
    >>> x.at[[0, 0]].add(1.0)  # repeated positions all count
    tensor([3., 2., 3.], dtype=float64)
    """

    __slots__ = ("_key", "_rows", "_x")

    def __init__(self, x: Tensor) -> None:
        self._x = x
        self._key: CanonicalKey | None = None
        self._rows: tuple[Tensor, Tensor] | None = None  # result of traced_rows, for a traced index

    def __repr__(self) -> str:
        return f"<elements of a tensor of shape {self._x.shape}>"

    def __getitem__(self, key: Any) -> At:
        chosen = At(self._x)
        if has_traced(key):
            chosen._rows = traced_rows(self._x, key)
        else:
            chosen._key = canonical_key(self._x.shape, key)
        return chosen

    def get(self) -> Tensor:
        """Return the selected elements.

        Returns
        -------
        Tensor
            The elements ``x[key]``.
        """
        if self._rows is not None:
            rows, i = self._rows
            return rec.take(rows, i, axis=-rows.ndim)
        return rec.index(self._x, key=self._checked())

    @_updates_doc
    def set(self, value: ArrayLike) -> Tensor:
        """Return a copy with the selected elements replaced.

        If a position is repeated, the last value is kept.

        Parameters
        ----------
        value : array_like
            The new values, which broadcast.
        """
        if self._rows is not None:
            return self._set_rows(*self._rows, value)
        x, key, value = self._x, self._checked(), self._spread(value)
        if is_basic(key):
            return rec.index_set(x, value, key=key)
        flat = flat_positions(key, x.shape)
        owner = np.zeros(x.size, np.intp)
        owner[flat] = np.arange(flat.size)
        last = np.flatnonzero(owner[flat] == np.arange(flat.size))
        if last.size == flat.size:
            return rec.index_set(x, value, key=key)
        values = rec.index(rec.reshape(value, shape=(flat.size,)), key=(last,))
        out = rec.index_set(rec.reshape(x, shape=(x.size,)), values, key=(flat[last],))
        return rec.reshape(out, shape=x.shape)

    @_updates_doc
    def add(self, value: ArrayLike) -> Tensor:
        """Return a copy with a value added to the selected elements.

        Values at repeated positions are summed.

        Parameters
        ----------
        value : array_like
            The values to add, which broadcast.
        """
        if self._rows is not None:
            rows, i = self._rows
            value = self._fitted(value, (*i.shape, *rows.shape[1:]))
            total = rec.untake(value, i, axis=-rows.ndim, length=rows.shape[0])
            return self._x + rec.reshape(total, shape=self._x.shape)
        value = self._spread(value)
        return self._x + rec.unindex(value, key=self._checked(), shape=self._x.shape)

    @_updates_doc
    def mul(self, value: ArrayLike) -> Tensor:
        """Return a copy with the selected elements multiplied by a value.

        Parameters
        ----------
        value : array_like
            The factors, which broadcast.
        """
        return self._update(rec.multiply, value)

    @_updates_doc
    def max(self, value: ArrayLike) -> Tensor:
        """Return a copy with the maximum of each selected element and a value.

        If the element and the value are equal, each gets half of the gradient.  Values at a repeated position
        are applied one after the other: if an element and two values are all equal, their shares are ¼, ¼
        and ½.
        """
        return self._update(rec.maximum, value)

    @_updates_doc
    def min(self, value: ArrayLike) -> Tensor:
        """Return a copy with the minimum of each selected element and a value.

        Equal numbers share the gradient, as in ``max``.
        """
        return self._update(rec.minimum, value)

    def _set_rows(self, rows: Tensor, i: Tensor, value: Any) -> Tensor:
        width = math.prod(rows.shape[1:])
        value = self._fitted(value, (*i.shape, *rows.shape[1:]))
        places = rec.reshape(i, shape=(i.size, 1)) * width + np.arange(width)
        places = rec.reshape(places, shape=(i.size * width,))
        flat = rec.reshape(self._x, shape=(self._x.size,))
        out = rec.put_along_axis(flat, places, rec.reshape(value, shape=(value.size,)), axis=-1)
        return rec.reshape(out, shape=self._x.shape)

    def _checked(self) -> CanonicalKey:
        if self._rows is not None:
            raise InputError(
                "x.at[i] supports only get, set and add if i depends on the arguments of a transformed "
                "function."
            )
        if self._key is None:
            raise InputError("x.at must be indexed before its methods are called, as in x.at[i].set(v).")
        return self._key

    def _spread(self, value: Any) -> Tensor:
        """Return a value broadcast to the shape of the selected elements and cast to the tensor's dtype."""
        return self._fitted(
            value, raw.index(np.broadcast_to(np.int8(0), self._x.shape), key=self._checked()).shape
        )

    def _fitted(self, value: Any, spot: Shape) -> Tensor:
        dtype = self._x.dtype
        value = weak_tensor(value, dtype)
        if broadcast_shapes("x.at[key]", spot, value.shape) != spot:
            raise ShapeError(
                f"x.at[key]: x[key] has shape {spot}, to which a value of shape {value.shape} cannot be "
                "broadcast."
            )
        if value.dtype != dtype:
            if not castable(value.dtype, dtype):
                raise DTypeError(
                    f"x.at[key]: {value.dtype} values cannot be written into a {dtype} tensor.\n"
                    f"  Cast the tensor first, x.astype('{value.dtype}'), or cast the values."
                )
            value = rec.astype(value, dtype=dtype)
        return rec.broadcast_to(value, shape=spot)

    def _update(self, combine: Any, value: Any) -> Tensor:
        x, key, value = self._x, self._checked(), self._spread(value)
        if is_basic(key):
            return rec.index_set(x, combine(rec.index(x, key=key), value), key=key)
        # positions in the flattened tensor; values at a repeated position are applied one after the other
        flat = flat_positions(key, x.shape)
        out, values = rec.reshape(x, shape=(x.size,)), rec.reshape(value, shape=(flat.size,))
        for chosen in _rounds(flat):
            spot = (flat[chosen],)
            old = rec.index(out, key=spot)
            out = rec.index_set(out, combine(old, rec.index(values, key=(chosen,))), key=spot)
        return rec.reshape(out, shape=x.shape)


def _rounds(flat: Array) -> list[Any]:
    """Split an array of positions into groups in which no position repeats; return the indices of each group.

    Group k has the elements of ``flat`` whose position occurs k times before them.
    """
    order = np.argsort(flat, kind="stable")
    sorted_flat = flat[order]
    starts = np.flatnonzero(np.r_[True, sorted_flat[1:] != sorted_flat[:-1]]) if flat.size else flat
    counts = np.diff(np.r_[starts, flat.size])
    occurrence = np.arange(flat.size) - np.repeat(starts, counts)
    return [np.sort(order[occurrence == k]) for k in range(int(counts.max(initial=0)))]
