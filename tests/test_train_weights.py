"""How much a batch counts: accumulation and evaluation give the mean over the whole."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim, train

F = nn.functional
RNG = np.random.default_rng(0)
IGNORED = -100
INPUTS = RNG.normal(size=(12, 3))
CLASSES = np.array([0, 1, IGNORED, IGNORED, IGNORED, IGNORED, 2, 0, IGNORED, 1, 2, 2])
WORDS = [[1, 2, 3, 4, 5, 6, 7], [1], [2, 3], [4, 5], [6], [1, 2]]


def gradient_of(loss: Any, batch: Any, pieces: int, width: int = 3, **options: Any) -> Any:
    """Return loss and gradient norm of one step, and the weights after it."""
    model = nn.Linear(3, width, rng=0).astype(np.float64)
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    trainer = train.Trainer(model, loss, optimizer, accumulate=pieces, **options)
    logs = trainer.train_step(batch)
    return np.concatenate([[logs["loss"], logs["grad_norm"]], model.weight.numpy().ravel()])


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy,
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=np.array([0.5, 1.0, 4.0]), label_smoothing=0.1),
        nn.CrossEntropyLoss(ignore_index=2),
        train.compose({"fit": (nn.CrossEntropyLoss(), 2.0), "l2": (lambda model: (model.weight**2).sum(), 0.1)}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pieces", [2, 3, 6, 12])
def test_targets_that_are_ignored_do_not_count(loss: Any, pieces: int) -> None:
    classes = np.abs(CLASSES) % 4 % 3 if getattr(loss, "options", {}).get("ignore_index") == 2 else CLASSES
    batch = (INPUTS, classes)
    whole = gradient_of(loss, batch, 1)
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(gradient_of(loss, batch, pieces), whole, rtol=1e-10)


def test_evaluation_is_the_mean_over_what_counts() -> None:
    model = nn.Linear(3, 3, rng=0).astype(np.float64)
    trainer = train.Trainer(model, F.cross_entropy, optim.SGD(model.parameters()))
    expected = F.cross_entropy(model(INPUTS), CLASSES).item()
    for size in (1, 4, 5):
        assert trainer.evaluate(train.DataLoader((INPUTS, CLASSES), size))["loss"] == pytest.approx(expected)


def test_a_batch_in_which_all_is_ignored_makes_no_update() -> None:
    model = nn.Linear(3, 3, rng=0, dtype=np.float64)
    before = model.weight.numpy()
    trainer = train.Trainer(model, F.cross_entropy, optim.Adam(model.parameters()))
    logs = trainer.train_step((INPUTS, np.full(12, IGNORED)))
    assert math.isnan(logs["loss"]) and np.array_equal(model.weight.numpy(), before)
    (epoch,) = trainer.fit([(INPUTS, np.full(12, IGNORED)), (INPUTS, CLASSES)])
    assert math.isfinite(epoch["loss"]) and np.isfinite(model.weight.numpy()).all()


@pytest.mark.parametrize("pieces", [2, 3, 6])
def test_a_label_per_sequence_counts_by_sequences_and_a_target_per_token_by_lengths(pieces: int) -> None:
    table = RNG.normal(size=(8, 3))

    def of_sequences(model: Any, batch: Any) -> Any:
        (words, lengths), labels = batch
        inside = np.arange(words.shape[1]) < lengths[:, None]
        means = (table[words] * inside[..., None]).sum(1) / lengths[:, None]
        return F.cross_entropy(model(ad.asarray(means)), labels)

    def of_tokens(model: Any, batch: Any) -> Any:
        (words, _), (targets, _) = batch
        return F.cross_entropy(model(ad.asarray(table[words])).moveaxis(-1, 1), targets)

    labels = [0, 1, 2, 2, 1, 0]
    batch = train.pad_collate([(np.array(w), label) for w, label in zip(WORDS, labels, strict=True)])
    whole = gradient_of(None, batch, 1, compute=of_sequences)
    np.testing.assert_allclose(gradient_of(None, batch, pieces, compute=of_sequences), whole, rtol=1e-10)

    inputs = train.pad_collate([np.array(w) for w in WORDS])
    targets = train.pad_collate([np.array(w) % 3 for w in WORDS], value=IGNORED)
    pairs = (inputs, targets)
    whole = gradient_of(None, pairs, 1, compute=of_tokens)
    np.testing.assert_allclose(gradient_of(None, pairs, pieces, compute=of_tokens), whole, rtol=1e-10)


def test_what_counts_where() -> None:
    padded = train.pad_collate(WORDS)
    rows = np.zeros((6, 2))
    seen: list[float] = []

    class Weight(train.Callback):
        def on_step(self, trainer: Any, logs: Any) -> None:
            seen.append(trainer._last_weight)

    model = nn.Linear(2, 1, rng=0)
    trainer = train.Trainer(
        model,
        optimizer=optim.SGD(model.parameters()),
        compute=lambda model, batch: (model.weight**2).sum(),
        callbacks=Weight(),
    )
    trainer.fit([padded, (rows, padded), (padded, rows), (padded, padded), {"a": padded, "b": rows}, rows])
    assert seen == [15, 15, 6, 15, 6, 6]
