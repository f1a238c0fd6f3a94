"""Transforms: Jacobians in one pass, Hessian products, per-sample gradients."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.engines import Mlx, Tinygrad, compiled_by_torch
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
    return lambda: jacobian(x)


def torch_jacobian(compiled: bool = False) -> Step:
    import torch

    layers = [(torch.tensor(w), torch.tensor(b)) for w, b in weights(*SIZES)]
    x = torch.linspace(-1, 1, SIZES[0], dtype=torch.float64)
    jacobian = torch.func.jacrev(lambda x: mlp(layers, x, torch.tanh))
    if compiled:
        jacobian = compiled_by_torch(jacobian)
    return lambda: jacobian(x)


def jax_jacobian(compiled: bool) -> Step:
    jax = jax_x64()
    layers = [(jax.numpy.asarray(w), jax.numpy.asarray(b)) for w, b in weights(*SIZES)]
    x = jax.numpy.linspace(-1, 1, SIZES[0])
    jacobian = jax.jacrev(lambda x: mlp(layers, x, jax.numpy.tanh))
    if compiled:
        jacobian = jax.jit(jacobian)
    return lambda: jax.block_until_ready(jacobian(x))


def mlx_jacobian() -> Step:
    kit = Mlx()
    layers = [(kit.array(w), kit.array(b)) for w, b in weights(*SIZES)]
    seeds = kit.array(np.eye(SIZES[-1]))

    def jacobian(x: Any) -> Any:
        f = lambda x: mlp(layers, x, kit.xp.tanh)
        return kit.xp.vmap(lambda v: kit.xp.vjp(f, [x], [v])[1][0])(seeds)

    return kit.step(jacobian, [np.linspace(-1, 1, SIZES[0])])


def tinygrad_jacobian() -> Step:
    """Without vmap: the trace of the net's values on as many copies of x has the rows as gradients."""
    kit = Tinygrad()
    layers = [(kit.array(w), kit.array(b)) for w, b in weights(*SIZES)]
    eye = kit.array(np.eye(SIZES[-1]))
    copies = np.tile(np.linspace(-1, 1, SIZES[0]), (SIZES[-1], 1))
    return kit.gradient(lambda x: (mlp(layers, x, kit.xp.tanh) * eye).sum(), [copies])


def adjoint_hessian() -> Step:
    layers = [(ad.tensor(w), ad.tensor(b)) for w, b in weights(*SIZES)]
    x = ad.tensor(np.linspace(-1, 1, SIZES[0]))
    hessian = ad.hessian(lambda x: (mlp(layers, x, ad.tanh) ** 2).sum())
    return lambda: hessian(x)


def torch_hessian() -> Step:
    """A quarter faster than torch.func.hessian, which is compiled below."""
    import torch

    layers = [(torch.tensor(w), torch.tensor(b)) for w, b in weights(*SIZES)]
    x = torch.linspace(-1, 1, SIZES[0], dtype=torch.float64)
    hessian = torch.autograd.functional.hessian
    return lambda: hessian(lambda x: (mlp(layers, x, torch.tanh) ** 2).sum(), x, vectorize=True)


def torch_compiled_hessian() -> Step:
    import torch

    layers = [(torch.tensor(w), torch.tensor(b)) for w, b in weights(*SIZES)]
    x = torch.linspace(-1, 1, SIZES[0], dtype=torch.float64)
    hessian = compiled_by_torch(torch.func.hessian(lambda x: (mlp(layers, x, torch.tanh) ** 2).sum()))
    return lambda: hessian(x)


def jax_hessian(compiled: bool) -> Step:
    jax = jax_x64()
    layers = [(jax.numpy.asarray(w), jax.numpy.asarray(b)) for w, b in weights(*SIZES)]
    x = jax.numpy.linspace(-1, 1, SIZES[0])
    hessian = jax.hessian(lambda x: (mlp(layers, x, jax.numpy.tanh) ** 2).sum())
    run = jax.jit(hessian) if compiled else hessian
    return lambda: jax.block_until_ready(run(x))


