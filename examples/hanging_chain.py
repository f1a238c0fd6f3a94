"""Implicit differentiation: choose the masses on an elastic chain so that it hangs in a given shape.

The shape is the solution of an equation: all forces are zero.  ``ad.root`` solves it by Newton's method and
gives the derivative of the solution in the masses by the implicit function theorem, whatever the number of
steps was.

    python examples/hanging_chain.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save

import adjoint as ad

STIFFNESS, GRAVITY, SPAN = 400.0, 9.81, 2.0  # N/m, m/s², m


def forces(inner: Any, masses: Any) -> Any:
    """Return the force on each inner joint: two springs and its weight."""
    ends = np.array([[0.0, 0.0]]), np.array([[SPAN, 0.0]])
    joints = ad.concatenate([ends[0], inner, ends[1]])
    rest = 1.1 * SPAN / (len(masses) + 1)  # the chain is a tenth longer than the span
    edges = ad.diff(joints, axis=0)
    lengths = ad.sqrt((edges**2).sum(1, keepdims=True))
    tension = STIFFNESS * (lengths - rest) * edges / lengths
    weight = ad.stack([ad.zeros_like(masses), -GRAVITY * masses], axis=1)
    return ad.diff(tension, axis=0) + weight


def wanted(x: Any) -> Any:
    """Return the height that the chain should have at ``x``."""
    return 0.4 * ((2 * x / SPAN - 1) ** 4 - 1)


def main(count: int = 11) -> float:
    x = np.linspace(0, SPAN, count + 2)[1:-1]
    start = np.stack([x, -0.5 * np.sin(np.pi * x / SPAN)], 1)

    def shape(masses: Any) -> Any:
        return ad.root(forces, start, masses)

    def loss(logarithms: Any) -> Any:
        """Return the squared miss of the heights; masses are positive, so their logarithms are found."""
        x, y = shape(ad.exp(logarithms)).T
        return 1000 * ((y - wanted(x)) ** 2).sum()

    before = np.full(count, 0.1)
    found = ad.interop.scipy.minimize(loss, np.log(before), method="L-BFGS-B")
    masses = np.exp(found.x_flat)
    x, y = shape(masses).numpy().T
    miss = float(np.abs(y - wanted(x)).max())
    print(f"largest distance from the wanted height: {1000 * miss:.2f} mm after {found.nit} iterations")
    print("masses (kg):", np.round(masses, 2))

    figure, axes = panels(height=2.8)
    for name, m, colour in (("equal masses", before, "0.65"), ("fitted masses", masses, "C1")):
        points = np.concatenate([[[0, 0]], shape(m).numpy(), [[SPAN, 0]]])
        axes.plot(*points.T, color=colour, lw=1.2, zorder=1)
        axes.scatter(*points[1:-1].T, s=900 * m, color=colour, label=name, zorder=2)
    grid = np.linspace(0, SPAN, 200)
    axes.plot(grid, wanted(grid), "--", color="k", lw=1, label="wanted shape", zorder=3)
    axes.set(xlabel="x (m)", ylabel="height (m)", title="the area of a dot is its mass", aspect="equal")
    axes.legend(frameon=False, loc="upper center", markerscale=0.7)
    print(save(figure, "hanging_chain.png"))
    return miss


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
