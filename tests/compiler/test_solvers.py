"""Solvers inside ``ad.compile``: the numbers and derivatives of eager code, and what is not supported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad

integrate = pytest.importorskip("adjoint.scipy.integrate")
TIMES = np.linspace(0.0, 3.0, 5)
V = np.array([0.5, -1.0, 2.0])


def predators(t: Any, y: Any, a: Any) -> Any:
    return ad.stack([a[0] * y[0] - a[1] * y[0] * y[1], a[2] * y[0] * y[1] - y[1] + 0.1 * ad.sin(t)])


def ivp(a: Any, method: str = "RK45", **options: Any) -> Any:
    return integrate.solve_ivp(predators, (0.0, 3.0), a[:2] * 1.0, method, TIMES, args=(a,), **options).y


def own_times(a: Any) -> Any:
    times = ad.stack([a[2], a[0], 2 * a[0]])
    return integrate.solve_ivp(predators, (a[2], 2 * a[0]), [1.0, 0.5], t_eval=times, args=(a,)).y


def backwards(a: Any) -> Any:
    found = integrate.solve_ivp(predators, (2.0, 0.0), a[:2], dense_output=True, args=(a,), first_step=0.1)
    return found.sol(np.array([1.5, 0.25]))


def while_solved(a: Any) -> Any:
    return ad.while_loop(lambda x: x.sum() < 50, lambda x: x * a + 1, a, limit=40)


SOLVERS = {
    "fixed_point": lambda a: ad.fixed_point(lambda x: (x + a / x) / 2, np.ones(3)),
    "damped": lambda a: ad.fixed_point(lambda x, a: ad.cos(x * a), 0.5, a.sum() / 9, damping=0.7),
    "root": lambda a: ad.root(lambda x: x**3 + x - a, a * 0 + 1.0),
    "tree": lambda a: ad.root(
        lambda d: {"u": d["u"] ** 2 + d["v"] - a, "v": d["v"] - d["u"]}, {"u": np.ones(3), "v": np.ones(3)}
    )["u"],
    "while": while_solved,
    "RK45": ivp,
    "RK23": lambda a: ivp(a, "RK23", max_step=0.2),
    "DOP853": lambda a: ivp(a, "DOP853", rtol=1e-6),
    "odeint": lambda a: integrate.odeint(lambda y, t, a: predators(t, y, a), a[:2], TIMES, args=(a,)),
    "own times": own_times,
    "backwards": backwards,
}

TRANSFORMS = {
    "values": lambda f: f,
    "grad": lambda f: ad.grad(lambda a: ad.sin(f(a)).sum()),
    "jvp": lambda f: lambda a: ad.jvp(f, (a,), (V,))[1],
    "hessian": lambda f: ad.hessian(lambda a: ad.sin(f(a)).sum()),
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_solvers_are_those_of_eager_code(name: str, transform: str) -> None:
    f = TRANSFORMS[transform](SOLVERS[name])
    if transform == "hessian" and name in ("DOP853", "odeint", "RK23", "backwards"):
        return  # as RK45
    compiled = ad.compile(f, backend="replay" if transform != "values" else "auto")
    for a in (np.array([1.1, 0.8, 0.5]), np.array([1.4, 0.7, 0.6])):
        np.testing.assert_allclose(compiled(a), f(a), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", SOLVERS)
def test_each_element_of_a_batch_is_solved_alone(name: str) -> None:
    f = SOLVERS[name]
    batch = np.array([[1.1, 0.8, 0.5], [1.4, 0.7, 0.6]])
    for g in (f, ad.grad(lambda a: f(a).sum())):
        found = ad.compile(ad.vmap(g), backend="replay")(batch)
        np.testing.assert_allclose(found, np.stack([g(a) for a in batch]), rtol=1e-8, atol=1e-9)


def test_a_solution_of_zero_length_is_its_start() -> None:
    f = ad.compile(lambda y, t: integrate.solve_ivp(lambda t, y: -y, (0.0, t), y, t_eval=[0.0]).y)
    np.testing.assert_allclose(f(np.array([2.0, 3.0]), np.array(0.0)), [[2.0], [3.0]])


def test_problems_that_are_not_solved_raise_at_the_call() -> None:
    diverging = ad.compile(lambda a: ad.fixed_point(lambda x: 2 * x + a, 1.0, max_steps=20))
    with pytest.raises(ad.errors.ConvergenceError, match="did not converge in 20 steps"):
        diverging(np.array(1.0))
    assert diverging(np.array(-1.0)) == 1
    with pytest.raises(ad.errors.ConvergenceError, match="root: <lambda> did not converge"):
        ad.compile(lambda a: ad.root(lambda x: x * x + a, 1.0))(np.array(2.0))
    with pytest.raises(ad.errors.ConvergenceError, match="not reached in 5 attempted steps"):
        ad.compile(lambda a: ivp(a, max_steps=5))(np.ones(3))
    with pytest.raises(ad.errors.ArgumentError, match="t_eval must be within the time span"):
        ad.compile(lambda t: integrate.solve_ivp(lambda t, y: -y, (0.0, t), [1.0], t_eval=[2.0]).y)(
            np.ones(())
        )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"method": "Radau", "t_eval": TIMES}, "method='Radau' is not supported inside ad.compile"),
        ({"events": lambda t, y: y[0], "t_eval": TIMES}, "events are not supported inside ad.compile"),
        ({}, "t_eval is None and its results at all steps are not supported inside ad.compile"),
    ],
)
def test_what_the_loop_cannot_do_is_said(options: Any, what: str) -> None:
    with pytest.raises(ad.errors.InputError, match=what) as error:
        ad.compile(lambda y: integrate.solve_ivp(lambda t, y: -y, (0.0, 3.0), y, **options).y)(np.ones(2))
    assert "or call solve_ivp outside of the compiled function" in str(error.value)
