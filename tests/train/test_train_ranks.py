"""Training on several ranks, which are threads here: the same bits, files and errors for any number."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import distributed, nn, optim, train
from adjoint.distributed import Group
from adjoint.errors import ArgumentError, InputError, NonFiniteError, RankError
from adjoint.train.signals import stopping_on_interrupt


def table(rows: int, dtype: Any = np.float32) -> tuple[Any, Any]:
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, 8)).astype(dtype)
    return x, x.sum(1, keepdims=True)


X, Y = table(92)


def net(dtype: Any = np.float32, dropout: float = 0.3) -> nn.Module:
    layers = [nn.Linear(8, 16, rng=0), nn.Dropout(dropout, rng=5), nn.Tanh(), nn.Linear(16, 1, rng=1)]
    return nn.Sequential(*layers).astype(dtype)


def run(
    group: Group | None,
    directory: Path,
    *,
    callbacks: Sequence[train.Callback] = (),
    resume: bool = False,
    composed: bool = False,
    pieces: int = 4,
    epochs: int = 3,
    compile: bool = False,
) -> tuple[bytes, Any, train.Trainer]:
    """Train with dropout, clipping, a schedule, batches of 37 and 18 rows, a log, checkpoints, validation."""
    model = net()
    loss: Any = nn.functional.mse_loss
    if composed:
        l2 = lambda model: sum((p**2).sum() for p in model.parameters())
        loss = train.compose({"fit": loss, "l2": (l2, 1e-3)})
    trainer = train.Trainer(
        model, loss, optim.AdamW(model.parameters(), lr=1e-2), schedule=optim.schedules.linear(1e-2, 30),
        accumulate=pieces, clip=0.5, group=group, directory=directory / "checkpoints", term_norms=2,
        callbacks=[train.JSONLog(directory / "log.jsonl", every="step"), *callbacks],
        compile=compile, metrics={} if composed else {"off": lambda p, y: abs(p - y).mean()},
    )  # fmt: skip
    loader = train.DataLoader((X, Y), 37, shuffle=True, seed=3)
    history = trainer.fit(loader, epochs, validate=train.DataLoader((X, Y), 20), resume=resume)
    numbers = [{k: v for k, v in logs.items() if k != "seconds"} for logs in history]
    return b"".join(p.numpy().tobytes() for p in model.parameters()), numbers, trainer


@pytest.mark.parametrize("composed", [False, True])
def test_any_number_of_ranks_gives_the_same_bits_and_files(tmp_path: Path, composed: bool) -> None:
    files = {}
    for size in (1, 2, 4):
        directory = tmp_path / str(size)
        found = distributed.simulate(size, lambda g, d=directory: run(g, d, composed=composed)[:2])
        assert found == [found[0]] * size
        files[size] = found[0], (directory / "log.jsonl").read_bytes()
        assert len(list((directory / "checkpoints").iterdir())) == 3
    assert files[1] == files[2] == files[4]
    assert b"val_" not in files[1][1] and files[1][1].count(b"\n") == 9


def test_compiled_ranks_give_the_same_bits_with_and_without_a_recorder(tmp_path: Path) -> None:
    """Pieces have 9 or 10 rows: those of one size run as native code, on all ranks the same."""

    def fitted(group: Group, directory: Path, recorded: bool) -> Any:
        callbacks = [ad.inspect.Recorder()] if recorded else []
        return run(group, directory, composed=True, compile=True, callbacks=callbacks)[:2]

    found = []
    for size in (1, 2, 4):
        for recorded in (False, True):
            directory = tmp_path / f"{size} {recorded}"
            found += distributed.simulate(size, lambda g, d=directory, r=recorded: fitted(g, d, r))
    assert found == [found[0]] * 14


class Killed(train.Callback):
    """Raise at a step, on all ranks, as a job that ends."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, trainer: train.Trainer, logs: Any) -> None:
        if trainer.step == self.step:
            raise KeyboardInterrupt


def test_a_run_resumes_on_any_number_of_ranks(tmp_path: Path) -> None:
    expected = run(Group(), tmp_path / "whole")[:2]
    for size, step in ((4, 4), (2, 8)):
        with pytest.raises(KeyboardInterrupt):
            distributed.simulate(
                size, lambda g, s=step: run(g, tmp_path / "parts", resume=True, callbacks=[Killed(s)])
            )
    ((*found, trainer),) = distributed.simulate(1, lambda g: run(g, tmp_path / "parts", resume=True))
    assert tuple(found) == expected and trainer.step == 9
    logs = [(tmp_path / part / "log.jsonl").read_bytes() for part in ("whole", "parts")]
    assert logs[0] == logs[1]


