"""Functions and training steps that are exported: each returns the function and the arguments of its calls."""

from __future__ import annotations

from typing import Any

import numpy as np
from exported import Case

import adjoint as ad
from adjoint import nn, optim
from adjoint.nn import functional as F  # noqa: N812  as in the documentation

STEPS = 20


def _rows(shapes: Any, dtype: Any = np.float32, seed: int = 0) -> list[tuple[Any, ...]]:
    r = np.random.default_rng(seed)
    return [tuple(r.normal(size=s).astype(dtype) for s in shapes) for _ in range(STEPS)]


def _labelled(shape: Any, classes: int, batch: int) -> list[tuple[Any, ...]]:
    r = np.random.default_rng(1)
    return [(r.normal(size=shape).astype("f"), r.integers(0, classes, batch)) for _ in range(STEPS)]


def mlp() -> Case:
    """A perceptron with GELU, trained by Adam."""
    model = nn.Sequential(
        nn.Linear(8, 16, rng=0), nn.Tanh(), nn.Linear(16, 16, rng=1), nn.GELU(), nn.Linear(16, 1, rng=2)
    )
    optimizer = optim.Adam(model.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case("mlp", step, _rows([(32, 8), (32, 1)]))


def cnn() -> Case:
    """A convolutional network with batch norm, trained by SGD with momentum."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, rng=0), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(100, 10, rng=1)
    )  # fmt: skip
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "scores": scores.detach()}

    return Case("cnn", step, _labelled((8, 1, 12, 12), 10, 8))


def transformer() -> Case:
    """A block of a transformer on embedded words, with its loss and gradients."""
    embedding = nn.Embedding(30, 16, rng=0)
    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, rng=1)
    last = nn.Linear(16, 30, rng=2)
    parameters = [*embedding.parameters(), *block.parameters(), *last.parameters()]
    optimizer = optim.AdamW(parameters, lr=0.003)

    def step(words: Any, following: Any) -> Any:
        optimizer.zero_grad()
        scores = last(block(embedding(words)))
        loss = F.cross_entropy(scores.reshape(-1, 30), following.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.detach()

    r = np.random.default_rng(3)
    calls = [(r.integers(0, 30, (4, 6)), r.integers(0, 30, (4, 6))) for _ in range(STEPS)]
    return Case("transformer", step, calls)


def lstm() -> Case:
    """A recurrent network as a loop: the value and the gradients."""
    cell, last = nn.LSTMCell(5, 8, rng=0), nn.Linear(8, 2, rng=1)
    parameters = [*cell.parameters(), *last.parameters()]
    optimizer = optim.SGD(parameters, lr=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        start = (ad.zeros((3, 8), dtype=np.float32), ad.zeros((3, 8), dtype=np.float32))

        def one(state: Any, row: Any) -> Any:
            h, c = cell(row, state)
            return (h, c), h

        _, hidden = ad.scan(one, start, x)
        loss = F.mse_loss(last(hidden), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case("lstm", step, _rows([(12, 3, 5), (12, 3, 2)]))


def ode() -> Case:
    """An ordinary differential equation by Runge and Kutta: its end, and the gradient to start and parameters."""

    def flow(y: Any, p: Any) -> Any:
        a, b = y[0], y[1]
        return ad.stack([p[0] * a - p[1] * a * b, p[2] * a * b - p[3] * b])

    def end(y: Any, p: Any) -> Any:
        def one(y: Any, _: Any) -> Any:
            h = 0.05
            k1 = flow(y, p)
            k2 = flow(y + h / 2 * k1, p)
            k3 = flow(y + h / 2 * k2, p)
            k4 = flow(y + h * k3, p)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return y, y

        last, _ = ad.scan(one, y, None, length=40)
        return (last * last).sum()

    both = ad.value_and_grad(end, argnums=(0, 1))
    r = np.random.default_rng(5)
    calls = [(r.uniform(0.5, 1.5, 2), r.uniform(0.3, 1.2, 4)) for _ in range(STEPS)]
    return Case("ode", lambda y, p: both(y, p), calls)


def hvp() -> Case:
    """A product of a Hessian with a vector, and large arguments of sine."""

    def f(x: Any) -> Any:
        return (ad.sin(x[1:] * x[:-1]) * ad.exp(-(x[1:] ** 2))).sum() + ad.sin(x * 1e9).sum() * 1e-3

    r = np.random.default_rng(6)
    calls = [(r.normal(size=12), r.normal(size=12)) for _ in range(STEPS)]
    return Case("hvp", lambda x, v: ad.hvp(f, (x,), (v,)), calls)


def full_step() -> Case:
    """AdamW with clipping, a schedule, dropout, and a result of several names."""
    model = nn.Sequential(nn.Linear(6, 12, rng=0), nn.ReLU(), nn.Dropout(0.4, rng=7), nn.Linear(12, 3, rng=1))
    optimizer = optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)

    def step(x: Any, y: Any, scale: float) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x) * scale, y)
        loss.backward()
        norm = ad.clip_grad_norm(model.parameters(), 0.5)
        optimizer.step()
        return loss.detach(), norm

    calls = [(*row, 0.5 + k / 10) for k, row in enumerate(_labelled((16, 6), 3, 16))]
    rate = optim.schedules.warmup(optim.schedules.cosine(0.02, total=12), steps=3)
    return Case("full_step", step, calls, {optimizer: rate})


CASES = [mlp, cnn, transformer, lstm, ode, hvp, full_step]
