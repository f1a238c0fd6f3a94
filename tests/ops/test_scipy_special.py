"""The special functions beyond error and gamma functions against mpmath: derivatives, tails, corners."""

from __future__ import annotations

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import InputError, LostHistoryError
from adjoint.ops import bessel, combinatorial, divergences, incomplete, integrals
from adjoint.testing import gradcheck

mp = pytest.importorskip("mpmath")
special = pytest.importorskip("scipy.special")
pytestmark = pytest.mark.digits

S = ad.scipy.special


def spherical(kind, n, x):
    half = n + mp.mpf(1) / 2
    size = mp.sqrt(mp.pi / (2 * x))
    if kind == "k":
        return size * mp.besselk(half, x)
    return size * {"j": mp.besselj, "y": mp.bessely, "i": mp.besseli}[kind](half, x)


# name: ours, mpmath's, points.  Relative errors, to the third order.
ONE = {
    "exp1": (S.exp1, mp.e1, (1e-6, 0.3, 2.0, 50.0)),
    "expi": (S.expi, mp.ei, (-20.0, -0.5, 0.8, 30.0)),
    "expn": (lambda x: S.expn(3, x), lambda x: mp.expint(3, x), (0.1, 2.0, 60.0)),
    "sici": (lambda x: S.sici(x)[0], mp.si, (-3.0, 0.7, 12.0)),
    "sici, cosine": (lambda x: S.sici(x)[1], mp.ci, (0.1, 2.0, 9.0)),
    "fresnel": (lambda x: S.fresnel(x)[0], mp.fresnels, (-1.2, 0.4, 2.3)),
    "fresnel, cosine": (lambda x: S.fresnel(x)[1], mp.fresnelc, (-1.2, 0.4, 2.3)),
    "dawsn": (S.dawsn, lambda x: mp.sqrt(mp.pi) / 2 * mp.exp(-x * x) * mp.erfi(x), (-0.4, 2.0, 7.5, 100.0)),
    "ellipk": (S.ellipk, mp.ellipk, (-30.0, -1.0, 1e-9, 0.4, 0.99)),
    "ellipe": (S.ellipe, mp.ellipe, (-30.0, -1.0, 1e-9, 0.4, 0.99)),
    "hyp2f1": (lambda x: S.hyp2f1(0.5, 1.2, 2.1, x), lambda x: mp.hyp2f1(0.5, 1.2, 2.1, x), (-3.0, 0.3, 0.8)),
    "hyp1f1": (lambda x: S.hyp1f1(0.5, 2.1, x), lambda x: mp.hyp1f1(0.5, 2.1, x), (-5.0, 0.3, 8.0)),
    "lambertw": (lambda x: S.lambertw(x).real, lambda x: mp.re(mp.lambertw(x)), (-0.3, 0.0, 0.5, 1e5)),
    "lambertw, lower": (lambda x: S.lambertw(x, -1).real, lambda x: mp.re(mp.lambertw(x, -1)), (-0.3, -0.01)),
    **{f"j{n}": (getattr(S, f"j{n}"), lambda x, n=n: mp.besselj(n, x), (0.3, 4.0, 20.0)) for n in (0, 1)},
    **{f"y{n}": (getattr(S, f"y{n}"), lambda x, n=n: mp.bessely(n, x), (0.3, 4.0, 20.0)) for n in (0, 1)},
    **{f"i{n}": (getattr(S, f"i{n}"), lambda x, n=n: mp.besseli(n, x), (0.3, 4.0, 20.0)) for n in (0, 1)},
    **{f"i{n}e": (getattr(S, f"i{n}e"), lambda x, n=n: mp.besseli(n, x) * mp.exp(-x), (0.3, 90.0)) for n in (0, 1)},
    **{f"k{n}": (getattr(S, f"k{n}"), lambda x, n=n: mp.besselk(n, x), (0.3, 4.0, 20.0)) for n in (0, 1)},
    **{
        f"k{n}e": (getattr(S, f"k{n}e"), lambda x, n=n: mp.besselk(n, x) * mp.exp(x), (0.3, 4.0, 24.0, 1e4))
        for n in (0, 1)
    },
    "jn": (lambda x: S.jn(2, x), lambda x: mp.besselj(2, x), (0.3, 5.0)),
    "jv": (lambda x: S.jv(1.5, x), lambda x: mp.besselj(1.5, x), (0.3, 5.0)),
    "iv": (lambda x: S.iv(1.5, x), lambda x: mp.besseli(1.5, x), (0.3, 5.0)),
    "ive": (lambda x: S.ive(1.5, x), lambda x: mp.besseli(1.5, x) * mp.exp(-x), (0.3, 5.0, 60.0)),
    "yn": (lambda x: S.yn(3, x), lambda x: mp.bessely(3, x), (0.3, 5.0)),
    "yv": (lambda x: S.yv(1.5, x), lambda x: mp.bessely(1.5, x), (0.3, 5.0)),
    "kn": (lambda x: S.kn(3, x), lambda x: mp.besselk(3, x), (0.3, 5.0)),
    "kv": (lambda x: S.kv(1.5, x), lambda x: mp.besselk(1.5, x), (0.3, 5.0)),
    "kve": (lambda x: S.kve(2.5, x), lambda x: mp.besselk(2.5, x) * mp.exp(x), (0.3, 5.0, 1e3)),
    **{
        f"spherical_{k}n": (lambda x, k=k: getattr(S, f"spherical_{k}n")(2, x), lambda x, k=k: spherical(k, 2, x), (0.7, 5.0))
        for k in "jyik"
    },
    "rgamma": (S.rgamma, mp.rgamma, (-3.0, -2.5, 0.0, 0.2, 4.0)),
    "factorial": (S.factorial, mp.factorial, (0.3, 4.0)),
    "zeta": (S.zeta, mp.zeta, (1.1, 2.0, 7.0)),
}  # fmt: skip


