"""Convolutions on OpenCL by products of tiles, beside eager code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opencl import on_opencl, program_of

import adjoint as ad
from adjoint import nn

# images, channels, outputs, size, kernel, stride, padding, dilation
CASES = [
    ((3, 16, 20), (9, 7), (3, 2), 1, 1, 1),
    ((2, 17, 33), (12, 11), (3, 3), (2, 1), (1, 2), (1, 2)),
    ((9, 4, 16), (21, 21), (5, 5), 1, 0, 1),
]


@pytest.mark.parametrize("case", CASES)
def test_convolutions_and_their_gradients(case: Any) -> None:
    (n, c, o), size, kernel, stride, padding, dilation = case
    draw = np.random.default_rng(0)
    given = [ad.tensor(draw.normal(size=s)) for s in ((n, c, *size), (o, c, *kernel), (o,))]

    def f(*given: Any) -> Any:
        y = nn.functional.conv2d(*given, stride=stride, padding=padding, dilation=dilation)
        return (ad.tanh(y) ** 2).sum(), y

    def both(*given: Any) -> Any:
        return f(*given)[1], ad.grad(lambda *given: f(*given)[0], argnums=(0, 1, 2))(*given)

    compiled = on_opencl(both)
    for a, b in zip(ad.tree.leaves(compiled(*given)), ad.tree.leaves(both(*given)), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-9)
    kernels = [k for g, k in program_of(compiled).plan.kernels if g.kind == "conv"]
    assert [k.sizes for k in kernels] == [(16, 16, 1)]
