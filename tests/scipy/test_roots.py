"""Roots, fixed points and minima of one unknown, and ``fsolve``: SciPy's numbers, and their derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import ConvergenceError, DTypeError, InputError, ShapeError
from adjoint.testing import gradcheck

so = pytest.importorskip("scipy.optimize")
O = ad.scipy.optimize  # noqa: E741

kepler = lambda x, e, m: x - e * np.sin(x) - m
within = lambda find: lambda e, m: find(kepler, 0.0, 3.0, (e, m))
SOLVERS = {
    **{name: within(getattr(O, name)) for name in ("brentq", "brenth", "bisect", "ridder", "toms748")},
    "newton": lambda e, m: O.newton(kepler, 1.0, args=(e, m)),
    "newton with a slope": lambda e, m: O.newton(kepler, 1.0, lambda x, e, m: 1 - e * np.cos(x), (e, m)),
    "root_scalar": lambda e, m: O.root_scalar(lambda x: kepler(x, e, m), bracket=(0, 3)).root,
    "root_scalar with a slope": lambda e, m: (
        O.root_scalar(lambda x: (kepler(x, e, m), 1 - e * np.cos(x)), x0=1.0, fprime=True).root
    ),
    "fsolve": lambda e, m: O.fsolve(kepler, 1.0, (e, m))[0],
    "fixed_point": lambda e, m: O.fixed_point(lambda x: e * np.sin(x) + m, 1.0, xtol=1e-12),
    "minimize_scalar": lambda e, m: (
        O.minimize_scalar(lambda x: x**2 / 2 + e * np.cos(x) - m * x, tol=1e-10).x
    ),
    "minimize_scalar bounded": lambda e, m: (
        O.minimize_scalar(
            lambda x: x**2 / 2 + e * np.cos(x) - m * x, bounds=(0, 3), options={"xatol": 1e-10}
        ).x
    ),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_solutions_and_derivatives(name):
    solve = SOLVERS[name]
    e, m = 0.4, 1.1
    x = float(so.brentq(kepler, 0.0, 3.0, (e, m)))
    assert float(solve(e, m)) == pytest.approx(x, rel=1e-6)
    slope = 1 - e * np.cos(x)
    close = lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-6)
    close(ad.grad(solve, argnums=(0, 1))(e, m), [np.sin(x) / slope, 1 / slope])
    close(ad.jvp(solve, (e, m), (0.0, 1.0))[1], 1 / slope)
    close(ad.grad(ad.grad(solve, argnums=1), argnums=1)(e, m), -e * np.sin(x) / slope**3)


@pytest.mark.parametrize("name", SOLVERS)
def test_elements_of_a_batch_are_solved_one_by_one(name):
    solve, e, m = SOLVERS[name], np.array([0.4, 0.1, 0.7]), np.array([1.1, 0.9, 1.3])
    if name == "root_scalar with a slope":
        with pytest.raises(InputError, match=r"root_scalar: fprime=True is not supported inside ad\.vmap"):
            ad.vmap(solve)(e, m)
        return
    each = lambda f: np.array([float(f(*pair)) for pair in zip(e, m, strict=True)])
    close = lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-9)
    for f in (solve, ad.grad(solve), ad.grad(ad.grad(solve, argnums=1))):
        close(ad.vmap(f)(e, m), each(f))
    close(ad.grad(lambda m: ad.vmap(solve)(e, m).sum())(m), each(ad.grad(solve, argnums=1)))
    with pytest.raises(InputError, match=rf"{name.split()[0]}: the batch of ad\.vmap is empty"):
        ad.vmap(solve)(e[:0], m[:0])
    with pytest.raises(InputError, match=rf"{name.split()[0]}: nested ad\.vmap is not supported"):
        ad.vmap(lambda e: ad.vmap(lambda m: solve(e, m))(m))(e)


def test_starts_of_a_batch_and_results():
    ends = np.array([2.0, 3.0])
    root = ad.vmap(lambda b: O.brentq(lambda x: x * x - 2, 0.0, b))(ends)
    np.testing.assert_allclose(root, [2**0.5] * 2)
    pair = ad.vmap(lambda x0: O.fsolve(lambda x: [x[0] ** 2 - x[1], x[1] - 4.0], x0))(np.ones((2, 2)) * 3)
    np.testing.assert_allclose(pair, [[2.0, 4.0]] * 2)
    fit = ad.vmap(lambda p, y: O.leastsq(lambda m: (m - y) * [1.0, 2.0], p)[0])(np.ones((2, 1)), ends)
    np.testing.assert_allclose(fit, ends[:, None])
    found = []
    ad.vmap(lambda a: found.append(O.root_scalar(lambda x: x - a, bracket=(0, 5))) or a)(ends)
    ad.vmap(lambda a: found.append(O.minimize_scalar(lambda x: (x - a) ** 2, bounds=(0, 2.5))) or a)(ends)
    assert sorted(found[0]) == ["converged", "root"] and sorted(found[1]) == ["fun", "success", "x"]
    bounded = lambda a: O.minimize_scalar(lambda x: (x - a) ** 2, bounds=(0, 2.5)).x
    np.testing.assert_allclose(ad.vmap(ad.grad(bounded))(ends), [1.0, 0.0])
    with pytest.raises(InputError, match=r"brentq: full_output=True is not supported inside ad\.vmap"):
        ad.vmap(lambda b: O.brentq(lambda x: x * x - b, 0.0, b, full_output=True)[0])(ends)


@pytest.mark.filterwarnings("ignore:Method 'bounded' does not support relative tolerance")
def test_a_minimum_at_a_bound_does_not_move():
    def slope(a, **options):
        find = lambda a: O.minimize_scalar(lambda x: (x - a) ** 2, method="bounded", **options).x
        assert ad.compile(ad.grad(find))(a) == ad.grad(find)(a)
        return ad.grad(find)(a)

    assert slope(-5.0, bounds=(0.0, 10.0), tol=1e-2) == 0
    assert slope(-5.0, bounds=(0.0, 10.0), options={"xatol": 1e-2}) == 0
    assert slope(2e6, bounds=(0.0, 1e6)) == 0
    assert slope(5.0, bounds=(0.0, 10.0), tol=1e-2) == 1


def test_lists_of_arguments_are_unpacked_where_scipy_does():
    one, two = (lambda x, p: x - p[0]), (lambda x, p, q: x - p)
    for solve in (
        lambda o: o.brentq(one, 0, 4, args=[1.0, 2.0]),
        lambda o: o.fsolve(one, 0.5, args=[1.0, 2.0]),
    ):
        np.testing.assert_allclose(np.asarray(solve(O)), solve(so))
    solve = lambda o: o.leastsq(one, [0.5], args=[1.0, 2.0])[0]
    np.testing.assert_allclose(solve(O), solve(so))
    for solve in (
        lambda o: o.newton(two, 0.5, args=[1.0, 2.0]),
        lambda o: o.fixed_point(lambda x, p, q: p / q + x / 2, 0.5, args=[1.0, 2.0]),
        lambda o: o.least_squares(two, [0.5], args=[1.0, 2.0]).x,
    ):
        np.testing.assert_allclose(np.asarray(solve(O)), solve(so))


def test_leastsq_of_a_singular_problem():
    singular = lambda p: np.array([1.0, 2.0]) * (p[0] + p[1] - 1.0)
    best, spread, info, _, flag = O.leastsq(singular, [0.0, 0.0], full_output=True)
    expected = so.leastsq(singular, [0.0, 0.0], full_output=True)
    assert spread is None is expected[1] and best.sum().item() == pytest.approx(1.0)
    assert flag == expected[4] and sorted(info) == ["fvec", "nfev"]


def test_several_unknowns():
    f = lambda x, a: [x[0] ** 2 + x[1] - a[0], x[0] - x[1] ** 3 * a[1]]
    a = np.array([2.0, 0.8])
    x = O.fsolve(f, [1.0, 1.0], (a,))
    np.testing.assert_allclose(x, so.fsolve(f, [1.0, 1.0], (a,)), rtol=1e-8)
    assert gradcheck(lambda a: O.fsolve(f, [1.0, 1.0], (a,), xtol=1e-13), [a], order=2)
    slopes = lambda x, a: np.array([[2 * x[0], 1.0], [1.0, -3 * x[1] ** 2 * a[1]]])
    given, report, flag, _ = O.fsolve(f, [1.0, 1.0], (a,), slopes, full_output=True)
    np.testing.assert_allclose(given, x)
    assert flag == 1 and report["nfev"] > 0
    assert gradcheck(lambda a: O.newton(lambda x: x**3 - a, np.array([1.0, 2.0]), tol=1e-12), [a + 1])
    many = O.newton(lambda x: x**3 - a - 1, np.array([1.0, 2.0]), full_output=True)
    assert many.converged.all()
    residuals = lambda p, y: p[0] * np.arange(4.0) + p[1] ** 2 - y
    y = np.array([1.0, 2.0, 2.5, 4.0])
    best, spread, info, _, flag = O.leastsq(residuals, [0.5, 1.0], (y,), full_output=True)
    expected = so.leastsq(residuals, [0.5, 1.0], (y,), full_output=True)
    np.testing.assert_allclose(best, expected[0], rtol=1e-6)
    np.testing.assert_allclose(spread, expected[1], rtol=1e-5)
    np.testing.assert_allclose(info["fvec"], expected[2]["fvec"], atol=1e-6)
    assert flag in (1, 2, 3, 4) and O.leastsq(residuals, [0.5, 1.0], (y,), maxfev=3)[1] == 5
    assert gradcheck(lambda y: O.leastsq(residuals, [0.5, 1.0], (y,), maxfev=0)[0], [y], rtol=1e-3, eps=1e-4)


def test_ends_do_not_matter_and_plain_programs_work():
    high = ad.tensor(3.0, requires_grad=True)
    root, report = O.brentq(math.cos, 0.0, high, full_output=True)
    assert not root.requires_grad and report.root is root and root.item() == so.brentq(math.cos, 0.0, 3.0)
    assert O.minimize_scalar(math.cos).fun.item() == pytest.approx(-1.0)
    assert O.newton(lambda z: z**3 - 1, 1j - 1).item() == pytest.approx(so.newton(lambda z: z**3 - 1, 1j - 1))
    at_bound = O.minimize_scalar(lambda x: (x - high) ** 2, bounds=(0.0, 1.0))
    assert not at_bound.x.requires_grad
    at_bound.fun.backward()
    assert high.grad.item() == pytest.approx(4.0, rel=1e-4)


def test_mistakes():
    a = ad.tensor(1.0, requires_grad=True)
    with pytest.raises(
        ShapeError,
        match=r"brentq: <lambda> must return as many numbers as x has, 1, but returned shape \(2,\)\.",
    ):
        O.brentq(lambda x: [x, x], 0.0, 1.0)
    with pytest.raises(ConvergenceError, match="brentq: the Jacobian at the solution is singular"):
        O.brentq(lambda x: (x - a) ** 3, 0.0, 2.0).backward()
    with pytest.raises(
        DTypeError, match="newton: the solution is complex128, but gradients need real floats"
    ):
        O.newton(lambda z: z**3 - a, 1j - 1)
    with pytest.raises(InputError, match="brentq: expected a function, but got int"):
        O.brentq(3, 0.0, 1.0)
    with pytest.raises(InputError, match="nan_policy= is not available"):
        O.curve_fit(lambda x, p: p * x, [1.0, 2.0], [1.0, 2.0], nan_policy="omit")
