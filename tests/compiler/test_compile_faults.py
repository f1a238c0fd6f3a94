"""Errors, interrupts, threads and forks: nothing is changed by halves, and nothing is left symbolic."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np
import pytest
from by_replay import by_replay as by_replay
from call_faults import FaultError, counted
from steps import state_of

import adjoint as ad
from adjoint import forks, nn, optim
from adjoint.compiler.capture.finalizers import Pause
from adjoint.compiler.capture.trace import Trace, _tracing_lock
from adjoint.compiler.host import call as host
from adjoint.compiler.program import writes
from adjoint.compiler.replay import replay, tables
from adjoint.config import grad_mode, locked, special
from adjoint.core.lifted import enclosing, tracing
from adjoint.forks import held_across_fork


class StopError(Exception):
    pass


def data(k: int) -> tuple[Any, Any]:
    r = np.random.default_rng(k)
    return r.normal(size=(6, 4)).astype("f"), r.normal(size=(6, 1)).astype("f")


def make() -> tuple[Any, ...]:
    """A step that writes everything there is to write."""
    m = nn.Sequential(nn.Linear(4, 5, rng=0), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1, rng=1))
    o = optim.Adam(m.parameters(), lr=0.01)
    average = optim.EMA([m[0].weight], decay=0.9)
    other = optim.SGD([nn.Parameter(np.ones(3, "f"))], lr=0.1)
    (w,) = other.params
    hidden = ad.tensor(np.zeros(3, "f"))

    def step(x: Any, y: Any) -> Any:
        o.zero_grad()
        loss = nn.functional.mse_loss(m(x), y)
        loss.backward()
        o.step()
        average.update()
        hidden.copy_(hidden + 1)
        other.zero_grad()
        (w * hidden).sum().backward()
        other.step()
        return loss, x.T  # a view of what was given, which is copied

    return step, m, o, average, other, w, hidden


def clean(m: Any) -> None:
    assert tracing.get() is None
    assert enclosing.get() is None
    assert all(type(p) is ad.Tensor and type(p._data) is np.ndarray for p in m.parameters())


def test_a_fault_at_every_instruction_of_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    step, m, *rest = make()
    add = Trace._add_with
    count = 0
    stop_at = -1

    def counted(self: Any, *args: Any) -> None:
        nonlocal count
        count += 1
        if count == stop_at:
            raise StopError
        add(self, *args)

    monkeypatch.setattr(Trace, "_add_with", counted)
    before = state_of(m, *rest)
    probe, *_ = make()
    ad.compile(probe).program(*data(0))
    total = count
    assert total > 30
    for stop_at in range(1, total + 1):
        count = 0
        with pytest.raises(StopError):
            ad.compile(step)(*data(0))
        clean(m)
        assert state_of(m, *rest) == before, stop_at


def make_all() -> tuple[Any, ...]:
    """A step with draws, clipping, statistics, a table, three optimisers, an average and writes."""
    noise = ad.random.default_rng(3)
    table = nn.Embedding(20_000, 4, rng=2)  # its gradient is filled in place
    dropout = nn.Dropout(0.3, rng=ad.random.default_rng(5))
    m = nn.Sequential(nn.Linear(4, 5, rng=0), nn.BatchNorm1d(5), dropout, nn.ReLU(), nn.Linear(5, 1, rng=1))
    w = nn.Parameter(np.ones(3, "f"))
    o, other = optim.Adam(m.parameters(), lr=0.01), optim.SGD([w], lr=0.1, momentum=0.9)
    third = optim.SGD(table.parameters(), lr=0.1)
    average = optim.EMA([m[0].weight], decay=0.9)
    hidden = ad.tensor(np.zeros(3, "f"))

    def step(x: Any, y: Any, z: Any, rows: Any) -> Any:
        for each in (o, other, third):
            each.zero_grad()
        z.grad = None
        x = x + noise.normal(0, 0.1, size=x.shape, dtype=np.float32)
        loss = nn.functional.mse_loss(m(x), y) + (table(rows) * z).sum()
        loss.backward()
        ad.clip_grad_norm(m.parameters(), 0.5)
        o.step()
        average.update()
        with ad.no_grad():
            hidden.copy_(hidden + 1)
            hidden[0] = 2.0
            z.copy_(z * 0.5)
        (w * hidden).sum().backward()
        other.step()
        third.step()
        return loss, x.T  # a view of what was given, which is copied

    return step, [noise, dropout.rng], m, table, w, o, other, third, average, hidden


def make_for_entry(averages: bool) -> tuple[Any, ...]:
    """A step that one call of native code runs as a whole, with its writes."""
    m = nn.Sequential(nn.Linear(4, 5, rng=0), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1, rng=1))
    n = nn.Linear(4, 1, rng=3)
    o, q = optim.Adam(m.parameters(), lr=0.01), optim.SGD(n.parameters(), lr=0.1, momentum=0.9)
    average = optim.EMA([m[0].weight], decay=0.9)
    hidden = ad.tensor(np.zeros(3, "f"))

    def step(x: Any, y: Any) -> Any:
        for each in (o, q):
            each.zero_grad()
        loss = nn.functional.mse_loss(m(x), y) + nn.functional.mse_loss(n(x), y)
        loss.backward()
        o.step()
        q.step()
        if averages:
            average.update()
        hidden.copy_(hidden * 0.5 + 1)
        return loss

    return step, [], m, n, o, q, average, hidden


def data_for_all(k: int, leaf: bool) -> tuple[Any, ...]:
    z = ad.tensor(np.ones(4, "f"), requires_grad=leaf)
    return *data(k), z, np.array([k, 3, 5])


PROGRAMS = {  # backend, step, arguments
    "replay": ("replay", make_all, partial(data_for_all, leaf=False)),
    "replay, by the general path": ("replay", make_all, partial(data_for_all, leaf=True)),
    "native": ("native", make_all, partial(data_for_all, leaf=False)),
    "native, by the general path": ("native", make_all, partial(data_for_all, leaf=True)),
    "native entry": ("native", partial(make_for_entry, averages=False), data),
    "native entry and average": ("native", partial(make_for_entry, averages=True), data),
}


def compiled_for_faults(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """Return a compiled step whose calls all use one program, its generators, its owners and arguments."""
    backend, make, given = PROGRAMS[name]
    if backend == "native":
        pytest.importorskip("llvmlite")
        monkeypatch.undo()  # of ``by_replay``
    else:
        monkeypatch.setattr(replay, "phrase", lambda *_: None)  # each instruction is a call
    step, generators, *owners = make()
    compiled = ad.compile(step, backend=backend)
    for k in range(3):
        compiled(*given(k))
    assert compiled.stats()["traces"] == 1
    args = given(3)
    return compiled, generators, [*owners, *(a for a in args if isinstance(a, ad.Tensor))], args


def plain(*owners: Any) -> bool:
    """Whether all tensors of modules, optimisers and averages, and tensors themselves, hold arrays."""
    tensors = []
    for o in owners:
        if isinstance(o, nn.Module):
            tensors += [*o.parameters(), *(t for _, t in o.named_buffers())]
        elif isinstance(o, optim.Optimizer):
            tensors += o.params
        elif isinstance(o, ad.Tensor):
            tensors.append(o)
    tensors += [t.grad for t in tensors if t.grad is not None]
    none_left = tracing.get() is None and enclosing.get() is None
    return none_left and all(type(t) is ad.Tensor and type(t._data) is np.ndarray for t in tensors)


WRITING = ("write", "set_grad", "assign", "set_item", "fill_tables", "entry", "u")  # beginnings of names


def places_of(calls: Any, run: Callable[[], Any]) -> list[tuple[int, bool, str]]:
    """Return where a call can fail: before and after each call of its generated code, up to the last write.

    Each place is the number of the call, whether the fault comes after it, and the name of the function.  NumPy's
    modes are set by C code that cannot fail.
    """
    calls.start()
    run()
    last = max(k for k, n in enumerate(calls.names) if n.startswith(WRITING))
    found = [(k, after, n) for k, n in enumerate(calls.names[: last + 1]) for after in (False, True)]
    found = [place for place in found if place[2] != "set_modes"]
    return [(k, after, n) for k, after, n in found if not (after and (k == last or n.startswith("entry")))]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fault_at_every_instruction_and_host_step_of_a_program(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is changed, wherever a function that generated code calls fails; later calls are right."""
    compiled, _, owners, args = compiled_for_faults(name, monkeypatch)
    with counted(compiled, [host, tables, writes]) as calls:
        places = places_of(calls, lambda: compiled(*args))
        before = state_of(*owners)
        for k, after, function in places:
            calls.start(k, after)
            with pytest.raises(FaultError):
                compiled(*args)
            calls.start()
            assert state_of(*owners) == before, (function, k, after)
            assert plain(*owners), (function, k, after)
    kinds = {re.sub(r"\d.*", "", function) for _, _, function in places}
    if "entry" in name:
        wanted = {"entry"} | ({"u"} if "average" in name else set())
    else:
        wanted = {"r", "run", "u", "assign", "set_item", "write", "wrap", "move_version", "locked"}
    if "replay" in name:
        wanted |= {"fill_tables"}
        assert sum(re.match(r"f\d", function) is not None for _, _, function in places) > 300  # instructions
    if "general" in name:
        wanted |= {"set_grad"}
    assert wanted <= kinds
    assert compiled.stats()["traces"] == 1
    with ad.config.compiling("check"):  # compares with the function itself
        compiled(*args)


