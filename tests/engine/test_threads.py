"""Many threads at once: graphs handed over, shared leaves, shared subgraphs, modes, tasks, forks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from random_graphs import Graph, bits
from watchdog import short_turns

import adjoint as ad
from adjoint import errors
from adjoint.core import node, tensor
from adjoint.core.namespace import raw
from adjoint.core.node import next_seq
from adjoint.engine.plan import make_plan
from adjoint.engine.run import Run, run_serial


@pytest.fixture(autouse=True)
def _short_turns() -> Iterator[None]:
    with short_turns():
        yield


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work(0)``, ``work(1)``, … in threads that start at the same moment."""
    barrier = threading.Barrier(count, timeout=20)

    def start(i: int) -> Any:
        barrier.wait()
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return [f.result() for f in [pool.submit(start, i) for i in range(count)]]


# Graphs and threads ----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_graph_built_here_is_differentiated_there(workers):
    one = Graph(7)
    one.root.backward()
    graphs = [Graph(7) for _ in range(8)]
    together(8, lambda i: graphs[i].root.backward(workers=workers))
    assert all(g.results() == one.results() and g.log == one.log for g in graphs)


def _train(seed: int, steps: int, workers: int | str) -> list[Any]:
    rng = np.random.default_rng(seed)
    w1 = ad.tensor(rng.normal(size=(4, 8)), requires_grad=True)
    w2 = ad.tensor(rng.normal(size=(8, 1)), requires_grad=True)
    x, y = ad.tensor(rng.normal(size=(16, 4))), ad.tensor(rng.normal(size=(16, 1)))
    for _ in range(steps):
        loss = ((ad.tanh(x @ w1) @ w2 - y) ** 2).mean()
        loss.backward(workers=workers)
        with ad.no_grad():
            for w in (w1, w2):
                w.copy_(w - 0.05 * w.grad)
                w.grad = None
    return [bits(w1), bits(w2)]


@pytest.mark.parametrize("workers", [1, 2, "auto"])
def test_eight_threads_train_their_own_models(workers):
    alone = [_train(seed, 20, 1) for seed in range(8)]
    assert together(8, lambda seed: _train(seed, 20, workers)) == alone


@pytest.mark.parametrize("workers", [1, 3])
def test_shared_leaves_lose_no_contribution(workers):
    w, v = (ad.zeros(5).requires_grad_() for _ in range(2))
    threads, rounds = 8, 30

    def work(i):
        for k in range(rounds):
            (w * float(2 ** (k % 8)) + v * float(i + 1)).sum().backward(workers=workers)

    together(threads, work)
    assert w.grad.tolist() == [float(threads * sum(2 ** (k % 8) for k in range(rounds)))] * 5
    assert v.grad.tolist() == [float(rounds * sum(range(1, threads + 1)))] * 5


def test_shared_hooks_fire_once_per_backward():
    x = ad.zeros(3).requires_grad_()
    fired: list[int] = []
    x.register_hook(lambda g: fired.append(1))
    x.register_post_accumulate_grad_hook(lambda t: fired.append(2))
    together(8, lambda i: [(x * 2.0).sum().backward() for _ in range(10)])
    assert fired.count(1) == fired.count(2) == 80
    assert x.grad.tolist() == [160.0] * 3


def test_a_shared_subgraph_that_is_kept():
    x = ad.tensor([0.3, 0.7], requires_grad=True)
    shared = ad.tanh(ad.exp(x) * x)
    losses = [(shared * float(i)).sum() for i in range(1, 9)]
    alone = [bits(ad.gradients(loss, [x], retain_graph=True)[0]) for loss in losses]
    got = together(8, lambda i: [bits(ad.gradients(losses[i], [x], retain_graph=True)[0]) for _ in range(10)])
    assert got == [[a] * 10 for a in alone]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_shared_subgraph_that_is_released_works_or_says_so(workers):
    """Whoever comes too late gets GraphReleasedError, never half of what a node saved."""
    for _ in range(30):
        x = ad.tensor([0.3, 0.7], requires_grad=True)
        shared = x
        for _ in range(10):
            shared = ad.tanh(shared) / ad.exp(shared)
        expected = bits(ad.gradients(shared.sum(), [x], retain_graph=True)[0])

        def work(i, shared=shared, x=x, expected=expected):
            try:
                return bits(ad.gradients(shared.sum(), [x], workers=workers)[0]) == expected
            except errors.GraphReleasedError:
                return "released"

        found = together(4, work)
        assert set(found) <= {True, "released"}


