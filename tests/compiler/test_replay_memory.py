"""Programs that NumPy runs reuse the memory of their own values, and never memory that a user can see."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from by_replay import by_replay as by_replay
from hostile import trial
from hypothesis import given, settings
from hypothesis import strategies as st

import adjoint as ad
from adjoint.compiler.replay import phrases, replay, tables
from adjoint.ops import elementwise
from adjoint.threads import spread

N = 4
VIEWS = [
    lambda a: a.mT,
    lambda a: a.reshape((N, N)),
    lambda a: ad.flip(a, 0),
    lambda a: a[:, ::-1],
    lambda a: ad.broadcast_to(a[:1], (N, N)),
    lambda a: a.detach(),
    lambda a: a,
]
UNARY = [
    ad.tanh,
    ad.exp,
    ad.sin,
    ad.abs,
    ad.sqrt,
    lambda a: -a,
    lambda a: a * 0.5,
    lambda a: 1.0 - a,
    ad.relu,
]
BINARY = [ad.add, ad.subtract, ad.multiply, ad.maximum, lambda a, b: a / (b * b + 1.0), lambda a, b: a @ b]
LAYOUTS = [np.ascontiguousarray, np.asfortranarray, lambda a: np.repeat(a, 2, 1)[:, ::2], np.float32]

Plan = list[tuple[int, int, int, int]]
entries = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3), st.integers(0, 20))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make programs look for memory to reuse for arrays of any size."""
    for module in (replay, elementwise, tables):
        monkeypatch.setattr(module, "LARGE", 1)
    monkeypatch.setattr(phrases, "_SPREAD", 1)
    monkeypatch.setattr(spread, "COSTLY_SIZE", 4)  # so that threads compute parts of these arrays
    monkeypatch.setattr(tables, "_FEW", 0)


def function(plan: Plan, kept: list[int]) -> Any:
    """Return a function of three tensors that returns some of the values of a plan, and views of them."""

    def f(*given: Any) -> Any:
        values = list(given)
        for kind, i, j, n in plan:
            a, b = values[-1 - i % len(values)], values[-1 - j % len(values)]
            table: Any = (VIEWS, UNARY, BINARY)[kind]
            values.append(table[n % len(table)](*((a, b) if kind == 2 else (a,))))
        return [values[k % len(values)] for k in kept] + [values[-1] + values[-2] * values[-3]]

    return f


def total(f: Any) -> Any:
    def summed(*given: Any) -> Any:
        return sum((v * v).sum() for v in [*given, *f(*given)])

    return summed


def described(values: Any) -> list[Any]:
    arrays = [np.asarray(v) for v in values]
    return [(a.dtype, a.shape, a.strides, a.tobytes()) for a in arrays]


@given(
    st.lists(entries, min_size=2, max_size=14),
    st.lists(st.integers(0, 30), max_size=3),
    st.integers(0, 1000),
    st.lists(st.sampled_from(range(len(LAYOUTS))), min_size=3, max_size=3),
)
@settings(max_examples=30, deadline=None)
def test_random_functions(plan: Plan, kept: list[int], seed: int, layouts: list[int]) -> None:
    f = function(plan, kept)
    r = np.random.default_rng(seed)
    given = [LAYOUTS[k](r.uniform(0.1, 1, (N, N))) for k in layouts]
    before = described(given)
    sides = {
        "values": (lambda g, x: [t.numpy() for t in g(*map(ad.asarray, x))], f),
        "gradient": (lambda g, x: ad.grad(g, (0, 1, 2))(*x), total(f)),
        "recorded": (_recorded, total(f)),
        "twice": (_twice, total(f)),
    }
    with np.errstate(all="ignore"):
        for name, (run, g) in sides.items():
            wanted = run(g, given)
            compiled = ad.compile(g, backend="replay")
            inside = ad.compile(lambda *x, g=g: ad.grad(g, (0, 1, 2))(*x), backend="replay")
            found = [run(compiled, given) for _ in range(3)]  # what was returned is not written to later
            if name == "gradient":
                found += [inside(*given) for _ in range(2)]
            for each in found:
                assert described(each) == described(wanted), name
            assert described(given) == before, name


def _recorded(g: Any, arrays: Any) -> Any:
    """Return the gradients of tensors that outlive two backwards of one graph."""
    leaves = [ad.tensor(a, requires_grad=True) for a in arrays]
    out = g(*leaves)
    out.backward(retain_graph=True)
    out.backward()
    return [t.grad.numpy() for t in leaves if t.grad is not None]


def _twice(g: Any, arrays: Any) -> Any:
    """Return second derivatives."""
    leaves = [ad.tensor(a, requires_grad=True) for a in arrays]
    slopes = ad.gradients(g(*leaves), leaves, create_graph=True)
    return [s.numpy() for s in (*slopes, *ad.gradients(sum(s.sum() for s in slopes), leaves))]


@given(st.integers(0, 2**31 - 1))
@settings(max_examples=15, deadline=None)
def test_random_worlds(seed: int) -> None:
    assert trial(seed, "replay") == ""


def test_an_error_in_the_middle_changes_nothing() -> None:
    @ad.compile(backend="replay")
    def f(x: Any, y: Any) -> Any:
        a = x * y
        b = a + y
        return ad.exp(b * 1000.0) * a.mT

    x, y = ad.tensor(np.full((N, N), 0.1)), ad.tensor(np.full((N, N), 0.2))
    wanted = f(x, y).numpy()
    again = wanted.copy()
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        f(x * 100.0, y)
    assert np.array_equal(x.numpy(), np.full((N, N), 0.1))
    assert np.array_equal(y.numpy(), np.full((N, N), 0.2))
    assert np.array_equal(wanted, again)
    assert np.array_equal(f(x, y).numpy(), again)


def test_values_that_die_are_written_over() -> None:
    @ad.compile(backend="replay")
    def f(x: Any) -> Any:
        a = x * 2.0
        for _ in range(10):
            a = ad.sqrt((a + x) * 0.5)
        return a

    x = ad.tensor(np.ones(10_000))
    for _ in range(2):
        f(x)
    tracemalloc.start()
    try:
        kept = f(x)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert kept.size == 10_000
    assert peak < 1.5 * x.numpy().nbytes


def test_in_place_writes_of_rules_keep_the_layout() -> None:
    """The rule of a layer norm writes ``dx -= …``; sums round by the layout of ``dx``, here column-major."""
    rng = np.random.default_rng(0)
    w = ad.tensor(rng.normal(size=(65, 65)), requires_grad=True)
    v = ad.tensor(rng.normal(size=(65, 31)), requires_grad=True)
    scale, bias, b = (ad.tensor(rng.normal(size=65), requires_grad=True) for _ in range(3))

    def gradients(x: Any) -> Any:
        h = ad.nn.functional.layer_norm(x @ w + b, (65,), scale, bias)
        loss = ((ad.swapaxes(v, 0, 1) @ ad.swapaxes(h, 0, 1)).T ** 2).mean()
        return ad.gradients(loss, [w, v, scale, bias, b])

    x = ad.tensor(rng.normal(size=(9, 65)))
    for found, wanted in zip(ad.compile(gradients, backend="replay")(x), gradients(x), strict=True):
        assert np.array_equal(found.numpy(), wanted.numpy())
