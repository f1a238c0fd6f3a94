"""Logistic regression: the risk of damage to a rocket's seals, with confidence bands from the Hessian.

Newton's method needs the gradient and the Hessian of the likelihood.  The inverse of the Hessian is the
covariance of the estimate.  The data are the 23 flights of the space shuttle before the accident of January
1986 whose boosters were recovered (report of the Presidential Commission, 1986).  The last launch took
place at 31 °F.

    python examples/logistic.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save

import adjoint as ad
from adjoint.nn.functional import sigmoid, softplus

TEMPERATURE = [66, 70, 69, 68, 67, 72, 73, 70, 57, 63, 70, 78, 67, 53, 67, 75, 70, 81, 76, 79, 75, 76, 58]
DAMAGE = [0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1]


def design(temperature: Any) -> Any:
    """Return the columns of the regression: a constant, and degrees above 70 °F."""
    temperature = np.asarray(temperature, float)
    return np.stack([np.ones_like(temperature), temperature - 70], axis=-1)


def main(steps: int = 8) -> float:
    x, y = design(TEMPERATURE), np.array(DAMAGE, float)

    def loss(w: Any) -> Any:
        """Return minus the log likelihood."""
        logits = x @ w
        return (softplus(logits) - y * logits).sum()

    w = np.zeros(2)
    for step in range(steps):
        value, gradient = ad.value_and_grad(loss)(w)
        w = w - np.linalg.solve(ad.hessian(loss)(w), gradient)
        print(f"step {step + 1}: loss {value:.6f}, gradient {np.abs(gradient).max():.1e}")
    covariance = np.linalg.inv(ad.hessian(loss)(w))
    print(f"change of the log odds per °F: {w[1]:.3f} ± {np.sqrt(covariance[1, 1]):.3f}")

    grid = np.linspace(30, 85, 200)
    columns = design(grid)
    logits = columns @ w
    spread = 1.96 * np.sqrt(np.einsum("ni,ij,nj->n", columns, covariance, columns))
    low, middle, high = (sigmoid(ad.tensor(z)).numpy() for z in (logits - spread, logits, logits + spread))
    figure, axes = panels()
    shift = 0.02 * np.random.default_rng(0).normal(size=len(y))  # so that equal flights do not overlap
    axes.plot(TEMPERATURE, y + shift, "o", color="0.35", markersize=4, label="flights: 1 = seals damaged")
    axes.plot(grid, middle, color="C3", label="probability of damage")
    axes.fill_between(grid, low, high, color="C3", alpha=0.2, lw=0, label="95 % band")
    axes.plot([31, 31], [0, 1], "--", color="0.6", lw=1)
    axes.annotate("launch of 1986", (31.5, 0.04), color="0.4")
    axes.set(xlabel="temperature at launch (°F)", ylabel="probability", yticks=[0, 0.5, 1], ylim=(-0.08, 1.3))
    axes.legend(frameon=False, ncols=3, loc="upper center")
    print(save(figure, "logistic.png"))
    return float(w[1])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
