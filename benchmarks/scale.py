"""``python -m benchmarks.scale``: time and memory against size, and the time of the import.

Every cost that grows must grow in proportion: with nodes, elements, rows and parameters. Each point is
measured in a child process: the best time of some runs, and by how much the largest resident size grew.
The slope is that of the logarithms over the last two sizes, where fixed costs no longer count: 1 is linear.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.harness import Numbers
from benchmarks.memory import resident, settle, traced
from benchmarks.report import duration, table

IMPORT = "import"
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


@contextmanager
def compiled_files() -> Iterator[dict[str, str]]:
    """An environment with a cache of compiled files of its own.

    The variable that forbids writing them may be set, and the clone stays clean.
    """
    with tempfile.TemporaryDirectory() as cache:
        yield {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {
            "PYTHONPYCACHEPREFIX": cache
        }


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def import_time(repeats: int = 7) -> dict[str, float]:
    """Return the median seconds of ``import adjoint`` after NumPy, with compiled files at hand."""
    code = "import numpy, time; t = time.perf_counter(); import adjoint; print(time.perf_counter() - t)"
    with compiled_files() as environment:
        taken = [float(python(environment, "-c", code).stdout) for _ in range(repeats + 1)][1:]
    return {"median": float(f"{statistics.median(taken):.4g}"), "best": float(f"{min(taken):.4g}")}


def imported(repeats: int = 5) -> Numbers:
    """Return the best seconds of every module of adjoint's import, as ``-X importtime`` counts them."""
    best: dict[str, float] = {}
    numpys = math.inf
    with compiled_files() as environment:
        for _ in range(repeats + 1):  # the first compiles, and is never the best
            before = True
            for name, own, whole in import_lines(
                python(environment, "-X", "importtime", "-c", "import numpy; import adjoint").stderr
            ):
                if name == "numpy":
                    before, numpys = False, min(numpys, whole)
                elif not before:
                    best[name] = min(own, best.get(name, math.inf))
    ours = {name: own for name, own in best.items() if name.split(".")[0] == "adjoint"}
    others = {name: own for name, own in best.items() if name not in ours}
    return {
        "numpy": numpys,
        **{
            kind: {"count": len(some), "seconds": round(sum(some.values()), 6), "largest": largest(some)}
            for kind, some in (("adjoint", ours), ("others", others))
        },
    }


def largest(seconds: dict[str, float], count: int = 6) -> list[list[Any]]:
    return [[name, own] for name, own in sorted(seconds.items(), key=lambda item: -item[1])[:count]]


def import_lines(printed: str) -> Iterator[tuple[str, float, float]]:
    """Yield (module, own seconds, seconds with what it imports) from what ``-X importtime`` prints."""
    for line in printed.splitlines():
        start, _, rest = line.partition("import time:")
        own, whole, name = ([*rest.split("|"), "", ""])[:3]
        if not start and own.strip().isdigit():
            yield name.strip(), int(own) * 1e-6, int(whole) * 1e-6


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
            "of": IMPORT,
            "beside": "import of NumPy alone",
            "value": found["import"]["median"],
            "target": IMPORT_LIMIT,
        },
        {
            "name": "time per node, 10⁶ nodes",
            "of": "time against nodes",
            "beside": "10⁴ nodes",
            "value": round(per_node(found), 3),
            "target": PER_NODE_LIMIT,
        },
    ]
    for series, (of_time, of_memory) in slopes(found).items():
        for kind, value in (("time", of_time), ("memory", of_memory)):
            name = f"slope of {kind} against {series}"
            rows.append(
                {
                    "name": name,
                    "of": f"{kind} against {series}",
                    "beside": "1 is linear",
                    "value": round(value, 3),
                    "target": SLOPE_LIMIT,
                }
            )
    return rows


# Why a limit is missed ---------------------------------------------------------------------------


def take_apart(of: str, missed: Sequence[Numbers], found: Numbers) -> Numbers:
    """Take the import apart by module, time by collector, kernel and page faults, memory by line."""
    if of == IMPORT:
        return imported()
    kind, series = of.split(" against ")
    counts = [count for count, *_ in found["series"][series]][-2:]
    flag = "--timed" if kind == "time" else "--traced"
    taken = [
        json.loads(python(dict(os.environ), "-m", "benchmarks.scale", flag, series, str(count)).stdout)
        for count in counts
    ]
    return {kind: dict(zip(map(str, counts), taken, strict=True))}


