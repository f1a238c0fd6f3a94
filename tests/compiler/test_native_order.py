"""Sorting in native code: random arrays beside NumPy, with ties, NaN, both orders and all axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad

pytest.importorskip("llvmlite")

DTYPES = ("f4", "f8", "i4", "i8", "u1", "?", "f2")


def drawn(seed: int) -> tuple[Any, int]:
    """Random numbers, many of them equal or NaN, and an axis."""
    r = np.random.default_rng(seed)
    shape = tuple(r.integers(1, (300, 70, 4)[: 1 + seed % 3]))
    dtype = np.dtype(DTYPES[seed % len(DTYPES)])
    x: Any = r.integers(0, 9, shape) if r.random() < 0.5 else r.normal(size=shape) * 50
    x = np.abs(x).astype(dtype) if dtype.kind == "u" else x.astype(dtype)
    if dtype.kind == "f" and r.random() < 0.5:
        x.reshape(-1)[r.integers(0, x.size, 1 + x.size // 5)] = np.nan
    return x, int(r.integers(-x.ndim, x.ndim))


@pytest.mark.parametrize("seed", range(21))
def test_sorted_rows(seed: int) -> None:
    x, axis = drawn(seed)
    value, n = ad.tensor(x), x.shape[axis]
    counts = {1, 1 + n // 8, max(1, n // 2)}  # small ones are found by np.argpartition

    def f(x: Any) -> Any:
        found = [
            (ad.sort(x, axis=axis, descending=d), ad.argsort(x, axis=axis, descending=d))
            for d in (False, True)
        ]
        return [*found, *(ad.topk(x, k, axis=axis, largest=d) for k in counts for d in (False, True))]

    compiled = ad.compile(f, backend="native")
    for a, b in zip(ad.tree.leaves(compiled(value)), ad.tree.leaves(f(value)), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        assert a.dtype == b.dtype
    assert "0 calls of NumPy" in compiled.explain(value)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 16, 17, 500, 5000])
def test_searches_and_gradients_of_sorted_values(n: int) -> None:
    r = np.random.default_rng(n)
    x, v = ad.tensor(r.normal(size=n)), r.normal(size=9)
    v[0] = np.nan
    places = lambda x, v: [ad.searchsorted(ad.sort(x), v, side=side) for side in ("left", "right")]
    found = ad.compile(places, backend="native")(x, ad.tensor(v))
    for a, b in zip(found, places(x, ad.tensor(v)), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    loss = lambda x: (ad.sort(x) * ad.arange(n)).sum() + ad.median(x)
    compiled = ad.compile(ad.grad(loss), backend="native")
    np.testing.assert_allclose(compiled(x).numpy(), ad.grad(loss)(x).numpy(), rtol=1e-12)
    assert "0 calls of NumPy" in compiled.explain(x)