def autograd_derivatives(kind: str) -> Step:
    """Its ``jacobian`` or ``hessian``: a pull for every output."""
    import autograd
    import autograd.numpy as anp

    layers, x = weights(*SIZES), np.linspace(-1, 1, SIZES[0])
    value = lambda x: mlp(layers, x, anp.tanh)
    found = getattr(autograd, kind)(value if kind == "jacobian" else lambda x: anp.sum(value(x) ** 2))
    return lambda: found(x)


def mlx_hessian() -> Step:
    kit = Mlx()
    mx = kit.xp
    layers = [(kit.array(w), kit.array(b)) for w, b in weights(*SIZES)]
    gradient = mx.grad(lambda x: (mlp(layers, x, mx.tanh) ** 2).sum())
    seeds = kit.array(np.eye(SIZES[0]))

    def hessian(x: Any) -> Any:
        return mx.vmap(lambda v: mx.jvp(gradient, [x], [v])[1][0])(seeds)

    return kit.step(hessian, [np.linspace(-1, 1, SIZES[0])])


def tinygrad_hessian() -> Step:
    """Without vmap: the sum over copies of x has their gradients as gradient, and that the rows."""
    kit = Tinygrad()
    layers = [(kit.array(w), kit.array(b)) for w, b in weights(*SIZES)]
    eye = kit.array(np.eye(SIZES[0]))
    copies = np.tile(np.linspace(-1, 1, SIZES[0]), (SIZES[0], 1))

    def rows(x: Any) -> Any:
        (gradient,) = (mlp(layers, x, kit.xp.tanh) ** 2).sum().gradient(x)
        return (gradient * eye).sum().gradient(x)

    return kit.step(rows, [copies])


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
    return lambda: ad.hvp(loss, params, directions)


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
    """Reverse over reverse: half the time of torch.func.jvp(torch.func.grad(loss)), which is below."""
    import torch

    params = [torch.tensor(a, requires_grad=True) for a in _flat(weights(*NET))]
    x, y = map(torch.tensor, _batch())
    directions = [torch.ones_like(p) for p in params]

    def step() -> Any:
        loss = ((mlp(_nested(params), x, torch.tanh) - y) ** 2).mean()
        gradient = torch.autograd.grad(loss, params, create_graph=True)
        return torch.autograd.grad(gradient, params, directions)

    return step


def torch_func_hvp(compiled: bool = False) -> Step:
    """Forward over reverse, as adjoint and JAX do it."""
    import torch

    params = [(torch.tensor(w), torch.tensor(b)) for w, b in weights(*NET)]
    x, y = map(torch.tensor, _batch())
    directions = [(torch.ones_like(w), torch.ones_like(b)) for w, b in params]

    def loss(p: Any) -> Any:
        return ((mlp(p, x, torch.tanh) - y) ** 2).mean()

    def product(p: Any, v: Any) -> Any:
        return torch.func.jvp(torch.func.grad(loss), (p,), (v,))[1]

    if compiled:
        product = compiled_by_torch(product)
    return lambda: product(params, directions)


def jax_hvp(compiled: bool) -> Step:
    jax = jax_x64()
    jnp = jax.numpy
    params = [(jnp.asarray(w), jnp.asarray(b)) for w, b in weights(*NET)]
    x, y = map(jnp.asarray, _batch())
    directions = jax.tree.map(jnp.ones_like, params)
    gradient = jax.grad(lambda p, x, y: ((mlp(p, x, jnp.tanh) - y) ** 2).mean())
    product = lambda p, v, x, y: jax.jvp(lambda p: gradient(p, x, y), (p,), (v,))[1]
    run = jax.jit(product) if compiled else product
    return lambda: jax.block_until_ready(run(params, directions, x, y))


def autograd_hvp() -> Step:
    import autograd
    import autograd.numpy as anp

    params, (x, y) = weights(*NET), _batch()
    gradient = autograd.grad(lambda p: anp.mean((mlp(p, x, anp.tanh) - y) ** 2))
    along = lambda p: sum(anp.sum(w) + anp.sum(b) for w, b in gradient(p))  # the direction is ones
    product = autograd.grad(along)
    return lambda: product(params)


def _flat(params: Any) -> list[Any]:
    return [a for layer in params for a in layer]


def _nested(flat: Any) -> list[tuple[Any, Any]]:
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]


