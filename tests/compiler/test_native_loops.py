"""Loops in native code: small bodies as one kernel, others as records that a kernel runs step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.compiler.emit import steps
from adjoint.errors import AdjointError
from adjoint.transforms import loops
from adjoint.transforms.loop_body import Body

pytest.importorskip("llvmlite")

R = np.random.default_rng(0)
N = 11


def tensors(*shapes: tuple[int, ...], dtype: Any = np.float64) -> list[Any]:
    rng = np.random.default_rng(1)
    return [ad.tensor(rng.normal(size=s).astype(dtype)) for s in shapes]


def scalars(w: Any, x: Any) -> Any:
    (a, b), ys = ad.scan(lambda c, v: ((c[0] * w + v, c[1] - c[0]), c[0] * c[1]), (w * 0.5, 1.0), x[:, 0])
    return a * b + (ys * ys).sum()


def vectors(w: Any, x: Any) -> Any:
    last, ys = ad.scan(lambda c, v: (ad.tanh(c * w + v), (c, ad.exp(v) * w)), ad.zeros(3), x)
    return last.sum() + (ys[0] * ys[1]).sum()


def same_twice(w: Any, x: Any) -> Any:
    def body(c: Any, v: Any) -> Any:
        new = ad.sin(c + v * w)
        return new, (new, new, v)

    last, (a, b, v) = ad.scan(body, ad.ones(3), x)
    return (a * b * v).sum() + last.sum()


def products(w: Any, x: Any) -> Any:
    m = ad.stack([w, w * 0.5, w * w])

    def body(c: Any, v: Any) -> Any:
        new = ad.matmul(c, m) * 0.3 + ad.stack([v, v[::-1], v * 2]).T
        return new, ad.concat([new[0], v[:1]])

    last, ys = ad.scan(body, ad.ones((3, 3)), x)
    return last.sum() + (ys**2).sum()


def reductions(w: Any, x: Any) -> Any:
    def body(c: Any, v: Any) -> Any:
        s = (c * v).sum() + ad.max(c) * w.prod()
        return ad.where(c > v, c * 0.9 + s * 0.1, v), s

    last, ys = ad.scan(body, w, x)
    return last.sum() * ys.mean()


def unused(w: Any, x: Any) -> Any:
    (a, _), (y, _) = ad.scan(lambda c, v: ((c[0] * w, c[1] + v), (c[1], v * w)), (ad.ones(3), w), x)
    return a.sum() + y[0].sum()


def numbered(w: Any, x: Any) -> Any:
    table = ad.tensor(np.arange(20.0))

    def body(i: Any, c: Any) -> Any:
        return c + w * table[i] + x[i - 1]

    return (ad.fori_loop(2, N, body, ad.zeros(3)) ** 2).sum()


def kept(w: Any, x: Any) -> Any:
    (a, n, _), ys = ad.scan(
        lambda c, v: ((c[0], c[1] + 1, (c[1] > 3) | (v[0] > 0)), ad.where(c[2], v * w, c[0])),
        (w, 0, False),
        x,
    )
    return (ys * ys).sum() + a.sum() * n


def nested(w: Any, x: Any) -> Any:
    def body(c: Any, v: Any) -> Any:
        inner, ys = ad.scan(lambda d, y: (ad.tanh(d * w + y + v), d.sum()), c * 0.5, x)
        return inner * w, ys.sum()

    last, sums = ad.scan(body, ad.ones(3), x)
    return last.sum() + (sums * sums).sum()


BODIES = {
    f.__name__: f
    for f in (
        scalars, vectors, same_twice, products, reductions, unused, numbered, kept, nested,
    )
}  # fmt: skip


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", BODIES)
def test_native_loops_are_eager_ones(name: str, dtype: Any, small: bool, monkeypatch: Any) -> None:
    if not small:
        monkeypatch.setattr(steps, "_MOST", -1)
    f = BODIES[name]
    w, x = tensors((3,), (N, 3), dtype=dtype)
    if name == "scalars":
        w = w[0]
    both = ad.value_and_grad(lambda w, x: f(w, x).astype(dtype), argnums=(0, 1))
    compiled = ad.compile(both, backend="native")
    for k in (1.0, 0.5):
        given = (w * dtype(k)).detach(), x
        for a, b in zip(ad.tree.leaves(compiled(*given)), ad.tree.leaves(both(*given)), strict=True):
            tolerance = 1e-12 if dtype is np.float64 else 2e-5
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=tolerance, atol=tolerance)
            assert a.dtype == b.dtype
    assert compiled.stats()["traces"] == 1
    assert " 0 calls of NumPy" in compiled.explain(*given)


@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("small", [True, False])
def test_directions_and_rows_with_strides(small: bool, reverse: bool, monkeypatch: Any) -> None:
    if not small:
        monkeypatch.setattr(steps, "_MOST", -1)
    x = ad.tensor(R.normal(size=(3, 2 * N)))

    def f(x: Any) -> Any:
        rows = x.T[::2]
        last, ys = ad.scan(lambda c, v: (c * 0.5 + v[0], c * v[1]), ad.zeros(3), (rows, rows[:, 0]),
                           reverse=reverse)  # fmt: skip
        return (last * ys).sum()

    found = ad.compile(ad.grad(f), backend="native")(x)
    np.testing.assert_allclose(found.numpy(), ad.grad(f)(x).numpy(), rtol=1e-12)


LEVELS = np.array([1.0, 1, 1, 3, 3, 2, 2, 2, 2, 5, 4, 4, 4, 4, 4, 0, 0, 0, 0])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("small", [True, False])
def test_iterations_that_repeat_the_one_before_are_skipped(
    small: bool, reverse: bool, dtype: Any, monkeypatch: Any
) -> None:
    """They read the same rows, and the carry did not change: it changes again when the rows do."""
    if not small:
        monkeypatch.setattr(steps, "_MOST", -1)
    monkeypatch.setattr(loops, "Body", Settling)
    rows = np.stack([LEVELS, LEVELS * 0.5, np.sqrt(LEVELS)], 1).astype(dtype)

    def f(x: Any) -> Any:
        def step(c: Any, v: Any) -> Any:
            top, count, lost = c
            return (ad.maximum(top, v * x), ad.minimum(count + 1, 4), lost * np.nan), (top * v, v.sum())

        start = ad.zeros(3, dtype=dtype), 0, ad.ones(2, dtype=dtype)
        (top, count, _), (a, b) = ad.scan(step, start, rows, reverse=reverse)
        return ((a * b[:, None]).sum() + top.sum() * count).astype(dtype)

    both = ad.value_and_grad(f)
    compiled = ad.compile(both, backend="native")
    for x in (np.array([1.0, 2.0, 0.5]), np.array([-1.0, 0.5, 3.0])):
        given = ad.tensor(x.astype(dtype))
        for a, b in zip(compiled(given), both(given), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12 if dtype is np.float64 else 1e-5)
    assert " 0 calls of NumPy" in compiled.explain(given)


class Settling(Body):
    """The body of a loop that may skip iterations, as those of ``while_loop`` do."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.settles = True


