"""Frozen parameters: optimisers, accumulators and the trainer take them, leave them alone, and see them thaw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim, train

F = nn.functional
RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 3)).astype(np.float32)
Y = X.sum(1, keepdims=True)

OPTIMIZERS = [
    lambda p: optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1),
    lambda p: optim.AdamW(p, lr=0.01),
    lambda p: optim.NAdam(p, lr=0.01),
    lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5),
    lambda p: optim.Adagrad(p, lr=0.1),
    lambda p: optim.Lion(p, lr=0.01),
]


def net(width: int = 4) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, width, rng=0),
        nn.Tanh(),
        nn.Linear(width, width, rng=1),
        nn.Tanh(),
        nn.Linear(width, 1, rng=2),
    )


def values(model: nn.Module) -> dict[str, Any]:
    return model.state_dict()


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(one[k].tobytes() == other[k].tobytes() for k in one)


def steps(model: nn.Sequential, optimizer: Any, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        F.mse_loss(model(X), Y).backward()
        optimizer.step()


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("width", [4, 200])  # 200: the middle weight is too large for a block
def test_a_half_frozen_net_trains_as_if_the_optimiser_had_the_other_half(make: Any, width: int) -> None:
    whole, part = net(width), net(width)
    for model in (whole, part):
        model[2].requires_grad_(False)
    before = whole[2].state_dict()
    all_of_it, half = make(whole.parameters()), make([*part[0].parameters(), *part[4].parameters()])
    steps(whole, all_of_it, 5)
    steps(part, half, 5)
    assert same(values(whole), values(part))
    assert same(whole[2].state_dict(), before)
    assert all_of_it.state_of(whole[2].weight) == {}  # no memory for what is not trained
    assert not same(values(whole), values(net(width)))


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_what_thaws_is_trained_from_then_on_and_its_state_is_saved(make: Any) -> None:
    model, again = net(), net()
    model[0].requires_grad_(False)
    optimizer = make(model.parameters())
    steps(model, optimizer, 3)
    assert same(model[0].state_dict(), net()[0].state_dict())
    model[0].requires_grad_(True)
    steps(model, optimizer, 2)
    assert not same(model[0].state_dict(), net()[0].state_dict())
    counts = [n for group in optimizer.state_dict()["steps"] for n in group]
    assert counts == [2, 2, 5, 5, 5, 5]
    again.load_state_dict(model.state_dict())
    resumed = make(again.parameters())  # made with nothing frozen
    resumed.load_state_dict(optimizer.state_dict())
    steps(model, optimizer, 2)
    steps(again, resumed, 2)
    assert same(values(model), values(again))


def test_whole_groups_may_be_frozen_and_groups_of_frozen_ones_added() -> None:
    model = net()
    model[0].requires_grad_(False)
    optimizer = optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[4].parameters()}], lr=0.1
    )
    model[2].requires_grad_(False)
    optimizer.add_group({"params": model[2].parameters(), "lr": 0.2})
    optimizer.lr = 0.05
    assert [g.hyper["lr"] for g in optimizer.groups] == pytest.approx([0.25, 0.05, 0.1])
    before = values(model)
    steps(model, optimizer, 1)
    assert [k for k, v in values(model).items() if v.tobytes() != before[k].tobytes()] == [
        "4.weight",
        "4.bias",
    ]


def test_lbfgs_leaves_frozen_parameters_alone() -> None:
    model = net()
    model[0].requires_grad_(False)
    before = model[0].state_dict()
    optimizer = optim.LBFGS(model.parameters(), max_iter=10)

    def closure() -> Any:
        loss = F.mse_loss(model(X), Y)
        loss.backward()
        return loss

    first = closure().item()
    assert optimizer.step(closure) < 0.5 * first
    assert same(model[0].state_dict(), before)
    with pytest.raises(TypeError, match="at least one must require grad"):
        optim.LBFGS(model[0].parameters())


def test_an_accumulator_takes_frozen_parameters_and_sees_them_thaw() -> None:
    model, reference = net(), net()
    for m in (model, reference):
        m[0].requires_grad_(False)
    acc = ad.GradientAccumulator(model.parameters(), accumulation_steps=2)
    optimizer, plain = (optim.SGD(m.parameters(), lr=0.1) for m in (model, reference))
    assert acc.names == ["2", "3", "4", "5"]
    for thawed in (False, True, True):
        for m in (model, reference):
            m[0].requires_grad_(thawed)
        for xb, yb in acc.split((X, Y), 12):
            with acc.micro_batch(weight=len(xb)):
                F.mse_loss(model(xb), yb).backward()
        acc.apply(optimizer)
        steps(reference, plain, 1)
    assert acc.names == ["0", "1", "2", "3", "4", "5"]
    assert all(p.grad is None for p in model.parameters())
    for k, v in values(reference).items():
        np.testing.assert_allclose(values(model)[k], v, rtol=1e-5, atol=1e-7)


def test_a_state_of_before_and_after_thawing_loads() -> None:
    def made(thawed: bool) -> tuple[nn.Sequential, ad.GradientAccumulator]:
        model = net()
        model[0].requires_grad_(False)
        acc = ad.GradientAccumulator(model, accumulation_steps=2)
        model[0].requires_grad_(thawed)
        with acc.micro_batch(weight=12):
            F.mse_loss(model(X[:12]), Y[:12]).backward()
        return model, acc

    def finished(model: nn.Sequential, acc: ad.GradientAccumulator) -> dict[str, Any]:
        model[0].requires_grad_(True)
        with acc.micro_batch(weight=12):
            F.mse_loss(model(X[12:]), Y[12:]).backward()
        return {k: np.asarray(g) for k, g in sorted(acc.gradients().items())}

    for saved_thawed in (False, True):
        straight = finished(*made(saved_thawed))
        state = made(saved_thawed)[1].state_dict()
        for thawed in (False, True):
            model, acc = made(thawed)
            acc.load_state_dict(state)
            assert same(finished(model, acc), straight)


class Thaw(train.Callback):
    def on_epoch(self, trainer: Any, logs: Any) -> None:
        if trainer.epoch == 2:
            trainer.model[0].requires_grad_(True)
            trainer.model[4].requires_grad_(False)


def trainer_of(directory: Path | None, **options: Any) -> train.Trainer:
    model = net()
    model[0].requires_grad_(False)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    return train.Trainer(model, F.mse_loss, optimizer, directory=directory, callbacks=[Thaw()], **options)


def test_a_trainer_follows_what_a_callback_freezes_and_thaws() -> None:
    trainer, model = trainer_of(None, accumulate=2), net()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    model[0].requires_grad_(False)
    losses = [h["loss"] for h in trainer.fit([(X, Y)], epochs=6)]
    by_hand = []
    for epoch in range(6):
        if epoch == 2:
            model[0].requires_grad_(True)
            model[4].requires_grad_(False)
        by_hand.append(F.mse_loss(model(X), Y).item())
        steps(model, optimizer, 1)
    np.testing.assert_allclose(losses, by_hand, rtol=1e-5)
    assert all(p.grad is None for p in trainer.model.parameters())


@pytest.mark.parametrize("epochs", [1, 2, 3, 5])
def test_a_run_that_thaws_on_the_way_resumes_bitwise(tmp_path: Path, epochs: int) -> None:
    loader = lambda: train.DataLoader((X, Y), 8, shuffle=True)
    straight = trainer_of(tmp_path / "straight")
    straight.fit(loader(), epochs=6)
    trainer_of(tmp_path / "cut").fit(loader(), epochs=epochs)
    resumed = trainer_of(tmp_path / "cut")
    resumed.fit(loader(), epochs=6, resume=True)
    assert same(values(straight.model), values(resumed.model))
    assert [p.requires_grad for p in resumed.model.parameters()] == [True] * 4 + [False] * 2


def test_a_run_that_began_with_others_frozen_is_refused(tmp_path: Path) -> None:
    trainer_of(tmp_path).fit([(X, Y)], epochs=1)
    model = net()
    model[2].requires_grad_(False)
    before = values(model)
    other = train.Trainer(model, F.mse_loss, optim.Adam(model.parameters(), lr=0.01), directory=tmp_path)
    with pytest.raises(ValueError, match="at the start of the saved run") as info:
        other.fit([(X, Y)], epochs=2, resume=True)
    assert str(info.value) == (
        "the frozen parameters differ from those at the start of the saved run; frozen now but not then: "
        "2.bias, 2.weight; frozen then but not now: 0.bias, 0.weight.\n"
        "  Nothing was loaded.  Freeze the same parameters before creating the Trainer.  To freeze or unfreeze "
        "parameters later in the run, use a callback.\n"
        "  To train other parameters, start a new run with the saved weights: "
        "model.load_state_dict(ad.load(checkpoint / 'model.safetensors'))."
    )
    assert same(values(model), before)
    assert [p.requires_grad for p in model.parameters()] == [True] * 2 + [False] * 2 + [True] * 2
    model.load_state_dict(ad.load(max(tmp_path.glob("step-*")) / "model.safetensors"))


def test_a_trainer_of_nothing_says_so() -> None:
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    model.requires_grad_(False)
    with pytest.raises(TypeError) as info:
        train.Trainer(model, F.mse_loss, optimizer)
    assert str(info.value) == (
        "Trainer: the model has no parameters that require grad, so nothing can be trained.\n"
        "  Unfreeze them with model.requires_grad_(True)."
    )
