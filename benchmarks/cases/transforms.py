"""Transforms: Jacobians in one pass, Hessian products, per-sample gradients."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.harness import Case, Step, jax_x64


def weights(*sizes: int) -> list[tuple[Any, Any]]:
    random = np.random.default_rng(0)
    return [
        (random.standard_normal((m, n)) / np.sqrt(m), random.standard_normal(n))
        for m, n in itertools.pairwise(sizes)
    ]


def mlp(layers: Any, x: Any, tanh: Any) -> Any:
    for w, b in layers[:-1]:
        x = tanh(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


# The Jacobian of a net of 100 inputs and 100 outputs ----------------------------------------------

SIZES = (100, 100, 100, 100)


def adjoint_jacobian() -> Step:
    layers = [(ad.tensor(w), ad.tensor(b)) for w, b in weights(*SIZES)]
    x = ad.tensor(np.linspace(-1, 1, SIZES[0]))
    jacobian = ad.jacrev(lambda x: mlp(layers, x, ad.tanh))
    return lambda: jacobian(x).numpy()


def torch_jacobian() -> Step:
    import torch

    layers = [(torch.tensor(w), torch.tensor(b)) for w, b in weights(*SIZES)]
    x = torch.linspace(-1, 1, SIZES[0], dtype=torch.float64)
    jacobian = torch.func.jacrev(lambda x: mlp(layers, x, torch.tanh))
    return lambda: jacobian(x).numpy()


def jax_jacobian(compiled: bool) -> Step:
    jax = jax_x64()
    layers = [(jax.numpy.asarray(w), jax.numpy.asarray(b)) for w, b in weights(*SIZES)]
    x = jax.numpy.linspace(-1, 1, SIZES[0])
    jacobian = jax.jacrev(lambda x: mlp(layers, x, jax.numpy.tanh))
    if compiled:
        jacobian = jax.jit(jacobian)
    return lambda: np.asarray(jacobian(x))


def adjoint_hessian() -> Step:
    layers = [(ad.tensor(w), ad.tensor(b)) for w, b in weights(*SIZES)]
    x = ad.tensor(np.linspace(-1, 1, SIZES[0]))
    hessian = ad.hessian(lambda x: (mlp(layers, x, ad.tanh) ** 2).sum())
    return lambda: hessian(x).numpy()


def torch_hessian() -> Step:
    import torch

    layers = [(torch.tensor(w), torch.tensor(b)) for w, b in weights(*SIZES)]
    x = torch.linspace(-1, 1, SIZES[0], dtype=torch.float64)
    hessian = torch.func.hessian(lambda x: (mlp(layers, x, torch.tanh) ** 2).sum())
    return lambda: hessian(x).numpy()


# Hessian products ----------------------------------------------------------------------------------

NET, ROWS = (64, 64, 64, 1), 256


def _batch() -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    return random.standard_normal((ROWS, NET[0])), random.standard_normal((ROWS, 1))


def _adjoint_loss() -> tuple[Any, Any, Any]:
    params = [(ad.tensor(w), ad.tensor(b)) for w, b in weights(*NET)]
    x, y = map(ad.tensor, _batch())
    directions = ad.tree.map(lambda p: ad.ones_like(p), params)
    return (lambda p: ((mlp(p, x, ad.tanh) - y) ** 2).mean()), params, directions


def adjoint_hvp() -> Step:
    loss, params, directions = _adjoint_loss()
    return lambda: ad.hvp(loss, params, directions)[0][0].numpy()


def adjoint_loss() -> Step:
    loss, params, _ = _adjoint_loss()

    def step() -> None:
        loss(params)

    return step


def adjoint_gradient() -> Step:
    loss, params, _ = _adjoint_loss()
    gradient = ad.value_and_grad(loss)

    def step() -> None:
        gradient(params)

    return step


def torch_hvp() -> Step:
    import torch

    params = [(torch.tensor(w), torch.tensor(b)) for w, b in weights(*NET)]
    x, y = map(torch.tensor, _batch())
    directions = [(torch.ones_like(w), torch.ones_like(b)) for w, b in params]

    def loss(p: Any) -> Any:
        return ((mlp(p, x, torch.tanh) - y) ** 2).mean()

    return lambda: torch.func.jvp(torch.func.grad(loss), (params,), (directions,))[1][0][0].numpy()


def jax_hvp() -> Step:
    jax = jax_x64()
    jnp = jax.numpy
    params = [(jnp.asarray(w), jnp.asarray(b)) for w, b in weights(*NET)]
    x, y = map(jnp.asarray, _batch())
    directions = jax.tree.map(jnp.ones_like, params)
    gradient = jax.grad(lambda p: ((mlp(p, x, jnp.tanh) - y) ** 2).mean())
    product = jax.jit(lambda p, v: jax.jvp(gradient, (p,), (v,))[1])
    return lambda: np.asarray(jax.block_until_ready(product(params, directions))[0][0])


def autograd_hvp() -> Step:
    import autograd
    import autograd.numpy as anp

    params, (x, y) = weights(*NET), _batch()
    gradient = autograd.grad(lambda p: anp.mean((mlp(p, x, anp.tanh) - y) ** 2))
    along = lambda p: sum(anp.sum(w) + anp.sum(b) for w, b in gradient(p))  # the direction is ones
    product = autograd.grad(along)
    return lambda: product(params)[0][0]


# Per-sample gradients ------------------------------------------------------------------------------


def adjoint_per_sample() -> Step:
    params = [(ad.tensor(w), ad.tensor(b)) for w, b in weights(*NET)]
    x, y = map(ad.tensor, _batch())
    gradient = ad.vmap(ad.grad(lambda p, x, y: ((mlp(p, x, ad.tanh) - y) ** 2).mean()), in_axes=(None, 0, 0))
    return lambda: gradient(params, x, y)[0][0].numpy()


def torch_per_sample() -> Step:
    import torch

    params = [(torch.tensor(w), torch.tensor(b)) for w, b in weights(*NET)]
    x, y = map(torch.tensor, _batch())
    loss = lambda p, x, y: ((mlp(p, x, torch.tanh) - y) ** 2).mean()
    gradient = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    return lambda: gradient(params, x, y)[0][0].numpy()


def jax_per_sample() -> Step:
    jax = jax_x64()
    jnp = jax.numpy
    params = [(jnp.asarray(w), jnp.asarray(b)) for w, b in weights(*NET)]
    x, y = map(jnp.asarray, _batch())
    gradient = jax.grad(lambda p, x, y: ((mlp(p, x, jnp.tanh) - y) ** 2).mean())
    batched = jax.jit(jax.vmap(gradient, in_axes=(None, 0, 0)))
    return lambda: np.asarray(jax.block_until_ready(batched(params, x, y))[0][0])


# Checkpoints -----------------------------------------------------------------------------------------


def _deep() -> tuple[list[Any], Any]:
    layers = [ad.tensor(w, requires_grad=True) for w, _ in weights(*[64] * 51)]
    return [lambda x, w=w: ad.tanh(x @ w) for w in layers], ad.tensor(_batch()[0])


def adjoint_checkpointed() -> Step:
    chain, x = _deep()

    def step() -> Any:
        y = (ad.checkpoint_sequential(chain, x) ** 2).mean()
        ad.backward(y)
        return y.numpy()

    return step


def adjoint_kept() -> Step:
    chain, x = _deep()

    def step() -> Any:
        h = x
        for layer in chain:
            h = layer(h)
        y = (h**2).mean()
        ad.backward(y)
        return y.numpy()

    return step


CASES = [
    Case(
        "50 layers of 64, 256 rows, checkpoint_sequential",
        {"adjoint": adjoint_checkpointed, "adjoint, all kept": adjoint_kept},
        targets={"adjoint, all kept": 1.5},
        blas=True,
    ),
    Case(
        "jacobian of a 100-100-100-100 net",
        {
            "adjoint": adjoint_jacobian,
            "torch": torch_jacobian,
            "jax": lambda: jax_jacobian(compiled=False),
            "jax-jit": lambda: jax_jacobian(compiled=True),
        },
        targets={"torch": 0.6},
        blas=True,
    ),
    Case(
        "hessian of a 100-100-100-100 net",
        {"adjoint": adjoint_hessian, "torch": torch_hessian},
        blas=True,
    ),
    Case(
        "hvp of a 64-64-64-1 net, 256 rows",
        {
            "adjoint": adjoint_hvp,
            "adjoint, loss alone": adjoint_loss,
            "adjoint, value and gradient": adjoint_gradient,
            "torch": torch_hvp,
            "jax-jit": jax_hvp,
            "autograd": autograd_hvp,
        },
        targets={"adjoint, loss alone": 4.0, "torch": 0.5, "jax-jit": 2.0, "autograd": 0.3},
        blas=True,
    ),
    Case(
        "per-sample gradients of a 64-64-64-1 net, 256 rows",
        {"adjoint": adjoint_per_sample, "torch": torch_per_sample, "jax-jit": jax_per_sample},
        blas=True,
    ),
]
