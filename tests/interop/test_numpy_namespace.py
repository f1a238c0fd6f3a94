"""``adjoint.numpy``: every name of NumPy, tensors for tensors, errors from what drops gradients."""

from __future__ import annotations

import types

import numpy
import pytest

import adjoint as ad
import adjoint.numpy as np
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError, LostHistoryError
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
            assert isinstance(own, Ufunc)
        else:
            assert callable(own)
            assert own.__doc__ or name == "get_include", name


def test_makers_return_tensors_for_tensors():
    x = numpy.arange(6.0).reshape(2, 3)
    t, n = ad.tensor(x), ad.tensor(3)
    for made, expected in [
        (np.array(t), x),
        (np.array([n, 1.0]), numpy.array([3.0, 1.0])),
        (np.array([[n, 2]], float), numpy.array([[3.0, 2.0]])),
        (np.array(n, ndmin=2), numpy.array([[3]])),
        (np.array(t, dtype=numpy.float32), x.astype(numpy.float32)),
        (np.array({"a": n, "b": n}.values()), numpy.array([3, 3])),
        (np.asarray(t), x),
        (np.asanyarray([t]), x[None]),
        (np.ascontiguousarray(n), numpy.array([3])),
        (np.asfortranarray(t), x),
        (np.asarray_chkfinite(t), x),
        (np.identity(n), numpy.identity(3)),
        (np.tri(n), numpy.tri(3)),
        (np.hanning(n), numpy.hanning(3)),
        (np.fromfunction(lambda i: i + n, (3,)), numpy.arange(3.0) + 3),
        (np.tril_indices(n)[0], numpy.tril_indices(3)[0]),
        (np.full((2,), ad.tensor(3.0)), numpy.full(2, 3.0)),
        (np.mgrid[0:n], numpy.mgrid[0:3]),
        (np.sin([n, 2.0]), numpy.sin([3.0, 2.0])),
        (np.add.outer([1.0, 2.0], t[0]), numpy.add.outer([1.0, 2.0], x[0])),
        (np.multiply.accumulate(t[0]), numpy.multiply.accumulate(x[0])),
    ]:
        assert type(made) is Tensor
        assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
        numpy.testing.assert_array_equal(made.numpy(), expected)
    assert np.add.nin == 2 and np.sin.__name__ == "sin"
    with pytest.raises(InputError, match="infinities"):
        np.asarray_chkfinite([n, ad.tensor(numpy.inf)])


