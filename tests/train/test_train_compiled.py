"""``Trainer(compile=True)``: the same numbers, one native program, and errors for what it does not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim, train
from adjoint.errors import AdjointError

R = np.random.default_rng(0)
X, Y = R.normal(size=(52, 5)).astype(np.float32), R.integers(0, 3, 52)


def accuracy(prediction: Any, target: Any) -> Any:
    return (prediction.argmax(-1) == target).astype(np.float64).mean()


def trained(compile: bool, pieces: int, targets: Any = Y) -> tuple[Any, Any]:
    layers = [nn.Linear(5, 8, rng=0), nn.Tanh(), nn.Dropout(0.2, rng=ad.random.default_rng(1))]
    model = nn.Sequential(*layers, nn.Linear(8, 3, rng=1))
    trainer = train.Trainer(
        model, nn.functional.cross_entropy, optim.Adam(model.parameters(), lr=1e-2), accumulate=pieces,
        clip=1.0, compile=compile, progress=False, metrics={"accuracy": accuracy},
    )  # fmt: skip
    return trainer, trainer.fit(train.DataLoader((X, targets), 16, shuffle=True, seed=1), 3)


@pytest.mark.parametrize("pieces", [1, 2])
def test_the_loss_curve_is_the_same(pieces: int) -> None:
    (a, eager), (b, compiled) = trained(False, pieces), trained(True, pieces)
    for x, y in zip(eager, compiled, strict=True):
        for name in ("loss", "accuracy", "grad_norm", "lr"):
            np.testing.assert_allclose(y[name], x[name], rtol=1e-5)
    for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True):
        np.testing.assert_allclose(q.numpy(), p.numpy(), rtol=1e-4, atol=1e-6)
    # batches of 16, and the last one of 4: one native program, and one by replay
    assert b.compiled.native.stats()["traces"] == 1
    assert b.compiled.replay.stats()["traces"] == 1


def test_ignored_targets_have_no_weight() -> None:
    targets = np.where(np.arange(52) % 7, Y, -100)
    (_, eager), (_, compiled) = trained(False, 1, targets), trained(True, 1, targets)
    np.testing.assert_allclose([h["loss"] for h in compiled], [h["loss"] for h in eager], rtol=1e-5)


def test_what_it_does_not_take_is_an_error() -> None:
    model = nn.Linear(5, 3, rng=0)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(AdjointError, match="composed loss"):
        train.Trainer(model, train.compose({"a": nn.functional.cross_entropy}), optimizer, compile=True)
    bad = {"accuracy": lambda p, t: accuracy(p, t).item()}
    trainer = train.Trainer(
        model, nn.functional.cross_entropy, optimizer, compile=True, metrics=bad, progress=False
    )
    with pytest.raises(AdjointError, match="not available inside"):
        trainer.fit(train.DataLoader((X, Y), 16))
