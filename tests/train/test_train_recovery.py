"""Data and checkpoints at their edges: forms of data, damage, kills, what does not fit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_train import X, Y, model_of, trainer_of, weights

import adjoint as ad
from adjoint import errors, nn, optim, train
from adjoint.train import checkpoint


class Stop(train.Callback):
    """Ends a run after a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, trainer: Any, logs: Any) -> None:
        if trainer.step == self.at:
            trainer.stop()


# Data ------------------------------------------------------------------------------------------


def test_a_tuple_or_a_dictionary_is_one_of_columns_with_and_without_collate() -> None:
    seen: list[Any] = []

    def collate(samples: Any) -> Any:
        seen.append(samples)
        return train.stack_collate(samples)

    plain = list(train.DataLoader((X, Y), 20))
    own = list(train.DataLoader((X, Y), 20, collate=collate))
    assert len(own) == 3 and len(seen[0]) == 20 and isinstance(seen[0][0], tuple)
    for (a, b), (c, d) in zip(plain, own, strict=True):
        assert np.array_equal(a, c) and np.array_equal(b, d)
    named = next(iter(train.DataLoader({"x": X, "y": [1] * 50}, 4)))
    assert named["x"].shape == (4, 3) and named["y"].tolist() == [1, 1, 1, 1]
    texts = [[1, 2, 3], [4], [5, 6]]
    (padded, labels), *_ = train.DataLoader((texts, np.array([7, 8, 9])), 3, collate=train.pad_collate)
    assert padded.values.tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]] and labels.tolist() == [7, 8, 9]
    tensors = next(iter(train.DataLoader((ad.tensor(X), ad.tensor(Y)), 5)))
    assert [type(t) for t in tensors] == [np.ndarray, np.ndarray]


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ((X, Y[:3]), errors.ShapeError, r"the same length, but the lengths are \[50, 3\]"),
        (
            {"x": X, "y": Y[:3]},
            errors.ShapeError,
            r"the same length, but the lengths are \{'x': 50, 'y': 3\}",
        ),
        ((1, 2, 3), errors.InputError, "consist of columns, but element 0 is 1"),
        (("a text", "another"), errors.InputError, "consist of columns, but element 0 is 'a text'"),
        (np.array(3.0), errors.InputError, "Pass a list for separate samples"),
        ((), errors.ShapeError, "the lengths are none"),
        (7, errors.InputError, "arrays, a sequence or an iterable, not 7"),
    ],
)
def test_data_that_have_no_samples(data: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        train.DataLoader(data)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 2.5}, "DataLoader: batch_size must be an integer, but got 2.5"),
        ({"batch_size": 0}, "DataLoader: batch_size must be at least 1, but is 0"),
        ({"seed": -1}, "DataLoader: seed must be at least 0, but is -1"),
        ({"seed": None}, "DataLoader: seed must be an integer, but got None"),
        ({"prefetch": -1}, "DataLoader: prefetch must be at least 0"),
    ],
)
def test_options_of_a_loader_are_checked(options: Any, text: str) -> None:
    with pytest.raises(errors.AdjointError, match=text):
        train.DataLoader(X, **options)


def test_samples_that_do_not_fit_together() -> None:
    with pytest.raises(errors.ShapeError, match=r"have the shapes \(1,\), \(2,\).\n.*pad_collate"):
        next(iter(train.DataLoader([[1.0], [1.0, 2.0]], 2)))
    with pytest.raises(errors.ShapeError, match=r"pad_collate: .* shapes \(2, 2\), \(2, 3\)"):
        train.pad_collate([np.zeros((2, 3)), np.zeros((2, 2))])
    with pytest.raises(errors.ShapeError, match="pad_collate"):
        train.pad_collate([np.zeros(2), np.zeros(())])
    assert train.pad_collate([[1], [2.5, 3]])[0].dtype == np.float64


def test_lengths_of_padded_batches_are_the_weights() -> None:
    rows = [np.ones(n) for n in (7, 1, 2, 2)]
    model = nn.Linear(1, 1, rng=0).astype(np.float64)

    def compute(model: Any, batch: train.Padded) -> Any:
        inside = np.arange(batch.values.shape[1]) < batch.lengths[:, None]
        found = model(ad.asarray(batch.values[..., None]))[..., 0]
        return ((found - 3.0) ** 2 * inside).sum() / batch.lengths.sum()

    norms = []
    for pieces in (1, 2, 4):
        trainer = train.Trainer(
            model, optimizer=optim.SGD(model.parameters(), lr=0.0), compute=compute, accumulate=pieces
        )
        logs = trainer.train_step(train.pad_collate(rows))
        norms.append((logs["loss"], logs["grad_norm"]))
    np.testing.assert_allclose(norms, norms[:1] * 3, rtol=1e-12)
    with pytest.raises(errors.InputError, match="padded ones with lengths"):
        trainer_of(model_of()).fit([train.pad_collate(rows)])


