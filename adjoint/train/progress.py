"""The progress of a training: a bar on a terminal or in a notebook, and lines in other output."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from adjoint.errors import MissingExtraError
from adjoint.interop.notebook import display, in_notebook, text_html
from adjoint.words import count

__all__ = ["Progress", "Show", "length_of", "numbers_line"]

Show = bool | Literal["auto"]

RECENT = 50  # the number of last steps over which the throughput is averaged
PAUSE = 0.1  # seconds between two updates of a bar
CELLS = 24  # the width of the bar in a notebook


class _Lines:
    """Print lines to the standard error stream."""

    bar = False  # whether ``update`` shows something

    def line(self, text: str) -> None:
        """Print a line."""
        if sys.stderr is not None:  # a program without a console has no streams
            print(text, file=sys.stderr, flush=True)

    def update(self, epoch: str, done: int, numbers: str) -> None:
        """Show the state of a training: the epoch as text, the number of steps done, and the metrics."""

    def close(self) -> None:
        """Remove the bar and restore the terminal."""


class _Terminal(_Lines):
    """A bar of rich.  ``total`` is the number of all steps, or None."""

    bar = True

    def __init__(self, total: int | None) -> None:
        try:
            from rich import progress
            from rich.console import Console
            from rich.table import Column
        except ImportError:
            raise MissingExtraError("a progress bar", "rich", "train") from None
        one_line = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=16),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("{task.fields[numbers]}", markup=False, table_column=one_line),
            console=Console(stderr=True),
            expand=True,
        )
        self._task = self._bar.add_task("", total=total, numbers="")
        self._bar.start()

    def line(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def update(self, epoch: str, done: int, numbers: str) -> None:
        self._bar.update(self._task, description=epoch, completed=done, numbers=numbers)

    def close(self) -> None:
        self._bar.stop()


class _Notebook(_Lines):
    """A bar of text in a notebook, which needs no widgets.  ``total`` is the number of all steps, or None."""

    bar = True

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._began: tuple[float, int] | None = None  # the time and the number of steps at the start
        self._shown: Any = None

    def line(self, text: str) -> None:
        print(text, flush=True)

    def update(self, epoch: str, done: int, numbers: str) -> None:
        now = time.perf_counter()
        began, first = self._began = self._began or (now, done)
        text = f"{epoch}  {count(done, 'step')}  {numbers}"
        if self._total:
            full = CELLS * min(done, self._total) // self._total
            left = (now - began) / (done - first) * (self._total - done) if done > first else 0.0
            remaining = f"  {_clock(left)} left" if left else ""
            text = f"{epoch}  {'█' * full}{'░' * (CELLS - full)}  {done}/{self._total}{remaining}  {numbers}"
        self._shown = display(text_html(text, "adjoint-progress"), text, self._shown)


class Progress:
    """The epoch, the metrics, the throughput and the remaining time of a training.

    On a terminal, with rich, and in a notebook there is a bar, and a line with the results of each epoch.
    Other output has only these lines.  ``show`` True shows the bar in any output, False shows nothing.
    ``steps`` is the number of steps of an epoch; if it is None, the remaining time is not shown.
    """

    def __init__(self, steps: int | None, epochs: int, show: Show = "auto") -> None:
        self._steps, self._epochs = steps, epochs
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)  # time and weight of each step
        self._screen = _screen(None if steps is None else steps * epochs, show)
        self._epoch, self._done = "", 0
        self._next = 0.0  # the time of the next update
        self._latest: tuple[Mapping[str, float], str] | None = None  # the metrics of the last step

    def epoch(self, epoch: int, done: int) -> None:
        """Show that an epoch starts; a resumed run has already made ``done`` of its steps."""
        self._recent.append((time.perf_counter(), 0.0))
        if self._steps is not None:
            self._done = epoch * self._steps + done
        self._epoch = f"epoch {epoch + 1}/{self._epochs}"
        self._update()

    def step(self, logs: Mapping[str, float], weight: float, unit: str) -> None:
        """Show the metrics of a step, and count the weight of its batch in the throughput.

        ``unit`` is the noun that the weight counts, such as "tokens".
        """
        now = time.perf_counter()
        self._recent.append((now, weight))
        self._done += 1
        self._latest = logs, unit
        if now >= self._next:
            self._update()

    def _update(self) -> None:
        if self._screen is None or not self._screen.bar:
            return
        numbers = ""
        if self._latest is not None:
            logs, unit = self._latest
            numbers = numbers_line(logs) + (f"  {self._throughput()} {unit}/s" if self._recent else "")
        self._screen.update(self._epoch, self._done, numbers)
        self._next = time.perf_counter() + PAUSE

    def _throughput(self) -> str:
        """Return the sum of the weights of the last batches, such as examples, per second, as text."""
        seconds = self._recent[-1][0] - self._recent[0][0]
        weight = sum(w for _, w in self._recent) - self._recent[0][1]
        return _short(weight / seconds if seconds else 0.0)

    def result(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Print a line with the results of an epoch."""
        if self._screen is not None:
            self._update()
            self._screen.line(f"epoch {epoch}/{self._epochs}  {numbers_line(logs)}")
        self._recent.clear()  # validation does not count for the throughput

    def stopped(self, step: int, reason: str, resumable: bool) -> None:
        """Print why training ended early at a step, and whether it can be resumed."""
        if self._screen is not None:
            self._update()
            more = "; its checkpoint is written, and fit(resume=True) continues from it" if resumable else ""
            self._screen.line(f"{reason} after step {step}{more}")

    def close(self) -> None:
        """Remove the bar and restore the terminal."""
        if self._screen is not None:
            self._screen.close()
            self._screen = None


def _screen(total: int | None, show: Show) -> _Lines | None:
    """Return where progress is shown, or None.  ``total`` is the number of all steps, or None."""
    if not show:
        return None
    if in_notebook():
        return _Notebook(total)
    if show == "auto" and (sys.stderr is None or not sys.stderr.isatty()):
        return _Lines()
    try:
        return _Terminal(total)
    except MissingExtraError:
        if show == "auto":
            return _Lines()
        raise


def _clock(seconds: float) -> str:
    """Return a time as text: 0:05, 12:30, 3:00:00.

    >>> _clock(5.4), _clock(750), _clock(10_800)
    ('0:05', '12:30', '3:00:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


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
