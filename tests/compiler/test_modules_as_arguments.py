"""Models as arguments of compiled functions: each with its parameters, traced once for equal structures."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, tree

X, Y = np.linspace(-1, 1, 12).reshape(4, 3).astype(np.float32), np.ones((4, 2), np.float32)


class Scaled(nn.Module):
    """A module with a number, a text, a buffer and submodules, of which two may be one object."""

    def __init__(self, shared: bool = False) -> None:
        self.first = nn.Linear(3, 3, rng=1)
        self.second = self.first if shared else nn.Linear(3, 3, rng=2)
        self.out = nn.Linear(3, 2, rng=3)
        self.factor, self.kind = 2.0, "tanh"
        self.register_buffer("offset", np.full(2, 0.5, np.float32))

    def forward(self, x: Any) -> Any:
        h = getattr(ad, self.kind)(self.second(ad.relu(self.first(x))))
        return self.out(h) * self.factor + (self.offset if self.training else 0.0)


def loss(model: Any, x: Any, y: Any) -> Any:
    return ((model(x) - y) ** 2).mean()


def descent(model: Any, x: Any, y: Any) -> Any:
    value, grads = ad.value_and_grad(loss)(model, x, y)
    return tree.map(lambda p, g: p - 0.1 * g, model, grads), value


def values(found: Any) -> list[Any]:
    return [np.asarray(a.detach()) if isinstance(a, ad.Tensor) else a for a in tree.leaves(found)]


def check(f: Any, compiled: Any, *args: Any) -> Any:
    """Compare a compiled function with the function; return its result."""
    wanted, found = values(f(*args)), compiled(*args)
    for a, b in zip(values(found), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return found


@pytest.mark.parametrize("backend", ["replay", "auto"])
def test_new_models_of_one_structure_run_one_program(backend: str) -> None:
    compiled, model = ad.compile(descent, backend=backend), Scaled()
    model = check(descent, compiled, model, X, Y)[0]
    for _ in range(6):
        model = check(descent, compiled, model, X, Y)[0]
    # the first model has leaves, the later ones results of ops
    assert compiled.stats()["traces"] == 2


def test_gradients_of_a_compiled_function_of_a_model_are_traced_once() -> None:
    compiled, model = ad.compile(loss), Scaled()
    for _ in range(5):
        check(ad.grad(loss), ad.grad(compiled), model, X, Y)
    assert compiled.stats()["traces"] == 1


def change_number(model: Any) -> None:
    model.factor = 3.0


def change_text(model: Any) -> None:
    model.kind = "sin"


def change_mode(model: Any) -> None:
    model.eval()


def replace_parameter(model: Any) -> None:
    model.out.weight = nn.Parameter(np.ones((2, 3), np.float32))


def replace_layer(model: Any) -> None:
    model.second = nn.Linear(3, 3, rng=9)


def replace_buffer(model: Any) -> None:
    model.offset = np.full(2, -1.0, np.float32)


def write_buffer(model: Any) -> None:
    model.offset.copy_(np.full(2, 7.0, np.float32))


def share_layers(model: Any) -> None:
    model.second = model.first


def tie_weights(model: Any) -> None:
    model.second.weight = model.first.weight


def add_hook(model: Any) -> None:
    model.out.register_forward_hook(lambda module, args, output: output * 2)


def freeze(model: Any) -> None:
    model.first.requires_grad_(False)


CHANGES = (
    change_number, change_text, change_mode, replace_parameter, replace_layer, replace_buffer, write_buffer,
    share_layers, tie_weights, add_hook, freeze,
)  # fmt: skip


@pytest.mark.parametrize("backend", ["replay", "auto"])
@pytest.mark.parametrize("which", ["the same model", "its copies", "the one that was traced"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_changes_of_models_are_seen(change: Any, which: str, backend: str) -> None:
    """No program runs for a model that differs from the one that was traced in more than its parameters."""
    compiled, first = ad.compile(loss, backend=backend), Scaled()
    given = first if which == "the same model" else tree.map(lambda p: nn.Parameter(p.detach() * 1), first)
    for _ in range(3):
        check(loss, compiled, first, X, Y)
        check(loss, compiled, given, X, Y)
    change(first if which == "the one that was traced" else given)
    for _ in range(3):
        check(loss, compiled, given, X, Y)
        check(loss, compiled, first, X, Y)


def test_a_model_without_parameters() -> None:
    compiled = ad.compile(lambda m, x: m(x).sum())
    tanh = nn.Tanh()
    for model in (tanh, nn.ReLU(), tanh):
        for _ in range(3):
            assert compiled(model, X).item() == pytest.approx(model(ad.tensor(X)).sum().item(), rel=1e-5)
    assert compiled.stats()["traces"] == 2


def test_shared_layers_are_not_two_layers() -> None:
    compiled = ad.compile(descent)
    for shared in (False, True, False, True):
        check(descent, compiled, Scaled(shared), X, Y)


@pytest.mark.parametrize("backend", ["replay", "auto"])
def test_state_that_the_function_counts_is_counted_once(backend: str) -> None:
    """The trace that finds a model both as an argument and in an optimiser is discarded with what it changed."""

    class Training:
        def __init__(self) -> None:
            self.count, self.items, self.named = 0, [0], {"count": 0}
            self.model = nn.Linear(3, 2, rng=0)
            self.optimizer = ad.optim.SGD(self.model.parameters(), lr=0.1)

        def step(self, model: Any, x: Any, y: Any) -> Any:
            self.count += 1
            self.items[0] += 1
            self.named["count"] += 1
            self.optimizer.zero_grad()
            value = loss(model, x, y) * self.count
            value.backward()
            self.optimizer.step()
            return value

    training, eager = Training(), Training()
    step = ad.compile(training.step, backend=backend)
    for k in range(1, 5):
        found = step(training.model, X, Y).item()
        assert found == pytest.approx(eager.step(eager.model, ad.tensor(X), Y).item(), rel=1e-5)
        assert (training.count, training.items, training.named) == (k, [k], {"count": k})


class Batch(NamedTuple):
    x: Any
    y: Any


@pytest.mark.parametrize("backend", ["replay", "auto"])
def test_models_and_named_tuples_skip_the_general_path(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = ad.compile(lambda m, b: loss(m, *b), backend=backend)
    model, batch = Scaled(), Batch(ad.tensor(X), ad.tensor(Y))
    twin = copy.copy(model)
    twin.out = copy.copy(model.out)
    twin.out.weight = nn.Parameter(np.zeros((2, 3), np.float32))
    wanted = loss(model, *batch).item(), loss(twin, *batch).item()
    for _ in range(3):
        compiled(model, batch)
    monkeypatch.setattr(type(compiled), "_call", None)
    for m, value in zip((model, twin), wanted, strict=True):
        assert compiled(m, Batch(*batch)).item() == pytest.approx(value, rel=1e-5)
