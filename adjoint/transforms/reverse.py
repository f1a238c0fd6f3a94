"""Reverse mode: ``grad``, ``value_and_grad`` and ``vjp``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

import numpy as np

from adjoint import tree, words
from adjoint.core.docstrings import SharedDoc
from adjoint.core.namespace import rec
from adjoint.core.tensor import wrap
from adjoint.errors import ArgumentError, DTypeError, ShapeError
from adjoint.tracebacks import door, hide
from adjoint.transforms.arrays import given_arrays, outermost, returned, to_arrays
from adjoint.transforms.inputs import (
    Place,
    Recorded,
    as_function,
    check_argnums,
    direction,
    name_of,
    one_of_argnums,
    record_call,
    released_value,
)
from adjoint.transforms.linear import pull_back
from adjoint.typing import Tree

if TYPE_CHECKING:
    from adjoint.transforms.signatures import Gradient, GradientAux, ValueAndGradient

__all__ = [
    "check_one_number", "elementwise_grad", "grad", "gradient_function", "pull_of", "value_and_grad", "vjp",
]  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")
X = TypeVar("X")
Argnums = int | Sequence[int]

_gradient_doc = SharedDoc("""
    Parameters
    ----------
    f : callable
        A function that returns one real number.
    argnums : int or tuple of int
        The positions of the arguments to differentiate with respect to.
    has_aux : bool
        Whether ``f`` returns ``(result, aux)``.
    argnum : int or tuple of int, optional
        Another name of ``argnums``.
    """)


@overload
def grad(f: Callable[P, Any], argnums: Literal[0] = 0) -> Gradient[Callable[P, Any]]: ...
@overload
def grad(
    f: Callable[P, tuple[Any, X]], argnums: Literal[0] = 0, *, has_aux: Literal[True]
) -> GradientAux[Callable[P, tuple[Any, X]]]: ...
@overload
def grad(f: Callable[P, Any], argnums: Sequence[int]) -> Callable[P, tuple[Any, ...]]: ...
@overload
def grad(
    f: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False, argnum: Argnums | None = None
) -> Callable[P, Any]: ...
@_gradient_doc
def grad(
    f: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    argnum: Argnums | None = None,
) -> Any:
    """Return a function that computes the gradient of ``f``.

    The gradient function takes the arguments of ``f``.  Arguments may be tensors, arrays, numbers, or
    pytrees of them (lists, tuples, dicts, dataclasses, modules).  ``f`` is called with tensors.

    If all arguments are arrays and numbers, results are NumPy arrays and scalars, otherwise tensors.
    Gradients nest: ``grad(grad(f))``.  If an argument or a captured tensor requires grad, the result is
    recorded too; ``ad.no_grad()`` around the call prevents that.

    Returns
    -------
    callable
        It returns the gradient, with the structure of the argument; a tuple of gradients for a tuple of
        ``argnums``; ``(gradient, aux)`` with ``has_aux``.  The gradient is zero where the result does not
        depend on the argument.

    Raises
    ------
    ShapeError
        When called, if ``f`` does not return one number.
    DTypeError
        When called, if an argument is an integer or the result is complex.

    >>> ad.grad(lambda x: x ** 3)(2.0)
    np.float64(12.0)
    >>> ad.grad(lambda p, x: p["w"] * x + p["b"])({"w": 2.0, "b": 1.0}, 3.0)
    {'w': np.float64(3.0), 'b': np.float64(1.0)}
    """
    return gradient_function("grad", f, one_of_argnums("grad", argnums, argnum), has_aux)


@overload
def elementwise_grad(f: Callable[P, Any], argnums: Literal[0] = 0) -> Gradient[Callable[P, Any]]: ...
@overload
def elementwise_grad(f: Callable[P, Any], argnums: Sequence[int]) -> Callable[P, tuple[Any, ...]]: ...
@overload
def elementwise_grad(
    f: Callable[P, Any], argnums: Argnums = 0, argnum: Argnums | None = None
) -> Callable[P, Any]: ...
@_gradient_doc
def elementwise_grad(f: Callable[..., Any], argnums: Argnums = 0, argnum: Argnums | None = None) -> Any:
    """Return a function that computes the gradient of the sum of the results of ``f``.

    For a function that acts on each element separately, this is the derivative at each element.

    Parameters
    ----------
    f : callable
        A function that returns a tensor of real numbers.

    Returns
    -------
    callable
        It takes the arguments of ``f`` and returns the gradient.  See ``grad``.

    >>> import adjoint as ad, numpy as np
    >>> ad.elementwise_grad(ad.square)(np.array([1.0, 2.0, 3.0]))
    array([2., 4., 6.])
    """
    as_function("elementwise_grad", f)

    @functools.wraps(f, assigned=("__module__", "__name__", "__qualname__"))
    def total(*args: Any, **kwargs: Any) -> Any:
        result = f(*args, **kwargs)
        return rec.sum(result, axis=tuple(range(-result.ndim, 0)), keepdims=False)

    positions = one_of_argnums("elementwise_grad", argnums, argnum)
    return gradient_function("elementwise_grad", total, positions, False)


def gradient_function(
    transform: str, f: Callable[..., Any], argnums: Argnums, has_aux: bool
) -> Callable[..., Any]:
    """Return the gradient function of ``f``; ``transform`` is the name of the caller in messages.

    The other parameters are those of ``ad.grad``.
    """
    as_function(transform, f)

    @functools.wraps(f, assigned=("__module__", "__name__", "__qualname__"))
    def gradient(*args: Any, **kwargs: Any) -> Any:
        try:
            _, aux, grads = _value_and_grad(transform, f, argnums, has_aux, args, kwargs)
        except Exception as error:
            hide(error)
            raise
        return (grads, aux) if has_aux else grads

    return gradient


@overload
def value_and_grad(
    f: Callable[P, R], argnums: Literal[0] = 0, has_aux: bool = False
) -> ValueAndGradient[Callable[P, R]]: ...
@overload
def value_and_grad(f: Callable[P, R], argnums: Sequence[int]) -> Callable[P, tuple[R, tuple[Any, ...]]]: ...
@overload
def value_and_grad(
    f: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False, argnum: Argnums | None = None
) -> Callable[P, Any]: ...
@_gradient_doc
def value_and_grad(
    f: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    argnum: Argnums | None = None,
) -> Any:
    """Return a function that computes the value and the gradient of ``f`` in one run.

    Returns
    -------
    callable
        It returns ``(value, gradient)``; ``((value, aux), gradient)`` with ``has_aux``.  See ``grad``.

    Raises
    ------
    ShapeError
        When called, if ``f`` does not return one number.

    >>> ad.value_and_grad(lambda x: x ** 3)(2.0)
    (np.float64(8.0), np.float64(12.0))
    """
    as_function("value_and_grad", f)
    argnums = one_of_argnums("value_and_grad", argnums, argnum)

    @functools.wraps(f, assigned=("__module__", "__name__", "__qualname__"))
    def both(*args: Any, **kwargs: Any) -> Any:
        try:
            value, aux, grads = _value_and_grad("value_and_grad", f, argnums, has_aux, args, kwargs)
        except Exception as error:
            hide(error)
            raise
        return ((value, aux), grads) if has_aux else (value, grads)

    return both


def _value_and_grad(
    transform: str,
    f: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, Any, Any]:
    positions = check_argnums(transform, argnums, len(args))
    run, structures = record_call(transform, f, args, kwargs, positions, has_aux)
    check_one_number(transform, f, run)
    root = run.outputs[0]
    aux = released_value(run, run.aux) if has_aux else None
    seed = np.ones(root.shape, root.dtype) if root.shape else np.array(1, root.dtype)  # faster for 0-d
    found = pull_back(run, [wrap(seed)], retain=has_aux)
    if run.plain and not has_aux:
        value, found = root._data.copy() if root.shape else root._data[()], to_arrays(found)
    else:
        value = run.value(root)
        if run.plain:  # aux may be part of a graph
            value, aux, found = returned((value, aux, found))
    grads = iter(found)
    packed = [tree.unflatten(s, [next(grads) for _ in range(s.count)]) for s in structures]
    return value, aux, tuple(packed) if isinstance(argnums, (tuple, list)) else packed[0]


def check_one_number(transform: str, f: Any, run: Recorded) -> None:
    """Raise unless the result of ``run``, a recorded run of ``f``, is one real number."""
    if len(run.outputs) != 1:
        raise ShapeError(
            f"{transform}: {name_of(f)} returned {words.count(len(run.outputs), 'tensor')}, "
            f"{run.structure.describe()}, "
            "but a gradient needs one number.\n"
            "  Return one number; with has_aux=True, return (number, rest).  Use ad.jacobian for all "
            "derivatives."
        )
    root = run.outputs[0]
    if root.size != 1:
        raise ShapeError(
            f"{transform}: {name_of(f)} returned shape {root.shape}, but a gradient needs one number.\n"
            "  Reduce it (y.sum(), y.mean()), or use ad.jacobian for all derivatives, "
            "ad.vjp for their products."
        )
    if root.dtype.kind == "c":
        raise DTypeError(
            f"{transform}: {name_of(f)} returned a complex number, but a gradient needs a real number.\n"
            "  Return y.real, y.imag or abs(y); or use ad.vjp with a complex cotangent."
        )


def pull_of(run: Recorded, structures: Sequence[tree.Structure]) -> Callable[[Any], tuple[Any, ...]]:
    """Return the function that ``vjp`` returns for a recorded run, given the structures of the arguments."""

    @door
    def pull(cotangent: Any) -> tuple[Any, ...]:
        given = tree.flatten_like(run.structure, cotangent, "vjp: the cotangent")
        seeds = [
            direction("vjp", Place(run.structure, i, "the cotangent"), out, c)
            for i, (out, c) in enumerate(zip(run.outputs, given, strict=True))
        ]
        grads = iter(pull_back(run, seeds, retain=True))
        pulled = tuple([tree.unflatten(s, [next(grads) for _ in range(s.count)]) for s in structures])
        return returned(pulled) if run.plain and outermost() and given_arrays(*given) else pulled

    return pull


@overload
def vjp(
    f: Callable[..., R], *primals: Tree, has_aux: Literal[False] = False
) -> tuple[R, Callable[[Any], tuple[Any, ...]]]: ...
@overload
def vjp(
    f: Callable[..., tuple[R, X]], *primals: Tree, has_aux: Literal[True]
) -> tuple[R, Callable[[Any], tuple[Any, ...]], X]: ...
def vjp(f: Callable[..., Any], *primals: Tree, has_aux: bool = False) -> tuple[Any, ...]:
    """Return ``f(*primals)`` and a function that computes vector-Jacobian products.

    Parameters
    ----------
    f : callable
        The function.
    *primals : tensor, array, number or pytree
        The arguments of ``f``.
    has_aux : bool
        Whether ``f`` returns ``(result, aux)``.

    Returns
    -------
    tuple
        ``(result, pull)``, or ``(result, pull, aux)`` with ``has_aux``.  ``pull(cotangent)`` takes a
        cotangent with the structure, shapes and dtypes of the result, and returns a tuple with one gradient
        per argument. It may be called several times.

    Examples
    --------
    >>> import adjoint as ad
    >>> y, pull = ad.vjp(lambda a, b: a * b, 2.0, 3.0)
    >>> pull(1.0)
    (np.float64(3.0), np.float64(2.0))
    """
    as_function("vjp", f)
    if not primals:
        raise ArgumentError("vjp: the arguments of the function are missing: ad.vjp(f, x, …).")
    run, structures = record_call("vjp", f, primals, {}, range(len(primals)), has_aux)
    pull = pull_of(run, structures)
    result = run.results()
    aux = released_value(run, run.aux) if has_aux else None
    if run.plain:
        result, aux = returned((result, aux))
    return (result, pull, aux) if has_aux else (result, pull)
