"""A progress bar on a terminal or in a notebook."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from adjoint.errors import MissingExtraError
from adjoint.interop.notebook import in_notebook

__all__ = ["Progress", "length_of", "numbers_line"]

RECENT = 50  # the number of last steps over which the throughput is averaged


class Progress:
    """A progress bar with the epoch, the metrics, the throughput and the remaining time; it needs rich.

    A line with the results is printed after each epoch.  By default nothing is shown outside terminals and
    notebooks, or if rich is not installed.  ``show`` True always shows the bar, False never.  ``steps`` is
    the number of steps of an epoch; if it is None, the remaining time is not shown.
    """

    def __init__(self, steps: int | None, epochs: int, show: bool | None = None) -> None:
        self._bar: Any = None
        self._steps, self._epochs = steps, epochs
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)  # time and weight of each step
        if not (sys.stderr.isatty() or in_notebook() if show is None else show):
            return
        try:
            from rich import progress
            from rich.console import Console
            from rich.table import Column
        except ImportError:
            if show:
                raise MissingExtraError("a progress bar", "rich", "train") from None
            return
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=16),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("{task.fields[numbers]}", markup=False, table_column=Column(ratio=1)),
            console=Console(stderr=not in_notebook()),  # a notebook shows rich's HTML
            expand=True,
        )
        self._task = self._bar.add_task("", total=None if steps is None else steps * epochs, numbers="")
        self._bar.start()

    def epoch(self, epoch: int, done: int) -> None:
        """Show that an epoch starts; a resumed run has already made ``done`` of its steps."""
        if self._bar is not None:
            self._recent.append((time.perf_counter(), 0.0))
            behind = epoch * (self._steps or 0) + done
            self._bar.update(self._task, description=f"epoch {epoch + 1}/{self._epochs}", completed=behind)

    def step(self, logs: Mapping[str, float], weight: float, unit: str) -> None:
        """Show the metrics of a step, and count the weight of its batch in the throughput.

        ``unit`` is the noun that the weight counts, such as "tokens".
        """
        if self._bar is not None:
            self._recent.append((time.perf_counter(), weight))
            self._bar.update(
                self._task, advance=1, numbers=f"{numbers_line(logs)}  {self._throughput()} {unit}/s"
            )

    def _throughput(self) -> str:
        """Return the sum of the weights of the last batches, such as examples, per second, as text."""
        seconds = self._recent[-1][0] - self._recent[0][0]
        weight = sum(w for _, w in self._recent) - self._recent[0][1]
        return _short(weight / seconds if seconds else 0.0)

    def result(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Print a line with the results of an epoch."""
        if self._bar is not None:
            self._recent.clear()  # validation does not count for the throughput
            self._bar.console.print(
                f"epoch {epoch}/{self._epochs}  {numbers_line(logs)}", highlight=False, markup=False
            )

    def stopped(self, step: int, reason: str, resumable: bool) -> None:
        """Print why training ended early at a step, and whether it can be resumed."""
        if self._bar is not None:
            more = "; its checkpoint is written, and fit(resume=True) continues from it" if resumable else ""
            self._bar.console.print(f"{reason} after step {step}{more}", highlight=False, markup=False)

    def close(self) -> None:
        """Remove the bar and restore the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def numbers_line(logs: Mapping[str, float]) -> str:
    """Return the names and values of metrics as one line of text."""
    return "  ".join(f"{name} {value:.4g}" for name, value in logs.items())


def _short(number: float) -> str:
    """Return a number as text with three digits: 950, 12.3k, 4.56M."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g}{letter}"
    return f"{number:.3g}"


def length_of(loader: Any) -> int | None:
    """Return the number of batches of a loader, or None if it is not known."""
    try:
        return len(loader)
    except TypeError:  # no length; InputError is a TypeError too
        return None
