"""Random programs in half precision, compiled and eager: the same dtypes and bytes."""

from __future__ import annotations

import numpy as np
import pytest

import adjoint as ad

pytest.importorskip("ml_dtypes")

from random_halves import UNARY, compare


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_replay_gives_the_bytes_of_eager_mode(first: int) -> None:
    for seed in range(first, first + 100):
        compare(seed, "replay")


def test_native_code_gives_the_dtypes_of_eager_mode() -> None:
    pytest.importorskip("llvmlite")
    for seed in range(40):
        compare(seed, "native")


@pytest.mark.parametrize("k", range(len(UNARY)))
def test_sums_of_broadcast_gradients_have_the_memory_layout_of_eager_mode(k: int) -> None:
    def gradient(x: ad.Tensor) -> ad.Tensor:
        def loss(x: ad.Tensor) -> ad.Tensor:
            y = UNARY[k](x)
            return (y.mean(axis=0) + y).sum() if y.ndim else y

        return ad.grad(loss)(x)

    x = ad.tensor(np.random.default_rng(k).uniform(0.1, 1, (4, 5)).astype(np.float16))
    compiled = ad.compile(gradient, backend="replay")
    assert compiled(x).numpy().tobytes() == gradient(x).numpy().tobytes()
