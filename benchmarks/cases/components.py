"""Component by component: numbers picked from an array and stacked again, and choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.engines import Kit, engines
from benchmarks.harness import Case, Lacking, Step


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


def unrolled(make: Callable[[Kit], Step]) -> dict[str, Callable[[], Step]]:
    """Return the engines of a loop of Python, without the one that needs minutes to build it."""

    def slow() -> Step:
        raise Lacking("its build of the unrolled loop takes more than 150 s")

    return engines(make) | {"jax-jit": slow}


CASES = [
    Case("predator and prey by components, 300 Euler steps", unrolled(euler), {"torch": 1.0}, stateless=True),
    Case(
        "predator and prey by components, 50 Runge-Kutta steps", unrolled(rk4), {"torch": 1.0}, stateless=True
    ),
    Case(
        "chain of 400 ops, 10 elements, ended by where",
        engines(chosen_at_the_end),
        {"torch": 1.0},
        stateless=True,
    ),
]
