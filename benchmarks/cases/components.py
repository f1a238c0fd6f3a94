"""Component by component: numbers picked from an array and stacked again, choices, events."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from adjoint.nn import functional
from benchmarks.engines import Kit, engines
from benchmarks.harness import Case, Step

PEERS = "adjoint torch autograd"


def field(xp: Any, z: Any) -> Any:
    """Return the velocity of predators and their prey."""
    x, y = z[0], z[1]
    return xp.stack([1.5 * x - x * y, -3 * y + x * y])


def euler(kit: Kit, steps: int = 300, h: float = 0.01) -> Step:
    def end(z: Any) -> Any:
        for _ in range(steps):
            z = z + h * field(kit.xp, z)
        return z.sum()

    return kit.gradient(end, [np.array([1.0, 0.5])])


def rk4(kit: Kit, steps: int = 50, h: float = 0.01) -> Step:
    def end(z: Any) -> Any:
        for _ in range(steps):
            k1 = field(kit.xp, z)
            k2 = field(kit.xp, z + h / 2 * k1)
            k3 = field(kit.xp, z + h / 2 * k2)
            k4 = field(kit.xp, z + h * k3)
            z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return z.sum()

    return kit.gradient(end, [np.array([1.0, 0.5])])


def chosen_at_the_end(kit: Kit, size: int = 10) -> Step:
    chosen = kit.array(np.arange(size) > size // 3)
    zeros = kit.array(np.zeros(size))

    def end(x: Any, a: Any, b: Any) -> Any:
        z = x
        for _ in range(200):
            z = z * a + b
        return kit.xp.where(chosen, z, zeros).sum()

    return kit.gradient(end, [np.linspace(0.1, 1, size), np.full(size, 0.99), np.full(size, 0.01)])


def small_net(events: bool) -> Step:
    sizes = (64, 128, 128, 10)
    rng = np.random.default_rng(0)
    layers: list[Any] = []
    for n, m in itertools.pairwise(sizes):
        layers += [ad.nn.Linear(n, m), ad.nn.Tanh()]
    model = ad.nn.Sequential(*layers[:-1])
    with ad.no_grad():
        for p in model.parameters():
            p.copy_(0.1 * rng.standard_normal(p.shape))
    x = ad.tensor(rng.standard_normal((32, 64)).astype(np.float32))
    loss = functional.mse_loss(model(x), ad.zeros((32, 10), dtype=np.float32))
    ready: Callable[[Any, Any], None] = lambda leaf, g: None
    options: dict[str, Any] = {"on_leaf_ready": ready} if events else {}

    def step() -> Any:
        for p in model.parameters():
            p.grad = None
        loss.backward(retain_graph=True, **options)
        return loss.item()

    return step


CASES = [
    Case("predator and prey by components, 300 Euler steps", engines(euler, PEERS), {"torch": 1.0}),
    Case("predator and prey by components, 50 Runge-Kutta steps", engines(rk4, PEERS), {"torch": 1.0}),
    Case("chain of 400 ops, 10 elements, ended by where", engines(chosen_at_the_end, PEERS), {"torch": 1.0}),
    Case(
        "MLP 32×64-128-128-10: backward with events beside none",
        {"adjoint": lambda: small_net(True), "adjoint, no events": lambda: small_net(False)},
        {"adjoint, no events": 1.1},
        blas=True,
    ),
]
