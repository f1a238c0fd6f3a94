"""``python -m benchmarks [name …]``: run the cases and print the table of ratios."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import platform
import sys
from pathlib import Path

import numpy as np

from benchmarks import cases
from benchmarks.harness import Case, measure, table


def all_cases() -> list[Case]:
    found: list[Case] = []
    for info in pkgutil.iter_modules(cases.__path__):
        found.extend(importlib.import_module(f"{cases.__name__}.{info.name}").CASES)
    return found


def machine() -> dict[str, str]:
    """The versions and the machine that numbers belong to."""
    found = {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}
    for peer in ("torch", "jax", "autograd"):
        try:
            found[peer] = getattr(importlib.import_module(peer), "__version__", "installed")
        except ImportError:
            found[peer] = "not installed"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="only cases whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    chosen = [c for c in all_cases() if not options.names or any(n in c.name for n in options.names)]
    print(", ".join(f"{k} {v}" for k, v in machine().items()), file=sys.stderr)
    results = []
    for case in chosen:
        print(f"… {case.name}", file=sys.stderr)
        results.append(measure(case, options.rounds, rest=0.15 if case.blas else 0.0))
    print(table(results))
    if options.json:
        numbers = {r.case.name: r.seconds for r in results}
        options.json.write_text(json.dumps({"machine": machine(), "seconds": numbers}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
