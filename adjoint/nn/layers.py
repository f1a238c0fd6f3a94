"""Layers: linear, convolution, pooling, normalisation, embedding, dropout."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from adjoint.config import no_grad
from adjoint.core.convert import asarray
from adjoint.core.shapes import whole_number
from adjoint.core.tensor import Tensor, Traced, writable
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.nn import functional as F  # noqa: N812  the name that people's hands know
from adjoint.nn import init
from adjoint.nn.arguments import between, lengths, sizes
from adjoint.nn.module import Module, Parameter
from adjoint.ops.create import ones, zeros

__all__ = [
    "AdaptiveAvgPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "Dropout",
    "Embedding",
    "Flatten",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "MaxPool1d",
    "MaxPool2d",
    "RMSNorm",
]


def _unusual(options: dict[str, tuple[Any, Any]]) -> str:
    """What is not as it is by default, for a repr; values beside their defaults, by name."""
    return "".join(f", {name}={value}" for name, (value, usual) in options.items() if value != usual)


class Linear(Module):
    """x @ weight.T + bias; the weight is (out_features, in_features)."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        sizes("Linear", 0, in_features=in_features, out_features=out_features)
        rng = init.generator(rng)
        bound = 1.0 / math.sqrt(in_features) if in_features else 0.0
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(init.uniform((out_features, in_features), bound, rng=rng, dtype=dtype))
        self.bias = Parameter(init.uniform((out_features,), bound, rng=rng, dtype=dtype)) if bias else None

    def forward(self, x: Any) -> Tensor:
        """Apply the layer to the last axis."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """In and out."""
        return f"{self.in_features}, {self.out_features}" + ("" if self.bias is not None else ", bias=False")


class _Conv(Module):
    """A convolution over ``ndim`` axes; the weight is (out, in / groups, *kernel)."""

    ndim = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        layer = type(self).__name__
        sizes(layer, in_channels=in_channels, out_channels=out_channels, groups=groups)
        rng = init.generator(rng)
        kernel = lengths(layer, "kernel_size", kernel_size, self.ndim)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(f"groups={groups} must divide {in_channels} and {out_channels} channels.")
        shape = (out_channels, in_channels // groups, *kernel)
        bound = 1.0 / math.sqrt(math.prod(shape[1:]))
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.weight = Parameter(init.uniform(shape, bound, rng=rng, dtype=dtype))
        self.bias = Parameter(init.uniform((out_channels,), bound, rng=rng, dtype=dtype)) if bias else None

    def forward(self, x: Any) -> Tensor:
        """Convolve (N, C, …)."""
        function = F.conv1d if self.ndim == 1 else F.conv2d
        return function(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        """Channels, kernel, stride, padding, and what else is not as usual."""
        out, inner, *kernel = self.weight.shape
        shape = f"{inner * self.groups}, {out}, kernel={tuple(kernel)}"
        rest = {
            "dilation": (self.dilation, 1),
            "groups": (self.groups, 1),
            "bias": (self.bias is not None, True),
        }
        return f"{shape}, stride={self.stride}, padding={self.padding}" + _unusual(rest)


class Conv1d(_Conv):
    """A convolution over one axis: (N, C, L)."""

    ndim = 1


class Conv2d(_Conv):
    """A convolution over two axes: (N, C, H, W)."""

    ndim = 2


class _Pool(Module):
    """Pooling with a window, a stride (the window's size if None) and padding."""

    name = ""

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x: Any) -> Tensor:
        """Pool the last axes."""
        return getattr(F, self.name)(x, self.kernel_size, self.stride, self.padding)

    def extra_repr(self) -> str:
        """The window, its stride and padding."""
        rest = {"stride": (self.stride, None), "padding": (self.padding, 0)}
        return f"{self.kernel_size}" + _unusual(rest)


class MaxPool1d(_Pool):
    """The maximum of each window of one axis."""

    name = "max_pool1d"


class MaxPool2d(_Pool):
    """The maximum of each window of two axes."""

    name = "max_pool2d"


class AvgPool1d(_Pool):
    """The mean of each window of one axis."""

    name = "avg_pool1d"


class AvgPool2d(_Pool):
    """The mean of each window of two axes."""

    name = "avg_pool2d"


