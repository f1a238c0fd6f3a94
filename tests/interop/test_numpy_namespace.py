"""``adjoint.numpy``: every name of NumPy, tensors from what makes arrays, errors from what drops gradients."""

from __future__ import annotations

import types

import numpy
import pytest

import adjoint as ad
import adjoint.numpy as np
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError, LostHistoryError
from adjoint.interop.numpy import PLAIN
from adjoint.numpy.build import Ufunc
from adjoint.testing import gradcheck

SPACES = [(numpy, np), (numpy.linalg, np.linalg), (numpy.fft, np.fft), (numpy.random, np.random)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("theirs", "ours"), SPACES, ids=["main", "linalg", "fft", "random"])
def test_every_public_name_is_there(theirs, ours):
    for name in theirs.__all__:
        value, own = getattr(theirs, name), getattr(ours, name)
        if isinstance(value, (type, types.ModuleType)) or not callable(value):
            changed = ("fft", "linalg", "random", "vectorize", "r_", "c_", "mgrid", "ogrid")
            assert own is value or name in changed
        elif isinstance(value, numpy.ufunc):
            assert isinstance(own, Ufunc) or name == "isnat"
        else:
            assert callable(own)
            assert own.__doc__ or name == "get_include", name


def test_makers_return_tensors():
    x = numpy.arange(6.0).reshape(2, 3)
    for made, expected in [
        (np.array([1.0, 2.0]), numpy.array([1.0, 2.0])),
        (np.array([[1, 2]], float), numpy.array([[1.0, 2.0]])),
        (np.array(range(3)), numpy.arange(3)),
        (np.array(3.0, ndmin=2), numpy.array([[3.0]])),
        (np.array([]), numpy.array([])),
        (np.array([numpy.float32(1), 2]), numpy.array([numpy.float32(1), 2])),
        (np.array(x, dtype=numpy.float32, copy=False), x.astype(numpy.float32)),
        (np.asarray(x), x),
        (np.asanyarray([True]), numpy.array([True])),
        (np.ascontiguousarray(2.0), numpy.array([2.0])),
        (np.asfortranarray(x), x),
        (np.asarray_chkfinite(x), x),
        (np.identity(2), numpy.identity(2)),
        (np.tri(2, 3), numpy.tri(2, 3)),
        (np.indices((2, 2)), numpy.indices((2, 2))),
        (np.hanning(5), numpy.hanning(5)),
        (np.fromiter((i for i in range(3)), float), numpy.arange(3.0)),
        (np.fromfunction(lambda i, j: i + j, (2, 3)), numpy.add.outer(numpy.arange(2.0), numpy.arange(3.0))),
        (np.tril_indices(3)[0], numpy.tril_indices(3)[0]),
        (np.full((2,), 3.0), numpy.full(2, 3.0)),
        (np.zeros(2, int), numpy.zeros(2, int)),
        (np.ones((2, 2), dtype="float32"), numpy.ones((2, 2), "float32")),
        (np.arange(1, 7, 2), numpy.arange(1, 7, 2)),
        (np.eye(2, 3, k=1), numpy.eye(2, 3, k=1)),
        (np.mgrid[0:2, 0:3], numpy.mgrid[0:2, 0:3]),
        (np.mgrid[0:1:5j], numpy.mgrid[0:1:5j]),
        (np.ogrid[0:2, 0:3][1], numpy.ogrid[0:2, 0:3][1]),
        (np.sin([1.0, 2.0]), numpy.sin([1.0, 2.0])),
        (np.add.outer([1.0, 2.0], [3.0, 4.0, 5.0]), numpy.add.outer([1.0, 2.0], [3.0, 4.0, 5.0])),
        (np.multiply.accumulate([1.0, 2.0]), numpy.multiply.accumulate([1.0, 2.0])),
    ]:
        assert type(made) is Tensor
        assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
        numpy.testing.assert_array_equal(made.numpy(), expected)
    assert np.add.nin == 2 and np.sin.__name__ == "sin"
    assert isinstance(np.array(["a", "b"]), numpy.ndarray)
    assert isinstance(np.array([None, 1], dtype=object), numpy.ndarray)
    with pytest.raises(InputError, match="infinities"):
        np.asarray_chkfinite([numpy.inf])


