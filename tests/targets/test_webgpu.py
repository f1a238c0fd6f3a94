"""WebGPU: training steps of common models, its memory, numbers of the host, and failures."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_models import MODELS, digest, distance, train
from fault_nets import Faults, Net, Rows, check_every_call
from webgpu import DEVICE, on_webgpu, wgpu

import adjoint as ad
from adjoint import optim, targets
from adjoint.errors import (
    ArgumentError,
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    MissingExtraError,
)
from adjoint.targets import webgpu
from adjoint.targets.dialect import ORDERS
from adjoint.targets.webgpu import WebGpuDevice

REPLAY = functools.partial(ad.compile, backend="replay")
NATIVE = functools.partial(ad.compile, backend="native")
QUICK = {("mlp", "Adam"), ("transformer", "SGD"), ("lstm", "Adam"), ("batches", "Adam")}
CASES = [
    pytest.param(name, kind, marks=() if (name, kind) in QUICK else pytest.mark.soak)
    for name in MODELS
    for kind in ("SGD", "Adam")
    if name != "mlp64"
]


def other_device(order: str = "plain", barriers: bool = True) -> WebGpuDevice:
    return WebGpuDevice(0, webgpu._adapters()[0], order, barriers)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_twenty_steps_are_as_near_to_replay_as_native_code(name: str, kind: str) -> None:
    wanted, _ = train(name, kind, REPLAY, 20)
    native, _ = train(name, kind, NATIVE, 20)
    found, _ = train(name, kind, on_webgpu, 20)
    again, _ = train(name, kind, on_webgpu, 20)
    assert distance(found, wanted) <= 10 * distance(native, wanted) + 20 * 2e-7
    assert digest(again) == digest(found)


@pytest.mark.parametrize("name", ["embedding", pytest.param("transformer", marks=pytest.mark.soak)])
def test_the_order_of_threads_changes_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = {}
    for order in ORDERS:
        monkeypatch.setitem(targets._opened, "webgpu:0", other_device(order))
        bits[order] = digest(train(name, "SGD", on_webgpu, 2)[0])
    assert len(set(bits.values())) == 1, bits


def test_without_barriers_the_order_of_threads_changes_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above can fail."""
    bits = set()
    for order in ORDERS:
        monkeypatch.setitem(targets._opened, "webgpu:0", other_device(order, False))
        bits.add(digest(train("mlp", "SGD", on_webgpu, 1)[0]))
    assert len(bits) > 1


def test_counts() -> None:
    """Nothing is read back, nothing is compiled or allocated, and the hyper-parameters are one copy."""
    step, given, _ = MODELS["mlp"]("Adam")
    compiled = on_webgpu(step)
    for _ in range(3):
        compiled(*given)
    before = dict(DEVICE.counts)
    compiled(*given)
    moved = {k: DEVICE.counts[k] - before[k] for k in before}
    assert moved["down"] == moved["texts"] == moved["allocated"] == 0
    assert moved["launches"] == 13 and moved["uploads"] == 1 and moved["up"] < 2000


def test_devices_are_listed() -> None:
    (found,) = [d for d in ad.devices() if d.name == "webgpu:0"]
    assert not found.float64 and found.memory >= 1 << 27 and found.group >= 256


# Numbers that the host computes --------------------------------------------------------------------------


def test_numbers_are_computed_in_float64() -> None:
    """In float32, 1 - 0.999 has an error of 1.3e-5 of itself."""
    w = ad.tensor(np.ones(3, "f4"), requires_grad=True)
    opt = optim.Adam([w], lr=1e-3, betas=(0.9, 0.99999))

    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = (w * x).sum()
        loss.backward()
        opt.step()
        return loss

    on_webgpu(step)(ad.tensor(np.array([1.0, 2.0, 3.0], "f4")))
    (unit,) = opt.groups[0].units
    square = next(v for k, v in unit.state.items() if k != "exp_avg" and v.max() < 1e-3)
    np.testing.assert_allclose(square.ravel(), (1 - 0.99999) * np.array([1.0, 4.0, 9.0]), rtol=3e-7)


def test_numbers_in_loops_and_results() -> None:
    def f(x: Any, r: float) -> Any:
        last, rows = ad.scan(lambda c, row: (c * (1 - r / 3), c + row * (r * r)), x[0], x)
        return last, rows, r * 2, ad.exp(x) * r

    x = ad.tensor(np.linspace(-1, 1, 60, dtype="f4").reshape(20, 3))
    compiled = on_webgpu(f)
    for r in (0.125, 0.999999):
        for a, b in zip(compiled(x, r), f(x, r), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)


def test_float64_is_an_error_before_anything_is_written() -> None:
    w = ad.tensor([1.0, 2.0])
    f = on_webgpu(lambda x: w.copy_(w + x))
    wanted = (
        r"reads an input in float64, but webgpu:0 has no float64\.\n"
        r"  Use float32 \(such as model\.astype\(np\.float32\)\), or another device\."
    )
    with pytest.raises(DeviceError, match=wanted):
        f(ad.tensor([1.0, 1.0]))
    assert w.tolist() == [1.0, 2.0]


# Memory and launches -------------------------------------------------------------------------------------


