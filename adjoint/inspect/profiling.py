"""``profile``: measure the time and memory of a ``with`` block, by op, by line and by module."""

from __future__ import annotations

import functools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from adjoint.core.tensor import wrap
from adjoint.errors import ArgumentError, MissingExtraError
from adjoint.inspect.causes import shown_place
from adjoint.inspect.watch import Cost, Event, Memory, Place, TracedMemory, Watch
from adjoint.interop.notebook import table, text_html
from adjoint.nn import Linear, Sequential, Tanh
from adjoint.optim import SGD
from adjoint.storage.atomic import replace_file
from adjoint.words import count

__all__ = ["Profile", "Row", "profile", "quantity", "time_text"]

KEYS = ("op", "line", "module")


def profile(*, exact: bool = False) -> Profile:
    """Return a context manager that measures the time and memory of ops.

    Parameters
    ----------
    exact : bool
        Whether to measure peak memory with ``tracemalloc``, including temporary arrays inside ops.  Ops then
        take longer.

    Returns
    -------
    Profile
        The context manager, which prints as a table after the ``with`` block.

    Examples
    --------
    >>> import adjoint as ad
    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> with ad.inspect.profile() as p:
    ...     (w * w).sum().backward()
    >>> [(row.name, row.calls) for row in sorted(p.rows(), key=lambda row: row.name)]
    [('multiply', 1), ('sum', 1)]
    """
    return Profile(exact=exact)


@dataclass
class Row:
    """One row of a profile: an op, a line or a module.

    Parameters
    ----------
    name : str
        The op, the line or the module.
    calls : int
        The number of forward calls, or of backward calls if there are more.
    forward : float
        Seconds in the forward.
    backward : float
        Seconds in the backward.
    made : int
        Bytes of the arrays that it created.
    kept : int
        Bytes of the arrays that it saved for the backward, without those that another op had saved already.

    Examples
    --------
    >>> from adjoint.inspect import Row
    >>> Row("mul", 1, 0.5, 0.25, 0, 0).seconds
    0.75
    """

    name: str
    calls: int = 0
    forward: float = 0.0
    backward: float = 0.0
    made: int = 0
    kept: int = 0

    @property
    def seconds(self) -> float:
        """Seconds in the forward and the backward together."""
        return self.forward + self.backward


