"""Native code and replay agree on random programs, at every level of vector instructions and in threads."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hard_values import ulps
from random_programs import REDUCED, arrays, number, program

import adjoint as ad
from adjoint import tree
from adjoint.compiler.emit import machine
from adjoint.compiler.host import native, pool
from adjoint.compiler.lower.lower import Lowered
from adjoint.compiler.lower.target import CPU

pytest.importorskip("llvmlite")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def agree(found: Any, wanted: Any, eps: float) -> None:
    """Compare leaves: NaN and infinities in the same places, numbers to rounding, the rest exactly."""
    for x, y in zip(tree.leaves(found), tree.leaves(wanted), strict=True):
        a, b = x.detach().numpy(), y.detach().numpy()
        assert a.shape == b.shape and a.dtype == b.dtype
        if a.dtype.kind == "f":
            units = 2e4 * eps  # differences cancel
            finite = np.abs(b[np.isfinite(b)])
            np.testing.assert_allclose(a, b, rtol=units, atol=units * finite.max(initial=1.0))
        else:
            np.testing.assert_array_equal(a, b)


def agrees_to_rounding(kind: int, operands: Any, found: Any, wanted: Any) -> None:
    """Check one op of a random program: 2 units in the last place, or the error of a sum.

    Kernels compute functions of float32 to 2 units, but NumPy itself is off by up to 2: they may differ by 4.
    """
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted)
    elif kind in (6, 8):
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(found[~finite], wanted[~finite])
        bound = np.finfo(found.dtype).eps * size_of_sum(kind, *operands).reshape(found.shape)
        assert (np.abs(found - wanted) <= bound)[finite].all()
    else:
        apart = ulps(found, wanted)
        limit = 4 if kind < 3 and found.dtype == np.float32 else 2
        assert ((apart <= limit) & (apart != 0.5)).all(), (apart.max(), operands)


def size_of_sum(kind: int, a: Any, b: Any, k: int, m: int) -> Any:
    """Return by how many eps the sums of an op may differ: NumPy adds in pairs, kernels in lanes and blocks."""
    x, y = (np.abs(number(t).numpy()) for t in (a, b))
    if kind == 8:
        return 2 * x.shape[-1] * (x @ np.swapaxes(y, -1, -2))
    axis = None if m % 4 == 0 else m % x.ndim
    reduced = REDUCED[k % len(REDUCED)]
    if reduced in (ad.max, ad.min):
        return np.zeros_like(x.max(axis=axis))
    few = 8 + 2 * np.log2(x.size if axis is None else x.shape[axis])
    if reduced is ad.var:
        return few * np.square(x).max(axis=axis)
    return few * (1 + reduced(ad.asarray(x), axis=axis).numpy())


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = arrays(rng, 4)
    f = program(rng, 12)
    wanted = ad.compile(f, backend="replay")(*map(ad.asarray, given))
    compiled = ad.compile(f, backend="native")
    single = any(a.dtype == np.float32 for a in given)
    for _ in range(2):
        found = compiled(*map(ad.asarray, given))
        agree(found, wanted, 1.2e-7 if single else 2.3e-16)
    check_each(f, given, found)


def check_each(f: Any, given: Any, found: Any) -> None:
    """Check each op of a program on the operands that native code had."""
    for (kind, operands, made), value in zip(
        f.each(list(map(ad.asarray, given)), found), found, strict=False
    ):
        agrees_to_rounding(kind, operands, value.numpy(), made.numpy())


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("level", machine.levels()[1:])
def test_other_vectors(level: str) -> None:
    for seed in range(100, 106):
        with machine.using(level):
            check(seed)


def test_threads_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(300, 257)).astype("f"), rng.normal(size=(257, 129)).astype("f")

    def f(x: Any, w: Any) -> Any:
        y = ad.tanh(x @ w)
        return y, ad.sum(y * y, axis=0), ad.logsumexp(y, axis=1), ad.mean(y), ad.exp(x).sum()

    alone = ad.compile(f, backend="native")(x, w)
    monkeypatch.setattr(native, "CHUNK", 500.0)
    cut = ad.compile(f, backend="native")
    for _ in range(3):
        for a, b in zip(cut(x, w), alone, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("seed", range(200, 212))
def test_random_programs_in_threads(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that threads share give the bits of one thread."""
    rng = np.random.default_rng(seed)
    given = [np.tile(a, (40,) + (1,) * (a.ndim - 1)) if a.ndim else a for a in arrays(rng, 4)]
    f = program(rng, 12)
    alone = tree.leaves(ad.compile(f, backend="native")(*map(ad.asarray, given)))
    monkeypatch.setattr(native, "CHUNK", 100.0)
    monkeypatch.setattr(native, "HELPED", 0.0)
    cut = ad.compile(f, backend="native")
    for _ in range(2):
        for a, b in zip(tree.leaves(cut(*map(ad.asarray, given))), alone, strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()


def backwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Reverse the order of the records in each run; return a list that collects the lengths of the runs."""
    records, found = pool.records, []

    def reverse(rows: list[Any], runs: Any = None) -> Any:
        order: list[Any] = []
        for n in [1] * len(rows) if runs is None else runs:
            order += rows[len(order) : len(order) + n][::-1]
            found.append(n)
        assert len(order) == len(rows)
        return records(order, runs)

    monkeypatch.setattr(pool, "records", reverse)
    return found


@pytest.mark.parametrize("seed", range(400, 430))
def test_the_order_in_a_run_does_not_matter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    given = arrays(rng, 4)
    f = program(rng, 20)
    wanted = tree.leaves(ad.compile(f, backend="native")(*map(ad.asarray, given)))
    backwards(monkeypatch)
    for a, b in zip(
        tree.leaves(ad.compile(f, backend="native")(*map(ad.asarray, given))), wanted, strict=True
    ):
        assert a.numpy().tobytes() == b.numpy().tobytes()


def test_gradients_of_weights_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the kernels in a run of a training step does not matter either."""
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(32, 20)), [rng.normal(size=(20, 20)) / 5 for _ in range(4)]

    def train() -> list[Any]:
        params = [ad.tensor(w, requires_grad=True) for w in weights]
        optimizer = ad.optim.Adam(params)

        @ad.compile(backend="native")
        def step(x: Any) -> Any:
            y = x
            for p in params:
                y = ad.tanh(ad.nn.functional.linear(y, p)) + y.mean(axis=0)
            loss = (y * y).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return [*(step(x).numpy() for _ in range(3)), *(p.detach().numpy() for p in params)]

    wanted = train()
    runs = backwards(monkeypatch)
    for a, b in zip(train(), wanted, strict=True):
        assert a.tobytes() == b.tobytes()
    assert max(runs) > 1


