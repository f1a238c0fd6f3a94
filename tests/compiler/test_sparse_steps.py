"""Compiled training steps of tables with sparse gradients: the rows of a batch, in place."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim
from adjoint.errors import TransformError

pytest.importorskip("llvmlite")

REPLAY, NATIVE = (functools.partial(ad.compile, backend=b) for b in ("replay", "native"))
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"momentum": 0.9, "weight_decay": 0.01}), ("Adam", {"eps": 1e-3}), ("AdamW", {"eps": 1e-3}),
    ("Adam", {"amsgrad": True, "maximize": True, "eps": 1e-3}),
]  # fmt: skip
CLIPS: list[Any] = [
    lambda params: None, lambda params: ad.clip_grad_norm(params, 0.1), lambda params: ad.clip_grad_value(params, 0.01),
    lambda params: ad.clip_grad_adaptive(params, 0.01),
]  # fmt: skip


class Words:
    """A model of words with one table, of which a sentence reads some rows twice; all fixed by the seed."""

    def __init__(self, seed: int) -> None:
        r = np.random.default_rng(seed)
        self.dtype = np.dtype(("f4", "f8")[seed % 2])
        padding = (None, 3, -40)[seed % 3]
        size = int(r.choice([40, 3000])), int(r.integers(1, 20))
        self.table = nn.Embedding(*size, padding, sparse=True, rng=0)
        self.table = self.table.astype(self.dtype)
        self.out = nn.Linear(self.table.weight.shape[1], 3, rng=1).astype(self.dtype)
        self.params = [*self.table.parameters(), *self.out.parameters()]
        name, options = OPTIMIZERS[seed % len(OPTIMIZERS)]
        self.optimizer = getattr(optim, name)(self.params, lr=0.01, **options)
        self.clip = CLIPS[r.integers(len(CLIPS))]
        self.scaler = ad.GradScaler(8.0, enabled=bool(r.random() < 0.4))
        self.twice, self.dense, self.after = r.random(3) < 0.3
        self.count = (7, 7, 1, 0)[seed // 4]  # of words

    def step(self, words: Any, y: Any) -> Any:
        """Make one step."""
        self.optimizer.zero_grad()
        h = self.table(words)
        if self.twice:
            h = h + self.table(words[::-1])
        loss = ((self.out(ad.tanh(h)) - y) ** 2).sum() / 21
        if self.dense:
            loss = loss + (self.table.weight * self.table.weight).sum() * 1e-3
        self.scaler.scale(loss).backward()
        if self.scaler.enabled:
            self.scaler.unscale(self.optimizer)
        self.clip(self.params)
        self.scaler.step(self.optimizer) if self.scaler.enabled else self.optimizer.step()
        if self.scaler.enabled:
            self.scaler.update()
        return (loss, self.table.weight[words]) if self.after else loss

    def state(self) -> list[Any]:
        """Return the parameters, their gradients and the state of the optimiser."""
        found = [p.detach().numpy() for p in self.params] + [p.grad.numpy() for p in self.params]
        return found + [v for p in self.params for v in self.optimizer.state_of(p).values()]


def batches(model: Words) -> Any:
    """Yield words, many of them equal, and targets."""
    for k in range(4):
        r = np.random.default_rng(k)
        words, y = r.integers(0, 15, model.count), r.normal(size=(model.count, 3))
        yield ad.tensor(words), ad.tensor(y.astype(model.dtype))


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("compiled", [REPLAY, NATIVE])
def test_steps_of_tables(seed: int, compiled: Any) -> None:
    eager, other = Words(seed), Words(seed)
    step, kinds = compiled(other.step), []
    for words, y in batches(eager):
        pairs = zip(
            [*ad.tree.leaves(step(words, y)), *other.state()],
            [*ad.tree.leaves(eager.step(words, y)), *eager.state()],
            strict=True,
        )
        for a, b in pairs:
            a, b = (np.asarray(v.detach().numpy() if isinstance(v, ad.Tensor) else v) for v in (a, b))
            if compiled is REPLAY:
                np.testing.assert_array_equal(a, b)
            np.testing.assert_allclose(a, b, rtol=1e-4 if a.dtype == np.float32 else 1e-9, atol=1e-6)
        kinds.append(type(other.table.weight.grad) is type(eager.table.weight.grad))
    assert all(kinds)


def test_a_step_writes_rows_in_place_and_keeps_rows_in_order() -> None:
    model = Words(4)
    model.clip, model.twice, model.dense, model.after, model.scaler = (
        CLIPS[0],
        False,
        False,
        False,
        ad.GradScaler(enabled=False),
    )
    step = NATIVE(model.step)
    (words, y), *_ = batches(model)
    for _ in range(3):
        step(words, y)
    arrays = [id(model.table.weight._data), *map(id, model.optimizer.groups[0].units[0].state.values())]
    before = model.table.weight.numpy().copy()
    step(words, y)
    assert arrays == [
        id(model.table.weight._data), *map(id, model.optimizer.groups[0].units[0].state.values())
    ]  # fmt: skip
    rest = np.setdiff1d(np.arange(len(before)), words.numpy())
    np.testing.assert_array_equal(model.table.weight.numpy()[rest], before[rest])
    assert model.table.weight.grad.rows.tolist() == words.tolist()
    assert step.stats()["traces"] == 1


def test_returned_sparse_gradients_are_dense_and_old_ones_are_not_read() -> None:
    w = ad.tensor(np.arange(8.0).reshape(4, 2), requires_grad=True)

    @ad.compile
    def gradient(i: Any) -> Any:
        w.grad = None
        (ad.take(w, i, axis=0, sparse_grad=True) ** 2).sum().backward()
        return w.grad * 2.0, w.grad + w.grad, w.grad.sum()

    def sums(i: Any) -> None:
        ad.take(w, i, axis=0, sparse_grad=True).sum().backward()

    for i in ([1, 1, 3], [0, 2, 2]):
        double, also, total = gradient(np.array(i))
        wanted = np.zeros((4, 2))
        np.add.at(wanted, i, 2 * w.numpy()[i])
        np.testing.assert_allclose([double.numpy(), also.numpy()], [2 * wanted, 2 * wanted])
        assert total.item() == wanted.sum()
        assert type(w.grad) is ad.SparseGradient
        np.testing.assert_allclose(w.grad.numpy(), wanted)
    with pytest.raises(TransformError, match=r"reads a \.grad that is sparse"):
        ad.compile(sums)(np.array([1]))
    assert type(w.grad) is ad.SparseGradient
