"""``adjoint.scipy.stats``: values against SciPy, gradients against finite differences and mpmath."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from on_tensors import on_tensors

import adjoint as ad
from adjoint.errors import InputError, LostHistoryError, ShapeError
from adjoint.testing import gradcheck

ss = pytest.importorskip("scipy.stats")
mp = pytest.importorskip("mpmath")

stats = on_tensors(ad.scipy.stats)
EVERYWHERE = np.array([-50.0, -3.0, -0.4, 0.0, 0.3, 0.9, 1.0, 2.0, 7.0, 60.0, np.inf, -np.inf, np.nan])

# name: shape parameters in two regimes, and arguments (of the standard form) for derivatives
CONTINUOUS = {
    "norm": ([()], [-2.0, 0.3]),
    "expon": ([()], [0.2, 3.0]),
    "gamma": ([(2.3,), (0.4,)], [0.3, 1.2, 6.0]),
    "chi2": ([(3.1,), (40.0,)], [0.5, 4.0, 30.0]),
    "invgamma": ([(2.2,), (0.7,)], [0.2, 1.0, 5.0]),
    "beta": ([(1.7, 0.6), (20.0, 8.0)], [0.1, 0.6, 0.9]),
    "f": ([(3.0, 5.0), (1.2, 20.0)], [0.2, 1.0, 4.0]),
    "t": ([(3.3,), (50.0,), (0.8,)], [-4.0, -0.3, 0.0, 1.5]),
    "laplace": ([()], [-1.0, 2.0]),
    "logistic": ([()], [-3.0, 0.0, 2.0]),
    "lognorm": ([(0.8,), (2.5,)], [0.2, 1.0, 6.0]),
    "uniform": ([()], [0.3, 0.8]),
    "cauchy": ([()], [-9.0, 0.0, 0.4]),
    "halfnorm": ([()], [0.2, 2.0]),
    "halfcauchy": ([()], [0.2, 9.0]),
    "pareto": ([(2.1,), (0.5,)], [1.2, 6.0]),
    "weibull_min": ([(1.4,), (0.6,)], [0.2, 2.0]),
    "gumbel_r": ([()], [-1.5, 0.0, 4.0]),
    "truncnorm": ([(-1.0, 2.0), (1.5, 9.0), (-7.0, -3.0)], [0.1, 0.5, 0.9]),
    "vonmises": ([(2.5,), (0.2,), (300.0,)], [-0.1, 0.05, 1.0]),
}
METHODS = ("logpdf", "pdf", "cdf", "logcdf", "sf", "logsf")
# SciPy's is the worse one: the logarithm of an underflow, or of a number near 1
WORSE = {("halfnorm", "logsf"), ("gumbel_r", "logsf"), ("t", "logcdf")}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_values_are_those_of_scipy(name):
    ours, theirs = getattr(stats, name), getattr(ss, name)
    for shapes in CONTINUOUS[name][0]:
        if shapes == (300.0,):
            continue  # SciPy approximates it by a normal distribution, which has five digits
        x = EVERYWHERE[1:-4] if name == "vonmises" else EVERYWHERE
        for method in METHODS:
            with np.errstate(all="ignore"):
                expected = getattr(theirs, method)(x, *shapes, 0.2, 1.5)
            got = getattr(ours, method)(x, *shapes, 0.2, 1.5).numpy()
            kept = np.isfinite(expected) if (name, method) in WORSE else ...
            np.testing.assert_allclose(
                got[kept],
                expected[kept],
                rtol=1e-9,
                atol=1e-13 if method != "logpdf" else 0,
                err_msg=f"{method}{shapes}",
            )
        if name == "vonmises":
            continue
        q = np.array([0.0, 1e-12, 0.1, 0.5, 0.77, 1 - 1e-9, 1.0, -1.0, 2.0, np.nan])
        for method in ("ppf", "isf"):
            expected = getattr(theirs, method)(q, *shapes, 0.2, 1.5)
            got = getattr(ours, method)(q, *shapes, 0.2, 1.5).numpy()
            # SciPy's truncnorm.isf(q) is ppf(1 - q)
            rtol = 1e-5 if name == "truncnorm" else 1e-7
            np.testing.assert_allclose(got, expected, rtol=rtol, atol=1e-12, err_msg=f"{method}{shapes}")
        assert np.isnan(ours.logpdf(0.5, *shapes, 0.0, -1.0).item())
        if shapes and name != "truncnorm":
            assert np.isnan(ours.cdf(0.5, *(-s for s in shapes)).item())


@pytest.mark.parametrize("name", CONTINUOUS)
def test_gradients_of_all_parameters(name):
    ours = getattr(stats, name)
    for shapes in CONTINUOUS[name][0]:
        y = np.array(CONTINUOUS[name][1])
        if name == "truncnorm":
            y = shapes[0] + (shapes[1] - shapes[0]) * y
        if name == "vonmises" and shapes[0] > 100:
            y = y[:2]
        args = [0.2 + 1.5 * y, *(np.array(s) for s in shapes), np.array(0.2), np.array(1.5)]
        kinks = name in ("laplace", "uniform")
        for method in METHODS:
            assert gradcheck(getattr(ours, method), args, order=1 if kinks else 2, rtol=2e-4, atol=1e-5), (
                method
            )
        if name != "vonmises":
            q = np.array([0.05, 0.4, 0.9])
            for method in ("ppf", "isf"):
                assert gradcheck(getattr(ours, method), [q, *args[1:]], rtol=2e-4, atol=1e-5), method


DISCRETE = {
    "poisson": [(2.5,), (40.0,)],
    "bernoulli": [(0.3,)],
    "binom": [(7, 0.3), (100, 0.01)],
    "nbinom": [(2.5, 0.4), (20.0, 0.9)],
    "geom": [(0.3,), (1e-9,)],
    "betabinom": [(7, 1.3, 2.1), (30, 0.4, 0.6)],
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distributions(name):
    ours, theirs = getattr(stats, name), getattr(ss, name)
    k = np.array([-1, 0, 1, 2, 2.5, 6, 7, 8, 30])
    for shapes in DISCRETE[name]:
        for method in ("logpmf", "pmf", "cdf", "sf", "logcdf", "logsf"):
            with np.errstate(all="ignore"):
                expected = getattr(theirs, method)(k, *shapes, 1)
            got = getattr(ours, method)(k, *shapes, 1).numpy()
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-14, err_msg=f"{method}{shapes}")
        # the numbers of trials are whole
        fixed = 1 if name in ("binom", "betabinom") else 0
        parameters = [np.array(float(s)) for s in shapes[fixed:]]
        if shapes == (1e-9,):
            continue
        inside = np.array([1.0, 2.0, 4.0]) if name != "bernoulli" else np.array([0.0, 1.0])
        for method in ("logpmf", "pmf", "cdf", "sf"):
            call = lambda *p, m=method, k=inside, s=shapes[:fixed]: getattr(ours, m)(k, *s, *p)
            order = 1 if name == "bernoulli" and method in ("cdf", "sf") else 2
            assert gradcheck(call, parameters, order=order, rtol=2e-4, atol=1e-5), method
        assert np.isnan(ours.logpmf(1, *shapes[:-1], -3.0).item())
        assert np.isnan(ours.cdf(1, *shapes[:-1], -3.0).item())


def test_multivariate_distributions():
    rng = np.random.default_rng(0)
    mean, x = rng.normal(size=3), rng.normal(size=(2, 4, 3))
    a = rng.normal(size=(3, 3))
    cov = a @ a.T + np.eye(3)
    symmetric = lambda m: (m + ad.matrix_transpose(m)) / 2
    for ours, theirs, args in [
        (stats.multivariate_normal, ss.multivariate_normal, (mean, cov)),
        (stats.multivariate_t, ss.multivariate_t, (mean, cov, np.array(4.5))),
    ]:
        given = [args[0], args[1], *(float(v) for v in args[2:])]
        np.testing.assert_allclose(ours.logpdf(x, *args).numpy(), theirs.logpdf(x, *given), rtol=1e-12)
        np.testing.assert_allclose(ours.pdf(x[0, 0], *args).numpy(), theirs.pdf(x[0, 0], *given), rtol=1e-12)
        call = lambda x, m, c, *rest, o=ours: o.logpdf(x, m, symmetric(c), *rest)
        assert gradcheck(call, [x[0], *args], order=2, rtol=1e-4)
    normal, theirs = stats.multivariate_normal, ss.multivariate_normal
    np.testing.assert_allclose(normal.logpdf(0.3).numpy(), theirs.logpdf(0.3))
    np.testing.assert_allclose(normal.logpdf(mean, mean, 2.0).numpy(),
                               theirs.logpdf(mean, mean, 2.0))  # fmt: skip
    np.testing.assert_allclose(normal([0.0, 1.0], [1.0, 3.0]).logpdf([0.5, 0.5]).numpy(),
                               theirs([0.0, 1.0], [1.0, 3.0]).logpdf([0.5, 0.5]))  # fmt: skip
    with pytest.raises(ShapeError, match="the last axis"):
        normal.logpdf(np.zeros(2), mean, cov)

    alpha, p = np.array([0.7, 2.0, 3.5]), np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(stats.dirichlet.logpdf(p, alpha).numpy(), ss.dirichlet.logpdf(p, alpha))
    np.testing.assert_allclose(stats.dirichlet.pdf(p[:2], alpha).numpy(), ss.dirichlet.pdf(p[:2], alpha))
    several = np.stack([p, p[::-1]], 1)
    np.testing.assert_allclose(
        stats.dirichlet.logpdf(several, alpha).numpy(), ss.dirichlet.logpdf(several, alpha)
    )
    assert gradcheck(stats.dirichlet.logpdf, [p, alpha], order=2)
    counts = np.array([[1, 2, 3], [0, 6, 0], [1, 1, 1]])
    np.testing.assert_allclose(
        stats.multinomial.logpmf(counts, 6, p).numpy(), ss.multinomial.logpmf(counts, 6, p)
    )
    assert gradcheck(lambda p: stats.multinomial.logpmf(counts[:2], 6, p), [p], order=2)

    w = rng.normal(size=(3, 3))
    w = w @ w.T + np.eye(3)
    np.testing.assert_allclose(stats.wishart.logpdf(w, 5.5, cov).numpy(), ss.wishart.logpdf(w, 5.5, cov))
    both = np.stack([w, cov], -1)
    np.testing.assert_allclose(
        stats.wishart.logpdf(both, 5.5, cov).numpy(), ss.wishart.logpdf(both, 5.5, cov)
    )
    assert gradcheck(lambda w, d, s: stats.wishart.logpdf(symmetric(w), d, symmetric(s)),
                     [w, np.array(5.5), cov], order=2, rtol=1e-4)  # fmt: skip


# method, arguments, and the logarithm of the same by mpmath
def _norm_cdf(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


TAILS = [
    ("norm", "logcdf", (-40.0,), lambda x: mp.log(_norm_cdf(x))),
    ("norm", "logsf", (300.0,), lambda x: mp.log(_norm_cdf(-x))),
    ("gamma", "sf", (80.0, 3.0), lambda x, a: mp.gammainc(a, x, regularized=True)),
    ("gamma", "logsf", (500.0, 3.0), lambda x, a: mp.log(mp.gammainc(a, x, regularized=True))),
    ("gamma", "cdf", (1e-9, 3.0), lambda x, a: mp.gammainc(a, 0, x, regularized=True)),
    ("gamma", "logcdf", (60.0, 3.0), lambda x, a: mp.log1p(-mp.gammainc(a, x, regularized=True))),
    ("beta", "cdf", (1e-8, 2.0, 5.0), lambda x, a, b: mp.betainc(a, b, 0, x, regularized=True)),
    ("beta", "sf", (0.9999, 2.0, 5.0), lambda x, a, b: mp.betainc(a, b, x, 1, regularized=True)),
    ("t", "cdf", (-1e4, 3.0), lambda x, n: mp.betainc(n / 2, 0.5, 0, n / (n + x * x), regularized=True) / 2),
    ("expon", "logcdf", (1e-12,), lambda x: mp.log(-mp.expm1(-x))),
    ("logistic", "logsf", (500.0,), lambda x: -mp.log1p(mp.exp(x))),
    ("cauchy", "cdf", (-1e12,), lambda x: mp.atan(-1 / x) / mp.pi),
    ("gumbel_r", "logsf", (60.0,), lambda x: mp.log(-mp.expm1(-mp.exp(-x)))),
    ("weibull_min", "logsf", (1e3, 1.5), lambda x, c: -(x**c)),
    ("truncnorm", "logpdf", (41.0, 40.0, 50.0), lambda x, a, b: -x * x / 2 - mp.log(mp.sqrt(2 * mp.pi)) - mp.log(_norm_cdf(-a) - _norm_cdf(-b))),
    ("truncnorm", "logcdf", (-45.0, -50.0, -40.0), lambda x, a, b: mp.log(_norm_cdf(x) - _norm_cdf(a)) - mp.log(_norm_cdf(b) - _norm_cdf(a))),
    ("vonmises", "cdf", (-3.0, 20.0), lambda x, k: mp.quad(lambda t: mp.exp(k * mp.cos(t)), [-mp.pi, x]) / (2 * mp.pi * mp.besseli(0, k))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "method", "args", "exact"), TAILS, ids=[f"{n}.{m}" for n, m, *_ in TAILS])
def test_far_tails(name, method, args, exact):
    leaves = [ad.tensor(v, requires_grad=True) for v in args]
    y = getattr(getattr(stats, name), method)(*leaves)
    grads = ad.gradients(y, leaves)
    with mp.workdps(450 if name == "truncnorm" else 60):
        at = tuple(map(mp.mpf, args))
        assert abs(y.item() / exact(*at) - 1) < 2e-12
        for i, g in enumerate(grads):
            order = tuple(int(k == i) for k in range(len(args)))
            slope = mp.diff(exact, at, order)
            assert abs(g.item() - slope) <= 1e-10 * abs(slope) + 1e-300, (i, g.item(), mp.nstr(slope, 17))


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_every_method_in_vmap_and_compile(name):
    """The numbers of trials are known there: they are not among the parameters."""
    dist, (shapes, *_) = getattr(stats, name), DISCRETE[name] if name in DISCRETE else CONTINUOUS[name][0]
    fixed = 1 if name in ("binom", "betabinom") else 0
    if name in DISCRETE:
        methods, x = ("logpmf", "pmf", "cdf", "sf"), np.array([0, 1])
    else:
        methods, x = (*METHODS,), dist.ppf(np.array([0.2, 0.7]), *shapes).numpy()

    def total(p):
        given = *shapes[:fixed], *(p[i] for i in range(len(shapes) - fixed)), p[-1]
        return sum(getattr(dist, m)(x, *given).sum() for m in methods)

    p = np.array([*shapes[fixed:], 0.0])
    for f in (total, ad.grad(total)):
        expected = np.asarray(f(ad.tensor(p)).detach())
        np.testing.assert_allclose(ad.compile(f, backend="replay")(p), expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(ad.vmap(f)(np.stack([p, p]))[1], expected, rtol=1e-10, atol=1e-12)


def test_sums_of_betabinom_need_n():
    f = ad.compile(lambda n: stats.betabinom.cdf(2, n, 1.2, 1.5))
    with pytest.raises(InputError) as caught:
        f(np.array([5, 6]))
    assert str(caught.value) == (
        "betabinom: inside ad.compile, sums of probabilities need the value of n.\n"
        "  Use an n that is not an argument of the compiled function."
    )
    n = np.array([5, 6])
    each = ad.vmap(lambda n: stats.betabinom.cdf(2, n, 1.2, 1.5))(n)
    np.testing.assert_allclose(each, ss.betabinom.cdf(2, n, 1.2, 1.5), rtol=1e-12)


def test_float32_vmap_jvp_and_compile():
    x = np.linspace(0.2, 3.0, 5)

    def loss(p):
        return stats.gamma.logpdf(x, p[0], 0.0, p[1]).sum() + stats.t.logcdf(x, p[0], p[1]).sum()

    p = np.array([1.5, 0.7])
    slope = ad.grad(loss)(p)
    np.testing.assert_allclose(ad.vmap(ad.grad(loss))(np.stack([p, p])), np.stack([slope, slope]), rtol=1e-12)
    np.testing.assert_allclose(ad.jvp(loss, (p,), (np.ones(2),))[1], slope.sum(), rtol=1e-12)
    np.testing.assert_allclose(ad.compile(ad.grad(loss))(p), slope, rtol=1e-12)
    for name, (shapes, _) in CONTINUOUS.items():
        t = ad.tensor(np.array([0.3, 0.6], np.float32), requires_grad=True)
        y = getattr(stats, name).logpdf(t, *shapes[0])
        y.sum().backward()
        assert y.dtype == t.grad.dtype == np.float32, name


def test_frozen_names_keywords_and_mistakes():
    frozen = stats.gamma(2.0, scale=3.0)
    np.testing.assert_allclose(frozen.logpdf(1.0).numpy(), ss.gamma(2.0, scale=3.0).logpdf(1.0))
    np.testing.assert_allclose(stats.norm.pdf(1.0, scale=2.0).numpy(), ss.norm.pdf(1.0, scale=2.0))
    assert stats.norm.mean(3.0) == 3.0 and stats.norm(3.0).mean() == 3.0
    assert stats.gamma.rvs(2.0, size=3, random_state=0).shape == (3,)
    assert stats.kurtosis([1.0, 2.0, 4.0]) == ss.kurtosis([1.0, 2.0, 4.0])
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(LostHistoryError):
        stats.kurtosis(x)
    for mistake, text in [
        (lambda: stats.gamma.logpdf(1.0), "gamma.logpdf: the parameter a is missing."),
        (
            lambda: stats.norm.logpdf(1.0, 0, 1, 2),
            "norm.logpdf: at most 2 parameters (loc, scale) can follow the first argument, but 3 were passed.",
        ),
        (
            lambda: stats.norm.cdf(1.0, sigma=2),
            "norm.cdf: the parameter sigma does not exist.\n  The parameters are: loc, scale.",
        ),
        (
            lambda: stats.norm.sf(1.0, 0, loc=2),
            "norm.sf: the parameter loc was passed twice.\n  The parameters are: loc, scale.",
        ),
        (
            lambda: stats.norm.pdf(ad.tensor(1j)),
            "norm: the argument and the parameters must be real, but one is complex.",
        ),
    ]:
        with pytest.raises(InputError) as info:
            mistake()
        assert str(info.value) == text


def test_distributions_without_derivatives_are_scipys():
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    np.testing.assert_array_equal(stats.skewnorm.pdf(x.detach(), 2.0), ss.skewnorm.pdf([1.0, 2.0], 2.0))
    assert stats.skewnorm(2.0).mean() == ss.skewnorm(2.0).mean()
    assert stats.matrix_normal.rvs(random_state=0).shape == (1, 1)
    assert repr(stats.skewnorm) == "<scipy.stats.skewnorm>"
    for lost in (lambda: stats.skewnorm.pdf(x, 2.0), lambda: stats.skewnorm(x)):
        with pytest.raises(LostHistoryError, match=r"for scipy\.stats\.skewnorm\."):
            lost()
    with pytest.raises(AttributeError, match=r"skewnorm_gen.*no attribute 'nothing'"):
        stats.skewnorm.nothing  # noqa: B018  # reads the attribute


@pytest.mark.parametrize("name", ["gamma", "truncnorm", "binom", "betabinom"])
def test_distributions_are_pickled_by_name(name):
    distribution = getattr(ad.scipy.stats, name)
    assert pickle.loads(pickle.dumps(distribution)) is copy.deepcopy(distribution) is distribution
    frozen = pickle.loads(pickle.dumps(distribution(*[2.0] * len(distribution.shapes))))
    assert frozen.dist is distribution


def test_frozen_distributions_in_compiled_functions_are_traced_once() -> None:
    """Each access of a method makes a new function; what the distribution stores is guarded."""
    mean = np.array([0.5, 0.6])
    kept = ad.scipy.stats.norm(mean, 2.0)
    made = ad.compile(lambda x: ad.scipy.stats.norm(x, 1.0).pdf(x + 1))
    read = ad.compile(lambda x: kept.logpdf(x))
    for k in range(3):
        x = np.array([0.1, 0.2]) + k
        np.testing.assert_allclose(made(x), ad.scipy.stats.norm(x, 1.0).pdf(x + 1), rtol=1e-12)
        np.testing.assert_allclose(read(x), kept.logpdf(x), rtol=1e-12)
    assert made.stats()["traces"] == read.stats()["traces"] == 1
    mean[0] = 3.0
    np.testing.assert_allclose(read(x), kept.logpdf(x), rtol=1e-12)
    kept.args = (1.0, 4.0)
    np.testing.assert_allclose(read(x), kept.logpdf(x), rtol=1e-12)
    kept = ad.scipy.stats.norm(2.0, 3.0)
    np.testing.assert_allclose(read(x), kept.logpdf(x), rtol=1e-12)
