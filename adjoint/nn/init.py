"""Initial values of parameters, drawn from an explicit generator.

Layers take ``rng=``: a generator or a seed.  Without one they draw from ``generator()``, which starts
at seed 0, so that a program is the same each time; ``seed(n)`` starts it anew.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import Any

import numpy as np

from adjoint.core.convert import tensor
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.random import Generator, default_rng

__all__ = [
    "generator",
    "kaiming_normal",
    "kaiming_uniform",
    "normal",
    "orthogonal",
    "seed",
    "uniform",
    "xavier_normal",
    "xavier_uniform",
]


def __dir__() -> list[str]:
    return sorted(__all__)


_generator: ContextVar[Generator | None] = ContextVar("adjoint_init_generator", default=None)


def seed(value: int) -> Generator:
    """Start the generator of layers without ``rng=`` anew, in this context; return it."""
    fresh = default_rng(value)
    _generator.set(fresh)
    return fresh


def generator(rng: Any = None) -> Generator:
    """Return ``rng`` as a generator; without one, that of this context."""
    if rng is not None:
        return default_rng(rng)
    found = _generator.get()
    return seed(0) if found is None else found


def uniform(shape: Any, bound: float, *, rng: Any = None, dtype: Any = np.float32) -> Tensor:
    """Draw evenly from -bound … bound."""
    return generator(rng).uniform(-bound, bound, size=shape, dtype=dtype).detach()


def normal(shape: Any, std: float = 1.0, *, rng: Any = None, dtype: Any = np.float32) -> Tensor:
    """Draw from a normal distribution around 0."""
    return generator(rng).normal(0.0, std, size=shape, dtype=dtype).detach()


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a weight (out, in, *kernel)."""
    if not np.ndim(shape) or len(shape) < 2:
        raise ShapeError(f"a weight has at least two axes, (out, in, …), but the shape is {shape}.")
    window = math.prod(shape[2:])
    return max(shape[1] * window, 1), max(shape[0] * window, 1)  # an empty weight has no numbers to draw


_GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2.0), "selu": 0.75}


def gain(activation: str) -> float:
    """Return the factor that keeps the variance through an activation."""
    if activation not in _GAINS:
        raise ArgumentError(f"activation is one of {', '.join(_GAINS)}, not {activation!r}.")
    return _GAINS[activation]


def xavier_uniform(shape: Any, scale: float = 1.0, *, rng: Any = None, dtype: Any = np.float32) -> Tensor:
    """Draw evenly with variance scale² · 2 / (in + out) (Glorot)."""
    return uniform(shape, scale * math.sqrt(6.0 / sum(_fans(shape))), rng=rng, dtype=dtype)


def xavier_normal(shape: Any, scale: float = 1.0, *, rng: Any = None, dtype: Any = np.float32) -> Tensor:
    """Draw normally with variance scale² · 2 / (in + out) (Glorot)."""
    return normal(shape, scale * math.sqrt(2.0 / sum(_fans(shape))), rng=rng, dtype=dtype)


def kaiming_uniform(
    shape: Any, activation: str = "relu", *, rng: Any = None, dtype: Any = np.float32
) -> Tensor:
    """Draw evenly with variance gain² / in (He)."""
    return uniform(shape, gain(activation) * math.sqrt(3.0 / _fans(shape)[0]), rng=rng, dtype=dtype)


def kaiming_normal(
    shape: Any, activation: str = "relu", *, rng: Any = None, dtype: Any = np.float32
) -> Tensor:
    """Draw normally with variance gain² / in (He)."""
    return normal(shape, gain(activation) / math.sqrt(_fans(shape)[0]), rng=rng, dtype=dtype)


def orthogonal(shape: Any, scale: float = 1.0, *, rng: Any = None, dtype: Any = np.float32) -> Tensor:
    """Draw a matrix with orthonormal rows or columns, whichever are fewer."""
    if not np.ndim(shape) or len(shape) < 2:
        raise ShapeError(f"orthogonal needs two axes or more, but the shape is {shape}.")
    rows, columns = shape[0], math.prod(shape[1:])
    flat = generator(rng).normal(size=(max(rows, columns), min(rows, columns)), dtype=np.float64).numpy()
    q, r = np.linalg.qr(flat)
    q = q * np.sign(np.diag(r))
    values = (q if rows >= columns else q.T).reshape(shape) * scale
    return tensor(values, dtype=dtype)
