"""Optimisers whose state is in slices, one per rank: the same bits as whole ones."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import distributed, nn, optim, train
from adjoint.distributed import Group
from adjoint.errors import InputError

MADE: dict[str, Any] = {
    "SGD": lambda p, **o: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, **o),
    "Adam": lambda p, **o: optim.Adam(p, amsgrad=True, weight_decay=0.1, **o),
    "AdamW": lambda p, **o: optim.AdamW([{"params": p[:2], "lr": 0.1}, {"params": p[2:]}], **o),
    "NAdam": optim.NAdam,
    "RMSprop": lambda p, **o: optim.RMSprop(p, centered=True, momentum=0.5, **o),
    "Adagrad": optim.Adagrad,
    "Lion": optim.Lion,
}


def parameters() -> list[ad.Tensor]:
    """Small and large ones, one of a single number, one complex, one of rows."""
    rng = np.random.default_rng(0)
    shapes = [(3, 5), (), (300, 70), (7,), (40, 3)]
    made = [ad.tensor(rng.standard_normal(s).astype(np.float32), requires_grad=True) for s in shapes]
    return [*made, ad.tensor(rng.standard_normal(9) + 1j, requires_grad=True)]


def trained(group: Group | None, kind: str) -> Any:
    """Make updates from dense, missing and sparse gradients, save and load in between; return the bits."""
    rng = np.random.default_rng(1)
    params = parameters()
    options = {} if group is None else {"shard": group}
    optimizer = MADE[kind](params, **options)
    for step in range(6):
        for i, p in enumerate(params):
            g = rng.standard_normal(p.shape).astype(p.dtype)
            p.grad = None if (step + i) % 4 == 3 else ad.tensor(g)
        if step % 2:
            rows = np.array([1, 5, 39, 5])
            params[4].grad = ad.sparse_gradient(rows, rng.standard_normal((4, 3)).astype(np.float32), (40, 3))
        optimizer.step()
        if step == 3:
            state = optimizer.state_dict()
            optimizer = MADE[kind](params, **options)
            optimizer.load_state_dict(copy.deepcopy(state))
    saved = optimizer.state_dict()
    arrays = [value.tobytes() for g in saved["state"] for s in g for value in s.values()]
    held = sum(v.nbytes for g in optimizer.groups for u in g.units for v in (u.state or {}).values())
    return [p.numpy().tobytes() for p in params], arrays, saved["steps"], held


@pytest.mark.parametrize("kind", MADE)
def test_slices_give_the_bits_of_the_whole(kind: str) -> None:
    *expected, held = trained(None, kind)
    for size in (1, 2, 3):
        found = distributed.simulate(size, lambda g: trained(g, kind))
        assert all(list(bits) == expected for *bits, _ in found)
        assert sum(own for *_, own in found) == held
        assert max(own for *_, own in found) <= held / size * 1.02 + 64


@pytest.mark.parametrize("size", [2, 4])
def test_a_trainer_with_slices_resumes_without_them(tmp_path: Path, size: int) -> None:
    x = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)

    def run(group: Group, directory: Path, epochs: int, shard: bool) -> Any:
        model = nn.Sequential(nn.Linear(8, 30, rng=0), nn.Tanh(), nn.Linear(30, 1, rng=1))
        optimizer = optim.Adam(model.parameters(), lr=0.01, shard=group if shard else None)
        trainer = train.Trainer(
            model, nn.functional.mse_loss, optimizer, group=group, accumulate=4, clip=1.0, directory=directory
        )
        trainer.fit(train.DataLoader((x, x[:, :1]), 32), epochs, resume=True)
        return [p.numpy().tobytes() for p in model.parameters()]

    (expected,) = distributed.simulate(1, lambda g: run(g, tmp_path / "whole", 4, False))
    parts = tmp_path / "parts"
    for epochs, shard in ((1, True), (2, False), (3, True)):
        distributed.simulate(size, lambda g, e=epochs, s=shard: run(g, parts, e, s))
    assert distributed.simulate(1, lambda g: run(g, parts, 4, True)) == [expected]


def test_mistakes() -> None:
    w = ad.tensor(np.ones(2), requires_grad=True)
    with pytest.raises(InputError, match=r"SGD: shard must be a distributed\.Group, not an int"):
        optim.SGD([w], shard=3)  # type: ignore[arg-type]
    model = nn.Linear(2, 1, rng=0)
    with pytest.raises(InputError, match="the optimiser's shard= and the trainer's group= must be"):
        train.Trainer(
            model, nn.functional.mse_loss, optim.SGD(model.parameters(), shard=Group()), group=Group()
        )
    optimizer = optim.SGD([w], lr=0.1, momentum=0.9, shard=Group())

    @ad.compile
    def step(x: Any) -> Any:
        loss = (w * x).sum()
        loss.backward()
        optimizer.step()
        return loss

    with pytest.raises(Exception, match="an optimiser with shard= cannot be used inside"):
        step(ad.tensor([1.0, 2.0]))
