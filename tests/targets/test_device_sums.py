"""Sums on OpenCL: beside NumPy, and with enough threads for a large device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from opencl import on_opencl, program_of

import adjoint as ad
from adjoint import nn

SHAPES = [(1 << 16,), (1024, 512), (4096, 24), (9, 9000), (300, 7), (16, 32, 14, 14)]


def check_threads(compiled: Any) -> None:
    """A thread of a kernel with a sum has at most 64 elements, unless 4096 threads work."""
    plan = program_of(compiled).plan
    for group, kernel in plan.kernels:
        if any(n.op == "reduce" for n in group.nodes):
            elements, threads = math.prod(group.domain), kernel.length * math.prod(kernel.sizes)
            assert threads >= min(4096, elements // 64), (group, threads)


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_of_rows_and_columns(shape: tuple[int, ...]) -> None:
    x = ad.tensor(np.random.default_rng(0).normal(size=shape))
    k = x[0] * 2

    def f(x: Any, k: Any) -> Any:
        centred = x - x.mean(axis=0)
        rest = (x.sum(axis=(0, 2, 3)), x / x.std(axis=(0, 2, 3), keepdims=True)) if x.ndim == 4 else ()
        return (
            x.sum(),
            (x - k).sum(axis=0),
            (centred**2).sum(axis=0),
            x - x.max(axis=0),
            (x * k).sum(axis=-1),
            rest,
        )

    compiled = on_opencl(f)
    for a, b in zip(ad.tree.leaves(compiled(x, k)), ad.tree.leaves(f(x, k)), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-9)
    check_threads(compiled)


def test_normalised_rows_and_their_gradients() -> None:
    norm, x = nn.LayerNorm(64), ad.ones((512, 64), dtype="f4")

    @on_opencl
    def step(x: Any) -> Any:
        norm.weight.grad = norm.bias.grad = None
        loss = (norm(x) ** 2).mean()
        loss.backward()
        return loss

    step(x)
    check_threads(step)
