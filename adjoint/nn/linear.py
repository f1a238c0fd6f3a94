"""Linear and bilinear maps, and layers that only change the shape: functions and modules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.docstrings import shared_with
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis, whole_number
from adjoint.core.tensor import Tensor
from adjoint.errors import ShapeError
from adjoint.nn import init
from adjoint.nn.arguments import floats, lengths, sizes, unusual
from adjoint.nn.module import Module, Parameter
from adjoint.nn.shared_docs import layer_doc
from adjoint.nn.widths import warn_if_wider
from adjoint.ops.contraction import einsum
from adjoint.ops.shared_docs import mismatch_doc
from adjoint.tracebacks import hide
from adjoint.typing import ArrayLike, DTypeLike, Lengths

__all__ = ["Bilinear", "Flatten", "Identity", "Linear", "Unflatten"]

_linear_doc = layer_doc.extended("""
    Parameters
    ----------
    out_features : int
        The length of the last axis of the result.
    """)


@mismatch_doc
def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``.

    Parameters
    ----------
    x : array_like
        The input, with shape (…, in).
    weight : array_like
        The matrix, with shape (out, in).
    bias : array_like, optional
        The bias, with shape (out,).

    Returns
    -------
    Tensor
        The result, with shape (…, out).

    >>> ad.nn.functional.linear(ad.ones((1, 3)), ad.ones((2, 3)), ad.tensor([0.5, -0.5]))
    tensor([[3.5, 2.5]], dtype=float64)
    """
    try:
        x = x if type(x) is Tensor else asarray(x)
        w = weight if type(weight) is Tensor else asarray(weight)
        given, layer = x._data.shape, w._data.shape
        if not given or len(layer) != 2 or given[-1] != layer[1]:
            raise ShapeError(
                f"linear: x must have shape (…, in) and the weight (out, in), but x has shape {given} and "
                f"the weight {layer}."
            )
        if bias is None:
            return rec.linear(x, w, 0)
        b = bias if type(bias) is Tensor else asarray(bias)
        if b._data.shape != layer[:1]:
            raise ShapeError(
                f"linear: the bias must have shape {layer[:1]}, one value per output, "
                f"but has shape {b.shape}."
            )
        return rec.linear(x, w, b)
    except Exception as error:
        hide(error)
        raise


@_linear_doc
class Linear(Module):
    """Return ``x @ weight.T + bias`` with trained weight and bias.

    The weight has shape (out_features, in_features).

    Parameters
    ----------
    in_features : int
        The length of the last axis of the input.

    >>> layer = ad.nn.Linear(3, 2)
    >>> layer(ad.ones((5, 3), dtype="float32")).shape
    (5, 2)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        rng: init.Rng = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        sizes("Linear", 0, in_features=in_features, out_features=out_features)
        rng = init.generator(rng)
        bound = 1.0 / math.sqrt(in_features) if in_features else 0.0
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(init.uniform((out_features, in_features), bound, rng=rng, dtype=dtype))
        self.bias = Parameter(init.uniform((out_features,), bound, rng=rng, dtype=dtype)) if bias else None

    @shared_with(linear)
    def forward(self, x: ArrayLike) -> Tensor:
        """Apply the layer to the last axis."""
        w = self.weight
        y = linear(x, w, self.bias)
        if y._data.dtype is not w._data.dtype:
            warn_if_wider(w, y)
        return y

    def extra_repr(self) -> str:
        """Return the numbers of input and output features, for the module's repr."""
        return f"{self.in_features}, {self.out_features}" + ("" if self.bias is not None else ", bias=False")


@layer_doc
class Flatten(Module):
    """Join neighbouring axes into one.

    Parameters
    ----------
    start_dim : int
        The first axis to join.
    end_dim : int
        The last axis to join.

    >>> ad.nn.Flatten()(ad.ones((2, 3, 4))).shape
    (2, 12)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = whole_number("Flatten", "start_dim", start_dim)
        self.end_dim = whole_number("Flatten", "end_dim", end_dim)

    def forward(self, x: ArrayLike) -> Tensor:
        """Join the axes.

        Parameters
        ----------
        x : array_like
            The input, with shape (N, …).

        Returns
        -------
        Tensor
            The input in its new shape.

        Raises
        ------
        ShapeError
            If the first axis comes after the last one.
        """
        x = asarray(x)
        if not x.ndim:
            raise ShapeError("Flatten: the input must have shape (N, …), but is 0-d.")
        if x.ndim == 1 and (self.start_dim, self.end_dim) == (1, -1):
            return x.reshape(x.shape[0], 1)
        first, last = (
            canonical_axis(f"Flatten ({name})", axis, x.ndim) + x.ndim
            for name, axis in (("start_dim", self.start_dim), ("end_dim", self.end_dim))
        )
        if first > last:
            raise ShapeError(
                f"Flatten: start_dim must not be after end_dim, but start_dim is {self.start_dim} and "
                f"end_dim is {self.end_dim} (shape {x.shape})."
            )
        # the length is computed here, because reshape cannot infer -1 if the tensor is empty
        return x.reshape(*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])

    def extra_repr(self) -> str:
        """Return the axes unless they are the defaults, for the module's repr."""
        return unusual({"start_dim": (self.start_dim, 1), "end_dim": (self.end_dim, -1)}).removeprefix(", ")


