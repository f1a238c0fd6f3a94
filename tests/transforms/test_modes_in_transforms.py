"""Grad modes around derivatives: what is computed under ``no_grad`` is a constant, inside ``vmap`` too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.nn import functional as F  # noqa: N812

V = np.ones(3)


class Product(ad.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return (x * w * w).sum()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, w = ctx.saved_tensors
        return g * w * w * V, (2.0 * g * x * w).sum()


def by_custom_vjp() -> Callable[..., Any]:
    f = ad.custom_vjp(lambda x, w: (x * w * w).sum())
    f.defvjp(
        lambda x, w: ((x * w * w).sum(), (x, w)),
        lambda saved, g: (g * saved[1] ** 2 * V, (2.0 * g * saved[0] * saved[1]).sum()),
    )
    return f


def by_custom_jvp() -> Callable[..., Any]:
    f = ad.custom_jvp(lambda x, w: (x * w * w).sum())
    f.defjvp(
        lambda p, t: (
            (p[0] * p[1] ** 2).sum(),
            (t[0] * p[1] ** 2).sum() + 2.0 * (p[0] * p[1]).sum() * t[1],
        )
    )
    return f


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ops": lambda x, w: (x * w * w).sum(),
    "Function": Product.apply,
    "custom_vjp": by_custom_vjp(),
    "custom_jvp": by_custom_jvp(),
    "checkpoint": lambda x, w: ad.checkpoint(lambda a, b: (a * b * b).sum(), x, w),
    "root": lambda x, w: ad.root(lambda y: y - (x * w * w).sum(), 0.0),
    "fixed_point": lambda x, w: ad.fixed_point(lambda y: 0.5 * y + (x * w * w).sum(), 0.0),
    "gelu": lambda x, w: F.gelu(x * w, approximate="tanh").sum(),
    "layer_norm": lambda x, w: (F.layer_norm(x * w, (3,)) * x).sum(),
}
DERIVATIVES: dict[str, Callable[..., Any]] = {
    "value": lambda f, x, w: f(x, w),
    "grad": lambda f, x, w: ad.grad(f)(x, w) @ V,
    "vjp": lambda f, x, w: ad.vjp(lambda y: f(y, w), x)[1](1.0)[0] @ V,
    "jvp": lambda f, x, w: ad.jvp(lambda y: f(y, w), (x,), (V,))[1],
    "linearize": lambda f, x, w: ad.linearize(lambda y: f(y, w), x)[1](V),
    "jacfwd": lambda f, x, w: ad.jacfwd(lambda y: f(y, w))(x) @ V,
    "second": lambda f, x, w: ad.jvp(ad.grad(lambda y: f(y, w) ** 2), (x,), (V,))[1] @ V,
}


@pytest.mark.parametrize("mode", [ad.no_grad, ad.inference_mode])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_derivative_under_no_grad_is_a_constant(
    name: str, derivative: str, batched: bool, mode: Any
) -> None:
    """Forward mode of a custom vjp inside ``vmap`` kept the history of outer tensors."""
    x, w = ad.tensor([0.3, 0.4, 0.5], requires_grad=True), ad.tensor(0.7, requires_grad=True)

    def run(y: Any) -> Any:
        with mode():
            found = DERIVATIVES[derivative](FUNCTIONS[name], y, w)
        return found * w

    y = ad.asarray(ad.vmap(lambda s: run(x * s))(np.array([1.0, 0.5]))[0] if batched else run(x))
    y.backward()
    assert w.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), (y / w).item(), rtol=1e-12)
    assert x.grad is None or not x.grad.numpy().any()
