"""What layers, losses and activations are given: sizes, options, masks, and the keywords of other libraries."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from messages import raised

import adjoint as ad
from adjoint import errors, nn


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nn.Linear(-1, 3), "Linear: in_features must be at least 0, but is -1."),
        (lambda: nn.Linear(3.0, 3), "Linear: in_features must be an integer, but got 3.0."),  # type: ignore[arg-type]
        (lambda: nn.Conv2d(1, 2, (3,)), r"Conv2d: kernel_size must be one number or 2, but is \(3,\)."),
        (lambda: nn.Conv1d(1, 2, 0), "Conv1d: kernel_size must be at least 1, but is 0."),
        (lambda: nn.Conv2d(1, 2, 3, groups=0), "Conv2d: groups must be at least 1, but is 0."),
        (lambda: nn.MultiHeadAttention(8, 0), "MultiHeadAttention: num_heads must be at least 1"),
        (lambda: nn.LSTM(3, 0), "LSTM: hidden_size must be at least 1"),
        (lambda: nn.GRU(3, 4, num_layers=0), "GRU: num_layers must be at least 1"),
        (lambda: nn.BatchNorm1d(0), "BatchNorm1d: num_features must be at least 1"),
        (
            lambda: nn.MultiHeadAttention(8, 2)(ad.ones(8)),
            r"inputs must have shape \(…, length, 8\), not \(8,\).",
        ),
        (
            lambda: nn.LSTM(3, 5)(ad.ones((2, 6, 3)), (ad.ones((1, 2, 5)),)),
            r"\(hidden, cell\), but is a sequence of 1 item",
        ),
        (
            lambda: nn.GRU(3, 5)(ad.ones((2, 6, 3)), ad.ones((1, 3, 5))),
            r"GRU: the state must have shape \(layers, batch, hidden\), here \(1, 2, 5\), but has shape \(1, 3, 5\).",
        ),
    ],
)
def test_sizes_and_states_that_do_not_fit_are_named(make: Any, text: str) -> None:
    with pytest.raises(errors.AdjointError, match=text):
        make()


def test_options_of_activations() -> None:
    assert nn.LeakyReLU(0.5)(np.array([-2.0])).tolist() == [-1.0]
    assert nn.Softmax(0)(np.ones((2, 3))).tolist() == nn.Softmax(axis=0)(np.ones((2, 3))).tolist()
    assert repr(nn.Hardtanh(-2.0, 2.0)) == repr(nn.Hardtanh(min_val=-2.0, max_val=2.0))
    for make, text in [
        (lambda: nn.ReLU(inplace=True), "ReLU has no argument inplace=: the result is always a new tensor"),
        (lambda: nn.Softmax(dim=1), "Softmax: dim= is called axis= in adjoint"),
    ]:
        with pytest.raises(errors.InputError, match=text):
            make()
    for make, text in [
        (lambda: nn.Softmax(1, axis=1), "multiple values for argument 'axis'"),
        (lambda: nn.Tanh(1.0), "takes 1 positional argument but 2 were given"),
    ]:
        with pytest.raises(TypeError, match=text):
            make()
    assert repr(nn.Softmax()) == "Softmax()"
    assert repr(nn.Softmax(1)) == "Softmax(axis=1)"
    assert repr(nn.CrossEntropyLoss(np.ones(2))) == "CrossEntropyLoss(weight=[1. 1.])"


def test_batch_norm_inside_vmap_trains_no_statistics_and_says_so() -> None:
    layer = nn.BatchNorm1d(3)
    x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    before = {k: v.copy() for k, v in layer.state_dict().items()}
    for call in (ad.vmap(layer), ad.vmap(ad.grad(lambda x: layer(x).sum()))):
        with pytest.raises(
            errors.InputError, match=r"BatchNorm1d: running .* inside ad.vmap, .*\n  Call model.eval\(\)"
        ):
            call(x)
        for name, value in layer.state_dict().items():
            np.testing.assert_array_equal(value, before[name])
    # statistics that are the same for all elements are tracked as outside
    ad.vmap(lambda s: layer(x[0]) * s)(np.arange(3.0))
    assert layer.num_batches_tracked.item() == 1
    layer.eval()
    np.testing.assert_allclose(ad.vmap(layer)(x).numpy()[1], layer(x[1]).numpy(), rtol=1e-6)


WRONG_KEYWORDS: list[tuple[Any, str]] = [
    (lambda x: x.sum(dim=0), "sum: dim= is called axis= in adjoint."),
    (lambda x: ad.mean(x, axis=0, keepdim=True), "mean: keepdim= is called keepdims= in adjoint."),
    (lambda x: nn.functional.softmax(x, dim=-1), "softmax: dim= is called axis= in adjoint."),
    (lambda x: ad.concat([x, x], dim=0), "concat: dim= is called axis= in adjoint."),
    (lambda x: x.var(unbiased=False), "var: unbiased= is called correction= in adjoint."),
    (lambda x: ad.sum(x, out=x), "sum has no argument out=: results are new tensors; to write one into x, call x.copy_(result)"),
    (lambda x: x.max(axs=0), "max has no argument axs=.  It accepts x, axis, keepdims."),
    (lambda x: nn.Softmax(dim=-1), "Softmax: dim= is called axis= in adjoint."),
    (lambda x: nn.LayerNorm(3, elementwise_affine=False), "LayerNorm: elementwise_affine= is called affine= in adjoint."),
    (lambda x: nn.Conv1d(3, 4, 2, device="cpu"), "Conv1d has no argument device=: all tensors are in CPU memory"),
    (lambda x: ad.optim.Adam([nn.Parameter([1.0])], learning_rate=1), "Adam: learning_rate= is called lr= in adjoint."),
    (lambda x: nn.Linear(3, 2, biass=True), "Linear has no argument biass=.  It accepts in_features, out_features, bias, rng"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WRONG_KEYWORDS)
def test_keywords_of_other_libraries_say_what_they_are_called(call: Any, text: str) -> None:
    with pytest.raises(errors.InputError) as info:
        call(ad.ones((2, 3)))
    assert str(info.value).startswith(text)


def test_constructors_keep_their_signatures_and_their_own_errors() -> None:
    assert list(inspect.signature(nn.Linear).parameters) == [
        "in_features",
        "out_features",
        "bias",
        "rng",
        "dtype",
    ]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'out_features'"):
        nn.Linear(3)  # type: ignore[call-arg]


def test_every_loss_has_its_module() -> None:
    from adjoint.nn.loss_reduction import LossModule

    losses = [cls for cls in vars(nn).values() if isinstance(cls, type) and issubclass(cls, LossModule)]
    functions = {
        name for name in nn.functional.__all__ if name.endswith(("_loss", "_entropy", "_div", "_logits"))
    }
    assert {cls.function.__name__ for cls in losses} == functions
    x, t = ad.tensor([0.0, 3.0]), ad.tensor([0.5, 0.5])
    assert nn.SmoothL1Loss(beta=2.0)(x, t).item() == nn.functional.smooth_l1_loss(x, t, beta=2.0).item()


def test_losses_check_their_options_when_they_are_made() -> None:
    assert raised(lambda: nn.MSELoss(foo=1)) == "MSELoss has no argument foo=.  It accepts reduction."
    assert raised(lambda: nn.MSELoss(reduction="avg")) == (
        "MSELoss: reduction must be 'mean', 'sum' or 'none', not 'avg'."
    )
    assert raised(lambda: nn.KLDivLoss(reduction="avg")) == (
        "KLDivLoss: reduction must be 'mean', 'sum', 'none' or 'batchmean', not 'avg'."
    )
    nn.KLDivLoss(reduction="batchmean")
    w, x, t = np.array([1.0, 3.0]), np.eye(2), np.array([0, 1])
    loss = nn.CrossEntropyLoss(w)
    assert loss(x, t).item() == nn.functional.cross_entropy(x, t, weight=w).item()
    assert nn.HuberLoss("sum", 2.0).options == {"reduction": "sum", "delta": 2.0}


def test_options_of_layers_that_are_none() -> None:
    for call, text in (
        (lambda: nn.Dropout("a"), "Dropout: p must be a number, but got 'a'."),
        (lambda: nn.Conv2d(1, 1, 3.0), "Conv2d: kernel_size must be an integer, but got 3.0."),
        (lambda: nn.Conv2d(1, 1, (3,)), "Conv2d: kernel_size must be one number or 2, but is (3,)."),
        (lambda: nn.LayerNorm(3.5), "LayerNorm: normalized_shape must be an integer, but got 3.5."),
        (lambda: nn.RMSNorm("a"), "RMSNorm: normalized_shape must be an integer, but got 'a'."),
        (lambda: nn.LayerNorm(()), "LayerNorm: normalized_shape must be one number or more, but is ()."),
        (lambda: nn.LayerNorm(3, eps=-1), "LayerNorm: eps must be finite and at least 0, but is -1."),
        (lambda: nn.GroupNorm(2, 4, eps="a"), "GroupNorm: eps must be a number, but got 'a'."),
        (lambda: nn.BatchNorm1d(3, eps=-1), "BatchNorm1d: eps must be finite and at least 0, but is -1."),
        (lambda: nn.BatchNorm1d(3, momentum=5), "BatchNorm1d: momentum must be from 0 to 1, but is 5."),
        (
            lambda: nn.MultiHeadAttention(4, 2, dropout=2),
            "MultiHeadAttention: dropout must be from 0 to 1, but is 2.",
        ),
    ):
        assert raised(call) == text


def test_sizes_of_norms_are_python_numbers() -> None:
    assert repr(nn.LayerNorm(np.int64(3))) == "LayerNorm((3,))  # 6 parameters"
    assert nn.RMSNorm(np.array([2, 3])).normalized_shape == (2, 3)


def test_batch_norm_names_the_shape_it_does_not_take() -> None:
    for norm in (nn.BatchNorm1d(3), nn.BatchNorm1d(3).eval()):
        assert raised(lambda norm=norm: norm(np.ones((2, 4)))) == (
            "BatchNorm1d: the input must have shape (N, C) or (N, C, L) with C = 3 channels, but has shape (2, 4).\n"
            "  In the module BatchNorm1d."
        )
    assert raised(lambda: nn.BatchNorm2d(3)(np.ones((2, 3)))).startswith(
        "BatchNorm2d: the input must have shape (N, C, H, W) with C = 3 channels, but has shape (2, 3)."
    )


def test_batch_norm_without_momentum_averages_over_all_batches() -> None:
    norm = nn.BatchNorm1d(1, momentum=None, dtype=np.float64)
    for value in (1.0, 2.0, 6.0):
        norm(np.array([[value - 1], [value + 1]]))
    assert norm.running_mean.tolist() == [3.0]
    np.testing.assert_allclose(norm.running_var.numpy(), [2.0])


def test_an_index_outside_a_table_is_called_an_index() -> None:
    assert raised(lambda: nn.Embedding(5, 2)([5])).startswith("embedding: index 5 is out of range 0 … 4.")
    assert raised(lambda: nn.Embedding(5, 2)([0.5])).startswith("embedding: indices must be integers")


def test_a_recurrent_layer_inside_a_sequential() -> None:
    relu = nn.ReLU()
    net = nn.Sequential(relu, nn.LSTM(2, 3), relu)
    assert raised(lambda: net(np.ones((1, 4, 2), np.float32))) == (
        "Sequential: layer 1, LSTM, returned a tuple of 2 items, but layer 2, ReLU, does not accept a tuple.\n"
        "  RNN, LSTM and GRU return (outputs, state): add `lambda pair: pair[0]` as the next layer.\n"
        "  In the module Sequential."
    )
    net = nn.Sequential(nn.LSTM(2, 3), lambda pair: pair[0], nn.Linear(3, 1))
    assert net(np.ones((1, 4, 2), np.float32)).shape == (1, 4, 1)


def test_masks_by_the_names_of_others() -> None:
    x = ad.ones((2, 3, 4), dtype=np.float32)
    attention, layer = nn.MultiHeadAttention(4, 2), nn.TransformerEncoderLayer(4, 2, 8)
    assert raised(lambda: attention(x, attn_mask=None)).startswith(
        "MultiHeadAttention has no argument attn_mask=: pass mask=, which is True where a query may attend; "
        "for a boolean attn_mask, mask=~attn_mask.\n"
    )
    assert raised(lambda: attention(x, key_padding_mask=None)).startswith(
        "MultiHeadAttention has no argument key_padding_mask=: pass mask=, which is True where there is no padding: "
        "mask=~key_padding_mask[:, None, None, :].\n"
    )
    assert raised(lambda: layer(x, src_mask=None)).startswith(
        "TransformerEncoderLayer has no argument src_mask=: pass mask=, which is True where a query may attend"
    )
    assert raised(lambda: layer(x, is_causal=True)).startswith(
        "TransformerEncoderLayer: is_causal= is called causal= in adjoint."
    )


def test_a_mask_of_padding_says_how_it_is_written() -> None:
    attention = nn.MultiHeadAttention(4, 2, rng=0)
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    present = np.array([[True, True, False], [True, True, True]])
    assert raised(lambda: attention(x, mask=present)) == (
        "MultiHeadAttention: a mask with two axes must have shape (queries, keys), here (3, 3), but has shape (2, "
        "3).\n"
        "  If it has shape (batch, keys), as a padding mask has, pass mask[:, None, None, :].\n"
        "  In the module MultiHeadAttention."
    )
    one = attention(x[:1], mask=present[:1])  # (1, keys): the same for every query
    np.testing.assert_array_equal(one.numpy(), attention(x[:1], mask=present[:1, None, None]).numpy())
    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, rng=0)
    found = layer(x, mask=present[:, None, None], causal=True)
    both = layer(x, mask=present[:, None, None] & np.tri(3, dtype=bool))
    np.testing.assert_array_equal(found.numpy(), both.numpy())


def test_a_mask_has_all_leading_axes_or_none() -> None:
    attention = nn.MultiHeadAttention(4, 2, rng=0, dtype=np.float64)
    x = ad.tensor(np.random.default_rng(0).normal(size=(2, 3, 4)))
    mask = np.ones((2, 3, 3), bool)
    mask[1, :, 2] = False
    assert raised(lambda: attention(x, mask=mask)).startswith(
        "MultiHeadAttention: the leading axes of a mask of shape (2, 3, 3) are ambiguous.\n"
        "  Pass a mask of shape (3, 3) or (batch, heads, 3, 3).  Use mask[:, None] for one mask per sample, "
        "mask[None] for one mask per head."
    )
    present = np.array([[True, True, True], [True, True, False]])
    hidden = attention(x, mask=present[:, None, None, :])
    np.testing.assert_array_equal(hidden.numpy(), attention(x, mask=mask[:, None]).numpy())
    np.testing.assert_allclose(hidden[1, :2].numpy(), attention(x[1, :2]).numpy())
    np.testing.assert_allclose(hidden[0].numpy(), attention(x[0]).numpy())
    assert attention(x, mask=mask[:1]).shape == (2, 3, 4)
    assert attention(x[0], mask=mask).shape == (3, 4)  # of one sequence: a mask per head


@pytest.mark.parametrize(
    ("layer", "shown"),
    [
        (nn.Conv2d(1, 8, 3, padding=1), "Conv2d(1, 8, kernel=(3, 3), stride=1, padding=1)"),
        (
            nn.Conv1d(4, 4, 3, dilation=2, groups=4, bias=False),
            "Conv1d(4, 4, kernel=(3,), stride=1, padding=0, dilation=2, groups=4, bias=False)",
        ),
        (nn.MaxPool2d(2), "MaxPool2d(2)"),
        (nn.AvgPool2d(3, 2, 1), "AvgPool2d(3, stride=2, padding=1)"),
        (nn.AdaptiveAvgPool2d((1, 1)), "AdaptiveAvgPool2d((1, 1))"),
        (nn.Embedding(5, 3), "Embedding(5, 3)"),
        (nn.Embedding(5, 3, padding_idx=0, sparse=True), "Embedding(5, 3, padding_idx=0, sparse=True)"),
    ],
)
def test_layers_show_what_they_were_made_with(layer: nn.Module, shown: str) -> None:
    assert repr(layer).partition("  #")[0] == shown


def test_dtypes_and_rows_of_padding_that_are_none() -> None:
    assert (
        raised(lambda: nn.Linear(2, 2, dtype="flaot32"))
        == "'flaot32' is not a dtype.  Use a NumPy dtype, for example np.float32."
    )
    assert raised(lambda: nn.Embedding(5, 3, padding_idx=5)) == (
        "Embedding: padding_idx must be from 0 to 4, but is 5."
    )
    assert not nn.Embedding(5, 3, padding_idx=-1).weight.numpy()[4].any()
