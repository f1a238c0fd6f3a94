"""Sparse matrices whose elements may have derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.config import grad_mode
from adjoint.core.conversion import check_conversion
from adjoint.core.convert import asarray
from adjoint.core.docstrings import SharedDoc
from adjoint.core.namespace import rec
from adjoint.core.roles import MatrixRole
from adjoint.core.tensor import Tensor, concrete, wrap
from adjoint.core.values import varies
from adjoint.errors import AbsentNameError, InputError, ShapeError
from adjoint.interop.drop_in import arrays_out
from adjoint.ops.join import concat
from adjoint.ops.reduce import floating, sum
from adjoint.ops.sparse_matrices import Operator, Pattern
from adjoint.scipy.fallback import scipy_module
from adjoint.scipy.values import plain_values
from adjoint.tree import register
from adjoint.typing import ArrayLike

__all__ = [
    "SparseArray", "coo_array", "coo_matrix", "csc_array", "csc_matrix", "csr_array", "csr_matrix",
    "diags", "diags_array", "eye", "eye_array", "identity",
]  # fmt: skip


_INSTEAD = (
    "Use the functions of adjoint.scipy.sparse, a.toarray() for a dense tensor, or a.constant() for SciPy's "
    "own functions."
)


class SparseArray(MatrixRole):
    """A sparse matrix: a tensor of its elements, and their rows and columns.

    Products with tensors, sums, multiples and solves have derivatives in the elements and in the tensors.

    Parameters
    ----------
    data : array_like
        The elements.
    rows : array_like of int
        The rows of the elements.
    cols : array_like of int
        The columns of the elements.  Elements at the same position are added.
    shape : pair of int
        The shape of the matrix.
    """

    ndim = 2
    __array_ufunc__ = None  # so that array @ matrix calls SparseArray.__rmatmul__

    def __init__(self, data: ArrayLike, rows: Any, cols: Any, shape: Sequence[int]) -> None:
        values = floating("sparse", data)
        i, j = (np.asarray(k, np.intp).reshape(-1) for k in (rows, cols))
        m, n = shape
        if values.shape != i.shape or i.shape != j.shape:
            raise ShapeError(
                f"sparse: data, rows and columns must have the same shape, but have shapes {values.shape}, "
                f"{i.shape} and {j.shape}."
            )
        if i.size and (i.min() < 0 or i.max() >= m or j.min() < 0 or j.max() >= n):
            raise ShapeError(f"sparse: the position of an element is outside of the shape {(m, n)}.")
        order = np.lexsort((j, i))
        if (np.diff(order) != 1).any():
            values, i, j = values[order], i[order], j[order]
        self.data, self.pattern = values, Pattern(i, j, (int(m), int(n)))
        self._turned: Any = None

    @classmethod
    def of(cls, data: Tensor, pattern: Pattern) -> SparseArray:
        """Return the matrix with these elements, in the order of a pattern."""
        found = cls.__new__(cls)
        found.data, found.pattern, found._turned = data, pattern, None
        return found

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        return self.pattern.shape

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return self.data.dtype

    @property
    def nnz(self) -> int:
        """The number of stored elements."""
        return self.pattern.count

    @property
    def T(self) -> SparseArray:  # noqa: N802 (NumPy's name)
        """The transposed matrix."""
        found = SparseArray.of(self.pattern.reordered(rec, self.data), self.pattern.T)
        if grad_mode.get():  # without it, the copy has fewer derivatives
            found._turned = [(t, t._version) for t in (found.data, self.data)]
        return found

    def _elements(self) -> tuple[Tensor, Any, Any]:
        """Return the elements with their rows and columns.

        Those of a transposed matrix are in the order of the matrix, so that a compiled program does not copy
        them, unless either was written to since, or gradients of the copy can be asked for.
        """
        p = self.pattern
        if self._turned and all(t._version == n and not t.requires_grad for t, n in self._turned):
            (own, _), (before, _) = self._turned
            if own is self.data:
                return before, p.T.cols, p.T.rows
        return self.data, p.rows, p.cols

    def constant(self) -> Any:
        """Return the matrix as a SciPy matrix, or None if its elements require grad or are traced."""
        values = None if varies(self.data) else plain_values(self.data)
        return None if values is None else self.pattern.matrix(values).tocsr()

    @arrays_out
    def toarray(self) -> Tensor:
        """Return the matrix as a dense tensor."""
        m, n = self.shape
        place = asarray(self.pattern.rows * n + self.pattern.cols)
        shape = (*self.data.shape[:-1], m, n)  # of a batch, as ad.vmap returns it, if data has a batch axis
        return rec.reshape(rec.untake(self.data, place, axis=-1, length=m * n), shape=shape)

    todense = toarray

    @arrays_out
    def diagonal(self) -> Tensor:
        """Return the main diagonal."""
        on = np.flatnonzero(self.pattern.rows == self.pattern.cols)
        place = asarray(self.pattern.rows[on])
        return rec.untake(self.data[on], place, axis=-1, length=min(self.shape))

    @arrays_out
    def trace(self) -> Tensor:
        """Return the sum of the main diagonal."""
        return sum(self.diagonal())

    @arrays_out
    def sum(self, axis: int | None = None) -> Tensor:
        """Return the sum of all elements, or the sums along an axis."""
        if axis is None:
            return sum(self.data)
        if axis not in (0, 1, -1, -2):
            raise InputError(f"sum: axis must be None, 0 or 1 for a sparse matrix, not {axis!r}.")
        place = self.pattern.cols if axis in (0, -2) else self.pattern.rows
        return rec.untake(self.data, asarray(place), axis=-1, length=self.shape[1 if axis in (0, -2) else 0])

    def multiply(self, other: ArrayLike) -> SparseArray:
        """Return the elementwise product with a number or a dense matrix, which may broadcast."""
        dense = rec.broadcast_to(floating("sparse", _values(other)), shape=self.shape)
        return SparseArray.of(self.data * dense[self.pattern.rows, self.pattern.cols], self.pattern)

    def conj(self) -> SparseArray:
        """Return the matrix with conjugated elements."""
        return SparseArray.of(rec.conj(self.data), self.pattern)

    def astype(self, dtype: Any) -> SparseArray:
        """Return the matrix with elements of another dtype."""
        return SparseArray.of(rec.astype(self.data, dtype=np.dtype(dtype)), self.pattern)

    def tocsr(self, copy: bool = False) -> SparseArray:
        """Return the matrix itself, because a ``SparseArray`` has only one format."""
        return self

    tocsc = tocoo = tocsr

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise InputError(f"a SparseArray cannot be converted to a NumPy array.\n  {_INSTEAD}")

    def numpy_value(self, name: str) -> Any:
        """Return the SciPy matrix, for SciPy's function ``name``; raise if the elements are not constant."""
        check_conversion(self.data, f"an array for {name}", "It has no derivative in adjoint.")
        return self.pattern.matrix(concrete(self.data, name)).tocsr()

    @arrays_out
    def __matmul__(self, other: Any) -> Tensor:
        x = floating("sparse", _values(other))
        if x.ndim not in (1, 2) or x.shape[0] != self.shape[1]:
            raise ShapeError(
                f"a sparse matrix of shape {self.shape} cannot be multiplied with a tensor of shape "
                f"{x.shape}."
            )
        columns = x[:, None] if x.ndim == 1 else x
        held = self.constant()
        if held is not None:
            y = rec.apply_operator(columns, operator=Operator(held))
        else:
            data, rows, cols = self._elements()
            parts = data[:, None] * rec.take(columns, asarray(cols), axis=-2)
            y = rec.untake(parts, asarray(rows), axis=-2, length=self.shape[0])
        return y[:, 0] if x.ndim == 1 else y

    dot = __matmul__

    def matvec(self, other: Any) -> Any:
        """Return the product with a vector, for SciPy's iterative methods.

        It is an array, unless the product has derivatives; then it is a tensor.
        """
        y = self @ other
        if not isinstance(y, Tensor):
            return y
        return y if varies(y) or plain_values(y) is None else y.numpy(copy=True)

    def rmatvec(self, other: Any) -> Any:
        """Return the product of the conjugated, transposed matrix with a vector."""
        return self.T.conj().matvec(other)

    @arrays_out
    def __rmatmul__(self, other: Any) -> Tensor:
        x = floating("sparse", other)
        return self.T @ x if x.ndim == 1 else rec.matrix_transpose(self.T @ rec.matrix_transpose(x))

    def __mul__(self, other: Any) -> SparseArray:
        factor = asarray(other)
        if factor.ndim:
            raise InputError(
                "a sparse matrix can be multiplied elementwise only by a number.  Use @ for the matrix "
                "product."
            )
        return SparseArray.of(self.data * factor, self.pattern)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> SparseArray:
        return self * (1 / floating("sparse", other))

    def __neg__(self) -> SparseArray:
        return SparseArray.of(-self.data, self.pattern)

    def __add__(self, other: Any) -> SparseArray:
        b = as_sparse(other)
        if b.shape != self.shape:
            raise ShapeError(f"sparse matrices of shapes {self.shape} and {b.shape} cannot be added.")
        rows = np.concatenate([self.pattern.rows, b.pattern.rows])
        cols = np.concatenate([self.pattern.cols, b.pattern.cols])
        return SparseArray(concat([self.data, b.data]), rows, cols, self.shape)

    __radd__ = __add__

    def __sub__(self, other: Any) -> SparseArray:
        return self + (-as_sparse(other))

    def __rsub__(self, other: Any) -> SparseArray:
        return as_sparse(other) - self

    if not TYPE_CHECKING:  # so that type checkers report unknown names

        def __getattr__(self, name: str) -> Any:
            raise AbsentNameError(f"a SparseArray has no attribute {name!r}.  {_INSTEAD}")

    def __repr__(self) -> str:
        return f"<SparseArray of shape {self.shape} with {self.nnz} elements, {self.dtype}>"


