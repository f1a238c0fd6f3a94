"""Training on several ranks: steps, validation, stopping and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint import tree, words
from adjoint.accumulate.ranks import RankSums, check_same
from adjoint.config import no_grad
from adjoint.core.tensor import Tensor
from adjoint.distributed.group import Group
from adjoint.distributed.order import PieceSum, share
from adjoint.errors import InputError, RankError
from adjoint.grads.norm import global_norm
from adjoint.grads.slots import drop
from adjoint.nn.module import Module
from adjoint.random import Generator
from adjoint.train.compose import ComposedLoss, TermNorms
from adjoint.train.data import DataLoader, Share
from adjoint.train.snapshot import modules_of
from adjoint.train.steps import differentiated
from adjoint.train.weighing import Averages, examples_in, loss_of

if TYPE_CHECKING:
    from adjoint.train.trainer import Trainer

__all__ = ["RankLoop", "size_and_rank"]

Numbers = dict[str, float]


@dataclass(slots=True)
class Facts:
    """The data that a rank sends to the other ranks at the end of a step: sizes, metrics, wish to stop."""

    rows: int  # the number of rows of the whole batch
    numbers: list[tuple[float, Numbers]]  # the weight and the metrics of each piece
    stop: str | None  # why this rank asks to stop, or None


def size_and_rank(group: Any) -> tuple[int, int]:
    """Return how many ranks a group has, and the rank of this process; raise if ``group`` is no ``Group``."""
    if not isinstance(group, Group):
        raise InputError(f"Trainer: group must be a distributed.Group, not {words.a(type(group).__name__)}.")
    return group.size, group.rank


class RankLoop:
    """The part of a trainer that is different with ``group=``: steps and validation over several ranks."""

    def __init__(self, trainer: Trainer, group: Group) -> None:
        self.trainer, self.group = trainer, group
        self.asked: str | None = None  # why this rank asks to stop, or None
        sums = trainer.accumulator._sums
        assert isinstance(sums, RankSums)
        self.sums = sums
        self.generators = _generators(trainer)
        shard = getattr(trainer.optimizer, "shard", None)
        if shard is not None and shard is not group:
            raise InputError(
                "Trainer: the optimiser's shard= and the trainer's group= must be the same Group object."
            )
        others = {f"buffer {name}": b for name, b in _buffers(trainer)}
        others |= {f"left alone {i}": p for i, p in enumerate(trainer._left_alone)}
        facts = {
            "optimizer": trainer.optimizer, "accumulate": trainer.pieces, "clip": trainer.clip,
            "loss": type(trainer.loss).__name__, "callbacks": [type(c).__name__ for c in trainer.callbacks],
        }  # fmt: skip
        check_same(group, "Trainer", others, facts)
        for callback in trainer.callbacks:
            callback.writes = group.rank == 0

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Return a context manager that reports any error in its block to the other ranks."""
        self.asked = None
        try:
            yield
        except BaseException as error:
            if not isinstance(error, RankError):
                self.group.fail(self.group.describe(error))
            raise

    # Steps -------------------------------------------------------------------------------------

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of a loader; if it is a ``DataLoader``, only this rank's share of each batch."""
        return loader.cut(self.group, self.trainer.pieces) if isinstance(loader, DataLoader) else loader

    def step(self, batch: Any) -> tuple[Numbers, Numbers, float]:
        """Update the model from a batch that is divided among the ranks.

        Return the means of the metrics over all ranks, the gradient norms, and the weight of the batch.
        """
        trainer, acc = self.trainer, self.trainer.accumulator
        part = batch if isinstance(batch, Share) else self._cut(batch)
        norms = _RankNorms(trainer, self.group) if trainer._term_norms() else None
        drop(trainer._left_alone)
        facts = Facts(part.rows, [], None)
        self.sums.facts = facts
        found = {"grad_norm": math.nan, **dict.fromkeys(norms.names if norms is not None else (), math.nan)}
        logs: Numbers = {}

        def before() -> None:
            logs.update(self._means())
            found["grad_norm"] = math.nan if acc.last_norm is None else acc.last_norm
            if norms is not None:
                found.update(norms.norms())
            trainer._before_update({**logs, "lr": trainer._rate(), **found})

        try:
            self._add(part, facts, norms)
            facts.stop = self.asked
            acc._window.closed = True  # even if this rank has no rows
            acc.apply(trainer.optimizer, before=before)
        except BaseException:
            acc.drop()
            raise
        self._hear([each.stop for each in self.sums.heard])
        weights = [weight for each in self.sums.heard for weight, _ in each.numbers]
        return logs or self._means(), found, math.fsum(weights)

    def _cut(self, batch: Any) -> Share:
        """Return the pieces of a batch that this rank processes; all ranks have the whole batch."""
        rows = examples_in(batch)
        found = []
        for j in range(*share(self.trainer.pieces, self.group.size, self.group.rank)):
            start, stop = share(rows, self.trainer.pieces, j)
            cut = slice(start, stop)
            found.append((j, tree.map(lambda a, cut=cut: a[cut], batch) if stop > start else None))
        return Share(rows, found)

    def _add(self, part: Share, facts: Facts, norms: _RankNorms | None) -> None:
        """Compute and accumulate the gradients of the pieces in ``part``, this rank's share of a batch.

        The metrics are added to ``facts``, the gradients of the loss's terms to ``norms``.
        """
        trainer, acc = self.trainer, self.trainer.accumulator
        with self._keyed_draws() as key:
            for k, (number, piece) in enumerate(part.pieces):
                self.sums.last = k + 1 == len(part.pieces)
                if piece is None:
                    with acc.micro_batch(weight=0.0):
                        pass
                    continue
                key(number)
                with acc.micro_batch() as block:
                    numbers, weight = differentiated(trainer, piece, norms, block)
                facts.numbers.append((weight, numbers))

    def _means(self) -> Numbers:
        """Return the mean of each metric over the pieces of all ranks, by name.

        The result does not depend on the order of the pieces.  Raise if the ranks have different batches.
        """
        heard: list[Facts] = self.sums.heard
        rows = [each.rows for each in heard]
        if len(set(rows)) > 1:
            raise InputError(
                f"Trainer: the ranks have different batches, with {rows} rows.\n"
                "  Pass the same batches on all ranks.  The trainer divides each batch among the ranks."
            )
        pieces = [piece for each in heard for piece in each.numbers]
        names = {name: None for _, numbers in pieces for name in numbers}
        return {name: _mean([(w, x[name]) for w, x in pieces if name in x]) for name in names} or {
            "loss": math.nan
        }

    @contextmanager
    def _keyed_draws(self) -> Iterator[Callable[[int], None]]:
        """Return a context manager in which random draws depend only on the step and the piece.

        It yields a function that must be called with the index of each piece before the piece is computed.
        """
        before = [rng._numpy for rng in self.generators]

        def key(piece: int) -> None:
            for rng in self.generators:
                rng._numpy = rng.at(self.trainer.step, piece)._numpy

        try:
            yield key
        finally:
            for rng, numpy in zip(self.generators, before, strict=True):
                rng._numpy = numpy

    # Stopping ------------------------------------------------------------------------------------

    def _hear(self, asked: Sequence[str | None]) -> None:
        self.trainer.stopped = next((reason for reason in asked if reason is not None), None)

    def agree_to_stop(self, where: str) -> None:
        """Stop the training on all ranks if one rank asked to stop; ``where`` names this call in errors."""
        self._hear(self.group.gather(self.asked, where))

    # Validation and checkpoints --------------------------------------------------------------------

    def evaluated(self, loader: Iterable[Any], until_stopped: bool) -> Numbers | None:
        """Return the mean of each metric over the batches of a loader; each rank evaluates some of them.

        Return None if ``until_stopped`` is True and training was stopped meanwhile.
        """
        trainer, rank, size = self.trainer, self.group.rank, self.group.size
        self.average_buffers()
        found: list[tuple[int, float, Numbers]] = []
        enough = False
        own = loader.whole(rank, size) if isinstance(loader, DataLoader) else islice(loader, rank, None, size)
        with trainer._evaluating():
            for k, batch in enumerate(own):
                enough = until_stopped and self.asked is not None
                if enough:
                    break
                loss, numbers, weight = loss_of(trainer, batch)
                found.append((rank + k * size, weight, {"loss": float(loss), **numbers}))
        told = self.group.gather((enough, self.asked, found), "the end of a validation")
        if until_stopped:
            self._hear([asked for _, asked, _ in told])
            if any(early for early, *_ in told):
                return None
        averages = Averages()
        for _, weight, numbers in sorted((each for *_, part in told for each in part), key=lambda e: e[0]):
            averages.add(numbers, weight)  # in the same order as in a single process
        return averages.means()

    def average_buffers(self) -> None:
        """Replace each float buffer, such as a running mean, by the mean of the buffers of all ranks."""
        if self.group.size == 1:
            return
        with no_grad():
            for name, b in _buffers(self.trainer):
                if b.dtype.kind in "fc":
                    total = self.group.sum(b._data, f"the mean of the buffer {name}")
                    b.copy_((total / self.group.size).astype(b.dtype))

    def written(self, path: Path | None) -> Path:
        """Wait until rank 0 has written a checkpoint, and return the path of the checkpoint.

        ``path`` is this path on rank 0, and None on the other ranks.
        """
        return Path(self.group.gather(None if path is None else str(path), "a checkpoint")[0])


