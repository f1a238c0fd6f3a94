"""Solutions of initial value problems with a fixed number of rows, inside ``ad.vmap`` and ``ad.compile``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad

scipy_integrate = pytest.importorskip("scipy.integrate")
I = pytest.importorskip("adjoint.scipy.integrate")  # noqa: E741  # as in SciPy's documentation
G = 9.81
SPEEDS = np.array([12.0, 9.0, 40.0])  # the last ball is still in the air at the end
THROUGH = {"vmap": ad.vmap, "both": lambda f: ad.compile(ad.vmap(f), backend="replay")}


def thrown(v: Any, end: float = 5.0, **options: Any) -> Any:
    """A ball that is thrown upwards: it returns after 2 v / g and is at v² / 2 g in between."""
    fall = lambda t, y: ad.stack([y[1], -G + 0 * y[0]])
    ground, top = (lambda t, y: y[0]), (lambda t, y: y[1])
    ground.terminal, ground.direction = True, -1
    options = {
        "rtol": 1e-9,
        "atol": 1e-9,
        "max_step": 0.5,
        "max_steps": 50,
        "events": [ground, top],
    } | options
    return I.solve_ivp(fall, (0.0, end), ad.stack([0 * v, v]), **options)


@pytest.mark.parametrize("through", THROUGH)
def test_places_that_are_not_used_are_nan(through: str) -> None:
    def f(v: Any) -> Any:
        found = thrown(v, max_events=2)
        (landing, top), (_, high) = found.t_events, found.y_events
        return landing[0], top, high[:, 0], found.status, found.success, found.t[-1], found.y[:, -1]

    landing, top, high, status, success, last, state = THROUGH[through](f)(SPEEDS)
    exact = 2 * SPEEDS / G
    np.testing.assert_allclose(landing, [*exact[:2], np.nan], rtol=1e-8)
    np.testing.assert_allclose(top, np.stack([SPEEDS / G, [np.nan] * 3], 1), rtol=1e-8)
    np.testing.assert_allclose(high[:, 0], SPEEDS**2 / (2 * G), rtol=1e-8)
    assert status.tolist() == [1, 1, 0] and success.all()
    # unused columns repeat the end
    np.testing.assert_allclose(last, [*exact[:2], 5.0], rtol=1e-8)
    np.testing.assert_allclose(state[:, 1], [-12.0, -9.0, 40.0 - 5 * G], rtol=1e-7)


@pytest.mark.parametrize("through", THROUGH)
def test_derivatives_of_events(through: str) -> None:
    apply = THROUGH[through]
    landing = lambda v: thrown(v).t_events[0][0]
    sure = lambda v: ad.nansum(thrown(v).t_events[0])  # where nothing happens, nothing flows
    high = lambda v: thrown(v).y_events[1][0, 0]
    last = lambda v: thrown(v).y[1, -1]
    rising = SPEEDS[:2]
    np.testing.assert_allclose(apply(ad.grad(landing))(rising), 2 / G, rtol=1e-7)
    np.testing.assert_allclose(apply(ad.grad(sure))(SPEEDS), [2 / G, 2 / G, 0.0], rtol=1e-7)
    np.testing.assert_allclose(apply(ad.grad(high))(SPEEDS), SPEEDS / G, rtol=1e-7)
    np.testing.assert_allclose(apply(ad.grad(last))(SPEEDS), [-1.0, -1.0, 1.0], rtol=1e-7)
    np.testing.assert_allclose(apply(ad.hessian(high))(rising), 1 / G, rtol=1e-6)
    tangent = lambda v: ad.jvp(high, (v,), (np.ones(()),))[1]
    np.testing.assert_allclose(apply(tangent)(rising), rising / G, rtol=1e-7)
    if through == "vmap":
        whole = ad.grad(lambda v: ad.vmap(high)(v).sum())(SPEEDS)
        np.testing.assert_allclose(whole, SPEEDS / G, rtol=1e-7)


def test_events_may_depend_on_the_element_alone() -> None:
    level = lambda h: I.solve_ivp(lambda t, y: -y, (0.0, 9.0), [1.0], events=lambda t, y: y[0] - h,
                                  rtol=1e-9, atol=1e-11).t_events[0][0]  # fmt: skip
    h = np.array([0.5, 0.1])
    for apply in THROUGH.values():
        np.testing.assert_allclose(apply(level)(h), -np.log(h), rtol=1e-7)
        np.testing.assert_allclose(apply(ad.grad(level))(h), -1 / h, rtol=1e-6)


@pytest.mark.parametrize("through", THROUGH)
def test_times_after_a_terminal_event_are_nan(through: str) -> None:
    times = np.array([0.5, 1.9, 3.0])

    def f(v: Any) -> Any:
        found = thrown(v, t_eval=times)
        return found.t, found.y[0]

    at, heights = THROUGH[through](f)(SPEEDS)
    exact = SPEEDS[:, None] * times - G / 2 * times**2
    ended = np.array([[False, False, True], [False, True, True], [False] * 3])
    np.testing.assert_allclose(heights, np.where(ended, np.nan, exact), rtol=1e-7)
    np.testing.assert_allclose(at, np.where(ended, np.nan, times))
    total = lambda v: ad.nansum(thrown(v, t_eval=times).y[0])
    expected = np.where(ended, 0.0, times).sum(1)
    np.testing.assert_allclose(THROUGH[through](ad.grad(total))(SPEEDS), expected, rtol=1e-7)


def test_backwards_in_time() -> None:
    crossing = lambda t, y: y[0] - 2.0
    crossing.terminal = True
    f = lambda a: I.solve_ivp(lambda t, y: -a * y, (0.0, -9.0), [1.0], t_eval=[-0.1, -8.0], events=crossing,
                              rtol=1e-9, atol=1e-11)  # fmt: skip
    a = np.array([1.0, 2.0])
    for apply in THROUGH.values():
        np.testing.assert_allclose(apply(lambda a: f(a).t_events[0][0])(a), -np.log(2) / a, rtol=1e-7)
        np.testing.assert_allclose(apply(lambda a: f(a).y[0])(a)[:, 1], np.nan)


def test_elements_with_their_own_times() -> None:
    """Each element has its own steps, so it has the numbers of a call of its own."""
    ends, times = np.array([1.0, 2.0]), np.array([[0.3, 0.9], [0.3, 1.8]])
    f = lambda end, t: I.solve_ivp(lambda t, y: ad.cos(t) * y, (0.0, end), [1.0], t_eval=t).y[0]
    alone = np.stack([f(e, t) for e, t in zip(ends, times, strict=True)])
    np.testing.assert_allclose(ad.vmap(f)(ends, times), alone, rtol=1e-12)
    np.testing.assert_allclose(ad.vmap(lambda t: f(2.0, t))(times)[1], alone[1], rtol=1e-12)
    inside = lambda end: I.solve_ivp(lambda t, y: -y, (0.0, end), [1.0], dense_output=True).sol(0.5)[0]
    np.testing.assert_allclose(ad.vmap(inside)(ends), [inside(e).item() for e in ends], rtol=1e-12)
    slope = ad.vmap(ad.grad(lambda t: f(2.0, t[None])[0]))(times[:, 1])
    np.testing.assert_allclose(slope, np.cos(times[:, 1]) * alone[:, 1], rtol=2e-2)


def test_results_at_the_steps_inside_compile() -> None:
    rhs = lambda t, y, a: ad.stack([y[1], -a * y[0]])
    solve = lambda a: I.solve_ivp(rhs, (0.0, 3.0), [1.0, 0.0], args=(a,), max_steps=20)
    t, y = ad.compile(lambda a: (solve(a).t, solve(a).y))(np.array(2.0))
    steps = solve(2.0)
    used = steps.t.shape[0]
    assert t.shape == (21,) and y.shape == (2, 21) and used < 21
    np.testing.assert_allclose(t[:used], steps.t, rtol=1e-12)
    np.testing.assert_allclose(y[:, :used], steps.y, rtol=1e-10)
    assert (t[used:] == t[-1]).all() and (y[:, used:] == y[:, -1:]).all()


def test_radau_has_double_precision() -> None:
    f = lambda y: I.solve_ivp(lambda t, y: -2 * y, (0.0, 1.0), y, "Radau", t_eval=[0.5, 1.0]).y
    y = np.ones(2, np.float32)
    for found in (ad.compile(f)(y), ad.vmap(f)(y[None])[0]):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, f(y), rtol=1e-12)
    with pytest.raises(ad.errors.DTypeError) as caught:
        f(np.ones(2, complex))
    assert str(caught.value) == "solve_ivp: Radau needs real initial values, but they are complex128."


@pytest.mark.parametrize("seed", range(8))
def test_random_events_are_those_of_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(2, 2)) + np.array([[0, 3], [-3, 0]])
    y0, planes = rng.normal(size=2), rng.normal(size=(2, 2))
    method = ["RK23", "RK45", "DOP853", "Radau"][seed % 4]
    span = (0.0, 3.0) if seed % 3 else (1.0, -2.0)
    ways, ends = rng.integers(-1, 2, size=2), rng.random(2) < 0.4

    def solve(library: Any, rate: Any) -> Any:
        events = [lambda t, y, w=w: (y * w).sum() - 0.1 * rate for w in planes]
        for event, way, end in zip(events, ways, ends, strict=True):
            event.direction, event.terminal = float(way), bool(end)
        return library.solve_ivp(lambda t, y: rate * (matrix @ y), span, y0, method, events=events, rtol=1e-6)

    def found(rate: Any) -> Any:
        result = solve(I, rate)
        return *result.t_events, *result.y_events, result.t[-1], result.y[:, -1], result.status

    rates = np.array([0.8, 1.3])
    batch = ad.vmap(found)(rates)
    program = ad.compile(found, backend="replay")
    for k, rate in enumerate(rates):
        theirs = solve(scipy_integrate, rate)
        expected = *theirs.t_events, *theirs.y_events, theirs.t[-1], theirs.y[:, -1], theirs.status
        for ours in ([np.asarray(v) for v in found(ad.tensor(rate))], [v[k] for v in batch], program(rate)):
            for a, b in zip(ours, expected, strict=True):
                given = a[~np.isnan(a)] if np.ndim(a) == 1 else a[~np.isnan(a).any(-1)] if np.ndim(a) else a
                np.testing.assert_allclose(given, np.reshape(b, given.shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["RK45", "DOP853", "Radau"])
def test_no_unknowns(method: str) -> None:
    f = lambda y: I.solve_ivp(lambda t, y: -y, (0.0, 1.0), y, method).y[:, -1]
    for through in (lambda f: f, ad.compile, lambda f: lambda y: ad.vmap(f)(y[None])[0]):
        assert through(f)(np.zeros(0)).shape == (0,)


def test_what_goes_wrong_is_said() -> None:
    wave = lambda w: I.solve_ivp(lambda t, y: w * ad.stack([y[1], -y[0]]), (0.0, 9.0), [0.0, 1.0],
                                 events=lambda t, y: y[1], max_step=0.2, max_events=3)  # fmt: skip
    compiled = ad.compile(lambda w: wave(w).t_events[0])
    np.testing.assert_allclose(compiled(np.array(1.0)), np.pi * np.array([0.5, 1.5, 2.5]), rtol=1e-3)
    with pytest.raises(ad.errors.ArgumentError) as caught:
        compiled(np.array(2.0))
    assert str(caught.value) == (
        "solve_ivp: event 0 occurred 6 times, but at most 3 can be stored.\n  Pass max_events=6 or more."
    )
    with pytest.raises(ad.errors.ConvergenceError, match="not reached in 5 attempted steps"):
        ad.compile(lambda v: thrown(v, max_steps=5).y[:, -1])(np.array(40.0))
    # the solution of y' = y² from 1 ends at t = 1
    explodes = lambda a: I.solve_ivp(lambda t, y: a * y**2, (0.0, 2.0), [1.0], "Radau")
    status, success = ad.compile(lambda a: (explodes(a).status, explodes(a).success))(np.array(1.0))
    assert (status, success) == (explodes(1.0).status, False) == (-1, False)
    for through in (lambda f: f, ad.compile):
        with pytest.raises(ad.errors.ShapeError) as wrong:
            through(lambda y: I.solve_ivp(lambda t, y: -y, (0, 1), y, events=lambda t, y: y).y)(np.ones(2))
        assert str(wrong.value) == (
            "solve_ivp: event 0 must return one number, but its result has shape (2,)."
        )
    f = lambda y: I.solve_ivp(lambda t, y: -y, (0, 1), y[None], "Radau").y[0, -1]
    with pytest.raises(ad.errors.InputError, match=r"nested ad\.vmap"):
        ad.vmap(ad.vmap(f))(np.ones((2, 1)))
    with pytest.raises(ad.errors.InputError, match=r"the batch of ad\.vmap is empty"):
        ad.vmap(f)(np.ones(0))
    assert ad.compile(ad.vmap(f))(np.ones(0)).shape == (0,)