def _values(other: Any) -> Any:
    if isinstance(other, SparseArray) or hasattr(other, "tocoo"):
        raise InputError(
            "the product of two sparse matrices is not differentiable.  Make one of them dense with "
            "a.toarray(), or, if you need no gradient, multiply SciPy's sparse arrays."
        )
    return other


def operation(op: str, x: Any, y: Any) -> Any:
    """Return the result of an operator between a tensor and a sparse matrix, or NotImplemented.

    ``op`` is the name of the op.  As in SciPy, a sum with a dense matrix is dense, and ``*`` is the matrix
    product of matrices that are no arrays.
    """
    sparse, dense = (x, y) if hasattr(x, "tocsr") else (y, x)
    if hasattr(dense, "tocsr"):
        return NotImplemented
    a = as_sparse(sparse)
    if op == "multiply" and dense.ndim and isinstance(sparse, scipy_module("sparse").spmatrix):
        op = "matmul"
    if op == "matmul":
        return a @ dense if sparse is x else a.__rmatmul__(dense)
    if op == "multiply":
        return a.multiply(dense) if dense.ndim else a * dense
    if op == "divide" and sparse is x and not dense.ndim:
        return a / dense
    if op in ("add", "subtract"):
        pair = (a.toarray(), dense) if sparse is x else (dense, a.toarray())
        return getattr(rec, op)(*pair)
    return NotImplemented


