"""Sparse gradients: rows and values from backward to the optimiser, dense only on demand."""

from __future__ import annotations

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adjoint as ad
from adjoint.core.sparse import SparseRows
from adjoint.errors import InPlaceError, InputError, NonFiniteError, ShapeError


def table(rows=6, width=3, dtype=np.float64, seed=0):
    data = np.random.default_rng(seed).standard_normal((rows, width)).astype(dtype)
    return ad.tensor(data, requires_grad=True)


def both(use, **options):
    """The gradient of ``use(table, sparse_grad)`` as sparse and as dense."""
    found = []
    for sparse in (True, False):
        t = table(**options)
        use(t, sparse).backward()
        found.append(t.grad)
    return found


INDEX = np.array([[4, 1], [1, -1]])


def test_embedding_gives_rows():
    sparse, dense = both(lambda t, s: (ad.take(t, INDEX, axis=0, sparse_grad=s) ** 2).sum())
    assert type(sparse) is ad.SparseGradient
    assert sparse.rows.tolist() == [4, 1, 1, 5]
    assert sparse.coalesce().rows.tolist() == [1, 4, 5]
    np.testing.assert_allclose(sparse.to_dense().numpy(), dense.numpy(), rtol=1e-15)


def test_take_along_the_first_axis_gives_rows():
    sparse, dense = both(lambda t, s: ad.take(t, INDEX, axis=0, sparse_grad=s).sum())
    assert type(sparse) is ad.SparseGradient
    np.testing.assert_array_equal(np.asarray(sparse), dense.numpy())


@pytest.mark.parametrize("axis", [1, None])
def test_other_axes_are_dense(axis):
    t = table()
    ad.take(t, [0, 1], axis=axis, sparse_grad=True).sum().backward()
    assert type(t.grad) is ad.Tensor


def test_a_table_that_is_no_leaf_is_dense():
    t = table()
    ad.take(t * 2, [0, 1], axis=0, sparse_grad=True).sum().backward()
    assert type(t.grad) is ad.Tensor


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("uses", ["ss", "sss", "sd", "ds", "dds", "dsd", "ssds"])
def test_contributions_of_both_kinds_add_up(uses, dtype, workers):
    def loss(t, sparse):
        parts = [
            (ad.take(t, INDEX + 0 * i, axis=0, sparse_grad=sparse) * (i + 1)).sum()
            if kind == "s"
            else (t * t).sum()
            for i, kind in enumerate(uses)
        ]
        return sum(parts[1:], parts[0])

    found = []
    for sparse in (True, False):
        t = table(dtype=dtype)
        loss(t, sparse).backward(workers=workers)
        found.append(t.grad)
    assert (type(found[0]) is ad.SparseGradient) == ("d" not in uses)
    assert found[0].dtype == dtype
    np.testing.assert_allclose(found[0].numpy(), found[1].numpy(), rtol=2e-3 if dtype == np.float16 else 1e-6)


def test_backward_twice_stays_sparse():
    t = table()
    for _ in range(2):
        ad.take(t, [1, 2], axis=0, sparse_grad=True).sum().backward()
    assert type(t.grad) is ad.SparseGradient
    np.testing.assert_array_equal(t.grad.numpy()[1], [2.0, 2.0, 2.0])
    (t * 1.0).sum().backward()
    assert type(t.grad) is ad.Tensor
    np.testing.assert_array_equal(t.grad.numpy()[:2, 0], [1.0, 3.0])


def test_the_store():
    t = table()
    grads = ad.backward(ad.take(t, [1, 2, 1], axis=0, sparse_grad=True).sum())
    assert type(grads[t]) is ad.SparseGradient
    assert grads.norm() == pytest.approx(np.sqrt(3 * 4 + 3 * 1))
    assert type(grads.scale(2.0)[t]) is ad.SparseGradient
    merged = grads.merge(grads)
    assert type(merged[t]) is ad.SparseGradient
    np.testing.assert_array_equal(merged[t].numpy()[1], [4.0, 4.0, 4.0])
    dense = ad.backward((t * 1.0).sum())
    np.testing.assert_array_equal(dense.merge(grads)[t].numpy()[:3, 0], [1.0, 3.0, 2.0])
    np.testing.assert_array_equal(grads.merge(dense)[t].numpy()[:3, 0], [1.0, 3.0, 2.0])


