"""Batch and instance norms: functions, and modules with running statistics."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from adjoint.config import no_grad
from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.core.shapes import number, number_between
from adjoint.core.tensor import Tensor
from adjoint.core.values import number_of
from adjoint.errors import InputError, ShapeError
from adjoint.nn.arguments import check_not_mapped, floats, sizes
from adjoint.nn.module import Module, Parameter
from adjoint.nn.norms import affine_map, like_input, widened_half
from adjoint.nn.shared_docs import layer_doc
from adjoint.ops.create import ones, zeros
from adjoint.typing import ArrayLike, DTypeLike

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"]

_batch_norm_doc = layer_doc.extended("""
    Parameters
    ----------
    x : array_like
        The input, with shape (N, C, …).
    weight : array_like, optional
        One factor per channel.
    bias : array_like, optional
        One term per channel.
    num_features : int
        The number of channels C.
    momentum : float or None
        The weight of a batch in the running statistics: ``(1 - momentum) * running + momentum * batch``.
        With None they are the mean over all batches.
    dtype : dtype_like
        The dtype of parameters and statistics.
    track_running_stats : bool
        Whether training updates running statistics, by which evaluation normalises.
    """)
_instance_norm_doc = _batch_norm_doc.extended("""
    Parameters
    ----------
    momentum : float
        The weight of a batch in the running statistics: ``(1 - momentum) * running + momentum * batch``.
    """)


# Functions -------------------------------------------------------------------------------------


@_batch_norm_doc
def instance_norm(
    x: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise each channel of each sample to mean 0 and variance 1.

    Raises
    ------
    ShapeError
        If x has fewer than two values per channel and sample.

    >>> ad.nn.functional.instance_norm(ad.tensor([[[1.0, 3.0]]]), eps=0.0)
    tensor([[[-1.,  1.]]], dtype=float64)
    """
    x = floats("instance_norm", x)
    if x.ndim < 3 or math.prod(x.shape[2:]) < 2:
        raise ShapeError(
            "instance_norm: x must have shape (N, C, …) with more than one value per channel and sample, "
            f"but has shape {x.shape}."
        )
    axes = tuple(range(2 - x.ndim, 0))
    eps = number("instance_norm", "eps", eps)
    z = like_input(rec.standardize(widened_half(x), axis=axes, eps=eps)[0], x)
    return affine_map("instance_norm", z, weight, bias, (x.shape[1],), len(axes))


