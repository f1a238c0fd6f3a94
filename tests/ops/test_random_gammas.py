"""Draws of gamma and its relatives, of Poisson, and the score function: values, gradients, transforms, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import ArgumentError, NoGradientError, ShapeError

stats = pytest.importorskip("scipy.stats")


def rng(seed: int = 0) -> Any:
    return ad.random.default_rng(seed)


# name: parameters, SciPy's distribution, the mean as a function of the parameters
ROWS: dict[str, tuple[tuple[float, ...], Any, Any]] = {
    "gamma": ((2.5, 1.5), lambda a, s: stats.gamma(a, scale=s), lambda a, s: a * s),
    "chisquare": ((3.0,), stats.chi2, lambda df: df),
    "beta": ((0.7, 2.0), stats.beta, lambda a, b: a / (a + b)),
    "standard_t": ((6.0,), stats.t, lambda df: df * 0),
    "poisson": ((4.3,), stats.poisson, None),
}


@pytest.mark.parametrize("name", ROWS)
def test_draws_have_the_distribution(name):
    params, theirs, _ = ROWS[name]
    x = getattr(rng(), name)(*params, size=4000).numpy()
    if name == "poisson":
        counts = np.bincount(x, minlength=14)[:14] / 4000
        np.testing.assert_allclose(counts, theirs(*params).pmf(np.arange(14)), atol=0.03)
        assert x.dtype == np.int64
    else:
        assert stats.kstest(x, theirs(*params).cdf).pvalue > 0.01


@pytest.mark.parametrize("name", [n for n in ROWS if ROWS[n][2] is not None])
def test_gradients_of_expectations(name):
    params, _, mean = ROWS[name]
    found = ad.grad(lambda p: getattr(rng(), name)(*p, size=20_000).mean())(np.array(params))
    exact = ad.grad(lambda p: mean(*p))(np.array(params))
    np.testing.assert_allclose(found, exact, atol=0.05 * max(1, np.abs(exact).max()))


@pytest.mark.parametrize("name", [n for n in ROWS if ROWS[n][2] is not None])
def test_a_draw_moves_along_its_quantile(name):
    """The distribution function of a draw does not change with the parameters: -dF/da / pdf."""
    params, theirs, _ = ROWS[name]
    p = np.array(params)

    def draw(p: Any) -> Any:
        return getattr(rng(), name)(*p, size=5)

    _, t = ad.jvp(draw, (p,), (np.ones_like(p),))
    h = 1e-5
    up, down = draw(p + h).numpy(), draw(p - h).numpy()
    np.testing.assert_allclose(t, (up - down) / (2 * h), rtol=1e-5, atol=1e-7)
    if name != "standard_t":  # which is made from two draws
        np.testing.assert_allclose(theirs(*(p + h)).cdf(up), theirs(*(p - h)).cdf(down), atol=1e-9)


def test_second_derivatives():
    h = ad.hessian(lambda a: rng().gamma(a, size=3).sum())(2.0)
    step = 1e-4
    g = ad.grad(lambda a: rng().gamma(a, size=3).sum())
    assert h == pytest.approx((g(2 + step) - g(2 - step)) / (2 * step), rel=1e-5)


def test_dirichlet():
    alpha = np.array([0.5, 1.0, 3.0])
    x = rng().dirichlet(alpha, size=5000)
    np.testing.assert_allclose(x.sum(-1).numpy(), 1)
    np.testing.assert_allclose(x.mean(0).numpy(), alpha / alpha.sum(), atol=0.02)
    jacobian = ad.jacobian(lambda a: rng().dirichlet(a, size=20_000).mean(0))(alpha)
    np.testing.assert_allclose(jacobian, ad.jacobian(lambda a: a / a.sum())(alpha), atol=0.02)
    tiny = rng().dirichlet(np.full(3, 1e-4), size=100)  # gamma draws would all be 0
    assert np.isfinite(tiny.numpy()).all()
    assert rng().dirichlet(np.ones((2, 3)), size=(4, 2)).shape == (4, 2, 3)
    with pytest.raises(ShapeError, match="must not be empty"):
        rng().dirichlet(1.0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("small", [0.01, 0.3])
def test_draws_stay_inside_the_interval(dtype, small):
    a = ad.tensor(np.full(2000, small, dtype), requires_grad=True)
    for x, high in ((rng().gamma(a), np.inf), (rng().beta(a, a), 1), (rng().dirichlet(a.reshape(500, 4)), 1)):
        assert x.dtype == dtype
        assert ((x.numpy() > 0) & (x.numpy() < high)).all()
        assert ad.gradients(x.sum(), [a])[0].dtype == dtype


@pytest.mark.parametrize("name", [*ROWS, "dirichlet"])
def test_transforms(name):
    params = ROWS[name][0] if name in ROWS else ([1.0, 2.0],)
    p = [np.asarray(v) for v in params]
    batch = [np.stack([v, v * 1.5]) for v in p]
    eager = [getattr(rng(), name)(*(b[i] for b in batch)).numpy() for i in range(2)]
    mapped = ad.vmap(lambda *q: getattr(rng(), name)(*q))(*batch)
    np.testing.assert_allclose(mapped, eager)
    source, again = rng(), rng()
    compiled = ad.compile(lambda *q: getattr(source, name)(*q))
    for _ in range(3):
        np.testing.assert_allclose(compiled(*p), getattr(again, name)(*p).numpy())


def test_poisson_at_the_ends():
    assert rng().poisson(0.0, size=5).tolist() == [0] * 5
    big = rng().poisson(1e6, size=1000).numpy()
    assert abs(big.mean() - 1e6) < 200
    lam = ad.tensor(3.0, requires_grad=True)
    with pytest.raises(NoGradientError, match="no output depends on"):
        ad.gradients(rng().poisson(lam) * ad.tensor(1.0, requires_grad=True), [lam])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: r.gamma(0.0), "gamma: parameters must be positive, but one value is 0.0"),
        (lambda r: r.beta(1.0, [1.0, -2.0]), "beta: parameters must be positive, but one value is -2.0"),
        (lambda r: r.poisson(-1.0), "poisson: the mean must not be negative, but one value is -1.0"),
        (lambda r: r.gamma(np.nan), "must be positive, but one value is nan"),
    ],
)
def test_errors(call, words):
    with pytest.raises(ArgumentError) as caught:
        call(rng())
    assert words in str(caught.value)


def test_score_function_is_unbiased_to_second_order():
    """E[k²] = p for a Bernoulli draw, exactly: the sum over both draws with their probabilities."""

    def expectation(p: Any) -> Any:
        k = np.array([0.0, 1.0])
        log_prob = ad.log(ad.stack([1 - p, p]))
        surrogate = ad.random.score_function(log_prob, k * k + p * k, baseline=0.3)
        return (ad.stop_gradient(ad.stack([1 - p, p])) * surrogate).sum()

    assert expectation(ad.tensor(0.3)).item() == pytest.approx(0.3 + 0.09)
    assert ad.grad(expectation)(0.3) == pytest.approx(1 + 2 * 0.3)
    assert ad.grad(ad.grad(lambda p: ad.random.score_function(ad.log(p), 1.0)))(0.3) == pytest.approx(0)


def test_score_function_of_categories():
    logits = np.array([0.1, 0.5, -0.3])
    cost = np.array([1.0, 2.0, 5.0])

    def loss(logits: Any) -> Any:
        k = rng().categorical(logits, size=40_000)
        return ad.random.score_function(ad.log_softmax(logits)[k], cost[k.numpy()], baseline=2.0).mean()

    exact = ad.grad(lambda v: (ad.softmax(v) * cost).sum())(logits)
    np.testing.assert_allclose(ad.grad(loss)(logits), exact, atol=0.03)
