"""Finalisers that the garbage collector runs during a trace are not part of the program; they run once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import adjoint as ad

X = np.ones(3)


@pytest.fixture(autouse=True)
def collected_on_request() -> Iterator[None]:
    gc.collect()
    enabled, callbacks = gc.isenabled(), gc.callbacks[:]
    gc.disable()
    yield
    assert gc.callbacks == callbacks
    if enabled:
        gc.enable()


class Garbage:
    """An object that only the garbage collector deletes, and that then calls a function."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.me, self.function = self, function

    def __del__(self) -> None:
        self.function()


class Watched:
    """An object in a cycle, whose weak reference has a callback."""

    def __init__(self, kept: list[Any], function: Callable[[], Any]) -> None:
        self.me = self
        kept.append(weakref.ref(self, lambda _: function()))


def add_one(t: Any) -> None:
    with ad.no_grad():
        t.copy_(t + 1)


@pytest.mark.parametrize("backend", ["replay", "auto"])
@pytest.mark.parametrize("reference", [False, True], ids=["__del__", "weakref"])
@pytest.mark.parametrize("used", ["outside", "captured", "loop"])
def test_a_finaliser_that_writes_a_tensor_runs_once(used: str, reference: bool, backend: str) -> None:
    w, hits = ad.tensor([1.0, 2.0, 3.0], requires_grad=True), ad.zeros(3)
    kept: list[Any] = []
    write = lambda: add_one(hits if used == "outside" else w)

    def f(x: Any) -> Any:
        def body(c: Any, a: Any) -> Any:
            gc.collect()
            return c + (w * a).sum(), c

        y = (w * x).sum()
        if used == "loop":
            y = y + ad.scan(body, ad.tensor(0.0), x)[0]
        gc.collect()
        return y + (w * x).sum()

    Watched(kept, write) if reference else Garbage(write)
    compiled = ad.compile(f, backend=backend)
    found = [compiled(X).item() for _ in range(3)]
    assert hits.tolist() == [float(used == "outside")] * 3
    assert w.tolist() == [1.0 + (used != "outside"), 2.0 + (used != "outside"), 3.0 + (used != "outside")]
    assert found == [f(ad.tensor(X)).item()] * 3
    assert "\nwrite" not in compiled.program(X)
    assert type(w) is ad.Tensor and compiled.stats()["traces"] == 1


def test_a_finaliser_during_a_training_step() -> None:
    def train(garbage: bool) -> list[Any]:
        m = ad.nn.Linear(3, 3, rng=0, dtype=np.float64)
        o = ad.optim.Adam(m.parameters(), lr=0.125)
        seen: list[Any] = []

        def look() -> None:
            seen.append([p.tolist() for p in m.parameters()])
            seen.append([None if p.grad is None else p.grad.tolist() for p in m.parameters()])
            seen.append(type(ad.gradients((m(X) ** 2).sum(), [m.weight])[0]))

        @ad.compile(backend="replay")
        def step(x: Any) -> Any:
            o.zero_grad()
            loss = (m(x) ** 2).sum()
            if garbage:
                gc.collect()
            loss.backward()
            gc.collect()
            o.step()
            gc.collect()
            return loss

        start = [p.tolist() for p in m.parameters()]
        if garbage:
            Garbage(look)
        losses = [step(X).item() for _ in range(3)]
        assert seen == ([start, [None, None], ad.Tensor] if garbage else [])
        return [losses, *[p.tolist() for p in m.parameters()]]

    assert train(True) == train(False)


def test_a_finaliser_that_the_function_itself_causes_is_part_of_the_program() -> None:
    hits = ad.zeros(3)

    class Counted:
        def __del__(self) -> None:
            add_one(hits)

    def f(x: Any) -> Any:
        Counted()
        return x * 2.0

    compiled = ad.compile(f)
    for k in range(1, 4):
        compiled(X)
        assert hits.tolist() == [k] * 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_finaliser_cannot_use_a_value_of_the_trace() -> None:
    hits, errors = ad.zeros(3), []

    def use(y: Any) -> None:
        try:
            hits.copy_(y)
        except ad.errors.TransformError as error:
            errors.append(str(error))

    def f(x: Any) -> Any:
        y = x * 2.0
        Garbage(lambda: use(y))
        gc.collect()
        return y + 0.0

    assert ad.compile(f)(X).tolist() == [2.0] * 3
    assert type(hits._data) is np.ndarray and hits.tolist() == [0.0] * 3
    line = f"{__file__}:{f.__code__.co_firstlineno + 1}"
    assert [e.split(", and")[0] for e in errors] == [
        f"this tensor was computed at {line} while ad.compile traced a function"
    ]
