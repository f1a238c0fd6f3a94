"""``adjoint.scipy.integrate``: values against SciPy and closed forms, derivatives to the second order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from on_tensors import on_tensors

import adjoint as ad
from adjoint.errors import ArgumentError, InputError, LostHistoryError, ShapeError
from adjoint.testing import gradcheck

si = pytest.importorskip("scipy.integrate")
I = on_tensors(ad.scipy.integrate)  # noqa: E741

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
    with pytest.raises(InputError, match="the function is too singular"):
        ad.grad(singular)(1.0)
    smooth = lambda c: I.quad(lambda u: 2 * ad.exp(-c * u * u), 0.0, 1.0)[0]  # x = u²
    exact = math.exp(-1) - math.sqrt(math.pi) / 2 * math.erf(1.0)
    assert float(ad.grad(smooth)(1.0)) == pytest.approx(exact, rel=1e-9)
    with pytest.raises(InputError, match="weight"):
        I.quad(ad.exp, 0.0, 1.0, weight="cos", wvar=1.0)


def predator_prey(t, y, a, b):
    return ad.stack([y[0] * (a - y[1]), y[1] * (y[0] - b)])


@pytest.mark.parametrize("method", ["RK23", "RK45", "DOP853", "Radau"])
def test_solve_ivp(method):
    y0, a, b = np.array([1.0, 0.5]), np.array(1.1), np.array(0.7)
    result = I.solve_ivp(predator_prey, (0.0, 3.0), y0, method, args=(1.1, 0.7))
    expected = si.solve_ivp(lambda t, y: [y[0] * (1.1 - y[1]), y[1] * (y[0] - 0.7)], (0.0, 3.0), y0, method)
    # the same steps; Radau gets the exact Jacobian, SciPy a finite difference
    exact = 1e-5 if method == "Radau" else 1e-12
    np.testing.assert_allclose(result.y.numpy(), expected.y, rtol=exact)
    np.testing.assert_allclose(result.t.numpy(), expected.t, rtol=exact)
    tight = {"rtol": 1e-10, "atol": 1e-12} if method in ("RK45", "DOP853") else {"rtol": 1e-7, "atol": 1e-9}
    times = np.array([0.0, 0.4, 2.0, 3.0])

    def end(y0, a, b, t1):
        return I.solve_ivp(predator_prey, (0.0, t1), y0, method, args=(a, b), **tight).y[:, -1]

    assert gradcheck(end, [y0, a, b, np.array(3.0)], rtol=1e-4, atol=1e-5, eps=1e-4)
    # the derivative in the end time is the right-hand side there
    slope = ad.jacobian(lambda t1: end(y0, a, b, t1))(3.0)
    final = end(y0, a, b, 3.0).numpy()
    np.testing.assert_allclose(slope, [final[0] * (1.1 - final[1]), final[1] * (final[0] - 0.7)], rtol=1e-5)
    sampled = I.solve_ivp(predator_prey, (0.0, 3.0), y0, method, times, args=(1.1, 0.7), **tight).y.numpy()
    plain = lambda t, y: [y[0] * (1.1 - y[1]), y[1] * (y[0] - 0.7)]
    between = si.solve_ivp(plain, (0.0, 3.0), y0, method, times, **tight)  # by the same polynomials
    np.testing.assert_allclose(sampled, between.y, rtol=1e-6 if method == "Radau" else 1e-11)

    def some(y0, a, times):
        solution = I.solve_ivp(predator_prey, (0.0, 3.0), y0, method, times, args=(a, b), **tight)
        return solution.y

    assert gradcheck(some, [y0, a, times[1:3]], rtol=2e-4, atol=1e-5, eps=1e-4)


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


@pytest.mark.parametrize("drive", [ad.sin, lambda t: ad.relu(ad.sin(3 * t))], ids=["smooth", "selects"])
@pytest.mark.parametrize("method", ["RK45", "DOP853", "Radau"])
def test_the_node_equals_steps_with_tensors(method, drive):
    """The backward by Jacobians of all stages is that of the same steps repeated with tensors."""
    p = np.array([1.1, 0.7, 1.0, 0.5, 0.2, 2.0])

    def f(p, lonely):
        def rhs(t, y):
            if lonely:
                y.detach().numpy()  # not possible in a batch
            return ad.stack([y[0] * (p[0] - y[1]) + 0.1 * drive(t), y[1] * (y[0] - p[1] * drive(t))])

        y = I.solve_ivp(rhs, (p[4], p[5]), p[2:4], method, [0.3, 1.0, 1.9], rtol=1e-7, atol=1e-9).y
        return (y**2).sum()

    x = ad.tensor(p, requires_grad=True)
    exact = 1e-4 if method == "Radau" else 1e-9
    fast, slow = (ad.gradients(f(x, lonely), [x])[0].numpy() for lonely in (False, True))
    np.testing.assert_allclose(fast, slow, rtol=exact, atol=1e-8)
    second = ad.gradients(f(x, False), [x], create_graph=True)[0]
    np.testing.assert_allclose(second.numpy(), slow, rtol=exact, atol=1e-8)
    tangent = ad.jvp(lambda p: f(p, False), (p,), (np.ones(6),))[1]
    np.testing.assert_allclose(tangent, slow.sum(), rtol=exact)


def test_tapes_and_initial_values_that_are_parameters():
    decay = lambda p, y: I.solve_ivp(lambda t, u: -p * u, (0.0, 1.0), y, rtol=1e-9, atol=1e-12).y[:, -1].sum()
    p, y = ad.tensor(2.0), ad.tensor([1.0, 3.0])
    with ad.Tape() as tape:
        tape.watch(p)
        tape.watch(y)
        total = decay(p, y)
    found = tape.gradients(total)
    assert found[p].item() == pytest.approx(-4 * math.exp(-2), rel=1e-7)
    np.testing.assert_allclose(found[y].numpy(), [math.exp(-2)] * 2, rtol=1e-7)
    both = ad.grad(lambda y: decay(y, y))(np.array([1.0, 2.0]))  # of y exp(-y)
    np.testing.assert_allclose(both, [0.0, -math.exp(-2)], rtol=1e-7, atol=1e-9)


def test_the_jacobian_of_a_program_for_scipy_is_not_needed():
    f = lambda t, y: -50 * y
    own = I.solve_ivp(f, (0, 1), [1.0], "Radau", jac=lambda t, y: [[-50.0]], jac_sparsity=None).y
    np.testing.assert_array_equal(own.numpy(), I.solve_ivp(f, (0, 1), [1.0], "Radau").y.numpy())


def test_stiff_equation():
    """Van der Pol's oscillator: explicit methods need hundreds of times as many steps."""
    rhs = lambda t, y, mu: ad.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])
    end = lambda mu: I.solve_ivp(rhs, (0.0, 1.0), [2.0, 0.0], "Radau", args=(mu,), rtol=1e-8, atol=1e-10)
    assert end(1000.0).t.shape[0] < 100
    for k in (0, 1):
        f = lambda mu, k=k: end(mu).y[k, -1]
        difference = (f(1000.1).item() - f(999.9).item()) / 0.2
        assert float(ad.grad(f)(1000.0)) == pytest.approx(difference, rel=1e-3)


