"""Every layer's output and gradients against PyTorch's, with copied weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn
from adjoint.nn.utils import parametrizations

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

T = torch.nn


def both(ours: Any, theirs: Any, *inputs: Any, pick: Any = lambda out: out) -> None:
    """Copy the weights, run both, and compare outputs and gradients of inputs and weights."""
    ours.astype(np.float64)
    theirs.double()
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    xs = [ad.tensor(a, requires_grad=a.dtype.kind == "f") for a in inputs]
    ts = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in inputs]
    our_out, their_out = pick(ours(*xs)), pick(theirs(*ts))
    if isinstance(their_out, tuple):
        our_out, their_out = ad.concat(our_out), torch.cat(their_out)
    np.testing.assert_allclose(our_out.numpy(), their_out.detach().numpy(), rtol=1e-9, atol=1e-10)
    seed = np.random.default_rng(1).normal(size=our_out.shape)
    our_out.backward(seed)
    their_out.backward(torch.tensor(seed))
    for x, t in zip(xs, ts, strict=True):
        if x.requires_grad:
            np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-8, atol=1e-10)  # type: ignore[union-attr]
    grads = {k: p.grad for k, p in ours.named_parameters()}
    for name, p in theirs.named_parameters():
        if p.grad is not None:
            np.testing.assert_allclose(grads[name].numpy(), p.grad.numpy(), rtol=1e-8, atol=1e-9)
    for name, b in theirs.named_buffers():
        np.testing.assert_allclose(dict(ours.named_buffers())[name].numpy(), b.numpy(), rtol=1e-9)


def x(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape)


class _Chosen:
    """A dictionary of layers, of which one is called."""

    def __init__(self, space: Any, layers: Any) -> None:
        self.layers = layers

    def __call__(self, x: Any) -> Any:
        return self.layers["b"](x)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layers, name)


def _Polynomial(space: Any, a: Any, b: Any) -> Any:  # noqa: N802  reads as a class
    """A module with a list and a dictionary of parameters."""

    class Polynomial(space.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.factors = space.ParameterList([a, b])
            self.rest = space.ParameterDict({"shift": a * 2 if space is T else (a * 2).detach()})

        def forward(self, x: Any) -> Any:
            for factor in self.factors:
                x = x * factor
            return x + self.rest["shift"]

    return Polynomial()


ROWS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), lambda: T.Linear(4, 3), (x(5, 4),)),
    "linear-no-bias": (
        lambda: nn.Linear(4, 3, bias=False),
        lambda: T.Linear(4, 3, bias=False),
        (x(2, 5, 4),),
    ),
    "conv1d": (lambda: nn.Conv1d(2, 4, 3, padding=1), lambda: T.Conv1d(2, 4, 3, padding=1), (x(2, 2, 7),)),
    "conv2d": (
        lambda: nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, groups=2),
        lambda: T.Conv2d(4, 6, (3, 2), stride=2, padding=1, groups=2),
        (x(2, 4, 7, 6),),
    ),
    "maxpool": (lambda: nn.MaxPool2d(2), lambda: T.MaxPool2d(2), (x(2, 3, 6, 6),)),
    "maxpool1d": (lambda: nn.MaxPool1d(2), lambda: T.MaxPool1d(2), (x(2, 3, 6),)),
    "avgpool": (lambda: nn.AvgPool2d(3, 2, 1), lambda: T.AvgPool2d(3, 2, 1), (x(2, 3, 6, 6),)),
    "adaptive": (lambda: nn.AdaptiveAvgPool2d(3), lambda: T.AdaptiveAvgPool2d(3), (x(2, 3, 7, 8),)),
    "flatten": (lambda: nn.Flatten(), lambda: T.Flatten(), (x(2, 3, 4),)),
    "layernorm": (lambda: nn.LayerNorm((3, 4)), lambda: T.LayerNorm((3, 4)), (x(2, 3, 4),)),
    "rmsnorm": (lambda: nn.RMSNorm(4), lambda: T.RMSNorm(4), (x(2, 3, 4),)),
    "groupnorm": (lambda: nn.GroupNorm(2, 4), lambda: T.GroupNorm(2, 4), (x(2, 4, 5),)),
    "batchnorm1d": (lambda: nn.BatchNorm1d(4), lambda: T.BatchNorm1d(4), (x(6, 4),)),
    "batchnorm2d": (lambda: nn.BatchNorm2d(3), lambda: T.BatchNorm2d(3), (x(4, 3, 2, 5),)),
    "batchnorm-eval": (lambda: nn.BatchNorm1d(4).eval(), lambda: T.BatchNorm1d(4).eval(), (x(6, 4),)),
    "embedding": (
        lambda: nn.Embedding(7, 3, padding_idx=2),
        lambda: T.Embedding(7, 3, padding_idx=2),
        (np.array([[0, 2, 2], [6, 0, 0]]),),
    ),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0),
        lambda: T.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
        (x(2, 5, 8),),
    ),
    "encoder-norm-first": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation="gelu", norm_first=True),
        lambda: T.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True),
        (x(2, 5, 8),),
    ),
    "conv3d": (
        lambda: nn.Conv3d(2, 3, 2, padding=1, dilation=2),
        lambda: T.Conv3d(2, 3, 2, padding=1, dilation=2),
        (x(2, 2, 4, 5, 3),),
    ),
    "conv-transpose1d": (
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        lambda: T.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        (x(2, 4, 5),),
    ),
    "conv-transpose2d": (
        lambda: nn.ConvTranspose2d(2, 3, (3, 2), 2, 1, 1, 1, False, 2),
        lambda: T.ConvTranspose2d(2, 3, (3, 2), 2, 1, 1, 1, False, 2),
        (x(2, 2, 4, 3),),
    ),
    "conv-transpose3d": (
        lambda: nn.ConvTranspose3d(2, 3, 2, stride=2),
        lambda: T.ConvTranspose3d(2, 3, 2, stride=2),
        (x(2, 2, 3, 2, 3),),
    ),
    "maxpool3d": (lambda: nn.MaxPool3d(2), lambda: T.MaxPool3d(2), (x(2, 3, 4, 4, 4),)),
    "avgpool3d": (lambda: nn.AvgPool3d(2), lambda: T.AvgPool3d(2), (x(2, 3, 4, 4, 4),)),
    "adaptive1d": (lambda: nn.AdaptiveAvgPool1d(3), lambda: T.AdaptiveAvgPool1d(3), (x(2, 3, 7),)),
    "adaptive3d": (lambda: nn.AdaptiveAvgPool3d(2), lambda: T.AdaptiveAvgPool3d(2), (x(2, 3, 3, 4, 5),)),
    "groupnorm-plain": (
        lambda: nn.GroupNorm(2, 4, affine=False),
        lambda: T.GroupNorm(2, 4, affine=False),
        (x(2, 4, 5),),
    ),
    "batchnorm3d": (lambda: nn.BatchNorm3d(3), lambda: T.BatchNorm3d(3), (x(4, 3, 2, 2, 5),)),
    "instancenorm1d": (lambda: nn.InstanceNorm1d(3), lambda: T.InstanceNorm1d(3), (x(2, 3, 5),)),
    "instancenorm1d-one": (lambda: nn.InstanceNorm1d(3), lambda: T.InstanceNorm1d(3), (x(3, 5),)),
    "instancenorm2d": (
        lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
        lambda: T.InstanceNorm2d(3, affine=True, track_running_stats=True),
        (x(2, 3, 4, 5),),
    ),
    "instancenorm2d-eval": (
        lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True).eval(),
        lambda: T.InstanceNorm2d(3, affine=True, track_running_stats=True).eval(),
        (x(2, 3, 4, 5),),
    ),
    "instancenorm3d": (
        lambda: nn.InstanceNorm3d(3, affine=True).eval(),
        lambda: T.InstanceNorm3d(3, affine=True).eval(),
        (x(2, 3, 4, 2, 2),),
    ),
    "identity": (lambda: nn.Identity(54, unused=1), lambda: T.Identity(54, unused=1), (x(2, 3),)),
    "flatten-some": (lambda: nn.Flatten(0, 1), lambda: T.Flatten(0, 1), (x(2, 3, 4),)),
    "flatten-behind": (lambda: nn.Flatten(-2), lambda: T.Flatten(-2), (x(2, 3, 4),)),
    "unflatten": (lambda: nn.Unflatten(1, (3, -1)), lambda: T.Unflatten(1, (3, -1)), (x(2, 6, 4),)),
    "bilinear": (lambda: nn.Bilinear(3, 4, 5), lambda: T.Bilinear(3, 4, 5), (x(2, 6, 3), x(2, 6, 4))),
    "bilinear-no-bias": (
        lambda: nn.Bilinear(3, 4, 5, bias=False),
        lambda: T.Bilinear(3, 4, 5, bias=False),
        (x(3), x(4)),
    ),
    "prelu": (lambda: nn.PReLU(), lambda: T.PReLU(), (x(5, 4),)),
    "prelu-channels": (lambda: nn.PReLU(3, 0.1), lambda: T.PReLU(3, 0.1), (x(2, 3, 4, 4),)),
    "prelu-vector": (lambda: nn.PReLU(), lambda: T.PReLU(), (x(5),)),
    "relu6": (lambda: nn.ReLU6(), lambda: T.ReLU6(), (5 * x(5, 4),)),
    "pixel-shuffle": (lambda: nn.PixelShuffle(2), lambda: T.PixelShuffle(2), (x(2, 8, 3, 4),)),
    "pixel-unshuffle": (lambda: nn.PixelUnshuffle(2), lambda: T.PixelUnshuffle(2), (x(2, 3, 4, 6),)),
    "dropout2d-eval": (lambda: nn.Dropout2d(0.5).eval(), lambda: T.Dropout2d(0.5).eval(), (x(2, 3, 4, 4),)),
    "dropout2d-all": (lambda: nn.Dropout2d(1.0), lambda: T.Dropout2d(1.0), (x(2, 3, 4, 4),)),
    "moduledict": (
        lambda: _Chosen(nn, nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 2)})),
        lambda: _Chosen(T, T.ModuleDict({"a": T.Linear(4, 3), "b": T.Linear(4, 2)})),
        (x(5, 4),),
    ),
    "parameters": (
        lambda: _Polynomial(nn, nn.Parameter(x(3)), nn.Parameter(x(3) + 1)),
        lambda: _Polynomial(T, T.Parameter(torch.tensor(x(3))), T.Parameter(torch.tensor(x(3) + 1))),
        (x(5, 3),),
    ),
    "decoder-layer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0),
        lambda: T.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True),
        (x(2, 5, 8), x(2, 4, 8) + 1),
    ),
    "decoder-layer-norm-first": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, activation="gelu", norm_first=True),
        lambda: T.TransformerDecoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True),
        (x(2, 5, 8), x(2, 4, 8) + 1),
    ),
    "encoder-stack": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0), 3, nn.LayerNorm(8)),
        lambda: T.TransformerEncoder(
            T.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 3, T.LayerNorm(8)
        ),
        (x(2, 5, 8),),
    ),
    "decoder-stack": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2).eval(),
        lambda: T.TransformerDecoder(T.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2).eval(),
        (x(2, 5, 8), x(2, 4, 8) + 1),
    ),
    "weight-norm": (
        lambda: parametrizations.weight_norm(nn.Linear(4, 3)),
        lambda: T.utils.parametrizations.weight_norm(T.Linear(4, 3)),
        (x(5, 4),),
    ),
    "weight-norm-conv": (
        lambda: parametrizations.weight_norm(nn.Conv2d(2, 3, 2), axis=1),
        lambda: T.utils.parametrizations.weight_norm(T.Conv2d(2, 3, 2), dim=1),
        (x(2, 2, 4, 4),),
    ),
    "weight-norm-whole": (
        lambda: parametrizations.weight_norm(nn.Linear(4, 3), axis=None),
        lambda: T.utils.parametrizations.weight_norm(T.Linear(4, 3), dim=None),
        (x(5, 4),),
    ),
    "weight-norm-twice": (
        lambda: parametrizations.weight_norm(
            parametrizations.weight_norm(nn.LSTMCell(4, 3), "weight_ih"), "weight_hh"
        ),
        lambda: T.utils.parametrizations.weight_norm(
            T.utils.parametrizations.weight_norm(T.LSTMCell(4, 3), "weight_ih"), "weight_hh"
        ),
        (x(5, 4),),
    ),
    "spectral-norm": (
        lambda: parametrizations.spectral_norm(nn.Linear(4, 3), n_power_iterations=2),
        lambda: T.utils.parametrizations.spectral_norm(T.Linear(4, 3), n_power_iterations=2),
        (x(5, 4),),
    ),
    "spectral-norm-conv": (
        lambda: parametrizations.spectral_norm(nn.ConvTranspose2d(2, 3, 2)),
        lambda: T.utils.parametrizations.spectral_norm(T.ConvTranspose2d(2, 3, 2)),
        (x(2, 2, 4, 4),),
    ),
    "spectral-norm-eval": (
        lambda: parametrizations.spectral_norm(nn.Conv1d(2, 3, 2)).eval(),
        lambda: T.utils.parametrizations.spectral_norm(T.Conv1d(2, 3, 2)).eval(),
        (x(2, 2, 4),),
    ),
    "sequential": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2), nn.LogSoftmax()),
        lambda: T.Sequential(T.Linear(4, 8), T.Tanh(), T.Linear(8, 2), T.LogSoftmax(-1)),
        (x(5, 4),),
    ),
}


for _mode, _nd in (
    ("nearest", 1),
    ("nearest-exact", 2),
    ("linear", 1),
    ("bilinear", 2),
    ("bicubic", 2),
    ("trilinear", 3),
    ("area", 2),
):
    for _how in ({"size": (4, 7, 2)[:_nd]}, {"scale_factor": 2}, {"scale_factor": (1.7, 0.6, 2.5)[:_nd]}):
        for _corners in (None, True) if "linear" in _mode or "cubic" in _mode else (None,):
            _options = {**_how, "mode": _mode, "align_corners": _corners}
            ROWS[f"upsample {_options}"] = (
                lambda o=_options: nn.Upsample(**o),
                lambda o=_options: T.Upsample(**o),
                (x(2, 3, 5, 4, 3)[(..., *(0,) * (3 - _nd))],),
            )


@pytest.mark.parametrize("name", ROWS)
def test_layer(name: str) -> None:
    ours, theirs, inputs = ROWS[name]
    both(ours(), theirs(), *inputs)


@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent(layers: int) -> None:
    for ours, theirs in ((nn.LSTM, T.LSTM), (nn.GRU, T.GRU), (nn.RNN, T.RNN)):
        args = (4, 3, layers)
        both(ours(*args), theirs(*args, batch_first=True), x(2, 6, 4), pick=lambda out: out[0])
        both(
            ours(*args),
            theirs(*args, batch_first=True),
            x(2, 6, 4),
            pick=lambda out: out[1][1] if isinstance(out[1], tuple) else out[1],
        )


class _WithStates:
    """A recurrent layer that is given its states and returns everything, flat, in one tensor."""

    def __init__(self, layer: Any, join: Any) -> None:
        self.layer, self.join = layer, join

    def __call__(self, x: Any, hidden: Any, cell: Any) -> Any:
        state = (hidden, cell) if type(self.layer).__name__ == "LSTM" else hidden + cell
        y, last = self.layer(x, state)
        return self.join([t.reshape(-1) for t in (y, *(last if isinstance(last, tuple) else (last,)))])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"batch_first": False}, {"dropout": 1.0}])
def test_recurrent_with_every_option(kind: str, layers: int, bidirectional: bool, options: Any) -> None:
    if options.get("dropout") and layers == 1:
        return
    ours = getattr(nn, kind)(4, 3, layers, bidirectional=bidirectional, **options)
    theirs = getattr(T, kind)(4, 3, layers, bidirectional=bidirectional, **{"batch_first": True, **options})
    assert list(ours.state_dict()) == list(theirs.state_dict())
    batch = 2 if options.get("batch_first", True) else 6
    count = layers * (2 if bidirectional else 1)
    states = x(count, batch, 3), x(count, batch, 3) + 1
    both(_WithStates(ours, ad.concat), _WithStates(theirs, torch.cat), x(2, 6, 4), *states)


def test_a_recurrence_by_relu() -> None:
    options = {"nonlinearity": "relu", "batch_first": True}
    both(nn.RNN(4, 3, **options), T.RNN(4, 3, **options), x(2, 6, 4), pick=lambda out: out[0])


@pytest.mark.parametrize("kind", ["RNNCell", "LSTMCell", "GRUCell"])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"nonlinearity": "relu"}])
def test_cells(kind: str, options: Any) -> None:
    if "nonlinearity" in options and kind != "RNNCell":
        return
    for lead in ((), (5,)):
        ours, theirs = (getattr(n, kind)(4, 3, **options) for n in (nn, T))
        assert list(ours.state_dict()) == list(theirs.state_dict())
        both(ours, theirs, x(*lead, 4))
        for cell in (ours, theirs):
            cell.zero_grad()
        both(_Stepped(ours), _Stepped(theirs), x(*lead, 4), x(*lead, 3), x(*lead, 3) + 1)


class _Stepped:
    """A cell that is given its states."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def __call__(self, x: Any, hidden: Any, cell: Any) -> Any:
        if type(self.cell).__name__ == "LSTMCell":
            return self.cell(x, (hidden, cell))
        return self.cell(x, hidden + cell)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cell, name)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_embedding_bags(mode: str, padding: Any) -> None:
    def bag(module: Any, **options: Any) -> Any:
        return module.EmbeddingBag(7, 3, mode=mode, padding_idx=padding, **options)

    rows, flat = np.array([[0, 2, 5], [6, 1, 3]]), np.array([0, 2, 5, 6, 1, 2])
    both(bag(nn), bag(T), rows)
    both(bag(nn), bag(T), flat, np.array([0, 3, 3, 5]))
    both(bag(nn, include_last_offset=True), bag(T, include_last_offset=True), flat, np.array([0, 3, 3, 5, 6]))
    if mode == "sum":
        ours, theirs = bag(nn), bag(T)
        both(_Weighted(ours, {}), _Weighted(theirs, {}), rows, x(2, 3))


