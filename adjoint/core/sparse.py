"""Sparse gradients: the rows of a large table that were used, and their values.

``SparseRows`` is the array-like object that a first-order backward passes from node to node.  The sum of two
``SparseRows`` is sparse, and the sum of ``SparseRows`` and an array is dense, so the engine adds them like
any other gradients.  ``SparseGradient`` is the tensor that users get.  It has rows and values, and becomes
dense when an operation needs its elements.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint import words
from adjoint.core.convert import check_device
from adjoint.core.lifted import Lifted, refuse_tracing
from adjoint.core.namespace import dyn, rec
from adjoint.core.shapes import checked_shape
from adjoint.core.tensor import Tensor, read_only, with_own_dtype, wrap
from adjoint.core.values import tracked
from adjoint.errors import InPlaceError, InputError, ShapeError

__all__ = [
    "SparseGradient", "SparseRows", "added", "as_gradient_tensor", "has_symbols", "sparse_gradient",
    "stored_in",
    "with_stored",
]  # fmt: skip

Array = ndarray[Any, Any]


class SparseRows:
    """An array of ``shape`` that is zero except at ``rows``, where it has ``values``.

    A row may occur several times; its values are added.  The arrays are not written to after construction.
    Inside ``ad.compile`` they are symbols.

    >>> SparseRows(np.array([2, 0, 2]), np.array([1.0, 5.0, 3.0]), (4,)).to_dense()
    array([5., 0., 4., 0.])
    """

    __slots__ = ("_unique", "rows", "shape", "values")
    __array_priority__ = 100

    def __init__(self, rows: Array, values: Array, shape: tuple[int, ...], *, unique: bool = False) -> None:
        self.rows = rows
        self.values = values
        self.shape = shape
        self._unique = unique  # rows ascend without repeats

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """The number of axes of the whole array."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of the whole array, zeros included."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """The number of bytes that ``rows`` and ``values`` occupy together."""
        return self.rows.nbytes + self.values.nbytes

    def coalesced(self) -> SparseRows:
        """Return the same array with each row once, ascending; half precision is summed in float32."""
        if self._unique:
            return self
        self.check_known()
        order = np.argsort(self.rows, kind="stable")
        rows = self.rows[order]
        first = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1]))) if rows.size else order
        values = self.values[order]
        if rows.size and first.size < rows.size:
            wide = np.float32 if values.dtype.itemsize == 2 else None
            values = np.add.reduceat(values, first, axis=0, dtype=wide).astype(self.dtype, copy=False)
        return SparseRows(rows[first], values, self.shape, unique=True)

    def check_known(self) -> None:
        """Raise inside ``ad.compile``, where the number of different rows is not known."""
        if isinstance(self.values, Lifted):
            refuse_tracing("the rows of a sparse gradient", "Use grad.to_dense().", "read")

    def to_dense(self, dtype: Any = None) -> Array:
        """Return the whole array, zeros included."""
        if isinstance(self.values, Lifted):
            dense = self._in_program()
            return dense if dtype is None else dyn.astype(dense, dtype=dtype)
        out = np.zeros(self.shape, self.dtype if dtype is None else dtype)
        part = self.coalesced()
        out[part.rows] = part.values
        return out

    def _in_program(self, *base: Any) -> Any:
        """Return the symbol of the whole array, or of its sum with the array ``base``."""
        shape, width = self.shape, math.prod(self.shape[1:])

        def dense(*given: Any) -> Array:
            rows = SparseRows(given[-2], given[-1], shape)
            if not base:
                return rows.to_dense()
            total = np.array(given[0])
            rows.add_to(total)
            return total

        def native(xp: Any, *given: Any) -> Any:
            rows, values = given[-2:]
            start = xp.flat(given[0]) if base else xp.full((math.prod(shape),), 0, values.dtype)
            return xp.graph.reshape(xp.scatter("add", start, rows * width, xp.flat(values), width), shape)

        trace: Any = self.values.trace
        given, specs = [*base, self.rows, self.values], [(shape, self.dtype)]
        return trace.call("add_rows" if base else "dense_rows", dense, given, specs, lower=native)[0]

    def add_to(self, out: Array) -> None:
        """Add this sparse array to the array ``out`` in place; only the rows in ``rows`` are written."""
        part = self.coalesced()
        out[part.rows] += part.values

    def plus(self, other: SparseRows, dtype: Any = None) -> SparseRows:
        """Return the sum with another sparse array: the rows and values of both, concatenated."""
        if isinstance(self.values, Lifted):
            rows = dyn.concat(self.rows, other.rows, axis=-1)
            return SparseRows(rows, dyn.concat(self.values, other.values, axis=-self.ndim), self.shape)
        values = np.concatenate([self.values, other.values], dtype=dtype)
        return SparseRows(np.concatenate([self.rows, other.rows]), values, self.shape)

    def astype(self, dtype: Any, copy: bool = True) -> SparseRows:
        """Return the same rows with the values converted to ``dtype``."""
        return self.mapped(self.values.astype(dtype, copy=copy))

    def mapped(self, values: Array) -> SparseRows:
        """Return a sparse array with the same row indices and the given values."""
        return SparseRows(self.rows, values, self.shape, unique=self._unique)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.to_dense(dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Apply a ufunc: sums, conjugates and products with a number stay sparse, other results are dense."""
        if method == "__call__" and "where" not in kwargs:
            if ufunc is np.add and len(inputs) == 2:
                return added(*inputs, **kwargs)
            if ufunc is np.conjugate and not kwargs:
                return self.mapped(np.conjugate(self.values))
            if (
                ufunc in (np.multiply, np.divide)
                and not kwargs
                and inputs[0] is self
                and np.ndim(inputs[1]) == 0
            ):
                return self.mapped(ufunc(self.values, inputs[1]))
        dense = [a.to_dense() if isinstance(a, SparseRows) else a for a in inputs]
        return getattr(ufunc, method)(*dense, **kwargs)

    def __repr__(self) -> str:
        return f"SparseRows({words.count(self.rows.size, 'row')} of shape {self.shape}, {self.dtype})"


def added(a: Any, b: Any, out: Any = None, dtype: Any = None) -> Any:
    """Return the sum of two arrays, at least one of them sparse; ``out`` and ``dtype`` are as in NumPy."""
    if isinstance(a, SparseRows) and isinstance(b, SparseRows) and out is None:
        return a.plus(b, dtype)
    dense, sparse = (b, a) if isinstance(a, SparseRows) else (a, b)
    if isinstance(dense, SparseRows):
        dense = dense.to_dense()
    if isinstance(sparse.values, Lifted):
        return sparse._in_program(dense)
    if out is None:
        total = np.array(dense, dtype=dtype or np.result_type(dense, sparse.values))
    else:
        total = out[0]
        if total is not dense:
            np.copyto(total, dense)
    sparse.add_to(total)
    return total


class SparseGradient(Tensor):
    """A gradient in which only a few rows are not zero.

    Its attributes are ``rows`` and ``values``.  ``coalesce()`` returns the gradient with each row once, and
    ``to_dense()`` returns an ordinary tensor.  The sum of two sparse gradients, a multiple and a clipped
    gradient are sparse too; other operations use the dense values.  ``ad.sparse_gradient`` makes sparse
    gradients.

    Parameters
    ----------
    *_, **__ : object
        Not accepted: use ``ad.sparse_gradient``.

    Examples
    --------
    >>> import adjoint as ad
    >>> g = ad.sparse_gradient([1], [[2.0, 3.0]], (4, 2))
    >>> g
    SparseGradient(1 row of shape (4, 2), dtype=float64)
    >>> g.sum()
    tensor(5., dtype=float64)
    """

    __slots__ = ("_rows",)
    _rows: SparseRows

    @classmethod
    def of(cls, rows: SparseRows) -> SparseGradient:
        """Make a sparse gradient from ``SparseRows``.

        Parameters
        ----------
        rows : SparseRows
            The rows and their values.

        Returns
        -------
        SparseGradient
            The gradient.
        """
        t: SparseGradient = object.__new__(cls)
        t._rows = rows
        t._node = None
        t._version = 0
        t._extra = None
        return t

    @property
    def _data(self) -> Array:
        # read-only, so that `writable` calls the setter, which raises: a write into this array would be lost
        dense = self._rows.to_dense()
        if type(dense) is ndarray:
            dense.flags.writeable = False
        return dense

    @_data.setter
    def _data(self, value: Any) -> None:
        raise InPlaceError(
            "a sparse gradient cannot be written to.\n  Write into g.to_dense(), and set x.grad to that."
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis of the whole tensor."""
        return self._rows.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._rows.shape)

    @property
    def size(self) -> int:
        """The number of elements, zeros included."""
        return self._rows.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the values."""
        return self._rows.dtype

    @property
    def itemsize(self) -> int:
        """The number of bytes of one element."""
        return self.dtype.itemsize

    @property
    def rows(self) -> Array:
        """The row indices; an index may occur several times, unless the gradient is coalesced."""
        self._rows.check_known()
        return read_only(self._rows.rows)

    @property
    def values(self) -> Array:
        """The values at ``rows``, as an array of shape (len(rows), …)."""
        self._rows.check_known()
        return read_only(self._rows.values)

    def coalesce(self) -> SparseGradient:
        """Return the same gradient with rows in ascending order, each once."""
        return SparseGradient.of(self._rows.coalesced())

    def to_dense(self) -> Tensor:
        """Return the gradient as an ordinary tensor with all rows."""
        return wrap(self._rows.to_dense())

    def detach(self) -> Tensor:
        """Return the gradient itself, because a sparse gradient is never part of a graph."""
        return self

    def astype(self, dtype: Any, *, copy: bool = True, device: Any = None) -> Tensor:
        """Return the gradient with its values converted to ``dtype``, still sparse."""
        check_device("astype", device)
        return SparseGradient.of(self._rows.astype(np.dtype(dtype), copy=copy))

    def __add__(self, other: Any) -> Tensor:
        if not tracked(self) and isinstance(other, Tensor) and not tracked(other):
            if other.shape != self.shape:
                raise ShapeError(
                    f"add: a tensor added to a sparse gradient of shape {self.shape} must have that shape, "
                    f"not {other.shape}."
                )
            if type(other) is SparseGradient:
                return SparseGradient.of(self._rows.plus(other._rows))
            if type(other) is Tensor:
                return wrap(added(other._data, self._rows))
        return rec.add(self, other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Tensor:
        if not tracked(self) and isinstance(other, (int, float, np.number)):
            return SparseGradient.of(self._rows.mapped(self._rows.values * other))
        return rec.multiply(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Tensor:
        if not tracked(self) and isinstance(other, (int, float, np.number)):
            return SparseGradient.of(self._rows.mapped(self._rows.values / other))
        return rec.divide(self, other)

    def __copy__(self) -> Tensor:
        return self

    def __reduce__(self) -> Any:
        return _unpickle_rows, (self._rows.rows.copy(), self._rows.values.copy(), self.shape)

    def __repr__(self) -> str:
        rows = words.count(self._rows.rows.size, "row")
        return f"SparseGradient({rows} of shape {self.shape}, dtype={self.dtype})"


def _unpickle_rows(rows: Array, values: Array, shape: tuple[int, ...]) -> SparseGradient:
    return SparseGradient.of(SparseRows(rows.copy(), with_own_dtype(values.copy()), shape))


def as_gradient_tensor(g: Any) -> Tensor:
    """Return a gradient (array, NumPy scalar, ``SparseRows`` or tensor) as the tensor that users get."""
    if type(g) is ndarray:
        return wrap(g)
    if isinstance(g, Tensor):
        return g
    if type(g) is SparseRows:
        return SparseGradient.of(g)
    if isinstance(g, np.generic):
        return wrap(np.asarray(g))
    return wrap(g)


def has_symbols(g: Any) -> bool:
    """Return whether ``g`` is a sparse gradient inside ``ad.compile``."""
    return type(g) is SparseGradient and isinstance(g._rows.values, Lifted)


def stored_in(g: Any) -> Any:
    """Return the gradient ``g``, or the values of a sparse one, of which rows may occur several times."""
    return g._rows.values if type(g) is SparseGradient else g


def with_stored(g: Any, values: Any) -> Tensor:
    """Return a gradient like ``g`` with other values, see ``stored_in``."""
    return SparseGradient.of(g._rows.mapped(values)) if type(g) is SparseGradient else wrap(values)


def sparse_gradient(rows: Any, values: Any, shape: tuple[int, ...]) -> SparseGradient:
    """Make a sparse gradient from row numbers and their values.

    Parameters
    ----------
    rows : array_like of int
        The row numbers, with shape (n,).  A row may occur several times; its values are added.
    values : array_like
        The values, with shape (n, …).
    shape : tuple of int
        The shape of the whole gradient.

    Returns
    -------
    SparseGradient
        The gradient.

    Raises
    ------
    ShapeError
        If shapes do not match or a row is out of range.

    Examples
    --------
    >>> sparse_gradient([3, 1], [[1.0, 2.0], [3.0, 4.0]], (5, 2)).to_dense().shape
    (5, 2)
    """
    index, data, shape = np.asarray(rows), np.asarray(values), checked_shape("sparse_gradient", shape)
    if index.dtype.kind not in "iu" and index.size:
        raise InputError(f"sparse_gradient: rows must be integers, but have dtype {index.dtype}.")
    if not shape or index.ndim != 1 or data.shape != (index.size, *shape[1:]):
        raise ShapeError(
            f"sparse_gradient: for shape {shape}, rows must have shape (n,) and values must have "
            f"shape (n, *{shape[1:]}), but they have {index.shape} and {data.shape}."
        )
    if index.size and (int(index.min()) < 0 or int(index.max()) >= shape[0]):
        raise ShapeError(
            f"sparse_gradient: rows must be from 0 to {shape[0] - 1}, but are {index.min()} … {index.max()}."
        )
    return SparseGradient.of(SparseRows(index.astype(np.intp), data.copy(), shape))
