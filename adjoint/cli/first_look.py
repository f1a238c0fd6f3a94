"""``adjoint look``: run a small program, and compare its gradient with finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad

__all__ = ["first_look"]

_PROGRAM = """\
    x = ad.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    w = ad.tensor([[0.5], [-0.1]], requires_grad=True)
    loss = ((x @ w).tanh() ** 2).mean()
    loss.backward()"""


def first_look() -> str:
    """Run a small program, and return a table of its gradient and finite differences.

    >>> print(first_look().splitlines()[-1][-20:])
    the gradients agree.
    """
    x = ad.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    w = ad.tensor([[0.5], [-0.1]], requires_grad=True)

    def program(x: Any, w: Any) -> Any:
        return ((x @ w).tanh() ** 2).mean()

    loss = program(x, w)
    loss.backward()
    lines = [f"adjoint {ad.__version__}", "", _PROGRAM, "", f"loss = {loss.item():.12f}", ""]
    lines.append(f"{'':10}{'gradient':>18}{'finite difference':>20}{'difference':>13}")
    worst = 0.0
    numeric = {"x": _differences(lambda a: program(a, w), x), "w": _differences(lambda a: program(x, a), w)}
    for name, leaf in (("x", x), ("w", w)):
        exact = np.asarray(leaf.grad)
        for index in np.ndindex(leaf.shape):
            gap = abs(exact[index] - numeric[name][index])
            worst = max(worst, gap)
            label = f"{name}[{', '.join(map(str, index))}]"
            lines.append(f"{label:10}{exact[index]:18.12f}{numeric[name][index]:20.12f}{gap:13.0e}")
    verdict = "agree" if worst < 1e-8 else "DISAGREE"
    lines += ["", f"largest difference {worst:.0e}: the gradients {verdict}."]
    return "\n".join(lines)


def _differences(f: Callable[[Any], Any], leaf: Any, step: float = 1e-6) -> Any:
    """Return the gradient of ``f`` at ``leaf`` by central differences: each element is moved by ±``step``."""
    out = np.empty(leaf.shape)
    for index in np.ndindex(leaf.shape):
        shift = np.zeros(leaf.shape)
        shift[index] = step
        with ad.no_grad():
            out[index] = (f(leaf + shift).item() - f(leaf - shift).item()) / (2 * step)
    return out
