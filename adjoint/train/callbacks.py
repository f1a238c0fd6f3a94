"""Callbacks: what can be done at the end of a step or an epoch."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from adjoint.errors import ArgumentError, NonFiniteError
from adjoint.grads.norm import global_norm

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = ["CSVLog", "Callback", "EarlyStopping", "GradientFlow", "JSONLog", "NonFiniteGuard"]


class Callback:
    """Is told of each step and epoch; ``trainer.stop()`` ends the training after the present step."""

    def on_step(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Run after each update."""

    def on_epoch(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Run after each epoch, with validation results if there are any."""

    def on_end(self, trainer: Trainer) -> None:
        """Run when training ends, however it ends."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a restart."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""


class EarlyStopping(Callback):
    """Stop when a logged number has not got better for ``patience`` epochs."""

    def __init__(
        self, monitor: str = "val_loss", patience: int = 5, mode: str = "min", delta: float = 0.0
    ) -> None:
        if mode not in ("min", "max"):
            raise ArgumentError(f"mode is 'min' or 'max', not {mode!r}.")
        self.monitor, self.patience, self.mode, self.delta = monitor, patience, mode, delta
        self.best = math.inf
        self.waited = 0

    def on_epoch(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Compare with the best so far."""
        if self.monitor not in logs:
            raise ArgumentError(
                f"EarlyStopping: no {self.monitor!r} among the logged {', '.join(sorted(logs))}."
            )
        value = logs[self.monitor] * (1 if self.mode == "min" else -1)
        if value < self.best - self.delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
            if self.waited >= self.patience:
                trainer.stop(f"{self.monitor} has not got better for {self.patience} epochs")

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and how long ago it was."""
        return {"best": self.best if math.isfinite(self.best) else None, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.best = math.inf if state["best"] is None else float(state["best"])
        self.waited = int(state["waited"])


class _Log(Callback):
    """A file with a line per step or per epoch."""

    def __init__(self, path: str | os.PathLike[str], every: str = "epoch") -> None:
        if every not in ("epoch", "step"):
            raise ArgumentError(f"every is 'epoch' or 'step', not {every!r}.")
        self.path, self.every = path, every
        self._file: TextIO | None = None

    def on_step(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Write a line, if lines are per step."""
        if self.every == "step":
            self._write({"epoch": trainer.epoch, "step": trainer.step, **logs})

    def on_epoch(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Write a line, if lines are per epoch."""
        if self.every == "epoch":
            self._write({"epoch": trainer.epoch, "step": trainer.step, **logs})

    def on_end(self, trainer: Trainer) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> TextIO:
        if self._file is None:
            self._file = open(self.path, "a", newline="")  # noqa: SIM115  closed in on_end
        return self._file

    def _write(self, row: dict[str, float]) -> None:
        raise NotImplementedError


class CSVLog(_Log):
    """Write the logs as CSV; the first line decides the columns."""

    _columns: list[str] | None = None

    def _write(self, row: dict[str, float]) -> None:
        file = self._open()
        writer = csv.writer(file)
        if self._columns is None:
            self._columns = list(row)
            if file.tell() == 0:
                writer.writerow(self._columns)
        writer.writerow([row.get(c, "") for c in self._columns])
        file.flush()


class JSONLog(_Log):
    """Write the logs as one JSON object per line."""

    def _write(self, row: dict[str, float]) -> None:
        file = self._open()
        file.write(json.dumps({k: v if math.isfinite(v) else str(v) for k, v in row.items()}) + "\n")
        file.flush()


class NonFiniteGuard(Callback):
    """Raise when the loss or the gradient norm is not finite."""

    def on_step(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Look at the numbers of the step."""
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                raise NonFiniteError(
                    f"{name} is {logs[name]} at step {trainer.step}, epoch {trainer.epoch}.\n"
                    "  Lower the learning rate, clip gradients, or look for the op with ad.detect_anomaly()."
                )


class GradientFlow(Callback):
    """Keep, for each parameter, the norm of its gradient, every so many steps."""

    def __init__(self, every: int = 10) -> None:
        self.every = every
        self.history: list[tuple[int, dict[str, float]]] = []

    def on_step(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Take the norms that the trainer has just used."""
        if trainer.step % self.every == 0:
            norms = {name: global_norm([g]) for name, g in trainer.last_gradients.items()}
            self.history.append((trainer.step, norms))

    def dead(self, threshold: float = 1e-12) -> list[str]:
        """Return the parameters whose gradient was never larger than ``threshold``."""
        names = {n for _, norms in self.history for n in norms}
        return sorted(n for n in names if all(h.get(n, 0.0) <= threshold for _, h in self.history))
