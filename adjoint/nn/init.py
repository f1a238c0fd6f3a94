"""Initial values of parameters, drawn from an explicit generator.

Layers take ``rng=``, a generator or a seed.  Without it they draw from ``generator()``, which starts at
seed 0, so that a program gives the same values each time.  ``seed(n)`` restarts it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from adjoint.context import init_generator as _generator
from adjoint.core.convert import tensor
from adjoint.core.docstrings import SharedDoc
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.random import Generator, default_rng
from adjoint.typing import DTypeLike, Lengths

__all__ = [
    "generator", "kaiming_normal", "kaiming_uniform", "normal", "orthogonal", "seed", "uniform",
    "xavier_normal", "xavier_uniform",
]  # fmt: skip


# A generator of adjoint or of NumPy
AnyGenerator: TypeAlias = Generator | np.random.Generator
# A generator, a seed, or None for the default generator
Rng: TypeAlias = Generator | int | Sequence[int] | None


def __dir__() -> list[str]:
    return sorted(__all__)


_init_doc = SharedDoc("""
    Parameters
    ----------
    rng : Generator or int, optional
        Generator or seed.
    dtype : dtype_like
        The dtype of the result.
    shape : tuple of int
        The shape of the weight, (out, in, *kernel).
    scale : float
        Factor of the values.
    activation : str
        The activation after the layer, which determines the gain.

    Returns
    -------
    Tensor
        The values.
    """)
_weight_doc = _init_doc.extended("""
    Raises
    ------
    ShapeError
        If the shape has fewer than two axes.
    """)


@_init_doc
def seed(value: int) -> Generator:
    """Restart the default generator of this context from a seed.

    Parameters
    ----------
    value : int
        The seed.

    Returns
    -------
    Generator
        The new default generator.

    >>> first = ad.nn.init.seed(7).random()
    >>> ad.nn.init.seed(7).random() == first
    tensor(True, dtype=bool)
    """
    fresh = default_rng(value)
    _generator.set(fresh)
    return fresh


@_init_doc
def generator(rng: Rng = None) -> Generator:
    """Return ``rng`` as a generator; if it is None, the default generator of this thread or task.

    Parameters
    ----------
    rng : Generator or int, optional
        A generator or a seed.

    Returns
    -------
    Generator
        The generator.

    >>> ad.nn.init.generator() is ad.nn.init.generator()
    True
    """
    if rng is not None:
        return default_rng(rng)
    found = _generator.get()
    return seed(0) if found is None else found


@_init_doc
def uniform(shape: Lengths, bound: float, *, rng: Rng = None, dtype: DTypeLike = np.float32) -> Tensor:
    """Draw from the uniform distribution on [-bound, bound).

    Parameters
    ----------
    shape : int or tuple of int
        The shape of the result.
    bound : float
        The limit of the absolute values.

    >>> abs(ad.nn.init.uniform((2, 3), 0.1)).max().item() <= 0.1
    True
    """
    return generator(rng).uniform(-bound, bound, size=shape, dtype=dtype).detach()


@_init_doc
def normal(shape: Lengths, std: float = 1.0, *, rng: Rng = None, dtype: DTypeLike = np.float32) -> Tensor:
    """Draw from the normal distribution with mean 0.

    Parameters
    ----------
    shape : int or tuple of int
        The shape of the result.
    std : float
        The standard deviation.

    >>> ad.nn.init.normal((2, 3), 0.02).shape
    (2, 3)
    """
    return generator(rng).normal(0.0, std, size=shape, dtype=dtype).detach()


def _fans(shape: Sequence[int]) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a weight of shape (out, in, *kernel).

    These are the number of inputs of each output and the number of outputs of each input.
    """
    if not np.ndim(shape) or len(shape) < 2:
        raise ShapeError(f"the shape of a weight must have at least two axes, (out, in, …), but is {shape}.")
    window = math.prod(shape[2:])
    return max(shape[1] * window, 1), max(shape[0] * window, 1)  # at least 1: callers divide by them


_GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2.0), "selu": 0.75}


@_init_doc
def gain(activation: str) -> float:
    """Return the factor that preserves the variance through an activation.

    Parameters
    ----------
    activation : {"linear", "sigmoid", "tanh", "relu", "selu"}
        The activation after the layer.

    Returns
    -------
    float
        The factor.

    Raises
    ------
    ArgumentError
        If the activation is unknown.

    >>> ad.nn.init.gain("selu")
    0.75
    """
    if activation not in _GAINS:
        raise ArgumentError(f"gain: activation must be one of {', '.join(_GAINS)}, not {activation!r}.")
    return _GAINS[activation]


@_weight_doc
def xavier_uniform(
    shape: Sequence[int], scale: float = 1.0, *, rng: Rng = None, dtype: DTypeLike = np.float32
) -> Tensor:
    """Draw uniformly with variance ``scale² · 2 / (in + out)`` (Glorot).

    >>> abs(ad.nn.init.xavier_uniform((3, 3))).max().item() <= 1
    True
    """
    return uniform(shape, scale * math.sqrt(6.0 / sum(_fans(shape))), rng=rng, dtype=dtype)


@_weight_doc
def xavier_normal(
    shape: Sequence[int], scale: float = 1.0, *, rng: Rng = None, dtype: DTypeLike = np.float32
) -> Tensor:
    """Draw from the normal distribution with variance ``scale² · 2 / (in + out)`` (Glorot).

    >>> ad.nn.init.xavier_normal((3, 4)).shape
    (3, 4)
    """
    return normal(shape, scale * math.sqrt(2.0 / sum(_fans(shape))), rng=rng, dtype=dtype)


@_weight_doc
def kaiming_uniform(
    shape: Sequence[int], activation: str = "relu", *, rng: Rng = None, dtype: DTypeLike = np.float32
) -> Tensor:
    """Draw uniformly with variance ``gain² / in`` (He).

    >>> abs(ad.nn.init.kaiming_uniform((2, 6))).max().item() <= 1
    True
    """
    return uniform(shape, gain(activation) * math.sqrt(3.0 / _fans(shape)[0]), rng=rng, dtype=dtype)


@_weight_doc
def kaiming_normal(
    shape: Sequence[int], activation: str = "relu", *, rng: Rng = None, dtype: DTypeLike = np.float32
) -> Tensor:
    """Draw from the normal distribution with variance ``gain² / in`` (He).

    >>> ad.nn.init.kaiming_normal((3, 4), "tanh").shape
    (3, 4)
    """
    return normal(shape, gain(activation) / math.sqrt(_fans(shape)[0]), rng=rng, dtype=dtype)


@_weight_doc
def orthogonal(
    shape: Sequence[int], scale: float = 1.0, *, rng: Rng = None, dtype: DTypeLike = np.float32
) -> Tensor:
    """Draw a matrix with orthonormal rows, or orthonormal columns if they are fewer.

    Parameters
    ----------
    shape : tuple of int
        The shape of the weight.  The axes after the first are taken as one.

    >>> q = ad.nn.init.orthogonal((2, 5), dtype="float64")
    >>> bool(abs(q @ q.T - ad.eye(2)).max() < 1e-12)
    True
    """
    if not np.ndim(shape) or len(shape) < 2:
        raise ShapeError(f"orthogonal: the shape must have at least two axes, but is {shape}.")
    rows, columns = shape[0], math.prod(shape[1:])
    flat = generator(rng).normal(size=(max(rows, columns), min(rows, columns)), dtype=np.float64).numpy()
    q, r = np.linalg.qr(flat)
    q = q * np.sign(np.diag(r))
    values = (q if rows >= columns else q.T).reshape(shape) * scale
    return tensor(values, dtype=dtype)
