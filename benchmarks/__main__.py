"""``python -m benchmarks [name …]``: run the cases and print the tables of ratios."""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import platform
import shutil
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import adjoint as ad
from benchmarks import (
    builds,
    cases,
    charts,
    eight,
    memory,
    missed,
    native,
    parallel,
    replayed,
    scale,
    tracing,
)
from benchmarks.harness import FEWEST_ROUNDS, THREADS, Case, Lacking, Numbers, Step, measure, release
from benchmarks.report import page, ratios, targets_page

DOCS = Path(__file__).parents[1] / "docs"
QUICK_STEPS = 20  # of each of eight threads
BACKENDS = {"adjoint-compile": "auto", "adjoint-replay": "replay"}  # of adjoint's own compiled steps
PARTS = ("replay", "builds", "tracing", "parallel", "memory", "scale", "profiles")  # beside the cases
PEERS = ("numpy", "torch", "jax", "autograd", "mlx", "tinygrad", "scipy")


def all_cases() -> tuple[dict[str, str], dict[str, list[Case]]]:
    """Return the groups' headings, from the modules' docstrings, and their cases."""
    headings: dict[str, str] = {}
    found: dict[str, list[Case]] = {}
    for info in pkgutil.iter_modules(cases.__path__):
        module = importlib.import_module(f"{cases.__name__}.{info.name}")
        headings[info.name] = (module.__doc__ or info.name).splitlines()[0].rstrip(".")
        found[info.name] = module.CASES
        for case in module.CASES:
            if case.stateless and not isinstance(case.engines["adjoint"], Shared):
                case.engines["adjoint"] = Shared(case.engines["adjoint"])
            for engine, backend in BACKENDS.items():
                case.engines.setdefault(engine, functools.partial(compiled, case, backend))
    return headings, found


class Shared:
    """Builds a step, and returns the same step again as long as something uses it."""

    def __init__(self, build: Callable[[], Step]) -> None:
        self.build = build
        self.made: Callable[[], Step | None] = lambda: None

    def __call__(self) -> Step:
        step = self.made()
        if step is None:
            step = self.build()
            self.made = weakref.ref(step)
        return step


def compiled(case: Case, backend: str) -> Step:
    """Compile adjoint's step of a case as a whole."""
    if case.not_compiled:
        raise Lacking(case.not_compiled)
    return ad.compile(case.engines["adjoint"](), backend=backend)  # type: ignore[no-any-return]  # called like a step


def machine() -> dict[str, str]:
    """The versions and the machine that numbers belong to."""
    found = {"Python": platform.python_version()}
    for peer in PEERS:
        try:
            found[peer] = importlib.metadata.version(peer)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | {"on": f"{processor()}, {len(os.sched_getaffinity(0))} processors, {platform.system()}"}


def not_installed() -> str:
    """Say which peers, and which tools that they need, are not there; empty if all are."""
    found = [peer for peer in PEERS if importlib.util.find_spec(peer) is None]
    tools = [
        f"{tool} ({whose})"
        for tool, whose in (("g++", "for torch.compile"), ("clang", "for tinygrad"))
        if shutil.which(tool) is None
    ]
    lines = (
        [f"not installed: {', '.join(found)}: pip install -e . --group bench --group oracle"] if found else []
    )
    return "\n".join(lines + ([f"not installed: {', '.join(tools)}"] if tools else []))


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.machine())


def run(names: list[str], rounds: int, seconds: float, without: list[str], ours: bool = False) -> Numbers:
    """Measure the cases whose names contain one of ``names``, or all; leave some engines out."""
    if hasattr(os, "sched_setaffinity"):  # JAX, MLX and tinygrad take all the processors there are
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    if not ours and (lacking := not_installed()):
        print(lacking, file=sys.stderr)
    headings, groups = all_cases()
    numbers: Numbers = {
        "machine": machine(),
        "threads": THREADS,
        "groups": headings,
        "cases": {},
        "compiled": {},
        "replay": {},
    }
    for group, members in groups.items():
        for case in members:
            if names and not any(n in case.name for n in names):
                continue
            for engine in without:
                case.engines.pop(engine, None)
            if ours:
                if case.not_compiled:
                    continue
                case.engines = {e: case.engines[e] for e in ("adjoint", *BACKENDS) if e in case.engines}
            began = time.perf_counter()
            result = measure(case, rounds, seconds=seconds)
            numbers["cases"][case.name] = {"group": group, **result.summary()}
            if found := native.numbers_of(result):
                numbers["compiled"][case.name] = found
            if found := replayed.numbers_of(result):
                numbers["replay"][case.name] = found
            release()
            print(f"{time.perf_counter() - began:6.1f} s  {case.name}", file=sys.stderr)
    return numbers


