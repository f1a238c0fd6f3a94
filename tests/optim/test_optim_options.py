"""Hyper-parameters that change between steps, and states that are saved and loaded in between."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import optim

KINDS = ["SGD", "Adam", "AdamW", "NAdam", "RMSprop", "Adagrad", "Lion"]
NUMBERS = {
    "momentum": (0.0, 0.5, 0.9), "dampening": (0.0, 0.3), "weight_decay": (0.0, 0.1), "eps": (1e-8, 1e-3),
    "alpha": (0.9, 0.99), "lr_decay": (0.0, 0.1), "momentum_decay": (0.004, 0.1), "initial": (0.0, 0.5),
    "lr": (0.0, 0.01, 0.1, np.float32(0.05)),
}  # fmt: skip
SHAPES = [(3,), (), (2, 4), (20_000,)]  # the last one is updated on its own


def options(kind: str, rng: Any) -> dict[str, Any]:
    """Return random values for some of the hyper-parameters of an optimiser."""
    defaults = getattr(optim, kind)([ad.tensor(1.0, requires_grad=True)], lr=0.1).defaults
    found: dict[str, Any] = {}
    for name, value in defaults.items():
        if rng.random() < 0.5:
            continue
        if name == "betas":
            found[name] = (float(rng.choice([0.0, 0.5, 0.9])), float(rng.choice([0.5, 0.999])))
        elif isinstance(value, bool):
            found[name] = bool(rng.random() < 0.5)
        else:
            found[name] = NUMBERS[name][rng.integers(len(NUMBERS[name]))]
    if kind == "SGD":
        found.setdefault("nesterov", False)
        found |= {"momentum": 0.9, "dampening": 0.0} if found["nesterov"] else {}
    return found


class Run:
    """An optimiser that makes steps; its hyper-parameters change, and its state is saved and loaded."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.kind = KINDS[seed % len(KINDS)]
        dtypes = [np.float32, np.float64, np.complex64]
        self.params = []
        for i in rng.permutation(len(SHAPES))[: rng.integers(1, 5)]:
            values = rng.normal(size=SHAPES[i]) if i < 3 else np.ones(SHAPES[i])
            self.params.append(ad.tensor(values.astype(dtypes[rng.integers(3)]), requires_grad=True))
        self.cut = int(rng.integers(len(self.params)))  # the number of parameters of a group of its own
        self.optimizer = self.made({})
        self.compiled = bool(rng.random() < 0.2)

    def made(self, given: dict[str, Any]) -> Any:
        groups = [{"params": self.params[self.cut :]}]
        if self.cut:
            groups.append({"params": self.params[: self.cut], "lr": 0.02})
        return getattr(optim, self.kind)(groups, **{"lr": 0.01, **given})

    def step(self, mask: Any) -> None:
        for p, used in zip(self.params, mask, strict=True):
            p.grad = (p.detach() * 0.5 + 0.1).astype(p.dtype) if used else None
        if self.compiled:
            optimizer = self.optimizer
            ad.compile(lambda: optimizer.step(), backend="replay")()
        else:
            self.optimizer.step()

    def change(self, group: int, given: dict[str, Any]) -> None:
        self.optimizer.groups[group % len(self.optimizer.groups)].hyper.update(given)

    def reload(self, how: int, given: dict[str, Any]) -> None:
        state = self.optimizer.state_dict()
        if how == 1:  # read only
            return
        if how == 2:
            state = pickle.loads(pickle.dumps(state))
        if how:
            self.optimizer = self.made(given)  # an optimiser with other hyper-parameters
        self.optimizer.load_state_dict(state)

    def bits(self) -> list[Any]:
        values = [p.numpy().tobytes() for p in self.params]
        states = [{k: v.tobytes() for k, v in self.optimizer.state_of(p).items()} for p in self.params]
        return [values, states, [g.hyper for g in self.optimizer.groups], self.optimizer.lr]


def check_reloaded(seed: int) -> None:
    """Run the same random steps and changes with and without saving and loading: all bits are equal."""
    plain, saved = Run(seed), Run(seed)
    rng, own = np.random.default_rng((seed, 1)), np.random.default_rng((seed, 2))
    for _ in range(int(rng.integers(3, 12))):
        event = rng.random()
        if event < 0.5:
            mask = rng.random(len(plain.params)) < 0.8
            plain.step(mask)
            saved.step(mask)
            assert plain.bits() == saved.bits(), f"seed {seed}"
        elif event < 0.9:
            group, given = int(rng.integers(2)), options(plain.kind, rng)
            plain.change(group, given)
            saved.change(group, given)
        else:
            rate = float(rng.choice([0.0, 0.03]))
            plain.optimizer.lr = saved.optimizer.lr = rate
        while own.random() < 0.4:
            saved.reload(int(own.integers(4)), options(saved.kind, own))
    plain.step([True] * len(plain.params))
    saved.step([True] * len(plain.params))
    assert plain.bits() == saved.bits(), f"seed {seed}"


@pytest.mark.parametrize("first", range(0, 140, 14))
def test_a_state_saved_after_a_change_of_options_continues_bit_for_bit(first: int) -> None:
    for seed in [*range(first, first + 14), 4580]:  # the last one: a rate that is a number of NumPy
        check_reloaded(seed)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("SGD", {}, {"momentum": 0.9}),
        ("SGD", {"momentum": 0.9}, {"momentum": 0.0}),
        ("Adam", {}, {"amsgrad": True}),
        ("AdamW", {"amsgrad": True}, {"amsgrad": False}),
        ("RMSprop", {}, {"centered": True, "momentum": 0.5}),
    ],
)
def test_a_state_is_loaded_after_a_change_of_options(kind: str, before: Any, after: Any) -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    optimizer = getattr(optim, kind)([w], lr=0.1, **before)
    (w * w).sum().backward()
    optimizer.step()
    optimizer.groups[0].hyper.update(after)
    state = optimizer.state_dict()
    kept = {name: v.copy() for name, v in optimizer.state_of(w).items()}
    optimizer.groups[0].hyper.update(before or dict.fromkeys(after, False))
    assert {n: v.tolist() for n, v in kept.items()} == {
        n: v.tolist() for n, v in optimizer.state_of(w).items()
    }, "reading the state changed it"
    optimizer.load_state_dict(state)
    assert all(optimizer.groups[0].hyper[name] == value for name, value in after.items())
    optimizer.step()
