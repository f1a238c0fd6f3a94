"""Updates of parameters whose gradient has a few rows: the same numbers as in eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import adjoint as ad
from adjoint import optim
from adjoint.compiler.host import entry

# of eager code: the table has infinities
pytestmark = pytest.mark.filterwarnings("ignore:.*(invalid|overflow) value encountered:RuntimeWarning")

ROWS, WIDTH = 3000, 7
SPECIAL = (-0.0, 0.0, np.nan, np.inf, -np.inf, 1e-45)
INDICES: dict[str, Any] = {
    "one": [5],
    "none": [],
    "twice": [3, 3, 3, 0],
    "from the end": [-1, ROWS - 1, -ROWS, 0],
    "random": np.random.default_rng(3).integers(-ROWS, ROWS, 40),
    "rows": np.random.default_rng(4).integers(0, ROWS, (3, 5)),
}


def table(dtype: Any) -> Any:
    """Return an array in which special values are in every column."""
    found = np.random.default_rng(0).integers(-8, 8, (ROWS, WIDTH)).astype(dtype)
    found[::11, ::2] = np.resize(SPECIAL, found[::11, ::2].shape)
    return found


def slopes(i: Any, dtype: Any) -> Any:
    """Return gradients of rows whose sums are exact."""
    found = np.random.default_rng(1).integers(-8, 8, (*np.shape(i), WIDTH)) / 4
    return found.astype(dtype)


def assert_same(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(np.signbit(a) & ~np.isnan(a), np.signbit(b) & ~np.isnan(b))


def compare(
    i: Any, dtype: Any, update: Callable[[Any, Any], Any], zero: str, calls: int = 3, exact: bool = True
) -> Any:
    """Compare an eager and a compiled step; return the compiled function."""
    i, c = np.array(i, np.int64), ad.tensor(slopes(i, dtype))
    losses: list[Any] = []
    params: list[Any] = []
    steps = []
    for _ in range(2):
        w = ad.tensor(table(dtype), requires_grad=True)
        opt = update(w, None)
        params.append(w)

        def step(i: Any, w: Any = w, opt: Any = opt) -> Any:
            if zero == "first":
                opt.zero_grad()
            loss = (ad.take(w, i, axis=0) * c).sum()
            loss.backward()
            opt.step()
            if zero == "last":
                opt.zero_grad()
            return loss

        steps.append(step)
    steps[1] = ad.compile(steps[1], backend="native")
    same = assert_same if exact else lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6)
    for _ in range(calls):
        losses = [step(i) for step in steps]
        same(*[w._data for w in params])
        assert (params[0].grad is None) == (params[1].grad is None)
        if params[0].grad is not None:
            assert_same(params[0].grad._data, params[1].grad._data)
    np.testing.assert_allclose(*[x.numpy() for x in losses], 1e-5)
    return steps[1]


def native_of(step: Any) -> Any:
    return step._variants[0].native


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("zero", ["first", "last", "never"])
@pytest.mark.parametrize("which", INDICES)
def test_sgd_has_the_bits_of_eager_code(which: str, zero: str, dtype: Any) -> None:
    step = compare(INDICES[which], dtype, lambda w, _: optim.SGD([w], lr=0.5), zero)
    if zero != "never" and which != "none":
        assert [
            g.domain for g in native_of(step).groups if g.kind == "loop" and ROWS * WIDTH in g.domain
        ] == []


OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "momentum": lambda w, _: optim.SGD([w], lr=0.5, momentum=0.5),
    "decay": lambda w, _: optim.SGD([w], lr=0.5, weight_decay=0.25),
    "maximize": lambda w, _: optim.SGD([w], lr=0.5, maximize=True),
    "no rate": lambda w, _: optim.SGD([w], lr=0.0),
    "Adam": lambda w, _: optim.Adam([w], lr=0.5),
    "AdamW": lambda w, _: optim.AdamW([w], lr=0.5),
    "Adagrad": lambda w, _: optim.Adagrad([w], lr=0.5),
    "RMSprop": lambda w, _: optim.RMSprop([w], lr=0.5),
}


@pytest.mark.parametrize("zero", ["first", "last"])
@pytest.mark.parametrize("kind", OTHERS)
def test_other_updates(kind: str, zero: str) -> None:
    exact = kind in ("momentum", "maximize", "no rate")
    compare(INDICES["random"], np.float32, OTHERS[kind], zero, exact=exact)


def test_parameters_and_gradients_stay_where_they_are() -> None:
    w = ad.tensor(np.ones((ROWS, WIDTH), np.float32), requires_grad=True)
    opt = optim.SGD([w], lr=0.5)

    def step(i: Any) -> Any:
        opt.zero_grad()
        loss = ad.take(w, i, axis=0).sum()
        loss.backward()
        opt.step()
        return loss

    compiled = ad.compile(step, backend="native")
    i = np.array([1, 2, 1])
    for _ in range(3):
        compiled(i)
    assert w.grad is not None
    places = w._data.ctypes.data, w.grad._data.ctypes.data
    compiled(i)
    if entry.layout() is not None:
        assert (w._data.ctypes.data, w.grad._data.ctypes.data) == places
    held = w._data  # now it must not be written
    before = held.copy()
    compiled(i)
    assert_same(held, before)
    assert w._data[1, 0] == 1 - 5 * 0.5 * 2
    with pytest.raises(IndexError):
        compiled(np.array([1, ROWS, 1]))
    assert w._data[1, 0] == 1 - 5 * 0.5 * 2 and w.grad._data[1, 0] == 2


RATES = (0.5, 0.0, -0.0, -0.5, np.inf, -np.inf, np.nan)


@pytest.mark.parametrize("sign", ["minus", "plus"])
def test_any_rate(sign: str) -> None:
    i = np.array([7, 7, -1])
    both = [ad.tensor(table(np.float32), requires_grad=True) for _ in range(2)]

    def step(w: Any, rate: Any) -> None:
        (ad.take(w, i, axis=0) * 2).sum().backward()
        with ad.no_grad():
            if sign == "minus":
                w -= rate * w.grad
            else:
                w += rate * -w.grad
        w.grad = None

    compiled = ad.compile(lambda rate: step(both[1], rate), backend="native")
    for rate in RATES:
        start = table(np.float32)
        for w in both:
            with ad.no_grad():
                w[...] = start
        step(both[0], rate)
        compiled(rate)
        assert_same(both[0]._data, both[1]._data)


def test_clipped_gradients() -> None:
    both = [ad.tensor(np.ones((ROWS, WIDTH)), requires_grad=True) for _ in range(2)]
    opts = [optim.SGD([w], lr=0.5) for w in both]
    i = np.array([1, 2, 1])

    def step(w: Any, opt: Any) -> Any:
        opt.zero_grad()
        (ad.take(w, i, axis=0) ** 2).sum().backward()
        ad.clip_grad_norm([w], 0.1)
        opt.step()

    compiled = ad.compile(lambda: step(both[1], opts[1]), backend="native")
    for _ in range(3):
        step(both[0], opts[0])
        compiled()
        np.testing.assert_allclose(both[0]._data, both[1]._data, 1e-12)
