"""Integers as arguments, and numbers outside that change: programs read them at each call."""

from __future__ import annotations

import functools
import json
import math
import random
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from program_texts import run_text

import adjoint as ad
from adjoint import nn, optim
from adjoint.errors import ArgumentError, ShapeError

F = nn.functional
x64, x32, x8 = (ad.tensor(np.array([1, 2, 3], d)) for d in ("d", "f", "b"))
xi, xb = ad.tensor([1, 2, 3]), ad.tensor([True, False, True])

# One program for all values of k, besides that of the first value.
TRACED = """
x32 * k
x64 * k + 1 / (k + 1)
0.9 ** k * x32
xi + k
xi // k
xi > k
x8 < k * 100
xb * k
ad.where(ad.arange(3) < k, x32, 0)
ad.where(k > 2, x32, -x32)
(k > 2) * x32
x64 * (k // 3 + k % 3 - (k << 2) + (k & 1) + ~k)
(k, k + 1)
10 ** 30 * k
ad.clip(xi, 0, k)
ad.clip(x32, -k, k)
np.int64(k) * x32 if k is None else np.int64(2) * k
ad.grad(lambda v: (v ** 2).sum() * k)(x32)
ad.vmap(lambda v: v * k)(x32)
ad.tensor(k)
ad.full((2,), k)
type(k) is int
isinstance(k, int) and k is not None
math.floor(k) * x32
divmod(k, 2)
x32[ad.arange(2) + k % 2]
""".strip().splitlines()

# Python reads the value: one program for each result of that.
READ = """
x32.sum(axis=k % 1)
x32.reshape(k - k + 3, 1)
x32[k % 3]
x32[: k % 3 + 1]
ad.roll(x32, k)
ad.zeros(k)
[x32 * i for i in range(k)]
x32 ** k
2 ** -k
[1, 2, 3][k % 3]
{2: 1.0, 3: 2.0}.get(k, 0.0)
f'{k:03d}'
'%d' % k
np.zeros(k)
np.arange(k) * x32.sum()
k * [1.0]
min(k, 3) * x32
x32 if k % 2 == 0 else -x32
[x32, x64][k % 2]
ad.linspace(0, 1, k)
ad.repeat(x32, k)
ad.topk(x32, k % 3 + 1)[0]
math.sqrt(k) * x32
k.bit_length()
round(k)
ad.fori_loop(0, k, lambda i, c: c * 1.5, x32)
ad.linalg.norm(x32, k)
""".strip().splitlines()

# C code takes only plain numbers.
PLAIN = """
json.dumps({'k': k})
F.one_hot(xi, k + 4)
""".strip().splitlines()


def described(value: Any) -> Any:
    """Return what must be equal: arrays as bytes with their dtype, numbers with their type."""
    if isinstance(value, ad.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return value.shape, str(value.dtype), value.tobytes()
    return [described(v) for v in value] if isinstance(value, list | tuple) else (type(value), value)


@pytest.mark.filterwarnings("ignore:.*for each length of the range")
@pytest.mark.parametrize("expression", TRACED + READ + PLAIN)
def test_an_integer_as_an_argument(expression: str) -> None:
    space = {**globals()}
    run_text(f"f = lambda k: {expression}", space)
    f, compiled = space["f"], ad.compile(space["f"], backend="replay", limit=20)
    values = (2, 3, 5, 4, 2)
    for k in values:
        assert described(compiled(k)) == described(f(k))
    if expression in TRACED:
        assert compiled.stats()["traces"] == 2


@pytest.mark.filterwarnings("ignore:.*for each length of the range")
@pytest.mark.parametrize("expression", TRACED + READ)
def test_an_integer_in_native_code(expression: str) -> None:
    pytest.importorskip("llvmlite")
    space = {**globals()}
    run_text(f"f = lambda k: {expression}", space)
    f, compiled = space["f"], ad.compile(space["f"], backend="native", limit=20)
    for k in (2, 3, 5, 2**70 if expression in TRACED[:3] else 4):
        for found, wanted in zip(ad.tree.leaves(compiled(k)), ad.tree.leaves(f(k)), strict=True):
            if isinstance(
                wanted, ad.Tensor | np.ndarray
            ):  # tensors become arrays, because no argument is one
                assert found.dtype == wanted.dtype
                np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-5)
            else:
                assert type(found) is type(wanted) and found == wanted


