"""Cases of convolution and pooling."""

from __future__ import annotations

from typing import Any

from adjoint.core.namespace import raw
from adjoint.testing.cases import Case, array

_PLAIN = {"stride": (1,), "padding": ((0, 0),), "dilation": (1,), "groups": 1}
_FULL = {"stride": (2, 1), "padding": ((1, 2), (0, 1)), "dilation": (1, 2), "groups": 2}
_CUT = {"stride": (2,), "padding": ((1, -1),), "dilation": (1,), "groups": 1}  # as output_padding


def _trilinear(note: str, x: Any, w: Any, g: Any, at: dict[str, Any]) -> list[Case]:
    return [
        Case("conv", (x, w), at, note),
        Case("conv_input", (g, w), {"size": x.shape[2:], **at}, note),
        Case("conv_weight", (x, g), {"kernel": w.shape[2:], **at}, note),
    ]


_OVERLAP = {"kernel": (3,), "stride": (2,), "padding": ((1, 1),), "dilation": (1,)}
_APART = {"kernel": (2, 2), "stride": (2, 2), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}
_HOLES = {"kernel": (2,), "stride": (1,), "padding": ((0, 1),), "dilation": (2,)}


def _pools(x: Any, at: dict[str, Any], note: str) -> list[Case]:
    y = raw.max_pool(x, **at)
    size = x.shape[-len(at["kernel"]) :]
    return [
        Case("window_sum", (x,), at, note),
        Case("window_spread", (array(*y.shape, seed=2),), {"size": size, **at}, note),
        Case("max_pool", (x,), at, note),
        Case("max_spread", (array(*y.shape, seed=2), x, y), at, note),
        Case("max_gather", (array(*x.shape, seed=2), x, y), at, note),
    ]


CASES = [
    *_trilinear("plain", array(2, 2, 5), array(3, 2, 2, seed=1), array(2, 3, 4, seed=2), _PLAIN),
    *_trilinear("full", array(2, 2, 4, 5), array(4, 1, 3, 2, seed=1), array(2, 4, 3, 4, seed=2), _FULL),
    *_trilinear("cut", array(1, 2, 6), array(2, 2, 2, seed=1), array(1, 2, 3, seed=2), _CUT),
    *_pools(array(2, 7, low=0.1, high=9.0), _OVERLAP, "overlap"),
    *_pools(array(1, 2, 4, 5), _APART, "apart"),
    *_pools(array(6), _HOLES, "holes"),
]
