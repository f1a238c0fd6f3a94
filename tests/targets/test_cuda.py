"""CUDA without a GPU: NVRTC compiles the texts of models, and a driver that runs them on OpenCL launches them."""

from __future__ import annotations

import functools
import gc
from typing import Any

import pytest
from device_cases import DTYPES, everything, operands
from device_models import MODELS, digest, distance, train
from fake_cuda import fake_device
from opencl import on_opencl, program_of

import adjoint as ad
from adjoint import targets
from adjoint.errors import ArgumentError, DeviceError, DeviceLostError, DeviceMemoryError, MissingExtraError
from adjoint.targets.cuda import Compiler, CudaError

on_cuda = functools.partial(ad.compile, device="cuda")


def machine_code(text: str, architecture: str) -> bytes:
    """Stand for NVRTC where it is not installed."""
    assert "__global__" in text and architecture == "sm_80"
    return b"code"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake_device(machine_code)
    monkeypatch.setitem(targets._opened, "cuda:0", found)
    return found


@pytest.mark.parametrize(
    "name", ["lstm", *(pytest.param(n, marks=pytest.mark.soak) for n in ("mlp", "transformer"))]
)
def test_the_same_texts_and_launches_give_the_same_bits(cuda: Any, name: str) -> None:
    """The driver is given the right addresses, offsets and sizes."""
    (found, step), (wanted, _) = train(name, "SGD", on_cuda, 3), train(name, "SGD", on_opencl, 3)
    assert distance(found, wanted) == 0 and digest(found) == digest(wanted)
    assert cuda.counts["launches"] == 3 * program_of(step).plan.count()["launches"]


def test_memory_is_freed(cuda: Any) -> None:
    library = cuda.driver.library
    f = on_cuda(lambda x: x * 2 + 1)
    assert f(ad.tensor([1.0, 2.0])).tolist() == [3.0, 5.0]
    held = len(library.blocks)
    cuda.trim()
    assert 0 < len(library.blocks) < held


def test_memory_of_garbage_in_cycles_is_kept_for_the_next_value(cuda: Any) -> None:
    """A finalizer that frees it would run, although another one keeps it."""
    f = on_cuda(lambda x: x * 2 + 1)
    found = [f(ad.tensor([1.0, 2.0]))]
    found.append(found)  # type: ignore[arg-type]
    held = len(cuda.driver.library.blocks)
    del found
    gc.collect()
    assert len(cuda.driver.library.blocks) == held


@pytest.mark.parametrize(
    ("code", "raised"), [(2, DeviceMemoryError), (719, DeviceLostError), (1, DeviceError)]
)
def test_errors_of_the_driver(cuda: Any, code: int, raised: type) -> None:
    f = on_cuda(lambda x: x * 2)
    x = ad.tensor([1.0, 2.0])
    f(x)
    cuda.driver.library.fail["cuLaunchKernel"] = code
    with pytest.raises(raised, match=rf"cuda:0 \(Fake GPU\): cuLaunchKernel returned error {code}"):
        f(x)


def test_a_machine_without_a_driver() -> None:
    if any(d.name.startswith("cuda") for d in ad.devices()):
        return
    with pytest.raises(ArgumentError, match="there is no device cuda:0"):
        ad.compile(lambda x: x, device="cuda")


@pytest.fixture(scope="module")
def nvrtc() -> Compiler:
    try:
        return Compiler()
    except MissingExtraError:
        pytest.skip("NVRTC is not installed")


def test_the_message_of_the_compiler(nvrtc: Compiler) -> None:
    with pytest.raises(CudaError, match="could not compile a kernel"):
        nvrtc("this is no kernel", "sm_80")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "lstm" else pytest.mark.soak) for n in MODELS]
)
def test_texts_compile_to_machine_code(name: str, nvrtc: Compiler, cuda: Any) -> None:
    """All texts of a training step, for a GPU of compute capability 8.0."""
    cuda.compiler = nvrtc
    step, given, _ = MODELS[name]("Adam")
    on_cuda(step)(*given)
    assert cuda.counts["texts"] > 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_and_dtypes_compile_to_machine_code(dtype: str, nvrtc: Compiler, cuda: Any) -> None:
    cuda.compiler = nvrtc
    on_cuda(everything)(*operands(dtype))
    assert cuda.counts["texts"] > 0
