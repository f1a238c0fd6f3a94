"""Run elementwise passes over large arrays: in pieces that stay in the cache, in a few threads.

This is only correct for operations that round each element independently of the others, so that pieces and
threads do not change any bit.  +, -, *, /, sqrt, comparisons and copies are such operations.  Functions such
as tanh are such operations only if the pieces start at multiples of the vector length, which a test checks.
Sums and matrix products are not.

NumPy releases the interpreter lock inside its loops and acquires it after each call.  Small pieces therefore
make threads wait for each other, so the pieces of several threads are large (docs/adr/0011).
"""

from __future__ import annotations

import _thread
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import Any, TypeVar

import numpy as np
from numpy import ndarray

from adjoint.config import get_threads
from adjoint.context import spreading
from adjoint.errors import WorkerError
from adjoint.threads.helpers import LOOK_SECONDS

__all__ = [
    "ALONE", "COSTLY_SIZE", "SHARED", "function_in_pieces", "pairs_in_pieces", "pieces", "processors",
    "run_parts", "scratch", "threads_for",
]  # fmt: skip

T = TypeVar("T")

# Bytes of each array in a piece.  In one thread: 256 kB, so that a few arrays stay in the second-level
# cache from one pass to the next.  In several threads 512 kB: with 128 kB two threads wait for the
# interpreter lock longer than they work (an Adam update of 1,860,000 float32: 4.5 ms, 2.8 ms with 512 kB).
ALONE = 1 << 18
SHARED = 1 << 19

# The number of times that a waiting thread checks before it sleeps: a wake-up costs at least 50 µs, and the
# parts of a pass end at about the same time.
_LOOKS = 1000

_VECTORS = 1 << 10  # elements: a multiple of the vector length of any processor
# The number of elements above which two threads are faster.  The cheapest costly function takes 0.4 ms for
# them in one thread.  Costly functions take 1.6 to 25 ns per element, memory-bound functions 0.1 to 0.4 ns.
COSTLY_SIZE = 1 << 18

_local = threading.local()


