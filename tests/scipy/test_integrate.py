"""``adjoint.scipy.integrate``: values against SciPy and closed forms, derivatives to the second order."""

from __future__ import annotations

import math

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import ArgumentError, InputError, LostHistoryError, ShapeError
from adjoint.testing import gradcheck

si = pytest.importorskip("scipy.integrate")
I = ad.scipy.integrate  # noqa: E741

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("name", ["trapezoid", "simpson", "cumulative_trapezoid"])
def test_samples(name, n):
    ours, theirs = getattr(I, name), getattr(si, name)
    y, x = RNG.normal(size=(3, n)), np.cumsum(RNG.uniform(0.5, 1.5, n))
    if n > 1 or name == "trapezoid":
        np.testing.assert_allclose(ours(y).numpy(), theirs(y), rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(ours(y, x).numpy(), theirs(y, x), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(
            ours(y.T, x, axis=0).numpy(), theirs(y.T, x, axis=0), rtol=1e-12, atol=1e-13
        )
        np.testing.assert_allclose(ours(y, dx=0.3).numpy(), theirs(y, dx=0.3), rtol=1e-13, atol=1e-14)
        stacked = np.stack([x, 2 * x, 3 * x])
        np.testing.assert_allclose(ours(y, stacked).numpy(), theirs(y, stacked), rtol=1e-12, atol=1e-13)
    if n > 2:
        assert gradcheck(ours, [y, x], order=2, directions=2)
        np.testing.assert_allclose(ad.vmap(lambda y: ours(y, x))(y), ours(y, x).numpy(), rtol=1e-13)
    if name == "cumulative_trapezoid" and n > 1:
        np.testing.assert_allclose(ours(y, initial=0).numpy(), theirs(y, initial=0), atol=1e-14)
        with pytest.raises(ArgumentError, match="initial"):
            ours(y, initial=1)
    with pytest.raises(ShapeError, match="samples"):
        ours(y, np.arange(n + 1.0))


QUADS = {
    "limits": (lambda a, b, c: I.quad(lambda x: ad.sin(c * x), a, b)[0], lambda a, b, c: (math.cos(c * a) - math.cos(c * b)) / c, (0.2, 1.7, 2.0)),
    "backwards": (lambda a, b, c: I.quad(lambda x, k: x**k, b, a, args=(c,))[0], lambda a, b, c: (a ** (c + 1) - b ** (c + 1)) / (c + 1), (0.4, 1.7, 2.0)),
    "to infinity": (lambda a, c: I.quad(lambda x: ad.exp(-c * x), a, math.inf)[0], lambda a, c: math.exp(-c * a) / c, (0.3, 2.0)),
    "from infinity": (lambda b, c: I.quad(lambda x: ad.exp(c * x), -math.inf, b)[0], lambda b, c: math.exp(c * b) / c, (0.3, 2.0)),
    "all numbers": (lambda m, c: I.quad(lambda x: (1 + x * m) * ad.exp(-c * x * x), -math.inf, math.inf)[0], lambda m, c: math.sqrt(math.pi / c), (0.3, 2.0)),
    "points": (lambda c: I.quad(lambda x: ad.abs(x - 0.25) * c, 0.0, 1.0, points=[0.25])[0], lambda c: c * (0.25**2 + 0.75**2) / 2, (2.0,)),
    "empty": (lambda a: I.quad(ad.exp, a, 0.5)[0], lambda a: math.exp(0.5) - math.exp(a), (0.5,)),
}  # fmt: skip


@pytest.mark.parametrize("name", QUADS)
def test_quad(name):
    ours, exact, args = QUADS[name]
    assert ours(*args).item() == pytest.approx(exact(*args), rel=1e-9, abs=1e-12)
    leaves = [ad.tensor(v, requires_grad=True) for v in args]
    for i, g in enumerate(ad.gradients(ours(*leaves), leaves)):
        shifted = lambda h, i=i: exact(*(v + h * (k == i) for k, v in enumerate(args)))
        assert g.item() == pytest.approx((shifted(1e-5) - shifted(-1e-5)) / 2e-5, rel=1e-7, abs=1e-8)
    if name != "empty":
        assert gradcheck(ours, [np.array(v) for v in args], order=2, rtol=1e-4, atol=1e-6)


def test_quad_says_where_it_cannot():
    singular = lambda c: I.quad(lambda x: ad.exp(-c * x) / ad.sqrt(x), 0.0, 1.0)[0]
    assert singular(1.0).item() == pytest.approx(math.sqrt(math.pi) * math.erf(1.0), rel=1e-9)
    with pytest.raises(InputError, match="too singular for gradients"):
        ad.grad(singular)(1.0)
    smooth = lambda c: I.quad(lambda u: 2 * ad.exp(-c * u * u), 0.0, 1.0)[0]  # x = u²
    exact = math.exp(-1) - math.sqrt(math.pi) / 2 * math.erf(1.0)
    assert float(ad.grad(smooth)(1.0)) == pytest.approx(exact, rel=1e-9)
    with pytest.raises(InputError, match="weight"):
        I.quad(ad.exp, 0.0, 1.0, weight="cos", wvar=1.0)


def predator_prey(t, y, a, b):
    return ad.stack([y[0] * (a - y[1]), y[1] * (y[0] - b)])


@pytest.mark.parametrize("method", ["RK23", "RK45", "DOP853"])
def test_solve_ivp(method):
    y0, a, b = np.array([1.0, 0.5]), np.array(1.1), np.array(0.7)
    result = I.solve_ivp(predator_prey, (0.0, 3.0), y0, method, args=(1.1, 0.7))
    expected = si.solve_ivp(lambda t, y: [y[0] * (1.1 - y[1]), y[1] * (y[0] - 0.7)], (0.0, 3.0), y0, method)
    np.testing.assert_allclose(result.y.numpy(), expected.y, rtol=1e-12)  # the same steps
    np.testing.assert_allclose(result.t.numpy(), expected.t, rtol=1e-14)
    tight = {"rtol": 1e-10, "atol": 1e-12} if method != "RK23" else {"rtol": 1e-7, "atol": 1e-9}
    times = np.array([0.0, 0.4, 2.0, 3.0])

    def end(y0, a, b, t1):
        return I.solve_ivp(predator_prey, (0.0, t1), y0, method, args=(a, b), **tight).y[:, -1]

    assert gradcheck(end, [y0, a, b, np.array(3.0)], rtol=1e-4, atol=1e-5, eps=1e-4)
    # the derivative in the end time is the right-hand side there
    slope = ad.jacobian(lambda t1: end(y0, a, b, t1))(3.0)
    final = end(y0, a, b, 3.0).numpy()
    np.testing.assert_allclose(slope, [final[0] * (1.1 - final[1]), final[1] * (final[0] - 0.7)], rtol=1e-5)
    sampled = I.solve_ivp(predator_prey, (0.0, 3.0), y0, method, times, args=(1.1, 0.7), **tight).y.numpy()
    fine = si.solve_ivp(lambda t, y: [y[0] * (1.1 - y[1]), y[1] * (y[0] - 0.7)], (0.0, 3.0), y0, "DOP853",
                        times, rtol=1e-11, atol=1e-13)  # fmt: skip
    np.testing.assert_allclose(sampled, fine.y, rtol=1e-5 if method == "RK23" else 1e-8)


def test_solve_ivp_to_the_second_order_backwards_and_in_forward_mode():
    decay = lambda rate, y0, t1: I.solve_ivp(
        lambda t, y: -rate * y, (2.0, t1), y0[None], rtol=1e-9, atol=1e-11
    ).y[0, -1]
    args = [np.array(0.7), np.array(1.5), np.array(-1.0)]
    value = lambda r, y, t: y * math.exp(-r * (t - 2))
    assert decay(*args).item() == pytest.approx(value(0.7, 1.5, -1.0), rel=1e-7)
    hessian = ad.hessian(lambda p: decay(p[0], p[1], p[2]))(np.array(args))
    r, y, s = 0.7, 1.5, -3.0  # y exp(-r s)
    size = math.exp(-r * s)
    exact = [[y * s * s, -s, -y + y * r * s], [-s, 0.0, -r], [-y + y * r * s, -r, y * r * r]]
    np.testing.assert_allclose(hessian, np.array(exact) * size, rtol=1e-5, atol=1e-5)
    tangent = ad.jvp(lambda r: decay(r, args[1], args[2]), (args[0],), (np.array(1.0),))[1]
    assert float(tangent) == pytest.approx(-s * y * size, rel=1e-6)


def test_odeint():
    def pendulum(y, t, damping, strength):
        return ad.stack([y[1], -damping * y[1] - strength * ad.sin(y[0])])

    t = np.linspace(0.0, 4.0, 6)
    plain = lambda y, t, d, s: [y[1], -d * y[1] - s * np.sin(y[0])]
    got = I.odeint(pendulum, [2.0, 0.0], t, args=(0.25, 5.0)).numpy()
    np.testing.assert_allclose(got, si.odeint(plain, [2.0, 0.0], t, args=(0.25, 5.0)), rtol=1e-5, atol=1e-6)
    f = lambda y0, d, s: I.odeint(pendulum, y0, t, args=(d, s), rtol=1e-10, atol=1e-12)
    assert gradcheck(
        f, [np.array([2.0, 0.0]), np.array(0.25), np.array(5.0)], directions=2, rtol=1e-4, atol=1e-5, eps=1e-4
    )
    first = I.odeint(lambda t, y: -y * t, [1.0], [0.0, 1.0], tfirst=True)
    assert first[1, 0].item() == pytest.approx(math.exp(-0.5), rel=1e-6)


def test_mistakes():
    f = lambda t, y: -y
    with pytest.raises(InputError, match=r"not available inside ad\.vmap"):
        ad.vmap(lambda y: I.solve_ivp(f, (0, 1), y).y[:, -1])(np.ones((2, 1)))
    with pytest.raises(InputError, match="method must be one of RK23, RK45, DOP853"):
        I.solve_ivp(f, (0, 1), [1.0], "Radau")
    with pytest.raises(InputError, match="events is not supported"):
        I.solve_ivp(f, (0, 1), [1.0], events=f)
    with pytest.raises(ShapeError, match="must be a vector"):
        I.solve_ivp(f, (0, 1), 1.0)
    with pytest.raises(ArgumentError, match="t_eval must be within"):
        I.solve_ivp(f, (0, 1), [1.0], t_eval=[2.0])
    with pytest.raises(LostHistoryError):
        I.romb(ad.tensor([1.0, 2.0, 3.0], requires_grad=True))
