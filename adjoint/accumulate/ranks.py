"""Accumulation over several ranks (processes), with sums in an order that does not depend on their number.

A *window* is the set of micro-batches of one update.  A *piece* is one micro-batch of this rank.  A rank adds
its pieces in pairs, then pairs of pairs, and the group adds the ranks in the same way.  Parameters are sent
in *buckets* of several small ones or one large one.  In each window, every rank sums the same buckets in the
same order and then exchanges a ``Report`` with the other ranks.  A rank that failed does this too, so that
all ranks learn about the error.

``RankSums`` and ``RankBlock`` replace ``Sums`` and ``MicroBatch`` in an accumulator with ``group=``.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy import ndarray

from adjoint import words
from adjoint.accumulate.blocks import MicroBatch
from adjoint.accumulate.sums import WIDE, Buffer, Slot, Staged, Sums
from adjoint.config import no_grad
from adjoint.core.sparse import SparseRows
from adjoint.core.tensor import Tensor
from adjoint.errors import AccumulationError, ArgumentError, InputError, RankError
from adjoint.grads.norm import all_finite_unwarned

if TYPE_CHECKING:
    from adjoint.accumulate.accumulator import GradientAccumulator
    from adjoint.accumulate.window import AccumulationConfig, Window
    from adjoint.distributed.group import Group, Job

__all__ = ["RankBlock", "RankSums", "check_same"]

Array = ndarray[Any, Any]

FIRST = 1 << 20  # bytes of the first bucket, which is small so that its sum begins early
LIMIT = 25 << 20  # the largest number of bytes of a bucket, unless one parameter is larger
CHECK_EVERY = 100  # windows between two comparisons of the parameters


class Bucket(Buffer):
    """The sums of several small parameters, or of one large parameter, which are sent together.

    A bucket without gradients is added as zeros, because x + 0 has different bits than x if x is -0.  A sum
    thus has the same bits whether or not a rank or a micro-batch had no gradient.
    """

    def __init__(self, slots: list[Slot], group: Group) -> None:
        super().__init__(slots, 1)
        self.group = group
        self.partial: list[Array | None] = []  # sums of 2ᵏ pieces, k descending; None: zeros
        self.spare: list[Array] = []
        self.waiting: set[str] = set()  # names whose last gradient of the window has not arrived
        self.job: Job | None = None

    def open(self) -> None:
        """Allocate memory if there is none, or if other code still refers to an array in it."""
        if self.is_shared():
            size, dtype = self.group.padded(self.size), self.slots[0].dtype
            memory = self.spare.pop() if self.spare else np.zeros((1, size), dtype)
            self.use(memory)

    def need(self) -> None:
        """Fill the bucket with zeros, unless the current micro-batch has already stored a gradient in it."""
        if self.fresh:
            self.open()
            self.arrays[0].fill(0)
            self.fresh = False

    def put_weighted(self, slot: Slot, g: Array, factor: float) -> None:
        """Store factor·g as the gradient of a parameter in the current micro-batch."""
        if len(self.slots) > 1:
            self.need()
        elif self.fresh:
            self.open()  # all but the padding is overwritten
            self.arrays[0][0, self.size :] = 0
            self.fresh = False
        out = self.arrays[0][0, slot.part].reshape(slot.shape)
        np.multiply(g, factor, out=out, dtype=slot.dtype)

    def push(self, before: int) -> None:
        """End the current micro-batch: add it to the sums of the ``before`` earlier ones.

        Only sums of equally many micro-batches are added, as in a binary counter, so several partial sums may
        remain.
        """
        piece: Array | None = None
        if not self.fresh:
            piece, self.arrays, self.fresh = self.arrays[0], [], True
        while before & 1:
            earlier = self.partial.pop()
            if earlier is None:
                piece = None if piece is None else np.add(piece, 0, out=piece)
            else:
                np.add(earlier, 0 if piece is None else piece, out=earlier)
                if piece is not None:
                    self.spare.append(piece)
                piece = earlier
            before >>= 1
        self.partial.append(piece)

    def collect(self) -> None:
        """Add the earlier micro-batches to the current one, which is the last of the window."""
        self.need()
        total = self.arrays[0]
        while self.partial:
            earlier = self.partial.pop()
            np.add(total, 0 if earlier is None else earlier, out=total)
            if earlier is not None:
                self.spare.append(earlier)

    def forget(self) -> None:
        """Clear the sums of all micro-batches; keep the memory, unless a sum over the ranks writes to it."""
        if self.job is not None and not self.job.done.is_set():
            self.arrays = []
        self.spare += [a for a in self.partial if a is not None]
        self.partial, self.job, self.fresh = [], None, True
        self.waiting.clear()


@dataclass(slots=True)
class Report:
    """The counts, weights, sparse gradients and error that a rank sends to the others after each window."""

    window: int
    weights: list[float]  # the weights of its micro-batches
    micro_batches: int
    skipped: int
    spoiled: bool
    dense: int  # bit i: parameter i had a dense gradient
    registered: int  # number of parameters
    rows: dict[str, list[tuple[Array, Array]]]  # the rows of sparse gradients
    error: str | None
    digests: list[int] | None  # checksums of the parameters, every CHECK_EVERY windows
    facts: Any  # the data that a trainer exchanges


class RankSums(Sums):
    """The sums over the micro-batches of this rank; after ``reduce``, the sums over all ranks."""

    def __init__(self, group: Any, config: AccumulationConfig) -> None:
        super().__init__()
        if not (hasattr(group, "gather") and hasattr(group, "start_sum")):
            raise InputError(
                f"GradientAccumulator: group must be a distributed.Group, not "
                f"{words.a(type(group).__name__)}.\n"
                "  Pass group=distributed.world() for all ranks."
            )
        if config.compensated:
            raise ArgumentError(
                "GradientAccumulator: compensated=True cannot be used with group=, whose sums are pairwise."
            )
        self.group: Group = group
        self.config = config
        self.active: set[str] = set()  # names that had a dense gradient on any rank
        self.windows = 0  # the number of windows whose sums were sent
        self.pieces = 0  # the number of pieces in this window
        self.weights: list[float] = []  # of the pieces that are complete
        self.parts: dict[str, list[SparseRows]] = {}  # rows of sparse gradients, by piece
        self.sent = 0  # the number of active buckets whose sum over the ranks has begun
        self.left = False  # whether the sums of all active buckets have begun
        self.ahead = False  # the sums of the last piece are sent while backward still runs
        self.bad: list[str] = []  # names whose gradient in the last piece is not finite
        self.facts: Any = None  # the data that this rank sends to the others in the next exchange
        self.heard: list[Any] = []  # the data of all ranks from the last exchange
        self.last: bool | None = None  # whether the next piece is the last of the window; None: by its number

    def agree(self) -> None:
        """Check that all ranks have the same parameters, and copy the values of rank 0 to all ranks."""
        if not self.slots:
            raise ArgumentError(
                "GradientAccumulator: group= needs parameters: GradientAccumulator(params, group=group)."
            )
        check_same(self.group, "GradientAccumulator", self.params(), {"config": self.config})

    def params(self) -> dict[str, Tensor]:
        """Return the parameters by name."""
        return {name: slot.param for name, slot in self.slots.items() if slot.param is not None}

    def load(self, states: Mapping[str, Mapping[str, Any]], unit: float) -> None:
        """Clear the sums instead of loading them, because with several ranks only empty windows are saved."""
        self.reset()

    def check_undivided(self, window: Window) -> None:
        """Raise if the window has micro-batches, because no rank has all of them to save or load."""
        if window.micro_batches:
            raise AccumulationError(
                "with group=, a window is divided among the ranks, so no rank can save or load it.\n"
                "  Save the state after apply(), or call drop() first."
            )

    def lay_out(self, arrays: Sequence[Any]) -> None:
        """Make the buckets of all registered parameters that have none; ``arrays`` is not used.

        The first bucket has the last parameters, because backward computes their gradients first.
        """
        slots = [slot for slot in self.pending[::-1] if slot.param is None or slot.param.requires_grad]
        total = sum(slot.size * slot.dtype.itemsize for slot in slots if slot.dtype)
        limit = min(max(total // 8, FIRST), LIMIT)
        made: list[tuple[int, list[Slot]]] = []  # the index of the last parameter, and the parameters
        open_: dict[Any, tuple[list[Slot], int]] = {}
        for place, slot in enumerate(slots):
            assert slot.dtype is not None  # of a parameter
            size = slot.size * slot.dtype.itemsize
            if size >= FIRST:  # a bucket of its own, so that a sparse gradient is never sent as zeros
                made.append((place, [slot]))
                continue
            members, room = open_.get(slot.dtype, ([], limit if made else FIRST))
            open_[slot.dtype] = members, room = [*members, slot], room - size
            if room <= 0:
                made.append((place, members))
                del open_[slot.dtype]
        made += [(len(slots), members) for members, _ in open_.values()]
        made.sort(key=lambda pair: pair[0])
        self.add_buffers([Bucket(members, self.group) for _, members in made])

    def buckets(self, *, active: bool) -> list[Bucket]:
        """Return the buckets that a rank has used; if ``active`` is False, those that no rank has used."""
        if self.pending:
            self.lay_out(())
        return [b for b in self.buffers if any(slot.name in self.active for slot in b.slots) is active]

    def begin(self) -> None:
        """Begin the next micro-batch; if it gets no gradient, it counts as zeros."""
        if self.pending:
            self.lay_out(())
        if self.pieces:
            for bucket in self.buffers:
                bucket.push(self.pieces - 1)
        self.pieces += 1

    def staged(self, arrays: Sequence[Any], weight: float | None, before: float, *, check: bool) -> Staged:
        """Return the names of gradients that are not finite, or a function that adds the next micro-batch.

        The arguments are those of ``Sums.staged``.
        """
        self._check_weight(weight or 0.0)
        pairs = [(slot, g) for slot, g in zip(self.slots.values(), arrays, strict=True) if g is not None]
        if check:
            bad = [slot.name for slot, g in pairs if not all_finite_unwarned(getattr(g, "values", g))]
            if self.bad or bad:
                return self.bad + bad, None

        def add() -> None:
            if not self.ahead:
                self.begin()
            with np.errstate(all="ignore"):
                for slot, g in pairs:
                    self.store(slot, g, 1.0 if weight is None else weight)

        return [], add

    def store(self, slot: Slot, g: Any, factor: float) -> None:
        """Store factor·g as the gradient of a parameter in the current micro-batch."""
        if type(g) is SparseRows:
            values = np.multiply(g.values, factor, dtype=slot.dtype)
            self.parts.setdefault(slot.name, []).append(g.mapped(values).coalesced())
        else:
            self.buffer_of[slot.name].put_weighted(slot, g, factor)
            self.dense.add(slot.name)

    def send(self, rest: bool = True) -> None:
        """Start to sum the buckets over the ranks, in order.

        If ``rest`` is False, stop at the first bucket that still waits for a gradient.
        """
        self.windows += rest and not self.left
        self.left = self.left or rest
        buckets = self.buckets(active=True)
        while self.sent < len(buckets) and (rest or not buckets[self.sent].waiting):
            self._send(buckets[self.sent])
            self.sent += 1

    def arrived(self, name: str) -> None:
        """Send the buckets that are complete now that the last gradient of parameter ``name`` has arrived."""
        self.buffer_of[name].waiting.discard(name)
        self.send(rest=False)

    def _send(self, bucket: Bucket) -> None:
        bucket.collect()
        if self.group.size > 1:
            names = bucket.slots[0].name + (f" … {bucket.slots[-1].name}" if len(bucket.slots) > 1 else "")
            bucket.job = self.group.start_sum(bucket.arrays[0][0], f"the sum of gradients ({names})")

    def send_late(self, used: set[str]) -> list[Bucket]:
        """Start to sum the buckets that a rank used for the first time in this window; return these buckets.

        ``used`` has the names of the parameters that got a gradient on any rank.
        """
        late = [b for b in self.buckets(active=False) if any(slot.name in used for slot in b.slots)]
        for bucket in late:
            self._send(bucket)
        self.active |= used
        return late

    def wait(self, buckets: list[Bucket]) -> None:
        """Wait until the sums of buckets over the ranks are complete."""
        for bucket in buckets:
            job, bucket.job = bucket.job, None
            if job is not None:
                self.group.wait(job)

    def join_rows(self, ranks: list[dict[str, list[Any]]]) -> None:
        """Store the sum of the sparse gradients of all ranks, added in the order of the micro-batches.

        ``ranks`` has, for each rank, the (rows, values) of each micro-batch by the name of the parameter.
        """
        for name, slot in self.slots.items():
            parts = [part for rank in ranks for part in rank.get(name, ())]
            if parts:
                rows, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
                found = SparseRows(rows, values, slot.shape).coalesced()
                self.rows[name] = found.rows, found.values[None]

    def reset(self) -> None:
        """Clear all sums; keep the memory."""
        super().reset()
        for bucket in self.buffers:
            bucket.forget()
        self.pieces = self.sent = 0
        self.ahead = self.left = False
        self.bad, self.weights, self.last = [], [], None
        self.parts.clear()

    def _check_weight(self, weight: float) -> None:
        if weight and not 1.0 / WIDE <= weight <= WIDE:
            raise ArgumentError(
                f"with group=, weights must be 0 or from 2^-64 to 2^64, not {weight:g}.  Nothing was added."
            )

    def end_piece(self, weight: float, full: bool) -> None:
        """Count a micro-batch, even if it was skipped; after the last micro-batch, start the sums.

        ``weight`` is its weight, and ``full`` says that it is the last one of the window.
        """
        if self.pieces == len(self.weights):  # nothing was added
            self.begin()
        self.weights.append(weight)
        if full if self.last is None else self.last:
            self.send()

    def flush(self, some: bool) -> bool:
        """Close the window if any rank has micro-batches in it; return whether one has.

        ``some`` says whether this rank has micro-batches.
        """
        self.send()  # some ranks have sent these sums, and all must make the same calls in the same order
        found = any(self.group.gather(some, "flush"))
        if not found:
            self.reset()
        return found

    def receiver(self, acc: GradientAccumulator, weight: float) -> Callable[[Tensor, Tensor], bool] | None:
        """Return a function that gets leaves and gradients during backward and sends complete buckets.

        ``weight`` is the weight of the micro-batch.  Return None if gradients cannot be sent before the end
        of the backward: because this is not the last micro-batch, a micro-batch may still be skipped, or the
        gradients are small.
        """
        window, config = acc._window, self.config
        last = window.micro_batches + 1 >= config.accumulation_steps if self.last is None else self.last
        buckets = self.buckets(active=True)
        small = sum(b.size * b.slots[0].dtype.itemsize for b in buckets if b.slots[0].dtype) < FIRST
        left_out = window.spoiled or (not weight and config.reduction == "mean")
        if self.group.size == 1 or not last or small or left_out or config.nonfinite == "skip":
            return None
        factor = weight if config.reduction == "mean" else 1.0
        self._check_weight(factor)
        self.begin()
        self.ahead = True
        for bucket in buckets:
            bucket.waiting = {slot.name for slot in bucket.slots}
        lock = threading.Lock()  # a parallel backward calls it from several threads

        def ready(leaf: Tensor, grad: Tensor) -> bool:
            name = acc._names.get(id(leaf))
            extra = leaf._extra
            hooked = extra is not None and extra.post_hooks is not None
            if name not in self.active or type(grad) is not Tensor or hooked:
                return False  # added at the end of the block
            slot, g = self.slots[name], np.asarray(grad._data)
            slot.fitting(g)
            bad = config.nonfinite != "allow" and not all_finite_unwarned(g)
            with lock, np.errstate(all="ignore"):
                self.bad += [name] * bad
                self.store(slot, g, factor)
                self.arrived(name)
            return True

        return ready

    def gather(self, acc: GradientAccumulator) -> None:
        """Sum the window and the counts of an accumulator over the ranks, unless this was done before."""
        if acc._window.reduced:
            return
        with acc._window:
            try:
                self.reduce(acc._window, acc._counts)
            except Exception:
                acc.drop()  # on all ranks, because the sums of some may already be those of all ranks
                raise

    def reduce(self, window: Window, counts: dict[str, int], error: BaseException | None = None) -> None:
        """Sum a window and its counts over the ranks; raise on all ranks if one rank had an error."""
        self.send()
        report = Report(
            self.windows, self.weights, window.micro_batches, window.skipped, window.spoiled,
            sum(1 << slot.index for slot in self.slots.values() if slot.name in self.dense), len(self.slots),
            {name: [(p.rows, p.values) for p in parts] for name, parts in self.parts.items()},
            None if error is None else self.group.describe(error),
            None if (self.windows - 1) % CHECK_EVERY else _digests(self.params()), self.facts,
        )  # fmt: skip
        self.wait(self.buckets(active=True))
        reports: list[Report] = self.group.gather(report, "the exchange at the end of a window")
        self.heard = [each.facts for each in reports]
        self._refuse(reports, error)
        used = {s.name for s in self.slots.values() if any(each.dense >> s.index & 1 for each in reports)}
        self.wait(self.send_late(used))
        self.join_rows([each.rows for each in reports])
        self.dense.update(used)
        counts["total_micro_batches"] += sum(r.micro_batches for r in reports) - window.micro_batches
        counts["skipped_micro_batches"] += sum(r.skipped for r in reports) - window.skipped
        window.weight = math.fsum(w for each in reports for w in each.weights)
        window.micro_batches = sum(each.micro_batches for each in reports)
        window.skipped = sum(each.skipped for each in reports)
        window.spoiled = any(each.spoiled for each in reports)
        window.closed = window.reduced = True

    def _refuse(self, reports: list[Report], error: BaseException | None) -> None:
        """Raise if a rank had an error, or if windows, parameters or values differ between the ranks.

        ``reports`` has the report of each rank, and ``error`` is the error of this rank, or None.
        """
        failed = [(rank, each.error) for rank, each in enumerate(reports) if each.error is not None]
        if failed:
            rank, why = failed[0]
            others = ", ".join(str(r) for r, _ in failed[1:])
            more = f"\n  Rank {others} failed too." if others else ""
            raise RankError(
                f"rank {rank} {why}{more}\n"
                "  No rank has updated its parameters from this accumulation window."
            ) from error
        for name, what in (
            ("window", "have finished different numbers of windows"),
            ("registered", "train different numbers of parameters"),
        ):
            found = [getattr(each, name) for each in reports]
            if len(set(found)) > 1:
                raise AccumulationError(f"the ranks {what}: {found}.  All ranks must make the same calls.")
        first = reports[0].digests
        for rank, each in enumerate(reports):
            if first is not None and each.digests != first:
                pairs = zip(self.params(), first, each.digests or [], strict=True)
                differ = [n for n, a, b in pairs if a != b]
                raise RankError(
                    f"the parameters of rank {rank} differ from those of rank 0: {', '.join(differ[:4])}"
                    f"{', …' if len(differ) > 4 else ''} (window {self.windows}).\n"
                    "  Something other than the optimiser changed parameters on one of these ranks.\n"
                    "  Continue from a checkpoint."
                )

    def fail(self, acc: GradientAccumulator, error: Exception) -> NoReturn:
        """End the window on all ranks because of an error on this rank."""
        if isinstance(error, RankError) or self.group.broken is not None:
            raise error
        try:
            self.reduce(acc._window, acc._counts, error)
        finally:
            acc._window.micro_batches += 1  # the one that failed
            acc.drop()
        raise error  # not reached: ``reduce`` raises


class RankBlock(MicroBatch):
    """A micro-batch of an accumulator with ``group=``: an error ends the window on all ranks."""

    __slots__ = ()

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Differentiate a loss; in the last micro-batch, send gradients while backward still runs.

        Parameters
        ----------
        loss : Tensor
            The loss.
        **options : Any
            Options of ``Tensor.backward``.
        """
        if self._sent:
            raise AccumulationError(
                "backward: the gradients of this window were already sent to the other ranks.\n  For several "
                "losses in one block, call loss.backward() for each, or add the losses."
            )
        ready = None if self._pending else self._sums().receiver(self._accumulator, self.weight)
        if ready is None:
            loss.backward(**options)
        else:
            self._sent = True
            loss.backward(on_leaf_ready=ready, **options)

    def _end(self, pending: dict[str, Any], error: BaseException | None) -> None:
        """Add the gradients ``pending`` of the block on this rank.

        An error, in the block or here, ends the window on all ranks.
        """
        acc, sums = self._accumulator, self._sums()
        if isinstance(error, Exception):
            sums.fail(acc, error)
        if error is not None:
            return  # an interrupt
        try:
            if pending or (self._weight != 0.0 and not self._sent):
                super()._end(pending, error)
            else:  # all gradients were taken, or this rank has no examples
                acc._add_block(pending, self)
        except Exception as found:
            sums.fail(acc, found)

    def _sums(self) -> RankSums:
        sums = self._accumulator._sums
        assert isinstance(sums, RankSums)
        return sums


def check_same(group: Group, what: str, params: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Raise if shapes, dtypes or settings (``facts``) differ between ranks; copy rank 0's values to all."""
    described = {name: f"{t.shape} {t.dtype}" for name, t in params.items()}
    group.agree(what, {**described, **facts, "order": list(described)})
    if group.size == 1:
        return
    with no_grad():
        for name, t in params.items():
            values = np.array(t._data, order="C")
            group.broadcast(values, what=f"the first value of {name}", checked=True)
            if group.rank:
                t.copy_(values)


def _digests(params: Mapping[str, Tensor]) -> list[int]:
    flat = (np.ascontiguousarray(t._data).reshape(-1).view(np.uint8) for t in params.values())
    return [zlib.crc32(a.data) for a in flat]
