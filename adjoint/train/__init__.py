"""Training: data, the loop, callbacks, checkpoints, and losses put together from terms."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from adjoint.core.other_names import absent as _absent
from adjoint.core.other_names import explain_options as _explain_options
from adjoint.train.callbacks import (
    BestCheckpoint,
    Callback,
    CSVLog,
    EarlyStopping,
    GradientFlow,
    JSONLog,
    NonFiniteGuard,
)
from adjoint.train.checkpoint import Checkpoints
from adjoint.train.compose import ComposedLoss, compose
from adjoint.train.data import DataLoader, Padded, pad_collate, stack_collate
from adjoint.train.trainer import Trainer

__all__ = [
    "BestCheckpoint",
    "CSVLog",
    "Callback",
    "Checkpoints",
    "ComposedLoss",
    "DataLoader",
    "EarlyStopping",
    "GradientFlow",
    "JSONLog",
    "NonFiniteGuard",
    "Padded",
    "Trainer",
    "compose",
    "pad_collate",
    "stack_collate",
]

_explain_options(
    (Trainer, DataLoader, Checkpoints, EarlyStopping, BestCheckpoint, CSVLog, JSONLog, GradientFlow)
)

if not _TYPE_CHECKING:  # for type checkers what is not there is not there
    __getattr__ = _absent(__name__)
