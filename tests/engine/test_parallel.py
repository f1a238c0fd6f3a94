"""Backward in several threads: the bits, hooks and order of one thread; contexts; leaf events."""

from __future__ import annotations

import runpy
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_graphs import Graph, bits
from watchdog import short_turns

import adjoint as ad
from adjoint import errors
from adjoint.core.define import define
from adjoint.core.namespace import rec
from adjoint.core.op import OPS
from adjoint.engine import auto, parallel
from adjoint.engine.plan import make_plan

at_meeting: list[Callable[[], Any]] = []  # what the rule of ``meet`` does: wait for another worker


def _meet(xp: Any, g: Any, y: Any, x: Any) -> Any:
    for act in list(at_meeting):
        act()
    return g * 1.0


if "meet" not in OPS:
    define("meet", lambda x: x * 1.0, _meet)


@pytest.fixture(autouse=True)
def _short_turns() -> Iterator[None]:
    with short_turns():
        yield
    at_meeting.clear()
    assert [t.name for t in threading.enumerate() if t.name.startswith("adjoint")] == []


def leaf(*values: float) -> ad.Tensor:
    return ad.tensor(list(values), requires_grad=True)


def two_branches(x: ad.Tensor, y: ad.Tensor) -> tuple[ad.Tensor, ad.Tensor, ad.Tensor]:
    """A loss of two branches whose rules run at the same time if there are two workers."""
    a, b = rec.meet(x * 2.0), rec.meet(y * 3.0)
    return (a * b).sum(), a, b


def meeting(count: int = 2) -> threading.Barrier:
    """Make the workers wait for each other in the rules of ``meet``; none comes alone."""
    barrier = threading.Barrier(count, timeout=20)
    at_meeting.append(barrier.wait)
    return barrier


# The same bits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200))
def test_random_graphs_give_the_bits_of_one_thread(seed):
    one = Graph(seed)
    one.root.backward()
    for workers in (2, 4):
        many = Graph(seed)
        many.root.backward(workers=workers)
        assert many.results() == one.results()
        assert many.log == one.log


@pytest.mark.parametrize("seed", range(40))
def test_stores_have_the_same_order(seed):
    def found(workers):
        graph = Graph(seed)
        store = ad.backward(graph.root, workers=workers)
        return [next(i for i, t in enumerate(graph.leaves) if t is k) for k in store.keys()]  # noqa: SIM118

    assert found(3) == found(1)


@pytest.mark.parametrize("seed", range(40))
def test_chosen_inputs_and_several_roots(seed):
    def found(workers):
        graph = Graph(seed, hooks=seed % 2 == 0)
        roots = [graph.root, *(t.sum() for t in graph.inner[-2:] if t.dtype == np.float64)]
        inputs = [*graph.leaves[:2], *graph.inner[::3]]
        got = ad.gradients(roots, inputs, allow_unused=True, workers=workers)
        return [bits(g) for g in got], graph.log

    assert found(3) == found(1)


def test_two_workers_run_at_the_same_time():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    loss, _, _ = two_branches(x, y)
    barrier = meeting()
    loss.backward(workers=2)
    assert not barrier.broken
    assert x.grad.tolist() == [18.0, 24.0] and y.grad.tolist() == [6.0, 12.0]


def test_what_waits_is_bounded_and_the_bits_stay(monkeypatch):
    size, branches, peaks = 1000, 12, []
    finish = parallel._Crew.finish

    def measured(crew, me, index, complete):
        peaks.append(crew.waiting_bytes)
        return finish(crew, me, index, complete)

    def gradient(workers):
        w = ad.tensor(np.linspace(0.1, 1, size), requires_grad=True)
        total = sum((ad.sin(w * (0.1 + i)).sum() for i in range(branches)), ad.tensor(0.0))
        total.backward(workers=workers)
        return bits(w.grad)

    expected = gradient(1)
    monkeypatch.setattr(parallel._Crew, "finish", measured)
    for limit in (0, 8 * size, 2**26):
        peaks.clear()
        monkeypatch.setattr(parallel, "WAITING_BYTES", limit)
        assert gradient(4) == expected
        assert max(peaks) <= limit + 4 * 8 * size  # one node more per worker


def test_an_early_branch_waits_for_a_late_one():
    """All but the first contribution to ``w`` are there before it; they are summed in order."""
    w = leaf(0.1, 0.2, 0.3)
    branches = [w * (0.1 * i) for i in range(1, 6)]
    last = rec.meet(w * 0.7)  # recorded last, so it is the first in the sum
    loss = sum((b.sum() for b in branches), last.sum())
    loss.backward(retain_graph=True)
    expected, w.grad = bits(w.grad), None
    done = threading.Event()
    seen: list[str] = []
    branches[0].register_hook(lambda g: (seen.append("hook"), done.set())[0])
    at_meeting.append(lambda: done.wait(20))
    loss.backward(workers=2)
    assert seen == ["hook"] and bits(w.grad) == expected


