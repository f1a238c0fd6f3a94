"""Records in order, chunks shared with helper threads, forks, signals and exits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from adjoint.compiler.build import llvm, units
from adjoint.compiler.emit import machine
from adjoint.compiler.emit.writer import Writer
from adjoint.compiler.host import pool, pool_text

RUN = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)
threaded = pytest.mark.skipif(not pool_text.has_threads(), reason="this system has no helper threads")


def counting() -> int:
    """A kernel: ``counts[i] = counts[i] * 3 + step`` and ``threads[i] = thread``; the order of records shows."""
    w = Writer(machine.machine())
    step = w.load(w.slot(1), "i64")

    def one(i, _):
        place = w.at(w.slot(0), "i64", i)
        w.store(w.add(w.mul(w.load(place, "i64"), 3), step), place)
        w.store(w.thread, w.at(w.slot(2), "i64", i))

    w.loop(w.low, w.high, 1, one)
    return units.function(w.kernel())


class Counting:
    """Records that count up an array, each with its own number and its own cuts."""

    def __init__(self, size: int, cuts: list[list[int]], runs: list[int] | None = None) -> None:
        self.counts = np.zeros(size, np.int64)
        self.threads = np.full(size, -1)
        self.steps = np.arange(1, len(cuts) + 1)
        slots = [
            [self.counts.ctypes.data, self.steps[k:].ctypes.data, self.threads.ctypes.data]
            for k in range(len(cuts))
        ]
        self.slots = np.array(slots, np.int64)
        self.function = counting()  # keeps the code loaded
        rows = [(self.function, self.slots[k].ctypes.data, c) for k, c in enumerate(cuts)]
        self.words = pool.records(rows, runs)

    def run(self, helpers: int, run: int | None = None) -> None:
        RUN(run or pool.addresses()["run"])(self.words.ctypes.data, len(self.steps), helpers)

    def expected(self, times: int) -> np.ndarray:
        found = np.zeros_like(self.counts)
        for _ in range(times):
            for step in self.steps:
                found = found * 3 + step
        return found


def some_cuts(size: int, records: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [[0, *sorted(rng.integers(0, size, k).tolist()), size] for k in rng.integers(0, 9, records)]


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_records_run_in_order_and_every_chunk_once(helpers):
    work = Counting(100, some_cuts(100, 12))
    helpers = pool.start(helpers + 1)
    for _ in range(300):
        work.run(helpers)
    np.testing.assert_array_equal(work.counts, work.expected(300))
    assert set(work.threads.tolist()) <= set(range(helpers + 1))


def test_no_records_and_empty_chunks():
    work = Counting(5, [[0, 0, 5, 5], [5, 5]])
    RUN(pool.addresses()["run"])(0, 0, 1)
    work.run(pool.start(2))
    np.testing.assert_array_equal(work.counts, [1] * 5)


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_threads_share_the_chunks_of_a_run(helpers):
    """The records of a run write different elements; those of the next run start after all of them."""
    parts = [[0, 10, 30, 40], [40, 40, 41], [41], [41, 60, 100], [0, 50, 100], [0, 99], [99, 100]]
    work = Counting(100, parts, [4, 1, 2])
    helpers = pool.start(helpers + 1)
    wanted = np.zeros(100, np.int64)
    for _ in range(300):
        work.run(helpers)
        for step, cuts in zip(work.steps, parts, strict=True):
            wanted[cuts[0] : cuts[-1]] = wanted[cuts[0] : cuts[-1]] * 3 + step
    np.testing.assert_array_equal(work.counts, wanted)


def test_one_record_of_a_run_can_run_alone():
    work = Counting(6, [[0, 1, 2], [2, 3, 4], [4, 5, 6]], [3])
    for k, step in enumerate(work.steps):
        RUN(pool.addresses()["run"])(work.words.ctypes.data + 8 * pool.RECORD * k, 1, pool.start(2))
        np.testing.assert_array_equal(work.counts[2 * k :], [step] * 2 + [0] * (4 - 2 * k))


def processors_of_threads() -> list[set[int]]:
    """Return the processors that each thread of this process may use."""
    found = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.append(os.sched_getaffinity(int(task)))
    return found


@threaded
def test_helpers_leave_the_processor_of_the_caller():
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("this process may use only one processor")
    test_helpers_take_chunks()  # a helper has started
    for here in [*allowed, *allowed]:
        pool._call("avoid", here)
        assert allowed - {here} in processors_of_threads()
    pool._call("avoid", 5000)  # no such processor
    assert allowed - {here} in processors_of_threads() and os.sched_getaffinity(0) == allowed


def python_record(kernel) -> tuple[Any, Any]:
    """Return a record of two chunks that a Python function runs, and what it needs alive."""
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(kernel)
    return pool.records([(ctypes.cast(function, ctypes.c_void_p).value, 0, [0, 1, 2])]), function


@threaded
def test_helpers_take_chunks():
    helped = threading.Event()

    def kernel(args, low, high, chunk, thread):
        if thread == 0:
            helped.wait(0.5)  # the caller's chunk ends when a helper has begun one
        else:
            helped.set()

    words, _held = python_record(kernel)
    before, helpers = pool.chunks_helped(), pool.start(2)
    for _ in range(40):  # a helper that falls asleep just now does not hear a call
        pool.trust()
        RUN(pool.addresses()["run"])(words.ctypes.data, 1, helpers)
        if helped.is_set():
            break
    assert helpers == 1 and helped.is_set() and pool.chunks_helped() > before


@threaded
def test_the_caller_is_alone_after_a_helper_was_late(monkeypatch):
    monkeypatch.setattr(pool_text, "LONGEST", 1 << 60)  # nanoseconds: longer than this test
    text = pool._text().replace("internal ", "")  # a pool without helpers, whose parts can be called
    found = llvm.link(llvm.compile_text(text, machine.machine()), ("run", "judge", "trust", "busy", "until"))
    busy, until = (ctypes.c_int64.from_address(found[name]) for name in ("busy", "until"))
    offers: list[int] = []
    words, _held = python_record(lambda *_: offers.append(busy.value))

    def offered() -> list[int]:
        """Return for each chunk of a record whether helpers may take part."""
        offers.clear()
        RUN(found["run"])(words.ctypes.data, 1, 1)
        return list(offers)

    now = time.monotonic_ns()
    assert offered() == [1, 1]
    RUN(found["judge"])(now, now + (1 << 60), 1)  # the caller did not wait
    assert until.value == 0 and offered() == [1, 1]
    RUN(found["judge"])(0, 0, 1)  # it waited since the system started
    assert until.value > now and offered() == [0, 0]
    RUN(found["trust"])(0, 0, 0)
    assert until.value == 0 and offered() == [1, 1]
    until.value = now  # in the past
    assert offered() == [1, 1] and until.value == 0


def test_many_callers_at_once():
    works = [Counting(60, some_cuts(60, 8)) for _ in range(4)]
    helpers = pool.start(2)

    def repeat(work: Counting) -> None:
        for _ in range(200):
            work.run(helpers)

    threads = [threading.Thread(target=repeat, args=(w,)) for w in works]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for w in works:
        np.testing.assert_array_equal(w.counts, w.expected(200))


@threaded
def test_a_fork_starts_helpers_of_its_own():
    program = (
        "import os, sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_pool import *\n"
        "work = Counting(100, some_cuts(100, 12))\n"
        "work.run(pool.start(2))\n"
        "child = os.fork()\n"
        "assert pool.helpers() == (0 if child == 0 else 1)\n"
        "work.run(pool.start(2))\n"
        "assert (work.counts == work.expected(2)).all()\n"
        "assert child == 0 or os.waitpid(child, 0)[1] == 0\n"
    )
    here = os.path.dirname(__file__)
    subprocess.run(
        [sys.executable, "-c", program, here, os.path.join(here, "../support")], check=True, timeout=60
    )


@threaded
def test_signals_reach_the_main_thread_and_the_process_ends():
    program = (
        "import os, signal, sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_pool import *\n"
        "work = Counting(100, some_cuts(100, 12))\n"
        "helpers = pool.start(2)\n"
        "try:\n"
        "    for _ in range(1000): work.run(helpers)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    for _ in range(10**6): work.run(helpers)\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    here = os.path.dirname(__file__)
    out = subprocess.run(
        [sys.executable, "-c", program, here, os.path.join(here, "../support")],
        check=True, timeout=60, capture_output=True, text=True,
    )  # fmt: skip
    assert out.stdout == "interrupted\n" and out.stderr == ""


def test_systems_without_threads_run_all_chunks(monkeypatch):
    monkeypatch.setattr(pool_text, "has_threads", lambda: False)
    monkeypatch.setattr(pool_text.platform, "machine", lambda: "riscv64")
    code = llvm.compile_text(pool._text(), machine.machine())
    tracker = llvm.link(code, ("run", "start"))
    work = Counting(40, some_cuts(40, 5))
    work.run(1, tracker["run"])
    np.testing.assert_array_equal(work.counts, work.expected(1))
    assert pool.start(100) == pool.helpers()  # no helper is added
