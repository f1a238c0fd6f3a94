"""Trajectory optimisation by collocation: a cart swings up a pole with the least effort.

All states and forces are unknowns, and the equations of motion are constraints between neighbouring times.
Newton's method on the Lagrangian solves one sparse system per step (the KKT system), with the Hessian of the
Lagrangian and the Jacobian of the constraints, both from ``sparse=True``.

    python examples/swing_up.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save
from scipy.sparse import block_array, eye_array
from scipy.sparse.linalg import spsolve

import adjoint as ad

CART, POLE, LENGTH, GRAVITY, DURATION, DISTANCE = 1.0, 0.3, 0.5, 9.81, 2.0, 1.0


def rates(z: Any) -> Any:
    """Return the derivatives of position, angle and their speeds; the last column of ``z`` is the force."""
    angle, v, w, force = z[:, 1], z[:, 2], z[:, 3], z[:, 4]
    s, c = ad.sin(angle), ad.cos(angle)
    mass = CART + POLE * s * s
    a = (LENGTH * POLE * s * w * w + force + POLE * GRAVITY * c * s) / mass
    b = -(LENGTH * POLE * c * s * w * w + force * c + (CART + POLE) * GRAVITY * s) / (LENGTH * mass)
    return ad.stack([v, w, a, b], axis=1)


def main(count: int = 60) -> float:
    h = DURATION / count
    first, last = np.zeros(4), np.array([DISTANCE, np.pi, 0.0, 0.0])

    def effort(x: Any) -> Any:
        return h * (x.reshape(-1, 5)[:, 4] ** 2).sum()

    def defects(x: Any) -> Any:
        z = x.reshape(-1, 5)
        f = rates(z)
        steps = z[1:, :4] - z[:-1, :4] - h / 2 * (f[1:] + f[:-1])
        return ad.concat([steps.reshape(-1), z[0, :4] - first, z[-1, :4] - last])

    def lagrangian(x: Any, y: Any) -> Any:
        return effort(x) + (y * defects(x)).sum()

    jacobian = ad.compile(ad.jacobian(defects, sparse=True))
    hessian = ad.compile(ad.hessian(lagrangian, sparse=True))
    slope, off = ad.compile(ad.grad(lagrangian)), ad.compile(defects)

    x = np.zeros((count + 1, 5))
    x[:, :4] = first + np.linspace(0, 1, count + 1)[:, None] * (last - first)
    x = x.reshape(-1)
    y = np.zeros(4 * count + 8)
    worst, steps = np.inf, 0
    while worst > 1e-9 and steps < 100:
        steps += 1
        a = jacobian(x)
        convex = 10.0 if worst > 1 else 0.3 if worst > 1e-2 else 0.0  # keeps the first steps short
        kkt = block_array([[hessian(x, y) + convex * eye_array(x.size), a.T], [a, None]], format="csc")
        step = spsolve(kkt, -np.concatenate([slope(x, y), off(x)]))
        length = min(1.0, 2.0 / np.abs(step[: x.size]).max())
        x, y = x + length * step[: x.size], y + length * step[x.size :]
        worst = max(np.abs(off(x)).max(), np.abs(slope(x, y)).max())
    print(f"{x.size} unknowns, {y.size} constraints: {steps} steps, largest error {worst:.1e}")
    print(
        f"effort {effort(ad.tensor(x)).item():.2f} N² s; KKT matrix with {kkt.nnz} of {kkt.shape[0] ** 2} elements"
    )

    z = x.reshape(-1, 5)
    figure, (left, right) = panels(2, height=2.8)
    for k in np.linspace(0, count, 15).astype(int):
        tip = z[k, 0] + LENGTH * np.sin(z[k, 1]), -LENGTH * np.cos(z[k, 1])
        left.plot([z[k, 0], tip[0]], [0, tip[1]], "o-", color=f"{0.85 * (1 - k / count):.2f}", ms=4)
    left.set(xlabel="x (m)", ylabel="height (m)", title="from light to dark", aspect="equal")
    right.spy(kkt, markersize=0.4, color="C0")
    right.set(title="KKT matrix", xticks=[], yticks=[])
    print(save(figure, "swing_up.png"))
    return float(worst)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
