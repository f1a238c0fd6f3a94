"""Dropout of elements and of channels: functions and modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.convert import array_of, asarray
from adjoint.core.shapes import number
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.nn import init
from adjoint.nn.arguments import between
from adjoint.nn.module import Module

__all__ = [
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
]


def dropout(x: Any, p: float = 0.5, *, training: bool = True, rng: Any = None) -> Tensor:
    """Set elements to 0 with probability ``p``, drawn from ``rng``, and scale the rest by 1 / (1 - p).

    The generator is explicit, ``np.random.default_rng(seed)`` or ``ad.random.default_rng(seed)``: the same
    state draws the same mask.
    """
    return _dropped("dropout", asarray(x), 0, p, training, rng)


def _dropped(op: str, x: Tensor, space: int, p: float, training: bool, rng: Any) -> Tensor:
    """Drop elements; of the last ``space`` axes all or nothing."""
    p = number(op, "p", p)
    if not 0 <= p <= 1:
        raise ArgumentError(f"{op}: p is a probability, 0 … 1, but is {p}.")
    if not training or p == 0:
        return x
    shape = x.shape[: x.ndim - space] + (1,) * space
    return x * wrap(_keep_mask(op, shape, x.dtype, p, rng))


def _channels(op: str, x: Any, names: str) -> Tensor:
    """Return images with a batch axis or without; ``names`` are those of the space axes.

    Three axes are no input of dropout2d: PyTorch takes them for (N, C, L), others for (C, H, W).
    """
    x, full = asarray(x), names.count(",") + 3
    alone = "" if names == "H, W" else f" or (C, {names})"
    if x.ndim != full and not (alone and x.ndim == full - 1):
        raise ShapeError(
            f"{op}: the input is (N, C, {names}){alone}, but has shape {x.shape}.\n"
            "  dropout1d is for (N, C, L), dropout2d for (N, C, H, W), dropout3d for (N, C, D, H, W); "
            "dropout drops single elements of any shape."
        )
    return x


def dropout1d(x: Any, p: float = 0.5, *, training: bool = True, rng: Any = None) -> Tensor:
    """Set whole channels of ``(N, C, L)`` or ``(C, L)`` to 0 with probability ``p``; see ``dropout``."""
    return _dropped("dropout1d", _channels("dropout1d", x, "L"), 1, p, training, rng)


def dropout2d(x: Any, p: float = 0.5, *, training: bool = True, rng: Any = None) -> Tensor:
    """Set whole channels of ``(N, C, H, W)`` to 0 with probability ``p``; see ``dropout``."""
    return _dropped("dropout2d", _channels("dropout2d", x, "H, W"), 2, p, training, rng)


def dropout3d(x: Any, p: float = 0.5, *, training: bool = True, rng: Any = None) -> Tensor:
    """Set channels of ``(N, C, D, H, W)`` or ``(C, D, H, W)`` to 0 with probability p; see ``dropout``."""
    return _dropped("dropout3d", _channels("dropout3d", x, "D, H, W"), 3, p, training, rng)


def _keep_mask(op: str, shape: tuple[int, ...], dtype: Any, p: float, rng: Any) -> Any:
    """1 / (1 - p) where an element stays, 0 where it is dropped."""
    if not hasattr(rng, "random"):
        raise InputError(
            f"{op}: give the generator to draw from, rng=np.random.default_rng(seed), but got {rng!r}.\n"
            "  With training=False nothing is drawn."
        )
    if p == 1:
        return np.zeros(shape, dtype)
    return (array_of(rng.random(shape)) >= p) * np.asarray(1 / (1 - p), dtype)


class Dropout(Module):
    """Zeros with probability p in training, the rest scaled up; nothing in evaluation."""

    function: Callable[..., Tensor] = staticmethod(dropout)

    def __init__(self, p: float = 0.5, *, rng: Any = None) -> None:
        self.p = between(type(self).__name__, "p", p, 0.0, 1.0)
        self.rng = init.generator(rng)

    def forward(self, x: Any) -> Tensor:
        """Drop, in training."""
        return self.function(x, self.p, training=self.training, rng=self.rng)

    def extra_repr(self) -> str:
        """The probability."""
        return f"{self.p}"


class Dropout1d(Dropout):
    """Whole channels of (N, C, L) are zero with probability p in training, the rest scaled up."""

    function = staticmethod(dropout1d)


class Dropout2d(Dropout):
    """Whole channels of (N, C, H, W) are zero with probability p in training, the rest scaled up."""

    function = staticmethod(dropout2d)


class Dropout3d(Dropout):
    """Whole channels of (N, C, D, H, W) are zero with probability p in training, the rest scaled up."""

    function = staticmethod(dropout3d)
