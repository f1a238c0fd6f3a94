"""What a training run tells: logs of terms, metrics and norms, the progress bar, callbacks."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_train import X, Y, l2, model_of, trainer_of, weights

import adjoint as ad
from adjoint import errors, nn, optim, train
from adjoint.optim import schedules
from adjoint.train.progress import Progress, _short

MSE = nn.functional.mse_loss


class Watch(train.Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def on_step(self, trainer: train.Trainer, logs: Any) -> None:
        self.steps.append(dict(logs))


def composed(model: nn.Module, **options: Any) -> tuple[train.Trainer, Watch]:
    loss = train.compose({"fit": (MSE, 1.0), "l2": (l2, 1e-2)})
    watch = Watch()
    options = {"callbacks": [watch], **options}
    return train.Trainer(model, loss, optim.SGD(model.parameters(), lr=0.01), **options), watch


# Terms and metrics -----------------------------------------------------------------------------


def test_terms_and_their_norms_are_in_every_log(tmp_path: Path) -> None:
    watch, table = Watch(), train.CSVLog(tmp_path / "log.csv")
    logs = [watch, table, train.JSONLog(tmp_path / "new" / "log.jsonl", "step")]
    trainer, _ = composed(model_of(), callbacks=logs, term_norms=3)
    (epoch,) = trainer.fit(train.DataLoader((X, Y), 10), validate=[(X, Y)])
    terms = {"fit", "l2"}
    norms = {"grad_norm_fit", "grad_norm_l2"}
    assert set(epoch) == {
        "loss", "lr", "grad_norm", "seconds", "val_loss", "val_fit", "val_l2", *terms, *norms,
    }  # fmt: skip
    assert epoch["loss"] == pytest.approx(epoch["fit"] + 1e-2 * epoch["l2"])
    assert epoch["val_loss"] == pytest.approx(epoch["val_fit"] + 1e-2 * epoch["val_l2"])
    assert [norms <= set(step) for step in watch.steps] == [True, False, False, True, False]
    assert all(terms <= set(step) for step in watch.steps)
    (row,) = csv.DictReader((tmp_path / "log.csv").read_text().splitlines())
    assert float(row["fit"]) == epoch["fit"] and float(row["grad_norm_l2"]) == epoch["grad_norm_l2"]
    first = json.loads((tmp_path / "new" / "log.jsonl").read_text().splitlines()[0])
    assert first["epoch"] == 1 and first["step"] == 1 and first["grad_norm_fit"] > 0


@pytest.mark.parametrize("pieces", [1, 3])
def test_norms_of_terms_are_those_of_the_whole_batch(pieces: int) -> None:
    model = model_of()
    trainer, watch = composed(model, accumulate=pieces)
    expected = {}
    for name, value in {"fit": MSE(model(ad.asarray(X)), ad.asarray(Y)), "l2": l2(model)}.items():
        found = ad.gradients(value, model.parameters())
        expected[name] = math.sqrt(sum(float((np.asarray(g) ** 2).sum()) for g in found))
    trainer.fit([(X, Y)])
    assert watch.steps[0]["grad_norm_fit"] == pytest.approx(expected["fit"])
    assert watch.steps[0]["grad_norm_l2"] == pytest.approx(expected["l2"])


def test_measuring_norms_changes_nothing_and_can_be_left_out() -> None:
    ends = []
    for every in (1, 50, None):
        model = model_of()
        trainer, watch = composed(model, term_norms=every, accumulate=2)
        trainer.fit(train.DataLoader((X, Y), 10))
        ends.append(weights(model))
        assert ("grad_norm_fit" in watch.steps[0]) == (every is not None)
        assert isinstance(trainer.loss, train.ComposedLoss) and not trainer.loss._last  # no graph is kept
    assert ends[0] == ends[1] == ends[2]


def test_metrics_of_training_are_weighted_means_over_the_pieces() -> None:
    metrics = {"error": lambda p, t: abs(p - t).mean()}
    model = model_of()
    with ad.no_grad():
        expected = float(abs(model(ad.asarray(X)) - Y).mean())
    trainer = trainer_of(model, metrics=metrics, accumulate=3)
    assert trainer.train_step((X, Y))["error"] == pytest.approx(expected)
    curves = []
    for pieces in (1, 4):
        trainer = trainer_of(model_of(), metrics=metrics, accumulate=pieces)
        history = trainer.fit(train.DataLoader((X, Y), 16, shuffle=True), 2, validate=[(X, Y)])
        curves.append([(h["error"], h["val_error"]) for h in history])
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-10)


def test_compute_returns_numbers_to_log_beside_the_loss() -> None:
    model = model_of()

    def compute(model: Any, batch: Any) -> Any:
        found = model(ad.asarray(batch[0]))
        return MSE(found, ad.asarray(batch[1])), {"largest": abs(found).max()}

    trainer = train.Trainer(model, optimizer=optim.SGD(model.parameters()), compute=compute)
    (epoch,) = trainer.fit([(X, Y)], validate=[(X, Y)])
    assert epoch["largest"] > 0 and epoch["val_largest"] > 0


def test_learned_weights_must_reach_the_optimiser() -> None:
    model = model_of()
    loss = train.compose({"fit": (MSE, "learned"), "l2": (l2, 1e-3)})
    with pytest.raises(errors.InputError) as info:
        train.Trainer(model, loss, optim.SGD(model.parameters()))
    assert str(info.value) == (
        "Trainer: the loss has parameters that the optimiser does not update: loss.s_fit.\n"
        "  Pass them to the optimiser: optim.Adam([*model.parameters(), *loss.parameters()])."
    )
    assert loss.s_fit.dtype == np.float32
    optimizer = optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    (epoch,) = train.Trainer(model, loss, optimizer).fit([(X, Y)])
    assert loss.s_fit.item() == pytest.approx(-0.1 * (1 - epoch["fit"]), rel=1e-5)


def test_what_is_frozen_after_the_optimiser_was_made_stays_as_it_is() -> None:
    model = model_of()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    layer = next(iter(model))
    layer.requires_grad_(False)
    before = weights(layer)
    train.Trainer(model, MSE, optimizer).fit([(X, Y)] * 2)
    assert weights(layer) == before


def test_a_term_that_is_a_module_has_its_parameters_seen() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            self.scale = nn.Parameter([1.0])

        def forward(self, prediction: Any, target: Any) -> Any:
            return ((prediction - self.scale * target) ** 2).mean()

    loss = train.compose({"fit": Scaled()})
    assert list(dict(loss.named_parameters())) == ["term_fit.scale"]


@pytest.mark.parametrize(
    ("terms", "error", "text"),
    [
        ({}, errors.InputError, "at least one term"),
        ({"a": (3, 1.0)}, errors.InputError, "the term 'a' must be a function"),
        ({"a": (MSE, math.nan)}, errors.ArgumentError, "the weight of 'a' must be a finite number"),
        ({"a": (MSE, ad.tensor(1.0))}, errors.ArgumentError, "a schedule or 'learned'"),
        ({"a": lambda: 0}, errors.InputError, r"must take \(prediction, target\)"),
    ],
)
def test_terms_that_cannot_be_composed(terms: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        train.compose(terms)


def test_a_term_is_one_number() -> None:
    loss = train.compose({"fit": lambda p, t: (p - t) ** 2})
    with pytest.raises(
        errors.ShapeError, match=r"the term 'fit' must be one number, but has shape \(50, 1\)"
    ):
        loss(ad.asarray(Y), ad.asarray(Y))
    assert train.compose({"one": lambda p, t: 2, "two": MSE})(ad.asarray(Y), ad.asarray(Y)).item() == 2.0


def test_what_cannot_be_trained_is_refused_at_once(tmp_path: Path) -> None:
    model = model_of()
    other = model_of()
    adam = optim.Adam(model.parameters())
    for options, text in [
        ({"loss": MSE, "optimizer": optim.Adam(other.parameters())}, "4 parameters of the optimiser do not belong to the model"),
        ({"loss": MSE, "optimizer": optim.LBFGS(model.parameters())}, r"call optimizer.step\(closure\)"),
        ({"loss": MSE, "optimizer": adam, "metrics": {"loss": MSE}}, "have the same name: 'loss'"),
        ({"compute": MSE, "optimizer": adam, "metrics": {"a": MSE}}, "Return the metrics from compute"),
        ({"loss": MSE, "optimizer": adam, "term_norms": 0}, "term_norms must be at least 1, but is 0"),
        ({"loss": MSE, "optimizer": adam, "accumulate": 0}, "accumulate must be at least 1, but is 0"),
        ({"loss": MSE, "optimizer": adam, "clip": -1.0}, "clip must be a positive number, but is -1.0"),
        ({"loss": MSE, "optimizer": adam, "schedule": 0.1}, "schedule must be a function, not 0.1"),
        ({"loss": MSE, "optimizer": adam, "metrics": {"a": 3}}, "a must be a function, not 3"),
        ({"loss": MSE, "optimizer": adam, "callbacks": [3]}, "instances of Callback"),
        ({"loss": MSE, "optimizer": adam, "checkpoint_every": 0}, "checkpoint_every must be at least 1"),
        (
            {"loss": MSE, "optimizer": adam, "directory": tmp_path, "callbacks": [train.BestCheckpoint(tmp_path)]},
            "must use different directories",
        ),
    ]:  # fmt: skip
        with pytest.raises((errors.InputError, errors.ArgumentError), match=text):
            train.Trainer(model, **options)  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match="the model must be a Module, not a function"):
        train.Trainer(lambda x: x, MSE, adam)  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match=r"epochs must be an integer, but got 1\.5"):
        trainer_of(model).fit([(X, Y)], epochs=1.5)  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match="a loader must be iterable, not a NoneType"):
        trainer_of(model).fit(None)
    with pytest.raises(errors.InputError, match=r"Use DataLoader\(\(X, Y\), batch_size\)"):
        trainer_of(model).fit((X, Y))
    with pytest.raises(errors.InputError, match="'wide' must be one number per batch, but has shape"):
        trainer_of(model, metrics={"wide": lambda p, t: p}).fit([(X, Y)])
    with pytest.raises(errors.InputError, match="epoch 2 has no batches"):
        trainer_of(model).fit(iter([(X, Y)]), epochs=2)
    with pytest.raises(errors.InputError, match="no batches to evaluate"):
        trainer_of(model).evaluate([])
    with pytest.raises(errors.InputError, match="not a float"):
        train.Trainer(model, optimizer=adam, compute=lambda m, b: 1.0).fit([(X, Y)])


# The bar ---------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, columns: int = 300, **options: Any) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    metrics = {"error": lambda p, t: abs(p - t).mean()}
    trainer = trainer_of(model_of(), **{"metrics": metrics, **options})
    trainer.fit(train.DataLoader((X, Y), 10), epochs=2, validate=[(X, Y)] if metrics else None)
    return stream.getvalue()


def test_the_bar_shows_everything_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    text = shown(monkeypatch, Terminal())
    for part in (
        "epoch 2/2",
        "10/10",
        "loss",
        "error",
        "lr 0.02",
        "grad_norm",
        "samples/s",
        "0:00",
        "val_error",
    ):
        assert part in text
    assert "tokens/s" in shown(monkeypatch, Terminal(), weight=lambda batch: 7)
    assert "words/s" in shown(monkeypatch, Terminal(), weight=lambda batch: 7, unit="words")


def test_nothing_is_wrapped_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown(monkeypatch, Terminal(), columns=60))
    lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    assert all(line.startswith("epoch ") or "━" in line for line in lines)
    assert sum("val_error" in line for line in lines) == 2 and any(
        line.rstrip().endswith("…") for line in lines
    )


class CtrlC(train.Callback):
    def on_step(self, trainer: Any, logs: Any) -> None:
        if trainer.step == 3:
            signal.raise_signal(signal.SIGINT)


def test_the_bar_says_why_training_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("rich")
    text = shown(monkeypatch, Terminal(), callbacks=[CtrlC()], directory=tmp_path)
    assert (
        "interrupted after step 3; its checkpoint is written, and fit(resume=True) continues from it" in text
    )
    text = shown(monkeypatch, Terminal(), callbacks=[CtrlC()])
    assert "interrupted after step 3" in text and "resume" not in text
    stopping = train.EarlyStopping("loss", patience=1, delta=1e9)
    text = shown(monkeypatch, Terminal(), callbacks=[stopping], directory=tmp_path / "early")
    assert "loss has not improved for 1 epoch after step 10" in text and "resume" not in text
    assert shown(monkeypatch, io.StringIO(), callbacks=[CtrlC()]) == "interrupted after step 3\n"


def test_other_output_has_a_line_per_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, io.StringIO()).splitlines()
    assert [line.split()[:3] for line in lines] == [["epoch", "1/2", "loss"], ["epoch", "2/2", "loss"]]
    assert all(re.search(r"  val_error [\d.e-]+$", line) for line in lines)
    assert shown(monkeypatch, io.StringIO(), progress=False) == ""
    assert shown(monkeypatch, Terminal(), progress=False) == ""
    monkeypatch.setitem(sys.modules, "rich", None)
    assert shown(monkeypatch, Terminal()).count("epoch ") == 2
    with pytest.raises(errors.MissingExtraError, match="a progress bar needs rich"):
        Progress(None, 1, show=True)


def test_nothing_is_shown_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as in a program without a console
    trainer_of(model_of()).fit([(X, Y)])


def test_progress_that_is_none_of_the_three_is_an_error() -> None:
    with pytest.raises(errors.ArgumentError) as info:
        trainer_of(model_of(), progress="bar")
    assert str(info.value) == "Trainer: progress must be True, False or \"auto\", not 'bar'."


def test_numbers_of_throughput_are_short() -> None:
    assert [_short(n) for n in (0.0, 12.34, 999.0, 1234.0, 5.6e6, 7e9)] == [
        "0",
        "12.3",
        "999",
        "1.23k",
        "5.6M",
        "7G",
    ]


# Callbacks -------------------------------------------------------------------------------------


def test_the_norm_is_known_without_clipping_and_the_guard_is_quiet() -> None:
    watch = Watch()
    trainer_of(model_of(), callbacks=[train.NonFiniteGuard(), watch]).fit([(X, Y)])
    assert watch.steps[0]["grad_norm"] > 0


@pytest.mark.parametrize("clip", [None, 1.0])
def test_the_guard_raises_before_the_weights_are_spoilt(clip: float | None) -> None:
    model = model_of()
    trainer = trainer_of(model, callbacks=[train.NonFiniteGuard()], clip=clip)
    trainer.fit([(X, Y)])
    before, state = weights(model), trainer.optimizer.state_dict()["step"]
    with pytest.raises(errors.NonFiniteError) as info, np.errstate(all="ignore"):
        trainer.fit([(X, Y * np.inf)], epochs=2)
    assert str(info.value).startswith(
        "loss is inf at step 2, epoch 2.  The weights were not updated.\n  Gradients that are not finite: 0.weight, "
    )
    assert weights(model) == before and trainer.step == 1
    assert trainer.optimizer.state_dict()["step"] == state
    trainer.fit([(X, Y)], epochs=2)  # nothing of the bad batch is left
    assert weights(model) != before and math.isfinite(trainer.history[-1]["loss"])


def test_gradient_flow_sees_clipped_gradients_and_the_dead() -> None:
    model = model_of()
    model.unused = nn.Parameter([1.0])
    flow = train.GradientFlow(every=2)
    trainer_of(model, callbacks=[flow], clip=1e-3).fit([(X, Y)] * 4)
    assert [step for step, _ in flow.history] == [2, 4] and flow.dead() == ["unused"]
    assert math.hypot(*flow.history[0][1].values()) == pytest.approx(1e-3)
    again = train.GradientFlow()
    again.load_state_dict(flow.state_dict())
    assert again.history == flow.history


def test_the_best_checkpoint_is_kept_and_restored(tmp_path: Path) -> None:
    model = model_of()
    best = train.BestCheckpoint(tmp_path, monitor="score", mode="max")
    trainer = trainer_of(model, callbacks=[best])
    assert best.path is None
    with pytest.raises(errors.FileError, match="there is no checkpoint"):
        best.restore(model)
    at_best = b""
    for value in (1.0, 3.0, math.nan, 2.0):
        trainer.train_step((X, Y))
        best.save(trainer, {"score": value})
        if value == 3.0:
            at_best = weights(model)
    assert best.path is not None and best.path.name == "step-000000002"
    assert [step for step, _ in best.checkpoints.all()] == [2] and weights(model) != at_best
    assert best.restore(model) == best.path and weights(model) == at_best
    with pytest.raises(
        errors.ArgumentError,
        match=r"BestCheckpoint: 'val_los' is not logged.  Monitor one of grad_norm, loss",
    ):
        trainer_of(model, callbacks=[train.BestCheckpoint(tmp_path / "other", "val_los")]).fit([(X, Y)])
    with pytest.raises(errors.ArgumentError, match="mode must be 'min' or 'max'"):
        train.BestCheckpoint(tmp_path, mode="low")


def test_training_resumes_from_the_best_checkpoint_bitwise(tmp_path: Path) -> None:
    def run(epochs: int, best: Path | None = None, directory: Path | None = None) -> bytes:
        model = model_of(dropout=0.3)
        stopping = train.EarlyStopping("loss", patience=9)
        kept = [] if best is None else [train.BestCheckpoint(best, "loss")]
        trainer = trainer_of(model, callbacks=[*kept, stopping], directory=directory)
        data = train.DataLoader((X, Y), 13, shuffle=True)
        trainer.fit(data, epochs=epochs, resume=directory is not None)
        assert len(trainer.history) == epochs and stopping.best == min(h["loss"] for h in trainer.history)
        return weights(model)

    run(2, best=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000008"]
    assert run(4, directory=tmp_path) == run(4)


def test_plateau_is_told_by_the_trainer() -> None:
    model = model_of()
    plateau = schedules.Plateau(0.5, factor=0.5, patience=0, monitor="val_flat")
    trainer = trainer_of(model, schedule=plateau, metrics={"flat": lambda p, t: 1.0})
    history = trainer.fit([(X, Y)], epochs=4, validate=[(X, Y)])
    assert [h["lr"] for h in history] == [0.5, 0.5, 0.25, 0.125]
    with pytest.raises(errors.ArgumentError, match="Plateau: 'val_flat' is not logged"):
        trainer_of(model, schedule=plateau).fit([(X, Y)])


def test_a_plateau_inside_warmup_and_sequence_is_told_and_resumed(tmp_path: Path) -> None:
    def schedule() -> Any:
        plateau = schedules.Plateau(0.8, factor=0.5, patience=0, monitor="flat")
        return schedules.warmup(schedules.sequence((schedules.constant(0.8), 2), plateau), 2)

    def run(directory: Path, epochs: int) -> tuple[list[float], bytes]:
        model = model_of()
        trainer = trainer_of(
            model, schedule=schedule(), metrics={"flat": lambda p, t: 1.0}, directory=directory
        )
        history = trainer.fit([(X, Y)], epochs=epochs, resume=True)
        return [h["lr"] for h in history], weights(model)

    # warm-up, a constant, and the plateau from its start: the metric of before does not count
    rates, straight = run(tmp_path / "a", 8)
    assert rates == [0.0, 0.4, 0.8, 0.8, 0.8, 0.4, 0.2, 0.1]
    for stop in (2, 4, 5, 7):
        assert run(tmp_path / f"b{stop}", stop)[0] == rates[:stop]
        assert run(tmp_path / f"b{stop}", 8) == (rates, straight)


def test_a_plateau_may_be_the_weight_of_a_term(tmp_path: Path) -> None:
    def run(directory: Path, epochs: int) -> tuple[float, bytes]:
        model = model_of()
        weight = schedules.warmup(schedules.Plateau(1.0, factor=0.5, patience=0, monitor="flat"), 1)
        loss = train.compose({"fit": nn.functional.mse_loss, "l2": (l2, weight)})
        optimiser = optim.SGD(model.parameters(), lr=1e-3)
        metrics = {"flat": lambda p, t: 1.0}
        trainer = train.Trainer(model, loss, optimiser, metrics=metrics, directory=directory)
        trainer.fit([(X, Y)], epochs=epochs, resume=True)
        return weight(epochs), weights(model)

    straight = run(tmp_path / "a", 4)
    assert straight[0] == 0.125
    assert run(tmp_path / "b", 2)[0] == 0.5
    assert run(tmp_path / "b", 4) == straight


def test_the_state_of_another_schedule_is_refused_and_nothing_is_loaded(tmp_path: Path) -> None:
    plateau = lambda: schedules.Plateau(0.5)
    trainer_of(model_of(), schedule=plateau(), directory=tmp_path / "a").fit([(X, Y)])
    warmed = lambda: schedules.warmup(plateau(), 3)
    trainer_of(model_of(), schedule=warmed(), directory=tmp_path / "b").fit([(X, Y)])
    for directory, schedule in (("a", warmed), ("b", plateau)):
        trainer = trainer_of(model_of(), schedule=schedule(), directory=tmp_path / directory)
        before = weights(trainer.model)
        with pytest.raises(errors.ArgumentError, match="state"):
            trainer.fit([(X, Y)], resume=True)
        assert weights(trainer.model) == before and trainer.step == 0


def test_a_schedule_that_gives_no_rate_is_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="lr must be finite and at least 0, but is nan"):
        trainer_of(model_of(), schedule=lambda step: math.nan).fit([(X, Y)])


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_logs_of_a_resumed_run_are_as_if_it_had_not_stopped(tmp_path: Path, every: str) -> None:
    class Quit(train.Callback):
        def __init__(self, at: int) -> None:
            self.at = at

        def on_step(self, trainer: Any, logs: Any) -> None:
            if trainer.step == self.at:
                raise RuntimeError("quit")

    def run(name: str, at: int, resume: bool) -> list[dict[str, str]]:
        model = model_of()
        loss = train.compose({"fit": (MSE, 1.0), "l2": (l2, 1e-2)})
        logs = [
            train.CSVLog(tmp_path / f"{name}.csv", every),
            train.JSONLog(tmp_path / f"{name}.jsonl", every),
        ]
        trainer = train.Trainer(
            model,
            loss,
            optim.Adam(model.parameters()),
            callbacks=[*logs, Quit(at)],
            directory=tmp_path / name,
            checkpoint_every=2,
            term_norms=2,
        )
        try:
            trainer.fit(train.DataLoader((X, Y), 10, shuffle=True), epochs=3, resume=resume)
        except RuntimeError:
            return []
        rows = list(csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines()))
        lines = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for row in (*rows, *lines):
            row.pop("seconds", None)
        return [*rows, *lines]

    straight = run("a", 0, False)
    run("b", 9, False)
    assert run("b", 0, True) == straight


def test_a_log_of_another_run_is_not_mixed_up(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    trainer_of(model_of(), callbacks=[train.CSVLog(path)]).fit([(X, Y)])
    trainer_of(model_of(), callbacks=[train.CSVLog(path)]).fit([(X, Y)])
    assert len(path.read_text().splitlines()) == 3
    with pytest.raises(
        errors.ArgumentError, match=f"CSVLog: the existing file {os.fspath(path)} has no columns val_loss"
    ):
        trainer_of(model_of(), callbacks=[train.CSVLog(path)]).fit([(X, Y)], validate=[(X, Y)])


def test_a_batch_without_weight_spoils_no_mean() -> None:
    model = nn.Linear(2, 1, rng=0)

    def square(prediction: Any, target: Any) -> Any:
        with np.errstate(all="ignore"):
            return (prediction**2 * target).sum() / target.sum()

    batches = [(np.ones((3, 2), np.float32), np.full((3, 1), float(i < 1), np.float32)) for i in range(2)]
    trainer = train.Trainer(
        model, train.compose({"square": square}), optim.SGD(model.parameters(), lr=0.1),
        weight=lambda batch: batch[1].sum(), term_norms=1,
    )  # fmt: skip
    (logs,) = trainer.fit(batches)
    assert all(map(math.isfinite, logs.values())), logs
    assert math.isnan(trainer.train_step(batches[1])["grad_norm"])