@layer_doc
class Unflatten(Module):
    """Split one axis into several.

    Parameters
    ----------
    axis : int
        The axis to split.
    unflattened_size : tuple of int
        The lengths of the new axes.  One of them may be -1.

    >>> ad.nn.Unflatten(1, (3, -1))(ad.ones((2, 12))).shape
    (2, 3, 4)
    """

    def __init__(self, axis: int, unflattened_size: Lengths) -> None:
        self.axis = whole_number("Unflatten", "axis", axis)
        self.unflattened_size = lengths("Unflatten", "unflattened_size", unflattened_size, low=-1)

    @layer_doc
    def forward(self, x: ArrayLike) -> Tensor:
        """Split the axis.

        Returns
        -------
        Tensor
            The input in its new shape.

        Raises
        ------
        ShapeError
            If the length of the axis is not the product of the new lengths.
        """
        x = asarray(x)
        at = canonical_axis("Unflatten", self.axis, x.ndim) + x.ndim
        size, n = self.unflattened_size, x.shape[at]
        known = math.prod(s for s in size if s != -1)
        if size.count(-1) > 1 or (n % known if -1 in size and known else n != known):
            raise ShapeError(f"Unflatten: axis {self.axis} of length {n} cannot be split into {size}.")
        size = tuple(n // max(known, 1) if s == -1 else s for s in size)
        return x.reshape(*x.shape[:at], *size, *x.shape[at + 1 :])

    def extra_repr(self) -> str:
        """Return the axis and the lengths, for the module's repr."""
        return f"{self.axis}, {self.unflattened_size}"


class Identity(Module):
    """Return the input unchanged.

    Parameters
    ----------
    *args, **kwargs : object
        Ignored, as in PyTorch.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.Identity()(3.0)
    3.0
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def forward(self, x: Any) -> Tensor:
        """Return the input.

        Parameters
        ----------
        x : object
            The input.

        Returns
        -------
        object
            The same object.
        """
        return x


@mismatch_doc
def bilinear(x1: ArrayLike, x2: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Tensor:
    """Return ``x1ᵀ weight[o] x2 + bias[o]`` for each output o.

    Parameters
    ----------
    x1 : array_like
        The first input, with shape (…, in1).
    x2 : array_like
        The second input, with shape (…, in2).
    weight : array_like
        The matrices, with shape (out, in1, in2).
    bias : array_like, optional
        The bias, with shape (out,).

    Returns
    -------
    Tensor
        The result, with shape (…, out).

    >>> ad.nn.functional.bilinear(ad.tensor([1.0, 2.0]), ad.tensor([3.0]), ad.ones((1, 2, 1)))
    tensor([9.], dtype=float64)
    """
    x1, x2, w = floats("bilinear", x1), floats("bilinear", x2), asarray(weight)
    fits = w.ndim == 3 and x1.ndim and x1.ndim == x2.ndim
    if not fits or w.shape[1:] != (x1.shape[-1], x2.shape[-1]) or x1.shape[:-1] != x2.shape[:-1]:
        raise ShapeError(
            "bilinear: x1 must have shape (…, in1), x2 (…, in2) and the weight (out, in1, in2), but the "
            f"shapes are x1 {x1.shape}, x2 {x2.shape} and weight {w.shape}."
        )
    y = einsum("...i,oij,...j->...o", x1, w, x2)
    if bias is None:
        return y
    b = asarray(bias)
    if b.shape != w.shape[:1]:
        raise ShapeError(
            f"bilinear: the bias must have shape {w.shape[:1]}, one value per output, but has shape "
            f"{b.shape}."
        )
    return y + b


@_linear_doc
class Bilinear(Module):
    """Return ``x1ᵀ weight[o] x2 + bias[o]`` for each output o, with trained weight and bias.

    The weight has shape (out_features, in1_features, in2_features).

    Parameters
    ----------
    in1_features : int
        The length of the last axis of the first input.
    in2_features : int
        The length of the last axis of the second input.

    >>> layer = ad.nn.Bilinear(3, 4, 2, dtype="float64")
    >>> layer(ad.ones((5, 3)), ad.ones((5, 4))).shape
    (5, 2)
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        *,
        rng: init.Rng = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        shape = {"out_features": out_features, "in1_features": in1_features, "in2_features": in2_features}
        sizes("Bilinear", **shape)
        rng = init.generator(rng)
        bound = 1.0 / math.sqrt(in1_features)
        self.weight = Parameter(init.uniform(tuple(shape.values()), bound, rng=rng, dtype=dtype))
        self.bias = Parameter(init.uniform((out_features,), bound, rng=rng, dtype=dtype)) if bias else None

    @shared_with(bilinear)
    def forward(self, x1: ArrayLike, x2: ArrayLike) -> Tensor:
        """Combine the last axes of two inputs."""
        w = self.weight
        y = bilinear(x1, x2, w, self.bias)
        if y._data.dtype is not w._data.dtype:
            warn_if_wider(w, y)
        return y

    def extra_repr(self) -> str:
        """Return the numbers of input and output features, for the module's repr."""
        out, in1, in2 = self.weight.shape
        return f"{in1}, {in2}, {out}" + ("" if self.bias is not None else ", bias=False")