def derivative(function, x, order):
    t = ad.tensor(x, requires_grad=True)
    y = function(t)
    for _ in range(order):
        (y,) = ad.gradients(y, [t], create_graph=True)
    return y.item()


@pytest.mark.parametrize("name", ONE)
def test_derivatives_of_functions_of_one_argument(name):
    ours, theirs, points = ONE[name]
    for order in range(4):
        with mp.workdps(40):
            for x in points:
                exact = mp.diff(theirs, mp.mpf(x), order) if order else theirs(mp.mpf(x))
                error = abs(mp.mpf(derivative(ours, x, order)) - exact) / max(abs(exact), mp.mpf(10) ** -250)
                limit = (4e-15, 1e-13, 1e-11, 2e-9)[order] * 50
                assert error < limit or abs(exact) < 1e-18, f"{name}, {order} at {x}: {mp.nstr(error, 3)}"


# name: ours, mpmath's, points, smallest relative accuracy of value, first and second derivatives
SEVERAL = {
    "gammainc": (S.gammainc, lambda a, x: mp.gammainc(a, 0, x, regularized=True),
                 ((0.05, 0.01), (0.5, 3.0), (2.3, 0.4), (2.3, 2.5), (30.0, 12.0), (100.0, 104.0), (8.0, 60.0))),
    "gammaincc": (S.gammaincc, lambda a, x: mp.gammainc(a, x, mp.inf, regularized=True),
                  ((0.5, 3.0), (2.3, 0.4), (30.0, 50.0), (3.0, 80.0))),
    "betainc": (S.betainc, lambda a, b, x: mp.betainc(a, b, 0, x, regularized=True),
                ((0.3, 0.6, 0.2), (2.0, 3.0, 0.4), (5.0, 0.5, 0.97), (20.0, 30.0, 0.1), (3.0, 2.0, 1e-6))),
    "betaincc": (S.betaincc, lambda a, b, x: mp.betainc(a, b, x, 1, regularized=True),
                 ((0.3, 0.6, 0.2), (2.0, 3.0, 0.4), (4.0, 8.0, 0.95))),
    "poch": (S.poch, mp.rf, ((0.5, 1.7), (30.0, 2.5))),
    "binom": (S.binom, mp.binomial, ((5.5, 1.7), (30.0, 12.0))),
    "comb": (S.comb, mp.binomial, ((5.5, 1.7),)),
    "zeta": (S.zeta, mp.zeta, ((1.2, 0.4), (2.5, 3.0), (6.0, 20.0))),
    "rel_entr": (S.rel_entr, lambda x, y: x * mp.log(x / y), ((0.2, 0.9), (5.0, 1e-8))),
    "kl_div": (S.kl_div, lambda x, y: x * mp.log(x / y) - x + y, ((0.2, 0.9), (5.0, 1e-8))),
    "huber": (S.huber, lambda d, r: r * r / 2 if abs(r) <= d else d * (abs(r) - d / 2), ((1.0, 0.3), (0.5, -3.0))),
    "pseudo_huber": (S.pseudo_huber, lambda d, r: d * d * (mp.sqrt(1 + (r / d) ** 2) - 1),
                     ((1.0, 0.3), (0.5, -3.0), (1e3, 1e-3))),
}  # fmt: skip


def partials(function, values, digits=70):
    """The value, all first and all second derivatives by mpmath."""
    with mp.workdps(digits):
        at = tuple(map(mp.mpf, values))
        n = len(at)
        orders = [(0,) * n] + [tuple(int(i == k) for k in range(n)) for i in range(n)]
        orders += [tuple(int(i == k) + int(j == k) for k in range(n)) for i in range(n) for j in range(i, n)]
        return [function(*at) if not any(o) else mp.diff(function, at, o) for o in orders]