def mlx_hvp() -> Step:
    kit = Mlx()
    mx, (x, y) = kit.xp, map(kit.array, _batch())
    params = _flat(weights(*NET))
    gradient = mx.grad(lambda *p: ((mlp(_nested(p), x, mx.tanh) - y) ** 2).mean(), list(range(len(params))))
    ones = [mx.ones_like(kit.array(p)) for p in params]
    return kit.step(lambda *p: mx.jvp(gradient, list(p), ones)[1], params)


def tinygrad_hvp() -> Step:
    """Reverse over reverse: there is no forward mode."""
    kit = Tinygrad()
    x, y = map(kit.array, _batch())

    def product(*p: Any) -> Any:
        first, *rest = ((mlp(_nested(p), x, kit.xp.tanh) - y) ** 2).mean().gradient(*p)
        return sum((g.sum() for g in rest), first.sum()).gradient(*p)  # the direction is ones

    return kit.step(product, _flat(weights(*NET)))


# Per-sample gradients ------------------------------------------------------------------------------


def adjoint_per_sample() -> Step:
    params = [(ad.tensor(w), ad.tensor(b)) for w, b in weights(*NET)]
    x, y = map(ad.tensor, _batch())
    gradient = ad.vmap(ad.grad(lambda p, x, y: ((mlp(p, x, ad.tanh) - y) ** 2).mean()), in_axes=(None, 0, 0))
    return lambda: gradient(params, x, y)


def torch_per_sample(compiled: bool = False) -> Step:
    import torch

    params = [(torch.tensor(w), torch.tensor(b)) for w, b in weights(*NET)]
    x, y = map(torch.tensor, _batch())
    loss = lambda p, x, y: ((mlp(p, x, torch.tanh) - y) ** 2).mean()
    gradient = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    if compiled:
        gradient = compiled_by_torch(gradient)
    return lambda: gradient(params, x, y)


def jax_per_sample(compiled: bool) -> Step:
    jax = jax_x64()
    jnp = jax.numpy
    params = [(jnp.asarray(w), jnp.asarray(b)) for w, b in weights(*NET)]
    x, y = map(jnp.asarray, _batch())
    gradient = jax.grad(lambda p, x, y: ((mlp(p, x, jnp.tanh) - y) ** 2).mean())
    batched = jax.vmap(gradient, in_axes=(None, 0, 0))
    run = jax.jit(batched) if compiled else batched
    return lambda: jax.block_until_ready(run(params, x, y))


def autograd_per_sample() -> Step:
    """One sample after the other: there is no vmap."""
    import autograd
    import autograd.numpy as anp

    params, (xs, ys) = weights(*NET), _batch()
    gradient = autograd.grad(lambda p, x, y: anp.mean((mlp(p, x, anp.tanh) - y) ** 2))

    def step() -> Any:
        found = [_flat(gradient(params, x, y)) for x, y in zip(xs, ys, strict=True)]
        return [np.stack(g) for g in zip(*found, strict=True)]

    return step


def mlx_per_sample() -> Step:
    kit = Mlx()
    mx, params = kit.xp, _flat(weights(*NET))
    count = len(params)
    loss = lambda *a: ((mlp(_nested(a[:count]), a[count], mx.tanh) - a[count + 1]) ** 2).mean()
    gradient = mx.vmap(mx.grad(loss, list(range(count))), in_axes=(None,) * count + (0, 0))
    return kit.step(gradient, [*params, *_batch()])


def tinygrad_per_sample() -> Step:
    """Without vmap: each sample has its own copy of the parameters, by whose gradients they differ."""
    kit = Tinygrad()
    x, y = map(kit.array, _batch())

    def gradients(*p: Any) -> Any:
        shapes = [(1, *a.shape)[-2:] for a in p]  # a bias is a row
        copies = [a.reshape(1, *s).expand(ROWS, *s) for a, s in zip(p, shapes, strict=True)]
        loss = ((mlp(_nested(copies), x.unsqueeze(1), kit.xp.tanh).squeeze(1) - y) ** 2).sum()
        return loss.gradient(*copies)

    return kit.step(gradients, _flat(weights(*NET)))


