"""Spread elementwise passes over large arrays: in pieces that stay in the cache, over a few threads.

Only for operations whose every element is rounded as it would be in one pass: then neither the pieces
nor the threads can change a bit.  +, -, *, /, sqrt, comparisons and copies round each element exactly.
Functions such as tanh do not, but NumPy's loops take the same way for an element wherever its vector
stands; their pieces begin at whole multiples of many vectors, and a test compares the bits.  A sum, or a
product of matrices, is not such an operation.

NumPy lets go of the interpreter lock inside its loops, and wants it back after each call.  Two threads that
ask for it often lose more by waiting than they gain, so shared pieces are large (docs/adr/0011).
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
    "ALONE",
    "COSTLY_SIZE",
    "SHARED",
    "function_in_pieces",
    "pieces",
    "processors",
    "scratch",
    "spread",
    "spread_in_turn",
    "threads_for",
]

T = TypeVar("T")

# Bytes of each array in a piece.  In one thread: 256 kB, so that a few arrays stay in the second-level
# cache from one pass to the next.  In several threads 512 kB: with 128 kB the two of them wait for the
# interpreter lock longer than they work (an Adam update of 1,860,000 float32: 4.5 ms, 2.8 ms with 512 kB).
ALONE = 1 << 18
SHARED = 1 << 19

# How often a thread that waits for another's last part looks before it sleeps: a wake-up costs 50 µs and
# more, and the parts of a pass end at about the same time.
_LOOKS = 1000

_VECTORS = 1 << 10  # elements: whole multiples of any vector of a processor
# Elements from which two threads are faster: 0.4 ms of the cheapest costly function in one.  Costly ones take
# 1.6 to 25 ns for an element, against 0.1 to 0.4 for those that memory bounds.
COSTLY_SIZE = 1 << 18

_local = threading.local()


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_for(size: int, least: int, *, ending: Callable[[], bool] = sys.is_finalizing) -> int:
    """Return over how many threads to spread ``size`` elements, so that each has ``least`` or more.

    It is 1 inside a spread pass, in a forked child, and when the interpreter is about to end: then the
    variables of this module are gone, and ``ending`` with them if it were one.
    """
    if size < 2 * least or ending() or spreading.get() or _pool.forked:
        return 1
    allowed = get_threads()
    return min(processors() if allowed == "auto" else int(allowed), size // least)


def pieces(size: int, length: int) -> list[slice]:
    """Cut ``size`` elements into slices of ``length``, the last one shorter."""
    return [slice(start, min(start + length, size)) for start in range(0, size, length)]


def scratch(size: int, dtype: np.dtype[Any]) -> ndarray[Any, Any]:
    """Return an array of this thread's own, good until this thread asks again."""
    wanted = size * dtype.itemsize
    memory = getattr(_local, "memory", None)
    if memory is None or memory.size < wanted:
        memory = np.empty(wanted, np.uint8)
        if wanted <= 2 * SHARED:
            _local.memory = memory
    return memory[:wanted].view(dtype)


def spread(work: Callable[[T], object], parts: Sequence[T], threads: int) -> None:
    """Call ``work(part)`` for each part, in so many threads, of which the caller is one.

    In one thread the parts go in their order, otherwise in any.  Context variables hold in all threads.
    The first error is raised when no thread works any more; what was not begun by then is left out.
    """
    if threads < 2 or len(parts) < 2 or _pool.forked:
        for part in parts:
            work(part)
    else:
        _work_off([_Pass(work, parts)], bool, min(threads, len(parts)))


def spread_in_turn(
    first: tuple[Callable[[T], object], Sequence[T]],
    then: tuple[Callable[[T], object], Sequence[T]],
    threads: int,
    *,
    unless: Callable[[], object],
) -> None:
    """Spread two passes: the second begins when the first is over, ``unless`` that is found true.

    As two calls of ``spread``, but the helpers are called once.
    """
    if threads < 2 or _pool.forked:
        spread(*first, 1)
        if not unless():
            spread(*then, 1)
    else:
        _work_off([_Pass(*first), _Pass(*then)], unless, threads)


