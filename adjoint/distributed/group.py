"""Groups of ranks: processes that compute together and make the same calls in the same order.

``Group`` runs every collective operation in one separate thread, in the order of the calls.  The calling
thread can therefore be interrupted while it waits, and can compute while a sum is running.  Subclasses
implement the communication: ``mpi.MPIGroup`` for processes, ``simulate._ThreadGroup`` for threads.
"""

from __future__ import annotations

import pickle
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.errors import InputError, RankError, StallError
from adjoint.hints import Hinted

__all__ = ["Group", "Job", "told"]

Array = ndarray[Any, Any]


class Job:
    """A collective operation that is queued for the thread of a group; ``what`` is its name in messages."""

    __slots__ = ("done", "error", "result", "what", "work")

    def __init__(self, what: str, work: Callable[[], Any]) -> None:
        self.what = what
        self.work: Callable[[], Any] | None = work
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run the operation, store its result or error, and set ``done``."""
        assert self.work is not None
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error
        self.work = None
        self.done.set()


class Group(metaclass=Hinted):
    """Ranks that compute together.  This class is a group of one rank, which needs no communication.

    Every rank must make the same calls in the same order.  If a rank fails, the other ranks raise
    ``RankError`` in their current or next call.

    Parameters
    ----------
    rank : int
        The number of this rank, from 0.
    size : int
        The number of ranks.
    timeout : float
        Seconds to wait for other ranks before all ranks are stopped.

    Examples
    --------
    >>> from adjoint import distributed
    >>> group = distributed.Group()
    >>> group.rank, group.size, group.gather("alone")
    (0, 1, ['alone'])
    """

    def __init__(self, rank: int = 0, size: int = 1, timeout: float = 600.0) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.broken: str | None = None  # why the group cannot be used any more, or None
        self.waited = 0.0  # seconds that callers waited for other ranks
        self._jobs: SimpleQueue[Job | None] | None = None
        self._calls = 0  # the number of collective operations that were submitted
        self._begun = 0  # the number of collective operations that have started

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, size={self.size})"

    # Collectives ---------------------------------------------------------------------------------

    def gather(self, value: Any, what: str = "gather") -> list[Any]:
        """Return the values of all ranks.

        Parameters
        ----------
        value : object
            The value of this rank.  It is pickled.
        what : str
            Name of the call for error messages.

        Returns
        -------
        list
            One value per rank, in the order of the ranks.
        """
        if self.size == 1:
            return [value]
        data = pickle.dumps((what, value), protocol=5)
        rows = self.wait(self.submit(what, lambda: self._exchange(data, what)))
        found = [pickle.loads(row) for row in rows]
        self._check_calls([name for name, _ in found])
        return [each for _, each in found]

    def _check_calls(self, names: list[str]) -> None:
        """Raise if the ranks are in different calls; ``names`` has the name of the call of each rank."""
        other = next((rank for rank, name in enumerate(names) if name != names[0]), None)
        if other is not None:
            calls = f"{names[0]!r} on rank 0, {names[other]!r} on rank {other}"
            self.broken = f"the ranks make different calls: {calls}"
            raise RankError(self.broken)

    def sum(self, array: Any, what: str = "sum") -> Array:
        """Return the sum of the arrays of all ranks, added in pairs in the order of the ranks.

        Parameters
        ----------
        array : array_like
            The array of this rank.  Shape and dtype must be the same on all ranks.
        what : str
            Name of the call for error messages.

        Returns
        -------
        ndarray
            The sum, with the same bits on all ranks.
        """
        found = np.array(array)
        if self.size == 1:
            return found
        self.agree(what, {"shape": found.shape, "dtype": found.dtype})
        flat = np.zeros(self.padded(found.size), found.dtype)
        flat[: found.size] = found.reshape(-1)
        self.wait(self.start_sum(flat, what))
        return flat[: found.size].reshape(found.shape)

    def broadcast(
        self, array: Array, root: int = 0, what: str = "broadcast", *, checked: bool = False
    ) -> None:
        """Overwrite the arrays of all ranks with the array of one rank.  Nothing is returned.

        Parameters
        ----------
        array : ndarray
            A contiguous and writable array.  Shape and dtype must be the same on all ranks.
        root : int
            The rank whose values are copied.
        what : str
            Name of the call for error messages.
        checked : bool
            Whether shape and dtype are known to be the same on all ranks, so that no check is needed.

        Raises
        ------
        InputError
            If ``array`` is not such an array, ``root`` is not a rank, or the ranks differ.

        Examples
        --------
        >>> from adjoint import distributed
        >>> def work(group):
        ...     array = np.full(2, float(group.rank))
        ...     group.broadcast(array, root=1)
        ...     return array.tolist()
        >>> distributed.simulate(2, work)
        [[1.0, 1.0], [1.0, 1.0]]
        """
        if not isinstance(array, ndarray):
            raise InputError(
                f"{what}: the array must be a NumPy array, which is overwritten, but is "
                f"{type(array).__name__}.\n"
                "  Pass x.numpy(copy=True) of a tensor; for other objects, use group.broadcast_object(value)."
            )
        if not array.flags.c_contiguous:
            raise InputError(f"{what}: the array must be contiguous.  Pass np.ascontiguousarray(array).")
        if not array.flags.writeable:
            raise InputError(f"{what}: the array is overwritten, but it is read-only.  Pass array.copy().")
        self._check_root(root, what)
        if self.size > 1:
            if not checked:
                self.agree(what, {"shape": array.shape, "dtype": array.dtype, "root": root})
            self.wait(self.submit(what, lambda: self._broadcast(array, root, what)))

    def _check_root(self, root: Any, what: str) -> None:
        """Raise if ``root`` is not the number of a rank."""
        if not isinstance(root, (int, np.integer)) or not 0 <= root < self.size:
            raise InputError(f"{what}: root must be a rank from 0 to {self.size - 1}, but is {root!r}.")

    def broadcast_object(self, value: Any, root: int = 0, what: str = "broadcast_object") -> Any:
        """Return the value of one rank on all ranks.

        Parameters
        ----------
        value : object
            The value, which is pickled; on ranks other than ``root`` it is ignored.
        root : int
            The rank whose value is returned.
        what : str
            Name of the call for error messages.

        Returns
        -------
        object
            The value on ``root``, a copy elsewhere.

        Raises
        ------
        InputError
            If ``root`` is not a rank.

        Examples
        --------
        >>> from adjoint import distributed
        >>> distributed.simulate(2, lambda group: group.broadcast_object({"rank": group.rank}))
        [{'rank': 0}, {'rank': 0}]
        """
        self._check_root(root, what)
        if self.size == 1:
            return value
        own = pickle.dumps(value, protocol=5) if self.rank == root else b""
        data = np.empty(max(self.gather(len(own), what)), np.uint8)
        if self.rank == root:
            data[:] = np.frombuffer(own, np.uint8)
        self.broadcast(data, root, what, checked=True)
        return value if self.rank == root else pickle.loads(data.data)

    def collect(self, flat: Array, bounds: Sequence[tuple[int, int]], what: str = "collect") -> None:
        """Exchange the parts of a vector in place: each rank provides one part, and gets all others.

        Parameters
        ----------
        flat : ndarray
            A contiguous vector, of the same length and dtype on all ranks.
        bounds : sequence of (int, int)
            For each rank, the first index of its part and the index after the last one, in ascending order.
        what : str
            Name of the call for error messages.

        Examples
        --------
        >>> from adjoint import distributed
        >>> def work(group):
        ...     flat = np.full(3, float(group.rank))
        ...     group.collect(flat, [(0, 1), (1, 3)])
        ...     return flat.tolist()
        >>> distributed.simulate(2, work)
        [[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
        """
        if self.size > 1:
            self.wait(self.submit(what, lambda: self._collect(flat, bounds, what)))

    def agree(self, what: str, facts: Mapping[str, Any]) -> None:
        """Raise on all ranks if a dictionary is not the same on all ranks.

        Parameters
        ----------
        what : str
            What is compared, for the error message.
        facts : mapping of str to object
            Values whose ``repr`` is compared.

        Raises
        ------
        InputError
            If ranks differ.  The message lists the keys and values that differ from rank 0.
        """
        ranks = self.gather({key: repr(value) for key, value in facts.items()}, what)
        first = ranks[0]
        other = next((r for r, found in enumerate(ranks) if found != first), None)
        if other is None:
            return
        found = ranks[other]
        lines = [
            f"  {key}: {first.get(key, 'absent')} on rank 0, {found.get(key, 'absent')} on rank {other}"
            for key in sorted(first.keys() | found.keys())
            if first.get(key) != found.get(key)
        ]
        more = [f"  … and {len(lines) - 8} more"] if len(lines) > 8 else []
        raise InputError("\n".join([f"{what}: ranks 0 and {other} differ.", *lines[:8], *more]))

    def barrier(self, what: str = "barrier") -> None:
        """Wait until all ranks have made this call.

        Parameters
        ----------
        what : str
            Name of the call for error messages.
        """
        self.gather(None, what)

    def fail(self, why: str) -> None:
        """Tell the other ranks that this rank has failed.  Their current or next call raises ``RankError``.

        Parameters
        ----------
        why : str
            The reason, which the ``RankError`` of the other ranks shows.
        """
        if self.size > 1 and self.broken is None:
            self.broken = f"rank {self.rank} {why}"
            self._announce(why)

    def describe(self, error: BaseException) -> str:
        """Return an error as text for other ranks: its type, its message and the end of its traceback.

        Parameters
        ----------
        error : BaseException
            The error.

        Returns
        -------
        str
            The text.
        """
        return told(error)

    # Jobs ------------------------------------------------------------------------------------------

    def padded(self, count: int) -> int:
        """Return ``count`` rounded up to a multiple of ``size``, the length that ``start_sum`` requires."""
        return -(-count // self.size) * self.size

    def start_sum(self, flat: Array, what: str) -> Job:
        """Start to sum a vector over the ranks, in place; return a job for ``wait``.

        The vector must be contiguous and have a length that ``padded`` returned.  ``what`` names the call in
        messages.
        """
        return self.submit(what, lambda: self._sum(flat, what))

    def submit(self, what: str, work: Callable[[], Any]) -> Job:
        """Queue the collective operation ``work`` for the thread of the group; return a job for ``wait``.

        ``what`` names the call in messages.
        """
        if self.broken is not None:
            raise RankError(self.broken)
        if self._jobs is None:
            self._jobs = SimpleQueue()
            threading.Thread(target=_run_jobs, args=(self._jobs,), name="adjoint-group", daemon=True).start()
        job = Job(what, partial(self._begin, work))
        self._calls += 1
        self._jobs.put(job)
        return job

    def _begin(self, work: Callable[[], Any]) -> Any:
        self._begun += 1
        return work()

    def wait(self, job: Job) -> Any:
        """Wait until a job is done and return its result; raise its error, or stop all ranks if it stalls."""
        start = time.perf_counter()
        came = job.done.wait(self.timeout + 5.0)
        self.waited += time.perf_counter() - start
        if not came:
            self._abort(f"{job.what} did not end within {self.timeout:g} s")
        if isinstance(job.error, StallError):
            self._abort(str(job.error))
        if job.error is not None:
            raise job.error
        return job.result

    def close(self) -> None:
        """End the thread of the group after it has run the submitted jobs."""
        if self._jobs is not None:
            self._jobs.put(None)
            self._jobs = None

    # The communication, overridden by subclasses.  ``what`` names the call in messages. --------------

    def _exchange(self, data: bytes, what: str) -> list[bytes]:
        """Return the ``data`` of all ranks, in the order of the ranks."""
        return [data]

    def _sum(self, flat: Array, what: str) -> None:
        """Replace the values of the vector ``flat`` on all ranks by the sum over the ranks."""

    def _broadcast(self, array: Array, root: int, what: str) -> None:
        """Overwrite the array on all ranks with that of ``root``."""

    def _collect(self, flat: Array, bounds: Sequence[tuple[int, int]], what: str) -> None:
        """Copy ``flat[start:stop]`` of each rank to all ranks; ``bounds`` has (start, stop) for each rank."""

    def _announce(self, why: str) -> None:
        """Inform the other ranks that this rank has failed; ``why`` is the text of the error."""

    def _abort(self, why: str) -> None:
        """Print ``why`` and stop all ranks.  If the ranks are not processes, raise ``StallError`` instead."""
        raise StallError(why)


def _run_jobs(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()


def told(error: BaseException) -> str:
    """Return an error as text for other ranks: its type, its message and the end of its traceback."""
    trace = "".join(traceback.format_exception(error))[-3000:].rstrip()
    return f"raised {type(error).__name__}: {error}\n{trace}"
