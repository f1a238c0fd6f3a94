"""Random loops on OpenCL: as one kernel, and with kernels that the host starts in each iteration."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from device_models import MODELS
from opencl import DEVICE, on_opencl, program_of

import adjoint as ad
from adjoint import nn

F = nn.functional
WEIGHT = ad.tensor(np.random.default_rng(9).normal(size=(24, 24)))
ORDER = ad.tensor([3, 1, 1, 0, 2, 5, 4, 4])
# functions of a matrix of shape (8, 24)
OPS: list[Any] = [
    lambda c: ad.tanh(c @ WEIGHT) * 0.5,
    lambda c: c - c.mean(axis=1, keepdims=True),
    lambda c: c / (1 + ad.abs(c).sum(axis=0)),
    lambda c: F.softmax(c, axis=1),
    lambda c: ad.concatenate([c[:, 3:], c[:, :3]], axis=1),
    lambda c: c[ORDER],
    lambda c: ad.sort(c, axis=1),
    lambda c: ad.where(c > 0, c, c * 0.1),
    lambda c: F.conv2d(c.reshape(1, 1, 8, 24), ad.full((1, 1, 3, 3), 0.1), padding=1).reshape(8, 24),
    lambda c: c / (c.max() - c.min() + 1),
    lambda c: ad.scan(lambda a, b: (a * 0.9 + b, a), c[0], c)[1],
    lambda c: (c[:, :8] @ c[:8, :8].T @ ad.ones((8, 24))) * 0.1 + c,
]


def drawn(seed: int) -> tuple[Any, Any]:
    """Return a function with a random loop and its gradient, and its arguments."""
    r = np.random.default_rng(seed)
    chosen, backwards = [OPS[k] for k in r.integers(0, len(OPS), 3)], bool(seed % 2)

    def body(c: Any, row: Any) -> Any:
        x = c + row
        for op in chosen:
            x = op(x)
        return ad.tanh(x), (x.sum(axis=1), x[0])

    def loss(c: Any, rows: Any) -> Any:
        last, outs = ad.scan(body, c, rows, reverse=backwards)
        return (last**2).sum() + outs[0].sum(), (last, outs)

    def both(c: Any, rows: Any) -> Any:
        return loss(c, rows)[1], ad.grad(lambda c: loss(c, rows)[0])(c)

    return both, (ad.tensor(r.normal(size=(8, 24))), ad.tensor(r.normal(size=(9, 8, 24))))


@pytest.mark.parametrize("seed", [1, *(pytest.param(k, marks=pytest.mark.soak) for k in range(2, 30))])
def test_random_loops(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    f, given = drawn(seed)
    wanted, launches = ad.tree.leaves(f(*given)), []
    for joins in (True, False):
        monkeypatch.setattr(DEVICE.dialect, "joins", joins)
        compiled = on_opencl(f)
        for a, b in zip(ad.tree.leaves(compiled(*given)), wanted, strict=True):
            size = float(np.abs(b.numpy()).max(initial=1))
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-9 * size)
        launches.append(program_of(compiled).plan.count()["launches"])
    assert launches[0] < launches[1]


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
