"""``python -m benchmarks.realistic [name …]``: compiled and eager adjoint beside PyTorch and ``jax.jit``.

All engines of a program run in one process, in interleaved rounds.  The first column of ratios is compiled
adjoint over ``jax.jit``, then over PyTorch and over eager adjoint, then eager adjoint over PyTorch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import statistics
import time
from pathlib import Path

import benchmarks.realistic
from benchmarks.harness import FEWEST_ROUNDS, Case, Numbers, Result, measure, quartiles, release
from benchmarks.report import duration, table

__all__ = ["all_cases", "row", "summary"]

ENGINES = ("adjoint-compile", "adjoint", "torch", "jax-jit")
PAIRS = (
    ("adjoint-compile", "jax-jit"), ("adjoint-compile", "torch"), ("adjoint-compile", "adjoint"),
    ("adjoint", "torch"),
)  # fmt: skip
HEADS = [
    "program",
    "compiled",
    "eager",
    "PyTorch",
    "jax.jit",
    "c / jax",
    "c / torch",
    "c / eager",
    "eager / torch",
]


def all_cases() -> dict[str, list[Case]]:
    """The cases of each family, by the name of its module; a module without ``CASES`` is no family."""
    found = {}
    for info in pkgutil.iter_modules(benchmarks.realistic.__path__):
        if not info.name.startswith("__"):
            module = importlib.import_module(f"{benchmarks.realistic.__name__}.{info.name}")
            if hasattr(module, "CASES"):
                found[info.name] = module.CASES
    return found


def row(result: Result) -> Numbers:
    """The seconds and ratios of a case: quartiles."""
    return {
        "seconds": {name: quartiles(taken) for name, taken in result.seconds.items()},
        "ratios": {
            f"{ours}/{peer}": quartiles(result.ratios(peer, ours))
            for ours, peer in PAIRS
            if {ours, peer} <= set(result.seconds)
        },
        "left out": result.left_out,
        "network": bool(result.case.targets),
    }


def summary(rows: dict[str, Numbers]) -> str:
    """The medians of the ratios, and the programs in which one is above 1."""
    lines = []
    for ours, peer in PAIRS:
        pair = f"{ours}/{peer}"
        found = {name: r["ratios"][pair][1] for name, r in rows.items() if pair in r["ratios"]}
        if pair == "adjoint/torch":
            found = {name: value for name, value in found.items() if rows[name]["network"]}
        above = [f"{name} ({value:.2f})" for name, value in found.items() if value > 1]
        if found:
            lines.append(f"{pair}: median {statistics.median(found.values()):.2f} of {len(found)}; above 1: "
                         f"{', '.join(above) or 'none'}")  # fmt: skip
    return "\n".join(lines)


def cells(name: str, found: Numbers) -> list[str]:
    """A line of the table."""
    times = [duration(found["seconds"][e][1]) if e in found["seconds"] else "–" for e in ENGINES]
    ratios = [found["ratios"].get(f"{a}/{b}") for a, b in PAIRS]
    return [name, *times, *("–" if r is None else f"{r[1]:.2f}" for r in ratios)]


def main() -> None:
    """Print a line per program, then the table and the programs above 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.realistic", description=__doc__)
    parser.add_argument("names", nargs="*", help="only programs or families whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="per program, once seven rounds are done")
    parser.add_argument("--quick", action="store_true", help="seven rounds")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    rounds, seconds = (FEWEST_ROUNDS, 0.0) if options.quick else (options.rounds, options.seconds)
    rows: dict[str, Numbers] = {}
    for family, cases in all_cases().items():
        for case in cases:
            if options.names and not any(n in case.name or n == family for n in options.names):
                continue
            began = time.perf_counter()
            try:
                rows[case.name] = row(measure(case, rounds, seconds=seconds))
            except Exception as error:
                print(f"{case.name}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
                continue
            release()
            print(
                "  ".join(cells(case.name, rows[case.name])),
                f"  [{time.perf_counter() - began:.0f} s]",
                flush=True,
            )
    print(f"\n{table([cells(n, r) for n, r in rows.items()], HEADS)}\n\n{summary(rows)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
