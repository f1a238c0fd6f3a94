"""Programs with sparse derivatives, each written once on a namespace: adjoint's, JAX's or CasADi's.

The namespace has ``exp``, ``sin``, ``cos``, ``log``, ``concat``, ``rows`` (a matrix from a vector, by rows),
``flat`` (its inverse) and ``stack`` (a matrix from columns); CasADi's has no arrays with more than two axes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["PROGRAMS", "Program"]


@dataclass(frozen=True)
class Program:
    """A function of a vector, and where it is evaluated; "hessian" is that of a function with one number."""

    name: str
    kind: str
    function: Callable[[Any, Any], Any]
    start: np.ndarray[Any, Any]


def bundle(cameras: int = 20, points: int = 2000, seen: int = 6) -> Program:
    """Bundle adjustment: each point is projected by some cameras with 9 parameters."""
    rng = np.random.default_rng(0)
    camera = np.concatenate([rng.permutation(cameras)[:seen] for _ in range(points)])
    point = np.repeat(np.arange(points), seen)
    start = rng.normal(0, 0.1, 9 * cameras + 3 * points)
    start[9 * cameras + 2 :: 3] -= 5.0

    def residual(xp: Any, x: Any) -> Any:
        c = [x[9 * camera + k] for k in range(9)]
        p = [x[9 * cameras + 3 * point + k] for k in range(3)]
        angle = xp.sqrt(c[0] * c[0] + c[1] * c[1] + c[2] * c[2] + 1e-12)
        a = [c[k] / angle for k in range(3)]
        dot = (a[0] * p[0] + a[1] * p[1] + a[2] * p[2]) * (1 - xp.cos(angle))
        turned = [
            p[k] * xp.cos(angle)
            + (a[(k + 1) % 3] * p[(k + 2) % 3] - a[(k + 2) % 3] * p[(k + 1) % 3]) * xp.sin(angle)
            + a[k] * dot
            + c[3 + k]
            for k in range(3)
        ]
        u, v = -turned[0] / turned[2], -turned[1] / turned[2]
        r = u * u + v * v
        scale = (1 + c[6]) * (1 + r * (c[7] + r * c[8]))
        return xp.concat([scale * u, scale * v])

    return Program("bundle adjustment, 12 000 observations", "jacobian", residual, start)


def pde(n: int = 316) -> Program:
    """The residual of -Δu + exp(u) u = 1 on a square."""

    def residual(xp: Any, x: Any) -> Any:
        u = xp.rows(x, n, n)
        wide = xp.border(u)
        total = wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2]
        return xp.flat((4 * u - total) * float(n) + xp.exp(u) * u - 1)

    return Program(f"2-D PDE residual, {n * n} unknowns", "jacobian", residual, np.linspace(0, 1, n * n))


def _drone(xp: Any, z: Any) -> list[Any]:
    """The time derivatives of the states of a drone: position, angles, velocity and rates."""
    s = [z[:, k] for k in range(16)]
    cr, sr, cp, sp = xp.cos(s[3]), xp.sin(s[3]), xp.cos(s[4]), xp.sin(s[4])
    cy, sy, thrust = xp.cos(s[5]), xp.sin(s[5]), s[12] + s[13] + s[14] + s[15]
    return [
        s[6], s[7], s[8],
        s[9] + (s[10] * sr + s[11] * cr) * sp / cp, s[10] * cr - s[11] * sr, (s[10] * sr + s[11] * cr) / cp,
        thrust * (cr * sp * cy + sr * sy), thrust * (cr * sp * sy - sr * cy), thrust * cr * cp - 9.8,
        s[10] * s[11] * 0.3 + s[13] - s[15], s[9] * s[11] * -0.2 + s[14] - s[12],
        0.1 * (s[12] - s[13] + s[14] - s[15]),
    ]  # fmt: skip


def _defects(xp: Any, x: Any, steps: int) -> Any:
    z = xp.rows(x, steps + 1, 16)
    rates = xp.stack(_drone(xp, z))
    return z[1:, :12] - z[:-1, :12] - 0.025 * (rates[1:, :] + rates[:-1, :])


def collocation(steps: int = 200) -> Program:
    """The defects of a trajectory of 12 states and 4 controls, by the trapezoidal rule."""
    start = np.random.default_rng(1).normal(0, 0.3, 16 * (steps + 1))
    return Program(
        f"collocation defects, {steps} steps",
        "jacobian",
        lambda xp, x: xp.flat(_defects(xp, x, steps)),
        start,
    )


def lagrangian(steps: int = 200) -> Program:
    """The Lagrangian of the trajectory: its effort, and the defects times multipliers."""
    rng = np.random.default_rng(1)
    start, multipliers = rng.normal(0, 0.3, 16 * (steps + 1)), rng.normal(size=(steps, 12))

    def value(xp: Any, x: Any) -> Any:
        z = xp.rows(x, steps + 1, 16)
        return xp.total(z[:, 12:] * z[:, 12:]) + xp.total(_defects(xp, x, steps) * multipliers)

    return Program(f"Lagrangian of the trajectory, {steps} steps", "hessian", value, start)


def rosenbrock(n: int = 100_000) -> Program:
    """The chained Rosenbrock function."""

    def value(xp: Any, x: Any) -> Any:
        a, b = x[1:] - x[:-1] * x[:-1], 1 - x[:-1]
        return xp.total(100 * a * a + b * b)

    return Program(f"chained Rosenbrock, n = {n}", "hessian", value, np.linspace(-1, 1, n))


def mixture(count: int = 500, parts: int = 8, dims: int = 3) -> Program:
    """The likelihood of a Gaussian mixture with diagonal covariances: its Hessian is dense."""
    data = np.random.default_rng(2).normal(size=(count, dims))
    start = np.random.default_rng(3).normal(0, 0.5, parts * (1 + 2 * dims))

    def value(xp: Any, x: Any) -> Any:
        total = 0
        for k in range(parts):
            w = x[k * (1 + 2 * dims) : (k + 1) * (1 + 2 * dims)]
            power = w[0]
            for d in range(dims):
                scaled = (data[:, d] - w[1 + d]) * xp.exp(w[1 + dims + d])
                power = power - 0.5 * scaled * scaled + w[1 + dims + d]
            total = total + xp.exp(power)
        return xp.total(xp.log(total))

    return Program(f"Gaussian mixture, {len(start)} parameters", "hessian", value, start)


def power_flow(buses: int = 300) -> Program:
    """The power balance at the buses of a grid with random lines."""
    rng = np.random.default_rng(4)
    tree = [(k, int(rng.integers(max(0, k - 8), k))) for k in range(1, buses)]
    more = [tuple(sorted(rng.integers(0, buses, 2))) for _ in range(110)]
    lines = np.array(tree + [(b, a) for a, b in more if a != b])
    one, two = np.concatenate([lines[:, 0], lines[:, 1]]), np.concatenate([lines[:, 1], lines[:, 0]])
    g, b = rng.uniform(0.5, 2, len(lines)), rng.uniform(5, 20, len(lines))
    g, b = np.concatenate([g, g]), np.concatenate([b, b])
    start = np.concatenate([rng.normal(0, 0.05, buses), rng.uniform(0.95, 1.05, buses)])

    def residual(xp: Any, x: Any) -> Any:
        angle = x[one] - x[two]
        v, w = x[buses + one], x[buses + two]
        active = v * v * g - v * w * (g * xp.cos(angle) + b * xp.sin(angle))
        reactive = v * v * b - v * w * (g * xp.sin(angle) - b * xp.cos(angle))
        return xp.concat([xp.sums(active, one, buses), xp.sums(reactive, one, buses)])

    return Program(f"AC power flow, {buses} buses", "jacobian", residual, start)


PROGRAMS: dict[str, Callable[..., Program]] = {
    "bundle": bundle, "pde": pde, "collocation": collocation, "lagrangian": lagrangian,
    "rosenbrock": rosenbrock, "mixture": mixture, "power_flow": power_flow,
}  # fmt: skip
