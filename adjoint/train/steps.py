"""One step of a trainer: an update from a whole batch, or from a batch that is split into pieces."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from adjoint.accumulate.blocks import MicroBatch
from adjoint.core.tensor import Tensor
from adjoint.grads.clip import clip_grad_norm
from adjoint.grads.slots import drop
from adjoint.optim import Optimizer
from adjoint.train.comparing import check_mean
from adjoint.train.compose import TermNorms
from adjoint.train.data import Share
from adjoint.train.snapshot import undone_on_error
from adjoint.train.weighing import Averages, examples_in, loss_of

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = ["differentiated", "made_step"]

Step = tuple[dict[str, float], dict[str, float], float]  # metrics, gradient norms, weight of the batch


def made_step(trainer: Trainer, batch: Any) -> Step:
    """Update the model from a batch.

    Return the metrics, the gradient norms (``"grad_norm"``, and those of the terms of a composed loss), and
    the weight of the batch.  After an error, the buffers and random generators of the modules are as they
    were before, so the batch can be used again.
    """
    if trainer.pieces > 1 and not trainer._compared:
        trainer._compared = check_mean(trainer, batch)
    if trainer.compiled is not None and trainer.compiled.rows is None:
        rows = batch.rows if isinstance(batch, Share) else examples_in(batch)
        trainer.compiled.rows = -(-rows // trainer.pieces)  # of the largest piece, on all ranks
    with undone_on_error(trainer) as before:
        if trainer._ranks is not None:
            return trainer._ranks.step(batch)
        if trainer.pieces > 1:
            return _step_in_pieces(trainer, batch)
        return _whole_step(trainer, batch, list(before.parameters.values()))


def _whole_step(trainer: Trainer, batch: Any, params: list[Tensor]) -> Step:
    """Update the model from a whole batch; ``params`` are the parameters of the model and the loss."""
    norms = trainer._term_norms()
    drop(params)
    logs, weight = differentiated(trainer, batch, norms)
    logs = logs if weight else dict.fromkeys(logs, math.nan)
    found = {"grad_norm": math.nan, **_named_norms(norms)}
    if weight:  # a weight of 0, for example if all targets are ignored, means no update
        updated = trainer.optimizer.params if isinstance(trainer.optimizer, Optimizer) else params
        found["grad_norm"] = clip_grad_norm(updated, trainer.clip, nonfinite="allow")
        trainer._before_update({**logs, "lr": trainer._rate(), **found})
        trainer.optimizer.step()
    return logs, found, weight


def _step_in_pieces(trainer: Trainer, batch: Any) -> Step:
    """Update the model from a batch that is split into pieces; the metrics are means over the pieces."""
    averages, total = Averages(), 0.0
    norms = trainer._term_norms()
    acc = trainer.accumulator
    drop(trainer._left_alone)
    found = {"grad_norm": math.nan}
    try:
        for piece in _pieces(trainer, batch):
            with acc.micro_batch() as block:
                numbers, weight = differentiated(trainer, piece, norms, block)
            averages.add(numbers, weight)
            total += weight
        acc.flush()
        logs = averages.means()
        found.update(_named_norms(norms))

        def before() -> None:
            found["grad_norm"] = math.nan if acc.last_norm is None else acc.last_norm
            trainer._before_update({**logs, "lr": trainer._rate(), **found})

        acc.apply(trainer.optimizer, before=before)
    except BaseException:
        acc.drop()  # so that the gradients of this batch are not part of the next update
        raise
    return logs, found, total


def differentiated(
    trainer: Trainer, piece: Any, norms: TermNorms | None, block: MicroBatch | None = None
) -> tuple[dict[str, float], float]:
    """Add the gradients of a batch, or of a piece of it in a ``block``; return its metrics and weight."""
    if trainer.compiled is not None:
        loss, numbers, weight = trainer.compiled(piece, trainer.pieces, norms)
    else:
        loss, numbers, weight = loss_of(trainer, piece, trainer.pieces)
        if norms is not None:
            norms.add(weight)
    if block is not None:
        block.weight = weight  # before the backward, in which ranks send the gradients of the last piece
    if trainer.compiled is None and block is not None:
        block.backward(loss)
    elif trainer.compiled is None and weight:
        loss.backward()
    trainer._release()
    return {"loss": loss.item(), **numbers}, weight


def _pieces(trainer: Trainer, batch: Any) -> Iterable[Any]:
    rows = examples_in(batch)
    return trainer.accumulator.split(batch, -(-rows // trainer.pieces)) if rows else [batch]


def _named_norms(norms: TermNorms | None) -> dict[str, float]:
    return {} if norms is None else {f"grad_norm_{name}": norm for name, norm in norms.norms().items()}
