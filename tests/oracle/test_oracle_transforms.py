"""The transforms against torch.func, on nets and on complex numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import adjoint as ad  # noqa: E402  after importorskip

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),  # its own
]

RANDOM = np.random.default_rng(0)
SIZES = ((5, 7), (7, 4), (4, 3))
WEIGHTS = [(RANDOM.standard_normal(s), RANDOM.standard_normal(s[1])) for s in SIZES]
X, Y = RANDOM.standard_normal((6, 5)), RANDOM.standard_normal((6, 3))


def net(params: Any, x: Any, tanh: Any) -> Any:
    for w, b in params[:-1]:
        x = tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def ours(p: Any, x: Any, y: Any) -> Any:
    return ((net(p, x, ad.tanh) - y) ** 2).mean()


def theirs(p: Any, x: Any, y: Any) -> Any:
    return ((net(p, x, torch.tanh) - y) ** 2).mean()


TORCH = [(torch.tensor(w), torch.tensor(b)) for w, b in WEIGHTS]
TX, TY = torch.tensor(X), torch.tensor(Y)


def agree(found: Any, expected: Any) -> None:
    flat = [t for pair in expected for t in pair] if isinstance(expected, (list, tuple)) else [expected]
    for a, b in zip(ad.tree.leaves(found), flat, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-12)


def test_gradients_of_a_net() -> None:
    agree(ad.grad(ours)(WEIGHTS, X, Y), torch.func.grad(theirs)(TORCH, TX, TY))


def test_per_sample_gradients() -> None:
    found = ad.vmap(ad.grad(ours), in_axes=(None, 0, 0))(WEIGHTS, X, Y)
    agree(found, torch.func.vmap(torch.func.grad(theirs), in_dims=(None, 0, 0))(TORCH, TX, TY))


def test_jacobians_of_a_net() -> None:
    expected = torch.func.jacrev(lambda x: net(TORCH, x, torch.tanh))(TX[0])
    for jac in (ad.jacobian, ad.jacrev, ad.jacfwd):
        agree(jac(lambda x: net(WEIGHTS, x, ad.tanh))(X[0]), expected)


def test_hessian_product_of_a_net() -> None:
    directions = ad.tree.map(lambda w: np.cos(w), WEIGHTS)
    moved = [(torch.cos(w), torch.cos(b)) for w, b in TORCH]
    expected = torch.func.jvp(lambda p: torch.func.grad(theirs)(p, TX, TY), (TORCH,), (moved,))[1]
    agree(ad.hvp(lambda p: ours(p, X, Y), WEIGHTS, directions), expected)


def test_vmap_of_hessian() -> None:
    f = lambda x, tanh, exp: (tanh(x) ** 3).sum() * exp(-(x**2).sum())
    found = ad.vmap(ad.hessian(lambda x: f(x, ad.tanh, ad.exp)))(X)
    expected = torch.func.vmap(torch.func.hessian(lambda x: f(x, torch.tanh, torch.exp)))(TX)
    agree(found, expected)


@pytest.mark.parametrize("name", ["exp", "abs", "conj", "real", "angle", "sqrt"])
def test_tangents_and_cotangents_of_complex_functions(name: str) -> None:
    z = RANDOM.standard_normal(4) + 1j * RANDOM.standard_normal(4)
    t = RANDOM.standard_normal(4) + 1j * RANDOM.standard_normal(4)
    mine, other = getattr(ad, name), lambda z: torch.real(z) if name == "real" else getattr(torch, name)(z)
    _, moved = ad.jvp(mine, (z,), (t,))
    _, expected = torch.func.jvp(lambda z: other(z).clone(), (torch.tensor(z),), (torch.tensor(t),))
    np.testing.assert_allclose(np.asarray(moved), np.asarray(expected.resolve_conj()), rtol=1e-10)
    out, pull = ad.vjp(mine, z)
    seed = np.cos(np.arange(4.0)).astype(out.dtype) * (1 + (2j if out.dtype.kind == "c" else 0))
    _, back = torch.func.vjp(other, torch.tensor(z))
    np.testing.assert_allclose(
        np.asarray(pull(seed)[0]), np.asarray(back(torch.tensor(seed))[0].resolve_conj()), rtol=1e-10
    )
