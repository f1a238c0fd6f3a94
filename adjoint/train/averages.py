"""Averages of the numbers of an epoch, each over what it was measured on."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["Averages"]


class Averages:
    """Weighted means of named numbers."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}  # name: Σ weight·value, Σ weight

    def add(self, numbers: Mapping[str, float], weight: float) -> None:
        """Add numbers that count with ``weight``; without one, not even NaN counts."""
        for name, value in numbers.items():
            sums = self._sums.setdefault(name, [0.0, 0.0])
            if weight:
                sums[0] += value * weight
                sums[1] += weight

    def means(self) -> dict[str, float]:
        """Return the means; NaN where nothing had weight."""
        return {name: total / weight if weight else math.nan for name, (total, weight) in self._sums.items()}

    def state_dict(self) -> dict[str, list[float]]:
        """Return the sums."""
        return {name: list(sums) for name, sums in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, list[float]]) -> None:
        """Take over what ``state_dict`` returned."""
        self._sums = {name: list(sums) for name, sums in state.items()}
