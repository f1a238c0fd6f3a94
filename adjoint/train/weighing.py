"""Weights of batches and of their pieces, for gradients and averages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adjoint.errors import ArgumentError, InputError
from adjoint.nn.loss_reduction import Reductions
from adjoint.train.data import Padded

__all__ = ["check_pieces", "count", "first_padded", "padded_targets", "weight_of"]


def weight_of(batch: Any, found: Reductions) -> float:
    """Return the weight of a batch: the divisor of its mean loss.

    It is the number of tokens if the targets are padded, else the number of examples, reduced by ignored
    targets and multiplied by class weights.  ``found`` lists the loss functions that were called.
    """
    shares = [1.0 if share is None else share for _, share in found]
    share = max(shares) if shares and _agree(shares) else 1.0
    padded = padded_targets(batch)
    if padded is None:
        return count(batch) * share
    return float(np.sum(padded.lengths)) if share == 1.0 else np.size(padded.values) * share


def _agree(shares: list[float]) -> bool:
    return max(shares) - min(shares) <= 1e-6 * max(shares)


def check_pieces(found: Reductions, loss: Any, weighted: bool) -> None:
    """Raise if the losses of pieces do not average to the loss of their batch.

    ``weighted``: the caller gave the weights, so only a loss that is itself a sum is an error.
    """
    if any(share is None for value, share in found if value is loss or not weighted):
        raise ArgumentError(
            'Trainer: the loss is a sum (reduction="sum"), but accumulate= averages the losses of pieces.\n'
            '  Use reduction="mean", or accumulate=1'
            + ("." if weighted else "; or pass weight= if the loss is divided by it afterwards.")
        )
    shares = [share for _, share in found if share is not None]
    if shares and not weighted and not _agree(shares):
        raise ArgumentError(
            "Trainer: the terms of the loss are means over different weights, because one of them ignores "
            "or weighs targets.\n  With accumulate= no weight of a piece is right for all terms.  Use "
            "accumulate=1, "
            "or pass weight= if only one of them is trained."
        )


def padded_targets(batch: Any) -> Padded | None:
    """Return the targets of a batch, its last part, if they are padded, else None."""
    while not isinstance(batch, Padded) and isinstance(batch, (tuple, list, Mapping)) and batch:
        batch = list(batch.values() if isinstance(batch, Mapping) else batch)[-1]
    return batch if isinstance(batch, Padded) else None


def first_padded(batch: Any) -> Padded | None:
    """Return the first padded part of a batch; None if there is none."""
    if isinstance(batch, Padded):
        return batch
    parts = (
        batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    )
    return next((found for part in parts if (found := first_padded(part)) is not None), None)


def count(batch: Any) -> int:
    """Return the number of examples of a batch: the length of its first array."""
    while isinstance(batch, (tuple, list, Mapping)) and batch:
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    if not hasattr(batch, "__len__") or getattr(batch, "shape", None) == ():
        raise InputError("Trainer: a batch must consist of arrays.  Pass weight= for other batches.")
    return len(batch)
