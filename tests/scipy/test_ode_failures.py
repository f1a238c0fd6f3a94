"""Initial value problems that SciPy cannot solve up to the end, alone and as elements of a batch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import adjoint as ad

si = pytest.importorskip("scipy.integrate")
I = pytest.importorskip("adjoint.scipy.integrate")  # noqa: E741  # as in SciPy's documentation

METHODS = ["RK45", "RK23", "DOP853", "Radau"]
TIMES = np.array([0.0, 0.5, 1.5, 2.0])
FIRST = np.array([1.0, 0.1, 0.2])  # from 1, the solution y / (1 - y t) of y' = y² ends at t = 1
THROUGH = {"vmap": ad.vmap, "both": lambda f: ad.compile(ad.vmap(f))}


@pytest.fixture(autouse=True)
def no_floating_point_warnings() -> Any:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def squares(a: Any, **options: Any) -> Any:
    return I.solve_ivp(lambda t, y: y**2, (0.0, 2.0), ad.stack([a]), **options)


def exact(a: Any, t: Any) -> Any:
    return a / (1 - a * t)


@pytest.mark.parametrize("method", METHODS)
def test_eager_results_are_those_of_scipy(method: str) -> None:
    for span, times in (((0.0, 2.0), TIMES), ((0.0, -2.0), -TIMES)):
        sign = np.sign(span[1])
        ours = I.solve_ivp(lambda t, y, s=sign: s * y**2, span, [1.0], method, times)
        scipy = si.solve_ivp(lambda t, y, s=sign: s * y**2, span, [1.0], method, times)
        assert ours.status == scipy.status == -1 and ours.message == scipy.message
        np.testing.assert_array_equal(ours.t, scipy.t)
        np.testing.assert_allclose(ours.y, scipy.y, rtol=1e-10)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("through", THROUGH)
def test_an_element_that_fails_does_not_change_others(through: str, method: str) -> None:
    precise = method in ("RK45", "DOP853")
    tight = {"method": method, "rtol": 1e-7, "atol": 1e-9} if precise else {"method": method, "rtol": 1e-4}
    close = 1e-4 if precise else 1e-2
    at = lambda a: (lambda s: (s.t, s.y[0], s.status, s.success))(squares(a, t_eval=TIMES, **tight))
    apply = THROUGH[through]
    t, y, status, success = apply(at)(FIRST)
    reached = np.array([TIMES < 1.0, TIMES < 9.0, TIMES < 9.0])
    assert status.tolist() == [-1, 0, 0] and success.tolist() == [False, True, True]
    np.testing.assert_allclose(y, np.where(reached, exact(FIRST[:, None], TIMES), np.nan), rtol=close)
    np.testing.assert_array_equal(t, np.where(reached, TIMES, np.nan))
    if precise:
        alone = np.stack([squares(a, t_eval=TIMES, **tight).y[0].numpy() for a in FIRST[1:]])
        np.testing.assert_allclose(y[1:], alone, rtol=1e-10)
        slopes = apply(ad.grad(lambda a: ad.nansum(squares(a, t_eval=TIMES, **tight).y[0])))(FIRST)
        expected = np.where(reached, 1 / (1 - FIRST[:, None] * TIMES) ** 2, 0).sum(1)
        np.testing.assert_allclose(slopes, expected, rtol=1e-4)


@pytest.mark.parametrize("through", THROUGH)
def test_results_at_the_steps_of_an_element_that_fails(through: str) -> None:
    last = lambda a: (lambda s: (s.t[-1], s.y[0, -1]))(squares(a))
    t, y = THROUGH[through](last)(FIRST)
    np.testing.assert_allclose(t, [1.0, 2.0, 2.0], rtol=1e-3)
    np.testing.assert_allclose(y[1:], exact(FIRST[1:], 2.0), rtol=1e-3)
    assert y[0] > 1e9  # as SciPy's last state
    slope = THROUGH[through](ad.grad(lambda a: last(a)[1]))(FIRST)
    np.testing.assert_allclose(slope[1:], 1 / (1 - 2 * FIRST[1:]) ** 2, rtol=1e-3)


def test_a_whole_gradient_and_own_time_spans() -> None:
    ends = np.array([2.0, 2.0, 1.0])
    end = lambda a, t: I.solve_ivp(lambda t, y: y**2, (0.0, t), a[None], rtol=1e-8).y[0, -1]
    np.testing.assert_allclose(ad.vmap(end)(FIRST, ends)[1:], exact(FIRST, ends)[1:], rtol=1e-5)
    slopes = ad.grad(lambda a: ad.vmap(end)(a, ends)[1:].sum())(FIRST)
    np.testing.assert_allclose(slopes[1:], 1 / (1 - FIRST * ends)[1:] ** 2, rtol=1e-5)


@pytest.mark.parametrize("method", ["RK45", "RK23", "DOP853"])
def test_a_compiled_solution_that_fails_has_the_status_of_eager_code(method: str) -> None:
    f = ad.compile(lambda a: (lambda s: (s.status, s.success, s.t[-1]))(squares(a, method=method)))
    for a in (1.0, 0.1):
        eager = squares(a, method=method)
        status, success, t = f(np.array(a))
        assert (status, success) == (eager.status, eager.success)
        np.testing.assert_allclose(t, eager.t[-1].item(), rtol=1e-12)
    around = lambda a: I.solve_ivp(lambda t, y: y**2, (-1.0, 1.0), ad.stack([a]), method).status
    assert ad.compile(around)(np.array(1.0)) == -1  # the floats near 0 are denser than the shares


@pytest.mark.parametrize("method", ["RK45", "DOP853"])
def test_a_parameter_that_is_nan_fails(method: str) -> None:
    """SciPy's own loop does not end if the first slope is NaN."""
    f = lambda r: (lambda s: (s.y[0], s.status))(
        I.solve_ivp(lambda t, y: -r * y, (0.0, 2.0), [1.0], method, TIMES)
    )
    y, status = f(np.nan)
    assert status == -1 and y.shape == (1,)
    for apply in THROUGH.values():
        y, status = apply(f)(np.array([1.0, np.nan]))
        assert status.tolist() == [0, -1] and np.isnan(y[1, 1:]).all()
        np.testing.assert_allclose(y[0], np.exp(-TIMES), rtol=1e-2)


