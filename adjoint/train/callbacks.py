"""Callbacks: what can be done at the end of a step or an epoch."""

from __future__ import annotations

import csv
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from adjoint.core.shapes import number, whole_number
from adjoint.errors import ArgumentError, FileError, NonFiniteError
from adjoint.grads.norm import global_norm
from adjoint.nn.module import Module
from adjoint.train.checkpoint import Checkpoints, sign_of

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = [
    "BestCheckpoint",
    "CSVLog",
    "Callback",
    "EarlyStopping",
    "GradientFlow",
    "JSONLog",
    "NonFiniteGuard",
]


class Callback:
    """Is told of each step and epoch; ``trainer.stop()`` ends the training after the present step."""

    def before_update(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Run when ``p.grad`` of each parameter is the batch's gradient, clipped; an error stops it."""

    def on_step(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Run after each update."""

    def on_epoch(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Run after each epoch, with validation results if there are any."""

    def save(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Run after each epoch when every callback has seen it: the moment to write the whole state."""

    def on_end(self, trainer: Trainer) -> None:
        """Run when training ends, however it ends."""

    def on_restart(self, trainer: Trainer) -> None:
        """Run when a run is to be resumed but ended before its first checkpoint, and begins again."""

    def on_resume(self, trainer: Trainer) -> None:
        """Run when a run goes on from a checkpoint that had the state of this callback."""

    def identity(self) -> dict[str, Any]:
        """Return what tells it from others of its class: one that is resumed gets the state of the same.

        Plain data; where there is a ``path``, it is absolute.  Those that are told apart by nothing are
        taken in their order.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a restart."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""


class _Monitor(Callback):
    """Follows the best value of one logged number."""

    def __init__(self, monitor: str, mode: str, delta: float = 0.0) -> None:
        self.monitor, self.sign, self.delta = monitor, sign_of(mode), delta
        self.best = math.inf  # times the sign: the lowest is the best

    def better(self, logs: Mapping[str, float]) -> bool:
        """Tell whether the number is better than all before, and take note of it; only a finite one is."""
        if self.monitor not in logs:
            raise ArgumentError(
                f"{type(self).__name__}: no {self.monitor!r} among the logged {', '.join(sorted(logs))}."
            )
        value = self.sign * logs[self.monitor]
        if not (math.isfinite(value) and value < self.best - self.delta):
            return False
        self.best = value
        return True

    def identity(self) -> dict[str, Any]:
        """Return which number it follows, and how."""
        return {"monitor": self.monitor, "sign": self.sign, "delta": self.delta}

    def state_dict(self) -> dict[str, Any]:
        """Return the best value."""
        return {"best": self.best if math.isfinite(self.best) else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.best = math.inf if state["best"] is None else float(state["best"])


class EarlyStopping(_Monitor):
    """Stop when a logged number has not got better, by more than ``delta``, for ``patience`` epochs."""

    def __init__(
        self, monitor: str = "val_loss", patience: int = 5, mode: str = "min", delta: float = 0.0
    ) -> None:
        if whole_number("EarlyStopping", "patience", patience) < 1:
            raise ArgumentError(f"patience is a number of epochs from 1, but is {patience!r}.")
        super().__init__(monitor, mode, number("EarlyStopping", "delta", delta))
        self.patience = patience
        self.waited = 0

    def on_epoch(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Compare with the best so far."""
        self.waited = 0 if self.better(logs) else self.waited + 1
        self._stop_if_due(trainer)

    def on_resume(self, trainer: Trainer) -> None:
        """Stay stopped, unless the patience is larger now."""
        self._stop_if_due(trainer)

    def _stop_if_due(self, trainer: Trainer) -> None:
        if self.waited >= self.patience:
            trainer.stop(f"{self.monitor} has not got better for {self.waited} epochs")

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and how long ago it was."""
        return {**super().state_dict(), "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        super().load_state_dict(state)
        self.waited = int(state["waited"])


class BestCheckpoint(_Monitor):
    """Keep the checkpoint of the epoch in which a logged number was best.

    It is a whole checkpoint, written as ``Checkpoints`` does: ``path`` says where, ``restore(model)``
    gives its weights to a module, and a trainer with this ``directory`` resumes from it.  Those of another
    number, which was followed before, are not compared with it.  Where a run was
    resumed from before its best, that one stays until the run, on its way again, writes another.
    """

    def __init__(
        self, directory: str | os.PathLike[str], monitor: str = "val_loss", mode: str = "min"
    ) -> None:
        super().__init__(monitor, mode)
        self.checkpoints = Checkpoints(directory, keep=1, mode=mode, monitor=monitor)

    @property
    def path(self) -> Path | None:
        """Where the best checkpoint is; None before the first."""
        return self.checkpoints.best()

    def identity(self) -> dict[str, Any]:
        """Return which number it follows, and where it writes."""
        return {**super().identity(), "path": os.path.realpath(self.checkpoints.directory)}

    def on_resume(self, trainer: Trainer) -> None:
        """Take later checkpoints for what they are: this run's, from before it went back."""
        self.checkpoints.same_run = True

    def save(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Write a checkpoint if this epoch was the best."""
        if self.better(logs):
            trainer.write_checkpoint(self.checkpoints, logs[self.monitor], self.monitor)

    def restore(self, model: Module) -> Path:
        """Load the best weights into a module; return where they were."""
        path = self.path
        if path is None:
            raise FileError(f"there is no checkpoint in {self.checkpoints.directory} yet.")
        model.load_state_dict(self.checkpoints.read(path)[0])
        return path


class Log(Callback, ABC):
    """A file with a line per step or per epoch."""

    def __init__(self, path: str | os.PathLike[str], every: str = "epoch") -> None:
        if every not in ("epoch", "step"):
            raise ArgumentError(f"every is 'epoch' or 'step', not {every!r}.")
        self.path, self.every = path, every
        self._file: TextIO | None = None

    def on_step(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Write a line, if lines are per step."""
        if self.every == "step":
            self._write({"epoch": trainer.epoch + 1, "step": trainer.step, **logs})

    def on_epoch(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Write a line, if lines are per epoch."""
        if self.every == "epoch":
            self._write({"epoch": trainer.epoch, "step": trainer.step, **logs})

    def on_end(self, trainer: Trainer) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def on_restart(self, trainer: Trainer) -> None:
        """Put a log aside whose lines come again, as ``<path>.old``."""
        if os.path.exists(self.path) and os.path.getsize(self.path):
            os.replace(self.path, f"{os.fspath(self.path)}.old")

    def identity(self) -> dict[str, Any]:
        """Return which file it writes, and when."""
        return {"path": os.path.realpath(self.path), "every": self.every}

    def state_dict(self) -> dict[str, Any]:
        """Return how long the file is."""
        path = Path(self.path)
        return {"size": path.stat().st_size if path.exists() else 0}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut off what was logged after the checkpoint: it comes again."""
        path = Path(self.path)
        if path.exists() and path.stat().st_size > state["size"]:
            os.truncate(path, state["size"])

    def _open(self) -> TextIO:
        if self._file is None:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a", newline="")  # noqa: SIM115  closed in on_end
        return self._file

    @abstractmethod
    def _write(self, row: dict[str, float]) -> None: ...


class CSVLog(Log):
    """Write the logs as CSV; the first line of the file decides the columns."""

    _columns: list[str] | None = None

    def on_end(self, trainer: Trainer) -> None:
        """Close the file; whoever opens it again looks at its first line."""
        super().on_end(trainer)
        self._columns = None

    def _write(self, row: dict[str, float]) -> None:
        file = self._open()
        writer = csv.writer(file)
        if self._columns is None:
            self._columns = self._header(row) or list(row)
            if file.tell() == 0:
                writer.writerow(self._columns)
        writer.writerow([row.get(c, "") for c in self._columns])
        file.flush()

    def _header(self, row: dict[str, float]) -> list[str] | None:
        """Return the columns of a file that is gone on with; one with others is refused."""
        with open(self.path, newline="") as file:
            columns = next(csv.reader(file), None)
        other = [] if columns is None else [name for name in row if name not in columns]
        if other:
            raise ArgumentError(
                f"CSVLog: {os.fspath(self.path)} has no columns {', '.join(other)}: "
                "it is the log of another run.\n  Remove it, or give another path."
            )
        return columns


class JSONLog(Log):
    """Write the logs as one JSON object per line."""

    def _write(self, row: dict[str, float]) -> None:
        file = self._open()
        file.write(json.dumps({k: v if math.isfinite(v) else str(v) for k, v in row.items()}) + "\n")
        file.flush()


class NonFiniteGuard(Callback):
    """Raise when the loss or a gradient is not finite, before it gets into the weights."""

    def before_update(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Look at the numbers of the step."""
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs[name]):
                bad = [
                    path
                    for path, p in trainer.named_parameters().items()
                    if p.grad is not None and not math.isfinite(global_norm([p.grad]))
                ]
                where = f"\n  Gradients that are not finite: {', '.join(bad)}." if bad else ""
                raise NonFiniteError(
                    f"{name} is {logs[name]} at step {trainer.step + 1}, epoch {trainer.epoch + 1}; "
                    f"the weights are as before it.{where}\n"
                    "  Lower the learning rate, clip gradients, or look for the op with ad.detect_anomaly()."
                )


class GradientFlow(Callback):
    """Keep, for each parameter, the norm of its gradient, every so many steps."""

    def __init__(self, every: int = 10) -> None:
        if whole_number("GradientFlow", "every", every) < 1:
            raise ArgumentError(f"every is a number of steps from 1, but is {every!r}.")
        self.every = every
        self.history: list[tuple[int, dict[str, float]]] = []

    def before_update(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Take the norms of what the optimiser is about to use."""
        step = trainer.step + 1
        if step % self.every == 0:
            named = trainer.named_parameters()
            norms = {name: 0.0 if p.grad is None else global_norm([p.grad]) for name, p in named.items()}
            self.history.append((step, norms))

    def identity(self) -> dict[str, Any]:
        """Return when it looks."""
        return {"every": self.every}

    def dead(self, threshold: float = 1e-12) -> list[str]:
        """Return the parameters whose gradient was never larger than ``threshold``."""
        names = {n for _, norms in self.history for n in norms}
        return sorted(n for n in names if all(h.get(n, 0.0) <= threshold for _, h in self.history))

    def state_dict(self) -> dict[str, Any]:
        """Return the norms so far."""
        return {"history": list(self.history)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.history = [(int(step), dict(norms)) for step, norms in state["history"]]
