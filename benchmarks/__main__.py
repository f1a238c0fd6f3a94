"""``python -m benchmarks [name …]``: run the cases and print the tables of ratios."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import platform
import sys
import time
from pathlib import Path

from benchmarks import cases, memory, parallel, profile, scale
from benchmarks.harness import THREADS, Case, Numbers, measure
from benchmarks.report import page, picture, ratios

DOCS = Path(__file__).parents[1] / "docs"
PEERS = ("numpy", "torch", "jax", "autograd", "mlx", "tinygrad", "scipy")


def all_cases() -> tuple[dict[str, str], dict[str, list[Case]]]:
    """Return the groups' headings, from the modules' docstrings, and their cases."""
    headings: dict[str, str] = {}
    found: dict[str, list[Case]] = {}
    for info in pkgutil.iter_modules(cases.__path__):
        module = importlib.import_module(f"{cases.__name__}.{info.name}")
        headings[info.name] = (module.__doc__ or info.name).splitlines()[0].rstrip(".")
        found[info.name] = module.CASES
    return headings, found


def machine() -> dict[str, str]:
    """The versions and the machine that numbers belong to."""
    found = {"Python": platform.python_version()}
    for peer in PEERS:
        try:
            found[peer] = importlib.metadata.version(peer)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | {"on": f"{processor()}, {len(os.sched_getaffinity(0))} processors, {platform.system()}"}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.machine())


def run(names: list[str], rounds: int, seconds: float, without: list[str]) -> Numbers:
    """Measure the cases whose names contain one of ``names``, or all; leave some engines out."""
    headings, groups = all_cases()
    numbers: Numbers = {"machine": machine(), "threads": THREADS, "groups": headings, "cases": {}}
    for group, members in groups.items():
        for case in members:
            if names and not any(n in case.name for n in names):
                continue
            for engine in without:
                case.engines.pop(engine, None)
            began = time.perf_counter()
            numbers["cases"][case.name] = {"group": group, **measure(case, rounds, seconds=seconds).summary()}
            print(f"{time.perf_counter() - began:6.1f} s  {case.name}", file=sys.stderr)
    return numbers


def add_parts(numbers: Numbers) -> None:
    """Measure threads, memory and scale too, and take apart what missed its target."""
    members = [case for group in all_cases()[1].values() for case in group]
    numbers["parallel"] = parallel.measure()
    numbers["memory"], numbers["scale"] = memory.measure(), scale.measure()
    numbers["profiles"] = profile.measure(members, numbers)


def write(numbers: Numbers) -> None:
    """Write docs/performance.json, and the page and the picture that come from it."""
    text = json.dumps(numbers, indent=1, ensure_ascii=False)
    (DOCS / "performance.json").write_text(_compact(text) + "\n")
    (DOCS / "performance.md").write_text(page(numbers))
    picture(numbers, DOCS / "performance.png")


def _compact(text: str) -> str:
    """Put lists of numbers on one line."""
    import re

    return re.sub(r"\[\s+([-\d.e,\s]+?)\s+\]", lambda m: "[" + ", ".join(m[1].split(",\n")) + "]", text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="only cases whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=30, help="rounds at most (30)")
    parser.add_argument("--seconds", type=float, default=5.0, help="per case, once seven rounds are done (5)")
    parser.add_argument("--without", action="append", default=[], help="leave this engine out; repeatable")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--picture", type=Path, help="draw the ratios into this file")
    parser.add_argument("--write", action="store_true", help="write docs/performance.*; takes a while")
    parser.add_argument("--page", action="store_true", help="write the page again from docs/performance.json")
    options = parser.parse_args()
    if options.page:
        write(json.loads((DOCS / "performance.json").read_text()))
        return 0
    if options.write and options.names:
        parser.error("--write takes all cases: name none")
    if (options.write or options.picture) and importlib.util.find_spec("matplotlib") is None:
        parser.error("the picture needs matplotlib: pip install 'adjoint[plot]'")
    numbers = run(options.names, options.rounds, options.seconds, options.without)
    if options.write:
        add_parts(numbers)
        write(numbers)
    print(ratios(numbers["cases"]))
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=1, ensure_ascii=False))
    if options.picture:
        picture(numbers, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
