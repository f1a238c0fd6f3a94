"""Models, optimisers, dataclasses and other objects as arguments of compiled functions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import adjoint as ad


@dataclasses.dataclass
class Pair:
    x: Any
    y: Any
    scale: Any = 1.0


@dataclasses.dataclass
class Training:
    model: Any
    optimizer: Any


def a_training() -> Training:
    model = ad.nn.Linear(3, 2, dtype=np.float64)
    with ad.no_grad():
        model.weight.copy_(np.arange(6.0).reshape(2, 3) / 6)
        model.bias.copy_(np.zeros(2))
    return Training(model, ad.optim.Adam(model.parameters(), lr=0.1))


def updated(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss


def step(t: Any, x: Any, y: Any) -> Any:
    return updated(t.model, t.optimizer, x, y)


def trained(run: Any) -> list[list[float]]:
    """The losses of two trainings in turn by ``run``, which gets a ``Training`` and data."""
    x, y = np.ones((4, 3)), np.arange(8.0).reshape(4, 2)
    first, second = a_training(), a_training()
    return [[run(t, x, y).item() for _ in range(5)] for t in (first, second, first)]


@pytest.mark.parametrize("backend", ["replay", "auto"])
def test_a_model_and_its_optimiser_may_be_arguments(backend: str) -> None:
    compiled = ad.compile(step, backend=backend)
    np.testing.assert_allclose(trained(compiled), trained(step), rtol=1e-12)
    assert compiled.stats()["traces"] == 2  # one for each object


def test_a_model_may_be_an_argument_beside_an_optimiser_outside() -> None:
    x, y = np.ones((4, 3)), np.arange(8.0).reshape(4, 2)
    losses = []
    for compiled in (False, True):
        t = a_training()
        step = lambda model, x, y, t=t: updated(model, t.optimizer, x, y)
        run = ad.compile(step) if compiled else step
        losses.append([run(t.model, x, y).item() for _ in range(5)])
        losses.append([run(model=t.model, x=x, y=y).item() for _ in range(5)])
    np.testing.assert_allclose(losses[2:], losses[:2], rtol=1e-12)


def test_a_tensor_in_a_list_and_a_closure_is_refused() -> None:
    t = a_training()
    step = ad.compile(lambda models, x: updated(models[0], t.optimizer, x, 1.0))
    with pytest.raises(ad.errors.TransformError, match="one tensor is both an argument and a global"):
        step([t.model], np.ones((4, 3)))


def test_dataclasses_are_unpacked() -> None:
    f = ad.compile(lambda p: (p.x * p.y).sum() * p.scale)
    for k in range(6):
        assert f(Pair(np.full(3, float(k)), np.ones(3))) == 3 * k
        assert f(Pair(np.full(3, float(k)), np.ones(3), 0.5)) == 1.5 * k
    assert f(Pair(np.ones(3), np.ones(3), 2)) == 6
    assert f.stats()["traces"] == 2
    missing = Pair(np.ones(3), np.ones(3))
    del missing.y
    with pytest.raises(AttributeError, match="has no attribute 'y'"):
        f(missing)


def test_objects_among_the_arguments_are_compared_by_identity() -> None:
    class Options:
        power = 2

    f = ad.compile(lambda x, o: (x**o.power).sum())
    first, second = Options(), Options()
    second.power = 3
    x = np.full(2, 2.0)
    for _ in range(4):
        assert f(x, first) == 8
        assert f(x, second) == 16
    second.power = 1
    assert f(x, second) == 4
