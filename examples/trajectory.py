"""Optimal control: swing a pendulum up with a motor that is too weak to lift it directly.

The torque at every time step is an unknown.  The simulation is differentiated from end to end, so that a
quasi-Newton method finds the whole plan: swing away first, then up.

    python examples/trajectory.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save

import adjoint as ad

GRAVITY, LENGTH, MASS, LIMIT = 9.81, 1.0, 1.0, 3.0  # a direct lift needs 9.81 N m
STEPS, DT = 80, 0.05


def simulate(torque: Any) -> Any:
    """Return angles (0 is hanging, π is upright) and angular speeds after each step."""

    def step(state: Any, u: Any) -> tuple[Any, Any]:
        angle, speed = state
        speed = speed + DT * (u / (MASS * LENGTH**2) - GRAVITY / LENGTH * ad.sin(angle))
        angle = angle + DT * speed
        return (angle, speed), (angle, speed)

    return ad.scan(step, (0.0, 0.0), torque)[1]


def main(iterations: int = 300) -> float:
    def loss(torque: Any) -> Any:
        """Return the miss of the upright position at rest, and a little of the effort."""
        angle, speed = simulate(torque)
        return 100 * (angle[-1] - np.pi) ** 2 + 10 * speed[-1] ** 2 + 0.02 * DT * (torque**2).sum()

    start = np.sin(np.arange(STEPS) * DT * np.sqrt(GRAVITY / LENGTH))
    found = ad.interop.scipy.minimize(
        loss, start, method="L-BFGS-B", bounds=[(-LIMIT, LIMIT)] * STEPS, options={"maxiter": iterations}
    )
    torque = found.x_flat
    angle, speed = (value.numpy() for value in simulate(torque))
    miss = abs(angle[-1] - np.pi)
    print(f"{found.nit} iterations; at the end {np.degrees(miss):.2f}° from upright, {speed[-1]:.3f} rad/s")

    figure, (left, right) = panels(2, width=8.4, height=3.4)
    time = DT * np.arange(1, STEPS + 1)
    x, y = LENGTH * np.sin(angle), -LENGTH * np.cos(angle)
    left.plot(x, y, color="0.8", lw=1)
    for i in range(3, STEPS, 4):
        left.plot([0, x[i]], [0, y[i]], color="C0", alpha=0.15 + 0.5 * i / STEPS, lw=1)
    marks = left.scatter(x, y, c=time, s=14, cmap="viridis", zorder=3)
    figure.colorbar(marks, ax=left, label="time (s)", shrink=0.9)
    left.set(xlabel="x (m)", ylabel="height (m)", aspect="equal")
    right.plot(time, angle / np.pi, color="C0", label="angle / π")
    right.plot(time, torque / LIMIT, color="C1", drawstyle="steps-mid", label=f"torque / {LIMIT:g} N m")
    right.axhline(1, color="0.7", ls="--", lw=1)
    right.set(xlabel="time (s)", ylim=(-1.15, 1.6))
    right.legend(frameon=False, ncols=2, loc="upper center")
    print(save(figure, "trajectory.png"))
    return float(miss)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
