"""Training: data, the loop, callbacks, checkpoints, and composed losses."""

from adjoint.hints import add_hints as _add_hints
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
from adjoint.train.history import History
from adjoint.train.loggers import MLflowLog, TensorBoardLog, WandbLog
from adjoint.train.trainer import Trainer

__all__ = [
    "BestCheckpoint", "CSVLog", "Callback", "Checkpoints", "ComposedLoss", "DataLoader", "EarlyStopping",
    "GradientFlow", "History", "JSONLog", "MLflowLog", "NonFiniteGuard", "Padded", "TensorBoardLog",
    "Trainer", "WandbLog", "compose", "pad_collate", "stack_collate",
]  # fmt: skip
__dir__ = sorted(__all__).copy


_add_hints(__name__)
