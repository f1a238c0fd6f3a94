"""``adjoint.scipy.spatial.distance``, ``ad.cdist`` and ``ad.pdist``: values against SciPy, derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from on_tensors import on_tensors

import adjoint as ad
from adjoint.errors import ArgumentError, DTypeError, InputError, LostHistoryError, ShapeError
from adjoint.testing import gradcheck

sd = pytest.importorskip("scipy.spatial.distance")
D = on_tensors(ad.scipy.spatial.distance)

RNG = np.random.default_rng(11)
X, Y = RNG.normal(size=(4, 3)), RNG.normal(size=(5, 3))
W = np.array([0.5, 2.0, 1.0])
METRICS = [
    ("euclidean", {}),
    ("sqeuclidean", {}),
    ("cityblock", {}),
    ("chebyshev", {}),
    ("minkowski", {"p": 3}),
    ("minkowski", {"p": 1.5}),
    ("minkowski", {}),
    ("cosine", {}),
    ("correlation", {}),
]


@pytest.mark.parametrize(("metric", "options"), METRICS, ids=str)
def test_distances(metric, options):
    np.testing.assert_allclose(
        D.cdist(X, Y, metric, **options).numpy(), sd.cdist(X, Y, metric, **options), rtol=1e-12
    )
    np.testing.assert_allclose(
        D.pdist(X, metric, **options).numpy(), sd.pdist(X, metric, **options), rtol=1e-12
    )
    if metric != "chebyshev":
        expected = sd.cdist(X, Y, metric, w=W, **options)
        np.testing.assert_allclose(D.cdist(X, Y, metric, w=W, **options).numpy(), expected, rtol=1e-11)
        assert gradcheck(lambda x, y, w: D.cdist(x, y, metric, w=w, **options), [X, Y, W], directions=2)
    assert gradcheck(lambda x, y: D.cdist(x, y, metric, **options), [X, Y], directions=2, order=2)
    assert gradcheck(lambda x: D.pdist(x, metric, **options), [X], directions=2, order=2)
    f = lambda x, y: D.cdist(x, y, metric, **options)
    batch = np.stack([X, X + 1])
    np.testing.assert_allclose(
        ad.vmap(f, in_axes=(0, None))(batch, Y)[1], sd.cdist(X + 1, Y, metric, **options), rtol=1e-11
    )
    np.testing.assert_allclose(ad.compile(f)(X, Y), f(X, Y).numpy(), rtol=1e-12)
    if metric not in ("cosine", "correlation"):  # the gradient at distance 0 is 0
        twice = np.stack([X[0], X[0], X[1]])
        total = lambda x: D.pdist(x, metric, **options)[0]
        np.testing.assert_array_equal(ad.grad(total)(twice), np.zeros((3, 3)))
        np.testing.assert_array_equal(ad.hessian(total)(twice)[..., 2, :], np.zeros((3, 3, 3)))
        assert np.isfinite(ad.grad(lambda x: D.cdist(x, x, metric, **options).sum())(twice)).all()


def test_a_function_as_metric_and_squareform():
    manhattan = lambda u, v: ad.abs(u - v).sum()
    np.testing.assert_allclose(D.cdist(X, Y, manhattan).numpy(), sd.cdist(X, Y, "cityblock"))
    np.testing.assert_allclose(D.pdist(X, manhattan).numpy(), sd.pdist(X, "cityblock"))
    flat = sd.pdist(X)
    np.testing.assert_array_equal(D.squareform(flat).numpy(), sd.squareform(flat))
    np.testing.assert_array_equal(D.squareform(sd.squareform(flat)).numpy(), flat)
    assert gradcheck(D.squareform, [flat]) and D.squareform(np.zeros(0)).shape == (1, 1)
    assert D.squareform(flat.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("p", [0.5, 1, 2, 3, np.inf])
def test_functions_of_stacks(p):
    x, y = RNG.normal(size=(2, 3, 2)), RNG.normal(size=(4, 2))
    got = ad.cdist(x, y, p)
    assert got.shape == (2, 3, 4)
    np.testing.assert_allclose(got[1].numpy(), sd.cdist(x[1], y, "minkowski", p=p), rtol=1e-12)
    np.testing.assert_allclose(ad.pdist(x, p)[0].numpy(), sd.pdist(x[0], "minkowski", p=p), rtol=1e-12)
    assert gradcheck(lambda x, y: ad.cdist(x, y, p), [x, y], directions=2, order=2)
    assert ad.cdist(x.astype(np.float32), y.astype(np.float32), p).dtype == np.float32
    assert ad.cdist(x[:, :0], y, p).shape == (2, 0, 4) and ad.pdist(x[:, :1], p).shape == (2, 0)


def test_mistakes():
    with pytest.raises(ShapeError, match="same number of coordinates, not 3 and 2"):
        D.cdist(X, Y[:, :2])
    with pytest.raises(InputError, match="metric must be a function or one of euclidean"):
        D.cdist(X, Y, "hamming")
    with pytest.raises(ArgumentError, match="p must be"):
        D.cdist(X, Y, "minkowski", p=-1)
    with pytest.raises(ShapeError, match="whose rows are points"):
        ad.pdist(X[0])
    with pytest.raises(DTypeError, match="must be real numbers"):
        ad.cdist(X + 1j, Y)
    with pytest.raises(ShapeError, match="one per pair of n points, but has 5"):
        D.squareform(np.ones(5))
    with pytest.raises(LostHistoryError):
        D.jensenshannon(ad.tensor([0.5, 0.5], requires_grad=True), [0.5, 0.5])
