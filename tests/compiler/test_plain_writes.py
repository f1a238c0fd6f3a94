"""Functions that write plain data, which they also read, do the same compiled as eagerly."""

from __future__ import annotations

import collections
import functools
import heapq
import types
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn
from adjoint.errors import TransformError

_global = 0


class Ticker(nn.Module):
    """A module with a number and a list that return to their first values."""

    n = 0

    def __init__(self) -> None:
        super().__init__()
        self.order = [1.0, 2.0, 3.0]

    def forward(self, x: Any) -> Any:
        self.n = (self.n + 1) % 2
        self.order.append(self.order.pop(0))
        return x.sum() * self.order[0] + self.n


class Slots:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, x: Any) -> Any:
        self.n = (self.n + 1) % 2
        return x.sum() * self.n


def of_container(container: Any, change: Callable[[Any], Any], read: Callable[[Any], Any]) -> Any:
    """Return a function that changes a container, and multiplies by a number that it reads from it."""

    def f(x: Any) -> Any:
        change(container)
        return x.sum() * read(container)

    return f


def of_object(owner: Any) -> Any:
    """Return a function that counts to 3 in an attribute."""

    def f(x: Any) -> Any:
        owner.n = (owner.n + 1) % 3
        return x.sum() if owner.n else -x.sum()

    return f


def of_closure() -> Any:
    def counter() -> Any:
        n = 0

        def tick() -> int:
            nonlocal n
            n = (n + 1) % 2
            return n

        return tick

    tick = counter()
    return lambda x: x.sum() * tick()


def of_global() -> Any:
    global _global
    _global = 0

    def f(x: Any) -> Any:
        global _global
        _global = (_global + 1) % 2
        return x.sum() * _global

    return f


def of_setattr() -> Any:
    owner = types.SimpleNamespace(n=0)

    def f(x: Any) -> Any:
        setattr(owner, "n", (owner.n + 1) % 2)  # noqa: B010
        return x.sum() * owner.n

    return f


def of_default() -> Any:
    def f(x: Any, seen: list[int] = [0]) -> Any:  # noqa: B006
        seen[0] ^= 1
        return x.sum() * seen[0]

    return f


def of_buffers() -> Any:
    owner = types.SimpleNamespace(a=ad.ones(3), b=ad.full(3, 2.0))

    def f(x: Any) -> Any:
        owner.a, owner.b = owner.b, owner.a
        return (x * owner.a).sum()

    return f


def of_objects() -> Any:
    each = [types.SimpleNamespace(n=0)]

    def f(x: Any) -> Any:
        for one in each:
            one.n ^= 1
        return x.sum() * each[0].n

    return f


def of_partial() -> Any:
    def f(seen: list[int], x: Any) -> Any:
        seen[0] ^= 1
        return x.sum() * seen[0]

    return functools.partial(f, [0])


def xor(container: Any, key: Any = 0) -> None:
    container[key] ^= 1


MAKERS: dict[str, Callable[[], Any]] = {
    "module": Ticker,
    "layer": lambda: nn.Sequential(Ticker()),
    "slots": Slots,
    "attribute": lambda: of_object(types.SimpleNamespace(n=0)),
    "class": lambda: of_object(type("Owner", (), {"n": 0})),
    "closure": of_closure,
    "global": of_global,
    "setattr": of_setattr,
    "default": of_default,
    "buffers": of_buffers,
    "objects": of_objects,
    "partial": of_partial,
    "list": lambda: of_container([1, 2, 3], lambda c: c.append(c.pop(0)), lambda c: c[0]),
    "deque": lambda: of_container(collections.deque([1, 2]), lambda c: c.rotate(1), lambda c: c[0]),
    "dict": lambda: of_container({"n": 0}, lambda c: c.update(n=1 - c["n"]), lambda c: c["n"]),
    "nested": lambda: of_container({"a": [[0]]}, lambda c: xor(c["a"][0]), lambda c: c["a"][0][0]),
    "set": lambda: of_container({1}, lambda c: c.symmetric_difference_update({2}), len),
    "bytes": lambda: of_container(bytearray(1), xor, lambda c: c[0]),
    "heap": lambda: of_container([0, 1], lambda c: heapq.heapreplace(c, 3 - c[0]), lambda c: c[0]),
}


@pytest.mark.parametrize("mode", [True, "check"])
@pytest.mark.parametrize("name", MAKERS)
def test_plain_data_that_returns_to_an_earlier_value(name: str, mode: Any) -> None:
    x = np.array([1.0, 2.0, 3.0])
    eager = MAKERS[name]()
    wanted = [eager(ad.tensor(x)).item() for _ in range(7)]
    compiled = ad.compile(MAKERS[name](), backend="replay")
    with ad.config.compiling(mode):
        assert [float(compiled(x)) for _ in range(7)] == wanted


def test_a_function_that_changes_what_it_reads_says_so() -> None:
    owner = types.SimpleNamespace(n="")

    def changes(x: Any) -> Any:
        owner.n = f"{owner.n}a"
        return x.sum() * len(owner.n)

    f = ad.compile(changes, limit=2)
    f(np.ones(3))
    f(np.ones(3))
    with pytest.warns(UserWarning, match=r"traced 3 times, because it changes .*owner\.n, which it also"):
        f(np.ones(3))
    f(np.ones(3))
    stats = f.stats()
    assert (stats["traces"], len(stats["programs"])) == (4, 1)
    assert "the function changes" in stats["reasons"][1]
    assert "owner.n, which it also reads" in stats["reasons"][1]


def test_programs_that_run_once_delete_no_other_program() -> None:
    state = types.SimpleNamespace(n=0)

    def f(x: Any) -> Any:
        if x.ndim:
            state.n += 1
            return x.sum() * state.n
        return x * 2

    f = ad.compile(f, limit=3)
    f(np.ones(()))  # its guard on the count fails afterwards, but the program is kept
    for k in range(2):
        assert f(np.ones(3)) == 3 * (k + 1)
    state.n = 0
    assert f(np.ones(())) == 2
    assert f.stats()["traces"] == 3


def test_a_value_that_is_made_once_needs_one_more_trace() -> None:
    cache: dict[int, float] = {}

    def f(x: Any) -> Any:
        if len(x) not in cache:
            cache[len(x)] = 1 / len(x)
        return x.sum() * cache[len(x)]

    f = ad.compile(f)
    assert [float(f(np.ones(4))) for _ in range(4)] == [1.0] * 4
    assert f.stats()["traces"] == 2


def test_check_compares_plain_data() -> None:
    queue, state = SimpleQueue[int](), types.SimpleNamespace(n=0)

    def f(x: Any) -> Any:
        state.n += 0 if queue.empty() else 1  # the state of an object of C is not guarded
        return x * 2

    f = ad.compile(f)
    with ad.config.compiling("check"):
        f(np.ones(3))
        queue.put(1)
        with pytest.raises(TransformError, match=r"state\.n has different values"):
            f(np.ones(3))


def test_check_restores_variables_behind_properties_and_deleted_ones() -> None:
    class Owner:
        rate = 1.5

        @property
        def double(self) -> float:  # a new object at each access
            return self.rate * 2

    owner, state = Owner(), types.SimpleNamespace(n=2)

    def f(x: Any) -> Any:
        found = x.sum() * owner.double * state.n
        del state.n
        return found

    f = ad.compile(f)
    with ad.config.compiling("check"):
        assert f(np.ones(3)) == 18
    assert not hasattr(state, "n")
