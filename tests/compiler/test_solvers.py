"""Solvers inside ``ad.compile``: the numbers and derivatives of eager code, and what is not supported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad

integrate = pytest.importorskip("adjoint.scipy.integrate")
optimize = pytest.importorskip("adjoint.scipy.optimize")
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


def thrown(a: Any, method: str = "RK45", **options: Any) -> Any:
    """A ball that is thrown upwards falls to the ground, or is still in the air at the end."""

    def fall(t: Any, y: Any) -> Any:
        return ad.stack([y[1], -5 * a[0] - 0.1 * y[1] * abs(y[1])])

    ground, top = (lambda t, y: y[0]), (lambda t, y: y[1] - a[2])
    ground.terminal, ground.direction = True, -1
    return integrate.solve_ivp(fall, (0.0, 3.0), [0.1, 8 * a[1]], method, events=[ground, top], **options)


def events(a: Any, method: str = "RK45") -> Any:
    found = thrown(a, method, rtol=1e-6)
    # eager results have no places that are not used
    return ad.concat([t[:1] for t in found.t_events] + [found.y_events[1][0], found.y[:, -1], found.t[-1:]])


def stiff(a: Any) -> Any:
    rhs = lambda t, y: ad.stack([a[0] * y[1], 100 * a[1] * (1 - y[0] ** 2) * y[1] - y[0]])
    found = integrate.solve_ivp(rhs, (0.0, 0.2 + a[2]), [2.0, 0.0], "Radau", args=(), dense_output=True)
    return ad.concat([found.y[:, -1], found.sol(0.3)])


def in_a_loop(a: Any) -> Any:
    """The derivative of a root calls the function again, which then reads ``a`` again."""
    step = lambda c, x: (c + optimize.brentq(lambda z: z**3 + z - a[0] * x, 0.0, 9.0), None)
    return ad.scan(step, a[1], np.arange(9.0))[0]


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
    "steps": lambda a: integrate.solve_ivp(predators, (0.0, a[0]), a[:2], args=(a,)).y[:, -1],
    "events": events,
    "events of Radau": lambda a: events(a, "Radau"),
    "events of DOP853": lambda a: events(a, "DOP853"),
    "Radau": stiff,
    "in a loop": in_a_loop,
}

TRANSFORMS = {
    "values": lambda f: f,
    "grad": lambda f: ad.grad(lambda a: ad.sin(f(a)).sum()),
    "jvp": lambda f: lambda a: ad.jvp(f, (a,), (V,))[1],
    "hessian": lambda f: ad.hessian(lambda a: ad.sin(f(a)).sum()),
}


SLOW = (
    "RK23",
    "DOP853",
    "odeint",
    "backwards",
    "events of Radau",
    "events of DOP853",
)  # their second derivatives are computed as those of RK45
CASES = [(t, name) for t in TRANSFORMS for name in SOLVERS if t != "hessian" or name not in SLOW]
NATIVE = [("grad", "fixed_point"), ("grad", "root"), ("grad", "RK45"), ("jvp", "RK23")]


@pytest.mark.parametrize(
    ("transform", "name", "backend"),
    [(*c, "auto" if c[0] == "values" else "replay") for c in CASES] + [(*c, "native") for c in NATIVE],
)
def test_solvers_are_those_of_eager_code(transform: str, name: str, backend: str) -> None:
    if backend == "native":
        pytest.importorskip("llvmlite")
    f = TRANSFORMS[transform](SOLVERS[name])
    compiled = ad.compile(f, backend=backend)
    for a in (np.array([1.1, 0.8, 0.5]), np.array([1.4, 0.7, 0.6])):
        np.testing.assert_allclose(compiled(a), f(a), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", SOLVERS)
def test_each_element_of_a_batch_is_solved_alone(name: str) -> None:
    f = SOLVERS[name]
    batch = np.array([[1.1, 0.8, 0.5], [1.4, 0.7, 0.6]])
    for g in (f, ad.grad(lambda a: f(a).sum())):
        found = ad.compile(ad.vmap(g), backend="replay")(batch)
        np.testing.assert_allclose(found, np.stack([g(a) for a in batch]), rtol=1e-8, atol=1e-9)


ROOTED = {
    "grad": ad.grad,
    "grad in vmap": lambda f: lambda a: ad.vmap(ad.grad(f))(a[None])[0],
    "vmap in grad": lambda f: ad.grad(lambda a: ad.vmap(f)(a[None])[0]),
    "in a loop": lambda f: ad.grad(lambda a: ad.scan(lambda c, _: (f(c), None), a, None, length=1)[0]),
    "hessian": ad.hessian,
}


@pytest.mark.parametrize("transform", ROOTED)
def test_rejected_steps_outside_of_the_domain_do_not_matter(transform: str) -> None:
    def end(a: Any) -> Any:
        return integrate.solve_ivp(lambda t, y: -a * ad.sqrt(y), (0.0, 1.0), [1.0], t_eval=[1.0]).y[0, 0]

    f, a = ROOTED[transform], np.array(1.8)
    with np.errstate(invalid="ignore"):
        expected = ad.hessian(end)(a) if transform == "hessian" else ad.grad(end)(a)
        for call in (ad.compile(f(end)), ad.compile(f(end), backend="replay")):
            np.testing.assert_allclose(call(a), expected, rtol=1e-9)
        if transform == "grad":
            assert expected == pytest.approx(-0.09997585)
            np.testing.assert_allclose(ad.grad(ad.compile(end))(a), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", [np.float32, np.complex64, np.int64])
def test_initial_values_and_times_have_double_precision(kind: Any) -> None:
    def f(y: Any, end: Any) -> Any:
        return integrate.solve_ivp(lambda t, y: -2 * y, (0.0, end), y, t_eval=[0.5, 1.0]).y

    y, end = np.ones(2, kind), np.float32(1.0)
    with ad.config.hints(False):  # complex loops run in Python
        found, expected = ad.compile(f)(y, end), f(y, end)
    assert found.dtype == expected.dtype == np.result_type(kind, np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    steps = integrate.solve_ivp(lambda t, y: -2 * y, (0.0, end), y).y
    assert steps.dtype == found.dtype


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


# Solvers that call SciPy at each call -------------------------------------------------------------------

INF = float("inf")
X = np.linspace(0.0, 1.0, 7)


def bumps(x: Any, a: Any) -> Any:
    return ((x - a) ** 2).sum() + (x**4).sum()


def two(a: Any) -> Any:
    left = integrate.quad(lambda x: ad.exp(-x * x * a[0]), -INF, INF)[0]
    return left + integrate.quad(lambda x: ad.exp(-x * a[1]), a[2], INF)[0]


def downwards(a: Any) -> Any:
    whole = integrate.quad(lambda x: ad.exp(x * a[1]), a[2], -INF)[0]
    return whole + integrate.quad(lambda x: ad.exp(-x * a[1]), INF, a[0])[0]


def twice(a: Any) -> Any:
    inner = lambda x: integrate.quad(lambda y: ad.exp(-a[0] * x * y), 0.0, x)[0]
    return integrate.quad(inner, 0.0, a[1])[0]


def both(a: Any) -> Any:
    area = lambda x: integrate.quad_vec(lambda t: ad.exp(-t * x) * a, 0.0, 1.0)[0]
    return optimize.root(lambda x: area(x) - 0.2, np.ones(3)).x


def fitted(a: Any) -> Any:
    y = a[0] * np.exp(-X) + a[1] * X + 2
    return ad.concat([p.reshape((-1,)) for p in optimize.curve_fit(lambda x, p, q: p * ad.exp(q * x), X, y)])


def minimum(a: Any, **options: Any) -> Any:
    return optimize.minimize(bumps, np.zeros(3), (a,), tol=1e-11, **options)


HOSTED = {
    "quad": lambda a: integrate.quad(lambda x: ad.exp(-a[0] * x * x) * ad.cos(a[1] * x), a[1], a[2])[0],
    "quad no length": lambda a: integrate.quad(lambda x: ad.exp(a[0] * x), a[0], a[0] * 1.0)[0],
    "quad infinite": two,
    "quad downwards": downwards,
    "quad_vec": lambda a: integrate.quad_vec(lambda x: ad.sin(a * x), a[2], 0.0)[0],
    "quad_vec in root": both,
    "root": lambda a: optimize.root(lambda x: x**3 + x - a, np.ones(3)).x,
    "minimize": lambda a: minimum(a).x,
    "minimize bounds": lambda a: minimum(a, bounds=[(0.3, None)] * 3).x,
    "minimize tree": lambda a: optimize.minimize(
        lambda d: bumps(d["u"], a) + (d["v"] - a[0]) ** 2, {"u": a * 0, "v": 0.0}, method="trust-exact"
    ).x["u"],
    "minimize fun": lambda a: minimum(a, method="Newton-CG").fun,
    "least_squares": lambda a: (
        optimize.least_squares(
            lambda x: ad.stack([x[0] - a[0], x[1] * x[0] - a[1], x[1] - a[2]]), np.ones(2)
        ).x
    ),
    "curve_fit": fitted,
}

# inside ad.vmap these run only in compiled functions
HOSTED_ROOTS = {
    "brentq": lambda a: optimize.brentq(lambda x: x**3 + x - a[0] * a[1], 0.0, a[0] + 1),
    "newton": lambda a: optimize.newton(lambda x: x**3 + x - a, a * 0 + 1, lambda x: 3 * x * x + 1),
    "secant": lambda a: optimize.newton(lambda x: x**3 + x - a[0], 1.0),
    "fsolve": lambda a: optimize.fsolve(lambda x: [x[0] ** 3 + x[1] - a[0], x[1] - a[1] * a[2]], [1.0, 1.0]),
    "fsolve slope": lambda a: optimize.fsolve(
        lambda x: x**3 + x - a[0], 1.0, fprime=lambda x: (3 * x * x + 1).reshape((1, 1))
    ),
    "root_scalar": lambda a: optimize.root_scalar(lambda x: x**3 + x - a[0], bracket=(0, 2)).root,
    "fixed_point": lambda a: optimize.fixed_point(lambda x: ad.cos(a * x / 2), np.ones(3) * 0.5),
    "minimize_scalar": lambda a: optimize.minimize_scalar(lambda x: (x - a[0]) ** 2 + a[1] * x**4).x,
    "bounded": lambda a: optimize.minimize_scalar(lambda x: (x - a[0]) ** 2, bounds=(2.0, 3.0)).fun,
}
EVERY = {**HOSTED, **HOSTED_ROOTS}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_solvers_of_the_host_are_those_of_eager_code(name: str, transform: str) -> None:
    f, runs = EVERY[name], []
    g = TRANSFORMS[transform](f)
    backend = "auto" if transform == "values" else "replay"
    inside = ad.compile(lambda a: (runs.append(0), g(a))[1], backend=backend)
    outside = TRANSFORMS[transform](ad.compile(f, backend=backend))
    for a in (np.array([1.1, 0.8, 0.5]), np.array([1.4, 0.7, 0.6])):
        expected = g(a)
        np.testing.assert_allclose(inside(a), expected, rtol=1e-8, atol=1e-9)
        if transform != "hessian":
            np.testing.assert_allclose(outside(a), expected, rtol=1e-8, atol=1e-9)
    assert len(runs) == 1


@pytest.mark.parametrize("name", EVERY)
def test_the_host_solves_each_element_of_a_batch(name: str) -> None:
    f = EVERY[name]
    batch = np.array([[1.1, 0.8, 0.5], [1.4, 0.7, 0.6]])
    alone = np.stack([f(a) for a in batch])
    np.testing.assert_allclose(ad.compile(ad.vmap(f), backend="replay")(batch), alone, rtol=1e-8, atol=1e-9)
    if name in HOSTED:
        np.testing.assert_allclose(ad.vmap(ad.compile(f))(batch), alone, rtol=1e-8, atol=1e-9)
    g = ad.grad(lambda a: (ad.vmap(f)(a) ** 2).sum())
    slopes = np.stack([ad.grad(lambda a: (f(a) ** 2).sum())(a) for a in batch])
    np.testing.assert_allclose(ad.compile(g, backend="replay")(batch), slopes, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["quad", "root", "minimize", "brentq"])
def test_a_native_program_calls_the_host_between_its_kernels(name: str) -> None:
    f = ad.grad(lambda a: ad.sin(EVERY[name](a * 1.5 - 0.1)).sum())
    compiled = ad.compile(f, backend="native")
    for a in (np.array([1.1, 0.8, 0.5]), np.array([1.4, 0.7, 0.6])):
        np.testing.assert_allclose(compiled(a), f(a), rtol=1e-8, atol=1e-9)


def test_the_host_reads_closures_and_floats_at_each_call() -> None:
    weight, scale = ad.tensor([1.0, 2.0], requires_grad=True), np.array([1.0, 3.0])

    def f(b: Any) -> Any:
        return integrate.quad(lambda x: (weight * scale).sum() * x * b, 0.0, b)[0]

    compiled = ad.compile(f)
    for b in (2.0, 3.0):
        compiled(b).backward()
        np.testing.assert_allclose(weight.grad, scale * b**3 / 2)
        weight.grad, scale[0] = None, scale[0] + 4
        with ad.no_grad():
            weight *= 2
        np.testing.assert_allclose(compiled(b).detach(), f(b).detach())


def test_a_function_of_the_host_may_call_the_host() -> None:
    np.testing.assert_allclose(ad.compile(twice)(V[:2] ** 2), twice(V[:2] ** 2), rtol=1e-9)


def test_a_loop_calls_the_host_in_each_step() -> None:
    def f(a: Any) -> Any:
        step = lambda c, x: (optimize.root(lambda y: y**3 + y - c * x - a[0], 1.0).x, c)
        return ad.scan(step, a[1], np.linspace(0.0, 1.0, 12))[0]

    a = np.array([1.1, 0.8])
    for g in (f, ad.grad(f)):
        np.testing.assert_allclose(ad.compile(g, backend="replay")(a), g(a), rtol=1e-9)


def test_results_of_the_host_say_whether_it_succeeded() -> None:
    @ad.compile
    def f(a: Any) -> Any:
        found = optimize.root(lambda x: x * x - a, np.ones(1))
        line = optimize.root_scalar(lambda x: x**3 - a, x0=1.0, x1=2.0, method="secant", maxiter=2)
        return found.success, found.status, found.nfev, found.fun, line.converged

    success, status, nfev, fun, converged = f(np.array(4.0))
    assert success and status == 1 and nfev > 2 and fun.shape == (1,) and not converged
    assert not f(np.array(-4.0))[0]


def test_failures_of_the_host_raise_at_the_call() -> None:
    find = ad.compile(lambda a: optimize.brentq(lambda x: x * x - a, 0.0, 3.0))
    with pytest.raises(ValueError, match="must have different signs"):
        find(np.array(-2.0))
    np.testing.assert_allclose(find(np.array(4.0)), 2.0)
    fit = ad.compile(lambda a: optimize.curve_fit(lambda x, p: ad.exp(p * x), X, a, maxfev=1)[0])
    with pytest.raises(RuntimeError, match="no optimal parameters were found"):
        fit(np.exp(3 * X))
    tail = ad.compile(lambda b: integrate.quad(lambda x: ad.exp(-x), 0.0, b)[0])
    with pytest.raises(ad.errors.InputError, match="an infinite limit must be the number inf itself"):
        tail(np.array(INF))


def test_derivatives_of_integrals_that_the_host_cannot_confirm_raise() -> None:
    steep = lambda a: integrate.quad(lambda x: a * x**-0.9, 0.0, 1.0)[0]
    with pytest.raises(ad.errors.InputError, match="the function is too singular"):
        ad.compile(ad.grad(steep), backend="replay")(np.array(1.0))
    fast = lambda a: integrate.quad_vec(lambda x: ad.sin(a * x), 0.0, 1.0, epsrel=1e-12)[0]
    with pytest.raises(ad.errors.InputError, match="more than 50 intervals"):
        ad.compile(ad.grad(fast), backend="replay")(np.array(5000.0))
    np.testing.assert_allclose(ad.compile(fast)(np.array(5000.0)), (1 - np.cos(5000.0)) / 5000, rtol=1e-7)


@pytest.mark.parametrize(
    ("f", "what"),
    [
        (lambda a: optimize.brentq(lambda x: x - a, 0.0, 9.0, full_output=True)[0], "full_output=True"),
        (lambda a: optimize.leastsq(lambda x: x - a, [0.0], full_output=True)[0], "full_output=True"),
        (lambda a: optimize.root_scalar(lambda x: (x - a, 1.0), fprime=True, x0=1.0).root, "fprime=True"),
        (
            lambda a: (
                optimize.minimize(lambda x: (x - a) ** 2, 0.0, constraints={"type": "eq", "fun": abs}).x
            ),
            "constraints=",
        ),
        (
            lambda a: integrate.quad(lambda x: x * ad.random.default_rng(0).normal(), 0.0, a)[0],
            "must not draw random numbers",
        ),
    ],
)
def test_what_the_host_cannot_do_is_said(f: Any, what: str) -> None:
    with pytest.raises(ad.errors.TransformError, match=what):
        ad.compile(f)(np.array(2.0))