class _Weighted(_Stepped):
    """A bag whose rows have factors."""

    def __init__(self, cell: Any, options: Any) -> None:
        self.cell, self.options = cell, options

    def __call__(self, indices: Any, factors: Any) -> Any:  # type: ignore[override]
        return self.cell(indices, per_sample_weights=factors)


def test_masks_of_stacks() -> None:
    """What PyTorch hides is True there, what a query may see is True here."""
    ours = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0), 2).astype(np.float64)
    theirs = T.TransformerDecoder(T.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), 2).double()
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    target, memory = x(2, 5, 8), x(2, 4, 8) + 1
    present = np.arange(4) < np.array([[4], [2]])
    hidden = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    expected = theirs(
        torch.tensor(target),
        torch.tensor(memory),
        tgt_mask=hidden,
        memory_key_padding_mask=torch.tensor(~present),
    )
    for mask in ({"mask": ~hidden.numpy()}, {"causal": True}):
        found = ours(target, memory, cross_mask=present[:, None, None], **mask)
        np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-10)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0), 2).astype(np.float64)
    peer = T.TransformerEncoder(T.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2).double()
    encoder.load_state_dict({k: v.numpy() for k, v in peer.state_dict().items()})
    expected = peer(torch.tensor(target), mask=hidden)
    np.testing.assert_allclose(
        encoder(target, causal=True).numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-10
    )