class Mixed(nn.Module):
    """A net with a table of sparse gradients, a part that few rows use, and one that none uses."""

    def __init__(self) -> None:
        self.table = nn.Embedding(50, 4, sparse=True, rng=0)
        self.inner = nn.Linear(4, 16, rng=1)
        self.rare = nn.Linear(16, 16, rng=2)
        self.never = nn.Linear(3, 3, rng=3)
        self.last = nn.Linear(16, 1, rng=4)
        self.astype(np.float64)

    def forward(self, x: Any) -> Any:
        y, few = self.inner(self.table(x).mean(1)).tanh(), x[:, :1] == 0
        return self.last(y + self.rare(y) * few.astype(float) if few.any() else y)


def test_the_result_is_that_of_one_process() -> None:
    """36 steps on 1 to 4 ranks against a trainer without a group: 1e-15 of the norm of each parameter."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 50, (92, 3)), rng.standard_normal((92, 1))

    def fitted(group: Group | None, pieces: int = 12) -> Any:
        model = Mixed()
        trainer = train.Trainer(
            model, nn.functional.mse_loss, optim.AdamW(model.parameters(), lr=1e-2), clip=0.5, accumulate=pieces,
            schedule=optim.schedules.linear(1e-2, 40), group=group,
        )  # fmt: skip
        held_out = [(x[:5], y[:5]), (x[5:], y[5:])]
        history = trainer.fit(train.DataLoader((x, y), 37, shuffle=True, seed=1), 12, validate=held_out)
        return [p.numpy() for p in model.parameters()], [(h["loss"], h["val_loss"]) for h in history]

    expected, numbers = fitted(None)
    for size in (1, 2, 3, 4):
        for found, own in distributed.simulate(size, fitted):
            np.testing.assert_allclose(own, numbers, rtol=1e-15)
            for a, b in zip(found, expected, strict=True):
                assert np.linalg.norm(a - b) <= 1e-15 * np.linalg.norm(b)


def test_shares_are_all_rows_once_and_move_the_loader() -> None:
    def work(group: Group) -> Any:
        arrays = train.DataLoader((np.arange(11), np.arange(11)), 4, shuffle=True, prefetch=2)
        seen = [rows.tolist() for rows, _ in arrays.shares(group, 4)]
        assert (arrays.epoch, arrays.position) == (1, 0)
        samples = train.DataLoader([np.ones(2) * i for i in range(5)], 3, collate=train.pad_collate)
        stream = train.DataLoader(iter(range(7)), 4)
        return (
            seen,
            [part.values.shape for part in samples.shares(group, 4)],
            [part.tolist() for part in stream.shares(group)],
        )

    found = distributed.simulate(2, work)
    assert sorted(i for seen, *_ in found for part in seen for i in part) == list(range(11))
    assert [len(seen) for seen, *_ in found] == [6, 6]  # pieces of three batches
    assert [shapes for _, shapes, _ in found] == [
        [(0, 2), (1, 2), (0, 2), (1, 2)],
        [(1, 2), (1, 2), (0, 2), (1, 2)],
    ]
    assert [parts for *_, parts in found] == [[[0, 1], [4]], [[2, 3], [5, 6]]]
    with pytest.raises(ArgumentError, match="pieces must be a multiple of the number of ranks, 2, but is 3"):
        distributed.simulate(2, lambda g: train.DataLoader(np.arange(3)).shares(g, 3))


class Stopping(train.Callback):
    """Ask to stop on one rank."""

    def __init__(self, step: int, rank: int) -> None:
        self.step, self.rank = step, rank

    def on_step(self, trainer: train.Trainer, logs: Any) -> None:
        if trainer.step == self.step and trainer._rank == self.rank:
            trainer.stop("enough")


@pytest.mark.parametrize(("step", "ends"), [(1, 2), (3, 3)])  # the third step is the last of its epoch
def test_all_ranks_stop_at_the_same_step(tmp_path: Path, step: int, ends: int) -> None:
    found = distributed.simulate(3, lambda g: run(g, tmp_path, pieces=3, callbacks=[Stopping(step, 2)]))
    assert [(t.step, t.stopped) for *_, t in found] == [(ends, "enough")] * 3
    assert (tmp_path / "checkpoints" / f"step-{ends:09d}").is_dir()


class Failing(train.Callback):
    """Raise on one rank."""

    def on_step(self, trainer: train.Trainer, logs: Any) -> None:
        if trainer.step == 2 and trainer._rank == 1:
            raise OSError("disk full")


def test_an_error_in_a_callback_ends_all_ranks(tmp_path: Path) -> None:
    heard = {}

    def work(group: Group) -> None:
        try:
            run(group, tmp_path, callbacks=[Failing()])
        except RankError as error:
            heard[group.rank] = str(error)
            raise

    with pytest.raises(OSError, match="disk full"):
        distributed.simulate(3, work)
    assert heard.keys() == {0, 2}
    assert all("rank 1 raised OSError: disk full" in text and "in on_step" in text for text in heard.values())


def test_after_an_error_in_the_loss_the_group_trains_on() -> None:
    def work(group: Group, fails: bool) -> Any:
        model = net()
        failed: list[str] = []

        def loss(prediction: Any, target: Any) -> Any:
            if fails and group.rank == 1 and trainer.step == 4 and not failed:
                raise ValueError("a bad row")
            return nn.functional.mse_loss(prediction, target)

        trainer = train.Trainer(model, loss, optim.Adam(model.parameters(), lr=1e-2), group=group)
        loader = train.DataLoader((X, Y), 30, shuffle=True)
        try:
            trainer.fit(loader, 3)
        except RankError as error:
            failed.append(str(error).splitlines()[0])
        trainer.fit(loader, 3)
        return failed, b"".join(p.numpy().tobytes() for p in model.parameters())

    found = distributed.simulate(2, lambda g: work(g, True))
    expected = distributed.simulate(2, lambda g: work(g, False))
    assert [failed for failed, _ in found] == [["rank 1 raised ValueError: a bad row"]] * 2
    assert [weights for _, weights in found] == [weights for _, weights in expected]


def test_a_loss_that_is_not_finite_on_one_rank_is_guarded_on_all() -> None:
    heard = []

    def work(group: Group) -> None:
        model = net()

        def loss(prediction: Any, target: Any) -> Any:
            bad = group.rank == 1 and trainer.step == 2
            return nn.functional.mse_loss(prediction, target) * np.float32("nan" if bad else "1")

        trainer = train.Trainer(
            model, loss, optim.Adam(model.parameters()), group=group, callbacks=[train.NonFiniteGuard()]
        )
        try:
            trainer.fit(train.DataLoader((X, Y), 30), 1)
        except NonFiniteError:
            heard.append((group.rank, trainer.step))
            raise

    with pytest.raises(NonFiniteError, match="loss is nan at step 3"):
        distributed.simulate(2, work)
    assert sorted(heard) == [(0, 2), (1, 2)]


def test_fewer_rows_than_ranks_train() -> None:
    def work(group: Group | None) -> Any:
        model = net(dropout=0.0)
        trainer = train.Trainer(
            model, nn.functional.mse_loss, optim.SGD(model.parameters(), lr=0.1), group=group, accumulate=4
        )
        trainer.fit([(X[:2], Y[:2]), (X[2:5], Y[2:5])], 2)
        return [p.numpy() for p in model.parameters()], trainer.evaluate([(X[:3], Y[:3])])

    expected, loss = work(None)
    for found, own in distributed.simulate(4, work):
        assert own["loss"] == pytest.approx(loss["loss"], rel=1e-6)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_running_statistics_are_averaged_before_a_validation() -> None:
    def work(group: Group) -> Any:
        model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 1, rng=0))
        trainer = train.Trainer(
            model, nn.functional.mse_loss, optim.SGD(model.parameters(), lr=0.1), group=group
        )
        history = trainer.fit([(X, Y)], 2, validate=[(X, Y), (X[:9], Y[:9])])
        return {name: b.tolist() for name, b in model.named_buffers()}, history[-1]["val_loss"]

    found = distributed.simulate(2, work)
    assert found[0] == found[1]
    halves = np.stack([X[:46].mean(0), X[46:].mean(0)]).mean(0)  # running = 0.9 · running + 0.1 · mean, twice
    running = next(values for name, values in found[0][0].items() if "mean" in name)
    np.testing.assert_allclose(running, (1 - 0.9**2) * halves, rtol=1e-4, atol=1e-6)


def test_interrupts_stop_all_ranks() -> None:
    asked: list[int] = []
    with stopping_on_interrupt(lambda: asked.append(1), launched=True):
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked == [1]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGUSR1)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_mistakes() -> None:
    def made(group: Any, **options: Any) -> train.Trainer:
        model = options.pop("model", None) or net()
        return train.Trainer(
            model, nn.functional.mse_loss, optim.SGD(model.parameters(), lr=options.pop("lr", 0.1)),
            group=group, **options,
        )  # fmt: skip

    with pytest.raises(InputError, match=r"group must be a distributed\.Group, not an int"):
        made(3)
    with pytest.raises(ArgumentError, match="at least the number of ranks, 2, but is 1"):
        distributed.simulate(2, lambda g: made(g, accumulate=1))
    with pytest.raises(InputError, match=r"SGD\(.*lr=0.1.*on rank 0, SGD\(.*lr=0.2.*on rank 1"):
        distributed.simulate(2, lambda g: made(g, lr=0.1 * (g.rank + 1)))
    with pytest.raises(InputError, match=r"with \[4, 5\] rows"):
        distributed.simulate(2, lambda g: made(g).fit([(X[: 4 + g.rank], Y[: 4 + g.rank])]))
    with pytest.raises(RankError, match="different calls"):
        distributed.simulate(2, lambda g: made(g).fit([(X, Y)] * (2 + g.rank)))
    with pytest.raises(InputError, match="there are no batches to evaluate"):
        distributed.simulate(2, lambda g: made(g).evaluate([]))
    drawing = net()
    drawing.own = np.random.default_rng(0)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"\.own is a generator of NumPy"):
        made(Group(), model=drawing)
    assert ad.is_grad_enabled()
