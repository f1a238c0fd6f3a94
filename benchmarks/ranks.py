"""``python -m benchmarks.ranks``: training steps on several ranks, beside PyTorch's DDP on gloo.

A step of a multi-layer perceptron with 2.6 million float32 parameters and SGD with momentum; one BLAS thread
per rank.  Each configuration is a program of its own; rounds run all of them once, in turn.  The table has
the lowest numbers of the rounds, because others may use the machine too: the median and the lower decile of
the seconds of a step, the processor time of a rank per step, which is what a step takes on free processors
but for waiting, and the seconds in which the rank waited for others.

``--link`` puts two ranks into two network namespaces with a link of 1 Gbit/s (needs root, ``ip``, ``tc``).
``--model`` prints the α–β model of larger groups.  ``mpiexec -n 2 python -m benchmarks.ranks --memory``
prints the memory of an optimiser's state.
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
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

SIZES = [512, 1024, 1024, 1024, 10]
BYTES = 4 * sum(a * b + b for a, b in pairwise(SIZES))
STEPS, WARM = 20, 3
BUCKETS = [4.0 * a * b for a, b in reversed(list(pairwise(SIZES))) if a * b * 4 >= 1 << 20] + [0.1 * 2**20]
RATE, DEVICE = "1gbit", "ranks0"
ROOT = Path(__file__).parents[1]

# Workers -------------------------------------------------------------------------------------------------


Numbers = dict[str, float]


def measured(step: Callable[[], object], waited: Callable[[], float] = lambda: 0.0) -> Numbers:
    """Return milliseconds of steps: of the clock, of the processor, and those spent in waiting."""
    for _ in range(WARM):
        step()
    seconds, before, used = [], waited(), time.process_time()
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    found = {
        "median": statistics.median(seconds),
        "low": statistics.quantiles(seconds, n=10)[0],
        "processor": (time.process_time() - used) / STEPS,
        "waited": (waited() - before) / STEPS,
    }
    return {name: 1e3 * value for name, value in found.items()}


def adjoint_steps(rows: int, early: bool = True) -> Numbers | None:
    """Measure steps of adjoint; None on ranks other than the first."""
    import adjoint as ad
    from adjoint import distributed, nn, optim

    group = distributed.world(timeout=120.0)
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

    found = measured(step, lambda: group.waited)
    return found if group.rank == 0 else None


def torch_steps(rows: int) -> Numbers | None:
    """Measure the same steps with DDP; None on ranks other than the first."""
    import torch
    from torch import distributed, nn

    torch.set_num_threads(1)
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks > 1:
        distributed.init_process_group("gloo")
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

    found = measured(step)
    if ranks > 1:
        distributed.destroy_process_group()
    return found if rank == 0 else None


WORKERS: dict[str, Callable[[int], Numbers | None]] = {
    "adjoint": adjoint_steps,
    "adjoint, at the end": lambda rows: adjoint_steps(rows, early=False),
    "PyTorch DDP": torch_steps,
}


def print_memory() -> None:
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
        numbers = {"state MB": state / 1e6, "resident MB": (_resident() - before) / 1e6}
        print(f"{group.size} ranks: {numbers}", flush=True)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Starting them -------------------------------------------------------------------------------------------

Link = tuple[str, str] | None  # names of two network namespaces


def run(kind: str, ranks: int, rows: int, link: Link = None) -> dict[str, float]:
    """Run a worker on some ranks; return the median of its steps and of its waiting on rank 0."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    worker = [sys.executable, "-m", "benchmarks.ranks", "--worker", kind, "--rows", str(rows)]
    if kind.startswith("PyTorch"):
        text = _run_torch(worker, environment, ranks, link)
    elif ranks == 1:
        text = _output(worker, environment)
    else:
        mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
        if mpiexec is None:
            raise SystemExit("benchmarks.ranks needs mpiexec: pip install 'adjoint-ad[distributed]'")
        if link is not None:  # no shared memory, and TCP over the link
            environment |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}
            environment |= {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": DEVICE}
            chosen = f'if [ "$PMI_RANK" = 0 ]; then ns={link[0]}; else ns={link[1]}; fi'
            worker = ["sh", "-c", f'{chosen}; exec ip netns exec $ns "$@"', "sh", *worker]
        text = _output([mpiexec, "-n", str(ranks), *worker], environment)
    found: dict[str, float] = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    return found


def _run_torch(worker: list[str], environment: dict[str, str], ranks: int, link: Link) -> str:
    address = "127.0.0.1" if link is None else "10.9.0.1"
    shared = {"MASTER_ADDR": address, "MASTER_PORT": "29511", "WORLD_SIZE": str(ranks)}
    if link is not None:
        shared["GLOO_SOCKET_IFNAME"] = DEVICE
    processes = []
    for rank in range(ranks):
        inside = [] if link is None else ["ip", "netns", "exec", link[rank]]
        processes.append(
            subprocess.Popen(
                [*inside, *worker],
                env={**environment, **shared, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    return "".join(process.communicate(timeout=300)[0] for process in processes)


def _output(command: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


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
    (R - 1)·α + ⌈log₂ R⌉·α + 2·(R - 1)/R·n/β by alltoall and allgather, and 2·⌈log₂ R⌉·α + 2·(R - 1)/R·n/β by
    halving from ``HALVING`` ranks on.  ``buckets`` are bytes; by default those of many small parameters.
    """
    from adjoint.accumulate.ranks import FIRST, LIMIT
    from adjoint.distributed.mpi import HALVING

    alpha, beta = net
    doublings = math.ceil(math.log2(ranks)) if ranks > 1 else 0
    latency = alpha * (2 * doublings if ranks >= HALVING else ranks - 1 + doublings)
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
    sizes = (2, 8, 64, 512, 4096)
    for what, bytes_, compute in (
        ("2.6 million parameters, 35 ms", BYTES, 0.035),
        ("25 million parameters, 0.3 s", 100e6, 0.3),
        ("125 million parameters, 2 s", 500e6, 2.0),
    ):
        print(f"\n{what}: % of linear scaling on {', '.join(map(str, sizes))} ranks; without early sums")
        for name, net in NETS.items():
            rows = [
                "  ".join(f"{100 * compute / modelled(bytes_, compute, r, net, early):3.0f}" for r in sizes)
                for early in (True, False)
            ]
            print(f"{name:>12}   {rows[0]}   |   {rows[1]}")


# The tables ----------------------------------------------------------------------------------------------


def compared(
    cases: list[tuple[str, int, int]], rounds: int, link: Link = None
) -> dict[Any, dict[str, float]]:
    """Run all cases in turn for some rounds; return the lowest numbers of each, in milliseconds."""
    found: dict[Any, list[dict[str, float]]] = {case: [] for case in cases}
    for i in range(rounds):
        for k in range(len(cases)):
            case = cases[(i + k) % len(cases)]
            found[case].append(run(*case, link=link if case[1] > 1 else None))
    return {case: {k: min(r[k] for r in results) for k in results[0]} for case, results in found.items()}


def main() -> None:
    """Run the worker or the comparison that the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", choices=list(WORKERS))
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--link", action="store_true")
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    if options.worker:
        numbers = WORKERS[options.worker](options.rows)
        if numbers is not None:
            print(json.dumps(numbers), flush=True)
        return
    if options.model or options.memory:
        (print_model if options.model else print_memory)()
        return
    if options.link:
        cases = [("adjoint", 1, 512), *((kind, 2, 512) for kind in WORKERS)]
        with linked() as link:
            found = compared(cases, options.rounds, link)
    else:
        kinds = ("adjoint", "PyTorch DDP")
        shapes = [(1, 512), (2, 512), (1, 128), (2, 128), (4, 128)]
        cases = [(kind, ranks, rows) for ranks, rows in shapes for kind in kinds]
        found = compared([*cases, ("adjoint, at the end", 2, 512)], options.rounds)
    names = ("median", "low", "processor", "waited")
    print(f"{'ms per step':<22}{'ranks':>6}{'rows per rank':>15}" + "".join(f"{name:>11}" for name in names))
    for (kind, ranks, rows), numbers in found.items():
        print(f"{kind:<22}{ranks:>6}{rows:>15}" + "".join(f"{numbers[name]:>11.1f}" for name in names))


if __name__ == "__main__":
    main()
