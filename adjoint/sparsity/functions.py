"""``ad.sparsity.jacobian`` and ``ad.sparsity.hessian``: patterns as SciPy arrays of booleans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from adjoint import tree
from adjoint.context import enclosing, within
from adjoint.sparsity.derivatives import SparseDerivative
from adjoint.sparsity.pattern import union
from adjoint.sparsity.traced import pattern_apart
from adjoint.transforms.inputs import Recorded, as_function
from adjoint.transforms.matrix import packed

__all__ = ["hessian", "jacobian"]


def jacobian(f: Callable[..., Any], *args: Any, argnums: int | Sequence[int] = 0, **kwargs: Any) -> Any:
    """Return which elements of the result of a function depend on which elements of an argument.

    The pattern contains every entry of the Jacobian that can differ from zero, for arguments of these shapes.
    Only shapes, dtypes and constants of ``f`` are used, not the elements of ``args``.

    Parameters
    ----------
    f : callable
        The function of arrays and trees of them.
    *args : tensor, array, number or pytree
        Its arguments.
    argnums : int or tuple of int
        The positions of the arguments to differentiate with respect to.
    **kwargs : object
        Its keyword arguments.

    Returns
    -------
    scipy.sparse.csr_array
        The pattern, of dtype bool: a row for each element of the result, a column for each element of the
        argument.  For trees it has the structure of the result, with that of the argument at each leaf.

    Raises
    ------
    TransformError
        If ``f`` needs the value of a tensor for a Python condition.

    Examples
    --------
    >>> import numpy as np, adjoint as ad
    >>> ad.sparsity.jacobian(lambda x: x[1:] * x[:-1], np.ones(4)).toarray().astype(int)
    array([[1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]])
    """
    as_function("sparsity.jacobian", f)
    holds = SparseDerivative("jacobian", f, argnums, False, None, True, True)
    run, structures, pattern = _found(holds, args, kwargs)
    return _cut(pattern, run, structures, argnums)


def hessian(f: Callable[..., Any], *args: Any, argnums: int | Sequence[int] = 0, **kwargs: Any) -> Any:
    """Return which second derivatives of a function can differ from zero.

    Parameters
    ----------
    f : callable
        A function that returns one real number.
    *args : tensor, array, number or pytree
        Its arguments.
    argnums : int or tuple of int
        The positions of the arguments to differentiate with respect to.
    **kwargs : object
        Its keyword arguments.

    Returns
    -------
    scipy.sparse.csr_array
        The symmetric pattern, of dtype bool.  For trees it is a tree of trees, as that of ``ad.hessian``.

    Raises
    ------
    ShapeError
        If ``f`` does not return one number.

    Examples
    --------
    >>> import numpy as np, adjoint as ad
    >>> ad.sparsity.hessian(lambda x: (x[1:] * x[:-1]).sum(), np.ones(3)).toarray().astype(int)
    array([[0, 1, 0],
           [1, 0, 1],
           [0, 1, 0]])
    """
    as_function("sparsity.hessian", f)
    holds = SparseDerivative("hessian", f, argnums, False, None, False, True)
    run, structures, pattern = _found(holds, args, kwargs)
    both = union(pattern, pattern.T.tocsr())
    both.sort_indices()
    return _cut(both, run, structures, argnums)


def _found(holds: SparseDerivative, args: Any, kwargs: Any) -> tuple[Recorded, list[tree.Structure], Any]:
    """Return a recorded run, the structures of its arguments, and the pattern of its derivative."""
    kept: list[Any] = []

    def record(*given: Any, **named: Any) -> Recorded:
        kept[:] = holds.record(given, named)
        run: Recorded = kept[0]
        return run

    pattern = within(enclosing, None, pattern_apart, record, args, kwargs)
    return kept[0], kept[1], pattern


def _cut(pattern: Any, run: Recorded, structures: Any, argnums: int | Sequence[int]) -> Any:
    """Return the pattern in blocks: the structure of the result, with that of the arguments at each leaf."""
    rows, top = [], 0
    for out in run.outputs:
        line, left = [], 0
        for x in run.inputs:
            line.append(pattern[top : top + out.size, left : left + x.size])
            left += x.size
        rows.append(packed(line, structures, isinstance(argnums, (tuple, list))))
        top += out.size
    return tree.unflatten(run.structure, rows)
