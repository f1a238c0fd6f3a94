"""Resuming with other callbacks, from further back, and after the run was ended."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_train import X, Y, model_of, trainer_of, weights

from adjoint import errors, optim, train

pytest.importorskip("safetensors")


def run(directory: Path, epochs: int, callbacks: Any = (), **options: Any) -> train.Trainer:
    """Train on, from what is in the directory."""
    trainer = trainer_of(model_of(), directory=directory, callbacks=callbacks, **options)
    trainer.fit(train.DataLoader((X, Y), 10, shuffle=True), epochs, validate=[(X, Y)], resume=True)
    return trainer


def remove_last(directory: Path, count: int) -> None:
    for _, path in train.Checkpoints(directory).all()[-count:]:
        shutil.rmtree(path)


# Callbacks -------------------------------------------------------------------------------------


def test_logs_in_another_order_keep_their_files(tmp_path: Path) -> None:
    def logs() -> list[train.CSVLog]:
        return [train.CSVLog(tmp_path / "steps.csv", "step"), train.CSVLog(tmp_path / "epochs.csv")]

    run(tmp_path / "run", 2, logs())
    run(tmp_path / "run", 3, [train.CSVLog(tmp_path / "new.csv"), *reversed(logs())])
    lines = {name: (tmp_path / f"{name}.csv").read_text().splitlines() for name in ("steps", "epochs", "new")}
    assert {name: len(found) for name, found in lines.items()} == {"steps": 16, "epochs": 4, "new": 2}


def test_a_log_of_another_path_is_not_cut(tmp_path: Path) -> None:
    run(tmp_path / "run", 1, train.CSVLog(tmp_path / "a.csv"))
    before = (tmp_path / "a.csv").read_text() * 3
    (tmp_path / "b.csv").write_text(before)
    run(tmp_path / "run", 2, train.CSVLog(tmp_path / "b.csv"))
    assert (tmp_path / "b.csv").read_text().startswith(before)


def test_a_run_that_was_copied_goes_on_in_its_own_files(tmp_path: Path) -> None:
    def files(name: str) -> list[Any]:
        return [train.CSVLog(tmp_path / name / "log.csv"), train.BestCheckpoint(tmp_path / name / "best")]

    run(tmp_path / "a" / "run", 3, files("a"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    before = (tmp_path / "a" / "log.csv").read_bytes()
    remove_last(tmp_path / "b" / "run", 1)
    run(tmp_path / "b" / "run", 4, files("b"))
    assert len((tmp_path / "b" / "log.csv").read_text().splitlines()) == 5
    assert (tmp_path / "a" / "log.csv").read_bytes() == before


def test_what_is_added_starts_afresh_and_what_was_there_goes_on(tmp_path: Path) -> None:
    old = train.EarlyStopping("loss", patience=9)
    run(tmp_path, 2, old)
    new = [
        train.EarlyStopping("val_loss", patience=9),
        train.EarlyStopping("loss", patience=9, mode="max"),
        train.EarlyStopping("loss", patience=7),
    ]
    run(tmp_path, 2, new)
    assert [c.state_dict() for c in new] == [
        {"best": None, "waited": 0}, {"best": None, "waited": 0}, old.state_dict(),
    ]  # fmt: skip


def test_callbacks_of_ones_own_are_told_apart_by_identity(tmp_path: Path) -> None:
    class Named(train.Callback):
        def __init__(self, name: str, value: int = 0) -> None:
            self.name, self.value = name, value

        def identity(self) -> dict[str, Any]:
            return {"name": self.name}

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

        def load_state_dict(self, state: Any) -> None:
            self.value = state["value"]

    run(tmp_path, 1, [Named("a", 1), Named("b", 2)])
    again = [Named("c"), Named("b"), Named("a")]
    run(tmp_path, 1, again)
    assert [c.value for c in again] == [0, 2, 1]


# The end ---------------------------------------------------------------------------------------


def test_a_run_that_early_stopping_ended_stays_ended(tmp_path: Path) -> None:
    def fit(patience: int) -> train.Trainer:
        model = model_of()
        trainer = train.Trainer(
            model,
            lambda p, t: ((p - t) ** 2).mean(),
            optim.SGD(model.parameters(), lr=0.0),
            directory=tmp_path,
            callbacks=train.EarlyStopping("loss", patience),
        )
        trainer.fit([(X, Y)], epochs=20, resume=True)
        return trainer

    for _ in range(3):
        trainer = fit(2)
        assert len(trainer.history) == 3 and trainer.stopped == "loss has not improved for 2 epochs"
    assert len(fit(4).history) == 5
    assert len(fit(4).history) == 5


# Further back ----------------------------------------------------------------------------------


def test_going_back_by_several_checkpoints_keeps_a_best_one(tmp_path: Path) -> None:
    best = train.BestCheckpoint(tmp_path / "best")
    straight = run(tmp_path / "run", 4, best)
    assert best.path is not None and best.path.name == "step-000000020"
    remove_last(tmp_path / "run", 2)
    again = train.BestCheckpoint(tmp_path / "best")
    trainer = run(tmp_path / "run", 2, again)
    assert trainer.step == 10 and again.path == best.path
    third = run(tmp_path / "run", 3, train.BestCheckpoint(tmp_path / "best"))
    assert third.step == 15
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["step-000000015"]
    end = run(tmp_path / "run", 4, train.BestCheckpoint(tmp_path / "best"))
    assert weights(end.model) == weights(straight.model)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["step-000000020"]


def test_the_best_of_another_run_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    run(tmp_path / "other", 4, train.BestCheckpoint(tmp_path / "best"))
    run(tmp_path / "run", 1)
    trainer = trainer_of(
        model_of(), directory=tmp_path / "run", callbacks=train.BestCheckpoint(tmp_path / "best")
    )
    before = weights(trainer.model)
    with pytest.raises(errors.FileError, match="checkpoints of a different run, up to step 20"):
        trainer.fit(train.DataLoader((X, Y), 10, shuffle=True), 2, validate=[(X, Y)], resume=True)
    assert weights(trainer.model) == before and trainer.step == 0


# Checkpoints that are not what they seem -------------------------------------------------------


def test_a_checkpoint_without_its_facts_is_refused_and_replaced(tmp_path: Path) -> None:
    trainer = run(tmp_path, 2)
    path = tmp_path / "step-000000010"
    (path / "meta.json").unlink()
    with pytest.raises(errors.FileError) as info:
        run(tmp_path, 3)
    assert str(info.value) == (
        f"{path} is incomplete: it has no meta.json.\n"
        "  Nothing was loaded.  Remove this checkpoint to continue from the previous one."
    )
    trainer.fit(train.DataLoader((X, Y), 10), epochs=3)  # it does not stand in the way of the run itself
    trainer.step = 10
    assert trainer.checkpoints is not None
    other = train.Checkpoints(tmp_path / "other")
    (tmp_path / "other" / "step-000000010").mkdir(parents=True)
    (tmp_path / "other" / "step-000000009").write_text("no directory")
    trainer.write_checkpoint(other)
    assert [p.name for p in (tmp_path / "other").iterdir() if p.name.startswith(".")] == []
    latest = other.latest()
    assert latest is not None and latest.name == "step-000000010.1" and other.read(latest)


def test_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path: Path) -> None:
    run(tmp_path, 2)
    (tmp_path / "step-000000010").rename(tmp_path / "step-000000099")
    trainer = trainer_of(model_of(), directory=tmp_path)
    before = weights(trainer.model)
    with pytest.raises(errors.FileError) as info:
        trainer.fit(train.DataLoader((X, Y), 10, shuffle=True), 3, resume=True)
    assert str(info.value) == (
        f"{tmp_path / 'step-000000099'} is the checkpoint of step 10, but was renamed.  Nothing was loaded.\n"
        "  Rename it to step-000000010, or remove it to continue from the previous checkpoint."
    )
    assert weights(trainer.model) == before and trainer.step == 0
    (tmp_path / "step-000000099").rename(tmp_path / "step-000000010")
    assert run(tmp_path, 3).step == 15
    shutil.copytree(tmp_path / "step-000000010", tmp_path / "mine")
    assert train.Checkpoints(tmp_path).read(tmp_path / "mine")[2]["step"] == 10


# Another number --------------------------------------------------------------------------------


def test_the_best_of_another_number_is_not_compared(tmp_path: Path) -> None:
    """Numbers far apart: whichever is lower would stay the best for ever."""
    for names in (("val_error", "val_loss"), ("val_loss", "val_error")):
        directory = tmp_path / names[0]
        metrics = {"error": lambda p, t: abs(p - t).mean() + 1000.0}
        for epochs, name in zip((2, 4), names, strict=True):
            best = train.BestCheckpoint(directory / "best", name)
            assert epochs == 2 or best.path is None
            trainer = run(directory / "run", epochs, best, metrics=metrics)
        found = [h[name] for h in trainer.history]
        assert best.path is not None
        assert json.loads((best.path / "meta.json").read_text())["score"] == min(found[2:])
        assert [path.name for path in (directory / "best").iterdir()] == [best.path.name]


def test_a_best_loss_is_not_compared_with_one_of_validation(tmp_path: Path) -> None:
    trainer = trainer_of(model_of(), directory=tmp_path, keep=1)
    loader = train.DataLoader((X, Y), 10)
    trainer.fit(loader, 2)
    trainer.fit(loader, 4, validate=[(X, Y + 1000.0)])
    assert trainer.checkpoints is not None
    scores = {step: h["val_loss"] for step, h in zip((15, 20), trainer.history[2:], strict=True)}
    assert trainer.checkpoints.best() == dict(trainer.checkpoints.all())[min(scores, key=lambda s: scores[s])]


def test_only_a_finite_number_is_the_best(tmp_path: Path) -> None:
    best = train.BestCheckpoint(tmp_path, "loss", mode="max")
    trainer = trainer_of(model_of())
    for value in (math.inf, 1.0, math.nan, 2.0, math.inf):
        trainer.train_step((X, Y))
        best.save(trainer, {"loss": value})
    assert best.path is not None and best.path.name == "step-000000004" and best.best == -2.0


def test_a_resume_that_fails_cuts_no_log(tmp_path: Path) -> None:
    class Failing(train.Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"one": 1}

        def load_state_dict(self, state: Any) -> None:
            if "two" in state or fails:
                raise KeyError("two")

    fails = False
    log = tmp_path / "log.csv"
    run(tmp_path / "other", 4, train.BestCheckpoint(tmp_path / "best"))
    run(tmp_path / "run", 2, [train.CSVLog(log), Failing()])
    remove_last(tmp_path / "run", 1)
    before = log.read_text()
    with pytest.raises(errors.FileError, match="checkpoints of a different run, up to step 20"):
        run(tmp_path / "run", 2, [train.CSVLog(log), Failing(), train.BestCheckpoint(tmp_path / "best")])
    assert log.read_text() == before
    fails = True
    with pytest.raises(KeyError, match="two"):
        run(tmp_path / "run", 2, [train.CSVLog(log), Failing()])
    assert log.read_text() == before