def test_events_and_dense_output():
    """A ball that is thrown up: the time of its return is 2 v / g, the highest point v² / 2 g."""
    fall = lambda t, y, g: ad.stack([y[1], -g + 0 * y[0]])
    ground, top = (lambda t, y, g: y[0]), (lambda t, y, g: y[1])
    ground.terminal, ground.direction = True, -1
    options = {"events": [ground, top], "rtol": 1e-9, "atol": 1e-9, "max_step": 0.3}
    thrown = lambda v, g: I.solve_ivp(fall, (0.0, 50.0), ad.stack([0 * v, v]), args=(g,), **options)
    result = thrown(ad.tensor(12.0), 9.81)
    assert result.status == 1 and len(result.t_events) == 2
    assert result.t_events[0].item() == pytest.approx(2 * 12 / 9.81, rel=1e-9)
    assert result.t[-1].item() == pytest.approx(2 * 12 / 9.81, rel=1e-9)
    assert result.y[:, -1].numpy() == pytest.approx([0.0, -12.0], abs=1e-7)
    assert result.y_events[1][0, 0].item() == pytest.approx(12**2 / 2 / 9.81, rel=1e-9)
    v, g = ad.tensor(12.0), np.array(9.81)
    assert float(ad.grad(lambda v: thrown(v, 9.81).t[-1])(12.0)) == pytest.approx(2 / 9.81, rel=1e-8)
    when = lambda g: thrown(v, g).t_events[0][0]
    assert float(ad.grad(when)(9.81)) == pytest.approx(-2 * 12 / 9.81**2, rel=1e-8)
    assert float(ad.grad(lambda v: thrown(v, g).y_events[1][0, 0])(12.0)) == pytest.approx(
        12 / 9.81, rel=1e-8
    )
    assert float(ad.hessian(when)(g)) == pytest.approx(4 * 12 / 9.81**3, rel=1e-6)
    for method in ("RK23", "RK45", "DOP853", "Radau"):
        circle = lambda t, y, w: w * ad.stack([y[1], -y[0]])
        plain = lambda t, y: 1.3 * np.array([y[1], -y[0]])
        at = np.array([0.0, 0.7, 2.0])
        ours = I.solve_ivp(circle, (0.0, 2.0), [0.0, 1.0], method, dense_output=True, args=(1.3,))
        theirs = si.solve_ivp(plain, (0.0, 2.0), [0.0, 1.0], method, dense_output=True)
        exact = 1e-5 if method == "Radau" else 1e-12
        np.testing.assert_allclose(ours.sol(at).numpy(), theirs.sol(at), rtol=exact, atol=exact)
        assert ours.sol(0.7).shape == (2,)
    tight = {"dense_output": True, "rtol": 1e-9, "atol": 1e-11}
    angle = lambda w, t: I.solve_ivp(circle, (0.0, 2.0), [0.0, 1.0], "DOP853", args=(w,), **tight).sol(t)[0]
    assert gradcheck(angle, [np.array(1.3), np.array(0.7)], rtol=1e-4, atol=1e-5, eps=1e-4)
    none = I.solve_ivp(fall, (0.0, 0.1), [1.0, 1.0], events=ground, args=(9.81,))
    assert none.status == 0 and none.t_events[0].shape == (0,) and none.y_events[0].shape == (0, 2)
    nothing = I.solve_ivp(lambda t, y: y, (1.0, 1.0), [1.0, 2.0])
    assert nothing.y.numpy()[:, 0].tolist() == [1.0, 2.0]


