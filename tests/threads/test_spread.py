"""Large passes in pieces and threads: the bits of one pass, errors, nesting, forks, interrupts, nobody left at work."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
from watchdog import watched

import adjoint as ad
from adjoint import errors
from adjoint.core.op import OPS
from adjoint.ops import elementwise
from adjoint.threads import spread as mechanism
from adjoint.threads.spread import pieces, processors, run_parts, scratch, threads_for


@pytest.fixture(autouse=True)
def no_hang():
    with watched():
        yield


@pytest.mark.parametrize("size", [0, 1, 2, 15, 16, 17, 1001, 65_537])
@pytest.mark.parametrize("length", [1, 7, 16, 4096])
def test_pieces_cover_everything_once(size, length):
    for start in (0, 3):
        found = pieces(size, length, start)
        assert [i for s in found for i in range(s.start, s.stop)] == list(range(start, size))
        assert all(s.stop - s.start <= length for s in found)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 3, 1009, 40_007])
def test_the_bits_are_those_of_one_pass(size, threads, dtype):
    rng = np.random.default_rng(size)
    x, y = (rng.standard_normal(size).astype(dtype) * dtype(10) ** rng.integers(-20, 20, size) for _ in "xy")
    x, y = x.astype(dtype), y.astype(dtype)
    expected = (x + y) * np.sqrt(np.abs(x)) / (np.abs(y) + dtype(1e-3)) - x
    got = np.empty_like(x)

    def work(s: slice) -> None:
        a = scratch(s.stop - s.start, x.dtype)
        np.abs(y[s], a)
        np.add(a, dtype(1e-3), a)
        got[s] = (x[s] + y[s]) * np.sqrt(np.abs(x[s])) / a - x[s]

    run_parts(work, pieces(size, 97), threads)
    assert got.tobytes() == expected.tobytes()


def test_one_thread_takes_parts_in_order_and_needs_no_helper():
    seen: list[int] = []
    run_parts(seen.append, range(10), 1)
    assert seen == list(range(10))
    run_parts(seen.append, [], 4)
    assert len(seen) == 10


class Meeting:
    """Parts that wait for each other, so that several threads must be at work at the same time."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=30)

    def __call__(self, part: Any) -> None:
        self.barrier.wait()


def test_threads_work_at_the_same_time():
    run_parts(Meeting(3), range(3), 3)
    run_parts(Meeting(3), range(6), 3)


def test_an_error_is_raised_when_all_have_stopped():
    done: list[int] = []
    meeting = Meeting(2)

    def work(i: int) -> None:
        meeting(i)
        if i == 0:
            raise ValueError("part 0")
        done.append(i)

    with pytest.raises(ValueError, match="part 0"):
        run_parts(work, range(2), 2)
    assert done == [1]

    def fail_at_once(i: int) -> None:
        done.append(i)
        raise KeyError(i)

    done.clear()
    with pytest.raises(KeyError):
        run_parts(fail_at_once, range(1000), 3)
    assert 1 <= len(done) <= 3  # what was not begun by then is left out
    count = len(done)
    run_parts(Meeting(3), range(3), 3)  # the helpers are there for the next pass, and at nothing else
    assert len(done) == count


def test_an_error_in_a_helper_reaches_the_caller():
    caller = threading.get_ident()
    meeting = Meeting(2)

    def work(i: int) -> None:
        meeting(i)
        if threading.get_ident() != caller:
            raise SystemExit("in the helper")

    with pytest.raises(SystemExit, match="in the helper"):
        run_parts(work, range(2), 2)
    run_parts(Meeting(2), range(2), 2)


