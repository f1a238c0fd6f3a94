"""Op cases, random programs and random steps on WebGPU, compared with eager code, all in float32.

The tests take every thirtieth case; the soak test takes all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_cases import (
    DTYPES,
    agrees,
    derivatives_of,
    everything,
    forward_of,
    is_refused,
    operands,
    real_cases,
    run_program,
    smooth_cases,
    soaked,
    sorted_rows,
)
from device_loops import check_loop
from random_steps import Plan, assert_close, run_beside
from webgpu import DEVICE, on_webgpu

import adjoint as ad
from adjoint.errors import DeviceError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("case", soaked(real_cases()))
def test_forward(case: Any) -> None:
    agrees(on_webgpu, *forward_of(case, "f4"), 32)


@pytest.mark.parametrize("case", soaked(smooth_cases()))
def test_derivatives(case: Any) -> None:
    first, second, given = derivatives_of(case, "f4")
    agrees(on_webgpu, first, given, 64)
    agrees(on_webgpu, second, given, 64)


@pytest.mark.parametrize("dtype", [*(d for d in DTYPES if d != "f8"), "u1", "i2", "i4", "u4", "u8"])
def test_all_functions_of_a_dtype(dtype: str) -> None:
    """Integers of all sizes; the constants of the cases for floats are float32."""
    x, y, m = operands(dtype)
    agrees(on_webgpu, everything, (x, y, m.astype("f4")), 32)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_integers_at_their_limits(dtype: str) -> None:
    """They wrap around as those of NumPy, also those of 64 bits, which are two words here."""
    info, draw = np.iinfo(dtype), np.random.default_rng(0)
    ends = np.array([info.min, info.max, 0, 1, 3, 7, info.max // 2 + 1, info.max - 1], dtype)
    x, y = (
        np.concatenate([draw.permutation(ends), draw.integers(info.min, info.max, 40, dtype)]) for _ in "xy"
    )

    def f(x: Any, y: Any) -> list[Any]:
        found = [x + y, x - y, x * y, -x, x // y, x % y, x & y, x | y, x ^ y, x < y, x <= y, x == y, x != y]
        found += [x << (y & 7), x >> (y & 7), ad.maximum(x, y), x.sum(), x.max(), x.min(), x.astype("f4")]
        return [*found, *(x.astype(d) for d in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?"))]

    for a, b in zip(on_webgpu(f)(*map(ad.tensor, (x, y))), f(*map(ad.tensor, (x, y))), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        assert a.dtype == b.dtype


def test_nan_of_compilers_that_assume_none() -> None:
    """They know that two loads of one element are equal, and find minima in comparisons."""
    x = ad.tensor(np.array([[np.inf], [np.nan], [-np.inf], [2.0]], "f4"))

    def f(x: Any) -> list[Any]:
        y = ad.log(ad.abs(x) + np.float32(0.5))
        found = [x.var(-1), x - x[:, ::-1], x / x.mean(-1, keepdims=True), ad.hypot(x, y), ad.hypot(y, x)]
        return [
            *found,
            ad.where(x > y, x, y),
            ad.where(y < x, y, x),
            ad.exp(ad.sigmoid(x)),
            x + (-x),
            1 / (1 + ad.sqrt(x) ** 2),
        ]

    for a, b in zip(on_webgpu(f)(x), f(x), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)


@pytest.mark.parametrize(("dtype", "n"), [("f4", 600), ("u1", 9), ("?", 300), ("i8", 256)])
def test_sorting(dtype: str, n: int) -> None:
    sorted_rows(on_webgpu, dtype, n)


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(k, marks=pytest.mark.soak) for k in range(4, 100))]
)
def test_random_programs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random_programs.number", lambda x: x if x.dtype.kind == "f" else x.astype("f4"))
    run_program(on_webgpu, seed, np.float32)


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(k, marks=pytest.mark.soak) for k in range(4, 60))]
)
def test_random_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first 40, 36 run."""
    monkeypatch.setattr("random_steps.drawn_dtype", lambda seed, usual: np.dtype("f4"))
    plan = Plan(seed)
    try:
        for found, wanted in run_beside(plan, on_webgpu, 3):
            assert_close(found, wanted, plan.tolerance)
    except DeviceError as error:
        if not is_refused(str(error), "has no float64"):
            raise


@pytest.mark.parametrize("seed", [1, *(pytest.param(k, marks=pytest.mark.soak) for k in range(2, 30))])
def test_random_loops(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_loop(DEVICE, on_webgpu, seed, "f4", 2e-4, monkeypatch)
