"""Differential equations: fit the Lotka–Volterra equations to hares and lynxes in Canada, 1900–1920.

A Runge–Kutta solver is a loop over time steps, here ``ad.scan``.  The derivative of the whole solution in
the rates and the initial populations is exact, and SciPy's least squares uses it.

    python examples/predator_prey.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save

import adjoint as ad

# Pelts of the Hudson's Bay Company, in thousands.
HARES = [30, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22, 25.4, 27.1, 40.3, 57, 76.6, 52.3, 19.5, 11.2, 7.6,
         14.6, 16.2, 24.7]  # fmt: skip
LYNXES = [4, 6.1, 9.8, 35.2, 59.4, 41.7, 19, 13, 8.3, 9.1, 7.4, 8, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7,
          10.1, 8.6]  # fmt: skip
YEARS = np.arange(1900, 1921)


def slope(state: Any, rates: Any) -> Any:
    """Return the change per year of the logarithms of both populations."""
    hares, lynxes = ad.exp(state)
    birth, eaten, death, growth = rates
    return ad.stack([birth - eaten * lynxes, growth * hares - death])


def solve(p: Any, years: int, steps: int) -> Any:
    """Integrate with ``steps`` Runge–Kutta steps per year; ``p`` has logarithms of all parameters."""
    rates, start, h = ad.exp(p[:4]), p[4:], 1 / steps

    def step(state: Any, _: Any) -> tuple[Any, Any]:
        k1 = slope(state, rates)
        k2 = slope(state + h / 2 * k1, rates)
        k3 = slope(state + h / 2 * k2, rates)
        k4 = slope(state + h * k3, rates)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return state, state

    _, path = ad.scan(step, start, length=years * steps)
    return ad.concatenate([start[None], path])


def main(steps: int = 10) -> float:
    data = np.log(np.stack([HARES, LYNXES], 1))

    def residuals(p: Any) -> Any:
        return (solve(p, 20, steps)[::steps] - data).ravel()

    start = np.concatenate([np.log([0.5, 0.03, 0.8, 0.03]), data[0]])
    found = ad.interop.scipy.least_squares(residuals, start)
    for name, rate in zip(("birth", "eaten", "death", "growth"), np.exp(found.x[:4]), strict=True):
        print(f"{name:6} {rate:.3f} per year")
    typical = float(np.sqrt(np.mean(found.fun**2)))
    print(f"typical error of a count: {np.exp(typical) - 1:.0%}")

    path = ad.exp(solve(ad.tensor(found.x), 20, steps)).numpy()
    time = np.linspace(1900, 1920, len(path))
    figure, (left, right) = panels(2, width=9, height=3.3)
    for i, (name, counts) in enumerate({"hares": HARES, "lynxes": LYNXES}.items()):
        left.plot(YEARS, counts, "o", color=f"C{i}", markersize=4)
        left.plot(time, path[:, i], color=f"C{i}", label=name)
    left.set(xlabel="year", ylabel="pelts (thousands)", xticks=range(1900, 1921, 5), ylim=(0, 95))
    left.legend(frameon=False, ncols=2, loc="upper center")
    right.plot(HARES, LYNXES, "o-", color="0.7", markersize=4, lw=0.8, label="counts")
    right.plot(*path.T, color="C2", label="fitted cycle")
    right.set(xlabel="hares (thousands)", ylabel="lynxes (thousands)")
    right.legend(frameon=False)
    print(save(figure, "predator_prey.png"))
    return typical


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
