"""Solvers of ``adjoint.scipy.optimize`` that do not converge: SciPy's values, but no derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import ConvergenceError

so = pytest.importorskip("scipy.optimize")
O = ad.scipy.optimize  # noqa: E741


def valley(z, a):
    return 100 * (z[1] - z[0] ** 2) ** 2 + (a - z[0]) ** 2


def steps(z, a):
    return ad.stack([10 * (z[1] - z[0] ** 2), a - z[0]])


def powers(z, a):
    return ad.stack([ad.exp(z[0]) - 5 * a, z[1] ** 3 - z[0] - 20 * a])


def well(x, a):
    return (x - a) ** 2 + x**4


def cube(x, a):
    return x**3 - a


AT_BOUNDS = {"bounds": [(0, None), (0, None)], "method": "L-BFGS-B"}
UNFINISHED = {
    "minimize": lambda a, n: O.minimize(valley, np.zeros(2), (a,), options={"maxiter": n}).x[0],
    "bounds": lambda a, n: O.minimize(valley, np.zeros(2), (a,), options={"maxiter": n}, **AT_BOUNDS).x[0],
    "Nelder-Mead": lambda a, n: (
        O.minimize(valley, np.zeros(2), (a,), "Nelder-Mead", options={"maxiter": n}).fun
    ),
    "least_squares": lambda a, n: O.least_squares(steps, np.zeros(2), args=(a,), max_nfev=n).x[0],
    "cost": lambda a, n: O.least_squares(steps, np.zeros(2), args=(a,), max_nfev=n).cost,
    "leastsq": lambda a, n: O.leastsq(steps, np.zeros(2), (a,), maxfev=n)[0][0],
    "root": lambda a, n: O.root(powers, np.ones(2), (a,), options={"maxfev": n}).x[0],
    "fsolve": lambda a, n: O.fsolve(powers, np.ones(2), (a,), maxfev=n)[0],
    "minimize_scalar": lambda a, n: O.minimize_scalar(well, args=(a,), options={"maxiter": n}).x,
    "bounded": lambda a, n: O.minimize_scalar(well, bounds=(0, 5), args=(a,), options={"maxiter": n}).x,
    "brentq": lambda a, n: O.brentq(cube, 0.0, 4.0, (a,), maxiter=n, disp=False),
    "toms748": lambda a, n: O.toms748(cube, 0.0, 4.0, (a,), maxiter=n, disp=False),
    "newton": lambda a, n: O.newton(cube, 4.0, args=(a,), maxiter=n, disp=False),
    "root_scalar": lambda a, n: O.root_scalar(cube, (a,), bracket=(0.0, 4.0), maxiter=n).root,
}
MESSAGE = r"the result has no derivative, because SciPy did not converge"
HOW = {
    "grad": lambda f: ad.grad(f)(1.0),
    "jvp": lambda f: ad.jvp(f, (1.0,), (1.0,)),
    "vmap": lambda f: ad.vmap(ad.grad(f))(np.array([1.0, 2.0])),
    "around vmap": lambda f: ad.grad(lambda v: ad.vmap(f)(v).sum())(np.array([1.0, 2.0])),
    "in compile": lambda f: ad.compile(ad.grad(f))(1.0),
    "of compile": lambda f: ad.grad(ad.compile(f))(1.0),
    "vmap in compile": lambda f: ad.compile(ad.vmap(ad.grad(f)))(np.array([1.0, 2.0])),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", UNFINISHED)
def test_derivatives_of_a_result_that_did_not_converge_raise(name):
    f = lambda a: UNFINISHED[name](a, 2)
    plain = float(f(1.0))
    assert float(ad.compile(f)(1.0)) == pytest.approx(plain, rel=1e-12)
    for of in HOW.values():
        with pytest.raises(ConvergenceError, match=MESSAGE):
            of(f)


@pytest.mark.parametrize("name", UNFINISHED)
def test_the_same_problems_have_derivatives_with_more_steps(name):
    f = lambda a: UNFINISHED[name](a, 1000)
    slope = (float(f(1.0 + 1e-3)) - float(f(1.0 - 1e-3))) / 2e-3
    for how in ("grad", "in compile"):
        assert float(HOW[how](f)) == pytest.approx(slope, rel=2e-2, abs=1e-3)


def test_the_message_has_that_of_scipy_and_the_cure():
    with pytest.raises(ConvergenceError) as error:
        ad.grad(lambda a: UNFINISHED["minimize"](a, 2))(1.0)
    assert str(error.value) == (
        "minimize: the result has no derivative, because SciPy did not converge: Maximum number of iterations "
        "has been exceeded.\n"
        "  Allow more steps (maxiter=, maxfev= or max_nfev=) or start closer to the solution.  Detach the result "
        "(x.detach()) to use its value only."
    )


def test_a_solution_that_is_only_reported_as_a_failure_has_derivatives():
    """With a tolerance of 0 the method ends with a loss of precision, at the minimum (a, a²)."""
    found = []

    def best(a):
        found.append(O.minimize(lambda z: valley(z, a) + 1.0, np.zeros(2), method="BFGS", tol=0))
        return found[-1].x[1]

    assert float(ad.grad(best)(1.5)) == pytest.approx(3.0, rel=1e-6)
    assert not found[0].success
    assert float(ad.compile(ad.grad(best))(1.5)) == pytest.approx(3.0, rel=1e-6)
    np.testing.assert_allclose(ad.vmap(ad.grad(best))(np.array([1.5, 2.0])), [3.0, 4.0], rtol=1e-6)


def test_a_start_at_a_bound_that_does_not_hold_it_is_not_a_solution():
    def best(a, start, steps):
        bounds, options = [(0.0, 5.0)], {"maxfun": steps}
        return O.minimize(
            lambda x: ((x - a) ** 2).sum(), [start], method="TNC", bounds=bounds, options=options
        ).x[0]

    for how in (
        ad.grad,
        lambda f: ad.compile(ad.grad(f)),
        lambda f: lambda a: ad.vmap(ad.grad(f))(np.full(2, a)),
    ):
        for start in (0.0, 5.0):
            with pytest.raises(ConvergenceError, match=MESSAGE):
                how(lambda a, start=start: best(a, start, 0))(2.0)
    assert ad.grad(lambda a: best(a, 0.0, 100))(2.0) == pytest.approx(1.0)
    assert ad.grad(lambda a: best(a, 1.0, 100))(-2.0) == 0.0


@pytest.mark.filterwarnings("ignore:some failed to converge")
def test_one_element_of_newton_that_did_not_converge_raises():
    find = lambda a: O.newton(cube, [1.1, 1e6], args=(a,), maxiter=15)
    x, converged, _ = O.newton(cube, [1.1, 1e6], args=(1.0,), maxiter=15, full_output=True)
    assert converged.tolist() == [True, False] and x.tolist() == find(1.0).tolist()
    for how in (ad.jacobian, lambda f: ad.compile(ad.jacobian(f))):
        with pytest.raises(ConvergenceError, match="newton: " + MESSAGE):
            how(find)(1.0)


def test_fsolve_warns_as_scipy_does():
    with pytest.warns(RuntimeWarning, match="maxfev = 3"):
        O.fsolve(powers, np.ones(2), (1.0,), maxfev=3)
    x, report, flag, message = O.fsolve(powers, np.ones(2), (1.0,), maxfev=3, full_output=True)
    assert flag == 2 and "maxfev = 3" in message and report["fvec"].shape == x.shape
