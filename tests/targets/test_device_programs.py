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
    agrees,
    derivatives_of,
    everything,
    forward_of,
    is_refused,
    missing_ops,
    operands,
    real_cases,
    run_program,
    smooth_cases,
    soaked,
    sorted_rows,
)
from opencl import cl, on_opencl
from random_steps import Plan, assert_close, run_beside

import adjoint as ad
from adjoint import targets
from adjoint.errors import DeviceError
from adjoint.targets.dialect import OpenCL
from adjoint.targets.opencl import OpenCLDevice

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("case", soaked(real_cases()))
def test_forward(case: Any, dtype: str) -> None:
    agrees(on_opencl, *forward_of(case, dtype), 32)


@pytest.mark.parametrize("case", soaked(smooth_cases()))
def test_derivatives(case: Any) -> None:
    first, second, given = derivatives_of(case, "f8")
    agrees(on_opencl, first, given, 64)
    agrees(on_opencl, second, given, 64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_functions_of_a_dtype(dtype: str) -> None:
    agrees(on_opencl, everything, operands(dtype), 32)


def test_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels have no float64, also in functions and small solves, and neither have numbers."""
    device = OpenCLDevice(0, cl.get_platforms()[0].get_devices()[0])
    device.info, device.dialect = device.info._replace(float64=False), OpenCL(float64=False)
    monkeypatch.setitem(targets._opened, "opencl:0", device)
    x, y, m = operands("f4")

    def f(x: Any, y: Any, m: Any, r: float) -> list[Any]:
        return [v * (1 - r) if v.dtype == np.float32 else v for v in everything(x, y, m)]

    for r in (0.5, 0.999):
        agrees(on_opencl, f, (x, y, m, r), 32)
    assert device.programs and not any("double" in text for text in device.programs)


@pytest.mark.parametrize(("dtype", "n"), [("f4", 600), ("u1", 9), ("?", 300), ("i8", 256)])
def test_sorting(dtype: str, n: int) -> None:
    sorted_rows(on_opencl, dtype, n)


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(k, marks=pytest.mark.soak) for k in range(4, 100))]
)
def test_random_programs(seed: int) -> None:
    run_program(on_opencl, seed)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(k, marks=pytest.mark.soak) for k in range(3, 60))]
)
def test_random_steps(seed: int) -> None:
    plan = Plan(seed)
    tolerance = max(plan.tolerance, 1e-5) if plan.low is not None or plan.dtype == np.float32 else 1e-12
    try:
        for found, wanted in run_beside(plan, functools.partial(ad.compile, device="opencl"), 3):
            assert_close(found, wanted, tolerance)
    except DeviceError as error:
        if not is_refused(str(error)):
            raise


def test_the_page_lists_all_ops_without_a_native_form() -> None:
    page = (Path(__file__).parents[2] / "docs" / "devices.md").read_text(encoding="utf-8")
    listed = re.findall(r"`(\w+)`", page.partition("<!-- missing ops -->")[2].partition("<!-- end -->")[0])
    assert listed == missing_ops()