def test_a_sum_of_opposite_infinities_does_not_touch_the_next_rule():
    """Whether NumPy saw an invalid operation is asked of a rule alone, not of what ran before."""

    def gradients(workers):
        x, z = leaf(np.inf), leaf(np.nan)
        a, b = x * 1.0, z * 0.0
        loss = (a * 1e308 * 10.0 - a * 1e308 * 10.0 + b * 0.0).sum()
        with np.errstate(all="ignore"):
            loss.backward(ad.tensor(np.inf), workers=workers)
        return bits(x.grad), bits(z.grad)

    with np.errstate(all="ignore"):
        assert gradients(2) == gradients(1)


# Contexts --------------------------------------------------------------------------------------

mine: ContextVar[str] = ContextVar("mine", default="default")


def test_the_callers_context_is_seen_in_every_worker():
    x, y = leaf(1.0), leaf(2.0)
    loss, _, _ = two_branches(x, y)
    meeting()
    seen: list[tuple[Any, ...]] = []

    def look():
        name = threading.current_thread().name
        seen.append((name, mine.get(), ad.is_grad_enabled(), ad.config.get_workers(), np.geterr()["divide"]))

    at_meeting.append(look)
    token = mine.set("caller's")
    with ad.config.workers(2):
        loss.backward()
    mine.reset(token)
    assert len({name for name, *_ in seen}) == 2
    assert {rest for _, *rest in map(tuple, seen) for rest in [tuple(rest)]} == {
        ("caller's", False, 2, "ignore")
    }


def test_anomalies_are_found_in_helpers():
    with ad.detect_anomaly():
        x, y = leaf(0.0), leaf(0.0)
        a, b = ad.sqrt(rec.meet(x * 1.0)), ad.sqrt(rec.meet(y * 1.0))
        with pytest.raises(errors.AnomalyError, match="'sqrt' produced inf in its backward pass"):
            (a + b).sum().backward(workers=2)
    assert x.grad is None and y.grad is None


def test_hooks_run_one_at_a_time():
    x = leaf(1.0)
    inside: list[int] = []
    most = [0]

    def hook(g):
        inside.append(1)
        most[0] = max(most[0], len(inside))
        sum(range(2000))  # time enough for another worker to come in, if it could
        inside.pop()

    branches = [ad.sin(x * float(i)) for i in range(20)]
    for b in branches:
        b.register_hook(hook)
    sum((b.sum() for b in branches), ad.tensor(0.0)).backward(workers=4)
    assert most == [1]


def test_backward_inside_a_hook_inside_a_worker():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    loss, a, b = two_branches(x, y)
    barrier = meeting()
    other = leaf(5.0)
    threads: set[str] = set()

    def hook(g):
        threads.add(threading.current_thread().name)
        with ad.enable_grad():
            sum((ad.sin(other * float(i)) for i in range(6)), other).sum().backward(workers=2)

    a.register_hook(hook)
    b.register_hook(hook)
    loss.backward(workers=2)
    assert not barrier.broken and x.grad.tolist() == [18.0, 24.0]
    expected = 1 + sum(i * np.cos(5.0 * i) for i in range(6))
    np.testing.assert_allclose(other.grad.numpy(), [2 * expected])


def test_a_graph_that_records_itself_runs_in_the_callers_thread():
    x, y = leaf(1.0), leaf(2.0)
    threads: set[str] = set()
    at_meeting.append(lambda: threads.add(threading.current_thread().name))
    loss, _, _ = two_branches(x, y)
    gx, _ = ad.gradients(loss, [x, y], create_graph=True, workers=4)
    assert threads == {threading.current_thread().name}
    assert ad.gradients(gx.sum(), [y], workers=4)[0].tolist() == [6.0]


# How many workers ------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "many", None])
def test_a_number_of_workers_that_is_none(workers):
    if workers is not None:
        with pytest.raises(errors.ArgumentError, match="workers must be a positive integer or 'auto'"):
            leaf(1.0).sum().backward(workers=workers)
    with pytest.raises(errors.ArgumentError, match="workers must be a positive integer or 'auto'"):
        ad.config.workers(workers)


def test_the_default_is_set_for_a_block_a_function_or_a_context():
    assert ad.config.get_workers() == 1
    with ad.config.workers(3):
        assert ad.config.get_workers() == 3
        with ad.config.workers("auto"):
            assert ad.config.get_workers() == "auto"
        assert ad.config.get_workers() == 3
    assert ad.config.workers(2)(ad.config.get_workers)() == 2
    ad.config.set_workers(4)
    try:
        assert ad.config.get_workers() == 4
    finally:
        ad.config.set_workers(1)


