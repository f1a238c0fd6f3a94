"""``optim.Pure``: the updates of an optimiser as a function, mapped, repeated and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from messages import raised

import adjoint as ad
from adjoint import optim

R = np.random.default_rng(0)
X, Y = R.normal(size=(12, 4)), R.normal(size=(12, 1))
CASES: list[tuple[Any, dict[str, Any]]] = [
    (optim.SGD, {"lr": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "maximize": True}),
    (optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    (optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    (optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
    (optim.Lion, {"lr": 0.01}),
]


def loss(p: Any) -> Any:
    x, y = (a.astype(p["w"].dtype) for a in (X, Y))
    return ((ad.tanh(x @ p["w"] + p["b"]) - y) ** 2).mean()


def training(kind: Any, hyper: dict[str, Any]) -> tuple[optim.Pure, Any]:
    pure = optim.Pure(kind, **hyper)

    def update(p: Any, state: Any, rate: Any) -> Any:
        value, g = ad.value_and_grad(loss)(p)
        return (*pure.update(p, g, state, lr=rate), value)

    def train(p: Any, state: Any, rates: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            p, state, values = ad.vmap(update)(*carry, rates)
            return (p, state), values

        return ad.scan(step, (p, state), None, length=10)

    return pure, train


@pytest.mark.parametrize(("kind", "hyper"), CASES)
def test_an_ensemble_with_a_rate_each_is_trained_as_one_by_one(kind: Any, hyper: dict[str, Any]) -> None:
    dtype = np.float32 if kind is optim.AdamW else np.float64
    start = {"w": R.normal(size=(3, 4, 1)).astype(dtype), "b": np.zeros((3, 1), dtype)}
    rates = hyper["lr"] * np.array([0.5, 1.0, 2.0])
    pure, train = training(kind, hyper)
    state = ad.vmap(pure.init)(start)
    compiled = ad.compile(train)
    compiled(start, state, rates)
    results = [f(start, state, rates)[0][0] for f in (train, compiled)]
    for k in range(3):
        p = {name: ad.tensor(value[k], requires_grad=True) for name, value in start.items()}
        optimizer = kind(list(p.values()), **{**hyper, "lr": float(rates[k])})
        for _ in range(10):
            optimizer.zero_grad()
            loss(p).backward()
            optimizer.step()
        for name, found in ((n, r[n]) for n in p for r in results):
            assert found.dtype == dtype
            tolerance = 1e-12 if dtype == np.float64 else 1e-5
            np.testing.assert_allclose(found[k], p[name].numpy(), rtol=tolerance, atol=tolerance)


def test_gradients_reach_the_learning_rate() -> None:
    pure = optim.Pure(optim.Adam)
    p = {"w": R.normal(size=(4, 1)), "b": np.zeros(1)}

    def after(rate: Any) -> Any:
        q, state = p, pure.init(p)
        for _ in range(3):
            q, state = pure.update(q, ad.grad(loss)(q), state, lr=rate)
        return loss(q)

    h = 1e-6
    expected = (after(0.1 + h) - after(0.1 - h)) / (2 * h)
    np.testing.assert_allclose(ad.grad(after)(0.1), expected, rtol=1e-6)


def test_mistakes_name_the_cure() -> None:
    pure = optim.Pure(optim.Adam)
    state = pure.init([np.ones(2), np.ones(3)])
    assert raised(lambda: pure.update(np.ones(2), np.ones(2), state)) == (
        "update: there are 1 parameters, but the state is that of 2.\n"
        "  Pass the state that init returned for these parameters."
    )
    one = pure.init({"w": np.ones(2)})
    assert raised(lambda: pure.update({"w": np.ones(2)}, {"w": np.ones((3, 2))}, one)) == (
        "update: a gradient has shape (3, 2), but its parameter has shape (2,)."
    )
    assert raised(lambda: pure.update({"w": np.ones(2)}, {"v": np.ones(2)}, one)).startswith("update: grads")
    assert raised(lambda: pure.update({"w": np.ones(2)}, {"w": np.ones(2)}, one, lr=-1.0)).startswith(
        "Adam: lr"
    )
    assert raised(lambda: pure.update([1.0], [1.0], state, rate=1.0)) == (
        "update: Adam has no hyper-parameter rate."
    )
    assert raised(lambda: pure.init(np.ones(2, int))) == (
        "Pure: a parameter must have a real float dtype, but one has int64."
    )
    assert raised(lambda: optim.Pure(optim.LBFGS)).startswith(
        "Pure: kind must be a class of optimisers, such as optim.Adam, not <class"
    )
    assert raised(lambda: optim.Pure(optim.NAdam)) == (
        "Pure: NAdam cannot be used, because it counts its steps in Python.\n"
        "  Use SGD, Adam, AdamW, RMSprop, Adagrad or Lion."
    )
    assert raised(lambda: optim.Pure(optim.Adam, lr=-1.0)).startswith("Adam: lr")


def test_stateful_training_inside_vmap_names_the_cure() -> None:
    def by_backward(w: Any) -> Any:
        (w * w).sum().backward()
        return w

    def by_optimizer(w: Any) -> Any:
        optim.SGD([w], lr=0.1).step()
        return w

    assert raised(lambda: ad.vmap(by_backward)(np.ones((3, 2)))) == (
        "backward() was called inside ad.vmap, where tensors have no graph and no .grad of their own.\n"
        "  Differentiate the function: ad.vmap(ad.grad(loss))(…), or ad.value_and_grad inside the mapped "
        "function.\n  optim.Pure makes updates of such parameters."
    )
    assert raised(lambda: ad.vmap(by_optimizer)(np.ones((3, 2)))) == (
        "SGD: params[0] is a value inside ad.vmap, which cannot be updated in place.\n"
        "  Use optim.Pure(optim.SGD, lr=…), which returns new parameters and a new state."
    )
