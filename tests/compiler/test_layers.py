"""Every layer and every loss inside compiled training steps: the same bits as eager steps over 20 calls."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from steps import compare

import adjoint as ad
from adjoint import nn, optim
from adjoint.nn.utils import parametrizations


def rng() -> Any:
    return ad.random.default_rng(5)


def before(shape: tuple[int, ...], *layers: Any) -> Any:
    """A layer with parameters in front, so that gradients go through what follows."""
    return lambda: nn.Sequential(nn.Linear(shape[-1], shape[-1], rng=0), *(layer() for layer in layers))


class Unpooled(nn.Module):
    """Maxima, put back to their positions."""

    def __init__(self, pool: Any, unpool: Any) -> None:
        self.pool, self.unpool = pool(2, return_indices=True), unpool(2)

    def forward(self, x: Any) -> Any:
        return self.unpool(*self.pool(x))


FLAT, ROW, IMAGE, VOLUME = (4, 6), (2, 4, 8), (2, 4, 6, 6), (1, 4, 4, 4, 4)
SEQUENCE = (2, 5, 8)

LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    **{
        name: (before(FLAT, getattr(nn, name)), FLAT)
        for name in (
            "ELU", "GELU", "GLU", "SELU", "Hardtanh", "LeakyReLU", "LogSoftmax", "Mish", "PReLU", "ReLU", "ReLU6",
            "Sigmoid", "SiLU", "Softmax", "Softplus", "Tanh", "Identity", "Flatten",
        )
    },
    "Linear": (lambda: nn.Linear(6, 3, rng=0), FLAT),
    "Unflatten": (before(FLAT, lambda: nn.Unflatten(1, (2, 3))), FLAT),
    "LayerNorm": (before(FLAT, lambda: nn.LayerNorm(6)), FLAT),
    "RMSNorm": (before(FLAT, lambda: nn.RMSNorm(6)), FLAT),
    "GroupNorm": (before(FLAT, lambda: nn.GroupNorm(2, 6)), FLAT),
    "Dropout": (before(FLAT, lambda: nn.Dropout(0.4, rng=rng())), FLAT),
    "Dropout1d": (before(ROW, lambda: nn.Dropout1d(0.4, rng=rng())), ROW),
    "Dropout2d": (before(IMAGE, lambda: nn.Dropout2d(0.4, rng=rng())), IMAGE),
    "Dropout3d": (before(VOLUME, lambda: nn.Dropout3d(0.4, rng=rng())), VOLUME),
    "BatchNorm1d": (before(FLAT, lambda: nn.BatchNorm1d(6)), FLAT),
    "BatchNorm2d": (before(IMAGE, lambda: nn.BatchNorm2d(4)), IMAGE),
    "BatchNorm3d": (before(VOLUME, lambda: nn.BatchNorm3d(4)), VOLUME),
    "InstanceNorm1d": (before(ROW, lambda: nn.InstanceNorm1d(4, track_running_stats=True)), ROW),
    "InstanceNorm2d": (before(IMAGE, lambda: nn.InstanceNorm2d(4, affine=True)), IMAGE),
    "InstanceNorm3d": (before(VOLUME, lambda: nn.InstanceNorm3d(4)), VOLUME),
    "Conv1d": (lambda: nn.Conv1d(4, 3, 3, padding=1, rng=0), ROW),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2, rng=0), IMAGE),
    "Conv3d": (lambda: nn.Conv3d(4, 2, 2, dilation=2, rng=0), VOLUME),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 3, 3, stride=2, rng=0), ROW),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 3, 3, rng=0), IMAGE),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(4, 2, 2, rng=0), VOLUME),
    "MaxPool1d": (before(ROW, lambda: nn.MaxPool1d(2)), ROW),
    "MaxPool2d": (before(IMAGE, lambda: nn.MaxPool2d(2)), IMAGE),
    "MaxPool3d": (before(VOLUME, lambda: nn.MaxPool3d(2)), VOLUME),
    "AvgPool1d": (before(ROW, lambda: nn.AvgPool1d(2)), ROW),
    "AvgPool2d": (before(IMAGE, lambda: nn.AvgPool2d(2)), IMAGE),
    "AvgPool3d": (before(VOLUME, lambda: nn.AvgPool3d(2)), VOLUME),
    "AdaptiveAvgPool1d": (before(ROW, lambda: nn.AdaptiveAvgPool1d(3)), ROW),
    "AdaptiveAvgPool2d": (before(IMAGE, lambda: nn.AdaptiveAvgPool2d((2, 3))), IMAGE),
    "AdaptiveAvgPool3d": (before(VOLUME, lambda: nn.AdaptiveAvgPool3d(2)), VOLUME),
    "AdaptiveMaxPool1d": (before(ROW, lambda: nn.AdaptiveMaxPool1d(3)), ROW),
    "AdaptiveMaxPool2d": (before(IMAGE, lambda: nn.AdaptiveMaxPool2d((2, 3))), IMAGE),
    "AdaptiveMaxPool3d": (before(VOLUME, lambda: nn.AdaptiveMaxPool3d(2)), VOLUME),
    "MaxUnpool1d": (before(ROW, lambda: Unpooled(nn.MaxPool1d, nn.MaxUnpool1d)), ROW),
    "MaxUnpool2d": (before(IMAGE, lambda: Unpooled(nn.MaxPool2d, nn.MaxUnpool2d)), IMAGE),
    "MaxUnpool3d": (before(VOLUME, lambda: Unpooled(nn.MaxPool3d, nn.MaxUnpool3d)), VOLUME),
    "Unfold": (before(IMAGE, lambda: nn.Unfold(2, stride=2)), IMAGE),
    "Fold": (before(IMAGE, lambda: nn.Sequential(nn.Unfold(2), nn.Fold(IMAGE[2:], 2))), IMAGE),
    "PixelShuffle": (before(IMAGE, lambda: nn.PixelShuffle(2)), IMAGE),
    "PixelUnshuffle": (before(IMAGE, lambda: nn.PixelUnshuffle(2)), IMAGE),
    "Upsample": (before(IMAGE, lambda: nn.Upsample(scale_factor=2, mode="bilinear")), IMAGE),
    "RNN": (lambda: nn.RNN(8, 5, num_layers=2, rng=0), SEQUENCE),
    "GRU": (lambda: nn.GRU(8, 5, bidirectional=True, rng=0), SEQUENCE),
    "LSTM": (lambda: nn.LSTM(8, 5, num_layers=2, rng=0), SEQUENCE),
    "RNNCell": (lambda: nn.RNNCell(6, 5, rng=0), FLAT),
    "GRUCell": (lambda: nn.GRUCell(6, 5, rng=0), FLAT),
    "LSTMCell": (lambda: nn.LSTMCell(6, 5, rng=0), FLAT),
    "MultiHeadAttention": (lambda: nn.MultiHeadAttention(8, 2, rng=0), SEQUENCE),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, rng=rng()), SEQUENCE),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, rng=0), 2),
        SEQUENCE,
    ),
}  # fmt: skip
WEIGHTS: dict[str, tuple[Any, tuple[int, ...]]] = {  # computed from other parameters
    "weight_norm": (lambda: parametrizations.weight_norm(nn.Linear(6, 3, rng=0)), FLAT),
    "spectral_norm": (lambda: parametrizations.spectral_norm(nn.Linear(6, 3, rng=0), rng=1), FLAT),
    "spectral_norm of a convolution": (
        lambda: parametrizations.spectral_norm(
            nn.ConvTranspose1d(4, 3, 3, rng=0), n_power_iterations=2, rng=1
        ),
        ROW,
    ),
}
PAIRS: dict[str, Any] = {  # of two inputs
    "Bilinear": lambda: nn.Bilinear(8, 8, 3, rng=0),
    "TransformerDecoderLayer": lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, rng=0),
    "TransformerDecoder": lambda: nn.TransformerDecoder(
        nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, rng=0), 2
    ),
}
LOSSES: dict[str, Any] = {
    **dict.fromkeys(("MSELoss", "L1Loss", "HuberLoss", "SmoothL1Loss"), "float"),
    **dict.fromkeys(("CrossEntropyLoss", "NLLLoss"), "class"),
    **dict.fromkeys(("BCELoss", "BCEWithLogitsLoss"), "zero or one"),
    **dict.fromkeys(("HingeLoss", "HingeEmbeddingLoss", "SoftMarginLoss"), "sign"),
    "MultiMarginLoss": "class",
    "MultiLabelMarginLoss": "labels",
    "MultiLabelSoftMarginLoss": "zero or one",
    "PoissonNLLLoss": "float",
    "KLDivLoss": "probability",
}
THREES: dict[str, Any] = {  # losses of three and more: of the output y and a target of signs
    "MarginRankingLoss": lambda loss, y, t: loss(y, y[::-1], t),
    "CosineEmbeddingLoss": lambda loss, y, t: loss(y, y[::-1], t[:, 0]),
    "TripletMarginLoss": lambda loss, y, t: loss(y, y[::-1], t),
    "TripletMarginWithDistanceLoss": lambda loss, y, t: loss(y, y[::-1], t),
    "GaussianNLLLoss": lambda loss, y, t: loss(y, t, y * y + 1),
    "CTCLoss": lambda loss, y, t: loss(ad.log_softmax(y, -1), (t[:1, :3] + 3).astype(int) // 2, [5], [2]),
}
ELSEWHERE = {  # containers, and what test_steps.py has
    "Module", "Sequential", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Embedding",
    "EmbeddingBag",
}  # fmt: skip


def first(y: Any) -> Any:
    return first(y[0]) if isinstance(y, tuple) else y


def trained(model: Any, *shapes: tuple[int, ...]) -> None:
    """Compare 20 steps of SGD on the mean square of the outputs."""

    def make() -> Any:
        m = model()
        o = optim.SGD(m.parameters(), lr=0.01, momentum=0.9)

        def step(*x: Any) -> Any:
            o.zero_grad()
            loss = (first(m(*x)) ** 2).mean()
            loss.backward()
            o.step()
            return loss

        return step, m, o

    def data(k: int) -> tuple[Any, ...]:
        r = np.random.default_rng(k)
        return tuple(r.normal(size=s).astype("f") for s in shapes)

    compare(make, data)


@pytest.mark.parametrize("name", [*LAYERS, *WEIGHTS])
def test_layers(name: str) -> None:
    model, shape = {**LAYERS, **WEIGHTS}[name]
    trained(model, shape)


@pytest.mark.parametrize("name", PAIRS)
def test_layers_of_two_inputs(name: str) -> None:
    trained(PAIRS[name], SEQUENCE, SEQUENCE)


def target(kind: str, r: Any) -> Any:
    found = {
        "float": lambda: r.normal(size=(5, 4)),
        "class": lambda: r.integers(0, 4, 5),
        "zero or one": lambda: r.integers(0, 2, (5, 4)).astype("f"),
        "sign": lambda: (r.integers(0, 2, (5, 4)) * 2 - 1).astype("f"),
        "labels": lambda: r.permuted(np.tile([0, 2, -1, 3], (5, 1)), axis=1),
        "probability": lambda: r.dirichlet(np.ones(4), 5),
    }[kind]()
    return found if found.dtype.kind == "i" else found.astype("f")


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    squash = {"BCELoss": nn.Sigmoid, "NLLLoss": nn.LogSoftmax, "KLDivLoss": nn.LogSoftmax}.get(
        name, nn.Identity
    )

    def make() -> Any:
        m = nn.Sequential(nn.Linear(6, 4, rng=0), squash())
        o = optim.AdamW(m.parameters(), lr=0.01)
        loss_of = getattr(nn, name)(**({"reduction": "batchmean"} if name == "KLDivLoss" else {}))

        def step(x: Any, t: Any) -> Any:
            o.zero_grad()
            loss = loss_of(m(x), t)
            loss.backward()
            o.step()
            return loss

        return step, m, o

    def data(k: int) -> tuple[Any, Any]:
        r = np.random.default_rng(k)
        return r.normal(size=(5, 6)).astype("f"), target(LOSSES[name], r)

    compare(make, data)


@pytest.mark.parametrize("name", THREES)
def test_losses_of_three(name: str) -> None:
    def make() -> Any:
        m = nn.Linear(6, 4, rng=0)
        o = optim.AdamW(m.parameters(), lr=0.01)
        loss_of = getattr(nn, name)()

        def step(x: Any, t: Any) -> Any:
            o.zero_grad()
            loss = THREES[name](loss_of, m(x), t)
            loss.backward()
            o.step()
            return loss

        return step, m, o

    def data(k: int) -> tuple[Any, Any]:
        r = np.random.default_rng(k)
        return r.normal(size=(5, 6)).astype("f"), target("sign", r)

    compare(make, data)


def test_containers() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.layers = nn.ModuleList([nn.Linear(6, 6, rng=k) for k in range(3)])
            self.named = nn.ModuleDict({"tanh": nn.Tanh(), "out": nn.Linear(6, 2, rng=9)})
            self.scales = nn.ParameterList([np.ones(6, "f"), np.full(6, 0.5, "f")])
            self.more = nn.ParameterDict({"shift": np.zeros(2, "f")})

        def forward(self, x: Any) -> Any:
            for layer, scale in zip(self.layers, [*self.scales, 1.0], strict=True):
                x = self.named["tanh"](layer(x)) * scale
            return self.named["out"](x) + self.more["shift"]

    trained(Net, FLAT)


def test_every_layer_has_a_case() -> None:
    every = {
        n for n in nn.__all__ if inspect.isclass(getattr(nn, n)) and issubclass(getattr(nn, n), nn.Module)
    }
    assert every == {*LAYERS, *PAIRS, *LOSSES, *THREES, *ELSEWHERE}
    assert {name.partition(" ")[0] for name in WEIGHTS} == set(parametrizations.__all__)
