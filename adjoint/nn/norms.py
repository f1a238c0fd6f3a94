"""Layer, root-mean-square, group, instance and batch norms: functions and modules."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from adjoint.config import no_grad
from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import broadcast_shapes, canonical_axes, canonical_axis, number
from adjoint.core.tensor import Tensor, Traced, writable
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.nn.arguments import between, floats, lengths, sizes
from adjoint.nn.module import Module, Parameter
from adjoint.ops.create import ones, zeros
from adjoint.ops.reduce import narrowed

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "RMSNorm",
]


def _wide(x: Tensor) -> Tensor:
    """Half precision is normalised in float32: squares of numbers from 256 on overflow in float16."""
    return rec.astype(x, dtype=np.dtype(np.float32)) if x.dtype.itemsize == 2 else x


def _like(y: Tensor, x: Tensor) -> Tensor:
    return y if y.dtype == x.dtype or x.dtype.itemsize != 2 else rec.astype(y, dtype=x.dtype)


def _affine(op: str, z: Tensor, weight: Any, bias: Any, shape: tuple[int, ...], tail: int) -> Tensor:
    """z · weight + bias; both have ``shape``, and ``tail`` axes follow it in z."""
    for name, p in (("weight", weight), ("bias", bias)):
        p = _of_shape(op, name, p, shape)
        if p is None:
            continue
        p = rec.reshape(p, shape=shape + (1,) * tail) if tail else p
        z = z * p if name == "weight" else z + p
    return z


def _of_shape(op: str, name: str, p: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Return a parameter of a norm, which must have ``shape``."""
    if p is None:
        return None
    p = asarray(p)
    if p.shape != shape:
        raise ShapeError(f"{op}: the {name} has shape {p.shape}, but what is normalised wants {shape}.")
    return p


def _normalized_axes(op: str, x: Tensor, shape: Any) -> tuple[int, ...]:
    wanted = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if not wanted or x.shape[-len(wanted) :] != wanted:
        raise ShapeError(f"{op}: normalized_shape {wanted} is not the end of the shape {x.shape}.")
    return tuple(range(-len(wanted), 0))


def layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """Bring the last axes, ``normalized_shape``, to mean 0 and variance 1, then ``· weight + bias``."""
    x = floats("layer_norm", x)
    axes = _normalized_axes("layer_norm", x, normalized_shape)
    shape, small = x.shape[-len(axes) :], number("layer_norm", "eps", eps)
    w, b = (_of_shape("layer_norm", name, p, shape) for name, p in (("weight", weight), ("bias", bias)))
    if x.dtype.itemsize == 2 or any(p is not None and p.dtype != x.dtype for p in (w, b)):
        z = _like(rec.standardize(_wide(x), axis=axes, eps=small)[0], x)
        return _affine("layer_norm", z, w, b, shape, 0)
    if len(axes) == 1:
        return rec.layer_norm(x, 1 if w is None else w, 0 if b is None else b, eps=small)
    w, b = (p if p is None else rec.reshape(p, shape=(p.size,)) for p in (w, b))
    flat = rec.reshape(x, shape=(*x.shape[: -len(axes)], math.prod(shape)))
    y = rec.layer_norm(flat, 1 if w is None else w, 0 if b is None else b, eps=small)
    return rec.reshape(y, shape=x.shape)


def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
    """Divide by the root mean square over the last axes, then ``· weight``.

    ``eps`` is that of the dtype if None, of float32 for half precision.
    """
    x = floats("rms_norm", x)
    axes = _normalized_axes("rms_norm", x, normalized_shape)
    wide = _wide(x)
    small = float(np.finfo(wide.dtype).eps) if eps is None else number("rms_norm", "eps", eps)
    z = _like(rec.rms_standardize(wide, axis=axes, eps=small)[0], x)
    return _affine("rms_norm", z, weight, None, x.shape[-len(axes) :], 0)


