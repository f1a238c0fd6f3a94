"""Training steps of networks of modules: convolutions, recurrent layers, a transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Case, Step
from benchmarks.realistic.program import Framework, filled, program

Data = Callable[[], tuple[Any, Any]]


def pictures(n: int, channels: int, size: int, classes: int = 10) -> Data:
    """Images and their classes."""

    def made() -> tuple[Any, Any]:
        rng = np.random.default_rng(1)
        return rng.standard_normal((n, channels, size, size)).astype(np.float32), rng.integers(0, classes, n)

    return made


def trained(framework: Framework, model: Any, data: Data, loss: Any = None, sgd: bool = True) -> Step:
    """A training step of a model."""
    filled(framework, model)
    x, y = framework.tensors(*data())
    optim = framework.optim
    params = list(model.parameters())
    optimizer = optim.SGD(params, lr=0.01, momentum=0.9) if sgd else optim.Adam(params, lr=1e-3)
    loss = loss or framework.F.cross_entropy

    @framework.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        return value

    return lambda: step(x, y)


# ResNet-20 ----------------------------------------------------------------------------------------------


def resnet(nn: Any) -> Any:
    """ResNet-20 for images of 32×32."""

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, wide: int, out: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(wide, out, 3, stride=stride, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(out)
            self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
            self.norm2 = nn.BatchNorm2d(out)
            same = stride == 1 and wide == out
            short = nn.Conv2d(wide, out, 1, stride=stride, bias=False)
            self.short = nn.Identity() if same else nn.Sequential(short, nn.BatchNorm2d(out))

        def forward(self, x: Any) -> Any:
            h = self.norm(self.first(x)).relu()
            return (self.norm2(self.second(h)) + self.short(x)).relu()

    blocks = [
        Block(
            16 if i == 0 and k == 0 else 16 * 2 ** (i - (k == 0 and i > 0)),
            16 * 2**i,
            2 if i and k == 0 else 1,
        )
        for i in range(3)
        for k in range(3)
    ]
    start = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*start, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


# U-Net --------------------------------------------------------------------------------------------------


def unet(framework: Framework) -> Any:
    """A U-Net with three scales."""
    nn, cat = framework.nn, framework.lib.concat

    def pair(wide: int, out: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(wide, out, 3, padding=1), nn.ReLU(), nn.Conv2d(out, out, 3, padding=1), nn.ReLU()
        )

    class Net(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.down = pair(1, 16)
            self.middle = pair(16, 32)
            self.bottom = pair(32, 64)
            self.pool = nn.MaxPool2d(2)
            self.up = nn.ConvTranspose2d(64, 32, 2, stride=2)
            self.join = pair(64, 32)
            self.up2 = nn.ConvTranspose2d(32, 16, 2, stride=2)
            self.join2 = pair(32, 16)
            self.out = nn.Conv2d(16, 1, 1)

        def forward(self, x: Any) -> Any:
            a = self.down(x)
            b = self.middle(self.pool(a))
            c = self.up(self.bottom(self.pool(b)))
            c = self.up2(self.join(cat([b, c], 1)))
            return self.out(self.join2(cat([a, c], 1)))

    return Net()


def masks() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((8, 1, 64, 64)).astype(np.float32)
    return x, (x > 0).astype(np.float32)


# LeNet, LSTM, GRU, a transformer ------------------------------------------------------------------------


def lenet(nn: Any) -> Any:
    """LeNet for images of 28×28."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 10),
    )  # fmt: skip


def recurrent(nn: Any, kind: str) -> Any:
    """A classifier of sequences by the last state."""

    class Net(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(nn, kind)(32, 64, batch_first=True)
            self.out = nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            return self.out(self.layer(x)[0][:, -1])

    return Net()


def sequences() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((32, 50, 32)).astype(np.float32), rng.integers(0, 10, 32)


def transformer(framework: Framework) -> Any:
    """Two blocks of causal attention over characters."""
    nn, F, width = framework.nn, framework.F, 64

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            n, length, _ = x.shape
            parts = self.qkv(self.norm(x)).reshape(n, length, 3, 4, width // 4)
            q, k, v = (parts[:, :, i].swapaxes(1, 2) for i in range(3))
            h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(h.swapaxes(1, 2).reshape(n, length, width))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Net(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(65, width), nn.Embedding(64, width)
            self.blocks = nn.Sequential(Block(), Block())
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 65)

        def forward(self, x: Any) -> Any:
            h = self.words(x) + self.places(framework.lib.arange(x.shape[1]))
            return self.head(self.norm(self.blocks(h))).reshape(-1, 65)

    return Net()


def text() -> tuple[Any, Any]:
    words = np.random.default_rng(1).integers(0, 65, (16, 65))
    return np.ascontiguousarray(words[:, :-1]), np.ascontiguousarray(words[:, 1:]).reshape(-1)


def network(name: str, both: Callable[[Framework], Step]) -> Case:
    """A case whose eager code has a target."""
    return program(name, both, network=True, tolerance=2e-2, seconds=4.0)


CASES = [
    network("ResNet-20, batch 32", lambda f: trained(f, resnet(f.nn), pictures(32, 3, 32))),
    network(
        "U-Net, 8×64×64",
        lambda f: trained(f, unet(f), masks, f.F.binary_cross_entropy_with_logits, sgd=False),
    ),
    network("LeNet, batch 32", lambda f: trained(f, lenet(f.nn), pictures(32, 1, 28))),
    network("LSTM, 32×50×32, 64 units", lambda f: trained(f, recurrent(f.nn, "LSTM"), sequences, sgd=False)),
    network("GRU, 32×50×32, 64 units", lambda f: trained(f, recurrent(f.nn, "GRU"), sequences, sgd=False)),
    network("transformer of characters, 16×64", lambda f: trained(f, transformer(f), text, sgd=False)),
]
