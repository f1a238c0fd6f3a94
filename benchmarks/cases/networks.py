"""Forward and backward of small networks and of the functions they are made of, in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.engines import Autograd, Kit, Mlx, Tinygrad, compiled_by_torch
from benchmarks.functional import AutogradFunctional, JaxFunctional, MlxFunctional, TinygradFunctional
from benchmarks.harness import Case, Step, jax_x64

Arrays = dict[str, np.ndarray[Any, Any]]


def lenet_arrays() -> Arrays:
    rng = np.random.default_rng(0)
    shapes = {
        "w1": (6, 1, 5, 5), "b1": (6,), "w2": (16, 6, 5, 5), "b2": (16,),
        "w3": (120, 400), "b3": (120,), "w4": (84, 120), "b4": (84,), "w5": (10, 84), "b5": (10,),
    }  # fmt: skip
    return {k: (0.1 * rng.standard_normal(s)).astype(np.float32) for k, s in shapes.items()}


def lenet(F: Any, p: dict[str, Any], x: Any, t: Any) -> Any:
    """LeNet on 28×28 images: two convolutions with pooling, three layers, cross entropy."""
    h = F.max_pool2d(F.relu(F.conv2d(x, p["w1"], p["b1"], padding=2)), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, p["w2"], p["b2"])), 2).reshape(x.shape[0], 400)
    h = F.relu(F.linear(h, p["w3"], p["b3"]))
    h = F.relu(F.linear(h, p["w4"], p["b4"]))
    return F.cross_entropy(F.linear(h, p["w5"], p["b5"]), t)


def attention_arrays(width: int = 64) -> Arrays:
    rng = np.random.default_rng(0)
    shapes = {
        "qkv": (3 * width, width), "out": (width, width), "n1": (width,), "n2": (width,),
        "up": (4 * width, width), "up_b": (4 * width,), "down": (width, 4 * width), "down_b": (width,),
    }  # fmt: skip
    return {k: (0.1 * rng.standard_normal(s)).astype(np.float32) for k, s in shapes.items()}


def swapped(x: Any) -> Any:
    """Swap heads and positions: tinygrad has PyTorch's transpose, the others have swapaxes."""
    return x.swapaxes(1, 2) if hasattr(x, "swapaxes") else x.transpose(1, 2)


def block(F: Any, p: dict[str, Any], x: Any, t: Any) -> Any:
    """A transformer block with 4 heads: causal attention, then a layer with GELU; mean square error."""
    n, length, width = x.shape
    h = F.layer_norm(x, (width,), p["n1"])
    qkv = F.linear(h, p["qkv"]).reshape(n, length, 3, 4, width // 4)
    q, k, v = (swapped(qkv[:, :, i]) for i in range(3))
    h = swapped(F.scaled_dot_product_attention(q, k, v, is_causal=True)).reshape(n, length, width)
    x = x + F.linear(h, p["out"])
    h = F.gelu(F.linear(F.layer_norm(x, (width,), p["n2"]), p["up"], p["up_b"]), approximate="tanh")
    return F.mse_loss(x + F.linear(h, p["down"], p["down_b"]), t)


def network(
    name: str, f: Any, arrays: Callable[[], Arrays], data: Any, targets: dict[str, float], **compiled: float
) -> Case:
    """All gradients of a network in each engine."""

    def ours() -> Step:
        p = {k: ad.tensor(a, requires_grad=True) for k, a in arrays().items()}
        x, t = map(ad.tensor, data())

        def step() -> Any:
            for v in p.values():
                v.grad = None
            f(ad.nn.functional, p, x, t).backward()
            return [v.grad for v in p.values()]

        return step

    def theirs(compiled: bool = False) -> Step:
        import torch

        p = {k: torch.tensor(a, requires_grad=True) for k, a in arrays().items()}
        x, t = map(torch.tensor, data())

        def loss() -> Any:
            return f(torch.nn.functional, p, x, t)

        if compiled:
            loss = compiled_by_torch(loss)

        def step() -> Any:
            for v in p.values():
                v.grad = None
            loss().backward()
            return [v.grad for v in p.values()]

        return step

    def on_jax(compiled: bool) -> Step:
        jax = jax_x64()
        F = JaxFunctional(jax)
        start = arrays()
        p = [jax.numpy.asarray(a) for a in start.values()]  # a dictionary's gradients would come sorted
        x, t = map(jax.numpy.asarray, data())
        gradient = jax.grad(lambda p, x, t: f(F, dict(zip(start, p, strict=True)), x, t))
        run = jax.jit(gradient) if compiled else gradient
        return lambda: jax.block_until_ready(run(p, x, t))

    def on_kit(kit: Kit, F: Any) -> Step:
        start = arrays()
        x, t = map(kit.array, data())
        return kit.gradient(lambda *p: f(F, dict(zip(start, p, strict=True)), x, t), list(start.values()))

    engines: dict[str, Callable[[], Step]] = {
        "adjoint": ours,
        "torch": theirs,
        "torch-compile": lambda: theirs(compiled=True),
        "jax": lambda: on_jax(compiled=False),
        "jax-jit": lambda: on_jax(compiled=True),
        "autograd": lambda: on_kit(kit := Autograd(), AutogradFunctional(kit.xp)),
        "mlx": lambda: on_kit(kit := Mlx(), MlxFunctional(kit.xp)),
        "tinygrad": lambda: on_kit(Tinygrad(), TinygradFunctional()),
    }
    beside = {peer.replace("_", "-"): target for peer, target in compiled.items()}
    return Case(name, engines, targets, beside, blas=True, tolerance=1e-3, compared=2)


def images() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((32, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 32)


def sequences() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    x, t = rng.standard_normal((2, 8, 32, 64)).astype(np.float32)
    return x, t


CASES = [
    network(
        "LeNet, batch 32, forward + backward",
        lenet,
        lenet_arrays,
        images,
        {"torch": 1.2, "jax-jit": 2.0},
        jax_jit=0.5,
        torch=0.9,
    ),
    network(
        "transformer block, 8×32×64, forward + backward",
        block,
        attention_arrays,
        sequences,
        {"torch": 0.8, "jax-jit": 2.0},
        jax_jit=0.5,
        torch=0.5,
    ),
]
