"""Values that a compiled function reads through modules, and through functions and objects of the library.

A changed value is used at the next call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import random_holders

import adjoint as ad
from adjoint import nn, optim, train
from adjoint.errors import TransformError
from adjoint.optim import schedules

F = nn.functional
Case = tuple[Callable[[Any], Any], Callable[[], Any]]  # a function, and what changes a value that it reads
X = np.arange(1.0, 4.0)


class Times:
    """An object with a number, by which a call multiplies."""

    def __init__(self, k: float = 2.0) -> None:
        self.k = k

    def __call__(self, *values: Any) -> Any:
        return values[0] * self.k

    def change(self) -> None:
        self.k = 5.0


class Distance:
    """A distance that is multiplied by the number of another object."""

    def __init__(self, k: Times) -> None:
        self.held = k

    def __call__(self, a: Any, b: Any) -> Any:
        return (a - b).sum(-1) * self.held.k


class Scaled(nn.Module):
    """A module with a number, which only other modules read."""

    def __init__(self, k: float) -> None:
        self.k = k


class Net(nn.Module):
    """A module with containers of modules."""

    def __init__(self) -> None:
        self.layers = nn.ModuleList([linear(0), linear(1)])
        self.heads = nn.ModuleDict({"a": linear(2)})
        self.scales = nn.ModuleList([Scaled(1.0), Scaled(2.0)])
        self.calls = 0

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.heads["a"](x) * sum(s.k for s in self.scales)


def linear(seed: int, width: int = 3) -> Any:
    return nn.Linear(3, width, rng=seed).astype(np.float64)


def parameter() -> Any:
    return nn.Parameter(np.full((3, 3), 2.0))


def square_sum(module: Any) -> Any:
    return sum((p**2).sum() for p in module.parameters())


def applied(layers: Any, x: Any) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def move_first(items: Any) -> None:
    key = items.keys()[0]
    items[key] = items.pop(key)


def _modules() -> dict[str, Case]:
    net, listed, keyed = Net(), nn.ModuleList([linear(0)]), nn.ModuleDict({"a": linear(0), "b": linear(1)})
    row = nn.Sequential(linear(0), linear(1))
    drop = nn.Sequential(linear(0), nn.Dropout(0.5))
    weights, named = nn.ParameterList([X]), nn.ParameterDict({"a": X, "b": X[::-1]})
    buffers = nn.Module()
    buffers.register_buffer("a", ad.tensor(X))
    held, other, layer, extended = {"net": nn.Sequential(linear(0))}, Net(), linear(0), linear(0)
    return {
        "replaced head": (lambda x: net(x), lambda: net.heads.update({"a": linear(5, 1)})),
        "appended layer": (lambda x: net(x), lambda: net.layers.append(linear(9))),
        "attribute of a layer that is not called": (
            lambda x: net(x), lambda: setattr(net.scales[1], "k", 7.0),
        ),
        "attribute read outside": (
            lambda x: sum(x * m.k for m in other.modules() if isinstance(m, Scaled)),
            lambda: setattr(other.scales[0], "k", 7.0),
        ),
        "mode of a layer": (
            lambda x: x * sum(m.training for m in other.modules()), lambda: other.scales[0].eval(),
        ),
        "number of modules": (
            lambda x: x * len(list(other.named_modules())), lambda: other.scales.append(Scaled(1.0)),
        ),
        "length": (lambda x: x * len(listed), lambda: listed.append(linear(1))),
        "weight of an element": (
            lambda x: x @ listed[0].weight, lambda: setattr(listed[0], "weight", parameter()),
        ),
        "loop over Sequential": (lambda x: applied(row, x), lambda: row.append(linear(7))),
        "order of ModuleDict": (lambda x: applied(keyed.values(), x), lambda: move_first(keyed)),
        "keys of ModuleDict": (lambda x: x * len(keyed.keys()), lambda: keyed.pop("a")),
        "attribute of an element": (lambda x: x * drop[1].p, lambda: setattr(drop[1], "p", 0.1)),
        "ParameterList": (lambda x: sum(p * x for p in weights), lambda: weights.append(X)),
        "ParameterDict": (lambda x: named["a"] * x, lambda: named.update({"a": X * 4})),
        "order of ParameterDict": (
            lambda x: sum(k * p * x for k, p in enumerate(named.values())), lambda: move_first(named),
        ),
        "buffers": (
            lambda x: x + sum(b for _, b in buffers.named_buffers()),
            lambda: buffers.register_buffer("b", ad.tensor(X)),
        ),
        "new parameter": (
            lambda x: x.sum() + square_sum(extended), lambda: setattr(extended, "more", parameter()),
        ),
        "replaced parameter": (
            lambda x: x.sum() + square_sum(extended), lambda: setattr(extended, "weight", parameter()),
        ),
        "module in a dictionary": (
            lambda x: x.sum() + square_sum(held["net"]), lambda: held["net"].append(linear(4)),
        ),
        "functional_call": (
            lambda x: nn.functional_call(layer, {"bias": x}, x), lambda: setattr(layer, "weight", parameter()),
        ),
    }  # fmt: skip


def _library() -> dict[str, Case]:
    k = Times()
    term = train.compose({"a": lambda p, t: k(p).sum()})
    weight = train.compose({"a": (F.mse_loss, lambda step: k.k)})
    distance = nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: k(a - b).sum(-1))
    of_object = nn.TripletMarginWithDistanceLoss(distance_function=Distance(k))
    warm = schedules.warmup(lambda step: k.k, 1)
    chain = schedules.sequence((schedules.warmup(k_of(k), 2), 5), schedules.constant(3.0))
    plateau = schedules.Plateau(1.0, patience=0, monitor="loss")
    later = schedules.sequence((schedules.constant(2.0), 2), plateau)
    w = ad.tensor(X, requires_grad=True)
    optimizer, ema = optim.SGD([w], lr=1.0), optim.EMA([w], decay=0.5)
    changed = train.compose({"a": (lambda p, t: p.sum(), schedules.linear(1.0, 10)), "b": F.mse_loss})
    scaler, pure = ad.GradScaler(init_scale=4.0), optim.Pure(_descent(k))
    by_plateau = train.compose({"a": (F.mse_loss, plateau)})

    def report() -> None:
        for _ in range(3):
            plateau.report(1.0)

    return {
        "term of a loss": (lambda x: term(x, x), k.change),
        "weight of a loss": (lambda x: weight(x, 2 * x), k.change),
        "Plateau as a weight": (lambda x: by_plateau(x, 2 * x), report),
        "step of a loss": (lambda x: changed(x, x), lambda: setattr(changed, "step", 5)),
        "changed weight of a loss": (lambda x: changed(x, 2 * x), lambda: changed.weights.update(b=3.0)),
        "replaced term": (
            lambda x: changed(x, x), lambda: changed.terms.update(b=(lambda p, t: (p * p).sum(), 2)),
        ),
        "distance": (lambda x: distance(x[None], 2 * x[None], 3 * x[None]), k.change),
        "distance of an object": (lambda x: of_object(x[None], 2 * x[None], 3 * x[None]), k.change),
        "warmup": (lambda x: x * warm(3), k.change),
        "sequence": (lambda x: x * chain(3), k.change),
        "Plateau": (lambda x: x * plateau(0), report),
        "Plateau in a sequence": (lambda x: x * later(5), report),
        "hyper-parameter": (
            lambda x: x * optimizer.groups[0].hyper["lr"], lambda: optimizer.groups[0].hyper.update(lr=0.5),
        ),
        "hyper-parameter of all groups": (
            lambda x: sum(x * g.hyper["lr"] for g in optimizer.groups), lambda: setattr(optimizer, "lr", 0.25),
        ),
        "decay of EMA": (lambda x: x * ema.decay, lambda: setattr(ema, "decay", 0.25)),
        "scale": (lambda x: x * scaler.get_scale(), lambda: setattr(scaler, "enabled", False)),
        "scaled loss": (lambda x: scaler.scale(x.sum()), lambda: setattr(scaler, "enabled", False)),
        "update of Pure": (lambda x: pure.update(x, x, pure.init(x))[0], k.change),
        "vmap of an object": ((lambda f: lambda x: f(x))(ad.vmap(k)), k.change),
    }  # fmt: skip


def _descent(k: Times) -> Any:
    """Return the class of an optimiser whose rate is the number of ``k``."""

    class Descent(optim.SGD):
        def apply_one(self, xp: Any, p: Any, g: Any, state: Any, hyper: Any) -> Any:
            return p - k.k * g, state

    return Descent


def k_of(k: Times) -> Callable[[int], float]:
    return lambda step: k.k


def check(f: Callable[[Any], Any], change: Callable[[], Any], backend: str) -> None:
    """Compare a compiled function with the function itself, before and after the change."""
    compiled, x = ad.compile(f, backend=backend), ad.tensor(X)
    for _ in range(3):
        before = compiled(x)
    np.testing.assert_allclose(before.numpy(), f(x).numpy())
    change()
    after = compiled(x)
    np.testing.assert_allclose(after.numpy(), f(x).numpy())
    assert before.shape != after.shape or not np.allclose(before.numpy(), after.numpy())
    traces = compiled.stats()["traces"]
    for _ in range(3):
        compiled(x)
    assert compiled.stats()["traces"] == traces == 2


BACKENDS = ("auto", "replay")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", _modules())
def test_modules(name: str, backend: str) -> None:
    check(*_modules()[name], backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", _library())
def test_objects_of_the_library(name: str, backend: str) -> None:
    check(*_library()[name], backend)


def test_own_attributes_of_modules_that_are_only_read_may_change() -> None:
    net = Net()
    f = ad.compile(lambda x: x.sum() + square_sum(net))
    for n in range(5):
        net.calls = n
        f(X)
    assert f.stats()["traces"] == 1


def test_a_loss_called_outside_is_not_a_change() -> None:
    loss = train.compose({"a": F.mse_loss})
    f = ad.compile(lambda x: loss(x, 2 * x))
    for n in range(4):
        f(ad.tensor(X))
        loss(ad.tensor(X * n), ad.tensor(X))
    assert f.stats()["traces"] == 1


def test_state_of_an_accumulator_is_refused() -> None:
    acc = ad.GradientAccumulator([ad.tensor(X, requires_grad=True)], accumulation_steps=2)
    for read in (acc.should_update, acc.divisor):
        with pytest.raises(TransformError, match="Call its methods outside the compiled function"):
            ad.compile(lambda x, read=read: x * float(read()))(X)


class Each(train.Callback):
    """Call a function after each epoch."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def on_epoch(self, trainer: Any, logs: Any) -> None:
        self.function()


