"""Apply each gradient as soon as it is complete, and free it: the optimiser inside backward.

A usual step keeps all gradients until the optimiser has run.  With ``on_leaf_ready`` a parameter is
updated the moment its gradient is complete, while backward goes on to earlier layers; the callback
returns True, "taken", so the gradient is not stored and its memory is free for the next layer's.

    python examples/optimizer_in_backward.py
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np

import adjoint as ad

LAYERS, WIDTH, RATE = 12, 400, 0.01


def make_weights() -> list[ad.Tensor]:
    """Make the weights of all layers, the same every time."""
    rng = np.random.default_rng(0)
    scale = 1 / np.sqrt(WIDTH)
    return [ad.tensor(scale * rng.normal(size=(WIDTH, WIDTH)), requires_grad=True) for _ in range(LAYERS)]


def loss_of(weights: list[ad.Tensor]) -> ad.Tensor:
    """Run the network forward."""
    h = ad.tensor(np.linspace(-1, 1, 8 * WIDTH).reshape(8, WIDTH))
    for w in weights:
        h = ad.tanh(h @ w)
    return (h**2).mean()


def apply(w: ad.Tensor, g: ad.Tensor) -> None:
    """Do a step of gradient descent on one weight."""
    with ad.no_grad():
        w.copy_(w - RATE * g)


def usual_step(weights: list[ad.Tensor]) -> None:
    """Run backward, then the optimiser."""
    loss_of(weights).backward()
    for w in weights:
        assert w.grad is not None
        apply(w, w.grad)
        w.grad = None


def step_in_backward(weights: list[ad.Tensor]) -> None:
    """Run the optimiser on each weight as its gradient arrives."""

    def take(w: ad.Tensor, g: ad.Tensor) -> bool:
        apply(w, g)
        return True  # taken: backward forgets it, and nothing is added to w.grad

    loss_of(weights).backward(on_leaf_ready=take)


def peak_megabytes(step: Callable[[list[ad.Tensor]], None]) -> tuple[float, list[ad.Tensor]]:
    """Return the most memory that a step needs beyond the weights, and the weights after it."""
    weights = make_weights()
    step(weights)  # the first step also fills caches
    tracemalloc.start()
    step(weights)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6, weights


def main() -> tuple[float, float]:
    """Compare both and return their peaks in megabytes."""
    usual, expected = peak_megabytes(usual_step)
    inside, weights = peak_megabytes(step_in_backward)
    same = all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(weights, expected, strict=True))
    gradient = WIDTH * WIDTH * 8 / 1e6
    print(f"{LAYERS} layers, a gradient of each is {gradient:.1f} MB; the same weights afterwards: {same}")
    print(f"peak of a step: {usual:.1f} MB as usual, {inside:.1f} MB with the optimiser in backward")
    assert same
    return usual, inside


if __name__ == "__main__":
    main()