def test_quad_vec():
    f = lambda x, c: ad.stack([ad.sin(c * x), c * x**2])
    got, error = I.quad_vec(f, 0.2, 1.5, args=(2.0,))
    expected, _ = si.quad_vec(lambda x: np.array([np.sin(2 * x), 2 * x**2]), 0.2, 1.5)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)
    assert error < 1e-6
    whole = lambda a, b, c: I.quad_vec(f, a, b, args=(c,))[0]
    assert gradcheck(whole, [np.array(v) for v in (0.2, 1.5, 2.0)], order=2, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(I.quad_vec(f, 1.5, 0.2, args=2.0)[0].numpy(), -expected, rtol=1e-12)
    decay = lambda c: I.quad_vec(lambda x: ad.stack([ad.exp(-c * x), x * ad.exp(-c * x)]), 0.0, math.inf)[0]
    np.testing.assert_allclose(decay(2.0).numpy(), [0.5, 0.25], rtol=1e-8)
    np.testing.assert_allclose(ad.jacobian(decay)(2.0), [-0.25, -0.25], rtol=1e-7)


@pytest.mark.parametrize("method", ["RK45", "DOP853", "Radau"])
def test_batches_are_one_system(method):
    """The elements of a batch have common steps, so they agree with those alone to the tolerance."""
    y0 = np.array([[1.0, 0.5], [0.8, 0.6], [1.2, 0.4]])
    a, t1 = np.array([1.1, 0.9, 1.3]), np.array([2.0, 1.5, 2.5])
    few = method == "Radau"  # which is slow with tensors
    tight = {"rtol": 1e-4, "atol": 1e-6} if few else {"rtol": 1e-8, "atol": 1e-10}
    exact = 1e-2 if few else 1e-5
    end = lambda y0, a, t1: I.solve_ivp(predator_prey, (0.0, t1), y0, method, args=(a, 0.7), **tight).y[:, -1]
    alone = np.stack([end(*row).numpy() for row in zip(y0, a, t1, strict=True)])
    np.testing.assert_allclose(ad.vmap(end)(y0, a, t1), alone, rtol=exact)
    np.testing.assert_allclose(ad.vmap(lambda a: end(y0[0], a, 2.0))(a)[0], alone[0], rtol=exact)
    total = lambda a, y: end(y, a, 2.0).sum()
    each = ad.vmap(ad.grad(total))(a, y0)
    np.testing.assert_allclose(each, [ad.grad(total)(a[i], y0[i]) for i in range(3)], rtol=exact)
    whole = ad.grad(lambda a: ad.vmap(total)(a, y0).sum())(a)
    np.testing.assert_allclose(whole, each, rtol=exact)
    some = lambda y: I.solve_ivp(predator_prey, (0.0, 2.0), y, method, [0.5, 1.0], args=(1.1, 0.7), **tight).y
    np.testing.assert_allclose(ad.vmap(some)(y0)[1], some(y0[1]).numpy(), rtol=exact)


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
    assert I.odeint(lambda y, t: -y, 1.0, [0.0, 1.0]).shape == (2, 1)
    first = I.odeint(lambda t, y: -y * t, [1.0], [0.0, 1.0], tfirst=True)
    assert first[1, 0].item() == pytest.approx(math.exp(-0.5), rel=1e-6)


@pytest.mark.parametrize("through", [lambda f: f, ad.compile, ad.grad, lambda f: ad.compile(ad.grad(f))])
def test_one_number_is_a_right_hand_side(through):
    t = np.linspace(0.0, 1.0, 5)
    for solve in (
        lambda rate, pick: I.solve_ivp(lambda t, y: -rate * pick(y), (0, 1), [1.0], t_eval=t).y[0, -1],
        lambda rate, pick: I.odeint(lambda y, t: -rate * pick(y), 1.0, t)[-1, 0],
    ):
        results = [float(through(lambda rate, pick=pick, solve=solve: solve(rate, pick))(np.array(2.0)))
                   for pick in (lambda y: y, lambda y: y[0])]  # fmt: skip
        assert results[0] == results[1]
    both = I.solve_ivp(lambda t, y: 1.0, (0, 1), [1.0, 2.0], t_eval=t).y
    np.testing.assert_allclose(both, si.solve_ivp(lambda t, y: 1.0, (0, 1), [1.0, 2.0], t_eval=t).y)
    stiff = I.solve_ivp(lambda t, y: -2 * y[0], (0, 1), [1.0], "Radau", t_eval=t)
    np.testing.assert_allclose(stiff.y[0], np.exp(-2 * t), rtol=1e-2)


@pytest.mark.parametrize("through", [lambda f: f, ad.compile])
def test_a_right_hand_side_of_another_shape_is_an_error(through):
    wrong = {(3,): lambda t, y: ad.stack([y[0], y[0], y[1]]), (2, 1): lambda t, y: y[:, None]}
    for shape, f in wrong.items():
        with pytest.raises(ShapeError) as caught:
            through(lambda y, f=f: I.solve_ivp(f, (0, 1), y, t_eval=[1.0]).y)(np.ones(2))
        assert str(caught.value) == (
            "solve_ivp: the right-hand side must return one derivative for each unknown, with shape (2,), "
            f"but its result has shape {shape}."
        )


def test_mistakes():
    f = lambda t, y: -y
    for name, call in {
        "solve_ivp": lambda: I.solve_ivp(lambda t, y, a: -a * y, (0, 1), [1.0], args=3.0),
        "odeint": lambda: I.odeint(lambda y, t, a: -a * y, [1.0], [0.0, 1.0], args=3.0),
    }.items():
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value) == f"{name}: args must be a tuple, but is float.  Pass args=(value,)."
    with pytest.raises(InputError, match=r"nested ad\.vmap"):
        ad.vmap(ad.vmap(lambda y: I.solve_ivp(f, (0, 1), y[None]).y[0, -1]))(np.ones((2, 1)))
    with pytest.raises(InputError, match="method must be one of RK23, RK45, DOP853, Radau"):
        I.solve_ivp(f, (0, 1), [1.0], "RK4")
    with pytest.raises(InputError, match="not supported with gradients: min_step"):
        I.solve_ivp(f, (0, 1), [1.0], min_step=0.1)
    with pytest.raises(ShapeError, match="must be a vector"):
        I.solve_ivp(f, (0, 1), 1.0)
    with pytest.raises(ArgumentError, match="t_eval must be within"):
        I.solve_ivp(f, (0, 1), [1.0], t_eval=[2.0])
    with pytest.raises(LostHistoryError):
        I.romb(ad.tensor([1.0, 2.0, 3.0], requires_grad=True))