def test_create_graph_is_dense_and_right():
    t = table()
    (g,) = ad.gradients((ad.take(t, INDEX, axis=0, sparse_grad=True) ** 3).sum(), [t], create_graph=True)
    assert type(g) is ad.Tensor
    (h,) = ad.gradients(g.sum(), [t])
    expected = 6 * t.numpy() * np.array([0, 2, 0, 0, 1, 1])[:, None]
    np.testing.assert_allclose(h.numpy(), expected)


def test_the_transforms():
    t = table()
    g = ad.grad(lambda w: (ad.take(w, INDEX, axis=0, sparse_grad=True) ** 2).sum())(t)
    expected = 2 * t.numpy() * np.array([0, 2, 0, 0, 1, 1])[:, None]
    np.testing.assert_allclose(g.numpy(), expected)
    per = ad.vmap(lambda i: ad.grad(lambda w: (ad.take(w, i, axis=0, sparse_grad=True) ** 2).sum())(t))(INDEX)
    np.testing.assert_allclose(per.numpy().sum(0), expected)


def test_hooks_see_it_and_may_replace_it():
    t = table()
    seen = []
    t.register_hook(lambda g: seen.append(g))
    t.register_hook(lambda g: g * 2)
    ad.take(t, [1], axis=0, sparse_grad=True).sum().backward()
    assert type(seen[0]) is type(t.grad) is ad.SparseGradient
    np.testing.assert_array_equal(t.grad.values, [[2.0, 2.0, 2.0]])


def test_complex_tables():
    data = np.arange(6).reshape(3, 2) * (1 + 2j)
    found = []
    for sparse in (True, False):
        t = ad.tensor(data, requires_grad=True)
        ad.abs(ad.take(t, [1, 2, 1], axis=0, sparse_grad=sparse) * (2 - 1j)).sum().backward()
        found.append(np.asarray(t.grad))
    np.testing.assert_allclose(found[0], found[1])


def test_anomalies_are_found_in_rows():
    t = table()
    with ad.detect_anomaly():
        rows = ad.take(t, [1], axis=0, sparse_grad=True)
        with pytest.raises(ad.errors.AnomalyError, match="'take' produced NaN in its backward"):
            rows.backward(np.full((1, 3), np.nan))


