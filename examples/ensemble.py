"""An ensemble by ``vmap``: train many networks at once, and see where they disagree.

The loss is written for one network.  ``ad.vmap`` of its gradient trains all of them, each with its own
initial weights and its own bootstrap sample; their spread is large in the gap between the data.

    python examples/ensemble.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save

import adjoint as ad

MEMBERS, WIDTH, RATE = 24, 24, 0.02


def network(p: Any, x: Any) -> Any:
    """Return the outputs of one network for a vector of inputs."""
    hidden = ad.tanh(x[:, None] * p["w1"] + p["b1"])
    return ad.tanh(hidden @ p["w2"] + p["b2"]) @ p["w3"]


def initial(rng: Any) -> Any:
    """Return the weights of all networks, along the first axis."""
    return {
        "w1": 2 * rng.normal(size=(MEMBERS, WIDTH)),
        "b1": 2 * rng.normal(size=(MEMBERS, WIDTH)),
        "w2": rng.normal(size=(MEMBERS, WIDTH, WIDTH)) / np.sqrt(WIDTH),
        "b2": np.zeros((MEMBERS, WIDTH)),
        "w3": rng.normal(size=(MEMBERS, WIDTH)) / np.sqrt(WIDTH),
    }


def main(steps: int = 600) -> float:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-2, -0.6, 30), rng.uniform(0.7, 2, 30)])
    y = np.sin(3 * x) + 0.1 * rng.normal(size=60)
    sample = rng.integers(0, 60, (MEMBERS, 60))  # drawn with replacement, for each network

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((network(p, x) - y) ** 2).mean()

    gradient = ad.compile(ad.vmap(ad.value_and_grad(loss)))
    p = initial(rng)
    first = {name: np.zeros_like(value) for name, value in p.items()}
    second = {name: np.zeros_like(value) for name, value in p.items()}
    for step in range(1, steps + 1):  # Adam, for all networks together
        losses, g = gradient(p, x[sample], y[sample])
        for name, value in g.items():
            first[name] = 0.9 * first[name] + 0.1 * value
            second[name] = 0.99 * second[name] + 0.01 * value**2
            size = RATE / (np.sqrt(second[name] / (1 - 0.99**step)) + 1e-8)
            p[name] = p[name] - size * first[name] / (1 - 0.9**step)
    print(f"{MEMBERS} networks: losses from {losses.min():.4f} to {losses.max():.4f} after {steps} steps")

    grid = np.linspace(-2.6, 2.6, 200)
    curves = ad.vmap(network, in_axes=(0, None))(p, grid)
    mean, spread = curves.mean(0), curves.std(0)
    ratio = float(
        spread[np.abs(grid) < 0.4].mean() / spread[(np.abs(grid) > 0.8) & (np.abs(grid) < 1.9)].mean()
    )
    print(f"the spread between the data is {ratio:.1f} times the spread at the data")
    figure, axes = panels()
    axes.plot(grid, curves.T, color="C4", lw=0.5, alpha=0.35)
    axes.fill_between(
        grid, mean - 2 * spread, mean + 2 * spread, color="C4", alpha=0.15, lw=0, label="±2 spreads"
    )
    axes.plot(grid, mean, color="C4", lw=2, label=f"mean of {MEMBERS} networks")
    axes.plot(grid, np.sin(3 * grid), "--", color="0.5", label="true function")
    axes.plot(x, y, "o", color="0.3", markersize=4, label="data")
    axes.set(xlabel="x", ylabel="y", ylim=(-3, 4))
    axes.legend(frameon=False, ncols=2, loc="upper center")
    print(save(figure, "ensemble.png"))
    return ratio


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
