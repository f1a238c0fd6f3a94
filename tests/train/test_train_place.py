"""Where a run goes on: the place in the data, after a look, an evaluation, an error, a stop or a resumption."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_train import X, Y, model_of, trainer_of, weights

from adjoint import errors, nn, optim, train

pytest.importorskip("safetensors")


MSE = nn.functional.mse_loss


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


# Other loaders, other names, Ctrl-C ------------------------------------------------------------


def test_a_list_does_not_go_on_for_a_loader_nor_a_loader_for_a_list(tmp_path: Path) -> None:
    for name, first, second in (("a", loader_of(), list(loader_of())), ("b", list(loader_of()), loader_of())):
        trainer_of(model_of(), directory=tmp_path / name).fit(first)
        trainer = trainer_of(model_of(seed=5), directory=tmp_path / name)
        before = weights(trainer.model)
        with pytest.raises(errors.ArgumentError, match=r"because the batches may differ") as info:
            trainer.fit(second, epochs=2, resume=True)
        assert f"the position in a {type(first).__name__}" in str(info.value)
        assert weights(trainer.model) == before and trainer.step == 0
        trainer.fit(first, epochs=2, resume=True)
        assert trainer.step == 10
    with pytest.raises(errors.ArgumentError, match="seed 0, not 1"):
        trainer_of(model_of(), directory=tmp_path / "a").fit(loader_of(seed=1), epochs=2, resume=True)


def test_resuming_without_a_checkpoint_goes_on_in_the_same_trainer(tmp_path: Path) -> None:
    ends = []
    for name, failing in (("a", (3,)), ("b", ())):
        trainer = trainer_of(model_of(), callbacks=[Seen(*failing)], directory=tmp_path / name)
        for _ in failing:
            with pytest.raises(RuntimeError):
                trainer.fit(loader_of(), epochs=2, resume=True)
        trainer.fit(loader_of(), epochs=2, resume=True)
        ends.append((trainer.step, weights(trainer.model)))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", ["grad_norm_fit", "fit", "val_loss", "val_fit", "grad_norm"])
def test_two_numbers_under_one_name_are_refused(name: str) -> None:
    model = model_of()
    loss = train.compose({"fit": nn.functional.mse_loss})
    optimizer = optim.SGD(model.parameters())
    with pytest.raises(errors.ArgumentError, match=f"several metrics have the same name: '{name}'"):
        train.Trainer(model, loss, optimizer, metrics={name: lambda p, t: 0.0})
    with pytest.raises(errors.ArgumentError, match="several metrics have the same name: 'grad_norm_a'"):
        train.Trainer(model, train.compose({"a": MSE, "grad_norm_a": MSE}), optimizer)


class Batches:
    """Batches to validate with; a signal comes with one of them."""

    def __init__(self, at: int | None, error: type[BaseException] | None = None) -> None:
        self.at, self.error, self.seen = at, error, 0

    def __iter__(self) -> Any:
        for i in range(5):
            if i == self.at:
                self.at = None
                if self.error is not None:
                    raise self.error
                os.kill(os.getpid(), signal.SIGINT)
            self.seen += 1
            yield X[10 * i : 10 * i + 10], Y[10 * i : 10 * i + 10]


@pytest.mark.parametrize("kind", ["loader", "list"])
@pytest.mark.parametrize("again", ["same", "new"])
def test_ctrl_c_in_validation_stops_after_the_batch_and_the_epoch_is_validated_again(
    tmp_path: Path, kind: str, again: str
) -> None:
    def start(name: str) -> tuple[train.Trainer, Any]:
        loader = loader_of() if kind == "loader" else list(loader_of())
        log = train.CSVLog(tmp_path / f"{name}.csv")
        return trainer_of(model_of(dropout=0.3), directory=tmp_path / name, callbacks=[log]), loader

    def result(trainer: train.Trainer) -> Any:
        kept = [{k: v for k, v in h.items() if k != "seconds"} for h in trainer.history]
        return weights(trainer.model), kept

    straight, loader = start("a")
    straight.fit(loader, epochs=3, validate=Batches(None))
    trainer, loader = start("b")
    cut = Batches(1)
    trainer.fit(loader, epochs=3, validate=cut)
    assert (
        trainer.stopped == "interrupted" and trainer.history == [] and cut.seen == 3
    )  # the next one is not used
    assert (trainer.step, trainer.epoch) == (5, 0)
    if again == "new":
        trainer, loader = start("b")
        trainer.fit(loader, epochs=3, validate=Batches(None), resume=True)
    else:
        trainer.fit(loader, epochs=3, validate=Batches(None))
    assert trainer.step == 15 and result(trainer) == result(straight)
    assert len((tmp_path / "b.csv").read_text().splitlines()) == 4


def test_an_epoch_whose_validation_raised_is_not_trained_twice() -> None:
    trainer = trainer_of(model_of())
    loader, broken = loader_of(), Batches(2, KeyError)
    with pytest.raises(KeyError):
        trainer.fit(loader, epochs=1, validate=broken)
    trainer.fit(loader, epochs=1, validate=broken)
    assert trainer.step == 5 and len(trainer.history) == 1 and loader.epoch == 1


def test_the_first_ctrl_c_is_the_first_also_after_a_stop(tmp_path: Path) -> None:
    def stop(trainer: train.Trainer) -> None:
        trainer.stop("enough")
        os.kill(os.getpid(), signal.SIGINT)

    trainer = trainer_of(model_of(), directory=tmp_path, callbacks=[At(2, stop)])
    trainer.fit(loader_of())
    assert trainer.stopped == "enough" and [s for s, _ in train.Checkpoints(tmp_path).all()] == [2]

    def twice(trainer: train.Trainer) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trainer_of(model_of(), callbacks=[At(2, twice)]).fit(loader_of())


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("goes_on", [True, False])
def test_nothing_that_was_taken_from_an_iterator_is_lost(prefetch: int, goes_on: bool) -> None:
    def source() -> Any:
        yield from range(11)
        raise KeyError("broken sample")

    loader = train.DataLoader(source(), 2, collate=list, prefetch=prefetch)
    found = []
    for count in (1, 3, 1):
        batches = iter(loader)
        found += [next(batches) for _ in range(count)]
        batches.close()  # type: ignore[attr-defined]
        if goes_on:
            loader.load_state_dict(loader.state_dict())
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    with pytest.raises(KeyError, match="broken sample"):
        next(iter(loader))


def test_leaving_a_loop_does_not_wait_for_a_silent_source() -> None:
    """The thread ends when the source goes on; the next loop then has what was taken."""
    source: queue.SimpleQueue[int] = queue.SimpleQueue()
    loader = train.DataLoader(iter(source.get, -1), 2, collate=list, prefetch=2)
    found = []
    for given in ([0, 1, 2], [3, 4], [5, 6, 7]):  # each loop is left in the middle of a batch
        for i in given:
            source.put(i)
        for batch in loader:
            found.append(batch)
            break
    source.put(8)
    source.put(-1)
    assert [*found, *loader] == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]


def test_a_new_loop_over_an_iterable_does_not_wait_for_the_old_one() -> None:
    silent = threading.Event()

    class Stream:
        loops = 0

        def __iter__(self) -> Any:
            self.loops += 1
            yield 1
            if self.loops == 1:
                silent.wait()

    loader = train.DataLoader(Stream(), 1, collate=list, prefetch=1)
    assert next(iter(loader)) == [1]
    assert list(loader) == [[1]]
    silent.set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is of Unix")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:os.fork:RuntimeWarning")
def test_a_child_that_goes_on_with_a_loop_is_told() -> None:
    loader = train.DataLoader(list(range(100)), 1, collate=list, prefetch=2)
    batches = iter(loader)
    next(batches)
    pid = os.fork()
    if pid == 0:
        try:
            with pytest.raises(errors.WorkerError, match="the process was forked during a loop"):
                next(batches)
            os._exit(0 if len(list(loader)) == 100 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("prefetch", [0, 3])
def test_the_last_batch_of_an_iterator_is_handed_out_once(prefetch: int) -> None:
    loader = train.DataLoader(iter(range(5)), 2, collate=list, prefetch=prefetch)
    for batch in loader:
        assert batch == [0, 1]
        break
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == [[2, 3], [4]]
    assert list(loader) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: 3, "must have the keys 'epoch' and 'position'"),
        (lambda s: {k: v for k, v in s.items() if k != "epoch"}, "the state of a loader must have"),
        (lambda s: {**s, "epoch": "x"}, "epoch must be an integer, but got 'x'"),
        (lambda s: {**s, "position": -1}, "epoch and position must not be negative, but are .0, -1."),
    ],
)
def test_a_place_that_is_none_is_refused(change: Any, text: str) -> None:
    loader = loader_of()
    before = loader.state_dict()
    with pytest.raises(errors.AdjointError, match=text):
        loader.load_state_dict(change(before))
    assert loader.state_dict() == before
