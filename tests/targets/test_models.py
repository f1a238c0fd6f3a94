"""Training steps of common models on OpenCL: as near to replay as native code, and the same bits in each run."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any

import pytest
from device_models import MODELS, digest, distance, mlp, train
from opencl import DEVICE, cl, on_opencl

import adjoint as ad
from adjoint import targets
from adjoint.targets.dialect import ORDERS
from adjoint.targets.opencl import OpenCLDevice

REPLAY = functools.partial(ad.compile, backend="replay")
NATIVE = functools.partial(ad.compile, backend="native")
QUICK = {("mlp", "Adam"), ("lenet", "SGD"), ("transformer", "SGD"), ("lstm", "Adam"), ("batches", "SGD")}
CASES = [
    pytest.param(name, kind, marks=() if (name, kind) in QUICK else pytest.mark.soak)
    for name in MODELS
    for kind in ("SGD", "Adam")
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_twenty_steps_are_as_near_to_replay_as_native_code(name: str, kind: str) -> None:
    """Rounding errors grow from step to step, so the distance of replay and native code is the measure."""
    wanted, _ = train(name, kind, REPLAY, 20)
    native, _ = train(name, kind, NATIVE, 20)
    found, _ = train(name, kind, on_opencl, 20)
    again, _ = train(name, kind, on_opencl, 20)
    eps = 2e-7 if found[0].dtype == "f4" else 1e-15
    assert distance(found, wanted) <= 10 * distance(native, wanted) + 20 * eps
    assert digest(again) == digest(found)


def test_one_step_in_float64_is_exact_to_rounding() -> None:
    (wanted, _), (found, _) = train("mlp64", "SGD", REPLAY, 1), train("mlp64", "SGD", on_opencl, 1)
    assert distance(found, wanted) <= 1e-12


def on_device(monkeypatch: pytest.MonkeyPatch, order: str, barriers: bool = True) -> Any:
    """Return ``ad.compile`` for the same device with threads and work-groups in another order."""
    device = OpenCLDevice(0, cl.get_platforms()[0].get_devices()[0], order, barriers)
    monkeypatch.setitem(targets._opened, "opencl:0", device)
    return on_opencl


@pytest.mark.parametrize(
    "name",
    [
        "embedding",
        "batches",
        *(pytest.param(n, marks=pytest.mark.soak) for n in ("transformer", "lenet", "lstm")),
    ],
)
def test_the_order_of_threads_changes_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = {order: digest(train(name, "SGD", on_device(monkeypatch, order), 2)[0]) for order in ORDERS}
    assert len(set(bits.values())) == 1, bits


@pytest.mark.parametrize("name", ["mlp", "batches"])
def test_without_barriers_the_order_of_threads_changes_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above can fail."""
    bits = {digest(train(name, "SGD", on_device(monkeypatch, order, False), 1)[0]) for order in ORDERS}
    assert len(bits) > 1


def test_the_number_of_threads_of_the_driver_changes_no_bit() -> None:
    code = "from device_models import *; import functools; from opencl import on_opencl; "
    code += "print(digest(train('embedding', 'Adam', on_opencl, 3)[0]))"
    bits = []
    for threads in ("1", "2"):
        environment = {
            **os.environ,
            "POCL_MAX_PTHREAD_COUNT": threads,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        bits.append(
            subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
        )
    assert len({each.stdout for each in bits}) == 1 and len(bits[0].stdout.strip()) == 64


@pytest.mark.parametrize("depth", [1, 3])
def test_counts(depth: int) -> None:
    """Counts do not depend on speed: more layers need no more texts, and nothing is read back."""
    steps = []
    for many in (depth, depth + 2):
        step, given, _ = mlp("Adam", depth=many)
        compiled = on_opencl(step)
        for _ in range(3):
            compiled(*given)
        before = dict(DEVICE.counts)
        for _ in range(3):
            compiled(*given)
        steps.append((compiled._variants[0].built.plan.count(), before))
        moved = {k: DEVICE.counts[k] - before[k] for k in before}
        assert moved["down"] == moved["texts"] == moved["allocated"] == 0
        assert moved["up"] < 3 * 2000  # the hyper-parameters
    (few, _), (more, _) = steps
    assert few["kernels"] == 13 + 4 * (depth - 1)
    assert more["kernels"] == few["kernels"] + 8
    assert more["texts"] == few["texts"]
