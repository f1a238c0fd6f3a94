"""Forward mode: ``jvp`` and ``linearize``.

The function runs once and is recorded; tangents are then pushed through the recorded graph
(``engine/push.py``).
Forward mode thus uses the same derivatives as reverse mode, at every order.  While the function runs, values
are ordinary numbers, and conditions on them work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, overload

from adjoint import tree, words
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError
from adjoint.tracebacks import door
from adjoint.transforms.arrays import given_arrays, outermost, returned
from adjoint.transforms.inputs import Place, Recorded, as_function, direction, record_call, released_value
from adjoint.transforms.linear import push_along
from adjoint.typing import Tree

__all__ = ["directions", "jvp", "linearize"]

R = TypeVar("R")
X = TypeVar("X")


@overload
def jvp(
    f: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[False] = False
) -> tuple[R, R]: ...
@overload
def jvp(
    f: Callable[..., tuple[R, X]], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[True]
) -> tuple[R, R, X]: ...
def jvp(
    f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, ...]:
    """Return ``f(*primals)`` and its derivative along a direction.

    Parameters
    ----------
    f : callable
        The function.
    primals : tuple
        The arguments of ``f``: tensors, arrays, numbers or pytrees of them.
    tangents : tuple
        The direction, one entry per argument with its structure, shapes and dtypes.
    has_aux : bool
        Whether ``f`` returns ``(result, aux)``.

    Returns
    -------
    tuple
        ``(result, derivative)``, or ``(result, derivative, aux)`` with ``has_aux``.

    Raises
    ------
    InputError
        If ``primals`` or ``tangents`` is not a tuple.
    ShapeError
        If a tangent does not have the shape of its argument.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.jvp(lambda a, b: a * b, (2.0, 3.0), (1.0, 10.0))
    (np.float64(6.0), np.float64(23.0))
    """
    as_function("jvp", f)
    for what, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise InputError(
                f"jvp: {what} must be a tuple with one entry per argument, not {type(given).__name__}.\n"
                "  For one argument write (x,)."
            )
    if len(primals) != len(tangents) or not primals:
        raise ArgumentError(
            f"jvp: there must be one tangent per argument, but got {words.count(len(primals), 'primal')} and "
            f"{words.count(len(tangents), 'tangent')}."
        )
    run, structures = record_call("jvp", f, tuple(primals), {}, range(len(primals)), has_aux)
    given = directions("jvp", run, structures, tangents)

    def results() -> tuple[Any, ...]:
        derivative = tree.unflatten(run.structure, push_along(run, given))
        result = run.results()
        return (result, derivative, released_value(run, run.aux)) if has_aux else (result, derivative)

    return returned(results()) if run.plain and given_arrays(*tangents) else results()


def linearize(f: Callable[..., R], *primals: Tree) -> tuple[R, Callable[..., R]]:
    """Return ``f(*primals)`` and its derivative as a linear function of the direction.

    ``f`` runs once; the linear function may be called several times.

    Parameters
    ----------
    f : callable
        The function.
    *primals : tensor, array, number or pytree
        The arguments of ``f``.

    Returns
    -------
    tuple
        The result, and a function that takes one tangent per argument and returns the derivative.

    Examples
    --------
    >>> import adjoint as ad
    >>> y, along = ad.linearize(lambda x: x ** 2, 3.0)
    >>> along(1.0), along(0.5)
    (np.float64(6.0), np.float64(3.0))
    """
    as_function("linearize", f)
    if not primals:
        raise ArgumentError("linearize: the arguments of the function are missing: ad.linearize(f, x, …).")
    run, structures = record_call("linearize", f, primals, {}, range(len(primals)), False)

    @door
    def along(*tangents: Tree) -> Tree:
        if len(tangents) != len(structures):
            raise ArgumentError(
                f"linearize: there must be one tangent per argument, {len(structures)} in all, but got "
                f"{len(tangents)}."
            )
        given = directions("linearize", run, structures, tangents)
        if run.plain and outermost() and given_arrays(*tangents):
            return returned(tree.unflatten(run.structure, push_along(run, given)))
        return tree.unflatten(run.structure, push_along(run, given))

    result = run.results()
    return returned(result) if run.plain else result, along


def directions(
    transform: str, run: Recorded, structures: Sequence[tree.Structure], tangents: Sequence[Any]
) -> list[Tensor]:
    """Return the leaves of ``tangents`` as tensors; raise if they do not match the inputs of a recorded run.

    There is one tangent (a tree) for each argument.  ``structures`` are the structures of the arguments, and
    ``transform`` is the name of the caller, for errors.
    """
    inputs = iter(run.inputs)
    found = []
    for i, (structure, tangent) in enumerate(zip(structures, tangents, strict=True)):
        name = f"tangents[{i}]"
        given = tree.flatten_like(structure, tangent, f"{transform}: {name}")
        for k, leaf in enumerate(given):
            found.append(direction(transform, Place(structure, k, name), next(inputs), leaf))
    return found
