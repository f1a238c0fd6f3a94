"""How much a batch counts: accumulation and evaluation give the mean over the whole."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim, train
from adjoint.errors import ArgumentError

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


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_batch_in_which_all_is_ignored_makes_no_update(pieces: int) -> None:
    model = nn.Linear(3, 3, rng=0, dtype=np.float64)
    before = model.weight.numpy()
    trainer = train.Trainer(
        model,
        F.cross_entropy,
        optim.Adam(model.parameters()),
        accumulate=pieces,
        metrics={"one": lambda p, t: 1.0},
    )
    logs = trainer.train_step((INPUTS, np.full(12, IGNORED)))
    assert math.isnan(logs["loss"]) and np.array_equal(model.weight.numpy(), before)
    assert math.isnan(logs["one"]) and math.isnan(logs["grad_norm"])
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


# Losses that the trainer does not know by name --------------------------------------------------

WEIGHT = np.array([0.5, 1.0, 4.0])
LOG_SOFTMAX = functools.partial(ad.nn.functional.log_softmax, axis=-1)


class Wrapped(nn.Module):
    """A user's own loss around one of the library."""

    def __init__(self) -> None:
        self.inner = nn.CrossEntropyLoss(weight=WEIGHT)

    def forward(self, prediction: Any, target: Any) -> Any:
        return 3.0 * self.inner(prediction, target)


@pytest.mark.parametrize(
    "loss",
    [
        functools.partial(F.cross_entropy, weight=WEIGHT),
        functools.partial(F.cross_entropy, label_smoothing=0.1),
        lambda prediction, target: F.cross_entropy(prediction, target),
        lambda prediction, target: F.cross_entropy(prediction, target, weight=WEIGHT) * 2.0,
        lambda prediction, target: F.nll_loss(LOG_SOFTMAX(prediction), target),
        lambda prediction, target: F.cross_entropy(prediction, target, reduction="none").mean(),
        Wrapped(),
        train.compose({"a": (lambda p, t: F.cross_entropy(p, t), 2.0), "b": (F.cross_entropy, 0.5)}),
        train.compose(
            {"fit": F.cross_entropy, "l2": lambda model: F.mse_loss(model.weight, 0 * model.weight, reduction="sum")}
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pieces", [2, 3, 6, 12])
def test_functions_around_a_loss_that_ignores_targets_or_weighs_classes(loss: Any, pieces: int) -> None:
    whole = gradient_of(loss, (INPUTS, CLASSES), 1)
    np.testing.assert_allclose(gradient_of(loss, (INPUTS, CLASSES), pieces), whole, rtol=1e-10)

    def compute(model: Any, batch: Any) -> Any:
        inputs, targets = batch
        prediction = model(ad.asarray(inputs))
        extra = (model,) if isinstance(loss, train.ComposedLoss) else ()
        return loss(prediction, targets, *extra), {"mse": F.mse_loss(prediction, INPUTS[: len(inputs)])}

    if isinstance(
        loss, functools.partial
    ):  # its result is the loss, so what else was computed does not matter
        found = gradient_of(None, (INPUTS, CLASSES), pieces, compute=compute)
        np.testing.assert_allclose(found, whole, rtol=1e-10)


@pytest.mark.parametrize("pieces", [2, 3, 6])
def test_padded_targets_most_of_which_are_ignored(pieces: int) -> None:
    table = RNG.normal(size=(8, 3))

    def compute(model: Any, batch: Any) -> Any:
        (words, _), (targets, _) = batch
        return F.cross_entropy(model(ad.asarray(table[words])).moveaxis(-1, 1), targets)

    inputs = train.pad_collate([np.array(w) for w in WORDS])
    targets = train.pad_collate([np.where(np.array(w) % 2, np.array(w) % 3, IGNORED) for w in WORDS], value=IGNORED)  # fmt: skip
    whole = gradient_of(None, (inputs, targets), 1, compute=compute)
    np.testing.assert_allclose(
        gradient_of(None, (inputs, targets), pieces, compute=compute), whole, rtol=1e-10
    )


SUMS = [
    nn.MSELoss(reduction="sum"),
    nn.CrossEntropyLoss(reduction="sum"),
    functools.partial(F.l1_loss, reduction="sum"),
    lambda prediction, target: 0.5 * F.huber_loss(prediction, target, reduction="sum"),
    train.compose({"fit": (nn.MSELoss(reduction="sum"), 0.1)}),
]


@pytest.mark.parametrize("loss", SUMS)
def test_a_sum_is_refused_where_pieces_are_averaged(loss: Any) -> None:
    classes = isinstance(loss, nn.CrossEntropyLoss)
    batch = (INPUTS, CLASSES if classes else INPUTS)
    assert np.isfinite(gradient_of(loss, batch, 1)).all()
    with pytest.raises(ArgumentError, match=r'the loss is a sum \(reduction="sum"\)'):
        gradient_of(loss, batch, 2)


def test_a_sum_that_is_divided_afterwards_needs_a_weight() -> None:
    def loss(prediction: Any, target: Any) -> Any:
        return F.cross_entropy(prediction, target, reduction="sum") / (np.asarray(target) != IGNORED).sum()

    batch = (INPUTS[[0, 1, 2, 6]], CLASSES[[0, 1, 2, 6]])
    with pytest.raises(ArgumentError, match="or pass weight= if the loss is then divided by that weight"):
        gradient_of(loss, batch, 2)
    kept = lambda batch: (np.asarray(batch[1]) != IGNORED).sum()
    whole = gradient_of(loss, batch, 1, weight=kept)
    np.testing.assert_allclose(gradient_of(loss, batch, 2, weight=kept), whole, rtol=1e-10)
    with pytest.raises(ArgumentError, match=r"accumulate=1\.$"):
        gradient_of(nn.CrossEntropyLoss(reduction="sum"), batch, 2, weight=kept)


def test_terms_over_different_weights_are_refused_where_pieces_are_averaged() -> None:
    def loss(prediction: Any, target: Any) -> Any:
        return F.cross_entropy(prediction, target) + F.mse_loss(prediction, INPUTS[: len(target)])

    assert np.isfinite(gradient_of(loss, (INPUTS, CLASSES), 1)).all()
    with pytest.raises(ArgumentError, match="means with different divisors"):
        gradient_of(loss, (INPUTS, CLASSES), 2)
    assert np.isfinite(gradient_of(loss, (INPUTS, np.abs(CLASSES) % 3), 2)).all()


@pytest.mark.parametrize("seed", range(40))
def test_random_losses_of_classes_in_random_pieces(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, pieces = int(rng.integers(2, 14)), int(rng.integers(2, 6))
    ignore = int(rng.choice([IGNORED, 1]))
    classes = np.where(rng.random(rows) < rng.choice([0.0, 0.3, 0.7]), ignore, rng.integers(0, 3, rows))
    classes[0] = 0
    weight = rng.choice([None, 1])
    options = {"ignore_index": ignore, "weight": None if weight is None else rng.random(3) + 0.1}
    function = F.cross_entropy if rng.random() < 0.5 else lambda p, t, **o: F.nll_loss(LOG_SOFTMAX(p), t, **o)
    loss = functools.partial(function, **options)
    batch = (rng.normal(size=(rows, 3)), classes)
    whole = gradient_of(loss, batch, 1)
    np.testing.assert_allclose(gradient_of(loss, batch, pieces), whole, rtol=1e-9)
