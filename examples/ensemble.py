"""An ensemble by ``vmap``: train a thousand networks at once, and see where they disagree.

The update is written for one network.  ``ad.vmap`` makes it that of all networks, each with its own initial
weights, bootstrap sample and learning rate, and ``ad.scan`` repeats it.  The whole training is one call of
native code.  The spread of the networks is large in the gap between the data.

    python examples/ensemble.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save

import adjoint as ad

MEMBERS, WIDTH = 1000, 16


def network(p: Any, x: Any) -> Any:
    """Return the outputs of one network for a vector of inputs."""
    hidden = ad.tanh(x[:, None] * p["w1"] + p["b1"])
    return ad.tanh(hidden @ p["w2"] + p["b2"]) @ p["w3"]


def initial(rng: Any) -> Any:
    """Return the weights of all networks, along the first axis."""
    found = {
        "w1": 2 * rng.normal(size=(MEMBERS, WIDTH)),
        "b1": 2 * rng.normal(size=(MEMBERS, WIDTH)),
        "w2": rng.normal(size=(MEMBERS, WIDTH, WIDTH)) / np.sqrt(WIDTH),
        "b2": np.zeros((MEMBERS, WIDTH)),
        "w3": rng.normal(size=(MEMBERS, WIDTH)) / np.sqrt(WIDTH),
    }
    return {name: value.astype(np.float32) for name, value in found.items()}


def main(steps: int = 300) -> float:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-2, -0.6, 30), rng.uniform(0.7, 2, 30)])
    x, y = (a.astype(np.float32) for a in (x, np.sin(3 * x) + 0.1 * rng.normal(size=60)))
    rates = np.geomspace(0.01, 0.04, MEMBERS).astype(np.float32)
    sample = rng.integers(0, 60, (MEMBERS, 60))  # drawn with replacement, for each network

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((network(p, x) - y) ** 2).mean()

    adam = ad.optim.Pure(ad.optim.Adam, betas=(0.9, 0.99))

    def update(p: Any, state: Any, rate: Any, x: Any, y: Any) -> Any:
        value, g = ad.value_and_grad(loss)(p, x, y)
        p, state = adam.update(p, g, state, lr=rate)
        return p, state, value

    @ad.compile
    def train(p: Any, state: Any, rates: Any, x: Any, y: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            *carry, losses = ad.vmap(update)(*carry, rates, x, y)
            return tuple(carry), losses

        (p, _), losses = ad.scan(step, (p, state), None, length=steps)
        return p, losses[-1]

    p = initial(rng)
    p, losses = train(p, ad.vmap(adam.init)(p), rates, x[sample], y[sample])
    print(f"{MEMBERS} networks: losses from {losses.min():.4f} to {losses.max():.4f} after {steps} steps")

    grid = np.linspace(-2.6, 2.6, 200, dtype=np.float32)
    curves = ad.vmap(network, in_axes=(0, None))(p, grid)
    mean, spread = curves.mean(0), curves.std(0)
    ratio = float(
        spread[np.abs(grid) < 0.4].mean() / spread[(np.abs(grid) > 0.8) & (np.abs(grid) < 1.9)].mean()
    )
    print(f"the spread between the data is {ratio:.1f} times the spread at the data")
    figure, axes = panels()
    axes.plot(grid, curves[::25].T, color="C4", lw=0.5, alpha=0.35)
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
