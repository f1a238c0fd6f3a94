"""Jacobians, Hessians, and products with Hessians.

The function is recorded once.  A Jacobian is one batched pass over the recorded graph: all rows of an
identity matrix are pulled back together, or all columns are pushed forward together.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

import numpy as np

from adjoint import tree
from adjoint.config import grad_mode
from adjoint.context import enclosing, within
from adjoint.core.docstrings import SharedDoc
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, DTypeError
from adjoint.tracebacks import door
from adjoint.transforms.arrays import returned
from adjoint.transforms.batch import over_units
from adjoint.transforms.forward import directions
from adjoint.transforms.inputs import (
    Recorded,
    as_function,
    check_argnums,
    name_of,
    one_of_argnums,
    record_call,
    released_value,
)
from adjoint.transforms.linear import pull_back, push_along
from adjoint.transforms.reverse import Argnums, check_one_number, gradient_function

if TYPE_CHECKING:
    from adjoint.transforms.signatures import Jacobian

__all__ = ["choose_mode", "hessian", "hvp", "jacfwd", "jacobian", "jacrev", "packed"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


_derivative_doc = SharedDoc("""
    Parameters
    ----------
    f : callable
        The function.
    argnums : int or tuple of int
        The positions of the arguments to differentiate with respect to.
    has_aux : bool
        Whether ``f`` returns ``(result, aux)``.
    argnum : int or tuple of int, optional
        Another name of ``argnums``.
    holomorphic : bool
        Must be True for complex arguments.
    chunk_size : int, optional
        The number of columns computed at once.  The default is all.

    Returns
    -------
    callable
        It returns the Jacobian.  See ``jacobian``.
    """)


@overload
def jacobian(
    f: Callable[P, R], argnums: Literal[0] = 0, *, chunk_size: int | None = None, holomorphic: bool = False,
) -> Jacobian[Callable[P, R]]: ...  # fmt: skip
@overload
def jacobian(
    f: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False,
    *, chunk_size: int | None = None, holomorphic: bool = False, argnum: Argnums | None = None,
    sparse: bool | str = False,
) -> Callable[P, Any]: ...  # fmt: skip
@_derivative_doc
def jacobian(
    f: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
    holomorphic: bool = False,
    argnum: Argnums | None = None,
    sparse: bool | str = False,
) -> Any:
    """Return a function that computes the Jacobian of ``f``, in the cheaper of reverse and forward mode.

    For a result of shape ``s`` and an argument of shape ``t``, the Jacobian has shape ``s + t``.  For
    pytrees it has the structure of the result, with the structure of the argument at each leaf.

    Parameters
    ----------
    chunk_size : int, optional
        The number of rows or columns computed at once, to limit memory.  The default is all.
    holomorphic : bool
        Must be True for complex arguments: it asserts that ``f`` is holomorphic.
    sparse : bool or {"columns", "rows", "both"}
        Whether to return sparse matrices of SciPy, computed by few products: of reverse mode ("rows"), of
        forward mode ("columns") or of both.  True chooses the cheapest.  See docs/sparse.md.

    Returns
    -------
    callable
        It returns the Jacobian; a tuple of Jacobians at each leaf for a tuple of ``argnums``;
        ``(jacobian, aux)`` with ``has_aux``.

    Raises
    ------
    DTypeError
        When called, if an argument is complex and ``holomorphic`` is False.

    >>> import adjoint as ad, numpy as np
    >>> ad.jacobian(lambda x: x ** 2)(np.array([1.0, 3.0]))
    array([[2., 0.],
           [0., 6.]])
    """
    argnums = one_of_argnums("jacobian", argnums, argnum)
    if sparse is not False:
        return _sparse("jacobian", f, argnums, has_aux, chunk_size, holomorphic, sparse)
    return _matrix("jacobian", f, argnums, has_aux, chunk_size, holomorphic, None)


@overload
def jacrev(
    f: Callable[P, R], argnums: Literal[0] = 0, *, chunk_size: int | None = None, holomorphic: bool = False,
) -> Jacobian[Callable[P, R]]: ...  # fmt: skip
@overload
def jacrev(
    f: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False,
    *, chunk_size: int | None = None, holomorphic: bool = False, argnum: Argnums | None = None,
) -> Callable[P, Any]: ...  # fmt: skip
@_derivative_doc
def jacrev(
    f: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
    holomorphic: bool = False,
    argnum: Argnums | None = None,
) -> Any:
    """Return a function that computes the Jacobian of ``f`` row by row, in reverse mode.

    Reverse mode is cheaper if the result has fewer elements than the arguments.

    Parameters
    ----------
    chunk_size : int, optional
        The number of rows computed at once.  The default is all.

    >>> import adjoint as ad, numpy as np
    >>> ad.jacrev(lambda x: (x ** 2).sum())(np.array([1.0, 3.0]))
    array([2., 6.])
    """
    argnums = one_of_argnums("jacrev", argnums, argnum)
    return _matrix("jacrev", f, argnums, has_aux, chunk_size, holomorphic, True)


@overload
def jacfwd(
    f: Callable[P, R], argnums: Literal[0] = 0, *, chunk_size: int | None = None, holomorphic: bool = False,
) -> Jacobian[Callable[P, R]]: ...  # fmt: skip
@overload
def jacfwd(
    f: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False,
    *, chunk_size: int | None = None, holomorphic: bool = False, argnum: Argnums | None = None,
) -> Callable[P, Any]: ...  # fmt: skip
@_derivative_doc
def jacfwd(
    f: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
    holomorphic: bool = False,
    argnum: Argnums | None = None,
) -> Any:
    """Return a function that computes the Jacobian of ``f`` column by column, in forward mode.

    Forward mode is cheaper if the result has more elements than the arguments.

    >>> import adjoint as ad, numpy as np
    >>> ad.jacfwd(lambda t: ad.stack([t, t ** 2, t ** 3]))(2.0)
    array([ 1.,  4., 12.])
    """
    argnums = one_of_argnums("jacfwd", argnums, argnum)
    return _matrix("jacfwd", f, argnums, has_aux, chunk_size, holomorphic, False)


def _sparse(transform: str, f: Any, *options: Any) -> Callable[..., Any]:
    """Return the sparse form of ``_matrix``; it needs the compiler, which is loaded when it is first used."""
    as_function(transform, f)
    derivatives = importlib.import_module("adjoint.sparsity.derivatives")
    found: Callable[..., Any] = derivatives.SparseDerivative(transform, f, *options)
    return found


def _matrix(
    transform: str,
    f: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool,
    chunk_size: int | None,
    holomorphic: bool,
    reverse: bool | None,
) -> Callable[..., Any]:
    as_function(transform, f)
    if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
        raise ArgumentError(
            f"{transform}: chunk_size must be a positive integer or None, not {chunk_size!r}."
        )

    @door
    @functools.wraps(f, assigned=("__module__", "__name__", "__qualname__"))
    def derivative(*args: Any, **kwargs: Any) -> Any:
        positions = check_argnums(transform, argnums, len(args))
        run, structures = record_call(transform, f, args, kwargs, positions, has_aux)
        by_rows = choose_mode(transform, f, run, holomorphic, reverse)
        several = isinstance(argnums, (tuple, list))

        def matrix() -> Any:
            blocks = (_rows if by_rows else _columns)(run, chunk_size)
            rows = [packed(row, structures, several) for row in blocks]
            built = tree.unflatten(run.structure, rows)
            return (built, released_value(run, run.aux)) if has_aux else built

        if run.outer or enclosing.get() is not None:
            return matrix()
        found = within(grad_mode, False, matrix)  # it depends on nothing outside, so nothing is recorded
        return returned(found) if run.plain else found

    return derivative


def choose_mode(transform: str, f: Any, run: Recorded, holomorphic: bool, reverse: bool | None) -> bool:
    """Return whether to compute the Jacobian of ``f`` by rows (reverse mode).

    ``run`` is the recorded run of ``f``, and ``reverse`` the user's choice or None.  Raise for a complex
    derivative that is not one complex matrix.
    """
    complex_in = any(x.dtype.kind == "c" for x in run.inputs)
    complex_out = any(y.dtype.kind == "c" for y in run.outputs)
    if complex_in and not holomorphic:
        raise DTypeError(
            f"{transform}: an argument of {name_of(f)} is complex.\n"
            "  Pass holomorphic=True if the function is holomorphic.  Otherwise differentiate with respect "
            "to the real and the imaginary part."
        )
    if complex_out and not complex_in and reverse:
        raise DTypeError(
            f"{transform}: {name_of(f)} returns complex values for real arguments, which reverse mode cannot "
            "differentiate.\n"
            "  Use ad.jacfwd or ad.jacobian."
        )
    if reverse is not None:
        return reverse
    if complex_out and not complex_in:
        return False
    return sum(y.size for y in run.outputs) <= sum(x.size for x in run.inputs)


def _rows(run: Recorded, chunk_size: int | None) -> list[list[Tensor]]:
    """Return the derivatives of each output of a run with respect to each input, by one batched backward.

    The batch has all rows of the identity matrix, in chunks of ``chunk_size``.
    """
    found = []
    for i, out in enumerate(run.outputs):

        def pull(seed: Tensor, i: int = i) -> list[Tensor]:
            seeds: list[Tensor | None] = [None] * len(run.outputs)
            seeds[i] = seed
            return pull_back(run, seeds, retain=True)

        pulled = _each(pull, out, chunk_size)
        if out.dtype.kind == "c":  # a gradient is the conjugate of the derivative
            pulled = [rec.conj(g) if g.dtype.kind == "c" else g for g in pulled]
        found.append([_shaped(g, out.shape + x.shape) for g, x in zip(pulled, run.inputs, strict=True)])
    return found


def _each(function: Callable[[Tensor], Any], t: Tensor, chunk_size: int | None, out_axes: int = 0) -> Any:
    """Apply a linear function to all unit vectors with the shape of ``t``; return the stacked results.

    If ``t`` has one element, there is one result, without a batch axis.
    """
    if t.size == 1:
        return function(wrap(np.ones(t.shape, t.dtype)))
    return over_units(function, t, out_axes, chunk_size)


def _shaped(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    return t if t.shape == shape else rec.reshape(t, shape=shape)


def _columns(run: Recorded, chunk_size: int | None) -> list[list[Tensor]]:
    """Return the derivatives of each output of a run with respect to each input, by batched forward mode.

    The batch has all columns of the identity matrix, in chunks of ``chunk_size``.
    """
    found: list[list[Tensor]] = [[] for _ in run.outputs]
    for j, x in enumerate(run.inputs):

        def push(tangent: Tensor, j: int = j) -> list[Tensor]:
            tangents: list[Tensor | None] = [None] * len(run.inputs)
            tangents[j] = tangent
            return push_along(run, tangents)

        pushed = _each(push, x, chunk_size, out_axes=-1)
        for row, out, t in zip(found, run.outputs, pushed, strict=True):
            row.append(_shaped(t, out.shape + x.shape))
    return found


def packed(row: Sequence[Any], structures: Sequence[tree.Structure], several: bool) -> Any:
    """Return the derivatives of one output: for each argument a tree, a tuple of them if ``several``."""
    parts = iter(row)
    found = [tree.unflatten(s, [next(parts) for _ in range(s.count)]) for s in structures]
    return tuple(found) if several else found[0]


@overload
def hessian(
    f: Callable[P, R], argnums: Literal[0] = 0, *, chunk_size: int | None = None,
) -> Jacobian[Callable[P, R]]: ...  # fmt: skip
@overload
def hessian(
    f: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False,
    *, chunk_size: int | None = None, argnum: Argnums | None = None, sparse: bool = False,
) -> Callable[P, Any]: ...  # fmt: skip
@_derivative_doc
def hessian(
    f: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
    argnum: Argnums | None = None,
    sparse: bool = False,
) -> Any:
    """Return a function that computes the Hessian of ``f``.

    It uses forward mode over reverse mode: the gradient is recorded once, and all columns are pushed
    through it together.

    Parameters
    ----------
    f : callable
        A function that returns one real number.
    sparse : bool
        Whether to return sparse matrices of SciPy, computed by few products.  See docs/sparse.md.

    Returns
    -------
    callable
        It returns the Hessian: shape ``s + s`` for an argument of shape ``s``; a tree of trees for pytrees
        and for a tuple of ``argnums``.

    >>> import adjoint as ad, numpy as np
    >>> ad.hessian(lambda x: x[0] ** 2 * x[1])(np.array([1.0, 3.0]))
    array([[6., 2.],
           [2., 0.]])
    """
    argnums = one_of_argnums("hessian", argnums, argnum)
    if sparse is not False:
        return _sparse("hessian", f, argnums, has_aux, chunk_size, False, sparse)
    gradient = gradient_function("hessian", f, argnums, has_aux)
    return _matrix("hessian", gradient, argnums, has_aux, chunk_size, holomorphic=False, reverse=False)


def hvp(f: Callable[..., Any], primals: T, tangents: T) -> T:
    """Return the product of the Hessian of ``f`` with a vector.

    It is the gradient of the derivative along the vector, reverse mode over forward mode.  Its cost is a
    small multiple of that of ``f``; the Hessian is not formed.

    Parameters
    ----------
    f : callable
        A function that returns one real number.
    primals : tensor, array, number, pytree or tuple
        The argument of ``f``, or a tuple of several arguments.
    tangents : tensor, array, number, pytree or tuple
        The vector: one tangent for the argument, or a tuple of tangents.

    Returns
    -------
    Tensor, array or pytree
        The product, with the structure of ``primals``.

    Raises
    ------
    ArgumentError
        If the numbers of primals and tangents differ.

    Examples
    --------
    >>> import adjoint as ad, numpy as np
    >>> ad.hvp(lambda x: (x ** 3).sum(), np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    array([  6., 120.])
    """
    as_function("hvp", f)
    if not isinstance(primals, tuple):
        return hvp(f, (primals,), (tangents,))[0]
    if not isinstance(tangents, tuple) or len(tangents) != len(primals) or not primals:
        n = len(primals)
        got = f"{len(tangents)} of them" if isinstance(tangents, tuple) else type(tangents).__name__
        raise ArgumentError(
            f"hvp: for a tuple of {n} primals, tangents must be a tuple of {n}, but got {got}."
        )
    return gradient_function("hvp", _Along(f), tuple(range(len(primals))), False)(*primals, *tangents)


class _Along:
    """The directional derivative of ``f``, as a function of primals and tangents, under the name of ``f``."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        functools.update_wrapper(self, f, updated=())

    def __call__(self, *both: Any) -> Any:
        primals, tangents = both[: len(both) // 2], both[len(both) // 2 :]
        run, structures = record_call("hvp", self.f, primals, {}, range(len(primals)), False)
        check_one_number("hvp", self.f, run)
        return push_along(run, directions("hvp", run, structures, tangents))[0]
