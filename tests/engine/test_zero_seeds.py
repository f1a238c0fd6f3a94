"""A gradient that the caller passes in may be zero: what is linear in it has derivatives at zero all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from table import CASES, SMOOTH, checked, function

import adjoint as ad
from adjoint.errors import RuleError

X = np.linspace(0.1, 0.9, 5)
V = np.arange(5.0) - 1.5
SEEDS = {
    "zeros": np.zeros(5),
    "zeros in places": np.array([0.0, 1.0, 0.0, -2.0, 0.0]),
    "no zeros": np.ones(5),
}


def f(x: Any) -> Any:
    return ad.sin(x) * x


def custom(x: Any) -> Any:
    function = ad.custom_vjp(f)
    function.defvjp(lambda x: (f(x), x), lambda x, g: (g * (ad.cos(x) * x + ad.sin(x)),))
    return function(x)


FUNCTIONS = {
    "ops": f,
    "a checkpoint": lambda x: ad.checkpoint(f, x),
    "a custom rule": custom,
    "a solution": lambda x: ad.root(lambda y: y - f(x), np.zeros(5)),
}
J = np.diag(np.cos(X) * X + np.sin(X))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_pull_is_differentiated_with_respect_to_its_seed(name: str, seed: str) -> None:
    function, u = FUNCTIONS[name], SEEDS[seed]
    _, pull = ad.vjp(function, X)
    _, along = ad.linearize(function, X)
    found = {
        "vjp of vjp": (ad.vjp(lambda u: pull(u)[0], u)[1](V)[0], J @ V),
        "jvp of vjp": (ad.jvp(lambda u: pull(u)[0], (u,), (V,))[1], J.T @ V),
        "vjp of linearize": (ad.vjp(along, u)[1](V)[0], J.T @ V),
        "jacobian": (ad.jacobian(lambda u: pull(u)[0])(u), J.T),
        "jacfwd": (ad.jacfwd(lambda u: pull(u)[0])(u), J.T),
        "jacobian of linearize": (ad.jacobian(along)(u), J),
        "grad": (ad.grad(lambda u: pull(u)[0] @ V)(u), J @ V),
        "grad of jvp": (ad.grad(lambda u: ad.jvp(function, (X,), (u,))[1] @ V)(u), J.T @ V),
        "vmap": (ad.vmap(ad.grad(lambda u: pull(u)[0] @ V))(np.stack([u, u]))[1], J @ V),
        "hessian": (ad.hessian(lambda u: (pull(u)[0] ** 2).sum())(u), 2 * J @ J.T),
    }
    for way, (got, expected) in found.items():
        assert isinstance(got, np.ndarray), way  # arrays in, arrays out
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12, err_msg=way)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_a_seed(name: str, seed: str) -> None:
    x, u = ad.tensor(X, requires_grad=True), ad.tensor(SEEDS[seed], requires_grad=True)
    (g,) = ad.gradients([FUNCTIONS[name](x)], [x], [u], create_graph=True)
    along_u, along_x = ad.gradients([g], [u, x], [V])
    np.testing.assert_allclose(along_u, J @ V, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(along_x, V * SEEDS[seed] * (2 * np.cos(X) - X * np.sin(X)), atol=1e-9)


def test_a_seed_that_a_tape_watches() -> None:
    x, u = ad.tensor(X, requires_grad=True), ad.tensor(np.zeros(5))
    with ad.Tape() as tape:
        tape.watch(u)
        (g,) = ad.gradients([f(x)], [x], [u], create_graph=True)
        y = g @ V
    np.testing.assert_allclose(tape.gradients(y)[u], J @ V)


def test_products_with_the_gauss_newton_matrix() -> None:
    """As autograd's make_ggnvp computes them: Jᵀ H J v, with J v by two pulls."""
    g = lambda y: (ad.exp(y) + y[0] * y[1]).sum()
    y, pull = ad.vjp(f, X)
    _, hessian = ad.vjp(ad.grad(g), y)
    _, along = ad.vjp(lambda u: pull(u)[0], np.zeros(5))
    found = pull(hessian(along(V)[0])[0])[0]
    np.testing.assert_allclose(found, J.T @ ad.hessian(g)(y) @ J @ V, rtol=1e-9)