# What a module takes ---------------------------------------------------------------------------


def test_a_state_that_does_not_fit_is_listed_whole_and_not_loaded() -> None:
    model = nn.Sequential(nn.Linear(2, 3, rng=0), nn.Linear(3, 1, rng=0), nn.BatchNorm1d(1))
    before = weights(model)
    state = {k: np.array(v) for k, v in model.state_dict().items()}
    state["0.weight"] = np.zeros((3, 2), np.int64)
    state["0.bias"] = np.zeros(3, np.complex64)
    state["1.weight"] = np.zeros((4, 4), bool)
    state["2.weight"] = np.array([1e300])
    state["2.running_mean"] = "text"
    del state["1.bias"]
    state["more"] = np.zeros(1)
    with pytest.raises(errors.ShapeError) as info:
        model.load_state_dict(state)
    assert str(info.value) == (
        "load_state_dict: 7 entries of the state do not match Sequential, so nothing was loaded.\n"
        "  0.weight: has dtype int64, needs float32\n"
        "  0.bias: has dtype complex64, needs float32\n"
        "  1.weight: has shape (4, 4), needs (1, 3); has dtype bool, needs float32\n"
        "  2.weight: has values beyond the range of float32\n"
        "  2.running_mean: has shape (), needs (1,); has dtype <U4, needs float32\n"
        "  1.bias: missing from the state\n"
        "  more: not in this module"
    )
    assert weights(model) == before
    with pytest.raises(errors.InputError, match=r"the state must be a mapping of names .*, not a list\."):
        model.load_state_dict([1])  # type: ignore[arg-type]


def test_widths_convert_and_shared_tensors_need_one_name() -> None:
    model = nn.Linear(2, 1, rng=0)
    model.load_state_dict({"weight": np.array([[1.0, np.inf]]), "bias": np.array([3], np.float16)})
    assert model.weight.dtype == np.float32 and model.weight.numpy().tolist() == [[1.0, np.inf]]
    bf16 = pytest.importorskip("ml_dtypes").bfloat16
    model.load_state_dict({"weight": np.array([[2, 4]], bf16), "bias": np.array([3], bf16)})
    assert model.weight.numpy().tolist() == [[2.0, 4.0]]
    tied = nn.Sequential(nn.Linear(2, 2, bias=False, rng=0), nn.Linear(2, 2, bias=False, rng=1))
    tied[1].weight = tied[0].weight
    tied.load_state_dict({"1.weight": np.eye(2)})
    assert np.array_equal(tied[0].weight.numpy(), np.eye(2)) and tied[0].weight is tied[1].weight


# Kills -----------------------------------------------------------------------------------------