def test_spectral_norm_moves_its_vectors_in_training_alone() -> None:
    ours = parametrizations.spectral_norm(nn.Linear(6, 5)).astype(np.float64)
    theirs = T.utils.parametrizations.spectral_norm(T.Linear(6, 5)).double()
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    for training in (True, True, False, True):
        ours.train(training), theirs.train(training)
        np.testing.assert_allclose(
            ours(x(2, 6)).numpy(), theirs(torch.tensor(x(2, 6))).detach().numpy(), rtol=1e-9
        )
        state = {k: v.numpy() for k, v in theirs.state_dict().items()}
        for name, value in ours.state_dict().items():
            np.testing.assert_allclose(value, state[name], rtol=1e-9)


def test_transposed_convolutions_reach_a_given_size() -> None:
    ours, theirs = (n.ConvTranspose2d(2, 3, 3, stride=2, padding=1) for n in (nn, T))
    ours.astype(np.float64), theirs.double()
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    image = x(2, 2, 4, 5)
    for size in ((7, 9), (8, 10), (8, 9)):
        expected = theirs(torch.tensor(image), output_size=size).detach().numpy()
        np.testing.assert_allclose(ours(image, output_size=size).numpy(), expected, rtol=1e-9)


def test_forward_hooks_see_and_change_what_pytorch_s_do() -> None:
    def run(module: Any, tensor: Any) -> list[Any]:
        seen: list[Any] = []
        layer = module.Sequential(module.Linear(2, 2), module.Tanh())
        for p in layer.parameters():
            with ad.no_grad() if module is nn else torch.no_grad():
                p.copy_(tensor(np.full(p.shape, 0.5, np.float32)))
        inner = next(layer.children())
        handles = [
            inner.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
            inner.register_forward_pre_hook(lambda m, args: args[0] + 1),
            inner.register_forward_hook(lambda m, args, out: seen.append((args[0].tolist(), out.tolist()))),
            inner.register_forward_hook(lambda m, args, out: out * 3),
            layer.register_forward_hook(lambda m, args, out: seen.append(out.tolist())),
        ]
        layer(tensor(np.array([[1.0, 2.0]], np.float32)))
        handles[1].remove()
        layer(tensor(np.array([[1.0, 2.0]], np.float32)))
        return seen

    for found, expected in zip(run(nn, ad.tensor), run(T, torch.tensor), strict=True):
        np.testing.assert_allclose(np.ravel(found[0]), np.ravel(expected[0]), rtol=1e-5)