@pytest.mark.parametrize("size", [3, 100])
def test_a_loop_with_a_distant_limit(size: int) -> None:
    def f(x: Any) -> Any:
        grown = ad.while_loop(lambda c: c[1] < 6, lambda c: (ad.sin(c[0]) + x, c[1] + 1), (x, 0), limit=300)
        return (grown[0] ** 2).sum()

    x = np.linspace(0.1, 0.9, size)
    for g in (f, ad.grad(f)):
        np.testing.assert_allclose(ad.compile(g, backend="native")(x), g(x), rtol=1e-12)


@pytest.mark.parametrize("small", [True, False])
def test_an_index_out_of_range_is_an_error(small: bool, monkeypatch: Any) -> None:
    if not small:
        monkeypatch.setattr(steps, "_MOST", -1)
    table = ad.tensor(np.arange(5.0))
    f = ad.compile(lambda at: ad.scan(lambda c, i: (c + table[i], c), 0.0, at)[0], backend="native")
    at = np.arange(10) % 5
    assert f(ad.tensor(at)).item() == 20
    at[7] = 5
    with pytest.raises((AdjointError, IndexError)):
        f(ad.tensor(at))
    at[7] = 0
    assert f(ad.tensor(at)).item() == 18


def test_bodies_with_calls_of_numpy_run_from_python() -> None:
    (x,) = tensors((N, 3, 3))

    def f(x: Any) -> Any:
        return ad.scan(lambda c, v: (ad.special.dawsn(ad.tanh(c + v @ v.T)), ()), ad.eye(3), x)[0].sum()

    compiled = ad.compile(ad.grad(f), backend="native")
    np.testing.assert_allclose(compiled(x).numpy(), ad.grad(f)(x).numpy(), rtol=1e-9)
    assert "a step of the loop calls NumPy" in compiled.explain(x)


def test_threads_take_part_in_the_steps_of_a_long_loop() -> None:
    w, x = tensors((96, 96), (20, 128, 96), dtype=np.float32)
    w = (w * 0.1).detach()

    def f(w: Any, x: Any) -> Any:
        last, ys = ad.scan(lambda c, v: (ad.tanh(ad.matmul(c, w) + v), c.mean()), x[0] * 0, x)
        return last.mean() + ys.sum()

    both = ad.value_and_grad(f, argnums=(0, 1))
    for a, b in zip(
        ad.tree.leaves(ad.compile(both, backend="native")(w, x)), ad.tree.leaves(both(w, x)), strict=True
    ):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_are_native(kind: str, dtype: Any) -> None:
    net = getattr(ad.nn, kind)(3, 5, rng=0).astype(dtype)
    (x,) = tensors((4, 9, 3), dtype=dtype)

    def f(x: Any) -> Any:
        out = net(x)[0]
        loss = (out * out).sum()
        return loss, ad.gradients(loss, [x, *net.parameters()])

    compiled = ad.compile(f, backend="native")
    given = ad.tensor(x.numpy(), requires_grad=True)
    for a, b in zip(ad.tree.leaves(compiled(given)), ad.tree.leaves(f(given)), strict=True):
        tolerance = 1e-11 if dtype is np.float64 else 1e-4
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=tolerance, atol=tolerance)
    assert " 0 calls of NumPy" in compiled.explain(given)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32, np.bool_])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_running_sums_and_products(name: str, axis: int, dtype: Any) -> None:
    x = np.asarray(np.random.default_rng(2).normal(size=(9, 4, 3)) * 2).astype(dtype)
    if x.dtype.kind == "f":
        x[0] = -0.0
    compiled = ad.compile(lambda x: getattr(ad, name)(x, axis=axis), backend="native")
    found, wanted = np.asarray(compiled(x)), getattr(np, name)(x, axis=axis)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))
    assert " 0 calls of NumPy" in compiled.explain(x)