WIDTHS = (1, 3, 10, 16, 17, 33, 64, 100)


def layers(seed: int, dtype: str) -> Any:
    """A net of random widths, some layers alike, some with a weight of another; inputs are strided."""
    rng = np.random.default_rng(seed)
    widths = [int(rng.choice(WIDTHS)) for _ in range(3)]
    sizes = [*widths, widths[-1], widths[-1], int(rng.choice(WIDTHS))]
    x = rng.normal(size=(int(rng.choice((1, 2, 5, 8, 31, 32))), 2 * sizes[0])).astype(dtype)[:, ::2]
    params = [(rng.normal(size=(m, n)) / m**0.5).astype(dtype) for m, n in itertools.pairwise(sizes)]
    if rng.random() < 0.5:
        params[3] = params[2]
    scale = float(rng.normal())
    acts = [
        (ad.tanh, ad.relu, lambda y: y * scale, lambda y: y / (1 + y * y))[rng.integers(4)] for _ in params
    ]
    turned = rng.random(len(params)) < 0.5

    def loss(x: Any, *params: Any) -> Any:
        for p, act, t in zip(params, acts, turned, strict=True):
            x = act((ad.swapaxes(p, 0, 1) @ ad.swapaxes(x, 0, 1)).T if t else x @ p)
        return (x * x).mean()

    return loss, [x, *params]


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("seed", range(10))
def test_random_layers(seed: int, dtype: str) -> None:
    loss, given = layers(seed, dtype)
    f = ad.value_and_grad(loss, argnums=tuple(range(len(given))))
    wanted = ad.compile(f, backend="replay")(*map(ad.asarray, given))
    compiled = ad.compile(f, backend="native")
    for _ in range(2):
        agree(compiled(*map(ad.asarray, given)), wanted, (1e-5 if dtype == "f" else 1e-13) / 2e4)


@pytest.mark.parametrize("level", machine.levels()[1:])
def test_layers_with_other_vectors(level: str) -> None:
    for seed in range(20, 23):
        with machine.using(level):
            test_random_layers(seed, "f")


def test_alike_groups_keep_their_operands_apart() -> None:
    """Kernels that are written once read the buffers, offsets and numbers of their own group."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(6, 8)), rng.normal(size=(4, 8, 8))

    def f(x: Any, w: Any, a: Any, b: Any) -> Any:
        outs = [ad.tanh(x @ w[k]) * (a if k % 2 else b) + w[k, 1] for k in range(4)]
        return [*outs, outs[0] * 2.0 + outs[0], outs[1] * 2.0 + outs[2], outs[2] * 3.0 + outs[2]]

    given = ad.asarray(x), ad.asarray(w), 0.5, 0.25
    agree(ad.compile(f, backend="native")(*given), ad.compile(f, backend="replay")(*given), 1e-18)


def many_partial_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum columns in the kernels of rows also where arrays are small, in several chunks."""
    monkeypatch.setattr(Lowered.__init__, "__defaults__", (CPU._replace(large=1, rows=1, chunk=1),))


