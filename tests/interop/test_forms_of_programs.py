"""What NumPy programs write with tensors: counts and axes as arrays, facts of the memory, sparse matrices, assertions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import adjoint as ad
import adjoint.numpy as anp

X = np.arange(1.0, 7.0).reshape(2, 3)
N = ad.tensor(2)
AXIS, AXES = np.array(1), np.array([0, 1])


@pytest.mark.parametrize("n", [N, ad.tensor(2.0), 2.0, np.float64(2), np.array(2)], ids=repr)
def test_numbers_of_parts_may_be_tensors_and_whole_floats(n):
    x = ad.tensor(X, requires_grad=True)
    for split in (ad.split, anp.split, np.split, ad.array_split):
        parts = split(x, n)
        assert [p.tolist() for p in parts] == [[X[0].tolist()], [X[1].tolist()]]
    with pytest.raises(ad.errors.InputError, match="pass the number of parts, or a list of the indices"):
        ad.split(x, 1.5)


WHOLE_FLOATS = {
    "shift": lambda xp, x: xp.roll(x, 1.0), "diagonal": lambda xp, x: xp.tril(x, np.float64(1)),
    "upper diagonal": lambda xp, x: xp.triu(x, -1.0), "turns": lambda xp, x: xp.rot90(x, 3.0),
    "repeats": lambda xp, x: xp.repeat(x, 2.0), "repeats of each": lambda xp, x: xp.repeat(x, [1.0, 2.0], axis=0),
    "index": lambda xp, x: xp.take(x, 2.0), "indices": lambda xp, x: xp.take(x, [[1.0, 0.0]], axis=1),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*integer.*(d|D)eprecated.*NumPy 2.5:DeprecationWarning")
@pytest.mark.parametrize("name", WHOLE_FLOATS)
def test_whole_floats_count_where_numpy_takes_them(name):
    f, x = WHOLE_FLOATS[name], ad.tensor(X, requires_grad=True)
    for xp in (ad, anp, np):
        found = f(xp, x)
        assert found.requires_grad and np.array_equal(found.detach(), f(np, X))


def test_other_floats_are_no_counts():
    x = ad.tensor(X)
    for f in (lambda: ad.repeat(x, 1.5), lambda: ad.tril(x, 0.5), lambda: ad.rot90(x, ad.tensor(0.5))):
        with pytest.raises(ad.errors.InputError, match=r"must be (an integer|integers), but got"):
            f()
    with pytest.raises(ad.errors.IndexingError, match="indices must be integers, but have dtype float64"):
        ad.take(x, [1.0, 0.5])
    assert np.array_equal(ad.tril(x, ad.tensor(1.0)), np.tril(X, 1))


def test_several_axes_may_be_arrays():
    x = ad.tensor(X)
    assert ad.expand_dims(x, AXES).shape == np.expand_dims(x, ad.tensor([0, 1])).shape == (1, 1, 2, 3)
    assert np.array_equal(ad.roll(x, np.array([1, 2]), AXES), np.roll(X, [1, 2], [0, 1]))
    assert np.array_equal(ad.roll(x, N, AXIS), np.roll(X, 2, 1))


def test_an_integer_without_axes_repeats_sequences_as_a_number_does():
    assert [0] * N == N * [0] == [0, 0] and (0,) * N == (0, 0) and "ab" * N == N * "ab" == "abab"
    counted = [1, 2]
    counted *= N
    assert counted == [1, 2, 1, 2]
    # a float, a tensor with axes and the function multiply the elements
    assert ([1.0, 2.0] * ad.tensor(2.0)).tolist() == ad.multiply([1.0, 2.0], N).tolist() == [2.0, 4.0]
    assert (
        ([1.0, 2.0] * ad.tensor([2, 3])).tolist()
        == np.multiply([1.0, 2.0], ad.tensor([2, 3])).tolist()
        == [2.0, 6.0]
    )
    with pytest.raises(ad.errors.InputError, match=r"Inside ad\.compile tensors have no values"):
        ad.compile(lambda x: x * len([0] * N))(1.5)


def test_facts_of_the_memory_are_those_of_a_read_only_array():
    x, recorded = ad.tensor(X), ad.tensor(X, requires_grad=True)
    assert x.base is None and recorded.base is None
    assert (x.strides, x.nbytes, x.flags.c_contiguous, x.flags.writeable) == ((24, 8), 48, True, False)
    assert x.data.readonly and np.array_equal(np.asarray(x.data), X)
    assert x.ctypes.data == x.numpy().ctypes.data and tuple(x.ctypes.shape) == (2, 3)
    for name in ("data", "ctypes"):
        assert not hasattr(recorded, name)
        with pytest.raises(ad.errors.AbsentNameError) as caught:
            getattr(recorded, name)
        assert str(caught.value) == (
            f"a tensor that requires grad has no {name!r}.  Use x.numpy() to read; x.copy_(v), x[i] = v or x -= v "
            "under ad.no_grad() to write."
        )


ASSERTIONS = {
    "assert_allclose": np.testing.assert_allclose, "assert_array_equal": np.testing.assert_array_equal,
    "assert_equal": np.testing.assert_equal, "assert_array_almost_equal": np.testing.assert_array_almost_equal,
    "assert_array_max_ulp": np.testing.assert_array_max_ulp,
}  # fmt: skip


@pytest.mark.parametrize("name", ASSERTIONS)
@pytest.mark.parametrize("recorded", [False, True])
def test_assertions_of_numpy_compare_tensors(name, recorded):
    check, x = ASSERTIONS[name], ad.tensor(X, requires_grad=recorded)
    for a, b in ((x, X), (X, x), (x, x * 1)):
        check(a, b)
        with pytest.raises(AssertionError):
            check(a, b + 1)
    with pytest.raises((AssertionError, ValueError)):
        check(x, x[0])


def test_assert_equal_compares_shapes_and_nans():
    x = ad.tensor([1.0, np.nan])
    np.testing.assert_equal(x, x * 1)
    np.testing.assert_equal({"a": [x]}, {"a": [x * 1]})
    with pytest.raises(AssertionError):
        np.testing.assert_equal(x, ad.tensor([np.nan, 1.0]))
    with pytest.raises(AssertionError):
        np.testing.assert_equal(ad.ones((2, 2)), ad.ones(2))
    with pytest.raises(ad.errors.LostHistoryError):  # no other part of NumPy reads recorded values
        np.asarray(ad.tensor(1.0, requires_grad=True))


M = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
FORMATS = ["csr_array", "csc_array", "coo_array", "dia_array", "lil_array", "csr_matrix", "coo_matrix"]


@pytest.mark.parametrize("form", FORMATS)
def test_products_and_sums_with_sparse_matrices_of_scipy(form):
    m, x, square = getattr(sp, form)(M), np.array([[1.0, 2.0], [3.0, 4.0]]), np.ones((2, 3))
    operations = [
        (lambda x, m: x @ m, x), (lambda x, m: x[0] @ m, x), (lambda y, m: y + m, square), (lambda y, m: m + y, square),
        (lambda y, m: y - m, square), (lambda y, m: m - y, square), (lambda y, m: 2.0 * y - (y + m), square),
    ]  # fmt: skip
    for f, given in operations:
        expected = np.asarray(f(given, m))
        found = f(ad.tensor(given), m)
        assert isinstance(found, ad.Tensor)
        np.testing.assert_allclose(found, expected)
        recorded = f(ad.tensor(given, requires_grad=True), m)
        slopes = ad.grad(lambda v, m, f=f: (f(v, m) ** 2).sum())(ad.tensor(given), m)
        dense = ad.grad(lambda v, m, f=f: (f(v, m) ** 2).sum())(ad.tensor(given), ad.tensor(M))
        np.testing.assert_allclose(slopes, dense)
        assert recorded.requires_grad
    assert np.allclose(m @ ad.ones((3, 2)), M @ np.ones((3, 2)))
    assert (m @ ad.ones((3, 2), requires_grad=True)).requires_grad


def test_stars_of_sparse_matrices_and_of_sparse_arrays():
    x = ad.tensor([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(x * sp.csr_matrix(M), x.numpy() @ M)
    product = ad.tensor(np.full((2, 3), 2.0)) * sp.csr_array(M)
    np.testing.assert_allclose(product.toarray(), 2 * M)
    np.testing.assert_allclose((ad.tensor(3.0) * sp.csr_array(M)).toarray(), 3 * M)
    np.testing.assert_allclose((sp.csr_array(M) / ad.tensor(2.0)).toarray(), M / 2)
    with pytest.raises(ad.errors.DTypeError, match="cannot make a tensor from a csr_array"):
        ad.maximum(x, sp.csr_array(M))
