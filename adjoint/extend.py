"""Functions with hand-written derivatives, as in autograd: ``primitive``, ``defvjp`` and ``defjvp``."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.core.tensor import Tensor, differentiable
from adjoint.core.values import varies
from adjoint.errors import ArgumentError, NoGradientError
from adjoint.hints import add_hints as _add_hints
from adjoint.transforms.custom import custom_jvp, custom_vjp

__all__ = ["defjvp", "defvjp", "primitive"]
__dir__ = sorted(__all__).copy


class primitive:  # noqa: N801  a decorator that reads as a function
    """Treat a function of arrays as one operation whose derivatives ``defvjp`` defines.

    The function is called with arrays, so it may use any library.  Values inside ``vmap`` and ``ad.compile``
    are passed as tensors, because they have no arrays.

    Parameters
    ----------
    fun : callable
        The function.

    Examples
    --------
    >>> import numpy as np, adjoint as ad
    >>> from adjoint.extend import defvjp, primitive
    >>> @primitive
    ... def logsumexp(x):
    ...     top = np.max(x)
    ...     return top + np.log(np.sum(np.exp(x - top)))
    >>> defvjp(logsumexp, lambda ans, x: lambda g: g * np.exp(x - ans))
    >>> ad.grad(logsumexp)(np.array([0.0, 0.0]))
    array([0.5, 0.5])
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.fun = fun
        self.rules: dict[int, Callable[..., Any]] = {}
        self.tangents: dict[int, Callable[..., Any]] = {}  # rules of forward mode
        functools.update_wrapper(self, fun)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with arrays, record the call as one op in the graph, and return the result."""
        if not any(isinstance(leaf, Tensor) for leaf in tree.leaves(args)):
            return self.fun(*args, **kwargs)
        if self.tangents and not self.rules:
            return self._forward(args, kwargs)

        wanted = [any(map(_has_gradient, tree.leaves(a))) for a in args]

        def run(*given: Any) -> Any:
            return self.fun(*tree.map(_array, given), **kwargs)

        run.__name__ = getattr(self.fun, "__name__", "the function")  # for errors
        call = custom_vjp(run)

        def forward(*given: Any) -> Any:
            y = call(*given)
            return y, (y, given)

        def backward(saved: Any, g: Any) -> Any:
            y, given = tree.map(_constant, saved)
            g = tree.map(_constant, _conjugated(g))
            return tuple(
                self._gradient(i, y, given, kwargs, g) if wanted[i] else None for i in range(len(given))
            )

        functools.update_wrapper(call, self.fun)
        call.defvjp(forward, backward)
        if self.tangents:
            call.rule = self._tangent_rule(kwargs)
        return call(*args)

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function by its rules of forward mode, whose transpose is the rule of reverse mode."""
        call = custom_jvp(lambda *given: self.fun(*tree.map(_array, given), **kwargs))
        functools.update_wrapper(call, self.fun)
        call.defjvp(self._tangent_rule(kwargs))
        return call(*args)

    def _tangent_rule(self, kwargs: dict[str, Any]) -> Callable[[Any, Any], Any]:
        """Return the rule for ``custom_jvp``: a function of the arguments and their tangents."""

        def rule(primals: Any, tangents: Any) -> Any:
            y = self(*primals, **kwargs)
            parts = [
                self.tangents[i](t, y, *primals, **kwargs)
                for i, t in enumerate(tangents)
                if t is not None and i in self.tangents
            ]
            if not parts:
                return y, tree.map(lambda v: v * 0, y)
            tangent = functools.reduce(lambda a, b: tree.map(operator.add, a, b), parts)
            # a result of integers has no tangent, whatever the rule returns
            return y, tree.map(lambda v, t: t if np.result_type(v.dtype).kind in "fc" else None, y, tangent)

        return rule

    def of_tangent(self, i: int, g: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the function with the tangent ``g`` of argument ``i`` in its place, for linear functions."""
        if isinstance(g, Tensor) and varies(g):
            raise NoGradientError(
                f"{getattr(self.fun, '__name__', 'the function')}: its rule of forward mode is the function "
                "itself, which has no transpose.\n  Define the rule of reverse mode with defvjp."
            )
        return self(*args[:i], g, *args[i + 1 :], **kwargs)

    def _gradient(self, i: int, y: Any, args: tuple[Any, ...], kwargs: dict[str, Any], g: Any) -> Any:
        if i not in self.rules:
            name = getattr(self.fun, "__name__", "the function")
            raise NoGradientError(
                f"{name}: argument {i} has no rule.  Pass one to defvjp, or None if no gradient flows to it."
            )
        return _fitted(args[i], self.rules[i](y, *args, **kwargs)(g))


def _fitted(given: Any, found: Any) -> Any:
    """Return what a rule found as the gradient of an argument, in adjoint's convention.

    An array or another sequence is taken apart where the argument is a list or a tuple.
    """
    if isinstance(given, (list, tuple)) and found is not None and len(found) == len(given):
        parts = [_fitted(value, part) for value, part in zip(given, found, strict=True)]
        return type(given)(parts) if type(given) in (list, tuple) else type(given)(*parts)
    if isinstance(given, dict) and isinstance(found, dict) and given.keys() == found.keys():
        return {name: _fitted(given[name], part) for name, part in found.items()}
    if not np.iscomplexobj(given) and np.iscomplexobj(found):
        return np.real(found)  # the gradient of a real argument is real
    return _conjugated(found)


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and differentiable(leaf._data.dtype)  # no booleans and integers


def _conjugated(values: Any) -> Any:
    """Convert complex gradients from adjoint's convention to autograd's, which is the conjugate, or back."""
    return tree.map(lambda v: np.conj(v) if np.iscomplexobj(v) else v, values)


def _array(value: Any) -> Any:
    """Return the array of a tensor, or a NumPy scalar if it has no axes.

    The array is a copy, which functions may write into.  Return other values unchanged, and so tensors that a
    transform traces, which have no array.
    """
    known = isinstance(value, Tensor) and type(value._data) is np.ndarray
    return value.detach().numpy(copy=True)[()] if known else value


def _constant(value: Any) -> Any:
    """Return ``_array`` of a tensor without a history, and other values unchanged."""
    return value if isinstance(value, Tensor) and varies(value) else _array(value)


def defvjp(
    fun: primitive, *vjpmakers: Callable[..., Any] | None, argnums: Sequence[int] | None = None
) -> None:
    """Define the derivatives of a ``primitive``.

    Parameters
    ----------
    fun : primitive
        The function.
    *vjpmakers : callable or None
        For each argument a function of the result and the arguments.  It returns a function that maps the
        gradient of the result to the gradient of the argument.  None where no gradient flows.  Complex
        gradients are those of autograd, the conjugates of adjoint's: the rule of ``c * x`` is ``c * g``.
    argnums : sequence of int, optional
        The arguments that the rules are for; by default the first ones.

    Raises
    ------
    ArgumentError
        If ``fun`` is not a ``primitive``.

    Examples
    --------
    >>> import adjoint as ad
    >>> from adjoint.extend import defvjp, primitive
    >>> @primitive
    ... def double(x):
    ...     return 2 * x
    >>> defvjp(double, lambda ans, x: lambda g: 2 * g)
    >>> ad.grad(double)(3.0)
    np.float64(2.0)
    """
    if not isinstance(fun, primitive):
        raise ArgumentError("defvjp: the first argument must be a function decorated with @primitive.")
    for i, rule in zip(range(len(vjpmakers)) if argnums is None else argnums, vjpmakers, strict=False):
        fun.rules[i] = rule if rule is not None else _no_gradient


def defjvp(fun: primitive, *jvpfuns: Any, argnums: Sequence[int] | None = None) -> None:
    """Define the derivatives of a ``primitive`` in forward mode.

    Without rules of ``defvjp``, reverse mode is their transpose.

    Parameters
    ----------
    fun : primitive
        The function.
    *jvpfuns : callable, "same" or None
        For each argument a function of its tangent, the result and the arguments, which returns the tangent
        of the result.  "same" calls the function with the tangent in place of the argument, and None means
        that the tangent is zero.
    argnums : sequence of int, optional
        The arguments that the rules are for; by default the first ones.

    Raises
    ------
    ArgumentError
        If ``fun`` is not a ``primitive``.

    Examples
    --------
    >>> import adjoint as ad
    >>> from adjoint.extend import defjvp, primitive
    >>> @primitive
    ... def double(x):
    ...     return 2 * x
    >>> defjvp(double, lambda g, ans, x: 2 * g)
    >>> ad.jvp(double, (3.0,), (1.0,))[1]
    np.float64(2.0)
    """
    if not isinstance(fun, primitive):
        raise ArgumentError("defjvp: the first argument must be a function decorated with @primitive.")
    for i, rule in zip(range(len(jvpfuns)) if argnums is None else argnums, jvpfuns, strict=False):
        if rule == "same":
            rule = lambda g, ans, *args, i=i, **kwargs: fun.of_tangent(i, g, args, kwargs)
        if rule is not None:
            fun.tangents[i] = rule


def _no_gradient(*args: Any, **kwargs: Any) -> Callable[[Any], None]:
    return lambda g: None


_add_hints(__name__)
