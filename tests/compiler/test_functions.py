"""Compiled functions: what they take and return, what is guarded, what is an error."""

from __future__ import annotations

import io
import itertools
import random
import re
import sys
import types
import warnings
from typing import Any

import numpy as np
import pytest
from by_replay import by_replay as by_replay
from steps import state_of

import adjoint as ad
from adjoint import nn, optim
from adjoint.compiler.guards.effects import _position
from adjoint.errors import ArgumentError, GraphReleasedError, InputError, ModifiedError, TransformError

X = np.random.default_rng(0).normal(size=(5, 3)).astype("f")


def same_bits(a: Any, b: Any) -> bool:
    x, y = np.asarray(a.detach().numpy()), np.asarray(b.detach().numpy())
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def test_arguments_may_be_trees() -> None:
    f = ad.compile(lambda p, scale, *, flip: p["w"] * scale + (1 if flip else 0) * p["b"][0])
    p = {"w": ad.tensor(X), "b": [np.ones(3, "f")], "name": "layer"}
    assert same_bits(f(p, 2.0, flip=True), ad.tensor(X) * 2.0 + np.ones(3, "f"))
    assert same_bits(f(p, 3.0, flip=True), ad.tensor(X) * 3.0 + np.ones(3, "f"))
    assert f.stats()["traces"] == 1  # a float is traced
    assert same_bits(f(p, 3.0, flip=False), ad.tensor(X) * 3.0 + 0 * np.ones(3, "f"))
    assert f.stats()["traces"] == 2


def test_floats_are_weak_and_computed_by_python() -> None:
    @ad.compile
    def f(x: Any, r: float) -> Any:
        return x * (1 - r**2 / 3), 2 * r

    for r in (0.1, 0.7, 1e-8):
        y, twice = f(ad.tensor(X), r)
        assert same_bits(y, ad.tensor(X) * (1 - r**2 / 3))
        assert twice == 2 * r
        assert type(twice) is float
    assert f.stats()["traces"] == 1


def test_static_arguments_are_part_of_the_key() -> None:
    @ad.compile(static="p")
    def f(x: Any, p: float) -> Any:
        return x if p < 0.5 else x * p

    assert same_bits(f(ad.tensor(X), p=0.1), ad.tensor(X))
    assert same_bits(f(ad.tensor(X), p=0.7), ad.tensor(X) * 0.7)
    assert f.stats()["traces"] == 2
    g = ad.compile(lambda x, n: x * n, static=1)
    g(ad.tensor(X), 1.0)
    g(ad.tensor(X), 2.0)
    assert g.stats()["reasons"][1] == "n changed from 1.0 to 2.0"


def test_results_have_the_structure_of_the_function() -> None:
    w = ad.tensor([1.0, 2.0])

    @ad.compile
    def f(x: Any) -> Any:
        return {"y": x + 1, "n": 3, "same": w, "x": x, "none": None, "pair": (x.sum(), "text")}

    x = ad.tensor([3.0, 4.0])
    for _ in range(2):
        out = f(x)
        assert out["same"] is w
        assert out["x"] is x
        assert (out["n"], out["none"], out["pair"][1]) == (3, None, "text")
        assert out["y"].tolist() == [4.0, 5.0]


def test_results_are_fresh_at_each_call() -> None:
    f = ad.compile(lambda x: (x * 2, x.reshape(-1)))
    data = np.arange(4.0).reshape(2, 2)
    first, flat = f(data)
    second, _ = f(data + 1)
    data[:] = 9
    assert first.tolist() == [[0.0, 2.0], [4.0, 6.0]]
    assert flat.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert second.tolist() == [[2.0, 4.0], [6.0, 8.0]]


def test_arrays_in_arrays_out() -> None:
    f = ad.compile(lambda x, r: {"y": ad.sin(x) * r, "sum": x.sum()})
    for _ in range(2):
        found = f(X, 2.0)
        assert type(found["y"]) is np.ndarray and type(found["sum"]) is np.float32
        assert np.array_equal(found["y"], np.sin(X) * np.float32(2.0))
        found["y"][0] = 7.0  # it is the caller's
    with ad.config.compiling("check"):
        assert type(f(X, 2.0)["y"]) is np.ndarray
    same = ad.compile(lambda x: x.T)
    assert not np.shares_memory(same(X), X)
    assert type(f(ad.tensor(X), 2.0)["y"]) is ad.Tensor
    assert type(ad.compile(lambda: ad.ones(2))()) is ad.Tensor
    w = ad.tensor(2.0, requires_grad=True)
    assert type(ad.compile(lambda x: x * w)(X)) is ad.Tensor
    seen: list[type] = []
    double = ad.compile(lambda x: x * 2)

    def inside(x: Any) -> Any:
        seen.append(type(double(X)))
        return x * 2

    ad.grad(inside)(1.0)
    assert seen == [ad.Tensor]