def our_partials(function, values):
    leaves = [ad.tensor(v, requires_grad=True) for v in values]
    y = function(*leaves)
    first = ad.gradients(y, leaves, create_graph=True)
    second = []
    for i, g in enumerate(first):
        if g.requires_grad:
            second += ad.gradients(g, leaves[i:], create_graph=True, allow_unused=True)
        else:
            second += [None] * (len(leaves) - i)
    return [0.0 if t is None else t.item() for t in (y, *first, *second)]


@pytest.mark.parametrize("name", SEVERAL)
def test_derivatives_of_functions_of_several_arguments(name):
    ours, theirs, points = SEVERAL[name]
    for values in points:
        for k, (got, exact) in enumerate(
            zip(our_partials(ours, values), partials(theirs, values), strict=True)
        ):
            limit = 1e-12 if k == 0 else 3e-11
            assert abs(got - exact) <= limit * abs(exact) + 1e-300, (values, k, got, mp.nstr(exact, 17))


def student(df, t):
    half = mp.betainc(df / 2, 0.5, 0, df / (df + t * t), regularized=True) / 2
    return half if t < 0 else 1 - half


SEVERAL["stdtr"] = (S.stdtr, student, ((0.7, -2.0), (3.0, 0.4), (30.0, -6.0)))
INVERSES = {
    "stdtrit": (S.stdtrit, S.stdtr, ((0.7, 0.1), (3.0, 0.6), (30.0, 1e-6))),
    "gammaincinv": (S.gammaincinv, S.gammainc, ((0.3, 1e-3), (2.0, 0.4), (50.0, 0.99))),
    "gammainccinv": (S.gammainccinv, S.gammaincc, ((2.0, 1e-9), (2.0, 0.4))),
    "betaincinv": (S.betaincinv, S.betainc, ((0.4, 0.8, 0.3), (2.0, 5.0, 1e-5), (3.0, 0.5, 0.9))),
    "betainccinv": (S.betainccinv, S.betaincc, ((0.4, 0.8, 0.3), (2.0, 5.0, 1e-5))),
}


@pytest.mark.parametrize("name", INVERSES)
def test_inverses_undo_the_function_to_the_second_order(name):
    inverse, function, points = INVERSES[name]
    for values in points:
        round_trip = lambda *args: function(*args[:-1], inverse(*args))
        got = our_partials(round_trip, values)
        n = len(values)
        expected = [values[-1]] + [0.0] * (n - 1) + [1.0] + [0.0] * (n * (n + 1) // 2)
        scale = 1 + np.abs(our_partials(inverse, values))
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10 * scale.max() * values[-1])


def test_every_function_is_checked():
    parts = (bessel, combinatorial, divergences, incomplete, integrals)
    names = {name for part in parts for name in part.__all__}
    assert names - {"gammasgn"} <= {*ONE, *SEVERAL, *INVERSES}


def test_edges_are_those_of_scipy():
    inf, nan = np.inf, np.nan
    for name, points in {
        "gammainc": ((1.0, 0.0), (0.5, 0.0), (2.0, inf), (1e-300, 1.0), (nan, 1.0)),
        "betainc": ((1.0, 2.0, 0.0), (1.0, 2.0, 1.0), (0.5, 0.5, nan)),
        "rel_entr": ((0.0, 1.0), (0.0, 0.0), (-1.0, 1.0), (1.0, 0.0), (nan, 1.0)),
        "kl_div": ((0.0, 1.0), (0.0, 0.0), (-1.0, 1.0)),
        "huber": ((-1.0, 1.0), (0.0, 1.0), (1.0, 0.0)),
        "pseudo_huber": ((-1.0, 1.0), (0.0, 1.0), (1.0, 0.0)),
        "comb": ((3.0, 4.0), (-1.0, 1.0), (3.0, -1.0), (0.0, 0.0)),
        "factorial": ((-1.0,), (0.0,), (nan,)),
        "rgamma": ((0.0,), (-1.0,), (-150.5,), (171.0,), (inf,)),
        "gammasgn": ((-0.5,), (0.5,), (-1.5,)),
    }.items():
        for values in points:
            with np.errstate(all="ignore"):
                got = getattr(S, name)(*map(ad.tensor, values)).item()
            np.testing.assert_allclose(
                got, getattr(special, name)(*values), rtol=1e-13, err_msg=f"{name}{values}"
            )
    for a, x in ((1.5, 0.0), (3.0, inf)):
        g = ad.grad(S.gammainc, argnums=(0, 1))(a, x)
        assert g[0] == 0 and g[1] == 0
    assert ad.grad(S.betainc, argnums=(0, 1, 2))(2.0, 3.0, 0.0) == (0.0, 0.0, 0.0)