def killed(run: str, seed: int, kills: int) -> list[dict[str, Any]]:
    """Kill trainings at random points (``tests/support/killed.py``); return where, and whether the end was the same."""
    done = subprocess.run(
        [sys.executable, "killed.py", "--run", run, "--seed", str(seed), "--kills", str(kills)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1] / "support",
        env={**os.environ, "PYTHONPATH": str(Path(ad.__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [f for f in found if not (f["same"] and f["same_logs"]) or f["left"]] == []
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
@pytest.mark.parametrize("run", ["trainer", "loop"])
def test_a_run_that_is_killed_at_random_points_ends_with_the_same_bits(run: str) -> None:
    found = killed(run, seed=0, kills=6)
    assert sum(f["deaths"] for f in found) >= 6
    assert {phase for f in found for phase, _ in f["points"]} == {"step", "save"}


@pytest.mark.soak
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
@pytest.mark.parametrize("run", ["trainer", "loop"])
def test_runs_that_are_killed_300_times(run: str) -> None:
    assert sum(f["deaths"] for f in killed(run, seed=1, kills=300)) > 300


def test_a_run_that_ended_before_its_first_checkpoint_begins_its_logs_again(tmp_path: Path) -> None:
    def run(batches: Any) -> None:
        log = train.CSVLog(tmp_path / "log.csv", "step")
        trainer = trainer_of(model_of(), directory=tmp_path / "run", callbacks=[log])
        trainer.fit(batches, resume=True)

    def broken() -> Any:
        yield X, Y
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(broken())
    before = (tmp_path / "log.csv").read_text()
    run([(X, Y)] * 2)
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    assert (tmp_path / "log.csv.old").read_text() == before


def test_validation_of_a_resumed_run_weighs_the_terms_as_before(tmp_path: Path) -> None:
    def run(directory: Path, stop: int) -> list[float]:
        model = model_of()
        loss = train.compose({"fit": (nn.functional.mse_loss, lambda step: 1.0 + step)})
        optimiser = optim.SGD(model.parameters(), lr=0.01)
        trainer = train.Trainer(model, loss, optimiser, directory=directory, callbacks=[Stop(stop)])
        trainer.fit(train.DataLoader((X, Y), 25), epochs=2, validate=[(X, Y)], resume=True)
        return [h["val_loss"] for h in trainer.history]

    straight = run(tmp_path / "a", 0)
    run(tmp_path / "b", 2)  # after the last step of the epoch, before its validation
    assert run(tmp_path / "b", 0) == straight


# Checkpoints -----------------------------------------------------------------------------------


def test_writing_again_at_the_same_step_leaves_a_whole_one_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = train.Checkpoints(tmp_path)
    kept.write(5, {"w": np.array([1.0])}, {"x": 1})
    seen: list[float] = []

    def looking(function: Any) -> Any:
        def look(*args: Any, **options: Any) -> Any:
            for moment in (0, 1):
                latest = train.Checkpoints(tmp_path).latest()
                assert latest is not None and train.Checkpoints(tmp_path).all()[-1][0] == 5
                seen.append(float(kept.read(latest)[0]["w"][0]))
                if moment == 0:
                    result = function(*args, **options)
            return result

        return look

    monkeypatch.setattr(checkpoint.os, "rename", looking(os.rename))
    monkeypatch.setattr(checkpoint.shutil, "rmtree", looking(shutil.rmtree))
    for value in (2.0, 3.0):
        path = kept.write(5, {"w": np.array([value])}, {"x": 1}, score=value)
        assert kept.all() == [(5, path)] and os.listdir(tmp_path) == [path.name]
    assert seen == sorted(seen) and set(seen) == {1.0, 2.0, 3.0}


def test_a_kill_between_the_renames_leaves_what_the_next_run_tidies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = train.Checkpoints(tmp_path)
    kept.write(5, {"w": np.array([1.0])}, {})
    with monkeypatch.context() as patch:
        patch.setattr(train.Checkpoints, "_tidy", lambda self: None)
        second = kept.write(5, {"w": np.array([2.0])}, {})
    assert len(os.listdir(tmp_path)) == 2 and kept.latest() == second
    third = kept.write(6, {"w": np.array([3.0])}, {})
    assert sorted(os.listdir(tmp_path)) == sorted([second.name, third.name])


@pytest.mark.parametrize("name", ["model.safetensors", "state.safetensors", "meta.json"])
@pytest.mark.parametrize("damage", ["cut", "changed", "removed"])
def test_a_damaged_or_changed_file_is_refused(tmp_path: Path, name: str, damage: str) -> None:
    model = model_of()
    trainer_of(model, directory=tmp_path).fit([(X, Y)])
    ((_, path),) = train.Checkpoints(tmp_path).all()
    file = path / name
    data = bytearray(file.read_bytes())
    if damage == "changed":  # one bit of the last number
        place = data.index(b'"step": 1') + 8 if name == "meta.json" else len(data) - 2
        data[place] ^= 2
    if damage == "removed":
        file.unlink()
    else:
        file.write_bytes(data[:-10] if damage == "cut" else data)
    fresh = model_of()
    before = weights(fresh)
    trainer = trainer_of(fresh, directory=tmp_path)
    with pytest.raises(errors.FileError, match="Remove this checkpoint to continue from the previous one"):
        trainer.fit([(X, Y)], resume=True)
    assert weights(fresh) == before and trainer.step == 0
    kept = train.Checkpoints(tmp_path, keep=1)
    kept.write(2, fresh.state_dict(), {}, 1.0)  # it does not stand in the way of new ones
    assert [step for step, _ in kept.all()] == [2]


def test_a_new_run_does_not_mix_with_the_checkpoints_of_a_longer_one(tmp_path: Path) -> None:
    trainer_of(model_of(), directory=tmp_path / "run").fit([(X, Y)] * 3)
    for options in (
        {"directory": tmp_path / "run"},
        {"callbacks": [train.BestCheckpoint(tmp_path / "run", "loss")]},
    ):
        trainer = trainer_of(model_of(), **options)
        with pytest.raises(errors.FileError) as info:
            trainer.fit([(X, Y)])
        assert str(info.value) == (
            f"{tmp_path / 'run'} has checkpoints of a different run, up to step 3, but this run is at step 0.\n"
            "  Use fit(resume=True) to continue that run, use a different directory, or remove the checkpoints."
        )
        assert trainer.step == 0


def test_a_checkpoint_of_something_else_loads_nothing(tmp_path: Path) -> None:
    trainer_of(model_of(), directory=tmp_path).fit(train.DataLoader((X, Y), 10))
    model = model_of(seed=5)
    before = weights(model)
    for trainer, text in [
        (
            train.Trainer(model, nn.functional.mse_loss, optim.SGD(model.parameters()), directory=tmp_path),
            "different optimiser, Adam",
        ),
        (trainer_of(model, directory=tmp_path, accumulate=2), "different options: accumulation_steps=1"),
    ]:
        with pytest.raises(errors.ArgumentError, match=text):
            trainer.fit(train.DataLoader((X, Y), 10), resume=True)
        assert weights(model) == before and trainer.step == 0
    with pytest.raises(errors.ArgumentError, match="batch_size 10, not 5"):
        trainer_of(model, directory=tmp_path).fit(train.DataLoader((X, Y), 5), resume=True)
    assert weights(model) == before
    other = model_of(dropout=0.2)
    with pytest.raises(errors.ShapeError, match=r"entries of the state do not match Sequential"):
        trainer_of(other, directory=tmp_path).fit(train.DataLoader((X, Y), 10), resume=True)


def test_loaders_without_a_position_and_foreign_generators_resume_too(tmp_path: Path) -> None:
    class Noise(nn.Module):
        def __init__(self) -> None:
            self.rng = np.random.default_rng(3)

        def forward(self, x: Any) -> Any:
            return x + self.rng.normal(size=x.shape)

    batches = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 50, 10)]

    def run(directory: Path, stop: int, resume: bool, again: bool = False) -> bytes:
        model = nn.Sequential(Noise(), model_of())
        trainer = trainer_of(model, directory=directory, callbacks=[Stop(stop)])
        trainer.fit(batches, epochs=2, resume=resume)
        if again:
            trainer.fit(batches, epochs=2)
        return weights(model)

    straight = run(tmp_path / "a", 0, False)
    run(tmp_path / "b", 7, False)
    assert run(tmp_path / "b", 0, True) == straight
    assert run(tmp_path / "c", 3, False, again=True) == straight


def test_callbacks_may_be_added_to_a_resumed_run(tmp_path: Path) -> None:
    stopping = train.EarlyStopping("loss")
    trainer_of(model_of(), directory=tmp_path / "run", callbacks=[stopping]).fit([(X, Y)])
    again = train.EarlyStopping("loss")
    callbacks = [train.CSVLog(tmp_path / "log.csv"), again]
    trainer_of(model_of(), directory=tmp_path / "run", callbacks=callbacks).fit([(X, Y)], resume=True)
    assert again.best == stopping.best


def test_the_best_is_kept_also_where_checkpoints_come_every_few_steps(tmp_path: Path) -> None:
    trainer = trainer_of(model_of(), directory=tmp_path, checkpoint_every=1, keep=1)
    trainer.fit([(X, Y)] * 2, epochs=3)
    assert trainer.checkpoints is not None
    best = trainer.checkpoints.best()
    assert best is not None and json.loads((best / "meta.json").read_text())["score"] == min(
        h["loss"] for h in trainer.history
    )


def test_an_interrupt_in_validation_ends_the_epoch_with_a_checkpoint(tmp_path: Path) -> None:
    def interrupting() -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        yield X, Y

    trainer = trainer_of(model_of(), directory=tmp_path)
    history = trainer.fit([(X, Y)] * 2, epochs=5, validate=interrupting())
    assert trainer.stopped == "interrupted" and len(history) == 1 and trainer.epoch == 1
    assert [step for step, _ in train.Checkpoints(tmp_path).all()] == [2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.pop("files"),
        lambda meta: meta["files"].pop("state.safetensors"),
        lambda meta: meta.update(step="1"),
        lambda meta: meta.update(score=float("nan")),
        lambda meta: meta.update(score="low"),
    ],
)
def test_facts_that_are_none_are_refused_although_their_digest_is_right(tmp_path: Path, change: Any) -> None:
    kept = train.Checkpoints(tmp_path)
    path = kept.write(1, {"w": np.ones(2)}, {}, score=1.0)
    meta = json.loads((path / "meta.json").read_text())
    del meta["digest"]
    change(meta)
    (path / "meta.json").write_text(json.dumps({**meta, "digest": checkpoint._meta_digest(meta)}))
    with pytest.raises(errors.FileError, match=r"is not a checkpoint: meta.json has missing"):
        kept.read(path)
    assert kept.best() is None
    (path / "meta.json").write_text("[" * 100_000)
    with pytest.raises(errors.FileError, match="is not a checkpoint"):
        kept.read(path)


def test_a_checkpoint_that_is_a_link_goes_without_what_it_points_to(tmp_path: Path) -> None:
    kept = train.Checkpoints(tmp_path / "run", keep=1)
    path = kept.write(1, {"w": np.ones(2)}, {})
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    last = kept.write(2_000_000_000, {"w": np.ones(2)}, {})  # more digits than names have by rule
    assert os.listdir(tmp_path / "run") == [last.name] and kept.latest() == last
    assert (tmp_path / "elsewhere" / "model.safetensors").exists()
