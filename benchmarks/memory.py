"""``python -m benchmarks.memory``: the peak memory of training steps, beside PyTorch's.

Each engine runs in a child process of its own. What is reported is by how much four steps lift the
largest resident size above the resident size before them, both as Linux counts them. That sees both
allocators alike, and what they keep without need; ``tracemalloc`` sees nothing of PyTorch's memory, and
PyTorch's profiler nothing of NumPy's. Before the mark come import, set-up, two steps of a tiny net of
the same kind, and a large product, so that the scratch of BLAS (some 20 MB in PyTorch's) counts for
neither; then free memory is given back and the largest size is reset. Parameters and data are there before
the mark; gradients, optimiser state, activations and scratch count.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Numbers
from benchmarks.report import table

TARGET = 1.05
HEADING = "peak memory, "
SHOWN = 6  # lines that allocate, the largest first

# name → (kind of net, arguments of its case, arguments of a tiny one)
STEPS: dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]] = {
    f"MLP {batch}×{'-'.join(map(str, sizes))}, {kind} step": (
        "mlp", (batch, sizes, kind), (1, (4, 4, 4, 1), kind),
    )
    for batch, sizes, kind in (
        (512, (784, 1024, 1024, 10), "SGD"),
        (512, (784, 1024, 1024, 10), "Adam"),
        (64, (784, 256, 256, 10), "Adam"),
        (4096, (256, 256, 256, 256, 256, 10), "SGD"),
    )
} | {
    "LeNet, batch 256, forward + backward": ("LeNet", (256,), (1,)),
    "transformer block, 64×64×64, forward + backward": ("block", (64, 64), (1, 4)),
    "LSTM, 200 steps, 64×16-32, forward + backward": ("lstm", (64, 200), (1, 2)),
}  # fmt: skip


def _case(kind: str, arguments: tuple[Any, ...]) -> Any:
    """Build the case that the benchmarks of time use, in the size wanted."""
    import numpy as np

    if kind == "mlp":
        return importlib.import_module("benchmarks.cases.training").training(*arguments)
    if kind == "lstm":
        return importlib.import_module("benchmarks.cases.training").lstm_case(*arguments)
    networks = importlib.import_module("benchmarks.cases.networks")
    rng = np.random.default_rng(1)
    if kind == "LeNet":
        x = rng.standard_normal((*arguments, 1, 28, 28)).astype(np.float32)
        data = lambda: (x, rng.integers(0, 10, arguments[0]))
        return networks.network("", networks.lenet, networks.lenet_arrays, data, {})
    both = rng.standard_normal((2, *arguments, 64)).astype(np.float32)
    return networks.network("", networks.block, networks.attention_arrays, lambda: tuple(both), {})


def resident(field: str) -> int:
    """Return a size of this process in bytes: VmRSS now, VmHWM the largest since the last reset."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) * 1024


def settle(engine: str) -> None:
    """Load BLAS's scratch, give free memory back, and forget the largest size so far."""
    if engine == "torch":
        import torch

        a: Any = torch.ones((1024, 1024))
    else:
        import numpy as np

        a = np.ones((1024, 1024), np.float32)
    for _ in range(3):
        a @ a
    del a
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def growth(name: str, engine: str) -> int:
    """Return by how many bytes four steps lift the peak; for a fresh process."""
    from benchmarks.harness import set_threads

    set_threads()
    kind, arguments, tiny = STEPS[name]
    first = _case(kind, tiny).engines[engine]()
    first()
    first()
    step = _case(kind, arguments).engines[engine]()
    settle(engine)
    before = resident("VmRSS")
    for _ in range(4):
        step()
    return resident("VmHWM") - before


def kept(name: str) -> Numbers:
    """Trace a step: which lines allocate what is still there when backward starts, and the peak."""
    from benchmarks.harness import set_threads

    set_threads()
    kind, arguments, _ = STEPS[name]
    step = _case(kind, arguments).engines["adjoint"]()
    step()
    return traced(step)


