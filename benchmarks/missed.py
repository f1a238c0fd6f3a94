"""Why targets are missed: a target that cannot be met stays in the table, with what shows why.

Each part of a run (cases, compiled and replayed steps, builds, traces, threads, memory, scale) is a module
with three functions: ``limits`` gives the rows of the table of targets, each with the heading it belongs to;
``take_apart`` measures once more, in the same run, what one heading missed; ``why`` says what that found.
What met its targets costs nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from benchmarks import builds, memory, native, parallel, profile, replayed, scale, tracing
from benchmarks.harness import Numbers, reason
from benchmarks.report import MISSED, outcome


class Part(Protocol):
    """What the module of a part offers."""

    def limits(self, found: Any) -> list[Numbers]:
        """Return name, beside, value, target, and of: the heading."""

    def take_apart(self, of: str, missed: Sequence[Numbers], found: Any) -> Numbers:
        """Measure what shows why these limits of one heading are missed."""

    def why(self, taken: Numbers, missed: Sequence[Numbers], found: Any) -> str:
        """Return the text of the page."""


PARTS: dict[str, Any] = {
    "cases": profile, "compiled": native, "replay": replayed, "builds": builds, "tracing": tracing,
    "parallel": parallel, "memory": memory, "scale": scale,
}  # fmt: skip


def limits(numbers: Numbers) -> list[Numbers]:
    """Return all rows of the table of targets."""
    return [row for key, part in PARTS.items() if key in numbers for row in part.limits(numbers[key])]


def missed(numbers: Numbers) -> dict[str, tuple[str, list[Numbers]]]:
    """Return the missed limits of each heading, and the part that they are of."""
    found: dict[str, tuple[str, list[Numbers]]] = {}
    for key, part in PARTS.items():
        for row in part.limits(numbers[key]) if key in numbers else ():
            if outcome(row) == MISSED:
                found.setdefault(row["of"], (key, []))[1].append(row)
    return found


def measure(numbers: Numbers) -> dict[str, Numbers]:
    """Take apart all that missed a target; a failure there does not lose the run."""
    found: dict[str, Numbers] = {}
    for of, (key, rows) in missed(numbers).items():
        began = time.perf_counter()
        try:
            found[of] = PARTS[key].take_apart(of, rows, numbers[key])
        except Exception as error:
            found[of] = {"failed": reason(error)}
        print(f"{time.perf_counter() - began:6.1f} s  why: {of}", file=sys.stderr)
    return found


def section(numbers: Numbers) -> str:
    """Return the part of the page that says why; empty if all targets are met."""
    profiles = numbers.get("profiles", {})
    found = []
    for of, (key, rows) in missed(numbers).items():
        taken = profiles.get(of, {"failed": "no profile was made in this run"})
        if "failed" in taken:
            text = f"It could not be taken apart: {taken['failed']}."
        else:
            text = PARTS[key].why(taken, rows, numbers[key])
        found.append(f"### {of}\n\n{text}")
    return "\n\n".join(found)
