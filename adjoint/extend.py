"""Functions with hand-written derivatives, as in autograd: ``primitive`` and ``defvjp``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, NoGradientError
from adjoint.hints import add_hints as _add_hints
from adjoint.transforms.custom import custom_vjp

__all__ = ["defvjp", "primitive"]
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
        functools.update_wrapper(self, fun)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with arrays, record the call as one op in the graph, and return the result."""
        if not any(isinstance(leaf, Tensor) for leaf in tree.leaves(args)):
            return self.fun(*args, **kwargs)

        def run(*given: Any) -> Any:
            return self.fun(*tree.map(_array, given), **kwargs)

        run.__name__ = getattr(self.fun, "__name__", "the function")  # for errors
        call = custom_vjp(run)

        def forward(*given: Any) -> Any:
            y = call(*given)
            return y, (y, given)

        def backward(saved: Any, g: Any) -> Any:
            y, given = saved
            g = _conjugated(g)
            return tuple(self._gradient(i, y, given, kwargs, g) for i in range(len(given)))

        functools.update_wrapper(call, self.fun)
        call.defvjp(forward, backward)
        return call(*args)

    def _gradient(self, i: int, y: Any, args: tuple[Any, ...], kwargs: dict[str, Any], g: Any) -> Any:
        if not any(isinstance(leaf, Tensor) for leaf in tree.leaves(args[i])):
            return None
        if i not in self.rules:
            name = getattr(self.fun, "__name__", "the function")
            raise NoGradientError(
                f"{name}: argument {i} has no rule.  Pass one to defvjp, or None if no gradient flows to it."
            )
        found = self.rules[i](y, *args, **kwargs)(g)
        if isinstance(args[i], Tensor) and args[i].dtype.kind != "c" and np.iscomplexobj(found):
            return np.real(found)  # the gradient of a real argument is real
        return _conjugated(found)


def _conjugated(values: Any) -> Any:
    """Convert complex gradients from adjoint's convention to autograd's, which is the conjugate, or back."""
    return tree.map(lambda v: np.conj(v) if np.iscomplexobj(v) else v, values)


def _array(value: Any) -> Any:
    """Return the NumPy array of a tensor.

    Return other values, and tensors that a transform traces and that have no array, unchanged.
    """
    known = isinstance(value, Tensor) and type(value._data) is np.ndarray
    return value.detach().numpy() if known else value


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


def _no_gradient(*args: Any, **kwargs: Any) -> Callable[[Any], None]:
    return lambda g: None


_add_hints(__name__)
