"""The dense gradient of a large table is written into that of the last call, if nothing else can see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim
from adjoint.optim.traced import _HostUpdate

LENGTH, WIDTH = 2_000, 32


def make(kind: Callable[..., Any] = optim.SGD) -> tuple[Any, Any, Any]:
    """Return a step, its table and its optimiser."""
    w = nn.Parameter(np.random.default_rng(0).normal(size=(LENGTH, WIDTH)).astype("f"))
    o = kind([w], lr=0.5)

    def step(rows: Any, t: Any) -> Any:
        o.zero_grad()
        loss = ((ad.take(w, rows, axis=0) - t) ** 2).mean()
        loss.backward()
        o.step()
        return loss

    return step, w, o


def batch(k: int, count: int = 20) -> tuple[Any, Any]:
    """Return row numbers, some of them negative or repeated, and targets."""
    rng = np.random.default_rng(k)
    rows = rng.integers(-LENGTH, LENGTH, count)
    rows[-1] = rows[0] % LENGTH - LENGTH
    return rows, rng.normal(size=(count, WIDTH)).astype("f")


def bits(w: Any, *more: Any) -> Any:
    return w.numpy().tobytes(), w.grad.numpy().tobytes(), *(t.numpy().tobytes() for t in more)


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam])
@pytest.mark.parametrize("counts", [(20,), (5,), (20, 5, 300)])
def test_the_bits_are_those_of_eager_mode(kind: Any, counts: tuple[int, ...]) -> None:
    (wanted, w, _), (step, v, _) = make(kind), make(kind)
    compiled = ad.compile(step, backend="replay")
    arrays = set()
    for k in range(9):
        given = batch(k, counts[k % len(counts)])
        expected, found = wanted(*given), compiled(*given)
        assert bits(v, found) == bits(w, expected)
        arrays.add(id(v.grad._data))
    if len(counts) == 1:
        assert len(arrays) == 1


def _none(w: Any) -> Any:
    w.grad = None


def _double(w: Any) -> Any:
    w.grad *= 2.0


def _other(w: Any) -> Any:
    w.grad = ad.ones((LENGTH, WIDTH), dtype="f")


def _accumulated(w: Any) -> Any:
    (w * 3.0).sum().backward()


# what a user does between two calls; what is returned stays alive
BETWEEN: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda w: None,
    "the gradient is kept": lambda w: w.grad,
    "its elements are kept": lambda w: w.grad.numpy(),
    "a view is kept": lambda w: w.grad[5:].T,
    "it is None": _none,
    "it is changed in place": _double,
    "it is replaced": _other,
    "an eager backward adds to it": _accumulated,
}


@pytest.mark.parametrize("what", BETWEEN)
def test_gradients_that_a_user_has_are_not_changed(what: str) -> None:
    (wanted, w, _), (step, v, _) = make(), make()
    compiled = ad.compile(step, backend="replay")
    kept: list[tuple[Any, bytes]] = []
    for k in range(6):
        assert compiled(*batch(k)).numpy().tobytes() == wanted(*batch(k)).numpy().tobytes()
        assert bits(v) == bits(w)
        BETWEEN[what](w)
        seen = BETWEEN[what](v)
        if seen is not None:
            kept.append((seen, np.asarray(seen).tobytes()))
        for each, before in kept:
            assert np.asarray(each).tobytes() == before


class StopError(Exception):
    pass


@pytest.mark.parametrize("where", ["in the update", "while it is written", "in the function"])
def test_a_call_that_fails_restores_the_gradient(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (wanted, w, _), (step, v, o) = make(), make()
    compiled = ad.compile(step, backend="replay")
    for k in range(2):
        compiled(*batch(k)), wanted(*batch(k))
    before, grad = bits(v), v.grad
    array = id(grad._data)
    del grad
    with monkeypatch.context() as patched:
        ((table, _),) = compiled._variants[0].built.tables
        untake = table.untake

        def stopped(self: Any, *_: Any) -> None:
            raise StopError

        def half(g: Any, rows: Any, out: Any = None, **params: Any) -> Any:
            untake(g[:5], rows[:5], out=out, **params)
            raise StopError

        rows, t = batch(3)
        error: Any = StopError
        if where == "in the update":
            patched.setattr(_HostUpdate, "__call__", stopped)
        elif where == "while it is written":
            table.untake = half
        else:
            rows, error = rows + 10 * LENGTH, IndexError
        for _ in range(2):
            with pytest.raises(error):
                compiled(rows, t)
            assert bits(v) == before
        table.untake = untake
    assert o.step_count == 2
    for k in range(4, 7):
        compiled(*batch(k)), wanted(*batch(k))
        assert bits(v) == bits(w)
        assert id(v.grad._data) == array


def test_the_program_itself_returns_the_gradient_of_a_table_that_it_reads() -> None:
    """A gradient that is returned, or that another instruction reads, is made anew at each call."""
    w = nn.Parameter(np.zeros((LENGTH, WIDTH), "f"))

    @ad.compile(backend="replay")
    def step(rows: Any, t: Any) -> Any:
        w.grad = None
        ((ad.take(w, rows, axis=0) - t) ** 2).sum().backward()
        return w.grad, (w.grad * w.grad).sum()

    found = []
    for k in range(3):
        rows, t = batch(k)
        g, norm = step(rows, t)
        expected = np.zeros((LENGTH, WIDTH), "f")
        np.add.at(expected, rows, -2 * t)
        found.append((g, expected))
        assert abs(norm.item() / np.square(expected, dtype="d").sum() - 1) < 1e-5
    for g, expected in found:
        assert np.array_equal(g.numpy(), expected)
