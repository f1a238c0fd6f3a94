"""``report``: write an HTML page about a training run."""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from adjoint.errors import InputError
from adjoint.inspect.causes import shown_place
from adjoint.inspect.page import columns, page, short_number
from adjoint.inspect.profiling import compiled_rows, holders_of, rows_of, write_text
from adjoint.inspect.recorded import curves, epochs_of
from adjoint.inspect.recorder import QUANTILES, Captured, Recorder, span
from adjoint.inspect.sentences import sentences
from adjoint.inspect.watch import Place
from adjoint.interop.notebook import display, in_notebook, page_html
from adjoint.train.trainer import Trainer
from adjoint.words import a, count

__all__ = ["report"]

EVENTS = 6000  # the largest number of events in the timeline
POINTS = 9000  # the largest number of points of a curve
COLUMNS = 4000  # the largest number of steps in a table, or of bars; screens have fewer columns of pixels
CELLS = 60_000  # the largest number of values in a table of gradients, updates or distributions


def report(
    source: Trainer | Recorder, path: str | os.PathLike[str] = "report.html", *, title: str | None = None
) -> Path:
    """Write an HTML page about a training run.  The page needs no network.  A notebook shows it.

    It begins with sentences about the loss, clipping, parameters without a gradient, and time.  Below are the
    curves, the gradients of all parameters, distributions, the graph, times, and the accumulation windows.
    All of this needs a ``Recorder`` among the trainer's callbacks; without one the page has only the curves
    of the epochs.

    Parameters
    ----------
    source : Trainer or Recorder
        The trainer or recorder of the run.
    path : path
        The file to write.
    title : str, optional
        The title of the page.  The default is the name of the running program.

    Returns
    -------
    Path
        The path of the file.

    Raises
    ------
    InputError
        If ``source`` is neither a trainer nor a recorder.

    Examples
    --------
    >>> import adjoint as ad, numpy as np, tempfile
    >>> from adjoint import nn, optim, train
    >>> x = np.linspace(-1, 1, 32, dtype=np.float32)[:, None]
    >>> model = nn.Linear(1, 1, rng=0)
    >>> optimizer = optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = train.Trainer(model, nn.functional.mse_loss, optimizer, callbacks=ad.inspect.Recorder())
    >>> history = trainer.fit(train.DataLoader((x, 2 * x), batch_size=8), epochs=5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ad.inspect.report(trainer, f"{folder}/report.html").name
    'report.html'
    """
    if isinstance(source, Trainer):
        recorder = next((c for c in source.callbacks if isinstance(c, Recorder)), None) or _of_history(source)
    elif isinstance(source, Recorder):
        recorder = source
    else:
        raise InputError(
            f"report: the first argument must be a Trainer or a Recorder, not {a(type(source).__name__)}."
        )
    target = Path(path)
    text = page(report_data(recorder, title or _program()))
    write_text(target, text)
    if in_notebook():
        display(page_html(text), str(target))
    return target


def _program() -> str:
    """Return the file name of the running program, or "Training run" if it is not a Python file."""
    name = os.path.basename(getattr(sys.modules.get("__main__"), "__file__", "") or "")
    return name if name.endswith(".py") and name != "__main__.py" else "Training run"


def _of_history(trainer: Trainer) -> Recorder:
    """Return a recorder filled with the metrics of each epoch of a trainer that had no recorder."""
    found = Recorder()
    found.epochs = epochs_of(trainer.history, trainer.step - trainer.epoch_steps)
    found.clip = trainer.clip if math.isfinite(trainer.clip) else None
    found.parameters = sum(p.size for p in trainer.named_parameters().values())
    return found


def report_data(recorder: Recorder, title: str) -> dict[str, Any]:
    """Return the recorded data as a dictionary of plain values, for the scripts of the page."""
    captured = recorder.captured
    facts = [count(recorder.parameters, "parameter")] if recorder.parameters else []
    steps, numbers = curves(recorder)
    if steps:
        facts.append(count(steps[-1], "step"))
    if captured is not None and captured.graph.boxes:
        facts.append(f"{count(captured.graph.ops(), 'op')} in the graph")
    drawn, scores = extremes(list(numbers.values())), _scores(recorder)
    data: dict[str, Any] = {
        "title": title,
        "facts": " · ".join(facts),
        "says": sentences(recorder),
        "clip": recorder.clip,
        "steps": {"step": [steps[i] for i in drawn], **_numbers(numbers, drawn)},
        "thinned": "" if len(drawn) == len(steps) else f"the extremes of {len(steps):,} recorded steps",
        "validation": {"step": [s for s, _ in scores], "loss": [short_number(v) for _, v in scores]},
        "parameters": recorder.names,
        "shapes": ["×".join(map(str, s)) or "()" for s in recorder.shapes],
        "windows": _windows(recorder),
        **_by_parameter(recorder),
    }
    if captured is not None:
        note = (
            f"of step {captured.step}; strips are coloured by the gradient norm; click a blue box to open it"
        )
        data["graph"] = columns(captured.graph, note)
    if captured is not None and captured.events:
        data["rows"] = _rows(captured)
        data["wall"] = span(captured.events) * 1e6 or 1.0
        data["timeline"] = _timeline(captured)
        data["memory"] = _memory(captured)
    return data