def traced(step: Callable[[], Any]) -> Numbers:
    """Return the lines that hold most when backward starts, with bytes, all that is held then, and the peak.

    Only what is allocated in this step is traced, and only in Python and NumPy.
    """
    from adjoint.grads import backward

    lines: list[list[Any]] = []
    held = 0
    start = backward.differentiate

    def noted(*args: Any, **options: Any) -> Any:
        nonlocal held
        if not lines:
            held = tracemalloc.get_traced_memory()[0]
            found = tracemalloc.take_snapshot().statistics("lineno")
            lines.extend([_line(s.traceback[0]), s.size] for s in found[:SHOWN])
        return start(*args, **options)

    backward.differentiate = noted
    tracemalloc.start()
    try:
        step()
        return {"kept": lines, "held": held, "peak": tracemalloc.get_traced_memory()[1]}
    finally:
        tracemalloc.stop()
        backward.differentiate = start


def _line(frame: Any) -> str:
    return f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno}"


def take_apart(of: str, missed: Sequence[Numbers], rows: list[Numbers]) -> Numbers:
    """Trace the step in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", "--kept", of.removeprefix(HEADING)]
    found: Numbers = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def why(taken: Numbers, missed: Sequence[Numbers], rows: list[Numbers]) -> str:
    """Say what a step holds when its backward starts, and what comes on top."""
    r = next(r for r in rows if HEADING + r["name"] == missed[0]["of"])
    allowed = r["torch"] * missed[0]["target"]
    cells = [[f"`{where}`", _mb(size)] for where, size in taken["kept"]]
    return (
        f"The step may take {_mb(int(allowed))} and takes {_mb(r['adjoint'])}. Traced by Python, "
        f"{_mb(taken['held'])} are held when backward starts, and {_mb(taken['peak'])} at the peak; what the "
        "process takes beyond that is the allocator's and BLAS's.\n\n"
        + table(cells, ["allocated in the forward and there when backward starts", "size"])
    )


def in_child(name: str, engine: str) -> int | None:
    """Measure in a process of its own; None if the peer fails, because it is not installed or else."""
    command = [sys.executable, "-m", "benchmarks.memory", "--child", name, engine]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        if engine == "adjoint":
            raise RuntimeError(done.stderr)
        said = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"peak memory, {name}: {engine} is left out: {said}", file=sys.stderr)
        return None
    return int(done.stdout)


def measure(repeats: int = 1) -> list[Numbers]:
    """Return each step's peak in adjoint and in PyTorch: the median of some processes each."""
    rows: list[Numbers] = []
    for name in STEPS:
        found: dict[str, int] = {}
        for engine in ("adjoint", "torch"):
            peaks = [in_child(name, engine) for _ in range(repeats)]
            known = [p for p in peaks if p is not None]
            if known:
                found[engine] = int(statistics.median(known))
        rows.append({"name": name, **found})
        print(f"  {name}: {found}", file=sys.stderr)
    return rows


def limits(rows: list[Numbers]) -> list[Numbers]:
    """Return the rows of the table of targets."""
    return [
        {
            "name": HEADING + r["name"],
            "of": HEADING + r["name"],
            "beside": "torch",
            "value": round(r["adjoint"] / r["torch"], 3),
            "target": TARGET,
        }
        for r in rows
        if "torch" in r
    ]


def text(rows: list[Numbers]) -> str:
    """Return the table of peaks, with what was measured."""
    cells = []
    for r in rows:
        theirs = r.get("torch")
        ratio = "–" if theirs is None else f"{r['adjoint'] / theirs:.2f}"
        cells.append([r["name"], _mb(r["adjoint"]), "–" if theirs is None else _mb(theirs), ratio])
    explained = (
        "By how much four steps lift the largest resident size of a process, as the operating system counts\n"
        "it, above its size before them: gradients, optimiser state, activations and scratch.\n\n"
    )
    return explained + table(cells, ["step", "adjoint", "PyTorch", "ratio"])


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kept", metavar="STEP", help="show as JSON which lines allocate what a step keeps")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kept:
        print(json.dumps(kept(options.kept)))
        return 0
    if options.child:
        print(growth(*options.child))
        return 0
    rows = measure(options.repeats)
    print(json.dumps(rows, indent=1) if options.json else text(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