def test_odeint_warns_and_later_rows_are_nan() -> None:
    f = lambda a: I.odeint(lambda y, t: y**2, a, TIMES)[:, 0]
    reached = np.array([True, True, False, False])
    for apply, first in (
        (lambda f: f, 1.0),
        (ad.compile, np.array(1.0)),
        *((m, FIRST) for m in THROUGH.values()),
    ):
        with pytest.warns(si.ODEintWarning) as caught:
            found = np.atleast_2d(apply(f)(first))
        text = "odeint: the step size became too small.  The rows of later times are NaN."
        assert {str(w.message) for w in caught} == {text}
        np.testing.assert_allclose(found[0], np.where(reached, exact(1.0, TIMES), np.nan), rtol=1e-5)
        np.testing.assert_allclose(found[1:], exact(FIRST[1 : len(found), None], TIMES), rtol=1e-5)
    with pytest.warns(si.ODEintWarning):
        slope = ad.grad(lambda a: f(a)[1])(1.0)
    np.testing.assert_allclose(slope, 4.0, rtol=1e-5)
    assert not np.isnan(f(0.1)).any()


def test_quad_warns_as_scipy_does() -> None:
    with pytest.warns(si.IntegrationWarning):
        I.quad(lambda x: 1 / x, 0.0, 1.0)


@pytest.mark.parametrize("method", ["RK45", "RK23", "DOP853"])
def test_each_element_of_a_large_batch_meets_the_tolerances(method: str) -> None:
    """Elements that do not move must not make the steps of others longer."""
    wave = lambda w: I.solve_ivp(lambda t, y: w * ad.stack([y[1], -y[0]]), (0.0, 5.0), [1.0, 0.0], method)
    speeds = np.zeros(2000)
    speeds[7] = 2.0
    end = ad.vmap(lambda w: wave(w).y[:, -1])(speeds)
    np.testing.assert_allclose(end[7], wave(2.0).y[:, -1], atol=5e-3)
    np.testing.assert_array_equal(np.delete(end, 7, 0), np.tile([1.0, 0.0], (1999, 1)))


def test_tolerances_of_each_unknown() -> None:
    for tolerances in ({"atol": [1e-6, 1e-9]}, {"rtol": np.array([1e-4, 1e-6])}):
        wave = lambda w, k=tolerances: I.solve_ivp(
            lambda t, y: w * ad.stack([y[1], -y[0]]), (0.0, 2.0), [1.0, 0.0], **k
        ).y[0, -1]
        w = np.array([1.0, 2.0])
        alone = np.array([wave(x).item() for x in w])
        np.testing.assert_allclose(ad.vmap(wave)(w), alone, atol=1e-2)
        np.testing.assert_allclose(ad.compile(ad.vmap(wave))(w), alone, rtol=1e-10)


def test_steps_and_times_that_are_wrong() -> None:
    for through in (lambda f: f, ad.compile):
        for options in ({"max_step": -1.0}, {"first_step": 0.0}):
            f = lambda y, k=options: I.solve_ivp(lambda t, y: -y, (0.0, 1.0), y, **k).y
            with pytest.raises(ValueError, match="must be positive"):
                through(f)(np.ones(1))
    with pytest.raises(ad.errors.InputError) as caught:
        I.solve_ivp(lambda t, y: -y, (0.0, np.nan), [1.0])
    assert str(caught.value) == "solve_ivp: the times of t_span must be numbers, not (0.0, nan)."
