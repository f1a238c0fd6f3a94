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


@pytest.mark.filterwarnings("ignore:Using padding=.same:UserWarning")  # torch copies; so do we
@pytest.mark.oracle
@pytest.mark.parametrize("row", CONV + POOL, ids=str)
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