@_batch_norm_doc
def batch_norm(
    x: ArrayLike,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    training: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel to mean 0 and variance 1.

    The running statistics are not changed.  ``batch_norm_with_statistics`` returns the values for an update.

    Parameters
    ----------
    running_mean : array_like, optional
        One mean per channel.  Required without ``training``.
    running_var : array_like, optional
        One variance per channel.  Required without ``training``.
    training : bool
        Whether the statistics of the batch are used instead of the running ones.

    Raises
    ------
    ShapeError
        If shapes do not match, or in training with fewer than two values per channel.

    >>> ad.nn.functional.batch_norm(ad.tensor([[1.0], [3.0]]), training=True, eps=0.0)
    tensor([[-1.],
            [ 1.]], dtype=float64)
    """
    if training:
        return batch_norm_with_statistics(x, weight, bias, eps)[0]
    x = _with_channels(x)
    if running_mean is None or running_var is None:
        raise InputError(
            "batch_norm: running_mean and running_var are required if training is False.  Pass both, or "
            "training=True."
        )
    shape = (x.shape[1],)
    mean, var = asarray(running_mean), asarray(running_var)
    for name, s in (("running_mean", mean), ("running_var", var)):
        if s.shape != shape:
            raise ShapeError(
                f"batch_norm: {name} must have shape {shape}, one value per channel of x (shape {x.shape}), "
                f"but has shape {s.shape}."
            )
    ones = (1,) * (x.ndim - 2)
    # combine the values per channel first, so that only one product and one sum pass over x
    scale = 1 / rec.sqrt(var + number("batch_norm", "eps", eps))
    if weight is not None:
        scale = affine_map("batch_norm", scale, weight, None, shape, 0)
    shift = affine_map("batch_norm", -mean * scale, None, bias, shape, 0)
    return x * rec.reshape(scale, shape=shape + ones) + rec.reshape(shift, shape=shape + ones)


@_batch_norm_doc
def batch_norm_with_statistics(
    x: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise by the statistics of the batch, and return them too.

    Returns
    -------
    tuple of Tensor
        The result, the mean per channel, and the variance per channel (divided by n).

    Raises
    ------
    ShapeError
        If there are fewer than two values per channel.

    >>> y, mean, var = ad.nn.functional.batch_norm_with_statistics(ad.tensor([[1.0], [3.0]]))
    >>> mean, var
    (tensor([2.], dtype=float64), tensor([1.], dtype=float64))
    """
    x = _with_channels(x)
    n = x.size // x.shape[1] if x.shape[1] else 0
    if n < 2:
        raise ShapeError(
            f"batch_norm: training requires more than one value per channel, but x has shape {x.shape}.\n"
            "  Use a larger batch, or training=False.  If only the last batch is too small, use "
            "DataLoader(drop_last=True).\n  If Trainer(accumulate=n) splits each batch, use a smaller n."
        )
    axes = tuple(a for a in range(-x.ndim, 0) if a != 1 - x.ndim)
    z, mean, var = rec.standardize(widened_half(x), axis=axes, eps=number("batch_norm", "eps", eps))
    shape = (x.shape[1],)
    y = affine_map("batch_norm", like_input(z, x), weight, bias, shape, x.ndim - 2)
    return y, rec.reshape(mean, shape=shape), rec.reshape(var, shape=shape)


def _with_channels(x: Any) -> Tensor:
    x = floats("batch_norm", x)
    if x.ndim < 2:
        raise ShapeError(f"batch_norm: x must have shape (N, C, …), but has shape {x.shape}.")
    return x


# Modules ---------------------------------------------------------------------------------------


class _ChannelNorm(Module):
    """Base class of norms with a weight, a bias, a running mean and a running variance for each channel."""

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track: bool,
        dtype: DTypeLike,
    ) -> None:
        layer = type(self).__name__
        sizes(layer, num_features=num_features)
        self.num_features, self.eps = num_features, number_between(f"{layer}: eps", eps, 0.0)
        self.momentum = None if momentum is None else number_between(f"{layer}: momentum", momentum, 0.0, 1.0)
        self.weight = Parameter(ones(num_features, dtype=dtype)) if affine else None
        self.bias = Parameter(zeros(num_features, dtype=dtype)) if affine else None
        if track:
            self.register_buffer("running_mean", zeros(num_features, dtype=dtype))
            self.register_buffer("running_var", ones(num_features, dtype=dtype))
            self.register_buffer("num_batches_tracked", zeros((), dtype=np.int64))

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def _by_running_statistics(self, x: Tensor) -> Tensor:
        return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)

    def _update(self, mean: Tensor, var: Tensor, count: int, share: float) -> None:
        """Update the running statistics: ``running = (1 - share) * running + share * value of the batch``.

        ``mean`` and ``var`` are the statistics of the batch, and ``count`` is its number of elements per
        channel.  ``var`` is divided by ``count``; the running variance is unbiased, divided by ``count - 1``.
        """
        unbiased = var.detach() * (count / max(count - 1, 1))
        with no_grad():
            for running, now in ((self.running_mean, mean.detach()), (self.running_var, unbiased)):
                running.copy_((1 - share) * running + share * now)

    def _check_one_batch(self, mean: Tensor) -> None:
        """Raise inside ``ad.vmap``, where each element of the mapped axis would have its own statistics."""
        check_not_mapped(
            f"{type(self).__name__}: running statistics",
            mean,
            "Call model.eval() first, or use a layer without running statistics: GroupNorm, LayerNorm,\n"
            "  or functional.batch_norm(x, training=True).",
        )

    def extra_repr(self) -> str:
        """Return the number of channels, for the module's repr."""
        return f"{self.num_features}"