def test_float32_vmap_jvp_and_compile():
    a, x = np.array([0.7, 2.0, 30.0]), np.array([0.5, 3.0, 20.0])
    slope = ad.grad(S.gammainc)
    expected = np.array([slope(p, q) for p, q in zip(a, x, strict=True)])
    np.testing.assert_allclose(ad.vmap(slope)(a, x), expected, rtol=1e-13)
    np.testing.assert_allclose(ad.jvp(S.gammainc, (a, x), (np.ones(3), np.zeros(3)))[1], expected, rtol=1e-13)
    np.testing.assert_allclose(ad.compile(ad.vmap(slope))(a, x), expected, rtol=1e-13)
    single = ad.tensor(a.astype(np.float32), requires_grad=True)
    y = S.gammainc(single, ad.tensor(x.astype(np.float32))).sum()
    y.backward()
    assert y.dtype == single.grad.dtype == np.float32
    np.testing.assert_allclose(single.grad.numpy(), expected, rtol=1e-5)


def test_complex_error_functions():
    z = np.array([0.3 + 0.4j, -1.0 + 2.0j])
    for name in ("erf", "erfc"):
        np.testing.assert_allclose(
            getattr(S, name)(ad.tensor(z)).numpy(), getattr(special, name)(z), rtol=1e-14
        )
        assert gradcheck(getattr(S, name), z)


def test_reductions_have_scipys_parameters():
    x, w = np.array([[0.3, 1.0], [-2.0, 900.0]]), np.array([[1.0, 2.0], [0.5, 3.0]])
    for options in ({}, {"axis": 0}, {"axis": 1, "keepdims": True}, {"axis": (0, 1), "b": w}):
        expected = special.logsumexp(x, **options)
        np.testing.assert_allclose(S.logsumexp(ad.tensor(x), **options).numpy(), expected, rtol=1e-14)
    signed = S.logsumexp(ad.tensor(x), axis=1, b=np.array([[1.0, -2.0], [0.0, -1.0]]), return_sign=True)
    for got, expected in zip(
        signed, special.logsumexp(x, 1, b=np.array([[1.0, -2.0], [0.0, -1.0]]), return_sign=True), strict=True
    ):
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-14)
    assert gradcheck(lambda x, b: S.logsumexp(x, axis=0, b=b), [x[:, :1], w[:, :1]], order=2)
    for name in ("softmax", "log_softmax"):
        for axis in (None, 0, 1):
            expected = getattr(special, name)(x, axis=axis)
            np.testing.assert_allclose(
                getattr(S, name)(ad.tensor(x), axis=axis).numpy(), expected, rtol=1e-14
            )


def test_other_names_are_scipys():
    assert S.airy(0.5)[0] == special.airy(0.5)[0]
    x = ad.tensor(0.5, requires_grad=True)
    with pytest.raises(LostHistoryError, match=r"an array for scipy\.special\.airy"):
        S.airy(x)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        S.nothing  # noqa: B018
    with pytest.raises(InputError, match="hyp2f1: a must be a number"):
        S.hyp2f1(x, 1.0, 2.0, 0.5)
    assert S.comb(5, 2, exact=True) == 10
    with pytest.raises(InputError, match="exact=True"):
        S.comb(x, 2, exact=True)


@pytest.mark.parametrize(
    ("a", "b", "x", "in_a", "in_b"),  # derivatives by mpmath
    [
        (0.00127, 9147.8, 4.86e-09, -9.333301896876533, 1.3717725897674354e-07),
        (9197.1, 0.001116, 0.9999999587, -1.2031895216949573e-07, 7.241575806156673),
        (0.5, 10.0, 0.01, -0.8136863632290574, 0.016414333231001867),
        (0.5, 10.0, 0.06, -0.5731336087703568, 0.024564945780215838),
        (3.0, 0.5, 0.2, -0.0047633365988139645, 0.007875484827781545),
        (0.01, 300.0, 1e-06, -7.003905558181251, 3.09528583567559e-05),
        (15.0, 0.5, 0.93, -0.0135613589548814, 0.35532204544158175),
        (200.0, 300.0, 0.3, -3.141477273032247e-07, 1.682978076167301e-07),
    ],
)
def test_first_derivatives_of_betainc_are_exact_on_both_sides_of_the_series(a, b, x, in_a, in_b):
    got = ad.grad(ad.scipy.special.betainc, argnums=(0, 1))(a, b, x)
    np.testing.assert_allclose(got, (in_a, in_b), rtol=2e-13)
