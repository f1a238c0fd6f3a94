"""Policy gradient on a small control task: keep a pole upright by pushing its cart left or right.

Many carts are simulated at once in NumPy; the policy is a small network, trained by REINFORCE with a
baseline.

    python examples/policy.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save

import adjoint as ad
from adjoint import nn, optim

STEPS = 200  # an episode that lasts so long is solved


def simulate(state: Any, push: Any) -> Any:
    """One fiftieth of a second of Barto, Sutton and Anderson's cart and pole."""
    x, dx, a, da = state.T
    force = np.where(push, 10.0, -10.0)
    sin, cos = np.sin(a), np.cos(a)
    part = (force + 0.05 * da**2 * sin) / 1.1
    dda = (9.8 * sin - cos * part) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    ddx = part - 0.05 * dda * cos / 1.1
    return np.stack([x + 0.02 * dx, dx + 0.02 * ddx, a + 0.02 * da, da + 0.02 * dda], 1)


def episodes(policy: Any, rng: Any, count: int) -> tuple[Any, Any, Any]:
    """Run ``count`` carts; return states, pushes, and which of them were still upright."""
    state, alive = rng.uniform(-0.05, 0.05, (count, 4)), np.ones(count, bool)
    seen, pushes, upright = [], [], []
    while alive.any() and len(seen) < STEPS:
        with ad.no_grad():
            p = nn.functional.sigmoid(policy(ad.tensor(state)))[:, 0].numpy()
        push = rng.random(count) < p
        seen.append(state)
        pushes.append(push)
        upright.append(alive)
        state = simulate(state, push)
        alive = alive & (np.abs(state[:, 0]) < 2.4) & (np.abs(state[:, 2]) < 0.21)
    return np.array(seen), np.array(pushes), np.array(upright)


def main(updates: int = 60) -> float:
    rng = np.random.default_rng(0)
    policy = nn.Sequential(nn.Linear(4, 32, rng=0), nn.Tanh(), nn.Linear(32, 1, rng=1)).astype(np.float64)
    optimizer = optim.Adam(policy.parameters(), lr=2e-2)
    lengths = []
    for _ in range(updates):
        states, pushes, upright = episodes(policy, rng, 16)
        togo = np.zeros_like(upright, float)
        total = np.zeros(upright.shape[1])
        for i in range(len(upright) - 1, -1, -1):  # discounted reward from each step on
            total = upright[i] * (1.0 + 0.99 * total)
            togo[i] = total
        gain = (togo - togo[upright].mean()) / (togo[upright].std() + 1e-8)
        logits = policy(ad.tensor(states))[..., 0]
        surprise = nn.functional.binary_cross_entropy_with_logits(
            logits, pushes.astype(float), reduction="none"
        )
        loss = (surprise * (gain * upright)).sum() / upright.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lengths.append(upright.sum(0).mean())
    final = float(np.mean(lengths[-5:]))
    print(f"mean steps upright: {lengths[0]:.0f} at first, {final:.0f} of {STEPS} after {updates} updates")
    figure, axes = panels()
    axes.plot(range(1, updates + 1), lengths, label="mean of 16 episodes")
    axes.axhline(STEPS, color="0.6", ls="--", lw=1, label="solved")
    axes.set(xlabel="update of the policy", ylabel="steps upright", ylim=(0, 1.1 * STEPS))
    axes.legend(frameon=False, loc="lower right")
    print(save(figure, "policy.png"))
    return final


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
