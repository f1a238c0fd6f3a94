"""Write the sentences at the top of a report: about the loss, clipping, gradients, updates and time."""

from __future__ import annotations

import linecache
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from adjoint.inspect.profiling import quantity, rows_of, time_text
from adjoint.inspect.recorded import curves
from adjoint.inspect.recorder import Captured, Recorder, span
from adjoint.words import count

__all__ = ["Sentence", "sentences"]

Sentence = tuple[str, str, str]  # the level: "good", "warn", "bad" or "note"; the text; a line of code or ""


def sentences(recorder: Recorder) -> list[Sentence]:
    """Return the sentences of a report about a run, problems first."""
    captured = recorder.captured
    found: list[Sentence] = []
    for finding in [] if captured is None else captured.findings:
        code = linecache.getline(finding.file, finding.line).strip() if finding.file else ""
        found.append(("bad", finding.sentence, code))
    found += _loss(recorder)
    found += _clipping(recorder)
    found += _gradients(recorder, bool(captured and captured.findings))
    if captured is not None:
        found += _time(recorder, captured)
    return found


def _loss(recorder: Recorder) -> list[Sentence]:
    steps, numbers = curves(recorder)
    losses = [v for v in numbers["loss"] if v is not None]
    found: list[Sentence] = []
    bad = sum(not math.isfinite(v) for v in losses)
    if bad:
        found.append(("bad", f"The loss was not finite in {bad:,} of {count(len(losses), 'step')}.", ""))
    losses = [v for v in losses if math.isfinite(v)]
    if losses:
        few = max(1, min(5, len(losses) // 4))
        a, b = (math.fsum(v / few for v in part) for part in (losses[:few], losses[-few:]))
        after = count(steps[-1], "step")
        if len(losses) == 1:
            found.append(("note", f"The loss is {b:.3g} after {after}.", ""))
        elif f"{a:.3g}" == f"{b:.3g}":
            found.append(("warn", f"The loss is {b:.3g} after {after}, as at the start.", ""))
        elif b < a:
            level = "good" if b < 0.5 * a or b <= 0 else "note" if b < 0.95 * a else "warn"
            only = " only" if level == "warn" else ""
            found.append((level, f"The loss fell{only} from {a:.3g} to {b:.3g} in {after}.", ""))
        else:
            found.append(("bad", f"The loss rose from {a:.3g} to {b:.3g} in {after}.", ""))
    return found + _validation([logs for _, logs in recorder.epochs])


def _validation(epochs: Sequence[Mapping[str, float]]) -> list[Sentence]:
    """Return sentences about the validation loss; ``epochs`` has the metrics of each epoch."""
    scored = [(i, logs) for i, logs in enumerate(epochs) if "val_loss" in logs]
    finite = [(i, logs) for i, logs in scored if math.isfinite(logs["val_loss"])]
    found: list[Sentence] = []
    if len(finite) < len(scored):
        bad = len(scored) - len(finite)
        found.append(
            ("bad", f"The validation loss was not finite in {bad} of {count(len(scored), 'epoch')}.", "")
        )
    if not finite:
        return found
    best = min(range(len(finite)), key=lambda k: finite[k][1]["val_loss"])
    last = finite[-1][1]
    text = f"The validation loss is {last['val_loss']:.3g}"
    if "val_accuracy" in last:
        text += f", the accuracy {last['val_accuracy']:.1%}"
    text += f"; the best epoch is {finite[best][0] + 1} of {len(epochs)}."
    over = _overfitting([logs for _, logs in finite], best)
    return [*found, ("warn" if over else "good", text + over, "")]


def _overfitting(epochs: Sequence[Mapping[str, float]], best: int) -> str:
    """Return a sentence if the validation loss has risen since the best epoch while the training loss fell.

    The medians of at most three last epochs are compared with the best epoch.  A rise counts from a tenth of
    the best validation loss; if that is not positive, from a tenth of its improvement until then.
    """
    late = epochs[max(best + 1, len(epochs) - 3) :]
    if not late or any(not math.isfinite(e.get("loss", math.nan)) for e in (epochs[best], *late)):
        return ""
    score, loss = (statistics.median(e[name] for e in late) for name in ("val_loss", "loss"))
    low, before = epochs[best]["val_loss"], epochs[best]["loss"]
    size = abs(low) if low > 0 else max(abs(low), epochs[0]["val_loss"] - low)
    if score - low <= 0.1 * size or loss >= before:
        return ""
    return (
        f"  Since then it rose from {low:.3g} to {score:.3g} while the training loss fell from {before:.3g} "
        f"to {loss:.3g}: the model overfits."
    )


def _clipping(recorder: Recorder) -> list[Sentence]:
    found: list[Sentence] = []
    norms = [v for v in recorder.numbers.get("grad_norm", []) if v is not None]
    if recorder.clip is not None and norms:
        clipped = sum(n > recorder.clip for n in norms)
        often = clipped > 0.5 * len(norms)
        who = f"{clipped:,} of {count(len(norms), 'step')}" if clipped else "No step"
        text = f"{who} {'were' if clipped > 1 else 'was'} clipped at {recorder.clip:g}."
        found.append(("warn" if often else "note", text, ""))
    skipped = sum(w[5] for w in recorder.windows)
    if skipped:
        found.append(("warn", f"{count(skipped, 'accumulation window')} skipped micro-batches.", ""))
    return found


def _gradients(recorder: Recorder, explained: bool) -> list[Sentence]:
    if not recorder.gradients:
        return []
    rows, names = recorder.gradients, recorder.names
    late = rows[len(rows) // 2 :]
    finite = {name: [row[i] for row in late if math.isfinite(row[i])] for i, name in enumerate(names)}
    typical = {name: statistics.median(values) for name, values in finite.items() if values}
    found: list[Sentence] = []
    bad = [i for i in range(len(names)) if any(not math.isfinite(row[i]) for row in rows)]
    none = [name for name, v in typical.items() if v == 0]
    some = {name: v for name, v in typical.items() if v > 0}
    if bad:
        often = sum(any(not math.isfinite(row[i]) for i in bad) for row in rows)
        steps = f"{often:,} of {count(len(rows), 'step')}"
        text = f"The gradient of {_first([names[i] for i in bad])} was not finite in {steps}."
        found.append(("bad", text, ""))
    if none and not explained:
        found.append(("bad", f"No gradient reaches {_first(none)}.", ""))
    elif not none and not bad:
        of = "the only parameter" if len(typical) == 1 else f"all {len(typical):,} parameters"
        found.append(("good", f"A gradient reaches {of}.", ""))
    if len(some) > 1:
        low, high = min(some, key=lambda k: some[k]), max(some, key=lambda k: some[k])
        factor = some[high] / some[low]
    if len(some) > 1 and factor >= 1.5:
        text = f"The largest gradient, of {high}, is {factor:,.0f} times the smallest, of {low}."
        found.append(("warn" if factor > 1e4 else "note", text, ""))
    ratios = [r for row in recorder.ratios[len(recorder.ratios) // 2 :] for r in row if r is not None]
    if ratios := [r for r in ratios if math.isfinite(r)]:
        middle = statistics.median(ratios)
        usual = 1e-5 < middle < 3e-2
        text = f"A typical update changes a weight by {middle:.2g} of its size"
        text += "." if usual else "; about 0.001 is usual."
        found.append(("note" if usual else "warn", text, ""))
    return found


def _first(names: Sequence[str]) -> str:
    """Return the first three names, and the number of the others."""
    return ", ".join(names[:3]) + (f" and {count(len(names) - 3, 'other')}" if len(names) > 3 else "")


def _time(recorder: Recorder, captured: Captured) -> list[Sentence]:
    if not captured.events:
        return []
    wall = span(captured.events) or 1.0
    rows = rows_of(captured.events, "op", lambda _: "")
    forward, backward = (
        sum(e.seconds for e in captured.events if e.phase == p) for p in ("forward", "backward")
    )
    between = max(0.0, wall - sum(r.seconds for r in rows)) / wall
    text = f"A step takes {time_text(wall)}: {rows[0].name} {rows[0].seconds / wall:.0%} of it"
    text += f", Python between the ops {between:.0%}"
    if forward and backward:
        ratio = f"{backward / forward:.1f}"
        text += f"; the backward takes {'less than 0.1' if ratio == '0.0' else ratio} times the forward"
    text += "."
    if captured.compiled:
        return [("note", text, "")]
    kept = sum(e.kept for e in captured.events)
    peak = "" if captured.memory is None else f", {quantity(captured.memory.peak)} exist at the peak"
    pieces = recorder.windows[-1][1] if recorder.windows else 1
    each = "" if pieces == 1 else f"s of {pieces} micro-batches, one after the other"
    memory = f"{quantity(kept)} are kept for the backward{each}{peak}."
    found: list[Any] = [("note", text, ""), ("note", memory, "")]
    return found
