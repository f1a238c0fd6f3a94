"""A program that the tests of MPI start on several ranks: ``mpiexec -n 3 python ranks.py <what>``."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from adjoint import distributed
from adjoint.distributed.order import tree_sum


def say(text: str) -> None:
    """Print a line in one piece, which does not mix with those of other ranks."""
    os.write(1, f"{text}\n".encode())


def collectives(group: distributed.Group) -> None:
    """Compare every collective with what one process computes."""
    rank, size = group.rank, group.size
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        given = rng.standard_normal((size, 10_001)).astype(dtype)
        expected = tree_sum([a.copy() for a in given])
        assert group.sum(given[rank]).tobytes() == expected.tobytes()
    started = np.full(5, float(rank))
    group.broadcast(started, root=size - 1)
    assert (started == size - 1).all()
    assert group.gather("x" * 5000 * rank) == ["x" * 5000 * r for r in range(size)]
    group.agree("facts", {"a": 1})
    say(f"rank {rank} of {size} is done")


def fail(group: distributed.Group, what: str) -> None:
    """Let rank 1 fail while the others sum."""
    try:
        group.sum(np.ones(4))  # everybody is there; a slow rank may hear of the failure in this call
        if group.rank == 1:
            say("now")
            _misbehave(group, what)
        for _ in range(1000):
            group.sum(np.ones(4), "the sum of a step")
            time.sleep(1e-3)
    except distributed.RankError as error:
        say(f"rank {group.rank} raises {type(error).__name__}: {str(error).splitlines()[0]}")
        raise


def _misbehave(group: distributed.Group, what: str) -> None:
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


def main(what: str) -> None:
    """Run one of the programs."""
    group = distributed.world(timeout=6.0 if what == "stop" else 60.0)
    if what == "collectives":
        collectives(group)
    else:
        fail(group, what)


if __name__ == "__main__":
    main(sys.argv[1])
