"""Write the sentences at the top of a report: about the loss, clipping, gradients, updates and time."""

from __future__ import annotations

import linecache
import math
import statistics
from typing import Any

from adjoint.inspect.profiling import quantity, rows_of, time_text
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
        found += _time(captured)
    return found


def _loss(recorder: Recorder) -> list[Sentence]:
    losses = [v for v in recorder.numbers.get("loss", []) if v is not None]
    found: list[Sentence] = []
    bad = sum(not math.isfinite(v) for v in losses)
    if bad:
        found.append(("bad", f"The loss was not finite in {bad} of {len(losses)} steps.", ""))
    losses = [v for v in losses if math.isfinite(v)]
    if losses:
        few = max(1, min(5, len(losses) // 4))
        a, b = statistics.fmean(losses[:few]), statistics.fmean(losses[-few:])
        steps = f"{recorder.steps[-1]:,} steps"
        if b < a:
            much = b < 0.5 * a or b <= 0
            found.append(
                ("good" if much else "warn", f"The loss fell from {a:.3g} to {b:.3g} in {steps}.", "")
            )
        else:
            found.append(("bad", f"The loss rose from {a:.3g} to {b:.3g} in {steps}.", ""))
    scores = [(logs, step) for step, logs in recorder.epochs if "val_loss" in logs]
    if scores:
        values = [logs["val_loss"] for logs, _ in scores]
        best = min(range(len(values)), key=lambda i: values[i])
        last = scores[-1][0]
        text = f"The validation loss is {values[-1]:.3g}"
        if "val_accuracy" in last:
            text += f", the accuracy {last['val_accuracy']:.1%}"
        text += f"; the best epoch is {best + 1} of {len(values)}."
        gap = values[-1] / last["loss"] if last.get("loss", 0) > 0 else 1.0
        worse = values[-1] > 1.2 * values[best]
        if gap > 3 and worse:
            text += f"  It is {gap:.0f} times the training loss: the model overfits."
        found.append(("warn" if gap > 3 and worse else "good", text, ""))
    return found


def _clipping(recorder: Recorder) -> list[Sentence]:
    found: list[Sentence] = []
    norms = [v for v in recorder.numbers.get("grad_norm", []) if v is not None]
    if recorder.clip is not None and norms:
        clipped = sum(n > recorder.clip for n in norms)
        often = clipped > 0.5 * len(norms)
        text = f"{clipped:,} of {len(norms):,} steps were clipped at {recorder.clip:g}."
        text = f"No step was clipped at {recorder.clip:g}." if not clipped else text
        found.append(("warn" if often else "note", text, ""))
    skipped = sum(w[5] for w in recorder.windows)
    if skipped:
        found.append(("warn", f"{count(skipped, 'accumulation window')} skipped micro-batches.", ""))
    return found


def _gradients(recorder: Recorder, explained: bool) -> list[Sentence]:
    if not recorder.gradients:
        return []
    late = recorder.gradients[len(recorder.gradients) // 2 :]
    typical = {
        name: statistics.median(row[i] if math.isfinite(row[i]) else 0.0 for row in late)
        for i, name in enumerate(recorder.names)
    }
    found: list[Sentence] = []
    none = [name for name, v in typical.items() if v == 0]
    some = {name: v for name, v in typical.items() if v > 0}
    if none and not explained:
        shown = ", ".join(none[:3]) + (f" and {len(none) - 3} others" if len(none) > 3 else "")
        found.append(("bad", f"No gradient reaches {shown}.", ""))
    elif not none:
        of = "the only parameter" if len(typical) == 1 else f"all {len(typical):,} parameters"
        found.append(("good", f"A gradient reaches {of}.", ""))
    if len(some) > 1:
        low, high = min(some, key=lambda k: some[k]), max(some, key=lambda k: some[k])
        factor = some[high] / some[low]
        text = f"The largest gradient, of {high}, is {factor:,.0f} times the smallest, of {low}."
        found.append(("warn" if factor > 1e4 else "note", text, ""))
    ratios = [r for row in recorder.ratios[len(recorder.ratios) // 2 :] for r in row if r is not None]
    if ratios:
        middle = statistics.median(ratios)
        usual = 1e-5 < middle < 3e-2
        text = f"A typical update changes a weight by {middle:.2g} of its size"
        text += "." if usual else "; about 0.001 is usual."
        found.append(("note" if usual else "warn", text, ""))
    return found


def _time(captured: Captured) -> list[Sentence]:
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
    text += (
        f"; the backward takes {backward / forward:.1f} times the forward." if forward and backward else "."
    )
    kept = sum(e.kept for e in captured.events)
    peak = "" if captured.memory is None else f", {quantity(captured.memory.peak)} exist at the peak"
    memory = f"{quantity(kept)} are kept for the backward{peak}."
    found: list[Any] = [("note", text, ""), ("note", memory, "")]
    return found
