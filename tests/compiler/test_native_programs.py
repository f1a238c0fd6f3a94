"""Native code and replay agree on random programs, at every level of vector instructions and in threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_programs import arrays, program

import adjoint as ad
from adjoint import tree
from adjoint.compiler import machine, native

pytest.importorskip("llvmlite")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def agree(found: Any, wanted: Any, eps: float) -> None:
    """Compare leaves: NaN and infinities in the same places, numbers to rounding, the rest exactly."""
    for x, y in zip(tree.leaves(found), tree.leaves(wanted), strict=True):
        a, b = x.detach().numpy(), y.detach().numpy()
        assert a.shape == b.shape and a.dtype == b.dtype
        if a.dtype.kind == "f":
            units = 2e4 * eps  # differences cancel
            finite = np.abs(b[np.isfinite(b)])
            np.testing.assert_allclose(a, b, rtol=units, atol=units * finite.max(initial=1.0))
        else:
            np.testing.assert_array_equal(a, b)


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = arrays(rng, 4)
    f = program(rng, 12)
    wanted = ad.compile(f, backend="replay")(*map(ad.asarray, given))
    compiled = ad.compile(f, backend="native")
    single = any(a.dtype == np.float32 for a in given)
    for _ in range(2):
        agree(compiled(*map(ad.asarray, given)), wanted, 1.2e-7 if single else 2.3e-16)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("level", machine.levels()[1:])
def test_other_vectors(level: str) -> None:
    for seed in range(100, 106):
        with machine.using(level):
            check(seed)


def test_threads_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(300, 257)).astype("f"), rng.normal(size=(257, 129)).astype("f")

    def f(x: Any, w: Any) -> Any:
        y = ad.tanh(x @ w)
        return y, ad.sum(y * y, axis=0), ad.logsumexp(y, axis=1), ad.mean(y), ad.exp(x).sum()

    alone = ad.compile(f, backend="native")(x, w)
    monkeypatch.setattr(native, "CHUNK", 500.0)
    cut = ad.compile(f, backend="native")
    for _ in range(3):
        for a, b in zip(cut(x, w), alone, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
