"""Indexing, choosing and sorting: NumPy's values, gradients that add up, and what is said of mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from messages import message_of
from numpy_calls import Call, call, check_gradients, check_values, distinct

import adjoint as ad
from adjoint.errors import ArgumentError, DTypeError, IndexingError, InputError, ShapeError
from adjoint.ops.scatter import add_flat
from adjoint.testing import gradcheck

nan = np.nan

# x[key] ----------------------------------------------------------------------------------------

A = distinct((3, 4, 2))
KEYS: list[Any] = [
    0, -1, np.int64(2), slice(None), slice(1, None), slice(None, None, -1), slice(2, 0, -2), slice(5, 9), ..., None, (),
    (0, 1), (0, 1, 1), (..., 0), (0, ...), (slice(None), 1), (None, 0, ..., None), (slice(None), slice(3, None, -2), None, 1),
    (..., slice(1, 2)), ([0, 2],), [2, 0, 2, 2], [[0, 1], [2, 2]], np.array([-1, 0, -1]), [], np.array([], int),
    ([0, 1], [1, 3]), ([0, 1], [1, 3], [0, 1]), ([[0], [2]], [1, 3]), (0, [1, 1]), ([1, 1], 0), ([0, 1], slice(None), [1, 1]),
    (slice(None), [0, 0, 3]), (slice(1), [[0, 1]]), (..., [0, 1, 1]), (None, [0, 2]), ([0, 2], None, 1), (0, slice(None), [0, 1]),
    (0, None, [1, 2]), A > 0, A[:, :, 0] > 0, A[:, 0, 0] > 0, (A[:, 0, 0] > 0, 1), (slice(None), A[0] > 0),
    (slice(None), A[0, :, 0] > 0, [0]), (A[:, 0, 0] > 100,), np.zeros((3, 4, 2), bool), True, False, (True, 0), (..., False),
    np.array(1), ([True, False, True],), (np.array([0, 2], np.uint8),),
]  # fmt: skip


def named(key: Any) -> str:
    return repr(key).replace("\n", "").replace(" ", "")[:60]


@pytest.mark.parametrize("key", KEYS, ids=named)
def test_reading_is_as_in_numpy(key: Any) -> None:
    y = ad.tensor(A)[key]
    expected = A[key]
    assert y.shape == expected.shape
    assert np.array_equal(y.numpy(), expected)
    assert gradcheck(lambda x: x[key], [A], order=2)


@pytest.mark.parametrize("key", KEYS, ids=named)
def test_gradients_of_repeated_elements_add_up(key: Any) -> None:
    x = ad.tensor(A, requires_grad=True)
    g = distinct(A[key].shape)
    x[key].backward(ad.tensor(g))
    expected = np.zeros_like(A)
    np.add.at(expected, key, g)
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("key", KEYS, ids=named)
def test_writing_makes_a_new_tensor(key: Any) -> None:
    v = distinct(A[key].shape) + 10
    x = ad.tensor(A)
    expected = A.copy()
    expected[key] = v
    assert np.array_equal(x.at[key].set(v).numpy(), expected)
    expected = A.copy()
    np.add.at(expected, key, v)
    np.testing.assert_allclose(x.at[key].add(v).numpy(), expected, rtol=1e-14)
    expected = A.copy()
    np.multiply.at(expected, key, v)
    np.testing.assert_allclose(x.at[key].mul(v).numpy(), expected, rtol=1e-14)
    for name in ("max", "min"):
        expected = A.copy()
        getattr(np, f"{name}imum").at(expected, key, v)
        assert np.array_equal(getattr(x.at[key], name)(v).numpy(), expected)
    assert np.array_equal(x.numpy(), A)
    assert np.array_equal(x.at[key].get().numpy(), A[key])


@pytest.mark.parametrize("key", [[2, 0, 2, 2], (..., [0, 1, 1]), 1, A > 0, ([0, 0], [1, 1])], ids=named)
def test_writing_differentiates_in_the_old_and_in_the_new(key: Any) -> None:
    v = distinct(A[key].shape) + 5
    for name in ("set", "add", "mul", "max", "min"):
        assert gradcheck(lambda x, v, n=name: getattr(x.at[key], n)(v), [A, v], order=2), name
    assert gradcheck(lambda x, v: x.at[key].set(v), [A, np.array(2.5)])


def test_of_repeated_positions_the_last_value_counts_and_alone_gets_a_gradient() -> None:
    v = ad.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = ad.zeros(2).at[[0, 0, 1]].set(v)
    assert y.tolist() == [2, 3]
    y.backward(ad.tensor([10.0, 20.0]))
    assert v.grad.tolist() == [0, 10, 20]


def test_an_update_keeps_the_dtype_of_the_tensor() -> None:
    x = ad.ones(3, dtype=np.float32)
    assert x.at[0].set(np.float64(2)).dtype == np.float32
    assert x.at[[0, 0]].add(np.ones(2)).dtype == np.float32
    with pytest.raises(TypeError, match="complex128 values cannot be written into a float32 tensor"):
        x.at[0].set(1j)


@pytest.mark.parametrize("name", ["set", "add", "mul", "max", "min"])
def test_an_update_casts_no_more_than_an_assignment(name: str) -> None:
    whole = ad.arange(3)
    for value in (1.5, np.ones(1), ad.tensor(0.5)):
        with pytest.raises(DTypeError) as caught:
            getattr(whole.at[1:], name)(value)
        assert str(caught.value) == (
            "x.at[key]: float64 values cannot be written into a int64 tensor.\n"
            "  Cast the tensor first, x.astype('float64'), or cast the values."
        )
    small = ad.tensor([1, 2], dtype=np.int8)
    for value in (300, -129):
        with pytest.raises(ArgumentError, match=f"{value} is out of range for a int8 tensor"):
            getattr(small.at[0], name)(value)
    assert getattr(small.at[0], name)(2).dtype == np.int8
    assert getattr(small.at[0], name)(np.int64(2)).dtype == np.int8  # of the same kind, as in x[0] = value


def test_bfloat16_takes_floats() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = ad.tensor([1.0, 2.0], dtype=bfloat16)
    for value in (3.0, 3, np.float64(3), ad.tensor(3.0)):
        y = x.at[0].set(value)
        assert y.dtype == bfloat16
        assert y.tolist() == [3, 2]
    assert ad.ones(1).at[0].set(x[1]).tolist() == [2]


def test_maxima_at_repeated_positions_are_folded_in_order() -> None:
    x, v = ad.ones(1, requires_grad=True), ad.ones(2, requires_grad=True)
    for name in ("max", "min"):
        gx, gv = ad.grad(lambda x, v, n=name: getattr(x.at[[0, 0]], n)(v).sum(), argnums=(0, 1))(x, v)
        assert (gx.tolist(), gv.tolist()) == ([0.25], [0.25, 0.5])


def test_keys_are_copied_so_that_later_writes_do_not_matter() -> None:
    x, i = ad.tensor([1.0, 2.0, 3.0], requires_grad=True), np.array([0, 1])
    y = x[i]
    i[:] = 2
    y.sum().backward()
    assert x.grad.tolist() == [1, 1, 0]


@given(
    npst.arrays(np.float64, npst.array_shapes(max_dims=3, max_side=4), elements=st.integers(-9, 9)), st.data()
)
def test_any_basic_key(a: Any, data: Any) -> None:
    key = data.draw(npst.basic_indices(a.shape, allow_newaxis=True, allow_ellipsis=True))
    y = ad.tensor(a)[key]
    assert y.shape == np.asarray(a[key]).shape
    assert np.array_equal(y.numpy(), a[key])


@given(npst.array_shapes(min_dims=1, max_dims=3, max_side=4), st.data())
def test_any_advanced_key(shape: tuple[int, ...], data: Any) -> None:
    key = data.draw(npst.integer_array_indices(shape))
    a = distinct(shape)
    x = ad.tensor(a, requires_grad=True)
    y = x[key]
    assert np.array_equal(y.numpy(), a[key])
    g = np.arange(float(y.size)).reshape(y.shape)
    y.backward(ad.tensor(g))
    expected = np.zeros(shape)
    np.add.at(expected, key, g)
    assert np.array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex128, np.int32])
@pytest.mark.parametrize(("count", "size"), [(0, 5), (3, 1000), (5000, 7), (40, 40)])
def test_scatter_adds_and_keeps_the_dtype(dtype: Any, count: int, size: int) -> None:
    rng = np.random.default_rng(0)
    positions, values = rng.integers(0, size, count), rng.integers(-3, 4, count).astype(dtype)
    out = add_flat(values, positions, (size,))
    expected = np.zeros(size, np.complex128)
    np.add.at(expected, positions, values)
    assert out.dtype == dtype
    assert np.array_equal(out, expected.astype(dtype) if np.dtype(dtype).kind == "c" else expected.real)


def test_many_float32_values_at_one_place_lose_nothing() -> None:
    x = ad.zeros(2, dtype=np.float32, requires_grad=True)
    n = 1_000_000
    (x[np.zeros(n, int)] * np.float32(0.1)).sum().backward()
    assert x.grad.tolist() == [pytest.approx(n * 0.1, rel=1e-6), 0]


# Inside a transform ----------------------------------------------------------------------------


def test_an_index_inside_vmap_reads_and_writes() -> None:
    a, i, j = distinct((3, 4)), np.array([0, 2, -1]), np.array([3, -4, 1])
    x, n = ad.tensor(a), np.arange(3)
    assert np.array_equal(np.asarray(ad.vmap(lambda i: x[i])(i)), a[i])
    assert np.array_equal(np.asarray(ad.vmap(lambda i, j: x[i, j])(i, j)), a[i, j])
    assert np.array_equal(np.asarray(ad.vmap(lambda r, j: r[j])(x, j)), a[n, j])
    assert np.array_equal(np.asarray(ad.vmap(lambda r, j: r.at[j].get())(x, j)), a[n, j])
    expected = a.copy()
    expected[n, j] = 9.0
    assert np.array_equal(np.asarray(ad.vmap(lambda r, j: r.at[j].set(9.0))(x, j)), expected)
    assert np.allclose(np.asarray(ad.vmap(lambda r, j: r.at[j].add(9.0))(x, j)), a + (expected == 9) * 9)
    rows = np.asarray(ad.vmap(lambda i: x.at[i].set(ad.arange(4.0)))(i))
    assert all(rows[k, i[k]].tolist() == [0, 1, 2, 3] for k in n)


def test_gradients_of_an_index_inside_vmap() -> None:
    x, i = ad.tensor(distinct((3, 4))), np.array([0, 2, -1])
    per_row = ad.vmap(ad.grad(lambda w, i: (w[i] ** 2).sum()), in_axes=(None, 0))(x, i).numpy()
    for k, row in enumerate(i):
        expected = np.zeros((3, 4))
        expected[row] = 2 * x.numpy()[row]
        assert np.allclose(per_row[k], expected)


@pytest.mark.parametrize("bad", [3, -4])
def test_an_index_out_of_range_inside_vmap_is_refused(bad: int) -> None:
    x = ad.ones((3, 4))
    for f in (lambda i: x[i], lambda i: x[i, 0], lambda i: x.at[i].set(0.0), lambda i: x.at[i].add(1.0)):
        with pytest.raises(IndexingError):
            ad.vmap(f)(np.array([0, bad]))
    for g in (lambda r, i: r[i], lambda r, i: r.take(i), lambda r, i: r.at[i].add(1.0)):
        with pytest.raises(IndexingError):
            ad.vmap(g)(ad.ones((2, 3)), np.array([0, bad]))


# take and its relatives ------------------------------------------------------------------------

CALLS = [
    call("take", (3, 4), [0, 2, 2]), call("take", (3, 4), [[0, -1], [2, 2]], 0), call("take", (3, 4), 1, -1),
    call("take", (2, 3, 4), [[1, 1], [0, 2]], axis=1), call("take", (3, 4), [], 0), call("take", (3,), [5]),
    call("take", (3,), [5, -7], mode="wrap"), call("take", (3,), [5, -7], mode="clip"), call("take", (3,), [-4]),
    call("take", (), 0), call("take", (3, 4), [0], 2), call("take", (0, 3), [], 0), call("take", (0, 3), [0], 0),
    call("take_along_axis", (3, 4), np.array([[0, 3], [1, 1], [-1, 2]]), 1),
    call("take_along_axis", (3, 4), np.array([[2, 0, 0, 1]]), 0), call("take_along_axis", (3, 1), np.array([[0, 2], [1, 1]]), 0),
    call("take_along_axis", (3, 4), np.array([5, 11, 0]), None), call("take_along_axis", (3, 4), np.array([[0, 4]] * 3), 1),
    call("take_along_axis", (3, 4), np.array([0]), 0), call("take_along_axis", (3, 4), np.array([[0], [1]]), 1),
    call("take_along_axis", (2, 3, 4), np.array([[[0], [2], [1]]]), 2), call("take_along_axis", (3, 4), np.zeros((3, 0), int), 1),
    call("sort", (5,)), call("sort", (3, 4), 0), call("sort", (3, 4), None), call("sort", (3, 4), axis=-2, kind="stable"),
    call("sort", (0,)), call("sort", ()), call("sort", (3, 4), 2), call("argsort", (3, 4)), call("argsort", (3, 4), 0),
    call("argsort", (3, 4), None), call("argsort", (2, 3), -1, stable=True),
    call("unique", (5,)), call("unique", (3, 2), return_index=True, return_inverse=True, return_counts=True),
    call("unique", (3, 2), axis=0), call("unique", (2, 3), False, True), call("unique", (2, 3), axis=2),
    call("nonzero", (2, 3)), call("argwhere", (2, 3)), call("flatnonzero", (2, 3)), call("nonzero", ()),
]  # fmt: skip


@pytest.mark.parametrize("c", CALLS, ids=str)
def test_calls_are_as_in_numpy(c: Call) -> None:
    check_values(c, distinct(c.shape), 0.0)


@pytest.mark.parametrize(
    "c", [c for c in CALLS if c.name in ("take", "take_along_axis", "sort", "unique")], ids=str
)
def test_derivatives(c: Call) -> None:
    a = distinct(c.shape)
    try:
        getattr(ad, c.name)(ad.tensor(a), *c.args, **c.kwargs)
    except (ValueError, TypeError, IndexError):
        return  # a call that raises, tested above
    check_gradients(c, a)


def test_rows_taken_twice_get_both_gradients() -> None:
    table = ad.tensor(distinct((5, 3)), requires_grad=True)
    for f in (lambda t, i: t.take(i, axis=0), lambda t, i: t[i]):
        table.grad = None
        y = f(table, [[1, 1], [4, -1]])
        assert y.shape == (2, 2, 3)
        y.sum().backward()
        assert table.grad.numpy()[:, 0].tolist() == [0, 2, 0, 0, 2]


def test_a_gradient_through_take_keeps_float32() -> None:
    x = ad.ones((4, 2), dtype=np.float32, requires_grad=True)
    ad.take(x, [0, 0, 3], axis=0).sum().backward()
    assert x.grad.dtype == np.float32
    assert x.grad.tolist() == [[2, 2], [0, 0], [0, 0], [1, 1]]


def test_put_along_axis_makes_a_new_tensor() -> None:
    a, i, v = distinct((3, 4)), np.array([[0, 3], [1, 1], [-1, 2]]), distinct((3, 2)) + 9
    expected = a.copy()
    np.put_along_axis(expected, i, v, 1)
    x = ad.tensor(a)
    assert np.array_equal(ad.put_along_axis(x, i, v, 1).numpy(), expected)
    assert np.array_equal(x.numpy(), a)
    expected = a.copy()
    np.put_along_axis(expected, np.array([1, 1, 7]), 5.0, None)
    assert np.array_equal(ad.put_along_axis(x, [1, 1, 7], 5.0, None).numpy(), expected)
    assert gradcheck(lambda x, v: ad.put_along_axis(x, i, v, 1), [a, v], order=2)
    assert gradcheck(lambda x, v: ad.put_along_axis(x, i, v, 1), [a, np.array([[2.0]])], order=2)
    assert gradcheck(lambda x, v: ad.put_along_axis(x, np.array([[0, 1, 2, 0]]), v, 0), [a, v[0, 0]])


def test_put_along_axis_gives_no_gradient_to_what_was_overwritten() -> None:
    v = ad.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    y = ad.put_along_axis(ad.zeros((1, 2)), [[1, 1, 0]], v, axis=1)
    assert y.tolist() == [[3, 2]]
    y.backward(ad.tensor([[10.0, 20.0]]))
    assert v.grad.tolist() == [[0, 20, 10]]


def test_numpys_own_put_along_axis_writes() -> None:
    x = ad.zeros((1, 2))
    assert np.put_along_axis(x, np.array([[0]]), 1.0, 1) is None
    assert x.tolist() == [[1, 0]]


def test_select_chooses_the_first_that_holds() -> None:
    a = distinct((6,))
    conditions, choices = [a < -0.5, a < 0.5], [a * 2, a + 10]
    expected = np.select(conditions, choices, 7.0)
    x = ad.tensor(a)
    assert np.array_equal(ad.select([x < -0.5, x < 0.5], [x * 2, x + 10], 7.0).numpy(), expected)
    assert np.array_equal(np.select(conditions, [x * 2, x + 10], 7.0).numpy(), expected)
    assert gradcheck(lambda x: ad.select(conditions, [x * 2, x**2], x), [a], order=2)


def test_compress_and_extract() -> None:
    a = distinct((3, 4))
    keep = np.array([True, False, True])
    for f in (ad.compress, np.compress):
        assert np.array_equal(f(keep, ad.tensor(a), axis=0).numpy(), np.compress(keep, a, axis=0))
        assert np.array_equal(f(keep, ad.tensor(a)).numpy(), np.compress(keep, a))
    for f in (ad.extract, np.extract):
        assert np.array_equal(f(a > 0, ad.tensor(a)).numpy(), np.extract(a > 0, a))
    assert gradcheck(lambda x: ad.compress(keep, x, axis=0), [a])


def test_where_with_one_argument_gives_positions() -> None:
    a = distinct((2, 3))
    for f in (ad.where, np.where):
        got = f(ad.tensor(a) > 0)
        assert [i.tolist() for i in got] == [i.tolist() for i in np.where(a > 0)]


# Order -----------------------------------------------------------------------------------------


@given(
    npst.arrays(np.float64, npst.array_shapes(max_dims=2, max_side=6), elements=st.integers(-2, 2)),
    st.booleans(),
)
def test_sorting_is_a_gather_by_argsort_and_stable_both_ways(a: Any, descending: bool) -> None:
    i = ad.argsort(a, descending=descending)
    y = ad.sort(a, descending=descending)
    assert np.array_equal(ad.take_along_axis(a, i).numpy(), y.numpy())
    expected = np.argsort(-a if descending else a, kind="stable", axis=-1)
    assert np.array_equal(i.numpy(), expected)
    x = ad.tensor(a, requires_grad=True)
    g = distinct(a.shape)
    ad.sort(x, descending=descending).backward(ad.tensor(g))
    expected_grad = np.empty(a.shape)
    np.put_along_axis(expected_grad, expected, g, -1)
    assert np.array_equal(x.grad.numpy(), expected_grad)


def test_nans_are_sorted_last_and_with_descending_first() -> None:
    assert np.array_equal(ad.sort([nan, 1.0, nan, 0.0]).numpy(), [0, 1, nan, nan], equal_nan=True)
    assert np.array_equal(ad.sort([nan, 1.0, 0.0], descending=True).numpy(), [nan, 1, 0], equal_nan=True)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_topk_is_the_head_of_the_sorted(n: int, largest: bool) -> None:
    a = distinct((3, n))
    for k in {0, 1, n // 5, n}:
        for axis, b in ((-1, a), (0, a.T)):
            values, indices = ad.topk(b, k, axis=axis, largest=largest)
            order = np.argsort(-b if largest else b, axis=axis)
            expected = np.take(order, np.arange(k), axis=axis)
            assert np.array_equal(indices.numpy(), expected)
            assert np.array_equal(values.numpy(), np.take_along_axis(b, expected, axis))
    assert gradcheck(lambda x: ad.topk(x, min(n, 2), largest=largest).values, [a], order=2)


def test_topk_of_equals_gives_the_first_places_first() -> None:
    assert ad.topk([2.0, 2.0, 1.0], 2).indices.tolist() == [0, 1]
    assert ad.topk([1.0] * 20, 1).values.tolist() == [1.0]


def test_searchsorted_is_as_in_numpy() -> None:
    a, v = np.array([0.0, 1.0, 1.0, 3.0]), np.array([[1.0, -1.0], [5.0, nan]])
    for side in ("left", "right"):
        for y in (ad.searchsorted(a, v, side), np.searchsorted(ad.tensor(a), v, side)):
            assert np.array_equal(y.numpy(), np.searchsorted(a, v, side))
    order = np.array([2, 0, 1])
    assert ad.searchsorted([3.0, 9.0, 1.0], 4.0, sorter=order).item() == 2
    assert not ad.searchsorted(ad.tensor(a, requires_grad=True), v).requires_grad


def test_the_array_apis_unique_functions() -> None:
    a = np.array([[2.0, nan], [1.0, 2.0], [nan, 1.0]])
    everything = ad.unique_all(a)
    assert np.array_equal(everything.values.numpy(), [1, 2, nan, nan], equal_nan=True)
    assert everything.indices.tolist() == [2, 0, 1, 4]
    assert everything.inverse_indices.shape == a.shape
    assert everything.counts.tolist() == [2, 2, 1, 1]
    assert ad.unique_counts(a).counts.tolist() == [2, 2, 1, 1]
    assert ad.unique_inverse(a).inverse_indices.shape == a.shape
    assert ad.unique_values([3, 1, 3]).tolist() == [1, 3]
    assert ad.unique(a).shape == (3,)


def test_the_gradient_of_distinct_values_goes_to_their_first_places() -> None:
    x = ad.tensor([2.0, 1.0, 2.0], requires_grad=True)
    ad.unique(x).backward(ad.tensor([10.0, 20.0]))
    assert x.grad.tolist() == [20, 10, 0]


# Mistakes --------------------------------------------------------------------------------------

x34 = ad.ones((3, 4))
MISTAKES = [
    (IndexingError, lambda: ad.vmap(lambda i: x34[i, :, None, 0])(np.array([0])),
     "an index with 3 items cannot be used for shape (3, 4): it has too many items or more than one ellipsis "
     "(...)."),
    (IndexingError, lambda: ad.vmap(lambda r: r[r > 0])(x34),
     "inside a transform, indices must be integers, but have dtype bool.\n"
     "  Use ad.where instead of a mask."),
    (IndexingError, lambda: ad.vmap(lambda i: x34.at[:, i].set(0))(np.array([0])),
     "inside a transform, an index with tensors that depend on the function's arguments can consist only of "
     "integers for the first axes.\n"
     "  Use ad.take or ad.take_along_axis for other axes, and ad.where instead of a mask."),
    (InputError, lambda: ad.vmap(lambda i: x34.at[i].mul(2.0))(np.array([0])),
     "x.at[i] supports only get, set and add if i depends on the arguments of a transformed function."),
    (InputError, lambda: ad.vmap(ad.nonzero)(x34),
     "nonzero: the shape of the result depends on the values of x, which are unknown inside ad.vmap.\n"
     "  Use ad.where(condition, x, y), or multiply by a mask."),
    (IndexingError, lambda: x34[3], "index 3 is out of range for axis 0 of length 3."),
    (IndexingError, lambda: x34[:, -5], "index -5 is out of range for axis 1 of length 4."),
    (IndexingError, lambda: x34[[0, 7]], "index 7 is out of range for axis 0 of length 3."),
    (IndexingError, lambda: x34[..., [0, -5]], "index -5 is out of range for axis 1 of length 4."),
    (IndexingError, lambda: x34[0, 0, 0], "too many indices: the index is for 3 axes, but the tensor of shape (3, 4) has 2."),
    (IndexingError, lambda: x34[..., ...], "an index can have only one ellipsis (...), but this index has more."),
    (IndexingError, lambda: x34[0.5],
     "an index must consist of integers, slices and masks, but contains float64 values.\n"
     "  To use the values as integers, cast them: i.astype(int)."),
    (IndexingError, lambda: x34[0:1.5], "the bounds and step of a slice must be integers or None, but one is 1.5.\n"
                                             "  Convert it: int(n)."),
    (IndexingError, lambda: x34[::0], "the step of a slice must not be 0, but the slice is slice(None, None, 0)."),
    (IndexingError, lambda: x34[np.ones(4, bool)], "a mask must have the lengths of the axes that it selects from, but has shape (4,) for axes 0 to 0 of "
                                                   "shape (3, 4)."),
    (ShapeError, lambda: x34[[[0], [1, 2]]],
     "the nested list is ragged: its rows differ in length, so it has no shape.\n"
     "  Pad the rows to one length, or make one tensor per row."),
    (ShapeError, lambda: x34.at[0].set([1.0, 2.0]),
     "x.at[key]: shapes (4,) and (2,) do not broadcast: axis -1 has length 4 in one and 2 in another.\n"
     "  The lengths of each axis, counted from the end, must be equal or 1.  Reshape or transpose one of the arguments."),
    (InputError, lambda: x34.at.set(1.0), "x.at must be indexed before its methods are called, as in x.at[i].set(v)."),
    (IndexingError, lambda: ad.take(x34, [0, 3], axis=0),
     "take: index 3 is out of range: axis -2 of shape (3, 4) has indices from -3 to 2."),
    (IndexingError, lambda: ad.take(x34, [0.5]),
     "take: indices must be integers, but have dtype float64.\n"
     "  To use the values as integers, cast them: i.astype(int)."),
    (ArgumentError, lambda: ad.take(x34, 0, mode="loop"), "take: mode must be one of raise, wrap, clip, not 'loop'."),
    (IndexingError, lambda: ad.take_along_axis(x34, [[4]] * 3, axis=1),
     "take_along_axis: index 4 is out of range for axis -1 of length 4."),
    (ShapeError, lambda: ad.take_along_axis(x34, [0], axis=1),
     "take_along_axis: the index and the tensor must have the same number of axes, but have shapes (1,) and "
     "(3, 4).\n"
     "  Use ad.take to choose the same positions for all rows."),
    (ShapeError, lambda: ad.put_along_axis(x34, [[0]] * 3, np.ones((3, 2)), axis=1),
     "put_along_axis: values of shape (3, 2) cannot be broadcast to the index of shape (3, 1)."),
    (ArgumentError, lambda: ad.select([x34 > 0], []),
     "select: there must be one choice per condition, and at least one, but there are 1 condition and 0 "
     "choices."),
    (InputError, lambda: ad.select([x34 > 0], 1.0),
     "select: conditions and choices must be lists of tensors, but got float."),
    (InputError, lambda: ad.select([x34], [x34]),
     "select: conditions must be boolean, but one has dtype float64.  Pass x != 0 instead of x."),
    (ShapeError, lambda: ad.topk(x34, 5), "topk: k must be from 0 to 4, the length of axis -1 of shape (3, 4), but is 5."),
    (InputError, lambda: ad.topk(x34, 1.5), "topk: k must be an integer, but got 1.5."),
    (ShapeError, lambda: ad.searchsorted(x34, 1.0),
     "searchsorted: x1 must be a vector, but has shape (3, 4)."),
    (ArgumentError, lambda: ad.searchsorted([1.0], 1.0, side="middle"),
     "searchsorted: side must be 'left' or 'right', not 'middle'."),
    (ArgumentError, lambda: ad.sort(x34, kind="bubble"),
     "sort: kind must be 'quicksort', 'heapsort' or 'stable', not 'bubble'."),
    (ShapeError, lambda: ad.nonzero(1.0), "nonzero: a 0-d tensor has no positions.  Use ad.atleast_1d(x) first."),
    (ShapeError, lambda: ad.compress(np.ones((2, 2), bool), x34),
     "compress: the condition must be a vector, but has shape (2, 2)."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "mistake", "expected"), MISTAKES, ids=[m[2].split(".")[0] for m in MISTAKES]
)
def test_message(error: type[Exception], mistake: Any, expected: str) -> None:
    assert message_of(error, mistake) == expected


@pytest.mark.parametrize("seed", range(40))
def test_gradients_of_many_indices_of_one_tensor(seed: int) -> None:
    """They are added in place: as a recorded backward, in one thread and in two, and as NumPy's add.at."""
    rng = np.random.default_rng(seed)
    keys: list[Any] = [0, -1, 2, slice(None, 2), slice(2, None), slice(None, None, -2), (slice(None), 1)]
    keys += [(1, 2), (..., 0), (None, 1), (slice(None), slice(1, 3)), np.array([0, 0, 2]), ...]
    chosen = [keys[k] for k in rng.integers(len(keys), size=rng.integers(1, 8))]
    a = rng.standard_normal((4, 3))
    weights = [rng.standard_normal(a[key].shape) for key in chosen]
    expected = np.zeros_like(a)
    for key, w in zip(chosen, weights, strict=True):
        np.add.at(expected, key, w)
    between = rng.random() < 0.5
    dtype = rng.choice([np.float64, np.float32, np.float16])
    found = []
    for workers, create_graph in ((1, False), (2, False), (1, True)):
        x = ad.tensor(a.astype(dtype), requires_grad=True)
        y = x * 1.0 if between else x
        total = sum((y[key] * w.astype(dtype)).sum() for key, w in zip(chosen, weights, strict=True))
        (g,) = ad.gradients(total, [x], create_graph=create_graph, workers=workers)
        found.append(g.detach().numpy())
    for g in found:
        np.testing.assert_allclose(g, expected, atol={8: 1e-14, 4: 1e-5, 2: 2e-2}[g.dtype.itemsize])
    np.testing.assert_array_equal(found[0], found[1])
