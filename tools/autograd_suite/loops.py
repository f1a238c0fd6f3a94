"""What autograd's examples import from ``autograd.misc`` and ``autograd.test_util``, written on adjoint."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjoint as ad
from adjoint.testing import gradcheck

__all__ = ["adam", "check_grads", "flatten_func", "hessian_vector_product", "sgd"]


def _loop(rule: Any) -> Any:
    """Return an optimiser: ``rule`` makes the next vector of parameters."""

    def optimise(grad: Any, x0: Any, callback: Any = None, num_iters: int = 100, **options: Any) -> Any:
        x, unflatten = ad.tree.ravel(x0)
        x, state = np.asarray(x), {}
        for i in range(num_iters):
            g = np.asarray(ad.tree.ravel(grad(unflatten(x), i))[0])
            if callback:
                callback(unflatten(x), i, unflatten(g))
            x = rule(state, i + 1, x, g, **options)
        return unflatten(x)

    return optimise


def _adam(
    state: Any, n: int, x: Any, g: Any, step_size: float = 0.001, b1: float = 0.9, b2: float = 0.999
) -> Any:
    m = state["m"] = (1 - b1) * g + b1 * state.get("m", 0)
    v = state["v"] = (1 - b2) * g**2 + b2 * state.get("v", 0)
    return x - step_size * (m / (1 - b1**n)) / (np.sqrt(v / (1 - b2**n)) + 1e-8)


def _sgd(state: Any, n: int, x: Any, g: Any, step_size: float = 0.1, mass: float = 0.9) -> Any:
    state["v"] = mass * state.get("v", 0) - (1 - mass) * g
    return x + step_size * state["v"]


adam, sgd = _loop(_adam), _loop(_sgd)


def flatten_func(f: Any, example: Any) -> Any:
    """Return ``f`` on vectors, the function that makes trees of them, and the vector of the example."""
    flat, unflatten = ad.tree.ravel(example)
    return (lambda x, *args, **kwargs: ad.tree.ravel(f(unflatten(x), *args, **kwargs))[0]), unflatten, flat


def check_grads(f: Any, modes: Any = (), order: int = 1) -> Any:
    """Return a function that checks the gradients of ``f``."""
    return lambda *args: gradcheck(f, [np.asarray(a) for a in args], order=order)


def hessian_vector_product(f: Any) -> Any:
    """Return a function of a point and a vector."""
    return lambda x, v: ad.hvp(f, (x,), (v,))[0]
