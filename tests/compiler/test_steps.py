"""Whole training steps: layers, optimisers, clipping, draws, writes, hooks; bitwise over many calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_replay import by_replay as by_replay
from steps import BACKENDS, bits, compare, state_of

import adjoint as ad
from adjoint import nn, optim
from adjoint.optim import schedules

mse = nn.functional.mse_loss


def mlp() -> Any:
    return nn.Sequential(
        nn.Linear(8, 16, rng=0), nn.Tanh(), nn.Linear(16, 16, rng=1), nn.Tanh(), nn.Linear(16, 1, rng=2)
    )


def data(k: int, n: int = 8) -> tuple[Any, Any]:
    r = np.random.default_rng(k)
    return r.normal(size=(n, 8)).astype("f"), r.normal(size=(n, 1)).astype("f")


def training(make_optimizer: Any, *, zero: str = "first", after: Any = None, model: Any = mlp) -> Any:
    """A maker of a plain training step."""

    def make() -> Any:
        m = model()
        o = make_optimizer(m.parameters())

        def step(x: Any, y: Any) -> Any:
            if zero == "first":
                o.zero_grad()
            loss = mse(m(x), y)
            loss.backward()
            extra = None if after is None else after(m)
            o.step()
            if zero == "last":
                o.zero_grad()
            return loss if extra is None else (loss, extra)

        return step, m, o

    return make


OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD nesterov decay": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD dampening": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "SGD maximize": lambda p: optim.SGD(p, lr=0.001, maximize=True),
    "Adam": lambda p: optim.Adam(p, lr=0.01),
    "Adam amsgrad decay": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "Adam maximize": lambda p: optim.Adam(p, lr=0.01, maximize=True),
    "Adam betas eps": lambda p: optim.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-4),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "AdamW amsgrad": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True),
    "AdamW maximize": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1, maximize=True),
    "AdamW betas eps": lambda p: optim.AdamW(p, lr=0.01, betas=(0.5, 0.9), eps=1e-5),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
    "NAdam decay": lambda p: optim.NAdam(p, lr=0.01, weight_decay=0.1, momentum_decay=0.01),
    "NAdam maximize": lambda p: optim.NAdam(p, lr=0.01, maximize=True),
    "NAdam betas eps": lambda p: optim.NAdam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-4),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01),
    "RMSprop decay alpha": lambda p: optim.RMSprop(p, lr=0.01, alpha=0.9, eps=1e-4, weight_decay=0.1),
    "RMSprop maximize": lambda p: optim.RMSprop(p, lr=0.001, maximize=True),
    "RMSprop centered": lambda p: optim.RMSprop(p, lr=0.01, centered=True, momentum=0.9),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.01, lr_decay=0.1),
    "Adagrad initial decay": lambda p: optim.Adagrad(p, lr=0.01, initial=0.1, weight_decay=0.1, eps=1e-4),
    "Adagrad maximize": lambda p: optim.Adagrad(p, lr=0.01, maximize=True),
    "Lion": lambda p: optim.Lion(p, lr=0.01, weight_decay=0.1),
    "Lion maximize": lambda p: optim.Lion(p, lr=0.001, maximize=True),
    "Lion betas": lambda p: optim.Lion(p, lr=0.01, betas=(0.5, 0.8)),
}


@pytest.mark.parametrize("zero", ["first", "last"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str, zero: str) -> None:
    compare(training(OPTIMIZERS[name], zero=zero), data)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_that_are_read_after_the_update(name: str) -> None:
    def make() -> Any:
        m = mlp()
        o = OPTIMIZERS[name](m.parameters())
        average = optim.EMA(m.parameters(), decay=0.9)

        def step(x: Any, y: Any) -> Any:
            for _ in range(2):  # two updates in one call
                o.zero_grad()
                loss = mse(m(x), y)
                loss.backward()
                o.step()
            average.update()
            return loss, m(x).detach()

        return step, m, o, average

    compare(make, data)


def test_learning_rates_and_other_numbers_may_change() -> None:
    def between(k: int, m: Any, o: Any) -> None:
        o.lr = 0.1 / (k + 1)
        o.groups[0].hyper["weight_decay"] = 0.01 * (k % 3 + 1)

    compare(training(OPTIMIZERS["AdamW"]), data, between=between)


SCHEDULES = {
    "constant": lambda: schedules.constant(0.01),
    "cosine": lambda: schedules.cosine(0.01, 15),
    "restarts": lambda: schedules.cosine_restarts(0.01, 5),
    "exponential": lambda: schedules.exponential(0.01, 0.9),
    "inverse root": lambda: schedules.inverse_sqrt(0.01, 4),
    "linear": lambda: schedules.linear(0.01, 20),
    "one cycle": lambda: schedules.one_cycle(0.01, 20),
    "polynomial": lambda: schedules.polynomial(0.01, 18, 2.0),
    "sequence": lambda: schedules.sequence((schedules.constant(0.01), 5), schedules.linear(0.01, 10)),
    "steps": lambda: schedules.steps(0.01, 4),
    "warm-up": lambda: schedules.warmup(schedules.cosine(0.01, 20), 5),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_outside(name: str) -> None:
    rate = SCHEDULES[name]()

    def between(k: int, m: Any, o: Any) -> None:
        o.lr = rate(k + 1)

    compare(training(OPTIMIZERS["Adam"]), data, between=between)


def test_resuming_from_a_file(tmp_path: Any) -> None:
    """A compiled run that is saved and continued by new objects ends where an eager run does."""
    make = training(OPTIMIZERS["Adam"])
    step, m, o = make()
    other, n, q = make()
    compiled = ad.compile(other)
    for k in range(20):
        if k == 8:
            ad.save(tmp_path / "state.ad", {"model": n.state_dict(), "optimizer": q.state_dict()})
            other, n, q = make()
            compiled = ad.compile(other)
            compiled(*data(99))  # traced and run before the state is loaded
            saved = ad.load(tmp_path / "state.ad")
            n.load_state_dict(saved["model"])
            q.load_state_dict(saved["optimizer"])
        assert bits(compiled(*data(k))) == bits(step(*data(k)))
        if k != 8:  # the .grad of the run before is not saved
            assert state_of(n, q) == state_of(m, o)
    assert compiled.stats()["traces"] == 1


def test_a_scaler_around() -> None:
    def make() -> Any:
        m = mlp()
        o = optim.Adam(m.parameters(), lr=0.01)
        scaler = ad.GradScaler(init_scale=2.0**10, growth_interval=4)

        def backward(x: Any, y: Any) -> Any:
            o.zero_grad()
            loss = mse(m(x), y)
            scaler.scale(loss).backward()
            return loss

        return backward, m, o, scaler

    (eager, m, o, a), (other, n, q, b) = make(), make()
    compiled = ad.compile(other)
    for k in range(20):
        x, y = data(k)
        if k % 7 == 3:
            x = x * np.float32(1e30)  # gradients that are not finite: no update, a smaller scale
        with np.errstate(all="ignore"):
            for f, optimizer, scaler in ((eager, o, a), (compiled, q, b)):
                f(x, y)
                scaler.step(optimizer)
                scaler.update()
        assert state_of(n, q, b) == state_of(m, o, a)
    assert compiled.stats()["traces"] == 1


def test_momentum_that_is_set_later() -> None:
    def between(k: int, m: Any, o: Any) -> None:
        o.groups[0].hyper["momentum"] = 0.9 if k > 3 else 0.0

    compare(training(OPTIMIZERS["SGD"]), data, between=between)


def test_invalid_numbers_raise_before_anything_is_written() -> None:
    step, m, o = training(OPTIMIZERS["SGD"])()
    compiled = ad.compile(step)
    compiled(*data(0))
    before = [p.numpy(copy=True) for p in m.parameters()]
    o.groups[0].hyper["lr"] = -1.0
    with pytest.raises(ad.errors.ArgumentError):
        compiled(*data(1))
    assert all((p.numpy() == b).all() for p, b in zip(m.parameters(), before, strict=True))


@pytest.mark.parametrize("bound", [0.01, 100.0])
@pytest.mark.parametrize("p", [2.0, 1.0, float("inf")])
def test_clipping_by_norm(bound: float, p: float) -> None:
    clip = lambda m: ad.clip_grad_norm(m.parameters(), bound, p)
    compare(training(OPTIMIZERS["SGD"], after=clip), data)


def test_clipping_by_value_by_group_and_adaptive() -> None:
    compare(training(OPTIMIZERS["SGD"], after=lambda m: ad.clip_grad_value(m.parameters(), 0.01)), data)
    # native code returns the number of scaled units as a float
    factor = 1 if BACKENDS[-1] == "replay" else 1.0
    adaptive = lambda m: ad.clip_grad_adaptive(m.parameters(), 0.01) * factor
    compare(training(OPTIMIZERS["SGD"], after=adaptive), data)
    groups = lambda m: ad.clip_grad_norm_by_group({"a": m[0].parameters(), "b": m[2].parameters()}, 0.1)
    compare(training(OPTIMIZERS["SGD"], after=groups), data)


def test_a_norm_that_is_not_finite_raises_and_changes_nothing() -> None:
    step, m, _ = training(OPTIMIZERS["SGD"], after=lambda m: ad.clip_grad_norm(m.parameters(), 1.0))()
    compiled = ad.compile(step)
    compiled(*data(0))
    before = [p.numpy(copy=True) for p in m.parameters()]
    x, y = data(1)
    with np.errstate(all="ignore"), pytest.raises(ad.errors.NonFiniteError, match="not finite"):
        compiled(x * np.float32(np.inf), y)
    assert all((p.numpy() == b).all() for p, b in zip(m.parameters(), before, strict=True))


def test_groups() -> None:
    def make() -> Any:
        m = mlp()
        o = optim.AdamW(
            [
                {"params": [m[0].weight, m[2].weight], "lr": 0.01},
                {"params": [m[0].bias, m[4].weight, m[4].bias], "weight_decay": 0.0},
            ],
            lr=0.002,
        )

        def step(x: Any, y: Any) -> Any:
            o.zero_grad()
            loss = mse(m(x), y)
            loss.backward()
            o.step()
            return loss

        return step, m, o

    compare(make, data, traces=2)  # a parameter that is in no group keeps its .grad


def test_freezing_on_the_way() -> None:
    def between(k: int, m: Any, o: Any) -> None:
        m[0].requires_grad_(k % 4 < 2)

    compare(training(OPTIMIZERS["Adam"]), data, between=between, traces=2)


def test_loading_a_state_between_calls() -> None:
    saved: dict[int, Any] = {}

    def between(k: int, m: Any, o: Any) -> None:
        if k == 3:
            saved[id(m)] = m.state_dict(), o.state_dict()
        if k in (6, 11):
            m.load_state_dict(saved[id(m)][0])
            o.load_state_dict(saved[id(m)][1])

    compare(training(OPTIMIZERS["Adam"]), data, between=between)


def test_batch_sizes_that_alternate() -> None:
    sizes = [8, 4, 8, 4, 7]
    compare(training(OPTIMIZERS["Adam"]), lambda k: data(k, sizes[k % 5]), traces=3)


def stateful(
    body: Any, *, model: Any = mlp, calls: int = 20, traces: int | None = 1, given: Any = data
) -> Any:
    """Compare a step ``body(model, x, y, extras)``, without an optimiser."""

    def make() -> Any:
        m = model()
        extras: list[Any] = []
        loss = body(m, extras)
        return (loss, m, *extras)

    return compare(make, given, calls=calls, traces=traces)


def test_gradients_accumulate() -> None:
    def body(m: Any, _: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            loss = mse(m(x), y)
            loss.backward()
            return loss

        return step

    stateful(body, traces=2)  # without a .grad before, and with one


def test_zero_grad_and_backward() -> None:
    def body(m: Any, _: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            m.zero_grad()
            loss = mse(m(x), y) + sum((p**2).sum() for p in m.parameters()) * 0.01
            loss.backward()
            return loss

        return step

    stateful(body)


def plain_step(m: Any, _: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        m.zero_grad()
        loss = mse(m(x), y)
        loss.backward()
        return loss

    return step


LAYERS = {
    "batch norm": lambda: nn.Sequential(
        nn.Linear(8, 6, rng=0), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1, rng=1)
    ),
    "batch norm by mean": lambda: nn.Sequential(
        nn.Linear(8, 6, rng=0), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 1, rng=1)
    ),
    "layer norm": lambda: nn.Sequential(
        nn.Linear(8, 6, rng=0), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 1, rng=1)
    ),
    "rms norm": lambda: nn.Sequential(
        nn.Linear(8, 6, rng=0), nn.RMSNorm(6), nn.SiLU(), nn.Linear(6, 1, rng=1)
    ),
    "group norm": lambda: nn.Sequential(nn.Linear(8, 6, rng=0), nn.GroupNorm(2, 6), nn.Linear(6, 1, rng=1)),
    "dropout": lambda: nn.Sequential(
        nn.Linear(8, 6, rng=0),
        nn.Dropout(0.3, rng=ad.random.default_rng(5)),
        nn.ReLU(),
        nn.Linear(6, 1, rng=1),
    ),
    "relu": lambda: nn.Sequential(nn.Linear(8, 6, rng=0), nn.ReLU(), nn.Linear(6, 1, rng=1)),
    "softmax": lambda: nn.Sequential(nn.Linear(8, 6, rng=0), nn.Softmax(), nn.Linear(6, 1, rng=1)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    stateful(plain_step, model=LAYERS[name])


def shaped(shape: tuple[int, ...], kind: str = "f") -> Any:
    def make(k: int) -> tuple[Any, ...]:
        r = np.random.default_rng(k)
        return (r.integers(0, 10, shape) if kind == "i" else r.normal(size=shape).astype("f"),)

    return make


OTHER_LAYERS = {
    "conv": (lambda: nn.Conv2d(3, 4, 3, padding=1, rng=0), shaped((2, 3, 6, 6))),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, rng=0), shaped((2, 3, 9))),
    "transposed conv": (lambda: nn.ConvTranspose2d(3, 4, 3, rng=0), shaped((2, 3, 4, 4))),
    "max pool": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, rng=0), nn.MaxPool2d(2)), shaped((2, 3, 6, 6))),
    "avg pool": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, rng=0), nn.AvgPool2d(2)), shaped((2, 3, 6, 6))),
    "batch norm 2d": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, rng=0), nn.BatchNorm2d(4)),
        shaped((2, 3, 6, 6)),
    ),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, rng=0), nn.InstanceNorm2d(4, track_running_stats=True)),
        shaped((2, 3, 6, 6)),
    ),
    "attention": (lambda: nn.MultiHeadAttention(8, 2, rng=0), shaped((2, 5, 8))),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, rng=0), shaped((2, 5, 8))),
    "LSTM": (lambda: nn.LSTM(8, 6, rng=0), shaped((5, 2, 8))),
    "GRU": (lambda: nn.GRU(8, 6, rng=0), shaped((5, 2, 8))),
    "embedding": (lambda: nn.Embedding(10, 4, rng=0), shaped((3, 5), "i")),
    "embedding bag": (lambda: nn.EmbeddingBag(10, 4, rng=0), shaped((3, 5), "i")),
    "bilinear": (
        lambda: nn.Sequential(nn.Linear(8, 4, rng=0), nn.Upsample(scale_factor=2)),
        shaped((2, 3, 8)),
    ),
}


@pytest.mark.parametrize("name", OTHER_LAYERS)
def test_other_layers(name: str) -> None:
    model, given = OTHER_LAYERS[name]

    def body(m: Any, _: Any) -> Any:
        def step(x: Any) -> Any:
            m.zero_grad()
            y = m(x)
            y = y[0] if isinstance(y, tuple) else y
            loss = (y * y).mean()
            loss.backward()
            return loss

        return step

    try:
        model()(*given(0))
    except (AttributeError, TypeError, ad.errors.AdjointError) as error:
        pytest.fail(f"the case itself is wrong: {error}")
    stateful(body, model=model, given=given)


def classes(ignored: bool) -> Any:
    def make(k: int) -> tuple[Any, Any]:
        r = np.random.default_rng(k)
        labels = r.integers(0, 4, 8)
        if ignored and k % 2:
            labels[r.integers(0, 8)] = -100
        return r.normal(size=(8, 8)).astype("f"), labels

    return make


@pytest.mark.parametrize("weight", [None, [1.0, 2.0, 0.5, 1.0]])
@pytest.mark.parametrize("ignored", [False, True])
def test_cross_entropy(ignored: bool, weight: Any) -> None:
    weights = None if weight is None else np.array(weight, "f")

    def body(m: Any, _: Any) -> Any:
        def step(x: Any, t: Any) -> Any:
            m.zero_grad()
            loss = nn.functional.cross_entropy(m(x), t, weight=weights, label_smoothing=0.1)
            loss.backward()
            return loss

        return step

    stateful(body, model=lambda: nn.Linear(8, 4, rng=0), given=classes(ignored), traces=2 if ignored else 1)


def test_labels_out_of_range_raise_as_in_eager_mode() -> None:
    m = nn.Linear(8, 4, rng=0)
    f = ad.compile(lambda x, t: nn.functional.cross_entropy(m(x), t))
    x, t = classes(False)(0)
    f(x, t)
    with pytest.raises(ad.errors.IndexingError, match="class 7 is out of range"):
        f(x, t * 0 + 7)
    g = ad.compile(lambda p, t: nn.functional.binary_cross_entropy(p, t))
    g(np.full(3, 0.5), np.ones(3))
    with pytest.raises(ad.errors.ArgumentError, match="between 0 and 1"):
        g(np.full(3, 1.5), np.ones(3))


def test_noise() -> None:
    def body(m: Any, extras: Any) -> Any:
        rng = ad.random.default_rng(3)
        extras.append(rng)

        def step(x: Any, y: Any) -> Any:
            m.zero_grad()
            loss = mse(m(x + rng.normal(0, 0.1, size=x.shape, dtype=np.float32)), y)
            loss.backward()
            return loss

        return step

    stateful(body)


def test_hooks() -> None:
    def model() -> Any:
        m = mlp()
        m[0].weight.register_hook(lambda g: g * 0.5)
        m[2].register_forward_hook(lambda module, inputs, out: out * 2)
        m[4].bias.register_post_accumulate_grad_hook(lambda leaf: setattr(leaf, "grad", leaf.grad * 3))
        return m

    stateful(plain_step, model=model)


def test_hooks_that_are_added_later() -> None:
    handles: list[Any] = []

    def between(k: int, m: Any) -> None:
        if k == 2:
            handles.append(m[0].weight.register_hook(lambda g: g * 0.5))
        if k == 5:
            handles.pop().remove()

    def make() -> Any:
        m = mlp()
        return plain_step(m, []), m

    compare(make, data, between=between, traces=None)


def test_writes() -> None:
    def body(m: Any, extras: Any) -> Any:
        hidden = ad.tensor(np.zeros((8, 1), "f"))
        extras.append(hidden)

        def step(x: Any, y: Any) -> Any:
            m.zero_grad()
            loss = mse(m(x) + hidden, y)
            loss.backward()
            hidden[0] = 1.5
            hidden.copy_(hidden * 0.5 + m(x).detach())
            hidden[1:3] += 1
            with ad.no_grad():
                m[4].bias *= 0.9
            return loss

        return step

    stateful(body)


def test_checkpoints_custom_rules_and_penalties() -> None:
    class Squared(ad.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 3 * g * x

    def body(m: Any, _: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            m.zero_grad()
            h = ad.checkpoint(lambda t: m[0](t).tanh(), x)
            loss = Squared.apply(m[4](m[2](h).tanh()) - y).mean()
            gs = ad.gradients(loss, m.parameters(), create_graph=True)
            (loss + sum((g * g).sum() for g in gs)).backward()
            return loss

        return step

    stateful(body)


def test_a_checkpoint_with_draws_and_statistics() -> None:
    model = lambda: nn.Sequential(
        nn.Linear(8, 6, rng=0),
        nn.BatchNorm1d(6),
        nn.Dropout(0.3, rng=ad.random.default_rng(5)),
        nn.Linear(6, 1, rng=1),
    )

    def body(m: Any, _: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            m.zero_grad()
            loss = mse(m[3](ad.checkpoint(lambda t: m[2](m[1](m[0](t))), x)), y)
            loss.backward()
            return loss

        return step

    stateful(body, model=model)


def test_checkpoints_of_tensors_from_outside() -> None:
    def body(m: Any, extras: Any) -> Any:
        x = ad.tensor(data(0)[0])

        def step() -> Any:
            m.zero_grad()
            loss = (ad.checkpoint_sequential(list(m), x) ** 2).mean()
            loss.backward()
            return loss

        return step

    stateful(body, given=lambda k: ())


def test_vmap_over_a_module() -> None:
    def body(m: Any, _: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            m.zero_grad()
            loss = ad.vmap(lambda a, b: mse(m(a), b))(x, y).mean()
            loss.backward()
            return loss

        return step

    stateful(body)


def test_gradient_stores() -> None:
    def make() -> Any:
        m = mlp()
        o = optim.Adam(m.parameters(), lr=0.01)

        def step(x: Any, y: Any) -> Any:
            grads = ad.backward(mse(m(x), y))
            o.apply(grads)

        return step, m, o

    compare(make, data)


def test_a_scaled_loss() -> None:
    scaler = ad.GradScaler(init_scale=8.0)

    def body(m: Any, _: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            m.zero_grad()
            loss = mse(m(x), y)
            scaler.scale(loss).backward()
            return loss

        return step

    compiled = stateful(body)
    assert compiled.stats()["traces"] == 1
    w = ad.tensor([1.0], requires_grad=True)

    @ad.compile
    def f(x: Any) -> None:
        w.grad = None
        scaler.scale((w * x).sum()).backward()

    f(ad.tensor([1.0]))
    assert w.grad.tolist() == [8.0]
    scaler.update(16.0)
    f(ad.tensor([1.0]))
    assert w.grad.tolist() == [16.0]


def test_micro_batches_around() -> None:
    def make() -> Any:
        m = mlp()
        o = optim.Adam(m.parameters(), lr=0.01)
        a = ad.GradientAccumulator(m, accumulation_steps=2)

        def piece(x: Any, y: Any) -> Any:
            loss = mse(m(x), y)
            loss.backward()
            return loss

        return piece, m, o, a

    (eager, m, o, a), (piece, n, q, b) = make(), make()
    compiled = ad.compile(piece, backend="replay")
    for k in range(20):
        for f, acc, opt in ((eager, a, o), (compiled, b, q)):
            with acc.micro_batch(weight=8):
                f(*data(k))
            if acc.should_update():
                acc.apply(opt)
        assert state_of(n, q, b) == state_of(m, o, a)
    assert compiled.stats()["traces"] == 1


def test_two_networks() -> None:
    def make() -> Any:
        g, d = mlp(), mlp()
        og, od = optim.Adam(g.parameters(), lr=0.01), optim.SGD(d.parameters(), lr=0.1, momentum=0.5)

        def step(x: Any, y: Any) -> Any:
            od.zero_grad()
            first = mse(d(x), y)
            first.backward()
            od.step()
            og.zero_grad()
            second = mse(g(x) + d(x), y)
            second.backward()
            og.step()
            return first, second

        return step, g, d, og, od

    compare(make, data)


IN_OTHER_DTYPES = [  # with an eps that is not 0 in half precision
    "SGD momentum", "SGD nesterov decay", "Adam betas eps", "AdamW betas eps", "NAdam betas eps",
    "RMSprop decay alpha", "Adagrad initial decay", "Lion",
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f8", "f2"])
@pytest.mark.parametrize("name", IN_OTHER_DTYPES)
def test_other_dtypes(name: str, dtype: str) -> None:
    def model() -> Any:
        return mlp().astype(np.dtype(dtype))

    def given(k: int) -> Any:
        return tuple(a.astype(dtype) for a in data(k))

    compare(training(OPTIMIZERS[name], model=model), given)


def test_what_decides_on_values_is_an_error() -> None:
    m = mlp()
    o = optim.SGD(m.parameters(), lr=0.1)
    accumulator = ad.GradientAccumulator(m)

    def set_rate(x: Any, y: Any) -> None:
        o.lr = 0.5

    def accumulated(x: Any, y: Any) -> None:
        with accumulator.micro_batch():
            mse(m(x), y).backward()

    def added(x: Any, y: Any) -> None:
        accumulator.step({})

    def applied(x: Any, y: Any) -> None:
        accumulator.apply(o)

    def dropped(x: Any, y: Any) -> None:
        accumulator.drop()

    def line_search(x: Any, y: Any) -> None:
        optim.LBFGS(m.parameters()).step(lambda: mse(m(x), y))

    for f in (set_rate, accumulated, added, applied, dropped, line_search):
        with pytest.raises(ad.errors.TransformError, match=r"cannot be \w+ inside ad\.compile"):
            ad.compile(f)(*data(0))
    assert all(type(p) is ad.Tensor for p in m.parameters())


@pytest.mark.parametrize("backend", ["replay", "auto"])
def test_loading_the_state_of_an_average_does_not_trace_again(backend: str) -> None:
    def averages(compiling: bool) -> Any:
        w = ad.tensor([1.0, 2.0], requires_grad=True)
        average = optim.EMA([w], decay=0.5)

        def step(x: Any) -> Any:
            with ad.no_grad():
                w.copy_(w * x)
            average.update()
            return w * 2.0

        call = ad.compile(step, backend=backend) if compiling else step
        state, found = average.state_dict(), []
        for k in range(6):
            call(ad.tensor([2.0, 0.5]))
            found.append(average.averages[0].tolist())
            if k % 2:
                average.load_state_dict(state)
        assert not compiling or call.stats()["traces"] == 1
        return found

    assert averages(True) == averages(False)
