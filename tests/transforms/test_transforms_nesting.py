"""Every order of three transforms gives what the mathematics says.

Each step turns a function of a vector into another.  ``derivatives`` all are the derivative along V,
computed in different ways; ``sums`` all are Σₛ f(s x), with and without a batch.  So what three
steps give depends on their kinds alone, and every sequence must agree with the plainest one.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from random_nesting import Program

import adjoint as ad

V = np.array([0.7, -0.3, 1.1])
X = np.array([0.4, 0.9, -0.6])
SCALES = np.array([0.5, 1.0, -0.8, 1.3])


def f(x: Any) -> Any:
    return ad.exp(ad.sin(x[0] * x[1])) * x[2] + (x**3).sum() / (1 + x[1] ** 2)


def by_grad(f: Any) -> Any:
    return lambda x: ad.grad(f)(x) @ V


def by_jvp(f: Any) -> Any:
    return lambda x: ad.jvp(f, (x,), (V,))[1]


def by_vjp(f: Any) -> Any:
    return lambda x: ad.vjp(f, x)[1](1.0)[0] @ V


def by_linearize(f: Any) -> Any:
    return lambda x: ad.linearize(f, x)[1](V)


def by_jacrev(f: Any) -> Any:
    return lambda x: (ad.jacrev(lambda y: ad.stack([f(y), f(2 * y)]))(x) @ V)[0]


def by_jacfwd(f: Any) -> Any:
    return lambda x: (ad.jacfwd(lambda y: ad.stack([f(y), f(2 * y)]))(x) @ V)[0]


def by_captured(f: Any) -> Any:
    """The derivative with respect to a number, with x captured from outside."""
    return lambda x: ad.grad(lambda t: f(x + t * V))(0.0)


def by_vmapped_grad(f: Any) -> Any:
    return lambda x: ad.vmap(ad.grad(f))(x.reshape(1, 3))[0] @ V


def by_vmapped_jvp(f: Any) -> Any:
    return lambda x: (ad.vmap(lambda v: ad.jvp(f, (x,), (v,))[1])(np.eye(3)) * V).sum()


def by_vmap(f: Any) -> Any:
    return lambda x: ad.vmap(lambda s: f(x * s))(SCALES).sum()


def by_vmap_of_the_vector(f: Any) -> Any:
    return lambda x: ad.vmap(f, in_axes=1)(x[:, None] * SCALES).sum()


def by_chunks(f: Any) -> Any:
    return lambda x: ad.vmap(lambda s: f(x * s), chunk_size=3)(SCALES).sum()


def by_loop(f: Any) -> Any:
    return lambda x: sum(f(x * s) for s in SCALES)


DERIVATIVES = (by_grad, by_jvp, by_vjp, by_linearize, by_jacrev, by_jacfwd, by_captured, by_vmapped_grad, by_vmapped_jvp)  # fmt: skip
SUMS = (by_vmap, by_vmap_of_the_vector, by_chunks)
PLAIN = {"d": by_grad, "s": by_loop}


def applied(steps: Any) -> float:
    g = f
    for step in steps:
        g = step(g)
    return float(g(ad.tensor(X)))


@pytest.fixture(scope="module")
def expected() -> dict[str, float]:
    return {"".join(k): applied([PLAIN[c] for c in k]) for k in itertools.product("ds", repeat=3)}


@pytest.mark.parametrize("first", [*DERIVATIVES, *SUMS])
@pytest.mark.parametrize("second", [*DERIVATIVES, *SUMS])
def test_three_steps_in_any_order(first: Any, second: Any, expected: dict[str, float]) -> None:
    for third in (by_grad, by_jvp, by_jacfwd, by_vmap):
        steps = (first, second, third)
        kind = "".join("s" if s in SUMS else "d" for s in steps)
        np.testing.assert_allclose(
            applied(steps), expected[kind], rtol=1e-9, err_msg=" of ".join(s.__name__ for s in steps[::-1])
        )


def test_no_grad_around_an_inner_transform_cuts_what_it_gives() -> None:
    def inner(x: Any) -> Any:
        with ad.no_grad():
            return ad.value_and_grad(lambda y: (y * x).sum())(x)

    def product(x: Any) -> Any:
        value, g = inner(x)
        return value * (g * x).sum()  # (x·x) (x·x), of which only the last x counts

    expected = (X @ X) * X
    np.testing.assert_allclose(np.asarray(ad.grad(product)(X)), expected, rtol=1e-12)
    outer = ad.grad(lambda xs: ad.vmap(product)(xs).sum())(np.stack([X, 2 * X]))
    np.testing.assert_allclose(np.asarray(outer), [expected, 8 * expected], rtol=1e-12)


def test_a_captured_parameter_gets_its_gradient_through_every_pair() -> None:
    """d/dw of w·g(x) is g(x), whatever transforms are in between."""
    w = ad.tensor(1.7, requires_grad=True)
    for steps in itertools.product([*DERIVATIVES, *SUMS], repeat=2):
        plain: Any = f
        scaled: Any = lambda x: w * f(x)
        for step in steps:
            plain, scaled = step(plain), step(scaled)
        (g,) = ad.gradients(scaled(ad.tensor(X)), [w])
        assert g is not None
        np.testing.assert_allclose(g.item(), float(plain(ad.tensor(X))), rtol=1e-9, err_msg=str(steps))


@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_random_nesting(first: int) -> None:
    """Tapes, transforms, checkpoints, custom rules and scopes in any order; ``make soak`` runs 50,000."""
    for seed in range(first, first + 50):
        Program(seed).check()


def test_a_result_depends_on_no_tensor_that_a_transform_made() -> None:
    y = ad.tensor(2.0, requires_grad=True)
    captured = lambda t: (y * t) ** 3
    for g in (ad.grad(captured)(1.0), ad.jvp(captured, (1.0,), (1.0,))[1], ad.hvp(captured, 1.0, 1.0)):
        assert ad.backward(g).keys() == [y]
    nested = ad.grad(lambda a: ad.grad(lambda t: (a * t) ** 3)(1.0))(2.0)
    assert nested == 36.0 and type(nested) is np.float64
    checkpointed = ad.checkpoint(lambda a: ad.grad(lambda t: (a * t) ** 3)(1.0), y)
    checkpointed.backward()
    assert y.grad is not None and y.grad.item() == 36.0


def test_a_result_of_custom_jvp_depends_on_no_tensor_that_its_rule_made() -> None:
    cube: Any = ad.custom_jvp(lambda x: x**3)
    cube.defjvp(lambda primals, tangents: (cube(*primals), 3 * primals[0] ** 2 * tangents[0]))
    y = ad.tensor(2.0, requires_grad=True)
    assert ad.backward(ad.grad(lambda v: cube(v * y))(1.0)).keys() == [y]


def test_enable_grad_inside_a_transform_inside_inference_mode() -> None:
    def f(x: Any) -> Any:
        with ad.enable_grad():
            y = x**3
        with ad.no_grad():
            z = x * 1.0
        return y * z

    with ad.inference_mode():
        g = ad.grad(f)(2.0)
        assert not ad.is_grad_enabled()
        solution = ad.grad(lambda a: ad.root(lambda y: y**3 - a, 1.0))(8.0)
    assert g == 24.0 and type(g) is np.float64
    np.testing.assert_allclose(solution.item(), 1 / 12, rtol=1e-12)


def _of_tape(x: Any, **options: Any) -> Any:
    with ad.Tape() as tape:
        tape.watch(x)
        y = (x**3).sum()
    return tape.gradients(y, **options)[x]


@pytest.mark.parametrize(
    "slopes",
    [
        lambda x, **options: ad.gradients((x**3).sum(), [x], **options)[0],
        lambda x, **options: ad.backward((x**3).sum(), inputs=[x], **options)[x],
        _of_tape,
    ],
)
def test_gradients_inside_a_transform_can_be_differentiated(slopes: Any) -> None:
    total = lambda x, **options: slopes(x, **options).sum()
    for derivative in (
        ad.grad(total),
        ad.jacfwd(total),
        lambda x: ad.vjp(total, x)[1](1.0)[0],
        lambda x: ad.jvp(slopes, (x,), (np.ones(3),))[1],
        lambda x: ad.linearize(slopes, x)[1](np.ones(3)),
        ad.compile(ad.grad(total)),
    ):
        np.testing.assert_allclose(derivative(X), 6 * X)
    constant = lambda x: total(x, create_graph=False) + x.sum()
    assert ad.grad(constant)(X).tolist() == [1.0, 1.0, 1.0]
    assert not slopes(ad.tensor(X, requires_grad=True)).requires_grad  # outside a transform
