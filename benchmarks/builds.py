"""``python -m benchmarks.builds [name …]``: how long native builds take, and the memory that steps need.

Each measurement runs in a new process.  The second call of a step compiles the program that the first call
has traced: with an empty cache of kernels ("cold"), and with the cache that this has filled ("from disk").
These times are those of ``stats()``: from the program to the native code, without the call.  The ratio to
``jax.jit`` compares whole calls: the call that builds minus a later call, for both.  It therefore contains
the first use of memory.  Imports of llvmlite and JAX are not included.  If a step calls a compiled function
several times, the ratio has the time of ``stats()`` too.  The shortest time of all rounds counts.  Peak
memory is the number of bytes that arrays have at a time during a call, counted exactly (see ``arrays``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Numbers
from benchmarks.report import duration, table, verdict

ROOT = Path(__file__).parents[1]
ROUNDS = 2
COLD, DISK, JAX, MEMORY = 0.2, 0.03, 0.5, 1.0  # seconds, seconds, ratio, ratio
SHOWN = ("MLP", "layer norm", "attention", "transformer", "LeNet", "tanh", "hvp", "softmax")
DEPTHS, DEEPEST, DOUBLED = (20, 40, 80), 0.4, 2.0  # layers; seconds for the last, ratio of the last two
HEADING = "builds of "


def deep(depth: int) -> Any:
    """Return the step of a net with many layers."""
    from benchmarks.cases.training import training

    return training(32, (64,) * depth + (10,), "Adam")


def case_of(name: str) -> Any:
    """Return the case of a name, or of a number of layers."""
    from benchmarks.__main__ import all_cases

    if name.isdigit():
        return deep(int(name))
    return next(case for group in all_cases()[1].values() for case in group if case.name == name)


def names(wanted: Sequence[str] = ()) -> list[str]:
    """Return the cases with targets beside ``jax.jit`` whose names contain one of the words."""
    from benchmarks.__main__ import all_cases

    every = [case for group in all_cases()[1].values() for case in group]
    found = [case for case in every if "jax-jit" in case.compiled and not case.not_compiled]
    return [c.name for c in found if any(w in c.name for w in wanted or SHOWN)]


# In a new process ------------------------------------------------------------------------------------


def _seconds(step: Any) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _step(case: Any, backend: str) -> tuple[Any, Any]:
    """Return the compiled step of a case, and the compiled function that it is or calls."""
    import adjoint as ad

    found = []
    compile_ = ad.compile

    def kept(*args: Any, **options: Any) -> Any:
        found.append(compile_(*args, **options))
        return found[-1]

    ad.compile = kept
    try:
        made = case.engines.get({"auto": "adjoint-compile", "replay": "adjoint-replay"}[backend])
        step = made() if made is not None else ad.compile(case.engines["adjoint"](), backend=backend)
    finally:
        ad.compile = compile_
    return step, found[-1]


def measure_build(case: Any) -> Numbers:
    """Measure the call that compiles a step, and the part of it in which LLVM runs."""
    import llvmlite.binding  # noqa: F401  its import is not measured

    from adjoint.compiler.build import units

    compile_all, waiting = units.compile_all, 0.0

    def timed(*args: Any) -> Any:
        nonlocal waiting
        start = time.perf_counter()
        try:
            return compile_all(*args)
        finally:
            waiting += time.perf_counter() - start

    units.compile_all = timed
    step, compiled = _step(case, "auto")
    first = _seconds(step)
    built = _seconds(step)
    later = min(_seconds(step) for _ in range(3))
    units.wait()
    build = sum(p["build_seconds"] for p in compiled.stats()["programs"])
    call = built - later if step is compiled else build
    return {"first": first, "build": build, "call": call, "llvm": waiting}


def measure_jax(case: Any) -> Numbers:
    """Measure what ``jax.jit`` adds to the first call."""
    step = case.engines["jax-jit"]()
    first = _seconds(step)
    return {"build": first - min(_seconds(step) for _ in range(3))}


def measure_memory(case: Any, backend: str) -> Numbers:
    """Measure the peak memory of a call."""
    from benchmarks.arrays import peak_of_calls

    return {"peak": peak_of_calls(lambda: _step(case, backend)[0])}


KINDS = {
    "build": measure_build,
    "jax": measure_jax,
    "native": partial(measure_memory, backend="auto"),
    "replay": partial(measure_memory, backend="replay"),
}


def child(kind: str, name: str, cache: str) -> Numbers:
    """Measure in a new process."""
    environment = {**os.environ, "ADJOINT_KERNEL_CACHE": cache}
    command = [sys.executable, "-m", "benchmarks.builds", "--child", kind, name]
    out = subprocess.run(
        command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    found: Numbers = json.loads(out.splitlines()[-1])
    return found


# All measurements ------------------------------------------------------------------------------------


def measure_case(name: str, rounds: int = ROUNDS) -> Numbers:
    """Return the least of what the rounds found."""
    found: dict[str, list[float]] = {}

    def add(key: str, value: float) -> None:
        found.setdefault(key, []).append(value)

    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            cold = child("build", name, cache)
            add("cold", cold["build"])
            add("call", cold["call"])
            add("llvm", cold["llvm"])
            if name.isdigit():
                continue
            disk = child("build", name, cache)
            add("disk", disk["build"])
            add("jax", child("jax", name, cache)["build"])
            for backend in ("native", "replay") if "replay" not in found else ():
                add(backend, child(backend, name, cache)["peak"])
    return {k: min(v) for k, v in found.items()}


def measure(wanted: Sequence[str] = (), rounds: int = ROUNDS) -> Numbers:
    """Measure the cases whose names contain one of the words, or all of them and the deep nets."""
    numbers: Numbers = {"cases": {}, "depths": {}}
    for name in names(wanted):
        numbers["cases"][name] = measure_case(name, rounds)
        print(f"{name}: {numbers['cases'][name]}", file=sys.stderr)
    for depth in () if wanted else DEPTHS:
        numbers["depths"][str(depth)] = measure_case(str(depth), rounds)
    return numbers


def _share(n: Numbers) -> float:
    """Return the peak memory beside that of replay."""
    return float(n["native"] / n["replay"])


def limits(numbers: Numbers) -> list[Numbers]:
    """Return the rows of the table of targets."""
    rows = []

    def add(of: str, what: str, beside: str, value: float, target: float) -> None:
        name = f"{HEADING}{of}: {what}"
        rows.append({"name": name, "beside": beside, "value": value, "target": target, "of": HEADING + of})

    for name, n in numbers["cases"].items():
        if name.startswith("MLP"):
            add(name, "cold, seconds", "", n["cold"], COLD)
        add(name, "from disk, seconds", "", n["disk"], DISK)
        add(name, "cold", "jax-jit", n["call"] / n["jax"], JAX)
        add(name, "peak memory", "adjoint-replay", _share(n), MEMORY)
    depths = list(numbers["depths"].values())
    if depths:
        of = f"{DEPTHS[-1]} layers, Adam"
        add(of, "cold, seconds", "", depths[-1]["cold"], DEEPEST)
        add(of, f"beside {DEPTHS[-2]} layers", "", depths[-1]["cold"] / depths[-2]["cold"], DOUBLED)
    return rows


def take_apart(of: str, missed: Sequence[Numbers], numbers: Numbers) -> Numbers:
    """Return the parts of a cold build, which were measured with it."""
    name = of.removeprefix(HEADING)
    n = numbers["cases"].get(name) or numbers["depths"][str(DEPTHS[-1])]
    return {"cold": n["cold"], "llvm": n["llvm"]}


def why(taken: Numbers, missed: Sequence[Numbers], numbers: Numbers) -> str:
    """Say how much of a cold build LLVM takes."""
    whole, llvm = taken["cold"], taken["llvm"]
    return (
        f"Of {duration(whole)} of a cold build, LLVM compiles kernels for {duration(llvm)}; the rest is the "
        "lowering of the program in Python and the loading of code."
    )


def text(numbers: Numbers) -> str:
    """Return the tables."""
    rows = []
    for name, n in numbers["cases"].items():
        cold = duration(n["cold"]) + (f" ({verdict(n['cold'], COLD)})" if name.startswith("MLP") else "")
        ratio, share = n["call"] / n["jax"], _share(n)
        peak = f"{n['native'] / 1e6:.2f} MB, {share:.2f} ({verdict(share, MEMORY)})"
        disk = f"{duration(n['disk'])} ({verdict(n['disk'], DISK)})"
        beside = f"{ratio:.2f} ({verdict(ratio, JAX)})"
        rows.append([name, cold, beside, disk, duration(n["jax"]), peak])
    found = table(
        rows, ["case", "cold", "first native call / jax.jit", "from disk", "jax.jit", "peak, beside replay"]
    )
    deep = [[f"{depth} layers", duration(n["cold"])] for depth, n in numbers["depths"].items()]
    return found + ("\n\n" + table(deep, ["net of 64 units, Adam", "cold"]) if deep else "")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="How long native builds take, and the memory of steps.")
    parser.add_argument("names", nargs="*", help="only cases whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--child", nargs=2, metavar=("KIND", "NAME"))
    options = parser.parse_args()
    if options.child:
        kind, name = options.child
        print(json.dumps(KINDS[kind](case_of(name))))
        return
    print(text(measure(options.names, options.rounds)))


if __name__ == "__main__":
    main()
