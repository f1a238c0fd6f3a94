"""A Kalman filter: maximise its likelihood to find the noise and the damping of a moving target.

A target moves with a damped velocity that random forces push; only its position is seen, with errors.  The
filter is ``ad.scan`` over the measurements.  Its log-likelihood is differentiated through all steps, and
compiled: 2,000 steps with the gradient take less than a millisecond.

    python examples/kalman.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save
from scipy.optimize import minimize

import adjoint as ad

TRUE = {"damping": 0.08, "force": 0.15, "error": 0.8}


def simulate(count: int) -> tuple[Any, Any]:
    """Return the path of the target and its measured positions."""
    rng = np.random.default_rng(2)
    state, path = np.zeros(2), []
    for _ in range(count):
        speed = (1 - TRUE["damping"]) * state[1] + TRUE["force"] * rng.normal()
        state = np.array([state[0] + speed, speed])
        path.append(state[0])
    return np.array(path), np.array(path) + TRUE["error"] * rng.normal(size=count)


def filtered(p: Any, seen: Any) -> tuple[Any, Any]:
    """Return the log-likelihood of the measurements, and mean and variance of the position at each step."""
    damping, force, error = ad.exp(p)
    keep = 1 - damping

    def step(state: Any, y: Any) -> tuple[Any, Any]:
        x, v, pxx, pxv, pvv, total = state
        # the motion: v ← keep v + force, x ← x + v, and the covariance with it
        v, vv, xv = keep * v, keep * keep * pvv + force**2, keep * pxv
        x, pxx, pxv, pvv = x + v, pxx + 2 * xv + vv, xv + vv, vv
        # the measurement
        off, spread = y - x, pxx + error**2
        total = total - 0.5 * (off * off / spread + ad.log(2 * np.pi * spread))
        kx, kv = pxx / spread, pxv / spread
        x, v = x + kx * off, v + kv * off
        pxx, pxv, pvv = (1 - kx) * pxx, (1 - kx) * pxv, pvv - kv * pxv
        return (x, v, pxx, pxv, pvv, total), (x, pxx)

    last, (mean, variance) = ad.scan(step, (0.0, 0.0, 1.0, 0.0, 1.0, 0.0), seen)
    return last[-1], (mean, variance)


def main(count: int = 2000) -> float:
    path, seen = simulate(count)
    loss = ad.compile(ad.value_and_grad(lambda p: -filtered(p, seen)[0] / count))

    def both(p: Any) -> tuple[float, Any]:
        value, gradient = loss(p)
        return float(value), np.asarray(gradient)

    found = minimize(both, np.log([0.3, 0.5, 0.3]), jac=True, method="BFGS")
    for name, value in zip(TRUE, np.exp(found.x), strict=True):
        print(f"{name:8} {value:.3f}, true {TRUE[name]}")
    _, (mean, variance) = filtered(ad.tensor(found.x), seen)
    mean, spread = mean.numpy(), 2 * np.sqrt(variance.numpy())
    errors = [float(np.sqrt(np.mean((each - path) ** 2))) for each in (seen, mean)]
    print(
        f"typical error: {errors[0]:.2f} measured, {errors[1]:.2f} filtered, after {found.nfev} evaluations"
    )

    time, show = np.arange(count), slice(0, min(count, 120))
    figure, axes = panels(width=8, height=3.3)
    axes.plot(time[show], seen[show], ".", color="0.6", markersize=4, label="measured")
    axes.fill_between(
        time[show], (mean - spread)[show], (mean + spread)[show], color="C0", alpha=0.2, lw=0, label="±2σ"
    )
    axes.plot(time[show], mean[show], color="C0", label="filtered")
    axes.plot(time[show], path[show], "--", color="C3", lw=1, label="true path")
    axes.set(xlabel="step", ylabel="position")
    axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.15))
    print(save(figure, "kalman.png"))
    return errors[1] / errors[0]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