def test_a_tensor_in_every_other_way():
    g = ad.sparse_gradient([3, 1, 3], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], (5, 2))
    dense = np.array([[0, 0], [3, 4], [0, 0], [6, 8], [0, 0]], float)
    assert (g.shape, g.ndim, g.size, g.dtype, g.nbytes) == ((5, 2), 2, 10, np.float64, 80)
    assert repr(g) == "SparseGradient(3 rows of shape (5, 2), dtype=float64)"
    np.testing.assert_array_equal(g.numpy(), dense)
    np.testing.assert_array_equal((g + 1.0).numpy(), dense + 1)
    np.testing.assert_array_equal((ad.tensor(dense) - g).numpy(), 0 * dense)
    np.testing.assert_array_equal((ad.tensor(dense) + g).numpy(), 2 * dense)
    np.testing.assert_array_equal((g / 2).numpy(), dense / 2)
    np.testing.assert_array_equal((g * ad.tensor(dense)).numpy(), dense * dense)
    np.testing.assert_array_equal(np.exp(g).numpy(), np.exp(dense))
    np.testing.assert_array_equal(g[3].numpy(), [6.0, 8.0])
    assert g.sum().item() == 21.0
    assert g.detach() is g
    for twin in (copy.copy(g), copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        assert type(twin) is ad.SparseGradient
        np.testing.assert_array_equal(twin.numpy(), dense)
    assert not g.rows.flags.writeable
    assert not g.values.flags.writeable


def test_writing_into_it_is_refused():
    g = ad.sparse_gradient([0], [[1.0]], (2, 1))
    with pytest.raises(InPlaceError, match="a sparse gradient cannot be written to"):
        g[0] = 5.0
    assert g.numpy()[0, 0] == 1.0


@pytest.mark.parametrize(
    ("rows", "values", "error"),
    [
        ([0.5], [[1.0]], InputError),
        ([2], [[1.0]], ShapeError),
        ([-1], [[1.0]], ShapeError),
        ([0], [1.0], ShapeError),
        ([[0]], [[1.0]], ShapeError),
    ],
)
def test_rows_are_checked(rows, values, error):
    with pytest.raises(error, match="sparse_gradient"):
        ad.sparse_gradient(rows, values, (2, 1))


def test_no_rows_at_all():
    t = table()
    ad.take(t, np.zeros((0,), int), axis=0, sparse_grad=True).sum().backward()
    assert t.grad.coalesce().rows.size == 0
    np.testing.assert_array_equal(t.grad.numpy(), np.zeros((6, 3)))


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.integers(0, 4), max_size=12), seed=st.integers(0, 9))
def test_rows_as_an_array(rows, seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((len(rows), 2))
    sparse = SparseRows(np.array(rows, np.intp), values, (5, 2))
    dense = np.zeros((5, 2))
    np.add.at(dense, np.array(rows, np.intp), values)
    other = rng.standard_normal((5, 2))
    np.testing.assert_allclose(np.asarray(sparse), dense, atol=1e-14)
    np.testing.assert_allclose(np.add(other, sparse), other + dense, atol=1e-14)
    np.testing.assert_allclose(np.add(sparse, other), other + dense, atol=1e-14)
    np.testing.assert_allclose(np.add(sparse, sparse).to_dense(), 2 * dense, atol=1e-14)
    np.testing.assert_allclose(np.subtract(other, sparse), other - dense, atol=1e-14)
    np.testing.assert_allclose((np.multiply(sparse, 3.0)).to_dense(), 3 * dense, atol=1e-14)
    out = other.copy()
    assert np.add(out, sparse, out) is out
    np.testing.assert_allclose(out, other + dense, atol=1e-14)


# Norms, clipping, accumulation, optimisers -----------------------------------------------------


def test_clipping_counts_repeated_rows_once():
    t = table()
    (ad.take(t, [1, 1, 2], axis=0, sparse_grad=True) * 2).sum().backward()
    dense = t.grad.numpy(copy=True)
    norm = ad.clip_grad_norm([t], 1.0)
    assert norm == pytest.approx(np.linalg.norm(dense))
    assert type(t.grad) is ad.SparseGradient
    np.testing.assert_allclose(t.grad.numpy(), dense / norm)


def test_clip_value_and_adaptive():
    t = table()
    (ad.take(t, [1, 1, 2], axis=0, sparse_grad=True) * 2).sum().backward()
    dense = t.grad.numpy(copy=True)
    ad.clip_grad_value([t], 3.0)
    assert type(t.grad) is ad.SparseGradient
    np.testing.assert_allclose(t.grad.numpy(), np.clip(dense, -3, 3))
    assert ad.clip_grad_adaptive([t], 0.01) == 2
    assert type(t.grad) is ad.SparseGradient
    limits = 0.01 * np.linalg.norm(t.numpy()[1:3], axis=1)
    np.testing.assert_allclose(np.linalg.norm(t.grad.numpy()[1:3], axis=1), limits)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kinds", ["sss", "ssd", "dss", "sds"])
def test_accumulation(kinds, reduction):
    results = []
    for sparse in (True, False):
        t = table(dtype=np.float32)
        acc = ad.GradientAccumulator([t], accumulation_steps=3, reduction=reduction, max_grad_norm=0.5)
        for i, kind in enumerate(kinds):
            with acc.micro_batch(weight=i + 1):
                if kind == "s":
                    (ad.take(t, [i, 1, 1], axis=0, sparse_grad=sparse) * (i + 1)).sum().backward()
                else:
                    (t * t).sum().backward()
        results.append(acc.gradients()["0"])
        seen = []
        acc.apply(lambda g, seen=seen: seen.append(np.array(g["0"])))
        np.testing.assert_allclose(seen[0], np.asarray(results[-1]), rtol=1e-6)
    assert (type(results[0]) is ad.SparseGradient) == (kinds == "sss")
    np.testing.assert_allclose(np.asarray(results[0]), results[1], rtol=1e-5, atol=1e-6)


def test_nonfinite_rows_are_found():
    acc = ad.GradientAccumulator()
    acc.register("t", (3, 1))
    with pytest.raises(NonFiniteError, match="'t'"):
        acc.step({"t": ad.sparse_gradient([1], [[np.inf]], (3, 1))})
    assert acc.stats().total_micro_batches == 0


def test_state_of_a_sparse_sum():
    def fresh():
        acc = ad.GradientAccumulator(accumulation_steps=2)
        acc.register("t", (4, 2))
        return acc

    g = ad.sparse_gradient([2, 0, 2], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], (4, 2))
    acc, resumed = fresh(), fresh()
    acc.step({"t": g}, weight=2)
    resumed.load_state_dict(acc.state_dict())
    for a in (acc, resumed):
        a.step({"t": g}, weight=1)
    assert type(resumed.gradients()["t"]) is ad.SparseGradient
    np.testing.assert_array_equal(resumed.gradients()["t"].numpy(), acc.gradients()["t"].numpy())
    np.testing.assert_allclose(acc.gradients()["t"].numpy(), g.numpy())


