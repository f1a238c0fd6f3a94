"""Op cases, random programs and random steps on OpenCL, compared with eager code.

The tests take every thirtieth case; the soak test takes all.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_cases import (
    DTYPES,
    check,
    derivatives_of,
    everything,
    forward_of,
    is_native_on_cpu,
    missing_ops,
    operands,
    real_cases,
    smooth_cases,
)
from opencl import on_opencl
from random_programs import arrays, program
from random_steps import Plan, assert_close, run_beside

import adjoint as ad
from adjoint import tree
from adjoint.errors import DeviceError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
EVERY = 30


def soaked(found: list[Any]) -> list[Any]:
    """Mark all but every thirtieth case as part of the soak test."""
    return [
        pytest.param(c, marks=() if k % EVERY == 5 else pytest.mark.soak, id=str(c))
        for k, c in enumerate(found)
    ]


def agrees(f: Any, given: Any, units: float) -> None:
    """Compare a function on the device with eager code; every op that is native on the CPU must run."""
    wanted = f(*given)
    try:
        found = on_opencl(f)(*given)
    except DeviceError:
        assert not is_native_on_cpu(f, given)
    else:
        check(found, wanted, units)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("case", soaked(real_cases()))
def test_forward(case: Any, dtype: str) -> None:
    agrees(*forward_of(case, dtype), 32)


@pytest.mark.parametrize("case", soaked(smooth_cases()))
def test_derivatives(case: Any) -> None:
    first, second, given = derivatives_of(case, "f8")
    agrees(first, given, 64)
    agrees(second, given, 64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_functions_of_a_dtype(dtype: str) -> None:
    agrees(everything, operands(dtype), 32)


@pytest.mark.parametrize(("dtype", "n"), [("f4", 600), ("u1", 9), ("?", 300), ("i8", 256)])
def test_sorting(dtype: str, n: int) -> None:
    """Rows longer than a work-group are merged; equal elements keep their order, and NaN comes last."""
    draw = np.random.default_rng(n)
    x, at = draw.integers(0, n // 3, (2, n)).astype(dtype), ad.tensor(draw.integers(0, 7, n))
    if dtype == "f4":
        x[draw.random(x.shape) < 0.1], x[draw.random(x.shape) < 0.1] = np.nan, -0.0

    def f(x: Any, at: Any) -> Any:
        rows = ad.grad(lambda t: (t[at] * ad.arange(float(n))[:, None]).sum())(ad.ones((7, 2)))
        return ad.argsort(x), ad.sort(x, axis=0), ad.argsort(x, descending=True), rows

    for a, b in zip(on_opencl(f)(ad.tensor(x), at), f(ad.tensor(x), at), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        assert a.dtype == b.dtype


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(k, marks=pytest.mark.soak) for k in range(4, 100))]
)
def test_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = tuple(map(ad.asarray, arrays(rng, 4)))
    f = program(rng, 12)
    wanted = ad.compile(f, backend="replay")(*given)
    eps = 1e-6 if any(a.dtype == np.float32 for a in given) else 1e-15
    try:
        found = on_opencl(f)(*given)
    except DeviceError:
        assert not is_native_on_cpu(f, given)
        return
    for x, y in zip(tree.leaves(found), tree.leaves(wanted), strict=True):
        a, b = x.detach().numpy(), y.detach().numpy()
        assert a.shape == b.shape and a.dtype == b.dtype
        if a.dtype.kind == "f":
            size = np.abs(b[np.isfinite(b)]).max(initial=1.0)
            np.testing.assert_allclose(a, b, rtol=2e4 * eps, atol=2e4 * eps * size)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(k, marks=pytest.mark.soak) for k in range(3, 60))]
)
def test_random_steps(seed: int) -> None:
    plan = Plan(seed)
    tolerance = 1e-5 if plan.dtype == np.float32 else 1e-12
    try:
        for found, wanted in run_beside(plan, functools.partial(ad.compile, device="opencl"), 3):
            assert_close(found, wanted, tolerance)
    except DeviceError as error:
        if "cannot run on opencl:0" not in str(error):  # an op without a native form
            raise


def test_the_page_lists_all_ops_without_a_native_form() -> None:
    page = (Path(__file__).parents[2] / "docs" / "devices.md").read_text(encoding="utf-8")
    listed = re.findall(r"`(\w+)`", page.partition("<!-- missing ops -->")[2].partition("<!-- end -->")[0])
    assert listed == missing_ops()
