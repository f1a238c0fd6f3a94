"""Types of the functions that transforms return, for type checkers alone.

Their parameter ``F`` is the type of the function that was transformed.  They keep its signature; the first
argument is passed by position, as the transforms require.  Its type is found when the function is called: if
it were a type parameter of ``grad``, type checkers would report errors in lambdas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from adjoint.core.tensor import Tensor
from adjoint.typing import Array, ArrayLike

__all__ = ["Gradient", "GradientAux", "Jacobian", "ValueAndGradient"]

A = TypeVar("A")
R = TypeVar("R")
X = TypeVar("X")
P = ParamSpec("P")
F = TypeVar("F", covariant=True)


class Gradient(Protocol[F]):
    """A function that returns the gradient of ``F`` in its first argument."""

    @overload
    def __call__(
        self: Gradient[Callable[Concatenate[ArrayLike, P], Any]],
        x: ArrayLike, /, *args: P.args, **kwargs: P.kwargs,
    ) -> Any: ...  # fmt: skip
    @overload
    def __call__(
        self: Gradient[Callable[Concatenate[A, P], Any]], x: A, /, *args: P.args, **kwargs: P.kwargs
    ) -> A: ...


class GradientAux(Protocol[F]):
    """A function that returns the gradient of ``F`` in its first argument, and an auxiliary result."""

    def __call__(  # noqa: D102  overloads, as below, need none
        self: GradientAux[Callable[Concatenate[A, P], tuple[Any, X]]],
        x: A, /, *args: P.args, **kwargs: P.kwargs,
    ) -> tuple[A, X]: ...  # fmt: skip


class ValueAndGradient(Protocol[F]):
    """A function that returns the result of ``F`` and the gradient in its first argument."""

    @overload
    def __call__(
        self: ValueAndGradient[Callable[Concatenate[ArrayLike, P], R]],
        x: ArrayLike, /, *args: P.args, **kwargs: P.kwargs,
    ) -> tuple[R, Any]: ...  # fmt: skip
    @overload
    def __call__(
        self: ValueAndGradient[Callable[Concatenate[A, P], R]], x: A, /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[R, A]: ...


class Jacobian(Protocol[F]):
    """A function that returns the derivative of ``F`` in its first argument."""

    @overload
    def __call__(
        self: Jacobian[Callable[Concatenate[Tensor, P], Tensor]],
        x: Tensor, /, *args: P.args, **kwargs: P.kwargs,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self: Jacobian[Callable[Concatenate[Array, P], Array | float]],
        x: Array, /, *args: P.args, **kwargs: P.kwargs,
    ) -> Array: ...  # fmt: skip
    @overload
    def __call__(self: Jacobian[Callable[P, Any]], *args: P.args, **kwargs: P.kwargs) -> Any: ...
