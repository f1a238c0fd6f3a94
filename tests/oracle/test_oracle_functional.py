"""Convolution, pooling, activations, norms, attention and losses against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from oracle import Row, agree, real  # noqa: E402

import adjoint as ad  # noqa: E402

TF = torch.nn.functional
F = ad.nn.functional


def same(name: str, make: Any, note: str = "", order: int = 2, **options: Any) -> Row:
    """The function of this name in both libraries, with the same options."""
    ours, theirs = getattr(F, name), getattr(TF, name)
    return Row(name, lambda *a: ours(*a, **options), lambda *a: theirs(*a, **options), make, note, order)


CONV = [
    same("conv1d", real((2, 3, 7), (4, 3, 3), (4,)), "bias"),
    same("conv1d", real((3, 7), (4, 3, 3)), "unbatched"),
    same("conv1d", real((2, 3, 8), (4, 3, 4)), "same even", padding="same"),
    same("conv1d", real((2, 3, 8), (4, 3, 4)), "same even dilated", padding="same", dilation=3),
    same("conv1d", real((2, 3, 8), (4, 3, 3)), "same odd", padding="same"),
    same("conv1d", real((2, 3, 8), (4, 3, 3)), "valid", padding="valid", stride=3),
    same("conv2d", real((2, 3, 6, 7), (4, 3, 3, 2), (4,)), "bias"),
    same("conv2d", real((2, 3, 6, 7), (4, 3, 3, 2)), "stride", stride=(2, 3)),
    same("conv2d", real((2, 3, 6, 7), (4, 3, 3, 2)), "padding", padding=(2, 1), stride=2),
    same("conv2d", real((2, 3, 7, 8), (4, 3, 3, 2)), "dilation", dilation=(2, 3), padding=1),
    same("conv2d", real((2, 4, 6, 7), (6, 2, 3, 3)), "groups", groups=2, padding=1),
    same("conv2d", real((2, 4, 6, 7), (8, 1, 3, 3)), "depthwise", groups=4, stride=2),
    same("conv2d", real((2, 3, 4, 5), (4, 3, 1, 1)), "pointwise"),
    same("conv2d", real((2, 3, 4, 5), (4, 3, 4, 5)), "whole image"),
    same("conv2d", real((1, 1, 1, 1), (1, 1, 1, 1)), "size 1"),
    same("conv2d", real((0, 3, 5, 5), (4, 3, 3, 3)), "empty batch", order=1),
    same("conv2d", real((2, 2, 4, 4), (3, 2, 2, 2)), "same even", padding="same"),
    same("conv3d", real((2, 2, 4, 5, 3), (3, 2, 2, 3, 2), (3,)), "bias", padding=1, stride=(1, 2, 1)),
    same("conv3d", real((1, 4, 4, 5, 3), (4, 2, 2, 3, 2)), "groups", groups=2, dilation=(2, 1, 1)),
    same("conv_transpose1d", real((2, 3, 5), (3, 4, 3), (4,)), "bias"),
    same("conv_transpose1d", real((3, 5), (3, 4, 3)), "unbatched"),
    same("conv_transpose1d", real((2, 3, 5), (3, 4, 3)), "output padding", stride=3, output_padding=2),
    same("conv_transpose1d", real((2, 3, 5), (3, 4, 2)), "past stride", dilation=3, output_padding=2),
    same("conv_transpose1d", real((2, 3, 5), (3, 4, 1)), "shifted", padding=1, dilation=3, output_padding=2),
    same("conv_transpose1d", real((2, 3, 5), (3, 4, 3)), "padded", stride=2, padding=2, output_padding=1),
    same("conv_transpose2d", real((2, 3, 4, 5), (3, 2, 3, 2), (2,)), "stride", stride=(2, 3), padding=(1, 0)),
    same("conv_transpose2d", real((2, 4, 3, 3), (4, 3, 3, 2), (6,)), "groups", groups=2, dilation=(1, 2)),
    same("conv_transpose2d", real((0, 4, 3, 3), (4, 3, 3, 2)), "empty batch", order=1),
    same("conv_transpose3d", real((1, 2, 3, 2, 3), (2, 2, 2, 3, 2), (2,)), "stride", stride=2, padding=1),
]  # fmt: skip

POOL = [
    same("max_pool1d", real((2, 3, 7)), kernel_size=3),
    same("max_pool1d", real((3, 7)), "unbatched", kernel_size=3, stride=2, padding=1),
    same("max_pool2d", real((2, 3, 6, 7)), kernel_size=2),
    same("max_pool2d", real((2, 3, 6, 7)), "overlap", kernel_size=3, stride=(1, 2), padding=1),
    same("max_pool2d", real((2, 3, 7, 8)), "dilation", kernel_size=(2, 3), stride=2, dilation=2),
    same("max_pool2d", real((2, 3, 6, 7)), "ceil", kernel_size=3, stride=2, ceil_mode=True),
    same("max_pool2d", real((2, 3, 6, 8)), "ceil padded", kernel_size=2, stride=3, padding=1, ceil_mode=True),
    same("max_pool3d", real((2, 2, 4, 5, 6)), kernel_size=2, stride=(1, 2, 3), padding=(0, 1, 1)),
    same("avg_pool1d", real((2, 3, 7)), kernel_size=3, stride=2, padding=1),
    same("avg_pool2d", real((2, 3, 6, 7)), kernel_size=2),
    same("avg_pool2d", real((2, 3, 6, 7)), "overlap", kernel_size=3, stride=1, padding=1),
    same("avg_pool2d", real((2, 3, 6, 7)), "no pad", kernel_size=3, padding=1, count_include_pad=False),
    same("avg_pool2d", real((2, 3, 6, 8)), "ceil", kernel_size=3, stride=2, padding=1, ceil_mode=True),
    same("avg_pool2d", real((2, 3, 6, 8)), "ceil no pad", kernel_size=3, stride=2, padding=1, ceil_mode=True,
         count_include_pad=False),
    same("avg_pool3d", real((2, 2, 4, 5, 6)), kernel_size=2),
    same("adaptive_avg_pool1d", real((2, 3, 7)), output_size=3),
    same("adaptive_avg_pool2d", real((2, 3, 6, 7)), output_size=(3, 5)),
    same("adaptive_avg_pool2d", real((2, 3, 3, 4)), "larger", output_size=(5, 7)),
    same("adaptive_avg_pool2d", real((2, 3, 6, 7)), "one", output_size=1),
    same("adaptive_avg_pool2d", real((2, 3, 6, 7)), "kept", output_size=(None, 2)),
    same("adaptive_avg_pool3d", real((2, 2, 4, 5, 6)), output_size=(3, 2, 4)),
]  # fmt: skip

ACTIVATIONS = [
    *(same(name, real((3, 4), low=-6, high=6)) for name in "relu elu selu silu mish softplus relu6".split()),
    same("gelu", real((3, 4), low=-4, high=6)),
    same("gelu", real((3, 4), low=-6, high=6), "tanh", approximate="tanh"),
    same("leaky_relu", real((3, 4)), negative_slope=0.2),
    same("elu", real((3, 4)), "alpha", alpha=0.7),
    Row("softplus", lambda x: F.softplus(x, 2.0), lambda x: TF.softplus(x, 2.0), real((3, 4)), "beta"),
    same("hardtanh", real((3, 4)), min_val=-0.5, max_val=1.2),
    Row("glu", lambda x: F.glu(x, axis=1), lambda x: TF.glu(x, 1), real((3, 4, 2))),
    *(
        Row(name, lambda x, f=f, d=d: f(x, d), lambda x, h=h, d=d: h(x, dim=d), real((3, 4, 2), low=-9, high=9), str(d))
        for name, f, h in (("softmax", F.softmax, TF.softmax), ("log_softmax", F.log_softmax, TF.log_softmax),
                           ("logsumexp", F.logsumexp, torch.logsumexp))
        for d in (-1, 1)
    ),
]  # fmt: skip


MEAN, VAR = np.array([0.1, -0.2, 0.3, 0.0]), np.array([0.5, 1.0, 2.0, 0.1])
NORMS = [
    same("linear", real((2, 3), (4, 3), (4,))),
    same("linear", real((2, 3), (4, 3)), "no bias"),
    same("linear", real((3,), (4, 3), (4,)), "vector"),
    same("linear", real((2, 5, 3), (4, 3), (4,)), "batch"),
    same("linear", real((0, 3), (4, 3), (4,)), "empty"),
    same("layer_norm", real((2, 5)), normalized_shape=(5,)),
    Row("layer_norm", lambda x, w, b: F.layer_norm(x, (3, 4), w, b, 1e-3),
        lambda x, w, b: TF.layer_norm(x, (3, 4), w, b, 1e-3), real((2, 3, 4), (3, 4), (3, 4)), "affine"),
    same("rms_norm", real((2, 5)), normalized_shape=(5,)),
    Row("rms_norm", lambda x, w: F.rms_norm(x, (4,), w, 1e-3), lambda x, w: TF.rms_norm(x, (4,), w, 1e-3),
        real((2, 3, 4), (4,)), "affine"),
    same("group_norm", real((2, 6)), num_groups=3),
    Row("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), lambda x, w, b: TF.group_norm(x, 2, w, b),
        real((2, 6, 3, 2), (6,), (6,)), "affine"),
    Row("batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        lambda x, w, b: TF.batch_norm(x, None, None, w, b, training=True), real((3, 4, 2), (4,), (4,)), "training"),
    Row("batch_norm", lambda x, w, b: F.batch_norm(x, MEAN, VAR, w, b),
        lambda x, w, b: TF.batch_norm(x, torch.tensor(MEAN), torch.tensor(VAR), w, b), real((3, 4, 2), (4,), (4,)), "eval"),
    Row("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, -1), lambda x, y: TF.cosine_similarity(x, y, -1),
        real((2, 4), (2, 4))),
    Row("cosine_similarity", F.cosine_similarity, TF.cosine_similarity, real((2, 3, 4), (1, 3, 4)), "axis 1"),
    *(Row("normalize", lambda x, p=p: F.normalize(x, p, -1), lambda x, p=p: TF.normalize(x, p, -1), real((3, 4)), f"p {p}")
      for p in (1.0, 2.0, 3.0, float("inf"))),
]  # fmt: skip


def attend(f: Any, **options: Any) -> Any:
    def call(*args: Any) -> Any:
        given = {k: v() if callable(v) else v for k, v in options.items()}
        return f(*args, **given)

    return call


MASK = np.array([[True, False, True, True], [False, True, False, True], [True, True, True, True]])
QKV = real((2, 2, 3, 5), (2, 2, 4, 5), (2, 2, 4, 6))
ATTENTION = [
    Row("attention", F.scaled_dot_product_attention, TF.scaled_dot_product_attention, QKV),
    Row("attention", attend(F.scaled_dot_product_attention, is_causal=True),
        attend(TF.scaled_dot_product_attention, is_causal=True), QKV, "causal"),
    Row("attention", attend(F.scaled_dot_product_attention, attn_mask=MASK, scale=0.3),
        attend(TF.scaled_dot_product_attention, attn_mask=lambda: torch.tensor(MASK), scale=0.3), QKV, "mask"),
    Row("attention", F.scaled_dot_product_attention, TF.scaled_dot_product_attention,
        real((2, 3, 5), (2, 4, 5), (2, 4, 6), (2, 3, 4)), "added mask"),
]  # fmt: skip

T2, T3 = np.array([1, 0, 3]), np.array([[1, 0], [3, -100], [2, 2]])
WEIGHT = np.array([0.5, 2.0, 1.0, 0.25])


def on_classes(name: str, target: Any, make: Any, note: str = "", **options: Any) -> Row:
    """A loss with class indices, and perhaps weights, which are given to each library as its own."""
    ours, theirs = getattr(F, name), getattr(TF, name)
    given = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    return Row(
        name,
        lambda x: ours(x, target, **options),
        lambda x: theirs(x, torch.tensor(target), **given),
        make,
        note,
    )


CLASSES = [
    on_classes(name, target, make, f"{target.ndim}-d {reduction}{' weight' if w is not None else ''}",
               weight=w, reduction=reduction)
    for name in ("cross_entropy", "nll_loss")
    for target, make in ((T2, real((3, 4))), (T3, real((3, 4, 2))), (np.array(2), real((4,))))
    for reduction in ("mean", "sum", "none")
    for w in (None, WEIGHT)
] + [
    on_classes("cross_entropy", T3, real((3, 4, 2)), "smoothing", label_smoothing=0.1),
    on_classes("cross_entropy", T3, real((3, 4, 2)), "smoothing weight", label_smoothing=0.1, weight=WEIGHT),
    on_classes("cross_entropy", T3, real((3, 4, 2)), "smoothing sum", label_smoothing=0.1, weight=WEIGHT, reduction="sum"),
    on_classes("cross_entropy", T3, real((3, 4, 2)), "smoothing none", label_smoothing=0.1, weight=WEIGHT, reduction="none"),
    on_classes("cross_entropy", T2, real((3, 4)), "ignored", ignore_index=3),
    *(same("cross_entropy", real((3, 4, 2), (3, 4, 2)), f"probabilities {r} {e}", reduction=r, label_smoothing=e)
      for r in ("mean", "sum", "none") for e in (0.0, 0.2)),
    Row("cross_entropy", lambda x, t: F.cross_entropy(x, t, WEIGHT),
        lambda x, t: TF.cross_entropy(x, t, torch.tensor(WEIGHT)), real((3, 4), (3, 4)), "probabilities weight"),
]  # fmt: skip

LOSSES = [
    *(same(name, real((3, 4), (3, 4)), reduction, reduction=reduction)
      for name in "mse_loss l1_loss huber_loss smooth_l1_loss".split() for reduction in ("mean", "sum", "none")),
    same("huber_loss", real((3, 4), (3, 4)), "delta", delta=0.5),
    same("smooth_l1_loss", real((3, 4), (3, 4)), "beta", beta=0.5),
    *(same("binary_cross_entropy", real((3, 4), (3, 4), low=0.05, high=0.95), r, reduction=r, order=1)
      for r in ("mean", "sum", "none")),
    *(same("binary_cross_entropy_with_logits", real((3, 4), (3, 4), low=-3, high=3), r, reduction=r)
      for r in ("mean", "sum", "none")),
    Row("binary_cross_entropy_with_logits", lambda x, t: F.binary_cross_entropy_with_logits(x, t, WEIGHT, pos_weight=2 * WEIGHT),
        lambda x, t: TF.binary_cross_entropy_with_logits(x, t, torch.tensor(WEIGHT), pos_weight=torch.tensor(2 * WEIGHT)),
        real((3, 4), (3, 4), low=0.1, high=0.9), "weights"),
    *(same("kl_div", real((3, 4), (3, 4), low=0.1, high=2), f"{r} {g}", reduction=r, log_target=g)
      for r in ("mean", "sum", "none", "batchmean") for g in (False, True)),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:reduction. .mean. divides:UserWarning")
@pytest.mark.filterwarnings("ignore:Using padding=.same:UserWarning")  # torch copies; so do we
@pytest.mark.oracle
@pytest.mark.parametrize("row", CONV + POOL + ACTIVATIONS + NORMS + ATTENTION + CLASSES + LOSSES, ids=str)
def test_agrees_with_torch(row):
    agree(row)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_convolution_in_float32_is_as_accurate_as_torch(name):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 8, 9, 9)), rng.standard_normal((8, 8, 3, 3))
    exact = getattr(F, name)(x, w).numpy()
    ours = getattr(F, name)(x.astype(np.float32), w.astype(np.float32))
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours.numpy(), exact, rtol=1e-5, atol=1e-5)
