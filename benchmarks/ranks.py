"""``python -m benchmarks.ranks``: training steps on several ranks, beside PyTorch's DDP on gloo.

A step of a multi-layer perceptron with 2.6 million float32 parameters and SGD with momentum; one BLAS thread
per rank.  One program runs all cases in turn, a few steps of each per round: on rank 0 alone, then on all
ranks, with adjoint and with PyTorch.  What else runs on the machine therefore slows all of them.  The tables
have medians over the rounds, of the clock and of the processor time of rank 0 per step.  Weak scaling is the
time alone over the time of all ranks, in the same round.

``--link`` puts two ranks into two network namespaces with a link of 1 Gbit/s (needs root, ``ip``, ``tc``),
and compares them with the α–β model.  ``--model`` prints that model for larger groups, ``--memory`` the
memory of an optimiser's state on 1, 2 and 4 ranks, ``--faults`` the seconds from a fault of one rank to the
end of all.  All tables are Markdown, for docs/distributed.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

SIZES = [512, 1024, 1024, 1024, 10]
BYTES = 4 * sum(a * b + b for a, b in pairwise(SIZES))
BUCKETS = [4.0 * a * b for a, b in reversed(list(pairwise(SIZES))) if a * b * 4 >= 1 << 20] + [0.1 * 2**20]
RATE, DEVICE = "1gbit", "ranks0"
ROOT = Path(__file__).parents[1]
Numbers = dict[str, float]
Step = Callable[[], object]

# Workers -------------------------------------------------------------------------------------------------


def adjoint_step(group: Any, rows: int, early: bool = True) -> Step:
    """Return a step of adjoint on a group."""
    import adjoint as ad
    from adjoint import nn, optim

    layers: list[Any] = []
    for a, b in pairwise(SIZES):
        layers += [nn.Linear(a, b, rng=a + b), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    rng = np.random.default_rng(group.rank)
    x, y = rng.standard_normal((rows, SIZES[0])).astype(np.float32), rng.integers(0, 10, rows)
    acc = ad.GradientAccumulator(model, group=group, accumulation_steps=1, nonfinite="allow")

    def step() -> None:
        with acc.micro_batch(weight=rows) as block:
            loss = nn.functional.cross_entropy(model(x), y)
            block.backward(loss) if early else loss.backward()
        acc.apply(optimizer)

    return step


def torch_step(rows: int, ranks: int) -> Step:
    """Return the same step of PyTorch, on several ranks by DDP."""
    import torch
    from torch import nn

    layers: list[Any] = []
    for a, b in pairwise(SIZES):
        layers += [nn.Linear(a, b), nn.ReLU()]
    plain = nn.Sequential(*layers[:-1])
    model: Any = nn.parallel.DistributedDataParallel(plain) if ranks > 1 else plain
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.randn(rows, SIZES[0]), torch.randint(0, 10, (rows,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def torch_ranks(rank: int, ranks: int) -> None:
    """Connect the ranks of PyTorch, with one thread each."""
    import torch

    torch.set_num_threads(1)
    if ranks > 1:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
        torch.distributed.init_process_group("gloo")


def timed(step: Step, steps: int, group: Any) -> Numbers:
    """Return milliseconds per step: of the clock, of the processor, and those spent in waiting."""
    step()
    before, used, start = group.waited, time.process_time(), time.perf_counter()
    for _ in range(steps):
        step()
    clock, processor = time.perf_counter() - start, time.process_time() - used
    found = {"clock": clock, "processor": processor, "waited": group.waited - before}
    return {name: 1e3 * value / steps for name, value in found.items()}


def work(rows: int, rounds: int, steps: int) -> None:
    """Run all cases in turn; rank 0 prints the numbers of each round."""
    from adjoint import distributed

    group = distributed.world(timeout=120.0)
    torch_ranks(group.rank, group.size)
    alone = distributed.Group()
    cases: dict[str, tuple[bool, Any, Step]] = {  # whether rank 0 runs it alone, its group, its step
        "adjoint alone": (True, alone, adjoint_step(alone, rows)),
        "adjoint": (False, group, adjoint_step(group, rows)),
        "PyTorch alone": (True, alone, torch_step(rows, 1)),
        "PyTorch": (False, alone, torch_step(rows, group.size)),
        "adjoint, sums at the end": (False, group, adjoint_step(group, rows, early=False)),
    }
    names = list(cases)
    found: list[dict[str, Numbers]] = []
    for i in range(rounds + 1):  # the first one warms up
        found.append({})
        for k in range(len(names)):
            name = names[(i + k) % len(names)]
            single, ranks, step = cases[name]
            group.barrier()
            if group.rank == 0 or not single:
                found[-1][name] = timed(step, steps, ranks)
    latency, rate = link_of(group)
    if group.rank == 0:
        print(json.dumps({"rounds": found[1:], "latency": latency, "rate": rate}), flush=True)


def link_of(group: Any) -> tuple[float, float]:
    """Return the seconds of a message and the bytes per second, fitted to sums of two lengths."""
    if group.size == 1:
        return 0.0, math.inf
    seconds = []
    for count in (64, 1 << 20):
        flat = np.ones(group.padded(count), np.float32)
        times = []
        for _ in range(9):
            group.barrier()
            start = time.perf_counter()
            group.wait(group.start_sum(flat, "a sum"))
            times.append(time.perf_counter() - start)
        seconds.append(statistics.median(times))
    share = 2 * (group.size - 1) / group.size
    return seconds[0] / 2, share * (1 << 22) / (seconds[1] - seconds[0])


def print_state() -> None:
    """Print the memory of Adam's state on rank 0, and that of the process above model and gradients."""
    from adjoint import distributed, nn, optim

    group = distributed.world(timeout=120.0)
    model = nn.Sequential(nn.Linear(2048, 3072, rng=0), nn.ReLU(), nn.Linear(3072, 2304, rng=1))
    for p in model.parameters():
        p.grad = p.detach() * 0.5
    before = _resident()
    optimizer = optim.Adam(model.parameters(), lr=1e-3, shard=group)
    optimizer.step()
    state = sum(v.nbytes for g in optimizer.groups for u in g.units for v in (u.state or {}).values())
    if group.rank == 0:
        print(json.dumps({"state": state / 1e6, "resident": (_resident() - before) / 1e6}), flush=True)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Starting them -------------------------------------------------------------------------------------------