@pytest.mark.parametrize("make", [lambda p: ad.optim.SGD(p, 0.1), lambda p: ad.optim.Adagrad(p, 0.1)])
def test_optimisers_update_the_rows_alone(make):
    found = []
    for sparse in (True, False):
        t = table(rows=9000, width=2)
        optimizer = make([t])
        for rows in ([5, 7, 5], [7, 8]):
            t.grad = None
            (ad.take(t, rows, axis=0, sparse_grad=sparse) ** 2).sum().backward()
            optimizer.step()
        found.append(t.numpy(copy=True))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


def test_a_large_table_makes_no_second_dense_array():
    """1,000,000 × 64 in float32 are 256 MB; 32 rows of it are 8 kB."""
    t = ad.tensor(np.zeros((1_000_000, 64), np.float32), requires_grad=True)
    optimizer = ad.optim.SGD([t], lr=0.1)
    acc = ad.GradientAccumulator([t], accumulation_steps=3, max_grad_norm=1.0)
    rng = np.random.default_rng(0)
    tracemalloc.start()
    try:
        for _ in range(2):
            for _ in range(3):
                rows = rng.integers(0, 1_000_000, 32)
                with acc.micro_batch(weight=32):
                    (ad.take(t, rows, axis=0, sparse_grad=True) + 1.0).sum().backward()
            assert acc.apply(optimizer)
            ad.take(t, rows, axis=0, sparse_grad=True).sum().backward()
            assert type(t.grad) is ad.SparseGradient
            ad.clip_grad_norm([t], 1.0)
            optimizer.step()
            optimizer.zero_grad()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
    assert np.count_nonzero(t.numpy()[rows[0]]) == 64


@pytest.mark.parametrize("shape", [(-1, 2), (2.5, 2), ("a", 2), None])
def test_the_shape_of_a_sparse_gradient_is_one(shape):
    with pytest.raises(ShapeError, match="shape"):
        ad.sparse_gradient([], np.zeros((0, 2)), shape)