@pytest.mark.parametrize("nodes", [0, 1, 5000])
def test_more_workers_than_nodes_and_more_nodes_than_workers(nodes):
    x = leaf(1.0)
    y = x
    for _ in range(nodes):
        y = y + 1.0
    y.reshape(1).backward(workers=64)
    assert x.grad.tolist() == [1.0]


def wide(branches: int, size: int, depth: int = 3) -> ad.Tensor:
    total = ad.tensor(0.0)
    for _ in range(branches):
        y = ad.ones(size).requires_grad_()
        for _ in range(depth):
            y = ad.sin(y)
        total = total + y.sum()
    return total


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (partial(wide, 8, 200_000), 2),
        (partial(wide, 1, 200_000), 1),  # nothing to do at the same time
        (partial(wide, 2, 60_000, 1), 1),  # too little
        (partial(wide, 8, 1000), 1),
    ],
)
def test_auto_takes_as_many_workers_as_pay(monkeypatch, loss, expected):
    monkeypatch.setattr(auto, "processors", lambda: 2)
    assert auto.workers_worth(make_plan([loss()._node])) == expected


def test_auto_runs_small_graphs_in_one_thread_and_large_ones_in_several(monkeypatch):
    monkeypatch.setattr(auto, "processors", lambda: 2)
    asked: list[int] = []

    def run(plan, run, workers):
        asked.append(workers)
        parallel.run_serial(plan, run)

    monkeypatch.setattr(auto, "run_parallel", run)
    wide(8, 1000).backward(workers="auto")
    assert asked == []
    wide(8, 200_000, 1).backward(workers="auto")
    assert asked == [2]


@pytest.mark.parametrize(("threads", "expected"), [(True, 1), (False, 2)])
def test_auto_leaves_products_to_the_threads_of_blas(monkeypatch, threads, expected):
    monkeypatch.setattr(auto, "processors", lambda: 2)
    monkeypatch.setattr(auto, "blas_has_threads", lambda: threads)
    w = ad.ones((300, 300)).requires_grad_()
    plan = make_plan([sum(((w @ w).sum() for _ in range(4)), ad.tensor(0.0))._node])
    assert auto.workers_worth(plan) == expected


@pytest.mark.parametrize("count", ["1", "4"])
def test_the_threads_of_blas_are_known_without_threadpoolctl(monkeypatch, count):
    monkeypatch.setattr(auto, "_blas", lambda: None)
    for name in auto._BLAS_VARIABLES:
        monkeypatch.setenv(name, count)
    assert auto.blas_has_threads() == (count != "1")


def test_the_threads_of_blas_are_known_from_threadpoolctl():
    control = pytest.importorskip("threadpoolctl")
    with control.threadpool_limits(1, user_api="blas"):
        assert not auto.blas_has_threads()


def test_auto_with_an_op_of_several_outputs():
    x = ad.ones(200_000).requires_grad_()
    low, high = rec.halves(x)
    (low.sum() + high.sum()).backward(workers="auto")
    assert x.grad[:2].tolist() == [0.75, 0.75]


# Leaf-ready events -----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
def test_each_leaf_is_ready_once_with_its_total(workers):
    x, y, z = leaf(1.0, 2.0), leaf(3.0, 4.0), leaf(5.0)
    y.register_hook(lambda g: g * 10.0)
    ready: list[tuple[ad.Tensor, Any]] = []
    loss = (x * y).sum() + (x + x).sum() + z.sum()
    assert loss.backward(workers=workers, on_leaf_ready=lambda t, g: ready.append((t, g.tolist()))) is None
    found = {id(t): g for t, g in ready}
    assert len(ready) == 3
    assert [found[id(t)] for t in (x, y, z)] == [[5.0, 6.0], [10.0, 20.0], [1.0]]
    assert [t.grad.tolist() for t in (x, y, z)] == [[5.0, 6.0], [10.0, 20.0], [1.0]]


def test_leaves_are_ready_before_the_rest_has_run():
    early, late = leaf(1.0), leaf(2.0)
    order: list[str] = []
    middle = late * 2.0
    middle.register_hook(lambda g: order.append("middle"))
    (middle * early).sum().backward(
        on_leaf_ready=lambda t, g: order.append("early" if t is early else "late")
    )
    assert order == ["early", "middle", "late"]


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_taken_is_not_stored(workers):
    x, y = leaf(1.0), leaf(2.0)
    posts: list[ad.Tensor] = []
    x.register_post_accumulate_grad_hook(posts.append)
    y.register_post_accumulate_grad_hook(posts.append)
    (x * y).sum().backward(workers=workers, on_leaf_ready=lambda t, g: t is x)
    assert x.grad is None and y.grad.tolist() == [1.0] and posts == [y]
    store = ad.backward((x * y).sum(), workers=workers, on_leaf_ready=lambda t, g: t is x)
    assert list(store) == [y]