def replay_beside_eager(quick: bool) -> Numbers:
    """Measure the replayed step of every case beside the eager one, without native code and peers."""
    rounds, seconds = (FEWEST_ROUNDS, 0.0) if quick else (30, 3.0)
    found: Numbers = run([], rounds, seconds, ["adjoint-compile"], ours=True)["replay"]
    return found


def add_parts(numbers: Numbers, names: Sequence[str], quick: bool = False) -> Iterator[None]:
    """Measure the named parts: replay, builds, traces, threads, memory, scale, and why a target is missed.

    Yields when one is done, so that it can be written: they take minutes.
    """
    parts: dict[str, Callable[[], Any]] = {
        "replay": lambda: replay_beside_eager(quick),
        "builds": builds.measure,
        "tracing": lambda: tracing.measure(quick),
        "parallel": lambda: parallel.measure(count=QUICK_STEPS if quick else eight.STEPS),
        "memory": memory.measure,
        "scale": scale.measure,
        "profiles": lambda: missed.measure(numbers),
    }
    for name in names:
        began = time.perf_counter()
        numbers[name] = parts[name]()
        print(f"{time.perf_counter() - began:6.1f} s  {name}", file=sys.stderr)
        yield


def merged(before: Numbers, numbers: Numbers, names: Sequence[str]) -> Numbers:
    """Return new numbers, with the parts from before and, if cases were named, the other cases too."""
    found = {name: before[name] for name in PARTS if name in before} | numbers
    if names:
        for kind in ("cases", "compiled", "replay"):
            if kind not in before and kind not in numbers:
                continue
            order = list(before.get(kind, {}))
            both = before.get(kind, {}) | numbers.get(kind, {})
            found[kind] = {name: both[name] for name in [*order, *(n for n in both if n not in order)]}
    return found


def write(numbers: Numbers, folder: Path = DOCS) -> None:
    """Write performance.json, and the pages and the charts that come from it."""
    text = json.dumps(numbers, indent=1, ensure_ascii=False)
    (folder / "performance.json").write_text(compact(text) + "\n")
    (folder / "performance.md").write_text(page(numbers))
    (folder / "performance_targets.md").write_text(targets_page(numbers))
    charts.write(numbers, folder)


def compact(text: str) -> str:
    """Put the lists of numbers in a JSON text on one line each."""
    import re

    return re.sub(r"\[\s+([-\d.e,\s]+?)\s+\]", lambda m: "[" + ", ".join(m[1].split(",\n")) + "]", text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="only cases whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=30, help="rounds at most (30)")
    parser.add_argument("--seconds", type=float, default=3.0, help="per case, once seven rounds are done (3)")
    parser.add_argument("--quick", action="store_true", help="for a trial: seven rounds, short training")
    parser.add_argument("--without", action="append", default=[], help="leave this engine out; repeatable")
    parser.add_argument("--ours", action="store_true", help="only eager and compiled steps of adjoint")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument(
        "--write", action="store_true", help="write docs/performance.*: 40 minutes for all cases"
    )
    parser.add_argument("--to", type=Path, default=DOCS, help="the folder for what --write writes (docs)")
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="measure and write this part alone; repeatable"
    )
    parser.add_argument(
        "--page", action="store_true", help="write the pages again from docs/performance.json"
    )
    options = parser.parse_args()
    stored = options.to / "performance.json"
    before: Numbers = json.loads(stored.read_text()) if stored.exists() else {}
    if options.page or options.part:
        for _ in add_parts(before, options.part or (), options.quick):
            write(before, options.to)
        write(before, options.to)
        return 0
    if options.quick and options.write and options.to == DOCS:
        parser.error("--quick is for trials: give --to another folder")
    rounds, seconds = (FEWEST_ROUNDS, 0.0) if options.quick else (options.rounds, options.seconds)
    numbers = run(options.names, rounds, seconds, options.without, options.ours)
    if options.write:
        numbers = merged(before, numbers, options.names)
        write(numbers, options.to)
        for _ in add_parts(numbers, () if options.names else PARTS, options.quick):
            write(numbers, options.to)
    print(ratios(numbers["cases"]))
    if numbers.get("compiled"):
        print(f"\nCompiled steps\n{native.text(numbers['compiled'])}")
    if numbers.get("replay"):
        print(f"\nReplay beside eager\n{replayed.text(numbers['replay'])}")
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=1, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
