"""Per-op overhead: chains of elementwise ops on small and large arrays, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.engines import Kit, engines, lacking
from benchmarks.harness import Case, Step, jax_x64

LENGTH = 100  # times four ops


def chain(x: Any, w: Any, tanh: Callable[[Any], Any]) -> Any:
    """400 ops: a product and a sum with leaves, a function, a product with a number."""
    y = x
    for _ in range(LENGTH):
        y = tanh(y * w + x) * 0.9
    return y


def adjoint_step(size: int) -> Step:
    x0, w0 = np.linspace(0.1, 1.0, size), np.full(size, 0.5)

    def step() -> Any:
        x, w = ad.tensor(x0, requires_grad=True), ad.tensor(w0, requires_grad=True)
        chain(x, w, ad.tanh).sum().backward()
        assert x.grad is not None
        return x.grad.numpy()

    return step


def torch_step(size: int) -> Step:
    import torch

    x0, w0 = (
        torch.linspace(0.1, 1.0, size, dtype=torch.float64),
        torch.full((size,), 0.5, dtype=torch.float64),
    )

    def step() -> Any:
        x, w = x0.clone().requires_grad_(), w0.clone().requires_grad_()
        chain(x, w, torch.tanh).sum().backward()
        return x.grad.numpy()

    return step


def autograd_step(size: int) -> Step:
    import autograd
    import autograd.numpy as anp

    x0, w0 = np.linspace(0.1, 1.0, size), np.full(size, 0.5)
    gradient = autograd.grad(lambda xw: anp.sum(chain(xw[0], xw[1], anp.tanh)))
    return lambda: gradient((x0, w0))[0]


def jax_step(size: int, compiled: bool) -> Step:
    jax = jax_x64()
    jnp = jax.numpy
    x0, w0 = jnp.linspace(0.1, 1.0, size), jnp.full(size, 0.5)
    gradient = jax.grad(lambda x, w: chain(x, w, jnp.tanh).sum(), (0, 1))
    if compiled:
        gradient = jax.jit(gradient)
    return lambda: np.asarray(jax.block_until_ready(gradient(x0, w0))[0])


def kit_step(kit: Kit, size: int) -> Step:
    """For the engines that differentiate functions of arrays; both gradients are computed."""
    tanh = kit.xp.tanh
    gradient = kit.gradient(
        lambda x, w: chain(x, w, tanh).sum(), [np.linspace(0.1, 1.0, size), np.full(size, 0.5)]
    )
    return lambda: gradient()[0]


def forward_case(size: int) -> Case:
    def ours() -> Step:
        x, w = ad.tensor(np.linspace(0.1, 1.0, size), requires_grad=True), ad.full((size,), 0.5)
        return lambda: chain(x, w, ad.tanh).numpy()

    def theirs() -> Step:
        import torch

        x = torch.linspace(0.1, 1.0, size, dtype=torch.float64, requires_grad=True)
        w = torch.full((size,), 0.5, dtype=torch.float64)
        return lambda: chain(x, w, torch.tanh).detach().numpy()

    return Case(f"chain of 400 ops, {size} elements, forward", {"adjoint": ours, "torch": theirs})


def both_case(size: int, targets: dict[str, float] | None = None, compiles: bool = True) -> Case:
    # compiling 400 ops takes half a minute
    skipped = {} if compiles else {"torch-compile": lacking("compiled for 4 and 100000 elements only")}
    return Case(
        f"chain of 400 ops, {size} elements, forward + backward",
        {
            "adjoint": lambda: adjoint_step(size),
            "torch": lambda: torch_step(size),
            "jax": lambda: jax_step(size, compiled=False),
            "jax-jit": lambda: jax_step(size, compiled=True),
            "autograd": lambda: autograd_step(size),
            **engines(lambda kit: kit_step(kit, size), "torch-compile mlx"),
            **skipped,
            "tinygrad": lacking("its scheduler does not end within minutes on a chain of 400 fused ops"),
        },
        targets or {},
    )


CASES = [
    both_case(4, {"torch": 0.6, "autograd": 0.2}),
    forward_case(4),
    both_case(1_000, compiles=False),
    both_case(100_000),
]
