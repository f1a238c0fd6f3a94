"""Random loops on OpenCL: as one kernel, and with kernels that the host starts in each iteration."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from device_loops import check_loop
from device_models import MODELS
from opencl import DEVICE, on_opencl, program_of


@pytest.mark.parametrize("seed", [1, *(pytest.param(k, marks=pytest.mark.soak) for k in range(2, 30))])
def test_random_loops(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_loop(DEVICE, on_opencl, seed, "f8", 1e-9, monkeypatch)


def lstm(length: int, joins: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs a compiled training step, and the number of its launches."""
    monkeypatch.setattr(DEVICE.dialect, "joins", joins)
    step, given, _ = MODELS["lstm"]("Adam", length)  # type: ignore[call-arg]
    compiled = on_opencl(step)
    compiled(*given)
    return lambda: compiled(*given), program_of(compiled).plan.count()["launches"]


def test_a_small_loop_is_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = [lstm(length, True, monkeypatch)[1] for length in (20, 40)]
    assert launches == [13, 13]


def test_a_launch_takes_few_calls_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 4 µs; calls are counted, because times are not the same in each run."""
    calls = []
    for length in (10, 20):
        run, launches = lstm(length, False, monkeypatch)
        found = 0

        def count(frame: Any, event: str, arg: Any) -> None:
            nonlocal found
            found += event in ("call", "c_call")

        before, profiler = DEVICE.counts["launches"], sys.getprofile()
        sys.setprofile(count)
        run()
        sys.setprofile(profiler)
        assert DEVICE.counts["launches"] - before == launches
        calls.append((found, launches))
    (few, short), (many, long) = calls
    assert long - short >= 100 and (many - few) / (long - short) < 20
