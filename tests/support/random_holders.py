"""Random chains of holders between a function and a number that it reads: objects, modules, library functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import nn, optim, train
from adjoint.optim import schedules

Function = Callable[[Any], Any]


class Held:
    """An object with a function."""

    def __init__(self, f: Function) -> None:
        self.f = f

    def __call__(self, a: Any) -> Any:
        return self.f(a)

    def run(self, a: Any) -> Any:
        return self.f(a)


class Layer(nn.Module):
    """A module with a function and a number."""

    def __init__(self, f: Function | None = None) -> None:
        self.f, self.k = f, 2.0

    def forward(self, a: Any) -> Any:
        return self.f(a)


class Looped(nn.Module):
    """A module with a list of modules."""

    def __init__(self, *layers: Any) -> None:
        self.layers = nn.ModuleList(layers)

    def forward(self, a: Any) -> Any:
        for layer in self.layers:
            a = layer(a)
        return a


def call(f: Function, a: Any) -> Any:
    return f(a)


def composed(f: Function) -> Function:
    loss = train.compose({"t": (lambda p, t: f(p).sum(), schedules.constant(1.0))})
    return lambda a: a * loss(a, a)


def distance(f: Function) -> Function:
    loss = nn.TripletMarginWithDistanceLoss(
        distance_function=lambda a, b: ad.abs(f(a + b)).sum(-1), margin=1e3
    )
    return lambda a: a * loss(a[None], 2 * a[None], 3 * a[None])


def from_table(f: Function) -> Function:
    table = {"f": [f]}
    return lambda a: table["f"][0](a)


def mapped(f: Function) -> Function:
    g = ad.vmap(f)
    return lambda a: g(a[None])[0]


def kept(f: Function) -> Function:
    return lambda a: f(a)


HOLDERS: list[Callable[[Function], Function]] = [
    kept, Held, lambda f: Held(f).run, lambda f: functools.partial(call, f), from_table, Layer,
    lambda f: Looped(Layer(f)), lambda f: nn.Sequential(Layer(f), nn.Identity()), composed, distance, mapped,
    lambda f: ad.compile(f), lambda f: functools.partial(ad.checkpoint, f),
]  # fmt: skip


def number(kind: int) -> tuple[Callable[[], float], Callable[[], Any]]:
    """Return a function that reads a number, and one that changes it."""
    values, table, owner, layer = [2.0], {"k": 2.0}, Held(call), Layer()
    rows = nn.ModuleList([Layer(), Layer()])
    w = nn.Parameter(np.ones(2))
    optimizer, plateau = optim.SGD([w], lr=2.0), schedules.Plateau(2.0, patience=0, monitor="loss")
    warm = schedules.warmup(lambda step: values[0], 1)
    chain = schedules.sequence((schedules.constant(1.0), 2), plateau)
    owner.k = 2.0  # type: ignore[attr-defined]  # set on the instance only

    def report() -> None:
        for _ in range(3):
            plateau.report(1.0)

    set_value = functools.partial(values.__setitem__, 0, 3.0)
    kinds: list[tuple[Callable[[], float], Callable[[], Any]]] = [
        (lambda: values[0], set_value),
        (lambda: table["k"], lambda: table.update(k=3.0)),
        (lambda: owner.k, lambda: setattr(owner, "k", 3.0)),  # type: ignore[attr-defined]  # as above
        (lambda: layer.k, lambda: setattr(layer, "k", 3.0)),
        (lambda: rows[1].k, lambda: setattr(rows[1], "k", 3.0)),
        (lambda: sum(m.k for m in rows), lambda: rows.append(Layer())),
        (lambda: 1.0 + len(rows), lambda: rows.append(Layer())),
        (lambda: 1.0 + len(list(rows.parameters())), lambda: setattr(rows, "w", w)),
        (lambda: 1.0 + rows[0].training, lambda: rows.eval()),
        (lambda: warm(2), set_value),
        (lambda: plateau(0), report),
        (lambda: chain(4), report),
        (lambda: optimizer.lr, lambda: setattr(optimizer, "lr", 3.0)),
        (lambda: optimizer.groups[0].hyper["lr"], lambda: optimizer.groups[0].hyper.update(lr=3.0)),
    ]
    return kinds[kind % len(kinds)]


def check(seed: int) -> None:
    """Compare a compiled function with the function itself, before and after a number in it changes."""
    r = np.random.default_rng(seed)
    read, change = number(seed)
    f: Function = lambda a: a * read()
    names = []
    for k in r.integers(len(HOLDERS), size=r.integers(1, 4)):
        f = HOLDERS[k](f)
        names.append(int(k))
    compiled, x = ad.compile(f, backend="replay"), ad.tensor(np.arange(1.0, 4.0))
    for _ in range(2):
        np.testing.assert_allclose(compiled(x).numpy(), f(x).numpy(), err_msg=f"{seed}: {names}")
    change()
    for _ in range(2):
        np.testing.assert_allclose(compiled(x).numpy(), f(x).numpy(), err_msg=f"{seed}: {names}, changed")
    assert compiled.stats()["traces"] == 2, (seed, names, compiled.stats())
