"""What PyTorch has in ``torch.nn.utils``: the parametrizations of weights."""

from adjoint.nn.utils import parametrizations

__all__ = ["parametrizations"]


def __dir__() -> list[str]:
    return sorted(__all__)
