"""``python -m benchmarks.realistic [name …]``: compiled and eager adjoint beside PyTorch and ``jax.jit``.

All engines of a program run in one process, in interleaved rounds.  The first column of ratios is compiled
adjoint over ``jax.jit``, then over PyTorch and over eager adjoint, then eager adjoint over PyTorch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import time

import benchmarks.realistic
from benchmarks.__main__ import compact, machine
from benchmarks.harness import FEWEST_ROUNDS, THREADS, Case, Numbers, Result, measure, quartiles, release
from benchmarks.realistic.page import DOCS, HEADS, PAIRS, cells, page, summary
from benchmarks.report import table

__all__ = ["families", "row"]


def families() -> tuple[dict[str, str], dict[str, list[Case]]]:
    """The heading and the cases of each module with ``CASES``, by its name."""
    headings, found = {}, {}
    for info in pkgutil.iter_modules(benchmarks.realistic.__path__):
        if not info.name.startswith("__"):
            module = importlib.import_module(f"{benchmarks.realistic.__name__}.{info.name}")
            if hasattr(module, "CASES"):
                headings[info.name] = (
                    (module.__doc__ or info.name).splitlines()[0].partition(":")[0].rstrip(".")
                )
                found[info.name] = module.CASES
    return headings, found


def row(family: str, result: Result) -> Numbers:
    """The seconds and ratios of a case: quartiles."""
    return {
        "family": family,
        "seconds": {name: quartiles(taken) for name, taken in result.seconds.items()},
        "ratios": {
            pair: quartiles(result.ratios(peer, ours))
            for pair in PAIRS
            for ours, _, peer in [pair.partition("/")]
            if {ours, peer} <= set(result.seconds)
        },
        "left out": result.left_out,
        "network": bool(result.case.targets),
    }


def run(names: list[str], rounds: int, seconds: float) -> Numbers:
    """Measure all programs, or those with one of ``names`` in their names; print a line for each."""
    if hasattr(os, "sched_setaffinity"):  # JAX takes all the processors there are
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    headings, cases = families()
    rows: dict[str, Numbers] = {}
    for family, case in [(family, case) for family, members in cases.items() for case in members]:
        if names and not any(n in case.name or n == family for n in names):
            continue
        began = time.perf_counter()
        try:
            rows[case.name] = row(family, measure(case, rounds, seconds=seconds))
        except Exception as error:
            print(f"{case.name}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            continue
        release()
        taken = f"[{time.perf_counter() - began:.0f} s]"
        print("  ".join(cells(case.name, rows[case.name])), taken, sep="   ", flush=True)
    return {"machine": machine(), "threads": THREADS, "families": headings, "rows": rows}


def main() -> None:
    """Print a line per program, then the table and the programs above 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.realistic", description=__doc__)
    parser.add_argument("names", nargs="*", help="only programs or families whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="per program, once seven rounds are done")
    parser.add_argument("--quick", action="store_true", help="seven rounds")
    parser.add_argument(
        "--write", action="store_true", help="write docs/realistic.*; with names, these programs alone"
    )
    parser.add_argument("--page", action="store_true", help="write the page again from docs/realistic.json")
    options = parser.parse_args()
    stored = DOCS / "realistic.json"
    before: Numbers = json.loads(stored.read_text()) if stored.exists() else {"rows": {}}
    if not options.page:
        rounds, seconds = (FEWEST_ROUNDS, 0.0) if options.quick else (options.rounds, options.seconds)
        numbers = run(options.names, rounds, seconds)
        rows = numbers["rows"]
        print(f"\n{table([cells(n, r) for n, r in rows.items()], HEADS)}\n")
        for pair, title in PAIRS.items():
            middle, count, above = summary(rows, pair)
            print(f"{title}: median {middle:.2f} of {count}; above 1: {above or 'none'}")
        before = numbers | {"rows": before["rows"] | rows if options.names else rows}
    if options.write or options.page:
        stored.write_text(compact(json.dumps(before, indent=1, ensure_ascii=False)) + "\n")
        (DOCS / "realistic.md").write_text(page(before))


if __name__ == "__main__":
    main()
