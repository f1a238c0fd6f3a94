"""A training step that reads many kinds of things, and random changes of them between its calls."""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import nn, optim, tree


class World:
    """A model, an optimiser, an average, statistics, a generator, and plain data that a step reads."""

    def __init__(self, seed: int) -> None:
        self.model = nn.Sequential(
            nn.Linear(4, 3, rng=0), nn.Tanh(), nn.Dropout(0.2, rng=2), nn.Linear(3, 2, rng=1)
        )
        self.params = list(self.model.parameters())
        kinds: list[Any] = [optim.SGD, optim.Adam, optim.RMSprop]
        self.opt = kinds[seed % 3](self.params, lr=0.01)
        self.average = optim.EMA(self.params, 0.9)
        self.mean = ad.tensor(np.zeros(2))
        self.settings = types.SimpleNamespace(k=1.0, inner=types.SimpleNamespace(z=[0.5]))
        self.table = {"noise": 1.0}
        self.array, self.index = np.ones(2), np.array([1, 0])
        self.rng = ad.random.default_rng(5)
        self.hooks: list[Any] = []
        self.kept: list[Any] = []
        self.saved: Any = None

    def step(self, x: Any, y: Any = None, scale: float = 1.0, flag: bool = False) -> Any:
        self.opt.zero_grad()
        h = self.model(x) * self.settings.k + ad.multiply(self.array, self.settings.inner.z[0])
        if flag:
            h = h[:, self.index]
        if y is not None:
            h = h - y
        h = h + self.rng.normal(size=(1, 2)) * 0.01 * self.table["noise"]
        loss = (h * h).mean() * scale
        loss.backward()
        ad.clip_grad_norm(self.params, 1.0)
        self.opt.step()
        self.average.update()
        with ad.no_grad():
            self.mean.copy_(self.mean * 0.9 + h.detach().mean(0) * 0.1)
        return loss, h.detach()

    def save(self) -> None:
        owners = (self.model, self.opt, self.average)
        self.saved = copy.deepcopy([o.state_dict() for o in owners])

    def load(self) -> None:
        if self.saved is not None:
            for owner, state in zip(
                (self.model, self.opt, self.average), copy.deepcopy(self.saved), strict=True
            ):
                owner.load_state_dict(state)

    def halve(self) -> None:
        with ad.no_grad():
            self.params[2].copy_(self.params[2] * 0.5)

    def add_hook(self) -> None:
        if self.params[1].requires_grad:
            self.hooks.append(self.params[1].register_hook(lambda g: g * self.settings.k * 0.1))

    def log(self) -> list[Any]:
        """Return copies of all state, as leaves."""
        grads = [p.grad for p in self.params]
        owners = [o.state_dict() for o in (self.model, self.opt, self.average)]
        found = tree.leaves([owners, self.mean, self.kept, [g for g in grads if g is not None]])
        frozen = [p.requires_grad for p in self.params], [g is None for g in grads]
        return [*map(_copied, found), frozen, self.rng.state]


def _copied(leaf: Any) -> Any:
    return np.array(leaf.detach().numpy() if isinstance(leaf, ad.Tensor) else leaf)


Event = Callable[[World, float], Any]
EVENTS: list[Event] = [
    lambda w, v: setattr(w.settings, "k", v),
    lambda w, v: w.settings.inner.z.__setitem__(0, v),
    lambda w, v: setattr(w.settings, "inner", types.SimpleNamespace(z=[v])),
    lambda w, v: w.table.update(noise=v),
    lambda w, v: w.array.fill(v),
    lambda w, v: w.index.__setitem__(slice(None), w.index[::-1].copy()),
    lambda w, v: setattr(w.opt, "lr", 0.01 * v),
    lambda w, v: w.params[0].requires_grad_(not w.params[0].requires_grad),
    lambda w, v: w.model.train(not w.model.training),
    lambda w, v: w.save(),
    lambda w, v: w.load(),
    lambda w, v: w.add_hook(),
    lambda w, v: w.hooks.append(w.model.register_forward_hook(lambda m, a, y: y * w.settings.k)),
    lambda w, v: w.hooks and w.hooks.pop().remove(),
    lambda w, v: setattr(w.model[2], "p", 0.0 if v < 0.6 else 0.5),
    lambda w, v: setattr(w.params[2], "grad", None),
    lambda w, v: w.kept.extend([w.params[0].detach(), w.params[2].detach().numpy()]),
    lambda w, v: w.kept.clear(),
    lambda w, v: setattr(w.rng, "state", ad.random.default_rng(int(99 * v)).state),
    lambda w, v: w.mean.copy_(w.mean * 0),
    lambda w, v: w.halve(),
    lambda w, v: setattr(w.average, "decay", 0.5 * v),
]
CALLS: list[tuple[str, Any]] = [
    ("y", None),
    ("y", 1.0),
    ("scale", 0.3),
    ("flag", True),
    ("mode", "check"),
    ("mode", False),
]


def run(seed: int, wrap: Any, calls: int) -> list[list[Any]]:
    """Call the step with changes in between; ``wrap`` compiles it.  Returns the log of each call."""
    w, r = World(seed), np.random.default_rng(seed)
    step, log = wrap(w.step), []
    for _ in range(calls):
        v = float(r.uniform(0.2, 1.0))
        if r.random() < 0.5:
            EVENTS[r.integers(len(EVENTS))](w, v)
        x = r.normal(size=(int(r.choice([4, 4, 3])), 4)).astype("f")
        named = dict([CALLS[r.integers(len(CALLS))]] if r.random() < 0.3 else [])
        mode = named.pop("mode", True)
        with ad.config.compiling(mode) if mode is not True else contextlib.nullcontext():
            found = step(ad.asarray(np.asfortranarray(x) if v < 0.3 else x), **named)
        log.append([*map(_copied, found), *w.log()])
    return log
