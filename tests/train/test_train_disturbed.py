"""Callbacks, failures, interruptions and comparisons do not change a training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_trainings import Count, FailingLoss, Noise, Stop, Training, check_training

import adjoint as ad
from adjoint import nn, optim, train
from adjoint.errors import ArgumentError

F = nn.functional
DATA = np.random.default_rng(1)
X = DATA.normal(size=(28, 4)).astype(np.float32)
Y = DATA.normal(size=(28, 2)).astype(np.float32)


@pytest.mark.parametrize("seed", range(24))
def test_random_trainings(seed: int, tmp_path: Path) -> None:
    check_training(seed, tmp_path)


def make(callbacks: Any = (), loss: Any = F.mse_loss, lr: float = 0.05, **options: Any) -> Any:
    model = nn.Sequential(
        nn.Linear(4, 5, rng=0), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.3, rng=1), nn.Linear(5, 2, rng=2)
    )
    optimizer = optim.Adam(model.parameters(), lr=lr)
    return train.Trainer(model, loss, optimizer, callbacks=callbacks, progress=False, **options)


def loader() -> train.DataLoader:
    return train.DataLoader((X, Y), 8, shuffle=True, seed=3)


def bits(trainer: Any) -> Any:
    optimizer = trainer.optimizer
    states = [a.tobytes() for p in optimizer.params for a in optimizer.state_of(p).values()]
    rng = [
        m.rng.state
        for m in trainer.model.modules()
        if isinstance(getattr(m, "rng", None), ad.random.Generator)
    ]
    return {k: v.tobytes() for k, v in trainer.model.state_dict().items()}, states, rng, trainer.step


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_recorder_does_not_change_a_compiled_training(accumulate: int, tmp_path: Path) -> None:
    plain = make(compile=True, accumulate=accumulate)
    plain.fit(loader(), 3)
    recorder = ad.inspect.Recorder()
    recorded = make([recorder], compile=True, accumulate=accumulate)
    recorded.fit(loader(), 3)
    assert bits(recorded) == bits(plain)
    assert recorder.captured is not None and len(recorder.captured.graph.boxes) > 5
    for stop in (3, 8, 0):
        resumed = make(
            [ad.inspect.Recorder(), Stop(stop)],
            compile=True,
            accumulate=accumulate,
            directory=tmp_path / "run",
        )
        resumed.fit(loader(), 3, resume=True)
    assert bits(resumed) == bits(plain)


def test_a_compiled_training_resumes_at_a_short_batch(tmp_path: Path) -> None:
    """Batches of the first size run as native code, also if the resumed run starts with another size."""
    plain = make(compile=True)
    plain.fit(loader(), 3)
    for stop in (3, 0):  # the fourth batch of an epoch has 4 examples, not 8
        resumed = make([Stop(stop)], compile=True, directory=tmp_path)
        resumed.fit(loader(), 3, resume=True)
        assert resumed.compiled.rows == 8
    assert bits(resumed) == bits(plain)


SUMS = {
    "sum": lambda p, t: ((p - t) ** 2).sum(),
    "divided": lambda p, t: ((p - t) ** 2).sum() / 8,
    "examples": lambda p, t: ((p - t) ** 2).mean(1).sum(),
    "with a mean": lambda p, t: ((p - t) ** 2).sum() + 3 * (p - t).abs().mean(),
    "with a constant": lambda p, t: ((p - t) ** 2).sum() + 5.0,
}
OTHERS = {
    "mean": lambda p, t: ((p - t) ** 2).mean(),
    "sum by count": lambda p, t: ((p - t) ** 2).sum() / p.shape[0],
    "root": lambda p, t: ad.sqrt(((p - t) ** 2).mean()),
    "zero": lambda p, t: ((p - t) ** 2).sum() * 0,
    "nan": lambda p, t: ((p - t) ** 2).mean() * np.nan,
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("compile", [False, True])
def test_a_loss_that_is_a_sum_is_an_error_with_accumulate(name: str, compile: bool) -> None:
    trainer = make(loss=SUMS[name], accumulate=3, compile=compile)
    before = bits(trainer)
    with pytest.raises(ArgumentError, match=r"this loss is a sum over the examples"):
        trainer.fit(loader())
    assert bits(trainer) == before
    make(loss=SUMS[name], accumulate=1, compile=compile).fit(loader())


def test_the_message_says_what_to_write() -> None:
    model = nn.Linear(1, 1)
    model.load_state_dict({"weight": np.ones((1, 1), "f"), "bias": np.zeros(1, "f")})
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    trainer = train.Trainer(model, lambda p, t: (p - t).sum(), optimizer, accumulate=2, progress=False)
    with pytest.raises(ArgumentError) as caught:
        trainer.fit([(np.array([[1.0], [2.0]], "f"), np.zeros((2, 1), "f"))])
    assert str(caught.value) == (
        "Trainer: accumulate= averages the losses of the pieces of a batch, but this loss is a sum over the examples:\n"
        "  it is 3 for some examples, 1 and 2 for their halves.\n"
        "  Return a mean, such as ((prediction - target) ** 2).mean(), or use accumulate=1.\n"
        "  If the loss is divided by a number of its own, such as the number of tokens, pass weight=, a function of a "
        "batch that returns this number."
    )


@pytest.mark.filterwarnings("ignore:the loss is nan")
@pytest.mark.parametrize("name", OTHERS)
def test_other_losses_are_accepted_with_accumulate(name: str) -> None:
    make(loss=OTHERS[name], accumulate=3).fit(loader())


def test_weights_that_do_not_fit_the_loss_are_an_error_with_accumulate() -> None:
    def weight(batch: Any) -> float:
        return float(np.abs(batch[0]).sum())

    with pytest.raises(ArgumentError, match=re.escape("a mean over the examples with other weights")):
        make(loss=OTHERS["mean"], accumulate=3, weight=weight).fit(loader())
    make(loss=OTHERS["mean"], accumulate=3, weight=lambda batch: len(batch[0])).fit(loader())


def test_the_comparison_of_losses_changes_nothing() -> None:
    """A mean that is known as such trains as one that is compared; the modules also act in evaluation."""
    found = []
    for compared in (False, True):
        model = nn.Sequential(nn.Linear(4, 4, rng=0), Noise(False), Count(), nn.Linear(4, 2, rng=1))
        trainer = train.Trainer(
            model, OTHERS["mean"], optim.SGD(model.parameters(), lr=0.1), accumulate=2, progress=False
        )
        trainer._compared = not compared
        trainer.fit(loader())
        assert trainer._compared
        found.append(bits(trainer))
    assert found[0] == found[1]


class Failing(train.Callback):
    """Raises once, at one event of a step."""

    def __init__(self, event: str, at: int) -> None:
        self.event, self.at, self.armed = event, at, True

    def meet(self, event: str, trainer: Any) -> None:
        if event == self.event and trainer.step == self.at and self.armed:
            self.armed = False
            raise FloatingPointError("meant")

    def before_update(self, trainer: Any, logs: Any) -> None:
        self.meet("before_update", trainer)

    def on_step(self, trainer: Any, logs: Any) -> None:
        self.meet("on_step", trainer)


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("event", ["loss", "before_update", "on_step"])
def test_a_batch_that_failed_can_be_used_again(event: str, accumulate: int, compile: bool) -> None:
    plain = make(accumulate=accumulate, compile=compile)
    plain.fit(loader(), 3)
    failing = Failing(event, 5)
    trainer = make([failing], accumulate=accumulate, compile=compile)
    if event == "loss":
        trainer._compared = True  # the loss raises in training, not in the comparison before it
        trainer.loss = FailingLoss(F.mse_loss)
        trainer.loss.left = 0 if compile else 5 * accumulate  # a compiled loss runs once, as a trace
    batches = loader()
    with pytest.raises(FloatingPointError, match="meant"):
        trainer.fit(batches, 3)
    trainer.fit(batches, 3)
    assert bits(trainer) == bits(plain)


def test_a_validation_that_failed_is_repeated() -> None:
    found = []
    for fails in (False, True):
        training = Training(0, compile=False)
        training.middle, training.kind, training.validate, training.options = [4], "mse", True, False
        training.pieces = 1
        trainer = training.trainer([])
        batches = training.loader()
        if fails:
            training.failing.left = -(-28 // training.size)  # type: ignore[union-attr]
            with pytest.raises(FloatingPointError, match="meant"):
                training.fit(trainer, batches)
            assert trainer.trained
        training.fit(trainer, batches)
        found.append(training.bits(trainer))
    assert found[0] == found[1]


def test_resuming_with_changed_options_says_so(tmp_path: Path) -> None:
    make([Stop(5)], directory=tmp_path).fit(loader(), 2)
    make([Stop(6)], directory=tmp_path).fit(loader(), 2, resume=True)  # nothing changed: no warning
    trainer = make([Stop(7)], lr=0.01, directory=tmp_path)
    trainer.optimizer.groups[0].hyper["amsgrad"] = True
    with pytest.warns(UserWarning, match="resume") as caught:
        trainer.fit(loader(), 2, resume=True)
    assert [str(w.message) for w in caught] == [
        "fit(resume=True) continues with the options of the checkpoint: lr = 0.05, not 0.01; amsgrad = False, "
        "not True.\n  To change options, call fit(loader, 0, resume=True), which only loads the checkpoint, set them "
        "(trainer.optimizer.lr = …), and call fit without resume."
    ]
    trainer.optimizer.lr = 0.02  # between two calls of fit
    with pytest.warns(UserWarning, match=r"lr = 0\.05, not 0\.02"):
        trainer.fit(loader(), 2, resume=True)
    make(lr=0.3, schedule=lambda step: 0.1, directory=tmp_path).fit(
        loader(), 2, resume=True
    )  # lr is not used


def test_loading_a_checkpoint_without_training(tmp_path: Path) -> None:
    """A call with no epochs left keeps the place in the data, so the next call continues there."""
    plain = make()
    plain.fit(loader(), 3)
    make([Stop(5)], directory=tmp_path).fit(loader(), 3)
    trainer, batches = make(directory=tmp_path), loader()
    trainer.fit(batches, 0, resume=True)
    trainer.fit(batches, 3)
    assert bits(trainer) == bits(plain)


def test_an_interrupted_training_does_not_leave_a_mode_set() -> None:
    """Ctrl-C at the end of a ``no_grad`` block, which is Python code, leaves the mode off inside ``fit``."""

    def loss(prediction: Any, target: Any) -> Any:
        ad.set_grad_enabled(False)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(loss=loss).fit(loader())
    assert ad.is_grad_enabled()
