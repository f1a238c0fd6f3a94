"""Where a run goes on: the place in the data, after a look, an evaluation, an error, a stop or a resumption."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_train import X, Y, model_of, trainer_of, weights

from adjoint import errors, train

pytest.importorskip("safetensors")


def loader_of(**options: Any) -> train.DataLoader:
    return train.DataLoader((X, Y), 10, **{"shuffle": True, **options})


def sums(batches: Any) -> list[float]:
    return [float(x.sum()) for x, _ in batches]


class At(train.Callback):
    """Does something at one step, once."""

    def __init__(self, step: int, act: Callable[[train.Trainer], Any]) -> None:
        self.step, self.act = step, act

    def on_step(self, trainer: train.Trainer, logs: Any) -> None:
        if trainer.step == self.step:
            self.step = -1
            self.act(trainer)


class Seen(train.Callback):
    """Fails before the update of some steps, once each; keeps what was trained."""

    def __init__(self, *failing: int) -> None:
        self.failing = list(failing)

    def before_update(self, trainer: train.Trainer, logs: Any) -> None:
        if trainer.step in self.failing:
            self.failing.remove(trainer.step)
            raise RuntimeError("failed")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_each_iteration_begins_anew(prefetch: int) -> None:
    loader, other = loader_of(prefetch=prefetch), loader_of()
    first, second = sums(other), sums(other)
    steps = iter(loader)
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert loader.position == 1
    assert sums(loader) == first and loader.epoch == 1
    assert sums(loader) == second


def test_two_iterations_beside_each_other_are_of_one_epoch() -> None:
    loader = loader_of()
    assert all(np.array_equal(a, b) for (a, _), (b, _) in zip(loader, loader, strict=True))
    assert loader.epoch == 1


def test_only_the_first_iteration_after_loading_goes_on() -> None:
    loader = loader_of()
    straight = sums(loader)
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "position": 3})
    next(iter(loader))
    assert loader.position == 4
    assert sums(loader) == straight
    with pytest.raises(errors.ArgumentError, match="seed 0, not 1"):
        loader_of(seed=1).load_state_dict(loader.state_dict())
    plain = loader_of(shuffle=False, seed=1)
    plain.load_state_dict(loader_of(shuffle=False).state_dict())  # its seed decides nothing
    assert plain.seed == 1


def test_evaluation_sees_all_and_leaves_the_place_alone() -> None:
    trainer, loader = trainer_of(model_of()), loader_of()
    expected = trainer.evaluate([(X, Y)])["loss"]
    next(iter(loader))
    assert trainer.evaluate(loader)["loss"] == pytest.approx(expected)
    assert (loader.epoch, loader.position) == (0, 1)
    loader.load_state_dict({**loader.state_dict(), "position": 4})
    assert trainer.evaluate(loader)["loss"] == pytest.approx(expected)
    assert len(sums(loader)) == 1  # it still goes on where it was told to
    validated = loader_of()
    trainer.fit(loader_of(), epochs=2, validate=validated)
    assert (validated.epoch, validated.position) == (0, 0)


def test_evaluating_the_loader_of_the_training_in_the_middle_changes_nothing() -> None:
    ends = []
    for looks in (False, True):
        loader = loader_of()
        trainer = trainer_of(model_of(), callbacks=[At(2, lambda t: t.stop())])
        trainer.fit(loader, epochs=2)
        assert trainer.step == 2
        if looks:
            trainer.evaluate(loader)
            next(iter(loader))
        trainer.fit(loader, epochs=2)
        assert trainer.step == 10
        ends.append(weights(trainer.model))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("kind", ["loader", "list", "stateful"])
@pytest.mark.parametrize("failing", [(0,), (2,), (4, 7)])
def test_a_batch_that_failed_is_not_skipped(kind: str, failing: tuple[int, ...], tmp_path: Path) -> None:
    class Foreign:
        """Begins anew, unless it was told where."""

        place = 0

        def __iter__(self) -> Any:
            start, self.place = self.place, 0
            for i in range(start, 5):
                self.place = i + 1
                yield X[10 * i : 10 * i + 10], Y[10 * i : 10 * i + 10]
            self.place = 0

        def state_dict(self) -> dict[str, int]:
            return {"place": self.place}

        def load_state_dict(self, state: Any) -> None:
            self.place = state["place"]

    def run(name: str, *failing: int) -> bytes:
        loader: Any = {"loader": loader_of, "list": lambda: list(loader_of()), "stateful": Foreign}[kind]()
        model = model_of(dropout=0.0)
        trainer = trainer_of(model, callbacks=[Seen(*failing)], directory=tmp_path / name)
        for _ in failing:
            with pytest.raises(RuntimeError, match="failed"):
                trainer.fit(loader, epochs=2)
        trainer.write_checkpoint()
        trainer.fit(loader, epochs=2)
        assert trainer.step == 10 and len(trainer.history) == 2
        return weights(model)

    assert run("a", *failing) == run("b")


def test_a_checkpoint_after_an_error_goes_on_with_the_batch_that_failed(tmp_path: Path) -> None:
    def run(name: str, *failing: int) -> bytes:
        trainer = trainer_of(model_of(), callbacks=[Seen(*failing)], directory=tmp_path / name)
        try:
            trainer.fit(loader_of(), epochs=2, resume=True)
        except RuntimeError:
            trainer.write_checkpoint()
            return run(name)
        return weights(trainer.model)

    assert run("a", 7) == run("b")


def test_an_iterator_goes_on_with_what_is_left() -> None:
    loader = train.DataLoader(((x, y) for x, y in zip(X, Y, strict=True)), 10)
    trainer = trainer_of(model_of(), callbacks=[At(2, lambda t: t.stop())])
    trainer.fit(loader)
    trainer.fit(loader)
    assert trainer.step == 5 and len(trainer.history) == 1
