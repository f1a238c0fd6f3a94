"""The part of ``torch.nn.utils`` that adjoint has: parametrizations of weights."""

from adjoint.nn.utils import parametrizations

__all__ = ["parametrizations"]


def __dir__() -> list[str]:
    return sorted(__all__)
