"""Accumulators for tests, and what they hold."""

from __future__ import annotations

import numpy as np

import adjoint as ad


def accumulator(*names: str, shape: tuple[int, ...] = (2,), **options):
    acc = ad.GradientAccumulator(**options)
    for name in names:
        acc.register(name, shape)
    return acc


def frozen(acc: ad.GradientAccumulator) -> object:
    """Everything an accumulator holds, comparable bit by bit."""
    return _bits(acc.state_dict())


def _bits(value):
    if isinstance(value, dict):
        return {k: _bits(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_bits(v) for v in value]
    if isinstance(value, ad.SparseGradient):
        return _bits([value.rows, value.values])
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    return value