Link = tuple[str, str] | None  # names of two network namespaces


def run(ranks: int, arguments: Sequence[str], link: Link = None) -> dict[str, Any]:
    """Run this file as a worker on some ranks; return what rank 0 prints."""
    address = "127.0.0.1" if link is None else "10.9.0.1"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment |= {"MASTER_ADDR": address, "MASTER_PORT": "29511"}
    worker = [sys.executable, "-m", "benchmarks.ranks", *arguments]
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    if mpiexec is None:
        raise SystemExit("benchmarks.ranks needs mpiexec: pip install 'adjoint-ad[distributed]'")
    if link is not None:  # no shared memory, and TCP over the link
        environment |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1", "GLOO_SOCKET_IFNAME": DEVICE}
        environment |= {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": DEVICE}
        chosen = f'if [ "$PMI_RANK" = 0 ]; then ns={link[0]}; else ns={link[1]}; fi'
        worker = ["sh", "-c", f'{chosen}; exec ip netns exec $ns "$@"', "sh", *worker]
    command = [mpiexec, "-n", str(ranks), *worker]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith("{"))
    )
    return found


@contextmanager
def linked() -> Iterator[tuple[str, str]]:
    """Make two network namespaces with a link of 1 Gbit/s between them."""
    names = (f"adjoint-a-{os.getpid()}", f"adjoint-b-{os.getpid()}")

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    for name in names:
        ip("netns", "add", name)
    try:
        ip("-n", names[0], *f"link add name {DEVICE} type veth peer name {DEVICE} netns {names[1]}".split())
        for i, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.9.0.{i + 1}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                ip("-n", name, "link", "set", device, "up")
            subprocess.run(
                f"tc -n {name} qdisc add dev {DEVICE} root tbf rate {RATE} burst 256kb latency 100ms".split(),
                check=True,
            )
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


