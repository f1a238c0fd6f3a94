"""The loss of a batch and its gradients as one compiled function, for ``Trainer(compile=True)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adjoint import tree
from adjoint.compiler.compile import compile
from adjoint.compiler.machine import has_llvm
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError
from adjoint.train.compose import ComposedLoss
from adjoint.train.weighing import computed, finished, first_padded

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = ["CompiledLoss"]


class CompiledLoss:
    """Compute the loss of a batch and its gradients in one compiled program.

    Batches with the shapes of the first one run as native code.  Batches with other shapes, such as a short
    last batch, run by replay, because a second native build does not pay off for a few batches.
    """

    def __init__(self, trainer: Trainer, group: Any = None) -> None:
        if group is not None:
            raise ArgumentError("Trainer: compile=True and group= cannot be used together yet.")
        if isinstance(trainer.loss, ComposedLoss):
            raise ArgumentError(
                "Trainer: compile=True cannot be used with a composed loss, because its terms are logged.\n"
                "  Pass a single loss function, or leave out compile=True."
            )
        self.trainer = trainer
        self.shapes: Any = None  # of the first batch

        def loss_and_backward(batch: Any) -> Any:
            loss, numbers, found = computed(trainer, batch)
            shares = [(value is loss, share) for value, share in found]
            own = [share for same, share in shares if same] or [share for _, share in shares]
            if isinstance(loss, Tensor) and loss.size == 1 and (not own or any(s != 0 for s in own)):
                loss.backward()
            return loss, numbers, shares

        # Native from the first call on: "auto" replays the first, so a resumed run would have other bits.
        self.native = compile(loss_and_backward, backend="native" if has_llvm() else "replay")
        self.replay = compile(loss_and_backward, backend="replay")

    def __call__(self, batch: Any, pieces: int = 1) -> tuple[Tensor, dict[str, float], float]:
        """Add the gradients of a batch; return its loss, the numbers to log, and its weight."""
        if first_padded(batch) is not None:
            raise InputError(
                "Trainer: compile=True cannot be used with padded batches.  Leave out compile=True."
            )
        shapes = [getattr(leaf, "shape", None) for leaf in tree.leaves(batch)]
        if self.shapes is None:
            self.shapes = shapes
        run = self.native if shapes == self.shapes else self.replay
        loss, numbers, shares = run(batch)
        other = loss.detach() if isinstance(loss, Tensor) else loss
        found = [(loss if same else other, share) for same, share in shares]
        return finished(self.trainer, batch, loss, numbers, found, pieces)