class AdaptiveAvgPool2d(Module):
    """Means over windows so chosen that the output has a given size."""

    def __init__(self, output_size: Any) -> None:
        self.output_size = output_size

    def forward(self, x: Any) -> Tensor:
        """Pool the last two axes."""
        return F.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        """The size of the output."""
        return f"{self.output_size}"


class Flatten(Module):
    """All axes but the first in one."""

    def forward(self, x: Any) -> Tensor:
        """Flatten (N, …) to (N, features)."""
        x = asarray(x)
        if not x.ndim:
            raise ShapeError("Flatten: the input has the shape (N, …), but this one is 0-d.")
        return x.reshape(x.shape[0], math.prod(x.shape[1:]))  # -1 would not do for an empty batch


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
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

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
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """The shape."""
        return f"{self.normalized_shape}"


class GroupNorm(Module):
    """Mean 0 and variance 1 per group of channels, then scale and shift per channel."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, *, dtype: Any = np.float32
    ) -> None:
        sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ArgumentError(f"{num_groups} groups do not divide {num_channels} channels.")
        self.num_groups, self.eps = num_groups, between("GroupNorm", "eps", eps, 0.0)
        self.weight = Parameter(ones(num_channels, dtype=dtype))
        self.bias = Parameter(zeros(num_channels, dtype=dtype))

    def forward(self, x: Any) -> Tensor:
        """Normalise (N, C, …)."""
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


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
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        y, mean, var = F.batch_norm_with_statistics(x, self.weight, self.bias, self.eps)
        self._track(mean, var, x.size // x.shape[1])
        return y

    def _track(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Move the running statistics; the variance kept is the unbiased one."""
        if type(mean) is Traced and mean._data.numbers() is None:
            raise InputError(
                f"{type(self).__name__}: inside ad.vmap each element has its own statistics, but the running "
                "ones are one set.\n  Call model.eval() before, or normalise by what keeps none: GroupNorm, "
                "LayerNorm, or functional.batch_norm(x, training=True)."
            )
        unbiased = var.detach() * (count / max(count - 1, 1))
        with no_grad():
            writable(self.num_batches_tracked)[...] += 1
            part = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
            for running, now in ((self.running_mean, mean.detach()), (self.running_var, unbiased)):
                running.copy_((1 - part) * running + part * now)

    def extra_repr(self) -> str:
        """The channels."""
        return f"{self.num_features}"


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C) or (N, C, L)."""

    axes: ClassVar[dict[int, str]] = {2: "(N, C)", 3: "(N, C, L)"}


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, C, H, W)."""

    axes: ClassVar[dict[int, str]] = {4: "(N, C, H, W)"}


class Embedding(Module):
    """Rows of a table by index; with ``sparse=True`` its gradient is the rows that were touched."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        sparse: bool = False,
        *,
        rng: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        sizes("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.sparse = padding_idx, sparse
        table = init.normal((num_embeddings, embedding_dim), rng=rng, dtype=dtype)
        if padding_idx is not None:
            place = whole_number("Embedding", "padding_idx", padding_idx)
            if not -num_embeddings <= place < num_embeddings:
                raise ArgumentError(
                    f"Embedding: padding_idx is one of 0 … {num_embeddings - 1}, but is {padding_idx}."
                )
            table = table.at[padding_idx].set(0.0)
        self.weight = Parameter(table)

    def forward(self, indices: Any) -> Tensor:
        """Look the indices up."""
        return F.embedding(indices, self.weight, self.padding_idx, sparse=self.sparse)

    def extra_repr(self) -> str:
        """The size of the table, the row of padding, and whether gradients are sparse."""
        rest = {"padding_idx": (self.padding_idx, None), "sparse": (self.sparse, False)}
        return f"{self.num_embeddings}, {self.embedding_dim}" + _unusual(rest)


class Dropout(Module):
    """Zeros with probability p in training, the rest scaled up; nothing in evaluation."""

    def __init__(self, p: float = 0.5, *, rng: Any = None) -> None:
        self.p = between("Dropout", "p", p, 0.0, 1.0)
        self.rng = init.generator(rng)

    def forward(self, x: Any) -> Tensor:
        """Drop, in training."""
        return F.dropout(x, self.p, training=self.training, rng=self.rng)

    def extra_repr(self) -> str:
        """The probability."""
        return f"{self.p}"