@pytest.mark.parametrize("method", ["BDF", "LSODA"])
def test_methods_without_derivatives(method):
    rhs = lambda t, y, a: ad.stack([y[1], a * (1 - y[0] ** 2) * y[1] - y[0]])
    plain = lambda t, y, a: [y[1], a * (1 - y[0] ** 2) * y[1] - y[0]]
    crossing = lambda t, y, a: y[0]
    jac = lambda t, y, a: [[0.0, 1.0], [-2 * a * y[0] * y[1] - 1, a * (1 - y[0] ** 2)]]
    options = {"t_eval": [0.5, 2.0], "args": (9.0,), "events": crossing, "dense_output": True, "rtol": 1e-5}
    for more in ({}, {"jac": jac, "min_step": 1e-9} if method == "LSODA" else {"jac": jac}):
        ours = I.solve_ivp(rhs, (0, 20), [2.0, 0.0], method, **options, **more)
        scipy = si.solve_ivp(plain, (0, 20), [2.0, 0.0], method, **options, **more)
        for name in ("t", "y"):
            np.testing.assert_allclose(ours[name], scipy[name], rtol=1e-6)
        np.testing.assert_allclose(ours.t_events[0], scipy.t_events[0], rtol=1e-6)
        np.testing.assert_allclose(ours.y_events[0], scipy.y_events[0], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(ours.sol(3.0), scipy.sol(3.0), rtol=1e-6)
        assert (ours.status, ours.nfev) == (0, scipy.nfev)
    end = lambda a: I.solve_ivp(rhs, (0, 1), [2.0, 0.0], method, args=(a,)).y[0, -1]
    one = np.array(1.0)
    for call in (
        lambda: ad.grad(end)(1.0),
        lambda: end(ad.tensor(1.0, requires_grad=True)),
        lambda: ad.jvp(end, (one,), (one,)),
        lambda: ad.vmap(end)(np.ones(2)),
        lambda: ad.compile(end)(one),
        lambda: I.solve_ivp(lambda t, y: -y, (0, 1), ad.tensor([1.0], requires_grad=True), method),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value) == (
            "solve_ivp: method must be one of RK23, RK45, DOP853, Radau for gradients and inside transforms, "
            f"not {method!r}.\n  Use Radau for stiff problems."
        )
    with ad.no_grad():
        y0 = ad.tensor([1.0], requires_grad=True)
        found = I.solve_ivp(lambda t, y: -y, (0, 1), y0, method, rtol=1e-8, atol=1e-10).y[0, -1]
    assert found.item() == pytest.approx(math.exp(-1), rel=1e-5)


def test_options_of_scipy():
    f, times = (lambda y, t: -y), [0.0, 1.0]
    plain = I.odeint(f, [1.0], times)
    unused = {"Dfun": lambda y, t: -np.eye(1), "mxstep": 5000, "full_output": 0, "hmax": 0.0}
    np.testing.assert_array_equal(I.odeint(f, [1.0], times, **unused), plain)
    seen = []
    I.odeint(lambda y, t: seen.append(t.item()) or -y, [1.0], times, hmax=0.01, h0=0.001)
    assert len(seen) > 1000
    small = lambda a: I.odeint(lambda y, t: -a * y, [1.0], times, hmax=0.1, max_steps=5)
    with pytest.raises(ad.errors.ConvergenceError, match="not reached in 5 attempted steps"):
        ad.compile(small)(np.array(1.0))
    value = I.quad_vec(lambda x: ad.stack([x, x**2]), 0.0, 1.0, quadrature="gk15", cache_size=1e6)[0]
    np.testing.assert_allclose(value, [1 / 2, 1 / 3])
    for call, text in {
        lambda: I.odeint(f, [1.0], times, full_output=True): (
            "odeint: these options are not supported with gradients: full_output.\n"
            "  Use solve_ivp, whose result reports on the solution."
        ),
        lambda: I.quad_vec(lambda x: x, 0.0, 1.0, full_output=True): (
            "quad_vec: these options are not supported with gradients: full_output.\n"
            "  Call scipy.integrate.quad_vec if no gradient is needed."
        ),
        lambda: I.quad(lambda x: x, 0.0, 1.0, full_output=True): (
            "quad: these options are not supported with gradients: full_output.\n"
            "  Call scipy.integrate.quad if no gradient is needed."
        ),
        lambda: I.solve_ivp(lambda t, y: -y, (0, 1), [1.0], tol=1e-3): (
            "solve_ivp: these options are not supported with gradients: tol.\n"
            "  Pass rtol= and atol= for the accuracy, first_step= and max_step= for the steps."
        ),
    }.items():
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value) == text


