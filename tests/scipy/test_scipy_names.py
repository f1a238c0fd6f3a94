"""Every name of SciPy that adjoint promises to differentiate, and how it is called with a history."""

from __future__ import annotations

import importlib
import pickle

import numpy as np
import pytest
from on_tensors import on_tensors

import adjoint as ad
from adjoint.errors import InputError, LostHistoryError, NoGradientError
from adjoint.testing import gradcheck

pytest.importorskip("scipy")
import scipy.special

NAMES = {
    "special": "betainc gammainc gammaincc betaincinv gammasgn rgamma j0 j1 y0 y1 jn yn jv iv ive kv kve "
    "spherical_jn spherical_yn spherical_in spherical_kn erfcinv erfcx dawsn ndtr log_ndtr ndtri digamma polygamma "
    "zeta multigammaln poch exp1 expi expn sici fresnel logsumexp softmax log_softmax logit expit log_expit entr "
    "rel_entr kl_div huber pseudo_huber i0 i0e i1 i1e comb binom factorial ellipk ellipe lambertw hyp2f1 erf",
    "stats": "norm expon gamma invgamma beta t chi2 f laplace logistic lognorm uniform cauchy halfnorm halfcauchy "
    "pareto weibull_min gumbel_r truncnorm vonmises poisson bernoulli binom nbinom geom betabinom multinomial "
    "dirichlet multivariate_normal multivariate_t wishart",
    "linalg": "eig eigvals expm sqrtm logm funm solve_triangular cho_factor cho_solve lu lu_solve solve_sylvester "
    "solve_continuous_lyapunov solve_banded solve_toeplitz toeplitz circulant block_diag polar schur lstsq null_space",
    "integrate": "odeint solve_ivp quad quad_vec trapezoid simpson cumulative_trapezoid",
    "signal": "convolve fftconvolve correlate lfilter stft istft",
    "interpolate": "interp1d make_interp_spline CubicSpline PchipInterpolator RegularGridInterpolator interpn",
    "ndimage": "gaussian_filter map_coordinates",
    "optimize": "minimize root least_squares curve_fit brentq brenth bisect ridder toms748 newton root_scalar fsolve "
    "fixed_point minimize_scalar leastsq",
    "sparse": "csr_array csc_array coo_array",
    "sparse.linalg": "spsolve cg gmres",
    "spatial.distance": "cdist pdist squareform",
}


@pytest.mark.parametrize("part", NAMES)
def test_names(part):
    ours = importlib.import_module(f"adjoint.scipy.{part}")
    theirs = importlib.import_module(f"scipy.{part}")
    assert set(NAMES[part].split()) <= set(ours.__all__)
    unknown = [
        n
        for n in ours.__all__
        if not hasattr(theirs, n) and n not in ("SparseArray", "kron", "linalg", "distance")
    ]
    assert all(part == "special" for _ in unknown), unknown
    assert dir(ours) == sorted(ours.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        ours.no_such_name  # noqa: B018


METHODS = "logpdf pdf cdf logcdf sf logsf ppf isf".split()


@pytest.mark.parametrize("name", NAMES["stats"].split()[:20])
@pytest.mark.parametrize("method", METHODS)
def test_continuous_methods_are_those_of_adjoint(name, method):
    assert any(method in vars(cls) for cls in type(getattr(ad.scipy.stats, name)).__mro__)


@pytest.mark.parametrize("name", NAMES["stats"].split()[20:26])
@pytest.mark.parametrize("method", "logpmf pmf cdf logcdf sf logsf".split())
def test_discrete_methods_are_those_of_adjoint(name, method):
    assert any(method in vars(cls) for cls in type(getattr(ad.scipy.stats, name)).__mro__)


def test_what_has_no_derivative_is_refused_in_words():
    x = ad.tensor(np.eye(3), requires_grad=True)
    for name in ("null_space", "schur"):
        with pytest.raises(NoGradientError, match=f"{name}: its .* so it has no derivative"):
            getattr(ad.scipy.linalg, name)(x)
    with pytest.raises(LostHistoryError):
        ad.scipy.linalg.hadamard(x)
    with pytest.raises(InputError, match="symmetric or Hermitian"):
        ad.scipy.linalg.funm(ad.tensor([[1.0, 2.0], [0.0, 3.0]]), np.exp)


def test_function_of_symmetric_matrices():
    sl = importlib.import_module("scipy.linalg")
    a = np.random.default_rng(5).normal(size=(3, 3))
    s = a @ a.T + np.eye(3)
    np.testing.assert_allclose(ad.scipy.linalg.funm(ad.tensor(s), np.exp), sl.expm(s), rtol=1e-10)
    np.testing.assert_allclose(ad.scipy.linalg.funm(s, ad.log), sl.logm(s), rtol=1e-9, atol=1e-11)
    f = lambda a: ad.scipy.linalg.funm(a @ a.T + np.eye(3), ad.log)
    assert gradcheck(f, [a], order=2, rtol=1e-4)
    h = s + 1j * (a - a.T)
    np.testing.assert_allclose(ad.scipy.linalg.funm(h, ad.exp), sl.expm(h), rtol=1e-9)


@pytest.mark.parametrize("kappa", [0.05, 30.0, 1e4])
def test_vonmises_quantiles(kappa):
    vonmises = on_tensors(ad.scipy.stats.vonmises)
    q = np.array([1e-9, 0.01, 0.3, 0.5, 0.8, 0.999])
    x = vonmises.ppf(q, kappa)
    np.testing.assert_allclose(vonmises.cdf(x, kappa).numpy(), q, rtol=1e-9, atol=1e-16)  # x is rounded
    theirs = importlib.import_module("scipy.stats").vonmises
    if kappa < 40:  # beyond, SciPy has an approximation
        np.testing.assert_allclose(x.numpy()[1:], theirs.ppf(q, kappa)[1:], rtol=1e-7, atol=1e-9)
    f = lambda q, k, m, s: vonmises.ppf(q, k, m, s)
    arguments = [q[1:5], np.array(kappa), np.array(0.3), np.array(1.2)]
    assert gradcheck(f, arguments, directions=1, order=2 if kappa == 30 else 1, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(
        ad.vmap(lambda q: vonmises.ppf(q, kappa))(q), x.numpy(), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("name", ["spherical_jn", "spherical_yn", "spherical_in", "spherical_kn"])
def test_spherical_bessel_functions_have_the_parameters_of_scipy(name):
    ours, theirs = on_tensors(getattr(ad.scipy.special, name)), getattr(scipy.special, name)
    z = np.linspace(0.3, 9.0, 7)
    for n in (0, 1, 3, np.array([0, 2, 5, 1, 1, 0, 3])):
        for derivative in (False, True):
            got = ours(n, z=z, derivative=derivative).numpy()
            np.testing.assert_allclose(got, theirs(n, z, derivative=derivative), rtol=1e-11)
    assert gradcheck(lambda z: ours(2, z, derivative=True), [z])


def test_special_functions_name_a_parameter_that_they_do_not_have():
    for call in (
        lambda: ad.scipy.special.erf(ad.tensor(1.0), out=np.zeros(())),
        lambda: ad.scipy.special.jv(2, ad.tensor(1.0), out=None),
    ):
        with pytest.raises(InputError, match=r"has no argument out=: results are new tensors"):
            call()
    with pytest.raises(InputError, match=r"^erf has no argument where=\.  It accepts x\.$"):
        ad.scipy.special.erf(ad.tensor(1.0), where=True)
    assert pickle.loads(pickle.dumps(ad.scipy.special.jv)) is ad.scipy.special.jv