def as_sparse(a: Any) -> SparseArray:
    """Return a ``SparseArray`` from a SciPy matrix, or from the nonzero elements of a dense matrix."""
    if isinstance(a, SparseArray):
        return a
    if hasattr(a, "tocoo"):
        coo = a.tocoo()
        return SparseArray(coo.data, coo.row, coo.col, coo.shape)
    dense = floating("sparse", a)
    values = plain_values(dense)
    if values is None or dense.ndim != 2:
        raise InputError(
            "sparse: a tensor can be converted only if it is a matrix and outside of transforms.  Inside a "
            "transform, pass (data, (rows, cols))."
        )
    i, j = np.nonzero(values)
    return SparseArray(dense[i, j], i, j, dense.shape)


def _constructor(name: str) -> Callable[..., SparseArray]:
    """Return a function that creates a ``SparseArray`` from the arguments of the SciPy class ``name``."""

    def make(
        arg1: Any, shape: Sequence[int] | None = None, dtype: Any = None, copy: bool = False
    ) -> SparseArray:
        found = _made(name, arg1, shape)
        if dtype is not None and found.dtype != dtype:
            found = found.astype(dtype)
        return found

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"""Return a sparse matrix, from the arguments of ``scipy.sparse.{name}``.

    Parameters
    ----------
    arg1 : sparse matrix, array_like or tuple
        A matrix, ``(data, (rows, cols))``, or ``(data, indices, indptr)``.  Gradients flow to ``data``.
    shape : pair of int, optional
        The shape of the matrix.
    dtype : dtype, optional
        The dtype of the elements.
    copy : bool, optional
        Ignored: elements are not written to.

    Returns
    -------
    SparseArray
        The matrix.

    Examples
    --------
    >>> import adjoint as ad
    >>> a = ad.scipy.sparse.{name}([[0.0, 2.0], [3.0, 0.0]])
    >>> a @ ad.tensor([1.0, 10.0])
    tensor([20.,  3.], dtype=float64)
    """
    return make


