"""``python -m benchmarks.instructions``: count the instructions of small cases, under valgrind.

Times on a shared machine are noise; counts of instructions are not. Each case records and
differentiates a few ops on tiny arrays, so that nearly everything that is counted is adjoint's own work. One
process runs all cases under callgrind; between two of them it calls getsid(), at which callgrind
writes what it has counted and starts again. A case is run twenty times, then once more twenty times; the
second is counted, less an empty loop. Of three runs of the same code, two in one environment differed by
0.1 %, the third, in another environment, by up to 1.0 %.

``--check`` compares with benchmarks/instructions.json, and fails where a case grew by more than 8 %; numbers
of other versions of Python, NumPy or compiler are not compared. ``--update`` writes the file.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

STORED = Path(__file__).with_name("instructions.json")
GROWTH = 0.08
REPEATS = 20


def cases() -> dict[str, Callable[[], Any]]:
    import adjoint as ad

    x = ad.tensor(np.linspace(0.1, 1.0, 4), requires_grad=True)
    w = ad.tensor(np.linspace(0.5, 1.5, 4), requires_grad=True)
    a = ad.tensor(np.eye(4) + 0.1, requires_grad=True)

    def unary() -> None:
        ad.tanh(ad.tanh(ad.tanh(ad.tanh(x)))).sum().backward()

    def binary() -> None:
        ((((x * w) + x) * w) - x).sum().backward()

    def scalar() -> None:
        ((x * 2.0 + 1.0) * 0.5 - 3.0).sum().backward()

    def reduction() -> None:
        (x.sum() * w.sum() * x.mean() * w.mean()).backward()

    def matmul() -> None:
        (a @ (a @ (a @ (a @ x)))).sum().backward()

    F = ad.nn.functional
    rows, target = ad.ones((1, 4)), ad.zeros((1, 4))
    optimizer = ad.optim.SGD([a, w], lr=0.0)

    def training() -> None:
        optimizer.zero_grad()
        F.mse_loss(ad.tanh(F.linear(rows, a, w)), target).backward()
        optimizer.step()

    def chosen() -> None:
        ad.gradients((x * w).sum(), [x])

    def unrecorded() -> None:
        with ad.no_grad():
            ((x * w) + x) * w

    mask = ad.tensor(np.arange(4) > 1)

    def masked() -> None:
        ad.where(mask, (((x * w) + x) * w) - x, 0.0).sum().backward()

    def components() -> None:
        z = x * w
        for _ in range(2):
            p, q = z[0], z[1]
            z = z[:2] + 0.1 * ad.stack([1.5 * p - p * q, -3 * q + p * q])
        z.sum().backward()

    def joined() -> None:
        ad.concat([x * w, x, w]).sum().backward()

    def events() -> None:
        F.mse_loss(ad.tanh(F.linear(rows, a, w)), target).backward(on_leaf_ready=lambda *_: True)

    values, slopes = np.linspace(0.1, 1.0, 4), ad.grad(lambda x: (ad.tanh(x) * x).sum())

    def arrays() -> None:
        slopes(values)

    found = (unary, binary, scalar, reduction, matmul, chosen, training, unrecorded)
    found = (*found, masked, components, joined, events, arrays)
    return {"empty loop": lambda: None} | {f.__name__: f for f in found}


def mark() -> None:
    """Make callgrind write what it has counted: it watches for this function of the C library."""
    os.getsid(0)


def run_cases() -> None:
    """Run in the child: two marks around the counted rounds of each case."""
    gc.disable()
    for run in cases().values():
        for counted in (False, True):
            gc.collect()
            if counted:
                mark()
            for _ in range(REPEATS):
                run()
            if counted:
                mark()


def count() -> dict[str, int]:
    """Return the instructions of one run of each case."""
    names = list(cases())
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "counts")
        command = [
            "valgrind", "--tool=callgrind", "--dump-before=getsid", f"--callgrind-out-file={out}",
            sys.executable, "-m", "benchmarks.instructions", "--child",
        ]  # fmt: skip
        # hash seeds, thread pools and counters of compiled files are the same in every run
        environment = os.environ | {
            "PYTHONHASHSEED": "0",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        # the dump before the second mark of each pair holds the case
        totals = [_total(Path(f"{out}.{2 * i + 2}")) for i in range(len(names))]
    empty = totals[0]
    return {name: round((total - empty) / REPEATS) for name, total in zip(names[1:], totals[1:], strict=True)}


def _total(path: Path) -> int:
    found = re.search(r"^(?:totals|summary): (\d+)", path.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{path}: callgrind wrote no total")
    return int(found[1])


def versions() -> str:
    """What the counts depend on, apart from adjoint."""
    python = ".".join(platform.python_version_tuple()[:2])
    return f"Python {python} ({platform.python_compiler()}), NumPy {np.__version__}, {platform.machine()}"


def check(counts: dict[str, int], stored: dict[str, int]) -> list[str]:
    """Return a sentence for each case that grew too much."""
    return [
        f"{name}: {counts[name]:,} instructions, {counts[name] / was - 1:.1%} more than {was:,}"
        for name, was in stored.items()
        if name in counts and counts[name] > (1 + GROWTH) * was
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions")
    parser.add_argument("--check", action="store_true", help="fail where a case grew by more than 8 %%")
    parser.add_argument("--update", action="store_true", help="write benchmarks/instructions.json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_cases()
        return 0
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if shutil.which("valgrind") is None:
        print("instructions: not counted, valgrind is not installed")
        return 0
    if options.check and versions() not in stored:
        print(f"instructions: not compared, there are no counts for {versions()}")
        return 0
    counts = count()
    before = stored.get(versions(), {})
    for name, n in counts.items():
        change = f"   {n / before[name] - 1:+.1%}" if name in before else ""
        print(f"{name:12s} {n:10,}{change}")
    if options.update:
        STORED.write_text(json.dumps(stored | {versions(): counts}, indent=1) + "\n")
    failures = check(counts, before) if options.check else []
    for failure in failures:
        print(f"instructions: {failure}", file=sys.stderr)
    if failures:
        print("instructions: look for what the hot path does more, or accept it: --update", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
