"""Bayesian regression by Hamiltonian Monte Carlo: draws from the posterior, by its gradient.

The posterior of a linear model with known noise is normal, so the answer is known and compared.

    python examples/hamiltonian.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save

import adjoint as ad

NOISE = 0.5


def main(draws: int = 600) -> float:
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(40), rng.normal(size=40)])
    y = x @ [1.0, -2.0] + NOISE * rng.normal(size=40)

    def energy(w: Any) -> Any:
        """Minus the log of the posterior: normal noise, and a normal prior of width 10."""
        return ((y - x @ w) ** 2).sum() / (2 * NOISE**2) + (w**2).sum() / 200

    force = ad.value_and_grad(energy)

    def leapfrog(w: Any, p: Any, size: float, steps: int) -> tuple[Any, Any]:
        _, g = force(w)
        for _ in range(steps):
            p = p - 0.5 * size * g
            w = w + size * p
            _, g = force(w)
            p = p - 0.5 * size * g
        return w, p

    def total(w: Any, p: Any) -> float:
        return energy(ad.tensor(w)).item() + 0.5 * float(p @ p)

    w, kept, accepted = np.zeros(2), [], 0
    for _ in range(draws):
        p = rng.normal(size=2)
        new_w, new_p = leapfrog(w, p, 0.05, int(rng.integers(8, 22)))  # equal lengths may resonate
        if np.log(rng.random()) < total(w, p) - total(new_w, new_p):
            w, accepted = new_w, accepted + 1
        kept.append(w)
    found = np.array(kept[draws // 6 :])
    precision = x.T @ x / NOISE**2 + np.eye(2) / 100
    mean = np.linalg.solve(precision, x.T @ y / NOISE**2)
    spread = np.sqrt(np.diag(np.linalg.inv(precision)))
    error = float(np.abs((found.mean(0) - mean) / spread).max())
    print(f"accepted {accepted / draws:.0%} of {draws} draws")
    for name, m, s, exact, width in zip(
        ("offset", "slope"), found.mean(0), found.std(0), mean, spread, strict=True
    ):
        print(f"{name:7} {m:7.3f} ± {s:.3f}   exact {exact:7.3f} ± {width:.3f}")

    figure, (left, right) = panels(2, width=8.4, height=3.3)
    for i, name in enumerate(("offset", "slope")):
        left.plot(found[:, i], lw=0.7, label=name)
    left.set(xlabel="draw", ylabel="weight", ylim=(-3, 2.2))
    left.legend(frameon=False, ncols=2)
    turn = np.linspace(0, 2 * np.pi, 100)
    circle = np.linalg.cholesky(np.linalg.inv(precision)) @ [np.cos(turn), np.sin(turn)]
    right.plot(*found.T, ".", color="C2", markersize=3, alpha=0.6, label="draws")
    for radius in (1, 2):
        right.plot(
            *(mean[:, None] + radius * circle),
            color="k",
            lw=1,
            label="exact: 1 and 2 sigma" if radius == 1 else None,
        )
    right.set(xlabel="offset", ylabel="slope", ylim=(-2.45, -1.55))
    right.legend(frameon=False, loc="upper right", markerscale=2.5)
    print(save(figure, "hamiltonian.png"))
    return error


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