class Reading(nn.Module):
    """A layer whose output is multiplied by a number outside of the module."""

    def __init__(self, k: Times) -> None:
        self.layer, self.k = nn.Linear(3, 1, rng=0), k

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.k.k


def _trainer(name: str, compile: bool) -> train.Trainer:
    """Return a trainer that reads a number in the place ``name``; the number changes after each epoch."""
    k, numbers, table = Times(1.0), [1.0], {"k": 1.0}
    plain = nn.Linear(3, 1, rng=0)
    losses = {
        "closure": lambda p, t: F.mse_loss(p, t) * numbers[0],
        "dictionary": lambda p, t: F.mse_loss(p, t) * table["k"],
        "object": lambda p, t: k(F.mse_loss(p, t)),
        "loss object": _Loss(k),
        "composed": train.compose({"fit": lambda p, t: k(F.mse_loss(p, t)), "l2": (square_sum, 1e-3)}),
        "scheduled": train.compose({"fit": (F.mse_loss, k_of(k))}),
        "function of all": train.compose({"fit": lambda p, t, m: F.mse_loss(p, t) * table["k"]}),
    }
    model = Reading(k) if name == "forward" else plain
    loss: Any = losses.get(name, F.mse_loss)
    options: dict[str, Any] = {}
    if name == "compute":
        loss, options["compute"] = None, lambda m, batch: k(F.mse_loss(m(batch[0]), batch[1]))
    elif name == "metric":
        options["metrics"] = {"m": lambda p, t: k(F.l1_loss(p, t))}

    def change() -> None:
        k.k /= 2
        numbers[0] /= 2
        table["k"] /= 2

    def replace() -> None:
        made.loss = lambda p, t: F.l1_loss(p, t) * 3

    made = train.Trainer(
        model, loss, optim.SGD(model.parameters(), lr=0.01), compile=compile, progress=False,
        callbacks=[Each(replace if name == "replaced" else change)], **options,
    )  # fmt: skip
    return made


class _Loss:
    def __init__(self, k: Times) -> None:
        self.held = k

    def __call__(self, p: Any, t: Any) -> Any:
        return F.mse_loss(p, t) * self.held.k


PLACES = (
    "closure", "dictionary", "object", "loss object", "composed", "scheduled", "function of all", "forward",
    "compute", "metric", "replaced",
)  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_trainer(name: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 3)).astype("f")
    batches = [(x, x.sum(1, keepdims=True))] * 3
    wanted = _trainer(name, False).fit(batches, epochs=3)
    trainer = _trainer(name, True)
    found = trainer.fit(batches, epochs=3)
    key = "m" if name == "metric" else "loss"
    np.testing.assert_allclose([h[key] for h in found], [h[key] for h in wanted], rtol=1e-5)
    assert trainer.compiled is not None
    assert trainer.compiled.native.stats()["traces"] == (1 if name == "scheduled" else 3)


@pytest.mark.parametrize("seed", range(56))
def test_random_holders(seed: int) -> None:
    random_holders.check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1_000, 9_000, 100))
def test_many_random_holders(seed: int) -> None:
    for each in range(seed, seed + 100):
        random_holders.check(each)
