"""How much a batch counts: what makes the mean over pieces, and over batches, the mean over all."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from adjoint.errors import InputError
from adjoint.nn import CrossEntropyLoss, NLLLoss
from adjoint.nn import functional as F  # noqa: N812  the name that people's hands know
from adjoint.train.compose import ComposedLoss
from adjoint.train.data import Padded

__all__ = ["count", "first_padded", "padded_targets", "weight_of"]


def weight_of(batch: Any, loss: Any) -> float:
    """Return the tokens of a batch whose targets are padded; of others the examples that ``loss`` averages.

    Targets that a loss of classes ignores do not count, and others by the weights of their classes.
    """
    padded = padded_targets(batch)
    if padded is not None:
        return float(np.sum(padded.lengths))
    rows = count(batch)
    pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    return rows * _share(loss, batch[1]) if rows and pair else float(rows)


def padded_targets(batch: Any) -> Padded | None:
    """Return the targets of a batch, which are its last part, if they are padded; None if they are not."""
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
        raise InputError("Trainer: a batch is made of arrays; say how much others count with weight=.")
    return len(batch)


_MODULES = (CrossEntropyLoss, NLLLoss)
_FUNCTIONS = (F.cross_entropy, F.nll_loss)
_IGNORED = inspect.signature(F.cross_entropy).parameters["ignore_index"].default


def _share(loss: Any, target: Any) -> float:
    """Return the mean weight of the targets, over which a loss of classes averages; 1 for other losses."""
    if isinstance(loss, ComposedLoss):  # terms that average over different weights have no common one
        shares = {_share(function, target) for function, arity in loss.terms.values() if arity != 1}
        return shares.pop() if len(shares) == 1 else 1.0
    if not isinstance(loss, _MODULES) and not any(loss is f for f in _FUNCTIONS):
        return 1.0
    options = loss.options if isinstance(loss, _MODULES) else {}
    classes = np.asarray(target)
    if options.get("reduction", "mean") != "mean" or classes.dtype.kind not in "iu" or not classes.size:
        return 1.0  # probabilities ignore no row, and their mean is over the rows
    kept = classes != options.get("ignore_index", _IGNORED)
    weights = options.get("weight")
    if weights is None:
        return float(kept.mean())
    weights, chosen = np.asarray(weights, np.float64), classes[kept]
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < len(weights):
        return 1.0  # the loss says what is wrong
    return float(weights[chosen].sum()) / classes.size