def test_dropout_between_layers_is_for_training_and_is_drawn_from_the_generator() -> None:
    ours, theirs = (n.LSTM(4, 3, 2, batch_first=True, dropout=0.5, bidirectional=True) for n in (nn, T))
    both(ours.eval(), theirs.eval(), x(2, 6, 4), pick=lambda out: out[0])
    ours.train()
    state = ours.rng.state
    first = ours(x(2, 6, 4))[0].numpy()
    assert (ours(x(2, 6, 4))[0].numpy() != first).any()
    ours.rng.state = state
    np.testing.assert_array_equal(ours(x(2, 6, 4))[0].numpy(), first)


@pytest.mark.parametrize("case", ["self", "cross", "causal", "causal and padded"])
def test_attention(case: str) -> None:
    present = np.arange(5) < np.array([[5], [3]]) if "padded" in case else None
    ours, theirs = nn.MultiHeadAttention(8, 2), T.MultiheadAttention(8, 2, batch_first=True)

    class Ours(nn.Module):
        def __init__(self) -> None:
            self.inner = ours

        def forward(self, q: Any, kv: Any) -> Any:
            mask = None if present is None else present[:, None, None]
            return ours(q, mask=mask, causal="causal" in case) if case != "cross" else ours(q, kv)

    class Theirs(T.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = theirs

        def forward(self, q: Any, kv: Any) -> Any:
            mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1) if "causal" in case else None
            hidden = None if present is None else torch.tensor(~present)
            other = kv if case == "cross" else q
            found = theirs(q, other, other, key_padding_mask=hidden, attn_mask=mask, need_weights=False)
            return found[0] + 0 * kv.sum()

    model = Ours()
    model.astype(np.float64)
    theirs.double()
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    q, kv = x(2, 5, 8), x(2, 5, 8) * 0.5
    our_q, our_kv = ad.tensor(q, requires_grad=True), ad.tensor(kv, requires_grad=True)
    their_q, their_kv = torch.tensor(q, requires_grad=True), torch.tensor(kv, requires_grad=True)
    a, b = model(our_q, our_kv), Theirs()(their_q, their_kv)
    np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-10)
    (a**2).sum().backward()
    (b**2).sum().backward()
    np.testing.assert_allclose(our_q.grad.numpy(), their_q.grad.numpy(), rtol=1e-8, atol=1e-10)  # type: ignore[union-attr]
    for name, p in theirs.named_parameters():
        grad = dict(ours.named_parameters())[name].grad
        np.testing.assert_allclose(grad.numpy(), p.grad.numpy(), rtol=1e-8, atol=1e-9)  # type: ignore[union-attr]


