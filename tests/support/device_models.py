"""Training steps of common models, for devices: each function returns (step, arguments, parameters)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import nn, optim

Made = tuple[Callable[..., Any], tuple[Any, ...], list[Any]]
functional = nn.functional


def _optimiser(kind: str, params: Any) -> Any:
    return optim.Adam(params, lr=1e-3) if kind == "Adam" else optim.SGD(params, lr=0.05, momentum=0.9)


def _trained(net: Any, kind: str, loss_of: Callable[..., Any], *given: Any) -> Made:
    opt = _optimiser(kind, net.parameters())

    def step(*data: Any) -> Any:
        opt.zero_grad()
        loss = loss_of(net, *data)
        loss.backward()
        opt.step()
        return loss

    return step, tuple(map(ad.tensor, given)), [*net.parameters(), *(b for _, b in net.named_buffers())]


def _scores(net: Any, x: Any, y: Any) -> Any:
    return functional.cross_entropy(net(x), y)


def mlp(kind: str, dtype: str = "f4", depth: int = 1) -> Made:
    rng, draw = ad.random.default_rng(0), np.random.default_rng(1)
    layers: list[Any] = [nn.Linear(20, 32, rng=rng, dtype=dtype), nn.GELU()]
    for _ in range(depth):
        layers += [nn.Linear(32, 32, rng=rng, dtype=dtype), nn.GELU()]
    net = nn.Sequential(*layers, nn.Linear(32, 10, rng=rng, dtype=dtype))
    return _trained(net, kind, _scores, draw.normal(size=(16, 20)).astype(dtype), draw.integers(0, 10, 16))


def mlp64(kind: str) -> Made:
    return mlp(kind, "f8")


def lenet(kind: str) -> Made:
    rng, draw = ad.random.default_rng(0), np.random.default_rng(1)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 5, padding=2, rng=rng), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 5, 5, rng=rng),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(45, 24, rng=rng), nn.ReLU(), nn.Linear(24, 10, rng=rng),
    )  # fmt: skip
    return _trained(
        net, kind, _scores, draw.normal(size=(4, 1, 20, 20)).astype("f4")[..., :], draw.integers(0, 10, 4)
    )


class _Residual(nn.Module):
    def __init__(self, rng: Any, wide: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(wide, wide, 3, padding=1, rng=rng) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(wide), nn.BatchNorm2d(wide)
        self.out = nn.Linear(wide, 6, rng=rng)

    def forward(self, x: Any) -> Any:
        h = functional.relu(self.norm1(self.first(x)))
        h = functional.relu(x + self.norm2(self.second(h)))
        return self.out(h.mean(axis=(-2, -1)))


def resnet(kind: str) -> Made:
    draw = np.random.default_rng(1)
    net = _Residual(ad.random.default_rng(0), 4)
    return _trained(net, kind, _scores, draw.normal(size=(4, 4, 8, 8)).astype("f4"), draw.integers(0, 6, 4))


class _Block(nn.Module):
    def __init__(self, rng: Any, words: int, wide: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, wide, rng=rng)
        self.norm1, self.norm2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.attend = nn.MultiHeadAttention(wide, 4, rng=rng)
        self.up, self.down = nn.Linear(wide, 2 * wide, rng=rng), nn.Linear(2 * wide, wide, rng=rng)
        self.out = nn.Linear(wide, words, rng=rng)

    def forward(self, t: Any) -> Any:
        x = self.embed(t)
        x = x + self.attend(self.norm1(x), causal=True)
        x = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return self.out(x)


def _next_token(net: Any, t: Any, y: Any) -> Any:
    scores = net(t)
    return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))


def transformer(kind: str) -> Made:
    t = np.random.default_rng(1).integers(0, 40, (3, 13))
    net = _Block(ad.random.default_rng(0), 40, 16)
    return _trained(net, kind, _next_token, t[:, :-1].copy(), t[:, 1:].copy())


class _Recurrent(nn.Module):
    def __init__(self, rng: Any, cell: Any, wide: int) -> None:
        super().__init__()
        self.cell, self.out = cell(6, wide, rng=rng), nn.Linear(wide, 5, rng=rng)
        self.wide = wide

    def forward(self, x: Any) -> Any:
        h = ad.zeros((x.shape[1], self.wide), dtype=x.dtype)
        pair = isinstance(self.cell, nn.LSTMCell)

        def body(carry: Any, row: Any) -> Any:
            carry = self.cell(row, carry)
            return carry, carry[0] if pair else carry

        last, _ = ad.scan(body, (h, h) if pair else h, x)
        return self.out(last[0] if pair else last)


def lstm(kind: str, length: int = 20) -> Made:
    draw = np.random.default_rng(1)
    net = _Recurrent(ad.random.default_rng(0), nn.LSTMCell, 8)
    return _trained(net, kind, _scores, draw.normal(size=(length, 4, 6)).astype("f4"), draw.integers(0, 5, 4))


def gru(kind: str) -> Made:
    draw = np.random.default_rng(1)
    net = _Recurrent(ad.random.default_rng(0), nn.GRUCell, 8)
    return _trained(net, kind, _scores, draw.normal(size=(6, 4, 6)).astype("f4"), draw.integers(0, 5, 4))


class _Vae(nn.Module):
    def __init__(self, rng: Any) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(12, 8, rng=rng), nn.Linear(4, 12, rng=rng)
        self.noise = ad.random.default_rng(5)

    def forward(self, x: Any) -> Any:
        h = self.encode(x)
        mean, spread = h[:, :4], h[:, 4:]
        z = mean + ad.exp(0.5 * spread) * self.noise.normal(size=mean.shape, dtype=np.float32)
        kl = -0.5 * (1 + spread - mean * mean - ad.exp(spread)).sum(axis=1).mean()
        return ((self.decode(z) - x) ** 2).sum(axis=1).mean() + kl


def vae(kind: str) -> Made:
    x = np.random.default_rng(1).normal(size=(8, 12)).astype("f4")
    return _trained(_Vae(ad.random.default_rng(0)), kind, lambda net, x: net(x), x)


def embedding(kind: str) -> Made:
    draw = np.random.default_rng(1)
    net = nn.Sequential(nn.Embedding(50, 12, rng=ad.random.default_rng(0)), nn.Linear(12, 7))
    with ad.no_grad():
        net[1].weight.copy_(draw.normal(size=(7, 12)).astype("f4"))
        net[1].bias.copy_(np.zeros(7, "f4"))
    return _trained(net, kind, _scores, draw.integers(0, 50, 16), draw.integers(0, 7, 16))


def batches(kind: str) -> Made:
    """A scan over batches with the update of an optimiser inside."""
    rng, draw = ad.random.default_rng(0), np.random.default_rng(1)
    net = nn.Sequential(nn.Linear(6, 8, rng=rng), nn.Tanh(), nn.Linear(8, 3, rng=rng))
    opt = _optimiser(kind, net.parameters())

    def one(carry: Any, row: Any) -> Any:
        x, y = row
        opt.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return carry, loss

    def step(x: Any, y: Any) -> Any:
        return ad.scan(one, ad.zeros((), dtype=x.dtype), (x, y))[1].mean()

    x, y = draw.normal(size=(9, 4, 6)).astype("f4"), draw.normal(size=(9, 4, 3)).astype("f4")
    return step, (ad.tensor(x), ad.tensor(y)), list(net.parameters())


MODELS: dict[str, Callable[[str], Made]] = {
    f.__name__: f for f in (mlp, mlp64, lenet, resnet, transformer, lstm, gru, vae, embedding, batches)
}


def train(name: str, kind: str, compiled: Callable[[Any], Any], steps: int) -> tuple[list[Any], Any]:
    """Run steps; return all parameters and the last loss as arrays, and the compiled step."""
    step, given, params = MODELS[name](kind)
    step = compiled(step)
    for _ in range(steps):
        loss = step(*given)
    return [np.array(p.detach().numpy()) for p in (*params, loss)], step


def distance(a: list[Any], b: list[Any]) -> float:
    """Return the largest difference of two lists of arrays, in units of the largest number of each array."""
    return max(
        float(np.abs(x - y).max(initial=0) / (1e-3 + np.abs(y).max(initial=0)))
        for x, y in zip(a, b, strict=True)
    )


def digest(arrays: list[Any]) -> str:
    """Return a hash of the bits of arrays."""
    found = hashlib.sha256()
    for a in arrays:
        found.update(a.tobytes())
    return found.hexdigest()