def _scores(recorder: Recorder) -> list[tuple[int, float]]:
    """Return the validation losses that are drawn, with their steps."""
    found = [(step, logs["val_loss"]) for step, logs in recorder.epochs if "val_loss" in logs]
    return [found[i] for i in extremes([[v for _, v in found]])]


def _numbers(
    numbers: Mapping[str, Sequence[float | None]], drawn: Sequence[int]
) -> dict[str, list[float | None]]:
    found = {}
    for name, row in numbers.items():
        values = [short_number(row[i], 5) for i in drawn]
        if any(v is not None for v in values):
            found[name] = values
    return found


def extremes(rows: Sequence[Sequence[float | None]], limit: int = POINTS) -> list[int]:
    """Return the indices of the values that are drawn: all, or about ``limit`` if there are more.

    Neighbours then form groups, and of each group and row the smallest value, the largest one and the first
    one that is not finite are drawn.  ``rows`` have equal lengths.
    """
    length = len(rows[0])
    if length <= limit:
        return list(range(length))
    chosen = {0, length - 1}
    borders = np.linspace(0, length, limit // (3 * len(rows)) + 1).astype(int).tolist()
    for row in rows:
        values = np.array(row, np.float64)  # None is NaN
        finite = np.isfinite(values)
        low, high = np.where(finite, values, np.inf), np.where(finite, values, -np.inf)
        for i, j in pairwise(borders):
            chosen |= {i + int(low[i:j].argmin()), i + int(high[i:j].argmax()), i + int(finite[i:j].argmin())}
    return sorted(chosen)


def _stride(length: int, width: int) -> int:
    """Return n such that a table of every n-th recorded step is not too large.

    It has at most ``CELLS`` values and ``COLUMNS`` steps.  ``length`` is the number of recorded steps,
    ``width`` the number of values of each.
    """
    return max(1, -(-length * max(1, width) // CELLS), -(-length // COLUMNS))


def _by_parameter(recorder: Recorder) -> dict[str, Any]:
    """Return the gradient norms, relative updates and distributions of each parameter over time.

    The keys are "gradients", "ratios" and "spread".
    """
    many = len(recorder.names)
    every = _stride(len(recorder.steps), many) if recorder.gradients else 1
    steps = recorder.steps[::every] if recorder.gradients else []
    grads, ratios = recorder.gradients[::every], recorder.ratios[::every]
    found: dict[str, Any] = {
        "gradients": {
            "step": steps,
            "rows": [[short_number(row[i], 3) for row in grads] for i in range(many)],
        },
        "ratios": {
            "step": steps,
            "rows": [[short_number(row[i], 3) for row in ratios] for i in range(many)],
            "quantiles": [_spread_of(row) for row in ratios],
        },
    }
    wide = 2 * len(QUANTILES) * many
    spread = recorder.spread[:: _stride(len(recorder.spread), wide)]
    found["spread"] = {"step": [s[0] for s in spread]}
    for name, each, total in (
        ("weights", [s[1] for s in spread], [s[3] for s in spread]),
        ("gradients", [s[2] for s in spread], [s[4] for s in spread]),
    ):
        found["spread"][name] = {
            "all": [_short(q) for q in total],
            "each": [[_short(row[i]) for row in each] for i in range(many)],
        }
    return found


def _short(quantiles: Sequence[float] | None) -> list[float | None] | None:
    return None if quantiles is None else [short_number(q, 3) for q in quantiles]


def _spread_of(row: Sequence[float | None]) -> list[float | None] | None:
    values = [v for v in row if v is not None and math.isfinite(v)]
    return _short([float(q) for q in np.percentile(values, QUANTILES)]) if values else None


def _windows(recorder: Recorder) -> dict[str, Any]:
    entries = recorder.windows
    clipped, skipped = sum(w[4] for w in entries), sum(w[5] for w in entries)
    typical = statistics.median(w[1] for w in entries) if entries else 0
    note = f"{count(len(entries), 'window')} of {typical:g} micro-batches; a bar is the weight of a window"
    note += f"; {clipped:,} clipped" if clipped else ""
    note += f"; {skipped:,} with skipped micro-batches" if skipped else ""
    group = max(1, -(-len(entries) // COLUMNS))
    entries = [
        max(entries[i : i + group], key=lambda w: (w[5], w[4])) for i in range(0, len(entries), group)
    ]  # of neighbours one that was skipped or clipped
    return {
        "step": [w[0] for w in entries],
        "pieces": [w[1] for w in entries],
        "weight": [short_number(w[2]) or 0 for w in entries],
        "norm": [short_number(w[3]) for w in entries],
        "clipped": [int(w[4]) for w in entries],
        "skipped": [int(w[5]) for w in entries],
        "note": note,
    }


def _rows(captured: Captured) -> dict[str, list[list[Any]]]:
    def path(scope: int) -> str:
        return captured.paths[scope] if scope >= 0 else ""

    found = {}
    for by in ("op", "line", "module"):
        rows = rows_of(captured.events, by, path)
        compiled = compiled_rows(captured.events, by, path)
        found[by] = [
            [r.name, r.calls, round(r.forward * 1e6, 2), round(r.backward * 1e6, 2)]
            + ([None, None] if r.name in compiled else [r.made, r.kept])
            for r in rows
        ]
    return found


def _timeline(captured: Captured) -> dict[str, Any]:
    """Return the timeline of the captured step: for each event, its op, phase, start, duration and module.

    Times are in microseconds since the first event.  If there are many events, only the slowest are returned.
    """
    events = sorted(captured.events, key=lambda e: e.start)
    if len(events) > EVENTS:
        slowest = sorted(range(len(events)), key=lambda i: events[i].start - events[i].stop)[:EVENTS]
        events = [events[i] for i in sorted(slowest)]
    began = events[0].start
    names: dict[str, int] = {}
    paths: dict[int, int] = {-1: 0}
    chains: list[list[str]] = [[]]
    rows = []
    for e in events:
        if e.scope not in paths:
            paths[e.scope] = len(chains)
            chains.append(_chain(captured, e.scope))
        phase = {"backward": 1, "update": 2, "compiled": 3}.get(e.phase, 0)
        at = names.setdefault(e.name, len(names))
        start, length = round((e.start - began) * 1e6, 2), round((e.stop - e.start) * 1e6, 2)
        rows.append([at, phase, start, length, paths[e.scope]])
    end = max(r[2] + r[3] for r in rows)
    return {"names": list(names), "paths": chains, "events": rows, "end": end, "gap": end / 8}


def _memory(captured: Captured) -> dict[str, Any] | None:
    """Return the bytes of all arrays over time in the captured step, and the ops that use most at the peak.

    Return None if memory was not measured, or not all of it.
    """
    memory = captured.memory
    if memory is None or not memory.curve or captured.compiled:
        return None
    began = min(e.start for e in captured.events)
    points = [memory.curve[i] for i in extremes([[size for _, size in memory.curve]], 1500)]
    return {
        "time": [
            0.0,
            *(round((t - began) * 1e6, 1) for t, _ in points),
            round(span(captured.events) * 1e6, 1),
        ],
        "bytes": [0, *(size for _, size in points), points[-1][1]],
        "peak": memory.peak,
        "holders": holders_of(memory, _front_cut)[:4],
    }


def _chain(captured: Captured, scope: int) -> list[str]:
    """Return the names of the nested module calls that lead to ``scope``, the outermost first."""
    found: list[str] = []
    while scope >= 0:
        parent = captured.parents[scope]
        own = captured.paths[scope]
        own = own.removeprefix(f"{captured.paths[parent]}.") if parent >= 0 else own
        kind = captured.kinds[scope]
        found.append(own if own == kind else f"{own} {kind}")
        scope = parent
    return found[::-1]


def _front_cut(place: Place) -> str:
    """Return a place as ``shown_place`` does; of a long path only the last directory and the file.

    >>> _front_cut(("/a/long/path/of/directories/to/some/program.py", 12, "main"))
    '…/some/program.py:12'
    """
    text = shown_place(place)
    ends = text.replace(os.sep, "/").rsplit("/", 2)
    return text if len(text) < 40 or len(ends) < 3 else "…/" + "/".join(ends[1:])