def function_in_pieces(f: Callable[..., Any], a: ndarray[Any, Any]) -> Any:
    """Return ``f(a)`` of a costly function and a large array, in several threads; the bits are the same."""
    threads = threads_for(a.size, COSTLY_SIZE // 2)
    if threads == 1 or a.dtype.char not in "fd" or not a.flags.c_contiguous:
        return f(a)
    out = np.empty_like(a)
    source, target = a.reshape(-1), out.reshape(-1)
    length = -(-a.size // (4 * threads * _VECTORS)) * _VECTORS
    spread(lambda s: f(source[s], target[s]), pieces(a.size, length), threads)
    return out


def _work_off(passes: list[_Pass], unless: Callable[[], object], threads: int) -> None:
    before = spreading.get()
    try:
        spreading.set(True)
        job = _Job(passes, unless)
        try:
            _pool.call(job, threads - 1)
            job.work_through()
        except BaseException as error:
            job.stop(error)
        job.finish()
    finally:
        spreading.set(before)


class _Pass:
    """The parts of a pass that nobody has taken, and the threads that may hold one.

    Both are changed by single calls of their methods, which no other thread can come between.
    """

    __slots__ = ("busy", "left", "work")

    def __init__(self, work: Callable[[T], object], parts: Sequence[T]) -> None:
        self.work: Callable[[Any], object] = work
        self.left: list[Any] = list(reversed(parts))
        self.busy: set[int] = set()


class _Job:
    """Passes to work through, one after the other, and who is at it."""

    __slots__ = ("bell", "context", "errors", "passes", "running", "unless")

    def __init__(self, passes: list[_Pass], unless: Callable[[], object]) -> None:
        self.passes = passes
        self.unless = unless
        self.context: Context | None = copy_context()
        self.running: set[int] = set()  # helpers that may hold a part
        self.bell: SimpleQueue[None] = SimpleQueue()  # rung by each helper that leaves
        self.errors: list[BaseException] = []

    def work_through(self) -> None:
        """Take part in each pass."""
        before = None
        for each in self.passes:
            if before is not None:
                self._wait_for(before)
                if self.errors or self.unless():
                    each.left.clear()
                    return
            self._take_parts(each)
            before = each

    def _take_parts(self, of: _Pass) -> None:
        me = get_ident()
        work, left, busy = of.work, of.left, of.busy
        while left:
            try:
                busy.add(me)  # before a part is taken, until it is done or the job stopped: no mark, no work
                try:
                    part = left.pop()
                except IndexError:  # another thread was faster
                    return
                work(part)
            except BaseException as error:
                self.stop(error)
            finally:
                busy.discard(me)

    def _wait_for(self, of: _Pass) -> None:
        """Return when nobody holds a part of a pass, or the job has stopped."""
        while not _soon_empty(of.busy) and not self.errors:
            if _pool.forked:
                raise _forked_error()
            time.sleep(1e-4)

    def help(self) -> None:
        """Work through the parts in a helper's thread; one that comes too late finds none and leaves."""
        me = get_ident()
        try:
            self.running.add(me)
            context = self.context
            if context is not None:
                context.copy().run(self.work_through)
        except BaseException as error:
            self.stop(error)
        finally:
            self.running.discard(me)
            self.bell.put(None)

    def stop(self, error: BaseException) -> None:
        """Let nobody begin another part."""
        self.errors.append(error)
        for each in self.passes:
            each.left.clear()

    def finish(self) -> None:
        """Wait until no helper works any more, whatever comes; then raise what went wrong."""
        while True:
            try:  # no loop in it, see ``_Crew`` in adjoint.engine.parallel
                self._wait_for_helpers()
                break
            except WorkerError:
                raise
            except BaseException as error:  # an interrupt: raised when the arrays are at rest
                self.stop(error)
        self.passes, self.context = [], None  # a helper that comes late must not keep them
        if self.errors:
            # an interrupt goes before other errors
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
    """Spin briefly until the set is empty; return whether it is."""
    for _ in range(_LOOKS):
        if not marks:
            return True
        _let_others_go_on()
    return not marks


def _let_others_go_on() -> None:
    """Let go of the interpreter lock for a moment; ``time.sleep(0)`` takes 50 µs on Linux, this 1."""
    if os.name == "posix":
        select.select((), (), (), 0)
    else:
        time.sleep(0)


def _forked_error() -> WorkerError:
    return WorkerError(
        "the process was forked while threads worked on an array: in the child their part of it is missing."
    )


class _Pool:
    """The helpers: threads that wait for jobs, as many as were ever wanted at once.

    They are bare threads, which no interrupt reaches and the end of the program does not wait for.  Nothing
    depends on them: a job that no helper comes for is done by its caller.
    """

    def __init__(self, forked: bool = False) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.helpers = 0
        self.forked = forked
        self.lock = _thread.allocate_lock()

    def call(self, job: _Job, count: int) -> None:
        """Ask ``count`` helpers to take part."""
        if self.helpers < count:
            with self.lock:  # no loop in it, see ``_Crew`` in adjoint.engine.parallel
                self._start(count)
        for _ in range(min(count, self.helpers)):
            self.jobs.put(job)

    def _start(self, count: int) -> None:
        while self.helpers < count:
            try:
                _thread.start_new_thread(_wait_for_jobs, (self.jobs,))
            except RuntimeError:  # no more threads are to be had
                break
            self.helpers += 1


def _wait_for_jobs(jobs: SimpleQueue[_Job]) -> None:
    while True:
        with suppress(BaseException):  # aimed at this thread from outside: it has nothing to end for
            jobs.get().help()


_pool = _Pool()


def _lose_helpers() -> None:
    """In a forked child there are none, and none are started: it is likely one of many."""
    global _pool
    _pool = _Pool(forked=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose_helpers)
