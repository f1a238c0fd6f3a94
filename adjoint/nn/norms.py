"""Layer, root-mean-square and group norms: functions and modules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.docstrings import shared_with
from adjoint.core.namespace import rec
from adjoint.core.shapes import number, number_between
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.nn.arguments import floats, lengths, sizes
from adjoint.nn.module import Module, Parameter
from adjoint.nn.shared_docs import layer_doc
from adjoint.ops.create import ones, zeros
from adjoint.typing import ArrayLike, DTypeLike, Lengths

__all__ = ["GroupNorm", "LayerNorm", "RMSNorm"]

_norm_doc = layer_doc.extended("""
    Parameters
    ----------
    weight : array_like, optional
        Factors, with shape ``normalized_shape``.
    """)


def widened_half(x: Tensor) -> Tensor:
    """Return a half-precision tensor as float32, because squares of numbers above 255 overflow in float16.

    Other tensors are returned unchanged.
    """
    return rec.astype(x, dtype=np.dtype(np.float32)) if x.dtype.itemsize == 2 else x


def like_input(y: Tensor, x: Tensor) -> Tensor:
    """Return ``y`` in the dtype of ``x`` if ``x`` has half precision, otherwise unchanged."""
    return y if y.dtype == x.dtype or x.dtype.itemsize != 2 else rec.astype(y, dtype=x.dtype)


def affine_map(op: str, z: Tensor, weight: Any, bias: Any, shape: tuple[int, ...], tail: int) -> Tensor:
    """Return ``z * weight + bias``; the weight or the bias may be None.

    Both must have the shape ``shape``, which matches the axes of ``z`` before the last ``tail`` axes.  They
    are broadcast over the other axes.  ``op`` is the name of the caller, for errors.
    """
    for name, p in (("weight", weight), ("bias", bias)):
        p = _of_shape(op, name, p, shape)
        if p is None:
            continue
        p = rec.reshape(p, shape=shape + (1,) * tail) if tail else p
        z = z * p if name == "weight" else z + p
    return z


def _of_shape(op: str, name: str, p: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Return the weight or bias ``p`` of a norm as a tensor, or None if it is None.

    Raise if its shape is not ``shape``.
    """
    if p is None:
        return None
    p = asarray(p)
    if p.shape != shape:
        raise ShapeError(f"{op}: the {name} must have shape {shape}, but has shape {p.shape}.")
    return p


def _normalized_axes(op: str, x: Tensor, shape: Any) -> tuple[int, ...]:
    wanted = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if not wanted or x.shape[-len(wanted) :] != wanted:
        raise ShapeError(f"{op}: the shape of x must end with normalized_shape {wanted}, but is {x.shape}.")
    return tuple(range(-len(wanted), 0))


# Functions -------------------------------------------------------------------------------------