def test_context_variables_and_errstate_hold_in_all_threads():
    mark: ContextVar[str] = ContextVar("mark", default="none")
    mark.set("caller's")
    meeting = Meeting(2)
    seen: list[Any] = []

    def work(i: int) -> None:
        meeting(i)
        seen.append((mark.get(), np.geterr()["over"], ad.is_grad_enabled()))
        mark.set("other")

    with np.errstate(over="raise"), ad.no_grad():
        run_parts(work, range(2), 2)
        assert seen == [("caller's", "raise", False)] * 2

    def overflow(i: int) -> None:
        meeting(i)
        np.float32(1e38) * np.ones(4, np.float32) * np.float32(1e30)

    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        run_parts(overflow, range(2), 2)
    with np.errstate(over="ignore"):
        run_parts(overflow, range(2), 2)


def test_a_pass_inside_a_pass_stays_in_its_thread():
    meeting = Meeting(2)
    inner: list[tuple[int, int]] = []

    def work(i: int) -> None:
        meeting(i)
        here = threading.get_ident()
        assert threads_for(10**9, 1) == 1
        run_parts(lambda j: inner.append((here, threading.get_ident())), range(5), threads_for(10**9, 1))

    with ad.config.threads(4):
        assert threads_for(10**9, 1) == 4
        run_parts(work, range(2), 2)
    assert len(inner) == 10
    assert all(outer == here for outer, here in inner)