# The model -----------------------------------------------------------------------------------------------

NETS = {  # seconds per message, bytes per second
    "1 Gbit/s": (50e-6, 117e6),
    "10 Gbit/s": (20e-6, 1.17e9),
    "100 Gbit/s": (3e-6, 11e9),
}


def modelled(
    bytes_: float,
    compute: float,
    ranks: int,
    net: tuple[float, float],
    early: bool = True,
    buckets: Sequence[float] | None = None,
) -> float:
    """Return the seconds of a step by the α–β model, with the buckets and the sums of adjoint.

    Forward takes a third of the computation; in backward the gradients come evenly.  A sum of n bytes takes
    2·log₂ R·α + 2·(R - 1)/R·n/β (powers of two).  ``buckets`` are bytes; by default those of many small
    parameters.
    """
    from adjoint.accumulate.ranks import FIRST, LIMIT

    alpha, beta = net
    doublings = math.ceil(math.log2(ranks)) if ranks > 1 else 0
    latency = alpha * 2 * doublings
    if buckets is None:
        size = min(max(bytes_ / 8, FIRST), LIMIT)
        buckets = [FIRST, *[size] * math.ceil((bytes_ - FIRST) / size)]
    end, sent = 0.0, 0.0
    for bucket in buckets:
        size = min(bucket, bytes_ - sent)
        sent += size
        ready = compute / 3 + compute * 2 / 3 * (sent / bytes_ if early else 1.0)
        end = max(end, ready) + latency + 2 * (ranks - 1) / ranks * size / beta
    exchange = doublings * alpha + ranks * 2048 / beta  # at the end of a window
    return end + exchange


def print_model() -> None:
    """Print the efficiency of weak scaling: computation / step."""
    sizes = (8, 64, 512, 4096)
    print_row("", "", *(f"{r:,} ranks" for r in sizes))
    print_row(*["---"] * (len(sizes) + 2))
    for what, bytes_, compute in (
        ("2.6 million parameters, 35 ms per step", BYTES, 0.035),
        ("25 million parameters, 0.3 s", 100e6, 0.3),
    ):
        for name, net in NETS.items():
            times = [[modelled(bytes_, compute, r, net, early) for early in (True, False)] for r in sizes]
            print_row(what, name, *(f"{100 * compute / a:.0f} ({100 * compute / b:.0f})" for a, b in times))
            what = ""


# The tables ----------------------------------------------------------------------------------------------


def print_row(*cells: str) -> None:
    """Print a row of a table."""
    print(f"| {' | '.join(cells)} |", flush=True)


def over(rounds: list[Any], case: str, what: str, beside: str | None = None) -> tuple[float, ...]:
    """Return the median and the quartiles over the rounds, of a number or of the ratio of two cases."""
    values = [each[case][what] / (each[beside][what] if beside else 1.0) for each in rounds]
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, low, high


