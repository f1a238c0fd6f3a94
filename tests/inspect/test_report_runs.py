"""What a report says about a whole run: resumed runs, overfitting, compiled steps."""

from __future__ import annotations

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim, train
from adjoint.inspect.reporting import report_data
from adjoint.inspect.sentences import sentences

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 6)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int64)


def trainer_of(callbacks=(), **more):
    model = nn.Sequential(nn.Linear(6, 16, rng=0), nn.Tanh(), nn.Linear(16, 2, rng=1))
    optimizer, loss = optim.Adam(model.parameters(), lr=1e-2), nn.functional.cross_entropy
    return train.Trainer(model, loss, optimizer, callbacks=callbacks, progress=False, **more)


def loader():
    return train.DataLoader((X, Y), 16)


def everything(recorder):
    """The data of the page that do not depend on times."""
    data = report_data(recorder, "run")
    return {
        k: data[k] for k in ("steps", "validation", "parameters", "gradients", "ratios", "spread", "windows")
    }


def said(recorder):
    return [text for _, text, _ in sentences(recorder) if "loss" in text]


def test_the_report_of_a_resumed_run_shows_the_whole_run(tmp_path):
    whole = ad.inspect.Recorder()
    trainer_of(whole, accumulate=2, clip=1.0).fit(loader(), 6, validate=loader())
    pytest.importorskip("safetensors")
    trainer_of(ad.inspect.Recorder(), accumulate=2, clip=1.0, directory=tmp_path).fit(
        loader(), 3, validate=loader()
    )
    second = ad.inspect.Recorder()
    trainer_of(second, accumulate=2, clip=1.0, directory=tmp_path).fit(
        loader(), 6, validate=loader(), resume=True
    )
    assert everything(second) == everything(whole) and said(second) == said(whole)
    assert second.steps == list(range(1, 37)) and len(second.epochs) == 6
    assert second.captured is not None and second.captured.step > 18


def test_an_empty_recorder_is_restored_and_ragged_data_survive():
    recorder, other = ad.inspect.Recorder(), ad.inspect.Recorder()
    other.load_state_dict(recorder.state_dict())
    assert everything(other) == everything(recorder)
    w, frozen = ad.tensor([1.0, 0.0], requires_grad=True), ad.tensor([2.0])
    for step in range(3):
        (w * w).sum().backward()
        recorder.record(
            np.nan if step else 1.0, {"w.0": w, "frozen": frozen}, **({"odd.name": 3.0} if step else {})
        )
    other.load_state_dict(recorder.state_dict())
    assert other.numbers["odd.name"] == [None, 3.0, 3.0]
    assert everything(other) == everything(recorder) and said(other) == said(recorder)


def test_a_recorder_that_joins_late_shows_the_epochs_before():
    t = trainer_of()
    t.fit(loader(), 3, validate=loader())
    first = t.history[0]["loss"]
    recorder = ad.inspect.Recorder()
    t.callbacks.append(recorder)
    t.fit(loader(), 5, validate=loader())
    data = report_data(recorder, "run")
    assert data["steps"]["step"] == [6, 12, 18, *range(19, 31)]
    assert data["steps"]["loss"][0] == pytest.approx(first, rel=1e-4)
    assert data["gradients"]["step"] == list(range(19, 31))
    assert data["validation"]["step"] == [6, 12, 18, 24, 30] and "30 steps" in data["facts"]
    assert any("of 5." in text for text in said(recorder))


def validated(losses, scores):
    recorder = ad.inspect.Recorder()
    recorder.epochs = [
        (i + 1, {"loss": a, "val_loss": b}) for i, (a, b) in enumerate(zip(losses, scores, strict=True))
    ]
    return next((s for s in sentences(recorder) if s[1].startswith("The validation loss is")), None)


def test_a_loss_that_stays_is_told():
    recorder = ad.inspect.Recorder()
    recorder.steps, recorder.numbers = [1, 2, 3], {"loss": [0.37, 0.37, 0.37001]}
    assert sentences(recorder) == [("warn", "The loss is 0.37 after 3 steps, as at the start.", "")]


@pytest.mark.parametrize(
    ("last", "level", "text"),
    [
        (1.9, "good", "The loss fell from 4 to 1.9 in 2 steps."),
        (2.7, "note", "The loss fell from 4 to 2.7 in 2 steps."),
        (3.9, "warn", "The loss fell only from 4 to 3.9 in 2 steps."),
        (4.2, "bad", "The loss rose from 4 to 4.2 in 2 steps."),
        (-1.0, "good", "The loss fell from 4 to -1 in 2 steps."),
    ],
)
def test_a_warning_about_the_loss_says_why(last, level, text):
    recorder = ad.inspect.Recorder()
    recorder.steps, recorder.numbers = [1, 2], {"loss": [4.0, last]}
    assert sentences(recorder) == [(level, text, "")]


