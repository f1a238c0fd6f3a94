"""The page docs/realistic.md: the numbers of one run of all programs, and why some stay above a peer."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.harness import Numbers
from benchmarks.report import duration, table

__all__ = ["DOCS", "HEADS", "cells", "page", "summary"]

DOCS = Path(__file__).parents[2] / "docs"
ENGINES = ("adjoint-compile", "adjoint", "torch", "jax-jit")
PAIRS = {
    "adjoint-compile/jax-jit": "compiled / jax.jit",
    "adjoint-compile/torch": "compiled / PyTorch",
    "adjoint-compile/adjoint": "compiled / eager",
    "adjoint/torch": "eager / PyTorch",
}
HEADS = ["program", "compiled", "eager", "PyTorch", "jax.jit", *PAIRS.values()]
REASONS = {  # of programs that may stay above a peer: what was measured
    "deconvolution by FFT, 256²": "Five transforms by NumPy take 1.25 of 1.6 ms. SciPy's are not faster "
    "here, and no library in reach exports a pointer.",
}

PAGE = """\
# Programs as users write them

Training steps with one usual line more, networks, agents, programs of science: {count} programs that were not
chosen for being fast. Each is written for adjoint, PyTorch and, where that is natural, JAX, as a user of that
library would write it (`benchmarks/realistic`). All engines of a program run in one process, in interleaved
rounds. Ratios of times are medians; below 1, adjoint is faster.

Machine: {machine}; {threads} threads.

| pair | median ratio | programs | above 1 |
| --- | --- | --- | --- |
{pairs}

{families}
{reasons}
`python -m benchmarks.realistic --write` writes this page, in about ten minutes.
"""


def summary(rows: dict[str, Numbers], pair: str) -> tuple[float, int, dict[str, float]]:
    """Return the median ratio of a pair of engines, the number of programs, and those above 1.

    Eager adjoint is compared with PyTorch in networks only.
    """
    found = {
        name: row["ratios"][pair][1]
        for name, row in rows.items()
        if pair in row["ratios"] and (pair != "adjoint/torch" or row["network"])
    }
    middle = statistics.median(found.values()) if found else 0.0
    return middle, len(found), {name: value for name, value in found.items() if value > 1}


def cells(name: str, row: Numbers) -> list[str]:
    """A line of the table of a family."""
    times = [duration(row["seconds"][e][1]) if e in row["seconds"] else "–" for e in ENGINES]
    ratios = [row["ratios"].get(pair) for pair in PAIRS]
    return [name, *times, *("–" if r is None else f"{r[1]:.2f}" for r in ratios)]


def page(numbers: Numbers) -> str:
    """Return docs/realistic.md."""
    rows, lines, above = numbers["rows"], [], set()
    for pair, title in PAIRS.items():
        middle, count, over = summary(rows, pair)
        above |= set(over)
        named = ", ".join(f"{name} ({value:.2f})" for name, value in over.items())
        lines.append(f"| {title} | {middle:.2f} | {count} | {named or 'none'} |")
    families = [
        f"## {heading}\n\n"
        + table([cells(n, r) for n, r in rows.items() if r["family"] == family], HEADS)
        + "\n"
        for family, heading in numbers["families"].items()
    ]
    reasons = [f"- {name}: {REASONS[name]}" for name in rows if name in above and name in REASONS]
    return PAGE.format(
        count=len(rows),
        machine=", ".join(f"{k} {v}" for k, v in numbers["machine"].items()),
        threads=numbers["threads"],
        pairs="\n".join(lines),
        families="\n".join(families),
        reasons="## Why some stay above 1\n\n" + "\n".join(reasons) + "\n" if reasons else "",
    )
