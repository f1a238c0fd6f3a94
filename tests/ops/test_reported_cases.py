"""Defects as they were reported, where no table of the other tests has the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import special

pytest.importorskip("scipy")
F = ad.nn.functional
HALF = [np.float16, "bfloat16"]


def _half(name: Any) -> Any:
    return (
        np.dtype(getattr(pytest.importorskip("ml_dtypes"), name)) if isinstance(name, str) else np.dtype(name)
    )


@pytest.mark.parametrize("name", ["xlogy", "xlog1py", "beta", "betaln"])
@pytest.mark.parametrize("first", [False, True])
def test_python_numbers_are_weak_in_vmap(name: str, first: bool) -> None:
    f = getattr(special, name)
    x = np.array([0.5, 2.0], np.float32)
    found = ad.vmap(lambda v: f(2.0, v) if first else f(v, 2.0))(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.asarray(f(2.0, x) if first else f(x, 2.0)), rtol=1e-6)


def test_vmap_of_the_gradient_of_layer_norm() -> None:
    x = np.arange(8.0).reshape(2, 4) ** 2
    slopes = ad.grad(lambda v: (F.layer_norm(v, (4,)) ** 3).sum())
    np.testing.assert_allclose(ad.vmap(slopes)(x), np.stack([slopes(row) for row in x]), rtol=1e-12)


def test_norms_of_negative_order_at_zero() -> None:
    assert ad.linalg.vector_norm(np.array([0.0, 5.0]), ord=-1).item() == 0.0


def test_complex_tan_far_from_the_real_axis() -> None:
    z = ad.tensor(0.3 + 400j, requires_grad=True)
    y = ad.tan(z)
    ad.real(y).backward()
    assert y.item() == 1j
    assert z.grad is not None and abs(z.grad.item()) < 1e-300


def test_logsumexp_over_nothing_keeps_its_history() -> None:
    x = ad.tensor(np.zeros((2, 0)), requires_grad=True)
    y = ad.logsumexp(x, axis=1)
    assert y.requires_grad and y.tolist() == [-np.inf, -np.inf]
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == (2, 0)


@pytest.mark.parametrize("shapes", [((2, 3, 0), (0, 2)), ((2, 3, 4), (4, 0)), ((0, 3), (3, 2))])
def test_products_of_empty_matrices_to_second_order(shapes: Any) -> None:
    a, b = (ad.ones(s).requires_grad_() for s in shapes)
    first = ad.gradients(((a @ b) ** 2).sum(), [a, b], create_graph=True)
    for g, t, h in zip(first, (a, b), ad.gradients(sum((g * g).sum() for g in first), [a, b]), strict=True):
        assert g.shape == h.shape == t.shape


@pytest.mark.parametrize("dtype", HALF)
def test_running_sums_and_products_are_computed_in_float32(dtype: Any) -> None:
    x = ad.tensor(np.full(10_000, 0.1).astype(_half(dtype)))
    total = float(x.astype(np.float32).sum().item())
    last = ad.cumulative_sum(x)[-1]
    assert last.dtype == _half(dtype) and abs(float(last.item()) - total) <= 0.01 * total
    y = ad.tensor(np.full(1000, 1.001).astype(np.float32).astype(_half(dtype)))
    expected = float(np.prod(y.numpy().astype(np.float32)))
    assert abs(float(ad.cumulative_prod(y)[-1].item()) - expected) <= 0.01 * expected


def test_float32_stays_float32() -> None:
    x = ad.tensor(np.array([3.0, 4.0, 7.0], np.float32), requires_grad=True)
    assert special.multigammaln(x, 2).dtype == np.float32
    assert np.gradient(x).dtype == np.float32
    assert special.j0(x.astype(np.float16)).dtype == np.float16


def test_differences_of_order_zero_with_a_prefix() -> None:
    a = np.array([1.0, 3.0])
    np.testing.assert_array_equal(
        ad.diff(ad.tensor(a), n=0, prepend=0.0).numpy(), np.diff(a, n=0, prepend=0.0)
    )


@pytest.mark.parametrize("make", [lambda x: F.conv2d(x, np.ones((2, 3, 2, 2))), lambda x: F.max_pool2d(x, 2)])
@pytest.mark.parametrize("shape", [(0, 1, 3, 4, 4), (2, 0, 3, 4, 4)])
def test_vmap_of_convolutions_over_an_empty_batch(make: Any, shape: Any) -> None:
    x = np.ones(shape)
    assert ad.vmap(make)(x).shape[:2] == shape[:2]
    assert ad.vmap(ad.grad(lambda v: make(v).sum()))(x).shape == shape
