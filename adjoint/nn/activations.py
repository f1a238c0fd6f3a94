"""Activations as modules: each is a name for its function."""

from __future__ import annotations

from typing import Any

from adjoint.core.tensor import Tensor
from adjoint.nn import functional as F  # noqa: N812  the name that people's hands know
from adjoint.nn.functions import FunctionModule, as_module

__all__ = [
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardtanh",
    "LeakyReLU",
    "LogSoftmax",
    "Mish",
    "ReLU",
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
