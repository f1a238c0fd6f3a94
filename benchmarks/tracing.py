"""``python -m benchmarks.tracing``: how long ``ad.compile`` takes to trace training steps.

Warm traces are made again and again in one process, each by a call after ``clear()``; the time of a trace
divided by its number of instructions counts.  The first trace of a step is measured in new processes.  The
times are those of ``stats()``: the call of the function on symbols and the search for its guards, without
the program's build and its run.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Numbers, quartiles
from benchmarks.report import duration, table, verdict

ROOT = Path(__file__).parents[1]
TRACES, FEWEST, WARM_UP, PROCESSES = 200, 50, 5, 7
MICROSECONDS, MILLISECONDS = 30.0, 20.0  # per instruction, warm; of the first trace of a process
LAYERS = 32
STEPS: dict[str, tuple[int, tuple[int, ...], str]] = {
    "MLP 1×8-16-16-1, SGD step": (1, (8, 16, 16, 1), "SGD"),
    "MLP 1×8-16-16-1, Adam step": (1, (8, 16, 16, 1), "Adam"),
    f"net of {LAYERS} layers, Adam step": (32, (64,) * LAYERS + (10,), "Adam"),
}
COLD = "MLP 512×784-1024-1024-10, Adam step"
COLD_STEP = (512, (784, 1024, 1024, 10), "Adam")
HEADING = "trace of "
SHOWN = 6  # functions


def compiled(name: str) -> Any:
    """Return the compiled step of a name."""
    import adjoint as ad
    from benchmarks.cases.training import adjoint_step

    return ad.compile(adjoint_step(*(COLD_STEP if name == COLD else STEPS[name])), backend="replay")


def trace(step: Any) -> tuple[float, int]:
    """Trace a step, and run it once; return the seconds of the trace and the number of instructions."""
    step.clear()
    step()
    (program,) = step.stats()["programs"]
    return program["trace_seconds"], program["instructions"]


# In a new process ------------------------------------------------------------------------------------


def measure_warm(name: str, count: int) -> Numbers:
    """Measure many traces of one step."""
    step = compiled(name)
    found = [trace(step) for _ in range(WARM_UP + max(count, FEWEST))][WARM_UP:]
    return {"seconds": quartiles([seconds for seconds, _ in found]), "instructions": found[0][1]}


def measure_cold(name: str, _: int) -> Numbers:
    """Measure the first trace of the process."""
    seconds, instructions = trace(compiled(name))
    return {"seconds": seconds, "instructions": instructions}


KINDS = {"warm": measure_warm, "cold": measure_cold}


def child(kind: str, name: str, count: int = TRACES) -> Numbers:
    """Measure in a new process."""
    command = [sys.executable, "-m", "benchmarks.tracing", "--child", kind, name, str(count)]
    # as in the other parts: several threads of BLAS are of no use to a trace
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    out = subprocess.run(
        command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    found: Numbers = json.loads(out.splitlines()[-1])
    return found


# All measurements ------------------------------------------------------------------------------------


def measure(quick: bool = False) -> Numbers:
    """Measure warm traces of each step, and the first trace of one step in several processes."""
    warm = {name: child("warm", name, FEWEST if quick else TRACES) for name in STEPS}
    first = [child("cold", COLD) for _ in range(3 if quick else PROCESSES)]
    cold = {"seconds": quartiles([n["seconds"] for n in first]), "instructions": first[0]["instructions"]}
    return {"warm": warm, "cold": {COLD: cold}}


def _each(n: Numbers) -> float:
    """Return the median of the microseconds per instruction."""
    return float(n["seconds"][1] / n["instructions"] * 1e6)


def limits(numbers: Numbers) -> list[Numbers]:
    """Return the rows of the table of targets."""
    rows = [(name, "µs per instruction", _each(n), MICROSECONDS) for name, n in numbers["warm"].items()] + [
        (name, "the first, ms", n["seconds"][1] * 1e3, MILLISECONDS) for name, n in numbers["cold"].items()
    ]
    return [
        {"name": f"{HEADING}{of}: {what}", "of": HEADING + of, "beside": "", "value": value, "target": target}
        for of, what, value, target in rows
    ]


def text(numbers: Numbers) -> str:
    """Return the table of the page."""
    rows = []
    for name, n in numbers["warm"].items():
        each = f"{_each(n):.3g} µs ({verdict(_each(n), MICROSECONDS)})"
        rows.append([name, "warm", str(n["instructions"]), _time(n), each])
    for name, n in numbers["cold"].items():
        whole = f"{_time(n)} ({verdict(n['seconds'][1] * 1e3, MILLISECONDS)})"
        rows.append([name, "first", str(n["instructions"]), whole, f"{_each(n):.3g} µs"])
    return table(rows, ["step", "trace", "instructions", "time", "per instruction"])


def _time(n: Numbers) -> str:
    low, middle, high = map(duration, n["seconds"])
    return f"{middle} ({low}–{high})"


def take_apart(of: str, _: Sequence[Numbers], __: Numbers) -> Numbers:
    """Return the functions in which warm traces spend most time."""
    step = compiled(of.removeprefix(HEADING))
    for _ in range(WARM_UP):
        trace(step)
    with cProfile.Profile() as profile:
        for _ in range(FEWEST):
            trace(step)
    found: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    own = {where: timing[2] for where, timing in found.items()}
    whole = sum(own.values())
    dearest = sorted(own, key=lambda where: -own[where])[:SHOWN]
    return {"functions": [[_name(where), own[where] / whole] for where in dearest]}


def _name(where: tuple[str, int, str]) -> str:
    path, _, name = where
    return f"{Path(path).stem}.{name}" if path.endswith(".py") else name


def why(taken: Numbers, _: Sequence[Numbers], __: Numbers) -> str:
    """Return the text of the page."""
    parts = ", ".join(f"`{name}` {share:.0%}" for name, share in taken["functions"])
    return f"The functions with most time of their own in warm traces, with builds and runs: {parts}."


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="How long traces of training steps take.")
    parser.add_argument("--quick", action="store_true", help="fewer traces and processes")
    parser.add_argument("--child", nargs=3, metavar=("KIND", "NAME", "COUNT"))
    options = parser.parse_args()
    if options.child:
        kind, name, count = options.child
        print(json.dumps(KINDS[kind](name, int(count))))
        return
    print(text(measure(options.quick)))


if __name__ == "__main__":
    main()
