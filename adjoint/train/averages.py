"""Weighted averages of the logged numbers of an epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["Averages"]


class Averages:
    """Weighted means of named numbers."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}  # name: Σ weight·value, Σ weight

    def add(self, numbers: Mapping[str, float], weight: float) -> None:
        """Add one value for each name, all with this weight; values with weight 0 are ignored, even NaN."""
        for name, value in numbers.items():
            sums = self._sums.setdefault(name, [0.0, 0.0])
            if weight:
                sums[0] += value * weight
                sums[1] += weight

    def means(self) -> dict[str, float]:
        """Return the weighted mean of each name; NaN if its total weight is 0."""
        return {name: total / weight if weight else math.nan for name, (total, weight) in self._sums.items()}

    def state_dict(self) -> dict[str, list[float]]:
        """Return, for each name, the list ``[Σ weight·value, Σ weight]``."""
        return {name: list(sums) for name, sums in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, list[float]]) -> None:
        """Restore the result of ``state_dict``."""
        self._sums = {name: list(sums) for name, sums in state.items()}
