"""Activations as modules: each is a name for its function."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.shapes import number
from adjoint.core.tensor import Tensor
from adjoint.nn import functional as F  # noqa: N812  the name that people's hands know
from adjoint.nn.arguments import sizes
from adjoint.nn.functions import FunctionModule, as_module
from adjoint.nn.module import Module, Parameter
from adjoint.ops.create import full

__all__ = [
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardtanh",
    "LeakyReLU",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
]


class _Activation(FunctionModule):
    """A function of one tensor."""

    def forward(self, x: Any) -> Tensor:
        """Apply the function."""
        return getattr(F, self.name)(x, **self.options)


def _activation(name: str, function: str) -> type[_Activation]:
    return as_module(_Activation, name, function, "own, after x")


ReLU = _activation("ReLU", "relu")
ReLU6 = _activation("ReLU6", "relu6")
LeakyReLU = _activation("LeakyReLU", "leaky_relu")
ELU = _activation("ELU", "elu")
SELU = _activation("SELU", "selu")
GELU = _activation("GELU", "gelu")
SiLU = _activation("SiLU", "silu")
Mish = _activation("Mish", "mish")
Softplus = _activation("Softplus", "softplus")
Hardtanh = _activation("Hardtanh", "hardtanh")
GLU = _activation("GLU", "glu")
Tanh = _activation("Tanh", "tanh")
Sigmoid = _activation("Sigmoid", "sigmoid")
Softmax = _activation("Softmax", "softmax")
LogSoftmax = _activation("LogSoftmax", "log_softmax")


class PReLU(Module):
    """x where it is positive, else ``weight · x``, with one trained slope, or one per channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: Any = np.float32) -> None:
        sizes("PReLU", num_parameters=num_parameters)
        self.weight = Parameter(full((num_parameters,), number("PReLU", "init", init), dtype=dtype))

    def forward(self, x: Any) -> Tensor:
        """Apply the function."""
        return F.prelu(x, self.weight)

    def extra_repr(self) -> str:
        """The number of slopes."""
        return f"{self.weight.size}"
