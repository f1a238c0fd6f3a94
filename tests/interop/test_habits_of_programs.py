"""What programs of NumPy write, with tensors: sizes, axes and shapes as arrays, views of dictionaries, comparisons."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import adjoint as ad

X = ad.tensor([[1.0, 2.0], [3.0, 4.0]])
N = ad.tensor(2)

CALLS = [
    lambda x, n: np.reshape(x, [4, n // 2]),
    lambda x, n: np.transpose(x, np.array([1, 0])),
    lambda x, n: np.moveaxis(x, np.array([0]), np.array([1])),
    lambda x, n: np.tensordot(x, x, axes=np.array([1, 0])),
    lambda x, n: np.sum(x, axis=np.array(0)),
    lambda x, n: np.tile(x, n),
    lambda x, n: np.repeat(x, np.array([1, 2]), axis=0),
    lambda x, n: np.stack([x] * int(n)),
    lambda x, n: np.roll(x, 1.0),
    lambda x, n: np.tril(x[0]),
    lambda x, n: np.triu(x[0], 1),
    lambda x, n: np.ix_(np.array([0, 1]), [n])[0],
    lambda x, n: "%.2f %d" % (x[0, 0], n),  # noqa: UP031  the old form is the point
    lambda x, n: [*range(n), *[5, 6, 7][:n]],
    lambda x, n: divmod(7, n),
]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_results_are_those_of_arrays(call):
    got, expected = call(X, N), call(X.numpy(), 2)
    if isinstance(expected, (str, list)):
        assert got == expected
    else:
        np.testing.assert_array_equal(got, expected)


def test_shapes_and_axes_may_be_tensors_of_integers():
    assert X.reshape(ad.tensor([4, 1])).shape == (4, 1) and X.reshape(np.array([1, 4])).shape == (1, 4)
    assert X.sum(np.array([0, 1])).item() == 10.0 and ad.permute_dims(X, np.array([1, 0])).shape == (2, 2)
    with pytest.raises(ad.errors.InputError, match="a shape must consist of integers"):
        X.reshape(np.array([2.0, 2.0]))


def test_views_of_dictionaries_and_iterators_are_joined():
    parts = {"a": X, "b": X}
    for join in (ad.stack, ad.concat, ad.vstack, ad.hstack):
        expected = join([X, X]).tolist()
        assert join(parts.values()).tolist() == join(iter([X, X])).tolist() == expected
    with pytest.raises(ad.errors.InputError, match="expected a list or tuple of tensors, but got set"):
        ad.stack({1.0})


def test_facts_of_the_memory():
    assert X.strides == (16, 8) and X.flags.c_contiguous and not X.flags.writeable and X.T.flags.f_contiguous
    assert ad.grad(lambda x: x.sum() * x.strides[0])(np.ones(2)).tolist() == [8.0, 8.0]


def test_approx_compares_values():
    recorded = ad.tensor([1.0, 2.0], requires_grad=True)
    for t in (ad.tensor([1.0, 2.0]), recorded, recorded * 1.0):
        assert t == pytest.approx(np.array([1.0, 2.0 + 1e-9]))
        assert t != pytest.approx(np.array([1.0, 3.0]))
    assert ad.tensor(1.0) == pytest.approx(1.0) and ad.tensor(1.0) != pytest.approx(2.0)


def test_the_signature_of_a_compiled_function():
    compiled = ad.compile(lambda a, b=1: a)
    assert inspect.getfullargspec(compiled).args == ["a", "b"]
    assert str(inspect.signature(compiled)) == "(a, b=1)"
