"""Solvers of SciPy that get sparse derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

import adjoint as ad

X = np.full(30, 0.8)


def residual(x: Any) -> Any:
    return ad.concat([x[1:] - 0.5 * ad.sin(x[:-1]), 1 - x[:1]])


def rosenbrock(x: Any) -> Any:
    return ((1 - x[:-1]) ** 2 + 10 * (x[1:] - x[:-1] ** 2) ** 2).sum()


def test_least_squares() -> None:
    found = ad.interop.scipy.least_squares(residual, X, sparse=True)
    assert scipy.sparse.issparse(found.jac)
    np.testing.assert_allclose(found.x_flat, ad.interop.scipy.least_squares(residual, X).x_flat, atol=1e-7)
    scale = ad.tensor(2.0, requires_grad=True)
    shifted = lambda x: residual(x) - scale
    solution = ad.scipy.optimize.least_squares(shifted, X, sparse=True).x
    solution.sum().backward()
    dense = ad.grad(lambda s: ad.scipy.optimize.least_squares(lambda x: residual(x) - s, X).x.sum())(2.0)
    np.testing.assert_allclose(scale.grad.item(), dense, rtol=1e-6)
    compiled = ad.compile(lambda x: ad.scipy.optimize.least_squares(residual, x, sparse=True).x)
    np.testing.assert_allclose(compiled(X), found.x_flat, atol=1e-7)


METHODS = ["trust-constr", "Newton-CG", "trust-ncg", "trust-krylov"]


@pytest.mark.parametrize("method", METHODS)
def test_minimize(method: str) -> None:
    found = ad.interop.scipy.minimize(rosenbrock, X * 0, method=method, sparse=True)
    assert found.success
    np.testing.assert_allclose(found.x_flat, 1, atol=1e-4)


def test_minimize_with_constraints_gets_sparse_jacobians_and_exact_hessians() -> None:
    constraints = [
        {"type": "eq", "fun": lambda x, c: x[1:] * x[:-1] - c, "args": (0.5,)},
        {"type": "ineq", "fun": lambda x: x[:3] - 0.1},
    ]
    options = {"method": "trust-constr", "constraints": constraints}
    found = ad.interop.scipy.minimize(rosenbrock, X, sparse=True, **options)
    assert found.success and all(map(scipy.sparse.issparse, found.jac))
    plain = ad.interop.scipy.minimize(rosenbrock, X, method="SLSQP", constraints=constraints)
    np.testing.assert_allclose(found.fun, plain.fun, rtol=1e-6)


TRANSFORMS: dict[str, Any] = {
    "grad": ad.value_and_grad, "grad of grad": lambda f: ad.grad(ad.grad(f)), "jvp": ad.jacfwd,
    "compile": lambda f: ad.compile(ad.value_and_grad(f)),
    "vmap": lambda f: lambda a: ad.vmap(ad.value_and_grad(f))(np.array([a, a + 0.1])),
    "outside vmap": lambda f: ad.grad(lambda a: ad.vmap(lambda b: f(a * b))(np.array([1.0, 1.1])).sum()),
}  # fmt: skip
TIGHT = {"gtol": 1e-12, "xtol": 1e-14}
SOLUTIONS: dict[str, Any] = {
    "ad.root": lambda f, s: ad.root(f, X[:9], sparse=s),
    "ad.fixed_point": lambda f, s: ad.fixed_point(lambda x: x - 0.5 * f(x), X[:9], sparse=s),
    "root": lambda f, s: ad.scipy.optimize.root(f, X[:9], sparse=s).x,
    "least_squares": lambda f, s: ad.scipy.optimize.least_squares(f, X[:9], sparse=s, **TIGHT).x,
    "trust-krylov": lambda f, s: ad.scipy.optimize.minimize(
        lambda x: (f(x) ** 2).sum(), X[:9], method="trust-krylov", sparse=s, tol=1e-8
    ).x,
    "L-BFGS-B": lambda f, s: ad.scipy.optimize.minimize(
        lambda x: (f(x) ** 2).sum(), X[:9], sparse=s, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9}
    ).x,
}  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("solver", SOLUTIONS)
def test_derivatives_of_solutions_by_sparse_solves(solver: str, transform: str) -> None:
    def loss(a: Any, sparse: bool) -> Any:
        x = SOLUTIONS[solver](lambda x: ad.concat([x[:1] - 1, x[1:] - a * ad.sin(x[:-1])]), sparse)
        return (x * np.arange(9.0)).sum()

    dense = TRANSFORMS[transform](lambda a: loss(a, False))(0.4)
    found = TRANSFORMS[transform](lambda a: loss(a, True))(0.4)
    for d, s in zip(ad.tree.leaves(dense), ad.tree.leaves(found), strict=True):
        np.testing.assert_allclose(s, d, rtol=1e-4)


def test_root_with_many_unknowns() -> None:
    """A banded equation that GMRES does not solve without a preconditioner."""
    load = ad.tensor(1.0, requires_grad=True)

    def bend(u: Any) -> Any:
        for _ in range(2):
            wide = ad.pad(u, 1)
            u = 1e3 * (2 * u - wide[2:] - wide[:-2])
        return u

    equation = lambda u: bend(u) + u**3 - load
    with pytest.raises(
        ad.errors.ConvergenceError, match="If most of its elements are zeros, use sparse=True"
    ):
        ad.root(equation, np.zeros(400))
    u = ad.root(equation, np.zeros(400), sparse=True)
    u.sum().backward()
    with ad.no_grad():
        matrix = ad.jacobian(equation, sparse=True)(u.numpy(copy=True)).tocsc()
    expected = scipy.sparse.linalg.spsolve(matrix, np.ones(400)).sum()
    np.testing.assert_allclose(load.grad.item(), expected, rtol=1e-6)


@pytest.mark.parametrize("x", [np.float64(2.0), np.zeros(0), np.full((2, 2), 3.0, np.float32)])
def test_roots_of_any_shape(x: Any) -> None:
    solve = lambda a, sparse: ad.root(lambda p: {"x": p["x"] ** 2 - a}, {"x": x}, sparse=sparse)["x"]
    found = solve(ad.tensor(4.0), True)
    assert found.dtype == x.dtype and found.shape == x.shape
    np.testing.assert_allclose(found.numpy(), 2.0, rtol=1e-6)
    np.testing.assert_allclose(ad.jacfwd(lambda a: solve(a, True))(4.0), np.full(x.shape, 0.25), rtol=1e-6)


def test_wrong_arguments() -> None:
    with pytest.raises(ad.errors.ArgumentError, match="root: sparse must be True or False, not 'rows'"):
        ad.root(residual, X, sparse="rows")  # type: ignore[arg-type]
    with pytest.raises(ad.errors.ConvergenceError, match="the Jacobian of <lambda> is singular at a step"):
        ad.root(lambda x: x[::-1] * 0 + x.sum(), X[:3], sparse=True)
    with pytest.warns(
        UserWarning, match="the sparse Jacobian of <lambda>, of shape .300, 300., needs 300 products"
    ):
        ad.root(lambda x: x - x.mean() / 2 - 1, np.ones(300), sparse=True)
    message = r"the method 'BFGS' does not use a sparse Hessian.\n  Use one of 'newton-cg', 'trust-ncg'"
    with pytest.raises(ad.errors.ArgumentError, match=message):
        ad.interop.scipy.minimize(rosenbrock, X, method="BFGS", sparse=True)
    message = r"root: the method 'lm' does not use a sparse Jacobian.\n  Use 'krylov' with sparse=True"
    with pytest.raises(ad.errors.ArgumentError, match=message):
        ad.scipy.optimize.root(residual, X, method="lm", sparse=True)

    for name, value, use in [("method", "lm", "'trf' or 'dogbox'"), ("tr_solver", "exact", "'lsmr'")]:
        message = (
            f"least_squares: {name}='{value}' does not use a sparse Jacobian.\n  Use {use} with sparse=T"
        )
        with pytest.raises(ad.errors.ArgumentError, match=message):
            ad.scipy.optimize.least_squares(residual, X, sparse=True, **{name: value})


@pytest.mark.parametrize("options", [{"sparse": True}, {}, {"method": "krylov"}, {"method": "lm"}])
@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("compiled", [False, True])
def test_roots_of_systems_that_are_not_square(options: Any, count: int, compiled: bool) -> None:
    def equations(x: Any) -> Any:
        return ad.concat([x, x])[:count] ** 2 - 1

    find = lambda x: ad.scipy.optimize.root(equations, x, **options).x
    find = ad.compile(find) if compiled else find
    if count == 5 and "lm" in options.values():
        np.testing.assert_allclose(np.asarray(find(np.full(4, 0.5))), 1, rtol=1e-7)
        return
    message = "root: .* must return as many numbers as x0 has, 4, but returned .*\n  Use least_squares"
    with pytest.raises(ad.errors.ShapeError, match=message):
        find(np.full(4, 0.5))


def test_root_where_the_jacobian_is_singular_at_first() -> None:
    found = ad.scipy.optimize.root(lambda x: x**2 - 1 + x, np.full(3, -0.5), sparse=True)
    assert found.success
    np.testing.assert_allclose(found.x**2 + found.x, 1, rtol=1e-9)


@pytest.mark.parametrize("method", ["Radau", "BDF"])
def test_solve_ivp(method: str) -> None:
    f = lambda t, y: -y * (1 + t) + 0.1 * ad.concat([y[1:], y[:1]]) ** 2
    found = ad.scipy.integrate.solve_ivp(f, (0, 1), X, method=method, jac_sparsity=True)
    plain = ad.scipy.integrate.solve_ivp(f, (0, 1), X, method=method)
    np.testing.assert_allclose(np.asarray(found.y), np.asarray(plain.y), rtol=1e-8)


def test_gradients_flow_through_solve_ivp() -> None:
    rate = ad.tensor(1.5, requires_grad=True)
    f = lambda t, y: -rate * y
    found = ad.scipy.integrate.solve_ivp(f, (0, 1), np.ones(4), method="Radau", jac_sparsity=True, rtol=1e-8)
    found.y[:, -1].sum().backward()
    np.testing.assert_allclose(rate.grad.item(), -4 * np.exp(-1.5), rtol=1e-6)


def test_newton_by_sparse_solves_has_derivatives() -> None:
    """One step of Newton's method with tensors: the solve is differentiable in what the residual uses."""
    jacobian = ad.jacobian(residual, sparse=True)

    def step(x: Any) -> Any:
        return x - ad.scipy.sparse.linalg.spsolve(jacobian(x), residual(x))

    dense = lambda x: x - ad.linalg.solve(ad.jacobian(residual)(x), residual(x))
    np.testing.assert_allclose(ad.jacobian(step)(X), ad.jacobian(dense)(X), atol=1e-12)
