"""What PyTorch has in ``torch.nn.utils``: the parametrizations of weights."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from adjoint.core.other_names import absent as _absent
from adjoint.nn.utils import parametrizations

__all__ = ["parametrizations"]

if not _TYPE_CHECKING:  # for type checkers what is not there is not there
    __getattr__ = _absent(__name__)
