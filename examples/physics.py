"""A physics-informed network: solve u″ + u = 0, u(0) = 0, u′(0) = 1 with the equation as the loss.

The second derivative of the network is part of what is trained, so training needs the third.

    python examples/physics.py
"""

from __future__ import annotations

import sys

import numpy as np
from pictures import panels, save

import adjoint as ad
from adjoint import nn, optim


def main(iterations: int = 400) -> float:
    model = nn.Sequential(
        nn.Linear(1, 16, rng=0), nn.Tanh(), nn.Linear(16, 16, rng=1), nn.Tanh(), nn.Linear(16, 1, rng=2)
    ).astype(np.float64)
    optimizer = optim.LBFGS(model.parameters(), max_iter=iterations, history=30)
    grid = np.linspace(0, 2 * np.pi, 64)[:, None]
    t = ad.tensor(grid, requires_grad=True)
    losses = []

    def solution(t: ad.Tensor) -> ad.Tensor:
        return t + t * t * model(t / 3.0 - 1.0)  # meets both conditions at 0, whatever the network says

    def equation() -> ad.Tensor:
        u = solution(t)
        (du,) = ad.gradients(u.sum(), [t], create_graph=True)
        (d2u,) = ad.gradients(du.sum(), [t], create_graph=True)
        loss = ((d2u + u) ** 2).mean()
        loss.backward(inputs=model.parameters())
        losses.append(loss.item())
        return loss

    optimizer.step(equation)
    with ad.no_grad():
        found = solution(ad.tensor(grid)).numpy()
    error = float(np.abs(found - np.sin(grid)).max())
    print(
        f"largest error against sin t: {error:.1e} after {optimizer.iterations} iterations (loss {losses[0]:.1e} to {losses[-1]:.1e})"
    )

    figure, (left, right) = panels(2, width=8.4, height=3.2)
    left.plot(grid, found, color="C0", label="network")
    left.plot(grid, np.sin(grid), "--", color="k", lw=1, label="sin t")
    left.set(xlabel="t", ylabel="u(t)")
    left.legend(frameon=False)
    right.semilogy(losses, color="C1")
    right.set(xlabel="evaluation of the loss", ylabel="mean of (u″ + u)²")
    print(save(figure, "physics.png"))
    return error


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