@pytest.mark.parametrize("seed", range(300, 330))
def test_random_programs_with_partial_sums(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    many_partial_sums(monkeypatch)
    check(seed)


def normed(shape: tuple[int, ...], dtype: str) -> Any:
    """Rows that are normed, and several sums and a maximum along their columns."""
    rng = np.random.default_rng(0)
    given = [
        ad.tensor(rng.normal(size=s).astype(dtype), requires_grad=True) for s in (shape, shape[-1:], shape)
    ]
    axes = tuple(range(len(shape) - 1))

    def f(x: Any, w: Any, seed: Any) -> Any:
        y = ad.nn.functional.layer_norm(x, shape[-1:], w, w)
        top = (x - ad.max(x, axis=-1, keepdims=True)) * seed
        sums = top.sum(axis=axes), 2 * (-top).max(axis=axes), (x > seed).sum(axis=axes)
        return y, *ad.gradients(y, (x, w), seed), *sums

    return f, given


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (5, 1), (1, 40), (7, 33), (64, 300), (3, 4, 50), (130, 16), (5000, 7)]
)
def test_sums_along_columns_of_normed_rows(
    shape: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_partial_sums(monkeypatch)
    f, given = normed(shape, dtype)
    wanted = ad.compile(f, backend="replay")(*given)
    for level in machine.levels():
        with machine.using(level):
            agree(ad.compile(f, backend="native")(*given), wanted, float(np.finfo(dtype).eps))


@pytest.mark.parametrize("level", machine.levels())
def test_columns_that_are_no_whole_vector(level: str) -> None:
    """Values that a later loop over the rows needs are kept in narrower vectors where there are no masks."""
    rng = np.random.default_rng(0)

    def f(x: Any) -> Any:
        return (
            ad.exp(x) + x.sum(axis=0),
            ad.sqrt(ad.abs(x)) * x.max(axis=0),
            (x - x.mean(0)) ** 2 + ad.tanh(x),
        )

    for width, dtype in itertools.product((3, 5, 6, 7, 15, 31, 47), "fd"):
        x = ad.tensor(rng.normal(size=(20, width)).astype(dtype))
        with machine.using(level):
            agree(ad.compile(f, backend="native")(x), f(x), float(np.finfo(dtype).eps) / 1e3)


def test_partial_sums_give_the_same_bits_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    many_partial_sums(monkeypatch)
    f, given = normed((300, 70), "f")
    alone = ad.compile(f, backend="native")(*given)
    monkeypatch.setattr(native, "HELPED", 0.0)
    cut = ad.compile(f, backend="native")
    for _ in range(5):
        for a, b in zip(cut(*given), alone, strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()
    assert "[64, 70]" in cut.explain(*given)  # the kernels that add the sums of 64 chunks


def test_no_product_is_stored_for_the_gradient_of_a_norm() -> None:
    """The kernel of the rows adds it to the sums along the columns, so only these are kept."""
    x, w = ad.ones((256, 128), requires_grad=True), ad.ones(128, requires_grad=True)

    def f() -> Any:
        return ad.gradients(ad.nn.functional.layer_norm(x, (128,), w, w).sum(), (x, w))

    native = ad.compile(f, backend="native")
    native()
    assert "; 2048 B of memory" in native.explain().splitlines()[0]


@pytest.mark.parametrize("level", machine.levels())
@pytest.mark.parametrize("n", [5000, 20_000])
def test_a_tall_matrix_is_read_once(n: int, level: str) -> None:
    """The gradient ``X.T @ r`` is summed row by row, in the kernel that computes ``X @ w``."""
    r = np.random.default_rng(n)
    x, y, w = r.normal(size=(n, 50)), r.normal(size=n), ad.tensor(r.normal(size=50))
    f = ad.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())
    with machine.using(level):
        compiled = ad.compile(f, backend="native")
        agree(compiled(w), f(w), np.finfo(float).eps)
        assert sum(f"[{n}, 50]" in line for line in compiled.explain().splitlines()) == 1
        assert compiled.explain().count(" 50]") == (
            2 if n == 5000 else 3
        )  # the others add the sums of blocks


def test_transposed_results_are_computed_in_their_own_order() -> None:
    """Gradients of each sample by a linear layer are transposed outer products."""
    r = np.random.default_rng(0)
    x, y, w = r.normal(size=(5, 3)), r.normal(size=(5, 7)), r.normal(size=(7, 3))
    per_sample = ad.vmap(ad.grad(lambda w, x, y: ((x @ w.T - y) ** 2).sum()), in_axes=(None, 0, 0))
    turned = lambda x, y, w: (
        ad.exp(x * 2.0).T,
        ad.swapaxes(ad.tanh(y)[:, None] * x[..., None], 0, 2),
        (w * w).T,
    )
    for f, given in ((per_sample, (w, x, y)), (turned, (x, y, w))):
        compiled = ad.compile(f, backend="native")
        for a, b in zip(ad.tree.leaves(compiled(*given)), ad.tree.leaves(f(*given)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        assert "copy" not in compiled.explain()
    shared = lambda x: (ad.exp(x).T, ad.exp(x) + 1.0, ad.exp(x))
    for a, b in zip(ad.compile(shared, backend="native")(x), shared(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