def _epoch(dropout: float, optimizer: str, detached: bool, rng: int = 3) -> Any:
    """An epoch as a function of the order of the examples, its model and its optimiser."""
    data = np.random.default_rng(4)
    x, y = ad.tensor(data.normal(size=(48, 5)).astype(np.float32)), ad.tensor(data.integers(0, 3, 48))
    layers = [ad.nn.Linear(5, 6, rng=0), ad.nn.Tanh(), ad.nn.Linear(6, 3, rng=1)]
    if dropout:
        layers.insert(2, ad.nn.Dropout(dropout, rng=ad.random.default_rng(rng)))
    model = ad.nn.Sequential(*layers)
    steps = getattr(ad.optim, optimizer)(model.parameters(), lr=0.05)

    def epoch(order: Any) -> Any:
        def step(total: Any, rows: Any) -> Any:
            steps.zero_grad()
            loss = ad.nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            steps.step()
            return total + loss.detach(), loss.detach() if detached else loss

        return ad.scan(step, np.float32(0), order)

    return epoch, model, steps


@pytest.mark.parametrize("backend", ["replay", "native"])
@pytest.mark.parametrize(
    ("dropout", "optimizer", "detached"),
    [(0.0, "SGD", True), (0.5, "Adam", True), (0.2, "AdamW", False), (0.0, "RMSprop", True)],
)
def test_an_epoch_is_one_call(dropout: float, optimizer: str, detached: bool, backend: str) -> None:
    eager, a, first = _epoch(dropout, optimizer, detached)
    function, b, second = _epoch(dropout, optimizer, detached)
    compiled = ad.compile(function, backend=backend)
    tolerance = 0.0 if backend == "replay" else 2e-5
    for k in range(3):
        order = np.random.default_rng(k).permutation(48).reshape(8, 6)
        for u, v in zip(ad.tree.leaves(compiled(order)), ad.tree.leaves(eager(order)), strict=True):
            np.testing.assert_allclose(np.asarray(u), v.numpy(), rtol=tolerance, atol=tolerance)
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            np.testing.assert_allclose(q.numpy(), p.numpy(), rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(q.grad.numpy(), p.grad.numpy(), rtol=tolerance, atol=tolerance)
        assert first.step_count == second.step_count == 8 * (k + 1)
        first.lr = second.lr = 0.02
    assert compiled.stats()["traces"] == 1
    assert compiled.stats()["programs"][0]["instructions"] <= 2
    if backend == "native":
        assert " 0 calls of NumPy" in compiled.explain(order)


def test_labels_out_of_range_in_an_epoch_are_errors_and_leave_all() -> None:
    model = ad.nn.Linear(4, 3, rng=0)
    optimizer = ad.optim.SGD(model.parameters(), lr=0.1)

    @ad.compile
    def epoch(x: Any, y: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            optimizer.zero_grad()
            loss = ad.nn.functional.cross_entropy(model(row[0]), row[1])
            loss.backward()
            optimizer.step()
            return carry, loss.detach()

        return ad.scan(step, (), (x, y))[1]

    x, y = R.normal(size=(9, 2, 4)).astype(np.float32), R.integers(0, 3, (9, 2))
    epoch(x, y)
    before = model.weight.numpy().copy()
    for wrong in (-2, 3):
        bad = y.copy()
        bad[5, 1] = wrong
        with pytest.raises(AdjointError, match="out of range"):
            epoch(x, bad)
        np.testing.assert_array_equal(model.weight.numpy(), before)
    epoch(x, y)
    assert optimizer.step_count == 18


def test_draws_of_steps_are_those_of_the_eager_loop() -> None:
    def make() -> Any:
        rng = ad.random.default_rng(7)

        def f(w: Any) -> Any:
            def body(c: Any, x: Any) -> Any:
                first, second = rng.normal((3,)), rng.uniform()
                return ad.tanh(c * w + first) * second, c * x

            before = rng.normal()
            last, ys = ad.scan(body, w, np.ones((N, 3)))
            return (last * ys).sum() * before + rng.normal()

        return ad.value_and_grad(f)

    w = ad.tensor(R.normal(size=3))
    eager, compiled = make(), ad.compile(make())
    for _ in range(3):
        for a, b in zip(eager(w), compiled(w), strict=True):
            np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-12)
    assert compiled.stats()["programs"][0]["instructions"] < 60
