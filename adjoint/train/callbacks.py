"""Callbacks of a trainer: methods that run before updates and after steps and epochs."""

from __future__ import annotations

import csv
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from adjoint.core.docstrings import SharedDoc
from adjoint.core.shapes import number, whole_number
from adjoint.errors import ArgumentError, FileError, NonFiniteError
from adjoint.grads.norm import global_norm
from adjoint.nn.module import Module
from adjoint.train.checkpoint import Checkpoints, sign_of
from adjoint.words import count

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = [
    "BestCheckpoint", "CSVLog", "Callback", "EarlyStopping", "GradientFlow", "JSONLog", "NonFiniteGuard",
]  # fmt: skip


_callback_doc = SharedDoc("""
    Parameters
    ----------
    trainer : Trainer
        The trainer.
    logs : mapping of str to float
        The metrics of the step.
    monitor : str
        The name of the metric.
    mode : {"min", "max"}
        Whether lower or higher is better.
    path : path
        The file.  Lines are appended to an existing file.
    every : {"epoch", "step"}
        How often a line is written.
    """)


class Callback:
    """Base class of callbacks: override the methods to run.  ``trainer.stop()`` ends the training early.

    Examples
    --------
    >>> from adjoint import train
    >>> class Print(train.Callback):
    ...     def on_epoch(self, trainer, logs):
    ...         print(trainer.epoch, logs["loss"])
    """

    writes = True  # whether this rank writes files; False on ranks other than the first

    @_callback_doc
    def before_update(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Run before each update, when ``p.grad`` of each parameter is the clipped gradient of the batch.

        An exception prevents the update.
        """

    @_callback_doc
    def on_step(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Run after each update."""

    def on_epoch(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Run after each epoch.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        logs : mapping of str to float
            The epoch's metrics, including those of the validation.
        """

    def save(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Run after each epoch, after ``on_epoch`` of all callbacks.  Write checkpoints here.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        logs : mapping of str to float
            The epoch's metrics.
        """

    @_callback_doc
    def on_end(self, trainer: Trainer) -> None:
        """Run when training ends, also after an error."""

    @_callback_doc
    def on_restart(self, trainer: Trainer) -> None:
        """Run when ``fit(resume=True)`` finds no checkpoint and starts from the beginning."""

    @_callback_doc
    def on_resume(self, trainer: Trainer) -> None:
        """Run when training resumes from a checkpoint that contains the state of this callback."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.identity().items())
        return f"{type(self).__name__}({shown})"

    def identity(self) -> dict[str, Any]:
        """Return plain data that distinguish this callback from other callbacks of the same class.

        A resumed run loads a saved state into the callback with the same identity.  A path must be absolute
        and have the key "path".  Callbacks with equal identities are matched in the order of the list.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint saves."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state_dict``.

        Parameters
        ----------
        state : mapping
            The saved state.
        """


class _Monitor(Callback):
    """Base class of callbacks that track the best value of one logged metric."""

    def __init__(self, monitor: str, mode: str, delta: float = 0.0) -> None:
        self.monitor, self.sign, self.delta = monitor, sign_of(mode), delta
        self.best = math.inf  # the best value times the sign, so that lower is always better

    def better(self, logs: Mapping[str, float]) -> bool:
        """Return whether the monitored metric is finite and better than all values before.

        If it is, it is stored as the best value.
        """
        if self.monitor not in logs:
            raise ArgumentError(
                f"{type(self).__name__}: {self.monitor!r} is not logged.  Monitor one of "
                f"{', '.join(sorted(logs))}."
            )
        value = self.sign * logs[self.monitor]
        if not (math.isfinite(value) and value < self.best - self.delta):
            return False
        self.best = value
        return True

    def identity(self) -> dict[str, Any]:
        """Return the metric, the mode and the delta, so that a resumed run recognises this callback."""
        return {"monitor": self.monitor, "sign": self.sign, "delta": self.delta}

    def state_dict(self) -> dict[str, Any]:
        """Return a dictionary with the key ``"best"``: the best value so far, or None if there is none."""
        return {"best": self.best if math.isfinite(self.best) else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state_dict``."""
        self.best = math.inf if state["best"] is None else float(state["best"])


@_callback_doc
class EarlyStopping(_Monitor):
    """Stop the training when a metric has not improved for several epochs.

    Parameters
    ----------
    patience : int
        The number of epochs without improvement after which training stops.
    delta : float
        The least change that counts as an improvement.

    >>> from adjoint import train
    >>> stopping = train.EarlyStopping("val_loss", patience=3)
    """

    def __init__(
        self, monitor: str = "val_loss", patience: int = 5, mode: str = "min", delta: float = 0.0
    ) -> None:
        if whole_number("EarlyStopping", "patience", patience) < 1:
            raise ArgumentError(
                f"EarlyStopping: patience must be a positive number of epochs, but is {patience!r}."
            )
        super().__init__(monitor, mode, number("EarlyStopping", "delta", delta))
        self.patience = patience
        self.waited = 0

    def on_epoch(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Stop the training after ``patience`` epochs without improvement."""
        self.waited = 0 if self.better(logs) else self.waited + 1
        self._stop_if_due(trainer)

    def on_resume(self, trainer: Trainer) -> None:
        """Stop again if this callback had stopped the run, unless ``patience`` was increased since."""
        self._stop_if_due(trainer)

    def _stop_if_due(self, trainer: Trainer) -> None:
        if self.waited >= self.patience:
            trainer.stop(f"{self.monitor} has not improved for {count(self.waited, 'epoch')}")

    def state_dict(self) -> dict[str, Any]:
        """Return a dictionary with the best value and the number of epochs since then, ``"waited"``."""
        return {**super().state_dict(), "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state_dict``."""
        super().load_state_dict(state)
        self.waited = int(state["waited"])


@_callback_doc
class BestCheckpoint(_Monitor):
    """Keep the checkpoint of the epoch in which a metric was best.

    The checkpoint is complete: a trainer with this ``directory`` can resume from it.  Only values of the same
    metric are compared.  If a run resumes from a step before its best epoch, the best checkpoint is kept
    until the run writes a new one.

    Parameters
    ----------
    directory : path
        The directory.  It must differ from the directory of the trainer.

    >>> from adjoint import train
    >>> best = train.BestCheckpoint("runs/best", monitor="val_loss")
    >>> best.path is None
    True
    """

    def __init__(
        self, directory: str | os.PathLike[str], monitor: str = "val_loss", mode: str = "min"
    ) -> None:
        super().__init__(monitor, mode)
        self.checkpoints = Checkpoints(directory, keep=1, mode=mode, monitor=monitor)

    @property
    def path(self) -> Path | None:
        """The path of the best checkpoint, or None if there is none yet."""
        return self.checkpoints.best()

    def identity(self) -> dict[str, Any]:
        """Return the metric, the mode and the directory, so that a resumed run recognises this callback."""
        return {**super().identity(), "path": os.path.realpath(self.checkpoints.directory)}

    def on_resume(self, trainer: Trainer) -> None:
        """Allow the directory to have checkpoints of later steps, because this run wrote them earlier."""
        self.checkpoints.same_run = True

    def save(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Write a checkpoint if the metric was better than in all epochs before."""
        if self.better(logs):
            trainer.write_checkpoint(self.checkpoints, logs[self.monitor], self.monitor)

    def restore(self, model: Module) -> Path:
        """Load the best weights into a module.

        Parameters
        ----------
        model : Module
            The module.

        Returns
        -------
        Path
            The path of the checkpoint.

        Raises
        ------
        FileError
            If there is no checkpoint yet.
        """
        path = self.path
        if path is None:
            where = self.checkpoints.directory
            raise FileError(f"BestCheckpoint: there is no checkpoint in {where} yet.  Call fit first.")
        model.load_state_dict(self.checkpoints.read(path)[0])
        return path


class Log(Callback, ABC):
    """Base class of callbacks that write a file with a line per step or per epoch."""

    def __init__(self, path: str | os.PathLike[str], every: str = "epoch") -> None:
        if every not in ("epoch", "step"):
            raise ArgumentError(f"{type(self).__name__}: every must be 'epoch' or 'step', not {every!r}.")
        self.path, self.every = path, every
        self._file: TextIO | None = None

    def on_step(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Write a line if ``every`` is "step"."""
        if self.every == "step" and self.writes:
            self._write({"epoch": trainer.epoch + 1, "step": trainer.step, **logs})

    def on_epoch(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Write a line if ``every`` is "epoch"."""
        if self.every == "epoch" and self.writes:
            self._write({"epoch": trainer.epoch, "step": trainer.step, **logs})

    def on_end(self, trainer: Trainer) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def on_restart(self, trainer: Trainer) -> None:
        """Rename an existing log to ``<path>.old``, because the run starts from the beginning."""
        if self.writes and os.path.exists(self.path) and os.path.getsize(self.path):
            os.replace(self.path, f"{os.fspath(self.path)}.old")

    def identity(self) -> dict[str, Any]:
        """Return the path and ``every``, so that a resumed run recognises this callback."""
        return {"path": os.path.realpath(self.path), "every": self.every}

    def state_dict(self) -> dict[str, Any]:
        """Return a dictionary with the size of the file, so that a resumed run can remove later lines."""
        path = Path(self.path)
        return {"size": path.stat().st_size if path.exists() else 0}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remove the lines written after the checkpoint, because the resumed run writes them again."""
        path = Path(self.path)
        if self.writes and path.exists() and path.stat().st_size > state["size"]:
            os.truncate(path, state["size"])

    def _open(self) -> TextIO:
        if self._file is None:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a", newline="", encoding="utf-8")  # noqa: SIM115  closed in on_end
        return self._file

    @abstractmethod
    def _write(self, row: dict[str, float]) -> None: ...


@_callback_doc
class CSVLog(Log):
    """Write the metrics as CSV.  The first line of the file determines the columns.

    >>> from adjoint import train
    >>> log = train.CSVLog("runs/log.csv")
    """

    _columns: list[str] | None = None

    def on_end(self, trainer: Trainer) -> None:
        """Close the file.  The columns are read again when the file is opened again."""
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
        """Return the names of the columns of the existing file, or None if the file is empty.

        Raise if ``row`` has a key that is not a column.
        """
        with open(self.path, newline="", encoding="utf-8") as file:
            columns = next(csv.reader(file), None)
        other = [] if columns is None else [name for name in row if name not in columns]
        if other:
            raise ArgumentError(
                f"CSVLog: the existing file {os.fspath(self.path)} has no columns {', '.join(other)}, so it "
                "is the log of a different run.\n  Remove the file, or use a different path."
            )
        return columns


@_callback_doc
class JSONLog(Log):
    """Write the metrics as one JSON object per line.

    >>> from adjoint import train
    >>> log = train.JSONLog("runs/log.jsonl", every="step")
    """

    def _write(self, row: dict[str, float]) -> None:
        file = self._open()
        file.write(json.dumps({k: v if math.isfinite(v) else str(v) for k, v in row.items()}) + "\n")
        file.flush()


class NonFiniteGuard(Callback):
    """Raise ``NonFiniteError`` before an update if the loss or a gradient is not finite.

    Examples
    --------
    >>> from adjoint import train
    >>> guard = train.NonFiniteGuard()
    """

    def before_update(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Raise if the loss or the norm of the gradients is not finite."""
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs[name]):
                bad = [
                    path
                    for path, p in trainer.named_parameters().items()
                    if p.grad is not None and not math.isfinite(global_norm([p.grad]))
                ]
                where = f"\n  Gradients that are not finite: {', '.join(bad)}." if bad else ""
                raise NonFiniteError(
                    f"{name} is {logs[name]} at step {trainer.step + 1}, epoch {trainer.epoch + 1}.  "
                    f"The weights were not updated.{where}\n"
                    "  Lower the learning rate, clip gradients, or find the op with ad.detect_anomaly()."
                )


class GradientFlow(Callback):
    """Record the norm of the gradient of each parameter every few steps.

    The attribute ``history`` is a list of pairs: a step, and a dictionary of norms by parameter.

    Parameters
    ----------
    every : int
        The number of steps between records.

    Examples
    --------
    >>> from adjoint import train
    >>> flow = train.GradientFlow(every=5)
    >>> flow.dead()
    []
    """

    def __init__(self, every: int = 10) -> None:
        if whole_number("GradientFlow", "every", every) < 1:
            raise ArgumentError(f"GradientFlow: every must be a positive number of steps, but is {every!r}.")
        self.every = every
        self.history: list[tuple[int, dict[str, float]]] = []

    def before_update(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Record the norms of the gradients before the update."""
        step = trainer.step + 1
        if step % self.every == 0:
            named = trainer.named_parameters()
            norms = {name: 0.0 if p.grad is None else global_norm([p.grad]) for name, p in named.items()}
            self.history.append((step, norms))

    def identity(self) -> dict[str, Any]:
        """Return ``every``, so that a resumed run recognises this callback."""
        return {"every": self.every}

    def dead(self, threshold: float = 1e-12) -> list[str]:
        """Return the parameters whose gradient norm was never above a threshold.

        Parameters
        ----------
        threshold : float
            The threshold.

        Returns
        -------
        list of str
            The names of the parameters.
        """
        names = {n for _, norms in self.history for n in norms}
        return sorted(n for n in names if all(h.get(n, 0.0) <= threshold for _, h in self.history))

    def state_dict(self) -> dict[str, Any]:
        """Return a dictionary with the recorded norms, ``"history"``."""
        return {"history": list(self.history)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state_dict``."""
        self.history = [(int(step), dict(norms)) for step, norms in state["history"]]
