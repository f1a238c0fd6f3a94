"""``Trainer(compile=True)``: the same numbers, one native program, and errors for what it does not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import distributed, nn, optim, train
from adjoint.distributed import Group
from adjoint.errors import AdjointError

R = np.random.default_rng(0)
X, Y = R.normal(size=(52, 5)).astype(np.float32), R.integers(0, 3, 52)


def accuracy(prediction: Any, target: Any) -> Any:
    return (prediction.argmax(-1) == target).astype(np.float64).mean()


def squares(model: Any) -> Any:
    return sum((p**2).sum() for p in model.parameters())


def composed() -> Any:
    """A loss with a learned weight, a schedule and a fixed weight."""
    terms = {"fit": (nn.functional.cross_entropy, "learned"), "l2": (squares, lambda step: 1e-3 / (1 + step))}
    return train.compose({**terms, "again": (nn.functional.cross_entropy, 0.5)})


def trained(
    compile: bool, pieces: int, targets: Any = Y, loss: Any = nn.functional.cross_entropy, **options: Any
) -> tuple[Any, Any]:
    layers = [nn.Linear(5, 8, rng=0), nn.Tanh(), nn.Dropout(0.2, rng=ad.random.default_rng(1))]
    model = nn.Sequential(*layers, nn.Linear(8, 3, rng=1))
    params = [*model.parameters(), *(loss.parameters() if isinstance(loss, nn.Module) else ())]
    trainer = train.Trainer(
        model, loss, optim.Adam(params, lr=1e-2), accumulate=pieces, clip=1.0, compile=compile, progress=False,
        metrics={"accuracy": accuracy}, **options,
    )  # fmt: skip
    return trainer, trainer.fit(train.DataLoader((X, targets), 16, shuffle=True, seed=1), 3)


def check_equal(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    (a, eager), (b, compiled) = one, other
    for x, y in zip(eager, compiled, strict=True):
        assert x.keys() == y.keys()
        for name in x.keys() - {"seconds"}:
            np.testing.assert_allclose(y[name], x[name], rtol=1e-5)
    for p, q in zip(a.named_parameters().values(), b.named_parameters().values(), strict=True):
        np.testing.assert_allclose(q.numpy(), p.numpy(), rtol=1e-4, atol=1e-6)


def traces(trainer: Any) -> tuple[int, int]:
    return tuple([f.stats()["traces"] for f in (trainer.compiled.native, trainer.compiled.replay)])  # type: ignore[return-value]


@pytest.mark.parametrize("pieces", [1, 2])
def test_the_loss_curve_is_the_same(pieces: int) -> None:
    a, b = trained(False, pieces), trained(True, pieces)
    check_equal(a, b)
    assert traces(b[0]) == (1, 1)  # batches of 16 are native; the last one, of 4, runs by replay


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("term_norms", [None, 2])
def test_terms_of_a_composed_loss_are_logged(pieces: int, term_norms: int | None) -> None:
    a, b = [trained(c, pieces, loss=composed(), term_norms=term_norms) for c in (False, True)]
    check_equal(a, b)
    assert traces(b[0])[0] == 1  # the schedule of a weight does not trace again
    assert {"fit", "l2", "again"} < b[1][-1].keys()


def test_ignored_targets_have_no_weight() -> None:
    rng = np.random.default_rng(3)
    targets = np.where(rng.random(52) < 0.3, -100, Y)
    a, b = trained(False, 1, targets), trained(True, 1, targets)
    check_equal(a, b)
    assert traces(b[0])[0] == 1  # for any share of ignored targets


@pytest.mark.parametrize("pieces", [1, 4])
def test_a_piece_whose_targets_are_all_ignored_adds_nothing(pieces: int) -> None:
    targets = np.where(np.arange(52) % 3, -100, Y)
    targets[8:24] = -100
    made = []
    for compile in (False, True):
        model = nn.Linear(5, 3, rng=0)
        trainer = train.Trainer(
            model, nn.functional.cross_entropy, optim.Adam(model.parameters()), accumulate=pieces,
            compile=compile, progress=False,
        )  # fmt: skip
        made.append((trainer, trainer.fit([(X[:16], targets[:16]), (X[16:24], targets[16:24])], 2)))
    check_equal(*made)
    assert all(np.isfinite(p.numpy()).all() for p in made[1][0].named_parameters().values())
    assert np.isfinite(made[1][1][-1]["loss"])


def test_padded_batches() -> None:
    rng = np.random.default_rng(0)
    batches = []
    for length in (3, 5, 3, 7):
        values = rng.normal(size=(4, length)).astype(np.float32)
        batches.append((train.Padded(values, np.full(4, length)), values.sum(1)))

    def compute(model: Any, batch: Any) -> Any:
        x, y = batch
        return nn.functional.mse_loss(model(ad.asarray(x.values)[..., None]).sum((1, 2)), ad.asarray(y))

    found = []
    for compile in (False, True):
        model = nn.Linear(1, 2, rng=0)
        optimizer = optim.SGD(model.parameters(), lr=1e-3)
        trainer = train.Trainer(model, None, optimizer, compute=compute, compile=compile, progress=False)
        found.append((trainer, trainer.fit(batches, 3)))
    check_equal(*found)
    assert traces(found[1][0]) == (0, 3)  # one for each length


@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, composed])
def test_any_number_of_ranks_gives_the_same_bits(loss: Any) -> None:
    def run(group: Any, compile: bool = True) -> Any:
        whole = composed() if loss is composed else loss
        trainer, history = trained(compile, 4, loss=whole, group=group, term_norms=3)
        return trainer, [{k: v for k, v in logs.items() if k != "seconds"} for logs in history]

    def bits(found: Any) -> Any:
        trainer, history = found
        return [p.numpy().tobytes() for p in trainer.named_parameters().values()], history

    alone = run(Group())
    for size in (2, 3):
        assert [bits(f) for f in distributed.simulate(size, run)] == [bits(alone)] * size
    check_equal(run(Group(), False), alone)


def test_what_it_does_not_take_is_an_error() -> None:
    model = nn.Linear(5, 3, rng=0)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    bad = {"accuracy": lambda p, t: accuracy(p, t).item()}
    trainer = train.Trainer(
        model, nn.functional.cross_entropy, optimizer, compile=True, metrics=bad, progress=False
    )
    with pytest.raises(
        AdjointError, match=r"test_train_compiled\.py:\d+ reads the value of a tensor with item\(\)"
    ):
        trainer.fit(train.DataLoader((X, Y), 16))