def texts(steps, losses, gradients, ratios):
    recorder = ad.inspect.Recorder()
    recorder.steps, recorder.numbers = steps, {"loss": losses, "grad_norm": losses}
    recorder.names, recorder.gradients, recorder.ratios, recorder.clip = ["w", "b"], gradients, ratios, 0.5
    return [text for _, text, _ in sentences(recorder)]


def test_gradients_that_are_not_finite_are_not_said_to_be_missing():
    nan, inf = float("nan"), float("inf")
    assert texts([1, 2], [nan, inf], [[nan, inf], [inf, 2.0]], [[nan, None], [inf, nan]]) == [
        "The loss was not finite in 2 of 2 steps.",
        "1 of 2 steps was clipped at 0.5.",
        "The gradient of w, b was not finite in 2 of 2 steps.",
    ]
    assert texts([1, 2], [3.0, 1.0], [[0.0, 1.0], [0.0, nan]], [[0.001, 0.1], [nan, 0.001]])[-3:] == [
        "The gradient of b was not finite in 1 of 2 steps.",
        "No gradient reaches w.",
        "A typical update changes a weight by 0.001 of its size.",
    ]


def test_one_step_is_not_compared_and_is_singular():
    assert texts([1], [2.0], [[1.0, 1.0]], []) == [
        "The loss is 2 after 1 step.",
        "1 of 1 step was clipped at 0.5.",
        "A gradient reaches all 2 parameters.",
    ]


def test_overfitting_is_seen():
    level, text, _ = validated([2, 1, 0.6, 0.3, 0.1, 0.05], [2, 1.1, 0.9, 1.0, 1.2, 1.3])
    assert level == "warn" and text == (
        "The validation loss is 1.3; the best epoch is 3 of 6.  Since then it rose from 0.9 to 1.2 while the "
        "training loss fell from 0.6 to 0.1: the model overfits."
    )
    assert validated([2.0, 1.0], [1.0, 1.2])[0] == "warn"
    assert validated([1.0, -1.0, -3.0, -4.0], [1.0, -1.0, -0.5, 0.0])[0] == "warn"


@pytest.mark.parametrize(
    ("losses", "scores"),
    [
        ([2, 1, 0.5], [2, 1, 0.6]),  # still falling
        ([2, 1, 0.5, 0.4], [2, 1, 0.6, 0.61]),  # noise
        ([2, 1, 0.5, 0.8, 0.9], [2, 1, 0.6, 0.9, 1.0]),  # both rise: not overfitting
        ([2, 1, 0.5, 0.4, 0.35, 0.3], [2, 1, 0.6, 0.61, 0.9, 0.6]),  # one bad epoch
        ([1.0], [2.0]),
    ],
)
def test_other_runs_do_not_overfit(losses, scores):
    level, text, _ = validated(losses, scores)
    assert level == "good" and "overfits" not in text


def test_a_validation_loss_that_is_not_finite_is_told():
    recorder = ad.inspect.Recorder()
    recorder.epochs = [
        (1, {"loss": 1.0, "val_loss": np.nan}),
        (2, {"loss": 1.0}),
        (3, {"loss": 1.0, "val_loss": 2.0}),
    ]
    assert said(recorder)[1:] == [
        "The validation loss was not finite in 1 of 2 epochs.",
        "The validation loss is 2; the best epoch is 3 of 3.",
    ]


@pytest.mark.parametrize("compile", [False, True])
def test_bytes_are_right_or_absent(compile):
    recorder = ad.inspect.Recorder()
    trainer_of(recorder, compile=compile).fit(loader(), 6)
    data = report_data(recorder, "run")
    if not compile:
        assert data["memory"]["peak"] == max(data["memory"]["bytes"]) > 0
        assert any("are kept for the backward" in text for _, text, _ in data["says"])
        return
    assert recorder.captured.compiled and data["memory"] is None
    made = {name: (made, kept) for name, _, _, _, made, kept in data["rows"]["op"]}
    assert made["loss_and_backward"] == (None, None) and made["update"] == (0, 0)
    assert not any("kept" in text or "peak" in text for _, text, _ in data["says"])
    short = ad.inspect.Recorder()
    trainer_of(short, compile=True).fit([(X, Y)] * 2)  # the second step is captured, none is timed
    data = report_data(short, "run")
    assert data["graph"]["name"] and "rows" not in data and "memory" not in data


def test_the_profile_of_a_compiled_function_has_no_bytes():
    f = ad.compile(lambda x: (x * x).sum())
    x = ad.ones(1000)
    f(x)
    with ad.inspect.profile() as p:
        f(x)
    table = str(p)
    row = table.splitlines()[1]
    assert (
        row.startswith("<lambda>")
        and row.endswith("%")
        and "at the peak, without the arrays inside compiled functions." in table
    )
