"""Activations: functions and modules."""

from __future__ import annotations

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.docstrings import SharedDoc, shared_with
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis, number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, ShapeError
from adjoint.nn.arguments import floats, sizes
from adjoint.nn.function_module import FunctionModule
from adjoint.nn.module import Module, Parameter
from adjoint.ops.create import full
from adjoint.ops.elementwise import sigmoid, tanh
from adjoint.ops.fused import log_softmax, softmax
from adjoint.ops.piecewise import relu
from adjoint.typing import ArrayLike, DTypeLike

__all__ = [
    "ELU", "GELU", "GLU", "SELU", "Hardtanh", "LeakyReLU", "LogSoftmax", "Mish", "PReLU", "ReLU", "ReLU6",
    "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh",
]  # fmt: skip

_activation_doc = SharedDoc("""
    Parameters
    ----------
    x : array_like
        The input.
    negative_slope : float
        Factor for negative inputs.
    alpha : float
        The result approaches ``-alpha`` as x goes to minus infinity.
    approximate : {"none", "tanh"}
        ``"tanh"`` selects the approximation by tanh.
    min_val : float
        The lower limit.
    max_val : float
        The upper limit.
    axis : int
        The axis to split.  Its length must be even.

    Returns
    -------
    Tensor
        The result for each element.
    """)


# Functions -------------------------------------------------------------------------------------


@_activation_doc
def leaky_relu(x: ArrayLike, negative_slope: float = 0.01) -> Tensor:
    """Return x where it is positive, else ``negative_slope * x``.

    The gradient at 0 is ``negative_slope``.

    >>> ad.nn.functional.leaky_relu(ad.tensor([-2.0, 3.0]), 0.5)
    tensor([-1.,  3.], dtype=float64)
    """
    return rec.leaky_relu(
        floats("leaky_relu", x), slope=number("leaky_relu", "negative_slope", negative_slope)
    )


@_activation_doc
def prelu(x: ArrayLike, weight: ArrayLike) -> Tensor:
    """Return x where it is positive, else ``weight * x``.

    Parameters
    ----------
    x : array_like
        The input, with shape (N, C, …).
    weight : array_like
        One slope, or one slope per channel.

    Raises
    ------
    ShapeError
        If the weight has neither 1 nor C elements.

    >>> ad.nn.functional.prelu(ad.tensor([[-2.0, -2.0]]), ad.tensor([0.5, 0.25]))
    tensor([[-1. , -0.5]], dtype=float64)
    """
    x, w = floats("prelu", x), asarray(weight)
    channels = x.shape[1] if x.ndim > 1 else 1
    if w.ndim > 1 or w.size not in (1, channels):
        raise ShapeError(
            f"prelu: the weight must be one slope, or a vector of {channels}, one per channel of x (shape "
            f"{x.shape}), but has shape {w.shape}."
        )
    w = rec.reshape(w, shape=(w.size,) + (1,) * max(x.ndim - 2, 0)) if x.ndim else rec.reshape(w, shape=())
    return rec.where(rec.greater(x, 0), x, w * x)


@_activation_doc
def elu(x: ArrayLike, alpha: float = 1.0) -> Tensor:
    """Return x where it is positive, else ``alpha * (exp(x) - 1)``.

    >>> ad.nn.functional.elu(ad.tensor([-1000.0, 3.0]), alpha=2.0)
    tensor([-2.,  3.], dtype=float64)
    """
    return rec.elu(floats("elu", x), alpha=number("elu", "alpha", alpha), scale=1.0)


@_activation_doc
def selu(x: ArrayLike) -> Tensor:
    """Return the scaled ELU, with the constants that preserve mean 0 and variance 1.

    >>> ad.nn.functional.selu(ad.tensor([0.0, 1.0]))
    tensor([0.        , 1.05070099], dtype=float64)
    """
    return rec.elu(
        floats("selu", x), alpha=1.6732632423543772848170429916717, scale=1.0507009873554804934193349852946
    )


@_activation_doc
def gelu(x: ArrayLike, approximate: str = "none") -> Tensor:
    """Return ``x * Φ(x)``, where Φ is the cumulative distribution function of the standard normal.

    >>> ad.nn.functional.gelu(ad.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.15865525,  0.        ,  0.84134475], dtype=float64)
    """
    x = floats("gelu", x)
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"gelu: approximate must be 'none' or 'tanh', not {approximate!r}.")
    return x * rec.normal_gate(x) if approximate == "none" else rec.tanh_gelu(x)[0]


@_activation_doc
def silu(x: ArrayLike) -> Tensor:
    """Return ``x * sigmoid(x)``, also called swish.

    >>> ad.nn.functional.silu(ad.tensor([0.0, 1.0]))
    tensor([0.        , 0.73105858], dtype=float64)
    """
    x = floats("silu", x)
    return x * rec.sigmoid(x)


