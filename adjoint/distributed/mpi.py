"""Groups of processes that communicate through MPI, with mpi4py."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.distributed.group import Group, told
from adjoint.distributed.order import tree_sum
from adjoint.errors import MissingExtraError, RankError, StallError

__all__ = ["MPIGroup", "world"]

Array = ndarray[Any, Any]

SLOT = 1 << 11  # bytes that an exchange sends in its first round
BURST = 64  # polls between two sleeps; without CMA (single-copy transfers), each poll of MPICH copies 16 KB
PARTING = 5.0  # seconds after a failure in which all ranks must end; ranks that still compute are stopped
ANSWER = 2.0  # seconds to wait for other ranks to report in which call they wait; enough on a busy machine
DELIVERY = 1.0  # seconds to wait before MPI_Abort, which drops output that the launcher has not yet read
# The environment variables with the number of ranks: of MPICH and Intel MPI, Open MPI, and SLURM.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")

_world: Group | None = None


def world(timeout: float = 600.0) -> Group:
    """Return the group of all ranks that ``mpiexec`` or ``srun`` started; otherwise a group of one.

    Parameters
    ----------
    timeout : float
        Seconds that ranks wait for each other before all ranks are stopped.

    Returns
    -------
    Group
        The group.  Later calls return the same object.

    Raises
    ------
    MissingExtraError
        If a launcher started several processes and mpi4py is not installed.
    RankError
        If mpi4py and the launcher use different MPI libraries.

    Examples
    --------
    >>> from adjoint import distributed
    >>> distributed.world().size
    1
    """
    global _world
    if _world is None:
        expected = next((int(os.environ[name]) for name in SIZES if os.environ.get(name, "").isdigit()), 1)
        if expected == 1 and "mpi4py.MPI" not in sys.modules:
            return Group(timeout=timeout)
        try:
            from mpi4py import MPI
        except ImportError:
            raise MissingExtraError(f"a program on {expected} ranks", "mpi4py", "distributed") from None
        if expected > 1 and MPI.COMM_WORLD.size == 1:
            raise RankError(
                f"the launcher started {expected} processes, but mpi4py sees only one, because it uses a "
                f"different MPI library: {MPI.Get_library_version().splitlines()[0].strip()}.\n"
                "  Start the program with the mpiexec of that library, which adjoint launch -n … finds.\n"
                "  With srun, choose the interface of that library: --mpi=pmi2 or --mpi=pmix."
            )
        _world = MPIGroup(MPI.COMM_WORLD, timeout)
        _world.watch_exceptions()
    _world.timeout = timeout
    return _world


class MPIGroup(Group):
    """A group whose ranks are processes that communicate by MPI.

    One thread of each process makes the collective calls and polls with short sleeps, so that waiting ranks
    do not use the processor and a stalled call ends after ``timeout``.  A separate communicator, ``_bell``,
    is used for messages about failures and about ranks that have ended.
    """

    def __init__(self, comm: Any, timeout: float = 600.0) -> None:
        from mpi4py import MPI

        super().__init__(comm.rank, comm.size, timeout)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise RankError("adjoint.distributed needs an MPI library that supports MPI_THREAD_MULTIPLE.")
        self._mpi = MPI
        # sums have their own communicator: if ranks make different calls, they wait instead of mixing data
        self._comm, self._sums, self._bell = comm.Dup(), comm.Dup(), comm.Dup()
        self._received = np.empty(0, np.uint8)  # reused, because new memory costs page faults in each sum
        self._waiting: dict[int, str] = {}  # by rank: the name of the call in which it waits
        self._left: tuple[int, int] | None = None  # number of calls and rank of the first rank that has ended
        atexit.register(self._leave)

    # Collectives ---------------------------------------------------------------------------------

    def _exchange(self, data: bytes, what: str) -> list[bytes]:
        sent = len(data).to_bytes(8, "little") + data
        rows, size, done = [b""] * self.size, SLOT, 0
        while size > 0:  # a second round is needed if a rank sends more than SLOT bytes
            out, found = np.zeros(size, np.uint8), np.empty((self.size, size), np.uint8)
            part = sent[done : done + size]
            out[: len(part)] = np.frombuffer(part, np.uint8)
            self._finish(self._comm.Iallgather(out, found), what)
            rows = [before + row.tobytes() for before, row in zip(rows, found, strict=True)]
            done += size
            size = max(int.from_bytes(row[:8], "little") for row in rows) + 8 - done
        return [row[8 : 8 + int.from_bytes(row[:8], "little")] for row in rows]

    def _sum(self, flat: Array, what: str) -> None:
        """Sum a vector over the ranks, in place, in the order of ``tree_sum``.

        Each rank sends as many bytes as in a ring all-reduce.
        """
        if self.size & (self.size - 1) == 0:
            self._sum_by_halving(flat, what)
            return
        parts = self._room(flat).reshape(self.size, -1)
        self._finish(self._sums.Ialltoall(flat, parts), what)
        tree_sum(list(parts), out=flat.reshape(self.size, -1)[self.rank])
        self._finish(self._sums.Iallgather(self._mpi.IN_PLACE, flat), what)

    def _room(self, like: Array) -> Array:
        """Return a buffer with the size and dtype of ``like`` for received data; the next call reuses it."""
        if self._received.size < like.nbytes:
            self._received = np.empty(like.nbytes, np.uint8)
        return self._received[: like.nbytes].view(like.dtype)

    def _sum_by_halving(self, flat: Array, what: str) -> None:
        """Sum a vector by recursive halving, in place; the number of ranks must be a power of 2.

        In each step a rank exchanges halves with the rank at distance 1, 2, 4, …, and adds.  Then the summed
        parts are sent back in the reverse order.
        """
        low, high, steps = 0, flat.size, []
        distance = 1
        while distance < self.size:
            partner, middle = self.rank ^ distance, (low + high) // 2
            kept = (low, middle) if self.rank & distance == 0 else (middle, high)
            given = (middle, high) if self.rank & distance == 0 else (low, middle)
            mine = flat[kept[0] : kept[1]]
            theirs = self._room(mine)
            self._swap(partner, flat[given[0] : given[1]], theirs, what)
            np.add(mine, theirs, out=mine)  # commutative: the order within a pair does not matter
            steps.append((partner, kept, given))
            low, high = kept
            distance *= 2
        for partner, kept, given in reversed(steps):
            self._swap(partner, flat[kept[0] : kept[1]], flat[given[0] : given[1]], what)

    def _swap(self, partner: int, given: Array, theirs: Array, what: str) -> None:
        requests = [self._sums.Irecv(theirs, partner), self._sums.Isend(given, partner)]
        for request in requests:
            self._finish(request, what)

    def _broadcast(self, array: Array, root: int, what: str) -> None:
        self._finish(self._comm.Ibcast(array, root), what)

    def _collect(self, flat: Array, bounds: Sequence[tuple[int, int]], what: str) -> None:
        size = flat.itemsize
        counts, starts = [(b - a) * size for a, b in bounds], [a * size for a, _ in bounds]
        given = [flat.view(np.uint8), counts, starts, self._mpi.BYTE]
        self._finish(self._comm.Iallgatherv(self._mpi.IN_PLACE, given), what)

    def _finish(self, request: Any, what: str) -> None:
        """Wait until an MPI request is complete; raise if another rank fails or after ``timeout`` seconds."""
        pause, end = 0.0, time.monotonic() + self.timeout
        while not any(request.Test() for _ in range(BURST)):
            time.sleep(pause)
            pause = min(2 * pause + 1e-5, 5e-4)
            self._listen(what)
            if time.monotonic() > end:
                raise StallError(f"waited {self.timeout:g} s in {what!r}.\n{self._whereabouts(what)}")

    # Failures --------------------------------------------------------------------------------------

    def _announce(self, why: str) -> None:
        self._ring("failed", why, patience=2.0)

    def _ring(self, kind: str, text: str | int | None, patience: float) -> None:
        """Send the message ``text`` to all other ranks, which read it while they wait in a collective call.

        ``kind`` is "failed", "left" (the rank has ended) or "where" (a question in which call a rank waits).
        ``patience`` is the time in seconds to wait until the message is sent.
        """
        others = [rank for rank in range(self.size) if rank != self.rank]
        requests = [self._bell.isend((kind, self.rank, text), rank) for rank in others]
        end = time.monotonic() + patience
        while time.monotonic() < end and not all(request.test()[0] for request in requests):
            time.sleep(1e-3)

    def _listen(self, what: str) -> None:
        """Read a message of another rank; raise if a rank has failed, or has ended without making this call.

        ``what`` is the name of the call in which this rank waits, for answers to other ranks.
        """
        if self._bell.iprobe():
            kind, rank, text = self._bell.recv()
            if kind == "where":
                self._bell.isend(("here", self.rank, what), rank)
            elif kind == "here":
                self._waiting[rank] = text
            elif kind == "failed":
                self.broken = self.broken or f"rank {rank} {text}"
            else:
                self._left = min(self._left or (text, rank), (text, rank))
        if self._left is not None and self._begun > self._left[0]:  # that rank will not make this call
            self.broken = self.broken or f"rank {self._left[1]} has left the program"
        if self.broken is not None:
            raise RankError(self.broken)

    def _whereabouts(self, what: str) -> str:
        """Ask the other ranks in which calls they wait; return one line of text per rank."""
        self._waiting = {self.rank: what}
        self._ring("where", None, 0.0)
        end = time.monotonic() + ANSWER
        while len(self._waiting) < self.size and time.monotonic() < end:
            self._listen(what)
            time.sleep(1e-3)
        lines = [
            f"  rank {rank} waits in {self._waiting[rank]!r}"
            if rank in self._waiting
            else f"  rank {rank} is in no call: it computes, hangs or was stopped"
            for rank in range(self.size)
        ]
        return "\n".join(lines)

    def _abort(self, why: str) -> None:
        sys.stdout.flush()
        sys.stderr.write(f"adjoint: rank {self.rank} of {self.size} {why}\nAll ranks are stopped.\n")
        sys.stderr.flush()
        time.sleep(DELIVERY)
        self._end()

    def _end(self) -> None:
        self._mpi.COMM_WORLD.Abort(1)
        os._exit(1)  # in MPICH, Abort may return before mpiexec ends the process

    def watch_exceptions(self) -> None:
        """Install an exception hook that sends the traceback of an uncaught exception to the other ranks."""
        before = sys.excepthook

        def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            before(kind, error, trace)
            if not isinstance(error, RankError):
                self.fail(told(error))

        sys.excepthook = report

    def _leave(self) -> None:
        """Wait at exit until the other ranks end.

        If they do not end within ``timeout`` seconds, or within ``PARTING`` seconds after a failure, stop
        them.
        """
        if self.size == 1:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        if self.broken is None:
            self._ring("left", self._calls, 0.0)
        patience = self.timeout if self.broken is None else PARTING
        end, here = time.monotonic() + patience, self._bell.Ibarrier()
        while not here.Test():
            if time.monotonic() > end:
                self._end()
            time.sleep(1e-3)
