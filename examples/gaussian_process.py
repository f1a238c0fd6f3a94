"""Gaussian process: a smooth curve with error bands, whose length scale and noise are learned.

The marginal likelihood is written with a Cholesky factor; its gradient is exact, so that a quasi-Newton
method finds the three hyperparameters in a few steps.

    python examples/gaussian_process.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save

import adjoint as ad

START = {"scale": 0.0, "length": 0.0, "noise": -1.0}  # logarithms: the values themselves are positive


def signal(x: Any) -> Any:
    return np.sin(x) + 0.5 * np.sin(2.5 * x)


def kernel(p: Any, a: Any, b: Any) -> Any:
    """Return the covariances of the points ``a`` and ``b``."""
    distance = (a[:, None] - b[None, :]) / ad.exp(p["length"])
    return ad.exp(2 * p["scale"] - 0.5 * distance**2)


def factor(p: Any, x: Any) -> Any:
    """Return the Cholesky factor of the covariance of the measurements."""
    return ad.linalg.cholesky(kernel(p, x, x) + ad.exp(2 * p["noise"]) * np.eye(len(x)))


def main(count: int = 40) -> float:
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.uniform(0, 4.6, count // 2), rng.uniform(6.4, 10, count - count // 2)])
    y = signal(x) + 0.2 * rng.normal(size=count)

    def loss(p: Any) -> Any:
        """Return minus the log marginal likelihood."""
        root = factor(p, x)
        whitened = ad.linalg.solve_triangular(root, y, lower=True)
        return 0.5 * (whitened**2).sum() + ad.log(ad.diagonal(root)).sum() + 0.5 * count * np.log(2 * np.pi)

    found = ad.interop.scipy.minimize(loss, START, method="L-BFGS-B")
    for name, value in found.x.items():
        print(f"{name:7} {np.exp(value):.3f}")
    print(f"log marginal likelihood {-found.fun:.2f} after {found.nit} iterations")

    grid = np.linspace(-0.5, 10.5, 300)
    root = factor(found.x, x)
    cross = ad.linalg.solve_triangular(root, kernel(found.x, x, grid), lower=True)
    mean = (cross.T @ ad.linalg.solve_triangular(root, y, lower=True)).numpy()
    spread = 1.96 * np.sqrt(np.exp(2 * found.x["scale"]) - (cross**2).sum(0).numpy())
    figure, axes = panels()
    axes.plot(x, y, "o", color="0.35", markersize=4, label="measurements")
    axes.plot(grid, signal(grid), "--", color="0.6", label="true function")
    axes.plot(grid, mean, color="C2", label="mean")
    axes.fill_between(grid, mean - spread, mean + spread, color="C2", alpha=0.2, lw=0, label="95 % band")
    axes.set(xlabel="x", ylabel="f(x)", ylim=(-2.6, 3.4))
    axes.legend(frameon=False, ncols=2)
    print(save(figure, "gaussian_process.png"))
    return float(np.exp(found.x["noise"]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