def print_steps(shapes: Sequence[tuple[int, int]], rounds: int) -> None:
    """Print steps and weak scaling, without a link."""
    kinds = ("adjoint", "PyTorch")
    print_row("ranks", "rows each", "time", *(f"{k}, ms" for k in kinds), *(f"{k}, scaling" for k in kinds))
    print_row(*["---"] * 7)
    for ranks, rows in shapes:
        found = run(ranks, ["--work", str(rows), str(rounds), str(3 if rows > 200 else 6)])["rounds"]
        for what in ("clock", "processor"):
            pairs = [[over(found, case, what)[0] for case in (f"{kind} alone", kind)] for kind in kinds]
            ratios = [[100 * x for x in over(found, f"{kind} alone", what, kind)] for kind in kinds]
            cells = ["{:.1f} → {:.1f}".format(*pair) for pair in pairs]
            cells += ["{:.0f} % ({:.0f} to {:.0f})".format(*ratio) for ratio in ratios]
            print_row(str(ranks), str(rows), what, *cells)


def print_link(rounds: int) -> None:
    """Print steps over a slow link, beside the model."""
    with linked() as link:
        found = run(2, ["--work", "512", str(rounds), "3"], link)
    net, steps = (found["latency"], found["rate"]), found["rounds"]
    compute = over(steps, "adjoint alone", "clock")[0]
    print(f"α = {1e6 * net[0]:.0f} µs, β = {net[1] / 1e6:.0f} MB/s, a step alone {compute:.1f} ms\n")
    print_row("2 ranks of 512 rows", "ms per step", "model", "waiting for the other rank", "model")
    print_row(*["---"] * 5)
    for case in ("adjoint", "adjoint, sums at the end", "PyTorch"):
        clock, waited = (over(steps, case, what)[0] for what in ("clock", "waited"))
        cells = [f"{clock:.1f}", "", "", ""]
        if case != "PyTorch":
            model = 1e3 * modelled(BYTES, compute / 1e3, 2, net, case == "adjoint", BUCKETS)
            cells = [f"{clock:.1f}", f"{model:.1f}", f"{waited:.1f}", f"{model - compute:.1f}"]
        print_row(case, *cells)


def print_memory() -> None:
    """Print the memory of an optimiser's state in slices."""
    print_row("ranks", "MB of state", "MB of resident memory")
    print_row(*["---"] * 3)
    for ranks in (1, 2, 4):
        found = run(ranks, ["--state"])
        print_row(str(ranks), f"{found['state']:.1f}", f"{found['resident']:.1f}")


FAULTS = {
    "loss and end": "an exception in the loss", "hook and end": "an exception in a hook",
    "callback": "an exception in a callback",
    "exit": "`sys.exit` in `fit`", "leave": "it leaves the program", "shape": "parameters of other shapes",
    "nan": "a loss that is not finite", "drift": "changed parameters, noticed 4 steps later",
    "kill at 5": "kill -9",
    "stopped": "SIGSTOP, `timeout=2`", "stop": "`trainer.stop()`", "interrupt": "Ctrl-C",
}  # fmt: skip


def print_faults(rounds: int) -> None:
    """Print the seconds from a fault of one of three ranks to the end of all processes."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from launcher import start  # type: ignore[import-untyped]  # of the tests

    print_row("fault", "seconds", "longest")
    print_row(*["---"] * 3)
    for what, name in FAULTS.items():
        found = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as directory:
                ended = start("rank_training.py", 3, what, directory, interrupt=what == "interrupt")
            found.append(ended[1])
        print_row(name, f"{statistics.median(found):.2f}", f"{max(found):.2f}")


def main() -> None:
    """Run the worker or print the table that the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    for name in ("link", "model", "memory", "faults"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--shapes", default="2x128,2x512,4x128", help="ranks x rows per rank, …")
    parser.add_argument("--work", type=int, nargs=3, help=argparse.SUPPRESS)  # rows, rounds, steps
    parser.add_argument("--state", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work)
    elif options.state:
        print_state()
    elif options.link:
        print_link(options.rounds)
    elif options.model:
        print_model()
    elif options.memory:
        print_memory()
    elif options.faults:
        print_faults(5)
    else:
        shapes = [(int(r), int(n)) for r, n in (each.split("x") for each in options.shapes.split(","))]
        print_steps(shapes, options.rounds)


if __name__ == "__main__":
    main()
