"""Elementwise functions against PyTorch: values, gradients, double backward; real and complex."""

from __future__ import annotations

import pytest

import adjoint as ad

torch = pytest.importorskip("torch")

from oracle import Row, agree, real  # noqa: E402  after importorskip

UNARY = """
    abs acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2
    negative positive reciprocal sigmoid sign sin sinh sqrt square tan tanh relu
    floor ceil trunc
""".split()
_LOW_HIGH = {"acosh": (1.2, 3), "log": (0.3, 3), "log2": (0.3, 3), "log10": (0.3, 3), "sqrt": (0.3, 3),
             "asin": (-0.8, 0.8), "acos": (-0.8, 0.8), "atanh": (-0.8, 0.8), "log1p": (-0.6, 3),
             "reciprocal": (0.4, 2)}  # fmt: skip

ROWS = [
    Row(name, getattr(ad, name), getattr(torch, name), real((2, 3), low=low, high=high))
    for name in UNARY
    for low, high in [_LOW_HIGH.get(name, (-2, 2))]
]


@pytest.mark.oracle
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_agrees_with_torch(row: Row) -> None:
    agree(row)
