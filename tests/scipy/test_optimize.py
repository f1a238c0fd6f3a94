"""``adjoint.scipy.optimize``: SciPy's solutions, and their derivatives in what the problems depend on."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import ArgumentError, InputError, LostHistoryError, ShapeError
from adjoint.testing import gradcheck

so = pytest.importorskip("scipy.optimize")
O = ad.scipy.optimize  # noqa: E741

RNG = np.random.default_rng(23)
tight = {"rtol": 1e-4, "atol": 1e-5, "eps": 1e-4}


def rosenbrock(x, a, b):
    return (a - x[0]) ** 2 + b * (x[1] - x[0] ** 2) ** 2


@pytest.mark.parametrize("method", [None, "BFGS", "Newton-CG", "trust-exact", "L-BFGS-B"])
def test_minimize(method):
    got = O.minimize(rosenbrock, [0.5, 0.2], (1.5, 10.0), method, tol=1e-10)
    expected = so.minimize(rosenbrock, [0.5, 0.2], (1.5, 10.0), tol=1e-10)
    np.testing.assert_allclose(got.x, expected.x, atol=1e-5)
    best = lambda a, b: O.minimize(rosenbrock, [0.5, 0.2], (a, b), method, tol=1e-10).x
    assert gradcheck(best, [np.array(1.5), np.array(10.0)], rtol=1e-3, atol=1e-4, eps=1e-3)
    exact = ad.jacobian(lambda a: best(a, 10.0))(1.5)  # the minimum is at (a, a²)
    np.testing.assert_allclose(exact, [1.0, 3.0], atol=1e-4)


def test_minimize_with_trees_bounds_and_derivatives_of_others():
    loss = lambda p, t: ((p["w"] - t) ** 2).sum() + (p["b"] * t[0] - 1) ** 2
    t = np.array([1.0, 2.0])
    best = lambda t: O.minimize(loss, {"w": np.zeros(2), "b": 0.5}, (t,), tol=1e-12).x
    assert gradcheck(lambda t: (best(t)["w"], best(t)["b"]), [t], **tight)
    second = ad.hessian(lambda a: O.minimize(lambda x: (x**2 / 2 - a**3 * x).sum(), 0.0, tol=1e-12).x)(2.0)
    assert float(second) == pytest.approx(12.0, rel=1e-6)
    bounded = lambda a: (
        O.minimize(lambda x: ((x - a) ** 2).sum(), [0.1, 0.1], bounds=[(0, 1), (None, None)]).x
    )
    np.testing.assert_allclose(bounded(3.0), [1.0, 3.0], atol=1e-6)
    np.testing.assert_allclose(ad.jacobian(bounded)(3.0), [0.0, 1.0], atol=1e-6)
    square = lambda x: (((x - 2) ** 2).sum(), 2 * (x - 2))
    np.testing.assert_allclose(O.minimize(square, np.zeros(2), jac=True).x, [2, 2], atol=1e-6)
    plain = O.minimize(lambda x: ((x - 2) ** 2).sum(), np.zeros(2), jac=lambda x: 2 * (x - 2))
    np.testing.assert_allclose(plain.x, [2, 2], atol=1e-6)
    rule = {"type": "eq", "fun": lambda x: x[0] - 1.0}
    limited = lambda a: O.minimize(lambda x: ((x - a) ** 2).sum(), [0.1, 0.1], constraints=rule).x
    np.testing.assert_allclose(limited(3.0), [1.0, 3.0], atol=1e-6)
    with pytest.raises(InputError, match="derivatives are not available with constraints"):
        ad.jacobian(limited)(3.0)


def test_root():
    f = lambda x, a: ad.stack([x[0] ** 2 + x[1] - a, x[0] - x[1] ** 3])
    solved = lambda a: O.root(f, [1.0, 1.0], (a,)).x
    np.testing.assert_allclose(f(solved(3.0), 3.0), 0, atol=1e-10)
    assert gradcheck(solved, [np.array(3.0)], order=2, rtol=1e-4, atol=1e-5)
    assert gradcheck(lambda a: O.root(f, [1.0, 1.0], (a,), method="lm").x, [np.array(3.0)], **tight)
    tangent = ad.jvp(solved, (np.array(3.0),), (np.array(1.0),))[1]
    np.testing.assert_allclose(tangent, ad.jacobian(solved)(3.0), rtol=1e-8)


@pytest.mark.parametrize("loss", ["linear", "soft_l1", "huber", "cauchy", "arctan"])
def test_least_squares(loss):
    x = np.linspace(0, 2, 12)
    y = 2 * np.exp(-0.8 * x) + 0.1 * RNG.normal(size=12)
    y[3] += 1.5
    options = {"loss": loss, "f_scale": 0.3, "xtol": 1e-12, "gtol": 1e-12, "ftol": 1e-12}
    off = lambda p, y: p[0] * ad.exp(p[1] * x) - y
    fit = lambda y: O.least_squares(off, [1.0, -1.0], args=(y,), **options).x
    plain = so.least_squares(lambda p: p[0] * np.exp(p[1] * x) - y, [1.0, -1.0], **options)
    np.testing.assert_allclose(fit(y), plain.x, atol=1e-5)
    assert gradcheck(fit, [y], directions=2, rtol=1e-3, atol=1e-4, eps=1e-4)


def test_curve_fit():
    x = np.linspace(0, 2, 15)
    y = 2 * np.exp(-0.8 * x) + 0.05 * RNG.normal(size=15)
    s = RNG.uniform(0.5, 1.5, 15)
    model, plain = (lambda x, a, b: a * ad.exp(b * x)), (lambda x, a, b: a * np.exp(b * x))
    wide = 0.3 * np.ones((15, 15)) + np.diag(s)
    for options in (
        {},
        {"sigma": s},
        {"sigma": s, "absolute_sigma": True},
        {"sigma": wide},
        {"p0": [1.0, -0.5], "bounds": ([0, -3], [5, 0])},
    ):
        got, expected = O.curve_fit(model, x, y, **options), so.curve_fit(plain, x, y, **options)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    exact = {"xtol": 1e-14, "ftol": 1e-14, "gtol": 1e-14}
    assert gradcheck(
        lambda y, s: O.curve_fit(model, x, y, sigma=s, **exact),
        [y, s],
        directions=2,
        rtol=1e-3,
        atol=1e-5,
        eps=1e-4,
    )
    assert gradcheck(
        lambda x: O.curve_fit(model, x, y, **exact)[0], [x], directions=2, rtol=1e-3, atol=1e-5, eps=1e-4
    )
    with pytest.raises(InputError, match="number of parameters"):
        O.curve_fit(lambda x, *p: x, x, y)


def test_curve_fit_with_full_output():
    x, y = np.arange(4.0), np.array([0.1, 2.0, 3.9, 6.2])
    got = O.curve_fit(lambda x, a: a * x, x, y, full_output=True)
    expected = so.curve_fit(lambda x, a: a * x, x, y, full_output=True)
    for ours, theirs in zip((*got[:2], got[2]["fvec"]), (*expected[:2], expected[2]["fvec"]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    assert got[2]["nfev"] > 0 and isinstance(got[3], str) and got[4] in (1, 2, 3, 4)


def test_linear_programs_are_those_of_scipy():
    result = O.linprog([-1.0, -2.0], A_ub=[[1.0, 1.0]], b_ub=[4.0])
    np.testing.assert_allclose(result.x, [0.0, 4.0], atol=1e-9)
    with pytest.raises(LostHistoryError):
        O.linprog(ad.tensor([-1.0, -2.0], requires_grad=True), A_ub=[[1.0, 1.0]], b_ub=[4.0])
    with pytest.raises(ArgumentError, match="loss must be one of linear"):
        O.least_squares(lambda x: x, [1.0], loss="square")


def test_values_at_the_solution_have_gradients_and_estimates_are_left_out() -> None:
    def least(p):
        return ad.scipy.optimize.minimize(lambda x: ((x - p) ** 2).sum() + (x**4).sum(), np.zeros(2))

    p = np.array([0.5, 1.0])
    x = least(p).x
    np.testing.assert_allclose(
        ad.grad(lambda p: least(p).fun)(p), -2 * (x - p), rtol=1e-5
    )  # by the envelope theorem
    assert {"jac", "hess_inv"} <= set(least(p)) and not {"jac", "hess_inv"} & set(
        least(ad.tensor(p, requires_grad=True))
    )

    def fit(s):  # x = (s + 2) / 5
        return ad.scipy.optimize.least_squares(lambda x: ad.array([x[0] - s, 2 * x[0] - 1]), np.zeros(1))

    assert ad.grad(lambda s: fit(s).cost)(1.0) == pytest.approx(0.4)
    assert ad.grad(lambda s: fit(s).fun.sum())(1.0) == pytest.approx(-0.4)


# Inside vmap and ad.compile ------------------------------------------------------------------------------

BATCH = np.array([[1.1, 0.8, 0.5], [1.4, 0.7, 0.6], [0.9, 1.2, -0.3]])
GRID = np.linspace(0, 1, 6)


def fit(a):
    data = a[0] * np.exp(a[1] * GRID) + 0.1 * a[2] * GRID
    best, covariance = O.curve_fit(lambda x, p, q: p * ad.exp(q * x), GRID, data)
    return ad.stack([best[0], best[1], covariance.sum()])


def quartic(x, a):
    return ((x - a) ** 4 + (x - a) ** 2).sum() + 0.1 * x[0] * x[1]


SOLVERS = {
    "minimize": lambda a: O.minimize(quartic, a * 0, (a,), "BFGS", tol=1e-10).x,
    "fun": lambda a: O.minimize(quartic, [0.0, 0.0, 0.0], (a,)).fun * ad.ones(3),
    "bounds": lambda a: O.minimize(quartic, np.zeros(3), (a,), bounds=[(None, 1.0), (0.9, 5), (0, 1)]).x,
    "root": lambda a: O.root(lambda x, a: x**3 + x - a, np.ones(3), args=(a,)).x,
    "tree": lambda a: O.root(lambda d: [d["u"] ** 3 + d["v"] - a, d["v"] - d["u"]],
                             {"u": np.ones(3), "v": np.ones(3)}).x["u"],
    "least_squares": lambda a: O.least_squares(lambda x: ad.concat([x - a, 0.1 * x * x]), np.ones(3)).x,
    "curve_fit": fit,
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVERS)
def test_solvers_in_vmap_give_the_results_of_single_calls(name):
    f = lambda a: SOLVERS[name](a)
    total = lambda a: (f(a) ** 2).sum()
    alone = lambda g: np.stack([np.asarray(g(a)) for a in BATCH])
    for g in (f, ad.grad(total), lambda a: ad.jvp(f, (a,), (a,))[1], ad.hessian(total)):
        np.testing.assert_allclose(ad.vmap(g)(ad.tensor(BATCH)), alone(g), rtol=1e-9, atol=1e-12)
    outside = ad.grad(lambda b: (ad.vmap(f)(b) ** 2).sum())(BATCH)
    np.testing.assert_allclose(outside, alone(ad.grad(total)), rtol=1e-9, atol=1e-12)


def test_a_failure_in_a_batch_and_nesting_are_said():
    found = []
    ad.vmap(lambda a: found.append(O.root(lambda x: x * x + a, 1.0)) or a)(np.array([-1.0, 2.0]))
    assert not found[0].success
    with pytest.raises(
        InputError, match=r"root: the batch of ad\.vmap is empty\.\n  Pass at least one element"
    ):
        ad.vmap(lambda a: O.root(lambda x: x * x - a, 1.0).x)(np.ones(0))
    with pytest.raises(InputError, match=r"nested ad\.vmap is not supported"):
        ad.vmap(lambda a: ad.vmap(lambda b: O.root(lambda x: x - a * b, 1.0).x)(GRID))(GRID)


def test_an_entry_that_a_result_does_not_have_is_named():
    with pytest.raises(AttributeError) as caught:
        ad.compile(lambda a: O.minimize(lambda x: ((x - a) ** 2).sum(), np.zeros(2)).jac)(np.ones(()))
    assert str(caught.value) == (
        "this result has no 'jac'; its entries are x_flat, fun, success, status, nfev, x.  ad.grad and ad.hessian "
        "compute derivatives at x."
    )
    with pytest.raises(AttributeError, match=r"this result has no 'hess_inv'; its entries are .*message"):
        ad.grad(lambda a: O.minimize(lambda x: ((x - a) ** 2).sum(), np.zeros(2)).hess_inv)(1.0)
    with pytest.raises(AttributeError, match="this result has no 'flag'; its entries are converged, root"):
        ad.vmap(lambda a: O.root_scalar(lambda x: x - a, bracket=(-5, 5)).flag)(np.ones(2))


def test_a_result_with_derivatives_is_still_one_of_scipy():
    a = ad.tensor(1.0, requires_grad=True)
    found = O.minimize(lambda x: ((x - a) ** 2).sum(), np.zeros(2))
    assert isinstance(found, so.OptimizeResult) and "grad_fn=<minimize>" in repr(found)
    again = copy.copy(found)
    assert type(again) is so.OptimizeResult and again.x is found.x


@pytest.mark.parametrize("method", [None, "Nelder-Mead", "trust-exact"])
def test_an_objective_with_several_values_is_named(method):
    best = lambda a: O.minimize(lambda x: (x - a) ** 2, np.zeros(2), method=method).x
    for run in (best, ad.compile(best), lambda a: ad.vmap(best)(a[None])):
        with pytest.raises(ShapeError) as caught:
            run(np.ones(()))
        assert str(caught.value) == (
            "minimize: <lambda> must return one number, but returned shape (2,).\n"
            "  Reduce it (y.sum(), y.mean()), or use least_squares for residuals."
        )