def test_many_callers_at_once():
    total = np.zeros(16 * 1000)

    def caller(k: int) -> None:
        mine = total[k * 1000 : (k + 1) * 1000]

        def add(s: slice) -> None:
            mine[s] += 1.0

        for _ in range(50):
            run_parts(add, pieces(1000, 130), 3)

    callers = [threading.Thread(target=caller, args=(k,)) for k in range(16)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    np.testing.assert_array_equal(total, 50.0)


def test_the_number_of_threads_can_be_set():
    assert ad.config.get_threads() == "auto"
    assert threads_for(10**9, 1) == processors()
    assert threads_for(999, 500) == 1
    with ad.config.threads(3):
        assert (threads_for(1000, 500), threads_for(10**6, 500)) == (2, 3)
        with ad.config.threads(1):
            assert threads_for(10**9, 1) == 1
    ad.config.set_threads(2)
    try:
        assert ad.config.get_threads() == 2
    finally:
        ad.config.set_threads("auto")
    for wrong in (0, -1, 1.5, True, "many"):
        with pytest.raises(errors.ArgumentError, match="threads must be a positive integer or 'auto'"):
            ad.config.threads(wrong)


def test_without_threads_to_be_had_the_caller_does_it_all(monkeypatch):
    def none(*args: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(mechanism, "_pool", mechanism._Pool())
    monkeypatch.setattr(_thread, "start_new_thread", none)
    seen: list[int] = []
    run_parts(seen.append, range(5), 4)
    assert sorted(seen) == list(range(5))


def test_a_finished_pass_holds_nothing():
    import gc
    import weakref

    class Large:
        pass

    large = Large()
    gone = weakref.ref(large)

    def work(i: int, held: Any = large) -> None:
        pass

    for _ in range(20):
        run_parts(work, range(4), 3)
    run_parts(Meeting(3), range(3), 3)  # all helpers have passed by
    del work, large
    gc.collect()
    assert gone() is None


def test_an_interrupt_is_raised_when_the_arrays_are_at_rest():
    caller = threading.get_ident()
    meeting = Meeting(2)
    state: list[str] = []

    def work(i: int) -> None:
        meeting(i)
        if threading.get_ident() == caller:
            signal.raise_signal(signal.SIGINT)  # the handler runs in the main thread, which this is
        else:
            for _ in range(200):
                np.sqrt(np.ones(10_000))
            state.append("whole")

    with pytest.raises(KeyboardInterrupt):
        run_parts(work, range(2), 2)
    assert state == ["whole"]
    run_parts(Meeting(2), range(2), 2)


# An interrupt inside a callback of a weak reference, as Python's own, is only reported.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_any_moment_leave_nobody_at_work():
    a = np.zeros(300_000)
    came = 0
    for k in range(30):
        timer = threading.Timer(0.0002 * k, _thread.interrupt_main)

        def work(s: slice) -> None:
            a[s] += 1.0

        try:
            timer.start()
            for _ in range(40):
                run_parts(work, pieces(a.size, 10_000), 2)
            timer.join()
            run_parts(lambda i: None, range(3), 2)
        except KeyboardInterrupt:
            came += 1
        timer.join()
        before = a.copy()
        run_parts(Meeting(2), range(2), 2)
        np.testing.assert_array_equal(a, before)
    assert came > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_works_in_one_thread():
    code = """
import os, numpy as np, adjoint as ad
from adjoint.threads.spread import pieces, run_parts, threads_for
a = np.zeros(100_000)
def work(s): a[s] += 1
ad.config.set_threads(3)
run_parts(work, pieces(a.size, 1000), 3)
pid = os.fork()
if pid == 0:
    ok = threads_for(10**9, 1) == 1
    run_parts(work, pieces(a.size, 1000), threads_for(10**9, 1))
    run_parts(work, pieces(a.size, 1000), 3)
    os._exit(0 if ok and (a == 3).all() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
run_parts(work, pieces(a.size, 1000), threads_for(10**9, 1))
assert (a == 2).all()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_program_ends_at_any_time():
    code = """
import atexit, numpy as np, adjoint as ad
from adjoint.threads.spread import pieces, run_parts, threads_for
a = np.zeros(100_000)
def work(s, a=a): a[s] += 1
ad.config.set_threads(3)
class Late:
    def __del__(self, run_parts=run_parts, pieces=pieces, work=work, threads_for=threads_for):
        run_parts(work, pieces(100_000, 1000), threads_for(10**9, 1))
late = Late()
atexit.register(lambda: run_parts(work, pieces(a.size, 1000), 3))
run_parts(work, pieces(a.size, 1000), 3)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""


def test_an_interrupt_right_after_a_part_was_taken_does_not_hang():
    """Where a profile function sees ``left.pop`` return, an interrupt may come."""
    caller = threading.get_ident()
    seen: list[int] = []

    def interrupt(frame: Any, event: str, arg: Any) -> None:
        at_mark = frame.f_code.co_name == "take_parts" and getattr(arg, "__name__", "") == "pop"
        if event == "c_return" and at_mark and threading.get_ident() == caller:
            seen.append(1)
            if len(seen) == 2:
                raise KeyboardInterrupt

    def interrupted() -> None:
        before = sys.getprofile()
        try:
            sys.setprofile(interrupt)
            while True:  # until the caller has taken its second part
                run_parts(lambda i: None, range(50), 2)
        finally:
            sys.setprofile(before)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    run_parts(Meeting(2), range(2), 2)


# Costly functions ------------------------------------------------------------------------------


@pytest.fixture
def large_from_3000(monkeypatch):
    monkeypatch.setattr(mechanism, "COSTLY_SIZE", 3000)
    with ad.config.threads(3):
        yield


COSTLY = [op.forward for op in OPS.values() if op.costly]


@pytest.mark.parametrize("f", COSTLY, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [3000, 4096, 70_001])
def test_the_bits_of_a_costly_function_are_those_of_one_pass(large_from_3000, f, dtype, size):
    rng = np.random.default_rng(size)
    x = (rng.standard_normal(size + 3) * 10.0 ** rng.integers(-30, 5, size + 3)).astype(dtype)
    x[:4] = np.nan, np.inf, -0.0, 0.0
    for a in (x[:size], x[3:]):  # at the beginning of its memory and elsewhere
        with np.errstate(all="ignore"):
            expected, got = f(a), mechanism.function_in_pieces(f, a)
        assert got.dtype == expected.dtype
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("f", [np.add, np.subtract, np.multiply, np.divide], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bits_of_a_function_of_two_arrays_are_those_of_one_pass(large_from_3000, f, dtype):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((90, 91)).astype(dtype) for _ in range(2))
    x[0, :4] = np.nan, np.inf, -0.0, 0.0
    number, row = np.asarray(2.5, dtype), y[:1]
    pairs = [(x, y), (x, x), (x, number), (number, y), (x, 3.0), (x, row), (x.T, y.T), (x, y.T.copy().T)]
    pairs += [(x, y.astype(np.float32)), (x, y[::-1]), (x, np.broadcast_to(number, x.shape))]
    with np.errstate(all="ignore"):
        for a, b in pairs:
            expected, got = f(a, b), mechanism.function_in_pieces(f, a, b)
            assert (got.dtype, got.shape, got.strides) == (expected.dtype, expected.shape, expected.strides)
            assert got.tobytes() == expected.tobytes()
        again = x.copy()
        assert mechanism.function_in_pieces(f, again, y, out=again) is again
        assert again.tobytes() == f(x, y).tobytes()


def test_a_costly_function_of_a_large_tensor(monkeypatch):
    x = ad.tensor(np.linspace(-3.0, 3.0, 2**18).reshape(2**9, 2**9), requires_grad=True)
    seen: list[int] = []
    in_threads = mechanism.run_parts

    def noted(work: Any, parts: Any, threads: int) -> None:
        seen.append(threads)
        in_threads(work, parts, threads)

    monkeypatch.setattr(mechanism, "run_parts", noted)
    with ad.config.threads(2):
        y = ad.tanh(x)
        ad.tanh(x.T)  # not contiguous
    with ad.config.threads(1):
        ad.tanh(x)
    assert seen == [2]
    assert y.shape == x.shape
    assert y.numpy().tobytes() == np.tanh(x.numpy()).tobytes()
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 1 / np.cosh(x.numpy()) ** 2, rtol=1e-14)


@pytest.mark.parametrize("op", ["sech_squared", "logistic_slope"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_slope_of_a_large_array_has_the_bits_and_the_layout_of_a_small_one(monkeypatch, op, dtype):
    y = np.random.default_rng(0).normal(scale=30, size=(64, 50)).astype(dtype)
    y[0, :4] = np.nan, np.inf, -0.0, 1e30
    g = np.random.default_rng(1).normal(size=(64, 50))
    one = np.broadcast_to(dtype(2.5), y.shape)
    pairs = [(g.astype(dtype), y), (one, y), (g.astype(dtype), y.T.copy().T), (g.astype(dtype).T, y.T)]
    pairs += [(g.astype(dtype).T.copy().T, y), (g, y), (g[:1].astype(dtype), y), (g[None].astype(dtype), y)]
    slope = OPS[op].forward
    with np.errstate(all="ignore"), ad.config.threads(3):
        small = [slope(a, b) for a, b in pairs]
        monkeypatch.setattr(elementwise, "COSTLY_SIZE", 3000)
        monkeypatch.setattr(mechanism, "COSTLY_SIZE", 3000)
        monkeypatch.setattr(mechanism, "ALONE", 1 << 13)
        monkeypatch.setattr(mechanism, "SHARED", 1 << 13)
        kept = [(a.copy(), b.copy()) for a, b in pairs]
        large = [slope(a, b) for a, b in pairs]
    for x, z, (a, b), (c, d) in zip(small, large, pairs, kept, strict=True):
        assert (z.dtype, z.shape, z.strides) == (x.dtype, x.shape, x.strides)
        assert z.tobytes() == x.tobytes()
        assert a.tobytes() == c.tobytes()
        assert b.tobytes() == d.tobytes()


def test_a_costly_function_tells_of_errors_in_its_threads(large_from_3000):
    x = np.ones(5000)
    x[4000] = -1.0
    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
        mechanism.function_in_pieces(np.log, x)


def test_ranks_on_one_machine_share_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanism, "RANKS_HERE", 3)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert processors() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)  # bound by the launcher
    assert processors() == 3
