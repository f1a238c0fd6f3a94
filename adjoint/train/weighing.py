"""Compute the loss of a batch or of a piece of a batch, and its weight in sums of gradients and averages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint import words
from adjoint.config import no_grad
from adjoint.core.convert import asarray
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.nn.loss_reduction import Reductions, noting_reductions
from adjoint.train.compose import ComposedLoss
from adjoint.train.data import Padded, Share

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = [
    "RESERVED", "Averages", "check_pieces", "computed", "examples_in", "finished", "first_padded", "loss_of",
    "padded_targets", "unit_of", "weight_of",
]  # fmt: skip

RESERVED = ("loss", "lr", "grad_norm", "seconds", "epoch", "step")  # names that the trainer logs itself


def loss_of(trainer: Trainer, batch: Any, pieces: int = 1) -> tuple[Tensor, dict[str, float], float]:
    """Return the loss of a batch, the other metrics to log, and the weight of the batch.

    ``batch`` may be a piece of a larger batch.  ``pieces`` is the number of such pieces in a step.
    """
    return finished(trainer, batch, *computed(trainer, batch), pieces)


def computed(
    trainer: Trainer, batch: Any, loss_function: Callable[..., Any] | None = None
) -> tuple[Any, Mapping[str, Any], Reductions]:
    """Compute the loss of a batch; return it, the other values to log by name, and a list of reductions.

    The last item is a list with a pair (value, share) for each loss function that was called, see
    ``noting_reductions``.  ``loss_function``, if given, is called instead of the loss of the trainer.
    """
    numbers: dict[str, Any] = {}
    found: Reductions = []
    if trainer.compute is not None:
        with noting_reductions(found):
            loss = trainer.compute(trainer.model, batch)
        if isinstance(loss, tuple) and len(loss) == 2:
            loss, numbers = loss
    else:
        prediction, target = _predicted(trainer, batch)
        function: Any = loss_function or trainer.loss
        composed = isinstance(trainer.loss, ComposedLoss)
        with noting_reductions(found):
            loss = function(prediction, target, *((trainer.model,) if composed else ()))
        with no_grad():
            numbers = {name: f(prediction, target) for name, f in trainer.metrics.items()}
    return loss, numbers, found


def finished(
    trainer: Trainer, batch: Any, loss: Any, numbers: Mapping[str, Any], found: Reductions, pieces: int
) -> tuple[Tensor, dict[str, float], float]:
    """Check the loss of a batch; return it with the metrics to log, as floats, and the weight of the batch.

    ``loss``, ``numbers`` and ``found`` are the results of ``computed``.  ``pieces`` is the number of pieces
    that a batch is divided into.
    """
    if not isinstance(loss, Tensor):
        raise InputError(
            f"Trainer: the loss must be a tensor of one number, not {words.a(type(loss).__name__)}."
        )
    if loss.size != 1:
        raise ShapeError(
            f"Trainer: the loss must be one number, but has shape {loss.shape}.  Reduce it: loss.mean()."
        )
    taken = [name for name in numbers if name in RESERVED or name in trainer._term_names()]
    if taken:
        raise ArgumentError(
            f"Trainer: a metric must not have a name that the trainer logs: {', '.join(taken)}.\n"
            "  Use a different name."
        )
    logs = {name: _number(name, value) for name, value in numbers.items()}
    if isinstance(trainer.loss, ComposedLoss):
        logs.update(trainer.loss.values)
    return loss, logs, _weight(trainer, batch, found, loss, pieces)


def _predicted(trainer: Trainer, batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or first_padded(batch) is not None:
        raise InputError(
            "Trainer: a batch must be a pair (inputs, targets), as DataLoader((X, Y), batch_size) makes.\n"
            "  For other batches, such as padded ones with lengths, pass compute=function of (model, batch)."
        )
    _refuse_several_inputs(*batch)
    return trainer.model(asarray(batch[0])), asarray(batch[1])


def _refuse_several_inputs(inputs: Any, targets: Any) -> None:
    """Raise if ``inputs`` is a list of several arrays that each have one row per target.

    A list with one row per target is accepted, because it can be converted to one array.
    """
    if not isinstance(inputs, (tuple, list)) or not hasattr(targets, "__len__") or not inputs:
        return
    arrays = all(isinstance(each, (np.ndarray, Tensor)) and each.ndim for each in inputs)
    if arrays and len(inputs) != len(targets) and all(len(each) == len(targets) for each in inputs):
        raise InputError(
            f"Trainer: the inputs of a batch must be one array, but there are {len(inputs)} arrays.\n"
            "  For several inputs pass compute=lambda model, batch: loss(model(*batch[0]), batch[1])."
        )


def _weight(trainer: Trainer, batch: Any, found: Reductions, loss: Any, pieces: int) -> float:
    found = [pair for pair in found if pair[0] is loss] or found
    if pieces > 1:
        check_pieces(found, loss, trainer.weight is not None)
    return weight_of(batch, found) if trainer.weight is None else float(trainer.weight(batch))


def _number(name: str, value: Any) -> float:
    if np.shape(value) != ():
        raise InputError(f"Trainer: {name!r} must be one number per batch, but has shape {np.shape(value)}.")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"Trainer: {name!r} must be one number per batch, not {value!r}.") from None


def weight_of(batch: Any, found: Reductions) -> float:
    """Return the weight of a batch: the number by which its mean loss was divided.

    This is the number of tokens if the targets are padded, else the number of examples.  Ignored targets do
    not count.  Other targets count with their class weights.  ``found`` has a pair (value, share) for each
    loss function that was called; the share is the fraction of targets that count, None for a sum.
    """
    shares = [1.0 if share is None else share for _, share in found]
    share = max(shares) if shares and _agree(shares) else 1.0
    padded = padded_targets(batch)
    if padded is None:
        return examples_in(batch) * share
    return float(np.sum(padded.lengths)) if share == 1.0 else np.size(padded.values) * share


def _agree(shares: list[float]) -> bool:
    return max(shares) - min(shares) <= 1e-6 * max(shares)


def check_pieces(found: Reductions, loss: Any, weighted: bool) -> None:
    """Raise if the weighted mean of the losses of the pieces would not be the loss of the batch.

    ``found`` has a pair (value, share) for each loss function that was called.  If ``weighted`` is True, the
    user passed ``weight=``, and only a loss that is a sum is an error.
    """
    if any(share is None for value, share in found if value is loss or not weighted):
        raise ArgumentError(
            'Trainer: the loss is a sum (reduction="sum"), but accumulate= averages the losses of pieces.\n'
            '  Use reduction="mean", or accumulate=1'
            + ("." if weighted else "; or pass weight= if the loss is then divided by that weight.")
        )
    shares = [share for _, share in found if share is not None]
    if shares and not weighted and not _agree(shares):
        raise ArgumentError(
            "Trainer: the terms of the loss are means with different divisors, because one term ignores or "
            "weights targets.\n  With accumulate=, no weight of a piece is correct for all terms.\n"
            "  Use accumulate=1, or pass weight= if only one term is trained."
        )


def unit_of(trainer: Trainer, batch: Any) -> str:
    """Return the name of the unit of weights that the progress bar shows."""
    if trainer.unit is not None:
        return trainer.unit
    if isinstance(batch, Share):
        batch = next((piece for _, piece in batch.pieces if piece is not None), ())
    return "samples" if trainer.weight is None and padded_targets(batch) is None else "tokens"


def padded_targets(batch: Any) -> Padded | None:
    """Return the targets (the last part) of a batch if they are padded, else None."""
    while not isinstance(batch, Padded) and isinstance(batch, (tuple, list, Mapping)) and batch:
        batch = list(batch.values() if isinstance(batch, Mapping) else batch)[-1]
    return batch if isinstance(batch, Padded) else None


def first_padded(batch: Any) -> Padded | None:
    """Return the first ``Padded`` in a nested batch, or None if there is none."""
    if isinstance(batch, Padded):
        return batch
    parts = (
        batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    )
    return next((found for part in parts if (found := first_padded(part)) is not None), None)


def examples_in(batch: Any) -> int:
    """Return the number of examples of a batch: the length of its first array."""
    while isinstance(batch, (tuple, list, Mapping)) and batch:
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    if not hasattr(batch, "__len__") or getattr(batch, "shape", None) == ():
        raise InputError(
            "Trainer: cannot count the examples of a batch that is not made of arrays.\n"
            "  Pass weight=, a function that returns the weight of a batch."
        )
    return len(batch)


class Averages:
    """Weighted means of named metrics."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}  # name: Σ weight·value, Σ weight

    def add(self, numbers: Mapping[str, float], weight: float) -> None:
        """Add a value for each name, all with the same weight.  Weight 0 ignores the values, even NaN."""
        for name, value in numbers.items():
            sums = self._sums.setdefault(name, [0.0, 0.0])
            if weight:
                sums[0] += value * weight
                sums[1] += weight

    def means(self) -> dict[str, float]:
        """Return the weighted mean of each metric by name, or NaN if the total weight is 0."""
        return {name: total / weight if weight else math.nan for name, (total, weight) in self._sums.items()}

    def state_dict(self) -> dict[str, list[float]]:
        """Return, for each name, the list ``[Σ weight·value, Σ weight]``."""
        return {name: list(sums) for name, sums in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, list[float]]) -> None:
        """Restore the result of ``state_dict``."""
        self._sums = {name: list(sums) for name, sums in state.items()}