def test_more_work_groups_than_an_axis_has() -> None:
    """An axis has 65,535; larger grids are divided, and the groups that are too many do nothing."""
    x = ad.tensor(np.arange(65536 * 64 + 5) % 1000)
    x = x.astype("f4")
    found = on_webgpu(lambda x: (x * 2 + 1, x.reshape(-1, 1) @ ad.ones((1, 1), dtype="f4")))(x)
    np.testing.assert_array_equal(found[0].numpy(), x.numpy() * 2 + 1)
    np.testing.assert_array_equal(found[1].numpy().ravel(), x.numpy())


def test_the_heap_grows_and_keeps_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    device = other_device()
    monkeypatch.setitem(targets._opened, "webgpu:0", device)
    small = on_webgpu(lambda x: x + 1)(ad.tensor(np.arange(10.0, dtype="f4")))
    before = device.heap.size
    large = on_webgpu(lambda x: x * 2)(ad.tensor(np.ones(2_000_000, "f4")))
    assert device.heap.size > before
    assert small.device == "webgpu:0" and small.tolist() == list(range(1, 11))
    assert large.numpy().sum() == 4_000_000


def test_a_full_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unused memory is freed first; then the error says how large the heap may be."""
    device = other_device()
    device.most = 1 << 23
    monkeypatch.setitem(targets._opened, "webgpu:0", device)
    f = on_webgpu(lambda x: x * 2)
    for count in (300_000, 200_000, 250_000, 280_000):  # each program keeps its argument
        assert f(ad.tensor(np.ones(count, "f4"))).numpy().sum() == 2 * count
    with pytest.raises(
        DeviceMemoryError, match=r"webgpu:0 .*the heap has [\d,]+ bytes, and may have 8,388,608"
    ):
        f(ad.tensor(np.ones(3_000_000, "f4")))
    assert f(ad.tensor(np.ones(5, "f4"))).tolist() == [2] * 5


def test_memory_of_garbage_in_cycles_is_used_once() -> None:
    """Finalizers of garbage run in any order, also for what another finalizer keeps."""
    f = on_webgpu(lambda x: x * 2)
    x = ad.tensor(np.ones(77, "f4"))
    held = [f(x) for _ in range(5)]
    for t in held:
        box: list[Any] = [t]
        box.append(box)
    del t, held, box
    gc.collect()
    starts = [m.start for free in DEVICE.pool.values() for m in free]
    assert len(starts) == len(set(starts))
    assert not {s for s in starts if any(low <= s < high for low, high in DEVICE.heap.free)}


# Failures ------------------------------------------------------------------------------------------------


class Faulty(Faults, WebGpuDevice):
    """The WebGPU device, which raises ``error`` at one call of its driver."""

    def __init__(self) -> None:
        super().__init__(0, webgpu._adapters()[0])

    def _submit(self, encoder: Any, words: Any) -> None:
        self._count("submit")
        super()._submit(encoder, words)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Faulty:
    found = Faulty()
    monkeypatch.setitem(targets._opened, "webgpu:0", found)
    return found


def full() -> BaseException:
    return wgpu.GPUOutOfMemoryError("Not enough memory left")


def lost() -> BaseException:
    return wgpu.GPUInternalError("Parent device is lost")


ERRORS: dict[str, tuple[Callable[[], BaseException], type[BaseException]]] = {
    "memory": (full, DeviceMemoryError),
    "lost": (lost, DeviceLostError),
    "interrupt": (KeyboardInterrupt, KeyboardInterrupt),
}


@pytest.mark.parametrize(
    ("model", "kind", "first"),
    [
        *((Net, kind, False) for kind in ERRORS),
        *(pytest.param(Net, kind, True, marks=pytest.mark.soak) for kind in ERRORS),
        *(pytest.param(Rows, kind, f, marks=pytest.mark.soak) for kind in ERRORS for f in (True, False)),
    ],
)
def test_every_call_of_the_driver_may_fail(faulty: Faulty, model: type, kind: str, first: bool) -> None:
    check_every_call(faulty, on_webgpu, model, *ERRORS[kind], first)


def test_a_lost_device_says_so_at_each_use(faulty: Faulty) -> None:
    net = Net()
    step = on_webgpu(net.step)
    step(net.x)
    faulty.calls.clear()
    faulty.error, faulty.fail_at = lost, 3
    for _ in range(2):
        with pytest.raises(DeviceLostError, match="Load the last checkpoint"):
            step(net.x)
    with pytest.raises(DeviceLostError, match="not read are lost"):
        net.last.weight.numpy()


def test_a_text_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has that of the compiler."""
    monkeypatch.setattr(DEVICE.dialect, "barrier", "no_barrier;")
    with pytest.raises(DeviceError, match=r"a program failed on webgpu:0 (.|\n)*no_barrier(.|\n)*\n  Update"):
        on_webgpu(lambda x: x.sum())(ad.tensor(np.ones(100, "f4")))


def test_a_machine_without_the_extra_or_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_opened", {})
    with monkeypatch.context() as patch:
        patch.setattr(wgpu.gpu, "enumerate_adapters_sync", list)
        with pytest.raises(ArgumentError, match=r"there is no WebGPU device\.\n  Install the driver"):
            on_webgpu(lambda x: x)
        assert not any(d.name.startswith("webgpu") for d in ad.devices())
    with pytest.raises(ArgumentError, match="there is no device webgpu:99"):
        ad.compile(lambda x: x, device="webgpu:99")
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(MissingExtraError, match=r"wgpu.*\[webgpu\]"):
        on_webgpu(lambda x: x)
    assert not any(d.name.startswith("webgpu") for d in ad.devices())
