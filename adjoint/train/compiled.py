"""The loss of a batch and its gradients as one compiled function, for ``Trainer(compile=True)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adjoint.compiler.api.compile import compile
from adjoint.compiler.emit.machine import has_llvm
from adjoint.config import special
from adjoint.core.observer import observer, unobserved
from adjoint.core.tensor import Tensor
from adjoint.grads.backward import backward
from adjoint.grads.slots import sink
from adjoint.train.compose import ComposedLoss, TermNorms
from adjoint.train.snapshot import untouched
from adjoint.train.weighing import computed, examples_in, finished, first_padded, loss_of

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = ["CompiledLoss"]

_LENGTHS = 64  # the number of batch shapes, such as lengths of padded sequences, whose programs are cached


class CompiledLoss:
    """Compute the loss of a batch and its gradients in one compiled program.

    Batches with as many examples as the first one run as native code.  Batches of a different size, such as
    a short last batch, and padded sequences run without native code, because building native code takes
    longer than it saves on a few batches.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.rows: int | None = None  # the number of examples of a batch that runs as native code; is saved

        def loss_and_backward(batch: Any, weights: Any) -> Any:
            terms: dict[str, Tensor] = {}

            def composed(*given: Any) -> Tensor:
                whole = trainer.loss
                assert isinstance(whole, ComposedLoss)
                terms.update(whole.terms_of(*given))
                return whole.total(terms, weights)

            loss, numbers, found = computed(trainer, batch, composed if weights else None)
            shares = [(value is loss, share) for value, share in found]
            own = [share for same, share in shares if same] or [share for _, share in shares]
            # The share is 0 if all targets are ignored; otherwise it is a tensor here.  An accumulator leaves
            # the gradients of such a piece out, but needs a backward.
            used = sink.get() is not None or not own or any(_counts(s) for s in own)
            if isinstance(loss, Tensor) and loss.size == 1 and used:
                loss.backward()
            return loss, numbers, shares, {name: t.detach() for name, t in terms.items()}

        # Not backend="auto", which replays the first call: a resumed run would round differently.
        self.native = compile(loss_and_backward, backend="native" if has_llvm() else "replay")
        self.replay = compile(loss_and_backward, backend="replay", limit=_LENGTHS)

    def __call__(
        self, batch: Any, pieces: int = 1, norms: TermNorms | None = None
    ) -> tuple[Tensor, dict[str, float], float]:
        """Compute and accumulate the gradients of a batch; return its loss, metrics to log, and weight.

        ``pieces`` is the number of pieces that the whole batch of this step is divided into.  If ``norms`` is
        given, the gradients of the loss's terms are added to it.  For this, and for an observer of ops such
        as a ``Recorder``, the Python function runs first, without an effect on the training.
        """
        watched = special.count and (watcher := observer.get()) is not None and watcher.values
        if norms is None and not watched:
            return self._computed(batch, pieces)
        with untouched(self.trainer):
            loss, _, weight = loss_of(self.trainer, batch, pieces)
            if norms is not None:
                norms.add(weight)
            if watched:
                backward(loss)
        self.trainer._release()
        with unobserved():
            return self._computed(batch, pieces)

    def _computed(self, batch: Any, pieces: int) -> tuple[Tensor, dict[str, float], float]:
        whole = self.trainer.loss
        weights = whole.weights_now() if isinstance(whole, ComposedLoss) else None
        own = examples_in(batch) == self.rows and first_padded(batch) is None
        run = self.native if own else self.replay
        loss, numbers, shares, terms = run(batch, weights)
        if isinstance(whole, ComposedLoss):
            whole.values = {name: float(t) for name, t in terms.items()}
        other = loss.detach() if isinstance(loss, Tensor) else loss
        found = [(loss if same else other, s if s is None else float(s)) for same, s in shares]
        return finished(self.trainer, batch, loss, numbers, found, pieces)


def _counts(share: Any) -> bool:
    """Return whether ``share``, the fraction of rows that a mean loss includes, may be different from 0.

    Return True for a traced share, because its value is not known yet.
    """
    return isinstance(share, Tensor) or share != 0