@pytest.mark.parametrize("method", ["L-BFGS-B", "SLSQP"])
def test_scipy_takes_compiled_functions(method: str) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    f = lambda x: (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
    found = optimize.minimize(ad.compile(ad.value_and_grad(f)), np.zeros(3), jac=True, method=method)
    np.testing.assert_allclose(found.x, np.ones(3), atol=1e-3)


def test_tensors_and_arrays_from_outside_are_read_at_each_call() -> None:
    w, a = ad.tensor([1.0, 2.0]), np.array([3.0, 4.0])
    f = ad.compile(lambda x: x * w + a + ad.tensor(a) * ad.asarray(a))
    assert f(1.0).tolist() == [13.0, 22.0]
    w.copy_([5.0, 6.0])
    a[0] = 0.0
    assert f(1.0).tolist() == [5.0, 26.0]
    assert f.stats()["traces"] == 1


def test_index_arrays_from_outside_are_compared() -> None:
    i = np.array([0, 2])
    f = ad.compile(lambda x: x[i])
    x = ad.tensor([1.0, 2.0, 3.0])
    assert f(x).tolist() == [1.0, 3.0]
    i[0] = 1
    assert f(x).tolist() == [2.0, 3.0]
    assert f.stats()["traces"] == 2


def test_an_index_may_be_an_argument() -> None:
    f = ad.compile(lambda x, i: x[i] * 2)
    x = ad.tensor([1.0, 2.0, 3.0])
    assert f(x, np.array([0, 2])).tolist() == [2.0, 6.0]
    assert f(x, np.array([1, 1])).tolist() == [4.0, 4.0]
    assert f.stats()["traces"] == 1


KEYS = {
    "x[i]": lambda x, i, j: x[i],
    "x[:, i]": lambda x, i, j: x[:, i],
    "x[..., i]": lambda x, i, j: x[..., i],
    "x[1:3, i, j]": lambda x, i, j: x[1:3, i, j],
    "x[j, :, j]": lambda x, i, j: x[j, :, j],
    "x[i, 1]": lambda x, i, j: x[i, 1],
    "x[0, :, i]": lambda x, i, j: x[0, :, i],
    "x[None, j, ..., j]": lambda x, i, j: x[None, j, ..., j],
    "x[:, None, j, j]": lambda x, i, j: x[:, None, j, j],
    "x[j[:, None], j]": lambda x, i, j: x[j[:, None], j],
}


@pytest.mark.parametrize("key", KEYS)
def test_tensors_as_indices(key: str) -> None:
    x = ad.tensor(np.random.default_rng(0).normal(size=(4, 5, 6)))
    i, j = ad.tensor([[0, 2, 2], [1, 1, -1]]), ad.tensor([3, 0, 0])
    pick = KEYS[key]

    def loss(x: Any, i: Any, j: Any) -> Any:
        y = pick(x, i, j)
        return (y * y.sin()).sum()

    assert same_bits(ad.compile(pick)(x, i, j), pick(x, i, j))
    assert same_bits(ad.compile(ad.grad(loss))(x, i, j), ad.grad(loss)(x, i, j))
    outside = ad.compile(ad.grad(lambda x: loss(x, i, j)))  # indices from outside are read at each call
    assert same_bits(outside(x), ad.grad(loss)(x, i, j))
    i.copy_([[1, 1, 1], [0, 0, 2]])
    assert same_bits(outside(x), ad.grad(loss)(x, i, j))
    assert outside.stats()["traces"] == 1
    batch = ad.stack([x, x * 2]), ad.stack([i, i * 0]), ad.stack([j, j * 0])
    each = ad.stack([pick(*(t[k] for t in batch)) for k in range(2)])
    assert same_bits(ad.vmap(pick)(*batch), each)


def test_tensors_made_inside_are_made_at_each_call() -> None:
    @ad.compile
    def f(x: Any) -> Any:
        total = ad.zeros(2)
        total += x
        total[0] = 7.0
        return total, ad.arange(3).sum()

    for k in range(3):
        total, three = f(ad.tensor([1.0, 2.0 + k]))
        assert total.tolist() == [7.0, 2.0 + k]
        assert three.item() == 3


def test_constants_made_inside_have_numbers() -> None:
    f = ad.compile(
        lambda x: x * ad.tensor([1.0, 2.0]).sum().numpy().max() if False else x * ad.tensor(3.0).item()
    )
    assert f(ad.tensor([1.0])).tolist() == [3.0]


SCALE = 2.0
LIST = [1.0]


class Config:
    rate = 0.5


config = Config()


def helper(x: Any) -> Any:
    return x * SCALE


def test_plain_data_that_the_code_reads_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    factor = 3.0

    @ad.compile
    def f(x: Any) -> Any:
        return helper(x) * factor * config.rate + sum(LIST)

    x = ad.tensor([1.0])
    assert f(x).tolist() == [4.0]
    factor = 5.0
    assert f(x).tolist() == [6.0]
    monkeypatch.setattr(config, "rate", 1.0)
    assert f(x).tolist() == [11.0]
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    assert f(x).tolist() == [6.0]
    monkeypatch.setitem(globals(), "LIST", [2.0])
    assert f(x).tolist() == [7.0]
    LIST.append(1.0)
    assert f(x).tolist() == [8.0]
    assert [r.rpartition(": ")[2] for r in f.stats()["reasons"]] == [
        "it was the first call", "factor changed", "config.rate changed", "SCALE changed", "LIST changed",
        "LIST changed",
    ]  # fmt: skip
    assert f(x).tolist() == [8.0]
    assert f.stats()["traces"] == 6


def test_attributes_of_modules_are_guarded() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(3, 3, rng=0)
            self.power = 1
            self.sizes = [1]

        def forward(self, x: Any) -> Any:
            return self.inner(x) ** self.power * sum(self.sizes)

    m = Block()
    f = ad.compile(m)
    x = ad.tensor(X)
    with ad.no_grad():
        assert same_bits(f(x), m(x))
        m.power = 2
        assert same_bits(f(x), m(x))
        m.sizes.append(4)
        assert same_bits(f(x), m(x))
        m.inner.weight = nn.Parameter(np.ones((3, 3), "f"))
        assert same_bits(f(x), m(x))
        m.inner = nn.Linear(3, 3, rng=1)
        assert same_bits(f(x), m(x))
    assert [r.rpartition(".")[2] for r in f.stats()["reasons"][1:]] == [
        "power changed", "sizes changed", "weight changed", "inner changed",
    ]  # fmt: skip


def test_shapes_and_dtypes_have_their_own_programs() -> None:
    f = ad.compile(lambda x: x.sum())
    for n in (3, 2, 3, 2, 7):
        assert f(np.ones(n)).item() == n
    assert f.stats()["traces"] == 3
    assert f.stats()["reasons"][1] == "x changed from float64[3] to float64[2]"
    assert f(np.ones(3, "f")).dtype == np.float32


def test_only_so_many_programs_are_kept() -> None:
    f = ad.compile(lambda x: x.sum(), limit=2)
    f(np.ones(1))
    f(np.ones(2))
    with pytest.warns(UserWarning, match="was traced 3 times, but at most 2 programs can be kept"):
        f(np.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(np.ones(1))
    assert len(f.stats()["programs"]) == 2
    f.clear()
    assert f.stats()["traces"] == 0


def test_the_grad_mode_and_the_default_dtype_have_their_own_programs() -> None:
    w = ad.tensor([2.0], requires_grad=True)
    f = ad.compile(lambda x: x * w * ad.asarray(0.5))
    assert f(1.0).requires_grad
    with ad.no_grad():
        assert not f(1.0).requires_grad
    assert f.stats()["reasons"][1] == "the grad mode changed"


@pytest.mark.parametrize(
    "wants_numbers",
    [
        lambda x: x.item(),
        lambda x: float(x),
        lambda x: x if x > 0 else -x,
        lambda x: x.numpy(),
        lambda x: x.tolist(),
        lambda x: np.asarray(x),
        lambda x: ad.tensor([1.0, 2.0])[x > 0],
        lambda x: ad.unique(x),
        lambda x: f"{x:.2f}",
        lambda x: range(int(x)),
    ],
)
def test_values_that_python_wants_are_errors(wants_numbers: Any) -> None:
    f = ad.compile(wants_numbers)
    with pytest.raises((InputError, TransformError, ad.errors.AdjointError)):
        f(ad.tensor(1.0))
    assert f.stats()["traces"] == 0


def test_a_float_argument_in_a_condition_is_guarded() -> None:
    @ad.compile
    def f(x: Any, p: float) -> Any:
        return x if p > 0.5 else -x

    x = ad.tensor(1.0)
    assert [f(x, p).item() for p in (0.7, 0.8, 0.2, 0.1, 0.9)] == [1.0, 1.0, -1.0, -1.0, 1.0]
    _, second = f.stats()["reasons"]
    assert re.fullmatch(r".*test_functions\.py:\d+ reads the value of a number.*", second)


class Sampler:
    """An object with a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def sample(self) -> Any:
        return self.rng.normal()


GENERATOR, SAMPLER, STREAMS = np.random.default_rng(0), Sampler(), {"a": random.Random(0)}


@pytest.mark.parametrize(
    "draw",
    [
        lambda: np.random.rand(), lambda: random.random(), lambda: GENERATOR.normal(), lambda: SAMPLER.sample(),
        lambda: SAMPLER.rng.random(), lambda: STREAMS["a"].random(),
    ],
)  # fmt: skip
def test_draws_of_other_generators_are_errors(draw: Any) -> None:
    before = GENERATOR.bit_generator.state, SAMPLER.rng.bit_generator.state, STREAMS["a"].getstate()
    f = ad.compile(lambda x: x * draw())
    for _ in range(2):
        with pytest.raises(TransformError, match=r"ad\.random"):
            f(ad.tensor(1.0))
    assert before == (GENERATOR.bit_generator.state, SAMPLER.rng.bit_generator.state, STREAMS["a"].getstate())


def test_a_generator_that_is_an_argument() -> None:
    f = ad.compile(lambda x, rng: x + rng.normal(size=2))
    with pytest.raises(TransformError, match=r"ad\.random"):
        f(ad.tensor(1.0), np.random.default_rng(0))
    a, b = ad.random.default_rng(0), ad.random.default_rng(0)
    for _ in range(3):
        assert f(ad.tensor(1.0), a).tolist() == (1.0 + b.normal(size=2)).tolist()


def test_a_generator_made_inside_starts_again_at_each_call() -> None:
    outer = ad.random.default_rng(3)

    def f(x: Any) -> Any:
        rng = ad.random.default_rng(0)
        return x + rng.normal(size=2) + rng.uniform(size=2) + outer.at(7).normal(size=2) + outer.random(2)

    compiled = ad.compile(f)
    for _ in range(3):
        state = outer.state
        expected = f(ad.zeros(2)).tolist()
        outer.state = state
        assert compiled(ad.zeros(2)).tolist() == expected
    fresh = ad.compile(lambda x: x + ad.random.default_rng().normal(size=2))
    assert fresh(ad.zeros(2)).tolist() != fresh(ad.zeros(2)).tolist()
    for use in (lambda: outer.spawn(1), lambda: outer.state, lambda: setattr(outer, "state", {})):
        with pytest.raises(TransformError, match=r"Generator\.\w+ cannot be used inside ad\.compile"):
            ad.compile(lambda x, use=use: (use(), x)[1])(ad.tensor(1.0))


ITERATORS: dict[str, Any] = {
    "list": lambda: iter([1, 2, 3]),
    "generator": lambda: (k for k in range(3)),
    "count": itertools.count,
    "dict": lambda: iter({1: 2, 3: 4}),
    "set": lambda: iter({1, 2}),
    "range": lambda: iter(range(3)),
    "reversed": lambda: reversed([1, 2]),
    "enumerate": lambda: (pair[0] for pair in enumerate("ab")),
    "zip": lambda: zip([1, 2], [3, 4], strict=True),
    "map": lambda: map(abs, {-1: 0, -2: 0}),
    "filter": lambda: filter(None, [1, 2]),
    "zip of enumerate": lambda: zip(enumerate(range(3)), strict=False),
}
if sys.version_info < (3, 14):  # later versions have no means to read the positions of these
    ITERATORS |= {
        "cycle": lambda: itertools.cycle([1, 2]),
        "chain": lambda: itertools.chain([1], [2]),
        "islice": lambda: itertools.islice([1, 2, 3], 2),
        "accumulate": lambda: itertools.accumulate([1, 2]),
        "repeat": lambda: itertools.repeat(1, 3),
    }


@pytest.mark.parametrize("kind", ITERATORS)
def test_an_iterator_that_is_advanced_is_an_error(kind: str) -> None:
    items = ITERATORS[kind]()
    f = ad.compile(lambda x: (next(items), x + 1)[1])
    with pytest.raises(TransformError, match=r"gets an item from an iterator.*\n.*as an argument"):
        f(ad.tensor(1.0))


@pytest.mark.parametrize("kind", ITERATORS)
def test_a_position_is_no_id_of_an_object_that_is_made_to_read_it(kind: str) -> None:
    items = ITERATORS[kind]()
    before = _position(items)
    next(items)
    assert before is not None and _position(items) != before


def test_all_random_generators_are_restored_when_a_trace_drew_from_them() -> None:
    def now() -> Any:
        numpy = np.random.get_state(legacy=False)
        return random.getstate(), numpy["state"]["key"].tolist(), numpy["state"]["pos"], numpy["has_gauss"]

    before = now()
    for draw in (random.random, lambda: random.gauss(0, 1), np.random.rand, lambda: random.seed(7)):
        with pytest.raises(TransformError, match="draws from a random generator"):
            ad.compile(lambda x, draw=draw: (draw(), x + 1)[1])(ad.tensor(1.0))
        assert now() == before


@pytest.mark.parametrize("kept", [False, True])
def test_a_normal_draw_of_numpy_is_an_error(kept: bool) -> None:
    """NumPy draws normal numbers in pairs, and keeps the second for the next draw."""
    before = np.random.get_state(legacy=False)
    try:
        np.random.set_state({**before, "has_gauss": int(kept), "gauss": 0.5})
        for draw in (np.random.randn, lambda: np.random.set_bit_generator(np.random.PCG64(0))):
            with pytest.raises(TransformError, match="draws from a random generator"):
                ad.compile(lambda x, draw=draw: (draw(), x)[1])(ad.tensor(1.0))
            assert np.random.get_state(legacy=False)["has_gauss"] == kept
        assert float(ad.compile(lambda x: x * 2.0)(ad.tensor(1.0))) == 2.0
    finally:
        np.random.set_bit_generator(np.random.MT19937())
        np.random.set_state(before)


def test_draws_of_ad_random_are_made_at_each_call() -> None:
    def draws(rng: Any) -> Any:
        def f(x: Any) -> Any:
            noisy = x + rng.normal(size=3) * rng.uniform(0, 2) + rng.laplace(size=3) + rng.gumbel(size=3)
            picks = rng.permutation(3), rng.choice(5, 4), rng.integers(0, 10, 3), rng.bernoulli(0.5, 4)
            return noisy, picks, rng.permutation(x), rng.choice(x, 2)

        return f

    a, b = ad.random.default_rng(3), ad.random.default_rng(3)
    eager, compiled = draws(a), ad.compile(draws(b))
    x = ad.tensor([1.0, 2.0, 3.0])
    for _ in range(4):
        for y, z in zip(ad.tree.leaves(eager(x)), ad.tree.leaves(compiled(x)), strict=True):
            assert same_bits(y, z)
    assert a.state == b.state
    b.state = ad.random.default_rng(9).state
    a.state = b.state
    assert same_bits(eager(x)[0], compiled(x)[0])
    assert compiled.stats()["traces"] == 1


def test_a_value_that_escapes_raises_when_it_is_used() -> None:
    kept: list[Any] = []

    @ad.compile
    def f(x: Any) -> Any:
        kept.append(x * 2)
        return x

    f(ad.tensor(1.0))
    with pytest.raises(TransformError, match="Return it from the compiled function"):
        kept[0] + 1


def test_a_value_that_escapes_leaves_tensors_it_is_used_with_as_they_were() -> None:
    kept: list[Any] = []
    ad.compile(lambda x, r: (kept.extend([x * 2, x.sum()]), x)[1])(np.ones(3), 0.5)
    w = ad.tensor([0.0, 1.0, 2.0], requires_grad=True)
    for value in kept:
        for use in (
            lambda v: v * w,
            lambda v: w * v,
            lambda v: ad.where(w > 0, w, v),
            lambda v: ad.dot(w, v),
        ):
            with pytest.raises(TransformError, match="Return it from the compiled function"):
                use(value)
            assert type(w) is ad.Tensor and (w + 1.0).tolist() == [1.0, 2.0, 3.0]


def test_a_trace_that_fails_changes_nothing() -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    w.grad = ad.tensor([5.0, 6.0])
    before = w._data

    @ad.compile
    def f(x: Any) -> Any:
        (w * x).sum().backward()
        with ad.no_grad():
            w.copy_(w * 2)
        raise KeyError("stop")

    version = w._version
    with pytest.raises(KeyError, match="stop"):
        f(ad.tensor(1.0))
    assert w._data is before
    assert type(w) is ad.Tensor
    assert w.grad.tolist() == [5.0, 6.0]
    assert w._version == version


def test_side_effects_happen_when_tracing() -> None:
    count = 0

    @ad.compile
    def f(x: Any) -> Any:
        nonlocal count
        count += 1
        return x * count

    # what the function itself changes and reads is another value at each call, so each call traces
    assert [f(1.0).item() if isinstance(f, ad.Tensor) else float(np.asarray(f(np.ones(()))).item()) for _ in range(3)] == [
        1.0, 2.0, 3.0,
    ]  # fmt: skip


def test_a_program_can_be_looked_at() -> None:
    f = ad.compile(lambda x: (x * 2).sum())
    text = f.program(np.ones(3))
    assert "multiply(%0, 2.0)  float64[3]" in text
    assert "test_functions.py:" in text
    f(np.ones(3))
    assert f.stats()["programs"][0]["instructions"] == 2
    assert f.program(np.ones(3)) == text


def test_a_program_names_its_tensors_and_updates() -> None:
    model = nn.Sequential(nn.Linear(2, 2, rng=0), nn.Linear(2, 1, rng=1))
    w = ad.ones(1, requires_grad=True)
    optimizer = optim.Adam([*model.parameters(), w])

    def step(x: Any) -> None:
        optimizer.zero_grad()
        (model(x).sum() * w).sum().backward()
        optimizer.step()

    names = ["Sequential.0.weight", "Sequential.0.bias", "Sequential.1.weight", "Sequential.1.bias", "w"]
    lines = ad.compile(step, backend="replay").program(np.ones((3, 2), "f")).splitlines()
    read = [line.partition("  <- ")[2] for line in lines if "  <- " in line]
    assert [name for name in read if name != "array"] == ["argument 0", *names]
    assert [line.partition(" <- ")[0] for line in lines if line.startswith("write")] == [
        f"write .grad of {name}" for name in names
    ]
    assert lines[-1].startswith("update of Adam <- %")

    def read_back(x: Any) -> Any:
        step(x)
        return w * 2

    lines = ad.compile(read_back, backend="replay").program(np.ones((3, 2), "f")).splitlines()
    assert {f"write {name}" for name in names} <= {line.partition(" <- ")[0] for line in lines}
    assert lines[-1] == "update of the step count of Adam"
    held = [ad.ones(3)]
    assert "<- held[0]\n" in ad.compile(lambda x: x + held[0]).program(np.ones(3))
    grad = ad.compile(lambda t: t.grad * 2)
    t = ad.ones(2, requires_grad=True)
    t.grad = ad.ones(2)
    assert "<- .grad of argument 0\n" in grad.program(t)


def test_compiling_false_runs_the_function() -> None:
    f = ad.compile(lambda x: x.item())
    with ad.config.compiling(False):
        assert f(ad.tensor(2.0)) == 2.0
    with pytest.raises(ArgumentError, match="True, False or"):
        ad.config.compiling("maybe")


def test_compiling_check_compares() -> None:
    hidden = io.BytesIO(bytes(range(100)))
    f = ad.compile(lambda x: x + hidden.read(1)[0])
    with (
        ad.config.compiling("check"),
        pytest.raises(TransformError, match="differs from the result of the original"),
    ):
        f(ad.tensor(1.0))
    g = ad.compile(lambda x: x.sum())
    with ad.config.compiling("check"):
        assert g(ad.tensor(X)).item() == pytest.approx(X.sum())


def test_compiling_check_compares_what_is_written() -> None:
    w = ad.tensor([1.0])
    hidden = io.BytesIO(bytes(range(100)))

    @ad.compile
    def f(x: Any) -> Any:
        w.copy_(w + x)
        return w * 1

    @ad.compile
    def stale(x: Any) -> None:
        w.copy_(w * 0 + x + hidden.read(1)[0])

    with ad.config.compiling("check"):
        assert [f(ad.tensor(1.0)).item() for _ in range(3)] == [2.0, 3.0, 4.0]
        with pytest.raises(TransformError, match=r"a tensor of shape \(1,\) has different values after"):
            stale(ad.tensor(1.0))


def test_compiling_check_of_whole_steps() -> None:
    def make() -> Any:
        m = nn.Sequential(
            nn.Linear(3, 4, rng=0), nn.Dropout(0.5, rng=ad.random.default_rng(5)), nn.Linear(4, 1, rng=1)
        )
        o = optim.Adam(m.parameters(), lr=0.01)
        average = optim.EMA(m.parameters(), decay=0.9)

        def step(x: Any) -> Any:
            o.zero_grad()
            loss = (m(x) ** 2).mean()
            loss.backward()
            o.step()
            average.update()
            return loss

        return step, m, o, average

    step, *owners = make()
    other, *others = make()
    compiled = ad.compile(other)
    with ad.config.compiling("check"):
        for k in range(4):
            assert same_bits(compiled(X + k), step(X + k))
            assert state_of(*others) == state_of(*owners)
    assert compiled.stats()["traces"] == 1
    piece = ad.compile(lambda x: owners[0](x).sum().backward())
    with ad.GradientAccumulator(owners[0]).micro_batch():
        with ad.config.compiling("check"), pytest.raises(TransformError, match="micro-batch twice"):
            piece(X)
        piece(X)


def test_backward_of_a_graph_from_outside_is_an_error() -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    loss = (w * w).sum()
    for f in (
        lambda: loss.backward(retain_graph=True),
        lambda: loss.backward(retain_graph=True, on_leaf_ready=lambda leaf, g: None),
        lambda: ad.gradients(loss, [w], retain_graph=True),
    ):
        with pytest.raises(TransformError, match="on a tensor that was computed outside"):
            ad.compile(f)()
    assert w.grad is None
    loss.backward()
    assert w.grad.tolist() == [2.0, 4.0]


# Differentiation through a compiled function ---------------------------------------------------------


def cube(x: Any) -> Any:
    return (x**3 * ad.sin(x)).sum()


POINT = ad.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f: ad.grad(f)(POINT),
        lambda f: ad.value_and_grad(f)(POINT)[1],
        lambda f: ad.grad(lambda t: ad.grad(f)(t).sum())(POINT),
        lambda f: ad.hessian(f)(POINT),
        lambda f: ad.hvp(f, (POINT,), (POINT,)) if False else ad.hessian(f)(POINT),
        lambda f: ad.vmap(ad.grad(f))(ad.stack([POINT, POINT * 2])),
        lambda f: ad.jvp(f, (POINT,), (POINT,))[1],
        lambda f: ad.vmap(f)(ad.stack([POINT, POINT * 2])),
        lambda f: ad.compile(ad.grad(f))(POINT),
        lambda f: ad.compile(ad.hessian(f))(POINT),
    ],
)
def test_transforms_around_a_compiled_function(derivative: Any) -> None:
    assert same_bits(derivative(ad.compile(cube)), derivative(cube))


def test_forward_mode_of_a_call_that_runs_again() -> None:
    f = ad.compile(lambda x: ad.sin(x))
    _, found = ad.jvp(lambda x: ad.checkpoint(lambda z: f(z) ** 2, x), (0.3,), (1.0,))
    assert abs(found - np.sin(0.6)) < 1e-15


def test_a_rule_reads_tensors_and_draws_that_the_forward_does_not() -> None:
    scale, rng = ad.tensor([2.0, 3.0]), ad.random.default_rng(0)
    f = ad.custom_vjp(lambda x: ad.sin(x))
    f.defvjp(lambda x: (ad.sin(x), ()), lambda _, g: (ad.broadcast_to(scale, (2,)) * g,))
    noisy = ad.custom_vjp(lambda x: ad.sin(x))
    noisy.defvjp(lambda x: (ad.sin(x), ()), lambda _, g: (rng.normal(size=2) * g,))
    g = ad.grad(ad.compile(lambda x: f(x).sum()))
    assert g(np.ones(2)).tolist() == [2.0, 3.0]
    scale.copy_(5.0)
    assert g(np.ones(2)).tolist() == [5.0, 5.0]
    h = ad.grad(ad.compile(lambda x: noisy(x).sum()))
    assert h(np.ones(2)).tolist() != h(np.ones(2)).tolist()


@pytest.mark.parametrize("solve", [ad.root, ad.fixed_point])
def test_equations_with_a_python_float_are_solved_inside(solve: Any) -> None:
    def f(a: float) -> Any:
        return solve(lambda x: 0.5 * x - a, 1.0)

    compiled = ad.compile(f)
    for a in (2.0, 3.0, -1.5):
        np.testing.assert_allclose(compiled(a), f(a).item(), rtol=1e-8)  # as in test_solvers.py
    assert compiled.stats()["traces"] == 1


def test_backward_through_a_compiled_model() -> None:
    models = [nn.Sequential(nn.Linear(3, 4, rng=0), nn.Tanh(), nn.Linear(4, 1, rng=1)) for _ in range(2)]
    forward = ad.compile(lambda x: models[1](x))
    for k in range(3):
        x = ad.tensor(X + k)
        for f in (models[0], forward):
            nn.functional.mse_loss(f(x) * 2, np.ones((5, 1), "f")).backward()
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert same_bits(p.grad, q.grad)
    assert forward.stats()["traces"] == 1


def test_arguments_with_a_history_get_gradients() -> None:
    w = [ad.tensor([1.0, 2.0], requires_grad=True) for _ in range(2)]
    f = ad.compile(lambda x, y: (x * y).tanh())
    outs = []
    for v, g in zip(w, (lambda x, y: (x * y).tanh(), f), strict=True):
        h = v * 3
        outs.append(g(h, v).sum())
        outs[-1].backward()
    assert same_bits(w[0].grad, w[1].grad)


@pytest.mark.parametrize("backend", ["replay", "auto"])
def test_arrays_that_are_overwritten_before_a_recorded_backward(backend: str) -> None:
    p = ad.tensor([1.0, 2.0, 3.0], requires_grad=True)
    f = ad.compile(lambda x: (ad.sin(x) * p**3).sum(), backend=backend)
    x = np.empty(3)
    for k in range(4):
        x[:] = k + 1.0
        y = f(x)
        x[:] = 0.0  # the next batch is read into the same array
        (g,) = ad.gradients(y, [p], create_graph=True)
        np.testing.assert_allclose(g.detach().numpy(), 3 * np.sin(k + 1.0) * p.numpy() ** 2)
        (h,) = ad.gradients(g.sum(), [p])
        np.testing.assert_allclose(h.numpy(), 6 * np.sin(k + 1.0) * p.numpy())


@pytest.mark.parametrize("which", ["frozen", "leaf", "argument"])
def test_tensors_that_are_overwritten_before_a_recorded_backward(which: str) -> None:
    p = ad.tensor([1.0, 2.0, 3.0], requires_grad=True)
    w = ad.tensor([4.0, 5.0, 6.0], requires_grad=which != "frozen")
    f = ad.compile(lambda x: ((w if which != "argument" else x).reshape(1, 3) ** 2 * p**3 + x).sum())
    for _ in range(4):
        x = w if which == "argument" else ad.tensor([1.0, 1.0, 1.0])
        ys = [f(x) for _ in range(3)]
        (g,) = ad.gradients(ys[0], [p], create_graph=True)
        np.testing.assert_allclose(g.detach().numpy(), 3 * (w.numpy() * p.numpy()) ** 2)
        expected = g.detach().numpy().copy()
        with ad.no_grad():
            w *= 2.0
        if which == "frozen":  # the program has saved its square
            np.testing.assert_allclose(ad.gradients(ys[1], [p])[0].numpy(), expected)
        with pytest.raises(ModifiedError, match="written to since"):
            ad.gradients(ys[2], [p], create_graph=True)


def test_a_result_that_was_differentiated_inside_cannot_be_again() -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)

    @ad.compile
    def f(x: Any) -> Any:
        loss = (w * w * x).sum()
        loss.backward()
        return loss

    loss = f(ad.tensor(2.0))
    assert loss.requires_grad
    with pytest.raises(GraphReleasedError):
        (loss * 2).backward()


def test_gradients_of_arguments_are_set_inside() -> None:
    @ad.compile
    def f(w: Any, x: Any) -> Any:
        loss = (w * w * x).sum()
        loss.backward()
        return loss

    for k in range(1, 4):
        w = ad.tensor([1.0, 2.0 * k], requires_grad=True)
        f(w, ad.tensor(2.0))
        assert w.grad.tolist() == [4.0, 8.0 * k]
        f(w, ad.tensor(2.0))
        assert w.grad.tolist() == [8.0, 16.0 * k]
    assert f.stats()["traces"] == 2  # without and with a .grad before


def test_methods_can_be_compiled() -> None:
    class Scaled:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @ad.compile
        def apply(self, x: Any) -> Any:
            return x * self.factor

    a, b = Scaled(2.0), Scaled(3.0)
    x = ad.tensor([1.0])
    assert (a.apply(x).item(), b.apply(x).item()) == (2.0, 3.0)
    a.factor = 5.0
    assert (a.apply(x).item(), b.apply(x).item()) == (5.0, 3.0)
    assert a.apply.stats() == Scaled.apply.stats()
    assert a.apply.stats()["traces"] == 3
    assert a.apply.program(x) == Scaled.apply.program(a, x)
    assert "multiply" in a.apply.program(x)
    assert a.apply.explain(x) and a.apply.explain() and repr(a.apply).endswith("3 programs> of Scaled")
    a.apply.clear()
    assert b.apply.stats()["traces"] == 0
    assert a.apply.explain(x)


@pytest.mark.parametrize("backend", ["replay", "auto"])
def test_the_mode_of_a_module_that_was_never_set_is_its_default(backend: str) -> None:
    model = ad.nn.Sequential(ad.nn.Linear(4, 3, rng=0), ad.nn.Dropout(0.5, rng=1))
    f = ad.compile(lambda x: model(x).sum(), backend=backend)
    for mode in (None, False, True, False, True):
        if mode is not None:
            model.train(mode)
        for _ in range(3):
            f(np.ones((2, 4), np.float32))
    assert f.stats()["reasons"] == ["it was the first call", "Sequential.training changed"]


def test_sums_in_place_do_not_show_in_views() -> None:
    def f(x: Any, b: Any) -> Any:
        z = x + b.reshape(4)
        return z[0] * 2 + z[1] * 3 + (x[2] * x[3]) * 5 + x[0]

    args = ad.tensor([1.0, 2.0, 3.0, 4.0]), ad.tensor([[1.0, 2.0], [3.0, 4.0]])
    eager = ad.grad(f, argnums=(0, 1))
    for a, b in zip(eager(*args), ad.compile(eager)(*args), strict=True):
        assert same_bits(a, b)


def test_gradients_of_many_elements_add_up_in_one_array() -> None:
    def f(x: Any) -> Any:
        return sum((x[k] * x[-k] * float(k) for k in range(1, 9)), 0 * x[0])

    x = ad.tensor(np.linspace(-1, 1, 10))
    g = ad.compile(ad.grad(f))
    for _ in range(2):
        assert same_bits(g(x), ad.grad(f)(x))
    assert x.tolist() == np.linspace(-1, 1, 10).tolist()


def test_float_arguments_of_native_programs() -> None:
    pytest.importorskip("llvmlite")
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    for backend in ("auto", "native"):
        f = ad.compile(lambda x, r: ad.tanh(x * r) + x * w, backend=backend)
        g = ad.compile(lambda x, r: ad.tanh(x * r) + x, backend=backend)
        for r in (0.5, 0.25, 2.0):
            x = ad.tensor([1.0, 3.0])
            np.testing.assert_allclose(
                f(x, r).detach().numpy(), np.tanh(x.numpy() * r) + x.numpy() * w.numpy()
            )
            np.testing.assert_allclose(g(x, r).numpy(), np.tanh(x.numpy() * r) + x.numpy())
        f(x, 0.5).sum().backward()
        assert f.stats()["traces"] == g.stats()["traces"] == 1


def test_native_steps_without_arguments() -> None:
    pytest.importorskip("llvmlite")
    params = [ad.tensor([1.0, 2.0], requires_grad=True) for _ in range(2)]
    steps = []
    for p in params:
        o = optim.SGD([p], lr=0.1)

        def step(p: Any = p, o: Any = o) -> Any:
            o.zero_grad()
            loss = (p.tanh() * 2).sum()
            loss.backward()
            o.step()
            return loss

        steps.append(step)
    compiled = ad.compile(steps[1])
    for _ in range(5):
        np.testing.assert_allclose(compiled().item(), steps[0]().item())
    np.testing.assert_allclose(*(p.detach().numpy() for p in params))
    assert compiled.stats()["traces"] == 1


# Arguments ----------------------------------------------------------------------------------------


def test_the_order_of_keywords_and_keys_does_not_matter() -> None:
    f = ad.compile(lambda x, y: x - 2 * y)
    g = ad.compile(lambda d: d["x"] - 2 * d["y"])
    one, two = np.ones(2), np.full(2, 2.0)
    for _ in range(3):
        assert f(x=one, y=two).tolist() == f(y=two, x=one).tolist() == [-3.0, -3.0]
        assert g({"x": one, "y": two}).tolist() == g({"y": two, "x": one}).tolist() == [-3.0, -3.0]
    assert f.stats()["reasons"][1] == "the order of dict keys changed"


@pytest.mark.parametrize("backend", ["replay", "auto"])
def test_a_tensor_that_is_written_to_and_given_twice(backend: str) -> None:
    @ad.compile(backend=backend)
    def f(a: Any, b: Any) -> Any:
        a.copy_(a + 1)
        return a + b

    for _ in range(3):
        assert f(ad.ones(2), ad.ones(2)).tolist() == [3.0, 3.0]
    both = ad.ones(2)
    assert f(both, both).tolist() == [4.0, 4.0]
    assert f.stats()["reasons"][1] == "b changed from float64[2] to float64[2], the same tensor as a"


def test_static_arguments_of_a_bound_method() -> None:
    class Model:
        def scaled(self, x: Any, power: float = 1.0) -> Any:
            return x if power < 2 else x**power

    f = ad.compile(Model().scaled, static="power")
    assert f(np.full(2, 3.0), 1.0).tolist() == [3.0, 3.0]
    assert f(np.full(2, 3.0), 2.0).tolist() == [9.0, 9.0]
    assert f.stats()["reasons"][1] == "power changed from 1.0 to 2.0"


def test_static_arguments_that_do_not_exist() -> None:
    def loss(x: Any, scale: float, *, power: float) -> Any:
        return (x * scale) ** power

    message = "static= contains 'sacle', but loss has the parameters x, scale, power"
    with pytest.raises(ArgumentError, match=message):
        ad.compile(loss, static="sacle")
    with pytest.raises(ArgumentError, match="static= contains 3, but loss has"):
        ad.compile(loss, static=3)
    with pytest.raises(ArgumentError, match=r"static= contains 0, but .* has no parameters"):
        ad.compile(lambda: 1, static=0)
    ad.compile(lambda *values, **named: named["p"], static=("p", 4))  # any name and position


def test_reasons_name_arguments_as_the_user_does() -> None:
    f = ad.compile(lambda batch, *rest, mode="train": batch["x"] * 1)
    x, w = np.ones(2), ad.ones(2, requires_grad=True)
    for args, named in (
        (({"x": x},), {}),
        (({"x": np.ones(3)},), {}),
        (({"x": np.ones(3)},), {"mode": "eval"}),
        (({"x": np.ones(3)},), {"mode": "test"}),
        (({"x": np.ones(3)}, 1), {"mode": "test"}),
        (({"x": np.ones(3)}, 2), {"mode": "test"}),
        (({"x": w}, 2), {"mode": "test"}),
    ):
        f(*args, **named)
    assert f.stats()["reasons"][1:] == [
        "batch['x'] changed from float64[2] to float64[3]",
        "argument mode was added",
        "mode changed from 'eval' to 'test'",
        "argument rest[0] was added",
        "rest[0] changed from 1 to 2",
        "batch['x'] changed from float64[3] to float64[2] that requires grad",
    ]


def test_the_function_itself_gets_tensors_for_arrays_too() -> None:
    w = ad.tensor([2.0, 3.0], requires_grad=True)
    f = ad.compile(lambda x: x.tanh() * 2)
    x = np.ones(2)
    wanted = f(x)
    with ad.config.compiling(False):
        assert type(f(x)) is np.ndarray
        assert np.array_equal(f(x), wanted)
    with ad.config.compiling("check"):
        assert np.array_equal(f(x), wanted)
    assert np.array_equal(ad.vmap(lambda k: f(x) * k)(np.ones(3)), np.stack([wanted] * 3))
    loss = ad.compile(lambda x: (x.tanh() * w * w).sum())
    (g,) = ad.gradients(loss(x), [w], create_graph=True)  # the recorded backward runs the function again
    g.sum().backward()
    assert np.allclose(w.grad.numpy(), 2 * np.tanh(x))


# Results that are differentiated outside -----------------------------------------------------------


@pytest.mark.parametrize("backend", ["replay", "auto"])
def test_results_require_grad_as_in_eager_mode(backend: str) -> None:
    w = ad.tensor([2.0, 3.0], requires_grad=True)

    def f(x: Any, scale: float) -> Any:
        return w, x * w * scale, x * 2, (w * w).sum(), scale * 2

    compiled = ad.compile(f, backend=backend)
    for _ in range(3):
        x = ad.tensor([1.0, -1.0])
        wanted, found = f(x, 0.5), compiled(x, 0.5)
        assert [getattr(t, "requires_grad", None) for t in found] == [
            getattr(t, "requires_grad", None) for t in wanted
        ]
        for outs in (wanted, found):
            w.grad = None
            (outs[1].sum() * outs[3]).backward()
            if outs is wanted:
                expected = w.grad.tolist()
        assert w.grad.tolist() == pytest.approx(expected, rel=1e-14)
        (g,) = ad.gradients(compiled(x, 0.5)[3], [w], create_graph=True)
        assert ad.gradients(g.sum(), [w])[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("backend", ["replay", "auto"])
def test_arguments_with_and_without_a_history_have_their_own_programs(backend: str) -> None:
    f = ad.compile(lambda x, y: (x * y).sum(), backend=backend)
    a, b = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    for _ in range(4):
        leaf = ad.tensor(a, requires_grad=True)
        f(leaf, ad.tensor(b)).backward()
        assert leaf.grad.tolist() == b.tolist()
        other = ad.tensor(a, requires_grad=True)
        f(other * 2, ad.tensor(b)).backward()
        assert other.grad.tolist() == (2 * b).tolist()
        assert not f(ad.tensor(a), ad.tensor(b)).requires_grad
        same = ad.tensor(a, requires_grad=True)
        f(same, same).backward()
        assert same.grad.tolist() == (2 * a).tolist()
    assert f.stats()["traces"] == 4


def test_what_a_call_keeps_is_released_by_its_backward() -> None:
    w = ad.tensor(np.ones(3), requires_grad=True)
    f = ad.compile(lambda x: (ad.exp(x * w) * w).sum(), backend="replay")
    f(np.ones(3))
    loss = f(np.ones(3))
    assert loss._node.args is not None
    loss.backward()
    assert loss._node.args is None
    with pytest.raises(ad.errors.GraphReleasedError):
        loss.backward()
    again = f(np.ones(3))
    with ad.no_grad():
        w.copy_(w * 2)
    with pytest.raises(ad.errors.ModifiedError):
        again.backward()


INDEXED: dict[str, Any] = {
    "x[i]": lambda x, i: x[i],
    "x[:, i]": lambda x, i: x[:, i],
    "x[i, i]": lambda x, i: x[i, i],
    "take": lambda x, i: ad.take(x, i, axis=0),
    "at.set": lambda x, i: x.at[i].set(0.0),
    "at.add": lambda x, i: x.at[i + 0].add(1.0),
    "gradient": lambda x, i: ad.grad(lambda v: (v[i] ** 2).sum())(x),
    "embedding": lambda x, i: nn.functional.embedding(i, x),
}


@pytest.mark.parametrize("backend", ["replay", "auto"])
@pytest.mark.parametrize("bad", [7, -9])
@pytest.mark.parametrize("name", INDEXED)
def test_an_index_out_of_range_raises_the_error_of_eager_code(name: str, bad: int, backend: str) -> None:
    f, x = INDEXED[name], ad.tensor(np.arange(16.0).reshape(4, 4))
    with pytest.raises(IndexError) as expected:
        f(x, ad.tensor([0, bad]))
    compiled = ad.compile(f, backend=backend)
    for _ in range(3):
        compiled(x, ad.tensor([0, 1]))
    for _ in range(2):
        with pytest.raises(type(expected.value)) as found:
            compiled(x, ad.tensor([0, bad]))
        assert str(found.value) == str(expected.value)
    assert compiled(x, ad.tensor([0, 1])).shape == f(x, ad.tensor([0, 1])).shape


@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray, np.transpose])
@pytest.mark.parametrize("f", [lambda x, w: x @ w, lambda x, w: w @ x, lambda x, w: x.T @ w @ x])
def test_products_of_arrays_in_any_layout_have_the_bits_of_eager_code(f: Any, layout: Any) -> None:
    r = np.random.default_rng(0)
    x, w = layout(r.normal(size=(33, 33))), ad.tensor(r.normal(size=(33, 33)), requires_grad=True)
    compiled = ad.compile(lambda x: (f(x, w) ** 2).sum(), backend="replay")
    for _ in range(2):
        with ad.config.compiling(False):
            expected = ad.gradients(compiled(x), [w])[0]
        assert ad.gradients(compiled(x), [w])[0].numpy().tobytes() == expected.numpy().tobytes()


def test_showing_a_program_keeps_and_counts_nothing() -> None:
    state = types.SimpleNamespace(n=0)

    def f(x: Any) -> Any:
        if x.ndim > 1:
            state.n += 1
        return x.sum() + state.n

    compiled = ad.compile(f, limit=1, backend="replay")
    for n in (2, 3, 4):
        assert f"float64[{n}]" in compiled.program(np.ones(n))
        assert compiled.explain(np.ones(n)).startswith("2 instructions")
    assert compiled.stats() == {**compiled.stats(), "traces": 0, "reasons": [], "programs": []}
    assert compiled(np.ones(3)) == 3
    compiled.program(np.ones((2, 2))), compiled.explain(np.ones((2, 2)))
    assert state.n == 0
    assert compiled(np.ones(3)) == 3
    assert compiled.stats()["traces"] == 1


def _add_one(x: Any) -> None:
    x += 1


WRITES: list[Any] = [
    _add_one,
    lambda x: x.__setitem__(0, 5.0),
    lambda x: x.__setitem__(slice(1, None), x[1:] * 2),
    lambda x: x.copy_(ad.zeros(3)),
]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("mode", [True, False, "check"])
def test_writes_into_arguments_are_visible_or_an_error(write: Any, mode: Any) -> None:
    def f(batch: Any) -> Any:
        write(batch["x"])
        return batch["x"].sum()

    compiled = ad.compile(f)
    eager, given = ad.tensor([1.0, 2.0, 3.0]), ad.tensor([1.0, 2.0, 3.0])
    array = np.array([1.0, 2.0, 3.0])
    with ad.config.compiling(mode):
        for _ in range(3):
            assert compiled({"x": given}).item() == f({"x": eager}).item()
            assert given.tolist() == eager.tolist()
            with pytest.raises(
                TransformError, match=r"f \(.*\) changes batch\['x'\], which is a NumPy array"
            ):
                compiled({"x": array})
    assert array.tolist() == [1, 2, 3]


@pytest.mark.parametrize("mode", [True, False, "check"])
def test_scalars_and_copies_of_arrays_may_be_changed(mode: Any) -> None:
    def f(x: Any, r: Any) -> Any:
        r += 1
        y = x.copy()
        y += r
        x = x + y
        x += 1
        return x

    compiled = ad.compile(f)
    with ad.config.compiling(mode):
        for k in range(3):
            assert compiled(np.ones(2), np.float64(k)).tolist() == [4 + k] * 2


def test_forward_mode_pushes_again_only_in_calls_with_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hessian of a batch of tangents runs its second pass, which keeps zeros, only if the first has a NaN."""

    def f(x: Any) -> Any:
        return (ad.sqrt(ad.tanh(x) + 1.0) * x).sum()

    hessian = ad.compile(ad.hessian(f), backend="replay")
    x = np.array([0.3, 0.5, 0.7])
    assert np.array_equal(hessian(x), ad.hessian(f)(x))
    calls: list[str] = []
    source = hessian._variants[0].built.__globals__
    for name, each in [(k, v) for k, v in source.items() if k.startswith("f") and "sech_squared" in k]:
        monkeypatch.setitem(source, name, lambda *a, name=name, each=each: calls.append(name) or each(*a))
    hessian(x)
    once = len(calls)
    calls.clear()
    with np.errstate(all="ignore"):
        hessian(np.array([0.3, np.nan, 0.7]))
    assert len(calls) == 2 * once > 0


@pytest.mark.parametrize("inner", [ad.hessian, ad.jacfwd, lambda f: ad.vmap(ad.grad(f))])
def test_zeros_of_tangents_survive_infinite_derivatives(inner: Any) -> None:
    def f(x: Any) -> Any:
        return ad.where(x > 0, ad.sqrt(x), 0.0).sum(-1) * (x * x).sum()

    compiled = ad.compile(inner(f), backend="replay")
    with np.errstate(all="ignore"):
        for x in (np.array([1.0, 0.0, 2.0]), np.array([1.0, 3.0, 2.0]), np.array([0.0, 0.0, np.inf])):
            x = x[:, None] if "lambda" in str(inner) else x
            assert np.array_equal(compiled(x), inner(f)(x), equal_nan=True)


def test_functions_that_return_constants_have_a_source() -> None:
    constants = [lambda: (), lambda: -1, lambda: None, lambda: 2 + 3, lambda: "a", lambda: 3]  # fmt: skip
    f = ad.compile(lambda x: (x * 2, [constant() for constant in constants]))
    assert f(ad.tensor(X))[1] == [(), -1, None, 5, "a", 3]


def test_objects_of_other_packages_are_not_asked_for_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(f"{name} is deprecated")

    package = types.ModuleType("odd_package")
    package.__file__ = "/lib/site-packages/odd_package/__init__.py"
    package.old = Odd()  # type: ignore[attr-defined]
    Pair = type("Pair", (), {"__module__": "odd_package", "__getitem__": lambda self, k: self.values[k]})
    monkeypatch.setitem(sys.modules, "odd_package", package)
    pair: Any = Pair()
    pair.values = [2.0, 3.0]
    f = ad.compile(lambda x: x * pair[1])
    assert f(ad.tensor(2.0)).item() == 6.0
    pair.values[1] = 4.0
    assert f(ad.tensor(2.0)).item() == 8.0