def make_small() -> tuple[Any, ...]:
    dropout = nn.Dropout(0.3, rng=ad.random.default_rng(5))
    m = nn.Sequential(nn.Linear(4, 3, rng=0), nn.BatchNorm1d(3), dropout, nn.Linear(3, 1, rng=1))
    o = optim.Adam(m.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> Any:
        o.zero_grad()
        loss = nn.functional.mse_loss(m(x), y)
        loss.backward()
        o.step()
        return loss

    return step, m, o


LIBRARY = (os.path.dirname(ad.__file__), "<ad.compile>")
UPDATES = os.path.join(LIBRARY[0], "optim")  # an interrupted update is not undone; the error says so


def interrupted(calls: int, stop_at: int = -1) -> tuple[int, str, Any, list[Any]]:
    """Make some calls of a compiled step, with an interrupt at a line of the library.

    Return the number of lines, the place of the interrupt, the compiled function and what the step changes.
    """
    special.count = 0  # an interrupt may leave it too large
    step, *owners = make_small()
    compiled = ad.compile(step, backend="replay")
    args = data(0)
    count, place = 0, ""

    def local(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count, place
        if event == "line":
            count += 1
            if count == stop_at:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return local

    def start(frame: Any, event: str, arg: Any) -> Any:
        code = frame.f_code
        # only a trace function can raise between the end of a ``with`` block and the release of its lock;
        # and ``gc`` drops what its callback raises before the ``try`` in it
        skipped = locked.__code__, Pause.__call__.__code__
        return local if code.co_filename.startswith(LIBRARY) and code not in skipped else None

    before = sys.gettrace()
    sys.settrace(start)
    try:
        for _ in range(calls):
            compiled(*args)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
        gc.enable()  # only a trace function can raise between the end of a trace and this call in it
    return count, place, compiled, owners


def check_interrupt(stop_at: int, states: list[Any]) -> bool:
    """Check that an interrupt leaves a state before or after a call, and nothing symbolic or locked.

    Return whether the calls have so many lines at all.
    """
    _, place, compiled, owners = interrupted(2, stop_at)
    assert plain(*owners), place
    assert not _tracing_lock._is_owned(), place  # type: ignore[attr-defined]
    assert not compiled._lock._is_owned(), place
    # a trace function can raise at the end of a ``with`` block, before its lock is released; later tests fork
    for lock in [found for ref in forks._forks.known.copy() if (found := ref()) is not None]:
        while hasattr(lock, "_is_owned") and lock._is_owned():
            lock.release()
    if not place.startswith(UPDATES):
        assert state_of(*owners) in states, place
        assert grad_mode.get(), place
    return bool(place)


def check_interrupts(trace_step: int, replay_step: int) -> None:
    """Interrupt a call that traces at every so many lines, then a call that replays."""
    interrupted(2)  # later calls find everything imported and cached
    found = [interrupted(calls) for calls in range(3)]
    states = [state_of(*owners) for *_, owners in found]
    _, first, both = [count for count, *_ in found]
    assert first > 10_000
    assert both - first > 400
    places = [*range(1, first, trace_step), *range(first, both, replay_step)]
    reached = [copy_context().run(check_interrupt, stop_at, states) for stop_at in places]
    # the number of lines depends on the order of sets and on caches
    assert sum(reached) > 0.95 * len(places)


def test_interrupts_at_lines_of_the_library() -> None:
    check_interrupts(101, 11)


@pytest.mark.soak
def test_interrupts_at_all_lines_of_the_library() -> None:
    check_interrupts(1, 1)


def test_two_threads_make_the_first_call() -> None:
    m = nn.Linear(3, 2, rng=0)
    f = ad.compile(lambda x: m(x).tanh())
    x = np.ones((4, 3), "f")
    with ad.no_grad():
        wanted = m(x).tanh().numpy().tobytes()
    found: list[Any] = []
    gate = threading.Barrier(4)

    def work() -> None:
        gate.wait()
        with ad.no_grad():
            for _ in range(5):
                found.append(f(x).numpy().tobytes())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [wanted] * 20
    assert f.stats()["traces"] == 1


def test_a_tensor_that_another_thread_traces_is_an_error_there() -> None:
    w = ad.tensor([1.0, 2.0])
    found: list[Any] = []

    def look() -> None:
        try:
            found.append((w * 2).numpy())
        except ad.errors.AdjointError as error:
            found.append(error)

    def f(x: Any) -> Any:
        y = x * w
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return y

    assert ad.compile(f)(ad.tensor(2.0)).tolist() == [2.0, 4.0]
    assert isinstance(found[0], ad.errors.TransformError)
    assert "in another thread" in str(found[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_of_another_thread_waits_for_the_trace() -> None:
    w = ad.tensor([1.0, 2.0])
    status: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0 if type(w) is ad.Tensor and (w * 2).tolist() == [2.0, 4.0] else 1)
        status.append(os.waitpid(child, 0)[1])

    thread = threading.Thread(target=fork)

    def f(x: Any) -> Any:
        y = x * w
        thread.start()
        return y + w

    ad.compile(f)(ad.tensor(2.0))
    thread.join()
    assert status == [0]


FORKING = """
import os, threading
import adjoint as ad
from adjoint import forks

forks.LAST_WAIT = 0.02
other, codes, here = ad.compile(lambda x: x + 1), [], os.getpid()

def f(x):
    thread.start()
    while other._lock.acquire(blocking=False):  # until the thread has it, and waits for the end of this trace
        other._lock.release()
    for work in (lambda: x * 2, lambda: None):
        if (child := os.fork()) == 0:
            return work()
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return x * 3

thread = threading.Thread(target=other, args=(ad.ones(2),))
try:
    assert ad.compile(f)(ad.ones(2)).tolist() == [3.0, 3.0]
    thread.join()
    assert codes == [7, 7], codes
except ad.errors.TransformError as error:
    assert os.getpid() != here and "was forked inside a function" in str(error)
    assert other(ad.ones(2)).tolist() == [2.0, 2.0]  # its lock is free
    os._exit(7)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_inside_a_trace_for_which_another_thread_waits_is_an_error_in_the_child() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], check=True, timeout=60)


class Failing(optim.Adam):
    """Fails at the second parameter if it is told to."""

    def init_one(self, p: Any, hyper: Any) -> Any:
        return {"sum": np.zeros_like(p)}

    def apply_one(self, xp: Any, p: Any, g: Any, state: Any, hyper: Any) -> Any:
        if fails and p.size == 2:
            raise StopError
        return p - hyper["lr"] * g, {"sum": state["sum"] + g}


fails: list[bool] = []


def make_with_failing() -> tuple[Any, ...]:
    """A step of three optimisers; the last one has a formula of the user.  Some parameters are large."""
    a, b, c, d = (nn.Parameter(np.ones(n)) for n in (3, 2, 20_000, 20_000))
    everyone = optim.Adam([a], lr=0.1), optim.SGD([d], lr=0.1, momentum=0.9), Failing([c, b], lr=0.1)

    def step(x: Any) -> Any:
        for o in everyone:
            o.zero_grad()
        loss = (a * x).sum() * b.sum() + c.mean() + (d * d).sum()
        loss.backward()
        for o in everyone:
            o.step()
        return loss

    return step, everyone, (a, b, c, d)


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_a_failing_update_takes_back_all_updates_of_a_call(calls: int) -> None:
    wanted, its_optimizers, its_tensors = make_with_failing()
    step, optimizers, tensors = make_with_failing()
    compiled = ad.compile(step, backend="replay")
    x = ad.tensor(np.arange(3.0))
    for _ in range(calls):
        compiled(x), wanted(x)
    for each in (optimizers, its_optimizers):
        each[1].groups[0].hyper["momentum"] = 0.0  # its state has an array less then
    before = state_of(*optimizers, *tensors), [t._version for t in tensors]
    fails.append(True)
    try:
        for _ in range(2):
            with pytest.raises(StopError) as info:
                compiled(x)
            assert not hasattr(info.value, "__notes__")
            assert (state_of(*optimizers, *tensors), [t._version for t in tensors]) == before
    finally:
        fails.clear()
    compiled(x), wanted(x)
    assert state_of(*optimizers, *tensors) == state_of(*its_optimizers, *its_tensors)


class Told:
    """A lock that tells when the main thread is going to acquire it, or has it."""

    def __init__(self, tell: threading.Event, at_once: bool) -> None:
        self.lock, self.tell, self.at_once = threading.RLock(), tell, at_once

    def acquire(self, timeout: float = -1) -> bool:
        here = threading.current_thread() is threading.main_thread()
        if here and self.at_once:
            self.tell.set()
        found = self.lock.acquire(timeout=timeout)
        if here:
            self.tell.set()
        return found

    def release(self) -> None:
        self.lock.release()


def exit_code_of_fork(works: Callable[[], bool]) -> int:
    child = os.fork()
    if child == 0:
        os._exit(0 if works() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("older", [True, False])
def test_a_fork_waits_for_threads_that_acquire_locks_in_any_order(older: bool) -> None:
    ready, forking = threading.Event(), threading.Event()
    made = [Told(forking, at_once=k == older) for k in range(2)]
    outer, inner = made[older], made[not older]

    def work() -> None:
        outer.acquire()
        ready.set()
        forking.wait()  # the fork waits for ``outer``, or it has ``inner``
        inner.acquire()
        inner.release()
        outer.release()

    for lock in made:
        held_across_fork(lock)
    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    assert exit_code_of_fork(lambda: outer.acquire(timeout=5) and inner.acquire(timeout=5)) == 0
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("fresh", [False, True])
def test_forks_while_another_thread_calls_or_builds_a_program_with_a_numpy_call(fresh: bool) -> None:
    """A call acquires the lock of the function, then the lock of its program."""

    def make() -> Any:
        return ad.compile(lambda x: ad.special.dawsn(ad.tanh(x)).sum())

    x, f, stop = ad.ones(2000), make(), threading.Event()
    expected = float(f(x))
    started = threading.Event()

    def work() -> None:
        while not stop.is_set():
            g = make() if fresh else f
            g(x), g(x)
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        started.wait()
        for _ in range(10):
            assert exit_code_of_fork(lambda: abs(float(f(x)) - expected) < 1e-6 * expected) == 0
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_locks_of_deleted_programs_are_forgotten() -> None:
    def known() -> int:
        return len(forks._forks.known)

    x = ad.ones(4)
    f = ad.compile(lambda x: ad.tanh(x).sum())
    f(x), f(x)
    gc.collect()
    before = known()
    for _ in range(3):
        g = ad.compile(lambda x: ad.tanh(x).sum())
        g(x), g(x)
    assert known() > before
    del g
    gc.collect()
    assert known() == before


@pytest.mark.parametrize("name", [n for n in PROGRAMS if "entry" not in n])
def test_a_failed_call_restores_generators(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, generators, _, args = compiled_for_faults(name, monkeypatch)
    with counted(compiled, [host, tables, writes]) as calls:
        places = places_of(calls, lambda: compiled(*args))
        before = state_of(*generators)
        for k, after, function in places:
            calls.start(k, after)
            with pytest.raises(FaultError):
                compiled(*args)
            calls.start()
            assert state_of(*generators) == before, (function, k, after)