def test_a_state_dict_of_pytorch_in_safetensors_loads(tmp_path: Any) -> None:
    files = pytest.importorskip("safetensors.torch")
    theirs = T.Sequential(T.Conv2d(1, 2, 3), T.BatchNorm2d(2), T.Flatten(), T.Linear(72, 4), T.LayerNorm(4))
    files.save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    ours = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 4), nn.LayerNorm(4)
    )
    ours.load_state_dict(ad.load(tmp_path / "model.safetensors"))
    image = x(3, 1, 8, 8).astype(np.float32)
    expected = theirs.eval()(torch.tensor(image)).detach().numpy()
    np.testing.assert_allclose(ours.eval()(image).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_state_of_pytorch_in_safetensors_loads_and_goes_back(tmp_path: Any) -> None:
    files = pytest.importorskip("safetensors.torch")
    pairs = [
        (
            nn.Sequential(
                nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3)
            ),
            T.Sequential(T.Conv2d(1, 2, 3), T.BatchNorm2d(2), T.MaxPool2d(2), T.Flatten(), T.Linear(18, 3)),
            (2, 1, 8, 8),
        ),
        (
            nn.TransformerEncoderLayer(8, 2, 16),
            T.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            (2, 5, 8),
        ),
        (nn.LSTM(3, 5, 2), T.LSTM(3, 5, 2, batch_first=True), (2, 6, 3)),
        (
            nn.LSTM(3, 5, 2, dropout=0.1, bidirectional=True),
            T.LSTM(3, 5, 2, batch_first=True, dropout=0.1, bidirectional=True),
            (2, 6, 3),
        ),
        (nn.GRU(3, 5, bidirectional=True), T.GRU(3, 5, batch_first=True, bidirectional=True), (2, 6, 3)),
    ]
    for ours, theirs, shape in pairs:
        path = tmp_path / "torch.safetensors"
        files.save_file(theirs.state_dict(), path)
        ours.load_state_dict(ad.load(path))
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        found, expected = ours.eval()(ad.asarray(x)), theirs.eval()(torch.tensor(x))
        if isinstance(expected, tuple):
            found, expected = found[0], expected[0]
        np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-5)
        ad.save(path, ours.state_dict())
        theirs.load_state_dict(files.load_file(path))


def test_a_state_of_pytorch_tensors_is_loaded() -> None:
    theirs, ours = torch.nn.Linear(3, 2), nn.Linear(3, 2)
    for state in (theirs.state_dict(), dict(theirs.named_parameters()), theirs.bfloat16().state_dict()):
        ours.load_state_dict(state)
        np.testing.assert_array_equal(ours.weight.numpy(), state["weight"].detach().float().numpy())
