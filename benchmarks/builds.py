"""``python -m benchmarks.builds [name …]``: how long native builds take, and the memory that steps need.

Each measurement runs in a new process.  The build of a step is its second call, which compiles the program
that the first call has traced: with an empty cache of kernels ("cold"), and with the cache that this has
filled ("from disk").  The import of llvmlite is not included; nor is that of JAX in the time of ``jax.jit``,
which is its first call.  The time of a later call is subtracted from both.  Peak memory is the increase of
the largest resident size over four calls of a built program, and the memory that the program keeps for its
intermediate results.  The shortest time and the smallest peak of all rounds count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.harness import Numbers
from benchmarks.memory import resident, settle
from benchmarks.report import table

PAGE = 4096
TARGETS = {"cold": 0.2, "disk": 0.03, "jax": 0.5, "memory": 1.0}  # seconds, seconds, ratio, ratio


def case_of(name: str) -> Any:
    """Return the case of a name."""
    from benchmarks.__main__ import all_cases

    return next(case for group in all_cases()[1].values() for case in group if case.name == name)


def names(wanted: list[str]) -> list[str]:
    """Return the cases with targets beside ``jax.jit`` whose names contain one of the words."""
    from benchmarks.__main__ import all_cases

    every = [case for group in all_cases()[1].values() for case in group]
    found = [case for case in every if "jax-jit" in case.compiled and not case.not_compiled]
    return [c.name for c in found if not wanted or any(w in c.name for w in wanted)]


def _seconds(step: Any) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def measure_build(case: Any) -> Numbers:
    """Measure the first two calls of a compiled step."""
    import llvmlite.binding  # noqa: F401  its import is not measured

    import adjoint as ad

    step = ad.compile(case.engines["adjoint"]())
    first = _seconds(step)
    built = _seconds(step)
    later = min(_seconds(step) for _ in range(3))
    trace = step.stats()["programs"][0]["trace_seconds"]
    return {"first": first, "build": built - later, "trace": trace}


def measure_jax(case: Any) -> Numbers:
    """Measure what ``jax.jit`` adds to the first call."""
    step = case.engines["jax-jit"]()
    first = _seconds(step)
    return {"build": first - min(_seconds(step) for _ in range(3))}


def measure_peak(case: Any, backend: str) -> Numbers:
    """Measure the peak memory of four calls."""
    import adjoint as ad

    step = ad.compile(case.engines["adjoint"](), backend=backend)
    step(), step()
    settle("adjoint")
    before = resident("VmRSS")
    for _ in range(4):
        step()
    native = step._variants[0].native
    return {"peak": resident("VmHWM") - before + (0 if native is None else native.arena.nbytes)}


def child(kind: str, name: str, cache: str) -> Numbers:
    """Measure in a new process."""
    environment = {**os.environ, "ADJOINT_KERNEL_CACHE": cache}
    command = [sys.executable, "-m", "benchmarks.builds", "--child", kind, name]
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    found: Numbers = json.loads(out.splitlines()[-1])
    return found


def measure(name: str, rounds: int) -> Numbers:
    """Return the least of what the rounds found."""
    found: dict[str, list[float]] = {k: [] for k in ("cold", "disk", "jax", "native", "replay")}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            found["cold"].append(child("build", name, cache)["build"])
            found["disk"].append(child("build", name, cache)["build"])
            found["jax"].append(child("jax", name, cache)["build"])
            for backend in ("native", "replay"):
                found[backend].append(child(backend, name, cache)["peak"])
    return {k: min(v) for k, v in found.items()}


def text(found: dict[str, Numbers]) -> str:
    """Return the table."""
    rows = []
    for name, n in found.items():
        # the resident size is measured in pages
        ratios = {**n, "jax": n["cold"] / n["jax"], "memory": n["native"] / max(n["replay"], PAGE)}
        verdicts = {k: f"{ratios[k]:.3g}{'' if ratios[k] <= TARGETS[k] else ' **missed**'}" for k in TARGETS}
        rows.append(
            [name, *(verdicts[k] for k in TARGETS), f"{n['jax']:.3g}", f"{n['native'] / 2**20:.1f} MB"]
        )
    return table(
        rows,
        ["case", "cold, s", "from disk, s", "cold / jax.jit", "peak / replay's", "jax.jit, s", "peak"],
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="How long native builds take, and the memory of steps.")
    parser.add_argument("names", nargs="*", help="only cases whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, metavar=("KIND", "NAME"))
    options = parser.parse_args()
    if options.child:
        kind, name = options.child
        case = case_of(name)
        if kind in ("native", "replay"):
            print(json.dumps(measure_peak(case, kind)))
        else:
            print(json.dumps({"build": measure_build, "jax": measure_jax}[kind](case)))
        return
    print(text({name: measure(name, options.rounds) for name in names(options.names)}))


if __name__ == "__main__":
    main()