def test_integers_far_outside_of_a_dtype_raise_as_in_eager_mode() -> None:
    compiled = ad.compile(lambda k: x8 + k)
    for k in (1, 2, 3):
        assert compiled(k).tolist() == (x8 + k).tolist()
    with pytest.raises(ArgumentError, match="out of range for int8, int"):
        compiled(300)
    divided = ad.compile(lambda x, k: x * (6 / k))
    for k in (1, 2, 3, 2):
        assert divided(x64, k).tolist() == (x64 * (6 / k)).tolist()
    with pytest.raises(ZeroDivisionError):
        divided(x64, 0)
    assert divided(x64, 3).tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(ShapeError):
        ad.compile(lambda k: x64.reshape(k, 2))(5)


RAISING: list[Callable[[int], Any]] = [
    lambda k: 1 / (k - 3), lambda k: 6 // k, lambda k: 6 % k, lambda k: 2.0**k, lambda k: 1 << k,
    lambda k: 0.0**k, lambda k: float(k), lambda k: math.exp(k),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["replay", "auto", "native"])
@pytest.mark.parametrize("seed", range(len(RAISING)))
def test_a_function_may_catch_the_errors_of_numbers(seed: int, backend: str) -> None:
    def f(x: Any, k: int) -> Any:
        try:
            return x * RAISING[seed](k)
        except (ArithmeticError, ValueError):
            return x * 7

    rng = random.Random(seed)
    for first in (1, 3, 0, -2, 2000, 10**400):
        compiled = ad.compile(f, backend=backend, limit=50)
        for k in (first, *rng.choices((-2, -1, 0, 1, 2, 3, 4, 2000), k=12)):
            if k < 2001 or seed > 5:  # a shift by 10**400 takes all memory
                np.testing.assert_array_equal(compiled(x64, k).numpy(), f(x64, k).numpy())


def small() -> tuple[Any, Any, Any, Any]:
    model = nn.Sequential(nn.Linear(3, 4, rng=0), nn.Tanh(), nn.Linear(4, 1, rng=1)).astype(np.float64)
    rng = np.random.default_rng(0)
    x, y = ad.tensor(rng.normal(size=(5, 3))), ad.tensor(rng.normal(size=(5, 1)))
    return model, optim.AdamW(model.parameters(), lr=0.01), x, y


def by_attribute() -> tuple[Callable[[], Any], Callable[[], Any]]:
    class Training:
        def __init__(self) -> None:
            self.model, self.optimizer, self.x, self.y = small()
            self.step_no, self.rate, self.last = 0, 1.0, None

        def step(self) -> Any:
            self.step_no += 1
            self.rate *= 0.9
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(self.x), self.y) * self.rate / self.step_no
            loss.backward()
            self.optimizer.step()
            self.last = self.step_no * 2
            return loss

    training = Training()
    return training.step, lambda: (training.step_no, training.rate, training.last)


def by_decorator() -> tuple[Callable[[], Any], Callable[[], Any]]:
    model, optimizer, x, y = small()

    def counted(f: Any) -> Any:
        @functools.wraps(f)
        def wrapper(*args: Any) -> Any:
            wrapper.calls += 1  # type: ignore[attr-defined]
            return f(*args)

        wrapper.calls = 0  # type: ignore[attr-defined]
        return wrapper

    @counted
    def step() -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda: step.calls


def by_dictionary() -> tuple[Callable[[], Any], Callable[[], Any]]:
    model, optimizer, x, y = small()
    state: dict[str, Any] = {"n": 0, "seen": 0.5}

    def step() -> Any:
        state["n"] += 1
        state.update(seen=state["seen"] + len(x), half=state["n"] / 2)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y) + 0.1 * state["n"]
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda: dict(state)


def by_closure() -> tuple[Callable[[], Any], Callable[[], Any]]:
    total, (_, _, x, _) = 0, small()

    def step() -> Any:
        nonlocal total
        total = total + 3
        if total > 20:
            total = 1
        return x * total

    return step, lambda: total