# Integrals inside vmap -------------------------------------------------------------------------------------

INF = float("inf")
INTEGRALS = {
    "waves": lambda c: I.quad(lambda x: ad.exp(-c[0] * x) * ad.sin(9 * c[1] * x), 0.0, c[2] + 1)[0],
    "peak": lambda c: I.quad(lambda x: 1 / ((x - c[2] / 3) ** 2 + 0.01 * c[0]), 0.0, 1.0)[0],
    "everywhere": lambda c: I.quad(lambda x: ad.exp(-c[0] * x * x + c[1]), -INF, INF)[0],
    "half": lambda c: I.quad(lambda x, k: ad.exp(-c[0] * x) * k, c[1], INF, args=(c[2],))[0],
    "reversed": lambda c: I.quad(lambda x: x * c[0], c[1] + 1, c[2])[0],
    "empty": lambda c: I.quad(lambda x: x * c[0], c[1], c[1])[0] + c[2],
    "vector": lambda c: I.quad_vec(lambda x: ad.stack([c[0] * x, ad.sin(20 * x * c[1])]), 0.0, c[2] + 1)[0],
    "vector to infinity": lambda c: I.quad_vec(lambda x: ad.exp(-x * c[:2]), c[2], INF)[0],
}


@pytest.mark.parametrize("name", INTEGRALS)
def test_integrals_in_vmap_are_those_of_single_calls(name):
    f = INTEGRALS[name]
    total = lambda c: (f(c) ** 2).sum()
    batch = np.array([[1.1, 0.8, 0.5], [0.9, 1.2, 0.3]])
    alone = lambda g: np.stack([np.asarray(g(ad.tensor(c)).detach()) for c in batch])
    for g in (f, ad.grad(total), lambda c: ad.jvp(f, (c,), (c,))[1]):
        np.testing.assert_allclose(ad.vmap(g)(ad.tensor(batch)).numpy(), alone(g), rtol=1e-9, atol=1e-12)
    outside = ad.grad(lambda b: (ad.vmap(f)(b) ** 2).sum())(batch)
    np.testing.assert_allclose(outside, alone(ad.grad(total)), rtol=1e-9, atol=1e-12)


