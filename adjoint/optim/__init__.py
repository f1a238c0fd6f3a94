"""Optimisers and learning-rate schedules."""

from adjoint.hints import add_hints as _add_hints
from adjoint.optim import schedules
from adjoint.optim.average import EMA
from adjoint.optim.first_order import SGD, Adagrad, Adam, AdamW, Lion, NAdam, RMSprop
from adjoint.optim.lbfgs import LBFGS
from adjoint.optim.optimizer import Optimizer
from adjoint.optim.pure import Pure

__all__ = [
    "EMA", "LBFGS", "SGD", "Adagrad", "Adam", "AdamW", "Lion", "NAdam", "Optimizer", "Pure", "RMSprop",
    "schedules",
]  # fmt: skip
__dir__ = sorted(__all__).copy


_add_hints(__name__, schedules.__name__)