# Checkpoints -----------------------------------------------------------------------------------------


def _deep() -> tuple[list[Any], Any]:
    layers = [ad.tensor(w, requires_grad=True) for w, _ in weights(*[64] * 51)]
    return [lambda x, w=w: ad.tanh(x @ w) for w in layers], ad.tensor(_batch()[0])


def _deep_layers(width: int, rows: int) -> tuple[list[Any], Any]:
    rng = ad.random.default_rng(0)
    chain = [ad.nn.Sequential(ad.nn.Linear(width, width, rng=rng), ad.nn.ReLU()) for _ in range(50)]
    return chain, rng.normal(size=(rows, width), dtype=np.float32)


def checkpointed_layers(width: int, rows: int) -> Case:
    deep = functools.partial(_deep_layers, width, rows)
    return Case(
        f"50 layers of {width}, {rows:,} rows, relu, float32, checkpoint_sequential",
        {"adjoint": lambda: adjoint_checkpointed(deep), "adjoint, all kept": lambda: adjoint_kept(deep)},
        targets={"adjoint, all kept": 1.5},
        blas=True,
    )


def adjoint_checkpointed(deep: Callable[[], tuple[list[Any], Any]] = _deep) -> Step:
    chain, x = deep()

    def step() -> Any:
        y = (ad.checkpoint_sequential(chain, x) ** 2).mean()
        ad.backward(y)
        return y

    return step


def adjoint_kept(deep: Callable[[], tuple[list[Any], Any]] = _deep) -> Step:
    chain, x = deep()

    def step() -> Any:
        h = x
        for layer in chain:
            h = layer(h)
        y = (h**2).mean()
        ad.backward(y)
        return y

    return step


CASES = [
    # many rows: what is kept is the activations, and its memory is a third (a test)
    checkpointed_layers(64, 4096),
    checkpointed_layers(256, 256),
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
            "torch-compile": lambda: torch_jacobian(compiled=True),
            "jax": lambda: jax_jacobian(compiled=False),
            "jax-jit": lambda: jax_jacobian(compiled=True),
            "autograd": lambda: autograd_derivatives("jacobian"),
            "mlx": mlx_jacobian,
            "tinygrad": tinygrad_jacobian,
        },
        targets={"torch": 0.6},
        blas=True,
    ),
    Case(
        "hessian of a 100-100-100-100 net",
        {
            "adjoint": adjoint_hessian,
            "torch": torch_hessian,
            "torch-compile": torch_compiled_hessian,
            "jax": lambda: jax_hessian(compiled=False),
            "jax-jit": lambda: jax_hessian(compiled=True),
            "autograd": lambda: autograd_derivatives("hessian"),
            "mlx": mlx_hessian,
            "tinygrad": tinygrad_hessian,
        },
        blas=True,
    ),
    Case(
        "hvp of a 64-64-64-1 net, 256 rows",
        {
            "adjoint": adjoint_hvp,
            "adjoint, loss alone": adjoint_loss,
            "adjoint, value and gradient": adjoint_gradient,
            "torch": torch_hvp,
            "torch-func": torch_func_hvp,
            "torch-compile": lambda: torch_func_hvp(compiled=True),
            "jax": lambda: jax_hvp(compiled=False),
            "jax-jit": lambda: jax_hvp(compiled=True),
            "autograd": autograd_hvp,
            "mlx": mlx_hvp,
            "tinygrad": tinygrad_hvp,
        },
        targets={
            "adjoint, loss alone": 4.0,
            "torch": 0.5,
            "torch-func": 0.5,
            "jax-jit": 2.0,
            "autograd": 0.3,
        },
        blas=True,
    ),
    Case(
        "per-sample gradients of a 64-64-64-1 net, 256 rows",
        {
            "adjoint": adjoint_per_sample,
            "torch": torch_per_sample,
            "torch-compile": lambda: torch_per_sample(compiled=True),
            "jax": lambda: jax_per_sample(compiled=False),
            "jax-jit": lambda: jax_per_sample(compiled=True),
            "autograd": autograd_per_sample,
            "mlx": mlx_per_sample,
            "tinygrad": tinygrad_per_sample,
        },
        blas=True,
    ),
]