def timed(series: str, count: int, repeats: int = 2) -> Numbers:
    """Where the time of a run goes: with and without the garbage collector, in the system, on page faults."""
    run = SERIES[series][0](count)
    run()
    found: dict[str, list[float]] = {}
    for collector in (True, False):
        (gc.enable if collector else gc.disable)()
        for _ in range(repeats):
            gc.collect()
            before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            run()
            wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
            if collector:
                found.setdefault("seconds", []).append(wall)
                found.setdefault("in the system", []).append(after.ru_stime - before.ru_stime)
                found.setdefault("page faults", []).append(after.ru_minflt - before.ru_minflt)
            else:
                found.setdefault("without the garbage collector", []).append(wall)
    return {name: float(f"{min(values):.4g}") for name, values in found.items()}


def why(taken: Numbers, missed: Sequence[Numbers], found: Numbers) -> str:
    """Say what an import consists of; where a curve bends, and what grows there."""
    of = missed[0]["of"]
    if of == IMPORT:
        return _why_import(taken)
    kind, series = of.split(" against ")
    points = [
        (count, size if kind == "memory" else taken_) for count, taken_, size in found["series"][series]
    ]
    show = _megabytes if kind == "memory" else duration
    bends = [None, *(slope([a, b], [x, y]) for (a, x), (b, y) in itertools.pairwise(points))]
    cells = [
        [f"{count:,} {series}", show(value), show(value / count), "" if bend is None else f"{bend:.2f}"]
        for (count, value), bend in zip(points, bends, strict=True)
    ]
    steepest = max(range(1, len(points)), key=lambda i: bends[i] or 0.0)
    shown = table(cells, ["size", kind, "per one", "slope from the size before"])
    shown += f"\n\nIt is steepest from {points[steepest - 1][0]:,} to {points[steepest][0]:,} {series}."
    return f"{shown}\n\n{(_why_memory if kind == 'memory' else _why_time)(taken[kind], series)}"


def _why_import(taken: Numbers) -> str:
    rows = [["NumPy and what it imports", duration(taken["numpy"])]]
    for kind, name in (("adjoint", "adjoint's own"), ("others", "others that adjoint imports")):
        part = taken[kind]
        rows.append([f"**{part['count']} modules: {name}**", duration(part["seconds"])])
        rows += [[f"`{module}`", duration(own)] for module, own in part["largest"]]
    return (
        "By module, without those that it imports; the best of five runs of `python -X importtime`, which "
        "itself takes some of the time.\n\n" + table(rows, ["module", "time"])
    )


def _why_time(taken: Numbers, series: str) -> str:
    head = ["size, run again", *next(iter(taken.values()))]
    rows = []
    for count, values in taken.items():
        shown = [f"{v:,.0f}" if name == "page faults" else duration(v) for name, v in values.items()]
        rows.append([f"{int(count):,} {series}", *shown])
    return table(rows, head)


def _why_memory(taken: Numbers, series: str) -> str:
    (small, few), (large, many) = taken.items()
    before = {where: size / int(small) for where, size in few["kept"]}
    rows = [
        [f"`{where}`", f"{before[where]:.4g}" if where in before else "–", f"{size / int(large):.4g}"]
        for where, size in many["kept"]
    ]
    peaks = [few["peak"] / int(small), many["peak"] / int(large)]
    rows.append(["at the peak, all lines", *(f"{peak:.4g}" for peak in peaks)])
    sizes = [f"{int(count):,} {series}" for count in taken]
    return table(rows, ["bytes per one, allocated in the forward and there when backward starts", *sizes])


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size:.4g} B"


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
    for flag, what in (("timed", "where the time goes"), ("traced", "which lines hold memory")):
        parser.add_argument(f"--{flag}", nargs=2, metavar=("SERIES", "COUNT"), help=f"show as JSON {what}")
    options = parser.parse_args()
    if options.timed:
        print(json.dumps(timed(options.timed[0], int(options.timed[1]))))
        return 0
    if options.traced:
        series, count = options.traced[0], int(options.traced[1])
        build, counts = SERIES[series]
        build(min(counts) // 10)()  # what the first run allocates for good
        print(json.dumps(traced(build(count))))
        return 0
    if options.child:
        print(*point(options.child[0], int(options.child[1])))
        return 0
    print(text(measure()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