def test_a_seed_without_history_still_selects() -> None:
    x = np.array([0.0, 4.0])
    _, pull = ad.vjp(ad.sqrt, x)
    np.testing.assert_array_equal(pull(np.array([0.0, 1.0]))[0], [0, 0.25])
    masked = lambda x: ad.where(x > 0, ad.sqrt(x), 0.0)
    _, pull = ad.vjp(masked, x)
    np.testing.assert_array_equal(ad.vjp(lambda u: pull(u)[0], np.zeros(2))[1](np.ones(2))[0], [0, 0.25])
    leaf, u = ad.tensor(x, requires_grad=True), ad.tensor(np.zeros(2), requires_grad=True)
    (g,) = ad.gradients([masked(leaf)], [leaf], [u], create_graph=True)
    along_u, along_x = ad.gradients([g], [u, leaf], [np.ones(2)])
    assert along_u.tolist() == [0, 0.25]
    assert along_x.tolist() == [0, 0]


@pytest.mark.parametrize("name", SMOOTH)
def test_two_pulls_of_an_op_are_its_forward_mode(name: str) -> None:
    rng = np.random.default_rng(3)
    number = lambda a: rng.uniform(0.5, 1.5, a.shape).astype(a.dtype) * (1 + 1j if a.dtype.kind == "c" else 1)
    for case in CASES[name]:
        wanted = checked(case)
        given = [case.args[i] for i in wanted]
        if not given:
            continue
        op = function(case, wanted)
        smooth = lambda *a, op=op: [y for y in op(*a) if y.dtype.kind in "fc"]
        tangents = [np.asarray(number(a)) for a in given]
        with np.errstate(all="ignore"):
            y, expected = ad.jvp(smooth, given, tangents)
            _, pull = ad.vjp(smooth, *given)
            (found,) = ad.vjp(pull, [np.zeros_like(v) for v in y])[1](tuple(tangents))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", SMOOTH)
def test_anomaly_mode_finds_nothing_in_the_rules_of_an_op(name: str) -> None:
    """A recorded rule may compute infinities on the way: a mask of attention, a quotient by a size of 0."""

    def second(op: Any, given: list[Any], scale: float) -> list[Any]:
        x = [ad.tensor(a, requires_grad=True) for a in given]
        y = [t for t in op(*x) if t.requires_grad]
        u = [ad.tensor(np.full(t.shape, scale, t.dtype), requires_grad=True) for t in y]
        first = ad.gradients(y, x, u, create_graph=True, allow_unused=True)
        moving = [g for g in first if g is not None and g.requires_grad]
        ones = [np.ones(g.shape, g.dtype) for g in moving]
        last = ad.gradients(moving, x + u, ones, allow_unused=True) if moving else ()
        return [t for t in (*y, *first, *last) if t is not None]

    for case in CASES[name]:
        wanted = checked(case)
        if not wanted:
            continue
        for scale in (0.0, 1.0):
            run = lambda: second(function(case, wanted), [case.args[i] for i in wanted], scale)  # noqa: B023
            with np.errstate(all="ignore"):
                found = run()
                if all(np.isfinite(t.numpy()).all() for t in found):
                    with ad.detect_anomaly():
                        run()


# Rules that lose what they are given: zeros do not hide it ---------------------------------------------


def test_a_rule_that_loses_a_zero_gradient() -> None:
    function = ad.custom_vjp(ad.sin)
    function.defvjp(lambda x: (ad.sin(x), x), lambda x, g: (ad.tensor(g.numpy() * np.cos(x.numpy())),))
    x, u = ad.tensor(X, requires_grad=True), ad.tensor(np.zeros(5), requires_grad=True)
    with pytest.raises(RuleError, match="not part of a graph, so it cannot be differentiated again"):
        ad.gradients([function(x)], [x], [u], create_graph=True)


def test_a_rule_whose_gradient_is_zero() -> None:
    function = ad.custom_vjp(ad.floor)
    function.defvjp(lambda x: (ad.floor(x), None), lambda _, g: (np.zeros(5),))
    x, u = ad.tensor(X, requires_grad=True), ad.tensor(np.zeros(5), requires_grad=True)
    assert not ad.gradients([function(x)], [x], [u], create_graph=True)[0].numpy().any()


def test_a_jvp_that_loses_the_tangent() -> None:
    function = ad.custom_jvp(ad.sin)
    function.defjvp(lambda p, t: (ad.sin(p[0]), ad.tensor(t[0].numpy() * np.cos(p[0].numpy()))))
    with pytest.raises(RuleError, match="does not depend on the tangents of the arguments"):
        ad.grad(lambda x: function(x).sum())(X)
