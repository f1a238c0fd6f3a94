"""Products and solves with sparse matrices and linear operators of SciPy.

A matrix whose elements have derivatives is represented by the vector of its elements and a ``Pattern``, which
has their positions.  A constant matrix or linear operator is represented by an ``Operator``.  The pattern or
the operator is a parameter of the ops.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint.core.define import define
from adjoint.core.infer import Result, broadcast
from adjoint.core.namespace import Namespace, Value
from adjoint.errors import ConvergenceError, LinAlgError
from adjoint.ops.half import wide
from adjoint.ops.matrices import flat_lead, float_dtype
from adjoint.ops.scipy_forward import scipy_function
from adjoint.typing import Array

__all__ = ["Operator", "Pattern"]


class Operator:
    """A matrix or linear operator of SciPy that gets no gradient, with the same methods as ``Pattern``."""

    def __init__(self, held: Any) -> None:
        self.held, self.shape, self.dtype, self.count = held, tuple(held.shape), np.dtype(held.dtype), 0

    @functools.cached_property
    def T(self) -> Operator:  # noqa: N802 (NumPy's name)
        """The transposed operator."""
        other = Operator(self.held.T)
        other.__dict__["T"] = self
        return other

    def matrix(self, data: Array) -> Any:
        """Return the SciPy matrix or operator; ``data`` is not used."""
        return self.held

    def reordered(self, xp: Namespace, data: Any) -> Any:
        """Return ``data`` unchanged, because an operator has no elements that could be reordered."""
        return data

    def pulled(self, xp: Namespace, u: Any, z: Any, data: Any) -> Any:
        """Return zeros as the gradient of ``data``, because an operator gets no gradient."""
        return data * 0


class Pattern:
    """The positions of the elements of a sparse matrix, row by row."""

    def __init__(self, rows: Array, cols: Array, shape: tuple[int, int]) -> None:
        self.rows, self.cols, self.shape, self.count = rows, cols, shape, len(rows)

    def __eq__(self, other: object) -> bool:
        """Return whether ``other`` is a pattern with the same shape and positions."""
        if self is other or not isinstance(other, Pattern) or self.shape != other.shape:
            return self is other
        return np.array_equal(self.rows, other.rows) and np.array_equal(self.cols, other.cols)

    def __hash__(self) -> int:
        return hash((self.shape, self.count))

    @functools.cached_property
    def order(self) -> Any:
        """The permutation for transposing: element k of the transpose is element ``order[k]`` here."""
        return np.lexsort((self.rows, self.cols))

    @functools.cached_property
    def T(self) -> Pattern:  # noqa: N802 (NumPy's name)
        """The pattern of the transposed matrix."""
        order = self.order
        other = Pattern(self.cols[order], self.rows[order], self.shape[::-1])
        other.__dict__.update(order=np.argsort(order), T=self)
        return other

    def matrix(self, data: Array) -> Any:
        """Return a SciPy matrix with the elements ``data`` at the positions of the pattern."""
        return scipy_function("sparse", "csc_array")((data, (self.rows, self.cols)), shape=self.shape)

    @functools.cached_property
    def indptr(self) -> Any:
        """The number of elements before each row."""
        return np.searchsorted(self.rows, np.arange(self.shape[0] + 1)).astype(_index_type(self))

    @functools.cached_property
    def indices(self) -> Any:
        """The columns, as SciPy stores them."""
        return self.cols.astype(_index_type(self))

    @functools.cached_property
    def checked(self) -> Any:
        """A SciPy array with this pattern, in which SciPy has checked the positions."""
        arrays = np.zeros(self.count, bool), self.indices, self.indptr
        found = scipy_function("sparse", "csr_array")(arrays, shape=self.shape)
        found.has_canonical_format  # noqa: B018 (SciPy keeps the answer, and copies have it)
        return found

    def csr(self, data: Array) -> Any:
        """Return a SciPy array in CSR format with the elements ``data``; SciPy has none of half precision."""
        if data.dtype.itemsize == 2 and data.dtype.kind in "fV":
            data = data.astype(np.float32)
        kind: Any = type(self.checked)
        found = kind.__new__(kind)  # faster than copy.copy
        found.__dict__.update(self.checked.__dict__)
        found.data, found.indices, found.indptr = data, self.indices.copy(), self.indptr.copy()
        return found

    def reordered(self, xp: Namespace, data: Any) -> Any:
        """Return the elements ``data`` in the order of the transposed matrix."""
        return data[..., self.order]

    def pulled(self, xp: Namespace, u: Any, z: Any, data: Any) -> Any:
        """Return the gradient of the elements of A for the solution z of A z = y.

        It is -u zᵀ at the positions of the elements, where u is the solution of Aᵀ u = g.
        """
        return -xp.sum(u[..., self.rows, :] * z[..., self.cols, :], axis=(-1,), keepdims=False)


def _index_type(p: Pattern) -> Any:
    """Return the dtype of the indices of a SciPy matrix with a pattern."""
    return np.int32 if max(*p.shape, p.count) < 2**31 else np.int64


def _columns(x: Array) -> Any:
    """Join a stack of matrices (…, n, k) side by side to one matrix with n rows."""
    return np.moveaxis(x, -2, 0).reshape(x.shape[-2], -1)


def _stacks(y: Array, like: Array, n: int) -> Any:
    return np.moveaxis(y.reshape(n, *like.shape[:-2], like.shape[-1]), 0, -2)


# Products with constants ---------------------------------------------------------------------------


def _apply(x: Array, operator: Operator) -> Any:
    if x.shape[-2] != operator.shape[1]:
        raise ValueError(
            f"a sparse matrix of shape {operator.shape} cannot be multiplied by a matrix with {x.shape[-2]} rows"
        )
    y = np.asarray(operator.held @ _columns(wide(x)))
    dtype = np.result_type(operator.dtype, float_dtype(x)) if operator.dtype.kind == "c" else float_dtype(x)
    return _stacks(y, x, operator.shape[0]).astype(dtype, copy=False)


define("apply_operator", _apply, lambda xp, g, y, x, operator: xp.apply_operator(g, operator=operator.T),
       kind="linear", params=("operator",), batch="leading",
       reference=lambda x, operator: operator.held @ x if x.ndim == 2 else np.stack([operator.held @ c for c in x]),
       sparsity="operator", doc="The product of a constant matrix or operator of SciPy with columns.")  # fmt: skip


# Solves --------------------------------------------------------------------------------------------


def _solved(matrix: Any, b: Array, method: str, options: tuple[tuple[str, Any], ...]) -> Any:
    if method == "direct":
        try:
            return scipy_function("sparse.linalg", "splu")(matrix.tocsc()).solve(np.ascontiguousarray(b))
        except RuntimeError as error:
            raise LinAlgError(f"spsolve: {error}.") from None
    solver = scipy_function("sparse.linalg", method)
    columns = []
    for k in range(b.shape[1]):
        x, info = solver(matrix, b[:, k], **dict(options))
        if info:
            raise ConvergenceError(
                f"{method}: no solution was found in {info} iterations, so there is nothing to "
                "differentiate.\n"
                "  Pass a larger maxiter= or rtol=, or a preconditioner M=."
            )
        columns.append(x)
    return np.stack(columns, 1) if columns else b


def _solve(x: Array, y: Array, pattern: Any, method: str, options: Any) -> Any:
    n = pattern.shape[0]
    if pattern.shape[1] != n or y.shape[-2] != n or x.shape[-1] != pattern.count:
        raise ValueError(
            f"the matrix must be square with as many rows as the right-hand side, {y.shape[-2]}, but has shape "
            f"{pattern.shape}"
        )
    dtype = float_dtype(x, y)
    kept = wide(np.empty(0, dtype)).dtype
    lead = np.broadcast_shapes(x.shape[:-1], y.shape[:-2])
    a, b = x.astype(kept), np.broadcast_to(y, (*lead, *y.shape[-2:])).astype(kept)
    if b.size and all(s == 0 or k == 1 for s, k in zip(x.strides[:-1], x.shape[:-1], strict=True)):
        found = _solved(pattern.matrix(a[(0,) * (a.ndim - 1)]), _columns(b), method, options)
        return _stacks(np.asarray(found), b, n).astype(dtype, copy=False)
    _, (elements, sides) = flat_lead((a, 1), (b, 2))
    out = np.empty(sides.shape, dtype)
    for k in range(len(out) if out.size else 0):
        out[k] = _solved(pattern.matrix(elements[k]), sides[k], method, options)
    return out.reshape(*lead, *y.shape[-2:])


def _solve_rule(
    xp: Namespace,
    g: Value,
    z: Value,
    x: Value,
    y: Value,
    *,
    wanted: Sequence[bool],
    pattern: Any,
    method: str,
    options: Any,
) -> list[Any]:
    turned = tuple((k, v.T if k == "M" and v is not None else v) for k, v in options if k != "x0")
    other = pattern.reordered(xp, x)
    dy = xp.sparse_solve(other, g, pattern=pattern.T, method=method, options=turned)
    return [pattern.pulled(xp, dy, z, x) if wanted[0] else None, dy]


def _solve_shape(x: Any, y: Any, pattern: Any, method: str, options: Any) -> Result | None:
    n = pattern.shape[0]
    if len(y.shape) < 2 or y.shape[-2] != n or x.shape[-1:] != (pattern.count,) or pattern.shape[1] != n:
        return None
    lead = broadcast(x.shape[:-1], y.shape[:-2])
    return None if lead is None else (((*lead, *y.shape[-2:]), float_dtype(x, y)),)


def _dense(x: Any, y: Any, pattern: Any, **_: Any) -> Any:
    full = np.zeros((*x.shape[:-1], *pattern.shape), x.dtype)
    full[..., pattern.rows, pattern.cols] = x
    return np.linalg.solve(full, y)


define("sparse_solve", _solve, joint=_solve_rule, arity=2, saves="zx", kind="general", batch="leading",
       params=("pattern", "method", "options"), shape=_solve_shape,
       reference=_dense,
       doc="The solution of equations with a sparse matrix, whose elements are x.")  # fmt: skip