def test_hooks_and_slots_attached_at_the_same_time_are_all_there():
    for _ in range(20):
        x = ad.tensor([1.0], requires_grad=True)
        y = x * 2.0
        fired: list[int] = []

        def attach(i, x=x, y=y, fired=fired):
            y.register_hook(lambda g: fired.append(i))
            x.register_hook(lambda g: fired.append(i))

        together(8, attach)
        y.backward()
        assert sorted(fired) == sorted([*range(8)] * 2)


@pytest.mark.parametrize("kind", ["leaf", "node"])
def test_the_slot_for_hooks_is_made_once(monkeypatch, kind):
    """A second thread comes while the first is making the slot; both must get the same one."""
    x = ad.tensor([1.0], requires_grad=True)
    owner = x if kind == "leaf" else (x * 2.0)._node
    module, name = (tensor, "_Extra") if kind == "leaf" else (node, "NodeExtra")
    need = owner._need_extra if kind == "leaf" else owner.need_extra
    made, others = getattr(module, name), []
    found: list[Any] = []

    def slow() -> Any:
        if not others:
            others.append(threading.Thread(target=lambda: found.append(need())))
            others[0].start()
            others[0].join(0.2)  # it must not get through before this one is in place
        return made()

    monkeypatch.setattr(module, name, slow)
    found.append(need())
    others[0].join()
    assert found[0] is found[1]


def test_a_node_that_is_released_while_it_is_read():
    """The output is read first and dropped last: arguments that are there mean that it was."""
    x = ad.tensor([0.5, 0.7], requires_grad=True)

    class Vanishing(node.Node):
        """A node that another thread releases right after its arguments were read."""

        @property
        def args(self) -> Any:
            self.reads += 1
            return given.args

        @args.setter
        def args(self, value: Any) -> None: ...

        @property
        def out(self) -> Any:
            return given.out if not self.reads else None

        @out.setter
        def out(self, value: Any) -> None: ...

    given = (x * 2.0).tanh()._node
    expected = ad.gradients(ad.tanh(x * 2.0).sum(), [x])[0]
    for needed in (None, {x, given.parents[0]}):
        vanishing = Vanishing()
        for field in ("op", "seq", "parents", "versions", "params", "shape", "dtype", "extra"):
            setattr(vanishing, field, getattr(given, field))
        vanishing.reads = 0
        run = Run(raw, True, None)
        run.grads[vanishing] = np.ones(2)
        plan = make_plan([given])
        plan.order[0] = vanishing
        plan.needed = None if needed is None else {*needed, vanishing}
        run_serial(plan, run)
        assert bits(ad.tensor(run.grads[x])) == bits(expected)


def test_hooks_come_and_go_while_others_run():
    x = ad.tensor([1.0], requires_grad=True)
    y = x * 2.0
    kept: list[int] = []
    y.register_hook(lambda g: kept.append(1))

    def work(i):
        for _ in range(30):
            if i % 2:
                y.register_hook(lambda g: None).remove()
            else:
                y.backward(retain_graph=True)

    together(6, work)
    assert len(kept) == 90 and x.grad.tolist() == [180.0]


def test_numbers_of_nodes_are_given_once():
    drawn = together(8, lambda i: [next_seq() for _ in range(2000)])
    assert len({n for one in drawn for n in one}) == 16000


# Modes -----------------------------------------------------------------------------------------


def test_modes_stay_in_their_thread():
    """One thread's no_grad, anomaly, tape, dtype and workers are not seen in another."""
    inside, leave = threading.Event(), threading.Event()

    def special():
        x = ad.tensor([0.0], requires_grad=True)
        with ad.no_grad(), ad.config.workers(4), ad.detect_anomaly(), ad.Tape():
            ad.set_default_dtype(np.float32)
            inside.set()
            leave.wait(20)
            return (x * 2.0).requires_grad

    def ordinary():
        inside.wait(20)
        x = ad.tensor([0.0], requires_grad=True)
        with np.errstate(all="ignore"):
            y = ad.log(x)  # an infinity, which only the other thread looks for
        found = y.requires_grad, ad.config.get_workers(), ad.get_default_dtype(), ad.is_grad_enabled()
        leave.set()
        return found

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(special), pool.submit(ordinary)
        assert second.result() == (True, 1, np.dtype(np.float64), True)
        assert first.result() is True  # the tape switches recording on


