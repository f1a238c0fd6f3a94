"""Least squares: fit a damped oscillation to measurements, with standard errors.

SciPy's solver gets the exact Jacobian of the residuals.  The same Jacobian gives the standard errors of
the parameters and the 95 % band of the curve.

    python examples/least_squares.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save

import adjoint as ad

NAMES = ("amplitude", "damping", "frequency", "phase")
TRUE = np.array([2.0, 0.35, 0.8, 0.5])
NOISE = 0.2


def curve(p: Any, t: Any) -> Any:
    """Return the displacement at the times ``t``."""
    amplitude, damping, frequency, phase = p
    return amplitude * ad.exp(-damping * t) * ad.cos(2 * np.pi * frequency * t + phase)


def main(count: int = 60) -> float:
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, 6, count))
    y = curve(TRUE, t).numpy() + NOISE * rng.normal(size=count)

    def residuals(p: Any) -> Any:
        return (curve(p, t) - y) / NOISE

    start = np.array([1.0, 0.1, 0.75, 0.0])
    found = ad.interop.scipy.least_squares(residuals, start)
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    errors = np.sqrt(np.diag(covariance))
    for name, value, error, true in zip(NAMES, found.x, errors, TRUE, strict=True):
        print(f"{name:10} {value:6.3f} ± {error:.3f}   true {true}")

    grid = np.linspace(0, 6, 300)
    best = curve(found.x, grid).numpy()
    slopes = ad.jacobian(curve)(found.x, grid)  # the derivative of each point in each parameter
    band = 1.96 * np.sqrt(np.einsum("ni,ij,nj->n", slopes, covariance, slopes))
    figure, axes = panels()
    axes.plot(t, y, "o", color="0.35", markersize=4, label="measurements")
    axes.plot(grid, curve(TRUE, grid).numpy(), "--", color="0.6", label="true curve")
    axes.plot(grid, best, color="C0", label="fit")
    axes.fill_between(grid, best - band, best + band, color="C0", alpha=0.25, lw=0, label="95 % band")
    axes.set(xlabel="time (s)", ylabel="displacement (cm)")
    axes.legend(frameon=False, ncols=2)
    print(save(figure, "least_squares.png"))
    return float(np.abs((found.x - TRUE) / errors).max())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
