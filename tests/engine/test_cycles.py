"""No function that differentiates or trains leaves a reference cycle: the memory of a graph goes at once, without the garbage collector."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim
from adjoint.nn import functional
from adjoint.testing import gradcheck
from adjoint.train import DataLoader, Trainer

Entry = Callable[[], Any]
ENTRIES: dict[str, Entry] = {}


def entry(f: Entry) -> Entry:
    ENTRIES[f.__name__] = f
    return f


def leaf(*shape: int) -> ad.Tensor:
    shape = shape or (3, 4)
    return ad.tensor(np.linspace(0.1, 1.0, int(np.prod(shape))).reshape(shape), requires_grad=True)


def wide(x: ad.Tensor) -> ad.Tensor:
    return (ad.sin(x) * ad.cos(x) + ad.exp(x)).sum()


def fails(*_: Any) -> Any:
    raise KeyError("on purpose")


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5, dtype=np.float64), nn.Tanh(), nn.Linear(5, 3, dtype=np.float64))


def loss_of(model: nn.Module) -> ad.Tensor:
    return functional.mse_loss(model(ad.ones((8, 4))), ad.ones((8, 3)))


# Backward ------------------------------------------------------------------------------------


@entry
def serial() -> None:
    wide(leaf()).backward()


@entry
def parallel() -> None:
    wide(leaf()).backward(workers=2)


@entry
def parallel_with_events() -> None:
    wide(leaf()).backward(workers=2, on_leaf_ready=lambda *_: None)


@entry
def events() -> None:
    wide(leaf()).backward(on_leaf_ready=lambda *_: None)


@entry
def store() -> None:
    x = leaf()
    ad.backward(wide(x))[x]


@entry
def create_graph() -> None:
    x = leaf()
    (g,) = ad.gradients(wide(x), [x], create_graph=True)
    (g * g).sum().backward()


@entry
def several_outputs() -> None:
    x = leaf()
    w, v = ad.linalg.eigh(x.T @ x)
    (w.sum() + (v * v).sum()).backward()


@entry
def hooks() -> None:
    x = leaf()
    y = x * x
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    x.register_hook(lambda g: g)
    x.register_post_accumulate_grad_hook(lambda _: None)
    y.sum().backward()


@entry
def a_backward_inside_a_hook() -> None:
    x = leaf()
    y = ad.sin(x)
    y.register_hook(lambda _: ad.enable_grad()(parallel)())
    (y * ad.cos(x)).sum().backward(workers=2)


@entry
def saved_tensors() -> None:
    x = leaf()
    with ad.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = wide(x)
    y.backward()


@entry
def anomaly() -> None:
    with ad.detect_anomaly():
        wide(leaf()).backward()


@entry
def tape() -> None:
    x = leaf()
    with ad.Tape() as outer:
        with ad.Tape() as inner:
            y = wide(x)
        z = (inner.gradients(y)[x] ** 2).sum()
    outer.gradients(z)[x]


@entry
def sparse_rows() -> None:
    layer = nn.Embedding(10, 3, sparse=True)
    layer(ad.tensor([1, 2])).sum().backward()


# Transforms ----------------------------------------------------------------------------------


@entry
def checkpoint() -> None:
    ad.checkpoint(wide, leaf()).backward()


@entry
def checkpoint_twice() -> None:
    x = leaf()
    (g,) = ad.gradients(ad.checkpoint(wide, x), [x], create_graph=True)
    g.sum().backward()


@entry
def reverse() -> None:
    ad.grad(wide)(np.ones(3))
    ad.value_and_grad(wide)(np.ones(3))
    ad.grad(ad.grad(lambda x: x**3))(1.0)
    ad.vjp(ad.sin, np.ones(3))[1](np.ones(3))


@entry
def forward() -> None:
    ad.jvp(wide, (np.ones(3),), (np.ones(3),))
    ad.linearize(wide, np.ones(3))[1](np.ones(3))
    ad.jvp(lambda x: functional.layer_norm(x, (4,)), (np.ones((3, 4)),), (np.ones((3, 4)),))


@entry
def matrices() -> None:
    ad.jacobian(ad.sin)(np.ones(3))
    ad.jacfwd(ad.sin)(np.ones(3))
    ad.hessian(wide)(np.ones(3))


@entry
def vmap() -> None:
    ad.vmap(ad.sin)(np.ones((3, 4)))
    ad.vmap(ad.grad(wide))(np.ones((3, 4)))
    ad.grad(lambda x: ad.vmap(wide)(x).sum())(np.ones((3, 4)))


@entry
def implicit() -> None:
    a = ad.tensor(2.0, requires_grad=True)
    ad.fixed_point(lambda y, a: (y + a / y) / 2, ad.tensor(1.0), a).backward()
    ad.root(lambda y, a: y * y - a, ad.tensor(1.0), a).backward()


class Sine(ad.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return ad.sin(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * ad.cos(x)


@entry
def function() -> None:
    Sine.apply(leaf()).sum().backward()


@entry
def checked_gradients() -> None:
    gradcheck(wide, [np.ones(3)])


# Training ------------------------------------------------------------------------------------


def optimiser(kind: str) -> Entry:
    def train() -> None:
        model = net()
        opt = getattr(optim, kind)(model.parameters(), lr=0.01)
        for _ in range(2):
            opt.zero_grad()
            loss_of(model).backward()
            opt.step()

    return train


for kind in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Lion"):
    ENTRIES[kind] = optimiser(kind)


@entry
def lbfgs() -> None:
    model = net()
    opt = optim.LBFGS(model.parameters())

    def closure() -> ad.Tensor:
        opt.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    opt.step(closure)


@entry
def averages() -> None:
    ema = optim.EMA(net().parameters())
    ema.update()
    with ema.swapped():
        pass


@entry
def accumulator() -> None:
    model = net()
    acc = ad.GradientAccumulator(model.parameters(), accumulation_steps=2)
    opt = optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(2):
            with acc.micro_batch(weight=8):
                loss_of(model).backward()
        acc.apply(opt)


@entry
def clipping() -> None:
    x = leaf()
    wide(x).backward()
    ad.clip_grad_norm([x], 0.1)


@entry
def trainer() -> None:
    model = net()
    run = Trainer(model, nn.MSELoss(), optim.SGD(model.parameters(), lr=0.1), accumulate=2, clip=1.0)
    run.fit(DataLoader((np.ones((8, 4), "f"), np.ones((8, 3), "f")), batch_size=4), epochs=2)


@entry
def recurrent() -> None:
    nn.LSTM(4, 3, dtype=np.float64)(ad.ones((2, 3, 4)))[0].sum().backward()


# Errors, whose tracebacks hold frames ----------------------------------------------------------


def hook_fails(workers: int) -> Any:
    x = leaf()
    y = ad.sin(x) * ad.cos(x)
    y.register_hook(fails)
    return y.sum().backward(workers=workers)


def released() -> Any:
    y = wide(leaf())
    y.backward()
    y.backward()


def overwritten() -> Any:
    x, w = leaf(), ad.ones((3, 4))
    y = (x * w).sum()
    w.copy_(2.0)
    y.backward()


def anomalous() -> Any:
    with ad.detect_anomaly():
        ad.log(leaf() * 0.0)


def microbatch_fails() -> Any:
    model = net()
    acc = ad.GradientAccumulator(model.parameters(), accumulation_steps=2)
    with acc.micro_batch(weight=8):
        fails()


def trainer_fails() -> Any:
    model = net()
    run = Trainer(model, fails, optim.SGD(model.parameters(), lr=0.1))
    run.fit(DataLoader((np.ones((8, 4), "f"), np.ones((8, 3), "f")), batch_size=4), epochs=1)


MISTAKES: list[Entry] = [
    lambda: hook_fails(1),
    lambda: hook_fails(2),
    released,
    overwritten,
    anomalous,
    microbatch_fails,
    trainer_fails,
    lambda: leaf() @ leaf(),
    lambda: leaf() + leaf(7),
    lambda: ad.concat([leaf(), leaf(7)]),
    lambda: leaf()[10],
    lambda: leaf().reshape(5, 5),
    lambda: ad.where(True, leaf(), leaf(9)),
    lambda: leaf().backward(),
    lambda: ad.tensor(1.0).backward(),
    lambda: ad.linalg.inv(leaf(3, 4)),
    lambda: ad.grad(fails)(np.ones(3)),
    lambda: ad.jvp(fails, (np.ones(3),), (np.ones(3),)),
    lambda: ad.vmap(fails)(np.ones(3)),
    lambda: ad.vmap(lambda x: x.item())(np.ones(3)),
    lambda: ad.checkpoint(fails, leaf()),
    lambda: ad.checkpoint(lambda x: x @ x, leaf()),
    lambda: ad.hessian(fails)(np.ones(3)),
    lambda: ad.fixed_point(fails, ad.tensor(1.0), leaf()),
    lambda: ad.load(Path(__file__).parent / "nothing"),
]


@entry
def mistakes() -> None:
    for mistake in MISTAKES:
        try:
            mistake()
        except Exception:
            continue
        pytest.fail(f"{mistake} raised nothing")


# -----------------------------------------------------------------------------------------------


def of_adjoint(o: Any) -> bool:
    """Tell whether an object, function or frame belongs to the library."""
    if isinstance(o, types.FrameType):
        module = o.f_globals.get("__name__")
    else:
        module = o.__module__ if isinstance(o, types.FunctionType) else type(o).__module__
    return str(module).split(".")[0] == "adjoint"


@pytest.mark.parametrize("name", ENTRIES)
def test_no_cycle_is_left(name: str) -> None:
    ENTRIES[name]()  # what is made once and kept is made here
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        ENTRIES[name]()
        gc.collect()
        left = sorted({type(o).__name__ for o in gc.garbage if of_adjoint(o)})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_graph_goes_with_its_last_tensor(workers: int) -> None:
    gc.disable()
    try:
        x = leaf()
        y = ad.sin(x)  # a chain: no helper starts, so that no thread that ends holds the run for a moment
        node = weakref.ref(y._node)
        y.sum().backward(workers=workers)
        del y
        assert node() is None
    finally:
        gc.enable()
