"""``python -m benchmarks.against CHECKOUT [name …]``: this version beside another one, in interleaved rounds.

Each version runs its own cases, in a process of its own.  What counts is the median over rounds of the
time of this version divided by that of the other.  With ``--fastest``, for a machine that does other work,
it is the ratio of the fastest rounds, which are short then.  The exit code is 1 if a ratio is above
``--limit``.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import Numbers, quartiles

ROOT = Path(__file__).parents[1]
ENGINES = ("adjoint", "adjoint-compile", "adjoint-replay")
ROUNDS, SECONDS, LIMIT = 15, 0.02, 1.05  # rounds, seconds of each version in a round, largest ratio
SHORT = 0.001  # seconds with --fastest
WORKER = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
runpy.run_path(sys.argv[2])["serve"]()
"""


def serve() -> None:
    """Answer requests of the parent, one a line: ["set up", case, engine] or ["time", steps]."""
    from benchmarks.__main__ import all_cases
    from benchmarks.harness import set_threads, time_of

    set_threads()
    cases = {case.name: case for group in all_cases()[1].values() for case in group}
    step: Any = None
    for line in sys.stdin:
        what, *given = json.loads(line)
        try:
            if what == "set up":
                step = cases[given[0]].engines[given[1]]()
                for _ in range(4):  # traces, builds, direct calls
                    step()
                answer: Any = time_of(step, 3)
            else:
                answer = time_of(step, given[0])
        except Exception as error:
            answer = f"{type(error).__name__}: {error}".splitlines()[0]
        print(json.dumps(answer), flush=True)


class Version:
    """A process that runs the steps of one version."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(folder), __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, *request: Any) -> Any:
        """Return the answer to a request."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


def compare(
    versions: list[Version], case: str, engine: str, rounds: int, seconds: float = SECONDS
) -> Numbers:
    """Return the quartiles of the ratio and the seconds of both versions, or why one has none."""
    first = [v.ask("set up", case, engine) for v in versions]
    if any(isinstance(f, str) for f in first):
        return {"left out": next(f for f in first if isinstance(f, str))}
    steps = max(1, int(seconds / max(*first, 1e-7)))
    taken: list[list[float]] = [[], []]
    shuffle = random.Random(0)
    for _ in range(rounds):
        for k in shuffle.sample(range(2), 2):
            taken[k].append(versions[k].ask("time", steps))
    ratios = [a / b for a, b in zip(*taken, strict=True)]
    fastest = min(taken[0]) / min(taken[1])
    return {"ratio": quartiles(ratios), "fastest": fastest, "seconds": [quartiles(t)[1] for t in taken]}


def main() -> int:
    """Compare all cases, or those whose names contain one of the given names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a folder with the other version, such as a worktree")
    parser.add_argument("names", nargs="*", help="only cases whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--engine", action="append", choices=ENGINES, help="only this one; repeatable")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"the largest ratio ({LIMIT})")
    parser.add_argument("--fastest", action="store_true", help="compare the fastest rounds")
    options = parser.parse_args()
    from benchmarks.__main__ import all_cases

    versions = [Version(ROOT), Version(options.checkout.resolve())]
    slower = 0
    for group in all_cases()[1].values():
        for case in group:
            if options.names and not any(n in case.name for n in options.names):
                continue
            for engine in options.engine or ENGINES:
                found = compare(
                    versions, case.name, engine, options.rounds, SHORT if options.fastest else SECONDS
                )
                if "ratio" not in found:
                    continue
                low, middle, high = found["ratio"]
                judged = found["fastest"] if options.fastest else middle
                mark = "  slower" if judged > options.limit else ""
                slower += bool(mark)
                micro = found["seconds"][0] * 1e6
                text = f"{judged:.3f} ({low:.3f}-{high:.3f}) {micro:10.1f} µs  {engine:16}"
                print(f"{text} {case.name}{mark}", flush=True)
    print(f"{slower} slower than {options.limit}")
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
