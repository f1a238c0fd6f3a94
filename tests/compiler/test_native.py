"""Backends of ``ad.compile``: when native code is used, what it reports, and its errors."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim
from adjoint.compiler.host import native
from adjoint.compiler.lower.graph import Primitive
from adjoint.compiler.replay import replay
from adjoint.compiler.schedule.memory import _ORDERS, Memory, _Block, _spread
from adjoint.errors import ArgumentError, IndexingError

pytest.importorskip("llvmlite")


def test_auto_is_native_from_the_second_call_on() -> None:
    f = ad.compile(lambda x: ad.tanh(x).sum())
    x = np.linspace(-1, 1, 9)
    first = f(x)
    variant = f._variants[0]
    assert variant.native is None
    assert float(f(x)) == pytest.approx(float(first), rel=1e-14)
    assert variant.native is not None and f.stats()["traces"] == 1


def test_auto_is_replay_without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    import adjoint.compiler.api.variant as module

    monkeypatch.setattr(module, "has_llvm", lambda: False)
    f = ad.compile(lambda x: ad.tanh(x))
    for _ in range(3):
        f(np.ones(3))
    assert f._variants[0].native is None
    assert "pip install '.[compile]' in a clone" in f.explain()


def test_programs_without_kernels_stay_replay() -> None:
    f = ad.compile(lambda x: ad.linalg.svdvals(x))
    for _ in range(3):
        f(np.eye(3))
    assert f._variants[0].native is None


def test_native_code_that_cannot_be_made_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(program: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(native, "build", fail)
    f = ad.compile(lambda x: x * 2)
    f(np.ones(2))
    with pytest.warns(UserWarning, match="could not be compiled to native code, so NumPy runs it"):
        assert f(np.ones(2)).tolist() == [2.0, 2.0]
    assert f(np.ones(2)).tolist() == [2.0, 2.0]


def test_unknown_backends_are_errors() -> None:
    with pytest.raises(ArgumentError, match="backend must be one of auto, native, replay, but got 'gpu'"):
        ad.compile(lambda x: x, backend="gpu")


def test_explain() -> None:
    m = nn.Sequential(nn.Linear(8, 16, rng=0), nn.Tanh(), nn.Linear(16, 4, rng=1))
    f = ad.compile(lambda x: ad.special.dawsn(ad.softmax(m(x), axis=-1)).sum(), backend="native")
    x = np.ones((2, 8), "f")
    text = f.explain(x)
    head, *lines = text.split("\n")
    assert "1 call of NumPy" in head and "read and written" in head
    timed = r" +\d+\.\d [µm]s +\d+ B  "
    assert any(re.match(timed + r"product  \[2, 16\] +linear, tanh", line) for line in lines)
    assert any(re.match(r" +\d+\.\d [µm]s +NumPy    dawsn: dawsn has no native form", line) for line in lines)
    f(x)
    times = r"\d+\.\d .s"
    assert re.sub(times, "", f.explain()).split() == re.sub(times, "", text).split()


def test_explain_changes_nothing_and_shows_calls_that_cannot_be_timed() -> None:
    state = ad.tensor(np.eye(4) + 1)

    @ad.compile(backend="native")
    def f() -> Any:
        state.copy_(state * 2.0)
        return ad.linalg.cholesky(state - 100.0 + 0j) @ state

    before = state.tolist()
    with pytest.raises(np.linalg.LinAlgError):
        f()
    text = f.explain()  # random numbers have no root
    assert state.tolist() == before
    assert re.search(r" – +NumPy    cholesky", text)


@pytest.mark.parametrize("size", [4, 1_000_000])  # the second one runs in several threads
def test_flush_takes_subnormal_numbers_as_zero(size: int) -> None:
    x = np.resize(np.array([1e-40, 2e-38, -3e-39, 1.0], "f"), size)
    half = x * np.float32(0.5)
    kept, flushed = (
        ad.compile(lambda x: ad.tanh(x) * 0 + x * 0.5, backend="native", flush=f)(x) for f in (False, True)
    )
    assert np.array_equal(kept, half)
    assert np.array_equal(flushed, np.where(np.abs(half) < np.finfo(np.float32).tiny, 0, half))
    assert np.array_equal(x * np.float32(0.5), half)  # the mode of the thread is as before


def test_index_out_of_range_raises_as_in_eager_mode_and_writes_nothing() -> None:
    table = ad.tensor(np.arange(12.0).reshape(4, 3), requires_grad=True)
    state = ad.tensor(np.zeros(3))

    @ad.compile(backend="native")
    def f(i: Any) -> Any:
        rows = ad.take(table, i, axis=0)
        state.copy_(rows.detach().sum(axis=0))
        return rows.sum()

    assert float(f(np.array([1, -1]))) == 42.0
    before = state.tolist()
    with pytest.raises((IndexingError, IndexError)):
        f(np.array([1, 4]))
    assert state.tolist() == before
    assert float(f(np.array([0]))) == 3.0


@pytest.mark.parametrize("make", [lambda a: a.T, lambda a: a[::2], lambda a: a[::-1], lambda a: a[:, 1:]])
def test_arguments_may_have_any_strides(make: Any) -> None:
    a = make(np.random.default_rng(0).normal(size=(6, 6)))
    f = ad.compile(lambda x: (ad.exp(x) @ ad.matrix_transpose(x)).sum(axis=0), backend="native")
    for _ in range(2):
        np.testing.assert_allclose(f(a), (np.exp(a) @ a.T).sum(axis=0), rtol=1e-13)


def test_threads_share_a_program() -> None:
    f = ad.compile(lambda x: ad.tanh(x @ x).sum(axis=0), backend="native")
    x = np.random.default_rng(0).normal(size=(64, 64))
    wanted = np.asarray(f(x)).tobytes()
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(20):
            if np.asarray(f(x)).tobytes() != wanted:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_step_builds_in_linear_size() -> None:
    """Equal layers share their kernels, and every parameter adds as many groups as the last."""
    counts = []
    for depth in (4, 8, 16):
        m = nn.Sequential(*[layer for k in range(depth) for layer in (nn.Linear(8, 8, rng=k), nn.Tanh())])
        o = optim.Adam(m.parameters(), lr=0.001)

        @ad.compile(backend="native")
        def step(x: Any, m: Any = m, o: Any = o) -> Any:
            o.zero_grad()
            loss = (m(x) ** 2).sum()
            loss.backward()
            o.step()
            return loss

        step(np.ones((4, 8), "f"))
        program = step._variants[0].native
        counts.append((len(program.kernels), len({k.text for _, k in program.kernels})))
    assert counts[2][0] - counts[1][0] == 2 * (counts[1][0] - counts[0][0])
    assert counts[0][1] == counts[2][1]


def test_floats_and_trees_as_arguments() -> None:
    w = ad.tensor(np.ones(3), requires_grad=True)

    @ad.compile
    def step(given: Any, rate: float) -> Any:
        loss = (w * given["x"]).sum() * rate
        loss.backward()
        with ad.no_grad():
            w.copy_(w - rate * w.grad)
        w.grad = None
        return loss

    other = ad.tensor(np.ones(3), requires_grad=True)
    for k in range(4):
        rate = 0.1 * (k + 1)
        step({"x": np.full(3, 2.0)}, rate)
        other = ad.tensor(other.numpy() - rate * 2.0 * rate)
    np.testing.assert_allclose(w.detach().numpy(), other.numpy(), rtol=1e-14)
    assert step.stats()["traces"] == 1 and step._variants[0].native is not None


def test_moving_averages_are_part_of_the_kernel_of_the_gradient() -> None:
    rng = np.random.default_rng(0)
    a, b, m, v = (rng.normal(size=(5, 8, 8)) for _ in range(4))

    @ad.compile(backend="native")
    def update(a: Any, b: Any, m: Any, v: Any) -> Any:
        g = a @ b
        return 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g

    found = update(a, b, m, v)
    np.testing.assert_allclose(found[0], 0.9 * m + 0.1 * (a @ b))
    np.testing.assert_allclose(found[1], 0.99 * v + 0.01 * (a @ b) ** 2)
    assert update.explain().startswith("1 kernel,")


def test_explain_lists_the_kernels_of_a_step() -> None:
    w = np.random.default_rng(0).normal(size=(32, 32)) / 8

    @ad.compile(backend="native")
    def run(x: Any) -> Any:
        return ad.scan(lambda c, row: (ad.tanh(c @ w + row), c.sum(1)), ad.zeros((16, 32)), x)

    x = np.random.default_rng(1).normal(size=(12, 32))
    before = run(x)
    loop, *step = run.explain().splitlines()[1:]
    assert re.search(r"steps +\[12\] +scan$", loop)
    assert any(re.search(r"   product +\[16, 32\] +matmul, add, tanh$", line) for line in step)
    assert all(re.match(r" *[\d.]+ µs +\S+ \S+    \w", line) for line in step)
    for a, b in zip(run(x), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_memory_of_the_arena_is_reused_in_parts_and_never_shared() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        arena, blocks = Memory([], set(), [], []), []
        for _ in range(200):
            first = int(rng.integers(300))
            size = 64 * int(rng.choice([1, 8, 1024, 2048, 3072, 5000]))
            blocks.append(_Block(size, first, first + int(rng.integers(20)), None))
        total, places = arena._in_order(blocks)
        for b, (at, _) in zip(blocks, places, strict=True):
            assert at >= 0 and at + b.size <= total and not at % 64
            for c, (other, _) in zip(blocks, places, strict=True):
                apart = c.last < b.first or b.last < c.first or at + b.size <= other or other + c.size <= at
                assert c is b or apart
        most = max(sum(b.size for b in blocks if b.first <= k <= b.last) for k in range(320))
        assert most <= total < 2 * most
    arena = Memory([], set(), [], [])
    arena._find_regions({(0, 64), (64, 128), (128, 128), (256, 64), (256, 192)})
    assert arena.region == {
        0: 0,
        64: 64,
        128: 64,
        256: 256,
    }  # blocks that overlap are compared with each other


def test_a_plan_of_all_blocks_shares_no_memory_at_a_time() -> None:
    rng, inside = np.random.default_rng(3), 0
    for _ in range(30):
        memory = Memory([], set(), [], [])
        lent = [
            Primitive("copy", (), None, (int(n),), np.dtype(np.float32)) for n in rng.integers(0, 9000, 3)
        ]
        memory.made = {n.id: int(k) for n, k in zip(lent, rng.integers(0, 40, 3), strict=True)}
        blocks, after = [], int(rng.integers(0, 10))
        for _ in range(40):
            size, first = 64 * int(rng.choice([1, 8, 80, 128, 500])), int(rng.integers(0, 40))
            node = (
                Primitive("copy", (), None, (size // 4,), np.dtype(np.float32))
                if rng.random() < 0.7
                else None
            )
            last = first + int(rng.integers(0, 9)) if node is not None else first
            blocks.append(_Block(size, first, last, node))
        sizes: list[int] = []
        for order in _ORDERS:
            size, places = memory._plan(blocks, order, lent, after)
            compact = list(places)
            _spread(blocks, places, size)
            for found in (compact, places):
                _check_plan(blocks, found, size, memory.made, after)
            sizes.append(size)
            inside += sum(output is not None for _, output in places)
        busy = [sum(b.size for b in blocks if b.first <= k <= b.last) for k in range(50)]
        assert min(sizes) < 1.3 * max(busy)
    assert inside > 0


def _check_plan(blocks: Any, places: Any, size: int, made: dict[int, int], after: int) -> None:
    for k, (b, (at, output)) in enumerate(zip(blocks, places, strict=True)):
        end = size if output is None else output.size * 4
        assert at >= 0 and at + b.size <= end and not at % 64
        if output is not None:  # it is needed only before the output is made
            assert b.node is not None and after <= b.first and b.last < made[output.id]
        for c, (other, where) in zip(blocks[:k], places, strict=False):
            if where is output and b.first <= c.last and c.first <= b.last:
                assert at + b.size <= other or other + c.size <= at


def test_the_replay_of_a_failed_check_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    f = ad.compile(lambda x, i: ad.special.dawsn(ad.tanh(ad.take(x, i, axis=0))), backend="native")
    x = ad.tensor(np.arange(3.0))
    f(x, np.array([0, 2]))
    (variant,) = f._variants
    built: list[Any] = []
    build = replay.build

    def counted(program: Any, *options: Any, **more: Any) -> Any:
        built.append(program)
        return build(program, *options, **more)

    monkeypatch.setattr(replay, "build", counted)
    for _ in range(3):
        with pytest.raises(IndexError):
            f(x, np.array([0, 7]))
    assert sum(program is variant.program for program in built) == 1
