"""A progress bar on a terminal; nothing where there is none."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["Progress"]


class Progress:
    """Shows epoch, loss, rate, gradient norm, speed and time left with rich, if it is installed.

    Quiet when standard error is not a terminal, when rich is missing, or when ``show`` is False.
    """

    def __init__(self, total: int | None, show: bool | None = None) -> None:
        self._bar: Any = None
        self._task: Any = None
        wanted = sys.stderr.isatty() if show is None else show
        if not wanted:
            return
        try:
            from rich import progress
            from rich.console import Console
        except ImportError:
            return
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[numbers]}"),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("", total=total, numbers="")
        self._bar.start()

    def epoch(self, epoch: int, epochs: int, done: int) -> None:
        """Begin an epoch, of which ``done`` batches are behind us."""
        if self._bar is not None:
            self._bar.reset(self._task, description=f"epoch {epoch + 1}/{epochs}", completed=done)

    def step(self, logs: Mapping[str, float]) -> None:
        """Take note of a step."""
        if self._bar is not None:
            numbers = "  ".join(f"{k} {v:.4g}" for k, v in logs.items())
            self._bar.update(self._task, advance=1, numbers=numbers)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
