"""ONNX files: every layer and a transformer against ONNX Runtime, and back as a module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim
from adjoint.errors import FileError, InputError

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("adjoint.interop.onnx")


def x(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


LAYERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "Linear": (nn.Linear(4, 3, rng=0), (x(2, 4),)),
    "Linear without bias": (nn.Linear(4, 3, bias=False, rng=0), (x(2, 4),)),
    "Bilinear": (nn.Bilinear(3, 4, 5, rng=0), (x(2, 3), x(2, 4))),
    "Conv1d": (nn.Conv1d(3, 4, 3, rng=0, padding=1, stride=2), (x(2, 3, 8),)),
    "Conv2d": (nn.Conv2d(4, 6, 3, rng=0, padding=1, groups=2, dilation=2), (x(2, 4, 8, 8),)),
    "Conv3d": (nn.Conv3d(2, 3, 3, rng=0), (x(1, 2, 5, 5, 5),)),
    "ConvTranspose1d": (nn.ConvTranspose1d(3, 4, 3, rng=0, stride=2), (x(2, 3, 8),)),
    "ConvTranspose2d": (
        nn.ConvTranspose2d(3, 4, 3, rng=0, stride=2, padding=1, output_padding=1), (x(2, 3, 5, 5),)
    ),
    "MaxPool2d": (nn.MaxPool2d(3, stride=2, padding=1), (x(2, 3, 8, 8),)),
    "AvgPool2d": (nn.AvgPool2d(3, stride=2, padding=1), (x(2, 3, 8, 8),)),
    "AdaptiveAvgPool2d": (nn.AdaptiveAvgPool2d(1), (x(2, 3, 8, 8),)),
    "BatchNorm1d": (nn.BatchNorm1d(4), (x(3, 4),)),
    "BatchNorm2d": (nn.BatchNorm2d(4), (x(3, 4, 5, 5),)),
    "LayerNorm": (nn.LayerNorm(4), (x(3, 4),)),
    "GroupNorm": (nn.GroupNorm(2, 4), (x(3, 4, 5),)),
    "RMSNorm": (nn.RMSNorm(4), (x(3, 4),)),
    "InstanceNorm2d": (nn.InstanceNorm2d(4), (x(3, 4, 5, 5),)),
    "Embedding": (nn.Embedding(10, 4, rng=0), (np.array([[1, 2], [3, 4]]),)),
    "EmbeddingBag": (nn.EmbeddingBag(10, 4, rng=0), (np.array([[1, 2], [3, 4]]),)),
    "Dropout": (nn.Dropout(0.5, rng=0), (x(3, 4),)),
    "Flatten": (nn.Flatten(), (x(3, 4, 5),)),
    "Unflatten": (nn.Unflatten(1, (2, 2)), (x(3, 4),)),
    "PixelShuffle": (nn.PixelShuffle(2), (x(1, 4, 3, 3),)),
    "Upsample": (nn.Upsample(scale_factor=2), (x(1, 4, 3, 3),)),
    "Upsample bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), (x(1, 4, 3, 3),)),
    "LSTM": (nn.LSTM(4, 5, rng=0), (x(6, 2, 4),)),
    "GRU": (nn.GRU(4, 5, rng=0), (x(6, 2, 4),)),
    "RNN": (nn.RNN(4, 5, rng=0), (x(6, 2, 4),)),
    "LSTMCell": (nn.LSTMCell(4, 5, rng=0), (x(2, 4),)),
    "GRUCell": (nn.GRUCell(4, 5, rng=0), (x(2, 4),)),
    "GELU by tanh": (nn.GELU(approximate="tanh"), (x(3, 4),)),
    "Softmax": (nn.Softmax(-1), (x(3, 4),)),
    "LogSoftmax": (nn.LogSoftmax(-1), (x(3, 4),)),
    "TransformerEncoder": (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, rng=0), 2), (x(2, 5, 8),)),
    "slices": (lambda v: v[::-1, 1:3, None] + v[-1, -1], (x(3, 4),)),
}  # fmt: skip
for name in """ReLU LeakyReLU ELU SELU CELU GELU SiLU Mish Sigmoid Tanh Softplus Softsign Hardtanh Hardsigmoid
Hardswish ReLU6 LogSigmoid Tanhshrink Softshrink Hardshrink PReLU Identity""".split():
    if hasattr(nn, name):
        LAYERS[name] = (getattr(nn, name)(), (x(3, 4),))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_gives_the_same_in_onnx_runtime_and_when_it_is_read_back(name: str, tmp_path: Path) -> None:
    model, inputs = LAYERS[name]
    if isinstance(model, nn.Module):
        model.eval()
    file = tmp_path / "model.onnx"
    onnx.save(model, inputs, file)
    session = onnxruntime.InferenceSession(file)
    runtime = session.run(None, {i.name: v for i, v in zip(session.get_inputs(), inputs, strict=True)})
    with ad.no_grad():
        own = [t.numpy() for t in ad.tree.flatten(model(*map(ad.tensor, inputs)))[0]]
        back = [t.numpy() for t in ad.tree.flatten(onnx.load(file)(*inputs))[0]]
    for a, b, c in zip(own, runtime, back, strict=True):
        assert a.shape == b.shape == c.shape and a.dtype == b.dtype == c.dtype
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(c, a, rtol=1e-5, atol=1e-5)


NO_DYNAMIC = {"Bilinear": "runs different ops", "EmbeddingBag": "depends on the length of the dynamic axis"}


@pytest.mark.parametrize("name", LAYERS)
def test_the_first_axis_may_have_any_length(name: str, tmp_path: Path) -> None:
    model, inputs = LAYERS[name]
    if isinstance(model, nn.Module):
        model.eval()
    file, axes = tmp_path / "model.onnx", {f"input_{k}": {0: "batch"} for k in range(len(inputs))}
    if name in NO_DYNAMIC:
        with pytest.raises(InputError, match=NO_DYNAMIC[name]):
            onnx.save(model, inputs, file, dynamic_axes=axes)
        return
    onnx.save(model, inputs, file, dynamic_axes=axes)
    session = onnxruntime.InferenceSession(file)
    assert session.get_inputs()[0].shape[0] == "batch"
    for size in (1, 4, 7):
        given = [np.take(v, np.arange(size) % len(v), 0) for v in inputs]
        runtime = session.run(None, dict(zip(axes, given, strict=True)))
        with ad.no_grad():
            own = [t.numpy() for t in ad.tree.flatten(model(*map(ad.tensor, given)))[0]]
            back = [t.numpy() for t in ad.tree.flatten(onnx.load(file)(*given))[0]]
        for a, b, c in zip(own, runtime, back, strict=True):
            assert a.shape == b.shape == c.shape
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(c, a, rtol=1e-5, atol=1e-5)


def test_a_dynamic_axis_that_is_not_the_first(tmp_path: Path) -> None:
    model = nn.LSTM(4, 5, rng=0)
    onnx.save(
        model,
        x(6, 2, 4),
        tmp_path / "a.onnx",
        input_names=["words"],
        dynamic_axes={"words": {1: "time"}, "output_0": {1: "time"}},
    )
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    assert session.get_inputs()[0].shape == [6, "time", 4]
    for length in (1, 3, 9):
        np.testing.assert_allclose(
            session.run(None, {"words": x(6, length, 4)})[0],
            model(ad.tensor(x(6, length, 4)))[0].numpy(),
            atol=1e-5,
        )


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"x": [0]}, "dynamic_axes has the name 'x', but the inputs are input_0, input_1."),
        ({"input_0": [0, 1]}, "must name one of the 2 axes of the input"),
        ({"input_0": {5: "batch"}}, "must name one of the 2 axes of the input"),
        ({"input_0": {0: "a"}, "input_1": {0: "b"}}, "must name one length for all inputs, such as 'batch', but has a, b."),
        ({}, "must name one length for all inputs, such as 'batch', but has none."),
        ({"input_0": [0], "input_1": [0]}, "must have one length that is not 0, but the examples have 2, 3."),
    ],
)  # fmt: skip
def test_dynamic_axes_that_are_not_possible(axes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        onnx.save(lambda a, b: (a.sum(), b.sum()), (x(2, 3), x(3, 3)), tmp_path / "a.onnx", dynamic_axes=axes)
    assert message in str(caught.value)


def test_a_constant_of_the_batch_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="depends on the length of the dynamic axis"):
        onnx.save(
            lambda a: a * ad.arange(len(a)).reshape(-1, 1),
            x(2, 3),
            tmp_path / "a.onnx",
            dynamic_axes={"input_0": [0]},
        )
    with pytest.raises(InputError, match="depends on the length of the dynamic axis"):
        onnx.save(lambda a: a.sum(0) / len(a), x(2, 3), tmp_path / "a.onnx", dynamic_axes={"input_0": [0]})


def test_a_module_that_was_read_can_be_trained(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 8, rng=0), nn.Tanh(), nn.Linear(8, 1, rng=1))
    onnx.save(net, x(4, 3), tmp_path / "a.onnx", input_names=["features"], output_names=["score"])
    read = onnx.load(tmp_path / "a.onnx")
    optimizer = optim.SGD(read.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (read(x(4, 3)) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    assert session.get_inputs()[0].name == "features" and session.get_outputs()[0].name == "score"


def test_training_mode_is_restored(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 3, rng=0), nn.Dropout(0.5, rng=0)).train()
    onnx.save(net, x(2, 3), tmp_path / "a.onnx")
    assert net.training


def test_what_has_no_onnx_form_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"onnx: the op 'cholesky' cannot be expressed in ONNX\."):
        onnx.save(lambda a: ad.linalg.cholesky(a), np.eye(3), tmp_path / "a.onnx")
    assert not (tmp_path / "a.onnx").exists()
    with pytest.raises(InputError, match=r"the model must return tensors"):
        onnx.save(lambda a: 3, np.eye(3), tmp_path / "a.onnx")


def test_files_that_are_no_models(tmp_path: Path) -> None:
    for data in (b"", b"nonsense", bytes(range(256))):
        (tmp_path / "a.onnx").write_bytes(data)
        with pytest.raises(FileError, match=r"is not an ONNX model"):
            onnx.load(tmp_path / "a.onnx")
    with pytest.raises(IsADirectoryError):
        onnx.load(tmp_path)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda a: a * 2.5, (np.arange(3),)),
        (lambda a: ad.where(a / 2 > 0.4, 1.0, 0.0), (np.arange(3),)),
        (lambda a, b: ad.concat([a * b, ad.sqrt(b)]), (x(3), np.arange(3))),
        (lambda a, b: ad.where(a == b, a, b) + (a > 0) * a, (x(3), np.arange(3.0))),
        (lambda a: (a > 0).sum() + a.sum() * 2, (x(3),)),
        (nn.Linear(4, 3, rng=0), (x(2, 4).astype(np.float64),)),
        (lambda a: a * 2, (np.array(3.0),)),
    ],
)
@pytest.mark.filterwarnings("ignore:.*the input 'x' is float64")
def test_arguments_are_converted_to_one_dtype(function: Any, given: Any, tmp_path: Path) -> None:
    onnx.save(function, given, tmp_path / "f.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "f.onnx")
    found = session.run(None, {f"input_{k}": a for k, a in enumerate(given)})[0]
    want = function(*map(ad.tensor, given)).numpy()
    assert np.asarray(found).dtype == want.dtype
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_names_and_dtypes_are_checked(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"input_names must have one name for each of the 2 inputs, but is \['a'\]"
    ):
        onnx.save(lambda a, b: a + b, (x(2), x(2)), tmp_path / "f.onnx", input_names=["a"])
    with pytest.raises(InputError, match=r"the model cannot be expressed in ONNX: .*complex128"):
        onnx.save(lambda a: a * 2, np.ones(2, complex), tmp_path / "f.onnx")