class _RankNorms(TermNorms):
    """The gradient norm of each term of a composed loss, over the pieces of all ranks."""

    def __init__(self, trainer: Trainer, group: Group) -> None:
        assert isinstance(trainer.loss, ComposedLoss)
        super().__init__(trainer.loss, list(trainer.named_parameters().values()))
        self.group = group
        self.totals = {name: PieceSum() for name in self.loss.terms}
        self.names = [f"grad_norm_{name}" for name in self.loss.terms]

    def add(self, weight: float = 1.0) -> None:
        """Add the gradients of each term in the last forward, multiplied by the weight of the piece."""
        super().add(weight)
        for name, total in self.totals.items():
            total.add(self._flat(self._sums.pop(name, [])))

    def _flat(self, sums: list[Any]) -> Any:
        wide = np.result_type(np.float64, *(p.dtype for p in self._params))
        given = sums or [None] * len(self._params)
        pairs = zip(given, self._params, strict=True)
        return np.concatenate([np.zeros(p.size) if g is None else g for g, p in pairs], None, dtype=wide)

    def norms(self) -> Numbers:
        """Return the gradient norm of each term by its name in the logs, ``grad_norm_<term>``."""
        weight = math.fsum(self.group.gather(self._weight, "the weight of a step"))
        found = {}
        for name, total in self.totals.items():
            own = total.total()
            summed = self.group.sum(self._flat([]) if own is None else own, f"the gradient of term {name}")
            found[f"grad_norm_{name}"] = global_norm([summed]) / weight if weight else math.nan
        return found


