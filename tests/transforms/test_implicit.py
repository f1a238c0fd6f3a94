"""Solutions of equations: their derivatives, of every order, by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import (
    ArgumentError,
    ConvergenceError,
    DTypeError,
    InputError,
    ModifiedError,
    ShapeError,
    TransformError,
)

rng = np.random.default_rng(0)


def heron(a: Any) -> Any:
    return ad.fixed_point(lambda x: (x + a / x) / 2, 1.0)


def newton(a: Any) -> Any:
    return ad.root(lambda x: x * x - a, 1.0)


@pytest.mark.parametrize("f", [heron, newton])
def test_derivatives_of_the_square_root_to_fourth_order(f: Callable[[Any], Any]) -> None:
    for order in range(5):
        expected = float(mpmath.diff(mpmath.sqrt, 2.5, order))
        np.testing.assert_allclose(f(2.5).item(), expected, rtol=1e-11)
        f = ad.grad(f)


@pytest.mark.parametrize("f", [heron, newton])
def test_forward_mode_and_mixtures(f: Callable[[Any], Any]) -> None:
    slope, bend = 0.5 / np.sqrt(2.5), -0.25 * 2.5**-1.5
    np.testing.assert_allclose(ad.jvp(f, (2.5,), (3.0,))[1].item(), 3 * slope)
    np.testing.assert_allclose(ad.jvp(ad.grad(f), (2.5,), (1.0,))[1].item(), bend)
    np.testing.assert_allclose(ad.grad(lambda a: ad.jvp(f, (a,), (1.0,))[1])(2.5).item(), bend)
    np.testing.assert_allclose(ad.hessian(f)(2.5).item(), bend)
    np.testing.assert_allclose(ad.hvp(f, 2.5, 2.0).item(), 2 * bend)


def test_keplers_equation() -> None:
    def anomaly(M: Any, e: Any) -> Any:
        return ad.root(lambda E, M, e: E - e * ad.sin(E) - M, M, M, e)

    M, e = np.array([0.1, 1.0, 3.0]), 0.9
    E = anomaly(M, e)
    np.testing.assert_allclose((E - e * ad.sin(E)).numpy(), M, rtol=1e-12)
    slopes = 1 / (1 - e * np.cos(E.numpy()))
    np.testing.assert_allclose(np.asarray(ad.jacobian(anomaly)(M, e)), np.diag(slopes), atol=1e-12)
    by_e = ad.grad(lambda e: anomaly(M, e).sum())(e)
    np.testing.assert_allclose(by_e.item(), (np.sin(E.numpy()) * slopes).sum())


def test_trees_captured_and_computed_parameters() -> None:
    A = ad.tensor(0.2 * rng.standard_normal((3, 3)), requires_grad=True)
    b = ad.tensor(rng.standard_normal((2, 3)), requires_grad=True)
    h = ad.tanh(A)  # not a leaf

    def step(z: Any, c: Any) -> Any:
        return {"x": ad.tanh(z["x"] @ h + b + z["y"]), "y": 0.1 * z["x"].sum() + c}

    def solve(steps: int | None) -> Any:
        start = {"x": np.zeros((2, 3)), "y": 0.0}
        if steps is None:
            return ad.fixed_point(step, start, c)
        for _ in range(steps):
            start = step(start, c)
        return start

    c = ad.tensor(0.3, requires_grad=True)
    found = []
    for steps in (None, 200):
        z = solve(steps)
        found.append(ad.gradients((z["x"] ** 2).sum() + z["y"], [A, b, c], retain_graph=True))
    for implicit, unrolled in zip(*found, strict=True):
        np.testing.assert_allclose(implicit.numpy(), unrolled.numpy(), rtol=1e-9)


def test_second_derivatives_of_several_unknowns() -> None:
    A = 0.3 * rng.standard_normal((3, 3))

    def implicit(b: Any) -> Any:
        return (ad.fixed_point(lambda x: ad.tanh(A @ x + b), np.zeros(3)) ** 2).sum()

    def unrolled(b: Any) -> Any:
        x = ad.zeros(3)
        for _ in range(120):
            x = ad.tanh(A @ x + b)
        return (x**2).sum()

    b = rng.standard_normal(3)
    np.testing.assert_allclose(
        np.asarray(ad.hessian(implicit)(b)), np.asarray(ad.hessian(unrolled)(b)), atol=1e-10
    )
    ad.testing.gradgradcheck(implicit, ad.tensor(b, requires_grad=True))


@pytest.mark.parametrize("solver", ["fixed_point", "root"])
def test_many_unknowns_need_no_matrix(solver: str) -> None:
    n = 600
    diagonal, u = 0.3 * rng.random(n), rng.standard_normal(n) / n
    b = rng.standard_normal(n)

    def solve(b: Any, u: Any) -> Any:
        step = lambda x: diagonal * ad.sin(x) + u * (u * x).sum() + b
        if solver == "fixed_point":
            return ad.fixed_point(step, np.zeros(n))
        return ad.root(lambda x: step(x) - x, np.zeros(n))

    x = np.asarray(solve(b, u))
    J = np.diag(diagonal * np.cos(x)) + np.outer(u, u) - np.eye(n)
    adjoint = -np.linalg.solve(J.T, 2 * x)
    gb, gu = ad.grad(lambda b, u: (solve(b, u) ** 2).sum(), (0, 1))(b, u)
    np.testing.assert_allclose(np.asarray(gb), adjoint, atol=1e-8)
    np.testing.assert_allclose(np.asarray(gu), adjoint * (u @ x) + (adjoint @ u) * x, atol=1e-8)


def test_batches() -> None:
    a = np.array([2.0, 3.0, 5.0])
    for f in (heron, newton):
        np.testing.assert_allclose(np.asarray(ad.vmap(f)(a)), np.sqrt(a))
        np.testing.assert_allclose(np.asarray(ad.vmap(ad.grad(f))(a)), 0.5 / np.sqrt(a))
        np.testing.assert_allclose(np.asarray(ad.vmap(ad.grad(ad.grad(f)))(a)), -0.25 * a**-1.5)
        np.testing.assert_allclose(np.asarray(ad.grad(lambda a: ad.vmap(f)(a).sum())(a)), 0.5 / np.sqrt(a))  # noqa: B023
    whole = ad.grad(lambda a: ad.fixed_point(ad.vmap(lambda x, a: (x + a / x) / 2), np.ones(3), a).sum())
    np.testing.assert_allclose(np.asarray(whole(a)), 0.5 / np.sqrt(a))


SOLVERS: dict[str, Callable[..., Any]] = {
    "fixed_point": lambda step, x0: ad.fixed_point(step, x0),
    "root": lambda step, x0: ad.root(lambda x: step(x) - x, x0),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("outer", [ad.jacrev, ad.jacfwd])
@pytest.mark.parametrize("inner", [ad.jacrev, ad.jacfwd])
def test_jacobians_of_jacobians(solver: str, outer: Any, inner: Any) -> None:
    A, b = np.array([[0.2, -0.3], [0.1, 0.3]]), rng.standard_normal((3, 2))
    c = ad.tensor(0.5, requires_grad=True)

    def implicit(b: Any) -> Any:
        return SOLVERS[solver](lambda x: ad.tanh(A @ x + b), np.zeros(2))

    def unrolled(b: Any) -> Any:
        x = ad.zeros(2)
        for _ in range(60):
            x = ad.tanh(A @ x + b)
        return x

    def matrices(f: Callable[[Any], Any]) -> list[Any]:
        (through_jacobian,) = ad.gradients((inner(lambda b: c * f(c * b))(b[0]) ** 2).sum(), [c])
        return [outer(inner(f))(b[0]), ad.vmap(outer(inner(f)))(b), through_jacobian]

    for found, expected in zip(matrices(implicit), matrices(unrolled), strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-10)


OUTSIDE: dict[str, Callable[..., Any]] = {
    "backward": lambda f, b, c: ad.gradients((ad.vmap(f)(b * c) ** 2).sum(), [c])[0],
    "captured alone": lambda f, b, c: ad.gradients(ad.vmap(lambda s: (s * f(c * b[0])).sum())(b).sum(), [c])[
        0
    ],
    "jacrev": lambda f, b, c: ad.jacrev(ad.vmap(f))(b),
    "jacfwd": lambda f, b, c: ad.jacfwd(ad.vmap(f))(b),
    "jvp": lambda f, b, c: ad.jvp(ad.vmap(f), (b,), (b,))[1],
    "hessian": lambda f, b, c: ad.hessian(lambda b: (ad.vmap(f)(b) ** 2).sum())(b),
    "jacrev of jacrev": lambda f, b, c: ad.jacrev(ad.jacrev(ad.vmap(f)))(b),
    "grad of grad of grad": lambda f, b, c: ad.grad(ad.grad(ad.grad(lambda c: ad.vmap(f)(b * c).sum())))(0.5),
    "vmap in vmap": lambda f, b, c: ad.gradients(
        ad.vmap(ad.vmap(f, in_axes=(0,)), out_axes=1)(c * np.stack([b, -b])).sum(), [c]
    )[0],
    "between two vmaps": lambda f, b, c: ad.vmap(ad.grad(lambda s: ad.vmap(lambda v: f(s * v))(b).sum()))(
        np.array([0.5, 1.0])
    ),
    "jacobian inside": lambda f, b, c: ad.gradients((ad.vmap(ad.jacrev(f))(b * c) ** 2).sum(), [c])[0],
    "gradient inside": lambda f, b, c: ad.gradients(
        ad.vmap(ad.grad(lambda v: (c * f(v * c)).sum()))(b).sum(), [c]
    )[0],
    "tangent inside": lambda f, b, c: ad.gradients(
        ad.vmap(lambda v: ad.jvp(f, (v * c,), (v * c,))[1])(b).sum(), [c]
    )[0],
    "second order inside": lambda f, b, c: ad.gradients(
        ad.vmap(ad.hessian(lambda v: (f(v * c) ** 2).sum()))(b).sum(), [c]
    )[0],
    "in a checkpoint": lambda f, b, c: ad.gradients(ad.vmap(lambda v: ad.checkpoint(f, v * c))(b).sum(), [c])[
        0
    ],
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", OUTSIDE)
def test_differentiated_from_outside_of_vmap(name: str, solver: str) -> None:
    A, b = np.array([[0.2, -0.3], [0.1, 0.3]]), rng.standard_normal((3, 2))
    implicit = lambda b: SOLVERS[solver](lambda x: ad.tanh(A @ x + b), np.zeros(2))

    def unrolled(b: Any) -> Any:
        x = ad.zeros(2)
        for _ in range(60):
            x = ad.tanh(A @ x + b)
        return x

    c = ad.tensor(0.5, requires_grad=True)
    found, expected = (OUTSIDE[name](f, b, c) for f in (implicit, unrolled))
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-10)
    assert not getattr(found, "requires_grad", False)
    assert type(c) is ad.Tensor and c.is_leaf and c.item() == 0.5


def test_a_large_batch_has_small_jacobians() -> None:
    a = ad.tensor(np.geomspace(1e-3, 1e3, 1000), requires_grad=True)  # as one equation: 1000 unknowns
    y = ad.vmap(newton)(a)
    y.sum().backward(retain_graph=True)
    np.testing.assert_allclose(a.grad, 0.5 / np.sqrt(a.numpy()))
    y.sum().backward()
    np.testing.assert_allclose(a.grad, 1 / np.sqrt(a.numpy()))


def test_singular_in_a_batch() -> None:
    a = ad.tensor(np.zeros(2), requires_grad=True)
    with pytest.raises(ConvergenceError, match="singular, so the solution has no derivative"):
        ad.vmap(lambda a: ad.fixed_point(lambda x: x + a, 1.0))(a).sum().backward()


def test_forward_mode_of_many_unknowns_needs_no_matrix() -> None:
    n = 400
    b, v = rng.standard_normal(n), rng.standard_normal(n)
    solve = lambda b: ad.fixed_point(lambda x: 0.3 * ad.sin(x) + b, np.zeros(n))
    slope = 1 / (1 - 0.3 * np.cos(np.asarray(solve(b))))
    np.testing.assert_allclose(np.asarray(ad.jvp(solve, (b,), (v,))[1]), slope * v, atol=1e-8)
    hvp = ad.jvp(lambda b: ad.jvp(solve, (b,), (v,))[1], (b,), (v,))[1]
    np.testing.assert_allclose(
        np.asarray(hvp), -(v**2) * slope**3 * 0.3 * np.sin(np.asarray(solve(b))), atol=1e-7
    )


def test_each_element_of_a_batch_converges_on_its_own() -> None:
    average = lambda a, x0: ad.fixed_point(lambda x: 0.9 * x + 0.1 * a, x0)
    a, x0 = np.array([1e-6, 1e12]), np.array([1.0, 1e12])  # beside 1e12 a change of 0.1 is small
    alone = [average(*pair).item() for pair in zip(a, x0, strict=True)]
    np.testing.assert_allclose(np.asarray(ad.vmap(average)(a, x0)), alone, rtol=1e-4)
    starts = np.array([3.0, 0.0, -0.1])  # plain Newton diverges from the first; the second is there
    np.testing.assert_allclose(np.asarray(ad.vmap(lambda x0: ad.root(ad.arctan, x0))(starts)), 0, atol=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_many_unknowns_in_a_batch(solver: str) -> None:
    n, a = 300, np.array([2.0, 3.0])
    f = lambda a: SOLVERS[solver](lambda x: (x + a / x) / 2, np.ones(n)).sum()
    value, slope = ad.vmap(ad.value_and_grad(f))(a)
    np.testing.assert_allclose(np.asarray(value), n * np.sqrt(a))
    np.testing.assert_allclose(np.asarray(slope), n * 0.5 / np.sqrt(a))


def test_the_start_has_no_gradient_and_dtypes_stay() -> None:
    x0, a = ad.tensor(np.float32(1.0), requires_grad=True), ad.tensor(np.float32(2.0), requires_grad=True)
    for solve in (
        lambda: ad.fixed_point(lambda x: (x + a / x) / 2, x0),  # noqa: B023
        lambda: ad.root(lambda x: x * x - a, x0),  # noqa: B023
    ):
        a.grad = None
        x = solve()
        assert x.dtype == np.float32
        x.backward()
        assert x0.grad is None and a.grad is not None and a.grad.dtype == np.float32
        np.testing.assert_allclose(a.grad.item(), 0.5 / np.sqrt(2), rtol=1e-5)
    assert not ad.root(lambda x: x - 1, 0.0).requires_grad
    with ad.no_grad():
        assert not newton(a).requires_grad


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_captured_constant_that_was_written_to_is_an_error(solver: str) -> None:
    a, c = ad.tensor(2.0, requires_grad=True), ad.tensor(1.0)
    x = SOLVERS[solver](lambda x: (x + c * a / x) / 2, 1.0)
    assert abs(ad.gradients(x, [a], retain_graph=True)[0].item() - 0.5 / np.sqrt(2)) < 1e-12
    c.copy_(5.0)
    with pytest.raises(ModifiedError, match=f"'{solver}' needs the values that a tensor of shape"):
        x.backward()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("in_vmap", [False, True])
def test_arrays_that_were_written_to(solver: str, in_vmap: bool) -> None:
    """Arguments keep their values.  A captured array that changes the solution is an error."""

    def solved(f: Callable[..., Any], *args: Any) -> Any:
        if solver == "root":
            call = lambda one: ad.root(lambda x, *rest: f(x, *rest) * one - x, 1.0, *args)
        else:
            call = lambda one: ad.fixed_point(lambda x, *rest: f(x, *rest) * one, 1.0, *args)
        return ad.vmap(call)(np.ones(2)).mean() if in_vmap else call(1.0)

    a, c = ad.tensor(2.0, requires_grad=True), np.array(1.0)
    y = solved(lambda x, c: (x + c * a / x) / 2, c)
    z = solved(lambda x: (x + c * a / x) / 2)
    c *= 5
    assert abs(ad.gradients(y, [a])[0].item() - 0.5 / np.sqrt(2)) < 1e-12
    with pytest.raises(TransformError, match=f"{solver}: the function returned different values"):
        z.backward()
    with pytest.raises(TransformError, match=f"{solver}: the function returned different values"):
        ad.jvp(lambda a: _written_between(solver, a), (2.0,), (1.0,))


def _written_between(solver: str, a: Any) -> Any:
    c = np.array(1.0)
    x = SOLVERS[solver](lambda x: (x + c * a / x) / 2, 1.0)
    c *= 5
    return x


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_captured_constant_that_was_added_to_is_an_error(solver: str) -> None:
    a, c = ad.tensor(2.0, requires_grad=True), ad.tensor(1.0)
    x = SOLVERS[solver](lambda x: (x + c * a / x) / 2, 1.0)
    c += 4.0
    with pytest.raises(ModifiedError, match=f"'{solver}' needs the values that a tensor of shape"):
        x.backward()


def test_what_a_tape_watched_is_seen_after_its_block() -> None:
    x, w = ad.tensor(2.0), ad.tensor(4.0)
    with ad.Tape() as tape:
        tape.watch(x, w)
        y = ad.root(lambda u: u**3 - x * w, 1.0)
    grads = tape.gradients(y)  # the cube root of 8
    np.testing.assert_allclose([grads[x].item(), grads[w].item()], [4 / 12, 2 / 12])


def test_newton_shortens_steps_and_starts_at_the_solution() -> None:
    assert abs(ad.root(lambda x: ad.arctan(x), 3.0).item()) < 1e-12  # plain Newton diverges from there
    assert ad.root(lambda x: x - 2, 2.0).item() == 2.0
    assert ad.fixed_point(lambda x: x, np.zeros(0)).shape == (0,)
    slow = ad.fixed_point(lambda x: -0.99 * x + 1, 0.0, damping=0.5)
    np.testing.assert_allclose(slow.item(), 1 / 1.99)


def singular() -> Any:
    a = ad.tensor(0.0, requires_grad=True)
    return ad.fixed_point(lambda x: x + a, 1.0).backward()


MISTAKES: dict[str, tuple[type[Exception], Callable[[], Any], str]] = {
    "does not converge": (
        ConvergenceError,
        lambda: ad.fixed_point(lambda x: -x + 1, 0.0, max_steps=7),
        r"<lambda> did not converge in 7 steps: the last step changed x by 1\.",
    ),
    "no root": (
        ConvergenceError,
        lambda: ad.root(lambda x: x * x + 1, 3.0),
        "did not converge in 50 steps: the largest residual is|is singular on the way",
    ),
    "diverges": (
        ConvergenceError,
        lambda: ad.fixed_point(lambda x: x * 1e200, 1.0),
        r"gave inf after \d steps",
    ),
    "a flat start": (
        ConvergenceError,
        lambda: ad.root(lambda x: x * x - 1, 0.0),
        "the Jacobian of <lambda> is singular at a step where the largest residual is 1",
    ),
    "no derivative": (ConvergenceError, singular, "singular, so the solution has no derivative"),
    "shape": (
        ShapeError,
        lambda: ad.root(lambda x: x[:1], np.ones(2)),
        r"root: the result of <lambda> has shape \(1,\), but x has \(2,\) there",
    ),
    "structure": (
        TransformError,
        lambda: ad.fixed_point(lambda p: {"a": p["a"]}, {"a": 1.0, "b": 2.0}),
        r"fixed_point: the result of <lambda> is missing \['b'\]",
    ),
    "not a tensor": (TransformError, lambda: ad.root(lambda x: 3.0, 1.0), "is a float, not a tensor"),
    "complex": (DTypeError, lambda: ad.root(lambda x: x, 1j), "root: x0 is complex128"),
    "integers": (DTypeError, lambda: ad.root(lambda x: x, 1), "root: x0 is int64"),
    "nothing": (TransformError, lambda: ad.root(lambda x: x, None), "x0 contains no tensors"),
    "not a function": (InputError, lambda: ad.root(3, 1.0), "root: expected a function"),  # type: ignore[arg-type]
    "tol": (ArgumentError, lambda: ad.root(lambda x: x, 1.0, tol=0.0), "root: tol must be positive"),
    "max_steps": (ArgumentError, lambda: ad.root(lambda x: x, 1.0, max_steps=0), "max_steps"),
    "damping": (ArgumentError, lambda: ad.fixed_point(lambda x: x, 1.0, damping=2.0), "damping"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    error, mistake, match = MISTAKES[name]
    with pytest.raises(error, match=match), np.errstate(all="ignore"):
        mistake()


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("transform", ["value", "grad", "jvp", "second"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_start_that_is_the_solution_inside_vmap(size: int, transform: str, nested: bool) -> None:
    """No step is made, so nothing but the equation is batched; the same in an empty batch."""

    def f(a: Any) -> Any:
        solved = lambda k: ad.root(lambda y: y - (a * a * k).sum(), 0.0)
        return ad.vmap(solved)(np.array([1.0, 2.0])).sum() / 3.0 if nested else solved(1.0)

    ones = np.ones(2)
    of = {
        "value": f,
        "grad": lambda a: ad.grad(f)(a).sum(),
        "jvp": lambda a: ad.jvp(f, (a,), (ones,))[1],
        "second": lambda a: ad.grad(lambda b: ad.grad(f)(b).sum())(a).sum(),
    }
    for start, expected in (
        (np.zeros((size, 2)), {"value": 0.0, "grad": 0.0, "jvp": 0.0, "second": 4.0}),
        (np.ones((size, 2)), {"value": 2.0, "grad": 4.0, "jvp": 4.0, "second": 4.0}),
    ):
        found = ad.vmap(of[transform])(start)
        np.testing.assert_allclose(found, np.full(size, expected[transform]), atol=1e-12)
