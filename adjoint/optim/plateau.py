"""``Plateau``: a schedule that reduces the learning rate when a metric stops improving."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from adjoint.core.shapes import number, number_between, whole_number
from adjoint.errors import ArgumentError

__all__ = ["Plateau"]


class Plateau:
    """Reduce the rate when a metric stops improving.

    Call ``report(metric)`` once per epoch; a trainer does this automatically.  Calling the object with a step
    returns the current rate.  If ``monitor`` is changed, also in a resumed run, the best value is reset and
    the rate is kept.

    Parameters
    ----------
    rate : float
        The initial rate.
    factor : float
        The factor by which the rate is reduced, between 0 and 1.
    patience : int
        The number of reports without improvement before a reduction.
    threshold : float
        The relative change that counts as an improvement.
    cooldown : int
        The number of reports after a reduction that are ignored.
    minimum : float
        The lowest rate.
    mode : {"min", "max"}
        Whether lower or higher is better.
    monitor : str, optional
        The name of the metric that a trainer reports.  The default is "val_loss" if it is logged, or else
        "loss".

    Examples
    --------
    >>> plateau = Plateau(1.0, patience=1)
    >>> [plateau.report(1.0) for _ in range(3)]
    [1.0, 1.0, 0.1]
    """

    def __init__(
        self,
        rate: float,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        cooldown: int = 0,
        minimum: float = 0.0,
        mode: str = "min",
        monitor: str | None = None,
    ) -> None:
        if mode not in ("min", "max"):
            raise ArgumentError(f"Plateau: mode must be 'min' or 'max', not {mode!r}.")
        if not 0 < number("Plateau", "factor", factor) < 1:
            raise ArgumentError(f"Plateau: factor must be between 0 and 1, but is {factor!r}.")
        for name, given in (("rate", rate), ("threshold", threshold), ("minimum", minimum)):
            number_between(f"Plateau: {name}", given, 0.0)
        for name, given in (("patience", patience), ("cooldown", cooldown)):
            if whole_number("Plateau", name, given) < 0:
                raise ArgumentError(f"Plateau: {name} must be at least 0, but is {given!r}.")
        self.rate, self.factor, self.patience, self.threshold = rate, factor, patience, threshold
        self.cooldown, self.minimum, self.mode = cooldown, minimum, mode
        self.monitor = monitor
        self.resting = 0
        self.followed: str | None = None  # the name of the metric that ``best`` belongs to
        self._forget()

    def __repr__(self) -> str:
        return (
            f"Plateau(rate={self.rate}, factor={self.factor}, patience={self.patience}, mode={self.mode!r})"
        )

    def _forget(self) -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self.bad = 0

    def report(self, metric: float, step: int | None = None) -> float:
        """Report a metric.

        Parameters
        ----------
        metric : float
            The metric.
        step : int, optional
            Ignored.  Sequences of schedules need this parameter.

        Returns
        -------
        float
            The rate from now on.
        """
        metric = float(metric)
        if self._better(metric):
            self.best, self.bad = metric, 0
        else:
            self.bad += 1
        if self.resting > 0:
            self.resting -= 1
            self.bad = 0
        if self.bad > self.patience:
            self.rate = max(self.rate * self.factor, self.minimum)
            self.resting, self.bad = self.cooldown, 0
        return self.rate

    def report_from(self, logs: Mapping[str, float], step: int | None = None) -> float:
        """Report the monitored metric, looked up among the metrics of an epoch.

        Parameters
        ----------
        logs : mapping of str to float
            The metrics by name.
        step : int, optional
            Ignored.

        Returns
        -------
        float
            The rate from now on.
        """
        name = self.monitor or ("val_loss" if "val_loss" in logs else "loss")
        if name not in logs:
            known = ", ".join(sorted(logs))
            raise ArgumentError(f"Plateau: {name!r} is not logged.  Monitor one of {known}.")
        if self.followed not in (None, name):
            self._forget()
        self.followed = name
        return self.report(logs[name])

    def _better(self, metric: float) -> bool:
        # a negative best value must be multiplied by 1 + threshold where a positive one needs 1 - threshold
        down = (self.mode == "min") == (self.best > 0)
        bar = self.best * (1 - self.threshold if down else 1 + self.threshold)
        return metric < bar if self.mode == "min" else metric > bar

    def __call__(self, step: int) -> float:
        """Return the current rate, for any step."""
        return self.rate

    def state_dict(self) -> dict[str, Any]:
        """Return a dictionary of the rate, the best metric, the counters, the mode and the metric's name."""
        numbers = {"rate": self.rate, "best": self.best, "bad": self.bad, "resting": self.resting}
        return {**numbers, "mode": self.mode, "followed": self.followed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state_dict``.

        Parameters
        ----------
        state : mapping
            The saved state.
        """
        missing = [name for name in self.state_dict() if name not in state]
        if missing:
            raise ArgumentError(f"Plateau: the state is missing keys: {', '.join(missing)}.")
        self.rate, self.best = float(state["rate"]), float(state["best"])
        self.bad, self.resting = int(state["bad"]), int(state["resting"])
        self.followed = state["followed"]
        if state["mode"] != self.mode:
            self._forget()