csr_array, csc_array, coo_array = map(_constructor, ("csr_array", "csc_array", "coo_array"))
csr_matrix, csc_matrix, coo_matrix = map(_constructor, ("csr_matrix", "csc_matrix", "coo_matrix"))


def _made(name: str, arg1: Any, shape: Any) -> SparseArray:
    if not isinstance(arg1, tuple):
        return as_sparse(arg1)
    if len(arg1) == 2 and all(isinstance(n, (int, np.integer)) for n in arg1):
        return SparseArray(np.zeros(0), [], [], arg1)
    if len(arg1) == 2:
        data, (i, j) = arg1
    elif len(arg1) == 3 and not name.startswith("coo"):
        data, indices, indptr = arg1
        groups = np.repeat(np.arange(len(indptr) - 1), np.diff(np.asarray(indptr)))
        i, j = (groups, indices) if name.startswith("csr") else (indices, groups)
        if shape is None and name.startswith("csr"):
            shape = (len(indptr) - 1, int(np.max(indices, initial=-1)) + 1)
        elif shape is None:
            shape = (int(np.max(indices, initial=-1)) + 1, len(indptr) - 1)
    else:
        raise InputError(
            f"{name}: the argument must be a matrix, (data, (rows, cols)) or (data, indices, indptr)."
        )
    if shape is None:
        shape = int(np.max(i, initial=-1)) + 1, int(np.max(j, initial=-1)) + 1
    return SparseArray(data, i, j, shape)


_matrix_doc = SharedDoc("""
    Parameters
    ----------
    diagonals : sequence of array_like
        The diagonals; one with a single element is repeated.
    offsets : int or sequence of int, optional
        The offsets of the diagonals: positive above the main diagonal, negative below.
    shape : pair of int, optional
        The shape of the matrix; by default it is square.
    format : str, optional
        Ignored, because a ``SparseArray`` has only one format.
    dtype : dtype, optional
        The dtype of the elements.
    m : int
        The number of rows.
    n : int, optional
        The number of columns; by default as many as rows.
    k : int, optional
        The diagonal: 0 for the main one, positive numbers above, negative ones below.

    Returns
    -------
    SparseArray
        The matrix.
    """)


