"""A program that the tests start on several ranks: ``mpiexec -n 3 python ranks.py <what>``."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from adjoint import distributed
from adjoint.distributed import mpi
from adjoint.distributed.order import tree_sum

what = sys.argv[1]
group = distributed.world(timeout=2.0 if what == "stop" else 60.0)
rank, size = group.rank, group.size


def collectives() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        given = rng.standard_normal((size, 10_001)).astype(dtype)
        expected = tree_sum([a.copy() for a in given])
        for halving in (mpi.HALVING, 2):
            mpi.HALVING = halving
            assert group.sum(given[rank]).tobytes() == expected.tobytes()
    started = np.full(5, float(rank))
    group.broadcast(started, root=size - 1)
    assert (started == size - 1).all()
    assert group.gather("x" * 5000 * rank) == ["x" * 5000 * r for r in range(size)]
    group.agree("facts", {"a": 1})


def report(error: BaseException) -> None:
    print(f"rank {rank} raises {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)


if what == "collectives":
    collectives()
    print(f"rank {rank} of {size} is done", flush=True)
    sys.exit(0)

group.sum(np.ones(4))  # everybody is there
if rank == 1:
    print("now", flush=True)
    if what == "raise":
        raise ValueError("rows are missing")
    if what == "exit":
        sys.exit(0)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "other calls":
        group.gather(None, "a gather of rank 1")
try:
    for _ in range(1000):
        group.sum(np.ones(4), "the sum of a step")
        time.sleep(1e-3)
except distributed.RankError as error:
    report(error)
    raise
