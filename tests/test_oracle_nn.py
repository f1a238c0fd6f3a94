"""Every layer's output and gradients against PyTorch's, with copied weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn

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
    "sequential": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2), nn.LogSoftmax()),
        lambda: T.Sequential(T.Linear(4, 8), T.Tanh(), T.Linear(8, 2), T.LogSoftmax(-1)),
        (x(5, 4),),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_layer(name: str) -> None:
    ours, theirs, inputs = ROWS[name]
    both(ours(), theirs(), *inputs)


@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent(layers: int) -> None:
    for ours, theirs in ((nn.LSTM, T.LSTM), (nn.GRU, T.GRU)):
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


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
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