def test_values_that_are_no_tensors_are_those_of_numpy():
    assert np.array(["a", "b"]).tolist() == ["a", "b"] and np.array([None, 1], dtype=object)[0] is None
    assert np.unique(numpy.array(["b", "a"])).tolist() == ["a", "b"]
    assert type(np.prod((3, 4))) is numpy.int64 and type(np.sum([1.0])) is numpy.float64
    history, c = [], np.zeros(2)
    for _ in range(3):
        c += 1
        history.append(c.copy())
    assert numpy.array(history)[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert np.concatenate({"a": [1.0], "b": [2.0]}.values()).tolist() == [1.0, 2.0]
    assert np.stack(iter([ad.tensor([1.0]), [2.0]])).tolist() == [[1.0], [2.0]]
    out = np.empty(2)
    assert np.add(numpy.ones(2), 1, out=out) is out
    with pytest.warns(RuntimeWarning, match="divide by zero") as caught:
        np.log(numpy.zeros(1))
    assert caught[0].filename == __file__


def test_a_tensor_in_an_array_of_numpy_is_an_error():
    """``a[0] = x`` would lose the gradient: the array is NumPy's, as in autograd."""

    def f(x):
        a = np.zeros(3)
        a[0] = x
        return np.sum(a * x)

    for how in (
        ad.grad(f),
        lambda x: ad.jvp(f, (x,), (1.0,)),
        lambda x: ad.compile(f)(numpy.array(x)),
        lambda x: ad.vmap(f)(numpy.ones(2)),
    ):
        with pytest.raises((LostHistoryError, InputError, ValueError)) as info:
            how(2.0)
        assert "LostHistoryError" in repr(info.getrepr(chain=True)) or isinstance(info.value, InputError)
    recorded = ad.tensor(2.0, requires_grad=True)
    with pytest.raises(ValueError, match="setting an array element"):
        f(recorded)


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
    numpy.testing.assert_array_equal(got, expected)
    assert type(join(np, a, b)) is numpy.ndarray
    assert got.dtype == expected.dtype
    assert gradcheck(lambda a, b: join(np, a, b) * a[0] * b[0], [a, b])


def test_directives_of_matrices_raise():
    with pytest.raises(InputError, match="a string must be one to three integers"):
        np.r_["r", ad.tensor([1, 2])]
    with pytest.raises(InputError, match="must be the first item"):
        np.r_[ad.tensor([1, 2]), "0"]


def test_vectorize():
    f = np.vectorize(lambda a, b: (a * b, a - b) if a > b else (a + b, b * b))
    x, y = numpy.array([1.0, 5.0]), numpy.array([[2.0], [3.0]])
    for got, plain, expected in zip(
        f(ad.tensor(x), y), f(x, y), numpy.vectorize(f.pyfunc)(x, y), strict=True
    ):
        assert type(got) is Tensor and type(plain) is numpy.ndarray
        numpy.testing.assert_array_equal(got.numpy(), expected)
        numpy.testing.assert_array_equal(plain, expected)
    assert gradcheck(lambda x, y: f(x, y), [x, y], order=2)
    power = np.vectorize(lambda x, n=1: x**n, excluded=["n"], otypes=[float])
    assert power(ad.tensor(x), n=2).tolist() == power(x, n=2).tolist() == [1.0, 25.0]
    assert power(ad.zeros((0, 2)), n=2).shape == (0, 2)
    assert np.vectorize(otypes=[float])(lambda t: t * 2)(3.0) == 6.0
    w = ad.tensor(2.0, requires_grad=True)
    assert np.vectorize(lambda t: t * w)(x).requires_grad  # the function returns tensors
    with pytest.raises(InputError, match="otypes"):
        np.vectorize(lambda x: x)(ad.tensor([]))


def test_vectorize_with_a_signature():
    dot = np.vectorize(lambda a, b: (a * b).sum(), signature="(n),(n)->()")
    a, b = numpy.arange(6.0).reshape(2, 3), numpy.ones((4, 1, 3))
    expected = numpy.vectorize(dot.pyfunc, signature="(n),(n)->()")(a, b)
    assert dot(a, b).tolist() == dot(ad.tensor(a), b).tolist() == expected.tolist()
    assert gradcheck(dot, [a, b])
    outer = np.vectorize(lambda v: v[:, None] * v, signature="(n)->(n,n)")
    numpy.testing.assert_array_equal(outer(ad.tensor(a)), outer(a))
    with pytest.raises(InputError, match="has 2 arguments, but 1 were passed"):
        dot(ad.tensor(a))


def test_functions_that_call_functions_of_the_user():
    x, w = numpy.arange(6.0).reshape(2, 3), ad.tensor(2.0, requires_grad=True)
    for call in (
        lambda k: np.apply_along_axis(lambda row: row * k, 1, x),
        lambda k: np.apply_over_axes(lambda a, axis: a.sum(axis) * k, x, [0]),
        lambda k: np.piecewise(x, [x < 2], [lambda v: v * k, 0.0]),
        lambda k: np.fromfunction(lambda i: i * k, (3,)),
    ):
        plain, recorded = call(2.0), call(w)
        assert type(plain) is numpy.ndarray and recorded.requires_grad
        numpy.testing.assert_allclose(recorded.detach(), plain)


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
    joined = np.union1d(x.detach(), [2.0])
    assert isinstance(joined, Tensor) and joined.tolist() == [1.0, 2.0, 3.0]
    assert (
        type(np.random.normal(ad.tensor([1.0]))) is Tensor and type(np.random.normal(size=1)) is numpy.ndarray
    )
    assert np.random.RandomState is numpy.random.RandomState
    np.random.seed(3)
    first = np.random.randn(2)
    numpy.random.seed(3)
    assert (first == numpy.random.randn(2)).all()
    with pytest.raises(LostHistoryError) as info:
        np.random.normal(x)
    assert "Draw with ad.random.default_rng(seed), through which gradients flow." in str(info.value)


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