@_matrix_doc
def diags_array(
    diagonals: Any,
    *,
    offsets: Any = 0,
    shape: Sequence[int] | None = None,
    format: str | None = None,
    dtype: Any = None,
) -> SparseArray:
    """Return a sparse matrix from its diagonals; gradients flow to them.

    Raises
    ------
    ShapeError
        If the length of a diagonal does not match the shape of the matrix.

    >>> ad.scipy.sparse.diags_array([[-1.0], [2.0], [-1.0]], offsets=[-1, 0, 1], shape=(3, 3)).toarray()
    array([[ 2., -1.,  0.],
           [-1.,  2., -1.],
           [ 0., -1.,  2.]])
    """
    places = np.atleast_1d(offsets)
    one = np.ndim(offsets) == 0 and (not isinstance(diagonals, (list, tuple)) or np.ndim(diagonals[0]) == 0)
    items = [floating("diags", d) for d in ([diagonals] if one else diagonals)]
    items = [rec.reshape(d, shape=(1,)) if d.ndim == 0 else d for d in items]
    if len(items) != len(places):
        raise ShapeError(
            f"diags: there must be one offset per diagonal, but there are {len(items)} diagonals and "
            f"{len(places)} offsets."
        )
    if shape is None:
        size = items[0].shape[0] + abs(int(places[0]))
        shape = size, size
    m, n = shape
    data, rows, cols = [], [], []
    for d, k in zip(items, places.tolist(), strict=True):
        length = max(min(m + min(k, 0), n - max(k, 0)), 0)
        if d.shape[0] not in (1, length):
            raise ShapeError(
                f"diags: the diagonal with offset {k} must have 1 or {length} elements, but has {d.shape[0]}."
            )
        data.append(rec.broadcast_to(d, shape=(length,)) if d.shape[0] != length else d)
        rows.append(np.arange(length) + max(-k, 0))
        cols.append(np.arange(length) + max(k, 0))
    found = SparseArray(concat(data), np.concatenate(rows), np.concatenate(cols), (m, n))
    return found if dtype is None else found.astype(dtype)


@_matrix_doc
def diags(
    diagonals: Any,
    offsets: Any = 0,
    shape: Sequence[int] | None = None,
    format: str | None = None,
    dtype: Any = None,
) -> SparseArray:
    """Return a sparse matrix from its diagonals, as ``diags_array``.

    >>> ad.scipy.sparse.diags([[1.0, 2.0]], [0]).toarray()
    array([[1., 0.],
           [0., 2.]])
    """
    return diags_array(diagonals, offsets=offsets, shape=shape, dtype=dtype)


@_matrix_doc
def eye_array(
    m: int, n: int | None = None, *, k: int = 0, dtype: Any = float, format: str | None = None
) -> SparseArray:
    """Return a sparse matrix with ones on a diagonal.

    >>> ad.scipy.sparse.eye_array(2) @ [3.0, 4.0]
    array([3., 4.])
    """
    return as_sparse(scipy_module("sparse").eye_array(m, n, k=k, dtype=dtype))


@_matrix_doc
def eye(
    m: int, n: int | None = None, k: int = 0, dtype: Any = float, format: str | None = None
) -> SparseArray:
    """Return a sparse matrix with ones on a diagonal, as ``eye_array``.

    >>> ad.scipy.sparse.eye(2) @ [3.0, 4.0]
    array([3., 4.])
    """
    return eye_array(m, n, k=k, dtype=dtype)


@_matrix_doc
def identity(n: int, dtype: Any = float, format: str | None = None) -> SparseArray:
    """Return the sparse identity matrix.

    Parameters
    ----------
    n : int
        The number of rows and columns.

    >>> ad.scipy.sparse.identity(2) @ [3.0, 4.0]
    array([3., 4.])
    """
    return eye_array(n, dtype=dtype)


def _rebuilt(pattern: Pattern, leaves: Sequence[Any]) -> Any:
    """Return the matrix with new elements; a matrix of SciPy if they are an array."""
    (data,) = leaves
    if type(data) is np.ndarray:
        return pattern.csr(data) if data.ndim == 1 else SparseArray.of(wrap(data), pattern)
    return SparseArray.of(data, pattern)


register(SparseArray, lambda a: ([("data", a.data)], a.pattern), _rebuilt)
