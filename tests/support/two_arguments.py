"""Transforms of a function of two vectors, one in the other: what a call that is one node must stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad

X, Y = np.array([0.3, 1.2]), np.array([2.0, -1.0])


def loss(f: Any) -> Callable[..., Any]:
    return lambda x, y: (f(x, y) ** 2).sum()


TRANSFORMS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "grad": lambda f: ad.grad(loss(f), (0, 1)),
    "grad of grad": lambda f: ad.grad(lambda x, y: (ad.grad(loss(f))(x, y) ** 2).sum(), (0, 1)),
    "hessian": lambda f: ad.hessian(loss(f), (0, 1)),
    "third": lambda f: lambda x, y: ad.jacobian(ad.hessian(lambda x: loss(f)(x, y)))(x),
    "jvp": lambda f: lambda x, y: ad.jvp(loss(f), (x, y), (y, x)),
    "grad of jvp": lambda f: ad.grad(lambda x, y: ad.jvp(loss(f), (x, y), (y, x))[1], (0, 1)),
    "jacfwd": lambda f: ad.jacfwd(lambda x, y: f(x, y) * x, (0, 1)),
    "jacrev": lambda f: ad.jacrev(lambda x, y: f(x, y) * x, (0, 1)),
    "hvp": lambda f: lambda x, y: ad.hvp(loss(f), (x, y), (y, x)),
    "vmap": ad.vmap,
    "vmap of grad": lambda f: ad.vmap(ad.grad(f, (0, 1))),
    "vmap of hessian": lambda f: ad.vmap(ad.hessian(f, (0, 1))),
    "vmap of vmap": lambda f: ad.vmap(ad.vmap(f, in_axes=(None, 0)), in_axes=(0, None)),
    "grad of vmap": lambda f: ad.grad(loss(ad.vmap(f)), (0, 1)),
    "hessian of vmap": lambda f: ad.hessian(loss(ad.vmap(f)), (0, 1)),
    "jvp of vmap": lambda f: lambda x, y: ad.jvp(ad.vmap(f), (x, y), (y, x)),
    "grad of vmap, one the same for all": lambda f: ad.grad(
        lambda x, y: loss(ad.vmap(f, in_axes=(0, None)))(x, y[0]), (0, 1)
    ),
    "grad of vmap of vmap": lambda f: ad.grad(
        loss(ad.vmap(ad.vmap(f, in_axes=(None, 0)), in_axes=(0, None))), (0, 1)
    ),
    "grad of vmap of grad": lambda f: ad.grad(loss(ad.vmap(ad.grad(f))), (0, 1)),
    "jacfwd of vmap of grad": lambda f: ad.jacfwd(loss(ad.vmap(ad.grad(f))), (0, 1)),
}
