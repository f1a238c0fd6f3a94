"""Programs of all forms as libraries: loops in loops, several updates, models, methods, threads, large arguments."""

from __future__ import annotations

import importlib.util
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from exported import Case, run_c, run_wasm

import adjoint as ad
from adjoint import nn, optim

R = np.random.default_rng(0)


def nested_loops() -> Case:
    """A loop over rows with a loop inside it, forwards and backwards, and their gradient."""
    w = ad.tensor(R.normal(size=(12, 12)) / 4)

    def f(x: Any) -> Any:
        def outer(carry: Any, row: Any) -> Any:
            def inner(c: Any, k: Any) -> Any:
                return ad.tanh(c @ w) * k, c.sum()

            carry, sums = ad.scan(inner, carry + row, ad.arange(3.0) + 0.5, reverse=True)
            return carry, (sums, carry * 2)

        last, (sums, rows) = ad.scan(outer, ad.zeros(12), x)
        return (last * last).sum() + sums.sum(), rows

    g = lambda x: ad.value_and_grad(f, has_aux=True)(x)
    return Case("nested", g, [(R.normal(size=(5, 12)),) for _ in range(3)])


def embedded_loop() -> Case:
    """A loop whose body has a check, reads a table and carries integers."""
    table = ad.tensor(R.normal(size=(6, 40)))

    def f(rows: Any) -> Any:
        def body(carry: Any, k: Any) -> Any:
            total, count = carry
            return (total * 0.5 + ad.take(table, k, axis=0), count + 1), total.sum()

        (total, count), sums = ad.scan(body, (ad.zeros(40), ad.zeros((), dtype=np.int64)), rows)
        return total, count, sums

    return Case("embedded", f, [(R.integers(0, 6, 9),) for _ in range(2)])


def several_updates() -> Case:
    """Two updates of one optimiser in a call, by different groups, and an average of the parameters."""
    model = nn.Linear(3, 2, rng=0)
    optimizer = optim.AdamW([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.01}])
    mean = model.weight.detach().clone()

    def step(x: Any) -> Any:
        for _ in range(2):
            optimizer.zero_grad()
            ((model(x) - 1.0) ** 2).mean().backward()
            optimizer.step()
        with ad.no_grad():
            mean.mul_(0.9).add_(model.weight * 0.1) if hasattr(mean, "mul_") else mean.copy_(
                mean * 0.9 + model.weight * 0.1
            )
        return model.weight * 1.0

    return Case("several", step, [(R.normal(size=(4, 3)).astype("f"),) for _ in range(4)])


def model_itself() -> Case:
    """A module is a function, too."""
    model = nn.Sequential(
        nn.Embedding(9, 4, rng=0), nn.Flatten(), nn.Linear(12, 3, rng=1), nn.Softmax(-1)
    ).eval()
    return Case("model", model, [(R.integers(0, 9, (2, 3)),) for _ in range(2)])


def compiled_method() -> Case:
    """A compiled method, whose instance is not an argument."""

    class Filter:
        def __init__(self) -> None:
            self.state = ad.zeros(3)

        @ad.compile
        def update(self, x: Any, gain: float) -> Any:
            self.state.copy_(self.state * (1 - gain) + x * gain)
            return self.state * 1.0

    return Case("method", Filter().update, [(R.normal(size=3), 0.1 * k) for k in range(1, 4)])


