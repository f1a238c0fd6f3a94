"""Half precision in kernels: conversions of all numbers, on all levels, and what is fused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_programs import HALVES

import adjoint as ad
from adjoint import nn
from adjoint.compiler.emit import machine

pytest.importorskip("llvmlite")

ALL = np.arange(1 << 16, dtype=np.uint16)  # the bits of all numbers
LENGTHS = (1 << 16, 1001, 7, 1)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def native(f: Any) -> Any:
    compiled = ad.compile(f, backend="native")
    return lambda *xs: compiled(*map(ad.tensor, xs)).numpy()


def same(a: Any, b: Any) -> bool:
    """Whether two arrays have the same dtype and bits; NaNs may have any bits."""
    bits = np.dtype(f"u{a.itemsize}")
    with np.errstate(all="ignore"):
        nan = np.isnan(a.astype(float)) & np.isnan(b.astype(float))
    return a.dtype == b.dtype and bool(((a.view(bits) == b.view(bits)) | nan).all())


def between(dtype: Any) -> Any:
    """Return numbers of float64 half way between neighbours of half precision, and the numbers next to these."""
    x = np.sort(ALL[: 1 << 15].view(dtype).astype(float))
    x = x[np.isfinite(x)]
    middle = (x[1:] + x[:-1]) / 2
    with np.errstate(all="ignore"):
        edges = [np.inf, np.nan, 1e300, 65519.9999999, 65520.0, 3.3961e38, 5e-324, 0.0]
    found = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), edges])
    return np.concatenate([found, -found])


@pytest.mark.parametrize("level", machine.levels())
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_conversions_round_to_nearest(dtype: Any, level: str) -> None:
    with machine.using(level), np.errstate(all="ignore"):
        widen, narrow = native(lambda x: x.astype(np.float32)), native(lambda x: x.astype(dtype))
        for n in LENGTHS:
            x = ALL[-n:].view(dtype)
            assert same(widen(x), x.astype(np.float32))
        y = between(dtype)
        for given in (y, y.astype(np.float32), np.arange(-70_000, 70_000), np.array([True, False])):
            assert same(narrow(given), given.astype(dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_moves_need_no_arithmetic(dtype: Any) -> None:
    x = ALL.view(dtype).reshape(256, 256)

    def moved(x: Any) -> Any:
        return ad.concat(
            [x.T[::-1, 3:9], x[:, :6].at[2:4].set(1.5), ad.where(x[:, :4] == x[:, :4], x[:, :4], x[:, 4:8])],
            1,
        )

    compiled = ad.compile(moved, backend="native")
    assert same(compiled(ad.tensor(x)).numpy(), moved(ad.tensor(x)).numpy())
    assert "0 calls of NumPy" in str(compiled.explain())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_each_op_rounds_its_result(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=5000).astype(dtype) for _ in range(2))

    def chain(x: Any, y: Any) -> Any:
        return ((x * 0.3 + y) * x - 1.1 / (2 + y * y)) * 0.7

    compiled = native(chain)
    assert same(compiled(x, y), chain(ad.tensor(x), ad.tensor(y)).numpy())


def test_a_step_in_half_precision_is_native() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 8)), rng.integers(0, 4, 32)
    for dtype in HALVES:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).astype(dtype)
        optimizer = ad.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)  # 1e-8 is 0 in float16

        @ad.compile(backend="native")
        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()  # noqa: B023  called at once
            loss = nn.functional.cross_entropy(model(x), y)  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            return loss

        losses = [float(step(ad.tensor(x.astype(dtype)), ad.tensor(y))) for _ in range(20)]
        assert losses[-1] < losses[0]
        assert "0 calls of NumPy" in str(step.explain())
