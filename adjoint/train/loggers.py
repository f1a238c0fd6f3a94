"""Callbacks that send the logged metrics to TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adjoint.errors import ArgumentError, MissingExtraError
from adjoint.train.callbacks import Callback

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = ["MLflowLog", "TensorBoardLog", "WandbLog"]


class _Tracker(Callback, ABC):
    """Base class of loggers; subclasses define ``_send``, which is called after each epoch or step."""

    def __init__(self, every: str = "epoch") -> None:
        if every not in ("epoch", "step"):
            raise ArgumentError(f"{type(self).__name__}: every must be 'epoch' or 'step', not {every!r}.")
        self.every = every

    def on_step(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Send the metrics of a step if ``every`` is "step"."""
        if self.every == "step" and self.writes:
            self._send({k: float(v) for k, v in logs.items()}, trainer.step)

    def on_epoch(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Send the metrics of an epoch.  If ``every`` is "step", send only the validation metrics."""
        if self.writes and (self.every == "epoch" or any(k.startswith("val_") for k in logs)):
            new = logs if self.every == "epoch" else {k: v for k, v in logs.items() if k.startswith("val_")}
            self._send({k: float(v) for k, v in new.items()}, trainer.step)

    def identity(self) -> dict[str, Any]:
        """Return ``every``, so that a resumed run recognises this callback in the checkpoint."""
        return {"every": self.every}

    @abstractmethod
    def _send(self, numbers: dict[str, float], step: int) -> None:
        """Send the metrics ``numbers``, with the step count to show them at."""


class TensorBoardLog(_Tracker):
    """Write event files for TensorBoard.  Needs the extra ``tensorboard``.

    Parameters
    ----------
    directory : path
        The directory of the event files; each run writes a new file.
    every : {"epoch", "step"}
        Whether metrics are written after each epoch or after each step.

    Raises
    ------
    MissingExtraError
        If tensorboard is not installed.

    Examples
    --------
    >>> from adjoint import train
    >>> log = train.TensorBoardLog("runs/first")
    """

    def __init__(self, directory: str | os.PathLike[str], every: str = "epoch") -> None:
        super().__init__(every)
        self.directory = directory
        self._writer: Any = None
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise MissingExtraError("TensorBoardLog", "tensorboard", "tensorboard") from None
        self._event, self._summary, self._open = event_pb2.Event, summary_pb2.Summary, EventFileWriter

    def identity(self) -> dict[str, Any]:
        """Return the directory and ``every``, so that a resumed run recognises this callback."""
        return {"path": os.path.realpath(self.directory), **super().identity()}

    def on_end(self, trainer: Trainer) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _send(self, numbers: dict[str, float], step: int) -> None:
        if self._writer is None:
            self._writer = self._open(os.fspath(self.directory))
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=values))
        self._writer.add_event(event)


class MLflowLog(_Tracker):
    """Log metrics to the active run of MLflow.  Needs the package mlflow.

    Parameters
    ----------
    every : {"epoch", "step"}
        Whether metrics are logged after each epoch or after each step.

    Raises
    ------
    MissingExtraError
        If mlflow is not installed.
    """

    def __init__(self, every: str = "epoch") -> None:
        super().__init__(every)
        try:
            import mlflow
        except ImportError:
            raise MissingExtraError("MLflowLog", "mlflow", "mlflow") from None
        self._log = mlflow.log_metrics

    def _send(self, numbers: dict[str, float], step: int) -> None:
        self._log(numbers, step=step)


class WandbLog(_Tracker):
    """Log metrics to the active run of Weights & Biases (``wandb.init``).  Needs the package wandb.

    Parameters
    ----------
    every : {"epoch", "step"}
        Whether metrics are logged after each epoch or after each step.

    Raises
    ------
    MissingExtraError
        If wandb is not installed.
    """

    def __init__(self, every: str = "epoch") -> None:
        super().__init__(every)
        try:
            import wandb
        except ImportError:
            raise MissingExtraError("WandbLog", "wandb", "wandb") from None
        self._log = wandb.log

    def _send(self, numbers: dict[str, float], step: int) -> None:
        self._log(numbers, step=step)