@_activation_doc
def mish(x: ArrayLike) -> Tensor:
    """Return ``x * tanh(softplus(x))``.

    >>> ad.nn.functional.mish(ad.tensor([0.0, 1.0]))
    tensor([0.        , 0.86509839], dtype=float64)
    """
    x = floats("mish", x)
    return x * rec.mish_gate(x)


@_activation_doc
def softplus(x: ArrayLike, beta: float = 1.0) -> Tensor:
    """Return ``log(1 + exp(beta * x)) / beta``, without overflow or cancellation.

    Parameters
    ----------
    beta : float or Tensor
        A positive factor.  A tensor gets its gradient.

    >>> ad.nn.functional.softplus(ad.tensor([0.0, 1000.0]))
    tensor([6.93147181e-01, 1.00000000e+03], dtype=float64)
    """
    if not beta > 0:
        raise ArgumentError(f"softplus: beta must be positive, but is {beta}.")
    x = floats("softplus", x)
    if type(beta) in (int, float) and beta == 1:
        return rec.softplus(x)
    return rec.softplus(beta * x) / beta


@_activation_doc
def hardtanh(x: ArrayLike, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Clip x to the range from ``min_val`` to ``max_val``.

    Unlike in ``ad.clip``, the gradient is 0 where x equals one of the limits.

    >>> ad.nn.functional.hardtanh(ad.tensor([-3.0, 0.5, 3.0]))
    tensor([-1. ,  0.5,  1. ], dtype=float64)
    """
    low, high = number("hardtanh", "min_val", min_val), number("hardtanh", "max_val", max_val)
    if low > high:
        raise ArgumentError(
            f"hardtanh: min_val must not be above max_val, but min_val is {low} and max_val is {high}."
        )
    return rec.hardtanh(floats("hardtanh", x), low=low, high=high)


@_activation_doc
def relu6(x: ArrayLike) -> Tensor:
    """Clip x to the range from 0 to 6; the gradient is 0 at both limits.

    >>> ad.nn.functional.relu6(ad.tensor([-3.0, 0.5, 8.0]))
    tensor([0. , 0.5, 6. ], dtype=float64)
    """
    return rec.hardtanh(floats("relu6", x), low=0.0, high=6.0)


@_activation_doc
def glu(x: ArrayLike, axis: int = -1) -> Tensor:
    """Return the first half of x along an axis times the sigmoid of the second half.

    Returns
    -------
    Tensor
        The result, half as long as x along ``axis``.

    Raises
    ------
    ShapeError
        If the axis has an odd length.

    >>> ad.nn.functional.glu(ad.tensor([4.0, 0.0]))
    tensor([2.], dtype=float64)
    """
    x = floats("glu", x)
    where = canonical_axis("glu", axis, x.ndim)
    n = x.shape[where]
    if n % 2:
        raise ShapeError(
            f"glu: axis {axis} must have an even length, to be split into two halves, but shape {x.shape} "
            f"has length {n}."
        )
    tail = (slice(None),) * (-where - 1)
    return x[(..., slice(None, n // 2), *tail)] * rec.sigmoid(x[(..., slice(n // 2, None), *tail)])


# Modules ---------------------------------------------------------------------------------------


class _Activation(FunctionModule):
    """Base class of activation modules, which apply a function to one tensor."""

    @_activation_doc
    def forward(self, x: ArrayLike) -> Tensor:
        """Apply the function."""
        return self.function(x, **self.options)


class ReLU(_Activation):
    """Module form of ``nn.functional.relu``: x where it is positive, else 0.

    >>> ad.nn.ReLU()(ad.tensor([-2.0, 3.0]))
    tensor([0., 3.], dtype=float64)
    """

    function = staticmethod(relu)


class ReLU6(_Activation):
    """Module form of ``nn.functional.relu6``: x clipped to the range from 0 to 6.

    >>> ad.nn.ReLU6()(ad.tensor([-2.0, 8.0]))
    tensor([0., 6.], dtype=float64)
    """

    function = staticmethod(relu6)


class LeakyReLU(_Activation):
    """Module form of ``nn.functional.leaky_relu``: x where it is positive, else ``negative_slope * x``.

    >>> ad.nn.LeakyReLU(0.5)(ad.tensor([-2.0, 3.0]))
    tensor([-1.,  3.], dtype=float64)
    """

    function = staticmethod(leaky_relu)

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.options = {"negative_slope": negative_slope}


class ELU(_Activation):
    """Module form of ``nn.functional.elu``: x where it is positive, else ``alpha * (exp(x) - 1)``.

    >>> ad.nn.ELU()(ad.tensor([-1000.0, 3.0]))
    tensor([-1.,  3.], dtype=float64)
    """

    function = staticmethod(elu)

    def __init__(self, alpha: float = 1.0) -> None:
        self.options = {"alpha": alpha}


class SELU(_Activation):
    """Module form of ``nn.functional.selu``: the scaled ELU.

    >>> ad.nn.SELU()(ad.tensor([0.0, 1.0]))
    tensor([0.        , 1.05070099], dtype=float64)
    """

    function = staticmethod(selu)


class GELU(_Activation):
    """Module form of ``nn.functional.gelu``: ``x * Φ(x)``.

    >>> ad.nn.GELU()(ad.tensor([0.0, 1.0]))
    tensor([0.        , 0.84134475], dtype=float64)
    """

    function = staticmethod(gelu)

    def __init__(self, approximate: str = "none") -> None:
        self.options = {"approximate": approximate}


class SiLU(_Activation):
    """Module form of ``nn.functional.silu``: ``x * sigmoid(x)``.

    >>> ad.nn.SiLU()(ad.tensor([0.0, 1.0]))
    tensor([0.        , 0.73105858], dtype=float64)
    """

    function = staticmethod(silu)


class Mish(_Activation):
    """Module form of ``nn.functional.mish``: ``x * tanh(softplus(x))``.

    >>> ad.nn.Mish()(ad.tensor([0.0, 1.0]))
    tensor([0.        , 0.86509839], dtype=float64)
    """

    function = staticmethod(mish)


class Softplus(_Activation):
    """Module form of ``nn.functional.softplus``: ``log(1 + exp(beta * x)) / beta``.

    >>> ad.nn.Softplus()(ad.tensor([0.0]))
    tensor([0.69314718], dtype=float64)
    """

    function = staticmethod(softplus)

    def __init__(self, beta: float = 1.0) -> None:
        self.options = {"beta": beta}


class Hardtanh(_Activation):
    """Module form of ``nn.functional.hardtanh``: x clipped to a range.

    >>> ad.nn.Hardtanh(-2.0, 2.0)(ad.tensor([-3.0, 0.5]))
    tensor([-2. ,  0.5], dtype=float64)
    """

    function = staticmethod(hardtanh)

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self.options = {"min_val": min_val, "max_val": max_val}


class GLU(_Activation):
    """Module form of ``nn.functional.glu``: one half of x times the sigmoid of the other.

    >>> ad.nn.GLU()(ad.tensor([4.0, 0.0]))
    tensor([2.], dtype=float64)
    """

    function = staticmethod(glu)

    def __init__(self, axis: int = -1) -> None:
        self.options = {"axis": axis}


class Tanh(_Activation):
    """Module form of ``nn.functional.tanh``.

    >>> ad.nn.Tanh()(ad.tensor([0.0, 1.0]))
    tensor([0.        , 0.76159416], dtype=float64)
    """

    function = staticmethod(tanh)


class Sigmoid(_Activation):
    """Module form of ``nn.functional.sigmoid``.

    >>> ad.nn.Sigmoid()(ad.tensor([0.0, 1.0]))
    tensor([0.5       , 0.73105858], dtype=float64)
    """

    function = staticmethod(sigmoid)


class Softmax(_Activation):
    """Module form of ``nn.functional.softmax``.

    >>> ad.nn.Softmax()(ad.tensor([1.0, 1.0]))
    tensor([0.5, 0.5], dtype=float64)
    """

    function = staticmethod(softmax)

    def __init__(self, axis: int = -1) -> None:
        self.options = {"axis": axis}


class LogSoftmax(_Activation):
    """Module form of ``nn.functional.log_softmax``.

    >>> ad.nn.LogSoftmax()(ad.tensor([1.0, 1.0]))
    tensor([-0.69314718, -0.69314718], dtype=float64)
    """

    function = staticmethod(log_softmax)

    def __init__(self, axis: int = -1) -> None:
        self.options = {"axis": axis}


@_activation_doc
class PReLU(Module):
    """x where it is positive, else ``weight * x`` with a trained slope.

    Parameters
    ----------
    num_parameters : int
        The number of slopes: 1, or the number of channels.
    init : float
        The initial slope.
    dtype : dtype_like
        The dtype of the weight.

    >>> ad.nn.PReLU(init=0.5)(ad.tensor([-2.0, 3.0], dtype="float32")).tolist()
    [-1.0, 3.0]
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: DTypeLike = np.float32) -> None:
        sizes("PReLU", num_parameters=num_parameters)
        self.weight = Parameter(full((num_parameters,), number("PReLU", "init", init), dtype=dtype))

    @shared_with(prelu)
    def forward(self, x: ArrayLike) -> Tensor:
        """Apply ``nn.functional.prelu``."""
        return prelu(x, self.weight)

    def extra_repr(self) -> str:
        """Return the number of slopes, for the module's repr."""
        return f"{self.weight.size}"
