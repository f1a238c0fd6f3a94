"""Training: data, the loop, accumulation, callbacks, checkpoints, composed losses."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import errors, nn, optim, train
from adjoint.optim import schedules

pytest.importorskip("safetensors")

F = nn.functional

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 3))
Y = X @ np.array([[1.0], [-2.0], [0.5]]) + 0.1


def model_of(seed: int = 0, dropout: float = 0.0) -> nn.Module:
    layers: list[Any] = [nn.Linear(3, 8, rng=seed), nn.Tanh(), nn.Linear(8, 1, rng=seed + 1)]
    if dropout:
        layers.insert(2, nn.Dropout(dropout, rng=7))
    return nn.Sequential(*layers).astype(np.float64)


def trainer_of(model: nn.Module, **options: Any) -> train.Trainer:
    return train.Trainer(model, nn.functional.mse_loss, optim.Adam(model.parameters(), lr=0.02), **options)


def weights(model: nn.Module) -> bytes:
    return b"".join(v.tobytes() for v in model.state_dict().values())


# Data ------------------------------------------------------------------------------------------


def test_batches_of_arrays_sequences_and_iterables() -> None:
    pairs = list(train.DataLoader((X, Y), 20))
    assert [len(x) for x, y in pairs] == [20, 20, 10] and len(train.DataLoader((X, Y), 20)) == 3
    assert len(train.DataLoader((X, Y), 20, drop_last=True)) == 2
    samples = [(np.array([i]), i) for i in range(5)]
    (a, b), *_ = train.DataLoader(samples, 2)
    assert a.tolist() == [[0], [1]] and b.tolist() == [0, 1]
    stream = train.DataLoader((np.array(i) for i in range(5)), 2)
    assert [batch.tolist() for batch in stream] == [[0, 1], [2, 3], [4]]
    first = next(iter(train.DataLoader([{"x": 1, "y": 2}, {"x": 3, "y": 4}], 2)))
    assert {k: v.tolist() for k, v in first.items()} == {"x": [1, 3], "y": [2, 4]}


def test_order_is_a_function_of_seed_and_epoch() -> None:
    one, two = (train.DataLoader(np.arange(20), 6, shuffle=True, seed=3) for _ in range(2))
    first, second = [b.tolist() for b in one], [b.tolist() for b in one]
    assert first != second and sorted(i for b in first for i in b) == list(range(20))
    two.load_state_dict({**two.state_dict(), "epoch": 1, "position": 2})
    assert [b.tolist() for b in two] == second[2:]
    assert two.state_dict()["epoch"] == 2 and two.state_dict()["position"] == 0
    with pytest.raises(errors.ArgumentError, match="batch_size 6, not 5, samples 20, not 30"):
        train.DataLoader(np.arange(30), 5, shuffle=True).load_state_dict(two.state_dict())


def test_prefetching_changes_nothing_and_leaves_no_thread() -> None:
    loader = train.DataLoader(np.arange(20), 3, shuffle=True, prefetch=2)
    plain = train.DataLoader(np.arange(20), 3, shuffle=True)
    assert [b.tolist() for b in loader] == [b.tolist() for b in plain]
    steps = iter(loader)
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name == "adjoint-prefetch"]

    def failing() -> Any:
        yield np.zeros(1)
        raise KeyError("broken sample")

    with pytest.raises(KeyError, match="broken sample"):
        list(train.DataLoader(failing(), 1, prefetch=2))


def test_ragged_samples_are_padded_with_their_lengths() -> None:
    rows = [np.ones(n, np.int64) for n in (3, 1, 2)]
    padded, lengths = next(iter(train.DataLoader(rows, 3, collate=train.pad_collate)))
    assert padded.tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]] and lengths.tolist() == [3, 1, 2]


# The loop --------------------------------------------------------------------------------------


def test_training_lowers_the_loss_and_evaluates() -> None:
    model = model_of()
    trainer = trainer_of(model, metrics={"error": lambda p, t: abs(p - t).mean()})
    history = trainer.fit(train.DataLoader((X, Y), 10, shuffle=True), epochs=30, validate=[(X, Y)])
    assert history[-1]["loss"] < 0.05 < history[0]["loss"] and len(history) == 30
    assert set(history[-1]) == {"loss", "error", "grad_norm", "lr", "seconds", "val_loss", "val_error"}
    found = trainer.evaluate(train.DataLoader((X, Y), 7))
    assert found["loss"] == pytest.approx(((trainer.predict(X) - Y) ** 2).mean())
    assert model.training


@pytest.mark.parametrize("pieces", [2, 4, 8])
def test_accumulation_gives_the_same_curve(pieces: int) -> None:
    curves = []
    for accumulate in (1, pieces):
        trainer = trainer_of(model_of(), accumulate=accumulate, clip=1.0)
        history = trainer.fit(train.DataLoader((X, Y), 16, shuffle=True), epochs=3)
        curves.append([h["loss"] for h in history])
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-10)


def test_a_schedule_sets_the_rate_and_the_norm_is_logged() -> None:
    seen: list[dict[str, float]] = []

    class Watch(train.Callback):
        def on_step(self, trainer: train.Trainer, logs: Any) -> None:
            seen.append(dict(logs))

    trainer = trainer_of(model_of(), schedule=schedules.linear(0.1, 10), clip=100.0, callbacks=[Watch()])
    trainer.fit([(X, Y)] * 4, epochs=1)
    assert [s["lr"] for s in seen] == pytest.approx([0.1, 0.09, 0.08, 0.07])
    assert all(s["grad_norm"] > 0 for s in seen)


def test_compute_and_weight_replace_the_pair_of_inputs_and_targets() -> None:
    model = model_of()
    rows = [(np.ones((2, 3)), np.array([2.0, 1.0])), (np.ones((1, 3)), np.array([5.0]))]
    trainer = train.Trainer(
        model,
        optimizer=optim.SGD(model.parameters(), lr=0.0),
        compute=lambda m, batch: m(ad.asarray(batch[0])).mean() * 0 + float(batch[1].sum()),
        weight=lambda batch: batch[1].sum(),
    )
    (logs,) = trainer.fit(rows)
    assert logs["loss"] == pytest.approx((3.0 * 3 + 5.0 * 5) / 8)


def test_mistakes() -> None:
    model = model_of()
    with pytest.raises(errors.InputError, match="neither loss nor compute was given"):
        train.Trainer(model, optimizer=optim.SGD(model.parameters()))
    with pytest.raises(errors.InputError, match="pass an optimiser"):
        train.Trainer(model, nn.functional.mse_loss)
    with pytest.raises(errors.InputError, match=r"\(inputs, targets\)"):
        trainer_of(model).fit([X])
    with pytest.raises(errors.ArgumentError, match="needs a directory"):
        trainer_of(model).fit([(X, Y)], resume=True)
    with pytest.raises(errors.ShapeError, match="the same length"):
        train.DataLoader((X, Y[:3]))
    with pytest.raises(errors.InputError, match="shuffle=True needs arrays or a sequence"):
        train.DataLoader(iter([1]), shuffle=True)
    with pytest.raises(errors.ArgumentError, match="batch_size"):
        train.DataLoader(X, 0)


# Callbacks -------------------------------------------------------------------------------------


def test_early_stopping_and_logs(tmp_path: Path) -> None:
    model = model_of()
    stopping = train.EarlyStopping("val_loss", patience=2)
    trainer = train.Trainer(
        model,
        nn.functional.mse_loss,
        optim.SGD(model.parameters(), lr=0.0),
        callbacks=[
            stopping,
            train.CSVLog(tmp_path / "log.csv"),
            train.JSONLog(tmp_path / "log.jsonl", "step"),
        ],
    )
    history = trainer.fit([(X, Y)], epochs=10, validate=[(X, Y)])
    assert len(history) == 3 and trainer.stopped == "val_loss has not improved for 2 epochs"
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0] == "epoch,step,loss,grad_norm,lr,seconds,val_loss" and len(lines) == 4
    rows = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [1, 2, 3]
    with pytest.raises(errors.ArgumentError, match="monitors 'val_loss', but there is no validation"):
        trainer_of(model_of(), callbacks=[train.EarlyStopping()]).fit([(X, Y)])


def test_guard_and_gradient_flow() -> None:
    model = model_of()
    flow = train.GradientFlow(every=1)
    trainer_of(model, callbacks=[flow]).fit([(X, Y)] * 3)
    assert (
        len(flow.history) == 3
        and not flow.dead()
        and set(flow.history[0][1]) == dict(model.named_parameters()).keys()
    )
    with pytest.raises(errors.NonFiniteError, match="loss is nan at step 1"), np.errstate(all="ignore"):
        trainer_of(model, callbacks=[train.NonFiniteGuard()]).fit([(X * np.nan, Y)])


def test_an_interrupt_stops_after_the_step_with_a_checkpoint(tmp_path: Path) -> None:
    class Interrupt(train.Callback):
        def on_step(self, trainer: train.Trainer, logs: Any) -> None:
            if trainer.step == 2:
                os.kill(os.getpid(), signal.SIGINT)

    trainer = trainer_of(model_of(), callbacks=[Interrupt()], directory=tmp_path)
    trainer.fit([(X, Y)] * 5)
    assert trainer.stopped == "interrupted" and trainer.step == 2
    assert [step for step, _ in train.Checkpoints(tmp_path).all()] == [2]


# Checkpoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_at", [1, 4, 5, 9])
def test_resuming_is_bitwise_as_if_it_had_not_stopped(tmp_path: Path, stop_at: int) -> None:
    def run(directory: Path, resume: bool, stop: int | None) -> tuple[bytes, list[dict[str, float]]]:
        class Stop(train.Callback):
            def on_step(self, trainer: train.Trainer, logs: Any) -> None:
                if trainer.step == stop:
                    trainer.stop()

        model = model_of(dropout=0.3)
        trainer = trainer_of(
            model,
            schedule=schedules.cosine(0.02, 20),
            accumulate=2,
            clip=0.5,
            callbacks=[Stop()],
            directory=directory,
            checkpoint_every=3,
        )
        history = trainer.fit(train.DataLoader((X, Y), 13, shuffle=True), epochs=3, resume=resume)
        return weights(model), [{k: v for k, v in h.items() if k != "seconds"} for h in history]

    straight = run(tmp_path / "a", False, None)
    run(tmp_path / "b", False, stop_at)
    assert run(tmp_path / "b", True, None) == straight


def test_the_last_few_and_the_best_are_kept(tmp_path: Path) -> None:
    kept = train.Checkpoints(tmp_path, keep=2)
    for step, score in enumerate([3.0, 1.0, 2.0, 4.0, 5.0]):
        kept.write(step, {"w": np.array([float(step)])}, {"x": 1}, score)
    assert [step for step, _ in kept.all()] == [1, 3, 4]
    best, latest = kept.best(), kept.latest()
    assert best is not None and best.name == "step-000000001"
    assert latest is not None and kept.read(latest)[0]["w"].tolist() == [4.0]


def test_a_broken_checkpoint_is_refused(tmp_path: Path) -> None:
    kept = train.Checkpoints(tmp_path)
    path = kept.write(1, {"w": np.zeros(1000)}, {"x": 1})
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[:-100])
    with pytest.raises(errors.AdjointError):
        kept.read(path)
    (path / "meta.json").write_text("[]")
    with pytest.raises(errors.FileError, match="not an object"):
        kept.read(path)
    (path / "meta.json").write_text('{"version": 99}')
    with pytest.raises(errors.FileError, match="version 99"):
        kept.read(path)


# Composed losses -------------------------------------------------------------------------------


def l2(model: nn.Module) -> Any:
    return sum(((p**2).sum() for p in model.parameters()), start=ad.tensor(0.0))


def test_terms_are_weighted_logged_and_have_gradient_norms() -> None:
    model = model_of()
    loss = train.compose({"fit": (nn.functional.mse_loss, schedules.linear(1.0, 10)), "l2": (l2, 1e-2)})
    loss.step = 5
    total = loss(model(ad.asarray(X)), ad.asarray(Y), model)
    assert total.item() == pytest.approx(0.5 * loss.values["fit"] + 1e-2 * loss.values["l2"])
    norms = loss.gradient_norms(model.parameters())
    expected = 2 * np.sqrt(sum((p.numpy() ** 2).sum() for p in model.parameters()))
    assert norms["l2"] == pytest.approx(expected) and norms["fit"] > 0
    total.backward()


def test_learned_weights_are_trained_with_the_model() -> None:
    model = model_of()
    loss = train.compose({"fit": (nn.functional.mse_loss, "learned"), "l2": (l2, 1e-3)})
    optimiser = optim.Adam([*model.parameters(), *loss.parameters()], lr=0.02)
    train.Trainer(model, loss, optimiser).fit(train.DataLoader((X, Y), 10), epochs=2)
    assert loss.s_fit.item() != 0.0
    with pytest.raises(errors.ArgumentError, match="a schedule or 'learned'"):
        train.compose({"a": (l2, "big")})
    with pytest.raises(errors.InputError, match="needs the model"):
        loss(ad.asarray(Y), ad.asarray(Y))


def test_a_composed_loss_goes_through_every_transform() -> None:
    model = model_of()
    loss = train.compose(
        {"fit": (nn.functional.mse_loss, 0.5), "l2": (l2, 1e-2), "far": (nn.functional.l1_loss, "learned")}
    )

    def of(x: Any, y: Any) -> Any:
        return loss(model(x[None]), y[None], model)

    each = [of(x, y).item() for x, y in zip(X, Y, strict=True)]
    assert list(loss.values) == ["fit", "l2", "far"]
    np.testing.assert_allclose(ad.vmap(of)(X, Y).numpy(), each, rtol=1e-12)
    assert list(loss.values) == ["l2"]  # the only term that is one number there
    alone = [ad.grad(of)(ad.asarray(x), ad.asarray(y)).numpy() for x, y in zip(X, Y, strict=True)]
    np.testing.assert_allclose(ad.vmap(ad.grad(of))(X, Y).numpy(), alone, rtol=1e-12)
    slopes = ad.vmap(lambda x, y: ad.jvp(lambda x: of(x, y), (x,), (ad.ones(3),))[1])(X, Y)
    np.testing.assert_allclose(slopes.numpy(), np.sum(alone, 1), rtol=1e-12)
    value, _ = ad.jvp(lambda y: of(ad.asarray(X[0]), y), (ad.asarray(Y[0]),), (ad.ones(1),))
    assert value.item() == each[0] and list(loss.values) == ["fit", "l2", "far"]


# Edges -----------------------------------------------------------------------------------------


def test_a_batch_that_fails_leaves_nothing_for_the_next() -> None:
    batch = (X[:8], Y[:8])
    expected = trainer_of(model_of(), accumulate=4)
    expected.train_step(batch)
    calls: list[int] = []

    def failing(prediction: Any, target: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("third piece")
        return nn.functional.mse_loss(prediction, target)

    trainer = trainer_of(model_of(), accumulate=4)
    trainer.loss = failing
    with pytest.raises(RuntimeError, match="third piece"):
        trainer.train_step((X[8:16], Y[8:16]))
    trainer.loss = expected.loss
    trainer.train_step(batch)
    assert weights(trainer.model) == weights(expected.model)


def test_stopping_at_the_end_of_an_epoch_writes_a_checkpoint(tmp_path: Path) -> None:
    class Stop(train.Callback):
        def on_epoch(self, trainer: Any, logs: Any) -> None:
            trainer.stop()

    trainer = trainer_of(model_of(), directory=tmp_path, checkpoint_every=1000, callbacks=[Stop()])
    trainer.fit(train.DataLoader((X, Y)), epochs=5)
    assert trainer.checkpoints is not None
    assert [step for step, _ in trainer.checkpoints.all()] == [trainer.step]


def test_evaluation_leaves_each_module_in_its_mode() -> None:
    model = model_of(dropout=0.5)
    _, inner = list(model.named_modules())[1]
    inner.training = False
    trainer = trainer_of(model)
    assert trainer.predict(X[:0]).shape == (0, *trainer.predict(X[:1]).shape[1:])
    assert model.training
    assert not inner.training


def test_mistakes_are_told_before_or_at_the_first_step() -> None:
    model = model_of()
    with pytest.raises(
        errors.InputError, match="metrics must be a dictionary of functions by name, not a list"
    ):
        trainer_of(model, metrics=[nn.functional.l1_loss])
    vector = train.Trainer(model, lambda p, t: (p - t) ** 2, optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(errors.ShapeError, match=r"the loss must be one number, but has shape \(50, 1\)"):
        vector.fit([(X, Y)])
    with pytest.raises(errors.InputError, match=r"Adam\(model\.parameters\(\)\)"):
        optim.Adam(model)
    with pytest.raises(errors.InputError, match=r"dict\(named_parameters\(\)\)"):
        optim.Adam(list(model.named_parameters()))
    with pytest.raises(errors.InputError, match=r"Save its state_dict\(\)"):
        ad.save("never.safetensors", model)


def test_checkpoints_need_their_library_from_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(errors.MissingExtraError, match="writing checkpoints needs safetensors"):
        trainer_of(model_of(), directory=tmp_path)


@pytest.mark.parametrize(
    "term", [lambda model, p, t: p.sum(), lambda model, p: p.sum(), lambda p, model: p.sum()]
)
def test_a_term_that_would_get_its_model_elsewhere_is_refused(term: Any) -> None:
    with pytest.raises(errors.InputError, match=r"\(prediction, target, model\), not \(.*model"):
        train.compose({"fit": nn.functional.mse_loss, "term": term})


def test_an_error_inside_a_term_names_it() -> None:
    loss = train.compose({"small": lambda prediction: (prediction**2).mean()})
    model = model_of()
    with pytest.raises(TypeError) as info:
        loss(model(X), Y, model)
    assert info.value.__notes__ == ["In the term 'small' of a composed loss, called with (model)."]


class Listed(nn.Module):
    def __init__(self, hold: Any) -> None:
        self.head = nn.Linear(3, 1, rng=0, dtype=np.float64)
        self.parts = hold(nn.Linear(3, 3, rng=1, dtype=np.float64))

    def forward(self, x: Any) -> Any:
        return self.head(x)


@pytest.mark.parametrize(
    "hold", [lambda m: [m], lambda m: (m,), lambda m: {"a": m}, lambda m: [nn.Parameter([1.0])]]
)
def test_parameters_in_plain_containers_are_refused(hold: Any) -> None:
    with pytest.raises(errors.InputError, match=r"are not trained: 1\.parts"):
        trainer_of(nn.Sequential(nn.Tanh(), Listed(hold)))


def test_containers_of_what_is_seen_or_frozen_are_fine() -> None:
    frozen = Listed(lambda m: [m.requires_grad_(False), "text", None])
    registered = Listed(lambda m: nn.ModuleList([m]))
    registered.order = [registered.head, registered.parts[0]]
    for model in (frozen, registered):
        trainer_of(model).fit([(X, Y)])


def test_what_pads_whole_numbers_may_be_a_fraction() -> None:
    assert train.pad_collate([[1, 2], [3]], value=0.5).values.tolist() == [[1, 2], [3, 0.5]]
    single = train.pad_collate([np.ones(2, np.float32), np.ones(1, np.float32)], value=0.5)
    assert single.values.dtype == np.float32
    assert train.pad_collate([[True, True], [True]]).values.dtype == bool
    for collate in (train.pad_collate, train.stack_collate):
        with pytest.raises(errors.InputError, match="a batch must have at least one sample"):
            collate([])


def test_an_empty_batch_makes_no_update_in_pieces_either() -> None:
    for accumulate in (1, 2):
        model = nn.Linear(2, 1, rng=0)
        before = model.weight.numpy()
        trainer = train.Trainer(
            model, nn.functional.mse_loss, optim.SGD(model.parameters(), lr=0.1), accumulate=accumulate
        )
        trainer.train_step((np.ones((0, 2), np.float32), np.ones((0, 1), np.float32)))
        np.testing.assert_array_equal(model.weight.numpy(), before)


def test_a_batch_is_the_same_whoever_makes_it() -> None:
    def modes(samples: Any) -> tuple[bool, str]:
        return ad.is_grad_enabled(), np.geterr()["over"]

    with ad.no_grad(), np.errstate(over="raise"):
        found = [list(train.DataLoader([1, 2, 3], 2, collate=modes, prefetch=n)) for n in (0, 2)]
    assert found == [[(False, "raise")] * 2] * 2


def test_every_callback_is_told_of_the_end(tmp_path: Path) -> None:
    class Failing(train.Callback):
        def on_end(self, trainer: train.Trainer) -> None:
            raise KeyError("at the end")

    log = train.CSVLog(tmp_path / "log.csv")
    trainer = trainer_of(model_of(), callbacks=[Failing(), log])
    with pytest.raises(KeyError, match="at the end"):
        trainer.fit([(X, Y)])
    assert log._file is None


def test_a_module_that_was_put_into_evaluation_alone_stays_there() -> None:
    model = nn.Sequential(nn.Linear(3, 4, rng=0), nn.BatchNorm1d(4), nn.Linear(4, 1, rng=1)).astype(float)
    model[1].eval()
    trainer = trainer_of(model)
    trainer.fit([(X, Y)], epochs=2, validate=[(X, Y)])
    assert model.training and not model[1].training and model[1].num_batches_tracked.item() == 0
    model.eval()
    trainer.fit([(X, Y)], epochs=3)
    assert model[1].training and model[1].num_batches_tracked.item() == 1


def test_a_handler_of_interrupts_that_is_not_pythons_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    trainer = trainer_of(model_of())
    assert len(trainer.fit([(X, Y)])) == 1


@pytest.mark.parametrize("pieces", [1, 2])
def test_an_optimiser_of_a_part_of_the_model_updates_that_part(pieces):
    x, y = np.random.default_rng(0).normal(size=(2, 8, 3))
    model = nn.Sequential(nn.Linear(3, 3, rng=0), nn.Tanh(), nn.Linear(3, 3, rng=1)).astype(np.float64)
    body, head = model[0], model[2]
    before = body.weight.numpy(copy=True)
    trainer = train.Trainer(model, F.mse_loss, optim.SGD(head.parameters(), lr=0.1), accumulate=pieces)
    expected = head.weight.detach().numpy(copy=True)
    for _ in range(3):
        loss = F.mse_loss(model(x), y)
        expected -= 0.1 * ad.backward(loss)[head.weight].numpy()
        trainer.train_step((x, y))
        np.testing.assert_allclose(head.weight.numpy(), expected, rtol=1e-12)
        assert float(ad.abs(body.weight.grad).max()) < 1.0  # of one batch, not of all
    np.testing.assert_array_equal(body.weight.numpy(), before)


@pytest.mark.parametrize("pieces", [1, 2])
def test_the_accumulator_is_given_the_optimiser_itself_and_only_where_there_are_pieces(monkeypatch, pieces):
    given = []
    apply = ad.GradientAccumulator.apply

    def noted(self, optimizer, **options):
        given.append(optimizer)
        return apply(self, optimizer, **options)

    monkeypatch.setattr(ad.GradientAccumulator, "apply", noted)
    model = nn.Linear(3, 2, rng=0, dtype=np.float64)
    optimizer = optim.Adam(model.parameters())
    x, y = np.random.default_rng(0).normal(size=(4, 3)), np.zeros((4, 2))
    train.Trainer(model, F.mse_loss, optimizer, accumulate=pieces).train_step((x, y))
    assert len(given) == pieces - 1
    assert all(each is optimizer for each in given)


def test_both_ways_of_an_update_give_the_same_weights_clipped_or_not():
    x, y = np.random.default_rng(0).normal(size=(8, 3)), np.random.default_rng(1).normal(size=(8, 2))
    for clip in (None, 0.1, 100.0):
        weights, norms = [], []
        for pieces in (1, 2, 4, 8):
            model = nn.Linear(3, 2, rng=0).astype(np.float64)
            trainer = train.Trainer(
                model, F.mse_loss, optim.SGD(model.parameters(), lr=0.1), accumulate=pieces, clip=clip
            )
            norms.append([trainer.train_step((x, y))["grad_norm"] for _ in range(3)])
            weights.append(model.weight.numpy(copy=True))
        for found, norm in zip(weights, norms, strict=True):
            np.testing.assert_allclose(found, weights[0], rtol=1e-12)
            np.testing.assert_allclose(norm, norms[0], rtol=1e-12)


class Table:
    """What a loader sees of a table of pandas: a length, keys that are names, and a conversion."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values

    to_numpy = __array__


def test_tables_are_arrays() -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.arange(3)
    for data, expected in (
        ((Table(x), Table(y)), [(x[:2], y[:2]), (x[2:], y[2:])]),
        ({"x": Table(x)}, [{"x": x[:2]}, {"x": x[2:]}]),
        (Table(x), [x[:2], x[2:]]),
    ):
        batches = list(train.DataLoader(data, 2))
        assert repr(batches) == repr(expected)
