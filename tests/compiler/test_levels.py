"""The option ``level`` of ``ad.compile``: fixed lanes, and no Python in a training step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from steps import bits

import adjoint as ad
from adjoint import nn, optim
from adjoint.errors import ArgumentError

pytest.importorskip("llvmlite")


def training(kind: Any, **options: Any) -> tuple[Any, Any, Any]:
    """A model, its optimiser, and a step that trains it."""
    model = nn.Sequential(nn.Linear(3, 5, rng=0), nn.Tanh(), nn.Linear(5, 1, rng=1)).astype(np.float64)
    optimizer = kind(model.parameters(), **options)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, step


KINDS = [
    (optim.Adam, {"lr": 0.1}), (optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}), (optim.SGD, {"lr": 0.1}),
    (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.01}), (optim.RMSprop, {"lr": 0.01}), (optim.NAdam, {"lr": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=lambda v: getattr(v, "__name__", ""))
def test_numbers_of_optimisers_are_computed_by_the_program(kind: Any, options: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3)), rng.normal(size=(4, 1))
    eager, (model, optimizer, step) = training(kind, **options), training(kind, **options)
    compiled = ad.compile(step, level="portable")
    for k in range(5):
        for side in (eager[1], optimizer):
            side.lr = 0.1 / (k + 1)
        np.testing.assert_allclose(compiled(x, y), eager[2](x, y), rtol=1e-12)
    for a, b in zip(model.parameters(), eager[0].parameters(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10)
    assert optimizer.step_count == 5
    assert compiled.stats()["traces"] == 1
    assert ("pow" in compiled.program(x, y)) == ("betas" in optimizer.defaults and kind.pure)


def test_a_level_is_native_from_the_first_call() -> None:
    f = ad.compile(lambda x: ad.sin(x).sum(), level="portable")
    x = np.linspace(-1e20, 1e20, 1001)
    assert bits(f(x)) == bits(f(x))
    assert bits(ad.compile(f, level="none")(x)) != b""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "sse9"}, "kernels cannot be compiled for 'sse9': this processor supports "),
        (
            {"level": "portable", "flush": True},
            'compile: flush=True cannot be combined with level="portable", because not all processors can replace'
            "\n  subnormal numbers.  Leave out one of the two.",
        ),
        (
            {"level": "portable", "backend": "replay"},
            "compile: level='portable' selects instructions of native code, but backend is \"replay\".\n"
            "  Leave out one of the two.",
        ),
    ],
    ids=["unknown", "flush", "replay"],
)
def test_options_that_cannot_be_combined(options: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        ad.compile(ad.sin, **options)
    assert str(error.value).startswith(message)
