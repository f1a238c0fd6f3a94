"""Parametrizations of weights, under the names of ``torch.nn.utils``."""

from adjoint.nn.utils import parametrizations

__all__ = ["parametrizations"]


def __dir__() -> list[str]:
    return sorted(__all__)
