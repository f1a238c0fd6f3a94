"""``python -m benchmarks.scale``: time and memory against size, and the time of the import.

Every cost that grows must grow in proportion: with nodes, elements, rows and parameters. Each point is
measured in a child process: the best time of some runs, and by how much the largest resident size grew.
The slope is that of the logarithms over the last two sizes, where fixed costs no longer count: 1 is linear.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Numbers
from benchmarks.memory import resident, settle
from benchmarks.report import duration, table

IMPORT_LIMIT = 0.060
PER_NODE_LIMIT = 1.5
SLOPE_LIMIT = 1.2


def nodes(count: int) -> Callable[[], Any]:
    """A chain of ``count`` ops on four numbers."""
    import adjoint as ad

    x = ad.tensor(np.linspace(0.1, 1.0, 4), requires_grad=True)

    def run() -> None:
        y = x
        for _ in range(count):
            y = y * 1.000001
        y.sum().backward()
        x.grad = None

    return run


def elements(count: int) -> Callable[[], Any]:
    """Ten ops on an array of ``count`` numbers."""
    import adjoint as ad

    x = ad.tensor(np.linspace(0.1, 1.0, count), requires_grad=True)

    def run() -> None:
        y = x
        for _ in range(5):
            y = ad.sin(y) * x
        y.sum().backward()
        x.grad = None

    return run


def _mlp(batch: int, *sizes: int) -> Callable[[], Any]:
    from benchmarks.cases.training import adjoint_step

    return adjoint_step(batch, sizes, "Adam")


def rows(count: int) -> Callable[[], Any]:
    """An Adam step of a 64-128-128-10 net with ``count`` rows."""
    return _mlp(count, 64, 128, 128, 10)


def parameters(count: int) -> Callable[[], Any]:
    """An Adam step of a net with two rows and ``count`` parameters, in layers of 100×100."""
    return _mlp(2, *[100] * (count // 10_100 + 1))


SERIES: dict[str, tuple[Callable[[int], Callable[[], Any]], tuple[int, ...]]] = {
    "nodes": (nodes, (1_000, 10_000, 100_000, 1_000_000)),
    "elements": (elements, (10_000, 100_000, 1_000_000, 4_000_000)),
    "rows": (rows, (100, 1_000, 10_000, 40_000)),
    "parameters": (parameters, (101_000, 1_010_000, 4_040_000)),
}


def point(series: str, count: int) -> tuple[float, int]:
    """Return the best seconds of a run, and the growth of memory in bytes; for a fresh process."""
    build, _ = SERIES[series]
    build(min(SERIES[series][1]) // 10 or 1)()
    run = build(count)
    settle("adjoint")
    before = resident("VmRSS")
    run()
    grown = resident("VmHWM") - before
    repeats, best = max(2, 100_000 // count), math.inf
    for _ in range(min(repeats, 20)):
        gc.collect()
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best, grown


def in_child(series: str, count: int) -> tuple[float, int]:
    command = [sys.executable, "-m", "benchmarks.scale", "--child", series, str(count)]
    seconds, size = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(f"{float(seconds):.4g}"), int(size)


def slope(counts: list[int], values: list[float]) -> float:
    """How the logarithms of the last two values rise with those of their counts."""
    return math.log(values[-1] / values[-2]) / math.log(counts[-1] / counts[-2])


def import_time(repeats: int = 7) -> dict[str, float]:
    """Return the median seconds of ``import adjoint`` after NumPy, with compiled files at hand."""
    code = "import numpy, time; t = time.perf_counter(); import adjoint; print(time.perf_counter() - t)"
    with tempfile.TemporaryDirectory() as cache:
        # caches of its own: the variable that forbids writing them may be set, and the clone stays clean
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache
        run = lambda: float(
            subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
            ).stdout
        )
        run()
        taken = [run() for _ in range(repeats)]
    return {"median": float(f"{statistics.median(taken):.4g}"), "best": float(f"{min(taken):.4g}")}


def measure() -> Numbers:
    """Run every point in a process of its own."""
    found: Numbers = {"import": import_time(), "series": {}}
    for series, (_, counts) in SERIES.items():
        points = [[count, *in_child(series, count)] for count in counts]
        found["series"][series] = points
        print(f"  {series}: {points}", file=sys.stderr)
    return found


def per_node(found: Numbers) -> float:
    """Time per node at a million nodes over that at ten thousand."""
    each = {count: seconds / count for count, seconds, _ in found["series"]["nodes"]}
    return each[1_000_000] / each[10_000]


def slopes(found: Numbers) -> dict[str, tuple[float, float]]:
    """The slopes of time and of memory of every series."""
    result = {}
    for series, points in found["series"].items():
        counts, seconds, sizes = (list(column) for column in zip(*points, strict=True))
        result[series] = slope(counts, seconds), slope(counts, sizes)
    return result


def limits(found: Numbers) -> list[Numbers]:
    """Return the rows of the table of targets."""
    rows = [
        {
            "name": "import, seconds",
            "beside": "import of NumPy alone",
            "value": found["import"]["median"],
            "target": IMPORT_LIMIT,
        },
        {
            "name": "time per node, 10⁶ nodes",
            "beside": "10⁴ nodes",
            "value": round(per_node(found), 3),
            "target": PER_NODE_LIMIT,
        },
    ]
    for series, (of_time, of_memory) in slopes(found).items():
        for kind, value in (("time", of_time), ("memory", of_memory)):
            name = f"slope of {kind} against {series}"
            rows.append(
                {"name": name, "beside": "1 is linear", "value": round(value, 3), "target": SLOPE_LIMIT}
            )
    return rows


def text(found: Numbers) -> str:
    """Return the table of sizes and slopes."""
    cells = []
    for series, points in found["series"].items():
        of_time, of_memory = slopes(found)[series]
        for count, seconds, size in points:
            last = count == points[-1][0]
            cells.append(
                [
                    f"{count:,} {series}",
                    duration(seconds),
                    duration(seconds / count),
                    f"{size / 1e6:.1f} MB",
                    f"{of_time:.2f}, {of_memory:.2f}" if last else "",
                ]
            )
    head = ["size", "time", "per one", "memory", "slopes of time, memory"]
    taken = found["import"]
    return (
        "Forward and backward (of an Adam step, for rows and parameters). A slope of 1 is linear.\n\n"
        + table(cells, head)
        + f"\n\n`import adjoint` takes {duration(taken['median'])} after NumPy's own import."
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(*point(options.child[0], int(options.child[1])))
        return 0
    print(text(measure()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
