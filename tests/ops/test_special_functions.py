"""Special functions against mpmath: values and derivatives to the third order, tails, errors."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import ArgumentError, DTypeError, InputError, MissingExtraError
from adjoint.ops import bessel, combinatorial, divergences, incomplete, integrals
from adjoint.ops.erf import _BLOCK, _FEW
from adjoint.ops.erf import erf as plain_erf
from adjoint.ops.scipy_forward import from_scipy
from adjoint.testing import gradcheck

mp = pytest.importorskip("mpmath")
pytest.importorskip("scipy")

S = ad.special


def derivative(function, x, order):
    t = ad.tensor(x, requires_grad=True)
    y = function(t)
    for _ in range(order):
        (y,) = ad.gradients(y, [t], create_graph=True)
    return y.item()


def _ndtr(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


# name: ours, mpmath's, points.  Relative errors, to the third order.
EXACT = {
    "erf": (S.erf, mp.erf, (-3.0, -0.5, 0.5, 1.0, 2.5)),
    "erfc": (S.erfc, mp.erfc, (-3.0, 0.5, 2.5, 9.0)),
    "erfcx": (S.erfcx, lambda x: mp.exp(x * x) * mp.erfc(x), (-3.0, 0.3, 1.9, 2.1, 10.0, 1e4)),
    "erfinv": (S.erfinv, mp.erfinv, (-0.9, 0.2, 0.9)),
    "erfcinv": (S.erfcinv, lambda x: mp.erfinv(1 - x), (0.2, 0.9, 1.8)),
    "ndtr": (S.ndtr, _ndtr, (-8.0, -1.5, 0.5, 3.0)),
    "ndtri": (S.ndtri, lambda p: mp.sqrt(2) * mp.erfinv(2 * p - 1), (0.05, 0.4, 0.9)),
    "ndtri_exp": (S.ndtri_exp, lambda y: mp.sqrt(2) * mp.erfinv(2 * mp.exp(y) - 1), (-20.0, -1.0, -0.1)),
    "log_ndtr": (S.log_ndtr, lambda x: mp.log(_ndtr(x)), (-40.0, -10.0, -1.0, 0.5, 5.0)),
    "gamma": (S.gamma, mp.gamma, (0.3, 1.7, 6.0, -0.5)),
    "gammaln": (S.gammaln, lambda x: mp.log(abs(mp.gamma(x))), (0.1, 1.7, 30.0, -0.5, -1.3)),
    "digamma": (S.digamma, mp.digamma, (0.1, 1.7, 30.0, -0.5)),
    "polygamma": (lambda x: S.polygamma(2, x), lambda x: mp.polygamma(2, x), (0.1, 1.7, 30.0)),
    "logit": (S.logit, lambda x: mp.log(x / (1 - x)), (1e-5, 0.3, 0.5 + 1e-9, 0.7, 0.999)),
    "expit": (S.expit, lambda x: 1 / (1 + mp.exp(-x)), (-30.0, -0.5, 2.0)),
    "log_expit": (S.log_expit, lambda x: -mp.log(1 + mp.exp(-x)), (-3.0, -0.5, 2.0, 30.0)),
    "entr": (S.entr, lambda x: -x * mp.log(x), (0.1, 0.5, 3.0)),
    "i0": (S.i0, lambda x: mp.besseli(0, x), (0.3, -1.2, 4.0)),
    "i1": (S.i1, lambda x: mp.besseli(1, x), (0.3, -1.2, 4.0)),
    "i0e": (S.i0e, lambda x: mp.besseli(0, x) * mp.exp(-abs(x)), (0.3, -1.2, 4.0)),
    "i1e": (S.i1e, lambda x: mp.besseli(1, x) * mp.exp(-abs(x)), (0.3, -1.2, 4.0)),
    "iv": (lambda x: S.iv(3, x), lambda x: mp.besseli(3, x), (0.3, 4.0)),
    "ive": (lambda x: S.ive(2, x), lambda x: mp.besseli(2, x) * mp.exp(-abs(x)), (0.3, 4.0)),
    "jv": (lambda x: S.jv(2, x), lambda x: mp.besselj(2, x), (0.3, 4.0)),
    "sinc": (S.sinc, mp.sincpi, (1e-8, 1e-3, 0.3, 0.63, 0.65, 1.5, 7.3)),
    "multigammaln": (
        lambda x: S.multigammaln(x, 3),
        lambda x: mp.log(mp.pi) * 1.5 + sum(mp.loggamma(x - mp.mpf(j) / 2) for j in range(3)),
        (1.3, 4.0),
    ),
}


@pytest.mark.parametrize("order", [0, 1, 2, 3])
@pytest.mark.parametrize("name", EXACT)
def test_value_and_derivatives_against_mpmath(name, order):
    ours, theirs, points = EXACT[name]
    with mp.workdps(60):
        for x in points:
            exact = mp.diff(theirs, mp.mpf(x), order) if order else theirs(mp.mpf(x))
            error = abs((mp.mpf(derivative(ours, x, order)) - exact) / exact)
            assert error < 2e-12, f"{name}, derivative {order} at {x}: relative error {mp.nstr(error, 3)}"


def test_every_special_function_is_checked():
    others = {"beta", "betaln", "psi", "xlogy", "xlog1py"}
    for part in (bessel, combinatorial, divergences, incomplete, integrals):  # in test_scipy_special.py
        others |= set(part.__all__)
    assert set(S.__all__) == set(EXACT) | others


@pytest.mark.parametrize("name", ["beta", "betaln"])
def test_beta_functions_against_mpmath(name):
    def exact(a, b):
        return mp.beta(a, b) if name == "beta" else mp.log(mp.beta(a, b))

    a, b = (ad.tensor(v, requires_grad=True) for v in (0.7, 2.3))
    y = getattr(S, name)(a, b)
    ga, gb = ad.gradients(y, [a, b], create_graph=True)
    gaa, gab = ad.gradients(ga, [a, b], create_graph=True)
    with mp.workdps(40):
        for ours, orders in ((y, (0, 0)), (ga, (1, 0)), (gb, (0, 1)), (gaa, (2, 0)), (gab, (1, 1))):
            assert abs(ours.item() - mp.diff(exact, (mp.mpf("0.7"), mp.mpf("2.3")), orders)) < 1e-13


# Tails and corners -----------------------------------------------------------------------------


@pytest.mark.parametrize("x", [-1e4, -1e8, -1e100, -1e150])
def test_log_ndtr_in_the_far_tail(x):
    """log Φ(x) ≈ -x²/2 - log(-x √2π), so the first derivative is -x and the second -1."""
    assert derivative(S.log_ndtr, x, 1) == pytest.approx(-x, rel=2e-8)
    assert derivative(S.log_ndtr, x, 2) == pytest.approx(-1, rel=2e-8)


def test_log_ndtr_on_the_right_is_flat():
    for x in (40.0, 1e10, np.inf):
        assert derivative(S.log_ndtr, x, 0) == 0
        assert derivative(S.log_ndtr, x, 1) == 0
        assert derivative(S.log_ndtr, x, 2) == 0


def test_derivatives_of_erfcx_far_out():
    for x in (1e6, 1e10, 1e100):
        assert derivative(S.erfcx, x, 1) == pytest.approx(-1 / (np.sqrt(np.pi) * x * x), rel=1e-10)
    assert derivative(S.erfcx, np.inf, 1) == pytest.approx(0, abs=1e-290)


def test_sinc_at_zero():
    exact = {0: 1, 1: 0, 2: -(np.pi**2) / 3, 3: 0, 4: np.pi**4 / 5, 5: 0, 6: -(np.pi**6) / 7}
    for order, value in exact.items():
        assert derivative(ad.sinc, 0.0, order) == pytest.approx(value, rel=1e-15, abs=1e-300)


@pytest.mark.parametrize("order", [8, 12])
def test_high_orders_of_sinc(order):
    with mp.workdps(60):
        for x in (0.0, 0.5, 2.5, 4.0, 9.3):
            exact = mp.diff(mp.sincpi, mp.mpf(x), order)
            ours = ad.OPS["sinc_derivative"].forward(np.array(x), order=order)
            assert abs(float(ours) - exact) < 1e-12 * np.pi**order


def test_xlogy_where_it_is_zero():
    x, y = (ad.tensor(v, requires_grad=True) for v in ([0.0, 0.0, 2.0], [0.0, 3.0, 3.0]))
    z = S.xlogy(x, y)
    np.testing.assert_allclose(z.detach().numpy(), [0, 0, 2 * np.log(3)])
    z.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0, np.log(3), np.log(3)])
    np.testing.assert_allclose(y.grad.numpy(), [0, 0, 2 / 3])
    z = S.xlog1py(x, y - 1)
    np.testing.assert_allclose(z.detach().numpy(), [0, 0, 2 * np.log(3)])
    gx, gy = ad.gradients(z.sum(), [x, y])
    np.testing.assert_allclose(gx.numpy(), [0, np.log(3), np.log(3)])
    np.testing.assert_allclose(gy.numpy(), [0, 0, 2 / 3])
    assert np.isnan(S.xlogy(0.0, np.nan).item())


def test_logit_and_entr_at_the_ends():
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(S.logit([0.0, 0.5, 1.0]).numpy(), [-np.inf, 0, np.inf])
    np.testing.assert_array_equal(S.entr([0.0, 1.0, -1.0, np.nan]).numpy(), [0, 0, -np.inf, np.nan])
    np.testing.assert_array_equal(S.log_expit([-1e300, np.inf, -np.inf]).numpy(), [-1e300, 0, -np.inf])


# erf without SciPy -----------------------------------------------------------------------------


def units(dtype, x):
    """The largest error of erf, in units in the last place."""
    y = plain_erf(x)
    assert y.dtype == dtype and y.shape == x.shape
    worst = 0.0
    with mp.workprec(100):
        for a, b in zip(x.tolist(), y.tolist(), strict=True):
            exact = mp.erf(mp.mpf(a))
            spacing = float(np.spacing(dtype(abs(float(exact)))))
            worst = max(worst, float(abs(b - exact)) / spacing)
    return worst


@pytest.mark.parametrize(("dtype", "tiny"), [(np.float64, -320), (np.float32, -44)])
def test_erf_to_one_unit_in_the_last_place(dtype, tiny):
    rng = np.random.default_rng(0)
    x = np.concatenate([
        rng.uniform(-1.0, 1.0, 2000), rng.uniform(0.8, 3, 2000), rng.uniform(3, 6.5, 500), 10 ** rng.uniform(tiny, 0, 500),
    ])  # fmt: skip
    assert units(dtype, x.astype(dtype)) < 1.2
    assert units(dtype, x[:_FEW].astype(dtype)) < 1.2


def test_erf_at_special_values():
    tail = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 5e-324, 0.875, -0.875]
    for count in (0, _FEW + 1, _BLOCK):
        y = plain_erf(np.array([*np.full(count, 0.5), *tail]))[count:]
        np.testing.assert_array_equal(y[:7], [0.0, -0.0, 1, -1, np.nan, 1, -1])
        assert np.signbit(y[1]) and not np.signbit(y[0])
        assert y[8] == -y[9] == pytest.approx(0.7840750610598596, rel=2e-16)
    assert plain_erf(np.zeros((0, 3))).shape == (0, 3)
    assert plain_erf(np.arange(3)).dtype == np.float64
    for half in (np.float16, np.longdouble):
        assert plain_erf(np.ones(_FEW + 1, half)).dtype == half


def test_erf_is_the_same_on_strided_memory_and_in_every_shape():
    x = np.random.default_rng(0).normal(size=(60, 50))
    np.testing.assert_array_equal(plain_erf(x.T), plain_erf(x).T)
    np.testing.assert_array_equal(plain_erf(x[::2, ::-1]), plain_erf(x)[::2, ::-1])


def test_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    for name in ("erf", "expit", "logit", "log_expit", "entr"):
        assert np.isfinite(getattr(S, name)(ad.tensor([0.3, 0.6])).numpy()).all()
    with pytest.raises(MissingExtraError) as error:
        S.polygamma(1, 2.0)
    assert str(error.value) == (
        "ad.special.polygamma needs SciPy.  Install it with: pip install '.[scipy]' in a clone of adjoint, or pip install 'adjoint-ad[scipy]' once it is published."
    )
    with pytest.raises(MissingExtraError, match=r"ad\.special\.newname needs SciPy"):
        from_scipy("newname")(1.0)


def test_scipys_own_functions_take_tensors():
    scipy_special = pytest.importorskip("scipy.special")
    x = ad.tensor([0.3, 0.6], requires_grad=True)
    for name in ("erf", "gammaln", "digamma", "log_ndtr", "expit", "logit", "i0e", "erfinv"):
        y = getattr(scipy_special, name)(x)
        assert y.requires_grad, name
        np.testing.assert_allclose(
            y.detach().numpy(), getattr(scipy_special, name)(x.detach().numpy()), rtol=1e-15
        )
    assert scipy_special.xlogy(x, 2.0).requires_grad
    assert scipy_special.iv(2, x).requires_grad


def test_arrays_of_orders():
    x, orders = np.array([0.4, 1.7]), np.array([[0], [1], [3]])
    scipy_special = pytest.importorskip("scipy.special")
    for name in ("jv", "jn", "yn", "iv", "kv", "polygamma", "expn", "spherical_jn"):
        ours, theirs = getattr(S, name), getattr(scipy_special, name)
        np.testing.assert_allclose(ours(orders, x).numpy(), theirs(orders, x), rtol=1e-13, err_msg=name)
        assert gradcheck(lambda x, f=ours: f(orders, x), [x]), name
        assert ours([2], x[0]).shape == (1,)
        assert ours(np.zeros((0, 1), int), x).shape == (0, 2)
    np.testing.assert_allclose(S.jv([0.5, 2], x).numpy(), scipy_special.jv([0.5, 2], x), rtol=1e-13)


# Mistakes --------------------------------------------------------------------------------------


def test_mistakes():
    with pytest.raises(ArgumentError, match="the order must be at least 0, but got -1"):
        S.polygamma(-1, 2.0)
    with pytest.raises(InputError, match=r"the order must be an integer, but got 1\.5"):
        S.yn(1.5, 2.0)
    with pytest.raises(InputError, match="the order must be a number, but is tensor"):
        S.iv(ad.tensor(1.5), 2.0)
    with pytest.raises(DTypeError, match="erfcx: not defined for complex128"):
        S.erfcx(ad.tensor(1j))


@pytest.mark.parametrize("name", ["erf", "erfc", "gammaln", "digamma", "log_ndtr", "logit", "i0", "i1e"])
def test_float32_stays_float32(name):
    x = ad.tensor(np.array([0.3, 0.6], np.float32), requires_grad=True)
    y = getattr(S, name)(x)
    (g,) = ad.gradients(y.sum(), [x], create_graph=True)
    (gg,) = ad.gradients(g.sum(), [x])
    assert y.dtype == g.dtype == gg.dtype == np.float32
    exact = derivative(getattr(S, name), 0.3, 2)
    assert gg.numpy()[0] == pytest.approx(exact, rel=2e-5)