def integers_and_booleans() -> Case:
    """Narrow integers, booleans, arrays without elements, and results without arguments."""
    f = lambda a, b, c: (a // b, a % b, (a > b) & c, ad.zeros((0, 3)), a[:0], ad.arange(4) * 2)
    calls = [
        (R.integers(-99, 99, 7, np.int8), R.integers(-3, 3, 7, np.int8), R.random(7) < 0.5) for _ in range(2)
    ]
    return Case("integers", f, calls)


def matrices() -> Case:
    """Linear equations, determinants and Cholesky factors."""

    def f(a: Any, b: Any) -> Any:
        spd = a @ a.T + ad.eye(4) * 4.0
        return (
            ad.linalg.solve(a, b),
            ad.linalg.det(a),
            ad.linalg.cholesky(spd),
            ad.grad(lambda m: ad.linalg.inv(m).sum())(a),
        )

    return Case("matrices", f, [(R.normal(size=(4, 4)), R.normal(size=(4, 2))) for _ in range(3)])


def random_numbers() -> Case:
    """Uniform draws of both floats from two generators, also in the backward of a checkpoint."""
    first, second = ad.random.default_rng(1), ad.random.default_rng(2)

    def f(x: Any) -> Any:
        a, b = first.random((3, 5), dtype=np.float32), second.random(3)
        c = first.random(7, dtype=np.float32)
        d, e = second.normal(a.sum(), 2.0, size=9), first.normal(size=4, dtype=np.float32)
        g = second.gumbel(size=5) + second.standard_normal(5) + first.categorical([0.1, 0.5, 0.9], 5)
        keep = nn.functional.dropout2d(x, 0.5, rng=second)
        loss = lambda z: ad.checkpoint(lambda z: (nn.functional.dropout(z, 0.3, rng=first) ** 2).sum(), z)
        return a, b, c, d, e, g, keep, first.bernoulli(b), ad.grad(loss)(x)

    return Case("draws", f, [(R.normal(size=(2, 3, 2, 2)),) for _ in range(4)])


def halves() -> Case:
    """float16 and bfloat16, stored as 16 bits and computed in float32."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a = ad.tensor(R.normal(size=(5, 7)).astype("e"))
    b = ad.tensor(R.normal(size=(7, 3)).astype(ml_dtypes.bfloat16))
    f = lambda x, y: (ad.tanh(x @ a) * 2, y @ b + b.sum(0), x.astype("f"), (a * 3).astype(ml_dtypes.bfloat16))
    calls = [
        (R.normal(size=(2, 5)).astype("e"), R.normal(size=(2, 7)).astype(ml_dtypes.bfloat16))
        for _ in range(2)
    ]
    return Case("halves", f, calls)


CASES: list[Callable[[], Case]] = [
    nested_loops, embedded_loop, several_updates, model_itself, compiled_method, integers_and_booleans, matrices,
    random_numbers, halves,
]  # fmt: skip


def test_bits(tmp_path: Path) -> None:
    made = [make().prepare() for make in CASES]
    wanted = [case.wanted() for case in made]
    runs = {"c": run_c(made, tmp_path / "c")}
    if shutil.which("node") is not None and importlib.util.find_spec("ziglang"):
        runs["wasm"] = run_wasm(made, tmp_path / "wasm")
    for found in runs.values():
        for case, row, right in zip(made, found, wanted, strict=True):
            case.assert_same(row, right)


def test_states_of_different_threads(tmp_path: Path) -> None:
    from test_contract import linked

    step = several_updates()
    made = ad.export(step.f, *step.calls[0], path=tmp_path)
    c = linked(made)
    found: dict[int, list[bytes]] = {}

    def work(k: int) -> None:
        state, out = c.state(), np.empty((2, 3), "f")
        found[k] = []
        for _ in range(200):
            assert c.call(state, [step.calls[0][0]], [out]) == 0
            found[k].append(out.tobytes())

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(rows == found[0] for rows in found.values())
    assert len(set(found[0])) > 100


def test_not_inside_of_a_trace(tmp_path: Path) -> None:
    f = ad.compile(lambda x: ad.export(ad.sin, np.ones(2), path=tmp_path) and x)
    with pytest.raises(ad.errors.TransformError, match=r"ad\.export cannot be used inside ad\.compile"):
        f(np.ones(2))


@pytest.mark.parametrize(
    ("kind", "dtype"), [(k, d) for k in ("standard_normal", "exponential") for d in "df"]
)
def test_many_draws(kind: str, dtype: str, tmp_path: Path) -> None:
    """NumPy's draws: all bits of float64 draws here, and all but few in the tails of float32 draws."""
    from test_contract import linked

    sides = [ad.random.default_rng(5) for _ in range(2)]
    draw = lambda g: getattr(g, kind)(size=50_000, dtype=np.dtype(dtype))
    c, found = linked(ad.export(lambda: draw(sides[0]), path=tmp_path, name="f")), np.empty(50_000, dtype)
    state = c.state()
    for _ in range(2):
        assert c.call(state, [], [found]) == 0
        wanted = draw(sides[1]).numpy()
        differ = found != wanted
        assert differ.sum() <= 2
        np.testing.assert_allclose(found, wanted, rtol=1e-6 if dtype == "f" else 1e-15)
