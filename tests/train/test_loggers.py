"""Callbacks for TensorBoard, MLflow and Weights & Biases."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from adjoint import nn, optim, train
from adjoint.errors import ArgumentError, MissingExtraError


def fit(callback: train.Callback, epochs: int = 2) -> train.History:
    x = np.linspace(-1, 1, 8, dtype=np.float32)[:, None]
    model = nn.Linear(1, 1, rng=0)
    trainer = train.Trainer(
        model, nn.functional.mse_loss, optim.SGD(model.parameters(), lr=0.1), callbacks=callback
    )
    return trainer.fit(train.DataLoader((x, 2 * x), 4), epochs, validate=[(x, 2 * x)])


@pytest.mark.filterwarnings("ignore")  # of tensorboard's own imports
@pytest.mark.parametrize("every", ["epoch", "step"])
def test_tensorboard_reads_the_events(every: str, tmp_path: Any) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = fit(train.TensorBoardLog(tmp_path, every))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {"loss", "val_loss"} <= set(events.Tags()["scalars"])
    validated = [(e.step, e.value) for e in events.Scalars("val_loss")]
    assert validated == [(2 * (k + 1), pytest.approx(h["val_loss"])) for k, h in enumerate(history)]
    assert [e.step for e in events.Scalars("loss")] == ([2, 4] if every == "epoch" else [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("package", "function", "log"),
    [("mlflow", "log_metrics", "MLflowLog"), ("wandb", "log", "WandbLog")],
)
def test_mlflow_and_wandb_get_the_numbers(
    package: str, function: str, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[dict[str, float], int]] = []
    stand_in = ModuleType(package)
    setattr(stand_in, function, lambda numbers, step: sent.append((numbers, step)))
    monkeypatch.setitem(sys.modules, package, stand_in)
    history = fit(getattr(train, log)())
    assert [step for _, step in sent] == [2, 4]
    assert [numbers["loss"] for numbers, _ in sent] == history.column("loss")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=package):
        getattr(train, log)()


def test_the_interval_is_checked(tmp_path: Any) -> None:
    with pytest.raises(ArgumentError, match=r"every must be 'epoch' or 'step', not 'day'\."):
        train.TensorBoardLog(tmp_path, "day")
