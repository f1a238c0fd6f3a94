"""Solvers of SciPy that get sparse derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

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


def test_minimize() -> None:
    found = ad.interop.scipy.minimize(rosenbrock, X * 0, method="trust-constr", sparse=True)
    assert found.success
    np.testing.assert_allclose(found.x_flat, 1, atol=1e-6)


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
