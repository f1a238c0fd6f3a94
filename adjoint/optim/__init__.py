"""Optimisers and learning-rate schedules."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from adjoint.core.other_names import absent as _absent
from adjoint.core.other_names import explain_options as _explain_options
from adjoint.optim import schedules
from adjoint.optim.average import EMA
from adjoint.optim.first_order import SGD, Adagrad, Adam, AdamW, Lion, NAdam, RMSprop
from adjoint.optim.lbfgs import LBFGS
from adjoint.optim.optimizer import Optimizer

__all__ = [
    "EMA",
    "LBFGS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Lion",
    "NAdam",
    "Optimizer",
    "RMSprop",
    "schedules",
]

_explain_options(globals()[name] for name in __all__)

if not _TYPE_CHECKING:  # for type checkers what is not there is not there
    __getattr__ = _absent(__name__)