def test_a_leaf_that_is_the_root_is_ready_too():
    x = leaf(1.0)
    seen: list[Any] = []
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
    x.backward(on_leaf_ready=lambda t, g: seen.append(g.tolist()))
    assert seen == [[1.0], [1.0]]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_gradient_that_a_callback_keeps_or_changes_is_not_the_one_in_grad(workers):
    x, y = leaf(3.0), leaf(5.0)
    kept = {}

    def keep(t: ad.Tensor, g: ad.Tensor) -> None:
        if t is x:
            kept[t] = g
        else:
            with ad.no_grad():
                g *= 100.0

    (x * y).sum().backward(workers=workers, on_leaf_ready=keep)
    assert x.grad is not kept[x]
    with ad.no_grad():
        x.grad *= 2.0
    assert (x.grad.tolist(), kept[x].tolist(), y.grad.tolist()) == ([10.0], [5.0], [3.0])
    (x * y).sum().backward(workers=workers, on_leaf_ready=lambda t, g: None)
    assert (x.grad.tolist(), y.grad.tolist()) == ([15.0], [6.0])


@pytest.mark.parametrize("workers", [1, 2])
def test_leaves_with_several_edges_are_ready_once(workers):
    x, y = leaf(3.0), leaf(5.0)
    ready = []
    loss = (x * x + y * x).sum()
    loss.backward(workers=workers, on_leaf_ready=lambda t, g: ready.append((t, g.tolist())))
    assert sorted(g for _, g in ready) == [[3.0], [11.0]]
    assert {t for t, _ in ready} == {x, y}


@pytest.mark.parametrize("workers", [1, 2])
def test_roots_that_are_leaves_run_their_hooks_once(workers):
    x = leaf(3.0)
    seen = []
    x.register_hook(lambda g: seen.append(g.tolist()))
    (g,) = ad.gradients([x, x, x * x], [x], [[1.0], [1.0], [1.0]], workers=workers)
    assert g.tolist() == [8.0] and seen == [[8.0]]


def test_the_optimiser_in_backward_frees_each_gradient():
    path = Path(__file__).parents[2] / "examples" / "optimizer_in_backward.py"
    usual, inside = runpy.run_path(str(path))["main"]()
    assert inside < usual / 3  # two gradients at a time instead of twelve


def test_an_error_says_which_leaves_were_taken():
    early, late = leaf(1.0), leaf(2.0)

    def fail(g):
        raise ValueError("no")

    middle = late * 2.0
    middle.register_hook(fail)
    with pytest.raises(ValueError, match="no") as info:
        (middle * early).sum().backward(on_leaf_ready=lambda t, g: True)
    assert info.value.__notes__ == [
        "1 gradients were already passed to on_leaf_ready (shapes (1,)); no other .grad has changed."
    ]
    assert early.grad is None and late.grad is None


@pytest.mark.parametrize("backward", [ad.Tensor.backward, ad.backward])
def test_what_cannot_be_called_for_a_leaf_is_refused_at_the_call(backward):
    x = ad.tensor([1.0], requires_grad=True)
    loss = (x * x).sum()
    with pytest.raises(ad.errors.InputError) as caught:
        backward(loss, on_leaf_ready=3)
    assert str(caught.value) == "backward: on_leaf_ready must be a function (leaf, grad), not int."
    backward(loss)  # nothing was released


def test_numpys_whole_numbers_are_numbers_of_workers():
    x = ad.tensor([1.0], requires_grad=True)
    (x * x).sum().backward(workers=np.int64(2))
    assert x.grad.tolist() == [2.0]
    with ad.config.workers(np.int32(2)), ad.config.threads(np.int64(3)):
        assert (ad.config.get_workers(), ad.config.get_threads()) == (2, 3)
        assert type(ad.config.get_workers()) is int
    for bad in (np.array([2]), np.int64(0), True, 2.0):
        with pytest.raises(ad.errors.ArgumentError, match="workers must be a positive integer or 'auto'"):
            (x * x).sum().backward(workers=bad)


@pytest.mark.parametrize("workers", [1, 2])
def test_hooks_run_without_grad_mode_and_under_the_error_state_of_the_backward(workers):
    x = ad.tensor([1.0], requires_grad=True)
    seen = []
    x.register_hook(
        lambda g: seen.append((ad.is_grad_enabled(), np.geterr()["divide"], np.geterr()["invalid"]))
    )
    with np.errstate(all="raise"):
        (x * x).sum().backward(workers=workers)
        (x * x).sum().backward(create_graph=True)
    assert seen == [(False, "ignore", "ignore"), (True, "ignore", "ignore")]