JOINS = [
    lambda np, a, b: np.r_[a, b],
    lambda np, a, b: np.r_[a, 1.0, 2:4, 0:1:3j, b],
    lambda np, a, b: np.r_[1:4, 2],
    lambda np, a, b: np.c_[a, b],
    lambda np, a, b: np.c_[np.stack([a, b, a]), np.stack([b, a, b])],
    lambda np, a, b: np.r_["0,2", a, b],
    lambda np, a, b: np.r_["1,2,0", a, b],
    lambda np, a, b: np.r_["-1", a, b],
    lambda np, a, b: np.c_[np.array([[1.0, 2.0, 3.0]]), 0.0, 0.0, np.array([[4.0, 5.0, 6.0]])],
]


@pytest.mark.parametrize("join", JOINS, ids=range(len(JOINS)))
def test_r_and_c_join_as_numpy(join):
    a, b = numpy.array([1.0, 2.0, 3.0]), numpy.array([4.0, 5.0, 6.0])
    expected = join(numpy, a, b)
    got = join(np, ad.tensor(a), ad.tensor(b))
    numpy.testing.assert_array_equal(got.numpy(), expected)
    assert got.dtype == expected.dtype
    assert gradcheck(lambda a, b: join(np, a, b) * a[0] * b[0], [a, b])


def test_directives_of_matrices_raise():
    with pytest.raises(InputError, match="a string must be one to three integers"):
        np.r_["r", [1, 2]]
    with pytest.raises(InputError, match="must be the first item"):
        np.r_[[1, 2], "0"]


def test_vectorize():
    f = np.vectorize(lambda a, b: (a * b, a - b) if a > b else (a + b, b * b))
    x, y = numpy.array([1.0, 5.0]), numpy.array([[2.0], [3.0]])
    reference = numpy.vectorize(f.pyfunc)(x, y)
    for got, expected in zip(f(x, y), reference, strict=True):
        numpy.testing.assert_array_equal(got.numpy(), expected)
    assert gradcheck(lambda x, y: f(x, y), [x, y], order=2)
    power = np.vectorize(lambda x, n=1: x**n, excluded=["n"], otypes=[float])
    assert power(ad.tensor(x), n=2).tolist() == [1.0, 25.0]
    assert power(numpy.zeros((0, 2)), n=2).shape == (0, 2)
    assert np.vectorize(lambda t: t * 2)(3.0).item() == 6.0
    with pytest.raises(InputError, match="vmap"):
        np.vectorize(lambda x: x, signature="(n)->()")
    with pytest.raises(InputError, match="otypes"):
        np.vectorize(lambda x: x)([])


def test_functions_of_numpy_alone_take_values_and_keep_histories():
    x = ad.tensor([3.0, 1.0], requires_grad=True)
    for call in (
        lambda: np.union1d(x, [2.0]),
        lambda: np.histogram2d([x, x]),
        lambda: np.random.normal(x),
        lambda: np.sort_complex(x),
    ):
        with pytest.raises(LostHistoryError):
            call()
    assert np.union1d(x.detach(), [2.0]).tolist() == [1.0, 2.0, 3.0]
    assert np.random.RandomState is numpy.random.RandomState
    np.random.seed(3)
    first = np.random.randn(2)
    numpy.random.seed(3)
    assert (first == numpy.random.randn(2)).all()
    with pytest.raises(LostHistoryError) as info:
        np.random.normal(x)
    assert "Draw with ad.random.default_rng(seed), through which gradients flow." in str(info.value)
    assert all(getattr(np, f.__name__) is f for f in PLAIN)


def test_in_transforms():
    x = numpy.array([[0.3, 0.7], [1.0, -2.0]])

    def f(v):
        m = np.array([[v[0], v[1]], [v[1], np.exp(v[0])]])
        return np.sum(np.r_[np.linalg.inv(m) @ v, np.full(2, v[0] * v[1])])

    rows = numpy.stack([ad.grad(f)(row) for row in x])
    numpy.testing.assert_allclose(ad.vmap(ad.grad(f))(x), rows)
    numpy.testing.assert_allclose(ad.jvp(f, (x[0],), (numpy.ones(2),))[1], rows[0].sum())
    numpy.testing.assert_allclose(ad.compile(ad.grad(f))(x[0]), rows[0])
    assert gradcheck(f, x[0], order=2)


def test_whole_numbers_of_no_tensor_are_those_of_numpy():
    """``x += n`` writes into a tensor, but a size or a count is a number that others may hold."""
    start = end = np.sum([2, 1])
    end += np.prod((3, 4))
    assert (start, end) == (3, 15) and type(start) is numpy.int64
    assert isinstance(np.sum([1.0, 2.0]), ad.Tensor) and isinstance(np.prod(ad.tensor([2, 3])), ad.Tensor)
    assert ad.scipy.special.lqmn(ad.tensor(1), ad.tensor(2), 0.5)[0].shape == (2, 3)
