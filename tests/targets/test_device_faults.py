"""Failures of a driver, interrupts, forks and threads: a call changes everything or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from fault_nets import Faults, Net, Rows, check_every_call
from opencl import DEVICE, cl, on_opencl

import adjoint as ad
from adjoint import targets
from adjoint.errors import (
    ArgumentError,
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    MissingExtraError,
)
from adjoint.targets.opencl import OpenCLDevice


class Faulty(Faults, OpenCLDevice):
    """The OpenCL device, which raises ``error`` at one call of its driver."""

    def __init__(self) -> None:
        super().__init__(0, cl.get_platforms()[0].get_devices()[0])


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Faulty:
    found = Faulty()
    monkeypatch.setitem(targets._opened, "opencl:0", found)
    return found


def failure(kind: type, code: int) -> Callable[[], BaseException]:
    """Return a function that returns an error as pyopencl raises it."""
    return type("Failure", (kind,), {"code": code, "__str__": lambda self: "clCall failed"})


lost = failure(cl.RuntimeError, cl.status_code.OUT_OF_RESOURCES)
full = failure(cl.MemoryError, cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE)
ERRORS: dict[str, tuple[Callable[[], BaseException], type]] = {
    "memory": (full, DeviceMemoryError),
    "lost": (lost, DeviceLostError),
    "interrupt": (KeyboardInterrupt, KeyboardInterrupt),
}


@pytest.mark.parametrize(
    ("model", "kind", "first"),
    [
        *((Net, kind, first) for kind in ERRORS for first in (True, False)),
        (Rows, "lost", False),
        *(pytest.param(Rows, kind, True, marks=pytest.mark.soak) for kind in ERRORS),
        pytest.param(Rows, "memory", False, marks=pytest.mark.soak),
    ],
)
def test_every_call_of_the_driver_may_fail(faulty: Faulty, model: type, kind: str, first: bool) -> None:
    check_every_call(faulty, on_opencl, model, *ERRORS[kind], first)


def test_a_lost_device_says_so_at_each_use(faulty: Faulty) -> None:
    net = Net()
    step = on_opencl(net.step)
    step(net.x)
    faulty.calls.clear()
    faulty.error, faulty.fail_at = lost, 3
    for _ in range(2):
        with pytest.raises(DeviceLostError, match="Load the last checkpoint"):
            step(net.x)
    with pytest.raises(DeviceLostError, match="not read are lost"):
        net.last.weight.numpy()


def test_other_errors_of_the_driver(faulty: Faulty) -> None:
    net = Net()
    step = on_opencl(net.step)
    step(net.x)
    faulty.calls.clear()
    faulty.error = failure(cl.LogicError, cl.status_code.INVALID_VALUE)
    faulty.fail_at = 3
    with pytest.raises(DeviceError, match=r"opencl:0 \(.*\): clCall failed"):
        step(net.x)
    step(net.x)


def test_a_driver_that_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(texts: Any) -> None:
        raise failure(cl.RuntimeError, cl.status_code.BUILD_PROGRAM_FAILURE)

    monkeypatch.setattr(DEVICE, "_build", fail)
    with pytest.raises(
        DeviceError, match=r"a program failed on opencl:0 \(.*\): (.|\n)*\n  Update the driver of"
    ):
        on_opencl(lambda x: ad.tanh(x) * 3)(ad.tensor([1.0, 2.0]))


def test_a_machine_without_the_extra_or_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_opened", {})
    with monkeypatch.context() as patch:
        patch.setattr(cl, "get_platforms", list)
        with pytest.raises(ArgumentError, match=r"there is no OpenCL device\.\n  Install the driver"):
            on_opencl(lambda x: x)
        assert not any(d.name.startswith("opencl") for d in ad.devices())
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(MissingExtraError, match=r"pyopencl.*\[opencl\]"):
        on_opencl(lambda x: x)
    assert not any(d.name.startswith("opencl") for d in ad.devices())


def test_python_ends_while_kernels_run() -> None:
    """Without waiting for them, PoCL crashed in one of four runs."""
    code = (
        "import adjoint as ad; f = ad.compile(lambda x: (x @ x) @ x, device='opencl'); f(ad.ones((400, 400)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_a_device_without_float64(faulty: Faulty) -> None:
    faulty.info = faulty.info._replace(float64=False)
    w = ad.tensor([1.0, 2.0])
    f = on_opencl(lambda x: w.copy_(w + x))
    with pytest.raises(
        DeviceError, match=r"reads an input in float64, but opencl:0 has no float64.\n  Use float32 "
    ):
        f(ad.tensor([1.0, 1.0]))
    assert w.tolist() == [1.0, 2.0] and not faulty.calls


OWN = {"adjoint.targets.program", "adjoint.targets.values", "adjoint.targets.plan", "adjoint.optim.traced"}


def test_an_interrupt_at_any_moment_changes_all_or_nothing() -> None:
    """Python lets interrupts in after calls of built-in functions."""
    before = after = None
    for moment in range(1, 10_000, 11):
        net, other = Net(), Net()
        steps = [on_opencl(n.step) for n in (net, other)]
        for n, step in zip((net, other), steps, strict=True):
            step(n.x)
        before = before or other.snapshot()
        if after is None:
            steps[1](other.x)
            after = other.snapshot()
        moments = 0

        def interrupt(frame: Any, event: str, arg: Any, moment: int = moment) -> None:
            nonlocal moments
            if event == "c_return" and frame.f_globals.get("__name__") in OWN:
                moments += 1
                if moments == moment:
                    raise KeyboardInterrupt

        profiler = sys.getprofile()
        try:
            sys.setprofile(interrupt)
            steps[0](net.x)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(profiler)
        assert net.snapshot() in (before, after), moment
    assert moment > 30 and net.snapshot() == after


def test_threads_share_a_device() -> None:
    """Each thread trains its own net; all give the same numbers."""
    nets = [Net() for _ in range(4)]
    errors: list[BaseException] = []

    def train(net: Net) -> None:
        try:
            step = on_opencl(net.step)
            for _ in range(5):
                loss = step(net.x)
            loss.item()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(n,)) for n in nets]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert all(n.snapshot() == nets[0].snapshot() for n in nets)


def test_threads_read_one_value() -> None:
    for _ in range(20):
        t = on_opencl(lambda x: x * 2)(ad.tensor(np.arange(1000.0)))
        found: list[Any] = []
        read = partial(lambda t, found: found.append(t.numpy().sum()), t, found)
        threads = [threading.Thread(target=read) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert found == [999000.0] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_cannot_use_the_device() -> None:
    net = Net()
    step = on_opencl(net.step)
    step(net.x)
    out, into = os.pipe()
    child = os.fork()
    if not child:
        text = "no error"
        try:
            step(net.x)
        except DeviceLostError as error:
            text = str(error)
        os.write(into, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"before this process was forked" in os.read(out, 1000)
    step(net.x)


def test_values_move_between_devices(faulty: Faulty) -> None:
    """A value of another device, here another object for the same one, is copied."""
    first = on_opencl(lambda x: x + 1)(ad.tensor([1.0, 2.0]))
    assert first.device == "opencl:0"
    targets._opened["opencl:0"] = DEVICE
    assert on_opencl(lambda x: x * 2)(first).tolist() == [4.0, 6.0]