def _mean(pairs: list[tuple[float, float]]) -> float:
    """Return Σ weight·value / Σ weight of pairs (weight, value).  Values with weight 0 are ignored.

    Finite sums are rounded only once, so the result does not depend on the order of the pairs.
    """
    pairs = [(w, x) for w, x in pairs if w]
    if not pairs:
        return math.nan
    try:
        return math.fsum(w * x for w, x in pairs) / math.fsum(w for w, _ in pairs)
    except (OverflowError, ValueError):  # infinities
        return sum(w * x for w, x in pairs) / sum(w for w, _ in pairs)


def _buffers(trainer: Trainer) -> list[tuple[str, Tensor]]:
    found = list(trainer.model.named_buffers())
    if isinstance(trainer.loss, Module):
        found += [(f"loss.{name}", b) for name, b in trainer.loss.named_buffers()]
    return found


def _generators(trainer: Trainer) -> list[Generator]:
    """Return the random generators of all modules; raise if one is a generator of NumPy.

    The draws of NumPy's generators cannot be made to depend only on the step and the piece.
    """
    found: dict[int, Generator] = {}
    for path, module in modules_of(trainer):
        for name, value in vars(module).items():
            if isinstance(value, np.random.Generator):
                raise InputError(
                    f"Trainer: {path}.{name} is a generator of NumPy, whose draws would depend on the "
                    "number of ranks.\n  Use ad.random.default_rng(seed)."
                )
            if isinstance(value, Generator):
                found[id(value)] = value
    return list(found.values())