class _BatchNorm(_ChannelNorm):
    """Base class of batch norms.

    Each channel is normalised by the statistics of the batch, or in evaluation mode by the running ones.
    """

    axes: ClassVar[dict[int, str]] = {}  # the accepted numbers of axes, and their names

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, True, dtype)

    @_batch_norm_doc
    def forward(self, x: ArrayLike) -> Tensor:
        """Normalise a batch; in training also update the running statistics."""
        x = asarray(x)
        if x.ndim not in self.axes or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: the input must have shape {' or '.join(self.axes.values())} with "
                f"C = {self.num_features} channels, but has shape {x.shape}."
            )
        if not self.training:
            return self._by_running_statistics(x)
        y, mean, var = batch_norm_with_statistics(x, self.weight, self.bias, self.eps)
        self._check_one_batch(mean)
        self.num_batches_tracked.copy_(self.num_batches_tracked + 1)
        share = 1 / number_of(self.num_batches_tracked) if self.momentum is None else self.momentum
        self._update(mean, var, x.size // x.shape[1], share)
        return y


@_batch_norm_doc
class BatchNorm1d(_BatchNorm):
    """Batch normalisation of inputs of shape (N, C) or (N, C, L).

    Training normalises by the statistics of the batch and updates running statistics; evaluation
    normalises by the running statistics.

    >>> ad.nn.BatchNorm1d(3)(ad.ones((8, 3), dtype="float32")).shape
    (8, 3)
    """

    axes: ClassVar[dict[int, str]] = {2: "(N, C)", 3: "(N, C, L)"}


@_batch_norm_doc
class BatchNorm2d(_BatchNorm):
    """Batch normalisation of inputs of shape (N, C, H, W).

    Training normalises by the statistics of the batch and updates running statistics; evaluation
    normalises by the running statistics.

    >>> ad.nn.BatchNorm2d(3)(ad.ones((8, 3, 2, 2), dtype="float32")).shape
    (8, 3, 2, 2)
    """

    axes: ClassVar[dict[int, str]] = {4: "(N, C, H, W)"}


@_batch_norm_doc
class BatchNorm3d(_BatchNorm):
    """Batch normalisation of inputs of shape (N, C, D, H, W).

    Training normalises by the statistics of the batch and updates running statistics; evaluation
    normalises by the running statistics.

    >>> ad.nn.BatchNorm3d(3)(ad.ones((8, 3, 2, 2, 2), dtype="float32")).shape
    (8, 3, 2, 2, 2)
    """

    axes: ClassVar[dict[int, str]] = {5: "(N, C, D, H, W)"}


class _InstanceNorm(_ChannelNorm):
    """Base class of instance norms, which normalise each channel of each sample over the spatial axes."""

    space: ClassVar[str] = ""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        momentum = number(type(self).__name__, "momentum", momentum)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype)
        self.track_running_stats = bool(track_running_stats)

    @_batch_norm_doc
    def forward(self, x: ArrayLike) -> Tensor:
        """Normalise a batch, or one sample.

        Parameters
        ----------
        x : array_like
            The input, with shape (N, C, …) or (C, …).
        """
        x, full = asarray(x), self.space.count(",") + 3
        if x.ndim not in (full - 1, full) or x.shape[1 - full] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: the input must have shape (N, C, {self.space}) or (C, {self.space}) "
                f"with C = {self.num_features} channels, but has shape {x.shape}."
            )
        if x.ndim < full:
            return self._normalized(x[None])[0]
        return self._normalized(x)

    def _normalized(self, x: Tensor) -> Tensor:
        if self.track_running_stats and not self.training:
            return self._by_running_statistics(x)
        y = instance_norm(x, self.weight, self.bias, self.eps)
        if self.track_running_stats:
            axes = tuple(range(2, x.ndim))
            with no_grad():
                mean, var = x.mean(axes).mean(0), x.var(axes).mean(0)
            self._check_one_batch(mean)
            # like in PyTorch, this norm does not count batches
            self._update(mean, var, math.prod(x.shape[2:]), self.momentum or 0.0)
        return y


@_instance_norm_doc
class InstanceNorm1d(_InstanceNorm):
    """Instance normalisation of inputs of shape (N, C, L) or (C, L).

    >>> ad.nn.InstanceNorm1d(3)(ad.ones((8, 3, 5), dtype="float32")).shape
    (8, 3, 5)
    """

    space: ClassVar[str] = "L"


@_instance_norm_doc
class InstanceNorm2d(_InstanceNorm):
    """Instance normalisation of inputs of shape (N, C, H, W) or (C, H, W).

    >>> ad.nn.InstanceNorm2d(3)(ad.ones((8, 3, 5, 5), dtype="float32")).shape
    (8, 3, 5, 5)
    """

    space: ClassVar[str] = "H, W"


@_instance_norm_doc
class InstanceNorm3d(_InstanceNorm):
    """Instance normalisation of inputs of shape (N, C, D, H, W) or (C, D, H, W).

    >>> ad.nn.InstanceNorm3d(3)(ad.ones((8, 3, 5, 5, 5), dtype="float32")).shape
    (8, 3, 5, 5, 5)
    """

    space: ClassVar[str] = "D, H, W"