def test_modes_stay_in_their_task():
    async def task(i: int) -> Any:
        x = ad.tensor([1.0, 2.0], requires_grad=True)
        mode = ad.no_grad() if i % 3 == 0 else ad.config.workers(1 + i % 3)
        with mode:
            await asyncio.sleep(0)
            y = sum((ad.sin(x * float(k)) for k in range(1, 4)), x * 0.0)
            await asyncio.sleep(0)
            if i % 3 == 0:
                return y.requires_grad, ad.config.get_workers()
            y.sum().backward()
            await asyncio.sleep(0)
            return bits(x.grad), ad.config.get_workers()

    async def main() -> list[Any]:
        return await asyncio.gather(*(task(i) for i in range(12)))

    found = asyncio.run(main())
    assert [f for i, f in enumerate(found) if i % 3 == 0] == [(False, 1)] * 4
    assert [f[1] for i, f in enumerate(found) if i % 3] == [2, 3] * 4
    assert len({f[0] for i, f in enumerate(found) if i % 3}) == 1
    assert ad.config.get_workers() == 1


def test_backward_in_threads_of_asyncio():
    one = Graph(11)
    one.root.backward()

    async def main() -> list[Any]:
        graphs = [Graph(11) for _ in range(8)]
        await asyncio.gather(*(asyncio.to_thread(g.root.backward, workers=2) for g in graphs))
        return [g.results() for g in graphs]

    assert asyncio.run(main()) == [one.results()] * 8


# The ends of a process -------------------------------------------------------------------------


@pytest.mark.filterwarnings(
    "ignore:os.fork:RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is of Unix")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_can_run_backward():
    """Other threads commit and attach all the time; no lock of theirs is left in the child."""
    x = ad.zeros(3).requires_grad_()
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            (x * 2.0).sum().backward(workers=2)
            x.register_hook(lambda g: None).remove()

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for t in threads:
        t.start()
    codes = []
    try:
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                try:
                    x.grad = None
                    sum((ad.sin(x * float(i)).sum() for i in range(5)), x.sum()).backward(workers=2)
                    os._exit(0 if x.grad.tolist() == [11.0] * 3 else 1)
                finally:
                    os._exit(2)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert codes == [0] * 5


@pytest.mark.filterwarnings(
    "ignore:os.fork:RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is of Unix")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("lock", [tensor.committing, node.attaching, ad.config.special.lock])
def test_a_fork_waits_for_the_locks_of_other_threads(lock):
    taken = threading.Event()

    def hold():
        with lock:
            taken.set()
            threading.Event().wait(0.1)

    other = threading.Thread(target=hold)
    other.start()
    taken.wait()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if lock.acquire(timeout=5) else 1)
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


FORK = """
import os, threading
import numpy as np
import adjoint as ad
from adjoint import errors
caller, forked = threading.get_ident(), threading.Event()
helping = threading.Event()

def rule(xp, g, y, x):
    if threading.get_ident() == caller:
        helping.wait()
        pids.append(os.fork())
        forked.set()
    else:
        helping.set()
        forked.wait()
    return g

pids = []
fork = ad.define("fork", np.copy, rule)
x = ad.ones(3).requires_grad_()
try:
    (fork(x) + fork(x)).sum().backward(workers=3)
except errors.WorkerError as error:
    assert pids == [0] and "forked inside backward" in str(error), (pids, error)
    assert x.grad is None
    sum((ad.sin(x * float(i)).sum() for i in range(5)), x.sum()).backward(workers=3)
    os._exit(3)
assert pids[0] and x.grad.tolist() == [2.0] * 3
assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 3
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is of Unix")
def test_a_child_forked_inside_backward_can_go_on():
    """Its helpers are not there: its backward raises, and the next one works."""
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


GRAPH = """
import threading, atexit, sys
import adjoint as ad
x = ad.zeros(3).requires_grad_()
def loss():
    return sum((ad.sin(x * float(i)).sum() for i in range(8)), x.sum())
"""


@pytest.mark.parametrize(
    "program",
    [
        # a daemon thread in the middle of it
        """
started = threading.Event()
def forever():
    while True:
        loss().backward(workers=3)
        started.set()
threading.Thread(target=forever, daemon=True).start()
started.wait()
""",
        # a thread that goes on after the main thread has ended
        """
def later():
    threading.main_thread().join()
    for _ in range(5):
        loss().backward(workers=3)
    assert x.grad.tolist() == [145.0] * 3, x.grad
    print("done")
threading.Thread(target=later).start()
""",
        # at exit, when threads may not be startable any more
        """
def last():
    loss().backward(workers=3)
    assert x.grad.tolist() == [29.0] * 3, x.grad
    print("done")
atexit.register(last)
""",
    ],
)
def test_a_program_that_ends_during_backward(program):
    done = subprocess.run(
        [sys.executable, "-c", GRAPH + program], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
    assert ("done" in done.stdout) == ("done" in program)
