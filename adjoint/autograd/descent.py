"""The optimisers and helpers of ``autograd.misc``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import adjoint.numpy as anp
from adjoint import tree
from adjoint.autograd.rules import defvjp, primitive
from adjoint.autograd.spaces import vspace
from adjoint.autograd.transforms import make_vjp
from adjoint.interop.drop_in import holds_tensor
from adjoint.transforms.arrays import returned

__all__ = [
    "adam",
    "const_graph",
    "fixed_point",
    "flatten",
    "flatten_func",
    "rmsprop",
    "sgd",
    "unflatten_optimizer",
]


def flatten(value: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return all numbers of a tree as one vector, and the function that converts such a vector back."""
    flat, back = tree.ravel(value)
    if not holds_tensor(value):
        flat = returned(flat)
    return flat, lambda v: back(v) if holds_tensor(v) else returned(back(v))


def const_graph(fun: Any, *args: Any, **kwargs: Any) -> Any:
    """Raise, because the graph of the first call would be kept; use ``ad.compile``."""
    raise NotImplementedError(
        "const_graph keeps the graph of the first call.  Use ad.compile(fun), which checks it."
    )


def flatten_func(func: Callable[..., Any], example: Any) -> tuple[Callable[..., Any], Any, Any]:
    """Return ``func`` as a function of vectors, ``unflatten``, and the vector of ``example``."""
    flat, unflatten = flatten(example)
    return lambda x, *args: flatten(func(unflatten(x), *args))[0], unflatten, flat


def unflatten_optimizer(optimize: Callable[..., Any]) -> Callable[..., Any]:
    """Return an optimiser of trees, made from one of vectors."""

    @functools.wraps(optimize)
    def call(grad: Any, x0: Any, callback: Any = None, *args: Any, **kwargs: Any) -> Any:
        start, back = flatten(x0)
        slope = lambda x, i: flatten(grad(back(x), i))[0]
        told = (lambda x, i, g: callback(back(x), i, back(g))) if callback else None
        return back(optimize(slope, start, told, *args, **kwargs))

    return call


@unflatten_optimizer
def sgd(grad, x, callback=None, num_iters=200, step_size=0.1, mass=0.9):  # type: ignore[no-untyped-def]
    """Take steps of gradient descent with momentum; ``grad(x, i)`` gets the number of the step, too."""
    velocity = anp.zeros_like(x)
    for i in range(num_iters):
        g = grad(x, i)
        if callback:
            callback(x, i, g)
        velocity = mass * velocity - (1.0 - mass) * g
        x = x + step_size * velocity
    return x


@unflatten_optimizer
def rmsprop(grad, x, callback=None, num_iters=100, step_size=0.1, gamma=0.9, eps=1e-8):  # type: ignore[no-untyped-def]
    """Take steps that are divided by the root of the mean of the squared gradients."""
    mean = anp.ones_like(x)
    for i in range(num_iters):
        g = grad(x, i)
        if callback:
            callback(x, i, g)
        mean = mean * gamma + g**2 * (1 - gamma)
        x = x - step_size * g / (anp.sqrt(mean) + eps)
    return x


@unflatten_optimizer
def adam(grad, x, callback=None, num_iters=100, step_size=0.001, b1=0.9, b2=0.999, eps=1e-8):  # type: ignore[no-untyped-def]
    """Take the steps of Adam."""
    m, v = anp.zeros_like(x), anp.zeros_like(x)
    for i in range(num_iters):
        g = grad(x, i)
        if callback:
            callback(x, i, g)
        m, v = (1 - b1) * g + b1 * m, (1 - b2) * g**2 + b2 * v
        x = x - step_size * (m / (1 - b1 ** (i + 1))) / (anp.sqrt(v / (1 - b2 ** (i + 1))) + eps)
    return x


@primitive
def fixed_point(f: Any, a: Any, x0: Any, distance: Any, tol: float) -> Any:
    """Iterate ``x = f(a)(x)`` from ``x0`` until ``distance`` of two values is at most ``tol``."""
    step = f(a)
    x, before = step(x0), x0
    while distance(x, before) > tol:
        x, before = step(x), x
    return x


def _fixed_point_vjp(ans: Any, f: Any, a: Any, x0: Any, distance: Any, tol: float) -> Callable[[Any], Any]:
    def adjoint_step(given: Any) -> Any:
        a, x, g = given
        pull, _ = make_vjp(f(a))(x)
        return lambda u: vspace(x).add(pull(u), g)

    pull_a, _ = make_vjp(lambda a, x: f(a)(x))(a, ans)
    return lambda g: pull_a(fixed_point(adjoint_step, (a, ans, g), vspace(ans).zeros(), distance, tol))


defvjp(fixed_point, None, _fixed_point_vjp, None)
