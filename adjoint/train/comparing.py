"""Compare the loss of a batch with those of its parts: pieces of a batch are averaged, not summed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint import tree
from adjoint.errors import ArgumentError
from adjoint.train.data import Share
from adjoint.train.snapshot import untouched
from adjoint.train.weighing import computed, examples_in, finished

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = ["check_mean"]

_ROUNDING = {2: 4e-2, 4: 2e-5, 8: 1e-10, 16: 1e-10}  # by bytes of a number: relative error of a loss


def check_mean(trainer: Trainer, batch: Any) -> bool:
    """Raise if the loss of a batch is not the mean of the losses of its pieces, because it is a sum.

    Return False if this batch does not show it.  The comparison is made in evaluation mode, and changes
    neither model nor loss.  No more examples are used than a piece has, or 4, because memory may be short.
    A loss that is neither a mean nor a sum over the examples, or that is random, is accepted.
    """
    if isinstance(batch, Share):
        batch = next((piece for _, piece in batch.pieces if piece is not None), None)
    if batch is None or (rows := examples_in(batch)) < 2:
        return False
    rows = min(rows, max(-(-rows // trainer.pieces), 4))
    try:
        with untouched(trainer), trainer._evaluating(), np.errstate(all="ignore"):
            losses, problem = _compared(trainer, batch, rows)
    except Exception:  # for example a loss that needs training mode: the step itself raises its own errors
        return True
    if problem:
        whole, first, second = losses
        raise ArgumentError(
            "Trainer: accumulate= averages the losses of the pieces of a batch, but this loss is "
            f"{problem}:\n  it is {whole:.6g} for some examples, {first:.6g} and {second:.6g} for their "
            f"halves.\n  {_CURES[problem]}"
        )
    return any(losses)


_SUM, _UNWEIGHTED = "a sum over the examples", "a mean over the examples with other weights"
_CURES = {
    _SUM: "Return a mean, such as ((prediction - target) ** 2).mean(), or use accumulate=1.\n"
    "  If the loss is divided by a number of its own, such as the number of tokens, pass weight=, a "
    "function of a batch that returns this number.",
    _UNWEIGHTED: "Pass weight=, a function of a batch that returns the divisor of the loss: "
    "weight=lambda batch: len(batch[0]) for the number of examples.",
}


def _compared(trainer: Trainer, batch: Any, rows: int) -> tuple[tuple[float, float, float], str]:
    """Return the losses of ``rows`` examples and of their halves, and what is wrong with them, or "".

    For a mean plus a sum plus a constant, the difference between a loss and the mean of its two halves is
    half of the sum, so it is additive.  This is checked for the halves themselves, by their quarters.
    """
    known = False

    def loss(start: int, stop: int) -> tuple[float, float]:
        nonlocal known
        part = tree.map(lambda a: a[start:stop], batch)
        value, numbers, found = computed(trainer, part)
        value, _, weight = finished(trainer, part, value, numbers, found, trainer.pieces)
        known = any(v is value for v, _ in found)  # a mean; a known sum is an error in ``finished``
        return float(value), weight

    n = rows // 4
    half = 2 * n or 1
    whole, _ = loss(0, 2 * half)
    if known:
        return (whole, whole, whole), ""
    (first, w1), (second, w2) = loss(0, half), loss(half, 2 * half)
    losses = whole, first, second
    width = min(p._data.real.itemsize for p in trainer.named_parameters().values())
    least = _ROUNDING[width] * max(map(abs, losses))
    mean = (w1 * first + w2 * second) / (w1 + w2) if w1 + w2 else whole
    if not abs(whole - mean) > 10 * least:
        return losses, ""
    more = whole - (first + second) / 2
    if abs(more) <= least:
        return losses, _UNWEIGHTED
    if not n:
        differs = whole - first - second
    else:
        differs = more - (first + second - sum(loss(i * n, (i + 1) * n)[0] for i in range(4)) / 2)
    return losses, _SUM if abs(differs) <= least else ""
