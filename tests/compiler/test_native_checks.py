"""Checks of values are flags that kernels compute; where one is set, the program raises as eager mode does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import ArgumentError
from adjoint.nn import functional as F  # noqa: N812  as in the documentation

pytest.importorskip("llvmlite")


@pytest.mark.parametrize("backend", ["native", "replay"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (0,)])
def test_probabilities(shape: tuple[int, ...], backend: str) -> None:
    r = np.random.default_rng(0)
    p, t = (r.uniform(0.1, 0.9, shape).astype("f4") for _ in range(2))
    w = ad.tensor(np.ones((), "f4"), requires_grad=True)

    def step(p: Any) -> Any:
        loss = F.binary_cross_entropy(ad.sigmoid(w) * p, t, reduction="sum") + (p * 0).sum()
        F.binary_cross_entropy(p, t, reduction="sum")
        loss.backward()
        with ad.no_grad():
            w.copy_(w - 0.1 * w.grad)
            w.grad = None
        return loss

    compiled = ad.compile(step, backend=backend)
    for _ in range(3):
        compiled(p)
    if backend == "native":
        assert "0 calls of NumPy" in compiled.explain(p)
    if not shape:
        return
    before = w.item()
    for bad in (-0.25, 1.5, np.nan):
        wrong = p.copy()
        wrong[-1:] = bad
        if not wrong.size:
            continue
        with (
            pytest.raises(ArgumentError, match="must be probabilities between 0 and 1"),
            np.errstate(all="ignore"),
        ):
            compiled(wrong)
        assert w.item() == before


def test_a_probability_from_an_expression_that_is_not_finite() -> None:
    f = ad.compile(lambda x: F.binary_cross_entropy(x / x, np.ones(3)), backend="native")
    assert f(np.ones(3)) == 0.0
    with pytest.raises(ArgumentError, match="ranges from nan"), np.errstate(all="ignore"):
        f(np.array([1.0, 0.0, 1.0]))


def test_parameters_of_distributions() -> None:
    generator = ad.random.Generator(0)
    f = ad.compile(lambda s: generator.normal(0.0, s), backend="native")
    f(np.ones(4))
    with pytest.raises(ArgumentError, match="one value is -1"):
        f(np.array([1.0, -1.0, 2.0, 3.0]))