def test_integrals_that_vmap_cannot_do_are_said():
    integral = lambda b: I.quad(lambda x: ad.exp(-x), 0.0, b)[0]
    for ends in ([1.0, INF], [1.0, -1.0]):
        with pytest.raises(InputError, match="the limits of all elements must be in the same order"):
            ad.vmap(integral)(np.array(ends))


@pytest.mark.parametrize(
    ("op", "f"),
    [
        ("quad", lambda a: I.quad(lambda x: a * x, 0.0, 1.0)[0]),
        ("quad_vec", lambda a: I.quad_vec(lambda x: a * x, 0.0, 1.0)[0]),
        (
            "solve_ivp",
            lambda a: I.solve_ivp(lambda t, y: -a * y, (0, 1), [1.0], t_eval=[1.0]).y[0, 0],
        ),
        ("solve_ivp", lambda a: I.odeint(lambda y, t: -a * y, [1.0], [0.0, 1.0])[0, 0]),
    ],
)
def test_empty_batches(op, f):
    with pytest.raises(
        InputError, match=rf"{op}: the batch of ad\.vmap is empty\.\n  Pass at least one element"
    ):
        ad.vmap(f)(np.ones(0))
    for g in (f, ad.grad(f)):
        assert ad.compile(ad.vmap(g))(np.ones(0)).shape == (0,)