class Profile:
    """A context manager that measures time and memory, as returned by ``profile``.

    Parameters
    ----------
    exact : bool
        Whether to measure the peak of memory with ``tracemalloc``.

    Examples
    --------
    >>> import adjoint as ad
    >>> with ad.inspect.Profile() as p:
    ...     _ = ad.exp(ad.zeros(1000))
    >>> p.made_bytes
    8000
    """

    def __init__(self, *, exact: bool = False) -> None:
        self.watch = Watch(cost=(0.0, 0.0) if exact else cost_of_observing())
        self._exact = TracedMemory() if exact else None

    def __enter__(self) -> Profile:
        if self._exact is not None:
            self.watch.exact = self._exact.__enter__()
        self.watch.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.watch.__exit__(*exception)
        if self._exact is not None:
            self._exact.__exit__(*exception)

    @property
    def seconds(self) -> float:
        """Seconds in the ``with`` block, without the time of the measurement."""
        return self.watch.seconds

    @property
    def made_bytes(self) -> int:
        """The bytes of all arrays that ops and the backward created."""
        return self._memory.total

    @property
    def kept_bytes(self) -> int:
        """The bytes of the arrays that ops saved for the backward; each array counts once."""
        return sum(e.kept for e in self.watch.events)

    @property
    def peak_bytes(self) -> int:
        """The peak of the bytes of arrays that ops created and that existed at the same time.

        With ``exact=True`` this is the peak of all memory, including temporary arrays inside ops.
        """
        return self._memory.peak if self._exact is None else self._exact.peak

    @property
    def _memory(self) -> Any:
        assert self.watch.memory is not None
        return self.watch.memory

    def holders(self) -> list[tuple[str, int]]:
        """Return which ops created the arrays that existed at the peak.

        Returns
        -------
        list of (str, int)
            Op with line, and bytes; the largest first.
        """
        return holders_of(self._memory)

    def rows(self, by: str = "op") -> list[Row]:
        """Return the rows of the table, the slowest first.

        Parameters
        ----------
        by : str
            "op", "line" or "module".

        Returns
        -------
        list of Row
            One row per op, line or module.
        """
        if by not in KEYS:
            raise ArgumentError(f"profile: by must be 'op', 'line' or 'module', not {by!r}.")
        return rows_of(self.watch.events, by, self.watch.module_path)

    def compiled(self) -> dict[str, str]:
        """Return the kernels or instructions of each compiled function that ran.

        Returns
        -------
        dict of str to str
            The text for each function name.
        """
        return {e.name: e.note for e in self.watch.events if e.phase == "compiled"}

    # Showing -----------------------------------------------------------------------------------

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<Profile, {count(len(self.watch.events), 'op')}, {time_text(self.seconds)}>"

    def _repr_html_(self) -> str:
        head, lines = self._cells("op", 20)
        return table(lines, head) + text_html("\n".join(self._summary()))

    def table(self, by: str = "op", limit: int = 20) -> str:
        """Return the table as plain text.

        Parameters
        ----------
        by : str
            "op", "line" or "module".
        limit : int
            The number of rows.

        Returns
        -------
        str
            The table and a summary.
        """
        head, lines = self._cells(by, limit)
        widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
        texts = []
        for line in (head, *lines):
            first, *rest = line
            cells = [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True))]
            texts.append("  ".join(cells).rstrip())
        return "\n".join([*texts, "", *self._summary()])

    def show(self, by: str = "op", limit: int = 20) -> None:
        """Print the table to the terminal with rich.

        Parameters
        ----------
        by : str
            "op", "line" or "module".
        limit : int
            The number of rows.

        Raises
        ------
        MissingExtraError
            If rich is not installed.
        """
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            raise MissingExtraError("a table of the profile", "rich", "train") from None
        head, lines = self._cells(by, limit)
        table = Table(box=None, header_style="bold", pad_edge=False)
        for i, name in enumerate(head):
            table.add_column(name, justify="right" if i else "left", no_wrap=i > 0, overflow="fold")
        top = max((row.seconds for row in self.rows(by)), default=0.0)
        for line, row in zip(lines, self.rows(by), strict=False):
            table.add_row(*line, style="bold" if row.seconds > 0.25 * top else None)
        console = Console()
        console.print(table)
        for sentence in self._summary():
            console.print(sentence, highlight=False, markup=False)

    def _cells(self, by: str, limit: int) -> tuple[list[str], list[list[str]]]:
        head = [by, "calls", "forward", "backward", "share", "made", "kept"]
        total = self.seconds or 1.0
        compiled = compiled_rows(self.watch.events, by, self.watch.module_path)
        lines = [
            [
                row.name, f"{row.calls:,}", time_text(row.forward),
                time_text(row.backward) if row.backward else "", f"{row.seconds / total:.1%}",
                *(("", "") if row.name in compiled else (quantity(row.made), quantity(row.kept))),
            ]
            for row in self.rows(by)[:limit]
        ]  # fmt: skip
        return head, lines

    def _summary(self) -> list[str]:
        ops = sum(e.seconds for e in self.watch.events)
        lines = [
            f"{time_text(self.seconds)} in total: {time_text(ops)} in ops and "
            f"{time_text(max(0.0, self.seconds - ops))} in Python between them.",
            f"{quantity(self.made_bytes)} of arrays made, {quantity(self.kept_bytes)} kept for backward, "
            f"{quantity(self.peak_bytes)} at the peak"
            + (f", in {self._exact.event.name}" if self._exact is not None and self._exact.event else "")
            + (", without the arrays inside compiled functions." if self.compiled() else "."),
        ]
        holders = self.holders()[:3]
        if holders:
            lines.append(f"At the peak: {', '.join(f'{name} {quantity(size)}' for name, size in holders)}.")
        for name, note in self.compiled().items():
            lines.append(
                f"{name} is compiled: {_instructions(note)}.  Profile.compiled() returns its program."
            )
        return lines

    def chrome_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write the events as a Chrome trace, for ui.perfetto.dev or chrome://tracing.

        Parameters
        ----------
        path : path
            The file.

        Returns
        -------
        Path
            The path.
        """
        watch = self.watch
        threads = {t: i for i, t in enumerate(dict.fromkeys(e.thread for e in watch.events))}

        def moment(t: float) -> float:
            return round((t - watch.began) * 1e6, 3)

        found: list[dict[str, Any]] = [
            {
                "name": e.name, "cat": e.phase, "ph": "X", "pid": 1, "tid": threads[e.thread],
                "ts": moment(e.start), "dur": round((e.stop - e.start) * 1e6, 3),
                "args": {"line": shown_place(e.place), "made": e.made, "kept": e.kept},
            }
            for e in watch.events
        ]  # fmt: skip
        found += [
            {
                "name": watch.module_path(s.index), "cat": "module", "ph": "X", "pid": 1, "tid": 0,
                "ts": moment(s.start), "dur": round((s.stop - s.start) * 1e6, 3),
            }
            for s in watch.scopes
        ]  # fmt: skip
        found += [
            {"name": "bytes", "ph": "C", "pid": 1, "ts": moment(t), "args": {"arrays": size}}
            for t, size in self._memory.curve
        ]
        target = Path(path)
        text = json.dumps({"traceEvents": found, "displayTimeUnit": "ms"})
        write_text(target, text)
        return target


@functools.cache
def cost_of_observing() -> Cost:
    """Return the seconds by which observing slows a ``with`` block down: once, and for each event.

    The observer subtracts its own time, but observed ops take a slower path, and the observer's code evicts
    the program's code from the CPU caches.  This cost is measured by running one and eight training steps of
    a tiny network with and without an observer.
    """
    net = Sequential(Linear(4, 4, rng=0), Tanh(), Linear(4, 1, rng=1))
    optimizer, x = SGD(net.parameters(), lr=0.0), wrap(np.ones((1, 4), np.float32))

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            (net(x) ** 2).sum().backward()
            optimizer.step()

    def excess(count: int) -> tuple[float, int]:
        plain, seen, events = [], [], 0
        for _ in range(20):
            start = perf_counter()
            steps(count)
            plain.append(perf_counter() - start)
            with Watch() as watch:
                steps(count)
            seen.append(watch.seconds)
            events = len(watch.events)
        return min(seen) - min(plain), events

    steps(20)  # warm up
    (short, few), (long, many) = excess(1), excess(8)
    each = (long - short) / (many - few)
    return max(0.0, short - few * each), max(0.0, each)


def _instructions(note: str) -> str:
    """Return the ops of a compiled program and how often each occurs, as text: "matmul ×2, tanh".

    ``note`` is the text of the program.  At most eight ops are listed.  If the text contains no ops, as for a
    native program, return its first line.
    """
    counts = Counter(re.findall(r"= (\w+)\(", note)).most_common()
    shown = ", ".join(f"{name} ×{n}" if n > 1 else name for name, n in counts[:8])
    return (shown or note.partition("\n")[0]) + (" …" if len(counts) > 8 else "")


def write_text(path: Path, text: str) -> None:
    """Write text to a file atomically: another process sees the old or the new file, never a part."""

    def write(fresh: str) -> None:
        Path(fresh).write_text(text, encoding="utf-8")

    replace_file(path, write)


def holders_of(memory: Memory, place: Callable[[Place], str] = shown_place) -> list[tuple[str, int]]:
    """Return the ops that created the arrays that existed at the peak, with their bytes, the largest first.

    An op is described by its name, phase and line; ``place`` writes the line.
    """
    found: dict[str, int] = {}
    for event, size in memory.holders:
        name = f"{event.name} {event.phase} {place(event.place)}"
        found[name] = found.get(name, 0) + size
    return sorted(found.items(), key=lambda each: -each[1])


def rows_of(events: Iterable[Event], by: str, module_path: Callable[[int], str]) -> list[Row]:
    """Return one row per op, line or module, with the sums over its events; the slowest row is first.

    ``by`` is "op", "line" or "module".  ``module_path`` is a function that returns the path of a module call,
    given the index of its scope.
    """
    rows: dict[str, Row] = {}
    calls: dict[str, list[int]] = {}
    for event in events:
        if by == "op":
            name = event.name
        elif by == "line":
            name = shown_place(event.place)
        else:
            name = module_path(event.scope) or "(outside modules)"
        row = rows.setdefault(name, Row(name))
        back = event.phase == "backward"
        calls.setdefault(name, [0, 0])[back] += 1
        if back:
            row.backward += event.seconds
        else:
            row.forward += event.seconds
        row.made += event.made
        row.kept += event.kept
    for name, row in rows.items():
        row.calls = max(calls[name])
    return sorted(rows.values(), key=lambda row: -row.seconds)


def compiled_rows(events: Iterable[Event], by: str, module_path: Callable[[int], str]) -> set[str]:
    """Return the names of the rows that contain compiled functions, whose bytes are not known."""
    return {row.name for row in rows_of((e for e in events if e.phase == "compiled"), by, module_path)}


def quantity(size: float) -> str:
    """Return ``size``, a number of bytes, as text: 0, 950 B, 12.3 kB, 4.56 MB."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{size / factor:.3g} {unit}" if size < 1000 * factor else f"{size / factor:.0f} {unit}"
    return f"{int(size)} B" if size else "0"


def time_text(seconds: float) -> str:
    """Return a time as text: 12.3 µs, 4.56 ms, 1.2 s."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
