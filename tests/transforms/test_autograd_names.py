"""Names that autograd's users know: ``elementwise_grad``, ``argnum=``, ``tree.ravel``; and programs of its kind."""

from __future__ import annotations

import numpy
import pytest

import adjoint as ad
import adjoint.numpy as np
from adjoint.errors import ArgumentError, ShapeError
from adjoint.testing import gradcheck


def test_elementwise_grad():
    x = numpy.linspace(-1.0, 1.0, 5)
    tanh = lambda x: (1.0 - np.exp(-2 * x)) / (1.0 + np.exp(-2 * x))
    first, second = ad.elementwise_grad(tanh), ad.elementwise_grad(ad.elementwise_grad(tanh))
    numpy.testing.assert_allclose(first(x), 1 - numpy.tanh(x) ** 2)
    numpy.testing.assert_allclose(second(x), -2 * numpy.tanh(x) * (1 - numpy.tanh(x) ** 2), atol=1e-15)
    numpy.testing.assert_allclose(ad.vmap(first)(x[None])[0], first(x))
    numpy.testing.assert_allclose(ad.elementwise_grad(lambda a, b: a * b, argnum=1)(x, 2 * x), x)
    assert ad.elementwise_grad(lambda t: t**2)(3.0) == 6.0
    assert first.__name__ == tanh.__name__


def test_argnum_is_argnums():
    f = lambda a, b: (a * b**2).sum()
    a, b = numpy.array([1.0, 2.0]), numpy.array([3.0, 4.0])
    numpy.testing.assert_array_equal(ad.grad(f, argnum=1)(a, b), 2 * a * b)
    numpy.testing.assert_array_equal(ad.grad(f, argnum=(0, 1))(a, b)[0], b**2)
    numpy.testing.assert_array_equal(ad.value_and_grad(f, argnum=1)(a, b)[1], 2 * a * b)
    for transform in (ad.jacobian, ad.jacrev, ad.jacfwd):
        numpy.testing.assert_array_equal(transform(lambda a, b: a * b, argnum=1)(a, b), numpy.diag(a))
    numpy.testing.assert_array_equal(ad.hessian(f, argnum=1)(a, b), numpy.diag(2 * a))
    with pytest.raises(ArgumentError, match="argnum= and argnums= have the same meaning"):
        ad.grad(f, argnums=1, argnum=1)


def test_tree_ravel():
    tree = {"w": numpy.ones((2, 3), numpy.float32), "b": [numpy.zeros(2), 4.0], "name": "layer"}
    vector, unravel = ad.tree.ravel(tree)
    assert vector.shape == (9,) and vector.dtype == numpy.float64
    back = unravel(vector)
    assert back["w"].dtype == numpy.float32 and back["w"].shape == (2, 3) and back["name"] == "layer"
    with pytest.raises(ShapeError, match="a vector of length 9"):
        unravel(numpy.zeros(3))

    def loss(p):
        flat, again = ad.tree.ravel(p)
        assert isinstance(flat, ad.Tensor)
        return (flat * flat).sum() + again(flat**3)["b"][1]

    g = ad.grad(loss)({"w": numpy.ones((2, 3)), "b": [numpy.zeros(2), 4.0]})
    assert g["b"][1] == 8.0 + 3 * 16.0
    assert gradcheck(lambda v: (unravel(v)["b"][0] ** 2).sum() * unravel(v)["b"][1], vector + 0.5)
    empty, rebuild = ad.tree.ravel({"a": []})
    assert empty.shape == (0,) and rebuild(empty) == {"a": []}


# Programs as they are written for autograd, with other imports ------------------------------------


def test_logistic_regression():
    inputs = np.array([[0.52, 1.12, 0.77], [0.88, -1.08, 0.15], [0.52, 0.06, -1.30], [0.74, -2.49, 1.39]])
    targets = np.array([True, True, False, True])

    def sigmoid(x):
        return 0.5 * (np.tanh(x / 2.0) + 1)

    def loss(weights):
        predictions = sigmoid(np.dot(inputs, weights))
        probabilities = predictions * targets + (1 - predictions) * (1 - targets)
        return -np.sum(np.log(probabilities))

    gradient = ad.grad(loss)
    weights = np.array([0.0, 0.0, 0.0])
    before = loss(weights).item()
    for _ in range(100):
        weights -= gradient(weights) * 0.01
    assert loss(weights).item() < before
    assert gradcheck(loss, weights, order=2)


def test_gaussian_mixture_and_gaussian_process():
    stats, special = ad.scipy.stats, ad.scipy.special
    rs = np.random.RandomState(0)
    data = rs.randn(20, 2)

    def mixture(flat):
        logits, means, roots = flat[:2], flat[2:6].reshape(2, 2), flat[6:].reshape(2, 2, 2)
        log_weights = logits - special.logsumexp(logits)
        terms = []
        for k in range(2):
            cov = np.dot(roots[k].T, roots[k]) + 0.1 * np.eye(2)
            terms.append(log_weights[k] + stats.multivariate_normal.logpdf(data, means[k], cov))
        return np.sum(special.logsumexp(np.vstack(terms), axis=0))

    start = numpy.concatenate([numpy.zeros(2), rs.randn(4), numpy.tile(numpy.eye(2), (2, 1)).ravel()])
    assert gradcheck(mixture, start, order=2, directions=2, rtol=1e-4)

    x, y = data[:8, :1], data[:8, 1]

    def marginal(params):
        noise, scale, lengths = np.exp(params[0]), np.exp(params[1]), np.exp(params[2:])
        difference = np.expand_dims(x / lengths, 1) - np.expand_dims(x / lengths, 0)
        cov = scale * np.exp(-0.5 * np.sum(difference**2, axis=2)) + noise * np.eye(len(y))
        return stats.multivariate_normal.logpdf(y, np.zeros(len(y)), cov)

    assert gradcheck(marginal, numpy.array([-1.0, 0.2, 0.1]), order=2, rtol=1e-4)
