"""Fitting a model to its end: logistic regression by L-BFGS, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjoint as ad
from benchmarks.engines import Mlx, Tinygrad, captured, compiled_by_torch
from benchmarks.harness import Case, Step, jax_x64

ROWS, FEATURES, PENALTY, STEPS = 2_000, 50, 1e-3, 20


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, FEATURES))
    y = (x @ rng.standard_normal(FEATURES) + 0.5 * rng.standard_normal(ROWS) > 0).astype(float)
    return x, y


def adjoint_fit(backend: str = "") -> Step:
    x, y = map(ad.tensor, data())
    entropy = ad.nn.functional.binary_cross_entropy_with_logits

    def penalized(w: Any) -> Any:
        return entropy(x @ w, y) + PENALTY * (w**2).sum()

    if backend:
        penalized = ad.compile(penalized, backend=backend)

    def fit() -> Any:
        w = ad.zeros(FEATURES, requires_grad=True)
        optimizer = ad.optim.LBFGS([w], max_iter=STEPS)

        def closure() -> Any:
            loss = penalized(w)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return fit


def torch_fit(compiled: bool = False) -> Step:
    import torch

    x, y = map(torch.tensor, data())
    entropy = torch.nn.functional.binary_cross_entropy_with_logits

    def penalized(w: Any) -> Any:
        return entropy(x @ w, y) + PENALTY * (w**2).sum()

    if compiled:
        penalized = compiled_by_torch(penalized)

    def fit() -> Any:
        w = torch.zeros(FEATURES, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([w], max_iter=STEPS, line_search_fn="strong_wolfe")

        loss = None

        def closure() -> Any:
            nonlocal loss
            optimizer.zero_grad()
            loss = penalized(w)
            loss.backward()
            return loss

        optimizer.step(closure)  # returns the first loss
        return loss.item()

    return fit


def scipy_fit(value_and_gradient: Any) -> Step:
    """SciPy's L-BFGS with a gradient from elsewhere: what users of JAX and autograd do."""
    from scipy.optimize import minimize

    def fit() -> Any:
        options = {"maxiter": STEPS, "maxcor": 10, "ftol": 0.0, "gtol": 1e-7}  # stop where the others do
        return minimize(
            value_and_gradient, np.zeros(FEATURES), jac=True, method="L-BFGS-B", options=options
        ).fun

    return fit


def jax_fit(compiled: bool = True) -> Step:
    jax = jax_x64()
    jnp = jax.numpy
    x, y = map(jnp.asarray, data())

    def loss(w: Any, x: Any, y: Any) -> Any:
        z = x @ w
        return jnp.mean(jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z)))) + PENALTY * jnp.sum(w**2)

    both = jax.jit(jax.value_and_grad(loss)) if compiled else jax.value_and_grad(loss)
    return scipy_fit(lambda w: tuple(map(np.asarray, both(w, x, y))))


def mlx_fit() -> Step:
    kit = Mlx()
    mx = kit.xp
    x, y = map(kit.array, data())

    def loss(w: Any) -> Any:
        z = x @ w
        return mx.mean(mx.logaddexp(mx.zeros_like(z), z) - z * y) + PENALTY * mx.sum(w**2)

    both = mx.value_and_grad(loss)

    def value_and_gradient(w: Any) -> Any:
        value, gradient = both(kit.array(w))
        mx.eval(value, gradient)
        return value.item(), np.array(gradient)

    return scipy_fit(value_and_gradient)


def tinygrad_fit() -> Step:
    kit = Tinygrad()
    x, y = map(kit.array, data())

    def both(w: Any) -> Any:
        z = x @ w
        loss = (z.maximum(0) - z * y + (1 + (-z.abs()).exp()).log()).mean() + PENALTY * (w**2).sum()
        return [loss, *loss.gradient(w)]

    run = captured(both)

    def value_and_gradient(w: Any) -> Any:
        value, gradient = run(kit.array(w))
        return value.item(), gradient.numpy()

    return scipy_fit(value_and_gradient)


def autograd_fit() -> Step:
    import autograd
    import autograd.numpy as anp

    x, y = data()

    def loss(w: Any) -> Any:
        z = anp.dot(x, w)
        return anp.mean(anp.logaddexp(0, z) - z * y) + PENALTY * anp.sum(w**2)

    return scipy_fit(autograd.value_and_grad(loss))


CASES = [
    Case(
        f"logistic regression, {ROWS:,}×{FEATURES}, {STEPS} steps of L-BFGS",
        {
            "adjoint": adjoint_fit,
            "adjoint-compile": lambda: adjoint_fit("auto"),
            "adjoint-replay": lambda: adjoint_fit("replay"),
            "torch": torch_fit,
            "torch-compile": lambda: torch_fit(compiled=True),
            "jax": lambda: jax_fit(compiled=False),
            "jax-jit": jax_fit,
            "autograd": autograd_fit,
            "mlx": mlx_fit,
            "tinygrad": tinygrad_fit,
        },
        blas=True,
        tolerance=1e-3,  # they stop at slightly different points of a flat valley
    )
]