# How MPICH and Open MPI tell a process the number of ranks on its machine.
_LOCAL_RANKS = [os.environ.get(name, "") for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")]
RANKS_HERE = next((int(text) for text in _LOCAL_RANKS if text.isdigit() and int(text)), 1)


def processors() -> int:
    """Return the number of processors that this process may use.

    MPI ranks on one machine divide its processors among them.
    """
    whole = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else whole
    # if these are fewer than the machine has, a launcher may have bound the rank to them
    return allowed if RANKS_HERE == 1 or allowed < whole else max(1, whole // RANKS_HERE)


def threads_for(size: int, least: int, *, ending: Callable[[], bool] = sys.is_finalizing) -> int:
    """Return the number of threads for ``size`` elements, so that each thread has at least ``least``.

    The number is 1 inside a pass that is already spread over threads, in a forked child, and while the
    interpreter exits (``ending()``).  ``ending`` is a parameter, because module globals are deleted at exit.
    """
    if size < 2 * least or ending() or spreading.get() or _pool.forked:
        return 1
    allowed = get_threads()
    return min(processors() if allowed == "auto" else int(allowed), size // least)


def pieces(stop: int, length: int, start: int = 0) -> list[slice]:
    """Split the range from ``start`` to ``stop`` into slices of ``length``; the last one may be shorter."""
    return [slice(i, min(i + length, stop)) for i in range(start, stop, length)]


def scratch(size: int, dtype: np.dtype[Any]) -> ndarray[Any, Any]:
    """Return an uninitialised array of ``size`` elements that belongs to this thread.

    The next call in this thread reuses its memory.
    """
    wanted = size * dtype.itemsize
    memory = getattr(_local, "memory", None)
    if memory is None or memory.size < wanted:
        memory = np.empty(wanted, np.uint8)
        if wanted <= 2 * SHARED:
            _local.memory = memory
    return memory[:wanted].view(dtype)


def run_parts(work: Callable[[T], object], parts: Sequence[T], threads: int) -> None:
    """Call ``work(part)`` for each part, in several threads including the caller's.

    One thread processes the parts in order, several in any order.  Context variables apply in all threads.
    After an error no further part is started, and the first error is raised when all threads have stopped.
    """
    if threads < 2 or len(parts) < 2 or _pool.forked:
        for part in parts:
            work(part)
        return
    before = spreading.get()
    try:
        spreading.set(True)
        job = _Job(work, parts)
        try:
            _pool.call(job, min(threads, len(parts)) - 1)
            job.take_parts()
        except BaseException as error:
            job.stop(error)
        job.finish()
    finally:
        spreading.set(before)


def function_in_pieces(f: Callable[..., Any], *operands: Any, out: Any = None) -> Any:
    """Return ``f(*operands)`` for an elementwise function and large arrays, computed in several threads.

    The result is bitwise equal to that of one thread.  All arrays must have the same shape and dtype and be
    row-major; otherwise one thread computes the result.  Numbers and 0-d arrays are allowed beside them, if
    they do not change the dtype.  ``out`` is a row-major array for the result; it may be one of the operands.
    """
    arrays = [a for a in operands if getattr(a, "ndim", 0)]
    a = arrays[0]
    threads = threads_for(a.size, COSTLY_SIZE // 2)
    fits = (
        a.dtype.char in "fd"
        and a.dtype.isnative
        and all(b.shape == a.shape and b.dtype is a.dtype and b.flags.c_contiguous for b in arrays)
    )
    if threads == 1 or not fits:
        return f(*operands) if out is None else f(*operands, out)
    if out is None:
        out = np.empty_like(a)
    sources = [b.reshape(-1) if getattr(b, "ndim", 0) else b for b in operands]
    target = out.reshape(-1)

    def compute(s: slice) -> None:
        f(*[b[s] if getattr(b, "ndim", 0) else b for b in sources], target[s])

    length = -(-a.size // (4 * threads * _VECTORS)) * _VECTORS
    run_parts(compute, pieces(a.size, length), threads)
    return out


def pairs_in_pieces(f: Callable[..., Any], x: ndarray[Any, Any], y: ndarray[Any, Any]) -> Any:
    """Return ``f(x, y)`` for a slow elementwise function and large arrays; the bits are the same.

    The pieces stay in the cache from one operation of ``f`` to the next, and several threads compute them.
    Return None if the arrays differ in shape or dtype or are not contiguous; ``x`` may repeat one number.
    """
    single = not any(x.strides)
    fits = x.shape == y.shape and x.dtype is y.dtype and y.flags.c_contiguous
    if not fits or not (single or x.flags.c_contiguous):
        return None
    threads = threads_for(y.size, COSTLY_SIZE // 2)
    out = np.empty_like(y)
    left: Any = x[(0,) * x.ndim] if single else x.reshape(-1)
    right, target = y.reshape(-1), out.reshape(-1)

    def compute(s: slice) -> None:
        target[s] = f(left if single else left[s], right[s])

    run_parts(compute, pieces(y.size, (ALONE if threads == 1 else SHARED) // y.itemsize), threads)
    return out


class _Job:
    """One pass over an array: the parts that no thread has started, and the helper threads at work.

    Threads change ``left``, the list of these parts, only by single method calls, which are atomic.
    """

    __slots__ = ("bell", "context", "errors", "left", "running", "work")

    def __init__(self, work: Callable[[T], object], parts: Sequence[T]) -> None:
        self.work: Callable[[Any], object] | None = work
        self.left: list[Any] = list(reversed(parts))
        self.context: Context | None = copy_context()
        self.running: set[int] = set()  # helpers that may be working on a part
        self.bell: SimpleQueue[None] = SimpleQueue()  # gets an item when a helper ends
        self.errors: list[BaseException] = []

    def take_parts(self) -> None:
        """Take parts from the list and process them, one after the other, until the list is empty."""
        work, left = self.work, self.left
        while left and work is not None:
            try:
                part = left.pop()
            except IndexError:  # another thread was faster
                return
            work(part)

    def help(self) -> None:
        """Work on the parts in a helper thread; return immediately if none are left."""
        me = get_ident()
        try:
            self.running.add(me)
            context = self.context
            if context is not None:
                context.copy().run(self.take_parts)
        except BaseException as error:
            self.stop(error)
        finally:
            self.running.discard(me)
            self.bell.put(None)

    def stop(self, error: BaseException) -> None:
        """Record an error, and prevent all threads from starting another part."""
        self.errors.append(error)
        self.left.clear()

    def finish(self) -> None:
        """Wait until all helpers have stopped, even after interrupts; then raise the first error."""
        while True:
            try:  # no loop in it, see ``_Crew`` in adjoint.engine.parallel
                self._wait_for_helpers()
                break
            except WorkerError:
                raise
            except BaseException as error:  # an interrupt: raised after all threads have stopped writing
                self.stop(error)
        self.work = self.context = None  # so that a late helper does not keep them alive
        if self.errors:
            # interrupts take precedence over other errors
            first = next((e for e in self.errors if not isinstance(e, Exception)), self.errors[0])
            self.errors.clear()
            raise first

    def _wait_for_helpers(self) -> None:
        while not _soon_empty(self.running):
            try:
                self.bell.get(timeout=LOOK_SECONDS)
            except Empty:
                if _pool.forked:
                    raise _forked_error() from None


def _soon_empty(marks: set[int]) -> bool:
    """Poll for a short time until the set ``marks`` is empty; return whether it is empty."""
    for _ in range(_LOOKS):
        if not marks:
            return True
        _let_others_go_on()
    return not marks


def _let_others_go_on() -> None:
    """Release the interpreter lock briefly, which takes 1 µs; ``time.sleep(0)`` takes 50 µs on Linux."""
    if os.name == "posix":
        select.select((), (), (), 0)
    else:
        time.sleep(0)


def _forked_error() -> WorkerError:
    return WorkerError(
        "the process was forked while several threads worked on an array, so the result in the child is "
        "incomplete.\n  Repeat the operation in the child."
    )


class _Pool:
    """The helper threads, which wait for jobs.  Their number only grows.

    They are threads of ``_thread``: they get no interrupts, and the program can end while they wait.  If no
    helper is free, the caller does all the work of its job.
    """

    def __init__(self, forked: bool = False) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.helpers = 0
        self.forked = forked
        self.lock = _thread.allocate_lock()

    def call(self, job: _Job, count: int) -> None:
        """Let up to ``count`` idle helper threads work on a job; start new helpers if there are too few."""
        if self.helpers < count:
            with self.lock:  # no loop in it, see ``_Crew`` in adjoint.engine.parallel
                self._start(count)
        for _ in range(min(count, self.helpers)):
            self.jobs.put(job)

    def _start(self, count: int) -> None:
        while self.helpers < count:
            try:
                _thread.start_new_thread(_wait_for_jobs, (self.jobs,))
            except RuntimeError:  # the limit of threads is reached
                break
            self.helpers += 1


def _wait_for_jobs(jobs: SimpleQueue[_Job]) -> None:
    while True:
        with suppress(BaseException):  # an exception set from outside does not end the thread
            jobs.get().help()


_pool = _Pool()


def _lose_helpers() -> None:
    """Use no helpers in a forked child, which is likely one of many processes."""
    global _pool
    _pool = _Pool(forked=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose_helpers)
