"""Compiled functions that change hooks, layers, parameters, buffers or containers from outside.

This is an error, and what was changed is restored.  Calls that fail restore random generators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn
from adjoint.errors import NonFiniteError, TransformError

BACKENDS = pytest.mark.parametrize("backend", ["replay", "auto"])
HOOKS = (
    "{line}: ad.compile: the function adds or removes a hook of a tensor or module that was created outside of it.\n"
    "  Register and remove the hook outside of the compiled function, or remove it at the end of the function."
)


def doubled(*values: Any) -> Any:
    return values[-1] * 2


def pre_doubled(module: Any, args: Any) -> Any:
    return (args[0] * 2,)


class Hooked:
    """A tensor and a layer, and a function that uses both."""

    def __init__(self) -> None:
        self.w = ad.ones(3, requires_grad=True)
        self.layer = nn.Linear(3, 3, rng=0, dtype=np.float64)

    def result(self, x: Any) -> Any:
        self.w.grad = None
        (self.layer(x) * self.w).sum().backward()
        return self.w.grad.detach() * 1

    def register(self, kind: str) -> Any:
        if kind == "tensor":
            return self.w.register_hook(doubled)
        if kind == "forward":
            return self.layer.register_forward_hook(doubled)
        return self.layer.register_forward_pre_hook(pre_doubled)

    @classmethod
    def line(cls, kind: str) -> str:
        """Return the line of ``register`` that adds a hook of a kind."""
        n = {"tensor": 2, "forward": 4, "forward_pre": 5}[kind]
        return f"{__file__}:{cls.register.__code__.co_firstlineno + n}"


X = np.arange(1.0, 4.0)
KINDS = pytest.mark.parametrize("kind", ["tensor", "forward", "forward_pre"])


@BACKENDS
@KINDS
def test_a_hook_that_is_added_inside_is_an_error(kind: str, backend: str) -> None:
    held = Hooked()
    before = held.result(X)

    @ad.compile(backend=backend)
    def f(x: Any) -> Any:
        held.register(kind)
        return held.result(x)

    for _ in range(3):
        with pytest.raises(TransformError) as raised:
            f(X)
        assert str(raised.value) == HOOKS.replace("{line}", Hooked.line(kind))
        assert held.result(X).tolist() == before.tolist()


@BACKENDS
@KINDS
def test_a_hook_that_is_removed_inside_is_an_error(kind: str, backend: str) -> None:
    held = Hooked()
    handle = held.register(kind)
    before = held.result(X)

    @ad.compile(backend=backend)
    def f(x: Any) -> Any:
        found = held.result(x)
        handle.remove()
        return found

    line = f"{__file__}:{f.__wrapped__.__code__.co_firstlineno + 3}"
    for _ in range(3):
        with pytest.raises(TransformError) as raised:
            f(X)
        assert str(raised.value) == HOOKS.replace("{line}", line)
        assert held.result(X).tolist() == before.tolist()
    handle.remove()
    assert held.result(X).tolist() != before.tolist()


@BACKENDS
@KINDS
def test_a_hook_may_be_added_and_removed_inside(kind: str, backend: str) -> None:
    held = Hooked()

    def f(x: Any) -> Any:
        handle = held.register(kind)
        found = held.result(x)
        handle.remove()
        return found

    before, wanted = held.result(X), f(X)
    assert wanted.tolist() != before.tolist()
    compiled = ad.compile(f, backend=backend)
    for _ in range(4):
        np.testing.assert_allclose(compiled(X), wanted.numpy(), rtol=0 if backend == "replay" else 1e-14)
        assert held.result(X).tolist() == before.tolist()
    assert compiled.stats()["traces"] == 1


def test_hooks_of_tensors_that_are_created_inside() -> None:
    w = ad.ones(3, requires_grad=True)

    def f(x: Any) -> Any:
        w.grad = None
        y = w * x
        y.register_hook(doubled)
        y.sum().backward()
        return w.grad

    compiled = ad.compile(f, backend="replay")
    assert [compiled(X).tolist() for _ in range(3)] == [(2 * X).tolist()] * 3
    assert compiled.stats()["traces"] == 1


class Net(nn.Module):
    """Layers in a list and in an attribute, with parameters and buffers."""

    def __init__(self) -> None:
        self.layers = nn.ModuleList([nn.Linear(3, 3, rng=0)])
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def new_layer() -> Any:
    return nn.Linear(3, 3, rng=1)


CHANGES: dict[str, tuple[Callable[[Net], Any], str]] = {  # what the function does, and what the message names
    "appended layer": (lambda m: m.layers.append(new_layer()), "1 of ModuleList"),
    "replaced layer": (lambda m: setattr(m, "norm", nn.LayerNorm(3)), "norm of Net"),
    "new layer": (lambda m: setattr(m, "more", new_layer()), "more of Net"),
    "deleted layer": (lambda m: delattr(m, "norm"), "norm of Net"),
    "parameter": (lambda m: setattr(m.layers[0], "weight", nn.Parameter(np.ones((3, 3), "f"))), "weight of Linear"),
    "no parameter": (lambda m: setattr(m.layers[0], "bias", None), "bias of Linear"),
    "new parameter": (lambda m: setattr(m.norm, "more", nn.Parameter(np.ones(3, "f"))), "more of BatchNorm1d"),
    "buffer": (lambda m: setattr(m.norm, "running_mean", ad.ones(3)), "running_mean of BatchNorm1d"),
    "registered buffer": (lambda m: m.norm.register_buffer("more", ad.ones(3)), "more of BatchNorm1d"),
    "astype": (lambda m: m.layers[0].astype(np.float64), "weight, bias of Linear"),
}  # fmt: skip


@BACKENDS
@pytest.mark.parametrize("name", CHANGES)
def test_a_layer_or_a_tensor_of_a_module_that_is_replaced_inside_is_an_error(name: str, backend: str) -> None:
    change, what = CHANGES[name]
    model, x = Net(), np.arange(6, dtype="f").reshape(2, 3)

    def parts() -> list[tuple[str, int]]:
        named = (*model.named_modules(), *model.named_parameters(), *model.named_buffers())
        return [(k, id(v)) for k, v in named]

    def forward(x: Any) -> Any:
        change(model)
        return model(x).sum() if hasattr(model, "norm") else x.sum()

    f = ad.compile(forward, backend=backend)
    before, state = parts(), model.state_dict()
    for _ in range(2):
        with pytest.raises(TransformError) as raised:
            f(x)
        assert str(raised.value) == (
            f"ad.compile: forward ({__file__}:{forward.__code__.co_firstlineno}) adds, removes or replaces {what}.\n"
            "  Do this outside of the compiled function.  To set a buffer or a parameter, write into it: "
            "buffer.copy_(value)."
        )
        assert parts() == before
        tensors = (*model.named_parameters(), *model.named_buffers())
        assert {type(t._data) for _, t in tensors} == {np.ndarray}
        assert {k: np.asarray(v).tolist() for k, v in model.state_dict().items()} == {
            k: np.asarray(v).tolist() for k, v in state.items()
        }
    model.eval()
    found = ad.compile(model, backend=backend)(x)
    np.testing.assert_allclose(found.detach(), model(x).detach(), rtol=1e-6)


def test_a_buffer_that_is_written_to_inside() -> None:
    model = Net()

    @ad.compile
    def f(x: Any) -> Any:
        model.norm.running_mean.copy_(x.sum(0))
        return x

    for k in (1.0, 2.0, 3.0):
        f(np.full((2, 3), k, "f"))
        assert model.norm.running_mean.tolist() == [2 * k] * 3


CONTAINERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {  # an argument with an array A, and a change
    "assigned": (lambda a: {"x": a}, lambda b: b.update(x=b["x"] * 2)),
    "new key": (lambda a: {"x": a}, lambda b: b.update(y=1.0)),
    "pop": (lambda a: {"x": a}, lambda b: b.pop("x")),
    "reordered": (lambda a: {"x": a, "k": 1}, lambda b: b.update(x=b.pop("x"))),
    "append": (lambda a: [a], lambda b: b.append(b[0])),
    "element": (lambda a: [a, 1], lambda b: b.reverse()),
    "nested": (lambda a: {"a": ([{"x": a}],)}, lambda b: b["a"][0][0].update(y=1.0)),
}


def contents(value: Any) -> Any:
    """Return a nested container with the ids of its leaves."""
    if isinstance(value, dict):
        return [(k, contents(v)) for k, v in value.items()]
    return [contents(v) for v in value] if isinstance(value, (list, tuple)) else id(value)


@pytest.mark.parametrize("mode", [True, "check", False])
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_argument_that_is_changed_inside_is_an_error(name: str, mode: Any) -> None:
    make, change = CONTAINERS[name]

    def f(batch: Any) -> Any:
        change(batch)
        return ad.ones(3)

    compiled = ad.compile(f)
    for array in (X, ad.tensor(X)):
        if mode is False and array is not X:  # the function itself runs, with the container of the caller
            continue
        batch = make(array)
        before = contents(batch)
        for _ in range(2):
            with ad.config.compiling(mode), pytest.raises(TransformError) as raised:
                compiled(batch)
            kind = "list" if isinstance(batch, list) else "dict"
            assert str(raised.value) == (
                f"ad.compile: f ({__file__}:{f.__code__.co_firstlineno}) changes a {kind} that is an argument; "
                "compiled functions can change only tensors.\n"
                "  Copy it first, as in batch = dict(batch), or return the new value."
            )
            assert contents(batch) == before


@BACKENDS
@pytest.mark.parametrize("mode", [True, "check", False])
def test_a_copied_container_may_be_changed(mode: Any, backend: str) -> None:
    @ad.compile(backend=backend)
    def f(batch: Any) -> Any:
        batch = dict(batch)
        x = batch.pop("x")
        batch["y"] = x * batch["k"]
        return batch

    batch = {"x": X, "k": 2}
    with ad.config.compiling(mode):
        for _ in range(4):
            found = f(batch)
            assert sorted(found) == ["k", "y"]
            assert np.asarray(found["y"]).tolist() == (2 * X).tolist()
    assert [*batch] == ["x", "k"] and batch["x"] is X
    assert f.stats()["traces"] == (0 if mode is False else 1)


def _clip(rng: Any) -> tuple[Any, Any, Any]:
    w = ad.ones(3, requires_grad=True)

    def f(x: Any) -> Any:
        w.grad = None
        (w * x * rng.normal(size=3)).sum().backward()
        ad.clip_grad_norm([w], 1.0)
        return w.grad.detach() * 1

    return f, X, np.full(3, np.nan)


def _index(rng: Any) -> tuple[Any, Any, Any]:
    table = ad.ones((3, 2))
    return lambda i: ad.take(table, i, axis=0) * rng.normal(), np.array([0]), np.array([7])


def _divide(rng: Any) -> tuple[Any, Any, Any]:
    return lambda x: rng.normal(size=3) / x, X, np.zeros(3)


FAILING: dict[str, tuple[Any, type[Exception]]] = {
    "gradients that are not finite": (_clip, NonFiniteError),
    "an index out of range": (_index, IndexError),
    "a floating-point error": (_divide, FloatingPointError),
}


@BACKENDS
@pytest.mark.parametrize("name", FAILING)
def test_a_call_that_fails_restores_random_generators(name: str, backend: str) -> None:
    make, error = FAILING[name]
    if error is FloatingPointError and backend != "replay":
        pytest.skip("native code raises no floating-point errors")
    rng, other = ad.random.default_rng(0), ad.random.default_rng(0)
    f, good, bad = make(rng)
    eager = make(other)[0]
    compiled = ad.compile(f, backend=backend)
    for calls in (1, 3, 1200):  # the first call traces, later ones run native code, then native checks too
        for _ in range(calls):
            compiled(good)
            eager(ad.tensor(good))
        before = rng.state
        for _ in range(2):
            with np.errstate(all="raise"), pytest.raises(error):
                compiled(bad)
            assert rng.state == before == other.state
    np.testing.assert_allclose(compiled(good), eager(ad.tensor(good)).numpy(), rtol=1e-12)


@BACKENDS
def test_a_trace_that_fails_restores_random_generators(backend: str) -> None:
    rng = ad.random.default_rng(0)
    before = rng.state

    def f(x: Any) -> Any:
        rng.normal(size=3)
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        ad.compile(f, backend=backend)(X)
    assert rng.state == before


def test_a_buffer_that_is_registered_inside_leaves_no_name() -> None:
    m = nn.Linear(3, 3, rng=0)

    def f(x: Any) -> Any:
        m.register_buffer("b", np.zeros(3))
        return m(x)

    with pytest.raises(ad.errors.TransformError, match=r"adds, removes or replaces b of Linear"):
        ad.compile(f)(np.ones((2, 3), "f"))
    assert sorted(m.state_dict()) == ["bias", "weight"]


def test_a_hook_of_a_module_that_is_not_called() -> None:
    m = nn.Linear(3, 3, rng=0)

    def f(x: Any) -> Any:
        m.register_forward_hook(lambda *_: None)
        return x * 2

    with pytest.raises(ad.errors.TransformError, match=r"adds or removes a hook"):
        ad.compile(f)(X)
    assert all(not h.hooks for h in m._forward_hooks or ())
