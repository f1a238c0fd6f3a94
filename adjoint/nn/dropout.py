"""Dropout of elements and of channels: functions and modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.config import get_default_dtype
from adjoint.core.convert import array_of, asarray
from adjoint.core.lifted import made_by_host
from adjoint.core.shapes import number, number_between
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.nn import init
from adjoint.nn.module import Module
from adjoint.nn.shared_docs import layer_doc
from adjoint.typing import ArrayLike

__all__ = ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d"]

_dropout_doc = layer_doc.extended("""
    Parameters
    ----------
    training : bool
        With False, x is returned unchanged and nothing is drawn.
    p : float
        The probability that a channel is dropped.
    rng : Generator
        The generator that draws the mask.  Required in training.
    """)
_channels_doc = _dropout_doc.extended("""
    Parameters
    ----------
    rng : Generator or int, optional
        Generator or seed of the masks.
    """)


@_dropout_doc
def dropout(
    x: ArrayLike, p: float = 0.5, *, training: bool = True, rng: init.AnyGenerator | None = None
) -> Tensor:
    """Set elements to 0 with probability ``p``, and scale the others by 1 / (1 - p).

    The generator is explicit: the same state draws the same mask.

    Parameters
    ----------
    p : float
        The probability that an element is dropped.
    rng : Generator
        ``ad.random.default_rng(seed)`` or ``np.random.default_rng(seed)``.  Required in training.

    Raises
    ------
    InputError
        If a mask must be drawn and ``rng`` is not a generator.

    >>> y = ad.nn.functional.dropout(ad.ones(100), 0.5, rng=ad.random.default_rng(0))
    >>> sorted(set(y.tolist()))
    [0.0, 2.0]
    """
    return _dropped("dropout", asarray(x), 0, p, training, rng)


def _dropped(
    op: str, x: Tensor, space: int, p: float, training: bool, rng: init.AnyGenerator | None
) -> Tensor:
    """Return ``x`` with random elements set to 0 and the others scaled by 1 / (1 - p).

    Each slice along the last ``space`` axes is kept or set to 0 as a whole.  Unless ``training``, return
    ``x`` unchanged.  ``op`` is the name of the caller, for errors.
    """
    p = number(op, "p", p)
    if not 0 <= p <= 1:
        raise ArgumentError(f"{op}: p must be a probability from 0 to 1, but is {p}.")
    if not training or p == 0:
        return x
    shape, dtype = x.shape[: x.ndim - space] + (1,) * space, x.dtype
    form = "mask", rng, np.float32 if get_default_dtype().itemsize < 8 else np.float64, p
    mask = made_by_host(lambda: _keep_mask(op, shape, dtype, p, rng), shape, dtype, form)
    return x * wrap(mask)


def _channels(op: str, x: Any, names: str) -> Tensor:
    """Return an input of shape (N, C, …) or (C, …) as a tensor; raise if it has another number of axes.

    ``names`` are the names of the spatial axes, such as "H, W".  (C, H, W) is not accepted, because PyTorch
    interprets three axes as (N, C, L).
    """
    x, full = asarray(x), names.count(",") + 3
    alone = "" if names == "H, W" else f" or (C, {names})"
    if x.ndim != full and not (alone and x.ndim == full - 1):
        raise ShapeError(
            f"{op}: the input must have shape (N, C, {names}){alone}, but has shape {x.shape}.\n"
            "  Use dropout1d for (N, C, L), dropout2d for (N, C, H, W), dropout3d for (N, C, D, H, W), and "
            "dropout to drop single elements of a tensor of any shape."
        )
    return x


@_dropout_doc
def dropout1d(
    x: ArrayLike, p: float = 0.5, *, training: bool = True, rng: init.AnyGenerator | None = None
) -> Tensor:
    """Set whole channels to 0 with probability ``p``, and scale the others by 1 / (1 - p).

    Parameters
    ----------
    x : array_like
        The input, with shape (N, C, L) or (C, L).

    >>> y = ad.nn.functional.dropout1d(ad.ones((8, 4, 5)), 0.5, rng=ad.random.default_rng(0))
    >>> sorted(set(y.sum(-1).reshape(-1).tolist()))
    [0.0, 10.0]
    """
    return _dropped("dropout1d", _channels("dropout1d", x, "L"), 1, p, training, rng)


@_dropout_doc
def dropout2d(
    x: ArrayLike, p: float = 0.5, *, training: bool = True, rng: init.AnyGenerator | None = None
) -> Tensor:
    """Set whole channels to 0 with probability ``p``, and scale the others by 1 / (1 - p).

    Parameters
    ----------
    x : array_like
        The input, with shape (N, C, H, W).

    >>> y = ad.nn.functional.dropout2d(ad.ones((8, 4, 1, 5)), 0.5, rng=ad.random.default_rng(0))
    >>> sorted(set(y.sum((2, 3)).reshape(-1).tolist()))
    [0.0, 10.0]
    """
    return _dropped("dropout2d", _channels("dropout2d", x, "H, W"), 2, p, training, rng)


@_dropout_doc
def dropout3d(
    x: ArrayLike, p: float = 0.5, *, training: bool = True, rng: init.AnyGenerator | None = None
) -> Tensor:
    """Set whole channels to 0 with probability ``p``, and scale the others by 1 / (1 - p).

    Parameters
    ----------
    x : array_like
        The input, with shape (N, C, D, H, W) or (C, D, H, W).

    >>> y = ad.nn.functional.dropout3d(ad.ones((8, 4, 1, 1, 5)), 0.5, rng=ad.random.default_rng(0))
    >>> sorted(set(y.sum((2, 3, 4)).reshape(-1).tolist()))
    [0.0, 10.0]
    """
    return _dropped("dropout3d", _channels("dropout3d", x, "D, H, W"), 3, p, training, rng)


def _keep_mask(op: str, shape: tuple[int, ...], dtype: Any, p: float, rng: Any) -> Any:
    """Return a random array of factors: 1 / (1 - p) for elements that are kept, 0 for dropped ones."""
    if not hasattr(rng, "random"):
        raise InputError(
            f"{op}: rng must be a generator, but is {rng!r}.\n"
            "  Pass rng=ad.random.default_rng(seed), or turn dropout off with training=False."
        )
    if p == 1:
        return np.zeros(shape, dtype)
    return (array_of(rng.random(shape)) >= p) * np.asarray(1 / (1 - p), dtype)


@_dropout_doc
class Dropout(Module):
    """Set elements to 0 in training, and scale the others up; do nothing in evaluation.

    Parameters
    ----------
    p : float
        The probability that an element is dropped.
    rng : Generator or int, optional
        Generator or seed of the masks.  The default is the generator of ``nn.init``.

    >>> layer = ad.nn.Dropout(0.5, rng=0)
    >>> sorted(set(layer(ad.ones(100)).tolist()))
    [0.0, 2.0]
    >>> layer.eval()(ad.ones(3))
    tensor([1., 1., 1.], dtype=float64)
    """

    function: Callable[..., Tensor] = staticmethod(dropout)

    def __init__(self, p: float = 0.5, *, rng: init.Rng = None) -> None:
        self.p = number_between(f"{type(self).__name__}: p", p, 0.0, 1.0)
        self.rng = init.generator(rng)

    @_dropout_doc
    def forward(self, x: ArrayLike) -> Tensor:
        """Drop elements or channels if the module is in training mode."""
        return self.function(x, self.p, training=self.training, rng=self.rng)

    def extra_repr(self) -> str:
        """Return the probability, for the module's repr."""
        return f"{self.p}"


@_channels_doc
class Dropout1d(Dropout):
    """Set whole channels of (N, C, L) or (C, L) to 0 in training, and scale the others up.

    >>> ad.nn.Dropout1d(0.5, rng=0)(ad.ones((2, 4, 5))).shape
    (2, 4, 5)
    """

    function = staticmethod(dropout1d)


@_channels_doc
class Dropout2d(Dropout):
    """Set whole channels of (N, C, H, W) to 0 in training, and scale the others up.

    >>> ad.nn.Dropout2d(0.5, rng=0)(ad.ones((2, 4, 5, 5))).shape
    (2, 4, 5, 5)
    """

    function = staticmethod(dropout2d)


@_channels_doc
class Dropout3d(Dropout):
    """Set whole channels of (N, C, D, H, W) or (C, D, H, W) to 0 in training, and scale the others up.

    >>> ad.nn.Dropout3d(0.5, rng=0)(ad.ones((2, 4, 5, 5, 5))).shape
    (2, 4, 5, 5, 5)
    """

    function = staticmethod(dropout3d)
