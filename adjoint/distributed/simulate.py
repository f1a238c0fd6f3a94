"""Ranks as threads of one process: for tests and experiments without MPI."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

import numpy as np
from numpy import ndarray

from adjoint.distributed.group import Group, told
from adjoint.distributed.order import tree_sum
from adjoint.errors import ArgumentError, RankError

__all__ = ["simulate"]

Array = ndarray[Any, Any]
T = TypeVar("T")


_END = "the end of the program"
_LEFT = object()  # the value that a rank exchanges when its function has returned


class _Board:
    """The memory through which the threads of a simulation exchange values."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.values: list[Any] = [None] * size
        self.why: str | None = None  # why the simulation failed, or None


class _ThreadGroup(Group):
    """A group whose ranks are threads; each rank has its own object."""

    def __init__(self, rank: int, size: int, timeout: float, board: _Board) -> None:
        super().__init__(rank, size, timeout)
        self._board = board

    def _meet(self, value: Any, what: str) -> list[Any]:
        board = self._board
        try:
            board.values[self.rank] = what, value
            board.barrier.wait(self.timeout)
        except threading.BrokenBarrierError:
            self.broken = board.why or f"not all ranks made the call {what} within {self.timeout:g} s"
            raise RankError(self.broken) from None
        found = list(board.values)
        with suppress(threading.BrokenBarrierError):  # a rank failed after this call: the next call raises
            board.barrier.wait(self.timeout)
        left = [rank for rank, (_, other) in enumerate(found) if other is _LEFT]
        if left and value is not _LEFT:
            self.broken = f"rank {left[0]} has left the program"
            raise RankError(self.broken)
        if not left:
            self._check_calls([name for name, _ in found])
        return [other for _, other in found]

    def _exchange(self, data: bytes, what: str) -> list[bytes]:
        return self._meet(data, what)

    def _sum(self, flat: Array, what: str) -> None:
        np.copyto(flat, tree_sum([part.copy() for part in self._meet(flat.copy(), what)]))

    def _broadcast(self, array: Array, root: int, what: str) -> None:
        np.copyto(array, self._meet(array.copy(), what)[root])

    def _collect(self, flat: Array, bounds: Sequence[tuple[int, int]], what: str) -> None:
        start, stop = bounds[self.rank]
        parts = self._meet(flat[start:stop].copy(), what)
        for (start, stop), part in zip(bounds, parts, strict=True):
            flat[start:stop] = part

    def _announce(self, why: str) -> None:
        board = self._board
        if board.why is None:
            board.why = f"rank {self.rank} {why}"
        board.barrier.abort()


def simulate(size: int, work: Callable[[Group], T], *, timeout: float = 60.0) -> list[T]:
    """Call a function on several ranks, which are threads of this process.

    Parameters
    ----------
    size : int
        The number of ranks.
    work : callable
        ``work(group)``, called once per rank.
    timeout : float
        Seconds that ranks wait for each other.

    Returns
    -------
    list
        The results, in the order of the ranks.

    Raises
    ------
    Exception
        The first error that a rank raised.  The other ranks get ``RankError``.

    Examples
    --------
    >>> from adjoint import distributed
    >>> distributed.simulate(3, lambda group: group.sum([1.0, group.rank]).tolist())
    [[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ArgumentError(f"simulate: size must be a positive integer, but is {size!r}.")
    if size == 1:
        return [work(Group(timeout=timeout))]
    board = _Board(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        group = _ThreadGroup(rank, size, timeout, board)
        try:
            results[rank] = work(group)
            if board.why is None:  # queued behind sums that are still running
                group.wait(group.submit(_END, lambda: group._meet(_LEFT, _END)))
        except BaseException as error:
            if not isinstance(error, RankError) or board.why is None:
                errors.append(error)
            group.fail(told(error))
        finally:
            group.close()

    threads = [
        threading.Thread(target=copy_context().run, args=(run, rank), name=f"adjoint-rank-{rank}")
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