def by_module() -> tuple[Callable[[], Any], Callable[[], Any]]:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.layer, self.calls = nn.Linear(3, 2, rng=0), 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return self.layer(x) * self.calls

    net, (_, _, x, _) = Net().astype(np.float64), small()
    return lambda: net(x), lambda: net.calls


STEPS = (by_attribute, by_decorator, by_dictionary, by_closure, by_module)


@pytest.mark.parametrize("mode", [True, "check"])
@pytest.mark.parametrize("backend", ["replay", "auto"])
@pytest.mark.parametrize("make", STEPS)
def test_numbers_that_a_step_changes(make: Any, backend: str, mode: Any) -> None:
    (eager, wanted), (f, found) = make(), make()
    compiled = ad.compile(f, backend=backend)
    close: Any = np.testing.assert_array_equal if backend == "replay" else np.testing.assert_allclose
    with ad.config.compiling(mode):
        for _ in range(12):
            close(compiled().numpy(), eager().numpy())
            assert found() == wanted()
    traces = compiled.stats()["traces"]
    assert traces == 2 or (make is by_closure and traces == 3)  # the branch has a program of its own
    if make is not by_closure:
        for _ in range(3):
            close(compiled().numpy(), eager().numpy())
        assert found() == wanted() and compiled.stats()["traces"] == traces


def test_a_number_outside_that_changes_twice_is_read_at_each_call() -> None:
    config = types.SimpleNamespace(k=1, scale=0.5)
    compiled = ad.compile(lambda x: x * config.k * config.scale)
    for k in range(10):
        config.k = k
        assert compiled(x64).tolist() == (x64 * k * 0.5).tolist()
    assert compiled.stats()["traces"] == 3
    config.k = 2.5  # type: ignore[assignment]  # another type
    assert compiled(x64).tolist() == (x64 * 2.5 * 0.5).tolist()
    assert compiled.stats()["traces"] == 4
    del config.k
    with pytest.raises(AttributeError):
        compiled(x64)


def test_a_trace_that_fails_leaves_numbers_as_eager_mode_does() -> None:
    owner = types.SimpleNamespace(n=0, bad=False)

    def f(x: Any) -> Any:
        owner.n += 1
        if owner.bad:
            raise RuntimeError("bad")
        return x * owner.n

    compiled = ad.compile(f)
    for k in range(1, 5):
        assert compiled(x64).tolist() == (x64 * k).tolist()
    owner.bad = True
    with pytest.raises(RuntimeError, match="bad"):
        compiled(x64)
    assert owner.n == 5 and type(owner.n) is int
    owner.bad = False
    assert compiled(x64).tolist() == (x64 * 6).tolist()
    assert "owner.n" in compiled.program(x64) and owner.n == 6


def test_numbers_in_lists_are_plain() -> None:
    log: list[Any] = []
    owner = types.SimpleNamespace(n=0)

    def f(x: Any) -> Any:
        owner.n += 1
        log.append(owner.n)
        return x * owner.n

    compiled = ad.compile(f, limit=99)
    for k in range(1, 6):
        assert compiled(x64).tolist() == (x64 * k).tolist()
    assert log == [1, 2, 3, 4, 5] and json.dumps(log)


def test_a_range_that_changes_warns_once() -> None:
    def powers(x: Any, k: int) -> Any:
        for _ in range(k):
            x = x * 2
        return x

    compiled = ad.compile(powers)
    for k in (1, 2):
        assert compiled(x64, k).tolist() == powers(x64, k).tolist()
    line = powers.__code__.co_firstlineno + 1
    message = (
        f"ad.compile: powers is traced for each length of the range at {__file__}:{line}.\n  Use ad.fori_loop or "
        "ad.scan, which trace the body once, or list the argument in static= if a program per length is meant.  "
        "ad.config.hints(False) turns hints off."
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        assert compiled(x64, 3).tolist() == powers(x64, 3).tolist()
    for k in (4, 2):
        assert compiled(x64, k).tolist() == powers(x64, k).tolist()
    assert compiled.stats()["traces"] == 4
    static = ad.compile(powers, static="k")
    for k in (1, 2, 3, 4):
        assert static(x64, k).tolist() == powers(x64, k).tolist()
    assert static.stats()["traces"] == 4