@_norm_doc
def layer_norm(
    x: ArrayLike,
    normalized_shape: Lengths,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise the last axes to mean 0 and variance 1, then multiply by a weight and add a bias.

    Parameters
    ----------
    normalized_shape : int or tuple of int
        The shape of the last axes, over which mean and variance are computed.
    bias : array_like, optional
        Terms, with shape ``normalized_shape``.

    Raises
    ------
    ShapeError
        If x does not end with ``normalized_shape``.

    >>> ad.nn.functional.layer_norm(ad.tensor([[1.0, 3.0]]), 2, eps=0.0)
    tensor([[-1.,  1.]], dtype=float64)
    """
    x = floats("layer_norm", x)
    axes = _normalized_axes("layer_norm", x, normalized_shape)
    shape, small = x.shape[-len(axes) :], number("layer_norm", "eps", eps)
    w, b = (_of_shape("layer_norm", name, p, shape) for name, p in (("weight", weight), ("bias", bias)))
    if x.dtype.itemsize == 2 or any(p is not None and p.dtype != x.dtype for p in (w, b)):
        z = like_input(rec.standardize(widened_half(x), axis=axes, eps=small)[0], x)
        return affine_map("layer_norm", z, w, b, shape, 0)
    if len(axes) == 1:
        return rec.layer_norm(x, 1 if w is None else w, 0 if b is None else b, eps=small)
    w, b = (p if p is None else rec.reshape(p, shape=(p.size,)) for p in (w, b))
    flat = rec.reshape(x, shape=(*x.shape[: -len(axes)], math.prod(shape)))
    y = rec.layer_norm(flat, 1 if w is None else w, 0 if b is None else b, eps=small)
    return rec.reshape(y, shape=x.shape)


@_norm_doc
def rms_norm(
    x: ArrayLike, normalized_shape: Lengths, weight: ArrayLike | None = None, eps: float | None = None
) -> Tensor:
    """Divide by the root mean square over the last axes, then multiply by a weight.

    Parameters
    ----------
    normalized_shape : int or tuple of int
        The shape of the last axes, over which the mean is computed.
    eps : float, optional
        Added to the mean square.  The default is the machine epsilon of the dtype, that of float32 for half
        precision.

    Raises
    ------
    ShapeError
        If x does not end with ``normalized_shape``.

    >>> ad.nn.functional.rms_norm(ad.tensor([[3.0, -3.0]]), 2, eps=0.0)
    tensor([[ 1., -1.]], dtype=float64)
    """
    x = floats("rms_norm", x)
    axes = _normalized_axes("rms_norm", x, normalized_shape)
    wide = widened_half(x)
    small = float(np.finfo(wide.dtype).eps) if eps is None else number("rms_norm", "eps", eps)
    z = like_input(rec.rms_standardize(wide, axis=axes, eps=small)[0], x)
    return affine_map("rms_norm", z, weight, None, x.shape[-len(axes) :], 0)


@_norm_doc
def group_norm(
    x: ArrayLike,
    num_groups: int,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise groups of channels to mean 0 and variance 1.

    Parameters
    ----------
    x : array_like
        The input, with shape (N, C, …).
    num_groups : int
        The number of groups, which must divide C.
    weight : array_like, optional
        One factor per channel.
    bias : array_like, optional
        One term per channel.

    Raises
    ------
    ShapeError
        If C is not a multiple of ``num_groups``.

    >>> ad.nn.functional.group_norm(ad.tensor([[1.0, 3.0, 5.0, 9.0]]), 2, eps=0.0)
    tensor([[-1.,  1., -1.,  1.]], dtype=float64)
    """
    x = floats("group_norm", x)
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise ShapeError(
            f"group_norm: x must have shape (N, C, …) with C divisible by {num_groups} groups, "
            f"but has shape {x.shape}."
        )
    n, c, *space = x.shape
    grouped = rec.reshape(widened_half(x), shape=(n, num_groups, c // num_groups, *space))
    axes = tuple(range(-len(space) - 1, 0))
    z = rec.standardize(grouped, axis=axes, eps=number("group_norm", "eps", eps))[0]
    z = like_input(rec.reshape(z, shape=x.shape), x)
    return affine_map("group_norm", z, weight, bias, (c,), len(space))


# Modules ---------------------------------------------------------------------------------------


@_norm_doc
class LayerNorm(Module):
    """Normalise the last axes to mean 0 and variance 1, then scale and shift.

    Parameters
    ----------
    normalized_shape : int or tuple of int
        The shape of the last axes.

    >>> ad.nn.LayerNorm(8)(ad.ones((2, 8), dtype="float32")).shape
    (2, 8)
    """

    def __init__(
        self,
        normalized_shape: Lengths,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        shape = lengths("LayerNorm", "normalized_shape", normalized_shape, low=0)
        self.normalized_shape, self.eps = shape, number_between("LayerNorm: eps", eps, 0.0)
        self.weight = Parameter(ones(shape, dtype=dtype)) if affine else None
        self.bias = Parameter(zeros(shape, dtype=dtype)) if affine else None

    @_norm_doc
    def forward(self, x: ArrayLike) -> Tensor:
        """Apply ``nn.functional.layer_norm``.

        Parameters
        ----------
        x : array_like
            The input, whose shape ends with ``normalized_shape``.
        """
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the normalised shape, for the module's repr."""
        return f"{self.normalized_shape}"


@_norm_doc
class RMSNorm(Module):
    """Divide by the root mean square over the last axes, then scale.

    Parameters
    ----------
    normalized_shape : int or tuple of int
        The shape of the last axes.
    eps : float, optional
        Added to the mean square.  The default is the machine epsilon of the dtype.
    dtype : dtype_like
        The dtype of the weight.

    >>> ad.nn.RMSNorm(8)(ad.ones((2, 8), dtype="float32")).shape
    (2, 8)
    """

    def __init__(
        self, normalized_shape: Lengths, eps: float | None = None, *, dtype: DTypeLike = np.float32
    ) -> None:
        shape = lengths("RMSNorm", "normalized_shape", normalized_shape, low=0)
        self.normalized_shape = shape
        self.eps = None if eps is None else number_between("RMSNorm: eps", eps, 0.0)
        self.weight = Parameter(ones(shape, dtype=dtype))

    @_norm_doc
    def forward(self, x: ArrayLike) -> Tensor:
        """Apply ``nn.functional.rms_norm``.

        Parameters
        ----------
        x : array_like
            The input, whose shape ends with ``normalized_shape``.
        """
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Return the normalised shape, for the module's repr."""
        return f"{self.normalized_shape}"


@_norm_doc
class GroupNorm(Module):
    """Normalise groups of channels to mean 0 and variance 1, then scale and shift each channel.

    Parameters
    ----------
    num_groups : int
        The number of groups.
    num_channels : int
        The number of channels, a multiple of ``num_groups``.

    >>> ad.nn.GroupNorm(2, 4)(ad.ones((1, 4, 5), dtype="float32")).shape
    (1, 4, 5)
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ArgumentError(
                f"GroupNorm: num_channels must be a multiple of num_groups, but {num_channels} is not a "
                f"multiple of {num_groups}."
            )
        self.num_groups, self.eps = num_groups, number_between("GroupNorm: eps", eps, 0.0)
        self.num_channels = num_channels
        self.weight = Parameter(ones(num_channels, dtype=dtype)) if affine else None
        self.bias = Parameter(zeros(num_channels, dtype=dtype)) if affine else None

    @shared_with(group_norm)
    def forward(self, x: ArrayLike) -> Tensor:
        """Apply ``nn.functional.group_norm``."""
        x = asarray(x)
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(
                f"GroupNorm: the input must have shape (N, C, …) with C = {self.num_channels} channels, "
                f"but has shape {x.shape}."
            )
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the numbers of groups and channels, for the module's repr."""
        return f"{self.num_groups}, {self.num_channels}" + (
            "" if self.weight is not None else ", affine=False"
        )