def group_norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """Bring each of ``num_groups`` groups of channels of x, ``(N, C, …)``, to mean 0 and variance 1."""
    x = floats("group_norm", x)
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise ShapeError(
            f"group_norm: x is (N, C, …) with C divisible by {num_groups} groups, but its shape is {x.shape}."
        )
    n, c, *space = x.shape
    grouped = rec.reshape(_wide(x), shape=(n, num_groups, c // num_groups, *space))
    axes = tuple(range(-len(space) - 1, 0))
    z = rec.standardize(grouped, axis=axes, eps=number("group_norm", "eps", eps))[0]
    z = _like(rec.reshape(z, shape=x.shape), x)
    return _affine("group_norm", z, weight, bias, (c,), len(space))


def instance_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """Bring each channel of each element of x, ``(N, C, …)``, to mean 0 and variance 1."""
    x = floats("instance_norm", x)
    if x.ndim < 3 or math.prod(x.shape[2:]) < 2:
        raise ShapeError(
            "instance_norm: x is (N, C, …) with more than one number per channel and element, "
            f"but has shape {x.shape}."
        )
    axes = tuple(range(2 - x.ndim, 0))
    z = _like(rec.standardize(_wide(x), axis=axes, eps=number("instance_norm", "eps", eps))[0], x)
    return _affine("instance_norm", z, weight, bias, (x.shape[1],), len(axes))


def batch_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """Bring each channel of x, ``(N, C, …)``, to mean 0 and variance 1.

    In training by the statistics of the batch; else by the running ones, which are never changed here:
    ``batch_norm_with_statistics`` returns what an update of them needs.
    """
    if training:
        return batch_norm_with_statistics(x, weight, bias, eps)[0]
    x = _channels("batch_norm", x)
    if running_mean is None or running_var is None:
        raise InputError("batch_norm: without training=True it needs running_mean and running_var.")
    shape = (x.shape[1],)
    mean, var = asarray(running_mean), asarray(running_var)
    for name, s in (("running_mean", mean), ("running_var", var)):
        if s.shape != shape:
            raise ShapeError(
                f"batch_norm: {name} has shape {s.shape}, but x {x.shape} has {shape[0]} channels."
            )
    ones = (1,) * (x.ndim - 2)
    # on the few numbers per channel first: one product and one sum over x
    scale = 1 / rec.sqrt(var + number("batch_norm", "eps", eps))
    if weight is not None:
        scale = _affine("batch_norm", scale, weight, None, shape, 0)
    shift = _affine("batch_norm", -mean * scale, None, bias, shape, 0)
    return x * rec.reshape(scale, shape=shape + ones) + rec.reshape(shift, shape=shape + ones)


def batch_norm_with_statistics(
    x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``batch_norm`` by the batch's own statistics, their mean, and their variance (divided by n)."""
    x = _channels("batch_norm", x)
    n = x.size // x.shape[1] if x.shape[1] else 0
    if n < 2:
        raise ShapeError(
            f"batch_norm: training needs more than one value per channel, but x has shape {x.shape}.\n"
            "  Use a larger batch, or training=False.  A trainer's accumulate=k cuts a batch into k pieces; "
            "DataLoader(drop_last=True)\n  leaves out a last batch that is short."
        )
    axes = tuple(a for a in range(-x.ndim, 0) if a != 1 - x.ndim)
    z, mean, var = rec.standardize(_wide(x), axis=axes, eps=number("batch_norm", "eps", eps))
    shape = (x.shape[1],)
    y = _affine("batch_norm", _like(z, x), weight, bias, shape, x.ndim - 2)
    return y, rec.reshape(mean, shape=shape), rec.reshape(var, shape=shape)


def _channels(op: str, x: Any) -> Tensor:
    x = floats(op, x)
    if x.ndim < 2:
        raise ShapeError(f"{op}: x has the shape (N, C, …), but got {x.shape}.")
    return x


def _length(x: Tensor, axes: tuple[int, ...], least: float, p: float = 2.0) -> Tensor:
    """The p-norm along axes, at least ``least``: below it constant, so that the gradient at 0 is finite."""
    return rec.maximum(rec.vector_norm(x, ord=p, axis=axes, keepdims=True), least)


def cosine_similarity(x: Any, y: Any, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between x and y along ``axis``; 0 where one of them is 0."""
    x, y = floats("cosine_similarity", x), floats("cosine_similarity", y)
    shape = broadcast_shapes("cosine_similarity", x.shape, y.shape)
    axes = (canonical_axis("cosine_similarity", axis, len(shape)),)
    dtype = np.result_type(x.dtype, y.dtype)
    x, y = (rec.broadcast_to(_wide(a), shape=shape) for a in (x, y))
    product = x / _length(x, axes, eps) * (y / _length(y, axes, eps))
    return narrowed(rec.sum(product, axis=axes, keepdims=False), dtype)


def normalize(x: Any, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """Divide x by its p-norm along ``axis``, which is taken as ``eps`` at least."""
    x = floats("normalize", x)
    axes = canonical_axes("normalize", axis, x.ndim)
    p = number("normalize", "p", p)
    if not p > 0:
        raise ArgumentError(f"normalize: p must be positive, but is {p}.")
    wide = _wide(x)
    if p == math.inf:
        return _like(wide / rec.maximum(rec.max(rec.abs(wide), axis=axes, keepdims=True), eps), x)
    return _like(wide / _length(wide, axes, eps, p), x)


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axes, then scale and shift."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, affine: bool = True, *, dtype: Any = np.float32
    ) -> None:
        shape = lengths("LayerNorm", "normalized_shape", normalized_shape, low=0)
        self.normalized_shape, self.eps = shape, between("LayerNorm", "eps", eps, 0.0)
        self.weight = Parameter(ones(shape, dtype=dtype)) if affine else None
        self.bias = Parameter(zeros(shape, dtype=dtype)) if affine else None

    def forward(self, x: Any) -> Tensor:
        """Normalise."""
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The shape."""
        return f"{self.normalized_shape}"


class RMSNorm(Module):
    """Root mean square 1 over the last axes, then scale."""

    def __init__(self, normalized_shape: Any, eps: float | None = None, *, dtype: Any = np.float32) -> None:
        shape = lengths("RMSNorm", "normalized_shape", normalized_shape, low=0)
        self.normalized_shape = shape
        self.eps = None if eps is None else between("RMSNorm", "eps", eps, 0.0)
        self.weight = Parameter(ones(shape, dtype=dtype))

    def forward(self, x: Any) -> Tensor:
        """Normalise."""
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """The shape."""
        return f"{self.normalized_shape}"


class GroupNorm(Module):
    """Mean 0 and variance 1 per group of channels, then scale and shift per channel."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: Any = np.float32,
    ) -> None:
        sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ArgumentError(f"{num_groups} groups do not divide {num_channels} channels.")
        self.num_groups, self.eps = num_groups, between("GroupNorm", "eps", eps, 0.0)
        self.num_channels = num_channels
        self.weight = Parameter(ones(num_channels, dtype=dtype)) if affine else None
        self.bias = Parameter(zeros(num_channels, dtype=dtype)) if affine else None

    def forward(self, x: Any) -> Tensor:
        """Normalise (N, C, …)."""
        x = asarray(x)
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(
                f"GroupNorm: the input is (N, C, …) with C = {self.num_channels} channels, "
                f"but has shape {x.shape}."
            )
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Groups and channels."""
        return f"{self.num_groups}, {self.num_channels}" + (
            "" if self.weight is not None else ", affine=False"
        )


def _move_statistics(norm: Any, mean: Tensor, var: Tensor, count: int) -> None:
    """Move the running statistics of a norm to those of a batch; the variance kept is the unbiased one."""
    if type(mean) is Traced and mean._data.numbers() is None:
        raise InputError(
            f"{type(norm).__name__}: inside ad.vmap each element has its own statistics, but the running "
            "ones are one set.\n  Call model.eval() before, or normalise by what keeps none: GroupNorm, "
            "LayerNorm, or functional.batch_norm(x, training=True)."
        )
    unbiased = var.detach() * (count / max(count - 1, 1))
    with no_grad():
        part = norm.momentum
        if isinstance(norm, _BatchNorm):  # PyTorch's instance norms do not count
            writable(norm.num_batches_tracked)[...] += 1
            part = 1 / norm.num_batches_tracked.item() if part is None else part
        for running, now in ((norm.running_mean, mean.detach()), (norm.running_var, unbiased)):
            running.copy_((1 - part) * running + part * now)


class _BatchNorm(Module):
    """Mean 0 and variance 1 per channel over the batch; in evaluation by running statistics.

    Each batch moves the running statistics by ``momentum``, from 0 to 1, of the way to its own; with None
    they are the mean over all batches.
    """

    axes: ClassVar[dict[int, str]] = {}  # how many an input may have, and what they are

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        *,
        dtype: Any = np.float32,
    ) -> None:
        layer = type(self).__name__
        sizes(layer, num_features=num_features)
        self.num_features, self.eps = num_features, between(layer, "eps", eps, 0.0)
        self.momentum = None if momentum is None else between(layer, "momentum", momentum, 0.0, 1.0)
        self.weight = Parameter(ones(num_features, dtype=dtype)) if affine else None
        self.bias = Parameter(zeros(num_features, dtype=dtype)) if affine else None
        self.register_buffer("running_mean", zeros(num_features, dtype=dtype))
        self.register_buffer("running_var", ones(num_features, dtype=dtype))
        self.register_buffer("num_batches_tracked", zeros((), dtype=np.int64))

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, x: Any) -> Tensor:
        """Normalise (N, C, …)."""
        x = asarray(x)
        if x.ndim not in self.axes or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: the input is {' or '.join(self.axes.values())} with "
                f"C = {self.num_features} channels, but has shape {x.shape}."
            )
        if not self.training:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        y, mean, var = batch_norm_with_statistics(x, self.weight, self.bias, self.eps)
        _move_statistics(self, mean, var, x.size // x.shape[1])
        return y

    def extra_repr(self) -> str:
        """The channels."""
        return f"{self.num_features}"


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C) or (N, C, L)."""

    axes: ClassVar[dict[int, str]] = {2: "(N, C)", 3: "(N, C, L)"}


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, C, H, W)."""

    axes: ClassVar[dict[int, str]] = {4: "(N, C, H, W)"}


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of (N, C, D, H, W)."""

    axes: ClassVar[dict[int, str]] = {5: "(N, C, D, H, W)"}


class _InstanceNorm(Module):
    """Mean 0 and variance 1 per channel and element, over the space axes.

    With ``track_running_stats=True`` training keeps running statistics, by which evaluation normalises;
    without it evaluation is the same as training.
    """

    space: ClassVar[str] = ""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        *,
        dtype: Any = np.float32,
    ) -> None:
        layer = type(self).__name__
        sizes(layer, num_features=num_features)
        self.num_features, self.eps = num_features, between(layer, "eps", eps, 0.0)
        self.momentum = between(layer, "momentum", momentum, 0.0, 1.0)
        self.track_running_stats = bool(track_running_stats)
        self.weight = Parameter(ones(num_features, dtype=dtype)) if affine else None
        self.bias = Parameter(zeros(num_features, dtype=dtype)) if affine else None
        if self.track_running_stats:
            self.register_buffer("running_mean", zeros(num_features, dtype=dtype))
            self.register_buffer("running_var", ones(num_features, dtype=dtype))
            self.register_buffer("num_batches_tracked", zeros((), dtype=np.int64))

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, x: Any) -> Tensor:
        """Normalise (N, C, …), or one element, (C, …)."""
        x, full = asarray(x), self.space.count(",") + 3
        if x.ndim not in (full - 1, full) or x.shape[1 - full] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: the input is (N, C, {self.space}) or (C, {self.space}) with "
                f"C = {self.num_features} channels, but has shape {x.shape}."
            )
        if x.ndim < full:
            return self._normalized(x[None])[0]
        return self._normalized(x)

    def _normalized(self, x: Tensor) -> Tensor:
        if self.track_running_stats and not self.training:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        y = instance_norm(x, self.weight, self.bias, self.eps)
        if self.track_running_stats:
            axes = tuple(range(2, x.ndim))
            with no_grad():
                mean, var = x.mean(axes).mean(0), x.var(axes).mean(0)
            _move_statistics(self, mean, var, math.prod(x.shape[2:]))
        return y

    def extra_repr(self) -> str:
        """The channels."""
        return f"{self.num_features}"


class InstanceNorm1d(_InstanceNorm):
    """Instance normalisation of (N, C, L)."""

    space: ClassVar[str] = "L"


class InstanceNorm2d(_InstanceNorm):
    """Instance normalisation of (N, C, H, W)."""

    space: ClassVar[str] = "H, W"


class InstanceNorm3d(_InstanceNorm):
    """Instance normalisation of (N, C, D, H, W)."""

    space: ClassVar[str] = "D, H, W"
