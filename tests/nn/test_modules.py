"""Modules that people know from PyTorch, against plain NumPy: values, names of weights, messages."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
from messages import raised

import adjoint as ad
from adjoint import errors, nn
from adjoint.nn.utils import parametrizations
from adjoint.testing import gradcheck

F = nn.functional
rng = np.random.default_rng(0)


def x(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def shapes(module: nn.Module) -> dict[str, Any]:
    return {name: value.shape for name, value in module.state_dict().items()}


# Layers --------------------------------------------------------------------------------------------


def test_identity_takes_what_pytorch_s_takes() -> None:
    a = x(2, 3)
    assert nn.Identity(64, anything=True)(a) is a and repr(nn.Identity()) == "Identity()"


def test_flatten_and_unflatten_are_inverse() -> None:
    a = ad.tensor(x(2, 6, 5))
    assert nn.Flatten()(a).shape == (2, 30)
    assert nn.Flatten()(a[0, 0]).shape == (5, 1)
    assert (
        nn.Flatten(0, 1)(a).shape == (12, 5) and repr(nn.Flatten(0, 1)) == "Flatten(start_dim=0, end_dim=1)"
    )
    split = nn.Unflatten(1, (2, -1))
    assert split(a).shape == (2, 2, 3, 5) and repr(split) == "Unflatten(1, (2, -1))"
    np.testing.assert_array_equal(nn.Flatten(1, 2)(split(a)).numpy(), a.numpy())
    assert nn.Unflatten(0, (0, 3))(np.ones((0, 2))).shape == (0, 3, 2)
    assert raised(lambda: nn.Unflatten(1, (4, -1))(a)).startswith(
        "Unflatten: axis 1 of length 6 cannot be split into (4, -1)."
    )
    assert raised(lambda: nn.Flatten(2, 1)(a)).startswith(
        "Flatten: start_dim must not be after end_dim, but start_dim is 2 and end_dim is 1 (shape (2, 6, 5))."
    )
    assert (
        raised(lambda: nn.Unflatten(dim=1, unflattened_size=(2, 3)))
        == "Unflatten: dim= is called axis= in adjoint."
    )


def test_bilinear_is_a_form_per_output() -> None:
    layer, a, b = nn.Bilinear(3, 4, 2, rng=0), x(5, 3), x(5, 4)
    w, bias = layer.weight.numpy(), layer.bias.numpy()
    expected = np.stack([(a @ w[o] * b).sum(1) + bias[o] for o in range(2)], 1)
    np.testing.assert_allclose(layer(a, b).numpy(), expected, rtol=1e-5)
    assert repr(layer) == "Bilinear(3, 4, 2)  # 26 parameters"
    assert raised(lambda: layer(b, a)).startswith(
        "bilinear: x1 must have shape (…, in1), x2 (…, in2) and the weight (out, in1, in2), but the shapes are "
        "x1 (5, 4), x2 (5, 3) and weight (2, 3, 4)."
    )


def test_prelu_has_a_slope_for_each_channel() -> None:
    layer = nn.PReLU(3, 0.5)
    a = x(2, 3, 4)
    np.testing.assert_allclose(layer(a).numpy(), np.where(a > 0, a, 0.5 * a), rtol=1e-6)
    gradcheck(
        F.prelu, (ad.tensor(rng.normal(size=(2, 3)), requires_grad=True), ad.ones(3, requires_grad=True))
    )
    assert raised(lambda: layer(x(2, 4))).startswith(
        "prelu: the weight must be one slope, or a vector of 4, one per channel of x (shape (2, 4))"
    )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_transposed_convolutions_are_adjoints(n: int) -> None:
    there = getattr(nn, f"Conv{n}d")(2, 3, 3, stride=2, padding=1, bias=False, rng=0).astype(np.float64)
    back = getattr(nn, f"ConvTranspose{n}d")(3, 2, 3, stride=2, padding=1, bias=False, rng=0).astype(
        np.float64
    )
    back.load_state_dict(there.state_dict())
    a, b = rng.normal(size=(1, 2, *(5,) * n)), rng.normal(size=(1, 3, *(3,) * n))
    left, right = (there(a).numpy() * b).sum(), (a * back(b).numpy()).sum()
    np.testing.assert_allclose(left, right)


def test_transposed_convolutions_say_what_size_they_reach() -> None:
    layer = nn.ConvTranspose2d(2, 4, 3, stride=2, groups=2, rng=0)
    assert shapes(layer) == {"weight": (2, 2, 3, 3), "bias": (4,)}
    assert (
        repr(layer) == "ConvTranspose2d(2, 4, kernel=(3, 3), stride=2, padding=0, groups=2)  # 40 parameters"
    )
    assert layer(x(1, 2, 4, 4), output_size=(10, 9)).shape == (1, 4, 10, 9)
    assert raised(lambda: layer(x(1, 2, 4, 4), output_size=12)).startswith(
        "ConvTranspose2d: output_size must be from (9, 9) to (10, 10) for an input of shape (1, 2, 4, 4), but is (12, 12)."
    )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_instance_norm_is_a_group_norm_per_channel(n: int) -> None:
    layer = getattr(nn, f"InstanceNorm{n}d")
    a = x(2, 3, *(4,) * n)
    expected = F.group_norm(a, 3).numpy()
    np.testing.assert_allclose(layer(3)(a).numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer(3)(a[0]).numpy(), expected[0], rtol=1e-4, atol=1e-5)
    tracked = layer(3, affine=True, track_running_stats=True, momentum=1.0)
    tracked(a)
    space = tuple(range(2, n + 2))
    np.testing.assert_allclose(tracked.running_mean.numpy(), a.mean(space).mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(tracked.running_var.numpy(), a.var(space, ddof=1).mean(0), rtol=1e-4)
    assert tracked.eval()(a).shape == a.shape and set(shapes(tracked)) >= {"weight", "running_var"}
    assert raised(lambda: layer(4)(a)).startswith(f"InstanceNorm{n}d: the input must have shape (N, C, ")
    assert raised(lambda: layer(3)(a[(..., *(slice(0, 1),) * n)])).startswith(
        "instance_norm: x must have shape (N, C, …) with more"
    )


def test_group_norm_knows_its_channels() -> None:
    layer = nn.GroupNorm(2, 4, affine=False)
    assert not shapes(layer) and repr(layer) == "GroupNorm(2, 4, affine=False)"
    assert raised(lambda: layer(x(2, 6))).startswith(
        "GroupNorm: the input must have shape (N, C, …) with C = 4 channels"
    )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_dropout_of_channels_drops_them_whole(n: int) -> None:
    layer = getattr(nn, f"Dropout{n}d")(0.5, rng=0)
    a = np.ones((8, 16, *(3,) * n), np.float32)
    kept = layer(a).numpy().reshape(8, 16, -1)
    assert set(np.unique(kept)) == {0.0, 2.0} and (kept == kept[..., :1]).all()
    assert 0.3 < (kept[..., 0] > 0).mean() < 0.7
    np.testing.assert_array_equal(layer.eval()(a).numpy(), a)
    text = raised(lambda: layer(np.ones((4, 4, 4, 4, 4, 4))))
    assert text.startswith(f"dropout{n}d: the input must have shape (N, C, ")


def test_three_axes_are_ambiguous_for_dropout2d() -> None:
    assert raised(lambda: nn.Dropout2d(0.5)(x(2, 3, 4))).startswith(
        "dropout2d: the input must have shape (N, C, H, W), but has shape (2, 3, 4)."
    )


def test_interpolation_repeats_and_averages() -> None:
    a = np.arange(4.0).reshape(1, 1, 4)
    assert nn.Upsample(scale_factor=2)(a).tolist() == [[[0, 0, 1, 1, 2, 2, 3, 3]]]
    assert nn.Upsample(7, mode="linear", align_corners=True)(a).tolist() == [[[0, 0.5, 1, 1.5, 2, 2.5, 3]]]
    assert nn.Upsample(2, mode="area")(a).tolist() == [[[0.5, 2.5]]]
    assert repr(nn.Upsample(scale_factor=2)) == "Upsample(scale_factor=2, mode=nearest)"
    b = ad.tensor(rng.normal(size=(1, 2, 3, 4)), requires_grad=True)
    for mode in ("nearest", "bilinear", "bicubic", "area"):
        gradcheck(lambda t, mode=mode: F.interpolate(t, size=(5, 3), mode=mode), b)
    # an infinite pixel stays where it is
    a[0, 0, 0] = np.inf
    assert np.isfinite(F.interpolate(a, 8, mode="linear").numpy()[0, 0, 3:]).all()
    for call, text in (
        (lambda: F.interpolate(a), "interpolate: pass exactly one of size= and scale_factor=."),
        (
            lambda: F.interpolate(a, 2, mode="bilinear"),
            "interpolate: mode 'bilinear' requires an x with 2 spatial axes",
        ),
        (lambda: F.interpolate(a, 2, mode="cubic"), "interpolate: mode must be one of nearest"),
        (
            lambda: F.interpolate(a, 2, align_corners=True),
            "interpolate: align_corners is only for the modes linear",
        ),
        (lambda: F.interpolate(a, scale_factor=0.1), "interpolate: scale_factor 0.1 would make an image"),
        (lambda: nn.Upsample(), "Upsample: pass exactly one of size= and scale_factor=."),
    ):
        assert raised(call).startswith(text)


def test_pixels_are_shuffled_and_back() -> None:
    a = x(2, 8, 3, 4)
    y = nn.PixelShuffle(2)(a)
    assert y.shape == (2, 2, 6, 8) and y[0, 0, 0, 1].item() == a[0, 1, 0, 0]
    np.testing.assert_array_equal(nn.PixelUnshuffle(2)(y).numpy(), a)
    assert raised(lambda: nn.PixelShuffle(3)(a)).startswith(
        "pixel_shuffle: x must have shape (…, C·3², H, W) for upscale_factor=3"
    )


def test_bags_are_sums_of_rows() -> None:
    table = nn.EmbeddingBag(5, 3, mode="sum", rng=0)
    w, ids = table.weight.numpy(), np.array([4, 0, 0, 2])
    np.testing.assert_allclose(table(ids, [0, 3, 3]).numpy(), [w[4] + 2 * w[0], 0 * w[0], w[2]], rtol=1e-5)
    np.testing.assert_allclose(table(ids.reshape(2, 2)).numpy(), [w[4] + w[0], w[0] + w[2]], rtol=1e-5)
    sparse = nn.EmbeddingBag(5, 3, sparse=True, padding_idx=0, rng=0)
    assert not sparse.weight.numpy()[0].any()
    sparse(ids, [0, 3]).sum().backward()
    assert isinstance(sparse.weight.grad, ad.SparseGradient)
    np.testing.assert_allclose(sparse.weight.grad.to_dense().sum(1), [0, 0, 3, 0, 3])
    assert raised(lambda: table(ids)).startswith(
        "embedding_bag: indices must have shape (bags, length), or (n,) with offsets="
    )
    assert raised(lambda: table(ids, [1, 2])).startswith(
        "embedding_bag: offsets must start at 0, must not decrease"
    )
    assert raised(lambda: table([[5]])).startswith("embedding_bag: index 5 is out of range 0 … 4.")


# Recurrence ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_a_cell_makes_the_steps_of_its_layer(kind: str) -> None:
    layer, cell = getattr(nn, kind)(3, 4, rng=0), getattr(nn, f"{kind}Cell")(3, 4, rng=1)
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in layer.state_dict().items()})
    a, state = x(2, 5, 3), None
    for i in range(5):
        state = cell(a[:, i], state)
        hidden = state[0] if kind == "LSTM" else state
        np.testing.assert_allclose(hidden.numpy(), layer(a)[0].numpy()[:, i], rtol=1e-4, atol=1e-6)
    assert repr(cell) == f"{kind}Cell(3, 4)  # {sum(p.size for p in cell.parameters())} parameters"
    assert raised(lambda: cell(x(2, 4))).startswith(
        f"{kind}Cell: the input must have shape (batch, 3) or (3,), but has shape"
    )
    wrong = x(3, 4)
    assert raised(lambda: cell(x(2, 3), (wrong, wrong) if kind == "LSTM" else wrong)).startswith(
        f"{kind}Cell: for an input of shape (2, 3) the state must have shape (2, 4), but has shape (3, 4)."
    )


def test_a_plain_recurrence_in_transforms() -> None:
    layer = nn.RNN(3, 4, 2, bidirectional=True, rng=0).astype(np.float64)
    a = rng.normal(size=(2, 5, 3))
    gradcheck(lambda t: layer(t)[0], ad.tensor(a, requires_grad=True))
    one = ad.vmap(lambda s: layer(s)[0])(a)
    np.testing.assert_allclose(one.numpy(), layer(a)[0].numpy())
    assert layer(a[:, :0])[0].shape == (2, 0, 8) and layer(a[:, :0])[1].shape == (4, 2, 4)
    assert (
        raised(lambda: nn.RNN(3, 4, nonlinearity="sin"))
        == "RNN: nonlinearity must be 'tanh' or 'relu', not 'sin'."
    )


# Transformers --------------------------------------------------------------------------------------


def test_stacks_copy_their_layer_and_draw_differently() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, rng=0)
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8))
    assert encoder.layers[0] is not layer and "layers.1.self_attn.in_proj_weight" in shapes(encoder)
    assert encoder.layers[0].dropout.rng is encoder.layers[1].dropout.rng is layer.dropout.rng
    a = x(2, 5, 8)
    assert encoder(a).shape == a.shape
    # a later position is not seen
    causal = encoder.eval()(a, causal=True).numpy()
    a[:, -1] += 1
    np.testing.assert_allclose(encoder(a, causal=True).numpy()[:, :-1], causal[:, :-1], rtol=1e-5, atol=1e-6)
    assert raised(lambda: nn.TransformerEncoder(nn.Linear(2, 2), 2)).startswith(  # type: ignore[arg-type]
        "TransformerEncoder: the layer must be a TransformerEncoderLayer, not Linear"
    )


def test_masks_of_decoders_by_the_names_of_others() -> None:
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2)
    a = x(2, 5, 8)
    for given, text in (
        (
            "memory_mask",
            "pass cross_mask=, which is True where a query may attend; for a boolean memory_mask, "
            "cross_mask=~memory_mask",
        ),
        (
            "tgt_mask",
            "pass mask=, which is True where a query may attend; for a boolean tgt_mask, mask=~tgt_mask",
        ),
        (
            "memory_key_padding_mask",
            "pass cross_mask=, which is True where there is no padding: "
            "cross_mask=~memory_key_padding_mask[:, None, None, :]",
        ),
    ):
        found = raised(lambda given=given: decoder(a, a, **{given: None}))
        assert found.startswith(f"TransformerDecoder has no argument {given}=: {text}.")
    assert raised(lambda: decoder(a, a, tgt_is_causal=True)).startswith(
        "TransformerDecoder: tgt_is_causal= is called causal= in adjoint."
    )


# Containers ----------------------------------------------------------------------------------------


def test_a_dictionary_of_modules() -> None:
    heads = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.ReLU()})
    heads["c"] = nn.Linear(3, 1)
    assert list(heads) == heads.keys() == ["a", "b", "c"] and len(heads) == 3 and "b" in heads
    assert heads["a"] is heads.a and [k for k, _ in heads.items()] == ["a", "b", "c"]
    assert list(shapes(heads)) == ["a.weight", "a.bias", "c.weight", "c.bias"]
    assert heads.pop("b").__class__ is nn.ReLU and "b" not in heads
    del heads["a"]
    assert len(heads.parameters()) == 2 and len(heads.values()) == 1
    for call, text in (
        (lambda: heads["z"], "ModuleDict has no key 'z'.  The keys are c."),
        (
            lambda: heads.update({"x.y": nn.ReLU()}),
            "ModuleDict: a key must be a non-empty string without dots, but is 'x.y'.",
        ),
        (
            lambda: heads.update({"keys": nn.ReLU()}),
            "ModuleDict: the key 'keys' is already the name of an attribute of ModuleDict.",
        ),
        (
            lambda: heads.update({"f": abs}),
            "ModuleDict: each item must be a module, but one is a builtin_function_or_method.",
        ),
    ):
        assert raised(call).startswith(text)


def test_lists_and_dictionaries_of_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.scales = nn.ParameterList([nn.Parameter([2.0]), np.array([3.0])])
            self.shifts = nn.ParameterDict({"low": [1.0]})

        def forward(self, x: Any) -> Any:
            for scale in self.scales:
                x = x * scale
            return x + self.shifts["low"]

    net = Net()
    assert list(shapes(net)) == ["scales.0", "scales.1", "shifts.low"]
    assert net(np.array([1.0])).tolist() == [7.0]
    grads = ad.grad(lambda m: m(np.array([1.0])).sum())(net)
    assert [float(g.detach()) for g in grads.scales] == [3.0, 2.0] and grads.shifts.keys() == ["low"]
    assert len(net.scales) == 2 and len(net.scales[:1]) == 1 and net.scales[-1].item() == 3.0
    assert raised(lambda: net.scales[2]).startswith("ParameterList: the parameters have the indices 0 … 1")
    net.shifts["high"] = net.scales[0]
    assert net.shifts["high"] is net.scales[0] and len(net.parameters()) == 3


# Parametrizations ------------------------------------------------------------------------------------


def test_weight_norm_keeps_the_values_and_splits_the_gradient() -> None:
    layer = nn.Linear(4, 3, rng=0)
    a, before = x(2, 4), layer.weight.numpy(copy=True)
    assert parametrizations.weight_norm(layer) is layer
    np.testing.assert_allclose(layer.weight.numpy(), before, rtol=1e-6)
    layer(a).sum().backward()
    assert {k: p.grad is not None for k, p in layer.named_parameters()} == {
        "bias": True,
        "parametrizations.weight.original0": True,
        "parametrizations.weight.original1": True,
    }
    with ad.no_grad():
        layer.parametrizations.weight.original0 *= 2
    np.testing.assert_allclose(layer.weight.numpy(), 2 * before, rtol=1e-6)
    assert copy.deepcopy(layer)(a).shape == (2, 3) and repr(layer).startswith("Linear(4, 3)")
    values = {k: v * 2 for k, v in layer.named_parameters()}
    np.testing.assert_allclose(nn.functional_call(layer, values, a).numpy(), 2 * layer(a).numpy(), rtol=1e-5)
    assert raised(lambda: setattr(layer, "weight", nn.Parameter([1.0]))).startswith(
        "Linear.weight cannot be assigned, because it is computed from parametrizations.weight.original0, parametrizations.weight.original1."
    )
    assert raised(lambda: parametrizations.weight_norm(layer)).startswith(
        "weight_norm: Linear has no parameter 'weight'.  The parameters are: bias."
    )
    assert raised(lambda: parametrizations.weight_norm(nn.Linear(2, 2), dim=0)).startswith(
        "weight_norm: dim= is called axis= in adjoint."
    )


def test_spectral_norm_brings_the_largest_singular_value_to_one() -> None:
    layer = parametrizations.spectral_norm(nn.Conv2d(2, 3, 3, rng=0), rng=0)
    for _ in range(100):
        layer(x(1, 2, 5, 5))
    values = np.linalg.svd(layer.eval().weight.numpy().reshape(3, -1), compute_uv=False)
    np.testing.assert_allclose(values[0], 1, rtol=1e-4)
    layer(x(1, 2, 5, 5)).sum().backward()
    assert layer.parametrizations.weight.original.grad.shape == (3, 2, 3, 3)
    state = layer.state_dict()
    layer(x(1, 2, 5, 5))
    assert all((v == state[k]).all() for k, v in layer.state_dict().items())  # evaluation moves nothing
    assert raised(lambda: parametrizations.spectral_norm(nn.PReLU())).startswith(
        "spectral_norm: the parameter must have at least two axes, but has shape (1,)."
    )


def test_spectral_norm_inside_vmap() -> None:
    layer = parametrizations.spectral_norm(nn.Linear(3, 2, rng=0), rng=0)
    a = x(4, 3)

    def rows(params: Any) -> Any:
        return ad.vmap(lambda p: nn.functional_call(layer, p, a))(params)

    params = {name: ad.stack([p, 2 * p]).detach() for name, p in layer.named_parameters()}
    assert raised(lambda: rows(params)).startswith(
        "spectral_norm: the singular vectors cannot be updated inside ad.vmap, because each element of the "
        "batch would have its own.\n  Call model.eval() first."
    )
    assert ad.vmap(layer)(ad.tensor(a)).shape == (4, 2)  # one weight for all elements
    layer.eval()
    np.testing.assert_allclose(rows(params).numpy()[0], layer(a).numpy(), rtol=1e-12)


# Hooks -----------------------------------------------------------------------------------------------


def test_forward_hooks_see_and_change() -> None:
    layer = nn.Linear(2, 2, rng=0)
    a, seen = x(3, 2), []
    plain = layer(a).numpy()
    with layer.register_forward_hook(lambda module, inputs, output: seen.append((module, inputs[0].shape))):
        layer(a)
        assert seen == [(layer, (3, 2))]
    layer(a)
    assert len(seen) == 1
    double = layer.register_forward_hook(lambda module, inputs, output: output * 2)
    np.testing.assert_array_equal(layer(a).numpy(), 2 * plain)
    zero = layer.register_forward_pre_hook(lambda module, inputs: inputs[0] * 0)
    np.testing.assert_allclose(layer(a).numpy(), 2 * np.tile(layer.bias.numpy(), (3, 1)))
    double.remove(), zero.remove()
    np.testing.assert_array_equal(layer(a).numpy(), plain)
    assert raised(lambda: layer.register_forward_hook(3)) == "Linear: a hook must be callable, not int."  # type: ignore[arg-type]
    assert "_forward_hooks" not in nn.Linear(2, 2).__dict__ and len(layer.state_dict()) == 2


def test_forward_hooks_differentiate_and_run_in_transforms() -> None:
    net = nn.Sequential(nn.Linear(2, 3, rng=0), nn.Tanh()).astype(np.float64)
    net[0].register_forward_hook(lambda module, inputs, output: output**2)
    a = rng.normal(size=(4, 2))
    expected = np.tanh((a @ net[0].weight.numpy().T + net[0].bias.numpy()) ** 2)
    np.testing.assert_allclose(net(a).numpy(), expected)
    np.testing.assert_allclose(ad.vmap(net)(a).numpy(), expected)
    np.testing.assert_allclose(nn.functional_call(net, dict(net.named_parameters()), a).numpy(), expected)
    gradcheck(net, ad.tensor(a, requires_grad=True))


# Widths ----------------------------------------------------------------------------------------------

WIDE: dict[str, tuple[Any, Any]] = {
    "Linear": (lambda: nn.Linear(4, 2), (3, 4)),
    "Bilinear": (lambda: nn.Sequential(lambda a: (a, a), lambda ab: nn.Bilinear(4, 4, 2)(*ab)), (3, 4)),
    "Conv1d": (lambda: nn.Conv1d(3, 2, 1), (2, 3, 4)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(3, 2, 1), (2, 3, 4)),
    "LSTM": (lambda: nn.LSTM(4, 2), (2, 3, 4)),
    "RNN": (lambda: nn.RNN(4, 2), (2, 3, 4)),
    "GRUCell": (lambda: nn.GRUCell(4, 2), (3, 4)),
    "MultiHeadAttention": (lambda: nn.MultiHeadAttention(4, 2), (2, 3, 4)),
    "after a norm": (lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)), (3, 4)),
}


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("make", [np.ones, ad.ones, lambda shape: np.ones(shape, np.int64)])
def test_float64_data_for_a_float32_net_warn_at_the_line_of_the_call(name: str, make: Any) -> None:
    layer, shape = WIDE[name]
    net, data = layer(), make(shape)
    with pytest.warns(UserWarning, match="computes in float64") as caught:
        net(data)
    first = caught[0]
    kind, dtype = type(net).__name__, data.dtype
    argument = "query" if name == "MultiHeadAttention" else "x"
    assert str(first.message) == (
        f"{kind}: the input {argument!r} is {dtype}, but the parameters are float32, so the network computes in float64, "
        "which takes more than twice as long.\n"
        f"  Pass {argument}.astype(np.float32), or make the parameters float64: model.astype(np.float64)."
    )
    assert first.filename == __file__


def test_a_net_warns_once_per_line() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, image: Any, *, scale: float = 2.0) -> Any:
            image = self.one(image) * scale
            return self.two(image)

    net, data = Net(), np.ones((2, 4))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            net(data, scale=np.float32(1))
    assert len(caught) == 1 and "Net: the input 'image' is float64" in str(caught[0].message)


def test_no_warning_where_the_dtypes_are_those_of_the_net() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    single = x(2, 4)
    assert (net(single) * 2.5 + 1).dtype == np.float32  # Python numbers are weak
    assert net.astype(np.float64)(single).dtype == np.float64  # float64 is what was asked for
    assert nn.Linear(4, 1, dtype=np.float16)(single.astype(np.float16)).dtype == np.float16
    assert nn.Embedding(4, 2)([1, 2]).dtype == np.float32
    assert nn.Conv1d(1, 1, 1)(np.ones((1, 1, 3), np.uint8)).dtype == np.float32


# Names from elsewhere ----------------------------------------------------------------------------------


def test_names_of_jax_are_explained() -> None:
    for look, message in (
        (
            lambda: ad.jit,
            "module 'adjoint' has no attribute 'jit'.  Use ad.compile(f).",
        ),
        (lambda: ad.lax, "Use ad.scan, ad.fori_loop, ad.while_loop, ad.cond and ad.map."),
        (lambda: ad.tree_map, "Use ad.tree.map(f, tree)."),
        (lambda: ad.nn.relu, "Use ad.nn.functional.relu(x)."),
    ):
        with pytest.raises(errors.AbsentNameError) as info:
            look()
        assert str(info.value).endswith(message)
    for call, message in (
        (lambda: ad.vmap(abs, in_dims=0), "vmap: in_dims= is called in_axes= in adjoint."),
        (lambda: ad.vmap(abs, out_dims=0), "vmap: out_dims= is called out_axes= in adjoint."),
    ):
        with pytest.raises(errors.InputError) as info:
            call()
        assert str(info.value) == message


def test_there_is_one_order_for_embedding() -> None:
    with pytest.raises(errors.AbsentNameError) as info:
        ad.embedding  # noqa: B018
    assert str(info.value).endswith(
        "Use ad.nn.functional.embedding(indices, table), or ad.take(table, indices, axis=0)."
    )
    assert F.embedding([1, 1], np.eye(2)).tolist() == [[0, 1], [0, 1]]
